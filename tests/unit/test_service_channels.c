/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The channels of a rank: whom it exchanges items with, and what is relayed on the way. */
#include "support/check.h"

#include "base/alloc.h"
#include "base/sort.h"
#include "service/prepare.h"

#include <ferry/schedule.h>

#include <stdlib.h>

ferry_status __real_ferry_schedule_batch_at(const ferry_schedule *schedule, uint64_t index,
                                            ferry_batch *batch_out, ferry_error *error);
ferry_status __wrap_ferry_schedule_batch_at(const ferry_schedule *schedule, uint64_t index,
                                            ferry_batch *batch_out, ferry_error *error);
bool __wrap_fy_peer_is_direct(ferry_service *service, uint32_t peer);

static size_t n_looks; /* at batches */

ferry_status __wrap_ferry_schedule_batch_at(const ferry_schedule *schedule, uint64_t index,
                                            ferry_batch *batch_out, ferry_error *error)
{
    n_looks++;
    return __real_ferry_schedule_batch_at(schedule, index, batch_out, error);
}

/* There is no transport that would know. */
bool __wrap_fy_peer_is_direct(ferry_service *service, uint32_t peer)
{
    (void)service;
    return peer % 2 == 0;
}

enum { MOST_TASKS = 4096 };

typedef struct load {
    uint32_t n_ranks;
    ferry_task tasks[MOST_TASKS];
    size_t n_tasks;
    ferry_schedule *schedule;
} load;

static void add_task(load *l, uint32_t from, uint32_t to, uint64_t bytes, uint64_t content)
{
    ferry_task task = FERRY_TASK_INIT;
    task.task_id = 3 * l->n_tasks + 1;
    task.from = from;
    task.to = to;
    task.bytes = bytes;
    task.element_bytes = 2;
    task.has_content = content != 0;
    task.content = content;
    assert_true(l->n_tasks < MOST_TASKS);
    l->tasks[l->n_tasks++] = task;
}

static void schedule_load(load *l)
{
    ferry_task_list *list = NULL;
    ferry_error error;
    must(ferry_task_list_create(l->n_ranks, &list, &error), &error);
    for (size_t i = 0; i < l->n_tasks; i++) {
        must(ferry_task_list_add(list, &l->tasks[i], &error), &error);
    }
    must(ferry_schedule_create(list, NULL, NULL, &l->schedule, &error), &error);
    ferry_task_list_destroy(list);
}

static int compare_ends(const void *a, const void *b)
{
    const fy_end *x = a, *y = b;
    if (x->peer != y->peer) {
        return x->peer < y->peer ? -1 : 1;
    }
    return (x->task_id > y->task_id) - (x->task_id < y->task_id);
}

/* What a rank registered, as it lies before channels are made. */
static void fill_ends(const load *l, uint32_t rank, fy_registry *registry)
{
    registry->sends.items = fy_alloc_zeroed(l->n_tasks, sizeof(fy_end));
    registry->receives.items = fy_alloc_zeroed(l->n_tasks, sizeof(fy_end));
    assert_true(registry->sends.items != NULL && registry->receives.items != NULL);
    for (size_t i = 0; i < l->n_tasks; i++) {
        const ferry_task *task = &l->tasks[i];
        fy_end end = {.task_id = task->task_id, .bytes = task->bytes};
        if (task->from == rank) {
            end.peer = task->to;
            registry->sends.items[registry->sends.n++] = end;
        }
        if (task->to == rank) {
            end.peer = task->from;
            registry->receives.items[registry->receives.n++] = end;
        }
    }
    fy_sort(registry->sends.items, registry->sends.n, sizeof(fy_end), compare_ends);
    fy_sort(registry->receives.items, registry->receives.n, sizeof(fy_end), compare_ends);
}

static fy_service_program *channels_of(const load *l, uint32_t rank, ferry_world *world,
                                       ferry_service *service)
{
    ferry_error error;
    world->rank = rank;
    world->n_ranks = l->n_ranks;
    *service = (ferry_service){.world = world};
    service->program = fy_alloc_zeroed(1, sizeof *service->program);
    service->wire = fy_alloc_zeroed(1, sizeof *service->wire);
    service->program->rounds = l->schedule;
    fill_ends(l, rank, &service->registry);
    must(fy_channels_make(service, &error), &error);
    return service->program;
}

