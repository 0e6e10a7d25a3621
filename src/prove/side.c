/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/glob.h"
#include "prove/cast.h"
#include "prove/codes.h"
#include "prove/quantize.h"
#include "prove/spec_read.h"

/* floor(i * axis size / count) stays exact below this. */
#define MOST_STAGE_ITEMS ((uint64_t)1 << 32)

/* What the readers of a side's members share. */
typedef struct side_reading {
    fy_proof_spec *spec;
    const fy_proof_mesh *mesh;
} side_reading;

static ferry_status read_stage_sizes(const side_reading *r, const json_t *json,
                                     const fy_json_place *place, fy_proof_stage *stage,
                                     ferry_error *error)
{
    size_t n;
    FY_TRY(
        fy_proof_read_sizes(r->spec, json, place, 0, MOST_STAGE_ITEMS, &stage->sizes, &n, error));
    if (n != r->mesh->sizes[stage->axis]) {
        return fy_json_fail(place, error, "has %zu entries, but the axis \"%s\" has %llu", n,
                            r->mesh->names[stage->axis],
                            (unsigned long long)r->mesh->sizes[stage->axis]);
    }
    for (size_t i = 0; i < n; i++) {
        stage->count += stage->sizes[i]; /* at most 2^24 numbers below 2^32 */
    }
    return FERRY_OK;
}

typedef struct stage_json {
    fy_proof_stage stage;
    const char *axis;
    const json_t *sizes;
} stage_json;

