/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What the makers of schedules share: see build.h. */
#include "collective/build.h"

#include "base/alloc.h"

bool fy_mix_mode_is_fused(uint32_t mode)
{
    return mode >= FERRY_MIXED_FUSED_WAITS_MULTICAST && mode <= FERRY_MIXED_FUSED_BYTES2_UNICAST;
}

bool fy_mix_mode_has_parts(uint32_t mode)
{
    return mode >= FERRY_MIXED_FUSED_BYTES1_MULTICAST && mode <= FERRY_MIXED_FUSED_BYTES2_UNICAST;
}

bool fy_mix_mode_has_sub_parts(uint32_t mode)
{
    return mode == FERRY_MIXED_FUSED_BYTES2_MULTICAST || mode == FERRY_MIXED_FUSED_BYTES2_UNICAST;
}

fy_mix_cut fy_mix_cut_whole(void)
{
    return (fy_mix_cut){1, 0, 1, 0};
}

fy_mix_cut fy_mix_cut_part(uint32_t n, uint32_t index)
{
    return (fy_mix_cut){n, index, 1, 0};
}

fy_mix_cut fy_mix_cut_sub(uint32_t n, uint32_t index, uint32_t n_sub, uint32_t sub)
{
    return (fy_mix_cut){n, index, n_sub, sub};
}

uint32_t fy_mix_local_rank_at(const fy_topology *t, uint32_t local_tp_rank, uint32_t local_dp_rank)
{
    return fy_topology_rank_at(t, local_tp_rank, local_dp_rank, t->inter_tp_rank, t->inter_dp_rank);
}

void fy_mix_use_edge(fy_mix_builder *b, fy_mix_edge edge, const fy_mix_edge_need *need)
{
    uint32_t group = fy_mix_edge_group_size(b->topology, edge);
    bool between = fy_mix_edge_is_between(edge);
    bool shared = !between && !fy_mix_edge_is_ring(edge) && b->inside == FY_MIX_FORM_MULTICAST;
    uint32_t n_senders = fy_mix_edge_is_ring(edge) ? 1 : group;
    if (edge == FY_MIX_EDGE_OWN || shared) {
        n_senders = 0;
    }
    b->schedule->used[b->schedule->n_used++] = (uint8_t)edge;
    b->schedule->edges[edge] = (fy_mix_edge_use){
        .uses = 1,
        .n_messages = need->n_messages,
        .n_senders = n_senders,
        .n_cells = need->n_cells,
        .origin = (uint8_t)need->origin,
        .n = need->n,
        .n_sub = need->n_sub,
        .partial = need->partial,
        .multicast = shared,
        .added =
            shared && b->adds && (edge == FY_MIX_EDGE_SPREAD_TP || edge == FY_MIX_EDGE_SPREAD_ALL)};
}

/* Room for one item more in a list; NULL, and never again anything, where there is none. */
static void *more(fy_mix_builder *b, void **items, size_t *room, uint32_t *n, size_t item_bytes)
{
    if (b->failed || !fy_reserve(items, room, (size_t)*n + 1, item_bytes)) {
        b->failed = true;
        return NULL;
    }
    char *item = (char *)*items + (size_t)*n * item_bytes;
    *n += 1;
    return item;
}

void fy_mix_begin_stage(fy_mix_builder *b)
{
    b->failed = b->failed || fy_program_block_add(&b->schedule->program, 0, NULL) != FERRY_OK;
}

static void add_step(fy_mix_builder *b, fy_step_kind kind, uint32_t first, uint32_t n)
{
    b->failed =
        b->failed || fy_program_step_add(&b->schedule->program, kind, first, n, NULL) != FERRY_OK;
}

static fy_mix_sum *last_sum(const fy_mix_builder *b)
{
    return &b->schedule->sums[b->schedule->n_sums - 1];
}

void fy_mix_begin_sum(fy_mix_builder *b, fy_mix_cut cut, bool partial_sources, bool partial_targets)
{
    fy_mix_schedule *s = b->schedule;
    fy_mix_sum *sum = more(b, (void **)&s->sums, &s->sums_room, &s->n_sums, sizeof *sum);
    if (sum != NULL) {
        *sum = (fy_mix_sum){.cut = cut,
                            .first = s->n_places,
                            .partial_sources = partial_sources,
                            .partial_targets = partial_targets};
    }
}

