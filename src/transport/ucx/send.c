/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx/ucx.h"

/*
 * How much may be under way to a peer, and in which pieces a put goes. Pieces keep signs of life
 * coming from a slow peer. TCP is fastest with few large messages under way: more of them only
 * queue; RDMA takes what it is given.
 */
enum {
    MOST_OPS = 128,
    FEW_OPS = 4,             /* these go however large they are */
    SMALL_BYTES = 8192,      /* a message even where there is RMA: it carries its signal with it */
    EAGER_BYTES = 64 * 1024, /* over TCP, up to here a copy costs less than a rendezvous */
};
#define PIECE_BYTES (16ull << 20)
#define MOST_BYTES (64ull << 20)
/* What the sockets hold of few such pieces stays in the cache: half as fast again as 16 MiB. */
#define TCP_PIECE_BYTES (1ull << 20)
#define TCP_MOST_BYTES (2ull << 20)

static void on_sent(void *request, ucs_status_t status, void *context)
{
    ucp_request_free(request);
    fy_ucx_finish(context, status);
}

/* What a call of UCX returned for op: complete, failed, or under way. */
static void settle_request(fy_ucx_op *op, ucs_status_ptr_t request)
{
    if (request == NULL) {
        fy_ucx_finish(op, UCS_OK);
    } else if (UCS_PTR_IS_ERR(request)) {
        fy_ucx_finish(op, UCS_PTR_STATUS(request));
    }
}

static ucp_request_param_t params_of(fy_ucx_op *op)
{
    return (ucp_request_param_t){
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb = {.send = on_sent},
        .user_data = op,
        .memory_type = fy_ucx_memory_type(op->kind),
    };
}

/* These say nothing that is not in the first fields, and a HELLO must be short. */
static bool is_short(const fy_ucx_header *header)
{
    return header->kind >= FY_UCX_FAREWELL ||
           (header->kind == FY_UCX_PUT && header->after == FY_UCX_NOTHING);
}

static void send_now(fy_ucx_op *op)
{
    fy_ucx_peer *peer = &op->engine->peers[op->peer];
    size_t header_bytes = is_short(&op->header) ? FY_UCX_SHORT_HEADER : FY_UCX_HEADER_BYTES;
    ucp_request_param_t params = params_of(op);
    /* Left alone UCX sends more eagerly, for receivers that do not copy; here that is a copy more.
     */
    if (op->must_meet) {
        params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
        params.flags = UCP_AM_SEND_FLAG_RNDV;
    } else if (!peer->is_fast && op->engine->may_choose) {
        params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
        params.flags = op->bytes <= EAGER_BYTES ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
    }
    if (op->role == FY_UCX_NAMING) {
        params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
        params.flags |= UCP_AM_SEND_FLAG_REPLY;
    }
    settle_request(op, ucp_am_send_nbx(peer->ep, FY_UCX_MESSAGE_ID, &op->header, header_bytes,
                                       op->bytes == 0 ? NULL : op->body, op->bytes, &params));
}

void fy_ucx_send(fy_ucx_op *op)
{
    fy_ucx_peer *peer = &op->engine->peers[op->peer];
    if (op->header.kind == FY_UCX_PUT) {
        op->header.number = peer->next_number++;
    }
    if (peer->is_met || op->header.kind >= FY_UCX_FAREWELL) {
        send_now(op);
    } else {
        fy_ucx_enqueue(&peer->early, op);
    }
}

void fy_ucx_flush_ep(fy_ucx_op *op)
{
    ucp_request_param_t params = params_of(op);
    params.op_attr_mask &= ~(uint32_t)UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    settle_request(op, ucp_ep_flush_nbx(op->engine->peers[op->peer].ep, &params));
}

/*
 * Flushes the RMA puts so far; held, which may be NULL, is held back until they are in place. An
 * error leaves it the caller's.
 */
