/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_HASH_H
#define FY_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/*
 * XXH3 of bytes. The results are the same on every machine; only the speed depends on the
 * instruction set, which is chosen at start. Never hash a struct: its padding is not part of its
 * value.
 */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "arrays of numbers are hashed as they lie: a big-endian port must swap them first");

typedef struct fy_hash128 {
    uint64_t low;
    uint64_t high;
} fy_hash128;

uint64_t fy_hash64(const void *bytes, size_t n_bytes);
fy_hash128 fy_hash128_of(const void *bytes, size_t n_bytes);

/*
 * The 64-bit hash of bytes that come piece by piece: the same as of all at once. Pieces of a few
 * hundred bytes or less are slow.
 */
typedef struct fy_hasher {
    _Alignas(64) unsigned char state[640];
} fy_hasher;

/* n of them on the heap, where alignment takes care: NULL without memory; free what *raw_out is. */
fy_hasher *fy_hashers_alloc(size_t n, void **raw_out);

void fy_hasher_begin(fy_hasher *hasher);
void fy_hasher_update(fy_hasher *hasher, const void *bytes, size_t n_bytes);
uint64_t fy_hasher_end(const fy_hasher *hasher);

/*
 * For code that hashes while it copies, and so adds up XXH3's stripes of 64 bytes by itself.
 * fy_hasher_numbers gives it what it begins with: the numbers of a new hasher, and the secret. With
 * fy_hasher_resume the hasher takes over again, behind n_stripes that are more than 240 bytes, and
 * before the last byte. Sums are scrambled behind every whole block of 16 stripes.
 */
void fy_hasher_numbers(const fy_hasher *hasher, uint64_t numbers_out[8],
                       const unsigned char **secret_out);
void fy_hasher_resume(fy_hasher *hasher, const uint64_t numbers[8], uint64_t n_stripes,
                      const void *last_stripe);

/* Mixes two 64-bit numbers into one: for keys that are a few numbers. Not for digests. */
static inline uint64_t fy_hash_mix(uint64_t a, uint64_t b)
{
    uint64_t x = a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2));
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

/* Addition mod 2^128: the digest of a set is the sum of its members' hashes, in whatever order. */
static inline fy_hash128 fy_hash128_add(fy_hash128 a, fy_hash128 b)
{
    fy_hash128 sum = {.low = a.low + b.low};
    sum.high = a.high + b.high + (sum.low < a.low);
    return sum;
}

/* 32 hex digits, high half first, cut to fit the buffer: what they take without their zero. */
size_t fy_hash128_print(fy_hash128 hash, char *text, size_t text_bytes);

/*
 * A growing record of values to be hashed at the end, each in a fixed form (little endian, texts
 * with their length): two machines that put the same values get the same digest.
 */
typedef struct fy_digest {
    unsigned char *bytes;
    size_t used;
    size_t capacity;
    int failed; /* an allocation failed; the digest is void */
} fy_digest;

void fy_digest_u64(fy_digest *digest, uint64_t value);
void fy_digest_u64s(fy_digest *digest, const uint64_t *values, size_t n);
void fy_digest_text(fy_digest *digest, const char *text);
void fy_digest_hash(fy_digest *digest, fy_hash128 hash);
/* Hashes what was put and starts the record anew, keeping its memory. */
fy_hash128 fy_digest_take(fy_digest *digest);
void fy_digest_cleanup(fy_digest *digest);

#endif
