/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_RUN_H
#define FY_SERVICE_RUN_H

#include "base/bytes.h"
#include "program/drive.h"
#include "service/program.h"

#include <stdatomic.h>

/*
 * One run of a program, and what goes on from run to run: counters, windows, who is watched, how it
 * ends. It is allocated with the program; a run allocates nothing.
 */

typedef struct fy_channel_state {
    const fy_channel *channel;
    uint32_t n_sent;
    uint32_t n_dealt;
    uint32_t n_consumed;
    uint32_t granted; /* items that it was told it may send here */
    bool entered;
    bool told;     /* a letter says that the peer has entered */
    uint64_t seen; /* of its words, to notice any change */
    int64_t heard_ns;
    /* Of what is being sent, and dealt with, from the first of its steps to the last. */
    uint32_t parcel;                     /* the first that items were packed into */
    bool visits;                         /* an item is written to the peer's own memory */
    uint64_t untold_bytes;               /* are in place there, and no word says so yet */
    uint64_t path_hashes[FY_MOST_BURST]; /* of what is unpacked */
    uint64_t skipping;                   /* bytes of it that are there already */
    uint64_t skipped;                    /* in this run */
    int64_t send_ns, deal_ns, unpacked_ns;
} fy_channel_state;

/* The run is not over for this channel. */
static inline bool fy_channel_awaits(const fy_channel_state *state)
{
    const fy_channel *channel = state->channel;
    return state->n_sent < channel->out.n_items || state->n_dealt < channel->in.n_items ||
           state->n_consumed < channel->answers;
}

/* Staging memory of the sending side: a slot, until the receiver has dealt with its item. */
typedef struct fy_parcel {
    uint32_t channel; /* FY_NONE: free */
    uint32_t item;
} fy_parcel;

/* Items whose payloads are on their way to memory of the peer's device, by a put that nobody waits
 * for. */
typedef struct fy_away {
    uint64_t ticket;
    uint32_t channel;
    uint32_t first, n; /* items */
    uint32_t parcel;   /* the first, with their heads */
} fy_away;

/* What is packed, and what is away: in the order of tickets, a ring with room for one each of the
 * parcels aside. */
typedef struct fy_packing_run {
    fy_parcel *parcels[2]; /* of the program's packing */
    fy_away *away;
    uint32_t first_away, n_away;
} fy_packing_run;

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

/* What a rank and those below it vote, or the verdict: none where all is well. */
typedef struct fy_reasons {
    uint32_t n;
    fy_reason items[FY_MOST_REASONS];
} fy_reasons;

/* As it travels. */
enum { FY_REASONS_BYTES = 8 + FY_MOST_REASONS * (24 + FERRY_ERROR_BYTES) };
void fy_reasons_pack(const fy_reasons *reasons, fy_pack *out);
bool fy_reasons_read(const void *bytes, size_t n_bytes, uint32_t n_ranks, fy_reasons *reasons_out);

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
    bool sent;           /* what this rank and its children say is on its way up */
    int64_t voted_ns;    /* when this rank's own vote was counted */
    fy_reasons reasons;
    ferry_status status; /* the verdict */
    ferry_error error;
} fy_outcome;

/* How fast the network is to this rank, in items that make up a few milliseconds. */
typedef struct fy_turn_window {
    uint32_t n;
    uint64_t bytes;
    int64_t since_ns;
} fy_turn_window;

/* Of runs that move only what differs: see delta.h. */
typedef struct fy_delta_run {
    char *gathered; /* where the bytes of an item are brought together to be compared */
    uint64_t gathered_bytes;
    char *told_digests;  /* on their way */
    char *own_digests;   /* of what is sent, by devices, until it has gone; NULL: they make none */
    fy_exec_part *parts; /* of an item */
    uint32_t n_whole;    /* runs of this program in a row that ended well */
    uint64_t local_skipping, local_skipped;
} fy_delta_run;

/* How far work is that goes over tensors in bands of rows. */
typedef struct fy_bands {
    size_t n_done;    /* tensors, */
    uint64_t n_bands; /* and bands of the next one */
} fy_bands;

/* What is held of a space in which values wait. */
typedef struct fy_ring {
    fy_space space;
    char *base;   /* of places for bands; NULL: there is room for all values */
    char *packed; /* of a device, where values of a band in boxes come side by side; or NULL */
    uint64_t packed_bytes;
} fy_ring;

