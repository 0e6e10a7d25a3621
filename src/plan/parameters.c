/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a side in boxes have: parameters, and what they write into them themselves. */
#include "plan/shards.h"

#include "plan/core.h"

#include "base/checked.h"
#include "base/sort.h"
#include "model/memory.h"

#include <string.h>

bool fy_plan_has_lost(const ferry_plan *plan, uint32_t rank)
{
    FY_BISECT(size_t, low, 0, plan->n_lost, middle, plan->lost[middle] < rank);
    return low < plan->n_lost && plan->lost[low] == rank;
}

/* Whether a plan has to do with a parameter: some tensor of it, a fill, or all of a destination. */
static bool is_used(const ferry_plan *plan, uint32_t which, const fy_parameter *parameter)
{
    const fy_memory *memory = plan->problem.memory[which];
    const ferry_side *side = memory->side;
    if (which == 1 && (plan->subset == NULL || parameter->n_fills > 0)) {
        return true;
    }
    for (uint32_t i = 0; i < parameter->n_boxes; i++) {
        uint32_t tensor = memory->tensor_of[side->boxes[parameter->first_box + i].tensor];
        if ((plan->used[which][tensor / 8] >> (tensor % 8) & 1) != 0) {
            return true;
        }
    }
    return false;
}

static ferry_status visit_parameter(const ferry_side *side, const fy_parameter *parameter,
                                    ferry_shard_visitor visitor, void *context)
{
    ferry_shard shard = {.tensor = parameter->name,
                         .dtype = parameter->dtype,
                         .source_dtype = parameter->dtype,
                         .n_dims = 1,
                         .flat_end = parameter->elements,
                         .is_parameter = true};
    uint64_t bits = parameter->elements * parameter->dtype.element_bits; /* below 2^63 */
    shard.global[0] = parameter->elements;
    shard.local[0] = parameter->elements;
    shard.bytes = bits / 8 + (bits % 8 != 0);
    if (parameter->staged != 0) {
        shard.values = side->parameters[parameter->staged - 1].name;
    }
    return visitor(context, &shard);
}

ferry_status fy_plan_visit_parameters(const ferry_plan *plan, ferry_side_role role, uint32_t rank,
                                      bool of_staged, ferry_shard_visitor visitor, void *context,
                                      ferry_error *error)
{
    uint32_t which = role == FERRY_SIDE_SOURCE ? 0 : 1;
    const fy_memory *memory = plan->problem.memory[which];
    uint32_t *numbers = NULL;
    size_t capacity = 0, n = 0;
    ferry_status status = FERRY_OK;
    if (!fy_plan_has_lost(plan, rank)) {
        status = fy_memory_parameters(memory, rank, &numbers, &capacity, &n, error);
    }
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        const fy_parameter *parameter = &memory->side->parameters[numbers[i]];
        if ((parameter->staged != 0) == of_staged && is_used(plan, which, parameter)) {
            status = visit_parameter(memory->side, parameter, visitor, context);
        }
    }
    fy_free(numbers);
    return status;
}

bool ferry_plan_is_in_boxes(const ferry_plan *plan, ferry_side_role side)
{
    bool is_side = side == FERRY_SIDE_SOURCE || side == FERRY_SIDE_DESTINATION;
    return plan != NULL && is_side && plan->problem.memory[side] != NULL;
}

