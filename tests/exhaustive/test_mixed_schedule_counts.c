/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of docs/collectives.md, "What each mode moves": against the schedules, run on symbols,
 * in all topologies of up to 16 ranks; against what handles count that move real bytes; and against
 * each other, so that no mode is another one under a second name.
 */
#include "mixed_formulas.h"
#include "mixed_symbols.h"

#include <ferry/ferry.h>

#include <pthread.h>
#include <stdio.h>

/*
 * Schedules
 */

static void compare_symbols(const scheduled *w)
{
    const uint64_t n_steps = 3, e = 2, p = w->k.deterministic ? 4 : e;
    const cutting c = {1, 2 * (uint64_t)w->n_ranks, n_steps * 2 * w->n_ranks, (uint32_t)e, false};
    machine m;
    machine_make(&m, w, &c);
    machine_run(&m);
    for (uint32_t rank = 0; rank < w->n_ranks; rank++) {
        const rank_counts *seen = &m.ranks[rank].seen;
        letters l = letters_of(&w->topologies[rank], w->k.mode, c.length, e, p);
        moved said = moved_by(w->k.op, w->k.mode, &l);
        if (w->k.adds && adds_up(w->k.op, w->k.mode, &l)) {
            said.read = read_by_objects(w->k.op, &l, said.read);
        }
        check_machine(&m, rank, seen->waits == n_steps * said.waits);
        check_machine(&m, rank, seen->inside_written == said.written);
        check_machine(&m, rank, seen->inside_read == said.read);
        check_machine(&m, rank, seen->between == said.between);
    }
    machine_forget(&m);
}

static void compare_shape(const shape *s)
{
    kind kinds[2 * MOST_KINDS];
    uint32_t n = list_kinds(s, kinds);
    n += list_adding_kinds(s, kinds + n);
    for (uint32_t i = 0; i < n; i++) {
        scheduled w;
        schedule_all(s, &kinds[i], &w);
        compare_symbols(&w);
        forget_schedules(&w);
    }
}

static void test_schedules(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 16; n++) {
        walk_shapes_of(n, compare_shape);
    }
    const shape larger[] = {{2, 2, 2, 3}, {3, 2, 3, 2}, {1, 5, 5, 1}, {4, 2, 2, 2}};
    for (size_t i = 0; i < COUNT_OF(larger); i++) {
        compare_shape(&larger[i]);
    }
}

/*
 * Modes against each other
 */

static bool moves_alike(const shape *s, uint32_t op, uint32_t mode, uint32_t other)
{
    fy_topology ranks[MOST_RANKS];
    list_ranks(s, ranks);
    for (uint32_t rank = 0; rank < world_size(s); rank++) {
        letters l = letters_of(&ranks[rank], mode, 2 * world_size(s), 2, 2);
        letters k = letters_of(&ranks[rank], other, 2 * world_size(s), 2, 2);
        moved a = moved_by(op, mode, &l), b = moved_by(op, other, &k);
        if (a.waits != b.waits || a.written != b.written || a.read != b.read ||
            a.between != b.between) {
            return false;
        }
    }
    return true;
}

/* Where there is one reader of all that is written, once and once for each are the same. */
static bool has_one_reader(const shape *s, uint32_t op, uint32_t mode)
{
    bool waits = row_mode(mode) == FERRY_MIXED_FUSED_WAITS_MULTICAST;
    if (!op_rows[op].shrinks) {
        return local_size(s) <= 2;
    }
    return s->local_tp == 1 || (s->local_tp == 2 && (!waits || s->local_dp == 1));
}

/* Of two ranks there is but one way to exchange halves, or all. */
static bool is_pair(const shape *s, uint32_t op, uint32_t fused)
{
    bool waits = row_mode(fused) == FERRY_MIXED_FUSED_WAITS_MULTICAST;
    return world_size(s) == 1 || (world_size(s) == 2 && waits == (op != FERRY_MIXED_ALL_REDUCE));
}

