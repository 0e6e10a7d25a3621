/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/link.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "world/address.h"
#include "world/bell.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/*
 * One address is tried after the other, so that the other side sees one connection at a time. Each
 * gets little time in the first round, and twice as much in the next: an address that swallows
 * everything delays the others little, and a side that is slow is still reached.
 */
#define MS_IN_NS 1000000
static const int64_t first_connect_ns = 250LL * MS_IN_NS; /* the other side's kernel answers */
static const int64_t first_shake_ns = 2000LL * MS_IN_NS;  /* its process does */
static const int64_t first_pause_ns = 5LL * MS_IN_NS;
static const int64_t longest_pause_ns = 200LL * MS_IN_NS;
static const int64_t slice_ns = 50LL * MS_IN_NS; /* how often stop is asked */
/*
 * How long an address that has not answered may still put right what another one has said. Where
 * several are listed, some may be a neighbour's, on which another job listens.
 */
static const int64_t grace_ns = 2000LL * MS_IN_NS;

enum { MOST_DOUBLINGS = 4 };

typedef struct target {
    char text[FY_HOST_BYTES + FY_PORT_BYTES + 4]; /* as it was given */
    char host[FY_HOST_BYTES];
    char port[FY_PORT_BYTES];
    struct addrinfo *list; /* NULL: not found yet */
    ferry_status status;   /* of the last attempt */
    ferry_error said;
    bool is_final; /* trying again changes nothing */
    bool refused;  /* nobody listens there */
} target;

typedef struct opening {
    target *targets;
    size_t n_targets;
    const unsigned char *key;
    int64_t begin_ns, end_ns, final_ns; /* final_ns: of the first final answer, or 0 */
    unsigned round;
    bool reopens; /* who listened there once does so still, or is gone */
    bool (*stop)(void *context);
    void *context;
    bool stopped;
    fy_link *link;
} opening;

/* --- Time --- */

static bool is_stopped(opening *o)
{
    if (!o->stopped && o->stop != NULL) {
        o->stopped = o->stop(o->context);
    }
    return o->stopped;
}

static int64_t attempt_end(const opening *o, int64_t first_ns)
{
    unsigned doublings = o->round < MOST_DOUBLINGS ? o->round : MOST_DOUBLINGS;
    int64_t end = fy_now_ns() + (first_ns << doublings);
    return end < o->end_ns ? end : o->end_ns;
}

/* One slice of waiting; fd may be -1. False: the time is over, or it is to stop. */
static bool wait_slice(opening *o, int fd, short events, int64_t end_ns)
{
    struct pollfd item = {.fd = fd, .events = events};
    int64_t left = end_ns - fy_now_ns();
    if (left <= 0 || is_stopped(o)) {
        return false;
    }
    int64_t most = left < slice_ns ? left : slice_ns;
    poll(&item, 1, (int)((most + MS_IN_NS - 1) / MS_IN_NS)); /* whatever wakes it, it looks again */
    return true;
}

/* --- One attempt --- */

static ferry_status fail_by_errno(target *t, int reason, ferry_error *error)
{
    t->refused = reason == ECONNREFUSED;
    return reason == ECONNREFUSED
               ? fy_fail(error, FERRY_ERR_TIMEOUT, "%s refuses: nobody listens there yet", t->text)
               : fy_fail(error, FERRY_ERR_TIMEOUT, "%s cannot be reached: %s", t->text,
                         strerror(reason));
}

/*
 * A connection to a free port of this machine may get that very port for its own end, and is then
 * connected to itself.
 */
static bool is_connected_to_itself(int fd)
{
    struct sockaddr_storage own = {0}, other = {0};
    socklen_t own_bytes = sizeof own, other_bytes = sizeof other;
    return getsockname(fd, (struct sockaddr *)&own, &own_bytes) == 0 &&
           getpeername(fd, (struct sockaddr *)&other, &other_bytes) == 0 &&
           own_bytes == other_bytes && memcmp(&own, &other, own_bytes) == 0;
}

static ferry_status finish_connecting(opening *o, target *t, int fd)
{
    int reason = 0;
    socklen_t length = sizeof reason;
    int64_t end = attempt_end(o, first_connect_ns);
    for (;;) {
        struct pollfd item = {.fd = fd, .events = POLLOUT};
        if (poll(&item, 1, 0) > 0) {
            break;
        }
        if (!wait_slice(o, fd, POLLOUT, end)) {
            return fy_fail(&t->said, FERRY_ERR_TIMEOUT, "%s does not answer", t->text);
        }
    }
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &length) != 0) {
        reason = errno;
    }
    return reason == 0 ? FERRY_OK : fail_by_errno(t, reason, &t->said);
}

