/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/spec.h"

#include "base/checked.h"
#include "base/sort.h"
#include "model/memory.h"

#include <stdlib.h>
#include <string.h>

void ferry_spec_destroy(ferry_spec *spec)
{
    if (spec != NULL &&
        atomic_fetch_sub_explicit(&spec->references, 1, memory_order_acq_rel) == 1) {
        fy_memory_destroy(spec->source.memory);
        fy_memory_destroy(spec->destination.memory);
        ferry_side_destroy(spec->source.boxes);
        ferry_side_destroy(spec->destination.boxes);
        fy_free(spec->text);
        fy_free(spec->tensors);
        fy_index_cleanup(&spec->names);
        fy_arena_cleanup(&spec->arena);
        ferry_spec_destroy((ferry_spec *)spec->base);
        fy_free(spec);
    }
}

const ferry_spec *fy_spec_retain(const ferry_spec *spec)
{
    atomic_fetch_add_explicit(&((ferry_spec *)spec)->references, 1, memory_order_relaxed);
    return spec;
}

size_t ferry_spec_tensor_count(const ferry_spec *spec)
{
    return spec == NULL ? 0 : spec->n_tensors;
}

uint32_t fy_spec_find_tensor(const ferry_spec *spec, const char *name)
{
    fy_index_cursor c = fy_index_first(&spec->names, fy_hash64(name, strlen(name)));
    while (c.value != FY_INDEX_NONE && strcmp(spec->tensors[c.value].name, name) != 0) {
        fy_index_next(&spec->names, &c);
    }
    return c.value;
}

static int compare_overrides(const void *a, const void *b)
{
    uint32_t x = ((const fy_node_rate *)a)->node, y = ((const fy_node_rate *)b)->node;
    return (x > y) - (x < y);
}

enum { GIGA = 1000000000 };

/* In 10^9 bytes/s. Sums and quotients of rates in between stay far from the ends of doubles. */
static const double LEAST_RATE = 1e-9, MOST_RATE = 1e12;

static ferry_status parse_rate(const json_t *json, const fy_json_place *place, void *object,
                               void *context, ferry_error *error)
{
    double rate = 0;
    (void)context;
    FY_TRY(fy_json_get_positive(json, place, &rate, error));
    if (rate < LEAST_RATE || rate > MOST_RATE) {
        return fy_json_fail(place, error, "must be %g to %g, not %g", LEAST_RATE, MOST_RATE, rate);
    }
    *(double *)object = rate * GIGA;
    return FERRY_OK;
}

static ferry_status parse_override(const json_t *json, const fy_json_place *place,
                                   fy_node_rate *rate, ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"rank_gbytes_per_s", FY_JSON_READ, .offset = offsetof(fy_node_rate, rank_rate),
         .read = parse_rate},
        {"node_gbytes_per_s", FY_JSON_READ, .offset = offsetof(fy_node_rate, node_rate),
         .read = parse_rate},
        {.key = NULL}};
    char *end;
    unsigned long node = strtoul(place->key, &end, 10);
    if (*place->key < '0' || *place->key > '9' || *end != '\0' || node >= FERRY_MAX_RANKS ||
        (place->key[0] == '0' && place->key[1] != '\0')) {
        return fy_json_fail(place, error, "must be named by the number of a node below %u",
                            FERRY_MAX_RANKS);
    }
    rate->node = (uint32_t)node;
    return fy_json_read(json, place, fields, rate, NULL, error);
}

static ferry_status parse_overrides(const json_t *json, const fy_json_place *place, void *object,
                                    void *context, ferry_error *error)
{
    ferry_spec *spec = context;
    fy_cluster *cluster = object;
    if (!json_is_object(json)) {
        return fy_json_fail(place, error, "must be an object from node numbers to rates");
    }
    cluster->overrides =
        fy_arena_alloc(&spec->arena, json_object_size(json), sizeof *cluster->overrides);
    FY_TRY(fy_check_memory(cluster->overrides != NULL, "the cluster", error));
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)json, key, value) {
        fy_node_rate *rate = &cluster->overrides[cluster->n_overrides++];
        fy_json_place at = {.parent = place, .key = key};
        *rate = (fy_node_rate){.rank_rate = cluster->rank_rate, .node_rate = cluster->node_rate};
        FY_TRY(parse_override(value, &at, rate, error));
    }
    fy_sort(cluster->overrides, cluster->n_overrides, sizeof *cluster->overrides,
            compare_overrides);
    return FERRY_OK;
}

static ferry_status parse_latency(const json_t *json, const fy_json_place *place, void *object,
                                  void *context, ferry_error *error)
{
    (void)context;
    if (!json_is_number(json) || !(json_number_value(json) >= 0) ||
        json_number_value(json) > 1e12) {
        return fy_json_fail(place, error, "must be a number of microseconds, at least 0");
    }
    *(double *)object = json_number_value(json) * 1e-6;
    return FERRY_OK;
}

