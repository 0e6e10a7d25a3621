/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * lose=RANK@N: each rank counts its operations that involve RANK (on RANK itself: all of them).
 * From the Nth on they go nowhere, and a flush of such a peer ends by the deadline.
 */
#include "transport/wrap/layer.h"

typedef struct lose_layer {
    fy_layer base;
    uint64_t rank;
    uint64_t n;
    uint64_t n_seen;
} lose_layer;

static ferry_status parse_lose(fy_layer *layer, const char *argument, ferry_error *error)
{
    lose_layer *lose = (lose_layer *)layer;
    const char *at;
    if (argument == NULL || !fy_layer_number(argument, UINT32_MAX - 1, &lose->rank, &at) ||
        *at != '@' || !fy_layer_number(at + 1, INT64_MAX, &lose->n, &at) || *at != '\0') {
        return fy_layer_refuse(
            layer, "it needs a rank and a number of operations, such as lose=2@1000", error);
    }
    return FERRY_OK;
}

static ferry_status prepare_lose(fy_layer *layer, ferry_error *error)
{
    const lose_layer *lose = (lose_layer *)layer;
    if (lose->rank >= layer->host->n_ranks) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "wrapper \"%s\": the world has %u ranks, the last is %u", layer->element,
                       (unsigned)layer->host->n_ranks, (unsigned)layer->host->n_ranks - 1);
    }
    return FERRY_OK;
}

static bool involves(const lose_layer *lose, uint32_t peer)
{
    return lose->base.host->rank == lose->rank || peer == lose->rank || peer == FERRY_ANY_RANK;
}

/* Counts an operation; true if it is lost. */
static bool loses(lose_layer *lose, uint32_t peer)
{
    return involves(lose, peer) && ++lose->n_seen > lose->n;
}

static ferry_status lose_put(void *state, uint32_t peer, const fy_region_view *region,
                             void *attachment, uint64_t offset, const void *source, uint64_t bytes,
                             const fy_signal_view *signal, ferry_error *error)
{
    return loses(state, peer) ? FERRY_OK
                              : fy_layer_pass.put(state, peer, region, attachment, offset, source,
                                                  bytes, signal, error);
}

static ferry_status lose_get(void *state, uint32_t peer, const fy_region_view *region,
                             void *attachment, uint64_t offset, void *target, uint64_t bytes,
                             ferry_error *error)
{
    return loses(state, peer)
               ? FERRY_OK
               : fy_layer_pass.get(state, peer, region, attachment, offset, target, bytes, error);
}

static bool never(void *context)
{
    fy_inner_progress(context);
    return false;
}

static int64_t sleep_ns(void *context)
{
    return fy_inner_sleep_ns(context);
}

/* What still goes through is flushed; then nothing ever answers. */
static ferry_status lose_flush(void *state, uint32_t peer, ferry_error *error)
{
    lose_layer *lose = state;
    const fy_layer *layer = &lose->base;
    const fy_host *host = layer->host;
    ferry_status status = fy_inner_flush(layer, peer, error);
    if (status != FERRY_OK || !involves(lose, peer) || lose->n_seen < lose->n) {
        return status;
    }
    status = host->wait(host, never, sleep_ns, state, host->deadline_ns, error);
    if (status != FERRY_ERR_TIMEOUT) {
        return status;
    }
    double seconds = (double)host->deadline_ns / 1e9;
    if (host->rank == lose->rank) {
        return fy_fail(error, FERRY_ERR_TIMEOUT,
                       "rank %u is cut off (%s): nobody confirmed within %g s what it put",
                       (unsigned)host->rank, layer->element, seconds);
    }
    return fy_fail(error, FERRY_ERR_TIMEOUT,
                   "rank %u did not confirm within %g s what rank %u put to it (%s)",
                   (unsigned)lose->rank, seconds, (unsigned)host->rank, layer->element);
}

static void wrap_lose(fy_layer *layer)
{
    layer->table.put = lose_put;
    if (layer->inner->get != NULL) {
        layer->table.get = lose_get;
    }
    layer->table.flush = lose_flush;
}

const fy_layer_kind fy_layer_lose = {
    .name = "lose",
    .summary = "loses the traffic of a rank after N operations",
    .bytes = sizeof(lose_layer),
    .hides = FERRY_CAN_PEER_POINTER,
    .parse = parse_lose,
    .prepare = prepare_lose,
    .wrap = wrap_lose,
};
