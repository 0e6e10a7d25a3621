/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/compose.h"

#include "base/checked.h"
#include "base/sort.h"

#include <string.h>

/*
 * A feed whose numbers are aligned to the right, so that feeds of any dimensions meet: what a
 * tensor lacks is a dimension of length 1. displacement is begin - at, modulo 2^64: elements of
 * pieces that have it and the tensor in common come from one place.
 */
typedef struct piece {
    uint32_t tensor;
    uint64_t displacement[FERRY_MAX_DIMS];
    fy_box at;
} piece;

typedef struct pieces {
    piece *items;
    size_t n, capacity;
} pieces;

void fy_made_cleanup(fy_made *made)
{
    fy_hulls_destroy(made->hulls);
    fy_free(made->filled);
    fy_free(made->numbers);
    made->hulls = NULL;
    made->filled = NULL;
    made->numbers = NULL;
}

fy_box fy_feed_filled(const fy_feed *feed, uint32_t n_dims)
{
    fy_box box = {{0}, {0}};
    uint32_t pad = feed->n_dims - n_dims;
    for (uint32_t d = 0; d < n_dims; d++) {
        box.begin[d] = feed->at[d + pad];
        box.length[d] = feed->shape[d + pad];
    }
    return box;
}

static uint64_t elements_of(const fy_feed *feed)
{
    return fy_box_volume(feed->shape, feed->n_dims);
}

static fy_box align_box(const uint64_t *begin, const uint64_t *length, uint32_t n_dims)
{
    fy_box box;
    uint32_t pad = FERRY_MAX_DIMS - n_dims;
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) {
        box.begin[d] = d < pad ? 0 : begin[d - pad];
        box.length[d] = d < pad ? 1 : length[d - pad];
    }
    return box;
}

static piece piece_of(const fy_feed *feed)
{
    piece p = {.tensor = feed->tensor, .at = align_box(feed->at, feed->shape, feed->n_dims)};
    fy_box from = align_box(feed->begin, feed->shape, feed->n_dims);
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) {
        p.displacement[d] = from.begin[d] - p.at.begin[d];
    }
    return p;
}

static ferry_status add_piece(pieces *all, const piece *p, const char *name, ferry_error *error)
{
    if (all->n == FY_MAX_UNJOINED) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "\"%s\" is composed of more than %d pieces, before those are joined that "
                       "form a box",
                       name, FY_MAX_UNJOINED);
    }
    FY_TRY(FY_GROW(all->items, all->capacity, all->n + 1, "the sources of a tensor", error));
    all->items[all->n++] = *p;
    return FERRY_OK;
}

static ferry_status index_made(fy_made *made, ferry_error *error)
{
    made->filled = fy_alloc(made->n_feeds, sizeof *made->filled);
    made->numbers = fy_alloc(made->n_feeds, sizeof *made->numbers);
    FY_TRY(fy_check_memory(made->filled != NULL && made->numbers != NULL, "the sources of a tensor",
                           error));
    made->n_filled = 0;
    for (uint32_t i = 0; i < made->n_feeds; i++) {
        if (elements_of(&made->feeds[i]) > 0) {
            made->numbers[made->n_filled] = i;
            made->filled[made->n_filled++] = piece_of(&made->feeds[i]).at;
        }
    }
    if (made->n_filled == 0) {
        return FERRY_OK;
    }
    made->hulls = fy_hulls_create(made->filled, made->n_filled, FERRY_MAX_DIMS);
    return fy_check_memory(made->hulls != NULL, "the sources of a tensor", error);
}

/* A box of a tensor in between, that is looked up among what fills it. */
typedef struct look_up {
    const fy_made *made;
    const piece *wanted; /* in the tensor that is composed; its displacement leads to area */
    fy_box area;         /* of the tensor in between */
    pieces *all;
    const char *name;
    ferry_status status;
    ferry_error *error;
} look_up;

static bool add_shared(void *context, size_t box)
{
    look_up *l = context;
    const fy_box *filled = &l->made->filled[box];
    piece found = piece_of(&l->made->feeds[l->made->numbers[box]]);
    piece p = {.tensor = found.tensor};
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) {
        uint64_t begin = fy_max(l->area.begin[d], filled->begin[d]);
        uint64_t end =
            fy_min(l->area.begin[d] + l->area.length[d], filled->begin[d] + filled->length[d]);
        p.at.begin[d] = begin - l->wanted->displacement[d];
        p.at.length[d] = end - begin;
        p.displacement[d] = found.displacement[d] + l->wanted->displacement[d];
    }
    l->status = add_piece(l->all, &p, l->name, l->error);
    return l->status == FERRY_OK;
}

static ferry_status resolve(fy_made *made, const piece *wanted, pieces *all, const char *name,
                            ferry_error *error)
{
    look_up l = {.made = made,
                 .wanted = wanted,
                 .area = wanted->at,
                 .all = all,
                 .name = name,
                 .status = FERRY_OK,
                 .error = error};
    if (made->filled == NULL) {
        FY_TRY(index_made(made, error));
    }
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) {
        l.area.begin[d] += wanted->displacement[d];
    }
    if (made->hulls != NULL) {
        fy_hulls_visit(made->hulls, &l.area, add_shared, &l);
    }
    return l.status;
}

static int compare_u64(uint64_t x, uint64_t y)
{
    return (x > y) - (x < y);
}

static int compare_origins(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    int order = compare_u64(x->tensor, y->tensor);
    for (uint32_t d = 0; order == 0 && d < FERRY_MAX_DIMS; d++) {
        order = compare_u64(x->displacement[d], y->displacement[d]);
    }
    return order;
}

