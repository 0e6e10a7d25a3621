/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* How a service is used: its life, runs in steps, progress, and what it reports. */
#include "service/scene.h"

#include "support/sanitized.h"

#include <pthread.h>
#include <unistd.h>

/* A scheduled service with its scene and memory. */
typedef struct fixture {
    service_setup setup;
    scene *scene;
    scene_memory memory;
    ferry_service *service;
} fixture;

static void set_up(rank_context *me, fixture *f, uint64_t number, const scene_limits *limits)
{
    f->scene = take(me, sizeof *f->scene);
    f->service = open_service(me, &f->setup.options);
    do { /* until there is something to move */
        scene_draw(f->scene, me->seed * 900 + number, me->n_ranks, limits);
        number += 100000;
    } while (f->scene->n_tasks < limits->most_tasks);
    scene_take(me, f->scene, ferry_service_transport(f->service), &f->memory);
    scene_register(me, f->scene, f->service, &f->memory);
    must(me, ferry_service_schedule(f->service, &me->error));
}

static void tear_down(rank_context *me, fixture *f)
{
    clear_all(me, f->service);
    scene_give_back(me, f->scene, &f->memory);
    ferry_service_destroy(f->service);
    free(f->scene);
}

static void run_and_check(rank_context *me, fixture *f, uint64_t version, const char *what)
{
    scene_fill(me, f->scene, &f->memory, version, true);
    must(me, ferry_service_run(f->service, NULL, &me->error));
    scene_expect(me, f->scene, f->service, &f->memory, version, what);
}

/* Nothing at all to do, then something on one rank alone, then nothing again. */
void case_empty(rank_context *me)
{
    service_setup setup;
    unsigned char from[100], to[100];
    ferry_buffer source = ferry_buffer_of(from, sizeof from);
    ferry_buffer target = ferry_buffer_of(to, sizeof to);
    setup_init(me, &setup, "");
    ferry_service *service = open_service(me, &setup.options);
    for (unsigned round = 0; round < 4; round++) {
        bool busy = round % 2 == 1 && me->rank == me->n_ranks - 1;
        fill(from, sizeof from, round);
        if (busy) {
            must(me, ferry_service_register_send(service, 9, &source, 1, 99, me->rank, &me->error));
            must(me,
                 ferry_service_register_receive(service, 9, &target, 0, 99, me->rank, &me->error));
        }
        must(me, ferry_service_schedule(service, &me->error));
        must(me, ferry_service_run(service, NULL, &me->error));
        must(me, ferry_service_run(service, NULL, &me->error));
        expect(me, !busy || memcmp(from + 1, to, 99) == 0, "a task to this rank itself");
        expect(me, ferry_service_destination_count(service) == busy, "%llu destinations",
               (unsigned long long)ferry_service_destination_count(service));
        ferry_service_statistics now = statistics_of(me, service);
        expect(me,
               now.bytes_local + now.bytes_skipped == (busy ? 99 : 0) &&
                   bytes_sent(&now) == now.bytes_local + now.bytes_skipped,
               "%llu bytes local", (unsigned long long)now.bytes_local);
        expect(me, ferry_service_peer_count(service) == busy, "%u peers",
               (unsigned)ferry_service_peer_count(service));
        must(me, ferry_service_clear_requests(service, &me->error));
    }
    ferry_service_destroy(service);
}

void case_properties(rank_context *me)
{
    service_setup setup;
    setup_init(me, &setup, "");
    ferry_service *service = NULL;
    must(me, ferry_service_create(me->world, &setup.options, &service, &me->error));
    expect(me, ferry_service_my_pe(service) == me->rank, "%u", ferry_service_my_pe(service));
    expect(me, ferry_service_pe_count(service) == me->n_ranks, "%u",
           ferry_service_pe_count(service));
    expect(me, ferry_service_device(service) == -1, "%d", (int)ferry_service_device(service));
    ferry_service_destroy(service);
    setup.options.device = -2;
    must_fail(me, FERRY_ERR_MISUSE, "-2 is no device",
              ferry_service_create(me->world, &setup.options, &service, &me->error));
    setup.options.device = 3;
    must(me, ferry_service_create(me->world, &setup.options, &service, &me->error));
    expect(me, ferry_service_device(service) == 3, "%d", (int)ferry_service_device(service));
    must(me, ferry_service_init(service, FERRY_LOG_ERROR, &me->error));
    expect(me, ferry_service_transport(service) != NULL, "no transport");
    expect(me, ferry_service_version(service) == 0, "a version before any run");
    expect(me, ferry_service_destination_count(service) == 0, "destinations of nothing");
    expect(me, ferry_service_span_count(service) == 0, "spans of nothing");
    expect(me, statistics_of(me, service).n_runs == 0, "runs before any");
    for (uint32_t a = 1; a < FERRY_PATH_ALL; a *= 2) {
        for (uint32_t b = 1; b < a; b *= 2) {
            expect(me, strcmp(ferry_service_path_name(a), ferry_service_path_name(b)) != 0,
                   "paths %u and %u", (unsigned)a, (unsigned)b);
        }
    }
    expect(me, ferry_service_path_name(1u << 20) != NULL, "no word for an unknown path");
    must(me, ferry_service_finalize(service, &me->error));
    ferry_service_destroy(service);
}

