/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Wrong bits, lost traffic, and ranks that die, stop or give up in the middle of runs. */
#include "service/matrix.h"
#include "service/scene.h"

#include <stdatomic.h>

/* A flipped bit is an error on every rank, or was in nothing that is kept: OK means right bytes. */
void case_flip(rank_context *me)
{
    static const scene_limits limits = {.most_tasks = 12, .most_bytes = 30000};
    scene *s = take(me, sizeof *s);
    uint64_t random = me->seed;
    uint32_t n_caught = 0;
    for (uint32_t i = 0; i < times_of(me, 8, 80); i++) {
        service_setup setup;
        scene_memory memory;
        char wrapper[32];
        snprintf(wrapper, sizeof wrapper, "flip=%u:", (unsigned)dice(&random, 1, 60));
        setup_init(me, &setup, wrapper);
        setup.options.checksum = i % 2 == 0 ? FERRY_CHECKSUM_PATH : FERRY_CHECKSUM_END;
        setup.options.paths = i / 2 % 2 == 0 ? FERRY_PATH_STAGED : FERRY_PATH_REMOTE;
        setup.options.slot_bytes = 1u << dice(&random, 8, 14);
        ferry_service *service = open_service(me, &setup.options);
        scene_draw(s, me->seed * 300 + i, me->n_ranks, &limits);
        scene_take(me, s, ferry_service_transport(service), &memory);
        scene_register(me, s, service, &memory);
        must(me, ferry_service_schedule(service, &me->error));
        for (uint64_t version = 1; version <= 3; version++) {
            scene_fill(me, s, &memory, version, true);
            ferry_status status = ferry_service_run(service, NULL, &me->error);
            all_same(me, "a run with flipped bits", status, status, NULL);
            if (status == FERRY_OK) {
                scene_expect(me, s, service, &memory, version, "bits were flipped unseen");
            } else {
                expect(me, strstr(me->error.message, "rank ") != NULL, "nobody is named: %s",
                       me->error.message);
                expect(me, status != FERRY_ERR_TIMEOUT, "%s", me->error.message);
                scene_expect_kept(me, s, &memory, version, "bits were flipped");
                n_caught++;
            }
            meet(me);
        }
        clear_all(me, service);
        scene_give_back(me, s, &memory);
        ferry_service_destroy(service);
    }
    expect(me, me->n_ranks == 1 || n_caught > 0, "no flip was caught at all");
    free(s);
}

/* A destination that is called valid is so, whatever happened. */
static void expect_truth(rank_context *me, const matrix *m, const ferry_service *service,
                         uint64_t first_version)
{
    for (uint64_t i = 0; i < ferry_service_destination_count(service); i++) {
        ferry_destination found = destination_of(me, service, i);
        uint32_t t = (uint32_t)strtoul(found.name + 1, NULL, 10);
        uint32_t which = found.buffer.base == matrix_target(m, t, 1);
        expect(me, found.missing <= found.bytes, "%s: %llu bytes of %llu are missing", found.name,
               (unsigned long long)found.missing, (unsigned long long)found.bytes);
        if (found.state == FERRY_TENSOR_VALID) {
            uint64_t wrong = matrix_wrong(me, m, t, which, first_version + found.version - 1);
            expect(me, wrong == 0, "%s is called valid in version %llu: %llu bytes are not",
                   found.name, (unsigned long long)found.version, (unsigned long long)wrong);
        }
    }
}

static void service_for_fault(rank_context *me, service_setup *setup, const char *wrapper,
                              uint64_t *random)
{
    setup_init(me, setup, wrapper);
    setup->options.slot_bytes = 1u << dice(random, 9, 13);
    setup->options.checksum = random_below(random, 3);
    setup->options.paths = one_in(random, 2) ? FERRY_PATH_ALL : FERRY_PATH_STAGED;
    setup->options.commit = random_below(random, 2);
    setup->options.no_relays = one_in(random, 2);
}

/* Runs until one fails. false: no failure came. */
static bool run_until_failure(rank_context *me, matrix *m, ferry_service *service, uint32_t most)
{
    for (uint64_t version = ferry_service_version(service) + 1; version <= most; version++) {
        matrix_fill(me, m, version);
        ferry_status status = ferry_service_run(service, NULL, &me->error);
        if (status != FERRY_OK) {
            expect(me, strlen(me->error.message) > 10, "%s has no sentence",
                   ferry_status_name(status));
            return true;
        }
        expect(me, ferry_service_version(service) == version, "version %llu, not %llu",
               (unsigned long long)ferry_service_version(service), (unsigned long long)version);
    }
    return false;
}

