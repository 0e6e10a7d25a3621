/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Where strided places meet is a question of whole numbers: whether a sum of positive strides, each
 * taken a bounded number of times, can be a given number. Strides of real tensors contain each
 * other, so at each of them only one or two numbers of times come into question.
 */
#include "layout/strided.h"

#include "base/checked.h"

#include <string.h>

__extension__ typedef unsigned __int128 wide;

static void swap_loops(fy_strided *p, uint32_t a, uint32_t b)
{
    uint64_t count = p->count[a], stride = p->stride[a];
    p->count[a] = p->count[b];
    p->stride[a] = p->stride[b];
    p->count[b] = count;
    p->stride[b] = stride;
}

void fy_strided_simplify(fy_strided *places)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < places->n_loops; k++) {
        if (places->count[k] != 1) {
            places->count[n] = places->count[k];
            places->stride[n++] = places->stride[k];
        }
    }
    for (uint32_t i = 1; i < n; i++) {
        for (uint32_t k = i; k > 0 && places->stride[k - 1] < places->stride[k]; k--) {
            swap_loops(places, k - 1, k);
        }
    }
    places->n_loops = n == 0 ? 0 : 1;
    for (uint32_t k = 1; k < n; k++) {
        uint32_t last = places->n_loops - 1;
        uint64_t reach;
        if (fy_mul(places->stride[k], places->count[k], &reach) && reach == places->stride[last]) {
            places->count[last] *= places->count[k]; /* no more than there are places */
            places->stride[last] = places->stride[k];
        } else {
            places->count[places->n_loops] = places->count[k];
            places->stride[places->n_loops++] = places->stride[k];
        }
    }
}

bool fy_strided_measure(const fy_strided *places, uint64_t *n_out, uint64_t *last_out)
{
    uint64_t n = 1, last = places->offset;
    for (uint32_t k = 0; k < places->n_loops; k++) {
        uint64_t reach;
        if (!fy_mul(places->count[k] - 1, places->stride[k], &reach) ||
            !fy_add(last, reach, &last) || !fy_mul(n, places->count[k], &n)) {
            return false;
        }
    }
    *n_out = n;
    *last_out = last;
    return n <= INT64_MAX && last <= INT64_MAX;
}

/*
 * c[0] x[0] + c[1] x[1] + ... = target, with x[k] of at most most[k], by descending c. Two terms
 * may be joined to one, which is taken apart again in the end.
 */
enum { MAX_TERMS = 2 * FY_MAX_LOOPS };

typedef struct join {
    uint64_t ratio; /* of the outer term's coefficient to the inner one's */
    uint64_t outer_most;
    uint32_t outer; /* the caller's terms */
    uint32_t inner; /* a term, or MAX_TERMS + the number of another join */
} join;

typedef struct equation {
    uint32_t n;
    wide c[MAX_TERMS];
    wide most[MAX_TERMS];
    uint32_t name[MAX_TERMS];      /* the caller's term, or MAX_TERMS + the number of a join */
    wide rest_most[MAX_TERMS + 1]; /* the largest sum of the terms from here on */
    wide rest_unit[MAX_TERMS + 1]; /* every sum of them is a multiple of this */
    wide x[MAX_TERMS];
    uint32_t n_joins;
    join joins[MAX_TERMS];
    uint64_t n_steps, most_steps;
} equation;

static void add_term(equation *e, uint64_t c, uint64_t most, uint32_t name)
{
    uint32_t at = e->n++;
    for (; at > 0 && e->c[at - 1] < c; at--) {
        e->c[at] = e->c[at - 1];
        e->most[at] = e->most[at - 1];
        e->name[at] = e->name[at - 1];
    }
    e->c[at] = c;
    e->most[at] = most;
    e->name[at] = name;
}

