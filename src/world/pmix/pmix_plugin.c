/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/pmix.h"

#include "base/alloc.h"

#include <ferry/export.h>

#include <errno.h>
#include <pmix.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/*
 * PMIx counts PMIx_Init and PMIx_Finalize in a process, but cannot be started again once the count
 * fell to zero. So what this plugin takes is given back when the process exits: MPI may come and go
 * meanwhile. A process that leaves without giving it back counts as crashed and takes its job down.
 */
static pmix_proc_t self;
static uint32_t n_ranks;
static pid_t joined_by; /* 0: not joined; a child by fork inherits the number, not the life */

static void leave(void)
{
    if (joined_by == getpid()) {
        PMIx_Finalize(NULL, 0);
    }
}

static ferry_status fail(ferry_error *error, const char *call, pmix_status_t result)
{
    return fy_fail(error, FERRY_ERR_IO, "PMIx: %s failed: %s (%d)", call, PMIx_Error_string(result),
                   (int)result);
}

static ferry_status get_size(uint32_t *size_out, ferry_error *error)
{
    pmix_proc_t job;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&job, self.nspace, PMIX_RANK_WILDCARD);
    pmix_status_t result = PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &value);
    if (result != PMIX_SUCCESS) {
        return fail(error, "asking for the number of ranks", result);
    }
    bool fine = value->type == PMIX_UINT32 && value->data.uint32 > self.rank;
    if (fine) {
        *size_out = value->data.uint32;
    }
    PMIX_VALUE_RELEASE(value);
    return fine ? FERRY_OK
                : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                          "PMIx says that this is rank %u, but no number of ranks that has it",
                          (unsigned)self.rank);
}

static ferry_status begin(uint32_t *rank_out, uint32_t *n_ranks_out, ferry_error *error)
{
    if (joined_by != 0 && joined_by != getpid()) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "PMIx: this process was forked from a rank and is none itself");
    }
    if (joined_by == 0) {
        pmix_status_t result = PMIx_Init(&self, NULL, 0);
        if (result != PMIX_SUCCESS) {
            return fail(error, "PMIx_Init", result);
        }
        ferry_status status = get_size(&n_ranks, error);
        if (status == FERRY_OK && atexit(leave) != 0) {
            status = fy_fail_no_memory(error, "the end of PMIx");
        }
        if (status != FERRY_OK) {
            PMIx_Finalize(NULL, 0);
            return status;
        }
        joined_by = getpid();
    }
    *rank_out = self.rank;
    *n_ranks_out = n_ranks;
    return FERRY_OK;
}

static ferry_status publish(const char *name, const char *text, ferry_error *error)
{
    pmix_value_t value;
    PMIX_VALUE_CONSTRUCT(&value);
    value.type = PMIX_STRING;
    value.data.string = fy_strdup(text);
    FY_TRY(fy_check_memory(value.data.string != NULL, "a text for PMIx", error));
    pmix_status_t result = PMIx_Put(PMIX_GLOBAL, name, &value);
    fy_free(value.data.string);
    if (result != PMIX_SUCCESS) {
        return fail(error, "PMIx_Put", result);
    }
    result = PMIx_Commit();
    return result == PMIX_SUCCESS ? FERRY_OK : fail(error, "PMIx_Commit", result);
}

/*
 * A question to PMIx, which may answer long after nobody waits any more, or never: whoever of the
 * two is last frees it.
 */
typedef struct question {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    uint32_t holders;
    bool done;
    pmix_status_t result;
    char *text; /* NULL: none, or too long */
    size_t text_bytes;
    pmix_info_t refresh;
} question;

static ferry_status make_question(size_t text_bytes, question **question_out, ferry_error *error)
{
    pthread_condattr_t monotonic;
    question *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    char *text = fy_alloc_zeroed(text_bytes, 1);
    if (fresh == NULL || text == NULL) {
        fy_free(fresh);
        fy_free(text);
        return fy_fail_no_memory(error, "a question to PMIx");
    }
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&fresh->lock, NULL);
    pthread_cond_init(&fresh->answered, &monotonic);
    pthread_condattr_destroy(&monotonic);
    fresh->holders = 2;
    fresh->text = text;
    fresh->text_bytes = text_bytes;
    *question_out = fresh;
    return FERRY_OK;
}

/* Locked on entry, not on return. */
static void let_go(question *asked)
{
    bool last = --asked->holders == 0;
    pthread_mutex_unlock(&asked->lock);
    if (last) {
        pthread_cond_destroy(&asked->answered);
        pthread_mutex_destroy(&asked->lock);
        fy_free(asked->text);
        fy_free(asked);
    }
}

/* On a thread of PMIx. */
static void take_answer(pmix_status_t result, pmix_value_t *value, void *context)
{
    question *asked = context;
    pthread_mutex_lock(&asked->lock);
    asked->done = true;
    asked->result = result;
    if (result == PMIX_SUCCESS) {
        bool text = value != NULL && value->type == PMIX_STRING && value->data.string != NULL;
        size_t length = text ? strlen(value->data.string) : asked->text_bytes;
        if (length < asked->text_bytes) {
            memcpy(asked->text, value->data.string, length + 1);
        } else {
            asked->result = PMIX_ERR_TYPE_MISMATCH;
        }
    }
    pthread_cond_signal(&asked->answered);
    let_go(asked);
}

