/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_SERVICE_H
#define FERRY_SERVICE_H

#include <ferry/box.h>
#include <ferry/export.h>
#include <ferry/log.h>
#include <ferry/memory.h>
#include <ferry/plan.h>
#include <ferry/request.h>
#include <ferry/spec.h>
#include <ferry/status.h>
#include <ferry/transport.h>
#include <ferry/world.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * The copy service: ranks register what they send and what they receive, or bind a plan; a schedule
 * is made once and run as often as needed.
 *
 *     ferry_service_create(world, NULL, &service, &error);
 *     ferry_service_init(service, FERRY_LOG_INFO, &error);
 *     ferry_service_register_send(service, 7, &weights, 0, n_bytes, 1, &error);     on rank 0
 *     ferry_service_register_receive(service, 7, &weights, 0, n_bytes, 0, &error);  on rank 1
 *     ferry_service_schedule(service, &error);
 *     ferry_service_run(service, NULL, &error);
 *
 * Collective calls are init, schedule, rebind, run and start, recover and finalize: every rank
 * makes them, in the same order. They succeed on all ranks or fail on all, with the same sentence;
 * only a lost rank can leave others with OK.
 *
 * A service is used by one thread at a time; ferry_request_test from any. While a run is under way
 * nothing else may be called on the service (but further runs on the same queue), and runs of other
 * services, mixed collectives and collective calls of the world may be under way at the same time:
 * a call that waits for one of them, or tests it, advances the others. The service holds a
 * reference to its world and its transport.
 */
typedef struct ferry_service ferry_service;

/* Which checksums a run computes. */
typedef enum ferry_checksum {
    FERRY_CHECKSUM_NONE = 0,
    /* What passes through a transport is hashed by its sender as it is packed, and again by its
     * receiver as it is unpacked. Direct copies from tensor to tensor are not hashed. */
    FERRY_CHECKSUM_PATH = 1,
    /* Every segment is hashed as it leaves the source, and read again in its destination. */
    FERRY_CHECKSUM_END = 2
} ferry_checksum;

/* Where a run writes. */
typedef enum ferry_commit {
    /* Into the destinations themselves: they are torn while a run is under way. */
    FERRY_COMMIT_IN_PLACE = 0,
    /* A run writes to the back buffer of each; success makes it the front. See
     * ferry_tensors_add_pair.
     */
    FERRY_COMMIT_SWAP = 1
} ferry_commit;

/* How bytes get from a source to a destination. As an option: the best one that is allowed. */
enum {
    FERRY_PATH_LOCAL = 1 << 0,  /* a copy within a rank */
    FERRY_PATH_MAPPED = 1 << 1, /* the peer's memory is mapped here: a copy from tensor to tensor */
    FERRY_PATH_REMOTE = 1 << 2, /* puts into the destination, which is registered */
    FERRY_PATH_STAGED = 1 << 3, /* through slots: packed, put, unpacked; always possible */
    FERRY_PATH_ALL = (1 << 4) - 1
};

#define FERRY_MEMORY_CAP ((uint64_t)64 << 20)

/*
 * Zero and NULL mean the default. Options are the same on all ranks; either all of them give a
 * transport or none does.
 */
typedef struct ferry_service_options {
    size_t struct_size;
    ferry_transport *transport; /* default: one that the service opens in init */
    const char *engines;        /* for that one: see ferry_transport_open */
    uint64_t memory_cap;        /* the most staging memory of a rank, and the most bytes of values
                                   that it quantizes itself; FERRY_MEMORY_CAP */
    uint64_t slot_bytes;        /* the most bytes of a batch; default FERRY_SLOT_BYTES, or less
                                   where the cap asks for it */
    uint32_t max_tasks;         /* the most segments of a batch; FERRY_MAX_TASKS */
    uint32_t n_threads;         /* that copy, on this rank; default: a fair share of the cores */
    uint32_t checksum;          /* a ferry_checksum */
    uint32_t commit;            /* a ferry_commit */
    uint32_t paths; /* FERRY_PATH_ flags that may be used; STAGED and LOCAL always may */
    bool no_relays; /* of a bound plan: nothing is passed on by receivers */
    bool trace;     /* keep the times of batches for ferry_service_span_at */
    /*
     * The number of the first run, for a service that goes on from another one; default 1. The last
     * version is UINT64_MAX - 1: what would be beyond it is FERRY_ERR_LIMIT, here and of runs.
     */
    uint64_t first_version;
    int32_t device; /* that this rank computes on, as ferry_service_device says it; -1: the host.
                       Each buffer says where it lies itself. */
    /*
     * Not 0: runs move only what differs from what lies in the destinations, whatever that is and
     * whoever wrote it. They are compared in each run, so the result is always that of a full one.
     */
    uint64_t delta;
} ferry_service_options;

