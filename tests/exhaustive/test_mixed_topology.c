/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* All topologies of up to 64 ranks: who is who, all ways to ask for them, and what they offer. */
#include "mixed_shapes.h"

/*
 * Ranks
 */

static void check_maps(const shape *s, const fy_topology *ranks)
{
    bool seen[MOST_RANKS] = {false};
    for (uint32_t rank = 0; rank < world_size(s); rank++) {
        const fy_topology *own = &ranks[rank];
        uint32_t cell = own->tp_rank + own->dp_rank * own->tp;
        check_shape(s, own->tp_rank < own->tp && own->dp_rank < own->dp && !seen[cell]);
        seen[cell] = true;
        check_shape(s, fy_topology_rank_of(own, own->tp_rank, own->dp_rank) == rank);
        check_shape(s, fy_topology_rank_at(own, own->local_tp_rank, own->local_dp_rank,
                                           own->inter_tp_rank, own->inter_dp_rank) == rank);
        for (uint32_t other = 0; other < world_size(s); other++) {
            fy_topology as_other = fy_topology_of_rank(own, other);
            check_shape(s, same(&as_other, &ranks[other]));
        }
    }
}

/* Sizes may be left open where the other one of the level, or the default, says the same. */
static void check_forms(const shape *s, const fy_topology *ranks)
{
    for (uint32_t rank = 0; rank < world_size(s); rank++) {
        for (uint32_t open = 0; open < 16; open++) {
            fy_topology_wish wish = wish_for(s, rank);
            if (((open & 3) == 3 && s->local_dp != 1) || ((open & 12) == 12 && s->inter_dp != 1)) {
                continue;
            }
            wish.local_tp = (open & 1) != 0 ? 0 : wish.local_tp;
            wish.local_dp = (open & 2) != 0 ? 0 : wish.local_dp;
            wish.inter_tp = (open & 4) != 0 ? 0 : wish.inter_tp;
            wish.inter_dp = (open & 8) != 0 ? 0 : wish.inter_dp;
            fy_topology t;
            ferry_error error;
            must(fy_topology_make(&wish, &t, &error), &error);
            check_shape(s, same(&t, &ranks[rank]));
        }
    }
}

static void check_ranks(const shape *s)
{
    fy_topology ranks[MOST_RANKS];
    list_ranks(s, ranks);
    check_forms(s, ranks);
    check_maps(s, ranks);
}

static void test_ranks(void **state)
{
    (void)state;
    assert_int_equal(walk_shapes(check_ranks), 1824); /* a * b * c * d <= 64 */
}

/*
 * Bad wishes
 */

/* What the sentence must say: the first rule that is broken; NULL: none is. */
static const char *broken_rule(const fy_topology_wish *w)
{
    if (w->world_size * w->local_size * w->inter_size == 0) {
        return "none may be 0";
    }
    if (w->world_rank >= w->world_size) {
        return ", but world_size";
    }
    if (w->local_rank >= w->local_size) {
        return ", but local_size";
    }
    if (w->inter_rank >= w->inter_size) {
        return ", but inter_size";
    }
    if (w->local_size * w->inter_size != w->world_size) {
        return ", but world_size is";
    }
    const char *both[] = {"but local_size is", "but inter_size is"};
    const char *one[] = {"does not divide local_size", "does not divide inter_size"};
    for (uint32_t level = 0; level < 2; level++) {
        uint32_t size = level == 0 ? w->local_size : w->inter_size;
        uint32_t tp = level == 0 ? w->local_tp : w->inter_tp;
        uint32_t dp = level == 0 ? w->local_dp : w->inter_dp;
        if (tp != 0 && dp != 0 && tp * dp != size) {
            return both[level];
        }
        bool tp_fits = tp == 0 || size % tp == 0, dp_fits = dp == 0 || size % dp == 0;
        if (!tp_fits || !dp_fits) {
            return one[level];
        }
    }
    return w->local_rank + w->inter_rank * w->local_size == w->world_rank ? NULL
                                                                          : ", but world_rank is";
}

static bool check_wish(const fy_topology_wish *wish)
{
    const fy_topology untouched = {.world_size = 12345};
    fy_topology t = untouched;
    ferry_error error = {""};
    const char *rule = broken_rule(wish);
    ferry_status status = fy_topology_make(wish, &t, &error);
    if (rule == NULL) {
        check_status("a good wish", FERRY_OK, status, &error);
        return true;
    }
    check_status(rule, FERRY_ERR_INVALID_INPUT, status, &error);
    check_says(rule, rule, &error);
    check_row(rule, same(&t, &untouched));
    return false;
}

/* Every wish with fields below these. */
static void test_all_wishes(void **state)
{
    (void)state;
    const uint32_t ends[] = {7, 8, 3, 4, 3, 4, 4, 4, 4, 4};
    uint32_t n_good = 0;
    fy_topology_wish w = {0};
    uint32_t *fields[] = {&w.world_rank, &w.world_size, &w.local_rank, &w.local_size, &w.inter_rank,
                          &w.inter_size, &w.local_tp,   &w.local_dp,   &w.inter_tp,   &w.inter_dp};
    size_t i = 0;
    while (i < COUNT_OF(fields)) {
        n_good += check_wish(&w);
        for (i = 0; i < COUNT_OF(fields) && ++*fields[i] == ends[i]; i++) {
            *fields[i] = 0;
        }
    }
    /* Ranks x ways to say a level: 4 of one rank, 7 of two or three; 3 x 3 ranks are too many. */
    assert_int_equal(n_good, 1 * 4 * 4 + 2 * (2 + 3) * 4 * 7 + (4 + 6 + 6) * 7 * 7);
}

