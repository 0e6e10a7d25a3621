/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Two maps as one, and a map backwards. Both make a map that is filled and finished as any other.
 */
#include "model/map.h"

#include <stdio.h>
#include <string.h>

/* A new map with the tensors of sides of others, in their order. */
static ferry_status begin_map(const fy_map_side *sources, const fy_map_side *targets,
                              ferry_map **map_out, ferry_error *error)
{
    ferry_map *map = NULL;
    FY_TRY(ferry_map_create(&map, error));
    ferry_status status = FERRY_OK;
    for (int s = 0; s < 2; s++) {
        const fy_map_side *from = s == 0 ? sources : targets;
        fy_map_side *to = s == 0 ? &map->sources : &map->targets;
        for (uint32_t i = 0; i < from->n && status == FERRY_OK; i++) {
            const fy_tensor *t = &from->tensors[i];
            status = fy_map_add_tensor(map, to, t->name, strlen(t->name), t->dtype, t->n_dims,
                                       t->shape, error);
        }
    }
    if (status != FERRY_OK) {
        ferry_map_destroy(map);
        return status;
    }
    *map_out = map;
    return FERRY_OK;
}

static ferry_status fail_middle(const ferry_map *second, const fy_tensor *target,
                                const fy_feed *feed, const fy_tensor *found, ferry_error *error)
{
    char box[200];
    const fy_tensor *wanted = &second->sources.tensors[feed->tensor];
    uint32_t pad = feed->n_dims - target->n_dims;
    fy_map_print_box(box, sizeof box, feed->at + pad, feed->shape + pad, target->n_dims);
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "\"%.200s\" of the second map is made of \"%.200s\" in its %s, %s", target->name,
                   wanted->name, box,
                   found == NULL ? "which is no target of the first map"
                                 : "which has another shape or type in the first map");
}

/* What each source of the second map is made of in the first, for those that boxes are of. */
static ferry_status find_middles(const ferry_map *first, const ferry_map *second, fy_made *made,
                                 ferry_error *error)
{
    for (uint32_t t = 0; t < second->targets.n; t++) {
        const fy_tensor *target = &second->targets.tensors[t];
        for (uint32_t i = 0; i < target->n_feeds; i++) {
            const fy_feed *feed = &target->feeds[i];
            const fy_tensor *wanted = &second->sources.tensors[feed->tensor];
            if (made[feed->tensor].feeds != NULL) {
                continue;
            }
            uint32_t number = fy_map_find(&first->targets, wanted->name);
            const fy_tensor *found = number == FY_NONE ? NULL : &first->targets.tensors[number];
            if (found == NULL || !fy_map_is_alike(found, wanted)) {
                return fail_middle(second, target, feed, found, error);
            }
            made[feed->tensor].feeds = found->feeds;
            made[feed->tensor].n_feeds = found->n_feeds;
        }
    }
    return FERRY_OK;
}

static uint32_t dims_of(const void *map, uint32_t tensor)
{
    return ((const ferry_map *)map)->sources.tensors[tensor].n_dims;
}

/* Tensors are in the order of a finished map, and their feeds canonical: the map is finished. */
static void finish_as_it_is(ferry_map *map)
{
    map->n_boxes = 0;
    for (uint32_t t = 0; t < map->targets.n; t++) {
        map->n_boxes += map->targets.tensors[t].n_feeds;
    }
    map->is_finished = true;
}

static ferry_status compose_targets(const ferry_map *second, fy_made *made, ferry_map *map,
                                    ferry_error *error)
{
    fy_composing composing = {
        .made = made, .origin_dims = dims_of, .context = map, .arena = &map->arena};
    for (uint32_t t = 0; t < second->targets.n; t++) {
        const fy_tensor *from = &second->targets.tensors[t];
        fy_tensor *to = &map->targets.tensors[t];
        FY_TRY(fy_compose_feeds(&composing, from->name, from->n_dims, from->feeds, from->n_feeds,
                                &to->feeds, &to->n_feeds, error));
    }
    finish_as_it_is(map);
    return FERRY_OK;
}

ferry_status ferry_map_compose(const ferry_map *first, const ferry_map *second, ferry_map **map_out,
                               ferry_error *error)
{
    FY_TRY(fy_map_check_finished(first, "ferry_map_compose", error));
    FY_TRY(fy_map_check_finished(second, "ferry_map_compose", error));
    FY_TRY(fy_check_use(map_out != NULL, "ferry_map_compose needs a place for the result", error));
    ferry_map *map = NULL;
    fy_made *made = fy_alloc_zeroed(second->sources.n, sizeof *made);
    ferry_status status = fy_check_memory(made != NULL, "a map", error);
    FY_THEN(status, find_middles(first, second, made, error));
    FY_THEN(status, begin_map(&first->sources, &second->targets, &map, error));
    FY_THEN(status, compose_targets(second, made, map, error));
    for (uint32_t i = 0; i < second->sources.n && made != NULL; i++) {
        fy_made_cleanup(&made[i]);
    }
    fy_free(made);
    if (status == FERRY_OK) {
        *map_out = map;
        map = NULL;
    }
    ferry_map_destroy(map);
    return status;
}

/* The boxes that lead to each source's elements, one source after the other. */
typedef struct inverting {
    const ferry_map *map;
    fy_feed *feeds; /* turned round: their tensor is the number of a target */
    size_t *first;  /* [n_sources + 1] */
    fy_box *boxes;
    fy_made *made; /* of targets: none is made of anything */
} inverting;

