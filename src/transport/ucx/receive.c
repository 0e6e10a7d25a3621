/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What arrives. A handler runs inside the worker and under the mutex: it copies, receives, and
 * leaves what has to be sent to fy_ucx_settle.
 */
#include "transport/ucx/ucx.h"

#include "transport/word.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

typedef struct message {
    fy_ucx *engine;
    fy_ucx_peer *peer;
    const fy_ucx_header *header;
    void *data; /* the bytes, or UCX's name for bytes that are still there */
    size_t bytes;
    bool is_rendezvous;
} message;

static void *place_of(fy_ucx *engine, uint32_t source, const char *what, uint64_t id,
                      uint64_t offset, uint64_t bytes, fy_ucx_region **region_out)
{
    fy_ucx_region *region = fy_ucx_region_find(engine, id);
    void *place = region == NULL ? NULL : fy_ucx_region_at(region, offset, bytes);
    if (region == NULL) {
        fy_ucx_lose(engine, source,
                    "rank %u %s %" PRIu64 " bytes at offset %" PRIu64 " of region %" PRIu64
                    " of rank %u, which is not there (any more): nothing was moved",
                    source, what, bytes, offset, id, engine->host->rank);
    } else if (place == NULL) {
        fy_ucx_lose(engine, source,
                    "rank %u %s %" PRIu64 " bytes at offset %" PRIu64 " of region %" PRIu64
                    " of rank %u, which has %" PRIu64 ": nothing was moved",
                    source, what, bytes, offset, id, engine->host->rank, region->view.bytes);
    }
    *region_out = region;
    return place;
}

static void no_memory(fy_ucx *engine)
{
    fy_ucx_lose(engine, engine->host->rank, "rank %u has no memory left for what arrives",
                engine->host->rank);
}

/* Of a peer's message that no rank of this release sends. */
static void break_protocol(fy_ucx *engine, uint32_t source)
{
    fy_ucx_lose(engine, source, "rank %u breaks the protocol of the ucx engine", source);
}

/* Something to be sent by settle, or NULL. */
static fy_ucx_op *new_reply(fy_ucx *engine, uint32_t to, uint16_t kind, uint64_t number)
{
    fy_ucx_op *op = fy_ucx_op_new(engine, to, FY_UCX_REPLYING);
    if (op == NULL) {
        no_memory(engine);
        return NULL;
    }
    op->header.kind = kind;
    op->header.number = number;
    fy_ucx_enqueue(&engine->jobs, op);
    return op;
}

static void raise_signal(fy_ucx *engine, uint32_t source, const fy_ucx_slot *slot)
{
    fy_ucx_region *region;
    void *place = place_of(engine, source, "raises a signal of", slot->region, slot->offset,
                           sizeof(uint64_t), &region);
    if (place == NULL) {
        return;
    }
    if ((uintptr_t)place % sizeof(uint64_t) != 0 ||
        (slot->after != FY_UCX_SET && slot->after != FY_UCX_ADD)) {
        break_protocol(engine, source);
        return;
    }
    _Atomic uint64_t *word = place;
    if (slot->after == FY_UCX_SET) {
        atomic_store(word, slot->value);
    } else {
        (void)atomic_fetch_add(word, slot->value);
    }
    fy_word_note(region->view.base, region->view.noted, slot->offset);
    engine->news.is_changed = true;
}

void fy_ucx_deliver(fy_ucx *engine, uint32_t source)
{
    fy_ucx_order *order = &engine->peers[source].order;
    fy_ucx_slot slot;
    while (fy_ucx_order_next(order, &slot)) {
        if (slot.after == FY_UCX_ANSWER) {
            fy_ucx_op *op = new_reply(engine, source, FY_UCX_REACHED, slot.value);
            if (op != NULL) {
                op->header.value = order->next;
            }
        } else if (slot.after != FY_UCX_NOTHING) {
            raise_signal(engine, source, &slot);
        }
    }
}

static void on_received(void *request, ucs_status_t status, size_t length, void *context)
{
    (void)length;
    ucp_request_free(request);
    fy_ucx_finish(context, status);
}

