/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * trace: a line for every call with arguments, result and microseconds: memory and the ends of the
 * engine at level info, operations at trace. Calls of progress are told where they did something.
 */
#include "transport/wrap/layer.h"

#include "base/log.h"
#include "base/print.h"
#include "world/bell.h"

#include <inttypes.h>
#include <stdio.h>

enum { LINE_BYTES = 512, CALL_BYTES = 320 };

static ferry_status parse_trace(fy_layer *layer, const char *argument, ferry_error *error)
{
    return argument == NULL ? FERRY_OK : fy_layer_refuse(layer, "it takes no argument", error);
}

__attribute__((format(printf, 5, 6))) static void tell(const fy_layer *layer, ferry_log_level level,
                                                       int64_t begin_ns, ferry_status status,
                                                       const char *format, ...)
{
    if (!fy_log_enabled(level)) {
        return;
    }
    char call[CALL_BYTES];
    char line[LINE_BYTES];
    int64_t took_ns = fy_now_ns() - begin_ns;
    va_list arguments;
    va_start(arguments, format);
    fy_vprint(call, sizeof call, format, arguments);
    va_end(arguments);
    fy_print(line, sizeof line, "%s rank %u: %s -> %s, %.3f us", layer->name,
             (unsigned)layer->host->rank, call, ferry_status_name(status), (double)took_ns / 1e3);
    layer->host->log(level, line);
}

static const char *kind_name(const fy_region_view *region)
{
    switch (region->kind) {
    case FY_REGION_SYMMETRIC:
        return "symmetric";
    case FY_REGION_REGISTERED:
        return "registered";
    default:
        return "imported";
    }
}

static void trace_close(void *state)
{
    fy_layer *layer = state;
    int64_t begin_ns = fy_now_ns();
    layer->inner->close(layer->inner_state);
    tell(layer, FERRY_LOG_INFO, begin_ns, FERRY_OK, "close()");
    fy_layer_destroy(layer);
}

static uint32_t trace_capabilities(void *state, uint32_t peer)
{
    const fy_layer *layer = state;
    int64_t begin_ns = fy_now_ns();
    uint32_t flags = fy_inner_capabilities(layer, peer);
    tell(layer, FERRY_LOG_INFO, begin_ns, FERRY_OK, "capabilities(peer %u) = 0x%x", (unsigned)peer,
         (unsigned)flags);
    return flags;
}

static void tell_region(const fy_layer *layer, int64_t begin_ns, ferry_status status,
                        const char *call, const fy_region_view *region)
{
    tell(layer, FERRY_LOG_INFO, begin_ns, status,
         "%s(%s region %" PRIu64 " of rank %u, %" PRIu64 " bytes at %p)", call, kind_name(region),
         region->id, (unsigned)region->owner, region->bytes, region->base);
}

static ferry_status trace_alloc(void *state, fy_region_view *region, void **attachment_out,
                                ferry_error *error)
{
    const fy_layer *layer = state;
    int64_t begin_ns = fy_now_ns();
    ferry_status status = layer->inner->alloc(layer->inner_state, region, attachment_out, error);
    tell_region(layer, begin_ns, status, "alloc", region);
    return status;
}

static ferry_status trace_alloc_local(void *state, fy_region_view *region, void **attachment_out,
                                      ferry_error *error)
{
    const fy_layer *layer = state;
    int64_t begin_ns = fy_now_ns();
    ferry_status status =
        layer->inner->alloc_local(layer->inner_state, region, attachment_out, error);
    tell_region(layer, begin_ns, status, "alloc_local", region);
    return status;
}

static ferry_status trace_attach(void *state, const fy_region_view *region, void **attachment_out,
                                 ferry_error *error)
{
    const fy_layer *layer = state;
    int64_t begin_ns = fy_now_ns();
    ferry_status status = layer->inner->attach(layer->inner_state, region, attachment_out, error);
    tell_region(layer, begin_ns, status, "attach", region);
    return status;
}

static void trace_release(void *state, const fy_region_view *region, void *attachment)
{
    const fy_layer *layer = state;
    int64_t begin_ns = fy_now_ns();
    layer->inner->release(layer->inner_state, region, attachment);
    tell_region(layer, begin_ns, FERRY_OK, "release", region);
}

static ferry_status trace_export_key(void *state, const fy_region_view *region, void *attachment,
                                     void *key, size_t *n_bytes_out, ferry_error *error)
{
    const fy_layer *layer = state;
    int64_t begin_ns = fy_now_ns();
    ferry_status status =
        layer->inner->export_key(layer->inner_state, region, attachment, key, n_bytes_out, error);
    tell_region(layer, begin_ns, status, "export_key", region);
    return status;
}

static ferry_status trace_put(void *state, uint32_t peer, const fy_region_view *region,
                              void *attachment, uint64_t offset, const void *source, uint64_t bytes,
                              const fy_signal_view *signal, ferry_error *error)
{
    const fy_layer *layer = state;
    int64_t begin_ns = fy_now_ns();
    ferry_status status = layer->inner->put(layer->inner_state, peer, region, attachment, offset,
                                            source, bytes, signal, error);
    if (signal == NULL) {
        tell(layer, FERRY_LOG_TRACE, begin_ns, status,
             "put(peer %u, region %" PRIu64 " + %" PRIu64 ", %" PRIu64 " bytes from %p)",
             (unsigned)peer, region->id, offset, bytes, source);
    } else {
        tell(layer, FERRY_LOG_TRACE, begin_ns, status,
             "put(peer %u, region %" PRIu64 " + %" PRIu64 ", %" PRIu64
             " bytes from %p, signal at region %" PRIu64 " + %" PRIu64 " %s %" PRIu64 ")",
             (unsigned)peer, region->id, offset, bytes, source, signal->region->id, signal->offset,
             signal->op == FERRY_SIGNAL_ADD ? "add" : "set", signal->value);
    }
    return status;
}

