/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A network that does what RDMA may do, beneath the engine over UCX: what ucp_put_nbx is given is
 * taken from its source some progress later, and stays here until ucp_ep_flush_nbx lets it go, in
 * any order. Active messages pass by. Shared memory and TCP put in place at once whatever is asked
 * of them, so over them nothing of what the engine owes to order could ever be found missing.
 *
 * Registering memory takes its time, as with cards that pin every page: that is not for the thread
 * that tells others that this rank lives, and so ends the process there.
 *
 * The engine is linked a second time, with this in front of UCX. FERRY_UCX_LATE_SEED draws anew.
 * With FERRY_UCX_LATE_CARD UCX says that it has such a card, and connections have error handling;
 * without, that it puts by itself, also where it could only over TCP.
 */
#include "support/random.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

typedef struct late_put {
    struct late_put *next;
    ucp_worker_h worker;
    ucp_ep_h ep;
    const void *source;
    void *copy; /* NULL: the source is still to be read */
    size_t bytes;
    uint64_t address;
    ucp_rkey_h rkey;
    bool is_gone; /* let go: stays for its completion only */
    ucs_status_t status;
    ucp_send_nbx_callback_t done;
    void *user_data;
} late_put;

typedef struct endpoint {
    struct endpoint *next;
    ucp_ep_h ep;
    ucp_worker_h worker;
} endpoint;

/* From so many bytes on registering takes this long. */
#define SLOW_BYTES (96ull << 20)
enum { SLOW_SECONDS = 4 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static late_put *held;
static endpoint *endpoints;
static uint64_t state;
static bool is_seeded;

ucs_status_t __real_ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params,
                                  ucp_ep_h *ep_out);
ucs_status_ptr_t __real_ucp_put_nbx(ucp_ep_h ep, const void *buffer, size_t count, uint64_t address,
                                    ucp_rkey_h rkey, const ucp_request_param_t *params);
ucs_status_ptr_t __real_ucp_ep_flush_nbx(ucp_ep_h ep, const ucp_request_param_t *params);
ucs_status_ptr_t __real_ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *params);
unsigned __real_ucp_worker_progress(ucp_worker_h worker);
ucs_status_t __real_ucp_worker_arm(ucp_worker_h worker);
void __real_ucp_request_free(void *request);

ucs_status_t __wrap_ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params,
                                  ucp_ep_h *ep_out);
ucs_status_ptr_t __wrap_ucp_put_nbx(ucp_ep_h ep, const void *buffer, size_t count, uint64_t address,
                                    ucp_rkey_h rkey, const ucp_request_param_t *params);
ucs_status_ptr_t __wrap_ucp_ep_flush_nbx(ucp_ep_h ep, const ucp_request_param_t *params);
ucs_status_ptr_t __wrap_ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *params);
unsigned __wrap_ucp_worker_progress(ucp_worker_h worker);
ucs_status_t __wrap_ucp_worker_arm(ucp_worker_h worker);
void __wrap_ucp_request_free(void *request);
ucs_status_t __real_ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                                ucp_mem_h *memory_out);
void __real_ucp_worker_destroy(ucp_worker_h worker);
void __wrap_ucp_worker_destroy(ucp_worker_h worker);
ucs_status_t __wrap_ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                                ucp_mem_h *memory_out);
void __real_ucp_context_print_info(ucp_context_h context, FILE *stream);
void __wrap_ucp_context_print_info(ucp_context_h context, FILE *stream);
void __real_ucp_ep_print_info(ucp_ep_h ep, FILE *stream);
void __wrap_ucp_ep_print_info(ucp_ep_h ep, FILE *stream);

/* Under the lock. */
static uint32_t draw(uint32_t limit)
{
    if (!is_seeded) {
        const char *seed = getenv("FERRY_UCX_LATE_SEED");
        state = seed == NULL ? 1 : strtoull(seed, NULL, 10);
        is_seeded = true;
    }
    return random_below(&state, limit);
}

static ucp_worker_h worker_of(ucp_ep_h ep)
{
    endpoint *one = endpoints;
    while (one != NULL && one->ep != ep) {
        one = one->next;
    }
    return one == NULL ? NULL : one->worker;
}

