/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CONVERT_SCALE_H
#define FY_CONVERT_SCALE_H

#include "convert/convert.h"
#include "convert/kernels.h"

/* The scales of blocks: see convert.h. */

/* The most blocks at once. */
enum { FY_MOST_BLOCKS = 1024 };

size_t fy_scale_bytes(uint32_t scale_kind);

/*
 * Scales of n blocks, at most FY_MOST_BLOCKS, of their largest magnitudes; NaN marks a block whose
 * scale is NaN. `stored` gets them as they are stored, and `largest` what elements are divided by.
 */
void fy_scales_make(const fy_quantized *q, const fy_convert_kernels *k, float *largest_inout,
                    void *stored, size_t n);

/* What codes are multiplied by, of scales as they are stored. */
void fy_scales_read(const fy_quantized *q, const fy_convert_kernels *k, float *factors,
                    const void *stored, size_t n);

/* The same of one that is stored as f8e8m0. */
float fy_scale_of_power(unsigned char stored);

#endif
