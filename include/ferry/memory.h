/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_MEMORY_H
#define FERRY_MEMORY_H

#include <ferry/export.h>

#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/* Where bytes lie. Later versions append kinds. */
typedef enum ferry_memory_kind {
    FERRY_MEMORY_HOST = 0,
    FERRY_MEMORY_CUDA = 1 /* a device's own memory: refused by this version */
} ferry_memory_kind;

/* Data enters ferry as a buffer: who it belongs to does not change by that. */
typedef struct ferry_buffer {
    void    *base;
    uint64_t bytes;
    uint32_t kind;   /* ferry_memory_kind */
    int32_t  device; /* of a kind that has several; else 0 */
    /* The ferry_region that the memory lies in, if the caller registered it: else NULL. */
    struct ferry_region *registration;
} ferry_buffer;

/* Plain host memory; a source may be const, and is only read. */
static inline ferry_buffer ferry_buffer_of(const void *base, uint64_t bytes)
{
    ferry_buffer buffer;
    buffer.base         = (void *)(uintptr_t)base;
    buffer.bytes        = bytes;
    buffer.kind         = FERRY_MEMORY_HOST;
    buffer.device       = 0;
    buffer.registration = NULL;
    return buffer;
}

/*
 * The order that an operation keeps with other work. NULL is host order: the operation begins when
 * it is called. Queues of devices come with later versions; anything but NULL is refused.
 */
typedef struct ferry_queue ferry_queue;

FERRY_END_DECLS

#endif
