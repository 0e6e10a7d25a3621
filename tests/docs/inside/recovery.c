/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ranks: 4 */
#include "scene.h"

static void fill(ferry_tensors *sources, uint64_t version)
{
    (void)sources;
    fill_source(version);
}

static ferry_status go_on(ferry_world **world_inout, ferry_service **service_inout,
                          ferry_spec *spec, ferry_tensors *sources, ferry_tensors *destinations)
{
    ferry_world   *world   = *world_inout;
    ferry_service *service = *service_inout;
    ferry_error    error   = {""};
    ferry_status   status;
BLOCK
    *world_inout   = world;
    *service_inout = service;
    demand(recovery.next > 0, "a rank was lost, and the others recovered");
    demand(destination_is(recovery.next), "the version that was made is everywhere");
    return status;
}

int main(void)
{
    ferry_error    error;
    ferry_spec    *spec  = make_spec();
    ferry_world   *world = NULL;
    ferry_tensors *sources      = make_tensors(source_memory, SOURCE_BYTES);
    ferry_tensors *destinations = make_tensors(destination_memory, DESTINATION_BYTES);
    check(ferry_world_create(NULL, &world, &error), &error);
    uint32_t       rank    = ferry_world_rank(world);
    ferry_service *service = make_service(world, spec, sources, destinations);
    fill_source(1);
    if (rank == 3) {
        end_when_ready(3);
    }
    say_ready(rank);
    check(go_on(&world, &service, spec, sources, destinations), &error);
    ferry_service_destroy(service);
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(destinations);
    ferry_spec_destroy(spec);
    ferry_world_destroy(world);
    return 0;
}
