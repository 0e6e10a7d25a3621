/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Who computes with blocks that share scales, and what that takes of its memory. A sender keeps the
 * scales of its shard, as they are stored and as divisors, or of f4 with its codes; a receiver
 * those that come beside codes, or the values that it makes codes of.
 */
#include "plan/core.h"

#include "base/checked.h"

#include <string.h>

/* What of a tensor some leg asks for. */
typedef struct item {
    uint32_t tensor; /* of the spec: that of the codes */
    uint32_t part;   /* of the problem: whose shards are at the receiver; FY_NONE: a sender's */
    const ferry_conversion *conversion;
    ferry_dtype values; /* of what codes are made of; of the scales that come beside codes theirs */
} item;

typedef struct gathering {
    const ferry_plan *plan;
    item *items;
    size_t n, capacity;
    uint64_t *bytes; /* [n_ranks] of the tensor at work */
} gathering;

static int compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* By tensor and part; of senders by the format, for scales of each are kept. */
static int compare_items(const void *a, const void *b)
{
    const item *x = a, *y = b;
    const ferry_conversion *c = x->conversion, *d = y->conversion;
    const uint64_t one[] = {x->tensor,   x->part,     c->code_dtype.kind, c->scale_dtype.kind,
                            c->block[0], c->block[1], c->scale_rule};
    const uint64_t other[] = {y->tensor,   y->part,     d->code_dtype.kind, d->scale_dtype.kind,
                              d->block[0], d->block[1], d->scale_rule};
    int order = 0;
    for (size_t i = 0; i < sizeof one / sizeof *one && order == 0; i++) {
        order = compare_u64(one[i], other[i]);
    }
    return order;
}

/* Of codes that are dequantized the scales take memory, which are a tensor by themselves. */
static item item_of(const fy_problem *problem, uint32_t part)
{
    static const ferry_conversion to_values = {.kind = FERRY_CONVERSION_DEQUANTIZE,
                                               .at_receiver = true};
    const fy_tensor *tensor = &problem->tensors[part];
    const fy_scales *staged = fy_problem_whole(problem, part)->staged;
    const ferry_conversion *its = tensor->conversion == NULL ? NULL : &tensor->conversion->is;
    if (staged != NULL) {
        return (item){.tensor = staged->tensor,
                      .part = part,
                      .conversion = &to_values,
                      .values = tensor->dtype};
    }
    if (its == NULL || its->kind == FERRY_CONVERSION_CAST ||
        its->kind == FERRY_CONVERSION_DEQUANTIZE) {
        return (item){.conversion = NULL};
    }
    return (item){.tensor = tensor->scales != NULL ? tensor->scales->tensor
                                                   : fy_problem_whole_number(problem, part),
                  .part = its->at_receiver ? part : FY_NONE,
                  .conversion = its,
                  .values = tensor->conversion->from};
}

static ferry_status list_items(gathering *g, ferry_error *error)
{
    const fy_problem *problem = &g->plan->problem;
    for (size_t i = 0; i < g->plan->routes.n_legs; i++) {
        uint32_t part = g->plan->routes.legs[i].tensor;
        item its = item_of(problem, part);
        if (its.conversion == NULL) {
            continue;
        }
        FY_TRY(FY_GROW(g->items, g->capacity, g->n + 1, "the tensors of a plan", error));
        g->items[g->n++] = its;
    }
    fy_sort(g->items, g->n, sizeof *g->items, compare_items);
    return FERRY_OK;
}

/* What a rank keeps for a shard of this shape. */
static uint64_t staging_of(const item *its, const uint64_t *shape, uint32_t n_dims)
{
    const ferry_conversion *c = its->conversion;
    uint64_t elements = 1, scales = 1;
    for (uint32_t d = 0; d < n_dims; d++) {
        elements *= shape[d]; /* it fits, as the tensor's bytes do */
    }
    if (its->part != FY_NONE) {
        return elements * (its->values.element_bits / 8);
    }
    for (uint32_t d = 0; d < n_dims; d++) {
        scales *= d + 2 < n_dims ? shape[d] : fy_ceil_div(shape[d], c->block[d + 2 - n_dims]);
    }
    return scales * (c->scale_dtype.element_bits / 8) +
           (c->code_dtype.kind == FERRY_F4 ? elements / 2 : scales * sizeof(float));
}

