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

__attribute__((format(printf, 4, 5))) static void tell(const fy_layer *layer, ferry_log_level level,
                                                       const fy_call *of, const char *format, ...)
{
    if (!fy_log_enabled(level)) {
        return;
    }
    char call[CALL_BYTES];
    char line[LINE_BYTES];
    int64_t took_ns = fy_now_ns() - of->begin_ns;
    va_list arguments;
    va_start(arguments, format);
    fy_vprint(call, sizeof call, format, arguments);
    va_end(arguments);
    fy_print(line, sizeof line, "%s rank %u: %s -> %s, %.3f us", layer->name,
             (unsigned)layer->host->rank, call, ferry_status_name(of->status),
             (double)took_ns / 1e3);
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

static void tell_region(const fy_layer *layer, const fy_call *call, const char *name)
{
    const fy_region_view *region = call->region;
    tell(layer, FERRY_LOG_INFO, call,
         "%s(%s region %" PRIu64 " of rank %u, %" PRIu64 " bytes at %p)", name, kind_name(region),
         region->id, (unsigned)region->owner, region->bytes, region->base);
}

static void tell_put(const fy_layer *layer, const fy_call *call)
{
    const fy_signal_view *signal = call->signal;
    char told[CALL_BYTES] = "";
    if (signal != NULL) {
        fy_print(told, sizeof told, ", signal at region %" PRIu64 " + %" PRIu64 " %s %" PRIu64,
                 signal->region->id, signal->offset, signal->op == FERRY_SIGNAL_ADD ? "add" : "set",
                 signal->value);
    }
    tell(layer, FERRY_LOG_TRACE, call,
         "put(peer %u, region %" PRIu64 " + %" PRIu64 ", %" PRIu64 " bytes from %p%s)",
         (unsigned)call->peer, call->region->id, call->offset, call->bytes, call->memory, told);
}

static void trace_before(fy_layer *layer, fy_call *call)
{
    (void)layer;
    call->begin_ns = fy_now_ns();
}

/* Calls that are made again and again until something has happened are told when it has. */
static void trace_after(fy_layer *layer, const fy_call *call)
{
    static const char *const names[] = {
        [FY_CALL_ALLOC] = "alloc",           [FY_CALL_ALLOC_LOCAL] = "alloc_local",
        [FY_CALL_ATTACH] = "attach",         [FY_CALL_RELEASE] = "release",
        [FY_CALL_EXPORT_KEY] = "export_key", [FY_CALL_REVOKE] = "revoke",
    };
    unsigned peer = call->peer;
    switch (call->kind) {
    case FY_CALL_CLOSE:
        tell(layer, FERRY_LOG_INFO, call, "close()");
        break;
    case FY_CALL_CAPABILITIES:
        tell(layer, FERRY_LOG_INFO, call, "capabilities(peer %u) = 0x%x", peer,
             (unsigned)call->result);
        break;
    case FY_CALL_PUT:
        tell_put(layer, call);
        break;
    case FY_CALL_GET:
        tell(layer, FERRY_LOG_TRACE, call,
             "get(peer %u, region %" PRIu64 " + %" PRIu64 ", %" PRIu64 " bytes to %p)", peer,
             call->region->id, call->offset, call->bytes, call->memory);
        break;
    case FY_CALL_FLUSH:
        tell(layer, FERRY_LOG_TRACE, call, peer == FERRY_ANY_RANK ? "flush(all)" : "flush(peer %u)",
             peer);
        break;
    case FY_CALL_TRY_FLUSH:
        if (call->status != FERRY_ERR_TIMEOUT) {
            tell(layer, FERRY_LOG_TRACE, call, "try_flush()");
        }
        break;
    case FY_CALL_PROGRESS:
        if (call->result != 0) {
            tell(layer, FERRY_LOG_TRACE, call, "progress()");
        }
        break;
    case FY_CALL_POINTER:
        tell(layer, FERRY_LOG_TRACE, call, "pointer(peer %u, region %" PRIu64 ") = %p", peer,
             call->region->id, call->memory);
        break;
    case FY_CALL_HURRY:
    case FY_CALL_HAS_ROOM:
        break;
    default:
        tell_region(layer, call, names[call->kind]);
    }
}

static void wrap_trace(fy_layer *layer)
{
    const fy_call call = {.begin_ns = fy_now_ns()};
    tell(layer, FERRY_LOG_INFO, &call, "open(%u ranks, deadline %g s)",
         (unsigned)layer->host->n_ranks, (double)layer->host->deadline_ns / 1e9);
}

const fy_layer_kind fy_layer_trace = {
    .name = "trace",
    .summary = "logs every call",
    .bytes = sizeof(fy_layer),
    .is_transparent = true,
    .parse = fy_layer_no_argument,
    .wrap = wrap_trace,
    .before = trace_before,
    .after = trace_after,
};
