/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of schedule.h that can be read off schedules without running them, in all topologies
 * of up to 16 ranks: who may write to whom, that each message has one who waits for it, and what
 * the proof about slots rests on.
 */
#include "mixed_schedules.h"

/* The links of all ranks: how often a writer posts to a reader along an edge in a use, and how
 * often the reader waits for that. */
typedef struct traffic {
    uint32_t n_ranks, n_uses;
    uint8_t *posts, *waits;
    uint32_t *post_stage, *wait_stage;
} traffic;

static size_t traffic_at(const traffic *t, uint32_t edge, uint32_t use, uint32_t from, uint32_t to)
{
    assert_true(use < t->n_uses && from < t->n_ranks && to < t->n_ranks);
    return (((size_t)edge * t->n_uses + use) * t->n_ranks + from) * t->n_ranks + to;
}

static void *zeroed(size_t n, size_t bytes)
{
    void *got = calloc(n, bytes);
    assert_non_null(got);
    return got;
}

static uint32_t most_uses(const scheduled *w)
{
    uint32_t most = 1;
    for (int edge = 0; edge < FY_MIX_N_EDGES; edge++) {
        uint32_t uses = w->schedules[0].edges[edge].uses;
        most = uses > most ? uses : most;
    }
    return most;
}

static void traffic_make(traffic *t, const scheduled *w)
{
    *t = (traffic){.n_ranks = w->n_ranks, .n_uses = most_uses(w)};
    size_t n = (size_t)FY_MIX_N_EDGES * t->n_uses * t->n_ranks * t->n_ranks;
    t->posts = zeroed(n, sizeof *t->posts);
    t->waits = zeroed(n, sizeof *t->waits);
    t->post_stage = zeroed(n, sizeof *t->post_stage);
    t->wait_stage = zeroed(n, sizeof *t->wait_stage);
}

static void traffic_forget(traffic *t)
{
    free(t->posts);
    free(t->waits);
    free(t->post_stage);
    free(t->wait_stage);
}

/* A link of an edge joins ranks of the right kind, in the right form. */
static void check_link(const scheduled *w, uint32_t rank, const fy_mix_link *link, bool post)
{
    const fy_topology *me = &w->topologies[rank], *other = &w->topologies[link->rank];
    const fy_mix_edge_use *use = &w->schedules[rank].edges[link->edge];
    bool near = me->inter_rank == other->inter_rank;
    check_scheduled(w, link->edge < FY_MIX_EDGE_OWN && link->rank != rank && use->uses > 0);
    if (fy_mix_edge_is_ring((fy_mix_edge)link->edge)) {
        uint32_t size = fy_mix_edge_group_size(me, (fy_mix_edge)link->edge);
        uint32_t a = fy_mix_edge_group_index(me, (fy_mix_edge)link->edge);
        uint32_t b = fy_mix_edge_group_index(other, (fy_mix_edge)link->edge);
        check_scheduled(w, fy_mix_edge_group_rank(me, (fy_mix_edge)link->edge, b) == link->rank);
        check_scheduled(w, (a + 1) % size == b || (b + 1) % size == a);
        check_scheduled(w, !post || (link->form == FY_MIX_FORM_STORE) == (near && w->k.mapped));
        check_scheduled(w, link->form != FY_MIX_FORM_MULTICAST);
        return;
    }
    if (fy_mix_edge_is_between((fy_mix_edge)link->edge)) {
        check_scheduled(w, !near && me->local_rank == other->local_rank);
        check_scheduled(w, link->form == FY_MIX_FORM_PUT);
        return;
    }
    bool multicast = is_multicast(w->k.mode);
    check_scheduled(w, near);
    check_scheduled(w, link->form == (multicast     ? FY_MIX_FORM_MULTICAST
                                      : w->k.mapped ? FY_MIX_FORM_STORE
                                                    : FY_MIX_FORM_PUT));
    check_scheduled(w, use->multicast == multicast);
}

