/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves a model from one layout to another, again and again, and survives the ranks that end
 * meanwhile: ferry launch -n RANKS -- recover SPEC RUNS [VICTIM RUN]
 *
 * Rank VICTIM ends without a word in the middle of run RUN. Each byte of a source is the number of
 * its version, and so must be all bytes of the destinations.
 */
#include <ferry/ferry.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct side {
    ferry_transport *transport; /* of destinations: they lie in memory that peers reach best */
    ferry_tensors *tensors;
    ferry_buffer buffers[64];
    uint32_t n;
    ferry_error *error;
} side;

static ferry_status add_tensor(void *context, const ferry_shard *shard)
{
    side *all = context;
    ferry_status status = FERRY_OK;
    if (all->n + 2 > 64 || shard->bytes == 0) {
        return shard->bytes == 0 ? FERRY_OK : FERRY_ERR_LIMIT;
    }
    ferry_buffer *pair = &all->buffers[all->n];
    for (uint32_t i = 0; status == FERRY_OK && i < 2; i++) {
        status = ferry_memory_alloc(all->transport, FERRY_MEMORY_HOST, 0, shard->bytes, &pair[i],
                                    all->error);
        all->n += status == FERRY_OK;
    }
    return status == FERRY_OK
               ? ferry_tensors_add_pair(all->tensors, shard->tensor, &pair[0], &pair[1], all->error)
               : status;
}

static ferry_status take_side(ferry_transport *transport, const ferry_plan *plan,
                              ferry_side_role which, uint32_t rank, side *all, ferry_error *error)
{
    all->transport = transport;
    all->error = error;
    ferry_status status = ferry_tensors_create(&all->tensors, error);
    return status == FERRY_OK ? ferry_plan_visit_shards(plan, which, rank, add_tensor, all, error)
                              : status;
}

static void fill(const side *sources, uint64_t version)
{
    for (uint32_t i = 0; i < sources->n; i += 2) { /* of a source only the front is read */
        memset(sources->buffers[i].base, (int)version, (size_t)sources->buffers[i].bytes);
    }
}

static bool is_right(const ferry_service *service)
{
    ferry_destination found = FERRY_DESTINATION_INIT;
    ferry_error error;
    for (uint64_t i = 0; i < ferry_service_destination_count(service); i++) {
        if (ferry_service_destination_at(service, i, &found, &error) != FERRY_OK ||
            found.state != FERRY_TENSOR_VALID) {
            return false;
        }
        for (uint64_t b = 0; b < found.buffer.bytes; b++) {
            if (((unsigned char *)found.buffer.base)[b] != (unsigned char)found.version) {
                return false;
            }
        }
    }
    return true;
}

/* Begins a run, and ends in the middle of it. */
static void leave_in_a_run(ferry_service *service)
{
    ferry_request *request = NULL;
    ferry_error error;
    bool done;
    if (ferry_service_start(service, NULL, &request, &error) == FERRY_OK) {
        ferry_request_test(request, &done, &error);
    }
    _exit(0); /* for `ferry launch` this is no failure */
}

typedef struct refit {
    ferry_world *world;
    ferry_service *service;
    ferry_spec *spec;
    side sources, destinations;
    uint32_t rank; /* in the first world */
    int victim, victim_run;
} refit;

static ferry_status make(refit *r, ferry_error *error)
{
    ferry_plan *plan = NULL;
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    options.commit = FERRY_COMMIT_SWAP;
    ferry_status status = ferry_plan_create(r->spec, NULL, &plan, error);
    if (status == FERRY_OK) {
        status = ferry_service_create(r->world, &options, &r->service, error);
    }
    if (status == FERRY_OK) {
        status = ferry_service_init(r->service, FERRY_LOG_ERROR, error);
    }
    ferry_transport *transport = ferry_service_transport(r->service);
    if (status == FERRY_OK && r->rank < ferry_plan_rank_count(plan)) {
        status = take_side(transport, plan, FERRY_SIDE_SOURCE, r->rank, &r->sources, error);
    }
    if (status == FERRY_OK && r->rank < ferry_plan_rank_count(plan)) {
        status =
            take_side(transport, plan, FERRY_SIDE_DESTINATION, r->rank, &r->destinations, error);
    }
    if (status == FERRY_OK) {
        status = ferry_service_bind(r->service, plan, r->sources.tensors, r->destinations.tensors,
                                    error);
    }
    if (status == FERRY_OK) {
        status = ferry_service_schedule(r->service, error);
    }
    ferry_plan_destroy(plan);
    return status;
}

static ferry_status move_versions(refit *r, uint64_t n_versions, ferry_error *error)
{
    ferry_recovery_options options = FERRY_RECOVERY_OPTIONS_INIT;
    ferry_recovery recovery = FERRY_RECOVERY_INIT;
    uint64_t next = 1;
    options.spec = r->spec;
    while (next <= n_versions) {
        fill(&r->sources, next);
        if ((int)r->rank == r->victim && (int)next == r->victim_run) {
            leave_in_a_run(r->service);
        }
        if (ferry_service_run(r->service, NULL, error) == FERRY_OK) {
            if (!is_right(r->service) || ferry_service_version(r->service) != next) {
                snprintf(error->message, sizeof error->message, "version %" PRIu64 " is wrong",
                         next);
                return FERRY_ERR_PROOF;
            }
            next++;
            continue;
        }
        fprintf(stderr, "rank %" PRIu32 ": %s\n", r->rank, error->message);
        ferry_status status =
            ferry_service_recover_onto(&r->service, &r->world, &options, r->sources.tensors,
                                       r->destinations.tensors, &recovery, error);
        if (status != FERRY_OK) {
            return status;
        }
        next = recovery.next;
    }
    printf("rank %" PRIu32 ": version %" PRIu64 " is whole, on %" PRIu32 " ranks\n", r->rank,
           ferry_service_version(r->service), ferry_world_rank_count(r->world));
    return FERRY_OK;
}

static void free_side(side *all)
{
    ferry_tensors_destroy(all->tensors);
    for (uint32_t i = 0; i < all->n; i++) {
        ferry_memory_free(&all->buffers[i]);
    }
}

int main(int argc, char **argv)
{
    ferry_error error = {""};
    refit r = {.victim = -1};
    if (argc != 3 && argc != 5) {
        fprintf(stderr, "usage: recover SPEC RUNS [VICTIM RUN]\n");
        return 2;
    }
    if (argc == 5) {
        r.victim = atoi(argv[3]);
        r.victim_run = atoi(argv[4]);
    }
    ferry_status status = ferry_spec_load(argv[1], &r.spec, &error);
    if (status == FERRY_OK) {
        status = ferry_world_create(NULL, &r.world, &error);
    }
    if (status == FERRY_OK) {
        r.rank = ferry_world_rank(r.world);
        status = make(&r, &error);
    }
    if (status == FERRY_OK) {
        status = move_versions(&r, strtoull(argv[2], NULL, 10), &error);
    }
    if (status != FERRY_OK) {
        fprintf(stderr, "recover: %s\n", error.message);
    }
    free_side(&r.sources);
    free_side(&r.destinations);
    ferry_service_destroy(r.service);
    ferry_world_destroy(r.world);
    ferry_spec_destroy(r.spec);
    return status == FERRY_OK ? 0 : 1;
}