/* Two such pairs: sums between two nodes, and two data-parallel ranks inside. */
static bool is_pair_of_pairs(const shape *s, uint32_t fused)
{
    return row_mode(fused) == FERRY_MIXED_FUSED_BYTES2_MULTICAST && s->local_tp == 1 &&
           s->local_dp == 2 && s->inter_tp == 2 && s->inter_dp == 1;
}

/* Of two modes, fused ones first. */
static bool may_move_alike(const shape *s, uint32_t op, uint32_t a, uint32_t b)
{
    if (!is_base(b)) {
        return row_mode(a) == row_mode(b) && has_one_reader(s, op, a);
    }
    return !is_base(a) && (b == FERRY_MIXED_BASE_ONE ? is_pair(s, op, a) : is_pair_of_pairs(s, a));
}

static uint64_t n_compared;

static void compare_modes(const shape *s)
{
    kind kinds[MOST_KINDS];
    for (uint32_t i = 0, n = list_kinds(s, kinds); i < n; i++) {
        for (uint32_t j = 0; j < i; j++) {
            const kind *a = &kinds[j], *b = &kinds[i];
            if (a->op != b->op || !a->mapped || !b->mapped || a->deterministic ||
                b->deterministic) {
                continue;
            }
            bool alike = may_move_alike(s, a->op, a->mode, b->mode);
            check_at(moves_alike(s, a->op, a->mode, b->mode) == alike,
                     "%s, %s and %s: local tp %u x dp %u, inter tp %u x dp %u",
                     ferry_mixed_op_name(a->op), ferry_mixed_mode_name(a->mode),
                     ferry_mixed_mode_name(b->mode), s->local_tp, s->local_dp, s->inter_tp,
                     s->inter_dp);
            n_compared++;
        }
    }
}

static void test_modes_differ(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 16; n++) {
        walk_shapes_of(n, compare_modes);
    }
    assert_true(n_compared > 1000);
}

/* The waits that were promised: WAITS 1 or 2, BYTES1 of all-reduce 2 or 3, BYTES2 of it 4. */
static void test_waits(void **state)
{
    (void)state;
    const struct {
        shape s;
        uint32_t op, mode;
        uint64_t waits;
    } rows[] = {
        {{4, 1, 1, 1}, FERRY_MIXED_ALL_REDUCE, FERRY_MIXED_FUSED_WAITS_MULTICAST, 1},
        {{4, 1, 2, 1}, FERRY_MIXED_ALL_REDUCE, FERRY_MIXED_FUSED_WAITS_MULTICAST, 2},
        {{4, 1, 1, 1}, FERRY_MIXED_ALL_REDUCE, FERRY_MIXED_FUSED_BYTES1_UNICAST, 2},
        {{4, 1, 2, 1}, FERRY_MIXED_ALL_REDUCE, FERRY_MIXED_FUSED_BYTES1_UNICAST, 3},
        {{4, 1, 2, 1}, FERRY_MIXED_ALL_REDUCE, FERRY_MIXED_FUSED_BYTES2_UNICAST, 4},
        {{2, 2, 1, 1}, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, FERRY_MIXED_FUSED_WAITS_UNICAST, 1},
        {{2, 2, 1, 2}, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, FERRY_MIXED_FUSED_WAITS_UNICAST, 2},
        {{2, 2, 1, 1}, FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE, FERRY_MIXED_FUSED_WAITS_UNICAST, 1},
        {{2, 2, 2, 1}, FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE, FERRY_MIXED_FUSED_WAITS_UNICAST, 2},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fy_topology t = make(&rows[i].s, 0);
        letters l = letters_of(&t, rows[i].mode, 64, 2, 2);
        assert_int_equal(moved_by(rows[i].op, rows[i].mode, &l).waits, rows[i].waits);
    }
}

/*
 * Handles
 */

enum { LANE_STEPS = 5 };

