/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_HOST_COPY_ISA_H
#define FY_HOST_COPY_ISA_H

#include "base/cpu.h"

#include <stddef.h>

/* Copies past the cache, without a fence; n_streams: as fy_cpu_streams says. */
typedef void fy_copy_kernel(void *to, const void *from, size_t n_bytes, unsigned n_streams);

/* One for each instruction set: copy_<isa>.c. */
fy_copy_kernel fy_copy_stream_baseline;
fy_copy_kernel fy_copy_stream_avx2;
fy_copy_kernel fy_copy_stream_avx512;

/* That of an instruction set, whatever FERRY_ISA says; the machine must have the set. */
fy_copy_kernel *fy_copy_kernel_of(fy_isa isa);

#endif
