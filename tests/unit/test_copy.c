/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Every kernel copies what a loop over bytes copies and touches nothing beside it. The ranges end
 * or begin at a page that may not be touched, so that one byte too far is seen without a sanitizer.
 */
#include "base/cpu.h"
#include "host/copy.h"
#include "host/copy_isa.h"

#include "support/check.h"
#include "support/random.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void baseline_alone(void *to, const void *from, size_t n_bytes)
{
    fy_copy_stream_baseline(to, from, n_bytes, 1);
}

static void baseline_side_by_side(void *to, const void *from, size_t n_bytes)
{
    fy_copy_stream_baseline(to, from, n_bytes, FY_CPU_MOST_STREAMS);
}

static void avx2_alone(void *to, const void *from, size_t n_bytes)
{
    fy_copy_stream_avx2(to, from, n_bytes, 1);
}

static void avx2_side_by_side(void *to, const void *from, size_t n_bytes)
{
    fy_copy_stream_avx2(to, from, n_bytes, FY_CPU_MOST_STREAMS);
}

static void avx512_alone(void *to, const void *from, size_t n_bytes)
{
    fy_copy_stream_avx512(to, from, n_bytes, 1);
}

static void avx512_side_by_side(void *to, const void *from, size_t n_bytes)
{
    fy_copy_stream_avx512(to, from, n_bytes, FY_CPU_MOST_STREAMS);
}

static const struct variant {
    const char *name;
    fy_isa needs;
    void (*copy)(void *to, const void *from, size_t n_bytes);
} variants[] = {
    {"baseline", FY_ISA_BASELINE, baseline_alone},
    {"baseline, side by side", FY_ISA_BASELINE, baseline_side_by_side},
    {"avx2", FY_ISA_AVX2, avx2_alone},
    {"avx2, side by side", FY_ISA_AVX2, avx2_side_by_side},
    {"avx512", FY_ISA_AVX512, avx512_alone},
    {"avx512, side by side", FY_ISA_AVX512, avx512_side_by_side},
    {"copy", FY_ISA_BASELINE, fy_copy},
    {"cached", FY_ISA_BASELINE, fy_copy_cached},
    {"streaming", FY_ISA_BASELINE, fy_copy_streaming},
    {"unfenced", FY_ISA_BASELINE, fy_copy_unfenced},
};

/* What the machine cannot run is left out: other machines run it. */
static bool can_run(const struct variant *v)
{
    return v->needs <= fy_cpu_isa();
}

enum { GUARD = 128, SKEW = 64 };

/* Memory between two pages that may not be touched. */
typedef struct fenced {
    char *map;
    size_t map_bytes;
    char *bytes;
    size_t n;
} fenced;

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static fenced fenced_create(size_t least)
{
    size_t page = page_bytes();
    fenced f = {.n = (least + page - 1) / page * page};
    f.map_bytes = f.n + 2 * page;
    f.map = mmap(NULL, f.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.map != MAP_FAILED);
    f.bytes = f.map + page;
    assert_int_equal(mprotect(f.map, page, PROT_NONE), 0);
    assert_int_equal(mprotect(f.bytes + f.n, page, PROT_NONE), 0);
    return f;
}

static void fenced_destroy(fenced *f)
{
    munmap(f->map, f->map_bytes);
}

static bool is_all(const char *bytes, size_t n, char value)
{
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != value) {
            return false;
        }
    }
    return true;
}

static size_t first_difference(const char *a, const char *b, size_t n)
{
    size_t i = 0;
    for (; i < n && a[i] == b[i]; i++) {}
    return i;
}

/* Copies n bytes between these addresses of f and t and looks at what happened around them. */
static void check_one(const struct variant *v, const fenced *t, char *to, const char *from,
                      size_t n)
{
    size_t before = (size_t)(to - t->bytes), behind = t->n - before - n;
    before = before < GUARD ? before : GUARD;
    behind = behind < GUARD ? behind : GUARD;
    memset(to - before, 0x5a, before + n + behind);
    v->copy(to, from, n);
    fy_copy_fence();
    size_t same = first_difference(to, from, n);
    check_at(same == n, "%s: %zu bytes, from %zu, to %zu mod 64: byte %zu differs", v->name, n,
             (size_t)((uintptr_t)from % 64), (size_t)((uintptr_t)to % 64), same);
    check_at(is_all(to - before, before, 0x5a) && is_all(to + n, behind, 0x5a),
             "%s: %zu bytes, from %zu, to %zu mod 64: written beside them", v->name, n,
             (size_t)((uintptr_t)from % 64), (size_t)((uintptr_t)to % 64));
}

static void check_variants(const fenced *t, char *to, const char *from, size_t n)
{
    for (size_t i = 0; i < COUNT_OF(variants); i++) {
        if (can_run(&variants[i])) {
            check_one(&variants[i], t, to, from, n);
        }
    }
}

static void fill(fenced *f, uint64_t seed)
{
    for (size_t i = 0; i < f->n; i++) {
        f->bytes[i] = (char)random_u64(&seed);
    }
}

/* At both ends of the memory, and somewhere inside. */
static void check_places(const fenced *f, const fenced *t, size_t n, uint64_t *seed)
{
    size_t skew_f = random_u64(seed) % SKEW, skew_t = random_u64(seed) % SKEW;
    check_variants(t, t->bytes, f->bytes, n);
    check_variants(t, t->bytes + t->n - n, f->bytes + f->n - n, n);
    check_variants(t, t->bytes + GUARD + skew_t, f->bytes + skew_f, n);
    check_variants(t, t->bytes + t->n - n - skew_t, f->bytes + skew_f, n);
}

