/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* One rule of a side: which axes cut which dimensions, and how. */
#include "model/spec.h"

#include "base/checked.h"
#include "base/sort.h"

#include <stdlib.h>
#include <string.h>

static ferry_status check_parts(uint64_t n_parts, uint32_t n_ranks, const fy_json_place *place,
                                ferry_error *error)
{
    if (n_ranks % n_parts != 0) {
        return fy_json_fail(place, error, "%llu does not divide the %u ranks along the axis",
                            (unsigned long long)n_parts, n_ranks);
    }
    return FERRY_OK;
}

static ferry_status parse_block(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    const fy_shard *shard = context;
    fy_split_block *block = object;
    uint64_t n_parts;
    block->n_parts = shard->n_parts;
    if (!json_is_array(json)) {
        return fy_json_get_size(json, place, 0, INT64_MAX, &block->size, error);
    }
    if (json_array_size(json) != 2) {
        return fy_json_fail(place, error, "must be a size or a pair of a size and its parts");
    }
    fy_json_place size_at = {.parent = place, .index = 0};
    fy_json_place parts_at = {.parent = place, .index = 1};
    const json_t *parts = json_array_get(json, 1);
    FY_TRY(fy_json_get_size(json_array_get(json, 0), &size_at, 0, INT64_MAX, &block->size, error));
    FY_TRY(fy_json_get_size(parts, &parts_at, 1, FERRY_MAX_RANKS, &n_parts, error));
    block->n_parts = (uint32_t)n_parts;
    return check_parts(n_parts, shard->n_ranks, &parts_at, error);
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

static ferry_status parse_axes(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    const fy_side_reading *reading = context;
    const fy_side *side = reading->side;
    fy_shard *shard = object;
    bool is_list = json_is_array(json);
    size_t n = is_list ? json_array_size(json) : 1;
    uint64_t product = 1;
    if (!is_list && !json_is_string(json)) {
        return fy_json_fail(place, error, "must be the name of an axis, or an array of such names");
    }
    if (n == 0 || n > side->n_axes) {
        return fy_json_fail(place, error, "lists %zu axes of a mesh of %u", n, side->n_axes);
    }
    shard->n_axes = (uint32_t)n;
    shard->axes = fy_arena_alloc(&reading->spec->arena, n, sizeof *shard->axes);
    FY_TRY(fy_check_memory(shard->axes != NULL, "a rule", error));
    for (size_t i = 0; i < n; i++) {
        fy_json_place at = {.parent = place, .index = i};
        FY_TRY(fy_spec_parse_axis_name(is_list ? json_array_get(json, i) : json,
                                       is_list ? &at : place, &shard->axes[i], context, error));
        product *= side->axes[shard->axes[i]].size; /* an axis twice is found later */
        if (product > FERRY_MAX_RANKS) {
            return fy_json_fail(place, error, "has more than %u ranks", FERRY_MAX_RANKS);
        }
    }
    shard->n_ranks = shard->n_parts = (uint32_t)product;
    return FERRY_OK;
}

/* At most one of the keys that say how to cut. */
static ferry_status choose_cut(fy_shard *shard, fy_cut_kind cut, const fy_json_place *place,
                               ferry_error *error)
{
    static const char *const keys[] = {
        [FY_CUT_STRIDE] = "stride", [FY_CUT_CYCLE] = "cycle", [FY_CUT_BLOCKS] = "blocks"};
    if (shard->cut == FY_CUT_NESTED) {
        fy_json_place at = {.parent = place->parent, .key = "nested"};
        return fy_json_fail(&at, error, "allows no stride, blocks, sizes, cycle or parts");
    }
    if (shard->cut != FY_CUT_EVEN) {
        return fy_json_fail(place->parent, error, "has both \"%s\" and \"%s\"; use one",
                            keys[shard->cut], place->key);
    }
    shard->cut = cut;
    return FERRY_OK;
}

static ferry_status parse_nested(const json_t *json, const fy_json_place *place, void *object,
                                 void *context, ferry_error *error)
{
    fy_shard *shard = object;
    bool nested = false;
    (void)context;
    FY_TRY(fy_json_get_bool(json, place, &nested, error));
    shard->cut = nested ? FY_CUT_NESTED : FY_CUT_EVEN;
    return FERRY_OK;
}

static ferry_status parse_parts(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    fy_shard *shard = object;
    uint64_t n_parts;
    (void)context;
    FY_TRY(choose_cut(shard, FY_CUT_EVEN, place, error));
    FY_TRY(fy_json_get_size(json, place, 1, FERRY_MAX_RANKS, &n_parts, error));
    shard->n_parts = (uint32_t)n_parts;
    return check_parts(n_parts, shard->n_ranks, place, error);
}

static ferry_status parse_stride(const json_t *json, const fy_json_place *place, void *object,
                                 void *context, ferry_error *error)
{
    fy_shard *shard = object;
    (void)context;
    FY_TRY(choose_cut(shard, FY_CUT_STRIDE, place, error));
    return fy_json_get_size(json, place, 1, INT64_MAX, &shard->length, error);
}

static ferry_status parse_cycle(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    fy_shard *shard = object;
    (void)context;
    FY_TRY(choose_cut(shard, FY_CUT_CYCLE, place, error));
    return fy_json_get_size(json, place, 1, INT64_MAX, &shard->length, error);
}

static ferry_status parse_blocks(const json_t *json, const fy_json_place *place, void *object,
                                 void *context, ferry_error *error)
{
    const fy_side_reading *reading = context;
    fy_shard *shard = object;
    FY_TRY(choose_cut(shard, FY_CUT_BLOCKS, place, error));
    FY_TRY(fy_json_read_items(json, place, parse_block, shard, &reading->spec->arena,
                              sizeof *shard->blocks, "blocks", &shard->blocks, &shard->n_values,
                              error));
    settle_block_parts(shard);
    return FERRY_OK;
}

static ferry_status parse_sizes(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    const fy_side_reading *reading = context;
    fy_shard *shard = object;
    FY_TRY(choose_cut(shard, FY_CUT_SIZES, place, error));
    FY_TRY(fy_json_read_sizes(json, place, 0, INT64_MAX, &reading->spec->arena, "sizes",
                              &shard->sizes, &shard->n_values, error));
    if (shard->n_values != shard->n_parts) {
        return fy_json_fail(place, error, "has %zu entries, but there are %u parts",
                            shard->n_values, shard->n_parts);
    }
    return FERRY_OK;
}

static ferry_status parse_unit(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    fy_shard *shard = object;
    (void)context;
    FY_TRY(fy_json_get_size(json, place, 1, INT64_MAX, &shard->unit, error));
    if (shard->cut == FY_CUT_SIZES || shard->cut == FY_CUT_CYCLE) {
        return fy_json_fail(place, error, "cannot be combined with sizes or cycle");
    }
    return FERRY_OK;
}

static ferry_status parse_shard(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"dim", FY_JSON_U32, FY_JSON_NEEDED, .offset = offsetof(fy_shard, dim), .least = 0,
         .most = INT32_MAX},
        {"axis", FY_JSON_READ, FY_JSON_NEEDED, .read = parse_axes},
        {"nested", FY_JSON_READ, .read = parse_nested},
        {"parts", FY_JSON_READ, .read = parse_parts},
        {"stride", FY_JSON_READ, .read = parse_stride},
        {"cycle", FY_JSON_READ, .read = parse_cycle},
        {"blocks", FY_JSON_READ, .read = parse_blocks},
        {"sizes", FY_JSON_READ, .read = parse_sizes},
        {"unit", FY_JSON_READ, .read = parse_unit},
        {.key = NULL}};
    ((fy_shard *)object)->unit = 1;
    return fy_json_read(json, place, fields, object, context, error);
}

