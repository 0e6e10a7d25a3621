/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/region.h"

#include "base/checked.h"
#include "base/hash.h"
#include "transport/carry.h"
#include "world/order.h"

#include <string.h>

/*
 * Keys of registered memory: a head, for each engine that needs one a piece with its own head, and
 * a hash of all that. They come from anywhere, so nothing in them is believed before it is checked;
 * but whoever forges one with the right hash reaches no further than a peer can anyway.
 */
enum { KEY_MAGIC = 0x6b796672, KEY_VERSION = 2 };

typedef struct key_head {
    uint32_t magic;
    uint16_t version;
    uint16_t n_pieces;
    uint32_t n_bytes; /* of the whole key */
    uint32_t owner;
    uint64_t identity; /* of the transport */
    uint64_t id;
    uint64_t base;
    uint64_t bytes;
    uint32_t kind; /* of memory */
    int32_t device;
} key_head;

typedef struct piece_head {
    uint16_t engine; /* its number in the transport, the same on all ranks */
    uint16_t n_bytes;
} piece_head;

_Static_assert(sizeof(key_head) == 56 && sizeof(piece_head) == 4, "keys have no padding");
_Static_assert(sizeof(key_head) + FY_MOST_ENGINES * (sizeof(piece_head) + FY_ENGINE_KEY_BYTES) +
                       sizeof(uint64_t) <=
                   FERRY_KEY_BYTES,
               "the longest key has room");

static ferry_status add_pieces(const ferry_region *region, unsigned char *key, key_head *head,
                               ferry_error *error)
{
    ferry_transport *transport = region->transport;
    for (uint32_t i = 0; i < transport->n_engines; i++) {
        const fy_open_engine *engine = &transport->engines[i];
        if (engine->table->export_key == NULL || !fy_region_knows(region, i)) {
            continue;
        }
        unsigned char *at = key + head->n_bytes;
        size_t n_bytes = 0;
        FY_TRY(engine->table->export_key(engine->state, &region->view, region->attachments[i],
                                         at + sizeof(piece_head), &n_bytes, error));
        piece_head piece = {.engine = (uint16_t)i, .n_bytes = (uint16_t)n_bytes};
        memcpy(at, &piece, sizeof piece);
        head->n_bytes += (uint32_t)(sizeof piece + n_bytes);
        head->n_pieces++;
    }
    return FERRY_OK;
}

ferry_status ferry_region_export(const ferry_region *region, void *key, size_t key_bytes,
                                 size_t *n_bytes_out, ferry_error *error)
{
    if (region == NULL || key == NULL || n_bytes_out == NULL ||
        region->view.kind != FY_REGION_REGISTERED) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_region_export needs a region that this rank has registered, and "
                       "places for the key and its length");
    }
    unsigned char all[FERRY_KEY_BYTES] = {0};
    key_head head = {.magic = KEY_MAGIC,
                     .version = KEY_VERSION,
                     .n_bytes = sizeof head,
                     .owner = region->view.owner,
                     .identity = region->transport->identity,
                     .id = region->view.id,
                     .base = (uintptr_t)region->view.base,
                     .bytes = region->view.bytes,
                     .kind = region->view.space.kind,
                     .device = region->view.space.device};
    FY_TRY(add_pieces(region, all, &head, error));
    size_t hashed = head.n_bytes;
    head.n_bytes += (uint32_t)sizeof(uint64_t);
    memcpy(all, &head, sizeof head);
    uint64_t hash = fy_hash64(all, hashed);
    memcpy(all + hashed, &hash, sizeof hash);
    if (key_bytes < head.n_bytes) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "the key of region %llu has %u bytes, and there is room for %zu: "
                       "FERRY_KEY_BYTES are always enough",
                       (unsigned long long)region->view.id, head.n_bytes, key_bytes);
    }
    memcpy(key, all, head.n_bytes);
    *n_bytes_out = head.n_bytes;
    return FERRY_OK;
}

/* The head, where the key is whole. */
static ferry_status read_head(const unsigned char *key, size_t n_bytes, key_head *head_out,
                              ferry_error *error)
{
    key_head head;
    uint64_t hash;
    if (n_bytes < sizeof head + sizeof hash || n_bytes > FERRY_KEY_BYTES) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%zu bytes are not the key of a region",
                       n_bytes);
    }
    memcpy(&head, key, sizeof head);
    if (head.magic != KEY_MAGIC) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "the bytes are not the key of a region");
    }
    if (head.version != KEY_VERSION) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the key has version %u, and this library knows %d: all ranks need the "
                       "same release",
                       head.version, (int)KEY_VERSION);
    }
    memcpy(&hash, key + n_bytes - sizeof hash, sizeof hash);
    if (head.n_bytes != n_bytes || hash != fy_hash64(key, n_bytes - sizeof hash)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the key of a region is damaged: %zu bytes that do not fit together",
                       n_bytes);
    }
    *head_out = head;
    return FERRY_OK;
}

