/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues and events, with far memory. A gate, a host function on the queue that ends when the test
 * says so, keeps a queue where it is: what is not done behind it was not done at the call.
 */
#include "exec/queue.h"
#include "support/check.h"
#include "support/emulated.h"
#include "support/thread_state.h"

#include <ferry/transport.h>
#include <ferry/world.h>

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_reached;
    bool is_open;
    bool was_passed;
} gate;

#define GATE_INIT                                                                                  \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false, false                   \
    }

static void pass(void *context)
{
    gate *g = context;
    pthread_mutex_lock(&g->lock);
    g->is_reached = true;
    pthread_cond_broadcast(&g->changed);
    while (!g->is_open) {
        pthread_cond_wait(&g->changed, &g->lock);
    }
    g->was_passed = true;
    pthread_mutex_unlock(&g->lock);
}

static void open_gate(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->is_open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

/* Until the queue's thread stands there. */
static void reach_gate(gate *g)
{
    pthread_mutex_lock(&g->lock);
    while (!g->is_reached) {
        pthread_cond_wait(&g->changed, &g->lock);
    }
    pthread_mutex_unlock(&g->lock);
}

static ferry_queue *make(int32_t device)
{
    ferry_queue *queue = NULL;
    ferry_error error;
    must(ferry_queue_create(FERRY_MEMORY_FAR, device, &queue, &error), &error);
    return queue;
}

static void put_gate(ferry_queue *queue, gate *g)
{
    ferry_error error;
    must(ferry_queue_call(queue, pass, g, &error), &error);
}

/* What deferred work and host functions did, in order. */
static _Atomic int n_done;
static char done[64];

static ferry_status write_letter(void *context, ferry_error *error)
{
    const char *text = context;
    done[atomic_fetch_add(&n_done, 1)] = text[0];
    return text[1] == '!' ? fy_fail(error, FERRY_ERR_IO, "letter %c fails", text[0]) : FERRY_OK;
}

static void call_letter(void *context)
{
    (void)write_letter(context, NULL);
}

static void defer(ferry_queue *queue, char *text)
{
    ferry_error error;
    fy_queue *entered;
    must(fy_queue_enter(queue, "defer", &entered, &error), &error);
    must(fy_queue_defer(entered, write_letter, text, &error), &error);
    fy_queue_leave(entered);
}

static void begin_letters(void)
{
    memset(done, 0, sizeof done);
    n_done = 0;
}

static void test_order(void **state)
{
    ferry_error error;
    gate g = GATE_INIT;
    ferry_queue *queue = make(1);
    (void)state;
    begin_letters();
    put_gate(queue, &g);
    defer(queue, "a");
    must(ferry_queue_call(queue, call_letter, "b", &error), &error);
    defer(queue, "c");
    defer(queue, "d");
    must(ferry_queue_call(queue, call_letter, "e", &error), &error);
    assert_int_equal(n_done, 0);
    open_gate(&g);
    must(ferry_queue_synchronize(queue, &error), &error);
    assert_string_equal(done, "abcde");
    assert_int_equal(ferry_queue_kind(queue), FERRY_MEMORY_FAR);
    assert_int_equal(ferry_queue_device(queue), 1);
    ferry_queue_destroy(queue);
}

/* The first failure is told once; what comes after it is done all the same. */
static void test_failures(void **state)
{
    ferry_error error;
    ferry_queue *queue = make(0);
    (void)state;
    begin_letters();
    defer(queue, "a");
    defer(queue, "b!");
    defer(queue, "c!");
    defer(queue, "d");
    check_status("first", FERRY_ERR_IO, ferry_queue_synchronize(queue, &error), &error);
    check_says("first", "letter b fails", &error);
    assert_string_equal(done, "abcd");
    must(ferry_queue_synchronize(queue, &error), &error);
    ferry_queue_destroy(queue);
}

static size_t count_threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    size_t n = 0;
    assert_non_null(folder);
    while (readdir(folder) != NULL) {
        n++;
    }
    closedir(folder);
    return n;
}