#define FERRY_SERVICE_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(ferry_service_options), NULL, NULL, 0, 0, 0, 0, FERRY_CHECKSUM_NONE,                \
            FERRY_COMMIT_IN_PLACE, 0, false, false, 0, -1, 0                                       \
    }

/* Local; nothing is opened yet. options may be NULL. */
FERRY_API ferry_status ferry_service_create(ferry_world *world,
                                            const ferry_service_options *options,
                                            ferry_service **service_out, ferry_error *error);

/* Collective: opens the transport, and sets the library's log level. Once. */
FERRY_API ferry_status ferry_service_init(ferry_service *service, ferry_log_level log_level,
                                          ferry_error *error);

/* The number of this rank in the world of the service. */
FERRY_API uint32_t ferry_service_my_pe(const ferry_service *service);
/* How many ranks that world has. */
FERRY_API uint32_t ferry_service_pe_count(const ferry_service *service);
FERRY_API int32_t ferry_service_device(const ferry_service *service); /* -1: the host */
/* Whether init has succeeded and finalize was not called. */
FERRY_API bool ferry_service_initialized(const ferry_service *service);
FERRY_API ferry_transport *ferry_service_transport(const ferry_service *service); /* borrowed */

/*
 * Bytes [pos, pos + size) of a buffer, to or from a PE, which may be this one. Task ids are unique
 * per (source, destination): a second registration of one is FERRY_ERR_INVALID_INPUT, and so is a
 * size of 0. Memory must stay until the service is finalized or cleared; a device's, on all ranks.
 */
FERRY_API ferry_status ferry_service_register_send(ferry_service *service, uint64_t task_id,
                                                   const ferry_buffer *src, uint64_t src_pos,
                                                   uint64_t size, uint32_t dest_pe,
                                                   ferry_error *error);
/* The other end: bytes of a buffer that a run writes. */
FERRY_API ferry_status ferry_service_register_receive(ferry_service *service, uint64_t task_id,
                                                      const ferry_buffer *dest, uint64_t dest_pos,
                                                      uint64_t size, uint32_t src_pe,
                                                      ferry_error *error);

/* The bytes travel in row-major order; both boxes of a task have as many, in whatever shape. */
FERRY_API ferry_status ferry_service_register_send_box(ferry_service *service, uint64_t task_id,
                                                       const ferry_box *src, uint32_t dest_pe,
                                                       ferry_error *error);
/* The other end: a box that a run writes. */
FERRY_API ferry_status ferry_service_register_receive_box(ferry_service *service, uint64_t task_id,
                                                          const ferry_box *dest, uint32_t src_pe,
                                                          ferry_error *error);

/* The tensors of one side on this rank, by name: whole local shards, row-major. */
typedef struct ferry_tensors ferry_tensors;

/* An empty list. */
FERRY_API ferry_status ferry_tensors_create(ferry_tensors **tensors_out, ferry_error *error);
/* The name is copied; a second one of a name is refused. */
FERRY_API ferry_status ferry_tensors_add(ferry_tensors *tensors, const char *name,
                                         const ferry_buffer *buffer, ferry_error *error);
/* For FERRY_COMMIT_SWAP: front holds the current version, and the next run writes to back. */
FERRY_API ferry_status ferry_tensors_add_pair(ferry_tensors *tensors, const char *name,
                                              const ferry_buffer *front, const ferry_buffer *back,
                                              ferry_error *error);
/* NULL is allowed. The buffers are the caller's and stay. */
FERRY_API void ferry_tensors_destroy(ferry_tensors *tensors);

