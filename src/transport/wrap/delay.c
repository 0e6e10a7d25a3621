/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * delay=TIME: puts and gets reach the inner engine TIME after the call, in order, many under way at
 * once. reorder=SEED: they reach it in any order that a network may choose, by a sequence that the
 * rank seeds: a put alone not before a flush or a signal after it asks for it, a signal when all
 * puts before it are in place, and sources are read that late. A thread of the wrapper's passes
 * them on when the caller does not come back, as a network would; a lock keeps the inner engine to
 * one thread at a time. The lock is recursive because an inner engine that waits is given progress
 * from inside its own call.
 */
#include "transport/wrap/ops.h"

#include "world/bell.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

typedef struct delay_layer delay_layer;

/* The inner engine's host: the layer's own, except that waiting depends on the thread. */
typedef struct delay_host {
    fy_host host;
    delay_layer *delay;
} delay_host;

struct delay_layer {
    fy_layer base;
    int64_t delay_ns; /* of reorder: the most */
    bool reorders;
    uint64_t random;
    delay_host inner_host;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* an operation was added to an empty queue, or stopping */
    pthread_t thread;
    bool has_lock, has_thread;
    /* What follows belongs to who holds the lock. */
    bool stopping;
    uint32_t depth; /* of calls into inner: above 0 the queue rests */
    fy_ops ops;
    ferry_status status; /* the first failure of an operation that its caller no longer sees */
    ferry_error error;
};

static const struct unit {
    const char *name;
    uint64_t ns;
} units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}};

static const uint64_t MOST_NS = UINT64_C(3600) * 1000000000;

static ferry_status parse_delay(fy_layer *layer, const char *argument, ferry_error *error)
{
    delay_layer *delay = (delay_layer *)layer;
    uint64_t number;
    const char *unit;
    if (argument != NULL && fy_layer_number(argument, MOST_NS, &number, &unit)) {
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            if (strcmp(unit, units[i].name) == 0 && number <= MOST_NS / units[i].ns) {
                delay->delay_ns = (int64_t)(number * units[i].ns);
                return FERRY_OK;
            }
        }
    }
    return fy_layer_refuse(
        layer, "it needs a time of at most an hour in ns, us, ms or s, such as delay=200us", error);
}

/* What is held back for no longer than it takes to see that it was. */
enum { MOST_REORDER_NS = 200000 };

static ferry_status parse_reorder(fy_layer *layer, const char *argument, ferry_error *error)
{
    delay_layer *delay = (delay_layer *)layer;
    const char *end;
    if (argument == NULL || !fy_layer_number(argument, UINT32_MAX, &delay->random, &end) ||
        *end != '\0') {
        return fy_layer_refuse(layer, "it needs a seed, such as reorder=7", error);
    }
    delay->reorders = true;
    delay->delay_ns = MOST_REORDER_NS;
    return FERRY_OK;
}

/* splitmix64. The lock is held. */
static uint64_t draw(delay_layer *delay, uint64_t limit)
{
    uint64_t x = delay->random += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % limit;
}

/* What the inner engine sees. */

static const fy_host *outer(const fy_host *host)
{
    return ((const delay_host *)host)->delay->base.host;
}

static bool host_same_node(const fy_host *host, uint32_t peer)
{
    return outer(host)->same_node(outer(host), peer);
}

static ferry_status host_agree(const fy_host *host, ferry_status status, ferry_error *error)
{
    return outer(host)->agree(outer(host), status, error);
}

static ferry_status host_all_gather(const fy_host *host, const void *bytes, size_t n_bytes,
                                    const void **all_out, const size_t **lengths_out,
                                    ferry_error *error)
{
    return outer(host)->all_gather(outer(host), bytes, n_bytes, all_out, lengths_out, error);
}

/*
 * The world's own waiting lets every engine of the transport work, which is for the caller's thread
 * only: the wrapper's thread looks by itself.
 */
