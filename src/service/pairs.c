/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of any length between the two ends of each channel, in letters of the world: a letter to
 * each peer, then one from each, so that nobody keeps more than one of each peer's.
 */
#include "service/exec.h"

#include "base/alloc.h"
#include "transport/agree.h"

#include <string.h>

enum { LETTER_BYTES = 48 << 10, LEAST_LETTER_BYTES = 1 << 10 };

/* What all peers of a rank send before it takes their first: a world keeps no more than 64 MiB. */
enum { MOST_WAITING_BYTES = 16 << 20 };

/* How far one direction of one channel has come; a letter begins with the length of the whole. */
typedef struct passage {
    size_t done, bytes;
    bool   begun;
} passage;

void fy_run_letter(ferry_service *service, uint32_t to, fy_letter_use use, const void *bytes,
                   size_t n_bytes)
{
    ferry_world *world = service->world;
    ferry_error  why;
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
    share        = share > LEAST_LETTER_BYTES ? share : (size_t)LEAST_LETTER_BYTES;
    return share < LETTER_BYTES ? share : (size_t)LETTER_BYTES;
}

static ferry_status send_letter(ferry_service *service, const fy_channel *channel,
                                const fy_pack *out, passage *way, ferry_error *error)
{
    unsigned char letter[sizeof(uint64_t) + LETTER_BYTES];
    uint64_t      bytes = out->used;
    size_t        left  = out->used - way->done;
    size_t        most  = letter_bytes(service->world);
    size_t        n     = left < most ? left : most;
    memcpy(letter, &bytes, sizeof bytes);
    if (n > 0) {
        memcpy(letter + sizeof bytes, out->bytes + way->done, n);
    }
    way->begun = true;
    way->bytes = out->used;
    way->done += n;
    return service->world->ops->send(service->world, channel->peer, pair_tag(service), letter,
                                     sizeof bytes + n, true, error);
}

static ferry_status take_letter(ferry_service *service, const fy_channel *channel, fy_pack *in,
                                passage *way, ferry_error *error)
{
    const void  *bytes;
    size_t       n_bytes;
    uint64_t     whole;
    ferry_status status = service->world->ops->receive(
        service->world, channel->peer, pair_tag(service), service->world->settings.entry_ns, &bytes,
        &n_bytes, NULL, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (n_bytes < sizeof whole) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u sent a message of %zu bytes",
                       channel->peer, n_bytes);
    }
    memcpy(&whole, bytes, sizeof whole);
    n_bytes -= sizeof whole;
    if (way->begun && way->bytes != whole) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u sent messages that do not fit together",
                       channel->peer);
    }
    way->begun = true;
    way->bytes = (size_t)whole;
    if (n_bytes > way->bytes - way->done) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u sent more than it said", channel->peer);
    }
    if (n_bytes == 0 && way->done < way->bytes) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u sent none of what it said",
                       channel->peer);
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

static ferry_status exchange(ferry_service *service, fy_pack *out, fy_pack *in, passage *ways,
                             ferry_error *error)
{
    fy_exec *exec   = service->exec;
    bool     active = true;
    while (active) {
        active = false;
        for (uint32_t i = 0; i < exec->n_channels; i++) {
            if (is_open(&ways[2 * i])) {
                ferry_status status =
                    send_letter(service, &exec->channels[i], &out[i], &ways[2 * i], error);
                if (status != FERRY_OK) {
                    return status;
                }
                active = true;
            }
        }
        for (uint32_t i = 0; i < exec->n_channels; i++) {
            if (is_open(&ways[2 * i + 1])) {
                ferry_status status =
                    take_letter(service, &exec->channels[i], &in[i], &ways[2 * i + 1], error);
                if (status != FERRY_OK) {
                    return status;
                }
                active = true;
            }
        }
    }
    return FERRY_OK;
}

ferry_status fy_pairs_exchange(ferry_service *service, fy_pack *out, fy_pack *in,
                               ferry_error *error)
{
    fy_exec     *exec = service->exec;
    passage     *ways = fy_alloc_zeroed(2 * (size_t)exec->n_channels, sizeof *ways);
    ferry_error  why  = {.message = ""};
    ferry_status status =
        ways == NULL ? fy_fail_no_memory(&why, "messages between ranks") : FERRY_OK;
    for (uint32_t i = 0; status == FERRY_OK && i < exec->n_channels; i++) {
        if (out[i].failed) {
            status = fy_fail_no_memory(&why, "messages between ranks");
        }
    }
    service->n_pairs++;
    status = fy_agree(service->world, status, &why);
    if (status == FERRY_OK) {
        status = exchange(service, out, in, ways, &why);
        if (status != FERRY_OK) { /* peers wait for letters that never come */
            fy_world_fail(service->world, status, service->world->rank, "%s", why.message);
        }
    }
    fy_free(ways);
    for (uint32_t i = 0; status == FERRY_OK && i < exec->n_channels; i++) {
        if (in[i].failed) {
            status = fy_fail_no_memory(&why, "messages between ranks");
        }
    }
    return status == FERRY_OK ? FERRY_OK : fy_fail(error, status, "%s", why.message);
}