/*
 * Registers what this rank sends and receives of a plan, in place of anything registered before.
 * Ranks of the plan are members (ferry_world_member_of): a world that shrank binds the same plan,
 * or one made without the lost ranks, and one that grew a plan that knows the newcomers. A tensor
 * of the plan that is missing, or has another length than the plan's shard, is
 * FERRY_ERR_INVALID_INPUT; tensors that the plan does not know are ignored. Either list may be
 * NULL. The service keeps what it needs of the lists. Ranks that have no part in the plan are
 * named in the log, as a warning of rank 0: runs succeed on them, and do nothing.
 */
FERRY_API ferry_status ferry_service_bind(ferry_service *service, const ferry_plan *plan,
                                          const ferry_tensors *sources,
                                          const ferry_tensors *destinations, ferry_error *error);

/*
 * Collective. Compares what all ranks registered (FERRY_ERR_INVALID_INPUT names task, ranks and
 * sizes of what does not match, and two writers to one byte), segments, packs and schedules, and
 * allocates and registers what runs need. Once per set of registrations.
 */
FERRY_API ferry_status ferry_service_schedule(ferry_service *service, ferry_error *error);

/*
 * Collective: other addresses for tensors of a bound plan, named as they were, after schedule.
 * Nothing is planned again. Tensors that are not named stay.
 */
FERRY_API ferry_status ferry_service_rebind(ferry_service *service, const ferry_tensors *sources,
                                            const ferry_tensors *destinations, ferry_error *error);

/*
 * Collective: one run, from begin to end; sources may change again and destinations are complete
 * when it returns FERRY_OK. It is a version, numbered from 1 on. After an error the destinations'
 * states say what holds. A service whose world lives can run again. Where the world has failed, a
 * rank that is stopped may still be in the middle of a copy: that ends with ferry_world_shrink,
 * after which it changes nothing, however late it wakes. Keep the memory until then, and what is
 * not of ferry_memory_alloc until the service is finalized.
 *
 * On a device's queue it returns at once. The run begins when earlier work of the queue is done,
 * and later work begins when it is over; ferry_queue_synchronize returns its outcome. All memory of
 * this rank is the host's or that device's. Until then the world is the queue's: calls in host
 * order and on other queues, of the service, its world and all that is made with it, are
 * FERRY_ERR_MISUSE with a sentence. Finalizing or destroying the service cancels such runs and
 * waits for them.
 */
FERRY_API ferry_status ferry_service_run(ferry_service *service, ferry_queue *queue,
                                         ferry_error *error);

/*
 * Local, before a run of a service with the option delta and a bound plan: this rank's sources of
 * these names are what they were in the run before, and no rank has changed what it received of
 * them since. The next run then takes them for equal without reading them, if the run before ended
 * well, of this schedule and these buffers; with FERRY_COMMIT_SWAP if that was said before two runs
 * in a row, and both runs before them ended well. It holds for one run. Where it is not true,
 * destinations keep what they had; FERRY_CHECKSUM_END finds out. subset: as in ferry_plan_options;
 * NULL: all, and the fills of this rank with them.
 */
FERRY_API ferry_status ferry_service_mark_unchanged(ferry_service *service, const char *subset,
                                                    ferry_error *error);

/* The argument of a progress callback: bytes that this rank sends and receives. */
typedef struct ferry_progress {
    size_t struct_size;
    uint64_t bytes_done;
    uint64_t bytes_total;
    double seconds;
} ferry_progress;

/*
 * Called within test, wait and run, on the caller's thread, or for a run on a queue on the queue's
 * own: before these move anything, about
 * twenty times per second, and once at the end, when its result is ignored. Otherwise false cancels
 * the run on all ranks. It is not called when a wait for something else advances the run. It must
 * not call the service or its world. NULL removes it.
 */
typedef bool (*ferry_progress_fn)(void *context, const ferry_progress *progress);
/* Sets the callback, for this rank. */
FERRY_API void ferry_service_set_progress(ferry_service *service, ferry_progress_fn progress,
                                          void *context);

/*
 * Begins a run and returns. The bytes move within test and wait (and whenever peers write here);
 * one run at a time. On a device's queue it is a run as above, of which the request tells: wait,
 * test and cancel are for any thread, and to destroy the request only gives the outcome up.
 */
