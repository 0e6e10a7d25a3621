/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources that have a source themselves. A tensor is ready once all that it is made of are; then
 * each of its boxes is replaced by those of the tensor that it names, as far as they lie in it.
 * What is cut so is never joined again: a proof only asks where an element comes from.
 */
#include "base/checked.h"
#include "base/sort.h"
#include "prove/boxes.h"
#include "prove/spec_read.h"

#include <string.h>

/* Of all tensors together: as many as fit into the memory of a laptop. */
enum { MOST_REPLACED = 1 << 23 };

typedef struct chaining {
    fy_proof_spec *spec;
    uint32_t *n_waiting; /* of each tensor: boxes whose source is not ready */
    uint32_t *first;     /* [1 + tensor] where those that wait for it begin in waiters */
    uint32_t *waiters;
    uint32_t *ready; /* a queue */
    size_t n_ready;
    uint64_t n_replaced;
} chaining;

static size_t n_boxes_of(const fy_proof_tensor *tensor)
{
    return tensor->entry->has_source ? tensor->entry->n_boxes : 0;
}

/* Who waits for whom, as a list for each tensor that has a source. */
static ferry_status list_waiters(chaining *c, ferry_error *error)
{
    fy_proof_spec *spec = c->spec;
    size_t n = spec->n_tensors, sum = 0;
    for (size_t t = 0; t < n; t++) {
        for (size_t i = 0; i < n_boxes_of(&spec->tensors[t]); i++) {
            uint32_t source = spec->tensors[t].sources[i];
            if (spec->tensors[source].entry->has_source) {
                spec->tensors[source].is_between = true;
                c->first[source + 1]++;
                c->n_waiting[t]++;
                sum++;
            }
        }
    }
    if (sum >= UINT32_MAX) {
        return fy_fail(error, FERRY_ERR_LIMIT, "there are %zu boxes of sources of sources", sum);
    }
    c->waiters = fy_alloc(sum, sizeof *c->waiters);
    FY_TRY(fy_check_memory(c->waiters != NULL, "the sources of tensors", error));
    for (size_t t = 0; t < n; t++) {
        c->first[t + 1] += c->first[t];
    }
    c->first[n + 1] = (uint32_t)sum;
    for (size_t t = n; t-- > 0;) {
        for (size_t i = 0; i < n_boxes_of(&spec->tensors[t]); i++) {
            uint32_t source = spec->tensors[t].sources[i];
            if (spec->tensors[source].entry->has_source) {
                c->waiters[--c->first[source + 1]] = (uint32_t)t;
            }
        }
    }
    return FERRY_OK;
}

/* The boxes that replace those of one tensor. */
typedef struct replacing {
    chaining *c;
    const fy_proof_tensor *source;
    const fy_proof_box *wanted; /* a box of the tensor: begin and shape lie in the source */
    fy_proof_box *boxes;
    uint32_t *sources;
    size_t n, box_capacity, source_capacity;
    bool no_memory;
} replacing;

static bool push(replacing *r, const fy_proof_box *box, uint32_t source)
{
    if (r->c->n_replaced == MOST_REPLACED) {
        return false;
    }
    if (!FY_RESERVE(r->boxes, r->box_capacity, r->n + 1) ||
        !FY_RESERVE(r->sources, r->source_capacity, r->n + 1)) {
        r->no_memory = true;
        return false;
    }
    r->boxes[r->n] = *box;
    r->sources[r->n++] = source;
    r->c->n_replaced++;
    return true;
}

/* What box number `number` of the source and the wanted box have in common. */
static bool replace(void *context, size_t number)
{
    replacing *r = context;
    const fy_proof_box *its = &r->source->entry->boxes[number], *wanted = r->wanted;
    fy_proof_box box = {.n_dims = its->n_dims};
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        uint64_t first = fy_max(its->at[d], wanted->begin[d]);
        uint64_t behind = fy_min(its->at[d] + its->shape[d], wanted->begin[d] + wanted->shape[d]);
        if (first >= behind) {
            return true;
        }
        box.shape[d] = behind - first;
        box.begin[d] = its->begin[d] + (first - its->at[d]);
        box.at[d] = wanted->at[d] + (first - wanted->begin[d]);
    }
    return push(r, &box, r->source->sources[number]);
}

static bool replace_box(replacing *r, uint64_t *looks)
{
    uint64_t end[FY_PROOF_DIMS];
    if (r->source->entry->tree == NULL) {
        return replace(r, 0);
    }
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        end[d] = r->wanted->begin[d] + r->wanted->shape[d];
    }
    return fy_proof_tree_visit(r->source->entry->tree, r->wanted->begin, end, replace, r, looks);
}

static bool replace_all(replacing *r, const fy_proof_tensor *tensor)
{
    for (size_t i = 0; i < tensor->entry->n_boxes; i++) {
        r->wanted = &tensor->entry->boxes[i];
        r->source = &r->c->spec->tensors[tensor->sources[i]];
        if (!r->source->entry->has_source) {
            if (!push(r, r->wanted, tensor->sources[i])) {
                return false;
            }
        } else if (!replace_box(r, r->c->spec->looks)) {
            return false;
        }
    }
    return true;
}

