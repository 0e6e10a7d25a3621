/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A map in a spec: the text of the spec, with sources, is parsed as any other. */
#include "model/map.h"
#include "model/spec.h"

#include <string.h>

typedef struct applying {
    const ferry_map *map;
    const ferry_spec *spec;
    json_t *tensors; /* the new list */
    bool *is_wanted; /* by source of the map: a box of the spec is of it */
    uint32_t n_fed;  /* tensors that get a source, or are one as they are */
} applying;

static ferry_status no_memory(ferry_error *error)
{
    return fy_fail_no_memory(error, "the text of a spec");
}

/* Takes the value over. */
static bool set(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

static json_t *numbers_of(const uint64_t *numbers, uint32_t n)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < n && array != NULL; i++) {
        if (json_array_append_new(array, json_integer((json_int_t)numbers[i])) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    return array;
}

static json_t *tensor_of(const fy_tensor *tensor)
{
    char dtype[FERRY_DTYPE_TEXT_BYTES];
    json_t *json = json_object();
    ferry_dtype_format(tensor->dtype, dtype, sizeof dtype);
    if (json == NULL || !set(json, "name", json_string(tensor->name)) ||
        !set(json, "shape", numbers_of(tensor->shape, tensor->n_dims)) ||
        !set(json, "dtype", json_string(dtype))) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static json_t *box_of(const ferry_map *map, const fy_tensor *target, const fy_feed *feed)
{
    const fy_tensor *source = &map->sources.tensors[feed->tensor];
    uint32_t src_pad = feed->n_dims - source->n_dims, dst_pad = feed->n_dims - target->n_dims;
    json_t *json = json_object();
    if (json == NULL || !set(json, "tensor", json_string(source->name)) ||
        !set(json, "begin", numbers_of(feed->begin + src_pad, source->n_dims)) ||
        !set(json, "shape", numbers_of(feed->shape + src_pad, source->n_dims)) ||
        !set(json, "at", numbers_of(feed->at + dst_pad, target->n_dims))) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static json_t *source_of(const ferry_map *map, const fy_tensor *target)
{
    if (fy_map_is_whole(map, target)) {
        return json_string(map->sources.tensors[target->feeds[0].tensor].name);
    }
    json_t *boxes = json_array();
    for (uint32_t i = 0; i < target->n_feeds && boxes != NULL; i++) {
        if (json_array_append_new(boxes, box_of(map, target, &target->feeds[i])) != 0) {
            json_decref(boxes);
            boxes = NULL;
        }
    }
    return boxes;
}

/* All of a source that has its name. */
static bool is_itself(const ferry_map *map, const fy_tensor *target)
{
    return fy_map_is_whole(map, target) &&
           strcmp(map->sources.tensors[target->feeds[0].tensor].name, target->name) == 0;
}

json_t *fy_map_target_entry(const ferry_map *map, uint32_t number)
{
    const fy_tensor *target = &map->targets.tensors[number];
    json_t *json = tensor_of(target);
    if (json != NULL && !is_itself(map, target) && !set(json, "source", source_of(map, target))) {
        json_decref(json);
        return NULL;
    }
    return json;
}

/* The target that gives a tensor of the spec its source; NULL: none does. */
static ferry_status find_target(applying *a, const fy_tensor *tensor, bool has_source,
                                const fy_tensor **target_out, ferry_error *error)
{
    uint32_t number = has_source ? FY_NONE : fy_map_find(&a->map->targets, tensor->name);
    *target_out = NULL;
    if (number == FY_NONE) {
        return FERRY_OK;
    }
    const fy_tensor *target = &a->map->targets.tensors[number];
    if (!fy_map_is_alike(tensor, target)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%s\" has another shape or type in the spec than as a target of the map",
                       tensor->name);
    }
    a->n_fed++;
    if (!is_itself(a->map, target)) {
        *target_out = target;
    }
    return FERRY_OK;
}

/* One tensor of an entry by itself; target NULL: without a source. */
static ferry_status add_tensor(applying *a, const fy_tensor *tensor, const json_t *entry,
                               const fy_tensor *target, ferry_error *error)
{
    json_t *json = tensor_of(tensor);
    json_t *only = json_object_get(entry, "only");
    if (json == NULL || (only != NULL && json_object_set(json, "only", only) != 0) ||
        (target != NULL && !set(json, "source", source_of(a->map, target)))) {
        json_decref(json);
        return no_memory(error);
    }
    for (uint32_t i = 0; target != NULL && i < target->n_feeds; i++) {
        a->is_wanted[target->feeds[i].tensor] = true;
    }
    return json_array_append_new(a->tensors, json) == 0 ? FERRY_OK : no_memory(error);
}

/* An entry stays as it is if none of its tensors gets a source, and else becomes its tensors. */
static ferry_status add_entry(applying *a, json_t *entry, uint32_t first, uint32_t n,
                              ferry_error *error)
{
    bool has_source = json_object_get(entry, "source") != NULL, any = false;
    const fy_tensor *target;
    for (uint32_t i = first; i < first + n; i++) {
        FY_TRY(find_target(a, &a->spec->tensors[i], has_source, &target, error));
        any = any || target != NULL;
    }
    if (!any) {
        return json_array_append(a->tensors, entry) == 0 ? FERRY_OK : no_memory(error);
    }
    for (uint32_t i = first; i < first + n; i++) {
        FY_TRY(find_target(a, &a->spec->tensors[i], has_source, &target, error));
        FY_TRY(add_tensor(a, &a->spec->tensors[i], entry, target, error));
    }
    return FERRY_OK;
}

/* How many tensors an entry of a spec that was parsed stands for. */
static uint32_t count_of(const json_t *entry)
{
    const json_t *counts = json_object_get(entry, "count");
    uint64_t n = 1;
    for (size_t i = 0; i < json_array_size(counts); i++) {
        n *= (uint64_t)json_integer_value(json_array_get(counts, i));
    }
    return (uint32_t)n;
}

static ferry_status add_entries(applying *a, const json_t *entries, ferry_error *error)
{
    uint32_t first = 0;
    for (size_t i = 0; i < json_array_size(entries); i++) {
        json_t *entry = json_array_get(entries, i);
        uint32_t n = count_of(entry);
        FY_TRY(add_entry(a, entry, first, n, error));
        first += n;
    }
    return a->n_fed > 0 ? FERRY_OK
                        : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                                  "no tensor of the spec is one of the %u targets of the map",
                                  a->map->targets.n);
}

/* A source that the spec has must be at its source side, as the map knows it. */
static ferry_status check_source(const applying *a, const fy_tensor *source,
                                 const fy_tensor *tensor, ferry_error *error)
{
    uint32_t number = fy_map_find(&a->map->targets, source->name);
    bool is_other = tensor->n_feeds > 0;
    if (number != FY_NONE && !is_itself(a->map, &a->map->targets.tensors[number])) {
        is_other = true;
    }
    if (is_other) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%s\" is a source of the map, and a tensor of the spec that is made of "
                       "others: a spec has one tensor of a name; rename one of them",
                       source->name);
    }
    return fy_map_is_alike(source, tensor)
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "\"%s\" has another shape or type in the spec than as a source of the map",
                         source->name);
}

