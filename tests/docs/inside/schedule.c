/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "scene.h"

int main(void)
{
    ferry_error error;
    ferry_plan *plan = NULL;
    ferry_spec *spec = NULL;
    check(ferry_spec_load("examples/llama-tiny.json", &spec, &error), &error);
    check(ferry_plan_create(spec, NULL, &plan, &error), &error);
    BLOCK
    check(status, &error);
    demand(report.has_seconds, "the cluster of the spec gives seconds");
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
    return 0;
}
