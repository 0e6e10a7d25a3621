/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/queue.h"

#include "exec/moment.h"

#include "base/alloc.h"
#include "base/log.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

/*
 * Two threads serve a queue: the exec's own, which does its verbs, and the driver, which runs what
 * the host has to do in the queue's order. The exec may not be held up in a host function, so the
 * order is kept by a word: a host function wakes the driver, and behind it the exec waits until
 * the driver has set the word.
 */

/* Deferred work, or watched: number n sets the word to n when it has returned. */
typedef struct job {
    struct job *next;
    fy_queue *queue;
    fy_queue_fn function;
    void *context;
    bool is_due; /* the exec has come to it */
} job;

/* Who looks on at kernels that graphs have: there are as many as have been captured here. */
typedef struct onlooker {
    struct onlooker *next;
    fy_queue_kernel who; /* what is his alone */
    uint64_t n_heard;
    uint32_t n_kernels, n_asking;
} onlooker;

/* Of a graph's: done anew at each launch. Of the queue's lock. */
typedef struct captured {
    struct captured *next; /* of those that are due */
    fy_queue *queue;
    onlooker *onlooker;   /* of a kernel; NULL: the driver does it */
    fy_queue_fn function; /* then */
    void (*forget)(void *context);
    void *context;
    _Atomic uint64_t *over; /* what the graph waits for */
    bool is_due;            /* until it is over */
    bool is_gone;           /* the graph did not wait for the end */
} captured;

typedef struct kept {
    struct kept *next;
    fy_moment *moment;
    fy_ticket ticket; /* behind which the queue needs it no more */
} kept;

typedef enum meeting { MEETING_UNKNOWN = 0, MEETING_MAY, MEETING_NEVER } meeting;

struct fy_queue {
    fy_queue *next;
    ferry_queue *handle;
    bool is_inherited; /* of a process that has forked this one: none of its threads is here */
    uint32_t n_inside; /* calls under way that use it: of the list's lock */
    fy_space space;
    const fy_exec *exec;
    fy_exec_queue *own;
    void *native;

    pthread_mutex_t verbs; /* who calls verbs has it; also of what follows */
    uint64_t n_deferred;
    kept *kept;
    meeting meeting;

    pthread_mutex_t lock; /* of what follows; never held while a verb is called */
    pthread_cond_t changed;
    pthread_t driver;
    bool has_driver;
    bool closing, is_left; /* the handle is gone, and the driver frees what is left */
    job *first, **last;
    captured *due, **last_due;
    uint32_t n_captured, n_kernels; /* that graphs have; of these, those that are kernels */
    onlooker *onlookers;
    ferry_status status; /* the first failure since it was asked for */
    ferry_error error;

    _Atomic uint64_t word;
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
static fy_queue *queues; /* all that are open */

/* On a thread that does work of a queue: which, and whether it is a function of the caller's. */
static _Thread_local struct {
    const fy_queue *queue;
    bool calls;
} here;

/*
 * Entering
 */

/* Under the list's lock; NULL: it is no queue, or none any more. */
static fy_queue *find(const ferry_queue *handle)
{
    fy_queue *one = queues;
    while (one != NULL && one->handle != handle) {
        one = one->next;
    }
    return one;
}

static ferry_status refuse(const ferry_queue *handle, const fy_queue *found, const char *what,
                           ferry_error *error)
{
    if (found != NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s: the queue was made before this process was forked, and stays with the "
                       "process that made it: make one here",
                       what);
    }
    return fy_fail(error, FERRY_ERR_MISUSE,
                   "%s: %p is no queue: it was destroyed, or never created", what,
                   (const void *)handle);
}

