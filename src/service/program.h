/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_PROGRAM_H
#define FY_SERVICE_PROGRAM_H

#include "memory/kind.h"
#include "program/program.h"
#include "service/service.h"

#include <ferry/schedule.h>

/*
 * What runs execute: all that can be computed before the first byte moves. It is made by
 * ferry_service_schedule and constant from then on; what changes in a run is in run.h, and what is
 * needed only while it is made in prepare.h.
 *
 * A rank has a channel to each rank that it exchanges items with. An item is what moves at once:
 * parts of tasks, by one path. The items of a channel are numbered, and both ends go through them
 * in order: the sender counts what it has done in the receiver's ARRIVED word, the receiver what it
 * has dealt with in the sender's CONSUMED word. Staged items take the slots of the channel's ring
 * in turn; of the others the receiver only takes note, or checks their hashes.
 *
 * Of memory there are areas in numbered buffers, and no addresses: those stand in two tables, the
 * registry's for this rank's buffers (fy_held) and a channel's for its peer's (fy_base).
 */

/* Words of a channel in its owner's control memory, written by the peer: one line of the cache. */
enum {
    FY_WORD_ENTERED = 0,  /* the run that the peer is in */
    FY_WORD_ARRIVED = 1,  /* run << 32 | items of the peer that are here */
    FY_WORD_CONSUMED = 2, /* run << 32 | items that the peer has dealt with */
    FY_WORD_PULSE = 3,    /* changes while the peer is in a run */
    FY_WORD_HALT = 4,     /* the run that the peer has given up */
    FY_WORD_TURN = 5,     /* run << 32 | items that the peer lets come, if they take turns */
    FY_WORD_DIGESTS = 6,  /* run << 32 | items whose digests the peer has told, if any are */
    FY_WORDS = 8
};

static inline uint64_t fy_word_offset(uint32_t channel, uint32_t word)
{
    return (uint64_t)channel * FY_WORDS * sizeof(uint64_t) + word * sizeof(uint64_t);
}

/* In front of a slot's payload. */
typedef struct fy_slot_head {
    uint64_t stamp; /* run << 32 | number of the item */
    uint64_t bytes;
    uint64_t hash;   /* of the payload, where the path is checked */
    uint64_t blocks; /* of the item that are there, where others are left out: see delta.h */
    uint64_t unused[4];
} fy_slot_head;

enum { FY_SLOT_HEAD_BYTES = 64 };
_Static_assert(sizeof(fy_slot_head) == FY_SLOT_HEAD_BYTES, "payloads begin with a line");

/*
 * Bytes [first, first + bytes) of a task, in row-major order: those that travel, also where nothing
 * does. Where an end casts they are whole elements, and begin at a multiple of one in the item, so
 * that its blocks and chunks are whole elements too. Of what is sent, `end` is a send, or
 * with FY_RELAYED a receive whose bytes are passed on; of what is received, a receive.
 */
typedef struct fy_item_part {
    uint32_t end;
    uint32_t place; /* where it goes: of the channel's places; of what stays here, a receive */
    uint64_t first;
    uint64_t bytes;
} fy_item_part;

#define FY_RELAYED (UINT32_C(1) << 31)

typedef struct fy_item {
    uint64_t first_part; /* into the lane's parts */
    uint64_t bytes;
    uint64_t order; /* its round; without rounds, which item a rank prefers */
    uint32_t n_parts;
    uint32_t path;     /* one FERRY_PATH_ flag */
    uint32_t slot;     /* of a staged item */
    uint32_t consumed; /* at the sender: items that the peer must have dealt with before */
    uint64_t n_made;   /* at the receiver: bands that must be made before: see bands.c */
} fy_item;

/* Before item number `item` of a channel goes, so many of another one must have been dealt with. */
typedef struct fy_after {
    uint32_t item;
    uint32_t channel;
    uint32_t n_items;
} fy_after;

/* One direction of a channel. */
typedef struct fy_lane {
    fy_item *items;
    size_t n_items, item_capacity;
    fy_item_part *parts;
    size_t n_parts, part_capacity;
    uint64_t bytes;
} fy_lane;

