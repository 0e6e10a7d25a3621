/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What ferry's kernels move on a CUDA device, beside the device's own copy of as many bytes: in
 * turns within each round, so that both have the same clocks. A figure is the median over the
 * rounds, of bytes read plus bytes written in a second; a ratio is the median of the rounds'
 * ratios. Sources are random bits, and several times what the caches hold.
 *
 *     bench_cuda [--rounds N] [--mib N] [--waves 1]
 *
 * Host costs are of the clock on the wall, of calls that put work on a queue.
 */
#include "exec/exec.h"
#include "memory/cuda/lower.h"
#include "memory/cuda/memory.h"
#include "memory/cuda/queue.h"

#include <ferry/dtype.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_ROUNDS = 101, SMALL_BOXES = 100000, N_CALLS = 2000 };

static ferry_error error;
static const fy_cuda_device *device;
static fy_exec_queue *queue;
static uint64_t n_bytes = (uint64_t)1 << 30;
static int n_rounds = 9;
static char *from, *to, *host;
static CUevent begin_event, end_event;
static CUresult (*elapsed)(float *, CUevent, CUevent);
static CUresult (*synchronize)(CUevent);

static void must(ferry_status status)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "bench_cuda: %s\n", error.message);
        exit(1);
    }
}

static void good(CUresult result, const char *what)
{
    must(fy_cuda_check(result, what, &error));
}

static uint64_t draw(uint64_t n)
{
    static uint64_t state = 7;
    state += 0x9e3779b97f4a7c15u;
    uint64_t x = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % n;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare);
    return values[n / 2];
}

static void finish(void)
{
    must(fy_exec_finish(&fy_cuda_exec, queue, &error));
}

static const fy_area *to_area, *from_area;
static const fy_cast *cast;
static uint64_t n_cast;
static const fy_sum *sum;
static fy_cuda_table table;
static uint64_t moved; /* bytes of one turn, in one direction */

static void run_copy(void)
{
    must(fy_cuda_exec.copy(queue, to_area, to, from_area, from, 0, to_area->bytes, NULL, &error));
}

static void run_cast(void)
{
    must(fy_cuda_exec.cast(queue, cast, to_area, to, from_area, from, 0, n_cast, NULL, &error));
}

static void run_sum(void)
{
    must(fy_cuda_exec.sum(queue, sum, &error));
}

static void run_table(void)
{
    must(fy_cuda_launch(device, queue->stream, FY_NUMBER_OF_fy_cuda_copy_table, &table,
                        (uint64_t)table.n_pieces * FY_CUDA_LANES, 1, &error));
}

/* The device's own copy of so many bytes. */
static void run_own(void)
{
    good(fy_cuda.cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from,
                               (size_t)moved, queue->stream),
         "the device's copy");
}

static double seconds_of(void (*run)(void))
{
    float ms = 0;
    good(fy_cuda.cuEventRecord(begin_event, queue->stream), "an event");
    run();
    good(fy_cuda.cuEventRecord(end_event, queue->stream), "an event");
    good(synchronize(end_event), "an event");
    good(elapsed(&ms, begin_event, end_event), "an event");
    return (double)ms * 1e-3;
}

/* all_bytes: read and written in one turn; compared with a copy that reads and writes as many. */
static void measure(const char *name, void (*run)(void), uint64_t all_bytes)
{
    double speed[MOST_ROUNDS], ratio[MOST_ROUNDS];
    moved = all_bytes / 2;
    run();
    run_own();
    finish();
    for (int i = 0; i < n_rounds; i++) {
        double own = seconds_of(run_own), ours = seconds_of(run);
        speed[i] = (double)all_bytes / ours * 1e-9;
        ratio[i] = own / ours;
    }
    printf("%-52s %8.1f GB/s   %5.3f of the device's copy\n", name, median(speed, n_rounds),
           median(ratio, n_rounds));
}