FERRY_API ferry_status ferry_service_start(ferry_service *service, ferry_queue *queue,
                                           ferry_request **request_out, ferry_error *error);

/*
 * For callers that know what the library cannot see, such as memory that was freed: this rank must
 * not take part in the next init, schedule, rebind, run or ferry_service_recover_onto. Local; that
 * call then reads and writes none of this rank's buffers, and ends on all ranks with
 * FERRY_ERR_INVALID_INPUT, this rank's number and the reason (one sentence, cut to fit). NULL takes
 * it back.
 */
FERRY_API void ferry_service_refuse(ferry_service *service, const char *reason);

/* Forgets registrations and schedule; local. Staging memory is kept for the next schedule. */
FERRY_API ferry_status ferry_service_clear_requests(ferry_service *service, ferry_error *error);

/* Collective where the world lives: frees everything; only destroy may follow. */
FERRY_API ferry_status ferry_service_finalize(ferry_service *service, ferry_error *error);
/* Finalizes first if that was not done. NULL is allowed. */
FERRY_API void ferry_service_destroy(ferry_service *service);

/*
 * Versions
 */

typedef enum ferry_tensor_state {
    FERRY_TENSOR_UNTOUCHED = 0, /* no run has written to it */
    FERRY_TENSOR_TORN = 1,      /* a run began to write it and did not succeed */
    FERRY_TENSOR_VALID = 2      /* every byte is that of one version */
} ferry_tensor_state;

/* A destination of this rank: a tensor of a bound plan, or all registered receives of one buffer
 * (by its base). */
typedef struct ferry_destination {
    size_t struct_size;
    const char *name;    /* "" where none was given; lives until clear */
    uint32_t state;      /* a ferry_tensor_state */
    uint64_t version;    /* of a valid one; of a torn one that of the run that tore it */
    uint64_t bytes;      /* that a run writes */
    uint64_t missing;    /* of the last run, when it failed */
    ferry_buffer buffer; /* where the valid version is: swapped by FERRY_COMMIT_SWAP */
} ferry_destination;

#define FERRY_DESTINATION_INIT                                                                     \
    {                                                                                              \
        sizeof(ferry_destination), NULL, 0, 0, 0, 0,                                               \
        {                                                                                          \
            NULL, 0, FERRY_MEMORY_HOST, 0, NULL,                                                   \
            {                                                                                      \
                0, 0                                                                               \
            }                                                                                      \
        }                                                                                          \
    }

/* How many destinations this rank has. */
FERRY_API uint64_t ferry_service_destination_count(const ferry_service *service);
/* The state of a destination, by number. */
FERRY_API ferry_status ferry_service_destination_at(const ferry_service *service, uint64_t index,
                                                    ferry_destination *destination_out,
                                                    ferry_error *error);

/* The newest version that this rank knows to be whole on all ranks; 0: none. */
FERRY_API uint64_t ferry_service_version(const ferry_service *service);
/*
 * The version that the next run makes, which the sources must hold by then. Behind a schedule it is
 * the same on all ranks: where any of them resumes, the version that this completes.
 */
FERRY_API uint64_t ferry_service_next_version(const ferry_service *service);

/*
 * After a loss: collective over survivors, a world shrunk from the service's. Which is the newest
 * version that every survivor has whole (0: none)? Where one of them had learned of a success and
 * another of the loss, both now call the version valid, or neither does.
 */
FERRY_API ferry_status ferry_service_recover(ferry_service *service, ferry_world *survivors,
                                             uint64_t *version_out, ferry_error *error);

/*
 * What the last run, which failed, has brought to this rank's destinations: by tensor, so that it
 * holds for any plan that writes the same bytes, and for no other. A service that is given it (before schedule) moves
 * only what is missing in its next run; the sources must be those of the run that failed. Every run
 * after it moves everything. It also has the states and versions of the destinations, and knows
 * which memory it speaks of: a pair that is bound the other way round is turned, and of other
 * memory than the failed run wrote to nothing counts. Can be taken whenever no run is under way, of
 * a service that has run or was to resume.
 *
 * After a run that ended well it says that all is there. In a world that has grown that run can be
 * made again for the newcomers, which resume nothing: whoever resumes is sent nothing, and its
 * destinations stay valid, and where they are. (Codes and products that this rank makes itself are
 * made anew.)
 */
