/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_WORLD_H
#define FY_WORLD_WORLD_H

#include "base/status.h"
#include "world/activity.h"
#include "world/bell.h"
#include "world/failure.h"
#include "world/fork.h"
#include "world/gate.h"
#include "world/settings.h"

#include <ferry/world.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What every world has in common, whether its ranks are threads (threads.c) or processes
 * (process.c): numbers, topology, failure, and the table of what differs.
 */

/* The collectives, by which ranks notice that they call different ones. */
typedef enum fy_collective {
    FY_BARRIER = 1,
    FY_ALL_GATHER = 2,
    FY_BROADCAST = 3,
    FY_AGREEMENT = 5, /* 4 is the start: see collect.c */
} fy_collective;

/* "barrier", "all-gather", "broadcast from rank 2": for sentences. */
enum { FY_COLLECTIVE_TEXT_BYTES = 48 };
void fy_collective_format(uint32_t kind, uint32_t root, char text[FY_COLLECTIVE_TEXT_BYTES]);

/* A collective, and the joint call that makes it: what ranks compare at an exchange. */
typedef struct fy_step {
    fy_joint joint;
    uint32_t kind;
    uint32_t root;
} fy_step;

enum { FY_STEP_TEXT_BYTES = FY_JOINT_TEXT_BYTES + FY_COLLECTIVE_TEXT_BYTES };
void fy_step_format(const fy_step *step, char text[FY_STEP_TEXT_BYTES]);
bool fy_step_equal(const fy_step *a, const fy_step *b);

/* The sentence of ranks that are in different calls. */
#define FY_SAME_CALLS "all ranks make the same calls in the same order"
void fy_steps_say(const fy_step *odd, uint32_t odd_rank, const fy_step *step, uint32_t rank,
                  char sentence[FERRY_ERROR_BYTES]);

/* How a world grows: its ranks, and behind them the newcomers. */
typedef struct fy_growth {
    uint32_t n_ranks;  /* of the new world */
    uint32_t *members; /* by rank of the new world: its number among all members */
    uint32_t n_first;  /* one more than any member's number */
    const char *path;  /* where they meet; NULL: as the environment says */
    int64_t join_ns;
    ferry_world **newcomers_out; /* of a world of threads, on rank 0 */
} fy_growth;

typedef struct fy_world_ops {
    ferry_status (*barrier)(ferry_world *world, ferry_error *error);
    /*
     * Everybody's bytes in order of ranks, and n_ranks lengths; for FY_BROADCAST only root's rank
     * has any. FY_AGREEMENT: one message, of lengths[0] bytes, that all ranks' were merged into by
     * fy_agreement_merge. Valid until the next collective.
     */
    ferry_status (*gather)(ferry_world *world, fy_collective kind, uint32_t root, const void *bytes,
                           size_t n_bytes, const void **all_out, const size_t **lengths_out,
                           ferry_error *error);
    /* waits: for room on the way, where much is queued. */
    ferry_status (*send)(ferry_world *world, uint32_t to, uint64_t tag, const void *bytes,
                         size_t n_bytes, bool waits, ferry_error *error);
    /* limit_ns: 0 looks, negative has no limit. */
    ferry_status (*receive)(ferry_world *world, uint32_t from, uint64_t tag, int64_t limit_ns,
                            const void **bytes_out, size_t *n_bytes_out, uint32_t *from_out,
                            ferry_error *error);
    /* A copy of the first letter that is there; false if none is, or it does not fit. */
    bool (*take)(ferry_world *world, uint32_t from, uint64_t tag, void *buffer, size_t capacity,
                 size_t *n_bytes_out, uint32_t *from_out);
    /* Drops letters with tags from first to last. */
    void (*forget)(ferry_world *world, uint64_t first, uint64_t last);
    /* Asks a rank where it is; the answer comes as a letter, also while that rank's thread is
     * blocked. Never waits. */
    void (*ask)(ferry_world *world, uint32_t rank, const fy_question *question);
    /*
     * An engine has lost a rank. It may be the orderly end of a world that has failed or ends, of
     * which the news is on its way: only if none comes within a moment the world fails with this
     * sentence. (optional: it fails at once)
     */
    void (*suspect)(ferry_world *world, uint32_t rank, const char *sentence);
    /* Whether a rank's process is seen, and not stopped. (optional: all run as this one does) */
    bool (*seems_to_run)(ferry_world *world, uint32_t rank);
    /* Tells the other ranks of world->failure, which was just set here, and wakes all that wait. */
    void (*spread_failure)(ferry_world *world);
    ferry_status (*shrink)(ferry_world *world, uint32_t min_ranks, ferry_world **world_out,
                           ferry_error *error);
    /* All members ask for the same. */
    ferry_status (*grow)(ferry_world *world, const fy_growth *growth, ferry_world **world_out,
                         ferry_error *error);
    /*
     * Collective among the ranks of a node: the fd that its lowest rank gives, as a descriptor of
     * each one's own. (optional: threads have one table of descriptors)
     */
    ferry_status (*share_fd)(ferry_world *world, int fd, int *fd_out, ferry_error *error);
    /* Calls ready(context) on a thread of the world's own when fd is readable. (optional) */
    ferry_status (*watch)(ferry_world *world, int fd, void (*ready)(void *context), void *context,
                          ferry_error *error);
    /* After this returns ready is not running and never runs again. */
    void (*unwatch)(ferry_world *world, int fd);
    /* Tells the others that this rank leaves, and waits for them as close does. (optional) */
    void (*leave)(ferry_world *world);
    /* Leaves, ends threads, frees impl. */
    void (*close)(ferry_world *world);
} fy_world_ops;

