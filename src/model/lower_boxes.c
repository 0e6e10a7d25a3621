/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Sides in boxes become placements. A tensor of which the boxes are a product of splits has one, as
 * on a mesh. Each region of any other becomes a tensor of the problem: at a destination one that is
 * fed from boxes of its sources, at a source one that others are fed from.
 */
#include "model/lower_boxes.h"

#include "base/checked.h"
#include "layout/gap.h"

#include <string.h>

typedef struct assembling {
    const ferry_spec *spec;
    fy_problem *problem;
    size_t tensor_capacity;
    fy_extent_table sides[2]; /* of the source and the destination, where they are in boxes */
    uint32_t *extents[2];     /* [variants]; FY_NONE: no rank has anything of it */
    uint32_t *first_source;   /* [the spec's tensors] of the tensors that its regions became */
    fy_feed *feeds;           /* scratch */
    size_t n_feeds, feed_capacity;
    uint32_t *found; /* scratch */
    size_t found_capacity;
} assembling;

static bool in_boxes(const assembling *a, uint32_t side)
{
    return a->problem->memory[side] != NULL;
}

/* Of a variant of a tensor; a source has one of each. NULL: no rank has anything of it. */
static const fy_extents *extents_of(const assembling *a, uint32_t side, uint32_t variant)
{
    /* A source may have been made before scales were known. */
    uint32_t number =
        variant < a->problem->memory[side]->n_variants ? a->extents[side][variant] : FY_NONE;
    return number == FY_NONE ? NULL : &a->sides[side].all[number];
}

/* A copy of a tensor of the spec behind all others. */
static ferry_status add_tensor(assembling *a, uint32_t like, const fy_fragment *fragment,
                               const uint64_t *shape, uint32_t *number_out, ferry_error *error)
{
    fy_problem *problem = a->problem;
    const fy_tensor *whole = &a->spec->tensors[like];
    fy_fragment *kept = fy_arena_alloc(&problem->arena, 1, sizeof *kept);
    uint64_t *own = fy_arena_alloc(&problem->arena, whole->n_dims + 1u, sizeof *own);
    if (kept == NULL || own == NULL ||
        !FY_RESERVE(problem->tensors, a->tensor_capacity, problem->n_tensors + 1u)) {
        return fy_fail_no_memory(error, "the regions of tensors");
    }
    *kept = *fragment;
    if (whole->n_dims > 0) {
        memcpy(own, shape, whole->n_dims * sizeof *own);
    }
    *number_out = problem->n_tensors;
    problem->tensors[problem->n_tensors++] = (fy_tensor){.name = whole->name,
                                                         .shape = own,
                                                         .dtype = whole->dtype,
                                                         .n_dims = whole->n_dims,
                                                         .src = FY_NONE,
                                                         .dst = FY_NONE,
                                                         .fragment = kept};
    return FERRY_OK;
}

static ferry_status find_extents(assembling *a, uint32_t side, ferry_error *error)
{
    fy_extent_table *table = &a->sides[side];
    uint32_t n = a->problem->memory[side]->n_variants, all = n;
    if (side == 0) { /* scales that a destination asks for came later, and are in nobody's memory */
        all = a->spec->n_tensors;
    }
    a->extents[side] = fy_alloc(all, sizeof *a->extents[side]);
    FY_TRY(fy_check_memory(a->extents[side] != NULL, "the tensors of a side", error));
    table->problem = a->problem;
    table->memory = a->problem->memory[side];
    table->is_destination = side == 1;
    for (uint32_t t = 0; t < n; t++) {
        FY_TRY(fy_extents_find(table, t, &a->extents[side][t], error));
    }
    for (uint32_t t = n; t < all; t++) {
        a->extents[side][t] = FY_NONE;
    }
    return FERRY_OK;
}

