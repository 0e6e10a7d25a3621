/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TRANSPORT_H
#define FERRY_TRANSPORT_H

#include <ferry/export.h>
#include <ferry/memory.h>
#include <ferry/queue.h>
#include <ferry/status.h>
#include <ferry/world.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * One-sided memory among the ranks of a world: a rank puts bytes into another rank's memory and
 * raises a signal there.
 *
 *     ferry_transport *transport;
 *     ferry_region *region;
 *     ferry_transport_open(world, NULL, &transport, &error);
 *     ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 4096 + 64, &region, &error);
 *
 *     ferry_buffer source = ferry_buffer_of(bytes, 4096);
 *     ferry_signal arrived = {.region = region, .offset = 4096, .value = 1};
 *     ferry_transport_put_signal(transport, peer, region, 0, &source, &arrived, NULL, &error);
 *     ferry_transport_wait_signal(transport, region, 4096, FERRY_COMPARE_GE, 1, peer, -1, NULL,
 *                                 NULL, &error);
 *     ferry_transport_flush(transport, peer, NULL, &error);
 *
 *     ferry_region_free(region);
 *     ferry_transport_close(transport);
 *
 * The engines that carry the bytes are chosen per pair of ranks: `inproc` between threads of a
 * process, `shm` between processes of a node, `ucx` between nodes. `nvshmem`, an experiment, only
 * where it is named.
 *
 * Collective calls (open, region_alloc, region_free of symmetric memory) are made by all ranks, in
 * the same order; the others are local. A transport, like its world, is used by one thread at a
 * time. While work of the world is on a device's queue it is that queue's: calls in host order, and
 * on other queues, are FERRY_ERR_MISUSE (see queue.h). Once the world has failed, calls return its
 * failure; freeing and closing work all the same.
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

/* How many engines this build knows, whether they are present or not. */
FERRY_API size_t ferry_engine_count(void);
/*
 * An engine, by number: its name ("shm"), one line about it, whether it can run here and, if not,
 * why not (else ""). Any output may be NULL. Name and line stay for good; why_not_out is valid
 * until this thread's next call of the function. A number too large is FERRY_ERR_MISUSE.
 */
FERRY_API ferry_status ferry_engine_at(size_t index, const char **name_out,
                                       const char **summary_out, bool *available_out,
                                       const char **why_not_out, ferry_error *error);

/* Where a peer is, as a rank sees it. */
typedef enum ferry_peer_class {
    FERRY_PEER_SELF = 0,   /* this rank itself */
    FERRY_PEER_THREAD = 1, /* a thread of the same process */
    FERRY_PEER_NODE = 2,   /* another process of the node */
    FERRY_PEER_REMOTE = 3, /* another node */
    FERRY_PEER_CLASSES = 4
} ferry_peer_class;

/* How bytes are put from memory of one kind into memory of another. */
typedef enum ferry_way {
    FERRY_WAY_NONE = 0,   /* not at all; the copy service moves them all the same */
    FERRY_WAY_DIRECT = 1, /* the engine reads the source and writes the target */
    FERRY_WAY_DEVICE = 2, /* a device's own copy, into memory that it sees */
    FERRY_WAY_STAGED = 3  /* a copy to the host's memory, and the engine from there */
} ferry_way;

/*
 * What is chosen where no engine is named: the engine ("" to this rank itself) for a peer of that
 * class, and the way from memory of one kind here to memory of another there. With two devices of
 * one kind it is the way on one device. FERRY_ERR_UNSUPPORTED where the engine, or one of the
 * kinds, is missing here; *engine_out is set all the same. Local, and without a transport.
 */
FERRY_API ferry_status ferry_engine_choose(ferry_peer_class peer, ferry_memory_kind source,
                                           ferry_memory_kind target, const char **engine_out,
                                           ferry_way *way_out, ferry_error *error);

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
 * for others: free them one by one where a slower rank may still put. Work that is on a queue keeps
 * the transport, and what it uses of it, until it is done; but what peers put into memory of a rank
 * that has closed is lost, and they may get FERRY_ERR_MISUSE. The handle, its regions and pointers
 * into its memory dangle. NULL is allowed.
 */
FERRY_API void ferry_transport_close(ferry_transport *transport);

/*
 * The engine that carries bytes to peer, such as "shm" ("self" to this rank), and FERRY_CAN_ flags.
 * Either output may be NULL; the name is valid while the transport is.
 */
FERRY_API ferry_status ferry_transport_get_peer(const ferry_transport *transport, uint32_t peer,
                                                const char **engine_out, uint32_t *capabilities_out,
                                                ferry_error *error);

/*
 * Symmetric memory, page aligned and zero; collective. Every page is there when the call returns: a
 * machine without enough memory says so now (FERRY_ERR_NO_MEMORY), on every rank, and never by a
 * signal later. Lengths or kinds that differ between ranks are FERRY_ERR_INVALID_INPUT on every
 * rank; devices may differ. FERRY_ERR_UNSUPPORTED, on every rank: an engine between two of them
 * reaches no memory of that kind. Signals lie in host memory only.
 */
FERRY_API ferry_status ferry_region_alloc(ferry_transport *transport, ferry_memory_kind kind,
                                          int32_t device, uint64_t bytes, ferry_region **region_out,
                                          ferry_error *error);

/*
 * Makes the caller's memory reachable; local. The memory must stay until the region is freed. Where
 * no engine can reach such memory the region still serves as a source. Buffers of this memory, or
 * of parts, may name the region as their registration, which spares registering it again.
 */
