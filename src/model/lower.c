/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * From a spec to placements. Tensors that a rule cuts alike, with equal shape and stage
 * coordinates, share a placement; tables of holders are shared by everything that uses the axes
 * alike. So the work is one look-up per tensor and side, and one table per distinct way of placing.
 */
#include "model/spec.h"

#include "base/checked.h"
#include "base/glob.h"
#include "model/lower_boxes.h"
#include "model/memo.h"
#include "model/rule_index.h"

#include <stdio.h>
#include <string.h>

typedef struct lowering {
    const ferry_spec *spec;
    fy_problem *problem;
    fy_digest key; /* scratch */
    fy_memo splits;
    fy_memo holders;
    fy_memo placements;
    fy_memo divided; /* placements of scales, by those of the values */
    fy_memo beside;  /* pairs of placements of matrices and their scales that agree */
    fy_memo casts;   /* numbers of conversions */
    const fy_conversion **conversions;
    size_t n_conversions, conversion_capacity;
    fy_rule_index rules[2]; /* of the source and of the destination */
} lowering;

/* Where one tensor lives on one side: the rule, and for each axis its coordinates if it is pinned.
 */
typedef struct placing {
    const fy_side *side;
    const fy_rule *rule;
    uint32_t stage_coordinate[FY_MAX_AXES]; /* FY_NONE: no stage */
} placing;

static bool rule_pins(const fy_rule *rule, uint32_t axis)
{
    for (uint32_t i = 0; i < rule->n_pins; i++) {
        if (rule->pins[i].axis == axis) {
            return true;
        }
    }
    return false;
}

static bool rule_cuts(const fy_rule *rule, uint32_t axis)
{
    for (size_t i = 0; i < rule->n_shards; i++) {
        for (uint32_t j = 0; j < rule->shards[i].n_axes; j++) {
            if (rule->shards[i].axes[j] == axis) {
                return true;
            }
        }
    }
    return rule->is_flat && rule->flat_axis == axis;
}

uint32_t fy_stage_coordinate(const fy_side *side, const fy_stage *stage, uint64_t item)
{
    if (stage->ends == NULL) {
        /* item x size / count without overflow: item < count, and size is below 2^25. */
        __extension__ typedef unsigned __int128 wide;
        return (uint32_t)((wide)item * side->axes[stage->axis].size / stage->count);
    }
    uint32_t coordinate = 0;
    while (item >= stage->ends[coordinate]) {
        coordinate++;
    }
    return coordinate;
}

static ferry_status apply_stages(const fy_tensor *tensor, size_t name_length, placing *p,
                                 ferry_error *error)
{
    const fy_side *side = p->side;
    for (uint32_t i = 0; i < side->n_axes; i++) {
        p->stage_coordinate[i] = FY_NONE;
    }
    for (size_t i = 0; i < side->n_stages; i++) {
        const fy_stage *stage = &side->stages[i];
        const char *axis = side->axes[stage->axis].name;
        uint64_t item;
        if (!fy_glob_match_number(stage->match, tensor->name, name_length, &item)) {
            continue;
        }
        if (item >= stage->count) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: \"%s\" is number %llu of stage \"%s\", which has %llu", side->name,
                           tensor->name, (unsigned long long)item, stage->match,
                           (unsigned long long)stage->count);
        }
        if (rule_pins(p->rule, stage->axis)) {
            continue; /* `on` overrides */
        }
        if (p->stage_coordinate[stage->axis] != FY_NONE) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: two stages place \"%s\" on the axis \"%s\"", side->name,
                           tensor->name, axis);
        }
        if (rule_cuts(p->rule, stage->axis)) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: \"%s\" is cut by the rule \"%s\" and placed by the stage \"%s\" on "
                           "the same axis \"%s\"",
                           side->name, tensor->name, p->rule->match, stage->match, axis);
        }
        p->stage_coordinate[stage->axis] = fy_stage_coordinate(side, stage, item);
    }
    return FERRY_OK;
}

static ferry_status check_dims(const fy_tensor *tensor, const placing *p, ferry_error *error)
{
    const fy_rule *rule = p->rule;
    if (tensor->n_dims == 0 && (rule->n_shards > 0 || rule->is_flat)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the rule \"%s\" cuts \"%s\", which is a scalar", p->side->name,
                       rule->match, tensor->name);
    }
    for (size_t i = 0; i < rule->n_shards; i++) {
        if (rule->shards[i].dim >= tensor->n_dims) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: the rule \"%s\" cuts dim %u of \"%s\", which has %u dimensions",
                           p->side->name, rule->match, rule->shards[i].dim, tensor->name,
                           tensor->n_dims);
        }
    }
    return FERRY_OK;
}

