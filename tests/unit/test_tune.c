/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Autotune: what ranks measure, choose, save and read together. */
#include "mixed_stalls.h"
#include "rank_threads.h"
#include "tune_tables.h"

enum { SMALL = 32 << 10, N_SIZES = 3 }; /* pieces of 8, 16 and 32 KiB */

static ferry_mixed_comm_options options_of(const rank_thread *self, uint32_t tp, uint32_t n_nodes)
{
    ferry_mixed_comm_options o = FERRY_MIXED_COMM_OPTIONS_INIT;
    o.dtype = FERRY_F32;
    o.world_rank = self->rank;
    o.world_size = self->n_ranks;
    o.local_size = self->n_ranks / n_nodes;
    o.local_rank = self->rank % o.local_size;
    o.inter_size = n_nodes;
    o.inter_rank = self->rank / o.local_size;
    o.local_tp_size = tp;
    o.autotune_bytes = SMALL;
    return o;
}

/* Every measured size has one choice; a mode that is left out stays so. */
static void check_timings(rank_thread *self, const ferry_mixed_comm *comm, size_t n_modes)
{
    size_t n = ferry_mixed_comm_timing_count(comm), n_chosen = 0;
    expect(self, n == comm->n_ops * n_modes * N_SIZES);
    for (size_t i = 0; i < n; i++) {
        ferry_mixed_timing t = FERRY_MIXED_TIMING_INIT, last = FERRY_MIXED_TIMING_INIT;
        size_t in_op = i % (n_modes * N_SIZES);
        expect_ok(self, ferry_mixed_comm_timing_at(comm, i, &t, &self->error));
        expect(self, t.op == comm->ops[i / (n_modes * N_SIZES)]);
        expect(self, t.mode == comm->modes[i % n_modes]);
        expect(self, t.bytes == (uint64_t)8192 << in_op / n_modes);
        expect(self, t.block_lines <= comm->program.limits.most_lines);
        expect(self, t.seconds > 0 || !t.chosen);
        if (in_op >= n_modes) {
            expect_ok(self, ferry_mixed_comm_timing_at(comm, i - n_modes, &last, &self->error));
            expect(self, last.seconds > 0 || t.seconds == 0);
        } else {
            expect(self, t.seconds > 0);
        }
        n_chosen += t.chosen;
        if (i % n_modes == n_modes - 1) {
            expect(self, n_chosen == 1);
            n_chosen = 0;
        }
    }
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_mixed_comm_timing_at(comm, n, &(ferry_mixed_timing)FERRY_MIXED_TIMING_INIT,
                                             &self->error));
}

/* Bit for bit what the other ranks have. */
static void check_alike(rank_thread *self, const ferry_mixed_comm *comm)
{
    size_t bytes = comm->tuning->n * sizeof *comm->tuning->timings;
    const void *all = NULL;
    expect_ok(self, ferry_world_all_gather(self->world, comm->tuning->timings, bytes, &all,
                                           &self->error));
    for (uint32_t rank = 0; rank < self->n_ranks; rank++) {
        expect(self, memcmp((const char *)all + rank * bytes, comm->tuning->timings, bytes) == 0);
    }
}

/* A gather of pieces of as many bytes, in the mode that the table has for them. */
static void check_run(rank_thread *self, ferry_mixed_comm *comm, uint64_t bytes)
{
    uint64_t n = bytes / sizeof(float);
    float *in = calloc(n, sizeof *in);
    float *out = calloc(2 * n, sizeof *out);
    ferry_mixed_tensor ti = {ferry_buffer_of(in, bytes), 1, n};
    ferry_mixed_tensor to = {ferry_buffer_of(out, 2 * bytes), 2, n};
    uint32_t mode = 0;
    expect_ok(self, ferry_mixed_comm_select_autotune_mode(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER,
                                                          &ti, &mode, &self->error));
    for (size_t i = 0; i < comm->tuning->n; i++) {
        const ferry_mixed_timing *t = &comm->tuning->timings[i];
        if (t->op == FERRY_MIXED_ALL_REDUCE_ALL_GATHER && t->bytes == bytes && t->chosen) {
            expect(self, mode == t->mode);
        }
    }
    for (uint64_t i = 0; i < n; i++) {
        in[i] = (float)(self->rank + i % 7);
    }
    expect_ok(self, ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, &ti, &to,
                                         FERRY_MIXED_AUTOTUNE, NULL, &self->error));
    for (uint64_t i = 0; i < n; i++) { /* ranks 0 and 1, then 2 and 3 */
        expect(self, out[i] == (float)(1 + 2 * (i % 7)));
        expect(self, out[n + i] == (float)(5 + 2 * (i % 7)));
    }
    free(in);
    free(out);
}

