/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "bench_mixed_check.h"

#include <math.h>
#include <string.h>

/* Elements are looked at in blocks, so that the loops over them are tight. */
enum { BLOCK = 1024 };

/* Whole numbers up to here are exact in bf16, and so in all types. */
enum { MOST_EXACT = 256, MOST_INTEGER = 100 };

/* ---- types ---- */

uint32_t mixed_element_bytes(uint32_t dtype)
{
    return dtype == FERRY_F32 ? 4 : 2;
}

/* Bits of a number's significand, the leading one included. */
static int significand_bits(uint32_t dtype)
{
    return dtype == FERRY_F32 ? 24 : dtype == FERRY_F16 ? 11 : 8;
}

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Of a value that f16 can hold as it is. */
static uint32_t f16_of_exact(float value)
{
    uint32_t bits = bits_of_float(value);
    uint32_t sign = bits >> 16 & 0x8000;
    int32_t exponent;
    if ((bits & 0x7fffffff) == 0) {
        return sign;
    }
    exponent = (int32_t)(bits >> 23 & 0xff) - 127;
    if (exponent < -14) { /* a multiple of the least number */
        return sign | (uint32_t)(fabsf(value) * 0x1p24f);
    }
    return sign | (uint32_t)(exponent + 15) << 10 | (bits >> 13 & 0x3ff);
}

static float float_of_f16(uint32_t bits)
{
    uint32_t sign = (bits & 0x8000) << 16;
    uint32_t exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    if (exponent == 0) {
        float value = (float)fraction * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    return float_of_bits(sign | (exponent == 31 ? 0xff : exponent + 112) << 23 | fraction << 13);
}

static uint32_t raw_at(uint32_t dtype, const void *elements, uint64_t index)
{
    uint32_t wide;
    uint16_t narrow;
    if (dtype == FERRY_F32) {
        memcpy(&wide, (const char *)elements + 4 * index, 4);
        return wide;
    }
    memcpy(&narrow, (const char *)elements + 2 * index, 2);
    return narrow;
}

static double value_of_raw(uint32_t dtype, uint32_t raw)
{
    return dtype == FERRY_F32   ? (double)float_of_bits(raw)
           : dtype == FERRY_F16 ? (double)float_of_f16(raw)
                                : (double)float_of_bits(raw << 16);
}

/* Of a value that the type can hold as it is. */
static uint32_t raw_of_exact(uint32_t dtype, double value)
{
    return dtype == FERRY_F32   ? bits_of_float((float)value)
           : dtype == FERRY_F16 ? f16_of_exact((float)value)
                                : bits_of_float((float)value) >> 16;
}

static void store_raw(uint32_t dtype, void *elements, uint64_t index, uint32_t raw)
{
    uint16_t narrow = (uint16_t)raw;
    if (dtype == FERRY_F32) {
        memcpy((char *)elements + 4 * index, &raw, 4);
    } else {
        memcpy((char *)elements + 2 * index, &narrow, 2);
    }
}

/* ---- inputs ---- */

static uint32_t mix(uint32_t h)
{
    h ^= h >> 16;
    h *= 0x7feb352du;
    h ^= h >> 15;
    h *= 0x846ca68bu;
    return h ^ h >> 16;
}

/* Differs in each rank, and in each half of the world's longest messages. */
static uint32_t key_of(const mixed_case *c, uint32_t rank)
{
    return mix(mix(c->seed + 1) ^ (rank * 0x9e3779b9u + 0x51ed270bu));
}

static uint32_t random_at(uint32_t key, uint64_t index)
{
    return mix((uint32_t)index ^ (uint32_t)(index >> 32) * 0x85ebca6bu ^ key);
}

/*
 * With so many ranks that ones are too large already, only every n-th rank has an element that is
 * not zero.
 */
static void integers(const mixed_case *c, uint32_t rank, uint64_t begin, uint32_t n, double *out)
{
    uint32_t key = key_of(c, rank), most = MOST_EXACT / c->n_ranks;
    uint32_t every = (c->n_ranks + MOST_EXACT - 1) / MOST_EXACT;
    most = most < 1 ? 1 : most > MOST_INTEGER ? MOST_INTEGER : most;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t span = 2 * (uint64_t)most + 1;
        int32_t v = (int32_t)(random_at(key, begin + i) * span >> 32) - (int32_t)most;
        out[i] = every == 1 || (begin + i + rank) % every == 0 ? v : 0;
    }
}