/*
 * What must be done when this rank goes on without others. `shrunk` is called once the smaller
 * world is complete and before ferry_world_shrink returns it: nobody in it writes by the old world
 * any more. may_live says of each rank of the old world whether it was left behind and is not known
 * to have ended.
 */
typedef struct fy_shrink_hook {
    struct fy_shrink_hook *next;
    void (*shrunk)(void *context, const bool *may_live);
    void *context;
} fy_shrink_hook;

/* Where a device has come to the end of work that is only looked on at. */
typedef struct fy_order_end {
    bool (*is_over)(const struct fy_order_end *end);
    const void *by; /* whose queue it is: both stay for good */
    void *queue;
    uint64_t ticket;
} fy_order_end;

struct ferry_world {
    const fy_world_ops *ops;
    void *impl;
    _Atomic uint32_t references;
    uint32_t rank;
    uint32_t n_ranks;
    uint32_t epoch;
    uint32_t *members; /* by rank: its rank in the first world, or its number as a newcomer */
    uint32_t n_first;  /* one more than the number of any member that there was */
    bool has_grown;    /* another world has taken its place, and may still have it for others */
    /* Nodes: node_of by rank; local ranks of this node in order. */
    uint32_t *node_of;
    uint32_t n_nodes;
    uint32_t *local_ranks;
    uint32_t n_local_ranks;
    uint32_t local_rank;
    fy_settings settings;
    fy_failure *failure; /* of this process, or shared by the threads of a world */
    /* What this rank is doing: see activity.h. Threads of a world keep it where all see it. */
    fy_activity *here;
    fy_activity own_here;
    /* What this rank sleeps on. Peers of the node ring it through fy_world_bell. */
    fy_bell *bell;
    /* By rank: the bell of a rank on this node or in this process; NULL for others. */
    fy_bell *(*bell_of)(ferry_world *world, uint32_t rank);
    /* By rank: the gate of a rank on this node. Among threads NULL, and there is none. */
    fy_gate *(*gate_of)(ferry_world *world, uint32_t rank);
    uint32_t ranks_per_core; /* of this machine, at least 1 */
    int64_t spin_ns;         /* how long to spin before sleeping: less with more ranks than cores */
    _Atomic int64_t yields_from_ns; /* when yielding may help again; see wait.c */
    _Atomic int64_t no_yields_ns;   /* how long it was stopped the last time */
    fy_inheritance inheritance;     /* see fork.h */
    bool threads;                   /* all ranks are threads of this process */
    bool is_being_made;             /* nobody has it yet: what waits for it may be interrupted */
    /*
     * Facts for cross-memory attach, from the node's shared page: may this process reach that one's
     * memory by its pid? 0: not on this node, or in another namespace of pids.
     */
    int32_t (*pid_of)(ferry_world *world, uint32_t rank);
    pthread_mutex_t shrink_hook_lock; /* of the list, which several threads' handles may change */
    fy_shrink_hook *shrink_hooks;
    bool *may_live; /* by rank, for the hooks */
    /* The queue that has work of this world under way, and how much: see order.h. */
    const void *_Atomic queue;
    uint32_t n_queued;
    uint32_t n_watched, n_joined; /* of these; all that were joined are watched */
    fy_order_end last_watched, last_joined;
    struct fy_order_onlooker *_Atomic onlookers;
};

