/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_COLLECTIVE_SUITE_H
#define FERRY_TESTS_COLLECTIVE_SUITE_H

/*
 * The mixed collectives through their public interface: a table of cases and a table of rows, as
 * for the engines (conformance/suite.h, whose ranks and helpers these are).
 */
#include "collective/oracle.h"
#include "conformance/rows.h"

#include <ferry/mixed_comm.h>

enum {
    MOST_CASE_RANKS = ORACLE_MOST_RANKS, /* of threads; cases of processes have MOST_RANKS */
    MOST_LOGGED = 256,                   /* calls between two comparisons of replicas */
    ROOM = 160                           /* for a guard and a skew on either side of a tensor */
};

/* A handle, what its topology must offer, and memory for its tensors. */
typedef struct scene {
    rank_context *me;
    shape s;
    seat at;
    ferry_mixed_comm_options options;
    ferry_mixed_comm *comm;
    bool multicast;
    uint32_t ops[FERRY_MIXED_N_OPS], modes[FERRY_MIXED_N_MODES];
    size_t n_ops, n_modes;
    unsigned char *in, *out, *copy;
    size_t in_bytes, out_bytes;
    uint64_t n_calls;
    uint64_t digests[MOST_LOGGED];
    char told[MOST_LOGGED][160];
    uint32_t n_logged;
    uint64_t n_ordered;      /* sums whose bits depend on the order of additions */
    uint32_t far;            /* one in so many calls has tensors in far memory; 0: none */
    ferry_buffer away[2][2]; /* of input and output, on each device, guards and all */
    uint64_t n_away;         /* calls with such a tensor */
    ferry_queue *queues[2];  /* of each device; NULL until there is a call on it */
    void *streams[2];        /* that they have adopted; NULL: none */
    uint64_t n_queued;
    uint32_t skew_us; /* ranks sleep up to so long before some calls; 0: never */
    char name[160];
} scene;

typedef enum call_form { FORM_RUN, FORM_WAIT, FORM_TEST, N_FORMS } call_form;

/* One collective call: the same on all ranks. */
typedef struct call {
    uint32_t op, mode;
    uint64_t rows, columns; /* of a piece: the smaller of input and output */
    data_kind data;
    uint64_t seed;
    call_form form;
    bool in_place;
} call;

/* Tensors of a call, filled with its input; the memory of the output is poisoned. */
typedef struct tensors {
    ferry_mixed_tensor in, out;
} tensors;

/* A call that must work, and of which every element is looked at by one of its replicas. */
void scene_call(scene *c, const call *what);
/* The same where an error may come, which is returned; nothing is compared once the log is full. */
ferry_status scene_try(scene *c, const call *what);
/* Of one that was made otherwise, with tensors that scene_tensors has filled: the same looks. */
void scene_check(scene *c, const call *what, const tensors *t);
/* Compares the replicas' digests of all calls since the last time. */
void scene_compare(scene *c);

tensors scene_tensors(scene *c, const call *what);
/* Runs it in the call's form; nothing is looked at. */
ferry_status call_tensors(scene *c, const call *what, const tensors *t);

/* Options of this row for a topology. NULL: every size that is left to the default is left. */
ferry_mixed_comm_options scene_options(const rank_context *me, const shape *s, uint32_t dtype,
                                       uint64_t *random);

/* Opens a handle and checks what it offers. me->rank is a rank of the shape. */
void scene_open(scene *c, rank_context *me, const shape *s,
                const ferry_mixed_comm_options *options);
/* The memory alone, for a handle that the case makes itself. */
void scene_begin(scene *c, rank_context *me, const shape *s,
                 const ferry_mixed_comm_options *options);
void scene_close(scene *c);
/* After a failure: nobody waits, nothing is compared. */
void scene_drop(scene *c);
/* That tensors lay in far memory on some rank, and what lay there was moved and summed there. */
void scene_was_far(scene *c);

/* Whether a list holds a number. */
bool among(const uint32_t *list, size_t n, uint32_t number);

/* Random parts of calls and topologies; the state is one that all ranks share. */
shape draw_shape(uint64_t *random, uint32_t w);
call draw_call(const scene *c, uint64_t *random, uint64_t most_elements);
/* Elements of a piece: borders of lines and blocks, or anything up to most. */
uint64_t draw_count(uint64_t *random, uint32_t dtype, uint64_t most);
void draw_blocks(ferry_mixed_comm_options *options, uint64_t *random);
uint32_t draw_dtype(uint64_t *random);

/* Cuts a piece into rows and columns. */
void draw_rows(uint64_t *random, uint64_t n, call *what);

/* Whether the ranks of each node reach each other's memory in this row. */
bool row_is_mapped(const rank_context *me, const shape *s);

/* cases_all.c */
void case_oracle(rank_context *me);
void case_all(rank_context *me);
void case_large(rank_context *me);
void case_many_ranks(rank_context *me);
void case_deterministic(rank_context *me);

/* cases_random.c */
void case_random(rank_context *me);
void case_far(rank_context *me);
void case_two_handles(rank_context *me);
void case_requests(rank_context *me);
void case_turns(rank_context *me);
void case_autotune(rank_context *me);
void case_life(rank_context *me);
void case_shared_transport(rank_context *me);

/* cases_graph.c */
void case_captured(rank_context *me);
void case_graph(rank_context *me);
void case_graph_late(rank_context *me);
void case_graph_ends(rank_context *me);
void case_graph_differs(rank_context *me);
void case_graph_idle(rank_context *me);
void case_graph_beside(rank_context *me);
void case_graph_killed(rank_context *me);
void case_graph_silent(rank_context *me);
void case_graph_order(rank_context *me);
void case_graph_fork(rank_context *me);
void case_graph_request(rank_context *me);
void case_graph_lost(rank_context *me);
void case_graph_wakes(rank_context *me);

/* cases_stream.c */
void case_ahead(rank_context *me);
void case_ahead_differs(rank_context *me);
void case_ahead_streams(rank_context *me);
void case_ahead_counts(rank_context *me);
void case_ahead_beside(rank_context *me);
void case_ahead_ends(rank_context *me);
void case_ahead_killed(rank_context *me);
void case_ahead_fails(rank_context *me);
void case_ahead_idle(rank_context *me);

/* cases_create.c */
void case_bad_create(rank_context *me);
void case_differing_options(rank_context *me);

/* cases_bad.c */
void case_bad_calls(rank_context *me);
void case_refused_alone(rank_context *me);
void case_bad_order(rank_context *me);
void case_two_threads(rank_context *me);

/* cases_fault.c */
void case_diverging(rank_context *me);
void case_idle(rank_context *me);
void case_held_up(rank_context *me);
void case_killed(rank_context *me);
void case_killed_early(rank_context *me);
void case_stopped(rank_context *me);
void case_stopped_first(rank_context *me);
void case_abort(rank_context *me);
void case_lose(rank_context *me);
void case_cancel(rank_context *me);

#endif
