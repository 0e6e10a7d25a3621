/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_LOWER_BOXES_H
#define FY_MODEL_LOWER_BOXES_H

#include "model/memo.h"
#include "model/memory.h"
#include "model/spec.h"

/*
 * What a side in boxes holds of a tensor, without a look at where it lies. Where the boxes of all
 * ranks are a product of splits, there is one placement, as of a mesh. Else the tensor is cut into
 * regions, each of which some ranks have as a whole.
 */
typedef struct fy_extent {
    fy_box box;
    uint32_t placement; /* of a tensor of the box's shape */
    uint32_t layer;     /* from 1: ranks that want an element n times are in the first n */
} fy_extent;

typedef struct fy_extents {
    uint32_t placement; /* FY_NONE: there are regions, or nothing */
    uint32_t n_layers;  /* of the placement: every rank has all that it has so many times */
    fy_extent *regions; /* in an arena; by their begins, then by layer */
    uint32_t n_regions;
    fy_box_tree *tree; /* of the regions, where there are many */
} fy_extents;

/* The extents of tensors on one side. Tensors of the same shape and the same boxes share theirs. */
typedef struct fy_extent_table {
    fy_problem *problem;
    const fy_memory *memory;
    bool is_destination; /* elements may be wanted several times; at a source they are replicas */
    fy_memo memo;
    fy_extents *all;
    size_t n, capacity;
    fy_memo sets; /* of ranks that have a region, by the lists that they are in */
    struct fy_layered_ranks *layered;
    size_t n_layered, layered_capacity;
    fy_digest key;   /* scratch, as the rest is */
    uint64_t *begin; /* of boxes, one behind the other */
    uint64_t *length;
    size_t begin_capacity, length_capacity;
} fy_extent_table;

/* The tensor of which one is a variant: see fy_memory_variant. */
static inline const fy_tensor *fy_extents_tensor(const fy_extent_table *table, uint32_t variant)
{
    return &table->problem->tensors[fy_memory_tensor_of(table->memory, variant)];
}

/* One more for each number of a variant; FY_NONE where no rank has anything of it. */
ferry_status fy_extents_find(fy_extent_table *table, uint32_t tensor, uint32_t *number_out,
                             ferry_error *error);
void fy_extent_table_cleanup(fy_extent_table *table);

/* The steps of that. *placement_out is FY_NONE where the boxes are no product of splits. */
ferry_status fy_extents_as_product(fy_extent_table *table, uint32_t tensor, uint32_t *placement_out,
                                   uint32_t *n_layers_out, ferry_error *error);
ferry_status fy_extents_as_regions(fy_extent_table *table, uint32_t tensor, fy_extents *extents,
                                   ferry_error *error);

/*
 * Places the tensors of a spec on its sides in boxes: a problem in which the sides that are meshes
 * are placed already. Adds tensors for regions, and what they are fed from.
 */
ferry_status fy_lower_boxes(const ferry_spec *spec, fy_problem *problem, ferry_error *error);

#endif