/* Where a buffer of a peer is. */
typedef struct fy_spot {
    uint64_t address;    /* there */
    uint64_t bytes;      /* of the buffer */
    uint64_t key_offset; /* of the buffer within its region */
    char *mapped;        /* its base as it is reached from here, or NULL */
    fy_space space;      /* that the base is valid in */
    uint32_t key;        /* into the channel's keys, or FY_NONE */
} fy_spot;

/* A buffer of a peer. Buffers that are swapped after each run are two, of which the run's side is
 * written next; of others both are the same. */
typedef struct fy_base {
    fy_spot spots[2];
} fy_base;

/* Where a task's bytes go at the peer: an area of one of its buffers. */
typedef struct fy_place {
    uint32_t base;   /* into the channel's bases */
    uint32_t n_dims; /* the area, as in fy_end */
    uint64_t offset;
    uint64_t run_bytes;
    uint64_t bytes; /* that travel */
    uint32_t dims;  /* into the channel's dims */
} fy_place;

/* A ring whose payloads would lie in memory of the receiver's device; no slots: there is none. */
typedef struct fy_offer {
    uint64_t ring, heads, payload;
    uint32_t n_slots;
} fy_offer;

typedef struct fy_channel {
    uint32_t peer;
    uint32_t theirs;  /* this channel's number at the peer */
    bool direct;      /* no network lies between the two */
    bool in_turns;    /* items of both lanes wait for their rounds: see turns.c */
    bool opens;       /* memory of the peer's devices is open here */
    bool relays;      /* some of what goes out is of others */
    bool in_staged;   /* items of `in` pass through the ring */
    bool in_answered; /* the sender counts what was dealt with */
    uint32_t answers; /* items of `out` that the peer must have dealt with at the end */
    fy_lane out, in;
    fy_after *afters; /* in order of items; what is relayed waits for what it is made of */
    size_t n_afters, after_capacity;
    /* What goes out: its places at the peer, and what is known of the peer's memory. */
    fy_place *places;
    uint32_t n_places;
    uint64_t *dims;
    size_t n_dims, dims_capacity;
    fy_base *bases;
    uint32_t n_bases;
    ferry_region **keys;
    uint32_t n_keys;
    /* The rings: at the peer, and here. */
    uint64_t out_ring, in_ring; /* offsets in the staging region */
    uint32_t out_slots, in_slots;
    uint64_t out_payload, in_payload; /* of a slot */
    /* Payloads lie in the region of devices then, and heads by themselves in the other one. */
    bool out_aside, in_aside;
    uint64_t out_heads, in_heads;
    fy_offer out_offer, in_offer;   /* what the receiver would have: the sender takes it, or not */
    bool reaches_ring;              /* the peer's ring is mapped here, once it is there */
    char *out_mapped;               /* where; NULL: nothing is staged, or it is not mapped */
    uint64_t out_hashes, in_hashes; /* first byte of this lane's hashes, there and here */
    uint64_t own_hashes;            /* first of this lane's in the run's hashes */
    uint64_t own_found;             /* and of the other one's in what the run has found */
    /* Digests of what is at the receiver: first byte of those that come in for what goes out, of
     * those that go out for what comes in, here and there, and how many an item has at most. */
    uint64_t out_digests, in_digests, their_digests;
    uint64_t out_digest_bytes, in_digest_bytes;
} fy_channel;

/*
 * Lanes of steps: of channel c what goes out, and what comes in; and behind those of all channels
 * what the rank sends to itself. A block is an item, and a step's operands are items of its lane.
 *
 *   out    WAIT for credits, MOVE parts to where they are put from or belong, PUT, SIGNAL; before
 *          that MOVE, where devices may have what is sent, one that looks what differs: FY_DIGESTED
 *   in     WAIT until the item is here, MOVE its parts, SIGNAL that it is dealt with
 *   local  MOVE once for each phase, SIGNAL
 *
 * A step that a path does not need is not there: what is put straight from the source has no MOVE,
 * what is moved straight to its place no PUT.
 */
