/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Models as bytes. */
#include "model/roster.h"

#include "base/checked.h"
#include "model/group.h"

#include <string.h>

/* Small numbers of either sign stay small. */
static uint64_t fold_sign(int64_t value)
{
    return value < 0 ? (uint64_t)-value * 2 - 1 : (uint64_t)value * 2;
}

static int64_t unfold_sign(uint64_t folded)
{
    return folded % 2 == 1 ? -(int64_t)(folded / 2) - 1 : (int64_t)(folded / 2);
}

/* As runs: a group is nearly always one, be it of ten ranks or of ten thousand. */
static void pack_group(const ferry_group *group, fy_pack *out)
{
    size_t n = fy_group_run_count(group);
    fy_pack_number(out, n);
    for (size_t i = 0; i < n; i++) {
        fy_group_run run = fy_group_run_at(group, i);
        fy_pack_number(out, run.first);
        fy_pack_number(out, run.n);
        fy_pack_number(out, fold_sign(run.stride));
    }
}

enum {
    FLAG_TP = 1,
    FLAG_EP = 2,
    FLAG_NUM_EXPERTS = 4,
    FLAG_EXPERT = 8,
    FLAG_RESOLVED = 16,
    ALL_FLAGS = 31,
};

static void pack_param(const ferry_param_metadata *m, const uint32_t groups[FY_N_ROLES],
                       fy_pack *out)
{
    fy_pack_text(out, m->name);
    fy_pack_number(out, (m->is_tp ? FLAG_TP : 0u) | (m->is_ep ? FLAG_EP : 0u) |
                            (m->has_num_experts ? FLAG_NUM_EXPERTS : 0u) |
                            (m->has_global_expert_index ? FLAG_EXPERT : 0u) |
                            (m->resolved_name != NULL ? FLAG_RESOLVED : 0u));
    if (m->resolved_name != NULL) {
        fy_pack_text(out, m->resolved_name);
    }
    fy_pack_number(out, m->n_dims);
    for (uint32_t d = 0; d < m->n_dims; d++) {
        fy_pack_number(out, m->shape[d]);
    }
    fy_pack_number(out, m->dtype.kind);
    fy_pack_number(out, m->dtype.element_bits);
    fy_pack_number(out, m->partition_dim);
    fy_pack_number(out, m->partition_stride);
    fy_pack_number(out, m->num_experts);
    fy_pack_number(out, m->owner_rank);
    fy_pack_number(out, m->global_expert_index);
    for (size_t i = 0; i < FY_N_ROLES; i++) {
        fy_pack_number(out, groups[i]);
    }
    fy_pack_number(out, m->n_partition_sizes);
    for (size_t i = 0; i < m->n_partition_sizes; i++) {
        fy_pack_number(out, m->partition_sizes[i]);
    }
}

static void pack_groups(ferry_group *const *groups, size_t n_groups, fy_pack *out)
{
    fy_pack_number(out, n_groups);
    for (size_t i = 0; i < n_groups; i++) {
        pack_group(groups[i], out);
    }
}

void fy_model_pack(const ferry_model *model, fy_pack *out)
{
    fy_group_table table = {0};
    fy_pack params = {0};
    fy_pack_number(out, model != NULL);
    if (model == NULL) {
        return;
    }
    for (size_t i = 0; i < model->n_params; i++) {
        uint32_t groups[FY_N_ROLES] = {0};
        out->failed = !fy_group_table_number(&table, &model->params[i], groups) || out->failed;
        pack_param(&model->params[i], groups, &params);
    }
    pack_groups(table.groups, table.n_groups, out);
    fy_pack_number(out, model->n_params);
    fy_pack_bytes(out, params.bytes, params.used);
    out->failed = out->failed || params.failed;
    fy_pack_cleanup(&params);
    fy_group_table_cleanup(&table);
}

/* The same bytes as those of the model: the groups of an outline are numbered in the same order. */
static void pack_said(const fy_said *said, uint32_t rank, fy_pack *out)
{
    const fy_outline *outline = said->outline;
    fy_pack_number(out, outline != NULL);
    if (outline == NULL) {
        return;
    }
    pack_groups(said->groups, said->n_groups, out);
    fy_pack_number(out, outline->n_params);
    for (size_t i = 0; i < outline->n_params; i++) {
        ferry_param_metadata m;
        fy_said_param(said, rank, i, &m);
        pack_param(&m, outline->params[i].group, out);
    }
}

void fy_roster_pack(const ferry_roster *roster, uint32_t rank, fy_pack *out)
{
    pack_said(&roster->entries[rank].said[0], rank, out);
    pack_said(&roster->entries[rank].said[1], rank, out);
}

/* The groups of a model that is read, in the order of their numbers. */
typedef struct group_list {
    ferry_group **groups;
    size_t n_groups;
    size_t capacity;
} group_list;

static ferry_status unpack_group(fy_reader *in, group_list *list, ferry_error *error)
{
    /* Every run takes three bytes at least: what is left bounds the allocation. */
    uint64_t n_runs = fy_read_number(in, fy_read_left(in) / 3);
    fy_group_run *runs = fy_alloc((size_t)n_runs, sizeof *runs);
    ferry_status status = FERRY_OK;
    if (runs == NULL || !FY_RESERVE(list->groups, list->capacity, list->n_groups + 1)) {
        fy_free(runs);
        return fy_fail_no_memory(error, "the groups of a model");
    }
    for (uint64_t i = 0; i < n_runs; i++) {
        runs[i].first = (uint32_t)fy_read_number(in, FERRY_MAX_RANKS - 1);
        runs[i].n = (uint32_t)fy_read_number(in, FERRY_MAX_RANKS);
        runs[i].stride = unfold_sign(fy_read_number(in, UINT64_C(2) * FERRY_MAX_RANKS));
    }
    if (!in->failed) {
        status = fy_group_create_runs(runs, (size_t)n_runs, &list->groups[list->n_groups], error);
        list->n_groups += status == FERRY_OK;
    }
    fy_free(runs);
    return status;
}