ferry_status fy_queue_enter(ferry_queue *handle, const char *what, fy_queue **queue_out,
                            ferry_error *error)
{
    *queue_out = NULL;
    if (handle == NULL) {
        return FERRY_OK;
    }
    if (here.calls) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s: a function that a queue calls uses no queue itself", what);
    }
    pthread_mutex_lock(&list_lock);
    fy_queue *found = find(handle);
    bool is_good = found != NULL && !found->is_inherited;
    if (is_good) {
        found->n_inside++;
    }
    pthread_mutex_unlock(&list_lock);
    if (!is_good) {
        return refuse(handle, found, what, error);
    }
    *queue_out = found;
    return FERRY_OK;
}

bool fy_queue_works_here(const void *native)
{
    return native != NULL && here.queue != NULL && here.queue->native == native;
}

void fy_queue_leave(fy_queue *queue)
{
    if (queue != NULL) {
        pthread_mutex_lock(&list_lock);
        queue->n_inside--;
        pthread_cond_broadcast(&left);
        pthread_mutex_unlock(&list_lock);
    }
}

bool fy_queue_is_host(const fy_queue *queue)
{
    return queue == NULL || fy_is_host(queue->space);
}

ferry_status fy_queue_check_space(const fy_queue *queue, fy_space space, const char *what,
                                  ferry_error *error)
{
    if (fy_queue_is_host(queue) || queue->exec->reaches(queue->space.device, space)) {
        return FERRY_OK;
    }
    return fy_fail(error, FERRY_ERR_MISUSE,
                   "%s: a queue of kind %s, device %d, has no access to memory of kind %s, device "
                   "%d: take a queue of that device",
                   what, fy_memory_name(queue->space.kind), (int)queue->space.device,
                   fy_memory_name(space.kind), (int)space.device);
}

fy_exec_queue *fy_queue_begin(fy_queue *queue, const fy_exec **exec_out)
{
    pthread_mutex_lock(&queue->verbs);
    *exec_out = queue->exec;
    return queue->own;
}

void fy_queue_end(fy_queue *queue)
{
    pthread_mutex_unlock(&queue->verbs);
}

/*
 * The driver
 */

/* Under the lock. */
static void keep_first(fy_queue *queue, ferry_status status, const ferry_error *error)
{
    if (status == FERRY_OK) {
        return;
    }
    if (queue->is_left) { /* nobody can ask any more */
        fy_log(FERRY_LOG_ERROR, "a call of a graph, whose queue was destroyed: %s", error->message);
    }
    if (queue->status == FERRY_OK) {
        queue->status = status;
        queue->error = *error;
    }
}

static void remember(fy_queue *queue, ferry_status status, const ferry_error *error)
{
    pthread_mutex_lock(&queue->lock);
    keep_first(queue, status, error);
    pthread_mutex_unlock(&queue->lock);
}

static job *take_job(fy_queue *queue)
{
    job *one = queue->first;
    if (one == NULL || !one->is_due) {
        return NULL;
    }
    queue->first = one->next;
    queue->last = queue->first == NULL ? &queue->first : queue->last;
    return one;
}

static captured *take_due(fy_queue *queue)
{
    captured *one = queue->due;
    if (one != NULL) {
        queue->due = one->next;
        queue->last_due = queue->due == NULL ? &queue->due : queue->last_due;
    }
    return one;
}

/* The next job once the exec has come to it, or what a graph has come to; else false: the end. */
static bool next_work(fy_queue *queue, job **job_out, captured **captured_out)
{
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        *job_out = take_job(queue);
        *captured_out = *job_out == NULL ? take_due(queue) : NULL;
        bool is_end = queue->closing && queue->first == NULL && queue->n_captured == 0;
        if (*job_out != NULL || *captured_out != NULL || is_end) {
            break;
        }
        pthread_cond_wait(&queue->changed, &queue->lock);
    }
    pthread_mutex_unlock(&queue->lock);
    return *job_out != NULL || *captured_out != NULL;
}

static void do_job(fy_queue *queue, job *one)
{
    ferry_error error = {.message = ""};
    ferry_status status = one->function(one->context, &error);
    remember(queue, status, &error);
    fy_free(one);
    atomic_fetch_add(&queue->word, 1);
}

