/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#define FY_ROWS fy_rows_avx512
#define VECTOR __m512i
#define LOAD(from) _mm512_loadu_si512((const void *)(from))
#define STORE(to, vector) _mm512_store_si512((void *)(to), vector)
#define STREAM(to, vector) _mm512_stream_si512((__m512i *)(void *)(to), vector)
#define XOR(a, b) _mm512_xor_si512(a, b)
#define ADD(a, b) _mm512_add_epi64(a, b)
#define MULTIPLY(a, b) _mm512_mul_epu32(a, b)
#define RIGHT(a, n) _mm512_srli_epi64(a, n)
#define LEFT(a, n) _mm512_slli_epi64(a, n)
#define SWAP(a) _mm512_shuffle_epi32(a, (_MM_PERM_ENUM)0x4e)
#define SPREAD(number) _mm512_set1_epi32((int)(number))
#include "exec/rows_body.h"
