/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Stands in for tiles_avx2.c and tiles_avx512.c on machines that have neither: never chosen. */
#include "exec/tiles.h"

const fy_tiles_kernels fy_tiles_avx2 = {.transpose = {0}};
const fy_tiles_kernels fy_tiles_avx512 = {.transpose = {0}};
