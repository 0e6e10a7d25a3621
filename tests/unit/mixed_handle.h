/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_MIXED_HANDLE_H
#define FERRY_TESTS_MIXED_HANDLE_H

#include "unit/rank_threads.h"

#include <ferry/mixed_comm.h>

#include <string.h>

/*
 * Handles of the mixed collectives for ranks that are threads, and one call whose result is known:
 * all-reduce + all-gather of four ranks, in groups {0, 1} and {2, 3}.
 */
typedef struct mixed_shape {
    uint32_t local_size, local_tp, inter_tp;
    const char *engines;
} mixed_shape;

static const mixed_shape one_node = {4, 2, 1, NULL};
static const mixed_shape two_nodes = {2, 2, 1, NULL};
static const mixed_shape by_puts = {4, 2, 1, "strict:inproc"};

/* Without a shape the topology is left to the world. */
static inline ferry_mixed_comm_options mixed_options(const rank_thread *self, const mixed_shape *s)
{
    ferry_mixed_comm_options o = FERRY_MIXED_COMM_OPTIONS_INIT;
    o.dtype = FERRY_F32;
    o.use_autotune = false;
    if (s != NULL) {
        o.world_rank = self->rank;
        o.world_size = self->n_ranks;
        o.local_size = s->local_size;
        o.local_rank = self->rank % s->local_size;
        o.inter_size = self->n_ranks / s->local_size;
        o.inter_rank = self->rank / s->local_size;
        o.local_tp_size = s->local_tp;
        o.inter_tp_size = s->inter_tp;
        o.engines = s->engines;
    }
    return o;
}

/* A handle for ranks whose context is a shape, or NULL. */
static inline ferry_status open_handle(rank_thread *self, ferry_mixed_comm **comm_out)
{
    ferry_mixed_comm_options o = mixed_options(self, self->context);
    return ferry_mixed_comm_create(self->world, &o, comm_out, &self->error);
}

/* Runs a function as four ranks of a shape. */
static inline void run_shape(const mixed_shape *s, void (*run)(rank_thread *self))
{
    run_ranks(4, NULL, run, (void *)(uintptr_t)s);
}

/* Tensors of that call, and for one whose output is as large as its input. */
enum { MIXED_COLUMNS = 100 };

typedef struct tensors {
    float in[MIXED_COLUMNS], out[2 * MIXED_COLUMNS];
    ferry_mixed_tensor from, to, same;
} tensors;

static inline void fill(tensors *t, uint32_t rank)
{
    for (uint32_t i = 0; i < MIXED_COLUMNS; i++) {
        t->in[i] = (float)(rank * 100 + i);
    }
    memset(t->out, 0xff, sizeof t->out);
    t->from = (ferry_mixed_tensor){ferry_buffer_of(t->in, sizeof t->in), 1, MIXED_COLUMNS};
    t->to = (ferry_mixed_tensor){ferry_buffer_of(t->out, sizeof t->out), 2, MIXED_COLUMNS};
    t->same = (ferry_mixed_tensor){ferry_buffer_of(t->out, sizeof t->in), 1, MIXED_COLUMNS};
}

static inline ferry_status run_gather(ferry_mixed_comm *comm, const tensors *t, uint32_t mode,
                                      ferry_error *error)
{
    return ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &t->from, &t->to, mode,
                                NULL, error);
}

static inline ferry_status start_gather(ferry_mixed_comm *comm, const tensors *t,
                                        ferry_request **request_out, ferry_error *error)
{
    return ferry_mixed_comm_start(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &t->from, &t->to,
                                  FERRY_MIXED_FUSED_WAITS_UNICAST, NULL, request_out, error);
}

static inline bool is_gathered(const tensors *t)
{
    for (uint32_t i = 0; i < 2 * MIXED_COLUMNS; i++) {
        uint32_t first = i / MIXED_COLUMNS * 2;
        if (t->out[i] != (float)((2 * first + 1) * 100 + 2 * (i % MIXED_COLUMNS))) {
            return false;
        }
    }
    return true;
}

#endif