static wide greatest_common(wide a, wide b)
{
    while (b != 0) {
        wide rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/*
 * A coefficient that is a multiple of the next one, which may be taken often enough to fill the
 * steps between: together they give every multiple of the smaller.
 */
static void join_terms(equation *e)
{
    for (uint32_t k = e->n; k-- > 1;) {
        wide ratio = e->c[k - 1] / e->c[k];
        if (e->c[k - 1] % e->c[k] != 0 || e->most[k] + 1 < ratio ||
            e->most[k - 1] * ratio + e->most[k] > INT64_MAX) {
            continue;
        }
        e->joins[e->n_joins] = (join){.ratio = (uint64_t)ratio,
                                      .outer_most = (uint64_t)e->most[k - 1],
                                      .outer = e->name[k - 1],
                                      .inner = e->name[k]};
        e->most[k - 1] = e->most[k - 1] * ratio + e->most[k];
        e->c[k - 1] = e->c[k];
        e->name[k - 1] = MAX_TERMS + e->n_joins++;
        for (uint32_t i = k; i + 1 < e->n; i++) {
            e->c[i] = e->c[i + 1];
            e->most[i] = e->most[i + 1];
            e->name[i] = e->name[i + 1];
        }
        e->n--;
        k = k + 1 < e->n ? k + 1 : e->n; /* the joined term may join the next one */
    }
}

static void sum_rests(equation *e)
{
    e->rest_most[e->n] = 0;
    e->rest_unit[e->n] = 0;
    for (uint32_t k = e->n; k-- > 0;) {
        e->rest_most[k] = e->rest_most[k + 1] + e->c[k] * e->most[k];
        e->rest_unit[k] = greatest_common(e->c[k], e->rest_unit[k + 1]);
    }
}

/* The smallest x >= least with c x = target modulo unit, and the distance to the next. */
static bool first_in_step(wide c, wide target, wide unit, wide least, wide *x_out, wide *step_out)
{
    __extension__ typedef __int128 signed_wide;
    wide common = greatest_common(c, unit);
    if (target % common != 0) {
        return false;
    }
    wide modulus = unit / common;
    /* The inverse of c / common by Euclid. */
    signed_wide r0 = (signed_wide)modulus, r1 = (signed_wide)(c / common % modulus);
    signed_wide t0 = 0, t1 = 1;
    while (r1 != 0) {
        signed_wide q = r0 / r1, r2 = r0 - q * r1, t2 = t0 - q * t1;
        r0 = r1;
        r1 = r2;
        t0 = t1;
        t1 = t2;
    }
    wide inverse = (wide)(t0 < 0 ? t0 + (signed_wide)modulus : t0) % modulus;
    wide x = target / common % modulus * inverse % modulus;
    if (x < least) {
        x += (least - x + modulus - 1) / modulus * modulus;
    }
    *x_out = x;
    *step_out = modulus;
    return true;
}

static bool solve_from(equation *e, uint32_t k, wide target)
{
    if (target > e->rest_most[k] || e->n_steps > e->most_steps) {
        return false;
    }
    if (k == e->n) {
        return target == 0;
    }
    wide rest = e->rest_most[k + 1], least = 0, x = 0, step = 1;
    if (target > rest) {
        least = (target - rest + e->c[k] - 1) / e->c[k];
    }
    wide most = target / e->c[k] < e->most[k] ? target / e->c[k] : e->most[k];
    if (k + 1 == e->n) {
        e->x[k] = target / e->c[k]; /* nothing is left for others */
        return target % e->c[k] == 0 && e->x[k] <= e->most[k];
    }
    if (!first_in_step(e->c[k], target, e->rest_unit[k + 1], least, &x, &step)) {
        return false;
    }
    for (; x <= most; x += step) {
        e->n_steps++;
        e->x[k] = x;
        if (solve_from(e, k + 1, target - e->c[k] * x)) {
            return true;
        }
        if (e->n_steps > e->most_steps) {
            return false;
        }
    }
    return false;
}

/* x of the caller's terms from those of joined ones. */
static void take_apart(const equation *e, uint64_t x_out[MAX_TERMS])
{
    uint64_t joined[MAX_TERMS] = {0};
    memset(x_out, 0, MAX_TERMS * sizeof *x_out);
    for (uint32_t k = 0; k < e->n; k++) {
        uint64_t x = (uint64_t)e->x[k];
        *(e->name[k] < MAX_TERMS ? &x_out[e->name[k]] : &joined[e->name[k] - MAX_TERMS]) = x;
    }
    for (uint32_t i = e->n_joins; i-- > 0;) {
        const join *j = &e->joins[i];
        uint64_t outer = fy_min(j->outer_most, joined[i] / j->ratio);
        uint64_t inner = joined[i] - outer * j->ratio;
        *(j->outer < MAX_TERMS ? &x_out[j->outer] : &joined[j->outer - MAX_TERMS]) = outer;
        *(j->inner < MAX_TERMS ? &x_out[j->inner] : &joined[j->inner - MAX_TERMS]) = inner;
    }
}

/* An equation costs a step, however soon it is solved. */
static ferry_status solve(equation *e, wide target, uint64_t *budget_inout, bool *found_out,
                          uint64_t x_out[MAX_TERMS], ferry_error *error)
{
    e->n_steps = 1;
    e->most_steps = *budget_inout;
    join_terms(e);
    sum_rests(e);
    *found_out = solve_from(e, 0, target);
    *budget_inout -= fy_min(e->n_steps, *budget_inout);
    if (!*found_out && e->n_steps > e->most_steps) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "strides of which none is a multiple of the other: it takes too many steps "
                       "to find out whether an element is given twice; fewer boxes of such strides "
                       "in one parameter, or strides that are multiples, take few");
    }
    if (*found_out) {
        take_apart(e, x_out);
    }
    return FERRY_OK;
}

/* Whether each stride is longer than everything that the smaller ones reach. */
static bool is_nested(const fy_strided *p)
{
    wide reach = 0;
    for (uint32_t k = p->n_loops; k-- > 0;) {
        if (p->stride[k] <= reach) {
            return false;
        }
        reach += (wide)p->stride[k] * (p->count[k] - 1);
    }
    return true;
}

