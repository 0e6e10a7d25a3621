/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/mapped/mapped.h"

#include "base/alloc.h"
#include "memory/piece.h"
#include "transport/region.h"
#include "world/agree.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/*
 * Ranks that are threads: every pointer is good for all. Memory of a region goes with the last rank
 * that releases it, for when the world fails ranks do not wait for each other, and a slower one may
 * be in the middle of a put; and memory for a registered region with the last rank that imported
 * it. Other registered memory is the owner's to free: who copies there counts as a visitor, no
 * visit begins once the world has failed, and then the owner waits for the last to end.
 */

/* A rank's part of a symmetric region. */
typedef struct part {
    void *base;
    fy_space space;
} part;

/* A symmetric region, as all ranks see it. */
typedef struct heap {
    struct heap *next;
    struct heap **link; /* what points to this one */
    uint64_t id;
    uint64_t bytes;
    uint32_t n_users; /* ranks that have not released it */
    part parts[];     /* by rank; complete when alloc has been agreed upon */
} heap;

/* Memory for a registered region, as its owner and those that imported it see it. */
typedef struct block {
    uint64_t id;
    uint32_t owner;
    uint32_t place;   /* among those of all ranks: its key */
    uint32_t n_users; /* the owner and the imports that are not released */
    part part;
    uint64_t bytes;
} block;

/* Where a key leads to: a block, or none, and then to the next such place. */
typedef struct place {
    block *block;
    uint32_t next_free; /* plus one; 0: there is none */
} place;

/* What the ranks of a transport share. */
typedef struct common {
    _Atomic uint32_t references;
    uint32_t n_ranks;
    pthread_mutex_t lock; /* of the lists and what is in them, but for parts that are complete */
    heap *heaps;          /* the newest first, which has the largest id */
    place *places;
    size_t n_places, place_capacity;
    uint32_t free_place;         /* plus one */
    _Atomic uint32_t visitors[]; /* by rank: copies under way in memory that it registered */
} common;

typedef struct inproc {
    ferry_world *world;
    common *common;
} inproc;

static bool probe(char *why, size_t why_bytes)
{
    (void)why;
    (void)why_bytes;
    return true;
}

static ferry_status make_common(uint32_t n_ranks, common **common_out, ferry_error *error)
{
    common *fresh = fy_alloc_zeroed(1, sizeof *fresh + n_ranks * sizeof fresh->visitors[0]);
    if (fresh == NULL || pthread_mutex_init(&fresh->lock, NULL) != 0) {
        fy_free(fresh);
        return fy_fail_no_memory(error, "engine inproc");
    }
    atomic_init(&fresh->references, n_ranks);
    fresh->n_ranks = n_ranks;
    *common_out = fresh;
    return FERRY_OK;
}

static void leave(common *shared, uint32_t n_references)
{
    if (shared != NULL && atomic_fetch_sub(&shared->references, n_references) == n_references) {
        pthread_mutex_destroy(&shared->lock);
        fy_free(shared->places);
        fy_free(shared);
    }
}

/* Rank 0 makes what is shared and hands it to all: an agreement of threads reaches all or none. */
static ferry_status open_inproc(const fy_host *host, void **state_out, ferry_error *error)
{
    ferry_error why = {.message = ""};
    common *shared = NULL;
    ferry_status status = FERRY_OK;
    inproc *state = fy_alloc_zeroed(1, sizeof *state);
    if (state == NULL) {
        status = fy_fail_no_memory(&why, "engine inproc");
    } else if (host->rank == 0) {
        status = make_common(host->n_ranks, &shared, &why);
    }
    fy_field field = {.value = (uintptr_t)shared, .how = FY_RANK_0};
    status = fy_agree_on(host->world, FY_JOINT_TRANSPORT_OPEN, 0, &field, 1, status, &why);
    if (status != FERRY_OK) {
        leave(shared, host->n_ranks); /* only rank 0 has it */
        fy_free(state);
        return fy_forward(error, status, &why);
    }
    state->common = (common *)(uintptr_t)field.value;
    state->world = host->world;
    *state_out = state;
    return FERRY_OK;
}

static void close_inproc(void *context)
{
    inproc *state = context;
    leave(state->common, 1);
    fy_free(state);
}

static uint32_t capabilities(void *context, uint32_t peer)
{
    const inproc *state = context;
    if (!state->world->threads && peer != state->world->rank) {
        return UINT32_MAX;
    }
    return FERRY_CAN_REMOTE_USER_MEMORY | FERRY_CAN_PEER_POINTER | FERRY_CAN_TARGET_PROGRESS |
           FERRY_CAN_GET;
}

/* Whatever the verbs of the kinds can do: pointers of a device are good for all threads, too. */
static uint32_t reach(void *context, uint32_t peer, uint32_t source_kind, uint32_t target_kind)
{
    (void)source_kind;
    (void)target_kind;
    uint32_t can = context == NULL || peer == FERRY_ANY_RANK
                       ? FERRY_CAN_REMOTE_USER_MEMORY | FERRY_CAN_PEER_POINTER |
                             FERRY_CAN_TARGET_PROGRESS | FERRY_CAN_GET
                       : capabilities(context, peer);
    return can == UINT32_MAX ? can : can | FY_REACH_BY_EXEC;
}