/* Destroying waits for what is on the queue, deferred work included; and nothing of it stays. */
static void test_destroy(void **state)
{
    size_t before = count_threads();
    (void)state;
    for (int round = 0; round < 20; round++) {
        ferry_queue *queue = make(round % 2);
        begin_letters();
        defer(queue, "a");
        defer(queue, "b");
        ferry_queue_destroy(queue);
        assert_string_equal(done, "ab");
    }
    while (count_threads() > before) {
        sched_yield(); /* the kernel lists a thread for a while after its end */
    }
}

/* Later work of the queue has all the time that it needs to overtake this. */
static ferry_status linger(void *context, ferry_error *error)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    for (int i = 0; i < 20; i++) {
        nanosleep(&moment, NULL);
    }
    return write_letter(context, error);
}

static void defer_lingering(ferry_queue *queue, char *text)
{
    ferry_error error;
    fy_queue *entered;
    must(fy_queue_enter(queue, "defer", &entered, &error), &error);
    must(fy_queue_defer(entered, linger, text, &error), &error);
    fy_queue_leave(entered);
}

static void test_no_overtaking(void **state)
{
    ferry_error error;
    ferry_queue *queue = make(0);
    (void)state;
    begin_letters();
    defer_lingering(queue, "a");
    must(ferry_queue_call(queue, call_letter, "b", &error), &error);
    defer_lingering(queue, "c");
    defer_lingering(queue, "d");
    must(ferry_queue_call(queue, call_letter, "e", &error), &error);
    must(ferry_queue_synchronize(queue, &error), &error);
    assert_string_equal(done, "abcde");
    ferry_queue_destroy(queue);
}

static void test_host_order(void **state)
{
    ferry_error error;
    ferry_queue *queue = NULL;
    (void)state;
    begin_letters();
    must(ferry_queue_create(FERRY_MEMORY_HOST, 0, &queue, &error), &error);
    fy_queue *entered;
    must(fy_queue_enter(queue, "defer", &entered, &error), &error);
    check_status("at the call", FERRY_ERR_IO, fy_queue_defer(entered, write_letter, "a!", &error),
                 &error);
    fy_queue_leave(entered);
    must(ferry_queue_call(queue, call_letter, "b", &error), &error);
    assert_string_equal(done, "ab");
    must(ferry_queue_synchronize(queue, &error), &error);
    assert_null(ferry_queue_native(queue));
    ferry_queue_destroy(queue);
}

static bool has_come(ferry_event *event)
{
    ferry_error error;
    bool is_done = false;
    must(ferry_event_test(event, &is_done, &error), &error);
    return is_done;
}

/* One queue waits for the other's moment, and keeps the word of it after the event is gone. */
static void test_events(void **state)
{
    ferry_error error;
    gate g = GATE_INIT, late = GATE_INIT;
    ferry_queue *first = make(0), *second = make(1);
    ferry_event *event = NULL;
    (void)state;
    begin_letters();
    must(ferry_event_create(&event, &error), &error);
    assert_true(has_come(event));
    must(ferry_event_synchronize(event, &error), &error);
    put_gate(first, &g);
    must(ferry_queue_call(first, call_letter, "a", &error), &error);
    must(ferry_event_record(event, first, &error), &error);
    must(ferry_event_wait(event, second, &error), &error);
    must(ferry_queue_call(second, call_letter, "b", &error), &error);
    put_gate(first, &late);
    must(ferry_queue_call(first, call_letter, "c", &error), &error);
    assert_false(has_come(event));
    assert_int_equal(n_done, 0);
    open_gate(&g);
    must(ferry_queue_synchronize(second, &error), &error);
    assert_string_equal(done, "ab");
    assert_true(has_come(event));
    must(ferry_event_record(event, first, &error), &error);
    assert_false(has_come(event));
    must(ferry_event_wait(event, second, &error), &error);
    must(ferry_queue_call(second, call_letter, "d", &error), &error);
    ferry_event_destroy(event);
    open_gate(&late);
    must(ferry_queue_synchronize(second, &error), &error);
    assert_string_equal(done, "abcd");
    ferry_queue_destroy(first);
    ferry_queue_destroy(second);
}