static int compare_fills(const void *a, const void *b)
{
    const fy_fill *x = *(const fy_fill *const *)a, *y = *(const fy_fill *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* A fill as it is handed over; false: it has no element. */
static bool describe_fill(const fy_parameter *parameter, const fy_fill *from, uint32_t rank,
                          ferry_fill *fill)
{
    uint64_t n = 1;
    *fill = (ferry_fill){.parameter = parameter->name,
                         .dtype = parameter->dtype,
                         .rank = rank,
                         .n_dims = from->n_dims,
                         .offset = from->offset};
    memcpy(fill->bits, from->bits, sizeof fill->bits);
    for (uint32_t d = 0; d < from->n_dims; d++) {
        fill->shape[d] = from->numbers[d];
        fill->strides[d] = fill->shape[d] > 1 ? from->numbers[from->n_dims + d] : 1;
        n *= fill->shape[d];
    }
    fill->bytes = fy_bytes(n, parameter->dtype.element_bits);
    return n > 0;
}

static ferry_status visit_fills_of(const fy_memory *memory, const fy_parameter *parameter,
                                   uint32_t rank, ferry_fill_visitor visitor, void *context,
                                   ferry_error *error)
{
    const fy_fill **fills = fy_alloc(parameter->n_fills, sizeof(fy_fill *));
    FY_TRY(fy_check_memory(fills != NULL, "the fills of a rank", error));
    for (uint32_t i = 0; i < parameter->n_fills; i++) {
        fills[i] = &memory->side->fills[parameter->first_fill + i];
    }
    fy_sort(fills, parameter->n_fills, sizeof(fy_fill *), compare_fills);
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < parameter->n_fills && status == FERRY_OK; i++) {
        ferry_fill fill;
        if (describe_fill(parameter, fills[i], rank, &fill)) {
            status = visitor(context, &fill);
        }
    }
    fy_free(fills);
    return status;
}

static ferry_status visit_rank_fills(const ferry_plan *plan, uint32_t rank, uint32_t **numbers,
                                     size_t *capacity, ferry_fill_visitor visitor, void *context,
                                     ferry_error *error)
{
    const fy_memory *memory = plan->problem.memory[1];
    size_t n = 0;
    if (!fy_plan_has_lost(plan, rank)) {
        FY_TRY(fy_memory_parameters(memory, rank, numbers, capacity, &n, error));
    }
    for (size_t i = 0; i < n; i++) {
        const fy_parameter *parameter = &memory->side->parameters[(*numbers)[i]];
        if (parameter->n_fills > 0) {
            FY_TRY(visit_fills_of(memory, parameter, rank, visitor, context, error));
        }
    }
    return FERRY_OK;
}

ferry_status ferry_plan_visit_fills(const ferry_plan *plan, uint32_t rank,
                                    ferry_fill_visitor visitor, void *context, ferry_error *error)
{
    FY_TRY(fy_check_use(plan != NULL && visitor != NULL,
                        "ferry_plan_visit_fills needs a plan and a visitor", error));
    if (rank != FERRY_ALL_RANKS && rank >= plan->problem.n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE, "rank %u is not in the world of %u ranks", rank,
                       plan->problem.n_ranks);
    }
    if (plan->problem.memory[1] == NULL) {
        return FERRY_OK;
    }
    uint32_t *numbers = NULL;
    size_t capacity = 0;
    uint32_t first = rank == FERRY_ALL_RANKS ? 0 : rank;
    uint32_t end = rank == FERRY_ALL_RANKS ? plan->problem.n_ranks : rank + 1;
    ferry_status status = FERRY_OK;
    fy_before_callback(error);
    for (uint32_t r = first; r < end && status == FERRY_OK; r++) {
        status = visit_rank_fills(plan, r, &numbers, &capacity, visitor, context, error);
    }
    fy_free(numbers);
    return fy_after_callback(status, "visitor", error);
}

/* ---- boxes ---- */

typedef struct held_walk {
    const ferry_plan *plan;
    const fy_memory *memory;
    uint32_t which;
    const fy_said_box *scales; /* of the boxes at hand, which are dequantized; NULL: they are not */
    const fy_said_box *matrix_scales; /* likewise, of f4 */
    ferry_held_box_visitor visitor;
    void *context;
} held_walk;

/* A box with what is known of all of it; where its scales are follows from where it begins. */
static ferry_status hand_over(const held_walk *w, const ferry_held_box *made)
{
    ferry_held_box box = *made;
    if (w->scales == NULL) {
        return w->visitor(w->context, &box);
    }
    box.scales_offset = w->scales->offset;
    for (uint32_t d = 0; d < box.n_dims; d++) {
        uint64_t block = d + 2 < box.n_dims ? 1 : box.conversion->block[d + 2 - box.n_dims];
        box.scales_strides[d] = fy_said_box_strides(w->scales)[d];
        box.scales_offset += (box.begin[d] / block - w->scales->numbers[d]) * box.scales_strides[d];
    }
    if (w->matrix_scales != NULL) {
        box.matrix_scales_offset = w->matrix_scales->offset;
        for (uint32_t d = 0; d < w->matrix_scales->n_dims; d++) {
            uint64_t stride = fy_said_box_strides(w->matrix_scales)[d];
            box.matrix_scales_strides[d] = stride;
            box.matrix_scales_offset += (box.begin[d] - w->matrix_scales->numbers[d]) * stride;
        }
    }
    return w->visitor(w->context, &box);
}

