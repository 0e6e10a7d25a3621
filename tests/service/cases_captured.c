/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs that a CUDA graph has, and makes anew at each launch. Elsewhere there is nothing to show. */
#include "service/suite.h"

#include "support/devices.h"
#include "support/graphs.h"

#include <ferry/log.h>

#include <stdatomic.h>

/* Each rank sends to the next one: from the host's memory or a device's, to the host's or that. */
enum { BYTES = 9000, N_TASKS = 4, N_LAUNCHES = 50 };

typedef struct ring {
    service_setup setup;
    ferry_service *service;
    ferry_buffer sources[N_TASKS], targets[N_TASKS];
    char *given, *found; /* pinned: N_TASKS * BYTES each */
    uint64_t salt;
} ring;

/* Streams of all ranks wait at once, each in a channel; the stand-in may have two. */
static bool is_shown(void)
{
    return device_kind() == FERRY_MEMORY_CUDA &&
           (device_is_real() || getenv("STANDIN_CHANNELS") != NULL);
}

static ferry_buffer take_buffer(rank_context *me, bool far)
{
    ferry_buffer buffer;
    ferry_memory_kind kind = far || device_has_all() ? FERRY_MEMORY_CUDA : FERRY_MEMORY_HOST;
    must(me, ferry_memory_alloc(NULL, kind, 0, BYTES, &buffer, &me->error));
    return buffer;
}

static void set_up(rank_context *me, ring *r, uint64_t salt)
{
    setup_init(me, &r->setup, "");
    r->salt = salt;
    r->service = open_service(me, &r->setup.options);
    r->given = graphs_pinned((size_t)N_TASKS * BYTES);
    r->found = graphs_pinned((size_t)N_TASKS * BYTES);
    for (uint64_t t = 0; t < N_TASKS; t++) {
        r->sources[t] = take_buffer(me, t % 2 != 0);
        r->targets[t] = take_buffer(me, t / 2 != 0);
        must(me, ferry_service_register_send(r->service, t, &r->sources[t], 0, BYTES, next_rank(me),
                                             &me->error));
        must(me, ferry_service_register_receive(r->service, t, &r->targets[t], 0, BYTES,
                                                previous_rank(me), &me->error));
    }
    must(me, ferry_service_schedule(r->service, &me->error));
}

static void give_back(ring *r)
{
    ferry_service_destroy(r->service);
    for (int t = 0; t < N_TASKS; t++) {
        ferry_memory_free(&r->sources[t]);
        ferry_memory_free(&r->targets[t]);
    }
    graphs_free_pinned(r->given);
    graphs_free_pinned(r->found);
}

/* Whoever frees memory of a device waits for all streams, and calls of others wait for him. */
static void tear_down(rank_context *me, ring *r)
{
    meet(me);
    give_back(r);
    meet(me);
}

static ferry_queue *adopt(rank_context *me, void *stream)
{
    ferry_queue *queue = NULL;
    must(me, ferry_queue_adopt(FERRY_MEMORY_CUDA, 0, stream, &queue, &me->error));
    return queue;
}

static void put_sources(const ring *r, void *stream)
{
    for (size_t t = 0; t < N_TASKS; t++) {
        graphs_copy(stream, r->sources[t].base, r->given + t * BYTES, BYTES);
    }
}

static void put_found(const ring *r, void *stream)
{
    for (size_t t = 0; t < N_TASKS; t++) {
        graphs_copy(stream, r->found + t * BYTES, r->targets[t].base, BYTES);
    }
}

/* From what is given to the sources, a run, and from the targets to what is found. */
static void put_run(rank_context *me, const ring *r, ferry_queue *queue, void *stream)
{
    put_sources(r, stream);
    must(me, ferry_service_run(r->service, queue, &me->error));
    put_found(r, stream);
}

static uint64_t seed_for(const rank_context *me, const ring *r, uint64_t launch, uint32_t rank,
                         size_t task)
{
    return seed_of(me, launch + r->salt, rank, (uint64_t)task);
}

static void give(const rank_context *me, const ring *r, uint64_t launch)
{
    for (size_t t = 0; t < N_TASKS; t++) {
        fill((unsigned char *)r->given + t * BYTES, BYTES, seed_for(me, r, launch, me->rank, t));
    }
}

static void expect_found(rank_context *me, const ring *r, uint64_t launch, const char *what)
{
    for (size_t t = 0; t < N_TASKS; t++) {
        size_t bad = mismatch((unsigned char *)r->found + t * BYTES, BYTES,
                              seed_for(me, r, launch, previous_rank(me), t));
        expect(me, bad == BYTES, "%s, launch %llu: task %zu, byte %zu", what,
               (unsigned long long)launch, t, bad);
    }
}

