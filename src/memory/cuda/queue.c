/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/queue.h"

#include "base/alloc.h"
#include "memory/cuda/apart.h"
#include "memory/cuda/digest.h"
#include "memory/cuda/graph.h"
#include "memory/cuda/late.h"
#include "memory/cuda/memory.h"
#include "memory/cuda/watch.h"

#include <string.h>

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static fy_exec_queue *_Atomic queues; /* all that were ever made: new ones come first */

/*
 * Failures
 */

void fy_cuda_remember(fy_exec_queue *queue, ferry_status status, const ferry_error *error)
{
    pthread_mutex_lock(&queue->lock);
    if (queue->status == FERRY_OK) {
        queue->status = status;
        queue->error = *error;
    }
    pthread_mutex_unlock(&queue->lock);
}

static ferry_status status_of(fy_exec_queue *queue, ferry_error *error)
{
    pthread_mutex_lock(&queue->lock);
    ferry_status status = queue->status;
    if (status != FERRY_OK && error != NULL) {
        *error = queue->error;
    }
    pthread_mutex_unlock(&queue->lock);
    return status;
}

/* The first job that nobody has taken; NULL: none. */
static fy_cuda_job *next_left(fy_exec_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    fy_cuda_job *one = queue->first;
    while (one != NULL && atomic_exchange(&one->is_taken, true)) {
        one = one->next;
    }
    pthread_mutex_unlock(&queue->lock);
    return one;
}

/* Jobs that were not run yet are, and stay: the driver may come back to them. */
static void bury(fy_exec_queue *queue, CUresult result)
{
    ferry_error error;
    ferry_status status = fy_cuda_fail(&error, result, "a CUDA device has failed");
    fy_cuda_remember(queue, status, &error);
    if (!atomic_exchange(&queue->is_dead, true)) {
        fy_cuda_forget_waits(queue);
    }
    for (fy_cuda_job *one; (one = next_left(queue)) != NULL;) {
        one->run(one, true);
        fy_cuda_job_ends();
    }
}

/*
 * A stream on which a failure of the device shows. One of the caller's may be captured at any
 * moment, and a question would make the capture fail; so another one is asked, if there is any.
 */
static CUstream stream_to_ask(const fy_exec_queue *queue)
{
    CUstream own =
        __atomic_load_n(&queue->own, __ATOMIC_ACQUIRE); /* which may become another one */
    CUstream found = __atomic_load_n(&queue->stream, __ATOMIC_ACQUIRE) == own ? own : NULL;
    for (const fy_exec_queue *one = queues; one != NULL && found == NULL; one = one->next) {
        found = one->device == queue->device ? __atomic_load_n(&one->own, __ATOMIC_ACQUIRE) : NULL;
    }
    return found;
}

void fy_cuda_look(fy_exec_queue *queue)
{
    if (atomic_load(&queue->is_dead)) {
        return;
    }
    CUresult result = fy_cuda_push(queue->device->context);
    if (result == CUDA_SUCCESS) {
        CUstream stream = stream_to_ask(queue);
        if (stream != NULL) {
            result = fy_cuda.cuStreamQuery(stream);
        } else if (!fy_cuda_is_in_capture(queue)) {
            result = fy_cuda.cuStreamQuery(queue->stream);
        }
        fy_cuda_leave();
    }
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) {
        bury(queue, result);
    }
}

/*
 * Jobs
 */

/* Those that are over leave the list, in their order. */
static void finish(fy_cuda_job *job)
{
    fy_exec_queue *queue = job->queue;
    fy_cuda_job *gone = NULL;
    pthread_mutex_lock(&queue->lock);
    job->is_over = true;
    while (queue->first != NULL && queue->first->is_over) {
        fy_cuda_job *one = queue->first;
        queue->first = one->next;
        queue->last = queue->first == NULL ? &queue->first : queue->last;
        one->next = gone;
        gone = one;
    }
    pthread_mutex_unlock(&queue->lock);
    while (gone != NULL) {
        fy_cuda_job *next = gone->next;
        fy_free(gone);
        gone = next;
    }
}

/* On a thread of the driver's. */
static void CUDA_CB run_job(void *context)
{
    fy_cuda_job *job = context;
    if (!atomic_exchange(&job->is_taken, true)) {
        job->run(job, status_of(job->queue, NULL) != FERRY_OK);
        fy_cuda_job_ends();
        finish(job);
    }
}

