/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_BUILD_H
#define FY_SCHEDULE_BUILD_H

#include "schedule/deal.h"
#include "schedule/schedule.h"
#include "schedule/tasks.h"

/* What every way to make a schedule is given. */
typedef struct fy_job {
    const fy_pairs *pairs;
    const fy_network *network;
    fy_bound bound;
    uint32_t rule;
    uint32_t duplex;
    uint64_t slot_bytes;
    uint32_t max_tasks;
    bool relays; /* allowed */
    bool eager;  /* of fy_deal_relayed: see relay_round.c */

    ferry_schedule_progress_fn progress; /* NULL: nobody is told */
    void *progress_context;
} fy_job;

/*
 * Ways to make batches with rounds; deal is initialised by the caller. Rounds need not be dense.
 */

/* The batches of the reference's packer, by first fit. */
ferry_status fy_deal_first_fit(const fy_job *job, fy_deal *deal, ferry_error *error);
/*
 * Batches of about equal size, at most chunk_bytes, in the least number of rounds, the longest
 * first.
 */
ferry_status fy_deal_whole(const fy_job *job, uint64_t chunk_bytes, fy_deal *deal,
                           ferry_error *error);
/*
 * Batches sized so that every round is as long for all (schedule/peel.h); shortest is the least
 * time, latency aside, that a round is meant to last. Full duplex, or half duplex where senders and
 * receivers are different ranks.
 */
ferry_status fy_deal_even(const fy_job *job, double shortest, fy_deal *deal, ferry_error *error);

/* No way without relays is faster, latency counted (floor.c). */
ferry_status fy_floor_of_direct(const fy_job *job, double *time_out, ferry_error *error);

/* Other rounds for the same batches, as many as the largest degree; full duplex. */
ferry_status fy_deal_sort_rounds(const fy_job *job, fy_deal *deal, ferry_error *error);

/*
 * Finishes a deal with n_rounds rounds of falling length: batches with FY_NO_COLOUR get rounds, and
 * the rounds in the end are as many as the largest degree.
 */
ferry_status fy_deal_fit_rounds(const fy_job *job, uint32_t n_rounds, fy_deal *deal,
                                ferry_error *error);

/*
 * What each batch that relays waits for, where who dealt them is not at hand; needs batches,
 * segments and report.relayed_bytes.
 */
ferry_status fy_schedule_list_waits(ferry_schedule *schedule, ferry_error *error);

/* Of the batches and segments alone: what travels when. */
ferry_status fy_schedule_make_digest(ferry_schedule *schedule, ferry_error *error);

/*
 * Makes a schedule of what was dealt: sorted, with dense rounds, lists of ranks and times, without
 * a digest yet. The network is copied; the deal's segments are taken.
 */
ferry_status fy_schedule_assemble(const fy_job *job, fy_deal *deal, ferry_schedule **schedule_out,
                                  ferry_error *error);

#endif
