/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/transport.h"

#include "base/alloc.h"
#include "base/config.h"
#include "base/hash.h"
#include "base/log.h"
#include "transport/carry.h"
#include "transport/choose.h"
#include "transport/host.h"
#include "transport/queued.h"
#include "transport/wrap/wrap.h"
#include "world/agree.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/*
 * Opening: first every rank finds out by itself what it would open and whether it can, then they
 * compare, then each engine is opened and the ranks agree that it is. Whatever fails on one rank
 * fails on all.
 */

/* What the ranks compare before anything is opened. */
typedef struct proposal {
    uint64_t identity;
    uint64_t number;
    char text[FY_ENGINES_BYTES]; /* "" for the best of each pair */
} proposal;

static uint64_t make_identity(void)
{
    uint64_t identity = 0;
    if (getrandom(&identity, sizeof identity, GRND_NONBLOCK) != (ssize_t)sizeof identity) {
        identity = fy_hash_mix((uint64_t)fy_now_ns(), (uint64_t)(uintptr_t)&identity);
    }
    return identity;
}

/* Local: what to open, from the argument or the environment. */
static ferry_status propose(const ferry_world *world, const char *engines, proposal *mine,
                            fy_choice *choice, const fy_engine *tables[FY_MOST_ENGINES],
                            ferry_error *error)
{
    const char *text = engines != NULL ? engines : fy_config_text("FERRY_TRANSPORT");
    if (text != NULL) {
        snprintf(mine->text, sizeof mine->text, "%s", text);
        FY_TRY(fy_choice_parse(text, choice, error));
    }
    fy_choice_complete(choice, world);
    if (choice->has_aside) { /* the same on all ranks, or none opens what others do not */
        size_t used = strlen(mine->text);
        snprintf(mine->text + used, sizeof mine->text - used, " for memory of devices");
    }
    return fy_choice_tables(choice, world, tables, error);
}

static const char *describe(const char *text)
{
    return text[0] == '\0' ? "the best for each pair" : text;
}

/*
 * All ranks must have proposed the same, and be able to open it; the identity is rank 0's, the
 * number the largest.
 */
static ferry_status agree_on(ferry_world *world, ferry_status mine, proposal *proposal_inout,
                             ferry_error *error)
{
    enum { ENGINES, IDENTITY, NUMBER, N };
    fy_field fields[N] = {{.name = "the transport to open",
                           .text = describe(proposal_inout->text),
                           .how = FY_SAME,
                           .remedy = ": all ranks must open the same; look at FERRY_TRANSPORT"},
                          {.value = proposal_inout->identity, .how = FY_RANK_0},
                          {.value = proposal_inout->number, .how = FY_MOST}};
    ferry_status status = fy_agree_on(world, FY_JOINT_TRANSPORT_OPEN, 0, fields, N, mine, error);
    if (status == FERRY_OK) {
        proposal_inout->identity = fields[IDENTITY].value;
        proposal_inout->number = fields[NUMBER].value;
        fy_object_settle(world, FY_OBJECT_TRANSPORT, (uint32_t)proposal_inout->number);
    }
    return status;
}

static ferry_status open_engine(ferry_transport *transport, const fy_choice *choice,
                                const fy_engine *table, ferry_error *error)
{
    fy_open_engine *engine = &transport->engines[transport->n_engines];
    ferry_error why = {.message = ""};
    ferry_status mine;
    bool is_aside = choice->has_aside && transport->n_engines == choice->n_engines - 1;
    engine->host = fy_host_of(transport->world);
    if (choice->chain[0] != '\0' && !is_aside) {
        mine =
            fy_wrap_open(choice->chain, table, &engine->host, &engine->table, &engine->state, &why);
    } else {
        engine->table = table;
        mine = table->open(&engine->host, &engine->state, &why);
    }
    /* Counted from here on, so that it is closed whatever the others say. */
    transport->n_engines += mine == FERRY_OK;
    transport->has_aside = is_aside && mine == FERRY_OK;
    if (transport->has_aside) { /* what moves bytes there is asked for by all, and now */
        const fy_memory_kind *row;
        mine = fy_memory_get(fy_transport_aside_space(transport).kind, &row, &why);
    }
    ferry_status status = fy_agree(transport->world, mine, &why);
    if (status != FERRY_OK) {
        fy_forward(error, status, &why);
    }
    return status;
}

static void log_choice(const ferry_transport *transport)
{
    const ferry_world *world = transport->world;
    uint32_t n_peers[FY_MOST_ENGINES] = {0};
    if (!fy_log_enabled(FERRY_LOG_INFO)) {
        return;
    }
    for (uint32_t peer = 0; peer < world->n_ranks; peer++) {
        n_peers[transport->engine_of[peer]] += peer != world->rank;
        n_peers[transport->n_engines - 1] += transport->has_aside && peer != world->rank;
    }
    for (uint32_t i = 0; i < transport->n_engines; i++) {
        fy_log(FERRY_LOG_INFO, "engine %s carries bytes to %u of %u peers",
               transport->engines[i].table->name, n_peers[i], world->n_ranks - 1);
    }
}

