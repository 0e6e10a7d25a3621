/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a plan's world that have no part of anything. */
#include "plan/core.h"

#include "model/memory.h"

#include <stdbool.h>

/* Who holds a tensor on a side on a mesh, or a region of one on a side in boxes; tables of holders
 * are shared by many, so each is walked once. */
static void mark_holders(const ferry_plan *plan, uint32_t placement, bool *seen, bool *busy)
{
    if (placement == FY_NONE || seen[plan->problem.placements[placement].holders]) {
        return;
    }
    const fy_holders *holders = fy_problem_holders(&plan->problem, placement);
    seen[plan->problem.placements[placement].holders] = true;
    for (uint32_t s = 0; s < holders->n_slots; s++) {
        busy[holders->rank[s]] = true;
    }
}

/* In boxes a rank may have parameters that no tensor gives anything: fills, or what it keeps. */
static ferry_status mark_parameters(const ferry_plan *plan, const fy_memory *memory, bool *busy,
                                    ferry_error *error)
{
    uint32_t *numbers = NULL;
    size_t capacity = 0;
    ferry_status status = FERRY_OK;
    for (uint32_t r = 0; memory != NULL && r < plan->problem.n_ranks && status == FERRY_OK; r++) {
        size_t n = 0;
        status = fy_memory_parameters(memory, r, &numbers, &capacity, &n, error);
        busy[r] = busy[r] || n > 0;
    }
    fy_free(numbers);
    return status;
}

static ferry_status mark_busy(const ferry_plan *plan, bool *busy, ferry_error *error)
{
    const fy_problem *problem = &plan->problem;
    bool *seen = fy_alloc_zeroed(problem->n_holders, sizeof *seen);
    FY_TRY(fy_check_memory(seen != NULL, "the ranks of a plan", error));
    for (uint32_t t = 0; t < problem->n_tensors; t++) {
        mark_holders(plan, problem->tensors[t].src, seen, busy);
        mark_holders(plan, problem->tensors[t].dst, seen, busy);
    }
    fy_free(seen);
    for (size_t i = 0; i < plan->n_lost; i++) {
        busy[plan->lost[i]] = true;
    }
    FY_TRY(mark_parameters(plan, problem->memory[0], busy, error));
    return mark_parameters(plan, problem->memory[1], busy, error);
}

ferry_status ferry_plan_visit_idle(const ferry_plan *plan, ferry_idle_visitor visitor,
                                   void *context, ferry_error *error)
{
    FY_TRY(fy_check_use(plan != NULL && visitor != NULL,
                        "ferry_plan_visit_idle needs a plan and a visitor", error));
    uint32_t n = plan->problem.n_ranks;
    bool *busy = fy_alloc_zeroed(n, sizeof *busy);
    FY_TRY(fy_check_memory(busy != NULL, "the ranks of a plan", error));
    ferry_status status = mark_busy(plan, busy, error);
    for (uint32_t begin = 0, end; begin < n && status == FERRY_OK; begin = end + 1) {
        for (end = begin; end < n && !busy[end]; end++) {}
        status = end == begin ? FERRY_OK : visitor(context, begin, end - begin);
    }
    fy_free(busy);
    return status;
}
