/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_ACTIVITY_H
#define FY_WORLD_ACTIVITY_H

#include "base/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What a rank is doing, so that others who wait for it can be told, also while its thread is
 * blocked: the joint call that it is in (one that all ranks of a world make together), how many
 * exchanges it has begun (steps of joint calls, at which all ranks wait for all), and which runs of
 * its services and mixed collectives it has begun and finished.
 *
 * Two ranks that wait for one another in different calls are proven by one question. Rank A is
 * blocked in a call that rank B has not begun, and asks B; B answers that it is blocked in one. If
 * A has not begun that one either, neither can go on: A was in its call from before the question
 * until after the answer.
 */

/* The calls that all ranks make together. */
typedef enum fy_joint_call {
    FY_JOINT_START, /* of the world */
    FY_JOINT_BARRIER,
    FY_JOINT_ALL_GATHER,
    FY_JOINT_ALL_GATHER_V,
    FY_JOINT_BROADCAST,
    FY_JOINT_SHRINK,
    FY_JOINT_GROW,
    FY_JOINT_TRANSPORT_OPEN,
    FY_JOINT_REGION_ALLOC,
    FY_JOINT_REGION_FREE,
    FY_JOINT_SERVICE_INIT,
    FY_JOINT_SERVICE_SCHEDULE,
    FY_JOINT_SERVICE_REBIND,
    FY_JOINT_SERVICE_RECOVER,
    FY_JOINT_SERVICE_RECOVER_ONTO,
    FY_JOINT_SERVICE_RUN,
    FY_JOINT_SERVICE_FINALIZE,
    FY_JOINT_MIXED_CREATE,
    FY_JOINT_MIXED_INIT_VIRTUAL_MEMORY,
    FY_JOINT_MIXED_INIT_NVSHMEM,
    FY_JOINT_MIXED_AUTOTUNE,
    FY_JOINT_MIXED_RUN,
    FY_JOINT_MIXED_SHUTDOWN,
    FY_N_JOINT_CALLS
} fy_joint_call;

/* The objects that joint calls are made on: numbered in the order in which all ranks make them. */
typedef enum fy_object_kind {
    FY_OBJECT_NONE,
    FY_OBJECT_TRANSPORT,
    FY_OBJECT_SERVICE,
    FY_OBJECT_MIXED,
    FY_N_OBJECT_KINDS
} fy_object_kind;

/* A call as ranks compare it. The text is of the outermost; the path also counts those within. */
typedef struct fy_joint {
    uint32_t call;
    uint32_t path;
    uint64_t object; /* an object's number and, below FY_JOINT_PART, that of its part */
} fy_joint;

enum { FY_JOINT_BYTES = 16, FY_JOINT_TEXT_BYTES = 112 };

static inline uint64_t fy_joint_object(uint32_t number, uint64_t part)
{
    return (uint64_t)number << 32 | (part & UINT32_MAX);
}

static inline bool fy_joint_equal(const fy_joint *a, const fy_joint *b)
{
    return a->call == b->call && a->path == b->path && a->object == b->object;
}

/* "ferry_service_schedule of service 2". */
void fy_joint_format(const fy_joint *joint, char text[FY_JOINT_TEXT_BYTES]);

/* An object with runs that all ranks take part in. */
typedef struct fy_work {
    struct fy_work *next;
    fy_object_kind kind;
    uint32_t number; /* 0: not yet agreed upon; nobody asks for it then */
    uint64_t begun, over;
    int64_t begun_ns;
    _Atomic int64_t active_ns; /* when its run was last moved on */
    uint32_t n_blocked;        /* threads that wait for its run, within this call */
    fy_joint_call blocked_in;
    /* Moves a run on that was started, from within another one or any wait of the world, for no
     * longer than there is something to do and until_ns; never waits. sleep_ns: see fy_world_wait.
     */
    void (*step)(void *context, int64_t until_ns);
    int64_t (*sleep_ns)(void *context);
    void *context;
    bool is_started;
    bool
        is_broken; /* its runs end, here and elsewhere: nobody is kept waiting by those not begun */
} fy_work;

/* What is left of an object that has ended. */
typedef struct fy_ended {
    uint32_t kind, number;
    uint64_t begun;
} fy_ended;

/*
 * So many of them are remembered, the last ones. All ranks make objects together, and those with
 * runs end together too, so nobody asks about one that has ended long ago.
 */
enum { FY_MOST_ENDED = 64 };

enum { FY_MOST_NESTED = 8 };

typedef struct fy_activity {
    pthread_mutex_t lock; /* of all but the last two; held for moments, by the control thread too */
    uint32_t depth;
    fy_joint outer;
    uint32_t paths[FY_MOST_NESTED];
    uint64_t n_exchanges;
    bool in_exchange; /* blocked in the last of them */
    uint32_t next[FY_N_OBJECT_KINDS];
    fy_work *works;
    fy_ended ended[FY_MOST_ENDED];
    uint64_t n_ended;         /* ever */
    pthread_mutex_t stepping; /* of the works' list against steps; held by who moves runs on */
    _Atomic uint32_t n_started;
} fy_activity;

void fy_activity_init(fy_activity *here);
void fy_activity_cleanup(fy_activity *here);

/* What is asked: of a run, or of an exchange (kind FY_OBJECT_NONE, run its number). */
typedef struct fy_question {
    uint32_t kind, number;
    uint64_t run;
    uint64_t tag; /* of the letter that answers */
} fy_question;

/* And the answer. */
typedef struct fy_answer {
    bool begun;       /* the run, or the exchange */
    bool over;        /* the run is over there: what it owed is on its way */
    bool ended;       /* its object is gone, or was never made and never will be */
    bool leaves;      /* the rank leaves the world */
    int64_t age_ns;   /* since it last moved the run on */
    int64_t since_ns; /* since it began it */
    uint64_t n_exchanges;
    /* What it is blocked in: an exchange (kind FY_OBJECT_NONE), or the wait for a run. */
    bool blocked;
    uint32_t kind, number;
    uint64_t run;
    fy_joint joint; /* in words; call FY_N_JOINT_CALLS: it is in none */
} fy_answer;

enum { FY_QUESTION_BYTES = 24, FY_ANSWER_BYTES = 72 };

void fy_answer_make(fy_activity *here, const fy_question *question, bool leaves, int64_t awake_ns,
                    fy_answer *answer_out);
void fy_answer_pack(const fy_answer *answer, unsigned char bytes[FY_ANSWER_BYTES]);
bool fy_answer_read(const unsigned char *bytes, size_t n_bytes, fy_answer *answer_out);

/*
 * Whether who answered so waits for this rank as long as this one waits for it: it is blocked in
 * what this rank has not begun.
 */
bool fy_answer_blocks(fy_activity *here, const fy_answer *answer);

/* Whether a letter is of an object that has ended here: nobody takes it any more. */
bool fy_letter_is_late(fy_activity *here, uint64_t tag);

#endif