static ferry_status make_split(const fy_shard *shard, const fy_side *side, uint64_t extent,
                               fy_split **split_out, ferry_error *error)
{
    uint32_t counts[FY_MAX_AXES];
    switch (shard->cut) {
    case FY_CUT_EVEN:
        return fy_split_even(extent, shard->n_parts, shard->unit, split_out, error);
    case FY_CUT_STRIDE:
        return fy_split_strided(extent, shard->n_parts, shard->length, shard->unit, split_out,
                                error);
    case FY_CUT_BLOCKS:
        return fy_split_blocks(extent, shard->n_parts, shard->blocks, shard->n_values, shard->unit,
                               split_out, error);
    case FY_CUT_SIZES:
        return fy_split_sizes(extent, shard->sizes, shard->n_values, split_out, error);
    case FY_CUT_CYCLE:
        return fy_split_cyclic(extent, shard->n_parts, shard->length, split_out, error);
    case FY_CUT_NESTED:
        break;
    }
    for (uint32_t i = 0; i < shard->n_axes; i++) {
        counts[i] = side->axes[shard->axes[i]].size;
    }
    return fy_split_nested(extent, counts, shard->n_axes, shard->unit, split_out, error);
}

static ferry_status lower_split(lowering *l, const fy_tensor *tensor, const placing *p,
                                const fy_shard *shard, uint32_t dim, uint32_t *number_out,
                                ferry_error *error)
{
    fy_split *split = NULL;
    ferry_error inner;
    uint64_t extent = tensor->shape[dim];
    /* A rule is one object, so its address is as good as its content. */
    uint64_t values[2] = {(uint64_t)(uintptr_t)shard, extent};
    fy_hash128 key = fy_hash128_of(values, sizeof values);
    *number_out = fy_memo_find(&l->splits, key);
    if (*number_out != FY_NONE) {
        return FERRY_OK;
    }
    ferry_status status = shard == NULL ? fy_split_whole(extent, &split, &inner)
                                        : make_split(shard, p->side, extent, &split, &inner);
    if (status != FERRY_OK) {
        return fy_fail(error, status, "%s: \"%s\" dim %u, rule \"%s\": %s", p->side->name,
                       tensor->name, dim, p->rule->match, inner.message);
    }
    status = fy_problem_add_split(l->problem, split, number_out, error);
    FY_THEN(status,
            fy_check_memory(fy_memo_add(&l->splits, key, *number_out), "the splits", error));
    return status;
}

/* What one axis does for a placement; the holders depend on nothing else. */
typedef struct axis_role {
    uint32_t n_coordinates;
    const uint32_t *coordinates; /* NULL: all */
    uint32_t single;             /* storage of a stage's coordinate */
} axis_role;

/* How the coordinates along the axes of one cut make a part, and the part a share of the cell. */
typedef struct cut_role {
    const fy_shard *shard;
    uint32_t n_ranks;
    uint32_t n_parts;
    uint64_t cell_weight;
} cut_role;

typedef struct cell_map {
    const fy_side *side;
    const fy_rule *rule;
    axis_role axes[FY_MAX_AXES];
    uint32_t n_cuts;
    cut_role cuts[FERRY_MAX_DIMS];
    uint32_t n_flat;
    uint64_t n_cells;
    uint64_t n_holders;
} cell_map;

static void map_axes(const placing *p, cell_map *map)
{
    map->n_holders = 1;
    for (uint32_t i = 0; i < p->side->n_axes; i++) {
        axis_role *role = &map->axes[i];
        *role = (axis_role){.n_coordinates = p->side->axes[i].size};
        if (p->stage_coordinate[i] != FY_NONE) {
            role->single = p->stage_coordinate[i];
            role->n_coordinates = 1;
            role->coordinates = &role->single;
        }
        for (uint32_t j = 0; j < p->rule->n_pins; j++) {
            if (p->rule->pins[j].axis == i) {
                role->n_coordinates = p->rule->pins[j].n_coordinates;
                role->coordinates = p->rule->pins[j].coordinates;
            }
        }
        map->n_holders *= role->n_coordinates;
    }
}

