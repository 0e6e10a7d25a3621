/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "collective/graphs.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "collective/comm.h"
#include "collective/kernel_state.h"
#include "world/order.h"

#include <signal.h>
#include <string.h>
#include <time.h>

/* How often the thread looks; a call that it finds twice takes long. */
enum { LOOK_NS = 5000000, GRACE_NS = 1000000, LONGEST_NS = 1000000000 };

/* At a device that may be lost: by the thread, and by who waits for it. */
enum { LOOKS_BETWEEN = 8, POLLS_BETWEEN = 256 };

/* A call of a graph's. */
typedef struct graph_call {
    struct graph_call *next;
    fy_mix_graphs *of;
    bool is_gone; /* no graph has it, and the thread may still ask for it */
    uint32_t which;
    uint32_t op, mode, n_lanes;
    ferry_mixed_tensor in, out;
} graph_call;

/* What the page says: a graph's call that is under way, or any call that has stopped. */
typedef struct sight {
    uint64_t call;
    uint32_t which; /* of a graph's calls; 0: of none */
    bool has_stopped;
} sight;

struct fy_mix_graphs {
    fy_mix_post post;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    uint32_t n_holders;
    ferry_mixed_comm *comm; /* NULL: it is gone */
    pthread_t thread;
    bool has_thread, owns_post;
    fy_order_onlooker onlooker; /* if there is a thread */
    bool is_inside;             /* the thread uses the handle */
    bool has_gone;              /* calls that no graph has any more */
    graph_call *first;
    uint32_t last_which;
    uint64_t n_asked, n_looked; /* who waits for a look, and what he waits for */
    sight seen;                 /* under way, at the last look */
    fy_mix_question question;   /* whether the device is there */
    bool has_judged;            /* what has stopped is known */
    uint64_t n_refused;         /* on the page, as it was seen last */
    uint64_t yes, floor;        /* words on their way to the device */
    uint64_t n_failed;          /* failures, of which this is the last: */
    ferry_status status;
    ferry_error error;

    _Atomic uint32_t n_calls; /* that graphs have; written under the lock */
    _Atomic bool is_closing, has_named;
    _Atomic uint64_t counted; /* the number of the call that the host has begun last */
};

/*
 * The page
 */

static fy_lanes_board *board_of(const fy_mix_graphs *graphs)
{
    return (fy_lanes_board *)graphs->post.page;
}

static const fy_lanes_report *report_of(const fy_mix_graphs *graphs, uint32_t lane)
{
    return (const fy_lanes_report *)(graphs->post.page + sizeof(fy_lanes_board)) + lane;
}

