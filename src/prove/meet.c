/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/lattice.h"

#include "base/checked.h"

#include <string.h>

/*
 * Where elements of strided boxes are the same. Boxes a and b meet if sum(i s) of a's turns and
 * strides less sum(j t) of b's is the distance of their offsets. Strides are tried from the largest
 * on: what the smaller ones can add up to leaves few turns of it, mostly one, and their greatest
 * common divisor rules out most of these.
 */
enum { MOST_TERMS = 2 * FY_PROOF_STEPS, MOST_TRIES = 1 << 20 };

/* A number from least to most, times a stride. Both turns of equal strides are one term. */
typedef struct term {
    int64_t stride; /* below FY_PROOF_MOST, as all sums are */
    int64_t least, most;
    int64_t chosen;
} term;

typedef struct search {
    term terms[MOST_TERMS]; /* strides descending */
    size_t n;
    int64_t least_rest[MOST_TERMS + 1]; /* what the terms from here on add up to */
    int64_t most_rest[MOST_TERMS + 1];
    int64_t divisor[MOST_TERMS + 1]; /* of their strides */
    uint64_t tries;
} search;

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Keeps strides descending. */
static void add_term(search *s, uint64_t stride, int64_t least, int64_t most)
{
    size_t at = 0;
    while (at < s->n && s->terms[at].stride > (int64_t)stride) {
        at++;
    }
    if (at < s->n && s->terms[at].stride == (int64_t)stride) {
        s->terms[at].least += least;
        s->terms[at].most += most;
        return;
    }
    memmove(&s->terms[at + 1], &s->terms[at], (s->n - at) * sizeof *s->terms);
    s->terms[at] = (term){.stride = (int64_t)stride, .least = least, .most = most};
    s->n++;
}

static void prepare(search *s)
{
    s->least_rest[s->n] = s->most_rest[s->n] = s->divisor[s->n] = 0;
    for (size_t i = s->n; i-- > 0;) {
        const term *t = &s->terms[i];
        s->least_rest[i] = s->least_rest[i + 1] + t->least * t->stride;
        s->most_rest[i] = s->most_rest[i + 1] + t->most * t->stride;
        s->divisor[i] = common_divisor(t->stride, s->divisor[i + 1]);
    }
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && a < 0);
}

/* Whether the terms from i on can be wanted. They give up after MOST_TRIES. */
static bool solve(search *s, size_t i, int64_t wanted)
{
    if (i == s->n) {
        return wanted == 0;
    }
    if (wanted < s->least_rest[i] || wanted > s->most_rest[i] || wanted % s->divisor[i] != 0) {
        return false;
    }
    term *t = &s->terms[i];
    int64_t first = -floor_div(-(wanted - s->most_rest[i + 1]), t->stride);
    int64_t last = floor_div(wanted - s->least_rest[i + 1], t->stride);
    first = first < t->least ? t->least : first;
    last = last > t->most ? t->most : last;
    for (t->chosen = first; t->chosen <= last; t->chosen++) {
        if (++s->tries > MOST_TRIES) {
            return false;
        }
        if (solve(s, i + 1, wanted - t->chosen * t->stride)) {
            return true;
        }
    }
    return false;
}

/* The turns of a stride that the search has chosen, those of the other box taken off. */
static int64_t chosen_of(const search *s, uint64_t stride)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->terms[i].stride == (int64_t)stride) {
            return s->terms[i].chosen;
        }
    }
    return 0;
}

static void add_steps(search *s, const fy_proof_held *box, bool is_taken_off)
{
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        int64_t turns = (int64_t)box->steps[i].count - 1;
        if (turns > 0) {
            add_term(s, box->steps[i].stride, is_taken_off ? -turns : 0, is_taken_off ? 0 : turns);
        }
    }
}

static fy_proof_clash meet_other(const fy_proof_held *a, const fy_proof_held *b)
{
    search s = {.n = 0};
    add_steps(&s, a, false);
    add_steps(&s, b, true);
    prepare(&s);
    fy_proof_clash clash = {.is_found = solve(&s, 0, (int64_t)b->offset - (int64_t)a->offset)};
    clash.is_unknown = !clash.is_found && s.tries > MOST_TRIES;
    clash.element = a->offset;
    for (size_t i = 0; i < s.n; i++) {
        int64_t turns = s.terms[i].chosen;
        clash.element += turns > 0 ? (uint64_t)(turns * s.terms[i].stride) : 0;
    }
    return clash;
}

