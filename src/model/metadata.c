/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/metadata.h"

#include "base/checked.h"
#include "base/json.h"
#include "base/options.h"
#include "base/sort.h"
#include "model/dtype.h"
#include "model/group.h"

#include <stdlib.h>
#include <string.h>

static ferry_status check_partition(const ferry_param_metadata *m, ferry_error *error)
{
    uint64_t sum = 0;
    if (m->partition_dim >= m->n_dims) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s of rank %u is TP along dim %u, but has %u dimensions", m->name,
                       m->owner_rank, m->partition_dim, m->n_dims);
    }
    if (m->partition_stride == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s of rank %u has partition_stride 0",
                       m->name, m->owner_rank);
    }
    for (size_t i = 0; i < m->n_partition_sizes; i++) {
        if (!fy_add(sum, m->partition_sizes[i], &sum)) {
            sum = UINT64_MAX;
        }
    }
    if (m->n_partition_sizes > 0 && sum != m->shape[m->partition_dim]) {
        return fy_fail(
            error, FERRY_ERR_INVALID_INPUT,
            "%s of rank %u: %zu partition_sizes sum to %llu, but dim %u of the shard has "
            "%llu",
            m->name, m->owner_rank, m->n_partition_sizes, (unsigned long long)sum, m->partition_dim,
            (unsigned long long)m->shape[m->partition_dim]);
    }
    if (m->n_partition_sizes > 0 && m->partition_stride != 1) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s of rank %u has both partition_sizes and a stride of %llu", m->name,
                       m->owner_rank, (unsigned long long)m->partition_stride);
    }
    return FERRY_OK;
}

/* Names go through JSON and through messages, where they must fit as they do here. */
static ferry_status check_name(const char *name, uint32_t rank, ferry_error *error)
{
    size_t length = strlen(name);
    if (length >= FERRY_NAME_BYTES) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "%.60s... of rank %u has a name of %zu bytes, more than %d", name, rank,
                       length, FERRY_NAME_BYTES - 1);
    }
    if (!fy_is_utf8(name)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a parameter of rank %u has a name that is not UTF-8", rank);
    }
    return FERRY_OK;
}

/* What every function checks of metadata from outside, before it looks at anything else. */
static ferry_status check_metadata(const ferry_param_metadata *m, ferry_error *error)
{
    if (m->name == NULL || m->name[0] == '\0') {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "metadata needs FERRY_PARAM_METADATA_INIT and a name");
    }
    FY_TRY(check_name(m->name, m->owner_rank, error));
    if (m->resolved_name != NULL) {
        FY_TRY(check_name(m->resolved_name, m->owner_rank, error));
    }
    if (m->n_dims > FERRY_MAX_DIMS || (m->n_partition_sizes > 0 && m->partition_sizes == NULL)) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s has %u dimensions (at most %d) or lacks a list",
                       m->name, m->n_dims, FERRY_MAX_DIMS);
    }
    if (!fy_dtype_is_valid(m->dtype)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s has no dtype that ferry knows: kind %u, %u bits", m->name, m->dtype.kind,
                       m->dtype.element_bits);
    }
    if (m->owner_rank >= FERRY_MAX_RANKS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s has owner rank %u; ranks are below %u",
                       m->name, m->owner_rank, FERRY_MAX_RANKS);
    }
    uint64_t bits = m->dtype.element_bits;
    for (uint32_t d = 0; d < m->n_dims; d++) {
        if (!fy_mul(bits, fy_max(m->shape[d], 1), &bits) || bits > INT64_MAX) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s of rank %u has more than 2^63 bits",
                           m->name, m->owner_rank);
        }
    }
    return m->is_tp ? check_partition(m, error) : FERRY_OK;
}

ferry_status fy_metadata_take(const ferry_param_metadata *given, ferry_param_metadata *m,
                              ferry_error *error)
{
    FY_TRY(fy_take_param_metadata(given, m, error));
    return check_metadata(m, error);
}

static void describe(const ferry_param_description *param, ferry_param_metadata *m)
{
    m->n_dims = param->n_dims;
    memcpy(m->shape, param->shape, sizeof m->shape);
    m->dtype = param->dtype;
    m->is_tp = param->tensor_model_parallel;
    m->partition_dim = param->has_partition_dim ? param->partition_dim : 0;
    m->partition_stride = param->has_partition_stride ? param->partition_stride : 1;
    m->is_ep = !param->allreduce;
    m->partition_sizes = param->partition_sizes;
    m->n_partition_sizes = param->n_partition_sizes;
}

