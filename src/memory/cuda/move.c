/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/stage.h"

#include "base/checked.h"
#include "memory/cuda/lower.h"

/* Copies between memory that the device reaches. */

static fy_cuda_kernel kernel_of(uint32_t unit_bytes)
{
    switch (unit_bytes) {
    case 16:
        return FY_NUMBER_OF_fy_cuda_copy_16;
    case 8:
        return FY_NUMBER_OF_fy_cuda_copy_8;
    case 4:
        return FY_NUMBER_OF_fy_cuda_copy_4;
    case 2:
        return FY_NUMBER_OF_fy_cuda_copy_2;
    default:
        return FY_NUMBER_OF_fy_cuda_copy_1;
    }
}

static ferry_status refuse(ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_LIMIT,
                   "an area has more than %d rows within a row of its outermost dim, which is "
                   "more than a copy by a CUDA device can count",
                   (int)FY_CUDA_MOST_UNITS);
}

/* Whole units, from unit `first` on. */
static ferry_status copy_units(fy_exec_queue *queue, fy_cuda_place to, fy_cuda_place from,
                               uint32_t unit_bytes, uint64_t first, uint64_t n_units,
                               ferry_error *error)
{
    fy_cuda_copy one = {.n_units = 0};
    for (uint64_t n; n_units > 0; first += n, n_units -= n) {
        n = n_units;
        if (!fy_cuda_side_make(to, unit_bytes, first, &n, &one.to) ||
            !fy_cuda_side_make(from, unit_bytes, first, &n, &one.from)) {
            return refuse(error);
        }
        one.n_units = (uint32_t)n;
        FY_TRY(fy_cuda_launch(queue->device, queue->stream, kernel_of(unit_bytes), &one, n,
                              FY_CUDA_DEEP, error));
        queue->n_issued++;
    }
    return FERRY_OK;
}

/* Bytes of whole rows, from row `first` on. */
static ferry_status copy_rows(fy_exec_queue *queue, fy_cuda_place to, fy_cuda_place from,
                              uint32_t row_bytes, uint64_t first, uint64_t n_rows,
                              ferry_error *error)
{
    uint64_t windows = fy_cuda_windows_of(row_bytes), begin = 0, end = 0;
    fy_cuda_rows one = {.row_bytes = row_bytes, .windows = fy_cuda_divisor_of((uint32_t)windows)};
    /* What is before and behind these rows may be nobody's. */
    fy_area_hull_of(from.area, first * row_bytes, n_rows * row_bytes, &begin, &end);
    one.from_begin = from.base + begin;
    one.from_end = from.base + end;
    for (uint64_t n; n_rows > 0; first += n, n_rows -= n) {
        n = fy_min(n_rows, FY_CUDA_MOST_UNITS / windows);
        if (!fy_cuda_side_make(to, row_bytes, first, &n, &one.to) ||
            !fy_cuda_side_make(from, row_bytes, first, &n, &one.from)) {
            return refuse(error);
        }
        one.n_units = (uint32_t)(n * windows);
        FY_TRY(fy_cuda_launch(queue->device, queue->stream, FY_NUMBER_OF_fy_cuda_copy_rows, &one,
                              one.n_units, 1, error));
        queue->n_issued++;
    }
    return FERRY_OK;
}

static ferry_status copy_bytes(fy_exec_queue *queue, CUdeviceptr to, CUdeviceptr from,
                               uint64_t bytes, ferry_error *error)
{
    FY_TRY(fy_cuda_check(fy_cuda.cuMemcpyAsync(to, from, (size_t)bytes, queue->stream),
                         "copying memory of a device", error));
    queue->n_issued++;
    return FERRY_OK;
}

/* The lowest bits of an address and of what is to be copied: 16, or a smaller power of two. */
static uint32_t power_in(uint64_t number)
{
    uint64_t all = number | 16;
    return (uint32_t)(all & -all);
}

/*
 * What is before the first whole unit, and behind the last, is copied in units of its own. An area
 * without dims has runs that begin anywhere, so its units count from `first` on.
 */