/* Whatever else of ferry's is asked for meanwhile is refused, and the capture goes on. */
static void expect_refusals(rank_context *me, const ring *r, ferry_queue *queue)
{
    ferry_request *request = NULL;
    ferry_event *event = NULL;
    must_fail(me, FERRY_ERR_UNSUPPORTED, "call ferry_service_run",
              ferry_service_start(r->service, queue, &request, &me->error));
    must_fail(me, FERRY_ERR_UNSUPPORTED, "before the capture",
              ferry_transport_flush(ferry_service_transport(r->service), FERRY_ANY_RANK, queue,
                                    &me->error));
    must(me, ferry_event_create(&event, &me->error));
    must_fail(me, FERRY_ERR_UNSUPPORTED, "before the capture",
              ferry_event_record(event, queue, &me->error));
    ferry_event_destroy(event);
}

static void wait_for_gate(void *context)
{
    while (!atomic_load((_Atomic bool *)context)) {
        sleep_ms(1);
    }
}

/* Meanwhile another stream waits: ferry looks at all of them, and makes no capture fail by that. */
static void *capture(rank_context *me, const ring *r, ferry_queue *queue, void *stream)
{
    enum { LOOKS_MS = 30 };
    _Atomic bool is_open = false;
    void *busy = graphs_new_stream();
    ferry_queue *other = adopt(me, busy);
    must(me, ferry_queue_call(other, wait_for_gate, (void *)&is_open, &me->error));
    graphs_begin(stream, me->rank % 2 == 0 ? GRAPHS_GLOBAL : GRAPHS_RELAXED);
    expect_refusals(me, r, queue);
    sleep_ms(LOOKS_MS);
    bool says = false;
    must(me, ferry_queue_is_captured(queue, &says, &me->error));
    expect(me, says, "a capture that is none");
    put_run(me, r, queue, stream);
    void *graph = graphs_end(stream);
    atomic_store(&is_open, true);
    must(me, ferry_queue_is_captured(queue, &says, &me->error));
    expect(me, !says, "a capture that has no end");
    ferry_queue_destroy(other);
    meet(me); /* ranks that are threads make no capture fail by what they call then */
    graphs_close(busy);
    return graph;
}

/* Ranks come in any order; launches of a rank follow each other without a look at the outcome. */
static void replay(rank_context *me, const ring *r, void *graph, ferry_queue *queue, void *stream)
{
    uint64_t random = me->seed + 31 * me->rank;
    uint64_t before = ferry_service_version(r->service);
    for (uint64_t i = 1; i <= N_LAUNCHES; i++) {
        give(me, r, i);
        memset(r->found, 0, (size_t)N_TASKS * BYTES);
        if (one_in(&random, 5)) {
            sleep_ms(random_below(&random, 4));
        }
        graphs_launch(graph, stream);
        if (one_in(&random, 2)) {
            graphs_synchronize(stream);
        } else {
            must(me, ferry_queue_synchronize(queue, &me->error));
        }
        expect_found(me, r, i, "replayed");
    }
    must(me, ferry_queue_synchronize(queue, &me->error));
    expect(me, ferry_service_version(r->service) == before + N_LAUNCHES, "version %llu",
           (unsigned long long)ferry_service_version(r->service));
}

/* Launches and calls, one behind the other in the stream's order. */
static void mix_with_calls(rank_context *me, const ring *r, void *graph, ferry_queue *queue,
                           void *stream)
{
    give(me, r, 100);
    graphs_launch(graph, stream);
    must(me, ferry_service_run(r->service, queue, &me->error));
    graphs_launch(graph, stream);
    graphs_launch(graph, stream);
    must(me, ferry_queue_synchronize(queue, &me->error));
    expect_found(me, r, 100, "between calls");
}

static bool refuse_progress(void *context, const ferry_progress *progress)
{
    (void)progress;
    return !atomic_exchange((_Atomic bool *)context, false);
}

/* A launch whose run fails ends all the same, and the queue says why, once. */
static void fail_once(rank_context *me, const ring *r, void *graph, ferry_queue *queue,
                      void *stream)
{
    _Atomic bool is_due = me->rank == 0;
    ferry_service_set_progress(r->service, refuse_progress, (void *)&is_due);
    meet(me);
    graphs_launch(graph, stream);
    must_fail(me, FERRY_ERR_ABORTED, "rank 0 cancelled",
              ferry_queue_synchronize(queue, &me->error));
    ferry_service_set_progress(r->service, NULL, NULL);
    meet(me);
    give(me, r, 200);
    graphs_launch(graph, stream);
    must(me, ferry_queue_synchronize(queue, &me->error));
    expect_found(me, r, 200, "behind a failure");
}

static void see_refusal(void *context, ferry_log_level level, const char *line)
{
    bool is_it = level == FERRY_LOG_ERROR && strstr(line, "launched again") != NULL;
    if (is_it) {
        atomic_store((_Atomic bool *)context, true);
    }
}

/*
 * Two copies of a graph: what comes before the other is over fails, and both end. The queue is
 * gone, so that is logged; and a run of one rank alone is not over before the others launch it.
 * Copies are not in it: those of both would go to one place.
 */