/* A tensor without elements has a place at the source, and nobody there: nothing is to be sent. */
static ferry_status place_empty(assembling *a, uint32_t t, ferry_error *error)
{
    fy_tensor *tensor = &a->problem->tensors[t];
    fy_layout layout = {.n_dims = tensor->n_dims};
    fy_holders *holders = NULL;
    uint32_t number = 0;
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        fy_split *split = NULL;
        layout.shape[d] = tensor->shape[d];
        FY_TRY(fy_split_whole(tensor->shape[d], &split, error));
        FY_TRY(fy_problem_add_split(a->problem, split, &layout.split[d], error));
    }
    FY_TRY(fy_holders_create(1, NULL, 0, &holders, error));
    FY_TRY(fy_problem_add_holders(a->problem, holders, &number, error));
    return fy_problem_add_placement(a->problem, &layout, number, NULL, &tensor->src, error);
}

static ferry_status place_sources(assembling *a, ferry_error *error)
{
    a->first_source = fy_alloc(a->spec->n_tensors, sizeof *a->first_source);
    FY_TRY(fy_check_memory(a->first_source != NULL, "the tensors of a side", error));
    FY_TRY(find_extents(a, 0, error));
    for (uint32_t t = 0; t < a->spec->n_tensors; t++) {
        const fy_extents *extents = extents_of(a, 0, t);
        a->first_source[t] = a->problem->n_tensors;
        if (a->spec->tensors[t].scales != NULL) {
            continue; /* no source has them */
        }
        if (extents == NULL) {
            const fy_tensor *whole = &a->spec->tensors[t];
            bool empty = fy_box_volume(whole->shape, whole->n_dims) == 0;
            FY_TRY(empty ? place_empty(a, t, error) : FERRY_OK);
            continue;
        }
        a->problem->tensors[t].src = extents->placement;
        for (uint32_t r = 0; r < extents->n_regions; r++) {
            const fy_extent *region = &extents->regions[r];
            fy_fragment fragment = {
                .whole = &a->spec->tensors[t], .number = t, .variant = t, .layer = 1};
            uint32_t number = 0;
            memcpy(fragment.at, region->box.begin, sizeof fragment.at);
            FY_TRY(add_tensor(a, t, &fragment, region->box.length, &number, error));
            a->problem->tensors[number].src = region->placement;
            a->problem->tensors[number].is_source_only = true;
        }
    }
    return FERRY_OK;
}

static ferry_status add_feed(assembling *a, const fy_feed *feed, ferry_error *error)
{
    FY_TRY(FY_GROW(a->feeds, a->feed_capacity, a->n_feeds + 1, "the sources of a tensor", error));
    a->feeds[a->n_feeds++] = *feed;
    return FERRY_OK;
}

/* The part of a feed that one region of its source has. */
static ferry_status add_from_region(assembling *a, const fy_feed *feed, uint32_t number,
                                    const fy_extent *region, ferry_error *error)
{
    uint32_t n_dims = a->spec->tensors[feed->tensor].n_dims, pad = feed->n_dims - n_dims;
    fy_feed part = *feed;
    part.tensor = number;
    if (!fy_box_meet(feed->begin + pad, feed->shape + pad, region->box.begin, region->box.length,
                     n_dims, part.begin + pad, part.shape + pad)) {
        return FERRY_OK;
    }
    for (uint32_t d = 0; d < n_dims; d++) {
        part.at[pad + d] += part.begin[pad + d] - feed->begin[pad + d];
        part.begin[pad + d] -= region->box.begin[d];
    }
    return add_feed(a, &part, error);
}

/* A feed in the words of the problem: from whatever its source became. */
static ferry_status add_from_source(assembling *a, const fy_feed *feed, ferry_error *error)
{
    const fy_extents *extents = in_boxes(a, 0) ? extents_of(a, 0, feed->tensor) : NULL;
    uint32_t pad = feed->n_dims - a->spec->tensors[feed->tensor].n_dims;
    size_t n = 0;
    if (!in_boxes(a, 0) || (extents != NULL && extents->placement != FY_NONE)) {
        return add_feed(a, feed, error);
    }
    if (extents == NULL) {
        return FERRY_OK; /* nobody has it: the tensor will lack it */
    }
    if (extents->tree != NULL) {
        FY_TRY(fy_box_tree_find(extents->tree, feed->begin + pad, feed->shape + pad, &a->found,
                                &a->found_capacity, &n, error));
    }
    n = extents->tree == NULL ? extents->n_regions : n;
    for (size_t i = 0; i < n; i++) {
        uint32_t r = extents->tree == NULL ? (uint32_t)i : a->found[i];
        FY_TRY(add_from_region(a, feed, a->first_source[feed->tensor] + r, &extents->regions[r],
                               error));
    }
    return FERRY_OK;
}