/* Weights so that the cell is row-major over the dimensions, the flat part fastest. */
static void map_cells(const placing *p, uint32_t n_dims, cell_map *map)
{
    map->n_flat = p->rule->is_flat ? p->side->axes[p->rule->flat_axis].size : 1;
    map->n_cells = map->n_flat;
    for (uint32_t d = n_dims; d > 0; d--) {
        for (size_t i = 0; i < p->rule->n_shards; i++) {
            const fy_shard *shard = &p->rule->shards[i];
            if (shard->dim == d - 1) {
                map->cuts[map->n_cuts++] = (cut_role){.shard = shard,
                                                      .n_ranks = shard->n_ranks,
                                                      .n_parts = shard->n_parts,
                                                      .cell_weight = map->n_cells};
                map->n_cells *= shard->n_parts; /* axes are used once: at most the mesh */
            }
        }
    }
}

static uint32_t cell_of(const cell_map *map, const uint32_t *coordinates)
{
    uint64_t cell = map->rule->is_flat ? coordinates[map->rule->flat_axis] : 0;
    for (uint32_t i = 0; i < map->n_cuts; i++) {
        const cut_role *cut = &map->cuts[i];
        uint64_t part = 0;
        for (uint32_t j = 0; j < cut->shard->n_axes; j++) {
            uint32_t axis = cut->shard->axes[j];
            part = part * map->side->axes[axis].size + coordinates[axis];
        }
        cell += part * cut->n_parts / cut->n_ranks * cut->cell_weight;
    }
    return (uint32_t)cell;
}

static void fill_entries(const cell_map *map, fy_holder *entries)
{
    const fy_side *side = map->side;
    uint32_t at[FY_MAX_AXES] = {0}; /* positions in the axes' coordinate lists */
    for (uint64_t i = 0; i < map->n_holders; i++) {
        uint32_t coordinates[FY_MAX_AXES];
        uint32_t index = 0;
        for (uint32_t a = 0; a < side->n_axes; a++) {
            const axis_role *role = &map->axes[a];
            coordinates[a] = role->coordinates == NULL ? at[a] : role->coordinates[at[a]];
            index = index * side->axes[a].size + coordinates[a];
        }
        entries[i].rank = side->ranks == NULL ? side->first_rank + index : side->ranks[index];
        entries[i].cell = cell_of(map, coordinates);
        for (uint32_t a = side->n_axes; a > 0; a--) {
            if (++at[a - 1] < map->axes[a - 1].n_coordinates) {
                break;
            }
            at[a - 1] = 0;
        }
    }
}

static fy_hash128 holders_key(lowering *l, const cell_map *map)
{
    fy_digest *key = &l->key;
    fy_digest_u64(key, (uintptr_t)map->side);
    for (uint32_t a = 0; a < map->side->n_axes; a++) {
        const axis_role *role = &map->axes[a];
        /* Every list says first whether and how long it is: else two keys could read the same. */
        fy_digest_u64(key, role->coordinates != NULL);
        fy_digest_u64(key, role->n_coordinates);
        for (uint32_t i = 0; role->coordinates != NULL && i < role->n_coordinates; i++) {
            fy_digest_u64(key, role->coordinates[i]);
        }
    }
    fy_digest_u64(key, map->n_cuts);
    for (uint32_t i = 0; i < map->n_cuts; i++) {
        fy_digest_u64(key, map->cuts[i].n_parts);
        fy_digest_u64(key, map->cuts[i].cell_weight);
        fy_digest_u64(key, map->cuts[i].shard->n_axes);
        for (uint32_t j = 0; j < map->cuts[i].shard->n_axes; j++) {
            fy_digest_u64(key, map->cuts[i].shard->axes[j]);
        }
    }
    fy_digest_u64(key, map->rule->is_flat ? map->rule->flat_axis : UINT64_MAX);
    return fy_digest_take(key);
}

static ferry_status lower_holders(lowering *l, const fy_tensor *tensor, const placing *p,
                                  uint32_t *number_out, ferry_error *error)
{
    cell_map map = {.side = p->side, .rule = p->rule};
    map_axes(p, &map);
    map_cells(p, tensor->n_dims, &map);
    fy_hash128 key = holders_key(l, &map);
    *number_out = fy_memo_find(&l->holders, key);
    if (*number_out != FY_NONE) {
        return FERRY_OK;
    }
    fy_holders *holders = NULL;
    fy_holder *entries = fy_alloc((size_t)map.n_holders, sizeof *entries);
    FY_TRY(fy_check_memory(entries != NULL, "the holders of a tensor", error));
    fill_entries(&map, entries);
    ferry_status status =
        fy_holders_create((uint32_t)map.n_cells, entries, (size_t)map.n_holders, &holders, error);
    fy_free(entries);
    FY_THEN(status, fy_problem_add_holders(l->problem, holders, number_out, error));
    if (status == FERRY_OK && !fy_memo_add(&l->holders, key, *number_out)) {
        status = fy_fail_no_memory(error, "the tables of holders");
    }
    return status;
}