static ferry_status flush_rma(fy_ucx *engine, uint32_t rank, fy_ucx_op *held, ferry_error *error)
{
    fy_ucx_peer *peer = &engine->peers[rank];
    fy_ucx_op *op = fy_ucx_op_new(engine, rank, FY_UCX_FLUSHING);
    FY_TRY(fy_check_memory(op != NULL, "a flush of the ucx engine", error));
    if (held != NULL) {
        fy_ucx_enqueue(&peer->held, held);
    }
    op->body = held;
    peer->has_unflushed = false;
    peer->n_flushing++;
    fy_ucx_flush_ep(op);
    return FERRY_OK;
}

/*
 * Sends a PUT that has something after it: behind the RMA puts before it, and in order. An error
 * leaves op the caller's.
 */
static ferry_status send_in_order(fy_ucx_op *op, ferry_error *error)
{
    fy_ucx_peer *peer = &op->engine->peers[op->peer];
    if (peer->has_unflushed) {
        return flush_rma(op->engine, op->peer, op, error);
    }
    if (peer->held.first != NULL) {
        op->is_free = true;
        fy_ucx_enqueue(&peer->held, op);
    } else {
        fy_ucx_send(op);
    }
    return FERRY_OK;
}

static bool has_room(const fy_ucx *engine, uint32_t rank)
{
    const fy_ucx_peer *peer = &engine->peers[rank];
    if (peer->is_fast) {
        return peer->n_sending < MOST_OPS && peer->sending_bytes < MOST_BYTES;
    }
    return peer->n_sending < FEW_OPS ||
           (peer->n_sending < MOST_OPS && peer->sending_bytes < TCP_MOST_BYTES);
}

void fy_ucx_hurry(void *state, bool hurries)
{
    fy_ucx *engine = state;
    fy_ucx_enter(engine);
    engine->hurries = hurries;
    fy_ucx_leave(engine);
}

/* One that is lost takes everything, and the put says why it goes nowhere. */
bool fy_ucx_has_room(void *state, uint32_t rank)
{
    fy_ucx *engine = state;
    fy_ucx_enter(engine);
    bool room = engine->peers[rank].is_lost || engine->is_dead || has_room(engine, rank);
    fy_ucx_leave(engine);
    return room;
}

/* Bytes of the caller's: where they come from, or go to. */
typedef struct piece {
    unsigned char *at;
    uint64_t bytes;
    uint32_t kind; /* of memory */
} piece;

/* Whether the CPU of either side must not touch what is moved. */
static bool is_far(const fy_ucx_region *region, const piece *body)
{
    return body->kind != FERRY_MEMORY_HOST || !fy_is_host(region->view.space);
}

/* A new op that counts in the window of its peer. */
static ferry_status new_op(fy_ucx *engine, uint32_t rank, fy_ucx_role role, const piece *body,
                           fy_ucx_op **op_out, ferry_error *error)
{
    fy_ucx_peer *peer = &engine->peers[rank];
    if (!engine->hurries && !has_room(engine, rank)) {
        FY_TRY(fy_ucx_wait(engine, rank, has_room, "take what is put there", error));
    }
    fy_ucx_op *op = fy_ucx_op_new(engine, rank, role);
    FY_TRY(fy_check_memory(op != NULL, "an operation of the ucx engine", error));
    op->body = body->at;
    op->bytes = body->bytes;
    op->kind = body->kind;
    peer->n_sending++;
    peer->sending_bytes += body->bytes;
    *op_out = op;
    return FERRY_OK;
}

/* An op of new_op that was not sent after all. */
static void take_back(fy_ucx_op *op)
{
    fy_ucx_peer *peer = &op->engine->peers[op->peer];
    peer->n_sending--;
    peer->sending_bytes -= op->bytes;
    fy_ucx_op_free(op);
}

static bool has_answer(const fy_ucx *engine, uint32_t rank)
{
    return !engine->peers[rank].is_asking;
}

