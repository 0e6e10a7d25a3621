/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_SCHEDULER_H
#define FERRY_SCHEDULER_H

#include <ferry/export.h>
#include <ferry/reshard.h>
#include <ferry/schedule.h>
#include <ferry/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * The reference scheduler's types and calls, for processing elements (PEs: the ranks of an
 * exchange) that each know only what they send themselves. A PE packs its tasks into workloads;
 * ferry_build_schedule exchanges them and gives every batch an iteration (a round). Whole plans
 * are scheduled by ferry_schedule_create_for_plan or ferry_build_plan_schedule instead.
 */

/* Segment number segment_index of a task: pairs, so that no two segments share a name. */
typedef struct ferry_segment_id {
    uint64_t task_id;
    uint64_t segment_index;
} ferry_segment_id;

/*
 * How both ends cut a task: into segments of as many whole elements as a slot takes, the last one
 * shorter. FERRY_ERR_INVALID_INPUT for zero bytes, for bytes that are no whole elements and for a
 * slot that takes no element.
 */
FERRY_API ferry_status ferry_segment_count(uint64_t bytes, uint64_t element_bytes,
                                           uint64_t slot_bytes, uint64_t *n_out,
                                           ferry_error *error);
/* The bytes of a task that are one segment, by its index. */
FERRY_API ferry_status ferry_segment_range(uint64_t bytes, uint64_t element_bytes,
                                           uint64_t slot_bytes, uint64_t segment_index,
                                           uint64_t *first_byte_out, uint64_t *bytes_out,
                                           ferry_error *error);

/*
 * What a PE sends: tasks first, then, once packed, groups for each destination. A group becomes a
 * batch; its number among those of its destination is the batch index. Groups belong to their
 * workloads and live as long.
 */
typedef struct ferry_workloads ferry_workloads;
typedef struct ferry_workload_group ferry_workload_group;

/* The workloads of one PE, without a task. */
FERRY_API ferry_status ferry_workloads_create(uint32_t my_pe, uint32_t n_pes,
                                              ferry_workloads **workloads_out, ferry_error *error);
/*
 * bytes is a multiple of element_bytes, and neither is zero. Task ids have any value and are
 * distinct among the tasks for one destination. Not after packing.
 */
FERRY_API ferry_status ferry_workloads_add_task(ferry_workloads *workloads, uint64_t task_id,
                                                uint32_t destination, uint64_t bytes,
                                                uint64_t element_bytes, ferry_error *error);
/*
 * Cuts tasks that exceed a slot and fills groups of at most slot_bytes (0: FERRY_SLOT_BYTES) and
 * max_tasks (0: FERRY_MAX_TASKS) segments: by size, largest first, then by task id and segment
 * index. Once; after a failure the workloads can be packed again.
 */
