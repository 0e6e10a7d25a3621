/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* One rule of a side: which axes cut which dimensions, and how. */
#include "model/spec.h"

#include "base/checked.h"
#include "base/sort.h"

#include <stdlib.h>
#include <string.h>

static ferry_status parse_sizes(fy_arena *arena, const json_t *json, const fy_json_place *place,
                                uint64_t **sizes_out, size_t *n_out, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    if (status != FERRY_OK) {
        return status;
    }
    size_t n = json_array_size(json);
    uint64_t *sizes = fy_arena_alloc(arena, n, sizeof *sizes);
    if (sizes == NULL) {
        return fy_fail_no_memory(error, "sizes");
    }
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        fy_json_place at = {.parent = place, .index = i};
        status = fy_json_get_size(json_array_get(json, i), &at, 0, INT64_MAX, &sizes[i], error);
    }
    *sizes_out = sizes;
    *n_out = n;
    return status;
}

static ferry_status check_parts(uint64_t n_parts, uint32_t n_ranks, const fy_json_place *place,
                                ferry_error *error)
{
    if (n_ranks % n_parts != 0) {
        return fy_json_fail(place, error, "%llu does not divide the %u ranks along the axis",
                            (unsigned long long)n_parts, n_ranks);
    }
    return FERRY_OK;
}

static ferry_status parse_block(const json_t *json, const fy_json_place *place,
                                const fy_shard *shard, fy_block *block, ferry_error *error)
{
    uint64_t n_parts = shard->n_parts;
    if (!json_is_array(json)) {
        block->n_parts = shard->n_parts;
        return fy_json_get_size(json, place, 0, INT64_MAX, &block->size, error);
    }
    if (json_array_size(json) != 2) {
        return fy_json_fail(place, error, "must be a size or a pair of a size and its parts");
    }
    fy_json_place size_at = {.parent = place, .index = 0};
    fy_json_place parts_at = {.parent = place, .index = 1};
    ferry_status status =
        fy_json_get_size(json_array_get(json, 0), &size_at, 0, INT64_MAX, &block->size, error);
    if (status == FERRY_OK) {
        status = fy_json_get_size(json_array_get(json, 1), &parts_at, 1, FERRY_MAX_RANKS, &n_parts,
                                  error);
    }
    if (status == FERRY_OK) {
        status = check_parts(n_parts, shard->n_ranks, &parts_at, error);
        block->n_parts = (uint32_t)n_parts;
    }
    return status;
}

/*
 * Blocks that are all cut into the same number of parts make a plain split of so many parts. Only
 * blocks that differ need one part per rank and pieces that neighbours share.
 */
static void settle_block_parts(fy_shard *shard)
{
    bool same = true;
    for (size_t i = 1; i < shard->n_values; i++) {
        same = same && shard->blocks[i].n_parts == shard->blocks[0].n_parts;
    }
    shard->n_parts = shard->n_ranks;
    if (same && shard->n_values > 0) {
        shard->n_parts = shard->blocks[0].n_parts;
    }
}

static ferry_status parse_blocks(fy_arena *arena, const json_t *json, const fy_json_place *place,
                                 fy_shard *shard, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    if (status != FERRY_OK) {
        return status;
    }
    shard->n_values = json_array_size(json);
    shard->blocks = fy_arena_alloc(arena, shard->n_values, sizeof *shard->blocks);
    if (shard->blocks == NULL) {
        return fy_fail_no_memory(error, "blocks");
    }
    for (size_t i = 0; i < shard->n_values && status == FERRY_OK; i++) {
        fy_json_place at = {.parent = place, .index = i};
        status = parse_block(json_array_get(json, i), &at, shard, &shard->blocks[i], error);
    }
    if (status == FERRY_OK) {
        settle_block_parts(shard);
    }
    return status;
}

