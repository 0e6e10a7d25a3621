/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_EXEC_H
#define FY_SERVICE_EXEC_H

#include "model/roster.h"
#include "service/service.h"

#include <ferry/schedule.h>
#include <ferry/scheduler.h>

#include <stdatomic.h>

/*
 * What runs execute: all that can be computed before the first byte moves. A run follows it and
 * allocates nothing.
 *
 * A rank has a channel to each rank that it exchanges items with. An item is what moves at once:
 * pieces of tasks, by one path. The items of a channel are numbered, and both ends go through them
 * in order: the sender counts what it has done in the receiver's ARRIVED word, the receiver what it
 * has dealt with in the sender's CONSUMED word. Staged items take the slots of the channel's ring
 * in turn; of the others the receiver only takes note, or checks their hashes.
 */

/* Words of a channel in its owner's control memory, written by the peer: one line of the cache. */
enum {
    FY_WORD_ENTERED = 0,  /* the run that the peer is in */
    FY_WORD_ARRIVED = 1,  /* run << 32 | items of the peer that are here */
    FY_WORD_CONSUMED = 2, /* run << 32 | items that the peer has dealt with */
    FY_WORD_PULSE = 3,    /* changes while the peer is in a run */
    FY_WORD_HALT = 4,     /* the run that the peer has given up */
    FY_WORD_TURN = 5,     /* run << 32 | items that the peer lets come, if they take turns */
    FY_WORDS = 8
};

/* In front of a slot's payload. */
typedef struct fy_slot_head {
    uint64_t stamp; /* run << 32 | number of the item */
    uint64_t bytes;
    uint64_t hash; /* of the payload, where the path is checked */
    uint64_t unused[5];
} fy_slot_head;

enum { FY_SLOT_HEAD_BYTES = 64 };
_Static_assert(sizeof(fy_slot_head) == FY_SLOT_HEAD_BYTES, "payloads begin with a line");

/*
 * Bytes [first, first + bytes) of a task, in row-major order. Of what is sent, `end` is a send, or
 * with FY_RELAYED a receive whose bytes are passed on; of what is received, a receive.
 */
typedef struct fy_part_of {
    uint32_t end;
    uint32_t place; /* at the sender: into the channel's places */
    uint64_t first;
    uint64_t bytes;
} fy_part_of;

#define FY_RELAYED (UINT32_C(1) << 31)

typedef struct fy_item {
    uint64_t first_part; /* into the lane's parts */
    uint64_t bytes;
    uint64_t order; /* its round; without rounds, which item a rank prefers */
    uint32_t n_parts;
    uint32_t path;     /* one FERRY_PATH_ flag */
    uint32_t slot;     /* of a staged item */
    uint32_t consumed; /* at the sender: items that the peer must have dealt with before */
    uint32_t after;    /* conditions of a relayed item, into the channel's afters */
    uint32_t n_after;
} fy_item;

/* So many items of a channel must have been dealt with here. */
typedef struct fy_after {
    uint32_t channel;
    uint32_t n_items;
} fy_after;

/* One direction of a channel. */
typedef struct fy_lane {
    fy_item *items;
    size_t n_items, item_capacity;
    fy_part_of *parts;
    size_t n_parts, part_capacity;
    uint64_t bytes;
} fy_lane;

/* A range of a task's bytes. */
typedef struct fy_range {
    uint64_t first;
    uint64_t bytes;
} fy_range;

/* A receiver's buffer. */
typedef struct fy_spot {
    uint64_t address;    /* there */
    uint64_t bytes;      /* of the buffer */
    uint64_t key_offset; /* of the buffer within its region */
    char *mapped;        /* its base as it is reached from here, or NULL */
    uint32_t key;        /* into the channel's keys, or FY_NONE */
} fy_spot;

/*
 * Where a task's bytes go, as its receiver said, and what it wants of them. Buffers that are
 * swapped after each run have two spots, of which exec->side is written next.
 */
typedef struct fy_place {
    fy_spot spots[2];
    uint64_t offset; /* the area, as in fy_end */
    uint64_t run_bytes;
    uint64_t bytes;
    uint32_t n_dims;
    uint32_t dims; /* into the channel's dims */
    uint32_t path;
    uint32_t first_range, n_ranges; /* into the channel's ranges */
} fy_place;

