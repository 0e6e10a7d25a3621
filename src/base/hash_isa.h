/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_HASH_ISA_H
#define FY_BASE_HASH_ISA_H

#include "base/hash.h"

/*
 * One copy of XXH3 per instruction set: hash_<isa>.c. The state of one is of no use to another.
 */
typedef struct fy_hash_kernels {
    uint64_t (*hash64)(const void *bytes, size_t n_bytes);
    fy_hash128 (*hash128)(const void *bytes, size_t n_bytes);
    void (*begin)(fy_hasher *hasher);
    void (*update)(fy_hasher *hasher, const void *bytes, size_t n_bytes);
    uint64_t (*end)(const fy_hasher *hasher);
} fy_hash_kernels;

extern const fy_hash_kernels fy_hash_baseline, fy_hash_avx2, fy_hash_avx512;

#endif
