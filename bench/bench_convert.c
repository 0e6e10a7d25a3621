/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast numbers are converted, beside what memory can do: a copy of as many bytes as are read,
 * in turns within each round, so that a busy moment of the machine hits all of them. A figure is
 * the median over the rounds of the bytes read in a second of a processor; a ratio is the median
 * of the rounds' ratios to the faster copy.
 *
 *     bench_convert [--json FILE] [--rounds N] [--mib N] [--only NAME]
 *
 * One thread; all memory is touched before.
 */
#include "base/cpu.h"
#include "convert/convert.h"
#include "exec/cast.h"
#include "host/copy.h"

#include <ferry/dtype.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_ROUNDS = 101, N_COLUMNS = 8192, BLOCK = 128 };

/* Memory for all: a source of so many bytes, and room for what may be twice as long. */
typedef struct bench {
    size_t n_bytes;
    char *from, *to;
    float *scales; /* and what is smaller than f32 */
    size_t scales_bytes;
    char *quantized; /* what the reverse reads */
    int n_rounds;
    const char *only;
} bench;

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(ferry_status status, const ferry_error *error)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "bench_convert: %s\n", error->message);
        exit(1);
    }
}

/* ---- what is measured: each reads all of the source, and returns how many bytes ---- */

static size_t copy_libc(const bench *b)
{
    memcpy(b->to, b->from, b->n_bytes);
    return b->n_bytes;
}

static size_t copy_ferry(const bench *b)
{
    fy_copy(b->to, b->from, b->n_bytes);
    return b->n_bytes;
}

static size_t cast(const bench *b, uint32_t from, uint32_t to)
{
    ferry_error error;
    size_t from_row = N_COLUMNS * fy_cast_element_bytes(from);
    fy_cast_matrix c = {.from_kind = from,
                        .to_kind = to,
                        .n_rows = b->n_bytes / from_row,
                        .n_columns = N_COLUMNS,
                        .from = {b->from, b->n_bytes, 0},
                        .to = {b->to, 2 * b->n_bytes, 0}};
    must(fy_cast_run(&c, &error), &error);
    return b->n_bytes;
}

static size_t f32_to_bf16(const bench *b)
{
    return cast(b, FERRY_F32, FERRY_BF16);
}

static size_t bf16_to_f32(const bench *b)
{
    return cast(b, FERRY_BF16, FERRY_F32);
}

static size_t bf16_to_f8e4m3(const bench *b)
{
    return cast(b, FERRY_BF16, FERRY_F8E4M3);
}

static fy_quantized matrix_of(const bench *b, fy_block_format format)
{
    return (fy_quantized){.format = format,
                          .kind = FERRY_BF16,
                          .tensor_scale = format.scale_kind == FERRY_F8E4M3 ? 1 : 0,
                          .n_rows = b->n_bytes / (2 * N_COLUMNS),
                          .n_columns = N_COLUMNS};
}

static size_t quantize(const bench *b, fy_block_format format, char *codes)
{
    ferry_error error;
    fy_quantized q = matrix_of(b, format);
    must(fy_quantize(&q, &(fy_input){b->from, b->n_bytes, 0},
                     &(fy_output){codes, b->n_bytes / 2, 0},
                     &(fy_output){b->scales, b->scales_bytes, 0}, &error),
         &error);
    return b->n_bytes;
}

/* Reads half the bytes, or a quarter, and the scales, which do not count. */
static size_t dequantize(const bench *b, fy_block_format format)
{
    ferry_error error;
    fy_quantized q = matrix_of(b, format);
    uint64_t read = q.n_rows * fy_codes_row_bytes(&q);
    must(fy_dequantize(&q, &(fy_input){b->quantized, b->n_bytes / 2, 0},
                       &(fy_input){b->scales, b->scales_bytes, 0},
                       &(fy_output){b->to, 2 * b->n_bytes, 0}, &error),
         &error);
    return (size_t)read;
}

/* What reading alone takes. */
static size_t largest(const bench *b)
{
    ferry_error error;
    float found;
    must(fy_largest(FERRY_BF16, b->n_bytes / (2 * N_COLUMNS), N_COLUMNS,
                    &(fy_input){b->from, b->n_bytes, 0}, &found, &error),
         &error);
    return b->n_bytes;
}

static size_t quantize_blocks(const bench *b)
{
    return quantize(b, fy_format_f8(BLOCK, BLOCK), b->to);
}

static size_t quantize_mxfp8(const bench *b)
{
    return quantize(b, fy_format_mxfp8(), b->to);
}

static size_t quantize_nvfp4(const bench *b)
{
    return quantize(b, fy_format_nvfp4(), b->to);
}

static size_t dequantize_blocks(const bench *b)
{
    return dequantize(b, fy_format_f8(BLOCK, BLOCK));
}

static size_t dequantize_mxfp8(const bench *b)
{
    return dequantize(b, fy_format_mxfp8());
}

static size_t dequantize_nvfp4(const bench *b)
{
    return dequantize(b, fy_format_nvfp4());
}

/* The same in the two steps of plans: codes are widened within a copy, and then multiplied. */
static size_t widen_nvfp4(const bench *b)
{
    uint64_t n_pairs = b->n_bytes / 4;
    fy_cast pairs = {
        .from_kind = FERRY_F4, .to_kind = FERRY_BF16, .n_rows = 1, .n_columns = n_pairs};
    fy_area from = fy_area_flat(0, n_pairs), to = fy_area_flat(0, 4 * n_pairs);
    fy_area_cast(&pairs, &to, b->to, &from, b->quantized, 0, n_pairs);
    fy_copy_fence();
    return n_pairs;
}