ferry_status fy_cuda_add_job(fy_exec_queue *queue, fy_cuda_job *job,
                             void (*run)(fy_cuda_job *job, bool failed), ferry_error *error)
{
    *job = (fy_cuda_job){.queue = queue, .run = run};
    (void)fy_cuda_end_digests(queue, NULL); /* a failure is the queue's, and so the job's */
    pthread_mutex_lock(&queue->lock);
    *queue->last = job;
    queue->last = &job->next;
    pthread_mutex_unlock(&queue->lock);
    fy_cuda_job_begins();
    CUresult result = fy_cuda.cuLaunchHostFunc(queue->stream, run_job, job);
    if (result == CUDA_SUCCESS) {
        queue->n_issued++;
        return FERRY_OK;
    }
    ferry_status status = fy_cuda_fail(error, result, "putting a host function on a stream");
    if (!atomic_exchange(&job->is_taken, true)) {
        job->run(job, true);
        fy_cuda_job_ends();
        finish(job);
    }
    return status;
}

/*
 * Verbs
 */

/* A capture would keep what the host is to do only once. */
static ferry_status check_capture(const fy_exec_queue *queue, ferry_error *error)
{
    bool is_captured;
    FY_TRY(fy_cuda_ask_capture(queue, &is_captured, error));
    return !is_captured
               ? FERRY_OK
               : fy_fail(
                     error, FERRY_ERR_UNSUPPORTED,
                     "this stream is captured in a CUDA graph, which can have runs of a service "
                     "and mixed collectives, and nothing else of ferry's: make this call before "
                     "the capture, or behind it");
}

ferry_status fy_cuda_begin(fy_exec_queue *queue, ferry_error *error)
{
    const fy_cuda_device *device;
    FY_TRY(fy_cuda_enter(queue->device->number, &device, error));
    ferry_status status = check_capture(queue, error);
    if (status != FERRY_OK) {
        fy_cuda_leave();
    }
    return status;
}

ferry_status fy_cuda_end(fy_exec_queue *queue, uint64_t n_before, ferry_status status,
                         ferry_error *error)
{
    ferry_error unknown = {.message = "work that was begun on a CUDA queue could not be ended"};
    if (status != FERRY_OK && queue->n_issued != n_before) {
        fy_cuda_remember(queue, status, error != NULL ? error : &unknown);
    }
    fy_cuda_leave();
    return status;
}

/* A job that is put on the stream when its turn has come. */
typedef struct late_job {
    fy_cuda_late late;
    fy_cuda_job *job;
    void (*run)(fy_cuda_job *job, bool failed);
} late_job;

/* Where the stream does nothing any more it is done here. */
static ferry_status perform_job(fy_exec_queue *queue, const fy_cuda_late *what, ferry_error *error)
{
    const late_job *one = (const late_job *)what;
    ferry_status status = atomic_load(&queue->is_dead) ? FERRY_ERR_IO : fy_cuda_begin(queue, error);
    if (status == FERRY_OK) {
        status = fy_cuda_add_job(queue, one->job, one->run, error);
        return fy_cuda_end(queue, queue->n_issued, status, error);
    }
    bool is_dead = atomic_load(&queue->is_dead);
    if (is_dead || queue->is_late) { /* whoever gave it has gone on */
        one->run(one->job, true);
    }
    fy_free(one->job);
    return is_dead ? FERRY_OK : status;
}

static ferry_status add_late_job(fy_exec_queue *queue, fy_cuda_job *job,
                                 void (*run)(fy_cuda_job *job, bool failed), ferry_error *error)
{
    late_job late = {.late = {.perform = perform_job}, .job = job, .run = run};
    pthread_mutex_lock(&queue->calls);
    bool is_held = queue->late != NULL;
    ferry_status status = fy_cuda_do(queue, &late.late, sizeof late, error);
    pthread_mutex_unlock(&queue->calls);
    if (is_held && status != FERRY_OK) {
        fy_free(job);
    }
    return status;
}

typedef struct word_job {
    fy_cuda_job job;
    _Atomic uint64_t *word;
    uint64_t value;
} word_job;

static void set_word(fy_cuda_job *job, bool failed)
{
    const word_job *one = (const word_job *)job;
    (void)failed; /* somebody may wait for it */
    atomic_store(one->word, one->value);
}

typedef struct call_job {
    fy_cuda_job job;
    void (*function)(void *context);
    void *context;
} call_job;