static ferry_status parse_axes(ferry_spec *spec, const fy_side *side, const json_t *json,
                               const fy_json_place *place, fy_shard *shard, ferry_error *error)
{
    bool is_list = json_is_array(json);
    size_t n = is_list ? json_array_size(json) : 1;
    uint64_t product = 1;
    if (n == 0 || n > side->n_axes) {
        return fy_json_fail(place, error, "lists %zu axes of a mesh of %u", n, side->n_axes);
    }
    shard->n_axes = (uint32_t)n;
    shard->axes = fy_arena_alloc(&spec->arena, n, sizeof *shard->axes);
    if (shard->axes == NULL) {
        return fy_fail_no_memory(error, "a rule");
    }
    for (size_t i = 0; i < n; i++) {
        fy_json_place at = {.parent = place, .index = i};
        ferry_status status = fy_spec_find_axis(side, is_list ? json_array_get(json, i) : json,
                                                is_list ? &at : place, &shard->axes[i], error);
        if (status != FERRY_OK) {
            return status;
        }
        product *= side->axes[shard->axes[i]].size; /* an axis twice is found later */
        if (product > FERRY_MAX_RANKS) {
            return fy_json_fail(place, error, "has more than %u ranks", FERRY_MAX_RANKS);
        }
    }
    shard->n_ranks = shard->n_parts = (uint32_t)product;
    return FERRY_OK;
}

static ferry_status parse_parts(const json_t *json, const fy_json_place *place, fy_shard *shard,
                                ferry_error *error)
{
    const json_t *parts = json_object_get(json, "parts");
    uint64_t n_parts = 0;
    if (parts == NULL) {
        return FERRY_OK;
    }
    fy_json_place at = {.parent = place, .key = "parts"};
    ferry_status status = fy_json_get_size(parts, &at, 1, FERRY_MAX_RANKS, &n_parts, error);
    if (status == FERRY_OK) {
        status = check_parts(n_parts, shard->n_ranks, &at, error);
        shard->n_parts = (uint32_t)n_parts;
    }
    return status;
}

/* At most one of the keys that say how to cut. */
static ferry_status parse_cut(ferry_spec *spec, const json_t *json, const fy_json_place *place,
                              fy_shard *shard, ferry_error *error)
{
    static const struct {
        const char *key;
        fy_cut cut;
    } cuts[] = {{"stride", FY_CUT_STRIDE},
                {"cycle", FY_CUT_CYCLE},
                {"blocks", FY_CUT_BLOCKS},
                {"sizes", FY_CUT_SIZES}};
    const char *found = NULL;
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        const json_t *value = json_object_get(json, cuts[i].key);
        if (value == NULL) {
            continue;
        }
        if (found != NULL) {
            return fy_json_fail(place, error, "has both \"%s\" and \"%s\"; use one", found,
                                cuts[i].key);
        }
        found = cuts[i].key;
        shard->cut = cuts[i].cut;
        fy_json_place at = {.parent = place, .key = found};
        ferry_status status;
        if (shard->cut == FY_CUT_BLOCKS) {
            status = parse_blocks(&spec->arena, value, &at, shard, error);
        } else if (shard->cut == FY_CUT_SIZES) {
            status = parse_sizes(&spec->arena, value, &at, &shard->sizes, &shard->n_values, error);
            if (status == FERRY_OK && shard->n_values != shard->n_parts) {
                status = fy_json_fail(&at, error, "has %zu entries, but there are %u parts",
                                      shard->n_values, shard->n_parts);
            }
        } else {
            status = fy_json_get_size(value, &at, 1, INT64_MAX, &shard->length, error);
        }
        if (status != FERRY_OK) {
            return status;
        }
    }
    return FERRY_OK;
}

static ferry_status parse_nested(const json_t *json, const fy_json_place *place, fy_shard *shard,
                                 ferry_error *error)
{
    const json_t *value = json_object_get(json, "nested");
    bool nested = false;
    if (value == NULL) {
        return FERRY_OK;
    }
    fy_json_place at = {.parent = place, .key = "nested"};
    ferry_status status = fy_json_get_bool(value, &at, &nested, error);
    if (status != FERRY_OK || !nested) {
        return status;
    }
    if (shard->cut != FY_CUT_EVEN || json_object_get(json, "parts") != NULL) {
        return fy_json_fail(&at, error, "allows no stride, blocks, sizes, cycle or parts");
    }
    shard->cut = FY_CUT_NESTED;
    return FERRY_OK;
}

