/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Stands in for copy_avx2.c and copy_avx512.c on machines that have neither. */
#include "host/copy_isa.h"

void fy_copy_stream_avx2(void *to, const void *from, size_t n_bytes, unsigned n_streams)
{
    fy_copy_stream_baseline(to, from, n_bytes, n_streams);
}

void fy_copy_stream_avx512(void *to, const void *from, size_t n_bytes, unsigned n_streams)
{
    fy_copy_stream_baseline(to, from, n_bytes, n_streams);
}
