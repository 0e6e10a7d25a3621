/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The small things of a mixed-collective handle: what it says of itself, and what it refuses. */
#include "mixed_handle.h"
#include "mixed_stalls.h"

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
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_comm *comm = NULL;
    expect_ok(self, open_handle(self, &comm));
    expect_ok(self, ferry_mixed_comm_get_info(comm, &info, &self->error));
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
    expect(self, info.multicast == (self->context != &by_puts));
    ferry_mixed_comm_destroy(comm);
}

static void test_describe_one_node(void **state)
{
    (void)state;
    run_shape(&one_node, describe_one_node);
    run_shape(&by_puts, describe_one_node);
}

static void describe_two_nodes(rank_thread *self)
{
    ferry_mixed_comm_options o = mixed_options(self, self->context);
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_comm *comm = NULL;
    o.deterministic = true;
    o.grid_size = 2;
    o.staging_bytes = 1 << 20;
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    expect_ok(self, ferry_mixed_comm_get_info(comm, &info, &self->error));
    expect(self, info.local_rank == self->rank % 2 && info.inter_rank == self->rank / 2);
    expect(self, info.dp_rank == self->rank / 2 && info.deterministic && info.grid_size == 2);
    expect(self, info.staging_bytes > 0 && info.staging_bytes <= 1 << 20);
    expect(self, strstr(info.between_engine, "inproc") != NULL);
    expect(self, strstr(info.between_note, "stands in for NVSHMEM") != NULL);
    info.struct_size = 8;
    ferry_status status = ferry_mixed_comm_get_info(comm, &info, &self->error);
    expect(self, status == FERRY_OK || status == FERRY_ERR_MISUSE);
    info.struct_size = 0;
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_get_info(comm, &info, &self->error));
    ferry_mixed_comm_destroy(comm);
}

static void test_describe_two_nodes(void **state)
{
    (void)state;
    run_shape(&two_nodes, describe_two_nodes);
}

/* The lists before memory is opened, and after: by puts there is no multicast. */
/* No more numbers than the caller has room for; how many there are is said all the same. */
static void short_list(rank_thread *self, const ferry_mixed_comm *comm, size_t n_modes)
{
    uint32_t modes[2] = {77, 77};
    size_t n = 0;
    expect_ok(self, ferry_mixed_comm_get_valid_mode_list(comm, modes, 1, &n, &self->error));
    expect(self, n == n_modes && modes[0] != 77 && modes[1] == 77);
}