/* One rank's traffic ends after some operations: no rank waits much longer than the deadline. */
void case_lose(rank_context *me)
{
    service_setup setup;
    uint64_t random = me->seed + 5;
    char wrapper[64];
    snprintf(wrapper, sizeof wrapper, "lose=%u@%u:", (unsigned)random_below(&random, me->n_ranks),
             (unsigned)dice(&random, 20, 400));
    service_for_fault(me, &setup, wrapper, &random);
    setup.options.paths = FERRY_PATH_STAGED;
    ferry_service *service = NULL;
    must(me, ferry_service_create(me->world, &setup.options, &service, &me->error));
    bool swap = setup.options.commit == FERRY_COMMIT_SWAP;
    matrix *m = matrix_make(me, 4, 1, 8, NULL);
    ferry_status status = ferry_service_init(service, FERRY_LOG_ERROR, &me->error);
    if (status == FERRY_OK) {
        matrix_bind(me, m, service, swap);
        status = ferry_service_schedule(service, &me->error);
        /* Where a rank is kept off the cores for longer than that deadline. */
        expect(me, status == FERRY_OK || status == FERRY_ERR_TIMEOUT, "%s: %.400s",
               ferry_status_name(status), me->error.message);
    }
    if (status == FERRY_OK) {
        expect(me, run_until_failure(me, m, service, 500), "nothing was lost in 500 runs");
        expect_truth(me, m, service, 1);
    }
    ferry_service_destroy(service);
    meet_left(me, me->n_ranks);
    matrix_free(m);
}

/* Works on a run by a number of tests, and then ends the world. */
static ferry_status run_in_part(rank_context *me, ferry_world *world, ferry_service *service,
                                uint32_t n_tests)
{
    ferry_request *request = NULL;
    bool done = false;
    ferry_status status = ferry_service_start(service, NULL, &request, &me->error);
    for (uint32_t i = 0; i < n_tests && status == FERRY_OK && !done; i++) {
        status = ferry_request_test(request, &done, &me->error);
    }
    if (status == FERRY_OK && !done) {
        ferry_world_abort(world, "this rank does not go on");
    }
    if (request != NULL) {
        status = ferry_request_wait(request, &me->error);
    }
    ferry_request_destroy(request);
    return status;
}

void case_abort(rank_context *me)
{
    service_setup setup;
    uint64_t random = me->seed + 6;
    service_for_fault(me, &setup, "", &random);
    ferry_service *service = open_service(me, &setup.options);
    matrix *m = matrix_make(me, 4, 1, 8, NULL);
    matrix_schedule(me, m, service, setup.options.commit == FERRY_COMMIT_SWAP);
    meet_outside(me); /* nobody is in there any more */
    uint32_t n_tests = random_below(&random, 4);
    ferry_status status = FERRY_OK;
    for (uint64_t version = ferry_service_version(service) + 1; status == FERRY_OK; version++) {
        matrix_fill(me, m, version);
        status = me->rank == me->n_ranks - 1 ? run_in_part(me, me->world, service, n_tests)
                                             : ferry_service_run(service, NULL, &me->error);
        n_tests /= 2; /* a run can be over so soon */
    }
    expect_truth(me, m, service, 1);
    must_fail(me, FERRY_ERR_ABORTED, "does not go on",
              ferry_service_run(service, NULL, &me->error));
    atomic_fetch_add(&me->shared->word[0], 1);
    while (me->engine->threads && atomic_load(&me->shared->word[0]) < me->n_ranks) {
        sleep_ms(1); /* the memory of threads is everybody's */
    }
    ferry_service_destroy(service);
    meet_left(me, me->n_ranks);
    matrix_free(m);
}

static void hurt_in_runs(rank_context *me, bool stops)
{
    service_setup setup;
    uint64_t random = me->seed + 7;
    uint32_t victim = random_below(&random, me->n_ranks);
    service_for_fault(me, &setup, "", &random);
    ferry_service *service = open_service(me, &setup.options);
    matrix *m = matrix_make(me, 4, 1, 8, NULL);
    matrix_schedule(me, m, service, setup.options.commit == FERRY_COMMIT_SWAP);
    meet_outside(me);
    if (me->rank == victim) {
        end_later(me, dice(&random, 200, 40000), stops);
    }
    expect(me, run_until_failure(me, m, service, UINT32_MAX), "nobody was missed");
    expect_named(me, victim);
    expect_truth(me, m, service, 1);
    must_fail(me, stops ? FERRY_ERR_TIMEOUT : FERRY_ERR_PEER_LOST, NULL,
              ferry_service_run(service, NULL, &me->error));
    expect_named(me, victim);
    ferry_service_destroy(service);
    meet_left(me, me->n_ranks - 1);
    matrix_free(m);
}