static void note_links(traffic *t, const scheduled *w, uint32_t rank, uint32_t stage,
                       const fy_program_step *step)
{
    const fy_mix_schedule *s = &w->schedules[rank];
    bool post = step->kind != FY_STEP_WAIT;
    for (uint32_t i = 0; i < step->n; i++) {
        const fy_mix_link *link = &s->links[step->first + i];
        check_link(w, rank, link, post);
        check_scheduled(w, !post || (link->form == FY_MIX_FORM_PUT) == (step->kind == FY_STEP_PUT));
        size_t at = traffic_at(t, link->edge, link->use, post ? rank : link->rank,
                               post ? link->rank : rank);
        (post ? t->posts : t->waits)[at]++;
        (post ? t->post_stage : t->wait_stage)[at] = stage;
    }
}

/* One pass over a rank's steps: their order within stages, and the counts of the whole. */
static void note_rank(traffic *t, const scheduled *w, uint32_t rank)
{
    const fy_mix_schedule *s = &w->schedules[rank];
    uint32_t n_steps = 0, n_sums = 0, n_links = 0, n_puts = 0;
    check_scheduled(w, s->op == w->k.op && s->mode == w->k.mode);
    check_scheduled(w, s->program.n_lanes == 1 && s->program.n_counters == 0);
    check_scheduled(w, s->program.lanes[0].n_blocks == s->program.n_blocks);
    for (uint32_t stage = 0; stage < s->program.n_blocks; stage++) {
        check_scheduled(w, s->program.blocks[stage].first_step == n_steps);
        n_steps += s->program.blocks[stage].n_steps;
        for (uint32_t i = 0; i < s->program.blocks[stage].n_steps; i++) {
            const fy_program_step *step = step_of_stage(s, stage, i);
            bool sums = step->kind == FY_STEP_SUM;
            check_scheduled(w, step->kind != FY_STEP_MOVE && step->kind < FY_N_STEP_KINDS);
            check_scheduled(w, step->kind != FY_STEP_WAIT || i == 0);
            check_scheduled(w, step->first == (sums ? n_sums : n_links));
            check_scheduled(w, sums ? step->n == 1 && s->sums[n_sums].n > 0 : step->n > 0);
            if (!sums) {
                note_links(t, w, rank, stage, step);
            }
            *(sums ? &n_sums : &n_links) += step->n;
            n_puts += step->kind == FY_STEP_PUT ? step->n : 0;
        }
    }
    check_scheduled(w, n_steps == s->program.n_steps);
    check_scheduled(w, n_sums == s->n_sums && n_links == s->n_links && n_puts == s->n_puts);
    check_scheduled(w, count_steps(s, FY_STEP_WAIT) == count_steps(w->schedules, FY_STEP_WAIT));
}

/* What an edge needs is the same everywhere, and in the other direction of a ring. */
static void check_edges(const scheduled *w, uint32_t rank)
{
    for (int edge = 0; edge < FY_MIX_N_EDGES; edge++) {
        const fy_mix_edge_use *a = &w->schedules[0].edges[edge],
                              *b = &w->schedules[rank].edges[edge];
        check_scheduled(w, a->uses == b->uses && a->n_messages == b->n_messages);
        check_scheduled(w, a->n_senders == b->n_senders && a->n_cells == b->n_cells);
        check_scheduled(w, a->origin == b->origin && a->n == b->n && a->n_sub == b->n_sub);
        check_scheduled(w, a->partial == b->partial && a->multicast == b->multicast);
        check_scheduled(w, !a->partial || w->k.deterministic);
        check_scheduled(w, !is_pipelined(w->schedules) || a->uses <= 1);
    }
}

/* The edge of a ring that leads the other way; of other edges the same. */
static uint32_t turned(uint32_t edge)
{
    switch (edge) {
    case FY_MIX_EDGE_WORLD_UP:
    case FY_MIX_EDGE_TP_UP:
    case FY_MIX_EDGE_DP_UP:
        return edge + 1;
    case FY_MIX_EDGE_WORLD_DOWN:
    case FY_MIX_EDGE_TP_DOWN:
    case FY_MIX_EDGE_DP_DOWN:
        return edge - 1;
    default:
        return edge;
    }
}

