/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_GEOMETRY_H
#define FY_COLLECTIVE_GEOMETRY_H

#include <stdint.h>

/*
 * How a message is cut, the same on all ranks; pure. The unit is a line of 64 bytes, as it is a
 * thread's vector on a GPU: a message of n elements in a chunk is cut into a range for each lane,
 * and each range into steps of one block; the last of each may be shorter.
 */
enum { FY_MIX_LINE_BYTES = 64 };

typedef struct fy_geometry_limits {
    uint32_t n_lanes;    /* the most lanes; at least 1 */
    uint32_t most_lines; /* of a block: what slots have room for; at least 1 */
    uint32_t max_lines;  /* of a block, by the caller; 0: no limit */
    uint32_t min_lines;  /* of a block of a message of several steps */
    uint32_t min_steps;  /* of a message whose blocks are the largest possible */
} fy_geometry_limits;

typedef struct fy_geometry {
    uint32_t n_lanes;        /* that have something to do */
    uint64_t lane_elements;  /* of each but the last, whose range may be shorter */
    uint64_t block_elements; /* of each step but a lane's last */
    uint64_t n_elements;
} fy_geometry;

/*
 * n_elements is at least 1; element_bytes divides a line.
 *
 * - Lanes: as many as have at least min_lines each, at least one, at most n_lanes; their ranges
 *   are whole lines and equal but for the last.
 * - Block: a range that is no longer than min_lines, and fits into a block, is one step. Else the
 *   block is the range divided by min_steps, but at least min_lines and at most the largest: the
 *   smaller of max_lines and most_lines, which also bounds min_lines.
 *
 * So min_lines holds only where there are several steps, and where blocks are the largest possible
 * there are at least min_steps of them.
 */
fy_geometry fy_geometry_of(const fy_geometry_limits *limits, uint64_t n_elements,
                           uint32_t element_bytes);

/* Elements of a lane's range, and where it begins; 0 for a lane that has none. */
uint64_t fy_geometry_lane_begin(const fy_geometry *geometry, uint32_t lane);
uint64_t fy_geometry_lane_length(const fy_geometry *geometry, uint32_t lane);
uint64_t fy_geometry_lane_steps(const fy_geometry *geometry, uint32_t lane);

/*
 * A block in parts: part `index` of n, which begin at whole lines of line_elements and are equal
 * but for the last ones, which may be shorter or empty. n is at least 1.
 */
typedef struct fy_mix_span {
    uint64_t begin, length;
} fy_mix_span;

fy_mix_span fy_mix_part_of(uint64_t n_elements, uint32_t n, uint32_t index, uint32_t line_elements);

/* The longest part that fy_mix_part_of gives: what must have room. */
uint64_t fy_mix_part_longest(uint64_t n_elements, uint32_t n, uint32_t line_elements);

#endif
