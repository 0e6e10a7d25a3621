/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* From two namings of the same parts to a map, or to a side in boxes. */
#include "model/naming_box.h"

#include "base/checked.h"
#include "model/problem.h"

#include <string.h>

/* Two namings, and one of the results. */
typedef struct joining {
    ferry_names *names;
    const fy_naming *from, *to;
    ferry_map *map;   /* NULL: a side is made */
    ferry_side *side; /* NULL: a map is made */
    bool is_bare;     /* the side says neither tensors nor types: a spec does */
    size_t parameter;
    const fy_naming_shard *shard; /* what the parameter has of its tensor */
    bool *is_named;               /* [tensors of from]: the side has them already */
} joining;

/* Blocks of rows of a part, which lie in a tensor of each naming; the rows are those of each. */
typedef struct stretch {
    const fy_naming_part *part;
    const fy_naming_tensor *source, *target;
    const fy_naming_run *from, *to;
    uint64_t count, rows;
    uint64_t from_row, from_step, to_row, to_step;
} stretch;

/* ---- what is made of what ---- */

static const fy_naming_run *run_of(const fy_naming *naming, uint32_t part)
{
    bool has = part < naming->n_runs && naming->runs[part].count != 0 &&
               fy_naming_is_there(naming, &naming->tensors[naming->runs[part].tensor]);
    return has ? &naming->runs[part] : NULL;
}

bool fy_naming_lacks(const fy_naming *naming, const fy_naming *of, const fy_naming_tensor *tensor)
{
    bool lacks = false;
    for (size_t i = 0; i < tensor->n_parts && !lacks; i++) {
        lacks = run_of(naming, of->part_numbers[tensor->first_part + i]) == NULL;
    }
    return lacks;
}

bool fy_naming_makes(const fy_naming *naming, const fy_naming *of, const fy_naming_tensor *tensor,
                     const char *source)
{
    bool makes = false;
    for (size_t i = 0; i < tensor->n_parts && !makes; i++) {
        const fy_naming_run *run = run_of(naming, of->part_numbers[tensor->first_part + i]);
        makes = run != NULL && strcmp(naming->tensors[run->tensor].name, source) == 0;
    }
    return makes;
}

ferry_status ferry_names_left_out_at(ferry_names *names, const char *from, const char *to,
                                     size_t index, const char **tensor_out, ferry_error *error)
{
    fy_naming *source, *target;
    FY_TRY(fy_check_use(names != NULL && from != NULL && to != NULL && tensor_out != NULL,
                        "ferry_names_left_out_at needs names, two namings and a place for the "
                        "result",
                        error));
    FY_TRY(fy_naming_find(names, from, &source, error));
    FY_TRY(fy_naming_find(names, to, &target, error));
    bool goes_on = index > 0 && index == names->left_out.next && source == names->left_out.from &&
                   target == names->left_out.to;
    size_t i = goes_on ? names->left_out.at : 0, n = goes_on ? index : 0;
    *tensor_out = NULL;
    for (; i < source->n_tensors && *tensor_out == NULL; i++) {
        const fy_naming_tensor *t = &source->tensors[i];
        if (fy_naming_is_there(source, t) && fy_naming_lacks(target, source, t) && n++ == index) {
            *tensor_out = t->name;
        }
    }
    names->left_out.from = source;
    names->left_out.to = target;
    names->left_out.next = n;
    names->left_out.at = i;
    return FERRY_OK;
}

static ferry_status fail_part(const joining *j, const fy_naming_tensor *target, uint32_t part,
                              ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: \"%s\" of %s is made of \"%s\", which no tensor of %s has",
                   j->names->source_name, target->name, j->to->name, j->names->parts[part].name,
                   j->from->name);
}

/* Whether the source has its parts: all, or none of those that a model may lack. */
static ferry_status is_made(const joining *j, const fy_naming_tensor *target, bool *made_out,
                            ferry_error *error)
{
    const uint32_t *parts = j->to->part_numbers + target->first_part;
    size_t n_there = 0;
    uint32_t lacking = 0;
    for (size_t i = 0; i < target->n_parts; i++) {
        bool there = run_of(j->from, parts[i]) != NULL;
        n_there += there;
        lacking = there ? lacking : parts[i];
    }
    *made_out = n_there > 0;
    bool is_fine = n_there == target->n_parts || (n_there == 0 && target->is_optional);
    return is_fine ? FERRY_OK : fail_part(j, target, lacking, error);
}