static void run_tuned(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL, *other;
    ferry_mixed_comm_options o = options_of(self, 2, 1);
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    uint32_t modes[FERRY_MIXED_N_MODES];
    size_t n_modes;
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    expect_ok(self, ferry_mixed_comm_get_valid_mode_list(comm, modes, FERRY_MIXED_N_MODES, &n_modes,
                                                         &self->error));
    expect(self, n_modes == 7 && modes[6] == FERRY_MIXED_AUTOTUNE);
    check_timings(self, comm, 6);
    check_alike(self, comm);
    check_run(self, comm, 8192);
    check_run(self, comm, SMALL);
    check_run(self, comm, 4);
    check_run(self, comm, 4 * SMALL + 4);
    /* Again: the table is replaced, the mode does not come twice. */
    expect_ok(self, ferry_mixed_comm_run_autotune(comm, &self->error));
    expect_ok(self, ferry_mixed_comm_get_valid_mode_list(comm, modes, FERRY_MIXED_N_MODES, &n_modes,
                                                         &self->error));
    expect(self, n_modes == 7);
    check_timings(self, comm, 6);
    check_alike(self, comm);
    /* Saved by one rank, and read by all of another handle. */
    if (self->rank == 0) {
        expect_ok(self, ferry_mixed_comm_save_tuning(comm, path_of("d.json"), &self->error));
    }
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    o.tune_file = path_of("d.json");
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &other, &self->error));
    expect(self, other->tuning->n == comm->tuning->n);
    expect(self, memcmp(other->tuning->timings, comm->tuning->timings,
                        comm->tuning->n * sizeof *comm->tuning->timings) == 0);
    expect_ok(self, ferry_mixed_comm_get_valid_mode_list(other, modes, FERRY_MIXED_N_MODES,
                                                         &n_modes, &self->error));
    expect(self, n_modes == 7 && modes[6] == FERRY_MIXED_AUTOTUNE);
    expect_ok(self, ferry_mixed_comm_get_info(other, &info, &self->error));
    expect(self, info.tuned);
    check_run(self, other, SMALL);
    ferry_mixed_comm_destroy(other);
    ferry_mixed_comm_destroy(comm);
}

/* Nodes that are faked, and ranks that are alone: whatever there is gets times. */
static void run_other(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    uint32_t n_nodes = (uint32_t)(uintptr_t)self->context;
    ferry_mixed_comm_options o = options_of(self, 0, n_nodes);
    o.deterministic = n_nodes > 1;
    o.autotune_bytes = n_nodes > 1 ? SMALL : 2 * SMALL - 1;
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    expect(self, fy_comm_has_mode(comm, FERRY_MIXED_AUTOTUNE));
    check_timings(self, comm, comm->n_modes - 1);
    check_alike(self, comm);
    ferry_mixed_comm_destroy(comm);
}

static void test_ranks(void **state)
{
    (void)state;
    run_ranks(4, NULL, run_tuned, NULL);
    run_ranks(4, NULL, run_other, (void *)(uintptr_t)2);
    run_ranks(3, NULL, run_other, (void *)(uintptr_t)1);
    run_ranks(1, NULL, run_other, (void *)(uintptr_t)1);
}

/*
 * What is chosen, by a clock that goes on with each call of rank 1 by what the test says that it
 * takes. One rank is enough: the slowest counts, on both.
 */
typedef struct times {
    int64_t (*ns_of)(struct times *times, const fy_mix_call *call); /* asked once for each call */
    int64_t now_ns;
    uint64_t last_call;
    uint32_t mode;         /* the one that the test is about */
    int64_t ns, others_ns; /* of its calls, and of others */
    uint32_t n_cold[FERRY_MIXED_N_MODES], last_mode;
    uint64_t last_long_call;
    bool is_repeated; /* two calls, one right after the other */
} times;

