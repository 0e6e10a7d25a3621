/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_TRANSPORT_H
#define FY_TRANSPORT_TRANSPORT_H

#include "base/status.h"
#include "transport/engine.h"
#include "world/world.h"

#include <ferry/transport.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The front end: it checks, keeps regions, and hands each operation to the engine of its peer. A
 * transport has one engine, or two where a world spans nodes: the local one, which allocates
 * symmetric memory, and that of the network, which attaches it. Another one may be aside: symmetric
 * memory of devices is its own, and goes to all peers by it.
 */
enum { FY_MOST_ENGINES = 3 };

/* An engine after open, with the wrappers around it. */
typedef struct fy_open_engine {
    const fy_engine *table;
    void *state;
    fy_host host;
} fy_open_engine;

/* A source's copy that an engine may still read: carry.c. */
typedef struct fy_kept fy_kept;

struct ferry_transport {
    _Atomic uint32_t references;
    ferry_world *world; /* retained */
    uint32_t n_engines;
    fy_open_engine engines[FY_MOST_ENGINES];
    uint8_t *engine_of; /* by peer: its engine's index */
    bool has_aside;     /* the last engine is aside */
    bool uses_aside;    /* it has, or had, such memory */
    bool owes_aside;    /* puts by it that are not known to be in place: signals wait for them */
    uint64_t identity;  /* the same on all ranks; a key of another transport is refused */
    uint32_t number;    /* in its world, the same on all ranks */
    uint64_t next_symmetric;
    uint64_t next_registered;
    ferry_region *regions;      /* all that are not freed */
    fy_shrink_hook shrink_hook; /* from the world, when it shrinks: see revoke.c */
    fy_kept *kept;
    uint64_t kept_bytes;
    ferry_transport *elder; /* that this one goes on from, if it still has memory; retained */
};

struct ferry_region {
    fy_region_view view;
    ferry_transport *transport;
    ferry_region *next;
    ferry_region **link;        /* what points to this region */
    bool memory;                /* registered, and its memory goes with it */
    bool pages;                 /* the library allocated the memory itself, of its space */
    ferry_region *next_exposed; /* see revoke.c */
    unsigned exposed;           /* to ranks of these engines */
    unsigned attached;          /* bit i: engine i knows the region */
    void *attachments[FY_MOST_ENGINES];
    unsigned char key[FY_ENGINE_KEY_BYTES]; /* of an imported region */
};

static inline bool fy_is_self(const ferry_transport *transport, uint32_t peer)
{
    return peer == transport->world->rank;
}

static inline fy_open_engine *fy_engine_for(ferry_transport *transport, uint32_t peer)
{
    return &transport->engines[transport->engine_of[peer]];
}

/* The engine that is aside, or NULL. */
static inline const fy_open_engine *fy_aside_of(const ferry_transport *transport)
{
    return transport->has_aside ? &transport->engines[transport->n_engines - 1] : NULL;
}

/* FERRY_OK, or why the world has failed; one load where it has not. */
static inline ferry_status fy_transport_state(const ferry_transport *transport, ferry_error *error)
{
    const fy_failure *failure = transport->world->failure;
    return fy_failed(failure) ? fy_failure_get(failure, NULL, error) : FERRY_OK;
}

/* Lets every engine work; true if anything happened. */
bool fy_transport_work(ferry_transport *transport);

/*
 * For who must not wait: between hurry(true) and hurry(false) puts begin at once. has_room says
 * whether a peer takes more without that. try_flush goes on with a flush of everything: FERRY_OK
 * when it has ended, FERRY_ERR_TIMEOUT, without a sentence, where *peer_out has not answered yet.
 */
void fy_transport_hurry(ferry_transport *transport, bool hurries);
bool fy_transport_has_room(ferry_transport *transport, uint32_t peer);
ferry_status fy_transport_try_flush(ferry_transport *transport, uint32_t *peer_out,
                                    ferry_error *error);

/* How long a waiter may sleep before the engines must be let work again; see fy_engine. */
int64_t fy_transport_sleep_ns(const ferry_transport *transport);

/*
 * One holder more, as a service is: the transport, with all that belongs to it, lives until the
 * last one has called ferry_transport_close, and until then regions may be freed.
 */