/* The word of a moment stays while queues have it before them, and is nobody else's meanwhile. */
static void test_kept_moments(void **state)
{
    ferry_error error;
    gate g = GATE_INIT, other = GATE_INIT;
    ferry_queue *first = make(0), *second = make(1);
    ferry_event *event, *later[8];
    (void)state;
    must(ferry_event_create(&event, &error), &error);
    put_gate(first, &g);
    put_gate(second, &other);
    must(ferry_event_record(event, first, &error), &error);
    must(ferry_event_wait(event, second, &error), &error);
    ferry_event_destroy(event);
    for (size_t i = 0; i < COUNT_OF(later); i++) {
        must(ferry_event_create(&later[i], &error), &error);
        must(ferry_event_record(later[i], second, &error), &error);
        must(ferry_event_wait(later[i], first, &error), &error);
        must(ferry_event_record(later[i], second, &error), &error);
    }
    open_gate(&g);
    const struct timespec moment = {.tv_nsec = 1000000};
    for (int i = 0; i < 20; i++) {
        nanosleep(&moment, NULL);
        for (size_t k = 0; k < COUNT_OF(later); k++) {
            assert_false(has_come(later[k]));
        }
    }
    open_gate(&other);
    must(ferry_queue_synchronize(first, &error), &error);
    must(ferry_queue_synchronize(second, &error), &error);
    for (size_t i = 0; i < COUNT_OF(later); i++) {
        assert_true(has_come(later[i]));
        ferry_event_destroy(later[i]);
    }
    ferry_queue_destroy(first);
    ferry_queue_destroy(second);
}

static void test_adopted(void **state)
{
    ferry_error error;
    gate g = GATE_INIT;
    ferry_queue *queue = make(1), *same = NULL, *none = NULL;
    (void)state;
    begin_letters();
    must(ferry_queue_adopt(FERRY_MEMORY_FAR, 1, ferry_queue_native(queue), &same, &error), &error);
    check_status("another device", FERRY_ERR_MISUSE,
                 ferry_queue_adopt(FERRY_MEMORY_FAR, 0, ferry_queue_native(queue), &none, &error),
                 &error);
    put_gate(queue, &g);
    defer(same, "a");
    defer(queue, "b");
    must(ferry_queue_call(same, call_letter, "c", &error), &error);
    assert_int_equal(n_done, 0);
    open_gate(&g);
    must(ferry_queue_synchronize(same, &error), &error);
    assert_string_equal(done, "abc");
    ferry_queue_destroy(queue);
    must(ferry_queue_call(same, call_letter, "d", &error), &error);
    must(ferry_queue_synchronize(same, &error), &error);
    assert_string_equal(done, "abcd");
    ferry_queue_destroy(same);
}

static void test_misuse(void **state)
{
    ferry_error error;
    ferry_queue *gone = make(0), *queue = NULL;
    ferry_event *event = NULL;
    fy_queue *none;
    bool is_done;
    uint32_t n_cuda = 0; /* a machine may have them */
    (void)state;
    (void)ferry_memory_kind_at(FERRY_MEMORY_CUDA, NULL, NULL, &n_cuda, NULL, NULL);
    ferry_queue_destroy(gone);
    ferry_queue_destroy(gone);
    ferry_queue_destroy(NULL);
    ferry_event_destroy(NULL);
    must(ferry_event_create(&event, &error), &error);
    const struct {
        const char *name;
        ferry_status wanted, status;
    } rows[] = {
        {"sync destroyed", FERRY_ERR_MISUSE, ferry_queue_synchronize(gone, &error)},
        {"sync NULL", FERRY_ERR_MISUSE, ferry_queue_synchronize(NULL, &error)},
        {"call destroyed", FERRY_ERR_MISUSE, ferry_queue_call(gone, pass, NULL, &error)},
        {"call nothing", FERRY_ERR_MISUSE, ferry_queue_call(gone, NULL, NULL, &error)},
        {"record destroyed", FERRY_ERR_MISUSE, ferry_event_record(event, gone, &error)},
        {"wait destroyed", FERRY_ERR_MISUSE, ferry_event_wait(event, gone, &error)},
        {"enter destroyed", FERRY_ERR_MISUSE, fy_queue_enter(gone, "run", &none, &error)},
        {"record nothing", FERRY_ERR_MISUSE, ferry_event_record(NULL, NULL, &error)},
        {"test nothing", FERRY_ERR_MISUSE, ferry_event_test(NULL, &is_done, &error)},
        {"test to nowhere", FERRY_ERR_MISUSE, ferry_event_test(event, NULL, &error)},
        {"sync no event", FERRY_ERR_MISUSE, ferry_event_synchronize(NULL, &error)},
        {"no place", FERRY_ERR_MISUSE, ferry_queue_create(FERRY_MEMORY_FAR, 0, NULL, &error)},
        {"no device", FERRY_ERR_MISUSE, ferry_queue_create(FERRY_MEMORY_FAR, 2, &queue, &error)},
        {"no cuda", FERRY_ERR_UNSUPPORTED,
         n_cuda > 0 ? FERRY_ERR_UNSUPPORTED
                    : ferry_queue_create(FERRY_MEMORY_CUDA, 0, &queue, &error)},
        {"no handle", FERRY_ERR_MISUSE,
         ferry_queue_adopt(FERRY_MEMORY_FAR, 0, NULL, &queue, &error)},
        {"a foreign handle", FERRY_ERR_MISUSE,
         ferry_queue_adopt(FERRY_MEMORY_FAR, 0, &error, &queue, &error)},
        {"a host's handle", FERRY_ERR_MISUSE,
         ferry_queue_adopt(FERRY_MEMORY_HOST, 0, &error, &queue, &error)},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check_status(rows[i].name, rows[i].wanted, rows[i].status, &error);
    }
    assert_null(queue);
    assert_null(ferry_queue_native(gone));
    ferry_event_destroy(event);
}

