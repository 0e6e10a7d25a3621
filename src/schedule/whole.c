/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/build.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "schedule/colour.h"

static ferry_status deal_in_chunks(fy_deal *deal, uint32_t pair, uint64_t chunk, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    uint64_t rest, taken;
    while ((rest = deal->hands[pair].rest) > 0 && status == FERRY_OK) {
        uint64_t even = fy_ceil_div(rest, fy_ceil_div(rest, chunk));
        even = fy_max(even, deal->pairs->largest_element);
        status = fy_deal_take(deal, pair, FY_NO_COLOUR, even, &taken, error);
    }
    return status;
}

typedef struct length {
    uint64_t bytes;
    uint32_t round;
} length;

static int longest_first(const void *a, const void *b)
{
    const length *x = a, *y = b;
    if (x->bytes != y->bytes) {
        return x->bytes > y->bytes ? -1 : 1;
    }
    return (x->round > y->round) - (x->round < y->round);
}

/* Rounds of one length after another: ports wait less for each other. */
static ferry_status order_rounds(fy_deal *deal, uint32_t n_rounds, ferry_error *error)
{
    length *lengths = fy_alloc_zeroed(n_rounds, sizeof *lengths);
    uint32_t *place = fy_alloc(n_rounds, sizeof *place);
    if (lengths == NULL || place == NULL) {
        fy_free(lengths);
        fy_free(place);
        return fy_fail_no_memory(error, "the rounds of a schedule");
    }
    for (uint32_t i = 0; i < n_rounds; i++) {
        lengths[i].round = i;
    }
    for (size_t i = 0; i < deal->n_batches; i++) {
        length *l = &lengths[deal->batches[i].round];
        l->bytes = fy_max(l->bytes, deal->batches[i].bytes);
    }
    fy_sort(lengths, n_rounds, sizeof *lengths, longest_first);
    for (uint32_t i = 0; i < n_rounds; i++) {
        place[lengths[i].round] = i;
    }
    for (size_t i = 0; i < deal->n_batches; i++) {
        deal->batches[i].round = place[deal->batches[i].round];
    }
    fy_free(lengths);
    fy_free(place);
    return FERRY_OK;
}

ferry_status fy_deal_whole(const fy_job *job, uint64_t chunk_bytes, fy_deal *deal,
                           ferry_error *error)
{
    fy_edges edges = {0};
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < job->pairs->n_pairs && status == FERRY_OK; i++) {
        status = deal_in_chunks(deal, i, fy_min(chunk_bytes, job->slot_bytes), error);
    }
    FY_THEN(status, fy_deal_list_edges(deal, 0, &edges, error));
    FY_THEN(status, fy_colour_batches(&edges, job->duplex, error));
    if (status == FERRY_OK) {
        fy_deal_take_rounds(deal, &edges);
        status = order_rounds(deal, edges.n_rounds, error);
    }
    fy_edges_cleanup(&edges);
    return status;
}
