/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ranks: 4 */
#include "scene.h"

static void train(int step)
{
    fill_source((uint64_t)step);
}

int main(void)
{
    enum { n_steps = 3 };
    ferry_error error = {""};
    ferry_spec *spec = make_spec();
    ferry_plan *plan = NULL;
    ferry_world *world = NULL;
    ferry_service *service;
    ferry_tensors *sources = make_tensors(source_memory, SOURCE_BYTES);
    ferry_tensors *destinations = make_tensors(destination_memory, DESTINATION_BYTES);
    check(ferry_world_create(NULL, &world, &error), &error);
    check(ferry_plan_create(spec, NULL, &plan, &error), &error);
    BLOCK
    demand(error.message[0] == 0, error.message);
    demand(destination_is(n_steps), "the last version is everywhere");
    ferry_service_destroy(service);
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(destinations);
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
    ferry_world_destroy(world);
    return 0;
}
