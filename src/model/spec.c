/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/spec.h"

#include "base/checked.h"
#include "base/sort.h"

#include <stdlib.h>
#include <string.h>

void ferry_spec_destroy(ferry_spec *spec)
{
    if (spec != NULL &&
        atomic_fetch_sub_explicit(&spec->references, 1, memory_order_acq_rel) == 1) {
        fy_free(spec->text);
        fy_free(spec->tensors);
        fy_index_cleanup(&spec->names);
        fy_arena_cleanup(&spec->arena);
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

static ferry_status parse_rate(const json_t *json, const fy_json_place *place, const char *key,
                               double *rate_out, ferry_error *error)
{
    const json_t *value = json_object_get(json, key);
    if (value == NULL) {
        return FERRY_OK;
    }
    fy_json_place at = {.parent = place, .key = key};
    ferry_status status = fy_json_get_positive(value, &at, rate_out, error);
    if (status == FERRY_OK && (*rate_out < LEAST_RATE || *rate_out > MOST_RATE)) {
        status =
            fy_json_fail(&at, error, "must be %g to %g, not %g", LEAST_RATE, MOST_RATE, *rate_out);
    }
    *rate_out *= GIGA;
    return status;
}

static ferry_status parse_override(const json_t *json, const fy_json_place *place,
                                   fy_node_rate *rate, ferry_error *error)
{
    static const char *const keys[] = {"rank_gbytes_per_s", "node_gbytes_per_s", NULL};
    char *end;
    unsigned long node = strtoul(place->key, &end, 10);
    if (*place->key < '0' || *place->key > '9' || *end != '\0' || node >= FERRY_MAX_RANKS ||
        (place->key[0] == '0' && place->key[1] != '\0')) {
        return fy_json_fail(place, error, "must be named by the number of a node below %u",
                            FERRY_MAX_RANKS);
    }
    rate->node = (uint32_t)node;
    ferry_status status = fy_json_expect_object(json, place, keys, error);
    if (status == FERRY_OK) {
        status = parse_rate(json, place, "rank_gbytes_per_s", &rate->rank_rate, error);
    }
    if (status == FERRY_OK) {
        status = parse_rate(json, place, "node_gbytes_per_s", &rate->node_rate, error);
    }
    return status;
}

static ferry_status parse_overrides(ferry_spec *spec, const json_t *json,
                                    const fy_json_place *place, ferry_error *error)
{
    fy_cluster *cluster = &spec->cluster;
    if (!json_is_object(json)) {
        return fy_json_fail(place, error, "must be an object from node numbers to rates");
    }
    cluster->overrides =
        fy_arena_alloc(&spec->arena, json_object_size(json), sizeof *cluster->overrides);
    if (cluster->overrides == NULL) {
        return fy_fail_no_memory(error, "the cluster");
    }
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)json, key, value) {
        fy_node_rate *rate = &cluster->overrides[cluster->n_overrides++];
        fy_json_place at = {.parent = place, .key = key};
        *rate = (fy_node_rate){.rank_rate = cluster->rank_rate, .node_rate = cluster->node_rate};
        ferry_status status = parse_override(value, &at, rate, error);
        if (status != FERRY_OK) {
            return status;
        }
    }
    fy_sort(cluster->overrides, cluster->n_overrides, sizeof *cluster->overrides,
            compare_overrides);
    return FERRY_OK;
}

static ferry_status parse_latency(const json_t *json, const fy_json_place *place,
                                  double *seconds_out, ferry_error *error)
{
    const json_t *value = json_object_get(json, "latency_us");
    if (value == NULL) {
        return FERRY_OK;
    }
    fy_json_place at = {.parent = place, .key = "latency_us"};
    if (!json_is_number(value) || !(json_number_value(value) >= 0) ||
        json_number_value(value) > 1e12) {
        return fy_json_fail(&at, error, "must be a number of microseconds, at least 0");
    }
    *seconds_out = json_number_value(value) * 1e-6;
    return FERRY_OK;
}

