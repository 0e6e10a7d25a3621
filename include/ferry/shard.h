/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_SHARD_H
#define FERRY_SHARD_H

#include <ferry/dtype.h>
#include <ferry/export.h>
#include <ferry/limits.h>
#include <ferry/plan.h>
#include <ferry/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/* What the ranks of a plan hold: local shards, and which element of the tensor each of theirs is.
 */
typedef enum ferry_side_role { FERRY_SIDE_SOURCE = 0, FERRY_SIDE_DESTINATION = 1 } ferry_side_role;

/*
 * One tensor as one rank holds it. The local shard is row-major in memory, of shape local[]. With a
 * flat range, the rank has only elements [flat_begin, flat_end) of that, in row-major order, and
 * its memory begins with the first of them.
 */
typedef struct ferry_shard {
    const char *tensor; /* lives as long as the plan */
    ferry_dtype dtype;
    uint64_t bytes; /* of the rank's memory */
    uint32_t n_dims;
    uint64_t global[FERRY_MAX_DIMS];
    uint64_t local[FERRY_MAX_DIMS];
    bool is_flat;
    uint64_t flat_begin; /* 0 and the product of local[] where it is not flat */
    uint64_t flat_end;
    uint64_t visit; /* which one hands it over: for ferry_shard_piece_at and _origin_at */
    /*
     * Of a side in boxes: tensor is the name of a parameter, the shape is the number of its
     * elements, and it has no pieces and origins; the plan's moves say where their boxes lie in it.
     */
    bool is_parameter;
    /* Of a destination on a mesh: what its elements are made of. NULL: they come as they are. */
    ferry_dtype source_dtype;
    const ferry_conversion *conversion;
    /* Of scales that are made on the way, or come beside codes: the tensor of whose blocks they
     * are, and its shape, with as many dimensions as this one's. Of the first source_dtype is the
     * type of that. Of a parameter that comes beside another one: the name of that, and no shape.
     * NULL: they are of none. */
    const char *values;
    uint64_t values_global[FERRY_MAX_DIMS];
} ferry_shard;

/* Whether a side of the plan is in boxes, so that its shards are parameters; false of no plan. */
FERRY_API bool ferry_plan_is_in_boxes(const ferry_plan *plan, ferry_side_role side);

/*
 * Anything but FERRY_OK ends the visit, which then returns that. A copy of the shard may be kept;
 * its pieces and origins can be asked for until the visitor returns, and by its thread: later that
 * is FERRY_ERR_MISUSE, or none are counted.
 */
typedef ferry_status (*ferry_shard_visitor)(void *context, const ferry_shard *shard);

/*
 * Visits the tensors that rank holds on a side and that the plan (its subset) touches, each once,
 * in the order of the spec: also those without elements. Source tensors that no destination wants
 * are left out.
 */
FERRY_API ferry_status ferry_plan_visit_shards(const ferry_plan *plan, ferry_side_role side,
                                               uint32_t rank, ferry_shard_visitor visitor,
                                               void *context, ferry_error *error);

/*
 * Visits the scales that a rank gets beside codes which it dequantizes, as ferry_plan_visit_shards
 * visits destinations, among which they are not: the copy service has memory of its own for them.
 * The name is that of their moves, and `values` is the tensor of codes; of a destination in boxes
 * that of a parameter, and `values` is the one that has the codes. Of f4 those of the blocks come
 * before those of the matrices, which are f32.
 */
FERRY_API ferry_status ferry_plan_visit_staged(const ferry_plan *plan, uint32_t rank,
                                               ferry_shard_visitor visitor, void *context,
                                               ferry_error *error);

/*
 * Within the visit: dimension dim of the shard as runs. Local indices [local, local + length) are
 * global indices [global, global + length). Pieces are in order of local and cover local[dim].
 */
FERRY_API size_t ferry_shard_piece_count(const ferry_shard *shard, uint32_t dim);
/* A piece of the dimension, by number. */
FERRY_API ferry_status ferry_shard_piece_at(const ferry_shard *shard, uint32_t dim, size_t index,
                                            uint64_t *local_out, uint64_t *global_out,
                                            uint64_t *length_out, ferry_error *error);

