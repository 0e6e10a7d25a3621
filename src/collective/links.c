/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Links of a schedule: headers that are written, put and waited for. */
#include "base/checked.h"
#include "collective/lane.h"

#include <string.h>

static uint64_t number_of(const fy_mix_lane *lane, const fy_mix_link *link, uint64_t step)
{
    const fy_mix_edge_use *use = &lane->call->schedule->edges[link->edge];
    return lane->uses[link->edge] + step * use->uses + link->use;
}

/*
 * What tells an operation from another. The epoch comes last, and behind all bytes of the message:
 * the store orders them for who reads it.
 */
static void fill_header(const fy_mix_lane *lane, fy_mix_header *header)
{
    const fy_mix_call *call = lane->call;
    header->call = call->number;
    header->count = call->count;
    header->op = call->op;
    header->mode = call->mode;
    header->dtype = lane->program->dtype;
    header->rank = lane->program->topology.world_rank;
    header->geometry = call->geometry_key;
}

static bool agrees(const fy_mix_lane *lane, const fy_mix_header *header)
{
    const fy_mix_call *call = lane->call;
    return header->call == call->number && header->op == call->op && header->mode == call->mode &&
           header->count == call->count && header->dtype == lane->program->dtype &&
           header->geometry == call->geometry_key;
}

fy_progress fy_mix_fail_by_header(fy_mix_lane *lane, const fy_mix_header *header, uint32_t rank)
{
    char theirs[96], ours[96], gap[FY_MIX_GAP_BYTES];
    const fy_mix_call *call = lane->call;
    uint32_t self = lane->program->topology.world_rank;
    fy_mix_call_text(header->op, header->mode, header->count, theirs, sizeof theirs);
    fy_mix_call_text(call->op, call->mode, call->count, ours, sizeof ours);
    lane->status =
        fy_fail(&lane->error, FERRY_ERR_MISUSE,
                "mixed collective: call %llu of rank %u is %s, but call %llu of rank %u is %s%s; "
                "all ranks make the same calls in the same order",
                (unsigned long long)header->call, rank, theirs, (unsigned long long)call->number,
                self, ours, fy_mix_gap_text(rank, header->call, self, call->number, gap));
    return FY_PROGRESS_FAILED;
}

fy_progress fy_mix_fail_by_epoch(fy_mix_lane *lane, const fy_mix_link *link, uint64_t epoch,
                                 uint64_t number)
{
    lane->status =
        fy_fail(&lane->error, FERRY_ERR_MISUSE,
                "mixed collective: call %llu: rank %u has written use %llu of edge %s over "
                "use %llu, which rank %u has not read",
                (unsigned long long)lane->call->number, link->rank, (unsigned long long)epoch - 1,
                fy_mix_edge_name((fy_mix_edge)link->edge), (unsigned long long)number,
                lane->program->topology.world_rank);
    return FY_PROGRESS_FAILED;
}

static const fy_mix_header *awaited(const fy_mix_lane *lane, const fy_mix_link *link,
                                    uint64_t number)
{
    fy_mix_edge edge = (fy_mix_edge)link->edge;
    uint32_t region = lane->program->layout.boxes[edge].region;
    if (link->form == FY_MIX_FORM_MULTICAST) {
        char *base = lane->wires->peers[region][link->rank % lane->program->topology.local_size];
        return fy_mix_message_at(lane, base, edge, false, number, 0);
    }
    return fy_mix_message_at(lane, lane->wires->own[region], edge, true, number, link->message);
}

/* FY_PROGRESS_DONE where the link's message is there. */
static fy_progress look_at(fy_mix_lane *lane, const fy_mix_link *link, uint64_t step)
{
    uint64_t number = number_of(lane, link, step);
    const fy_mix_header *header = awaited(lane, link, number);
    uint64_t epoch = atomic_load(&header->epoch); /* in order, as bells ask */
    if (epoch < number + 1) {
        return FY_PROGRESS_BLOCKED;
    }
    if (!agrees(lane, header)) {
        return fy_mix_fail_by_header(lane, header, link->rank);
    }
    return epoch == number + 1 ? FY_PROGRESS_DONE : fy_mix_fail_by_epoch(lane, link, epoch, number);
}

fy_progress fy_mix_links_wait(void *context, uint32_t index, uint64_t number,
                              const fy_program_step *step)
{
    fy_mix_lane *lane = context;
    const fy_mix_link *links = lane->call->schedule->links + step->first;
    (void)index;
    while (lane->link < step->n) {
        fy_progress progress = look_at(lane, &links[lane->link], number);
        if (progress != FY_PROGRESS_DONE) {
            return progress;
        }
        lane->link++;
        lane->moved++;
    }
    lane->link = 0;
    lane->n_waits++;
    return FY_PROGRESS_DONE;
}

static void announce(fy_mix_header *header, uint64_t number)
{
    atomic_store(&header->epoch, number + 1);
}

