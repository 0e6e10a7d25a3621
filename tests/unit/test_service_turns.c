/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * How much is let go and let come at once where ranks take turns. Bytes are right without any
 * limit, only slowly so, and no test of speed can tell: so this program stands in front of signals
 * and counts. Each rank sends many items to each other one, but too few bytes for a rate to be
 * learnt: windows stay as small as they can be.
 */
#include "rank_threads.h"

#include "service/run.h"

#include <stdlib.h>

enum {
    N_RANKS = 5,
    BYTES = 200 << 10,
    SLOT = 1 << 10,
    MOST_AWAY = FY_LEAST_WINDOW + FY_LEAST_WINDOW / 2
};

typedef struct counts {
    const ferry_service *service;
    uint32_t most_away; /* sent in turns, and not yet dealt with */
    uint32_t most_let;  /* let come, and not yet dealt with */
    uint64_t n_let;     /* times that more was let come */

} counts;

static _Thread_local counts *mine;

ferry_status __real_ferry_transport_put_signal(ferry_transport *transport, uint32_t peer,
                                               ferry_region *region, uint64_t offset,
                                               const ferry_buffer *source,
                                               const ferry_signal *signal, ferry_queue *queue,
                                               ferry_error *error);
ferry_status __wrap_ferry_transport_put_signal(ferry_transport *transport, uint32_t peer,
                                               ferry_region *region, uint64_t offset,
                                               const ferry_buffer *source,
                                               const ferry_signal *signal, ferry_queue *queue,
                                               ferry_error *error);

/* What is on its way of this rank's with what the signal tells of. */
static uint32_t count_away(const ferry_service *service, uint32_t peer, uint32_t arrived)
{
    uint32_t away = 0;
    for (uint32_t c = 0; c < service->program->n_channels; c++) {
        const fy_channel_state *state = &service->run->channels[c];
        uint32_t n_sent = state->channel->peer == peer ? arrived : state->n_sent;
        away += state->channel->in_turns ? n_sent - state->n_consumed : 0;
    }
    return away;
}

static uint32_t count_let(const ferry_service *service)
{
    uint32_t let = 0;
    for (uint32_t c = 0; c < service->program->n_channels; c++) {
        const fy_channel_state *state = &service->run->channels[c];
        let += state->granted > state->n_dealt ? state->granted - state->n_dealt : 0;
    }
    return let;
}

static void count_signal(const ferry_service *service, uint32_t peer, const ferry_signal *signal)
{
    uint32_t word = (uint32_t)(signal->offset / sizeof(uint64_t) % FY_WORDS);
    if (signal->region != service->control || signal->value >> 32 != service->run->number) {
        return;
    }
    if (word == FY_WORD_ARRIVED) {
        uint32_t away = count_away(service, peer, (uint32_t)signal->value);
        mine->most_away = away > mine->most_away ? away : mine->most_away;
    } else if (word == FY_WORD_TURN) {
        uint32_t let = count_let(service);
        mine->most_let = let > mine->most_let ? let : mine->most_let;
        mine->n_let++;
    }
}

ferry_status __wrap_ferry_transport_put_signal(ferry_transport *transport, uint32_t peer,
                                               ferry_region *region, uint64_t offset,
                                               const ferry_buffer *source,
                                               const ferry_signal *signal, ferry_queue *queue,
                                               ferry_error *error)
{
    if (mine != NULL && mine->service != NULL && mine->service->run != NULL) {
        count_signal(mine->service, peer, signal);
    }
    return __real_ferry_transport_put_signal(transport, peer, region, offset, source, signal, queue,
                                             error);
}

/*
 * The rate of the network is of bytes that came in a run: one that began ages ago says nothing of
 * it, and the window that was learnt holds.
 */
static void run_after_a_pause(rank_thread *self, ferry_service *service)
{
    fy_turn_window *window = &service->run->window;
    *window = (fy_turn_window){.n = FY_LEAST_WINDOW + 3, .bytes = UINT64_C(1) << 30, .since_ns = 1};
    expect_ok(self, ferry_service_run(service, NULL, &self->error));
    expect(self, window->n == FY_LEAST_WINDOW + 3);
}

static void run_turns(rank_thread *self)
{
    counts own = {.service = NULL};
    ferry_service *service = NULL;
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    unsigned char *memory = calloc(2 * N_RANKS, BYTES);
    expect(self, memory != NULL);
    options.engines = "delay=500us:inproc"; /* answers take their time */
    options.paths = FERRY_PATH_STAGED;
    options.slot_bytes = SLOT;
    options.n_threads = 1;
    expect_ok(self, ferry_service_create(self->world, &options, &service, &self->error));
    expect_ok(self, ferry_service_init(service, FERRY_LOG_OFF, &self->error));
    for (uint32_t peer = 0; peer < N_RANKS; peer++) {
        ferry_buffer from = ferry_buffer_of(memory + (size_t)peer * BYTES, BYTES);
        ferry_buffer to = ferry_buffer_of(memory + (size_t)(N_RANKS + peer) * BYTES, BYTES);
        memset(from.base, (int)(self->rank * 10 + peer + 1), BYTES);
        if (peer != self->rank) {
            expect_ok(self, ferry_service_register_send(service, self->rank, &from, 0, BYTES, peer,
                                                        &self->error));
            expect_ok(self, ferry_service_register_receive(service, peer, &to, 0, BYTES, peer,
                                                           &self->error));
        }
    }
    expect_ok(self, ferry_service_schedule(service, &self->error));
    for (uint32_t c = 0; c < service->program->n_channels; c++) {
        expect(self, service->program->channels[c].in_turns);
        expect(self, service->program->channels[c].out.n_items >= BYTES / SLOT);
    }
    own.service = service;
    mine = &own;
    expect_ok(self, ferry_service_run(service, NULL, &self->error));
    mine = NULL;
    run_after_a_pause(self, service);
    for (uint32_t peer = 0; peer < N_RANKS; peer++) {
        const unsigned char *to = memory + (size_t)(N_RANKS + peer) * BYTES;
        expect(self, peer == self->rank || to[0] == peer * 10 + self->rank + 1);
        expect(self, peer == self->rank || to[BYTES - 1] == to[0]);
    }
    ferry_service_destroy(service);
    free(memory);
    counts *all = self->context;
    all[self->rank] = own;
}

static void test_limits(void **state)
{
    (void)state;
    static counts all[N_RANKS];
    run_ranks(N_RANKS, NULL, run_turns, all);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        check_at(all[r].most_away > 1, "rank %u: %u items on their way", r, all[r].most_away);
        check_at(all[r].most_away <= MOST_AWAY, "rank %u: %u items on their way", r,
                 all[r].most_away);
        check_at(all[r].n_let > 1, "rank %u: %llu turns", r, (unsigned long long)all[r].n_let);
        check_at(all[r].most_let <= 2 * FY_LEAST_WINDOW, "rank %u: %u items let come at once", r,
                 all[r].most_let);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