static ferry_status make_transport(ferry_world *world, const fy_choice *choice,
                                   ferry_transport **transport_out, ferry_error *error)
{
    ferry_transport *transport = fy_alloc_zeroed(1, sizeof *transport);
    uint8_t *engine_of = fy_alloc_zeroed(world->n_ranks, sizeof *engine_of);
    if (transport == NULL || engine_of == NULL) {
        fy_free(transport);
        fy_free(engine_of);
        return fy_fail_no_memory(error, "a transport");
    }
    for (uint32_t peer = 0; peer < world->n_ranks; peer++) {
        engine_of[peer] = (uint8_t)fy_choice_of(choice, world, peer);
    }
    fy_world_retain(world);
    *transport = (ferry_transport){.references = 1,
                                   .world = world,
                                   .engine_of = engine_of,
                                   .next_symmetric = 2,
                                   .next_registered = 1};
    *transport_out = transport;
    return FERRY_OK;
}

static ferry_status open_transport(ferry_world *world, const char *engines,
                                   ferry_transport **transport_out, ferry_error *error)
{
    fy_choice choice = {.n_engines = 0};
    const fy_engine *tables[FY_MOST_ENGINES] = {NULL};
    ferry_error why = {.message = ""};
    proposal mine = {.identity = make_identity(),
                     .number = fy_object_propose(world, FY_OBJECT_TRANSPORT)};
    ferry_transport *transport = NULL;

    ferry_status status = propose(world, engines, &mine, &choice, tables, &why);
    FY_THEN(status, make_transport(world, &choice, &transport, &why));
    status = agree_on(world, status, &mine, &why);
    if (status == FERRY_OK) {
        transport->identity = mine.identity;
        transport->number = (uint32_t)mine.number;
    }
    for (uint32_t i = 0; status == FERRY_OK && i < choice.n_engines; i++) {
        status = open_engine(transport, &choice, tables[i], &why);
    }
    if (status != FERRY_OK) {
        fy_forward(error, status, &why);
        goto out;
    }
    log_choice(transport);
    transport->shrink_hook = (fy_shrink_hook){.shrunk = fy_transport_shrunk, .context = transport};
    fy_world_add_shrink_hook(world, &transport->shrink_hook);
    *transport_out = transport;
    transport = NULL;
out:
    ferry_transport_close(transport);
    return status;
}

ferry_status ferry_transport_open(ferry_world *world, const char *engines,
                                  ferry_transport **transport_out, ferry_error *error)
{
    FY_TRY(fy_check_use(world != NULL && transport_out != NULL,
                        "ferry_transport_open needs a world and a place for the transport", error));
    FY_TRY(fy_world_check_order(world, "ferry_transport_open", error));
    fy_joint_enter(world, FY_JOINT_TRANSPORT_OPEN, 0);
    ferry_status status = open_transport(world, engines, transport_out, error);
    fy_joint_leave(world);
    return status;
}

void fy_transport_retain(ferry_transport *transport)
{
    atomic_fetch_add(&transport->references, 1);
}

void ferry_transport_close(ferry_transport *transport)
{
    if (transport == NULL || fy_world_is_inherited(transport->world) ||
        atomic_fetch_sub(&transport->references, 1) > 1) {
        return;
    }
    fy_order_await(transport->world); /* work of a queue may use another transport of it */
    fy_world_remove_shrink_hook(transport->world, &transport->shrink_hook);
    while (transport->regions != NULL) {
        fy_region_destroy(transport->regions);
    }
    while (transport->n_engines > 0) {
        fy_open_engine *engine = &transport->engines[--transport->n_engines];
        engine->table->close(engine->state);
    }
    fy_carry_drop(transport, FERRY_ANY_RANK); /* no engine is left that reads it */
    ferry_world *world = transport->world;
    ferry_transport *elder = transport->elder;
    fy_free(transport->engine_of);
    fy_free(transport);
    ferry_transport_close(elder);
    ferry_world_destroy(world); /* this was one of its references */
}

ferry_status ferry_transport_get_peer(const ferry_transport *transport, uint32_t peer,
                                      const char **engine_out, uint32_t *capabilities_out,
                                      ferry_error *error)
{
    if (transport == NULL || peer >= transport->world->n_ranks) {
        return fy_fail(
            error, FERRY_ERR_MISUSE,
            "ferry_transport_get_peer needs a transport and one of its ranks, and gets %u", peer);
    }
    const fy_open_engine *engine = &transport->engines[transport->engine_of[peer]];
    const char *name = engine->table->name;
    uint32_t can = FERRY_CAN_REMOTE_USER_MEMORY | FERRY_CAN_PEER_POINTER |
                   FERRY_CAN_TARGET_PROGRESS | FERRY_CAN_GET;
    if (fy_is_self(transport, peer)) {
        name = "self";
    } else if (capabilities_out != NULL) {
        can = engine->table->capabilities(engine->state, peer);
    }
    if (can == UINT32_MAX) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "engine %s cannot reach rank %u", name, peer);
    }
    if (engine_out != NULL) {
        *engine_out = name;
    }
    if (capabilities_out != NULL) {
        *capabilities_out = can;
    }
    return FERRY_OK;
}

