/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on a stream of the caller's: those that a CUDA graph has, and makes anew at each launch,
 * and those that kernels make in the stream's order. Elsewhere there is nothing to show.
 */
#include "collective/suite.h"

#include "support/devices.h"
#include "support/graphs.h"

#include <pthread.h>

enum { MOST_TAPED = 5, N_LAUNCHES = 12, MOST_ELEMENTS = 3000 };

/* A call on the stream: what its tensors hold comes from pinned memory, and goes there. */
typedef struct taped {
    call what;
    ferry_buffer in, out; /* of the tape's device */
    ferry_mixed_tensor in_there, out_there;
    char *given, *found;
} taped;

typedef struct tape {
    scene c;
    int32_t device;
    void *stream;
    ferry_queue *queue;
    bool has_had_graph;
    taped calls[MOST_TAPED];
    uint32_t n;
} tape;

/* Streams of all ranks wait at once, each in a channel; the stand-in may have two. */
static bool is_shown(void)
{
    return device_kind() == FERRY_MEMORY_CUDA &&
           (device_is_real() || getenv("STANDIN_CHANNELS") != NULL);
}

static ferry_mixed_tensor put_there(const tape *t, const ferry_mixed_tensor *here,
                                    ferry_buffer *there)
{
    rank_context *me = t->c.me;
    ferry_mixed_tensor tensor = *here;
    must(me, ferry_memory_alloc(NULL, FERRY_MEMORY_CUDA, t->device, here->buffer.bytes, there,
                                &me->error));
    tensor.buffer = *there;
    return tensor;
}

static void draw_taped(tape *t, taped *one, uint64_t *random)
{
    one->what = draw_call(&t->c, random, MOST_ELEMENTS);
    one->what.form = FORM_RUN;
    one->what.in_place = false;
    tensors here = scene_tensors(&t->c, &one->what);
    one->in_there = put_there(t, &here.in, &one->in);
    one->out_there = put_there(t, &here.out, &one->out);
    one->given = graphs_pinned(here.in.buffer.bytes);
    one->found = graphs_pinned(here.out.buffer.bytes);
}

static void set_up(rank_context *me, tape *t, int32_t device, uint64_t *random)
{
    shape s = draw_shape(random, me->n_ranks);
    ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(random), random);
    *t = (tape){.n = dice(random, 1, MOST_TAPED), .device = device};
    options.deterministic = one_in(random, 3);
    scene_open(&t->c, me, &s, &options);
    graphs_enter(device);
    t->stream = graphs_new_stream();
    must(me, ferry_queue_adopt(FERRY_MEMORY_CUDA, device, t->stream, &t->queue, &me->error));
    for (uint32_t i = 0; i < t->n; i++) {
        draw_taped(t, &t->calls[i], random);
    }
}

static void tear_down(tape *t)
{
    ferry_queue_destroy(t->queue);
    for (uint32_t i = 0; i < t->n; i++) {
        ferry_memory_free(&t->calls[i].in);
        ferry_memory_free(&t->calls[i].out);
        graphs_free_pinned(t->calls[i].given);
        graphs_free_pinned(t->calls[i].found);
    }
    graphs_close(t->stream);
    graphs_leave(t->device);
}

/* A graph's calls have no requests: that is refused, and the capture goes on. */
static void expect_refusal(const tape *t)
{
    const taped *one = &t->calls[0];
    rank_context *me = t->c.me;
    ferry_request *request = NULL;
    must_fail(me, FERRY_ERR_UNSUPPORTED, "call run",
              ferry_mixed_comm_start(t->c.comm, one->what.op, &one->in_there, &one->out_there,
                                     one->what.mode, t->queue, &request, &me->error));
}

/* The first n calls. */
static void *capture(const tape *t, uint32_t n)
{
    rank_context *me = t->c.me;
    meet(me); /* ranks that are threads make no capture fail by what they call then */
    graphs_begin(t->stream, me->rank % 2 == 0 ? GRAPHS_GLOBAL : GRAPHS_RELAXED);
    expect_refusal(t);
    for (uint32_t i = 0; i < n; i++) {
        const taped *one = &t->calls[i];
        graphs_copy(t->stream, one->in.base, one->given, one->in.bytes);
        must(me, ferry_mixed_comm_run(t->c.comm, one->what.op, &one->in_there, &one->out_there,
                                      one->what.mode, t->queue, &me->error));
        graphs_copy(t->stream, one->found, one->out.base, one->out.bytes);
    }
    void *graph = graphs_end(t->stream);
    meet(me);
    return graph;
}

