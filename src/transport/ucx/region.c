/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx/ucx.h"

#include "base/alloc.h"

#include <inttypes.h>

static size_t bucket_of(uint64_t id)
{
    return (size_t)((id * 0x9e3779b97f4a7c15u) >> 56) % FY_UCX_BUCKETS;
}

/*
 * Registering takes a second for some gigabytes, so it is done here and not when a peer asks: that
 * would be answered by the thread that tells the others that this rank lives.
 */
static bool is_used_by_rma(const fy_ucx *engine)
{
    return engine->mode == FY_UCX_RMA ||
           (engine->mode == FY_UCX_AUTO && engine->peers[engine->host->rank].has_rdma);
}

ferry_status fy_ucx_attach(void *state, const fy_region_view *view, void **attachment_out,
                           ferry_error *error)
{
    fy_ucx *engine = state;
    fy_ucx_region *region = fy_alloc_zeroed(1, sizeof *region);
    FY_TRY(fy_check_memory(region != NULL, "a region of the ucx engine", error));
    region->view = *view;
    if (view->kind != FY_REGION_IMPORTED) {
        fy_ucx_enter(engine);
        fy_ucx_region **bucket = &engine->regions[bucket_of(view->id)];
        region->next = *bucket;
        *bucket = region;
        fy_ucx_use(engine, view->space);
        if (is_used_by_rma(engine) && fy_is_host(view->space)) {
            fy_ucx_disarm(engine);
            (void)fy_ucx_region_map(engine, region); /* else messages reach it */
        }
        fy_ucx_leave(engine);
    }
    *attachment_out = region;
    return FERRY_OK;
}

fy_ucx_region *fy_ucx_region_find(const fy_ucx *engine, uint64_t id)
{
    fy_ucx_region *region = engine->regions[bucket_of(id)];
    while (region != NULL && region->view.id != id) {
        region = region->next;
    }
    return region;
}

void *fy_ucx_region_at(const fy_ucx_region *region, uint64_t offset, uint64_t bytes)
{
    if (offset > region->view.bytes || bytes > region->view.bytes - offset) {
        return NULL;
    }
    return (unsigned char *)region->view.base + offset;
}

ferry_status fy_ucx_region_map(fy_ucx *engine, fy_ucx_region *region)
{
    if (region->memory != NULL) {
        return FERRY_OK;
    }
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address = region->view.base,
        .length = region->view.bytes,
    };
    ucs_status_t status = ucp_mem_map(engine->context, &params, &region->memory);
    if (status != UCS_OK) {
        region->memory = NULL;
        char line[256];
        (void)snprintf(line, sizeof line,
                       "ucx: region %" PRIu64 " of %" PRIu64 " bytes is not registered (%s): "
                       "messages carry what peers put there",
                       region->view.id, region->view.bytes, ucs_status_string(status));
        engine->host->log(FERRY_LOG_WARN, line);
        return FERRY_ERR_UNSUPPORTED;
    }
    return FERRY_OK;
}

fy_ucx_key *fy_ucx_region_key(fy_ucx_region *region, uint32_t peer, uint32_t n_ranks)
{
    if (region->keys == NULL) {
        uint32_t n = region->view.kind == FY_REGION_SYMMETRIC ? n_ranks : 1;
        region->keys = fy_alloc_zeroed(n, sizeof *region->keys);
        if (region->keys == NULL) {
            return NULL;
        }
        region->n_keys = n;
    }
    return &region->keys[region->view.kind == FY_REGION_SYMMETRIC ? peer : 0];
}

static bool is_idle(const fy_ucx *engine, const fy_ucx_region *region)
{
    return region->busy == 0 || engine->is_dead;
}

typedef struct release_wait {
    fy_ucx *engine;
    const fy_ucx_region *region;
} release_wait;

static bool is_released(void *context)
{
    release_wait *wait = context;
    fy_ucx_enter(wait->engine);
    (void)fy_ucx_run(wait->engine);
    bool done = is_idle(wait->engine, wait->region);
    fy_ucx_leave(wait->engine);
    return done;
}

