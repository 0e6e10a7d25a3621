/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/nvshmem/work.h"

#include "base/alloc.h"
#include "transport/nvshmem/library.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

enum { LOOK_NS = 20000, MOST_PUT_OFF = 16 };

fy_nvshmem_tools fy_nvshmem_its;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static fy_nvshmem_op *ops; /* a ring of `capacity` places */
static size_t first, n_ops, capacity;
static uint64_t n_posted, n_done;
static uint64_t n_behind;  /* are performed, and count with a quiet that follows */
static uint32_t n_put_off; /* quiets among them */
static bool is_busy;       /* with the first */
static int64_t since_ns;   /* when that began */
static uint32_t last_pe;   /* to whom it has put, or tried to */
static bool is_started;

/* Of the caller's memory: taken for each copy of it, and by who forbids further ones. */
static pthread_mutex_t touching = PTHREAD_MUTEX_INITIALIZER;
static uint64_t n_cuts;

/*
 * What the thread does
 */

static bool is_stream_busy;

/* What is on the stream is waited for once, before anything that must not overtake it. */
static void await_stream(void)
{
    if (is_stream_busy && fy_nvshmem.cuStreamSynchronize(fy_nvshmem_its.stream) != 0) {
        atomic_store(&fy_nvshmem_its.fault, "the CUDA device has failed under a signal or a copy");
    }
    is_stream_busy = false;
}

/* By the device, which knows memory of all kinds. */
static void copy_by_device(void *to, const void *from, uint64_t bytes)
{
    is_stream_busy = true;
    if (fy_nvshmem.cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, (size_t)bytes,
                                 fy_nvshmem_its.stream) != 0) {
        atomic_store(&fy_nvshmem_its.fault, "the CUDA device does not copy");
    }
    await_stream();
}

/* Copies unless what this belongs to was cut off: false then. */
static bool copy(void *to, const void *from, uint64_t bytes, uint64_t cuts)
{
    pthread_mutex_lock(&touching);
    bool may = cuts == n_cuts;
    if (may && fy_nvshmem_its.is_of_device) {
        copy_by_device(to, from, bytes);
    } else if (may) {
        memcpy(to, from, (size_t)bytes);
    }
    pthread_mutex_unlock(&touching);
    return may;
}

static void clear(const fy_nvshmem_op *op)
{
    is_stream_busy = true;
    if (fy_nvshmem.cuMemsetD8Async((uintptr_t)op->here, 0, (size_t)op->bytes,
                                   fy_nvshmem_its.stream) != 0) {
        atomic_store(&fy_nvshmem_its.fault, "the CUDA device does not clear memory");
    }
    await_stream();
}

static bool lies_in_pool(const char *at, uint64_t bytes)
{
    const fy_nvshmem_tools *its = &fy_nvshmem_its;
    return at >= its->pool && at < its->pool + its->bytes &&
           bytes <= (uint64_t)(its->pool + its->bytes - at);
}

/*
 * What lies in the heap stays until it is in place. A source that NVSHMEM does not know would end
 * the process: it goes by way of the heap.
 */
static void put(const fy_nvshmem_op *op, uint64_t cuts)
{
    char *bounce = fy_nvshmem_its.bounce;
    if (lies_in_pool(op->here, op->bytes)) {
        fy_nvshmem.nvshmem_putmem_nbi(op->there, op->here, op->bytes, (int)op->pe);
        return;
    }
    for (uint64_t at = 0; at < op->bytes; at += FY_NVSHMEM_BOUNCE_BYTES) {
        uint64_t rest = op->bytes - at;
        uint64_t n = rest < FY_NVSHMEM_BOUNCE_BYTES ? rest : FY_NVSHMEM_BOUNCE_BYTES;
        if (!copy(bounce, op->here + at, n, cuts)) {
            return;
        }
        fy_nvshmem.nvshmem_putmem(op->there + at, bounce, n, (int)op->pe);
    }
}

static void get(const fy_nvshmem_op *op, uint64_t cuts)
{
    char *bounce = fy_nvshmem_its.bounce;
    bool may = true;
    for (uint64_t at = 0; may && at < op->bytes; at += FY_NVSHMEM_BOUNCE_BYTES) {
        uint64_t rest = op->bytes - at;
        uint64_t n = rest < FY_NVSHMEM_BOUNCE_BYTES ? rest : FY_NVSHMEM_BOUNCE_BYTES;
        fy_nvshmem.nvshmem_getmem(bounce, op->there + at, n, (int)op->pe);
        may = copy(op->here + at, bounce, n, cuts);
    }
}

/* The host has no call of NVSHMEM's that adds, but for the one on a stream. */

static void raise_signal(const fy_nvshmem_op *op)
{
    uint64_t *word = (uint64_t *)(void *)op->there;
    fy_nvshmem.nvshmem_quiet();
    if (op->how == FERRY_SIGNAL_SET) {
        await_stream();
        fy_nvshmem.nvshmem_uint64_p(word, op->value, (int)op->pe);
    } else {
        fy_nvshmem.nvshmemx_signal_op_on_stream(word, op->value, FY_NVSHMEM_ADD, (int)op->pe,
                                                fy_nvshmem_its.stream);
        is_stream_busy = true;
    }
}

static void quiet(void)
{
    await_stream();
    fy_nvshmem.nvshmem_quiet();
}

