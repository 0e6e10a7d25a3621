/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a finished map says. */
#include "model/map.h"

#include "base/options.h"

#include <string.h>

size_t ferry_map_source_count(const ferry_map *map)
{
    return map == NULL || !map->is_finished ? 0 : map->sources.n;
}

size_t ferry_map_target_count(const ferry_map *map)
{
    return map == NULL || !map->is_finished ? 0 : map->targets.n;
}

size_t ferry_map_box_count(const ferry_map *map)
{
    return map == NULL || !map->is_finished ? 0 : map->n_boxes;
}

static ferry_status tensor_at(const fy_map_side *side, const char *what, size_t index,
                              ferry_map_tensor *tensor_out, ferry_error *error)
{
    if (index >= side->n) {
        return fy_fail(error, FERRY_ERR_MISUSE, "the map has %u %ss; there is no number %zu",
                       side->n, what, index);
    }
    const fy_tensor *tensor = &side->tensors[index];
    ferry_map_tensor own = FERRY_MAP_TENSOR_INIT;
    own.name = tensor->name;
    own.dtype = tensor->dtype;
    own.n_dims = tensor->n_dims;
    own.n_boxes = tensor->n_feeds;
    if (tensor->n_dims > 0) {
        memcpy(own.shape, tensor->shape, tensor->n_dims * sizeof *own.shape);
    }
    return fy_copy_out(&own, sizeof own, tensor_out, "ferry_map_tensor", error);
}

ferry_status ferry_map_source_at(const ferry_map *map, size_t index, ferry_map_tensor *tensor_out,
                                 ferry_error *error)
{
    FY_TRY(fy_map_check_finished(map, "ferry_map_source_at", error));
    return tensor_at(&map->sources, "source", index, tensor_out, error);
}

ferry_status ferry_map_target_at(const ferry_map *map, size_t index, ferry_map_tensor *tensor_out,
                                 ferry_error *error)
{
    FY_TRY(fy_map_check_finished(map, "ferry_map_target_at", error));
    return tensor_at(&map->targets, "target", index, tensor_out, error);
}

static ferry_status find(const ferry_map *map, bool is_source, const char *name, size_t *index_out,
                         ferry_error *error)
{
    const char *what = is_source ? "source" : "target";
    FY_TRY(fy_map_check_finished(map, is_source ? "ferry_map_find_source" : "ferry_map_find_target",
                                 error));
    FY_TRY(fy_check_use(name != NULL && index_out != NULL,
                        "a tensor of a map is found by a name, and needs a place for its number",
                        error));
    uint32_t number = fy_map_find(is_source ? &map->sources : &map->targets, name);
    if (number == FY_NONE) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "the map has no %s \"%s\"", what, name);
    }
    *index_out = number;
    return FERRY_OK;
}

ferry_status ferry_map_find_source(const ferry_map *map, const char *name, size_t *index_out,
                                   ferry_error *error)
{
    return find(map, true, name, index_out, error);
}

ferry_status ferry_map_find_target(const ferry_map *map, const char *name, size_t *index_out,
                                   ferry_error *error)
{
    return find(map, false, name, index_out, error);
}

ferry_status ferry_map_box_at(const ferry_map *map, size_t target, size_t index,
                              ferry_map_box *box_out, ferry_error *error)
{
    FY_TRY(fy_map_check_finished(map, "ferry_map_box_at", error));
    if (target >= map->targets.n || index >= map->targets.tensors[target].n_feeds) {
        return fy_fail(error, FERRY_ERR_MISUSE, "the map has no box %zu of target number %zu",
                       index, target);
    }
    const fy_tensor *to = &map->targets.tensors[target];
    const fy_feed *feed = &to->feeds[index];
    const fy_tensor *from = &map->sources.tensors[feed->tensor];
    ferry_map_box own = FERRY_MAP_BOX_INIT;
    uint32_t src_pad = feed->n_dims - from->n_dims, dst_pad = feed->n_dims - to->n_dims;
    own.target = to->name;
    own.source = from->name;
    memcpy(own.begin, feed->begin + src_pad, from->n_dims * sizeof *own.begin);
    memcpy(own.shape, feed->shape + src_pad, from->n_dims * sizeof *own.shape);
    memcpy(own.at, feed->at + dst_pad, to->n_dims * sizeof *own.at);
    return fy_copy_out(&own, sizeof own, box_out, "ferry_map_box", error);
}
