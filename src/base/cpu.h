/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_CPU_H
#define FY_BASE_CPU_H

/* The instruction sets that ferry has code for, worst first; a machine with one has those before
 * it. */
typedef enum fy_isa {
    FY_ISA_BASELINE = 0,
    FY_ISA_AVX2 = 1,
    FY_ISA_AVX512 = 2,
} fy_isa;

/* The best one that this machine has and FERRY_ISA, if set, allows. Asked once, then remembered. */
fy_isa fy_cpu_isa(void);

const char *fy_isa_name(fy_isa isa);

#endif