static void place_in_groups(const ferry_process_groups *groups, ferry_param_metadata *m)
{
    if (m->is_ep) {
        m->expert_parallel_group_ranks = groups->expert_parallel;
    }
    if (m->is_tp) {
        bool expert_tp = m->is_ep && groups->expert_tensor_parallel != NULL;
        m->tensor_parallel_group_ranks =
            expert_tp ? groups->expert_tensor_parallel : groups->tensor_parallel;
    }
    m->data_parallel_group_ranks = groups->data_parallel;
    m->pipeline_parallel_group_ranks =
        groups->pipeline_parallel == NULL ? groups->world : groups->pipeline_parallel;
}

ferry_status ferry_param_metadata_extract(const ferry_param_description *param,
                                          const char *param_name, uint32_t owner_rank,
                                          const ferry_process_groups *groups,
                                          const uint64_t *num_experts,
                                          ferry_param_metadata *metadata_out, ferry_error *error)
{
    FY_TRY(fy_check_use(param != NULL && param_name != NULL && groups != NULL,
                        "ferry_param_metadata_extract needs a description, a name and groups, made "
                        "with their _INIT values",
                        error));
    ferry_param_description p;
    ferry_process_groups g;
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    FY_TRY(fy_check_out(metadata_out, "ferry_param_metadata", error));
    FY_TRY(fy_take_param_description(param, &p, error));
    FY_TRY(fy_take_process_groups(groups, &g, error));
    describe(&p, &m);
    place_in_groups(&g, &m);
    m.name = param_name;
    m.owner_rank = owner_rank;
    m.has_num_experts = num_experts != NULL;
    m.num_experts = num_experts == NULL ? 0 : *num_experts;
    ferry_status status = check_metadata(&m, error);
    return status == FERRY_OK
               ? fy_copy_out(&m, sizeof m, metadata_out, "ferry_param_metadata", error)
               : status;
}

ferry_status ferry_model_create(ferry_model **model_out, ferry_error *error)
{
    FY_TRY(
        fy_check_use(model_out != NULL, "ferry_model_create needs a place for the result", error));
    ferry_model *model = fy_alloc_zeroed(1, sizeof *model);
    FY_TRY(fy_check_memory(model != NULL, "a model", error));
    *model_out = model;
    return FERRY_OK;
}

bool fy_metadata_copy_texts(fy_arena *arena, ferry_param_metadata *m)
{
    m->name = fy_arena_copy(arena, m->name, strlen(m->name));
    if (m->name == NULL) {
        return false;
    }
    if (m->resolved_name != NULL) {
        m->resolved_name = fy_arena_copy(arena, m->resolved_name, strlen(m->resolved_name));
        if (m->resolved_name == NULL) {
            return false;
        }
    }
    if (m->n_partition_sizes > 0) {
        uint64_t *sizes = fy_arena_alloc(arena, m->n_partition_sizes, sizeof *m->partition_sizes);
        if (sizes == NULL) {
            return false;
        }
        memcpy(sizes, m->partition_sizes, m->n_partition_sizes * sizeof *sizes);
        m->partition_sizes = sizes;
    }
    return true;
}

ferry_status ferry_model_add(ferry_model *model, const ferry_param_metadata *metadata,
                             ferry_error *error)
{
    FY_TRY(fy_check_use(model != NULL, "ferry_model_add needs a model", error));
    ferry_param_metadata m;
    FY_TRY(fy_metadata_take(metadata, &m, error));
    if (!FY_RESERVE(model->params, model->capacity, model->n_params + 1) ||
        !fy_metadata_copy_texts(&model->arena, &m)) {
        return fy_fail_no_memory(error, "a parameter");
    }
    ferry_group_retain(m.tensor_parallel_group_ranks);
    ferry_group_retain(m.expert_parallel_group_ranks);
    ferry_group_retain(m.data_parallel_group_ranks);
    ferry_group_retain(m.pipeline_parallel_group_ranks);
    model->params[model->n_params++] = m;
    return FERRY_OK;
}