static ferry_status trace_get(void *state, uint32_t peer, const fy_region_view *region,
                              void *attachment, uint64_t offset, void *target, uint64_t bytes,
                              ferry_error *error)
{
    const fy_layer *layer = state;
    int64_t begin_ns = fy_now_ns();
    ferry_status status = layer->inner->get(layer->inner_state, peer, region, attachment, offset,
                                            target, bytes, error);
    tell(layer, FERRY_LOG_TRACE, begin_ns, status,
         "get(peer %u, region %" PRIu64 " + %" PRIu64 ", %" PRIu64 " bytes to %p)", (unsigned)peer,
         region->id, offset, bytes, target);
    return status;
}

static ferry_status trace_flush(void *state, uint32_t peer, ferry_error *error)
{
    const fy_layer *layer = state;
    int64_t begin_ns = fy_now_ns();
    ferry_status status = fy_inner_flush(layer, peer, error);
    if (peer == FERRY_ANY_RANK) {
        tell(layer, FERRY_LOG_TRACE, begin_ns, status, "flush(all)");
    } else {
        tell(layer, FERRY_LOG_TRACE, begin_ns, status, "flush(peer %u)", (unsigned)peer);
    }
    return status;
}

/* Told where it has ended: it is asked again and again. */
static ferry_status trace_try_flush(void *state, uint32_t *peer_out, ferry_error *error)
{
    const fy_layer *layer = state;
    int64_t begin_ns = fy_now_ns();
    ferry_status status = layer->inner->try_flush(layer->inner_state, peer_out, error);
    if (status != FERRY_ERR_TIMEOUT) {
        tell(layer, FERRY_LOG_TRACE, begin_ns, status, "try_flush()");
    }
    return status;
}

static bool trace_progress(void *state)
{
    const fy_layer *layer = state;
    int64_t begin_ns = fy_log_enabled(FERRY_LOG_TRACE) ? fy_now_ns() : 0;
    bool worked = fy_inner_progress(layer);
    if (worked) {
        tell(layer, FERRY_LOG_TRACE, begin_ns, FERRY_OK, "progress()");
    }
    return worked;
}

static void *trace_pointer(void *state, uint32_t peer, const fy_region_view *region,
                           void *attachment)
{
    const fy_layer *layer = state;
    int64_t begin_ns = fy_now_ns();
    void *pointer = layer->inner->pointer(layer->inner_state, peer, region, attachment);
    tell(layer, FERRY_LOG_TRACE, begin_ns, FERRY_OK, "pointer(peer %u, region %" PRIu64 ") = %p",
         (unsigned)peer, region->id, pointer);
    return pointer;
}

static ferry_status trace_attach_pieces(void *state, uint32_t peer, bool write,
                                        const struct iovec *here, size_t n_here,
                                        const struct iovec *there, size_t n_there,
                                        ferry_error *error)
{
    const fy_layer *layer = state;
    int64_t begin_ns = fy_now_ns();
    ferry_status status = layer->inner->attach_pieces(layer->inner_state, peer, write, here, n_here,
                                                      there, n_there, error);
    tell(layer, FERRY_LOG_TRACE, begin_ns, status,
         "attach_pieces(peer %u, %s, %zu pieces here, %zu there)", (unsigned)peer,
         write ? "write" : "read", n_here, n_there);
    return status;
}

static bool trace_visit(void *state, uint32_t peer)
{
    const fy_layer *layer = state;
    return layer->inner->visit(layer->inner_state, peer);
}

static void trace_leave(void *state, uint32_t peer)
{
    const fy_layer *layer = state;
    layer->inner->leave(layer->inner_state, peer);
}

/* Only what inner has: other functions stay NULL. */
static void wrap_trace(fy_layer *layer)
{
    fy_engine *table = &layer->table;
    const fy_engine *inner = layer->inner;
    table->close = trace_close;
    table->capabilities = trace_capabilities;
    table->alloc = table->alloc == NULL ? NULL : trace_alloc;
    table->attach = trace_attach;
    table->release = trace_release;
    table->export_key = table->export_key == NULL ? NULL : trace_export_key;
    table->put = trace_put;
    table->get = table->get == NULL ? NULL : trace_get;
    table->flush = trace_flush;
    table->try_flush = table->try_flush == NULL ? NULL : trace_try_flush;
    table->progress = table->progress == NULL ? NULL : trace_progress;
    table->pointer = table->pointer == NULL ? NULL : trace_pointer;
    table->alloc_local = table->alloc_local == NULL ? NULL : trace_alloc_local;
    table->attach_pieces = inner->attach_pieces == NULL ? NULL : trace_attach_pieces;
    table->visit = inner->visit == NULL ? NULL : trace_visit;
    table->leave = inner->leave == NULL ? NULL : trace_leave;
    tell(layer, FERRY_LOG_INFO, fy_now_ns(), FERRY_OK, "open(%u ranks, deadline %g s)",
         (unsigned)layer->host->n_ranks, (double)layer->host->deadline_ns / 1e9);
}

const fy_layer_kind fy_layer_trace = {
    .name = "trace",
    .summary = "logs every call",
    .bytes = sizeof(fy_layer),
    .parse = parse_trace,
    .wrap = wrap_trace,
};