enum { ROWS = 48, COLUMNS = 40, ELEMENT = 4 };

/* A matrix in rows becomes one in columns, as boxes of tensors. */
void case_boxes(rank_context *me)
{
    service_setup setup;
    uint64_t n = me->n_ranks, rows = ROWS / n, columns = COLUMNS / n;
    uint32_t *from = take(me, rows * COLUMNS * ELEMENT), *to = take(me, ROWS * columns * ELEMENT);
    ferry_buffer source = ferry_buffer_of(from, rows * COLUMNS * ELEMENT);
    ferry_buffer target = ferry_buffer_of(to, ROWS * columns * ELEMENT);
    ferry_box box;
    setup_init(me, &setup, "");
    ferry_service *service = open_service(me, &setup.options);
    for (uint32_t r = 0; r < n; r++) {
        box = (ferry_box)FERRY_BOX_INIT;
        must(me, ferry_box_of(&source, ELEMENT, 2, (uint64_t[]){rows, COLUMNS},
                              (uint64_t[]){0, r * columns}, (uint64_t[]){rows, columns}, &box,
                              &me->error));
        box.name = "rows";
        must(me, ferry_service_register_send_box(service, 1, &box, r, &me->error));
        box = (ferry_box)FERRY_BOX_INIT;
        must(me, ferry_box_of(&target, ELEMENT, 2, (uint64_t[]){ROWS, columns},
                              (uint64_t[]){r * rows, 0}, (uint64_t[]){rows, columns}, &box,
                              &me->error));
        box.name = "columns";
        must(me, ferry_service_register_receive_box(service, 1, &box, r, &me->error));
    }
    for (uint32_t i = 0; i < rows * COLUMNS; i++) {
        from[i] = (uint32_t)(me->rank * rows * COLUMNS + i);
    }
    must(me, ferry_service_schedule(service, &me->error));
    must(me, ferry_service_run(service, NULL, &me->error));
    for (uint64_t i = 0; i < rows * n; i++) {
        for (uint64_t j = 0; j < columns; j++) {
            uint64_t wanted = i * COLUMNS + me->rank * columns + j;
            expect(me, to[i * columns + j] == wanted, "row %llu, column %llu: %u, not %llu",
                   (unsigned long long)i, (unsigned long long)j, (unsigned)to[i * columns + j],
                   (unsigned long long)wanted);
        }
    }
    expect(me, strcmp(destination_of(me, service, 0).name, "columns") == 0, "named \"%s\"",
           destination_of(me, service, 0).name);
    ferry_service_destroy(service);
    free(from);
    free(to);
}