void fy_world_retain(ferry_world *world);

/* Whether no thread of the process will run again, which is waited for until then. */
bool fy_process_has_ended(int32_t pid, int64_t until_ns);

/* shrink_hook.c. The hook is the caller's, and stays until it is removed. */
void fy_world_add_shrink_hook(ferry_world *world, fy_shrink_hook *hook);
void fy_world_remove_shrink_hook(ferry_world *world, fy_shrink_hook *hook);
/* This rank goes on in the new one: all hooks of the old one are called. Cannot fail, for the
 * others have the new world already. */
void fy_world_run_shrink_hooks(ferry_world *old_world, ferry_world *new_world);

/*
 * Around every call that all ranks make together, before its first exchange and after its last;
 * they nest. An exchange is a step at which all ranks wait for all: its number is the same on all.
 */
void fy_joint_enter(ferry_world *world, fy_joint_call call, uint64_t object);
void fy_joint_leave(ferry_world *world);
fy_joint fy_joint_now(ferry_world *world);
uint64_t fy_exchange_begin(ferry_world *world);
void fy_exchange_end(ferry_world *world);

/*
 * Numbers of objects, the same on all ranks: each proposes one, they take the largest, and settle
 * on it.
 */
uint32_t fy_object_propose(ferry_world *world, fy_object_kind kind);
void fy_object_settle(ferry_world *world, fy_object_kind kind, uint32_t number);

/* An object with runs, from when it has a number until it ends; its letters end with it. */
void fy_work_add(ferry_world *world, fy_work *work, uint32_t number);
void fy_work_remove(ferry_world *world, fy_work *work);
/* This rank begins a run; it is over here, and all that it owed is on its way. */
void fy_work_begin(ferry_world *world, fy_work *work, uint64_t run);
void fy_work_over(ferry_world *world, fy_work *work);
/* Its runs end, here and elsewhere, those too that this rank has not begun: it keeps nobody
 * waiting. */
void fy_work_break(ferry_world *world, fy_work *work);
/* A thread of this rank waits for the run within a call, until it does not any more. */
void fy_work_block(ferry_world *world, fy_work *work, fy_joint_call call);
void fy_work_unblock(ferry_world *world, fy_work *work);
/* The run was started and is moved on by all waits from here on, or is not any more. */
void fy_work_start(ferry_world *world, fy_work *work, bool is_started);
void fy_works_move(ferry_world *world);
/* The same for who works on without a wait: it keeps half of the time. *shared_ns begins as 0. */
void fy_works_share(ferry_world *world, int64_t *shared_ns_inout);
int64_t fy_works_sleep_ns(ferry_world *world);

/*
 * Letters between parts of the library: their tags carry what they are of, so that no two objects'
 * meet, nor a caller's.
 */
typedef enum fy_letter_use {
    FY_LETTER_VOTE = 1,
    FY_LETTER_VERDICT,
    FY_LETTER_HALT,
    FY_LETTER_ANSWER,
    FY_LETTER_PAIR,
    FY_N_LETTER_USES
} fy_letter_use;

static inline uint64_t fy_letter_tag(fy_letter_use use, fy_object_kind kind, uint32_t number,
                                     uint32_t run)
{
    return UINT64_C(1) << 63 | (uint64_t)use << 58 | (uint64_t)kind << 54 |
           (uint64_t)(number & 0x3fffff) << 32 | run;
}