/* What the target is of; its parts are there. */
static const fy_naming_tensor *source_of(const joining *j, const fy_naming_tensor *target, size_t i)
{
    uint32_t part = j->to->part_numbers[target->first_part + i];
    return &j->from->tensors[run_of(j->from, part)->tensor];
}

static ferry_status find_dtype(const joining *j, const fy_naming_tensor *target,
                               ferry_dtype *dtype_out, ferry_error *error)
{
    const fy_naming_tensor *first = source_of(j, target, 0);
    for (size_t i = 1; i < target->n_parts; i++) {
        const fy_naming_tensor *other = source_of(j, target, i);
        if (other->dtype.kind != first->dtype.kind ||
            other->dtype.element_bits != first->dtype.element_bits) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: \"%s\" is made of \"%s\" and of \"%s\", which are of different "
                           "types; cast one of them first",
                           j->names->source_name, target->name, first->name, other->name);
        }
    }
    *dtype_out = first->dtype;
    return FERRY_OK;
}

/* Both are made in the same way of the same parts. */
static bool is_copy(const joining *j, const fy_naming_tensor *target)
{
    const fy_naming_tensor *source = source_of(j, target, 0);
    bool same = source->rule == target->rule && source->n_parts == target->n_parts &&
                json_equal(source->how, target->how) != 0;
    for (size_t i = 0; i < target->n_parts && same; i++) {
        same = j->from->part_numbers[source->first_part + i] ==
               j->to->part_numbers[target->first_part + i];
    }
    return same;
}

/* ---- boxes ---- */

static bool is_turned(const fy_naming_tensor *tensor, const fy_naming_part *part)
{
    return tensor->is_transposed && part->n_dims >= 2;
}

static void swap_last(uint64_t *numbers, uint32_t n)
{
    uint64_t last = numbers[n - 1];
    numbers[n - 1] = numbers[n - 2];
    numbers[n - 2] = last;
}

/* Where a block begins in a tensor, and how long it is there; shape_out may be NULL. */
static void place_block(const fy_naming_tensor *tensor, const fy_naming_part *part, uint64_t place,
                        uint64_t row, uint64_t rows, uint64_t *begin_out, uint64_t *shape_out)
{
    uint64_t begin[FERRY_MAX_DIMS] = {0}, shape[FERRY_MAX_DIMS] = {0};
    uint32_t lead = tensor->is_stacked;
    begin[0] = place;
    shape[0] = 1;
    memcpy(shape + lead, part->shape, part->n_dims * sizeof *shape);
    begin[lead] = row;
    shape[lead] = rows;
    if (is_turned(tensor, part)) {
        swap_last(begin, tensor->n_dims);
        swap_last(shape, tensor->n_dims);
    }
    memcpy(begin_out, begin, sizeof begin);
    if (shape_out != NULL) {
        memcpy(shape_out, shape, sizeof shape);
    }
}

static ferry_status add_to_map(const joining *j, const stretch *s, ferry_error *error)
{
    if (is_turned(s->source, s->part) != is_turned(s->target, s->part)) {
        return fy_fail(
            error, FERRY_ERR_UNSUPPORTED,
            "%s: \"%s\" of %s is a transposed \"%s\" of %s, which a map cannot say; take "
            "a side in boxes, as ferry_names_get_side makes it",
            j->names->source_name, s->target->name, j->to->name, s->source->name, j->from->name);
    }
    for (uint64_t i = 0; i < s->count; i++) {
        ferry_map_box box = FERRY_MAP_BOX_INIT;
        box.target = s->target->name;
        box.source = s->source->name;
        place_block(s->source, s->part, s->from->place, s->from_row + i * s->from_step, s->rows,
                    box.begin, box.shape);
        place_block(s->target, s->part, s->to->place, s->to_row + i * s->to_step, s->rows, box.at,
                    NULL);
        FY_TRY(ferry_map_add_box(j->map, &box, error));
    }
    return FERRY_OK;
}

