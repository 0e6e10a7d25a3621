/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_COMM_H
#define FY_COLLECTIVE_COMM_H

#include "collective/lane.h"
#include "exec/request.h"
#include "exec/team.h"
#include "transport/queued.h"
#include "world/world.h"

#include <ferry/mixed_comm.h>

#include <pthread.h>
#include <stdatomic.h>

/*
 * A handle of the mixed collectives. Lanes drive schedules over boxes in symmetric memory; the
 * control region carries what is not data: which call each rank is in, and why a handle is broken.
 */

/* What a rank says of the call that it is in, on a line of its own. */
typedef struct fy_mix_board {
    _Atomic uint64_t begun; /* the call's number; 0: none yet */
    uint64_t count;
    uint32_t op, mode;
    uint64_t ended; /* the same number: who reads both equal has read one call */
    uint64_t waits; /* 1: for a rank that has not begun this call, however indirectly */
    uint64_t spare[3];
} fy_mix_board;
_Static_assert(sizeof(fy_mix_board) == FY_MIX_LINE_BYTES, "a board is one line");

/* Boards that may be on their way at once: so many calls in a row are refused without a wait. */
enum { FY_MIX_N_SENT = 16 };

/*
 * In place of an operation: this rank makes no more calls; it has made one that was refused before
 * it began; it begins to measure.
 */
enum { FY_MIX_OP_SHUTDOWN = FERRY_MIXED_N_OPS, FY_MIX_OP_REFUSED, FY_MIX_OP_TUNE };

/* Why another rank's handle is broken. */
typedef struct fy_mix_notice {
    _Atomic uint64_t status; /* FERRY_OK: none has come; written last */
    uint64_t from;           /* the call that was cancelled: those before it go on; 0: none do */
    char sentence[FERRY_ERROR_BYTES - 2 * sizeof(uint64_t)];
} fy_mix_notice;

/*
 * The control region: words, this rank's board, then one board and one notice for each contact, a
 * rank that this one exchanges anything with.
 */
enum {
    FY_MIX_CONTROL_NOTICES = 0,                    /* a word: how many notices have come */
    FY_MIX_CONTROL_BOARD = FY_MIX_LINE_BYTES,      /* own */
    FY_MIX_CONTROL_BOARDS = 2 * FY_MIX_LINE_BYTES, /* of contacts */
};

typedef struct fy_mix_request {
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
} fy_mix_request;

typedef struct fy_tuning fy_tuning;           /* tune.h */
typedef struct fy_mix_kernel fy_mix_kernel;   /* kernel.h */
typedef struct fy_mix_library fy_mix_library; /* library.h */

/* Of calls: what changes with each. */
typedef struct fy_mix_state {
    fy_mix_call call;
    fy_mix_lane *lanes; /* n_lanes of the program */
    uint64_t n_calls;   /* since the last reset */
    bool by_kernel;     /* the calls that begin now: also which program they are cut by */
    bool on_queue;      /* threads of the team help the one that runs a queue's work */
    bool is_looked_on;  /* a graph's, which keeps no thread from other calls */
    /* Somebody wants no more of this call; NULL: nobody can say so. */
    const _Atomic bool *cancelled;
} fy_mix_state;

/* What this rank says of its calls, and hears of those of others; all but `control` under
 * `network` of the wires. */
typedef struct fy_mix_boards {
    ferry_region *control;
    char **peer_controls;             /* by local rank; NULL: not mapped */
    fy_mix_board sent[FY_MIX_N_SENT]; /* the board as it was put; free again after a flush */
    uint32_t n_sent;
    bool told;          /* contacts know of this call */
    uint32_t n_waiting; /* drivers of lanes that wait for a rank that is not there */
} fy_mix_boards;

/* Calls that were asked for on queues, which have their numbers before they begin. */
typedef struct fy_mix_asked {
    pthread_mutex_t lock; /* held until a call is on its queue, which may wait for another one */
    uint64_t last;        /* the last one's number */
    bool is_unsure;       /* graphs may have calls between them */
    _Atomic uint32_t n;   /* that are not over; who ends one has no lock */
} fy_mix_asked;

