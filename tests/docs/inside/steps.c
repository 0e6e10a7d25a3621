/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ranks: 4 */
#include "scene.h"

int main(void)
{
    ferry_error error = {""};
    scene s = open_scene();
    ferry_spec *spec = s.spec;
    ferry_world *world = s.world, *survivors = NULL;
    ferry_service *service = s.service, *again = NULL;
    ferry_tensors *sources = s.sources, *destinations = s.destinations;
    ferry_ledger *ledger = NULL;
    ferry_plan *plan = NULL;
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    const uint32_t lost[] = {3};
    const size_t n_lost = 1;
    uint64_t version;
    demand(ferry_service_run(service, NULL, &error) == FERRY_ERR_PEER_LOST,
           "the others hear of it");
    error.message[0] = 0;
    BLOCK
    demand(error.message[0] == 0, error.message);
    demand(version == 0, "no version was whole before");
    demand(destination_is(1), "the first one is");
    ferry_service_destroy(again);
    ferry_ledger_destroy(ledger);
    ferry_plan_destroy(plan);
    ferry_world_destroy(survivors);
    close_scene(&s);
    return 0;
}
