/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Sums in plain C, a piece at a time through buffers that stay in the fastest cache. */
#include "convert/kernels.h"
#include "exec/sum_isa.h"
#include "host/copy.h"

enum { PIECE = 1024, F32_INFINITY = 0x7f800000, F32_NAN = 0x7fc00000 };

static void widen(float *to, const void *from, fy_sum_type type, size_t n)
{
    switch (type) {
    case FY_SUM_F16:
        fy_convert_baseline.widen_f16(to, from, n);
        return;
    case FY_SUM_BF16:
        fy_convert_baseline.widen_bf16(to, from, n);
        return;
    default:
        memcpy(to, from, n * sizeof *to);
    }
}

static void add(float *restrict sums, const float *restrict values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        sums[i] += values[i];
    }
}

static void add_source(float *sums, const void *from, fy_sum_type type, size_t n)
{
    float values[PIECE];
    if (type == FY_SUM_F32) {
        add(sums, from, n);
        return;
    }
    widen(values, from, type, n);
    add(sums, values, n);
}

static void make_nans_alike(float *sums, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &sums[i], sizeof bits);
        bits = (bits & 0x7fffffff) > F32_INFINITY ? F32_NAN : bits;
        memcpy(&sums[i], &bits, sizeof bits);
    }
}

static void put(const fy_sum *sum, size_t first, const void *piece, size_t n)
{
    size_t bytes = fy_sum_type_bytes(sum->target_type);
    for (int i = 0; i < FY_SUM_MOST_TARGETS; i++) {
        char *to = sum->targets[i];
        if (to == NULL) {
            continue;
        }
        if (i == 0 && sum->stream) {
            fy_copy_unfenced(to + first * bytes, piece, n * bytes);
        } else {
            fy_copy_cached(to + first * bytes, piece, n * bytes);
        }
    }
}

/* Elements [first, first + n), at most a piece. */
static void sum_piece(const fy_sum *sum, size_t first, size_t n)
{
    _Alignas(64) float sums[PIECE];
    _Alignas(64) uint16_t narrow[PIECE];
    size_t offset = first * fy_sum_type_bytes(sum->source_type);
    widen(sums, (const char *)sum->sources[0] + offset, sum->source_type, n);
    for (size_t i = 1; i < sum->n_sources; i++) {
        add_source(sums, (const char *)sum->sources[i] + offset, sum->source_type, n);
    }
    make_nans_alike(sums, n);
    switch (sum->target_type) {
    case FY_SUM_F16:
        fy_convert_baseline.narrow_f16(narrow, sums, n);
        put(sum, first, narrow, n);
        return;
    case FY_SUM_BF16:
        fy_convert_baseline.narrow_bf16(narrow, sums, n);
        put(sum, first, narrow, n);
        return;
    default:
        put(sum, first, sums, n);
    }
}

void fy_sum_baseline(const fy_sum *sum)
{
    for (size_t first = 0; first < sum->n; first += PIECE) {
        sum_piece(sum, first, sum->n - first < PIECE ? sum->n - first : PIECE);
    }
}