/* Strides in any order: columns become rows on the way. */
void case_transposed(rank_context *me)
{
    service_setup setup;
    uint16_t from[ROWS][COLUMNS], to[COLUMNS][ROWS];
    ferry_box source = FERRY_BOX_INIT, target = FERRY_BOX_INIT;
    setup_init(me, &setup, "");
    ferry_service *service = open_service(me, &setup.options);
    for (uint32_t i = 0; i < ROWS * COLUMNS; i++) {
        from[i / COLUMNS][i % COLUMNS] = (uint16_t)(me->rank * 3000 + i);
    }
    memset(to, 0, sizeof to);
    source.buffer = ferry_buffer_of(from, sizeof from);
    target.buffer = ferry_buffer_of(to, sizeof to);
    source.element_bytes = target.element_bytes = sizeof(uint16_t);
    source.n_dims = target.n_dims = 2;
    source.length[0] = target.length[0] = COLUMNS;
    source.length[1] = target.length[1] = ROWS;
    source.stride[0] = target.stride[1] = sizeof(uint16_t);
    source.stride[1] = sizeof from[0];
    target.stride[0] = sizeof to[0];
    must(me, ferry_service_register_send_box(service, 1, &source, next_rank(me), &me->error));
    must(me,
         ferry_service_register_receive_box(service, 1, &target, previous_rank(me), &me->error));
    must(me, ferry_service_schedule(service, &me->error));
    must(me, ferry_service_run(service, NULL, &me->error));
    for (uint32_t i = 0; i < ROWS * COLUMNS; i++) {
        uint16_t wanted = (uint16_t)(previous_rank(me) * 3000 + i);
        expect(me, to[i % COLUMNS][i / COLUMNS] == wanted, "element %u: %u, not %u", (unsigned)i,
               (unsigned)to[i % COLUMNS][i / COLUMNS], (unsigned)wanted);
    }
    ferry_service_destroy(service);
}

/* Thousands of tasks of a few bytes; what a run needs does not grow with runs. */
void case_many(rank_context *me)
{
    uint32_t n = times_of(me, 3000, 30000), size = 24;
    unsigned char *from = take(me, (size_t)n * size), *to = take(me, (size_t)n * size);
    ferry_buffer source = ferry_buffer_of(from, (uint64_t)n * size);
    ferry_buffer target = ferry_buffer_of(to, (uint64_t)n * size);
    service_setup setup;
    setup_init(me, &setup, "");
    setup.options.memory_cap = 1 << 20;
    ferry_service *service = open_service(me, &setup.options);
    for (uint32_t i = 0; i < n; i++) { /* to all in turn, and to places in another order */
        uint32_t to_rank = (i + me->rank) % me->n_ranks;
        must(me, ferry_service_register_send(service, i, &source, (uint64_t)i * size, 1 + i % size,
                                             to_rank, &me->error));
    }
    for (uint32_t r = 0; r < me->n_ranks; r++) {
        for (uint32_t i = 0; i < n; i++) {
            if ((i + r) % me->n_ranks == me->rank) {
                must(me, ferry_service_register_receive(service, i, &target,
                                                        (uint64_t)(n - 1 - i) * size, 1 + i % size,
                                                        r, &me->error));
            }
        }
    }
    must(me, ferry_service_schedule(service, &me->error));
    ferry_service_statistics first = FERRY_SERVICE_STATISTICS_INIT;
    for (uint32_t run = 0; run < 3; run++) {
        fill(from, (size_t)n * size, run * 100 + me->rank);
        must(me, ferry_service_run(service, NULL, &me->error));
        ferry_service_statistics now = statistics_of(me, service);
        first = run == 0 ? now : first;
        expect(me, now.n_allocations == first.n_allocations, "%llu allocations",
               (unsigned long long)now.n_allocations);
        for (uint32_t r = 0; r < me->n_ranks; r++) {
            fill(from, (size_t)n * size, run * 100 + r);
            for (uint32_t i = 0; i < n; i++) {
                expect(me,
                       (i + r) % me->n_ranks != me->rank ||
                           memcmp(to + (size_t)(n - 1 - i) * size, from + (size_t)i * size,
                                  1 + i % size) == 0,
                       "task %u from rank %u", (unsigned)i, (unsigned)r);
            }
        }
    }
    ferry_service_destroy(service);
    free(from);
    free(to);
}

typedef struct progress_seen {
    uint64_t n_calls, last, total;
    double seconds;
    bool wrong;
    bool stopped;         /* said no while bytes were missing */
    int64_t cancel_after; /* calls; negative: never */
} progress_seen;

static bool see_progress(void *context, const ferry_progress *progress)
{
    progress_seen *seen = context;
    seen->wrong = seen->wrong || progress->bytes_done < seen->last ||
                  progress->bytes_done > progress->bytes_total ||
                  progress->seconds < seen->seconds || progress->seconds < 0 ||
                  progress->struct_size != sizeof *progress;
    seen->last = progress->bytes_done;
    seen->total = progress->bytes_total;
    seen->seconds = progress->seconds;
    seen->n_calls++;
    bool goes_on = seen->cancel_after < 0 || (int64_t)seen->n_calls <= seen->cancel_after;
    seen->stopped = seen->stopped || (!goes_on && seen->last < seen->total);
    return goes_on;
}

