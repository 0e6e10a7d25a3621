/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The small things of a mixed-collective handle: what it says of itself, and what it refuses. */
#include "rank_threads.h"

#include "collective/comm.h"

#include <ferry/mixed_comm.h>

enum { COLUMNS = 100 };

/* ranks of a node, tensor-parallel sizes of both levels */
typedef struct scene {
    uint32_t    local_size, local_tp, inter_tp;
    const char *engines;
} scene;

static const scene one_node  = {4, 2, 1, NULL};
static const scene two_nodes = {2, 2, 1, NULL};
static const scene by_puts   = {4, 2, 1, "strict:inproc"};

static ferry_mixed_comm_options options_of(const rank_thread *self)
{
    const scene             *s = self->context;
    ferry_mixed_comm_options o = FERRY_MIXED_COMM_OPTIONS_INIT;
    o.world_rank               = self->rank;
    o.world_size               = self->n_ranks;
    o.local_size               = s->local_size;
    o.local_rank               = self->rank % s->local_size;
    o.inter_size               = self->n_ranks / s->local_size;
    o.inter_rank               = self->rank / s->local_size;
    o.local_tp_size            = s->local_tp;
    o.inter_tp_size            = s->inter_tp;
    o.dtype                    = FERRY_F32;
    o.engines                  = s->engines;
    o.use_autotune             = false;
    return o;
}

/* Tensors for all-reduce + all-gather with dp 2, and for all-reduce. */
typedef struct tensors {
    float              in[COLUMNS], out[2 * COLUMNS];
    ferry_mixed_tensor from, to, same;
} tensors;

static void fill(tensors *t, uint32_t rank)
{
    for (uint32_t i = 0; i < COLUMNS; i++) {
        t->in[i] = (float)(rank * 100 + i);
    }
    memset(t->out, 0xff, sizeof t->out);
    t->from = (ferry_mixed_tensor){ferry_buffer_of(t->in, sizeof t->in), 1, COLUMNS};
    t->to   = (ferry_mixed_tensor){ferry_buffer_of(t->out, sizeof t->out), 2, COLUMNS};
    t->same = (ferry_mixed_tensor){ferry_buffer_of(t->out, sizeof t->in), 1, COLUMNS};
}

/* All-reduce + all-gather over ranks 0..3 in groups {0, 1} and {2, 3}. */
static bool is_gathered(const tensors *t)
{
    for (uint32_t i = 0; i < 2 * COLUMNS; i++) {
        uint32_t first = i / COLUMNS * 2;
        if (t->out[i] != (float)((2 * first + 1) * 100 + 2 * (i % COLUMNS))) {
            return false;
        }
    }
    return true;
}

static bool has(const uint32_t *items, size_t n, uint32_t wanted)
{
    for (size_t i = 0; i < n; i++) {
        if (items[i] == wanted) {
            return true;
        }
    }
    return false;
}

/*
 * Life
 */

static void describe_one_node(rank_thread *self)
{
    ferry_mixed_comm_options o    = options_of(self);
    ferry_mixed_comm_info    info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_comm        *comm = NULL;
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    expect_ok(self, ferry_mixed_comm_describe(comm, &info, &self->error));
    expect(self, info.world_rank == self->rank && info.world_size == 4 && info.local_size == 4);
    expect(self, info.local_rank == self->rank && info.inter_rank == 0 && info.inter_size == 1);
    expect(self, info.local_tp_size == 2 && info.local_dp_size == 2 && info.inter_tp_size == 1 &&
                     info.inter_dp_size == 1);
    expect(self, info.tp_rank == self->rank % 2 && info.tp_size == 2);
    expect(self, info.dp_rank == self->rank / 2 && info.dp_size == 2);
    expect(self, info.dtype == FERRY_F32 && info.grid_size >= 1 && info.max_block_size >= 1);
    expect(self, info.staging_bytes > 0 && info.virtual_memory && info.between_nodes);
    expect(self, !info.tuned && !info.deterministic);
    expect(self, strcmp(info.between_engine, "") == 0);
    expect(self, strstr(info.between_note, "one node") != NULL);
    expect(self, strstr(info.inside_engine, "inproc") != NULL);
    expect(self, info.multicast == (o.engines == NULL));
    ferry_mixed_comm_destroy(comm);
}