/* Given flat sizes must fit every shard that they cut. */
static ferry_status check_flat_sizes(const lowering *l, const fy_tensor *tensor, const placing *p,
                                     const fy_layout *layout, uint32_t n_cells, ferry_error *error)
{
    uint64_t sum = layout->flat_begin[layout->n_flat];
    for (uint32_t cell = 0; cell < n_cells; cell += layout->n_flat) {
        uint32_t parts[FERRY_MAX_DIMS + 1];
        uint64_t shape[FERRY_MAX_DIMS];
        fy_layout_parts(l->problem, layout, cell, parts);
        uint64_t n_elements = fy_layout_shard(l->problem, layout, parts, shape);
        if (n_elements != sum) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: \"%s\", rule \"%s\": the flat sizes sum to %llu, but a shard has "
                           "%llu elements",
                           p->side->name, tensor->name, p->rule->match, (unsigned long long)sum,
                           (unsigned long long)n_elements);
        }
    }
    return FERRY_OK;
}

static ferry_status make_placement(lowering *l, const fy_tensor *tensor, const placing *p,
                                   uint32_t *number_out, ferry_error *error)
{
    fy_layout layout = {.n_dims = tensor->n_dims,
                        .is_cut = p->rule->n_shards > 0 || p->rule->is_flat};
    uint32_t holders;
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        const fy_shard *shard = NULL;
        for (size_t i = 0; i < p->rule->n_shards; i++) {
            if (p->rule->shards[i].dim == d) {
                shard = &p->rule->shards[i];
            }
        }
        layout.shape[d] = tensor->shape[d];
        FY_TRY(lower_split(l, tensor, p, shard, d, &layout.split[d], error));
    }
    if (p->rule->is_flat) {
        layout.n_flat = p->side->axes[p->rule->flat_axis].size;
        layout.flat_begin = p->rule->flat_begin;
    }
    FY_TRY(lower_holders(l, tensor, p, &holders, error));
    if (layout.flat_begin != NULL) {
        FY_TRY(
            check_flat_sizes(l, tensor, p, &layout, l->problem->holders[holders]->n_cells, error));
    }
    return fy_problem_add_placement(l->problem, &layout, holders, NULL, number_out, error);
}

/* The type of the scales by which it is dequantized: its name was looked for when it was read. */
static ferry_dtype scales_of(const ferry_spec *spec, const fy_tensor *tensor, const fy_rule *rule)
{
    char name[FERRY_NAME_BYTES] = "";
    (void)fy_blocks_name(rule->codes, tensor->name, name, sizeof name);
    return spec->tensors[fy_spec_find_tensor(spec, name)].dtype;
}

static fy_conversion_key key_of(const ferry_spec *spec, const fy_tensor *tensor,
                                const fy_rule *rule, ferry_dtype to, char why[FY_CAST_WHY_BYTES])
{
    if (rule->codes != NULL) {
        return fy_codes_key(rule->codes, scales_of(spec, tensor, rule), to);
    }
    return rule->blocks != NULL ? fy_blocks_key(rule->blocks)
                                : fy_cast_key(&rule->cast, tensor->dtype, to, why);
}

static fy_conversion make_conversion(const ferry_spec *spec, const fy_tensor *tensor,
                                     const fy_rule *rule, ferry_dtype to)
{
    if (rule->codes != NULL) {
        return fy_codes_conversion(rule->codes, tensor->dtype, scales_of(spec, tensor, rule), to);
    }
    return rule->blocks != NULL
               ? fy_blocks_conversion(rule->blocks, tensor->dtype, FERRY_CONVERSION_CODES)
               : fy_conversion_of(&rule->cast, tensor->dtype, to);
}

static ferry_status keep_conversion(lowering *l, fy_hash128 hash, fy_conversion conversion,
                                    uint32_t *number_out, ferry_error *error)
{
    fy_conversion *kept = fy_arena_alloc(&l->problem->arena, 1, sizeof *kept);
    *number_out = (uint32_t)l->n_conversions;
    if (kept == NULL || !FY_RESERVE(l->conversions, l->conversion_capacity, l->n_conversions + 1) ||
        !fy_memo_add(&l->casts, hash, *number_out)) {
        return fy_fail_no_memory(error, "the casts of a destination");
    }
    *kept = conversion;
    l->conversions[l->n_conversions++] = kept;
    return FERRY_OK;
}

