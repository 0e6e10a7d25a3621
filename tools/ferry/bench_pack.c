/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * `ferry bench pack`: copies between shapes, each measured in turn with a copy of contiguous memory
 * of the same threads, so that both see the same machine.
 */
#include "bench.h"

#include "commands.h"
#include "json_text.h"
#include "machine_text.h"
#include "steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const double PROBE_SECONDS = 0.1;

enum { PITCH = 64 << 10, LEAST_SAMPLES = 5, MOST_SAMPLES = 1000, BLOCK = 128 };
#define MEMORY ((uint64_t)128 << 20) /* that is read: more than caches keep of it */
#define MOST_GROWTH 2                /* casts make that much of it */

typedef enum shape {
    CONTIGUOUS,
    GATHER,  /* columns of a matrix to contiguous memory */
    SCATTER, /* and back */
    COLUMNS  /* columns of a matrix to those of another one */
} shape;

typedef struct pack_line {
    const char *test;
    const char *title;
    shape shape;
    bool hash;
    uint32_t from_kind, to_kind; /* of casts, else 0 */
    bool has_scales;             /* of blocks of BLOCK x BLOCK, of the f8 */
    uint64_t row_bytes;          /* of what is read */
    size_t n;
    double rate, contiguous; /* bytes a second */
} pack_line;

typedef struct pack_bench {
    const bench_request *request;
    uint32_t n_threads;
    char *from, *to;
    float *scales;
    uint64_t n_scales;
    uint64_t hash;
    bool any;
    const char *last; /* title */
    ferry_machine machine;
} pack_bench;

static uint64_t element_bytes(uint32_t kind)
{
    ferry_dtype dtype = {.element_bits = 8};
    if (kind != 0) {
        (void)ferry_dtype_of(kind, &dtype, NULL); /* the tables below name only known ones */
    }
    return dtype.element_bits / 8;
}

/* Rows of a matrix of PITCH read bytes a row, or the same elements one behind the other. */
static ferry_box box_of(char *memory, uint64_t bytes, uint64_t element, uint64_t n_rows,
                        uint64_t n_columns, uint64_t pitch, uint64_t offset)
{
    ferry_box box = FERRY_BOX_INIT;
    box.buffer = ferry_buffer_of(memory, bytes);
    box.element_bytes = element;
    box.offset = offset;
    box.n_dims = 2;
    box.length[0] = n_rows;
    box.length[1] = n_columns;
    box.stride[0] = pitch;
    box.stride[1] = element;
    return box;
}

/* All columns, a block of row_bytes after the other. */
static ferry_status copy_once(pack_bench *b, const pack_line *line, ferry_error *error)
{
    uint64_t f = element_bytes(line->from_kind), t = element_bytes(line->to_kind);
    uint64_t n_rows = MEMORY / PITCH, n_columns = line->row_bytes / f;
    bool strided_from = line->shape == GATHER || line->shape == COLUMNS;
    bool strided_to = line->shape == SCATTER || line->shape == COLUMNS;
    ferry_copy_options options = FERRY_COPY_OPTIONS_INIT;
    ferry_status status = FERRY_OK;
    ferry_scales scales = {.values = b->scales, .n_values = b->n_scales};
    scales.block_rows = scales.block_columns = BLOCK;
    options.from_kind = line->from_kind;
    options.to_kind = line->to_kind;
    options.n_threads = line->hash ? 1 : b->n_threads;
    options.hash_out = line->hash ? &b->hash : NULL;
    if (line->has_scales && t == 1) {
        options.to_scales = scales;
    } else if (line->has_scales) {
        options.from_scales = scales;
    }
    if (line->shape == CONTIGUOUS) {
        n_rows = 1;
        n_columns = MEMORY / f;
    }
    for (uint64_t at = 0; at < MEMORY / n_rows / f && status == FERRY_OK; at += n_columns) {
        uint64_t before = at * n_rows;
        ferry_box from =
            box_of(b->from, MEMORY, f, n_rows, n_columns,
                   (strided_from ? PITCH / f : n_columns) * f, (strided_from ? at : before) * f);
        ferry_box to =
            box_of(b->to, MOST_GROWTH * MEMORY, t, n_rows, n_columns,
                   (strided_to ? PITCH / f : n_columns) * t, (strided_to ? at : before) * t);
        status = ferry_box_copy(&to, &from, &options, NULL, error);
    }
    return status;
}

