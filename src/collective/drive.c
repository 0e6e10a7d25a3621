/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane drives a schedule over its range of a message. It never waits: it goes on from where it
 * stood until a wait's bytes are not there yet, and says so; comm_run.c sleeps.
 *
 * A pipelined schedule goes diagonally: in turn t stage 0 of step t, then stage 1 of step t - 1,
 * and so on. So step k + 1 is sent before step k is received, and every rank writes a use of an
 * edge after it has read the use two before; docs/collectives.md proves from this that FY_N_SLOTS
 * slots are enough, and that one fewer is not.
 */
#include "base/checked.h"
#include "base/copy.h"
#include "collective/comm.h"

void fy_lane_begin(fy_lane *lane)
{
    const fy_call *call = &lane->comm->call;
    lane->begin = fy_geometry_lane_begin(&call->geometry, lane->index);
    lane->length = fy_geometry_lane_length(&call->geometry, lane->index);
    lane->n_steps = fy_geometry_lane_steps(&call->geometry, lane->index);
    lane->turn = 0;
    lane->stage = 0;
    lane->action = 0;
    lane->link = 0;
    lane->done = lane->n_steps == 0;
}

fy_header *fy_message_at(const fy_lane *lane, char *base, fy_edge edge, bool inbox, uint64_t number,
                         uint32_t message)
{
    const ferry_mixed_comm *comm = lane->comm;
    const fy_box *box = &comm->layout.boxes[edge];
    uint64_t slot = number % comm->n_slots;
    uint64_t at = lane->index * comm->layout.lane_bytes[box->region] + message * box->message_bytes;
    at += inbox ? box->inbox + slot * box->inbox_slot : box->outbox + slot * box->outbox_slot;
    return (fy_header *)(void *)(base + at);
}

/* A step of a lane, and the elements of a piece that it is about. */
typedef struct turn_step {
    uint64_t number;
    uint64_t begin, length; /* in a chunk */
} turn_step;

static turn_step step_of(const fy_lane *lane, uint64_t number)
{
    uint64_t block = lane->comm->call.geometry.block_elements;
    uint64_t skip = number * block;
    return (turn_step){number, lane->begin + skip, fy_min(block, lane->length - skip)};
}

/* The piece that an action is about, and where the part begins of which it is a sub-part. */
typedef struct turn_piece {
    fy_span span;
    uint64_t part_begin;
} turn_piece;

static turn_piece piece_of(const fy_lane *lane, const fy_cut *cut, const turn_step *step)
{
    uint32_t line = FY_LINE_BYTES / lane->comm->element_bytes;
    fy_cut part = {cut->n, cut->index, 1, 0};
    turn_piece piece = {fy_cut_span(&part, step->length, line), 0};
    piece.part_begin = piece.span.begin;
    if (cut->n_sub > 1) {
        fy_span sub = fy_part_of(piece.span.length, cut->n_sub, cut->sub, line);
        piece.span = (fy_span){piece.part_begin + sub.begin, sub.length};
    }
    return piece;
}

static char *base_of(const fy_lane *lane, const fy_place *place, uint32_t region)
{
    const ferry_mixed_comm *comm = lane->comm;
    if (place->kind == FY_PLACE_OUTBOX || place->kind == FY_PLACE_INBOX) {
        return comm->own[region];
    }
    return comm->peers[region][place->rank % comm->topology.local_size];
}

static char *in_box(const fy_lane *lane, const fy_place *place, const turn_step *step,
                    const turn_piece *piece)
{
    const ferry_mixed_comm *comm = lane->comm;
    fy_edge edge = (fy_edge)place->edge;
    const fy_edge_use *use = &comm->call.schedule->edges[edge];
    uint64_t number = lane->uses[edge] + step->number * use->uses + place->use;
    bool inbox = place->kind == FY_PLACE_INBOX || place->kind == FY_PLACE_PEER_INBOX;
    char *base = base_of(lane, place, comm->layout.boxes[edge].region);
    char *data = (char *)(fy_message_at(lane, base, edge, inbox, number, place->message) + 1);
    uint64_t origin = place->origin == FY_ORIGIN_BLOCK  ? 0
                      : place->origin == FY_ORIGIN_PART ? piece->part_begin
                                                        : piece->span.begin;
    size_t bytes = use->partial ? sizeof(float) : comm->element_bytes;
    return data + place->cell * comm->call.cell_bytes[edge] + (piece->span.begin - origin) * bytes;
}

static char *resolve(const fy_lane *lane, const fy_place *place, const turn_step *step,
                     const turn_piece *piece)
{
    const fy_call *call = &lane->comm->call;
    if (place->kind != FY_PLACE_IN && place->kind != FY_PLACE_OUT) {
        return in_box(lane, place, step, piece);
    }
    uint64_t element = place->cell * call->geometry.n_elements + step->begin + piece->span.begin;
    uint64_t at = element * lane->comm->element_bytes;
    return place->kind == FY_PLACE_IN ? (char *)(uintptr_t)call->in + at : call->out + at;
}