/* Which dimensions of the target those of the source go along. */
static void find_dims(const stretch *s, fy_naming_box *box)
{
    uint32_t n = s->part->n_dims, from = s->source->is_stacked, to = s->target->is_stacked;
    bool from_turned = is_turned(s->source, s->part), to_turned = is_turned(s->target, s->part);
    box->from_dim = from + (from_turned && n == 2); /* rows, which are the first unless turned */
    box->to_dim = to + (to_turned && n == 2);
    box->along[0] = FY_NO_DIM; /* of a stack, of which a box has one place */
    for (uint32_t d = 0; d < n; d++) {
        bool is_last = d + 2 >= n && from_turned != to_turned;
        box->along[from + d] = to + (is_last ? 2 * n - 3 - d : d);
    }
}

static ferry_status add_to_side(const joining *j, const stretch *s, ferry_error *error)
{
    fy_naming_box box = {
        .source = s->source, .count = s->count, .from_step = s->from_step, .to_step = s->to_step};
    find_dims(s, &box);
    place_block(s->source, s->part, s->from->place, s->from_row, s->rows, box.begin, box.shape);
    place_block(s->target, s->part, s->to->place, s->to_row, s->rows, box.at, NULL);
    return fy_naming_box_add(&box, j->shard, j->side, j->parameter, error);
}

static ferry_status add_stretch(const joining *j, const stretch *s, ferry_error *error)
{
    return j->map != NULL ? add_to_map(j, s, error) : add_to_side(j, s, error);
}

/* ---- parts ---- */

/* Blocks that fit neither into the other: as far as the next end of one. */
static ferry_status add_cut(const joining *j, stretch s, ferry_error *error)
{
    uint64_t end = s.part->shape[0];
    for (uint64_t row = 0; row < end; row += s.rows) {
        uint64_t in_from = row % s.from->rows, in_to = row % s.to->rows;
        s.count = 1;
        s.rows = fy_min(s.from->rows - in_from, s.to->rows - in_to);
        s.from_row = s.from->row + row / s.from->rows * s.from->step + in_from;
        s.to_row = s.to->row + row / s.to->rows * s.to->step + in_to;
        FY_TRY(add_stretch(j, &s, error));
    }
    return FERRY_OK;
}

/* The first block of rows of a part, as long as it is in both, and how many there are. */
static stretch stretch_of(const joining *j, const fy_naming_tensor *target, uint32_t number)
{
    const fy_naming_run *from = run_of(j->from, number), *to = run_of(j->to, number);
    return (stretch){.part = &j->names->parts[number],
                     .source = &j->from->tensors[from->tensor],
                     .target = target,
                     .from = from,
                     .to = to,
                     .from_row = from->row,
                     .to_row = to->row,
                     .count = fy_max(from->count, to->count),
                     .rows = fy_min(from->rows, to->rows)};
}

static ferry_status add_part(const joining *j, const fy_naming_tensor *target, uint32_t number,
                             ferry_error *error)
{
    stretch s = stretch_of(j, target, number);
    const fy_naming_run *from = s.from, *to = s.to;
    if (from->count != to->count && from->count != 1 && to->count != 1) {
        return add_cut(j, s, error);
    }
    s.from_step = from->count == s.count ? from->step : s.rows;
    s.to_step = to->count == s.count ? to->step : s.rows;
    return add_stretch(j, &s, error);
}

static ferry_status add_copy(const joining *j, const fy_naming_tensor *target, ferry_error *error)
{
    const fy_naming_tensor *source = source_of(j, target, 0);
    if (j->map != NULL) {
        return ferry_map_add_copy(j->map, target->name, source->name, error);
    }
    fy_naming_box box = {.source = source, .count = 1};
    memcpy(box.shape, source->shape, sizeof box.shape);
    for (uint32_t d = 0; d < source->n_dims; d++) {
        box.along[d] = d;
    }
    return fy_naming_box_add(&box, j->shard, j->side, j->parameter, error);
}

/*
 * How many parts from this one on lie in turns, and in the same turns in both tensors: their rows
 * are one box then, and not one for each turn. 1: this one does not.
 */