/* A queue that is gone is never another one, however many are made in its place. */
static void test_gone(void **state)
{
    ferry_error error;
    ferry_event *event = NULL;
    ferry_queue *gone[8];
    (void)state;
    must(ferry_event_create(&event, &error), &error);
    for (size_t i = 0; i < COUNT_OF(gone); i++) {
        gone[i] = make(0);
        ferry_queue_destroy(gone[i]);
    }
    ferry_queue *queue = make(0);
    for (size_t i = 0; i < COUNT_OF(gone); i++) {
        assert_ptr_not_equal(gone[i], queue);
        check_status("gone", FERRY_ERR_MISUSE, ferry_queue_synchronize(gone[i], &error), &error);
        check_says("gone", "it was destroyed, or never created", &error);
        check_status("gone", FERRY_ERR_MISUSE, ferry_event_record(event, gone[i], &error), &error);
        assert_int_equal(ferry_queue_kind(gone[i]), FERRY_MEMORY_HOST);
        ferry_queue_destroy(gone[i]);
    }
    begin_letters();
    defer(queue, "a");
    must(ferry_queue_synchronize(queue, &error), &error);
    assert_string_equal(done, "a");
    ferry_queue_destroy(queue);
    ferry_event_destroy(event);
}

/* What work of a queue may not do, for it would wait for itself: all of it ends with a status. */
typedef struct inner {
    ferry_queue *queue, *same, *other;
    ferry_event *behind, *before;
    ferry_status statuses[8];
    char said[8][FERRY_ERROR_BYTES];
    gate is_recorded;
} inner;

static void keep(inner *in, int i, ferry_status status, const ferry_error *error)
{
    in->statuses[i] = status;
    snprintf(in->said[i], sizeof in->said[i], "%s", status == FERRY_OK ? "" : error->message);
}

static ferry_status wait_inside(void *context, ferry_error *error)
{
    inner *in = context;
    ferry_error why;
    (void)error;
    pass(&in->is_recorded);
    keep(in, 0, ferry_queue_synchronize(in->queue, &why), &why);
    keep(in, 1, ferry_queue_synchronize(in->same, &why), &why);
    keep(in, 2, ferry_event_synchronize(in->behind, &why), &why);
    keep(in, 3, ferry_event_wait(in->behind, NULL, &why), &why);
    keep(in, 4, ferry_event_synchronize(in->before, &why), &why);
    keep(in, 5, ferry_queue_synchronize(in->other, &why), &why);
    keep(in, 6, ferry_queue_call(in->queue, call_letter, "z", &why), &why);
    ferry_queue_destroy(in->queue);
    ferry_queue_destroy(in->same);
    return FERRY_OK;
}

