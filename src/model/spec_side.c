/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The mesh, the ranks and the stages of one side of a spec. */
#include "model/spec.h"

#include "base/checked.h"
#include "base/glob.h"

#include <string.h>

static ferry_status parse_axis(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    const fy_side_reading *reading = context;
    fy_axis *axis = object;
    uint64_t size;
    if (!json_is_array(json) || json_array_size(json) != 2) {
        return fy_json_fail(place, error, "must be a pair of an axis name and its size");
    }
    fy_json_place name_at = {.parent = place, .index = 0};
    fy_json_place size_at = {.parent = place, .index = 1};
    FY_TRY(fy_json_get_string(json_array_get(json, 0), &name_at, &axis->name, error));
    FY_TRY(fy_json_get_size(json_array_get(json, 1), &size_at, 1, FERRY_MAX_RANKS, &size, error));
    axis->size = (uint32_t)size;
    for (const fy_axis *other = reading->side->axes; other < axis; other++) {
        if (strcmp(other->name, axis->name) == 0) {
            return fy_json_fail(&name_at, error, "names the axis \"%s\" twice", axis->name);
        }
    }
    axis->name = fy_arena_copy(&reading->spec->arena, axis->name, strlen(axis->name));
    return fy_check_memory(axis->name != NULL, "a mesh", error);
}

static ferry_status parse_mesh(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    fy_side_reading *reading = context;
    fy_side *side = object;
    uint64_t n_ranks = 1;
    size_t n_axes = json_array_size(json);
    if (n_axes > FY_MAX_AXES) {
        return fy_json_fail(place, error, "has %zu axes, more than the limit of %d", n_axes,
                            FY_MAX_AXES);
    }
    FY_TRY(fy_json_read_items(json, place, parse_axis, reading, &reading->spec->arena,
                              sizeof *side->axes, "a mesh", &side->axes, &n_axes, error));
    side->n_axes = (uint32_t)n_axes;
    for (uint32_t i = 0; i < side->n_axes; i++) {
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
    FY_TRY(fy_check_memory(seen != NULL, "the check of a list of ranks", error));
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

static ferry_status parse_rank(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    uint64_t rank;
    (void)context;
    FY_TRY(fy_json_get_size(json, place, 0, FERRY_MAX_RANKS - 1, &rank, error));
    *(uint32_t *)object = (uint32_t)rank;
    return FERRY_OK;
}

static ferry_status parse_ranks(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    fy_side_reading *reading = context;
    fy_side *side = object;
    size_t n;
    FY_TRY(fy_json_expect_array(json, place, error));
    if (json_array_size(json) != side->n_ranks) {
        return fy_json_fail(place, error, "has %zu ranks, but the mesh has %u",
                            json_array_size(json), side->n_ranks);
    }
    FY_TRY(fy_json_read_items(json, place, parse_rank, NULL, &reading->spec->arena,
                              sizeof *side->ranks, "a list of ranks", &side->ranks, &n, error));
    return check_distinct(side, place, error);
}

static ferry_status parse_first_rank(const json_t *json, const fy_json_place *place, void *object,
                                     void *context, ferry_error *error)
{
    const fy_side_reading *reading = context;
    fy_side *side = object;
    if (json_object_get(reading->json, "ranks") != NULL) {
        return fy_json_fail(place, error, "and ranks exclude each other");
    }
    FY_TRY(parse_rank(json, place, &side->first_rank, NULL, error));
    if (side->first_rank + side->n_ranks > FERRY_MAX_RANKS) {
        return fy_json_fail(place, error, "%u and a mesh of %u reach beyond rank %u",
                            side->first_rank, side->n_ranks, FERRY_MAX_RANKS - 1);
    }
    return FERRY_OK;
}

static ferry_status parse_stage_sizes(const json_t *json, const fy_json_place *place, void *object,
                                      void *context, ferry_error *error)
{
    const fy_side_reading *reading = context;
    const fy_axis *axis = &reading->side->axes[((fy_stage *)object)->axis];
    fy_stage *stage = object;
    size_t n;
    FY_TRY(fy_json_read_sizes(json, place, 0, INT64_MAX, &reading->spec->arena, "a stage",
                              &stage->ends, &n, error));
    if (n != axis->size) {
        return fy_json_fail(place, error, "has %zu entries, but axis \"%s\" has %u coordinates", n,
                            axis->name, axis->size);
    }
    stage->count = 0;
    for (size_t i = 0; i < n; i++) {
        if (!fy_add(stage->count, stage->ends[i], &stage->count)) {
            return fy_json_fail(place, error, "overflows 64 bits");
        }
        stage->ends[i] = stage->count;
    }
    return FERRY_OK;
}

ferry_status fy_spec_parse_axis_name(const json_t *json, const fy_json_place *place, void *axis,
                                     void *reading, ferry_error *error)
{
    const fy_side *side = ((const fy_side_reading *)reading)->side;
    const char *name;
    FY_TRY(fy_json_get_string(json, place, &name, error));
    for (uint32_t i = 0; i < side->n_axes; i++) {
        if (strcmp(side->axes[i].name, name) == 0) {
            *(uint32_t *)axis = i;
            return FERRY_OK;
        }
    }
    return fy_json_fail(place, error, "names the axis \"%s\", which the mesh of the %s lacks", name,
                        side->name);
}

static ferry_status parse_stage_match(const json_t *json, const fy_json_place *place, void *object,
                                      void *context, ferry_error *error)
{
    const fy_side_reading *reading = context;
    fy_stage *stage = object;
    FY_TRY(fy_json_get_string(json, place, &stage->match, error));
    if (fy_glob_count_numbers(stage->match) != 1) {
        return fy_json_fail(place, error, "\"%s\" must have {} exactly once", stage->match);
    }
    stage->match = fy_arena_copy(&reading->spec->arena, stage->match, strlen(stage->match));
    return fy_check_memory(stage->match != NULL, "a stage", error);
}

static ferry_status parse_stage(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"match", FY_JSON_READ, FY_JSON_NEEDED, .read = parse_stage_match},
        {"axis", FY_JSON_READ, FY_JSON_NEEDED, offsetof(fy_stage, axis),
         .read = fy_spec_parse_axis_name},
        {"count", FY_JSON_SIZE, .offset = offsetof(fy_stage, count), .least = 1, .most = INT64_MAX},
        {"sizes", FY_JSON_READ, .read = parse_stage_sizes},
        {.key = NULL}};
    FY_TRY(fy_json_read(json, place, fields, object, context, error));
    if ((json_object_get(json, "count") == NULL) == (json_object_get(json, "sizes") == NULL)) {
        return fy_json_fail(place, error, "must have either \"count\" or \"sizes\"");
    }
    return FERRY_OK;
}