typedef struct ferry_ledger ferry_ledger;

/* Makes a ledger of what is there now. */
FERRY_API ferry_status ferry_service_take_ledger(const ferry_service *service,
                                                 ferry_ledger **ledger_out, ferry_error *error);
FERRY_API uint64_t ferry_ledger_bytes(const ferry_ledger *ledger); /* that are in place */
/* Gives a service the ledger, before it is scheduled. */
FERRY_API ferry_status ferry_service_resume(ferry_service *service, const ferry_ledger *ledger,
                                            ferry_error *error);
/* NULL is allowed. */
FERRY_API void ferry_ledger_destroy(ferry_ledger *ledger);

/* A plan without the lost ranks (of the plan); the caller of it destroys it. */
typedef ferry_status (*ferry_replan_fn)(void *context, const uint32_t *lost_ranks, size_t n_lost,
                                        ferry_plan **plan_out, ferry_error *error);

/* The same on all ranks. */
typedef struct ferry_recovery_options {
    size_t struct_size;
    const ferry_spec *spec;                 /* what to plan, or: */
    ferry_replan_fn replan;                 /* plans itself, such as from a roster */
    void *context;                          /* for replan */
    const ferry_plan_options *plan_options; /* for spec: lost ranks are filled in; may be NULL */
    uint32_t min_ranks;                     /* of a smaller world: see ferry_world_shrink */
} ferry_recovery_options;

#define FERRY_RECOVERY_OPTIONS_INIT                                                                \
    {                                                                                              \
        sizeof(ferry_recovery_options), NULL, NULL, NULL, NULL, 0                                  \
    }

typedef struct ferry_recovery {
    size_t struct_size;
    uint64_t whole;          /* the newest version that every rank still has whole; 0: none */
    uint64_t next;           /* the version that the next run makes: the sources must hold it */
    uint64_t bytes_in_place; /* of it, on this rank: they do not travel again */
    uint32_t n_lost;         /* ranks that were left behind by this call */
} ferry_recovery;

#define FERRY_RECOVERY_INIT                                                                        \
    {                                                                                              \
        sizeof(ferry_recovery), 0, 0, 0, 0                                                         \
    }

/*
 * After a run or a schedule has failed, all in one: collective over the ranks that are left. Where
 * *world lives nobody was lost: the service stays, and can run again. Else a smaller world takes
 * the place of *world, which is destroyed, and a service on it that of *service: with a plan
 * without the lost ranks, the same options (but for the transport, which it opens), the same
 * tensors, and a schedule that moves only what is missing. The next run makes version
 * recovery->next on all ranks, and numbers never go back. Ranks that are lost meanwhile are left
 * out in their turn.
 *
 * The service has a bound plan. sources and destinations are as they were for ferry_service_bind:
 * which buffer of a pair is the front now, the service knows. Memory of the service's transport,
 * registered or from ferry_memory_alloc, is now that of the new one's.
 *
 * For a while there are two transports. Where an engine allows one in a process (NVSHMEM; wrapper
 * strict) it is FERRY_ERR_UNSUPPORTED, and the steps do it one after the other: docs/service.md.
 *
 * After an error *world and *service are still there, perhaps new ones, for another attempt.
 * FERRY_ERR_INVALID_PLAN says that only lost ranks had some bytes.
 */
FERRY_API ferry_status ferry_service_recover_onto(ferry_service **service, ferry_world **world,
                                                  const ferry_recovery_options *options,
                                                  const ferry_tensors *sources,
                                                  const ferry_tensors *destinations,
                                                  ferry_recovery *recovery_out, ferry_error *error);

/*
 * Statistics of this rank
 */

