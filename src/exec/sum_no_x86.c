/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Stands in for sum_avx2.c and sum_avx512.c on machines that have neither: never chosen. */
#include "exec/sum_isa.h"

void fy_sum_avx2(const fy_sum *sum)
{
    fy_sum_baseline(sum);
}

void fy_sum_avx512(const fy_sum *sum)
{
    fy_sum_baseline(sum);
}