ferry_status fy_spec_parse_cluster(ferry_spec *spec, const json_t *json, const fy_json_place *place,
                                   ferry_error *error)
{
    static const char *const keys[] = {
        "ranks_per_node", "rank_gbytes_per_s", "node_gbytes_per_s", "latency_us", "nodes", NULL};
    fy_cluster *cluster = &spec->cluster;
    const json_t *member;
    uint64_t ranks_per_node = 0;
    ferry_status status = fy_json_expect_object(json, place, keys, error);
    if (status == FERRY_OK) {
        status = fy_json_member(json, place, "ranks_per_node", &member, error);
    }
    if (status == FERRY_OK) {
        fy_json_place at = {.parent = place, .key = "ranks_per_node"};
        status = fy_json_get_size(member, &at, 1, FERRY_MAX_RANKS, &ranks_per_node, error);
    }
    for (size_t i = 1; i <= 2 && status == FERRY_OK; i++) {
        status = fy_json_member(json, place, keys[i], &member, error);
        if (status == FERRY_OK) {
            double *rate = i == 1 ? &cluster->rank_rate : &cluster->node_rate;
            status = parse_rate(json, place, keys[i], rate, error);
        }
    }
    if (status == FERRY_OK) {
        status = parse_latency(json, place, &cluster->latency_s, error);
    }
    member = json_object_get(json, "nodes");
    if (status == FERRY_OK && member != NULL) {
        fy_json_place at = {.parent = place, .key = "nodes"};
        status = parse_overrides(spec, member, &at, error);
    }
    cluster->ranks_per_node = (uint32_t)ranks_per_node;
    cluster->present = true;
    return status;
}

static ferry_status check_format(const json_t *root, const fy_json_place *place, ferry_error *error)
{
    static const char *const keys[] = {"format",      "tensors", "model", "source",
                                       "destination", "cluster", NULL};
    const json_t *member;
    const char *format;
    fy_json_place at = {.parent = place, .key = "format"};
    ferry_status status = fy_json_expect_object(root, place, keys, error);
    if (status == FERRY_OK) {
        status = fy_json_member(root, place, "format", &member, error);
    }
    if (status == FERRY_OK) {
        status = fy_json_get_string(member, &at, &format, error);
    }
    if (status == FERRY_OK && strcmp(format, "ferry.spec/1") != 0) {
        status = fy_json_fail(&at, error, "is \"%s\"; this version reads ferry.spec/1", format);
    }
    return status;
}

static ferry_status parse_sides(ferry_spec *spec, const json_t *root, const fy_json_place *place,
                                ferry_error *error)
{
    fy_side *sides[2] = {&spec->source, &spec->destination};
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < 2 && status == FERRY_OK; i++) {
        const json_t *member;
        fy_json_place at = {.parent = place, .key = sides[i]->name};
        status = fy_json_member(root, place, sides[i]->name, &member, error);
        if (status == FERRY_OK) {
            status = fy_spec_parse_side(spec, member, &at, sides[i], error);
        }
    }
    return status;
}

static ferry_status parse_members(ferry_spec *spec, const json_t *root, const fy_json_place *place,
                                  ferry_error *error)
{
    const json_t *member;
    fy_json_place tensors = {.parent = place, .key = "tensors"};
    fy_json_place cluster = {.parent = place, .key = "cluster"};
    ferry_status status = check_format(root, place, error);
    if (status == FERRY_OK && json_object_get(root, "model") != NULL) {
        fy_json_place model = {.parent = place, .key = "model"};
        status = json_object_get(root, "tensors") != NULL
                     ? fy_json_fail(&model, error, "and tensors exclude each other")
                     : fy_json_fail(&model, error,
                                    "names a file, which only a spec that is loaded "
                                    "from a file can do; use ferry_spec_load");
    }
    if (status == FERRY_OK) {
        status = fy_json_member(root, place, "tensors", &member, error);
    }
    if (status == FERRY_OK) {
        status = fy_spec_parse_tensors(spec, member, &tensors, error);
    }
    if (status == FERRY_OK) {
        status = parse_sides(spec, root, place, error);
    }
    member = json_object_get(root, "cluster");
    if (status == FERRY_OK && member != NULL) {
        status = fy_spec_parse_cluster(spec, member, &cluster, error);
    }
    return status;
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
    if (spec == NULL) {
        return fy_fail_no_memory(error, "a spec");
    }
    ferry_status status = parse_members(spec, root, &place, error);
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
    if (text == NULL || spec_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_spec_parse needs a text and a place for the result");
    }
    json_t *root;
    const char *known = name == NULL ? "spec" : name;
    ferry_spec *spec = NULL;
    ferry_status status = fy_json_parse(text, length, known, &root, error);
    if (status != FERRY_OK) {
        return status;
    }
    status = fy_spec_from_json(root, known, &spec, error);
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
