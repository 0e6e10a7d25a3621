/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * BASE: what a library without fused operations does, as rings. Every piece goes half up and half
 * down its ring, so both directions are busy, and a rank hears from whom it writes to.
 *
 * A ring reduces in as many passes as it has ranks, less one: the piece of member c starts at its
 * neighbours, and each rank that it comes to adds its own contribution; then finished pieces go
 * round to be gathered.
 */
#include "collective/build.h"

typedef struct ring {
    fy_mix_edge up, down;
    uint32_t size, me;
    uint32_t use; /* of the next pass */
} ring;

/*
 * What goes round: a piece for each member, which is its data-parallel rank's chunk or, of that,
 * its tensor-parallel rank's part. In parts, the pieces of a ring over the world are all of all
 * chunks, those of a tensor-parallel ring one chunk.
 */
typedef struct load {
    bool parts;
    fy_mix_place_kind where; /* the contributions: IN or OUT */
    bool own; /* finished pieces go to memory of this rank's own, not to the output */
} load;

typedef struct piece {
    uint32_t rank, chunk; /* whose it is, and of which group: of a tensor of dp chunks the chunk */
    fy_mix_cut cut;       /* what goes in one direction: half */
} piece;

enum { UP = 0, DOWN = 1 };

static ring ring_of(const fy_mix_builder *b, fy_mix_edge up, fy_mix_edge down)
{
    const fy_topology *t = b->topology;
    return (ring){up, down, fy_mix_edge_group_size(t, up), fy_mix_edge_group_index(t, up), 0};
}

static fy_mix_edge edge_of(const ring *r, int direction)
{
    return direction == UP ? r->up : r->down;
}

/* The neighbour to which a direction leads, and the one from which it comes. */
static uint32_t next_rank(const fy_mix_builder *b, const ring *r, int direction)
{
    uint32_t index = direction == UP ? r->me + 1 : r->me + r->size - 1;
    return fy_mix_edge_group_rank(b->topology, r->up, index % r->size);
}

static fy_mix_form form_to(const fy_mix_builder *b, uint32_t rank)
{
    const fy_topology *t = b->topology;
    bool near = rank / t->local_size == t->inter_rank;
    return near && b->options->mapped ? FY_MIX_FORM_STORE : FY_MIX_FORM_PUT;
}

/* The member whose piece this rank sends in pass i of a reduction: up they come from behind. */
static uint32_t member_at(const ring *r, int direction, uint32_t i)
{
    uint32_t back = (1 + i) % r->size;
    return direction == UP ? (r->me + r->size - back) % r->size : (r->me + back) % r->size;
}

static piece piece_of(const fy_mix_builder *b, const ring *r, const load *l, uint32_t member,
                      int direction)
{
    const fy_topology *t = b->topology;
    fy_topology whose = fy_topology_of_rank(t, fy_mix_edge_group_rank(t, r->up, member));
    fy_mix_cut cut = l->parts ? fy_mix_cut_part(t->tp, whose.tp_rank) : fy_mix_cut_whole();
    cut.n_sub = 2;
    cut.sub = (uint32_t)direction;
    return (piece){whose.world_rank, whose.dp_rank, cut};
}

/* What this rank adds to a piece, or has of it. */
static fy_mix_place contribution(const fy_mix_builder *b, const load *l, const piece *p)
{
    if (l->where == FY_MIX_PLACE_IN) {
        return fy_mix_in(fy_mix_op_scatters(b->schedule->op) ? p->chunk : 0);
    }
    return fy_mix_out(fy_mix_op_gathers(b->schedule->op) ? p->chunk : 0);
}

/* A target for a finished piece, in a sum that is open, if this rank wants it. */
static void keep(fy_mix_builder *b, const load *l, const piece *p)
{
    if (l->own) {
        fy_mix_add_target(b, fy_mix_outbox(FY_MIX_EDGE_OWN, 0, p->rank, FY_MIX_ORIGIN_BLOCK));
    } else if (fy_mix_op_gathers(b->schedule->op)) {
        fy_mix_add_target(b, fy_mix_out(p->chunk));
    } else if (p->chunk == b->topology->dp_rank) {
        fy_mix_add_target(b, fy_mix_out(0));
    }
}

static fy_mix_place to_next(const fy_mix_builder *b, const ring *r, int direction)
{
    uint32_t rank = next_rank(b, r, direction);
    fy_mix_place place = fy_mix_outbox(edge_of(r, direction), 0, 0, FY_MIX_ORIGIN_SUB);
    if (form_to(b, rank) == FY_MIX_FORM_STORE) {
        place.kind = FY_MIX_PLACE_PEER_INBOX;
        place.rank = rank;
        place.counts = true;
    }
    place.use = r->use;
    return place;
}

