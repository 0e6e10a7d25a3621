/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A schedule in the form that kernels read: numbers of ranks and edges have become addresses. */
#include "base/checked.h"
#include "collective/kernel.h"

#include <string.h>

enum { ROW_BYTES = 16 }; /* tables begin at multiples of it */

/* What is being written. */
typedef struct writer {
    const fy_mix_program *program;
    const fy_mix_schedule *schedule;
    const fy_mix_boxes *boxes;
    uint64_t address;
    char *bytes;
    uint64_t used;
} writer;

static uint64_t rounded(uint64_t bytes)
{
    return fy_ceil_div(bytes, ROW_BYTES) * ROW_BYTES;
}

/* Targets stand behind all sources in the table of places. */
static uint64_t count_places(const fy_mix_schedule *schedule)
{
    uint64_t n = schedule->n_places;
    for (uint32_t i = 0; i < schedule->n_sums; i++) {
        n += schedule->sums[i].n_targets;
    }
    return n;
}

uint64_t fy_mix_tables_bytes(const fy_mix_schedule *schedule)
{
    const fy_program *program = &schedule->program;
    return rounded(program->n_blocks * sizeof(fy_lanes_stage)) +
           program->n_steps * sizeof(fy_lanes_step) + schedule->n_sums * sizeof(fy_lanes_sum) +
           count_places(schedule) * sizeof(fy_lanes_place) +
           schedule->n_links * sizeof(fy_lanes_link) + FY_MIX_N_EDGES * sizeof(fy_lanes_edge);
}

static void *take(writer *w, uint64_t bytes, uint64_t *address_out)
{
    void *at = w->bytes + w->used;
    *address_out = w->address + w->used;
    w->used += rounded(bytes);
    return at;
}

/* A message of an edge, of lane 0 in slot 0, in the boxes of a rank: its header. */
static uint64_t message_at(const writer *w, uint32_t rank, uint32_t edge, bool inbox,
                           uint32_t message)
{
    const fy_mix_box *box = &w->program->layout.boxes[edge];
    return w->boxes->bases[rank] + w->boxes->regions[box->region] +
           (inbox ? box->inbox : box->outbox) + message * box->message_bytes;
}

static uint64_t slot_bytes(const writer *w, uint32_t edge, bool inbox)
{
    const fy_mix_box *box = &w->program->layout.boxes[edge];
    return inbox ? box->inbox_slot : box->outbox_slot;
}

static uint64_t lane_bytes(const writer *w, uint32_t edge)
{
    return w->program->layout.lane_bytes[w->program->layout.boxes[edge].region];
}

static void write_stages(writer *w, fy_lanes_tables *tables)
{
    static const uint32_t kinds[FY_N_STEP_KINDS] = {[FY_STEP_WAIT] = FY_LANES_WAIT,
                                                    [FY_STEP_SUM] = FY_LANES_SUM,
                                                    [FY_STEP_PUT] = FY_LANES_PUT,
                                                    [FY_STEP_SIGNAL] = FY_LANES_SIGNAL};
    const fy_program *program = &w->schedule->program;
    fy_lanes_stage *stages = take(w, program->n_blocks * sizeof *stages, &tables->stages);
    for (size_t i = 0; i < program->n_blocks; i++) {
        stages[i] = (fy_lanes_stage){program->blocks[i].first_step, program->blocks[i].n_steps};
    }
    fy_lanes_step *steps = take(w, program->n_steps * sizeof *steps, &tables->steps);
    for (size_t i = 0; i < program->n_steps; i++) {
        const fy_program_step *its = &program->steps[i];
        /* What all read in one place is announced once, by the first of these links. */
        bool is_once = its->kind == FY_STEP_SIGNAL &&
                       w->schedule->links[its->first].form == FY_MIX_FORM_MULTICAST;
        steps[i] = (fy_lanes_step){kinds[its->kind], its->first, is_once ? 1 : its->n, 0};
    }
    tables->n_stages = (uint32_t)program->n_blocks;
    tables->is_pipelined = program->lanes[0].is_pipelined;
}

