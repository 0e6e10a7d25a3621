/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/sum.h"

#include "exec/sum_isa.h"
#include "host/copy.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* One source of the targets' own type. A target that is the source has it already. */
static bool copies(const fy_sum *sum)
{
    const void *from = sum->sources[0];
    size_t bytes = sum->n * fy_sum_type_bytes(sum->target_type);
    if (sum->n_sources != 1 || sum->source_type != sum->target_type) {
        return false;
    }
    for (int i = 0; i < FY_SUM_MOST_TARGETS; i++) {
        void *to = sum->targets[i];
        if (to == NULL || to == from) {
            continue;
        }
        if (i == 0 && sum->stream) {
            fy_copy_unfenced(to, from, bytes);
        } else {
            fy_copy_cached(to, from, bytes);
        }
    }
    return true;
}

static void run_baseline(const fy_sum *sum)
{
    if (!copies(sum)) {
        fy_sum_baseline(sum);
    }
}

static void run_avx2(const fy_sum *sum)
{
    if (!copies(sum)) {
        fy_sum_avx2(sum);
    }
}

static void run_avx512(const fy_sum *sum)
{
    if (!copies(sum)) {
        fy_sum_avx512(sum);
    }
}

/* Every processor with AVX2 has F16C, but a virtual machine may hide it. */
static bool has_f16c(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
#else
    return false;
#endif
}

fy_sum_fn fy_sum_of_isa(fy_isa isa)
{
    if (isa > fy_cpu_isa()) {
        return NULL;
    }
    switch (isa) {
    case FY_ISA_AVX512:
        return run_avx512;
    case FY_ISA_AVX2:
        return has_f16c() ? run_avx2 : NULL;
    default:
        return run_baseline;
    }
}

/* Asked once, then remembered: the question costs more than a small sum. */
void fy_sum_run(const fy_sum *sum)
{
    static _Atomic(fy_sum_fn) known; /* NULL: not yet */
    fy_sum_fn run = atomic_load_explicit(&known, memory_order_relaxed);
    if (run == NULL) {
        run = fy_sum_of_isa(fy_cpu_isa());
        run = run == NULL ? run_baseline : run;
        atomic_store_explicit(&known, run, memory_order_relaxed);
    }
    run(sum);
}
