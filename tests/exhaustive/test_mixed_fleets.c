/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Where kernels find messages if devices have multicast objects, in all topologies of up to 16
 * ranks: what a rank reads lies where that rank has written it who should have, in memory that the
 * reader reaches; nothing lies on anything else; and what docs/collectives.md says goes by objects
 * does.
 */
#include "collective/kernel.h"

#include "mixed_schedules.h"

enum { N_LANES = 2, BOXES = FY_MIX_N_FLEETS, N_SPACES };

/* Memory of a rank, in a space of addresses that all of the test's share; objects lie behind it. */
static uint64_t memory_of(uint32_t rank, uint32_t space)
{
    return ((uint64_t)rank * N_SPACES + space + 1) << 32;
}
static const uint64_t OBJECTS = UINT64_C(1) << 60;

static uint32_t space_at(uint64_t at)
{
    return (uint32_t)(((at & ~OBJECTS) >> 32) - 1) % N_SPACES;
}

static bool is_memory_of(uint64_t at, uint32_t rank)
{
    return ((at >> 32) - 1) / N_SPACES == rank;
}

/* A piece of memory, and what a rank writes there. */
typedef struct piece {
    uint64_t at, bytes;
    uint32_t edge, writer, message, cell, slot, lane;
} piece;

typedef struct pieces {
    piece *list;
    size_t n, room;
} pieces;

typedef struct world {
    const shape *s;
    uint32_t n_ranks;
    bool deterministic;
    fy_topology topologies[MOST_RANKS];
    fy_mix_program programs[MOST_RANKS];
    fy_mix_boxes boxes[MOST_RANKS];
    uint64_t bases[MOST_RANKS];
    pieces written; /* of one operation in one mode */
} world;

#define check_world(w, condition)                                                                  \
    check_at(condition, "local tp %u x dp %u, inter tp %u x dp %u%s", (w)->s->local_tp,            \
             (w)->s->local_dp, (w)->s->inter_tp, (w)->s->inter_dp,                                 \
             (w)->deterministic ? ", deterministic" : "")

/* Who is in a fleet of a rank, as docs/collectives.md has it; 0: there is none. */
static uint32_t members(const fy_topology *t, uint32_t fleet, uint32_t *first_out)
{
    uint32_t n = fleet == FY_MIX_FLEET_NODE ? t->local_size : t->local_tp;
    *first_out = t->world_rank - t->local_rank % n;
    return n == 1 || (fleet == FY_MIX_FLEET_TP && n == t->local_size) ? 0 : n;
}

static void begin_rank(world *w, uint32_t rank)
{
    ferry_mixed_comm_options options = FERRY_MIXED_COMM_OPTIONS_INIT;
    fy_mix_program *program = &w->programs[rank];
    fy_mix_boxes *boxes = &w->boxes[rank];
    ferry_error error;
    uint32_t first;
    options.deterministic = w->deterministic;
    options.staging_bytes = 1 << 18;
    w->topologies[rank] = make(w->s, rank);
    w->bases[rank] = memory_of(rank, BOXES);
    program->topology = w->topologies[rank];
    program->n_lanes = N_LANES;
    program->mapped = true;
    program->adds = !w->deterministic;
    fy_mix_program_take_type(program, FERRY_BF16);
    must(fy_mix_program_make(program, &options, &error), &error);
    boxes->bases = w->bases;
    boxes->regions[1] = program->layout.lane_bytes[0] * N_LANES;
    for (uint32_t fleet = 0; fleet < FY_MIX_N_FLEETS; fleet++) {
        uint32_t n = members(&w->topologies[rank], fleet, &first);
        check_world(w, (n > 0) == fy_mix_fleet_is_wanted(&w->topologies[rank], fleet));
        if (n > 0) {
            boxes->area_bytes[fleet] = fy_mix_fleet_lane_bytes(program, fleet) * N_LANES;
            boxes->fleets[fleet].own = memory_of(rank, fleet);
            boxes->fleets[fleet].all = OBJECTS + memory_of(first, fleet);
        }
    }
}

