/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_WORLD_H
#define FERRY_WORLD_H

#include <ferry/export.h>
#include <ferry/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * A world: ranks that found each other and can talk. It is made once, by every rank, and everything
 * that moves bytes stands on it.
 *
 * Trust: whoever joins proves the world's secret, and every control message carries a MAC. The
 * secret comes from the launcher or from FERRY_SECRET; without one, anybody who can reach the port
 * and knows the job's variables can join. The bytes of the data plane are neither signed nor
 * encrypted: run it where the network and the machine's users are trusted.
 *
 * Failure: when a rank dies, is stopped, or ends the world, the world has failed, for good and on
 * every rank: each call that waits, and each later one, returns FERRY_ERR_PEER_LOST,
 * FERRY_ERR_TIMEOUT or FERRY_ERR_ABORTED with a sentence that names the rank. Survivors make a
 * smaller world with ferry_world_shrink and continue.
 *
 * Fork: a child has its own copy of the memory and is no rank. In it every call on a world that it
 * inherited, and on all that stands on one, is FERRY_ERR_MISUSE and changes nothing, destroying
 * too: what was inherited goes with the process. The parent does not notice. (What a child writes
 * to memory that ranks share is seen there, as any write is.)
 *
 * Threads: as every handle, by one thread at a time; ferry_world_abort, ferry_world_state and the
 * calls that only read a number from any.
 */
typedef struct ferry_world ferry_world;

/* To receive from any rank; and what a failure names if no single rank caused it. */
#define FERRY_ANY_RANK UINT32_MAX

/* The longest small message, in bytes. */
#define FERRY_MESSAGE_BYTES 65536

/*
 * Asked again and again, each tenth of a second at least, on the thread that calls, while
 * ferry_world_create*, ferry_world_join, _grow or _shrink waits for other ranks. Once it returns
 * true that call asks no more, leaves nothing behind and returns FERRY_ERR_STOPPED; for the other
 * ranks, this one did not come. It may not call anything on the world. (A wait inside the caller's
 * own bootstrap is the caller's.)
 */
typedef bool (*ferry_is_interrupted_fn)(void *context);

/*
 * Zero and NULL mean the default. Times are seconds. Each has a variable of the same meaning, which
 * counts where the option is left at its default.
 */
typedef struct ferry_world_options {
    size_t struct_size;
    /* FERRY_SECRET: what every rank proves to know before it is believed. */
    const char *secret;
    /*
     * FERRY_DEADLINE, 10: how long a rank may show no sign of life. A rank that computes is alive;
     * one whose process is stopped, or whose machine is cut off, is not.
     */
    double deadline_seconds;
    /* FERRY_ENTRY_LIMIT, none: how long to wait for a living rank to enter an operation. */
    double entry_seconds;
    /* FERRY_JOIN_LIMIT, three deadlines: how long the making of a world waits for the next rank. */
    double join_seconds;
    /* FERRY_NODES: "2" or "3,5": treat the ranks as that many nodes, on whatever machines. */
    const char *nodes;
    /* FERRY_HOST: the address under which other machines reach this one (default: detected). */
    const char *host;
    /* How the making of a world, and of smaller ones made from it, is interrupted: by Ctrl-C, say.
     * NULL: not. interrupt_context must live as long as these worlds. */
    ferry_is_interrupted_fn is_interrupted;
    void *interrupt_context;
} ferry_world_options;

#define FERRY_WORLD_OPTIONS_INIT                                                                   \
    {                                                                                              \
        sizeof(ferry_world_options), NULL, 0, 0, 0, NULL, NULL, NULL, NULL                         \
    }

/*
 * Joins the world that the environment describes. In this order:
 *
 *   FERRY_RENDEZVOUS   a file that all ranks see, with RANK and WORLD_SIZE
 *   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *                      as torchrun, `ferry launch` and many schedulers set them; FERRY_PORT where
 *                      MASTER_PORT belongs to another program (torchrun uses it for its own store:
 *                      there ferry takes the next port)
 *   PMIx               as mpirun and srun offer it
 *
 * A variable that is missing or contradicts another is FERRY_ERR_INVALID_INPUT and named.
 */
FERRY_API ferry_status ferry_world_create(const ferry_world_options *options,
                                          ferry_world **world_out, ferry_error *error);

/*
 * Meets in a file that rank 0 makes and removes: the folder must be seen by every rank and kept
 * from strangers, for the file holds a key. A path serves one world at a time.
 */
FERRY_API ferry_status ferry_world_create_from_file(const char *path, uint32_t rank,
                                                    uint32_t n_ranks,
                                                    const ferry_world_options *options,
                                                    ferry_world **world_out, ferry_error *error);

/*
 * The caller's own way to reach all ranks, such as an MPI communicator (<ferry/mpi.h>) or a group
 * of torch.distributed. Used while the world is made, never later. It is called by all ranks in the
 * same order and returns 0, or anything else for a failure. all_gather puts n_bytes of
 * every rank, in order of ranks, to all_out.
 */
