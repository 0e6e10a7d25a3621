/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of memory that ranks left behind can write to. They may be stopped in the middle of
 * a copy and wake at any time, so when the world shrinks each region gets other pages, or whatever
 * its engines do. Where that fails the region is exposed: nothing may be received into it before it
 * has been made up for, and never again where its engine knows no way.
 */
#include "transport/mapped/loan.h"
#include "transport/region.h"

#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list */
static ferry_region *exposed_regions;
static _Atomic uint32_t n_exposed;

/* A bit beside those of engines, which goes with the region wherever it goes. */
#define FOR_GOOD (1u << 31)

/*
 * By the engines of the mask: those by which ranks that were left behind reach this one.
 * FERRY_ERR_UNSUPPORTED: one of them never can.
 */
static ferry_status revoke_region(ferry_region *region, unsigned engines, ferry_error *error)
{
    ferry_transport *transport = region->transport;
    ferry_status worst = FERRY_OK;
    for (uint32_t i = 0; i < transport->n_engines; i++) {
        const fy_open_engine *engine = &transport->engines[i];
        bool asked = (engines >> i & 1u) != 0 && fy_region_knows(region, i);
        if (asked && engine->table->revoke != NULL) {
            ferry_error why;
            ferry_status status =
                engine->table->revoke(engine->state, &region->view, region->attachments[i], &why);
            if (status != FERRY_OK && worst != FERRY_ERR_UNSUPPORTED) {
                worst = fy_forward(error, status, &why);
            }
        }
    }
    return worst;
}

static void expose(ferry_region *region, unsigned engines)
{
    pthread_mutex_lock(&lock);
    if (region->exposed == 0) {
        region->next_exposed = exposed_regions;
        exposed_regions = region;
        atomic_fetch_add(&n_exposed, 1);
    }
    region->exposed |= engines;
    pthread_mutex_unlock(&lock);
}

static void unlist(ferry_region *region)
{
    for (ferry_region **link = &exposed_regions; *link != NULL; link = &(*link)->next_exposed) {
        if (*link == region) {
            *link = region->next_exposed;
            region->exposed = 0;
            atomic_fetch_sub(&n_exposed, 1);
            return;
        }
    }
}

void fy_region_forget_exposed(ferry_region *region)
{
    if (atomic_load(&n_exposed) != 0) {
        pthread_mutex_lock(&lock);
        unlist(region);
        pthread_mutex_unlock(&lock);
    }
}

void fy_region_move_exposure(ferry_region *region, unsigned from, unsigned to)
{
    if (atomic_load(&n_exposed) == 0) {
        return;
    }
    pthread_mutex_lock(&lock);
    unsigned moved = (region->exposed & from) != 0 ? to : 0;
    if (region->exposed != 0 && (region->exposed & FOR_GOOD) == 0 && moved == 0) {
        unlist(region);
    } else if (region->exposed != 0) {
        region->exposed = moved | (region->exposed & FOR_GOOD);
    }
    pthread_mutex_unlock(&lock);
}

bool fy_region_is_exposed_for_good(const ferry_region *region)
{
    return (region->exposed & FOR_GOOD) != 0;
}

void fy_transport_shrunk(void *context, const bool *may_live)
{
    ferry_transport *transport = context;
    unsigned engines = 0;
    for (uint32_t rank = 0; rank < transport->world->n_ranks; rank++) {
        engines |= may_live[rank] ? 1u << transport->engine_of[rank] : 0;
    }
    if (engines == 0) {
        return; /* the dead write nothing */
    }
    fy_transport_withdraw(transport);
    for (ferry_region *region = transport->regions; region != NULL; region = region->next) {
        ferry_error why;
        ferry_status status = region->view.kind == FY_REGION_IMPORTED
                                  ? FERRY_OK
                                  : revoke_region(region, engines, &why);
        if (status != FERRY_OK) {
            fy_log(FERRY_LOG_WARN,
                   "a rank that was left behind can still write to %llu bytes at %p: %s",
                   (unsigned long long)region->view.bytes, region->view.base, why.message);
            expose(region, engines | (status == FERRY_ERR_UNSUPPORTED ? FOR_GOOD : 0));
        }
    }
}

static bool overlaps(const ferry_region *region, const void *base, uint64_t bytes)
{
    uintptr_t its = (uintptr_t)region->view.base;
    uintptr_t first = (uintptr_t)base;
    return first < its + region->view.bytes && its < first + bytes;
}

bool fy_memory_is_exposed(void)
{
    return atomic_load(&n_exposed) != 0 || fy_owned_is_exposed();
}

static ferry_status refuse(const void *base, uint64_t bytes, ferry_status status,
                           const ferry_error *why, ferry_error *error)
{
    return fy_fail(error, status,
                   "nothing can be received into %llu bytes at %p: a rank that was left behind can "
                   "still write to them, and %s",
                   (unsigned long long)bytes, base, why->message);
}

/* Under the lock. */
static ferry_status secure_region(ferry_region *region, ferry_error *error)
{
    if (fy_region_is_exposed_for_good(region)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "nothing can keep it from that: take other memory");
    }
    FY_TRY(revoke_region(region, region->exposed, error));
    unlist(region);
    return FERRY_OK;
}

ferry_status fy_memory_secure(const void *base, uint64_t bytes, ferry_error *error)
{
    ferry_error why;
    if (base == NULL || !fy_memory_is_exposed()) {
        return FERRY_OK;
    }
    ferry_status status = fy_owned_secure(base, bytes, &why);
    pthread_mutex_lock(&lock);
    ferry_region *region = exposed_regions;
    while (status == FERRY_OK && region != NULL) {
        ferry_region *next = region->next_exposed;
        if (overlaps(region, base, bytes)) {
            status = secure_region(region, &why);
        }
        region = next;
    }
    pthread_mutex_unlock(&lock);
    return status == FERRY_OK ? FERRY_OK : refuse(base, bytes, status, &why, error);
}