static ferry_status sample(pack_bench *b, const pack_line *line, double *seconds_out,
                           ferry_error *error)
{
    double begin = bench_now();
    ferry_status status = copy_once(b, line, error);
    *seconds_out = bench_now() - begin;
    return status;
}

/* In turn with contiguous copies. Of a cast half of what is read and written counts. */
static ferry_status run_line(pack_bench *b, pack_line *line, ferry_error *error)
{
    static double times[MOST_SAMPLES], others[MOST_SAMPLES];
    const pack_line plain = {.shape = CONTIGUOUS, .hash = false, .row_bytes = PITCH};
    pack_line other = plain;
    double end = 0, f = (double)element_bytes(line->from_kind);
    double bytes = (double)MEMORY * (f + (double)element_bytes(line->to_kind)) / 2 / f;
    ferry_status status = sample(b, line, &times[0], error);
    end = bench_now() + b->request->seconds;
    for (line->n = 0; status == FERRY_OK && line->n < MOST_SAMPLES &&
                      (line->n < LEAST_SAMPLES || bench_now() < end);
         line->n++) {
        status = sample(b, line, &times[line->n], error);
        FY_THEN(status, sample(b, &other, &others[line->n], error));
    }
    if (status == FERRY_OK) {
        line->rate = bytes / bench_sort_times(times, line->n).median;
        line->contiguous = (double)MEMORY / bench_sort_times(others, line->n).median;
    }
    return status;
}

static void print_line(pack_bench *b, const pack_line *line)
{
    char row[32];
    if (b->request->json) {
        printf("%s\n{\"test\":\"%s\",\"row_bytes\":%llu,\"threads\":%u,\"samples\":%zu,"
               "\"gbytes_per_s\":%.6f,\"copy_gbytes_per_s\":%.6f,\"of_copy\":%.4f}",
               b->any ? "," : "", line->test, (unsigned long long)line->row_bytes,
               line->hash ? 1 : b->n_threads, line->n, line->rate / 1e9, line->contiguous / 1e9,
               line->rate / line->contiguous);
    } else {
        if (line->title != b->last) {
            printf("\n%s\n  %10s %10s %12s %10s\n", line->title, "row", "GB/s", "of a copy",
                   "samples");
        }
        printf("  %10s %10.3f %10.1f %% %10zu\n", bench_size_text(line->row_bytes, row),
               line->rate / 1e9, 100 * line->rate / line->contiguous, line->n);
        fflush(stdout);
    }
    b->any = true;
    b->last = line->title;
}

static ferry_status run_rows(pack_bench *b, ferry_error *error)
{
    static const pack_line tables[] = {
        {.test = "gather", .title = "Rows of a matrix to contiguous memory", .shape = GATHER},
        {.test = "scatter", .title = "Contiguous memory to rows of a matrix", .shape = SCATTER},
        {.test = "columns", .title = "Rows of a matrix to rows of another", .shape = COLUMNS},
        {.test = "gather_hash",
         .title = "Rows of a matrix to contiguous memory, hashed on the way (one thread)",
         .shape = GATHER,
         .hash = true},
        {.test = "scatter_hash",
         .title = "Contiguous memory to rows of a matrix, hashed on the way (one thread)",
         .shape = SCATTER,
         .hash = true},
    };
    uint64_t least = b->request->least != 0 ? b->request->least : 64;
    uint64_t most = b->request->least != 0 ? b->request->most : PITCH;
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        for (uint64_t row = least; row <= most && status == FERRY_OK; row *= 2) {
            pack_line line = tables[i];
            line.row_bytes = row;
            if (line.hash && b->n_threads > 1) { /* as fair as the others: a copy by one thread */
                continue;
            }
            status = run_line(b, &line, error);
            if (status == FERRY_OK) {
                print_line(b, &line);
            }
        }
    }
    return status;
}