static void end_world(world *w)
{
    for (uint32_t rank = 0; rank < w->n_ranks; rank++) {
        fy_mix_program_cleanup(&w->programs[rank]);
    }
    free(w->written.list);
}

/* The tables of a rank for an operation in a mode. */
typedef struct tables {
    const fy_mix_schedule *schedule;
    char *bytes;
    const fy_lanes_sum *sums;
    const fy_lanes_place *places;
} tables;

static tables tables_of(const world *w, uint32_t rank, uint32_t op, uint32_t mode)
{
    enum { ADDRESS = 4096 };
    tables t = {.schedule = w->programs[rank].schedules[op][mode]};
    fy_lanes_tables at;
    t.bytes = calloc(1, fy_mix_tables_bytes(t.schedule));
    assert_non_null(t.bytes);
    fy_mix_tables_write(&w->programs[rank], t.schedule, &w->boxes[rank], ADDRESS, t.bytes, &at);
    t.sums = (const fy_lanes_sum *)(const void *)(t.bytes + at.sums - ADDRESS);
    t.places = (const fy_lanes_place *)(const void *)(t.bytes + at.places - ADDRESS);
    return t;
}

/* A cell of a box, of the first block of lane 0. */
static piece piece_of(const world *w, uint32_t rank, const fy_mix_schedule *s,
                      const fy_mix_place *its, const fy_lanes_place *place)
{
    const fy_mix_program *program = &w->programs[rank];
    uint64_t bytes =
        fy_mix_cell_bytes(&s->edges[its->edge], program->layout.most_elements, 2 /* of bf16 */);
    return (piece){.at = place->base + place->cell * bytes,
                   .bytes = bytes,
                   .edge = its->edge,
                   .writer = rank,
                   .message = its->message,
                   .cell = its->cell};
}

static void add(pieces *p, const piece *one)
{
    if (p->n == p->room) {
        p->room = p->room == 0 ? 1024 : 2 * p->room;
        p->list = realloc(p->list, p->room * sizeof *p->list);
        assert_non_null(p->list);
    }
    p->list[p->n++] = *one;
}

/* In all lanes and slots. */
static void add_all(world *w, piece one, const fy_lanes_place *place)
{
    uint64_t at = one.at;
    for (one.lane = 0; one.lane < N_LANES; one.lane++) {
        for (one.slot = 0; one.slot < FY_MIX_N_SLOTS; one.slot++) {
            one.at = at + one.lane * place->lane_bytes + one.slot * place->slot_bytes;
            add(&w->written, &one);
        }
    }
}

/* What goes to all goes into the memory of each, at the same place. */
static void add_target(world *w, piece one, const fy_lanes_place *place, bool is_for_all)
{
    const fy_topology *t = &w->topologies[one.writer];
    uint32_t first, fleet = space_at(one.at);
    if (!is_for_all) {
        check_world(w, is_memory_of(one.at, one.writer));
        add_all(w, one, place);
        return;
    }
    uint32_t n = members(t, fleet, &first);
    check_world(w, fleet < BOXES && n > 0 && one.at > OBJECTS);
    for (uint32_t i = 0; i < n; i++) {
        piece there = one;
        there.at = one.at - OBJECTS - memory_of(first, fleet) + memory_of(first + i, fleet);
        check_world(w, there.at + one.bytes + (N_LANES - 1) * place->lane_bytes +
                               (FY_MIX_N_SLOTS - 1) * place->slot_bytes <=
                           memory_of(first + i, fleet) +
                               (n + 1) * w->boxes[one.writer].area_bytes[fleet]);
        add_all(w, there, place);
    }
}