static void lists(rank_thread *self)
{
    const mixed_shape *s = self->context;
    ferry_mixed_comm_options o = mixed_options(self, self->context);
    ferry_mixed_comm *comm = NULL;
    uint32_t ops[FERRY_MIXED_N_OPS], modes[FERRY_MIXED_N_MODES];
    size_t n_ops, n_modes;
    o.only_construct = true;
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    for (int opened = 0; opened < 2; opened++) {
        bool multicast = opened == 0 || s->engines == NULL;
        expect_ok(self, ferry_mixed_comm_get_valid_op_list(comm, ops, FERRY_MIXED_N_OPS, &n_ops,
                                                           &self->error));
        expect(self, n_ops == 2 && has(ops, n_ops, FERRY_MIXED_ALL_REDUCE_ALL_GATHER) &&
                         has(ops, n_ops, FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE));
        expect_ok(self, ferry_mixed_comm_get_valid_mode_list(comm, modes, FERRY_MIXED_N_MODES,
                                                             &n_modes, &self->error));
        expect(self, n_modes == (multicast ? 6 : 4));
        short_list(self, comm, n_modes);
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
    run_shape(&one_node, lists);
    run_shape(&by_puts, lists);
}

/* The init calls in both orders and twice; run asks for both where there are nodes. */
static void init_one_by_one(rank_thread *self)
{
    for (int backwards = 0; backwards < 2; backwards++) {
        ferry_mixed_comm_options o = mixed_options(self, self->context);
        ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
        ferry_mixed_comm *comm = NULL;
        tensors t;
        ferry_status (*first)(ferry_mixed_comm *, ferry_error *) =
            backwards ? ferry_mixed_comm_init_nvshmem : ferry_mixed_comm_init_virtual_memory;
        ferry_status (*second)(ferry_mixed_comm *, ferry_error *) =
            backwards ? ferry_mixed_comm_init_virtual_memory : ferry_mixed_comm_init_nvshmem;
        o.only_construct = true;
        expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
        expect_ok(self, ferry_mixed_comm_get_info(comm, &info, &self->error));
        expect(self, !info.virtual_memory && !info.between_nodes && !info.multicast);
        expect(self, strcmp(info.inside_engine, "") == 0 && strcmp(info.between_engine, "") == 0);
        for (int half = 0; half < 2; half++) {
            fill(&t, self->rank);
            expect_status(self, FERRY_ERR_MISUSE,
                          run_gather(comm, &t, FERRY_MIXED_MODE_DEFAULT, &self->error));
            expect_says(self, "init_nvshmem");
            expect_ok(self, (half ? second : first)(comm, &self->error));
            expect_ok(self, first(comm, &self->error));
        }
        expect_ok(self, second(comm, &self->error));
        expect_ok(self, run_gather(comm, &t, FERRY_MIXED_MODE_DEFAULT, &self->error));
        expect(self, is_gathered(&t));
        ferry_mixed_comm_destroy(comm);
    }
}

static void test_init_one_by_one(void **state)
{
    (void)state;
    run_shape(&two_nodes, init_one_by_one);
}

static void shut_down(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    ferry_request *request = NULL;
    tensors t;
    fill(&t, self->rank);
    expect_ok(self, open_handle(self, &comm));
    expect_ok(self, ferry_mixed_comm_shutdown(comm, &self->error));
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_shutdown(comm, &self->error));
    expect_status(self, FERRY_ERR_MISUSE,
                  run_gather(comm, &t, FERRY_MIXED_MODE_DEFAULT, &self->error));
    expect_says(self, "shutdown");
    expect_status(self, FERRY_ERR_MISUSE, start_gather(comm, &t, &request, &self->error));
    expect(self, request == NULL);
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_init_nvshmem(comm, &self->error));
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_init_virtual_memory(comm, &self->error));
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_run_autotune(comm, &self->error));
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_counts counts = FERRY_MIXED_COUNTS_INIT;
    expect_ok(self, ferry_mixed_comm_get_info(comm, &info, &self->error));
    expect(self, !info.virtual_memory && !info.between_nodes);
    expect_ok(self, ferry_mixed_comm_get_counts(comm, &counts, &self->error));
    expect_ok(self, ferry_mixed_comm_reset_counts(comm, &self->error));
    ferry_mixed_comm_destroy(comm);
}

static void test_shutdown(void **state)
{
    (void)state;
    run_shape(&one_node, shut_down);
    run_shape(&two_nodes, shut_down);
}

/*
 * Refusals
 */

static void *call_busy(void *context)
{
    tensors t;
    ferry_error error;
    ferry_status status;
    fill(&t, 0);
    status = ferry_mixed_comm_run(context, FERRY_MIXED_ALL_REDUCE, &t.from, &t.same,
                                  FERRY_MIXED_MODE_DEFAULT, NULL, &error);
    return status == FERRY_ERR_MISUSE && strstr(error.message, "another thread") != NULL ? context
                                                                                         : NULL;
}

typedef struct busy_call {
    ferry_mixed_comm *comm;
    void *seen;
} busy_call;

/* Within a call, between two of its actions. */
static void call_from_a_second_thread(void *context, const fy_mix_lane *lane)
{
    pthread_t thread;
    busy_call *b = context;
    (void)lane;
    if (b->seen == NULL && pthread_create(&thread, NULL, call_busy, b->comm) == 0) {
        pthread_join(thread, &b->seen);
    }
}