static ferry_status parse_unit(const json_t *json, const fy_json_place *place, fy_shard *shard,
                               ferry_error *error)
{
    const json_t *value = json_object_get(json, "unit");
    if (value == NULL) {
        return FERRY_OK;
    }
    fy_json_place at = {.parent = place, .key = "unit"};
    ferry_status status = fy_json_get_size(value, &at, 1, INT64_MAX, &shard->unit, error);
    if (status == FERRY_OK && (shard->cut == FY_CUT_SIZES || shard->cut == FY_CUT_CYCLE)) {
        status = fy_json_fail(&at, error, "cannot be combined with sizes or cycle");
    }
    return status;
}

static ferry_status parse_shard(ferry_spec *spec, const fy_side *side, const json_t *json,
                                const fy_json_place *place, fy_shard *shard, ferry_error *error)
{
    static const char *const keys[] = {"dim",   "axis",   "stride", "blocks", "sizes",
                                       "cycle", "nested", "parts",  "unit",   NULL};
    const json_t *member = NULL;
    uint64_t dim = 0;
    fy_json_place dim_at = {.parent = place, .key = "dim"};
    fy_json_place axis_at = {.parent = place, .key = "axis"};
    *shard = (fy_shard){.unit = 1};
    ferry_status status = fy_json_expect_object(json, place, keys, error);
    if (status == FERRY_OK) {
        status = fy_json_member(json, place, "dim", &member, error);
    }
    if (status == FERRY_OK) {
        status = fy_json_get_size(member, &dim_at, 0, INT32_MAX, &dim, error);
        shard->dim = (uint32_t)dim;
    }
    if (status == FERRY_OK) {
        status = fy_json_member(json, place, "axis", &member, error);
    }
    if (status == FERRY_OK) {
        status = parse_axes(spec, side, member, &axis_at, shard, error);
    }
    if (status == FERRY_OK) {
        status = parse_parts(json, place, shard, error);
    }
    if (status == FERRY_OK) {
        status = parse_cut(spec, json, place, shard, error);
    }
    if (status == FERRY_OK) {
        status = parse_nested(json, place, shard, error);
    }
    if (status == FERRY_OK) {
        status = parse_unit(json, place, shard, error);
    }
    return status;
}

static ferry_status parse_shards(ferry_spec *spec, const fy_side *side, const json_t *json,
                                 const fy_json_place *place, fy_rule *rule, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    if (status == FERRY_OK && json_array_size(json) > FY_MAX_DIMS) {
        status = fy_json_fail(place, error, "has %zu entries; tensors have at most %d dimensions",
                              json_array_size(json), FY_MAX_DIMS);
    }
    if (status != FERRY_OK) {
        return status;
    }
    rule->n_shards = (uint32_t)json_array_size(json);
    rule->shards = fy_arena_alloc(&spec->arena, rule->n_shards, sizeof *rule->shards);
    if (rule->shards == NULL) {
        return fy_fail_no_memory(error, "a rule");
    }
    for (uint32_t i = 0; i < rule->n_shards; i++) {
        fy_json_place at = {.parent = place, .index = i};
        status = parse_shard(spec, side, json_array_get(json, i), &at, &rule->shards[i], error);
        for (uint32_t j = 0; j < i && status == FERRY_OK; j++) {
            if (rule->shards[j].dim == rule->shards[i].dim) {
                status = fy_json_fail(&at, error, "cuts dim %u again", rule->shards[i].dim);
            }
        }
        if (status != FERRY_OK) {
            return status;
        }
    }
    return FERRY_OK;
}

/* Where each flat part begins, and last where the shard ends; sizes beyond 64 bits saturate. */
static uint64_t *add_up_sizes(fy_arena *arena, const uint64_t *sizes, size_t n)
{
    uint64_t *begin = fy_arena_alloc(arena, n + 1, sizeof *begin);
    uint64_t sum = 0;
    for (size_t i = 0; begin != NULL && i <= n; i++) {
        begin[i] = sum;
        if (i < n && !fy_add(sum, sizes[i], &sum)) {
            sum = UINT64_MAX;
        }
    }
    return begin;
}

