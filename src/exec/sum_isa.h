/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_SUM_ISA_H
#define FY_EXEC_SUM_ISA_H

#include "exec/sum.h"

/*
 * What an instruction set has: sum_<isa>.c. Any sum but one source of the targets' own type, which
 * is a copy; n may be 0. That of AVX2 needs F16C too.
 */
typedef void fy_sum_kernel(const fy_sum *sum);

fy_sum_kernel fy_sum_baseline;
fy_sum_kernel fy_sum_avx2;
fy_sum_kernel fy_sum_avx512;

#endif