/* Whether every stride exceeds all that the smaller ones can add up to. */
static bool is_nested(const search *s)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->terms[i].stride <= s->most_rest[i + 1]) {
            return false;
        }
    }
    return true;
}

/*
 * One that comes twice to an element: the largest stride that differs between the two turns has,
 * say, more of it in the first, and the smaller ones make up for it.
 */
static fy_proof_clash meet_itself(const fy_proof_held *box)
{
    search forward = {.n = 0};
    fy_proof_clash clash = {.element = box->offset};
    size_t n_steps = 0;
    add_steps(&forward, box, false);
    prepare(&forward);
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        n_steps += box->steps[i].count > 1;
    }
    if (forward.n < n_steps) { /* two steps of one stride */
        clash.is_found = true;
        for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
            for (size_t j = 0; j < i; j++) {
                if (box->steps[i].count > 1 && box->steps[j].count > 1 &&
                    box->steps[i].stride == box->steps[j].stride) {
                    clash.element = box->offset + box->steps[i].stride;
                }
            }
        }
        return clash;
    }
    for (size_t first = 0; first < forward.n && !is_nested(&forward); first++) {
        search s = {.n = 0};
        for (size_t i = first; i < forward.n; i++) {
            int64_t turns = forward.terms[i].most;
            add_term(&s, (uint64_t)forward.terms[i].stride, i == first ? 1 : -turns, turns);
        }
        prepare(&s);
        bool is_found = solve(&s, 0, 0);
        clash.is_unknown = clash.is_unknown || (!is_found && s.tries > MOST_TRIES);
        if (is_found) {
            clash.is_found = true;
            clash.is_unknown = false;
            for (size_t i = first; i < forward.n; i++) {
                int64_t turns = chosen_of(&s, (uint64_t)forward.terms[i].stride);
                clash.element += turns > 0 ? (uint64_t)(turns * forward.terms[i].stride) : 0;
            }
            return clash;
        }
    }
    return clash;
}

fy_proof_clash fy_proof_held_meet(const fy_proof_held *a, const fy_proof_held *b)
{
    return b == NULL ? meet_itself(a) : meet_other(a, b);
}

uint64_t fy_proof_held_last(const fy_proof_held *box)
{
    uint64_t last = box->offset;
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        last += (box->steps[i].count - 1) * box->steps[i].stride;
    }
    return last;
}

uint64_t fy_proof_held_volume(const fy_proof_held *box)
{
    uint64_t volume = 1;
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        volume *= box->steps[i].count;
    }
    return volume;
}

/* Which turns of the steps from i on, whose strides descend, are `left` elements apart from none.
 */
static bool find_turns(const fy_proof_step *const *order, const uint64_t *rest, size_t n, size_t i,
                       uint64_t left, uint64_t *turns)
{
    if (i == n) {
        return left == 0;
    }
    uint64_t stride = order[i]->stride;
    uint64_t first = left <= rest[i + 1] ? 0 : fy_ceil_div(left - rest[i + 1], stride);
    uint64_t last = fy_min(left / stride, order[i]->count - 1);
    for (uint64_t turn = first; turn <= last; turn++) {
        if (find_turns(order, rest, n, i + 1, left - turn * stride, turns)) {
            turns[i] = turn;
            return true;
        }
    }
    return false;
}

bool fy_proof_held_find(const fy_proof_held *box, uint64_t element, uint64_t *turns_out)
{
    const fy_proof_step *order[FY_PROOF_STEPS];
    uint64_t rest[FY_PROOF_STEPS + 1], turns[FY_PROOF_STEPS];
    size_t n = 0;
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        turns_out[i] = 0;
        if (box->steps[i].count > 1) {
            size_t at = n++;
            for (; at > 0 && order[at - 1]->stride < box->steps[i].stride; at--) {
                order[at] = order[at - 1];
            }
            order[at] = &box->steps[i];
        }
    }
    rest[n] = 0;
    for (size_t i = n; i-- > 0;) {
        rest[i] = rest[i + 1] + (order[i]->count - 1) * order[i]->stride;
    }
    if (element < box->offset || element - box->offset > rest[0] ||
        !find_turns(order, rest, n, 0, element - box->offset, turns)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        turns_out[order[i] - box->steps] = turns[i];
    }
    return true;
}
