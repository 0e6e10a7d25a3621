/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_LANES_H
#define FY_EXEC_LANES_H

#include <stdint.h>

/*
 * A program that a device runs by itself, one kernel for a whole call: each block of threads is a
 * lane, and goes through stages in step with the same lane of other ranks. All that a kernel reads
 * is here, as numbers: who compiles a program lays its tables and boxes into memory that the device
 * reads. Nothing here knows what the program is for; kernels include it, and so does their twin.
 *
 * Boxes are messages of cells behind a header of one line, in slots that take turns: use number u
 * of an edge goes through slot u mod n_slots. A message is there once its header's first word, the
 * epoch, is u + 1. Epochs are stored with release and read with acquire, for all of the machine.
 */
enum {
    FY_LANES_LINE_BYTES = 64,
    FY_LANES_MOST_EDGES = 16,
    FY_LANES_MOST_OPERANDS = 66, /* of a sum: sources, and then targets */
    FY_LANES_MOST_LANES = 160,
    FY_LANES_PAGE_BYTES = 128 + FY_LANES_MOST_LANES * 128 /* a board, and reports */
};

enum { FY_LANES_WAIT = 0, FY_LANES_SUM, FY_LANES_PUT, FY_LANES_SIGNAL };
enum { FY_LANES_IN = 0, FY_LANES_OUT, FY_LANES_BOX };
enum { FY_LANES_FROM_BLOCK = 0, FY_LANES_FROM_PART, FY_LANES_FROM_SUB };
enum { FY_LANES_F32 = 0, FY_LANES_F16, FY_LANES_BF16 };

/* The steps of a stage; a step names operands [first, first + n) of its kind's table. */
typedef struct fy_lanes_stage {
    uint32_t first_step, n_steps;
} fy_lanes_stage;

typedef struct fy_lanes_step {
    uint32_t kind, first, n, spare;
} fy_lanes_step;

/* What a cell of an edge's messages holds: `n` and `n_sub` cut a block as below. */
typedef struct fy_lanes_edge {
    uint32_t uses; /* in a step of the message */
    uint32_t n, n_sub;
    uint32_t origin; /* FY_LANES_FROM_: whether it has room for a block, a part, or a sub-part */
    uint32_t element_bytes;
    uint32_t n_cells;
    uint32_t spare[2];
} fy_lanes_edge;

/* Where elements are: chunk `cell` of the input or the output, or a cell of a box. */
typedef struct fy_lanes_place {
    uint64_t base; /* of cell 0 of lane 0 in slot 0 */
    uint64_t lane_bytes, slot_bytes;
    uint32_t where, edge;
    uint32_t origin, use;
    uint32_t cell;
    uint32_t passes; /* its bytes go from rank to rank, and are counted */
} fy_lanes_place;

/*
 * Sources, added in their order, to one target or two. The piece: part `index` of `n` of the block,
 * and of that sub-part `sub` of `n_sub`, all cut at lines. Places of a fleet (fleet.h) are boxes at
 * its addresses: a source that is added up has its target's type.
 */
typedef struct fy_lanes_sum {
    uint32_t n, index, n_sub, sub;
    uint32_t first_source, n_sources; /* in the table of places */
    uint32_t first_target, n_targets;
    uint32_t source_type, target_type; /* FY_LANES_F32 ... */
    uint32_t to_fleet;                 /* bit k: target k is stored on all devices of the fleet */
    uint32_t from_fleet;               /* the one source is added up from all of them */
} fy_lanes_sum;

/* A message that is waited for, put from an own box, or announced. */
typedef struct fy_lanes_link {
    uint64_t header; /* of lane 0 in slot 0, here or there */
    uint64_t lane_bytes, slot_bytes;
    uint64_t from, from_slot_bytes; /* of a put */
    uint32_t edge, use;
    uint32_t rank;    /* to whom, or from whom */
    uint32_t is_near; /* it is of this node */
    uint64_t spare;
} fy_lanes_link;

/* The first line of a message. What comes behind the epoch must be what the reader expects. */
typedef struct fy_lanes_header {
    uint64_t epoch, call, count;
    uint32_t op, mode;
    uint32_t dtype, rank;
    uint64_t geometry, spare[2];
} fy_lanes_header;

/* Of each lane, in memory of the device, from call to call. */
typedef struct fy_lanes_state {
    uint64_t uses[FY_LANES_MOST_EDGES]; /* of every edge, before a call */
    uint64_t n_steps, n_waits;
    uint64_t inside_written, inside_read, between, elements; /* counted since the last reset */
    uint64_t number;    /* of the last call, on all lanes whether they had a part in it or not */
    uint64_t is_within; /* a call, now */
} fy_lanes_state;

