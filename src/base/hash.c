/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/hash_isa.h"

#include <stdio.h>
#include <string.h>

static const fy_hash_kernels *kernels(void)
{
    static const fy_hash_kernels *const all[] = {
        [FY_ISA_BASELINE] = &fy_hash_baseline,
        [FY_ISA_AVX2] = &fy_hash_avx2,
        [FY_ISA_AVX512] = &fy_hash_avx512,
    };
    return all[fy_cpu_isa()];
}

uint64_t fy_hash64(const void *bytes, size_t n_bytes)
{
    return kernels()->hash64(bytes, n_bytes);
}

fy_hash128 fy_hash128_of(const void *bytes, size_t n_bytes)
{
    return kernels()->hash128(bytes, n_bytes);
}

void fy_hasher_begin(fy_hasher *hasher)
{
    kernels()->begin(hasher);
}

void fy_hasher_update(fy_hasher *hasher, const void *bytes, size_t n_bytes)
{
    kernels()->update(hasher, bytes, n_bytes);
}

uint64_t fy_hasher_end(const fy_hasher *hasher)
{
    return kernels()->end(hasher);
}

size_t fy_hash128_print(fy_hash128 hash, char *text, size_t text_bytes)
{
    return (size_t)snprintf(text, text_bytes, "%016llx%016llx", (unsigned long long)hash.high,
                            (unsigned long long)hash.low);
}

static unsigned char *room(fy_digest *digest, size_t n_bytes)
{
    if (digest->failed || !FY_RESERVE(digest->bytes, digest->capacity, digest->used + n_bytes)) {
        digest->failed = 1;
        return NULL;
    }
    digest->used += n_bytes;
    return digest->bytes + digest->used - n_bytes;
}

/* Numbers lie as they are hashed: see hash.h. */
void fy_digest_u64s(fy_digest *digest, const uint64_t *values, size_t n)
{
    unsigned char *bytes = room(digest, n * sizeof *values);
    if (bytes != NULL) {
        memcpy(bytes, values, n * sizeof *values);
    }
}

void fy_digest_u64(fy_digest *digest, uint64_t value)
{
    fy_digest_u64s(digest, &value, 1);
}

void fy_digest_text(fy_digest *digest, const char *text)
{
    size_t length = strlen(text);
    fy_digest_u64(digest, length);
    unsigned char *bytes = room(digest, length);
    if (bytes != NULL) {
        memcpy(bytes, text, length);
    }
}

void fy_digest_hash(fy_digest *digest, fy_hash128 hash)
{
    fy_digest_u64(digest, hash.low);
    fy_digest_u64(digest, hash.high);
}

fy_hash128 fy_digest_take(fy_digest *digest)
{
    fy_hash128 hash =
        fy_hash128_of(digest->bytes == NULL ? (const void *)"" : digest->bytes, digest->used);
    digest->used = 0;
    return hash;
}

void fy_digest_cleanup(fy_digest *digest)
{
    fy_free(digest->bytes);
    *digest = (fy_digest){0};
}

fy_hasher *fy_hashers_alloc(size_t n, void **raw_out)
{
    enum { ALIGNMENT = _Alignof(fy_hasher) };
    void *raw = fy_alloc(n + 1, sizeof(fy_hasher));
    *raw_out = raw;
    if (raw == NULL) {
        return NULL;
    }
    uintptr_t at = (uintptr_t)raw;
    return (fy_hasher *)((char *)raw + (ALIGNMENT - at % ALIGNMENT) % ALIGNMENT);
}
