/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Which modes keep the one tree of sums, in all topologies of up to 64 ranks: the trees that they
 * make are written out and compared.
 */
#include "mixed_shapes.h"

#include <stdio.h>

/* A sum of sums, of world ranks: each in its order, from the left. */
typedef struct tree {
    uint32_t n;
    uint32_t n_in[MOST_RANKS];
    uint32_t leaf[MOST_RANKS][MOST_RANKS];
} tree;

enum { TREE_BYTES = 512 };

static size_t write_sum(const uint32_t *ranks, uint32_t n, char *text, size_t at)
{
    for (uint32_t i = 1; i < n; i++) {
        text[at++] = '(';
    }
    for (uint32_t i = 0; i < n; i++) {
        at += (size_t)snprintf(text + at, TREE_BYTES - at, i == 0 ? "%u" : " %u)", ranks[i]);
    }
    return at;
}

/* "((0 1) 2)": a sum of one is that one, so equal sums are written alike, whatever their shape. */
static void write_tree(const tree *t, char *text)
{
    size_t at = 0;
    for (uint32_t i = 1; i < t->n; i++) {
        text[at++] = '(';
    }
    for (uint32_t i = 0; i < t->n; i++) {
        if (i > 0) {
            text[at++] = ' ';
        }
        at = write_sum(t->leaf[i], t->n_in[i], text, at);
        if (i > 0) {
            text[at++] = ')';
        }
    }
    text[at] = '\0';
    assert_true(at < TREE_BYTES);
}

/* A number of a rank, by which sums are ordered. */
typedef uint32_t (*numbering)(const fy_topology *rank);

static uint32_t of_none(const fy_topology *rank)
{
    return 0 * rank->world_rank;
}

static uint32_t of_world(const fy_topology *rank)
{
    return rank->world_rank;
}

static uint32_t of_local(const fy_topology *rank)
{
    return rank->local_rank;
}

static uint32_t of_node(const fy_topology *rank)
{
    return rank->inter_rank;
}

static uint32_t of_tp(const fy_topology *rank)
{
    return rank->tp_rank;
}

static uint32_t of_dp(const fy_topology *rank)
{
    return rank->dp_rank;
}

/* Whose inputs are summed: all ranks, or those of one data-parallel group. */
typedef struct summands {
    uint32_t n;
    fy_topology ranks[MOST_RANKS];
} summands;

static void list_summands(const shape *s, uint32_t op, uint32_t chunk, summands *list)
{
    fy_topology all[MOST_RANKS];
    bool every_rank = op_rows[op].shrinks;
    list_ranks(s, all);
    list->n = 0;
    for (uint32_t rank = 0; rank < world_size(s); rank++) {
        if (every_rank || all[rank].dp_rank == chunk) {
            list->ranks[list->n++] = all[rank];
        }
    }
}

/* Sums by one number, ascending, of sums by another; together they tell ranks apart. */
static void make_tree(const summands *list, numbering outer, numbering inner, tree *t)
{
    uint32_t at[MOST_RANKS][MOST_RANKS] = {{0}}; /* rank + 1 */
    for (uint32_t i = 0; i < list->n; i++) {
        const fy_topology *rank = &list->ranks[i];
        assert_int_equal(at[outer(rank)][inner(rank)], 0);
        at[outer(rank)][inner(rank)] = rank->world_rank + 1;
    }
    t->n = 0;
    for (uint32_t o = 0; o < MOST_RANKS; o++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < MOST_RANKS; i++) {
            if (at[o][i] != 0) {
                t->leaf[t->n][n++] = at[o][i] - 1;
            }
        }
        t->n_in[t->n] = n;
        t->n += n > 0;
    }
}

/* As rings make it: from some place on, up or down, on both levels. */
static void turn_tree(const tree *t, uint32_t first, bool down, tree *turned)
{
    turned->n = t->n;
    for (uint32_t o = 0; o < t->n; o++) {
        uint32_t from = (first + (down ? t->n - o : o)) % t->n;
        uint32_t n = t->n_in[from];
        turned->n_in[o] = n;
        for (uint32_t i = 0; i < n; i++) {
            turned->leaf[o][i] = t->leaf[from][(first + (down ? n - i : i)) % n];
        }
    }
}

static bool is_text(const tree *t, const char *text)
{
    char own[TREE_BYTES];
    write_tree(t, own);
    return strcmp(own, text) == 0;
}

