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
