/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_ENGINE_H
#define FY_TRANSPORT_ENGINE_H

#include "base/status.h"
#include "memory/kind.h"

#include <ferry/log.h>
#include <ferry/transport.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The table that every engine fills, and what the library gives an engine. Engines in plugins see
 * nothing of the library but these two and memory/kind.h, so that one plugin serves libferry.so and
 * programs that link the library statically.
 */
#define FY_ENGINE_ABI 10u

/* The library, as an engine sees it: one per open engine; lives until close has returned. */
typedef struct fy_host fy_host;
struct fy_host {
    uint32_t abi; /* FY_ENGINE_ABI */
    uint32_t rank;
    uint32_t n_ranks;
    int64_t deadline_ns;
    void *world; /* a ferry_world: engines inside the library may use it as such */

    bool (*same_node)(const fy_host *host, uint32_t peer);
    /* Collective: status and *error are this rank's, then everybody's, by the first that failed. */
    ferry_status (*agree)(const fy_host *host, ferry_status status, ferry_error *error);
    /* Everybody's bytes, concatenated, with their lengths; collective; valid until the next. */
    ferry_status (*all_gather)(const fy_host *host, const void *bytes, size_t n_bytes,
                               const void **all_out, const size_t **lengths_out,
                               ferry_error *error);
    /*
     * Waits until ready(context); how long it may sleep between calls says sleep_ns (optional; 0:
     * not at all). limit_ns negative: none. FERRY_ERR_TIMEOUT comes without a sentence.
     */
    ferry_status (*wait)(const fy_host *host, bool (*ready)(void *context),
                         int64_t (*sleep_ns)(void *context), void *context, int64_t limit_ns,
                         ferry_error *error);
    /* FERRY_OK, or why the world has failed: for loops of the engine's own. Cheap. */
    ferry_status (*state)(const fy_host *host, ferry_error *error);
    /* Reports a rank as lost: the world fails with this sentence. */
    void (*lost)(const fy_host *host, uint32_t peer, const char *sentence);
    /* Memory of this rank changed by the engine's own doing (not by a peer): wakes its waiters. */
    void (*ring)(const fy_host *host);
    /* Calls ready(context) on a thread of the library's when fd is readable, until unwatch. */
    ferry_status (*watch)(const fy_host *host, int fd, void (*ready)(void *context), void *context,
                          ferry_error *error);
    void (*unwatch)(const fy_host *host, int fd);
    /* The row of a kind that this process has used; NULL: it has not. */
    const fy_memory_kind *(*memory)(uint32_t kind);
    void (*log)(ferry_log_level level, const char *line);
};

/*
 * What an engine knows of a region. Symmetric regions have the same id on all ranks; registered
 * ones an id of their owner's. An imported region has its owner's id and key.
 */
typedef enum fy_region_kind {
    FY_REGION_SYMMETRIC = 0,
    FY_REGION_REGISTERED = 1,
    FY_REGION_IMPORTED = 2,
} fy_region_kind;

typedef struct fy_region_view {
    uint32_t kind;   /* fy_region_kind */
    uint32_t owner;  /* of an imported one; else this rank */
    uint64_t id;     /* symmetric: even and equal on all ranks; registered: odd */
    void *base;      /* own part; of an imported one the owner's address, never to be read */
    uint64_t bytes;  /* of a rank's part */
    uint64_t noted;  /* a signal to one of so many first bytes is noted behind them: see word.h */
    fy_space space;  /* where it lies; of a symmetric one this rank's part */
    const void *key; /* imported: the engine's piece of the key; else NULL */
    size_t key_bytes;
} fy_region_view;

/*
 * Of reach: put and get are not for such bytes. The verbs of their kinds copy them, to and from
 * where pointer says the peer's memory is; put is left with the signals.
 */
#define FY_REACH_BY_EXEC (1u << 30)

/* The longest piece of a key that one engine may write. */
enum { FY_ENGINE_KEY_BYTES = 192 };

