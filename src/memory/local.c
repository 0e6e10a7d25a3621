/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/local.h"

#include "base/alloc.h"

#include <pthread.h>

typedef struct piece {
    struct piece *next;
    fy_space space;
    void *base;
    uint64_t bytes;
} piece;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list */
static piece *pieces;

ferry_status fy_local_alloc(fy_space space, uint64_t bytes, void **base_out, ferry_error *error)
{
    const fy_memory_kind *row;
    FY_TRY(fy_memory_get(space.kind, &row, error));
    piece *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    FY_TRY(fy_check_memory(fresh != NULL, "memory", error));
    *fresh = (piece){.space = space, .bytes = bytes};
    ferry_status status = row->alloc(space.device, bytes, &fresh->base, error);
    if (status != FERRY_OK) {
        fy_free(fresh);
        return status;
    }
    *base_out = fresh->base;
    pthread_mutex_lock(&lock);
    fresh->next = pieces;
    pieces = fresh;
    pthread_mutex_unlock(&lock);
    return FERRY_OK;
}

bool fy_local_free(void *base)
{
    pthread_mutex_lock(&lock);
    piece **link = &pieces;
    while (*link != NULL && (*link)->base != base) {
        link = &(*link)->next;
    }
    piece *found = *link;
    if (found != NULL) {
        *link = found->next;
    }
    pthread_mutex_unlock(&lock);
    if (found == NULL) {
        return false;
    }
    fy_memory_row(found->space.kind)->free(found->space.device, found->base, found->bytes);
    fy_free(found);
    return true;
}
