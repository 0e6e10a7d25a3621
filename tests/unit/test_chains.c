/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources that have a source: boxes that are joined again, however they were cut, and specs of
 * which the plan is that of the spec without what lies in between.
 */
#include "support/check.h"
#include "support/random.h"
#include "support/spec.h"

#include "unit/prove_case.h"

#include "base/alloc.h"
#include "layout/join.h"
#include "model/compose.h"

#include <stdio.h>

enum { SIDE = 4, MOST_CELLS = SIDE * SIDE * SIDE };

/* A region of a cube of SIDE, by its cells. */
typedef struct region {
    uint32_t n_dims;
    size_t n_cells;
    bool has[MOST_CELLS];
} region;

static region draw_region(uint64_t *random)
{
    region r = {.n_dims = 1 + (uint32_t)(random_u64(random) % 3), .n_cells = 1};
    uint64_t density = 1 + random_u64(random) % 7;
    for (uint32_t d = 0; d < r.n_dims; d++) {
        r.n_cells *= SIDE;
    }
    for (size_t i = 0; i < r.n_cells; i++) {
        r.has[i] = random_u64(random) % 8 < density;
    }
    return r;
}

static size_t cell_of(const region *r, const uint64_t *at)
{
    size_t cell = 0;
    for (uint32_t d = 0; d < r->n_dims; d++) {
        cell = cell * SIDE + (size_t)at[d];
    }
    return cell;
}

/* Calls for every cell of a box, and tells how many of them the region has; with a mark, they are
 * taken out of it. */
static size_t count_cells(region *r, const fy_box *box, bool take)
{
    size_t n = 0;
    uint64_t at[3] = {0};
    for (size_t cell = 0; cell < r->n_cells; cell++) {
        size_t rest = cell;
        bool inside = true;
        for (uint32_t d = r->n_dims; d-- > 0; rest /= SIDE) {
            at[d] = rest % SIDE;
            inside = inside && at[d] >= box->begin[d] && at[d] < box->begin[d] + box->length[d];
        }
        if (inside && r->has[cell_of(r, at)]) {
            n++;
            r->has[cell] = r->has[cell] && !take;
        }
    }
    return n;
}

static void add_box(fy_boxes *boxes, const fy_box *box)
{
    assert_true(FY_RESERVE(boxes->items, boxes->capacity, boxes->n + 1));
    boxes->items[boxes->n++] = *box;
}

/* Boxes of random lengths that make up the region; most_long 1: its cells. */
static fy_boxes cut_region(region r, uint64_t most_long, uint64_t *random)
{
    fy_boxes boxes = {0};
    for (size_t cell = 0; cell < r.n_cells; cell++) {
        fy_box box = {{0}, {0}};
        size_t rest = cell;
        if (!r.has[cell]) {
            continue;
        }
        for (uint32_t d = r.n_dims; d-- > 0; rest /= SIDE) {
            box.begin[d] = rest % SIDE;
            box.length[d] = 1;
        }
        for (uint32_t d = 0; d < r.n_dims; d++) {
            uint64_t wanted = 1 + random_u64(random) % most_long;
            while (box.length[d] < wanted && box.begin[d] + box.length[d] < SIDE) {
                fy_box longer = box;
                longer.length[d]++;
                if (count_cells(&r, &longer, false) != fy_box_volume(longer.length, r.n_dims)) {
                    break;
                }
                box = longer;
            }
        }
        count_cells(&r, &box, true);
        add_box(&boxes, &box);
    }
    return boxes;
}

