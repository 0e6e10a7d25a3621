/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a side in boxes have: parameters, and what they write into them themselves. */
#include "plan/shards.h"

#include "plan/core.h"

#include "base/sort.h"
#include "model/memory.h"

#include <string.h>

/* The tensors of the spec that a plan reads, or writes. */
static bool mark_tensors(const ferry_plan *plan, uint32_t which, unsigned char *marks)
{
    for (size_t i = 0; i < plan->routes.n_legs; i++) {
        const fy_leg *leg = &plan->routes.legs[i];
        uint32_t number =
            fy_problem_whole_number(&plan->problem, which == 0 ? leg->source : leg->tensor);
        marks[number / 8] = (unsigned char)(marks[number / 8] | 1u << (number % 8));
    }
    return true;
}

static bool is_lost(const ferry_plan *plan, uint32_t rank)
{
    FY_BISECT(size_t, low, 0, plan->n_lost, middle, plan->lost[middle] < rank);
    return low < plan->n_lost && plan->lost[low] == rank;
}

/* Whether a plan has to do with a parameter: some tensor of it, a fill, or all of a destination. */
static bool is_used(const ferry_plan *plan, uint32_t which, const fy_parameter *parameter,
                    const uint32_t *tensor_of, const unsigned char *marks)
{
    const ferry_side *side = plan->problem.memory[which]->side;
    if (which == 1 && (plan->subset == NULL || parameter->n_fills > 0)) {
        return true;
    }
    for (uint32_t i = 0; i < parameter->n_boxes; i++) {
        uint32_t tensor = tensor_of[side->boxes[parameter->first_box + i].tensor];
        if ((marks[tensor / 8] >> (tensor % 8) & 1) != 0) {
            return true;
        }
    }
    return false;
}

static ferry_status visit_parameter(const fy_parameter *parameter, ferry_shard_visitor visitor,
                                    void *context)
{
    ferry_shard shard = {.tensor = parameter->name,
                         .dtype = parameter->dtype,
                         .n_dims = 1,
                         .flat_end = parameter->elements,
                         .is_parameter = true};
    uint64_t bits = parameter->elements * parameter->dtype.element_bits; /* below 2^63 */
    shard.global[0] = parameter->elements;
    shard.local[0] = parameter->elements;
    shard.bytes = bits / 8 + (bits % 8 != 0);
    return visitor(context, &shard);
}

ferry_status fy_plan_visit_parameters(const ferry_plan *plan, ferry_side_role role, uint32_t rank,
                                      ferry_shard_visitor visitor, void *context,
                                      ferry_error *error)
{
    uint32_t which = role == FERRY_SIDE_SOURCE ? 0 : 1;
    const fy_memory *memory = plan->problem.memory[which];
    uint32_t *numbers = NULL;
    size_t capacity = 0, n = 0;
    unsigned char *marks = fy_alloc_zeroed(plan->problem.n_tensors / 8 + 1u, 1);
    ferry_status status = fy_check_memory(marks != NULL && mark_tensors(plan, which, marks),
                                          "the parameters of a rank", error);
    if (status == FERRY_OK && !is_lost(plan, rank)) {
        status = fy_memory_parameters(memory, rank, &numbers, &capacity, &n, error);
    }
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        const fy_parameter *parameter = &memory->side->parameters[numbers[i]];
        if (is_used(plan, which, parameter, memory->tensor_of, marks)) {
            status = visit_parameter(parameter, visitor, context);
        }
    }
    fy_free(numbers);
    fy_free(marks);
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
    if (!is_lost(plan, rank)) {
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
