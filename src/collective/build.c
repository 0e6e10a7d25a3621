/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What the makers of schedules share: see build.h. */
#include "collective/build.h"

#include "base/alloc.h"

bool fy_mode_is_fused(uint32_t mode)
{
    return mode >= FERRY_MIXED_FUSED_WAITS_MULTICAST && mode <= FERRY_MIXED_FUSED_BYTES2_UNICAST;
}

bool fy_mode_has_parts(uint32_t mode)
{
    return mode >= FERRY_MIXED_FUSED_BYTES1_MULTICAST && mode <= FERRY_MIXED_FUSED_BYTES2_UNICAST;
}

bool fy_mode_has_sub_parts(uint32_t mode)
{
    return mode == FERRY_MIXED_FUSED_BYTES2_MULTICAST || mode == FERRY_MIXED_FUSED_BYTES2_UNICAST;
}

fy_cut fy_cut_whole(void)
{
    return (fy_cut){1, 0, 1, 0};
}

fy_cut fy_cut_part(uint32_t n, uint32_t index)
{
    return (fy_cut){n, index, 1, 0};
}

fy_cut fy_cut_sub(uint32_t n, uint32_t index, uint32_t n_sub, uint32_t sub)
{
    return (fy_cut){n, index, n_sub, sub};
}

uint32_t fy_local_rank_at(const fy_topology *t, uint32_t local_tp_rank, uint32_t local_dp_rank)
{
    return fy_topology_rank_at(t, local_tp_rank, local_dp_rank, t->inter_tp_rank, t->inter_dp_rank);
}

void fy_use_edge(fy_builder *b, fy_edge edge, const fy_edge_need *need)
{
    uint32_t group = fy_edge_group_size(b->topology, edge);
    bool between = fy_edge_is_between(edge);
    bool shared = !between && !fy_edge_is_ring(edge) && b->inside == FY_FORM_MULTICAST;
    uint32_t n_senders = fy_edge_is_ring(edge) ? 1 : group;
    if (edge == FY_EDGE_OWN || shared) {
        n_senders = 0;
    }
    b->schedule->edges[edge] = (fy_edge_use){.uses = 1,
                                             .n_messages = need->n_messages,
                                             .n_senders = n_senders,
                                             .n_cells = need->n_cells,
                                             .origin = (uint8_t)need->origin,
                                             .n = need->n,
                                             .n_sub = need->n_sub,
                                             .partial = need->partial,
                                             .multicast = shared};
}

/* Room for one item more in a list; NULL, and never again anything, where there is none. */
static void *more(fy_builder *b, void **items, size_t *room, uint32_t *n, size_t item_bytes)
{
    if (b->failed || !fy_reserve(items, room, (size_t)*n + 1, item_bytes)) {
        b->failed = true;
        return NULL;
    }
    char *item = (char *)*items + (size_t)*n * item_bytes;
    *n += 1;
    return item;
}

void fy_begin_stage(fy_builder *b)
{
    fy_schedule *s = b->schedule;
    fy_stage *stage = more(b, (void **)&s->stages, &s->stages_room, &s->n_stages, sizeof *stage);
    if (stage != NULL) {
        *stage = (fy_stage){.first_action = s->n_actions};
    }
}

static fy_action *begin_action(fy_builder *b, fy_action_kind kind, uint32_t first)
{
    fy_schedule *s = b->schedule;
    fy_action *action =
        more(b, (void **)&s->actions, &s->actions_room, &s->n_actions, sizeof *action);
    if (action != NULL) {
        *action = (fy_action){.kind = (uint8_t)kind, .first = first, .cut = fy_cut_whole()};
        s->stages[s->n_stages - 1].n_actions++;
    }
    return action;
}

static fy_action *last_action(const fy_builder *b)
{
    return &b->schedule->actions[b->schedule->n_actions - 1];
}

static void take_back(fy_builder *b)
{
    fy_schedule *s = b->schedule;
    s->n_actions--;
    s->stages[s->n_stages - 1].n_actions--;
}

void fy_begin_sum(fy_builder *b, fy_cut cut, bool partial_sources, bool partial_targets)
{
    fy_action *action = begin_action(b, FY_ACTION_SUM, b->schedule->n_places);
    if (action != NULL) {
        action->cut = cut;
        action->partial_sources = partial_sources;
        action->partial_targets = partial_targets;
    }
}

void fy_add_source(fy_builder *b, fy_place source)
{
    fy_schedule *s = b->schedule;
    fy_place *place = more(b, (void **)&s->places, &s->places_room, &s->n_places, sizeof *place);
    if (place != NULL) {
        *place = source;
        last_action(b)->n++;
    }
}

void fy_add_target(fy_builder *b, fy_place target)
{
    if (!b->failed) {
        fy_action *action = last_action(b);
        action->targets[action->n_targets++] = target;
    }
}

void fy_end_sum(fy_builder *b)
{
    if (!b->failed && last_action(b)->n_targets == 0) {
        b->schedule->n_places -= last_action(b)->n;
        take_back(b);
    }
}

void fy_copy_piece(fy_builder *b, fy_cut cut, fy_place from, fy_place to)
{
    fy_begin_sum(b, cut, false, false);
    fy_add_source(b, from);
    fy_add_target(b, to);
    fy_end_sum(b);
}

void fy_begin_links(fy_builder *b, fy_action_kind kind, uint32_t use)
{
    fy_action *action = begin_action(b, kind, b->schedule->n_links);
    if (action != NULL) {
        action->use = use;
    }
}