/* One rank, on a thread: it cannot fail a test itself, so it says why. */
typedef struct handle_rank {
    const shape *s;
    ferry_world *world;
    uint32_t rank, dtype;
    bool deterministic;
    const char *engines;
    uint32_t n_runs;
    char wrong[512];
    pthread_t thread;
} handle_rank;

static ferry_mixed_comm_options options_of(const handle_rank *r)
{
    ferry_mixed_comm_options o = FERRY_MIXED_COMM_OPTIONS_INIT;
    fy_topology_wish at = wish_for(r->s, r->rank);
    o.world_rank = at.world_rank;
    o.world_size = at.world_size;
    o.local_rank = at.local_rank;
    o.local_size = at.local_size;
    o.inter_rank = at.inter_rank;
    o.inter_size = at.inter_size;
    o.local_tp_size = at.local_tp;
    o.inter_tp_size = at.inter_tp;
    o.dtype = r->dtype;
    o.deterministic = r->deterministic;
    o.engines = r->engines;
    o.use_autotune = false;
    o.grid_size = 1;
    o.max_block_size = 2 * at.world_size;
    o.min_block_size = 2 * at.world_size;
    return o;
}

/* What the sketch says of a call is what the handle has counted; true as well if it cannot. */
static bool is_sketched(handle_rank *r, const ferry_mixed_comm *comm, uint32_t op, uint32_t mode,
                        const ferry_mixed_counts *counts, uint64_t n)
{
    ferry_mixed_comm_options o = options_of(r);
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_mixed_sketch *sketch = NULL;
    ferry_mixed_work w = FERRY_MIXED_WORK_INIT;
    bool same = ferry_mixed_comm_get_info(comm, &info, NULL) == FERRY_OK &&
                ferry_mixed_sketch_create(&o, info.reach, &sketch, NULL) == FERRY_OK &&
                ferry_mixed_sketch_count(sketch, op, mode, n, &w, NULL) == FERRY_OK;
    ferry_mixed_sketch_destroy(sketch);
    return same && w.n_steps == counts->n_steps && w.n_lanes == 1 &&
           w.n_steps * (w.n_inside_waits + w.n_between_waits) == counts->n_waits &&
           w.inside_bytes_written == counts->inside_bytes_written &&
           w.inside_bytes_read == counts->inside_bytes_read &&
           w.between_bytes == counts->between_bytes;
}

static uint64_t n_added; /* sums that objects make */

/* A rank that there is not, whose node has multicast objects. */
static void compare_sketch(handle_rank *r, const kind *k)
{
    const uint64_t e = 2, n = LANE_STEPS * 2 * (uint64_t)world_size(r->s) * 128;
    ferry_mixed_comm_options o = options_of(r);
    ferry_mixed_sketch *sketch = NULL;
    ferry_mixed_work work = FERRY_MIXED_WORK_INIT;
    ferry_error error;
    fy_topology t = make(r->s, r->rank);
    letters l = letters_of(&t, k->mode, n, e, r->deterministic ? 4 : e);
    moved said = moved_by(k->op, k->mode, &l);
    if (adds_up(k->op, k->mode, &l) && !r->deterministic) {
        said.read = read_by_objects(k->op, &l, said.read);
        n_added++;
    }
    must(ferry_mixed_sketch_create(&o, FERRY_MIXED_REACH_OBJECTS, &sketch, &error), &error);
    must(ferry_mixed_sketch_count(sketch, k->op, k->mode, n, &work, &error), &error);
    ferry_mixed_sketch_destroy(sketch);
    check_shape(r->s, work.n_steps >= LANE_STEPS && /* memory may make blocks shorter */
                          work.n_inside_waits + work.n_between_waits == said.waits &&
                          work.inside_bytes_written == said.written &&
                          work.inside_bytes_read == said.read &&
                          work.between_bytes == said.between);
}

static void compare_sketches(const shape *s)
{
    kind kinds[MOST_KINDS];
    for (uint32_t i = 0, n = list_kinds(s, kinds); i < n; i++) {
        for (uint32_t rank = 0; kinds[i].mapped && rank < world_size(s); rank++) {
            handle_rank r = {
                .s = s, .rank = rank, .dtype = FERRY_BF16, .deterministic = kinds[i].deterministic};
            compare_sketch(&r, &kinds[i]);
        }
    }
}

