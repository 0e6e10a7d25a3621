/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_EXEC_H
#define FY_EXEC_EXEC_H

#include "exec/area.h"
#include "exec/cast.h"
#include "exec/circle.h"
#include "exec/fleet.h"
#include "exec/lanes.h"
#include "exec/sum.h"
#include "memory/kind.h"

#include <stdatomic.h>

/*
 * What copies, sums and compares bytes: one row of verbs for each kind of memory. Verbs go on a
 * queue of one device; they begin in the order in which they were called, may return before they
 * are done, and are done in order. The CPU's row does its work at the call and has no queues: pass
 * NULL.
 *
 * Bases may be host memory or memory of the queue's device, each as its own kind says; anything
 * else must be refused with a status, or ends the queue with an error. What a verb is given to
 * describe its work (areas, a sum, a cast) is read at the call; what it points to (bytes, scales,
 * words, a place for a hash) must stay until a ticket that was taken after it is reached. A verb
 * that fails at the call has done nothing; one that fails later fails the queue for good, and
 * `reached` says why.
 *
 * Calls on one queue come from one thread at a time, but `reached` from any.
 */
typedef struct fy_exec_queue fy_exec_queue;

/*
 * A moment on a queue: everything that was called before it is done once the ticket is reached.
 * Tickets of a queue grow; 0 is always reached.
 */
typedef uint64_t fy_ticket;

/* Of a call in a graph; both functions are short, and call no verb. */
typedef struct fy_graph_call {
    /*
     * A launch of the graph has come to it, and goes on once *over is 1: what is called sets it to
     * 0, and to 1 when what there is to do is done. Perhaps before an earlier launch is over.
     */
    void (*launched)(void *context, _Atomic uint64_t *over);
    /* No graph has the call any more. False: *over may still be set. */
    bool (*gone)(void *context);
    void *context;
} fy_graph_call;

/* A matrix, its rows side by side, in blocks: those at the lower and right edge may be smaller. */
typedef struct fy_blocks {
    uint32_t kind; /* of its elements, a ferry_dtype_kind: f32, f16 or bf16 */
    uint64_t n_rows, n_columns;
    uint64_t block[2]; /* rows and columns of one */
} fy_blocks;

/* A matrix that becomes NVFP4 (convert/convert.h), its rows side by side. */
typedef struct fy_halves {
    uint32_t kind; /* of its elements: f32, f16 or bf16 */
    float of_matrix;
    uint64_t n_rows, n_columns;
} fy_halves;

/* Bytes [first, first + bytes) of an area at `base`. */
typedef struct fy_exec_part {
    fy_area area;
    const void *base;
    uint64_t first, bytes;
} fy_exec_part;

/* Bytes from `first` on of an area at `base`, which a verb writes; base NULL: nobody wants them. */
typedef struct fy_exec_place {
    fy_area area;
    void *base;
    uint64_t first;
} fy_exec_place;

/* What has one digest in `digests`, and how long that is. */
enum { FY_DIGESTED_BYTES = 4096, FY_DIGEST_BYTES = 16 };

