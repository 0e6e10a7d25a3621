/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx/ucx.h"

enum { LOOKS = 64 }; /* before a wait goes through the library */

typedef struct wait_for {
    fy_ucx *engine;
    uint32_t rank;
    fy_ucx_ready_fn ready;
} wait_for;

static bool is_over(const wait_for *wait)
{
    const fy_ucx_peer *peer = &wait->engine->peers[wait->rank];
    return wait->ready(wait->engine, wait->rank) || peer->is_lost || wait->engine->is_dead;
}

static bool look(void *context)
{
    wait_for *wait = context;
    fy_ucx_enter(wait->engine);
    (void)fy_ucx_run(wait->engine);
    bool over = is_over(wait);
    fy_ucx_leave(wait->engine);
    return over;
}

static int64_t sleep_ns(void *context)
{
    const wait_for *wait = context;
    return fy_ucx_sleep_ns(wait->engine);
}

/*
 * Waits in slices of the deadline, so that a rank that shows no sign of life for a whole one is
 * found out within a slice more: then it is lost. FERRY_OK: the wait is over.
 */
static ferry_status wait_in_slices(wait_for *wait, const char *what, ferry_error *error)
{
    fy_ucx *engine = wait->engine;
    const fy_host *host = engine->host;
    fy_ucx_peer *peer = &engine->peers[wait->rank];
    uint64_t n_events = peer->n_events;
    int64_t since_ns = fy_ucx_now_ns();
    for (;;) {
        fy_ucx_leave(engine);
        ferry_status status =
            host->wait(host, look, sleep_ns, wait, host->deadline_ns / 4 + 1, error);
        fy_ucx_enter(engine);
        if (status != FERRY_ERR_TIMEOUT) {
            return status;
        }
        if (peer->n_events != n_events) {
            n_events = peer->n_events;
            since_ns = fy_ucx_now_ns();
        } else if (fy_ucx_now_ns() - since_ns >= host->deadline_ns) {
            fy_ucx_lose(engine, wait->rank,
                        "rank %u did not %s and showed no sign of life for %.1f seconds",
                        wait->rank, what, (double)host->deadline_ns / 1e9);
            return FERRY_OK;
        }
    }
}

ferry_status fy_ucx_wait(fy_ucx *engine, uint32_t rank, fy_ucx_ready_fn ready, const char *what,
                         ferry_error *error)
{
    wait_for wait = {engine, rank, ready};
    for (int i = 0; i < LOOKS && !is_over(&wait); i++) {
        (void)fy_ucx_run(engine);
    }
    FY_TRY(is_over(&wait) ? FERRY_OK : wait_in_slices(&wait, what, error));
    if (!ready(engine, rank)) {
        /* The world learns of the loss first, for it may know better why. */
        fy_ucx_leave(engine);
        fy_ucx_enter(engine);
        FY_TRY(fy_ucx_peer_state(engine, rank, error));
    }
    return FERRY_OK;
}

/*
 * A rank that has closed in good order took its memory with it: what was put there is as good as in
 * place, but nothing can be fetched.
 */
static bool is_flushed(const fy_ucx *engine, uint32_t rank)
{
    const fy_ucx_peer *peer = &engine->peers[rank];
    if (peer->has_left) {
        return peer->n_sending == peer->n_waiting;
    }
    return peer->n_sending == 0 && peer->n_flushing == 0 && peer->held.first == NULL &&
           peer->n_answered == peer->n_asked;
}

static ferry_status ask(fy_ucx *engine, uint32_t rank, ferry_error *error)
{
    const fy_ucx_peer *peer = &engine->peers[rank];
    if (peer->ep == NULL || peer->has_left) {
        return FERRY_OK;
    }
    if (peer->is_lost) {
        return fy_ucx_peer_state(engine, rank, error);
    }
    return fy_ucx_ask_reached(engine, rank, error);
}

static ferry_status await(fy_ucx *engine, uint32_t rank, ferry_error *error)
{
    const fy_ucx_peer *peer = &engine->peers[rank];
    if (peer->ep == NULL) {
        return FERRY_OK;
    }
    FY_TRY(fy_ucx_wait(engine, rank, is_flushed, "put in place what was sent there", error));
    if (peer->n_waiting > 0) {
        FY_TRY(fy_ucx_peer_state(engine, rank, error));
    }
    return FERRY_OK;
}

ferry_status fy_ucx_flush(void *state, uint32_t rank, ferry_error *error)
{
    fy_ucx *engine = state;
    bool is_all = rank == FERRY_ANY_RANK;
    uint32_t first = is_all ? 0 : rank;
    uint32_t end = is_all ? engine->host->n_ranks : rank + 1;

    fy_ucx_enter(engine);
    ferry_status status = engine->host->state(engine->host, error);
    if (status == FERRY_OK) {
        fy_ucx_disarm(engine);
    } else {
        fy_ucx_cut(engine);
    }
    for (uint32_t r = first; r < end && status == FERRY_OK; r++) {
        status = ask(engine, r, error);
    }
    for (uint32_t r = first; r < end && status == FERRY_OK; r++) {
        status = await(engine, r, error);
    }
    fy_ucx_leave(engine);
    return status;
}

/* A lost peer answers nothing: the world tells who asks. */
static ferry_status try_peer(fy_ucx *engine, uint32_t rank, ferry_error *error)
{
    fy_ucx_peer *peer = &engine->peers[rank];
    if (peer->ep == NULL) {
        return FERRY_OK;
    }
    if (peer->is_lost) {
        return FERRY_ERR_TIMEOUT;
    }
    FY_TRY(peer->is_trying ? FERRY_OK : ask(engine, rank, error));
    peer->is_trying = !is_flushed(engine, rank);
    return peer->is_trying ? FERRY_ERR_TIMEOUT : FERRY_OK;
}

ferry_status fy_ucx_try_flush(void *state, uint32_t *peer_out, ferry_error *error)
{
    fy_ucx *engine = state;
    fy_ucx_enter(engine);
    fy_ucx_disarm(engine);
    ferry_status status = FERRY_OK;
    for (uint32_t r = 0; r < engine->host->n_ranks; r++) {
        ferry_status its = try_peer(engine, r, error);
        if (its != FERRY_OK && (status == FERRY_OK || status == FERRY_ERR_TIMEOUT)) {
            status = its;
            *peer_out = r;
        }
    }
    fy_ucx_leave(engine);
    return status;
}