/* What one source of the tensor gives of a box: some of its elements, or none. */
static ferry_status visit_fed(const held_walk *w, const ferry_held_box *whole,
                              const fy_tensor *tensor, const fy_feed *feed)
{
    ferry_held_box box = *whole;
    const fy_tensor *source = fy_problem_whole(&w->plan->problem, feed->tensor);
    uint32_t pad = feed->n_dims - tensor->n_dims, source_pad = feed->n_dims - source->n_dims;
    uint64_t skipped[FERRY_MAX_DIMS] = {0}; /* of the feed, by its dimensions */
    box.source = source->name;
    box.source_n_dims = source->n_dims;
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        uint64_t at = feed->at[d + pad], end = at + feed->shape[d + pad];
        uint64_t first = fy_max(at, box.begin[d]), last = fy_min(end, box.begin[d] + box.shape[d]);
        if (first >= last) {
            return FERRY_OK;
        }
        skipped[d + pad] = first - at;
        box.offset += (first - box.begin[d]) * box.strides[d];
        box.begin[d] = first;
        box.shape[d] = last - first;
    }
    for (uint32_t d = 0; d < source->n_dims; d++) {
        box.source_begin[d] = feed->begin[d + source_pad] + skipped[d + source_pad];
        box.source_global[d] = source->shape[d];
    }
    return hand_over(w, &box);
}

static ferry_status visit_turn(const held_walk *w, ferry_held_box *box, const fy_tensor *tensor)
{
    ferry_status status = FERRY_OK;
    if (w->which == 1 && tensor->n_feeds > 0) {
        for (uint32_t i = 0; i < tensor->n_feeds && status == FERRY_OK; i++) {
            status = visit_fed(w, box, tensor, &tensor->feeds[i]);
        }
        return status;
    }
    box->source = tensor->name;
    box->source_n_dims = tensor->n_dims;
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        box->source_begin[d] = box->begin[d];
        box->source_global[d] = tensor->shape[d];
    }
    return hand_over(w, box);
}

/* All turns of a box that repeats: for each repeat numbers has a count, an offset and a begin. */
static ferry_status visit_turns(const held_walk *w, ferry_held_box *box, const fy_said_box *said,
                                const fy_tensor *tensor, uint32_t repeat)
{
    if (repeat == said->n_repeats) {
        return visit_turn(w, box, tensor);
    }
    const uint64_t *numbers =
        said->numbers + (size_t)3 * said->n_dims + (size_t)repeat * (2 + said->n_dims);
    ferry_held_box turn = *box;
    ferry_status status = FERRY_OK;
    for (uint64_t i = 0; i < numbers[0] && status == FERRY_OK; i++) {
        ferry_held_box here = turn;
        status = visit_turns(w, &here, said, tensor, repeat + 1);
        turn.offset += numbers[1];
        for (uint32_t d = 0; d < said->n_dims; d++) {
            turn.begin[d] += numbers[2 + d];
        }
    }
    return status;
}

/* Of whose blocks a box has scales or codes, if it has either. */
static void name_values(const ferry_plan *plan, const fy_tensor *tensor, ferry_held_box *box)
{
    bool is_codes = box->conversion != NULL && box->conversion->kind == FERRY_CONVERSION_CODES;
    const fy_tensor *values =
        tensor->scales != NULL ? fy_problem_whole(&plan->problem, tensor->scales->tensor) : tensor;
    if (tensor->scales == NULL && !is_codes) {
        return;
    }
    box->values = values->name;
    memcpy(box->values_global, values->shape, values->n_dims * sizeof *values->shape);
}

static const char *name_of_codes(const fy_tensor *tensors, uint32_t staged)
{
    return tensors[tensors[staged].staged->tensor].name;
}

