/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of small specs, every way to cut the source with every way to cut the destination: what a
 * route says about touches, counts and places must agree with the atoms that it lists.
 */
#include "plan/core.h"

#include "support/check.h"
#include "support/random.h"
#include "support/spec.h"

#include <stdio.h>

/* Sides over a mesh of 2 x 2: each is a rule for a tensor of one or two dimensions. */
typedef struct cut {
    const char *rule;
    uint32_t least_dims;
} cut;

static const cut cuts[] = {
    {"", 0},
    {",'shard':[{'dim':0,'axis':'a'}]", 1},
    {",'shard':[{'dim':0,'axis':['b','a']}]", 1},
    {",'shard':[{'dim':0,'axis':['a','b'],'nested':true}]", 1},
    {",'shard':[{'dim':0,'axis':['a','b'],'parts':2}]", 1},
    {",'shard':[{'dim':0,'axis':'b','stride':3}]", 1},
    {",'shard':[{'dim':0,'axis':['a','b'],'cycle':2}]", 1},
    {",'shard':[{'dim':0,'axis':'a','sizes':[0,12]}]", 1},
    {",'shard':[{'dim':0,'axis':['a','b'],'sizes':[5,0,1,6]}]", 1},
    {",'shard':[{'dim':0,'axis':['a','b'],'blocks':[4,[4,2],[2,1],2]}]", 1},
    {",'shard':[{'dim':0,'axis':'a','blocks':[[6,1],6]}]", 1},
    {",'flat':{'axis':'b'}", 1},
    {",'flat':{'axis':'b'},'shard':[{'dim':0,'axis':'a','stride':2}]", 1},
    {",'on':{'b':1},'shard':[{'dim':0,'axis':'a'}]", 1},
    {",'shard':[{'dim':1,'axis':'b'}]", 2},
    {",'shard':[{'dim':1,'axis':'a'},{'dim':0,'axis':'b','stride':2}]", 2},
    {",'shard':[{'dim':1,'axis':'a','sizes':[1,4]},{'dim':0,'axis':'b','blocks':[6,6]}]", 2},
    {",'shard':[{'dim':1,'axis':'a','blocks':[[2,1],3]},{'dim':0,'axis':'b','blocks':[[4,1],8]}]",
     2},
    {",'shard':[{'dim':1,'axis':'a','cycle':1}],'flat':{'axis':'b'}", 2},
};

static const char *const shapes[] = {"[]", "[12]", "[12,5]"};

typedef struct scene {
    const char *row;
    const ferry_plan *plan;
    const fy_route *route;
    uint32_t n_dst;
    fy_atoms *atoms; /* [n_dst] all atoms of each destination cell */
} scene;

static void check_atoms(const scene *s, uint32_t dst)
{
    const fy_routes *routes = &s->plan->routes;
    const fy_atoms *atoms = &s->atoms[dst];
    uint64_t wanted = 0;
    for (size_t i = 0; i < atoms->n_items; i++) {
        check_row(s->row, atoms->items[i].volume ==
                              fy_box_volume(atoms->items[i].length, s->route->n_dims));
        check_row(s->row, atoms->items[i].volume > 0 && atoms->items[i].cell < s->route->n_cells);
        wanted += atoms->items[i].volume;
    }
    check_row(s->row, fy_route_wanted(routes, s->route, dst) == wanted);
    check_row(s->row, fy_route_atom_count(routes, s->route, dst) == atoms->n_items);
}

static uint64_t volume_of(const fy_atoms *atoms, uint32_t cell)
{
    uint64_t volume = 0;
    for (size_t i = 0; i < atoms->n_items; i++) {
        volume += atoms->items[i].cell == cell ? atoms->items[i].volume : 0;
    }
    return volume;
}

/* One source cell: its touches, in order, by every way to ask for them. */
static void check_cell(const scene *s, uint32_t cell)
{
    const fy_routes *routes = &s->plan->routes;
    fy_cell_touch *touches = NULL;
    size_t capacity = 0, n = 0, at = 0;
    uint64_t before = 0;
    ferry_error error;
    must(fy_route_list_touches(routes, s->route, cell, &touches, &capacity, &n, &error), &error);
    for (uint32_t dst = 0; dst < s->n_dst; dst++) {
        uint64_t volume = volume_of(&s->atoms[dst], cell);
        fy_cell_touch touch = fy_route_touch(routes, s->route, cell, dst);
        check_row(s->row, touch.volume == volume);
        if (volume == 0) {
            continue;
        }
        check_row(s->row, touch.dst == dst && touch.before == before);
        check_row(s->row, at < n && touches[at].dst == dst && touches[at].volume == volume &&
                              touches[at].before == before);
        at++;
        for (uint64_t i = 0; i < volume; i++) {
            fy_cell_touch found = fy_route_touch_at(routes, s->route, cell, before + i);
            check_row(s->row, found.dst == dst && found.volume == volume && found.before == before);
        }
        before += volume;
    }
    check_row(s->row, at == n);
    check_row(s->row, fy_route_cell_total(s->route, cell) == before);
    fy_free(touches);
}