static void give(tape *t, uint64_t launch)
{
    for (uint32_t i = 0; i < t->n; i++) {
        taped *one = &t->calls[i];
        one->what.seed += launch;
        tensors here = scene_tensors(&t->c, &one->what);
        memcpy(one->given, here.in.buffer.base, one->in.bytes);
        memset(one->found, 0xc3, one->out.bytes);
    }
}

static void check_found(tape *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        const taped *one = &t->calls[i];
        tensors here = scene_tensors(&t->c, &one->what);
        memcpy(here.out.buffer.base, one->found, one->out.bytes);
        scene_check(&t->c, &one->what, &here);
    }
}

/* Ranks come in any order; launches follow each other, and calls that no graph has come between. */
static void replay(tape *t, void *graph, uint64_t *random)
{
    rank_context *me = t->c.me;
    for (uint64_t launch = 1; launch <= N_LAUNCHES; launch++) {
        bool twice = one_in(random, 4), calls = one_in(random, 3);
        give(t, launch);
        if (one_in(&me->random, 4)) {
            sleep_ms(random_below(&me->random, 4));
        }
        graphs_launch(graph, t->stream);
        if (twice) {
            graphs_launch(graph, t->stream);
        }
        must(me, ferry_queue_synchronize(t->queue, &me->error));
        check_found(t);
        if (calls) {
            call what = draw_call(&t->c, random, MOST_ELEMENTS);
            scene_call(&t->c, &what);
        }
    }
    scene_compare(&t->c);
}

/* The handle goes: the graph stays, ends when it is launched, and its queue says why. */
static void outlive(tape *t, void *graph)
{
    rank_context *me = t->c.me;
    scene_close(&t->c);
    meet(me);
    graphs_launch(graph, t->stream);
    graphs_synchronize(t->stream);
    must_fail(me, FERRY_ERR_MISUSE, "which was ended",
              ferry_queue_synchronize(t->queue, &me->error));
    graphs_free(graph);
    meet(me);
}

void case_captured(rank_context *me)
{
    uint64_t random = seed_of(me, 41, me->n_ranks, 0);
    for (uint32_t round = 0; is_shown() && round < times_of(me, 3, 40); round++) {
        tape t;
        set_up(me, &t, 0, &random);
        void *graph = capture(&t, t.n);
        replay(&t, graph, &random);
        outlive(&t, graph);
        tear_down(&t);
        meet(me);
    }
}

/*
 * Ahead of the host
 */

/* Now and then another way for a call of the tape, which waits for the host: then false. */
static bool run_taped(const tape *t, const taped *one, uint64_t *random)
{
    rank_context *me = t->c.me;
    ferry_mixed_tensor in = one->in_there;
    bool is_far = !one_in(random, 6), asks = one_in(random, 6);
    if (is_far) {
        graphs_copy(t->stream, one->in.base, one->given, one->in.bytes);
    } else {
        in.buffer = ferry_buffer_of(one->given, one->in.bytes);
    }
    if (asks) {
        ferry_request *request = NULL;
        must(me, ferry_mixed_comm_start(t->c.comm, one->what.op, &in, &one->out_there,
                                        one->what.mode, t->queue, &request, &me->error));
        must(me, ferry_request_wait(request, &me->error));
        ferry_request_destroy(request);
    } else {
        must(me, ferry_mixed_comm_run(t->c.comm, one->what.op, &in, &one->out_there, one->what.mode,
                                      t->queue, &me->error));
    }
    graphs_copy(t->stream, one->found, one->out.base, one->out.bytes);
    return is_far;
}

/* The stream waits for the word to be `value`, which it is when many calls lie behind that. */
static void shut(void *stream, _Atomic uint64_t *word, uint64_t value)
{
    driver_must("cuStreamWaitValue64_v2", (uintptr_t)stream, (uintptr_t)word, value, 0);
}

static void open_late(_Atomic uint64_t *word, uint64_t value)
{
    sleep_ms(20);
    atomic_store(word, value);
}

