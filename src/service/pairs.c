/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of any length between pairs of ranks, in letters of the world: a letter to each peer,
 * then one from each, also an empty one where only the other has more to say, so that nobody keeps
 * more than one of each peer's.
 */
#include "service/exec.h"

#include "base/alloc.h"
#include "transport/agree.h"

#include <string.h>

enum { LETTER_BYTES = 48 << 10, LEAST_LETTER_BYTES = 1 << 10 };

/* What all peers of a rank send before it takes their first: a world keeps no more than 64 MiB. */
enum { MOST_WAITING_BYTES = 16 << 20 };

/* How far one direction of one pair has come; a letter begins with the length of the whole. */
typedef struct passage {
    size_t done, bytes;
    bool begun;
} passage;

/* One peer, and what it and this rank say to each other. */
typedef struct talk {
    uint32_t peer;
    bool goes_on;
    const fy_pack *out;
    fy_pack *in;
    passage to, from;
} talk;

void fy_run_letter(ferry_service *service, uint32_t to, fy_letter_use use, const void *bytes,
                   size_t n_bytes)
{
    ferry_world *world = service->world;
    ferry_error why;
    if (fy_failed(world->failure)) {
        return;
    }
    ferry_status status =
        world->ops->send(world, to, fy_run_tag(service, use), bytes, n_bytes, false, &why);
    if (status != FERRY_OK) {
        fy_world_fail(world, status, world->rank, "rank %u could not tell rank %u: %s", world->rank,
                      to, why.message);
    }
}

static uint64_t pair_tag(const ferry_service *service)
{
    return fy_letter_tag(FY_LETTER_PAIR, FY_THING_SERVICE, service->work.number, service->n_pairs);
}

static size_t letter_bytes(const ferry_world *world)
{
    size_t share = MOST_WAITING_BYTES / world->n_ranks;
    share = share > LEAST_LETTER_BYTES ? share : (size_t)LEAST_LETTER_BYTES;
    return share < LETTER_BYTES ? share : (size_t)LETTER_BYTES;
}

static ferry_status send_letter(ferry_service *service, talk *t, ferry_error *error)
{
    unsigned char letter[sizeof(uint64_t) + LETTER_BYTES];
    const fy_pack *out = t->out;
    passage *way = &t->to;
    uint64_t bytes = out->used;
    size_t left = out->used - way->done;
    size_t most = letter_bytes(service->world);
    size_t n = left < most ? left : most;
    memcpy(letter, &bytes, sizeof bytes);
    if (n > 0) {
        memcpy(letter + sizeof bytes, out->bytes + way->done, n);
    }
    way->begun = true;
    way->bytes = out->used;
    way->done += n;
    return service->world->ops->send(service->world, t->peer, pair_tag(service), letter,
                                     sizeof bytes + n, true, error);
}

static ferry_status take_letter(ferry_service *service, talk *t, ferry_error *error)
{
    fy_pack *in = t->in;
    passage *way = &t->from;
    const void *bytes;
    size_t n_bytes;
    uint64_t whole;
    ferry_status status = service->world->ops->receive(service->world, t->peer, pair_tag(service),
                                                       service->world->settings.entry_ns, &bytes,
                                                       &n_bytes, NULL, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (n_bytes < sizeof whole) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u sent a message of %zu bytes", t->peer,
                       n_bytes);
    }
    memcpy(&whole, bytes, sizeof whole);
    n_bytes -= sizeof whole;
    if (way->begun && way->bytes != whole) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u sent messages that do not fit together",
                       t->peer);
    }
    way->begun = true;
    way->bytes = (size_t)whole;
    if (n_bytes > way->bytes - way->done) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u sent more than it said", t->peer);
    }
    if (n_bytes == 0 && way->done < way->bytes) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u sent none of what it said", t->peer);
    }
    if (!fy_reserve((void **)&in->bytes, &in->capacity, way->done + n_bytes + 1, 1)) {
        in->failed = true; /* goes on taking part */
    } else if (n_bytes > 0) {
        memcpy(in->bytes + way->done, (const char *)bytes + sizeof whole, n_bytes);
    }
    way->done += n_bytes;
    in->used = way->done;
    return FERRY_OK;
}

static bool is_open(const passage *way)
{
    return !way->begun || way->done < way->bytes;
}

static bool all_talk(ferry_service *service, talk *talks, size_t n, ferry_error *error,
                     ferry_status *status_out)
{
    bool any = false;
    *status_out = FERRY_OK;
    for (size_t i = 0; i < n && *status_out == FERRY_OK; i++) {
        talks[i].goes_on = is_open(&talks[i].to) || is_open(&talks[i].from);
        any = any || talks[i].goes_on;
        if (talks[i].goes_on) {
            *status_out = send_letter(service, &talks[i], error);
        }
    }
    for (size_t i = 0; i < n && *status_out == FERRY_OK; i++) {
        if (talks[i].goes_on) {
            *status_out = take_letter(service, &talks[i], error);
        }
    }
    return any && *status_out == FERRY_OK;
}

/* talks is NULL where there is no memory for them. */
static ferry_status exchange(ferry_service *service, talk *talks, size_t n, ferry_error *error)
{
    ferry_error why = {.message = ""};
    ferry_status status = FERRY_OK;
    for (size_t i = 0; talks != NULL && i < n && status == FERRY_OK; i++) {
        status = talks[i].out->failed ? FERRY_ERR_NO_MEMORY : FERRY_OK;
    }
    if (talks == NULL || status != FERRY_OK) {
        status = fy_fail_no_memory(&why, "messages between ranks");
    }
    service->n_pairs++;
    status = fy_agree(service->world, status, &why);
    if (status == FERRY_OK) {
        while (all_talk(service, talks, n, &why, &status)) {}
        if (status != FERRY_OK) { /* peers wait for letters that never come */
            fy_world_fail(service->world, status, service->world->rank, "%s", why.message);
        }
    }
    return status == FERRY_OK ? FERRY_OK : fy_fail(error, status, "%s", why.message);
}

ferry_status fy_pairs_exchange(ferry_service *service, fy_pack *out, fy_pack *in,
                               ferry_error *error)
{
    size_t n = service->exec->n_channels;
    talk *talks = fy_alloc_zeroed(n, sizeof *talks);
    for (size_t i = 0; talks != NULL && i < n; i++) {
        talks[i].peer = service->exec->channels[i].peer;
        talks[i].out = &out[i];
        talks[i].in = &in[i];
    }
    ferry_status status = exchange(service, talks, n, error);
    fy_free(talks);
    for (size_t i = 0; status == FERRY_OK && i < n; i++) {
        if (in[i].failed) {
            status = fy_fail_no_memory(error, "messages between ranks");
        }
    }
    return status;
}

ferry_status fy_star_exchange(ferry_service *service, fy_pack *out, fy_pack *in, ferry_error *error)
{
    bool is_root = service->world->rank == 0;
    size_t n = is_root ? (size_t)service->world->n_ranks - 1 : 1;
    talk *talks = out == NULL || in == NULL ? NULL : fy_alloc_zeroed(n, sizeof *talks);
    for (size_t i = 0; talks != NULL && i < n; i++) {
        talks[i].peer = is_root ? (uint32_t)i + 1 : 0;
        talks[i].out = &out[i];
        talks[i].in = &in[i];
    }
    ferry_status status = exchange(service, talks, n, error);
    fy_free(talks);
    return status;
}
