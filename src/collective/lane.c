/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane runs a schedule's program over its range of a message. It never waits: it goes on from
 * where it stood until a wait's bytes are not there yet, and says so; comm_run.c sleeps.
 *
 * A pipelined program goes diagonally: in turn t stage 0 of step t, then stage 1 of step t - 1,
 * and so on. So step k + 1 is sent before step k is received, and every rank writes a use of an
 * edge after it has read the use two before; docs/collectives.md proves from this that
 * FY_MIX_N_SLOTS slots are enough, and that one fewer is not.
 */
#include "collective/lane.h"
#include "base/checked.h"
#include "host/copy.h"

void fy_mix_lane_begin(fy_mix_lane *lane)
{
    const fy_mix_call *call = lane->call;
    lane->begin = fy_geometry_lane_begin(&call->geometry, lane->index);
    lane->length = fy_geometry_lane_length(&call->geometry, lane->index);
    lane->n_steps = fy_geometry_lane_steps(&call->geometry, lane->index);
    lane->link = 0;
    lane->done = lane->verbs->whole != NULL ? lane->index > 0 : lane->n_steps == 0;
    if (!lane->done && lane->verbs->whole == NULL) {
        fy_drive_begin(&lane->drive, &call->schedule->program, &lane->verbs->steps, lane,
                       lane->n_steps);
    }
}

/* A step of a lane, and the elements of a piece that it is about. */
typedef struct turn_step {
    uint64_t number;
    uint64_t begin, length; /* in a chunk */
} turn_step;

uint64_t fy_mix_lane_block(const fy_mix_lane *lane, uint64_t number)
{
    uint64_t block = lane->call->geometry.block_elements;
    return fy_min(block, lane->length - number * block);
}

static turn_step step_of(const fy_mix_lane *lane, uint64_t number)
{
    return (turn_step){number, lane->begin + number * lane->call->geometry.block_elements,
                       fy_mix_lane_block(lane, number)};
}

/* The piece that a sum is about, and where the part begins of which it is a sub-part. */
typedef struct turn_piece {
    fy_mix_span span;
    uint64_t part_begin;
} turn_piece;

static turn_piece piece_of(const fy_mix_lane *lane, const fy_mix_cut *cut, const turn_step *step)
{
    uint32_t line = FY_MIX_LINE_BYTES / lane->program->element_bytes;
    fy_mix_cut part = {cut->n, cut->index, 1, 0};
    turn_piece piece = {fy_mix_cut_span(&part, step->length, line), 0};
    piece.part_begin = piece.span.begin;
    if (cut->n_sub > 1) {
        fy_mix_span sub = fy_mix_part_of(piece.span.length, cut->n_sub, cut->sub, line);
        piece.span = (fy_mix_span){piece.part_begin + sub.begin, sub.length};
    }
    return piece;
}

static char *base_of(const fy_mix_lane *lane, const fy_mix_place *place, uint32_t region)
{
    if (place->kind == FY_MIX_PLACE_OUTBOX || place->kind == FY_MIX_PLACE_INBOX) {
        return lane->wires->own[region];
    }
    return lane->wires->peers[region][place->rank % lane->program->topology.local_size];
}

static char *in_box(const fy_mix_lane *lane, const fy_mix_place *place, const turn_step *step,
                    const turn_piece *piece)
{
    fy_mix_edge edge = (fy_mix_edge)place->edge;
    const fy_mix_edge_use *use = &lane->call->schedule->edges[edge];
    uint64_t number = lane->uses[edge] + step->number * use->uses + place->use;
    bool inbox = place->kind == FY_MIX_PLACE_INBOX || place->kind == FY_MIX_PLACE_PEER_INBOX;
    char *base = base_of(lane, place, lane->program->layout.boxes[edge].region);
    char *data = (char *)(fy_mix_message_at(lane, base, edge, inbox, number, place->message) + 1);
    uint64_t origin = place->origin == FY_MIX_ORIGIN_BLOCK  ? 0
                      : place->origin == FY_MIX_ORIGIN_PART ? piece->part_begin
                                                            : piece->span.begin;
    size_t bytes = use->partial ? sizeof(float) : lane->program->element_bytes;
    return data + place->cell * lane->call->cell_bytes[edge] + (piece->span.begin - origin) * bytes;
}

static char *resolve(const fy_mix_lane *lane, const fy_mix_place *place, const turn_step *step,
                     const turn_piece *piece)
{
    const fy_mix_call *call = lane->call;
    if (place->kind != FY_MIX_PLACE_IN && place->kind != FY_MIX_PLACE_OUT) {
        return in_box(lane, place, step, piece);
    }
    uint64_t element = place->cell * call->geometry.n_elements + step->begin + piece->span.begin;
    uint64_t at = element * lane->program->element_bytes;
    return place->kind == FY_MIX_PLACE_IN ? (char *)(uintptr_t)call->in + at : call->out + at;
}