static ferry_status add_sources(applying *a, ferry_error *error)
{
    for (uint32_t i = 0; i < a->map->sources.n; i++) {
        const fy_tensor *source = &a->map->sources.tensors[i];
        if (!a->is_wanted[i]) {
            continue;
        }
        uint32_t number = fy_spec_find_tensor(a->spec, source->name);
        if (number != FY_NONE) {
            FY_TRY(check_source(a, source, &a->spec->tensors[number], error));
            continue;
        }
        json_t *json = tensor_of(source);
        if (json == NULL || !set(json, "only", json_string("source")) ||
            json_array_append(a->tensors, json) != 0) {
            json_decref(json);
            return no_memory(error);
        }
        json_decref(json);
    }
    return FERRY_OK;
}

/* The text of a spec, which one that is made of sides has only when it is asked. */
typedef struct spec_text {
    char *bytes;
    size_t used, capacity;
} spec_text;

static int append(void *context, const char *bytes, size_t n_bytes)
{
    spec_text *text = context;
    if (!FY_RESERVE(text->bytes, text->capacity, text->used + n_bytes)) {
        return 1;
    }
    memcpy(text->bytes + text->used, bytes, n_bytes);
    text->used += n_bytes;
    return 0;
}

static ferry_status read_spec(const ferry_spec *spec, json_t **root_out, ferry_error *error)
{
    spec_text text = {.bytes = NULL};
    ferry_error inner;
    ferry_status status = ferry_spec_write_json(spec, append, &text, &inner);
    if (status == FERRY_ERR_IO) {
        status = no_memory(error); /* nothing else keeps it from being appended */
    } else {
        (void)fy_forward(error, status, &inner);
    }
    FY_THEN(status, fy_json_parse(text.bytes, text.used, "spec", root_out, error));
    fy_free(text.bytes);
    return status;
}

static ferry_status parse_changed(const json_t *root, ferry_spec **spec_out, ferry_error *error)
{
    char *text = NULL;
    FY_TRY(fy_json_dump(root, &text, error));
    ferry_status status = ferry_spec_parse(text, strlen(text), "spec", spec_out, error);
    fy_free(text);
    return status;
}

static ferry_status apply(applying *a, json_t *root, ferry_spec **spec_out, ferry_error *error)
{
    FY_TRY(add_entries(a, json_object_get(root, "tensors"), error));
    FY_TRY(add_sources(a, error));
    if (json_object_set(root, "tensors", a->tensors) != 0) {
        return no_memory(error);
    }
    return parse_changed(root, spec_out, error);
}

ferry_status ferry_map_apply(const ferry_map *map, const ferry_spec *spec, ferry_spec **spec_out,
                             ferry_error *error)
{
    FY_TRY(fy_map_check_finished(map, "ferry_map_apply", error));
    FY_TRY(fy_check_use(spec != NULL && spec_out != NULL,
                        "ferry_map_apply needs a spec, and a place for the result", error));
    applying a = {.map = map,
                  .spec = spec,
                  .tensors = json_array(),
                  .is_wanted = fy_alloc_zeroed(map->sources.n, sizeof *a.is_wanted)};
    json_t *root = NULL;
    ferry_status status = a.tensors != NULL && a.is_wanted != NULL ? FERRY_OK : no_memory(error);
    FY_THEN(status, read_spec(spec, &root, error));
    FY_THEN(status, apply(&a, root, spec_out, error));
    json_decref(root);
    json_decref(a.tensors);
    fy_free(a.is_wanted);
    return status;
}
