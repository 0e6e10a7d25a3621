/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#define FY_COPY_STREAM fy_copy_stream_avx2
#define VECTOR __m256i
#define LOAD(from) _mm256_loadu_si256((const __m256i *)(const void *)(from))
#define STREAM(to, vector) _mm256_stream_si256((__m256i *)(void *)(to), vector)
#include "host/copy_body.h"
