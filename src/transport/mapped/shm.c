/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/mapped/mapped.h"

#include "base/alloc.h"
#include "base/log.h"
#include "transport/mapped/attach.h"
#include "transport/mapped/device.h"
#include "transport/mapped/loan.h"
#include "transport/mapped/local.h"
#include "transport/mapped/memory.h"
#include "world/gate.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Ranks that are processes of one node. */
typedef struct shm {
    ferry_world *world;
    fy_attach *attach;
    uint32_t *local_of; /* by rank: its number among those of this node; others' count as 0 */
} shm;

static bool probe(char *why, size_t why_bytes)
{
    int fd = memfd_create("ferry", MFD_CLOEXEC);
    if (fd < 0) {
        snprintf(why, why_bytes, "this kernel makes no files in memory: %s", strerror(errno));
        return false;
    }
    close(fd);
    return true;
}

static void close_shm(void *context)
{
    shm *state = context;
    if (state != NULL) {
        fy_attach_destroy(state->attach);
        fy_free(state->local_of);
        fy_free(state);
    }
}

static ferry_status open_shm(const fy_host *host, void **state_out, ferry_error *error)
{
    ferry_world *world = host->world;
    shm *state = fy_alloc_zeroed(1, sizeof *state);
    uint32_t *local_of = fy_alloc_zeroed(host->n_ranks, sizeof *local_of);
    fy_attach *attach = NULL;
    ferry_status status = fy_attach_create(world, &attach, error);
    if (status == FERRY_OK && (state == NULL || local_of == NULL)) {
        status = fy_fail_no_memory(error, "engine shm");
    }
    if (status != FERRY_OK) {
        fy_attach_destroy(attach);
        fy_free(local_of);
        fy_free(state);
        return status;
    }
    for (uint32_t local = 0; local < world->n_local_ranks; local++) {
        local_of[world->local_ranks[local]] = local;
    }
    *state = (shm){.world = world, .attach = attach, .local_of = local_of};
    *state_out = state;
    return FERRY_OK;
}

static uint32_t capabilities(void *context, uint32_t peer)
{
    const shm *state = context;
    if (!fy_world_same_node(state->world, peer)) {
        return UINT32_MAX;
    }
    uint32_t can = FERRY_CAN_PEER_POINTER | FERRY_CAN_TARGET_PROGRESS | FERRY_CAN_GET;
    if (fy_attach_check(state->attach, peer, NULL) == FERRY_OK) {
        can |= FERRY_CAN_REMOTE_USER_MEMORY;
    }
    return can;
}

/*
 * Devices' memory of a peer is opened here, and copied to by who has the device. Memory of the
 * peer's host goes the engine's own way, wherever the source is.
 */
static uint32_t reach(void *context, uint32_t peer, uint32_t source_kind, uint32_t target_kind)
{
    const shm *state = context;
    (void)source_kind;
    bool is_there =
        state == NULL || peer == FERRY_ANY_RANK || fy_world_same_node(state->world, peer);
    if (!is_there || target_kind == FERRY_MEMORY_HOST || !fy_device_memory_is_shared(target_kind)) {
        return UINT32_MAX;
    }
    return FERRY_CAN_REMOTE_USER_MEMORY | FERRY_CAN_PEER_POINTER | FERRY_CAN_TARGET_PROGRESS |
           FERRY_CAN_GET | FY_REACH_BY_EXEC;
}

static ferry_status alloc(void *context, fy_region_view *region, void **attachment_out,
                          ferry_error *error)
{
    shm *state = context;
    if (!fy_is_host(region->space)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "engine shm has no symmetric memory of kind %s: register each rank's own",
                       fy_memory_name(region->space.kind));
    }
    fy_node_memory *memory = fy_alloc_zeroed(1, sizeof *memory);
    fy_node_memory made = {.map = NULL};
    ferry_status status = fy_node_memory_create(state->world, region->bytes, &made, error);
    FY_THEN(status, fy_check_memory(memory != NULL, "a symmetric region", error));
    if (status != FERRY_OK) {
        fy_node_memory_cleanup(&made);
        fy_free(memory);
        return status;
    }
    *memory = made;
    region->base = fy_node_memory_part(memory, state->world->local_rank);
    *attachment_out = memory;
    return FERRY_OK;
}