/* What a device makes just now: see made_far.c. */
typedef struct fy_far_making {
    fy_device_queue *by; /* NULL: nothing */
    fy_ticket ticket;
    uint64_t n_bands;
    bool is_coded; /* codes are under way, and not only what their scales are made of */
} fy_far_making;

/* Of codes that this rank makes itself: see made.c. */
typedef struct fy_making_run {
    size_t n;         /* makers that are done, */
    uint64_t n_bands; /* and bands of all */
    char *scratch;    /* where threads make codes and scales: so many bytes for all */
    uint64_t scratch_bytes;
    fy_ring *rings; /* one for each space that values wait in */
    uint32_t n_rings;
    fy_device_queues queues; /* of those of devices */
    fy_far_making far;
    uint64_t *left;      /* bytes of each band that have not come; NULL likewise */
    uint64_t given_left; /* and of the scales of matrices by which f4 is made */
} fy_making_run;

typedef struct fy_run_state {
    fy_channel_state *channels; /* one for each of the program's */
    fy_packing_run packed;
    uint64_t *hashes; /* of the parts of all out lanes, as they are sent, and of the local ones */
    uint64_t *found; /* of the parts of all in lanes, and of the local ones, where they have come */
    fy_delta_run delta;
    fy_making_run made;
    struct fy_moves *moves; /* NULL: all memory is the host's */
    fy_drive drive;         /* of the program's steps */
    fy_heap turns;          /* channels that wait for their turn to send here, by their rounds */
    uint32_t *same_round;   /* some of them, while one is chosen */
    bool looks_at_all;      /* at the words of all channels, whatever is noted */
    uint64_t n_looks;       /* at words of channels: counted for tests */
    ferry_span *spans;
    size_t n_spans, span_capacity;
    uint64_t version;      /* of the last run; 0: there was none */
    bool is_whole;         /* it ended well, or turned out to have */
    uint32_t side;         /* which of two spots is written: see FERRY_COMMIT_SWAP */
    fy_turn_window window; /* is learnt from run to run */
    /* Of the run. */
    uint32_t number;      /* on the words */
    fy_bands scaled;      /* sources whose scales are made */
    fy_bands products;    /* destinations of codes that are multiplied */
    uint32_t n_local;     /* items done */
    uint32_t local_phase; /* of the next one */
    int64_t local_ns, copied_ns;
    uint32_t n_away;       /* items in turns that were sent, and not yet dealt with */
    uint32_t next_checked; /* channel, of those that are looked at in turn: see watch.c */
    bool gives;            /* somebody's turn may have come, which is looked for once a step */
    uint64_t done_bytes;
    int64_t begin_ns, tick_ns, pulse_ns, told_ns, ask_ns, called_ns;
    int64_t waits_since_ns; /* 0: it works */
    double wire_seconds;    /* of the item that is sent now, within the transport's calls */
    ferry_status status;    /* why this rank gives up */
    ferry_error why;
    uint32_t culprit; /* whom it blames, or FERRY_ANY_RANK */
    bool halted;      /* it gives up because a peer did */
    bool told_halt;
    int64_t flush_ns; /* since when what it has put is flushed; 0: it is not yet */
    fy_outcome outcome;
    fy_watched watched[FY_MOST_WATCHED];
    uint32_t n_watched;
} fy_run_state;

/* run.c. For the service's program. */
ferry_status fy_run_state_create(ferry_service *service, fy_run_state **run_out,
                                 ferry_error *error);
/* Once the program is compiled. */
ferry_status fy_run_state_furnish(ferry_service *service, ferry_error *error);
void fy_run_state_destroy(fy_run_state *run); /* NULL is allowed */

/* A run that has begun ends with one outcome; only a failed world keeps it from beginning. */
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

/* The same where memory reaches it, to a peer that sees it when it looks: it is not woken. */
void fy_run_leave_word(ferry_service *service, const fy_channel *channel, uint32_t word,
                       uint64_t value);

/* Letters of the run that is under way. */
uint64_t fy_run_tag(const ferry_service *service, fy_letter_use use);

/* One that others wait for: if it cannot be sent the world fails. Never waits. */
void fy_run_letter(ferry_service *service, uint32_t to, fy_letter_use use, const void *bytes,
                   size_t n_bytes);