/* What becomes of a tensor at the destination; tensors that are cast alike share it. */
static ferry_status lower_cast(lowering *l, fy_tensor *tensor, const fy_rule *rule,
                               ferry_error *error)
{
    char why[FY_CAST_WHY_BYTES] = "";
    ferry_dtype to = rule->dtype.kind == 0 ? tensor->dtype : rule->dtype;
    fy_conversion_key key = key_of(l->spec, tensor, rule, to, why);
    if (why[0] != '\0') {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "destination: \"%s\", rule \"%s\", %s",
                       tensor->name, rule->match, why);
    }
    if (fy_conversion_key_is_zero(key)) {
        return FERRY_OK;
    }
    uint64_t values[4] = {key.type, key.numbers, tensor->dtype.kind, tensor->dtype.element_bits};
    fy_hash128 hash = fy_hash128_of(values, sizeof values);
    uint32_t number = fy_memo_find(&l->casts, hash);
    if (number == UINT32_MAX) {
        FY_TRY(
            keep_conversion(l, hash, make_conversion(l->spec, tensor, rule, to), &number, error));
    }
    tensor->conversion = l->conversions[number];
    return FERRY_OK;
}

/* That of a rule, a shape and stages, which is made once. */
static ferry_status find_placement(lowering *l, const fy_tensor *tensor, const placing *p,
                                   uint32_t *number_out, ferry_error *error)
{
    uint64_t values[2 + FERRY_MAX_DIMS + FY_MAX_AXES] = {(uintptr_t)p->rule, tensor->n_dims};
    size_t n = 2;
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        values[n++] = tensor->shape[d];
    }
    for (uint32_t a = 0; a < p->side->n_axes; a++) {
        values[n++] = p->stage_coordinate[a];
    }
    fy_hash128 key = fy_hash128_of(values, n * sizeof *values);
    *number_out = fy_memo_find(&l->placements, key);
    if (*number_out != FY_NONE) {
        return FERRY_OK;
    }
    FY_TRY(make_placement(l, tensor, p, number_out, error));
    return fy_check_memory(fy_memo_add(&l->placements, key, *number_out), "the placements", error);
}

static ferry_status lower_tensor(lowering *l, fy_tensor *tensor, const fy_side *side,
                                 uint32_t *placement_out, ferry_error *error)
{
    size_t length = strlen(tensor->name);
    bool is_src = side == &l->spec->source;
    placing p = {.side = side,
                 .rule = fy_rule_index_find(&l->rules[is_src ? 0 : 1], tensor->name, length)};
    *placement_out = FY_NONE;
    if (p.rule == NULL && tensor->is_middle) {
        return FERRY_OK;
    }
    if (p.rule == NULL) {
        return fy_fail(
            error, FERRY_ERR_INVALID_INPUT,
            "%s: no rule matches \"%s\"; a last rule {\"match\": \"*\"} would replicate it",
            side->name, tensor->name);
    }
    if (p.rule->skip) {
        return FERRY_OK;
    }
    FY_TRY(check_dims(tensor, &p, error));
    FY_TRY(is_src ? FERRY_OK : lower_cast(l, tensor, p.rule, error));
    FY_TRY(apply_stages(tensor, length, &p, error));
    return find_placement(l, tensor, &p, placement_out, error);
}

/* What one dimension of a tensor is in blocks; what: becomes of it, for sentences. */
static ferry_status divide_split(lowering *l, const fy_split *split, uint64_t block,
                                 const char *title, const char *what, uint32_t *number_out,
                                 ferry_error *error)
{
    fy_split_piece *pieces = fy_alloc(split->n_pieces, sizeof *pieces);
    fy_split *divided = NULL;
    FY_TRY(fy_check_memory(pieces != NULL, "the scales of a tensor", error));
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < split->n_pieces && status == FERRY_OK; i++) {
        const fy_piece *piece = &split->pieces[i];
        uint64_t end = piece->global + piece->length;
        if (piece->n_owners != 1) {
            status = fy_fail(error, FERRY_ERR_UNSUPPORTED,
                             "%s: neighbours share a part of it, which cannot be %s", title, what);
        } else if (end % block != 0 && end != split->extent) {
            status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                             "%s: is cut at %llu, inside a block of %llu; a \"unit\" keeps cuts "
                             "between blocks",
                             title, (unsigned long long)end, (unsigned long long)block);
        }
        pieces[i] =
            (fy_split_piece){.length = fy_ceil_div(piece->length, block), .part = piece->part};
    }
    FY_THEN(status, fy_split_pieces(split->n_parts, pieces, split->n_pieces, &divided, error));
    FY_THEN(status, fy_problem_add_split(l->problem, divided, number_out, error));
    fy_free(pieces);
    return status;
}