/*
 * Fleets
 */

/* The fleet of all ranks of an edge inside a node. */
static fy_mix_fleet_kind fleet_of(const fy_topology *t, fy_mix_edge edge)
{
    bool is_tp = edge == FY_MIX_EDGE_SPREAD_TP || edge == FY_MIX_EDGE_JOIN_TP;
    return is_tp && t->local_tp < t->local_size ? FY_MIX_FLEET_TP : FY_MIX_FLEET_NODE;
}

/* What is read by others where it lies are the single messages of the edges inside a node. */
enum { FLEET_EDGES = FY_MIX_EDGE_NODE_TP };

/* What all of the node can read is read by a part of it, too, if it is for this part. */
static bool has_room(const fy_topology *t, fy_mix_fleet_kind kind, fy_mix_edge edge)
{
    return kind == fleet_of(t, edge) || (kind == FY_MIX_FLEET_TP && edge == FY_MIX_EDGE_SPREAD_ALL);
}

/* Where those of an edge begin in a lane's part of an area: all of their slots, side by side. */
static uint64_t fleet_offset(const fy_mix_program *program, fy_mix_fleet_kind kind, uint32_t edge)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < edge; i++) {
        if (has_room(&program->topology, kind, (fy_mix_edge)i)) {
            bytes += program->layout.n_slots * program->layout.boxes[i].message_bytes;
        }
    }
    return bytes;
}

uint64_t fy_mix_fleet_lane_bytes(const fy_mix_program *program, fy_mix_fleet_kind kind)
{
    return fleet_offset(program, kind, FLEET_EDGES);
}

/*
 * Whose ranks, all others, read a cell whole, and only once each; FY_MIX_N_FLEETS: those of none.
 * Where nothing is cut into parts a chunk is read by the tensor-parallel group that sums it, and
 * only who is in it can store to all of it.
 */
static fy_mix_fleet_kind readers_of(const writer *w, const fy_mix_place *its, uint32_t owner)
{
    const fy_topology *t = &w->program->topology;
    const fy_mix_edge_use *use = &w->schedule->edges[its->edge];
    bool is_join = its->edge == FY_MIX_EDGE_JOIN_ALL || its->edge == FY_MIX_EDGE_JOIN_TP;
    if (!use->multicast || (!is_join && (its->edge != FY_MIX_EDGE_SPREAD_ALL || use->n > 1))) {
        return FY_MIX_N_FLEETS;
    }
    if (is_join || !fy_mix_op_scatters(w->schedule->op)) {
        return fleet_of(t, (fy_mix_edge)its->edge);
    }
    bool is_for_own = its->cell % t->local_dp == t->local_dp_rank;
    return is_for_own && owner % t->local_size / t->local_tp == t->local_dp_rank
               ? fleet_of(t, FY_MIX_EDGE_JOIN_TP)
               : FY_MIX_N_FLEETS;
}

/* Where a box is that lies in memory of a fleet. */
typedef struct fleet_home {
    fy_mix_fleet_kind kind; /* FY_MIX_N_FLEETS: it lies in none */
    uint64_t area;
    bool is_for_all; /* of what a rank writes: it is stored on all devices */
} fleet_home;

