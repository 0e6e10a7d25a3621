/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "host/copy.h"

#include "host/copy_isa.h"

fy_copy_kernel *fy_copy_kernel_of(fy_isa isa)
{
    static fy_copy_kernel *const kernels[] = {
        [FY_ISA_BASELINE] = fy_copy_stream_baseline,
        [FY_ISA_AVX2] = fy_copy_stream_avx2,
        [FY_ISA_AVX512] = fy_copy_stream_avx512,
    };
    return kernels[isa];
}

void fy_copy_streaming_unfenced(void *to, const void *from, size_t n_bytes)
{
    if (n_bytes != 0) {
        fy_copy_kernel_of(fy_cpu_isa())(to, from, n_bytes, fy_cpu_streams());
    }
}

void fy_copy_streaming(void *to, const void *from, size_t n_bytes)
{
    fy_copy_streaming_unfenced(to, from, n_bytes);
    fy_copy_fence();
}
