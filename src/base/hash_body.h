/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of hash_<isa>.c: included once in each, after FY_HASH is defined and with the compiler
 * flags of that instruction set. XXH_INLINE_ALL makes every function static, so the copies cannot
 * be confused by the linker.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/hash_isa.h"

static uint64_t hash64(const void *bytes, size_t n_bytes)
{
    return XXH3_64bits(bytes, n_bytes);
}

static fy_hash128 hash128(const void *bytes, size_t n_bytes)
{
    XXH128_hash_t hash = XXH3_128bits(bytes, n_bytes);
    return (fy_hash128){.low = hash.low64, .high = hash.high64};
}

_Static_assert(sizeof(XXH3_state_t) <= sizeof(fy_hasher), "a hasher has room for XXH3's state");
_Static_assert(_Alignof(XXH3_state_t) <= _Alignof(fy_hasher), "and is aligned as it is");

static void begin(fy_hasher *hasher)
{
    XXH3_64bits_reset((XXH3_state_t *)(void *)hasher->state);
}

static void update(fy_hasher *hasher, const void *bytes, size_t n_bytes)
{
    XXH3_64bits_update((XXH3_state_t *)(void *)hasher->state, bytes, n_bytes);
}

static uint64_t end(const fy_hasher *hasher)
{
    return XXH3_64bits_digest((const XXH3_state_t *)(const void *)hasher->state);
}

const fy_hash_kernels FY_HASH = {
    .hash64 = hash64, .hash128 = hash128, .begin = begin, .update = update, .end = end};
