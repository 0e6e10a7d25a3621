/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Stands in for cast_avx2.c and cast_avx512.c on machines that have neither: never chosen. */
#include "exec/cast.h"

const fy_cast_kernels fy_cast_avx2 = {0};
const fy_cast_kernels fy_cast_avx512 = {0};
