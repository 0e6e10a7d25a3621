/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Negative controls of the mixed collectives: the same ranks, stalls and checks over the engine as
 * it is, which must be exact, over one with a slot fewer and over one that trusts every epoch,
 * which must both be found out. A check that cannot see these faults fails here.
 *
 * Stalls are certain, not likely: one rank is held at one step until the others have gone on as
 * far as they can without it.
 */
#include "support/random.h"
#include "unit/mixed_handle.h"

#include "unit/mixed_stalls.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { COLUMNS = 800, BLOCK_ELEMENTS = 64, N_STEPS = 13, N_CALLS = 5, HELD_CALL = 3 };
enum { HELD_SECONDS = 60 };

typedef struct shape {
    const char *name;
    uint32_t n_ranks;
    mixed_shape nodes;
} shape;

typedef enum engine_fault { AS_IT_IS, A_SLOT_FEWER, TRUSTING } engine_fault;
static const char *const fault_names[] = {"as it is", "a slot fewer", "trusting"};

/* Where a rank is: call, turn, stage, step, and how often it has come to that step. */
typedef struct post {
    _Atomic uint64_t at;
} post;

typedef struct scene {
    const shape *shape;
    uint32_t op, mode;
    engine_fault fault;
    uint32_t grid_size;
    bool delays;            /* at random, everywhere */
    bool holds;             /* one rank, once */
    engine_fault holds_for; /* where a fault of this kind hurts */
    uint32_t held;
    uint64_t held_step;
    uint64_t seed;
    post posts[MOST_RANKS];
    _Atomic int n_held, n_given_up;
    _Atomic int n_wrong, n_refused;
    ferry_status statuses[MOST_RANKS];
    ferry_mixed_comm *comms[MOST_RANKS];
    stalls stalls[MOST_RANKS];
} scene;

static uint64_t mix(uint64_t x)
{
    return random_u64(&x);
}

/* Every call, rank and element has a value of its own; sums of them are exact. */
static float value_of(uint64_t call, uint32_t rank, uint64_t element)
{
    return (float)(mix(call * 1000003 + rank * 10007 + element * 7919 + 1) & 0xff);
}

/*
 * Stalls
 */

enum { MOST_ATTEMPTS = 200 };

static uint64_t place_of(uint64_t call, uint64_t turn, uint32_t stage, uint32_t step)
{
    return (((call << 16 | turn) << 8 | stage) << 8 | step) << 8;
}

static bool exchanges(const shape *s, uint32_t a, uint32_t b)
{
    uint32_t size = s->nodes.local_size;
    bool same_node = a / size == b / size;
    return a != b &&
           (size == 1 || (same_node && size == s->n_ranks) || (!same_node && a % size == b % size));
}

/* Until every rank that the held one exchanges with is behind `past`, or stands still at `wait`. */
static void hold(scene *s, uint64_t wait, uint64_t past)
{
    time_t last = time(NULL) + HELD_SECONDS;
    for (uint32_t rank = 0; rank < s->shape->n_ranks; rank++) {
        while (exchanges(s->shape, s->held, rank)) {
            uint64_t at = atomic_load(&s->posts[rank].at);
            if (at >= past || (at >= (wait | 3) && at < (wait | 0xff))) {
                break;
            }
            if (time(NULL) > last) {
                atomic_fetch_add(&s->n_given_up, 1);
                return;
            }
            sched_yield();
        }
    }
    atomic_fetch_add(&s->n_held, 1);
}

static void delay(const scene *s, const fy_mix_lane *lane, uint64_t at)
{
    uint64_t dice = mix(s->seed ^ mix(at ^ (uint64_t)lane->index << 56) ^
                        mix(lane->program->topology.world_rank + 77));
    if (dice % 64 == 0) {
        usleep((useconds_t)(dice >> 32) % 300);
    } else if (dice % 8 == 0) {
        sched_yield();
    }
}

/*
 * With a slot fewer: a rank has seen that use k is there, and stands before it reads it. The others
 * go on, and write use k + 3, before they need use k + 2 of the held rank.
 * Trusting: a rank stands before it writes use k. The others come to the wait for it, and either
 * stay there or read what was there before.
 */
