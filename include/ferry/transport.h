/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TRANSPORT_H
#define FERRY_TRANSPORT_H

#include <ferry/export.h>
#include <ferry/memory.h>
#include <ferry/status.h>
#include <ferry/world.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * One-sided memory among the ranks of a world: a rank puts bytes into another rank's memory and
 * raises a signal there. The engines that carry the bytes are chosen per pair of ranks: `inproc`
 * between threads of a process, `shm` between processes of a node, `ucx` between nodes.
 */
typedef struct ferry_transport ferry_transport;

/*
 * Memory that other ranks can reach. Symmetric: every rank has a part of the same length, and a put
 * names the rank. Registered: one rank's own memory, and other ranks reach it once they have
 * imported its key.
 */
typedef struct ferry_region ferry_region;

/* What an engine can do for a pair of ranks. Code asks and never assumes. */
enum {
    FERRY_CAN_REMOTE_USER_MEMORY = 1 << 0, /* puts may go to registered memory of the peer */
    FERRY_CAN_PEER_POINTER = 1 << 1,       /* symmetric memory of the peer is mapped here */
    FERRY_CAN_TARGET_PROGRESS = 1 << 2,    /* bytes arrive although the target does nothing */
    FERRY_CAN_QUEUE_ORDER = 1 << 3,        /* completes in the order of a queue only */
    FERRY_CAN_DEVICE_INITIATE = 1 << 4,    /* kernels can put */
    FERRY_CAN_MULTICAST = 1 << 5,          /* one write reaches several ranks */
    FERRY_CAN_ONE_WORLD = 1 << 6,          /* one world per process */
    FERRY_CAN_GET = 1 << 7                 /* bytes can be fetched as well */
};

/*
 * The engines that this build knows, whether present or not: number index, its name, one line about
 * it, whether it can run here and, if not, why not (else "").
 */
FERRY_API size_t ferry_engine_count(void);
/* An engine, by number. */
FERRY_API ferry_status ferry_engine_at(size_t index, const char **name_out,
                                       const char **summary_out, bool *available_out,
                                       const char **why_not_out, ferry_error *error);

/*
 * Opens the transport; collective. The engines: NULL means FERRY_TRANSPORT, and where that is unset
 * the best for each pair of ranks. Else a name, or wrappers and a name, joined by colons:
 *
 *     shm   ucx   strict:shm   trace:delay=200us:ucx   delay=1ms
 *
 * where a missing name means the best for each pair. delay=TIME delays what is put, reorder=SEED
 * lets it wait for a flush or a signal and come in any order, lose=RANK@N kills the traffic of a
 * rank after N operations, flip=N flips a bit in one of N puts, trace logs every call, strict
 * leaves only what NVSHMEM can do. All but trace hold back what a flush then waits for, so with
 * them a test of a request may wait too.
 */
FERRY_API ferry_status ferry_transport_open(ferry_world *world, const char *engines,
                                            ferry_transport **transport_out, ferry_error *error);

/*
 * Ends it; local. Flush first what must arrive. Regions that are left are freed, without waiting
 * for others: free them one by one where a slower rank may still put.
 */
FERRY_API void ferry_transport_close(ferry_transport *transport);

/* The engine that carries bytes to peer, such as "shm", and FERRY_CAN_ flags. Either may be NULL.
 */
FERRY_API ferry_status ferry_transport_peer(const ferry_transport *transport, uint32_t peer,
                                            const char **engine_out, uint32_t *capabilities_out,
                                            ferry_error *error);

/*
 * Symmetric memory, page aligned and zero; collective. Every page is there when the call returns: a
 * machine without enough memory says so now (FERRY_ERR_NO_MEMORY), on every rank, and never by a
 * signal later. Lengths that differ between ranks are FERRY_ERR_INVALID_INPUT on every rank.
 */
FERRY_API ferry_status ferry_region_alloc(ferry_transport *transport, uint64_t bytes,
                                          ferry_region **region_out, ferry_error *error);

/*
 * Makes the caller's memory reachable; local. The memory must stay until the region is freed. Where
 * no engine can reach user memory the region still serves as a source.
 */
FERRY_API ferry_status ferry_region_register(ferry_transport *transport, const ferry_buffer *buffer,
                                             ferry_region **region_out, ferry_error *error);

/* The longest key, in bytes. */
#define FERRY_KEY_BYTES 512

/*
 * The key of a registered region, for other ranks: bytes that travel by any means. key must have
 * room for FERRY_KEY_BYTES. import makes a handle to the owner's memory: base is NULL.
 */