static void call_function(fy_cuda_job *job, bool failed)
{
    const call_job *one = (const call_job *)job;
    (void)failed;
    one->function(one->context);
}

ferry_status fy_cuda_word_set(fy_exec_queue *queue, _Atomic uint64_t *word, uint64_t value,
                              ferry_error *error)
{
    word_job *one = fy_alloc_zeroed(1, sizeof *one);
    FY_TRY(fy_check_memory(one != NULL, "work on a CUDA queue", error));
    one->word = word;
    one->value = value;
    return add_late_job(queue, &one->job, set_word, error);
}

ferry_status fy_cuda_call(fy_exec_queue *queue, void (*function)(void *context), void *context,
                          ferry_error *error)
{
    call_job *one = fy_alloc_zeroed(1, sizeof *one);
    FY_TRY(fy_check_memory(one != NULL, "work on a CUDA queue", error));
    one->function = function;
    one->context = context;
    return add_late_job(queue, &one->job, call_function, error);
}

static CUdeviceptr address_of(const void *pinned)
{
    return (CUdeviceptr)(uintptr_t)pinned;
}

/* Memory is not freed meanwhile, which would wait for the gate. Entered. */
static ferry_status wait_at_gate(fy_exec_queue *queue, _Atomic uint64_t *word, uint64_t value,
                                 ferry_error *error)
{
    fy_cuda_lock_gates();
    queue->n_gates++;
    ferry_status status = fy_cuda_watch(queue, word, value, error);
    if (status == FERRY_OK) {
        CUresult result =
            fy_cuda.cuStreamWaitValue64(queue->stream, address_of(&queue->words->gate),
                                        queue->n_gates, CU_STREAM_WAIT_VALUE_GEQ);
        status = fy_cuda_check(result, "letting a stream wait for a word", error);
        if (status != FERRY_OK) {
            fy_cuda_watch_no_more(queue);
        } else {
            queue->n_issued++;
        }
    }
    fy_cuda_unlock_gates();
    return status;
}

/* Under the lock of calls. A word that is there already is not waited for. */
static ferry_status wait_for(fy_exec_queue *queue, _Atomic uint64_t *word, uint64_t value,
                             ferry_error *error)
{
    if (queue->late == NULL && atomic_load(word) >= value) {
        return FERRY_OK;
    }
    if (queue->stream == queue->own) {
        return fy_cuda_hold(queue, word, value, error);
    }
    FY_TRY(fy_cuda_begin(queue, error));
    uint64_t before = queue->n_issued;
    return fy_cuda_end(queue, before, wait_at_gate(queue, word, value, error), error);
}

ferry_status fy_cuda_word_wait(fy_exec_queue *queue, _Atomic uint64_t *word, uint64_t value,
                               ferry_error *error)
{
    if (atomic_load(&queue->is_dead)) {
        return status_of(queue, error);
    }
    pthread_mutex_lock(&queue->calls);
    ferry_status status = wait_for(queue, word, value, error);
    pthread_mutex_unlock(&queue->calls);
    return status;
}

ferry_status fy_cuda_put_mark(fy_exec_queue *queue, uint64_t number, ferry_error *error)
{
    CUresult result = fy_cuda.cuStreamWriteValue64(queue->stream, address_of(&queue->words->done),
                                                   number, CU_STREAM_WRITE_VALUE_DEFAULT);
    queue->n_issued += result == CUDA_SUCCESS;
    return fy_cuda_check(result, "letting a stream write a word", error);
}

typedef struct late_mark {
    fy_cuda_late late;
    uint64_t number;
} late_mark;

static ferry_status perform_mark(fy_exec_queue *queue, const fy_cuda_late *what, ferry_error *error)
{
    const late_mark *one = (const late_mark *)what;
    FY_TRY(fy_cuda_begin(queue, error));
    uint64_t before = queue->n_issued;
    ferry_status status = fy_cuda_end_digests(queue, error);
    FY_THEN(status, fy_cuda_put_mark(queue, one->number, error));
    if (status != FERRY_OK && queue->is_late) { /* whoever waits for it was not told */
        (void)fy_cuda.cuStreamSynchronize(queue->stream);
        atomic_store(&queue->words->done, one->number);
    }
    return fy_cuda_end(queue, before, status, error);
}