static ferry_status connect_to(opening *o, target *t, const struct addrinfo *address, int *fd_out)
{
    ferry_status status = FERRY_OK;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return fail_by_errno(t, errno, &t->said);
    }
    if (connect(fd, address->ai_addr, address->ai_addrlen) != 0) {
        status = errno == EINPROGRESS || errno == EINTR ? finish_connecting(o, t, fd)
                                                        : fail_by_errno(t, errno, &t->said);
    }
    if (status == FERRY_OK && is_connected_to_itself(fd)) {
        /* Reset, so that the port is free at once for whoever wants to listen there. */
        struct linger none = {.l_onoff = 1, .l_linger = 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        status = fail_by_errno(t, ECONNREFUSED, &t->said);
    }
    if (status != FERRY_OK) {
        close(fd);
        return status;
    }
    *fd_out = fd;
    return FERRY_OK;
}

/* Drives the handshake to its end. What the link says of a failure is what became of the address.
 */
static ferry_status shake(opening *o, target *t, fy_link *link)
{
    int64_t end = attempt_end(o, first_shake_ns);
    for (;;) {
        ferry_status status = fy_link_work(link, &t->said);
        if (status != FERRY_OK) {
            t->is_final =
                status == FERRY_ERR_DENIED || status == FERRY_ERR_NO_MEMORY || fy_link_proven(link);
            return status;
        }
        if (fy_link_ready(link)) {
            return FERRY_OK;
        }
        if (!wait_slice(o, fy_link_fd(link), fy_link_events(link), end)) {
            return fy_fail(&t->said, FERRY_ERR_TIMEOUT,
                           "%s takes the connection, but says nothing: it is stopped or busy, or "
                           "no ferry rank",
                           t->text);
        }
    }
}

static ferry_status attempt(opening *o, target *t, const struct addrinfo *address)
{
    fy_link *link = NULL;
    int fd = -1;
    FY_TRY(connect_to(o, t, address, &fd));
    ferry_status status = fy_link_create(fd, false, o->key, &link, &t->said);
    if (status != FERRY_OK) {
        t->is_final = status != FERRY_ERR_PEER_LOST;
        return status;
    }
    status = shake(o, t, link);
    if (status == FERRY_OK) {
        o->link = link;
        link = NULL;
    }
    fy_link_destroy(link);
    return status;
}

/* How much an answer tells: a rank's own, then any program's, then none. */
static int weight(ferry_status status, bool is_final)
{
    return is_final ? 2 : status == FERRY_ERR_INVALID_INPUT;
}

/* Tries all addresses of a host; the most telling of their answers stays. */
static void try_target(opening *o, target *t)
{
    ferry_error telling = {""};
    ferry_status status = FERRY_ERR_TIMEOUT;
    bool final = false;
    bool refused = true;
    if (t->list == NULL) {
        t->status = fy_address_resolve(t->host, t->port, &t->list, &t->said);
    }
    for (const struct addrinfo *a = t->list; a != NULL; a = a->ai_next) {
        t->is_final = false;
        t->refused = false;
        t->status = attempt(o, t, a);
        refused = refused && t->refused;
        if (t->status == FERRY_OK || o->stopped) {
            return;
        }
        if (a == t->list || weight(t->status, t->is_final) > weight(status, final)) {
            telling = t->said;
            status = t->status;
            final = t->is_final;
        }
    }
    if (t->list != NULL) {
        t->said = telling;
        t->status = status;
        t->is_final = final;
        t->refused = refused;
    }
}

/* --- All of them --- */

static ferry_status read_targets(opening *o, const char *addresses, ferry_error *error)
{
    size_t n = 1;
    for (const char *c = addresses; *c != '\0'; c++) {
        n += *c == ',';
    }
    o->targets = fy_alloc_zeroed(n, sizeof *o->targets);
    FY_TRY(fy_check_memory(o->targets != NULL, "addresses", error));
    for (const char *at = addresses; o->n_targets < n; at += strcspn(at, ",") + 1) {
        target *t = &o->targets[o->n_targets++];
        size_t length = strcspn(at, ",");
        FY_TRY(fy_address_parse(at, length, t->host, t->port, error));
        memcpy(t->text, at, length); /* fits, and is zeroed: its parts fit theirs */
    }
    return FERRY_OK;
}

