/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A roster keeps models that are alike once, and works out once what tensors have in common. What
 * differs in anything must stay apart: models in what is read back of them, tensors in how they are
 * placed.
 */
#include "support/check.h"
#include "support/model.h"

#include "model/roster.h"

#include <string.h>

typedef struct fields {
    ferry_param_metadata m;
    uint64_t sizes[2];
    ferry_group *other; /* a group of the same size with the rank in another place */
} fields;

static void name(fields *f)
{
    f->m.name = "other";
}

static void resolved(fields *f)
{
    f->m.resolved_name = "other";
}

static void shape(fields *f)
{
    f->m.shape[1] = 5;
}

static void dims(fields *f)
{
    f->m.n_dims = 1;
}

static void dtype_kind(fields *f)
{
    f->m.dtype.kind = FERRY_F16;
}

static void dtype(fields *f)
{
    f->m.dtype = (ferry_dtype){.kind = FERRY_F32, .element_bits = 32};
}

static void whole(fields *f)
{
    f->m.is_tp = false;
}

static void dim(fields *f)
{
    f->m.partition_dim = 1;
}

static void stride(fields *f)
{
    f->m.partition_stride = 2;
}

static void unpacked(fields *f)
{
    f->m.n_partition_sizes = 0;
}

static void sizes(fields *f)
{
    f->sizes[0] -= 2;
    f->sizes[1] += 2;
}

static void expert(fields *f)
{
    f->m.is_ep = true;
}

static void has_experts(fields *f)
{
    f->m.has_num_experts = true;
}

static void experts(fields *f)
{
    f->m.num_experts = 7;
}

static void has_index(fields *f)
{
    f->m.has_global_expert_index = true;
}

static void expert_index(fields *f)
{
    f->m.global_expert_index = 7;
}

static void tensor_parallel(fields *f)
{
    f->m.tensor_parallel_group_ranks = f->other;
}

static void expert_parallel(fields *f)
{
    f->m.expert_parallel_group_ranks = f->other;
}

static void data_parallel(fields *f)
{
    f->m.data_parallel_group_ranks = f->other;
}

static void no_data_parallel(fields *f)
{
    f->m.data_parallel_group_ranks = NULL;
}

static void pipeline_parallel(fields *f)
{
    f->m.pipeline_parallel_group_ranks = f->other;
}

typedef struct change {
    const char *says;
    void (*make)(fields *f);
    bool places; /* the tensor is placed another way */
    size_t kind; /* the parameter that is changed */
} change;

enum { PACKED = 3 }; /* among param_kinds; the first is cut, but not packed */

static const change changes[] = {
    {"name", name, false, PACKED},
    {"resolved name", resolved, false, PACKED},
    {"shape", shape, true, PACKED},
    {"dimensions", dims, true, PACKED},
    {"kind of dtype", dtype_kind, false, PACKED},
    {"dtype", dtype, false, PACKED},
    {"whole", whole, true, PACKED},
    {"dim", dim, true, 0},
    {"stride", stride, true, 0},
    {"not packed", unpacked, true, PACKED},
    {"packed sizes", sizes, true, PACKED},
    {"expert", expert, false, PACKED},
    {"knows experts", has_experts, false, PACKED},
    {"experts", experts, false, PACKED},
    {"knows its index", has_index, false, PACKED},
    {"index", expert_index, false, PACKED},
    {"TP group", tensor_parallel, true, PACKED},
    {"EP group", expert_parallel, false, PACKED},
    {"DP group", data_parallel, false, PACKED},
    {"no DP group", no_data_parallel, false, PACKED},
    {"PP group", pipeline_parallel, false, PACKED},
};

/* A parameter of rank 0 of two as it is, changed, or both behind one another as two tensors. */
static ferry_model *model_of(const change *c, bool plain, bool changed, ferry_group *tp,
                             ferry_group *other)
{
    static const grid g = {.first = 0, .dp = 1, .tp = 2};
    ferry_model *model = NULL;
    ferry_error error;
    must(ferry_model_create(&model, &error), &error);
    for (int i = 0; i < 2; i++) {
        if (!(i == 0 ? plain : changed)) {
            continue;
        }
        fields f = {.other = other};
        f.m = describe_param(&param_kinds[c->kind], &g, 0, tp, tp, f.sizes);
        f.m.resolved_name = "resolved";
        if (i == 1) {
            c->make(&f);
        }
        if (plain && changed) {
            f.m.resolved_name = i == 0 ? "first" : "second";
        }
        must(ferry_model_add(model, &f.m, &error), &error);
    }
    return model;
}

static void check_packed(const char *says, const ferry_roster *roster, uint32_t rank,
                         const ferry_model *model)
{
    fy_pack have = {0}, want = {0};
    fy_roster_pack(roster, rank, &have);
    fy_model_pack(model, &want);
    fy_model_pack(NULL, &want);
    if (have.used != want.used || memcmp(have.bytes, want.bytes, want.used) != 0) {
        fail_msg("%s: rank %u is read back as something else", says, rank);
    }
    fy_pack_cleanup(&have);
    fy_pack_cleanup(&want);
}

