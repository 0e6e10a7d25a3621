/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Links of a schedule: headers that are written, put and waited for. */
#include "base/checked.h"
#include "collective/comm.h"
#include "world/bell.h"

#include <string.h>

static uint64_t number_of(const fy_lane *lane, const fy_action *action, fy_edge edge, uint64_t step)
{
    const fy_edge_use *use = &lane->comm->call.schedule->edges[edge];
    return lane->uses[edge] + step * use->uses + action->use;
}

/*
 * What tells an operation from another. The epoch comes last, and behind all bytes of the message:
 * the store orders them for who reads it.
 */
static void fill_header(const ferry_mixed_comm *comm, fy_header *header)
{
    const fy_call *call = &comm->call;
    header->call = call->number;
    header->count = call->geometry.n_elements;
    header->op = call->op;
    header->mode = call->mode;
    header->dtype = comm->options.dtype;
    header->rank = comm->topology.world_rank;
    header->geometry = call->geometry_key;
}

static bool agrees(const ferry_mixed_comm *comm, const fy_header *header)
{
    const fy_call *call = &comm->call;
    return header->call == call->number && header->op == call->op && header->mode == call->mode &&
           header->count == call->geometry.n_elements && header->dtype == comm->options.dtype &&
           header->geometry == call->geometry_key;
}

static void break_by_header(ferry_mixed_comm *comm, const fy_header *header, uint32_t rank)
{
    char theirs[96], ours[96];
    const fy_call *call = &comm->call;
    fy_call_text(header->op, header->mode, header->count, theirs, sizeof theirs);
    fy_call_text(call->op, call->mode, call->geometry.n_elements, ours, sizeof ours);
    fy_comm_break(comm, FERRY_ERR_MISUSE,
                  "mixed collective: call %llu of rank %u is %s, but call %llu of rank %u is %s; "
                  "all ranks make the same calls in the same order",
                  (unsigned long long)header->call, rank, theirs, (unsigned long long)call->number,
                  comm->topology.world_rank, ours);
}

static const fy_header *awaited(const fy_lane *lane, const fy_link *link, uint64_t number)
{
    const ferry_mixed_comm *comm = lane->comm;
    fy_edge edge = (fy_edge)link->edge;
    uint32_t region = comm->layout.boxes[edge].region;
    if (link->form == FY_FORM_MULTICAST) {
        char *base = comm->peers[region][link->rank % comm->topology.local_size];
        return fy_message_at(lane, base, edge, false, number, 0);
    }
    return fy_message_at(lane, comm->own[region], edge, true, number, link->message);
}

/* FY_LANE_DONE where the link's message is there. */
static fy_progress look_at(fy_lane *lane, const fy_action *action, const fy_link *link,
                           uint64_t step)
{
    ferry_mixed_comm *comm = lane->comm;
    uint64_t number = number_of(lane, action, (fy_edge)link->edge, step);
    const fy_header *header = awaited(lane, link, number);
    uint64_t epoch = atomic_load(&header->epoch); /* in order, as bells ask */
    if (comm->trusts_epochs) {
        return FY_LANE_DONE;
    }
    if (epoch < number + 1) {
        return FY_LANE_BLOCKED;
    }
    if (!agrees(comm, header)) {
        break_by_header(comm, header, link->rank);
        return FY_LANE_FAILED;
    }
    if (epoch != number + 1) {
        fy_comm_break(comm, FERRY_ERR_MISUSE,
                      "mixed collective: call %llu: rank %u has written use %llu of edge %s over "
                      "use %llu, which rank %u has not read",
                      (unsigned long long)comm->call.number, link->rank,
                      (unsigned long long)epoch - 1, fy_edge_name((fy_edge)link->edge),
                      (unsigned long long)number, comm->topology.world_rank);
        return FY_LANE_FAILED;
    }
    return FY_LANE_DONE;
}

fy_progress fy_links_wait(fy_lane *lane, const fy_action *action, uint64_t step)
{
    const fy_link *links = lane->comm->call.schedule->links + action->first;
    while (lane->link < action->n) {
        fy_progress progress = look_at(lane, action, &links[lane->link], step);
        if (progress != FY_LANE_DONE) {
            return progress;
        }
        lane->link++;
        lane->moved++;
    }
    lane->link = 0;
    lane->n_waits++;
    return FY_LANE_DONE;
}

static void announce(fy_header *header, uint64_t number)
{
    atomic_store(&header->epoch, number + 1);
}

static void ring(const ferry_mixed_comm *comm, uint32_t rank)
{
    fy_bell *bell = comm->bells[rank % comm->topology.local_size];
    if (bell != NULL) {
        fy_bell_ring(bell);
    }
}

