/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#define FY_ROWS fy_rows_avx2
#define VECTOR __m256i
#define LOAD(from) _mm256_loadu_si256((const __m256i *)(const void *)(from))
#define STORE(to, vector) _mm256_store_si256((__m256i *)(void *)(to), vector)
#define STREAM(to, vector) _mm256_stream_si256((__m256i *)(void *)(to), vector)
#define XOR(a, b) _mm256_xor_si256(a, b)
#define ADD(a, b) _mm256_add_epi64(a, b)
#define MULTIPLY(a, b) _mm256_mul_epu32(a, b)
#define RIGHT(a, n) _mm256_srli_epi64(a, n)
#define LEFT(a, n) _mm256_slli_epi64(a, n)
#define SWAP(a) _mm256_shuffle_epi32(a, 0x4e)
#define SPREAD(number) _mm256_set1_epi32((int)(number))
#include "exec/rows_body.h"