void fy_add_link(fy_builder *b, fy_edge edge, fy_form form, uint32_t rank, uint32_t message)
{
    fy_schedule *s = b->schedule;
    fy_link *link = more(b, (void **)&s->links, &s->links_room, &s->n_links, sizeof *link);
    if (link != NULL) {
        s->n_puts += form == FY_FORM_PUT && last_action(b)->kind == FY_ACTION_POST;
        *link = (fy_link){
            .edge = (uint8_t)edge, .form = (uint8_t)form, .rank = rank, .message = message};
        last_action(b)->n++;
    }
}

void fy_end_links(fy_builder *b)
{
    if (b->failed) {
        return;
    }
    if (last_action(b)->n == 0) {
        take_back(b);
    } else {
        b->schedule->n_waits += last_action(b)->kind == FY_ACTION_WAIT;
    }
}

static fy_form form_of(const fy_builder *b, fy_edge edge)
{
    return fy_edge_is_between(edge) ? FY_FORM_PUT : b->inside;
}

void fy_wait_for_edge(fy_builder *b, fy_edge edge)
{
    uint32_t me = fy_edge_group_index(b->topology, edge);
    fy_begin_links(b, FY_ACTION_WAIT, 0);
    for (uint32_t i = 0; i < fy_edge_group_size(b->topology, edge); i++) {
        if (i != me) {
            fy_add_link(b, edge, form_of(b, edge), fy_edge_group_rank(b->topology, edge, i), 0);
        }
    }
    fy_end_links(b);
}

void fy_post_to_edge(fy_builder *b, fy_edge edge, bool own_messages)
{
    uint32_t me = fy_edge_group_index(b->topology, edge);
    fy_begin_links(b, FY_ACTION_POST, 0);
    for (uint32_t i = 0; i < fy_edge_group_size(b->topology, edge); i++) {
        if (i != me) {
            fy_add_link(b, edge, form_of(b, edge), fy_edge_group_rank(b->topology, edge, i),
                        own_messages ? i : 0);
        }
    }
    fy_end_links(b);
}

fy_place fy_in(uint32_t chunk)
{
    return (fy_place){.kind = FY_PLACE_IN, .cell = chunk};
}

fy_place fy_out(uint32_t chunk)
{
    return (fy_place){.kind = FY_PLACE_OUT, .cell = chunk};
}

fy_place fy_outbox(fy_edge edge, uint32_t message, uint32_t cell, fy_origin origin)
{
    return (fy_place){.kind = FY_PLACE_OUTBOX,
                      .edge = (uint8_t)edge,
                      .origin = (uint8_t)origin,
                      .message = message,
                      .cell = cell};
}

fy_place fy_inbox(fy_edge edge, uint32_t rank, uint32_t cell, fy_origin origin)
{
    return (fy_place){.kind = FY_PLACE_INBOX,
                      .edge = (uint8_t)edge,
                      .origin = (uint8_t)origin,
                      .rank = rank,
                      .cell = cell};
}

fy_place fy_from_peer(const fy_builder *b, fy_edge edge, uint32_t rank, uint32_t cell,
                      fy_origin origin)
{
    fy_place place = fy_inbox(edge, rank, cell, origin);
    place.counts = !fy_edge_is_between(edge);
    if (place.counts && b->inside == FY_FORM_MULTICAST) {
        place.kind = FY_PLACE_PEER_OUTBOX;
    }
    return place;
}

static fy_place store_target(fy_edge edge, uint32_t rank, uint32_t cell, fy_origin origin)
{
    fy_place place = fy_inbox(edge, rank, cell, origin);
    place.kind = FY_PLACE_PEER_INBOX;
    place.counts = true;
    return place;
}

static fy_place shared_target(const fy_builder *b, fy_edge edge, uint32_t cell, fy_origin origin)
{
    fy_place place = fy_outbox(edge, 0, cell, origin);
    place.counts = b->inside == FY_FORM_MULTICAST; /* a put is counted when it is posted */
    return place;
}

void fy_share(fy_builder *b, fy_edge edge, fy_cut cut, fy_place from, uint32_t cell,
              fy_origin origin)
{
    if (fy_edge_group_size(b->topology, edge) == 1) {
        return;
    }
    if (b->inside == FY_FORM_STORE) {
        fy_share_rest(b, edge, cut, from, cell, origin);
    } else {
        fy_copy_piece(b, cut, from, shared_target(b, edge, cell, origin));
    }
}

void fy_share_target(fy_builder *b, fy_edge edge, uint32_t cell, fy_origin origin)
{
    if (fy_edge_group_size(b->topology, edge) > 1 && b->inside != FY_FORM_STORE) {
        fy_add_target(b, shared_target(b, edge, cell, origin));
    }
}

void fy_share_rest(fy_builder *b, fy_edge edge, fy_cut cut, fy_place from, uint32_t cell,
                   fy_origin origin)
{
    uint32_t me = fy_edge_group_index(b->topology, edge);
    if (b->inside != FY_FORM_STORE) {
        return;
    }
    for (uint32_t i = 0; i < fy_edge_group_size(b->topology, edge); i++) {
        if (i != me) {
            uint32_t rank = fy_edge_group_rank(b->topology, edge, i);
            fy_copy_piece(b, cut, from, store_target(edge, rank, cell, origin));
        }
    }
}