/* What all others of the node, or of the group, read whole. */
static bool goes_to_all(const fy_topology *t, const fy_mix_schedule *s, const fy_mix_place *its)
{
    bool waits = s->mode == FERRY_MIXED_FUSED_WAITS_MULTICAST;
    switch (its->edge) {
    case FY_MIX_EDGE_JOIN_ALL:
    case FY_MIX_EDGE_JOIN_TP:
        return true;
    case FY_MIX_EDGE_SPREAD_ALL: /* a chunk, of which the group of its data-parallel rank is one */
        return !op_rows[s->op].shrinks ||
               (waits && t->local_tp > 1 && its->cell % t->local_dp == t->local_dp_rank);
    default:
        return false;
    }
}

static uint64_t n_to_all, n_from_all, n_of_groups;

static void write_targets(world *w, uint32_t rank, const tables *t)
{
    for (uint32_t i = 0; i < t->schedule->n_sums; i++) {
        const fy_mix_sum *sum = &t->schedule->sums[i];
        for (uint32_t k = 0; k < sum->n_targets; k++) {
            const fy_lanes_place *place = &t->places[t->sums[i].first_target + k];
            bool is_for_all = (t->sums[i].to_fleet >> k & 1) != 0;
            if (sum->targets[k].kind != FY_MIX_PLACE_OUTBOX) {
                check_world(w, !is_for_all);
                continue;
            }
            piece one = piece_of(w, rank, t->schedule, &sum->targets[k], place);
            check_world(w, is_for_all ==
                               goes_to_all(&w->topologies[rank], t->schedule, &sum->targets[k]));
            n_to_all += is_for_all;
            add_target(w, one, place, is_for_all);
        }
    }
}

static int by_place(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    return x->at != y->at ? (x->at < y->at ? -1 : 1) : 0;
}

/* What is written in parts of a cell is written at one place several times, and nothing else is. */
static void check_apart(world *w)
{
    qsort(w->written.list, w->written.n, sizeof *w->written.list, by_place);
    for (size_t i = 1; i < w->written.n; i++) {
        const piece *a = &w->written.list[i - 1], *b = &w->written.list[i];
        bool same = a->edge == b->edge && a->writer == b->writer && a->message == b->message &&
                    a->cell == b->cell && a->slot == b->slot && a->lane == b->lane;
        check_world(w, same ? a->at == b->at : a->at + a->bytes <= b->at);
    }
}

static void check_source(const world *w, uint64_t at, const fy_mix_place *its, uint32_t writer)
{
    const piece wanted = {.at = at};
    const piece *found = bsearch(&wanted, w->written.list, w->written.n, sizeof wanted, by_place);
    check_world(w, found != NULL && found->edge == its->edge && found->writer == writer &&
                       found->cell == its->cell && found->lane == 0 && found->slot == 0);
    check_world(w, found == NULL || its->kind != FY_MIX_PLACE_OUTBOX ||
                       found->message == its->message);
}

/* In the memory of each. */
static void check_added(const world *w, uint32_t rank, const piece *one, const fy_mix_place *its)
{
    uint32_t first, fleet = space_at(one->at);
    uint32_t n = members(&w->topologies[rank], fleet, &first);
    bool is_node = its->edge == FY_MIX_EDGE_SPREAD_ALL;
    check_world(w, one->at > OBJECTS && !w->deterministic);
    check_world(w, n == (is_node ? w->s->local_tp * w->s->local_dp : w->s->local_tp));
    for (uint32_t i = 0; i < n; i++) {
        check_source(w, one->at - OBJECTS - memory_of(first, fleet) + memory_of(first + i, fleet),
                     its, first + i);
    }
    n_from_all++;
    n_of_groups += fleet == FY_MIX_FLEET_TP;
}

