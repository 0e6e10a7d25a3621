/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "collective/oracle.h"

#include <math.h>
#include <string.h>

/* Topology */

shape shape_of(uint32_t l, uint32_t n, uint32_t local_tp, uint32_t inter_tp)
{
    shape s = {.w = l * n, .l = l, .n = n, .local_tp = local_tp, .inter_tp = inter_tp};
    s.local_dp = l / local_tp;
    s.inter_dp = n / inter_tp;
    s.tp = local_tp * inter_tp;
    s.dp = s.local_dp * s.inter_dp;
    return s;
}

seat seat_of(const shape *s, uint32_t rank)
{
    seat at = {.rank = rank, .local = rank % s->l, .node = rank / s->l};
    at.local_tp = at.local % s->local_tp;
    at.local_dp = at.local / s->local_tp;
    at.inter_tp = at.node % s->inter_tp;
    at.inter_dp = at.node / s->inter_tp;
    at.tp = at.local_tp + at.inter_tp * s->local_tp;
    at.dp = at.local_dp + at.inter_dp * s->local_dp;
    return at;
}

bool shape_has_op(const shape *s, uint32_t op)
{
    switch (op) {
    case FERRY_MIXED_ALL_REDUCE:
        return s->dp == 1;
    case FERRY_MIXED_ALL_GATHER:
    case FERRY_MIXED_REDUCE_SCATTER:
        return s->tp == 1 && s->dp > 1;
    default:
        return s->tp > 1 && s->dp > 1;
    }
}

/* The one tree wants what a node sums to be summed before nodes are. */
static bool sums_nodes_first(const shape *s, uint32_t mode)
{
    bool waits =
        mode == FERRY_MIXED_FUSED_WAITS_MULTICAST || mode == FERRY_MIXED_FUSED_WAITS_UNICAST;
    return waits && s->local_tp > 1 && s->inter_tp > 1;
}

bool shape_has_mode(const shape *s, uint32_t mode, bool multicast, bool deterministic)
{
    if (deterministic && s->w > 1 && (mode >= FERRY_MIXED_BASE_ONE || sums_nodes_first(s, mode))) {
        return false;
    }
    switch (mode) {
    case FERRY_MIXED_FUSED_WAITS_MULTICAST:
        return multicast;
    case FERRY_MIXED_FUSED_WAITS_UNICAST:
    case FERRY_MIXED_BASE_ONE:
        return true;
    case FERRY_MIXED_FUSED_BYTES1_MULTICAST:
        return s->local_tp > 1 && multicast;
    case FERRY_MIXED_FUSED_BYTES1_UNICAST:
        return s->local_tp > 1;
    case FERRY_MIXED_FUSED_BYTES2_MULTICAST:
        return s->inter_tp > 1 && multicast;
    case FERRY_MIXED_FUSED_BYTES2_UNICAST:
        return s->inter_tp > 1;
    case FERRY_MIXED_BASE_TP_DP:
        return s->tp > 1 && s->dp > 1;
    default:
        return false;
    }
}

uint32_t shape_in_chunks(const shape *s, uint32_t op)
{
    return op == FERRY_MIXED_REDUCE_SCATTER || op == FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE ? s->dp
                                                                                           : 1;
}

uint32_t shape_out_chunks(const shape *s, uint32_t op)
{
    return op == FERRY_MIXED_ALL_GATHER || op == FERRY_MIXED_ALL_REDUCE_ALL_GATHER ? s->dp : 1;
}

summands summands_of(const shape *s, uint32_t op, uint32_t chunk)
{
    summands set = {0};
    bool some = op == FERRY_MIXED_ALL_GATHER || op == FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
    for (uint32_t rank = 0; rank < s->w; rank++) {
        if (!some || seat_of(s, rank).dp == chunk) {
            set.ranks[set.n++] = rank;
        }
    }
    set.n_nodes = some ? s->inter_tp : s->n;
    set.n_locals = set.n / set.n_nodes;
    return set;
}

/* Numbers */

typedef struct format {
    int mantissa_bits, least_exponent; /* of a normal number */
    int exponent_bits;
} format;

static format format_of(uint32_t dtype)
{
    switch (dtype) {
    case FERRY_F16:
        return (format){10, -14, 5};
    case FERRY_BF16:
        return (format){7, -126, 8};
    default:
        return (format){23, -126, 8};
    }
}

uint32_t dtype_bytes(uint32_t dtype)
{
    return dtype == FERRY_F32 ? 4 : 2;
}

const char *dtype_name(uint32_t dtype)
{
    return dtype == FERRY_F32 ? "f32" : dtype == FERRY_F16 ? "f16" : "bf16";
}

