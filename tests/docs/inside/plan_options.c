/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "scene.h"

int main(void)
{
    ferry_error error;
    ferry_plan *plan = NULL;
    ferry_spec *spec = NULL;
    check(ferry_spec_load("examples/llama-tiny.json", &spec, &error), &error);
    BLOCK
    check(ferry_plan_create(spec, &options, &plan, &error), &error);
    ferry_plan_totals some = FERRY_PLAN_TOTALS_INIT, all = FERRY_PLAN_TOTALS_INIT;
    check(ferry_plan_get_totals(plan, &some, &error), &error);
    ferry_plan_destroy(plan);
    check(ferry_plan_create(spec, NULL, &plan, &error), &error);
    check(ferry_plan_get_totals(plan, &all, &error), &error);
    demand(some.n_moves > 0 && some.n_moves < all.n_moves, "a subset has fewer moves");
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
    return 0;
}
