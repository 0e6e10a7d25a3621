/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Which ranks this one exchanges items with, and the ends of each pair. */
#include "service/exec.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* A mark for each rank of the world. */
typedef struct marks {
    bool    *is_peer;
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

static ferry_status mark_all(ferry_service *service, marks *m, ferry_error *error)
{
    const fy_registry    *registry = &service->registry;
    const ferry_schedule *rounds   = service->exec->rounds;
    for (size_t i = 0; i < registry->sends.n; i++) {
        mark(m, registry->sends.items[i].peer);
    }
    for (size_t i = 0; i < registry->receives.n; i++) {
        mark(m, registry->receives.items[i].peer);
    }
    for (int is_send = 0; rounds != NULL && is_send < 2; is_send++) {
        uint32_t n = is_send ? ferry_schedule_send_count(rounds, m->self)
                             : ferry_schedule_recv_count(rounds, m->self);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t     number = 0;
            ferry_batch  batch  = FERRY_BATCH_INIT;
            ferry_status status = is_send
                                      ? ferry_schedule_send_at(rounds, m->self, i, &number, error)
                                      : ferry_schedule_recv_at(rounds, m->self, i, &number, error);
            if (status == FERRY_OK) {
                status = ferry_schedule_batch_at(rounds, number, &batch, error);
            }
            if (status != FERRY_OK) {
                return status;
            }
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
    *n_out     = (uint32_t)(at - first);
    *at_inout  = at;
}

static void fill(ferry_service *service, const marks *m)
{
    fy_exec           *exec     = service->exec;
    const fy_registry *registry = &service->registry;
    size_t             send_at = 0, receive_at = 0;
    uint32_t           n_local;
    for (uint32_t rank = 0; rank < service->world->n_ranks; rank++) {
        if (rank == m->self) {
            take_ends(&registry->sends, rank, &send_at, &exec->local_sends, &n_local);
            take_ends(&registry->receives, rank, &receive_at, &exec->local_receives, &n_local);
        }
        if (!m->is_peer[rank]) {
            continue;
        }
        fy_channel *channel = &exec->channels[exec->n_channels++];
        channel->peer       = rank;
        channel->direct     = fy_peer_is_direct(service, rank);
        take_ends(&registry->sends, rank, &send_at, &channel->first_send, &channel->n_sends);
        take_ends(&registry->receives, rank, &receive_at, &channel->first_receive,
                  &channel->n_receives);
    }
}

static int compare_ids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static size_t unique(uint64_t *ids, size_t n)
{
    qsort(ids, n, sizeof *ids, compare_ids);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (kept == 0 || ids[kept - 1] != ids[i]) {
            ids[kept++] = ids[i];
        }
    }
    return kept;
}

/* The ids of relayed tasks in all batches of this rank with one peer, one way. */
static ferry_status relayed_ids(const ferry_schedule *rounds, uint32_t self, uint32_t peer,
                                bool is_send, uint64_t **ids_out, size_t *n_out, ferry_error *error)
{
    uint64_t *ids = NULL;
    size_t    n = 0, capacity = 0;
    uint32_t  n_batches =
        is_send ? ferry_schedule_send_count(rounds, self) : ferry_schedule_recv_count(rounds, self);
    for (uint32_t i = 0; i < n_batches; i++) {
        uint64_t    number = 0;
        ferry_batch batch  = FERRY_BATCH_INIT;
        if (is_send) {
            ferry_schedule_send_at(rounds, self, i, &number, NULL);
        } else {
            ferry_schedule_recv_at(rounds, self, i, &number, NULL);
        }
        ferry_schedule_batch_at(rounds, number, &batch, NULL);
        if ((is_send ? batch.to : batch.from) != peer) {
            continue;
        }
        for (uint32_t s = 0; s < batch.n_segments; s++) {
            ferry_segment segment = FERRY_SEGMENT_INIT;
            ferry_schedule_segment_at(rounds, batch.first_segment + s, &segment, NULL);
            if (!segment.is_relayed) {
                continue;
            }
            if (!fy_reserve((void **)&ids, &capacity, n + 1, sizeof *ids)) {
                fy_free(ids);
                return fy_fail_no_memory(error, "relays");
            }
            ids[n++] = segment.task_id;
        }
    }
    *ids_out = ids;
    *n_out   = n == 0 ? 0 : unique(ids, n);
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
    fy_exec       *exec     = service->exec;
    exec->by_task           = fy_alloc(receives->n, sizeof *exec->by_task);
    if (exec->by_task == NULL) {
        return fy_fail_no_memory(error, "relays");
    }
    for (size_t i = 0; i < receives->n; i++) {
        exec->by_task[i] =
            (fy_task_index){.task_id = receives->items[i].task_id, .receive = (uint32_t)i};
    }
    qsort(exec->by_task, receives->n, sizeof *exec->by_task, compare_tasks);
    return FERRY_OK;
}

uint32_t fy_receive_of_task(const ferry_service *service, uint64_t task_id)
{
    size_t               n   = service->registry.receives.n;
    fy_task_index        key = {.task_id = task_id};
    const fy_task_index *found =
        n == 0 ? NULL : bsearch(&key, service->exec->by_task, n, sizeof key, compare_tasks);
    return found == NULL ? FY_NONE : found->receive;
}

static ferry_status find_relays(ferry_service *service, fy_channel *channel, ferry_error *error)
{
    const ferry_schedule *rounds = service->exec->rounds;
    uint32_t              self   = service->world->rank;
    uint64_t             *ids    = NULL;
    size_t                n      = 0;
    ferry_status          status =
        relayed_ids(rounds, self, channel->peer, true, &channel->relayed_sends, &n, error);
    channel->n_relayed_sends = (uint32_t)n;
    if (status == FERRY_OK) {
        status = relayed_ids(rounds, self, channel->peer, false, &ids, &n, error);
    }
    if (status == FERRY_OK && n > 0) {
        channel->relayed_receives = fy_alloc(n, sizeof *channel->relayed_receives);
        if (channel->relayed_receives == NULL) {
            status = fy_fail_no_memory(error, "relays");
        }
    }
    for (size_t i = 0; status == FERRY_OK && i < n; i++) {
        uint32_t end = fy_receive_of_task(service, ids[i]);
        if (end == FY_NONE) {
            status = fy_fail(error, FERRY_ERR_EXCHANGE,
                             "the schedule relays task %llu to rank %u, which does not receive it",
                             (unsigned long long)ids[i], self);
        } else {
            channel->relayed_receives[channel->n_relayed_receives++] = end;
        }
    }
    fy_free(ids);
    return status;
}

ferry_status fy_channels_make(ferry_service *service, ferry_error *error)
{
    fy_exec *exec    = service->exec;
    uint32_t n_ranks = service->world->n_ranks;
    marks    m       = {.self = service->world->rank};
    m.is_peer        = fy_alloc_zeroed(n_ranks, sizeof *m.is_peer);
    if (m.is_peer == NULL) {
        return fy_fail_no_memory(error, "channels");
    }
    ferry_status status = mark_all(service, &m, error);
    if (status == FERRY_OK) {
        exec->channels = fy_alloc_zeroed(m.n_peers, sizeof *exec->channels);
        status         = exec->channels == NULL ? fy_fail_no_memory(error, "channels") : FERRY_OK;
    }
    if (status == FERRY_OK) {
        fill(service, &m);
    }
    if (status == FERRY_OK && exec->rounds != NULL) {
        status = index_receives(service, error);
    }
    for (uint32_t c = 0; status == FERRY_OK && exec->rounds != NULL && c < exec->n_channels; c++) {
        status = find_relays(service, &exec->channels[c], error);
    }
    fy_free(m.is_peer);
    return status;
}
