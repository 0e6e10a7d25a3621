/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_COMM_H
#define FY_COLLECTIVE_COMM_H

#include "base/request.h"
#include "collective/schedule.h"
#include "collective/sum.h"
#include "pack/team.h"
#include "transport/transport.h"

#include <ferry/mixed_comm.h>

#include <pthread.h>
#include <stdatomic.h>

/*
 * A handle of the mixed collectives. Lanes drive schedules over boxes in symmetric memory; the
 * control region carries what is not data: which call each rank is in, and why a handle is broken.
 */

/* The first line of every message: who waits for the message compares it with its own call. */
typedef struct fy_header {
    _Atomic uint64_t epoch; /* the edge's use, plus one; written last */
    uint64_t call;
    uint64_t count; /* elements of a piece */
    uint32_t op, mode;
    uint32_t dtype, rank;
    uint64_t geometry; /* lanes and block: these must agree too */
    uint64_t spare[2];
} fy_header;
_Static_assert(sizeof(fy_header) == FY_LINE_BYTES, "a header is one line");

/* What a rank says of the call that it is in, on a line of its own. */
typedef struct fy_board {
    _Atomic uint64_t begun; /* the call's number; 0: none yet */
    uint64_t count;
    uint32_t op, mode;
    uint64_t ended; /* the same number: who reads both equal has read one call */
    uint64_t waits; /* 1: for a rank that has not begun this call, however indirectly */
    uint64_t spare[3];
} fy_board;
_Static_assert(sizeof(fy_board) == FY_LINE_BYTES, "a board is one line");

/* Boards that may be on their way at once: so many calls in a row are refused without a wait. */
enum { FY_N_SENT = 16 };

/*
 * In place of an operation: this rank makes no more calls; it has made one that was refused before
 * it began; it begins to measure.
 */
enum { FY_OP_SHUTDOWN = FERRY_MIXED_N_OPS, FY_OP_REFUSED, FY_OP_TUNE };

/* Why another rank's handle is broken. */
typedef struct fy_notice {
    _Atomic uint64_t status; /* FERRY_OK: none has come; written last */
    char sentence[FERRY_ERROR_BYTES - sizeof(uint64_t)];
} fy_notice;

/*
 * The control region: words, this rank's board, then one board and one notice for each contact, a
 * rank that this one exchanges anything with.
 */
enum {
    FY_CONTROL_NOTICES = 0,                /* a word: how many notices have come */
    FY_CONTROL_BOARD = FY_LINE_BYTES,      /* own */
    FY_CONTROL_BOARDS = 2 * FY_LINE_BYTES, /* of contacts */
};

typedef enum fy_region_index {
    FY_REGION_INSIDE = 0,
    FY_REGION_BETWEEN,
    FY_N_REGIONS
} fy_region_index;

/* Where an edge's boxes lie within a lane's part of a region; the same on all ranks. */
typedef struct fy_box {
    uint32_t region;        /* fy_region_index */
    uint64_t message_bytes; /* with its header; 0: the edge is never used */
    uint64_t outbox, outbox_slot;
    uint64_t inbox, inbox_slot;
} fy_box;

typedef struct fy_layout {
    fy_box boxes[FY_N_EDGES];
    uint64_t lane_bytes[FY_N_REGIONS];
    uint64_t most_elements; /* of a block */
} fy_layout;

/* One operation, as all its lanes see it. */
typedef struct fy_call {
    uint64_t number; /* counts from 1 */
    uint32_t op, mode;
    const fy_schedule *schedule;
    const char *in;
    char *out;
    fy_geometry geometry;
    uint64_t cell_bytes[FY_N_EDGES];
    uint64_t geometry_key;
    bool stream; /* the output goes past the cache */
} fy_call;

typedef enum fy_progress { FY_LANE_DONE, FY_LANE_BLOCKED, FY_LANE_FAILED } fy_progress;

/* What a board said. */
typedef struct fy_seen {
    uint64_t call, count, waits;
    uint32_t op, mode;
} fy_seen;

