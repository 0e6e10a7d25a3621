/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * While a call is on, SIGINT goes through a handler of ours: Python's own does its work, and then a
 * thread is woken, which may do what a handler may not. It asks Python whether an interrupt raises
 * KeyboardInterrupt, and then ends the call by aborting the world. The thread sleeps for good where
 * nobody presses Ctrl-C.
 */
#include "guard.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock; /* of the world */
    ferry_world *world;   /* of the call that is on; else NULL */
    bool is_on;
    _Atomic uint64_t n_changes; /* of the world: tells one call from the next */
    _Atomic uint64_t rung_at;   /* what it was when the signal came */
    sem_t rung;
    pid_t thread_pid;        /* the process that has the thread: a child of fork has none */
    struct sigaction python; /* what SIGINT did before, and does again after the call */
} guard = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_interrupt(int number, siginfo_t *info, void *context)
{
    int before = errno;
    if ((guard.python.sa_flags & SA_SIGINFO) != 0) {
        guard.python.sa_sigaction(number, info, context);
    } else {
        guard.python.sa_handler(number);
    }
    atomic_store(&guard.rung_at, atomic_load(&guard.n_changes));
    sem_post(&guard.rung);
    errno = before;
}

/* Whether Python's handler of SIGINT is the one that raises KeyboardInterrupt. */
static bool would_raise(void)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *module = PyImport_ImportModule("signal");
    PyObject *usual = module == NULL ? NULL : PyObject_GetAttrString(module, "default_int_handler");
    PyObject *now = usual == NULL ? NULL : PyObject_CallMethod(module, "getsignal", "i", SIGINT);
    bool yes = now != NULL && now == usual;
    PyErr_Clear();
    Py_XDECREF(now);
    Py_XDECREF(usual);
    Py_XDECREF(module);
    PyGILState_Release(state);
    return yes;
}

/* Whether the call that the signal came in is still on; under the lock. */
static bool is_same_call(void)
{
    return guard.world != NULL && atomic_load(&guard.rung_at) == atomic_load(&guard.n_changes);
}

static void *watch(void *unused)
{
    for (;;) {
        if (sem_wait(&guard.rung) != 0) {
            continue;
        }
        pthread_mutex_lock(&guard.lock);
        bool ends = is_same_call();
        pthread_mutex_unlock(&guard.lock);
        /* The lock is not held here: who holds the interpreter's may be about to take it. */
        ends = ends && would_raise();
        pthread_mutex_lock(&guard.lock);
        if (ends && is_same_call()) {
            ferry_world_abort(guard.world, "the program was interrupted");
        }
        pthread_mutex_unlock(&guard.lock);
    }
    return unused;
}

/* Signals are for the program's own threads. */
static bool start_thread(pid_t pid)
{
    pthread_t thread;
    sigset_t all, before;
    if (guard.thread_pid != 0) { /* the process forked, perhaps in the middle of a call */
        pthread_mutex_init(&guard.lock, NULL);
        guard.world = NULL;
        guard.is_on = false;
    }
    sem_init(&guard.rung, 0, 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, watch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        return false;
    }
    pthread_detach(thread);
    guard.thread_pid = pid;
    return true;
}

static bool is_handled(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) != 0 ||
           (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN);
}

/* Without a handler of Python's there is nothing to guard: the signal ends the process, or nothing.
 */
static bool take_signal(void)
{
    struct sigaction own = {.sa_flags = SA_SIGINFO | SA_ONSTACK}, before;
    own.sa_sigaction = on_interrupt;
    if (sigaction(SIGINT, NULL, &before) != 0 || !is_handled(&before)) {
        return false;
    }
    /* Ours is there already in a child that was forked in the middle of a call. */
    if ((before.sa_flags & SA_SIGINFO) == 0 || before.sa_sigaction != on_interrupt) {
        guard.python = before;
    }
    own.sa_mask = guard.python.sa_mask;
    own.sa_flags |= guard.python.sa_flags & SA_RESTART;
    return sigaction(SIGINT, &own, NULL) == 0;
}

static void set_world(ferry_world *world)
{
    pthread_mutex_lock(&guard.lock);
    guard.world = world;
    atomic_fetch_add(&guard.n_changes, 1);
    pthread_mutex_unlock(&guard.lock);
}

bool fp_guard_begin(ferry_world *world, bool *guarded_out)
{
    pid_t pid = getpid();
    *guarded_out = false;
    if (syscall(SYS_gettid) != pid || (guard.thread_pid != pid && !start_thread(pid)) ||
        guard.is_on || !take_signal()) {
        return true;
    }
    guard.is_on = true;
    set_world(world);
    /* What came before our handler was there: Python knows of it, and the thread does not. */
    if (PyErr_CheckSignals() != 0) {
        fp_guard_end(true);
        return false;
    }
    *guarded_out = true;
    return true;
}

void fp_guard_end(bool guarded)
{
    if (guarded) {
        set_world(NULL);
        sigaction(SIGINT, &guard.python, NULL);
        guard.is_on = false;
    }
}