static void begin_inner(inner *in)
{
    ferry_error error;
    *in = (inner){.queue = make(0), .other = make(0), .is_recorded = GATE_INIT};
    begin_letters();
    must(ferry_queue_adopt(FERRY_MEMORY_FAR, 0, ferry_queue_native(in->queue), &in->same, &error),
         &error);
    must(ferry_event_create(&in->before, &error), &error);
    must(ferry_event_create(&in->behind, &error), &error);
    must(ferry_event_record(in->before, in->queue, &error), &error);
}

static void end_inner(inner *in)
{
    ferry_error error;
    must(ferry_event_record(in->behind, in->queue, &error), &error);
    open_gate(&in->is_recorded);
    must(ferry_queue_synchronize(in->queue, &error), &error);
    must(ferry_queue_synchronize(in->same, &error), &error);
    must(ferry_event_synchronize(in->behind, &error), &error);
    ferry_event_destroy(in->before);
    ferry_event_destroy(in->behind);
    ferry_queue_destroy(in->other);
    ferry_queue_destroy(in->same);
    ferry_queue_destroy(in->queue);
}

static void test_inside(void **state)
{
    static inner in;
    ferry_error error;
    fy_queue *entered;
    (void)state;
    begin_inner(&in);
    must(fy_queue_enter(in.queue, "defer", &entered, &error), &error);
    must(fy_queue_defer(entered, wait_inside, &in, &error), &error);
    fy_queue_leave(entered);
    end_inner(&in);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(in.statuses[i], i < 4 ? FERRY_ERR_MISUSE : FERRY_OK);
        assert_true(i >= 4 || strstr(in.said[i], "would wait for itself") != NULL);
    }
    assert_string_equal(done, "z");
}

static void use_inside(void *context)
{
    inner *in = context;
    ferry_error why;
    pass(&in->is_recorded);
    keep(in, 0, ferry_queue_synchronize(in->queue, &why), &why);
    keep(in, 1, ferry_queue_synchronize(in->other, &why), &why);
    keep(in, 2, ferry_event_record(in->before, in->other, &why), &why);
    keep(in, 3, ferry_event_wait(in->before, in->other, &why), &why);
    keep(in, 4, ferry_queue_call(in->queue, call_letter, "z", &why), &why);
    keep(in, 5, ferry_event_synchronize(in->behind, &why), &why);
    keep(in, 6, ferry_event_synchronize(in->before, &why), &why);
    ferry_queue_destroy(in->other);
}

static void test_inside_call(void **state)
{
    static inner in;
    ferry_error error;
    (void)state;
    begin_inner(&in);
    must(ferry_queue_call(in.queue, use_inside, &in, &error), &error);
    end_inner(&in);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(in.statuses[i], i < 6 ? FERRY_ERR_MISUSE : FERRY_OK);
        assert_true(i >= 5 || strstr(in.said[i], "uses no queue itself") != NULL);
    }
    assert_string_equal(done, "");
}

/* In host order a function has the same to keep to: not even the queue that calls it may end. */
static void use_host_inside(void *context)
{
    inner *in = context;
    ferry_error why;
    keep(in, 0, ferry_queue_synchronize(in->queue, &why), &why);
    keep(in, 1, ferry_queue_call(in->other, call_letter, "z", &why), &why);
    keep(in, 2, ferry_event_record(in->before, in->other, &why), &why);
    keep(in, 3, ferry_event_synchronize(in->before, &why), &why);
    ferry_queue_destroy(in->queue);
}

static void test_inside_host_call(void **state)
{
    static inner in;
    ferry_error error;
    (void)state;
    begin_letters();
    in = (inner){.other = make(0)};
    must(ferry_event_create(&in.before, &error), &error);
    must(ferry_queue_create(FERRY_MEMORY_HOST, 0, &in.queue, &error), &error);
    must(ferry_queue_call(in.queue, use_host_inside, &in, &error), &error);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(in.statuses[i], i < 3 ? FERRY_ERR_MISUSE : FERRY_OK);
        assert_true(i >= 3 || strstr(in.said[i], "uses no queue itself") != NULL);
    }
    must(ferry_queue_call(in.queue, call_letter, "a", &error), &error); /* it is still there */
    must(ferry_queue_call(in.other, call_letter, "b", &error), &error);
    must(ferry_queue_synchronize(in.other, &error), &error);
    assert_string_equal(done, "ab");
    ferry_event_destroy(in.before);
    ferry_queue_destroy(in.queue);
    ferry_queue_destroy(in.other);
}

