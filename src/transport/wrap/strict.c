/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * strict: only what NVSHMEM can do. Nothing of a peer is mapped, memory of the user's is a source
 * but never a target, one world at a time is open in a process, and what is put is in place after a
 * flush or a signal and not before: puts and gets are held back until then, so that code which
 * reads a target early, or changes a source early, is found out.
 */
#include "transport/wrap/ops.h"
#include "world/world.h"

#include <pthread.h>

typedef struct strict_layer {
    fy_layer base;
    fy_ops held;
    bool claimed;
} strict_layer;

/*
 * The rule is one of the process, and so is this. A world's threads share its failure, by which
 * they know each other; engines of one transport each claim.
 */
static pthread_mutex_t claim_lock = PTHREAD_MUTEX_INITIALIZER;
static const void *claimed_world;
static size_t n_claims;

static const void *identity(const fy_host *host)
{
    const ferry_world *world = host->world;
    return world != NULL && world->failure != NULL ? (const void *)world->failure : host->world;
}

static ferry_status prepare_strict(fy_layer *layer, ferry_error *error)
{
    strict_layer *strict = (strict_layer *)layer;
    const void *world = identity(layer->host);
    pthread_mutex_lock(&claim_lock);
    if (n_claims == 0 || claimed_world == world) {
        claimed_world = world;
        n_claims++;
        strict->claimed = true;
    }
    pthread_mutex_unlock(&claim_lock);
    if (!strict->claimed) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "wrapper \"strict\": a transport of another world is open in this process, "
                       "and strict allows one world per process; close that one first");
    }
    return FERRY_OK;
}

static ferry_status strict_attach(void *state, const fy_region_view *region, void **attachment_out,
                                  ferry_error *error)
{
    if (region->kind == FY_REGION_IMPORTED) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "wrapper \"strict\": memory that rank %u registered cannot be reached; put "
                       "to symmetric memory instead",
                       (unsigned)region->owner);
    }
    return fy_layer_pass.attach(state, region, attachment_out, error);
}

static ferry_status strict_export_key(void *state, const fy_region_view *region, void *attachment,
                                      void *key, size_t *n_bytes_out, ferry_error *error)
{
    (void)state;
    (void)region;
    (void)attachment;
    (void)key;
    (void)n_bytes_out;
    return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                   "wrapper \"strict\": registered memory is a source only, other ranks cannot "
                   "reach it; let them put to symmetric memory");
}

static void strict_before(fy_layer *layer, fy_call *call)
{
    if (call->kind == FY_CALL_RELEASE) {
        fy_ops_before_release(&((strict_layer *)layer)->held, layer, call->region);
    }
}

static ferry_status strict_put(void *state, uint32_t peer, const fy_region_view *region,
                               void *attachment, uint64_t offset, const void *source,
                               uint64_t bytes, const fy_signal_view *signal, ferry_error *error)
{
    strict_layer *strict = state;
    fy_op op = fy_op_put(peer, region, attachment, offset, source, bytes, signal);
    if (signal == NULL) {
        return fy_ops_add(&strict->held, &op, error);
    }
    ferry_status status = fy_ops_perform_peer(&strict->held, &strict->base, peer, error);
    return status != FERRY_OK ? status : fy_op_perform(&op, &strict->base, error);
}

static ferry_status strict_get(void *state, uint32_t peer, const fy_region_view *region,
                               void *attachment, uint64_t offset, void *target, uint64_t bytes,
                               ferry_error *error)
{
    strict_layer *strict = state;
    fy_op op = fy_op_get(peer, region, attachment, offset, target, bytes);
    return fy_ops_add(&strict->held, &op, error);
}

static ferry_status strict_flush(void *state, uint32_t peer, ferry_error *error)
{
    strict_layer *strict = state;
    const fy_host *host = strict->base.host;
    ferry_status status = host->state(host, error);
    if (status != FERRY_OK) {
        fy_ops_forget(&strict->held); /* the caller may free what they need */
    } else {
        status = fy_ops_perform_peer(&strict->held, &strict->base, peer, error);
    }
    ferry_status flushed = fy_inner_flush(&strict->base, peer, status == FERRY_OK ? error : NULL);
    return status == FERRY_OK ? flushed : status;
}

static void wrap_strict(fy_layer *layer)
{
    layer->table.attach = strict_attach;
    layer->table.export_key = strict_export_key;
    layer->table.put = strict_put;
    if (layer->inner->get != NULL) {
        layer->table.get = strict_get;
    }
    layer->table.flush = strict_flush;
}

static void cleanup_strict(fy_layer *layer)
{
    strict_layer *strict = (strict_layer *)layer;
    fy_ops_cleanup(&strict->held);
    if (strict->claimed) {
        pthread_mutex_lock(&claim_lock);
        n_claims--;
        pthread_mutex_unlock(&claim_lock);
    }
}

const fy_layer_kind fy_layer_strict = {
    .name = "strict",
    .summary = "leaves only what NVSHMEM can do",
    .bytes = sizeof(strict_layer),
    .hides = FERRY_CAN_PEER_POINTER | FERRY_CAN_REMOTE_USER_MEMORY,
    .adds = FERRY_CAN_QUEUE_ORDER | FERRY_CAN_ONE_WORLD,
    .parse = fy_layer_no_argument,
    .prepare = prepare_strict,
    .wrap = wrap_strict,
    .before = strict_before,
    .cleanup = cleanup_strict,
};