static fy_area area_of(uint64_t element, uint32_t n_dims, const uint64_t *length,
                       const uint64_t *stride)
{
    fy_area area;
    must(fy_area_make(0, element, n_dims, length, stride, &area, &error));
    return area;
}

/* Rows out of rows that are twice as far apart, into rows side by side; and the other way. */
static void measure_rows(uint64_t unit, uint64_t row, uint64_t pitch)
{
    char name[80];
    const uint64_t length[2] = {n_bytes / 2 / pitch, row / unit};
    const uint64_t wide[2] = {pitch, unit}, dense[2] = {row, unit};
    fy_area strided = area_of(unit, 2, length, wide), flat = area_of(unit, 2, length, dense);
    to_area = &flat;
    from_area = &strided;
    snprintf(name, sizeof name, "pack rows of %llu of %llu bytes", (unsigned long long)row,
             (unsigned long long)pitch);
    measure(name, run_copy, 2 * flat.bytes);
    to_area = &strided;
    from_area = &flat;
    snprintf(name, sizeof name, "unpack rows of %llu of %llu bytes", (unsigned long long)row,
             (unsigned long long)pitch);
    measure(name, run_copy, 2 * flat.bytes);
    from_area = &strided;
    snprintf(name, sizeof name, "rows of %llu of %llu bytes, both sides", (unsigned long long)row,
             (unsigned long long)pitch);
    measure(name, run_copy, 2 * flat.bytes);
}

/* [tokens][heads][128] of 16 bits to [heads][tokens][128]. */
static void measure_heads(void)
{
    uint64_t run = 256, heads = 32, tokens = n_bytes / 4 / heads / run;
    const uint64_t length[3] = {heads, tokens, run};
    const uint64_t there[3] = {run, heads * run, 1}, here[3] = {tokens * run, run, 1};
    fy_area a = area_of(1, 3, length, there), b = area_of(1, 3, length, here);
    to_area = &b;
    from_area = &a;
    measure("heads of 256 bytes out of tokens", run_copy, 2 * a.bytes);
}

static void measure_boxes(uint64_t most, const char *name)
{
    static fy_cuda_piece pieces[SMALL_BOXES * 2];
    fy_cuda_divisor one;
    uint64_t at = 0, all = 0;
    uint32_t n = 0;
    for (int i = 0; i < SMALL_BOXES && at + 2 * most < n_bytes; i++) {
        uint64_t bytes = (1024 + draw(most - 1024 + 1)) / 16 * 16;
        uint64_t rows = draw(2) == 0 ? 1 : bytes / 1024;
        uint64_t row = bytes / rows / 16 * 16;
        one = fy_cuda_divisor_of((uint32_t)(row / 16));
        pieces[n++] = (fy_cuda_piece){.to = (uint64_t)(uintptr_t)to + at,
                                      .from = (uint64_t)(uintptr_t)from + at,
                                      .to_pitch = row,
                                      .from_pitch = row + 16,
                                      .row_units = one.value,
                                      .multiplier = one.multiplier,
                                      .shift = (uint16_t)one.shift,
                                      .unit_bytes = 16,
                                      .n_units = (uint32_t)(row / 16 * rows)};
        all += row * rows;
        at += (row + 16) * rows + 64 - ((row + 16) * rows) % 64;
    }
    void *place = NULL, *pinned = NULL;
    must(fy_cuda_memory.alloc(0, n * sizeof *pieces, &place, &error));
    fy_area flat = fy_area_flat(0, n * sizeof *pieces);
    must(fy_cuda_exec.copy(queue, &flat, place, &flat, pieces, 0, flat.bytes, NULL, &error));
    finish();
    printf("%u boxes, %.1f MB in all:\n", (unsigned)n, (double)all * 1e-6);
    table = (fy_cuda_table){.pieces = (uint64_t)(uintptr_t)place, .n_pieces = n};
    char text[80];
    snprintf(text, sizeof text, "%s, table of the device", name);
    measure(text, run_table, 2 * all);
    must(fy_cuda_pinned_alloc(flat.bytes, &pinned, &error));
    memcpy(pinned, pieces, flat.bytes);
    table.pieces = (uint64_t)(uintptr_t)pinned;
    snprintf(text, sizeof text, "%s, table of the host", name);
    measure(text, run_table, 2 * all);
    fy_cuda_memory.free(0, place, flat.bytes);
    (void)fy_cuda.cuMemFreeHost(pinned);
}