/* start and test, by turns with the caller's own work; a request is told what it was told. */
void case_polling(rank_context *me)
{
    static const scene_limits limits = {.most_tasks = 20, .most_bytes = 60000};
    fixture f = {0};
    setup_init(me, &f.setup, "");
    f.setup.options.slot_bytes = 4096;
    set_up(me, &f, 1, &limits);
    for (uint64_t version = 1; version <= 6; version++) {
        progress_seen seen = {.cancel_after = -1};
        ferry_request *request = NULL;
        bool done = false;
        scene_fill(me, f.scene, &f.memory, version, true);
        ferry_service_set_progress(f.service, version % 2 == 0 ? see_progress : NULL, &seen);
        must(me, ferry_service_start(f.service, NULL, &request, &me->error));
        uint64_t patience = (me->rank + version) % 3 == 0 ? 0 : UINT64_MAX;
        for (uint64_t i = 0; !done && i < patience; i++) {
            must(me, ferry_request_test(request, &done, &me->error));
        }
        if (version % 3 != 2) {
            must(me, ferry_request_wait(request, &me->error));
            must(me, ferry_request_wait(request, &me->error));
            must(me, ferry_request_test(request, &done, &me->error));
            expect(me, done, "a run that was waited for is under way");
        }
        ferry_request_destroy(request); /* sometimes before the end */
        scene_expect(me, f.scene, f.service, &f.memory, version, "polling");
        uint64_t all = scene_bytes_out(f.scene, me->rank) + scene_bytes_in(f.scene, me->rank, true);
        expect(me, !seen.wrong && (seen.n_calls == 0 || seen.total <= all),
               "%llu calls of progress, %llu of %llu bytes", (unsigned long long)seen.n_calls,
               (unsigned long long)seen.last, (unsigned long long)seen.total);
    }
    ferry_service_set_progress(f.service, NULL, NULL);
    tear_down(me, &f);
}

void case_cancel(rank_context *me)
{
    static const scene_limits limits = {.most_tasks = 20, .most_bytes = 60000};
    fixture f = {0};
    uint64_t random = me->seed + 3;
    setup_init(me, &f.setup, "");
    f.setup.options.slot_bytes = 512;
    f.setup.options.paths = FERRY_PATH_STAGED;
    set_up(me, &f, 2, &limits);
    uint32_t busy = 0; /* a rank without which nothing is complete */
    while (scene_bytes_out(f.scene, busy) + scene_bytes_in(f.scene, busy, true) == 0) {
        busy++;
    }
    for (uint64_t version = 1; version <= times_of(me, 11, 101); version += 2) {
        ferry_request *request = NULL;
        bool done = false;
        ferry_status status = FERRY_OK;
        uint64_t before = ferry_service_version(f.service);
        uint32_t n_tests = version == 1 ? 0 : random_below(&random, 4);
        scene_fill(me, f.scene, &f.memory, version, version == 1);
        must(me, ferry_service_start(f.service, NULL, &request, &me->error));
        for (uint32_t i = 0; me->rank == busy && i < n_tests && !done && status == FERRY_OK; i++) {
            status = ferry_request_test(request, &done, &me->error);
        }
        if (me->rank == busy) {
            ferry_request_cancel(request);
            ferry_request_cancel(request);
        }
        status = ferry_request_wait(request, &me->error);
        expect(me, status == FERRY_ERR_ABORTED || (status == FERRY_OK && n_tests > 0), "%s",
               ferry_status_name(status));
        all_same(me, "a run that is cancelled", status, status, NULL);
        expect(me, ferry_request_wait(request, &me->error) == status, "another outcome");
        ferry_request_destroy(request);
        scene_expect_kept(me, f.scene, &f.memory, version, "a run that was given up");
        scene_expect_truth(me, f.scene, f.service, &f.memory, before, version - 1, version);
        run_and_check(me, &f, version + 1, "after a cancel");
    }
    tear_down(me, &f);
}

/* Asks about a run that another thread waits for. */
typedef struct asker {
    rank_context *me;
    ferry_request *request;
    ferry_status status;
    ferry_error error;
} asker;

static void *ask(void *context)
{
    asker *self = context;
    bool done = false;
    while (!done) {
        self->status = ferry_request_test(self->request, &done, &self->error);
        done = done || self->status != FERRY_OK;
    }
    return NULL;
}

