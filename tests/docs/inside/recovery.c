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
    ferry_world *world = *world_inout;
    ferry_service *service = *service_inout;
    ferry_error error = {""};
    ferry_status status;
    BLOCK
    *world_inout = world;
    *service_inout = service;
    demand(recovery.next > 0, "a rank was lost, and the others recovered");
    demand(destination_is(recovery.next), "the version that was made is everywhere");
    return status;
}

int main(void)
{
    ferry_error error;
    scene s = open_scene();
    check(go_on(&s.world, &s.service, s.spec, s.sources, s.destinations), &error);
    close_scene(&s);
    return 0;
}
