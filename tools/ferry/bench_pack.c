/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * `ferry bench pack`: copies between shapes, each measured in turn with a copy of contiguous memory
 * of the same threads, so that both see the same machine.
 */
#include "bench.h"

#include "bench_device.h"
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
#define HOST_BYTES ((uint64_t)128 << 20) /* that is read: more than caches keep of it */
#define MOST_GROWTH 2                    /* casts make that much of it */

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
    const char *kind;
    uint64_t bytes; /* that a copy reads */
    ferry_buffer from, to;
    ferry_queue *queue; /* NULL: of the host */
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
static ferry_box box_of(const ferry_buffer *buffer, uint64_t element, uint64_t n_rows,
                        uint64_t n_columns, uint64_t pitch, uint64_t offset)
{
    ferry_box box = FERRY_BOX_INIT;
    box.buffer = *buffer;
    box.element_bytes = element;
    box.offset = offset;
    box.n_dims = 2;
    box.length[0] = n_rows;
    box.length[1] = n_columns;
    box.stride[0] = pitch;
    box.stride[1] = element;
    return box;
}

static ferry_copy_options options_of(pack_bench *b, const pack_line *line)
{
    uint64_t t = element_bytes(line->to_kind);
    ferry_copy_options options = FERRY_COPY_OPTIONS_INIT;
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
    return options;
}

/* A device gets all blocks at once: a dim outside of the others. */
static void add_blocks(ferry_box *box, uint64_t n_blocks, uint64_t step)
{
    box->n_dims = 3;
    for (int d = 2; d > 0; d--) {
        box->length[d] = box->length[d - 1];
        box->stride[d] = box->stride[d - 1];
    }
    box->length[0] = n_blocks;
    box->stride[0] = step;
}

/* All columns, a block of row_bytes after the other. */
static ferry_status copy_once(pack_bench *b, const pack_line *line, ferry_error *error)
{
    uint64_t f = element_bytes(line->from_kind), t = element_bytes(line->to_kind);
    bool is_flat = line->shape == CONTIGUOUS;
    uint64_t n_rows = is_flat ? 1 : b->bytes / PITCH;
    uint64_t n_columns = is_flat ? b->bytes / f : line->row_bytes / f;
    bool strided_from = line->shape == GATHER || line->shape == COLUMNS;
    bool strided_to = line->shape == SCATTER || line->shape == COLUMNS;
    ferry_copy_options options = options_of(b, line);
    ferry_status status = FERRY_OK;
    for (uint64_t at = 0; at < b->bytes / n_rows / f && status == FERRY_OK; at += n_columns) {
        uint64_t before = at * n_rows;
        ferry_box from =
            box_of(&b->from, f, n_rows, n_columns, (strided_from ? PITCH / f : n_columns) * f,
                   (strided_from ? at : before) * f);
        ferry_box to =
            box_of(&b->to, t, n_rows, n_columns, (strided_to ? PITCH / f : n_columns) * t,
                   (strided_to ? at : before) * t);
        if (b->queue != NULL && !is_flat) {
            uint64_t n_blocks = PITCH / f / n_columns, block = n_rows * n_columns;
            add_blocks(&from, n_blocks, (strided_from ? n_columns : block) * f);
            add_blocks(&to, n_blocks, (strided_to ? n_columns : block) * t);
            return ferry_box_copy(&to, &from, &options, b->queue, error);
        }
        status = ferry_box_copy(&to, &from, &options, b->queue, error);
    }
    return status;
}

static ferry_status sample(pack_bench *b, const pack_line *line, double *seconds_out,
                           ferry_error *error)
{
    int n = b->queue == NULL ? 1 : BENCH_AT_ONCE;
    double begin = bench_now();
    ferry_status status = FERRY_OK;
    for (int i = 0; i < n; i++) {
        FY_THEN(status, copy_once(b, line, error));
    }
    if (b->queue != NULL) {
        FY_THEN(status, ferry_queue_synchronize(b->queue, error));
    }
    *seconds_out = (bench_now() - begin) / n;
    return status;
}

