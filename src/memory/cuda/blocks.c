/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/blocks.h"

#include "base/checked.h"
#include "memory/cuda/late.h"
#include "memory/cuda/lower.h"
#include "memory/cuda/memory.h"
#include "memory/cuda/scratch.h"
#include "memory/cuda/stage.h"

/*
 * The largest magnitudes of blocks: threads look at strips of them, and raise the words of their
 * blocks in the queue's scratch, from where these go to the host.
 */

enum { MOST_BLOCKS = 2 * FY_CUDA_SCALES_BYTES / (int)sizeof(float) };

typedef struct late_blocks {
    fy_cuda_late late;
    fy_blocks blocks;
    const char *base;
    float *largest_out;
} late_blocks;

static uint32_t number_of(uint32_t kind)
{
    return kind == FERRY_F32 ? FY_CUDA_F32 : kind == FERRY_F16 ? FY_CUDA_F16 : FY_CUDA_BF16;
}

/* Whole blocks of a matrix: `blocks` has their rows and columns, and rows lie `pitch` apart. */
static ferry_status launch(fy_exec_queue *queue, const fy_blocks *blocks, uint64_t from,
                           uint64_t pitch, CUdeviceptr to, ferry_error *error)
{
    uint64_t down = fy_ceil_div(blocks->n_rows, blocks->block[0]);
    uint64_t across = fy_ceil_div(blocks->n_columns, blocks->block[1]);
    uint64_t high = fy_min(blocks->block[0], blocks->n_rows);
    uint64_t strips = fy_ceil_div(high, FY_CUDA_STRIP);
    bool is_wide = (from | pitch) % 16 == 0 && (blocks->n_columns | blocks->block[1]) % 8 == 0;
    uint64_t units = is_wide ? blocks->n_columns / 8 : blocks->n_columns;
    fy_cuda_largest one = {.from = from,
                           .pitch = pitch,
                           .to = to,
                           .across = fy_cuda_divisor_of((uint32_t)units),
                           .strips = fy_cuda_divisor_of((uint32_t)strips),
                           .block_columns = fy_cuda_divisor_of((uint32_t)blocks->block[1]),
                           .block_rows = (uint32_t)high,
                           .n_rows = (uint32_t)blocks->n_rows,
                           .n_blocks = (uint32_t)across,
                           .type = number_of(blocks->kind),
                           .n_units = (uint32_t)(down * strips * units)};
    CUresult result =
        fy_cuda.cuMemsetD8Async(to, 0, (size_t)(down * across * sizeof(float)), queue->stream);
    FY_TRY(fy_cuda_check(result, "clearing memory of a device", error));
    queue->n_issued++;
    FY_TRY(fy_cuda_launch(queue->device, queue->stream,
                          is_wide ? FY_NUMBER_OF_fy_cuda_largest_8 : FY_NUMBER_OF_fy_cuda_largest_1,
                          &one, one.n_units, 1, error));
    queue->n_issued++;
    return FERRY_OK;
}

static ferry_status take_out(fy_exec_queue *queue, CUdeviceptr from, float *to, uint64_t n,
                             ferry_error *error)
{
    fy_area flat = fy_area_flat(0, n * sizeof *to);
    const fy_cuda_side_of source = {
        .area = &flat, .base = (void *)(uintptr_t)from, .is_reached = true, .is_device = true};
    const fy_cuda_side_of target = {.area = &flat, .base = to};
    return fy_cuda_stage_copy(queue, &target, &source, 0, flat.bytes, NULL, error);
}

/* As many rows of blocks at once as there is room for, or a part of one. */
static ferry_status find_all(fy_exec_queue *queue, const late_blocks *one, CUdeviceptr words,
                             ferry_error *error)
{
    const fy_blocks *all = &one->blocks;
    uint64_t down = fy_ceil_div(all->n_rows, all->block[0]);
    uint64_t across = fy_ceil_div(all->n_columns, all->block[1]);
    uint64_t bytes = fy_cuda_element_bytes(all->kind), pitch = all->n_columns * bytes;
    uint64_t n_down = fy_max(1, fy_min(down, MOST_BLOCKS / across));
    uint64_t n_across = fy_min(across, MOST_BLOCKS);
    for (uint64_t r = 0; r < down; r += n_down) {
        for (uint64_t c = 0; c < across; c += n_across) {
            uint64_t row = r * all->block[0], column = c * all->block[1];
            fy_blocks some = *all;
            some.n_rows = fy_min(n_down * all->block[0], all->n_rows - row);
            some.n_columns = fy_min(n_across * all->block[1], all->n_columns - column);
            uint64_t at = (uint64_t)(uintptr_t)one->base + row * pitch + column * bytes;
            uint64_t n = fy_min(n_down, down - r) * fy_min(n_across, across - c);
            FY_TRY(launch(queue, &some, at, pitch, words, error));
            FY_TRY(take_out(queue, words, one->largest_out + r * across + c, n, error));
        }
    }
    return FERRY_OK;
}

static ferry_status check(const fy_exec_queue *queue, const late_blocks *one, ferry_error *error)
{
    const fy_blocks *b = &one->blocks;
    fy_cuda_reach reach;
    uint64_t bytes = fy_cuda_element_bytes(b->kind);
    FY_TRY(fy_cuda_reach_of(queue->device, one->base, 0, b->n_rows * b->n_columns * bytes,
                            queue->is_late, &reach, error));
    if (reach != FY_CUDA_OURS || (uintptr_t)one->base % bytes != 0) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%p is no memory of a device's, or no multiple of %d",
                       (const void *)one->base, (int)bytes);
    }
    bool is_much = b->n_columns > FY_CUDA_MOST_UNITS || b->block[0] > FY_CUDA_MOST_UNITS ||
                   b->block[1] > FY_CUDA_MOST_UNITS ||
                   b->n_rows > FY_CUDA_MOST_UNITS / b->n_columns;
    return is_much ? fy_fail(error, FERRY_ERR_LIMIT, "a CUDA device counts %d elements at most",
                             (int)FY_CUDA_MOST_UNITS)
                   : FERRY_OK;
}

static ferry_status perform(fy_exec_queue *queue, const fy_cuda_late *late, ferry_error *error)
{
    const late_blocks *one = (const late_blocks *)late;
    fy_cuda_scratch scratch;
    uint64_t before;
    FY_TRY(fy_cuda_begin_sound(queue, &before, error));
    ferry_status status = check(queue, one, error);
    if (status == FERRY_OK && !fy_cuda_scratch_of(queue, &scratch)) {
        status = fy_fail(error, FERRY_ERR_NO_MEMORY, "CUDA device %d has no memory for scales",
                         (int)queue->device->number);
    }
    FY_THEN(status, find_all(queue, one, scratch.scales, error));
    return fy_cuda_end(queue, before, status, error);
}

ferry_status fy_cuda_largest_of(fy_exec_queue *queue, const fy_blocks *blocks, const void *base,
                                float *largest_out, ferry_error *error)
{
    const late_blocks one = {
        .late = {.perform = perform}, .blocks = *blocks, .base = base, .largest_out = largest_out};
    if (blocks->n_rows == 0 || blocks->n_columns == 0) {
        return FERRY_OK;
    }
    pthread_mutex_lock(&queue->calls);
    ferry_status status = fy_cuda_do(queue, &one.late, sizeof one, error);
    pthread_mutex_unlock(&queue->calls);
    return status;
}