static size_t count_alike(const joining *j, const uint32_t *parts, size_t n)
{
    const fy_naming_run *from = run_of(j->from, parts[0]), *to = run_of(j->to, parts[0]);
    uint64_t rows = 0;
    size_t i = 0;
    for (; i < n && to->count > 1; i++) {
        const fy_naming_run *f = run_of(j->from, parts[i]), *t = run_of(j->to, parts[i]);
        bool is_next = f->tensor == from->tensor && f->place == from->place &&
                       t->place == to->place && f->row == from->row + rows &&
                       t->row == to->row + rows && f->count == to->count && t->count == to->count &&
                       f->rows == t->rows && f->step == from->step && t->step == to->step;
        if (!is_next) {
            break;
        }
        rows += t->rows;
    }
    return i > 0 && rows == to->step && rows == from->step ? i : 1;
}

/* Parts in the same turns, all rows of which lie one behind the other in both. */
static ferry_status add_turns(const joining *j, const fy_naming_tensor *target, uint32_t number,
                              ferry_error *error)
{
    stretch s = stretch_of(j, target, number);
    s.count = 1;
    s.rows = s.to->count * s.to->step;
    return add_stretch(j, &s, error);
}

static ferry_status fill_target(const joining *j, const fy_naming_tensor *target,
                                ferry_error *error)
{
    const uint32_t *parts = j->to->part_numbers + target->first_part;
    if (is_copy(j, target)) {
        return add_copy(j, target, error);
    }
    for (size_t i = 0, n; i < target->n_parts; i += n) {
        n = j->map != NULL ? 1 : count_alike(j, parts + i, target->n_parts - i);
        FY_TRY(n > 1 ? add_turns(j, target, parts[i], error)
                     : add_part(j, target, parts[i], error));
    }
    return FERRY_OK;
}

/* ---- maps ---- */

static ferry_status find_both(ferry_names *names, const char *from, const char *to, joining *j,
                              ferry_error *error)
{
    fy_naming *a, *b;
    FY_TRY(fy_naming_find(names, from, &a, error));
    FY_TRY(fy_naming_find(names, to, &b, error));
    *j = (joining){.names = names, .from = a, .to = b};
    return FERRY_OK;
}

static ferry_status add_sources(const joining *j, ferry_error *error)
{
    for (size_t i = 0; i < j->from->n_tensors; i++) {
        const fy_naming_tensor *t = &j->from->tensors[i];
        if (fy_naming_is_there(j->from, t)) {
            FY_TRY(ferry_map_add_source(j->map, t->name, t->dtype, t->n_dims, t->shape, error));
        }
    }
    return FERRY_OK;
}

static ferry_status add_targets(const joining *j, ferry_error *error)
{
    for (size_t i = 0; i < j->to->n_tensors; i++) {
        const fy_naming_tensor *t = &j->to->tensors[i];
        ferry_dtype dtype;
        bool made;
        FY_TRY(is_made(j, t, &made, error));
        if (made) {
            FY_TRY(find_dtype(j, t, &dtype, error));
            FY_TRY(ferry_map_add_target(j->map, t->name, dtype, t->n_dims, t->shape, error));
            FY_TRY(fill_target(j, t, error));
        }
    }
    return ferry_map_finish(j->map, error);
}

ferry_status ferry_names_get_map(ferry_names *names, const char *from, const char *to,
                                 ferry_map **map_out, ferry_error *error)
{
    joining j;
    FY_TRY(fy_check_use(names != NULL && from != NULL && to != NULL && map_out != NULL,
                        "ferry_names_get_map needs names, two namings and a place for the result",
                        error));
    FY_TRY(find_both(names, from, to, &j, error));
    FY_TRY(ferry_map_create(&j.map, error));
    ferry_status status = add_sources(&j, error);
    FY_THEN(status, add_targets(&j, error));
    if (status == FERRY_OK) {
        *map_out = j.map;
        j.map = NULL;
    }
    ferry_map_destroy(j.map);
    return status;
}

/* ---- sides ---- */