static ferry_status alloc_local(void *context, fy_region_view *region, void **attachment_out,
                                ferry_error *error)
{
    const shm *state = context;
    if (!fy_is_host(region->space)) {
        fy_device_memory *made = NULL;
        FY_TRY(fy_device_memory_create(region, &made, &region->base, error));
        *attachment_out = made;
        return FERRY_OK;
    }
    fy_loan *loan = NULL;
    FY_TRY(fy_loan_create(state->world, region->bytes, &loan, &region->base, error));
    *attachment_out = loan;
    return FERRY_OK;
}

static ferry_status export_key(void *context, const fy_region_view *region, void *attachment,
                               void *key, size_t *n_bytes_out, ferry_error *error)
{
    (void)context;
    (void)error;
    *n_bytes_out = !fy_is_host(region->space) ? fy_device_memory_key(attachment, region, key)
                   : attachment == NULL       ? 0
                                              : fy_loan_key(attachment, key);
    return FERRY_OK;
}

/* Mapped if the owner's memory can be: else NULL, and FERRY_OK. */
static ferry_status map_theirs(const shm *state, const fy_region_view *region,
                               fy_node_memory **memory_out, ferry_error *error)
{
    int32_t pid = state->world->pid_of(state->world, region->owner);
    fy_node_memory *memory = NULL;
    if (region->key_bytes > 0) {
        memory = fy_alloc_zeroed(1, sizeof *memory);
        FY_TRY(fy_check_memory(memory != NULL, "memory of a peer", error));
        if (!fy_local_memory_map(pid, region->key, region->key_bytes, region->bytes, memory)) {
            fy_free(memory);
            memory = NULL;
        }
    }
    *memory_out = memory;
    return FERRY_OK;
}

static ferry_status attach(void *context, const fy_region_view *region, void **attachment_out,
                           ferry_error *error)
{
    const shm *state = context;
    if (region->kind == FY_REGION_SYMMETRIC) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "engine shm shares only symmetric memory of its own");
    }
    if (!fy_is_host(region->space)) {
        fy_device_memory *memory = NULL;
        FY_TRY(fy_device_memory_attach(region, &memory, error));
        *attachment_out = memory;
        return FERRY_OK;
    }
    if (region->kind == FY_REGION_REGISTERED) {
        fy_loan *loan = NULL; /* of the caller's own memory there is none */
        FY_TRY(fy_loan_begin(state->world, region->base, region->bytes, &loan, error));
        *attachment_out = loan;
        return FERRY_OK;
    }
    fy_node_memory *memory = NULL;
    FY_TRY(map_theirs(state, region, &memory, error));
    if (memory == NULL) {
        FY_TRY(fy_attach_check(state->attach, region->owner, error));
    }
    *attachment_out = memory;
    return FERRY_OK;
}

static ferry_status revoke_region(void *context, const fy_region_view *region, void *attachment,
                                  ferry_error *error)
{
    const shm *state = context;
    fy_attach_revoke(state->attach);
    if (!fy_is_host(region->space)) {
        return fy_device_memory_is_known(attachment) ? fy_gate_shut(state->world, error) : FERRY_OK;
    }
    if (region->kind == FY_REGION_SYMMETRIC) {
        return fy_node_memory_renew(attachment, state->world->local_rank, error);
    }
    return attachment == NULL ? FERRY_OK : fy_loan_revoke(attachment, error);
}

/* A file in memory belongs to the process, and to no engine in it. */
static void adopt(void *context, const fy_region_view *region, void *attachment)
{
    const shm *state = context;
    if (fy_is_host(region->space)) {
        fy_loan_move(attachment, state->world);
    }
}

/* What was registered goes while peers do not know yet that the world has failed. */
static void release_device(const shm *state, const fy_region_view *region, fy_device_memory *memory)
{
    ferry_error why;
    if (region->kind == FY_REGION_REGISTERED && fy_device_memory_is_known(memory) &&
        fy_failed(state->world->failure) && fy_gate_shut(state->world, &why) != FERRY_OK) {
        fy_log(FERRY_LOG_WARN, "memory of kind %s at %p goes, and %s",
               fy_memory_name(region->space.kind), region->base, why.message);
    }
    fy_device_memory_release(memory);
}