void case_killed(rank_context *me)
{
    hurt_in_runs(me, false);
}

void case_stopped(rank_context *me)
{
    hurt_in_runs(me, true);
}

/* Somewhere in the life of services. */
void case_killed_early(rank_context *me)
{
    uint64_t random = me->seed + 8;
    uint32_t victim = random_below(&random, me->n_ranks);
    ferry_status status = FERRY_OK;
    matrix *m = matrix_make(me, 2, 1, 8, NULL);
    ferry_plan *plan = matrix_plan(me, m, NULL, 0);
    uint32_t us = dice(&random, 200, 60000); /* on all ranks: options follow */
    if (me->rank == victim) {
        end_later(me, us, false);
    }
    while (status == FERRY_OK) {
        service_setup setup;
        ferry_service *service = NULL;
        ferry_tensors *sources = matrix_sources(me, m), *targets = matrix_targets(me, m, 0, true);
        service_for_fault(me, &setup, "", &random);
        must(me, ferry_service_create(me->world, &setup.options, &service, &me->error));
        status = ferry_service_init(service, FERRY_LOG_ERROR, &me->error);
        if (status == FERRY_OK) {
            must(me, ferry_service_bind(service, plan, sources, targets, &me->error));
            status = ferry_service_schedule(service, &me->error);
        }
        if (status == FERRY_OK) {
            status = ferry_service_run(service, NULL, &me->error);
        }
        ferry_tensors_destroy(sources);
        ferry_tensors_destroy(targets);
        ferry_service_destroy(service);
    }
    expect(me, status == FERRY_ERR_PEER_LOST, "%s: %.400s", ferry_status_name(status),
           me->error.message);
    ferry_plan_destroy(plan);
    meet_left(me, me->n_ranks - 1);
    matrix_free(m);
}

/* After a loss */

/* What all ranks of a world have together. */
static uint64_t sum_of(rank_context *me, ferry_world *world, uint64_t mine)
{
    const void *all = NULL;
    uint64_t sum = 0;
    must(me, ferry_world_all_gather(world, &mine, sizeof mine, &all, &me->error));
    for (uint32_t r = 0; r < ferry_world_rank_count(world); r++) {
        uint64_t theirs;
        memcpy(&theirs, (const char *)all + r * sizeof theirs, sizeof theirs);
        sum += theirs;
    }
    return sum;
}

static uint64_t missing_of(rank_context *me, const ferry_service *service)
{
    uint64_t missing = 0;
    for (uint64_t i = 0; i < ferry_service_destination_count(service); i++) {
        missing += destination_of(me, service, i).missing;
    }
    return missing;
}

/* All who are left agree about a version, and have it whole if there is one. */
static uint64_t recover(rank_context *me, matrix *m, ferry_service *service, ferry_world *survivors)
{
    uint64_t version = UINT64_MAX;
    must(me, ferry_service_recover(service, survivors, &version, &me->error));
    uint64_t sum = sum_of(me, survivors, version);
    expect(me, sum == version * ferry_world_rank_count(survivors), "version %llu here, %llu in all",
           (unsigned long long)version, (unsigned long long)sum);
    expect(me, version == 0 || ferry_service_version(service) == version,
           "version %llu, and %llu recovered", (unsigned long long)ferry_service_version(service),
           (unsigned long long)version);
    expect_truth(me, m, service, 1);
    for (uint64_t i = 0; version > 0 && i < ferry_service_destination_count(service); i++) {
        ferry_destination found = destination_of(me, service, i);
        expect(me, found.state == FERRY_TENSOR_VALID && found.version == version,
               "%s: state %u, version %llu after version %llu was recovered", found.name,
               (unsigned)found.state, (unsigned long long)found.version,
               (unsigned long long)version);
    }
    return version;
}

