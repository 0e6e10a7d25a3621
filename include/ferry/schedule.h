/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_SCHEDULE_H
#define FERRY_SCHEDULE_H

#include <ferry/export.h>
#include <ferry/plan.h>
#include <ferry/reshard.h>
#include <ferry/status.h>
#include <ferry/writer.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * A schedule says when everything of a plan travels: tasks are cut into segments, segments for one
 * receiver fill batches, and batches get rounds. It is a function of its inputs alone, so that
 * every rank that computes it gets the same one; the digest proves it. Schedules are immutable;
 * several threads may use one.
 */

/* What the network can do. Ranks r with the same r / ranks_per_node share a node. */
typedef struct ferry_cluster ferry_cluster;

typedef struct ferry_cluster_options {
    size_t struct_size;
    uint32_t ranks_per_node;
    double rank_bytes_per_s; /* each way, inside a node and out of it */
    double node_bytes_per_s; /* each way, of what crosses the node's border */
    double latency_s;        /* of a batch */
} ferry_cluster_options;

#define FERRY_CLUSTER_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(ferry_cluster_options), 1, 0, 0, 0                                                  \
    }

/* A cluster whose nodes are all alike. Rates are positive. */
FERRY_API ferry_status ferry_cluster_create(const ferry_cluster_options *options,
                                            ferry_cluster **cluster_out, ferry_error *error);
