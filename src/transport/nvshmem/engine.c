/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/engine.h"

#include "base/alloc.h"
#include "transport/nvshmem/job.h"
#include "transport/nvshmem/library.h"
#include "transport/nvshmem/work.h"
#include "transport/word.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/*
 * The engine over NVSHMEM: symmetric memory is the host's part of its heap. A peer whose part is
 * mapped here is written by copies of this rank's own, which is all that NVSHMEM would do, and
 * cannot end the process; to others NVSHMEM puts, on the thread of work.c. Nobody rings a bell of
 * a peer's: who waits looks again and again. Where the heap is in memory of devices the engine is
 * aside: it carries what lies there, and nothing else.
 */
enum { LOOK_NS = 20000 };

typedef struct nvshmem_region {
    struct nvshmem_region *next; /* of those with notes */
    fy_region_view view;
    uint64_t offset;    /* of the own part in the pool */
    uint64_t offsets[]; /* by rank: of its part in its pool */
} nvshmem_region;

typedef struct nvshmem_engine {
    const fy_host *host;
    nvshmem_region *noted;
    uint64_t last;   /* of what this engine has posted */
    bool has_lost;   /* a rank, and has said so */
    uint64_t trying; /* a quiet that try_flush has begun, or 0 */
} nvshmem_engine;

static ferry_status open_engine(const fy_host *host, void **state_out, ferry_error *error)
{
    nvshmem_engine *engine = fy_alloc_zeroed(1, sizeof *engine);
    ferry_error why = {.message = ""};
    ferry_status status = fy_check_memory(engine != NULL, "engine nvshmem", &why);
    status = host->agree(host, status, &why);
    FY_THEN(status, fy_nvshmem_enter(host, &why));
    if (status != FERRY_OK) {
        fy_free(engine);
        return fy_forward(error, status, &why);
    }
    engine->host = host;
    *state_out = engine;
    return FERRY_OK;
}

/* What was put and not flushed may be lost, but nobody reads its source any more. */
static void close_engine(void *state)
{
    nvshmem_engine *engine = state;
    const fy_host *host = engine->host;
    uint32_t pe;
    if (host->state(host, NULL) != FERRY_OK ||
        fy_nvshmem_await(host, engine->last, host->deadline_ns, &pe, NULL) != FERRY_OK) {
        fy_nvshmem_cut();
    }
    fy_nvshmem_leave(host);
    fy_free(engine);
}

static uint32_t capabilities(void *state, uint32_t peer)
{
    uint32_t can = FERRY_CAN_TARGET_PROGRESS | FERRY_CAN_GET | FERRY_CAN_ONE_WORLD;
    (void)state;
    return can | (fy_nvshmem_own.mapped[peer] == NULL ? 0 : FERRY_CAN_PEER_POINTER);
}

/*
 * Regions
 */

/* Offsets differ between ranks: each closes and frees when it does. */
static ferry_status share_offset(const nvshmem_engine *engine, nvshmem_region *region,
                                 ferry_error *error)
{
    const fy_host *host = engine->host;
    const void *all;
    const size_t *lengths;
    FY_TRY(host->all_gather(host, &region->offset, sizeof region->offset, &all, &lengths, error));
    for (uint32_t rank = 0; rank < host->n_ranks; rank++) {
        if (lengths[rank] != sizeof region->offset) {
            return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u says no place of its memory", rank);
        }
    }
    memcpy(region->offsets, all, host->n_ranks * sizeof region->offsets[0]);
    return FERRY_OK;
}

static ferry_status await(const nvshmem_engine *engine, uint64_t number, ferry_error *error);

/* Of the engine's kind of memory; and on this rank of the device that NVSHMEM has. */
static ferry_status check_space(const nvshmem_engine *engine, fy_space space, ferry_error *error)
{
    fy_space own = fy_nvshmem_own.space;
    return fy_same_space(space, own)
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_UNSUPPORTED,
                         "engine nvshmem: the symmetric heap of rank %u is memory of its device "
                         "%d: ask for that, or let the process see no other device "
                         "(CUDA_VISIBLE_DEVICES)",
                         engine->host->rank, own.device);
}

static ferry_status clear(nvshmem_engine *engine, char *base, uint64_t bytes, ferry_error *error)
{
    fy_nvshmem_op op = {.verb = FY_NVSHMEM_CLEAR, .here = base, .bytes = bytes};
    if (fy_is_host(fy_nvshmem_own.space)) {
        memset(base, 0, (size_t)bytes);
        return FERRY_OK;
    }
    FY_TRY(fy_nvshmem_post(&op, &engine->last, error));
    return await(engine, engine->last, error);
}