/* A model that differs in one thing from that of the roster's only other rank. */
static void test_models_stay_apart(void **state)
{
    (void)state;
    ferry_error error;
    ferry_group *tp = range_group(0, 1, 2), *list = NULL;
    must(ferry_group_create((uint32_t[]){1, 0}, 2, &list, &error), &error);
    for (size_t i = 0; i < COUNT_OF(changes); i++) {
        ferry_roster *roster = NULL;
        ferry_model *models[] = {model_of(&changes[i], true, false, tp, list),
                                 model_of(&changes[i], false, true, tp, list)};
        must(ferry_roster_create(2, &roster, &error), &error);
        for (uint32_t r = 0; r < 2; r++) {
            models[r]->params[0].owner_rank = r;
            must(ferry_roster_set(roster, r, models[r], NULL, &error), &error);
        }
        check_packed(changes[i].says, roster, 0, models[0]);
        check_packed(changes[i].says, roster, 1, models[1]);
        ferry_roster_destroy(roster);
        ferry_model_destroy(models[0]);
        ferry_model_destroy(models[1]);
    }
    ferry_group_destroy(tp);
    ferry_group_destroy(list);
}

/* Two tensors of one rank that differ in one thing. */
static void test_tensors_stay_apart(void **state)
{
    (void)state;
    ferry_error error;
    ferry_group *tp = range_group(0, 1, 2), *list = NULL;
    must(ferry_group_create((uint32_t[]){1, 0}, 2, &list, &error), &error);
    for (size_t i = 0; i < COUNT_OF(changes); i++) {
        ferry_roster *roster = NULL;
        ferry_model *model = model_of(&changes[i], true, true, tp, list);
        fy_problem problem;
        must(ferry_roster_create(2, &roster, &error), &error);
        must(ferry_roster_set(roster, 0, model, NULL, &error), &error);
        must(fy_roster_lower(roster, false, &problem, &error), &error);
        assert_int_equal(problem.n_tensors, 2);
        if ((problem.tensors[0].src != problem.tensors[1].src) != changes[i].places) {
            fail_msg("%s: two tensors are placed %s", changes[i].says,
                     changes[i].places ? "alike" : "apart");
        }
        fy_problem_cleanup(&problem);
        ferry_roster_destroy(roster);
        ferry_model_destroy(model);
    }
    ferry_group_destroy(tp);
    ferry_group_destroy(list);
}

/* Rank 1 is no member of its DP group: it gets the tensor whose source is cut, not the other. */
static void test_outsider_of_replicas(void **state)
{
    (void)state;
    static const char *const names[] = {"whole", "cut"};
    ferry_error error;
    ferry_roster *roster = NULL;
    fy_problem problem;
    ferry_group *first = range_group(0, 1, 1);
    must(ferry_roster_create(2, &roster, &error), &error);
    for (uint32_t r = 0; r < 2; r++) {
        ferry_model *models[2] = {NULL, NULL};
        for (int side = 0; side < 2; side++) {
            must(ferry_model_create(&models[side], &error), &error);
            for (int i = 0; i < 2; i++) {
                ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
                m.name = names[i];
                m.n_dims = 1;
                m.shape[0] = 4;
                m.dtype = (ferry_dtype){FERRY_BF16, 16};
                m.owner_rank = r;
                m.is_tp = side == 0 && i == 1;
                m.tensor_parallel_group_ranks = first;
                m.data_parallel_group_ranks = first;
                if (side == 1 || r == 0) {
                    must(ferry_model_add(models[side], &m, &error), &error);
                }
            }
        }
        must(ferry_roster_set(roster, r, models[0], models[1], &error), &error);
        ferry_model_destroy(models[0]);
        ferry_model_destroy(models[1]);
    }
    must(fy_roster_lower(roster, false, &problem, &error), &error);
    assert_int_equal(fy_problem_holders(&problem, problem.tensors[0].dst)->n_slots, 1);
    assert_int_equal(fy_problem_holders(&problem, problem.tensors[1].dst)->n_slots, 2);
    fy_problem_cleanup(&problem);
    ferry_roster_destroy(roster);
    ferry_group_destroy(first);
}

/* What makes planning of many ranks cheap, and rosters small. */
static void test_alike_ranks_share(void **state)
{
    (void)state;
    static const grid src = {.first = 0, .dp = 4, .tp = 2}, dst = {.first = 8, .dp = 2, .tp = 4};
    ferry_roster *roster = NULL;
    ferry_error error;
    must(try_roster(&src, &dst, 16, &roster, &error), &error);
    assert_int_equal(roster->outlines.n_outlines, 2);
    ferry_roster_destroy(roster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models_stay_apart),
        cmocka_unit_test(test_tensors_stay_apart),
        cmocka_unit_test(test_outsider_of_replicas),
        cmocka_unit_test(test_alike_ranks_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