static void measure_casts(void)
{
    static const struct {
        const char *name;
        uint32_t from, to;
        uint64_t from_bytes, to_bytes;
    } all[] = {{"cast f32 to bf16", FERRY_F32, FERRY_BF16, 4, 2},
               {"cast bf16 to f32", FERRY_BF16, FERRY_F32, 2, 4},
               {"cast bf16 to f8e4m3", FERRY_BF16, FERRY_F8E4M3, 2, 1},
               {"cast f8e4m3 to bf16", FERRY_F8E4M3, FERRY_BF16, 1, 2}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        uint64_t n = n_bytes / 4;
        fy_area a = fy_area_flat(0, n * all[i].from_bytes),
                b = fy_area_flat(0, n * all[i].to_bytes);
        fy_cast one = {.from_kind = all[i].from, .to_kind = all[i].to, .n_rows = 1, .n_columns = n};
        cast = &one;
        n_cast = n;
        from_area = &a;
        to_area = &b;
        measure(all[i].name, run_cast, a.bytes + b.bytes);
    }
}

static fy_blocks blocks;
static float *largest;

static void run_largest(void)
{
    must(fy_cuda_exec.largest(queue, &blocks, from, largest, &error));
}

/* A matrix of bf16 in blocks: their largest magnitudes, codes by scales, and values in place. */
static void measure_blocks(void)
{
    static const uint64_t sizes[][2] = {{128, 128}, {1, 32}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char name[80];
        uint64_t columns = 8192, rows = n_bytes / 4 / columns;
        uint64_t pitch = columns / sizes[i][1], n = rows / sizes[i][0] * pitch;
        fy_area wide = fy_area_flat(0, rows * columns * 2), codes = fy_area_flat(0, rows * columns);
        blocks = (fy_blocks){FERRY_BF16, rows, columns, {sizes[i][0], sizes[i][1]}};
        largest = malloc(n * sizeof *largest);
        snprintf(name, sizeof name, "largest of blocks of %llu x %llu of bf16",
                 (unsigned long long)sizes[i][0], (unsigned long long)sizes[i][1]);
        measure(name, run_largest, wide.bytes);
        for (uint64_t k = 0; k < n; k++) {
            largest[k] = 0.5f;
        }
        fy_cast_scales scales = {
            .values = largest, .block = {sizes[i][0], sizes[i][1]}, .pitch = pitch};
        fy_cast down = {.from_kind = FERRY_BF16,
                        .to_kind = FERRY_F8E4M3,
                        .overflow = FY_OVERFLOW_CODES,
                        .n_rows = rows,
                        .n_columns = columns,
                        .to_scales = scales};
        cast = &down;
        n_cast = rows * columns;
        from_area = &wide;
        to_area = &codes;
        measure("  codes, f8e4m3", run_cast, wide.bytes + codes.bytes);
        fy_cast up = {.from_kind = FERRY_F8E4M3,
                      .to_kind = FERRY_BF16,
                      .has_plain_nans = true,
                      .n_rows = rows,
                      .n_columns = columns,
                      .from_scales = scales};
        cast = &up;
        from_area = &codes;
        to_area = &wide;
        measure("  values of codes", run_cast, wide.bytes + codes.bytes);
        free(largest);
    }
}

static void measure_sums(void)
{
    const void *sources[8];
    for (int k = 2; k <= 8; k *= 2) {
        char name[40];
        uint64_t bytes = n_bytes / 8;
        for (int i = 0; i < k; i++) {
            sources[i] = from + (uint64_t)i * bytes;
        }
        fy_sum one = {.sources = sources,
                      .n_sources = (size_t)k,
                      .source_type = FY_SUM_BF16,
                      .target_type = FY_SUM_BF16,
                      .targets = {to, NULL},
                      .n = bytes / 2};
        sum = &one;
        snprintf(name, sizeof name, "sum of %d of bf16", k);
        measure(name, run_sum, (uint64_t)(k + 1) * bytes);
    }
}

