/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx/print.h"
#include "transport/ucx/ucx.h"

#include "base/print.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How long a close may take on account of peers that do not answer. */
#define CLOSE_NS 1000000000ll
/* And where the world has failed: what is cut does not ask anybody. */
#define CUT_NS 100000000ll

static uint32_t rank_of(const fy_ucx_peer *peer)
{
    return (uint32_t)(peer - peer->engine->peers);
}

void fy_ucx_lose(fy_ucx *engine, uint32_t peer, const char *format, ...)
{
    fy_ucx_news *news = &engine->news;
    bool silent = engine->is_closing || engine->is_dead || engine->peers[peer].has_left;

    engine->peers[peer].is_lost = true;
    news->is_changed = true;
    if (silent || news->sentence[0] != '\0') {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    (void)fy_vprint(news->sentence, sizeof news->sentence, format, arguments);
    va_end(arguments);
    news->has_loss = true;
    news->lost = peer;
    engine->is_dead = true;
}

static void on_error(void *context, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    fy_ucx_peer *peer = context;
    uint32_t rank = rank_of(peer);
    fy_ucx_lose(peer->engine, rank, "rank %u is lost: its connection broke (UCX says: %s)", rank,
                ucs_status_string(status));
}

ferry_status fy_ucx_peer_state(const fy_ucx *engine, uint32_t peer, ferry_error *error)
{
    FY_TRY(engine->host->state(engine->host, error));
    if (engine->peers[peer].has_left) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "rank %u cannot be reached any more: it has closed its transport", peer);
    }
    if (engine->news.sentence[0] != '\0') {
        return fy_fail(error, FERRY_ERR_PEER_LOST, "%s", engine->news.sentence);
    }
    if (engine->peers[peer].is_lost) {
        return fy_fail(error, FERRY_ERR_PEER_LOST,
                       "rank %u is lost: its connection broke or it broke the protocol", peer);
    }
    return FERRY_OK;
}

static void look_at_lanes(fy_ucx_peer *peer)
{
    char *info = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&info, &bytes);
    if (stream == NULL) {
        return;
    }
    ucp_ep_print_info(peer->ep, stream);
    if (fclose(stream) == 0) {
        peer->is_fast = fy_ucx_names_native_rma(info);
        peer->has_xpmem = fy_ucx_names_xpmem(info);
    }
    free(info);
}

/*
 * UCX's error handling (mode PEER) costs TCP dearly: large messages are then copied once more at
 * the target, and shared memory is refused altogether. Without it a broken TCP connection is
 * reported to the handler just the same, and the world watches its ranks by itself. So it is for
 * pairs with RDMA, where operations under way must be called back. Both sides must choose alike:
 * both know what both have.
 */
static bool is_guarded(const fy_ucx *engine, uint32_t rank)
{
    return engine->peers[rank].has_rdma && engine->peers[engine->host->rank].has_rdma;
}

ferry_status fy_ucx_connect(fy_ucx *engine, uint32_t rank, ferry_error *error)
{
    fy_ucx_peer *peer = &engine->peers[rank];
    if (peer->ep != NULL) {
        return FERRY_OK;
    }
    fy_ucx_op *first = fy_ucx_op_new(engine, rank, FY_UCX_MEETING);
    FY_TRY(fy_check_memory(first != NULL, "a flush of the ucx engine", error));
    peer->is_guarded = is_guarded(engine, rank);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)(engine->addresses + engine->address_at[rank]),
        .err_mode = peer->is_guarded ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE,
        .err_handler = {.cb = on_error, .arg = peer},
    };
    ucs_status_t status = ucp_ep_create(engine->worker, &params, &peer->ep);
    if (status != UCS_OK) {
        peer->ep = NULL;
        fy_ucx_op_free(first);
        fy_ucx_lose(engine, rank,
                    "UCX finds no way to rank %u (%s): it is gone, or the transports in UCX_TLS "
                    "and the devices in UCX_NET_DEVICES do not join the two machines",
                    rank, ucs_status_string(status));
        return fy_fail(error, FERRY_ERR_PEER_LOST, "UCX finds no way to rank %u", rank);
    }
    look_at_lanes(peer);
    /*
     * Not where UCX would make puts of messages: that is slower, and UCX 1.13 ends the process when
     * a peer is lost before it has answered. And within one machine only where it is asked for:
     * with xpmem a rank that is given up writes by itself.
     */
    peer->uses_rma = peer->is_fast && (engine->mode == FY_UCX_RMA ||
                                       (engine->mode == FY_UCX_AUTO && peer->is_guarded));
    bool in_vain = engine->mode == FY_UCX_RMA && !peer->uses_rma;
    char line[160];
    (void)snprintf(line, sizeof line, "ucx: rank %u is reached by %s%s", rank,
                   peer->uses_rma ? "RMA" : "messages",
                   in_vain ? ", though FERRY_UCX_MODE is rma: UCX has none there but over TCP"
                           : "");
    engine->host->log(in_vain ? FERRY_LOG_WARN : FERRY_LOG_DEBUG, line);
    fy_ucx_flush_ep(first);
    return FERRY_OK;
}