static uint64_t read_word(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Numbers are not far apart: either graphs or the host have made the calls before. */
uint64_t fy_mix_graphs_number(const fy_mix_graphs *graphs, uint32_t lane, uint64_t begun)
{
    uint64_t near =
        fy_max(read_word(&report_of(graphs, lane)->ended), atomic_load(&graphs->counted));
    return near + (uint64_t)(int64_t)(int32_t)((uint32_t)begun - (uint32_t)near);
}

static uint32_t graphs_name(uint64_t word)
{
    uint32_t which = (uint32_t)(word >> 32);
    return (which & FY_MIX_NAMES_AHEAD) == 0 ? which : 0;
}

/* One that is under way; which 0: none of a graph's is. */
static sight see_lane(const fy_mix_graphs *graphs, uint32_t lane)
{
    const fy_lanes_report *report = report_of(graphs, lane);
    uint64_t begun = read_word(&report->begun), ended = read_word(&report->ended);
    uint32_t which = (uint32_t)begun == (uint32_t)ended ? 0 : graphs_name(begun);
    return (sight){.call = fy_mix_graphs_number(graphs, lane, begun), .which = which};
}

/* One that has stopped, if there is any. */
static sight see(const fy_mix_graphs *graphs)
{
    sight found = {.which = 0};
    for (uint32_t i = 0; i < graphs->post.n_lanes && !found.has_stopped; i++) {
        const fy_lanes_report *report = report_of(graphs, i);
        uint64_t why = read_word(&report->why);
        if ((uint32_t)why != FY_LANES_GOES) {
            found = (sight){report->call, graphs_name(why), true};
        } else if (found.which == 0) {
            found = see_lane(graphs, i);
        }
    }
    return found;
}

static bool has_ended(const fy_mix_graphs *graphs, uint64_t call, uint32_t n_lanes)
{
    bool all = true;
    for (uint32_t i = 0; i < n_lanes && all; i++) {
        all = read_word(&report_of(graphs, i)->ended) >= call;
    }
    return all;
}

void fy_mix_post_free(fy_mix_post *post)
{
    if (post->page != NULL) {
        post->on.exec->lanes_give(post->page);
    }
    fy_mix_device_free(&post->on, &post->words);
    post->page = NULL;
}

/*
 * A call that takes long
 */

/* Under the lock. */
static void fail(fy_mix_graphs *graphs, ferry_status status, const ferry_error *error)
{
    graphs->n_failed++;
    graphs->status = status;
    graphs->error = *error;
}

static void pause_for(int64_t ns)
{
    const struct timespec moment = {.tv_nsec = ns};
    nanosleep(&moment, NULL);
}

/* Whether there is no point in waiting for the world any more. */
static bool is_late(const fy_mix_graphs *graphs, const graph_call *one, const sight *what,
                    int64_t since_ns)
{
    return atomic_load(&graphs->is_closing) ||
           (what->has_stopped ? fy_now_ns() - since_ns > LONGEST_NS
                              : has_ended(graphs, what->call, one->n_lanes));
}

/*
 * Who uses the handle just now comes first: it may be by a call that came before this one. If it
 * breaks meanwhile nobody else may look, as where a request has it for which nobody waits.
 */
static bool take(fy_mix_graphs *graphs, ferry_mixed_comm *comm, const graph_call *one,
                 const sight *what)
{
    int64_t since_ns = fy_now_ns();
    bool is_taken = false;
    while (!is_taken && !is_late(graphs, one, what, since_ns)) {
        is_taken = !atomic_exchange(&comm->busy, true);
        if (!is_taken && fy_comm_state(comm, NULL) != FERRY_OK) {
            fy_mix_kernel_stop(comm->kernel);
        }
        if (!is_taken) {
            pause_for(LOOK_NS / 10);
        }
    }
    return is_taken;
}

static bool is_over(const fy_order_end *end)
{
    return has_ended(end->by, end->ticket, 1) || see(end->by).has_stopped;
}

/*
 * The call begins for the host under its number, and ends where the kernel does. It keeps no thread
 * from anything, so a rank that is in another call meanwhile is no fault.
 */
static ferry_status join(ferry_mixed_comm *comm, const graph_call *one, const sight *what,
                         ferry_error *error)
{
    fy_mix_question question = {.n_between = POLLS_BETWEEN};
    const fy_mix_ahead ahead = {.is_there = true,
                                .number = what->call,
                                .n_lanes = one->n_lanes,
                                .is_graphs = true,
                                .question = &question};
    fy_mix_kernel_expect(comm, &ahead);
    comm->state.is_looked_on = true;
    ferry_status status =
        fy_comm_call(comm, one->op, &one->in, &one->out, one->mode, FERRY_OK, error);
    comm->state.is_looked_on = false;
    fy_mix_kernel_part(comm->kernel);
    return status;
}

/*
 * It cannot be told here what the call that has stopped differs from. Of one that is no graph's
 * somebody else says it soon.
 */
static ferry_status stop(ferry_mixed_comm *comm, const sight *what, ferry_error *error)
{
    int64_t since_ns = fy_now_ns();
    ferry_status status = fy_comm_state(comm, error);
    while (status == FERRY_OK && what->which == 0 && fy_now_ns() - since_ns < LONGEST_NS) {
        pause_for(LOOK_NS / 10);
        status = fy_comm_state(comm, error);
    }
    if (status == FERRY_OK) {
        status = fy_mix_kernel_say_stop(comm->kernel, what->call, error);
        fy_comm_break(comm, status, "%s", error->message);
    }
    return status;
}

/* What is counted is over. As a thread that works for a queue, beside whatever queue has the world.
 */
static ferry_status watch(fy_mix_graphs *graphs, ferry_mixed_comm *comm, const graph_call *one,
                          const sight *what, ferry_error *error)
{
    const fy_order_end end = {.is_over = is_over, .by = graphs, .ticket = what->call};
    ferry_status status = FERRY_OK;
    fy_order_join(comm->world, &end); /* who waits for the handle waits for the world first */
    fy_order_enter(comm->world);
    if (one != NULL && take(graphs, comm, one, what)) {
        if (comm->state.call.number < what->call) {
            status = join(comm, one, what, error);
        }
        fy_comm_give_back(comm);
    }
    if (status == FERRY_OK && what->has_stopped) {
        status = stop(comm, what, error);
    }
    fy_order_leave();
    fy_order_part(comm->world);
    return status;
}

/* Under the lock, which is open meanwhile. */
static void judge(fy_mix_graphs *graphs, const sight *what)
{
    const graph_call *one = what->which == 0 ? NULL : graphs->first;
    while (one != NULL && one->which != what->which) {
        one = one->next;
    }
    graph_call copy;
    if (one != NULL) {
        copy = *one;
    }
    ferry_error error = {.message = ""};
    ferry_mixed_comm *comm = graphs->comm;
    graphs->is_inside = true;
    pthread_mutex_unlock(&graphs->lock);
    ferry_status status = watch(graphs, comm, one != NULL ? &copy : NULL, what, &error);
    pthread_mutex_lock(&graphs->lock);
    graphs->is_inside = false;
    pthread_cond_broadcast(&graphs->changed);
    if (status != FERRY_OK) {
        graphs->has_judged = true;
        fail(graphs, status, &error);
    }
}

/* Launches that found the device halted. */
static void say_refused(fy_mix_graphs *graphs)
{
    ferry_error error = {.message = ""};
    if (graphs->comm == NULL || atomic_load(&graphs->is_closing)) {
        fail(graphs,
             fy_fail(&error, FERRY_ERR_MISUSE,
                     "run: a graph was launched that has this call of an object which was ended: "
                     "nothing was moved; capture a graph anew"),
             &error);
    } else if (graphs->status != FERRY_OK) {
        error = graphs->error;
        fail(graphs, graphs->status, &error);
    } else { /* of calls that are no graph's, whose failure somebody else says */
        fail(
            graphs,
            fy_fail(&error, FERRY_ERR_ABORTED,
                    "run: a graph was launched that has a call of a mixed collective whose kernels "
                    "were stopped before: nothing was moved"),
            &error);
    }
}

/* A device that is lost says nothing on the page. Under the lock, which is open meanwhile. */
static void look_at_device(fy_mix_graphs *graphs)
{
    ferry_error error = {.message = ""};
    ferry_mixed_comm *comm = graphs->comm;
    ferry_status status = fy_mix_device_ask(&graphs->post.on, &graphs->question, &error);
    if (status == FERRY_OK || atomic_load(&comm->broken) != FERRY_OK) {
        return;
    }
    graphs->is_inside = true;
    pthread_mutex_unlock(&graphs->lock);
    fy_order_enter(comm->world);
    fy_comm_break(comm, status, "%s", error.message);
    fy_order_leave();
    pthread_mutex_lock(&graphs->lock);
    graphs->is_inside = false;
    pthread_cond_broadcast(&graphs->changed);
    fail(graphs, status, &error);
}

/* Under the lock. */
static void look(fy_mix_graphs *graphs)
{
    if (graphs->comm != NULL && !atomic_load(&graphs->is_closing)) {
        look_at_device(graphs);
    }
    sight now = see(graphs), before = graphs->seen;
    bool is_long = now.which != 0 && now.which == before.which && now.call == before.call;
    bool is_new = now.has_stopped ? !graphs->has_judged : is_long;
    graphs->seen = now;
    if (is_new && graphs->comm != NULL && !atomic_load(&graphs->is_closing)) {
        judge(graphs, &now);
    }
    uint64_t n_refused = read_word(&board_of(graphs)->n_refused);
    if (n_refused != graphs->n_refused) {
        graphs->n_refused = n_refused;
        say_refused(graphs);
    }
}

/* What no graph has any more, once its end was seen. Under the lock. */
static void sweep(fy_mix_graphs *graphs)
{
    graph_call **link = &graphs->first;
    while (*link != NULL) {
        graph_call *one = *link;
        if (one->is_gone) {
            *link = one->next;
            fy_free(one);
        } else {
            link = &one->next;
        }
    }
}

/*
 * The thread
 */

static struct timespec soon(void)
{
    int64_t until = fy_now_ns() + LOOK_NS;
    return (struct timespec){.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
}

/* Under the lock. */
static void await_news(fy_mix_graphs *graphs)
{
    bool is_over = graphs->comm == NULL && graphs->first == NULL;
    if (is_over || graphs->n_asked != graphs->n_looked) {
        return;
    }
    if (graphs->first == NULL) {
        pthread_cond_wait(&graphs->changed, &graphs->lock);
    } else {
        struct timespec until = soon();
        pthread_cond_timedwait(&graphs->changed, &graphs->lock, &until);
    }
}

static void let_go(void *of)
{
    fy_mix_graphs *graphs = of;
    pthread_mutex_lock(&graphs->lock);
    bool is_last = --graphs->n_holders == 0;
    pthread_mutex_unlock(&graphs->lock);
    if (is_last) {
        pthread_cond_destroy(&graphs->changed);
        pthread_mutex_destroy(&graphs->lock);
        fy_free(graphs);
    }
}

static void hold(void *of)
{
    fy_mix_graphs *graphs = of;
    pthread_mutex_lock(&graphs->lock);
    graphs->n_holders++;
    pthread_mutex_unlock(&graphs->lock);
}

/* Who launches graphs may never ask. Under the lock, which is open meanwhile. */
static void say(fy_mix_graphs *graphs)
{
    ferry_error error = graphs->error;
    pthread_mutex_unlock(&graphs->lock);
    fy_log(FERRY_LOG_ERROR, "a call of a graph: %s", error.message);
    pthread_mutex_lock(&graphs->lock);
}

/* Until the handle is gone and no graph has a call. */
static void *look_on(void *context)
{
    fy_mix_graphs *graphs = context;
    pthread_mutex_lock(&graphs->lock);
    while (graphs->comm != NULL || graphs->first != NULL) {
        uint64_t n_asked = graphs->n_asked;
        bool has_gone = graphs->has_gone;
        graphs->has_gone = false;
        uint64_t n_failed = graphs->n_failed;
        look(graphs);
        if (has_gone) {
            sweep(graphs);
        }
        if (graphs->n_failed != n_failed) {
            say(graphs);
        }
        graphs->n_looked = n_asked;
        pthread_cond_broadcast(&graphs->changed);
        await_news(graphs);
    }
    graphs->n_looked = UINT64_MAX;
    graphs->has_thread = false;
    pthread_cond_broadcast(&graphs->changed);
    bool owns_post = graphs->owns_post;
    pthread_mutex_unlock(&graphs->lock);
    if (owns_post) {
        fy_mix_post_free(&graphs->post);
    }
    let_go(graphs);
    return NULL;
}

/* Where the handle is broken what goes on ends soon, or never. */
static bool goes_on(const void *of)
{
    const fy_mix_graphs *graphs = of;
    return atomic_load(&graphs->comm->broken) == FERRY_OK && fy_mix_graphs_go_on(graphs);
}

/* Under the lock. */
static ferry_status need_thread(fy_mix_graphs *graphs, ferry_error *error)
{
    sigset_t all, old;
    pthread_t thread;
    if (graphs->has_thread) {
        return FERRY_OK;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int problem = pthread_create(&thread, NULL, look_on, graphs);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (problem != 0) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "who looks on at graphs gets no thread: %s",
                       strerror(problem));
    }
    graphs->thread = thread;
    graphs->has_thread = true;
    graphs->n_holders++;
    graphs->onlooker = (fy_order_onlooker){.sees = goes_on, .of = graphs};
    fy_order_add_onlooker(graphs->comm->world, &graphs->onlooker);
    return FERRY_OK;
}

/*
 * Graphs
 */

/*
 * A thread of the driver's, mostly. The thread looks at what the call has done first, and wakes by
 * itself: a graph with many calls goes one by one.
 */
static void forget(void *context)
{
    graph_call *one = context;
    fy_mix_graphs *graphs = one->of;
    pthread_mutex_lock(&graphs->lock);
    one->is_gone = graphs->has_gone = true;
    atomic_fetch_sub(&graphs->n_calls, 1);
    pthread_mutex_unlock(&graphs->lock);
}

/* Whether a look would find anything that is not known. Under the lock. */
static bool has_news(const fy_mix_graphs *graphs)
{
    return read_word(&board_of(graphs)->n_refused) != graphs->n_refused ||
           (!graphs->has_judged && see(graphs).has_stopped);
}

/* What is over now is known when the thread has looked. */
static ferry_status ask(void *of, uint64_t *n_heard, ferry_error *error)
{
    fy_mix_graphs *graphs = of;
    ferry_status status = FERRY_OK;
    pthread_mutex_lock(&graphs->lock);
    if (graphs->has_thread && has_news(graphs)) {
        uint64_t number = ++graphs->n_asked;
        pthread_cond_broadcast(&graphs->changed);
        while (graphs->n_looked < number) {
            pthread_cond_wait(&graphs->changed, &graphs->lock);
        }
    }
    if (graphs->n_failed > *n_heard) {
        *n_heard = graphs->n_failed;
        status = fy_forward(error, graphs->status, &graphs->error);
    }
    pthread_mutex_unlock(&graphs->lock);
    return status;
}

static ferry_status add(fy_mix_graphs *graphs, graph_call *one, ferry_error *error)
{
    pthread_mutex_lock(&graphs->lock);
    ferry_status status = need_thread(graphs, error);
    if (status == FERRY_OK) {
        one->which = graphs->last_which = graphs->last_which % (FY_MIX_NAMES_AHEAD - 1) + 1;
        one->next = graphs->first;
        graphs->first = one;
        fy_mix_graphs_has_named(graphs);
        atomic_fetch_add(&graphs->n_calls, 1); /* from here on the host says what it counts */
    }
    pthread_mutex_unlock(&graphs->lock);
    return status;
}

ferry_status fy_mix_graphs_capture(fy_mix_graphs *graphs, fy_queue *queue, const fy_mix_call *call,
                                   const ferry_mixed_tensor *in, const ferry_mixed_tensor *out,
                                   ferry_error *error)
{
    graph_call *one = fy_alloc_zeroed(1, sizeof *one);
    fy_lanes_call lanes;
    FY_TRY(fy_check_memory(one != NULL, "a call in a graph", error));
    *one = (graph_call){.of = graphs,
                        .op = call->op,
                        .mode = call->mode,
                        .n_lanes = call->geometry.n_lanes,
                        .in = *in,
                        .out = *out};
    ferry_status status = add(graphs, one, error);
    if (status != FERRY_OK) {
        fy_free(one);
        return status;
    }
    fy_mix_kernel_fill(graphs->comm->kernel, call, one->which, &lanes);
    const fy_queue_kernel kernel = {.call = &lanes,
                                    .forget = forget,
                                    .context = one,
                                    .of = graphs,
                                    .ask = ask,
                                    .hold = hold,
                                    .let_go = let_go};
    return fy_queue_capture_kernel(queue, &kernel, error);
}

bool fy_mix_graphs_exist(const fy_mix_graphs *graphs)
{
    return graphs != NULL && atomic_load(&graphs->n_calls) > 0;
}

bool fy_mix_graphs_go_on(const fy_mix_graphs *graphs)
{
    bool goes_on = false;
    for (uint32_t i = 0; graphs != NULL && i < graphs->post.n_lanes && !goes_on; i++) {
        goes_on = see_lane(graphs, i).which != 0;
    }
    return goes_on;
}

void fy_mix_graphs_has_named(fy_mix_graphs *graphs)
{
    atomic_store(&graphs->has_named, true);
}

bool fy_mix_graphs_have_named(const fy_mix_graphs *graphs)
{
    return graphs != NULL && atomic_load(&graphs->has_named);
}

uint64_t fy_mix_graphs_last(const fy_mix_graphs *graphs)
{
    return fy_mix_graphs_have_named(graphs)
               ? fy_mix_graphs_number(graphs, 0, read_word(&report_of(graphs, 0)->begun))
               : 0;
}

void fy_mix_graphs_has_counted(fy_mix_graphs *graphs, uint64_t number)
{
    if (graphs != NULL) {
        atomic_store(&graphs->counted, number);
    }
}

uint64_t fy_mix_graphs_counted(const fy_mix_graphs *graphs)
{
    return atomic_load(&graphs->counted);
}

/* A word of the device's, and whether it has got it in time. */
static ferry_status tell(fy_mix_graphs *graphs, size_t at, uint64_t *word)
{
    const fy_mix_device *on = &graphs->post.on;
    int64_t since_ns = fy_now_ns();
    fy_ticket ticket;
    ferry_status status =
        fy_mix_device_copy(on, (char *)graphs->post.words.base + at, word, sizeof *word, NULL);
    FY_THEN(status, on->exec->mark(on->queue, &ticket, NULL));
    for (uint32_t i = 0; status == FERRY_OK || status == FERRY_ERR_TIMEOUT; i++) {
        status = fy_exec_reached(on->exec, on->queue, ticket, NULL);
        if (status != FERRY_ERR_TIMEOUT || fy_now_ns() - since_ns > FY_MIX_GRAPHS_PATIENCE_NS) {
            break;
        }
        fy_exec_pause(i);
    }
    return status;
}

ferry_status fy_mix_graphs_say_floor(fy_mix_graphs *graphs, uint64_t number)
{
    graphs->floor = number;
    return tell(graphs, offsetof(fy_lanes_halt, floor), &graphs->floor);
}

/*
 * A kernel says that it begins before it looks whether it may, and both have happened within the
 * grace.
 */
static void await_kernels(const fy_mix_graphs *graphs)
{
    fy_mix_question question = {.n_between = POLLS_BETWEEN};
    pause_for(GRACE_NS);
    for (uint32_t i = 0; fy_mix_graphs_go_on(graphs) &&
                         fy_mix_device_ask(&graphs->post.on, &question, NULL) == FERRY_OK;
         i++) {
        fy_exec_pause(i);
    }
}

void fy_mix_graphs_end(fy_mix_graphs *graphs)
{
    if (graphs == NULL || atomic_exchange(&graphs->is_closing, true)) {
        return;
    }
    pthread_mutex_lock(&graphs->lock);
    bool has_any = graphs->has_thread;
    while (graphs->is_inside) {
        pthread_cond_wait(&graphs->changed, &graphs->lock);
    }
    pthread_mutex_unlock(&graphs->lock);
    graphs->yes = 1;
    if (has_any && tell(graphs, offsetof(fy_lanes_halt, halted), &graphs->yes) == FERRY_OK) {
        await_kernels(graphs);
    }
}

bool fy_mix_graphs_part(fy_mix_graphs *graphs)
{
    if (graphs == NULL) {
        return false;
    }
    fy_mix_graphs_end(graphs);
    pthread_mutex_lock(&graphs->lock);
    bool has_thread = graphs->has_thread;
    if (has_thread) {
        fy_order_remove_onlooker(graphs->comm->world, &graphs->onlooker);
    }
    graphs->comm = NULL;
    bool stays = graphs->owns_post = graphs->first != NULL;
    pthread_t thread = graphs->thread;
    pthread_cond_broadcast(&graphs->changed);
    pthread_mutex_unlock(&graphs->lock);
    if (stays) {
        pthread_detach(thread);
    } else if (has_thread) {
        pthread_join(thread, NULL);
    }
    let_go(graphs);
    return stays;
}

ferry_status fy_mix_graphs_create(ferry_mixed_comm *comm, const fy_mix_post *post,
                                  fy_mix_graphs **graphs_out, ferry_error *error)
{
    fy_mix_graphs *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    FY_TRY(fy_check_memory(fresh != NULL, "graphs of a mixed collective", error));
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&fresh->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&fresh->lock, NULL);
    fresh->post = *post;
    fresh->comm = comm;
    fresh->n_holders = 1;
    fresh->question.n_between = LOOKS_BETWEEN;
    *graphs_out = fresh;
    return FERRY_OK;
}