double widen(uint32_t dtype, uint32_t bits)
{
    format f = format_of(dtype);
    uint32_t all_ones = (1u << f.exponent_bits) - 1;
    uint32_t mantissa = bits & ((1u << f.mantissa_bits) - 1);
    uint32_t exponent = (bits >> f.mantissa_bits) & all_ones;
    bool negative = (bits >> (f.mantissa_bits + f.exponent_bits)) != 0;
    double number;
    if (exponent == all_ones) {
        number = mantissa != 0 ? (double)NAN : (double)INFINITY;
    } else if (exponent == 0) {
        number = ldexp(mantissa, f.least_exponent - f.mantissa_bits);
    } else {
        number = ldexp((double)(mantissa + (1u << f.mantissa_bits)),
                       (int)exponent - 1 + f.least_exponent - f.mantissa_bits);
    }
    return negative ? -number : number;
}

uint32_t round_once(uint32_t dtype, double number)
{
    format f = format_of(dtype);
    uint32_t infinity = ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
    uint32_t sign = signbit(number) ? 1u << (f.mantissa_bits + f.exponent_bits) : 0;
    int exponent = 0;
    if (isnan(number)) {
        return infinity | 1u << (f.mantissa_bits - 1);
    }
    if (isinf(number) || fpclassify(number) == FP_ZERO) {
        return sign | (isinf(number) ? infinity : 0);
    }
    frexp(number, &exponent);
    exponent = exponent - 1 < f.least_exponent ? f.least_exponent : exponent - 1;
    if (exponent > 200) {
        return sign | infinity;
    }
    /* Dividing by a power of two is exact; what is left is a whole number of last places, and an
     * overflow of the mantissa counts up the exponent. */
    double places = nearbyint(ldexp(fabs(number), f.mantissa_bits - exponent));
    uint32_t bits = ((uint32_t)(exponent - f.least_exponent) << f.mantissa_bits) + (uint32_t)places;
    return sign | (bits > infinity ? infinity : bits);
}

uint32_t tree_bits(uint32_t dtype, const summands *set, const uint32_t *bits)
{
    float sum = 0;
    if (set->n == 1) {
        return bits[0];
    }
    for (uint32_t node = 0; node < set->n_nodes; node++) {
        const uint32_t *own = bits + (size_t)node * set->n_locals;
        volatile float partial = (float)widen(dtype, own[0]);
        for (uint32_t i = 1; i < set->n_locals; i++) {
            partial = partial + (float)widen(dtype, own[i]);
        }
        volatile float next = node == 0 ? partial : sum + partial;
        sum = next;
    }
    return round_once(dtype, (double)sum);
}

/* Inputs */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

/* A number of either sign with an exponent in a range that all its bits are of the format. */
static uint32_t bits_with_exponent(uint32_t dtype, uint64_t dice, int least, int most)
{
    format f = format_of(dtype);
    uint32_t range = (uint32_t)(most - least + 1);
    uint32_t exponent = (uint32_t)(least - f.least_exponent + 1) + (uint32_t)(dice >> 40) % range;
    uint32_t sign = (uint32_t)(dice >> 39 & 1);
    return (sign << f.exponent_bits | exponent) << f.mantissa_bits |
           ((uint32_t)dice & ((1u << f.mantissa_bits) - 1));
}

/* Pairs of the same large number with both signs, at positions that change with the index, among
 * small numbers. */
static uint32_t cancelling_bits(uint32_t dtype, uint64_t seed, uint32_t position, uint32_t n,
                                uint64_t index)
{
    uint64_t common = mix(seed + index * 0x9e3779b97f4a7c15u);
    uint32_t place = (uint32_t)((position + common % n) % n);
    uint32_t pairs = n / 3;
    format f = format_of(dtype);
    if (place >= 2 * pairs) {
        return bits_with_exponent(dtype, mix(common + place + 1), -10, n == 2 ? 14 : 0);
    }
    uint32_t sign = 1u << (f.mantissa_bits + f.exponent_bits);
    uint32_t big =
        bits_with_exponent(dtype, mix(~common - place / 2), 9, dtype == FERRY_F16 ? 14 : 24);
    return place % 2 == 0 ? big & ~sign : big | sign;
}