static void launch_twice(rank_context *me, const ring *r, void *stream)
{
    void *graphs[2], *second = graphs_stream_apart(stream, r->found);
    ferry_queue *queue = adopt(me, stream), *other = adopt(me, second);
    _Atomic bool is_refused = false;
    give(me, r, 400);
    put_sources(r, stream);
    graphs_synchronize(stream);
    graphs_begin(stream, GRAPHS_RELAXED);
    must(me, ferry_service_run(r->service, queue, &me->error));
    graphs_end_n(stream, 2, graphs);
    ferry_queue_destroy(queue);
    meet_outside(me);
    if (me->rank == 0) {
        ferry_log_configure(FERRY_LOG_ERROR, see_refusal, (void *)&is_refused);
        graphs_launch(graphs[0], stream);
        graphs_launch(graphs[1], second);
        while (!atomic_load(&is_refused)) {
            sleep_ms(1);
        }
        ferry_log_configure(FERRY_LOG_OFF, NULL, NULL);
    }
    meet_outside(me);
    if (me->rank != 0) {
        graphs_launch(graphs[0], stream);
    }
    graphs_synchronize(stream);
    graphs_synchronize(second);
    put_found(r, stream); /* what is not pinned may be read at once */
    graphs_synchronize(stream);
    expect_found(me, r, 400, "launched twice");
    ferry_queue_destroy(other);
    graphs_close(second);
    graphs_free(graphs[0]);
    graphs_free(graphs[1]);
    meet(me);
}

/* The handle of the queue goes, and then the service: the graph stays, and does no harm. */
static void outlive(rank_context *me, ring *r, void *graph, ferry_queue *queue, void *stream)
{
    ferry_queue *other = adopt(me, stream);
    graphs_begin(stream, GRAPHS_RELAXED);
    put_run(me, r, other, stream);
    void *second = graphs_end(stream);
    ferry_queue_destroy(queue);
    give(me, r, 300);
    graphs_launch(graph, stream);
    graphs_synchronize(stream);
    expect_found(me, r, 300, "without its queue");
    meet(me);
    ferry_service_destroy(r->service);
    r->service = NULL;
    graphs_launch(graph, stream);
    graphs_launch(second, stream);
    graphs_synchronize(stream);
    must_fail(me, FERRY_ERR_MISUSE, "which was ended", ferry_queue_synchronize(other, &me->error));
    graphs_free(second);
    ferry_queue_destroy(other);
}

/* Two services of a world, in one graph. */
static void use_two(rank_context *me, ring *r, void *stream)
{
    ring other;
    set_up(me, &other, 1000);
    ferry_queue *queue = adopt(me, stream);
    graphs_begin(stream, GRAPHS_GLOBAL);
    put_run(me, r, queue, stream);
    put_run(me, &other, queue, stream);
    void *graph = graphs_end(stream);
    meet(me);
    for (uint64_t i = 1; i <= 5; i++) {
        give(me, r, i);
        give(me, &other, i);
        graphs_launch(graph, stream);
        must(me, ferry_queue_synchronize(queue, &me->error));
        expect_found(me, r, i, "the first of two");
        expect_found(me, &other, i, "the second of two");
    }
    graphs_free(graph);
    ferry_queue_destroy(queue);
    tear_down(me, &other);
}

/* A rank dies somewhere in the launches of the others: theirs end, and their queues say who. */
void case_captured_killed(rank_context *me)
{
    ring r;
    uint64_t random = me->seed + 41;
    uint32_t victim = random_below(&random, me->n_ranks);
    ferry_status status = FERRY_OK;
    if (!is_shown()) {
        return;
    }
    void *stream = graphs_open_stream();
    set_up(me, &r, 0);
    ferry_queue *queue = adopt(me, stream);
    void *graph = capture(me, &r, queue, stream);
    meet_outside(me);
    if (me->rank == victim) {
        end_later(me, dice(&random, 200, 40000), false);
    }
    for (uint64_t i = 1; status == FERRY_OK; i++) {
        give(me, &r, i);
        graphs_launch(graph, stream);
        status = ferry_queue_synchronize(queue, &me->error);
    }
    expect_named(me, victim);
    graphs_launch(graph, stream);
    graphs_synchronize(stream);
    must_fail(me, FERRY_ERR_PEER_LOST, NULL, ferry_queue_synchronize(queue, &me->error));
    graphs_free(graph);
    ferry_queue_destroy(queue);
    give_back(&r);
    graphs_close_stream(stream);
}

void case_captured(rank_context *me)
{
    ring r;
    if (!is_shown()) {
        return;
    }
    void *stream = graphs_open_stream();
    set_up(me, &r, 0);
    ferry_queue *queue = adopt(me, stream);
    void *graph = capture(me, &r, queue, stream);
    replay(me, &r, graph, queue, stream);
    mix_with_calls(me, &r, graph, queue, stream);
    fail_once(me, &r, graph, queue, stream);
    use_two(me, &r, stream);
    if (!me->engine->threads) { /* each rank has its own channels */
        launch_twice(me, &r, stream);
    }
    outlive(me, &r, graph, queue, stream);
    graphs_free(graph);
    tear_down(me, &r);
    graphs_close_stream(stream);
}
