/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What `ferry inspect` says of a plan: its tensors, each once. */
#include "inspect.h"

#include "plan.h"
#include "steps.h"

#include <ferry/shard.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct inspect_plan_tensor {
    const char *name;
    ferry_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[FERRY_MAX_DIMS];
};

ferry_status inspect_no_memory(ferry_error *error)
{
    snprintf(error->message, sizeof error->message, "out of memory for the list of tensors");
    return FERRY_ERR_NO_MEMORY;
}

static size_t hash_address(const char *name)
{
    return (size_t)(((uint64_t)(uintptr_t)name >> 3) * UINT64_C(0x9e3779b97f4a7c15) >> 20);
}

/* The place of the name, or the free one where it belongs. */
static const char **find_seen(const char **seen, size_t capacity, const char *name)
{
    size_t at = hash_address(name) & (capacity - 1);
    while (seen[at] != NULL && seen[at] != name) {
        at = (at + 1) & (capacity - 1);
    }
    return &seen[at];
}

/* Room for one more: the set stays at most half full, the list has its half. */
static bool reserve(inspect_plan *p)
{
    if (p->n_tensors < p->capacity) {
        return true;
    }
    size_t capacity = p->capacity == 0 ? 256 : p->capacity * 2;
    const char **seen = calloc(capacity * 2, sizeof *seen);
    struct inspect_plan_tensor *tensors = realloc(p->tensors, capacity * sizeof *tensors);
    p->tensors = tensors != NULL ? tensors : p->tensors;
    if (seen == NULL || tensors == NULL) {
        free(seen);
        return false;
    }
    for (size_t i = 0; i < p->n_tensors; i++) {
        *find_seen(seen, capacity * 2, tensors[i].name) = tensors[i].name;
    }
    free(p->seen);
    p->seen = seen;
    p->seen_capacity = capacity * 2;
    p->capacity = capacity;
    return true;
}

static ferry_status add_shard(void *context, const ferry_shard *shard)
{
    inspect_plan *p = context;
    if (!reserve(p)) {
        return FERRY_ERR_NO_MEMORY;
    }
    const char **place = find_seen(p->seen, p->seen_capacity, shard->tensor);
    if (*place == NULL) {
        struct inspect_plan_tensor *tensor = &p->tensors[p->n_tensors++];
        *place = shard->tensor;
        tensor->name = shard->tensor;
        tensor->dtype = shard->dtype;
        tensor->n_dims = shard->n_dims;
        memcpy(tensor->shape, shard->global, sizeof tensor->shape);
    }
    return FERRY_OK;
}

static ferry_status list_tensors(inspect_plan *p, ferry_error *error)
{
    ferry_plan_statistics statistics = FERRY_PLAN_STATISTICS_INIT;
    ferry_status status = ferry_plan_get_statistics(p->plan, &statistics, error);
    uint32_t n_ranks = ferry_plan_rank_count(p->plan);
    for (uint32_t rank = 0;
         rank < n_ranks && status == FERRY_OK && p->n_tensors < statistics.n_tensors; rank++) {
        status =
            ferry_plan_visit_shards(p->plan, FERRY_SIDE_DESTINATION, rank, add_shard, p, error);
    }
    return status == FERRY_ERR_NO_MEMORY ? inspect_no_memory(error) : status;
}

ferry_status inspect_plan_open(const char *path, inspect_plan *plan_out, ferry_error *error)
{
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    inspect_plan p = {.totals = FERRY_PLAN_TOTALS_INIT, .is_saved = plan_is_saved(path)};
    ferry_status status = plan_open(NULL, path, &options, &p.plan, error);
    FY_THEN(status, ferry_plan_get_totals(p.plan, &p.totals, error));
    FY_THEN(status, list_tensors(&p, error));
    if (status != FERRY_OK) {
        inspect_plan_close(&p);
        return status;
    }
    *plan_out = p;
    return FERRY_OK;
}

void inspect_plan_close(inspect_plan *plan)
{
    ferry_plan_destroy(plan->plan);
    free(plan->tensors);
    free(plan->seen);
    *plan = (inspect_plan){.plan = NULL};
}

ferry_status inspect_plan_tensor_at(const inspect_plan *plan, size_t index,
                                    inspect_tensor *tensor_out, ferry_error *error)
{
    const struct inspect_plan_tensor *t = &plan->tensors[index];
    uint64_t bits = t->dtype.element_bits;
    (void)error;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        bits *= t->shape[d];
    }
    tensor_out->name = t->name;
    tensor_out->n_dims = t->n_dims;
    memcpy(tensor_out->shape, t->shape, sizeof tensor_out->shape);
    tensor_out->bytes = (bits + 7) / 8; /* half a byte may be left of f4 */
    ferry_dtype_format(t->dtype, tensor_out->dtype_text, sizeof tensor_out->dtype_text);
    tensor_out->dtype = tensor_out->dtype_text;
    return FERRY_OK;
}