static fy_mix_place from_last(const fy_mix_builder *b, const ring *r, int direction)
{
    uint32_t rank = next_rank(b, r, direction == UP ? DOWN : UP);
    fy_mix_place place = fy_mix_inbox(edge_of(r, direction), rank, 0, FY_MIX_ORIGIN_SUB);
    place.counts = rank / b->topology->local_size == b->topology->inter_rank;
    place.use = r->use - 1;
    return place;
}

static void use_ring(fy_mix_builder *b, const ring *r, const load *l, uint32_t n_uses)
{
    const fy_mix_edge_need need = {1,    1, l->parts ? b->topology->tp : 1, 2, FY_MIX_ORIGIN_SUB,
                                   false};
    for (int direction = UP; direction <= DOWN; direction++) {
        fy_mix_use_edge(b, edge_of(r, direction), &need);
        b->schedule->edges[edge_of(r, direction)].uses = n_uses;
    }
}

/* Of what goes up and what goes down one may be put and the other announced. */
static void post(fy_mix_builder *b, ring *r)
{
    for (int puts = 1; puts >= 0; puts--) {
        fy_mix_begin_links(b, puts ? FY_STEP_PUT : FY_STEP_SIGNAL, r->use);
        for (int direction = UP; direction <= DOWN; direction++) {
            uint32_t rank = next_rank(b, r, direction);
            if ((form_to(b, rank) == FY_MIX_FORM_PUT) == (puts != 0)) {
                fy_mix_add_link(b, edge_of(r, direction), form_to(b, rank), rank, 0);
            }
        }
        fy_mix_end_links(b);
    }
    r->use++;
}

static void wait(fy_mix_builder *b, const ring *r)
{
    fy_mix_begin_stage(b);
    fy_mix_begin_links(b, FY_STEP_WAIT, r->use - 1);
    for (int direction = UP; direction <= DOWN; direction++) {
        fy_mix_add_link(b, edge_of(r, direction), FY_MIX_FORM_STORE,
                        next_rank(b, r, direction == UP ? DOWN : UP), 0);
    }
    fy_mix_end_links(b);
}

/* One pass of a reduction, before its last: what came is added to and goes on. */
static void reduce_pass(fy_mix_builder *b, const ring *r, const load *l, uint32_t i)
{
    for (int direction = UP; direction <= DOWN; direction++) {
        piece p = piece_of(b, r, l, member_at(r, direction, i), direction);
        fy_mix_begin_sum(b, p.cut, false, false);
        if (i > 0) {
            fy_mix_add_source(b, from_last(b, r, direction));
        }
        fy_mix_add_source(b, contribution(b, l, &p));
        fy_mix_add_target(b, to_next(b, r, direction));
        fy_mix_end_sum(b);
    }
}

/*
 * Reduces so that every member has its own piece. The last sum goes to the output, and on round the
 * ring if it will be gathered.
 */
static void ring_reduce(fy_mix_builder *b, ring *r, const load *l, bool gathered)
{
    fy_mix_begin_stage(b);
    for (uint32_t i = 0; i + 1 < r->size; i++) {
        reduce_pass(b, r, l, i);
        post(b, r);
        wait(b, r);
    }
    for (int direction = UP; direction <= DOWN; direction++) {
        piece p = piece_of(b, r, l, r->me, direction);
        fy_mix_begin_sum(b, p.cut, false, false);
        fy_mix_add_source(b, from_last(b, r, direction));
        fy_mix_add_source(b, contribution(b, l, &p));
        keep(b, l, &p);
        if (gathered) {
            fy_mix_add_target(b, to_next(b, r, direction));
        }
        fy_mix_end_sum(b);
    }
}

/* Passes on what every member has finished; the first send of each was made and not yet posted. */
static void ring_gather(fy_mix_builder *b, ring *r, const load *l)
{
    for (uint32_t i = 1; i < r->size; i++) {
        post(b, r);
        wait(b, r);
        for (int direction = UP; direction <= DOWN; direction++) {
            piece p = piece_of(b, r, l, member_at(r, direction, i - 1), direction);
            fy_mix_begin_sum(b, p.cut, false, false);
            fy_mix_add_source(b, from_last(b, r, direction));
            keep(b, l, &p);
            if (i + 1 < r->size) {
                fy_mix_add_target(b, to_next(b, r, direction));
            }
            fy_mix_end_sum(b);
        }
    }
}