static void free_captured(captured *one)
{
    one->forget(one->context);
    fy_free(one);
}

static void do_captured(fy_queue *queue, captured *one)
{
    ferry_error error = {.message = ""};
    ferry_status status = one->function(one->context, &error);
    remember(queue, status, &error);
    pthread_mutex_lock(&queue->lock);
    bool is_gone = one->is_gone;
    one->is_due = false;
    queue->n_captured -= is_gone;
    atomic_store(one->over, 1);
    pthread_mutex_unlock(&queue->lock); /* from here on its graph may free it */
    if (is_gone) {
        free_captured(one);
    }
}

static void free_queue(fy_queue *queue);

static void *drive(void *context)
{
    fy_queue *queue = context;
    job *one;
    captured *call;
    here.queue = queue;
    while (next_work(queue, &one, &call)) {
        if (one != NULL) {
            do_job(queue, one);
        } else {
            do_captured(queue, call);
        }
    }
    if (queue->is_left) {
        free_queue(queue);
    }
    return NULL;
}

/* Under the lock of verbs. */
static ferry_status need_driver(fy_queue *queue, ferry_error *error)
{
    if (queue->has_driver) {
        return FERRY_OK;
    }
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int problem = pthread_create(&queue->driver, NULL, drive, queue);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    queue->has_driver = problem == 0;
    return problem == 0 ? FERRY_OK
                        : fy_fail(error, FERRY_ERR_NO_MEMORY, "a queue gets no thread: %s",
                                  strerror(problem));
}