FERRY_API ferry_status ferry_workloads_pack(ferry_workloads *workloads, uint64_t slot_bytes,
                                            uint32_t max_tasks, ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_workloads_destroy(ferry_workloads *workloads);

/* 0 for unknown destinations and before packing. */
FERRY_API uint32_t ferry_workloads_group_count(const ferry_workloads *workloads,
                                               uint32_t destination);
/* A group for a destination, by number. */
FERRY_API ferry_status ferry_workloads_group_at(const ferry_workloads *workloads,
                                                uint32_t destination, uint32_t index,
                                                const ferry_workload_group **group_out,
                                                ferry_error *error);

/* The PE that the group goes to. */
FERRY_API uint32_t ferry_workload_group_destination(const ferry_workload_group *group);
/* The bytes of all its segments. */
FERRY_API uint64_t ferry_workload_group_total_bytes(const ferry_workload_group *group);
/* How many segments it has. */
FERRY_API uint32_t ferry_workload_group_task_count(const ferry_workload_group *group);
/* Bytes [first_byte, first_byte + bytes) of a task; each place may be NULL. */
FERRY_API ferry_status ferry_workload_group_task_at(const ferry_workload_group *group,
                                                    uint32_t index, ferry_segment_id *id_out,
                                                    uint64_t *first_byte_out, uint64_t *bytes_out,
                                                    ferry_error *error);

#define FERRY_NO_ITERATION UINT32_MAX

typedef struct ferry_scheduled_batch {
    size_t struct_size;
    uint32_t source;
    uint32_t destination;
    uint32_t batch_index; /* among those from source to destination */
    uint32_t iteration;   /* FERRY_NO_ITERATION: not assigned yet */
    uint64_t total_bytes;
} ferry_scheduled_batch;

#define FERRY_SCHEDULED_BATCH_INIT                                                                 \
    {                                                                                              \
        sizeof(ferry_scheduled_batch), 0, 0, 0, FERRY_NO_ITERATION, 0                              \
    }

/* A list of batches of a world. */
typedef struct ferry_scheduled_batches ferry_scheduled_batches;

/* An empty list, for batches among n_pes PEs. */
FERRY_API ferry_status ferry_scheduled_batches_create(uint32_t n_pes,
                                                      ferry_scheduled_batches **batches_out,
                                                      ferry_error *error);
/* Batches of a PE to itself are not scheduled: they are refused. */
FERRY_API ferry_status ferry_scheduled_batches_add(ferry_scheduled_batches *batches,
                                                   const ferry_scheduled_batch *batch,
                                                   ferry_error *error);
/* How many batches the list has. */
FERRY_API uint64_t ferry_scheduled_batches_count(const ferry_scheduled_batches *batches);
/* A batch of the list, by number. */
FERRY_API ferry_status ferry_scheduled_batches_at(const ferry_scheduled_batches *batches,
                                                  uint64_t index, ferry_scheduled_batch *batch_out,
                                                  ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_scheduled_batches_destroy(ferry_scheduled_batches *batches);

/*
 * Sorts the batches by (source, destination, index) and gives each an iteration, by a
 * ferry_schedule_rule and a ferry_duplex; the two first-fit rules go through the sorted list. What
 * iterations the batches had does not count. FERRY_ERR_INVALID_INPUT for a batch that is there
 * twice. After a failure the batches may be sorted, and their iterations are as they were.
 */
FERRY_API ferry_status ferry_assign_iterations(ferry_scheduled_batches *batches, uint32_t rule,
                                               uint32_t duplex, uint32_t *n_iterations_out,
                                               ferry_error *error);

/*
 * Whether another batch of the list (one with another source, destination or index) has the
 * iteration and, full duplex, the batch's source or its destination; half duplex, either of its
 * PEs in either role. Looks at every batch of the list.
 */
FERRY_API ferry_status ferry_has_conflict(const ferry_scheduled_batch *batch, uint32_t iteration,
                                          const ferry_scheduled_batches *all_batches,
                                          uint32_t duplex, bool *conflict_out, ferry_error *error);

/*
 * What batches carry, by (source, destination, batch index). A summary belongs to its summaries
 * and lives as long. Immutable.
 */
typedef struct ferry_summaries ferry_summaries;
typedef struct ferry_workload_summary ferry_workload_summary;

/* How many summaries there are: one for each batch. */
FERRY_API uint64_t ferry_summaries_count(const ferry_summaries *summaries);
/* In order of keys. */
FERRY_API ferry_status ferry_summaries_at(const ferry_summaries *summaries, uint64_t index,
                                          const ferry_workload_summary **summary_out,
                                          ferry_error *error);
/* NULL where there is none. */
FERRY_API const ferry_workload_summary *ferry_summaries_find(const ferry_summaries *summaries,
                                                             uint32_t source, uint32_t destination,
                                                             uint32_t batch_index);
/* NULL is allowed. */
FERRY_API void ferry_summaries_destroy(ferry_summaries *summaries);

/* The PE that sends the batch. */
FERRY_API uint32_t ferry_workload_summary_source(const ferry_workload_summary *summary);
/* The PE that receives it. */
FERRY_API uint32_t ferry_workload_summary_destination(const ferry_workload_summary *summary);
/* Its number among the batches of this pair. */
FERRY_API uint32_t ferry_workload_summary_batch_index(const ferry_workload_summary *summary);
/* The bytes of all its segments. */
FERRY_API uint64_t ferry_workload_summary_total_bytes(const ferry_workload_summary *summary);
/* How many segments it has. */
FERRY_API uint32_t ferry_workload_summary_task_count(const ferry_workload_summary *summary);
/* Either place may be NULL. */
FERRY_API ferry_status ferry_workload_summary_task_at(const ferry_workload_summary *summary,
                                                      uint32_t index, ferry_segment_id *id_out,
                                                      uint64_t *bytes_out, ferry_error *error);

/*
 * The three calls below exchange. Every rank of the exchange makes the same call, with packed
 * workloads of its own; my_pe and n_pes are those of the exchange. What goes wrong on one rank
 * fails the call on all, with the same sentence; only a rank whose exchange is unusable or fails
 * is on its own. Batches of a PE to itself take no part.
 */

/* All batches of the world, in order of (source, destination, index), without iterations. */
FERRY_API ferry_status ferry_collect_all_batches(const ferry_workloads *workloads, uint32_t my_pe,
                                                 uint32_t n_pes, const ferry_exchange *exchange,
                                                 ferry_scheduled_batches **batches_out,
                                                 ferry_error *error);

/* What all batches of the world carry. */
FERRY_API ferry_status ferry_exchange_workload_summaries(const ferry_workloads *workloads,
                                                         uint32_t my_pe, uint32_t n_pes,
                                                         const ferry_exchange *exchange,
                                                         ferry_summaries **summaries_out,
                                                         ferry_error *error);

/* The batches that a PE sends or receives, by iteration. Immutable. */
typedef struct ferry_local_schedule ferry_local_schedule;

typedef struct ferry_build_schedule_options {
    size_t struct_size;
    uint32_t rule;   /* a ferry_schedule_rule */
    uint32_t duplex; /* a ferry_duplex */
} ferry_build_schedule_options;

#define FERRY_BUILD_SCHEDULE_OPTIONS_INIT                                                          \
    {                                                                                              \
        sizeof(ferry_build_schedule_options), FERRY_SCHEDULE_OPTIMAL, FERRY_DUPLEX_FULL            \
    }

/*
 * Collects the batches of all PEs, assigns iterations and exchanges the summaries. All ranks pack
 * and schedule with the same options (NULL: the defaults), else FERRY_ERR_INVALID_INPUT. Every rank
 * computes the whole schedule; a digest of it is compared at the end, and FERRY_ERR_DIGEST names
 * the first rank that has another one than rank 0.
 */
FERRY_API ferry_status ferry_build_schedule(const ferry_workloads *workloads, uint32_t my_pe,
                                            uint32_t n_pes,
                                            const ferry_build_schedule_options *options,
                                            const ferry_exchange *exchange,
                                            ferry_local_schedule **schedule_out,
                                            ferry_summaries **summaries_out, ferry_error *error);

/* Of the whole world; no iteration is empty there, though it may be here. */
FERRY_API uint32_t ferry_local_schedule_iteration_count(const ferry_local_schedule *schedule);
/* The batches of this PE in an iteration: at most one that it sends and one that it receives. */
FERRY_API uint32_t ferry_local_schedule_count(const ferry_local_schedule *schedule,
                                              uint32_t iteration);
/* A batch of this PE in an iteration, by number. */
FERRY_API ferry_status ferry_local_schedule_at(const ferry_local_schedule *schedule,
                                               uint32_t iteration, uint32_t index,
                                               ferry_scheduled_batch *batch_out,
                                               ferry_error *error);
/* 32 hex digits and a zero, equal on all ranks. Of no schedule, zeros. */
FERRY_API void ferry_local_schedule_digest(const ferry_local_schedule *schedule,
                                           char digest_out[33]);
/* NULL is allowed. */
FERRY_API void ferry_local_schedule_destroy(ferry_local_schedule *schedule);

/*
 * For each iteration what this PE sends, with its group, and what it receives, with its summary.
 * Borrows workloads and summaries, which must outlive it. FERRY_ERR_INVALID_INPUT where a batch of
 * the schedule has no group or no summary, or one of another size.
 */
typedef struct ferry_iter_schedules ferry_iter_schedules;

/* Lists them, from what ferry_build_schedule made. */
FERRY_API ferry_status ferry_prepare_iter_schedules(const ferry_local_schedule *schedule,
                                                    const ferry_workloads *workloads,
                                                    const ferry_summaries *summaries,
                                                    ferry_iter_schedules **schedules_out,
                                                    ferry_error *error);
/* How many iterations there are in the whole world. */
FERRY_API uint32_t ferry_iter_schedules_count(const ferry_iter_schedules *schedules);
/* *group_out is NULL, and the batch is not written, where the PE sends nothing. */
FERRY_API ferry_status ferry_iter_schedules_send(const ferry_iter_schedules *schedules,
                                                 uint32_t iteration,
                                                 ferry_scheduled_batch *batch_out,
                                                 const ferry_workload_group **group_out,
                                                 ferry_error *error);
/* *summary_out is NULL, and the batch is not written, where the PE receives nothing. */
FERRY_API ferry_status ferry_iter_schedules_recv(const ferry_iter_schedules *schedules,
                                                 uint32_t iteration,
                                                 ferry_scheduled_batch *batch_out,
                                                 const ferry_workload_summary **summary_out,
                                                 ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_iter_schedules_destroy(ferry_iter_schedules *schedules);

/*
 * The rooted form for whole plans: what ferry_schedule_create_for_plan makes, without every rank
 * making it. Every rank has the plan; rank 0 makes the schedule and gives each rank its part, and
 * the digest of the whole is compared. With gather and scatter no rank but rank 0 handles more than
 * its own part; without them all_gather serves for both.
 *
 * A part is a ferry_schedule of the batches that one rank sends or receives. Numbers of batches and
 * segments are its own (the two ends of a batch agree on round and from), report and digest are the
 * whole's, lists and idle time are there for that rank only. What needs the whole refuses a part
 * with FERRY_ERR_MISUSE: ferry_simulation_create and ferry_schedule_write_json.
 *
 * FERRY_ERR_DIGEST names the first rank that has another plan than rank 0, FERRY_ERR_INVALID_INPUT
 * the first with other options. All ranks fail together and with the same sentence; on its own is
 * only a rank whose exchange is unusable, fails or damages the last message, and rank 0 where it
 * lacks even the memory to note a length per rank.
 */
FERRY_API ferry_status ferry_build_plan_schedule(const ferry_plan *plan,
                                                 const ferry_schedule_options *options,
                                                 const ferry_exchange *exchange,
                                                 ferry_schedule **schedule_out, ferry_error *error);

FERRY_END_DECLS

#endif