typedef struct ferry_service_statistics {
    size_t struct_size;
    uint64_t n_runs;          /* that ended well */
    uint64_t n_schedules;     /* plannings: these three no longer grow after the first run */
    uint64_t n_allocations;   /* of memory, by the service itself */
    uint64_t n_registrations; /* of memory with the transport */
    uint64_t staging_bytes;   /* slots and what belongs to them, never above the cap, and values
                                 that this rank quantizes itself, never above it either */
    /* Of the last run. Bytes that this rank sent, by path; received are those of its peers. */
    uint64_t bytes_local;
    uint64_t bytes_mapped;
    uint64_t bytes_remote;
    uint64_t bytes_staged;
    uint64_t bytes_relayed; /* thereof what this rank passed on */
    uint64_t bytes_received;
    uint64_t bytes_device; /* of both, what a device's own verbs packed, copied or unpacked */
    uint64_t n_batches_sent;
    uint64_t n_batches_received;
    double seconds;      /* from start to the common outcome */
    double seconds_pack; /* copying: into slots, or straight into destinations */
    double seconds_wire; /* in the transport's calls */
    double seconds_unpack;
    double seconds_check; /* reading destinations again */
    double seconds_wait;
    /*
     * What it took to get ready: steps of init, schedule, rebind and recover at which all ranks
     * waited for all, and rounds of messages between pairs. No run adds to it.
     */
    uint64_t n_exchanges;
    /*
     * Of the last run, where the option delta is set: bytes that this rank had to send, and that
     * were there already. They are in none of the paths' numbers, but in bytes_received of peers.
     */
    uint64_t bytes_skipped;
    uint64_t bytes_filled; /* of bytes_local, and of those skipped: fills of a side in boxes */
    uint64_t bytes_device_slots; /* of bytes_staged, what went from device to device, and never
                                    through memory of the host */
} ferry_service_statistics;

#define FERRY_SERVICE_STATISTICS_INIT                                                              \
    {                                                                                              \
        sizeof(ferry_service_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
            0, 0, 0, 0, 0                                                                          \
    }

/* What the service has moved and how long it took. */
FERRY_API ferry_status ferry_service_get_statistics(const ferry_service *service,
                                                    ferry_service_statistics *statistics_out,
                                                    ferry_error *error);

/* A rank that this one sends to or receives from, in order of ranks. */
typedef struct ferry_service_peer {
    size_t struct_size;
    uint32_t peer;
    uint32_t paths;     /* FERRY_PATH_ flags that bytes to it take */
    const char *engine; /* of the transport; "" for this rank itself */
    uint64_t bytes_out;
    uint64_t bytes_in;
    uint64_t bytes_skipped; /* of bytes_out, in the last run: see ferry_service_statistics */
} ferry_service_peer;

#define FERRY_SERVICE_PEER_INIT                                                                    \
    {                                                                                              \
        sizeof(ferry_service_peer), 0, 0, NULL, 0, 0, 0                                            \
    }

/* How many ranks this one exchanges bytes with. */
FERRY_API uint32_t ferry_service_peer_count(const ferry_service *service);
/* One of them, by number. */
FERRY_API ferry_status ferry_service_peer_at(const ferry_service *service, uint32_t index,
                                             ferry_service_peer *peer_out, ferry_error *error);

/* "mapped", "staged", ...: one flag's word. */
FERRY_API const char *ferry_service_path_name(uint32_t path);

/*
 * The batches of this rank's last run, where the option asked for it, in order of time. Times are
 * seconds from the run's start on this rank.
 */
typedef enum ferry_span_kind {
    FERRY_SPAN_PACK = 0,
    FERRY_SPAN_WIRE = 1,
    FERRY_SPAN_UNPACK = 2,
    FERRY_SPAN_COPY = 3, /* from tensor to tensor */
    FERRY_SPAN_CHECK = 4,
    FERRY_SPAN_WAIT = 5
} ferry_span_kind;

typedef struct ferry_span {
    size_t struct_size;
    uint32_t kind; /* a ferry_span_kind */
    uint32_t peer;
    uint64_t batch; /* this rank's number of it */
    uint64_t bytes;
    double begin;
    double end;
} ferry_span;

#define FERRY_SPAN_INIT                                                                            \
    {                                                                                              \
        sizeof(ferry_span), 0, 0, 0, 0, 0, 0                                                       \
    }

/* How many spans the last run had; 0 without the option. */
FERRY_API uint64_t ferry_service_span_count(const ferry_service *service);
/* A span, by number. */
FERRY_API ferry_status ferry_service_span_at(const ferry_service *service, uint64_t index,
                                             ferry_span *span_out, ferry_error *error);

FERRY_END_DECLS

#endif
