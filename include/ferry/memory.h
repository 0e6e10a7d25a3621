/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_MEMORY_H
#define FERRY_MEMORY_H

#include <ferry/export.h>
#include <ferry/status.h>

#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * Memory by kind. A program hands memory over as a ferry_buffer, which says where it lies. It may
 * be the program's own, or ferry's:
 *
 *     ferry_buffer weights, found;
 *     ferry_memory_alloc(NULL, FERRY_MEMORY_HOST, 0, 4096, &weights, &error);
 *     ferry_memory_query(weights.base, &found, &error);
 *     if (found.kind == FERRY_MEMORY_HOST) {
 *         memset(weights.base, 0, weights.bytes);
 *     }
 *     ferry_memory_free(&weights);
 *
 * Only memory of FERRY_MEMORY_HOST may be touched by the CPU, and by system calls; what lies
 * elsewhere is moved with ferry_box_copy, puts, services and collectives.
 *
 * All functions here are local, and may be called by any thread; but one that is given a transport
 * uses that transport, as its own calls do: see transport.h.
 */

/* Where bytes lie. Later versions append kinds. */
typedef enum ferry_memory_kind {
    FERRY_MEMORY_HOST = 0,
    FERRY_MEMORY_CUDA = 1, /* memory of NVIDIA devices, where there is a driver */
    /*
     * For tests: the host's memory, on two devices or more, that the CPU must not touch. Only
     * ferry's verbs reach it, and they work behind the caller's back and at their own pace. What
     * is right with it is right with a device's.
     */
    FERRY_MEMORY_FAR = 2
} ferry_memory_kind;

/*
 * A range of memory, as every call takes and gives it: copied by the call, while the memory that it
 * names stays the owner's. base with `bytes` from there on must lie in one allocation of that kind
 * and device; where that is not so, calls end with FERRY_ERR_MISUSE, and with
 * FERRY_ERR_UNSUPPORTED where this machine or this version has no such kind. Begin with
 * ferry_buffer_of or with zeros, and set what differs.
 */
typedef struct ferry_buffer {
    void *base; /* NULL only with 0 bytes */
    uint64_t bytes;
    uint32_t kind;  /* ferry_memory_kind */
    int32_t device; /* of a kind that has several; else 0 */
    /*
     * The region that the memory lies in: what ferry_memory_alloc or ferry_region_register has
     * given. Else NULL. It dangles once that region is freed.
     */
    struct ferry_region *registration;
    uint64_t spare[2]; /* 0: for kinds that need more than a pointer */
} ferry_buffer;

/* A buffer of plain host memory; where it is a source it may be const, and is only read. */
static inline ferry_buffer ferry_buffer_of(const void *base, uint64_t bytes)
{
    ferry_buffer buffer;
    buffer.base = (void *)(uintptr_t)base;
    buffer.bytes = bytes;
    buffer.kind = FERRY_MEMORY_HOST;
    buffer.device = 0;
    buffer.registration = NULL;
    buffer.spare[0] = 0;
    buffer.spare[1] = 0;
    return buffer;
}

struct ferry_transport;
/*
 * Takes memory of a kind, on a device of it (0 where it has one only, as the host): page aligned
 * and zero. Every page is there when the call returns. Local; each rank takes as much as it wants.
 *
 * With a transport it is what other ranks reach best: ranks of the node map it, and it is
 * registered with every engine that takes the kind. The buffer's registration is then a region of
 * the transport: its key goes to other ranks by ferry_region_export, and it must be freed, by
 * ferry_memory_free and also after the world has failed, before the transport is closed. Each such
 * allocation takes a descriptor of the process; once half of those it may have are in use, further
 * memory is reached as plain memory is, so take few large pieces rather than many small ones.
 * A part of the memory is a buffer with the same registration.
 *
 * Without a transport (NULL) it is the process's, its registration is NULL, and no rank reaches it
 * before it is registered. Memory of the host, registered from its beginning on, is then mapped by
 * ranks of the node as well: with any transports, one after the other or several at once. It takes
 * a descriptor, too, and is FERRY_ERR_LIMIT where half of them are in use. It stays until it is
 * freed and the last region of it is. Children of fork have the same pages, as plain memory.
 *
 * Where a world fails, a rank that was left behind may wake in the middle of a copy. So when what
 * stands on that world is closed or goes on without it, such memory gets other pages, with what was
 * there: no thread may write to it while that call is under way, or what it writes may be lost.
 *
 * Returns FERRY_ERR_NO_MEMORY where there is not so much (never a signal later),
 * FERRY_ERR_UNSUPPORTED for a kind that cannot be had here, and FERRY_ERR_MISUSE for no bytes, a
 * device that does not exist, and while a queue has work of the transport's world.
 */
FERRY_API ferry_status ferry_memory_alloc(struct ferry_transport *transport, ferry_memory_kind kind,
                                          int32_t device, uint64_t bytes, ferry_buffer *buffer_out,
                                          ferry_error *error);
/*
 * Gives back what ferry_memory_alloc has taken, and sets the buffer to zero; other copies of the
 * buffer, parts of it, and pointers into it dangle. Nobody may still write to it: of memory with a
 * registration the call waits for work of a queue first. NULL, and a zero buffer, are allowed;
 * memory that ferry did not make stays, and the log says so.
 */
FERRY_API void ferry_memory_free(ferry_buffer *buffer);

/*
 * What memory a pointer is of: the allocation that it lies in, with its kind and device, whoever
 * made it. What no kind knows that this process has used so far is the host's: then the buffer
 * begins at the pointer, and its length is 0 as it is not known. registration is NULL in any case.
 */
FERRY_API ferry_status ferry_memory_query(const void *pointer, ferry_buffer *buffer_out,
                                          ferry_error *error);

/* How many kinds of memory this version has numbers for: those of ferry_memory_kind. */
FERRY_API size_t ferry_memory_kind_count(void);
/*
 * A kind, by its number: its name ("far"), one line about it, how many devices it has here, and if
 * none, why not (else ""). Any output may be NULL. Name and line stay for good; why_not_out is
 * valid until this thread's next call of the function. A number too large is FERRY_ERR_MISUSE.
 */
FERRY_API ferry_status ferry_memory_kind_at(size_t index, const char **name_out,
                                            const char **summary_out, uint32_t *n_devices_out,
                                            const char **why_not_out, ferry_error *error);

/*
 * A device of a kind, by its number: one line on what it is and what can be done with it ("" where
 * there is nothing to say, as of the host). Valid until this thread's next call of the function.
 * FERRY_ERR_UNSUPPORTED: the kind cannot be had here; FERRY_ERR_MISUSE: it has no such device.
 */
FERRY_API ferry_status ferry_memory_device_at(ferry_memory_kind kind, int32_t device,
                                              const char **summary_out, ferry_error *error);

FERRY_END_DECLS

#endif
