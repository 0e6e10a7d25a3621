/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Names of parameters across pipeline stages and experts. */
#include "support/check.h"
#include "support/model.h"

#include <ferry/ferry.h>

static void test_expert_index(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool found;
        uint64_t index;
    } rows[] = {
        {"weight0", true, 0},
        {"weight17", true, 17},
        {"bias3", true, 3},
        {"decoder.layers.1.mlp.experts.linear_fc1.weight5", true, 5},
        {"a.bias007.b", true, 7},
        {"weight18446744073709551615", true, UINT64_MAX},
        {"a.weight1.bias2", true, 1}, /* the first one */
        {"weight", false, 0},
        {"bias", false, 0},
        {"weight1x", false, 0},
        {"xweight1", false, 0},
        {"weights1", false, 0},
        {"weight.1", false, 0},
        {"weight-1", false, 0},
        {"Weight1", false, 0},
        {"", false, 0},
        {".", false, 0},
        {"..weight4", true, 4},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_error error;
        bool found = !rows[i].found;
        uint64_t index = 4711;
        must(ferry_param_detect_expert_index(rows[i].name, &found, &index, &error), &error);
        check_row(rows[i].name, found == rows[i].found);
        check_row(rows[i].name, index == (found ? rows[i].index : 4711));
    }
}

static void test_expert_index_overflow(void **state)
{
    (void)state;
    ferry_error error;
    bool found = false;
    uint64_t index = 4711;
    assert_int_equal(
        ferry_param_detect_expert_index("a.weight18446744073709551616", &found, &index, &error),
        FERRY_ERR_INVALID_INPUT);
    check_says("2^64", "a.weight18446744073709551616: the expert index does not fit", &error);
    assert_true(!found && index == 4711);
}