static void test_describe_one_node(void **state)
{
    (void)state;
    run_ranks(4, NULL, describe_one_node, (void *)(uintptr_t)&one_node);
    run_ranks(4, NULL, describe_one_node, (void *)(uintptr_t)&by_puts);
}

static void describe_two_nodes(rank_thread *self)
{
    ferry_mixed_comm_options o    = options_of(self);
    ferry_mixed_comm_info    info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_comm        *comm = NULL;
    o.deterministic               = true;
    o.grid_size                   = 2;
    o.staging_bytes               = 1 << 20;
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    expect_ok(self, ferry_mixed_comm_describe(comm, &info, &self->error));
    expect(self, info.local_rank == self->rank % 2 && info.inter_rank == self->rank / 2);
    expect(self, info.dp_rank == self->rank / 2 && info.deterministic && info.grid_size == 2);
    expect(self, info.staging_bytes > 0 && info.staging_bytes <= 1 << 20);
    expect(self, strstr(info.between_engine, "inproc") != NULL);
    expect(self, strstr(info.between_note, "stands in for NVSHMEM") != NULL);
    info.struct_size    = 8;
    ferry_status status = ferry_mixed_comm_describe(comm, &info, &self->error);
    expect(self, status == FERRY_OK || status == FERRY_ERR_MISUSE);
    info.struct_size = 0;
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_describe(comm, &info, &self->error));
    ferry_mixed_comm_destroy(comm);
}

static void test_describe_two_nodes(void **state)
{
    (void)state;
    run_ranks(4, NULL, describe_two_nodes, (void *)(uintptr_t)&two_nodes);
}

/* The lists before memory is opened, and after: by puts there is no multicast. */
static void lists(rank_thread *self)
{
    const scene             *s    = self->context;
    ferry_mixed_comm_options o    = options_of(self);
    ferry_mixed_comm        *comm = NULL;
    const uint32_t          *ops, *modes;
    size_t                   n_ops, n_modes;
    o.only_construct = true;
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    for (int opened = 0; opened < 2; opened++) {
        bool multicast = opened == 0 || s->engines == NULL;
        expect_ok(self, ferry_mixed_comm_get_valid_op_list(comm, &ops, &n_ops, &self->error));
        expect(self, n_ops == 2 && has(ops, n_ops, FERRY_MIXED_ALL_REDUCE_ALL_GATHER) &&
                         has(ops, n_ops, FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE));
        expect_ok(self, ferry_mixed_comm_get_valid_mode_list(comm, &modes, &n_modes, &self->error));
        expect(self, n_modes == (multicast ? 6 : 4));
        expect(self, has(modes, n_modes, FERRY_MIXED_FUSED_WAITS_MULTICAST) == multicast);
        expect(self, has(modes, n_modes, FERRY_MIXED_FUSED_BYTES1_MULTICAST) == multicast);
        expect(self, has(modes, n_modes, FERRY_MIXED_FUSED_WAITS_UNICAST) &&
                         has(modes, n_modes, FERRY_MIXED_FUSED_BYTES1_UNICAST) &&
                         has(modes, n_modes, FERRY_MIXED_BASE_ONE) &&
                         has(modes, n_modes, FERRY_MIXED_BASE_TP_DP));
        expect(self, !has(modes, n_modes, FERRY_MIXED_AUTOTUNE));
        expect_ok(self, ferry_mixed_comm_init_virtual_memory(comm, &self->error));
    }
    ferry_mixed_comm_destroy(comm);
}

static void test_lists(void **state)
{
    (void)state;
    run_ranks(4, NULL, lists, (void *)(uintptr_t)&one_node);
    run_ranks(4, NULL, lists, (void *)(uintptr_t)&by_puts);
}