static void test_small_sizes(void **state)
{
    (void)state;
    enum { MOST = 4096 };
    uint64_t seed = 3;
    fenced f = fenced_create(MOST + SKEW), t = fenced_create(MOST + 2 * GUARD + SKEW);
    fill(&f, 1);
    for (size_t n = 0; n <= MOST; n++) {
        check_places(&f, &t, n, &seed);
    }
    fenced_destroy(&f);
    fenced_destroy(&t);
}

/* All pairs of alignments, at sizes where the kernels have a head, a body and a tail. */
static void test_all_alignments(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 63, 64, 65, 127, 129, 200, 700};
    fenced f = fenced_create(1024), t = fenced_create(1024);
    fill(&f, 2);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        for (size_t a = 0; a < SKEW; a++) {
            for (size_t b = 0; b < SKEW; b++) {
                check_variants(&t, t.bytes + GUARD + b, f.bytes + a, sizes[i]);
            }
        }
    }
    fenced_destroy(&f);
    fenced_destroy(&t);
}

static void test_around_thresholds(void **state)
{
    (void)state;
    static const size_t near[] = {FY_COPY_ALIGNED_FROM,
                                  FY_COPY_UNALIGNED_FROM,
                                  FY_COPY_FENCED_FROM,
                                  4096,
                                  2 * 4096,
                                  3 * 4096,
                                  4 * 4096,
                                  5 * 4096,
                                  6 * 4096,
                                  7 * 4096,
                                  8 * 4096};
    static const int steps[] = {-128, -65, -64, -63, -1, 0, 1, 63, 64, 65, 128};
    uint64_t seed = 5;
    fenced f = fenced_create(9 * 4096), t = fenced_create(9 * 4096 + 2 * GUARD);
    fill(&f, 3);
    for (size_t i = 0; i < COUNT_OF(near); i++) {
        for (size_t j = 0; j < COUNT_OF(steps); j++) {
            check_places(&f, &t, (size_t)((long)near[i] + steps[j]), &seed);
        }
    }
    fenced_destroy(&f);
    fenced_destroy(&t);
}

static void test_large_odd_sizes(void **state)
{
    (void)state;
    static const size_t sizes[] = {100003, 1048573, 3000017};
    uint64_t seed = 7;
    fenced f = fenced_create(3100000), t = fenced_create(3100000);
    fill(&f, 4);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        check_places(&f, &t, sizes[i], &seed);
    }
    fenced_destroy(&f);
    fenced_destroy(&t);
}

/* Nothing from nowhere to nowhere is no mistake, also for a sanitizer. */
static void test_nothing(void **state)
{
    (void)state;
    fy_copy(NULL, NULL, 0);
    fy_copy_cached(NULL, NULL, 0);
    fy_copy_streaming(NULL, NULL, 0);
    fy_copy_unfenced(NULL, NULL, 0);
}

static void test_kernel_of_isa(void **state)
{
    (void)state;
    assert_true(fy_copy_kernel_of(FY_ISA_BASELINE) == fy_copy_stream_baseline);
    assert_true(fy_copy_kernel_of(FY_ISA_AVX2) == fy_copy_stream_avx2);
    assert_true(fy_copy_kernel_of(FY_ISA_AVX512) == fy_copy_stream_avx512);
}

/* What a flag announces is there: round i fills the destination with the byte i. */
enum { ROUNDS = 2000, HANDED = 40000 };

static struct {
    _Atomic int written, seen;
    char to[HANDED];
} handed;

static void *write_rounds(void *argument)
{
    bool is_unfenced = *(bool *)argument;
    char *from = malloc(HANDED);
    for (int i = 1; from != NULL && i <= ROUNDS; i++) {
        memset(from, i, HANDED);
        if (is_unfenced) {
            for (size_t at = 0; at < HANDED; at += 1250) {
                fy_copy_unfenced(handed.to + at, from + at, 1250);
            }
            fy_copy_fence();
        } else {
            fy_copy(handed.to, from, HANDED);
        }
        atomic_store_explicit(&handed.written, i, memory_order_release);
        while (atomic_load_explicit(&handed.seen, memory_order_acquire) < i) {
            sched_yield();
        }
    }
    free(from);
    return NULL;
}

static void check_handing(bool is_unfenced)
{
    pthread_t thread;
    int wrong = 0;
    atomic_store(&handed.written, 0);
    atomic_store(&handed.seen, 0);
    assert_int_equal(pthread_create(&thread, NULL, write_rounds, &is_unfenced), 0);
    for (int i = 1; i <= ROUNDS; i++) {
        while (atomic_load_explicit(&handed.written, memory_order_acquire) < i) {
            sched_yield();
        }
        /* The end first: it was written last. */
        wrong += handed.to[HANDED - 1] != (char)i || !is_all(handed.to, HANDED, (char)i);
        atomic_store_explicit(&handed.seen, i, memory_order_release);
    }
    pthread_join(thread, NULL);
    check_at(wrong == 0, "%d of %d rounds", wrong, ROUNDS);
}

static void test_flag_comes_behind_the_bytes(void **state)
{
    (void)state;
    check_handing(false);
    check_handing(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_sizes),
        cmocka_unit_test(test_all_alignments),
        cmocka_unit_test(test_around_thresholds),
        cmocka_unit_test(test_large_odd_sizes),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_kernel_of_isa),
        cmocka_unit_test(test_flag_comes_behind_the_bytes),
    };
    for (size_t i = 0; i < COUNT_OF(variants); i++) {
        if (!can_run(&variants[i])) {
            print_message("left out, this machine has no %s\n", variants[i].name);
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