static void bind_after_loss(rank_context *me, matrix *m, ferry_service *service, ferry_world *world)
{
    uint32_t lost[MOST_RANKS];
    size_t n_lost = 0;
    for (uint32_t r = 0, at = 0; r < me->n_ranks; r++) {
        if (at < ferry_world_rank_count(world) && ferry_world_member_of(world, at) == r) {
            at++;
        } else {
            lost[n_lost++] = r;
        }
    }
    ferry_plan *plan = matrix_plan(me, m, lost, n_lost);
    ferry_tensors *sources = matrix_sources(me, m), *targets = matrix_targets(me, m, 0, false);
    must(me, ferry_service_bind(service, plan, sources, targets, &me->error));
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(targets);
    ferry_plan_destroy(plan);
}

/*
 * Brings what is missing, no more than that and a slot for each peer, in the smaller world. The
 * failed service is destroyed: before there is another one, or later.
 */
static void go_on(rank_context *me, matrix *m, ferry_service *failed, ferry_world *world,
                  uint64_t version)
{
    service_setup setup;
    ferry_service *service = NULL;
    ferry_ledger *ledger = NULL;
    uint64_t own = missing_of(me, failed);
    uint64_t missing = sum_of(me, world, own);
    uint32_t n = ferry_world_rank_count(world);
    bool first = me->seed % 2 == 0 || has_wrapper(me, "strict"); /* one at a time */
    char what[128];
    must(me, ferry_service_take_ledger(failed, &ledger, &me->error));
    expect(me, ferry_ledger_bytes(ledger) + own == matrix_bytes_in(m),
           "%llu bytes in place and %llu missing of %llu",
           (unsigned long long)ferry_ledger_bytes(ledger), (unsigned long long)own,
           (unsigned long long)matrix_bytes_in(m));
    snprintf(what, sizeof what, "after a loss with %llu bytes missing of %llu",
             (unsigned long long)own, (unsigned long long)matrix_bytes_in(m));
    if (first) {
        ferry_service_destroy(failed);
    }
    setup_init(me, &setup, "");
    setup.options.slot_bytes = 4096;
    setup.options.no_relays = true;
    must(me, ferry_service_create(world, &setup.options, &service, &me->error));
    must(me, ferry_service_init(service, FERRY_LOG_ERROR, &me->error));
    bind_after_loss(me, m, service, world);
    must(me, ferry_service_resume(service, ledger, &me->error));
    ferry_ledger_destroy(ledger);
    must(me, ferry_service_schedule(service, &me->error));
    must(me, ferry_service_run(service, NULL, &me->error));
    matrix_expect(me, m, 0, version, what);
    ferry_service_statistics statistics = statistics_of(me, service);
    uint64_t moved = sum_of(me, world, bytes_sent(&statistics));
    expect(me, moved <= missing + (uint64_t)n * n * 4096, "%llu bytes moved, %llu were missing",
           (unsigned long long)moved, (unsigned long long)missing);
    for (uint64_t i = 0; i < ferry_service_destination_count(service); i++) {
        expect(me, destination_of(me, service, i).state == FERRY_TENSOR_VALID, "not valid");
    }
    ferry_service_destroy(service);
    if (!first) {
        ferry_service_destroy(failed);
    }
}

/* A rank dies in the middle of a run, or where ranks are threads, ends the world. */
void case_resume(rank_context *me)
{
    service_setup setup;
    uint64_t random = me->seed + 9;
    uint32_t victim = random_below(&random, me->n_ranks);
    setup_init(me, &setup, "");
    setup.options.slot_bytes = 4096;
    setup.options.no_relays = true;
    setup.options.checksum = random_below(&random, 3);
    setup.options.paths = one_in(&random, 2) ? FERRY_PATH_ALL : FERRY_PATH_STAGED;
    uint32_t n_whole = random_below(&random, 2);
    uint32_t us = random_below(&random, 3000);
    ferry_service *service = open_service(me, &setup.options);
    matrix *m = matrix_make(me, 6, 2, 8, NULL);
    matrix_schedule(me, m, service, false);
    for (uint32_t version = 1; version <= n_whole; version++) {
        matrix_fill(me, m, version);
        must(me, ferry_service_run(service, NULL, &me->error));
        matrix_expect(me, m, 0, version, "before a loss");
    }
    meet_outside(me); /* the last run is behind all */
    uint64_t version = n_whole;
    ferry_status status;
    do {
        matrix_fill(me, m, ++version);
        if (me->rank == victim && !me->engine->threads) {
            end_later(me, 1 + us, false);
        }
        status = me->rank == victim && me->engine->threads
                     ? run_in_part(me, me->world, service, us / 500)
                     : ferry_service_run(service, NULL, &me->error);
        us /= 2;
    } while (status == FERRY_OK);
    ferry_world *world = NULL;
    must(me, ferry_world_shrink(me->world, 0, &world, &me->error));
    uint32_t left = me->n_ranks - (me->engine->threads ? 0 : 1);
    expect(me, ferry_world_rank_count(world) == left, "%u ranks are left",
           (unsigned)ferry_world_rank_count(world));
    uint64_t whole = recover(me, m, service, world);
    expect(me, whole <= version, "version %llu of %llu", (unsigned long long)whole,
           (unsigned long long)version);
    /* Some may have begun one more than others: then sources differ, and there is nothing to go on.
     */
    if (sum_of(me, world, version) == version * left &&
        sum_of(me, world, whole < version) == left) {
        go_on(me, m, service, world, version);
    } else {
        ferry_service_destroy(service);
    }
    ferry_world_destroy(world);
    meet_left(me, left);
    matrix_free(m);
}