/* The init calls in both orders and twice; run asks for both where there are nodes. */
static void init_one_by_one(rank_thread *self)
{
    for (int backwards = 0; backwards < 2; backwards++) {
        ferry_mixed_comm_options o    = options_of(self);
        ferry_mixed_comm_info    info = FERRY_MIXED_COMM_INFO_INIT;
        ferry_mixed_comm        *comm = NULL;
        tensors                  t;
        ferry_status (*first)(ferry_mixed_comm *, ferry_error *) =
            backwards ? ferry_mixed_comm_init_nvshmem : ferry_mixed_comm_init_virtual_memory;
        ferry_status (*second)(ferry_mixed_comm *, ferry_error *) =
            backwards ? ferry_mixed_comm_init_virtual_memory : ferry_mixed_comm_init_nvshmem;
        o.only_construct = true;
        expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
        expect_ok(self, ferry_mixed_comm_describe(comm, &info, &self->error));
        expect(self, !info.virtual_memory && !info.between_nodes && !info.multicast);
        expect(self, strcmp(info.inside_engine, "") == 0 && strcmp(info.between_engine, "") == 0);
        for (int half = 0; half < 2; half++) {
            fill(&t, self->rank);
            expect_status(self, FERRY_ERR_MISUSE,
                          ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &t.from,
                                               &t.to, FERRY_MIXED_MODE_DEFAULT, NULL,
                                               &self->error));
            expect_says(self, "init_nvshmem");
            expect_ok(self, (half ? second : first)(comm, &self->error));
            expect_ok(self, first(comm, &self->error));
        }
        expect_ok(self, second(comm, &self->error));
        expect_ok(self, ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &t.from,
                                             &t.to, FERRY_MIXED_MODE_DEFAULT, NULL, &self->error));
        expect(self, is_gathered(&t));
        ferry_mixed_comm_destroy(comm);
    }
}

static void test_init_one_by_one(void **state)
{
    (void)state;
    run_ranks(4, NULL, init_one_by_one, (void *)(uintptr_t)&two_nodes);
}

static void shut_down(rank_thread *self)
{
    ferry_mixed_comm_options o       = options_of(self);
    ferry_mixed_comm        *comm    = NULL;
    ferry_request           *request = NULL;
    tensors                  t;
    fill(&t, self->rank);
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    expect_ok(self, ferry_mixed_comm_shutdown(comm, &self->error));
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_shutdown(comm, &self->error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &t.from, &t.to,
                                       FERRY_MIXED_MODE_DEFAULT, NULL, &self->error));
    expect_says(self, "shutdown");
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_mixed_comm_start(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &t.from, &t.to,
                                         FERRY_MIXED_MODE_DEFAULT, NULL, &request, &self->error));
    expect(self, request == NULL);
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_init_nvshmem(comm, &self->error));
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_init_virtual_memory(comm, &self->error));
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_run_autotune(comm, &self->error));
    ferry_mixed_comm_info info   = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_counts    counts = FERRY_MIXED_COUNTS_INIT;
    expect_ok(self, ferry_mixed_comm_describe(comm, &info, &self->error));
    expect(self, !info.virtual_memory && !info.between_nodes);
    expect_ok(self, ferry_mixed_comm_get_counts(comm, &counts, &self->error));
    expect_ok(self, ferry_mixed_comm_reset_counts(comm, &self->error));
    ferry_mixed_comm_destroy(comm);
}

static void test_shutdown(void **state)
{
    (void)state;
    run_ranks(4, NULL, shut_down, (void *)(uintptr_t)&one_node);
    run_ranks(4, NULL, shut_down, (void *)(uintptr_t)&two_nodes);
}

/*
 * Requests
 */

