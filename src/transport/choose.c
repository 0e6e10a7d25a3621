/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/choose.h"

#include "transport/wrap/wrap.h"

#include <stdio.h>
#include <string.h>

/* The names of all engines, "inproc, shm, ucx, nvshmem". */
static void list_engines(char *text, size_t text_bytes)
{
    text[0] = '\0';
    for (size_t i = 0; i < FY_N_ENGINES; i++) {
        size_t used = strlen(text);
        snprintf(text + used, text_bytes - used, "%s%s", i > 0 ? ", " : "", fy_engine_name(i));
    }
}

static ferry_status refuse(const char *text, const char *element, size_t length, ferry_error *error)
{
    char engines[128];
    list_engines(engines, sizeof engines);
    if (length == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "transport \"%s\": an element between colons is empty; use wrappers (%s) "
                       "and one engine (%s)",
                       text, fy_wrap_list(), engines);
    }
    if (fy_engine_find(element, length) < FY_N_ENGINES) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "transport \"%s\": engine \"%.*s\" must come last", text, (int)length,
                       element);
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "transport \"%s\": \"%.*s\" is neither an engine (%s) nor a wrapper (%s)", text,
                   (int)length, element, engines, fy_wrap_list());
}

ferry_status fy_choice_parse(const char *text, fy_choice *choice_out, ferry_error *error)
{
    fy_choice choice = {.n_engines = 0};
    const char *at = text;
    if (strlen(text) >= sizeof choice.chain) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the name of a transport has %zu characters; at most %d are allowed",
                       strlen(text), FY_ENGINES_BYTES - 1);
    }
    while (choice.n_engines == 0) {
        size_t length = strcspn(at, ":");
        bool last = at[length] == '\0';
        size_t engine = fy_engine_find(at, length);
        if (last && engine < FY_N_ENGINES) {
            choice.engines[choice.n_engines++] = engine;
        } else if (length == 0 || !fy_wrap_known(at, length)) {
            return refuse(text, at, length, error);
        } else {
            at += length;
        }
        if (last) {
            break;
        }
        at++;
    }
    /* at is the engine's name, or the end. */
    size_t chain_bytes = (size_t)(at - text);
    chain_bytes -= chain_bytes > 0 && choice.n_engines > 0;
    memcpy(choice.chain, text, chain_bytes);
    choice.chain[chain_bytes] = '\0';
    FY_TRY(choice.chain[0] == '\0' ? FERRY_OK : fy_wrap_check(choice.chain, error));
    *choice_out = choice;
    return FERRY_OK;
}

/* The best for each pair of ranks. */
static void add_best(fy_choice *choice, const ferry_world *world)
{
    if (world->threads) {
        choice->engines[choice->n_engines++] = FY_ENGINE_INPROC;
        return;
    }
    /* With one rank on each node there is nobody for shm to reach, and ucx keeps the memory. */
    if (world->n_nodes == 1 || world->n_nodes < world->n_ranks) {
        choice->engines[choice->n_engines++] = FY_ENGINE_SHM;
    }
    if (world->n_nodes > 1) {
        choice->engines[choice->n_engines++] = FY_ENGINE_UCX;
    }
}

void fy_choice_complete(fy_choice *choice, const ferry_world *world)
{
    const fy_engine *table;
    size_t named = choice->engines[0];
    if (choice->n_engines == 0) {
        add_best(choice, world);
    } else if (fy_engine_get(named, &table, NULL) == FERRY_OK && fy_engine_aside(table) != NULL) {
        choice->n_engines = 0;
        add_best(choice, world);
        choice->engines[choice->n_engines++] = named;
        choice->has_aside = true;
    }
}

/* A named engine stands alone, or with those of the host's memory: it must reach every rank. */
static ferry_status check_reach(const fy_choice *choice, const ferry_world *world,
                                ferry_error *error)
{
    size_t engine = choice->engines[choice->has_aside ? choice->n_engines - 1 : 0];
    if (engine == FY_ENGINE_INPROC && !world->threads && world->n_ranks > 1) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "engine inproc reaches threads of one process only, and the ranks of this "
                       "world are processes: use shm, or name no engine");
    }
    if (engine == FY_ENGINE_NVSHMEM && world->threads) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "engine nvshmem: a process is one PE of NVSHMEM, and the ranks of this "
                       "world are threads: use inproc, or name no engine");
    }
    for (uint32_t peer = 0; engine == FY_ENGINE_SHM && peer < world->n_ranks; peer++) {
        if (!fy_world_same_node(world, peer) && choice->n_engines == 1) {
            return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                           "engine shm reaches the ranks of one node only, and rank %u is on node "
                           "%u, rank %u on node %u: use ucx, or name no engine",
                           world->rank, world->node_of[world->rank], peer, world->node_of[peer]);
        }
    }
    return FERRY_OK;
}

ferry_status fy_choice_tables(const fy_choice *choice, const ferry_world *world,
                              const fy_engine *tables_out[FY_MOST_ENGINES], ferry_error *error)
{
    ferry_status status = check_reach(choice, world, error);
    for (uint32_t i = 0; status == FERRY_OK && i < choice->n_engines; i++) {
        ferry_error why;
        status = fy_engine_get(choice->engines[i], &tables_out[i], &why);
        if (status == FERRY_OK) {
            continue;
        }
        if (choice->engines[i] == FY_ENGINE_UCX && world->n_nodes > 1) {
            return fy_fail(error, status,
                           "the ranks are on %u nodes%s, and only engine ucx reaches from one to "
                           "another: %s",
                           world->n_nodes,
                           world->settings.nodes == NULL ? "" : " (as FERRY_NODES says)",
                           why.message);
        }
        return fy_fail(error, status, "engine %s: %s", fy_engine_name(choice->engines[i]),
                       why.message);
    }
    return status;
}

uint32_t fy_choice_of(const fy_choice *choice, const ferry_world *world, uint32_t peer)
{
    uint32_t n = choice->n_engines - choice->has_aside;
    return n > 1 && !fy_world_same_node(world, peer) ? 1 : 0;
}
