/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CONVERT_CAST_H
#define FY_CONVERT_CAST_H

#include "convert/convert.h"
#include "convert/kernels.h"

/* Casts of elements side by side, by way of f32; for whoever has other work in the middle. */

/* n elements of the kind, aligned or not, to f32. */
void fy_widen(const fy_convert_kernels *k, uint32_t kind, float *to, const void *from, size_t n);

/* And from there; never to f64. */
void fy_narrow(const fy_convert_kernels *k, uint32_t kind, fy_overflow overflow, void *to,
               const float *from, size_t n);

#endif
