/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The reference planner's functions for one parameter, on literal cases. */
#include "support/check.h"
#include "support/model.h"
#include "support/text.h"

#include <ferry/ferry.h>

#include <stdio.h>

/* A parameter of one side: 12 rows of 2, cut over tp ranks from first, with a stride. */
typedef struct part {
    uint32_t first, tp;
    bool is_tp;
    uint64_t stride;
    uint64_t rows, columns; /* of the shard */
    uint32_t dim;
} part;

static ferry_param_metadata metadata_of(const part *p)
{
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    m.name = "w";
    m.n_dims = 2;
    m.shape[0] = p->rows;
    m.shape[1] = p->columns;
    m.dtype = (ferry_dtype){.kind = FERRY_U8, .element_bits = 8};
    m.is_tp = p->is_tp;
    m.partition_dim = p->dim;
    m.partition_stride = p->stride;
    m.owner_rank = p->first;
    m.tensor_parallel_group_ranks = p->tp == 0 ? NULL : range_group(p->first, 1, p->tp);
    return m;
}

static void release(ferry_param_metadata *m)
{
    ferry_group_destroy(m->tensor_parallel_group_ranks);
    ferry_group_destroy(m->data_parallel_group_ranks);
}

/* Transfers as text: "rank: [src rows x columns] -> [dst rows x columns]". */
static text_buffer spell(const ferry_transfers *transfers)
{
    text_buffer out = {0};
    text_append(&out, "", 0);
    for (size_t i = 0; i < ferry_transfers_count(transfers); i++) {
        ferry_transfer t = FERRY_TRANSFER_INIT;
        const ferry_slice *s = t.src_slice, *d = t.dst_slice;
        ferry_error error;
        must(ferry_transfers_at(transfers, i, &t, &error), &error);
        assert_int_equal(t.n_dims, 2);
        text_printf(&out, "%u: %llu+%llu,%llu+%llu -> %llu+%llu,%llu+%llu; ", t.src_rank,
                    (unsigned long long)s[0].begin, (unsigned long long)s[0].length,
                    (unsigned long long)s[1].begin, (unsigned long long)s[1].length,
                    (unsigned long long)d[0].begin, (unsigned long long)d[0].length,
                    (unsigned long long)d[1].begin, (unsigned long long)d[1].length);
    }
    return out;
}