/* The placement of scales: where the blocks of the values are. */
static ferry_status divide_placement(lowering *l, const fy_tensor *values, const fy_scales *scales,
                                     const char *side, uint32_t from, uint32_t *number_out,
                                     ferry_error *error)
{
    uint64_t key_values[3] = {from, scales->blocks.block[0], scales->blocks.block[1]};
    fy_hash128 key = fy_hash128_of(key_values, sizeof key_values);
    *number_out = fy_memo_find(&l->divided, key);
    if (*number_out != UINT32_MAX) {
        return FERRY_OK;
    }
    const char *what = scales->conversion.is.kind == 0 ? "dequantized" : "quantized";
    fy_layout layout = l->problem->placements[from].layout;
    uint32_t holders = l->problem->placements[from].holders;
    if (layout.n_flat != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" is cut flat, which cuts its blocks; what is %s has shards of "
                       "whole blocks",
                       side, values->name, what);
    }
    for (uint32_t i = 0; i < 2; i++) {
        char title[2 * FERRY_NAME_BYTES];
        uint32_t d = layout.n_dims - 2 + i;
        uint64_t block = scales->blocks.block[i];
        const fy_split *split = fy_problem_split(l->problem, &layout, d);
        snprintf(title, sizeof title, "%s: \"%s\" dim %u", side, values->name, d);
        layout.shape[d] = fy_ceil_div(layout.shape[d], block);
        FY_TRY(divide_split(l, split, block, title, what, &layout.split[d], error));
    }
    FY_TRY(fy_problem_add_placement(l->problem, &layout, holders, NULL, number_out, error));
    return fy_check_memory(fy_memo_add(&l->divided, key, *number_out), "the placements", error);
}

/* Whether each part of a dimension at the source is of whole blocks, which nobody shares. */
static bool has_whole_blocks(const fy_split *split, uint64_t block)
{
    for (size_t i = 0; i < split->n_pieces; i++) {
        const fy_piece *piece = &split->pieces[i];
        uint64_t end = piece->global + piece->length;
        if (piece->n_owners != 1 || (end % block != 0 && end != split->extent)) {
            return false;
        }
    }
    return true;
}

/* Whether every rank that sends of a tensor has all of a block, or nothing. */
static bool senders_have_blocks(const lowering *l, const fy_tensor *values, const fy_scales *scales)
{
    if (l->spec->source.boxes != NULL || values->n_feeds > 0) {
        return false;
    }
    if (values->src == FY_NONE) {
        return true; /* nobody sends: that is said to who wants it */
    }
    const fy_layout *layout = &l->problem->placements[values->src].layout;
    uint32_t d = layout->n_dims - 2;
    return layout->n_flat == 0 &&
           has_whole_blocks(fy_problem_split(l->problem, layout, d), scales->blocks.block[0]) &&
           has_whole_blocks(fy_problem_split(l->problem, layout, d + 1), scales->blocks.block[1]);
}

/* The same conversion, but that the receiver does it; of alike tensors it is one. */
static ferry_status lower_receiver(lowering *l, const fy_conversion **conversion_inout,
                                   ferry_error *error)
{
    uint64_t values[2] = {(uintptr_t)*conversion_inout, 1};
    fy_hash128 hash = fy_hash128_of(values, sizeof values);
    uint32_t number = fy_memo_find(&l->casts, hash);
    if (number == UINT32_MAX) {
        FY_TRY(keep_conversion(l, hash, fy_blocks_at_receiver(*conversion_inout), &number, error));
    }
    *conversion_inout = l->conversions[number];
    return FERRY_OK;
}

/*
 * Who makes codes and scales: senders where each has whole blocks, else receivers, of a tensor that
 * is wanted in several formats those of all.
 */
static void choose_makers(lowering *l)
{
    fy_tensor *tensors = l->problem->tensors;
    for (uint32_t t = 0; t < l->spec->n_tensors; t++) {
        const fy_scales *scales = tensors[t].scales;
        if (scales != NULL && !senders_have_blocks(l, &tensors[scales->tensor], scales)) {
            tensors[scales->tensor].made_scales = FY_NONE; /* which ones follows */
        }
    }
    for (uint32_t t = 0; t < l->spec->n_tensors; t++) {
        fy_tensor *values = tensors[t].scales == NULL ? NULL : &tensors[tensors[t].scales->tensor];
        if (values != NULL && values->made_scales != 0) {
            tensors[t].made_scales = values->made_scales == FY_NONE ? 0 : values->made_scales;
            values->made_scales = t;
        }
    }
}