/* Receives a rendezvous into place, memory of op's kind; op is finished by that. */
static ucs_status_t receive_into(const message *m, void *place, fy_ucx_op *op)
{
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb = {.recv_am = on_received},
        .user_data = op,
        .memory_type = fy_ucx_memory_type(op->kind),
    };
    ucs_status_ptr_t request =
        ucp_am_recv_data_nbx(m->engine->worker, m->data, place, m->bytes, &params);
    if (request == NULL) {
        fy_ucx_finish(op, UCS_OK);
    } else if (UCS_PTR_IS_ERR(request)) {
        fy_ucx_finish(op, UCS_PTR_STATUS(request));
    }
    return UCS_INPROGRESS;
}

static bool place_in_order(const message *m)
{
    const fy_ucx_header *header = m->header;
    fy_ucx_slot slot = {.after = header->after};
    if (header->after != FY_UCX_NOTHING) {
        slot.region = header->after_region;
        slot.offset = header->after_offset;
        slot.value = header->value;
    }
    switch (fy_ucx_order_place(&m->peer->order, header->number, &slot)) {
    case FY_UCX_PLACED:
        return true;
    case FY_UCX_NO_MEMORY:
        no_memory(m->engine);
        return false;
    case FY_UCX_NONSENSE:
        break;
    }
    break_protocol(m->engine, header->source);
    return false;
}

static ucs_status_t on_put(const message *m)
{
    const fy_ucx_header *header = m->header;
    fy_ucx_region *region = NULL;
    void *place = NULL;
    if (m->is_rendezvous && m->bytes == 0) {
        break_protocol(m->engine, header->source);
        return UCS_OK;
    }
    if (m->bytes > 0) {
        place = place_of(m->engine, header->source, "puts", header->region, header->offset,
                         m->bytes, &region);
        if (place == NULL) {
            return UCS_OK;
        }
    }
    /* The CPU writes to no other memory than the host's. */
    if (place != NULL && !m->is_rendezvous && !fy_is_host(region->view.space)) {
        break_protocol(m->engine, header->source);
        return UCS_OK;
    }
    if (!place_in_order(m)) {
        return UCS_OK;
    }
    if (m->is_rendezvous) {
        fy_ucx_op *op = fy_ucx_op_new(m->engine, header->source, FY_UCX_RECEIVING);
        if (op == NULL) {
            no_memory(m->engine);
            return UCS_OK;
        }
        op->region = region;
        op->number = header->number;
        op->kind = region->view.space.kind;
        region->busy++;
        return receive_into(m, place, op);
    }
    if (m->bytes > 0) {
        memcpy(place, m->data, m->bytes);
        m->engine->news.is_changed = true;
    }
    fy_ucx_order_complete(&m->peer->order, header->number);
    fy_ucx_deliver(m->engine, header->source);
    return UCS_OK;
}

static ucs_status_t on_reached(const message *m)
{
    /* An answer to what was not asked would end a flush too early, or never. */
    if (m->header->number > m->peer->n_asked || m->header->value > m->peer->next_number) {
        break_protocol(m->engine, m->header->source);
        return UCS_OK;
    }
    m->peer->n_answered = m->header->number;
    m->peer->reached = m->header->value;
    m->engine->news.is_changed = true;
    return UCS_OK;
}

static ucs_status_t on_get(const message *m)
{
    const fy_ucx_header *header = m->header;
    fy_ucx_region *region;
    void *place = place_of(m->engine, header->source, "gets", header->region, header->offset,
                           header->value, &region);
    fy_ucx_op *op =
        place == NULL ? NULL : new_reply(m->engine, header->source, FY_UCX_GOT, header->number);
    if (op != NULL) {
        op->region = region;
        op->body = place;
        op->bytes = header->value;
        op->kind = region->view.space.kind;
        op->must_meet = op->kind != FERRY_MEMORY_HOST || header->after != 0;
        region->busy++;
    }
    return UCS_OK;
}

static ucs_status_t on_got(const message *m)
{
    fy_ucx_op *op = fy_ucx_op_find(m->engine, m->header->number, m->header->source, FY_UCX_WAITING);
    bool may_copy = op != NULL && op->kind == FERRY_MEMORY_HOST;
    if (op == NULL || op->bytes != m->bytes || (!m->is_rendezvous && !may_copy)) {
        fy_ucx_lose(m->engine, m->header->source, "rank %u answers what was not asked",
                    m->header->source);
        return UCS_OK;
    }
    if (m->is_rendezvous) {
        op->role = FY_UCX_READING;
        m->peer->n_waiting--;
        return receive_into(m, op->body, op);
    }
    memcpy(op->body, m->data, m->bytes);
    fy_ucx_finish(op, UCS_OK);
    return UCS_OK;
}

