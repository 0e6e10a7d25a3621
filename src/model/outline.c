/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/outline.h"

#include "base/hash.h"
#include "model/group.h"

#include <string.h>

/* A model on its way to its outline; nothing of it is copied until no equal outline is found. */
typedef struct draft_param {
    const ferry_param_metadata *said; /* of the model, or resolved, in the draft's arena */
    uint32_t group[FY_N_ROLES];
    uint32_t kind;
} draft_param;

typedef struct draft {
    draft_param *params;
    size_t n_params;
    fy_group_table groups;
    fy_arena arena;
} draft;

static void draft_cleanup(draft *d)
{
    fy_free(d->params);
    fy_group_table_cleanup(&d->groups);
    fy_arena_cleanup(&d->arena);
}

static ferry_status resolve(draft *d, const ferry_param_metadata **said, ferry_error *error)
{
    char name[FERRY_NAME_BYTES];
    ferry_param_metadata *m = fy_arena_alloc(&d->arena, 1, sizeof *m);
    FY_TRY(fy_check_memory(m != NULL, "a name", error));
    *m = **said;
    FY_TRY(ferry_param_metadata_resolve_name(m, NULL, name, sizeof name, error));
    m->resolved_name = fy_arena_copy(&d->arena, name, strlen(name));
    *said = m;
    return m->resolved_name == NULL ? fy_fail_no_memory(error, "a name") : FERRY_OK;
}

static ferry_status draft_model(draft *d, const ferry_model *model, ferry_error *error)
{
    d->n_params = model->n_params;
    d->params = fy_alloc(model->n_params, sizeof *d->params);
    FY_TRY(fy_check_memory(d->params != NULL, "a model", error));
    for (size_t i = 0; i < model->n_params; i++) {
        draft_param *p = &d->params[i];
        p->said = &model->params[i];
        if (!fy_group_table_number(&d->groups, p->said, p->group)) {
            return fy_fail_no_memory(error, "the groups of a model");
        }
        if (p->said->is_ep && p->said->resolved_name == NULL) {
            FY_TRY(resolve(d, &p->said, error));
        }
    }
    return FERRY_OK;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool same_list(const uint64_t *a, const uint64_t *b, size_t n)
{
    return n == 0 || memcmp(a, b, n * sizeof *a) == 0;
}

/* All that says how a shard is placed among those of other ranks. */
static bool same_placing(const ferry_param_metadata *a, const ferry_param_metadata *b)
{
    return a->n_dims == b->n_dims && same_list(a->shape, b->shape, a->n_dims) &&
           a->dtype.kind == b->dtype.kind && a->dtype.element_bits == b->dtype.element_bits &&
           a->is_tp == b->is_tp && a->partition_dim == b->partition_dim &&
           a->partition_stride == b->partition_stride &&
           a->n_partition_sizes == b->n_partition_sizes &&
           same_list(a->partition_sizes, b->partition_sizes, a->n_partition_sizes);
}

/* Whatever a packed model tells counts here, so that a saved roster is read back as it was. */
static bool same_said(const ferry_param_metadata *a, const ferry_param_metadata *b)
{
    return same_placing(a, b) && a->is_ep == b->is_ep && a->has_num_experts == b->has_num_experts &&
           a->num_experts == b->num_experts &&
           a->has_global_expert_index == b->has_global_expert_index &&
           a->global_expert_index == b->global_expert_index && same_text(a->name, b->name) &&
           same_text(a->resolved_name, b->resolved_name);
}

static bool is_outline_of(const fy_outline *outline, const draft *d)
{
    if (outline->n_params != d->n_params) {
        return false;
    }
    for (size_t i = 0; i < d->n_params; i++) {
        const fy_outline_param *p = &outline->params[i];
        if (memcmp(p->group, d->params[i].group, sizeof p->group) != 0 ||
            !same_said(&p->said, d->params[i].said)) {
            return false;
        }
    }
    return true;
}

static uint64_t hash_placing(const draft_param *p)
{
    enum { N_FIRST = 6 };
    const ferry_param_metadata *m = p->said;
    uint64_t values[N_FIRST + FERRY_MAX_DIMS] = {
        m->dtype.kind,    m->dtype.element_bits, m->is_tp,
        m->partition_dim, m->partition_stride,   m->n_partition_sizes};
    memcpy(values + N_FIRST, m->shape, m->n_dims * sizeof *values);
    uint64_t hash = fy_hash_mix(fy_hash64(values, (N_FIRST + m->n_dims) * sizeof *values),
                                fy_hash64(p->group, sizeof p->group));
    return m->n_partition_sizes == 0
               ? hash
               : fy_hash_mix(hash, fy_hash64(m->partition_sizes,
                                             m->n_partition_sizes * sizeof *m->partition_sizes));
}

static bool add_kind(fy_outlines *set, draft_param *p, uint64_t hash)
{
    fy_outline_param kind = {.said = *p->said, .kind = (uint32_t)set->n_kinds};
    uint64_t *sizes = fy_arena_alloc(&set->arena, p->said->n_partition_sizes, sizeof *sizes);
    if (sizes == NULL || !FY_RESERVE(set->kinds, set->kind_capacity, set->n_kinds + 1) ||
        !fy_index_insert(&set->kind_index, hash, kind.kind)) {
        return false;
    }
    if (p->said->n_partition_sizes > 0) {
        memcpy(sizes, p->said->partition_sizes, p->said->n_partition_sizes * sizeof *sizes);
    }
    kind.said.partition_sizes = sizes;
    kind.said.name = kind.said.resolved_name = NULL; /* of a model that may go */
    memcpy(kind.group, p->group, sizeof kind.group);
    set->kinds[set->n_kinds++] = kind;
    p->kind = kind.kind;
    return true;
}

static bool find_kind(fy_outlines *set, draft_param *p)
{
    uint64_t hash = hash_placing(p);
    fy_index_cursor c = fy_index_first(&set->kind_index, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&set->kind_index, &c)) {
        const fy_outline_param *kind = &set->kinds[c.value];
        if (memcmp(kind->group, p->group, sizeof p->group) == 0 &&
            same_placing(&kind->said, p->said)) {
            p->kind = c.value;
            return true;
        }
    }
    return add_kind(set, p, hash);
}