/* Of all lanes, in memory of the device. */
typedef struct fy_lanes_halt {
    uint64_t halted; /* a lane has stopped, and the others do; or the host wants no call any more */
    uint64_t floor;  /* calls up to this number were made without a kernel: the host says so */
} fy_lanes_halt;

/* Why a lane has stopped. */
enum {
    FY_LANES_GOES = 0,
    FY_LANES_STOPPED, /* the host has said so, or another lane has stopped */
    FY_LANES_LATE,    /* a message has not come within the deadline */
    FY_LANES_DIFFERS, /* a message is of another call */
    FY_LANES_OVERRUN, /* a message was written over before it was read */
    FY_LANES_BESIDE   /* another call was on the device, or had its number */
};

/*
 * What a lane says, in memory of the host. waits: 1 + the link that it has waited for since longer
 * than patience, in the lower half, and how often it has waited before in the upper one; 0: for
 * none.
 */
typedef struct fy_lanes_report {
    uint64_t waits;
    uint64_t why; /* it has stopped: the first time; above it the title's `which`. Written last */
    uint64_t link, use;
    uint64_t begun; /* the last 32 bits of its call's number, and above them the title's `which` */
    uint64_t ended; /* its number, when it is over: where `which` is not 0 */
    uint64_t call;  /* that it has stopped in */
    uint64_t spare;
    fy_lanes_header header; /* as it was found, if it was */
} fy_lanes_report;

/* Lines of the host's memory that both sides look at. */
typedef struct fy_lanes_board {
    uint64_t stop;      /* the host: all lanes end */
    uint64_t n_refused; /* calls that found the device halted */
    uint64_t spare[6];
    uint64_t has_waits; /* some report may say what its lane waits for */
    uint64_t spare_of_waits[7];
} fy_lanes_board;

/* A program: addresses of its tables, each at a multiple of 16. */
typedef struct fy_lanes_tables {
    uint64_t stages, steps, sums, places, links, edges;
    uint32_t n_stages, n_edges;
    uint32_t n_slots;
    uint32_t is_pipelined; /* in turn t stage s is done for step t - s; else step by step */
} fy_lanes_tables;

/* What lanes keep and look at beside their messages: addresses, and how long they wait. */
typedef struct fy_lanes_watch {
    uint64_t states;  /* fy_lanes_state[n_lanes] */
    uint64_t reports; /* fy_lanes_report[n_lanes] */
    uint64_t board;
    uint64_t halt;        /* fy_lanes_halt */
    uint64_t deadline_ns; /* 0: none */
    uint64_t patience_ns;
} fy_lanes_watch;

/*
 * What the headers of a call say, but for its count. A call that the host cannot number has a name
 * of the host's, `which`, and gets its number on the device: the next one, after that of the call
 * before it, and after `number`.
 */
typedef struct fy_lanes_title {
    uint64_t number, geometry;
    uint32_t op, mode, dtype, rank;
    uint32_t which, spare; /* 0: it has its number */
} fy_lanes_title;

/* A call: what a kernel is given. */
typedef struct fy_lanes_call {
    fy_lanes_tables tables;
    fy_lanes_watch watch;
    fy_lanes_title title;
    uint64_t in, out;
    uint64_t n_elements, lane_elements, block_elements; /* of a piece */
    uint64_t cell_bytes[FY_LANES_MOST_EDGES];
    uint32_t n_lanes;
    uint32_t element_bytes;
    uint32_t is_wide;   /* all pieces of the input and the output lie at multiples of 16 bytes */
    uint32_t has_fleet; /* some places are a fleet's */
    uint32_t n_states;  /* lanes that there are, with a part in this call or without */
    uint32_t spare;
} fy_lanes_call;

#ifndef __cplusplus
_Static_assert(sizeof(fy_lanes_step) == 16 && sizeof(fy_lanes_sum) == 48 &&
                   sizeof(fy_lanes_place) == 48 && sizeof(fy_lanes_link) == 64 &&
                   sizeof(fy_lanes_edge) == 32 && sizeof(fy_lanes_header) == FY_LANES_LINE_BYTES,
               "tables are read 16 bytes at a time");
_Static_assert(sizeof(fy_lanes_state) == 192 && sizeof(fy_lanes_report) == 128 &&
                   sizeof(fy_lanes_board) == 128 && sizeof(fy_lanes_call) == 344,
               "no padding, and lines of their own");
#endif

#endif