/* A service that goes on from a ledger; the ledger is given up. */
static ferry_service *service_that_goes_on(rank_context *me, ferry_world *world, const scene *s,
                                           const scene_memory *memory, uint32_t checksum,
                                           ferry_ledger *ledger)
{
    service_setup setup;
    ferry_service *service = NULL;
    setup_init(me, &setup, "");
    setup.options.slot_bytes = 1024;
    setup.options.checksum = checksum;
    setup.options.paths = me->seed % 2 == 0 ? 0 : FERRY_PATH_STAGED;
    must(me, ferry_service_create(world, &setup.options, &service, &me->error));
    must(me, ferry_service_init(service, FERRY_LOG_ERROR, &me->error));
    scene_register(me, s, service, memory);
    if (ledger != NULL) {
        must(me, ferry_service_resume(service, ledger, &me->error));
        ferry_ledger_destroy(ledger);
    }
    must(me, ferry_service_schedule(service, &me->error));
    return service;
}

/* The ledger of a failed run; it holds at least what an earlier one held. */
static ferry_ledger *next_ledger(rank_context *me, const ferry_service *service, uint64_t *in_place)
{
    ferry_ledger *ledger = NULL;
    must(me, ferry_service_take_ledger(service, &ledger, &me->error));
    expect(me, ferry_ledger_bytes(ledger) >= *in_place, "%llu bytes in place, and then %llu",
           (unsigned long long)*in_place, (unsigned long long)ferry_ledger_bytes(ledger));
    *in_place = ferry_ledger_bytes(ledger);
    return ledger;
}

/* Registered tasks, and a run that needs several attempts, for ranks give up in the middle. */
void case_resume_tasks(rank_context *me)
{
    enum { MOST_ATTEMPTS = 6, SLOT = 1024 };
    static const scene_limits limits = {.most_tasks = 20, .most_bytes = 40000};
    uint64_t random = me->seed + 11, in_place = 0, missing = 0;
    scene *s = take(me, sizeof *s);
    scene_memory memory;
    ferry_world *world = me->world;
    ferry_ledger *ledger = NULL;
    ferry_status status = FERRY_ERR_ABORTED;
    uint32_t checksum = random_below(&random, 3);
    scene_draw(s, me->seed * 41, me->n_ranks, &limits);
    for (uint32_t b = 0; b < MOST_BUFFERS; b++) { /* it outlives transports */
        s->buffers[me->rank][b].kind = MEMORY_PLAIN;
    }
    scene_take(me, s, NULL, &memory);
    scene_fill(me, s, &memory, 1, true);
    for (uint32_t attempt = 0;; attempt++) {
        uint32_t n_tests = random_below(&random, 8);
        bool victim = random_below(&random, me->n_ranks) == me->rank;
        ferry_service *service = service_that_goes_on(me, world, s, &memory, checksum, ledger);
        meet_outside(me); /* who gives up finds nobody in there */
        if (victim && attempt < MOST_ATTEMPTS) {
            status = run_in_part(me, world, service, n_tests);
        } else {
            status = ferry_service_run(service, NULL, &me->error);
        }
        /* Who gives up late can leave others with a success; then all are asked. */
        if (status == FERRY_OK && ferry_world_barrier(world, &me->error) == FERRY_OK) {
            scene_expect(me, s, service, &memory, 1, "after some attempts");
            ferry_service_statistics now = statistics_of(me, service);
            uint64_t moved = sum_of(me, world, bytes_sent(&now));
            expect(me,
                   attempt == 0 || moved <= missing + (uint64_t)me->n_ranks * me->n_ranks * SLOT,
                   "%llu bytes moved, %llu were missing", (unsigned long long)moved,
                   (unsigned long long)missing);
            ferry_service_destroy(service);
            break;
        }
        scene_expect_kept(me, s, &memory, 1, "an attempt");
        ferry_world *next = NULL;
        ledger = next_ledger(me, service, &in_place);
        must(me, ferry_world_shrink(world, 0, &next, &me->error));
        expect(me, ferry_world_rank_count(next) == me->n_ranks, "%u ranks",
               (unsigned)ferry_world_rank_count(next));
        missing = sum_of(me, next, scene_bytes_in(s, me->rank, true) - in_place);
        ferry_service_destroy(service);
        if (world != me->world) {
            ferry_world_destroy(world);
        }
        world = next;
    }
    if (world != me->world) {
        ferry_world_destroy(world);
    }
    meet_left(me, me->n_ranks);
    scene_give_back(me, s, &memory);
    free(s);
}