/* made.c: memory for it. */
ferry_status fy_makings_open(ferry_service *service, fy_run_state *run, ferry_error *error);
void fy_rings_close(fy_run_state *run); /* made_far.c */

/* bands.c */
ferry_status fy_bands_open(const ferry_service *service, fy_run_state *run, ferry_error *error);
uint64_t fy_bands_bytes(const ferry_service *service);
void fy_bands_begin(ferry_service *service);
/* An item of values was dealt with. */
void fy_bands_take(ferry_service *service, const fy_lane *lane, const fy_item *item, bool is_local);
/* Whether all values of a band have come. */
bool fy_band_is_there(const ferry_service *service, uint64_t band);
/* Where the memory of held values would begin, seen from one of their bands. */
char *fy_band_base(const ferry_service *service, uint32_t held, uint64_t band);

/* request.c: waits for its end, a deadline at most, then cancels it and waits as long again. */
ferry_status fy_request_drop(fy_run_request *request);
/* Cancels the runs that are on a queue, and waits until they are over; not within one of them. */
void fy_requests_drop(ferry_service *service);

/* outcome.c */
void fy_outcome_give_up(ferry_service *service); /* tells all, once */
void fy_outcome_begin(ferry_service *service);   /* this rank votes */
bool fy_outcome_step(ferry_service *service);
/* Those next to this rank in the tree of votes, and how many they are. */
uint32_t fy_outcome_neighbours(const ferry_world *world, uint32_t ranks[FY_MOST_WATCHED]);
bool fy_outcome_of_world(ferry_service *service); /* it has failed: why, or the verdict before */

/*
 * turns.c: who may send to this rank next; after something has arrived or somebody entered. A
 * channel waits for its turn from there until its last item.
 */
void fy_turns_await(fy_run_state *run, uint32_t channel);
void fy_turns_give(ferry_service *service);
void fy_turns_arrived(fy_run_state *run, uint64_t bytes);
uint32_t fy_turns_room(const fy_run_state *run); /* items that this rank may still let go */
void fy_turns_begin(fy_run_state *run);

/* send.c, receive.c, local.c: true if anything happened. */
bool fy_send_step(ferry_service *service);
bool fy_local_step(ferry_service *service);
bool fy_receive_step(ferry_service *service);
/* verbs.c: what is done with the steps of a program. */
extern const fy_verbs fy_service_verbs;

/* watch.c */
void fy_watch_tick(ferry_service *service);
void fy_watch_halt(ferry_service *service);
void fy_watch_tell(ferry_service *service, uint32_t rank); /* that this rank has given up */
void fy_watch_begin(ferry_service *service);
/* A neighbour in the tree of votes has voted. */
void fy_watch_voted(ferry_service *service, uint32_t rank);
bool fy_watch_has_voted(const ferry_service *service, uint32_t rank);
/* A rank that a peer has halted says whom it was waiting for itself, if for long. */
void fy_watch_testify(ferry_service *service);
/* Begins to copy n items' parts, which are mapped, or those of a local item (channel NULL): what
 * the CPU copies by all threads of the team, and done when this returns. */
ferry_status fy_copy_mapped(ferry_service *service, const fy_channel *channel, const fy_item *items,
                            uint32_t n, uint64_t *hashes, uint64_t *skipped_inout,
                            ferry_error *error);

/* targets.c: states of destinations. */
void fy_targets_begin(ferry_service *service);
void fy_targets_end(ferry_service *service, bool ok);
void fy_targets_miss(ferry_service *service); /* a run that never began */

/* statistics.c */
void fy_statistics_begin(ferry_service *service);
void fy_statistics_sent(ferry_service *service, const fy_channel *channel, const fy_item *item,
                        int64_t begin_ns, int64_t end_ns);
/* So many bytes of what was sent were there already. */
void fy_statistics_skipped(ferry_service *service, uint32_t path, uint64_t bytes);
void fy_statistics_received(ferry_service *service, const fy_channel *channel, const fy_item *item,
                            int64_t begin_ns, int64_t unpacked_ns);
void fy_statistics_local(ferry_service *service, const fy_item *item, int64_t begin_ns,
                         int64_t copied_ns);
/* The rank has nothing to do; what it does next ends that. */
void fy_statistics_wait(ferry_service *service);
void fy_statistics_go_on(ferry_service *service, int64_t now_ns);
void fy_statistics_end(ferry_service *service);

#endif