/* Of all that is_outline_of looks at: else many ranks that differ little would be hard to find. */
static uint64_t hash_draft(const draft *d)
{
    uint64_t hash = d->n_params;
    for (size_t i = 0; i < d->n_params; i++) {
        const ferry_param_metadata *m = d->params[i].said;
        const char *name = m->resolved_name == NULL ? "" : m->resolved_name;
        const uint64_t values[] = {d->params[i].kind,
                                   fy_hash64(m->name, strlen(m->name)),
                                   fy_hash64(name, strlen(name)),
                                   m->is_ep,
                                   m->has_num_experts,
                                   m->num_experts,
                                   m->has_global_expert_index,
                                   m->global_expert_index};
        hash = fy_hash_mix(hash, fy_hash64(values, sizeof values));
    }
    return hash;
}

static void destroy(fy_outline *outline)
{
    if (outline != NULL) {
        fy_free(outline->params);
        fy_arena_cleanup(&outline->arena);
        fy_free(outline);
    }
}

static fy_outline *create(const draft *d)
{
    fy_outline *outline = fy_alloc_zeroed(1, sizeof *outline);
    if (outline == NULL) {
        return NULL;
    }
    outline->n_params = d->n_params;
    outline->params = fy_alloc(d->n_params, sizeof *outline->params);
    for (size_t i = 0; outline->params != NULL && i < d->n_params; i++) {
        fy_outline_param *p = &outline->params[i];
        ferry_param_metadata *m = &p->said;
        *m = *d->params[i].said;
        if (!fy_metadata_copy_texts(&outline->arena, m)) {
            destroy(outline);
            return NULL;
        }
        m->owner_rank = 0;
        m->tensor_parallel_group_ranks = NULL;
        m->expert_parallel_group_ranks = NULL;
        m->data_parallel_group_ranks = NULL;
        m->pipeline_parallel_group_ranks = NULL;
        memcpy(p->group, d->params[i].group, sizeof p->group);
        p->kind = d->params[i].kind;
    }
    if (outline->params == NULL) {
        destroy(outline);
        return NULL;
    }
    return outline;
}

