/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/mapped/device.h"

#include "base/alloc.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

struct fy_device_memory {
    const fy_memory_kind *row;
    unsigned char handle[FY_MEMORY_HANDLE_BYTES];
    size_t handle_bytes; /* 0: it has no name, or is another's */
    uint64_t offset;     /* of the region in what is named */
    bool has_said;       /* why it has no name */
    void *opened;        /* another's allocation */
    void *made;          /* this rank's, with the region */
    uint64_t made_bytes;
    int32_t device;
    char *base; /* and the region in it */
};

/* Of a key. Either a handle and where the region begins in its allocation, or a reason. */
typedef struct piece {
    uint64_t offset;
    uint32_t handle_bytes; /* 0: there is a reason */
    uint32_t reason_bytes;
    unsigned char bytes[FY_MEMORY_HANDLE_BYTES + 40];
} piece;

enum { PIECE_HEAD_BYTES = 16 };

_Static_assert(sizeof(piece) <= FY_ENGINE_KEY_BYTES, "a key has room");

bool fy_device_memory_is_shared(uint32_t kind)
{
    const fy_memory_kind *row = fy_memory_row(kind);
    return row != NULL && row->import_handle != NULL;
}

/*
 * Opening
 */

static ferry_status read_piece(const fy_region_view *region, piece *its, ferry_error *error)
{
    if (region->key_bytes < PIECE_HEAD_BYTES || region->key_bytes > sizeof *its) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "its key does not say how to open it");
    }
    memset(its, 0, sizeof *its);
    memcpy(its, region->key, region->key_bytes);
    size_t n_bytes = (size_t)its->handle_bytes + its->reason_bytes;
    if (n_bytes != region->key_bytes - PIECE_HEAD_BYTES ||
        its->handle_bytes > FY_MEMORY_HANDLE_BYTES) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "its key contradicts itself");
    }
    return its->handle_bytes > 0 ? FERRY_OK
                                 : fy_fail(error, FERRY_ERR_UNSUPPORTED, "%.*s",
                                           (int)its->reason_bytes, (const char *)its->bytes);
}

static ferry_status open_piece(const fy_region_view *region, fy_device_memory *memory,
                               ferry_error *error)
{
    piece its;
    fy_memory_span span = {.bytes = 0};
    FY_TRY(read_piece(region, &its, error));
    FY_TRY(memory->row->import_handle(its.bytes, its.handle_bytes, &span, error));
    if (its.offset > span.bytes || region->bytes > span.bytes - its.offset) {
        memory->row->release(span.base);
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "its %llu bytes at %llu do not lie in its allocation, which has %llu",
                       (unsigned long long)region->bytes, (unsigned long long)its.offset,
                       (unsigned long long)span.bytes);
    }
    memory->opened = span.base;
    memory->base = (char *)span.base + its.offset;
    return FERRY_OK;
}

ferry_status fy_device_memory_attach(const fy_region_view *region, fy_device_memory **memory_out,
                                     ferry_error *error)
{
    ferry_error why = {.message = ""};
    fy_device_memory *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    FY_TRY(fy_check_memory(fresh != NULL, "memory of a device", error));
    ferry_status status = fy_memory_get(region->space.kind, &fresh->row, &why);
    if (status == FERRY_OK && region->kind == FY_REGION_IMPORTED) {
        status = open_piece(region, fresh, &why);
    }
    if (status != FERRY_OK) {
        fy_free(fresh);
        return fy_fail(error, status,
                       "memory of kind %s of rank %u cannot be opened here: %s; let a copy service "
                       "move it, which stages",
                       fy_memory_name(region->space.kind), region->owner, why.message);
    }
    *memory_out = fresh;
    return FERRY_OK;
}

void fy_device_memory_release(fy_device_memory *memory)
{
    if (memory == NULL) {
        return;
    }
    if (memory->handle_bytes > 0) {
        memory->row->withdraw(memory->handle, memory->handle_bytes);
    }
    if (memory->opened != NULL) {
        memory->row->release(memory->opened);
    }
    if (memory->made != NULL) {
        memory->row->free(memory->device, memory->made, memory->made_bytes);
    }
    fy_free(memory);
}

ferry_status fy_device_memory_create(const fy_region_view *region, fy_device_memory **memory_out,
                                     void **base_out, ferry_error *error)
{
    fy_device_memory *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    FY_TRY(fy_check_memory(fresh != NULL, "memory of a device", error));
    ferry_status status = fy_memory_get(region->space.kind, &fresh->row, error);
    fresh->device = region->space.device;
    fresh->made_bytes = region->bytes;
    FY_THEN(status, fresh->row->alloc(fresh->device, region->bytes, &fresh->made, error));
    if (status != FERRY_OK) {
        fy_free(fresh);
        return status;
    }
    *base_out = fresh->made;
    *memory_out = fresh;
    return FERRY_OK;
}

void *fy_device_memory_base(const fy_device_memory *memory)
{
    return memory->base;
}

bool fy_device_memory_is_known(const fy_device_memory *memory)
{
    return memory->handle_bytes > 0;
}

/*
 * Naming
 */

static ferry_status name(fy_device_memory *memory, const fy_region_view *region,
                         uint64_t *offset_out, ferry_error *error)
{
    fy_memory_span span;
    size_t n_bytes = 0;
    FY_TRY(memory->row->export_handle(region->base, region->bytes, memory->handle, &n_bytes, &span,
                                      error));
    uint64_t first = (uint64_t)((char *)region->base - (char *)span.base);
    if (first > span.bytes || region->bytes > span.bytes - first) {
        memory->row->withdraw(memory->handle, n_bytes);
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "it lies in more than one allocation");
    }
    memory->handle_bytes = n_bytes;
    *offset_out = first;
    return FERRY_OK;
}

size_t fy_device_memory_key(fy_device_memory *memory, const fy_region_view *region, void *key)
{
    piece its = {.offset = memory->offset};
    ferry_error why = {.message = ""};
    if (memory->handle_bytes > 0 || name(memory, region, &its.offset, &why) == FERRY_OK) {
        memory->offset = its.offset;
        its.handle_bytes = (uint32_t)memory->handle_bytes;
        memcpy(its.bytes, memory->handle, memory->handle_bytes);
    } else {
        fy_log(memory->has_said ? FERRY_LOG_DEBUG : FERRY_LOG_INFO,
               "%llu bytes of kind %s go through the host: %s", (unsigned long long)region->bytes,
               fy_memory_name(region->space.kind), why.message);
        memory->has_said = true;
        snprintf((char *)its.bytes, sizeof its.bytes, "%.*s", (int)sizeof its.bytes - 1,
                 why.message);
        its.reason_bytes = (uint32_t)strlen((const char *)its.bytes);
    }
    size_t n_bytes = PIECE_HEAD_BYTES + its.handle_bytes + its.reason_bytes;
    memcpy(key, &its, n_bytes);
    return n_bytes;
}