/* A signal's target, resolved: region is symmetric and offset checked. */
typedef struct fy_signal_view {
    const fy_region_view *region;
    void *attachment; /* the engine's, of that region */
    uint64_t offset;
    uint64_t value;
    uint32_t op; /* ferry_signal_op */
} fy_signal_view;

/*
 * An engine. Calls on one state come from one thread at a time, except from the callback given to
 * watch, against which the engine guards itself. Ranges are checked before an engine is called.
 * Operations to this rank itself never reach an engine.
 */
typedef struct fy_engine {
    uint32_t abi; /* FY_ENGINE_ABI */
    const char *name;
    const char *summary; /* one line */

    /* Whether it can run in this process; if not, why is a sentence. Cheap and without traces. */
    bool (*probe)(char *why, size_t why_bytes);
    /* Collective over all ranks of the world that use this engine: all of them. */
    ferry_status (*open)(const fy_host *host, void **state_out, ferry_error *error);
    void (*close)(void *state);

    /*
     * FERRY_CAN_ flags for a peer, from host memory to host memory; 0 and UINT32_MAX mean what they
     * say: nothing, unreachable.
     */
    uint32_t (*capabilities)(void *state, uint32_t peer);
    /*
     * The same of other kinds of memory, here and at the peer: of all peers that it is made for
     * where peer is FERRY_ANY_RANK, and then state may be NULL. Memory of a kind that it does not
     * reach from the host's is never made known to it. (optional: it reaches host memory only)
     */
    uint32_t (*reach)(void *state, uint32_t peer, uint32_t source_kind, uint32_t target_kind);

    /*
     * Symmetric memory of the engine's own, populated and zero; collective over the ranks of a
     * node. (optional: without it the library allocates and only attaches.) An error must leave
     * nothing. The engine keeps what it needs for pointer() in *attachment_out.
     */
    ferry_status (*alloc)(void *state, fy_region_view *region, void **attachment_out,
                          ferry_error *error);
    /*
     * Makes memory known that lies elsewhere: a symmetric region that another engine or the library
     * allocated, a registered one, or an imported one, which it refuses if it cannot reach it.
     * Local.
     */
    ferry_status (*attach)(void *state, const fy_region_view *region, void **attachment_out,
                           ferry_error *error);
    /* Undoes alloc or attach. Nobody uses the region any more. */
    void (*release)(void *state, const fy_region_view *region, void *attachment);
    /* Writes this engine's piece of a registered region's key. (optional: it needs none) */
    ferry_status (*export_key)(void *state, const fy_region_view *region, void *attachment,
                               void *key, size_t *n_bytes_out, ferry_error *error);

    /*
     * One put, and if signal is not NULL the signal after it and after all earlier puts to this
     * peer. May return before the source is read; flush ends that. bytes may be 0 with a signal.
     */
    ferry_status (*put)(void *state, uint32_t peer, const fy_region_view *region, void *attachment,
                        uint64_t offset, const void *source, uint64_t bytes,
                        const fy_signal_view *signal, ferry_error *error);
    /* (optional) */
    ferry_status (*get)(void *state, uint32_t peer, const fy_region_view *region, void *attachment,
                        uint64_t offset, void *target, uint64_t bytes, ferry_error *error);
    /*
     * The same where the buffer or the region is memory of another kind than the host's, and reach
     * says that both are for the engine. (both optional: reach says so of none)
     */
    ferry_status (*put_from)(void *state, uint32_t peer, const fy_region_view *region,
                             void *attachment, uint64_t offset, const ferry_buffer *source,
                             const fy_signal_view *signal, ferry_error *error);
    ferry_status (*get_into)(void *state, uint32_t peer, const fy_region_view *region,
                             void *attachment, uint64_t offset, const ferry_buffer *target,
                             ferry_error *error);
    /*
     * Puts to peer (FERRY_ANY_RANK: all) are in place and gets are here. In a failed world, where
     * it is called too, it ends at once, and no memory of the caller's is touched after it.
     */
    ferry_status (*flush)(void *state, uint32_t peer, ferry_error *error);
    /* Works without waiting; true if anything happened. (optional: nothing to do) */
    bool (*progress)(void *state);
    /*
     * How long a waiter that rings wake may sleep: 0 not at all, INT64_MAX until it is rung.
     * (optional: until it is rung)
     */
    int64_t (*sleep_ns)(void *state);
    /*
     * Where peer's part of a symmetric region, or the memory of peer's that was imported, is mapped
     * here, or NULL. (optional: nowhere)
     */
    void *(*pointer)(void *state, uint32_t peer, const fy_region_view *region, void *attachment);

    /*
     * Memory for a registered region, which peers then reach best: populated and zero; local. What
     * attach says of a registered region holds as well. (optional: without it the library allocates
     * and only attaches)
     */
    ferry_status (*alloc_local)(void *state, fy_region_view *region, void **attachment_out,
                                ferry_error *error);
    /*
     * Between visit and leave this rank may use memory of the peer's by pointers: at any that the
     * peer knows where it shares_pointers, else where pointer says imported memory of its devices
     * is. visit is false where the world has failed: then peer's memory may be gone, or goes when
     * those that visit have left. (both optional: there are no such pointers)
     */
    bool shares_pointers;
    bool (*visit)(void *state, uint32_t peer);
    void (*leave)(void *state, uint32_t peer);
    /*
     * The world has failed, and this rank goes on without peers that may still live. What they do
     * from here on, even in the middle of a copy, changes nothing in this rank's part of the
     * region, whose address and content stay; nobody reaches it by a key that was given out before.
     * Can be repeated after an error; FERRY_ERR_UNSUPPORTED: it would never help. (optional: peers
     * write only with this rank's help)
     */
    ferry_status (*revoke)(void *state, const fy_region_view *region, void *attachment,
                           ferry_error *error);
    /*
     * Memory of alloc_local, which an engine of this name in another transport of the process made,
     * is from now on this engine's: region has its number here, and attachment stays. (optional:
     * the memory stays with the transport that made it)
     */
    void (*adopt)(void *state, const fy_region_view *region, void *attachment);
    /*
     * For who must not wait: from hurry(true) to hurry(false) puts begin at once, however much is
     * under way; has_room says whether a peer takes more without that. (both optional: puts never
     * wait)
     */
    void (*hurry)(void *state, bool hurries);
    bool (*has_room)(void *state, uint32_t peer);
    /*
     * Begins what flush does, for all peers, and says how far it is: FERRY_OK, or
     * FERRY_ERR_TIMEOUT, without a sentence, where *peer_out has not answered yet. Never waits.
     * (optional: flush never waits)
     */
    ferry_status (*try_flush)(void *state, uint32_t *peer_out, ferry_error *error);

    /*
     * Of an engine that carries nothing but symmetric memory of devices, beside those that carry
     * the host's and all signals: it is never given a signal, nor asked for its capabilities. As
     * the environment says, the same for as long as the process lives. (optional, as is what it
     * returns: it carries the host's)
     */
    const struct fy_aside *(*aside)(void);
} fy_engine;

/* None of it waits for peers. */
typedef struct fy_aside {
    /* Of what memory its symmetric regions are made on this rank. */
    fy_space (*space)(void *state);
    /*
     * Begins a put out of this rank's own part of a region, which must stay as it is until
     * `reached` says FERRY_OK of the ticket: then all is in place at the peer. Tickets are reached
     * in order.
     */
    ferry_status (*begin)(void *state, uint32_t peer, const fy_region_view *region,
                          void *attachment, uint64_t offset, const void *source, uint64_t bytes,
                          uint64_t *ticket_out, ferry_error *error);
    /* FERRY_OK, FERRY_ERR_TIMEOUT without a sentence: not yet, or why nothing arrives any more. */
    ferry_status (*reached)(void *state, uint64_t ticket, ferry_error *error);
    /*
     * What peers have put in place, as a signal of theirs says, is seen by work that is put on
     * queues of this rank's device from here on.
     */
    ferry_status (*settle)(void *state, ferry_error *error);
} fy_aside;

/* A plugin exports this one function. */
#define FY_ENGINE_PLUGIN_SYMBOL "ferry_engine_plugin"
typedef const fy_engine *(*fy_engine_plugin_fn)(void);

#endif