struct ferry_mixed_comm {
    fy_mix_program program;
    fy_mix_wires wires;
    fy_mix_state state;
    fy_mix_boards boards;
    fy_mix_asked asked;
    ferry_world *world;               /* retained */
    fy_captures captures;             /* calls that graphs have */
    fy_work work;                     /* what others can ask of its calls; has its number */
    _Atomic bool has_asked;           /* others in this call: their answers may still come */
    ferry_mixed_comm_options options; /* with defaults filled in; texts are own_ */
    char *own_engines, *own_tune_file;
    bool opened, inside_ready, between_ready, finished;
    uint32_t ops[FERRY_MIXED_N_OPS], modes[FERRY_MIXED_N_MODES];
    size_t n_ops, n_modes;
    const fy_mix_verbs *host_verbs, *far_verbs; /* tests put others in their place */
    char *meeting;                              /* what the smallest call takes: fy_comm_meet */
    bool all_name_devices;
    bool by_device;          /* they do, and ranks of a node are mapped */
    fy_mix_kernel *kernel;   /* that goes through the schedules; NULL: the host does */
    fy_mix_library *library; /* that makes BASE modes; NULL: schedules do */
    fy_team *team;           /* of one thread for each lane; NULL: lanes take turns */
    _Atomic bool busy;
    fy_mix_request *request; /* the one there is; outlives the handle where the caller holds it */
    _Atomic uint32_t broken; /* a ferry_status, once the handle is; set once */
    ferry_error reason;
    fy_tuning *tuning;
};

/* By which calls are cut: the kernel's, or the host's. */
const fy_mix_program *fy_comm_program(const ferry_mixed_comm *comm);

/* What its joint calls are made on. */
static inline uint64_t fy_comm_object(const ferry_mixed_comm *comm)
{
    return fy_joint_object(comm->work.number, 0);
}

/* request.c: among what the world moves on, under a number that all ranks agreed on. */
void fy_comm_work_add(ferry_mixed_comm *comm, uint32_t number);

/* comm_create.c */
/* What needs no world of options whose defaults are filled in. */
ferry_status fy_mix_options_check(const ferry_mixed_comm_options *options, ferry_error *error);
fy_topology_wish fy_mix_options_wish(const ferry_mixed_comm_options *options);
/* As many numbers as there is room for, and how many there are. */
void fy_mix_give_list(const uint32_t *list, size_t n, uint32_t *out, size_t room, size_t *n_out);
bool fy_comm_has_mode(const ferry_mixed_comm *comm, uint32_t mode);

/* comm_memory.c: what the two init calls do, and its end. */
ferry_status fy_comm_open(ferry_mixed_comm *comm, ferry_error *error);
void fy_comm_close(ferry_mixed_comm *comm);
/* Shuts down, also where that has failed: what destroy does. */
void fy_comm_finish(ferry_mixed_comm *comm);

