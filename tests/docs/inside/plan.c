/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "scene.h"

int main(void)
{
    BLOCK
    check(status, &error);
    ferry_plan_totals totals = FERRY_PLAN_TOTALS_INIT;
    check(ferry_plan_get_totals(plan, &totals, &error), &error);
    demand(totals.n_moves > 0, "the plan has moves");
    ferry_plan_destroy(plan);
    return 0;
}