static ferry_status parse_shards(const json_t *json, const fy_json_place *place, void *object,
                                 void *context, ferry_error *error)
{
    fy_rule *rule = object;
    if (json_array_size(json) > FERRY_MAX_DIMS) {
        return fy_json_fail(place, error, "has %zu entries; tensors have at most %d dimensions",
                            json_array_size(json), FERRY_MAX_DIMS);
    }
    FY_TRY(fy_json_read_items(json, place, parse_shard, context,
                              &((fy_side_reading *)context)->spec->arena, sizeof *rule->shards,
                              "a rule", &rule->shards, &rule->n_shards, error));
    for (size_t i = 0; i < rule->n_shards; i++) {
        for (size_t j = 0; j < i; j++) {
            if (rule->shards[j].dim == rule->shards[i].dim) {
                fy_json_place at = {.parent = place, .index = i};
                return fy_json_fail(&at, error, "cuts dim %u again", rule->shards[i].dim);
            }
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

static ferry_status parse_flat_sizes(const json_t *json, const fy_json_place *place, void *object,
                                     void *context, ferry_error *error)
{
    const fy_side_reading *reading = context;
    fy_rule *rule = object;
    const fy_axis *axis = &reading->side->axes[rule->flat_axis];
    uint64_t *lengths = NULL;
    size_t n = 0;
    FY_TRY(fy_json_read_sizes(json, place, 0, INT64_MAX, &reading->spec->arena, "sizes", &lengths,
                              &n, error));
    if (n != axis->size) {
        return fy_json_fail(place, error, "has %zu entries, but axis \"%s\" has %u", n, axis->name,
                            axis->size);
    }
    rule->flat_begin = add_up_sizes(&reading->spec->arena, lengths, n);
    return fy_check_memory(rule->flat_begin != NULL, "a rule", error);
}

static ferry_status parse_flat(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    static const fy_json_field fields[] = {{"axis", FY_JSON_READ, FY_JSON_NEEDED,
                                            offsetof(fy_rule, flat_axis),
                                            .read = fy_spec_parse_axis_name},
                                           {"sizes", FY_JSON_READ, .read = parse_flat_sizes},
                                           {.key = NULL}};
    ((fy_rule *)object)->is_flat = true;
    return fy_json_read(json, place, fields, object, context, error);
}

static ferry_status parse_coordinate(const fy_side *side, const json_t *json,
                                     const fy_json_place *place, fy_pin *pin, ferry_error *error)
{
    int64_t size = side->axes[pin->axis].size;
    int64_t value;
    FY_TRY(fy_json_get_integer(json, place, -size, size - 1, &value, error));
    pin->coordinates[pin->n_coordinates++] = (uint32_t)(value < 0 ? value + size : value);
    return FERRY_OK;
}

/* Ascending, so that the replicas of a tensor come in the order of the mesh. */
static ferry_status settle_coordinates(fy_pin *pin, const fy_json_place *place, ferry_error *error)
{
    fy_sort(pin->coordinates, pin->n_coordinates, sizeof *pin->coordinates, fy_compare_u32);
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
    FY_TRY(fy_check_memory(pin->coordinates != NULL, "a rule", error));
    for (size_t i = 0; i < n; i++) {
        fy_json_place at = {.parent = place, .index = i};
        FY_TRY(parse_coordinate(side, is_list ? json_array_get(json, i) : json,
                                is_list ? &at : place, pin, error));
    }
    pin->n_coordinates = is_one ? 1 : pin->n_coordinates;
    return settle_coordinates(pin, place, error);
}

static ferry_status parse_pins(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    const fy_side_reading *reading = context;
    fy_rule *rule = object;
    const char *key;
    json_t *value;
    if (!json_is_object(json)) {
        return fy_json_fail(place, error, "must be an object from axes to coordinates");
    }
    rule->pins = fy_arena_alloc(&reading->spec->arena, json_object_size(json), sizeof *rule->pins);
    FY_TRY(fy_check_memory(rule->pins != NULL, "a rule", error));
    json_object_foreach ((json_t *)json, key, value) {
        fy_pin *pin = &rule->pins[rule->n_pins++];
        fy_json_place at = {.parent = place, .key = key};
        json_t *name = json_string(key);
        *pin = (fy_pin){0};
        ferry_status status = fy_check_memory(name != NULL, "a rule", error);
        FY_THEN(status, fy_spec_parse_axis_name(name, place, &pin->axis, context, error));
        json_decref(name);
        FY_TRY(status);
        FY_TRY(parse_pin(reading->spec, reading->side, value, &at, pin, error));
    }
    return FERRY_OK;
}

/* An axis has one use in a rule. Uses by stages are checked per tensor. */
static ferry_status check_axes(const fy_side *side, const fy_rule *rule, const fy_json_place *place,
                               ferry_error *error)
{
    uint32_t uses[FY_MAX_AXES] = {0};
    for (size_t i = 0; i < rule->n_shards; i++) {
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

static ferry_status parse_match(const json_t *json, const fy_json_place *place, void *object,
                                void *context, ferry_error *error)
{
    const fy_side_reading *reading = context;
    fy_rule *rule = object;
    FY_TRY(fy_json_get_string(json, place, &rule->match, error));
    rule->match_length = strlen(rule->match);
    rule->match = fy_arena_copy(&reading->spec->arena, rule->match, rule->match_length);
    FY_TRY(fy_check_memory(rule->match != NULL, "a rule", error));
    const char *star = strrchr(rule->match, '*');
    const char *tail = star == NULL ? rule->match : star + 1;
    rule->tail_length = strchr(tail, '?') == NULL ? strlen(tail) : 0;
    return FERRY_OK;
}

/* What its tensors become on their way: only of a destination. */
static ferry_status settle_cast(const fy_side_reading *reading, const json_t *json,
                                const fy_json_place *place, fy_rule *rule, ferry_error *error)
{
    static const char *const keys[] = {"dtype", "cast", "scale", "add", "quantize", "dequantize"};
    const json_t *quantize = json_object_get(json, "quantize");
    const json_t *dequantize = json_object_get(json, "dequantize");
    fy_json_place at = {.parent = place, .key = "quantize"};
    fy_json_place back = {.parent = place, .key = "dequantize"};
    for (size_t i = 0; i < 6 && reading->side == &reading->spec->source; i++) {
        if (json_object_get(json, keys[i]) != NULL) {
            return fy_json_fail(place, error,
                                "has \"%s\", but a source holds tensors as they are; say at the "
                                "destination what they become",
                                keys[i]);
        }
    }
    FY_TRY(fy_cast_finish(json, place, &rule->cast, error));
    if (dequantize != NULL && !fy_blocks_take(rule->dtype)) {
        return fy_json_fail(place, error,
                            "dequantizes, and must say what to: \"dtype\" f32, f16 or bf16");
    }
    if (dequantize != NULL) {
        return fy_codes_read(dequantize, &back, &reading->spec->arena, &rule->codes, error);
    }
    if (quantize == NULL) {
        return FERRY_OK;
    }
    FY_TRY(fy_blocks_read(quantize, &at, &reading->spec->arena, &rule->blocks, error));
    if (rule->dtype.kind != 0 && rule->dtype.kind != rule->blocks->codes.kind) {
        return fy_json_fail(place, error, "has another dtype than that of its codes");
    }
    return FERRY_OK;
}

ferry_status fy_spec_parse_rule(const json_t *json, const fy_json_place *place, void *rule,
                                void *reading, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"match", FY_JSON_READ, FY_JSON_NEEDED, .read = parse_match},
        {"shard", FY_JSON_READ, .read = parse_shards},
        {"flat", FY_JSON_READ, .read = parse_flat},
        {"on", FY_JSON_READ, .read = parse_pins},
        {"skip", FY_JSON_BOOL, .offset = offsetof(fy_rule, skip)},
        {"dtype", FY_JSON_READ, .offset = offsetof(fy_rule, dtype), .read = fy_dtype_parse_json},
        {"cast", FY_JSON_READ, .offset = offsetof(fy_rule, cast), .read = fy_cast_parse_word},
        {"scale", FY_JSON_READ, .offset = offsetof(fy_rule, cast), .read = fy_cast_parse_scale},
        {"add", FY_JSON_READ, .offset = offsetof(fy_rule, cast), .read = fy_cast_parse_add},
        {.key = "quantize", .type = FY_JSON_UNREAD},
        {.key = "dequantize", .type = FY_JSON_UNREAD},
        {.key = NULL}};
    FY_TRY(fy_json_read(json, place, fields, rule, reading, error));
    FY_TRY(settle_cast(reading, json, place, rule, error));
    return check_axes(((fy_side_reading *)reading)->side, rule, place, error);
}