/*
 * Two index tuples of one place differ by d, with sum d[k] stride[k] = 0. Say that d is positive at
 * loop k, its first that is not 0: d = count - 1 - y there, with y of at most count - 2; at a later
 * loop it is count - 1 - x, with x of at most 2 (count - 1).
 */
ferry_status fy_strided_meets_itself(const fy_strided *p, uint64_t *budget_inout, bool *meets_out,
                                     uint64_t *place_out, ferry_error *error)
{
    *meets_out = false;
    if (is_nested(p)) {
        return FERRY_OK;
    }
    for (uint32_t k = 0; k < p->n_loops && !*meets_out; k++) {
        equation e = {0};
        uint64_t x[MAX_TERMS];
        if (p->stride[k] == 0) {
            *meets_out = true;
            *place_out = p->offset;
            return FERRY_OK;
        }
        wide target = (wide)p->stride[k] * (p->count[k] - 1);
        add_term(&e, p->stride[k], p->count[k] - 2, k);
        for (uint32_t j = k + 1; j < p->n_loops; j++) {
            if (p->stride[j] != 0) {
                add_term(&e, p->stride[j], 2 * (p->count[j] - 1), j);
                target += (wide)p->stride[j] * (p->count[j] - 1);
            }
        }
        FY_TRY(solve(&e, target, budget_inout, meets_out, x, error));
        if (*meets_out) {
            /* One of the two: where d is positive at d, where it is negative at 0. */
            *place_out = p->offset + (p->count[k] - 1 - x[k]) * p->stride[k];
            for (uint32_t j = k + 1; j < p->n_loops; j++) {
                bool positive = x[j] < p->count[j] - 1;
                *place_out += positive ? (p->count[j] - 1 - x[j]) * p->stride[j] : 0;
            }
        }
    }
    return FERRY_OK;
}

ferry_status fy_strided_meet(const fy_strided *a, const fy_strided *b, uint64_t *budget_inout,
                             bool *meet_out, uint64_t *place_out, ferry_error *error)
{
    equation e = {0};
    uint64_t x[MAX_TERMS];
    wide target = b->offset;
    *meet_out = false;
    for (uint32_t k = 0; k < a->n_loops; k++) {
        add_term(&e, a->stride[k], a->count[k] - 1, k);
    }
    for (uint32_t k = 0; k < b->n_loops; k++) {
        add_term(&e, b->stride[k], b->count[k] - 1, a->n_loops + k);
        target += (wide)b->stride[k] * (b->count[k] - 1); /* its index is count - 1 - x */
    }
    if (target < a->offset) {
        return FERRY_OK;
    }
    FY_TRY(solve(&e, target - a->offset, budget_inout, meet_out, x, error));
    if (*meet_out) {
        *place_out = a->offset;
        for (uint32_t k = 0; k < a->n_loops; k++) {
            *place_out += x[k] * a->stride[k];
        }
    }
    return FERRY_OK;
}

static uint64_t count_from(const fy_strided *p, uint32_t k, wide place)
{
    if (place == 0) {
        return 0;
    }
    wide reach = 0;
    uint64_t volume = 1;
    for (uint32_t j = k; j < p->n_loops; j++) {
        volume *= p->count[j];
        reach += (wide)p->stride[j] * (p->count[j] - 1);
    }
    if (reach < place) {
        return volume;
    }
    /* Here k is a loop, as without one the reach is 0. Turns that lie below as a whole: */
    uint64_t inner = volume / p->count[k];
    wide inner_reach = reach - (wide)p->stride[k] * (p->count[k] - 1);
    uint64_t whole =
        place > inner_reach ? (uint64_t)((place - inner_reach - 1) / p->stride[k]) + 1 : 0;
    whole = fy_min(whole, p->count[k]);
    uint64_t count = whole * inner;
    for (uint64_t i = whole; i < p->count[k] && (wide)i * p->stride[k] < place; i++) {
        count += count_from(p, k + 1, place - (wide)i * p->stride[k]);
    }
    return count;
}

uint64_t fy_strided_count_below(const fy_strided *places, uint64_t place)
{
    return place <= places->offset ? 0 : count_from(places, 0, place - places->offset);
}

/* Turns of a loop are looked at one by one where the inner loops reach further than one turn. */
uint64_t fy_strided_count_steps(const fy_strided *places)
{
    wide reach = 0;
    uint64_t steps = 1;
    for (uint32_t k = places->n_loops; k-- > 0;) {
        wide turns = reach / places->stride[k] + 1;
        uint64_t most = turns < places->count[k] ? (uint64_t)turns : places->count[k];
        if (!fy_mul(steps, most, &steps)) {
            return UINT64_MAX;
        }
        reach += (wide)places->stride[k] * (places->count[k] - 1);
    }
    return steps;
}
