/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/wrap/wrap.h"

#include "base/alloc.h"
#include "transport/wrap/layer.h"

#include <string.h>

static const fy_layer_kind *const kinds[] = {
    &fy_layer_delay, &fy_layer_reorder, &fy_layer_lose,
    &fy_layer_flip,  &fy_layer_trace,   &fy_layer_strict,
};

enum { N_KINDS = sizeof kinds / sizeof kinds[0], MOST_LAYERS = 16 };

typedef struct chain_layers {
    fy_layer *layer[MOST_LAYERS]; /* the outermost first */
    size_t n;
} chain_layers;

const char *fy_wrap_list(void)
{
    return "delay=TIME, reorder=SEED, lose=RANK@N, flip=N, trace, strict";
}

static const fy_layer_kind *find_kind(const char *element, size_t length)
{
    const char *equals = memchr(element, '=', length);
    size_t n_name = equals == NULL ? length : (size_t)(equals - element);
    for (size_t i = 0; i < N_KINDS; i++) {
        if (strlen(kinds[i]->name) == n_name && memcmp(kinds[i]->name, element, n_name) == 0) {
            return kinds[i];
        }
    }
    return NULL;
}

bool fy_wrap_known(const char *element, size_t length)
{
    return find_kind(element, length) != NULL;
}

static void destroy_layers(chain_layers *layers)
{
    for (size_t i = 0; i < layers->n; i++) {
        fy_layer_destroy(layers->layer[i]);
    }
    layers->n = 0;
}

static ferry_status add_layer(chain_layers *layers, const char *element, size_t length,
                              ferry_error *error)
{
    const fy_layer_kind *kind = find_kind(element, length);
    if (kind == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "\"%.*s\" is not a wrapper; there are %s",
                       length > 100 ? 100 : (int)length, element, fy_wrap_list());
    }
    if (layers->n == MOST_LAYERS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "more than %d wrappers around one engine",
                       MOST_LAYERS);
    }
    ferry_status status = fy_layer_create(kind, element, length, &layers->layer[layers->n], error);
    layers->n += status == FERRY_OK;
    return status;
}

/* On an error the layers are destroyed. */
static ferry_status create_layers(const char *chain, chain_layers *layers, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    const char *at = chain;
    layers->n = 0;
    do {
        size_t length = strcspn(at, ":");
        status = add_layer(layers, at, length, error);
        at += length;
    } while (status == FERRY_OK && *at++ == ':');
    if (status != FERRY_OK) {
        destroy_layers(layers);
    }
    return status;
}

ferry_status fy_wrap_check(const char *chain, ferry_error *error)
{
    chain_layers layers;
    ferry_status status = create_layers(chain, &layers, error);
    destroy_layers(&layers);
    return status;
}

/* Everything that a rank can fail at by itself, before any rank opens the inner engine. */
static ferry_status prepare(const char *chain, const fy_host *host, chain_layers *layers,
                            ferry_error *error)
{
    ferry_status status = create_layers(chain, layers, error);
    for (size_t i = 0; i < layers->n && status == FERRY_OK; i++) {
        fy_layer *layer = layers->layer[i];
        layer->host = i == 0 ? host : layers->layer[i - 1]->inner_host;
        layer->inner_host = layer->host;
        if (layer->kind->prepare != NULL) {
            status = layer->kind->prepare(layer, error);
        }
    }
    if (status != FERRY_OK) {
        destroy_layers(layers);
    }
    return status;
}

/* From the inside to the outside. On an error everything is closed and destroyed. */
static ferry_status wrap_layers(chain_layers *layers, const fy_engine **engine, void **state,
                                ferry_error *error)
{
    ferry_status status = FERRY_OK;
    while (layers->n > 0 && status == FERRY_OK) {
        fy_layer *layer = layers->layer[layers->n - 1];
        status = fy_layer_wrap(layer, *engine, *state, error);
        if (status == FERRY_OK) {
            *engine = &layer->table;
            *state = layer;
            layers->n--; /* from here on its close destroys it */
        }
    }
    if (status != FERRY_OK) {
        (*engine)->close(*state);
        destroy_layers(layers);
    }
    return status;
}

ferry_status fy_wrap_open(const char *chain, const fy_engine *inner, const fy_host *host,
                          const fy_engine **engine_out, void **state_out, ferry_error *error)
{
    chain_layers layers = {.n = 0};
    const fy_engine *engine = inner;
    void *state = NULL;
    ferry_error local;
    error = error == NULL ? &local : error; /* other ranks want it */
    ferry_status status = prepare(chain, host, &layers, error);
    /* One rank's refusal is everybody's: opening the inner engine is collective. */
    status = host->agree(host, status, error);
    FY_THEN(status, inner->open(layers.layer[layers.n - 1]->inner_host, &state, error));
    if (status != FERRY_OK) {
        destroy_layers(&layers);
        return status;
    }
    FY_TRY(wrap_layers(&layers, &engine, &state, error));
    *engine_out = engine;
    *state_out = state;
    return FERRY_OK;
}
