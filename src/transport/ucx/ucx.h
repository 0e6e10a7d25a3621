/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_UCX_UCX_H
#define FY_UCX_UCX_H

#include "transport/engine.h"
#include "transport/ucx/order.h"
#include "transport/ucx/wire.h"

#include <pthread.h>
#include <ucp/api/ucp.h>

/*
 * The engine over UCX. Bytes travel in one of two ways, chosen per peer (peer.c):
 *
 *   messages  Active messages carry the bytes and name the place; the target's CPU puts them there,
 *             large ones received right into place. What TCP is good at.
 *   RMA       ucp_put and ucp_get with keys that are fetched at first use. What RDMA is good at.
 *             Small puts and all signals are messages here too; a signal leaves when the puts
 *             before it have been flushed.
 *
 * Memory of CUDA devices, where UCX has it on all ranks, goes by messages whose bodies are
 * rendezvous, with UCX's name for the kind of memory on either side: UCX then registers it with the
 * card, or stages it, as it finds best, and a signal waits for it as for all that is received.
 * UCX wants a context to be current on every thread that calls it: see fy_ucx_go_inside.
 *
 * One mutex guards a state: calls of the library's come from one thread at a time, but the watcher
 * thread runs the worker as well (wake.c). What may call back into the library's world (ring, lost)
 * is collected under the mutex and done after it is released.
 */
typedef struct fy_ucx fy_ucx;
typedef struct fy_ucx_op fy_ucx_op;
typedef struct fy_ucx_peer fy_ucx_peer;

/* How a peer's memory is reached by RMA: of one region of one owner. */
typedef struct fy_ucx_key {
    bool is_known; /* the owner has answered */
    uint64_t base;
    ucp_rkey_h rkey; /* NULL: only messages reach it */
} fy_ucx_key;

/* The engine's part of a region. */
typedef struct fy_ucx_region {
    fy_region_view view;
    struct fy_ucx_region *next; /* in its bucket */
    ucp_mem_h memory;
    bool is_bare;     /* a peer that writes here with its own processor has a key */
    uint32_t busy;    /* operations of peers that UCX has under way in this memory */
    fy_ucx_key *keys; /* symmetric: by rank; imported: one; NULL before the first RMA */
    uint32_t n_keys;
} fy_ucx_region;

typedef enum fy_ucx_role {
    FY_UCX_SENDING = 1,   /* a PUT whose source is still needed */
    FY_UCX_RECEIVING = 2, /* a PUT's body on its way into region */
    FY_UCX_WRITING = 3,   /* RMA */
    FY_UCX_READING = 4,   /* RMA, or a GOT's body on its way */
    FY_UCX_WAITING = 5,   /* a GET, for its GOT */
    FY_UCX_FLUSHING = 6,  /* RMA puts before what is held, or before a flush ends */
    FY_UCX_REPLYING = 7,  /* a message that uses no memory of the caller's */
    FY_UCX_ASKING = 8,    /* waits for a KEY */
    FY_UCX_MEETING = 9,   /* the flush of an endpoint that was just made: see meet.c */
    FY_UCX_NAMING = 10,   /* a NAMED on its way */
} fy_ucx_role;

/* Something under way. Ops come from a pool that only grows. */
struct fy_ucx_op {
    fy_ucx_op *next; /* in the free list, the jobs, or what a peer holds back */
    fy_ucx *engine;
    uint32_t index; /* in the pool: names the op to a peer */
    uint32_t peer;
    uint8_t role;   /* fy_ucx_role */
    bool is_free;   /* of what is held: may leave as soon as it is the first */
    bool is_packed; /* body comes from ucp_rkey_pack */
    uint64_t bytes;
    void *body;
    fy_ucx_region *region;
    uint64_t number; /* of a PUT that is being received */
    uint32_t kind;   /* of the body's memory, a ferry_memory_kind */
    bool must_meet;  /* the body goes as a rendezvous, whatever its length */
    fy_ucx_header header;
};

typedef struct fy_ucx_queue {
    fy_ucx_op *first;
    fy_ucx_op *last;
} fy_ucx_queue;

struct fy_ucx_peer {
    fy_ucx *engine;
    ucp_ep_h ep; /* NULL until first used */
    /* The steps of a connection: see meet.c. */
    bool can_send;
    bool has_greeted; /* it was sent a HELLO */
    bool is_greeted;  /* it has sent one */
    bool is_naming;   /* it is being sent what makes UCX tell names */
    bool is_met;
    bool has_left; /* said farewell */
    bool is_lost;
    bool has_xpmem;
    bool is_fast; /* UCX does RMA to it without its CPU: not over TCP */
    bool uses_rma;
    bool has_rdma;   /* it says that its UCX has a network other than TCP */
    bool is_guarded; /* the endpoint has UCX's error handling */
    /* To it: */
    uint64_t next_number;
    uint64_t reached; /* the number below which it has answered for */
    uint64_t n_asked; /* how often it was asked to, and the last question answered */
    uint64_t n_answered;
    uint32_t n_sending; /* ops that use memory of the caller's, and their bytes */
    uint32_t n_waiting; /* those among them that wait for a GOT */
    uint32_t n_flushing;
    uint64_t sending_bytes;
    bool has_unflushed; /* RMA puts since the last ucp_ep_flush */
    bool is_asking;     /* for a key */
    bool is_trying;     /* to flush: see fy_ucx_try_flush */
    bool is_due;        /* in the engine's list of those for which settle has to do */
    fy_ucx_queue held;  /* PUTs that wait for a flush of the RMA puts before them */
    fy_ucx_queue early; /* messages that wait until the connection is made */
    fy_ucx_peer *next_due;
    /* From it: */
    fy_ucx_order order;
    uint64_t n_events; /* signs of life: whatever completes or arrives */
};

