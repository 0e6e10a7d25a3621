/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_RESHARD_TASK_H
#define FY_CHECKPOINT_RESHARD_TASK_H

#include "checkpoint/reshard.h"

/* What all windows of a tensor have in common. */
typedef struct fy_out_task {
    fy_reshard_work *work;
    fy_reshard_worker *worker;
    uint32_t tensor;
    fy_out_type type;
    uint32_t from_kind;
    const fy_holders *holders;
    bool needs_hashes;
    uint64_t *checksums; /* [cells] */
} fy_out_task;

/* Bytes in memory, or the same bytes in a file of the source. */
typedef struct fy_out_piece {
    const char *bytes;
    uint64_t n_bytes;
    bool is_in_file;
    uint32_t file;
    uint64_t offset;
} fy_out_piece;

/* The task of a tensor; fy_out_task_cleanup ends it. */
ferry_status fy_out_task_begin(fy_reshard_work *work, fy_reshard_worker *worker, uint32_t tensor,
                               fy_out_task *task, ferry_error *error);
void fy_out_task_cleanup(fy_out_task *task);

/* To every holder of the cell, `at` bytes behind the begin of its shard. */
ferry_status fy_out_write(const fy_out_task *task, uint32_t cell, uint64_t at,
                          const fy_out_piece *piece, ferry_error *error);

/* The checksum of a cell that was written out of order: what its first holder has, read again. */
ferry_status fy_out_hash(const fy_out_task *task, uint32_t cell, ferry_error *error);

/* Whether an earlier run has made the tensor, by the checksums that it recorded; adds its bytes. */
ferry_status fy_out_check_resumed(const fy_out_task *task, bool *is_there_out,
                                  uint64_t *bytes_inout, ferry_error *error);

/* What was written of a tensor, or a parameter, of a file. */
ferry_status fy_out_hash_file(fy_reshard_work *work, fy_reshard_worker *worker, uint32_t file,
                              uint32_t tensor, uint64_t *hash_out, ferry_error *error);

/* Counts bytes as done by an earlier run. */
void fy_out_count_resumed(fy_reshard_work *work, uint64_t bytes);

/* Puts what was made, or was there, on record: in the journal, and with the files' checksums. */
ferry_status fy_out_record(const fy_out_task *task, bool was_there, ferry_error *error);

/* How many cells one after the other are made in turn: those that need the same rows from `dim` on
 * down. */
uint32_t fy_out_cells_in_turn(const fy_out_task *task, uint32_t dim);

/* Whether anybody holds the cell. */
static inline bool fy_out_has_holders(const fy_out_task *task, uint32_t cell)
{
    return fy_holders_cell_size(task->holders, cell) > 0;
}

/* A weight that is quantized, with its scales, or dequantized. */
ferry_status fy_reshard_weight(fy_reshard_work *work, fy_reshard_worker *worker, uint32_t tensor,
                               ferry_error *error);

#endif
