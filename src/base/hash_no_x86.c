/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Stands in for hash_avx2.c and hash_avx512.c on machines that have neither: never chosen. */
#include "base/hash_isa.h"

const fy_hash_kernels fy_hash_avx2 = {0};
const fy_hash_kernels fy_hash_avx512 = {0};