/* A lane: the part of every message that one worker carries, with boxes of its own. */
typedef struct fy_lane {
    ferry_mixed_comm *comm;
    uint32_t index;
    uint64_t uses[FY_N_EDGES]; /* of every edge, before this call */
    /* Of the call: what is done next. */
    uint64_t begin, length, n_steps;
    uint64_t turn; /* of the pipeline: stage s is at step turn - s */
    uint32_t stage, action, link;
    bool done;
    fy_seen seen;   /* the board of the rank that it waits for */
    uint64_t moved; /* counts everything that was done: to see whether anything is */
    ferry_status status;
    ferry_error error;
    const void **sources; /* as many as any sum has */
    /* Since the last reset. */
    uint64_t n_steps_done, n_waits, inside_written, inside_read, between;
    char line_end[FY_LINE_BYTES]; /* lanes of other threads share no line with these */
} fy_lane;

typedef struct fy_mixed_request {
    ferry_request base;
    ferry_mixed_comm *comm; /* NULL: it is gone */
    bool done;
    bool is_held; /* by the caller, who has not destroyed it */
    bool waits;   /* what this rank's board says while it is polled */
    int64_t worked_ns, looked_ns;
    int64_t settling_ns; /* since when what it has put is flushed; 0: it is not yet */
    _Atomic bool cancelled;
    _Atomic bool is_moved; /* a thread moves its call on, by its own or another wait */
    ferry_status status;
    ferry_error error;
} fy_mixed_request;

typedef struct fy_tuning fy_tuning; /* tune.h */

struct ferry_mixed_comm {
    ferry_world *world;               /* retained */
    fy_work work;                     /* what others can ask of its calls; has its number */
    _Atomic bool has_asked;           /* others in this call: their answers may still come */
    ferry_transport *transport;       /* retained; NULL until something needs it */
    ferry_mixed_comm_options options; /* with defaults filled in; texts are own_ */
    char *own_engines, *own_tune_file;
    fy_topology topology;
    fy_sum_type type;
    uint32_t element_bytes;
    bool mapped; /* all other ranks of the node are; after open */
    bool opened, inside_ready, between_ready, finished;
    uint32_t ops[FERRY_MIXED_N_OPS], modes[FERRY_MIXED_N_MODES];
    size_t n_ops, n_modes;
    fy_schedule *schedules[FERRY_MIXED_N_OPS][FERRY_MIXED_N_MODES]; /* NULL: none */
    fy_layout layout;
    fy_geometry_limits limits;
    uint32_t n_slots;                                  /* FY_N_SLOTS; tests take one away */
    bool trusts_epochs;                                /* false; tests leave the check out */
    void (*stall)(void *context, const fy_lane *lane); /* (optional) tests: before every action */
    int64_t (*clock)(void *context); /* (optional) tests: autotune's, in ns; of stall_context */
    void *stall_context;
    ferry_region *control, *regions[FY_N_REGIONS];
    char *own[FY_N_REGIONS];    /* this rank's part */
    char **peers[FY_N_REGIONS]; /* parts of the node's ranks, by local rank; NULL: not mapped */
    char **peer_controls;
    fy_bell **bells; /* by local rank, NULL where not mapped */
    uint32_t n_lanes;
    fy_lane *lanes;
    char *meeting;           /* what the smallest call takes: see fy_comm_meet */
    fy_team *team;           /* of one thread for each lane; NULL: lanes take turns */
    pthread_mutex_t network; /* held around calls of the transport where lanes are threads */
    _Atomic bool busy;
    fy_call call;
    fy_mixed_request *request; /* the one there is; outlives the handle where the caller holds it */
    fy_board sent[FY_N_SENT];  /* the board as it was put; free again after a flush */
    uint32_t n_sent;           /* under `network` */
    bool told;                 /* contacts know of this call; under `network`, as the board is */
    uint32_t n_waiting;        /* drivers of lanes that wait for a rank that is not there */
    uint64_t n_calls;          /* since the last reset */
    _Atomic uint32_t broken;   /* a ferry_status, once the handle is; set once */
    ferry_error reason;
    fy_tuning *tuning;
};

/* What its joint calls are made on. */
static inline uint64_t fy_comm_object(const ferry_mixed_comm *comm)
{
    return fy_joint_object(comm->work.number, 0);
}

/* comm_run.c: among what the world moves on, under a number that all ranks agreed on. */
void fy_comm_work_add(ferry_mixed_comm *comm, uint32_t number);

/* comm_create.c */
bool fy_comm_has_mode(const ferry_mixed_comm *comm, uint32_t mode);