/*
 * Progress
 */

bool fy_transport_work(ferry_transport *transport)
{
    bool any = false;
    for (uint32_t i = 0; i < transport->n_engines; i++) {
        const fy_open_engine *engine = &transport->engines[i];
        if (engine->table->progress != NULL) {
            any = engine->table->progress(engine->state) || any;
        }
    }
    return any;
}

void fy_transport_hurry(ferry_transport *transport, bool hurries)
{
    for (uint32_t i = 0; i < transport->n_engines; i++) {
        const fy_open_engine *engine = &transport->engines[i];
        if (engine->table->hurry != NULL) {
            engine->table->hurry(engine->state, hurries);
        }
    }
}

bool fy_transport_has_room(ferry_transport *transport, uint32_t peer)
{
    const fy_open_engine *engine = fy_engine_for(transport, peer);
    return fy_is_self(transport, peer) || engine->table->has_room == NULL ||
           engine->table->has_room(engine->state, peer);
}

ferry_status fy_transport_try_flush(ferry_transport *transport, uint32_t *peer_out,
                                    ferry_error *error)
{
    FY_TRY(fy_transport_state(transport, error));
    for (uint32_t i = 0; i < transport->n_engines; i++) {
        const fy_open_engine *engine = &transport->engines[i];
        *peer_out = FERRY_ANY_RANK;
        FY_TRY(engine->table->try_flush != NULL
                   ? engine->table->try_flush(engine->state, peer_out, error)
                   : engine->table->flush(engine->state, FERRY_ANY_RANK, error));
    }
    return FERRY_OK;
}

int64_t fy_transport_sleep_ns(const ferry_transport *transport)
{
    int64_t least = INT64_MAX;
    for (uint32_t i = 0; i < transport->n_engines; i++) {
        const fy_open_engine *engine = &transport->engines[i];
        if (engine->table->sleep_ns != NULL) {
            int64_t its = engine->table->sleep_ns(engine->state);
            least = its < least ? its : least;
        }
    }
    return least;
}

ferry_status ferry_transport_progress(ferry_transport *transport, ferry_error *error)
{
    FY_TRY(fy_check_use(transport != NULL, "ferry_transport_progress needs a transport", error));
    FY_TRY(fy_world_check_process(transport->world, error));
    FY_TRY(fy_world_check_order(transport->world, "ferry_transport_progress", error));
    fy_transport_work(transport);
    return fy_transport_state(transport, error);
}

/* What to flush, in the order of a queue. */
typedef struct flush_call {
    ferry_transport *transport;
    uint32_t peer;
} flush_call;

static ferry_status flush(ferry_transport *transport, uint32_t peer, ferry_error *error)
{
    ferry_status status = fy_transport_state(transport, error);
    if (fy_world_is_inherited(transport->world)) {
        return status;
    }
    /* In a failed world too: after it no engine may read a source that the caller frees now. */
    for (uint32_t i = 0; i < transport->n_engines; i++) {
        const fy_open_engine *engine = &transport->engines[i];
        bool is_aside = transport->has_aside && i == transport->n_engines - 1;
        if (peer == FERRY_ANY_RANK ||
            ((is_aside || transport->engine_of[peer] == i) && !fy_is_self(transport, peer))) {
            ferry_status its =
                engine->table->flush(engine->state, peer, status == FERRY_OK ? error : NULL);
            status = status == FERRY_OK ? its : status;
            bool is_paid = is_aside && peer == FERRY_ANY_RANK && its == FERRY_OK;
            transport->owes_aside = transport->owes_aside && !is_paid;
        }
    }
    if (status == FERRY_OK && transport->uses_aside) {
        status = fy_transport_settle(transport, error);
    }
    fy_carry_drop(transport, peer);
    return fy_world_verdict(transport->world, status, error);
}

static ferry_status flush_deferred(void *context, ferry_error *error)
{
    const flush_call *call = context;
    return flush(call->transport, call->peer, error);
}

ferry_status ferry_transport_flush(ferry_transport *transport, uint32_t peer, ferry_queue *queue,
                                   ferry_error *error)
{
    if (transport == NULL || (peer != FERRY_ANY_RANK && peer >= transport->world->n_ranks)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_transport_flush needs a transport and one of its ranks or "
                       "FERRY_ANY_RANK, and gets %u",
                       peer);
    }
    if (queue != NULL) {
        flush_call call = {transport, peer};
        return fy_transport_defer(transport, queue, "flush", flush_deferred, &call, sizeof call,
                                  error);
    }
    FY_TRY(fy_world_check_order(transport->world, "flush", error));
    return flush(transport, peer, error);
}