static void requests(rank_thread *self)
{
    ferry_mixed_comm_options o       = options_of(self);
    ferry_mixed_comm        *comm    = NULL;
    ferry_request           *request = NULL, *second = NULL;
    tensors                  t;
    bool                     done = false;
    const uint32_t           op   = FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
    const uint32_t           mode = FERRY_MIXED_FUSED_WAITS_UNICAST;
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    fill(&t, self->rank);
    expect_ok(self,
              ferry_mixed_comm_start(comm, op, &t.from, &t.to, mode, NULL, &request, &self->error));
    /* Until it has ended the handle is in use. */
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_mixed_comm_run(comm, op, &t.from, &t.to, mode, NULL, &self->error));
    expect_says(self, "uses this handle");
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_shutdown(comm, &self->error));
    while (!done) {
        expect_ok(self, ferry_request_test(request, &done, &self->error));
    }
    expect(self, is_gathered(&t));
    expect_ok(self, ferry_request_wait(request, &self->error));
    expect_ok(self, ferry_request_test(request, &done, &self->error));
    /* Too late, and one at a time. */
    ferry_request_cancel(request);
    expect_ok(self, ferry_request_wait(request, &self->error));
    expect_status(
        self, FERRY_ERR_MISUSE,
        ferry_mixed_comm_start(comm, op, &t.from, &t.to, mode, NULL, &second, &self->error));
    expect(self, second == NULL);
    ferry_request_destroy(request);
    fill(&t, self->rank);
    expect_ok(self,
              ferry_mixed_comm_start(comm, op, &t.from, &t.to, mode, NULL, &request, &self->error));
    ferry_request_destroy(request); /* waits */
    expect(self, is_gathered(&t));
    /* A request that outlives its handle. */
    fill(&t, self->rank);
    expect_ok(self,
              ferry_mixed_comm_start(comm, op, &t.from, &t.to, mode, NULL, &request, &self->error));
    expect_ok(self, ferry_request_wait(request, &self->error));
    expect(self, is_gathered(&t));
    ferry_mixed_comm_destroy(comm);
    expect_ok(self, ferry_request_wait(request, &self->error));
    ferry_request_destroy(request);
}

static void test_requests(void **state)
{
    (void)state;
    run_ranks(4, NULL, requests, (void *)(uintptr_t)&one_node);
    run_ranks(4, NULL, requests, (void *)(uintptr_t)&two_nodes);
    run_ranks(4, NULL, requests, (void *)(uintptr_t)&by_puts);
}

/* Rank 0 cancels: it cannot be too late, for rank 3 has not begun. */
static void cancelled(rank_thread *self)
{
    ferry_mixed_comm_options o       = options_of(self);
    ferry_mixed_comm        *comm    = NULL;
    ferry_request           *request = NULL;
    tensors                  t;
    fill(&t, self->rank);
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    if (self->rank != 3) {
        expect_ok(self, ferry_mixed_comm_start(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &t.from,
                                               &t.to, FERRY_MIXED_FUSED_WAITS_UNICAST, NULL,
                                               &request, &self->error));
    }
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    if (self->rank == 0) {
        ferry_request_cancel(request);
    }
    if (self->rank == 3) {
        expect_ok(self, ferry_world_barrier(self->world, &self->error));
        expect_status(self, FERRY_ERR_ABORTED,
                      ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &t.from, &t.to,
                                           FERRY_MIXED_FUSED_WAITS_UNICAST, NULL, &self->error));
    } else {
        expect_status(self, FERRY_ERR_ABORTED, ferry_request_wait(request, &self->error));
        expect_ok(self, ferry_world_barrier(self->world, &self->error));
    }
    expect_says(self, "rank 0 cancelled");
    /* The handle is broken, and says why each time; its request outlives it. */
    expect_status(self, FERRY_ERR_ABORTED,
                  ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &t.from, &t.to,
                                       FERRY_MIXED_BASE_ONE, NULL, &self->error));
    ferry_mixed_comm_destroy(comm);
    if (request != NULL) {
        expect_status(self, FERRY_ERR_ABORTED, ferry_request_wait(request, &self->error));
    }
    ferry_request_destroy(request);
}

