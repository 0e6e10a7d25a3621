/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Maps while they are filled, and how they are finished. */
#include "model/map.h"

#include "base/checked.h"
#include "base/hash.h"
#include "base/options.h"
#include "model/dtype.h"
#include "model/map_name.h"
#include "model/spec.h"

#include <stdio.h>
#include <string.h>

enum { MOST_NAME_BYTES = 1 << 28 };

ferry_status ferry_map_create(ferry_map **map_out, ferry_error *error)
{
    FY_TRY(fy_check_use(map_out != NULL, "ferry_map_create needs a place for the result", error));
    ferry_map *map = fy_alloc_zeroed(1, sizeof *map);
    FY_TRY(fy_check_memory(map != NULL, "a map", error));
    *map_out = map;
    return FERRY_OK;
}

void ferry_map_destroy(ferry_map *map)
{
    if (map != NULL) {
        fy_free(map->sources.tensors);
        fy_free(map->targets.tensors);
        fy_index_cleanup(&map->sources.names);
        fy_index_cleanup(&map->targets.names);
        fy_free(map->pieces);
        fy_arena_cleanup(&map->arena);
        fy_free(map);
    }
}

ferry_status fy_map_check_finished(const ferry_map *map, const char *call, ferry_error *error)
{
    return map != NULL && map->is_finished
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_MISUSE, "%s needs a map that is finished", call);
}

static ferry_status check_filling(const ferry_map *map, bool has_rest, const char *call,
                                  ferry_error *error)
{
    if (map == NULL || !has_rest) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s needs a map, and what is added to it", call);
    }
    return map->is_finished ? fy_fail(error, FERRY_ERR_MISUSE,
                                      "%s: the map is finished, so it stays as it is", call)
                            : FERRY_OK;
}

uint32_t fy_map_find(const fy_map_side *side, const char *name)
{
    fy_index_cursor c = fy_index_first(&side->names, fy_hash64(name, strlen(name)));
    while (c.value != FY_INDEX_NONE && strcmp(side->tensors[c.value].name, name) != 0) {
        fy_index_next(&side->names, &c);
    }
    return c.value;
}

static const char *side_name(const ferry_map *map, const fy_map_side *side)
{
    return side == &map->sources ? "source" : "target";
}

static ferry_status check_tensor(const ferry_map *map, const fy_map_side *side, const char *name,
                                 size_t length, ferry_dtype dtype, uint32_t n_dims,
                                 const uint64_t *shape, ferry_error *error)
{
    const char *what = side_name(map, side);
    uint64_t bits = dtype.element_bits;
    if (length == 0 || length >= FERRY_NAME_BYTES || !fy_is_utf8(name)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a %s of the map has a name of %zu bytes; 1 to %d of UTF-8 are possible",
                       what, length, FERRY_NAME_BYTES - 1);
    }
    if (n_dims > FERRY_MAX_DIMS || !fy_dtype_is_valid(dtype)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the %s \"%s\" has %u dimensions, of which %d are possible, and the type of "
                       "kind %u with %u bits",
                       what, name, n_dims, FERRY_MAX_DIMS, dtype.kind, dtype.element_bits);
    }
    for (uint32_t d = 0; d < n_dims; d++) {
        if (!fy_mul(bits, fy_max(shape[d], 1), &bits) || bits > INT64_MAX) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT, "the %s \"%s\" has more than 2^63 bits",
                           what, name);
        }
    }
    if (fy_map_find(side, name) != FY_NONE) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "the %s \"%s\" is in the map already", what,
                       name);
    }
    if (side->n == FY_MAX_TENSORS || side->name_bytes + length > MOST_NAME_BYTES) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "the %s \"%s\" is beyond the limit of %d tensors, or of %d bytes of names",
                       what, name, FY_MAX_TENSORS, MOST_NAME_BYTES);
    }
    return FERRY_OK;
}

