/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/far/far.h"

#include "base/alloc.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

/* Verbs of far memory: each queue has a thread, which does one after the other, late. */

enum { MOST_SPANS = 2, LONGEST_DELAY_NS = 150000, POLL_NS = 30000 };

typedef enum verb { COPY, HASH, CAST, SUM, WORD_SET, WORD_WAIT, CALL } verb;

/* One call, with pointers that the thread may use. */
typedef struct work {
    struct work *next;
    verb verb;
    fy_area to, from;
    void *to_base, *from_base;
    uint64_t first, n;
    uint64_t *hash_out;
    fy_cast cast;
    fy_sum sum;
    _Atomic uint64_t *word;
    uint64_t value;
    void (*function)(void *context);
    void *context;
    size_t n_spans;
    fy_far_span **spans; /* to drop when it is done */
    fy_far_span *few[MOST_SPANS];
    void **sources; /* of a sum */
} work;

struct fy_exec_queue {
    fy_exec_queue *next;
    int32_t device;
    uint32_t n_users; /* of the handle: who opened and who adopted it */
    uint64_t random;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t more;
    work *first, **last;
    bool closing;
    uint64_t n_called;
    ferry_status status; /* the first failure, and then for good */
    ferry_error error;
    _Atomic uint64_t n_done;
};

/* Open queues: what a handle is looked up in. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static fy_exec_queue *queues;
static uint64_t n_opened;

static uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t x = (*state ^ *state >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void nap(uint64_t ns)
{
    struct timespec moment = {.tv_nsec = (long)ns};
    nanosleep(&moment, NULL);
}

/*
 * The queue's thread
 */

/* Whether the process's fault has come: FERRY_FAR_FAIL=N lets the N-th moving verb fail. */
static bool fails_now(void)
{
    static _Atomic uint64_t n_moved;
    const char *text = fy_far_library->setting("FERRY_FAR_FAIL");
    uint64_t wanted = 0;
    for (; text != NULL && *text != '\0'; text++) {
        wanted = wanted * 10 + (uint64_t)(*text - '0');
    }
    return atomic_fetch_add(&n_moved, 1) + 1 == wanted;
}

static ferry_status move(const work *one, ferry_error *error)
{
    const fy_exec *cpu = fy_far_library->cpu;
    if (fails_now()) {
        return fy_fail(error, FERRY_ERR_IO, "the far device has failed, as FERRY_FAR_FAIL asks");
    }
    switch (one->verb) {
    case COPY:
        return cpu->copy(NULL, &one->to, one->to_base, &one->from, one->from_base, one->first,
                         one->n, one->hash_out, error);
    case HASH:
        return cpu->hash(NULL, &one->from, one->from_base, one->first, one->n, one->hash_out,
                         error);
    case CAST:
        return cpu->cast(NULL, &one->cast, &one->to, one->to_base, &one->from, one->from_base,
                         one->first, one->n, one->hash_out, error);
    default:
        return cpu->sum(NULL, &one->sum, error);
    }
}

static void fail(fy_exec_queue *queue, ferry_status status, const ferry_error *error)
{
    pthread_mutex_lock(&queue->lock);
    queue->status = status;
    queue->error = *error;
    pthread_mutex_unlock(&queue->lock);
}

/* A queue that has failed moves nothing any more, but nobody is left to wait for it. */
static void perform(fy_exec_queue *queue, const work *one)
{
    ferry_error error;
    ferry_status status = FERRY_OK;
    if (next_random(&queue->random) % 4 != 0) {
        nap(next_random(&queue->random) % LONGEST_DELAY_NS);
    }
    switch (one->verb) {
    case WORD_SET:
        atomic_store(one->word, one->value);
        break;
    case WORD_WAIT:
        while (atomic_load(one->word) < one->value) {
            nap(POLL_NS);
        }
        break;
    case CALL:
        one->function(one->context);
        break;
    default: /* only this thread changes the status */
        status = queue->status == FERRY_OK ? move(one, &error) : FERRY_OK;
        break;
    }
    if (status != FERRY_OK) {
        fail(queue, status, &error);
    }
}

static void destroy_work(work *one)
{
    for (size_t i = 0; i < one->n_spans; i++) {
        fy_far_drop(one->spans[i]);
    }
    if (one->spans != one->few) {
        fy_free(one->spans);
    }
    fy_free(one->sources);
    fy_free(one);
}

static void *run(void *context)
{
    fy_exec_queue *queue = context;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        while (queue->first == NULL && !queue->closing) {
            pthread_cond_wait(&queue->more, &queue->lock);
        }
        work *one = queue->first;
        if (one == NULL) {
            break;
        }
        queue->first = one->next;
        queue->last = queue->first == NULL ? &queue->first : queue->last;
        pthread_mutex_unlock(&queue->lock);
        perform(queue, one);
        destroy_work(one);
        atomic_fetch_add(&queue->n_done, 1);
        pthread_mutex_lock(&queue->lock);
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

/*
 * Queues
 */

static int start(fy_exec_queue *queue)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int problem = pthread_create(&queue->thread, NULL, run, queue);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return problem;
}

