/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs in the order of a device's queue. */
#include "service/suite.h"

#include "support/devices.h"

#include <pthread.h>
#include <stdatomic.h>

/* Each rank sends to the next one: from the host's memory or far, to the host's or far. */
enum { BYTES = 50000, N_TASKS = 4 };

typedef struct ring {
    service_setup setup;
    ferry_service *service;
    ferry_buffer sources[N_TASKS], targets[N_TASKS];
} ring;

static ferry_buffer take_buffer(rank_context *me, bool far)
{
    ferry_buffer buffer;
    ferry_memory_kind kind = far ? device_kind() : FERRY_MEMORY_HOST;
    must(me, ferry_memory_alloc(NULL, kind, 0, BYTES, &buffer, &me->error));
    return buffer;
}

static void set_up(rank_context *me, ring *r)
{
    uint32_t next = next_rank(me), previous = previous_rank(me);
    setup_init(me, &r->setup, "");
    r->service = open_service(me, &r->setup.options);
    for (uint64_t t = 0; t < N_TASKS; t++) {
        r->sources[t] = take_buffer(me, t % 2 != 0);
        r->targets[t] = take_buffer(me, t / 2 != 0);
        must(me, ferry_service_register_send(r->service, t, &r->sources[t], 0, BYTES, next,
                                             &me->error));
        must(me, ferry_service_register_receive(r->service, t, &r->targets[t], 0, BYTES, previous,
                                                &me->error));
    }
    must(me, ferry_service_schedule(r->service, &me->error));
}

static void tear_down(rank_context *me, ring *r)
{
    ferry_service_destroy(r->service);
    for (int t = 0; t < N_TASKS; t++) {
        ferry_memory_free(&r->sources[t]);
        ferry_memory_free(&r->targets[t]);
    }
    meet(me);
}

static ferry_queue *take_queue(rank_context *me, int32_t device)
{
    ferry_queue *queue = NULL;
    must(me, ferry_queue_create(device_kind(), device_number(device), &queue, &me->error));
    return queue;
}

static void copy_on(rank_context *me, ferry_queue *queue, ferry_buffer to, ferry_buffer from)
{
    ferry_box boxes[2] = {FERRY_BOX_INIT, FERRY_BOX_INIT};
    for (int i = 0; i < 2; i++) {
        boxes[i].buffer = i == 0 ? to : from;
        boxes[i].n_dims = 1;
        boxes[i].length[0] = BYTES;
        boxes[i].stride[0] = 1;
    }
    must(me, ferry_box_copy(&boxes[0], &boxes[1], NULL, queue, &me->error));
}

/* Memory of the host, one buffer for each task. */
typedef struct image {
    unsigned char *bytes[N_TASKS];
} image;

static image take_image(rank_context *me)
{
    image one;
    for (int t = 0; t < N_TASKS; t++) {
        one.bytes[t] = take(me, BYTES);
    }
    return one;
}

static void give_back_image(const image *one)
{
    for (int t = 0; t < N_TASKS; t++) {
        free(one->bytes[t]);
    }
}

static uint64_t seed_for(const rank_context *me, uint64_t version, uint32_t rank, int task)
{
    return seed_of(me, version, rank, (uint64_t)task);
}

/* The queue writes sources of that version, from an image that stays. */
static image write_sources(rank_context *me, const ring *r, ferry_queue *queue, uint64_t version)
{
    image own = take_image(me);
    for (int t = 0; t < N_TASKS; t++) {
        fill(own.bytes[t], BYTES, seed_for(me, version, me->rank, t));
        copy_on(me, queue, r->sources[t], ferry_buffer_of(own.bytes[t], BYTES));
    }
    return own;
}

static image read_targets(rank_context *me, const ring *r, ferry_queue *queue)
{
    image found = take_image(me);
    for (int t = 0; t < N_TASKS; t++) {
        copy_on(me, queue, ferry_buffer_of(found.bytes[t], BYTES), r->targets[t]);
    }
    return found;
}

static void expect_image(rank_context *me, const image *found, uint64_t version, const char *what)
{
    for (int t = 0; t < N_TASKS; t++) {
        size_t bad = mismatch(found->bytes[t], BYTES, seed_for(me, version, previous_rank(me), t));
        expect(me, bad == BYTES, "%s: task %d, byte %zu", what, t, bad);
    }
}

static void wait_for_gate(void *context)
{
    while (!atomic_load((_Atomic bool *)context)) {
        sleep_ms(1);
    }
}

/* Nothing behind it begins until it is opened. */
static _Atomic bool *shut(rank_context *me, ferry_queue *queue)
{
    _Atomic bool *is_open = take(me, sizeof *is_open);
    atomic_init(is_open, false);
    must(me, ferry_queue_call(queue, wait_for_gate, is_open, &me->error));
    return is_open;
}