static void pass_time(void *context, const fy_mix_lane *lane)
{
    times *t = context;
    const fy_mix_call *call = lane->call;
    if (call->number != t->last_call && call->geometry.n_elements > 16) {
        t->now_ns += t->ns_of(t, call);
    }
    t->last_call = call->number;
}

static int64_t read_time(void *context)
{
    return ((const times *)context)->now_ns;
}

/* A table by these times. */
static void tune_by(rank_thread *self, ferry_mixed_comm *comm, times *t)
{
    stalls s = {.before = self->rank == 1 ? pass_time : NULL, .now_ns = read_time, .context = t};
    stall_by(comm, &s);
    expect_ok(self, ferry_mixed_comm_run_autotune(comm, &self->error));
    stall_no_more(comm);
}

static ferry_mixed_comm *create_untuned(rank_thread *self, uint64_t most_bytes)
{
    ferry_mixed_comm *comm = NULL;
    ferry_mixed_comm_options o = options_of(self, 0, 1);
    o.use_autotune = false;
    o.autotune_bytes = most_bytes;
    if (ferry_mixed_comm_create(self->world, &o, &comm, &self->error) != FERRY_OK) {
        snprintf(self->wrong, sizeof self->wrong, "%s", self->error.message);
    }
    return comm;
}

static int64_t ns_of_choice(times *t, const fy_mix_call *call)
{
    return call->mode == t->mode ? t->ns : t->others_ns;
}

static void run_choice(rank_thread *self)
{
    times t = *(const times *)self->context;
    ferry_mixed_comm *comm = create_untuned(self, SMALL);
    expect(self, comm != NULL);
    t.ns_of = ns_of_choice;
    tune_by(self, comm, &t);
    expect(self, comm->tuning != NULL);
    for (size_t i = 0; i < comm->tuning->n; i++) {
        const ferry_mixed_timing *timing = &comm->tuning->timings[i];
        expect(self, timing->chosen == (timing->mode == t.mode));
        expect(self, timing->seconds > 0);
    }
    ferry_mixed_comm_destroy(comm);
}

/* Others far behind, and some that stay in to the end. */
static void test_choice(void **state)
{
    (void)state;
    run_ranks(2, NULL, run_choice,
              &(times){.mode = FERRY_MIXED_FUSED_BYTES1_UNICAST, .ns = 20, .others_ns = 12000000});
    run_ranks(2, NULL, run_choice,
              &(times){.mode = FERRY_MIXED_BASE_ONE, .ns = 6000000, .others_ns = 11000000});
    run_ranks(2, NULL, run_choice,
              &(times){.mode = FERRY_MIXED_BASE_ONE, .ns = 6000, .others_ns = 7000});
}

/* The first call of each mode is that of a machine that has never run it. */
static int64_t ns_of_cold(times *t, const fy_mix_call *call)
{
    t->is_repeated |= call->number == t->last_long_call + 1 && call->mode == t->last_mode;
    t->last_long_call = call->number;
    t->last_mode = call->mode;
    return t->n_cold[call->mode]++ == 0 ? 5000000 : ns_of_choice(t, call);
}

static void run_cold(rank_thread *self)
{
    times t = {.ns_of = ns_of_cold, .mode = FERRY_MIXED_BASE_ONE, .ns = 9000, .others_ns = 10000};
    int64_t forever = INT64_MAX / 2;
    ferry_mixed_comm *comm = create_untuned(self, 8192);
    expect(self, comm != NULL);
    atomic_store(&self->world->yields_from_ns, forever);
    tune_by(self, comm, &t);
    expect(self, atomic_load(&self->world->yields_from_ns) < forever);
    expect(self, t.is_repeated || self->rank == 0);
    ferry_mixed_comm_destroy(comm);
}

static void test_cold(void **state)
{
    (void)state;
    run_ranks(2, NULL, run_cold, NULL);
}

