/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Which ranks this one exchanges items with, and the ends of each pair. */
#include "service/prepare.h"

#include "base/alloc.h"
#include "base/sort.h"

#include <stdlib.h>

/* A mark for each rank of the world. */
typedef struct marks {
    bool *is_peer;
    uint32_t n_peers;
    uint32_t self;
} marks;

static void mark(marks *m, uint32_t peer)
{
    if (peer != m->self && !m->is_peer[peer]) {
        m->is_peer[peer] = true;
        m->n_peers++;
    }
}

/* How many batches a rank sends, or receives; and each of them. */
static uint32_t count_batches(const ferry_schedule *rounds, uint32_t rank, bool is_send)
{
    return is_send ? ferry_schedule_send_count(rounds, rank)
                   : ferry_schedule_receive_count(rounds, rank);
}

static ferry_status batch_at(const ferry_schedule *rounds, uint32_t rank, bool is_send,
                             uint32_t index, ferry_batch *batch_out, ferry_error *error)
{
    uint64_t number = 0;
    ferry_status status = is_send ? ferry_schedule_send_at(rounds, rank, index, &number, error)
                                  : ferry_schedule_receive_at(rounds, rank, index, &number, error);
    *batch_out = (ferry_batch)FERRY_BATCH_INIT;
    return status == FERRY_OK ? ferry_schedule_batch_at(rounds, number, batch_out, error) : status;
}

static ferry_status mark_all(ferry_service *service, marks *m, ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    const ferry_schedule *rounds = service->program->rounds;
    for (size_t i = 0; i < registry->sends.n; i++) {
        mark(m, registry->sends.items[i].peer);
    }
    for (size_t i = 0; i < registry->receives.n; i++) {
        mark(m, registry->receives.items[i].peer);
    }
    for (int is_send = 0; rounds != NULL && is_send < 2; is_send++) {
        uint32_t n = count_batches(rounds, m->self, is_send);
        for (uint32_t i = 0; i < n; i++) {
            ferry_batch batch;
            FY_TRY(batch_at(rounds, m->self, is_send, i, &batch, error));
            mark(m, is_send ? batch.to : batch.from);
        }
    }
    return FERRY_OK;
}

/* The ends of a list that belong to peer: those behind *at_inout, which is moved on. */
static void take_ends(const fy_ends *ends, uint32_t peer, size_t *at_inout, uint32_t *first_out,
                      uint32_t *n_out)
{
    size_t at = *at_inout;
    while (at < ends->n && ends->items[at].peer < peer) {
        at++;
    }
    size_t first = at;
    while (at < ends->n && ends->items[at].peer == peer) {
        at++;
    }
    *first_out = (uint32_t)first;
    *n_out = (uint32_t)(at - first);
    *at_inout = at;
}

static void fill(ferry_service *service, const marks *m)
{
    fy_service_program *program = service->program;
    const fy_registry *registry = &service->registry;
    size_t send_at = 0, receive_at = 0;
    uint32_t n_local;
    for (uint32_t rank = 0; rank < service->world->n_ranks; rank++) {
        if (rank == m->self) {
            take_ends(&registry->sends, rank, &send_at, &service->wire->local_sends, &n_local);
            take_ends(&registry->receives, rank, &receive_at, &service->wire->local_receives,
                      &n_local);
        }
        if (!m->is_peer[rank]) {
            continue;
        }
        fy_channel_wire *wire = &service->wire->channels[program->n_channels];
        fy_channel *channel = &program->channels[program->n_channels++];
        channel->peer = rank;
        channel->direct = fy_peer_is_direct(service, rank);
        take_ends(&registry->sends, rank, &send_at, &wire->first_send, &wire->n_sends);
        take_ends(&registry->receives, rank, &receive_at, &wire->first_receive, &wire->n_receives);
    }
}

/* A task of which a batch with a peer has relayed bytes. */
typedef struct relayed {
    uint32_t peer;
    uint64_t task_id;
} relayed;

typedef struct relays {
    relayed *items; /* by peer and task, each once */
    size_t n, capacity;
} relays;

static int compare_relayed(const void *a, const void *b)
{
    const relayed *x = a, *y = b;
    if (x->peer != y->peer) {
        return x->peer < y->peer ? -1 : 1;
    }
    return (x->task_id > y->task_id) - (x->task_id < y->task_id);
}

static void tidy(relays *all)
{
    size_t kept = 0;
    fy_sort(all->items, all->n, sizeof *all->items, compare_relayed);
    for (size_t i = 0; i < all->n; i++) {
        if (kept == 0 || compare_relayed(&all->items[kept - 1], &all->items[i]) != 0) {
            all->items[kept++] = all->items[i];
        }
    }
    all->n = kept;
}

static ferry_status add_relayed(const ferry_schedule *rounds, const ferry_batch *batch,
                                uint32_t peer, relays *all, ferry_error *error)
{
    for (uint32_t s = 0; s < batch->n_segments; s++) {
        ferry_segment segment = FERRY_SEGMENT_INIT;
        FY_TRY(ferry_schedule_segment_at(rounds, batch->first_segment + s, &segment, error));
        if (!segment.is_relayed) {
            continue;
        }
        if (!fy_reserve((void **)&all->items, &all->capacity, all->n + 1, sizeof *all->items)) {
            return fy_fail_no_memory(error, "relays");
        }
        all->items[all->n++] = (relayed){.peer = peer, .task_id = segment.task_id};
    }
    return FERRY_OK;
}