static void send_own(fy_mix_builder *b, ring *r, const load *l)
{
    for (int direction = UP; direction <= DOWN; direction++) {
        piece p = piece_of(b, r, l, r->me, direction);
        fy_mix_copy_piece(b, p.cut, contribution(b, l, &p), to_next(b, r, direction));
    }
}

static void all_reduce(fy_mix_builder *b, ring *r, const load *l)
{
    if (r->size == 1) { /* only a world of one has nobody to add to */
        fy_mix_begin_stage(b);
        fy_mix_copy_piece(b, fy_mix_cut_whole(), fy_mix_in(0), fy_mix_out(0));
        return;
    }
    use_ring(b, r, l, 2 * (r->size - 1));
    ring_reduce(b, r, l, true);
    ring_gather(b, r, l);
}

/* All ranks' inputs, and then the sums of groups, in order of ranks. */
static void gather_then_sum(fy_mix_builder *b, ring *r)
{
    const fy_topology *t = b->topology;
    const load inputs = {false, FY_MIX_PLACE_IN, true};
    const fy_mix_edge_need need = {1, t->world_size, 1, 1, FY_MIX_ORIGIN_BLOCK, false};
    fy_mix_use_edge(b, FY_MIX_EDGE_OWN, &need);
    use_ring(b, r, &inputs, r->size - 1);
    fy_mix_begin_stage(b);
    send_own(b, r, &inputs);
    ring_gather(b, r, &inputs);
    for (uint32_t dp_rank = 0; dp_rank < t->dp; dp_rank++) {
        fy_mix_begin_sum(b, fy_mix_cut_whole(), false, false);
        for (uint32_t tp_rank = 0; tp_rank < t->tp; tp_rank++) {
            uint32_t rank = fy_topology_rank_of(t, tp_rank, dp_rank);
            fy_mix_add_source(b, rank == t->world_rank ? fy_mix_in(0)
                                                       : fy_mix_outbox(FY_MIX_EDGE_OWN, 0, rank,
                                                                       FY_MIX_ORIGIN_BLOCK));
        }
        fy_mix_add_target(b, fy_mix_out(dp_rank));
        fy_mix_end_sum(b);
    }
}

static void build_one(fy_mix_builder *b)
{
    ring world = ring_of(b, FY_MIX_EDGE_WORLD_UP, FY_MIX_EDGE_WORLD_DOWN);
    const load parts = {true, FY_MIX_PLACE_IN, false}; /* tp 1: each all of a chunk */
    switch (b->schedule->op) {
    case FERRY_MIXED_ALL_GATHER:
        use_ring(b, &world, &parts, world.size - 1);
        fy_mix_begin_stage(b);
        fy_mix_copy_piece(b, fy_mix_cut_whole(), fy_mix_in(0), fy_mix_out(b->topology->dp_rank));
        send_own(b, &world, &parts);
        ring_gather(b, &world, &parts);
        break;
    case FERRY_MIXED_REDUCE_SCATTER:
        use_ring(b, &world, &parts, world.size - 1);
        ring_reduce(b, &world, &parts, false);
        break;
    case FERRY_MIXED_ALL_REDUCE_ALL_GATHER:
        gather_then_sum(b, &world);
        break;
    default: /* all-reduce; behind a reduce-scatter, of all chunks, of which this rank keeps one */
        all_reduce(b, &world, &parts);
    }
}

static void build_tp_dp(fy_mix_builder *b)
{
    ring tp = ring_of(b, FY_MIX_EDGE_TP_UP, FY_MIX_EDGE_TP_DOWN);
    ring dp = ring_of(b, FY_MIX_EDGE_DP_UP, FY_MIX_EDGE_DP_DOWN);
    if (fy_mix_op_scatters(b->schedule->op)) {
        const load chunks = {false, FY_MIX_PLACE_IN, false};
        const load result = {true, FY_MIX_PLACE_OUT, false};
        use_ring(b, &dp, &chunks, dp.size - 1);
        ring_reduce(b, &dp, &chunks, false);
        all_reduce(b, &tp, &result);
    } else {
        const load input = {true, FY_MIX_PLACE_IN, false};
        const load chunks = {false, FY_MIX_PLACE_OUT, false};
        all_reduce(b, &tp, &input);
        use_ring(b, &dp, &chunks, dp.size - 1);
        fy_mix_begin_stage(b);
        send_own(b, &dp, &chunks);
        ring_gather(b, &dp, &chunks);
    }
}

void fy_mix_build_ring(fy_mix_builder *b)
{
    if (b->schedule->mode == FERRY_MIXED_BASE_ONE) {
        build_one(b);
    } else {
        build_tp_dp(b);
    }
}
