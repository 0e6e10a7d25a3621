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

/*
 * How many streams of memory a thread best copies side by side: 4 on Intel's processors, which wait
 * at the begin of each page, or 1. AMD's do not wait there, and streams that lie at one place of
 * their pages are in each other's way: four of them take three times as long as one.
 */
enum { FY_CPU_MOST_STREAMS = 4 };
unsigned fy_cpu_streams(void);

#endif