/* Other rates for one node and its ranks; a node is set at most once. */
FERRY_API ferry_status ferry_cluster_set_node(ferry_cluster *cluster, uint32_t node,
                                              double rank_bytes_per_s, double node_bytes_per_s,
                                              ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_cluster_destroy(ferry_cluster *cluster);

/* Bytes that must get from one rank to another. */
typedef struct ferry_task {
    size_t struct_size;
    uint64_t task_id; /* of any value; distinct among the tasks of one pair of ranks */
    uint32_t from;
    uint32_t to; /* tasks from a rank to itself are not scheduled */
    uint64_t bytes;
    uint64_t element_bytes; /* segments begin and end on multiples of this; bytes is one, too */
    /*
     * Tasks of one sender with equal content numbers carry the same bytes, so that their receivers
     * may relay to each other; such task ids are distinct in the whole list.
     */
    bool has_content;
    uint64_t content;
} ferry_task;

#define FERRY_TASK_INIT                                                                            \
    {                                                                                              \
        sizeof(ferry_task), 0, 0, 0, 0, 1, false, 0                                                \
    }

typedef struct ferry_task_list ferry_task_list;

/* An empty list, for tasks among n_ranks ranks. */
FERRY_API ferry_status ferry_task_list_create(uint32_t n_ranks, ferry_task_list **tasks_out,
                                              ferry_error *error);
/* Copies a task. */
FERRY_API ferry_status ferry_task_list_add(ferry_task_list *tasks, const ferry_task *task,
                                           ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_task_list_destroy(ferry_task_list *tasks);

/* How rounds are chosen. */
typedef enum ferry_schedule_rule {
    /* As many rounds as the busiest rank has batches, and batches sized so that ports stay busy. */
    FERRY_SCHEDULE_OPTIMAL = 0,
    /* Batches by (sender, receiver, index), each in the first round that both ports have free. */
    FERRY_SCHEDULE_FIRST_FIT = 1,
    /* The same where a rank takes part in one batch of a round: implies half duplex. */
    FERRY_SCHEDULE_FIRST_FIT_HALF = 2
} ferry_schedule_rule;

typedef enum ferry_duplex {
    FERRY_DUPLEX_FULL = 0, /* in one round a rank sends at most one batch and receives one */
    FERRY_DUPLEX_HALF = 1  /* in one round a rank takes part in at most one batch */
} ferry_duplex;

#define FERRY_SLOT_BYTES ((uint64_t)16 << 20)
#define FERRY_MAX_TASKS 10000u

/* How far a schedule is that takes long to make: the optimal rule tries several ways. */
typedef struct ferry_schedule_progress {
    const char *doing; /* such as "scheduling relays in trees"; lives for ever */
    uint32_t n_tried;
    double ratio; /* of the best so far, as in ferry_schedule_report; 0: there is none yet */
} ferry_schedule_progress;

/* Is called on the caller's thread before each step. Returns false to stop: FERRY_ERR_STOPPED. */
typedef bool (*ferry_schedule_progress_fn)(void *context, const ferry_schedule_progress *progress);

typedef struct ferry_schedule_options {
    size_t struct_size;
    uint32_t rule;                       /* a ferry_schedule_rule */
    uint32_t duplex;                     /* a ferry_duplex */
    uint64_t slot_bytes;                 /* the most bytes of a batch; 0: FERRY_SLOT_BYTES */
    uint32_t max_tasks;                  /* the most segments of a batch; 0: FERRY_MAX_TASKS */
    bool no_relays;                      /* every segment comes from its task's own sender */
    ferry_schedule_progress_fn progress; /* (optional) */
    void *context;
} ferry_schedule_options;

#define FERRY_SCHEDULE_OPTIONS_INIT                                                                \
    {                                                                                              \
        sizeof(ferry_schedule_options), FERRY_SCHEDULE_OPTIMAL, FERRY_DUPLEX_FULL, 0, 0, false,    \
            NULL, NULL                                                                             \
    }

typedef struct ferry_schedule ferry_schedule;

/* cluster NULL: every rank moves one byte per unit of time, without latency. options may be NULL.
 */
FERRY_API ferry_status ferry_schedule_create(const ferry_task_list *tasks,
                                             const ferry_cluster *cluster,
                                             const ferry_schedule_options *options,
                                             ferry_schedule **schedule_out, ferry_error *error);

/* All moves of a plan between ranks, on the plan's own cluster. */
FERRY_API ferry_status ferry_schedule_create_for_plan(const ferry_plan *plan,
                                                      const ferry_schedule_options *options,
                                                      ferry_schedule **schedule_out,
                                                      ferry_error *error);

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
FERRY_API ferry_status ferry_schedule_build_rooted(const ferry_plan *plan,
                                                   const ferry_schedule_options *options,
                                                   const ferry_exchange *exchange,
                                                   ferry_schedule **schedule_out,
                                                   ferry_error *error);

/* NULL is allowed. */
FERRY_API void ferry_schedule_destroy(ferry_schedule *schedule);

/*
 * Times are seconds with a cluster; without one, bytes. makespan is that of the port model: a batch
 * occupies its sender's egress and its receiver's ingress for latency + bytes / the slower rate,
 * each rank works through its sends and through its receives in order of rounds, a batch starts as
 * soon as both ports are free and what it relays has arrived, and batches between nodes share the
 * nodes' ports max-min fairly.
 */
typedef struct ferry_schedule_report {
    size_t struct_size;
    uint32_t n_rounds;
    uint32_t degree; /* the most batches that one rank sends, or that one rank receives */
    uint64_t n_batches;
    uint64_t n_segments;
    uint64_t bytes;         /* of all batches */
    uint64_t relayed_bytes; /* thereof by receivers to each other */
    bool has_seconds;       /* false without a cluster */
    double makespan;
    double bound;          /* no schedule of these tasks is faster, with whatever relays */
    double ratio;          /* makespan / bound; 1 when nothing travels */
    uint32_t bound_reason; /* a ferry_bound_reason */
    uint32_t bound_rank;   /* the rank that decides; of a node, its first */
} ferry_schedule_report;

#define FERRY_SCHEDULE_REPORT_INIT                                                                 \
    {                                                                                              \
        sizeof(ferry_schedule_report), 0, 0, 0, 0, 0, 0, false, 0, 0, 1, FERRY_BOUND_NONE, 0       \
    }

/* The batches of a schedule are numbered by (round, from). */
typedef struct ferry_batch {
    size_t struct_size;
    uint32_t round;
    uint32_t from;
    uint32_t to;
    uint64_t bytes;
    uint64_t first_segment;
    uint32_t n_segments;
} ferry_batch;

#define FERRY_BATCH_INIT                                                                           \
    {                                                                                              \
        sizeof(ferry_batch), 0, 0, 0, 0, 0, 0                                                      \
    }

/* Bytes [first_byte, first_byte + bytes) of a task, in row-major order of the move's box. */
typedef struct ferry_segment {
    size_t struct_size;
    uint64_t task_id;
    uint64_t first_byte;
    uint64_t bytes;
    bool is_relayed; /* the sender of the batch got these bytes under relay_task_id before */
    uint64_t relay_task_id;
} ferry_segment;

#define FERRY_SEGMENT_INIT                                                                         \
    {                                                                                              \
        sizeof(ferry_segment), 0, 0, 0, false, 0                                                   \
    }

/* Rounds, batches, seconds and the bound. */
FERRY_API ferry_status ferry_schedule_get_report(const ferry_schedule *schedule,
                                                 ferry_schedule_report *report_out,
                                                 ferry_error *error);
/* A batch, by number, below n_batches of the report. */
FERRY_API ferry_status ferry_schedule_batch_at(const ferry_schedule *schedule, uint64_t index,
                                               ferry_batch *batch_out, ferry_error *error);
/* A segment, by number: those of a batch stand together, from its first_segment on. */
FERRY_API ferry_status ferry_schedule_segment_at(const ferry_schedule *schedule, uint64_t index,
                                                 ferry_segment *segment_out, ferry_error *error);

/* What a rank sends and what it receives, in order: numbers of batches. 0 for unknown ranks. */
FERRY_API uint32_t ferry_schedule_send_count(const ferry_schedule *schedule, uint32_t rank);
/* The same of what the rank receives. */
FERRY_API uint32_t ferry_schedule_receive_count(const ferry_schedule *schedule, uint32_t rank);
/* The number of a batch that the rank sends; index counts those. */
FERRY_API ferry_status ferry_schedule_send_at(const ferry_schedule *schedule, uint32_t rank,
                                              uint32_t index, uint64_t *batch_out,
                                              ferry_error *error);
/* The number of a batch that the rank receives; index counts those. */
FERRY_API ferry_status ferry_schedule_receive_at(const ferry_schedule *schedule, uint32_t rank,
                                                 uint32_t index, uint64_t *batch_out,
                                                 ferry_error *error);

/* The time of the makespan in which a rank neither sends nor receives. */
FERRY_API ferry_status ferry_schedule_get_idle(const ferry_schedule *schedule, uint32_t rank,
                                               double *idle_out, ferry_error *error);

/* The digest of every batch and segment: see ferry_plan_digest. */
FERRY_API size_t ferry_schedule_digest(const ferry_schedule *schedule, char *text,
                                       size_t text_bytes);

/* ferry.plan/1 with its "schedule"; options as for ferry_plan_write_json. */
FERRY_API ferry_status ferry_schedule_write_json(const ferry_schedule *schedule,
                                                 const ferry_plan *plan,
                                                 const ferry_plan_json_options *options,
                                                 ferry_write_fn write, void *context,
                                                 ferry_error *error);

/*
 * A discrete-event run of a schedule: packing, slots and their credits, latency, ports of ranks and
 * nodes. With unlimited slots and instant packing it is the port model.
 */
typedef struct ferry_simulation ferry_simulation;

typedef struct ferry_simulation_options {
    size_t struct_size;
    uint32_t n_send_slots;    /* of each rank; 0: as many as needed */
    uint32_t n_receive_slots; /* of each rank; 0: as many as needed */
    double pack_bytes_per_s;  /* into a slot, and out of one at the receiver; 0: in no time */
} ferry_simulation_options;

#define FERRY_SIMULATION_OPTIONS_INIT                                                              \
    {                                                                                              \
        sizeof(ferry_simulation_options), 0, 0, 0                                                  \
    }

typedef struct ferry_simulation_report {
    size_t struct_size;
    double seconds;           /* until the last byte is in place; without a cluster, bytes */
    uint64_t peak_slot_bytes; /* that one rank has in slots at once */
    uint32_t peak_slot_rank;
    uint32_t slowest_from; /* of the link whose batches take longest from start to end, summed */
    uint32_t slowest_to;
    double slowest_seconds;
} ferry_simulation_report;

#define FERRY_SIMULATION_REPORT_INIT                                                               \
    {                                                                                              \
        sizeof(ferry_simulation_report), 0, 0, 0, 0, 0, 0                                          \
    }

typedef struct ferry_simulation_rank {
    size_t struct_size;
    double end;  /* when its last batch was in place */
    double busy; /* sending or receiving */
    double idle; /* neither, until the end of the simulation */
    uint64_t peak_slot_bytes;
} ferry_simulation_rank;

#define FERRY_SIMULATION_RANK_INIT                                                                 \
    {                                                                                              \
        sizeof(ferry_simulation_rank), 0, 0, 0, 0                                                  \
    }

/* options may be NULL. The simulation holds on to the schedule, which may be destroyed before it.
 */
FERRY_API ferry_status ferry_simulation_create(const ferry_schedule *schedule,
                                               const ferry_simulation_options *options,
                                               ferry_simulation **simulation_out,
                                               ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_simulation_destroy(ferry_simulation *simulation);
/* When all is done, and what it took. */
FERRY_API ferry_status ferry_simulation_get_report(const ferry_simulation *simulation,
                                                   ferry_simulation_report *report_out,
                                                   ferry_error *error);
/* The same for one rank. */
FERRY_API ferry_status ferry_simulation_get_rank(const ferry_simulation *simulation, uint32_t rank,
                                                 ferry_simulation_rank *rank_out,
                                                 ferry_error *error);
/* When a batch was on the wire. */
FERRY_API ferry_status ferry_simulation_get_batch_time(const ferry_simulation *simulation,
                                                       uint64_t batch, double *start_out,
                                                       double *end_out, ferry_error *error);
/* A Chrome trace: opens in Perfetto. Without a cluster, a byte counts as a nanosecond. */
FERRY_API ferry_status ferry_simulation_write_trace(const ferry_simulation *simulation,
                                                    ferry_write_fn write, void *context,
                                                    ferry_error *error);

FERRY_END_DECLS

#endif
