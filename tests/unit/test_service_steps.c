/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What the loop of a run looks at. A rank may have thousands of channels, as one that registers a
 * task for each rank of a large world has: its looks at them must grow with the items that it
 * moves. There is no world here: what would move bytes, tell peers or the time is this file's.
 */
#include "support/check.h"

#include "service/send.h"
#include "transport/word.h"

#include <stdlib.h>

enum { MOST_CHANNELS = 1024, ITEMS = 32, RUN = 9 };

static size_t n_given;           /* times that turns were given */
static uint32_t n_signals, said; /* words raised at peers, and what the last one says of items */
static uint64_t orders[MOST_CHANNELS * ITEMS];
static size_t n_sent;
static size_t n_steps;

void __real_fy_turns_give(ferry_service *service);
uint64_t __wrap_fy_region_noted(const ferry_region *region);
void __wrap_fy_statistics_received(ferry_service *service, const fy_channel *channel,
                                   const fy_item *item, int64_t begin_ns, int64_t unpacked_ns);
void __wrap_fy_turns_give(ferry_service *service);
int64_t __wrap_fy_now_ns(void);
bool __wrap_fy_transport_shares_pointers(const ferry_transport *transport, uint32_t peer);
void *__wrap_ferry_region_base(const ferry_region *region);
ferry_status __wrap_fy_copy_mapped(ferry_service *service, const fy_channel *channel,
                                   const fy_item *items, uint32_t n, uint64_t *hashes,
                                   ferry_error *error);
void __wrap_fy_statistics_sent(ferry_service *service, const fy_channel *channel,
                               const fy_item *item, int64_t begin_ns, int64_t end_ns);
ferry_status __wrap_ferry_transport_put_signal(ferry_transport *transport, uint32_t peer,
                                               ferry_region *region, uint64_t offset,
                                               const ferry_buffer *source,
                                               const ferry_signal *signal, ferry_queue *queue,
                                               ferry_error *error);

void __wrap_fy_turns_give(ferry_service *service)
{
    (void)service;
    n_given++;
}

static int64_t now_ns;

int64_t __wrap_fy_now_ns(void)
{
    return now_ns;
}

bool __wrap_fy_transport_shares_pointers(const ferry_transport *transport, uint32_t peer)
{
    (void)transport;
    (void)peer;
    return false;
}

enum { NOTED = MOST_CHANNELS * FY_WORDS * sizeof(uint64_t) };
static uint64_t words[MOST_CHANNELS * FY_WORDS + MOST_CHANNELS / 64]; /* with their notes */

uint64_t __wrap_fy_region_noted(const ferry_region *region)
{
    (void)region;
    return NOTED;
}

void __wrap_fy_statistics_received(ferry_service *service, const fy_channel *channel,
                                   const fy_item *item, int64_t begin_ns, int64_t unpacked_ns)
{
    (void)service;
    (void)channel;
    (void)item;
    (void)begin_ns;
    (void)unpacked_ns;
}

/* As a peer does. */
static void raise_word(uint32_t channel, uint32_t word, uint64_t value)
{
    fy_word_raise(fy_word_at(words, fy_word_offset(channel, word)), value, FERRY_SIGNAL_SET);
    fy_word_note(words, NOTED, fy_word_offset(channel, word));
}

void *__wrap_ferry_region_base(const ferry_region *region)
{
    (void)region;
    return words;
}

ferry_status __wrap_fy_copy_mapped(ferry_service *service, const fy_channel *channel,
                                   const fy_item *items, uint32_t n, uint64_t *hashes,
                                   ferry_error *error)
{
    (void)error;
    (void)service;
    (void)channel;
    (void)hashes;
    for (uint32_t i = 0; i < n; i++) {
        orders[n_sent++] = items[i].order;
    }
    return FERRY_OK;
}

void __wrap_fy_statistics_sent(ferry_service *service, const fy_channel *channel,
                               const fy_item *item, int64_t begin_ns, int64_t end_ns)
{
    (void)service;
    (void)channel;
    (void)item;
    (void)begin_ns;
    (void)end_ns;
}