static ferry_status wait_on_thread(const fy_host *host, bool (*ready)(void *context), void *context,
                                   int64_t limit_ns, ferry_error *error)
{
    const struct timespec nap = {.tv_nsec = 50000};
    int64_t begin_ns = fy_now_ns();
    while (!ready(context)) {
        FY_TRY(host->state(host, error));
        if (limit_ns >= 0 && fy_now_ns() - begin_ns >= limit_ns) {
            return FERRY_ERR_TIMEOUT;
        }
        nanosleep(&nap, NULL);
    }
    return FERRY_OK;
}

static ferry_status host_wait(const fy_host *host, bool (*ready)(void *context),
                              int64_t (*sleep_ns)(void *context), void *context, int64_t limit_ns,
                              ferry_error *error)
{
    const delay_layer *delay = ((const delay_host *)host)->delay;
    if (delay->has_thread && pthread_equal(pthread_self(), delay->thread)) {
        return wait_on_thread(outer(host), ready, context, limit_ns, error);
    }
    return outer(host)->wait(outer(host), ready, sleep_ns, context, limit_ns, error);
}

static ferry_status host_state(const fy_host *host, ferry_error *error)
{
    return outer(host)->state(outer(host), error);
}

static void host_lost(const fy_host *host, uint32_t peer, const char *sentence)
{
    outer(host)->lost(outer(host), peer, sentence);
}

static void host_ring(const fy_host *host)
{
    outer(host)->ring(outer(host));
}

static ferry_status host_watch(const fy_host *host, int fd, void (*ready)(void *context),
                               void *context, ferry_error *error)
{
    return outer(host)->watch(outer(host), fd, ready, context, error);
}

static void host_unwatch(const fy_host *host, int fd)
{
    outer(host)->unwatch(outer(host), fd);
}

static void fill_inner_host(delay_layer *delay)
{
    const fy_host *host = delay->base.host;
    delay->inner_host = (delay_host){
        .host = {.abi = host->abi,
                 .rank = host->rank,
                 .n_ranks = host->n_ranks,
                 .deadline_ns = host->deadline_ns,
                 .world = host->world,
                 .same_node = host_same_node,
                 .agree = host_agree,
                 .all_gather = host_all_gather,
                 .wait = host_wait,
                 .state = host_state,
                 .lost = host_lost,
                 .ring = host_ring,
                 .watch = host->watch == NULL ? NULL : host_watch,
                 .unwatch = host->unwatch == NULL ? NULL : host_unwatch,
                 .memory = host->memory,
                 .log = host->log},
        .delay = delay,
    };
    delay->base.inner_host = &delay->inner_host.host;
}

/* The queue and its thread. */

/* For the next call to tell. The lock is held. */
static void keep_failure(delay_layer *delay, ferry_status status, const ferry_error *error)
{
    if (status != FERRY_OK && delay->status == FERRY_OK) {
        delay->status = status;
        delay->error = *error;
    }
}

/* Nothing asks for it yet. */
static const int64_t NEVER_NS = INT64_MAX;

/* When the queue has something to do: the first in it decides, or any where they are reordered. */
static int64_t next_due_ns(const delay_layer *delay)
{
    const fy_ops *ops = &delay->ops;
    int64_t due = fy_ops_empty(ops) ? NEVER_NS : ops->items[ops->begin].due_ns;
    for (size_t i = ops->begin; delay->reorders && i < ops->end; i++) {
        due = ops->items[i].due_ns < due ? ops->items[i].due_ns : due;
    }
    return due;
}

/* A flush, or a signal to that peer, asks for what was put there before. The lock is held. */
static void ask_for(delay_layer *delay, uint32_t peer, int64_t now_ns)
{
    for (size_t i = delay->ops.begin; i < delay->ops.end; i++) {
        fy_op *op = &delay->ops.items[i];
        if (op->due_ns == NEVER_NS && (peer == FERRY_ANY_RANK || op->peer == peer)) {
            op->due_ns = now_ns + (int64_t)draw(delay, (uint64_t)delay->delay_ns);
        }
    }
}