static uint64_t count_ahead(const tape *t)
{
    rank_context *me = t->c.me;
    ferry_mixed_counts counts = FERRY_MIXED_COUNTS_INIT;
    must(me, ferry_mixed_comm_get_counts(t->c.comm, &counts, &me->error));
    return counts.n_ahead;
}

/*
 * Who has waited for the stream alone, as CUDA's own calls do, may use the handle at once. Behind a
 * launch of a graph that has the first call, where there is one, nothing goes ahead; when the graph
 * is gone, which takes a while, calls do again.
 */
static void run_ahead(tape *t, void **graph, uint64_t launch, uint64_t *shared, uint64_t *own)
{
    rank_context *me = t->c.me;
    uint64_t n = 0, before = count_ahead(t);
    bool has_graph = *graph != NULL, ends = has_graph && launch >= N_LAUNCHES / 2;
    give(t, launch);
    if (has_graph) {
        graphs_launch(*graph, t->stream);
    }
    if (ends) { /* it goes when the launch is over: calls that are asked for until then wait */
        graphs_free(*graph);
        *graph = NULL;
    }
    for (uint32_t i = 0; i < t->n; i++) {
        if (one_in(own, 4)) {
            sleep_ms(random_below(own, 4));
        }
        n += run_taped(t, &t->calls[i], own) && (!has_graph || ends);
    }
    if (one_in(own, 2)) {
        graphs_synchronize(t->stream);
    } else {
        must(me, ferry_queue_synchronize(t->queue, &me->error));
    }
    uint64_t found = count_ahead(t) - before;
    expect(me, found == n || (t->has_had_graph && found < n),
           "%s: %llu calls went ahead, and not %llu", t->c.name, (unsigned long long)found,
           (unsigned long long)n);
    check_found(t);
    if (one_in(shared, 3)) {
        call what = draw_call(&t->c, shared, MOST_ELEMENTS);
        scene_call(&t->c, &what);
    }
}

void case_ahead(rank_context *me)
{
    uint64_t random = seed_of(me, 42, me->n_ranks, 0);
    for (uint32_t round = 0; is_shown() && round < times_of(me, 3, 40); round++) {
        tape t;
        set_up(me, &t, device_number((int32_t)me->rank), &random);
        void *graph = one_in(&random, 2) ? capture(&t, 1) : NULL;
        t.has_had_graph = graph != NULL;
        for (uint64_t launch = 1; launch <= N_LAUNCHES; launch++) {
            run_ahead(&t, &graph, launch, &random, &me->random);
        }
        scene_close(&t.c);
        tear_down(&t);
        meet(me);
    }
}

/* Four times for the same call, of which rank 1 asks for another one. */
static void ask_differently(const tape *t, const taped *one, uint32_t which)
{
    rank_context *me = t->c.me;
    for (uint32_t i = 0; i < 4; i++) {
        ferry_mixed_tensor in = one->in_there, out = one->out_there;
        if (me->rank == 1 && i == which) {
            in.columns = out.columns = 1;
            in.buffer.bytes = in.buffer.bytes / one->in_there.columns;
            out.buffer.bytes = out.buffer.bytes / one->out_there.columns;
        }
        ferry_status status = ferry_mixed_comm_run(t->c.comm, one->what.op, &in, &out,
                                                   one->what.mode, t->queue, &me->error);
        expect(me, status == FERRY_OK || i > which, "call %u: %s", i, me->error.message);
    }
}

/*
 * Ranks that make different calls hear of it, whatever lies behind these on their streams, which
 * end. A rank that has asked for nothing wrong may have seen all of its calls through. All of them
 * come to the device at once, so that who looks on at the first one finds the others ended: it is
 * the one that differs which is named, and not the one that is looked at.
 */
void case_ahead_differs(rank_context *me)
{
    uint64_t random = seed_of(me, 43, me->n_ranks, 0);
    for (uint32_t round = 0; is_shown() && round < times_of(me, 4, 20); round++) {
        tape t;
        set_up(me, &t, device_number((int32_t)me->rank), &random);
        _Atomic uint64_t *word = graphs_pinned(sizeof *word);
        atomic_store(word, 0);
        const taped *one = &t.calls[0];
        while (one->what.columns == 1) { /* nothing to differ in */
            scene_close(&t.c);
            tear_down(&t);
            set_up(me, &t, device_number((int32_t)me->rank), &random);
        }
        give(&t, 1);
        graphs_copy(t.stream, one->in.base, one->given, one->in.bytes);
        shut(t.stream, word, 1);
        const uint32_t which = round % 2 == 0 ? 3 : 1; /* the last one, or with others behind it */
        ask_differently(&t, one, which);
        open_late(word, 1);
        must_fail(me, FERRY_ERR_MISUSE, "the same calls",
                  ferry_queue_synchronize(t.queue, &me->error));
        expect(me, strstr(me->error.message, "went on without") == NULL, "%s", me->error.message);
        graphs_synchronize(t.stream);
        graphs_free_pinned(word);
        scene_drop(&t.c);
        tear_down(&t);
        meet(me);
    }
}