ucs_status_t __wrap_ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params,
                                  ucp_ep_h *ep_out)
{
    endpoint *one = calloc(1, sizeof *one);
    ucs_status_t status = one == NULL ? UCS_ERR_NO_MEMORY : UCS_OK;
    if (status == UCS_OK) {
        status = __real_ucp_ep_create(worker, params, ep_out);
    }
    if (status != UCS_OK) {
        free(one);
        return status;
    }
    pthread_mutex_lock(&lock);
    *one = (endpoint){.next = endpoints, .ep = *ep_out, .worker = worker};
    endpoints = one;
    pthread_mutex_unlock(&lock);
    return UCS_OK;
}

/* The request is the put itself, which no call of UCX but the wrapped ones ever sees. */
ucs_status_ptr_t __wrap_ucp_put_nbx(ucp_ep_h ep, const void *buffer, size_t count, uint64_t address,
                                    ucp_rkey_h rkey, const ucp_request_param_t *params)
{
    late_put *put = calloc(1, sizeof *put);
    if (put == NULL) {
        return UCS_STATUS_PTR(UCS_ERR_NO_MEMORY);
    }
    pthread_mutex_lock(&lock);
    *put = (late_put){.next = held,
                      .worker = worker_of(ep),
                      .ep = ep,
                      .source = buffer,
                      .bytes = count,
                      .address = address,
                      .rkey = rkey,
                      .done = params->cb.send,
                      .user_data = params->user_data};
    held = put;
    pthread_mutex_unlock(&lock);
    return put;
}

static bool take_source(late_put *put)
{
    put->copy = malloc(put->bytes + 1);
    if (put->copy != NULL) {
        memcpy(put->copy, put->source, put->bytes);
    }
    return put->copy != NULL;
}

static void release_copy(void *request, ucs_status_t status, void *user_data)
{
    (void)status;
    free(user_data);
    if (request != NULL) {
        __real_ucp_request_free(request);
    }
}

static void let_go(late_put *put)
{
    if (put->copy == NULL && !take_source(put)) {
        abort();
    }
    void *copy = put->copy;
    ucp_request_param_t params = {.op_attr_mask =
                                      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                  .cb = {.send = release_copy},
                                  .user_data = copy};
    put->is_gone = true;
    ucs_status_ptr_t request =
        __real_ucp_put_nbx(put->ep, copy, put->bytes, put->address, put->rkey, &params);
    if (request == NULL || UCS_PTR_IS_ERR(request)) {
        free(copy);
    }
}

/* One of those that an endpoint holds back, or NULL. */
static late_put *choose(ucp_ep_h ep)
{
    late_put *chosen = NULL;
    uint32_t n = 0;
    for (late_put *put = held; put != NULL; put = put->next) {
        if (put->ep == ep && !put->is_gone && draw(++n) == 0) {
            chosen = put;
        }
    }
    return chosen;
}

/* A put that was completed to the engine and let go is over. */
static void forget(late_put *over)
{
    late_put **link = &held;
    while (*link != over) {
        link = &(*link)->next;
    }
    *link = over->next;
    free(over);
}

ucs_status_ptr_t __wrap_ucp_ep_flush_nbx(ucp_ep_h ep, const ucp_request_param_t *params)
{
    late_put *put;
    pthread_mutex_lock(&lock);
    while ((put = choose(ep)) != NULL) {
        let_go(put);
        if (put->done == NULL) {
            forget(put);
        }
    }
    pthread_mutex_unlock(&lock);
    return __real_ucp_ep_flush_nbx(ep, params);
}

