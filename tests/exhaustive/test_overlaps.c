/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Overlaps of pairs of small splits, whole and in regions, against what each element says. */
#include "splits.h"

#include "base/alloc.h"
#include "layout/overlap.h"

#include "support/random.h"

#include <stdlib.h>

typedef struct sample {
    fy_split *split;
    naive n;
} sample;

typedef struct pool {
    sample *items;
    size_t n_items, capacity;
} pool;

static void collect(void *context, fy_split *split, const naive *n)
{
    pool *p = context;
    for (size_t i = 0; i < p->n_items; i++) {
        const fy_split *other = p->items[i].split;
        if (other->hash.low == split->hash.low && other->hash.high == split->hash.high &&
            other->n_cells == split->n_cells) {
            fy_split_destroy(split); /* the same again */
            return;
        }
    }
    if (!fy_reserve((void **)&p->items, &p->capacity, p->n_items + 1, sizeof *p->items)) {
        abort();
    }
    p->items[p->n_items++] = (sample){.split = split, .n = *n};
}

static void pool_cleanup(pool *p)
{
    for (size_t i = 0; i < p->n_items; i++) {
        fy_split_destroy(p->items[i].split);
    }
    fy_free(p->items);
    *p = (pool){0};
}

/* One comparison: two splits and a region; the text is made only for a failure. */
typedef struct meeting {
    const sample *src, *dst;
    fy_region region;
    const fy_overlap *overlap;
} meeting;

#define check_meeting(m, condition)                                                                \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fail_msg("not so: %s\nfrom %s [%llu, + %llu), to %s at %llu%s", #condition,            \
                     (m)->src->n.name, (unsigned long long)(m)->region.src_begin,                  \
                     (unsigned long long)(m)->region.length, (m)->dst->n.name,                     \
                     (unsigned long long)(m)->region.dst_begin,                                    \
                     (m)->region.one_owner ? ", one owner" : "");                                  \
        }                                                                                          \
    } while (0)

static uint32_t owners_of_cell(const fy_split *split, uint32_t cell)
{
    fy_owners owners = fy_split_cell_owners(split, cell);
    return ((1u << owners.count) - 1) << owners.first;
}

/* One element of a run: the source cell must be that of the element's owners, or one of them. */
static void check_element(const meeting *m, const fy_run *run, uint64_t i, uint32_t dst_part)
{
    const fy_split *src = m->src->split;
    uint64_t global = run->src_global + i;
    uint32_t owners = m->src->n.owners[global];
    bool shared = (owners & (owners - 1)) != 0;
    if (shared && !m->region.one_owner) {
        check_meeting(m, owners_of_cell(src, run->src_cell) == owners);
        check_meeting(m, run->src_local == FY_LOCAL_BY_OWNER);
        return;
    }
    check_meeting(m, run->src_cell < src->n_parts && (owners >> run->src_cell & 1) != 0);
    check_meeting(m, run->src_local + i == fy_split_local(src, run->src_cell, global));
    /* A part that has the element itself takes it from itself. */
    bool own = dst_part < src->n_parts && (owners >> dst_part & 1) != 0;
    check_meeting(m, !shared || !own || run->src_cell == dst_part);
}

/* Two neighbours that could be one run: contiguous everywhere. A shared cell is joined by sender
 * later. */
static bool could_join(const fy_run *a, const fy_run *b)
{
    return a->src_cell == b->src_cell && a->src_local != FY_LOCAL_BY_OWNER &&
           a->src_global + a->length == b->src_global && a->src_local + a->length == b->src_local &&
           a->dst_local + a->length == b->dst_local;
}

/* The runs of a part are exactly its elements of the region, in local order, as long as can be. */
static void check_runs(const meeting *m, uint32_t part)
{
    const fy_overlap *o = m->overlap;
    const fy_run *runs = o->runs + o->run_begin[part];
    size_t n = fy_overlap_n_runs(o, part), r = 0;
    uint64_t local = 0, inside = 0;
    for (uint64_t e = 0; e < m->dst->n.extent; e++) {
        if ((m->dst->n.owners[e] >> part & 1) == 0) {
            continue;
        }
        if (e >= m->region.dst_begin && e < m->region.dst_begin + m->region.length) {
            check_meeting(m, r < n && runs[r].length > 0);
            check_meeting(m, runs[r].dst_local + inside == local);
            check_meeting(m, runs[r].src_global + inside ==
                                 e - m->region.dst_begin + m->region.src_begin);
            check_element(m, &runs[r], inside, part);
            inside++;
            if (inside == runs[r].length) {
                inside = 0;
                r++;
            }
        }
        local++;
    }
    check_meeting(m, r == n && inside == 0);
    for (size_t i = 1; i < n; i++) {
        check_meeting(m, !could_join(&runs[i - 1], &runs[i]));
    }
}

/* The same runs by source cell: a touch for each part that wants some, with the sum of those
 * before. */