void case_askers(rank_context *me)
{
    enum { N_ASKERS = 2 };
    static const scene_limits limits = {.most_tasks = 20, .most_bytes = 60000};
    fixture f = {0};
    setup_init(me, &f.setup, "");
    f.setup.options.slot_bytes = 4096;
    set_up(me, &f, 4, &limits);
    for (uint64_t version = 1; version <= times_of(me, 6, 60); version++) {
        ferry_request *request = NULL;
        pthread_t threads[N_ASKERS];
        asker askers[N_ASKERS];
        scene_fill(me, f.scene, &f.memory, version, true);
        must(me, ferry_service_start(f.service, NULL, &request, &me->error));
        for (uint32_t i = 0; i < N_ASKERS; i++) {
            askers[i] = (asker){.me = me, .request = request};
            expect(me, pthread_create(&threads[i], NULL, ask, &askers[i]) == 0, "no thread");
        }
        if (version % 3 != 0) { /* else the askers alone bring it to its end */
            must(me, ferry_request_wait(request, &me->error));
        }
        for (uint32_t i = 0; i < N_ASKERS; i++) {
            pthread_join(threads[i], NULL);
            expect(me, askers[i].status == FERRY_OK, "asker %u: %s", (unsigned)i,
                   ferry_status_name(askers[i].status));
        }
        ferry_request_destroy(request);
        scene_expect(me, f.scene, f.service, &f.memory, version, "asked by several threads");
    }
    tear_down(me, &f);
}

/* One rank's callback says no after a while: all are told the same, and the next run is whole. */
void case_progress_cancel(rank_context *me)
{
    static const scene_limits limits = {.most_tasks = 10, .most_bytes = 300000};
    fixture f = {0};
    uint64_t random = me->seed;
    setup_init(me, &f.setup, "");
    f.setup.options.slot_bytes = 4096;
    set_up(me, &f, 3, &limits);
    for (uint32_t i = 0; i < times_of(me, 4, 40); i++) {
        uint32_t who = random_below(&random, me->n_ranks);
        progress_seen seen = {.cancel_after = dice(&random, 0, 12)};
        uint64_t before = ferry_service_version(f.service);
        scene_fill(me, f.scene, &f.memory, 2 * i + 1, i == 0);
        ferry_service_set_progress(f.service, me->rank == who ? see_progress : NULL, &seen);
        ferry_status status = ferry_service_run(f.service, NULL, &me->error);
        expect(me, !seen.stopped || status == FERRY_ERR_ABORTED, "the callback said no: %s",
               ferry_status_name(status));
        expect(me, status == FERRY_OK || status == FERRY_ERR_ABORTED, "%s: %s",
               ferry_status_name(status), me->error.message);
        all_same(me, "a run that a callback cancels", status, status, NULL);
        if (status == FERRY_OK) {
            scene_expect(me, f.scene, f.service, &f.memory, 2 * i + 1, "not cancelled");
        } else {
            scene_expect_kept(me, f.scene, &f.memory, 2 * i + 1, "cancelled");
            scene_expect_truth(me, f.scene, f.service, &f.memory, before, 2 * i, 2 * i + 1);
        }
        ferry_service_set_progress(f.service, NULL, NULL);
        meet(me);
        run_and_check(me, &f, 2 * i + 2, "after a callback's no");
    }
    tear_down(me, &f);
}

/* Services end at every stage, before and after what they stand on. */
void case_ends(rank_context *me)
{
    enum { N_STAGES = 6 };
    unsigned char from[64], to[64];
    ferry_buffer source = ferry_buffer_of(from, sizeof from);
    ferry_buffer target = ferry_buffer_of(to, sizeof to);
    fill(from, sizeof from, me->rank);
    for (uint32_t i = 0; i < 2 * N_STAGES; i++) {
        uint32_t stage = i / 2;
        ferry_world *world = another_world(me, i);
        ferry_service *service = NULL;
        service_setup setup;
        setup_init(me, &setup, "");
        must(me, ferry_service_create(world, &setup.options, &service, &me->error));
        if (stage >= 1) {
            must(me, ferry_service_init(service, FERRY_LOG_ERROR, &me->error));
        }
        if (stage >= 2) {
            must(me, ferry_service_register_send(service, 1, &source, 0, 64, next_rank(me),
                                                 &me->error));
            must(me, ferry_service_register_receive(service, 1, &target, 0, 64, previous_rank(me),
                                                    &me->error));
        }
        if (stage >= 3) {
            must(me, ferry_service_schedule(service, &me->error));
        }
        if (stage >= 4) {
            must(me, ferry_service_run(service, NULL, &me->error));
            expect(me, mismatch(to, 64, previous_rank(me)) == 64, "wrong bytes");
        }
        if (stage >= 5) {
            must(me, ferry_service_finalize(service, &me->error));
        }
        if (i % 2 == 0) {
            ferry_world_destroy(world);
        }
        ferry_service_destroy(service);
        if (i % 2 == 1) {
            ferry_world_destroy(world);
        }
    }
    ferry_service_destroy(NULL);
}

