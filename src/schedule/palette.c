/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/palette.h"

#include "base/alloc.h"
#include "base/hash.h"

#include <string.h>

typedef struct fy_palette_row {
    uint64_t *words; /* a bit per colour in use */
    size_t n_words;
    size_t capacity;
} fy_palette_row;

static uint64_t key_of(uint32_t port, uint32_t colour)
{
    return (((uint64_t)port << 32) | colour) + 1;
}

static size_t slot_of(const fy_palette *p, uint64_t key)
{
    size_t slot = (size_t)fy_hash_mix(key, 0) & (p->capacity - 1);
    while (p->keys[slot] != 0 && p->keys[slot] != key) {
        slot = (slot + 1) & (p->capacity - 1);
    }
    return slot;
}

/* Removal without tombstones: what probed past the gap moves into it. */
static void remove_slot(fy_palette *p, size_t gap)
{
    size_t mask = p->capacity - 1;
    for (size_t next = (gap + 1) & mask; p->keys[next] != 0; next = (next + 1) & mask) {
        size_t home = (size_t)fy_hash_mix(p->keys[next], 0) & mask;
        if (((next - home) & mask) >= ((next - gap) & mask)) {
            p->keys[gap] = p->keys[next];
            p->edges[gap] = p->edges[next];
            gap = next;
        }
    }
    p->keys[gap] = 0;
}

uint32_t fy_palette_port(const fy_palette *palette, uint32_t edge, int side)
{
    return side == 0 ? palette->graph->from[edge] : palette->graph->to[edge] + palette->shift;
}

uint32_t fy_palette_find(const fy_palette *palette, uint32_t port, uint32_t colour)
{
    size_t slot = slot_of(palette, key_of(port, colour));
    return palette->keys[slot] == 0 ? FY_NO_EDGE : palette->edges[slot];
}

static bool reserve_row(fy_palette_row *row, uint32_t colour)
{
    size_t needed = colour / 64 + 1;
    if (needed <= row->n_words) {
        return true;
    }
    if (!FY_RESERVE(row->words, row->capacity, needed)) {
        return false;
    }
    memset(row->words + row->n_words, 0, (needed - row->n_words) * sizeof *row->words);
    row->n_words = needed;
    return true;
}

ferry_status fy_palette_give(fy_palette *palette, uint32_t edge, uint32_t colour,
                             ferry_error *error)
{
    for (int side = 0; side < 2; side++) {
        if (!reserve_row(&palette->rows[fy_palette_port(palette, edge, side)], colour)) {
            return fy_fail_no_memory(error, "the rounds of a rank");
        }
    }
    for (int side = 0; side < 2; side++) {
        uint32_t port = fy_palette_port(palette, edge, side);
        size_t slot = slot_of(palette, key_of(port, colour));
        palette->rows[port].words[colour / 64] |= (uint64_t)1 << (colour % 64);
        palette->keys[slot] = key_of(port, colour);
        palette->edges[slot] = edge;
    }
    palette->graph->round[edge] = colour;
    return FERRY_OK;
}

void fy_palette_take(fy_palette *palette, uint32_t edge)
{
    uint32_t colour = palette->graph->round[edge];
    for (int side = 0; side < 2; side++) {
        uint32_t port = fy_palette_port(palette, edge, side);
        palette->rows[port].words[colour / 64] &= ~((uint64_t)1 << (colour % 64));
        remove_slot(palette, slot_of(palette, key_of(port, colour)));
    }
    palette->graph->round[edge] = FY_NO_COLOUR;
}

static uint64_t used_word(const fy_palette_row *row, size_t word)
{
    return word < row->n_words ? row->words[word] : 0;
}

uint32_t fy_palette_free_both(const fy_palette *palette, uint32_t port, uint32_t other)
{
    const fy_palette_row *a = &palette->rows[port], *b = &palette->rows[other];
    uint32_t n = palette->n_colours;
    uint64_t mask = n % 64 == 0 ? UINT64_MAX : ((uint64_t)1 << (n % 64)) - 1;
    for (size_t word = ((size_t)n + 63) / 64; word-- > 0; mask = UINT64_MAX) {
        uint64_t open = ~(used_word(a, word) | used_word(b, word)) & mask;
        if (open != 0) {
            return (uint32_t)(word * 64) + 63 - (uint32_t)__builtin_clzll(open);
        }
    }
    return FY_NO_COLOUR;
}

