/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast copies are: each kernel on pieces of each size, in turns within each round, so that a
 * busy moment of the machine hits all of them. A figure is the median over the rounds; a ratio is
 * the median of the rounds' ratios.
 *
 *     bench_copy [--json FILE] [--part NAME] [--rounds N] [--most MIB]
 *
 * Parts: `cold` walks through memory much larger than the caches, `hot` copies the same piece again
 * and again, `offset` is cold with odd addresses on both sides, `shared` is cold into memory that
 * another process has mapped and touched too.
 */
#include "base/cpu.h"
#include "host/copy.h"
#include "host/copy_isa.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MOST_ROUNDS = 101 };

static const size_t sizes[] = {8,       64,       256,      1024,      4096,
                               8192,    16384,    65536,    262144,    1 << 20,
                               4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30};

static void copy_libc(void *to, const void *from, size_t n_bytes)
{
    memcpy(to, from, n_bytes);
}

/* Streaming stores, one page after the other: what one writes first. */
static void copy_plain_streaming(void *to_bytes, const void *from_bytes, size_t n_bytes)
{
#if defined(__x86_64__)
    char *to = to_bytes;
    const char *from = from_bytes;
    size_t head = -(uintptr_t)to % 64;
    head = head < n_bytes ? head : n_bytes;
    memcpy(to, from, head);
    size_t at = head;
    for (; n_bytes - at >= 64; at += 64) {
        for (size_t i = 0; i < 64; i += 16) {
            _mm_stream_si128((__m128i *)(void *)(to + at + i),
                             _mm_loadu_si128((const __m128i *)(const void *)(from + at + i)));
        }
    }
    memcpy(to + at, from + at, n_bytes - at);
    _mm_sfence();
#else
    memcpy(to_bytes, from_bytes, n_bytes);
#endif
}

typedef void copy_fn(void *to, const void *from, size_t n_bytes);

static void copy_baseline(void *to, const void *from, size_t n_bytes)
{
    fy_copy_stream_baseline(to, from, n_bytes, fy_cpu_streams());
    fy_copy_fence();
}

static void copy_avx2(void *to, const void *from, size_t n_bytes)
{
    fy_copy_stream_avx2(to, from, n_bytes, fy_cpu_streams());
    fy_copy_fence();
}

static void copy_avx512(void *to, const void *from, size_t n_bytes)
{
    fy_copy_stream_avx512(to, from, n_bytes, fy_cpu_streams());
    fy_copy_fence();
}

static const struct kernel {
    const char *name;
    fy_isa needs;
    copy_fn *copy;
} kernels[] = {
    {"libc", FY_ISA_BASELINE, copy_libc}, /* the first: ratios are to it */
    {"plain-streaming", FY_ISA_BASELINE, copy_plain_streaming},
    {"fy_copy", FY_ISA_BASELINE, fy_copy},
    {"fy_copy_unfenced", FY_ISA_BASELINE, fy_copy_unfenced},
    {"baseline", FY_ISA_BASELINE, copy_baseline},
    {"avx2", FY_ISA_AVX2, copy_avx2},
    {"avx512", FY_ISA_AVX512, copy_avx512},
};

enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

enum { N_KERNELS = sizeof kernels / sizeof kernels[0] };

typedef struct bench {
    FILE *json;
    bool is_first;
    int n_rounds;
    size_t most; /* bytes of the largest piece, and of the memory that cold copies walk through */
    char *from;
    char *to;
    char *shared;
} bench;

typedef struct place {
    const char *name;
    char *to;
    const char *from;
    bool is_hot;
} place;

/* Of this thread alone: a copy never sleeps, and what else the machine runs must not count. */
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

/* The range of the middle half over the median. */
static double spread(const double *values, int n)
{
    double sorted[MOST_ROUNDS];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    return (sorted[n - 1 - n / 4] - sorted[n / 4]) / sorted[n / 2];
}

/* Of one pass over enough pieces to take some milliseconds. Each pass begins elsewhere. */
static double gbytes_per_s(const bench *b, const place *p, copy_fn *copy, size_t n,
                           size_t *at_inout)
{
    size_t wanted = n < 256 ? (size_t)2 << 20 : n < 4096 ? (size_t)16 << 20 : (size_t)64 << 20;
    size_t count = wanted / n == 0 ? 1 : wanted / n, at = p->is_hot ? 0 : *at_inout;
    double begin = cpu_seconds();
    for (size_t i = 0; i < count; i++) {
        if (!p->is_hot) {
            at = at + n > b->most ? 0 : at;
        }
        copy(p->to + at, p->from + at, n);
        at += p->is_hot ? 0 : n;
    }
    fy_copy_fence();
    double seconds = cpu_seconds() - begin;
    *at_inout = at;
    return (double)(n * count) / seconds * 1e-9;
}

