/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_FUZZ_RANKS_H
#define FERRY_TESTS_FUZZ_RANKS_H

/*
 * Two ranks in one process, with a service each that is scheduled: once for all inputs, for what is
 * read of peers needs regions and registrations that are there. The second is on a thread only
 * while something is collective. Never closed: the process ends with them.
 */
#include "fuzz.h"

#include "service/prepare.h"

#include <pthread.h>

enum { N_RANKS = 2, RANK_BYTES = 1 << 17, RANK_TASKS = 3 };

typedef struct fuzz_rank {
    const char *engines;
    const char *path; /* where processes meet; NULL: threads */
    uint32_t rank;
    ferry_world *world;
    ferry_service *service;
    ferry_buffer memory[2];
    pthread_t thread;
} fuzz_rank;

static inline void fuzz_must(ferry_status status, const ferry_error *error)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "%s: %s\n", ferry_status_name(status), error->message);
        abort();
    }
}

/* A box of rows, some bytes, and one long run: to the other rank, and from it. */
static inline void fuzz_register(fuzz_rank *me, ferry_error *error)
{
    uint32_t peer = 1 - me->rank;
    for (int is_send = 0; is_send < 2; is_send++) {
        const ferry_buffer *memory = &me->memory[is_send];
        ferry_box box = FERRY_BOX_INIT;
        box.buffer = *memory;
        box.n_dims = 2;
        box.length[0] = 20;
        box.length[1] = 50;
        box.stride[0] = 100;
        box.stride[1] = 1;
        fuzz_must(is_send ? ferry_service_register_send_box(me->service, 1, &box, peer, error)
                          : ferry_service_register_receive_box(me->service, 1, &box, peer, error),
                  error);
        for (uint64_t task = 2; task <= RANK_TASKS; task++) {
            uint64_t first = task == 2 ? 2048 : 4096, bytes = task == 2 ? 100 : 1 << 16;
            fuzz_must(is_send ? ferry_service_register_send(me->service, task, memory, first, bytes,
                                                            peer, error)
                              : ferry_service_register_receive(me->service, task, memory, first,
                                                               bytes, peer, error),
                      error);
        }
    }
}

static inline void *fuzz_open_rank(void *argument)
{
    fuzz_rank *me = argument;
    ferry_error error = {""};
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    options.engines = me->engines;
    options.n_threads = 1;
    options.slot_bytes = 8 << 10;
    options.memory_cap = 1 << 20;
    if (me->path != NULL) {
        fuzz_must(
            ferry_world_create_from_file(me->path, me->rank, N_RANKS, NULL, &me->world, &error),
            &error);
    }
    fuzz_must(ferry_service_create(me->world, &options, &me->service, &error), &error);
    fuzz_must(ferry_service_init(me->service, FERRY_LOG_OFF, &error), &error);
    for (int i = 0; i < 2; i++) {
        fuzz_must(ferry_memory_alloc(ferry_service_transport(me->service), FERRY_MEMORY_HOST, 0,
                                     RANK_BYTES, &me->memory[i], &error),
                  &error);
    }
    fuzz_register(me, &error);
    fuzz_must(ferry_service_schedule(me->service, &error), &error);
    return NULL;
}

/* With processes, memory of peers is mapped by keys; with threads, nothing is, behind a wrapper. */
static inline void fuzz_open_ranks(fuzz_rank ranks[N_RANKS], bool processes)
{
    ferry_error error = {""};
    ferry_world *worlds[N_RANKS] = {NULL};
    char folder[] = "/tmp/ferry-test-fuzz-XXXXXX";
    char path[64];
    if (processes) {
        promise(mkdtemp(folder) != NULL);
        snprintf(path, sizeof path, "%s/ranks", folder);
    } else {
        fuzz_must(ferry_world_create_threads(N_RANKS, NULL, worlds, &error), &error);
    }
    for (uint32_t r = 0; r < N_RANKS; r++) {
        ranks[r] = (fuzz_rank){.engines = processes ? "shm" : "delay=1us:inproc",
                               .path = processes ? path : NULL,
                               .rank = r,
                               .world = worlds[r]};
        promise(pthread_create(&ranks[r].thread, NULL, fuzz_open_rank, &ranks[r]) == 0);
    }
    for (uint32_t r = 0; r < N_RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    if (processes) {
        unlink(path);
        rmdir(folder);
    }
}

#endif