ferry_status __wrap_ferry_transport_put_signal(ferry_transport *transport, uint32_t peer,
                                               ferry_region *region, uint64_t offset,
                                               const ferry_buffer *source,
                                               const ferry_signal *signal, ferry_queue *queue,
                                               ferry_error *error)
{
    (void)transport;
    (void)peer;
    (void)region;
    (void)offset;
    (void)source;
    (void)queue;
    (void)error;
    n_signals++;
    said = (uint32_t)signal->value;
    return FERRY_OK;
}

typedef struct scene {
    ferry_service service;
    fy_service_program program;
    fy_run_state run;
    fy_channel channels[MOST_CHANNELS];
    fy_channel_state states[MOST_CHANNELS];
    fy_item items[MOST_CHANNELS][ITEMS];
    uint32_t same_round[MOST_CHANNELS];
} scene;

/* Channels that each have some items to send, in order of their rounds, and as many to receive. */
static scene *open_scene(uint32_t n_channels)
{
    static scene s;
    memset(&s, 0, sizeof s);
    memset(words, 0, sizeof words);
    s.service.program = &s.program;
    s.service.run = &s.run;
    s.program = (fy_service_program){.channels = s.channels, .n_channels = n_channels};
    s.run = (fy_run_state){.channels = s.states, .same_round = s.same_round, .number = RUN};
    for (uint32_t c = 0; c < n_channels; c++) {
        fy_channel *channel = &s.channels[c];
        channel->peer = c;
        s.states[c].channel = channel;
        channel->out.items = channel->in.items = s.items[c];
        channel->out.n_items = channel->in.n_items = ITEMS;
        for (uint32_t i = 0; i < ITEMS; i++) {
            s.items[c][i] = (fy_item){.path = FERRY_PATH_MAPPED, .bytes = 512 << 10};
            /* Scattered over all rounds, but rising. */
            s.items[c][i].order = (uint64_t)i * n_channels + (uint64_t)c * 389 % n_channels;
        }
    }
    n_given = n_sent = n_steps = n_signals = said = 0;
    now_ns = 0;
    return &s;
}

static void compile(scene *s)
{
    ferry_error error;
    must(fy_service_compile(&s->program, &error), &error);
    must(fy_drive_open(&s->run.drive, &s->program.steps, NULL, &error), &error);
    must(fy_heap_open(&s->run.turns, s->program.n_channels, &error), &error);
    fy_drive_begin(&s->run.drive, &s->program.steps, &fy_service_verbs, &s->service, 1);
}

static void enter_all(scene *s)
{
    for (uint32_t c = 0; c < s->program.n_channels; c++) {
        s->states[c].entered = true;
        fy_drive_raise(&s->run.drive, fy_counter_of(c, FY_COUNTER_ENTERED), 1);
    }
}

static void close_scene(scene *s)
{
    fy_drive_close(&s->run.drive);
    fy_heap_close(&s->run.turns);
    fy_program_cleanup(&s->program.steps);
}

/* One item in each step, for what comes in is looked at between any two. */
static void send_all(scene *s)
{
    while (fy_send_step(&s->service)) {
        n_steps++;
        assert_int_equal(n_sent, n_steps);
    }
    assert_int_equal(n_sent, s->program.n_channels * ITEMS);
    for (size_t i = 1; i < n_sent; i++) {
        assert_true(orders[i - 1] <= orders[i]); /* what comes first goes first */
    }
}

/* At lanes, for each item that is sent. */
static uint64_t looks_to_send(uint32_t n_channels)
{
    scene *s = open_scene(n_channels);
    compile(s);
    enter_all(s);
    uint64_t before = s->run.drive.n_looks;
    send_all(s);
    uint64_t looks = s->run.drive.n_looks - before;
    close_scene(s);
    assert_true(looks >= n_channels * ITEMS);
    return looks / (n_channels * ITEMS);
}

static void test_looks(void **state)
{
    (void)state;
    uint64_t few = looks_to_send(8), many = looks_to_send(1000);
    check_at(many <= few, "%llu looks for an item of 8 channels, %llu of 1,000",
             (unsigned long long)few, (unsigned long long)many);
}

/* What goes through memory and what takes turns on a network is sent in one order. */
static void test_order(void **state)
{
    (void)state;
    scene *s = open_scene(16);
    s->channels[3].in_turns = true;
    compile(s);
    enter_all(s);
    s->run.window.n = FY_MOST_WINDOW; /* room for all of them */
    fy_drive_raise(&s->run.drive, fy_counter_of(3, FY_COUNTER_TURN), ITEMS);
    send_all(s);
    close_scene(s);
}

