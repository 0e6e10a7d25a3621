/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What ranks register at random, moved several times and compared with the reference. */
#include "service/scene.h"

static void draw_options(uint64_t *random, ferry_service_options *o, bool tiny)
{
    static const uint32_t cuts[] = {0, 0, 1, 7, 64, 1000, 4096, 65536, 1u << 20};
    static const uint64_t caps[] = {0, 0, 64 << 10, 100000, 256 << 10, 1 << 20, 16 << 20};
    o->slot_bytes = cuts[random_below(random, tiny ? COUNT_OF(cuts) : 2)];
    o->max_tasks = one_in(random, 3) ? 1 : one_in(random, 2) ? dice(random, 1, 40) : 0;
    o->memory_cap = caps[random_below(random, COUNT_OF(caps))];
    o->n_threads = random_below(random, 5);
    o->checksum = random_below(random, 3);
    o->paths = one_in(random, 3) ? 0 : random_below(random, FERRY_PATH_ALL + 1);
    o->trace = one_in(random, 4);
    o->no_relays = one_in(random, 2);
    o->delta = o->delta != 0 || one_in(random, 3);
}

static void describe(char *text, size_t n_bytes, const ferry_service_options *o)
{
    snprintf(text, n_bytes,
             "slots %llu, tasks %u, cap %llu, threads %u, checksum %u, paths %u, delta %u",
             (unsigned long long)o->slot_bytes, (unsigned)o->max_tasks,
             (unsigned long long)o->memory_cap, (unsigned)o->n_threads, (unsigned)o->checksum,
             (unsigned)o->paths, (unsigned)o->delta);
}

static void expect_still(rank_context *me, const ferry_service_statistics *before,
                         const ferry_service_statistics *now, const char *what)
{
    expect(me, now->n_schedules == before->n_schedules, "%s: %llu plannings after %llu", what,
           (unsigned long long)now->n_schedules, (unsigned long long)before->n_schedules);
    expect(me, now->n_allocations == before->n_allocations, "%s: %llu allocations after %llu", what,
           (unsigned long long)now->n_allocations, (unsigned long long)before->n_allocations);
    expect(me, now->n_registrations == before->n_registrations, "%s: %llu registrations after %llu",
           what, (unsigned long long)now->n_registrations,
           (unsigned long long)before->n_registrations);
}

static uint64_t cap_of(const ferry_service_options *o)
{
    return o->memory_cap == 0 ? FERRY_MEMORY_CAP : o->memory_cap;
}

/* Several runs of one schedule; sources change as soon as a run returns. */
static void run_scene(rank_context *me, const scene *s, ferry_service *service,
                      scene_memory *memory, const ferry_service_options *options)
{
    ferry_service_statistics first = FERRY_SERVICE_STATISTICS_INIT;
    char what[200];
    uint64_t random = s->seed;
    uint32_t n_runs = dice(&random, 1, options->delta ? 5 : 3);
    uint64_t version = 1;
    describe(what, sizeof what, options);
    scene_register(me, s, service, memory);
    must(me, ferry_service_schedule(service, &me->error));
    for (uint32_t run = 1; run <= n_runs; run++) {
        uint64_t before = ferry_service_version(service);
        version = run == 1 || one_in(&random, 3)         ? run
                  : options->delta && one_in(&random, 2) ? version % SCENE_EDITS + run * SCENE_EDITS
                  : options->delta                       ? version
                                                         : run;
        scene_fill(me, s, memory, version, run == 1 || one_in(&random, 2));
        must(me, ferry_service_run(service, NULL, &me->error));
        expect(me, ferry_service_version(service) > before, "version %llu after %llu",
               (unsigned long long)ferry_service_version(service), (unsigned long long)before);
        scene_expect(me, s, service, memory, version, what);
        scene_check_statistics(me, s, service, cap_of(options));
        ferry_service_statistics now = statistics_of(me, service);
        first = run == 1 ? now : first;
        expect_still(me, &first, &now, what);
    }
}

/* One service, several sets of registrations one after the other. */
static void run_service(rank_context *me, uint64_t seed, const scene_limits *limits, bool tiny)
{
    service_setup setup;
    uint64_t random = seed;
    uint32_t n_scenes = dice(&random, 1, 3);
    scene *s = take(me, sizeof *s);
    setup_init(me, &setup, "");
    draw_options(&random, &setup.options, tiny);
    ferry_service *service = open_service(me, &setup.options);
    for (uint32_t i = 0; i < n_scenes; i++) {
        scene_memory memory;
        scene_draw(s, seed * 16 + i, me->n_ranks, limits);
        scene_take(me, s, ferry_service_transport(service), &memory);
        run_scene(me, s, service, &memory, &setup.options);
        clear_all(me, service);
        scene_give_back(me, s, &memory);
    }
    if (one_in(&random, 2)) {
        must(me, ferry_service_finalize(service, &me->error));
    }
    ferry_service_destroy(service);
    free(s);
}

void case_random(rank_context *me)
{
    for (uint32_t i = 0; i < times_of(me, me->n_ranks > 5 ? 3 : 10, me->n_ranks > 5 ? 50 : 400);
         i++) {
        uint64_t seed = me->seed * 100000 + me->n_ranks * 10000 + i;
        uint64_t random = seed;
        scene_limits limits = {.most_tasks = dice(&random, 0, 30),
                               .most_bytes = (uint32_t)1 << dice(&random, 2, 13)};
        run_service(me, seed, &limits, limits.most_bytes < 2048);
    }
}