void case_spans(rank_context *me)
{
    static const scene_limits limits = {.most_tasks = 20, .most_bytes = 20000};
    fixture f = {0};
    setup_init(me, &f.setup, "");
    /* Moves of devices overlap. */
    bool is_far = getenv("FERRY_TEST_FAR") != NULL;
    f.setup.options.trace = true;
    f.setup.options.checksum = FERRY_CHECKSUM_END;
    set_up(me, &f, 5, &limits);
    for (uint64_t version = 1; version <= 3; version++) {
        run_and_check(me, &f, version, "with spans");
        ferry_service_statistics statistics = statistics_of(me, f.service);
        double before = 0;
        bool busy = bytes_sent(&statistics) > 0;
        expect(me, !busy || ferry_service_span_count(f.service) > 0, "no spans");
        for (uint64_t i = 0; i < ferry_service_span_count(f.service); i++) {
            ferry_span span = FERRY_SPAN_INIT;
            must(me, ferry_service_span_at(f.service, i, &span, &me->error));
            expect(me, span.kind <= FERRY_SPAN_WAIT, "a span of kind %u", (unsigned)span.kind);
            expect(me,
                   (span.begin >= before || is_far) && span.end >= span.begin &&
                       span.end <= statistics.seconds * 1.001 + 1e-3,
                   "span %llu of kind %u from %g to %g after %g, of %g s", (unsigned long long)i,
                   (unsigned)span.kind, span.begin, span.end, before, statistics.seconds);
            expect(me, span.kind == FERRY_SPAN_WAIT || span.peer < me->n_ranks, "peer %u",
                   (unsigned)span.peer);
            before = span.begin;
        }
    }
    tear_down(me, &f);
}

/*
 * This process's own memory that is resident. Shared maps are not in it: check_possessions counts
 * them, and the memory of a simulated device lies in one, of which closed queues keep some.
 */
static uint64_t own_kib(const rank_context *me)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long size, resident, shared;
    if (file == NULL || fscanf(file, "%llu %llu %llu", &size, &resident, &shared) != 3) {
        fail(me, "/proc/self/statm cannot be read");
    }
    fclose(file);
    return (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
}

/* Sanitizers keep what was freed. */
enum { MOST_GROWTH_KIB = IS_SANITIZED ? 1 << 30 : 1500 };

void case_cycles(rank_context *me)
{
    enum { N_FIRST = 20 };
    static const scene_limits limits = {.most_tasks = 12, .most_bytes = 3000};
    uint64_t kib = 0;
    possessions before = {0};
    uint32_t n = times_of(me, 50, 1000);
    for (uint32_t i = 0; i < n; i++) {
        fixture f = {0};
        setup_init(me, &f.setup, "");
        f.setup.options.checksum = i % 3;
        f.setup.options.paths = i % 4 == 0 ? 0 : FERRY_PATH_ALL;
        f.setup.options.memory_cap = 1 << 20;
        set_up(me, &f, 7, &limits);
        run_and_check(me, &f, i, "cycles");
        tear_down(me, &f);
        if (i == N_FIRST || i + 1 == n) {
            meet(me);
            if (i == N_FIRST) {
                kib = own_kib(me);
                before = possessions_of(me);
            } else {
                check_possessions(me, &before);
                expect(me, own_kib(me) < kib + MOST_GROWTH_KIB,
                       "%llu KiB of its own after %u cycles, %llu after %u",
                       (unsigned long long)own_kib(me), (unsigned)n, (unsigned long long)kib,
                       (unsigned)N_FIRST);
            }
            meet(me);
        }
    }
}
