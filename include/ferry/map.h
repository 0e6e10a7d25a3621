/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_MAP_H
#define FERRY_MAP_H

#include <ferry/dtype.h>
#include <ferry/export.h>
#include <ferry/limits.h>
#include <ferry/spec.h>
#include <ferry/status.h>
#include <ferry/writer.h>

#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * How the tensors of one naming are made of those of another: a trainer's of a checkpoint's, a
 * server's of a trainer's. A box of a source fills a box of a target, and each target is filled
 * exactly. Maps chain: ferry_map_compose makes one of two, in which what lies between no longer
 * stands.
 *
 * A map is filled by one thread, then finished. Only a finished map can be used, and it is
 * immutable: several threads may use it. Its tensors are in an order of their own, in which alike
 * ones are together, and layer 10 behind layer 9; its boxes are joined where they form one. So maps
 * that say the same are equal, whatever they were made of.
 */
typedef struct ferry_map ferry_map;

/* A map without tensors. */
FERRY_API ferry_status ferry_map_create(ferry_map **map_out, ferry_error *error);

/* One more tensor that others are made of. Sources and targets may share names. */
FERRY_API ferry_status ferry_map_add_source(ferry_map *map, const char *name, ferry_dtype dtype,
                                            uint32_t n_dims, const uint64_t *shape,
                                            ferry_error *error);

/* One more tensor that is made of sources. */
FERRY_API ferry_status ferry_map_add_target(ferry_map *map, const char *name, ferry_dtype dtype,
                                            uint32_t n_dims, const uint64_t *shape,
                                            ferry_error *error);

/*
 * The box of a source that begins at begin fills the box of a target that begins at at. begin and
 * shape have a number for each dimension of the source, at one for each of the target. Where one
 * has fewer dimensions, it counts as having leading ones of length 1. Dimensions keep their order:
 * a transposition is no map, but can be said by the strides of a side in boxes.
 */
typedef struct ferry_map_box {
    size_t struct_size;
    const char *target;
    const char *source;
    uint64_t begin[FERRY_MAX_DIMS];
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t at[FERRY_MAX_DIMS];
} ferry_map_box;

#define FERRY_MAP_BOX_INIT                                                                         \
    {                                                                                              \
        sizeof(ferry_map_box), NULL, NULL, {0}, {0},                                               \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

/* Both tensors were added, and their types are equal. */
FERRY_API ferry_status ferry_map_add_box(ferry_map *map, const ferry_map_box *box,
                                         ferry_error *error);

/* The target is a copy of the source, which has its shape. */
FERRY_API ferry_status ferry_map_add_copy(ferry_map *map, const char *target, const char *source,
                                          ferry_error *error);

/*
 * Ends filling. FERRY_ERR_INVALID_INPUT if boxes overlap or leave a gap: the sentence names the
 * target and where. The map is as it was then. A map that is finished stays so.
 */
FERRY_API ferry_status ferry_map_finish(ferry_map *map, ferry_error *error);

/* NULL is allowed. */
FERRY_API void ferry_map_destroy(ferry_map *map);

/* Reads ferry.map/1 (docs/formats.md) to a finished map. name stands in error sentences. */
FERRY_API ferry_status ferry_map_parse(const char *text, size_t length, const char *name,
                                       ferry_map **map_out, ferry_error *error);

/* The same from a file. */
FERRY_API ferry_status ferry_map_load(const char *path, ferry_map **map_out, ferry_error *error);

/* Writes ferry.map/1. Equal maps have equal texts; alike layers and experts take one entry. */
FERRY_API ferry_status ferry_map_write_json(const ferry_map *map, ferry_write_fn write,
                                            void *context, ferry_error *error);

/*
 * From the sources of first to the targets of second, through the targets of first: each tensor
 * that boxes of second are of must be one of those, alike in shape and type; else the sentence
 * names it, and a box that wants it. All sources of first are sources of the result.
 */
FERRY_API ferry_status ferry_map_compose(const ferry_map *first, const ferry_map *second,
                                         ferry_map **map_out, ferry_error *error);

/*
 * From the targets back to the sources. FERRY_ERR_INVALID_INPUT if an element of a source goes
 * nowhere, or to two places: the sentence names it.
 */
FERRY_API ferry_status ferry_map_invert(const ferry_map *map, ferry_map **inverse_out,
                                        ferry_error *error);

/*
 * A spec in which the tensors that are targets of the map, and have no source of their own, have
 * one: the map's boxes. Sources that the spec does not have are added, for the source side only. A
 * target that is all of a source with its own name stays as it is. At least one tensor of the spec
 * is a target, alike in shape and type. A spec of sides in boxes, too: a box of a target is then
 * fed from the boxes of sources that it is made of.
 */
FERRY_API ferry_status ferry_map_apply(const ferry_map *map, const ferry_spec *spec,
                                       ferry_spec **spec_out, ferry_error *error);

/* How many sources there are; 0 for a map that is not finished. */
FERRY_API size_t ferry_map_source_count(const ferry_map *map);
/* How many targets. */
FERRY_API size_t ferry_map_target_count(const ferry_map *map);
/* How many boxes all targets have together. */
FERRY_API size_t ferry_map_box_count(const ferry_map *map);

/* A tensor of a map. The name lives as long as the map. */
typedef struct ferry_map_tensor {
    size_t struct_size;
    const char *name;
    ferry_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[FERRY_MAX_DIMS];
    size_t n_boxes; /* of a target; 0 for sources */
} ferry_map_tensor;

#define FERRY_MAP_TENSOR_INIT                                                                      \
    {                                                                                              \
        sizeof(ferry_map_tensor), NULL, {0, 0}, 0, {0}, 0                                          \
    }

/* Fills *tensor_out, made with its _INIT value, with a source; in the map's order. */
FERRY_API ferry_status ferry_map_source_at(const ferry_map *map, size_t index,
                                           ferry_map_tensor *tensor_out, ferry_error *error);
/* The same of a target. */
FERRY_API ferry_status ferry_map_target_at(const ferry_map *map, size_t index,
                                           ferry_map_tensor *tensor_out, ferry_error *error);

/* The number of the source of a name; FERRY_ERR_INVALID_INPUT if there is none. */
FERRY_API ferry_status ferry_map_find_source(const ferry_map *map, const char *name,
                                             size_t *index_out, ferry_error *error);
/* The number of the target of a name. */
FERRY_API ferry_status ferry_map_find_target(const ferry_map *map, const char *name,
                                             size_t *index_out, ferry_error *error);

/* Fills *box_out, made with its _INIT value, with a box of a target; names live as long as the map.
 * Boxes are in the row-major order of their places. */
FERRY_API ferry_status ferry_map_box_at(const ferry_map *map, size_t target, size_t index,
                                        ferry_map_box *box_out, ferry_error *error);

FERRY_END_DECLS

#endif