/* What is to be told to the library once the mutex is released; of losses the first only. */
typedef struct fy_ucx_news {
    bool is_changed; /* memory changed, or something completed that a wait may look at */
    bool has_loss;
    uint32_t lost;
    char sentence[256];
} fy_ucx_news;

typedef enum fy_ucx_mode { FY_UCX_AUTO, FY_UCX_MESSAGES, FY_UCX_RMA } fy_ucx_mode;

enum { FY_UCX_BUCKETS = 256, FY_UCX_CHUNK = 64 };

struct fy_ucx {
    const fy_host *host;
    fy_ucx_mode mode;
    bool may_choose; /* between eager and rendezvous: the user has not (UCX_RNDV_THRESH) */
    ucp_context_h context;
    ucp_worker_h worker;
    unsigned char *addresses; /* of all workers, and where each begins */
    size_t *address_at;

    pthread_mutex_t mutex;
    bool has_mutex;
    bool hurries;    /* puts do not wait */
    bool is_closing; /* what breaks now is no news */
    bool has_module; /* UCX has its module for CUDA here */
    bool has_cuda;   /* UCX reads and writes memory of CUDA devices, on all ranks */
    bool is_stuck;   /* what must end before the worker is destroyed does not */
    bool is_dead;    /* the world has failed or is about to: the worker runs no more */
    fy_ucx_peer *peers;
    fy_ucx_region *regions[FY_UCX_BUCKETS]; /* own ones, by id */
    fy_ucx_op **chunks;
    size_t n_chunks;
    size_t chunk_capacity;
    fy_ucx_op *free_ops;
    fy_ucx_queue jobs; /* what handlers found to do, but may not do themselves */
    fy_ucx_peer *due;
    void **closing; /* a request per peer, for close */
    fy_ucx_news news;

    bool is_inside;   /* of a CUDA device, on the thread that has the mutex */
    bool has_settled; /* what UCX had begun in such memory when the world failed */

    /* wake.c */
    int gate;  /* an epoll set around UCX's own descriptor, or -1 */
    int timer; /* or -1 */
    int worker_fd;
    bool is_watched;
    bool is_armed;
    bool is_ticking; /* fast, because it is not armed or was not a moment ago */
    uint64_t n_calls;
    uint64_t n_calls_at_tick;
    int64_t worked_ns; /* when the worker last had something to do */
};