/*
 * Every post has its wait, and a rank hears from whom it writes to, in the same use: what the proof
 * about slots needs. Pipelined, the wait is one stage behind the post.
 */
static void check_traffic(const traffic *t, const scheduled *w)
{
    bool pipelined = is_pipelined(w->schedules);
    for (uint32_t edge = 0; edge < FY_MIX_N_EDGES; edge++) {
        for (uint32_t use = 0; use < w->schedules[0].edges[edge].uses; use++) {
            for (uint32_t from = 0; from < t->n_ranks; from++) {
                for (uint32_t to = 0; to < t->n_ranks; to++) {
                    size_t at = traffic_at(t, edge, use, from, to);
                    size_t back = traffic_at(t, turned(edge), use, to, from);
                    check_scheduled(w, t->posts[at] <= 1 && t->waits[at] == t->posts[at]);
                    check_scheduled(w, t->posts[at] == t->posts[back]);
                    check_scheduled(w, t->posts[at] == 0 || !pipelined ||
                                           t->wait_stage[at] == t->post_stage[at] + 1);
                }
            }
        }
    }
}

/* Whether a source is, or has a part, of what another rank has written. */
static bool comes_from(const scheduled *w, uint32_t rank, const fy_mix_place *p, uint32_t other)
{
    const fy_topology *me = &w->topologies[rank], *its = &w->topologies[other];
    if (p->kind == FY_MIX_PLACE_ADDED) {
        bool is_of_group =
            p->edge == FY_MIX_EDGE_SPREAD_ALL || its->local_dp_rank == me->local_dp_rank;
        return other != rank && its->inter_rank == me->inter_rank && is_of_group;
    }
    bool is_others = p->kind == FY_MIX_PLACE_INBOX || p->kind == FY_MIX_PLACE_PEER_OUTBOX;
    return is_others && p->rank == other;
}

/* What came in a use is read in the stage that waits for it, and no later. */
static void check_reads(const traffic *t, const scheduled *w, uint32_t rank)
{
    const fy_mix_schedule *s = &w->schedules[rank];
    for (uint32_t stage = 0; is_pipelined(s) && stage < s->program.n_blocks; stage++) {
        for (uint32_t i = 0; i < s->program.blocks[stage].n_steps; i++) {
            const fy_program_step *step = step_of_stage(s, stage, i);
            const fy_mix_sum *sum = &s->sums[step->first];
            for (uint32_t j = 0; step->kind == FY_STEP_SUM && j < sum->n; j++) {
                const fy_mix_place *p = &s->places[sum->first + j];
                for (uint32_t other = 0; other < w->n_ranks; other++) {
                    if (comes_from(w, rank, p, other)) {
                        size_t at = traffic_at(t, p->edge, p->use, other, rank);
                        check_scheduled(w, t->waits[at] == 1 && t->wait_stage[at] == stage);
                    }
                }
            }
        }
    }
}

static void check_kind(const shape *s, const kind *k)
{
    scheduled w;
    traffic t;
    schedule_all(s, k, &w);
    traffic_make(&t, &w);
    for (uint32_t rank = 0; rank < w.n_ranks; rank++) {
        note_rank(&t, &w, rank);
        check_edges(&w, rank);
    }
    check_traffic(&t, &w);
    for (uint32_t rank = 0; rank < w.n_ranks; rank++) {
        check_reads(&t, &w, rank);
    }
    traffic_forget(&t);
    forget_schedules(&w);
}

static void check_topology(const shape *s)
{
    kind kinds[2 * MOST_KINDS];
    uint32_t n = list_kinds(s, kinds);
    n += list_adding_kinds(s, kinds + n);
    for (uint32_t i = 0; i < n; i++) {
        check_kind(s, &kinds[i]);
    }
}

static void test_rules(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 16; n++) {
        walk_shapes_of(n, check_topology);
    }
    const shape larger[] = {{3, 2, 2, 3}, {1, 6, 6, 1}, {31, 1, 1, 1}, {8, 8, 1, 1}};
    for (size_t i = 0; i < COUNT_OF(larger); i++) {
        check_topology(&larger[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rules)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