void fy_mix_add_source(fy_mix_builder *b, fy_mix_place source)
{
    fy_mix_schedule *s = b->schedule;
    fy_mix_place *place =
        more(b, (void **)&s->places, &s->places_room, &s->n_places, sizeof *place);
    if (place != NULL) {
        *place = source;
        last_sum(b)->n++;
    }
}

void fy_mix_add_target(fy_mix_builder *b, fy_mix_place target)
{
    if (!b->failed) {
        fy_mix_sum *sum = last_sum(b);
        sum->targets[sum->n_targets++] = target;
    }
}

void fy_mix_end_sum(fy_mix_builder *b)
{
    if (b->failed) {
        return;
    }
    if (last_sum(b)->n_targets == 0) {
        b->schedule->n_places -= last_sum(b)->n;
        b->schedule->n_sums--;
    } else {
        add_step(b, FY_STEP_SUM, b->schedule->n_sums - 1, 1);
    }
}

void fy_mix_copy_piece(fy_mix_builder *b, fy_mix_cut cut, fy_mix_place from, fy_mix_place to)
{
    fy_mix_begin_sum(b, cut, false, false);
    fy_mix_add_source(b, from);
    fy_mix_add_target(b, to);
    fy_mix_end_sum(b);
}

void fy_mix_begin_links(fy_mix_builder *b, fy_step_kind kind, uint32_t use)
{
    b->kind = kind;
    b->use = use;
    b->first_link = b->schedule->n_links;
}

void fy_mix_add_link(fy_mix_builder *b, fy_mix_edge edge, fy_mix_form form, uint32_t rank,
                     uint32_t message)
{
    fy_mix_schedule *s = b->schedule;
    fy_mix_link *link = more(b, (void **)&s->links, &s->links_room, &s->n_links, sizeof *link);
    if (link != NULL) {
        bool waits = b->kind == FY_STEP_WAIT;
        s->n_puts += b->kind == FY_STEP_PUT;
        *link =
            (fy_mix_link){.edge = (uint8_t)edge,
                          .form = (uint8_t)form,
                          .rank = rank,
                          .message = waits ? fy_mix_edge_sender(b->topology, edge, rank) : message,
                          .use = b->use};
    }
}

void fy_mix_end_links(fy_mix_builder *b)
{
    uint32_t n = b->schedule->n_links - b->first_link;
    if (n > 0) {
        add_step(b, b->kind, b->first_link, n);
    }
}

static fy_mix_form form_of(const fy_mix_builder *b, fy_mix_edge edge)
{
    return fy_mix_edge_is_between(edge) ? FY_MIX_FORM_PUT : b->inside;
}

/* To all other ranks of an edge, or from them. */
static void link_edge(fy_mix_builder *b, fy_mix_edge edge, fy_step_kind kind, bool own_messages)
{
    uint32_t me = fy_mix_edge_group_index(b->topology, edge);
    fy_mix_begin_links(b, kind, 0);
    for (uint32_t i = 0; i < fy_mix_edge_group_size(b->topology, edge); i++) {
        if (i != me) {
            fy_mix_add_link(b, edge, form_of(b, edge), fy_mix_edge_group_rank(b->topology, edge, i),
                            own_messages ? i : 0);
        }
    }
    fy_mix_end_links(b);
}

void fy_mix_wait_for_edge(fy_mix_builder *b, fy_mix_edge edge)
{
    link_edge(b, edge, FY_STEP_WAIT, false);
}

void fy_mix_post_to_edge(fy_mix_builder *b, fy_mix_edge edge, bool own_messages)
{
    link_edge(b, edge, form_of(b, edge) == FY_MIX_FORM_PUT ? FY_STEP_PUT : FY_STEP_SIGNAL,
              own_messages);
}

fy_mix_place fy_mix_in(uint32_t chunk)
{
    return (fy_mix_place){.kind = FY_MIX_PLACE_IN, .cell = chunk};
}

