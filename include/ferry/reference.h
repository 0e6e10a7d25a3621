/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_REFERENCE_H
#define FERRY_REFERENCE_H

#include <ferry/export.h>
#include <ferry/reshard.h>
#include <ferry/schedule.h>
#include <ferry/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * Scheduling as Megatron-Core's planner, the reference, does it: for ranks of an exchange that have
 * no plan, and each know only what they send themselves. A rank packs its tasks into batches;
 * ferry_reference_schedule_build exchanges them and gives every batch a round. Whole plans are
 * scheduled by ferry_schedule_create_for_plan or ferry_schedule_build_rooted instead.
 *
 * Everything that is asked is copied: nothing here hands out a pointer into an object.
 */

/* Segment number segment_index of a task: pairs, so that no two segments share a name. */
typedef struct ferry_reference_segment_id {
    uint64_t task_id;
    uint64_t segment_index;
} ferry_reference_segment_id;

/*
 * How both ends cut a task: into segments of as many whole elements as a slot takes, the last one
 * shorter. FERRY_ERR_INVALID_INPUT for zero bytes, for bytes that are no whole elements and for a
 * slot that takes no element.
 */
FERRY_API ferry_status ferry_reference_segment_count(uint64_t bytes, uint64_t element_bytes,
                                                     uint64_t slot_bytes, uint64_t *n_out,
                                                     ferry_error *error);
/* The bytes of a task that are one segment, by its index. */
FERRY_API ferry_status ferry_reference_segment_at(uint64_t bytes, uint64_t element_bytes,
                                                  uint64_t slot_bytes, uint64_t segment_index,
                                                  uint64_t *first_byte_out, uint64_t *bytes_out,
                                                  ferry_error *error);

#define FERRY_REFERENCE_NO_ROUND UINT32_MAX

typedef struct ferry_reference_batch {
    size_t struct_size;
    uint32_t from;
    uint32_t to;
    uint32_t index; /* among those from the one to the other */
    uint32_t round; /* FERRY_REFERENCE_NO_ROUND: not assigned yet */
    uint64_t bytes; /* of all its segments */
} ferry_reference_batch;

#define FERRY_REFERENCE_BATCH_INIT                                                                 \
    {                                                                                              \
        sizeof(ferry_reference_batch), 0, 0, 0, FERRY_REFERENCE_NO_ROUND, 0                        \
    }

/* What a rank sends: tasks first, then, once packed, batches to each other rank and to itself. */
typedef struct ferry_reference_workloads ferry_reference_workloads;

/* The workloads of one rank, without a task. */
FERRY_API ferry_status ferry_reference_workloads_create(uint32_t rank, uint32_t n_ranks,
                                                        ferry_reference_workloads **workloads_out,
                                                        ferry_error *error);
/*
 * bytes is a multiple of element_bytes, and neither is zero; an element has at most 2^32 - 1 bytes.
 * Task ids have any value and are distinct among the tasks for one receiver. Not after packing.
 */
FERRY_API ferry_status ferry_reference_workloads_add_task(ferry_reference_workloads *workloads,
                                                          uint64_t task_id, uint32_t to,
                                                          uint64_t bytes, uint64_t element_bytes,
                                                          ferry_error *error);
/*
 * Cuts tasks that exceed a slot and fills batches of at most slot_bytes (0: FERRY_SLOT_BYTES) and
 * max_tasks (0: FERRY_MAX_TASKS) segments: by size, largest first, then by task id and segment
 * index. Once; after a failure the workloads can be packed again.
 */