static void check_touches(const meeting *m, uint32_t cell)
{
    const fy_overlap *o = m->overlap;
    uint64_t before = 0;
    size_t at = o->touch_begin[cell];
    for (uint32_t part = 0; part < o->n_dst_parts; part++) {
        const fy_run *runs = o->runs + o->run_begin[part];
        const fy_touch *touch = fy_overlap_find(o, cell, part);
        uint64_t length = 0;
        size_t k = 0;
        for (size_t i = 0; i < fy_overlap_n_runs(o, part); i++) {
            if (runs[i].src_cell == cell) {
                check_meeting(m, touch != NULL && k < touch->n_runs);
                check_meeting(m, o->run_order[touch->first_run + k] == i);
                length += runs[i].length;
                k++;
            }
        }
        check_meeting(m, (touch != NULL) == (length > 0));
        if (touch != NULL) {
            check_meeting(m, touch == &o->touches[at++] && touch->dst_part == part);
            check_meeting(m, touch->length == length && touch->n_runs == k);
            check_meeting(m, touch->before == before);
            for (uint64_t i = 0; i < length; i++) {
                check_meeting(m, fy_overlap_at(o, cell, before + i) == touch);
            }
            before += length;
        }
    }
    check_meeting(m, at == o->touch_begin[cell + 1]);
    check_meeting(m, fy_overlap_cell_total(o, cell) == before);
}

static void check_pair(const sample *src, const sample *dst, fy_region region)
{
    fy_overlap *o = NULL;
    ferry_error error;
    meeting m = {.src = src, .dst = dst, .region = region};
    for (int one_owner = 0; one_owner < 2; one_owner++) {
        m.region.one_owner = one_owner == 1;
        must(fy_overlap_create(src->split, dst->split, &m.region, &o, &error), &error);
        m.overlap = o;
        check_meeting(&m, o->n_dst_parts == dst->split->n_parts);
        check_meeting(&m,
                      o->n_src_cells == (one_owner ? src->split->n_parts : src->split->n_cells));
        for (uint32_t part = 0; part < o->n_dst_parts; part++) {
            check_runs(&m, part);
        }
        for (uint32_t cell = 0; cell < o->n_src_cells; cell++) {
            check_touches(&m, cell);
        }
        fy_overlap_destroy(o);
    }
}

static void fill_pool(pool *p, uint64_t extent, uint32_t most_parts)
{
    for (uint32_t n_parts = 1; n_parts <= most_parts; n_parts++) {
        visit_splits(extent, n_parts, collect, p);
    }
}

static void test_all_pairs(void **state)
{
    (void)state;
    size_t n_pairs = 0;
    for (uint64_t extent = 0; extent <= 5; extent++) {
        pool p = {0};
        fill_pool(&p, extent, 4);
        for (size_t i = 0; i < p.n_items; i++) {
            for (size_t j = 0; j < p.n_items; j++) {
                check_pair(&p.items[i], &p.items[j], (fy_region){.length = extent});
                n_pairs++;
            }
        }
        pool_cleanup(&p);
    }
    print_message("%zu pairs\n", n_pairs);
    assert_in_range(n_pairs, 10000, 100000000);
}

/* Every region of both, from every begin to every begin. */
static void test_all_regions(void **state)
{
    (void)state;
    pool src = {0}, dst = {0};
    uint64_t seed = 1;
    fill_pool(&src, 5, 4);
    fill_pool(&dst, 4, 4);
    for (int i = 0; i < 1500; i++) {
        const sample *a = &src.items[random_below(&seed, (uint32_t)src.n_items)];
        const sample *b = &dst.items[random_below(&seed, (uint32_t)dst.n_items)];
        for (uint64_t from = 0; from <= 5; from++) {
            for (uint64_t to = 0; to <= 4; to++) {
                for (uint64_t length = 0; from + length <= 5 && to + length <= 4; length++) {
                    check_pair(a, b,
                               (fy_region){.src_begin = from, .dst_begin = to, .length = length});
                }
            }
        }
    }
    pool_cleanup(&src);
    pool_cleanup(&dst);
}

static void test_sampled_pairs(void **state)
{
    (void)state;
    enum { N_EXTENTS = 3, N_ROUNDS = 60000 };
    static const uint64_t extents[N_EXTENTS] = {9, 12, MOST_EXTENT};
    pool pools[N_EXTENTS] = {{0}};
    uint64_t seed = 2;
    for (size_t i = 0; i < N_EXTENTS; i++) {
        fill_pool(&pools[i], extents[i], i == 0 ? 5 : 4);
    }
    for (int round = 0; round < N_ROUNDS; round++) {
        const pool *from = &pools[random_below(&seed, N_EXTENTS)];
        const pool *to = &pools[random_below(&seed, N_EXTENTS)];
        const sample *a = &from->items[random_below(&seed, (uint32_t)from->n_items)];
        const sample *b = &to->items[random_below(&seed, (uint32_t)to->n_items)];
        uint32_t most = (uint32_t)(a->n.extent < b->n.extent ? a->n.extent : b->n.extent);
        uint64_t length = round % 2 == 0 ? most : random_below(&seed, most + 1);
        fy_region region = {.src_begin = random_below(&seed, (uint32_t)(a->n.extent - length) + 1),
                            .dst_begin = random_below(&seed, (uint32_t)(b->n.extent - length) + 1),
                            .length = length};
        check_pair(a, b, region);
    }
    for (size_t i = 0; i < N_EXTENTS; i++) {
        pool_cleanup(&pools[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_pairs),
        cmocka_unit_test(test_all_regions),
        cmocka_unit_test(test_sampled_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