static void run_sum(fy_lane *lane, const fy_action *action, const turn_step *step)
{
    const ferry_mixed_comm *comm = lane->comm;
    const fy_place *places = comm->call.schedule->places + action->first;
    turn_piece piece = piece_of(lane, &action->cut, step);
    if (piece.span.length == 0) {
        return;
    }
    fy_sum sum = {.sources = lane->sources,
                  .n_sources = action->n,
                  .source_type = action->partial_sources ? FY_SUM_F32 : comm->type,
                  .target_type = action->partial_targets ? FY_SUM_F32 : comm->type,
                  .n = piece.span.length,
                  .stream = comm->call.stream && action->targets[0].kind == FY_PLACE_OUT};
    for (uint32_t i = 0; i < action->n; i++) {
        lane->sources[i] = resolve(lane, &places[i], step, &piece);
        lane->inside_read +=
            places[i].counts ? piece.span.length * fy_sum_type_bytes(sum.source_type) : 0;
    }
    for (uint32_t i = 0; i < action->n_targets; i++) {
        const fy_place *target = &action->targets[i];
        sum.targets[i] = resolve(lane, target, step, &piece);
        lane->inside_written +=
            target->counts ? piece.span.length * fy_sum_type_bytes(sum.target_type) : 0;
    }
    if (action->n == 1 && action->n_targets == 1 && sum.targets[0] == lane->sources[0]) {
        return; /* a copy in place */
    }
    fy_sum_run(&sum);
}

/* FY_LANE_DONE: this action is. */
static fy_progress run_action(fy_lane *lane, const fy_action *action, const turn_step *step)
{
    const ferry_mixed_comm *comm = lane->comm;
    if (comm->stall != NULL) {
        comm->stall(comm->stall_context, lane);
    }
    switch ((fy_action_kind)action->kind) {
    case FY_ACTION_SUM:
        run_sum(lane, action, step);
        return FY_LANE_DONE;
    case FY_ACTION_POST:
        return fy_links_post(lane, action, step->number) ? FY_LANE_DONE : FY_LANE_FAILED;
    default:
        return fy_links_wait(lane, action, step->number);
    }
}

static fy_progress run_stage(fy_lane *lane, uint64_t number)
{
    const fy_schedule *schedule = lane->comm->call.schedule;
    const fy_stage *stage = &schedule->stages[lane->stage];
    turn_step step = step_of(lane, number);
    while (lane->action < stage->n_actions) {
        const fy_action *action = &schedule->actions[stage->first_action + lane->action];
        fy_progress progress = run_action(lane, action, &step);
        if (progress != FY_LANE_DONE) {
            return progress;
        }
        lane->action++;
        lane->moved++;
    }
    return FY_LANE_DONE;
}

/* Turns of the pipeline; without one, as many as steps. */
static uint64_t turns_of(const fy_lane *lane, const fy_schedule *schedule)
{
    return schedule->pipelined ? lane->n_steps + schedule->n_stages - 1 : lane->n_steps;
}

/* Whether this turn has something for this stage, and which step that is. */
static bool has_step(const fy_lane *lane, const fy_schedule *schedule, uint64_t *number_out)
{
    if (!schedule->pipelined) {
        *number_out = lane->turn;
        return true;
    }
    *number_out = lane->turn - lane->stage;
    return lane->turn >= lane->stage && *number_out < lane->n_steps;
}

static void end_call(fy_lane *lane, const fy_schedule *schedule)
{
    for (int edge = 0; edge < FY_N_EDGES; edge++) {
        lane->uses[edge] += schedule->edges[edge].uses * lane->n_steps;
    }
    lane->n_steps_done += lane->n_steps;
    lane->done = true;
    fy_copy_fence(); /* what was written past the cache is in place for whoever hears of it */
}

fy_progress fy_lane_advance(fy_lane *lane)
{
    const fy_schedule *schedule = lane->comm->call.schedule;
    if (lane->done) {
        return FY_LANE_DONE;
    }
    for (uint64_t n_turns = turns_of(lane, schedule); lane->turn < n_turns; lane->turn++) {
        for (; lane->stage < schedule->n_stages; lane->stage++) {
            uint64_t number;
            if (has_step(lane, schedule, &number)) {
                fy_progress progress = run_stage(lane, number);
                if (progress != FY_LANE_DONE) {
                    return progress;
                }
                lane->action = 0;
            }
        }
        lane->stage = 0;
    }
    end_call(lane, schedule);
    return FY_LANE_DONE;
}