/* The ranks of a side, and what each has of a target. */
typedef struct spread {
    const uint32_t *ranks; /* who has all; NULL: fy_naming_cut says */
    size_t n_ranks;
    const fy_naming_cut *cut;
} spread;

static ferry_status name_sources(const joining *j, const fy_naming_tensor *target,
                                 ferry_error *error)
{
    for (size_t i = 0; i < target->n_parts; i++) {
        const fy_naming_tensor *t = source_of(j, target, i);
        size_t number = (size_t)(t - j->from->tensors);
        if (!j->is_named[number]) {
            j->is_named[number] = true;
            FY_TRY(ferry_side_add_tensor(j->side, t->name, t->dtype, t->n_dims, t->shape, error));
        }
    }
    return FERRY_OK;
}

static ferry_status add_parameter(joining *j, const fy_naming_tensor *t, const uint32_t *ranks,
                                  size_t n_ranks, const ferry_dtype *dtype, ferry_error *error)
{
    uint64_t elements = 1, shape[FERRY_MAX_DIMS];
    for (uint32_t d = 0; d < t->n_dims; d++) {
        shape[d] = fy_naming_shard_length(j->shard, d);
        elements *= shape[d];
    }
    FY_TRY(ferry_side_add_parameter(j->side, ranks, n_ranks, t->name, dtype, elements, 0,
                                    &j->parameter, error));
    return ferry_side_set_shape(j->side, j->parameter, t->n_dims, shape, error);
}

/* What these ranks have of a target. */
static ferry_status add_held(joining *j, const fy_naming_tensor *t, const uint32_t *ranks,
                             size_t n_ranks, ferry_error *error)
{
    ferry_dtype dtype;
    if (!j->is_bare) {
        FY_TRY(find_dtype(j, t, &dtype, error));
        FY_TRY(name_sources(j, t, error));
    }
    FY_TRY(add_parameter(j, t, ranks, n_ranks, j->is_bare ? NULL : &dtype, error));
    return fill_target(j, t, error);
}

/* Who has zeros in place of a target gives nothing of it, and gets zeros. */
static ferry_status add_zeros(joining *j, const fy_naming_tensor *t, const uint32_t *ranks,
                              size_t n_ranks, bool is_source, ferry_error *error)
{
    ferry_dtype dtype;
    uint64_t shape = 1, stride = 1;
    FY_TRY(find_dtype(j, t, &dtype, error));
    dtype = is_source ? t->dtype : dtype; /* whose tensors others get their types of */
    for (uint32_t d = 0; d < t->n_dims; d++) {
        shape *= fy_naming_shard_length(j->shard, d);
    }
    FY_TRY(add_parameter(j, t, ranks, n_ranks, &dtype, error));
    return is_source
               ? FERRY_OK
               : ferry_side_add_fill(j->side, j->parameter, 1, 0, &shape, &stride, NULL, error);
}

static bool is_empty(const fy_naming_shard *shard)
{
    bool empty = false;
    for (uint32_t d = 0; d < shard->n_dims; d++) {
        empty = empty || fy_naming_shard_length(shard, d) == 0;
    }
    return empty;
}

/* The ranks of a cell, those with values first: *n_first of them. */
static void part_ranks(const fy_naming_cut *cut, const fy_naming_tensor *t, const uint32_t *holders,
                       size_t n, uint32_t *ranks, size_t *n_first)
{
    size_t n_rest = 0;
    *n_first = 0;
    for (int zeros = 0; zeros < 2; zeros++) {
        for (size_t i = 0; i < n; i++) {
            bool has_zeros =
                t->first_of != NULL && !cut->is_first(cut->context, t->first_of, holders[i]);
            if (has_zeros == (zeros == 1)) {
                ranks[*n_first + n_rest] = holders[i];
                *n_first += zeros == 0;
                n_rest += zeros == 1;
            }
        }
    }
}

static ferry_status fail_nobody(const joining *j, const fy_naming_tensor *t, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: \"%s\" of %s is only on the first rank along %s (first_of), but some of it "
                   "is on none of these: it is cut, or spread, along that axis",
                   j->names->source_name, t->name, j->to->name, t->first_of);
}

