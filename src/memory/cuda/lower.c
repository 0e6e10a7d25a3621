/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/lower.h"

#include "base/checked.h"

#include <string.h>

_Static_assert(FERRY_MAX_DIMS <= FY_CUDA_MOST_DIMS, "a side of a launch has all dims of an area");

/*
 * With 2^(s-1) < value <= 2^s and the multiplier the next integer of 2^(31+s) / value, the product
 * is too large by less than n x value / 2^(31+s) < n / 2^31 < 1 in the quotient's last place.
 */
fy_cuda_divisor fy_cuda_divisor_of(uint32_t value)
{
    uint32_t s = 0;
    while (((uint64_t)1 << s) < value) {
        s++;
    }
    uint64_t power = (uint64_t)1 << (31 + s);
    return (fy_cuda_divisor){
        .value = value, .multiplier = (uint32_t)fy_ceil_div(power, value), .shift = 31 + s};
}

uint32_t fy_cuda_unit_of(fy_cuda_place place)
{
    const fy_area *area = place.area;
    uint64_t all = (place.base + area->offset) | 16;
    if (area->n_dims > 0) {
        all |= area->run_bytes;
    }
    for (uint32_t d = 0; d < area->n_dims; d++) {
        all |= area->stride[d];
    }
    return (uint32_t)(all & -all);
}

uint64_t fy_cuda_row_of(fy_cuda_place to, fy_cuda_place from)
{
    uint64_t a = to.area->n_dims == 0 ? 0 : to.area->run_bytes;
    uint64_t b = from.area->n_dims == 0 ? 0 : from.area->run_bytes;
    uint64_t least = a == 0 || b == 0 ? a + b : fy_min(a, b);
    return least > 0 && a % least == 0 && b % least == 0 ? least : 0;
}

uint64_t fy_cuda_windows_of(uint64_t row_bytes)
{
    return (row_bytes + FY_CUDA_WINDOW - 2) / FY_CUDA_WINDOW + 1; /* with 15 bytes before it */
}

bool fy_cuda_repeats(const fy_area *area)
{
    uint64_t all = 0;
    for (uint32_t d = 0; d < area->n_dims; d++) {
        all |= area->stride[d];
    }
    return area->n_dims > 0 && all == 0;
}

bool fy_cuda_is_flat(fy_cuda_place place, uint64_t first, uint64_t bytes, uint64_t *address_out)
{
    fy_area_walk walk = fy_area_walk_of(place.area, first, bytes);
    *address_out = place.base + walk.at;
    return bytes <= walk.n_here;
}

/* Where the launch begins, with as much of the run as is left as a side without dims. */
static void make_flat(uint64_t address, uint32_t unit_bytes, fy_cuda_side *side)
{
    *side = (fy_cuda_side){.base = address, .unit_bytes = unit_bytes};
}

bool fy_cuda_side_make(fy_cuda_place place, uint32_t unit_bytes, uint64_t first,
                       uint64_t *n_units_inout, fy_cuda_side *side_out)
{
    const fy_area *area = place.area;
    uint64_t begin = first * unit_bytes, run_units = area->run_bytes / unit_bytes;
    fy_area_walk walk = fy_area_walk_of(area, begin, *n_units_inout * unit_bytes);
    memset(side_out, 0, sizeof *side_out);
    *n_units_inout = fy_min(*n_units_inout, FY_CUDA_MOST_UNITS);
    if (area->n_dims == 0 || *n_units_inout * unit_bytes <= walk.n_here ||
        run_units > FY_CUDA_MOST_UNITS) {
        *n_units_inout = fy_min(*n_units_inout, walk.n_here / unit_bytes);
        make_flat(place.base + walk.at, unit_bytes, side_out);
        return true;
    }
    uint64_t in_run = area->run_bytes - walk.n_here;
    side_out->base =
        place.base + area->offset + walk.index[0] * area->stride[0]; /* which has no division */
    side_out->run = fy_cuda_divisor_of((uint32_t)run_units);
    side_out->start = (uint32_t)(in_run / unit_bytes);
    side_out->unit_bytes = unit_bytes;
    side_out->n_dims = area->n_dims;
    for (uint32_t d = 0; d < area->n_dims; d++) {
        fy_cuda_dim *dim = &side_out->dims[d];
        dim->stride = area->stride[d];
        if (d == 0) {
            continue;
        }
        if (area->length[d] > FY_CUDA_MOST_UNITS) {
            return false;
        }
        dim->length = fy_cuda_divisor_of((uint32_t)area->length[d]);
        dim->start = (uint32_t)walk.index[d];
    }
    return true;
}