/* Whether a rank that has some matrices has the scales of these, in their order, and no others. */
static bool has_scales_of(const fy_problem *problem, const fy_placement *matrices,
                          const fy_placement *given, uint32_t rank)
{
    uint32_t parts[2][FERRY_MAX_DIMS + 1];
    const fy_holders *holders = problem->holders[given->holders];
    const fy_holders *of_matrices = problem->holders[matrices->holders];
    uint32_t slot = fy_holders_find(holders, rank);
    if (slot == FY_NO_SLOT || given->layout.n_flat != 0) {
        return false;
    }
    fy_layout_parts(problem, &given->layout, holders->cell[slot], parts[0]);
    fy_layout_parts(problem, &matrices->layout,
                    of_matrices->cell[fy_holders_find(of_matrices, rank)], parts[1]);
    for (uint32_t d = 0; d < given->layout.n_dims; d++) {
        if (given->layout.split[d] != matrices->layout.split[d] || parts[0][d] != parts[1][d]) {
            return false;
        }
    }
    return true;
}

static ferry_status fail_beside(const fy_tensor *values, const fy_tensor *given, bool at_source,
                                uint32_t rank, ferry_error *error)
{
    return at_source
               ? fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "source: rank %u has a part of \"%s\", which becomes nvfp4, and must "
                         "have \"%s\" too, cut as \"%s\" is before its last two dimensions",
                         rank, values->name, given->name, values->name)
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "destination: rank %u makes nvfp4 of \"%s\", of which no sender has whole "
                         "blocks, and must get \"%s\" too, as f32 and cut as \"%s\" is before its "
                         "last two dimensions; or a \"unit\" of 16 at a source on a mesh keeps "
                         "cuts between blocks, and senders make it",
                         rank, values->name, given->name, values->name);
}

/* Whoever makes codes of f4, makes them of its own matrices by the scales of these. */
static ferry_status check_beside(lowering *l, const fy_tensor *values, bool at_source,
                                 ferry_error *error)
{
    const fy_problem *problem = l->problem;
    const fy_tensor *given = &problem->tensors[values->tensor_scale - 1];
    uint32_t of_values = at_source ? values->src : values->dst;
    uint32_t of_given = at_source ? given->src : given->dst;
    bool is_there = of_given != FY_NONE && (at_source || given->conversion == NULL);
    uint64_t key_values[3] = {of_values, of_given, is_there};
    fy_hash128 key = fy_hash128_of(key_values, sizeof key_values);
    if (of_values == FY_NONE || fy_memo_find(&l->beside, key) != UINT32_MAX) {
        return FERRY_OK;
    }
    const fy_holders *holders = fy_problem_holders(problem, of_values);
    for (uint32_t s = 0; s < holders->n_slots; s++) {
        if (!is_there || !has_scales_of(problem, &problem->placements[of_values],
                                        &problem->placements[of_given], holders->rank[s])) {
            return fail_beside(values, given, at_source, holders->rank[s], error);
        }
    }
    return fy_check_memory(fy_memo_add(&l->beside, key, 0), "the placements", error);
}

/* What ranks of a destination in boxes have is looked at with their boxes: see plan/made.c. */
static ferry_status check_makers(lowering *l, const fy_tensor *scales, const fy_tensor *values,
                                 ferry_error *error)
{
    return scales->scales->blocks.tensor_scale == NULL
               ? FERRY_OK
               : check_beside(l, values, !scales->is_made, error);
}

static ferry_status lower_scales(lowering *l, fy_tensor *tensor, ferry_error *error)
{
    fy_tensor *values = &l->problem->tensors[tensor->scales->tensor];
    tensor->conversion = &tensor->scales->conversion;
    tensor->is_made = values->made_scales != 0;
    FY_TRY(check_makers(l, tensor, values, error));
    if (tensor->is_made) {
        FY_TRY(lower_receiver(l, &tensor->conversion, error));
        FY_TRY(values->conversion == NULL ? FERRY_OK
                                          : lower_receiver(l, &values->conversion, error));
    } else if (values->src != FY_NONE) {
        FY_TRY(divide_placement(l, values, tensor->scales, "source", values->src, &tensor->src,
                                error));
    }
    if (values->dst != FY_NONE) {
        FY_TRY(divide_placement(l, values, tensor->scales, "destination", values->dst, &tensor->dst,
                                error));
    }
    return FERRY_OK;
}

