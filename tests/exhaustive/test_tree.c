/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The control tree, for every shape of small worlds and some large ones: each way is walked. */
#include "world/tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST_PLACES = 2048 };

static bool neighbours(fy_tree_place a, fy_tree_place b)
{
    return (!fy_place_is_root(a) && fy_place_equal(fy_tree_parent(a), b)) ||
           (!fy_place_is_root(b) && fy_place_equal(fy_tree_parent(b), a));
}

/* All places of nodes of these sizes; returns how many. */
static size_t list_places(const uint32_t *sizes, uint32_t n_nodes, fy_tree_place *places)
{
    size_t n = 0;
    for (uint32_t node = 0; node < n_nodes; node++) {
        for (uint32_t i = 0; i < sizes[node]; i++) {
            places[n++] = (fy_tree_place){node, i};
        }
    }
    return n;
}

/* A parent comes before its child: it has joined when the child is told of it. */
static void check_parents(const fy_tree_place *places, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fy_tree_place parent = fy_tree_parent(places[i]);
        size_t children = 0;
        if (fy_place_is_root(places[i])) {
            assert_true(fy_place_equal(parent, places[i]));
        } else {
            assert_true(parent.node < places[i].node ||
                        (parent.node == places[i].node && parent.index < places[i].index));
            /* Only heads have a parent on another node, and it is a head. */
            assert_true(parent.node == places[i].node ||
                        (places[i].index == 0 && parent.index == 0));
        }
        for (size_t j = 0; j < n; j++) {
            children += !fy_place_is_root(places[j]) &&
                        fy_place_equal(fy_tree_parent(places[j]), places[i]);
        }
        assert_true(children <= 2 * FY_TREE_ARITY);
    }
}

static void check_ways(const fy_tree_place *places, size_t n, size_t step)
{
    for (size_t i = 0; i < n; i += step) {
        for (size_t j = 0; j < n; j += step) {
            fy_tree_place at = places[i];
            size_t n_hops = 0;
            while (!fy_place_equal(at, places[j])) {
                fy_tree_place next = fy_tree_next(at, places[j]);
                assert_true(neighbours(at, next));
                at = next;
                assert_true(++n_hops <= 16);
            }
        }
    }
}

static void test_small_shapes(void **state)
{
    (void)state;
    static fy_tree_place places[MOST_PLACES];
    for (uint32_t a = 1; a <= 40; a += 3) {
        for (uint32_t b = 0; b <= 20; b += 4) {
            for (uint32_t c = 0; c <= 3; c++) {
                uint32_t sizes[] = {a, b, c};
                size_t n = list_places(sizes, b == 0 ? 1 : c == 0 ? 2 : 3, places);
                check_parents(places, n);
                check_ways(places, n, 1);
            }
        }
    }
}

static void test_many_nodes(void **state)
{
    (void)state;
    static fy_tree_place places[MOST_PLACES];
    uint32_t sizes[300];
    for (uint32_t i = 0; i < 300; i++) {
        sizes[i] = 1 + i % 8;
    }
    size_t n = list_places(sizes, 300, places);
    check_parents(places, n);
    check_ways(places, n, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_shapes),
        cmocka_unit_test(test_many_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