typedef struct fy_exec {
    const char *name;
    /*
     * native is a handle of the caller's, such as a CUstream; NULL: a queue of ferry's own. They
     * are opened for single copies, too: an exec for which that is dear keeps some.
     */
    ferry_status (*queue_open)(int32_t device, void *native, fy_exec_queue **queue_out,
                               ferry_error *error);
    /* Waits until everything on it is done. NULL is allowed. */
    void (*queue_close)(fy_exec_queue *queue);
    /* Whether verbs on a queue of device may touch memory of that space. The host's: always. */
    bool (*reaches)(int32_t device, fy_space space);

    /*
     * Bytes [first, first + bytes) of `from` to the same bytes of `to`, as fy_area_copy. hash_out,
     * which may be NULL, is host memory and gets their XXH3.
     */
    ferry_status (*copy)(fy_exec_queue *queue, const fy_area *to, void *to_base,
                         const fy_area *from, const void *from_base, uint64_t first, uint64_t bytes,
                         uint64_t *hash_out, ferry_error *error);
    ferry_status (*hash)(fy_exec_queue *queue, const fy_area *area, const void *base,
                         uint64_t first, uint64_t bytes, uint64_t *hash_out, ferry_error *error);
    /* Elements [first, first + n), as fy_area_cast. The hash is that of what they have become. */
    ferry_status (*cast)(fy_exec_queue *queue, const fy_cast *cast, const fy_area *to,
                         void *to_base, const fy_area *from, const void *from_base, uint64_t first,
                         uint64_t n, uint64_t *hash_out, ferry_error *error);
    ferry_status (*sum)(fy_exec_queue *queue, const fy_sum *sum, ferry_error *error);
    /*
     * The largest magnitude of the finite elements of each block, 0 where there are none, to host
     * memory: row-major by block. Elements lie at multiples of their size in memory of the queue's
     * device. (optional: who needs it brings the elements)
     */
    ferry_status (*largest)(fy_exec_queue *queue, const fy_blocks *blocks, const void *base,
                            float *largest_out, ferry_error *error);

    /*
     * Codes, and scales of blocks, of a matrix as that of `largest`: row by row, each row of codes
     * with bytes of its own, to host memory or that of the queue's device. (optional, likewise)
     */
    ferry_status (*nvfp4)(fy_exec_queue *queue, const fy_halves *matrix, const void *base,
                          const fy_exec_place *codes, const fy_exec_place *scales,
                          ferry_error *error);
    /*
     * XXH3 of 128 bits, the lower half first, to host memory: of each FY_DIGESTED_BYTES of n parts
     * one behind the other, and of what is left at the end. All are memory of the queue's device.
     * (optional: who needs it brings the bytes)
     */
    ferry_status (*digests)(fy_exec_queue *queue, const fy_exec_part *parts, size_t n,
                            char *digests_out, ferry_error *error);

    /*
     * A call of a program of lanes: see lanes.h. Everything that it names by an address must be
     * memory that the queue's device reaches, pinned memory of the host included, and must stay.
     * Lanes wait for those of other ranks: a call that does not end by its deadline, or by the
     * board's `stop`, holds up the queue. (all five optional: devices of this kind run no such
     * programs)
     */
    ferry_status (*lanes)(fy_exec_queue *queue, const fy_lanes_call *call, ferry_error *error);
    /*
     * Before the first call on a queue, until it is closed; refused where other queues would not go
     * on while its lanes wait. Takes FY_LANES_PAGE_BYTES of the host's memory that all devices
     * reach, for a board and reports, cleared; and gives them back.
     */
    ferry_status (*lanes_take)(fy_exec_queue *queue, void **page_out, ferry_error *error);
    void (*lanes_give)(void *page);
    /* The same on a queue that is not a stream of the caller's, without a page. */
    ferry_status (*lanes_meet)(fy_exec_queue *queue, ferry_error *error);
    /*
     * How many lanes a device runs at once: all calls that meet there share them. Its identity is
     * the same in all processes, and no other device's.
     */
    ferry_status (*most_lanes)(int32_t device, uint32_t *n_out, uint64_t *identity_out,
                               ferry_error *error);
    /* Memory that all devices of a fleet reach at once. (optional: there is none) */
    const fy_fleets *fleets;
    /* A library's collectives. (optional: there is no such library for devices of this kind) */
    const fy_circles *circles;

    /*
     * Words are host memory. set is a release store, wait passes once the word is at least value.
     * The CPU's row refuses to wait for what is not there yet (FERRY_ERR_MISUSE): it has nobody to
     * wait in its place.
     */
    ferry_status (*word_set)(fy_exec_queue *queue, _Atomic uint64_t *word, uint64_t value,
                             ferry_error *error);
    ferry_status (*word_wait)(fy_exec_queue *queue, _Atomic uint64_t *word, uint64_t value,
                              ferry_error *error);
    /*
     * A host function in the queue's order, on a thread of the exec's. It must be short, and call
     * no verb: an exec may be unable to go on meanwhile. Also called where the queue has failed.
     */
    ferry_status (*call)(fy_exec_queue *queue, void (*function)(void *context), void *context,
                         ferry_error *error);

    /*
     * Whether calls on the queue are captured in a graph just now: kept to be made at each launch
     * of the graph, and not made. Then all verbs but capture are refused. (both optional: never)
     */
    ferry_status (*is_captured)(fy_exec_queue *queue, bool *is_captured_out, ferry_error *error);
    /*
     * A graph waits for a call of the queue's, whose work begins now: what that puts on queues must
     * not be held up. (optional: it never is)
     */
    void (*make_way)(fy_exec_queue *queue);
    /* A call of the graph's. gone is called once in any case, perhaps within this. */
    ferry_status (*capture)(fy_exec_queue *queue, const fy_graph_call *call, ferry_error *error);
    /*
     * The same of a program of lanes: the graph has its kernel, and nothing of the host's. Of the
     * call only gone is called, and *over stays. (optional)
     */
    ferry_status (*capture_lanes)(fy_exec_queue *queue, const fy_lanes_call *lanes,
                                  const fy_graph_call *call, ferry_error *error);

    /* The moment now. */
    ferry_status (*mark)(fy_exec_queue *queue, fy_ticket *ticket_out, ferry_error *error);
    /* FERRY_OK, FERRY_ERR_TIMEOUT without a sentence: not yet, or why the queue has failed. */
    ferry_status (*reached)(fy_exec_queue *queue, fy_ticket ticket, ferry_error *error);
} fy_exec;

/*
 * Who copies from one space to the other, and on which device's queues: the CPU where both are the
 * host, the device's exec where it reaches both. NULL where nothing does, as between two devices
 * without peer access: then bytes are staged through the host, by two copies. Both kinds were
 * checked before (fy_buffer_check).
 */
typedef struct fy_exec_choice {
    const fy_exec *exec;
    int32_t device;
} fy_exec_choice;

fy_exec_choice fy_exec_for_devices(fy_space from, fy_space to);

static inline fy_exec_choice fy_exec_for(fy_space from, fy_space to)
{
    if (fy_is_host(from) && fy_is_host(to)) {
        return (fy_exec_choice){&fy_cpu_exec, 0};
    }
    return fy_exec_for_devices(from, to);
}

/*
 * Whether a ticket is reached, at no cost where it is that of the CPU's row. Poll it beside the
 * other things that a loop waits for, or let a call() behind the mark ring the loop's bell.
 */
static inline ferry_status fy_exec_reached(const fy_exec *exec, fy_exec_queue *queue,
                                           fy_ticket ticket, ferry_error *error)
{
    return ticket == 0 ? FERRY_OK : exec->reached(queue, ticket, error);
}

/* Between looks at what an exec does, of which there were n_looks. */
void fy_exec_pause(uint32_t n_looks);

/* Waits, without work of its own, until everything that was called on the queue is done. */
ferry_status fy_exec_finish(const fy_exec *exec, fy_exec_queue *queue, ferry_error *error);

#endif