/* Slow in its bytes, and more than that. */
static int64_t ns_of_bytes(times *t, const fy_mix_call *call)
{
    int64_t eights = (int64_t)(call->geometry.n_elements * sizeof(float) / 8192);
    return call->mode == t->mode ? 2000000 * eights * eights : 10000;
}

static void run_left_out(rank_thread *self)
{
    times t = {.ns_of = ns_of_bytes, .mode = FERRY_MIXED_BASE_ONE};
    ferry_mixed_comm *comm = create_untuned(self, 4 * SMALL);
    expect(self, comm != NULL);
    tune_by(self, comm, &t);
    expect(self, comm->tuning != NULL);
    /* Behind at 16 and at 32 KiB, where its time has grown: that is all. */
    for (size_t i = 0; i < comm->tuning->n; i++) {
        const ferry_mixed_timing *timing = &comm->tuning->timings[i];
        if (timing->mode == FERRY_MIXED_BASE_ONE) {
            expect(self, timing->bytes <= 32768 ? timing->seconds > 1e-3 : timing->seconds == 0);
        }
    }
    ferry_mixed_comm_destroy(comm);
}

static void test_left_out(void **state)
{
    (void)state;
    run_ranks(2, NULL, run_left_out, NULL);
}

/*
 * Failures are those of all ranks, and leave the old table
 */

static void expect_refused(rank_thread *self, ferry_mixed_comm *comm, const char *path,
                           ferry_status wanted, const char *says)
{
    size_t n = ferry_mixed_comm_timing_count(comm);
    expect_status(self, wanted, fy_tune_load(comm, path, &self->error));
    expect_says(self, says);
    expect(self, ferry_mixed_comm_timing_count(comm) == n);
}

static void run_divergent(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL, *none = NULL;
    ferry_mixed_comm_options o = options_of(self, 2, 1);
    bool odd = self->rank == 2;
    o.dtype = FERRY_BF16; /* as the tables of the other tests */
    o.use_autotune = false;
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    expect_ok(self, fy_tune_load(comm, path_of("e.json"), &self->error));
    expect(self, ferry_mixed_comm_timing_count(comm) == 8);
    expect_refused(self, comm, path_of(odd ? "f.json" : "e.json"), FERRY_ERR_INVALID_INPUT,
                   "give all ranks the same file");
    expect_refused(self, comm, path_of(odd ? "none.json" : "e.json"), FERRY_ERR_IO, "rank 2: ");
    expect_refused(self, comm, path_of(odd ? "e.json" : "g.json"), FERRY_ERR_INVALID_INPUT,
                   "rank 0: ");
    /* The handle is as good as before. */
    expect(self, ferry_mixed_comm_timing_count(comm) == 8);
    expect_ok(self, fy_tune_load(comm, path_of("f.json"), &self->error));
    ferry_mixed_comm_destroy(comm);

    o.use_autotune = true;
    o.tune_file = path_of("g.json");
    expect_status(self, FERRY_ERR_INVALID_INPUT,
                  ferry_mixed_comm_create(self->world, &o, &none, &self->error));
    expect(self, none == NULL);
    expect_says(self, "`ferry tune");
    /* Some measure and some read. */
    o.tune_file = odd ? path_of("e.json") : NULL;
    expect_status(self, FERRY_ERR_INVALID_INPUT,
                  ferry_mixed_comm_create(self->world, &o, &none, &self->error));
    expect(self, none == NULL);
    expect_says(self, "\"measuring\" on rank 0 and \"reading a saved table\" on rank 2");
}

static void test_divergent(void **state)
{
    ferry_mixed_comm comm;
    ferry_error error;
    fy_tuning *table = make_table();
    (void)state;
    make_handle(&comm);
    must(fy_tuning_write(&comm, table, path_of("e.json"), &error), &error);
    table->timings[0].seconds *= 1.5;
    must(fy_tuning_write(&comm, table, path_of("f.json"), &error), &error);
    table->timings[0].chosen = false;
    must(fy_tuning_write(&comm, table, path_of("g.json"), &error), &error);
    fy_tune_destroy(table);
    run_ranks(4, NULL, run_divergent, NULL);
}

/* A rank ends the world in the middle of it. */
typedef struct abortion {
    ferry_world *world;
    int n_left; /* actions until then */
} abortion;