/* All bits of the significand, and eight sizes: exact sums of such numbers fit into a double. */
static void randoms(const mixed_case *c, uint32_t rank, uint64_t begin, uint32_t n, double *out)
{
    static const double scales[8] = {0x1p-28, 0x1p-27, 0x1p-26, 0x1p-25,
                                     0x1p-24, 0x1p-23, 0x1p-22, 0x1p-21};
    uint32_t key = key_of(c, rank);
    int bits = significand_bits(c->dtype);
    double unit = ldexp(1, 24 - bits);
    uint32_t mask = (1u << bits) - 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t h = random_at(key, begin + i);
        double value = (double)(h >> 4 & mask) * unit * scales[h & 7];
        out[i] = h & 8 ? -value : value;
    }
}

/* Elements [begin, begin + n) of what a rank puts in; not of MIXED_BITS. */
static void inputs(const mixed_case *c, uint32_t rank, uint64_t begin, uint32_t n, double *out)
{
    if (c->pattern == MIXED_INTEGERS) {
        integers(c, rank, begin, n, out);
    } else {
        randoms(c, rank, begin, n, out);
    }
}

static uint32_t bits_at(const mixed_case *c, uint32_t key, uint64_t index)
{
    return random_at(key, index) >> (32 - 8 * mixed_element_bytes(c->dtype));
}

void mixed_fill(const mixed_case *c, void *in)
{
    double values[BLOCK];
    uint64_t n_in = mixed_in_count(c);
    uint32_t key = key_of(c, c->rank);
    for (uint64_t begin = 0; begin < n_in; begin += BLOCK) {
        uint32_t n = n_in - begin < BLOCK ? (uint32_t)(n_in - begin) : BLOCK;
        if (c->pattern != MIXED_BITS) {
            inputs(c, c->rank, begin, n, values);
        }
        for (uint32_t i = 0; i < n; i++) {
            store_raw(c->dtype, in, begin + i,
                      c->pattern == MIXED_BITS ? bits_at(c, key, begin + i)
                                               : raw_of_exact(c->dtype, values[i]));
        }
    }
}

void mixed_poison(const mixed_case *c, void *out)
{
    memset(out, 0xff, mixed_out_count(c) * mixed_element_bytes(c->dtype));
}

/* ---- who adds and who gathers what ---- */

static bool gathers(uint32_t op)
{
    return op == FERRY_MIXED_ALL_GATHER || op == FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
}

static bool scatters(uint32_t op)
{
    return op == FERRY_MIXED_REDUCE_SCATTER || op == FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE;
}

uint32_t mixed_dp_rank(const mixed_case *c, uint32_t rank)
{
    uint32_t local_dp_rank = rank % c->local_size / c->local_tp;
    uint32_t inter_dp_rank = rank / c->local_size / c->inter_tp;
    return local_dp_rank + inter_dp_rank * c->local_dp;
}

uint64_t mixed_in_count(const mixed_case *c)
{
    return c->count * (scatters(c->op) ? c->local_dp * c->inter_dp : 1);
}

uint64_t mixed_out_count(const mixed_case *c)
{
    return c->count * (gathers(c->op) ? c->local_dp * c->inter_dp : 1);
}

/* Elements of the output from first on, all of one chunk. */
typedef struct piece {
    uint64_t first;
    uint32_t n;
    uint32_t chunk;
    uint64_t in_first; /* where they are in the inputs */
} piece;

