/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_DTYPE_H
#define FY_MODEL_DTYPE_H

#include <ferry/dtype.h>

#include <stdbool.h>

/* The type that a safetensors header names; false for one that ferry has no name for. */
bool fy_dtype_from_safetensors(const char *text, ferry_dtype *dtype_out);

/* Whether kind and bits agree. */
bool fy_dtype_is_valid(ferry_dtype dtype);

#endif