uint32_t fy_palette_free(const fy_palette *palette, uint32_t port)
{
    return fy_palette_free_both(palette, port, port);
}

static uint32_t other_port(const fy_palette *palette, uint32_t edge, uint32_t port)
{
    uint32_t first = fy_palette_port(palette, edge, 0);
    return first == port ? fy_palette_port(palette, edge, 1) : first;
}

/* At the path's begin one of the two colours is free: the path leaves by the other. */
static uint32_t path_end(const fy_palette *palette, uint32_t port, uint32_t a, uint32_t b)
{
    uint32_t wanted = fy_palette_find(palette, port, a) != FY_NO_EDGE ? a : b, edge;
    while ((edge = fy_palette_find(palette, port, wanted)) != FY_NO_EDGE) {
        port = other_port(palette, edge, port);
        wanted = wanted == a ? b : a;
    }
    return port;
}

/*
 * Edge by edge, carrying the next one in hand: an edge gets its new colour when its successor has
 * let go of it.
 */
static ferry_status swap_path(fy_palette *palette, uint32_t port, uint32_t a, uint32_t b,
                              ferry_error *error)
{
    uint32_t wanted = fy_palette_find(palette, port, a) != FY_NO_EDGE ? a : b;
    uint32_t edge = fy_palette_find(palette, port, wanted);
    if (edge == FY_NO_EDGE) {
        return FERRY_OK;
    }
    fy_palette_take(palette, edge);
    while (edge != FY_NO_EDGE) {
        uint32_t given = wanted == a ? b : a;
        port = other_port(palette, edge, port);
        uint32_t next = fy_palette_find(palette, port, given);
        if (next != FY_NO_EDGE) {
            fy_palette_take(palette, next);
        }
        FY_TRY(fy_palette_give(palette, edge, given, error));
        edge = next;
        wanted = given;
    }
    return FERRY_OK;
}

ferry_status fy_palette_swap(fy_palette *palette, uint32_t port, uint32_t a, uint32_t b,
                             uint32_t only_if_not, uint32_t *end_out, ferry_error *error)
{
    *end_out = path_end(palette, port, a, b);
    return *end_out == only_if_not ? FERRY_OK : swap_path(palette, port, a, b, error);
}

ferry_status fy_palette_insert(fy_palette *palette, uint32_t edge, ferry_error *error)
{
    uint32_t left = fy_palette_port(palette, edge, 0), right = fy_palette_port(palette, edge, 1);
    uint32_t both = fy_palette_free_both(palette, left, right), end;
    if (both != FY_NO_COLOUR) {
        return fy_palette_give(palette, edge, both, error);
    }
    /* The path from the right port arrives at left vertices by a colour that ours has free. */
    uint32_t a = fy_palette_free(palette, left), b = fy_palette_free(palette, right);
    FY_TRY(fy_palette_swap(palette, right, a, b, left, &end, error));
    return fy_palette_give(palette, edge, a, error);
}

ferry_status fy_palette_init(fy_palette *palette, uint32_t n_ports, uint32_t shift, fy_edges *edges,
                             ferry_error *error)
{
    size_t capacity = 64;
    while (capacity < 4 * edges->n) {
        capacity *= 2;
    }
    *palette =
        (fy_palette){.n_ports = n_ports, .shift = shift, .graph = edges, .capacity = capacity};
    palette->rows = fy_alloc_zeroed(n_ports, sizeof *palette->rows);
    palette->keys = fy_alloc_zeroed(capacity, sizeof *palette->keys);
    palette->edges = fy_alloc(capacity, sizeof *palette->edges);
    if (palette->rows == NULL || palette->keys == NULL || palette->edges == NULL) {
        fy_palette_cleanup(palette);
        return fy_fail_no_memory(error, "the rounds of a schedule");
    }
    ferry_status status = FERRY_OK;
    for (size_t e = 0; e < edges->n && status == FERRY_OK; e++) {
        if (edges->round[e] != FY_NO_COLOUR) {
            status = fy_palette_give(palette, (uint32_t)e, edges->round[e], error);
        }
    }
    if (status != FERRY_OK) {
        fy_palette_cleanup(palette);
    }
    return status;
}

void fy_palette_cleanup(fy_palette *palette)
{
    for (uint32_t port = 0; palette->rows != NULL && port < palette->n_ports; port++) {
        fy_free(palette->rows[port].words);
    }
    fy_free(palette->rows);
    fy_free(palette->keys);
    fy_free(palette->edges);
    *palette = (fy_palette){0};
}