FERRY_API ferry_status ferry_reference_workloads_pack(ferry_reference_workloads *workloads,
                                                      uint64_t slot_bytes, uint32_t max_tasks,
                                                      ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_reference_workloads_destroy(ferry_reference_workloads *workloads);

/* How many batches go to a rank; 0 for unknown ranks and before packing. */
FERRY_API uint32_t ferry_reference_workloads_batch_count(const ferry_reference_workloads *workloads,
                                                         uint32_t to);
/* A batch to a rank, by its index. */
FERRY_API ferry_status ferry_reference_workloads_batch_at(
    const ferry_reference_workloads *workloads, uint32_t to, uint32_t index,
    ferry_reference_batch *batch_out, ferry_error *error);
/* How many segments such a batch has; 0 where there is none. */
FERRY_API uint32_t ferry_reference_workloads_segment_count(
    const ferry_reference_workloads *workloads, uint32_t to, uint32_t index);
/* Bytes [first_byte, first_byte + bytes) of a task, by number; each place may be NULL. */
FERRY_API ferry_status ferry_reference_workloads_segment_at(
    const ferry_reference_workloads *workloads, uint32_t to, uint32_t index, uint32_t number,
    ferry_reference_segment_id *id_out, uint64_t *first_byte_out, uint64_t *bytes_out,
    ferry_error *error);

/* A list of batches of a world. */
typedef struct ferry_reference_batches ferry_reference_batches;

/* An empty list, for batches among n_ranks ranks. */
FERRY_API ferry_status ferry_reference_batches_create(uint32_t n_ranks,
                                                      ferry_reference_batches **batches_out,
                                                      ferry_error *error);
/* Batches of a rank to itself are not scheduled: they are refused. */
FERRY_API ferry_status ferry_reference_batches_add(ferry_reference_batches *batches,
                                                   const ferry_reference_batch *batch,
                                                   ferry_error *error);
/* How many batches the list has. */
FERRY_API uint64_t ferry_reference_batches_count(const ferry_reference_batches *batches);
/* A batch of the list, by number. */
FERRY_API ferry_status ferry_reference_batches_at(const ferry_reference_batches *batches,
                                                  uint64_t number, ferry_reference_batch *batch_out,
                                                  ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_reference_batches_destroy(ferry_reference_batches *batches);

/*
 * Sorts the batches by (from, to, index) and gives each a round, by a ferry_schedule_rule and a
 * ferry_duplex; the two first-fit rules go through the sorted list. What rounds the batches had
 * does not count. FERRY_ERR_INVALID_INPUT for a batch that is there twice. After a failure the
 * batches may be sorted, and their rounds are as they were.
 */
FERRY_API ferry_status ferry_reference_batches_assign_rounds(ferry_reference_batches *batches,
                                                             uint32_t rule, uint32_t duplex,
                                                             uint32_t *n_rounds_out,
                                                             ferry_error *error);

/*
 * Whether another batch of the list (one with another from, to or index) has the round and, full
 * duplex, the batch's sender or its receiver; half duplex, either of its ranks in either role.
 * Looks at every batch of the list.
 */
FERRY_API ferry_status ferry_reference_batches_has_conflict(const ferry_reference_batches *batches,
                                                            const ferry_reference_batch *batch,
                                                            uint32_t round, uint32_t duplex,
                                                            bool *conflict_out, ferry_error *error);

/*
 * The three calls below that take an exchange are collective: every rank of it makes the same call,
 * with packed workloads of its own. What goes wrong on one rank fails the call on all, with the
 * same sentence; only a rank whose exchange is unusable or fails is on its own. Batches of a rank
 * to itself take no part.
 */

/* All batches of the world, in order of (from, to, index), without rounds. */
FERRY_API ferry_status ferry_reference_batches_collect(const ferry_reference_workloads *workloads,
                                                       const ferry_exchange *exchange,
                                                       ferry_reference_batches **batches_out,
                                                       ferry_error *error);

/* What the batches of a world carry, by (from, to, index). Immutable. */
typedef struct ferry_reference_summaries ferry_reference_summaries;

/* What all batches of the world carry. */
FERRY_API ferry_status ferry_reference_summaries_exchange(
    const ferry_reference_workloads *workloads, const ferry_exchange *exchange,
    ferry_reference_summaries **summaries_out, ferry_error *error);
/* How many summaries there are: one for each batch. */
FERRY_API uint64_t ferry_reference_summaries_count(const ferry_reference_summaries *summaries);
/* The batch of a summary, by number, in order of (from, to, index), without its round. */
FERRY_API ferry_status ferry_reference_summaries_at(const ferry_reference_summaries *summaries,
                                                    uint64_t number,
                                                    ferry_reference_batch *batch_out,
                                                    ferry_error *error);
/* How many segments a batch has; 0 where there is no such batch. */
FERRY_API uint32_t ferry_reference_summaries_segment_count(
    const ferry_reference_summaries *summaries, uint32_t from, uint32_t to, uint32_t index);
/* A segment of a batch, by number; either place may be NULL. */
FERRY_API ferry_status ferry_reference_summaries_segment_at(
    const ferry_reference_summaries *summaries, uint32_t from, uint32_t to, uint32_t index,
    uint32_t number, ferry_reference_segment_id *id_out, uint64_t *bytes_out, ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_reference_summaries_destroy(ferry_reference_summaries *summaries);

/* What one rank sends and receives in each round. Immutable. */
typedef struct ferry_reference_schedule ferry_reference_schedule;

typedef struct ferry_reference_schedule_options {
    size_t struct_size;
    uint32_t rule;   /* a ferry_schedule_rule */
    uint32_t duplex; /* a ferry_duplex */
} ferry_reference_schedule_options;

#define FERRY_REFERENCE_SCHEDULE_OPTIONS_INIT                                                      \
    {                                                                                              \
        sizeof(ferry_reference_schedule_options), FERRY_SCHEDULE_OPTIMAL, FERRY_DUPLEX_FULL        \
    }

/*
 * Collects the batches of all ranks, assigns rounds and exchanges the summaries. All ranks pack and
 * schedule with the same options (NULL: the defaults), else FERRY_ERR_INVALID_INPUT. Every rank
 * computes the whole schedule; a digest of it is compared at the end, and FERRY_ERR_DIGEST names
 * the first rank that has another one than rank 0.
 */
FERRY_API ferry_status ferry_reference_schedule_build(
    const ferry_reference_workloads *workloads, const ferry_reference_schedule_options *options,
    const ferry_exchange *exchange, ferry_reference_schedule **schedule_out,
    ferry_reference_summaries **summaries_out, ferry_error *error);

/* Of the whole world; no round is empty there, though it may be here. */
FERRY_API uint32_t ferry_reference_schedule_round_count(const ferry_reference_schedule *schedule);
/* What this rank sends in a round; where that is nothing, the batch is not written. */
FERRY_API ferry_status ferry_reference_schedule_send_at(const ferry_reference_schedule *schedule,
                                                        uint32_t round, bool *sends_out,
                                                        ferry_reference_batch *batch_out,
                                                        ferry_error *error);
/* The same of what it receives. */
FERRY_API ferry_status ferry_reference_schedule_receive_at(const ferry_reference_schedule *schedule,
                                                           uint32_t round, bool *receives_out,
                                                           ferry_reference_batch *batch_out,
                                                           ferry_error *error);
/*
 * 32 hex digits and a zero, equal on all ranks. Of no schedule, zeros. As ferry_plan_digest.
 */
FERRY_API size_t ferry_reference_schedule_digest(const ferry_reference_schedule *schedule,
                                                 char *text, size_t text_bytes);
/* NULL is allowed. */
FERRY_API void ferry_reference_schedule_destroy(ferry_reference_schedule *schedule);

FERRY_END_DECLS

#endif