static const struct {
    const char *name;
    part src, dst;
    uint32_t my_rank;
    ferry_status status;
    const char *text; /* the transfers, or what the sentence says */
} route_rows[] = {
    {"2 to 3, the first",
     {0, 2, true, 1, 6, 2, 0},
     {5, 3, true, 1, 4, 2, 0},
     5,
     FERRY_OK,
     "0: 0+4,0+2 -> 0+4,0+2; "},
    {"2 to 3, the middle",
     {0, 2, true, 1, 6, 2, 0},
     {5, 3, true, 1, 4, 2, 0},
     6,
     FERRY_OK,
     "0: 4+2,0+2 -> 0+2,0+2; 1: 0+2,0+2 -> 2+2,0+2; "},
    {"stride 2 to 1",
     {0, 2, true, 2, 6, 2, 0},
     {5, 2, true, 1, 6, 2, 0},
     5,
     FERRY_OK,
     "0: 0+3,0+2 -> 0+3,0+2; 1: 0+3,0+2 -> 3+3,0+2; "},
    {"stride 2 to 2, other ranks",
     {0, 2, true, 2, 6, 2, 0},
     {5, 2, true, 2, 6, 2, 0},
     6,
     FERRY_OK,
     "1: 0+3,0+2 -> 0+3,0+2; 1: 3+3,0+2 -> 3+3,0+2; "},
    {"rows to columns",
     {0, 2, true, 1, 6, 2, 0},
     {5, 2, true, 1, 12, 1, 1},
     6,
     FERRY_OK,
     "0: 0+6,1+1 -> 0+6,0+1; 1: 0+6,1+1 -> 6+6,0+1; "},
    {"cut to whole",
     {0, 2, true, 1, 6, 2, 0},
     {5, 1, false, 1, 12, 2, 0},
     5,
     FERRY_OK,
     "0: 0+6,0+2 -> 0+6,0+2; 1: 0+6,0+2 -> 6+6,0+2; "},
    {"whole to cut",
     {0, 1, false, 1, 12, 2, 0},
     {5, 2, true, 1, 6, 2, 0},
     6,
     FERRY_OK,
     "0: 6+6,0+2 -> 0+6,0+2; "},
    {"rank outside the group",
     {0, 2, true, 1, 6, 2, 0},
     {5, 3, true, 1, 4, 2, 0},
     8,
     FERRY_ERR_INVALID_INPUT,
     "rank 8 is not a member of the group (5, 6, 7)"},
    {"marked TP but replicated",
     {0, 2, true, 1, 12, 2, 0},
     {5, 3, true, 1, 4, 2, 0},
     5,
     FERRY_ERR_INVALID_PLAN,
     "w dim 0: 2 source ranks x 12 = 24, but 3 destination ranks x 4 = 12; is it marked TP but "
     "replicated?"},
    {"TP without a group",
     {0, 0, true, 1, 6, 2, 0},
     {5, 2, true, 1, 6, 2, 0},
     5,
     FERRY_ERR_INVALID_PLAN,
     "the source does not know its tensor-parallel group"},
    {"TP to no group",
     {0, 2, true, 1, 6, 2, 0},
     {5, 0, false, 1, 12, 2, 0},
     5,
     FERRY_ERR_INVALID_PLAN,
     "the destination does not know its tensor-parallel group"},
    {"replicated",
     {3, 0, false, 1, 6, 2, 0},
     {5, 0, false, 1, 6, 2, 0},
     5,
     FERRY_OK,
     "3: 0+6,0+2 -> 0+6,0+2; "},
    {"replicated, other shapes",
     {3, 0, false, 1, 6, 2, 0},
     {5, 0, false, 1, 6, 3, 0},
     5,
     FERRY_ERR_INVALID_PLAN,
     "dim 1: the source has 2, but the destination 3"},
};

static void test_routes(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(route_rows); i++) {
        const char *name = route_rows[i].name;
        ferry_param_metadata src = metadata_of(&route_rows[i].src);
        ferry_param_metadata dst = metadata_of(&route_rows[i].dst);
        ferry_transfers *t = NULL;
        ferry_error error;
        check_status(
            name, route_rows[i].status,
            ferry_transfers_find_sources("w", &src, &dst, route_rows[i].my_rank, &t, &error),
            &error);
        check_row(name, (t != NULL) == (route_rows[i].status == FERRY_OK));
        if (t == NULL) {
            check_says(name, route_rows[i].text, &error);
        } else {
            text_buffer text = spell(t);
            if (strcmp(text.bytes, route_rows[i].text) != 0) {
                fail_msg("row \"%s\": %s", name, text.bytes);
            }
            text_cleanup(&text);
        }
        ferry_transfers_destroy(t);
        release(&src);
        release(&dst);
    }
}

/* One descriptor when a side is TP and both groups are known, else none; strides of TP sides only.
 */
