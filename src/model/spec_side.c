/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The mesh, the ranks and the stages of one side of a spec. */
#include "model/spec.h"

#include "base/checked.h"
#include "base/glob.h"

#include <string.h>

static ferry_status parse_axis(const fy_side *side, const json_t *json, const fy_json_place *place,
                               fy_axis *axis, ferry_error *error)
{
    uint64_t size;
    if (!json_is_array(json) || json_array_size(json) != 2) {
        return fy_json_fail(place, error, "must be a pair of an axis name and its size");
    }
    fy_json_place name_at = {.parent = place, .index = 0};
    fy_json_place size_at = {.parent = place, .index = 1};
    ferry_status status = fy_json_get_string(json_array_get(json, 0), &name_at, &axis->name, error);
    if (status == FERRY_OK) {
        status =
            fy_json_get_size(json_array_get(json, 1), &size_at, 1, FERRY_MAX_RANKS, &size, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    axis->size = (uint32_t)size;
    for (const fy_axis *other = side->axes; other < axis; other++) {
        if (strcmp(other->name, axis->name) == 0) {
            return fy_json_fail(&name_at, error, "names the axis \"%s\" twice", axis->name);
        }
    }
    return FERRY_OK;
}

static ferry_status parse_mesh(ferry_spec *spec, const json_t *json, const fy_json_place *place,
                               fy_side *side, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    uint64_t n_ranks = 1;
    if (status == FERRY_OK && json_array_size(json) > FY_MAX_AXES) {
        status = fy_json_fail(place, error, "has %zu axes, more than the limit of %d",
                              json_array_size(json), FY_MAX_AXES);
    }
    if (status != FERRY_OK) {
        return status;
    }
    side->n_axes = (uint32_t)json_array_size(json);
    side->axes = fy_arena_alloc(&spec->arena, side->n_axes, sizeof *side->axes);
    if (side->axes == NULL) {
        return fy_fail_no_memory(error, "a mesh");
    }
    for (uint32_t i = 0; i < side->n_axes; i++) {
        fy_json_place at = {.parent = place, .index = i};
        status = parse_axis(side, json_array_get(json, i), &at, &side->axes[i], error);
        if (status != FERRY_OK) {
            return status;
        }
        side->axes[i].name =
            fy_arena_copy(&spec->arena, side->axes[i].name, strlen(side->axes[i].name));
        if (side->axes[i].name == NULL) {
            return fy_fail_no_memory(error, "a mesh");
        }
        n_ranks *= side->axes[i].size; /* both below 2^25: no overflow before the check */
        if (n_ranks > FERRY_MAX_RANKS) {
            return fy_json_fail(place, error, "has %llu ranks or more; ranks are below %u",
                                (unsigned long long)n_ranks, FERRY_MAX_RANKS);
        }
    }
    side->n_ranks = (uint32_t)n_ranks;
    return FERRY_OK;
}

static ferry_status check_distinct(const fy_side *side, const fy_json_place *place,
                                   ferry_error *error)
{
    uint32_t highest = 0;
    for (uint32_t i = 0; i < side->n_ranks; i++) {
        highest = side->ranks[i] > highest ? side->ranks[i] : highest;
    }
    unsigned char *seen = fy_alloc_zeroed(highest / 8 + 1, 1);
    if (seen == NULL) {
        return fy_fail_no_memory(error, "the check of a list of ranks");
    }
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < side->n_ranks && status == FERRY_OK; i++) {
        uint32_t rank = side->ranks[i];
        unsigned char bit = (unsigned char)(1u << (rank % 8));
        unsigned char *byte = &seen[rank / 8];
        if ((*byte & bit) != 0) {
            status = fy_json_fail(place, error, "has rank %u twice", rank);
        }
        *byte = (unsigned char)(*byte | bit);
    }
    fy_free(seen);
    return status;
}

static ferry_status parse_rank_list(ferry_spec *spec, const json_t *json,
                                    const fy_json_place *place, fy_side *side, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    if (status == FERRY_OK && json_array_size(json) != side->n_ranks) {
        status = fy_json_fail(place, error, "has %zu ranks, but the mesh has %u",
                              json_array_size(json), side->n_ranks);
    }
    if (status != FERRY_OK) {
        return status;
    }
    side->ranks = fy_arena_alloc(&spec->arena, side->n_ranks, sizeof *side->ranks);
    if (side->ranks == NULL) {
        return fy_fail_no_memory(error, "a list of ranks");
    }
    for (uint32_t i = 0; i < side->n_ranks; i++) {
        uint64_t rank;
        fy_json_place at = {.parent = place, .index = i};
        status =
            fy_json_get_size(json_array_get(json, i), &at, 0, FERRY_MAX_RANKS - 1, &rank, error);
        if (status != FERRY_OK) {
            return status;
        }
        side->ranks[i] = (uint32_t)rank;
    }
    return check_distinct(side, place, error);
}

static ferry_status parse_ranks(ferry_spec *spec, const json_t *json, const fy_json_place *place,
                                fy_side *side, ferry_error *error)
{
    const json_t *first = json_object_get(json, "first_rank");
    const json_t *list = json_object_get(json, "ranks");
    fy_json_place first_at = {.parent = place, .key = "first_rank"};
    fy_json_place list_at = {.parent = place, .key = "ranks"};
    uint64_t rank = 0;
    if (first != NULL && list != NULL) {
        return fy_json_fail(&first_at, error, "and ranks exclude each other");
    }
    if (list != NULL) {
        return parse_rank_list(spec, list, &list_at, side, error);
    }
    if (first != NULL) {
        ferry_status status =
            fy_json_get_size(first, &first_at, 0, FERRY_MAX_RANKS - 1, &rank, error);
        if (status != FERRY_OK) {
            return status;
        }
    }
    if (rank + side->n_ranks > FERRY_MAX_RANKS) {
        return fy_json_fail(&first_at, error, "%llu and a mesh of %u reach beyond rank %u",
                            (unsigned long long)rank, side->n_ranks, FERRY_MAX_RANKS - 1);
    }
    side->first_rank = (uint32_t)rank;
    return FERRY_OK;
}

static ferry_status parse_stage_sizes(ferry_spec *spec, const json_t *json,
                                      const fy_json_place *place, const fy_side *side,
                                      fy_stage *stage, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    uint32_t n_axis = side->axes[stage->axis].size;
    if (status == FERRY_OK && json_array_size(json) != n_axis) {
        status = fy_json_fail(place, error, "has %zu entries, but axis \"%s\" has %u coordinates",
                              json_array_size(json), side->axes[stage->axis].name, n_axis);
    }
    if (status != FERRY_OK) {
        return status;
    }
    stage->ends = fy_arena_alloc(&spec->arena, n_axis, sizeof *stage->ends);
    if (stage->ends == NULL) {
        return fy_fail_no_memory(error, "a stage");
    }
    stage->count = 0;
    for (uint32_t i = 0; i < n_axis; i++) {
        uint64_t size;
        fy_json_place at = {.parent = place, .index = i};
        status = fy_json_get_size(json_array_get(json, i), &at, 0, INT64_MAX, &size, error);
        if (status != FERRY_OK) {
            return status;
        }
        if (!fy_add(stage->count, size, &stage->count)) {
            return fy_json_fail(place, error, "overflows 64 bits");
        }
        stage->ends[i] = stage->count;
    }
    return FERRY_OK;
}

ferry_status fy_spec_find_axis(const fy_side *side, const json_t *json, const fy_json_place *place,
                               uint32_t *axis_out, ferry_error *error)
{
    const char *name;
    ferry_status status = fy_json_get_string(json, place, &name, error);
    if (status != FERRY_OK) {
        return status;
    }
    for (uint32_t i = 0; i < side->n_axes; i++) {
        if (strcmp(side->axes[i].name, name) == 0) {
            *axis_out = i;
            return FERRY_OK;
        }
    }
    return fy_json_fail(place, error, "names the axis \"%s\", which the mesh of the %s lacks", name,
                        side->name);
}

static ferry_status parse_stage_count(ferry_spec *spec, const json_t *json,
                                      const fy_json_place *place, const fy_side *side,
                                      fy_stage *stage, ferry_error *error)
{
    const json_t *count = json_object_get(json, "count");
    const json_t *sizes = json_object_get(json, "sizes");
    fy_json_place count_at = {.parent = place, .key = "count"};
    fy_json_place sizes_at = {.parent = place, .key = "sizes"};
    if ((count == NULL) == (sizes == NULL)) {
        return fy_json_fail(place, error, "must have either \"count\" or \"sizes\"");
    }
    if (sizes != NULL) {
        return parse_stage_sizes(spec, sizes, &sizes_at, side, stage, error);
    }
    return fy_json_get_size(count, &count_at, 1, INT64_MAX, &stage->count, error);
}

static ferry_status parse_stage(ferry_spec *spec, const json_t *json, const fy_json_place *place,
                                const fy_side *side, fy_stage *stage, ferry_error *error)
{
    static const char *const keys[] = {"match", "count", "sizes", "axis", NULL};
    const json_t *match = NULL;
    const json_t *axis = NULL;
    fy_json_place match_at = {.parent = place, .key = "match"};
    fy_json_place axis_at = {.parent = place, .key = "axis"};
    ferry_status status = fy_json_expect_object(json, place, keys, error);
    if (status == FERRY_OK) {
        status = fy_json_member(json, place, "match", &match, error);
    }
    if (status == FERRY_OK) {
        status = fy_json_get_string(match, &match_at, &stage->match, error);
    }
    if (status == FERRY_OK && fy_glob_count_numbers(stage->match) != 1) {
        status = fy_json_fail(&match_at, error, "\"%s\" must have {} exactly once", stage->match);
    }
    if (status == FERRY_OK) {
        status = fy_json_member(json, place, "axis", &axis, error);
    }
    if (status == FERRY_OK) {
        status = fy_spec_find_axis(side, axis, &axis_at, &stage->axis, error);
    }
    if (status == FERRY_OK) {
        stage->match = fy_arena_copy(&spec->arena, stage->match, strlen(stage->match));
        status = stage->match == NULL ? fy_fail_no_memory(error, "a stage")
                                      : parse_stage_count(spec, json, place, side, stage, error);
    }
    return status;
}

static ferry_status parse_stages(ferry_spec *spec, const json_t *json, const fy_json_place *place,
                                 fy_side *side, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    if (status != FERRY_OK) {
        return status;
    }
    side->n_stages = (uint32_t)json_array_size(json);
    side->stages = fy_arena_alloc(&spec->arena, side->n_stages, sizeof *side->stages);
    if (side->stages == NULL) {
        return fy_fail_no_memory(error, "the stages");
    }
    for (uint32_t i = 0; i < side->n_stages && status == FERRY_OK; i++) {
        fy_json_place at = {.parent = place, .index = i};
        side->stages[i] = (fy_stage){0};
        status = parse_stage(spec, json_array_get(json, i), &at, side, &side->stages[i], error);
    }
    return status;
}

static ferry_status parse_rules(ferry_spec *spec, const json_t *json, const fy_json_place *place,
                                fy_side *side, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    if (status != FERRY_OK) {
        return status;
    }
    side->n_rules = (uint32_t)json_array_size(json);
    side->rules = fy_arena_alloc(&spec->arena, side->n_rules, sizeof *side->rules);
    if (side->rules == NULL) {
        return fy_fail_no_memory(error, "the rules");
    }
    for (uint32_t i = 0; i < side->n_rules && status == FERRY_OK; i++) {
        fy_json_place at = {.parent = place, .index = i};
        side->rules[i] = (fy_rule){0};
        status =
            fy_spec_parse_rule(spec, side, json_array_get(json, i), &at, &side->rules[i], error);
    }
    return status;
}

ferry_status fy_spec_parse_side(ferry_spec *spec, const json_t *json, const fy_json_place *place,
                                fy_side *side, ferry_error *error)
{
    static const char *const keys[] = {"mesh", "first_rank", "ranks", "stages", "rules", NULL};
    const json_t *mesh = NULL;
    const json_t *rules = NULL;
    const json_t *stages = NULL;
    fy_json_place mesh_at = {.parent = place, .key = "mesh"};
    fy_json_place rules_at = {.parent = place, .key = "rules"};
    fy_json_place stages_at = {.parent = place, .key = "stages"};
    ferry_status status = fy_json_expect_object(json, place, keys, error);
    if (status == FERRY_OK) {
        status = fy_json_member(json, place, "mesh", &mesh, error);
    }
    if (status == FERRY_OK) {
        status = parse_mesh(spec, mesh, &mesh_at, side, error);
    }
    if (status == FERRY_OK) {
        status = parse_ranks(spec, json, place, side, error);
    }
    stages = json_object_get(json, "stages");
    if (status == FERRY_OK && stages != NULL) {
        status = parse_stages(spec, stages, &stages_at, side, error);
    }
    if (status == FERRY_OK) {
        status = fy_json_member(json, place, "rules", &rules, error);
    }
    if (status == FERRY_OK) {
        status = parse_rules(spec, rules, &rules_at, side, error);
    }
    return status;
}
