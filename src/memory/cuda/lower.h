/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_LOWER_H
#define FY_MEMORY_CUDA_LOWER_H

#include "exec/area.h"
#include "memory/cuda/arguments.h"

/*
 * Areas as kernels take them. Pure: what becomes of an area is worked out here, and nothing is
 * launched.
 */

/* Of 1 to 2^30; what is divided is below 2^31. */
fy_cuda_divisor fy_cuda_divisor_of(uint32_t value);

/* An area at an address. */
typedef struct fy_cuda_place {
    const fy_area *area;
    uint64_t base;
} fy_cuda_place;

/* The widest access, of 1 to 16 bytes, of which the place's runs all consist, and their addresses
 * are multiples. */
uint32_t fy_cuda_unit_of(fy_cuda_place place);

/*
 * The longest rows of which both places consist, that may begin anywhere; 0: there are none, as
 * neither's runs are whole ones of the other's.
 */
uint64_t fy_cuda_row_of(fy_cuda_place to, fy_cuda_place from);

/* Windows of a row of these bytes, wherever it begins. */
uint64_t fy_cuda_windows_of(uint64_t row_bytes);

/* Whether an area says the same run again and again. */
bool fy_cuda_repeats(const fy_area *area);

/* Whether bytes [first, first + bytes) lie side by side; their address then. */
bool fy_cuda_is_flat(fy_cuda_place place, uint64_t first, uint64_t bytes, uint64_t *address_out);

/*
 * The side of a launch that begins at unit `first`: for as many of *n_units_inout as one launch can
 * have, at least 1. Of units of unit_bytes, which divide the runs. False: it has more rows side by
 * side than a launch can count.
 */
bool fy_cuda_side_make(fy_cuda_place place, uint32_t unit_bytes, uint64_t first,
                       uint64_t *n_units_inout, fy_cuda_side *side_out);

#endif