static void busy(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    busy_call b = {NULL, NULL};
    stalls s = {.before = call_from_a_second_thread, .context = &b};
    tensors t;
    fill(&t, self->rank);
    expect_ok(self, open_handle(self, &comm));
    b.comm = comm;
    stall_by(comm, &s);
    expect_ok(self, ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE, &t.from, &t.same,
                                         FERRY_MIXED_MODE_DEFAULT, NULL, &self->error));
    expect(self, b.seen == comm);
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
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_comm *comm = NULL;
    uint32_t ops[FERRY_MIXED_N_OPS], modes[FERRY_MIXED_N_MODES];
    size_t n_ops, n_modes;
    tensors t;
    expect_ok(self, open_handle(self, &comm));
    expect_ok(self, ferry_mixed_comm_get_info(comm, &info, &self->error));
    expect(self, info.world_size == 1 && info.tp_size == 1 && info.dp_size == 1);
    expect(self, strcmp(info.inside_engine, "") == 0 && strcmp(info.between_engine, "") == 0);
    expect_ok(self, ferry_mixed_comm_get_valid_op_list(comm, ops, FERRY_MIXED_N_OPS, &n_ops,
                                                       &self->error));
    expect(self, n_ops == 1 && ops[0] == FERRY_MIXED_ALL_REDUCE);
    expect_ok(self, ferry_mixed_comm_get_valid_mode_list(comm, modes, FERRY_MIXED_N_MODES, &n_modes,
                                                         &self->error));
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
    ferry_mixed_counts c = FERRY_MIXED_COUNTS_INIT;
    ferry_mixed_comm *comm = NULL;
    tensors t;
    expect_ok(self, open_handle(self, &comm));
    expect_ok(self, ferry_mixed_comm_get_counts(comm, &c, &self->error));
    expect(self, c.n_calls == 0 && c.n_steps == 0 && c.n_waits == 0 && c.between_bytes == 0);
    for (int i = 0; i < 3; i++) {
        fill(&t, self->rank);
        expect_ok(self, run_gather(comm, &t, FERRY_MIXED_FUSED_WAITS_MULTICAST, &self->error));
    }
    /* One block each: the input is written once, and that of three others is read. */
    expect_ok(self, ferry_mixed_comm_get_counts(comm, &c, &self->error));
    expect(self, c.n_calls == 3 && c.n_steps == 3 && c.n_waits == 3 && c.between_bytes == 0);
    expect(self, c.inside_bytes_written == 3 * sizeof t.in);
    expect(self, c.inside_bytes_read == 9 * sizeof t.in);
    expect_ok(self, ferry_mixed_comm_reset_counts(comm, &self->error));
    expect_ok(self, ferry_mixed_comm_get_counts(comm, &c, &self->error));
    expect(self, c.n_calls == 0 && c.n_steps == 0 && c.n_waits == 0 &&
                     c.inside_bytes_written == 0 && c.inside_bytes_read == 0);
    c.struct_size = 0;
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_get_counts(comm, &c, &self->error));
    ferry_mixed_comm_destroy(comm);
}

static void test_counts(void **state)
{
    (void)state;
    run_shape(&one_node, counts);
}

static void refuse_sketch(const ferry_mixed_comm_options *o, ferry_status wanted, const char *says)
{
    ferry_mixed_sketch *sketch = NULL;
    ferry_error error = {0};
    check_status(says, wanted,
                 ferry_mixed_sketch_create(o, FERRY_MIXED_REACH_IN_PLACE, &sketch, &error), &error);
    check_says(says, says, &error);
    assert_null(sketch);
}

static void test_sketch_refuses(void **state)
{
    (void)state;
    ferry_mixed_sketch *sketch = NULL;
    ferry_error error = {0};
    ferry_mixed_comm_options o = FERRY_MIXED_COMM_OPTIONS_INIT;
    refuse_sketch(&o, FERRY_ERR_INVALID_INPUT, "size");
    o.world_size = 4;
    o.local_size = 4;
    o.inter_size = 1;
    o.local_tp_size = 3;
    refuse_sketch(&o, FERRY_ERR_INVALID_INPUT, "3");
    o.local_tp_size = 2;
    o.dtype = FERRY_U8;
    refuse_sketch(&o, FERRY_ERR_UNSUPPORTED, "u8");
    o.dtype = FERRY_F32;
    o.min_num_steps = 0;
    refuse_sketch(&o, FERRY_ERR_INVALID_INPUT, "min_num_steps");
    o = (ferry_mixed_comm_options)FERRY_MIXED_COMM_OPTIONS_INIT;
    o.struct_size = 3;
    refuse_sketch(&o, FERRY_ERR_MISUSE, "struct_size");
    assert_int_equal(ferry_mixed_sketch_create(&o, FERRY_MIXED_REACH_IN_PLACE, NULL, NULL),
                     FERRY_ERR_MISUSE);
    o = (ferry_mixed_comm_options)FERRY_MIXED_COMM_OPTIONS_INIT;
    check_status("reach 3", FERRY_ERR_INVALID_INPUT,
                 ferry_mixed_sketch_create(&o, FERRY_MIXED_REACH_OBJECTS + 1, &sketch, &error),
                 &error);
    check_says("reach 3", "reach 3", &error);
    ferry_mixed_sketch_destroy(NULL);
}

