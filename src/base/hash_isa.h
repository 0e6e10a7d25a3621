/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_HASH_ISA_H
#define FY_BASE_HASH_ISA_H

#include "base/hash.h"

/* One copy of XXH3 per instruction set: hash_<isa>.c. */
uint64_t fy_hash64_baseline(const void *bytes, size_t n_bytes);
fy_hash128 fy_hash128_baseline(const void *bytes, size_t n_bytes);
uint64_t fy_hash64_avx2(const void *bytes, size_t n_bytes);
fy_hash128 fy_hash128_avx2(const void *bytes, size_t n_bytes);
uint64_t fy_hash64_avx512(const void *bytes, size_t n_bytes);
fy_hash128 fy_hash128_avx512(const void *bytes, size_t n_bytes);

/* The state of one instruction set is of no use to another. */
void fy_hasher_begin_baseline(fy_hasher *hasher);
void fy_hasher_update_baseline(fy_hasher *hasher, const void *bytes, size_t n_bytes);
uint64_t fy_hasher_end_baseline(const fy_hasher *hasher);
void fy_hasher_begin_avx2(fy_hasher *hasher);
void fy_hasher_update_avx2(fy_hasher *hasher, const void *bytes, size_t n_bytes);
uint64_t fy_hasher_end_avx2(const fy_hasher *hasher);
void fy_hasher_begin_avx512(fy_hasher *hasher);
void fy_hasher_update_avx512(fy_hasher *hasher, const void *bytes, size_t n_bytes);
uint64_t fy_hasher_end_avx512(const fy_hasher *hasher);

#endif