/* One rank lives and does not call any more: the other one hears of it, and its stream goes on. */
void case_ahead_idle(rank_context *me)
{
    uint64_t random = seed_of(me, 44, me->n_ranks, 0);
    const uint32_t n_calls = me->rank == 1 ? 2 : 4;
    tape t;
    if (!is_shown()) {
        return;
    }
    set_up(me, &t, device_number((int32_t)me->rank), &random);
    const taped *one = &t.calls[0];
    give(&t, 1);
    graphs_copy(t.stream, one->in.base, one->given, one->in.bytes);
    for (uint32_t i = 0; i < n_calls; i++) {
        must(me, ferry_mixed_comm_run(t.c.comm, one->what.op, &one->in_there, &one->out_there,
                                      one->what.mode, t.queue, &me->error));
    }
    if (me->rank == 0) {
        must_fail(me, FERRY_ERR_TIMEOUT, "rank 1", ferry_queue_synchronize(t.queue, &me->error));
        graphs_synchronize(t.stream);
    } else {
        must(me, ferry_queue_synchronize(t.queue, &me->error));
    }
    meet_outside(me);
    scene_drop(&t.c);
    tear_down(&t);
}

static void launch_one(const tape *t, const taped *one, void *stream, ferry_queue *queue)
{
    rank_context *me = t->c.me;
    graphs_copy(stream, one->in.base, one->given, one->in.bytes);
    must(me, ferry_mixed_comm_run(t->c.comm, one->what.op, &one->in_there, &one->out_there,
                                  one->what.mode, queue, &me->error));
    graphs_copy(stream, one->found, one->out.base, one->out.bytes);
}

/* A handle goes from stream to stream: who has waited for the one may use the other at once. */
void case_ahead_streams(rank_context *me)
{
    uint64_t random = seed_of(me, 45, me->n_ranks, 0);
    for (uint32_t round = 0; is_shown() && round < times_of(me, 2, 20); round++) {
        tape t;
        set_up(me, &t, device_number((int32_t)me->rank), &random);
        void *streams[] = {t.stream, graphs_new_stream()};
        ferry_queue *queues[] = {t.queue, NULL};
        must(me,
             ferry_queue_adopt(FERRY_MEMORY_CUDA, t.device, streams[1], &queues[1], &me->error));
        for (uint64_t launch = 1; launch <= 4 * N_LAUNCHES; launch++) {
            give(&t, launch);
            for (uint32_t i = 0; i < t.n; i++) {
                launch_one(&t, &t.calls[i], streams[launch % 2], queues[launch % 2]);
            }
            graphs_synchronize(streams[launch % 2]);
            check_found(&t);
        }
        ferry_queue_destroy(queues[1]);
        graphs_close(streams[1]);
        scene_close(&t.c);
        tear_down(&t);
        meet(me);
    }
}

/* What is counted is whole once the stream was waited for, and what is reset is 0. */
void case_ahead_counts(rank_context *me)
{
    uint64_t random = seed_of(me, 46, me->n_ranks, 0);
    tape t;
    if (!is_shown()) {
        return;
    }
    set_up(me, &t, device_number((int32_t)me->rank), &random);
    for (uint64_t launch = 1; launch <= 10 * N_LAUNCHES; launch++) {
        ferry_mixed_counts counts = FERRY_MIXED_COUNTS_INIT;
        bool is_reset = launch % 2 == 0;
        must(me, ferry_mixed_comm_reset_counts(t.c.comm, &me->error));
        give(&t, launch);
        launch_one(&t, &t.calls[0], t.stream, t.queue);
        graphs_synchronize(t.stream);
        if (is_reset) {
            must(me, ferry_mixed_comm_reset_counts(t.c.comm, &me->error));
        }
        must(me, ferry_mixed_comm_get_counts(t.c.comm, &counts, &me->error));
        expect(me, counts.n_calls == !is_reset && counts.n_ahead == !is_reset,
               "%llu calls, %llu ahead", (unsigned long long)counts.n_calls,
               (unsigned long long)counts.n_ahead);
    }
    scene_close(&t.c);
    tear_down(&t);
    meet(me);
}

