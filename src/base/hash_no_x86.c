/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Stands in for hash_avx2.c and hash_avx512.c on machines that have neither. */
#include "base/hash_isa.h"

uint64_t fy_hash64_avx2(const void *bytes, size_t n_bytes)
{
    return fy_hash64_baseline(bytes, n_bytes);
}

fy_hash128 fy_hash128_avx2(const void *bytes, size_t n_bytes)
{
    return fy_hash128_baseline(bytes, n_bytes);
}

uint64_t fy_hash64_avx512(const void *bytes, size_t n_bytes)
{
    return fy_hash64_baseline(bytes, n_bytes);
}

fy_hash128 fy_hash128_avx512(const void *bytes, size_t n_bytes)
{
    return fy_hash128_baseline(bytes, n_bytes);
}

void fy_hasher_begin_avx2(fy_hasher *hasher)
{
    fy_hasher_begin_baseline(hasher);
}

void fy_hasher_update_avx2(fy_hasher *hasher, const void *bytes, size_t n_bytes)
{
    fy_hasher_update_baseline(hasher, bytes, n_bytes);
}

uint64_t fy_hasher_end_avx2(const fy_hasher *hasher)
{
    return fy_hasher_end_baseline(hasher);
}

void fy_hasher_begin_avx512(fy_hasher *hasher)
{
    fy_hasher_begin_baseline(hasher);
}

void fy_hasher_update_avx512(fy_hasher *hasher, const void *bytes, size_t n_bytes)
{
    fy_hasher_update_baseline(hasher, bytes, n_bytes);
}

uint64_t fy_hasher_end_avx512(const fy_hasher *hasher)
{
    return fy_hasher_end_baseline(hasher);
}