static void release(void *context, const fy_region_view *region, void *attachment)
{
    const shm *state = context;
    if (!fy_is_host(region->space)) {
        release_device(state, region, attachment);
        return;
    }
    if (region->kind == FY_REGION_REGISTERED) {
        if (fy_failed(state->world->failure)) {
            fy_attach_revoke(state->attach);
        }
        fy_loan_end(attachment);
        return;
    }
    if (attachment != NULL) {
        fy_node_memory_cleanup(attachment);
    }
    fy_free(attachment);
}

/* Where bytes of a peer's part, or of its memory that is mapped, are here, populated. */
static ferry_status find(const shm *state, uint32_t peer, const fy_region_view *region,
                         fy_node_memory *memory, uint64_t offset, uint64_t bytes, char **at_out,
                         ferry_error *error)
{
    uint32_t local = region->kind == FY_REGION_SYMMETRIC ? state->local_of[peer] : 0;
    ferry_status status = fy_node_memory_prepare(memory, local, offset, bytes, error);
    *at_out = fy_node_memory_part(memory, local) + offset;
    return status;
}

static ferry_status put_bytes(const shm *state, uint32_t peer, const fy_region_view *region,
                              void *attachment, uint64_t offset, const void *source, uint64_t bytes,
                              ferry_error *error)
{
    if (attachment == NULL) {
        return fy_attach_write(state->attach, peer, (char *)region->base + offset, source, bytes,
                               error);
    }
    char *to;
    FY_TRY(find(state, peer, region, attachment, offset, bytes, &to, error));
    fy_mapped_copy(to, source, bytes);
    return FERRY_OK;
}

static ferry_status put(void *context, uint32_t peer, const fy_region_view *region,
                        void *attachment, uint64_t offset, const void *source, uint64_t bytes,
                        const fy_signal_view *signal, ferry_error *error)
{
    shm *state = context;
    ferry_status status = FERRY_OK;
    char *word;
    if (bytes != 0) {
        status = put_bytes(state, peer, region, attachment, offset, source, bytes, error);
    }
    if (status == FERRY_OK && signal != NULL) {
        status = find(state, peer, signal->region, signal->attachment, signal->offset,
                      sizeof(uint64_t), &word, error);
        if (status == FERRY_OK) {
            fy_mapped_signal(state->world, peer, word - signal->offset, signal);
        }
    }
    return status;
}

static ferry_status get(void *context, uint32_t peer, const fy_region_view *region,
                        void *attachment, uint64_t offset, void *target, uint64_t bytes,
                        ferry_error *error)
{
    shm *state = context;
    if (attachment == NULL) {
        return fy_attach_read(state->attach, peer, target, (const char *)region->base + offset,
                              bytes, error);
    }
    char *from;
    FY_TRY(find(state, peer, region, attachment, offset, bytes, &from, error));
    fy_mapped_copy(target, from, bytes);
    return FERRY_OK;
}

static bool visit(void *context, uint32_t peer)
{
    const shm *state = context;
    return fy_gate_enter(state->world, peer);
}

static void leave(void *context, uint32_t peer)
{
    const shm *state = context;
    (void)peer;
    fy_gate_leave(state->world);
}

/* Who asks for a pointer is about to use it, so all of the part is populated now. */
static void *pointer(void *context, uint32_t peer, const fy_region_view *region, void *attachment)
{
    const shm *state = context;
    if (attachment == NULL || region->kind == FY_REGION_REGISTERED ||
        !fy_world_same_node(state->world, peer)) {
        return NULL;
    }
    if (!fy_is_host(region->space)) {
        return fy_device_memory_base(attachment);
    }
    char *at;
    find(state, peer, region, attachment, 0, region->bytes, &at, NULL); /* else page by page */
    return at;
}

const fy_engine fy_shm_engine = {
    .abi = FY_ENGINE_ABI,
    .name = "shm",
    .summary = "processes of one node, which map each other's memory",
    .probe = probe,
    .open = open_shm,
    .close = close_shm,
    .capabilities = capabilities,
    .reach = reach,
    .alloc = alloc,
    .attach = attach,
    .release = release,
    .put = put,
    .get = get,
    .flush = fy_mapped_flush,
    .pointer = pointer,
    .export_key = export_key,
    .alloc_local = alloc_local,
    .visit = visit,
    .leave = leave,
    .revoke = revoke_region,
    .adopt = adopt,
};