static void test_joined_boxes_are_a_function_of_their_union(void **state)
{
    (void)state;
    uint64_t random = 71;
    for (int i = 0; i < 2000; i++) {
        region r = draw_region(&random), left = r;
        fy_boxes a = cut_region(r, 1, &random), b = cut_region(r, SIDE, &random);
        size_t n_cells = a.n;
        ferry_error error;
        must(fy_boxes_join(&a, r.n_dims, &error), &error);
        must(fy_boxes_join(&b, r.n_dims, &error), &error);
        check_at(a.n == b.n && (a.n == 0 || memcmp(a.items, b.items, a.n * sizeof *a.items) == 0),
                 "case %d: %zu and %zu boxes", i, a.n, b.n);
        for (size_t k = 0; k < a.n; k++) {
            size_t volume = (size_t)fy_box_volume(a.items[k].length, r.n_dims);
            check_at(count_cells(&left, &a.items[k], true) == volume, "case %d, box %zu", i, k);
            n_cells -= volume;
        }
        check_at(n_cells == 0, "case %d: %zu cells are left", i, n_cells);
        fy_free(a.items);
        fy_free(b.items);
    }
}

/* A comb with a tooth of another length at every place: as many boxes as teeth, and no more work
 * than that. */
static void test_what_cannot_be_joined_stays(void **state)
{
    (void)state;
    enum { N = 4000 };
    fy_boxes boxes = {0};
    ferry_error error;
    for (uint64_t i = 0; i < N; i++) {
        fy_box tooth = {{2 * i, 1}, {1, 1 + i}};
        add_box(&boxes, &tooth);
        fy_box piece = {{2 * i, 0}, {2, 1}};
        add_box(&boxes, &piece);
    }
    must(fy_boxes_join(&boxes, 2, &error), &error);
    assert_int_equal(boxes.n, 2 * N);
    fy_free(boxes.items);
}

static void test_tilings_and_where_they_fail(void **state)
{
    (void)state;
    uint64_t random = 5;
    size_t n_of[3] = {0};
    for (int i = 0; i < 3000; i++) {
        region all = {.n_dims = 2, .n_cells = SIDE * SIDE}, none = all;
        uint64_t shape[] = {SIDE, SIDE};
        fy_tiling tiling;
        ferry_error error;
        memset(all.has, 1, sizeof all.has);
        fy_boxes boxes = cut_region(all, 1 + random_u64(&random) % SIDE, &random);
        uint64_t change = random_u64(&random) % 3;
        fy_box *one = &boxes.items[random_u64(&random) % boxes.n];
        if (change == 1) {
            *one = boxes.items[--boxes.n];
        } else if (change == 2) {
            one->begin[0] = random_u64(&random) % (SIDE + 1 - one->length[0]);
        }
        must(fy_boxes_check_tiling(boxes.items, boxes.n, shape, 2, &tiling, &error), &error);
        n_of[tiling.fault]++;
        size_t n = 0, times = 0;
        for (size_t k = 0; k < boxes.n; k++) {
            n += (size_t)fy_box_volume(boxes.items[k].length, 2);
            times += fy_box_meets(&boxes.items[k], &tiling.where, 2);
            count_cells(&none, &boxes.items[k], true);
            for (size_t c = 0; c < SIDE * SIDE; c++) {
                fy_box cell = {{c / SIDE, c % SIDE}, {1, 1}};
                all.has[c] = all.has[c] && !fy_box_meets(&cell, &boxes.items[k], 2);
            }
        }
        size_t n_missing = 0;
        for (size_t c = 0; c < SIDE * SIDE; c++) {
            n_missing += all.has[c];
        }
        bool overlaps = n > SIDE * SIDE - n_missing;
        check_at((tiling.fault == FY_TILING_OVERLAP) == overlaps, "case %d", i);
        check_at((tiling.fault == FY_TILING_NONE) == (!overlaps && n_missing == 0), "case %d", i);
        check_at(tiling.fault != FY_TILING_GAP || times == 0, "case %d", i);
        check_at(tiling.fault != FY_TILING_OVERLAP || times >= 2, "case %d", i);
        fy_free(boxes.items);
    }
    assert_true(n_of[0] > 100 && n_of[1] > 100 && n_of[2] > 100);
}

