/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_COMPOSE_H
#define FY_MODEL_COMPOSE_H

#include "layout/hulls.h"
#include "layout/join.h"
#include "model/problem.h"

/*
 * Feeds of tensors that are made of tensors that are made of others: one set of feeds, in which the
 * tensors in between no longer stand. Elements have one origin, whatever the way there, so feeds
 * are joined (layout/join.h) and put in the order of where they begin in their tensor: equal maps
 * have equal feeds.
 */

enum {
    /* The boxes that one tensor is assembled from. */
    FY_MAX_FEEDS = 1 << 14,
    /* Before they are joined. */
    FY_MAX_UNJOINED = 64 * FY_MAX_FEEDS,
    /* The boxes of all tensors that are composed. A small file can ask for many. */
    FY_MAX_COMPOSED = 1 << 22,
};

/* A tensor in between, and its feeds. */
typedef struct fy_made {
    const fy_feed *feeds; /* NULL: it is made of nothing else */
    uint32_t n_feeds;
    fy_hulls *hulls; /* of the boxes that the feeds fill; NULL: not needed yet */
    fy_box *filled;
    uint32_t *numbers; /* the feed of each of them, as empty ones are left out */
    size_t n_filled;
} fy_made;

/* What was made of them for looks; the feeds are others'. */
void fy_made_cleanup(fy_made *made);

/* The box that a feed fills, in the dimensions of its tensor. */
fy_box fy_feed_filled(const fy_feed *feed, uint32_t n_dims);

/* Dimensions of the tensors that feeds come from: for the number of theirs. */
typedef uint32_t (*fy_origin_dims_fn)(const void *context, uint32_t tensor);

typedef struct fy_composing {
    fy_made *made; /* by the tensor of a feed that is to be composed */
    fy_origin_dims_fn origin_dims;
    const void *context; /* of origin_dims */
    fy_arena *arena;     /* where feeds go */
    uint64_t n_composed; /* in all calls */
} fy_composing;

/*
 * Feeds of a tensor of n_dims dimensions, each resolved through made[its tensor] if that is made of
 * others, in their canonical form. A tensor without elements keeps one feed, an empty one, to say
 * that it has an origin. Sentences name the tensor.
 */
ferry_status fy_compose_feeds(fy_composing *c, const char *name, uint32_t n_dims,
                              const fy_feed *feeds, uint32_t n_feeds, const fy_feed **feeds_out,
                              uint32_t *n_out, ferry_error *error);

#endif