/* The sentence of a final answer, once nothing better can be hoped for. */
static const target *settled(opening *o)
{
    const target *found = NULL;
    size_t n_final = 0;
    for (size_t i = 0; i < o->n_targets; i++) {
        if (o->targets[i].is_final) {
            n_final++;
            found = found == NULL ? &o->targets[i] : found;
        }
    }
    int64_t now = fy_now_ns();
    if (found == NULL) {
        o->final_ns = 0;
        return NULL;
    }
    if (o->final_ns == 0) {
        o->final_ns = now;
    }
    return n_final == o->n_targets || now - o->final_ns >= grace_ns || now >= o->end_ns ? found
                                                                                        : NULL;
}

static ferry_status give_up(const opening *o, ferry_error *error)
{
    char list[FERRY_ERROR_BYTES] = "";
    size_t used = 0;
    bool all_unknown = true;
    ferry_status status = FERRY_ERR_TIMEOUT;
    for (size_t i = 0; i < o->n_targets; i++) {
        const target *t = &o->targets[i];
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? "; " : "",
                                 t->said.message);
        used = used < sizeof list ? used : sizeof list - 1;
        all_unknown = all_unknown && t->list == NULL;
        /* Something answers: that is a mistake in the addresses rather than a rank that is late. */
        if (t->list != NULL && t->status == FERRY_ERR_INVALID_INPUT) {
            status = FERRY_ERR_INVALID_INPUT;
        }
    }
    char within[32] = ""; /* what is shorter than a pause is no wait, and who calls knows its own */
    if (o->end_ns - o->begin_ns >= first_pause_ns) {
        snprintf(within, sizeof within, " within %.3g s", (double)(o->end_ns - o->begin_ns) / 1e9);
    }
    return fy_fail(error, all_unknown ? FERRY_ERR_INVALID_INPUT : status,
                   "no rank was reached%s: %s", within, list);
}

static bool all_refuse(const opening *o)
{
    size_t n_refusing = 0;
    for (size_t i = 0; i < o->n_targets; i++) {
        n_refusing += o->targets[i].refused;
    }
    return n_refusing == o->n_targets;
}

static ferry_status fail_stopped(ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_STOPPED, "connecting to another rank was stopped");
}

static ferry_status try_all(opening *o, ferry_error *error)
{
    int64_t pause_ns = first_pause_ns;
    for (;; o->round++) {
        for (size_t i = 0; i < o->n_targets && o->link == NULL && !is_stopped(o); i++) {
            try_target(o, &o->targets[i]);
        }
        if (o->link != NULL) {
            return FERRY_OK;
        }
        if (o->stopped) {
            return fail_stopped(error);
        }
        const target *final = settled(o);
        if (final != NULL) {
            return fy_forward(error, final->status, &final->said);
        }
        if (o->reopens && all_refuse(o)) {
            o->end_ns = o->begin_ns; /* it was not waited for */
            return give_up(o, error);
        }
        int64_t end = fy_now_ns() + pause_ns;
        while (wait_slice(o, -1, 0, end < o->end_ns ? end : o->end_ns)) {}
        if (fy_now_ns() >= o->end_ns) {
            return o->stopped ? fail_stopped(error) : give_up(o, error);
        }
        pause_ns = pause_ns * 2 < longest_pause_ns ? pause_ns * 2 : longest_pause_ns;
    }
}

static ferry_status open_link(opening *o, const char *addresses, int64_t limit_ns,
                              fy_link **link_out, ferry_error *error)
{
    int64_t now = fy_now_ns();
    o->begin_ns = now;
    o->end_ns = limit_ns > INT64_MAX / 2 - now ? INT64_MAX / 2 : now + limit_ns;
    ferry_status status = read_targets(o, addresses, error);
    FY_THEN(status, try_all(o, error));
    for (size_t i = 0; i < o->n_targets; i++) {
        if (o->targets[i].list != NULL) {
            freeaddrinfo(o->targets[i].list);
        }
    }
    fy_free(o->targets);
    if (status == FERRY_OK) {
        *link_out = o->link;
    }
    return status;
}

ferry_status fy_link_open(const char *addresses, const unsigned char key[FY_KEY_BYTES],
                          int64_t limit_ns, bool (*stop)(void *context), void *context,
                          fy_link **link_out, ferry_error *error)
{
    opening o = {.key = key, .stop = stop, .context = context};
    return open_link(&o, addresses, limit_ns, link_out, error);
}

ferry_status fy_link_reopen(const char *addresses, const unsigned char key[FY_KEY_BYTES],
                            int64_t limit_ns, bool (*stop)(void *context), void *context,
                            fy_link **link_out, ferry_error *error)
{
    opening o = {.key = key, .reopens = true, .stop = stop, .context = context};
    return open_link(&o, addresses, limit_ns, link_out, error);
}