static void test_descriptors(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        part src, dst;
        size_t n;
        uint32_t dim;
        uint64_t src_stride, dst_stride;
    } rows[] = {
        {"both", {0, 2, true, 2, 6, 2, 0}, {5, 3, true, 1, 4, 2, 0}, 1, 0, 2, 1},
        {"source only", {0, 2, true, 3, 6, 2, 0}, {5, 1, false, 7, 12, 2, 1}, 1, 0, 3, 1},
        {"destination only", {0, 1, false, 7, 12, 2, 1}, {5, 2, true, 3, 6, 2, 0}, 1, 0, 1, 3},
        {"neither", {0, 2, false, 2, 6, 2, 0}, {5, 2, false, 2, 6, 2, 0}, 0, 0, 0, 0},
        {"no source group", {0, 0, true, 2, 6, 2, 0}, {5, 3, true, 1, 4, 2, 0}, 0, 0, 0, 0},
        {"no destination group", {0, 2, true, 2, 6, 2, 0}, {5, 0, true, 1, 4, 2, 0}, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_param_metadata src = metadata_of(&rows[i].src), dst = metadata_of(&rows[i].dst);
        ferry_sharding_descriptor d = FERRY_SHARDING_DESCRIPTOR_INIT;
        size_t n = 4711;
        ferry_error error;
        must(ferry_sharding_descriptor_build(&src, &dst, &d, &n, &error), &error);
        check_row(rows[i].name, n == rows[i].n);
        if (n == 1) {
            check_row(rows[i].name, strcmp(d.name, "tp") == 0 && d.dim == rows[i].dim);
            check_row(rows[i].name, d.src_stride == rows[i].src_stride);
            check_row(rows[i].name, d.dst_stride == rows[i].dst_stride);
            check_row(rows[i].name, d.src_dim_ranks == src.tensor_parallel_group_ranks &&
                                        d.dst_dim_ranks == dst.tensor_parallel_group_ranks);
        }
        release(&src);
        release(&dst);
    }
}

static void test_wrong_descriptors(void **state)
{
    (void)state;
    static const part half = {0, 2, true, 1, 6, 2, 0};
    ferry_param_metadata src = metadata_of(&half), dst = metadata_of(&half);
    ferry_sharding_descriptor d[2] = {FERRY_SHARDING_DESCRIPTOR_INIT}, other;
    ferry_transfers *t = NULL;
    ferry_error error;
    size_t n;
    must(ferry_sharding_descriptor_build(&src, &dst, &d[0], &n, &error), &error);
    d[1] = d[0];
    other = d[0];
    other.name = "ep";
    assert_int_equal(ferry_transfers_plan_lcm("w", &src, &dst, d, 0, 0, &t, &error),
                     FERRY_ERR_UNSUPPORTED);
    assert_int_equal(ferry_transfers_plan_lcm("w", &src, &dst, d, 2, 0, &t, &error),
                     FERRY_ERR_UNSUPPORTED);
    check_says("two", "exactly one TP descriptor, not 2", &error);
    assert_int_equal(ferry_transfers_plan_lcm("w", &src, &dst, &other, 1, 0, &t, &error),
                     FERRY_ERR_UNSUPPORTED);
    check_says("other", "not \"ep\"", &error);
    d[0].src_dim_ranks = NULL;
    assert_int_equal(ferry_transfers_plan_lcm("w", &src, &dst, d, 1, 0, &t, &error),
                     FERRY_ERR_INVALID_INPUT);
    assert_null(t);
    release(&src);
    release(&dst);
}

/* A side that cannot be cut at all is refused, and nothing of it is freed twice. */
static void test_too_many_pieces(void **state)
{
    (void)state;
    static const part huge = {0, 1u << 23, true, 4, 1u << 3, 2, 0};
    ferry_param_metadata src = metadata_of(&huge), dst = metadata_of(&huge);
    ferry_transfers *t = NULL;
    ferry_error error;
    assert_int_equal(ferry_transfers_find_sources("w", &src, &dst, 0, &t, &error), FERRY_ERR_LIMIT);
    assert_null(t);
    release(&src);
    release(&dst);
}

/* Sources with DP groups from these ranks, and the destination's group and rank: which is chosen?
 */