static void stall(void *context, const fy_mix_lane *lane)
{
    scene *s = context;
    uint32_t rank = lane->program->topology.world_rank;
    uint64_t call = lane->call->number, k = s->held_step;
    const fy_cursor *cursor = &lane->drive.cursors[0];
    uint64_t at = place_of(call, cursor->turn, cursor->block, cursor->step);
    if (s->delays) {
        delay(s, lane, at);
    }
    if (!s->holds) {
        return;
    }
    uint64_t before = atomic_load(&s->posts[rank].at);
    bool is_again = (before | 0xff) == (at | 0xff);
    uint64_t attempts = is_again ? before & 0xff : 0;
    atomic_store(&s->posts[rank].at, at | (attempts < MOST_ATTEMPTS ? attempts + 1 : attempts));
    if (rank != s->held || is_again) {
        return;
    }
    if (s->holds_for == A_SLOT_FEWER && at == place_of(HELD_CALL, k + 1, 1, 1)) {
        hold(s, place_of(HELD_CALL, k + 3, 1, 0), place_of(HELD_CALL, k + 3, 1, 1));
    } else if (s->holds_for == TRUSTING && at == place_of(HELD_CALL, k, 0, 0)) {
        hold(s, place_of(HELD_CALL, k + 1, 1, 0), place_of(HELD_CALL, k + 2, 0, 0));
    }
}

/*
 * Calls
 */

static uint32_t dp_rank_of(const shape *s, uint32_t rank)
{
    const mixed_shape *n = &s->nodes;
    uint32_t local = rank % n->local_size, node = rank / n->local_size;
    return local / n->local_tp + node / n->inter_tp * (n->local_size / n->local_tp);
}

static bool scatters(uint32_t op)
{
    return op == FERRY_MIXED_REDUCE_SCATTER || op == FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE;
}

static bool gathers(uint32_t op)
{
    return op == FERRY_MIXED_ALL_GATHER || op == FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
}

static float wanted(const shape *s, uint32_t op, uint64_t call, uint32_t rank, uint64_t i)
{
    float sum = 0;
    uint64_t element = gathers(op)    ? i % COLUMNS
                       : scatters(op) ? i + (uint64_t)dp_rank_of(s, rank) * COLUMNS
                                      : i;
    for (uint32_t other = 0; other < s->n_ranks; other++) {
        if (!gathers(op) || dp_rank_of(s, other) == i / COLUMNS) {
            sum += value_of(call, other, element);
        }
    }
    return sum;
}

/* One call with values of its own; counts it where its result is wrong or refused. */
static ferry_status call_once(rank_thread *self, uint32_t op, uint32_t mode, uint64_t call)
{
    scene *s = self->context;
    uint64_t dp = self->n_ranks / (s->shape->nodes.local_tp * s->shape->nodes.inter_tp);
    uint64_t n_in = scatters(op) ? dp : 1, n_out = gathers(op) ? dp : 1;
    float *in = malloc(n_in * COLUMNS * sizeof *in);
    float *out = malloc(n_out * COLUMNS * sizeof *out);
    ferry_status status = FERRY_ERR_NO_MEMORY;
    if (in != NULL && out != NULL) {
        for (uint64_t i = 0; i < n_in * COLUMNS; i++) {
            in[i] = value_of(call, self->rank, i);
        }
        memset(out, 0xff, n_out * COLUMNS * sizeof *out);
        ferry_mixed_tensor from = {ferry_buffer_of(in, n_in * COLUMNS * sizeof *in), n_in, COLUMNS};
        ferry_mixed_tensor to = {ferry_buffer_of(out, n_out * COLUMNS * sizeof *out), n_out,
                                 COLUMNS};
        status =
            ferry_mixed_comm_run(s->comms[self->rank], op, &from, &to, mode, NULL, &self->error);
        int wrong = 0;
        for (uint64_t i = 0; status == FERRY_OK && i < n_out * COLUMNS; i++) {
            wrong |= out[i] != wanted(s->shape, op, call, self->rank, i);
        }
        s->n_wrong += wrong;
        s->n_refused += status != FERRY_OK;
    }
    free(in);
    free(out);
    return status;
}

