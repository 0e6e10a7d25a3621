/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_CHANGER_H
#define FY_CHECKPOINT_CHANGER_H

#include "checkpoint/gather.h"
#include "checkpoint/tile.h"

/*
 * Makes tiles of weights that are quantized, or dequantized, from what the source has of them. One
 * for each thread. Blocks are whole in a tile of codes; of values a tile may begin and end
 * anywhere, and the scales that it needs are read from wherever they are.
 */
typedef struct fy_changer {
    const fy_layout_job *job;   /* whose tensors are made */
    const fy_layout_job *whole; /* of the same tensors, to one rank that has everything; NULL: no
                                   change needs it */
    fy_gather beside;           /* of that job: scales; values, of which the largest is wanted */
    char *room;                 /* the caller's; and its bytes */
    uint64_t room_bytes;
    /* The weight at work. */
    const fy_change *change;
    uint32_t tensor;
    fy_tile_shape size;
    char *in, *out, *scales;
    float *matrix_scales; /* one for each matrix of the whole tensor; NULL: the format has none */
    size_t matrix_capacity;
} fy_changer;

/* One shard on its way, of those that take turns. */
typedef struct fy_changed_shard {
    fy_tile_walk walk;
    fy_stretch *rows, *columns; /* dequantized: where its indices are in the whole matrix */
    size_t n_rows, n_columns;
} fy_changed_shard;

/* Bytes that a worker needs for the smallest tile of a weight; 0: the tensor has no tiles. */
uint64_t fy_change_least_room(const fy_layout_job *job, uint32_t tensor);

ferry_status fy_changer_init(fy_changer *changer, const fy_layout_job *job,
                             const fy_layout_job *whole, fy_files *files, fy_checked *checked,
                             uint64_t span_bytes, ferry_error *error);
void fy_changer_cleanup(fy_changer *changer);

/* Whether a change is made in tiles. */
static inline bool fy_change_has_tiles(const fy_change *change)
{
    return change->kind == FY_QUANTIZED || change->kind == FY_DEQUANTIZED;
}

/* Turns to a weight, whose change has tiles. */
ferry_status fy_changer_begin(fy_changer *changer, uint32_t tensor, ferry_error *error);
/* Checks the checksums of what was read beside the weight. */
ferry_status fy_changer_end(fy_changer *changer, ferry_error *error);

/* Turns to a shard of it; fy_changed_shard_cleanup ends it, whatever this returned. */
ferry_status fy_changed_shard_begin(const fy_changer *changer, uint32_t cell,
                                    fy_changed_shard *shard, ferry_error *error);
void fy_changed_shard_cleanup(fy_changed_shard *shard);

/*
 * The walk's tile: reads it by the gather, which has turned to the weight, and makes in
 * changer->out its rows, without gaps, and of codes in changer->scales the rows of scales.
 */
ferry_status fy_changer_make(fy_changer *changer, fy_gather *gather, const fy_changed_shard *shard,
                             ferry_error *error);

#endif
