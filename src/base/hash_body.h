/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of hash_<isa>.c: included once in each, after FY_HASH64 and FY_HASH128 are defined and
 * with the compiler flags of that instruction set. XXH_INLINE_ALL makes every function static, so
 * the copies cannot be confused by the linker.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/hash_isa.h"

uint64_t FY_HASH64(const void *bytes, size_t n_bytes)
{
    return XXH3_64bits(bytes, n_bytes);
}

fy_hash128 FY_HASH128(const void *bytes, size_t n_bytes)
{
    XXH128_hash_t hash = XXH3_128bits(bytes, n_bytes);
    return (fy_hash128){.low = hash.low64, .high = hash.high64};
}