typedef struct fy_channel {
    uint32_t peer;
    uint32_t theirs; /* this channel's number at the peer */
    bool direct;     /* no network lies between the two */
    bool in_turns;   /* items of both lanes wait for their rounds: see turns.c */
    uint32_t first_send, n_sends;
    uint32_t first_receive, n_receives;
    /* Receives that others registered for but this peer relays: in order of task ids. */
    uint32_t *relayed_receives;
    uint32_t n_relayed_receives;
    /* And the same of what is relayed to the peer: task ids, in order. */
    uint64_t *relayed_sends;
    uint32_t n_relayed_sends;
    fy_lane out, in;
    fy_after *afters;
    size_t n_afters, after_capacity;
    /* What the receiver said. The places of sends come first, then those of relayed ones. */
    fy_place *places;
    uint32_t n_places;
    uint64_t *dims;
    size_t n_dims, dims_capacity;
    fy_range *ranges;
    size_t n_ranges, range_capacity;
    ferry_region **keys;
    char **key_bases;
    uint32_t n_keys;
    /* The rings: at the peer, and here. */
    uint64_t out_ring, in_ring; /* offsets in the staging region */
    uint32_t out_slots, in_slots;
    uint64_t out_payload, in_payload; /* of a slot */
    char *out_mapped;                 /* the peer's ring as it is mapped here, or NULL */
    bool in_staged;                   /* items of `in` pass through the ring */
    bool in_answered;                 /* the sender counts what was dealt with */
    uint32_t answers; /* items of `out` that the peer must have dealt with at the end */
    uint64_t out_hashes, in_hashes; /* first byte of this lane's hashes, there and here */
    uint64_t own_hashes;            /* first of this lane's in exec->hashes */
    /* Of the run. */
    uint32_t n_sent;
    uint32_t n_dealt;
    uint32_t n_consumed;
    uint32_t turn;    /* items that the peer lets come */
    uint32_t granted; /* items that it was told it may send here */
    bool entered;
    bool told;     /* a letter says that the peer has entered */
    uint64_t seen; /* of its words, to notice any change */
    int64_t heard_ns;
    uint64_t bytes_out, bytes_in;
} fy_channel;

/* Staging memory of the sending side: a slot, until the receiver has dealt with its item. */
typedef struct fy_parcel {
    uint64_t offset;  /* in the staging region */
    uint32_t channel; /* FY_NONE: free */
    uint32_t item;
} fy_parcel;

/* Receives in order of task ids, where relays need them. */
typedef struct fy_task_index {
    uint64_t task_id;
    uint32_t receive;
} fy_task_index;

/*
 * How a run ends: each rank that has moved everything, or gives up, sends a vote up a tree; the
 * root sends the verdict down. So all ranks have one outcome, and nobody waits in a call of its
 * own.
 */
typedef enum fy_phase { FY_PHASE_MOVING, FY_PHASE_VOTING, FY_PHASE_OVER } fy_phase;

/* A reason, and how many ranks gave it. */
typedef struct fy_reason {
    uint32_t status;
    uint32_t culprit;
    uint32_t count;
    uint32_t rank; /* the first that gave it */
    char text[FERRY_ERROR_BYTES];
} fy_reason;

enum { FY_MOST_REASONS = 4, FY_VOTE_ARITY = 16, FY_MOST_WATCHED = FY_VOTE_ARITY + 1 };

/* A rank next to this one in the tree of votes, as it is watched: see watch.c. */
typedef struct fy_watched {
    uint32_t rank;
    bool begun, over; /* the run, there */
    bool waits;       /* its thread is within a wait for the run: if it is slow, it is starved */
    bool voted;
    int64_t heard_ns; /* when it last moved the run on, as far as is known */
    int64_t ended_ns; /* when its service was first found to have ended; 0: it has not */
    int64_t asked_ns, pause_ns;
} fy_watched;