FERRY_API ferry_status ferry_region_export(const ferry_region *region, void *key,
                                           size_t *n_bytes_out, ferry_error *error);
/* Makes a handle of a key: see above. */
FERRY_API ferry_status ferry_region_import(ferry_transport *transport, const void *key,
                                           size_t n_bytes, ferry_region **region_out,
                                           ferry_error *error);

/* Where the memory of this rank lies; NULL of an imported region. */
FERRY_API void *ferry_region_base(const ferry_region *region);
/* How long the region is. */
FERRY_API uint64_t ferry_region_bytes(const ferry_region *region);

/*
 * Frees a region. For a symmetric one this is collective: it waits until every rank frees it, so
 * that no put of a slower rank finds it gone; if the world has failed it does not wait.
 */
FERRY_API void ferry_region_free(ferry_region *region);

/*
 * Where a rank's part of a symmetric region is mapped in this process, or the memory of the owner
 * of an imported one; NULL where it is not. Imported memory is mapped among threads of a process,
 * and among processes of a node if it comes from ferry_memory_alloc and the kernel lets this
 * process look into that one. It stays mapped here until this handle is freed, whatever the owner
 * does; what is written after the owner has freed it reaches nobody.
 */
FERRY_API void *ferry_region_pointer(const ferry_region *region, uint32_t peer);

/*
 * Writes the source to offset of peer's part of the region. Returns when the operation is under
 * way: the source must not change until a flush of that peer returns, or until the peer is known to
 * have seen a signal that was raised after it. A put that would leave the region is
 * FERRY_ERR_MISUSE and moves nothing.
 */
FERRY_API ferry_status ferry_put(ferry_transport *transport, uint32_t peer, ferry_region *region,
                                 uint64_t offset, const ferry_buffer *source, ferry_queue *queue,
                                 ferry_error *error);

/* What a signal does to its word: 64 bits at an offset of a symmetric region, a multiple of 8. */
typedef enum ferry_signal_op { FERRY_SIGNAL_SET = 0, FERRY_SIGNAL_ADD = 1 } ferry_signal_op;

typedef struct ferry_signal {
    ferry_region *region; /* symmetric */
    uint64_t offset;
    uint64_t value;
    uint32_t op; /* ferry_signal_op */
} ferry_signal;

/*
 * ferry_put, and then the signal at the same peer: whoever sees the signal sees these bytes and
 * those of every earlier put of this rank to that peer. The source may be empty.
 */
FERRY_API ferry_status ferry_put_signal(ferry_transport *transport, uint32_t peer,
                                        ferry_region *region, uint64_t offset,
                                        const ferry_buffer *source, const ferry_signal *signal,
                                        ferry_queue *queue, ferry_error *error);

/* Fetches from peer into the target; complete after a flush of peer. */
FERRY_API ferry_status ferry_get(ferry_transport *transport, uint32_t peer, ferry_region *region,
                                 uint64_t offset, const ferry_buffer *target, ferry_queue *queue,
                                 ferry_error *error);

/* How a signal's word is compared. */
typedef enum ferry_compare {
    FERRY_COMPARE_EQ = 0,
    FERRY_COMPARE_NE = 1,
    FERRY_COMPARE_GE = 2,
    FERRY_COMPARE_GT = 3
} ferry_compare;

/*
 * Waits until the word at offset of this rank's own part compares true with value. limit_seconds:
 * negative is the world's entry limit, 0 looks once; when it has passed, FERRY_ERR_TIMEOUT names
 * from, the rank that was to raise it (FERRY_ANY_RANK if unknown). The world's failure ends the
 * wait at once. value_out, which may be NULL, gets the word as it was seen.
 */
FERRY_API ferry_status ferry_signal_wait(ferry_transport *transport, ferry_region *region,
                                         uint64_t offset, ferry_compare compare, uint64_t value,
                                         uint32_t from, double limit_seconds, uint64_t *value_out,
                                         ferry_error *error);

/*
 * Returns when everything this rank has put to peer (FERRY_ANY_RANK: to all) is in place there, and
 * all gets from there have arrived: sources may change, targets may be read.
 */
FERRY_API ferry_status ferry_flush(ferry_transport *transport, uint32_t peer, ferry_queue *queue,
                                   ferry_error *error);

/*
 * Lets the engines work without waiting: for loops that poll memory themselves. FERRY_OK, or why
 * the world has failed.
 */
FERRY_API ferry_status ferry_transport_progress(ferry_transport *transport, ferry_error *error);

FERRY_END_DECLS

#endif