static const fy_outline *add(fy_outlines *set, const draft *d, uint64_t hash)
{
    fy_outline *outline = create(d);
    if (outline == NULL) {
        return NULL;
    }
    outline->number = (uint32_t)set->n_outlines;
    if (!FY_RESERVE(set->all, set->capacity, set->n_outlines + 1) ||
        !fy_index_insert(&set->index, hash, outline->number)) {
        destroy(outline);
        return NULL;
    }
    set->all[set->n_outlines++] = outline;
    return outline;
}

/* NULL without memory. */
static const fy_outline *find_or_add(fy_outlines *set, draft *d, const fy_outline *guess)
{
    if (guess != NULL && is_outline_of(guess, d)) {
        return guess;
    }
    for (size_t i = 0; i < d->n_params; i++) {
        if (!find_kind(set, &d->params[i])) {
            return NULL;
        }
    }
    uint64_t hash = hash_draft(d);
    fy_index_cursor c = fy_index_first(&set->index, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&set->index, &c)) {
        if (is_outline_of(set->all[c.value], d)) {
            return set->all[c.value];
        }
    }
    return add(set, d, hash);
}

/* The group of the set that equals it. */
static ferry_group *share_group(fy_outlines *set, ferry_group *group)
{
    uint32_t number;
    size_t n = set->groups.n_groups;
    if (!fy_group_table_find(&set->groups, group, &number)) {
        return NULL;
    }
    if (set->groups.n_groups > n) {
        ferry_group_retain(group); /* it is the first of its kind */
    }
    return set->groups.groups[number - 1];
}

/* The groups that a draft has numbered, as all ranks share them. */
static bool take_groups(fy_outlines *set, draft *d, fy_said *said)
{
    for (size_t i = 0; i < d->groups.n_groups; i++) {
        d->groups.groups[i] = share_group(set, d->groups.groups[i]);
        if (d->groups.groups[i] == NULL) {
            return false;
        }
    }
    said->groups = d->groups.groups;
    d->groups.groups = NULL;
    return true;
}

ferry_status fy_outlines_take(fy_outlines *set, const ferry_model *model, const fy_outline *guess,
                              fy_said *said_out, ferry_error *error)
{
    draft d = {0};
    ferry_status status = draft_model(&d, model, error);
    if (status == FERRY_OK) {
        const fy_outline *outline = find_or_add(set, &d, guess);
        fy_said said = {.outline = outline, .n_groups = d.groups.n_groups};
        if (outline == NULL || !take_groups(set, &d, &said)) {
            status = fy_fail_no_memory(error, "the parameters of a rank");
        } else {
            *said_out = said;
        }
    }
    draft_cleanup(&d);
    return status;
}

void fy_outlines_cleanup(fy_outlines *set)
{
    for (size_t i = 0; i < set->n_outlines; i++) {
        destroy(set->all[i]);
    }
    fy_free(set->all);
    fy_index_cleanup(&set->index);
    fy_free(set->kinds);
    fy_index_cleanup(&set->kind_index);
    fy_arena_cleanup(&set->arena);
    for (size_t i = 0; i < set->groups.n_groups; i++) {
        ferry_group_destroy(set->groups.groups[i]);
    }
    fy_group_table_cleanup(&set->groups);
    *set = (fy_outlines){0};
}

void fy_said_cleanup(fy_said *said)
{
    fy_free(said->groups);
    *said = (fy_said){0};
}

static ferry_group *group_of(const fy_said *said, uint32_t number)
{
    return number == 0 ? NULL : said->groups[number - 1];
}

void fy_said_param(const fy_said *said, uint32_t rank, size_t i, ferry_param_metadata *metadata_out)
{
    const fy_outline_param *p = &said->outline->params[i];
    *metadata_out = p->said;
    metadata_out->owner_rank = rank;
    metadata_out->tensor_parallel_group_ranks = group_of(said, p->group[0]);
    metadata_out->expert_parallel_group_ranks = group_of(said, p->group[1]);
    metadata_out->data_parallel_group_ranks = group_of(said, p->group[2]);
    metadata_out->pipeline_parallel_group_ranks = group_of(said, p->group[3]);
}