/* What a feed of the spec brings into a box of its tensor. */
static ferry_status add_clipped(assembling *a, uint32_t tensor, const fy_feed *feed,
                                const fy_box *box, ferry_error *error)
{
    uint32_t n_dims = a->spec->tensors[tensor].n_dims, pad = feed->n_dims - n_dims;
    fy_feed part = *feed;
    if (!fy_box_meet(feed->at + pad, feed->shape + pad, box->begin, box->length, n_dims,
                     part.at + pad, part.shape + pad)) {
        return FERRY_OK;
    }
    for (uint32_t d = 0; d < n_dims; d++) {
        part.begin[pad + d] += part.at[pad + d] - feed->at[pad + d];
        part.at[pad + d] -= box->begin[d];
    }
    return add_from_source(a, &part, error);
}

/* The feeds of a box of a tensor of the spec, in the coordinates of the box. */
static ferry_status list_feeds(assembling *a, uint32_t tensor, const fy_box *box,
                               const fy_box_tree *tree, ferry_error *error)
{
    const fy_tensor *whole = &a->spec->tensors[tensor];
    a->n_feeds = 0;
    if (whole->n_feeds == 0) {
        fy_feed self = {.tensor = tensor, .n_dims = whole->n_dims};
        memcpy(self.shape, whole->shape, whole->n_dims * sizeof *self.shape);
        return add_clipped(a, tensor, &self, box, error);
    }
    if (tree == NULL) {
        for (uint32_t i = 0; i < whole->n_feeds; i++) {
            FY_TRY(add_clipped(a, tensor, &whole->feeds[i], box, error));
        }
        return FERRY_OK;
    }
    uint32_t *found = NULL;
    size_t capacity = 0, n = 0;
    ferry_status status =
        fy_box_tree_find(tree, box->begin, box->length, &found, &capacity, &n, error);
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        status = add_clipped(a, tensor, &whole->feeds[found[i]], box, error);
    }
    fy_free(found);
    return status;
}

/* The first place of a box, in row-major order, that the feeds leave out. */
static ferry_status find_missing(const assembling *a, const fy_box *box, uint32_t n_dims,
                                 uint64_t place[FERRY_MAX_DIMS], ferry_error *error)
{
    fy_box *fed = fy_alloc(a->n_feeds, sizeof *fed);
    FY_TRY(fy_check_memory(fed != NULL, "the sources of a tensor", error));
    for (size_t i = 0; i < a->n_feeds; i++) {
        uint32_t pad = a->feeds[i].n_dims - n_dims;
        memcpy(fed[i].begin, a->feeds[i].at + pad, n_dims * sizeof *fed[i].begin);
        memcpy(fed[i].length, a->feeds[i].shape + pad, n_dims * sizeof *fed[i].length);
    }
    ferry_status status = fy_boxes_find_gap(fed, a->n_feeds, box->length, n_dims, place, error);
    fy_free(fed);
    return status;
}

/* Gives a tensor of the problem, a box of one of the spec, its feeds. */
static ferry_status feed_box(assembling *a, uint32_t number, uint32_t tensor, const fy_box *box,
                             const fy_box_tree *tree, ferry_error *error)
{
    FY_TRY(list_feeds(a, tensor, box, tree, error));
    fy_tensor *target = &a->problem->tensors[number];
    uint64_t volume = 0;
    fy_feed *feeds = fy_arena_alloc(&a->problem->arena, a->n_feeds + 1, sizeof *feeds);
    FY_TRY(fy_check_memory(feeds != NULL, "the sources of a tensor", error));
    for (size_t i = 0; i < a->n_feeds; i++) {
        volume += fy_box_volume(a->feeds[i].shape, a->feeds[i].n_dims);
        feeds[i] = a->feeds[i];
    }
    target->feeds = feeds;
    target->n_feeds = (uint32_t)a->n_feeds;
    if (volume == fy_box_volume(box->length, target->n_dims)) {
        return FERRY_OK;
    }
    uint64_t *missing = fy_arena_alloc(&a->problem->arena, FERRY_MAX_DIMS, sizeof *missing);
    FY_TRY(fy_check_memory(missing != NULL, "the sources of a tensor", error));
    FY_TRY(find_missing(a, box, target->n_dims, missing, error));
    for (uint32_t d = 0; d < target->n_dims; d++) {
        missing[d] += box->begin[d];
    }
    ((fy_fragment *)target->fragment)->missing = missing;
    return FERRY_OK;
}

