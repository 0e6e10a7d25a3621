/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_DEAL_H
#define FY_SCHEDULE_DEAL_H

#include "schedule/edges.h"
#include "schedule/schedule.h"
#include "schedule/tasks.h"

/* How far the tasks of a pair have been dealt out. */
typedef struct fy_hand {
    uint64_t rest;   /* bytes of the pair */
    uint64_t offset; /* into the current task */
    uint64_t room;   /* what one batch can take of the rest */
    uint32_t task;   /* the current one */
} fy_hand;

/*
 * Deals the tasks of pairs out to batches, largest task first, cutting them where a batch is full.
 * Batches are kept in the order in which they were dealt, with the rounds that they were given. All
 * of them are taken from hands, or all are listed.
 */
typedef struct fy_deal {
    const fy_pairs *pairs;
    uint64_t slot_bytes;
    uint32_t max_tasks;
    fy_hand *hands; /* [n_pairs] */
    fy_batch *batches;
    size_t n_batches, batch_capacity;
    fy_segment *segments; /* of fy_deal_add; NULL where batches are told by tasks */
    size_t n_segments, segment_capacity;
} fy_deal;

ferry_status fy_deal_init(fy_deal *deal, const fy_pairs *pairs, uint64_t slot_bytes,
                          uint32_t max_tasks, ferry_error *error);
void fy_deal_cleanup(fy_deal *deal);

/*
 * A batch of at most bytes of a pair's rest, cut at elements. *taken_out is 0, and no batch is
 * made, where not even one element fits.
 */
ferry_status fy_deal_take(fy_deal *deal, uint32_t pair, uint32_t round, uint64_t bytes,
                          uint64_t *taken_out, ferry_error *error);

/* A batch put together segment by segment, which are listed, aside from the hands. */
ferry_status fy_deal_open(fy_deal *deal, uint32_t from, uint32_t to, uint32_t round,
                          ferry_error *error);
/* To the batch that was opened last. */
ferry_status fy_deal_add(fy_deal *deal, const fy_segment *segment, ferry_error *error);

/*
 * Takes about bytes, at least an element, off the end of a batch that is not listed, and appends
 * them as a batch of their own, with the same round. *done_out is false where the batch has only
 * one element or so.
 */
ferry_status fy_deal_split(fy_deal *deal, size_t batch, uint64_t bytes, bool *done_out,
                           ferry_error *error);

/* The batches as edges with their rounds, with room for some more; and their rounds back. */
ferry_status fy_deal_list_edges(const fy_deal *deal, size_t n_more, fy_edges *edges,
                                ferry_error *error);
void fy_deal_take_rounds(fy_deal *deal, const fy_edges *edges);

/* The whole rest of a pair in batches as large as they may be. */
ferry_status fy_deal_rest(fy_deal *deal, uint32_t pair, uint32_t round, ferry_error *error);

#endif