/* In turn with contiguous copies. Of a cast half of what is read and written counts. */
static ferry_status run_line(pack_bench *b, pack_line *line, ferry_error *error)
{
    static double times[MOST_SAMPLES], others[MOST_SAMPLES];
    const pack_line plain = {.shape = CONTIGUOUS, .hash = false, .row_bytes = PITCH};
    pack_line other = plain;
    double end = 0, f = (double)element_bytes(line->from_kind);
    double bytes = (double)b->bytes * (f + (double)element_bytes(line->to_kind)) / 2 / f;
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
        line->contiguous = (double)b->bytes / bench_sort_times(others, line->n).median;
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

static ferry_status run_casts(pack_bench *b, ferry_error *error)
{
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
        printf(",\"memory\":\"%s\",\"threads\":%u,\"bytes\":%llu,\"machine\":", b->kind,
               b->n_threads, (unsigned long long)b->bytes);
        print_machine_json(&b->machine);
        printf(",\"results\":[");
        return;
    }
    printf("ferry %s, copies of %llu MiB by ", ferry_version(),
           (unsigned long long)(b->bytes >> 20));
    if (b->queue != NULL) {
        printf("device 0 of kind %s", b->kind);
    } else {
        printf("%u thread%s", b->n_threads, b->n_threads == 1 ? "" : "s");
    }
    printf("; rows lie %d KiB apart\n", PITCH >> 10);
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

/* As a program has it. */
static ferry_status map_host(uint64_t bytes, ferry_buffer *buffer_out, ferry_error *error)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        snprintf(error->message, sizeof error->message, "no memory to copy");
        return FERRY_ERR_NO_MEMORY;
    }
    *buffer_out = ferry_buffer_of(base, bytes);
    return FERRY_OK;
}

static void free_memory(ferry_buffer *buffer)
{
    if (buffer->kind == FERRY_MEMORY_HOST && buffer->base != NULL) {
        munmap(buffer->base, buffer->bytes);
    } else {
        ferry_memory_free(buffer);
    }
}

/* Memory is the host's, or of the first device. */
static ferry_status open_memory(pack_bench *b, ferry_error *error)
{
    ferry_memory_kind kind = (ferry_memory_kind)b->request->memory;
    FY_TRY(ferry_memory_kind_at((size_t)kind, &b->kind, NULL, NULL, NULL, error));
    if (kind == FERRY_MEMORY_HOST) {
        FY_TRY(map_host(b->bytes, &b->from, error));
        FY_TRY(map_host(MOST_GROWTH * b->bytes, &b->to, error));
    } else {
        FY_TRY(ferry_memory_alloc(NULL, kind, 0, b->bytes, &b->from, error));
        FY_TRY(ferry_memory_alloc(NULL, kind, 0, MOST_GROWTH * b->bytes, &b->to, error));
        FY_TRY(ferry_queue_create(kind, 0, &b->queue, error));
    }
    FY_TRY(bench_fill(&b->from, 0x3c, error)); /* small numbers of every type */
    return bench_fill(&b->to, 0x3c, error);
}

int bench_pack(const bench_request *request)
{
    ferry_error error;
    bool is_host = request->memory == FERRY_MEMORY_HOST;
    pack_bench b = {.request = request,
                    .n_threads = request->n_threads == 0 ? 1 : request->n_threads,
                    .bytes = is_host ? HOST_BYTES : BENCH_DEVICE_BYTES,
                    .machine = FERRY_MACHINE_INIT};
    if (request->least != 0 && (!is_power_of_two(request->least) || request->most > PITCH)) {
        return fail_usage("bench", "rows of pack are powers of two up to %d KiB, not \"%s\"",
                          PITCH >> 10, request->sizes_text);
    }
    b.bytes = request->bytes > 0 ? request->bytes : b.bytes;
    b.n_scales = b.bytes / BLOCK / BLOCK + PITCH / BLOCK; /* with few rows, blocks are not full */
    b.scales = malloc(b.n_scales * sizeof *b.scales);
    if (b.scales == NULL) {
        return fail("bench", "out of memory");
    }
    for (uint64_t i = 0; i < b.n_scales; i++) {
        b.scales[i] = 1;
    }
    ferry_status status = open_memory(&b, &error);
    FY_THEN(status, measure(&b, &error));
    ferry_queue_destroy(b.queue);
    free_memory(&b.to);
    free_memory(&b.from);
    free(b.scales);
    return status == FERRY_OK ? EXIT_DONE : fail("bench", error.message);
}
