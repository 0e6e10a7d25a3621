/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What stands around the blocks of C in the pages: a world, a small model on four ranks, its
 * memory. */
#ifndef FERRY_TESTS_DOCS_SCENE_H
#define FERRY_TESTS_DOCS_SCENE_H

#define _DEFAULT_SOURCE
#include <ferry/ferry.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(ferry_status status, const ferry_error *error)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "%s: %s\n", ferry_status_name(status), error->message);
        exit(1);
    }
}

static void demand(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "not so: %s\n", what);
        exit(1);
    }
}

/* What a rank does that is about to make the call in which another one is lost... */
static void say_ready(uint32_t rank)
{
    char name[32];
    snprintf(name, sizeof name, "ready.%u", (unsigned)rank);
    FILE *file = fopen(name, "w");
    demand(file != NULL && fclose(file) == 0, "a file can be made");
}

/* ... and what that one does: it ends without a word when ranks 0 .. n - 1 have got so far. */
static void end_when_ready(uint32_t n)
{
    for (uint32_t rank = 0; rank < n; rank++) {
        char name[32];
        snprintf(name, sizeof name, "ready.%u", (unsigned)rank);
        while (access(name, F_OK) != 0) {
            usleep(1000);
        }
    }
    _exit(0); /* for `ferry launch` this is no failure */
}

enum { SOURCE_BYTES = 4 * 64, DESTINATION_BYTES = 8 * 16 };

static unsigned char source_memory[SOURCE_BYTES], destination_memory[DESTINATION_BYTES];

/* Row halves, twice, become four quarters of columns: any one rank may be lost. */
static ferry_spec *make_spec(void)
{
    static const char text[] =
        "{\"format\": \"ferry.spec/1\","
        " \"tensors\": [{\"name\": \"w\", \"shape\": [8, 64], \"dtype\": \"u8\"}],"
        " \"source\": {\"mesh\": [[\"dp\", 2], [\"tp\", 2]],"
        "  \"rules\": [{\"match\": \"*\", \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}]},"
        " \"destination\": {\"mesh\": [[\"tp\", 4]],"
        "  \"rules\": [{\"match\": \"*\", \"shard\": [{\"dim\": 1, \"axis\": \"tp\"}]}]}}";
    ferry_error error;
    ferry_spec *spec = NULL;
    check(ferry_spec_parse(text, strlen(text), "scene", &spec, &error), &error);
    return spec;
}

static ferry_tensors *make_tensors(void *memory, size_t bytes)
{
    ferry_error error;
    ferry_buffer buffer = ferry_buffer_of(memory, bytes);
    ferry_tensors *tensors = NULL;
    check(ferry_tensors_create(&tensors, &error), &error);
    check(ferry_tensors_add(tensors, "w", &buffer, &error), &error);
    return tensors;
}

static void fill_source(uint64_t version)
{
    memset(source_memory, (int)version, sizeof source_memory);
}

static bool destination_is(uint64_t version)
{
    for (size_t i = 0; i < sizeof destination_memory; i++) {
        if (destination_memory[i] != version) {
            return false;
        }
    }
    return true;
}

/* A service with a plan that is bound and scheduled, which has made no version yet. */
static ferry_service *make_service(ferry_world *world, const ferry_spec *spec,
                                   ferry_tensors *sources, ferry_tensors *destinations)
{
    ferry_error error;
    ferry_plan *plan = NULL;
    ferry_service *service = NULL;
    check(ferry_plan_create(spec, NULL, &plan, &error), &error);
    check(ferry_service_create(world, NULL, &service, &error), &error);
    check(ferry_service_init(service, FERRY_LOG_ERROR, &error), &error);
    check(ferry_service_bind(service, plan, sources, destinations, &error), &error);
    check(ferry_service_schedule(service, &error), &error);
    ferry_plan_destroy(plan);
    return service;
}

/* Four ranks that are about to run such a service, of which the last one ends then. */
typedef struct scene {
    ferry_spec *spec;
    ferry_world *world;
    ferry_service *service;
    ferry_tensors *sources, *destinations;
} scene;

static scene open_scene(void)
{
    ferry_error error;
    scene s = {.spec = make_spec(),
               .sources = make_tensors(source_memory, SOURCE_BYTES),
               .destinations = make_tensors(destination_memory, DESTINATION_BYTES)};
    check(ferry_world_create(NULL, &s.world, &error), &error);
    s.service = make_service(s.world, s.spec, s.sources, s.destinations);
    fill_source(1);
    if (ferry_world_rank(s.world) == 3) {
        end_when_ready(3);
    }
    say_ready(ferry_world_rank(s.world));
    return s;
}

static void close_scene(const scene *s)
{
    ferry_service_destroy(s->service);
    ferry_tensors_destroy(s->sources);
    ferry_tensors_destroy(s->destinations);
    ferry_spec_destroy(s->spec);
    ferry_world_destroy(s->world);
}

#endif
