/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of any length between pairs of ranks, in letters of the world: a letter to each peer,
 * then one from each, also an empty one where only the other has more to say, so that nobody keeps
 * more than one of each peer's.
 */
#include "service/prepare.h"

#include "world/agree.h"

#include <string.h>

enum { LETTER_BYTES = 48 << 10, LEAST_LETTER_BYTES = 1 << 10 };

/* What all peers of a rank send before it takes their first: a world keeps no more than 64 MiB. */
enum { MOST_WAITING_BYTES = 16 << 20 };

typedef fy_passage passage;
typedef fy_talk talk;

static uint64_t pair_tag(const ferry_service *service)
{
    return fy_letter_tag(FY_LETTER_PAIR, FY_OBJECT_SERVICE, service->work.number, service->n_pairs);
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
    fy_pack packer = fy_pack_into(letter, sizeof letter);
    const fy_pack *out = t->out;
    passage *way = &t->to;
    size_t left = out->used - way->done;
    size_t most = letter_bytes(service->world);
    size_t n = left < most ? left : most;
    fy_pack_u64(&packer, out->used);
    if (n > 0) {
        fy_pack_bytes(&packer, out->bytes + way->done, n);
    }
    way->begun = true;
    way->bytes = out->used;
    way->done += n;
    return service->world->ops->send(service->world, t->peer, pair_tag(service), packer.bytes,
                                     packer.used, true, error);
}

ferry_status fy_talk_hear(fy_talk *t, const void *bytes, size_t n_bytes, ferry_error *error)
{
    fy_reader letter = fy_reader_of(bytes, n_bytes);
    uint64_t whole = fy_read_u64(&letter);
    size_t n = fy_read_left(&letter);
    passage *way = &t->from;
    if (letter.failed) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u sent a message of %zu bytes", t->peer,
                       n_bytes);
    }
    if (way->begun && way->bytes != whole) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u sent messages that do not fit together",
                       t->peer);
    }
    way->begun = true;
    way->bytes = (size_t)whole;
    if (n > way->bytes - way->done) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u sent more than it said", t->peer);
    }
    if (n == 0 && way->done < way->bytes) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u sent none of what it said", t->peer);
    }
    fy_pack_bytes(&t->in, letter.at, n); /* without memory it goes on taking part */
    way->done += n;
    return FERRY_OK;
}

static ferry_status take_letter(ferry_service *service, talk *t, ferry_error *error)
{
    ferry_world *world = service->world;
    const void *bytes;
    size_t n_bytes;
    FY_TRY(world->ops->receive(world, t->peer, pair_tag(service), world->settings.entry_ns, &bytes,
                               &n_bytes, NULL, error));
    return fy_talk_hear(t, bytes, n_bytes, error);
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

static ferry_status exchange(ferry_service *service, talk *talks, size_t n, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    service->n_pairs++;
    service->statistics.n_exchanges++;
    while (all_talk(service, talks, n, error, &status)) {}
    if (status != FERRY_OK && error != NULL) { /* peers wait for letters that never come */
        fy_world_fail(service->world, status, service->world->rank, "%s", error->message);
    }
    return status;
}

static ferry_status fail_memory(ferry_error *error)
{
    return fy_fail_no_memory(error, "messages between ranks");
}

/*
 * In front of each message: whether it is one. Else what follows is why this rank has none, as it
 * would say in an agreement; the same for all its peers.
 */
enum { IS_MESSAGE = 0, IS_FAILURE = 1 };

void fy_talk_begin(fy_talk *t)
{
    fy_pack_cleanup(&t->own);
    fy_pack_cleanup(&t->in);
    t->to = t->from = (passage){.begun = false};
    t->out = &t->own;
    fy_pack_number(&t->own, IS_MESSAGE);
}

/* What a peer said in place of a message. */
static ferry_status hear_failure(const fy_talk *t, fy_reader *in, ferry_error *error)
{
    ferry_status its = fy_agreement_read(in->at, fy_read_left(in), NULL, 0, error);
    return its != FERRY_OK ? its
                           : fy_fail(error, FERRY_ERR_EXCHANGE,
                                     "rank %u sent a message that makes no sense", t->peer);
}

ferry_status fy_talk_open(fy_talk *t, ferry_error *error)
{
    fy_reader in = fy_reader_of(t->in.bytes, t->in.used);
    if (t->in.failed) {
        return fail_memory(error);
    }
    uint64_t what = fy_read_number(&in, IS_FAILURE);
    if (in.failed) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "rank %u sent a message that makes no sense",
                       t->peer);
    }
    t->message =
        (fy_pack){.bytes = (unsigned char *)in.at, .used = fy_read_left(&in), .borrowed = true};
    return what == IS_MESSAGE ? FERRY_OK : hear_failure(t, &in, error);
}

ferry_status fy_pairs_exchange(ferry_service *service, ferry_status before, ferry_error *error)
{
    fy_wire *wire = service->wire;
    unsigned char bytes[FY_AGREEMENT_BYTES];
    fy_pack failure = fy_pack_into(bytes, sizeof bytes);
    ferry_status status = before;
    for (uint32_t c = 0; status == FERRY_OK && c < wire->n_channels; c++) {
        status = wire->talks[c].own.failed ? fail_memory(error) : FERRY_OK;
    }
    if (status != FERRY_OK) {
        fy_pack_number(&failure, IS_FAILURE);
        fy_agreement_pack(service->world->rank, NULL, 0, status, error->message, &failure);
    }
    for (uint32_t c = 0; c < wire->n_channels; c++) {
        wire->talks[c].peer = service->program->channels[c].peer;
        wire->talks[c].out = status == FERRY_OK ? &wire->talks[c].own : &failure;
    }
    ferry_error why = {.message = ""};
    ferry_status talked = exchange(service, wire->talks, wire->n_channels, &why);
    for (uint32_t c = 0; talked == FERRY_OK && c < wire->n_channels; c++) {
        talked = fy_talk_open(&wire->talks[c], &why);
    }
    return status == FERRY_OK && talked != FERRY_OK ? fy_forward(error, talked, &why) : status;
}

ferry_status fy_star_exchange(ferry_service *service, fy_talk *talks, const fy_pack *out,
                              fy_pack *in, ferry_error *error)
{
    bool is_root = service->world->rank == 0;
    size_t n = is_root ? (size_t)service->world->n_ranks - 1 : 1;
    for (size_t i = 0; i < n; i++) {
        talks[i] = (talk){.peer = is_root ? (uint32_t)i + 1 : 0, .out = &out[i]};
    }
    ferry_status status = exchange(service, talks, n, error);
    for (size_t i = 0; i < n; i++) {
        in[i] = talks[i].in;
    }
    return status;
}
