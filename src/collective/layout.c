/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Where boxes lie: one layout for all schedules of a handle, the same on all ranks. */
#include "base/checked.h"
#include "collective/comm.h"

/* Rings go wherever their ranks are, so with several nodes they are part of what is between. */
static fy_region_index region_of(const ferry_mixed_comm *comm, fy_edge edge)
{
    bool across = comm->topology.inter_size > 1;
    return across && (fy_edge_is_between(edge) || fy_edge_is_ring(edge)) ? FY_REGION_BETWEEN
                                                                         : FY_REGION_INSIDE;
}

/* What the most demanding schedule needs of an edge. */
typedef struct edge_needs {
    uint64_t messages, senders, message_bytes;
} edge_needs;

static edge_needs needs_of(const ferry_mixed_comm *comm, fy_edge edge, uint64_t most_elements)
{
    edge_needs needs = {0, 0, 0};
    for (uint32_t op = 0; op < FERRY_MIXED_N_OPS; op++) {
        for (uint32_t mode = 0; mode < FERRY_MIXED_N_MODES; mode++) {
            const fy_schedule *schedule = comm->schedules[op][mode];
            if (schedule == NULL || schedule->edges[edge].uses == 0) {
                continue;
            }
            const fy_edge_use *use = &schedule->edges[edge];
            uint64_t cell = fy_cell_bytes(use, most_elements, comm->element_bytes);
            needs.messages = fy_max(needs.messages, use->n_messages);
            needs.senders = fy_max(needs.senders, use->n_senders);
            needs.message_bytes =
                fy_max(needs.message_bytes, sizeof(fy_header) + use->n_cells * cell);
        }
    }
    return needs;
}

void fy_layout_make(const ferry_mixed_comm *comm, uint64_t most_elements, fy_layout *layout_out)
{
    fy_layout layout = {.most_elements = most_elements};
    for (int edge = 0; edge < FY_N_EDGES; edge++) {
        edge_needs needs = needs_of(comm, (fy_edge)edge, most_elements);
        fy_region_index in = region_of(comm, (fy_edge)edge);
        uint64_t *end = &layout.lane_bytes[in];
        fy_box *box = &layout.boxes[edge];
        box->region = in;
        box->message_bytes = needs.message_bytes;
        box->outbox_slot = needs.messages * needs.message_bytes;
        box->inbox_slot = needs.senders * needs.message_bytes;
        box->outbox = *end;
        box->inbox = box->outbox + FY_N_SLOTS * box->outbox_slot;
        *end = box->inbox + FY_N_SLOTS * box->inbox_slot;
    }
    *layout_out = layout;
}

/*
 * Larger blocks leave the caches inside a node, and lose between nodes: what several peers send to
 * one at once must fit into the switch before it.
 */
enum { MOST_INSIDE_BYTES = 64 << 10, MOST_BETWEEN_BYTES = 128 << 10 };

uint64_t fy_layout_fit(const ferry_mixed_comm *comm, uint64_t bytes)
{
    fy_layout layout;
    uint64_t wished = (uint64_t)comm->options.max_block_size * FERRY_MIXED_BLOCK_BYTES;
    uint64_t block_bytes = comm->topology.inter_size > 1 ? MOST_BETWEEN_BYTES : MOST_INSIDE_BYTES;
    while (block_bytes < wished && block_bytes < FY_MOST_BLOCK_BYTES) {
        block_bytes *= 2;
    }
    for (; block_bytes > FY_LINE_BYTES; block_bytes /= 2) {
        fy_layout_make(comm, block_bytes / comm->element_bytes, &layout);
        uint64_t lane = layout.lane_bytes[FY_REGION_INSIDE] + layout.lane_bytes[FY_REGION_BETWEEN];
        if (lane * comm->n_lanes <= bytes) {
            break;
        }
    }
    return block_bytes / comm->element_bytes;
}