static void report(bench *b, const place *p, size_t n, double rates[N_KERNELS][MOST_ROUNDS])
{
    double best = 0, ratios[MOST_ROUNDS];
    for (int k = 0; k < N_KERNELS; k++) {
        double rate = kernels[k].needs <= fy_cpu_isa() ? median(rates[k], b->n_rounds) : 0;
        best = rate > best ? rate : best;
    }
    printf("%-8s %10zu", p->name, n);
    for (int k = 0; k < N_KERNELS; k++) {
        if (kernels[k].needs > fy_cpu_isa()) {
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
                    "%s\n  {\"part\": \"%s\", \"bytes\": %zu, \"kernel\": \"%s\", "
                    "\"gbytes_per_s\": %.4g, \"spread\": %.3f, \"over_libc\": %.3f, "
                    "\"over_best\": %.3f}",
                    b->is_first ? "" : ",", p->name, n, kernels[k].name, rate,
                    spread(rates[k], b->n_rounds), ratio, rate / best);
            b->is_first = false;
        }
    }
    printf("\n");
    fflush(stdout);
}

static void run_part(bench *b, const place *p)
{
    static double rates[N_KERNELS][MOST_ROUNDS];
    size_t at = 0; /* one for all: nobody finds in the cache what another one touched */
    printf("\n%-8s %10s", "part", "bytes");
    for (int k = 0; k < N_KERNELS; k++) {
        printf(" %16s", kernels[k].name);
    }
    printf("   GB/s (over libc)\n");
    for (int s = 0; s < N_SIZES && sizes[s] <= b->most; s++) {
        for (int i = -1; i < b->n_rounds; i++) { /* the first warms up */
            for (int k = 0; k < N_KERNELS; k++) {
                if (kernels[k].needs <= fy_cpu_isa()) {
                    rates[k][i < 0 ? 0 : i] = gbytes_per_s(b, p, kernels[k].copy, sizes[s], &at);
                }
            }
        }
        report(b, p, sizes[s], rates);
    }
}

static char *map(size_t bytes, int flags, int descriptor, int value)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    if (memory == MAP_FAILED) {
        perror("bench_copy: memory");
        exit(1);
    }
    memset(memory, value, bytes);
    return memory;
}

/* A mapping of memory that a child has mapped for itself and touched; the child waits on a pipe. */
static char *map_with_child(size_t bytes, pid_t *child_out, int *pipe_out)
{
    int ends[2], ready[2];
    char byte = 0;
    int descriptor = memfd_create("bench_copy", MFD_CLOEXEC);
    if (descriptor < 0 || ftruncate(descriptor, (off_t)bytes) != 0 || pipe(ends) != 0 ||
        pipe(ready) != 0) {
        perror("bench_copy: shared memory");
        exit(1);
    }
    *child_out = fork();
    if (*child_out == 0) {
        close(ends[1]);
        map(bytes, MAP_SHARED, descriptor, 3);
        _exit(write(ready[1], &byte, 1) != 1 || read(ends[0], &byte, 1) != 0);
    }
    close(ends[0]);
    close(ready[1]);
    if (*child_out < 0 || read(ready[0], &byte, 1) != 1) {
        fprintf(stderr, "bench_copy: the other process failed\n");
        exit(1);
    }
    close(ready[0]);
    *pipe_out = ends[1];
    char *memory = map(bytes, MAP_SHARED, descriptor, 4);
    close(descriptor);
    return memory;
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

int main(int argc, char **argv)
{
    enum { MARGIN = 1 << 16 };
    bench b = {.is_first = true, .n_rounds = 9, .most = (size_t)1 << 30};
    const char *json_path = NULL, *part = NULL;
    pid_t child;
    int pipe_end, result = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--json") == 0) {
            json_path = argv[i + 1];
        } else if (strcmp(argv[i], "--part") == 0) {
            part = argv[i + 1];
        } else if (strcmp(argv[i], "--rounds") == 0) {
            b.n_rounds = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--most") == 0) {
            b.most = (size_t)strtoull(argv[i + 1], NULL, 10) << 20;
        }
    }
    b.n_rounds = b.n_rounds < 1 ? 1 : b.n_rounds > MOST_ROUNDS ? MOST_ROUNDS : b.n_rounds;
    b.json = json_path == NULL ? NULL : fopen(json_path, "w");
    if (json_path != NULL && b.json == NULL) {
        perror(json_path);
        return 1;
    }
    b.shared = map_with_child(b.most, &child, &pipe_end);
    b.from = map(b.most + MARGIN, MAP_PRIVATE | MAP_ANONYMOUS, -1, 1);
    b.to = map(b.most + MARGIN, MAP_PRIVATE | MAP_ANONYMOUS, -1, 2);
    const place places[] = {{"cold", b.to, b.from, false},
                            {"hot", b.to, b.from, true},
                            {"offset", b.to + 3, b.from + 1000, false},
                            {"shared", b.shared, b.from, false}};
    write_head(&b);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (part == NULL || strcmp(part, places[i].name) == 0) {
            run_part(&b, &places[i]);
        }
    }
    if (b.json != NULL) {
        fprintf(b.json, "\n]}\n");
        fclose(b.json);
    }
    close(pipe_end);
    return waitpid(child, &result, 0) == child && result == 0 ? 0 : 1;
}
