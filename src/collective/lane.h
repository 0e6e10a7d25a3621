/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_LANE_H
#define FY_COLLECTIVE_LANE_H

#include "collective/program.h"
#include "memory/kind.h"
#include "program/drive.h"
#include "transport/transport.h"
#include "world/bell.h"

#include <pthread.h>

/*
 * Lanes: each runs the program of a schedule for a range of every message. What a program's drive
 * calls a turn of a block is a step of the message here.
 */

/* One operation, as all its lanes see it. */
typedef struct fy_mix_call {
    uint64_t number; /* counts from 1 */
    uint32_t op, mode;
    uint64_t count; /* elements of a piece, as messages and boards say them */
    const fy_mix_schedule *schedule;
    const char *in;
    char *out;
    fy_space in_space, out_space;
    fy_geometry geometry;
    uint32_t n_driven; /* lanes that threads of the host move on: all, or one for a kernel */
    uint64_t cell_bytes[FY_MIX_N_EDGES];
    uint64_t geometry_key;
    bool stream; /* the output goes past the cache */
} fy_mix_call;

/* Where boxes lie, and what carries messages to those that nobody here can write to. */
typedef struct fy_mix_wires {
    ferry_transport *transport; /* retained; NULL until something needs it */
    pthread_mutex_t network;    /* held around its calls where lanes are threads */
    ferry_region *regions[FY_MIX_N_REGIONS];
    char *own[FY_MIX_N_REGIONS];    /* this rank's part */
    char **peers[FY_MIX_N_REGIONS]; /* of the node's ranks, by local rank; NULL: not mapped */
    fy_bell **bells;                /* by local rank, NULL where not mapped */
} fy_mix_wires;

typedef struct fy_mix_lane fy_mix_lane;

/*
 * What is done with each kind of step, for a lane: of what fails the lane has a status and a
 * sentence. One row for tensors of the host (lane.c), one for those that the CPU may not touch
 * (far.c). Tests put rows of their own in front of these.
 */
typedef struct fy_mix_verbs {
    fy_verbs steps;
    fy_progress (*end)(fy_mix_lane *lane); /* behind the last step of a call */
    /* The whole call at once, in place of its steps: lane 0 stands for all. NULL: by steps. */
    fy_progress (*whole)(fy_mix_lane *lane);
    /* Whether the lane waits for a device, and not for another rank. NULL: it never does. */
    bool (*is_awaited)(fy_mix_lane *lane);
    /* What it waits for rings no bell: it is looked at again soon. (optional) */
    bool (*is_polled)(fy_mix_lane *lane);
    /* Has work of the lane's devices that is under way: the bell is rung when it is done. (opt.) */
    bool (*ring_when_done)(fy_mix_lane *lane, fy_bell *bell);
    /* A call has failed: waits for what is still under way on the caller's memory. (optional) */
    void (*drain)(fy_mix_lane *lane);
    int64_t (*now_ns)(const struct fy_mix_verbs *verbs); /* the host's: autotune's clock */
} fy_mix_verbs;

extern const fy_mix_verbs fy_mix_host_verbs, fy_mix_far_verbs;

/* What a board said. */
typedef struct fy_mix_seen {
    uint64_t call, count, waits;
    uint32_t op, mode;
} fy_mix_seen;

typedef struct fy_mix_far fy_mix_far; /* far.c */

/* The part of every message that one worker carries, with boxes of its own. */
struct fy_mix_lane {
    const fy_mix_program *program;
    const fy_mix_call *call;
    fy_mix_wires *wires;
    const fy_mix_verbs *verbs; /* of this call */
    uint32_t index;
    uint64_t uses[FY_MIX_N_EDGES]; /* of every edge, before this call */
    /* Of the call. */
    uint64_t begin, length, n_steps;
    fy_drive drive; /* of the schedule's program */
    uint32_t link;  /* of the WAIT at hand: the first whose message is not there yet */
    bool done;
    fy_mix_seen seen; /* the board of the rank that it waits for */
    uint32_t seen_rank;
    int64_t seen_ns; /* since when it says the same */
    uint64_t moved;  /* counts everything that was done: to see whether anything is */
    ferry_status status;
    ferry_error error;
    const void **sources;         /* as many as any sum has */
    fy_mix_far *far;              /* queues of devices; NULL until a call needs them */
    struct fy_mix_kernel *kernel; /* the handle's, as the next one */
    struct fy_mix_library *library;
    /* Since the last reset. */
    uint64_t n_steps_done, n_waits, inside_written, inside_read, between, device_elements;
    char line_end[FY_MIX_LINE_BYTES]; /* lanes of other threads share no line with these */
};

/* lane.c */
void fy_mix_lane_begin(fy_mix_lane *lane);
fy_progress fy_mix_lane_advance(fy_mix_lane *lane);
/* The link that a lane is blocked at. */
const fy_mix_link *fy_mix_lane_link(const fy_mix_lane *lane);
/* Where an edge's use lies in somebody's part of a region: its header. */
static inline fy_mix_header *fy_mix_message_at(const fy_mix_lane *lane, char *base,
                                               fy_mix_edge edge, bool inbox, uint64_t number,
                                               uint32_t message)
{
    const fy_mix_box *box = &lane->program->layout.boxes[edge];
    uint64_t slot = number % lane->program->layout.n_slots;
    uint64_t at =
        lane->index * lane->program->layout.lane_bytes[box->region] + message * box->message_bytes;
    at += inbox ? box->inbox + slot * box->inbox_slot : box->outbox + slot * box->outbox_slot;
    return (fy_mix_header *)(void *)(base + at);
}

/* A sum, ready to be made; `sources` are the lane's. */
typedef struct fy_mix_summing {
    fy_sum sum;
    const fy_mix_place *places; /* of the sources */
    bool is_nothing;            /* an empty piece, or a copy in place */
} fy_mix_summing;
/* counts: what it reads and writes is counted, which is right once for each sum of a step. */
void fy_mix_lane_sum(fy_mix_lane *lane, const fy_mix_sum *sum, uint64_t number, bool counts,
                     fy_mix_summing *out);
fy_verb fy_mix_lane_run_sum;
/* Elements of a step's block, which is shorter at the end of the lane's range. */
uint64_t fy_mix_lane_block(const fy_mix_lane *lane, uint64_t number);

/* links.c */
/* A message is not of this lane's call, or was written over: FAILED, with a sentence. */
fy_progress fy_mix_fail_by_header(fy_mix_lane *lane, const fy_mix_header *header, uint32_t rank);
fy_progress fy_mix_fail_by_epoch(fy_mix_lane *lane, const fy_mix_link *link, uint64_t epoch,
                                 uint64_t number);
fy_verb fy_mix_links_wait, fy_mix_links_put, fy_mix_links_signal;

/* far.c. Queues for the lane's call; what was opened for calls before it is kept. */
ferry_status fy_mix_far_open(fy_mix_lane *lane, ferry_error *error);
void fy_mix_far_close(fy_mix_lane *lane);

/* "all-reduce of 8 elements in mode base-one" */
const char *fy_mix_call_text(uint32_t op, uint32_t mode, uint64_t count, char *text, size_t bytes);
/*
 * Why two ranks are in different calls: "; rank 0 went on without call 1 of rank 1, which it
 * refused or left out" where their numbers differ, else "".
 */
enum { FY_MIX_GAP_BYTES = 128 };
const char *fy_mix_gap_text(uint32_t rank, uint64_t call, uint32_t other, uint64_t others_call,
                            char text[FY_MIX_GAP_BYTES]);

#endif