static void perform(const fy_nvshmem_op *op, uint64_t cuts)
{
    switch (op->verb) {
    case FY_NVSHMEM_CALL:
        op->call();
        break;
    case FY_NVSHMEM_PUT:
        put(op, cuts);
        break;
    case FY_NVSHMEM_GET:
        get(op, cuts);
        break;
    case FY_NVSHMEM_SIGNAL:
        raise_signal(op);
        break;
    case FY_NVSHMEM_QUIET:
        quiet();
        break;
    case FY_NVSHMEM_CLEAR:
        clear(op);
        break;
    }
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/*
 * Under the lock. A quiet is waited for by the next one, if only puts stand before that: what was
 * put meanwhile is then under way together.
 */
static bool is_put_off(void)
{
    size_t i = 1;
    if (ops[first].verb != FY_NVSHMEM_QUIET || n_put_off >= MOST_PUT_OFF) {
        return false;
    }
    while (i < n_ops && ops[(first + i) % capacity].verb == FY_NVSHMEM_PUT) {
        i++;
    }
    return i < n_ops && ops[(first + i) % capacity].verb == FY_NVSHMEM_QUIET;
}

/* Under the lock. What was done behind a quiet that was put off counts when that does. */
static void end_first(bool is_put_off)
{
    n_put_off += is_put_off;
    n_behind++;
    if (!is_put_off && (n_put_off == 0 || ops[first].verb == FY_NVSHMEM_QUIET)) {
        n_done += n_behind;
        n_behind = n_put_off = 0;
    }
    first = (first + 1) % capacity;
    n_ops--;
}

static void *work(void *context)
{
    (void)context;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (n_ops == 0) {
            pthread_cond_wait(&changed, &lock);
        }
        fy_nvshmem_op op = ops[first];
        uint64_t cuts = n_cuts;
        bool put_off = is_put_off();
        is_busy = true;
        since_ns = now_ns();
        last_pe = op.verb == FY_NVSHMEM_QUIET ? last_pe : op.pe;
        pthread_mutex_unlock(&lock);
        if (!put_off) {
            perform(&op, cuts);
        }
        pthread_mutex_lock(&lock);
        is_busy = false;
        end_first(put_off && cuts == n_cuts); /* a cut leaves no quiet behind it */
    }
    return NULL;
}

/* Under the lock. */
static ferry_status start(ferry_error *error)
{
    sigset_t all, old;
    pthread_t thread;
    if (is_started) {
        return FERRY_OK;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    is_started = pthread_create(&thread, NULL, work, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (is_started) {
        pthread_detach(thread);
    }
    return fy_check_memory(is_started, "the thread that calls NVSHMEM", error);
}

/*
 * What the callers do
 */

/* Under the lock: the ring begins at its first place again. */
static ferry_status make_room(ferry_error *error)
{
    if (n_ops < capacity) {
        return FERRY_OK;
    }
    size_t more = capacity == 0 ? 64 : 2 * capacity;
    fy_nvshmem_op *fresh = fy_alloc(more, sizeof *fresh);
    FY_TRY(fy_check_memory(fresh != NULL, "work for NVSHMEM", error));
    for (size_t i = 0; i < n_ops; i++) {
        fresh[i] = ops[(first + i) % capacity];
    }
    fy_free(ops);
    ops = fresh;
    first = 0;
    capacity = more;
    return FERRY_OK;
}

ferry_status fy_nvshmem_post(const fy_nvshmem_op *op, uint64_t *number_out, ferry_error *error)
{
    pthread_mutex_lock(&lock);
    ferry_status status = start(error);
    FY_THEN(status, make_room(error));
    if (status == FERRY_OK) {
        ops[(first + n_ops++) % capacity] = *op;
        n_posted++;
        if (number_out != NULL) {
            *number_out = n_posted;
        }
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

bool fy_nvshmem_is_done(uint64_t number)
{
    pthread_mutex_lock(&lock);
    bool is_done = n_done >= number;
    pthread_mutex_unlock(&lock);
    return is_done;
}

int64_t fy_nvshmem_lasts_ns(uint32_t *pe_out)
{
    pthread_mutex_lock(&lock);
    int64_t lasts_ns = is_busy ? now_ns() - since_ns : 0;
    *pe_out = last_pe;
    pthread_mutex_unlock(&lock);
    return lasts_ns;
}

static bool is_there(void *context)
{
    const uint64_t *number = context;
    return fy_nvshmem_is_done(*number);
}

static int64_t look_again(void *context)
{
    (void)context;
    return LOOK_NS;
}

ferry_status fy_nvshmem_await(const fy_host *host, uint64_t number, int64_t limit_ns,
                              uint32_t *pe_out, ferry_error *error)
{
    ferry_status status;
    uint64_t before, after;
    do {
        pthread_mutex_lock(&lock);
        before = n_done;
        pthread_mutex_unlock(&lock);
        status = host->wait(host, is_there, look_again, &number, limit_ns, error);
        pthread_mutex_lock(&lock);
        after = n_done;
        *pe_out = last_pe;
        pthread_mutex_unlock(&lock);
    } while (status == FERRY_ERR_TIMEOUT && after > before);
    return status;
}

void fy_nvshmem_cut(void)
{
    pthread_mutex_lock(&lock);
    n_ops = is_busy ? 1 : 0;
    n_behind = n_put_off = 0;
    n_done = n_posted - n_ops;
    pthread_mutex_lock(&touching);
    n_cuts++;
    pthread_mutex_unlock(&touching);
    pthread_mutex_unlock(&lock);
}