static ferry_status alloc(void *state, fy_region_view *view, void **attachment_out,
                          ferry_error *error)
{
    nvshmem_engine *engine = state;
    const fy_host *host = engine->host;
    nvshmem_region *region =
        fy_alloc_zeroed(1, sizeof *region + host->n_ranks * sizeof region->offsets[0]);
    ferry_status mine = fy_check_memory(region != NULL, "a region of engine nvshmem", error);
    FY_THEN(mine, check_space(engine, view->space, error));
    FY_THEN(mine, fy_nvshmem_heap_take(&fy_nvshmem_own.heap, view->bytes, &region->offset, error));
    bool has_memory = mine == FERRY_OK;
    FY_THEN(mine, clear(engine, fy_nvshmem_own.pool + region->offset, view->bytes, error));
    ferry_status status = host->agree(host, mine, error);
    FY_THEN(status, share_offset(engine, region, error));
    if (status != FERRY_OK) {
        if (has_memory) {
            fy_nvshmem_heap_give(&fy_nvshmem_own.heap, region->offset);
        }
        fy_free(region);
        return status;
    }
    view->base = fy_nvshmem_own.pool + region->offset;
    region->view = *view;
    if (view->noted > 0) {
        region->next = engine->noted;
        engine->noted = region;
    }
    *attachment_out = region;
    return FERRY_OK;
}

/* Memory of the caller's is a source, for which nothing is kept. */
static ferry_status attach(void *state, const fy_region_view *view, void **attachment_out,
                           ferry_error *error)
{
    (void)state;
    if (view->kind == FY_REGION_REGISTERED) {
        *attachment_out = NULL;
        return FERRY_OK;
    }
    if (view->kind == FY_REGION_IMPORTED) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "engine nvshmem: memory that rank %u registered cannot be reached; put to "
                       "symmetric memory instead",
                       view->owner);
    }
    return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                   "engine nvshmem reaches only symmetric memory of its own");
}

static ferry_status export_key(void *state, const fy_region_view *view, void *attachment, void *key,
                               size_t *n_bytes_out, ferry_error *error)
{
    (void)state;
    (void)view;
    (void)attachment;
    (void)key;
    (void)n_bytes_out;
    return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                   "engine nvshmem: registered memory is a source only, other ranks cannot reach "
                   "it; let them put to symmetric memory");
}

static void release(void *state, const fy_region_view *view, void *attachment)
{
    nvshmem_engine *engine = state;
    nvshmem_region *region = attachment;
    (void)view;
    if (region == NULL) {
        return;
    }
    for (nvshmem_region **link = &engine->noted; *link != NULL; link = &(*link)->next) {
        if (*link == region) {
            *link = region->next;
            break;
        }
    }
    fy_nvshmem_heap_give(&fy_nvshmem_own.heap, region->offset);
    fy_free(region);
}

/* The heap stays mapped at its peers, and NVSHMEM loses none of them. */
static ferry_status revoke(void *state, const fy_region_view *view, void *attachment,
                           ferry_error *error)
{
    (void)state;
    return attachment == NULL
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_UNSUPPORTED,
                         "the symmetric heap of NVSHMEM, in which its %llu bytes lie, stays within "
                         "reach of all PEs",
                         (unsigned long long)view->bytes);
}

/*
 * Operations
 */

/* Of a peer whose part of the heap is here. */
static char *mapped_at(const nvshmem_region *region, uint32_t peer)
{
    char *pool = fy_nvshmem_own.mapped[peer];
    return pool == NULL ? NULL : pool + region->offsets[peer];
}

static void *pointer(void *state, uint32_t peer, const fy_region_view *view, void *attachment)
{
    (void)state;
    (void)view;
    return attachment == NULL ? NULL : mapped_at(attachment, peer);
}

/* NVSHMEM's name of that place: the same offset in the own part. */
static char *symmetric_at(const nvshmem_region *region, uint32_t peer, uint64_t offset)
{
    return fy_nvshmem_own.pool + region->offsets[peer] + offset;
}

static ferry_status check_fault(ferry_error *error)
{
    const char *fault = atomic_load(&fy_nvshmem_its.fault);
    return fault == NULL ? FERRY_OK
                         : fy_fail(error, FERRY_ERR_IO,
                                   "engine nvshmem: %s: nothing arrives by it "
                                   "any more",
                                   fault);
}

static ferry_status post_put(nvshmem_engine *engine, uint32_t peer, const nvshmem_region *region,
                             uint64_t offset, const void *source, uint64_t bytes,
                             ferry_error *error)
{
    fy_nvshmem_op op = {.verb = FY_NVSHMEM_PUT,
                        .pe = peer,
                        .there = symmetric_at(region, peer, offset),
                        .here = (char *)(uintptr_t)source,
                        .bytes = bytes};
    return bytes == 0 ? FERRY_OK : fy_nvshmem_post(&op, &engine->last, error);
}