/*
 * At words and lanes, for each item that is received: one comes after the other, each through
 * another channel. Those of the run's first step, which looks at all, are not counted.
 */
static uint64_t looks_to_receive(uint32_t n_channels)
{
    scene *s = open_scene(n_channels);
    compile(s);
    s->run.looks_at_all = true;
    assert_false(fy_receive_step(&s->service));
    assert_int_equal(s->run.n_looks, n_channels);
    uint64_t before = s->run.n_looks + s->run.drive.n_looks;
    for (uint32_t i = 1; i <= ITEMS; i++) {
        for (uint32_t k = 0; k < n_channels; k++) {
            uint32_t c = (uint32_t)((uint64_t)k * 389 % n_channels);
            raise_word(c, FY_WORD_ARRIVED, (uint64_t)RUN << 32 | i);
            assert_true(fy_receive_step(&s->service));
            assert_int_equal(s->states[c].n_dealt, i);
            assert_false(fy_receive_step(&s->service));
        }
    }
    uint64_t looks = s->run.n_looks + s->run.drive.n_looks - before;
    close_scene(s);
    return looks / (n_channels * ITEMS);
}

/*
 * What is sent in one step, and which of those steps end with a word. Small items go together: 32
 * KiB through slots, 256 KiB in place; large ones alone. A peer that can do nothing before the last
 * one has come hears of each 4 MiB, and of the last.
 */
static void test_together(void **state)
{
    static const struct {
        uint64_t bytes;
        bool is_staged, has_rounds, checks_ends;
        uint32_t n_steps, n_signals;
    } rows[] = {
        {1, true, false, false, 1, 1},
        {1 << 10, true, false, false, 1, 1},
        {(1 << 10) + 1, true, false, false, 2, 2},
        {8 << 10, true, false, false, 8, 8},
        {20 << 10, true, false, false, 32, 32},
        {1, false, false, false, 1, 1},
        {8 << 10, false, false, false, 1, 1},
        {(8 << 10) + 1, false, false, false, 2, 1},
        {128 << 10, false, false, false, 16, 1},
        {256 << 10, false, false, false, 32, 2},
        {257 << 10, false, false, false, 32, 2},
        {(4 << 20) - 1, false, false, false, 32, 16},
        {4 << 20, false, false, false, 32, 32},
        {64 << 10, false, true, false, 8, 8},
        {64 << 10, false, false, true, 8, 8},
    };
    (void)state;
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        static char slot[FY_SLOT_HEAD_BYTES];
        static ferry_schedule *const rounds = (ferry_schedule *)slot; /* never looked into */
        scene *s = open_scene(1);
        for (uint32_t i = 0; i < ITEMS; i++) {
            s->items[0][i].bytes = rows[r].bytes;
            s->items[0][i].path = rows[r].is_staged ? FERRY_PATH_STAGED : FERRY_PATH_MAPPED;
        }
        s->channels[0].reaches_ring = true;
        s->channels[0].out_mapped = slot;
        compile(s);
        s->program.rounds = rows[r].has_rounds ? rounds : NULL;
        s->program.checks_ends = rows[r].checks_ends;
        enter_all(s);
        for (uint32_t before = 0; fy_send_step(&s->service); before = n_signals) {
            n_steps++;
            if (n_signals > before) { /* no word runs ahead of its bytes, nor leaves any out */
                assert_int_equal(said, s->states[0].n_sent);
            }
        }
        assert_int_equal(said, ITEMS);
        check_at(n_steps == rows[r].n_steps, "row %zu: %zu steps", r, n_steps);
        check_at(n_signals == rows[r].n_signals, "row %zu: %u signals", r, n_signals);
        close_scene(s);
    }
}

/*
 * However many are there, a peer that waits for their slots hears of each eight; of what lies in
 * its place all are taken note of at once.
 */
static void test_received_together(void **state)
{
    (void)state;
    for (int answers = 0; answers < 2; answers++) {
        scene *s = open_scene(1);
        uint32_t at_once = answers ? 8 : ITEMS;
        s->channels[0].in_answered = answers;
        compile(s);
        s->run.looks_at_all = true;
        assert_false(fy_receive_step(&s->service));
        raise_word(0, FY_WORD_ARRIVED, (uint64_t)RUN << 32 | ITEMS);
        for (uint32_t n = at_once; n <= ITEMS; n += at_once) {
            assert_true(fy_receive_step(&s->service));
            assert_int_equal(s->states[0].n_dealt, n);
            assert_int_equal(n_signals, answers ? n / 8 : 0);
        }
        assert_false(fy_receive_step(&s->service));
        close_scene(s);
    }
}

