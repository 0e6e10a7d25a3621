/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/rules.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "schedule/colour.h"
#include "schedule/pack.h"

#include <stddef.h>
#include <string.h>

/*
 * The rounds that a port has used, as a bitmap of which only pages with a bit in them are kept, in
 * ascending order. A receiver of one batch may have it in round a million: pages keep the memory
 * linear in the batches, where a plain bitmap would grow with its last round.
 */
enum { PAGE_WORDS = 8, PAGE_ROUNDS = 64 * PAGE_WORDS };

typedef struct page {
    uint64_t number; /* the page has rounds from number * PAGE_ROUNDS on */
    uint64_t words[PAGE_WORDS];
} page;

typedef struct port {
    page *pages;
    size_t n_pages, capacity;
    size_t n_full; /* leading pages that have every bit: pages[i].number == i for them */
} port;

static const uint64_t no_rounds[PAGE_WORDS] = {0};

/* The first page at or behind a number. */
static size_t find_page(const port *p, uint64_t number)
{
    if (p->n_full > 0 && number < p->n_full) {
        return (size_t)number;
    }
    FY_BISECT(size_t, low, p->n_full, p->n_pages, middle, p->pages[middle].number < number);
    return low;
}

/* The words of a page, where at is the first kept page at or behind it; steps over it. */
static const uint64_t *words_of(const port *p, uint64_t number, size_t *at)
{
    if (*at < p->n_pages && p->pages[*at].number == number) {
        return p->pages[(*at)++].words;
    }
    return no_rounds;
}

static uint64_t first_free(const port *a, const port *b)
{
    uint64_t number = a->n_full > b->n_full ? a->n_full : b->n_full;
    size_t i = find_page(a, number), j = find_page(b, number);
    for (;; number++) {
        const uint64_t *x = words_of(a, number, &i), *y = words_of(b, number, &j);
        for (unsigned w = 0; w < PAGE_WORDS; w++) {
            uint64_t used = x[w] | y[w];
            if (used != UINT64_MAX) {
                return number * PAGE_ROUNDS + w * 64 + (unsigned)__builtin_ctzll(~used);
            }
        }
    }
}

static bool is_full(const page *p)
{
    uint64_t all = UINT64_MAX;
    for (unsigned w = 0; w < PAGE_WORDS; w++) {
        all &= p->words[w];
    }
    return all == UINT64_MAX;
}

static bool use_round(port *p, uint64_t round)
{
    uint64_t number = round / PAGE_ROUNDS;
    size_t at = find_page(p, number);
    if (at == p->n_pages || p->pages[at].number != number) {
        if (!FY_RESERVE(p->pages, p->capacity, p->n_pages + 1)) {
            return false;
        }
        memmove(p->pages + at + 1, p->pages + at, (p->n_pages - at) * sizeof *p->pages);
        p->pages[at] = (page){.number = number};
        p->n_pages++;
    }
    p->pages[at].words[round % PAGE_ROUNDS / 64] |= (uint64_t)1 << (round % 64);
    while (p->n_full < p->n_pages && p->pages[p->n_full].number == p->n_full &&
           is_full(&p->pages[p->n_full])) {
        p->n_full++;
    }
    return true;
}

static ferry_status check_batch(uint32_t n_ranks, uint64_t batch, uint32_t from, uint32_t to,
                                ferry_error *error)
{
    if (from >= n_ranks || to >= n_ranks) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "batch %llu goes from rank %u to rank %u, but there are %u ranks",
                       (unsigned long long)batch, from, to, n_ranks);
    }
    if (from == to) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "batch %llu goes from rank %u to itself: such batches have no round",
                       (unsigned long long)batch, from);
    }
    return FERRY_OK;
}

static ferry_status place_batches(port *send, port *recv, fy_edges *b, ferry_error *error)
{
    uint64_t n_rounds = 0;
    for (size_t i = 0; i < b->n; i++) {
        FY_TRY(check_batch(b->n_ranks, i, b->from[i], b->to[i], error));
        port *out = &send[b->from[i]], *in = &recv[b->to[i]];
        uint64_t round = first_free(out, in);
        if (round >= FY_MAX_DEGREE) {
            return fy_fail(error, FERRY_ERR_LIMIT,
                           "batch %zu, from rank %u to rank %u, would need round %llu; rounds end "
                           "at %llu: use larger slots",
                           i, b->from[i], b->to[i], (unsigned long long)round,
                           (unsigned long long)FY_MAX_DEGREE);
        }
        if (!use_round(out, round) || !use_round(in, round)) {
            return fy_fail_no_memory(error, "the rounds of a rank");
        }
        b->round[i] = (uint32_t)round;
        n_rounds = fy_max(n_rounds, round + 1);
    }
    b->n_rounds = (uint32_t)n_rounds;
    return FERRY_OK;
}

ferry_status fy_first_fit(fy_edges *batches, bool half, ferry_error *error)
{
    uint32_t n_ranks = batches->n_ranks;
    size_t n_ports = half ? n_ranks : (size_t)n_ranks * 2;
    port *send = fy_alloc_zeroed(n_ports, sizeof *send);
    FY_TRY(fy_check_memory(send != NULL, "the ports of all ranks", error));
    ferry_status status = place_batches(send, half ? send : send + n_ranks, batches, error);
    for (size_t i = 0; i < n_ports; i++) {
        fy_free(send[i].pages);
    }
    fy_free(send);
    return status;
}

ferry_status fy_choose_rounds(uint32_t rule, uint32_t duplex, fy_edges *batches, ferry_error *error)
{
    if (rule > FERRY_SCHEDULE_FIRST_FIT_HALF || duplex > FERRY_DUPLEX_HALF) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "rule %u and duplex %u: rules are 0 (optimal), 1 (first fit) and 2 (first "
                       "fit, half duplex), duplex is 0 (full) or 1 (half)",
                       rule, duplex);
    }
    bool half = rule == FERRY_SCHEDULE_FIRST_FIT_HALF || duplex == FERRY_DUPLEX_HALF;
    return rule == FERRY_SCHEDULE_OPTIMAL ? fy_colour_batches(batches, duplex, error)
                                          : fy_first_fit(batches, half, error);
}
