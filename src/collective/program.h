/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_PROGRAM_H
#define FY_COLLECTIVE_PROGRAM_H

#include "collective/schedule.h"
#include "exec/sum.h"

#include <ferry/mixed_comm.h>

#include <stdatomic.h>

/*
 * What a handle's calls run: constant from the moment it is opened, and without a pointer to
 * anybody's memory. A kernel would be given this, a call, and where the boxes lie.
 */

/* The first line of every message: who waits for the message compares it with its own call. */
typedef struct fy_mix_header {
    _Atomic uint64_t epoch; /* the edge's use, plus one; written last */
    uint64_t call;
    uint64_t count; /* elements of a piece */
    uint32_t op, mode;
    uint32_t dtype, rank;
    uint64_t geometry; /* lanes and block: these must agree too */
    uint64_t spare[2];
} fy_mix_header;
_Static_assert(sizeof(fy_mix_header) == FY_MIX_LINE_BYTES, "a header is one line");

typedef enum fy_mix_region_index {
    FY_MIX_REGION_INSIDE = 0,
    FY_MIX_REGION_BETWEEN,
    FY_MIX_N_REGIONS
} fy_mix_region_index;

/* Where an edge's boxes lie within a lane's part of a region; the same on all ranks. */
typedef struct fy_mix_box {
    uint32_t region;        /* fy_mix_region_index */
    uint64_t message_bytes; /* with its header; 0: the edge is never used */
    uint64_t outbox, outbox_slot;
    uint64_t inbox, inbox_slot;
} fy_mix_box;

typedef struct fy_mix_layout {
    fy_mix_box boxes[FY_MIX_N_EDGES];
    uint32_t n_slots; /* that boxes have */
    uint64_t lane_bytes[FY_MIX_N_REGIONS];
    uint64_t most_elements; /* of a block */
} fy_mix_layout;

typedef struct fy_mix_program {
    fy_topology topology;
    fy_sum_type type;
    uint32_t dtype, element_bytes;
    uint32_t n_lanes;
    bool mapped; /* ranks of a node, on every node, read and write each other's boxes in place */
    bool adds;   /* see fy_mix_schedule_options; of handles that are not deterministic */
    fy_mix_schedule *schedules[FERRY_MIXED_N_OPS][FERRY_MIXED_N_MODES]; /* NULL: none */
    fy_mix_layout layout;
    fy_geometry_limits limits;
} fy_mix_program;

/*
 * program.c: pure. topology, type, n_lanes and mapped are set; the rest follows from the options: a
 * schedule of each operation in each mode that the topology has, boxes and limits.
 * FERRY_ERR_NO_MEMORY is the only failure; what there is then is for cleanup.
 */
ferry_status fy_mix_program_make(fy_mix_program *program, const ferry_mixed_comm_options *options,
                                 ferry_error *error);
void fy_mix_program_take_type(fy_mix_program *program, uint32_t dtype);
void fy_mix_program_cleanup(fy_mix_program *program); /* zeroed is allowed */

/* layout.c: pure. Boxes for all schedules with blocks of most_elements. */
void fy_mix_layout_make(const fy_mix_program *program, uint64_t most_elements,
                        fy_mix_layout *layout_out);
/*
 * The largest blocks, a power of two in bytes, whose boxes take at most `bytes` for all lanes: no
 * more than is useful, unless wished_bytes of a block, by the caller, ask for it.
 */
enum { FY_MIX_MOST_BLOCK_BYTES = 64 << 20 };
uint64_t fy_mix_layout_fit(const fy_mix_program *program, uint64_t wished_bytes, uint64_t bytes);

#endif