/* With other numbers of blocks than the device runs at once: which is best, a device must say. */
static void measure_waves(void)
{
    static const uint32_t waves[] = {1, 2, 4, 0};
    static const uint64_t rows[][3] = {
        {16, 256, 512}, {16, 4096, 8192}, {16, 65536, 131072}, {8, 1000, 2000}, {1, 1001, 2002}};
    uint32_t usual = fy_cuda_waves;
    for (size_t w = 0; w < sizeof waves / sizeof waves[0]; w++) {
        fy_cuda_waves = waves[w];
        printf("launches of %u times the blocks that run at once (0: any number):\n",
               (unsigned)waves[w]);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            measure_rows(rows[i][0], rows[i][1], rows[i][2]);
        }
        measure_boxes(16384, "boxes of 1 to 16 KiB");
        measure_casts();
    }
    fy_cuda_waves = usual;
}

/* Between the host and the device, on the wall's clock. */
static void measure_host(const char *name, void *target, const void *source, uint64_t bytes)
{
    double speed[MOST_ROUNDS];
    fy_area flat = fy_area_flat(0, bytes);
    for (int i = -1; i < n_rounds; i++) {
        double begun = now();
        must(fy_cuda_exec.copy(queue, &flat, target, &flat, source, 0, bytes, NULL, &error));
        finish();
        if (i >= 0) {
            speed[i] = (double)bytes / (now() - begun) * 1e-9;
        }
    }
    printf("%-52s %8.1f GB/s of bytes moved\n", name, median(speed, n_rounds));
}

static void measure_hosts(void)
{
    uint64_t bytes = n_bytes / 8;
    char *pinned = NULL;
    void *place;
    must(fy_cuda_pinned_alloc(bytes, &place, &error));
    pinned = place;
    memset(pinned, 1, bytes);
    measure_host("pinned to device", to, pinned, bytes);
    measure_host("device to pinned", pinned, from, bytes);
    measure_host("pageable to device, by the staging", to, host, bytes);
    measure_host("device to pageable, by the staging", host, from, bytes);
    (void)fy_cuda.cuMemFreeHost(pinned);
}

/* Digests of so many bytes each, of device memory, and waiting for all: on the wall's clock. */
static void measure_hash(const char *name, uint64_t bytes, uint64_t distance, int n)
{
    double speed[MOST_ROUNDS];
    static uint64_t hashes[1024];
    for (int i = -1; i < n_rounds; i++) {
        double begun = now();
        for (int k = 0; k < n; k++) {
            fy_area flat = fy_area_flat((uint64_t)k * distance, bytes);
            must(fy_cuda_exec.hash(queue, &flat, from, 0, bytes, &hashes[k], &error));
        }
        finish();
        if (i >= 0) {
            speed[i] = (double)bytes * n / (now() - begun) * 1e-9;
        }
    }
    printf("%-52s %8.1f GB/s\n", name, median(speed, n_rounds));
}

static void measure_hashes(void)
{
    uint64_t bytes = n_bytes / 8;
    measure_hash("one hash of device memory", bytes, bytes, 1);
    measure_hash("the same, at no multiple of 16 bytes", bytes - 16, bytes + 8, 2);
    measure_hash("32 hashes of a 32nd of it", bytes / 32, bytes / 32, 32);
    measure_hash("1,024 hashes of a 1,024th of it", bytes / 1024, bytes / 1024, 1024);
    measure_hash("1,024 hashes of 1,024 bytes", 1024, 2048, 1024);
}

static const fy_area *again;

static void run_fill(void)
{
    must(fy_cuda_exec.copy(queue, to_area, to, again, host, 0, to_area->bytes, NULL, &error));
}

