/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ranks: 4 */
#include "scene.h"

int main(void)
{
    ferry_error        error = {""};
    ferry_spec        *spec  = make_spec();
    ferry_world       *world = NULL, *survivors = NULL;
    ferry_service     *again  = NULL;
    ferry_ledger      *ledger = NULL;
    ferry_plan        *plan   = NULL;
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    const uint32_t     lost[]  = {3};
    const size_t       n_lost  = 1;
    uint64_t           version;
    ferry_tensors     *sources      = make_tensors(source_memory, SOURCE_BYTES);
    ferry_tensors     *destinations = make_tensors(destination_memory, DESTINATION_BYTES);
    check(ferry_world_create(NULL, &world, &error), &error);
    uint32_t       rank    = ferry_world_rank(world);
    ferry_service *service = make_service(world, spec, sources, destinations);
    fill_source(1);
    if (rank == 3) {
        end_when_ready(3);
    }
    say_ready(rank);
    demand(ferry_service_run(service, &error) == FERRY_ERR_PEER_LOST, "the others hear of it");
    error.message[0] = 0;
BLOCK
    demand(error.message[0] == 0, error.message);
    demand(version == 0, "no version was whole before");
    demand(destination_is(1), "the first one is");
    ferry_service_destroy(again);
    ferry_service_destroy(service);
    ferry_ledger_destroy(ledger);
    ferry_plan_destroy(plan);
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(destinations);
    ferry_spec_destroy(spec);
    ferry_world_destroy(survivors);
    ferry_world_destroy(world);
    return 0;
}
