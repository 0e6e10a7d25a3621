/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The mixed collectives, when memory runs out: one rank's refusal must become that of all. */
#include "rank_runs.h"

#include <ferry/mixed_comm.h>

#include <stdio.h>
#include <stdlib.h>

enum { COLUMNS = 300, TRY_AGAIN_EVERY = 7 };

typedef struct scenario {
    uint32_t local_size, local_tp, inter_tp;
    const char *engines;
    bool autotune, only_construct, requests;
    const char *load, *save; /* tables */
} scenario;

static char table_path[128];

static ferry_mixed_comm_options options_of(const rank_run *self)
{
    const scenario *s = self->plan;
    ferry_mixed_comm_options o = FERRY_MIXED_COMM_OPTIONS_INIT;
    o.world_rank = self->rank;
    o.world_size = RUN_RANKS;
    o.local_size = s->local_size;
    o.local_rank = self->rank % s->local_size;
    o.inter_size = RUN_RANKS / s->local_size;
    o.inter_rank = self->rank / s->local_size;
    o.local_tp_size = s->local_tp;
    o.inter_tp_size = s->inter_tp;
    o.dtype = FERRY_F32;
    o.grid_size = s->requests ? 2 : 1; /* a team of threads, or none */
    o.max_block_size = o.min_block_size = 1;
    o.engines = s->engines;
    o.use_autotune = s->autotune;
    o.autotune_bytes = 8192;
    o.only_construct = s->only_construct;
    o.tune_file = s->load;
    return o;
}

/* The result of an operation of three ranks, all tensor-parallel or all data-parallel. */
static bool is_right(uint32_t op, uint32_t rank, const float *out, bool gathered)
{
    for (uint32_t i = 0; i < (gathered ? RUN_RANKS * COLUMNS : COLUMNS); i++) {
        float wanted = 0;
        uint32_t at = op == FERRY_MIXED_REDUCE_SCATTER ? i + rank * COLUMNS : i;
        for (uint32_t other = 0; other < RUN_RANKS; other++) {
            if (!gathered) {
                wanted += (float)(other * 1000 + at);
            } else if (other == i / COLUMNS) {
                wanted = (float)(other * 1000 + i % COLUMNS);
            }
        }
        if (out[i] != wanted) {
            return false;
        }
    }
    return true;
}

static ferry_status call(ferry_mixed_comm *comm, rank_run *self, uint32_t op, uint32_t mode)
{
    static float ins[RUN_RANKS][RUN_RANKS * COLUMNS], outs[RUN_RANKS][RUN_RANKS * COLUMNS];
    const scenario *s = self->plan;
    float *in = ins[self->rank], *out = outs[self->rank];
    ferry_request *request = NULL;
    bool scatters = op == FERRY_MIXED_REDUCE_SCATTER;
    bool gathers = op == FERRY_MIXED_ALL_GATHER;
    uint32_t n_in = scatters ? RUN_RANKS : 1, n_out = gathers ? RUN_RANKS : 1;
    ferry_mixed_tensor from = {ferry_buffer_of(in, n_in * COLUMNS * sizeof *in), n_in, COLUMNS};
    ferry_mixed_tensor to = {ferry_buffer_of(out, n_out * COLUMNS * sizeof *out), n_out, COLUMNS};
    for (uint32_t i = 0; i < n_in * COLUMNS; i++) {
        in[i] = (float)(self->rank * 1000 + i);
    }
    memset(outs[self->rank], 0xff, sizeof outs[self->rank]);
    ferry_status status;
    if (s->requests) {
        status = ferry_mixed_comm_start(comm, op, &from, &to, mode, NULL, &request, &self->error);
        if (status == FERRY_OK) {
            status = ferry_request_wait(request, &self->error);
        }
        ferry_request_destroy(request);
    } else {
        status = ferry_mixed_comm_run(comm, op, &from, &to, mode, NULL, &self->error);
    }
    if (status == FERRY_OK && !is_right(op, self->rank, out, gathers)) {
        self->wrong = "a wrong result";
    }
    return status;
}

static ferry_status call_all(ferry_mixed_comm *comm, rank_run *self)
{
    uint32_t ops[FERRY_MIXED_N_OPS], modes[FERRY_MIXED_N_MODES];
    size_t n_ops, n_modes;
    ferry_status status =
        ferry_mixed_comm_get_valid_op_list(comm, ops, FERRY_MIXED_N_OPS, &n_ops, &self->error);
    if (status == FERRY_OK) {
        status = ferry_mixed_comm_get_valid_mode_list(comm, modes, FERRY_MIXED_N_MODES, &n_modes,
                                                      &self->error);
    }
    for (size_t i = 0; status == FERRY_OK && i < n_ops * n_modes; i++) {
        status = call(comm, self, ops[i / n_modes], modes[i % n_modes]);
    }
    return status;
}