/* The region's heap, made by the rank that comes first. Under the lock. */
static heap *join_heap(common *shared, uint64_t id, uint64_t bytes)
{
    heap *one = shared->heaps;
    while (one != NULL && one->id > id) {
        one = one->next;
    }
    if (one == NULL || one->id != id) {
        one = fy_alloc_zeroed(1, sizeof *one + shared->n_ranks * sizeof one->parts[0]);
        if (one == NULL) {
            return NULL;
        }
        one->id = id;
        one->bytes = bytes;
        one->next = shared->heaps;
        one->link = &shared->heaps;
        shared->heaps = one;
        if (one->next != NULL) {
            one->next->link = &one->next;
        }
    }
    one->n_users++;
    return one;
}

static ferry_status alloc(void *context, fy_region_view *region, void **attachment_out,
                          ferry_error *error)
{
    inproc *state = context;
    void *base = NULL;
    FY_TRY(fy_symmetric_room(state->world, region->bytes, error));
    FY_TRY(fy_piece_alloc(region->space, region->bytes, &base, error));
    pthread_mutex_lock(&state->common->lock);
    heap *joined = join_heap(state->common, region->id, region->bytes);
    if (joined != NULL) {
        joined->parts[state->world->rank] = (part){base, region->space};
    }
    pthread_mutex_unlock(&state->common->lock);
    if (joined == NULL) {
        fy_piece_free(region->space, base, region->bytes);
        return fy_fail_no_memory(error, "a symmetric region");
    }
    region->base = base;
    *attachment_out = joined;
    return FERRY_OK;
}

/* Only where the world has failed: else peers stop by themselves before memory goes. */
static void await_visitors(const inproc *state)
{
    while (fy_failed(state->world->failure) &&
           atomic_load(&state->common->visitors[state->world->rank]) != 0) {
        sched_yield();
    }
}

static void release_heap(common *shared, heap *one)
{
    pthread_mutex_lock(&shared->lock);
    bool last = --one->n_users == 0;
    if (last) {
        *one->link = one->next;
    }
    if (last && one->next != NULL) {
        one->next->link = one->link;
    }
    pthread_mutex_unlock(&shared->lock);
    if (last) {
        for (uint32_t rank = 0; rank < shared->n_ranks; rank++) {
            fy_piece_free(one->parts[rank].space, one->parts[rank].base, one->bytes);
        }
        fy_free(one);
    }
}

/*
 * Memory for registered regions
 */

/* Under the lock; false: no memory. */
static bool take_place(common *shared, block *one)
{
    if (shared->free_place != 0) {
        one->place = shared->free_place - 1;
        shared->free_place = shared->places[one->place].next_free;
    } else if (shared->n_places < UINT32_MAX - 1 &&
               FY_RESERVE(shared->places, shared->place_capacity, shared->n_places + 1)) {
        one->place = (uint32_t)shared->n_places++;
    } else {
        return false;
    }
    shared->places[one->place] = (place){.block = one};
    return true;
}

static ferry_status alloc_local(void *context, fy_region_view *region, void **attachment_out,
                                ferry_error *error)
{
    inproc *state = context;
    block *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    void *base = NULL;
    ferry_status status = FERRY_OK;
    FY_TRY(fy_check_memory(fresh != NULL, "memory that others can reach", error));
    status =
        fy_memory_row(region->space.kind)->alloc(region->space.device, region->bytes, &base, error);
    if (status != FERRY_OK) {
        fy_free(fresh);
        return status;
    }
    *fresh = (block){.id = region->id,
                     .owner = state->world->rank,
                     .n_users = 1,
                     .part = {base, region->space},
                     .bytes = region->bytes};
    pthread_mutex_lock(&state->common->lock);
    bool placed = take_place(state->common, fresh);
    pthread_mutex_unlock(&state->common->lock);
    if (!placed) {
        fy_piece_free(region->space, base, region->bytes);
        fy_free(fresh);
        return fy_fail_no_memory(error, "memory that others can reach");
    }
    region->base = base;
    *attachment_out = fresh;
    return FERRY_OK;
}

/* One user more; NULL if the owner's memory and all imports of it are gone. */
static block *join_block(common *shared, const fy_region_view *region)
{
    uint32_t at = UINT32_MAX;
    block *one = NULL;
    if (region->key_bytes == sizeof at) {
        memcpy(&at, region->key, sizeof at);
    }
    pthread_mutex_lock(&shared->lock);
    if (at < shared->n_places) {
        one = shared->places[at].block;
    }
    if (one != NULL && one->id == region->id && one->owner == region->owner) {
        one->n_users++;
    } else {
        one = NULL; /* another block has its place */
    }
    pthread_mutex_unlock(&shared->lock);
    return one;
}

