/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_NAMING_BOX_H
#define FY_MODEL_NAMING_BOX_H

#include "layout/split.h"
#include "model/naming.h"

/* The source's dimension has length 1 in a box, and the target has none for it. */
#define FY_NO_DIM UINT32_MAX

/*
 * A box of a source that lies in a target, by the dimensions of both. It may come again: each time
 * so much further along one dimension of the source and one of the target, where it does not reach
 * into the next one.
 */
typedef struct fy_naming_box {
    const fy_naming_tensor *source;
    uint64_t begin[FERRY_MAX_DIMS], shape[FERRY_MAX_DIMS]; /* in the source */
    uint64_t at[FERRY_MAX_DIMS];                           /* where it begins in the target */
    uint32_t along[FERRY_MAX_DIMS]; /* of the target, for each dimension of the source */
    uint64_t count, from_step, to_step;
    uint32_t from_dim, to_dim;
} fy_naming_box;

/* What a rank has of a target: a part of each dimension. */
typedef struct fy_naming_shard {
    uint32_t n_dims;
    const fy_split *splits[FERRY_MAX_DIMS];
    uint32_t parts[FERRY_MAX_DIMS];
} fy_naming_shard;

uint64_t fy_naming_shard_length(const fy_naming_shard *shard, uint32_t dim);

/* Says where those elements of a box that a shard has lie in the parameter that is the shard. */
ferry_status fy_naming_box_add(const fy_naming_box *box, const fy_naming_shard *shard,
                               ferry_side *side, size_t parameter, ferry_error *error);

#endif