static const char sides[] = "],'source':{'mesh':[['tp',3]],'rules':[{'match':'*','shard':[{'dim':0,"
                            "'axis':'tp'}]}]},'destination':{'mesh':[['tp',2]],'rules':["
                            "{'match':'last','shard':[{'dim':0,'axis':'tp'}]}%s]}}";

static text_buffer begin_spec(void)
{
    text_buffer g = {0};
    text_printf(&g, "{'format':'ferry.spec/1','tensors':[");
    return g;
}

/* Its printed plan; it is proved, too. */
static text_buffer planned(text_buffer *g, const char *rules)
{
    text_printf(g, sides, rules);
    ferry_plan *plan = plan_of(g->bytes, NULL);
    text_buffer printed = print_plan(plan);
    ferry_plan_destroy(plan);
    write_json("spec.json", g->bytes);
    write_bytes("plan.json", printed.bytes, strlen(printed.bytes));
    expect("a chain", FERRY_OK, "");
    text_cleanup(g);
    return printed;
}

static void check_same(text_buffer *chain, text_buffer *direct)
{
    text_buffer a = planned(chain, "");
    text_buffer b = planned(direct, ",{'match':'*','skip':true}");
    assert_string_equal(a.bytes, b.bytes);
    text_cleanup(&a);
    text_cleanup(&b);
}

/* Each tensor is cut at another place, and put together as it was. */
static void test_a_chain_of_a_thousand(void **state)
{
    (void)state;
    text_buffer chain = begin_spec(), direct = begin_spec();
    text_printf(&chain, "{'name':'t0','shape':[64,8],'dtype':'u8'}");
    text_printf(&direct, "{'name':'t0','shape':[64,8],'dtype':'u8'}");
    for (int i = 1; i <= 1000; i++) {
        int at = 1 + i * 7 % 63;
        text_printf(&chain,
                    ",{'name':'%s%d','shape':[64,8],'dtype':'u8','source':["
                    "{'tensor':'t%d','begin':[%d,0],'shape':[%d,8],'at':[%d,0]},"
                    "{'tensor':'t%d','begin':[0,0],'shape':[%d,8],'at':[0,0]}]}",
                    "t", i, i - 1, at, 64 - at, at, i - 1, at);
    }
    text_printf(&chain, ",{'name':'last','shape':[64,8],'dtype':'u8','source':'t1000'}");
    text_printf(&direct, ",{'name':'last','shape':[64,8],'dtype':'u8','source':'t0'}");
    text_buffer a = planned(&chain, ",{'match':'t0','skip':true}");
    text_buffer b = planned(&direct, ",{'match':'*','skip':true}");
    /* The number of tensors and the digest tell that there are others. */
    assert_string_equal(strstr(a.bytes, "\"moves\""), strstr(b.bytes, "\"moves\""));
    text_cleanup(&a);
    text_cleanup(&b);
}

/* Halves of halves that are put together again: as many ways as 2^60, and one box. */
static void test_a_diamond_of_sixty(void **state)
{
    (void)state;
    text_buffer chain = begin_spec();
    text_printf(&chain, "{'name':'t0','shape':[8],'dtype':'u8','only':'source'}");
    for (int i = 1; i <= 60; i++) {
        text_printf(&chain,
                    ",{'name':'t%d','shape':[8],'dtype':'u8','source':["
                    "{'tensor':'t%d','begin':[4],'shape':[4],'at':[4]},"
                    "{'tensor':'t%d','begin':[0],'shape':[4],'at':[0]}]}",
                    i, i - 1, i - 1);
    }
    text_printf(&chain, ",{'name':'last','shape':[8],'dtype':'u8','source':'t60'}");
    text_buffer printed = planned(&chain, "");
    /* 8 places of 3 to 2 ranks: what a copy of t0 would be. */
    assert_non_null(strstr(printed.bytes, "\"task_id\":3"));
    assert_null(strstr(printed.bytes, "\"task_id\":4"));
    text_cleanup(&printed);
}