/* With pairs somebody always has a whole version, and all have the same one. */
void case_recover_pairs(rank_context *me)
{
    service_setup setup;
    uint64_t random = me->seed + 10;
    uint32_t victim = random_below(&random, me->n_ranks);
    setup_init(me, &setup, "");
    setup.options.slot_bytes = 2048;
    setup.options.commit = FERRY_COMMIT_SWAP;
    setup.options.paths = one_in(&random, 2) ? FERRY_PATH_ALL : FERRY_PATH_STAGED;
    ferry_service *service = open_service(me, &setup.options);
    matrix *m = matrix_make(me, 3, 2, 8, NULL);
    matrix_schedule(me, m, service, true);
    matrix_fill(me, m, 1);
    must(me, ferry_service_run(service, NULL, &me->error));
    meet_outside(me); /* the last run is behind all */
    uint64_t version = 1;
    ferry_status status;
    if (me->rank == victim && !me->engine->threads) {
        end_later(me, dice(&random, 100, 20000), false);
    }
    do {
        matrix_fill(me, m, ++version);
        status = me->rank == victim && me->engine->threads && version > 2
                     ? run_in_part(me, me->world, service, 1)
                     : ferry_service_run(service, NULL, &me->error);
    } while (status == FERRY_OK);
    ferry_world *world = NULL;
    must(me, ferry_world_shrink(me->world, 0, &world, &me->error));
    uint64_t whole = recover(me, m, service, world);
    expect(me, whole + 1 == version || whole == version, "version %llu was recovered of %llu",
           (unsigned long long)whole, (unsigned long long)version);
    ferry_service_destroy(service);
    ferry_world_destroy(world);
    meet_left(me, me->n_ranks - (me->engine->threads ? 0 : 1));
    matrix_free(m);
}

/* A service for pairs, its plan and its tensors, which are always listed in the same way. */
static void setup_pairs(rank_context *me, service_setup *setup, uint64_t *random, bool swap)
{
    setup_init(me, setup, "");
    setup->options.slot_bytes = 2048;
    setup->options.commit = swap ? FERRY_COMMIT_SWAP : FERRY_COMMIT_IN_PLACE;
    setup->options.checksum = random_below(random, 3);
    setup->options.paths = one_in(random, 2) ? FERRY_PATH_ALL : FERRY_PATH_STAGED;
}

/* Every destination is valid, of this version, and where the service says. */
static void expect_version(rank_context *me, const matrix *m, const ferry_service *service,
                           uint64_t version, const char *what)
{
    expect(me, ferry_service_version(service) == version, "%s: version %llu, not %llu", what,
           (unsigned long long)ferry_service_version(service), (unsigned long long)version);
    for (uint64_t i = 0; i < ferry_service_destination_count(service); i++) {
        ferry_destination found = destination_of(me, service, i);
        expect(me, found.state == FERRY_TENSOR_VALID && found.version == version,
               "%s: %s has state %u and version %llu, not %llu", what, found.name,
               (unsigned)found.state, (unsigned long long)found.version,
               (unsigned long long)version);
    }
    expect_truth(me, m, service, 1);
}

