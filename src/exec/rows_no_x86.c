/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Stands in for rows_avx2.c and rows_avx512.c on machines that have neither: never chosen. */
#include "exec/rows.h"

const fy_rows_kernels fy_rows_avx2 = {0};
const fy_rows_kernels fy_rows_avx512 = {0};
