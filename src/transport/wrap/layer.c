/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/wrap/layer.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

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

static fy_layer *before(void *state, fy_call *call)
{
    fy_layer *layer = state;
    if (layer->kind->before != NULL) {
        layer->kind->before(layer, call);
    }
    return layer;
}

static ferry_status after(fy_layer *layer, fy_call *call, ferry_status status)
{
    call->status = status;
    if (layer->kind->after != NULL) {
        layer->kind->after(layer, call);
    }
    return status;
}

static void pass_close(void *state)
{
    fy_call call = {.kind = FY_CALL_CLOSE};
    if (((fy_layer *)state)->kind->stop != NULL) {
        ((fy_layer *)state)->kind->stop(state);
    }
    fy_layer *layer = before(state, &call);
    layer->inner->close(layer->inner_state);
    after(layer, &call, FERRY_OK);
    fy_layer_destroy(layer);
}

static uint32_t pass_capabilities(void *state, uint32_t peer)
{
    fy_call call = {.kind = FY_CALL_CAPABILITIES, .peer = peer};
    fy_layer *layer = before(state, &call);
    uint32_t flags = layer->inner->capabilities(layer->inner_state, peer);
    bool reached = flags != UINT32_MAX;
    call.result = reached ? (flags & ~layer->kind->hides) | layer->kind->adds : flags;
    after(layer, &call, FERRY_OK);
    return call.result;
}

static ferry_status pass_alloc(void *state, fy_region_view *region, void **attachment_out,
                               ferry_error *error)
{
    fy_call call = {.kind = FY_CALL_ALLOC, .region = region};
    fy_layer *layer = before(state, &call);
    return after(layer, &call,
                 layer->inner->alloc(layer->inner_state, region, attachment_out, error));
}

static ferry_status pass_alloc_local(void *state, fy_region_view *region, void **attachment_out,
                                     ferry_error *error)
{
    fy_call call = {.kind = FY_CALL_ALLOC_LOCAL, .region = region};
    fy_layer *layer = before(state, &call);
    return after(layer, &call,
                 layer->inner->alloc_local(layer->inner_state, region, attachment_out, error));
}

static ferry_status pass_attach(void *state, const fy_region_view *region, void **attachment_out,
                                ferry_error *error)
{
    fy_call call = {.kind = FY_CALL_ATTACH, .region = region};
    fy_layer *layer = before(state, &call);
    return after(layer, &call,
                 layer->inner->attach(layer->inner_state, region, attachment_out, error));
}

static void pass_release(void *state, const fy_region_view *region, void *attachment)
{
    fy_call call = {.kind = FY_CALL_RELEASE, .region = region};
    fy_layer *layer = before(state, &call);
    layer->inner->release(layer->inner_state, region, attachment);
    after(layer, &call, FERRY_OK);
}

static ferry_status pass_export_key(void *state, const fy_region_view *region, void *attachment,
                                    void *key, size_t *n_bytes_out, ferry_error *error)
{
    fy_call call = {.kind = FY_CALL_EXPORT_KEY, .region = region};
    fy_layer *layer = before(state, &call);
    return after(
        layer, &call,
        layer->inner->export_key(layer->inner_state, region, attachment, key, n_bytes_out, error));
}

static ferry_status pass_revoke(void *state, const fy_region_view *region, void *attachment,
                                ferry_error *error)
{
    fy_call call = {.kind = FY_CALL_REVOKE, .region = region};
    fy_layer *layer = before(state, &call);
    return after(layer, &call, layer->inner->revoke(layer->inner_state, region, attachment, error));
}

static ferry_status pass_put(void *state, uint32_t peer, const fy_region_view *region,
                             void *attachment, uint64_t offset, const void *source, uint64_t bytes,
                             const fy_signal_view *signal, ferry_error *error)
{
    fy_call call = {.kind = FY_CALL_PUT,
                    .peer = peer,
                    .region = region,
                    .offset = offset,
                    .memory = source,
                    .bytes = bytes,
                    .signal = signal};
    fy_layer *layer = before(state, &call);
    return after(layer, &call,
                 layer->inner->put(layer->inner_state, peer, region, attachment, offset, source,
                                   bytes, signal, error));
}

static ferry_status pass_get(void *state, uint32_t peer, const fy_region_view *region,
                             void *attachment, uint64_t offset, void *target, uint64_t bytes,
                             ferry_error *error)
{
    fy_call call = {.kind = FY_CALL_GET,
                    .peer = peer,
                    .region = region,
                    .offset = offset,
                    .memory = target,
                    .bytes = bytes};
    fy_layer *layer = before(state, &call);
    return after(layer, &call,
                 layer->inner->get(layer->inner_state, peer, region, attachment, offset, target,
                                   bytes, error));
}

static ferry_status pass_flush(void *state, uint32_t peer, ferry_error *error)
{
    fy_call call = {.kind = FY_CALL_FLUSH, .peer = peer};
    fy_layer *layer = before(state, &call);
    return after(layer, &call, fy_inner_flush(layer, peer, error));
}