size_t ferry_model_count(const ferry_model *model)
{
    return model == NULL ? 0 : model->n_params;
}

ferry_status ferry_model_at(const ferry_model *model, size_t index,
                            ferry_param_metadata *metadata_out, ferry_error *error)
{
    if (model == NULL || index >= model->n_params) {
        return fy_fail(error, FERRY_ERR_MISUSE, "parameter %zu of %zu", index,
                       ferry_model_count(model));
    }
    return fy_copy_out(&model->params[index], sizeof model->params[index], metadata_out,
                       "ferry_param_metadata", error);
}

void ferry_model_destroy(ferry_model *model)
{
    if (model == NULL) {
        return;
    }
    for (size_t i = 0; i < model->n_params; i++) {
        ferry_group_destroy(model->params[i].tensor_parallel_group_ranks);
        ferry_group_destroy(model->params[i].expert_parallel_group_ranks);
        ferry_group_destroy(model->params[i].data_parallel_group_ranks);
        ferry_group_destroy(model->params[i].pipeline_parallel_group_ranks);
    }
    fy_free(model->params);
    fy_arena_cleanup(&model->arena);
    fy_free(model);
}

ferry_status fy_model_copy(const ferry_model *model, ferry_model **copy_out, ferry_error *error)
{
    ferry_model *copy = NULL;
    ferry_status status = ferry_model_create(&copy, error);
    for (size_t i = 0; status == FERRY_OK && i < model->n_params; i++) {
        status = ferry_model_add(copy, &model->params[i], error);
    }
    if (status == FERRY_OK) {
        *copy_out = copy;
        copy = NULL;
    }
    ferry_model_destroy(copy);
    return status;
}

/* Sources are compared by their DP group; a source without one is a bucket of its own kind, first.
 */
static int compare_dp(const ferry_group *x, const ferry_group *y)
{
    if (x == NULL || y == NULL) {
        return (x != NULL) - (y != NULL);
    }
    return fy_group_compare(x, y);
}

typedef struct candidate {
    const ferry_group *dp;
    size_t index;
} candidate;

static int compare_candidates(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    int by_group = compare_dp(x->dp, y->dp);
    return by_group != 0 ? by_group : (x->index > y->index) - (x->index < y->index);
}

ferry_status ferry_param_metadata_select_source(const ferry_param_metadata *const *sources,
                                                size_t n_sources,
                                                const ferry_param_metadata *destination,
                                                uint32_t dst_rank, size_t *chosen_out,
                                                ferry_error *error)
{
    FY_TRY(
        fy_check_use(sources != NULL && n_sources != 0 && destination != NULL && chosen_out != NULL,
                     "ferry_param_metadata_select_source needs sources, a destination and a place "
                     "for the result",
                     error));
    ferry_param_metadata m;
    candidate *sorted = fy_alloc(n_sources, sizeof *sorted);
    FY_TRY(fy_check_memory(sorted != NULL, "the buckets of DP groups", error));
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < n_sources && status == FERRY_OK; i++) {
        if (sources[i] == NULL) {
            status = fy_fail(error, FERRY_ERR_MISUSE, "source %zu of %zu is NULL", i, n_sources);
            break;
        }
        status = fy_take_param_metadata(sources[i], &m, error);
        sorted[i] = (candidate){.dp = fy_group_or_none(m.data_parallel_group_ranks), .index = i};
    }
    FY_THEN(status, fy_take_param_metadata(destination, &m, error));
    if (status != FERRY_OK) {
        fy_free(sorted);
        return status;
    }
    fy_sort(sorted, n_sources, sizeof *sorted, compare_candidates);
    /* The first entry of each bucket moves to the front. */
    size_t n_buckets = 0;
    for (size_t i = 0; i < n_sources; i++) {
        if (n_buckets == 0 || compare_dp(sorted[n_buckets - 1].dp, sorted[i].dp) != 0) {
            sorted[n_buckets++] = sorted[i];
        }
    }
    size_t position = 0;
    if (m.data_parallel_group_ranks != NULL) {
        fy_group_find(m.data_parallel_group_ranks, dst_rank, &position);
    }
    *chosen_out = sorted[position % n_buckets].index;
    fy_free(sorted);
    return FERRY_OK;
}
