/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* flip=N: in every N puts of data one, by a sequence that the rank seeds, carries a wrong bit. */
#include "transport/wrap/layer.h"

#include "base/alloc.h"

#include <string.h>

/* Copies wait for a flush; past this many bytes the wrapper flushes by itself. */
static const uint64_t MOST_KEPT = UINT64_C(64) << 20;

typedef struct copy {
    struct copy *next;
    uint32_t peer;
    uint64_t bytes;
    /* the data */
} copy;

typedef struct flip_layer {
    fy_layer base;
    uint64_t n;
    uint64_t random;
    uint64_t at;     /* of the next put, within its N */
    uint64_t victim; /* of these N */
    copy *copies;    /* inner may still read them */
    uint64_t kept_bytes;
} flip_layer;

static uint64_t next_random(flip_layer *flip)
{
    uint64_t x = flip->random += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static ferry_status parse_flip(fy_layer *layer, const char *argument, ferry_error *error)
{
    flip_layer *flip = (flip_layer *)layer;
    const char *end;
    if (argument == NULL || !fy_layer_number(argument, UINT32_MAX, &flip->n, &end) ||
        *end != '\0' || flip->n == 0) {
        return fy_layer_refuse(layer, "it needs a number of puts from 1, such as flip=100", error);
    }
    return FERRY_OK;
}

static ferry_status prepare_flip(fy_layer *layer, ferry_error *error)
{
    (void)error;
    flip_layer *flip = (flip_layer *)layer;
    flip->random = layer->host->rank;
    flip->victim = next_random(flip) % flip->n;
    return FERRY_OK;
}

static void forget(flip_layer *flip, uint32_t peer)
{
    for (copy **at = &flip->copies; *at != NULL;) {
        copy *c = *at;
        if (peer == FERRY_ANY_RANK || c->peer == peer) {
            *at = c->next;
            flip->kept_bytes -= c->bytes;
            fy_free(c);
        } else {
            at = &c->next;
        }
    }
}

static ferry_status flip_flush(void *state, uint32_t peer, ferry_error *error)
{
    flip_layer *flip = state;
    FY_TRY(fy_inner_flush(&flip->base, peer, error));
    forget(flip, peer);
    return FERRY_OK;
}

static bool is_victim(flip_layer *flip)
{
    bool victim = flip->at == flip->victim;
    if (++flip->at == flip->n) {
        flip->at = 0;
        flip->victim = next_random(flip) % flip->n;
    }
    return victim;
}

static ferry_status flipped_copy(flip_layer *flip, uint32_t peer, const void *source,
                                 uint64_t bytes, const void **copy_out, ferry_error *error)
{
    if (flip->kept_bytes > MOST_KEPT) {
        FY_TRY(flip_flush(flip, FERRY_ANY_RANK, error));
    }
    copy *c = bytes > SIZE_MAX / 2 ? NULL : fy_alloc(sizeof *c + (size_t)bytes, 1);
    FY_TRY(fy_check_memory(c != NULL, "a copy in which to flip a bit", error));
    unsigned char *data = (unsigned char *)(c + 1);
    memcpy(data, source, (size_t)bytes);
    uint64_t bit = next_random(flip) % (bytes * 8);
    data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    *c = (copy){.next = flip->copies, .peer = peer, .bytes = bytes};
    flip->copies = c;
    flip->kept_bytes += bytes;
    *copy_out = data;
    return FERRY_OK;
}

static ferry_status flip_put(void *state, uint32_t peer, const fy_region_view *region,
                             void *attachment, uint64_t offset, const void *source, uint64_t bytes,
                             const fy_signal_view *signal, ferry_error *error)
{
    flip_layer *flip = state;
    if (bytes > 0 && is_victim(flip)) {
        FY_TRY(flipped_copy(flip, peer, source, bytes, &source, error));
    }
    return fy_layer_pass.put(state, peer, region, attachment, offset, source, bytes, signal, error);
}

static void wrap_flip(fy_layer *layer)
{
    layer->table.put = flip_put;
    layer->table.flush = flip_flush;
}

static void cleanup_flip(fy_layer *layer)
{
    forget((flip_layer *)layer, FERRY_ANY_RANK);
}

const fy_layer_kind fy_layer_flip = {
    .name = "flip",
    .summary = "flips one bit in one of N puts",
    .bytes = sizeof(flip_layer),
    .hides = FERRY_CAN_PEER_POINTER,
    .parse = parse_flip,
    .prepare = prepare_flip,
    .wrap = wrap_flip,
    .cleanup = cleanup_flip,
};