typedef struct ferry_bootstrap {
    size_t struct_size;
    void *context;
    uint32_t rank;
    uint32_t n_ranks;
    int (*all_gather)(void *context, const void *bytes, size_t n_bytes, void *all_out);
} ferry_bootstrap;

#define FERRY_BOOTSTRAP_INIT                                                                       \
    {                                                                                              \
        sizeof(ferry_bootstrap), NULL, 0, 0, NULL                                                  \
    }

/* Meets by the caller's all-gather. */
FERRY_API ferry_status ferry_world_create_from_bootstrap(const ferry_bootstrap *bootstrap,
                                                         const ferry_world_options *options,
                                                         ferry_world **world_out,
                                                         ferry_error *error);

/*
 * A world of n_ranks threads of this process: worlds_out gets n_ranks handles, number r for the
 * thread that is rank r. Each is destroyed by itself.
 */
FERRY_API ferry_status ferry_world_create_threads(uint32_t n_ranks,
                                                  const ferry_world_options *options,
                                                  ferry_world **worlds_out, ferry_error *error);

/*
 * Leaves the world: waits, no longer than the deadline, until every rank leaves, so that nobody
 * takes an orderly end for a death. What stands on the world keeps it until it is itself destroyed.
 */
FERRY_API void ferry_world_destroy(ferry_world *world);

/*
 * This rank ends and takes part in nothing any more, whatever of its own still stands on the world.
 *
 * Without a reason (NULL) it is the end of a program: the rank leaves as destroy does, and waits as
 * long; ranks that are in a call with it, a run say, get FERRY_ERR_PEER_LOST with its number. With
 * one it ends by an error, and the others need not wait for it: all that wait, and all later calls,
 * return FERRY_ERR_PEER_LOST with this rank and the reason (one sentence, cut to fit), and
 * survivors shrink without it. A world that has already failed stays as it is.
 *
 * After that only ferry_world_state and calls that destroy may follow, which wait for nobody where
 * there was a reason; what is not destroyed goes with the process. From any thread. world may be
 * NULL. Of a world of threads nothing is done without a reason.
 */
FERRY_API void ferry_world_leave(ferry_world *world, const char *reason);

/* The number of this rank, from 0 on. */
FERRY_API uint32_t ferry_world_rank(const ferry_world *world);
/* How many ranks the world has. */
FERRY_API uint32_t ferry_world_rank_count(const ferry_world *world);

/* How long a rank may show no sign of life, in seconds; 0 for NULL. A shrunk world has the same. */
FERRY_API double ferry_world_deadline(const ferry_world *world);

/* 0 for a new world; one that shrank or grew has one more than the world it was made from. */
FERRY_API uint32_t ferry_world_epoch(const ferry_world *world);

/*
 * Who rank is, in worlds that shrink and grow: its number in the first world, or that which it got
 * when it joined. Plans name ranks by it, while ranks are numbered anew in each world.
 */
FERRY_API uint32_t ferry_world_member_of(const ferry_world *world, uint32_t rank);

/*
 * Nodes are numbered by their lowest rank. Ranks are on one node when each has mapped memory that
 * the other made (or as the option `nodes` says). Out of range is UINT32_MAX.
 */
FERRY_API uint32_t ferry_world_node_count(const ferry_world *world);
/* The node of a rank. */
FERRY_API uint32_t ferry_world_node_of(const ferry_world *world, uint32_t rank);
/* This rank's number among those of its node, and how many those are. */
FERRY_API uint32_t ferry_world_local_rank(const ferry_world *world);
/* How many ranks this rank's node has. */
FERRY_API uint32_t ferry_world_local_rank_count(const ferry_world *world);

/*
 * Collective calls: all ranks, in the same order. A rank that calls another one than the others is
 * found out, whatever the two are and on which handles, also destroys: the world has failed, and
 * every rank gets FERRY_ERR_MISUSE with a sentence that names both calls. What is handed out stays
 * valid until the next collective call on this world.
 */
FERRY_API ferry_status ferry_world_barrier(ferry_world *world, ferry_error *error);

/* n_bytes, the same on all ranks, of every rank in order of ranks. */
FERRY_API ferry_status ferry_world_all_gather(ferry_world *world, const void *bytes, size_t n_bytes,
                                              const void **all_out, ferry_error *error);

/* Each rank's own number of bytes; lengths_out has n_ranks entries. */
FERRY_API ferry_status ferry_world_all_gather_v(ferry_world *world, const void *bytes,
                                                size_t n_bytes, const void **all_out,
                                                const size_t **lengths_out, ferry_error *error);

/* What root has; bytes and n_bytes count on root only. */
FERRY_API ferry_status ferry_world_broadcast(ferry_world *world, uint32_t root, const void *bytes,
                                             size_t n_bytes, const void **bytes_out,
                                             size_t *n_bytes_out, ferry_error *error);