static ferry_status parse_flat(ferry_spec *spec, const fy_side *side, const json_t *json,
                               const fy_json_place *place, fy_rule *rule, ferry_error *error)
{
    static const char *const keys[] = {"axis", "sizes", NULL};
    const json_t *axis = NULL;
    fy_json_place axis_at = {.parent = place, .key = "axis"};
    fy_json_place sizes_at = {.parent = place, .key = "sizes"};
    ferry_status status = fy_json_expect_object(json, place, keys, error);
    if (status == FERRY_OK) {
        status = fy_json_member(json, place, "axis", &axis, error);
    }
    if (status == FERRY_OK) {
        status = fy_spec_find_axis(side, axis, &axis_at, &rule->flat_axis, error);
    }
    const json_t *sizes = json_object_get(json, "sizes");
    if (status == FERRY_OK && sizes != NULL) {
        uint64_t *lengths = NULL;
        size_t n = 0;
        status = parse_sizes(&spec->arena, sizes, &sizes_at, &lengths, &n, error);
        if (status == FERRY_OK && n != side->axes[rule->flat_axis].size) {
            return fy_json_fail(&sizes_at, error, "has %zu entries, but axis \"%s\" has %u", n,
                                side->axes[rule->flat_axis].name, side->axes[rule->flat_axis].size);
        }
        rule->flat_begin = status == FERRY_OK ? add_up_sizes(&spec->arena, lengths, n) : NULL;
        if (status == FERRY_OK && rule->flat_begin == NULL) {
            status = fy_fail_no_memory(error, "a rule");
        }
    }
    rule->is_flat = true;
    return status;
}

static ferry_status parse_coordinate(const fy_side *side, const json_t *json,
                                     const fy_json_place *place, fy_pin *pin, ferry_error *error)
{
    int64_t size = side->axes[pin->axis].size;
    int64_t value;
    ferry_status status = fy_json_get_integer(json, place, -size, size - 1, &value, error);
    if (status != FERRY_OK) {
        return status;
    }
    pin->coordinates[pin->n_coordinates++] = (uint32_t)(value < 0 ? value + size : value);
    return FERRY_OK;
}

static int compare_coordinates(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Ascending, so that the replicas of a tensor come in the order of the mesh. */
static ferry_status settle_coordinates(fy_pin *pin, const fy_json_place *place, ferry_error *error)
{
    fy_sort(pin->coordinates, pin->n_coordinates, sizeof *pin->coordinates, compare_coordinates);
    for (uint32_t i = 1; i < pin->n_coordinates; i++) {
        if (pin->coordinates[i - 1] == pin->coordinates[i]) {
            return fy_json_fail(place, error, "names coordinate %u twice", pin->coordinates[i]);
        }
    }
    return FERRY_OK;
}

/* [0, -1] is one coordinate on an axis of one: the rules of a long pipeline fit a short one. */
static bool is_first_and_last(const json_t *list)
{
    return json_array_size(list) == 2 && json_integer_value(json_array_get(list, 0)) !=
                                             json_integer_value(json_array_get(list, 1));
}

static ferry_status parse_pin(ferry_spec *spec, const fy_side *side, const json_t *json,
                              const fy_json_place *place, fy_pin *pin, ferry_error *error)
{
    bool is_list = json_is_array(json);
    size_t n = is_list ? json_array_size(json) : 1;
    bool is_one = side->axes[pin->axis].size == 1 && is_list && is_first_and_last(json);
    if (n == 0 || (n > side->axes[pin->axis].size && !is_one)) {
        return fy_json_fail(place, error, "lists %zu of the %u coordinates of axis \"%s\"", n,
                            side->axes[pin->axis].size, side->axes[pin->axis].name);
    }
    pin->coordinates = fy_arena_alloc(&spec->arena, n, sizeof *pin->coordinates);
    if (pin->coordinates == NULL) {
        return fy_fail_no_memory(error, "a rule");
    }
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < n; i++) {
        fy_json_place at = {.parent = place, .index = i};
        status = parse_coordinate(side, is_list ? json_array_get(json, i) : json,
                                  is_list ? &at : place, pin, error);
        if (status != FERRY_OK) {
            return status;
        }
    }
    pin->n_coordinates = is_one ? 1 : pin->n_coordinates;
    return settle_coordinates(pin, place, error);
}