/* Runs and ends the world in the middle of one, the version of which is the answer. */
static uint64_t run_and_end(rank_context *me, matrix *m, ferry_world *world, ferry_service *service,
                            uint64_t next, uint32_t n_whole, uint32_t n_tests)
{
    ferry_status status = FERRY_OK;
    meet_outside(me); /* what was before is behind all: the end is in one of these runs */
    for (uint32_t i = 0; status == FERRY_OK; i++) {
        matrix_fill(me, m, next + i);
        bool ends = me->rank == 0 && i >= n_whole;
        status = ends ? run_in_part(me, world, service, n_tests)
                      : ferry_service_run(service, NULL, &me->error);
        n_tests /= 2; /* a run can be over so soon */
        if (status != FERRY_OK) {
            expect_truth(me, m, service, 1);
            return next + i;
        }
        expect_version(me, m, service, next + i, "before the end");
    }
    return 0;
}

/* The largest of what the ranks say. */
static uint64_t most_of(rank_context *me, ferry_world *world, uint64_t mine)
{
    const void *all = NULL;
    must(me, ferry_world_all_gather(world, &mine, sizeof mine, &all, &me->error));
    for (uint32_t r = 0; r < ferry_world_rank_count(world); r++) {
        uint64_t its;
        memcpy(&its, (const char *)all + r * sizeof its, sizeof its);
        mine = its > mine ? its : mine;
    }
    return mine;
}

static ferry_service *service_of(rank_context *me, ferry_world *world,
                                 const ferry_service_options *options)
{
    ferry_service *service = NULL;
    must(me, ferry_service_create(world, options, &service, &me->error));
    must(me, ferry_service_init(service, FERRY_LOG_ERROR, &me->error));
    return service;
}

/*
 * The steps of a recovery one by one, with the tensors listed as they were at first: after an odd
 * number of versions each pair is bound the wrong way round, and the ledger knows better.
 */
void case_turned(rank_context *me)
{
    service_setup setup;
    uint64_t random = me->seed + 12, next = 1;
    setup_pairs(me, &setup, &random, true);
    matrix *m = matrix_make(me, 3, 1, 8, NULL);
    ferry_plan *plan = matrix_plan(me, m, NULL, 0);
    ferry_tensors *sources = matrix_sources(me, m), *targets = matrix_targets(me, m, 0, true);
    ferry_world *world = me->world;
    ferry_service *service = service_of(me, world, &setup.options);
    must(me, ferry_service_bind(service, plan, sources, targets, &me->error));
    must(me, ferry_service_schedule(service, &me->error));
    for (uint32_t n_whole = 0; n_whole < 4; n_whole++) {
        ferry_world *smaller = NULL;
        ferry_ledger *ledger = NULL;
        uint64_t whole = 0;
        uint64_t failed = run_and_end(me, m, world, service, next, n_whole, 3);
        must(me, ferry_world_shrink(world, 0, &smaller, &me->error));
        must(me, ferry_service_recover(service, smaller, &whole, &me->error));
        must(me, ferry_service_take_ledger(service, &ledger, &me->error));
        ferry_service_destroy(service);
        failed = most_of(me, smaller, failed);
        next = whole == failed ? failed + 1 : failed;
        world = smaller;
        service = service_of(me, world, &setup.options);
        must(me, ferry_service_bind(service, plan, sources, targets, &me->error));
        if (whole < failed) {
            must(me, ferry_service_resume(service, ledger, &me->error));
        } else { /* nothing is left to do: the steps end here, and all begins anew */
            next = 1;
        }
        ferry_ledger_destroy(ledger);
        must(me, ferry_service_schedule(service, &me->error));
        matrix_fill(me, m, next);
        must(me, ferry_service_run(service, NULL, &me->error));
        expect_version(me, m, service, next++, "by the steps");
        ferry_world_destroy(me->world);
        me->world = world;
    }
    ferry_service_destroy(service);
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(targets);
    ferry_plan_destroy(plan);
    matrix_free(m);
}

/* The same on all ranks, and for the plan of a matrix. */
static ferry_status plan_again(void *context, const uint32_t *lost, size_t n_lost,
                               ferry_plan **plan_out, ferry_error *error)
{
    rank_context *me = ((void **)context)[0];
    (void)error;
    *plan_out = matrix_plan(me, ((void **)context)[1], lost, n_lost);
    return FERRY_OK;
}

typedef struct lineage {
    matrix *m;
    ferry_service *service;
    ferry_tensors *sources, *targets;
    uint64_t next, version; /* the service's, which never goes back */
} lineage;