enum {
    FY_COUNTER_ENTERED,
    FY_COUNTER_CONSUMED,
    FY_COUNTER_TURN,
    FY_COUNTER_ARRIVED,
    FY_COUNTER_DEALT,
    FY_COUNTER_DIGESTS,
    FY_N_COUNTERS
};
enum { FY_GRADE_IN, FY_GRADE_DIRECT, FY_GRADE_NETWORK, FY_GRADE_LOCAL };
_Static_assert((int)FY_GRADE_LOCAL < (int)FY_N_GRADES, "as many grades as a driver has");

static inline uint32_t fy_counter_of(uint32_t channel, uint32_t which)
{
    return FY_N_COUNTERS * channel + which;
}
static inline uint32_t fy_lane_out(uint32_t channel)
{
    return 2 * channel;
}

/* Memory to pack in: parcels, as long as slots, in the staging region or that of devices. */
typedef struct fy_packing {
    uint32_t n;
    uint64_t first, payload;
    uint64_t heads; /* aside: where heads lie, in the staging region */
} fy_packing;

typedef struct fy_service_program {
    fy_program steps;     /* once it is compiled */
    fy_channel *channels; /* in order of peers; none to itself */
    uint32_t n_channels;
    fy_lane local;          /* items of this rank to itself */
    ferry_schedule *rounds; /* this rank's part of a plan's schedule, or NULL */
    bool is_partial;        /* some rank wants only what is missing of a failed run */
    bool completes;         /* this rank does */
    fy_packing packing[2];  /* of what goes to rings of the host, and aside */
    bool checks_ends;       /* each part is hashed at its source and where it has come to */
    uint64_t local_hashes;  /* first of the local lane's in the run's hashes */
    uint64_t local_found;
    uint64_t n_hashes, n_found;
    bool is_delta;         /* only what differs is moved: see delta.h */
    uint64_t told_digests; /* bytes of the digests that this rank tells at once */
    uint64_t own_digests;  /* and of those of what it sends that its devices make; 0: they do not */
    bool by_bands;         /* values of which codes are made come in the order of their rows */
    uint64_t n_places, place_bytes; /* for bands of them, at this rank; 0: it has room for all */
    uint64_t given_bytes;           /* that come before they are made: scales of matrices of f4 */
    uint64_t in_bytes, out_bytes, local_bytes;
} fy_service_program;

/*
 * Items of one channel that can be on their way over a network; and so many go as one, or are
 * received at once: the more there are, the later hears the peer that slots are full, or free.
 */
enum { FY_MOST_WINDOW = 32, FY_LEAST_WINDOW = 4, FY_MOST_BURST = 8, FY_NETWORK_BYTES = 128 << 10 };

/*
 * What has digests, and of how many items of a channel they are told ahead. Blocks are small, for
 * what changes is mostly scattered; smaller ones have more digests than they save. In a step's
 * operand FY_DIGESTED says that it is of digests.
 */
enum { FY_DELTA_BYTES = 4 << 10, FY_DELTA_WINDOW = 32 };
#define FY_DIGESTED (UINT32_C(1) << 31)

/*
 * Bytes that go straight to their place are reported so many at a time: few enough that a loss
 * costs little and progress shows, many enough that the report costs nothing.
 */
enum { FY_DIRECT_BYTES = 4 << 20 };

/* compile.c: the steps, once it is known which rings are mapped here. */
ferry_status fy_service_compile(fy_service_program *program, ferry_error *error);

/* program.c */
void fy_service_program_destroy(fy_service_program *program); /* NULL is allowed */
ferry_status fy_lane_item(fy_lane *lane, uint32_t path, uint64_t order, fy_item **item_out,
                          ferry_error *error);
/* To the last item of the lane. */
ferry_status fy_lane_part(fy_lane *lane, uint32_t end, uint32_t place, uint64_t first,
                          uint64_t bytes, ferry_error *error);
fy_channel *fy_channel_of(const fy_service_program *program,
                          uint32_t peer); /* NULL: there is none */
static inline uint32_t fy_channel_number(const fy_service_program *program,
                                         const fy_channel *channel)
{
    return (uint32_t)(channel - program->channels);
}
fy_area fy_place_area(const fy_channel *channel, const fy_place *place);

#endif