ferry_status fy_map_add_tensor(ferry_map *map, fy_map_side *side, const char *name, size_t length,
                               ferry_dtype dtype, uint32_t n_dims, const uint64_t *shape,
                               ferry_error *error)
{
    FY_TRY(check_tensor(map, side, name, length, dtype, n_dims, shape, error));
    char *copy = fy_arena_copy(&map->arena, name, length);
    uint64_t *extents = fy_arena_alloc(&map->arena, n_dims, sizeof *extents);
    if (copy == NULL || extents == NULL ||
        !FY_RESERVE(side->tensors, side->capacity, side->n + 1u) ||
        !fy_index_insert(&side->names, fy_hash64(name, length), side->n)) {
        return fy_fail_no_memory(error, "the tensors of a map");
    }
    if (n_dims > 0) {
        memcpy(extents, shape, n_dims * sizeof *extents);
    }
    side->name_bytes += length;
    side->tensors[side->n++] = (fy_tensor){.name = copy,
                                           .shape = extents,
                                           .dtype = dtype,
                                           .n_dims = n_dims,
                                           .src = FY_NONE,
                                           .dst = FY_NONE};
    return FERRY_OK;
}

ferry_status ferry_map_add_source(ferry_map *map, const char *name, ferry_dtype dtype,
                                  uint32_t n_dims, const uint64_t *shape, ferry_error *error)
{
    FY_TRY(check_filling(map, name != NULL && (shape != NULL || n_dims == 0),
                         "ferry_map_add_source", error));
    return fy_map_add_tensor(map, &map->sources, name, strlen(name), dtype, n_dims, shape, error);
}

ferry_status ferry_map_add_target(ferry_map *map, const char *name, ferry_dtype dtype,
                                  uint32_t n_dims, const uint64_t *shape, ferry_error *error)
{
    FY_TRY(check_filling(map, name != NULL && (shape != NULL || n_dims == 0),
                         "ferry_map_add_target", error));
    return fy_map_add_tensor(map, &map->targets, name, strlen(name), dtype, n_dims, shape, error);
}

static ferry_status check_dtypes(const fy_tensor *target, const fy_tensor *source,
                                 ferry_error *error)
{
    char have[FERRY_DTYPE_TEXT_BYTES], want[FERRY_DTYPE_TEXT_BYTES];
    if (target->dtype.kind == source->dtype.kind &&
        target->dtype.element_bits == source->dtype.element_bits) {
        return FERRY_OK;
    }
    ferry_dtype_format(target->dtype, want, sizeof want);
    ferry_dtype_format(source->dtype, have, sizeof have);
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "the target \"%s\" (%s) has a box of \"%s\", which is %s; dtypes must agree",
                   target->name, want, source->name, have);
}

/* Whether a box lies inside a tensor; whose: "source" or "target". */
static ferry_status check_inside(const fy_tensor *target, const fy_tensor *whose, const char *what,
                                 const uint64_t *begin, const uint64_t *length, ferry_error *error)
{
    for (uint32_t d = 0; d < whose->n_dims; d++) {
        uint64_t end;
        if (!fy_add(begin[d], length[d], &end) || end > whose->shape[d]) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "the target \"%s\" has a box that reaches from %llu on, %llu long, on "
                           "dim %u of the %s \"%s\", whose extent is %llu",
                           target->name, (unsigned long long)begin[d],
                           (unsigned long long)length[d], d, what, whose->name,
                           (unsigned long long)whose->shape[d]);
        }
    }
    return FERRY_OK;
}

/* Gives the tensor with fewer dimensions leading ones. */
static ferry_status align_piece(const fy_tensor *target, const fy_tensor *source,
                                const uint64_t *begin, const uint64_t *shape, const uint64_t *at,
                                fy_feed *feed, ferry_error *error)
{
    uint32_t n = (uint32_t)fy_max(source->n_dims, target->n_dims);
    uint32_t src_pad = n - source->n_dims, dst_pad = n - target->n_dims;
    feed->n_dims = n;
    for (uint32_t d = 0; d < n; d++) {
        feed->begin[d] = d < src_pad ? 0 : begin[d - src_pad];
        feed->shape[d] = d < src_pad ? 1 : shape[d - src_pad];
        feed->at[d] = d < dst_pad ? 0 : at[d - dst_pad];
        if (d < dst_pad && feed->shape[d] != 1) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "the target \"%s\" has %u dimensions and its source \"%s\" %u, so a box "
                           "may be only 1 long on dim %u, not %llu",
                           target->name, target->n_dims, source->name, source->n_dims, d,
                           (unsigned long long)feed->shape[d]);
        }
    }
    return FERRY_OK;
}