/* One user more of a queue that somebody else has opened. Under the list's lock. */
static ferry_status adopt(int32_t device, const void *native, fy_exec_queue **queue_out,
                          ferry_error *error)
{
    fy_exec_queue *one = queues;
    while (one != NULL && one != native) {
        one = one->next;
    }
    if (one == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%p is no far queue that is open", native);
    }
    if (one->device != device) {
        return fy_fail(error, FERRY_ERR_MISUSE, "the queue at %p is of far device %d, not %d",
                       native, (int)one->device, (int)device);
    }
    one->n_users++;
    *queue_out = one;
    return FERRY_OK;
}

static ferry_status make(int32_t device, fy_exec_queue **queue_out, ferry_error *error)
{
    fy_exec_queue *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    FY_TRY(fy_check_memory(fresh != NULL, "a far queue", error));
    fresh->device = device;
    fresh->n_users = 1;
    fresh->random = fy_far_seed() << 32 | n_opened++;
    fresh->last = &fresh->first;
    pthread_mutex_init(&fresh->lock, NULL);
    pthread_cond_init(&fresh->more, NULL);
    if (start(fresh) != 0) {
        pthread_cond_destroy(&fresh->more);
        pthread_mutex_destroy(&fresh->lock);
        fy_free(fresh);
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "a far queue gets no thread");
    }
    fresh->next = queues;
    queues = fresh;
    *queue_out = fresh;
    return FERRY_OK;
}

static ferry_status queue_open(int32_t device, void *native, fy_exec_queue **queue_out,
                               ferry_error *error)
{
    pthread_mutex_lock(&list_lock);
    ferry_status status =
        native != NULL ? adopt(device, native, queue_out, error) : make(device, queue_out, error);
    pthread_mutex_unlock(&list_lock);
    return status;
}

static bool leave(fy_exec_queue *queue)
{
    pthread_mutex_lock(&list_lock);
    bool last = --queue->n_users == 0;
    fy_exec_queue **link = &queues;
    while (last && *link != queue) {
        link = &(*link)->next;
    }
    if (last) {
        *link = queue->next;
    }
    pthread_mutex_unlock(&list_lock);
    return last;
}

static void queue_close(fy_exec_queue *queue)
{
    if (queue == NULL) {
        return;
    }
    pthread_mutex_lock(&queue->lock);
    uint64_t all = queue->n_called;
    pthread_mutex_unlock(&queue->lock);
    while (atomic_load(&queue->n_done) < all) {
        nap(POLL_NS);
    }
    if (!leave(queue)) {
        return;
    }
    pthread_mutex_lock(&queue->lock);
    queue->closing = true;
    pthread_cond_signal(&queue->more);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    pthread_cond_destroy(&queue->more);
    pthread_mutex_destroy(&queue->lock);
    fy_free(queue);
}

static bool reaches(int32_t device, fy_space space)
{
    return fy_is_host(space) || (space.kind == FERRY_MEMORY_FAR && space.device == device);
}

/*
 * Verbs
 */

static work *begin(verb what)
{
    work *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    if (fresh != NULL) {
        fresh->verb = what;
        fresh->spans = fresh->few;
    }
    return fresh;
}

static ferry_status no_memory(ferry_error *error)
{
    return fy_fail_no_memory(error, "work on a far queue");
}

static ferry_status take(fy_exec_queue *queue, work *one, const void *pointer, void **found_out,
                         ferry_error *error)
{
    fy_far_span *span;
    ferry_status status = fy_far_find(queue->device, pointer, found_out, &span, error);
    if (span != NULL) {
        one->spans[one->n_spans++] = span;
    }
    return status;
}

/* Hands it to the thread, or drops it where something was wrong with it. */
static ferry_status end(fy_exec_queue *queue, work *one, ferry_status status)
{
    if (status != FERRY_OK) {
        destroy_work(one);
        return status;
    }
    pthread_mutex_lock(&queue->lock);
    *queue->last = one;
    queue->last = &one->next;
    queue->n_called++;
    pthread_cond_signal(&queue->more);
    pthread_mutex_unlock(&queue->lock);
    return FERRY_OK;
}

static ferry_status copy(fy_exec_queue *queue, const fy_area *to, void *to_base,
                         const fy_area *from, const void *from_base, uint64_t first, uint64_t bytes,
                         uint64_t *hash_out, ferry_error *error)
{
    work *one = begin(COPY);
    if (one == NULL) {
        return no_memory(error);
    }
    one->to = *to;
    one->from = *from;
    one->first = first;
    one->n = bytes;
    one->hash_out = hash_out;
    ferry_status status = take(queue, one, to_base, &one->to_base, error);
    FY_THEN(status, take(queue, one, from_base, &one->from_base, error));
    return end(queue, one, status);
}