static ferry_status ask_key(fy_ucx *engine, uint32_t rank, fy_ucx_region *region,
                            ferry_error *error)
{
    fy_ucx_op *answer = fy_ucx_op_new(engine, rank, FY_UCX_ASKING);
    fy_ucx_op *message = fy_ucx_op_new(engine, rank, FY_UCX_REPLYING);
    if (answer == NULL || message == NULL) {
        fy_ucx_op_free(answer);
        fy_ucx_op_free(message);
        return fy_fail_no_memory(error, "an operation of the ucx engine");
    }
    engine->peers[rank].is_asking = true;
    answer->region = region;
    message->header.kind = FY_UCX_ASK_KEY;
    message->header.number = answer->index;
    message->header.region = region->view.id;
    fy_ucx_send(message);
    return FERRY_OK;
}

static ferry_status await_answer(fy_ucx *engine, uint32_t rank, ferry_error *error)
{
    ferry_status status =
        fy_ucx_wait(engine, rank, has_answer, "give the key of its memory", error);
    engine->peers[rank].is_asking = false;
    return status;
}

/*
 * The key by which peer's part of region is reached; without rkey if it gives none. Who hurries
 * does without it until it is here: *key_out is NULL then.
 */
static ferry_status find_key(fy_ucx *engine, uint32_t rank, fy_ucx_region *region,
                             fy_ucx_key **key_out, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    fy_ucx_key *key = fy_ucx_region_key(region, rank, engine->host->n_ranks);
    FY_TRY(fy_check_memory(key != NULL, "the keys of a region", error));
    /* One question at a time: the one under way may be for this very key. */
    if (!key->is_known && engine->peers[rank].is_asking && !engine->hurries) {
        status = await_answer(engine, rank, error);
    }
    if (status == FERRY_OK && !key->is_known && !engine->peers[rank].is_asking) {
        status = ask_key(engine, rank, region, error);
        if (status == FERRY_OK && !engine->hurries) {
            status = await_answer(engine, rank, error);
        }
    }
    *key_out = status == FERRY_OK && (key->is_known || !engine->hurries) ? key : NULL;
    return status;
}

/* Where RMA can reach it: *key_out; where messages must: NULL. */
static ferry_status choose(fy_ucx *engine, uint32_t rank, fy_ucx_region *region, const piece *body,
                           fy_ucx_key **key_out, ferry_error *error)
{
    fy_ucx_key *key = NULL;
    if (engine->peers[rank].uses_rma && body->bytes > SMALL_BYTES && !is_far(region, body)) {
        FY_TRY(find_key(engine, rank, region, &key, error));
        key = key == NULL || key->rkey == NULL ? NULL : key;
    }
    *key_out = key;
    return FERRY_OK;
}

static void name_place(fy_ucx_op *op, uint16_t kind, const fy_ucx_region *region, uint64_t offset)
{
    op->header.kind = kind;
    op->header.region = region->view.id;
    op->header.offset = offset;
}

static ferry_status put_by_message(fy_ucx *engine, uint32_t rank, const fy_ucx_region *region,
                                   uint64_t offset, const piece *body, const fy_signal_view *signal,
                                   ferry_error *error)
{
    fy_ucx_op *op;
    FY_TRY(new_op(engine, rank, FY_UCX_SENDING, body, &op, error));
    op->must_meet = body->bytes > 0 && is_far(region, body);
    name_place(op, FY_UCX_PUT, region, offset);
    if (signal == NULL) {
        fy_ucx_send(op);
        return FERRY_OK;
    }
    op->header.after = signal->op == FERRY_SIGNAL_ADD ? FY_UCX_ADD : FY_UCX_SET;
    op->header.after_region = signal->region->id;
    op->header.after_offset = signal->offset;
    op->header.value = signal->value;
    ferry_status status = send_in_order(op, error);
    if (status != FERRY_OK) {
        take_back(op);
    }
    return status;
}