ferry_status fy_map_add_piece(ferry_map *map, uint32_t target, uint32_t source,
                              const uint64_t *begin, const uint64_t *shape, const uint64_t *at,
                              ferry_error *error)
{
    const fy_tensor *to = &map->targets.tensors[target], *from = &map->sources.tensors[source];
    fy_map_piece piece = {.target = target, .feed = {.tensor = source}};
    FY_TRY(check_dtypes(to, from, error));
    FY_TRY(check_inside(to, from, "source", begin, shape, error));
    FY_TRY(align_piece(to, from, begin, shape, at, &piece.feed, error));
    fy_box filled = fy_feed_filled(&piece.feed, to->n_dims);
    FY_TRY(check_inside(to, to, "target", filled.begin, filled.length, error));
    if (map->n_pieces == FY_MAX_COMPOSED) {
        return fy_fail(error, FERRY_ERR_LIMIT, "the target \"%s\": a map may have %d boxes",
                       to->name, FY_MAX_COMPOSED);
    }
    FY_TRY(
        FY_GROW(map->pieces, map->piece_capacity, map->n_pieces + 1, "the boxes of a map", error));
    map->pieces[map->n_pieces++] = piece;
    return FERRY_OK;
}

bool fy_map_is_alike(const fy_tensor *a, const fy_tensor *b)
{
    return a->dtype.kind == b->dtype.kind && a->dtype.element_bits == b->dtype.element_bits &&
           a->n_dims == b->n_dims &&
           (a->n_dims == 0 || memcmp(a->shape, b->shape, a->n_dims * sizeof *a->shape) == 0);
}

ferry_status fy_map_add_whole(ferry_map *map, uint32_t target, uint32_t source, ferry_error *error)
{
    static const uint64_t zeros[FERRY_MAX_DIMS];
    const fy_tensor *to = &map->targets.tensors[target], *from = &map->sources.tensors[source];
    FY_TRY(check_dtypes(to, from, error));
    if (!fy_map_is_alike(to, from)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the target \"%s\" is no copy of \"%s\", whose shape differs", to->name,
                       from->name);
    }
    return fy_map_add_piece(map, target, source, zeros, from->shape, zeros, error);
}

static ferry_status find_both(const ferry_map *map, const char *target, const char *source,
                              uint32_t *target_out, uint32_t *source_out, ferry_error *error)
{
    *target_out = fy_map_find(&map->targets, target);
    *source_out = fy_map_find(&map->sources, source);
    if (*target_out == FY_NONE || *source_out == FY_NONE) {
        bool is_target = *target_out == FY_NONE;
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a box of the target \"%s\": there is no %s \"%s\"", target,
                       is_target ? "target" : "source", is_target ? target : source);
    }
    return FERRY_OK;
}

ferry_status ferry_map_add_box(ferry_map *map, const ferry_map_box *box, ferry_error *error)
{
    ferry_map_box own;
    uint32_t target, source;
    FY_TRY(check_filling(map, box != NULL, "ferry_map_add_box", error));
    FY_TRY(fy_take_map_box(box, &own, error));
    FY_TRY(fy_check_use(own.target != NULL && own.source != NULL,
                        "ferry_map_add_box needs the names of a target and a source", error));
    FY_TRY(find_both(map, own.target, own.source, &target, &source, error));
    return fy_map_add_piece(map, target, source, own.begin, own.shape, own.at, error);
}

ferry_status ferry_map_add_copy(ferry_map *map, const char *target, const char *source,
                                ferry_error *error)
{
    uint32_t to, from;
    FY_TRY(check_filling(map, target != NULL && source != NULL, "ferry_map_add_copy", error));
    FY_TRY(find_both(map, target, source, &to, &from, error));
    return fy_map_add_whole(map, to, from, error);
}

void fy_map_print_box(char *text, size_t text_bytes, const uint64_t *begin, const uint64_t *length,
                      uint32_t n_dims)
{
    size_t used = (size_t)snprintf(text, text_bytes, "[");
    for (uint32_t d = 0; d < n_dims && used < text_bytes; d++) {
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%llu:%llu", d == 0 ? "" : ", ",
                                 (unsigned long long)begin[d],
                                 (unsigned long long)(begin[d] + length[d]));
    }
    if (used < text_bytes) {
        snprintf(text + used, text_bytes - used, "]");
    }
}

/* What finishing makes, before the map takes it over. */
typedef struct finishing {
    ferry_map *map;
    fy_tensor *sources, *targets; /* in their order */
    uint32_t *source_to;          /* the place of each source in that order */
    uint32_t *order;              /* the target at each place */
    fy_feed *feeds;               /* of all targets, by their numbers */
    size_t *first;                /* [n_targets + 1] of each target */
    fy_box *boxes;                /* scratch: of one target */
    fy_index source_names, target_names;
    size_t n_boxes;
} finishing;