fy_mix_place fy_mix_out(uint32_t chunk)
{
    return (fy_mix_place){.kind = FY_MIX_PLACE_OUT, .cell = chunk};
}

fy_mix_place fy_mix_outbox(fy_mix_edge edge, uint32_t message, uint32_t cell, fy_mix_origin origin)
{
    return (fy_mix_place){.kind = FY_MIX_PLACE_OUTBOX,
                          .edge = (uint8_t)edge,
                          .origin = (uint8_t)origin,
                          .message = message,
                          .cell = cell};
}

fy_mix_place fy_mix_inbox(fy_mix_edge edge, uint32_t rank, uint32_t cell, fy_mix_origin origin)
{
    return (fy_mix_place){.kind = FY_MIX_PLACE_INBOX,
                          .edge = (uint8_t)edge,
                          .origin = (uint8_t)origin,
                          .rank = rank,
                          .cell = cell};
}

fy_mix_place fy_mix_added(fy_mix_edge edge, uint32_t cell)
{
    return (fy_mix_place){.kind = FY_MIX_PLACE_ADDED,
                          .edge = (uint8_t)edge,
                          .origin = FY_MIX_ORIGIN_BLOCK,
                          .cell = cell,
                          .counts = true};
}

fy_mix_place fy_mix_from_peer(const fy_mix_builder *b, fy_mix_edge edge, uint32_t rank,
                              uint32_t cell, fy_mix_origin origin)
{
    fy_mix_place place = fy_mix_inbox(edge, rank, cell, origin);
    place.counts = !fy_mix_edge_is_between(edge);
    if (place.counts && b->inside == FY_MIX_FORM_MULTICAST) {
        place.kind = FY_MIX_PLACE_PEER_OUTBOX;
    }
    return place;
}

static fy_mix_place store_target(fy_mix_edge edge, uint32_t rank, uint32_t cell,
                                 fy_mix_origin origin)
{
    fy_mix_place place = fy_mix_inbox(edge, rank, cell, origin);
    place.kind = FY_MIX_PLACE_PEER_INBOX;
    place.counts = true;
    return place;
}

static fy_mix_place shared_target(const fy_mix_builder *b, fy_mix_edge edge, uint32_t cell,
                                  fy_mix_origin origin)
{
    fy_mix_place place = fy_mix_outbox(edge, 0, cell, origin);
    place.counts = b->inside == FY_MIX_FORM_MULTICAST; /* a put is counted when it is posted */
    return place;
}

void fy_mix_share(fy_mix_builder *b, fy_mix_edge edge, fy_mix_cut cut, fy_mix_place from,
                  uint32_t cell, fy_mix_origin origin)
{
    if (fy_mix_edge_group_size(b->topology, edge) == 1) {
        return;
    }
    if (b->inside == FY_MIX_FORM_STORE) {
        fy_mix_share_rest(b, edge, cut, from, cell, origin);
    } else {
        fy_mix_copy_piece(b, cut, from, shared_target(b, edge, cell, origin));
    }
}

void fy_mix_share_target(fy_mix_builder *b, fy_mix_edge edge, uint32_t cell, fy_mix_origin origin)
{
    if (fy_mix_edge_group_size(b->topology, edge) > 1 && b->inside != FY_MIX_FORM_STORE) {
        fy_mix_add_target(b, shared_target(b, edge, cell, origin));
    }
}

void fy_mix_share_rest(fy_mix_builder *b, fy_mix_edge edge, fy_mix_cut cut, fy_mix_place from,
                       uint32_t cell, fy_mix_origin origin)
{
    uint32_t me = fy_mix_edge_group_index(b->topology, edge);
    if (b->inside != FY_MIX_FORM_STORE) {
        return;
    }
    for (uint32_t i = 0; i < fy_mix_edge_group_size(b->topology, edge); i++) {
        if (i != me) {
            uint32_t rank = fy_mix_edge_group_rank(b->topology, edge, i);
            fy_mix_copy_piece(b, cut, from, store_target(edge, rank, cell, origin));
        }
    }
}