/*
 * Into the caller's memory, field by field: a struct that is returned is copied by wide loads right
 * behind narrow stores, which waits for these, and small messages feel it.
 */
void fy_mix_lane_sum(fy_mix_lane *lane, const fy_mix_sum *its, uint64_t number, bool counts,
                     fy_mix_summing *s)
{
    const fy_mix_program *program = lane->program;
    const fy_mix_place *places = lane->call->schedule->places + its->first;
    turn_step step = step_of(lane, number);
    turn_piece piece = piece_of(lane, &its->cut, &step);
    s->places = places;
    s->is_nothing = piece.span.length == 0;
    s->sum.sources = lane->sources;
    s->sum.n_sources = its->n;
    s->sum.source_type = its->partial_sources ? FY_SUM_F32 : program->type;
    s->sum.target_type = its->partial_targets ? FY_SUM_F32 : program->type;
    s->sum.targets[1] = NULL;
    s->sum.n = piece.span.length;
    s->sum.stream = lane->call->stream && its->targets[0].kind == FY_MIX_PLACE_OUT;
    for (uint32_t i = 0; i < its->n && !s->is_nothing; i++) {
        lane->sources[i] = resolve(lane, &places[i], &step, &piece);
        lane->inside_read +=
            counts && places[i].counts ? s->sum.n * fy_sum_type_bytes(s->sum.source_type) : 0;
    }
    for (uint32_t i = 0; i < its->n_targets && !s->is_nothing; i++) {
        const fy_mix_place *target = &its->targets[i];
        s->sum.targets[i] = resolve(lane, target, &step, &piece);
        lane->inside_written +=
            counts && target->counts ? s->sum.n * fy_sum_type_bytes(s->sum.target_type) : 0;
    }
    s->is_nothing = s->is_nothing ||
                    (its->n == 1 && its->n_targets == 1 && s->sum.targets[0] == lane->sources[0]);
}

fy_progress fy_mix_lane_run_sum(void *context, uint32_t index, uint64_t number,
                                const fy_program_step *step)
{
    fy_mix_lane *lane = context;
    fy_mix_summing s;
    (void)index;
    fy_mix_lane_sum(lane, &lane->call->schedule->sums[step->first], number, true, &s);
    if (!s.is_nothing) {
        fy_sum_run(&s.sum);
    }
    lane->moved++;
    return FY_PROGRESS_DONE;
}

/* What was written past the cache is in place for whoever hears of it. */
static fy_progress fence(fy_mix_lane *lane)
{
    (void)lane;
    fy_copy_fence();
    return FY_PROGRESS_DONE;
}

static int64_t now_ns(const fy_mix_verbs *verbs)
{
    (void)verbs;
    return fy_now_ns();
}

const fy_mix_verbs fy_mix_host_verbs = {.steps.run = {[FY_STEP_WAIT] = fy_mix_links_wait,
                                                      [FY_STEP_SUM] = fy_mix_lane_run_sum,
                                                      [FY_STEP_PUT] = fy_mix_links_put,
                                                      [FY_STEP_SIGNAL] = fy_mix_links_signal},
                                        .end = fence,
                                        .now_ns = now_ns};

static void end_call(fy_mix_lane *lane)
{
    const fy_mix_schedule *schedule = lane->call->schedule;
    for (uint32_t i = 0; i < schedule->n_used; i++) {
        uint32_t edge = schedule->used[i];
        lane->uses[edge] += schedule->edges[edge].uses * lane->n_steps;
    }
    lane->n_steps_done += lane->n_steps;
    lane->done = true;
    lane->moved++; /* a device's end may be all that was waited for */
}

fy_progress fy_mix_lane_advance(fy_mix_lane *lane)
{
    if (lane->done) {
        return FY_PROGRESS_DONE;
    }
    if (lane->verbs->whole != NULL) {
        fy_progress whole = lane->verbs->whole(lane);
        lane->done = whole == FY_PROGRESS_DONE;
        return whole;
    }
    fy_progress progress = fy_drive_go(&lane->drive, 0);
    if (progress == FY_PROGRESS_DONE) {
        progress = lane->verbs->end(lane);
    }
    if (progress == FY_PROGRESS_DONE) {
        end_call(lane);
    }
    return progress;
}

const fy_mix_link *fy_mix_lane_link(const fy_mix_lane *lane)
{
    if (lane->verbs->whole != NULL) {
        return &lane->call->schedule->links[lane->link];
    }
    return &lane->call->schedule->links[fy_drive_at(&lane->drive, 0)->first + lane->link];
}