/* UCX's name for a kind of memory. */
static inline ucs_memory_type_t fy_ucx_memory_type(uint32_t kind)
{
    return kind == FERRY_MEMORY_CUDA ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

/* -- op.c: the pool and queues */
fy_ucx_op *fy_ucx_op_new(fy_ucx *engine, uint32_t peer, fy_ucx_role role); /* NULL: no memory */
void fy_ucx_op_free(fy_ucx_op *op);                                        /* NULL is allowed */
/* The op in use that a peer's answer names, or NULL. */
fy_ucx_op *fy_ucx_op_find(fy_ucx *engine, uint64_t index, uint32_t peer, fy_ucx_role role);
void fy_ucx_pool_cleanup(fy_ucx *engine);
void fy_ucx_enqueue(fy_ucx_queue *queue, fy_ucx_op *op);
fy_ucx_op *fy_ucx_dequeue(fy_ucx_queue *queue);
/* There is something to do for peer that its handlers may not do themselves: settle does it. */
void fy_ucx_due(fy_ucx_peer *peer);

/* -- wake.c: the mutex, the worker, and who runs it when the caller does not */
ferry_status fy_ucx_wake_open(fy_ucx *engine, ferry_error *error);
void fy_ucx_wake_close(fy_ucx *engine);
void fy_ucx_enter(fy_ucx *engine); /* as a call of the library's */
void fy_ucx_leave(fy_ucx *engine);
/*
 * UCX is called with the context of a CUDA device current wherever the process uses one: any will
 * do, as UCX finds out for itself whose memory is whose, but without one its copies come to no end.
 * Calls with the mutex are inside; these two are for those without, at the beginning and the end.
 */
void fy_ucx_go_inside(fy_ucx *engine);
void fy_ucx_go_outside(fy_ucx *engine);
/* Under the mutex: memory of that space will be used, of a device that may not have been so far. */
void fy_ucx_use(fy_ucx *engine, fy_space space);
/* Under the mutex: something is about to be sent. */
void fy_ucx_disarm(fy_ucx *engine);
/* Under the mutex: runs the worker until it has nothing to do; true if anything happened. */
bool fy_ucx_run(fy_ucx *engine);
int64_t fy_ucx_sleep_ns(void *state);
int64_t fy_ucx_now_ns(void);
bool fy_ucx_progress(void *state);

/* -- meet.c */
/* Under the mutex: goes on with a connection, or begins it. */
void fy_ucx_meet(fy_ucx *engine, uint32_t rank);

/* -- peer.c */
/* Under the mutex: makes the endpoint. A peer to which none can be made is lost. */
ferry_status fy_ucx_connect(fy_ucx *engine, uint32_t peer, ferry_error *error);
/*
 * Under the mutex: news of a peer that is gone, or that breaks the protocol. The world fails with
 * them, and the worker is not run from here on: calls end with an error now, after which memory of
 * the caller's must not be touched.
 */
void fy_ucx_lose(fy_ucx *engine, uint32_t peer, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* FERRY_OK, or why nothing can be sent to this peer. */
ferry_status fy_ucx_peer_state(const fy_ucx *engine, uint32_t peer, ferry_error *error);
/* Under the mutex, in a failed world: nothing that was posted goes on. Can be repeated. */
void fy_ucx_cut(fy_ucx *engine);
void fy_ucx_peers_close(fy_ucx *engine);

/* -- region.c */
ferry_status fy_ucx_attach(void *state, const fy_region_view *view, void **attachment_out,
                           ferry_error *error);
void fy_ucx_release(void *state, const fy_region_view *view, void *attachment);
ferry_status fy_ucx_export_key(void *state, const fy_region_view *view, void *attachment, void *key,
                               size_t *n_bytes_out, ferry_error *error);
ferry_status fy_ucx_revoke(void *state, const fy_region_view *view, void *attachment,
                           ferry_error *error);
fy_ucx_region *fy_ucx_region_find(const fy_ucx *engine, uint64_t id);
/* The place of a range in a region, or NULL if it leaves it. */
void *fy_ucx_region_at(const fy_ucx_region *region, uint64_t offset, uint64_t bytes);
ferry_status fy_ucx_region_map(fy_ucx *engine, fy_ucx_region *region);
/* Where the key for peer is kept; NULL: no memory. */
fy_ucx_key *fy_ucx_region_key(fy_ucx_region *region, uint32_t peer, uint32_t n_ranks);

/* -- send.c */
ferry_status fy_ucx_put(void *state, uint32_t peer, const fy_region_view *view, void *attachment,
                        uint64_t offset, const void *source, uint64_t bytes,
                        const fy_signal_view *signal, ferry_error *error);
ferry_status fy_ucx_get(void *state, uint32_t peer, const fy_region_view *view, void *attachment,
                        uint64_t offset, void *target, uint64_t bytes, ferry_error *error);
ferry_status fy_ucx_put_from(void *state, uint32_t peer, const fy_region_view *view,
                             void *attachment, uint64_t offset, const ferry_buffer *source,
                             const fy_signal_view *signal, ferry_error *error);
ferry_status fy_ucx_get_into(void *state, uint32_t peer, const fy_region_view *view,
                             void *attachment, uint64_t offset, const ferry_buffer *target,
                             ferry_error *error);
/*
 * Under the mutex: sends a message whose header is filled, or keeps it until the connection is
 * made; the op is no longer the caller's.
 */
void fy_ucx_send(fy_ucx_op *op);
/* Under the mutex: flushes the endpoint of op's peer; op is no longer the caller's. */
void fy_ucx_flush_ep(fy_ucx_op *op);
/* Under the mutex: asks peer to say when all sent so far is in place. */
ferry_status fy_ucx_ask_reached(fy_ucx *engine, uint32_t peer, ferry_error *error);
/* Under the mutex: does what handlers left; true if there was anything. */
bool fy_ucx_settle(fy_ucx *engine);
/* An op that UCX has finished with, whatever its role. */
void fy_ucx_finish(fy_ucx_op *op, ucs_status_t status);

/* -- receive.c */
ucs_status_t fy_ucx_listen(fy_ucx *engine);
/* Does what follows the messages of source that are now complete in order. */
void fy_ucx_deliver(fy_ucx *engine, uint32_t source);

/* -- flush.c */
ferry_status fy_ucx_flush(void *state, uint32_t peer, ferry_error *error);
ferry_status fy_ucx_try_flush(void *state, uint32_t *peer_out, ferry_error *error);
/* -- send.c */
void fy_ucx_hurry(void *state, bool hurries);
bool fy_ucx_has_room(void *state, uint32_t peer);
/*
 * Waits until ready(engine, peer), no longer than the peer shows signs of life or lives. Called
 * under the mutex, and so is ready; lets go of it meanwhile. what says what the peer did not do.
 */
typedef bool (*fy_ucx_ready_fn)(const fy_ucx *engine, uint32_t peer);
ferry_status fy_ucx_wait(fy_ucx *engine, uint32_t peer, fy_ucx_ready_fn ready, const char *what,
                         ferry_error *error);

#endif
