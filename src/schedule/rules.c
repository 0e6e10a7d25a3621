/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/rules.h"

#include "base/alloc.h"
#include "base/checked.h"
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
    size_t low = p->n_full, high = p->n_pages;
    if (low > 0 && number < low) {
        return (size_t)number;
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (p->pages[middle].number < number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
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
        if (!fy_reserve((void **)&p->pages, &p->capacity, p->n_pages + 1, sizeof *p->pages)) {
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

static ferry_status place_batches(port *send, port *recv, uint32_t n_ranks, uint64_t n_batches,
                                  const uint32_t *from, const uint32_t *to, uint32_t *round_out,
                                  uint32_t *n_rounds_out, ferry_error *error)
{
    uint64_t n_rounds = 0;
    for (uint64_t i = 0; i < n_batches; i++) {
        ferry_status status = check_batch(n_ranks, i, from[i], to[i], error);
        if (status != FERRY_OK) {
            return status;
        }
        uint64_t round = first_free(&send[from[i]], &recv[to[i]]);
        if (round >= FY_MAX_DEGREE) {
            return fy_fail(error, FERRY_ERR_LIMIT,
                           "batch %llu, from rank %u to rank %u, would need round %llu; rounds end "
                           "at %llu: use larger slots",
                           (unsigned long long)i, from[i], to[i], (unsigned long long)round,
                           (unsigned long long)FY_MAX_DEGREE);
        }
        if (!use_round(&send[from[i]], round) || !use_round(&recv[to[i]], round)) {
            return fy_fail_no_memory(error, "the rounds of a rank");
        }
        round_out[i] = (uint32_t)round;
        n_rounds = fy_max(n_rounds, round + 1);
    }
    *n_rounds_out = (uint32_t)n_rounds;
    return FERRY_OK;
}

ferry_status fy_first_fit(uint32_t n_ranks, uint64_t n_batches, const uint32_t *from,
                          const uint32_t *to, bool half, uint32_t *round_out,
                          uint32_t *n_rounds_out, ferry_error *error)
{
    size_t n_ports = half ? n_ranks : (size_t)n_ranks * 2;
    port *send = fy_alloc_zeroed(n_ports, sizeof *send);
    if (send == NULL) {
        return fy_fail_no_memory(error, "the ports of all ranks");
    }
    port *recv = half ? send : send + n_ranks;
    ferry_status status =
        place_batches(send, recv, n_ranks, n_batches, from, to, round_out, n_rounds_out, error);
    for (size_t i = 0; i < n_ports; i++) {
        fy_free(send[i].pages);
    }
    fy_free(send);
    return status;
}

ferry_status fy_choose_rounds(uint32_t rule, uint32_t duplex, uint32_t n_ranks, uint64_t n_batches,
                              const uint32_t *from, const uint32_t *to, uint32_t *round_out,
                              uint32_t *n_rounds_out, ferry_error *error)
{
    if (rule > FERRY_SCHEDULE_FIRST_FIT_HALF || duplex > FERRY_DUPLEX_HALF) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "rule %u and duplex %u: rules are 0 (optimal), 1 (first fit) and 2 (first "
                       "fit, half duplex), duplex is 0 (full) or 1 (half)",
                       rule, duplex);
    }
    bool half = rule == FERRY_SCHEDULE_FIRST_FIT_HALF || duplex == FERRY_DUPLEX_HALF;
    if (rule == FERRY_SCHEDULE_OPTIMAL) {
        return fy_colour_batches(n_ranks, n_batches, from, to, duplex, round_out, n_rounds_out,
                                 error);
    }
    return fy_first_fit(n_ranks, n_batches, from, to, half, round_out, n_rounds_out, error);
}