enum { SLICE_NS = 50 * 1000 * 1000 };

static struct timespec now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time;
}

static struct timespec later(struct timespec time, int64_t ns)
{
    int64_t sum = time.tv_nsec + ns % 1000000000;
    time.tv_sec += ns / 1000000000 + sum / 1000000000;
    time.tv_nsec = sum % 1000000000;
    return time;
}

static bool is_past(struct timespec end)
{
    struct timespec time = now();
    return time.tv_sec > end.tv_sec || (time.tv_sec == end.tv_sec && time.tv_nsec >= end.tv_nsec);
}

/* How long one waits, and who may end it before. */
typedef struct patience {
    struct timespec end;
    bool (*stop)(void *context);
    void *context;
} patience;

/* A slice of a wait; false when the time is over or it is to stop. Without the lock stop is asked,
 * for it may take others. */
static bool wait_slice(question *asked, const patience *wait)
{
    struct timespec slice = later(now(), SLICE_NS);
    pthread_mutex_unlock(&asked->lock);
    bool goes_on = !is_past(wait->end) && !wait->stop(wait->context);
    pthread_mutex_lock(&asked->lock);
    if (goes_on && !asked->done) {
        (void)pthread_cond_timedwait(&asked->answered, &asked->lock, &slice);
    }
    return goes_on;
}

/* Asks once; PMIX_ERR_TIMEOUT when no answer came in time. */
static ferry_status ask(uint32_t rank, const char *name, const patience *wait, char *text,
                        size_t text_bytes, pmix_status_t *result_out, ferry_error *error)
{
    pmix_proc_t root;
    question *asked = NULL;
    bool yes = true;
    FY_TRY(make_question(text_bytes, &asked, error));
    PMIX_LOAD_PROCID(&root, self.nspace, rank);
    size_t n_info = 0;
#ifdef PMIX_GET_REFRESH_CACHE
    /* What is known of that rank here may be from before it published this name. */
    PMIX_INFO_LOAD(&asked->refresh, PMIX_GET_REFRESH_CACHE, &yes, PMIX_BOOL);
    n_info = 1;
#endif
    (void)yes;
    pmix_status_t result = PMIx_Get_nb(&root, name, &asked->refresh, n_info, take_answer, asked);
    pthread_mutex_lock(&asked->lock);
    if (result != PMIX_SUCCESS) { /* then nobody will answer */
        asked->holders--;
        asked->done = true;
        asked->result = result;
    }
    while (!asked->done && wait_slice(asked, wait)) {}
    *result_out = asked->done ? asked->result : PMIX_ERR_TIMEOUT;
    if (*result_out == PMIX_SUCCESS) {
        memcpy(text, asked->text, text_bytes);
    }
    let_go(asked);
    return FERRY_OK;
}

/*
 * A server that has heard of the rank, but not of the name, does not wait for it as it waits for
 * the rank itself: then the question is asked again.
 */
static bool is_early(pmix_status_t result)
{
    return result == PMIX_ERR_NOT_FOUND || result == PMIX_ERR_PROC_ENTRY_NOT_FOUND;
}

static ferry_status get(uint32_t rank, const char *name, int64_t limit_ns,
                        bool (*stop)(void *context), void *context, char *text, size_t text_bytes,
                        ferry_error *error)
{
    patience wait = {.end = later(now(), limit_ns), .stop = stop, .context = context};
    struct timespec pause = {.tv_nsec = 2000000};
    pmix_status_t result = PMIX_SUCCESS;
    for (;;) {
        ferry_status status = ask(rank, name, &wait, text, text_bytes, &result, error);
        if (status != FERRY_OK || result == PMIX_SUCCESS) {
            return status;
        }
        if (stop(context)) {
            return FERRY_ERR_STOPPED;
        }
        if (result == PMIX_ERR_TYPE_MISMATCH) {
            return fy_fail(
                error, FERRY_ERR_INVALID_INPUT,
                "PMIx: what rank %u told under \"%s\" is not a text of less than %zu bytes", rank,
                name, text_bytes);
        }
        if (result == PMIX_ERR_TIMEOUT || (is_early(result) && is_past(wait.end))) {
            return fy_fail(error, FERRY_ERR_TIMEOUT, "PMIx: rank %u told nothing under \"%s\"",
                           rank, name);
        }
        if (!is_early(result)) {
            return fail(error, "PMIx_Get", result);
        }
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec * 2 > 50000000 ? 50000000 : pause.tv_nsec * 2;
    }
}

static const fy_pmix table = {.abi = FY_PMIX_ABI, .begin = begin, .publish = publish, .get = get};

FERRY_API const fy_pmix *ferry_pmix_plugin(void);

FERRY_API const fy_pmix *ferry_pmix_plugin(void)
{
    return &table;
}