static void release_block(common *shared, block *one)
{
    pthread_mutex_lock(&shared->lock);
    bool last = --one->n_users == 0;
    if (last) {
        shared->places[one->place] = (place){.next_free = shared->free_place};
        shared->free_place = one->place + 1;
    }
    pthread_mutex_unlock(&shared->lock);
    if (last) {
        fy_piece_free(one->part.space, one->part.base, one->bytes);
        fy_free(one);
    }
}

/* The key says where the block is, if there is one to join. */
static ferry_status export_key(void *context, const fy_region_view *region, void *attachment,
                               void *key, size_t *n_bytes_out, ferry_error *error)
{
    (void)context;
    (void)region;
    (void)error;
    const block *one = attachment;
    *n_bytes_out = 0;
    if (one != NULL) {
        memcpy(key, &one->place, sizeof one->place);
        *n_bytes_out = sizeof one->place;
    }
    return FERRY_OK;
}

static void release(void *context, const fy_region_view *region, void *attachment)
{
    inproc *state = context;
    if (region->kind == FY_REGION_SYMMETRIC) {
        release_heap(state->common, attachment);
        return;
    }
    if (region->kind == FY_REGION_REGISTERED) {
        await_visitors(state);
    }
    if (attachment != NULL) {
        release_block(state->common, attachment);
    }
}

static ferry_status attach(void *context, const fy_region_view *region, void **attachment_out,
                           ferry_error *error)
{
    inproc *state = context;
    block *one = NULL;
    if (region->kind == FY_REGION_SYMMETRIC) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "engine inproc shares only symmetric memory of its own");
    }
    if (region->kind == FY_REGION_IMPORTED && region->key_bytes > 0) {
        one = join_block(state->common, region);
        if (one == NULL) {
            return fy_fail(error, FERRY_ERR_MISUSE,
                           "region %llu of rank %u cannot be imported: its memory has been freed",
                           (unsigned long long)region->id, region->owner);
        }
    }
    *attachment_out = one;
    return FERRY_OK;
}

static void *part_of(uint32_t peer, const fy_region_view *region, void *attachment)
{
    return region->kind == FY_REGION_SYMMETRIC ? ((heap *)attachment)->parts[peer].base
                                               : region->base;
}

static void leave_peer(void *context, uint32_t peer)
{
    const inproc *state = context;
    atomic_fetch_sub(&state->common->visitors[peer], 1);
}

/* Counted before the look: either the owner sees the visitor, or the visitor the failure. */
static bool visit_peer(void *context, uint32_t peer)
{
    const inproc *state = context;
    atomic_fetch_add(&state->common->visitors[peer], 1);
    if (fy_failed(state->world->failure)) {
        leave_peer(context, peer);
        return false;
    }
    return true;
}

/* Between memory of this rank and some that peer registered. */
static ferry_status visit(void *context, uint32_t peer, void *to, const void *from, uint64_t bytes,
                          ferry_error *error)
{
    const inproc *state = context;
    if (!visit_peer(context, peer)) {
        return fy_failure_get(state->world->failure, NULL, error);
    }
    fy_mapped_copy(to, from, bytes);
    leave_peer(context, peer);
    return FERRY_OK;
}

static ferry_status put(void *context, uint32_t peer, const fy_region_view *region,
                        void *attachment, uint64_t offset, const void *source, uint64_t bytes,
                        const fy_signal_view *signal, ferry_error *error)
{
    const inproc *state = context;
    ferry_status status = FERRY_OK;
    if (bytes != 0) {
        char *to = (char *)part_of(peer, region, attachment) + offset;
        if (region->kind == FY_REGION_SYMMETRIC) {
            fy_mapped_copy(to, source, bytes);
        } else {
            status = visit(context, peer, to, source, bytes, error);
        }
    }
    if (status == FERRY_OK && signal != NULL) {
        fy_mapped_signal(state->world, peer, part_of(peer, signal->region, signal->attachment),
                         signal);
    }
    return status;
}

static ferry_status get(void *context, uint32_t peer, const fy_region_view *region,
                        void *attachment, uint64_t offset, void *target, uint64_t bytes,
                        ferry_error *error)
{
    const char *from = (const char *)part_of(peer, region, attachment) + offset;
    if (region->kind != FY_REGION_SYMMETRIC) {
        return visit(context, peer, target, from, bytes, error);
    }
    fy_mapped_copy(target, from, bytes);
    return FERRY_OK;
}

static void *pointer(void *context, uint32_t peer, const fy_region_view *region, void *attachment)
{
    (void)context;
    return part_of(peer, region, attachment);
}

const fy_engine fy_inproc_engine = {
    .abi = FY_ENGINE_ABI,
    .name = "inproc",
    .summary = "threads of one process",
    .probe = probe,
    .open = open_inproc,
    .close = close_inproc,
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
    .shares_pointers = true,
    .visit = visit_peer,
    .leave = leave_peer,
};