static bool has_earlier(const fy_ops *ops, size_t index)
{
    for (size_t i = ops->begin; i < index; i++) {
        if (ops->items[i].peer == ops->items[index].peer) {
            return true;
        }
    }
    return false;
}

/* Brings one that may go now to the front; false if none may. The lock is held. */
static bool choose(delay_layer *delay, int64_t now_ns)
{
    fy_ops *ops = &delay->ops;
    size_t chosen = ops->end;
    size_t n = 0;
    if (!delay->reorders) {
        return !fy_ops_empty(ops) && ops->items[ops->begin].due_ns <= now_ns;
    }
    for (size_t i = ops->begin; i < ops->end; i++) {
        const fy_op *op = &ops->items[i];
        bool may_go = op->due_ns <= now_ns && !(op->has_signal && has_earlier(ops, i));
        if (may_go && draw(delay, ++n) == 0) {
            chosen = i;
        }
    }
    if (chosen == ops->end) {
        return false;
    }
    fy_op first = ops->items[chosen];
    memmove(&ops->items[ops->begin + 1], &ops->items[ops->begin],
            (chosen - ops->begin) * sizeof first);
    ops->items[ops->begin] = first;
    return true;
}

/*
 * Passes on what is due by now_ns, or forgets it all where the world has failed. The lock is held
 * and inner is in no call.
 */
static bool deliver(delay_layer *delay, int64_t now_ns)
{
    const fy_host *host = delay->base.host;
    bool worked = false;
    ferry_error error = {""};
    if (!fy_ops_empty(&delay->ops) && host->state(host, &error) != FERRY_OK) {
        fy_ops_forget(&delay->ops);
        keep_failure(delay, host->state(host, NULL), &error);
    }
    delay->depth++;
    while (choose(delay, now_ns)) {
        keep_failure(delay, fy_ops_perform_first(&delay->ops, &delay->base, &error), &error);
        worked = true;
    }
    delay->depth--;
    return worked;
}

static void wait_until(delay_layer *delay, int64_t when_ns)
{
    struct timespec when = {.tv_sec = (time_t)(when_ns / 1000000000),
                            .tv_nsec = (long)(when_ns % 1000000000)};
    pthread_cond_timedwait(&delay->changed, &delay->lock, &when);
}

static void *run(void *context)
{
    delay_layer *delay = context;
    pthread_mutex_lock(&delay->lock);
    while (!delay->stopping) {
        if (deliver(delay, fy_now_ns())) {
            delay->base.host->ring(delay->base.host);
        } else if (next_due_ns(delay) == NEVER_NS) {
            pthread_cond_wait(&delay->changed, &delay->lock);
        } else {
            wait_until(delay, next_due_ns(delay));
        }
    }
    pthread_mutex_unlock(&delay->lock);
    return NULL;
}

static bool init_lock(delay_layer *delay)
{
    pthread_mutexattr_t mutex;
    pthread_condattr_t condition;
    if (pthread_mutexattr_init(&mutex) != 0) {
        return false;
    }
    bool done = pthread_mutexattr_settype(&mutex, PTHREAD_MUTEX_RECURSIVE) == 0 &&
                pthread_mutex_init(&delay->lock, &mutex) == 0;
    pthread_mutexattr_destroy(&mutex);
    if (!done) {
        return false;
    }
    delay->has_lock = pthread_condattr_init(&condition) == 0;
    if (delay->has_lock) {
        delay->has_lock = pthread_condattr_setclock(&condition, CLOCK_MONOTONIC) == 0 &&
                          pthread_cond_init(&delay->changed, &condition) == 0;
        pthread_condattr_destroy(&condition);
    }
    if (!delay->has_lock) {
        pthread_mutex_destroy(&delay->lock);
    }
    return delay->has_lock;
}