static ferry_status move_by_rma(fy_ucx *engine, uint32_t rank, fy_ucx_key *key, uint64_t offset,
                                const piece *body, fy_ucx_role role, ferry_error *error)
{
    fy_ucx_peer *peer = &engine->peers[rank];
    fy_ucx_op *op;
    FY_TRY(new_op(engine, rank, role, body, &op, error));
    ucp_request_param_t params = params_of(op);
    ucs_status_ptr_t request;
    if (role == FY_UCX_WRITING) {
        peer->has_unflushed = true;
        request =
            ucp_put_nbx(peer->ep, body->at, body->bytes, key->base + offset, key->rkey, &params);
    } else {
        request =
            ucp_get_nbx(peer->ep, body->at, body->bytes, key->base + offset, key->rkey, &params);
    }
    settle_request(op, request);
    return FERRY_OK;
}

static piece first_of(const fy_ucx_peer *peer, const piece *all)
{
    uint64_t most = peer->is_fast ? PIECE_BYTES : TCP_PIECE_BYTES;
    piece first = *all;
    first.bytes = all->bytes < most ? all->bytes : most;
    return first;
}

static void go_on(piece *left, uint64_t *offset, const piece *done)
{
    left->at += done->bytes;
    left->bytes -= done->bytes;
    *offset += done->bytes;
}

static ferry_status begin(fy_ucx *engine, uint32_t rank, ferry_error *error)
{
    FY_TRY(fy_ucx_peer_state(engine, rank, error));
    FY_TRY(fy_ucx_connect(engine, rank, error));
    fy_ucx_disarm(engine);
    return FERRY_OK;
}

/* Under the mutex. */
static ferry_status put(fy_ucx *engine, uint32_t rank, fy_ucx_region *region, uint64_t offset,
                        piece left, const fy_signal_view *signal, ferry_error *error)
{
    fy_ucx_key *key = NULL;
    const piece nothing = {.kind = FERRY_MEMORY_HOST};
    ferry_status status = begin(engine, rank, error);
    FY_THEN(status, choose(engine, rank, region, &left, &key, error));
    while (status == FERRY_OK && left.bytes > 0) {
        piece first = first_of(&engine->peers[rank], &left);
        bool is_last = first.bytes == left.bytes;
        if (key != NULL) {
            status = move_by_rma(engine, rank, key, offset, &first, FY_UCX_WRITING, error);
        } else {
            status = put_by_message(engine, rank, region, offset, &first, is_last ? signal : NULL,
                                    error);
        }
        go_on(&left, &offset, &first);
        signal = is_last && key == NULL ? NULL : signal;
    }
    if (status == FERRY_OK && signal != NULL) {
        status = put_by_message(engine, rank, region, 0, &nothing, signal, error);
    }
    return status;
}

ferry_status fy_ucx_put(void *state, uint32_t rank, const fy_region_view *view, void *attachment,
                        uint64_t offset, const void *source, uint64_t bytes,
                        const fy_signal_view *signal, ferry_error *error)
{
    (void)view;
    fy_ucx *engine = state;
    const piece all = {(unsigned char *)(uintptr_t)source, bytes, FERRY_MEMORY_HOST};
    fy_ucx_enter(engine);
    ferry_status status = put(engine, rank, attachment, offset, all, signal, error);
    fy_ucx_leave(engine);
    return status;
}

ferry_status fy_ucx_put_from(void *state, uint32_t rank, const fy_region_view *view,
                             void *attachment, uint64_t offset, const ferry_buffer *source,
                             const fy_signal_view *signal, ferry_error *error)
{
    (void)view;
    fy_ucx *engine = state;
    const piece all = {source->base, source->bytes, source->kind};
    fy_ucx_enter(engine);
    fy_ucx_use(engine, fy_space_of(source));
    ferry_status status = put(engine, rank, attachment, offset, all, signal, error);
    fy_ucx_leave(engine);
    return status;
}