static void nap(void)
{
    struct timespec pause = {.tv_nsec = 20 * 1000};
    (void)nanosleep(&pause, NULL);
}

/* Frees the request; true if it is complete. */
static bool end_request(void **request)
{
    if (*request == NULL) {
        return true;
    }
    if (!UCS_PTR_IS_ERR(*request)) {
        if (ucp_request_check_status(*request) == UCS_INPROGRESS) {
            return false;
        }
        ucp_request_free(*request);
    }
    *request = NULL;
    return true;
}

/* Runs the worker until one request per peer is complete or the time is over: then false. */
static bool end_requests(fy_ucx *engine, void **requests, int64_t until_ns)
{
    for (;;) {
        bool done = true;
        for (uint32_t rank = 0; rank < engine->host->n_ranks; rank++) {
            done = end_request(&requests[rank]) && done;
        }
        if (done || fy_ucx_now_ns() >= until_ns) {
            return done;
        }
        if (ucp_worker_progress(engine->worker) == 0) {
            nap();
        }
    }
}

/* Whether UCX may have copies under way in memory that the CPU does not touch. */
static bool has_far_ops(const fy_ucx *engine)
{
    for (size_t i = 0; i < engine->n_chunks * FY_UCX_CHUNK; i++) {
        const fy_ucx_op *op = &engine->chunks[i / FY_UCX_CHUNK][i % FY_UCX_CHUNK];
        if (op->role != 0 && op->role != FY_UCX_WAITING && op->kind != FERRY_MEMORY_HOST) {
            return true;
        }
    }
    return false;
}

/*
 * A copy that UCX has put on a stream of its own goes on without the worker, and nobody else can
 * ask whether it is done. So the worker is run once more, for long enough that those are.
 */
static void settle_far(fy_ucx *engine)
{
    int64_t until_ns = fy_ucx_now_ns() + CUT_NS;
    while (!engine->has_settled && has_far_ops(engine) && fy_ucx_now_ns() < until_ns) {
        if (ucp_worker_progress(engine->worker) == 0) {
            nap();
        }
    }
    engine->has_settled = true;
}

/* Of requests that did not come to an end. */
static void free_requests(fy_ucx *engine)
{
    for (uint32_t rank = 0; rank < engine->host->n_ranks; rank++) {
        if (engine->closing[rank] != NULL) {
            ucp_request_free(engine->closing[rank]);
            engine->closing[rank] = NULL;
        }
    }
}

static bool can_be_told(const fy_ucx *engine, const fy_ucx_peer *peer)
{
    return !engine->is_dead && !peer->is_lost && !peer->has_left;
}

static bool is_meeting(const fy_ucx *engine)
{
    bool any = false;
    for (uint32_t rank = 0; rank < engine->host->n_ranks && !any; rank++) {
        const fy_ucx_peer *peer = &engine->peers[rank];
        any = (peer->ep != NULL || peer->is_greeted) && !peer->is_met && can_be_told(engine, peer);
    }
    return any;
}

