/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_WRAP_LAYER_H
#define FY_TRANSPORT_WRAP_LAYER_H

#include "transport/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * One wrapper around one open engine, which may be a wrapper itself. Its table starts as one that
 * passes everything on, but hides the ways around puts (attach_pieces, visit); a kind replaces what
 * it changes. Kinds embed this as their first member.
 * Attachments pass through: they are the innermost engine's.
 */
typedef struct fy_layer fy_layer;

typedef struct fy_layer_kind {
    const char *name;
    const char *summary; /* one line */
    size_t bytes;        /* of the struct that embeds fy_layer */
    /* Reads what follows '=' (NULL: there is none). The sentence begins with the element. */
    ferry_status (*parse)(fy_layer *layer, const char *argument, ferry_error *error);
    /* Before inner is open, with the world known; local. May replace inner_host. (optional) */
    ferry_status (*prepare)(fy_layer *layer, ferry_error *error);
    /* Inner is open and the table passes everything on: replaces functions. */
    void (*wrap)(fy_layer *layer);
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

/* Digits up to limit, or false; *end_out is behind them. */
bool fy_layer_number(const char *text, uint64_t limit, uint64_t *number_out, const char **end_out);

/* Inner's functions with inner's state. */
uint32_t fy_inner_capabilities(const fy_layer *layer, uint32_t peer);
ferry_status fy_inner_flush(const fy_layer *layer, uint32_t peer, ferry_error *error);
bool fy_inner_progress(const fy_layer *layer);
int64_t fy_inner_sleep_ns(const fy_layer *layer);

/* A table function for wrappers through which everything must pass: nothing is mapped. */
void *fy_layer_no_pointer(void *state, uint32_t peer, const fy_region_view *region,
                          void *attachment);

/* Takes flags away where the peer can be reached. */
static inline uint32_t fy_layer_without(uint32_t capabilities, uint32_t flags)
{
    return capabilities == UINT32_MAX ? capabilities : capabilities & ~flags;
}

#endif
