/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#define FY_COPY_STREAM fy_copy_stream_avx512
#define VECTOR __m512i
#define LOAD(from) _mm512_loadu_si512((const void *)(from))
#define STREAM(to, vector) _mm512_stream_si512((__m512i *)(void *)(to), vector)
#include "host/copy_body.h"