static fleet_home find_home(const writer *w, const fy_mix_place *its, bool is_target)
{
    const fy_mix_boxes *boxes = w->boxes;
    const fy_topology *t = &w->program->topology;
    bool is_own = its->kind == FY_MIX_PLACE_OUTBOX, is_sum = its->kind == FY_MIX_PLACE_ADDED;
    bool is_added = is_sum || (is_own && w->schedule->edges[its->edge].added);
    uint32_t owner = is_own ? t->world_rank : its->rank;
    fleet_home home = {.kind = FY_MIX_N_FLEETS};
    if (is_added) {
        home.kind = fleet_of(t, (fy_mix_edge)its->edge);
    } else if (is_own || its->kind == FY_MIX_PLACE_PEER_OUTBOX) {
        home.kind = readers_of(w, its, owner);
    }
    if (home.kind == FY_MIX_N_FLEETS || boxes->fleets[home.kind].all == 0) {
        home.kind = FY_MIX_N_FLEETS;
        return home;
    }
    const fy_fleet_addresses *at = &boxes->fleets[home.kind];
    uint32_t n = fy_mix_edge_group_size(t, fy_mix_fleet_edge(home.kind));
    home.is_for_all = is_target && !is_added;
    home.area = (is_sum || home.is_for_all ? at->all : at->own) +
                (is_added ? n : owner % t->local_size % n) * boxes->area_bytes[home.kind];
    return home;
}

static fy_lanes_place place_of(const writer *w, const fy_mix_place *its, bool is_target)
{
    static const uint32_t origins[] = {[FY_MIX_ORIGIN_BLOCK] = FY_LANES_FROM_BLOCK,
                                       [FY_MIX_ORIGIN_PART] = FY_LANES_FROM_PART,
                                       [FY_MIX_ORIGIN_SUB] = FY_LANES_FROM_SUB};
    fy_lanes_place place = {.cell = its->cell, .passes = its->counts};
    if (its->kind == FY_MIX_PLACE_IN || its->kind == FY_MIX_PLACE_OUT) {
        place.where = its->kind == FY_MIX_PLACE_IN ? FY_LANES_IN : FY_LANES_OUT;
        return place;
    }
    bool inbox = its->kind == FY_MIX_PLACE_INBOX || its->kind == FY_MIX_PLACE_PEER_INBOX;
    bool own = its->kind == FY_MIX_PLACE_OUTBOX || its->kind == FY_MIX_PLACE_INBOX;
    uint32_t rank = own ? w->program->topology.world_rank : its->rank;
    fleet_home home = find_home(w, its, is_target);
    if (home.kind != FY_MIX_N_FLEETS) {
        place.base = home.area + fleet_offset(w->program, home.kind, its->edge);
        place.lane_bytes = fy_mix_fleet_lane_bytes(w->program, home.kind);
        place.slot_bytes = w->program->layout.boxes[its->edge].message_bytes;
    } else {
        place.base = message_at(w, rank, its->edge, inbox, its->message);
        place.lane_bytes = lane_bytes(w, its->edge);
        place.slot_bytes = slot_bytes(w, its->edge, inbox);
    }
    place.base += sizeof(fy_mix_header);
    place.where = FY_LANES_BOX;
    place.edge = its->edge;
    place.origin = origins[its->origin];
    place.use = its->use;
    return place;
}

static uint32_t type_of(const writer *w, bool is_partial)
{
    fy_sum_type type = is_partial ? FY_SUM_F32 : w->program->type;
    return type == FY_SUM_F16 ? FY_LANES_F16 : type == FY_SUM_BF16 ? FY_LANES_BF16 : FY_LANES_F32;
}

static void write_sums(writer *w, fy_lanes_tables *tables)
{
    const fy_mix_schedule *schedule = w->schedule;
    fy_lanes_sum *sums = take(w, schedule->n_sums * sizeof *sums, &tables->sums);
    fy_lanes_place *places = take(w, count_places(schedule) * sizeof *places, &tables->places);
    uint32_t n = schedule->n_places;
    for (uint32_t i = 0; i < schedule->n_places; i++) {
        places[i] = place_of(w, &schedule->places[i], false);
    }
    for (uint32_t i = 0; i < schedule->n_sums; i++) {
        const fy_mix_sum *its = &schedule->sums[i];
        sums[i] =
            (fy_lanes_sum){.n = its->cut.n,
                           .index = its->cut.index,
                           .n_sub = its->cut.n_sub,
                           .sub = its->cut.sub,
                           .first_source = its->first,
                           .n_sources = its->n,
                           .first_target = n,
                           .n_targets = its->n_targets,
                           .source_type = type_of(w, its->partial_sources),
                           .target_type = type_of(w, its->partial_targets),
                           .from_fleet = schedule->places[its->first].kind == FY_MIX_PLACE_ADDED};
        for (uint32_t k = 0; k < its->n_targets; k++) {
            bool is_for_all = find_home(w, &its->targets[k], true).is_for_all;
            sums[i].to_fleet |= (uint32_t)is_for_all << k;
            places[n++] = place_of(w, &its->targets[k], true);
        }
    }
}

