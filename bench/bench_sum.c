/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast rows are summed: each instruction set on rows of each size and type, beside libc's
 * memcpy of as many bytes read and written in all, in turns within each round, so that a busy
 * moment of the machine hits all of them. A figure is the median over the rounds of bytes read and
 * written in a second; a ratio is the median of the rounds' ratios.
 *
 *     bench_sum [--json FILE] [--type NAME] [--sources N] [--rounds N] [--most KIB]
 *
 * The same rows are summed again and again: small ones lie in the caches, large ones do not. The
 * last column is the best set with stores past the cache.
 */
#include "exec/sum.h"
#include "host/copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST_ROUNDS = 101, MOST_SOURCES = 8, MOST_KIB = 1 << 16, MARGIN = 4096 + 256 };

static const size_t sizes[] = {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};

static const char *const type_names[FY_SUM_N_TYPES] = {
    [FY_SUM_F32] = "f32", [FY_SUM_F16] = "f16", [FY_SUM_BF16] = "bf16"};

/* What is timed: memcpy is the first, ratios are to it. */
static const struct kernel {
    const char *name;
    bool copies, streams;
    fy_isa isa; /* the machine's best one where it streams */
} kernels[] = {
    {"memcpy", true, false, FY_ISA_BASELINE}, {"baseline", false, false, FY_ISA_BASELINE},
    {"avx2", false, false, FY_ISA_AVX2},      {"avx512", false, false, FY_ISA_AVX512},
    {"streamed", false, true, FY_ISA_AVX512},
};

enum { N_KERNELS = sizeof kernels / sizeof kernels[0], N_SIZES = sizeof sizes / sizeof sizes[0] };

typedef struct bench {
    FILE *json;
    bool is_first;
    int n_rounds;
    size_t most;                  /* bytes of a row */
    const char *type;             /* NULL: all */
    size_t n_sources;             /* 0: 2 and 4 */
    char *rows[MOST_SOURCES + 1]; /* the last is the target */
    char *copy_from, *copy_to;
} bench;

typedef struct row {
    fy_sum_type type;
    size_t n_sources, bytes;
} row;

/* Of this thread alone: a sum never sleeps, and what else the machine runs must not count. */
static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int n)
{
    double sorted[MOST_ROUNDS];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    return sorted[n / 2];
}

static fy_sum_fn sum_of(const struct kernel *k)
{
    return fy_sum_of_isa(k->streams ? fy_cpu_isa() : k->isa);
}

static bool can_run(const struct kernel *k)
{
    return k->copies || sum_of(k) != NULL;
}

static void run(const bench *b, const row *r, const struct kernel *k, size_t count)
{
    const fy_sum sum = {.sources = (const void *const *)b->rows,
                        .n_sources = r->n_sources,
                        .source_type = r->type,
                        .targets = {b->rows[MOST_SOURCES], NULL},
                        .target_type = r->type,
                        .n = r->bytes / fy_sum_type_bytes(r->type),
                        .stream = k->streams};
    fy_sum_fn f = k->copies ? NULL : sum_of(k);
    for (size_t i = 0; i < count; i++) {
        if (k->copies) {
            fy_copy_cached(b->copy_to, b->copy_from, r->bytes * (r->n_sources + 1) / 2);
            __asm__ volatile("" ::: "memory");
        } else {
            f(&sum);
        }
    }
    fy_copy_fence();
}

/* Of one pass that takes some milliseconds. */
static double gbytes_per_s(const bench *b, const row *r, const struct kernel *k)
{
    size_t bytes = r->bytes * (r->n_sources + 1);
    size_t count = ((size_t)96 << 20) / bytes + 1;
    double begin = cpu_seconds();
    run(b, r, k, count);
    return (double)(bytes * count) / (cpu_seconds() - begin) * 1e-9;
}

static void report(bench *b, const row *r, double rates[N_KERNELS][MOST_ROUNDS])
{
    double ratios[MOST_ROUNDS];
    printf("%-5s %7zu %10zu", type_names[r->type], r->n_sources, r->bytes);
    for (int k = 0; k < N_KERNELS; k++) {
        if (!can_run(&kernels[k])) {
            printf(" %16s", "-");
            continue;
        }
        for (int i = 0; i < b->n_rounds; i++) {
            ratios[i] = rates[k][i] / rates[0][i];
        }
        double rate = median(rates[k], b->n_rounds), ratio = median(ratios, b->n_rounds);
        printf("   %6.2f (%5.2f)", rate, ratio);
        if (b->json != NULL) {
            fprintf(b->json,
                    "%s\n  {\"type\": \"%s\", \"sources\": %zu, \"bytes\": %zu, \"kernel\": "
                    "\"%s\", \"gbytes_per_s\": %.4g, \"read_gbytes_per_s\": %.4g, "
                    "\"over_memcpy\": %.3f}",
                    b->is_first ? "" : ",", type_names[r->type], r->n_sources, r->bytes,
                    kernels[k].name, rate,
                    kernels[k].copies ? rate / 2
                                      : rate * (double)r->n_sources / (double)(r->n_sources + 1),
                    ratio);
            b->is_first = false;
        }
    }
    printf("\n");
    fflush(stdout);
}

