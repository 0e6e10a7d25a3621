/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Who runs the worker. The target's CPU must, for bytes to arrive, also while the target's program
 * is elsewhere. An engine is in one of two states:
 *
 *   ticking  Calls of the library's run the worker. UCX's descriptor is not looked at, for it would
 *            wake the watcher with every message that the caller is about to see anyway. A timer
 *            ticks each millisecond; when no call has come since the last tick, the watcher runs
 *            the worker in the caller's place and arms.
 *   armed    UCX wakes the watcher by its descriptor, which then runs the worker, arms again, and
 *            rings. The timer ticks slowly, and the watcher looks whether UCX has missed something:
 *            1.13 can leave what arrives first on a shared memory interface to a callback inside
 *            the worker, and yet say that the worker may sleep.
 *
 *   ticking -> armed     a tick without a call since the last; sleep_ns, before the caller sleeps
 *   armed   -> ticking   a call sends something, or finds that something had arrived
 *
 * Calls that find nothing leave the engine armed, so it does not matter whether a waiter looks once
 * more between sleep_ns and its sleep. A call that does find something and sleeps all the same is
 * served by the timer within two ticks.
 *
 * The gate is an epoll set that has UCX's descriptor in it only while armed: a set that is merely
 * told not to look still costs the kernel a walk for every packet.
 */
#include "transport/ucx/ucx.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum {
    TICK_NS = 1000 * 1000,
    SLOW_NS = 10 * 1000 * 1000, /* the tick while armed */
    POLL_NS = 50 * 1000,        /* a sleep where nobody watches */
    MOST_ROUNDS = 16,           /* of one run */
    MOST_RUNS = 8,              /* of the watcher before it lets others have the mutex */
    STAY_NS = 200 * 1000,       /* who sleeps in a stream pays more for waking than for waiting */
    SOON_NS = 1000,
};

int64_t fy_ucx_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* A device that is lost cannot be entered: UCX then says what fails. */
static void enter_device(fy_ucx *engine, int32_t device)
{
    const fy_memory_kind *cuda =
        engine->has_module ? engine->host->memory(FERRY_MEMORY_CUDA) : NULL;
    engine->is_inside = cuda != NULL && cuda->enter(device, NULL) == FERRY_OK;
}

void fy_ucx_go_inside(fy_ucx *engine)
{
    enter_device(engine, -1);
}

void fy_ucx_go_outside(fy_ucx *engine)
{
    if (engine->is_inside) {
        engine->is_inside = false;
        engine->host->memory(FERRY_MEMORY_CUDA)->leave();
    }
}

void fy_ucx_use(fy_ucx *engine, fy_space space)
{
    if (!fy_is_host(space) && !engine->is_inside) {
        enter_device(engine, space.device);
    }
}

static void set_timer(fy_ucx *engine, long first_ns, long each_ns)
{
    struct itimerspec spec = {.it_value = {.tv_nsec = first_ns},
                              .it_interval = {.tv_nsec = each_ns}};
    (void)timerfd_settime(engine->timer, 0, &spec, NULL);
}

static void shut_gate(fy_ucx *engine)
{
    if (engine->is_armed) {
        (void)epoll_ctl(engine->gate, EPOLL_CTL_DEL, engine->worker_fd, NULL);
        engine->is_armed = false;
    }
}

void fy_ucx_disarm(fy_ucx *engine)
{
    shut_gate(engine);
    if (!engine->is_ticking && engine->is_watched) {
        engine->is_ticking = true;
        set_timer(engine, TICK_NS, TICK_NS);
    }
}

/* False: there is work to do first. */
static bool arm(fy_ucx *engine)
{
    if (!engine->is_armed) {
        if (ucp_worker_arm(engine->worker) != UCS_OK) {
            return false;
        }
        struct epoll_event event = {.events = EPOLLIN};
        if (epoll_ctl(engine->gate, EPOLL_CTL_ADD, engine->worker_fd, &event) != 0) {
            return false;
        }
        engine->is_armed = true;
    }
    return true;
}

static bool is_dead(fy_ucx *engine)
{
    if (!engine->is_dead && engine->host->state(engine->host, NULL) != FERRY_OK) {
        engine->is_dead = true;
    }
    return engine->is_dead;
}

bool fy_ucx_run(fy_ucx *engine)
{
    bool any = false;
    for (int round = 0; round < MOST_ROUNDS && !is_dead(engine); round++) {
        bool worked = ucp_worker_progress(engine->worker) != 0;
        bool settled = !engine->is_dead && fy_ucx_settle(engine);
        if (!worked && !settled) {
            break;
        }
        any = true;
    }
    if (any) {
        engine->worked_ns = fy_ucx_now_ns();
        fy_ucx_disarm(engine);
    }
    return any;
}

void fy_ucx_enter(fy_ucx *engine)
{
    pthread_mutex_lock(&engine->mutex);
    engine->n_calls++;
    fy_ucx_go_inside(engine);
}

