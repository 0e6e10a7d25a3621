/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that a CUDA graph has, and makes anew at each launch: as kernels alone, or with the host's
 * functions around them. Elsewhere there is nothing to show.
 */
#include "collective/tape.h"

#include <signal.h>

/* Ranks come in any order; launches follow each other, and calls that no graph has come between. */
static void replay(tape *t, void *graph, uint64_t *random)
{
    rank_context *me = t->c.me;
    for (uint64_t launch = 1; launch <= N_LAUNCHES; launch++) {
        bool twice = one_in(random, 4), calls = one_in(random, 3);
        tape_give(t, launch);
        if (one_in(&me->random, 4)) {
            sleep_ms(random_below(&me->random, 4));
        }
        graphs_launch(graph, t->stream);
        if (twice) {
            graphs_launch(graph, t->stream);
        }
        must(me, ferry_queue_synchronize(t->queue, &me->error));
        tape_check(t);
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
    for (int i = 0; i < 2; i++) {
        graphs_launch(graph, t->stream);
        graphs_synchronize(t->stream);
        must_fail(me, FERRY_ERR_MISUSE, "which was ended",
                  ferry_queue_synchronize(t->queue, &me->error));
    }
    graphs_free(graph);
    meet(me);
}

/* On one device, which ranks that are threads share, and on devices of their own. */
void case_captured(rank_context *me)
{
    uint64_t random = seed_of(me, 41, me->n_ranks, 0);
    for (uint32_t round = 0; tape_is_shown() && round < times_of(me, 4, 40); round++) {
        uint32_t by_kernel;
        tape t;
        tape_open(me, &t, round % 2 == 0 ? 0 : device_number((int32_t)me->rank), &random);
        void *graph = tape_capture(&t, t.n, round % 4 > 1 ? 4 : 0, &by_kernel);
        replay(&t, graph, &random);
        outlive(&t, graph);
        tape_close(&t);
        meet(me);
    }
}

/* A handle, and all its calls as a graph of kernels, with their first inputs. */
static void *open_graph(rank_context *me, tape *t, uint64_t *random)
{
    uint32_t by_kernel;
    tape_open(me, t, device_number((int32_t)me->rank), random);
    void *graph = tape_capture(t, t->n, 0, &by_kernel);
    tape_give(t, 1);
    return graph;
}

/* After a failure. */
static void drop(tape *t, void *graph)
{
    meet_outside(t->c.me);
    graphs_free(graph);
    scene_drop(&t->c);
    tape_close(t);
}

/*
 * Calls of all kinds
 */

/* Refused on all ranks, and counted on all of them. */
static void refuse(const tape *t)
{
    const taped *one = &t->calls[0];
    rank_context *me = t->c.me;
    must(me, ferry_mixed_comm_run(t->c.comm, one->what.op, NULL, &one->out_there, one->what.mode,
                                  t->queue, &me->error));
}

static void expect_refusal(const tape *t)
{
    rank_context *me = t->c.me;
    must_fail(me, FERRY_ERR_MISUSE, "needs an input",
              ferry_queue_synchronize(t->queue, &me->error));
}

typedef struct made {
    uint64_t n_calls, n_ahead;
} made;

/* Where a graph has calls of the queue that the host makes, calls on it go by the host, too. */
static void call_beside(const tape *t, const taped *one, void *stream, ferry_queue *queue,
                        bool may_go, made *m)
{
    tape_launch(t, one, stream, queue);
    m->n_calls++;
    m->n_ahead += may_go;
}

/*
 * Launches on either stream, and around them calls on that stream that are no graph's. The host's
 * calls of a graph are those of the queue of the capture: others wait for them.
 */
static made launch_all(tape *t, void *graph, uint32_t by_kernel, void *stream, ferry_queue *queue,
                       uint64_t *random)
{
    rank_context *me = t->c.me;
    made m = {0, 0};
    bool may_go = by_kernel == t->n || queue != t->queue;
    bool waits = by_kernel < t->n && queue != t->queue;
    for (uint32_t i = one_in(random, 2) ? dice(random, 1, t->n) : 0; i > 0; i--) {
        call_beside(t, &t->calls[i - 1], stream, queue, may_go,
                    &m); /* found again by the graph's */
    }
    for (uint32_t n = dice(random, 1, 3); n > 0; n--) {
        if (waits) {
            must(me, ferry_queue_synchronize(queue, &me->error));
        }
        graphs_launch(graph, stream);
        m.n_calls += t->n;
        m.n_ahead += by_kernel;
    }
    if (one_in(random, 3)) {
        if (waits) {
            graphs_synchronize(stream);
            must(me, ferry_queue_synchronize(t->queue, &me->error));
        }
        call_beside(t, &t->calls[t->n - 1], stream, queue, may_go, &m);
    }
    if (queue == t->queue && one_in(random, 3)) {
        refuse(t);
        expect_refusal(t);
    } else if (one_in(&me->random, 2)) {
        graphs_synchronize(stream);
    } else {
        must(me, ferry_queue_synchronize(queue, &me->error));
    }
    return m;
}

/* What all of them have made is counted. */
static void expect_counts(const tape *t, made m)
{
    rank_context *me = t->c.me;
    ferry_mixed_counts counts = FERRY_MIXED_COUNTS_INIT;
    must(me, ferry_mixed_comm_get_counts(t->c.comm, &counts, &me->error));
    expect(me, counts.n_calls == m.n_calls && counts.n_ahead == m.n_ahead,
           "%llu calls and not %llu, %llu ahead and not %llu", (unsigned long long)counts.n_calls,
           (unsigned long long)m.n_calls, (unsigned long long)counts.n_ahead,
           (unsigned long long)m.n_ahead);
    must(me, ferry_mixed_comm_reset_counts(t->c.comm, &me->error));
}

static void launch_often(tape *t, void *graph, uint32_t by_kernel, void *streams[2],
                         ferry_queue *queues[2], uint64_t *random)
{
    rank_context *me = t->c.me;
    for (uint64_t launch = 1; launch <= N_LAUNCHES; launch++) {
        int which = one_in(random, 3);
        tape_give(t, launch);
        made m = launch_all(t, graph, by_kernel, streams[which], queues[which], random);
        tape_check(t);
        expect_counts(t, m);
        if (one_in(random, 3)) {
            call what = draw_call(&t->c, random, MOST_ELEMENTS);
            scene_call(&t->c, &what);
            must(me, ferry_mixed_comm_reset_counts(t->c.comm, &me->error));
        }
    }
}

void case_graph(rank_context *me)
{
    uint64_t random = seed_of(me, 61, me->n_ranks, 0);
    const uint32_t odds[] = {0, me->rank == 1, 4}; /* kernels; on rank 1 none; some */
    for (uint32_t round = 0; tape_is_shown() && round < times_of(me, 3, 40); round++) {
        uint32_t by_kernel;
        tape t;
        tape_open(me, &t, device_number((int32_t)me->rank), &random);
        void *streams[] = {t.stream, graphs_new_stream()};
        ferry_queue *queues[] = {t.queue, NULL};
        must(me,
             ferry_queue_adopt(FERRY_MEMORY_CUDA, t.device, streams[1], &queues[1], &me->error));
        refuse(&t); /* calls are counted that no kernel has made */
        expect_refusal(&t);
        void *graph = tape_capture(&t, t.n, odds[round % 3], &by_kernel);
        must(me, ferry_mixed_comm_reset_counts(t.c.comm, &me->error));
        launch_often(&t, graph, by_kernel, streams, queues, &random);
        graphs_free(graph);
        ferry_queue_destroy(queues[1]);
        graphs_close(streams[1]);
        scene_close(&t.c);
        tape_close(&t);
        meet(me);
    }
}

/*
 * Launches of which one rank comes late are waited for; meanwhile calls of the host's are refused,
 * and right after the stream has come to its end they are not.
 */
void case_graph_late(rank_context *me)
{
    uint64_t random = seed_of(me, 62, me->n_ranks, 0);
    uint32_t by_kernel;
    tape t;
    if (!tape_is_shown()) {
        return;
    }
    tape_open(me, &t, device_number((int32_t)me->rank), &random);
    void *graph = tape_capture(&t, t.n, 0, &by_kernel);
    for (uint64_t launch = 1; launch <= times_of(me, 6, 40); launch++) {
        bool is_late = launch % me->n_ranks == me->rank;
        call what = draw_call(&t.c, &random, MOST_ELEMENTS);
        tape_give(&t, launch);
        if (is_late) {
            sleep_ms(dice(&me->random, 0, 200));
        }
        graphs_launch(graph, t.stream);
        graphs_synchronize(t.stream);
        scene_call(&t.c, &what);
        tape_check(&t);
    }
    must(me, ferry_queue_synchronize(t.queue, &me->error));
    graphs_free(graph);
    scene_close(&t.c);
    tape_close(&t);
}

/* The queue that a graph was captured on goes, and so does the handle while the graph runs. */
void case_graph_ends(rank_context *me)
{
    uint64_t random = seed_of(me, 63, me->n_ranks, 0);
    for (uint32_t round = 0; tape_is_shown() && round < times_of(me, 4, 40); round++) {
        uint32_t by_kernel;
        tape t;
        tape_open(me, &t, device_number((int32_t)me->rank), &random);
        void *graph = tape_capture(&t, t.n, round % 2 == 1 ? 4 : 0, &by_kernel);
        tape_give(&t, 1);
        ferry_queue_destroy(t.queue);
        t.queue = NULL;
        graphs_launch(graph, t.stream);
        if (round % 4 < 2) {
            graphs_synchronize(t.stream);
            tape_check(&t);
            scene_close(&t.c);
        } else {
            scene_drop(&t.c);
        }
        graphs_launch(graph, t.stream);
        graphs_synchronize(t.stream);
        graphs_free(graph);
        meet_outside(me); /* no launch is under way when pinned memory is freed */
        tape_close(&t);
        meet_outside(me);
    }
}

/*
 * Faults
 */

/* The first of at least two calls is one in which ranks can differ, and another than the second. */
static void open_differing(rank_context *me, tape *t, uint64_t *random)
{
    tape_open(me, t, device_number((int32_t)me->rank), random);
    while (t->n < 2 || t->calls[0].what.columns == 1 ||
           t->calls[0].what.op == t->calls[1].what.op) {
        scene_close(&t->c);
        tape_close(t);
        tape_open(me, t, device_number((int32_t)me->rank), random);
    }
}

static void differ(const rank_context *me, taped *one)
{
    if (me->rank == 1) {
        one->in_there.buffer.bytes /= one->in_there.columns;
        one->out_there.buffer.bytes /= one->out_there.columns;
        one->in_there.columns = one->out_there.columns = 1;
    }
}

/* Rank 1's graph has another call than all others' in the first place: all hear of that one. */
void case_graph_differs(rank_context *me)
{
    uint64_t random = seed_of(me, 64, me->n_ranks, 0);
    for (uint32_t round = 0; tape_is_shown() && round < times_of(me, 4, 20); round++) {
        uint32_t by_kernel;
        tape t;
        char what[64];
        open_differing(me, &t, &random);
        differ(me, &t.calls[0]);
        snprintf(what, sizeof what, " is %s of ", ferry_mixed_op_name(t.calls[1].what.op));
        void *graph = tape_capture(&t, t.n, 0, &by_kernel);
        tape_give(&t, 1);
        graphs_launch(graph, t.stream);
        must_fail(me, FERRY_ERR_MISUSE, "the same calls",
                  ferry_queue_synchronize(t.queue, &me->error));
        expect(me, strstr(me->error.message, what) == NULL, "%.400s", me->error.message);
        graphs_launch(graph, t.stream); /* which moves nothing, and ends */
        must_fail(me, FERRY_ERR_MISUSE, "the same calls",
                  ferry_queue_synchronize(t.queue, &me->error));
        graphs_free(graph);
        scene_drop(&t.c);
        tape_close(&t);
        meet(me);
    }
}

/* One rank lives and launches no more: the others hear of it, and their streams go on. */
void case_graph_idle(rank_context *me)
{
    uint64_t random = seed_of(me, 65, me->n_ranks, 0);
    tape t;
    if (!tape_is_shown()) {
        return;
    }
    void *graph = open_graph(me, &t, &random);
    graphs_launch(graph, t.stream);
    if (me->rank == 0) {
        graphs_launch(graph, t.stream);
        must_fail(me, FERRY_ERR_TIMEOUT, "rank 1", ferry_queue_synchronize(t.queue, &me->error));
        graphs_synchronize(t.stream);
    } else {
        must(me, ferry_queue_synchronize(t.queue, &me->error));
    }
    drop(&t, graph);
}

/* Two launches at once, on two streams: no order of them is the same on all ranks. */
void case_graph_beside(rank_context *me)
{
    uint64_t random = seed_of(me, 66, me->n_ranks, 0);
    uint32_t by_kernel;
    tape t;
    if (!tape_is_shown()) {
        return;
    }
    tape_open(me, &t, device_number((int32_t)me->rank), &random);
    _Atomic uint64_t *word = graphs_pinned(4096);
    void *other = graphs_stream_apart(t.stream, word);
    void *graphs[2];
    for (int i = 0; i < 2; i++) {
        graphs[i] = tape_capture(&t, 1, 0, &by_kernel);
    }
    tape_give(&t, 1);
    if (me->rank == 0) {
        graphs_launch(graphs[0], t.stream);
        sleep_ms(50); /* rank 1 does not come: it is there */
        graphs_launch(graphs[1], other);
        must_fail(me, FERRY_ERR_MISUSE, "at once", ferry_queue_synchronize(t.queue, &me->error));
        graphs_synchronize(other);
    }
    meet_outside(me);
    if (me->rank != 0) { /* for whom the first one may go well */
        graphs_launch(graphs[0], t.stream);
        graphs_launch(graphs[0], t.stream);
        must_fail(me, FERRY_ERR_MISUSE, "at once", ferry_queue_synchronize(t.queue, &me->error));
    }
    meet_outside(me);
    for (int i = 0; i < 2; i++) {
        graphs_free(graphs[i]);
    }
    graphs_close(other);
    graphs_free_pinned(word);
    scene_drop(&t.c);
    tape_close(&t);
}

/* A rank dies while its graph and those of others are under way: they hear whom they lost. */
void case_graph_killed(rank_context *me)
{
    uint64_t random = seed_of(me, 67, me->n_ranks, 0);
    uint32_t victim = random_below(&random, me->n_ranks), us = dice(&random, 200, 30000);
    ferry_status status = FERRY_OK;
    tape t;
    if (!tape_is_shown()) {
        return;
    }
    void *graph = open_graph(me, &t, &random);
    meet_outside(me);
    if (me->rank == victim) {
        end_later(me, us, false);
    }
    for (uint32_t i = 0; status == FERRY_OK; i++) {
        graphs_launch(graph, t.stream);
        if (i % 10 == 9) {
            status = ferry_queue_synchronize(t.queue, &me->error);
        }
    }
    expect(me, status == FERRY_ERR_PEER_LOST, "%s: %.400s", ferry_status_name(status),
           me->error.message);
    expect_named(me, victim);
    graphs_synchronize(t.stream);
    graphs_free(graph);
    scene_drop(&t.c);
    tape_close(&t);
}

/*
 * A graph that has failed goes before anybody has asked: the queue says so all the same, and so
 * does that of another graph, whose launch moves nothing.
 */
void case_graph_silent(rank_context *me)
{
    uint64_t random = seed_of(me, 68, me->n_ranks, 0);
    for (uint32_t round = 0; tape_is_shown() && round < times_of(me, 4, 20); round++) {
        uint32_t by_kernel;
        tape t;
        open_differing(me, &t, &random);
        taped *one = &t.calls[0], as_all = *one;
        differ(me, one);
        void *bad = tape_capture(&t, t.n, 0, &by_kernel);
        *one = as_all;
        void *good = round % 2 == 0 ? tape_capture(&t, t.n, 0, &by_kernel) : NULL;
        tape_give(&t, 1);
        graphs_launch(bad, t.stream);
        graphs_synchronize(t.stream);
        graphs_free(bad);
        sleep_ms(30); /* it has gone by then */
        ferry_status status = ferry_queue_synchronize(t.queue, &me->error);
        expect(me, status == FERRY_ERR_MISUSE || status == FERRY_ERR_ABORTED, "%s",
               ferry_status_name(status));
        good = good == NULL ? tape_capture(&t, t.n, 0, &by_kernel) : good;
        graphs_launch(good, t.stream);
        status = ferry_queue_synchronize(t.queue, &me->error);
        expect(me, status == FERRY_ERR_MISUSE || status == FERRY_ERR_ABORTED, "%s",
               ferry_status_name(status));
        meet_outside(me);
        graphs_free(good);
        scene_drop(&t.c);
        tape_close(&t);
        meet_outside(me);
    }
}

/*
 * Two handles, on streams that come to them in another order on rank 1: nobody is kept from
 * anything. A call on a stream that waits is behind a graph's that the host has seen take long.
 */
void case_graph_order(rank_context *me)
{
    uint64_t random = seed_of(me, 69, me->n_ranks, 0);
    for (uint32_t round = 0; tape_is_shown() && round < times_of(me, 4, 20); round++) {
        uint32_t by_kernel;
        bool is_held = me->rank == 1, is_behind = round % 2 == 1;
        tape t[2];
        for (int i = 0; i < 2; i++) {
            tape_open(me, &t[i], device_number((int32_t)me->rank), &random);
            tape_give(&t[i], 1);
        }
        _Atomic uint64_t *word = graphs_pinned(sizeof *word);
        atomic_store(word, 0);
        void *graph = tape_capture(&t[0], t[0].n, 0, &by_kernel);
        if (is_held) {
            tape_shut(t[is_behind].stream, word, 1);
        }
        if (is_behind) {
            tape_launch(&t[1], &t[1].calls[0], t[1].stream, t[1].queue);
        }
        graphs_launch(graph, t[0].stream);
        if (!is_behind) {
            sleep_ms(is_held ? 0 : 700); /* each rank waits in another call, and asks the other */
            tape_launch(&t[1], &t[1].calls[0], t[1].stream, t[1].queue);
            graphs_synchronize(t[1].stream);
        } else {
            graphs_synchronize(t[0].stream);
            tape_launch(&t[0], &t[0].calls[0], t[1].stream, t[1].queue);
        }
        tape_open_late(word, 1);
        for (int i = 1; i >= 0; i--) {
            must(me, ferry_queue_synchronize(t[i].queue, &me->error));
        }
        tape_check(&t[0]);
        tape_check_first(&t[1], 1);
        meet_outside(me);
        graphs_free(graph);
        for (int i = 0; i < 2; i++) {
            scene_close(&t[i].c);
        }
        meet_outside(me);
        graphs_free_pinned(word);
        for (int i = 0; i < 2; i++) {
            tape_close(&t[i]);
        }
        meet_outside(me);
    }
}

/* Two launches at the same moment: both end, and what nobody is told of is right. */
void case_graph_fork(rank_context *me)
{
    uint64_t random = seed_of(me, 70, me->n_ranks, 0);
    for (uint32_t round = 0; tape_is_shown() && round < times_of(me, 12, 60); round++) {
        uint32_t by_kernel;
        tape t;
        tape_open(me, &t, device_number((int32_t)me->rank), &random);
        _Atomic uint64_t *word = graphs_pinned(sizeof *word);
        void *streams[] = {t.stream, graphs_new_stream()}, *graphs[2];
        atomic_store(word, 0);
        tape_give(&t, 1);
        for (int i = 0; i < 2; i++) {
            graphs[i] = tape_capture(&t, 1, 0, &by_kernel);
        }
        for (int i = 0; i < 2; i++) {
            tape_shut(streams[i], word, 1);
        }
        for (int i = 0; i < 2; i++) {
            graphs_launch(graphs[i], streams[i]);
        }
        tape_open_late(word, 1);
        for (int i = 0; i < 2; i++) {
            graphs_synchronize(streams[i]);
        }
        ferry_status status = ferry_queue_synchronize(t.queue, &me->error);
        expect(me, status == FERRY_OK || status == FERRY_ERR_MISUSE || status == FERRY_ERR_ABORTED,
               "%s: %.400s", ferry_status_name(status), me->error.message);
        if (status == FERRY_OK) {
            tape_check_first(&t, 1);
        }
        meet_outside(me);
        scene_drop(&t.c);
        for (int i = 0; i < 2; i++) {
            graphs_free(graphs[i]);
        }
        graphs_close(streams[1]);
        meet_outside(me);
        graphs_free_pinned(word);
        tape_close(&t);
        meet_outside(me);
    }
}

/* A request in host order beside a launch has no order, but an end, and nothing wrong is well. */
void case_graph_request(rank_context *me)
{
    uint64_t random = seed_of(me, 71, me->n_ranks, 0);
    ferry_request *request = NULL;
    uint32_t by_kernel;
    tape t;
    if (!tape_is_shown()) {
        return;
    }
    tape_open(me, &t, device_number((int32_t)me->rank), &random);
    const taped *one = &t.calls[0];
    void *graph = tape_capture(&t, 1, 0, &by_kernel);
    tape_give(&t, 1);
    tensors here = scene_tensors(&t.c, &one->what);
    must(me, ferry_mixed_comm_start(t.c.comm, one->what.op, &here.in, &here.out, one->what.mode,
                                    NULL, &request, &me->error));
    graphs_launch(graph, t.stream);
    graphs_synchronize(t.stream);
    bool is_well = ferry_queue_synchronize(t.queue, &me->error) == FERRY_OK;
    (void)ferry_request_wait(request, &me->error);
    ferry_request_destroy(request);
    if (is_well) {
        tape_check_first(&t, 1);
    }
    drop(&t, graph);
}

/* Rank 1 is stopped for a while, wherever it is just now, and goes on: nothing is lost. */
void case_graph_wakes(rank_context *me)
{
    uint64_t random = seed_of(me, 73, me->n_ranks, 0);
    _Atomic uint64_t *pid = &me->shared->word[0];
    tape t;
    if (!tape_is_shown()) {
        return;
    }
    void *graph = open_graph(me, &t, &random);
    if (me->rank == 1) {
        atomic_store(pid, (uint64_t)getpid());
    }
    meet_outside(me);
    for (uint64_t launch = 2; launch < 14; launch++) {
        bool stops = me->rank == 0 && launch % 4 == 0;
        tape_give(&t, launch);
        if (stops) {
            kill((pid_t)atomic_load(pid), SIGSTOP);
        }
        graphs_launch(graph, t.stream);
        if (stops) {
            sleep_ms(dice(&me->random, 5, 400));
            kill((pid_t)atomic_load(pid), SIGCONT);
        }
        must(me, ferry_queue_synchronize(t.queue, &me->error));
        tape_check(&t);
    }
    meet_outside(me);
    graphs_free(graph);
    scene_close(&t.c);
    tape_close(&t);
}

/* Rank 1's device is lost at some launch: all hear of it, and long before the entry limit. */
void case_graph_lost(rank_context *me)
{
    uint64_t random = seed_of(me, 72, me->n_ranks, 0);
    ferry_status status = FERRY_OK;
    char number[16];
    tape t;
    if (!tape_is_shown() || device_is_real()) {
        return;
    }
    void *graph = open_graph(me, &t, &random);
    snprintf(number, sizeof number, "%u", dice(&random, 20, 60));
    meet_outside(me);
    if (me->rank == 1) {
        setenv("STANDIN_LOSE", number, 1);
    }
    int64_t begin_ns = now_ns();
    for (uint32_t i = 0; i < 1000 && status == FERRY_OK; i++) {
        (void)driver_call("cuGraphLaunch", (uintptr_t)graph, (uintptr_t)t.stream, 0, 0);
        status = ferry_queue_synchronize(t.queue, &me->error);
    }
    expect(me, status == FERRY_ERR_IO, "%s: %.400s", ferry_status_name(status), me->error.message);
    expect(me, now_ns() - begin_ns < INT64_C(10000000000), "it took %lld ms",
           (long long)((now_ns() - begin_ns) / 1000000));
    meet_outside(me);
    fflush(NULL);
    _exit(0); /* nothing on such a device can be freed */
}