static ferry_status post_signal(nvshmem_engine *engine, uint32_t peer, const fy_signal_view *signal,
                                ferry_error *error)
{
    fy_nvshmem_op op = {.verb = FY_NVSHMEM_SIGNAL,
                        .pe = peer,
                        .there = symmetric_at(signal->attachment, peer, signal->offset),
                        .value = signal->value,
                        .how = signal->op};
    return fy_nvshmem_post(&op, &engine->last, error);
}

static ferry_status put(void *state, uint32_t peer, const fy_region_view *view, void *attachment,
                        uint64_t offset, const void *source, uint64_t bytes,
                        const fy_signal_view *signal, ferry_error *error)
{
    const nvshmem_region *region = attachment;
    (void)view;
    if (fy_nvshmem_own.mapped[peer] == NULL) {
        FY_TRY(check_fault(error));
        FY_TRY(post_put(state, peer, region, offset, source, bytes, error));
        return signal == NULL ? FERRY_OK : post_signal(state, peer, signal, error);
    }
    if (bytes > 0) {
        memcpy(mapped_at(region, peer) + offset, source, (size_t)bytes);
    }
    if (signal != NULL) {
        char *part = mapped_at(signal->attachment, peer);
        fy_word_raise(fy_word_at(part, signal->offset), signal->value, signal->op);
        fy_word_note(part, signal->region->noted, signal->offset);
    }
    return FERRY_OK;
}

static ferry_status get(void *state, uint32_t peer, const fy_region_view *view, void *attachment,
                        uint64_t offset, void *target, uint64_t bytes, ferry_error *error)
{
    nvshmem_engine *engine = state;
    const nvshmem_region *region = attachment;
    (void)view;
    if (fy_nvshmem_own.mapped[peer] != NULL) {
        memcpy(target, mapped_at(region, peer) + offset, (size_t)bytes);
        return FERRY_OK;
    }
    fy_nvshmem_op op = {.verb = FY_NVSHMEM_GET,
                        .pe = peer,
                        .there = symmetric_at(region, peer, offset),
                        .here = target,
                        .bytes = bytes};
    FY_TRY(check_fault(error));
    return fy_nvshmem_post(&op, &engine->last, error);
}

/* The world finds out whether that rank lives. */
static ferry_status lose(const nvshmem_engine *engine, uint32_t pe, ferry_error *error)
{
    const fy_host *host = engine->host;
    char sentence[160];
    snprintf(sentence, sizeof sentence, "NVSHMEM has put nothing in place at rank %u within %g s",
             pe, (double)host->deadline_ns / 1e9);
    host->lost(host, pe, sentence);
    return fy_fail(error, FERRY_ERR_PEER_LOST, "%s", sentence);
}

static ferry_status await(const nvshmem_engine *engine, uint64_t number, ferry_error *error)
{
    const fy_host *host = engine->host;
    uint32_t pe;
    ferry_status status = fy_nvshmem_await(host, number, host->deadline_ns, &pe, error);
    if (status == FERRY_ERR_TIMEOUT) {
        return lose(engine, pe, error);
    }
    FY_TRY(status);
    return check_fault(error);
}

static ferry_status flush(void *state, uint32_t peer, ferry_error *error)
{
    nvshmem_engine *engine = state;
    const fy_nvshmem_op quiet = {.verb = FY_NVSHMEM_QUIET};
    bool is_far =
        peer == FERRY_ANY_RANK ? fy_nvshmem_own.has_unmapped : fy_nvshmem_own.mapped[peer] == NULL;
    uint64_t number;
    ferry_status status = engine->host->state(engine->host, error);
    if (status == FERRY_OK && is_far) {
        status = fy_nvshmem_post(&quiet, &number, error);
        FY_THEN(status, await(engine, number, error));
    }
    if (engine->host->state(engine->host, NULL) != FERRY_OK) {
        fy_nvshmem_cut();
    }
    return status;
}

static ferry_status try_flush(void *state, uint32_t *peer_out, ferry_error *error)
{
    nvshmem_engine *engine = state;
    const fy_nvshmem_op quiet = {.verb = FY_NVSHMEM_QUIET};
    if (!fy_nvshmem_own.has_unmapped) {
        return FERRY_OK;
    }
    if (engine->trying == 0) {
        FY_TRY(fy_nvshmem_post(&quiet, &engine->trying, error));
    }
    if (!fy_nvshmem_is_done(engine->trying)) {
        (void)fy_nvshmem_lasts_ns(peer_out); /* whom the last put goes to */
        return FERRY_ERR_TIMEOUT;
    }
    engine->trying = 0;
    return check_fault(error);
}

/* Who waits for an answer flushes nothing: he, too, hears that what he has put does not arrive. */
static void look_after(nvshmem_engine *engine)
{
    uint32_t pe;
    if (!engine->has_lost && fy_nvshmem_lasts_ns(&pe) > engine->host->deadline_ns) {
        engine->has_lost = true;
        (void)lose(engine, pe, NULL);
    }
}