static ferry_status move_units(fy_exec_queue *queue, fy_cuda_place t, fy_cuda_place f,
                               uint32_t unit, uint64_t first, uint64_t bytes, ferry_error *error)
{
    uint64_t head = fy_min((unit - first % unit) % unit, bytes);
    uint64_t body = (bytes - head) / unit * unit, tail = bytes - head - body;
    ferry_status status = FERRY_OK;
    if (head > 0) {
        uint32_t small = (uint32_t)fy_min(unit, power_in(first | head));
        status = copy_units(queue, t, f, small, first / small, head / small, error);
    }
    FY_THEN(status, copy_units(queue, t, f, unit, (first + head) / unit, body / unit, error));
    if (status == FERRY_OK && tail > 0) {
        uint32_t small = (uint32_t)fy_min(unit, power_in((first + head + body) | tail));
        status = copy_units(queue, t, f, small, (first + head + body) / small, tail / small, error);
    }
    return status;
}

static ferry_status move_any(fy_exec_queue *queue, fy_cuda_place t, fy_cuda_place f, uint64_t first,
                             uint64_t bytes, ferry_error *error);

enum { LEAST_REPEATED = 128 };

/*
 * A window takes as long as some units do, and rows are in more windows than they need. But what
 * is read again and again stays near the threads that read windows.
 */
static bool pays(uint64_t row_bytes, uint32_t unit, bool repeats)
{
    uint64_t windows = row_bytes == 0 ? 0 : fy_cuda_windows_of(row_bytes);
    bool is_less = unit < FY_CUDA_WINDOW && 2 * (row_bytes / unit) >= 3 * windows;
    return windows > 0 && row_bytes <= FY_CUDA_MOST_UNITS &&
           (is_less || (repeats && row_bytes >= LEAST_REPEATED));
}

/* Whole rows by windows, and what is before and behind them, which is within a row, otherwise. */
static ferry_status move_rows(fy_exec_queue *queue, fy_cuda_place t, fy_cuda_place f,
                              uint64_t row_bytes, uint64_t first, uint64_t bytes,
                              ferry_error *error)
{
    uint64_t head = fy_min((row_bytes - first % row_bytes) % row_bytes, bytes);
    uint64_t n_rows = (bytes - head) / row_bytes, tail = (bytes - head) % row_bytes;
    ferry_status status = FERRY_OK;
    if (head > 0) {
        status = move_any(queue, t, f, first, head, error);
    }
    FY_THEN(status,
            copy_rows(queue, t, f, (uint32_t)row_bytes, (first + head) / row_bytes, n_rows, error));
    if (status == FERRY_OK && tail > 0) {
        status = move_any(queue, t, f, first + bytes - tail, tail, error);
    }
    return status;
}

static ferry_status move_any(fy_exec_queue *queue, fy_cuda_place t, fy_cuda_place f, uint64_t first,
                             uint64_t bytes, ferry_error *error)
{
    uint64_t to_address, from_address, row_bytes = fy_cuda_row_of(t, f);
    bool is_flat = fy_cuda_is_flat(t, first, bytes, &to_address);
    is_flat = fy_cuda_is_flat(f, first, bytes, &from_address) && is_flat;
    if (is_flat) {
        return copy_bytes(queue, to_address, from_address, bytes, error);
    }
    uint32_t unit = (uint32_t)fy_min(fy_cuda_unit_of(t), fy_cuda_unit_of(f));
    return pays(row_bytes, unit, fy_cuda_repeats(f.area))
               ? move_rows(queue, t, f, row_bytes, first, bytes, error)
               : move_units(queue, t, f, unit, first, bytes, error);
}

ferry_status fy_cuda_move(fy_exec_queue *queue, const fy_area *to, void *to_base,
                          const fy_area *from, const void *from_base, uint64_t first,
                          uint64_t bytes, ferry_error *error)
{
    fy_cuda_place t = {to, (uint64_t)(uintptr_t)to_base};
    fy_cuda_place f = {from, (uint64_t)(uintptr_t)from_base};
    return move_any(queue, t, f, first, bytes, error);
}