/* trouble.c */
/* As far as the lane gets; a failure of its breaks the handle. */
fy_progress fy_comm_advance(ferry_mixed_comm *comm, fy_mix_lane *lane);
/* This handle is broken: remembers why, and tells all contacts. The first reason stands. */
void fy_comm_break(ferry_mixed_comm *comm, ferry_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/*
 * The same because this rank cancels call `number`. Ranks that are slower, and still in calls
 * before it, end those first: what nobody has cancelled ends well.
 */
void fy_comm_cancel(ferry_mixed_comm *comm, uint64_t number, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* FERRY_OK, or why the handle or its world is broken. Looks for notices. */
ferry_status fy_comm_state(ferry_mixed_comm *comm, ferry_error *error);
/* The same of call `number`, which goes on where a later one was cancelled. Looks at `cancelled`.
 */
ferry_status fy_comm_call_state(ferry_mixed_comm *comm, uint64_t number, ferry_error *error);
/* Whether another rank has said what ends call `number`. */
bool fy_comm_has_notice(const ferry_mixed_comm *comm, uint64_t number);
static inline bool fy_comm_is_cancelled(const ferry_mixed_comm *comm)
{
    return comm->state.cancelled != NULL && atomic_load(comm->state.cancelled);
}
/* Says on the boards what this rank is doing. */
void fy_mix_board_write(ferry_mixed_comm *comm, uint64_t call, uint32_t op, uint32_t mode,
                        uint64_t count, bool waits);
/*
 * Tells contacts that cannot look for themselves. The caller holds `network`. It does not wait for
 * the bytes to arrive, unless FY_MIX_N_SENT boards are on their way already.
 */
void fy_mix_board_tell(ferry_mixed_comm *comm);

/* A lane has waited for long: what the rank that it waits for does. */
typedef enum fy_mix_suspicion {
    FY_MIX_NOT_THERE, /* it has not begun this call, as far as is known */
    FY_MIX_ENTERED,   /* it is in it, or was */
    FY_MIX_WAITS_TOO, /* it is in it, and waits for somebody who is not there */
    FY_MIX_DIVERGED   /* it is in another one: the handle is broken now */
} fy_mix_suspicion;
fy_mix_suspicion fy_mix_lane_suspect(ferry_mixed_comm *comm, fy_mix_lane *lane);
uint32_t fy_mix_contact_of(const ferry_mixed_comm *comm, uint32_t reader, uint32_t writer);
uint32_t fy_mix_contact_count(const fy_topology *topology);
uint64_t fy_mix_control_bytes(const ferry_mixed_comm *comm);

/* Ends a request that is under way; what the caller holds of it stays his. */
void fy_comm_release_request(ferry_mixed_comm *comm);
/* comm_check.c: whether a call may begin. */
ferry_status fy_mix_call_check(const ferry_mixed_comm *comm, uint32_t op,
                               const ferry_mixed_tensor *in, const ferry_mixed_tensor *out,
                               ferry_error *error);
ferry_status fy_mix_call_check_input(const ferry_mixed_comm *comm, uint32_t op,
                                     const ferry_mixed_tensor *in, ferry_error *error);
/* DEFAULT and AUTOTUNE to a mode that has a schedule; others must have one. */
ferry_status fy_mix_call_mode(const ferry_mixed_comm *comm, uint32_t op, uint64_t piece_bytes,
                              uint32_t *mode, uint32_t *block_lines, ferry_error *error);
/* Elements of a piece: of the input, or of a chunk of it. */
uint64_t fy_mix_call_piece(const ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in);

/*
 * The smallest call, under another name: all ranks are about to do the same, or find out that they
 * are not, before they meet where nobody compares calls.
 */
ferry_status fy_comm_meet(ferry_mixed_comm *comm, uint32_t as, ferry_error *error);
/* comm_run.c: what `what` needs before it. */
ferry_status fy_comm_check_ready(const ferry_mixed_comm *comm, const char *what,
                                 ferry_error *error);
/*
 * A call that is refused here may have begun on other ranks: its number is used up, so that they
 * find out, and where all refuse it nothing is lost. refusal: what was found before, with its
 * sentence in *error, or FERRY_OK.
 */
ferry_status fy_comm_begin(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                           const ferry_mixed_tensor *out, uint32_t mode, uint32_t block_lines,
                           ferry_status refusal, ferry_error *error);
/* The host's count, where the device has come further. */
void fy_comm_catch_up(ferry_mixed_comm *comm, uint64_t number);
/* What a call that was checked will be when it begins, but for its number; by a kernel. */
void fy_comm_foresee(const ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                     const ferry_mixed_tensor *out, uint32_t mode, uint32_t block_lines,
                     fy_mix_call *call_out);
/* Checks, and begins a call in the geometry of a block size (0: the default one). */
ferry_status fy_comm_run(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                         const ferry_mixed_tensor *out, uint32_t mode, uint32_t block_lines,
                         ferry_error *error);

/* Nobody else uses the handle until it is given back; `what` begins the sentence. */
ferry_status fy_comm_take(ferry_mixed_comm *comm, const char *what, ferry_error *error);
void fy_comm_give_back(ferry_mixed_comm *comm);
/* A call of whoever has taken it, until its end, or begun. refusal: see begin. */
ferry_status fy_comm_call(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                          const ferry_mixed_tensor *out, uint32_t mode, ferry_status refusal,
                          ferry_error *error);
ferry_status fy_comm_start(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                           const ferry_mixed_tensor *out, uint32_t mode, ferry_status refusal,
                           ferry_request **request_out, ferry_error *error);

/* queued.c: a call in the order of a queue; with a place for a request, its outcome is that's. */
ferry_status fy_comm_call_on(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                             const ferry_mixed_tensor *out, uint32_t mode, ferry_queue *queue,
                             ferry_request **request_out, ferry_error *error);

#endif