static ferry_status read_stage(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"match", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(stage_json, stage.match)},
        {"count", FY_JSON_SIZE, .offset = offsetof(stage_json, stage.count), .least = 1,
         .most = MOST_STAGE_ITEMS},
        {"sizes", FY_JSON_VALUE, .offset = offsetof(stage_json, sizes)},
        {"axis", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(stage_json, axis)},
        {.key = NULL}};
    const side_reading *r = context;
    fy_json_place axis_place = {.parent = place, .key = "axis"};
    fy_json_place sizes_place = {.parent = place, .key = "sizes"};
    uint32_t none_used = 0;
    stage_json s = {.sizes = NULL};
    FY_TRY(fy_json_read(json, place, fields, &s, NULL, error));
    if (fy_glob_count_numbers(s.stage.match) != 1) {
        return fy_json_fail(place, error, "must have {} exactly once in its match");
    }
    FY_TRY(fy_proof_read_axis(r->mesh, s.axis, &axis_place, &none_used, &s.stage.axis, error));
    if ((s.sizes == NULL) == (s.stage.count == 0)) {
        return fy_json_fail(place, error, "must have either \"count\" or \"sizes\"");
    }
    if (s.sizes != NULL) {
        FY_TRY(read_stage_sizes(r, s.sizes, &sizes_place, &s.stage, error));
    }
    *(fy_proof_stage *)object = s.stage;
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
    FY_TRY(fy_check_memory(coordinates != NULL, "the coordinates of a rule", error));
    if (n == 0) {
        return fy_json_fail(place, error, "must name at least one coordinate");
    }
    for (size_t i = 0; i < n; i++) {
        fy_json_place inner = {.parent = place, .index = i};
        const json_t *value = is_list ? json_array_get(json, i) : json;
        int64_t coordinate;
        FY_TRY(fy_json_get_integer(value, is_list ? &inner : place, -size, size - 1, &coordinate,
                                   error));
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

static ferry_status read_pins(const json_t *json, const fy_json_place *place, void *object,
                              void *context, ferry_error *error)
{
    const side_reading *r = context;
    fy_proof_rule *rule = object;
    if (!json_is_object(json)) {
        return fy_json_fail(place, error, "must be an object");
    }
    fy_proof_pin *pins = fy_arena_alloc(&r->spec->arena, json_object_size(json), sizeof *pins);
    FY_TRY(fy_check_memory(pins != NULL, "the coordinates of a rule", error));
    for (void *i = json_object_iter((json_t *)json); i != NULL;
         i = json_object_iter_next((json_t *)json, i)) {
        const char *axis = json_object_iter_key(i);
        fy_json_place inner = {.parent = place, .key = axis};
        fy_proof_pin *pin = &pins[rule->n_pins++];
        *pin = (fy_proof_pin){0};
        FY_TRY(fy_proof_read_axis(r->mesh, axis, &inner, &rule->axes, &pin->axis, error));
        FY_TRY(read_pin(r->spec, r->mesh, json_object_iter_value(i), &inner, pin, error));
    }
    rule->pins = pins;
    return FERRY_OK;
}

static ferry_status read_cuts(const json_t *json, const fy_json_place *place, void *object,
                              void *context, ferry_error *error)
{
    const side_reading *r = context;
    fy_proof_rule *rule = object;
    FY_TRY(fy_json_expect_array(json, place, error));
    size_t n = json_array_size(json);
    fy_proof_cut *cuts = fy_arena_alloc(&r->spec->arena, n, sizeof *cuts);
    FY_TRY(fy_check_memory(cuts != NULL, "the cuts of a rule", error));
    for (size_t i = 0; i < n; i++) {
        fy_json_place inner = {.parent = place, .index = i};
        cuts[i] = (fy_proof_cut){0};
        FY_TRY(fy_proof_read_cut(r->spec, r->mesh, json_array_get(json, i), &inner, false,
                                 &rule->axes, &cuts[i], error));
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

static ferry_status read_flat(const json_t *json, const fy_json_place *place, void *object,
                              void *context, ferry_error *error)
{
    const side_reading *r = context;
    fy_proof_rule *rule = object;
    fy_proof_cut *flat = fy_arena_alloc(&r->spec->arena, 1, sizeof *flat);
    FY_TRY(fy_check_memory(flat != NULL, "the flat cut of a rule", error));
    rule->flat = flat;
    return fy_proof_read_cut(r->spec, r->mesh, json, place, true, &rule->axes, flat, error);
}

/* The rule comes first: the other readers fill it in. */
typedef struct rule_json {
    fy_proof_rule rule;
    fy_proof_cast_json said;
    const json_t *quantize, *dequantize;
} rule_json;

static ferry_status read_rule(const json_t *json, const fy_json_place *place, void *object,
                              void *context, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"match", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(rule_json, rule.match)},
        {"shard", FY_JSON_READ, .read = read_cuts},
        {"flat", FY_JSON_READ, .read = read_flat},
        {"on", FY_JSON_READ, .read = read_pins},
        {"skip", FY_JSON_BOOL, .offset = offsetof(rule_json, rule.skip)},
        FY_PROOF_CAST_FIELDS(rule_json, said),
        {"quantize", FY_JSON_VALUE, .offset = offsetof(rule_json, quantize)},
        {"dequantize", FY_JSON_VALUE, .offset = offsetof(rule_json, dequantize)},
        {.key = NULL}};
    const side_reading *r = context;
    rule_json own = {.said = {.dtype = NULL}};
    bool is_source = r->mesh == &r->spec->sides[FY_PROOF_SOURCE].mesh;
    FY_TRY(fy_json_read(json, place, fields, &own, context, error));
    if (is_source && own.said.dtype != NULL) {
        return fy_json_fail(place, error, "says a dtype at the source, which has what it has");
    }
    FY_TRY(fy_proof_cast_read(&own.said, place, is_source ? FY_PROOF_SOURCE : FY_PROOF_DESTINATION,
                              &own.rule.dtype, &own.rule.cast, error));
    if (own.quantize != NULL) {
        fy_json_place inner = {.parent = place, .key = "quantize"};
        if (is_source || own.rule.cast.is_said) {
            return fy_json_fail(&inner, error, "stands at the source, or beside a cast");
        }
        FY_TRY(fy_proof_quantize_read(r->spec, own.quantize, &inner, &own.rule.quantize, error));
    }
    if (own.dequantize != NULL) {
        fy_json_place inner = {.parent = place, .key = "dequantize"};
        if (is_source || own.rule.cast.is_said || own.quantize != NULL) {
            return fy_json_fail(&inner, error, "stands at the source, or beside a cast");
        }
        FY_TRY(fy_proof_codes_read(r->spec, own.dequantize, &inner, &own.rule.codes, error));
    }
    *(fy_proof_rule *)object = own.rule;
    return FERRY_OK;
}

typedef struct side_json {
    const json_t *mesh, *first_rank, *ranks, *stages, *rules;
} side_json;

ferry_status fy_proof_read_side(fy_proof_spec *spec, const json_t *json, const fy_json_place *place,
                                fy_proof_side *side, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"mesh", FY_JSON_VALUE, FY_JSON_NEEDED, .offset = offsetof(side_json, mesh)},
        {"first_rank", FY_JSON_VALUE, .offset = offsetof(side_json, first_rank)},
        {"ranks", FY_JSON_VALUE, .offset = offsetof(side_json, ranks)},
        {"stages", FY_JSON_VALUE, .offset = offsetof(side_json, stages)},
        {"rules", FY_JSON_VALUE, .offset = offsetof(side_json, rules)},
        {.key = NULL}};
    side_reading r = {.spec = spec, .mesh = &side->mesh};
    side_json s = {NULL, NULL, NULL, NULL, NULL};
    fy_json_place stages = {.parent = place, .key = "stages"};
    fy_json_place rules = {.parent = place, .key = "rules"};
    FY_TRY(fy_json_read(json, place, fields, &s, NULL, error));
    FY_TRY(fy_proof_read_mesh(spec, s.mesh, s.ranks, s.first_rank, place, &side->mesh, error));
    if (s.stages != NULL) {
        FY_TRY(fy_json_read_items(s.stages, &stages, read_stage, &r, &spec->arena,
                                  sizeof *side->stages, "the stages", &side->stages,
                                  &side->n_stages, error));
    }
    return s.rules == NULL ? FERRY_OK
                           : fy_json_read_items(s.rules, &rules, read_rule, &r, &spec->arena,
                                                sizeof *side->rules, "the rules", &side->rules,
                                                &side->n_rules, error);
}
