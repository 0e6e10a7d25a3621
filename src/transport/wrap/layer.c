/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/wrap/layer.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

uint32_t fy_inner_capabilities(const fy_layer *layer, uint32_t peer)
{
    return layer->inner->capabilities(layer->inner_state, peer);
}

ferry_status fy_inner_flush(const fy_layer *layer, uint32_t peer, ferry_error *error)
{
    return layer->inner->flush(layer->inner_state, peer, error);
}

bool fy_inner_progress(const fy_layer *layer)
{
    return layer->inner->progress != NULL && layer->inner->progress(layer->inner_state);
}

int64_t fy_inner_sleep_ns(const fy_layer *layer)
{
    return layer->inner->sleep_ns == NULL ? INT64_MAX : layer->inner->sleep_ns(layer->inner_state);
}

static void pass_close(void *state)
{
    fy_layer *layer = state;
    if (layer->kind->stop != NULL) {
        layer->kind->stop(layer);
    }
    layer->inner->close(layer->inner_state);
    fy_layer_destroy(layer);
}

static uint32_t pass_capabilities(void *state, uint32_t peer)
{
    return fy_inner_capabilities(state, peer);
}

static ferry_status pass_alloc(void *state, fy_region_view *region, void **attachment_out,
                               ferry_error *error)
{
    const fy_layer *layer = state;
    return layer->inner->alloc(layer->inner_state, region, attachment_out, error);
}

static ferry_status pass_alloc_local(void *state, fy_region_view *region, void **attachment_out,
                                     ferry_error *error)
{
    const fy_layer *layer = state;
    return layer->inner->alloc_local(layer->inner_state, region, attachment_out, error);
}

static ferry_status pass_attach(void *state, const fy_region_view *region, void **attachment_out,
                                ferry_error *error)
{
    const fy_layer *layer = state;
    return layer->inner->attach(layer->inner_state, region, attachment_out, error);
}

static void pass_release(void *state, const fy_region_view *region, void *attachment)
{
    const fy_layer *layer = state;
    layer->inner->release(layer->inner_state, region, attachment);
}

static ferry_status pass_export_key(void *state, const fy_region_view *region, void *attachment,
                                    void *key, size_t *n_bytes_out, ferry_error *error)
{
    const fy_layer *layer = state;
    return layer->inner->export_key(layer->inner_state, region, attachment, key, n_bytes_out,
                                    error);
}

static ferry_status pass_revoke(void *state, const fy_region_view *region, void *attachment,
                                ferry_error *error)
{
    const fy_layer *layer = state;
    return layer->inner->revoke(layer->inner_state, region, attachment, error);
}

static ferry_status pass_put(void *state, uint32_t peer, const fy_region_view *region,
                             void *attachment, uint64_t offset, const void *source, uint64_t bytes,
                             const fy_signal_view *signal, ferry_error *error)
{
    const fy_layer *layer = state;
    return layer->inner->put(layer->inner_state, peer, region, attachment, offset, source, bytes,
                             signal, error);
}

static ferry_status pass_get(void *state, uint32_t peer, const fy_region_view *region,
                             void *attachment, uint64_t offset, void *target, uint64_t bytes,
                             ferry_error *error)
{
    const fy_layer *layer = state;
    return layer->inner->get(layer->inner_state, peer, region, attachment, offset, target, bytes,
                             error);
}

static ferry_status pass_flush(void *state, uint32_t peer, ferry_error *error)
{
    return fy_inner_flush(state, peer, error);
}

static void pass_hurry(void *state, bool hurries)
{
    const fy_layer *layer = state;
    layer->inner->hurry(layer->inner_state, hurries);
}

static bool pass_has_room(void *state, uint32_t peer)
{
    const fy_layer *layer = state;
    return layer->inner->has_room(layer->inner_state, peer);
}

static ferry_status pass_try_flush(void *state, uint32_t *peer_out, ferry_error *error)
{
    const fy_layer *layer = state;
    return layer->inner->try_flush(layer->inner_state, peer_out, error);
}

static bool pass_progress(void *state)
{
    return fy_inner_progress(state);
}

static int64_t pass_sleep_ns(void *state)
{
    return fy_inner_sleep_ns(state);
}