static void run_row(bench *b, const row *r)
{
    static double rates[N_KERNELS][MOST_ROUNDS];
    for (int i = -1; i < b->n_rounds; i++) { /* the first warms up */
        for (int k = 0; k < N_KERNELS; k++) {
            if (can_run(&kernels[k])) {
                rates[k][i < 0 ? 0 : i] = gbytes_per_s(b, r, &kernels[k]);
            }
        }
    }
    report(b, r, rates);
}

static void run_table(bench *b, fy_sum_type type, size_t n_sources)
{
    printf("\n%-5s %7s %10s", "type", "sources", "row bytes");
    for (int k = 0; k < N_KERNELS; k++) {
        printf(" %16s", kernels[k].name);
    }
    printf("   GB/s read and written (over memcpy)\n");
    for (int s = 0; s < N_SIZES && sizes[s] <= b->most; s++) {
        run_row(b, &(row){type, n_sources, sizes[s]});
    }
}

static char *map(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("bench_sum: memory");
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

/* Rows begin with a line, and at different places within their pages. */
static void map_rows(bench *b)
{
    for (size_t i = 0; i <= MOST_SOURCES; i++) {
        b->rows[i] = map(b->most + MARGIN) + i * 448;
    }
    b->copy_from = map(b->most * (MOST_SOURCES + 1) / 2);
    b->copy_to = map(b->most * (MOST_SOURCES + 1) / 2 + MARGIN) + 448;
}

static void write_head(bench *b)
{
    double busy = -1;
    if (getloadavg(&busy, 1) < 1) {
        busy = -1;
    }
    printf("%ld cores, load %.2f, %d rounds, best instruction set %s\n",
           sysconf(_SC_NPROCESSORS_ONLN), busy, b->n_rounds, fy_isa_name(fy_cpu_isa()));
    if (b->json != NULL) {
        fprintf(b->json,
                "{\"cores\": %ld, \"load\": %.2f, \"rounds\": %d, \"isa\": \"%s\",\n \"cases\": [",
                sysconf(_SC_NPROCESSORS_ONLN), busy, b->n_rounds, fy_isa_name(fy_cpu_isa()));
    }
}

static void run_tables(bench *b)
{
    for (int type = 0; type < FY_SUM_N_TYPES; type++) {
        if (b->type != NULL && strcmp(b->type, type_names[type]) != 0) {
            continue;
        }
        for (size_t n = 2; n <= 4; n += 2) {
            if (b->n_sources == 0 || n == 2) {
                run_table(b, (fy_sum_type)type, b->n_sources == 0 ? n : b->n_sources);
            }
        }
    }
}

/* Whether the options are understood. */
static bool read_options(bench *b, int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--json") == 0) {
            b->json = fopen(value, "w");
            if (b->json == NULL) {
                perror(value);
                return false;
            }
        } else if (strcmp(argv[i], "--type") == 0) {
            b->type = value;
        } else if (strcmp(argv[i], "--sources") == 0) {
            b->n_sources = (size_t)strtoull(value, NULL, 10);
        } else if (strcmp(argv[i], "--rounds") == 0) {
            b->n_rounds = atoi(value);
        } else if (strcmp(argv[i], "--most") == 0) {
            b->most = (size_t)strtoull(value, NULL, 10) << 10;
        } else {
            fprintf(stderr, "bench_sum: there is no option %s\n", argv[i]);
            return false;
        }
    }
    return b->n_rounds >= 1 && b->n_rounds <= MOST_ROUNDS && b->n_sources <= MOST_SOURCES &&
           b->n_sources != 1 && b->most >= sizes[0] && b->most <= (size_t)MOST_KIB << 10;
}

int main(int argc, char **argv)
{
    bench b = {.is_first = true, .n_rounds = 9, .most = sizes[N_SIZES - 1]};
    if (!read_options(&b, argc, argv)) {
        fprintf(stderr,
                "usage: bench_sum [--json FILE] [--type f32|f16|bf16] [--sources 2..%d] "
                "[--rounds 1..%d] [--most KIB]\n",
                MOST_SOURCES, MOST_ROUNDS);
        return 1;
    }
    map_rows(&b);
    write_head(&b);
    run_tables(&b);
    if (b.json != NULL) {
        fprintf(b.json, "\n]}\n");
        fclose(b.json);
    }
    return 0;
}