static ferry_status get_by_message(fy_ucx *engine, uint32_t rank, const fy_ucx_region *region,
                                   uint64_t offset, const piece *body, ferry_error *error)
{
    fy_ucx_op *op;
    FY_TRY(new_op(engine, rank, FY_UCX_WAITING, body, &op, error));
    fy_ucx_op *message = fy_ucx_op_new(engine, rank, FY_UCX_REPLYING);
    if (message == NULL) {
        take_back(op);
        return fy_fail_no_memory(error, "an operation of the ucx engine");
    }
    engine->peers[rank].n_waiting++;
    name_place(message, FY_UCX_GET, region, offset);
    message->header.after = is_far(region, body);
    message->header.number = op->index;
    message->header.value = body->bytes;
    fy_ucx_send(message);
    return FERRY_OK;
}

/* Under the mutex. */
static ferry_status get(fy_ucx *engine, uint32_t rank, fy_ucx_region *region, uint64_t offset,
                        piece left, ferry_error *error)
{
    fy_ucx_key *key = NULL;
    ferry_status status = begin(engine, rank, error);
    FY_THEN(status, choose(engine, rank, region, &left, &key, error));
    while (status == FERRY_OK && left.bytes > 0) {
        piece first = first_of(&engine->peers[rank], &left);
        if (key != NULL) {
            status = move_by_rma(engine, rank, key, offset, &first, FY_UCX_READING, error);
        } else {
            status = get_by_message(engine, rank, region, offset, &first, error);
        }
        go_on(&left, &offset, &first);
    }
    return status;
}

ferry_status fy_ucx_get(void *state, uint32_t rank, const fy_region_view *view, void *attachment,
                        uint64_t offset, void *target, uint64_t bytes, ferry_error *error)
{
    (void)view;
    fy_ucx *engine = state;
    const piece all = {target, bytes, FERRY_MEMORY_HOST};
    fy_ucx_enter(engine);
    ferry_status status = get(engine, rank, attachment, offset, all, error);
    fy_ucx_leave(engine);
    return status;
}

ferry_status fy_ucx_get_into(void *state, uint32_t rank, const fy_region_view *view,
                             void *attachment, uint64_t offset, const ferry_buffer *target,
                             ferry_error *error)
{
    (void)view;
    fy_ucx *engine = state;
    const piece all = {target->base, target->bytes, target->kind};
    fy_ucx_enter(engine);
    fy_ucx_use(engine, fy_space_of(target));
    ferry_status status = get(engine, rank, attachment, offset, all, error);
    fy_ucx_leave(engine);
    return status;
}

ferry_status fy_ucx_ask_reached(fy_ucx *engine, uint32_t rank, ferry_error *error)
{
    fy_ucx_peer *peer = &engine->peers[rank];
    if (peer->reached == peer->next_number && peer->held.first == NULL) {
        /* No message is without an answer; RMA is all there may be. */
        return peer->has_unflushed ? flush_rma(engine, rank, NULL, error) : FERRY_OK;
    }
    fy_ucx_op *op = fy_ucx_op_new(engine, rank, FY_UCX_REPLYING);
    FY_TRY(fy_check_memory(op != NULL, "a flush of the ucx engine", error));
    op->header.kind = FY_UCX_PUT;
    op->header.after = FY_UCX_ANSWER;
    op->header.value = peer->n_asked + 1;
    ferry_status status = send_in_order(op, error);
    if (status != FERRY_OK) {
        fy_ucx_op_free(op);
        return status;
    }
    peer->n_asked++;
    return FERRY_OK;
}

/* The key of an own region, for a peer that asked. */
static void pack_key(fy_ucx *engine, fy_ucx_op *op)
{
    fy_ucx_region *region = fy_ucx_region_find(engine, op->header.region);
    void *packed;
    size_t bytes;
    if (region != NULL && fy_is_host(region->view.space) &&
        fy_ucx_region_map(engine, region) == FERRY_OK &&
        ucp_rkey_pack(engine->context, region->memory, &packed, &bytes) == UCS_OK) {
        op->body = packed;
        op->bytes = bytes;
        op->is_packed = true;
        op->header.value = (uint64_t)(uintptr_t)region->view.base;
        region->is_bare = region->is_bare || engine->peers[op->peer].has_xpmem;
    }
}