/* Far memory with verbs of the test's own, as long as nothing else is said. */
static const fy_exec *far_exec;

typedef struct changed_far {
    const fy_memory_kind *before;
    fy_memory_kind kind;
    fy_exec exec;
} changed_far;

static void change_far(changed_far *c)
{
    ferry_queue_destroy(make(0)); /* the kind is there now */
    c->before = fy_memory_row(FERRY_MEMORY_FAR);
    far_exec = c->before->exec;
    c->kind = *c->before;
    c->exec = *far_exec;
    c->kind.exec = &c->exec;
    atomic_store(&fy_memory_rows[FERRY_MEMORY_FAR], &c->kind);
}

static void restore_far(const changed_far *c)
{
    atomic_store(&fy_memory_rows[FERRY_MEMORY_FAR], c->before);
}

/* Work that a device does not take is not on the queue: what comes behind it is done. */
static bool takes_none;

static ferry_status call_unless(fy_exec_queue *queue, void (*function)(void *context),
                                void *context, ferry_error *error)
{
    return takes_none ? fy_fail(error, FERRY_ERR_NO_MEMORY, "no more work")
                      : far_exec->call(queue, function, context, error);
}

static void test_work_not_taken(void **state)
{
    (void)state;
    ferry_error error;
    fy_queue *entered;
    changed_far far;
    change_far(&far);
    far.exec.call = call_unless;
    begin_letters();
    ferry_queue *queue = make(0);
    defer(queue, "a");
    takes_none = true;
    must(fy_queue_enter(queue, "defer", &entered, &error), &error);
    check_status("not taken", FERRY_ERR_NO_MEMORY,
                 fy_queue_defer(entered, write_letter, "b", &error), &error);
    fy_queue_leave(entered);
    check_status("not taken", FERRY_ERR_NO_MEMORY,
                 ferry_queue_call(queue, call_letter, "c", &error), &error);
    takes_none = false;
    defer(queue, "d");
    defer(queue, "e");
    must(ferry_queue_synchronize(queue, &error), &error);
    assert_string_equal(done, "ade");
    ferry_queue_destroy(queue);
    restore_far(&far);
}

/* The process's signals are for threads of the program: a queue's own take none. */
static void look_at_mask(void *context)
{
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    *(bool *)context = sigismember(&mask, SIGINT) == 1 && sigismember(&mask, SIGALRM) == 1 &&
                       sigismember(&mask, SIGCHLD) == 1;
}

static ferry_status look_deferred(void *context, ferry_error *error)
{
    (void)error;
    look_at_mask(context);
    return FERRY_OK;
}

static void test_signals(void **state)
{
    (void)state;
    bool is_blocked[3] = {false, false, false}, here = true;
    ferry_error error;
    fy_queue *entered;
    ferry_queue *queue = make(0);
    const fy_exec *exec = fy_memory_row(FERRY_MEMORY_FAR)->exec;
    fy_exec_queue *far_queue;
    must(fy_queue_enter(queue, "defer", &entered, &error), &error);
    must(fy_queue_defer(entered, look_deferred, &is_blocked[0], &error), &error);
    fy_queue_leave(entered);
    must(ferry_queue_call(queue, look_at_mask, &is_blocked[1], &error), &error);
    must(ferry_queue_synchronize(queue, &error), &error);
    must(exec->queue_open(0, NULL, &far_queue, &error), &error);
    must(exec->call(far_queue, look_at_mask, &is_blocked[2], &error), &error);
    exec->queue_close(far_queue);
    assert_true(is_blocked[0]);
    assert_true(is_blocked[1]);
    assert_true(is_blocked[2]); /* nor does the thread of the plugin */
    look_at_mask(&here);
    assert_false(here); /* and this one takes them as before */
    ferry_queue_destroy(queue);
}

/* Two threads with one queue, and one that goes while others ask for it. */
enum { CALLS = 200 };

static void count_call(void *context)
{
    (*(int *)context)++; /* one after the other, in the queue's order */
}