static void release(ferry_service *service)
{
    service->program->rounds = NULL; /* the load's */
    fy_wire_destroy(service->wire);
    fy_service_program_destroy(service->program);
    fy_registry_cleanup(&service->registry);
}

/* Whether a relayed segment of the task goes from one rank to the other, of all batches there are.
 */
static bool is_relayed(const load *l, uint32_t from, uint32_t to, uint64_t task_id)
{
    ferry_schedule_report report = FERRY_SCHEDULE_REPORT_INIT;
    ferry_error error;
    must(ferry_schedule_get_report(l->schedule, &report, &error), &error);
    for (uint64_t b = 0; b < report.n_batches; b++) {
        ferry_batch batch = FERRY_BATCH_INIT;
        must(__real_ferry_schedule_batch_at(l->schedule, b, &batch, &error), &error);
        for (uint32_t s = 0; batch.from == from && batch.to == to && s < batch.n_segments; s++) {
            ferry_segment segment = FERRY_SEGMENT_INIT;
            must(ferry_schedule_segment_at(l->schedule, batch.first_segment + s, &segment, &error),
                 &error);
            if (segment.is_relayed && segment.task_id == task_id) {
                return true;
            }
        }
    }
    return false;
}

/* How many tasks are relayed on a channel, where each is in its list once and in order. */
static size_t check_relays(const load *l, const ferry_service *service, const fy_channel *channel)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    uint32_t self = service->world->rank, n_sent = 0, n_received = 0;
    for (size_t i = 0; i < l->n_tasks; i++) { /* in order of ids */
        uint64_t id = l->tasks[i].task_id;
        if (is_relayed(l, self, channel->peer, id)) {
            assert_true(n_sent < wire->n_relayed_sends);
            assert_true(wire->relayed_sends[n_sent++] == id);
        }
        if (is_relayed(l, channel->peer, self, id)) {
            assert_true(n_received < wire->n_relayed_receives);
            uint32_t end = wire->relayed_receives[n_received++];
            assert_true(service->registry.receives.items[end].task_id == id);
        }
    }
    assert_int_equal(n_sent, wire->n_relayed_sends);
    assert_int_equal(n_received, wire->n_relayed_receives);
    assert_true(channel->relays == (n_sent > 0));
    return n_sent + n_received;
}

/* Two contents to many ranks, and something that is nobody else's. */
static void test_relays(void **state)
{
    static load l = {.n_ranks = 7};
    ferry_world world;
    ferry_service service;
    size_t n_relayed = 0;
    (void)state;
    memset(&world, 0, sizeof world);
    for (uint32_t to = 1; to < l.n_ranks; to++) {
        add_task(&l, 0, to, 1 << 20, 1);
        add_task(&l, 0, to, 1 << 18, to % 2 == 0 ? 2 : 0);
    }
    add_task(&l, 3, 0, 5000, 0);
    schedule_load(&l);
    for (uint32_t rank = 0; rank < l.n_ranks; rank++) {
        fy_service_program *program = channels_of(&l, rank, &world, &service);
        for (uint32_t c = 0; c < program->n_channels; c++) {
            const fy_channel *channel = &program->channels[c];
            assert_true(channel->peer != rank && (c == 0 || channel[-1].peer < channel->peer));
            assert_true(channel->direct == (channel->peer % 2 == 0));
            n_relayed += check_relays(&l, &service, channel);
        }
        release(&service);
    }
    assert_true(n_relayed > 10);
    ferry_schedule_destroy(l.schedule);
}

static size_t looks_of(uint32_t n_ranks)
{
    static load l;
    ferry_world world;
    ferry_service service;
    memset(&world, 0, sizeof world);
    l = (load){.n_ranks = n_ranks};
    for (uint32_t to = 1; to < n_ranks; to++) {
        add_task(&l, 0, to, 1000, 0);
        add_task(&l, to, 0, 1000, 0);
    }
    schedule_load(&l);
    n_looks = 0;
    fy_service_program *program = channels_of(&l, 0, &world, &service);
    size_t n = n_looks;
    assert_int_equal(program->n_channels, n_ranks - 1);
    release(&service);
    ferry_schedule_destroy(l.schedule);
    return n;
}

/* A rank that talks to all looks at each of its batches a few times, not once for each peer. */
static void test_looks(void **state)
{
    (void)state;
    size_t few = looks_of(65), many = looks_of(257);
    check_at(few >= 128 && many <= 5 * few, "%zu looks with 64 peers, %zu with 256", few, many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_relays),
        cmocka_unit_test(test_looks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