typedef struct fy_outcome {
    fy_phase phase;
    uint32_t n_children; /* that have voted */
    uint32_t n_reasons;
    bool sent;        /* what this rank and its children say is on its way up */
    int64_t voted_ns; /* when this rank's own vote was counted */
    fy_reason reasons[FY_MOST_REASONS];
    ferry_status status; /* the verdict */
    ferry_error error;
} fy_outcome;

struct fy_exec {
    fy_channel *channels; /* in order of peers; none to itself */
    uint32_t n_channels;
    fy_lane local;        /* items of this rank to itself */
    uint32_t local_sends; /* first of the sends to itself, which match the receives */
    uint32_t local_receives;
    fy_task_index *by_task;
    ferry_schedule *rounds; /* this rank's part of a plan's schedule, or NULL */
    fy_range *wants;        /* of receives, where a ledger says what is missing */
    uint32_t *wants_of;     /* by receive: n_receives + 1 begins in wants; NULL: all of all */
    bool is_partial;        /* some rank has such ranges */
    fy_parcel *parcels;
    uint32_t n_parcels;
    uint64_t parcel_payload;
    uint64_t *hashes;      /* of the parts of all out lanes, as they are sent, and */
    uint64_t local_hashes; /* from here on of the local ones; NULL: none are wanted */
    uint64_t in_bytes, out_bytes, local_bytes;
    struct iovec *here, *there; /* FY_MOST_VECTORS each */
    uint32_t *ready;            /* channels that can send, while one is chosen */
    ferry_span *spans;
    size_t n_spans, span_capacity;
    /* Of the run. */
    uint64_t version; /* of the last run; 0: there was none */
    bool is_whole;    /* it ended well, or turned out to have */
    uint32_t run;     /* its number on the words */
    uint32_t n_local; /* items done */
    uint32_t n_away;  /* items in turns that were sent, and not yet dealt with */
    bool gives;       /* somebody's turn may have come, which is looked for once a step */
    uint64_t done_bytes;
    int64_t begin_ns, tick_ns, pulse_ns, told_ns, ask_ns, called_ns;
    int64_t waits_since_ns; /* 0: it works */
    /* How fast the network is to this rank, in items that make up a few milliseconds. */
    uint32_t window;
    uint64_t window_bytes;
    int64_t window_ns;
    double wire_seconds; /* of the item that is sent now, within the transport's calls */
    uint32_t side;       /* which of two places is written: see FERRY_COMMIT_SWAP */
    ferry_status status; /* why this rank gives up */
    ferry_error why;
    uint32_t culprit; /* whom it blames, or FERRY_ANY_RANK */
    bool halted;      /* it gives up because a peer did */
    int64_t flush_ns; /* since when what it has put is flushed; 0: it is not yet */
    bool told_halt;
    fy_outcome outcome;
    fy_watched watched[FY_MOST_WATCHED];
    uint32_t n_watched;
};

enum { FY_MOST_VECTORS = 1024 };

/* Items of one channel that can be on their way over a network; and so many go as one. */
enum { FY_MOST_WINDOW = 32, FY_LEAST_WINDOW = 4, FY_MOST_BURST = 8, FY_NETWORK_BYTES = 128 << 10 };

/* exec.c */
void fy_exec_destroy(fy_exec *exec); /* NULL is allowed */
ferry_status fy_lane_item(fy_lane *lane, uint32_t path, uint64_t order, fy_item **item_out,
                          ferry_error *error);
/* To the last item of the lane. */
ferry_status fy_lane_part(fy_lane *lane, uint32_t end, uint32_t place, uint64_t first,
                          uint64_t bytes, ferry_error *error);
fy_channel *fy_channel_of(const fy_exec *exec, uint32_t peer); /* NULL: there is none */
static inline uint32_t fy_channel_number(const fy_exec *exec, const fy_channel *channel)
{
    return (uint32_t)(channel - exec->channels);
}
fy_area fy_place_area(const fy_channel *channel, const fy_place *place);

/* pairs.c: collective among pairs: bytes for each channel's peer, and from it. */
ferry_status fy_pairs_exchange(ferry_service *service, fy_pack *out, fy_pack *in,
                               ferry_error *error);
