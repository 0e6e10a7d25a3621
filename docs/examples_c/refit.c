/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Moves a model from one layout to another: ferry launch -n RANKS -- refit SPEC RUNS */
#include <ferry/ferry.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The shards of one side on this rank, in one piece of memory. */
typedef struct side {
    ferry_buffer memory;
    ferry_tensors *tensors;
    uint64_t used;
    ferry_error *error;
} side;

enum { ALIGNMENT = 64 };

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static ferry_status count_bytes(void *context, const ferry_shard *shard)
{
    side *all = context;
    all->used += aligned(shard->bytes);
    return FERRY_OK;
}

static ferry_status add_tensor(void *context, const ferry_shard *shard)
{
    side *all = context;
    ferry_buffer tensor = all->memory; /* a part keeps the registration of the whole */
    tensor.base = (char *)all->memory.base + all->used;
    tensor.bytes = shard->bytes;
    all->used += aligned(shard->bytes);
    return ferry_tensors_add(all->tensors, shard->tensor, &tensor, all->error);
}

static ferry_status make_side(ferry_transport *transport, const ferry_plan *plan,
                              ferry_side_role which, uint32_t rank, side *all, ferry_error *error)
{
    all->error = error;
    ferry_status status = ferry_tensors_create(&all->tensors, error);
    if (status == FERRY_OK) {
        status = ferry_plan_visit_shards(plan, which, rank, count_bytes, all, error);
    }
    if (status == FERRY_OK && all->used > 0) {
        status =
            ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, all->used, &all->memory, error);
    }
    all->used = 0;
    return status == FERRY_OK ? ferry_plan_visit_shards(plan, which, rank, add_tensor, all, error)
                              : status;
}

static ferry_status move_model(ferry_service *service, uint32_t rank, int n_runs,
                               ferry_error *error)
{
    ferry_service_statistics statistics = FERRY_SERVICE_STATISTICS_INIT;
    ferry_status status = ferry_service_schedule(service, error);
    for (int i = 0; status == FERRY_OK && i < n_runs; i++) {
        status = ferry_service_run(service, NULL, error); /* here the sources would have changed */
    }
    if (status == FERRY_OK) {
        status = ferry_service_get_statistics(service, &statistics, error);
    }
    if (status == FERRY_OK) {
        printf("rank %" PRIu32 ": version %" PRIu64 ", %" PRIu64 " bytes received\n", rank,
               ferry_service_version(service), statistics.bytes_received);
    }
    return status;
}

static ferry_status refit(ferry_world *world, const ferry_plan *plan, int n_runs,
                          ferry_error *error)
{
    ferry_service *service = NULL;
    side sources = {.used = 0}, destinations = {.used = 0};
    uint32_t rank = ferry_world_rank(world);
    ferry_status status = ferry_service_create(world, NULL, &service, error);
    if (status == FERRY_OK) {
        status = ferry_service_init(service, FERRY_LOG_WARN, error);
    }
    ferry_transport *transport = ferry_service_transport(service);
    if (status == FERRY_OK) {
        status = make_side(transport, plan, FERRY_SIDE_SOURCE, rank, &sources, error);
    }
    if (status == FERRY_OK) {
        status = make_side(transport, plan, FERRY_SIDE_DESTINATION, rank, &destinations, error);
    }
    if (status == FERRY_OK) {
        status = ferry_service_bind(service, plan, sources.tensors, destinations.tensors, error);
    }
    if (status == FERRY_OK) {
        status = move_model(service, rank, n_runs, error);
    }
    ferry_tensors_destroy(sources.tensors);
    ferry_tensors_destroy(destinations.tensors);
    ferry_memory_free(&sources.memory);
    ferry_memory_free(&destinations.memory);
    ferry_service_destroy(service);
    return status;
}

int main(int argc, char **argv)
{
    ferry_error error;
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    ferry_world *world = NULL;
    if (argc != 3) {
        fprintf(stderr, "usage: ferry launch -n RANKS -- refit SPEC RUNS\n");
        return 2;
    }
    ferry_status status = ferry_spec_load(argv[1], &spec, &error);
    if (status == FERRY_OK) {
        status = ferry_plan_create(spec, NULL, &plan, &error);
    }
    if (status == FERRY_OK) {
        status = ferry_world_create(NULL, &world, &error);
    }
    if (status == FERRY_OK) {
        status = refit(world, plan, atoi(argv[2]), &error);
    }
    if (status != FERRY_OK) {
        fprintf(stderr, "refit: %s\n", error.message);
    }
    ferry_world_destroy(world);
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
    return status == FERRY_OK ? 0 : 1;
}