static void finishing_cleanup(finishing *f)
{
    fy_free(f->sources);
    fy_free(f->targets);
    fy_free(f->source_to);
    fy_free(f->order);
    fy_free(f->feeds);
    fy_free(f->first);
    fy_free(f->boxes);
    fy_index_cleanup(&f->source_names);
    fy_index_cleanup(&f->target_names);
}

/* The tensors of a side by their names: order_out[place] is a number as it was. */
static ferry_status order_side(const fy_map_side *side, uint32_t *order_out, ferry_error *error)
{
    fy_arena arena = {NULL};
    fy_map_name *names = fy_alloc(side->n, sizeof *names);
    ferry_status status = fy_check_memory(names != NULL, "the names of a map", error);
    FY_THEN(status, fy_map_names_sort(&arena, side->tensors, side->n, names, error));
    for (uint32_t i = 0; i < side->n && status == FERRY_OK; i++) {
        order_out[i] = (uint32_t)(names[i].tensor - side->tensors);
    }
    fy_free(names);
    fy_arena_cleanup(&arena);
    return status;
}

static ferry_status place_side(const fy_map_side *side, const uint32_t *order, fy_tensor *tensors,
                               fy_index *names, ferry_error *error)
{
    for (uint32_t i = 0; i < side->n; i++) {
        tensors[i] = side->tensors[order[i]];
        const char *name = tensors[i].name;
        FY_TRY(fy_check_memory(fy_index_insert(names, fy_hash64(name, strlen(name)), i),
                               "the names of a map", error));
    }
    return FERRY_OK;
}

/* Boxes by their targets, as they came; their sources by the new numbers. */
static void bucket_pieces(finishing *f)
{
    const ferry_map *map = f->map;
    uint32_t n = map->targets.n;
    memset(f->first, 0, (n + 1u) * sizeof *f->first);
    for (size_t i = 0; i < map->n_pieces; i++) {
        f->first[map->pieces[i].target + 1]++;
    }
    for (uint32_t t = 0; t < n; t++) {
        f->first[t + 1] += f->first[t];
    }
    for (size_t i = 0; i < map->n_pieces; i++) {
        fy_feed *feed = &f->feeds[f->first[map->pieces[i].target]++];
        *feed = map->pieces[i].feed;
        feed->tensor = f->source_to[feed->tensor];
    }
    for (uint32_t t = n; t > 0; t--) {
        f->first[t] = f->first[t - 1];
    }
    f->first[0] = 0;
}

static void print_feed(const finishing *f, const fy_feed *feed, char *text, size_t text_bytes)
{
    const fy_tensor *source = &f->sources[feed->tensor];
    uint32_t pad = feed->n_dims - source->n_dims;
    fy_map_print_box(text, text_bytes, feed->begin + pad, feed->shape + pad, source->n_dims);
}

static ferry_status fail_tiling(const finishing *f, const fy_tensor *target, const fy_feed *feeds,
                                const fy_tiling *tiling, ferry_error *error)
{
    char where[200], first[200], second[200];
    fy_map_print_box(where, sizeof where, tiling->where.begin, tiling->where.length,
                     target->n_dims);
    if (tiling->fault == FY_TILING_GAP) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "the target \"%s\" has no box for its %s",
                       target->name, where);
    }
    const fy_feed *a = &feeds[tiling->first], *b = &feeds[tiling->second];
    print_feed(f, a, first, sizeof first);
    print_feed(f, b, second, sizeof second);
    return fy_fail(
        error, FERRY_ERR_INVALID_INPUT,
        "the target \"%s\" has two boxes for its %s: %s of \"%.100s\" and %s of \"%.100s\"",
        target->name, where, first, f->sources[a->tensor].name, second, f->sources[b->tensor].name);
}

static ferry_status check_target(finishing *f, const fy_tensor *target, const fy_feed *feeds,
                                 size_t n, ferry_error *error)
{
    fy_tiling tiling;
    if (n == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "the target \"%s\" has no box",
                       target->name);
    }
    for (size_t i = 0; i < n; i++) {
        f->boxes[i] = fy_feed_filled(&feeds[i], target->n_dims);
    }
    FY_TRY(fy_boxes_check_tiling(f->boxes, n, target->shape, target->n_dims, &tiling, error));
    return tiling.fault == FY_TILING_NONE ? FERRY_OK
                                          : fail_tiling(f, target, feeds, &tiling, error);
}