static ferry_status parse_stages(const json_t *json, const fy_json_place *place, void *object,
                                 void *context, ferry_error *error)
{
    fy_side *side = object;
    return fy_json_read_items(json, place, parse_stage, context,
                              &((fy_side_reading *)context)->spec->arena, sizeof *side->stages,
                              "the stages", &side->stages, &side->n_stages, error);
}

static ferry_status parse_rules(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    fy_side *side = object;
    return fy_json_read_items(json, place, fy_spec_parse_rule, context,
                              &((fy_side_reading *)context)->spec->arena, sizeof *side->rules,
                              "the rules", &side->rules, &side->n_rules, error);
}

static ferry_status parse_boxes(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    const fy_side_reading *reading = context;
    ferry_side *boxes = NULL;
    FY_TRY(fy_side_from_json(json, place, false, &boxes, error));
    return fy_spec_set_boxes(reading->spec, object, boxes, error);
}

ferry_status fy_side_refuse_casts(const fy_side *side, const char *remedy, ferry_error *error)
{
    for (size_t i = 0; i < side->n_rules; i++) {
        if (side->rules[i].dtype.kind != 0 || side->rules[i].cast.is_said ||
            side->rules[i].blocks != NULL || side->rules[i].codes != NULL) {
            return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                           "%s: the rule \"%.400s\" says a dtype or a cast; %s", side->name,
                           side->rules[i].match, remedy);
        }
    }
    for (size_t p = 0; side->boxes != NULL && p < side->boxes->n_parameters; p++) {
        const fy_parameter *parameter = &side->boxes->parameters[p];
        if (parameter->cast.is_said || parameter->blocks != NULL || parameter->codes != NULL) {
            return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                           "%s: the parameter \"%.400s\" says a cast; %s", side->name,
                           parameter->name, remedy);
        }
    }
    return FERRY_OK;
}

ferry_status fy_spec_parse_side(ferry_spec *spec, const json_t *json, const fy_json_place *place,
                                fy_side *side, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"mesh", FY_JSON_READ, FY_JSON_NEEDED, .read = parse_mesh},
        {"first_rank", FY_JSON_READ, .read = parse_first_rank},
        {"ranks", FY_JSON_READ, .read = parse_ranks},
        {"stages", FY_JSON_READ, .read = parse_stages},
        {"rules", FY_JSON_READ, FY_JSON_NEEDED, .read = parse_rules},
        {"boxes", FY_JSON_READ, .read = parse_boxes}, /* for the list of known keys */
        {.key = NULL}};
    static const fy_json_field box_fields[] = {
        {"boxes", FY_JSON_READ, FY_JSON_NEEDED, .read = parse_boxes}, {.key = NULL}};
    fy_side_reading reading = {.spec = spec, .side = side, .json = json};
    bool in_boxes = json_object_get(json, "boxes") != NULL;
    FY_TRY(fy_json_read(json, place, in_boxes ? box_fields : fields, side, &reading, error));
    if (in_boxes || side != &spec->destination) {
        return FERRY_OK;
    }
    FY_TRY(fy_spec_add_rule_scales(spec, error));
    return fy_spec_add_staged(spec, error);
}
