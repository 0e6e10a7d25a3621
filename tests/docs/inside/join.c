/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ranks: 3 */
#include "scene.h"

static unsigned char weights[1000], copies[1000];

/* Rank 0 has them, and so many ranks behind it want a copy. */
static ferry_plan *plan_for(int n_replicas)
{
    char text[512];
    ferry_error error;
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    snprintf(text, sizeof text,
             "{\"format\": \"ferry.spec/1\","
             " \"tensors\": [{\"name\": \"w\", \"shape\": [1000], \"dtype\": \"u8\"}],"
             " \"source\": {\"mesh\": [], \"rules\": [{\"match\": \"*\"}]},"
             " \"destination\": {\"mesh\": [[\"dp\", %d]], \"first_rank\": 1,"
             "  \"rules\": [{\"match\": \"*\"}]}}",
             n_replicas);
    check(ferry_spec_parse(text, strlen(text), "join", &spec, &error), &error);
    check(ferry_plan_create(spec, NULL, &plan, &error), &error);
    ferry_spec_destroy(spec);
    return plan;
}

int main(void)
{
    ferry_error error = {""};
    ferry_world *world = NULL, *larger = NULL;
    ferry_service *service = NULL, *again = NULL;
    ferry_ledger *ledger = NULL;
    ferry_tensors *sources = make_tensors(weights, sizeof weights);
    ferry_tensors *destinations = make_tensors(copies, sizeof copies);
    ferry_grow_options growth = FERRY_GROW_OPTIONS_INIT;
    uint32_t rank = (uint32_t)atoi(getenv("RANK"));
    bool is_member = rank < 2;
    growth.path = "meet-again";
    memset(weights, 7, sizeof weights);
    if (is_member) {
        ferry_plan *before = plan_for(1);
        check(ferry_world_create_from_file("start", rank, 2, NULL, &world, &error), &error);
        check(ferry_service_create(world, NULL, &service, &error), &error);
        check(ferry_service_init(service, FERRY_LOG_ERROR, &error), &error);
        check(ferry_service_bind(service, before, sources, destinations, &error), &error);
        check(ferry_service_schedule(service, &error), &error);
        check(ferry_service_run(service, NULL, &error), &error);
        check(ferry_world_grow(world, &growth, &larger, &error), &error);
        ferry_plan_destroy(before);
    } else {
        check(ferry_world_join("meet-again", NULL, &larger, &error), &error);
    }
    ferry_plan *plan = plan_for(2);
    error.message[0] = 0;
    BLOCK
    demand(error.message[0] == 0, error.message);
    ferry_service_statistics found = FERRY_SERVICE_STATISTICS_INIT;
    check(ferry_service_get_statistics(again, &found, &error), &error);
    demand(found.bytes_received == (is_member ? 0 : sizeof copies), "only the newcomer receives");
    demand(rank == 0 || memcmp(copies, weights, sizeof copies) == 0, "and has the version then");
    ferry_service_destroy(again);
    ferry_service_destroy(service);
    ferry_ledger_destroy(ledger);
    ferry_plan_destroy(plan);
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(destinations);
    ferry_world_destroy(world);
    ferry_world_destroy(larger);
    return 0;
}
