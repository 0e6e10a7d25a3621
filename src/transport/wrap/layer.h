/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_WRAP_LAYER_H
#define FY_TRANSPORT_WRAP_LAYER_H

#include "transport/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * One wrapper around one open engine, which may be a wrapper itself. Its table passes everything
 * on, with the kind's before and after around each call; functions whose work a kind changes it
 * replaces. Kinds embed this as their first member.
 * Attachments pass through: they are the innermost engine's.
 */
typedef struct fy_layer fy_layer;

typedef enum fy_call_kind {
    FY_CALL_CLOSE,
    FY_CALL_CAPABILITIES,
    FY_CALL_ALLOC,
    FY_CALL_ALLOC_LOCAL,
    FY_CALL_ATTACH,
    FY_CALL_RELEASE,
    FY_CALL_EXPORT_KEY,
    FY_CALL_REVOKE,
    FY_CALL_PUT,
    FY_CALL_GET,
    FY_CALL_FLUSH,
    FY_CALL_TRY_FLUSH,
    FY_CALL_PROGRESS,
    FY_CALL_POINTER,
    FY_CALL_HURRY,
    FY_CALL_HAS_ROOM,
} fy_call_kind;

/* A call that passes, with those of its arguments that it has. */
typedef struct fy_call {
    fy_call_kind kind;
    uint32_t peer;
    const fy_region_view *region;
    uint64_t offset;
    const void *memory; /* source of a put, target of a get, what pointer found */
    uint64_t bytes;
    const fy_signal_view *signal;
    int64_t begin_ns; /* for before, if it wants to know in after */
    /* What came of it, for after. */
    ferry_status status;
    uint32_t result; /* capabilities; whether progress did anything, or a peer has room */
} fy_call;

typedef struct fy_layer_kind {
    const char *name;
    const char *summary; /* one line */
    size_t bytes;        /* of the struct that embeds fy_layer */
    uint32_t hides;      /* FERRY_CAN_ flags: with FERRY_CAN_PEER_POINTER nothing is mapped */
    uint32_t adds;       /* the same, of peers that can be reached */
    bool is_transparent; /* the way around puts (visit) is open */
    /* Reads what follows '=' (NULL: there is none). The sentence begins with the element. */
    ferry_status (*parse)(fy_layer *layer, const char *argument, ferry_error *error);
    /* Before inner is open, with the world known; local. May replace inner_host. (optional) */
    ferry_status (*prepare)(fy_layer *layer, ferry_error *error);
    /* Inner is open and the table passes everything on: replaces functions. (optional) */
    void (*wrap)(fy_layer *layer);
    /* Around each call that passes; after may be told of a layer that has just closed. (optional)
     */
    void (*before)(fy_layer *layer, fy_call *call);
    void (*after)(fy_layer *layer, const fy_call *call);
    /* Before inner closes; only after wrap. (optional) */
    void (*stop)(fy_layer *layer);
    /* Frees what parse and prepare made, after any of them. (optional) */
    void (*cleanup)(fy_layer *layer);
} fy_layer_kind;

struct fy_layer {
    const fy_layer_kind *kind;
    char *element; /* such as "delay=200us" */
    char *name;    /* of the table: the element, a colon and inner's name */
    const fy_host *host;
    const fy_host *inner_host; /* what inner sees: host unless prepare says otherwise */
    const fy_engine *inner;
    void *inner_state;
    fy_engine table;
};

extern const fy_layer_kind fy_layer_delay;
extern const fy_layer_kind fy_layer_reorder;
extern const fy_layer_kind fy_layer_lose;
extern const fy_layer_kind fy_layer_flip;
extern const fy_layer_kind fy_layer_trace;
extern const fy_layer_kind fy_layer_strict;

/* A layer of this kind with its argument read; element has length bytes. */
ferry_status fy_layer_create(const fy_layer_kind *kind, const char *element, size_t length,
                             fy_layer **layer_out, ferry_error *error);
/* Fills the table around an open engine. An error leaves inner open. */
ferry_status fy_layer_wrap(fy_layer *layer, const fy_engine *inner, void *inner_state,
                           ferry_error *error);
void fy_layer_destroy(fy_layer *layer); /* leaves inner open; NULL is allowed */

/* "the element "delay=5": " and a sentence, as FERRY_ERR_INVALID_INPUT. */
ferry_status fy_layer_refuse(const fy_layer *layer, const char *sentence, ferry_error *error);

/* The parse of kinds that take none. */
ferry_status fy_layer_no_argument(fy_layer *layer, const char *argument, ferry_error *error);

/* Digits up to limit, or false; *end_out is behind them. */
bool fy_layer_number(const char *text, uint64_t limit, uint64_t *number_out, const char **end_out);

/* What a table does that nobody replaced: for functions that pass on in the end. */
extern const fy_engine fy_layer_pass;

/* Inner's functions with inner's state, and nothing around them. */
ferry_status fy_inner_flush(const fy_layer *layer, uint32_t peer, ferry_error *error);
bool fy_inner_progress(const fy_layer *layer);
int64_t fy_inner_sleep_ns(const fy_layer *layer);

#endif