static void test_sketches_of_objects(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 16; n++) {
        walk_shapes_of(n, compare_sketches);
    }
    assert_true(n_added > 100);
}

static void compare_counts(handle_rank *r, uint32_t op, uint32_t mode,
                           const ferry_mixed_counts *counts, uint64_t n, uint64_t e)
{
    fy_topology t = make(r->s, r->rank);
    letters l = letters_of(&t, mode, n, e, r->deterministic ? 4 : e);
    moved said = moved_by(op, mode, &l);
    bool same = counts->n_calls == 1 && counts->n_steps == LANE_STEPS &&
                counts->n_waits == LANE_STEPS * said.waits &&
                counts->inside_bytes_written == said.written &&
                counts->inside_bytes_read == said.read && counts->between_bytes == said.between;
    if (!same && r->wrong[0] == '\0') {
        snprintf(r->wrong, sizeof r->wrong,
                 "rank %u, %s, %s%s, element of %" PRIu64 ": steps %" PRIu64 ", waits %" PRIu64
                 " (not %" PRIu64 "), written %" PRIu64 " (%" PRIu64 "), read %" PRIu64 " (%" PRIu64
                 "), between %" PRIu64 " (%" PRIu64 ")",
                 r->rank, ferry_mixed_op_name(op), ferry_mixed_mode_name(mode),
                 r->deterministic ? ", deterministic" : "", e, counts->n_steps, counts->n_waits,
                 LANE_STEPS * said.waits, counts->inside_bytes_written, said.written,
                 counts->inside_bytes_read, said.read, counts->between_bytes, said.between);
    }
}

static ferry_status run_one(handle_rank *r, ferry_mixed_comm *comm, uint32_t op, uint32_t mode,
                            ferry_error *error)
{
    uint64_t e = r->dtype == FERRY_F32 ? 4 : 2;
    uint64_t n = LANE_STEPS * 2 * (uint64_t)world_size(r->s) * (FERRY_MIXED_BLOCK_BYTES / e);
    uint64_t dp = (uint64_t)r->s->local_dp * r->s->inter_dp;
    uint64_t n_in = op_rows[op].shrinks ? dp : 1, n_out = op_rows[op].grows ? dp : 1;
    void *in = calloc(n_in * n, e), *out = calloc(n_out * n, e);
    ferry_mixed_tensor from = {ferry_buffer_of(in, n_in * n * e), n_in, n};
    ferry_mixed_tensor to = {ferry_buffer_of(out, n_out * n * e), n_out, n};
    ferry_mixed_counts counts = FERRY_MIXED_COUNTS_INIT;
    ferry_status status = in == NULL || out == NULL ? FERRY_ERR_NO_MEMORY : FERRY_OK;
    if (status == FERRY_OK) {
        status = ferry_mixed_comm_reset_counts(comm, error);
    }
    if (status == FERRY_OK) {
        status = ferry_mixed_comm_run(comm, op, &from, &to, mode, NULL, error);
    }
    if (status == FERRY_OK) {
        status = ferry_mixed_comm_get_counts(comm, &counts, error);
    }
    if (status == FERRY_OK) {
        compare_counts(r, op, mode, &counts, n, e);
        if (!is_sketched(r, comm, op, mode, &counts, n) && r->wrong[0] == '\0') {
            snprintf(r->wrong, sizeof r->wrong, "rank %u, %s, %s: the sketch counts otherwise",
                     r->rank, ferry_mixed_op_name(op), ferry_mixed_mode_name(mode));
        }
        r->n_runs++;
    }
    free(in);
    free(out);
    return status;
}