/* Whether a tensor is fed as the spec says: from placements that the sources have. */
static bool is_fed_as_said(const assembling *a, uint32_t tensor)
{
    const fy_tensor *whole = &a->spec->tensors[tensor];
    if (!in_boxes(a, 0) || fy_box_volume(whole->shape, whole->n_dims) == 0) {
        return true;
    }
    for (uint32_t i = 0; i < whole->n_feeds; i++) {
        const fy_extents *extents = extents_of(a, 0, whole->feeds[i].tensor);
        if (extents == NULL || extents->placement == FY_NONE) {
            return false;
        }
    }
    const fy_extents *own = extents_of(a, 0, tensor);
    return whole->n_feeds > 0 || (own != NULL && own->placement != FY_NONE);
}

/* The whole tensor, with feeds that the spec does not say. */
static ferry_status feed_whole(assembling *a, uint32_t number, uint32_t tensor, ferry_error *error)
{
    const fy_tensor *whole = &a->spec->tensors[tensor];
    fy_box box = {{0}, {0}};
    if (a->problem->tensors[number].fragment == NULL) {
        fy_fragment *fragment = fy_arena_alloc(&a->problem->arena, 1, sizeof *fragment);
        FY_TRY(fy_check_memory(fragment != NULL, "the sources of a tensor", error));
        *fragment = (fy_fragment){.whole = whole, .number = tensor, .variant = tensor, .layer = 1};
        a->problem->tensors[number].fragment = fragment;
    }
    if (whole->n_dims > 0) {
        memcpy(box.length, whole->shape, whole->n_dims * sizeof *box.length);
    }
    return feed_box(a, number, tensor, &box, NULL, error);
}

/* An index of where the feeds of a tensor lie in it, for many regions. */
static ferry_status index_feeds(const assembling *a, uint32_t tensor, fy_box_tree **tree_out,
                                ferry_error *error)
{
    const fy_tensor *whole = &a->spec->tensors[tensor];
    size_t n_dims = whole->n_dims;
    uint64_t *begin = fy_alloc(whole->n_feeds * n_dims + 1, sizeof *begin);
    uint64_t *length = fy_alloc(whole->n_feeds * n_dims + 1, sizeof *length);
    ferry_status status =
        fy_check_memory(begin != NULL && length != NULL, "the sources of a tensor", error);
    for (size_t i = 0; status == FERRY_OK && i < whole->n_feeds; i++) {
        const fy_feed *feed = &whole->feeds[i];
        memcpy(begin + i * n_dims, feed->at + feed->n_dims - n_dims, n_dims * sizeof *begin);
        memcpy(length + i * n_dims, feed->shape + feed->n_dims - n_dims, n_dims * sizeof *length);
    }
    FY_THEN(status,
            fy_box_tree_create(begin, length, whole->n_feeds, (uint32_t)n_dims, tree_out, error));
    fy_free(begin);
    fy_free(length);
    return status;
}

enum { TREE_FROM = 8 };

/* Scales are made at the destination, not cast. */
const fy_conversion *fy_problem_conversion(const fy_problem *problem, uint32_t tensor,
                                           uint32_t variant)
{
    const fy_conversion *at_receiver =
        problem->at_receivers == NULL ? NULL : problem->at_receivers[variant];
    return problem->tensors[tensor].scales != NULL ? problem->tensors[tensor].conversion
           : at_receiver != NULL                   ? at_receiver
                                 : fy_memory_conversion(problem->memory[1], variant);
}