uint32_t fy_key_kind(const void *key, size_t n_bytes)
{
    key_head head = {.kind = FERRY_MEMORY_HOST};
    return read_head(key, n_bytes, &head, NULL) == FERRY_OK ? head.kind : FERRY_MEMORY_HOST;
}

static ferry_status check_head(const ferry_transport *transport, const key_head *head,
                               ferry_error *error)
{
    uint64_t end;
    if (head->identity != transport->identity) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the key of region %llu of rank %u was made with another transport",
                       (unsigned long long)head->id, head->owner);
    }
    if (head->owner >= transport->world->n_ranks || head->bytes == 0 || head->base == 0 ||
        head->id % 2 == 0 || head->kind >= FY_N_MEMORY_KINDS || head->device < 0 ||
        !fy_add(head->base, head->bytes, &end)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the key contradicts itself: region %llu of rank %u, %llu bytes",
                       (unsigned long long)head->id, head->owner, (unsigned long long)head->bytes);
    }
    return FERRY_OK;
}

/* A key of this rank's own reaches memory without any engine that would check it. */
static ferry_status check_own(const ferry_transport *transport, const key_head *head,
                              ferry_error *error)
{
    const ferry_region *region = transport->regions;
    while (region != NULL &&
           (region->view.kind != FY_REGION_REGISTERED || region->view.id != head->id ||
            (uintptr_t)region->view.base != head->base || region->view.bytes != head->bytes ||
            region->view.space.kind != head->kind)) {
        region = region->next;
    }
    if (region == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the key is of region %llu of this rank, %u, which is not registered (any "
                       "more)",
                       (unsigned long long)head->id, head->owner);
    }
    return FERRY_OK;
}

/* The piece of one engine to the region; none is fine. */
static ferry_status take_piece(const unsigned char *key, const key_head *head, uint32_t engine,
                               ferry_region *region, ferry_error *error)
{
    size_t at = sizeof *head;
    size_t end = head->n_bytes - sizeof(uint64_t);
    for (uint32_t i = 0; i < head->n_pieces; i++) {
        piece_head piece;
        if (end - at < sizeof piece) {
            break;
        }
        memcpy(&piece, key + at, sizeof piece);
        at += sizeof piece;
        if (piece.n_bytes > end - at || piece.n_bytes > FY_ENGINE_KEY_BYTES) {
            break;
        }
        if (piece.engine == engine) {
            memcpy(region->key, key + at, piece.n_bytes);
            region->view.key = region->key;
            region->view.key_bytes = piece.n_bytes;
        }
        at += piece.n_bytes;
    }
    if (at != end) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the key of region %llu of rank %u has pieces that do not fit into it",
                       (unsigned long long)head->id, head->owner);
    }
    return FERRY_OK;
}

ferry_status ferry_region_import(ferry_transport *transport, const void *key, size_t n_bytes,
                                 ferry_region **region_out, ferry_error *error)
{
    FY_TRY(fy_check_use(transport != NULL && key != NULL && region_out != NULL,
                        "ferry_region_import needs a transport, a key and a place for the region",
                        error));
    ferry_region *region = NULL;
    key_head head = {0};
    FY_TRY(read_head(key, n_bytes, &head, error));
    FY_TRY(check_head(transport, &head, error));
    FY_TRY(fy_transport_state(transport, error));
    FY_TRY(fy_world_check_order(transport->world, "ferry_region_import", error));
    if (fy_is_self(transport, head.owner)) {
        FY_TRY(check_own(transport, &head, error));
    }
    FY_TRY(fy_region_new(transport, FY_REGION_IMPORTED, &region, error));
    uint32_t index = transport->engine_of[head.owner];
    region->view.owner = head.owner;
    region->view.id = head.id;
    region->view.base = (void *)(uintptr_t)head.base;
    region->view.bytes = head.bytes;
    region->view.space = (fy_space){.kind = head.kind, .device = head.device};
    ferry_status status = take_piece(key, &head, index, region, error);
    /* What the engine does not reach says so when something is put there, with both kinds. */
    bool is_known = fy_engine_takes(&transport->engines[index], head.kind);
    if (status == FERRY_OK && is_known && !fy_is_self(transport, head.owner)) {
        status = fy_region_attach(region, index, error);
    }
    if (status != FERRY_OK) {
        fy_region_destroy(region);
        return status;
    }
    *region_out = region;
    return FERRY_OK;
}
