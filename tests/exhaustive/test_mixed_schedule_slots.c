/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots: with four, no execution of any sequence of calls writes over what somebody has yet to
 * read; with three, there is one that does. docs/collectives.md has the proof; this looks at every
 * execution of small worlds.
 */
#include "mixed_slots.h"

#include "support/random.h"

enum { STEPS = 6, MOST_PUTS = 64 };

static uint64_t faults_of(const scheduled *w, uint64_t n_steps, uint64_t n_slots)
{
    slot_history h;
    history_begin(&h, w->n_ranks);
    history_add(&h, w, n_steps);
    history_run(&h);
    uint64_t n = count_faults(&h, n_slots);
    history_forget(&h);
    return n;
}

/*
 * An all-reduce that goes there and back on one level only: its second message tells of the first
 * one's reading, and to the same ranks.
 */
static bool comes_back(const shape *s, const kind *k)
{
    bool bytes1 = k->mode == FERRY_MIXED_FUSED_BYTES1_MULTICAST ||
                  k->mode == FERRY_MIXED_FUSED_BYTES1_UNICAST;
    bool bytes2 = k->mode == FERRY_MIXED_FUSED_BYTES2_MULTICAST ||
                  k->mode == FERRY_MIXED_FUSED_BYTES2_UNICAST;
    return k->op == FERRY_MIXED_ALL_REDUCE &&
           ((bytes1 && inter_size(s) == 1) || (bytes2 && local_size(s) == 1));
}

/* What is pipelined needs four slots, and from the fourth step on; rings need two. */
static void check_kind(const shape *s, const kind *k)
{
    scheduled w;
    schedule_all(s, k, &w);
    bool pipelined = is_pipelined(w.schedules), alone = w.n_ranks == 1;
    check_scheduled(&w, pipelined == !is_base(k->mode));
    check_scheduled(&w, faults_of(&w, STEPS, FY_MIX_N_SLOTS) == 0);
    if (pipelined) {
        bool three = alone || comes_back(s, k);
        check_scheduled(&w, (faults_of(&w, STEPS, FY_MIX_N_SLOTS - 1) == 0) == three);
        check_scheduled(&w, faults_of(&w, FY_MIX_N_SLOTS - 1, FY_MIX_N_SLOTS - 1) == 0);
    } else {
        check_scheduled(&w, faults_of(&w, STEPS, 2) == 0);
        check_scheduled(&w, alone || faults_of(&w, STEPS, 1) > 0);
    }
    forget_schedules(&w);
}

static void check_shape_alone(const shape *s)
{
    kind kinds[MOST_KINDS];
    for (uint32_t i = 0, n = list_kinds(s, kinds); i < n; i++) {
        check_kind(s, &kinds[i]);
    }
}

static void test_each(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 8; n++) {
        walk_shapes_of(n, check_shape_alone);
    }
    const shape larger[] = {{3, 1, 3, 1}, {1, 3, 1, 3}, {2, 2, 1, 3}, {2, 2, 3, 1}, {3, 2, 2, 1}};
    for (size_t i = 0; i < COUNT_OF(larger); i++) {
        check_shape_alone(&larger[i]);
    }
}

static uint64_t random_state = 20250117;

/* Sequences of calls on one handle: kinds that differ in nothing but operation and mode. */
static void check_sequences(const shape *s)
{
    kind all[MOST_KINDS];
    uint32_t n_all = list_kinds(s, all);
    scheduled w[MOST_KINDS];
    for (uint32_t first = 0, n; first < n_all; first += n) {
        for (n = 0; first + n < n_all && all[first + n].mapped == all[first].mapped &&
                    all[first + n].deterministic == all[first].deterministic;
             n++) {
            schedule_all(s, &all[first + n], &w[n]);
        }
        for (uint32_t round = 0; round < 4; round++) {
            slot_history h;
            history_begin(&h, w[0].n_ranks);
            for (uint32_t call = 0; call < 10; call++) {
                uint64_t pick = random_u64(&random_state);
                history_add(&h, &w[pick % n], 1 + pick / n % 5);
            }
            history_run(&h);
            check_scheduled(&w[0], count_faults(&h, FY_MIX_N_SLOTS) == 0);
            history_forget(&h);
        }
        for (uint32_t i = 0; i < n; i++) {
            forget_schedules(&w[i]);
        }
    }
}

static void test_sequences(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 6; n++) {
        walk_shapes_of(n, check_sequences);
    }
}

/*
 * The same question asked by walking through all states of two ranks, one step after the other, and
 * of every put whether it has come.
 */
typedef struct walk_state {
    uint32_t at[2];
    uint64_t arrived; /* bits of puts */
} walk_state;

typedef struct walk {
    slot_history *h;
    uint64_t n_slots;
    uint32_t puts[MOST_PUTS];
    uint32_t n_puts;
    walk_state *states;
    size_t n_states, room;
    uint32_t *hash; /* number + 1 */
    size_t hash_room;
    bool fault;
} walk;