/*
 * Small messages, at most FERRY_MESSAGE_BYTES: send returns when the message is on its way, and
 * those of one rank and tag arrive in order. receive takes the first message with this tag from
 * this rank, or from FERRY_ANY_RANK, and waits as long as limit_seconds says (0: only looks;
 * negative: the entry limit); FERRY_ERR_TIMEOUT then does not end the world. The bytes stay valid
 * until the next receive. from_out may be NULL.
 */
FERRY_API ferry_status ferry_world_send(ferry_world *world, uint32_t to, uint32_t tag,
                                        const void *bytes, size_t n_bytes, ferry_error *error);
/* Takes a message: see above. */
FERRY_API ferry_status ferry_world_receive(ferry_world *world, uint32_t from, uint32_t tag,
                                           double limit_seconds, const void **bytes_out,
                                           size_t *n_bytes_out, uint32_t *from_out,
                                           ferry_error *error);

/*
 * Ends the world on every rank: all that wait, and all later calls, return FERRY_ERR_ABORTED with
 * this rank and reason (one sentence, cut to fit). From any thread. A world that has already failed
 * stays as it is.
 */
FERRY_API void ferry_world_abort(ferry_world *world, const char *reason);

/*
 * FERRY_OK, or why the world has failed: the status, the rank it names (FERRY_ANY_RANK if none) and
 * the sentence. Never waits; from any thread. rank_out may be NULL.
 */
FERRY_API ferry_status ferry_world_state(ferry_world *world, uint32_t *rank_out,
                                         ferry_error *error);

/*
 * Makes a new world of those ranks of a failed one that still live and call this. It waits for
 * every rank that is not known to be lost, a join limit at most, and goes on without those that do
 * not come. Ranks keep their order. The old world stays to be destroyed. When a network falls in
 * two, each half that calls this gets a world: min_ranks (0: 1) refuses the smaller half. Of a
 * world that has not failed this is a collective call, and FERRY_ERR_MISUSE on every rank.
 *
 * A rank that is left behind may live, stopped in the middle of a copy. From here on it changes
 * nothing in this rank's memory of ferry_memory_alloc and ferry_region_alloc, whenever it wakes:
 * that memory has got other pages, at the same addresses and with what was there. So no thread of
 * this rank may write to it while this call is under way.
 */
FERRY_API ferry_status ferry_world_shrink(ferry_world *world, uint32_t min_ranks,
                                          ferry_world **world_out, ferry_error *error);

/* What the members of a world that grows say, all the same. Zero and NULL mean the default. */
typedef struct ferry_grow_options {
    size_t struct_size;
    uint32_t n_newcomers; /* how many ranks join; 0: one */
    /*
     * By newcomer: its number among all members, which plans name. One that a lost rank had, whose
     * place it takes, or a new one. NULL: the numbers after all that there ever were.
     */
    const uint32_t *members;
    /* A file to meet in, as for ferry_world_create_from_file. NULL: where the environment says. */
    const char *path;
    /* How long to wait for the next newcomer; 0: the join limit of the world. */
    double join_seconds;
    /*
     * Of a world of threads, and only there: places for the newcomers' worlds, which are filled by
     * rank 0's call. NULL where the world has one rank: processes join, as they do in a world of
     * processes.
     */
    ferry_world **newcomers_out;
} ferry_grow_options;

#define FERRY_GROW_OPTIONS_INIT                                                                    \
    {                                                                                              \
        sizeof(ferry_grow_options), 0, NULL, NULL, 0, NULL                                         \
    }

/*
 * Makes a new world of all ranks of this one and of newcomers, which call ferry_world_join
 * meanwhile. Collective. Members keep their ranks, newcomers come behind them, in the order in
 * which they come. Rank 0 waits for them in the file `path`, or at MASTER_ADDR and FERRY_PORT (or
 * MASTER_PORT) of its environment; whoever does not prove the world's secret is not let in.
 *
 * The old world stays to be used and destroyed, with all that stands on it. If a newcomer does not
 * come within join_seconds, or dies or is stopped while it joins, which is seen as soon as of any
 * rank, the call fails on all members with a sentence that names it, and there is no new world; so
 * it does if a member gives up. Only a newcomer that dies when all have the new world already is
 * lost from that one, which can shrink. If a member is lost the old world has failed: shrink it,
 * which then gives the grown world where others have it.
 */
FERRY_API ferry_status ferry_world_grow(ferry_world *world, const ferry_grow_options *options,
                                        ferry_world **world_out, ferry_error *error);

/*
 * Joins a world that grows: waits for that as long as the join limit says. path is the file that
 * the members name; NULL means FERRY_RENDEZVOUS, or else MASTER_ADDR and FERRY_PORT (or
 * MASTER_PORT). RANK and WORLD_SIZE do not count: who joins is told its rank. A world has one
 * deadline: the new world's is the members', whatever this rank's options say. If the members' call
 * fails so does this one, and may be made again.
 */
FERRY_API ferry_status ferry_world_join(const char *path, const ferry_world_options *options,
                                        ferry_world **world_out, ferry_error *error);

FERRY_END_DECLS

#endif