/* With the first operation, under the lock. The program's signals are for the program's threads. */
static ferry_status start_thread(delay_layer *delay, ferry_error *error)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&delay->thread, NULL, run, delay);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    delay->has_thread = failed == 0;
    if (failed != 0) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "wrapper \"%s\": no thread can be started: %s",
                       delay->base.element, strerror(failed));
    }
    return FERRY_OK;
}

static ferry_status prepare_delay(fy_layer *layer, ferry_error *error)
{
    delay_layer *delay = (delay_layer *)layer;
    delay->random += (uint64_t)layer->host->rank << 32; /* each rank has a sequence of its own */
    fill_inner_host(delay);
    return fy_check_memory(init_lock(delay), "a lock of the wrapper \"delay\"", error);
}

static void stop_delay(fy_layer *layer)
{
    delay_layer *delay = (delay_layer *)layer;
    if (!delay->has_thread) {
        return;
    }
    pthread_mutex_lock(&delay->lock);
    delay->stopping = true;
    pthread_cond_signal(&delay->changed);
    pthread_mutex_unlock(&delay->lock);
    pthread_join(delay->thread, NULL);
    delay->has_thread = false;
}

static void cleanup_delay(fy_layer *layer)
{
    delay_layer *delay = (delay_layer *)layer;
    if (delay->has_lock) {
        pthread_cond_destroy(&delay->changed);
        pthread_mutex_destroy(&delay->lock);
    }
    fy_ops_cleanup(&delay->ops);
}

/* The table. */

static void enter(delay_layer *delay)
{
    pthread_mutex_lock(&delay->lock);
    delay->depth++;
}

static void leave(delay_layer *delay)
{
    delay->depth--;
    pthread_mutex_unlock(&delay->lock);
}

static bool delay_progress(void *state)
{
    delay_layer *delay = state;
    if (pthread_mutex_trylock(&delay->lock) != 0) {
        return false; /* its thread is at work */
    }
    bool worked = delay->depth == 0 && deliver(delay, fy_now_ns());
    delay->depth++;
    worked = fy_inner_progress(&delay->base) || worked;
    leave(delay);
    return worked;
}

static int64_t delay_sleep_ns(void *state)
{
    delay_layer *delay = state;
    enter(delay);
    int64_t most_ns = fy_inner_sleep_ns(&delay->base);
    if (next_due_ns(delay) != NEVER_NS) {
        int64_t left_ns = next_due_ns(delay) - fy_now_ns();
        left_ns = left_ns < 0 ? 0 : left_ns;
        most_ns = left_ns < most_ns ? left_ns : most_ns;
    }
    leave(delay);
    return most_ns;
}

static bool is_empty(void *context)
{
    delay_layer *delay = context;
    delay_progress(delay);
    pthread_mutex_lock(&delay->lock);
    bool empty = fy_ops_empty(&delay->ops);
    pthread_mutex_unlock(&delay->lock);
    return empty;
}

/* An operation that failed after its call had returned fails what is called next. */
static ferry_status earlier_failure(delay_layer *delay, ferry_error *error)
{
    pthread_mutex_lock(&delay->lock);
    ferry_status status = delay->status;
    if (status != FERRY_OK && error != NULL) {
        *error = delay->error;
    }
    pthread_mutex_unlock(&delay->lock);
    return status;
}

/* Until nothing is under way, so that inner may wait for peers that wait for what was put. */
static ferry_status drain(delay_layer *delay, ferry_error *error)
{
    const fy_host *host = delay->base.host;
    ferry_status status = host->state(host, error);
    pthread_mutex_lock(&delay->lock);
    ask_for(delay, FERRY_ANY_RANK, fy_now_ns());
    pthread_cond_signal(&delay->changed);
    pthread_mutex_unlock(&delay->lock);
    if (status == FERRY_OK && !is_empty(delay)) {
        status = host->wait(host, is_empty, delay_sleep_ns, delay, -1, error);
    }
    return status != FERRY_OK ? status : earlier_failure(delay, error);
}

