/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Stands in for kernels_avx2.c and kernels_avx512.c on machines that have neither: never chosen. */
#include "convert/kernels.h"

const fy_convert_kernels fy_convert_avx2 = {0};
const fy_convert_kernels fy_convert_avx512 = {0};