static int compare_places(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) {
        if (x->at.begin[d] != y->at.begin[d]) {
            return compare_u64(x->at.begin[d], y->at.begin[d]);
        }
    }
    return 0;
}

/* Joins n pieces of one origin, and adds them to others. */
static ferry_status join_origin(const piece *group, size_t n, pieces *joined, const char *name,
                                ferry_error *error)
{
    fy_boxes boxes = {0};
    ferry_error inner;
    if (n == 1) {
        return add_piece(joined, group, name, error);
    }
    FY_TRY(FY_GROW(boxes.items, boxes.capacity, n, "the sources of a tensor", error));
    for (size_t i = 0; i < n; i++) {
        boxes.items[boxes.n++] = group[i].at;
    }
    ferry_status status = fy_boxes_join(&boxes, FERRY_MAX_DIMS, &inner);
    if (status == FERRY_ERR_LIMIT) {
        (void)fy_fail(error, status, "\"%s\" cannot be composed: %s", name, inner.message);
    } else {
        (void)fy_forward(error, status, &inner);
    }
    for (size_t i = 0; i < boxes.n && status == FERRY_OK; i++) {
        piece p = *group;
        p.at = boxes.items[i];
        status = add_piece(joined, &p, name, error);
    }
    fy_free(boxes.items);
    return status;
}

/* In canonical form: of each origin the joined boxes, all in the order of their places. */
static ferry_status join_pieces(pieces *all, const char *name, ferry_error *error)
{
    pieces joined = {0};
    ferry_status status = FERRY_OK;
    fy_sort(all->items, all->n, sizeof *all->items, compare_origins);
    for (size_t i = 0, end; i < all->n && status == FERRY_OK; i = end) {
        for (end = i + 1; end < all->n && compare_origins(&all->items[i], &all->items[end]) == 0;
             end++) {}
        status = join_origin(&all->items[i], end - i, &joined, name, error);
    }
    fy_free(all->items);
    *all = joined;
    fy_sort(all->items, all->n, sizeof *all->items, compare_places);
    return status;
}

static fy_feed feed_of(const piece *p, uint32_t n_dims)
{
    fy_feed feed = {.tensor = p->tensor, .n_dims = n_dims};
    uint32_t pad = FERRY_MAX_DIMS - n_dims;
    for (uint32_t d = 0; d < n_dims; d++) {
        feed.at[d] = p->at.begin[d + pad];
        feed.begin[d] = feed.at[d] + p->displacement[d + pad];
        feed.shape[d] = p->at.length[d + pad];
    }
    return feed;
}

/* Empty in every dimension that both tensors have. */
static fy_feed empty_feed(uint32_t n_dims, uint32_t tensor, uint32_t n_origin_dims)
{
    fy_feed feed = {.tensor = tensor, .n_dims = (uint32_t)fy_max(n_dims, n_origin_dims)};
    uint32_t n_shared = (uint32_t)fy_min(n_dims, n_origin_dims);
    for (uint32_t d = 0; d + n_shared < feed.n_dims && n_shared > 0; d++) {
        feed.shape[d] = 1;
    }
    return feed;
}

/* Which tensor a feed without elements comes from in the end. */
static uint32_t follow(const fy_composing *c, uint32_t tensor)
{
    return c->made[tensor].feeds == NULL ? tensor : c->made[tensor].feeds[0].tensor;
}

static ferry_status keep(fy_composing *c, const char *name, uint32_t n_dims, const pieces *all,
                         uint32_t empty_from, const fy_feed **feeds_out, uint32_t *n_out,
                         ferry_error *error)
{
    size_t n = all->n == 0 ? 1 : all->n;
    c->n_composed += n;
    if (n > FY_MAX_FEEDS || c->n_composed > FY_MAX_COMPOSED) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "\"%s\" is composed of %zu boxes; %d are possible, and %d for all tensors",
                       name, n, FY_MAX_FEEDS, FY_MAX_COMPOSED);
    }
    fy_feed *feeds = fy_arena_alloc(c->arena, n, sizeof *feeds);
    FY_TRY(fy_check_memory(feeds != NULL, "the sources of a tensor", error));
    if (all->n == 0) {
        feeds[0] = empty_feed(n_dims, empty_from, c->origin_dims(c->context, empty_from));
    }
    for (size_t i = 0; i < all->n; i++) {
        uint32_t from = c->origin_dims(c->context, all->items[i].tensor);
        feeds[i] = feed_of(&all->items[i], (uint32_t)fy_max(n_dims, from));
    }
    *feeds_out = feeds;
    *n_out = (uint32_t)n;
    return FERRY_OK;
}

ferry_status fy_compose_feeds(fy_composing *c, const char *name, uint32_t n_dims,
                              const fy_feed *feeds, uint32_t n_feeds, const fy_feed **feeds_out,
                              uint32_t *n_out, ferry_error *error)
{
    pieces all = {0};
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < n_feeds && status == FERRY_OK; i++) {
        piece p = piece_of(&feeds[i]);
        if (elements_of(&feeds[i]) == 0) {
            continue;
        }
        status = c->made[p.tensor].feeds == NULL
                     ? add_piece(&all, &p, name, error)
                     : resolve(&c->made[p.tensor], &p, &all, name, error);
    }
    FY_THEN(status, join_pieces(&all, name, error));
    FY_THEN(status,
            keep(c, name, n_dims, &all, follow(c, feeds[0].tensor), feeds_out, n_out, error));
    fy_free(all.items);
    return status;
}