static ferry_status parse_cluster(const json_t *json, const fy_json_place *place, void *object,
                                  void *context, ferry_error *error)
{
    ferry_spec *spec = object;
    (void)context;
    static const fy_json_field fields[] = {
        {"ranks_per_node", FY_JSON_U32, FY_JSON_NEEDED,
         .offset = offsetof(fy_cluster, ranks_per_node), .least = 1, .most = FERRY_MAX_RANKS},
        {"rank_gbytes_per_s", FY_JSON_READ, FY_JSON_NEEDED, offsetof(fy_cluster, rank_rate),
         .read = parse_rate},
        {"node_gbytes_per_s", FY_JSON_READ, FY_JSON_NEEDED, offsetof(fy_cluster, node_rate),
         .read = parse_rate},
        {"latency_us", FY_JSON_READ, .offset = offsetof(fy_cluster, latency_s),
         .read = parse_latency},
        {"nodes", FY_JSON_READ, .read = parse_overrides},
        {.key = NULL}};
    spec->cluster.present = true;
    return fy_json_read(json, place, fields, &spec->cluster, spec, error);
}

static ferry_status parse_format(const json_t *json, const fy_json_place *place, void *object,
                                 void *context, ferry_error *error)
{
    const char *format;
    (void)object;
    (void)context;
    FY_TRY(fy_json_get_string(json, place, &format, error));
    if (strcmp(format, "ferry.spec/1") != 0) {
        return fy_json_fail(place, error, "is \"%s\"; this version reads ferry.spec/1", format);
    }
    return FERRY_OK;
}

/* Loading a spec from a file has put the tensors of its model into it. */
static ferry_status refuse_model(const json_t *json, const fy_json_place *place, void *object,
                                 void *context, ferry_error *error)
{
    (void)json;
    (void)object;
    return fy_json_fail(place, error, "%s",
                        json_object_get(context, "tensors") != NULL
                            ? "and tensors exclude each other"
                            : "names a file, which only a spec that is loaded from a file can do; "
                              "use ferry_spec_load");
}

static ferry_status parse_tensors(const json_t *json, const fy_json_place *place, void *object,
                                  void *context, ferry_error *error)
{
    (void)context;
    return fy_spec_parse_tensors(object, json, place, error);
}

static ferry_status parse_source(const json_t *json, const fy_json_place *place, void *object,
                                 void *context, ferry_error *error)
{
    ferry_spec *spec = object;
    (void)context;
    return fy_spec_parse_side(spec, json, place, &spec->source, error);
}

static ferry_status parse_destination(const json_t *json, const fy_json_place *place, void *object,
                                      void *context, ferry_error *error)
{
    ferry_spec *spec = object;
    (void)context;
    return fy_spec_parse_side(spec, json, place, &spec->destination, error);
}

static ferry_status parse_members(ferry_spec *spec, json_t *root, const fy_json_place *place,
                                  ferry_error *error)
{
    static const fy_json_field fields[] = {
        {"format", FY_JSON_READ, FY_JSON_NEEDED, .read = parse_format},
        {"model", FY_JSON_READ, .read = refuse_model},
        {"tensors", FY_JSON_READ, FY_JSON_NEEDED, .read = parse_tensors},
        {"source", FY_JSON_READ, FY_JSON_NEEDED, .read = parse_source},
        {"destination", FY_JSON_READ, FY_JSON_NEEDED, .read = parse_destination},
        {"cluster", FY_JSON_READ, .read = parse_cluster},
        {.key = NULL}};
    return fy_json_read(root, place, fields, spec, root, error);
}

ferry_spec *fy_spec_new(void)
{
    ferry_spec *spec = fy_alloc_zeroed(1, sizeof *spec);
    if (spec != NULL) {
        atomic_init(&spec->references, 1);
        spec->source.name = "source";
        spec->destination.name = "destination";
    }
    return spec;
}

ferry_status fy_spec_from_json(const json_t *root, const char *name, ferry_spec **spec_out,
                               ferry_error *error)
{
    fy_json_place place = {.key = name};
    ferry_spec *spec = fy_spec_new();
    FY_TRY(fy_check_memory(spec != NULL, "a spec", error));
    ferry_status status = parse_members(spec, (json_t *)root, &place, error);
    if (status == FERRY_OK) {
        *spec_out = spec;
        spec = NULL;
    }
    ferry_spec_destroy(spec);
    return status;
}

ferry_status ferry_spec_parse(const char *text, size_t length, const char *name,
                              ferry_spec **spec_out, ferry_error *error)
{
    FY_TRY(fy_check_use(text != NULL && spec_out != NULL,
                        "ferry_spec_parse needs a text and a place for the result", error));
    json_t *root;
    const char *known = name == NULL ? "spec" : name;
    ferry_spec *spec = NULL;
    FY_TRY(fy_json_parse(text, length, known, &root, error));
    ferry_status status = fy_spec_from_json(root, known, &spec, error);
    if (status == FERRY_OK) {
        spec->text = fy_alloc(length + 1, 1);
        if (spec->text == NULL) {
            status = fy_fail_no_memory(error, "the text of a spec");
            goto out;
        }
        memcpy(spec->text, text, length);
        spec->text[length] = '\0';
        *spec_out = spec;
        spec = NULL;
    }
out:
    ferry_spec_destroy(spec);
    json_decref(root);
    return status;
}