/*
 * A graph has calls of one handle, and behind its launch come those of another one on the same
 * queue: whose thread makes both, and waits for nothing that lies behind a launch.
 */
static void run_beside(tape *t, void *graph, _Atomic uint64_t *word, uint64_t launch)
{
    rank_context *me = t[0].c.me;
    uint64_t before = count_ahead(&t[1]);
    for (int i = 0; i < 2; i++) {
        give(&t[i], launch);
    }
    shut(t[0].stream, word, launch);
    if (graph != NULL) {
        graphs_launch(graph, t[0].stream);
    }
    for (uint32_t i = 0; i < t[1].n; i++) {
        launch_one(&t[1], &t[1].calls[i], t[0].stream, t[0].queue);
    }
    open_late(word, launch);
    must(me, ferry_queue_synchronize(t[0].queue, &me->error));
    expect(me, count_ahead(&t[1]) - before == (graph != NULL ? 0 : t[1].n), "calls went ahead");
    check_found(&t[1]);
    if (graph != NULL) {
        check_found(&t[0]);
    }
}

void case_ahead_beside(rank_context *me)
{
    uint64_t random = seed_of(me, 47, me->n_ranks, 0);
    tape t[2];
    if (!is_shown()) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        set_up(me, &t[i], device_number((int32_t)me->rank), &random);
    }
    _Atomic uint64_t *word = graphs_pinned(sizeof *word);
    atomic_store(word, 0);
    run_beside(t, NULL, word, 1);
    void *graph = capture(&t[0], t[0].n);
    for (uint64_t launch = 2; launch <= 4; launch++) {
        run_beside(t, graph, word, launch);
    }
    graphs_free(graph);
    graphs_free_pinned(word);
    for (int i = 0; i < 2; i++) {
        scene_close(&t[i].c);
        tear_down(&t[i]);
    }
    meet(me);
}

/*
 * Ends
 */

typedef struct asker {
    const tape *t;
    const taped *one;
} asker;

static void *ask_often(void *context)
{
    const asker *a = context;
    const tape *t = a->t;
    ferry_error error;
    for (int i = 0; i < N_LAUNCHES; i++) {
        ferry_status status =
            ferry_mixed_comm_run(t->c.comm, a->one->what.op, &a->one->in_there, &a->one->out_there,
                                 a->one->what.mode, t->queue, &error);
        if (status != FERRY_OK) {
            fprintf(stderr, "%s\n", error.message);
            abort();
        }
    }
    return NULL;
}