static void test_cancel(void **state)
{
    (void)state;
    run_ranks(4, NULL, cancelled, (void *)(uintptr_t)&one_node);
    run_ranks(4, NULL, cancelled, (void *)(uintptr_t)&two_nodes);
}

/* The handle goes while its requests are under way on all ranks. */
static void destroyed_under_way(rank_thread *self)
{
    ferry_mixed_comm_options o       = options_of(self);
    ferry_mixed_comm        *comm    = NULL;
    ferry_request           *request = NULL;
    tensors                  t;
    fill(&t, self->rank);
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    if (self->rank != 3) {
        expect_ok(self, ferry_mixed_comm_start(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &t.from,
                                               &t.to, FERRY_MIXED_FUSED_WAITS_UNICAST, NULL,
                                               &request, &self->error));
    }
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    ferry_mixed_comm_destroy(comm);
    if (request != NULL) {
        expect(self, ferry_request_wait(request, &self->error) != FERRY_OK);
    }
    ferry_request_destroy(request);
}

static void test_destroy_under_way(void **state)
{
    (void)state;
    run_ranks(4, NULL, destroyed_under_way, (void *)(uintptr_t)&one_node);
}

/*
 * Refusals
 */

static void *call_busy(void *context)
{
    tensors      t;
    ferry_error  error;
    ferry_status status;
    fill(&t, 0);
    status = ferry_mixed_comm_run(context, FERRY_MIXED_ALL_REDUCE, &t.from, &t.same,
                                  FERRY_MIXED_MODE_DEFAULT, NULL, &error);
    return status == FERRY_ERR_MISUSE && strstr(error.message, "another thread") != NULL ? context
                                                                                         : NULL;
}

/* Within a call, between two of its actions. */
static void call_from_a_second_thread(void *context, const fy_lane *lane)
{
    pthread_t thread;
    void    **seen = context;
    if (*seen == NULL && pthread_create(&thread, NULL, call_busy, lane->comm) == 0) {
        pthread_join(thread, seen);
    }
}

static void busy(rank_thread *self)
{
    ferry_mixed_comm_options o    = FERRY_MIXED_COMM_OPTIONS_INIT;
    ferry_mixed_comm        *comm = NULL;
    void                    *seen = NULL;
    tensors                  t;
    o.dtype        = FERRY_F32;
    o.use_autotune = false;
    fill(&t, self->rank);
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    comm->stall         = call_from_a_second_thread;
    comm->stall_context = &seen;
    expect_ok(self, ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE, &t.from, &t.same,
                                         FERRY_MIXED_MODE_DEFAULT, NULL, &self->error));
    expect(self, seen == comm);
    expect(self,
           t.out[1] == (float)(self->n_ranks * (self->n_ranks - 1) / 2 * 100 + self->n_ranks));
    ferry_mixed_comm_destroy(comm);
}

static void test_busy(void **state)
{
    (void)state;
    run_ranks(3, NULL, busy, NULL);
}

/* A world of one: all-reduce is a copy. */
static void alone(rank_thread *self)
{
    ferry_mixed_comm_options o    = FERRY_MIXED_COMM_OPTIONS_INIT;
    ferry_mixed_comm_info    info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_comm        *comm = NULL;
    const uint32_t          *ops, *modes;
    size_t                   n_ops, n_modes;
    tensors                  t;
    o.dtype        = FERRY_F32;
    o.use_autotune = false;
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    expect_ok(self, ferry_mixed_comm_describe(comm, &info, &self->error));
    expect(self, info.world_size == 1 && info.tp_size == 1 && info.dp_size == 1);
    expect(self, strcmp(info.inside_engine, "") == 0 && strcmp(info.between_engine, "") == 0);
    expect_ok(self, ferry_mixed_comm_get_valid_op_list(comm, &ops, &n_ops, &self->error));
    expect(self, n_ops == 1 && ops[0] == FERRY_MIXED_ALL_REDUCE);
    expect_ok(self, ferry_mixed_comm_get_valid_mode_list(comm, &modes, &n_modes, &self->error));
    expect(self, n_modes > 0);
    for (size_t i = 0; i < n_modes; i++) {
        fill(&t, 5);
        expect_ok(self, ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE, &t.from, &t.same,
                                             modes[i], NULL, &self->error));
        expect(self, memcmp(t.in, t.out, sizeof t.in) == 0);
        /* In place there is nothing to do. */
        expect_ok(self, ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE, &t.from, &t.from,
                                             modes[i], NULL, &self->error));
        expect(self, memcmp(t.in, t.out, sizeof t.in) == 0);
    }
    ferry_mixed_comm_destroy(comm);
}

