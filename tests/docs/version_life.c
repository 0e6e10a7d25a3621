/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a destination is while versions come and one does not: scripts/pictures.py draws it. One
 * rank makes version 1, cancels the run of version 2, and makes version 3, in place and with swap.
 * A line is: commit, moment, run, state, version.
 */
#include <ferry/ferry.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char SPEC[] =
    "{\"format\": \"ferry.spec/1\","
    " \"tensors\": [{\"name\": \"w\", \"shape\": [4096], \"dtype\": \"f32\"}],"
    " \"source\": {\"mesh\": [[\"tp\", 1]], \"rules\": [{\"match\": \"*\"}]},"
    " \"destination\": {\"mesh\": [[\"tp\", 1]],"
    " \"rules\": [{\"match\": \"*\"}]}}";

enum { N_BYTES = 4096 * 4, N_RUNS = 3, CANCELLED = 2 };

static unsigned char source[N_BYTES], front[N_BYTES], back[N_BYTES];

static void check(ferry_status status, const ferry_error *error, const char *what)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "version_life: %s: %s\n", what, error->message);
        exit(1);
    }
}

static bool refuse(void *context, const ferry_progress *progress)
{
    (void)context;
    (void)progress;
    return false;
}

static const char *state_name(uint32_t state)
{
    return state == FERRY_TENSOR_VALID  ? "VALID"
           : state == FERRY_TENSOR_TORN ? "TORN"
                                        : "UNTOUCHED";
}

static void tell(const ferry_service *service, const char *commit, const char *moment, int run)
{
    ferry_destination found = FERRY_DESTINATION_INIT;
    ferry_error error;
    check(ferry_service_destination_at(service, 0, &found, &error), &error, "destination_at");
    const unsigned char *bytes = found.buffer.base;
    if (found.state == FERRY_TENSOR_VALID) {
        for (size_t i = 0; i < N_BYTES; i++) {
            if (bytes[i] != (unsigned char)found.version) {
                fprintf(stderr, "version_life: byte %zu is %d in valid version %" PRIu64 "\n", i,
                        bytes[i], found.version);
                exit(1);
            }
        }
    }
    printf("%s %s %d %s %" PRIu64 "\n", commit, moment, run, state_name(found.state),
           found.version);
}

static void run_versions(ferry_service *service, const char *commit)
{
    ferry_error error;
    tell(service, commit, "before", 0);
    for (int run = 1; run <= N_RUNS; run++) {
        ferry_request *request = NULL;
        memset(source, run, sizeof source);
        ferry_service_set_progress(service, run == CANCELLED ? refuse : NULL, NULL);
        check(ferry_service_start(service, NULL, &request, &error), &error, "start");
        tell(service, commit, "during", run);
        ferry_status status = ferry_request_wait(request, &error);
        if ((status == FERRY_OK) == (run == CANCELLED)) {
            fprintf(stderr, "version_life: run %d ended with %d\n", run, (int)status);
            exit(1);
        }
        ferry_request_destroy(request);
        tell(service, commit, "behind", run);
    }
}

static void live(ferry_world *world, ferry_commit commit, const char *name)
{
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    ferry_service *service = NULL;
    ferry_tensors *sources, *destinations;
    ferry_spec *spec;
    ferry_plan *plan;
    ferry_error error;
    ferry_buffer from = ferry_buffer_of(source, N_BYTES);
    ferry_buffer to = ferry_buffer_of(front, N_BYTES), other = ferry_buffer_of(back, N_BYTES);
    options.commit = commit;
    check(ferry_spec_parse(SPEC, strlen(SPEC), "spec", &spec, &error), &error, "spec");
    check(ferry_plan_create(spec, NULL, &plan, &error), &error, "plan");
    check(ferry_service_create(world, &options, &service, &error), &error, "create");
    check(ferry_service_init(service, FERRY_LOG_ERROR, &error), &error, "init");
    check(ferry_tensors_create(&sources, &error), &error, "tensors");
    check(ferry_tensors_create(&destinations, &error), &error, "tensors");
    check(ferry_tensors_add(sources, "w", &from, &error), &error, "add");
    check(commit == FERRY_COMMIT_SWAP
              ? ferry_tensors_add_pair(destinations, "w", &to, &other, &error)
              : ferry_tensors_add(destinations, "w", &to, &error),
          &error, "add");
    check(ferry_service_bind(service, plan, sources, destinations, &error), &error, "bind");
    check(ferry_service_schedule(service, &error), &error, "schedule");
    run_versions(service, name);
    ferry_service_destroy(service);
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(destinations);
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
}

int main(void)
{
    ferry_world *world = NULL;
    ferry_error error;
    check(ferry_world_create_threads(1, NULL, &world, &error), &error, "world");
    live(world, FERRY_COMMIT_IN_PLACE, "in-place");
    live(world, FERRY_COMMIT_SWAP, "swap");
    ferry_world_destroy(world);
    return 0;
}