/* The object that a letter is of; false where it is a caller's. */
static inline bool fy_letter_object(uint64_t tag, uint32_t *kind_out, uint32_t *number_out)
{
    *kind_out = (uint32_t)(tag >> 54) & 0xf;
    *number_out = (uint32_t)(tag >> 32) & 0x3fffff;
    return tag >> 63 != 0;
}

static inline bool fy_world_same_node(const ferry_world *world, uint32_t rank)
{
    return world->node_of[rank] == world->node_of[world->rank];
}

/*
 * Waits until ready(context), the world fails, or limit_ns have passed (negative: no limit). ready
 * may do work; it is called often while spinning and after every ring of this rank's bell. sleep_ns
 * (optional) says how long it may sleep at most before the next call of ready: 0 keeps it awake.
 * FERRY_ERR_TIMEOUT has no sentence: the caller knows what it waited for. A world can also have
 * failed with that status, so ask fy_world_is_late. FERRY_ERR_STOPPED: the world is being made, and
 * the caller wants it no more.
 */
typedef bool (*fy_ready_fn)(void *context);
typedef int64_t (*fy_sleep_fn)(void *context);
ferry_status fy_world_wait(ferry_world *world, fy_ready_fn ready, fy_sleep_fn sleep_ns,
                           void *context, int64_t limit_ns, ferry_error *error);
/* The same on a bell that many share; spread_failure must ring it as well. */
ferry_status fy_world_wait_on(ferry_world *world, fy_bell *bell, fy_ready_fn ready,
                              fy_sleep_fn sleep_ns, void *context, int64_t limit_ns,
                              ferry_error *error);
/*
 * Whether such a wait ended for its limit, and the caller has to say what it waited for. Of a world
 * that has failed, be it since the wait ended, status and sentence are the world's.
 */
static inline bool fy_world_is_late(const ferry_world *world, ferry_status *status,
                                    ferry_error *error)
{
    if (*status != FERRY_ERR_TIMEOUT) {
        return false;
    }
    *status = fy_failure_get(world->failure, NULL, error);
    bool is_late = *status == FERRY_OK;
    *status = is_late ? FERRY_ERR_TIMEOUT : *status;
    return is_late;
}

/*
 * Whether a rank of which nothing was heard for so long (a deadline, say) may only be slow: its
 * process is seen to run, on a machine with far more work than cores. It has three deadlines then;
 * elsewhere silence is all there is to know. The one rule for all who wait for a living rank.
 */
bool fy_world_may_only_be_slow(ferry_world *world, uint32_t rank, int64_t silent_ns);

/*
 * Fails the world, here and everywhere: the way in which every layer reports a lost rank. Has no
 * effect on a world that has failed.
 */
void fy_world_fail(ferry_world *world, ferry_status status, uint32_t rank, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/*
 * Fills node_of, n_nodes, local ranks and shares of cores from a node identity per rank; numbers
 * nodes by lowest rank. Where nodes are faked all ranks may share one machine: the shares allow for
 * that.
 */
ferry_status fy_world_set_nodes(ferry_world *world, const uint64_t *node_ids, ferry_error *error);

/* Fills ranks_per_core and spin_ns where so many ranks share this process's cores. */
void fy_world_share_cores(ferry_world *world, uint32_t n_ranks_here);

/* Long yields until now were to ranks of this world, at work that has ended: wait.c forgets them.
 */
void fy_world_forgive_yields(ferry_world *world);

/*
 * A new world of one reference with its numbers and settings (moved out of *settings on success):
 * every rank is its own member and on one node. The maker fills in the rest: ops, impl, failure,
 * bell, bell_of, pid_of, threads, and members, epoch and nodes where they differ.
 */
ferry_status fy_world_new(uint32_t rank, uint32_t n_ranks, fy_settings *settings,
                          ferry_world **world_out, ferry_error *error);
/* Frees what fy_world_new made. */
void fy_world_free(ferry_world *world);

#endif