static ferry_status run_all_of(handle_rank *r, ferry_mixed_comm *comm, ferry_error *error)
{
    uint32_t ops[FERRY_MIXED_N_OPS], modes[FERRY_MIXED_N_MODES];
    size_t n_ops, n_modes;
    ferry_status status =
        ferry_mixed_comm_get_valid_op_list(comm, ops, FERRY_MIXED_N_OPS, &n_ops, error);
    if (status == FERRY_OK) {
        status =
            ferry_mixed_comm_get_valid_mode_list(comm, modes, FERRY_MIXED_N_MODES, &n_modes, error);
    }
    for (size_t i = 0; status == FERRY_OK && i < n_ops * n_modes; i++) {
        status = run_one(r, comm, ops[i / n_modes], modes[i % n_modes], error);
    }
    return status;
}

static void *be_rank(void *argument)
{
    handle_rank *r = argument;
    ferry_mixed_comm *comm = NULL;
    ferry_error error;
    ferry_mixed_comm_options o = options_of(r);
    ferry_status status = ferry_mixed_comm_create(r->world, &o, &comm, &error);
    if (status == FERRY_OK) {
        status = run_all_of(r, comm, &error);
    }
    if (status != FERRY_OK && r->wrong[0] == '\0') {
        snprintf(r->wrong, sizeof r->wrong, "rank %u: %.400s", r->rank, error.message);
    }
    ferry_mixed_comm_destroy(comm);
    ferry_world_destroy(r->world); /* which waits for the other ranks to do so */
    return NULL;
}

static void compare_handles(const shape *s, uint32_t dtype, bool deterministic, const char *engines)
{
    handle_rank ranks[MOST_RANKS] = {0};
    ferry_world *worlds[MOST_RANKS];
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    ferry_error error;
    uint32_t n = world_size(s);
    options.deadline_seconds = 60;
    must(ferry_world_create_threads(n, &options, worlds, &error), &error);
    for (uint32_t rank = 0; rank < n; rank++) {
        ranks[rank] = (handle_rank){.s = s,
                                    .world = worlds[rank],
                                    .rank = rank,
                                    .dtype = dtype,
                                    .deterministic = deterministic,
                                    .engines = engines};
        assert_int_equal(pthread_create(&ranks[rank].thread, NULL, be_rank, &ranks[rank]), 0);
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        assert_int_equal(pthread_join(ranks[rank].thread, NULL), 0);
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        check_shape(s, ranks[rank].wrong[0] == '\0' || (print_error("%s\n", ranks[rank].wrong), 0));
        check_shape(s, ranks[rank].n_runs > 0 && ranks[rank].n_runs == ranks[0].n_runs);
    }
}

static void compare_types(const shape *s)
{
    compare_handles(s, FERRY_BF16, false, NULL);
    compare_handles(s, FERRY_BF16, true, NULL);
}

static void test_handles(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        walk_shapes_of(n, compare_types);
    }
    const shape larger[] = {{3, 2, 1, 1}, {3, 1, 2, 1}, {1, 2, 3, 1}, {2, 1, 1, 3},
                            {2, 2, 2, 1}, {2, 2, 1, 2}, {2, 1, 2, 2}, {1, 2, 2, 2}};
    for (size_t i = 0; i < COUNT_OF(larger); i++) {
        compare_types(&larger[i]);
    }
}

/* Nothing of the table is about the type, and puts inside nodes move what stores would. */
static void test_other_handles(void **state)
{
    (void)state;
    const shape shapes[] = {{2, 2, 1, 1}, {2, 1, 2, 1}, {2, 2, 1, 2}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        compare_handles(&shapes[i], FERRY_F32, false, NULL);
        compare_handles(&shapes[i], FERRY_F32, true, NULL);
        compare_handles(&shapes[i], FERRY_F16, false, "strict:inproc");
        compare_handles(&shapes[i], FERRY_BF16, true, "strict:inproc");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),     cmocka_unit_test(test_modes_differ),
        cmocka_unit_test(test_waits),         cmocka_unit_test(test_handles),
        cmocka_unit_test(test_other_handles), cmocka_unit_test(test_sketches_of_objects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