/*
 * Where a destination tensor's values come from: box [at, at + length) of the tensor is box [begin,
 * begin + source_length) of the source tensor, element for element in row-major order. A tensor
 * that is fed from itself has one origin, which is all of it.
 */
typedef struct ferry_origin {
    size_t struct_size;
    const char *source;
    uint64_t at[FERRY_MAX_DIMS];
    uint64_t length[FERRY_MAX_DIMS];
    uint32_t source_n_dims;
    uint64_t begin[FERRY_MAX_DIMS];
    uint64_t source_length[FERRY_MAX_DIMS]; /* as length, with ones added or taken away */
    uint64_t source_global[FERRY_MAX_DIMS]; /* the source tensor's shape */
} ferry_origin;

#define FERRY_ORIGIN_INIT                                                                          \
    {                                                                                              \
        sizeof(ferry_origin), NULL, {0}, {0}, 0, {0}, {0},                                         \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

/* How many origins a destination tensor has. */
FERRY_API size_t ferry_shard_origin_count(const ferry_shard *shard);
/* An origin, by number. */
FERRY_API ferry_status ferry_shard_origin_at(const ferry_shard *shard, size_t index,
                                             ferry_origin *origin_out, ferry_error *error);

/*
 * Of a side in boxes: a box of a parameter, and where its elements come from, or of the source are.
 * Element i, with i below shape, is element offset + i[0] strides[0] + ... of the parameter,
 * element begin + i of the tensor, and source_begin + i of the source tensor, whose dimensions
 * correspond from the last one on; what one of them has more is 1 long.
 */
typedef struct ferry_held_box {
    const char *parameter; /* names live as long as the plan */
    const char *tensor;
    const char *source;
    ferry_dtype dtype;
    uint32_t rank;
    uint32_t n_dims;
    uint64_t begin[FERRY_MAX_DIMS];
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t offset;
    uint64_t strides[FERRY_MAX_DIMS];
    uint32_t source_n_dims;
    uint64_t source_begin[FERRY_MAX_DIMS];
    uint64_t source_global[FERRY_MAX_DIMS]; /* its shape */
    ferry_dtype source_dtype;               /* dtype is the parameter's */
    const ferry_conversion *conversion;     /* NULL: both are the same, and so are the elements */
    /* Of scales and codes made on the way: of whose blocks; source_dtype is that one's type. */
    const char *values;
    uint64_t values_global[FERRY_MAX_DIMS];
    /*
     * Of codes that are dequantized: the parameter that has their scales (ferry_plan_visit_staged).
     * The scale of element i lies at scales_offset + n[0] scales_strides[0] + ... of it, where n
     * says how many blocks element begin + i is behind element begin. NULL: they are not.
     */
    const char *scales;
    uint64_t scales_offset;
    uint64_t scales_strides[FERRY_MAX_DIMS];
    /*
     * Of codes of f4 that are dequantized: the parameter with the scales of their matrices. That of
     * element i lies at matrix_scales_offset + i[0] matrix_scales_strides[0] + ... of it. NULL:
     * they are not.
     */
    const char *matrix_scales;
    uint64_t matrix_scales_offset;
    uint64_t matrix_scales_strides[FERRY_MAX_DIMS]; /* 0 of rows and columns */
} ferry_held_box;

/* Is handed each box. Anything but FERRY_OK ends the visit, which then returns that. */
typedef ferry_status (*ferry_held_box_visitor)(void *context, const ferry_held_box *box);

/*
 * Visits the boxes of a rank's parameters, of tensors that the plan moves, parameter by parameter
 * in the order of the spec, and then those of ferry_plan_visit_staged; repeats are written out. A
 * side that is a mesh has none.
 */
FERRY_API ferry_status ferry_plan_visit_held_boxes(const ferry_plan *plan, ferry_side_role side,
                                                   uint32_t rank, ferry_held_box_visitor visitor,
                                                   void *context, ferry_error *error);

FERRY_END_DECLS

#endif