void fy_transport_retain(ferry_transport *transport);

/*
 * Ways around puts, for who knows addresses of a peer that the peer itself has told: nothing is
 * registered for them and nothing is checked, and wrappers that must see every put hide them all.
 */

/* FERRY_CAN_ flags for a peer other than this rank; 0 where it cannot be reached at all. */
uint32_t fy_transport_capabilities(ferry_transport *transport, uint32_t peer);

/*
 * Whether the peer opens this rank's memory of that kind, once it has its key, and this rank the
 * peer's: then devices copy.
 */
bool fy_transport_opens(ferry_transport *transport, uint32_t peer, uint32_t kind);

/*
 * Whether any pointer of the peer's can be used here: the peer is a thread of this process. Use
 * them, and memory of a peer's devices that is open here, between visit and leave: visit fails once
 * the world has failed, and registered memory of a rank is not freed while somebody visits that
 * rank.
 */
bool fy_transport_shares_pointers(const ferry_transport *transport, uint32_t peer);
ferry_status fy_transport_visit(ferry_transport *transport, uint32_t peer, ferry_error *error);
void fy_transport_leave(ferry_transport *transport, uint32_t peer);

/*
 * In a world that has failed: from here on no peer of this node touches memory of this rank that it
 * knows by address, but for what the kernel is copying right now.
 */
void fy_transport_withdraw(ferry_transport *transport);

/*
 * aside.c: puts of devices' memory that nobody waits for, by an engine that is aside. Signals do
 * not wait for them: raise one behind a ticket that is reached, and settle before devices read what
 * one tells of.
 */
/* Whether there is such an engine; and whether it puts to the peer, who is not mapped here. */
static inline bool fy_transport_has_aside(const ferry_transport *transport)
{
    return transport->has_aside;
}
bool fy_transport_is_aside(ferry_transport *transport, uint32_t peer);
/* Where its memory lies on this rank. */
fy_space fy_transport_aside_space(ferry_transport *transport);
/* The source lies in this rank's own part of the region. */
ferry_status fy_transport_begin(ferry_transport *transport, uint32_t peer,
                                const ferry_region *region, uint64_t offset, const void *source,
                                uint64_t bytes, uint64_t *ticket_out, ferry_error *error);
ferry_status fy_transport_reached(ferry_transport *transport, uint64_t ticket, ferry_error *error);
ferry_status fy_transport_settle(ferry_transport *transport, ferry_error *error);
/* Waits until what was put aside is in place, so that a signal may tell of it. */
ferry_status fy_transport_await_aside(ferry_transport *transport, ferry_error *error);

/*
 * revoke.c. Memory of this process that a rank left behind might still write to, because it could
 * not be renewed when the world shrank: none of it overlaps these bytes, or an error says why it
 * still cannot be renewed. Costs one load where there is none.
 */
ferry_status fy_memory_secure(const void *base, uint64_t bytes, ferry_error *error);
/* Whether there is any such memory. */
bool fy_memory_is_exposed(void);
/* The shrink hook of a transport. */
void fy_transport_shrunk(void *context, const bool *may_live);
/* Before a region goes. */
void fy_region_forget_exposed(ferry_region *region);
/* Nothing may ever lie at its addresses again, also when it has gone. */
bool fy_region_is_exposed_for_good(const ferry_region *region);
/* A region gets the engines of another transport: `to` has what `from` had, all others have let go
 * of it. */
void fy_region_move_exposure(ferry_region *region, unsigned from, unsigned to);

/*
 * adopt.c. Memory that was registered with another transport of this process, whose world has
 * failed, is from now on registered with this one: regions and addresses stay. Memory that this
 * cannot have stays where it is, and so does the other transport until this one closes.
 */
void fy_transport_adopt(ferry_transport *transport, ferry_transport *elder);

/* Undoes region's attachments, frees it and its memory; local. NULL is allowed. */
void fy_region_destroy(ferry_region *region);

/*
 * Whether bytes at offset lie in the region: else FERRY_ERR_MISUSE with a sentence that begins with
 * `what`, such as "put".
 */
ferry_status fy_region_check(const ferry_region *region, const char *what, uint32_t peer,
                             uint64_t offset, uint64_t bytes, ferry_error *error);

#endif