static ferry_status hash(fy_exec_queue *queue, const fy_area *area, const void *base,
                         uint64_t first, uint64_t bytes, uint64_t *hash_out, ferry_error *error)
{
    work *one = begin(HASH);
    if (one == NULL) {
        return no_memory(error);
    }
    one->from = *area;
    one->first = first;
    one->n = bytes;
    one->hash_out = hash_out;
    return end(queue, one, take(queue, one, base, &one->from_base, error));
}

static ferry_status cast(fy_exec_queue *queue, const fy_cast *how, const fy_area *to, void *to_base,
                         const fy_area *from, const void *from_base, uint64_t first, uint64_t n,
                         uint64_t *hash_out, ferry_error *error)
{
    work *one = begin(CAST);
    if (one == NULL) {
        return no_memory(error);
    }
    one->cast = *how;
    one->to = *to;
    one->from = *from;
    one->first = first;
    one->n = n;
    one->hash_out = hash_out;
    ferry_status status = take(queue, one, to_base, &one->to_base, error);
    FY_THEN(status, take(queue, one, from_base, &one->from_base, error));
    return end(queue, one, status);
}

static ferry_status sum(fy_exec_queue *queue, const fy_sum *what, ferry_error *error)
{
    work *one = begin(SUM);
    size_t n = what->n_sources;
    if (one == NULL) {
        return no_memory(error);
    }
    fy_far_span **room = fy_alloc_zeroed(n + FY_SUM_MOST_TARGETS, sizeof *room);
    one->sources = fy_alloc_zeroed(n, sizeof *one->sources);
    if (room == NULL || one->sources == NULL) {
        fy_free(room);
        return end(queue, one, no_memory(error));
    }
    ferry_status status = FERRY_OK;
    one->spans = room;
    one->sum = *what;
    for (size_t i = 0; status == FERRY_OK && i < n; i++) {
        status = take(queue, one, what->sources[i], &one->sources[i], error);
    }
    for (size_t i = 0; status == FERRY_OK && i < FY_SUM_MOST_TARGETS; i++) {
        if (what->targets[i] != NULL) {
            status = take(queue, one, what->targets[i], &one->sum.targets[i], error);
        }
    }
    one->sum.sources = (const void *const *)one->sources;
    return end(queue, one, status);
}

static ferry_status word(fy_exec_queue *queue, verb what, _Atomic uint64_t *where, uint64_t value,
                         ferry_error *error)
{
    work *one = begin(what);
    if (one == NULL) {
        return no_memory(error);
    }
    one->word = where;
    one->value = value;
    return end(queue, one, FERRY_OK);
}

static ferry_status word_set(fy_exec_queue *queue, _Atomic uint64_t *where, uint64_t value,
                             ferry_error *error)
{
    return word(queue, WORD_SET, where, value, error);
}

static ferry_status word_wait(fy_exec_queue *queue, _Atomic uint64_t *where, uint64_t value,
                              ferry_error *error)
{
    return word(queue, WORD_WAIT, where, value, error);
}

static ferry_status call(fy_exec_queue *queue, void (*function)(void *context), void *context,
                         ferry_error *error)
{
    work *one = begin(CALL);
    if (one == NULL) {
        return no_memory(error);
    }
    one->function = function;
    one->context = context;
    return end(queue, one, FERRY_OK);
}

static ferry_status mark(fy_exec_queue *queue, fy_ticket *ticket_out, ferry_error *error)
{
    (void)error;
    pthread_mutex_lock(&queue->lock);
    *ticket_out = queue->n_called;
    pthread_mutex_unlock(&queue->lock);
    return FERRY_OK;
}

static ferry_status reached(fy_exec_queue *queue, fy_ticket ticket, ferry_error *error)
{
    if (atomic_load(&queue->n_done) < ticket) {
        return FERRY_ERR_TIMEOUT;
    }
    pthread_mutex_lock(&queue->lock);
    ferry_status status = queue->status;
    if (status != FERRY_OK && error != NULL) {
        *error = queue->error;
    }
    pthread_mutex_unlock(&queue->lock);
    return status;
}

const fy_exec fy_far_exec = {.name = "far",
                             .queue_open = queue_open,
                             .queue_close = queue_close,
                             .reaches = reaches,
                             .copy = copy,
                             .hash = hash,
                             .cast = cast,
                             .sum = sum,
                             .word_set = word_set,
                             .word_wait = word_wait,
                             .call = call,
                             .mark = mark,
                             .reached = reached};