static void add_item(gathering *g, const item *its)
{
    const fy_problem *problem = &g->plan->problem;
    uint32_t placement =
        its->part == FY_NONE ? problem->tensors[its->tensor].src : problem->tensors[its->part].dst;
    const fy_layout *layout = &problem->placements[placement].layout;
    const fy_holders *holders = fy_problem_holders(problem, placement);
    for (uint32_t cell = 0; cell < holders->n_cells; cell++) {
        uint32_t parts[FERRY_MAX_DIMS + 1];
        uint64_t shape[FERRY_MAX_DIMS];
        fy_layout_parts(problem, layout, cell, parts);
        fy_layout_shard(problem, layout, parts, shape);
        uint64_t bytes = staging_of(its, shape, layout->n_dims);
        for (uint32_t s = holders->cell_begin[cell]; s < holders->cell_begin[cell + 1]; s++) {
            g->bytes[holders->rank[s]] += bytes;
        }
    }
}

static ferry_status visit_tensor(const gathering *g, const item *its,
                                 ferry_block_work_visitor visitor, void *context)
{
    const ferry_conversion *c = its->conversion;
    const fy_tensor *tensors = g->plan->problem.tensors;
    uint32_t given = tensors[its->tensor].tensor_scale;
    ferry_block_work work = {.tensor = tensors[its->tensor].name,
                             .tensor_scale = given == 0 ? NULL : tensors[given - 1].name,
                             .dequantizes = c->kind == FERRY_CONVERSION_DEQUANTIZE,
                             .at_receiver = c->at_receiver};
    ferry_status status = FERRY_OK;
    for (uint32_t r = 0; r < g->plan->problem.n_ranks && status == FERRY_OK; r++) {
        work.rank = r;
        work.staging_bytes = g->bytes[r];
        status = work.staging_bytes == 0 ? FERRY_OK : visitor(context, &work);
    }
    return status;
}

static ferry_status visit_all(gathering *g, ferry_block_work_visitor visitor, void *context)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < g->n && status == FERRY_OK; i++) {
        bool is_first = i == 0 || g->items[i].tensor != g->items[i - 1].tensor;
        if (is_first) {
            memset(g->bytes, 0, g->plan->problem.n_ranks * sizeof *g->bytes);
        }
        if (is_first || compare_items(&g->items[i - 1], &g->items[i]) != 0) {
            add_item(g, &g->items[i]);
        }
        if (i + 1 == g->n || g->items[i + 1].tensor != g->items[i].tensor) {
            status = visit_tensor(g, &g->items[i], visitor, context);
        }
    }
    return status;
}

ferry_status ferry_plan_visit_block_work(const ferry_plan *plan, ferry_block_work_visitor visitor,
                                         void *context, ferry_error *error)
{
    FY_TRY(fy_check_use(plan != NULL && visitor != NULL,
                        "ferry_plan_visit_block_work needs a plan and a visitor", error));
    gathering g = {.plan = plan};
    fy_before_callback(error);
    ferry_status status = list_items(&g, error);
    if (status == FERRY_OK && g.n > 0) {
        g.bytes = fy_alloc(plan->problem.n_ranks, sizeof *g.bytes);
        status = fy_check_memory(g.bytes != NULL, "the ranks of a plan", error);
    }
    if (status == FERRY_OK) {
        status = fy_after_callback(visit_all(&g, visitor, context), "visitor", error);
    }
    fy_free(g.items);
    fy_free(g.bytes);
    return status;
}
