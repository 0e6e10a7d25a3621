/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/check.h"
#include "support/model.h"

#include <ferry/ferry.h>

static ferry_param_description describe_weight(void)
{
    ferry_param_description d = FERRY_PARAM_DESCRIPTION_INIT;
    d.n_dims = 2;
    d.shape[0] = 6;
    d.shape[1] = 4;
    d.dtype = (ferry_dtype){.kind = FERRY_F32, .element_bits = 32};
    return d;
}

/* Groups that are told apart by their first rank. */
static ferry_process_groups all_groups(void)
{
    ferry_process_groups g = FERRY_PROCESS_GROUPS_INIT;
    g.tensor_parallel = range_group(1, 1, 1);
    g.expert_tensor_parallel = range_group(2, 1, 1);
    g.expert_parallel = range_group(3, 1, 1);
    g.data_parallel = range_group(4, 1, 1);
    g.pipeline_parallel = range_group(5, 1, 1);
    g.world = range_group(6, 1, 1);
    return g;
}

static void release_groups(ferry_process_groups *g)
{
    ferry_group_destroy(g->tensor_parallel);
    ferry_group_destroy(g->expert_tensor_parallel);
    ferry_group_destroy(g->expert_parallel);
    ferry_group_destroy(g->data_parallel);
    ferry_group_destroy(g->pipeline_parallel);
    ferry_group_destroy(g->world);
}

static uint32_t first_of(const ferry_group *group)
{
    return group == NULL ? 0 : ferry_group_rank_at(group, 0);
}

/* Which group a parameter gets; 0 stands for none. */
static void test_groups(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool is_tp, is_ep, has_expert_tp, has_pipeline;
        uint32_t tp, ep, pp;
    } rows[] = {
        {"plain", false, false, true, true, 0, 0, 5},
        {"TP", true, false, true, true, 1, 0, 5},
        {"EP", false, true, true, true, 0, 3, 5},
        {"EP and TP", true, true, true, true, 2, 3, 5},
        {"EP and TP without a group of its own", true, true, false, true, 1, 3, 5},
        {"no pipeline", false, false, true, false, 0, 0, 6},
    };
    ferry_process_groups all = all_groups();
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_error error;
        ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
        ferry_param_description d = describe_weight();
        ferry_process_groups g = all;
        d.tensor_model_parallel = rows[i].is_tp;
        d.allreduce = !rows[i].is_ep;
        g.expert_tensor_parallel = rows[i].has_expert_tp ? all.expert_tensor_parallel : NULL;
        g.pipeline_parallel = rows[i].has_pipeline ? all.pipeline_parallel : NULL;
        must(ferry_param_metadata_extract(&d, "w", 7, &g, NULL, &m, &error), &error);
        check_row(rows[i].name, m.is_tp == rows[i].is_tp && m.is_ep == rows[i].is_ep);
        check_row(rows[i].name, first_of(m.tensor_parallel_group_ranks) == rows[i].tp);
        check_row(rows[i].name, first_of(m.expert_parallel_group_ranks) == rows[i].ep);
        check_row(rows[i].name, first_of(m.data_parallel_group_ranks) == 4);
        check_row(rows[i].name, first_of(m.pipeline_parallel_group_ranks) == rows[i].pp);
        check_row(rows[i].name, m.owner_rank == 7 && strcmp(m.name, "w") == 0);
        check_row(rows[i].name, m.resolved_name == NULL && !m.has_num_experts);
    }
    release_groups(&all);
}

static void test_defaults(void **state)
{
    (void)state;
    ferry_error error;
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    ferry_param_description d = describe_weight();
    ferry_process_groups g = FERRY_PROCESS_GROUPS_INIT;
    d.partition_dim = 1; /* not said to be there */
    d.partition_stride = 5;
    must(ferry_param_metadata_extract(&d, "w", 0, &g, &(uint64_t){64}, &m, &error), &error);
    assert_true(m.partition_dim == 0 && m.partition_stride == 1);
    assert_true(m.has_num_experts && m.num_experts == 64);
    assert_true(m.n_dims == 2 && m.shape[0] == 6 && m.shape[1] == 4);
    d.has_partition_dim = d.has_partition_stride = true;
    d.tensor_model_parallel = true;
    must(ferry_param_metadata_extract(&d, "w", 0, &g, NULL, &m, &error), &error);
    assert_true(m.partition_dim == 1 && m.partition_stride == 5);
}

/* What cannot be: each row breaks one thing of a good parameter. */
typedef struct broken {
    const char *name, *says;
    void (*change)(ferry_param_metadata *m);
} broken;

static void no_dtype(ferry_param_metadata *m)
{
    m->dtype.element_bits = 12;
}

static void far_dim(ferry_param_metadata *m)
{
    m->partition_dim = 2;
}

static void no_stride(ferry_param_metadata *m)
{
    m->partition_stride = 0;
}

static void wrong_sizes(ferry_param_metadata *m)
{
    static const uint64_t sizes[] = {6, 7};
    m->partition_sizes = sizes;
    m->n_partition_sizes = 2;
}