static ferry_status make_comm(rank_thread *self)
{
    scene *s = self->context;
    ferry_mixed_comm_options o = mixed_options(self, &s->shape->nodes);
    o.grid_size = s->grid_size;
    o.max_block_size = o.min_block_size = 1;
    o.only_construct = true;
    ferry_mixed_comm **comm = &s->comms[self->rank];
    ferry_status status = ferry_mixed_comm_create(self->world, &o, comm, &self->error);
    if (status == FERRY_OK) {
        s->stalls[self->rank] =
            (stalls){.before = stall, .context = s, .trusts_epochs = s->fault == TRUSTING};
        stall_by(*comm, &s->stalls[self->rank]);
        status = ferry_mixed_comm_init_virtual_memory(*comm, &self->error);
    }
    if (status == FERRY_OK) {
        (*comm)->program.layout.n_slots -= s->fault == A_SLOT_FEWER;
    }
    return status == FERRY_OK ? ferry_mixed_comm_init_nvshmem(*comm, &self->error) : status;
}

/* Memory goes when all have ended: with a fault, some are ahead by calls. */
static void run_stream(rank_thread *self)
{
    scene *s = self->context;
    expect_ok(self, make_comm(self));
    for (uint64_t call = 1; call <= N_CALLS; call++) {
        if (call_once(self, s->op, s->mode, call) != FERRY_OK) {
            break;
        }
    }
    /* As far as it can: who is held waits for nothing more of this rank. */
    atomic_store(&s->posts[self->rank].at, UINT64_MAX);
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    ferry_mixed_comm_destroy(s->comms[self->rank]);
}

static void run_everything(rank_thread *self)
{
    scene *s = self->context;
    uint32_t ops[FERRY_MIXED_N_OPS], modes[FERRY_MIXED_N_MODES];
    size_t n_ops, n_modes;
    uint64_t call = 0;
    expect_ok(self, make_comm(self));
    ferry_mixed_comm *comm = s->comms[self->rank];
    expect_ok(self, ferry_mixed_comm_get_valid_op_list(comm, ops, FERRY_MIXED_N_OPS, &n_ops,
                                                       &self->error));
    expect_ok(self, ferry_mixed_comm_get_valid_mode_list(comm, modes, FERRY_MIXED_N_MODES, &n_modes,
                                                         &self->error));
    expect(self, n_ops > 0 && n_modes > 1);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < n_ops * n_modes; i++) {
            size_t pick = (i * 7 + (size_t)round) % (n_ops * n_modes); /* other neighbours */
            expect_ok(self, call_once(self, ops[pick / n_modes], modes[pick % n_modes], ++call));
        }
    }
    ferry_mixed_comm_destroy(comm);
}

/*
 * Tests
 */

static const ferry_world_options patient = {.struct_size = sizeof patient,
                                            .deadline_seconds = HELD_SECONDS};

