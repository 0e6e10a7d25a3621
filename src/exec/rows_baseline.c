/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)

#define FY_ROWS fy_rows_baseline
#define VECTOR __m128i
#define LOAD(from) _mm_loadu_si128((const __m128i *)(const void *)(from))
#define STORE(to, vector) _mm_store_si128((__m128i *)(void *)(to), vector)
#define STREAM(to, vector) _mm_stream_si128((__m128i *)(void *)(to), vector)
#define XOR(a, b) _mm_xor_si128(a, b)
#define ADD(a, b) _mm_add_epi64(a, b)
#define MULTIPLY(a, b) _mm_mul_epu32(a, b)
#define RIGHT(a, n) _mm_srli_epi64(a, n)
#define LEFT(a, n) _mm_slli_epi64(a, n)
#define SWAP(a) _mm_shuffle_epi32(a, 0x4e)
#define SPREAD(number) _mm_set1_epi32((int)(number))
#include "exec/rows_body.h"

#else

#include "exec/rows.h"

#include <string.h>

enum { LINE = 64 };

/* No streaming stores that C can reach: libc knows this machine best. Hashes go another way. */
static void copy(const fy_row *rows, size_t n_rows, size_t row_bytes, unsigned n_streams)
{
    (void)n_streams;
    for (size_t i = 0; i < n_rows; i++) {
        memcpy(rows[i].to, rows[i].from, row_bytes);
    }
}

static void stream(const fy_block *block, uint64_t ahead)
{
    (void)ahead;
    fy_block_copy_cached(block);
}

static void stream_run(const fy_block *block, uint64_t ahead, bool is_first, bool is_last)
{
    (void)ahead;
    fy_block b = *block;
    size_t skip = is_first ? 0 : -(uintptr_t)b.to % LINE;
    if (skip != 0) {
        memcpy(b.to + skip, b.from + skip, (size_t)b.row_bytes - skip);
        b.to += b.row_bytes;
        b.from += b.from_distance;
        b.n_rows--;
    }
    fy_block_copy_cached(&b);
    b.to += b.n_rows * b.to_distance;
    b.from += b.n_rows * b.from_distance;
    memcpy(b.to, b.from, is_last ? 0 : -(uintptr_t)b.to % LINE);
}

const fy_rows_kernels fy_rows_baseline = {.copy = copy, .stream = stream, .stream_run = stream_run};

#endif