static void test_alone(void **state)
{
    (void)state;
    run_ranks(1, NULL, alone, NULL);
}

static void counts(rank_thread *self)
{
    ferry_mixed_comm_options o    = options_of(self);
    ferry_mixed_counts       c    = FERRY_MIXED_COUNTS_INIT;
    ferry_mixed_comm        *comm = NULL;
    const uint32_t           op   = FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
    tensors                  t;
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    expect_ok(self, ferry_mixed_comm_get_counts(comm, &c, &self->error));
    expect(self, c.calls == 0 && c.steps == 0 && c.waits == 0 && c.between_bytes == 0);
    for (int i = 0; i < 3; i++) {
        fill(&t, self->rank);
        expect_ok(self,
                  ferry_mixed_comm_run(comm, op, &t.from, &t.to, FERRY_MIXED_FUSED_WAITS_MULTICAST,
                                       NULL, &self->error));
    }
    /* One block each: the input is written once, and that of three others is read. */
    expect_ok(self, ferry_mixed_comm_get_counts(comm, &c, &self->error));
    expect(self, c.calls == 3 && c.steps == 3 && c.waits == 3 && c.between_bytes == 0);
    expect(self, c.inside_bytes_written == 3 * sizeof t.in);
    expect(self, c.inside_bytes_read == 9 * sizeof t.in);
    expect_ok(self, ferry_mixed_comm_reset_counts(comm, &self->error));
    expect_ok(self, ferry_mixed_comm_get_counts(comm, &c, &self->error));
    expect(self, c.calls == 0 && c.steps == 0 && c.waits == 0 && c.inside_bytes_written == 0 &&
                     c.inside_bytes_read == 0);
    c.struct_size = 0;
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_get_counts(comm, &c, &self->error));
    ferry_mixed_comm_destroy(comm);
}

static void test_counts(void **state)
{
    (void)state;
    run_ranks(4, NULL, counts, (void *)(uintptr_t)&one_node);
}

/* A handle or a place that is not there; and what is NULL in a call is refused alike on all ranks.
 */