static void unlink_region(fy_ucx *engine, const fy_ucx_region *region)
{
    fy_ucx_region **at = &engine->regions[bucket_of(region->view.id)];
    while (*at != NULL && *at != region) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = region->next;
    }
}

/* Gives up on whoever keeps a region busy; of one that has left nothing comes any more. */
static void lose_users(fy_ucx *engine, const fy_ucx_region *region)
{
    for (size_t i = 0; i < engine->n_chunks * FY_UCX_CHUNK; i++) {
        const fy_ucx_op *op = &engine->chunks[i / FY_UCX_CHUNK][i % FY_UCX_CHUNK];
        if (op->region == region && (op->role == FY_UCX_RECEIVING || op->role == FY_UCX_REPLYING)) {
            fy_ucx_lose(engine, op->peer, "rank %u has not come to an end with a region of rank %u",
                        op->peer, engine->host->rank);
        }
    }
}

/* Ops that outlive the region, such as a question that was never answered, forget it. */
static void forget_region(fy_ucx *engine, const fy_ucx_region *region)
{
    for (size_t i = 0; i < engine->n_chunks * FY_UCX_CHUNK; i++) {
        fy_ucx_op *op = &engine->chunks[i / FY_UCX_CHUNK][i % FY_UCX_CHUNK];
        if (op->region == region) {
            op->region = NULL;
        }
    }
}

/*
 * What UCX still writes there must end before the memory goes. Only a peer that breaks the contract
 * leaves something, and then this takes a deadline at most and fails the world, after which the
 * worker is not run any more, so that nothing is written.
 */
void fy_ucx_release(void *state, const fy_region_view *view, void *attachment)
{
    (void)view;
    fy_ucx *engine = state;
    fy_ucx_region *region = attachment;
    fy_ucx_enter(engine);
    unlink_region(engine, region);
    if (!is_idle(engine, region)) {
        release_wait wait = {engine, region};
        fy_ucx_leave(engine);
        (void)engine->host->wait(engine->host, is_released, NULL, &wait, engine->host->deadline_ns,
                                 NULL);
        fy_ucx_enter(engine);
        if (!is_idle(engine, region)) {
            lose_users(engine, region);
        }
    }
    if (engine->is_dead) {
        fy_ucx_cut(engine);
    }
    forget_region(engine, region);
    for (uint32_t i = 0; i < region->n_keys; i++) {
        if (region->keys[i].rkey != NULL) {
            ucp_rkey_destroy(region->keys[i].rkey);
        }
    }
    if (region->memory != NULL) {
        (void)ucp_mem_unmap(engine->context, region->memory);
    }
    fy_ucx_leave(engine);
    fy_free(region->keys);
    fy_free(region);
}

/*
 * The worker of a failed world runs no more, so messages reach nothing; what remains is what a
 * network card writes by itself, as long as the memory is registered. And what a process of this
 * machine writes through xpmem, at the address that it has got: nothing takes that back.
 */
ferry_status fy_ucx_revoke(void *state, const fy_region_view *view, void *attachment,
                           ferry_error *error)
{
    fy_ucx *engine = state;
    fy_ucx_region *region = attachment;
    bool is_bare = region->is_bare;
    fy_ucx_enter(engine);
    fy_ucx_cut(engine);
    if (region->memory != NULL) {
        (void)ucp_mem_unmap(engine->context, region->memory);
        region->memory = NULL;
    }
    fy_ucx_leave(engine);
    return !is_bare ? FERRY_OK
                    : fy_fail(error, FERRY_ERR_UNSUPPORTED,
                              "with FERRY_UCX_MODE=rma and xpmem ranks of one machine write to the "
                              "memory of others by themselves (%llu bytes at %p): auto does not",
                              (unsigned long long)view->bytes, view->base);
}

/* Peers ask for keys when they need them, so the piece says only that this engine can be asked. */
ferry_status fy_ucx_export_key(void *state, const fy_region_view *view, void *attachment, void *key,
                               size_t *n_bytes_out, ferry_error *error)
{
    (void)state;
    (void)view;
    (void)attachment;
    (void)error;
    *(unsigned char *)key = 1;
    *n_bytes_out = 1;
    return FERRY_OK;
}