static piece piece_at(const mixed_case *c, uint64_t first)
{
    uint32_t chunk = (uint32_t)(first / c->count);
    uint64_t left = c->count - first % c->count;
    uint64_t shift = scatters(c->op) ? mixed_dp_rank(c, c->rank) * c->count : 0;
    return (piece){.first = first,
                   .n = left < BLOCK ? (uint32_t)left : BLOCK,
                   .chunk = chunk,
                   .in_first = shift + first % c->count};
}

static bool feeds(const mixed_case *c, uint32_t rank, uint32_t chunk)
{
    return !gathers(c->op) || mixed_dp_rank(c, rank) == chunk;
}

uint32_t mixed_first_replica(const mixed_case *c, uint32_t rank)
{
    uint32_t first = 0;
    while (scatters(c->op) && mixed_dp_rank(c, first) != mixed_dp_rank(c, rank)) {
        first++;
    }
    return first;
}

/* ---- results ---- */

/*
 * How far a result may lie from the exact sum: with u the rounding of the type, each stage makes
 * partial sums wrong by a factor of at most 1 + u, and each addition by one of 1 + 2^-24; together
 * they are no larger than the sum of magnitudes. The last rounding is one of the sum itself.
 */
static double bound_of(const mixed_case *c, double growth, double sum, double magnitude)
{
    double u = ldexp(1, -significand_bits(c->dtype));
    double partial = magnitude * growth;
    return c->pattern == MIXED_INTEGERS ? 0 : partial + u * (fabs(sum) + partial);
}

static double growth_of(const mixed_case *c)
{
    double u = ldexp(1, -significand_bits(c->dtype));
    return expm1(c->stages * log1p(u) + c->n_ranks * log1p(0x1p-24));
}

static void note_wrong(mixed_verdict *v, uint64_t index, double got, double want)
{
    if (v->n_wrong++ == 0) {
        v->first = index;
        v->got = got;
        v->want = want;
    }
}

static void check_sums(const mixed_case *c, const void *out, piece p, double growth,
                       mixed_verdict *v)
{
    double sum[BLOCK] = {0}, magnitude[BLOCK] = {0}, values[BLOCK];
    for (uint32_t rank = 0; rank < c->n_ranks; rank++) {
        if (!feeds(c, rank, p.chunk)) {
            continue;
        }
        inputs(c, rank, p.in_first, p.n, values);
        for (uint32_t i = 0; i < p.n; i++) {
            sum[i] += values[i];
            magnitude[i] += fabs(values[i]);
        }
    }
    for (uint32_t i = 0; i < p.n; i++) {
        double got = value_of_raw(c->dtype, raw_at(c->dtype, out, p.first + i));
        /* NaN is never near enough */
        if (!(fabs(got - sum[i]) <= bound_of(c, growth, sum[i], magnitude[i]))) {
            note_wrong(v, p.first + i, got, sum[i]);
        }
    }
}

static void check_bits(const mixed_case *c, const void *out, piece p, mixed_verdict *v)
{
    uint32_t source = 0;
    while (!feeds(c, source, p.chunk)) {
        source++;
    }
    uint32_t key = key_of(c, source);
    for (uint32_t i = 0; i < p.n; i++) {
        uint32_t got = raw_at(c->dtype, out, p.first + i), want = bits_at(c, key, p.in_first + i);
        if (got != want) {
            note_wrong(v, p.first + i, got, want);
        }
    }
}

mixed_verdict mixed_check(const mixed_case *c, const void *out)
{
    mixed_verdict v = {0};
    uint64_t n_out = mixed_out_count(c);
    double growth = growth_of(c);
    for (uint64_t at = 0; at < n_out;) {
        piece p = piece_at(c, at);
        if (c->pattern == MIXED_BITS) {
            check_bits(c, out, p, &v);
        } else {
            check_sums(c, out, p, growth, &v);
        }
        at += p.n;
    }
    return v;
}

uint64_t mixed_digest(const mixed_case *c, const void *out)
{
    uint64_t n = mixed_out_count(c), digest = n;
    for (uint64_t i = 0; i < n; i++) {
        digest = (digest ^ raw_at(c->dtype, out, i)) * 0x9e3779b97f4a7c15u;
        digest ^= digest >> 29;
    }
    return digest;
}