static size_t scale_nvfp4(const bench *b)
{
    ferry_error error;
    fy_quantized q = matrix_of(b, fy_format_nvfp4());
    must(fy_scale_values(&q, &(fy_input){b->scales, b->scales_bytes, 0},
                         &(fy_output){b->to, b->n_bytes, 0}, &error),
         &error);
    return b->n_bytes;
}

static const struct work {
    const char *name;
    size_t (*run)(const bench *b);
} works[] = {
    {"copy_libc", copy_libc}, /* the first two: ratios are to the faster */
    {"copy", copy_ferry},
    {"f32_to_bf16", f32_to_bf16},
    {"bf16_to_f32", bf16_to_f32},
    {"bf16_to_f8e4m3", bf16_to_f8e4m3},
    {"largest", largest},
    {"quantize_f8_128x128", quantize_blocks},
    {"dequantize_f8_128x128", dequantize_blocks},
    {"quantize_mxfp8", quantize_mxfp8},
    {"dequantize_mxfp8", dequantize_mxfp8},
    {"quantize_nvfp4", quantize_nvfp4},
    {"dequantize_nvfp4", dequantize_nvfp4},
    {"widen_nvfp4", widen_nvfp4},
    {"scale_nvfp4", scale_nvfp4},
};

enum { N_WORKS = sizeof works / sizeof works[0], N_COPIES = 2 };

/* ---- rounds ---- */

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

static bool is_wanted(const bench *b, int w)
{
    return w < N_COPIES || b->only == NULL || strcmp(b->only, works[w].name) == 0;
}

static double rates[N_WORKS][MOST_ROUNDS], ratios[N_WORKS][MOST_ROUNDS];

static void measure(const bench *b)
{
    for (int round = 0; round < b->n_rounds; round++) {
        for (int w = 0; w < N_WORKS; w++) {
            if (!is_wanted(b, w)) {
                continue;
            }
            double before = cpu_seconds();
            size_t n_bytes = works[w].run(b);
            rates[w][round] = (double)n_bytes / (cpu_seconds() - before) / 1e9;
        }
        for (int w = 0; w < N_WORKS; w++) {
            double limit = rates[0][round] > rates[1][round] ? rates[0][round] : rates[1][round];
            ratios[w][round] = rates[w][round] / limit;
        }
    }
}

static void report(const bench *b, FILE *json)
{
    printf("%-24s %12s %8s   (%s, %zu MiB, %d rounds)\n", "", "GB/s read", "of copy",
           fy_isa_name(fy_cpu_isa()), b->n_bytes >> 20, b->n_rounds);
    if (json != NULL) {
        fprintf(json, "{\"isa\": \"%s\", \"bytes\": %zu, \"rounds\": %d, \"results\": [",
                fy_isa_name(fy_cpu_isa()), b->n_bytes, b->n_rounds);
    }
    for (int w = 0; w < N_WORKS; w++) {
        if (!is_wanted(b, w)) {
            continue;
        }
        double rate = median(rates[w], b->n_rounds), ratio = median(ratios[w], b->n_rounds);
        printf("%-24s %12.2f %8.2f\n", works[w].name, rate, ratio);
        if (json != NULL) {
            fprintf(json, "%s\n  {\"test\": \"%s\", \"gbytes_per_s\": %.3f, \"of_copy\": %.3f}",
                    w == 0 ? "" : ",", works[w].name, rate, ratio);
        }
    }
    if (json != NULL) {
        fprintf(json, "\n]}\n");
    }
}

/* Weights as they are: around zero, most of them small; finite as bf16 and as f32. */
static void fill(const bench *b)
{
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < b->n_bytes / 2; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        /* The sum of four is nearly normal. */
        int sum = (int)(x & 0xffff) + (int)(x >> 16 & 0xffff) + (int)(x >> 32 & 0xffff) +
                  (int)(x >> 48) - 2 * 65535;
        float value = (float)sum * 3e-7f;
        memcpy(b->from + 2 * i, (const char *)&value + 2, 2);
    }
}

int main(int argc, char **argv)
{
    bench b = {.n_bytes = (size_t)1 << 30, .n_rounds = 5};
    FILE *json = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--json") == 0) {
            json = fopen(argv[i + 1], "w");
        } else if (strcmp(argv[i], "--rounds") == 0) {
            b.n_rounds = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--mib") == 0) {
            b.n_bytes = (size_t)atoi(argv[i + 1]) << 20;
        } else if (strcmp(argv[i], "--only") == 0) {
            b.only = argv[i + 1];
        }
    }
    b.n_rounds = b.n_rounds < 1 ? 1 : b.n_rounds > MOST_ROUNDS ? MOST_ROUNDS : b.n_rounds;
    b.scales_bytes = b.n_bytes / 2 / 16;
    b.from = aligned_alloc(4096, b.n_bytes);
    b.to = aligned_alloc(4096, 2 * b.n_bytes);
    b.quantized = aligned_alloc(4096, b.n_bytes / 2);
    b.scales = aligned_alloc(4096, b.scales_bytes);
    if (b.from == NULL || b.to == NULL || b.quantized == NULL || b.scales == NULL) {
        fprintf(stderr, "bench_convert: out of memory\n");
        return 1;
    }
    fill(&b);
    memset(b.to, 1, 2 * b.n_bytes);
    memset(b.scales, 0x38, b.scales_bytes);
    (void)quantize(&b, fy_format_f8(BLOCK, BLOCK), b.quantized);
    measure(&b);
    report(&b, json);
    if (json != NULL) {
        fclose(json);
    }
    free(b.from);
    free(b.to);
    free(b.quantized);
    free(b.scales);
    return 0;
}