/* Where a wait looks, or where who signals or puts writes. */
static fy_lanes_link link_of(const writer *w, fy_step_kind kind, const fy_mix_link *its)
{
    const fy_topology *t = &w->program->topology;
    fy_mix_edge edge = (fy_mix_edge)its->edge;
    bool waits = kind == FY_STEP_WAIT, shared = its->form == FY_MIX_FORM_MULTICAST;
    uint32_t sender = fy_mix_edge_is_ring(edge) ? 0 : fy_mix_edge_group_index(t, edge);
    uint32_t rank = waits == shared ? its->rank : t->world_rank;
    uint32_t message = shared ? 0 : waits ? its->message : sender;
    return (fy_lanes_link){.header = message_at(w, rank, edge, !shared, message),
                           .lane_bytes = lane_bytes(w, edge),
                           .slot_bytes = slot_bytes(w, edge, !shared),
                           .from = message_at(w, t->world_rank, edge, false, its->message),
                           .from_slot_bytes = slot_bytes(w, edge, false),
                           .edge = its->edge,
                           .use = its->use,
                           .rank = its->rank,
                           .is_near = its->rank / t->local_size == t->inter_rank};
}

static void write_links(writer *w, fy_lanes_tables *tables)
{
    const fy_program *program = &w->schedule->program;
    fy_lanes_link *links = take(w, w->schedule->n_links * sizeof *links, &tables->links);
    for (size_t i = 0; i < program->n_steps; i++) {
        const fy_program_step *step = &program->steps[i];
        for (uint32_t k = 0; step->kind != FY_STEP_SUM && k < step->n; k++) {
            links[step->first + k] =
                link_of(w, (fy_step_kind)step->kind, &w->schedule->links[step->first + k]);
        }
    }
}

static void write_edges(writer *w, fy_lanes_tables *tables)
{
    fy_lanes_edge *edges = take(w, FY_MIX_N_EDGES * sizeof *edges, &tables->edges);
    for (uint32_t i = 0; i < FY_MIX_N_EDGES; i++) {
        const fy_mix_edge_use *use = &w->schedule->edges[i];
        edges[i] = (fy_lanes_edge){
            .uses = use->uses,
            .n = use->n,
            .n_sub = use->n_sub,
            .origin = use->origin == FY_MIX_ORIGIN_BLOCK  ? FY_LANES_FROM_BLOCK
                      : use->origin == FY_MIX_ORIGIN_PART ? FY_LANES_FROM_PART
                                                          : FY_LANES_FROM_SUB,
            .element_bytes = use->partial ? (uint32_t)sizeof(float) : w->program->element_bytes,
            .n_cells = use->n_cells};
    }
    tables->n_edges = FY_MIX_N_EDGES;
}

void fy_mix_tables_write(const fy_mix_program *program, const fy_mix_schedule *schedule,
                         const fy_mix_boxes *boxes, uint64_t address, void *bytes,
                         fy_lanes_tables *tables_out)
{
    writer w = {.program = program,
                .schedule = schedule,
                .boxes = boxes,
                .address = address,
                .bytes = bytes};
    memset(bytes, 0, fy_mix_tables_bytes(schedule));
    *tables_out = (fy_lanes_tables){.n_slots = program->layout.n_slots};
    write_stages(&w, tables_out);
    write_sums(&w, tables_out);
    write_links(&w, tables_out);
    write_edges(&w, tables_out);
}
