/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_MEMORY_H
#define FERRY_MEMORY_H

#include <ferry/export.h>
#include <ferry/status.h>

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
    void *base;
    uint64_t bytes;
    uint32_t kind;  /* ferry_memory_kind */
    int32_t device; /* of a kind that has several; else 0 */
    /* The ferry_region that the memory lies in, if the caller registered it: else NULL. */
    struct ferry_region *registration;
} ferry_buffer;

/* Plain host memory; a source may be const, and is only read. */
static inline ferry_buffer ferry_buffer_of(const void *base, uint64_t bytes)
{
    ferry_buffer buffer;
    buffer.base = (void *)(uintptr_t)base;
    buffer.bytes = bytes;
    buffer.kind = FERRY_MEMORY_HOST;
    buffer.device = 0;
    buffer.registration = NULL;
    return buffer;
}

/*
 * Memory that other ranks reach best: ranks of the node map it, and it is registered with every
 * engine. Page aligned and zero; every page is there when the call returns, or it fails with
 * FERRY_ERR_NO_MEMORY. Local; each rank takes as much as it wants. The buffer's registration is a
 * region of the transport, which must be freed (by ferry_memory_free, also after the world failed)
 * before the transport is closed. A part of the memory is a buffer with the same registration. Each
 * allocation takes a descriptor of the process; once half of those it may have are in use, further
 * memory is reached as plain memory is, so take few large pieces rather than many small ones.
 */
struct ferry_transport;
/* Takes memory of that kind: see above. */
FERRY_API ferry_status ferry_memory_alloc(struct ferry_transport *transport, uint64_t bytes,
                                          ferry_buffer *buffer_out, ferry_error *error);
/* Nobody may still write to it. Sets the buffer to zero. NULL, and a zero buffer, are allowed. */
FERRY_API void ferry_memory_free(ferry_buffer *buffer);

/*
 * The order that an operation keeps with other work. NULL is host order: the operation begins when
 * it is called. Queues of devices come with later versions; anything but NULL is refused.
 */
typedef struct ferry_queue ferry_queue;

FERRY_END_DECLS

#endif