/* Elements of a message's cell in a step, which may be shorter than a block. */
static uint64_t elements_of(const fy_lane *lane, fy_edge edge, uint64_t step)
{
    const ferry_mixed_comm *comm = lane->comm;
    uint64_t block = comm->call.geometry.block_elements;
    uint64_t n = fy_min(block, lane->length - step * block);
    return fy_cell_elements(&comm->call.schedule->edges[edge], n,
                            FY_LINE_BYTES / comm->element_bytes);
}

/*
 * Puts a message of the outbox, all but its epoch, which is the signal. The outbox may change again
 * when this slot's turn comes: by then the reader has answered, so the bytes have left. is_first:
 * nobody has been sent this message yet; later it is on its way and must not be touched.
 */
static bool put(fy_lane *lane, const fy_link *link, uint64_t number, uint64_t step, bool is_first)
{
    ferry_mixed_comm *comm = lane->comm;
    fy_edge edge = (fy_edge)link->edge;
    const fy_edge_use *use = &comm->call.schedule->edges[edge];
    const fy_box *box = &comm->layout.boxes[edge];
    char *own = comm->own[box->region];
    fy_header *header = fy_message_at(lane, own, edge, false, number, link->message);
    uint64_t bytes =
        elements_of(lane, edge, step) * (use->partial ? sizeof(float) : comm->element_bytes);
    uint32_t sender = fy_edge_is_ring(edge) ? 0 : fy_edge_group_index(&comm->topology, edge);
    fy_header *there = fy_message_at(lane, own, edge, true, number, sender);
    uint64_t at = (uint64_t)((char *)there - own);
    if (is_first) {
        fill_header(comm, header);
    }
    ferry_buffer source = ferry_buffer_of(
        &header->call, sizeof *header - sizeof header->epoch +
                           (use->n_cells - 1) * comm->call.cell_bytes[edge] + bytes);

    ferry_signal signal = {comm->regions[box->region], at, number + 1, FERRY_SIGNAL_SET};
    pthread_mutex_lock(&comm->network);
    ferry_status status =
        ferry_put_signal(comm->transport, link->rank, comm->regions[box->region],
                         at + sizeof header->epoch, &source, &signal, NULL, &lane->error);
    pthread_mutex_unlock(&comm->network);
    if (link->rank / comm->topology.local_size == comm->topology.inter_rank) {
        lane->inside_written += use->n_cells * bytes;
    } else {
        lane->between += use->n_cells * bytes;
    }
    if (status != FERRY_OK) {
        fy_comm_break(comm, status, "%s", lane->error.message);
    }
    return status == FERRY_OK;
}

static void store(fy_lane *lane, const fy_link *link, uint64_t number)
{
    ferry_mixed_comm *comm = lane->comm;
    fy_edge edge = (fy_edge)link->edge;
    uint32_t sender = fy_edge_is_ring(edge) ? 0 : fy_edge_group_index(&comm->topology, edge);
    uint32_t region = comm->layout.boxes[edge].region;
    char *base = comm->peers[region][link->rank % comm->topology.local_size];
    fy_header *header = fy_message_at(lane, base, edge, true, number, sender);
    fill_header(comm, header);
    announce(header, number);
}

static void multicast(fy_lane *lane, fy_edge edge, uint64_t number)
{
    ferry_mixed_comm *comm = lane->comm;
    char *base = comm->own[comm->layout.boxes[edge].region];
    fy_header *header = fy_message_at(lane, base, edge, false, number, 0);
    fill_header(comm, header);
    announce(header, number);
}

/* Whether the link before this one has put the same message. */
static bool was_put(const fy_link *links, uint32_t i)
{
    const fy_link *last = &links[i > 0 ? i - 1 : 0];
    return i > 0 && last->form == FY_FORM_PUT && last->edge == links[i].edge &&
           last->message == links[i].message;
}

bool fy_links_post(fy_lane *lane, const fy_action *action, uint64_t step)
{
    const fy_link *links = lane->comm->call.schedule->links + action->first;
    for (uint32_t i = 0; i < action->n; i++) {
        const fy_link *link = &links[i];
        uint64_t number = number_of(lane, action, (fy_edge)link->edge, step);
        if (link->form == FY_FORM_PUT) {
            if (!put(lane, link, number, step, !was_put(links, i))) {
                return false;
            }
        } else if (link->form == FY_FORM_STORE) {
            store(lane, link, number);
            ring(lane->comm, link->rank);
        } else {
            if (i == 0) {
                multicast(lane, (fy_edge)link->edge, number);
            }
            ring(lane->comm, link->rank);
        }
    }
    return true;
}