/* Whether a sum is this one wherever a ring of up to `n` ranks begins. */
static bool ring_is_text(const tree *t, uint32_t n, const char *text)
{
    for (uint32_t first = 0; first < n; first++) {
        for (uint32_t down = 0; down < 2; down++) {
            tree turned;
            turn_tree(t, first, down != 0, &turned);
            if (!is_text(&turned, text)) {
                return false;
            }
        }
    }
    return true;
}

/*
 * Whether a chunk's sum, as its mode makes it, is that of local ranks ascending, and then of nodes
 * ascending.
 */
static bool makes_one_tree(const summands *list, uint32_t op, mode_family family)
{
    static tree t;
    char canonical[TREE_BYTES];
    bool scatters = op_rows[op].shrinks;
    make_tree(list, of_node, of_local, &t);
    write_tree(&t, canonical);
    switch (family) {
    case WAITS: /* put to all nodes and reduced, then inside; what scatters is its mirror image */
        make_tree(list, scatters ? of_node : of_local, scatters ? of_local : of_node, &t);
        return is_text(&t, canonical);
    case BYTES: /* the reduce-scatter inside is first, then there is one across nodes, or a sum */
        return is_text(&t, canonical);
    case ONE: /* also where it could gather and sum by itself: that order is not promised */
        make_tree(list, of_none, of_world, &t);
        return ring_is_text(&t, list->n, canonical);
    default: /* to be scattered over data-parallel ranks, then reduced over tensor-parallel ones */
        make_tree(list, scatters ? of_tp : of_none, scatters ? of_dp : of_tp, &t);
        return ring_is_text(&t, list->n, canonical);
    }
}

static bool keeps_tree(const shape *s, uint32_t op, mode_family family)
{
    uint32_t n_chunks = s->local_dp * s->inter_dp;
    for (uint32_t chunk = 0; chunk < n_chunks; chunk++) {
        static summands list;
        list_summands(s, op, chunk, &list);
        if (!makes_one_tree(&list, op, family)) {
            return false;
        }
    }
    return true;
}

static void check_trees(const shape *s)
{
    fy_topology t = make(s, 0);
    for (size_t i = 0; i < COUNT_OF(mode_rows); i++) {
        const struct mode_row *row = &mode_rows[i];
        bool kept = true;
        check_shape(s, fy_topology_keeps_tree(&t, FERRY_MIXED_ALL_GATHER, row->mode));
        for (uint32_t op = 0; offers_mode(s, row, true) && op < FERRY_MIXED_N_OPS; op++) {
            if (fy_topology_has_op(&t, op)) {
                bool keeps = keeps_tree(s, op, row->family);
                kept = kept && keeps;
                check_at(fy_topology_keeps_tree(&t, op, row->mode) == keeps,
                         "op %u, mode %u: local tp %u x dp %u, inter tp %u x dp %u", op, row->mode,
                         s->local_tp, s->local_dp, s->inter_tp, s->inter_dp);
            }
        }
        for (uint32_t multicast = 0; multicast < 2; multicast++) {
            check_shape(s, fy_topology_has_mode(&t, row->mode, multicast != 0, true) ==
                               (offers_mode(s, row, multicast != 0) && kept));
        }
    }
}

static void test_trees(void **state)
{
    (void)state;
    walk_shapes(check_trees);
}

/* The oracle itself, by hand. */
static void test_written_trees(void **state)
{
    (void)state;
    const shape s = {2, 1, 2, 1};
    summands list;
    tree t;
    list_summands(&s, FERRY_MIXED_ALL_REDUCE, 0, &list);
    make_tree(&list, of_node, of_local, &t);
    assert_true(is_text(&t, "((0 1) (2 3))"));
    make_tree(&list, of_local, of_node, &t);
    assert_true(is_text(&t, "((0 2) (1 3))"));
    make_tree(&list, of_none, of_tp, &t);
    assert_true(is_text(&t, "(((0 1) 2) 3)"));
    tree turned;
    turn_tree(&t, 1, false, &turned);
    assert_true(is_text(&turned, "(((1 2) 3) 0)"));
    turn_tree(&t, 1, true, &turned);
    assert_true(is_text(&turned, "(((1 0) 3) 2)"));
    const shape groups = {2, 2, 1, 1};
    list_summands(&groups, FERRY_MIXED_ALL_REDUCE_ALL_GATHER, 1, &list);
    make_tree(&list, of_node, of_local, &t);
    assert_true(is_text(&t, "(2 3)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_written_trees),
        cmocka_unit_test(test_trees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
