/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_MAP_H
#define FY_MODEL_MAP_H

#include "base/alloc.h"
#include "base/index.h"
#include "base/json.h"
#include "model/compose.h"

#include <ferry/map.h>

/* Tensors of one naming. */
typedef struct fy_map_side {
    fy_tensor *tensors;
    uint32_t n;
    size_t capacity;
    fy_index names;
    uint64_t name_bytes;
} fy_map_side;

/* While a map is filled, its boxes are in the order in which they came. */
typedef struct fy_map_piece {
    uint32_t target;
    fy_feed feed; /* its tensor is the number of a source */
} fy_map_piece;

struct ferry_map {
    fy_arena arena;
    bool is_finished;
    fy_map_side sources;
    fy_map_side targets; /* their feeds name sources; canonical once the map is finished */
    fy_map_piece *pieces;
    size_t n_pieces, piece_capacity;
    size_t n_boxes; /* of a finished map */
};

/* FERRY_ERR_MISUSE for NULL, and for a map that is not finished; call: the function's name. */
ferry_status fy_map_check_finished(const ferry_map *map, const char *call, ferry_error *error);

/* A map that is not finished and owned by this call: numbers and texts are checked. */
ferry_status fy_map_add_tensor(ferry_map *map, fy_map_side *side, const char *name, size_t length,
                               ferry_dtype dtype, uint32_t n_dims, const uint64_t *shape,
                               ferry_error *error);

/* The number of the tensor of a name, or FY_NONE. */
uint32_t fy_map_find(const fy_map_side *side, const char *name);

/* One more box of a target, by numbers; dimensions that a tensor lacks are left out. */
ferry_status fy_map_add_piece(ferry_map *map, uint32_t target, uint32_t source,
                              const uint64_t *begin, const uint64_t *shape, const uint64_t *at,
                              ferry_error *error);

/* The whole source, which must have the target's shape. */
ferry_status fy_map_add_whole(ferry_map *map, uint32_t target, uint32_t source, ferry_error *error);

/* Whether a target is one source, all of it. */
bool fy_map_is_whole(const ferry_map *map, const fy_tensor *target);

/* Of types and shapes. */
bool fy_map_is_alike(const fy_tensor *a, const fy_tensor *b);

/*
 * A target as an entry of a spec's "tensors", the caller's: with its "source", but where it is all
 * of a source with its own name. NULL: no memory.
 */
json_t *fy_map_target_entry(const ferry_map *map, uint32_t target);

/* "[0:4, 8:16]", cut to fit. */
void fy_map_print_box(char *text, size_t text_bytes, const uint64_t *begin, const uint64_t *length,
                      uint32_t n_dims);

#endif