static ferry_status pass_try_flush(void *state, uint32_t *peer_out, ferry_error *error)
{
    fy_call call = {.kind = FY_CALL_TRY_FLUSH};
    fy_layer *layer = before(state, &call);
    return after(layer, &call, layer->inner->try_flush(layer->inner_state, peer_out, error));
}

static bool pass_progress(void *state)
{
    fy_call call = {.kind = FY_CALL_PROGRESS};
    fy_layer *layer = before(state, &call);
    call.result = fy_inner_progress(layer);
    after(layer, &call, FERRY_OK);
    return call.result != 0;
}

static int64_t pass_sleep_ns(void *state)
{
    return fy_inner_sleep_ns(state);
}

static void *pass_pointer(void *state, uint32_t peer, const fy_region_view *region,
                          void *attachment)
{
    fy_call call = {.kind = FY_CALL_POINTER, .peer = peer, .region = region};
    fy_layer *layer = before(state, &call);
    void *pointer = NULL;
    if ((layer->kind->hides & FERRY_CAN_PEER_POINTER) == 0) {
        pointer = layer->inner->pointer(layer->inner_state, peer, region, attachment);
    }
    call.memory = pointer;
    after(layer, &call, FERRY_OK);
    return pointer;
}

static void pass_hurry(void *state, bool hurries)
{
    fy_call call = {.kind = FY_CALL_HURRY, .result = hurries};
    fy_layer *layer = before(state, &call);
    layer->inner->hurry(layer->inner_state, hurries);
    after(layer, &call, FERRY_OK);
}

static bool pass_has_room(void *state, uint32_t peer)
{
    fy_call call = {.kind = FY_CALL_HAS_ROOM, .peer = peer};
    fy_layer *layer = before(state, &call);
    call.result = layer->inner->has_room(layer->inner_state, peer);
    after(layer, &call, FERRY_OK);
    return call.result != 0;
}

static bool pass_visit(void *state, uint32_t peer)
{
    const fy_layer *layer = state;
    return layer->inner->visit(layer->inner_state, peer);
}

static void pass_leave(void *state, uint32_t peer)
{
    const fy_layer *layer = state;
    layer->inner->leave(layer->inner_state, peer);
}

const fy_engine fy_layer_pass = {
    .abi = FY_ENGINE_ABI,
    .close = pass_close,
    .capabilities = pass_capabilities,
    .alloc = pass_alloc,
    .attach = pass_attach,
    .release = pass_release,
    .export_key = pass_export_key,
    .put = pass_put,
    .get = pass_get,
    .flush = pass_flush,
    .progress = pass_progress,
    .sleep_ns = pass_sleep_ns,
    .pointer = pass_pointer,
    .alloc_local = pass_alloc_local,
    .visit = pass_visit,
    .leave = pass_leave,
    .revoke = pass_revoke,
    .hurry = pass_hurry,
    .has_room = pass_has_room,
    .try_flush = pass_try_flush,
};

/* What inner lacks is lacking here. */
static void fill_table(fy_layer *layer)
{
    const fy_engine *inner = layer->inner;
    fy_engine *table = &layer->table;
    bool around = layer->kind->is_transparent;
    *table = fy_layer_pass;
    table->name = layer->name;
    table->summary = layer->kind->summary;
    table->probe = inner->probe;
#define FY_DROP(function, present) table->function = (present) ? table->function : NULL
    FY_DROP(alloc, inner->alloc != NULL);
    FY_DROP(export_key, inner->export_key != NULL);
    FY_DROP(get, inner->get != NULL);
    FY_DROP(progress, inner->progress != NULL);
    FY_DROP(sleep_ns, inner->sleep_ns != NULL);
    FY_DROP(pointer, inner->pointer != NULL);
    FY_DROP(alloc_local, inner->alloc_local != NULL);
    table->shares_pointers = around && inner->shares_pointers;
    FY_DROP(visit, around && inner->visit != NULL);
    FY_DROP(leave, around && inner->leave != NULL);
    FY_DROP(revoke, inner->revoke != NULL);
    FY_DROP(hurry, inner->hurry != NULL);
    FY_DROP(has_room, inner->has_room != NULL);
    FY_DROP(try_flush, inner->try_flush != NULL);
#undef FY_DROP
}

ferry_status fy_layer_create(const fy_layer_kind *kind, const char *element, size_t length,
                             fy_layer **layer_out, ferry_error *error)
{
    fy_layer *layer = fy_alloc_zeroed(1, kind->bytes);
    FY_TRY(fy_check_memory(layer != NULL, "a wrapper", error));
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
    FY_TRY(fy_check_memory(layer->name != NULL, "a wrapper's name", error));
    snprintf(layer->name, length, "%s:%s", layer->element, inner->name);
    layer->inner = inner;
    layer->inner_state = inner_state;
    fill_table(layer);
    if (layer->kind->wrap != NULL) {
        layer->kind->wrap(layer);
    }
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

ferry_status fy_layer_no_argument(fy_layer *layer, const char *argument, ferry_error *error)
{
    return argument == NULL ? FERRY_OK : fy_layer_refuse(layer, "it takes no argument", error);
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