/* Of what is dequantized; boxes of scales are in the order of the names of codes. */
static void name_scales(held_walk *w, uint32_t parameter, ferry_held_box *box)
{
    const ferry_side *side = w->memory->side;
    uint32_t number = fy_side_find_staged(side, parameter);
    w->scales = w->matrix_scales = NULL;
    if (number == FY_NO_PARAMETER) {
        return;
    }
    const fy_parameter *staged = &side->parameters[number];
    const fy_said_box *boxes = &side->boxes[staged->first_box];
    const fy_tensor *tensors = w->plan->problem.tensors;
    FY_BISECT(uint32_t, low, 0, staged->n_boxes, middle,
              strcmp(name_of_codes(tensors, w->memory->tensor_of[boxes[middle].tensor]),
                     box->tensor) < 0);
    if (low == staged->n_boxes) {
        return; /* its boxes are empty */
    }
    w->scales = &boxes[low];
    box->scales = staged->name;
    number = fy_side_find_matrix_staged(side, number);
    if (number != FY_NO_PARAMETER) { /* which has boxes of the same tensors, in their order */
        w->matrix_scales = &side->boxes[side->parameters[number].first_box + low];
        box->matrix_scales = side->parameters[number].name;
    }
}

static ferry_status visit_held(held_walk *w, const fy_parameter *parameter, uint32_t rank)
{
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < parameter->n_boxes && status == FERRY_OK; i++) {
        const fy_said_box *said = &w->memory->side->boxes[parameter->first_box + i];
        uint32_t number = w->memory->tensor_of[said->tensor];
        if ((w->plan->used[w->which][number / 8] >> (number % 8) & 1) == 0) {
            continue;
        }
        const fy_tensor *tensor = fy_problem_whole(&w->plan->problem, number);
        uint32_t p = (uint32_t)(parameter - w->memory->side->parameters);
        const fy_conversion *conversion =
            w->which == 0 ? NULL
                          : fy_problem_conversion(&w->plan->problem, number,
                                                  fy_memory_find_variant(w->memory, number, p));
        ferry_held_box box = {.parameter = parameter->name,
                              .tensor = tensor->name,
                              .dtype = conversion == NULL ? tensor->dtype : conversion->to,
                              .source_dtype = conversion == NULL ? tensor->dtype : conversion->from,
                              .conversion = conversion == NULL ? NULL : &conversion->is,
                              .rank = rank,
                              .n_dims = said->n_dims,
                              .offset = said->offset};
        bool is_empty = false;
        name_values(w->plan, tensor, &box);
        name_scales(w, p, &box);
        for (uint32_t d = 0; d < said->n_dims; d++) {
            box.begin[d] = said->numbers[d];
            box.shape[d] = said->numbers[said->n_dims + d];
            box.strides[d] = said->numbers[2 * said->n_dims + d];
            is_empty = is_empty || box.shape[d] == 0;
        }
        status = is_empty ? FERRY_OK : visit_turns(w, &box, said, tensor, 0);
    }
    return status;
}

ferry_status ferry_plan_visit_held_boxes(const ferry_plan *plan, ferry_side_role side,
                                         uint32_t rank, ferry_held_box_visitor visitor,
                                         void *context, ferry_error *error)
{
    FY_TRY(fy_check_use(plan != NULL && visitor != NULL && rank < plan->problem.n_ranks,
                        "ferry_plan_visit_held_boxes needs a plan, a rank of it and a visitor",
                        error));
    uint32_t which = side == FERRY_SIDE_SOURCE ? 0 : 1;
    const fy_memory *memory = plan->problem.memory[which];
    if (memory == NULL) {
        return FERRY_OK;
    }
    uint32_t *numbers = NULL;
    size_t capacity = 0, n = 0;
    held_walk w = {
        .plan = plan, .memory = memory, .which = which, .visitor = visitor, .context = context};
    ferry_status status = FERRY_OK;
    if (!fy_plan_has_lost(plan, rank)) {
        status = fy_memory_parameters(memory, rank, &numbers, &capacity, &n, error);
    }
    fy_before_callback(error);
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        status = visit_held(&w, &memory->side->parameters[numbers[i]], rank);
    }
    fy_free(numbers);
    return fy_after_callback(status, "visitor", error);
}