/* The longest prefix of whole dotted parts. */
static void test_prefixes(void **state)
{
    (void)state;
    static const struct {
        const char *name, *resolved;
    } rows[] = {
        {"decoder.layers.0.mlp.weight", "decoder.layers.8.mlp.weight"},
        {"decoder.layers.1.mlp.weight", "decoder.layers.9.mlp.weight"},
        {"decoder.layers.10.mlp.weight", "decoder.layers.10.mlp.weight"},
        {"decoder.layers.1", "decoder.layers.9"},
        {"decoder.layers.1x", "decoder.layers.1x"},
        {"decoder.layers.0.special.weight", "other.weight"},
        {"decoder.layers.0.specialist.weight", "decoder.layers.8.specialist.weight"},
        {"decoder", "decoder"},
        {"the.decoder.layers.0.mlp", "the.decoder.layers.0.mlp"},
    };
    ferry_error error;
    ferry_prefix_map *map = NULL;
    must(ferry_prefix_map_create(&map, &error), &error);
    must(ferry_prefix_map_add(map, "decoder.layers.0", "decoder.layers.8", &error), &error);
    must(ferry_prefix_map_add(map, "decoder.layers.1", "decoder.layers.9", &error), &error);
    must(ferry_prefix_map_add(map, "decoder.layers.0.special", "other", &error), &error);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char buffer[FERRY_NAME_BYTES];
        ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
        m.name = rows[i].name;
        must(ferry_param_metadata_resolve_name(&m, map, buffer, sizeof buffer, &error), &error);
        check_row(rows[i].name, m.resolved_name == buffer && !m.has_global_expert_index);
        assert_string_equal(buffer, rows[i].resolved);
        must(ferry_param_metadata_resolve_name(&m, NULL, buffer, sizeof buffer, &error), &error);
        assert_string_equal(buffer, rows[i].name);
    }
    assert_int_equal(ferry_prefix_map_add(map, "decoder.layers.0", "elsewhere", &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("twice", "is mapped to \"decoder.layers.8\" already", &error);
    ferry_prefix_map_destroy(map);
}

typedef struct expert_row {
    const char *label, *name;
    uint32_t owner;
    uint64_t num_experts;
    const char *resolved; /* NULL: refused */
    uint64_t index;
    const char *says;
} expert_row;

/* The expert-parallel group is the ranks 10, 12, 14, 16. */
static const expert_row expert_rows[] = {
    {"first rank", "layers.0.experts.weight1", 10, 8, "layers.0.experts.weight1", 1, NULL},
    {"last rank", "layers.0.experts.weight1", 16, 8, "layers.0.experts.weight7", 7, NULL},
    {"bias", "layers.0.experts.bias0", 12, 8, "layers.0.experts.bias2", 2, NULL},
    {"more digits", "layers.0.experts.weight9.x", 16, 400, "layers.0.experts.weight309.x", 309,
     NULL},
    {"after the prefix", "stage.experts.weight0", 14, 4, "layers.5.experts.weight2", 2, NULL},
    {"index too large", "experts.weight2", 10, 8, NULL, 0, "has local expert index 2"},
    {"no member", "experts.weight0", 11, 8, NULL, 0,
     "rank 11 is not a member of the group (10, 12"},
    {"no multiple", "experts.weight0", 10, 6, NULL, 0, "num_experts 6 is not a multiple of the 4"},
    {"no experts", "experts.weight0", 10, 0, NULL, 0, "num_experts 0 is not a multiple"},
};

static void test_global_experts(void **state)
{
    (void)state;
    ferry_error error;
    ferry_prefix_map *map = NULL;
    ferry_group *group = range_group(10, 2, 4);
    must(ferry_prefix_map_create(&map, &error), &error);
    must(ferry_prefix_map_add(map, "stage", "layers.5", &error), &error);
    for (size_t i = 0; i < COUNT_OF(expert_rows); i++) {
        const expert_row *r = &expert_rows[i];
        char buffer[FERRY_NAME_BYTES];
        ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
        m.name = r->name;
        m.is_ep = true;
        m.owner_rank = r->owner;
        m.has_num_experts = true;
        m.num_experts = r->num_experts;
        m.expert_parallel_group_ranks = group;
        ferry_status wanted = r->resolved == NULL ? FERRY_ERR_INVALID_INPUT : FERRY_OK;
        check_status(r->label, wanted,
                     ferry_param_metadata_resolve_name(&m, map, buffer, sizeof buffer, &error),
                     &error);
        if (wanted != FERRY_OK) {
            check_says(r->label, r->says, &error);
            check_row(r->label, m.resolved_name == NULL && !m.has_global_expert_index);
            continue;
        }
        assert_string_equal(m.resolved_name, r->resolved);
        check_row(r->label, m.has_global_expert_index && m.global_expert_index == r->index);
    }
    ferry_prefix_map_destroy(map);
    ferry_group_destroy(group);
}

/* Without expert parallelism the number in a name is only a name; without a group it cannot be one.
 */
static void test_not_expert_parallel(void **state)
{
    (void)state;
    ferry_error error;
    char buffer[FERRY_NAME_BYTES];
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    m.name = "experts.weight3";
    must(ferry_param_metadata_resolve_name(&m, NULL, buffer, sizeof buffer, &error), &error);
    assert_string_equal(m.resolved_name, "experts.weight3");
    assert_false(m.has_global_expert_index);
    m.is_ep = true;
    m.name = "experts.fused.weight";
    must(ferry_param_metadata_resolve_name(&m, NULL, buffer, sizeof buffer, &error), &error);
    assert_string_equal(m.resolved_name, "experts.fused.weight");
    m.name = "experts.weight3";
    assert_int_equal(ferry_param_metadata_resolve_name(&m, NULL, buffer, sizeof buffer, &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("no group", "its expert-parallel group is not known", &error);
    m.expert_parallel_group_ranks = range_group(0, 1, 2);
    assert_int_equal(ferry_param_metadata_resolve_name(&m, NULL, buffer, sizeof buffer, &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("no number", "num_experts is not given", &error);
    ferry_group_destroy(m.expert_parallel_group_ranks);
}

/* Names of any length are taken up to the room that there is, and refused beyond. */
static void test_long_names(void **state)
{
    (void)state;
    static char name[FERRY_NAME_BYTES + 10];
    char buffer[FERRY_NAME_BYTES];
    ferry_error error;
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    m.name = name;
    m.is_ep = true;
    m.has_num_experts = true;
    m.num_experts = 1ull << 40;
    m.owner_rank = 1;
    m.expert_parallel_group_ranks = range_group(0, 1, 2);
    for (size_t length = FERRY_NAME_BYTES - 60; length < FERRY_NAME_BYTES + 8; length++) {
        memset(name, 'x', length);
        memcpy(name + length - 8, ".weight5", 9);
        ferry_status status =
            ferry_param_metadata_resolve_name(&m, NULL, buffer, sizeof buffer, &error);
        check_at(status == FERRY_OK || status == FERRY_ERR_LIMIT, "length %zu", length);
        check_at(status == FERRY_OK || length > FERRY_NAME_BYTES - 40, "length %zu", length);
        check_at(status != FERRY_OK || strcmp(buffer + length - 1, "549755813893") == 0,
                 "length %zu", length);
    }
    ferry_group_destroy(m.expert_parallel_group_ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expert_index),
        cmocka_unit_test(test_expert_index_overflow),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_global_experts),
        cmocka_unit_test(test_not_expert_parallel),
        cmocka_unit_test(test_long_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