static void check_refused(text_buffer *g, const char *says)
{
    ferry_spec *spec = NULL;
    ferry_error error = {""};
    text_printf(g, sides, ",{'match':'*','skip':true}");
    ferry_status status = try_spec(g->bytes, &spec, &error);
    ferry_spec_destroy(spec);
    check_at(status != FERRY_OK, "%s: is no error", says);
    check_says(says, says, &error);
    text_cleanup(g);
}

/* Each tensor is the one before it, twice: the limit counts boxes, and names the tensor. */
static void test_too_many_boxes(void **state)
{
    (void)state;
    for (int n = 14; n <= 15; n++) {
        text_buffer g = begin_spec();
        text_printf(&g, "{'name':'t0','shape':[1],'dtype':'u8'}");
        for (int i = 1; i <= n; i++) {
            text_printf(&g,
                        ",{'name':'%s%d','shape':[%d],'dtype':'u8','source':["
                        "{'tensor':'t%d','begin':[0],'shape':[%d],'at':[0]},"
                        "{'tensor':'t%d','begin':[0],'shape':[%d],'at':[%d]}]}",
                        "t", i, 1 << i, i - 1, 1 << (i - 1), i - 1, 1 << (i - 1), 1 << (i - 1));
        }
        if (n == 15) {
            check_refused(&g, "\"t15\" is composed of 32768 boxes; 16384 are possible");
            continue;
        }
        text_printf(&g, ",{'name':'last','shape':[%d],'dtype':'u8','source':'t%d'}", 1 << n, n);
        text_buffer printed = planned(&g, ",{'match':'*','skip':true}");
        text_cleanup(&printed);
    }
}

static void test_many_parts_of_much(void **state)
{
    (void)state;
    text_buffer g = begin_spec();
    text_printf(&g, "{'name':'t0','shape':[1],'dtype':'u8'}");
    for (int i = 1; i <= 13; i++) {
        text_printf(&g,
                    ",{'name':'t%d','shape':[%d],'dtype':'u8','source':["
                    "{'tensor':'t%d','begin':[0],'shape':[%d],'at':[0]},"
                    "{'tensor':'t%d','begin':[0],'shape':[%d],'at':[%d]}]}",
                    i, 1 << i, i - 1, 1 << (i - 1), i - 1, 1 << (i - 1), 1 << (i - 1));
    }
    text_printf(&g, ",{'name':'part.{0}','count':[1000],'shape':[8191],'dtype':'u8','source':["
                    "{'tensor':'t13','begin':[1],'shape':[8191],'at':[0]}]}");
    check_refused(&g, "8191 boxes; 16384 are possible, and 4194304 for all tensors");
}

typedef struct bad_chain {
    const char *tensors, *says;
} bad_chain;

#define LINK(name, source) "{'name':'" name "','shape':[4],'dtype':'u8','source':'" source "'}"
#define BASE "{'name':'base','shape':[4],'dtype':'u8'}"