static uint32_t put_number(const walk *k, uint32_t message)
{
    for (uint32_t i = 0; i < k->n_puts; i++) {
        if (k->puts[i] == message) {
            return i;
        }
    }
    fail_msg("no such put");
    return 0;
}

static bool is_done(const walk *k, const walk_state *s, const slot_access *a)
{
    if (a->put != NO_PUT) {
        return (s->arrived >> put_number(k, a->put) & 1) != 0;
    }
    return s->at[a->event.rank] > a->event.index;
}

/* In going to `next`, was something done that must come after what is not yet done? */
static void look(walk *k, const walk_state *now, const walk_state *next)
{
    const slot_history *h = k->h;
    for (size_t i = 0; i < h->n_accesses; i++) {
        const slot_access *b = &h->accesses[i];
        if (is_done(k, now, b) || !is_done(k, next, b)) {
            continue;
        }
        for (size_t j = 0; j < h->n_accesses; j++) {
            const slot_access *a = &h->accesses[j];
            if (a->place == b->place && a->use <= b->use && conflict(a, b, k->n_slots) &&
                !is_done(k, next, a)) {
                k->fault = true;
            }
        }
    }
}

static void visit(walk *k, const walk_state *now, const walk_state *next)
{
    look(k, now, next);
    uint64_t key =
        (next->arrived * 1000003 + next->at[0]) * 1000003 + next->at[1] * UINT64_C(2654435761);
    size_t at = (key ^ key >> 29) % k->hash_room;
    for (; k->hash[at] != 0; at = (at + 1) % k->hash_room) {
        const walk_state *s = &k->states[k->hash[at] - 1];
        if (s->at[0] == next->at[0] && s->at[1] == next->at[1] && s->arrived == next->arrived) {
            return;
        }
    }
    assert_true(k->n_states < k->room);
    k->states[k->n_states++] = *next;
    k->hash[at] = (uint32_t)k->n_states;
}

/* Whether a rank's next event is no wait, or all that it waits for is there. */
static bool can_go(const walk *k, const walk_state *s, uint32_t rank)
{
    const slot_history *h = k->h;
    size_t n_messages = FY_MIX_N_EDGES * h->n_ranks * h->n_ranks * h->most_uses;
    if (s->at[rank] == h->cursors[rank].n_events) {
        return false;
    }
    for (size_t i = 0; i < n_messages; i++) {
        const slot_message *m = &h->messages[i];
        if (m->heard && m->wait.rank == rank && m->wait.index == s->at[rank]) {
            bool there = m->put ? (s->arrived >> put_number(k, (uint32_t)i) & 1) != 0
                                : s->at[m->post.rank] > m->post.index;
            if (!there) {
                return false;
            }
        }
    }
    return true;
}

static void walk_from(walk *k, walk_state now)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        walk_state next = now;
        next.at[rank]++;
        if (can_go(k, &now, rank)) {
            visit(k, &now, &next);
        }
    }
    for (uint32_t i = 0; i < k->n_puts; i++) {
        const slot_message *m = &k->h->messages[k->puts[i]];
        walk_state next = now;
        next.arrived |= UINT64_C(1) << i;
        if (next.arrived != now.arrived && now.at[m->post.rank] > m->post.index) {
            visit(k, &now, &next);
        }
    }
}

static bool walk_finds_fault(slot_history *h, uint64_t n_slots)
{
    walk k = {.h = h, .n_slots = n_slots, .room = 1 << 18, .hash_room = 1 << 19};
    size_t n_messages = FY_MIX_N_EDGES * h->n_ranks * h->n_ranks * h->most_uses;
    walk_state start = {{0, 0}, 0};
    k.states = calloc(k.room, sizeof *k.states);
    k.hash = calloc(k.hash_room, sizeof *k.hash);
    assert_true(k.states != NULL && k.hash != NULL);
    for (size_t i = 0; i < n_messages; i++) {
        if (h->messages[i].put) {
            assert_true(k.n_puts < MOST_PUTS);
            k.puts[k.n_puts++] = (uint32_t)i;
        }
    }
    visit(&k, &start, &start);
    for (size_t i = 0; i < k.n_states && !k.fault; i++) {
        walk_from(&k, k.states[i]);
    }
    free(k.states);
    free(k.hash);
    return k.fault;
}

static void compare_with_walk(const shape *s)
{
    kind kinds[MOST_KINDS];
    for (uint32_t i = 0, n = list_kinds(s, kinds); i < n; i++) {
        scheduled w;
        schedule_all(s, &kinds[i], &w);
        for (uint64_t n_slots = 1; n_slots <= FY_MIX_N_SLOTS; n_slots++) {
            slot_history h;
            history_begin(&h, w.n_ranks);
            history_add(&h, &w, n_slots + 1);
            history_run(&h);
            bool faults = count_faults(&h, n_slots) > 0;
            check_scheduled(&w, walk_finds_fault(&h, n_slots) == faults);
            history_forget(&h);
        }
        forget_schedules(&w);
    }
}

static void test_against_all_states(void **state)
{
    (void)state;
    walk_shapes_of(2, compare_with_walk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each),
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_against_all_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