static uint64_t seed_of_run(void)
{
    const char *text = getenv("FERRY_TEST_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 10) : 1;
    print_message("FERRY_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static void test_everything_is_exact(void **state)
{
    static const shape shapes[] = {
        {"one node, tp 2 dp 2", 4, {4, 2, 1, NULL}},
        {"one node, tp 3", 3, {3, 3, 1, NULL}},
        {"one node, dp 3", 3, {3, 1, 1, NULL}},
        {"two nodes, tp 2 dp 2", 4, {2, 2, 1, NULL}},
        {"two nodes, tp 4", 4, {2, 2, 2, NULL}},
        {"two nodes, both dp", 4, {2, 1, 1, NULL}},
        {"one node by puts", 4, {4, 2, 1, "strict:inproc"}},
        {"two nodes by puts", 4, {2, 1, 2, "strict:inproc"}},
    };
    uint64_t seed = seed_of_run();
    (void)state;
    for (size_t i = 0; i < 2 * COUNT_OF(shapes); i++) {
        scene s = {.shape = &shapes[i / 2],
                   .grid_size = 1 + (uint32_t)i % 2,
                   .delays = true,
                   .seed = mix(seed + i)};
        run_ranks(s.shape->n_ranks, &patient, run_everything, &s);
        check_at(s.n_wrong == 0, "%s, %u lanes: %d wrong", s.shape->name, s.grid_size, s.n_wrong);
    }
}

static const shape tp2_dp2 = {"tp 2 dp 2", 4, {4, 2, 1, NULL}};
static const shape tp2_dp2_puts = {"tp 2 dp 2 by puts", 4, {4, 2, 1, "strict:inproc"}};
static const shape tp3 = {"tp 3", 3, {3, 3, 1, NULL}};
static const shape dp2_puts = {"dp 2 by puts", 2, {2, 1, 1, "strict:inproc"}};
static const shape dp3 = {"dp 3", 3, {3, 1, 1, NULL}};
static const shape nodes_of_1 = {"two nodes of one", 2, {1, 1, 2, NULL}};
static const shape nodes_of_2 = {"two nodes of two", 4, {2, 2, 1, NULL}};
static const shape nodes_of_2_puts = {"two nodes of two by puts", 4, {2, 2, 1, "strict:inproc"}};

enum { MULTICAST = FERRY_MIXED_FUSED_WAITS_MULTICAST, UNICAST = FERRY_MIXED_FUSED_WAITS_UNICAST };

typedef struct control {
    const shape *shape;
    uint32_t op, mode;
} control;

static const control controls[] = {
    {&tp2_dp2, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, MULTICAST},
    {&tp2_dp2, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, UNICAST},
    {&tp2_dp2_puts, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, UNICAST},
    {&tp2_dp2, FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE, MULTICAST},
    {&tp2_dp2, FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE, UNICAST},
    {&tp3, FERRY_MIXED_ALL_REDUCE, MULTICAST},
    {&dp2_puts, FERRY_MIXED_ALL_GATHER, UNICAST},
    {&dp3, FERRY_MIXED_REDUCE_SCATTER, UNICAST},
    {&nodes_of_1, FERRY_MIXED_ALL_REDUCE, MULTICAST},
    {&nodes_of_2, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, MULTICAST},
    {&nodes_of_2_puts, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, UNICAST},
};

static void check_control(const control *c, engine_fault holds_for, engine_fault fault,
                          uint64_t seed)
{
    scene s = {.shape = c->shape,
               .op = c->op,
               .mode = c->mode,
               .fault = fault,
               .grid_size = 1,
               .holds = true,
               .holds_for = holds_for,
               .held = (uint32_t)(mix(seed) % c->shape->n_ranks),
               .held_step = FY_MIX_N_SLOTS + mix(seed + 1) % (N_STEPS - FY_MIX_N_SLOTS - 3),
               .seed = seed};
    run_ranks(s.shape->n_ranks, &patient, run_stream, &s);
    bool caught = s.n_wrong + s.n_refused > 0;
    /* A fault may show before anybody was held. */
    bool held = s.n_held == 1 || (fault != AS_IT_IS && s.n_held == 0 && s.n_refused > 0);
    if (!held || s.n_given_up != 0 || caught != (fault != AS_IT_IS)) {
        fail_msg("%s, %s, %s, held for %s at rank %u, step %llu: %d held, %d given up, %d wrong, "
                 "%d refused: %s",
                 c->shape->name, ferry_mixed_mode_name(c->mode), fault_names[fault],
                 fault_names[holds_for], s.held, (unsigned long long)s.held_step, s.n_held,
                 s.n_given_up, s.n_wrong, s.n_refused, caught ? "caught" : "not caught");
    }
}

/* What a fault reads is by design written at the same time: nothing for that sanitizer. */
static void check_controls(engine_fault fault)
{
    uint64_t seed = seed_of_run();
    for (size_t i = 0; i < COUNT_OF(controls); i++) {
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t own = mix(seed * 1000 + i * 10 + round);
            check_control(&controls[i], fault, AS_IT_IS, own);
#if !defined(__SANITIZE_THREAD__)
            check_control(&controls[i], fault, fault, own);
#endif
        }
    }
}

static void test_a_slot_fewer_is_found_out(void **state)
{
    (void)state;
    check_controls(A_SLOT_FEWER);
}

static void test_trusting_is_found_out(void **state)
{
    (void)state;
    check_controls(TRUSTING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_is_exact),
        cmocka_unit_test(test_a_slot_fewer_is_found_out),
        cmocka_unit_test(test_trusting_is_found_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
