/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx/ucx.h"

#include "base/print.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How long a close may take on account of peers that do not answer. */
#define CLOSE_NS 1000000000ll

static uint32_t rank_of(const fy_ucx_peer *peer)
{
    return (uint32_t)(peer - peer->engine->peers);
}

void fy_ucx_lose(fy_ucx *engine, uint32_t peer, const char *format, ...)
{
    fy_ucx_news *news   = &engine->news;
    bool         silent = engine->is_closing || engine->is_dead || engine->peers[peer].has_left;

    engine->peers[peer].is_lost = true;
    news->is_changed            = true;
    if (silent || news->sentence[0] != '\0') {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    (void)fy_vprint(news->sentence, sizeof news->sentence, format, arguments);
    va_end(arguments);
    news->has_loss  = true;
    news->lost      = peer;
    engine->is_dead = true;
}

static void on_error(void *context, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    fy_ucx_peer *peer = context;
    uint32_t     rank = rank_of(peer);
    fy_ucx_lose(peer->engine, rank, "rank %u is lost: its connection broke (UCX says: %s)", rank,
                ucs_status_string(status));
}

ferry_status fy_ucx_peer_state(const fy_ucx *engine, uint32_t peer, ferry_error *error)
{
    ferry_status status = engine->host->state(engine->host, error);
    if (status != FERRY_OK) {
        return status;
    }
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

/*
 * UCX has no query for what an endpoint does RMA with, but it prints it: a line per lane, such as
 *
 *     lane[1]:  5:rc_mlx5/mlx5_0:1.0 md[4]   -> md[4]/ib/sysdev[1] rma_bw#0 am am_bw#0 wireup
 *
 * Over TCP, RMA is emulated by the target's CPU one segment at a time, several times slower than
 * messages; every other transport that is chosen for RMA does it by itself. A print that is not
 * understood means messages, which work everywhere.
 */
static bool has_native_rma(const char *info)
{
    bool is_native = false;
    for (const char *line = strstr(info, "lane["); line != NULL; line = strstr(line + 1, "lane[")) {
        char   text[256];
        size_t length = strcspn(line, "\n");
        length        = length < sizeof text - 1 ? length : sizeof text - 1;
        memcpy(text, line, length);
        text[length] = '\0';
        if (strstr(text, " rma") == NULL) {
            continue;
        }
        if (strstr(text, ":tcp/") != NULL) {
            return false;
        }
        is_native = true;
    }
    return is_native;
}

static bool is_fast(ucp_ep_h ep)
{
    char  *info   = NULL;
    size_t bytes  = 0;
    FILE  *stream = open_memstream(&info, &bytes);
    if (stream == NULL) {
        return false;
    }
    ucp_ep_print_info(ep, stream);
    bool native = fclose(stream) == 0 && has_native_rma(info);
    free(info);
    return native;
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
    peer->is_guarded       = is_guarded(engine, rank);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address     = (const ucp_address_t *)(engine->addresses + engine->address_at[rank]),
        .err_mode    = peer->is_guarded ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE,
        .err_handler = {.cb = on_error, .arg = peer},
    };
    ucs_status_t status = ucp_ep_create(engine->worker, &params, &peer->ep);
    if (status != UCS_OK) {
        peer->ep = NULL;
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "UCX finds no way to rank %u (%s): the transports in UCX_TLS and the "
                       "devices in UCX_NET_DEVICES must join the two machines",
                       rank, ucs_status_string(status));
    }
    peer->is_fast  = is_fast(peer->ep);
    peer->uses_rma = engine->mode == FY_UCX_RMA || (engine->mode == FY_UCX_AUTO && peer->is_fast);
    char line[96];
    (void)snprintf(line, sizeof line, "ucx: rank %u is reached by %s", rank,
                   peer->uses_rma ? "RMA" : "messages");
    engine->host->log(FERRY_LOG_DEBUG, line);
    return FERRY_OK;
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
            struct timespec pause = {.tv_nsec = 20 * 1000};
            (void)nanosleep(&pause, NULL);
        }
    }
}

static bool can_be_told(const fy_ucx *engine, const fy_ucx_peer *peer)
{
    return !engine->is_dead && !peer->is_lost && !peer->has_left;
}

static void say_farewell(fy_ucx *engine, uint32_t rank)
{
    fy_ucx_peer *peer = &engine->peers[rank];
    if (!can_be_told(engine, peer) || (peer->ep == NULL && !peer->is_heard) ||
        fy_ucx_connect(engine, rank, NULL) != FERRY_OK) {
        return;
    }
    fy_ucx_op *op = fy_ucx_op_new(engine, rank, FY_UCX_REPLYING);
    if (op != NULL) {
        op->header.kind = FY_UCX_FAREWELL;
        fy_ucx_send(op);
    }
}

/*
 * What was sent is on its way before connections close, unless a peer is gone or does not answer:
 * then its connection is cut.
 */
void fy_ucx_peers_close(fy_ucx *engine)
{
    uint32_t n_ranks  = engine->host->n_ranks;
    void   **requests = engine->closing;
    int64_t  until_ns = fy_ucx_now_ns() + CLOSE_NS;
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        say_farewell(engine, rank);
    }
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        fy_ucx_peer *peer = &engine->peers[rank];
        if (peer->ep != NULL && can_be_told(engine, peer)) {
            ucp_request_param_t none = {0};
            requests[rank]           = ucp_ep_flush_nbx(peer->ep, &none);
        }
    }
    (void)end_requests(engine, requests, until_ns);
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        fy_ucx_peer *peer       = &engine->peers[rank];
        bool         is_flushed = requests[rank] == NULL && can_be_told(engine, peer);
        if (requests[rank] != NULL) {
            ucp_request_free(requests[rank]);
            requests[rank] = NULL;
        }
        /* What has no error handling cannot be cut: the end of the worker is its end. */
        if (peer->ep != NULL && (is_flushed || peer->is_guarded)) {
            ucp_request_param_t params = {
                .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                .flags        = is_flushed ? 0 : UCP_EP_CLOSE_FLAG_FORCE,
            };
            requests[rank] = ucp_ep_close_nbx(peer->ep, &params);
            peer->ep       = NULL;
        }
    }
    (void)end_requests(engine, requests, fy_ucx_now_ns() + CLOSE_NS);
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        if (requests[rank] != NULL) {
            ucp_request_free(requests[rank]);
            requests[rank] = NULL;
        }
    }
}
