/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on a stream of the caller's that kernels make in the stream's order, ahead of the host.
 * Elsewhere there is nothing to show.
 */
#include "collective/tape.h"

#include <pthread.h>

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

/*
 * Who has waited for the stream alone, as CUDA's own calls do, may use the handle at once. Before
 * the calls comes a launch of a graph that has the first one, where there is one; it goes when the
 * launch is over.
 */
static void run_ahead(tape *t, void **graph, uint64_t launch, uint64_t *shared, uint64_t *own)
{
    rank_context *me = t->c.me;
    uint64_t n = *graph != NULL, before = tape_count_ahead(t);
    bool has_graph = *graph != NULL, ends = has_graph && launch >= N_LAUNCHES / 2;
    tape_give(t, launch);
    if (has_graph) {
        graphs_launch(*graph, t->stream);
    }
    if (ends) {
        graphs_free(*graph);
        *graph = NULL;
    }
    for (uint32_t i = 0; i < t->n; i++) {
        if (one_in(own, 4)) {
            sleep_ms(random_below(own, 4));
        }
        n += run_taped(t, &t->calls[i], own);
    }
    if (one_in(own, 2)) {
        graphs_synchronize(t->stream);
    } else {
        must(me, ferry_queue_synchronize(t->queue, &me->error));
    }
    uint64_t found = tape_count_ahead(t) - before;
    expect(me, found == n, "%s: %llu calls went ahead, and not %llu", t->c.name,
           (unsigned long long)found, (unsigned long long)n);
    tape_check(t);
    if (one_in(shared, 3)) {
        call what = draw_call(&t->c, shared, MOST_ELEMENTS);
        scene_call(&t->c, &what);
    }
}