/* Of codes that receivers make the conversion says so. */
static ferry_status note_receivers(assembling *a, ferry_error *error)
{
    fy_problem *problem = a->problem;
    const fy_memory *memory = problem->memory[1];
    for (uint32_t v = 0; v < memory->n_variants; v++) {
        const fy_conversion *its = fy_memory_conversion(memory, v);
        if (its == NULL || its->is.kind != FERRY_CONVERSION_CODES ||
            problem->tensors[fy_memory_tensor_of(memory, v)].made_scales == 0) {
            continue;
        }
        if (problem->at_receivers == NULL) {
            size_t bytes = memory->n_variants * sizeof(fy_conversion *);
            problem->at_receivers = fy_arena_alloc(&problem->arena, 1, bytes);
            FY_TRY(fy_check_memory(problem->at_receivers != NULL, "the tensors of a side", error));
            memset(problem->at_receivers, 0, bytes);
        }
        fy_conversion *conversion = fy_arena_alloc(&problem->arena, 1, sizeof *conversion);
        FY_TRY(fy_check_memory(conversion != NULL, "the tensors of a side", error));
        *conversion = fy_blocks_at_receiver(its);
        problem->at_receivers[v] = conversion;
    }
    return FERRY_OK;
}

/* A copy of a tensor for a variant of it at the destination. */
static ferry_status add_variant(assembling *a, uint32_t tensor, fy_fragment *fragment,
                                uint32_t variant, const uint64_t *shape, uint32_t placement,
                                uint32_t *number_out, ferry_error *error)
{
    fragment->whole = &a->spec->tensors[tensor];
    fragment->number = tensor;
    fragment->variant = variant;
    FY_TRY(add_tensor(a, tensor, fragment, shape, number_out, error));
    fy_tensor *added = &a->problem->tensors[*number_out];
    added->dst = placement;
    added->conversion = fy_problem_conversion(a->problem, tensor, variant);
    added->scales = a->spec->tensors[tensor].scales;
    added->staged = a->spec->tensors[tensor].staged;
    added->made_scales = a->problem->tensors[tensor].made_scales;
    return FERRY_OK;
}

static ferry_status place_regions(assembling *a, uint32_t tensor, uint32_t variant,
                                  const fy_extents *extents, ferry_error *error)
{
    const fy_tensor *whole = &a->spec->tensors[tensor];
    fy_box_tree *tree = NULL;
    ferry_status status = FERRY_OK;
    if (whole->n_feeds > TREE_FROM && extents->n_regions > 1) {
        status = index_feeds(a, tensor, &tree, error);
    }
    for (uint32_t r = 0; r < extents->n_regions && status == FERRY_OK; r++) {
        const fy_extent *region = &extents->regions[r];
        fy_fragment fragment = {.layer = region->layer};
        uint32_t number = 0;
        memcpy(fragment.at, region->box.begin, sizeof fragment.at);
        status = add_variant(a, tensor, &fragment, variant, region->box.length, region->placement,
                             &number, error);
        FY_THEN(status, feed_box(a, number, tensor, &region->box, tree, error));
    }
    fy_box_tree_destroy(tree);
    return status;
}

/* Whether sources in boxes leave out nothing of a tensor. */
static ferry_status check_whole(assembling *a, uint32_t tensor, bool *is_whole_out,
                                ferry_error *error)
{
    const fy_tensor *whole = &a->spec->tensors[tensor];
    fy_box box = {{0}, {0}};
    uint64_t volume = 0;
    *is_whole_out = is_fed_as_said(a, tensor);
    if (*is_whole_out) {
        return FERRY_OK;
    }
    if (whole->n_dims > 0) {
        memcpy(box.length, whole->shape, whole->n_dims * sizeof *box.length);
    }
    FY_TRY(list_feeds(a, tensor, &box, NULL, error));
    for (size_t i = 0; i < a->n_feeds; i++) {
        volume += fy_box_volume(a->feeds[i].shape, a->feeds[i].n_dims);
    }
    *is_whole_out = volume == fy_box_volume(whole->shape, whole->n_dims);
    return FERRY_OK;
}