ferry_status fy_cuda_mark(fy_exec_queue *queue, fy_ticket *ticket_out, ferry_error *error)
{
    if (atomic_load(&queue->is_dead)) {
        *ticket_out = UINT64_MAX;
        return FERRY_OK; /* what became of it is said by reached */
    }
    pthread_mutex_lock(&queue->calls);
    const late_mark late = {.late = {.perform = perform_mark}, .number = queue->n_marks + 1};
    ferry_status status = fy_cuda_do(queue, &late.late, sizeof late, error);
    if (status == FERRY_OK) {
        *ticket_out = ++queue->n_marks;
    }
    pthread_mutex_unlock(&queue->calls);
    return status;
}

enum { LOOKS_BETWEEN = 64 };

ferry_status fy_cuda_reached(fy_exec_queue *queue, fy_ticket ticket, ferry_error *error)
{
    static _Thread_local uint32_t n_looks;
    bool is_over = atomic_load(&queue->words->done) >= ticket;
    if (!is_over && ++n_looks % LOOKS_BETWEEN == 0) {
        fy_cuda_look(queue);
    }
    return is_over || atomic_load(&queue->is_dead) ? status_of(queue, error) : FERRY_ERR_TIMEOUT;
}

/*
 * Opening
 */

void fy_cuda_each_open(void (*visit)(fy_exec_queue *queue))
{
    /* Not under the lock: who has it may wait for the driver. */
    for (fy_exec_queue *one = queues; one != NULL; one = one->next) {
        if (__atomic_load_n(&one->n_users, __ATOMIC_ACQUIRE) > 0) {
            visit(one);
        }
    }
}

/* A caller may destroy his stream when the queue is closed: until then it is not. */
static bool pin(fy_exec_queue *queue)
{
    pthread_mutex_lock(&list_lock);
    bool is_open = queue->n_users > 0;
    queue->n_pins += is_open;
    pthread_mutex_unlock(&list_lock);
    return is_open;
}

static void unpin(fy_exec_queue *queue)
{
    pthread_mutex_lock(&list_lock);
    queue->n_pins--;
    pthread_mutex_unlock(&list_lock);
}

void fy_cuda_look_at_all(void)
{
    for (fy_exec_queue *one = queues; one != NULL; one = one->next) {
        if (pin(one)) {
            fy_cuda_look(one);
            unpin(one);
        }
    }
}

static bool is_busy(fy_exec_queue *queue)
{
    return !atomic_load(&queue->is_dead) &&
           (fy_cuda_is_held(queue) || fy_cuda_is_in_capture(queue) ||
            fy_cuda.cuStreamQuery(queue->stream) == CUDA_ERROR_NOT_READY);
}

bool fy_cuda_is_idle(const fy_cuda_device *device)
{
    bool is_idle = true;
    for (fy_exec_queue *one = queues; one != NULL && is_idle; one = one->next) {
        if (one->device == device && pin(one)) {
            is_idle = !is_busy(one);
            unpin(one);
        }
    }
    return is_idle;
}

static bool has_jobs(fy_exec_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    bool has = queue->first != NULL;
    pthread_mutex_unlock(&queue->lock);
    return has;
}

/* In a capture there can be no mark: then what is known to be there is waited for. Entered. */
static void await_known(fy_exec_queue *queue)
{
    for (uint32_t i = 0; fy_cuda_is_in_capture(queue) && !atomic_load(&queue->is_dead) &&
                         (has_jobs(queue) || fy_cuda_has_waits(queue));
         i++) {
        fy_cuda_nap(i);
    }
}

/* Of a stream that others use, too, no more than what ferry has put there. */
static void await_queue(fy_exec_queue *queue)
{
    fy_ticket ticket;
    const fy_cuda_device *device;
    if (fy_cuda_mark(queue, &ticket, NULL) != FERRY_OK) {
        if (fy_cuda_enter(queue->device->number, &device, NULL) == FERRY_OK) {
            await_known(queue);
            fy_cuda_leave();
        }
        fy_cuda_look(queue);
        return;
    }
    for (uint32_t i = 0;
         fy_cuda_reached(queue, ticket, NULL) == FERRY_ERR_TIMEOUT || fy_cuda_is_held(queue); i++) {
        fy_cuda_nap(i);
    }
}

void fy_cuda_await_all(const fy_cuda_device *device)
{
    for (fy_exec_queue *one = queues; one != NULL; one = one->next) {
        if (one->device == device && pin(one)) {
            await_queue(one);
            unpin(one);
        }
    }
}