static ferry_status add_cell(joining *j, const fy_naming_tensor *t, const fy_naming_cut *cut,
                             uint32_t placement, uint32_t cell, ferry_error *error)
{
    const fy_holders *holders = fy_problem_holders(cut->problem, placement);
    const fy_layout *layout = &cut->problem->placements[placement].layout;
    size_t n = fy_holders_cell_size(holders, cell), n_first = 0;
    uint32_t parts[FERRY_MAX_DIMS + 1], *ranks;
    fy_naming_shard shard = {.n_dims = t->n_dims};
    fy_layout_parts(cut->problem, layout, cell, parts);
    for (uint32_t d = 0; d < t->n_dims; d++) {
        shard.splits[d] = fy_problem_split(cut->problem, layout, d);
        shard.parts[d] = parts[d];
    }
    if (n == 0 || is_empty(&shard)) {
        return FERRY_OK;
    }
    ranks = fy_alloc(n, sizeof *ranks);
    FY_TRY(fy_check_memory(ranks != NULL, "the ranks of a model", error));
    part_ranks(cut, t, holders->rank + holders->cell_begin[cell], n, ranks, &n_first);
    j->shard = &shard;
    ferry_status status =
        n_first == 0 ? fail_nobody(j, t, error) : add_held(j, t, ranks, n_first, error);
    if (n_first < n) {
        FY_THEN(status, add_zeros(j, t, ranks + n_first, n - n_first, cut->is_source, error));
    }
    fy_free(ranks);
    return status;
}

static ferry_status add_cut_target(joining *j, const fy_naming_tensor *t, const fy_naming_cut *cut,
                                   uint32_t number, ferry_error *error)
{
    uint32_t placement = cut->problem->tensors[number].dst;
    uint32_t n_cells = fy_problem_holders(cut->problem, placement)->n_cells;
    ferry_status status = FERRY_OK;
    for (uint32_t cell = 0; cell < n_cells && status == FERRY_OK; cell++) {
        status = add_cell(j, t, cut, placement, cell, error);
    }
    return status;
}

/* A target that ranks have as a whole. */
static ferry_status add_whole_target(joining *j, const fy_naming_tensor *t, const uint32_t *ranks,
                                     size_t n_ranks, ferry_error *error)
{
    fy_split *splits[FERRY_MAX_DIMS] = {NULL};
    fy_naming_shard shard = {.n_dims = t->n_dims};
    ferry_status status = FERRY_OK;
    for (uint32_t d = 0; d < t->n_dims && status == FERRY_OK; d++) {
        status = fy_split_whole(t->shape[d], &splits[d], error);
        shard.splits[d] = splits[d];
    }
    j->shard = &shard;
    FY_THEN(status, add_held(j, t, ranks, n_ranks, error));
    for (uint32_t d = 0; d < t->n_dims; d++) {
        fy_split_destroy(splits[d]);
    }
    j->shard = NULL;
    return status;
}

static ferry_status add_parameters(joining *j, const spread *on, ferry_error *error)
{
    uint32_t number = 0; /* among those of a cut, which are the targets that are made */
    for (size_t i = 0; i < j->to->n_tensors; i++) {
        const fy_naming_tensor *t = &j->to->tensors[i];
        bool made;
        FY_TRY(is_made(j, t, &made, error));
        if (made) {
            FY_TRY(on->cut == NULL ? add_whole_target(j, t, on->ranks, on->n_ranks, error)
                                   : add_cut_target(j, t, on->cut, number, error));
            number++;
        }
    }
    return FERRY_OK;
}

static ferry_status make_side(ferry_names *names, const char *from, const char *to, bool is_bare,
                              const spread *on, ferry_side **side_out, ferry_error *error)
{
    joining j;
    FY_TRY(find_both(names, from, to, &j, error));
    j.is_bare = is_bare;
    j.is_named = fy_alloc_zeroed(j.from->n_tensors, sizeof *j.is_named);
    ferry_status status = fy_check_memory(j.is_named != NULL, "the names of a model", error);
    FY_THEN(status, ferry_side_create(&j.side, error));
    FY_THEN(status, add_parameters(&j, on, error));
    if (status == FERRY_OK) {
        *side_out = j.side;
        j.side = NULL;
    }
    ferry_side_destroy(j.side);
    fy_free(j.is_named);
    return status;
}