static uint32_t dims_of(const void *tensors, uint32_t tensor)
{
    return ((const fy_tensor *)tensors)[tensor].n_dims;
}

static ferry_status join_targets(finishing *f, ferry_error *error)
{
    ferry_map *map = f->map;
    fy_composing composing = {.made = fy_alloc_zeroed(map->sources.n, sizeof(fy_made)),
                              .origin_dims = dims_of,
                              .context = f->sources,
                              .arena = &map->arena};
    ferry_status status = fy_check_memory(composing.made != NULL, "the boxes of a map", error);
    for (uint32_t i = 0; i < map->targets.n && status == FERRY_OK; i++) {
        fy_tensor *target = &f->targets[i];
        const fy_feed *feeds = &f->feeds[f->first[f->order[i]]];
        size_t n = f->first[f->order[i] + 1] - f->first[f->order[i]];
        status = check_target(f, target, feeds, n, error);
        FY_THEN(status, fy_compose_feeds(&composing, target->name, target->n_dims, feeds,
                                         (uint32_t)n, &target->feeds, &target->n_feeds, error));
        f->n_boxes += target->n_feeds;
    }
    fy_free(composing.made);
    return status;
}

static ferry_status prepare(finishing *f, ferry_error *error)
{
    ferry_map *map = f->map;
    uint32_t n = (uint32_t)fy_max(map->sources.n, map->targets.n);
    f->sources = fy_alloc(map->sources.n, sizeof *f->sources);
    f->targets = fy_alloc(map->targets.n, sizeof *f->targets);
    f->source_to = fy_alloc(map->sources.n, sizeof *f->source_to);
    f->order = fy_alloc(n, sizeof *f->order);
    f->feeds = fy_alloc(map->n_pieces, sizeof *f->feeds);
    f->boxes = fy_alloc(map->n_pieces, sizeof *f->boxes);
    f->first = fy_alloc(map->targets.n + 1u, sizeof *f->first);
    FY_TRY(fy_check_memory(f->sources != NULL && f->targets != NULL && f->source_to != NULL &&
                               f->order != NULL && f->feeds != NULL && f->boxes != NULL &&
                               f->first != NULL,
                           "a map", error));
    FY_TRY(order_side(&map->sources, f->order, error));
    FY_TRY(place_side(&map->sources, f->order, f->sources, &f->source_names, error));
    for (uint32_t i = 0; i < map->sources.n; i++) {
        f->source_to[f->order[i]] = i;
    }
    bucket_pieces(f);
    FY_TRY(order_side(&map->targets, f->order, error));
    return place_side(&map->targets, f->order, f->targets, &f->target_names, error);
}

/* The map gets what was made, and the cleanup what the map had. */
static void take_over(finishing *f)
{
    ferry_map *map = f->map;
    fy_tensor *sources = map->sources.tensors, *targets = map->targets.tensors;
    fy_index source_names = map->sources.names, target_names = map->targets.names;
    map->sources.tensors = f->sources;
    map->targets.tensors = f->targets;
    map->sources.names = f->source_names;
    map->targets.names = f->target_names;
    f->sources = sources;
    f->targets = targets;
    f->source_names = source_names;
    f->target_names = target_names;
    map->n_boxes = f->n_boxes;
    map->is_finished = true;
    fy_free(map->pieces);
    map->pieces = NULL;
    map->n_pieces = map->piece_capacity = 0;
}

ferry_status ferry_map_finish(ferry_map *map, ferry_error *error)
{
    finishing f = {.map = map};
    FY_TRY(fy_check_use(map != NULL, "ferry_map_finish needs a map", error));
    if (map->is_finished) {
        return FERRY_OK;
    }
    ferry_status status = prepare(&f, error);
    FY_THEN(status, join_targets(&f, error));
    if (status == FERRY_OK) {
        take_over(&f);
    }
    finishing_cleanup(&f);
    return status;
}

bool fy_map_is_whole(const ferry_map *map, const fy_tensor *target)
{
    const fy_feed *feed = &target->feeds[0];
    const fy_tensor *source = &map->sources.tensors[feed->tensor];
    return target->n_feeds == 1 && fy_map_is_alike(target, source);
}