void fy_ucx_leave(fy_ucx *engine)
{
    const fy_host *host = engine->host;
    fy_ucx_news *news = &engine->news;
    bool is_changed = news->is_changed;
    bool has_loss = news->has_loss;
    news->is_changed = false;
    news->has_loss = false;
    fy_ucx_go_outside(engine);
    pthread_mutex_unlock(&engine->mutex);
    if (is_changed) {
        host->ring(host);
    }
    if (has_loss) {
        host->lost(host, news->lost, news->sentence); /* they are written once only */
    }
}

/* Runs the worker in the caller's place, and arms; if there is no end of work, goes on soon. */
static void serve(fy_ucx *engine)
{
    for (int i = 0; i < MOST_RUNS && !is_dead(engine); i++) {
        if (!fy_ucx_run(engine) && arm(engine)) {
            return;
        }
    }
    if (!engine->is_dead) {
        engine->is_ticking = true;
        engine->n_calls_at_tick = engine->n_calls;
        set_timer(engine, SOON_NS, TICK_NS);
    }
}

/*
 * The watcher's thread has more to do, such as telling others that this rank lives. It does not
 * wait for a caller that registers memory, or copies much; and who has the mutex runs the worker
 * anyway.
 */
static bool enter_briefly(fy_ucx *engine)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += TICK_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    bool has_it = pthread_mutex_timedlock(&engine->mutex, &until) == 0;
    if (has_it) {
        fy_ucx_go_inside(engine);
    }
    return has_it;
}

static void on_event(void *context)
{
    fy_ucx *engine = context;
    if (!enter_briefly(engine)) {
        return;
    }
    if (engine->is_armed) {
        shut_gate(engine);
        serve(engine);
    }
    fy_ucx_leave(engine);
}

static void on_tick(void *context)
{
    fy_ucx *engine = context;
    uint64_t ticks;
    if (!enter_briefly(engine)) {
        return;
    }
    (void)!read(engine->timer, &ticks, sizeof ticks);
    if (is_dead(engine)) {
        engine->is_ticking = false;
        set_timer(engine, 0, 0);
    } else if (engine->is_armed && engine->is_ticking) {
        engine->is_ticking = false;
        set_timer(engine, SLOW_NS, SLOW_NS);
    } else if (engine->is_armed) {
        (void)fy_ucx_run(engine);
    } else if (engine->n_calls == engine->n_calls_at_tick) {
        serve(engine);
    }
    engine->n_calls_at_tick = engine->n_calls;
    fy_ucx_leave(engine);
}

bool fy_ucx_progress(void *state)
{
    fy_ucx *engine = state;
    fy_ucx_enter(engine);
    bool any = fy_ucx_run(engine);
    fy_ucx_leave(engine);
    return any;
}

int64_t fy_ucx_sleep_ns(void *state)
{
    fy_ucx *engine = state;
    if (!engine->is_watched) {
        return POLL_NS;
    }
    fy_ucx_enter(engine);
    bool may_sleep = is_dead(engine) || engine->is_armed;
    if (!may_sleep && fy_ucx_now_ns() - engine->worked_ns >= STAY_NS) {
        may_sleep = arm(engine);
    }
    fy_ucx_leave(engine);
    return may_sleep ? INT64_MAX : 0;
}

static ferry_status open_gate(fy_ucx *engine, ferry_error *error)
{
    if (ucp_worker_get_efd(engine->worker, &engine->worker_fd) != UCS_OK) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "the transports that UCX chose (UCX_TLS) cannot wake a sleeping process");
    }
    engine->gate = epoll_create1(EPOLL_CLOEXEC);
    engine->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (engine->gate < 0 || engine->timer < 0) {
        return fy_fail(error, FERRY_ERR_IO, "the ucx engine gets no descriptor to wait with: %s",
                       strerror(errno));
    }
    return FERRY_OK;
}

ferry_status fy_ucx_wake_open(fy_ucx *engine, ferry_error *error)
{
    const fy_host *host = engine->host;
    FY_TRY(open_gate(engine, error));
    ferry_error why;
    ferry_status status = host->watch(host, engine->gate, on_event, engine, &why);
    if (status == FERRY_ERR_UNSUPPORTED) {
        return FERRY_OK; /* bytes arrive while the target is in ferry: see capabilities */
    }
    if (status == FERRY_OK) {
        status = host->watch(host, engine->timer, on_tick, engine, &why);
        if (status != FERRY_OK) {
            host->unwatch(host, engine->gate);
        }
    }
    if (status != FERRY_OK) {
        return fy_forward(error, status, &why);
    }
    engine->is_watched = true;
    fy_ucx_enter(engine);
    fy_ucx_disarm(engine);
    fy_ucx_leave(engine);
    return FERRY_OK;
}

void fy_ucx_wake_close(fy_ucx *engine)
{
    if (engine->is_watched) {
        engine->host->unwatch(engine->host, engine->gate);
        engine->host->unwatch(engine->host, engine->timer);
        engine->is_watched = false;
    }
    if (engine->gate >= 0) {
        (void)close(engine->gate);
    }
    if (engine->timer >= 0) {
        (void)close(engine->timer);
    }
    engine->gate = -1;
    engine->timer = -1;
}