static ferry_status run_casts(pack_bench *b, ferry_error *error)
{
    static const pack_line casts[] = {
        {.test = "f32_to_bf16",
         .title = "Cast f32 to bf16",
         .from_kind = FERRY_F32,
         .to_kind = FERRY_BF16},
        {.test = "bf16_to_f32",
         .title = "Cast bf16 to f32",
         .from_kind = FERRY_BF16,
         .to_kind = FERRY_F32},
        {.test = "f32_to_f16",
         .title = "Cast f32 to f16",
         .from_kind = FERRY_F32,
         .to_kind = FERRY_F16},
        {.test = "f16_to_f32",
         .title = "Cast f16 to f32",
         .from_kind = FERRY_F16,
         .to_kind = FERRY_F32},
        {.test = "bf16_to_f16",
         .title = "Cast bf16 to f16",
         .from_kind = FERRY_BF16,
         .to_kind = FERRY_F16},
        {.test = "f64_to_f32",
         .title = "Cast f64 to f32",
         .from_kind = FERRY_F64,
         .to_kind = FERRY_F32},
        {.test = "bf16_to_f8e4m3",
         .title = "Cast bf16 to f8e4m3",
         .from_kind = FERRY_BF16,
         .to_kind = FERRY_F8E4M3},
        {.test = "f8e4m3_to_bf16",
         .title = "Cast f8e4m3 to bf16",
         .from_kind = FERRY_F8E4M3,
         .to_kind = FERRY_BF16},
        {.test = "bf16_to_f8e4m3_blocks",
         .title = "Cast bf16 to f8e4m3, a scale for 128 x 128",
         .from_kind = FERRY_BF16,
         .to_kind = FERRY_F8E4M3,
         .has_scales = true},
        {.test = "f8e4m3_to_bf16_blocks",
         .title = "Cast f8e4m3 to bf16, a scale for 128 x 128",
         .from_kind = FERRY_F8E4M3,
         .to_kind = FERRY_BF16,
         .has_scales = true},
        {.test = "f32_to_f8e5m2",
         .title = "Cast f32 to f8e5m2",
         .from_kind = FERRY_F32,
         .to_kind = FERRY_F8E5M2},
    };
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < sizeof casts / sizeof casts[0] && status == FERRY_OK; i++) {
        pack_line line = casts[i];
        line.shape = COLUMNS;
        line.row_bytes = PITCH / 4;
        status = run_line(b, &line, error);
        if (status == FERRY_OK) {
            print_line(b, &line);
        }
    }
    return status;
}

static void begin_report(const pack_bench *b)
{
    if (b->request->json) {
        printf("{\"format\":\"ferry.bench/1\",\"name\":\"pack\",\"version\":");
        print_json_text(ferry_version());
        printf(",\"threads\":%u,\"bytes\":%llu,\"machine\":", b->n_threads,
               (unsigned long long)MEMORY);
        print_machine_json(&b->machine);
        printf(",\"results\":[");
        return;
    }
    printf("ferry %s, copies of %llu MiB by %u thread%s; rows lie %d KiB apart\n", ferry_version(),
           (unsigned long long)(MEMORY >> 20), b->n_threads, b->n_threads == 1 ? "" : "s",
           PITCH >> 10);
    print_machine(&b->machine);
}

static ferry_status measure(pack_bench *b, ferry_error *error)
{
    FY_TRY(ferry_machine_probe(PROBE_SECONDS, &b->machine, error));
    begin_report(b);
    FY_TRY(run_rows(b, error));
    FY_TRY(run_casts(b, error));
    if (b->request->json) {
        printf("\n]}\n");
    }
    return FERRY_OK;
}

static bool is_power_of_two(uint64_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

int bench_pack(const bench_request *request)
{
    ferry_error error;
    pack_bench b = {.request = request,
                    .n_threads = request->n_threads == 0 ? 1 : request->n_threads,
                    .machine = FERRY_MACHINE_INIT,
                    .n_scales = MEMORY / BLOCK / BLOCK};
    size_t bytes = (1 + MOST_GROWTH) * MEMORY;
    if (request->least != 0 && (!is_power_of_two(request->least) || request->most > PITCH)) {
        return fail_usage("bench", "rows of pack are powers of two up to %d KiB, not \"%s\"",
                          PITCH >> 10, request->sizes_text);
    }
    b.scales = malloc(b.n_scales * sizeof *b.scales);
    b.from = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b.scales == NULL || b.from == MAP_FAILED) {
        if (b.from != MAP_FAILED) {
            munmap(b.from, bytes);
        }
        free(b.scales);
        return fail("bench", "no memory to copy");
    }
    b.to = b.from + MEMORY;
    memset(b.from, 0x3c, bytes); /* small numbers of every type */
    for (uint64_t i = 0; i < b.n_scales; i++) {
        b.scales[i] = 1;
    }
    ferry_status status = measure(&b, &error);
    munmap(b.from, bytes);
    free(b.scales);
    return status == FERRY_OK ? EXIT_DONE : fail("bench", error.message);
}