uint32_t input_bits(data_kind kind, uint32_t dtype, uint64_t seed, uint32_t position, uint32_t n,
                    uint64_t index)
{
    uint64_t dice = mix(mix(seed + position * 0xbf58476d1ce4e5b9u) + index * 0x94d049bb133111ebu);
    if (kind == DATA_INTEGERS) {
        int32_t most = n > 128 ? 1 : (int32_t)(256 / n); /* bf16 holds whole numbers up to 256 */
        return round_once(dtype, (double)((int32_t)(dice % (uint32_t)(2 * most + 1)) - most));
    }
    if (kind == DATA_RANDOM) {
        return bits_with_exponent(dtype, dice, -4, 4);
    }
    if (kind == DATA_CANCEL) {
        return cancelling_bits(dtype, seed, position, n, index);
    }
    /* Now and then those that are special; the rest is anything. */
    static const uint32_t special[] = {0x80000000u, 0x7f800000u, 0xff800000u, 0x7f800001u,
                                       0xffc00000u, 0x00000001u, 0x80000001u, 0x00000000u};
    if (dice >> 61 == 0) {
        uint32_t bits = special[dice >> 8 & 7];
        return dtype == FERRY_F32 ? bits : bits >> 16 | (bits & 1);
    }
    return dtype == FERRY_F32 ? (uint32_t)dice : (uint32_t)dice & 0xffff;
}

/* Bounds */

static double unit_of(uint32_t dtype)
{
    return ldexp(1, -1 - format_of(dtype).mantissa_bits);
}

/* A partial sum that is rounded: the error that it has, and that of its rounding. */
static double after_rounding(double error, double partial, double unit)
{
    return error + unit * (fabs(partial) + error);
}

/* n numbers with errors of their own, passed on around a ring and rounded at every hop but the last
 * (whole: there as well): the worst of all places to begin, in both directions. */
static double ring_error(const double *x, double first_error, uint32_t n, bool whole, double unit)
{
    double worst = first_error;
    for (uint32_t start = 0; start < 2 * n && n > 1; start++) {
        double partial = 0, error = first_error;
        for (uint32_t k = 0; k < n; k++) {
            uint32_t from = start % n;
            partial += x[start < n ? (from + k) % n : (from + n - k) % n];
            if (k > 0 && (k + 1 < n || whole)) {
                error = after_rounding(error, partial, unit);
            }
        }
        worst = error > worst ? error : worst;
    }
    return worst;
}

/* One partial for each node, or nodes_first: for each local rank. */
static double fused_error(const summands *set, const double *x, bool nodes_first, double unit)
{
    double error = 0;
    if (set->n_nodes == 1 || set->n_locals == 1) {
        return 0;
    }
    for (uint32_t i = 0; i < (nodes_first ? set->n_locals : set->n_nodes); i++) {
        double partial = 0;
        for (uint32_t j = 0; j < (nodes_first ? set->n_nodes : set->n_locals); j++) {
            partial += nodes_first ? x[j * set->n_locals + i] : x[i * set->n_locals + j];
        }
        error += unit * fabs(partial);
    }
    return error;
}

/* Reduce-scatter among the data-parallel ranks of every tensor-parallel rank, then a ring among
 * those. */
static double two_rings_error(const shape *s, const double *x, double unit)
{
    double partials[ORACLE_MOST_RANKS] = {0}, error = 0;
    for (uint32_t tp = 0; tp < s->tp; tp++) {
        double own[ORACLE_MOST_RANKS];
        for (uint32_t rank = 0; rank < s->w; rank++) {
            seat at = seat_of(s, rank);
            if (at.tp == tp) {
                own[at.dp] = x[rank];
                partials[tp] += x[rank];
            }
        }
        error += ring_error(own, 0, s->dp, true, unit);
    }
    return ring_error(partials, error, s->tp, false, unit);
}

static double stage_error(const shape *s, uint32_t op, uint32_t mode, const summands *set,
                          const double *x, double unit)
{
    bool gathers = op == FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
    switch (mode) {
    case FERRY_MIXED_FUSED_WAITS_MULTICAST:
    case FERRY_MIXED_FUSED_WAITS_UNICAST:
        return fused_error(set, x, gathers || op == FERRY_MIXED_ALL_REDUCE, unit);
    case FERRY_MIXED_BASE_ONE: /* gathered whole, and summed where it arrives; or a ring */
        return gathers ? 0 : ring_error(x, 0, set->n, false, unit);
    case FERRY_MIXED_BASE_TP_DP:
        return gathers ? ring_error(x, 0, set->n, false, unit) : two_rings_error(s, x, unit);
    default:
        return fused_error(set, x, false, unit);
    }
}

double bound_of(const shape *s, uint32_t op, uint32_t mode, uint32_t dtype, const summands *set,
                const double *x)
{
    double unit = unit_of(dtype), sum = 0, all = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        sum += x[i];
        all += fabs(x[i]);
    }
    double error = stage_error(s, op, mode, set, x, unit);
    return after_rounding(error, sum, unit) + set->n * ldexp(all, -24);
}
