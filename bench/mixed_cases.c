/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Inputs repeat after PERIOD elements, which divides no piece: so chunks and pieces that changed
 * places are seen, and results are compared period by period.
 */
#include "mixed_cases.h"

#include <string.h>

enum { PERIOD = 1009, MAX_BYTES = 4 };

const char *const mixed_op_names[MIXED_N_OPS] = {"all-reduce", "all-gather", "reduce-scatter",
                                                 "all-reduce-all-gather",
                                                 "reduce-scatter-all-reduce"};
const char *const mixed_dtype_names[MIXED_N_DTYPES] = {"fp32", "bf16", "fp16"};

static int find(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

bool mixed_case_make(const char *op, const char *dtype, int tp, int dp, int rank, int n_ranks,
                     mixed_case *out)
{
    int op_number = find(mixed_op_names, MIXED_N_OPS, op);
    int dtype_number = find(mixed_dtype_names, MIXED_N_DTYPES, dtype);
    if (op_number < 0 || dtype_number < 0 || n_ranks > MIXED_MAX_RANKS || tp < 1 || dp < 1 ||
        tp * dp != n_ranks) {
        return false;
    }
    *out = (mixed_case){.op = (enum mixed_op)op_number,
                        .dtype = (enum mixed_dtype)dtype_number,
                        .rank = rank,
                        .n_ranks = n_ranks,
                        .tp = tp,
                        .dp = dp,
                        .tp_rank = rank % tp,
                        .dp_rank = rank / tp};
    return true;
}

size_t mixed_element_bytes(enum mixed_dtype dtype)
{
    return dtype == MIXED_F32 ? 4 : 2;
}

static bool is_scatter(const mixed_case *c)
{
    return c->op == MIXED_REDUCE_SCATTER || c->op == MIXED_REDUCE_SCATTER_ALL_REDUCE;
}

static bool is_gather(const mixed_case *c)
{
    return c->op == MIXED_ALL_GATHER || c->op == MIXED_ALL_REDUCE_ALL_GATHER;
}

size_t mixed_in_pieces(const mixed_case *c)
{
    return is_scatter(c) ? (size_t)c->dp : 1;
}

size_t mixed_out_pieces(const mixed_case *c)
{
    return is_gather(c) ? (size_t)c->dp : 1;
}

/* ---- values ---- */

/* -4 .. 4, for element i of a rank's input. */
static int value_of(int rank, size_t i)
{
    uint64_t mixed = ((uint64_t)i + (uint64_t)rank * PERIOD + 1) * 0x9e3779b97f4a7c15u;
    return (int)((mixed >> 32) % 9) - 4;
}

static uint16_t half_of(int value)
{
    unsigned sign = value < 0 ? 0x8000u : 0u, size = (unsigned)(value < 0 ? -value : value);
    unsigned exponent = 0;
    if (size == 0) {
        return 0;
    }
    while (size >> (exponent + 1) != 0) {
        exponent++;
    }
    return (uint16_t)(sign | (exponent + 15) << 10 | ((size << 10 >> exponent) & 0x3ffu));
}

static void encode(enum mixed_dtype dtype, int value, unsigned char *to)
{
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    uint16_t half = dtype == MIXED_F16 ? half_of(value) : (uint16_t)(bits >> 16);
    if (dtype == MIXED_F32) {
        memcpy(to, &bits, sizeof bits);
    } else {
        memcpy(to, &half, sizeof half);
    }
}

/* A period of the sum of the inputs of ranks first .. last. */
static void make_period(const mixed_case *c, int first, int last, unsigned char *period)
{
    size_t bytes = mixed_element_bytes(c->dtype);
    for (size_t i = 0; i < PERIOD; i++) {
        int sum = 0;
        for (int rank = first; rank <= last; rank++) {
            sum += value_of(rank, i);
        }
        encode(c->dtype, sum, period + i * bytes);
    }
}

void mixed_fill(const mixed_case *c, size_t piece, void *in)
{
    unsigned char period[PERIOD * MAX_BYTES], *to = in;
    size_t total = piece * mixed_in_pieces(c) * mixed_element_bytes(c->dtype);
    size_t whole = PERIOD * mixed_element_bytes(c->dtype);
    make_period(c, c->rank, c->rank, period);
    for (size_t at = 0; at < total; at += whole) {
        memcpy(to + at, period, total - at < whole ? total - at : whole);
    }
}

/* Elements begin .. begin + n of a sum whose period this is. */
static uint64_t compare(const unsigned char *period, size_t begin, size_t n, size_t bytes,
                        const unsigned char *got)
{
    uint64_t n_wrong = 0;
    for (size_t at = 0, length; at < n; at += length) {
        size_t phase = (begin + at) % PERIOD;
        length = PERIOD - phase < n - at ? PERIOD - phase : n - at;
        if (memcmp(got + at * bytes, period + phase * bytes, length * bytes) != 0) {
            for (size_t i = 0; i < length; i++) {
                n_wrong += memcmp(got + (at + i) * bytes, period + (phase + i) * bytes, bytes) != 0;
            }
        }
    }
    return n_wrong;
}

uint64_t mixed_count_wrong(const mixed_case *c, size_t piece, const void *out)
{
    unsigned char period[PERIOD * MAX_BYTES];
    const unsigned char *got = out;
    size_t bytes = mixed_element_bytes(c->dtype);
    uint64_t wrong = 0;
    if (!is_gather(c)) {
        make_period(c, 0, c->n_ranks - 1, period);
        return compare(period, is_scatter(c) ? piece * (size_t)c->dp_rank : 0, piece, bytes, got);
    }
    for (int chunk = 0; chunk < c->dp; chunk++) {
        make_period(c, chunk * c->tp, (chunk + 1) * c->tp - 1, period);
        wrong += compare(period, 0, piece, bytes, got + (size_t)chunk * piece * bytes);
    }
    return wrong;
}
