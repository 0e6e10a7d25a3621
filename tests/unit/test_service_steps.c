/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What the loop of a run looks at. A rank may have thousands of channels, as one that registers a
 * task for each rank of a large world has: its looks at them must grow with the items that it
 * moves. There is no world here: what would move bytes, tell peers or the time is this file's.
 */
#include "support/check.h"

#include "service/exec.h"
#include "service/send.h"

#include <stdlib.h>

enum { MOST_CHANNELS = 1024, ITEMS = 4, RUN = 9 };

static size_t n_looks; /* of fy_send_step at a channel that might send */
static size_t n_given; /* times that turns were given */
static uint64_t orders[MOST_CHANNELS * ITEMS];
static size_t n_sent;
static int64_t now_ns, step_ns; /* what an item takes */

void __real_fy_turns_give(ferry_service *service);
bool __wrap_fy_burst_takes(const fy_channel *channel, const fy_item *item);
void __wrap_fy_turns_give(ferry_service *service);
int64_t __wrap_fy_now_ns(void);
bool __wrap_fy_transport_shares_pointers(const ferry_transport *transport, uint32_t peer);
void *__wrap_ferry_region_base(const ferry_region *region);
void __wrap_fy_copy_mapped(ferry_service *service, const fy_channel *channel, const fy_item *item,
                           uint64_t *hashes);
void __wrap_fy_statistics_sent(ferry_service *service, const fy_channel *channel,
                               const fy_item *item, int64_t begin_ns, int64_t end_ns);
ferry_status __wrap_ferry_put_signal(ferry_transport *transport, uint32_t peer,
                                     ferry_region *region, uint64_t offset,
                                     const ferry_buffer *source, const ferry_signal *signal,
                                     ferry_queue *queue, ferry_error *error);

bool __wrap_fy_burst_takes(const fy_channel *channel, const fy_item *item)
{
    (void)channel;
    (void)item;
    n_looks++;
    return false;
}

void __wrap_fy_turns_give(ferry_service *service)
{
    (void)service;
    n_given++;
}

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

static uint64_t words[MOST_CHANNELS * FY_WORDS];

void *__wrap_ferry_region_base(const ferry_region *region)
{
    (void)region;
    return words;
}

