/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * How large schedules are. A handle makes one for every operation and mode when it is created, so
 * each may grow with the ranks, and with nothing that multiplies them: in all topologies of a few
 * hundred ranks and of a thousand, and in some of four thousand.
 */
#include "mixed_schedules.h"

/*
 * A ring over the world, there and back, is the longest: 2 (W - 1) passes, in each of which a rank
 * posts, waits, and makes a sum in each direction, with two links for each post and each wait. A
 * post is two steps where one neighbour is on another node.
 */
enum { MOST_FOR_EACH_RANK = 10 };

/* Cells of an edge's boxes: one for each rank in the outbox, and one in the inbox. */
enum { CELLS_FOR_EACH_RANK = 2 };

static uint64_t n_built;

static void check_size(const scheduled *w, const fy_mix_schedule *s)
{
    uint64_t most = (uint64_t)MOST_FOR_EACH_RANK * w->n_ranks;
    check_scheduled(w, s->program.n_blocks > 0 && s->program.n_blocks <= most);
    check_scheduled(w, s->program.n_steps <= most && s->n_places <= most && s->n_links <= most);
    for (int edge = 0; edge < FY_MIX_N_EDGES; edge++) {
        const fy_mix_edge_use *use = &s->edges[edge];
        uint64_t messages = (uint64_t)use->n_messages + use->n_senders;
        check_scheduled(w, use->uses <= most);
        check_scheduled(w, messages * use->n_cells <= (uint64_t)CELLS_FOR_EACH_RANK * w->n_ranks);
    }
    n_built++;
}

static void check_rank(const shape *s, uint32_t rank)
{
    kind kinds[MOST_KINDS];
    fy_topology t = make(s, rank);
    for (uint32_t i = 0, n = list_kinds(s, kinds); i < n; i++) {
        const scheduled w = {.s = s, .k = kinds[i], .n_ranks = t.world_size};
        const fy_mix_schedule_options options = {w.k.deterministic, w.k.mapped, false};
        fy_mix_schedule schedule;
        ferry_error error;
        must(fy_mix_schedule_build(&t, w.k.op, w.k.mode, &options, &schedule, &error), &error);
        check_size(&w, &schedule);
        fy_mix_schedule_cleanup(&schedule);
    }
}

/* The first rank, the last, and one between. */
static void check_topology(const shape *s)
{
    uint32_t n = world_size(s);
    check_rank(s, 0);
    check_rank(s, n / 2 + n / 3);
    check_rank(s, n - 1);
}

static void test_all(void **state)
{
    (void)state;
    walk_shapes_of(360, check_topology);
    walk_shapes_of(1024, check_topology);
    assert_true(n_built > 10000);
}

static void test_large(void **state)
{
    (void)state;
    const shape shapes[] = {{8, 1, 512, 1}, {1, 8, 1, 512}, {8, 1, 1, 512},  {1, 8, 512, 1},
                            {4, 2, 256, 2}, {2, 4, 2, 256}, {1, 1, 2, 2048}, {64, 1, 1, 64},
                            {1, 64, 64, 1}, {2, 2, 32, 32}, {4096, 1, 1, 1}, {1, 4095, 1, 1}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        check_topology(&shapes[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_large)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