static bool same_atom(const fy_atom *a, const fy_atom *b)
{
    return a->cell == b->cell && a->volume == b->volume &&
           memcmp(a->src_begin, b->src_begin, sizeof a->src_begin) == 0 &&
           memcmp(a->src_global, b->src_global, sizeof a->src_global) == 0 &&
           memcmp(a->dst_begin, b->dst_begin, sizeof a->dst_begin) == 0 &&
           memcmp(a->length, b->length, sizeof a->length) == 0;
}

/* The atoms of one source cell, with their places among all of the destination. */
static void check_cell_atoms(const scene *s, uint32_t cell, uint32_t dst)
{
    fy_atoms some = {0};
    uint64_t *index = NULL;
    size_t capacity = 0, k = 0;
    ferry_error error;
    must(fy_route_list_cell_atoms(&s->plan->routes, s->route, cell, dst, &some, &index, &capacity,
                                  &error),
         &error);
    for (size_t i = 0; i < s->atoms[dst].n_items; i++) {
        const fy_atom *atom = &s->atoms[dst].items[i];
        if (atom->cell == cell) {
            check_row(s->row, k < some.n_items && index[k] == i);
            check_row(s->row, same_atom(&some.items[k], atom));
            k++;
        }
    }
    check_row(s->row, k == some.n_items);
    fy_atoms_cleanup(&some);
    fy_free(index);
}

static void check_route(scene *s)
{
    const fy_routes *routes = &s->plan->routes;
    ferry_error error;
    s->n_dst = fy_route_dst_holders(routes, s->route)->n_cells;
    s->atoms = fy_alloc_zeroed(s->n_dst, sizeof *s->atoms);
    for (uint32_t dst = 0; dst < s->n_dst; dst++) {
        must(fy_route_list_atoms(routes, s->route, dst, &s->atoms[dst], &error), &error);
        check_atoms(s, dst);
    }
    for (uint32_t cell = 0; cell < s->route->n_cells; cell++) {
        check_cell(s, cell);
        for (uint32_t dst = 0; dst < s->n_dst; dst++) {
            check_cell_atoms(s, cell, dst);
        }
    }
    for (uint32_t dst = 0; dst < s->n_dst; dst++) {
        fy_atoms_cleanup(&s->atoms[dst]);
    }
    fy_free(s->atoms);
}

static void check_spec(const char *spec)
{
    ferry_plan *plan = plan_of(spec, NULL);
    scene s = {.row = spec, .plan = plan};
    check_row(spec, plan->routes.n_routes > 0);
    for (size_t r = 0; r < plan->routes.n_routes; r++) {
        s.route = &plan->routes.routes[r];
        check_route(&s);
    }
    ferry_plan_destroy(plan);
}

static void test_all_cuts(void **state)
{
    (void)state;
    char spec[2000];
    size_t n = 0;
    for (size_t shape = 0; shape < COUNT_OF(shapes); shape++) {
        for (size_t i = 0; i < COUNT_OF(cuts); i++) {
            for (size_t j = 0; j < COUNT_OF(cuts); j++) {
                if (cuts[i].least_dims > shape || cuts[j].least_dims > shape) {
                    continue;
                }
                snprintf(
                    spec, sizeof spec,
                    "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':%s,'dtype':'u8'}],"
                    "'source':{'mesh':[['a',2],['b',2]],'rules':[{'match':'*'%s}]},"
                    "'destination':{'mesh':[['a',2],['b',2]],'first_rank':2,"
                    "'rules':[{'match':'*'%s}]}}",
                    shapes[shape], cuts[i].rule, cuts[j].rule);
                check_spec(spec);
                n++;
            }
        }
    }
    print_message("%zu plans\n", n);
}

/* Destinations that are fed from boxes: the region is a part of both sides. */
static void test_boxes(void **state)
{
    (void)state;
    char spec[3000];
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        for (size_t j = 0; j < COUNT_OF(cuts); j++) {
            snprintf(spec, sizeof spec,
                     "{'format':'ferry.spec/1','tensors':[{'name':'s','shape':[12,5],'dtype':'u8'},"
                     "{'name':'t','shape':[12,5],'dtype':'u8','source':["
                     "{'tensor':'s','begin':[5,1],'shape':[7,4],'at':[0,0]},"
                     "{'tensor':'s','begin':[0,0],'shape':[5,4],'at':[7,0]},"
                     "{'tensor':'s','begin':[0,4],'shape':[12,1],'at':[0,4]}]}],"
                     "'source':{'mesh':[['a',2],['b',2]],'rules':[{'match':'*'%s}]},"
                     "'destination':{'mesh':[['a',2],['b',2]],'first_rank':2,"
                     "'rules':[{'match':'s','skip':true},{'match':'*'%s}]}}",
                     cuts[i].rule, cuts[j].rule);
            check_spec(spec);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_cuts),
        cmocka_unit_test(test_boxes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
