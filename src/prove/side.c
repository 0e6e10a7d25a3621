/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/glob.h"
#include "prove/spec_read.h"

/* floor(i * axis size / count) stays exact below this. */
#define MOST_STAGE_ITEMS ((uint64_t)1 << 32)

static ferry_status read_stage_items(fy_proof_spec *spec, const fy_proof_mesh *mesh,
                                     const json_t *json, const fy_json_place *place,
                                     fy_proof_stage *stage, ferry_error *error)
{
    const json_t *sizes = json_object_get(json, "sizes");
    const json_t *count = json_object_get(json, "count");
    if ((sizes == NULL) == (count == NULL)) {
        return fy_json_fail(place, error, "must have either \"count\" or \"sizes\"");
    }
    if (count != NULL) {
        return fy_proof_read_number(json, place, "count", 1, MOST_STAGE_ITEMS, &stage->count,
                                    error);
    }
    fy_json_place inner = {.parent = place, .key = "sizes"};
    size_t n;
    ferry_status status =
        fy_proof_read_sizes(spec, sizes, &inner, 0, MOST_STAGE_ITEMS, &stage->sizes, &n, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (n != mesh->sizes[stage->axis]) {
        return fy_json_fail(&inner, error, "has %zu entries, but the axis \"%s\" has %llu", n,
                            mesh->names[stage->axis], (unsigned long long)mesh->sizes[stage->axis]);
    }
    for (size_t i = 0; i < n; i++) {
        stage->count += stage->sizes[i]; /* at most 2^24 numbers below 2^32 */
    }
    return FERRY_OK;
}

static ferry_status read_stage(fy_proof_spec *spec, const fy_proof_mesh *mesh, const json_t *json,
                               const fy_json_place *place, fy_proof_stage *stage,
                               ferry_error *error)
{
    static const char *const keys[] = {"match", "count", "sizes", "axis", NULL};
    fy_json_place axis_place = {.parent = place, .key = "axis"};
    uint32_t none_used = 0;
    const char *axis;
    ferry_status status = fy_json_expect_object(json, place, keys, error);
    if (status == FERRY_OK) {
        status = fy_proof_read_text(json, place, "match", &stage->match, error);
    }
    if (status == FERRY_OK && fy_glob_count_numbers(stage->match) != 1) {
        return fy_json_fail(place, error, "must have {} exactly once in its match");
    }
    if (status == FERRY_OK) {
        status = fy_proof_read_text(json, place, "axis", &axis, error);
    }
    if (status == FERRY_OK) {
        status = fy_proof_read_axis(mesh, axis, &axis_place, &none_used, &stage->axis, error);
    }
    return status == FERRY_OK ? read_stage_items(spec, mesh, json, place, stage, error) : status;
}

static ferry_status read_stages(fy_proof_spec *spec, const json_t *json, const fy_json_place *place,
                                fy_proof_side *side, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    if (status != FERRY_OK) {
        return status;
    }
    size_t n = json_array_size(json);
    fy_proof_stage *stages = fy_arena_alloc(&spec->arena, n, sizeof *stages);
    if (stages == NULL) {
        return fy_fail_no_memory(error, "the stages");
    }
    for (size_t i = 0; i < n; i++) {
        fy_json_place inner = {.parent = place, .index = i};
        stages[i] = (fy_proof_stage){0};
        status = read_stage(spec, &side->mesh, json_array_get(json, i), &inner, &stages[i], error);
        if (status != FERRY_OK) {
            return status;
        }
    }
    side->stages = stages;
    side->n_stages = n;
    return FERRY_OK;
}

/* One coordinate, or a list of them; a negative one counts from the end. */
static ferry_status read_pin(fy_proof_spec *spec, const fy_proof_mesh *mesh, const json_t *json,
                             const fy_json_place *place, fy_proof_pin *pin, ferry_error *error)
{
    int64_t size = (int64_t)mesh->sizes[pin->axis];
    bool is_list = json_is_array(json);
    size_t n = is_list ? json_array_size(json) : 1;
    uint64_t *coordinates = fy_arena_alloc(&spec->arena, n, sizeof *coordinates);
    if (coordinates == NULL) {
        return fy_fail_no_memory(error, "the coordinates of a rule");
    }
    if (n == 0) {
        return fy_json_fail(place, error, "must name at least one coordinate");
    }
    for (size_t i = 0; i < n; i++) {
        fy_json_place inner = {.parent = place, .index = i};
        const json_t *value = is_list ? json_array_get(json, i) : json;
        int64_t coordinate;
        ferry_status status = fy_json_get_integer(value, is_list ? &inner : place, -size, size - 1,
                                                  &coordinate, error);
        if (status != FERRY_OK) {
            return status;
        }
        for (size_t j = 0; j < i; j++) {
            /* But 0 and -1 may both be there: on an axis of one they mean the same. */
            bool same =
                coordinates[j] == (uint64_t)(coordinate < 0 ? coordinate + size : coordinate);
            if (same && (size > 1 || json_equal(json_array_get(json, j), value))) {
                return fy_json_fail(place, error, "has %lld twice", (long long)coordinate);
            }
        }
        coordinates[i] = (uint64_t)(coordinate < 0 ? coordinate + size : coordinate);
    }
    pin->coordinates = coordinates;
    pin->n_coordinates = n;
    return FERRY_OK;
}

static ferry_status read_pins(fy_proof_spec *spec, const fy_proof_mesh *mesh, const json_t *json,
                              const fy_json_place *place, fy_proof_rule *rule, ferry_error *error)
{
    if (!json_is_object(json)) {
        return fy_json_fail(place, error, "must be an object");
    }
    fy_proof_pin *pins = fy_arena_alloc(&spec->arena, json_object_size(json), sizeof *pins);
    if (pins == NULL) {
        return fy_fail_no_memory(error, "the coordinates of a rule");
    }
    for (void *i = json_object_iter((json_t *)json); i != NULL;
         i = json_object_iter_next((json_t *)json, i)) {
        const char *axis = json_object_iter_key(i);
        fy_json_place inner = {.parent = place, .key = axis};
        fy_proof_pin *pin = &pins[rule->n_pins++];
        *pin = (fy_proof_pin){0};
        ferry_status status =
            fy_proof_read_axis(mesh, axis, &inner, &rule->axes, &pin->axis, error);
        if (status == FERRY_OK) {
            status = read_pin(spec, mesh, json_object_iter_value(i), &inner, pin, error);
        }
        if (status != FERRY_OK) {
            return status;
        }
    }
    rule->pins = pins;
    return FERRY_OK;
}

static ferry_status read_cuts(fy_proof_spec *spec, const fy_proof_mesh *mesh, const json_t *json,
                              const fy_json_place *place, fy_proof_rule *rule, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    if (status != FERRY_OK) {
        return status;
    }
    size_t n = json_array_size(json);
    fy_proof_cut *cuts = fy_arena_alloc(&spec->arena, n, sizeof *cuts);
    if (cuts == NULL) {
        return fy_fail_no_memory(error, "the cuts of a rule");
    }
    for (size_t i = 0; i < n; i++) {
        fy_json_place inner = {.parent = place, .index = i};
        cuts[i] = (fy_proof_cut){0};
        status = fy_proof_read_cut(spec, mesh, json_array_get(json, i), &inner, false, &rule->axes,
                                   &cuts[i], error);
        if (status != FERRY_OK) {
            return status;
        }
        for (size_t j = 0; j < i; j++) {
            if (cuts[j].dim == cuts[i].dim) {
                return fy_json_fail(&inner, error, "cuts the dimension %llu again",
                                    (unsigned long long)cuts[i].dim);
            }
        }
    }
    rule->cuts = cuts;
    rule->n_cuts = n;
    return FERRY_OK;
}

static ferry_status read_flat(fy_proof_spec *spec, const fy_proof_mesh *mesh, const json_t *json,
                              const fy_json_place *place, fy_proof_rule *rule, ferry_error *error)
{
    fy_proof_cut *flat = fy_arena_alloc(&spec->arena, 1, sizeof *flat);
    if (flat == NULL) {
        return fy_fail_no_memory(error, "the flat cut of a rule");
    }
    *flat = (fy_proof_cut){0};
    rule->flat = flat;
    return fy_proof_read_cut(spec, mesh, json, place, true, &rule->axes, flat, error);
}

static ferry_status read_rule(fy_proof_spec *spec, const fy_proof_mesh *mesh, const json_t *json,
                              const fy_json_place *place, fy_proof_rule *rule, ferry_error *error)
{
    static const char *const keys[] = {"match", "shard", "flat", "on", "skip", NULL};
    fy_json_place shard_place = {.parent = place, .key = "shard"};
    fy_json_place flat_place = {.parent = place, .key = "flat"};
    fy_json_place on_place = {.parent = place, .key = "on"};
    fy_json_place skip_place = {.parent = place, .key = "skip"};
    ferry_status status = fy_json_expect_object(json, place, keys, error);
    if (status == FERRY_OK) {
        status = fy_proof_read_text(json, place, "match", &rule->match, error);
    }
    const json_t *shard = json_object_get(json, "shard");
    if (status == FERRY_OK && shard != NULL) {
        status = read_cuts(spec, mesh, shard, &shard_place, rule, error);
    }
    const json_t *flat = json_object_get(json, "flat");
    if (status == FERRY_OK && flat != NULL) {
        status = read_flat(spec, mesh, flat, &flat_place, rule, error);
    }
    const json_t *on = json_object_get(json, "on");
    if (status == FERRY_OK && on != NULL) {
        status = read_pins(spec, mesh, on, &on_place, rule, error);
    }
    const json_t *skip = json_object_get(json, "skip");
    if (status == FERRY_OK && skip != NULL) {
        status = fy_json_get_bool(skip, &skip_place, &rule->skip, error);
    }
    return status;
}

static ferry_status read_rules(fy_proof_spec *spec, const json_t *json, const fy_json_place *place,
                               fy_proof_side *side, ferry_error *error)
{
    ferry_status status = fy_json_expect_array(json, place, error);
    if (status != FERRY_OK) {
        return status;
    }
    size_t n = json_array_size(json);
    fy_proof_rule *rules = fy_arena_alloc(&spec->arena, n, sizeof *rules);
    if (rules == NULL) {
        return fy_fail_no_memory(error, "the rules");
    }
    for (size_t i = 0; i < n; i++) {
        fy_json_place inner = {.parent = place, .index = i};
        rules[i] = (fy_proof_rule){0};
        status = read_rule(spec, &side->mesh, json_array_get(json, i), &inner, &rules[i], error);
        if (status != FERRY_OK) {
            return status;
        }
    }
    side->rules = rules;
    side->n_rules = n;
    return FERRY_OK;
}

ferry_status fy_proof_read_side(fy_proof_spec *spec, const json_t *json, const fy_json_place *place,
                                fy_proof_side *side, ferry_error *error)
{
    static const char *const keys[] = {"mesh", "first_rank", "ranks", "stages", "rules", NULL};
    fy_json_place stages_place = {.parent = place, .key = "stages"};
    fy_json_place rules_place = {.parent = place, .key = "rules"};
    ferry_status status = fy_json_expect_object(json, place, keys, error);
    if (status == FERRY_OK) {
        status = fy_proof_read_mesh(spec, json, place, &side->mesh, error);
    }
    const json_t *stages = json_object_get(json, "stages");
    if (status == FERRY_OK && stages != NULL) {
        status = read_stages(spec, stages, &stages_place, side, error);
    }
    const json_t *rules = json_object_get(json, "rules");
    if (status == FERRY_OK && rules != NULL) {
        status = read_rules(spec, rules, &rules_place, side, error);
    }
    return status;
}