static void nothing(rank_thread *self)
{
    ferry_mixed_comm_options o       = options_of(self);
    ferry_mixed_comm_info    info    = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_counts       c       = FERRY_MIXED_COUNTS_INIT;
    ferry_mixed_timing       timing  = FERRY_MIXED_TIMING_INIT;
    ferry_mixed_comm        *comm    = NULL;
    ferry_request           *request = NULL;
    ferry_error             *e       = &self->error;
    const uint32_t           op      = FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
    const uint32_t          *list;
    uint32_t                 mode;
    size_t                   n;
    tensors                  t;
    fill(&t, self->rank);
    ferry_mixed_comm_destroy(NULL);
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, e));
    for (int with = 0; with < 2; with++) {
        ferry_mixed_comm *h = with ? comm : NULL;
        expect_status(self, FERRY_ERR_MISUSE,
                      ferry_mixed_comm_get_valid_op_list(h, with ? NULL : &list, &n, e));
        expect_status(self, FERRY_ERR_MISUSE,
                      ferry_mixed_comm_get_valid_op_list(h, &list, NULL, e));
        expect_status(self, FERRY_ERR_MISUSE,
                      ferry_mixed_comm_get_valid_mode_list(h, with ? NULL : &list, &n, e));
        expect_status(self, FERRY_ERR_MISUSE,
                      ferry_mixed_comm_get_valid_mode_list(h, &list, NULL, e));
        expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_get_counts(h, with ? NULL : &c, e));
        expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_describe(h, with ? NULL : &info, e));
        expect_status(
            self, FERRY_ERR_MISUSE,
            ferry_mixed_comm_select_autotune_mode(h, op, &t.from, with ? NULL : &mode, e));
        expect(self, ferry_mixed_comm_timing_at(h, 0, with ? NULL : &timing, e) != FERRY_OK);
        expect(self, ferry_mixed_comm_timing_count(h) == 0);
        expect(self, ferry_mixed_comm_save_tuning(h, with ? NULL : "x", e) != FERRY_OK);
        expect_status(
            self, FERRY_ERR_MISUSE,
            ferry_mixed_comm_start(h, op, &t.from, &t.to, 0, NULL, with ? NULL : &request, e));
        expect_status(self, FERRY_ERR_MISUSE,
                      ferry_mixed_comm_run(h, op, NULL, &t.to, 0, NULL, with ? NULL : e));
        expect_status(self, FERRY_ERR_MISUSE,
                      ferry_mixed_comm_run(h, op, &t.from, NULL, 0, NULL, NULL));
    }
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_reset_counts(NULL, e));
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_init_virtual_memory(NULL, e));
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_init_nvshmem(NULL, e));
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_run_autotune(NULL, e));
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_shutdown(NULL, e));
    expect_status(self, FERRY_ERR_INVALID_INPUT,
                  ferry_mixed_comm_select_autotune_mode(comm, op, &t.from, &mode, e));
    expect_status(self, FERRY_ERR_INVALID_INPUT,
                  ferry_mixed_comm_run(comm, op, &t.from, &t.to, FERRY_MIXED_AUTOTUNE, NULL, e));
    expect_says(self, "run_autotune");
    /* All were refused alike, so the handle goes on. */
    expect_ok(self, ferry_mixed_comm_run(comm, op, &t.from, &t.to, 0, NULL, NULL));
    expect(self, is_gathered(&t));
    ferry_mixed_comm_destroy(comm);
}

static void test_nothing(void **state)
{
    (void)state;
    run_ranks(4, NULL, nothing, (void *)(uintptr_t)&one_node);
}

/* No options at all: the world's own node, bf16, and a table; what was left open is filled in. */
static void defaults(rank_thread *self)
{
    ferry_mixed_comm_options o    = FERRY_MIXED_COMM_OPTIONS_INIT;
    ferry_mixed_comm_info    info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_comm        *comm = NULL;
    const uint32_t          *modes;
    size_t                   n;
    expect(self, o.min_block_size == 256 && o.min_num_steps == 4 && o.use_autotune &&
                     o.should_init_nvshmem && o.ib_enable_ibgda && !o.deterministic);
    o.autotune_bytes = 8192;
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    expect_ok(self, ferry_mixed_comm_describe(comm, &info, &self->error));
    expect(self, info.dtype == FERRY_BF16 && info.local_size == 2 && info.inter_size == 1);
    expect(self, info.local_tp_size == 2 && info.local_dp_size == 1 && info.tuned);
    expect_ok(self, ferry_mixed_comm_get_valid_mode_list(comm, &modes, &n, &self->error));
    expect(self, has(modes, n, FERRY_MIXED_AUTOTUNE));
    expect(self, ferry_mixed_comm_timing_count(comm) > 0);
    ferry_mixed_comm_destroy(comm);
}

static void test_defaults(void **state)
{
    (void)state;
    run_ranks(2, NULL, defaults, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_describe_one_node),
        cmocka_unit_test(test_describe_two_nodes),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_init_one_by_one),
        cmocka_unit_test(test_shutdown),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_destroy_under_way),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