/* A connection that is being made is made first: it may be needed to say farewell. */
static void end_meetings(fy_ucx *engine, int64_t until_ns)
{
    while (is_meeting(engine) && fy_ucx_now_ns() < until_ns) {
        bool worked = ucp_worker_progress(engine->worker) != 0;
        bool settled = fy_ucx_settle(engine);
        engine->is_dead = engine->host->state(engine->host, NULL) != FERRY_OK;
        if (!worked && !settled) {
            nap();
        }
    }
    if (!engine->is_dead) {
        (void)fy_ucx_settle(engine); /* what waited for the last one */
    }
}

static void say_farewell(fy_ucx *engine, uint32_t rank)
{
    const fy_ucx_peer *peer = &engine->peers[rank];
    if (!can_be_told(engine, peer) || !peer->has_greeted) {
        return;
    }
    fy_ucx_op *op = fy_ucx_op_new(engine, rank, FY_UCX_REPLYING);
    if (op != NULL) {
        op->header.kind = FY_UCX_FAREWELL;
        fy_ucx_send(op);
    }
}

/*
 * Whether UCX may owe the peer the answer of meet.c. Over TCP it has left at once; through UCX's
 * own shared memory it waits where the peer's queue is full of what others sent, and for ever if
 * that peer reads no more. Then the worker must stay.
 */
static bool may_owe_answer(const fy_ucx *engine, uint32_t rank)
{
    const fy_ucx_peer *peer = &engine->peers[rank];
    return peer->is_fast && peer->has_greeted && peer->is_greeted && !peer->is_met &&
           rank < engine->host->rank;
}

/*
 * A card goes on by itself with what was posted for it. So in a failed world connections with error
 * handling are cut, and the worker run until they are, before memory is anybody else's again; no
 * other connection has anything under way without the worker, which runs no more after this.
 */
void fy_ucx_cut(fy_ucx *engine)
{
    void **requests = engine->closing;
    bool owes = engine->is_stuck;
    engine->is_dead = true;
    settle_far(engine);
    for (uint32_t rank = 0; rank < engine->host->n_ranks; rank++) {
        fy_ucx_peer *peer = &engine->peers[rank];
        ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS};
        if (peer->ep != NULL && peer->is_guarded) {
            params.flags = UCP_EP_CLOSE_FLAG_FORCE;
            requests[rank] = ucp_ep_close_nbx(peer->ep, &params);
            peer->ep = NULL;
        } else if (peer->ep != NULL && may_owe_answer(engine, rank)) {
            requests[rank] = ucp_ep_flush_nbx(peer->ep, &params);
            peer->is_met = true;
            owes = true;
        }
    }
    if (!end_requests(engine, requests, fy_ucx_now_ns() + CUT_NS)) {
        free_requests(engine);
        engine->is_stuck = owes;
    }
}

/*
 * What was sent is on its way before connections close, unless a peer is gone or does not answer:
 * then its connection is cut.
 */
void fy_ucx_peers_close(fy_ucx *engine)
{
    uint32_t n_ranks = engine->host->n_ranks;
    void **requests = engine->closing;
    int64_t until_ns = fy_ucx_now_ns() + CLOSE_NS;
    if (engine->is_dead) {
        fy_ucx_cut(engine);
        return;
    }
    end_meetings(engine, until_ns);
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        say_farewell(engine, rank);
    }
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        fy_ucx_peer *peer = &engine->peers[rank];
        if (peer->ep != NULL && can_be_told(engine, peer)) {
            ucp_request_param_t none = {0};
            requests[rank] = ucp_ep_flush_nbx(peer->ep, &none);
        }
    }
    (void)end_requests(engine, requests, until_ns);
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        fy_ucx_peer *peer = &engine->peers[rank];
        bool is_flushed = requests[rank] == NULL && can_be_told(engine, peer);
        if (requests[rank] != NULL) {
            ucp_request_free(requests[rank]);
            requests[rank] = NULL;
        }
        /* What has no error handling cannot be cut: the end of the worker is its end. */
        if (peer->ep != NULL && (is_flushed || peer->is_guarded)) {
            ucp_request_param_t params = {
                .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                .flags = is_flushed ? 0 : UCP_EP_CLOSE_FLAG_FORCE,
            };
            requests[rank] = ucp_ep_close_nbx(peer->ep, &params);
            peer->ep = NULL;
        }
    }
    (void)end_requests(engine, requests, fy_ucx_now_ns() + CLOSE_NS);
    free_requests(engine);
}
