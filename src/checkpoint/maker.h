/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_MAKER_H
#define FY_CHECKPOINT_MAKER_H

#include "checkpoint/boxed.h"
#include "checkpoint/gather.h"
#include "checkpoint/nest.h"

/*
 * Makes parameters of a side in boxes, window by window in the order of their memory. What boxes
 * have in a window is gathered from the tensors, cast, quantized or dequantized where they are, and
 * set down where the boxes say; fills are written, and what nothing gives is zero. Windows are as
 * long as what they need of the source may be; where memory has another order than the tensor, as
 * long as there is room, for then each window needs a little of many rows.
 */
typedef struct fy_maker_room {
    uint64_t window_bytes; /* of what is made */
    uint64_t hull_bytes;   /* of what is gathered for it */
    uint64_t cast_bytes;   /* of what that is cast to, quantized or dequantized; 0: nothing is */
    uint64_t scales_bytes; /* of the scales of codes; 0: there are none */
} fy_maker_room;

/* The scales of whole matrices, which all threads share: see matrices.h. */
typedef struct fy_matrices fy_matrices;

/* A thread's. */
typedef struct fy_maker {
    const fy_boxed *boxed;
    const fy_layout_job *job; /* the tensors, with the numbers of boxed, to one rank */
    fy_gather *gather;        /* of that job */
    fy_gather *beside;        /* of the same, as they are: scales of codes, and values of which
                                 scales are made; NULL: there are none */
    fy_matrices *matrices;    /* NULL: no weight has such scales */
    fy_maker_room room;
    const uint32_t *number_in_job; /* of the boxes' tensors; NULL: the same */
    bool keeps_types;              /* whatever the job casts */
    char *window;                  /* what was made last */
    char *hull;
    char *cast;
    char *scales;
    bool reads, reads_beside; /* since it began */
    /* Of the window at work, in units. */
    const struct fy_making *making;
    uint64_t begin, end;
    uint32_t tensor;           /* whose box is at work */
    const unsigned char *bits; /* of the fill at work */
} fy_maker;

/* A box or a fill, and where it begins and ends in memory. */
typedef struct fy_making_item {
    uint64_t first, last;
    uint32_t number; /* fills are behind boxes */
} fy_making_item;

/* A parameter on its way. Several may take turns, and share what is read. */
typedef struct fy_making {
    uint32_t parameter;
    uint32_t unit_bytes;
    uint64_t n_units;
    uint64_t next;         /* unit at which the next window begins */
    uint64_t step;         /* units of a window, at most */
    fy_making_item *items; /* by where they begin */
    size_t n_items, n_begun;
    uint32_t *active; /* positions of items that may be in a window */
    size_t n_active;
    bool has_gaps; /* elements that nothing or a fill gives */
} fy_making;

/* The bytes of all of a room; and buffers for a worker from one piece of so many. */
uint64_t fy_maker_room_bytes(const fy_maker_room *room);
void fy_maker_init(fy_maker *maker, const fy_boxed *boxed, const fy_layout_job *job,
                   fy_gather *gather, const fy_maker_room *room, char *memory);

/* Turns to a parameter, or several in turn; at the end, to be called where all went well, the
 * checksums of what was read are checked. */
void fy_maker_begin(fy_maker *maker);
ferry_status fy_maker_end(fy_maker *maker, ferry_error *error);

/* What is to be made of a parameter; fy_making_cleanup ends it, also after a failure. */
ferry_status fy_making_begin(fy_making *making, const fy_maker *maker, uint32_t parameter,
                             ferry_error *error);
void fy_making_cleanup(fy_making *making);

/* The next window, which is the maker's: *bytes_out bytes at *at_out of the parameter; 0 behind the
 * last. */
ferry_status fy_maker_next(fy_maker *maker, fy_making *making, uint64_t *at_out,
                           uint64_t *bytes_out, ferry_error *error);

/* Whether a parameter needs parts of rows of the source that others may need the rest of. */
bool fy_maker_shares(const fy_boxed *boxed, uint32_t parameter);

#endif