void case_ahead(rank_context *me)
{
    uint64_t random = seed_of(me, 42, me->n_ranks, 0);
    for (uint32_t round = 0; tape_is_shown() && round < times_of(me, 3, 40); round++) {
        tape t;
        tape_open(me, &t, device_number((int32_t)me->rank), &random);
        uint32_t n;
        void *graph = one_in(&random, 2) ? tape_capture(&t, 1, 0, &n) : NULL;
        for (uint64_t launch = 1; launch <= N_LAUNCHES; launch++) {
            run_ahead(&t, &graph, launch, &random, &me->random);
        }
        scene_close(&t.c);
        tape_close(&t);
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
    for (uint32_t round = 0; tape_is_shown() && round < times_of(me, 4, 20); round++) {
        tape t;
        tape_open(me, &t, device_number((int32_t)me->rank), &random);
        _Atomic uint64_t *word = graphs_pinned(sizeof *word);
        atomic_store(word, 0);
        const taped *one = &t.calls[0];
        while (one->what.columns == 1) { /* nothing to differ in */
            scene_close(&t.c);
            tape_close(&t);
            tape_open(me, &t, device_number((int32_t)me->rank), &random);
        }
        tape_give(&t, 1);
        graphs_copy(t.stream, one->in.base, one->given, one->in.bytes);
        tape_shut(t.stream, word, 1);
        const uint32_t which = round % 2 == 0 ? 3 : 1; /* the last one, or with others behind it */
        ask_differently(&t, one, which);
        tape_open_late(word, 1);
        must_fail(me, FERRY_ERR_MISUSE, "the same calls",
                  ferry_queue_synchronize(t.queue, &me->error));
        expect(me, strstr(me->error.message, "went on without") == NULL, "%.400s",
               me->error.message);
        graphs_synchronize(t.stream);
        graphs_free_pinned(word);
        scene_drop(&t.c);
        tape_close(&t);
        meet(me);
    }
}

/* One rank lives and does not call any more: the other one hears of it, and its stream goes on. */
void case_ahead_idle(rank_context *me)
{
    uint64_t random = seed_of(me, 44, me->n_ranks, 0);
    const uint32_t n_calls = me->rank == 1 ? 2 : 4;
    tape t;
    if (!tape_is_shown()) {
        return;
    }
    tape_open(me, &t, device_number((int32_t)me->rank), &random);
    const taped *one = &t.calls[0];
    tape_give(&t, 1);
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
    tape_close(&t);
}

/* A handle goes from stream to stream: who has waited for the one may use the other at once. */
void case_ahead_streams(rank_context *me)
{
    uint64_t random = seed_of(me, 45, me->n_ranks, 0);
    for (uint32_t round = 0; tape_is_shown() && round < times_of(me, 2, 20); round++) {
        tape t;
        tape_open(me, &t, device_number((int32_t)me->rank), &random);
        void *streams[] = {t.stream, graphs_new_stream()};
        ferry_queue *queues[] = {t.queue, NULL};
        must(me,
             ferry_queue_adopt(FERRY_MEMORY_CUDA, t.device, streams[1], &queues[1], &me->error));
        for (uint64_t launch = 1; launch <= 4 * N_LAUNCHES; launch++) {
            tape_give(&t, launch);
            for (uint32_t i = 0; i < t.n; i++) {
                tape_launch(&t, &t.calls[i], streams[launch % 2], queues[launch % 2]);
            }
            graphs_synchronize(streams[launch % 2]);
            tape_check(&t);
        }
        ferry_queue_destroy(queues[1]);
        graphs_close(streams[1]);
        scene_close(&t.c);
        tape_close(&t);
        meet(me);
    }
}

/* What is counted is whole once the stream was waited for, and what is reset is 0. */
void case_ahead_counts(rank_context *me)
{
    uint64_t random = seed_of(me, 46, me->n_ranks, 0);
    tape t;
    if (!tape_is_shown()) {
        return;
    }
    tape_open(me, &t, device_number((int32_t)me->rank), &random);
    for (uint64_t launch = 1; launch <= 10 * N_LAUNCHES; launch++) {
        ferry_mixed_counts counts = FERRY_MIXED_COUNTS_INIT;
        bool is_reset = launch % 2 == 0;
        must(me, ferry_mixed_comm_reset_counts(t.c.comm, &me->error));
        tape_give(&t, launch);
        tape_launch(&t, &t.calls[0], t.stream, t.queue);
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
    tape_close(&t);
    meet(me);
}

/*
 * A graph has calls of one handle, and behind its launch come those of another one on the same
 * queue, whose thread makes all that are the host's, and waits for nothing that lies behind a
 * launch: if the graph has any of those, nothing goes ahead on this queue.
 */
static void run_beside(tape *t, void *graph, bool may_go, _Atomic uint64_t *word, uint64_t launch)
{
    rank_context *me = t[0].c.me;
    uint64_t before = tape_count_ahead(&t[1]);
    for (int i = 0; i < 2; i++) {
        tape_give(&t[i], launch);
    }
    tape_shut(t[0].stream, word, launch);
    if (graph != NULL) {
        graphs_launch(graph, t[0].stream);
    }
    for (uint32_t i = 0; i < t[1].n; i++) {
        tape_launch(&t[1], &t[1].calls[i], t[0].stream, t[0].queue);
    }
    tape_open_late(word, launch);
    must(me, ferry_queue_synchronize(t[0].queue, &me->error));
    expect(me, tape_count_ahead(&t[1]) - before == (may_go ? t[1].n : 0), "calls went ahead");
    tape_check(&t[1]);
    if (graph != NULL) {
        tape_check(&t[0]);
    }
}

void case_ahead_beside(rank_context *me)
{
    uint64_t random = seed_of(me, 47, me->n_ranks, 0);
    tape t[2];
    if (!tape_is_shown()) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        tape_open(me, &t[i], device_number((int32_t)me->rank), &random);
    }
    _Atomic uint64_t *word = graphs_pinned(sizeof *word);
    atomic_store(word, 0);
    run_beside(t, NULL, true, word, 1);
    for (uint64_t launch = 2; launch <= 13; launch += 3) {
        uint32_t by_kernel = 0;
        void *graph = tape_capture(&t[0], t[0].n, 4, &by_kernel);
        for (uint64_t i = 0; i < 3; i++) {
            run_beside(t, graph, by_kernel == t[0].n, word, launch + i);
        }
        graphs_free(graph);
    }
    graphs_free_pinned(word);
    for (int i = 0; i < 2; i++) {
        scene_close(&t[i].c);
        tape_close(&t[i]);
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
        expect(me, status == FERRY_OK || status == FERRY_ERR_ABORTED, "%s: %.400s",
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
        tape_check(t);
        scene_close(&t->c);
    }
}

/* Calls are under way when the queue goes, the handle, or a request is cancelled. */
void case_ahead_ends(rank_context *me)
{
    uint64_t random = seed_of(me, 48, me->n_ranks, 0);
    for (uint32_t round = 0; tape_is_shown() && round < times_of(me, 2, 20) * N_WAYS; round++) {
        way how = (way)(round % N_WAYS);
        tape t;
        tape_open(me, &t, device_number((int32_t)me->rank), &random);
        tape_give(&t, 1);
        if (how == WAY_THREADS) {
            ask_at_once(&t);
        } else if (how == WAY_CANCEL) {
            cancel_one(&t, me->rank == round / N_WAYS % me->n_ranks);
        }
        for (uint32_t i = 0; i < t.n && how != WAY_CANCEL; i++) {
            tape_launch(&t, &t.calls[i], t.stream, t.queue);
        }
        end_by(&t, how);
        tape_close(&t);
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
    if (!tape_is_shown()) {
        return;
    }
    tape_open(me, &t, device_number((int32_t)me->rank), &random);
    tape_give(&t, 1);
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
    tape_close(&t);
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
    if (!tape_is_shown() || device_is_real()) {
        return;
    }
    tape_open(me, &t, device_number((int32_t)me->rank), &random);
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
    tape_close(&t);
}