/* Mostly on a thread of the exec's. */
static void wake(void *context)
{
    job *one = context;
    fy_queue *queue = one->queue;
    pthread_mutex_lock(&queue->lock);
    one->is_due = true;
    pthread_cond_signal(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

static void append(fy_queue *queue, job *one)
{
    pthread_mutex_lock(&queue->lock);
    *queue->last = one;
    queue->last = &one->next;
    pthread_mutex_unlock(&queue->lock);
}

/* The last one, which the exec has not heard of. */
static void take_back(fy_queue *queue, job *one)
{
    pthread_mutex_lock(&queue->lock);
    job **link = &queue->first;
    while (*link != one) {
        link = &(*link)->next;
    }
    *link = NULL;
    queue->last = link;
    pthread_mutex_unlock(&queue->lock);
}

/* Under the lock of verbs. A wait that fails leaves the order of later work open, and says so. */
static ferry_status enqueue(fy_queue *queue, job *one, ferry_error *error)
{
    ferry_error why;
    append(queue, one);
    ferry_status status = queue->exec->call(queue->own, wake, one, error);
    if (status != FERRY_OK) {
        take_back(queue, one);
        return status;
    }
    queue->n_deferred++;
    remember(queue, queue->exec->word_wait(queue->own, &queue->word, queue->n_deferred, &why),
             &why);
    return FERRY_OK;
}

ferry_status fy_queue_defer(fy_queue *queue, fy_queue_fn function, void *context,
                            ferry_error *error)
{
    if (fy_queue_is_host(queue)) {
        return function(context, error);
    }
    job *one = fy_alloc_zeroed(1, sizeof *one);
    FY_TRY(fy_check_memory(one != NULL, "work on a queue", error));
    *one = (job){.queue = queue, .function = function, .context = context};
    pthread_mutex_lock(&queue->verbs);
    ferry_status status = need_driver(queue, error);
    FY_THEN(status, enqueue(queue, one, error));
    pthread_mutex_unlock(&queue->verbs);
    if (status != FERRY_OK) {
        fy_free(one);
    }
    return status;
}

static bool have_graphs(fy_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    bool have = queue->n_captured > queue->n_kernels; /* for the driver */
    pthread_mutex_unlock(&queue->lock);
    return have;
}

bool fy_queue_may_meet(fy_queue *queue)
{
    if (have_graphs(queue)) {
        return false;
    }
    pthread_mutex_lock(&queue->verbs);
    if (queue->meeting == MEETING_UNKNOWN) {
        bool is_adopted = queue->native != (void *)queue->own;
        bool may = is_adopted || (queue->exec->lanes_meet != NULL &&
                                  queue->exec->lanes_meet(queue->own, NULL) == FERRY_OK);
        queue->meeting = may ? MEETING_MAY : MEETING_NEVER;
    }
    bool may_meet = queue->meeting == MEETING_MAY;
    pthread_mutex_unlock(&queue->verbs);
    return may_meet;
}

fy_space fy_queue_space(const fy_queue *queue)
{
    return queue->space;
}

const fy_exec *fy_queue_exec(const fy_queue *queue)
{
    return queue->exec;
}

/* Under the lock of verbs, so that jobs are in the order of what the exec does. */
static ferry_status begin_watched(fy_queue *queue, fy_queue_begin_fn begin, job *one,
                                  ferry_error *error)
{
    FY_TRY(need_driver(queue, error));
    FY_TRY(begin(one->context, queue->own, error));
    queue->n_deferred++;
    append(queue, one);
    wake(one);
    return FERRY_OK;
}

ferry_status fy_queue_watch(fy_queue *queue, fy_queue_begin_fn begin, fy_queue_fn function,
                            void *context, ferry_error *error)
{
    job *one = fy_alloc_zeroed(1, sizeof *one);
    FY_TRY(fy_check_memory(one != NULL, "work on a queue", error));
    *one = (job){.queue = queue, .function = function, .context = context};
    pthread_mutex_lock(&queue->verbs);
    ferry_status status = begin_watched(queue, begin, one, error);
    pthread_mutex_unlock(&queue->verbs);
    if (status != FERRY_OK) {
        fy_free(one);
    }
    return status;
}

/*
 * Graphs
 */

ferry_status fy_queue_is_captured(fy_queue *queue, bool *is_captured_out, ferry_error *error)
{
    *is_captured_out = false;
    if (fy_queue_is_host(queue) || queue->exec->is_captured == NULL) {
        return FERRY_OK;
    }
    return queue->exec->is_captured(queue->own, is_captured_out, error);
}

void fy_queue_make_way(fy_queue *queue)
{
    if (queue->exec->make_way != NULL) {
        queue->exec->make_way(queue->own);
    }
}

/* On a thread of the exec's. Whoever does the earlier launch ends this one, too. */
static void launched(void *context, _Atomic uint64_t *over)
{
    captured *one = context;
    fy_queue *queue = one->queue;
    pthread_mutex_lock(&queue->lock);
    atomic_store(over, 0);
    if (one->is_due) {
        ferry_error why;
        keep_first(queue,
                   fy_fail(&why, FERRY_ERR_MISUSE,
                           "a call in a graph was launched again before it was over: launch what a "
                           "capture has made on one stream, and only once at a time"),
                   &why);
    } else {
        one->is_due = true;
        one->over = over;
        one->next = NULL;
        *queue->last_due = one;
        queue->last_due = &one->next;
        pthread_cond_signal(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
}

/*
 * Kernels
 */

/* Under the lock. */
static onlooker *find_onlooker(const fy_queue *queue, const void *of)
{
    onlooker *one = queue->onlookers;
    while (one != NULL && one->who.of != of) {
        one = one->next;
    }
    return one;
}

/* One kernel more. Under the lock. NULL: no memory. */
static onlooker *need_onlooker(fy_queue *queue, const fy_queue_kernel *who)
{
    onlooker *one = find_onlooker(queue, who->of);
    if (one == NULL && (one = fy_alloc_zeroed(1, sizeof *one)) != NULL) {
        *one = (onlooker){.next = queue->onlookers, .who = *who};
        queue->onlookers = one;
        who->hold(who->of);
    }
    if (one != NULL) {
        one->n_kernels++;
    }
    return one;
}

/* Of whom nobody will ask any more. Under the lock. */
static void drop_onlooker(fy_queue *queue, onlooker *one)
{
    onlooker **link = &queue->onlookers;
    while (*link != one) {
        link = &(*link)->next;
    }
    *link = one->next;
    one->who.let_go(one->who.of);
    fy_free(one);
}

static void free_queue(fy_queue *queue)
{
    while (queue->onlookers != NULL) {
        drop_onlooker(queue, queue->onlookers);
    }
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
    pthread_mutex_destroy(&queue->verbs);
    fy_free(queue);
}

/* What has become of kernels is a failure of the queue's, too. */
static void ask_onlookers(fy_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    for (onlooker *one = queue->onlookers, *next; one != NULL; one = next) {
        ferry_error why = {.message = ""};
        uint64_t n_heard = one->n_heard;
        one->n_asking++;
        pthread_mutex_unlock(&queue->lock);
        ferry_status status = one->who.ask(one->who.of, &n_heard, &why);
        pthread_mutex_lock(&queue->lock);
        if (n_heard > one->n_heard) {
            one->n_heard = n_heard;
            keep_first(queue, status, &why);
        }
        one->n_asking--;
        next = one->next;
        if (one->n_kernels == 0 && one->n_asking == 0) { /* their graphs went before this */
            drop_onlooker(queue, one);
        }
    }
    pthread_mutex_unlock(&queue->lock);
}

/* On some thread. A graph that is lost with its device may go before its call has ended. */
static bool gone(void *context)
{
    captured *one = context;
    fy_queue *queue = one->queue;
    pthread_mutex_lock(&queue->lock);
    bool is_due = one->is_due;
    if (one->onlooker != NULL) {
        queue->n_kernels--;
        one->onlooker->n_kernels--; /* what became of it is still to be asked */
    }
    one->is_gone = true;
    queue->n_captured -= !is_due;
    pthread_cond_signal(&queue->changed); /* which may free the queue, once this has unlocked */
    pthread_mutex_unlock(&queue->lock);
    if (!is_due) {
        free_captured(one);
    }
    return !is_due;
}

ferry_status fy_queue_capture(fy_queue *queue, fy_queue_fn function, void (*forget)(void *context),
                              void *context, ferry_error *error)
{
    captured *one = fy_alloc_zeroed(1, sizeof *one);
    if (one == NULL) {
        forget(context);
        return fy_fail_no_memory(error, "a call in a graph");
    }
    *one = (captured){.queue = queue, .function = function, .forget = forget, .context = context};
    const fy_graph_call call = {.launched = launched, .gone = gone, .context = one};
    pthread_mutex_lock(&queue->lock);
    queue->n_captured++;
    pthread_mutex_unlock(&queue->lock);
    pthread_mutex_lock(&queue->verbs);
    ferry_status status = need_driver(queue, error);
    if (status != FERRY_OK) {
        (void)gone(one);
    }
    FY_THEN(status, queue->exec->capture(queue->own, &call, error));
    pthread_mutex_unlock(&queue->verbs);
    return status;
}

/* Counted, and with its onlooker. */
static ferry_status add_kernel(fy_queue *queue, captured *one, const fy_queue_kernel *kernel,
                               ferry_error *error)
{
    pthread_mutex_lock(&queue->lock);
    one->onlooker = need_onlooker(queue, kernel);
    queue->n_captured += one->onlooker != NULL;
    queue->n_kernels += one->onlooker != NULL;
    pthread_mutex_unlock(&queue->lock);
    return fy_check_memory(one->onlooker != NULL, "a call in a graph", error);
}

ferry_status fy_queue_capture_kernel(fy_queue *queue, const fy_queue_kernel *kernel,
                                     ferry_error *error)
{
    captured *one = fy_alloc_zeroed(1, sizeof *one);
    ferry_status status = fy_check_memory(one != NULL, "a call in a graph", error);
    if (status == FERRY_OK) {
        *one = (captured){.queue = queue, .forget = kernel->forget, .context = kernel->context};
        status = add_kernel(queue, one, kernel, error);
    }
    if (status != FERRY_OK) {
        kernel->forget(kernel->context);
        fy_free(one);
        return status;
    }
    const fy_graph_call call = {.gone = gone, .context = one};
    pthread_mutex_lock(&queue->verbs);
    status = need_driver(queue, error); /* which stays with the queue for as long as the graph */
    if (status != FERRY_OK) {
        (void)gone(one);
    }
    FY_THEN(status, queue->exec->capture_lanes(queue->own, kernel->call, &call, error));
    pthread_mutex_unlock(&queue->verbs);
    return status;
}

/*
 * Queues
 */

static void before_fork(void)
{
    pthread_mutex_lock(&list_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&list_lock);
}

static void in_child(void)
{
    for (fy_queue *one = queues; one != NULL; one = one->next) {
        one->is_inherited = true;
    }
    pthread_mutex_unlock(&list_lock);
}

static void watch_forks(void)
{
    (void)pthread_atfork(before_fork, after_fork, in_child);
}

/*
 * Handles are numbers, and none is given twice: one that is kept too long never means a queue that
 * was made later, as an address may. They are odd, as no object's address is.
 */
static void enlist(fy_queue *fresh)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static uintptr_t n_made;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&list_lock);
    fresh->handle = (ferry_queue *)(++n_made << 12 | 1);
    fresh->next = queues;
    queues = fresh;
    pthread_mutex_unlock(&list_lock);
}

static ferry_status make(fy_space space, void *native, ferry_queue **queue_out, ferry_error *error)
{
    FY_TRY(fy_space_check(space, "a queue", error));
    fy_queue *fresh = NULL;
    FY_TRY(fy_check_memory((fresh = fy_alloc_zeroed(1, sizeof *fresh)) != NULL, "a queue", error));
    fresh->space = space;
    fresh->exec = fy_memory_row(space.kind)->exec;
    fresh->last = &fresh->first;
    fresh->last_due = &fresh->due;
    ferry_status status = fresh->exec->queue_open(space.device, native, &fresh->own, error);
    if (status != FERRY_OK) {
        fy_free(fresh);
        return status;
    }
    fresh->native = native != NULL ? native : fresh->own;
    pthread_mutex_init(&fresh->verbs, NULL);
    pthread_mutex_init(&fresh->lock, NULL);
    pthread_cond_init(&fresh->changed, NULL);
    enlist(fresh);
    *queue_out = fresh->handle;
    return FERRY_OK;
}

ferry_status ferry_queue_create(ferry_memory_kind kind, int32_t device, ferry_queue **queue_out,
                                ferry_error *error)
{
    FY_TRY(
        fy_check_use(queue_out != NULL, "ferry_queue_create needs a place for the queue", error));
    return make((fy_space){.kind = (uint32_t)kind, .device = device}, NULL, queue_out, error);
}

ferry_status ferry_queue_adopt(ferry_memory_kind kind, int32_t device, void *native,
                               ferry_queue **queue_out, ferry_error *error)
{
    FY_TRY(fy_check_use(queue_out != NULL && native != NULL,
                        "ferry_queue_adopt needs a handle and a place for the queue", error));
    return make((fy_space){.kind = (uint32_t)kind, .device = device}, native, queue_out, error);
}

/* Out of the list, once no call uses it; NULL: it was not in it. */
static fy_queue *take_out(const ferry_queue *handle)
{
    pthread_mutex_lock(&list_lock);
    fy_queue *found = find(handle);
    if (found != NULL) {
        fy_queue **link = &queues;
        while (*link != found) {
            link = &(*link)->next;
        }
        *link = found->next;
    }
    while (found != NULL && !found->is_inherited && found->n_inside > 0) {
        pthread_cond_wait(&left, &list_lock);
    }
    pthread_mutex_unlock(&list_lock);
    return found;
}

void fy_moment_drop(fy_moment *one)
{
    if (one != NULL && atomic_fetch_sub(&one->n_users, 1) == 1) {
        fy_free(one);
    }
}

/* Moments that the queue has passed, or all. Under the lock of verbs, or when all is done. */
static void sweep(fy_queue *queue, bool all)
{
    for (kept **link = &queue->kept; *link != NULL;) {
        kept *one = *link;
        if (!all &&
            fy_exec_reached(queue->exec, queue->own, one->ticket, NULL) == FERRY_ERR_TIMEOUT) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        fy_moment_drop(one->moment);
        fy_free(one);
    }
}

ferry_status fy_queue_use_moment(fy_queue *queue, fy_moment *one, bool records, ferry_error *error)
{
    const fy_exec *exec = queue->exec;
    kept *hold = fy_alloc_zeroed(1, sizeof *hold);
    FY_TRY(fy_check_memory(hold != NULL, "an event", error));
    one->native = records ? queue->native : one->native;
    pthread_mutex_lock(&queue->verbs);
    sweep(queue, false);
    ferry_status status = records ? exec->word_set(queue->own, &one->word, 1, error)
                                  : exec->word_wait(queue->own, &one->word, 1, error);
    if (status == FERRY_OK) {
        *hold = (kept){.next = queue->kept, .moment = one, .ticket = UINT64_MAX};
        atomic_fetch_add(&one->n_users, 1);
        queue->kept = hold;
        status = exec->mark(queue->own, &hold->ticket, error);
    } else {
        fy_free(hold);
    }
    pthread_mutex_unlock(&queue->verbs);
    return status;
}

/*
 * Of a queue that nobody uses any more: the exec and the driver do what is left, and end. Where
 * graphs have calls of it the driver stays with these.
 */
static void destroy(fy_queue *queue)
{
    queue->exec->queue_close(queue->own);
    sweep(queue, true);
    pthread_mutex_lock(&queue->lock);
    bool is_left = queue->n_captured > 0;
    pthread_t driver = queue->driver;
    bool has_driver = queue->has_driver;
    queue->closing = true;
    queue->is_left = is_left;
    pthread_cond_signal(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    if (is_left) { /* the driver frees it, perhaps just now */
        pthread_detach(driver);
        return;
    }
    if (has_driver) {
        pthread_join(driver, NULL);
    }
    free_queue(queue);
}

void ferry_queue_destroy(ferry_queue *handle)
{
    if (handle == NULL) {
        return;
    }
    if (here.calls || fy_queue_works_here(ferry_queue_native(handle))) {
        fy_log(FERRY_LOG_ERROR, "ferry_queue_destroy on a thread that does work of a queue would "
                                "wait for itself: the queue stays");
        return;
    }
    fy_queue *queue = take_out(handle);
    if (queue != NULL && !queue->is_inherited) {
        destroy(queue);
    } else {
        fy_free(queue); /* its threads are in the process that made it */
    }
}

/* Asked of what may be no queue. */
static fy_space look(const ferry_queue *handle, void **native_out)
{
    fy_space space = {.kind = FERRY_MEMORY_HOST};
    *native_out = NULL;
    pthread_mutex_lock(&list_lock);
    const fy_queue *found = find(handle);
    if (found != NULL) {
        space = found->space;
        *native_out = found->native;
    }
    pthread_mutex_unlock(&list_lock);
    return space;
}

ferry_memory_kind ferry_queue_kind(const ferry_queue *queue)
{
    void *native;
    return (ferry_memory_kind)look(queue, &native).kind;
}

int32_t ferry_queue_device(const ferry_queue *queue)
{
    void *native;
    return look(queue, &native).device;
}

void *ferry_queue_native(const ferry_queue *queue)
{
    void *native;
    look(queue, &native);
    return native;
}

static ferry_status enter_one(ferry_queue *handle, const char *what, fy_queue **queue_out,
                              ferry_error *error)
{
    return handle != NULL ? fy_queue_enter(handle, what, queue_out, error)
                          : fy_fail(error, FERRY_ERR_MISUSE, "%s needs a queue, not NULL", what);
}

ferry_status ferry_queue_is_captured(ferry_queue *handle, bool *is_captured_out, ferry_error *error)
{
    fy_queue *queue;
    FY_TRY(fy_check_use(is_captured_out != NULL,
                        "ferry_queue_is_captured needs a place for the answer", error));
    FY_TRY(enter_one(handle, "ferry_queue_is_captured", &queue, error));
    ferry_status status = fy_queue_is_captured(queue, is_captured_out, error);
    fy_queue_leave(queue);
    return status;
}

/* The exec, and the driver, which has looked on and may have more to say than the exec. */
static ferry_status finish(fy_queue *queue, ferry_error *error)
{
    pthread_mutex_lock(&queue->verbs);
    uint64_t n = queue->n_deferred;
    pthread_mutex_unlock(&queue->verbs);
    ferry_status status = fy_exec_finish(queue->exec, queue->own, error);
    for (uint32_t i = 0; atomic_load(&queue->word) < n; i++) {
        fy_exec_pause(i);
    }
    return status;
}

ferry_status ferry_queue_synchronize(ferry_queue *handle, ferry_error *error)
{
    fy_queue *queue;
    FY_TRY(enter_one(handle, "ferry_queue_synchronize", &queue, error));
    ferry_status status = fy_check_use(!fy_queue_works_here(queue->native),
                                       "ferry_queue_synchronize on a thread that does work of the "
                                       "queue would wait for itself",
                                       error);
    if (status == FERRY_OK) {
        status = finish(queue, error);
        ask_onlookers(queue);
        pthread_mutex_lock(&queue->lock);
        if (queue->status != FERRY_OK) {
            status = fy_forward(error, queue->status, &queue->error);
        }
        queue->status = FERRY_OK;
        pthread_mutex_unlock(&queue->lock);
    }
    fy_queue_leave(queue);
    return status;
}

/*
 * A function of the caller's, on the thread that does the queue's other work of the host's: on the
 * exec's, which may be that of many queues, all of them would wait for it.
 */
typedef struct called {
    void (*function)(void *context);
    void *context;
} called;

static ferry_status call_it(void *context, ferry_error *error)
{
    called *it = context;
    (void)error;
    here.calls = true;
    it->function(it->context);
    here.calls = false;
    fy_free(it);
    return FERRY_OK;
}

static ferry_status call(fy_queue *queue, void (*function)(void *context), void *context,
                         ferry_error *error)
{
    called *it = fy_alloc_zeroed(1, sizeof *it);
    FY_TRY(fy_check_memory(it != NULL, "a call on a queue", error));
    *it = (called){function, context};
    ferry_status status = fy_queue_defer(queue, call_it, it, error);
    if (status != FERRY_OK) {
        fy_free(it);
    }
    return status;
}

ferry_status ferry_queue_call(ferry_queue *handle, void (*function)(void *context), void *context,
                              ferry_error *error)
{
    fy_queue *queue;
    FY_TRY(fy_check_use(function != NULL, "ferry_queue_call needs a function", error));
    FY_TRY(enter_one(handle, "ferry_queue_call", &queue, error));
    ferry_status status = FERRY_OK;
    if (fy_queue_is_host(queue)) {
        here.calls = true;
        function(context);
        here.calls = false;
    } else {
        status = call(queue, function, context, error);
    }
    fy_queue_leave(queue);
    return status;
}