/* A run is under way on a queue: whatever uses the service or its world in host order. */
static void expect_refusals(rank_context *me, const ring *r, ferry_queue *other)
{
    static const char owned[] = "on a queue";
    ferry_service *service = r->service;
    ferry_service_statistics statistics = FERRY_SERVICE_STATISTICS_INIT;
    ferry_destination destination = FERRY_DESTINATION_INIT;
    ferry_request *request = NULL;
    ferry_ledger *ledger = NULL;
    const void *all;
    uint64_t version;
    must_fail(me, FERRY_ERR_MISUSE, owned, ferry_service_run(service, NULL, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, owned,
              ferry_service_start(service, NULL, &request, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "another queue", ferry_service_run(service, other, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, owned, ferry_service_schedule(service, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, owned,
              ferry_service_get_statistics(service, &statistics, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, owned,
              ferry_service_destination_at(service, 0, &destination, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, owned,
              ferry_service_register_send(service, 77, &r->sources[0], 0, BYTES, 0, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "under way", ferry_service_clear_requests(service, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "under way",
              ferry_service_rebind(service, NULL, NULL, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "has ended",
              ferry_service_take_ledger(service, &ledger, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "under way",
              ferry_service_recover(service, me->world, &version, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, owned, ferry_world_barrier(me->world, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, owned,
              ferry_world_all_gather(me->world, &version, sizeof version, &all, &me->error));
    must_fail(
        me, FERRY_ERR_MISUSE, owned,
        ferry_transport_flush(ferry_service_transport(service), FERRY_ANY_RANK, NULL, &me->error));
}

/* Two runs between copies that they must not pass, in either direction; all enqueued at once. */
static void run_between_copies(rank_context *me, ring *r)
{
    ferry_queue *queue = take_queue(me, 0), *other = take_queue(me, 0);
    _Atomic bool *is_open = shut(me, queue);
    ferry_request *request = NULL;
    bool is_done = true;
    image sources[2], found[2];
    sources[0] = write_sources(me, r, queue, 1);
    must(me, ferry_service_run(r->service, queue, &me->error));
    found[0] = read_targets(me, r, queue);
    sources[1] = write_sources(me, r, queue, 2);
    must(me, ferry_service_start(r->service, queue, &request, &me->error));
    found[1] = read_targets(me, r, queue);
    must(me, ferry_request_test(request, &is_done, &me->error));
    expect(me, !is_done && ferry_service_version(r->service) == 0, "a run has passed the gate");
    expect_refusals(me, r, other);
    atomic_store(is_open, true);
    must(me, ferry_queue_synchronize(queue, &me->error));
    must(me, ferry_request_test(request, &is_done, &me->error));
    expect(me, is_done, "a run that its queue has passed");
    must(me, ferry_request_wait(request, &me->error));
    expect_image(me, &found[0], 1, "the first run");
    expect_image(me, &found[1], 2, "the second run");
    ferry_service_statistics statistics = statistics_of(me, r->service);
    expect(me, statistics.n_runs == 2 && ferry_service_version(r->service) == 2, "%llu runs",
           (unsigned long long)statistics.n_runs);
    for (int i = 0; i < 2; i++) {
        give_back_image(&sources[i]);
        give_back_image(&found[i]);
    }
    ferry_request_destroy(request);
    ferry_queue_destroy(other);
    ferry_queue_destroy(queue);
    free((void *)is_open);
    meet(me);
}

/* Who has heard of the end by the request has the world again, although the queue has more to do.
 */
static void wait_by_request(rank_context *me, ring *r)
{
    ferry_queue *queue = take_queue(me, 0);
    ferry_request *request = NULL;
    image sources = write_sources(me, r, queue, 5);
    must(me, ferry_service_start(r->service, queue, &request, &me->error));
    _Atomic bool *is_open = shut(me, queue);
    must(me, ferry_request_wait(request, &me->error));
    must(me, ferry_world_barrier(me->world, &me->error));
    must(me, ferry_service_run(r->service, NULL, &me->error));
    atomic_store(is_open, true);
    image found = read_targets(me, r, queue);
    must(me, ferry_queue_synchronize(queue, &me->error));
    expect_image(me, &found, 5, "a run that was waited for");
    ferry_request_destroy(request);
    ferry_queue_destroy(queue);
    give_back_image(&sources);
    give_back_image(&found);
    free((void *)is_open);
    meet(me);
}

/* One rank cancels what has not begun: all hear of it by their queues, and by requests; once. */
static void cancel(rank_context *me, ring *r)
{
    ferry_queue *queue = take_queue(me, 0);
    _Atomic bool *is_open = shut(me, queue);
    ferry_request *request = NULL;
    must(me, ferry_service_start(r->service, queue, &request, &me->error));
    if (me->rank == 0) {
        ferry_request_cancel(request);
    }
    atomic_store(is_open, true);
    must_fail(me, FERRY_ERR_ABORTED, "rank 0 cancelled",
              ferry_queue_synchronize(queue, &me->error));
    must_fail(me, FERRY_ERR_ABORTED, "rank 0 cancelled", ferry_request_wait(request, &me->error));
    must(me, ferry_queue_synchronize(queue, &me->error));
    ferry_request_destroy(request);
    image sources = write_sources(me, r, queue, 7);
    must(me, ferry_service_run(r->service, queue, &me->error));
    image found = read_targets(me, r, queue);
    must(me, ferry_queue_synchronize(queue, &me->error));
    expect_image(me, &found, 7, "the run after");
    give_back_image(&sources);
    give_back_image(&found);
    ferry_queue_destroy(queue);
    free((void *)is_open);
    meet(me);
}

void case_queue(rank_context *me)
{
    ring r;
    set_up(me, &r);
    run_between_copies(me, &r);
    wait_by_request(me, &r);
    cancel(me, &r);
    tear_down(me, &r);
}

/* A callback is called on the queue's thread, and cannot wait for its own run there. */
typedef struct watcher {
    rank_context *me;
    pthread_t caller;
    ferry_request *_Atomic request;
    ferry_service *service;
    _Atomic uint32_t n_calls, n_wrong;
} watcher;

static bool watch(void *context, const ferry_progress *progress)
{
    watcher *w = context;
    ferry_error error;
    bool fine = !pthread_equal(pthread_self(), w->caller) &&
                ferry_request_wait(atomic_load(&w->request), &error) == FERRY_ERR_MISUSE &&
                ferry_service_finalize(w->service, NULL) == FERRY_ERR_MISUSE;
    (void)progress;
    w->n_wrong += !fine;
    w->n_calls++;
    return true;
}

static void call_back(rank_context *me, ring *r, ferry_queue *queue)
{
    watcher w = {.me = me, .caller = pthread_self(), .service = r->service};
    _Atomic bool *is_open = shut(me, queue);
    ferry_request *request = NULL;
    ferry_service_set_progress(r->service, watch, &w);
    must(me, ferry_service_start(r->service, queue, &request, &me->error));
    atomic_store(&w.request, request);
    atomic_store(is_open, true);
    ferry_request_wait(request, NULL); /* finalize has cancelled it */
    expect(me, w.n_calls > 0 && w.n_wrong == 0, "%u of %u callbacks", (unsigned)w.n_wrong,
           (unsigned)w.n_calls);
    ferry_request_destroy(request);
    ferry_queue_synchronize(queue, NULL);
    ferry_service_set_progress(r->service, NULL, NULL);
    free((void *)is_open);
    meet(me);
}

/* The service goes with a run on a queue; then the queue with what it has. */
static void end_with_work(rank_context *me, ring *r, ferry_queue *queue)
{
    _Atomic bool *is_open = shut(me, queue);
    ferry_request *request = NULL;
    image sources = write_sources(me, r, queue, 9);
    must(me, ferry_service_run(r->service, queue, &me->error));
    image found = read_targets(me, r, queue);
    atomic_store(is_open, true);
    ferry_queue_destroy(queue);
    expect_image(me, &found, 9, "what a queue has done when it is gone");
    must_fail(me, FERRY_ERR_MISUSE, "destroyed", ferry_service_run(r->service, queue, &me->error));
    free((void *)is_open);

    queue = take_queue(me, 0);
    is_open = shut(me, queue);
    must(me, ferry_service_start(r->service, queue, &request, &me->error));
    must(me, ferry_service_run(r->service, queue, &me->error));
    atomic_store(is_open, true);
    must(me, ferry_service_finalize(r->service, &me->error));
    bool is_done = false;
    ferry_status status = ferry_request_test(request, &is_done, &me->error);
    expect(me, is_done && (status == FERRY_OK || status == FERRY_ERR_ABORTED),
           "the run of a service that was finalized: %d", (int)status);
    tear_down(me, r);
    expect(me, ferry_request_wait(request, NULL) == status,
           "the outcome of a service that is gone");
    ferry_request_destroy(request);
    ferry_queue_destroy(queue);
    give_back_image(&sources);
    give_back_image(&found);
    free((void *)is_open);
}

void case_bad_queues(rank_context *me)
{
    ring r;
    ferry_request *request = NULL;
    set_up(me, &r);
    ferry_queue *wrong = take_queue(me, 1), *queue = take_queue(me, 0), *host = NULL;
    must(me, ferry_queue_create(FERRY_MEMORY_HOST, 0, &host, &me->error));
    char said[64];
    snprintf(said, sizeof said, "has no access to memory of kind %s, device 0", device_kind_name());
    if (device_kind_count() > 1 && !device_reaches_others()) {
        must_fail(me, FERRY_ERR_MISUSE, said, ferry_service_run(r.service, wrong, &me->error));
        must_fail(me, FERRY_ERR_MISUSE, said,
                  ferry_service_start(r.service, wrong, &request, &me->error));
    }
    must(me, ferry_service_run(r.service, host, &me->error));
    /* In host order a run is under way. */
    must(me, ferry_service_start(r.service, host, &request, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "a run is under way",
              ferry_service_run(r.service, queue, &me->error));
    must(me, ferry_request_wait(request, &me->error));
    ferry_request_destroy(request);
    ferry_queue_destroy(wrong);
    must_fail(me, FERRY_ERR_MISUSE, "destroyed", ferry_service_run(r.service, wrong, &me->error));
    meet(me);
    call_back(me, &r, queue);
    end_with_work(me, &r, queue);
    ferry_queue_destroy(host);
}