void case_large(rank_context *me)
{
    for (uint32_t i = 0; i < times_of(me, 1, 20); i++) {
        scene_limits limits = {.most_tasks = 3, .most_bytes = 3 << 20};
        run_service(me, me->seed * 1000 + 500 + i, &limits, false);
    }
}

/* Down to where nothing fits: then every rank says so, and with more it goes. */
void case_caps(rank_context *me)
{
    static const struct {
        uint64_t cap, slot;
        uint32_t max_tasks;
    } rows[] = {{1, 0, 0},       {512, 0, 0},        {4096, 0, 0},    {4096, 64, 1},
                {8192, 1, 1},    {16384, 0, 0},      {65536, 0, 0},   {65536, 65536, 1},
                {1 << 20, 1, 1}, {1 << 20, 3, 1000}, {1 << 20, 0, 1}, {64 << 10, 1 << 30, 0}};
    scene_limits limits = {.most_tasks = 8, .most_bytes = 4000};
    scene *s = take(me, sizeof *s);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        service_setup setup;
        scene_memory memory;
        setup_init(me, &setup, "");
        setup.options.memory_cap = rows[i].cap;
        setup.options.slot_bytes = rows[i].slot;
        setup.options.max_tasks = rows[i].max_tasks;
        setup.options.paths = FERRY_PATH_STAGED;
        setup.options.checksum = (uint32_t)i % 3;
        ferry_service *service = open_service(me, &setup.options);
        scene_draw(s, me->seed * 7 + i, me->n_ranks, &limits);
        scene_take(me, s, ferry_service_transport(service), &memory);
        scene_fill(me, s, &memory, 1, true);
        scene_register(me, s, service, &memory);
        ferry_status status = ferry_service_schedule(service, &me->error);
        if (rows[i].cap < (64 << 10) && status != FERRY_OK) {
            all_same(me, "a schedule with a tiny cap", status, status, NULL);
        } else {
            all_same(me, "schedule", status, FERRY_OK, NULL);
            must(me, ferry_service_run(service, NULL, &me->error));
            scene_expect(me, s, service, &memory, 1, "a small cap");
            scene_check_statistics(me, s, service, rows[i].cap);
        }
        clear_all(me, service);
        scene_give_back(me, s, &memory);
        ferry_service_destroy(service);
    }
    free(s);
}

/* Both at once; half of the ranks begin with the second one, and wait for it first. */
static void run_both(rank_context *me, scene *s[2], scene_memory memory[2],
                     ferry_service *services[2], uint64_t version)
{
    ferry_request *requests[2];
    uint32_t first = me->rank % 2;
    for (uint32_t j = 0; j < 2; j++) {
        uint32_t which = j == 0 ? first : 1 - first;
        scene_fill(me, s[which], &memory[which], version, true);
        must(me, ferry_service_start(services[which], NULL, &requests[which], &me->error));
    }
    for (uint32_t j = 0; j < 2; j++) {
        must(me, ferry_request_wait(requests[j == 0 ? first : 1 - first], &me->error));
    }
    for (uint32_t j = 0; j < 2; j++) {
        ferry_request_destroy(requests[j]);
        scene_expect(me, s[j], services[j], &memory[j], version, "two services at once");
    }
}

/* Two services over a transport of the caller's, which lives longer or, closed first, as long. */
void case_shared_transport(rank_context *me)
{
    scene_limits limits = {.most_tasks = 10, .most_bytes = 5000};
    for (uint32_t i = 0; i < times_of(me, 2, 20); i++) {
        service_setup setup;
        scene *s[2];
        scene_memory memory[2];
        ferry_service *services[2];
        ferry_transport *transport = NULL;
        setup_init(me, &setup, "");
        must(me, ferry_transport_open(me->world, setup.options.engines, &transport, &me->error));
        setup.options.transport = transport;
        setup.options.engines = NULL;
        for (uint32_t j = 0; j < 2; j++) {
            services[j] = open_service(me, &setup.options);
            expect(me, ferry_service_transport(services[j]) == transport, "another transport");
            s[j] = take(me, sizeof *s[j]);
            scene_draw(s[j], me->seed * 50 + i * 2 + j, me->n_ranks, &limits);
            scene_take(me, s[j], transport, &memory[j]);
            scene_register(me, s[j], services[j], &memory[j]);
            must(me, ferry_service_schedule(services[j], &me->error));
        }
        for (uint32_t j = 0; j < 4; j++) {
            scene_fill(me, s[j % 2], &memory[j % 2], j, true);
            must(me, ferry_service_run(services[j % 2], NULL, &me->error));
            scene_expect(me, s[j % 2], services[j % 2], &memory[j % 2], j, "two services");
        }
        run_both(me, s, memory, services, 4);
        run_both(me, s, memory, services, 5);
        for (uint32_t j = 0; j < 2; j++) {
            must(me, ferry_service_finalize(services[j], &me->error));
            scene_give_back(me, s[j], &memory[j]);
            free(s[j]);
        }
        if (i % 2 == 0) {
            ferry_transport_close(transport);
        }
        ferry_service_destroy(services[0]);
        ferry_service_destroy(services[1]);
        if (i % 2 == 1) {
            ferry_transport_close(transport);
        }
    }
}