static void ring(const fy_mix_lane *lane, uint32_t rank)
{
    fy_bell *bell = lane->wires->bells[rank % lane->program->topology.local_size];
    if (bell != NULL) {
        fy_bell_ring(bell);
    }
}

/*
 * Puts a message of the outbox, all but its epoch, which is the signal. The outbox may change again
 * when this slot's turn comes: by then the reader has answered, so the bytes have left. is_first:
 * nobody has been sent this message yet; later it is on its way and must not be touched.
 */
static bool put(fy_mix_lane *lane, const fy_mix_link *link, uint64_t step, bool is_first)
{
    fy_mix_edge edge = (fy_mix_edge)link->edge;
    uint64_t number = number_of(lane, link, step);
    const fy_mix_edge_use *use = &lane->call->schedule->edges[edge];
    const fy_mix_box *box = &lane->program->layout.boxes[edge];
    char *own = lane->wires->own[box->region];
    fy_mix_header *header = fy_mix_message_at(lane, own, edge, false, number, link->message);
    uint32_t element_bytes = lane->program->element_bytes;
    uint64_t elements =
        fy_mix_cell_elements(use, fy_mix_lane_block(lane, step), FY_MIX_LINE_BYTES / element_bytes);
    uint64_t bytes = elements * (use->partial ? sizeof(float) : element_bytes);
    uint32_t sender =
        fy_mix_edge_is_ring(edge) ? 0 : fy_mix_edge_group_index(&lane->program->topology, edge);
    fy_mix_header *there = fy_mix_message_at(lane, own, edge, true, number, sender);
    uint64_t at = (uint64_t)((char *)there - own);
    if (is_first) {
        fill_header(lane, header);
    }
    ferry_buffer source = ferry_buffer_of(
        &header->call, sizeof *header - sizeof header->epoch +
                           (use->n_cells - 1) * lane->call->cell_bytes[edge] + bytes);

    ferry_signal signal = {lane->wires->regions[box->region], at, number + 1, FERRY_SIGNAL_SET};
    pthread_mutex_lock(&lane->wires->network);
    ferry_status status = ferry_transport_put_signal(
        lane->wires->transport, link->rank, lane->wires->regions[box->region],
        at + sizeof header->epoch, &source, &signal, NULL, &lane->error);
    pthread_mutex_unlock(&lane->wires->network);
    if (link->rank / lane->program->topology.local_size == lane->program->topology.inter_rank) {
        lane->inside_written += use->n_cells * bytes;
    } else {
        lane->between += use->n_cells * bytes;
    }
    lane->status = status;
    return status == FERRY_OK;
}

static void store(fy_mix_lane *lane, const fy_mix_link *link, uint64_t step)
{
    fy_mix_edge edge = (fy_mix_edge)link->edge;
    uint64_t number = number_of(lane, link, step);
    uint32_t sender =
        fy_mix_edge_is_ring(edge) ? 0 : fy_mix_edge_group_index(&lane->program->topology, edge);
    uint32_t region = lane->program->layout.boxes[edge].region;
    char *base = lane->wires->peers[region][link->rank % lane->program->topology.local_size];
    fy_mix_header *header = fy_mix_message_at(lane, base, edge, true, number, sender);
    fill_header(lane, header);
    announce(header, number);
}

static void multicast(fy_mix_lane *lane, const fy_mix_link *link, uint64_t step)
{
    fy_mix_edge edge = (fy_mix_edge)link->edge;
    uint64_t number = number_of(lane, link, step);
    char *base = lane->wires->own[lane->program->layout.boxes[edge].region];
    fy_mix_header *header = fy_mix_message_at(lane, base, edge, false, number, 0);
    fill_header(lane, header);
    announce(header, number);
}

/* Whether the link before this one has put the same message. */
static bool was_put(const fy_mix_link *links, uint32_t i)
{
    const fy_mix_link *last = &links[i > 0 ? i - 1 : 0];
    return i > 0 && last->edge == links[i].edge && last->message == links[i].message;
}

fy_progress fy_mix_links_put(void *context, uint32_t index, uint64_t number,
                             const fy_program_step *step)
{
    fy_mix_lane *lane = context;
    const fy_mix_link *links = lane->call->schedule->links + step->first;
    (void)index;
    for (uint32_t i = 0; i < step->n; i++) {
        if (!put(lane, &links[i], number, !was_put(links, i))) {
            return FY_PROGRESS_FAILED;
        }
    }
    lane->moved++;
    return FY_PROGRESS_DONE;
}

fy_progress fy_mix_links_signal(void *context, uint32_t index, uint64_t number,
                                const fy_program_step *step)
{
    fy_mix_lane *lane = context;
    const fy_mix_link *links = lane->call->schedule->links + step->first;
    (void)index;
    for (uint32_t i = 0; i < step->n; i++) {
        if (links[i].form == FY_MIX_FORM_STORE) {
            store(lane, &links[i], number);
        } else if (i == 0) {
            multicast(lane, &links[i], number);
        }
        ring(lane, links[i].rank);
    }
    lane->moved++;
    return FY_PROGRESS_DONE;
}
