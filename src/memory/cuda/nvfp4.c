/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/blocks.h"

#include "base/checked.h"
#include "memory/cuda/late.h"
#include "memory/cuda/lower.h"
#include "memory/cuda/memory.h"
#include "memory/cuda/scratch.h"
#include "memory/cuda/stage.h"

/*
 * NVFP4 of a matrix: a thread makes a block's codes and its scale, in the queue's scratch, from
 * where they go to their places: nine bytes for sixteen numbers.
 */

enum { BLOCK = 16 };

typedef struct late_halves {
    fy_cuda_late late;
    fy_halves matrix;
    const char *base;
    fy_exec_place codes, scales;
} late_halves;

static uint32_t number_of(uint32_t kind)
{
    return kind == FERRY_F32 ? FY_CUDA_F32 : kind == FERRY_F16 ? FY_CUDA_F16 : FY_CUDA_BF16;
}

static uint64_t blocks_of_row(const fy_halves *m)
{
    return fy_ceil_div(m->n_columns, BLOCK);
}

static uint64_t code_bytes_of_row(const fy_halves *m)
{
    return fy_ceil_div(m->n_columns, 2);
}

/* Rows whose codes and scales there is room for at once; 0: there is none for one. */
static uint64_t rows_at_once(const fy_halves *m)
{
    return FY_CUDA_PACKED_BYTES / (code_bytes_of_row(m) + blocks_of_row(m));
}

static ferry_status launch(fy_exec_queue *queue, const fy_halves *m, uint64_t from, uint64_t n_rows,
                           CUdeviceptr codes, CUdeviceptr scales, ferry_error *error)
{
    uint64_t pitch = m->n_columns * fy_cuda_element_bytes(m->kind), across = blocks_of_row(m);
    fy_cuda_halves one = {.from = from,
                          .codes = codes,
                          .scales = scales,
                          .pitch = pitch,
                          .code_pitch = code_bytes_of_row(m),
                          .across = fy_cuda_divisor_of((uint32_t)across),
                          .n_columns = (uint32_t)m->n_columns,
                          .type = number_of(m->kind),
                          .is_wide = (from | pitch) % 16 == 0 && m->n_columns % BLOCK == 0,
                          .of_matrix = m->of_matrix,
                          .n_units = (uint32_t)(n_rows * across)};
    FY_TRY(fy_cuda_launch(queue->device, queue->stream, FY_NUMBER_OF_fy_cuda_nvfp4, &one,
                          one.n_units, 1, error));
    queue->n_issued++;
    return FERRY_OK;
}

/* To bytes from `at` on of a place. */
static ferry_status take_out(fy_exec_queue *queue, CUdeviceptr from, const fy_exec_place *to,
                             uint64_t at, uint64_t bytes, ferry_error *error)
{
    uint64_t first = to->first + at;
    fy_area flat = fy_area_flat(0, first + bytes);
    const fy_cuda_side_of source = {.area = &flat,
                                    .base = (void *)(uintptr_t)(from - first),
                                    .is_reached = true,
                                    .is_device = true};
    fy_cuda_side_of target;
    if (to->base == NULL) {
        return FERRY_OK;
    }
    FY_TRY(fy_cuda_side_find(queue, &to->area, to->base, first, bytes, &target, error));
    return target.is_reached
               ? fy_cuda_move(queue, &to->area, to->base, &flat, source.base, first, bytes, error)
               : fy_cuda_stage_copy(queue, &target, &source, first, bytes, NULL, error);
}

static ferry_status make_all(fy_exec_queue *queue, const late_halves *one,
                             const fy_cuda_scratch *scratch, ferry_error *error)
{
    const fy_halves *m = &one->matrix;
    uint64_t pitch = m->n_columns * fy_cuda_element_bytes(m->kind);
    uint64_t code_row = code_bytes_of_row(m), scale_row = blocks_of_row(m);
    for (uint64_t row = 0, n; row < m->n_rows; row += n) {
        n = fy_min(m->n_rows - row, rows_at_once(m));
        CUdeviceptr codes = scratch->packed, scales = codes + n * code_row;
        uint64_t from = (uint64_t)(uintptr_t)one->base + row * pitch;
        FY_TRY(launch(queue, m, from, n, codes, scales, error));
        FY_TRY(take_out(queue, codes, &one->codes, row * code_row, n * code_row, error));
        FY_TRY(take_out(queue, scales, &one->scales, row * scale_row, n * scale_row, error));
    }
    return FERRY_OK;
}

static ferry_status check(const fy_exec_queue *queue, const late_halves *one, ferry_error *error)
{
    const fy_halves *m = &one->matrix;
    uint64_t bytes = fy_cuda_element_bytes(m->kind);
    fy_cuda_reach reach;
    FY_TRY(fy_cuda_reach_of(queue->device, one->base, 0, m->n_rows * m->n_columns * bytes,
                            queue->is_late, &reach, error));
    if (reach != FY_CUDA_OURS || (uintptr_t)one->base % bytes != 0) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%p is no memory of a device's, or no multiple of %d",
                       (const void *)one->base, (int)bytes);
    }
    return rows_at_once(m) > 0
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_LIMIT,
                         "%llu numbers of a row are more than a CUDA device makes nvfp4 of",
                         (unsigned long long)m->n_columns);
}

static ferry_status perform(fy_exec_queue *queue, const fy_cuda_late *late, ferry_error *error)
{
    const late_halves *one = (const late_halves *)late;
    fy_cuda_scratch scratch;
    uint64_t before;
    FY_TRY(fy_cuda_begin_sound(queue, &before, error));
    ferry_status status = check(queue, one, error);
    if (status == FERRY_OK && !fy_cuda_scratch_of(queue, &scratch)) {
        status = fy_fail(error, FERRY_ERR_NO_MEMORY, "CUDA device %d has no memory for codes",
                         (int)queue->device->number);
    }
    FY_THEN(status, make_all(queue, one, &scratch, error));
    return fy_cuda_end(queue, before, status, error);
}

ferry_status fy_cuda_nvfp4_of(fy_exec_queue *queue, const fy_halves *matrix, const void *base,
                              const fy_exec_place *codes, const fy_exec_place *scales,
                              ferry_error *error)
{
    const late_halves one = {.late = {.perform = perform},
                             .matrix = *matrix,
                             .base = base,
                             .codes = *codes,
                             .scales = *scales};
    if (matrix->n_rows == 0 || matrix->n_columns == 0) {
        return FERRY_OK;
    }
    pthread_mutex_lock(&queue->calls);
    ferry_status status = fy_cuda_do(queue, &one.late, sizeof one, error);
    pthread_mutex_unlock(&queue->calls);
    return status;
}
