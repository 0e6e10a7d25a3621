/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of hash_<isa>.c: included once in each, after FY_HASH64, FY_HASH128 and the three
 * FY_HASHER_ are defined and with the compiler flags of that instruction set. XXH_INLINE_ALL makes
 * every function static, so the copies cannot be confused by the linker.
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

_Static_assert(sizeof(XXH3_state_t) <= sizeof(fy_hasher), "a hasher has room for XXH3's state");
_Static_assert(_Alignof(XXH3_state_t) <= _Alignof(fy_hasher), "and is aligned as it is");

void FY_HASHER_BEGIN(fy_hasher *hasher)
{
    XXH3_64bits_reset((XXH3_state_t *)(void *)hasher->state);
}

void FY_HASHER_UPDATE(fy_hasher *hasher, const void *bytes, size_t n_bytes)
{
    XXH3_64bits_update((XXH3_state_t *)(void *)hasher->state, bytes, n_bytes);
}

uint64_t FY_HASHER_END(const fy_hasher *hasher)
{
    return XXH3_64bits_digest((const XXH3_state_t *)(const void *)hasher->state);
}