/* A few bytes of the host's again and again: half of what the device's copy moves is written. */
static void measure_fills(void)
{
    static const uint64_t runs[] = {2, 256, 4096};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        char name[80];
        uint64_t n = n_bytes / 2 / runs[i], none = 0;
        fy_area few = fy_area_of(0, runs[i], 1, &n, &none), flat = fy_area_flat(0, n * runs[i]);
        const uint64_t length[2] = {n_bytes / 4 / 4096, 4096}, wide[2] = {8192, 1};
        fy_area strided = area_of(1, 2, length, wide);
        again = &few;
        to_area = &flat;
        snprintf(name, sizeof name, "fill by %llu bytes of the host", (unsigned long long)runs[i]);
        measure(name, run_fill, flat.bytes);
        n /= 2;
        few = fy_area_of(0, runs[i], 1, &n, &none);
        to_area = &strided;
        snprintf(name, sizeof name, "fill of rows of 4096 of 8192 bytes, by %llu",
                 (unsigned long long)runs[i]);
        measure(name, run_fill, strided.bytes);
    }
}

static void nothing(void *context)
{
    (void)context;
}

/* What a call costs who makes it: the work behind it is small. */
static void measure_calls(void)
{
    const uint64_t length[2] = {16, 256}, wide[2] = {512, 1};
    fy_area strided = area_of(1, 2, length, wide), flat = fy_area_flat(0, 16 * 256);
    fy_ticket ticket;
    double begun = now();
    for (int i = 0; i < N_CALLS; i++) {
        must(fy_cuda_exec.copy(queue, &flat, to, &strided, from, 0, flat.bytes, NULL, &error));
    }
    printf("%-52s %8.2f us\n", "call of a copy by a kernel", (now() - begun) / N_CALLS * 1e6);
    finish();
    begun = now();
    for (int i = 0; i < N_CALLS; i++) {
        must(fy_cuda_exec.copy(queue, &flat, to, &flat, from, 0, flat.bytes, NULL, &error));
    }
    printf("%-52s %8.2f us\n", "call of a flat copy", (now() - begun) / N_CALLS * 1e6);
    finish();
    begun = now();
    for (int i = 0; i < N_CALLS; i++) {
        must(fy_cuda_exec.mark(queue, &ticket, &error));
    }
    printf("%-52s %8.2f us\n", "mark", (now() - begun) / N_CALLS * 1e6);
    finish();
    begun = now();
    for (int i = 0; i < N_CALLS; i++) {
        finish();
    }
    printf("%-52s %8.2f us\n", "mark and wait for it", (now() - begun) / N_CALLS * 1e6);
    begun = now();
    for (int i = 0; i < N_CALLS; i++) {
        must(fy_cuda_exec.copy(queue, &flat, to, &strided, from, 0, flat.bytes, NULL, &error));
        finish();
    }
    printf("%-52s %8.2f us\n", "copy by a kernel, and wait for it",
           (now() - begun) / N_CALLS * 1e6);
    begun = now();
    for (int i = 0; i < N_CALLS; i++) {
        must(fy_cuda_exec.call(queue, nothing, NULL, &error));
        finish();
    }
    printf("%-52s %8.2f us\n", "host function, and wait for it", (now() - begun) / N_CALLS * 1e6);
    static _Atomic uint64_t word;
    begun = now();
    for (int i = 1; i <= N_CALLS; i++) {
        must(fy_cuda_exec.word_wait(queue, &word, (uint64_t)i, &error));
        atomic_store(&word, (uint64_t)i);
        finish();
    }
    printf("%-52s %8.2f us\n", "wait of a stream for a word, and wait for it",
           (now() - begun) / N_CALLS * 1e6);
    begun = now();
    for (int i = 0; i < N_CALLS / 10; i++) {
        void *base;
        must(fy_cuda_memory.alloc(0, 1 << 20, &base, &error));
        fy_cuda_memory.free(0, base, 1 << 20);
    }
    printf("%-52s %8.2f us\n", "1 MiB of memory, taken and given back",
           (now() - begun) / (N_CALLS / 10) * 1e6);
}

