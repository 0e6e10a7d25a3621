/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/cpu.h"

#include "base/config.h"

#include <stdatomic.h>

const char *fy_isa_name(fy_isa isa)
{
    static const char *const names[] = {"baseline", "avx2", "avx512"};
    return names[isa];
}

static fy_isa probe(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return FY_ISA_AVX512;
    }
    if (__builtin_cpu_supports("avx2")) {
        return FY_ISA_AVX2;
    }
#endif
    return FY_ISA_BASELINE;
}

unsigned fy_cpu_streams(void)
{
#if defined(__x86_64__)
    static _Atomic unsigned known;
    unsigned n = atomic_load_explicit(&known, memory_order_relaxed);
    if (n == 0) {
        __builtin_cpu_init();
        n = __builtin_cpu_is("intel") ? FY_CPU_MOST_STREAMS : 1;
        atomic_store_explicit(&known, n, memory_order_relaxed);
    }
    return n;
#else
    return 1;
#endif
}

fy_isa fy_cpu_isa(void)
{
    static _Atomic int known = -1;
    int isa = atomic_load_explicit(&known, memory_order_relaxed);
    if (isa < 0) {
        int allowed = fy_config_isa();
        isa = (int)probe();
        if (allowed < isa) {
            isa = allowed;
        }
        atomic_store_explicit(&known, isa, memory_order_relaxed);
    }
    return (fy_isa)isa;
}
