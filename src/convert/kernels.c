/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "convert/kernels.h"

const fy_convert_kernels *fy_convert_kernels_here(void)
{
    static const fy_convert_kernels *const all[] = {
        [FY_ISA_BASELINE] = &fy_convert_baseline,
        [FY_ISA_AVX2] = &fy_convert_avx2,
        [FY_ISA_AVX512] = &fy_convert_avx512,
    };
    return all[fy_cpu_isa()];
}