static ferry_status unpack_groups(fy_reader *in, group_list *list, ferry_error *error)
{
    uint64_t n_groups = fy_read_number(in, fy_read_left(in));
    for (uint64_t g = 0; g < n_groups && !in->failed; g++) {
        FY_TRY(unpack_group(in, list, error));
    }
    return FERRY_OK;
}

static const char *unpack_name(fy_reader *in, fy_arena *arena, bool *failed)
{
    size_t length;
    const char *text = fy_read_text(in, &length);
    char *copy = fy_arena_copy(arena, text, length);
    *failed = *failed || copy == NULL;
    return copy;
}

static ferry_group *unpack_group_number(fy_reader *in, const group_list *list)
{
    uint64_t number = fy_read_number(in, list->n_groups);
    return number == 0 ? NULL : list->groups[number - 1];
}

static bool unpack_param(fy_reader *in, const group_list *list, fy_arena *arena,
                         ferry_param_metadata *m)
{
    bool failed = false;
    m->name = unpack_name(in, arena, &failed);
    in->failed = in->failed || (m->name != NULL && m->name[0] == '\0');
    uint64_t flags = fy_read_number(in, ALL_FLAGS);
    if ((flags & FLAG_RESOLVED) != 0) {
        m->resolved_name = unpack_name(in, arena, &failed);
    }
    m->is_tp = (flags & FLAG_TP) != 0;
    m->is_ep = (flags & FLAG_EP) != 0;
    m->has_num_experts = (flags & FLAG_NUM_EXPERTS) != 0;
    m->has_global_expert_index = (flags & FLAG_EXPERT) != 0;
    m->n_dims = (uint32_t)fy_read_number(in, FERRY_MAX_DIMS);
    for (uint32_t d = 0; d < m->n_dims; d++) {
        m->shape[d] = fy_read_number(in, INT64_MAX);
    }
    m->dtype.kind = (uint32_t)fy_read_number(in, UINT32_MAX);
    m->dtype.element_bits = (uint32_t)fy_read_number(in, UINT32_MAX);
    m->partition_dim = (uint32_t)fy_read_number(in, UINT32_MAX);
    m->partition_stride = fy_read_number(in, UINT64_MAX);
    m->num_experts = fy_read_number(in, UINT64_MAX);
    m->owner_rank = (uint32_t)fy_read_number(in, FERRY_MAX_RANKS - 1);
    m->global_expert_index = fy_read_number(in, UINT64_MAX);
    m->tensor_parallel_group_ranks = unpack_group_number(in, list);
    m->expert_parallel_group_ranks = unpack_group_number(in, list);
    m->data_parallel_group_ranks = unpack_group_number(in, list);
    m->pipeline_parallel_group_ranks = unpack_group_number(in, list);
    m->n_partition_sizes = (size_t)fy_read_number(in, fy_read_left(in));
    uint64_t *sizes = fy_arena_alloc(arena, m->n_partition_sizes, sizeof *sizes);
    for (size_t i = 0; sizes != NULL && i < m->n_partition_sizes; i++) {
        sizes[i] = fy_read_number(in, INT64_MAX);
    }
    m->partition_sizes = sizes;
    return !failed && sizes != NULL && !in->failed;
}

static ferry_status unpack_params(fy_reader *in, const group_list *list, ferry_model *model,
                                  ferry_error *error)
{
    uint64_t n = fy_read_number(in, fy_read_left(in));
    ferry_status status = FERRY_OK;
    for (uint64_t i = 0; i < n && !in->failed && status == FERRY_OK; i++) {
        fy_arena arena = {0};
        ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
        if (unpack_param(in, list, &arena, &m)) {
            status = ferry_model_add(model, &m, error);
        } else if (!in->failed) {
            status = fy_fail_no_memory(error, "a parameter");
        }
        fy_arena_cleanup(&arena);
    }
    return status;
}

static ferry_status unpack_model(fy_reader *in, ferry_model **model_out, ferry_error *error)
{
    group_list list = {0};
    ferry_model *model = NULL;
    ferry_status status = FERRY_OK;
    bool exists = fy_read_number(in, 1) == 1;
    if (exists) {
        status = ferry_model_create(&model, error);
    }
    if (exists && status == FERRY_OK) {
        status = unpack_groups(in, &list, error);
    }
    if (exists && status == FERRY_OK) {
        status = unpack_params(in, &list, model, error);
    }
    if (status == FERRY_OK && in->failed) {
        status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "the packed model of a rank is cut short or damaged");
    }
    for (size_t i = 0; i < list.n_groups; i++) {
        ferry_group_destroy(list.groups[i]);
    }
    fy_free(list.groups);
    if (status == FERRY_OK) {
        *model_out = model;
        model = NULL;
    }
    ferry_model_destroy(model);
    return status;
}

ferry_status fy_roster_set_packed(ferry_roster *roster, uint32_t rank, fy_reader *in,
                                  ferry_error *error)
{
    ferry_model *src = NULL, *dst = NULL;
    ferry_status status = unpack_model(in, &src, error);
    FY_THEN(status, unpack_model(in, &dst, error));
    FY_THEN(status, ferry_roster_set(roster, rank, src, dst, error));
    ferry_model_destroy(src);
    ferry_model_destroy(dst);
    return status;
}