static void do_job(fy_ucx *engine, fy_ucx_op *op)
{
    if (engine->peers[op->peer].is_lost || engine->peers[op->peer].has_left) {
        fy_ucx_finish(op, UCS_ERR_CANCELED);
        return;
    }
    if (fy_ucx_connect(engine, op->peer, NULL) != FERRY_OK) {
        fy_ucx_finish(op, UCS_ERR_CANCELED);
        return;
    }
    if (op->header.kind == FY_UCX_KEY) {
        pack_key(engine, op);
    }
    fy_ucx_send(op);
}

static void serve_due(fy_ucx *engine, fy_ucx_peer *peer)
{
    bool is_gone = peer->is_lost || peer->has_left;
    if (!is_gone && !peer->is_met) {
        fy_ucx_meet(engine, (uint32_t)(peer - engine->peers));
    }
    while (peer->early.first != NULL && is_gone) {
        fy_ucx_finish(fy_ucx_dequeue(&peer->early), UCS_ERR_CANCELED);
    }
    while (peer->early.first != NULL && peer->is_met) {
        send_now(fy_ucx_dequeue(&peer->early));
    }
    while (peer->held.first != NULL && peer->held.first->is_free) {
        fy_ucx_send(fy_ucx_dequeue(&peer->held));
    }
}

bool fy_ucx_settle(fy_ucx *engine)
{
    bool any = false;
    for (fy_ucx_op *op = fy_ucx_dequeue(&engine->jobs); op != NULL;
         op = fy_ucx_dequeue(&engine->jobs)) {
        do_job(engine, op);
        any = true;
    }
    while (engine->due != NULL) {
        fy_ucx_peer *peer = engine->due;
        engine->due = peer->next_due;
        peer->is_due = false;
        serve_due(engine, peer);
        any = true;
    }
    return any;
}

/* A held message's flush is over: settle lets it go, for callbacks do not send. */
static void free_held(fy_ucx_op *flush)
{
    fy_ucx_op *held = flush->body;
    if (held != NULL) {
        held->is_free = true;
        fy_ucx_due(&flush->engine->peers[flush->peer]);
    }
}

void fy_ucx_finish(fy_ucx_op *op, ucs_status_t status)
{
    fy_ucx *engine = op->engine;
    fy_ucx_peer *peer = &engine->peers[op->peer];
    bool is_in = false;

    engine->news.is_changed = true;
    peer->n_events++;
    if (status != UCS_OK && !peer->is_lost) {
        fy_ucx_lose(engine, op->peer, "rank %u is lost: what goes there fails (UCX says: %s)",
                    op->peer, ucs_status_string(status));
    }
    switch ((fy_ucx_role)op->role) {
    case FY_UCX_SENDING:
    case FY_UCX_WRITING:
    case FY_UCX_READING:
    case FY_UCX_WAITING:
        peer->n_sending--;
        peer->n_waiting -= op->role == FY_UCX_WAITING;
        peer->sending_bytes -= op->bytes;
        break;
    case FY_UCX_RECEIVING:
        if (op->region != NULL) {
            op->region->busy--;
        }
        if (status == UCS_OK) {
            fy_ucx_order_complete(&peer->order, op->number);
            is_in = true;
        }
        break;
    case FY_UCX_FLUSHING:
        peer->n_flushing--;
        if (status == UCS_OK) {
            free_held(op);
        }
        break;
    case FY_UCX_REPLYING:
        if (op->region != NULL) {
            op->region->busy--;
        }
        break;
    case FY_UCX_ASKING:
        break;
    case FY_UCX_MEETING:
        peer->can_send = status == UCS_OK;
        fy_ucx_due(peer);
        break;
    case FY_UCX_NAMING:
        if (status == UCS_OK) {
            peer->is_met = true;
            fy_ucx_due(peer);
        }
        break;
    }
    uint32_t source = op->peer;
    fy_ucx_op_free(op);
    if (is_in) {
        fy_ucx_deliver(engine, source);
    }
}