FERRY_API ferry_status ferry_region_register(ferry_transport *transport, const ferry_buffer *buffer,
                                             ferry_region **region_out, ferry_error *error);

/* The longest key, in bytes. */
#define FERRY_KEY_BYTES 1024

/*
 * Writes the key of a registered region, for other ranks: bytes that travel by any means, and are
 * good until the region is freed. FERRY_KEY_BYTES are enough room for any; *n_bytes_out of them are
 * used. Less room than that is FERRY_ERR_MISUSE, as is a region that was not registered here.
 */
FERRY_API ferry_status ferry_region_export(const ferry_region *region, void *key, size_t key_bytes,
                                           size_t *n_bytes_out, ferry_error *error);
/*
 * Makes a handle to another rank's memory of its key; local, on the transport that the region is
 * registered with. Its base is NULL, and it is to be freed like any region. A key that is damaged,
 * or of another transport, is FERRY_ERR_INVALID_INPUT. What the engine to that rank cannot reach,
 * because of its kind, is told by puts, with both kinds. Memory of a device of another process is
 * opened here until the handle is freed, and its owner must not free it before;
 * FERRY_ERR_UNSUPPORTED, and why, where that cannot be.
 */
FERRY_API ferry_status ferry_region_import(ferry_transport *transport, const void *key,
                                           size_t n_bytes, ferry_region **region_out,
                                           ferry_error *error);

/* Where the memory of this rank lies, until the region is freed; NULL of an imported region. */
FERRY_API void *ferry_region_base(const ferry_region *region);
/* How many bytes each rank's part has; 0 of NULL. */
FERRY_API uint64_t ferry_region_bytes(const ferry_region *region);

/*
 * Frees a region, after what this rank has put, and after work of a queue. For a symmetric one this
 * is collective: it waits until every rank frees it, so that no put of a slower rank finds it gone;
 * if the world has failed it does not wait. Of a registered one the memory stays the caller's: no
 * peer may still put to it. The handle, keys, and pointers from base or ferry_region_pointer
 * dangle. NULL is allowed.
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
 * Writes the source to offset of peer's part of the region, which may be this rank's own. Returns
 * when the operation is under way (on a queue: when it is on the queue): the source must not change
 * until a flush of that peer returns, or until the peer is known to have seen a signal that was
 * raised after it. Puts to one peer arrive in any order, but for what a signal is behind. A put
 * that would leave the region, and a buffer that is not what it says, are FERRY_ERR_MISUSE and move
 * nothing. Memory of a kind that no engine carries to the peer's is FERRY_ERR_UNSUPPORTED, with
 * both kinds, both ranks and what would help.
 */
FERRY_API ferry_status ferry_transport_put(ferry_transport *transport, uint32_t peer,
                                           ferry_region *region, uint64_t offset,
                                           const ferry_buffer *source, ferry_queue *queue,
                                           ferry_error *error);

/* What a signal does to its word: 64 bits at an offset of a symmetric region, a multiple of 8. */
typedef enum ferry_signal_op { FERRY_SIGNAL_SET = 0, FERRY_SIGNAL_ADD = 1 } ferry_signal_op;

/* Which word, and what is done to it. */
typedef struct ferry_signal {
    ferry_region *region; /* symmetric, of host memory */
    uint64_t offset;
    uint64_t value;
    uint32_t op; /* ferry_signal_op */
} ferry_signal;

/*
 * ferry_transport_put, and then the signal at the same peer: whoever sees the signal sees these
 * bytes and those of every earlier put of this rank to that peer. The source may be empty.
 */
FERRY_API ferry_status ferry_transport_put_signal(ferry_transport *transport, uint32_t peer,
                                                  ferry_region *region, uint64_t offset,
                                                  const ferry_buffer *source,
                                                  const ferry_signal *signal, ferry_queue *queue,
                                                  ferry_error *error);

/*
 * Fetches from offset of peer's part of the region into the target, which is complete after a flush
 * of peer. FERRY_ERR_UNSUPPORTED where the engine has not FERRY_CAN_GET, or does not reach the
 * kinds.
 */
FERRY_API ferry_status ferry_transport_get(ferry_transport *transport, uint32_t peer,
                                           ferry_region *region, uint64_t offset,
                                           const ferry_buffer *target, ferry_queue *queue,
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
 * wait at once. value_out, which may be NULL, gets the word as it was seen. What peers have put into
 * symmetric memory of devices over a network, queues see that are given work behind this call, or
 * behind a flush.
 */
FERRY_API ferry_status ferry_transport_wait_signal(ferry_transport *transport, ferry_region *region,
                                                   uint64_t offset, ferry_compare compare,
                                                   uint64_t value, uint32_t from,
                                                   double limit_seconds, uint64_t *value_out,
                                                   ferry_queue *queue, ferry_error *error);

/*
 * Returns when everything this rank has put to peer (FERRY_ANY_RANK: to all) is in place there, and
 * all gets from there have arrived: sources may change, targets may be read.
 */
FERRY_API ferry_status ferry_transport_flush(ferry_transport *transport, uint32_t peer,
                                             ferry_queue *queue, ferry_error *error);

/*
 * Lets the engines work without waiting: for loops that poll memory themselves. FERRY_OK, or why
 * the world has failed.
 */
FERRY_API ferry_status ferry_transport_progress(ferry_transport *transport, ferry_error *error);

FERRY_END_DECLS

#endif