/* Two nodes of two ranks, which sum in fp32: a rank sends its half to the other node, and reads
 * both. */
static void test_sketch_of_partial_sums(void **state)
{
    (void)state;
    ferry_mixed_comm_options o = FERRY_MIXED_COMM_OPTIONS_INIT;
    ferry_mixed_sketch *sketch = NULL;
    ferry_mixed_work w = FERRY_MIXED_WORK_INIT;
    ferry_error error;
    const uint64_t count = 4096, half = count / 2 * sizeof(float);
    o.world_size = 4;
    o.local_size = o.inter_size = 2;
    o.dtype = FERRY_BF16;
    o.deterministic = true;
    must(ferry_mixed_sketch_create(&o, FERRY_MIXED_REACH_IN_PLACE, &sketch, &error), &error);
    must(ferry_mixed_sketch_count(sketch, FERRY_MIXED_ALL_REDUCE,
                                  FERRY_MIXED_FUSED_BYTES1_MULTICAST, count, &w, &error),
         &error);
    assert_true(w.between_bytes == half && w.n_between_waits == 1 && w.n_inside_waits == 2);
    assert_true(w.own_bytes_written == half && w.own_bytes_read == 2 * half);
    ferry_mixed_sketch_destroy(sketch);
}

/* A piece of a sketch as this rank's own memory has it, and what is not there. */
static void test_sketch(void **state)
{
    (void)state;
    ferry_mixed_comm_options o = FERRY_MIXED_COMM_OPTIONS_INIT;
    ferry_mixed_sketch *sketch = NULL;
    ferry_mixed_work w = FERRY_MIXED_WORK_INIT;
    ferry_error error;
    uint32_t list[FERRY_MIXED_N_MODES];
    size_t n = 0;
    const uint32_t op = FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
    const uint32_t waits = FERRY_MIXED_FUSED_WAITS_MULTICAST;
    o.world_size = o.local_size = 4;
    o.inter_size = 1;
    o.local_tp_size = 2;
    o.grid_size = 2;
    o.dtype = FERRY_F32;
    must(ferry_mixed_sketch_create(&o, FERRY_MIXED_REACH_IN_PLACE, &sketch, &error), &error);
    must(ferry_mixed_sketch_get_valid_op_list(sketch, list, 1, &n, &error), &error);
    assert_true(n == 2 && list[0] == op);
    must(ferry_mixed_sketch_get_valid_mode_list(sketch, list, FERRY_MIXED_N_MODES, &n, &error),
         &error);
    assert_true(n == 6 && list[0] == waits && list[5] == FERRY_MIXED_BASE_TP_DP);
    /* Two lanes of whole blocks and a rest: the input once, and each chunk of the output. */
    const uint64_t count = 1000 * 1000 + 7, bytes = 4 * count;
    must(ferry_mixed_sketch_count(sketch, op, waits, count, &w, &error), &error);
    assert_true(w.n_lanes == 2 && w.is_pipelined && w.n_steps > 4);
    assert_true(w.n_inside_waits == 1 && w.n_between_waits == 0 && w.between_bytes == 0);
    assert_true(w.inside_bytes_written == bytes && w.inside_bytes_read == 3 * bytes);
    assert_true(w.tensor_bytes_written == 2 * bytes && w.tensor_bytes_read == 2 * bytes);
    assert_true(w.own_bytes_written == 0 && w.own_bytes_read == 0);
    assert_int_equal(ferry_mixed_sketch_count(sketch, op, waits, 0, &w, &error),
                     FERRY_ERR_INVALID_INPUT);
    assert_int_equal(ferry_mixed_sketch_count(sketch, op, waits, UINT64_MAX, &w, &error),
                     FERRY_ERR_INVALID_INPUT);
    assert_int_equal(ferry_mixed_sketch_count(sketch, op, FERRY_MIXED_AUTOTUNE, 1, &w, &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("mode", "autotune", &error);
    assert_int_equal(ferry_mixed_sketch_count(sketch, 99, waits, 1, &w, &error),
                     FERRY_ERR_INVALID_INPUT);
    assert_int_equal(ferry_mixed_sketch_count(NULL, op, waits, 1, &w, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_mixed_sketch_count(sketch, op, waits, 1, NULL, &error),
                     FERRY_ERR_MISUSE);
    assert_int_equal(ferry_mixed_sketch_get_valid_op_list(sketch, list, 1, NULL, &error),
                     FERRY_ERR_MISUSE);
    assert_int_equal(ferry_mixed_sketch_get_valid_mode_list(NULL, list, 1, &n, &error),
                     FERRY_ERR_MISUSE);
    ferry_mixed_sketch_destroy(sketch);
}

/* A handle or a place that is not there; and what is NULL in a call is refused alike on all ranks.
 */
static void nothing(rank_thread *self)
{
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_counts c = FERRY_MIXED_COUNTS_INIT;
    ferry_mixed_timing timing = FERRY_MIXED_TIMING_INIT;
    ferry_mixed_comm *comm = NULL;
    ferry_request *request = NULL;
    ferry_error *e = &self->error;
    const uint32_t op = FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
    uint32_t list[FERRY_MIXED_N_MODES];
    uint32_t mode;
    size_t n;
    tensors t;
    fill(&t, self->rank);
    ferry_mixed_comm_destroy(NULL);
    expect_ok(self, open_handle(self, &comm));
    for (int with = 0; with < 2; with++) {
        ferry_mixed_comm *h = with ? comm : NULL;
        expect_status(
            self, FERRY_ERR_MISUSE,
            ferry_mixed_comm_get_valid_op_list(h, with ? NULL : list, FERRY_MIXED_N_OPS, &n, e));
        expect_status(self, FERRY_ERR_MISUSE,
                      ferry_mixed_comm_get_valid_op_list(h, list, FERRY_MIXED_N_OPS, NULL, e));
        expect_status(self, FERRY_ERR_MISUSE,
                      ferry_mixed_comm_get_valid_mode_list(h, with ? NULL : list,
                                                           FERRY_MIXED_N_MODES, &n, e));
        expect_status(self, FERRY_ERR_MISUSE,
                      ferry_mixed_comm_get_valid_mode_list(h, list, FERRY_MIXED_N_MODES, NULL, e));
        expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_get_counts(h, with ? NULL : &c, e));
        expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_get_info(h, with ? NULL : &info, e));
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
    run_shape(&one_node, nothing);
}

/* No options at all: the world's own node, bf16, and a table; what was left open is filled in. */
static void defaults(rank_thread *self)
{
    ferry_mixed_comm_options o = FERRY_MIXED_COMM_OPTIONS_INIT;
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_comm *comm = NULL;
    uint32_t modes[FERRY_MIXED_N_MODES];
    size_t n;
    expect(self, o.min_block_size == 256 && o.min_num_steps == 4 && o.use_autotune &&
                     o.should_init_nvshmem && o.ib_enable_ibgda && !o.deterministic);
    o.autotune_bytes = 8192;
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    expect_ok(self, ferry_mixed_comm_get_info(comm, &info, &self->error));
    expect(self, info.dtype == FERRY_BF16 && info.local_size == 2 && info.inter_size == 1);
    expect(self, info.local_tp_size == 2 && info.local_dp_size == 1 && info.tuned);
    expect_ok(self, ferry_mixed_comm_get_valid_mode_list(comm, modes, FERRY_MIXED_N_MODES, &n,
                                                         &self->error));
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
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_sketch_refuses),
        cmocka_unit_test(test_sketch),
        cmocka_unit_test(test_sketch_of_partial_sums),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