static const char *setting(const char *name)
{
    (void)name;
    return NULL;
}

static void log_line(ferry_log_level level, const char *line)
{
    (void)level;
    fprintf(stderr, "%s\n", line);
}

static void set_up(void)
{
    static const fy_library library = {
        .abi = FY_MEMORY_ABI, .cpu = &fy_cpu_exec, .setting = setting, .log = log_line};
    void *base;
    double begun = now();
    fy_cuda_library = &library;
    must(fy_cuda_enter(0, &device, &error));
    printf("%-52s %8.1f ms\n", "opening the driver and a device", (now() - begun) * 1e3);
    must(fy_cuda_exec.queue_open(0, NULL, &queue, &error));
    void *handle = dlopen("libcuda.so.1", RTLD_NOW), *found;
    CUresult (*get)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    found = dlsym(handle, "cuGetProcAddress_v2");
    memcpy(&get, &found, sizeof get);
    good(get("cuEventElapsedTime", &found, 12080, 0, NULL), "finding a function");
    memcpy(&elapsed, &found, sizeof elapsed);
    good(get("cuEventSynchronize", &found, 2000, 0, NULL), "finding a function");
    memcpy(&synchronize, &found, sizeof synchronize);
    good(fy_cuda.cuEventCreate(&begin_event, CU_EVENT_DEFAULT), "an event");
    good(fy_cuda.cuEventCreate(&end_event, CU_EVENT_DEFAULT), "an event");
    must(fy_cuda_memory.alloc(0, n_bytes, &base, &error));
    from = base;
    must(fy_cuda_memory.alloc(0, n_bytes, &base, &error));
    to = base;
    host = malloc(n_bytes / 8);
    for (uint64_t i = 0; i + 8 <= n_bytes / 8; i += 8) {
        uint64_t word = draw(UINT64_MAX);
        memcpy(host + i, &word, 8);
    }
    for (int i = 0; i < 8; i++) { /* eight times the same is as random as device memory sees */
        fy_area flat = fy_area_flat(0, n_bytes / 8);
        must(fy_cuda_exec.copy(queue, &flat, from + (uint64_t)i * flat.bytes, &flat, host, 0,
                               flat.bytes, NULL, &error));
    }
    finish();
}

int main(int argc, char **argv)
{
    bool tries_waves = false;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--rounds") == 0) {
            n_rounds = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--mib") == 0) {
            n_bytes = strtoull(argv[i + 1], NULL, 10) << 20;
        } else if (strcmp(argv[i], "--waves") == 0) {
            tries_waves = atoi(argv[i + 1]) != 0;
        }
    }
    n_rounds = n_rounds < 1 ? 1 : n_rounds > MOST_ROUNDS ? MOST_ROUNDS : n_rounds;
    set_up();
    if (tries_waves) {
        measure_waves();
        fy_cuda_exec.queue_close(queue);
        return 0;
    }
    measure_calls();
    fy_area half = fy_area_flat(0, n_bytes / 2);
    to_area = from_area = &half;
    measure("flat copy, which is the device's", run_copy, n_bytes);
    static const uint64_t rows[][3] = {{16, 64, 128},    {16, 256, 512},      {16, 1024, 2048},
                                       {16, 4096, 8192}, {16, 7168, 14336},   {16, 65536, 131072},
                                       {8, 1000, 2000},  {4, 1000 + 4, 2008}, {2, 1002, 2004},
                                       {1, 1001, 2002}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        measure_rows(rows[i][0], rows[i][1], rows[i][2]);
    }
    measure_heads();
    measure_boxes(16384, "boxes of 1 to 16 KiB");
    measure_boxes(2048, "boxes of 1 to 2 KiB");
    measure_casts();
    measure_blocks();
    measure_sums();
    measure_fills();
    measure_hashes();
    measure_hosts();
    fy_cuda_exec.queue_close(queue);
    return 0;
}