static void read_sources(world *w, uint32_t rank, const tables *t)
{
    const fy_topology *me = &w->topologies[rank];
    for (uint32_t i = 0; i < t->schedule->n_places; i++) {
        const fy_mix_place *its = &t->schedule->places[i];
        const fy_lanes_place *place = &t->places[i];
        piece one = piece_of(w, rank, t->schedule, its, place);
        if (its->kind == FY_MIX_PLACE_ADDED) {
            check_added(w, rank, &one, its);
        } else if (its->kind == FY_MIX_PLACE_OUTBOX) {
            check_source(w, one.at, its, rank);
            check_world(w, is_memory_of(one.at, rank));
        } else if (its->kind == FY_MIX_PLACE_PEER_OUTBOX) {
            const fy_topology *other = &w->topologies[its->rank];
            bool is_near =
                goes_to_all(me, t->schedule, its) &&
                (!op_rows[t->schedule->op].shrinks || other->local_dp_rank == me->local_dp_rank);
            check_source(w, one.at, its, its->rank);
            check_world(w, is_memory_of(one.at, is_near ? rank : its->rank));
            check_world(w, is_near == (space_at(one.at) != BOXES));
        }
    }
    for (uint32_t i = 0; i < t->schedule->n_sums; i++) {
        bool is_added = t->schedule->places[t->schedule->sums[i].first].kind == FY_MIX_PLACE_ADDED;
        check_world(w, (t->sums[i].from_fleet != 0) == is_added);
    }
}

static void check_mode(world *w, uint32_t op, uint32_t mode)
{
    tables all[MOST_RANKS];
    w->written.n = 0;
    for (uint32_t rank = 0; rank < w->n_ranks; rank++) {
        all[rank] = tables_of(w, rank, op, mode);
        write_targets(w, rank, &all[rank]);
    }
    check_apart(w);
    for (uint32_t rank = 0; rank < w->n_ranks; rank++) {
        read_sources(w, rank, &all[rank]);
        free(all[rank].bytes);
    }
}

static void check_world_of(const shape *s, bool deterministic)
{
    world w = {.s = s, .n_ranks = world_size(s), .deterministic = deterministic};
    for (uint32_t rank = 0; rank < w.n_ranks; rank++) {
        begin_rank(&w, rank);
    }
    for (uint32_t op = 0; op < FERRY_MIXED_N_OPS; op++) {
        for (uint32_t mode = 0; mode < FERRY_MIXED_N_MODES; mode++) {
            if (w.programs[0].schedules[op][mode] != NULL && is_multicast(mode) &&
                local_size(s) > 1) {
                check_mode(&w, op, mode);
            }
        }
    }
    end_world(&w);
}

static void check_both(const shape *s)
{
    check_world_of(s, false);
    check_world_of(s, true);
}

static void test_fleets(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 16; n++) {
        walk_shapes_of(n, check_both);
    }
    assert_true(n_to_all > 1000 && n_from_all > 1000 && n_of_groups > 100);
}

/* Areas of edges that different schedules use lie apart, too: a lane's part has room for all. */
static void test_room(void **state)
{
    (void)state;
    const shape s = {2, 2, 1, 2};
    world w = {.s = &s, .n_ranks = world_size(&s)};
    for (uint32_t rank = 0; rank < w.n_ranks; rank++) {
        begin_rank(&w, rank);
    }
    const fy_mix_box *boxes = w.programs[0].layout.boxes;
    assert_int_equal(fy_mix_fleet_lane_bytes(&w.programs[0], FY_MIX_FLEET_NODE),
                     FY_MIX_N_SLOTS * (boxes[FY_MIX_EDGE_SPREAD_ALL].message_bytes +
                                       boxes[FY_MIX_EDGE_JOIN_ALL].message_bytes));
    assert_int_equal(fy_mix_fleet_lane_bytes(&w.programs[0], FY_MIX_FLEET_TP),
                     FY_MIX_N_SLOTS * (boxes[FY_MIX_EDGE_SPREAD_TP].message_bytes +
                                       boxes[FY_MIX_EDGE_SPREAD_ALL].message_bytes +
                                       boxes[FY_MIX_EDGE_JOIN_TP].message_bytes));
    end_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fleets), cmocka_unit_test(test_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