static const struct {
    const char *name;
    uint32_t groups[4]; /* first ranks of groups of 2; 99: no group */
    size_t n_sources;
    uint32_t dst_first, dst_rank; /* a group of 4; 99: no group */
    size_t chosen;
} select_rows[] = {
    {"one", {0}, 1, 10, 13, 0},
    {"one bucket, its first", {0, 0, 0}, 3, 10, 12, 0},
    {"two buckets, even index", {0, 2}, 2, 10, 12, 0},
    {"two buckets, odd index", {0, 2}, 2, 10, 13, 1},
    {"buckets are sorted", {4, 2, 0}, 3, 10, 10, 2},
    {"buckets are sorted, second", {4, 2, 0}, 3, 10, 11, 1},
    {"buckets are sorted, wrapped", {4, 2, 0}, 3, 10, 13, 2},
    {"first entry of a bucket", {2, 0, 2, 0}, 4, 10, 11, 0},
    {"no member", {0, 2}, 2, 10, 20, 0},
    {"no destination group", {2, 0}, 2, 99, 13, 1},
    {"a source without a group is a bucket, first", {0, 99}, 2, 10, 10, 1},
};

static void test_select_source(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(select_rows); i++) {
        static const part plain = {0, 0, false, 1, 6, 2, 0};
        ferry_param_metadata sources[4], dst = metadata_of(&plain);
        const ferry_param_metadata *list[4];
        ferry_error error;
        size_t chosen = 4711;
        for (size_t k = 0; k < select_rows[i].n_sources; k++) {
            sources[k] = metadata_of(&plain);
            list[k] = &sources[k];
            if (select_rows[i].groups[k] != 99) {
                sources[k].data_parallel_group_ranks = range_group(select_rows[i].groups[k], 1, 2);
            }
        }
        if (select_rows[i].dst_first != 99) {
            dst.data_parallel_group_ranks = range_group(select_rows[i].dst_first, 1, 4);
        }
        must(ferry_param_metadata_select_source(list, select_rows[i].n_sources, &dst,
                                                select_rows[i].dst_rank, &chosen, &error),
             &error);
        check_row(select_rows[i].name, chosen == select_rows[i].chosen);
        for (size_t k = 0; k < select_rows[i].n_sources; k++) {
            release(&sources[k]);
        }
        release(&dst);
    }
}

/* Who sends a replicated parameter; 99: no group, or nobody. */
static void test_replicated(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t src_first, n_src, dst_first, n_dst, my_rank, sender;
    } rows[] = {
        {"equal groups stay", 4, 3, 4, 3, 5, 5},
        {"round robin", 4, 3, 20, 5, 20, 6},
        {"round robin, next", 4, 3, 20, 5, 21, 4},
        {"outside the destination", 4, 3, 20, 5, 25, 99},
        {"no source group", 99, 0, 20, 5, 21, 3},
        {"no destination group", 4, 3, 99, 0, 20, 6},
        {"a holder keeps its own", 4, 3, 5, 5, 6, 6},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        static const part plain = {3, 0, false, 1, 6, 2, 0};
        ferry_param_metadata src = metadata_of(&plain), dst = metadata_of(&plain);
        ferry_transfers *t = NULL;
        ferry_error error;
        uint32_t sender = 99;
        if (rows[i].src_first != 99) {
            src.data_parallel_group_ranks = range_group(rows[i].src_first, 1, rows[i].n_src);
        }
        if (rows[i].dst_first != 99) {
            dst.data_parallel_group_ranks = range_group(rows[i].dst_first, 1, rows[i].n_dst);
        }
        must(ferry_transfers_finalize_dp("w", &src, &dst, rows[i].my_rank, &t, &error), &error);
        check_row(rows[i].name, ferry_transfers_count(t) == (rows[i].sender != 99));
        if (ferry_transfers_count(t) == 1) {
            ferry_transfer one = FERRY_TRANSFER_INIT;
            must(ferry_transfers_at(t, 0, &one, &error), &error);
            sender = one.src_rank;
        }
        check_row(rows[i].name, sender == rows[i].sender);
        ferry_transfers_destroy(t);
        release(&src);
        release(&dst);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_wrong_descriptors),
        cmocka_unit_test(test_too_many_pieces),
        cmocka_unit_test(test_select_source),
        cmocka_unit_test(test_replicated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