static ferry_status add(delay_layer *delay, fy_op *op, ferry_error *error)
{
    FY_TRY(earlier_failure(delay, error));
    ferry_status status = FERRY_OK;
    int64_t now_ns = fy_now_ns();
    pthread_mutex_lock(&delay->lock);
    bool was_empty = fy_ops_empty(&delay->ops);
    op->due_ns = now_ns + delay->delay_ns;
    if (delay->reorders && op->has_signal) {
        ask_for(delay, op->peer, now_ns);
        op->due_ns = now_ns + (int64_t)draw(delay, (uint64_t)delay->delay_ns);
    } else if (delay->reorders) {
        op->due_ns = NEVER_NS;
    }
    if (!delay->has_thread) {
        status = start_thread(delay, error);
    }
    FY_THEN(status, fy_ops_add(&delay->ops, op, error));
    if (was_empty || delay->reorders) {
        pthread_cond_signal(&delay->changed);
    }
    pthread_mutex_unlock(&delay->lock);
    return status;
}

static ferry_status delay_put(void *state, uint32_t peer, const fy_region_view *region,
                              void *attachment, uint64_t offset, const void *source, uint64_t bytes,
                              const fy_signal_view *signal, ferry_error *error)
{
    fy_op op = fy_op_put(peer, region, attachment, offset, source, bytes, signal);
    return add(state, &op, error);
}

static ferry_status delay_get(void *state, uint32_t peer, const fy_region_view *region,
                              void *attachment, uint64_t offset, void *target, uint64_t bytes,
                              ferry_error *error)
{
    fy_op op = fy_op_get(peer, region, attachment, offset, target, bytes);
    return add(state, &op, error);
}

static ferry_status delay_flush(void *state, uint32_t peer, ferry_error *error)
{
    delay_layer *delay = state;
    ferry_status status = drain(delay, error);
    enter(delay);
    if (status != FERRY_OK) {
        fy_ops_forget(&delay->ops); /* the caller may free what they need */
    }
    ferry_status flushed = fy_inner_flush(&delay->base, peer, status == FERRY_OK ? error : NULL);
    leave(delay);
    return status == FERRY_OK ? flushed : status;
}

/* alloc is collective and comes to its own end, whatever operations met. */
static void delay_before(fy_layer *layer, fy_call *call)
{
    delay_layer *delay = (delay_layer *)layer;
    if (call->kind == FY_CALL_ALLOC) {
        ferry_error ignored;
        (void)drain(delay, &ignored);
    }
    enter(delay);
    if (call->kind == FY_CALL_RELEASE) {
        fy_ops_before_release(&delay->ops, layer, call->region);
    }
}

static void delay_after(fy_layer *layer, const fy_call *call)
{
    (void)call;
    leave((delay_layer *)layer);
}

static void wrap_delay(fy_layer *layer)
{
    fy_engine *table = &layer->table;
    table->put = delay_put;
    table->get = table->get == NULL ? NULL : delay_get;
    table->flush = delay_flush;
    table->progress = delay_progress;
    table->sleep_ns = delay_sleep_ns;
}

const fy_layer_kind fy_layer_delay = {
    .name = "delay",
    .summary = "lets operations begin later",
    .bytes = sizeof(delay_layer),
    .hides = FERRY_CAN_PEER_POINTER,
    .parse = parse_delay,
    .prepare = prepare_delay,
    .wrap = wrap_delay,
    .before = delay_before,
    .after = delay_after,
    .stop = stop_delay,
    .cleanup = cleanup_delay,
};

const fy_layer_kind fy_layer_reorder = {
    .name = "reorder",
    .summary = "lets puts wait for a flush or a signal, and come in any order",
    .bytes = sizeof(delay_layer),
    .hides = FERRY_CAN_PEER_POINTER,
    .parse = parse_reorder,
    .prepare = prepare_delay,
    .wrap = wrap_delay,
    .before = delay_before,
    .after = delay_after,
    .stop = stop_delay,
    .cleanup = cleanup_delay,
};