static void turn_round(inverting *v)
{
    const ferry_map *map = v->map;
    uint32_t n = map->sources.n;
    memset(v->first, 0, (n + 1u) * sizeof *v->first);
    for (uint32_t t = 0; t < map->targets.n; t++) {
        for (uint32_t i = 0; i < map->targets.tensors[t].n_feeds; i++) {
            v->first[map->targets.tensors[t].feeds[i].tensor + 1]++;
        }
    }
    for (uint32_t s = 0; s < n; s++) {
        v->first[s + 1] += v->first[s];
    }
    for (uint32_t t = 0; t < map->targets.n; t++) {
        for (uint32_t i = 0; i < map->targets.tensors[t].n_feeds; i++) {
            const fy_feed *feed = &map->targets.tensors[t].feeds[i];
            fy_feed *back = &v->feeds[v->first[feed->tensor]++];
            *back = *feed;
            back->tensor = t;
            memcpy(back->begin, feed->at, sizeof back->begin);
            memcpy(back->at, feed->begin, sizeof back->at);
        }
    }
    for (uint32_t s = n; s > 0; s--) {
        v->first[s] = v->first[s - 1];
    }
    v->first[0] = 0;
}

/* "[1, 2]": the first element of a box. */
static void print_element(char *text, size_t text_bytes, const fy_box *box, uint32_t n_dims)
{
    size_t used = (size_t)snprintf(text, text_bytes, "[");
    for (uint32_t d = 0; d < n_dims; d++) { /* 8 numbers of 20 digits fit */
        used += (size_t)snprintf(text + used, text_bytes - used, d == 0 ? "%llu" : ", %llu",
                                 (unsigned long long)box->begin[d]);
    }
    snprintf(text + used, text_bytes - used, "]");
}

static ferry_status check_source(const inverting *v, uint32_t s, ferry_error *error)
{
    const fy_tensor *source = &v->map->sources.tensors[s];
    const fy_feed *feeds = &v->feeds[v->first[s]];
    size_t n = v->first[s + 1] - v->first[s];
    fy_tiling tiling;
    char text[200];
    for (size_t i = 0; i < n; i++) {
        v->boxes[i] = fy_feed_filled(&feeds[i], source->n_dims);
    }
    FY_TRY(fy_boxes_check_tiling(v->boxes, n, source->shape, source->n_dims, &tiling, error));
    if (tiling.fault == FY_TILING_NONE && n > 0) {
        return FERRY_OK;
    }
    print_element(text, sizeof text, &tiling.where, source->n_dims);
    if (tiling.fault == FY_TILING_OVERLAP) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the map has no inverse: the element %s of \"%s\" goes to \"%.200s\" and to "
                       "\"%.200s\"",
                       text, source->name, v->map->targets.tensors[feeds[tiling.first].tensor].name,
                       v->map->targets.tensors[feeds[tiling.second].tensor].name);
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "the map has no inverse: the %s%s%s\"%s\" goes to no target",
                   n == 0 ? "tensor " : "element ", n == 0 ? "" : text, n == 0 ? "" : " of ",
                   source->name);
}

static uint32_t target_dims_of(const void *map, uint32_t tensor)
{
    return ((const ferry_map *)map)->targets.tensors[tensor].n_dims;
}

static ferry_status invert_sources(inverting *v, ferry_map *inverse, ferry_error *error)
{
    fy_composing composing = {.made = v->made,
                              .origin_dims = target_dims_of,
                              .context = v->map,
                              .arena = &inverse->arena};
    for (uint32_t s = 0; s < v->map->sources.n; s++) {
        fy_tensor *to = &inverse->targets.tensors[s];
        FY_TRY(check_source(v, s, error));
        FY_TRY(fy_compose_feeds(&composing, to->name, to->n_dims, &v->feeds[v->first[s]],
                                (uint32_t)(v->first[s + 1] - v->first[s]), &to->feeds, &to->n_feeds,
                                error));
    }
    finish_as_it_is(inverse);
    return FERRY_OK;
}

ferry_status ferry_map_invert(const ferry_map *map, ferry_map **inverse_out, ferry_error *error)
{
    FY_TRY(fy_map_check_finished(map, "ferry_map_invert", error));
    FY_TRY(
        fy_check_use(inverse_out != NULL, "ferry_map_invert needs a place for the result", error));
    ferry_map *inverse = NULL;
    inverting v = {.map = map,
                   .feeds = fy_alloc(map->n_boxes, sizeof *v.feeds),
                   .first = fy_alloc(map->sources.n + 1u, sizeof *v.first),
                   .boxes = fy_alloc(map->n_boxes, sizeof *v.boxes),
                   .made = fy_alloc_zeroed(map->targets.n, sizeof *v.made)};
    ferry_status status = fy_check_memory(
        v.feeds != NULL && v.first != NULL && v.boxes != NULL && v.made != NULL, "a map", error);
    FY_THEN(status, begin_map(&map->targets, &map->sources, &inverse, error));
    if (status == FERRY_OK) {
        turn_round(&v);
        status = invert_sources(&v, inverse, error);
    }
    fy_free(v.feeds);
    fy_free(v.first);
    fy_free(v.boxes);
    fy_free(v.made);
    if (status == FERRY_OK) {
        *inverse_out = inverse;
        inverse = NULL;
    }
    ferry_map_destroy(inverse);
    return status;
}