static ucs_status_t on_ask_key(const message *m)
{
    fy_ucx_op *op = new_reply(m->engine, m->header->source, FY_UCX_KEY, m->header->number);
    if (op != NULL) {
        op->header.region = m->header->region;
    }
    return UCS_OK;
}

static ucs_status_t on_key(const message *m)
{
    fy_ucx *engine = m->engine;
    uint32_t source = m->header->source;
    fy_ucx_op *op = fy_ucx_op_find(engine, m->header->number, source, FY_UCX_ASKING);
    if (op == NULL || m->is_rendezvous) {
        fy_ucx_lose(engine, source, "rank %u answers what was not asked", source);
        return UCS_OK;
    }
    fy_ucx_key *key =
        op->region == NULL ? NULL : fy_ucx_region_key(op->region, source, engine->host->n_ranks);
    if (key != NULL) {
        key->is_known = true;
        key->base = m->header->value;
        if (m->bytes == 0 || ucp_ep_rkey_unpack(m->peer->ep, m->data, &key->rkey) != UCS_OK) {
            key->rkey = NULL; /* messages reach it all the same */
        }
    }
    m->peer->is_asking = false;
    fy_ucx_finish(op, UCS_OK);
    return UCS_OK;
}

static ucs_status_t on_farewell(const message *m)
{
    m->peer->has_left = true;
    m->engine->news.is_changed = true;
    fy_ucx_due(m->peer);
    return UCS_OK;
}

static ucs_status_t on_hello(const message *m)
{
    if (m->peer->is_greeted) {
        break_protocol(m->engine, m->header->source);
        return UCS_OK;
    }
    m->peer->is_greeted = true;
    fy_ucx_due(m->peer);
    return UCS_OK;
}

static ucs_status_t on_named(const message *m)
{
    if (m->header->source >= m->engine->host->rank || !m->peer->is_greeted ||
        !m->peer->has_greeted || m->peer->is_met) {
        break_protocol(m->engine, m->header->source);
        return UCS_OK;
    }
    m->peer->is_met = true;
    fy_ucx_due(m->peer);
    return UCS_OK;
}

static ucs_status_t on_message(void *context, const void *header, size_t header_bytes, void *data,
                               size_t bytes, const ucp_am_recv_param_t *param)
{
    fy_ucx *engine = context;
    fy_ucx_header copy = {0};
    if (header_bytes < FY_UCX_SHORT_HEADER || header_bytes > sizeof copy) {
        return UCS_OK;
    }
    memcpy(&copy, header, header_bytes);
    if (copy.source >= engine->host->n_ranks || engine->is_dead ||
        (engine->is_closing && copy.kind < FY_UCX_FAREWELL)) {
        return UCS_OK;
    }
    message m = {
        .engine = engine,
        .peer = &engine->peers[copy.source],
        .header = &copy,
        .data = data,
        .bytes = bytes,
        .is_rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0,
    };
    m.peer->n_events++;
    switch ((fy_ucx_kind)copy.kind) {
    case FY_UCX_PUT:
        return on_put(&m);
    case FY_UCX_REACHED:
        return on_reached(&m);
    case FY_UCX_GET:
        return on_get(&m);
    case FY_UCX_GOT:
        return on_got(&m);
    case FY_UCX_ASK_KEY:
        return on_ask_key(&m);
    case FY_UCX_KEY:
        return on_key(&m);
    case FY_UCX_FAREWELL:
        return on_farewell(&m);
    case FY_UCX_HELLO:
        return on_hello(&m);
    case FY_UCX_NAMED:
        return on_named(&m);
    }
    return UCS_OK;
}

ucs_status_t fy_ucx_listen(fy_ucx *engine)
{
    ucp_am_handler_param_t params = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = FY_UCX_MESSAGE_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = on_message,
        .arg = engine,
    };
    return ucp_worker_set_am_recv_handler(engine->worker, &params);
}
