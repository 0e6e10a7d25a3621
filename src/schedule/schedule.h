/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_SCHEDULE_H
#define FY_SCHEDULE_SCHEDULE_H

#include "base/cluster.h"
#include "base/hash.h"
#include "base/status.h"

#include <ferry/schedule.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fy_pairs fy_pairs; /* schedule/tasks.h */

#define FY_NO_CONTENT UINT32_MAX

/* The work of a schedule. There may be a hundred million: who sends and receives says the pair. */
typedef struct fy_task {
    uint64_t id;
    uint64_t bytes;
    uint32_t element; /* bytes */
    uint32_t content; /* its number, which only tasks of two receivers or more have */
} fy_task;

struct ferry_cluster {
    fy_cluster rates;
    size_t override_capacity;
};

/* What a rank's and a node's port take each way, spelled out for a world. */
typedef struct fy_network {
    bool has_seconds;
    uint32_t n_ranks;
    uint32_t n_nodes; /* 0: no node limits any traffic */
    uint32_t ranks_per_node;
    double latency;
    double *rank_rate; /* [n_ranks] */
    double *node_rate; /* [n_nodes] */
} fy_network;

/* Without a cluster: one byte per unit of time, no latency, no nodes. */
ferry_status fy_network_init(const fy_cluster *cluster, uint32_t n_ranks, fy_network *network_out,
                             ferry_error *error);
void fy_network_cleanup(fy_network *network);

static inline uint32_t fy_network_node(const fy_network *network, uint32_t rank)
{
    return rank / network->ranks_per_node;
}

/* The rate of a batch that has both ports to itself, node ports aside. */
static inline double fy_network_rate(const fy_network *network, uint32_t from, uint32_t to)
{
    double a = network->rank_rate[from], b = network->rank_rate[to];
    return a < b ? a : b;
}

/* Bytes of a task in a batch. */
typedef struct fy_segment {
    uint64_t task_id;
    uint64_t first_byte;
    uint64_t bytes;
    uint64_t relay_task_id; /* counts where is_relayed */
    bool is_relayed;
} fy_segment;

/*
 * A batch's segments are listed (first_segment is the place in the list) or, where nothing is
 * relayed, told by its first and last byte: those of a pair's tasks, one behind the other. There
 * may be a hundred million of them, but hardly more than some for each batch that tasks fill.
 */
typedef struct fy_batch {
    uint32_t round;
    uint32_t from;
    uint32_t to;
    uint32_t n_segments;
    uint64_t first_segment; /* the number of segments of batches before it */
    uint64_t bytes;
    uint64_t begin; /* into the first task, */
    uint64_t end;   /* and where in the last one it ends: of batches that are not listed */
    uint32_t first_task;
    uint32_t brought_by; /* 1 more than the number of the batch that brought what this one relays;
                            0: it relays nothing, or who brought it is to be found (waits.c) */
} fy_batch;

/*
 * Batches in order of (round, from). Everything that times or prints a schedule reads this and
 * nothing else. Batches that relay wait for the batches listed in relay_of: those that brought
 * their sender what it passes on.
 */
struct ferry_schedule {
    _Atomic uint32_t n_holders; /* beside whom it was made for */
    fy_network network;
    ferry_schedule_report report;
    uint32_t duplex;
    uint64_t slot_bytes;
    fy_batch *batches;
    uint64_t n_batches;
    fy_segment *segments; /* NULL: not listed */
    fy_task *tasks;       /* what batches are told by where they are not */
    uint64_t n_segments;
    uint64_t *wait_begin; /* [n_batches + 1] into waits; NULL: nothing is relayed */
    uint64_t *waits;      /* numbers of earlier batches, each once per batch */
    uint64_t *send_begin; /* [n_ranks + 1] into sends */
    uint64_t *sends;      /* batch numbers, by sender, in order */
    uint64_t *recv_begin;
    uint64_t *recvs;
    double *idle; /* [n_ranks] under the port model */
    fy_hash128 digest;
    /*
     * Of a part, which holds the batches of one rank alone: lists and idle are that rank's only
     * ([2] and [1]), waits those of what it sends; the network has neither rates nor nodes; report
     * and digest are the whole's.
     */
    bool is_part;
    uint32_t part_rank;
};

/* As ferry_schedule_create. The pairs are cleaned up, whatever the outcome. */
ferry_status fy_schedule_create_taking(fy_pairs *pairs, const fy_cluster *cluster,
                                       const ferry_schedule_options *options,
                                       ferry_schedule **schedule_out, ferry_error *error);

/* The segment of a batch with a number below n_segments. */
static inline fy_segment fy_batch_segment(const fy_batch *batch, uint32_t number,
                                          const fy_task *tasks, const fy_segment *segments)
{
    if (segments != NULL) {
        return segments[batch->first_segment + number];
    }
    const fy_task *part = &tasks[batch->first_task + number];
    uint64_t begin = number == 0 ? batch->begin : 0;
    uint64_t end = number + 1 == batch->n_segments ? batch->end : part->bytes;
    return (fy_segment){.task_id = part->id, .first_byte = begin, .bytes = end - begin};
}

static inline fy_segment fy_schedule_segment(const ferry_schedule *schedule, const fy_batch *batch,
                                             uint32_t number)
{
    return fy_batch_segment(batch, number, schedule->tasks, schedule->segments);
}

/* Another holder, who gives it back with ferry_schedule_destroy. */
ferry_schedule *fy_schedule_retain(const ferry_schedule *schedule);

/* FERRY_ERR_MISUSE where it cannot be that of a plan of so many ranks. */
ferry_status fy_schedule_check_plan(const ferry_schedule *schedule, uint32_t n_ranks,
                                    ferry_error *error);
/* FERRY_ERR_MISUSE for a part, with a sentence that begins with what was called. */
ferry_status fy_schedule_check_whole(const ferry_schedule *schedule, const char *called,
                                     ferry_error *error);

/*
 * The makespan under the port model, and each rank's idle time (idle_out: [n_ranks]), in closed
 * steps over the rounds where no node limits, else by a simulation from event to event.
 * Reads network, duplex, batches, waits, sends and recvs of the schedule.
 */
ferry_status fy_schedule_time(const ferry_schedule *schedule, double *makespan_out,
                              double *idle_out, ferry_error *error);

#endif