static const struct large {
    const char *name;
    fy_topology_wish wish;
    const char *says; /* NULL: it is fine */
} large[] = {
    {"as many as there may be", {1048575, 1 << 20, 1023, 1024, 1023, 1024, 0, 0, 0, 0}, NULL},
    {"one more", {0, (1 << 20) + 1, 0, (1 << 20) + 1, 0, 1, 0, 0, 0, 0}, "at most 1048576 ranks"},
    {"all bits", {0, UINT32_MAX, 0, 65537, 0, 65535, 0, 0, 0, 0}, "at most 1048576 ranks"},
    {"2^32 + 2 is not 2", {0, 2, 0, 0x80000001, 0, 2, 0, 0, 0, 0}, "= 4294967298, but"},
    {"nor inside a node", {0, 2, 0, 2, 0, 1, 0x80000001, 2, 0, 0}, "= 4294967298, but"},
    {"nor across nodes", {0, 2, 0, 1, 0, 2, 0, 0, 2, 0x80000001}, "= 4294967298, but"},
    {"more than the size", {0, 2, 0, 2, 0, 1, UINT32_MAX, 0, 0, 0}, "local_tp_size 4294967295"},
    {"dp is said", {0, 6, 0, 6, 0, 1, 0, 4, 0, 0}, "local_dp_size 4 does not divide local_size 6"},
    {"numbers", {0, 6, 0, 6, 0, 1, 2, 2, 0, 0}, "local_tp_size 2 x local_dp_size 2 = 4, but"},
    {"composed", {3, 6, 1, 2, 2, 3, 0, 0, 0, 0}, "1 + inter_rank 2 x local_size 2 = 5, but"},
};

static void test_large(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(large); i++) {
        const struct large *row = &large[i];
        fy_topology t;
        ferry_error error = {""};
        ferry_status status = fy_topology_make(&row->wish, &t, &error);
        check_status(row->name, row->says == NULL ? FERRY_OK : FERRY_ERR_INVALID_INPUT, status,
                     &error);
        check_says(row->name, row->says == NULL ? "" : row->says, &error);
        check_row(row->name, fy_topology_make(&row->wish, &t, NULL) == status);
    }
}

/*
 * Operations and modes
 */

static void check_ops(const shape *s)
{
    fy_topology t = make(s, world_size(s) - 1);
    bool sums = s->local_tp * s->inter_tp > 1, joins = s->local_dp * s->inter_dp > 1;
    uint32_t dp = s->local_dp * s->inter_dp;
    for (size_t i = 0; i < COUNT_OF(op_rows); i++) {
        const struct op_row *row = &op_rows[i];
        bool copy = row->op == FERRY_MIXED_ALL_REDUCE && world_size(s) == 1;
        check_shape(s, fy_topology_has_op(&t, row->op) ==
                           ((sums == row->tp && joins == row->dp) || copy));
        check_shape(s, fy_mix_op_out_chunks(&t, row->op) == (row->grows ? dp : 1));
        check_shape(s, fy_mix_op_in_chunks(&t, row->op) == (row->shrinks ? dp : 1));
        check_shape(s, fy_mix_op_gathers(row->op) == row->grows);
        check_shape(s, fy_mix_op_scatters(row->op) == row->shrinks);
    }
    check_shape(s, !fy_topology_has_op(&t, FERRY_MIXED_N_OPS));
    check_shape(s, !fy_topology_has_op(&t, UINT32_MAX));
}

static void test_ops(void **state)
{
    (void)state;
    _Static_assert(COUNT_OF(op_rows) == FERRY_MIXED_N_OPS, "a row for each");
    walk_shapes(check_ops);
}

static void check_modes(const shape *s)
{
    fy_topology t = make(s, 0);
    for (size_t i = 0; i < COUNT_OF(mode_rows); i++) {
        const struct mode_row *row = &mode_rows[i];
        for (uint32_t multicast = 0; multicast < 2; multicast++) {
            check_shape(s, fy_topology_has_mode(&t, row->mode, multicast != 0, false) ==
                               offers_mode(s, row, multicast != 0));
        }
    }
    const uint32_t none[] = {FERRY_MIXED_MODE_DEFAULT, FERRY_MIXED_AUTOTUNE, FERRY_MIXED_N_MODES,
                             UINT32_MAX};
    for (size_t i = 0; i < COUNT_OF(none); i++) {
        check_shape(s, !fy_topology_has_mode(&t, none[i], true, false));
        check_shape(s, !fy_topology_has_mode(&t, none[i], true, true));
        check_shape(s, !fy_topology_keeps_tree(&t, FERRY_MIXED_ALL_GATHER, none[i]));
    }
}

static void test_modes(void **state)
{
    (void)state;
    _Static_assert(COUNT_OF(mode_rows) + 2 == FERRY_MIXED_N_MODES, "a row for each");
    walk_shapes(check_modes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks), cmocka_unit_test(test_all_wishes),
        cmocka_unit_test(test_large), cmocka_unit_test(test_ops),
        cmocka_unit_test(test_modes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