/*
 * The same between rank 0 and each of the others: [n_ranks - 1] there, rank by rank, and [1] on
 * them. NULL: there is no memory for that, and all ranks fail together. What has no memory on
 * arrival is marked so, and nobody fails.
 */
ferry_status fy_star_exchange(ferry_service *service, fy_pack *out, fy_pack *in,
                              ferry_error *error);

/* Letters of the run that is under way. */
static inline uint64_t fy_run_tag(const ferry_service *service, fy_letter_use use)
{
    return fy_letter_tag(use, FY_THING_SERVICE, service->work.number, service->exec->run);
}

/* One that others wait for: if it cannot be sent the world fails. Never waits. */
void fy_run_letter(ferry_service *service, uint32_t to, fy_letter_use use, const void *bytes,
                   size_t n_bytes);

/* When a batch of this rank goes. */
typedef struct fy_turn {
    uint32_t iteration;
    uint32_t destination;
    uint32_t batch_index;
} fy_turn;

typedef struct fy_turns {
    fy_turn *turns; /* by iteration; the caller frees them */
    size_t n;
} fy_turns;

/*
 * build_schedule.c: as ferry_build_schedule, by rank 0 for all. What a service needs is the order
 * of what it sends: each rank tells rank 0 its batches and is told when they go. The exchange has
 * gather and scatter.
 */
ferry_status fy_build_order(const ferry_workloads *workloads, const ferry_exchange *exchange,
                            fy_turns *turns_out, ferry_error *error);

/* order.c */
/*
 * Collective. This rank's part of the schedule of the bound plan, into exec->rounds. A batch takes
 * at least the plan's largest element, however small slots are.
 */
ferry_status fy_order_plan(ferry_service *service, uint64_t element_bytes, ferry_error *error);
/* Collective, once paths are known: items by the rounds of what was registered. */
ferry_status fy_order_sends(ferry_service *service, ferry_error *error);

/*
 * prepare.c: collective. For the same registrations at other addresses, once fy_ledger_keep has
 * been called. A failure before it, with its sentence in *error, is that of all.
 */
ferry_status fy_prepare_again(ferry_service *service, ferry_status before, ferry_error *error);

/* channels.c: local. */
ferry_status fy_channels_make(ferry_service *service, ferry_error *error);
uint32_t fy_receive_of_task(const ferry_service *service, uint64_t task_id); /* or FY_NONE */

/* places.c: what a receiver says, and how the sender takes it. */
ferry_status fy_places_write(ferry_service *service, fy_channel *channel, fy_pack *out,
                             ferry_error *error);
ferry_status fy_places_read(ferry_service *service, fy_channel *channel, const fy_pack *in,
                            ferry_error *error);
/* How far receivers' memory may be used for rings: fills in_ring, in_slots, in_payload. */
void fy_rings_lay_out(ferry_service *service);

/* paths.c */
bool fy_path_allowed(const ferry_service *service, uint32_t path); /* by the options */
bool fy_peer_is_direct(ferry_service *service, uint32_t peer);
uint32_t fy_path_choose(ferry_service *service, const fy_channel *channel, const fy_place *place,
                        uint64_t source_run);

/* items.c: cuts what is sent into items. */
ferry_status fy_items_cut(ferry_service *service, fy_channel *channel, uint32_t end, uint32_t place,
                          uint64_t first, uint64_t bytes, uint64_t order, ferry_error *error);
ferry_status fy_items_make(ferry_service *service, ferry_error *error);
ferry_status fy_items_local(ferry_service *service, ferry_error *error);
/* Windows, slots of staged items, parcels. Once all items are there. */
ferry_status fy_items_finish(ferry_service *service, ferry_error *error);

/* manifest.c: what a sender says of its items. */
ferry_status fy_manifest_write(ferry_service *service, fy_channel *channel, fy_pack *out,
                               ferry_error *error);
ferry_status fy_manifest_read(ferry_service *service, fy_channel *channel, const fy_pack *in,
                              ferry_error *error);
/*
 * Once all manifests are read: that they bring every wanted byte once; and the conditions of
 * relayed items, from what is received.
 */
ferry_status fy_arrivals_check(ferry_service *service, ferry_error *error);