static void wrapping_sizes(ferry_param_metadata *m)
{
    static const uint64_t sizes[] = {UINT64_MAX, 13};
    m->partition_sizes = sizes;
    m->n_partition_sizes = 2;
}

static void strided_sizes(ferry_param_metadata *m)
{
    static const uint64_t sizes[] = {6, 6};
    m->partition_sizes = sizes;
    m->n_partition_sizes = 2;
    m->partition_stride = 2;
}

static void far_rank(ferry_param_metadata *m)
{
    m->owner_rank = FERRY_MAX_RANKS;
}

static void too_large(ferry_param_metadata *m)
{
    m->shape[0] = 1ull << 40;
    m->shape[1] = 1ull << 40;
}

static const broken broken_rows[] = {
    {"dtype", "no dtype that ferry knows", no_dtype},
    {"dim", "is TP along dim 2, but has 2 dimensions", far_dim},
    {"stride", "partition_stride 0", no_stride},
    {"sizes", "2 partition_sizes sum to 13, but dim 0 of the shard has 12", wrong_sizes},
    {"sizes that wrap", "partition_sizes sum to", wrapping_sizes},
    {"sizes with a stride", "both partition_sizes and a stride of 2", strided_sizes},
    {"rank", "ranks are below", far_rank},
    {"bytes", "more than 2^63 bits", too_large},
};

static void test_refused(void **state)
{
    (void)state;
    static const grid g = {.first = 0, .dp = 1, .tp = 2};
    ferry_model *model = NULL;
    ferry_error error;
    ferry_group *tp = range_group(0, 1, 2);
    must(ferry_model_create(&model, &error), &error);
    for (size_t i = 0; i < COUNT_OF(broken_rows); i++) {
        uint64_t sizes[2];
        ferry_param_metadata m = describe_param(&param_kinds[0], &g, 1, tp, tp, sizes);
        must(ferry_model_add(model, &m, &error), &error);
        broken_rows[i].change(&m);
        check_status(broken_rows[i].name, FERRY_ERR_INVALID_INPUT,
                     ferry_model_add(model, &m, &error), &error);
        check_says(broken_rows[i].name, broken_rows[i].says, &error);
        check_says(broken_rows[i].name, "decoder.qkv.weight", &error);
    }
    assert_int_equal(ferry_model_count(model), COUNT_OF(broken_rows));
    ferry_model_destroy(model);
    ferry_group_destroy(tp);
}

/* What is not cut may say anything about how: frameworks write -1 there. */
static void test_replicated_takes_any_partition(void **state)
{
    (void)state;
    static const grid g = {.first = 0, .dp = 2, .tp = 1};
    ferry_roster *roster = NULL;
    ferry_plan *plan = NULL;
    ferry_group *dp = range_group(0, 1, 2);
    ferry_error error;
    must(ferry_roster_create(2, &roster, &error), &error);
    for (uint32_t rank = 0; rank < 2; rank++) {
        ferry_model *model = NULL;
        uint64_t sizes[2];
        ferry_param_metadata m = describe_param(&param_kinds[4], &g, rank, NULL, dp, sizes);
        m.partition_dim = UINT32_MAX;
        m.partition_stride = UINT64_MAX;
        must(ferry_model_create(&model, &error), &error);
        must(ferry_model_add(model, &m, &error), &error);
        must(ferry_roster_set(roster, rank, model, model, &error), &error);
        ferry_model_destroy(model);
    }
    must(ferry_plan_create_from_roster(roster, NULL, &plan, &error), &error);
    ferry_plan_destroy(plan);
    ferry_roster_destroy(roster);
    ferry_group_destroy(dp);
}

/* A model has its own copies: the caller's texts, lists and groups may go. */
static void test_model_copies(void **state)
{
    (void)state;
    static const grid g = {.first = 0, .dp = 1, .tp = 2};
    char name[] = "p", resolved[] = "q";
    uint64_t sizes[2];
    ferry_error error;
    ferry_model *model = NULL;
    ferry_group *tp = range_group(0, 1, 2);
    ferry_param_metadata m = describe_param(&param_kinds[3], &g, 0, tp, NULL, sizes), back;
    m.name = name;
    m.resolved_name = resolved;
    must(ferry_model_create(&model, &error), &error);
    must(ferry_model_add(model, &m, &error), &error);
    ferry_group_destroy(tp);
    memset(name, 'x', 1);
    memset(resolved, 'x', 1);
    memset(sizes, 0, sizeof sizes);
    must(ferry_model_at(model, 0, &back, &error), &error);
    assert_string_equal(back.name, "p");
    assert_string_equal(back.resolved_name, "q");
    assert_true(back.partition_sizes[0] == 12 && back.partition_sizes[1] == 6);
    assert_int_equal(ferry_group_rank_at(back.tensor_parallel_group_ranks, 1), 1);
    ferry_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups),       cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_replicated_takes_any_partition),
        cmocka_unit_test(test_model_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