/* Under the list's lock. */
static fy_exec_queue *known(const void *native)
{
    fy_exec_queue *one = queues;
    while (one != NULL && one != native) {
        one = one->next;
    }
    return one;
}

static ferry_status join(fy_exec_queue *queue, int32_t device, ferry_error *error)
{
    if (queue->n_users == 0) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%p is no CUDA queue that is open",
                       (const void *)queue);
    }
    if (queue->device->number != device) {
        return fy_fail(error, FERRY_ERR_MISUSE, "the queue at %p is of CUDA device %d, not %d",
                       (const void *)queue, (int)queue->device->number, (int)device);
    }
    __atomic_store_n(&queue->n_users, queue->n_users + 1, __ATOMIC_RELEASE);
    return FERRY_OK;
}

enum { LEAST_ADDRESS = 65536 };

/* The driver looks at whatever it is given, so numbers that are no address do not get there. */
static ferry_status check_stream(const fy_cuda_device *device, void *native, ferry_error *error)
{
    CUcontext context = NULL;
    uintptr_t number = (uintptr_t)native;
    bool is_named = native == (void *)CU_STREAM_LEGACY || native == (void *)CU_STREAM_PER_THREAD;
    if (!is_named && (number < LEAST_ADDRESS || number % sizeof(void *) != 0)) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%p is no stream of CUDA's", native);
    }
    CUresult result = fy_cuda.cuStreamGetCtx((CUstream)native, &context);
    if (result != CUDA_SUCCESS) {
        ferry_error why;
        (void)fy_cuda_fail(&why, result, "adopting a stream");
        return fy_fail(error, FERRY_ERR_MISUSE, "%s", why.message);
    }
    return context == device->context
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_MISUSE,
                         "the stream at %p is of another device or context than the primary one of "
                         "CUDA device %d",
                         native, (int)device->number);
}

static ferry_status make(const fy_cuda_device *device, fy_exec_queue **queue_out,
                         ferry_error *error)
{
    fy_exec_queue *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    void *pinned = NULL;
    FY_TRY(fy_check_memory(fresh != NULL, "a CUDA queue", error));
    ferry_status status = fy_cuda_pinned_alloc(FY_CUDA_WORDS_BYTES + FY_CUDA_STAGING_BYTES +
                                                   FY_CUDA_MOST_DIGESTS * FY_CUDA_SLOT_BYTES,
                                               &pinned, error);
    if (status != FERRY_OK) {
        fy_free(fresh);
        return status;
    }
    fresh->device = device;
    fresh->words = pinned;
    memset(pinned, 0, FY_CUDA_WORDS_BYTES);
    fresh->staging = (char *)pinned + FY_CUDA_WORDS_BYTES;
    fresh->slots = fresh->staging + FY_CUDA_STAGING_BYTES;
    fresh->last = &fresh->first;
    fresh->last_wait = &fresh->waits;
    fresh->last_late = &fresh->late;
    pthread_mutex_init(&fresh->calls, NULL);
    pthread_mutex_init(&fresh->lock, NULL);
    fresh->next = queues;
    queues = fresh;
    *queue_out = fresh;
    return FERRY_OK;
}

/* One that is closed, with scratch where there is such, or a new one. Under the list's lock. */
static ferry_status get(const fy_cuda_device *device, fy_exec_queue **queue_out, ferry_error *error)
{
    fy_exec_queue *found = NULL;
    for (fy_exec_queue *one = queues; one != NULL; one = one->next) {
        if (one->n_users == 0 && one->device == device && one->status == FERRY_OK &&
            (found == NULL || (found->scratch == 0 && one->scratch != 0))) {
            found = one;
        }
    }
    if (found == NULL) {
        return make(device, queue_out, error);
    }
    *queue_out = found;
    return FERRY_OK;
}

CUdeviceptr fy_cuda_take_scratch(const fy_cuda_device *device)
{
    CUdeviceptr found = 0;
    pthread_mutex_lock(&list_lock);
    for (fy_exec_queue *one = queues; one != NULL && found == 0; one = one->next) {
        if (one->n_users == 0 && one->device == device) {
            found = one->scratch;
            one->scratch = 0;
        }
    }
    pthread_mutex_unlock(&list_lock);
    return found;
}

fy_exec_queue *fy_cuda_first_queue(void)
{
    return queues;
}