/* In all batches that this rank sends, or receives: each is looked at once, for all channels. */
static ferry_status list_relayed(const ferry_schedule *rounds, uint32_t self, bool is_send,
                                 relays *all, ferry_error *error)
{
    uint32_t n = count_batches(rounds, self, is_send);
    for (uint32_t i = 0; i < n; i++) {
        ferry_batch batch;
        ferry_status status = batch_at(rounds, self, is_send, i, &batch, error);
        FY_THEN(status, add_relayed(rounds, &batch, is_send ? batch.to : batch.from, all, error));
        if (status != FERRY_OK) {
            return status;
        }
    }
    tidy(all);
    return FERRY_OK;
}

/* A receive by its id: in a plan ids are unique. */
static int compare_tasks(const void *a, const void *b)
{
    const fy_task_index *x = a;
    const fy_task_index *y = b;
    return x->task_id < y->task_id ? -1 : x->task_id > y->task_id;
}

static ferry_status index_receives(ferry_service *service, ferry_error *error)
{
    const fy_ends *receives = &service->registry.receives;
    fy_wire *wire = service->wire;
    wire->by_task = fy_alloc(receives->n, sizeof *wire->by_task);
    if (wire->by_task == NULL) {
        return fy_fail_no_memory(error, "relays");
    }
    for (size_t i = 0; i < receives->n; i++) {
        wire->by_task[i] =
            (fy_task_index){.task_id = receives->items[i].task_id, .receive = (uint32_t)i};
    }
    qsort(wire->by_task, receives->n, sizeof *wire->by_task, compare_tasks);
    return FERRY_OK;
}

uint32_t fy_receive_of_task(const ferry_service *service, uint64_t task_id)
{
    size_t n = service->registry.receives.n;
    fy_task_index key = {.task_id = task_id};
    const fy_task_index *found =
        n == 0 ? NULL : bsearch(&key, service->wire->by_task, n, sizeof key, compare_tasks);
    return found == NULL ? FY_NONE : found->receive;
}

static ferry_status take_relayed_sends(fy_channel_wire *channel, const relayed *items, size_t n,
                                       ferry_error *error)
{
    channel->relayed_sends = fy_alloc(n, sizeof *channel->relayed_sends);
    if (channel->relayed_sends == NULL) {
        return fy_fail_no_memory(error, "relays");
    }
    for (size_t i = 0; i < n; i++) {
        channel->relayed_sends[i] = items[i].task_id;
    }
    channel->n_relayed_sends = (uint32_t)n;
    return FERRY_OK;
}

static ferry_status take_relayed_receives(const ferry_service *service, fy_channel_wire *channel,
                                          const relayed *items, size_t n, ferry_error *error)
{
    channel->relayed_receives = fy_alloc(n, sizeof *channel->relayed_receives);
    if (channel->relayed_receives == NULL) {
        return fy_fail_no_memory(error, "relays");
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t end = fy_receive_of_task(service, items[i].task_id);
        if (end == FY_NONE) {
            return fy_fail(error, FERRY_ERR_EXCHANGE,
                           "the schedule relays task %llu to rank %u, which does not receive it",
                           (unsigned long long)items[i].task_id, service->world->rank);
        }
        channel->relayed_receives[channel->n_relayed_receives++] = end;
    }
    return FERRY_OK;
}

static ferry_status find_relays(ferry_service *service, bool is_send, ferry_error *error)
{
    relays all = {.items = NULL};
    ferry_status status =
        list_relayed(service->program->rounds, service->world->rank, is_send, &all, error);
    for (size_t begin = 0, end; status == FERRY_OK && begin < all.n; begin = end) {
        const relayed *first = &all.items[begin];
        fy_channel *channel = fy_channel_of(service->program, first->peer);
        fy_channel_wire *wire = fy_wire_of(service, channel);
        for (end = begin + 1; end < all.n && all.items[end].peer == first->peer; end++) {}
        channel->relays = channel->relays || is_send;
        status = is_send ? take_relayed_sends(wire, first, end - begin, error)
                         : take_relayed_receives(service, wire, first, end - begin, error);
    }
    fy_free(all.items);
    return status;
}

ferry_status fy_channels_make(ferry_service *service, ferry_error *error)
{
    fy_service_program *program = service->program;
    uint32_t n_ranks = service->world->n_ranks;
    marks m = {.self = service->world->rank};
    m.is_peer = fy_alloc_zeroed(n_ranks, sizeof *m.is_peer);
    if (m.is_peer == NULL) {
        return fy_fail_no_memory(error, "channels");
    }
    ferry_status status = mark_all(service, &m, error);
    if (status == FERRY_OK) {
        fy_wire *wire = service->wire;
        program->channels = fy_alloc_zeroed(m.n_peers, sizeof *program->channels);
        wire->channels = fy_alloc_zeroed(m.n_peers, sizeof *wire->channels);
        wire->talks = fy_alloc_zeroed(m.n_peers, sizeof *wire->talks);
        wire->n_channels = wire->channels == NULL || wire->talks == NULL ? 0 : m.n_peers;
        status = program->channels == NULL || wire->channels == NULL || wire->talks == NULL
                     ? fy_fail_no_memory(error, "channels")
                     : FERRY_OK;
    }
    if (status == FERRY_OK) {
        fill(service, &m);
    }
    if (status == FERRY_OK && program->rounds != NULL) {
        status = index_receives(service, error);
    }
    for (int is_send = 0; status == FERRY_OK && program->rounds != NULL && is_send < 2; is_send++) {
        status = find_relays(service, is_send, error);
    }
    fy_free(m.is_peer);
    return status;
}

void fy_channels_drop(ferry_service *service)
{
    fy_wire_channels_free(service->wire);
    fy_free(service->program->channels);
    service->program->channels = NULL;
    service->program->n_channels = 0;
}