/* staging.c: collective. */
ferry_status fy_staging_make(ferry_service *service, ferry_error *error);
void fy_staging_free(ferry_service *service);
static inline uint64_t fy_word_offset(uint32_t channel, uint32_t word)
{
    return (uint64_t)channel * FY_WORDS * sizeof(uint64_t) + word * sizeof(uint64_t);
}

/* request.c: waits for its end, a deadline at most, then cancels it and waits as long again. */
ferry_status fy_request_drop(fy_run_request *request);
/* The first run must not fail for the lack of a request, for others wait for it. */
ferry_status fy_request_provide(ferry_service *service, ferry_error *error);

/* run.c. A run that has begun ends with one outcome; only a failed world keeps it from beginning.
 */
ferry_status fy_run_begin(ferry_service *service, ferry_error *error);
bool fy_run_step(ferry_service *service); /* true if anything happened */
bool fy_run_is_over(const ferry_service *service);
/* This rank gives the run up; the first reason counts. */
void fy_run_fail(ferry_service *service, ferry_status status, uint32_t culprit, const char *format,
                 ...) __attribute__((format(printf, 4, 5)));
/* Before memory goes: what a failed run has put is in place, or given up. Waits. */
void fy_run_settle(ferry_service *service);
/* Sets a word at the channel's peer. */
void fy_run_signal(ferry_service *service, const fy_channel *channel, uint32_t word,
                   uint64_t value);

/* outcome.c */
void fy_outcome_give_up(ferry_service *service); /* tells all, once */
void fy_outcome_begin(ferry_service *service);   /* this rank votes */
bool fy_outcome_step(ferry_service *service);
/* Those next to this rank in the tree of votes, and how many they are. */
uint32_t fy_outcome_neighbours(const ferry_world *world, uint32_t ranks[FY_MOST_WATCHED]);
bool fy_outcome_of_world(ferry_service *service); /* it has failed: the outcome is why */

/* turns.c: who may send to this rank next; after something has arrived or somebody entered. */
void fy_turns_give(ferry_service *service);
void fy_turns_arrived(ferry_service *service, uint64_t bytes);
uint32_t fy_turns_room(const fy_exec *exec); /* items that this rank may still let go */
void fy_turns_begin(fy_exec *exec);          /* of the run */

/* send.c, receive.c, watch.c: true if anything happened. */
bool fy_send_step(ferry_service *service);
bool fy_local_step(ferry_service *service);
bool fy_receive_step(ferry_service *service);
void fy_watch_tick(ferry_service *service);
void fy_watch_halt(ferry_service *service);
void fy_watch_tell(ferry_service *service, uint32_t rank); /* that this rank has given up */
void fy_watch_begin(ferry_service *service);
/* A neighbour in the tree of votes has voted. */
void fy_watch_voted(ferry_service *service, uint32_t rank);
bool fy_watch_has_voted(const ferry_service *service, uint32_t rank);
/* A rank that a peer has halted says whom it was waiting for itself, if for long. */
void fy_watch_testify(ferry_service *service);
/* Bytes of an item's parts that are mapped, by all threads of the team; local ones too. */
void fy_copy_mapped(ferry_service *service, const fy_channel *channel, const fy_item *item,
                    uint64_t *hashes);

/* targets.c: states of destinations. */
void fy_targets_begin(ferry_service *service);
void fy_targets_end(ferry_service *service, bool ok);
void fy_targets_miss(ferry_service *service); /* a run that never began */

/* statistics.c */
void fy_statistics_begin(ferry_service *service);
void fy_statistics_sent(ferry_service *service, const fy_channel *channel, const fy_item *item,
                        int64_t begin_ns, int64_t end_ns);
void fy_statistics_received(ferry_service *service, const fy_channel *channel, const fy_item *item,
                            int64_t begin_ns, int64_t unpacked_ns);
void fy_statistics_local(ferry_service *service, const fy_item *item, int64_t begin_ns,
                         int64_t copied_ns);
/* The rank has nothing to do; what it does next ends that. */
void fy_statistics_wait(ferry_service *service);
void fy_statistics_go_on(ferry_service *service, int64_t now_ns);
void fy_statistics_end(ferry_service *service);

#endif