ferry_status ferry_names_get_side(ferry_names *names, const char *from, const char *to,
                                  const uint32_t *ranks, size_t n_ranks, ferry_side **side_out,
                                  ferry_error *error)
{
    FY_TRY(fy_check_use(names != NULL && from != NULL && to != NULL && side_out != NULL &&
                            ranks != NULL && n_ranks > 0,
                        "ferry_names_get_side needs names, two namings, ranks and a place for the "
                        "result",
                        error));
    spread on = {.ranks = ranks, .n_ranks = n_ranks};
    return make_side(names, from, to, false, &on, side_out, error);
}

ferry_status fy_naming_side(ferry_names *names, const char *from, const char *to, uint32_t rank,
                            ferry_side **side_out, ferry_error *error)
{
    spread on = {.ranks = &rank, .n_ranks = 1};
    return make_side(names, from, to, true, &on, side_out, error);
}

ferry_status fy_naming_side_of_cut(ferry_names *names, const char *from, const char *to,
                                   const fy_naming_cut *cut, ferry_side **side_out,
                                   ferry_error *error)
{
    spread on = {.cut = cut};
    return make_side(names, from, to, true, &on, side_out, error);
}

/* ---- for specs ---- */

/* Into how many blocks of rows a tensor has a part, unless these are one behind the other. */
static uint64_t blocks_of(const fy_naming_run *run)
{
    return run->step == run->rows ? 1 : run->count;
}

ferry_status fy_naming_is_turned(ferry_names *names, const char *from, const char *to,
                                 bool *turned_out, uint64_t blocks_out[2], ferry_error *error)
{
    joining j;
    bool made;
    *turned_out = false;
    blocks_out[0] = blocks_out[1] = 0;
    FY_TRY(find_both(names, from, to, &j, error));
    for (size_t i = 0; i < j.to->n_tensors; i++) {
        const fy_naming_tensor *t = &j.to->tensors[i];
        const uint32_t *parts = j.to->part_numbers + t->first_part;
        FY_TRY(is_made(&j, t, &made, error));
        for (size_t k = 0, n; made && k < t->n_parts; k += n) {
            const fy_naming_part *part = &names->parts[parts[k]];
            *turned_out |= is_turned(source_of(&j, t, k), part) != is_turned(t, part);
            n = count_alike(&j, parts + k, t->n_parts - k);
            blocks_out[0] += n > 1 ? 1 : blocks_of(run_of(j.from, parts[k]));
            blocks_out[1] += n > 1 ? 1 : blocks_of(run_of(j.to, parts[k]));
        }
    }
    return FERRY_OK;
}

static json_t *entry_of(const fy_naming_tensor *t, ferry_dtype dtype)
{
    char text[32];
    json_t *shape = json_array();
    bool done = shape != NULL;
    ferry_dtype_format(dtype, text, sizeof text);
    for (uint32_t d = 0; d < t->n_dims; d++) {
        done = done && json_array_append_new(shape, json_integer((json_int_t)t->shape[d])) == 0;
    }
    json_t *entry = json_pack("{s:s, s:O, s:s}", "name", t->name, "shape", shape, "dtype", text);
    json_decref(shape);
    if (!done) {
        json_decref(entry);
    }
    return done ? entry : NULL;
}

ferry_status fy_naming_list(ferry_names *names, const char *from, const char *to, json_t *list,
                            ferry_error *error)
{
    joining j;
    bool made;
    ferry_dtype dtype;
    FY_TRY(find_both(names, from, to, &j, error));
    for (size_t i = 0; i < j.to->n_tensors; i++) {
        const fy_naming_tensor *t = &j.to->tensors[i];
        FY_TRY(is_made(&j, t, &made, error));
        if (!made) {
            continue;
        }
        FY_TRY(find_dtype(&j, t, &dtype, error));
        if (json_array_append_new(list, entry_of(t, dtype)) != 0) {
            return fy_fail_no_memory(error, "the tensors of a spec");
        }
    }
    return FERRY_OK;
}