/* comm_memory.c: what the two init calls do, and its end. */
ferry_status fy_comm_open(ferry_mixed_comm *comm, ferry_error *error);
void fy_comm_close(ferry_mixed_comm *comm);
/* Shuts down, also where that has failed: what destroy does. */
void fy_comm_finish(ferry_mixed_comm *comm);

/* layout.c: pure. Boxes for all schedules with blocks of most_elements. */
void fy_layout_make(const ferry_mixed_comm *comm, uint64_t most_elements, fy_layout *layout_out);
/*
 * The largest blocks, a power of two in bytes, whose boxes take at most `bytes` for all lanes: no
 * more than is useful, unless the caller's max_block_size asks for it.
 */
enum { FY_MOST_BLOCK_BYTES = 64 << 20 };
uint64_t fy_layout_fit(const ferry_mixed_comm *comm, uint64_t bytes);

/* drive.c */
void fy_lane_begin(fy_lane *lane);
fy_progress fy_lane_advance(fy_lane *lane);
/* Where an edge's use lies in somebody's part of a region: its header. */
fy_header *fy_message_at(const fy_lane *lane, char *base, fy_edge edge, bool inbox, uint64_t number,
                         uint32_t message);

/* links.c */
fy_progress fy_links_wait(fy_lane *lane, const fy_action *action, uint64_t step);
bool fy_links_post(fy_lane *lane, const fy_action *action, uint64_t step);

/* trouble.c */
/* This handle is broken: remembers why, and tells all contacts. The first reason stands. */
void fy_comm_break(ferry_mixed_comm *comm, ferry_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* FERRY_OK, or why the handle or its world is broken. Looks for notices. */
ferry_status fy_comm_state(ferry_mixed_comm *comm, ferry_error *error);
/* Says on the boards what this rank is doing. */
void fy_board_write(ferry_mixed_comm *comm, uint64_t call, uint32_t op, uint32_t mode,
                    uint64_t count, bool waits);
/*
 * Tells contacts that cannot look for themselves. The caller holds `network`. It does not wait for
 * the bytes to arrive, unless FY_N_SENT boards are on their way already.
 */
void fy_board_tell(ferry_mixed_comm *comm);

/* A lane has waited for long: what the rank that it waits for does. */
typedef enum fy_suspicion {
    FY_NOT_THERE, /* it has not begun this call, as far as is known */
    FY_ENTERED,   /* it is in it, or was */
    FY_WAITS_TOO, /* it is in it, and waits for somebody who is not there */
    FY_DIVERGED   /* it is in another one: the handle is broken now */
} fy_suspicion;
fy_suspicion fy_lane_suspect(fy_lane *lane);
uint32_t fy_lane_awaited(const fy_lane *lane);
uint32_t fy_contact_of(const ferry_mixed_comm *comm, uint32_t reader, uint32_t writer);
uint32_t fy_contact_count(const fy_topology *topology);
uint64_t fy_control_bytes(const ferry_mixed_comm *comm);
const char *fy_call_text(uint32_t op, uint32_t mode, uint64_t count, char *text, size_t bytes);

/* Ends a request that is under way; what the caller holds of it stays his. */
void fy_comm_release_request(ferry_mixed_comm *comm);
/* comm_check.c: whether a call may begin. */
ferry_status fy_call_check(const ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                           const ferry_mixed_tensor *out, const ferry_queue *queue,
                           ferry_error *error);
ferry_status fy_call_check_input(const ferry_mixed_comm *comm, uint32_t op,
                                 const ferry_mixed_tensor *in, ferry_error *error);
/* DEFAULT and AUTOTUNE to a mode that has a schedule; others must have one. */
ferry_status fy_call_mode(const ferry_mixed_comm *comm, uint32_t op, uint64_t piece_bytes,
                          uint32_t *mode, uint32_t *block_lines, ferry_error *error);
/* Elements of a piece: of the input, or of a chunk of it. */
uint64_t fy_call_piece(const ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in);

/*
 * The smallest call, under another name: all ranks are about to do the same, or find out that they
 * are not, before they meet where nobody compares calls.
 */
ferry_status fy_comm_meet(ferry_mixed_comm *comm, uint32_t as, ferry_error *error);
/* comm_run.c: checks, and begins a call in the geometry of a block size (0: the default one). */
ferry_status fy_comm_run(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                         const ferry_mixed_tensor *out, uint32_t mode, uint32_t block_lines,
                         ferry_error *error);

#endif