/* Gives the tensor an entry of its own, with boxes that lead to tensors without a source. */
static ferry_status take(const replacing *r, fy_proof_tensor *tensor, ferry_error *error)
{
    fy_arena *arena = &r->c->spec->arena;
    fy_proof_entry *entry = fy_arena_alloc(arena, 1, sizeof *entry);
    fy_proof_box *boxes = fy_arena_alloc(arena, r->n, sizeof *boxes);
    uint32_t *sources = fy_arena_alloc(arena, r->n, sizeof *sources);
    uint32_t *fed_by = fy_arena_alloc(arena, r->n, sizeof *fed_by);
    FY_TRY(fy_check_memory(entry != NULL && boxes != NULL && sources != NULL && fed_by != NULL,
                           "the sources of a tensor", error));
    memcpy(boxes, r->boxes, r->n * sizeof *boxes);
    memcpy(sources, r->sources, r->n * sizeof *sources);
    memcpy(fed_by, r->sources, r->n * sizeof *fed_by);
    fy_sort(fed_by, r->n, sizeof *fed_by, fy_compare_u32);
    *entry = *tensor->entry;
    entry->boxes = boxes;
    entry->n_boxes = r->n;
    entry->tree = NULL;
    if (r->n > 1) {
        entry->tree = fy_proof_tree_make(arena, boxes, r->n);
        FY_TRY(fy_check_memory(entry->tree != NULL, "the boxes of a tensor", error));
    }
    tensor->entry = entry;
    tensor->sources = sources;
    tensor->fed_by = fed_by;
    return FERRY_OK;
}

/* A copy of a whole tensor is made of what that is made of; and so is one without elements. */
static ferry_status share(fy_proof_spec *spec, fy_proof_tensor *tensor, ferry_error *error)
{
    const fy_proof_tensor *source = &spec->tensors[tensor->sources[0]];
    if (!source->entry->has_source) {
        return FERRY_OK;
    }
    fy_proof_entry *entry = fy_arena_alloc(&spec->arena, 1, sizeof *entry);
    FY_TRY(fy_check_memory(entry != NULL, "the sources of a tensor", error));
    *entry = *tensor->entry;
    entry->boxes = source->entry->boxes;
    entry->n_boxes = source->entry->n_boxes;
    entry->tree = source->entry->tree;
    tensor->sources = source->sources;
    tensor->fed_by = source->fed_by;
    tensor->entry = entry;
    return FERRY_OK;
}

static ferry_status replace_sources(chaining *c, fy_proof_tensor *tensor, ferry_error *error)
{
    bool is_chained = false;
    for (size_t i = 0; i < tensor->entry->n_boxes; i++) {
        is_chained = is_chained || c->spec->tensors[tensor->sources[i]].entry->has_source;
    }
    if (!is_chained) {
        return FERRY_OK;
    }
    if (tensor->entry->is_tied || tensor->entry->volume == 0) {
        return share(c->spec, tensor, error);
    }
    replacing r = {.c = c};
    ferry_status status = FERRY_OK;
    if (!replace_all(&r, tensor)) {
        status = r.no_memory
                     ? fy_fail_no_memory(error, "the sources of a tensor")
                     : fy_fail(error, FERRY_ERR_LIMIT,
                               "%s: its sources and their sources are more than %d boxes, with "
                               "those of tensors before it",
                               tensor->name, MOST_REPLACED);
    }
    FY_THEN(status, take(&r, tensor, error));
    fy_free(r.boxes);
    fy_free(r.sources);
    return status;
}

/* Some tensor waits for ever: of those that it waits for, one stands twice on the way. */
static ferry_status fail_circle(const chaining *c, ferry_error *error)
{
    const fy_proof_spec *spec = c->spec;
    uint32_t at = 0;
    while (c->n_waiting[at] == 0) {
        at++;
    }
    for (size_t steps = 0; steps < spec->n_tensors; steps++) {
        size_t i = 0;
        while (c->n_waiting[spec->tensors[at].sources[i]] == 0) {
            i++;
        }
        at = spec->tensors[at].sources[i];
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: its sources lead back to it, in a circle",
                   spec->tensors[at].name);
}

static ferry_status follow_chains(chaining *c, ferry_error *error)
{
    fy_proof_spec *spec = c->spec;
    size_t n_made = 0, n_wanted = 0;
    for (size_t t = 0; t < spec->n_tensors; t++) {
        n_wanted += spec->tensors[t].entry->has_source;
        if (spec->tensors[t].entry->has_source && c->n_waiting[t] == 0) {
            c->ready[c->n_ready++] = (uint32_t)t;
        }
    }
    for (; n_made < c->n_ready; n_made++) {
        uint32_t made = c->ready[n_made];
        FY_TRY(replace_sources(c, &spec->tensors[made], error));
        for (uint32_t i = c->first[made + 1]; i < c->first[made + 2]; i++) {
            if (--c->n_waiting[c->waiters[i]] == 0) {
                c->ready[c->n_ready++] = c->waiters[i];
            }
        }
    }
    return n_made == n_wanted ? FERRY_OK : fail_circle(c, error);
}

ferry_status fy_proof_follow_chains(fy_proof_spec *spec, ferry_error *error)
{
    size_t n = spec->n_tensors;
    chaining c = {.spec = spec,
                  .n_waiting = fy_alloc_zeroed(n, sizeof *c.n_waiting),
                  .first = fy_alloc_zeroed(n + 2, sizeof *c.first),
                  .ready = fy_alloc(n, sizeof *c.ready)};
    ferry_status status = fy_check_memory(c.n_waiting != NULL && c.first != NULL && c.ready != NULL,
                                          "the sources of tensors", error);
    FY_THEN(status, list_waiters(&c, error));
    FY_THEN(status, follow_chains(&c, error));
    fy_free(c.n_waiting);
    fy_free(c.first);
    fy_free(c.waiters);
    fy_free(c.ready);
    return status;
}