/* With a stream of ferry's own, or the caller's. Others do not see it yet. */
static ferry_status give_stream(fy_exec_queue *queue, void *native, ferry_error *error)
{
    if (native != NULL) {
        queue->stream = native;
        __atomic_store_n(&queue->n_users, 1, __ATOMIC_RELEASE);
        ferry_status status = fy_cuda_part_all(queue->device, error);
        __atomic_store_n(&queue->n_users, 0, __ATOMIC_RELEASE);
        return status;
    }
    if (queue->own == NULL) {
        CUstream own;
        FY_TRY(fy_cuda_make_stream(&own, error));
        __atomic_store_n(&queue->own, own, __ATOMIC_RELEASE); /* others may ask it */
        FY_TRY(fy_cuda_part_one(queue, error));
    }
    queue->stream = queue->own;
    return FERRY_OK;
}

/* Under the list's lock. Entered. */
static ferry_status open_one(const fy_cuda_device *device, void *native, fy_exec_queue **queue_out,
                             ferry_error *error)
{
    fy_exec_queue *one = NULL;
    if (native != NULL) {
        FY_TRY(check_stream(device, native, error));
    }
    FY_TRY(get(device, &one, error));
    fy_cuda_forget_digests(one);
    FY_TRY(give_stream(one, native, error));
    __atomic_store_n(&one->n_users, 1, __ATOMIC_RELEASE);
    *queue_out = one;
    return FERRY_OK;
}

ferry_status fy_cuda_queue_open(int32_t number, void *native, fy_exec_queue **queue_out,
                                ferry_error *error)
{
    const fy_cuda_device *device;
    FY_TRY(fy_cuda_enter(number, &device, error));
    pthread_mutex_lock(&list_lock);
    fy_exec_queue *same = native != NULL ? known(native) : NULL;
    ferry_status status;
    if (same != NULL) {
        status = join(same, number, error);
        *queue_out = status == FERRY_OK ? same : *queue_out;
    } else {
        status = open_one(device, native, queue_out, error);
    }
    pthread_mutex_unlock(&list_lock);
    fy_cuda_leave();
    return status;
}

/* The queue may be closed. */
void fy_cuda_make_way(fy_exec_queue *queue)
{
    const fy_cuda_device *device;
    if (fy_cuda_enter(queue->device->number, &device, NULL) == FERRY_OK) {
        pthread_mutex_lock(&list_lock);
        fy_cuda_part_idle(device);
        pthread_mutex_unlock(&list_lock);
        fy_cuda_leave();
    }
}

/* One of ferry's own streams, on which nothing waits: pinned. */
static bool pin_plain(fy_exec_queue *queue)
{
    pthread_mutex_lock(&list_lock);
    bool is_plain = queue->n_users > 0 && queue->stream == queue->own && !queue->meets;
    queue->n_pins += is_plain;
    pthread_mutex_unlock(&list_lock);
    return is_plain;
}

static bool are_others_busy(const fy_exec_queue *queue)
{
    bool is_any = false;
    for (fy_exec_queue *one = queues; one != NULL && !is_any; one = one->next) {
        if (one != queue && one->device == queue->device && pin_plain(one)) {
            is_any = is_busy(one);
            unpin(one);
        }
    }
    return is_any;
}

enum { MOST_NAPS = 10000 }; /* a second or less */

/* What is busy could not be told from what is held up. */
ferry_status fy_cuda_queue_meets(fy_exec_queue *queue, ferry_error *error)
{
    const fy_cuda_device *device;
    ferry_status status = FERRY_OK;
    FY_TRY(fy_cuda_enter(queue->device->number, &device, error));
    for (uint32_t i = 0; i < MOST_NAPS && are_others_busy(queue); i++) {
        fy_cuda_nap(i);
    }
    pthread_mutex_lock(&list_lock);
    if (!queue->meets) {
        status = fy_cuda_part_waiting(queue, error);
    }
    pthread_mutex_unlock(&list_lock);
    fy_cuda_leave();
    return status;
}

void fy_cuda_queue_close(fy_exec_queue *queue)
{
    if (queue == NULL) {
        return;
    }
    await_queue(queue);
    pthread_mutex_lock(&list_lock);
    for (uint32_t i = 0; queue->n_pins > 0; i++) {
        pthread_mutex_unlock(&list_lock);
        fy_cuda_nap(i);
        pthread_mutex_lock(&list_lock);
    }
    __atomic_store_n(&queue->n_users, queue->n_users - 1, __ATOMIC_RELEASE);
    queue->meets = queue->meets && queue->n_users > 0;
    pthread_mutex_unlock(&list_lock);
}