/* The whole tensor as often as ranks want it, the first time as itself if it is no variant. */
static ferry_status place_layers(assembling *a, uint32_t tensor, uint32_t variant,
                                 const fy_extents *extents, ferry_error *error)
{
    bool is_itself = variant == tensor;
    if (is_itself) {
        a->problem->tensors[tensor].dst = extents->placement;
        a->problem->tensors[tensor].conversion = fy_problem_conversion(a->problem, tensor, variant);
    }
    for (uint32_t layer = is_itself ? 2 : 1; layer <= extents->n_layers; layer++) {
        fy_fragment fragment = {.layer = layer};
        uint32_t number = 0;
        FY_TRY(add_variant(a, tensor, &fragment, variant, a->spec->tensors[tensor].shape,
                           extents->placement, &number, error));
        FY_TRY(feed_whole(a, number, tensor, error));
    }
    return FERRY_OK;
}

/*
 * What ranks want of a tensor is looked for region by region where the sources lack some of it: they
 * need not have what nobody wants.
 */
static ferry_status place_wanted(assembling *a, uint32_t tensor, uint32_t variant,
                                 const fy_extents *extents, ferry_error *error)
{
    bool is_whole = true;
    if (extents->placement == FY_NONE) {
        return place_regions(a, tensor, variant, extents, error);
    }
    FY_TRY(a->problem->may_lack ? FERRY_OK : check_whole(a, tensor, &is_whole, error));
    if (is_whole) {
        return place_layers(a, tensor, variant, extents, error);
    }
    fy_extents regions = {.placement = FY_NONE};
    ferry_status status = fy_extents_as_regions(&a->sides[1], variant, &regions, error);
    FY_THEN(status, place_regions(a, tensor, variant, &regions, error));
    fy_box_tree_destroy(regions.tree);
    return status;
}

/* The other ways in which ranks want it. */
static ferry_status place_variants(assembling *a, uint32_t tensor, ferry_error *error)
{
    const fy_memory *memory = a->problem->memory[1];
    uint32_t variant = fy_memory_next_variant(memory, tensor);
    for (; variant != FY_NO_VARIANT; variant = fy_memory_next_variant(memory, variant)) {
        const fy_extents *extents = extents_of(a, 1, variant);
        if (extents == NULL) {
            continue; /* its boxes are empty */
        }
        FY_TRY(place_wanted(a, tensor, variant, extents, error));
    }
    return FERRY_OK;
}

static ferry_status place_destination(assembling *a, uint32_t tensor, ferry_error *error)
{
    const fy_extents *extents = in_boxes(a, 1) ? extents_of(a, 1, tensor) : NULL;
    if (a->problem->tensors[tensor].is_made) {
        return FERRY_OK; /* nothing of it is sent */
    }
    FY_TRY(in_boxes(a, 1) ? place_variants(a, tensor, error) : FERRY_OK);
    FY_TRY(extents == NULL ? FERRY_OK : place_wanted(a, tensor, tensor, extents, error));
    if (a->problem->tensors[tensor].dst == FY_NONE || is_fed_as_said(a, tensor)) {
        return FERRY_OK;
    }
    return feed_whole(a, tensor, tensor, error);
}

static ferry_status assemble(assembling *a, ferry_error *error)
{
    a->problem->memory[0] = a->spec->source.memory;
    a->problem->memory[1] = a->spec->destination.memory;
    FY_TRY(in_boxes(a, 0) ? place_sources(a, error) : FERRY_OK);
    FY_TRY(in_boxes(a, 1) ? find_extents(a, 1, error) : FERRY_OK);
    FY_TRY(in_boxes(a, 1) ? note_receivers(a, error) : FERRY_OK);
    for (uint32_t t = 0; t < a->spec->n_tensors; t++) {
        FY_TRY(place_destination(a, t, error));
    }
    return FERRY_OK;
}

ferry_status fy_lower_boxes(const ferry_spec *spec, fy_problem *problem, ferry_error *error)
{
    assembling a = {.spec = spec, .problem = problem, .tensor_capacity = spec->n_tensors};
    if (spec->source.boxes == NULL && spec->destination.boxes == NULL) {
        return FERRY_OK;
    }
    ferry_status status = assemble(&a, error);
    fy_extent_table_cleanup(&a.sides[0]);
    fy_extent_table_cleanup(&a.sides[1]);
    fy_free(a.extents[0]);
    fy_free(a.extents[1]);
    fy_free(a.first_source);
    fy_free(a.feeds);
    fy_free(a.found);
    return status;
}