void __wrap_fy_copy_mapped(ferry_service *service, const fy_channel *channel, const fy_item *item,
                           uint64_t *hashes)
{
    (void)service;
    (void)channel;
    (void)hashes;
    orders[n_sent++] = item->order;
    now_ns += step_ns;
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

ferry_status __wrap_ferry_put_signal(ferry_transport *transport, uint32_t peer,
                                     ferry_region *region, uint64_t offset,
                                     const ferry_buffer *source, const ferry_signal *signal,
                                     ferry_queue *queue, ferry_error *error)
{
    (void)transport;
    (void)peer;
    (void)region;
    (void)offset;
    (void)source;
    (void)signal;
    (void)queue;
    (void)error;
    return FERRY_OK;
}

typedef struct scene {
    ferry_service service;
    fy_exec exec;
    fy_channel channels[MOST_CHANNELS];
    fy_item items[MOST_CHANNELS][ITEMS];
    uint32_t ready[MOST_CHANNELS];
} scene;

/* Channels that can all send, each some items in order of their rounds. */
static scene *open_scene(uint32_t n_channels)
{
    static scene s;
    memset(&s, 0, sizeof s);
    memset(words, 0, sizeof words);
    s.service.exec = &s.exec;
    s.exec =
        (fy_exec){.channels = s.channels, .n_channels = n_channels, .ready = s.ready, .run = RUN};
    for (uint32_t c = 0; c < n_channels; c++) {
        fy_channel *channel = &s.channels[c];
        channel->peer = c;
        channel->entered = true;
        channel->out.items = s.items[c];
        channel->out.n_items = ITEMS;
        for (uint32_t i = 0; i < ITEMS; i++) {
            s.items[c][i] = (fy_item){.path = FERRY_PATH_MAPPED, .bytes = 1};
            /* Scattered over all rounds, but rising. */
            s.items[c][i].order = (uint64_t)i * n_channels + (uint64_t)c * 389 % n_channels;
        }
    }
    n_looks = n_given = n_sent = 0;
    now_ns = step_ns = 0;
    return &s;
}

/* Steps until nothing is left to send: how many. */
static size_t send_all(scene *s)
{
    size_t n_steps = 0;
    while (fy_send_step(&s->service)) {
        n_steps++;
        assert_true(n_steps <= MOST_CHANNELS * ITEMS);
    }
    assert_int_equal(n_sent, s->exec.n_channels * ITEMS);
    for (size_t i = 1; i < n_sent; i++) {
        assert_true(orders[i - 1] <= orders[i]); /* what comes first goes first */
    }
    return n_steps;
}

static size_t looks_of(uint32_t n_channels)
{
    send_all(open_scene(n_channels));
    return n_looks;
}

static void test_looks(void **state)
{
    (void)state;
    size_t few = looks_of(MOST_CHANNELS / 4), many = looks_of(MOST_CHANNELS);
    check_at(few >= MOST_CHANNELS / 4 * ITEMS && many <= 5 * few,
             "%zu looks at %d channels, %zu at %d", few, MOST_CHANNELS / 4, many, MOST_CHANNELS);
}

/* What comes in is looked at between any two items, of few channels, and of items that take long.
 */
static void test_pauses(void **state)
{
    (void)state;
    assert_int_equal(send_all(open_scene(16)), 16 * ITEMS);
    scene *s = open_scene(MOST_CHANNELS / 4);
    step_ns = 1000000;
    assert_int_equal(send_all(s), MOST_CHANNELS / 4 * ITEMS);
}

/* All peers enter at once: turns, which are looked for on all channels, are looked for once. */
static void test_turns(void **state)
{
    (void)state;
    scene *s = open_scene(MOST_CHANNELS);
    for (uint32_t c = 0; c < MOST_CHANNELS; c++) {
        s->channels[c].entered = false;
        words[c * FY_WORDS + FY_WORD_ENTERED] = RUN;
    }
    assert_false(fy_receive_step(&s->service));
    for (uint32_t c = 0; c < MOST_CHANNELS; c++) {
        assert_true(s->channels[c].entered);
    }
    assert_int_equal(n_given, 1);
    assert_false(fy_receive_step(&s->service));
    assert_int_equal(n_given, 1);
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
        s->exec.window = rows[i].window;
        s->exec.n_away = rows[i].n_away;
        check_at(fy_turns_room(&s->exec) == rows[i].room, "row %zu: %u", i,
                 fy_turns_room(&s->exec));
    }
}

/* A step sends no more than there is room for, to however many peers it could send. */
static void test_full_step(void **state)
{
    (void)state;
    scene *s = open_scene(MOST_CHANNELS / 4);
    for (uint32_t c = 0; c < s->exec.n_channels; c++) {
        s->channels[c].in_turns = true;
        s->channels[c].turn = ITEMS;
    }
    assert_true(fy_send_step(&s->service));
    assert_int_equal(s->exec.n_away, FY_LEAST_WINDOW + FY_LEAST_WINDOW / 2);
    assert_int_equal(n_sent, s->exec.n_away);
    assert_false(fy_send_step(&s->service));
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
        channel->n_dealt = rows[i].n_dealt;
        __real_fy_turns_give(&s->service);
        check_at(channel->granted == rows[i].granted, "row %zu: %u", i, channel->granted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_looks),     cmocka_unit_test(test_pauses),
        cmocka_unit_test(test_turns),     cmocka_unit_test(test_room),
        cmocka_unit_test(test_full_step), cmocka_unit_test(test_long_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
