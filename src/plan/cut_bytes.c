/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of less than a byte to or from boxes: every move must take whole bytes, in the same
 * order, on both ends. Nearly always even numbers along the last dimension settle that for a
 * tensor; else its moves are looked at one by one.
 */
#include "plan/receiver.h"

#include <string.h>

/* Whether every box of a tensor is even along its last dimension, which is innermost in memory. */
static bool is_even(const fy_memory *memory, uint32_t tensor, uint64_t per_byte)
{
    const fy_memory_tensor *held = &memory->tensors[tensor];
    uint32_t n_lists = held->spots == FY_NO_SPOTS ? 0 : memory->spots[held->spots].n_lists;
    for (uint32_t i = 0; i < n_lists; i++) {
        const fy_stock *stock = &memory->stocks[held->first_stock + i];
        for (uint32_t k = 0; k < stock->n_boxes; k++) {
            const fy_memory_box *box = &memory->boxes[stock->first_box + k];
            uint32_t last = box->n_dims - 1;
            if (box->n_dims == 0 || box->numbers[last] % per_byte != 0 ||
                fy_memory_shape(box)[last] % per_byte != 0 || fy_memory_strides(box)[last] != 1) {
                return false;
            }
        }
    }
    return true;
}

/* Whether flat parts of every shard begin and end on bytes; rows of whole bytes lie between. */
static bool has_even_ranges(const ferry_plan *plan, uint32_t placement, uint64_t per_byte)
{
    const fy_layout *layout = &plan->problem.placements[placement].layout;
    uint32_t n_cells = fy_problem_holders(&plan->problem, placement)->n_cells;
    for (uint32_t cell = 0; layout->n_flat != 0 && cell < n_cells; cell++) {
        uint32_t parts[FERRY_MAX_DIMS + 1];
        uint64_t shape[FERRY_MAX_DIMS], begin, end;
        fy_layout_parts(&plan->problem, layout, cell, parts);
        uint64_t n = fy_layout_shard(&plan->problem, layout, parts, shape);
        fy_layout_flat_range(layout, parts[layout->n_dims], n, &begin, &end);
        if (begin % per_byte != 0 || end % per_byte != 0) {
            return false;
        }
    }
    return true;
}

/* The same of what a mesh cuts. */
static bool has_even_pieces(const ferry_plan *plan, uint32_t placement, uint64_t per_byte)
{
    const fy_layout *layout = &plan->problem.placements[placement].layout;
    if (layout->n_dims == 0 || !has_even_ranges(plan, placement, per_byte)) {
        return false;
    }
    const fy_split *split = fy_problem_split(&plan->problem, layout, layout->n_dims - 1);
    for (size_t i = 0; i < split->n_pieces; i++) {
        if (split->pieces[i].length % per_byte != 0) {
            return false;
        }
    }
    return true;
}

static bool is_settled(const ferry_plan *plan, const fy_leg *leg)
{
    const fy_route *route = &plan->routes.routes[leg->route];
    uint64_t per_byte = 8 / route->element_bits;
    for (uint32_t which = 0; which < 2; which++) {
        const fy_memory *memory = plan->problem.memory[which];
        uint32_t number =
            fy_problem_whole_number(&plan->problem, which == 0 ? leg->source : leg->tensor);
        bool even = memory != NULL
                        ? is_even(memory, number, per_byte)
                        : has_even_pieces(plan, which == 0 ? route->src : route->dst, per_byte);
        if (!even) {
            return false;
        }
    }
    uint32_t last = route->n_dims - 1;
    return route->n_dims > 0 && route->src_begin[last] % per_byte == 0 &&
           route->dst_begin[last] % per_byte == 0 && route->length[last] % per_byte == 0;
}

void fy_plan_note_bytes(ferry_plan *plan)
{
    for (size_t i = 0; fy_plan_has_boxes(plan) && i < plan->routes.n_legs; i++) {
        const fy_leg *leg = &plan->routes.legs[i];
        if (plan->routes.routes[leg->route].element_bits % 8 != 0 && !is_settled(plan, leg)) {
            plan->has_odd_bytes = true;
        }
    }
}

/* A dimension of a move, with its strides on both ends. */
typedef struct two_strides {
    uint64_t length;
    uint64_t stride[2];
} two_strides;

bool fy_patch_has_whole_bytes(const fy_patch *patch, uint32_t n_dims, uint64_t per_byte)
{
    two_strides loops[FERRY_MAX_DIMS];
    uint32_t n = 0;
    for (uint32_t d = 0; d < n_dims; d++) {
        two_strides loop = {patch->box.length[d], {patch->stride[0][d], patch->stride[1][d]}};
        uint32_t at = n;
        if (loop.length == 1) {
            continue;
        }
        for (; at > 0 && loops[at - 1].stride[1] < loop.stride[1]; at--) {
            loops[at] = loops[at - 1];
        }
        loops[at] = loop;
        n++;
    }
    while (n > 1) { /* what goes on where the inner one ends, on both ends, is one run */
        const two_strides *inner = &loops[n - 1];
        two_strides *outer = &loops[n - 2];
        if (outer->stride[0] != inner->stride[0] * inner->length ||
            outer->stride[1] != inner->stride[1] * inner->length) {
            break;
        }
        outer->length *= inner->length;
        outer->stride[0] = inner->stride[0];
        outer->stride[1] = inner->stride[1];
        n--;
    }
    bool whole = n > 0 && loops[n - 1].length % per_byte == 0 && loops[n - 1].stride[0] == 1 &&
                 loops[n - 1].stride[1] == 1 && patch->offset[0] % per_byte == 0 &&
                 patch->offset[1] % per_byte == 0;
    for (uint32_t k = 0; whole && k + 1 < n; k++) {
        whole = loops[k].stride[0] % per_byte == 0 && loops[k].stride[1] % per_byte == 0;
    }
    return whole;
}

/* Makes all that a rank receives; the receiver looks at bytes where they may be odd. */
static ferry_status check_rank(fy_receiver *receiver, const ferry_plan *plan, uint32_t rank,
                               ferry_error *error)
{
    FY_TRY(fy_receiver_turn(receiver, plan, rank, error));
    FY_TRY(fy_receiver_list_legs(receiver, error));
    for (size_t i = 0; i < receiver->n_legs;) {
        FY_TRY(fy_receiver_make_moves(receiver, i, 0, &i, error));
    }
    return FERRY_OK;
}

ferry_status fy_plan_check_bytes(ferry_plan *plan, ferry_error *error)
{
    fy_receiver receiver = {.checks_bytes = true};
    ferry_status status = FERRY_OK;
    for (uint32_t rank = 0; plan->has_odd_bytes && rank < plan->problem.n_ranks; rank++) {
        if (plan->first_task[rank] < plan->first_task[rank + 1]) {
            FY_THEN(status, check_rank(&receiver, plan, rank, error));
        }
    }
    fy_receiver_cleanup(&receiver);
    return status;
}
