/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)

#define FY_COPY_STREAM fy_copy_stream_baseline
#define VECTOR __m128i
#define LOAD(from) _mm_loadu_si128((const __m128i *)(const void *)(from))
#define STREAM(to, vector) _mm_stream_si128((__m128i *)(void *)(to), vector)
#include "host/copy_body.h"

#else

#include "host/copy.h"
#include "host/copy_isa.h"

/* No streaming stores that C can reach: libc knows this machine best. */
void fy_copy_stream_baseline(void *to, const void *from, size_t n_bytes, unsigned n_streams)
{
    (void)n_streams;
    fy_copy_cached(to, from, n_bytes);
}

#endif