/*
 * NVSHMEM sets no bits in memory of a peer, so what it raises is not noted: where there are peers
 * to whom it puts, all lines count as changed.
 */
static bool progress(void *state)
{
    nvshmem_engine *engine = state;
    if (!fy_nvshmem_own.has_unmapped) {
        return false;
    }
    look_after(engine);
    for (const nvshmem_region *one = engine->noted; one != NULL; one = one->next) {
        for (uint64_t at = 0; at < one->view.noted; at += FY_NOTED_LINE_BYTES) {
            fy_word_note(one->view.base, one->view.noted, at);
        }
    }
    return false;
}

/* Nobody waits for words in memory of devices: there only puts of one's own are looked at. */
static int64_t sleep_ns(void *state)
{
    const nvshmem_engine *engine = state;
    bool is_idle = !fy_is_host(fy_nvshmem_own.space) && fy_nvshmem_is_done(engine->last);
    return is_idle ? INT64_MAX : LOOK_NS;
}

/*
 * Aside
 */

/* From the host and from devices; of others that are mapped here devices copy. */
static uint32_t reach(void *state, uint32_t peer, uint32_t source_kind, uint32_t target_kind)
{
    bool is_kind = source_kind == FERRY_MEMORY_HOST || source_kind == FERRY_MEMORY_CUDA;
    (void)state;
    if (!fy_nvshmem_is_of_devices() || target_kind != FERRY_MEMORY_CUDA || !is_kind) {
        return UINT32_MAX;
    }
    bool is_mapped = peer != FERRY_ANY_RANK && fy_nvshmem_own.mapped[peer] != NULL;
    return is_mapped ? FY_REACH_BY_EXEC : 0;
}

static fy_space space_of_heap(void *state)
{
    (void)state;
    return fy_nvshmem_own.space;
}

static ferry_status begin(void *state, uint32_t peer, const fy_region_view *view, void *attachment,
                          uint64_t offset, const void *source, uint64_t bytes, uint64_t *ticket_out,
                          ferry_error *error)
{
    nvshmem_engine *engine = state;
    const fy_nvshmem_op quiet = {.verb = FY_NVSHMEM_QUIET};
    (void)view;
    FY_TRY(check_fault(error));
    FY_TRY(post_put(engine, peer, attachment, offset, source, bytes, error));
    FY_TRY(fy_nvshmem_post(&quiet, &engine->last, error));
    *ticket_out = engine->last;
    return FERRY_OK;
}

static ferry_status reached(void *state, uint64_t ticket, ferry_error *error)
{
    (void)state;
    FY_TRY(check_fault(error));
    return fy_nvshmem_is_done(ticket) ? FERRY_OK : FERRY_ERR_TIMEOUT;
}

static ferry_status settle(void *state, ferry_error *error)
{
    void *before;
    (void)state;
    if (!fy_nvshmem_its.must_settle) {
        return FERRY_OK;
    }
    int failed = fy_nvshmem.cuCtxPushCurrent_v2(fy_nvshmem_its.context);
    if (failed == 0) {
        failed = fy_nvshmem.cuFlushGPUDirectRDMAWrites(FY_CUDA_CONTEXT, FY_CUDA_TO_OWNER);
        fy_nvshmem.cuCtxPopCurrent_v2(&before);
    }
    return failed == 0 ? FERRY_OK
                       : fy_fail(error, FERRY_ERR_IO,
                                 "engine nvshmem: the CUDA driver does not say whether device %d "
                                 "sees what the network has written (error %d)",
                                 fy_nvshmem_own.space.device, failed);
}

static const fy_aside asides = {
    .space = space_of_heap, .begin = begin, .reached = reached, .settle = settle};

static const fy_aside *aside(void)
{
    return fy_nvshmem_is_of_devices() ? &asides : NULL;
}

static const fy_engine table = {
    .abi = FY_ENGINE_ABI,
    .name = "nvshmem",
    .summary = "PEs of one NVSHMEM job, in memory of its symmetric heap",
    .probe = fy_nvshmem_probe,
    .open = open_engine,
    .close = close_engine,
    .capabilities = capabilities,
    .alloc = alloc,
    .attach = attach,
    .release = release,
    .export_key = export_key,
    .put = put,
    .get = get,
    .flush = flush,
    .progress = progress,
    .sleep_ns = sleep_ns,
    .pointer = pointer,
    .revoke = revoke,
    .try_flush = try_flush,
    .reach = reach,
    .aside = aside,
};

FERRY_API const fy_engine *ferry_engine_plugin(void);

const fy_engine *ferry_engine_plugin(void)
{
    return &table;
}