typedef struct user {
    pthread_t thread;
    ferry_queue *queue;
    int *n_run;
    _Atomic int *n_made;
} user;

static void *use_queue(void *context)
{
    user *u = context;
    ferry_error error;
    ferry_status status = FERRY_OK;
    for (int i = 0; i < CALLS && status == FERRY_OK; i++) {
        status = ferry_queue_call(u->queue, count_call, u->n_run, &error);
        atomic_fetch_add(u->n_made, status == FERRY_OK);
        if (i % 50 == 49 && status == FERRY_OK) {
            status = ferry_queue_synchronize(u->queue, &error);
        }
    }
    return (void *)(uintptr_t)status;
}

static void run_users(bool destroys)
{
    ferry_error error;
    ferry_queue *queue = make(0);
    _Atomic int n_made = 0;
    int n_run = 0;
    user users[2];
    for (int i = 0; i < 2; i++) {
        users[i] = (user){.queue = queue, .n_run = &n_run, .n_made = &n_made};
        assert_int_equal(pthread_create(&users[i].thread, NULL, use_queue, &users[i]), 0);
    }
    while (destroys && atomic_load(&n_made) < CALLS / 2) {
        sched_yield();
    }
    if (destroys) {
        ferry_queue_destroy(queue);
    }
    for (int i = 0; i < 2; i++) {
        void *status;
        assert_int_equal(pthread_join(users[i].thread, &status), 0);
        assert_true((uintptr_t)status == FERRY_OK ||
                    (destroys && (uintptr_t)status == FERRY_ERR_MISUSE));
    }
    if (!destroys) {
        must(ferry_queue_synchronize(queue, &error), &error);
        assert_int_equal(n_run, 2 * CALLS);
        ferry_queue_destroy(queue);
    }
    assert_int_equal(n_run, n_made);
}

/* A queue that ends waits for the call that is inside: its device closes it behind that. */
static _Atomic bool is_inside, was_closed_inside;

static void close_and_tell(fy_exec_queue *queue)
{
    if (atomic_load(&is_inside)) {
        atomic_store(&was_closed_inside, true);
    }
    far_exec->queue_close(queue);
}

typedef struct destroyer {
    ferry_queue *queue;
    _Atomic int number; /* of its thread, for the kernel */
} destroyer;

static void *destroy_queue(void *context)
{
    destroyer *d = context;
    atomic_store(&d->number, (int)syscall(SYS_gettid));
    ferry_queue_destroy(d->queue);
    return NULL;
}

static void test_destroy_waits(void **state)
{
    (void)state;
    ferry_error error;
    fy_queue *entered, *again;
    pthread_t thread;
    changed_far far;
    change_far(&far);
    far.exec.queue_close = close_and_tell;
    destroyer d = {.queue = make(0)};
    must(fy_queue_enter(d.queue, "stay", &entered, &error), &error);
    atomic_store(&is_inside, true);
    assert_int_equal(pthread_create(&thread, NULL, destroy_queue, &d), 0);
    while (fy_queue_enter(d.queue, "follow", &again, &error) == FERRY_OK) {
        fy_queue_leave(again);
        sched_yield();
    }
    while (!atomic_load(&was_closed_inside) && thread_state(atomic_load(&d.number)) != 'S') {
        sched_yield();
    }
    assert_false(atomic_load(&was_closed_inside));
    atomic_store(&is_inside, false);
    fy_queue_leave(entered);
    assert_int_equal(pthread_join(thread, NULL), 0);
    restore_far(&far);
}

/*
 * A put or a get whose memory was freed before its turn, where somebody got memory at the same
 * address since: neither reads nor writes what is another's.
 */
