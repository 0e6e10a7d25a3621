/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Where boxes lie: one layout for all schedules of a handle, the same on all ranks. */
#include "base/checked.h"
#include "collective/program.h"

/* Rings go wherever their ranks are, so with several nodes they are part of what is between. */
static fy_mix_region_index region_of(const fy_mix_program *program, fy_mix_edge edge)
{
    bool across = program->topology.inter_size > 1;
    return across && (fy_mix_edge_is_between(edge) || fy_mix_edge_is_ring(edge))
               ? FY_MIX_REGION_BETWEEN
               : FY_MIX_REGION_INSIDE;
}

/* What the most demanding schedule needs of an edge. */
typedef struct edge_needs {
    uint64_t messages, senders, message_bytes;
} edge_needs;

static edge_needs needs_of(const fy_mix_program *program, fy_mix_edge edge, uint64_t most_elements)
{
    edge_needs needs = {0, 0, 0};
    for (uint32_t op = 0; op < FERRY_MIXED_N_OPS; op++) {
        for (uint32_t mode = 0; mode < FERRY_MIXED_N_MODES; mode++) {
            const fy_mix_schedule *schedule = program->schedules[op][mode];
            if (schedule == NULL || schedule->edges[edge].uses == 0) {
                continue;
            }
            const fy_mix_edge_use *use = &schedule->edges[edge];
            uint64_t cell = fy_mix_cell_bytes(use, most_elements, program->element_bytes);
            needs.messages = fy_max(needs.messages, use->n_messages);
            needs.senders = fy_max(needs.senders, use->n_senders);
            needs.message_bytes =
                fy_max(needs.message_bytes, sizeof(fy_mix_header) + use->n_cells * cell);
        }
    }
    return needs;
}

void fy_mix_layout_make(const fy_mix_program *program, uint64_t most_elements,
                        fy_mix_layout *layout_out)
{
    fy_mix_layout layout = {.n_slots = FY_MIX_N_SLOTS, .most_elements = most_elements};
    for (int edge = 0; edge < FY_MIX_N_EDGES; edge++) {
        edge_needs needs = needs_of(program, (fy_mix_edge)edge, most_elements);
        fy_mix_region_index in = region_of(program, (fy_mix_edge)edge);
        uint64_t *end = &layout.lane_bytes[in];
        fy_mix_box *box = &layout.boxes[edge];
        box->region = in;
        box->message_bytes = needs.message_bytes;
        box->outbox_slot = needs.messages * needs.message_bytes;
        box->inbox_slot = needs.senders * needs.message_bytes;
        box->outbox = *end;
        box->inbox = box->outbox + layout.n_slots * box->outbox_slot;
        *end = box->inbox + layout.n_slots * box->inbox_slot;
    }
    *layout_out = layout;
}

/*
 * Larger blocks leave the caches inside a node, and lose between nodes: what several peers send to
 * one at once must fit into the switch before it.
 */
enum { MOST_INSIDE_BYTES = 64 << 10, MOST_BETWEEN_BYTES = 128 << 10 };

uint64_t fy_mix_layout_fit(const fy_mix_program *program, uint64_t wished_bytes, uint64_t bytes)
{
    fy_mix_layout layout;
    uint64_t block_bytes =
        program->topology.inter_size > 1 ? MOST_BETWEEN_BYTES : MOST_INSIDE_BYTES;
    while (block_bytes < wished_bytes && block_bytes < FY_MIX_MOST_BLOCK_BYTES) {
        block_bytes *= 2;
    }
    for (; block_bytes > FY_MIX_LINE_BYTES; block_bytes /= 2) {
        fy_mix_layout_make(program, block_bytes / program->element_bytes, &layout);
        uint64_t lane =
            layout.lane_bytes[FY_MIX_REGION_INSIDE] + layout.lane_bytes[FY_MIX_REGION_BETWEEN];
        if (lane * program->n_lanes <= bytes) {
            break;
        }
    }
    return block_bytes / program->element_bytes;
}
