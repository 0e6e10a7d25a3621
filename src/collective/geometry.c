/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "collective/geometry.h"

#include "base/checked.h"

/* Limits that hold together: 1 <= least <= most. */
typedef struct block_limits {
    uint64_t least, most; /* lines */
    uint64_t steps;
} block_limits;

static block_limits limits_of(const fy_geometry_limits *limits)
{
    uint64_t most = fy_max(limits->most_lines, 1);
    block_limits b;
    b.most = limits->max_lines == 0 ? most : fy_min(limits->max_lines, most);
    b.least = fy_max(fy_min(limits->min_lines, b.most), 1);
    b.steps = fy_max(limits->min_steps, 1);
    return b;
}

/* Rounding up makes the last range, or the last block, the one that is shorter. */
static uint64_t block_lines(const block_limits *b, uint64_t lane_lines)
{
    if (lane_lines <= b->least) {
        return lane_lines;
    }
    uint64_t lines = fy_ceil_div(lane_lines, b->steps);
    if (lines == b->most && fy_ceil_div(lane_lines, lines) < b->steps) {
        lines = lane_lines / b->steps; /* blocks of few lines: rounding has cost steps */
    }
    return fy_min(fy_max(lines, b->least), b->most);
}

fy_geometry fy_geometry_of(const fy_geometry_limits *limits, uint64_t n_elements,
                           uint32_t element_bytes)
{
    block_limits b = limits_of(limits);
    uint64_t line_elements = FY_MIX_LINE_BYTES / element_bytes;
    uint64_t n_lines = fy_ceil_div(n_elements, line_elements);
    uint64_t n_lanes = fy_min(n_lines / b.least, fy_max(limits->n_lanes, 1));
    uint64_t lane_lines = fy_ceil_div(n_lines, fy_max(n_lanes, 1));
    return (fy_geometry){
        .n_lanes = (uint32_t)fy_ceil_div(n_lines, lane_lines),
        .lane_elements = lane_lines * line_elements,
        .block_elements = block_lines(&b, lane_lines) * line_elements,
        .n_elements = n_elements,
    };
}

uint64_t fy_geometry_lane_begin(const fy_geometry *geometry, uint32_t lane)
{
    return lane < geometry->n_lanes ? lane * geometry->lane_elements : 0;
}

uint64_t fy_geometry_lane_length(const fy_geometry *geometry, uint32_t lane)
{
    if (lane >= geometry->n_lanes) {
        return 0;
    }
    return fy_min(geometry->lane_elements, geometry->n_elements - lane * geometry->lane_elements);
}

uint64_t fy_geometry_lane_steps(const fy_geometry *geometry, uint32_t lane)
{
    return fy_ceil_div(fy_geometry_lane_length(geometry, lane), geometry->block_elements);
}

static uint64_t part_elements(uint64_t n_elements, uint32_t n, uint32_t line_elements)
{
    return fy_ceil_div(fy_ceil_div(n_elements, line_elements), n) * line_elements;
}

fy_mix_span fy_mix_part_of(uint64_t n_elements, uint32_t n, uint32_t index, uint32_t line_elements)
{
    uint64_t each = part_elements(n_elements, n, line_elements);
    uint64_t begin = fy_min(index * each, n_elements);
    return (fy_mix_span){begin, fy_min(each, n_elements - begin)};
}

uint64_t fy_mix_part_longest(uint64_t n_elements, uint32_t n, uint32_t line_elements)
{
    return fy_min(part_elements(n_elements, n, line_elements), n_elements); /* the first */
}