static ferry_status open_and_call(rank_run *self, ferry_mixed_comm **comm_out)
{
    const scenario *s = self->plan;
    ferry_mixed_comm_options o = options_of(self);
    ferry_mixed_comm *comm = UNTOUCHED;
    ferry_status status = ferry_mixed_comm_create(self->world, &o, &comm, &self->error);
    if (status != FERRY_OK) {
        self->wrong = comm != UNTOUCHED ? "a handle after a failure" : NULL;
        return status;
    }
    *comm_out = comm;
    if (s->only_construct) {
        status = ferry_mixed_comm_init_nvshmem(comm, &self->error);
        if (status == FERRY_OK) {
            status = ferry_mixed_comm_init_virtual_memory(comm, &self->error);
        }
    }
    if (status == FERRY_OK) {
        status = call_all(comm, self);
    }
    if (status == FERRY_OK && s->save != NULL && self->rank == 0) {
        status = ferry_mixed_comm_save_tuning(comm, s->save, &self->error);
    }
    return status;
}

/*
 * Without an abort by who fails first: the others must learn of it all the same, and where the
 * world is whole a second try must succeed.
 */
static ferry_status run(rank_run *self)
{
    ferry_mixed_comm *comm = NULL;
    ferry_status status = open_and_call(self, &comm);
    if (status == FERRY_ERR_TIMEOUT || status == FERRY_ERR_ABORTED) {
        self->wrong = "a rank was not told";
    }
    ferry_mixed_comm_destroy(comm);
    if (status == FERRY_OK) {
        return status;
    }
    static uint32_t n_failed[RUN_RANKS]; /* the same on all ranks: each fails where one does */
    if (++n_failed[self->rank] % TRY_AGAIN_EVERY != 0) {
        return status;
    }
    ferry_error error;
    bool mine = failing_mine;
    failing_mine = false;
    if (ferry_world_barrier(self->world, &error) == FERRY_OK) {
        rank_run again = *self;
        comm = NULL;
        if (open_and_call(&again, &comm) != FERRY_OK) {
            print_error("again: %s\n", again.error.message);
            self->wrong = "a second try failed";
        }
        ferry_mixed_comm_destroy(comm);
        self->wrong = again.wrong != NULL ? again.wrong : self->wrong;
        if (ferry_world_barrier(self->world, &error) != FERRY_OK) {
            self->wrong = "the world broke in the second try";
        }
    }
    failing_mine = mine;
    return status;
}

static void check_scenario(const char *name, const scenario *s, bool alone, int64_t least)
{
    rank_script script = {.name = name, .plan = s, .run = run, .alone = alone};
    failing_by_thread = true;
    run_script(&script, least);
    failing_by_thread = false;
}

static void test_inside(void **state)
{
    (void)state;
    check_scenario("inside", &(scenario){.local_size = 3, .local_tp = 3}, false, 30);
}

static void test_between(void **state)
{
    (void)state;
    check_scenario(
        "between",
        &(scenario){.local_size = 1, .local_tp = 1, .inter_tp = 3, .only_construct = true}, false,
        30);
}

static void test_by_puts(void **state)
{
    (void)state;
    check_scenario(
        "by puts",
        &(scenario){.local_size = 3, .local_tp = 3, .engines = "strict:inproc", .requests = true},
        false, 30);
}

/* A table that is measured and saved, and one that is read. */
static void test_tables(void **state)
{
    const scenario measured = {
        .local_size = 3, .local_tp = 3, .autotune = true, .save = table_path};
    const scenario saved = {.local_size = 3, .local_tp = 3, .autotune = true, .load = table_path};
    (void)state;
    check_scenario("autotune", &measured, true, 30);
    assert_int_equal(access(table_path, R_OK), 0);
    check_scenario("a saved table", &saved, false, 30);
    unlink(table_path);
}

/* A world of one has nobody to agree with. */
static void test_alone(void **state)
{
    (void)state;
    failing_mine = true;
    for (int for_good = 0; for_good < 2; for_good++) {
        bool refused = true;
        for (int64_t n = 0; refused; n++) {
            ferry_mixed_comm_options o = FERRY_MIXED_COMM_OPTIONS_INIT;
            ferry_mixed_comm *comm = UNTOUCHED;
            ferry_world *world = NULL;
            ferry_error error = {""};
            int64_t live = failing_live;
            o.use_autotune = false;
            must(ferry_world_create_threads(1, NULL, &world, &error), &error);
            failing_start(n, for_good == 1);
            ferry_status status = ferry_mixed_comm_create(world, &o, &comm, &error);
            refused = failing_stop();
            check_at(status == (refused ? FERRY_ERR_NO_MEMORY : FERRY_OK) ||
                         (status == FERRY_OK && for_good == 0),
                     "allocation %lld: %s", (long long)n, ferry_status_name(status));
            check_at((comm == UNTOUCHED) == (status != FERRY_OK), "allocation %lld", (long long)n);
            ferry_mixed_comm_destroy(status == FERRY_OK ? comm : NULL);
            ferry_world_destroy(world);
            check_at(failing_live == live, "allocation %lld: %lld blocks are kept", (long long)n,
                     (long long)(failing_live - live));
            check_at(refused || n > 10, "allocation %lld", (long long)n);
        }
    }
    failing_mine = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inside),  cmocka_unit_test(test_between),
        cmocka_unit_test(test_by_puts), cmocka_unit_test(test_tables),
        cmocka_unit_test(test_alone),
    };
    failing_init();
    snprintf(table_path, sizeof table_path, "/tmp/ferry_memory_mixed_%ld.json", (long)getpid());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