/* What is read again in its place takes its time: of it no more at once than of what is answered.
 */
static void test_read_together(void **state)
{
    (void)state;
    for (int checks = 0; checks < 2; checks++) {
        scene *s = open_scene(1);
        const fy_program_step step = {.kind = FY_STEP_MOVE, .n = 1};
        s->program.checks_ends = checks;
        assert_int_equal(fy_service_verbs.take(&s->service, 1, &step, ITEMS), checks ? 8 : ITEMS);
    }
}

static bool take_no_letter(ferry_world *world, uint32_t from, uint64_t tag, void *buffer,
                           size_t capacity, size_t *n_bytes_out, uint32_t *from_out)
{
    (void)world;
    (void)from;
    (void)tag;
    (void)buffer;
    (void)capacity;
    (void)n_bytes_out;
    (void)from_out;
    return false;
}

/*
 * Each channel is looked at 16 times in a deadline, however seldom a rank looks around: a peer's
 * word is noticed within that time, and not taken for one that came later.
 */
static void test_watched(void **state)
{
    enum { N = 100 };
    static const struct {
        int64_t pause_ms; /* between two looks around */
        uint32_t at_once; /* channels */
    } rows[] = {{10, 1}, {20, 2}, {100, 10}, {250, 25}, {1000, N}, {2000, N}};
    static const fy_world_ops ops = {.take = take_no_letter};
    (void)state;
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        static ferry_world world;
        int64_t pause_ns = rows[r].pause_ms * 1000000, round_ns = 1000 * (int64_t)1000000;
        scene *s = open_scene(N);
        world.ops = &ops;
        world.settings.deadline_ns = 16 * round_ns;
        world.settings.entry_ns = -1;
        s->service.world = &world;
        s->run.pulse_ns = s->run.told_ns = INT64_MAX / 2; /* neither tells nor asks */
        for (uint32_t c = 0; c < N; c++) {
            raise_word(c, FY_WORD_PULSE, 1);
        }
        now_ns = pause_ns;
        fy_watch_tick(&s->service);
        uint32_t n = 0;
        for (uint32_t c = 0; c < N; c++) {
            n += s->states[c].heard_ns != 0;
        }
        check_at(n == rows[r].at_once, "row %zu: %u channels", r, n);
        while (now_ns < round_ns) {
            now_ns += pause_ns;
            fy_watch_tick(&s->service);
        }
        for (uint32_t c = 0; c < N; c++) {
            check_at(s->states[c].heard_ns != 0, "row %zu: channel %u was not looked at", r, c);
        }
    }
}

static void test_arrivals(void **state)
{
    (void)state;
    uint64_t few = looks_to_receive(8), many = looks_to_receive(1000);
    check_at(few > 0 && many <= few, "%llu looks for an item of 8 channels, %llu of 1,000",
             (unsigned long long)few, (unsigned long long)many);
}

/* All peers enter at once: turns are looked for once. */
static void test_turns(void **state)
{
    (void)state;
    scene *s = open_scene(MOST_CHANNELS);
    compile(s);
    for (uint32_t c = 0; c < MOST_CHANNELS; c++) {
        raise_word(c, FY_WORD_ENTERED, RUN);
    }
    assert_false(fy_receive_step(&s->service));
    for (uint32_t c = 0; c < MOST_CHANNELS; c++) {
        assert_true(s->states[c].entered);
    }
    assert_int_equal(n_given, 1);
    assert_false(fy_receive_step(&s->service));
    assert_int_equal(n_given, 1);
    close_scene(s);
}

/* What may be under way of this rank's: a window and half the least one, less what is. */
static void test_room(void **state)
{
    static const struct {
        uint32_t window, n_away, room;
    } rows[] = {{0, 0, 6}, {0, 2, 4}, {0, 6, 0}, {0, 9, 0}, {4, 5, 1}, {20, 0, 22}, {20, 30, 0}};
    (void)state;
    scene *s = open_scene(1);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        s->run.window.n = rows[i].window;
        s->run.n_away = rows[i].n_away;
        check_at(fy_turns_room(&s->run) == rows[i].room, "row %zu: %u", i, fy_turns_room(&s->run));
    }
}