static ferry_recovery recover_at_once(rank_context *me, lineage *l)
{
    ferry_recovery_options options = FERRY_RECOVERY_OPTIONS_INIT;
    ferry_recovery recovery = FERRY_RECOVERY_INIT;
    void *context[2] = {me, l->m};
    options.replan = plan_again;
    options.context = context;
    must(me, ferry_service_recover_onto(&l->service, &me->world, &options, l->sources, l->targets,
                                        &recovery, &me->error));
    return recovery;
}

/* Nothing has been run: however often the world ends, the first version is the next one. */
static void end_before_the_first(rank_context *me, lineage *l)
{
    for (int n = 0; n < 3; n++) {
        (void)ferry_world_barrier(me->world, &me->error);
        ferry_world_abort(me->world, "before any run");
        ferry_recovery recovery = recover_at_once(me, l);
        expect(me, recovery.next == l->next, "end %d before the first run: %llu is next", n,
               (unsigned long long)recovery.next);
    }
}

/* One call, and the next run is right. */
static void go_on_at_once(rank_context *me, lineage *l, uint64_t failed, const char *what)
{
    ferry_recovery recovery = recover_at_once(me, l);
    failed = most_of(me, me->world, failed);
    expect(me, recovery.next == failed || (recovery.next == failed + 1), "%s: %llu after %llu",
           what, (unsigned long long)recovery.next, (unsigned long long)failed);
    expect(me, most_of(me, me->world, recovery.next) == recovery.next, "%s: version %llu here",
           what, (unsigned long long)recovery.next);
    expect(me, ferry_service_version(l->service) >= l->version, "%s: back from %llu to %llu", what,
           (unsigned long long)l->version, (unsigned long long)ferry_service_version(l->service));
    expect_truth(me, l->m, l->service, 1);
    matrix_fill(me, l->m, recovery.next);
    must(me, ferry_service_run(l->service, NULL, &me->error));
    expect_version(me, l->m, l->service, recovery.next, what);
    l->version = recovery.next;
    l->next = recovery.next + 1;
}

/* A run that fails in a world that lives: the same service goes on. */
static void cancel_and_go_on(rank_context *me, lineage *l)
{
    const ferry_service *service = l->service;
    const ferry_world *world = me->world;
    ferry_request *request = NULL;
    matrix_fill(me, l->m, l->next);
    must(me, ferry_service_start(l->service, NULL, &request, &me->error));
    ferry_request_cancel(request);
    ferry_status status = ferry_request_wait(request, &me->error);
    ferry_request_destroy(request);
    expect(me, status == FERRY_ERR_ABORTED, "%s after a cancel", ferry_status_name(status));
    go_on_at_once(me, l, l->next, "after a cancel");
    expect(me, l->service == service && me->world == world, "a living world was replaced");
}

void case_recover_onto(rank_context *me)
{
    uint64_t random = me->seed + 13;
    lineage l = {.next = 7}; /* numbers that went on from somewhere else */
    for (uint32_t swap = 0; swap < 2; swap++) {
        service_setup setup;
        setup_pairs(me, &setup, &random, swap != 0);
        setup.options.first_version = l.next;
        l.m = matrix_make(me, 3, 1, 8, NULL);
        l.service = open_service(me, &setup.options);
        l.sources = matrix_sources(me, l.m);
        l.targets = matrix_targets(me, l.m, 0, swap != 0);
        l.version = 0;
        matrix_schedule(me, l.m, l.service, swap != 0);
        end_before_the_first(me, &l);
        for (uint32_t n_whole = 0; n_whole < 4; n_whole++) {
            uint64_t failed = run_and_end(me, l.m, me->world, l.service, l.next, n_whole, 3);
            l.version = ferry_service_version(l.service);
            go_on_at_once(me, &l, failed, "after an end");
        }
        cancel_and_go_on(me, &l);
        /* The world ends where no run is under way: what was whole stays so. */
        (void)ferry_world_barrier(me->world, &me->error);
        ferry_world_abort(me->world, "between two runs");
        go_on_at_once(me, &l, l.next, "after an end between runs");
        /* And again before the schedule that has recovered has run. */
        uint64_t failed = run_and_end(me, l.m, me->world, l.service, l.next, 1, 2);
        l.version = ferry_service_version(l.service);
        ferry_service_destroy(l.service);
        ferry_tensors_destroy(l.sources);
        ferry_tensors_destroy(l.targets);
        ferry_world *world = NULL;
        must(me, ferry_world_shrink(me->world, 0, &world, &me->error));
        matrix_free(l.m); /* nobody has it open any more */
        ferry_world_destroy(me->world);
        me->world = world;
        l.next = most_of(me, world, failed) + 1;
    }
}