static void *pass_pointer(void *state, uint32_t peer, const fy_region_view *region,
                          void *attachment)
{
    const fy_layer *layer = state;
    return layer->inner->pointer(layer->inner_state, peer, region, attachment);
}

void *fy_layer_no_pointer(void *state, uint32_t peer, const fy_region_view *region,
                          void *attachment)
{
    (void)state;
    (void)peer;
    (void)region;
    (void)attachment;
    return NULL;
}

static void fill_table(fy_layer *layer)
{
    const fy_engine *inner = layer->inner;
    layer->table = (fy_engine){
        .abi = FY_ENGINE_ABI,
        .name = layer->name,
        .summary = layer->kind->summary,
        .probe = inner->probe,
        .open = NULL,
        .close = pass_close,
        .capabilities = pass_capabilities,
        .alloc = inner->alloc == NULL ? NULL : pass_alloc,
        .attach = pass_attach,
        .release = pass_release,
        .export_key = inner->export_key == NULL ? NULL : pass_export_key,
        .put = pass_put,
        .get = inner->get == NULL ? NULL : pass_get,
        .flush = pass_flush,
        .progress = inner->progress == NULL ? NULL : pass_progress,
        .sleep_ns = inner->sleep_ns == NULL ? NULL : pass_sleep_ns,
        .pointer = inner->pointer == NULL ? NULL : pass_pointer,
        .alloc_local = inner->alloc_local == NULL ? NULL : pass_alloc_local,
        .revoke = inner->revoke == NULL ? NULL : pass_revoke,
        .hurry = inner->hurry == NULL ? NULL : pass_hurry,
        .has_room = inner->has_room == NULL ? NULL : pass_has_room,
        .try_flush = inner->try_flush == NULL ? NULL : pass_try_flush,
    };
}

ferry_status fy_layer_create(const fy_layer_kind *kind, const char *element, size_t length,
                             fy_layer **layer_out, ferry_error *error)
{
    fy_layer *layer = fy_alloc_zeroed(1, kind->bytes);
    if (layer == NULL) {
        return fy_fail_no_memory(error, "a wrapper");
    }
    layer->kind = kind;
    layer->element = fy_alloc_zeroed(length + 1, 1);
    ferry_status status = FERRY_OK;
    if (layer->element == NULL) {
        status = fy_fail_no_memory(error, "a wrapper");
        goto out;
    }
    memcpy(layer->element, element, length);
    const char *equals = strchr(layer->element, '=');
    status = kind->parse(layer, equals == NULL ? NULL : equals + 1, error);
    if (status == FERRY_OK) {
        *layer_out = layer;
        layer = NULL;
    }
out:
    fy_layer_destroy(layer);
    return status;
}

ferry_status fy_layer_wrap(fy_layer *layer, const fy_engine *inner, void *inner_state,
                           ferry_error *error)
{
    size_t length = strlen(layer->element) + strlen(inner->name) + 2;
    layer->name = fy_alloc(length, 1);
    if (layer->name == NULL) {
        return fy_fail_no_memory(error, "a wrapper's name");
    }
    snprintf(layer->name, length, "%s:%s", layer->element, inner->name);
    layer->inner = inner;
    layer->inner_state = inner_state;
    fill_table(layer);
    layer->kind->wrap(layer);
    /* Whose own flush holds more than inner's: its flush waits. */
    if (layer->table.flush != pass_flush && layer->table.try_flush == pass_try_flush) {
        layer->table.try_flush = NULL;
    }
    return FERRY_OK;
}

void fy_layer_destroy(fy_layer *layer)
{
    if (layer == NULL) {
        return;
    }
    if (layer->kind->cleanup != NULL) {
        layer->kind->cleanup(layer);
    }
    fy_free(layer->element);
    fy_free(layer->name);
    fy_free(layer);
}

ferry_status fy_layer_refuse(const fy_layer *layer, const char *sentence, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT, "wrapper \"%s\": %s", layer->element, sentence);
}

bool fy_layer_number(const char *text, uint64_t limit, uint64_t *number_out, const char **end_out)
{
    uint64_t number = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (number > (limit - digit) / 10 || digit > limit) {
            return false;
        }
        number = number * 10 + digit;
    }
    *number_out = number;
    *end_out = at;
    return at != text;
}