/* No more is sent than there is room for, to however many peers could be. */
static void test_full(void **state)
{
    (void)state;
    scene *s = open_scene(MOST_CHANNELS / 4);
    for (uint32_t c = 0; c < s->program.n_channels; c++) {
        s->channels[c].in_turns = true;
    }
    compile(s);
    enter_all(s);
    assert_false(fy_send_step(&s->service)); /* it is nobody's turn */
    fy_drive_raise(&s->run.drive, fy_counter_of(3, FY_COUNTER_TURN), 1);
    assert_true(fy_send_step(&s->service));
    assert_int_equal(s->states[3].n_sent, 1);
    assert_false(fy_send_step(&s->service));
    for (uint32_t c = 0; c < s->program.n_channels; c++) {
        fy_drive_raise(&s->run.drive, fy_counter_of(c, FY_COUNTER_TURN), ITEMS);
    }
    while (fy_send_step(&s->service)) {}
    assert_int_equal(s->run.n_away, FY_LEAST_WINDOW + FY_LEAST_WINDOW / 2);
    assert_int_equal(n_sent, s->run.n_away);
    assert_false(fy_send_step(&s->service));
    close_scene(s);
}

/* A peer that has a round of more items than the window may send a window of them, and no more. */
static void test_long_round(void **state)
{
    enum { N = 10 };
    static const struct {
        uint32_t n_dealt, granted;
    } rows[] = {{0, FY_LEAST_WINDOW}, {3, 3 + FY_LEAST_WINDOW}, {N - 2, N}};
    fy_item items[N];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        scene *s = open_scene(1);
        fy_channel *channel = &s->channels[0];
        for (uint32_t k = 0; k < N; k++) {
            items[k] = (fy_item){.path = FERRY_PATH_STAGED, .bytes = 1, .order = 5};
        }
        channel->in_turns = true;
        channel->in.items = items;
        channel->in.n_items = N;
        compile(s);
        s->states[0].n_dealt = rows[i].n_dealt;
        s->states[0].entered = true;
        fy_turns_await(&s->run, 0);
        __real_fy_turns_give(&s->service);
        check_at(s->states[0].granted == rows[i].granted, "row %zu: %u", i, s->states[0].granted);
        close_scene(s);
    }
}

/*
 * Of many channels the first rounds are let come, by a model that looks at all of them: a window of
 * the lowest round, and one of the next if the rest of that one is let come.
 */
static void test_rounds(void **state)
{
    (void)state;
    scene *s = open_scene(MOST_CHANNELS / 8);
    uint32_t n = s->program.n_channels;
    for (uint32_t c = 0; c < n; c++) {
        s->channels[c].in_turns = true;
    }
    compile(s);
    for (uint32_t c = 0; c < n; c++) {
        s->states[c].entered = true;
        fy_turns_await(&s->run, c);
    }
    uint32_t n_finished = 0;
    for (uint64_t round = 0; round < (uint64_t)n * ITEMS; round++) {
        uint32_t due = FY_NONE, next = FY_NONE;
        for (uint32_t c = 0; c < n; c++) {
            for (uint32_t i = s->states[c].n_dealt; i < ITEMS; i++) {
                due = s->items[c][i].order == round ? c : due;
                next = s->items[c][i].order == round + 1 ? c : next;
            }
        }
        __real_fy_turns_give(&s->service);
        assert_int_equal(s->run.turns.n, n - n_finished);
        assert_true(due != FY_NONE && s->states[due].granted > s->states[due].n_dealt);
        assert_true(next == FY_NONE || s->states[next].granted > s->states[next].n_dealt);
        for (uint32_t c = 0; c < n; c++) {
            assert_true(c == due || c == next || s->states[c].granted <= s->states[c].n_dealt);
        }
        n_finished += ++s->states[due].n_dealt == ITEMS;
        fy_turns_await(&s->run, due);
    }
    assert_int_equal(s->run.turns.n, 0);
    close_scene(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_looks),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_received_together),
        cmocka_unit_test(test_read_together),
        cmocka_unit_test(test_watched),
        cmocka_unit_test(test_arrivals),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_long_round),
        cmocka_unit_test(test_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