/* Threads that ask at once for the same call: each call has a number, and its kernel that one. */
static void ask_at_once(tape *t)
{
    enum { N_THREADS = 3 };
    pthread_t threads[N_THREADS];
    asker a = {t, &t->calls[0]};
    for (int i = 0; i < N_THREADS; i++) {
        pthread_create(&threads[i], NULL, ask_often, &a);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void cancel_one(tape *t, bool is_victim)
{
    rank_context *me = t->c.me;
    const taped *one = &t->calls[0];
    ferry_request *requests[4] = {NULL};
    ferry_status status = FERRY_OK;
    for (int i = 0; i < 4 && status == FERRY_OK; i++) {
        status = ferry_mixed_comm_start(t->c.comm, one->what.op, &one->in_there, &one->out_there,
                                        one->what.mode, t->queue, &requests[i], &me->error);
    }
    if (is_victim && requests[2] != NULL) {
        ferry_request_cancel(requests[2]);
    }
    for (int i = 0; i < 4; i++) {
        status =
            requests[i] == NULL ? FERRY_ERR_ABORTED : ferry_request_wait(requests[i], &me->error);
        expect(me, status == FERRY_OK || status == FERRY_ERR_ABORTED, "%s: %s",
               ferry_status_name(status), me->error.message);
        ferry_request_destroy(requests[i]);
    }
    graphs_synchronize(t->stream);
    (void)ferry_queue_synchronize(t->queue, &me->error);
}

typedef enum way { WAY_QUEUE, WAY_HANDLE, WAY_STREAM, WAY_CANCEL, WAY_THREADS, N_WAYS } way;

/* What is under way ends, and the handle is gone. */
static void end_by(tape *t, way how)
{
    if (how == WAY_QUEUE) {
        ferry_queue_destroy(t->queue);
        t->queue = NULL;
    } else if (how == WAY_STREAM || how == WAY_THREADS) {
        graphs_synchronize(t->stream);
    }
    if (how == WAY_HANDLE || how == WAY_CANCEL) {
        scene_drop(&t->c);
    } else {
        check_found(t);
        scene_close(&t->c);
    }
}

/* Calls are under way when the queue goes, the handle, or a request is cancelled. */
void case_ahead_ends(rank_context *me)
{
    uint64_t random = seed_of(me, 48, me->n_ranks, 0);
    for (uint32_t round = 0; is_shown() && round < times_of(me, 2, 20) * N_WAYS; round++) {
        way how = (way)(round % N_WAYS);
        tape t;
        set_up(me, &t, device_number((int32_t)me->rank), &random);
        give(&t, 1);
        if (how == WAY_THREADS) {
            ask_at_once(&t);
        } else if (how == WAY_CANCEL) {
            cancel_one(&t, me->rank == round / N_WAYS % me->n_ranks);
        }
        for (uint32_t i = 0; i < t.n && how != WAY_CANCEL; i++) {
            launch_one(&t, &t.calls[i], t.stream, t.queue);
        }
        end_by(&t, how);
        tear_down(&t);
        meet(me);
    }
}

/*
 * A rank dies while it and others have calls on their streams: the others hear whom they lost, and
 * their streams go on.
 */
void case_ahead_killed(rank_context *me)
{
    uint64_t random = seed_of(me, 49, me->n_ranks, 0);
    uint32_t victim = random_below(&random, me->n_ranks), us = dice(&random, 200, 30000);
    ferry_status status = FERRY_OK;
    tape t;
    if (!is_shown()) {
        return;
    }
    set_up(me, &t, device_number((int32_t)me->rank), &random);
    give(&t, 1);
    meet_outside(me);
    if (me->rank == victim) {
        end_later(me, us, false);
    }
    for (uint32_t i = 0; status == FERRY_OK; i++) {
        const taped *one = &t.calls[i % t.n];
        graphs_copy(t.stream, one->in.base, one->given, one->in.bytes);
        status = ferry_mixed_comm_run(t.c.comm, one->what.op, &one->in_there, &one->out_there,
                                      one->what.mode, t.queue, &me->error);
        if (status == FERRY_OK && i % 50 == 49) {
            status = ferry_queue_synchronize(t.queue, &me->error);
        }
    }
    expect(me, status == FERRY_ERR_PEER_LOST, "%s: %.400s", ferry_status_name(status),
           me->error.message);
    expect_named(me, victim);
    graphs_synchronize(t.stream);
    scene_drop(&t.c);
    tear_down(&t);
}

/*
 * The device takes a kernel and not what says that it is over: the call is refused, and its stream
 * goes on, though nobody comes to that call.
 */
void case_ahead_fails(rank_context *me)
{
    uint64_t random = seed_of(me, 50, me->n_ranks, 0);
    int64_t begin_ns = now_ns();
    char which[64];
    tape t;
    if (!is_shown() || device_is_real()) {
        return;
    }
    set_up(me, &t, device_number((int32_t)me->rank), &random);
    const taped *one = &t.calls[0];
    snprintf(which, sizeof which, "cuStreamWriteValue64:%u", dice(&random, 1, 2));
    if (me->rank == 1) {
        setenv("STANDIN_FAIL", which, 1);
        must_fail(me, FERRY_ERR_NO_MEMORY, "letting a stream write a word",
                  ferry_mixed_comm_run(t.c.comm, one->what.op, &one->in_there, &one->out_there,
                                       one->what.mode, t.queue, &me->error));
        graphs_synchronize(t.stream);
        must_fail(me, FERRY_ERR_NO_MEMORY, "letting a stream write a word",
                  ferry_queue_synchronize(t.queue, &me->error));
        expect(me, now_ns() - begin_ns < INT64_C(10000000000), "the stream was held up");
    }
    meet_outside(me);
    scene_drop(&t.c);
    tear_down(&t);
}