static ferry_status parse_pins(ferry_spec *spec, const fy_side *side, const json_t *json,
                               const fy_json_place *place, fy_rule *rule, ferry_error *error)
{
    const char *key;
    json_t *value;
    if (!json_is_object(json)) {
        return fy_json_fail(place, error, "must be an object from axes to coordinates");
    }
    rule->pins = fy_arena_alloc(&spec->arena, json_object_size(json), sizeof *rule->pins);
    if (rule->pins == NULL) {
        return fy_fail_no_memory(error, "a rule");
    }
    json_object_foreach ((json_t *)json, key, value) {
        fy_pin *pin = &rule->pins[rule->n_pins++];
        fy_json_place at = {.parent = place, .key = key};
        json_t *name = json_string(key);
        *pin = (fy_pin){0};
        ferry_status status = name == NULL
                                  ? fy_fail_no_memory(error, "a rule")
                                  : fy_spec_find_axis(side, name, place, &pin->axis, error);
        json_decref(name);
        if (status == FERRY_OK) {
            status = parse_pin(spec, side, value, &at, pin, error);
        }
        if (status != FERRY_OK) {
            return status;
        }
    }
    return FERRY_OK;
}

/* An axis has one use in a rule. Uses by stages are checked per tensor. */
static ferry_status check_axes(const fy_side *side, const fy_rule *rule, const fy_json_place *place,
                               ferry_error *error)
{
    uint32_t uses[FY_MAX_AXES] = {0};
    for (uint32_t i = 0; i < rule->n_shards; i++) {
        for (uint32_t j = 0; j < rule->shards[i].n_axes; j++) {
            uses[rule->shards[i].axes[j]]++;
        }
    }
    for (uint32_t i = 0; i < rule->n_pins; i++) {
        uses[rule->pins[i].axis]++;
    }
    if (rule->is_flat) {
        uses[rule->flat_axis]++;
    }
    for (uint32_t i = 0; i < side->n_axes; i++) {
        if (uses[i] > 1) {
            return fy_json_fail(place, error, "(\"%s\") uses the axis \"%s\" %u times", rule->match,
                                side->axes[i].name, uses[i]);
        }
    }
    return FERRY_OK;
}

static ferry_status parse_match(ferry_spec *spec, const json_t *json, const fy_json_place *place,
                                fy_rule *rule, ferry_error *error)
{
    const json_t *member = NULL;
    fy_json_place match_at = {.parent = place, .key = "match"};
    fy_json_place skip_at = {.parent = place, .key = "skip"};
    ferry_status status = fy_json_member(json, place, "match", &member, error);
    if (status == FERRY_OK) {
        status = fy_json_get_string(member, &match_at, &rule->match, error);
    }
    if (status == FERRY_OK) {
        rule->match_length = strlen(rule->match);
        rule->match = fy_arena_copy(&spec->arena, rule->match, rule->match_length);
        if (rule->match == NULL) {
            status = fy_fail_no_memory(error, "a rule");
        } else {
            const char *star = strrchr(rule->match, '*');
            const char *tail = star == NULL ? rule->match : star + 1;
            rule->tail_length = strchr(tail, '?') == NULL ? strlen(tail) : 0;
        }
    }
    member = json_object_get(json, "skip");
    if (status == FERRY_OK && member != NULL) {
        status = fy_json_get_bool(member, &skip_at, &rule->skip, error);
    }
    return status;
}

ferry_status fy_spec_parse_rule(ferry_spec *spec, const fy_side *side, const json_t *json,
                                const fy_json_place *place, fy_rule *rule, ferry_error *error)
{
    static const char *const keys[] = {"match", "shard", "flat", "on", "skip", NULL};
    fy_json_place shard_at = {.parent = place, .key = "shard"};
    fy_json_place flat_at = {.parent = place, .key = "flat"};
    fy_json_place on_at = {.parent = place, .key = "on"};
    ferry_status status = fy_json_expect_object(json, place, keys, error);
    if (status == FERRY_OK) {
        status = parse_match(spec, json, place, rule, error);
    }
    const json_t *shard = json_object_get(json, "shard");
    if (status == FERRY_OK && shard != NULL) {
        status = parse_shards(spec, side, shard, &shard_at, rule, error);
    }
    const json_t *flat = json_object_get(json, "flat");
    if (status == FERRY_OK && flat != NULL) {
        status = parse_flat(spec, side, flat, &flat_at, rule, error);
    }
    const json_t *on = json_object_get(json, "on");
    if (status == FERRY_OK && on != NULL) {
        status = parse_pins(spec, side, on, &on_at, rule, error);
    }
    if (status == FERRY_OK) {
        status = check_axes(side, rule, place, error);
    }
    return status;
}