/* What was not flushed before its end is lost with a connection, and cancelled. */
ucs_status_ptr_t __wrap_ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *params)
{
    pthread_mutex_lock(&lock);
    late_put *next;
    for (late_put *put = held; put != NULL; put = next) {
        next = put->next;
        if (put->ep != ep) {
            continue;
        }
        if (!put->is_gone) {
            free(put->copy);
            put->status = UCS_ERR_CANCELED;
        }
        put->is_gone = true;
        put->ep = NULL;
        if (put->done == NULL) {
            forget(put);
        }
    }
    for (endpoint **link = &endpoints; *link != NULL; link = &(*link)->next) {
        if ((*link)->ep == ep) {
            endpoint *one = *link;
            *link = one->next;
            free(one);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return __real_ucp_ep_close_nbx(ep, params);
}

/* A put whose source is not needed from here on, or NULL: not always the first, nor at once. */
static late_put *complete_one(ucp_worker_h worker)
{
    for (late_put *put = held; put != NULL; put = put->next) {
        if (put->worker == worker && put->done != NULL &&
            (put->is_gone || (draw(4) == 0 && take_source(put)))) {
            return put;
        }
    }
    return NULL;
}

unsigned __wrap_ucp_worker_progress(ucp_worker_h worker)
{
    unsigned n = __real_ucp_worker_progress(worker);
    pthread_mutex_lock(&lock);
    late_put *put = complete_one(worker);
    if (put != NULL) {
        ucp_send_nbx_callback_t done = put->done;
        void *user_data = put->user_data;
        ucs_status_t status = put->status;
        put->done = NULL;
        void *request = put;
        if (put->is_gone) {
            forget(put);
            request = NULL;
        }
        pthread_mutex_unlock(&lock);
        done(request, status, user_data);
        return n + 1;
    }
    pthread_mutex_unlock(&lock);
    return n;
}

/* Nobody sleeps on a completion that is about to come. */
ucs_status_t __wrap_ucp_worker_arm(ucp_worker_h worker)
{
    bool is_busy = false;
    pthread_mutex_lock(&lock);
    for (late_put *put = held; put != NULL && !is_busy; put = put->next) {
        is_busy = put->worker == worker && put->done != NULL;
    }
    pthread_mutex_unlock(&lock);
    return is_busy ? UCS_ERR_BUSY : __real_ucp_worker_arm(worker);
}

/* Puts free themselves. */
void __wrap_ucp_request_free(void *request)
{
    bool is_put = request == NULL;
    pthread_mutex_lock(&lock);
    for (late_put *put = held; put != NULL && !is_put; put = put->next) {
        is_put = put == request;
    }
    pthread_mutex_unlock(&lock);
    if (!is_put) {
        __real_ucp_request_free(request);
    }
}

/* With a worker goes what it still had to do. */
void __wrap_ucp_worker_destroy(ucp_worker_h worker)
{
    pthread_mutex_lock(&lock);
    late_put *next;
    for (late_put *put = held; put != NULL; put = next) {
        next = put->next;
        if (put->worker == worker) {
            if (!put->is_gone) {
                free(put->copy);
            }
            forget(put);
        }
    }
    for (endpoint **link = &endpoints; *link != NULL;) {
        endpoint *one = *link;
        if (one->worker == worker) {
            *link = one->next;
            free(one);
        } else {
            link = &one->next;
        }
    }
    pthread_mutex_unlock(&lock);
    __real_ucp_worker_destroy(worker);
}

/* The library's own threads take no signals. */
static bool is_own_thread(void)
{
    sigset_t blocked;
    return pthread_sigmask(SIG_BLOCK, NULL, &blocked) == 0 && sigismember(&blocked, SIGTERM) == 1;
}

ucs_status_t __wrap_ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                                ucp_mem_h *memory_out)
{
    if (is_own_thread()) {
        fprintf(stderr, "%zu bytes are registered by a thread of the library's\n", params->length);
        abort();
    }
    if (params->length >= SLOW_BYTES) {
        nanosleep(&(struct timespec){.tv_sec = SLOW_SECONDS}, NULL);
    }
    return __real_ucp_mem_map(context, params, memory_out);
}

void __wrap_ucp_context_print_info(ucp_context_h context, FILE *stream)
{
    __real_ucp_context_print_info(context, stream);
    if (getenv("FERRY_UCX_LATE_CARD") != NULL) {
        fprintf(stream, "# resource 99 :  md 99 dev 99 flags -- rc_verbs/none:1\n");
    }
}

void __wrap_ucp_ep_print_info(ucp_ep_h ep, FILE *stream)
{
    if (getenv("FERRY_UCX_LATE_CARD") != NULL) {
        __real_ucp_ep_print_info(ep, stream);
    } else {
        const char *name = getenv("FERRY_UCX_LATE_LANE"); /* of another way to do that */
        fprintf(stream, "# lane[0]:  1:%s/memory.0 md[1] -> md[1]/x/sysdev[255] rma#0\n",
                name == NULL ? "cma" : name);
    }
}