/* Scales of matrices are placed as these are: by what their rule says of the dimensions before. */
static ferry_status place_matrix_scales(lowering *l, const fy_tensor *codes,
                                        const fy_tensor *scales, uint32_t *number_out,
                                        ferry_error *error)
{
    size_t length = strlen(codes->name);
    placing p = {.side = &l->spec->destination,
                 .rule = fy_rule_index_find(&l->rules[1], codes->name, length)};
    FY_TRY(apply_stages(codes, length, &p, error));
    return find_placement(l, scales, &p, number_out, error);
}

/* Scales that come with codes, to whoever gets these. */
static ferry_status lower_staged(lowering *l, fy_tensor *tensor, ferry_error *error)
{
    const fy_tensor *codes = &l->problem->tensors[tensor->staged->tensor];
    if (codes->dst == FY_NONE) {
        return FERRY_OK;
    }
    return tensor->staged->is_of_matrices
               ? place_matrix_scales(l, codes, tensor, &tensor->dst, error)
               : divide_placement(l, codes, tensor->staged, "destination", codes->dst, &tensor->dst,
                                  error);
}

uint32_t fy_side_world(const fy_side *side)
{
    if (side->boxes != NULL) {
        return fy_side_rank_bound(side->boxes);
    }
    if (side->ranks == NULL) {
        return side->first_rank + side->n_ranks;
    }
    uint32_t highest = 0;
    for (uint32_t i = 0; i < side->n_ranks; i++) {
        highest = side->ranks[i] > highest ? side->ranks[i] : highest;
    }
    return highest + 1;
}

static ferry_status lower_all(lowering *l, ferry_error *error)
{
    const ferry_spec *spec = l->spec;
    fy_problem *problem = l->problem;
    for (uint32_t t = 0; t < spec->n_tensors; t++) {
        fy_tensor *tensor = &problem->tensors[t];
        ferry_status status = FERRY_OK;
        if (tensor->scales != NULL || tensor->staged != NULL) { /* behind what they are of */
            continue;
        }
        /* A tensor with sources is not placed at the source. */
        if (tensor->n_feeds == 0 && !tensor->is_made && spec->source.boxes == NULL) {
            status = lower_tensor(l, tensor, &spec->source, &tensor->src, error);
        }
        if (status == FERRY_OK && !tensor->is_source_only && spec->destination.boxes == NULL) {
            status = lower_tensor(l, tensor, &spec->destination, &tensor->dst, error);
        }
        if (status != FERRY_OK) {
            return status;
        }
    }
    choose_makers(l);
    for (uint32_t t = 0; t < spec->n_tensors; t++) {
        fy_tensor *tensor = &problem->tensors[t];
        FY_TRY(tensor->scales == NULL ? FERRY_OK : lower_scales(l, tensor, error));
        FY_TRY(tensor->staged == NULL ? FERRY_OK : lower_staged(l, tensor, error));
    }
    return FERRY_OK;
}

ferry_status fy_spec_lower(const ferry_spec *spec, fy_problem *problem, ferry_error *error)
{
    lowering l = {.spec = spec, .problem = problem};
    *problem = (fy_problem){.n_tensors = spec->n_tensors, .cluster = spec->cluster};
    problem->n_ranks =
        (uint32_t)fy_max(fy_side_world(&spec->source), fy_side_world(&spec->destination));
    problem->tensors = fy_alloc(spec->n_tensors, sizeof *problem->tensors);
    ferry_status status;
    if (problem->tensors == NULL) {
        status = fy_fail_no_memory(error, "the tensors");
        goto out;
    }
    if (spec->n_tensors > 0) {
        memcpy(problem->tensors, spec->tensors, spec->n_tensors * sizeof *problem->tensors);
    }
    status = fy_rule_index_init(&l.rules[0], &spec->source, error);
    FY_THEN(status, fy_rule_index_init(&l.rules[1], &spec->destination, error));
    FY_THEN(status, lower_all(&l, error));
    FY_THEN(status, fy_lower_boxes(spec, problem, error));
    if (status == FERRY_OK && l.key.failed) {
        status = fy_fail_no_memory(error, "the tables of holders");
    }
out:
    fy_memo_cleanup(&l.splits);
    fy_memo_cleanup(&l.holders);
    fy_memo_cleanup(&l.placements);
    fy_memo_cleanup(&l.divided);
    fy_memo_cleanup(&l.beside);
    fy_memo_cleanup(&l.casts);
    fy_free(l.conversions);
    fy_rule_index_cleanup(&l.rules[0]);
    fy_rule_index_cleanup(&l.rules[1]);
    fy_digest_cleanup(&l.key);
    if (status != FERRY_OK) {
        fy_problem_cleanup(problem);
    }
    return status;
}