static void test_bad_chains(void **state)
{
    (void)state;
    static const bad_chain rows[] = {
        {LINK("a", "a"), "spec: tensors have sources in a circle, so nothing says what is in "
                         "them: \"a\" -> \"a\"; give one of them another source, or none"},
        {LINK("a", "b") "," LINK("b", "a"), "what is in them: \"a\" -> \"b\" -> \"a\"; give"},
        {BASE "," LINK("x", "a") "," LINK("a", "b") "," LINK("b", "c") "," LINK("c", "a"),
         "what is in them: \"a\" -> \"b\" -> \"c\" -> \"a\"; give"},
        {BASE ",{'name':'a','shape':[4],'dtype':'u8','source':["
              "{'tensor':'base','begin':[0],'shape':[2],'at':[0]},"
              "{'tensor':'b','begin':[0],'shape':[2],'at':[2]}]}," LINK("b", "a"),
         "\"a\" -> \"b\" -> \"a\""},
        {BASE "," LINK("a", "base") ",{'name':'b','shape':[4],'dtype':'i8','source':'a'}",
         "source of \"b\" (i8) names \"a\", which is u8; dtypes must agree"},
        {BASE "," LINK("a", "base") ",{'name':'b','shape':[2,2],'dtype':'u8','source':'a'}",
         "names \"a\", whose shape differs"},
        {BASE "," LINK("a", "gone") "," LINK("b", "a"), "names \"gone\", which is not an entry"},
        {BASE ",{'name':'a','shape':[4],'dtype':'u8','source':["
              "{'tensor':'base','begin':[0],'shape':[3],'at':[0]}]}," LINK("b", "a"),
         "boxes of \"a\" have 3 elements, but the tensor has 4"},
        {BASE "," LINK("a", "base") ",{'name':'b','shape':[4],'dtype':'u8','source':["
                                    "{'tensor':'a','begin':[0],'shape':[3],'at':[0]},"
                                    "{'tensor':'a','begin':[0],'shape':[1],'at':[2]}]}",
         "boxes of \"b\" overlap"},
        {BASE "," LINK("a", "base") ",{'name':'b','shape':[4],'dtype':'u8','source':["
                                    "{'tensor':'a','begin':[1],'shape':[4],'at':[0]}]}",
         "reaches from 1 to 5 on dim 0 of \"a\", whose extent is 4"},
        {"{'name':'base','shape':[4],'dtype':'u8','only':'destination'}",
         "only must be \"source\", not \"destination\""},
        {"{'name':'base','shape':[4],'dtype':'u8','only':true}", "only must be"},
        {BASE ",{'name':'a','shape':[4],'dtype':'u8','only':'source','source':'base'}",
         "has a source, so it is not at the source side"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        text_buffer g = begin_spec();
        text_printf(&g, "%s", rows[i].tensors);
        check_refused(&g, rows[i].says);
    }
}

/* A circle of tensors with long names is named as far as a sentence goes. */
static void test_a_long_circle(void **state)
{
    (void)state;
    text_buffer g = begin_spec();
    for (int i = 0; i < 300; i++) {
        text_printf(&g, "%s{'name':'layer.%d','shape':[4],'dtype':'u8','source':'layer.%d'}",
                    i == 0 ? "" : ",", i, (i + 1) % 300);
    }
    check_refused(&g, "sources in a circle, so nothing says what is in them: \"layer.0\" -> "
                      "\"layer.1\" -> ");
}

/* The prover reads the spec itself, so it finds circles by itself. */
static void test_the_prover_refuses_circles(void **state)
{
    (void)state;
    static const char *const circles[] = {
        BASE "," LINK("x", "a") "," LINK("a", "b") "," LINK("b", "a") "," LINK("last", "base"),
        BASE "," LINK("a", "a") "," LINK("last", "base"),
    };
    for (size_t i = 0; i < COUNT_OF(circles); i++) {
        text_buffer g = begin_spec();
        text_printf(&g, "%s", circles[i]);
        text_printf(&g, sides, "");
        write_json("spec.json", g.bytes);
        write_json("plan.json", "{}");
        expect("a circle", FERRY_ERR_INVALID_INPUT, "its sources lead back to it, in a circle");
        text_cleanup(&g);
    }
}

/* What lies in between needs no rule, and is wanted where a rule wants it. */
static void test_rules_of_what_lies_between(void **state)
{
    (void)state;
    static const char tensors[] = "{'name':'base','shape':[4],'dtype':'u8','only':'source'},"
                                  "{'name':'between','shape':[2,2],'dtype':'u8','source':["
                                  "{'tensor':'base','begin':[0],'shape':[2],'at':[1,0]},"
                                  "{'tensor':'base','begin':[2],'shape':[2],'at':[0,0]}]},"
                                  "{'name':'last','shape':[4],'dtype':'u8','source':["
                                  "{'tensor':'between','begin':[0,0],'shape':[1,2],'at':[0]},"
                                  "{'tensor':'between','begin':[1,0],'shape':[1,2],'at':[2]}]}";
    text_buffer without = begin_spec(), with = begin_spec();
    text_printf(&without, "%s", tensors);
    text_printf(&with, "%s", tensors);
    text_buffer a = planned(&without, ""), b = planned(&with, ",{'match':'betw*'}");
    assert_null(strstr(a.bytes, "\"tensor\":\"between\""));
    assert_non_null(strstr(b.bytes, "\"tensor\":\"between\",\"source\":\"base\""));
    text_cleanup(&a);
    text_cleanup(&b);
}

/* The same map, said in one step and in two. */
static void test_equal_maps_have_equal_plans(void **state)
{
    (void)state;
    text_buffer chain = begin_spec(), direct = begin_spec();
    static const char bases[] = "{'name':'a','shape':[3,4],'dtype':'u8','only':'source'},"
                                "{'name':'b','shape':[5,4],'dtype':'u8','only':'source'},";
    text_printf(&chain, "%s", bases);
    text_printf(&direct, "%s", bases);
    text_printf(&chain, "{'name':'ab','shape':[8,4],'dtype':'u8','source':["
                        "{'tensor':'b','begin':[0,0],'shape':[5,4],'at':[3,0]},"
                        "{'tensor':'a','begin':[0,0],'shape':[3,4],'at':[0,0]}]},"
                        "{'name':'last','shape':[6,4],'dtype':'u8','source':["
                        "{'tensor':'ab','begin':[4,0],'shape':[3,4],'at':[3,0]},"
                        "{'tensor':'ab','begin':[1,0],'shape':[3,4],'at':[0,0]}]}");
    text_printf(&direct, "{'name':'ab','shape':[8,4],'dtype':'u8','source':["
                         "{'tensor':'b','begin':[0,0],'shape':[5,4],'at':[3,0]},"
                         "{'tensor':'a','begin':[0,0],'shape':[3,4],'at':[0,0]}]},"
                         "{'name':'last','shape':[6,4],'dtype':'u8','source':["
                         "{'tensor':'a','begin':[1,0],'shape':[2,4],'at':[0,0]},"
                         "{'tensor':'b','begin':[0,0],'shape':[4,4],'at':[2,0]}]}");
    check_same(&chain, &direct);
}

/* Tensors without elements have an origin all the same. */
static void test_nothing_is_chained(void **state)
{
    (void)state;
    text_buffer g = begin_spec();
    text_printf(&g, "{'name':'base','shape':[4,0],'dtype':'u8','only':'source'},"
                    "{'name':'full','shape':[4],'dtype':'u8'},"
                    "{'name':'between','shape':[2,4,0],'dtype':'u8','source':["
                    "{'tensor':'base','begin':[0,0],'shape':[4,0],'at':[1,0,0]}]},"
                    "{'name':'none','shape':[4,0],'dtype':'u8','source':["
                    "{'tensor':'between','begin':[0,0,0],'shape':[1,4,0],'at':[0,0]}]},"
                    "{'name':'last','shape':[4],'dtype':'u8','source':'full'}");
    text_buffer printed = planned(&g, ",{'match':'none'},{'match':'full','skip':true}");
    text_cleanup(&printed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined_boxes_are_a_function_of_their_union),
        cmocka_unit_test(test_what_cannot_be_joined_stays),
        cmocka_unit_test(test_tilings_and_where_they_fail),
        cmocka_unit_test(test_a_chain_of_a_thousand),
        cmocka_unit_test(test_a_diamond_of_sixty),
        cmocka_unit_test(test_too_many_boxes),
        cmocka_unit_test(test_many_parts_of_much),
        cmocka_unit_test(test_bad_chains),
        cmocka_unit_test(test_a_long_circle),
        cmocka_unit_test(test_the_prover_refuses_circles),
        cmocka_unit_test(test_rules_of_what_lies_between),
        cmocka_unit_test(test_equal_maps_have_equal_plans),
        cmocka_unit_test(test_nothing_is_chained),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