static void test_address_again(void **state)
{
    (void)state;
    if (is_left_out(__func__, "gives freed memory no second time at once")) {
        return;
    }
    enum { BYTES = 1 << 20 };
    ferry_error error;
    ferry_world *world = NULL;
    ferry_transport *transport = NULL;
    ferry_region *region = NULL;
    ferry_buffer far, again;
    must(ferry_world_create_threads(1, NULL, &world, &error), &error);
    must(ferry_transport_open(world, NULL, &transport, &error), &error);
    must(ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, BYTES, &region, &error), &error);
    memset(ferry_region_base(region), 0x5a, BYTES);
    for (int gets = 0; gets < 2; gets++) {
        gate g = GATE_INIT;
        ferry_queue *queue = make(1);
        put_gate(queue, &g);
        must(ferry_memory_alloc(NULL, FERRY_MEMORY_FAR, 1, BYTES, &far, &error), &error);
        void *base = far.base;
        must(gets ? ferry_transport_get(transport, 0, region, 0, &far, queue, &error)
                  : ferry_transport_put(transport, 0, region, 0, &far, queue, &error),
             &error);
        ferry_memory_free(&far);
        must(ferry_memory_alloc(NULL, FERRY_MEMORY_FAR, 1, BYTES, &again, &error), &error);
        assert_ptr_equal(again.base, base);
        open_gate(&g);
        check_status("freed", FERRY_ERR_MISUSE, ferry_queue_synchronize(queue, &error), &error);
        check_says("freed", "is another allocation now", &error);
        assert_int_equal(((unsigned char *)ferry_region_base(region))[0], 0x5a);
        must(ferry_transport_put(transport, 0, region, 0, &again, queue, &error), &error);
        must(ferry_queue_synchronize(queue, &error), &error);
        assert_int_equal(((unsigned char *)ferry_region_base(region))[BYTES - 1], 0);
        memset(ferry_region_base(region), 0x5a, BYTES);
        ferry_queue_destroy(queue);
        ferry_memory_free(&again);
    }
    ferry_region_free(region);
    ferry_transport_close(transport);
    ferry_world_destroy(world);
}

static void test_threads(void **state)
{
    (void)state;
    run_users(false);
    run_users(true);
}

/* In a child none of the queue's threads is there: statuses, and nobody waits for them. */
static void test_forked(void **state)
{
    if (is_left_out(__func__, "starts no threads in a child of fork")) {
        return;
    }
#ifdef __SANITIZE_THREAD__
    skip(); /* its runtime takes no new threads after a fork beside others */
#endif
    ferry_error error;
    gate g = GATE_INIT;
    ferry_queue *queue = make(0);
    (void)state;
    begin_letters();
    put_gate(queue, &g);
    /* A child inherits the locks that threads hold just then, of which those of a sanitizer's
     * allocator, taken when a thread begins, are never given back. */
    reach_gate(&g);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ferry_queue *own = NULL;
        bool fine = ferry_queue_synchronize(queue, &error) == FERRY_ERR_MISUSE &&
                    strstr(error.message, "before this process was forked") != NULL &&
                    ferry_queue_call(queue, call_letter, "x", &error) == FERRY_ERR_MISUSE;
        ferry_queue_destroy(queue);
        fine = fine && ferry_queue_create(FERRY_MEMORY_FAR, 0, &own, &error) == FERRY_OK &&
               ferry_queue_call(own, call_letter, "c", &error) == FERRY_OK &&
               ferry_queue_synchronize(own, &error) == FERRY_OK && strcmp(done, "c") == 0;
        ferry_queue_destroy(own);
        _exit(fine ? 0 : 1);
    }
    int end = 0;
    assert_int_equal(waitpid(child, &end, 0), child);
    assert_true(WIFEXITED(end) && WEXITSTATUS(end) == 0);
    open_gate(&g);
    must(ferry_queue_synchronize(queue, &error), &error);
    ferry_queue_destroy(queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),          cmocka_unit_test(test_failures),
        cmocka_unit_test(test_destroy),        cmocka_unit_test(test_host_order),
        cmocka_unit_test(test_no_overtaking),  cmocka_unit_test(test_kept_moments),
        cmocka_unit_test(test_events),         cmocka_unit_test(test_adopted),
        cmocka_unit_test(test_misuse),         cmocka_unit_test(test_gone),
        cmocka_unit_test(test_inside),         cmocka_unit_test(test_inside_call),
        cmocka_unit_test(test_threads),        cmocka_unit_test(test_forked),
        cmocka_unit_test(test_address_again),  cmocka_unit_test(test_inside_host_call),
        cmocka_unit_test(test_signals),        cmocka_unit_test(test_destroy_waits),
        cmocka_unit_test(test_work_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