static void abort_soon(void *context, const fy_mix_lane *lane)
{
    abortion *a = context;
    if (lane->call->geometry.n_elements > 16 && --a->n_left == 0) {
        ferry_world_abort(a->world, "enough");
    }
}

static void run_abort(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    ferry_mixed_comm_options o = options_of(self, 2, 1);
    abortion a = {self->world, 40};
    stalls s = {.before = self->rank == 3 ? abort_soon : NULL, .context = &a};
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    size_t n = ferry_mixed_comm_timing_count(comm);
    stall_by(comm, &s);
    expect_status(self, FERRY_ERR_ABORTED, ferry_mixed_comm_run_autotune(comm, &self->error));
    expect_says(self, "enough");
    expect(self, ferry_mixed_comm_timing_count(comm) == n && n != 0);
    expect_status(self, FERRY_ERR_ABORTED, ferry_mixed_comm_run_autotune(comm, &self->error));
    ferry_mixed_comm_destroy(comm);
}

static void test_abort(void **state)
{
    (void)state;
    run_ranks(4, NULL, run_abort, NULL);
}

/* One rank alone, so that it is its allocation that fails. */
static void run_no_memory(rank_thread *self)
{
    ferry_status status = FERRY_ERR_NO_MEMORY;
    for (int n = 0; status != FERRY_OK; n++) {
        ferry_mixed_comm *comm = NULL;
        ferry_mixed_comm_options o = options_of(self, 0, 1);
        o.use_autotune = false;
        o.autotune_bytes = 1; /* the smallest size is measured always */
        expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
        fy_alloc_fail_after(n);
        status = ferry_mixed_comm_run_autotune(comm, &self->error);
        fy_alloc_fail_after(-1);
        expect(self, status == FERRY_OK || status == FERRY_ERR_NO_MEMORY);
        expect(self, (ferry_mixed_comm_timing_count(comm) != 0) == (status == FERRY_OK));
        ferry_mixed_comm_destroy(comm);
    }
}

static void test_run_no_memory(void **state)
{
    (void)state;
    run_ranks(1, NULL, run_no_memory, NULL);
}

static void run_misuse(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    ferry_mixed_comm_options o = options_of(self, 0, 1);
    ferry_mixed_timing t = FERRY_MIXED_TIMING_INIT;
    o.only_construct = true;
    expect_ok(self, ferry_mixed_comm_create(self->world, &o, &comm, &self->error));
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_run_autotune(comm, &self->error));
    expect_says(self, "init_virtual_memory");
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_mixed_comm_save_tuning(comm, path_of("h.json"), &self->error));
    expect_says(self, "no table");
    expect_ok(self, ferry_mixed_comm_init_virtual_memory(comm, &self->error));
    atomic_store(&comm->busy, true);
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_run_autotune(comm, &self->error));
    expect_says(self, "another thread");
    atomic_store(&comm->busy, false);
    expect_ok(self, ferry_mixed_comm_run_autotune(comm, NULL));
    expect_status(self, FERRY_ERR_IO,
                  ferry_mixed_comm_save_tuning(comm, path_of("no/h.json"), &self->error));
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_timing_at(comm, 0, NULL, &self->error));
    t.struct_size = 0;
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_timing_at(comm, 0, &t, &self->error));
    expect_ok(self, ferry_mixed_comm_shutdown(comm, &self->error));
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_run_autotune(comm, &self->error));
    expect_says(self, "after shutdown");
    ferry_mixed_comm_destroy(comm);
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_run_autotune(NULL, &self->error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_mixed_comm_save_tuning(NULL, path_of("h.json"), &self->error));
    expect(self, ferry_mixed_comm_timing_count(NULL) == 0);
}

static void test_misuse(void **state)
{
    (void)state;
    run_ranks(2, NULL, run_misuse, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),         cmocka_unit_test(test_choice),
        cmocka_unit_test(test_cold),          cmocka_unit_test(test_left_out),
        cmocka_unit_test(test_divergent),     cmocka_unit_test(test_abort),
        cmocka_unit_test(test_run_no_memory), cmocka_unit_test(test_misuse),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
