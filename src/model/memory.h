/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_MEMORY_H
#define FY_MODEL_MEMORY_H

#include "base/alloc.h"
#include "layout/box_tree.h"
#include "model/conversion.h"
#include "model/side.h"

/*
 * A side in boxes as a planner needs it: for each tensor, who has which boxes of it in which
 * parameters. Repeats are written out, and boxes that are one are joined, so that it does not
 * matter how a side was said. Ranks that are alike share everything.
 */

/* numbers: begin, shape and strides. */
typedef struct fy_memory_box {
    uint32_t parameter;
    uint32_t n_dims;
    uint64_t offset;
    const uint64_t *numbers;
} fy_memory_box;

/* The boxes of one tensor in the parameters of one list of ranks: by parameter, then by offset. */
typedef struct fy_stock {
    uint32_t ranks; /* the list */
    uint32_t n_boxes;
    uint32_t first_box;
    fy_box_tree *tree; /* where there are many */
} fy_stock;

/* Which of the lists that have a tensor each rank is in. Tensors of equal lists share one. */
typedef struct fy_spots {
    uint32_t n_lists;
    const uint32_t *lists;
    uint32_t n_ranks;
    uint32_t *ranks; /* ascending */
    uint32_t *kinds; /* of each rank: ranks of one kind are in the same lists */
    uint32_t n_kinds;
    uint32_t *kind_begin; /* [n_kinds + 1] into kind_lists */
    uint32_t *kind_lists; /* positions in lists */
} fy_spots;

typedef struct fy_memory_tensor {
    uint32_t first_stock; /* n_lists of its spots */
    uint32_t spots;       /* FY_NO_SPOTS: no rank has anything of it */
    bool is_single;       /* every rank that has something of it has one box */
} fy_memory_tensor;

#define FY_NO_SPOTS UINT32_MAX

/*
 * One way in which parameters want a tensor: as it is, or cast. A tensor that is wanted in several
 * ways counts as several: the first has the number of the tensor, the others follow behind those of
 * all tensors.
 */
typedef struct fy_memory_variant {
    uint32_t tensor;   /* of the spec */
    uint32_t next;     /* another of the same tensor; FY_NO_VARIANT: there is none */
    ferry_dtype dtype; /* of the tensor */
    fy_conversion_key key;
    const fy_conversion *conversion; /* NULL: as it is */
} fy_memory_variant;

#define FY_NO_VARIANT UINT32_MAX

typedef struct fy_memory {
    const ferry_side *side;    /* the spec's: sorted and checked */
    const uint32_t *tensor_of; /* the spec's numbers of the side's tensors */
    fy_hash128 digest;         /* of what each rank has where, however it was said */
    fy_hash128 *keys;          /* [n_variants] of which lists have which boxes, wherever they lie */
    fy_arena arena;
    uint32_t n_tensors;  /* of the spec */
    uint32_t n_variants; /* at least as many */
    fy_memory_variant
        *variants;             /* [n_variants]; NULL: no parameter casts, and each tensor has one */
    fy_memory_tensor *tensors; /* [n_variants] */
    fy_memory_box *boxes;
    size_t n_boxes;
    fy_stock *stocks;
    size_t n_stocks;
    fy_spots *spots;
    size_t n_spots, spots_capacity;
    fy_index spots_index;
    uint32_t n_ranks;     /* above the highest */
    uint32_t *rank_begin; /* [n_ranks + 1] into rank_lists: the lists that a rank is in */
    uint32_t *rank_lists; /* ascending for each rank */
    uint32_t *list_begin; /* [n_lists + 1] into list_parameters */
    uint32_t *list_parameters;
} fy_memory;

/* What a side's memory is made of: the numbers and names of its tensors are those of a spec. */
typedef struct fy_memory_of {
    const ferry_side *side;
    const char *role; /* for sentences */
    const uint32_t *tensor_of;
    uint32_t n_tensors;
    const char *(*name_of)(const void *context, uint32_t tensor);
    ferry_dtype (*dtype_of)(const void *context, uint32_t tensor);
    const void *context;
} fy_memory_of;

ferry_status fy_memory_create(const fy_memory_of *of, fy_memory **memory_out, ferry_error *error);
void fy_memory_destroy(fy_memory *memory); /* NULL is allowed */

/* The kind of a rank among those that have a tensor; UINT32_MAX: it has nothing of it. */
uint32_t fy_spots_kind(const fy_spots *spots, uint32_t rank);

/* The parameters of a rank, ascending; *numbers_inout grows. */
ferry_status fy_memory_parameters(const fy_memory *memory, uint32_t rank, uint32_t **numbers_inout,
                                  size_t *capacity, size_t *n_out, ferry_error *error);

/* Whether two ranks have the same parameters, in which they have the same. */
bool fy_memory_is_alike(const fy_memory *memory, uint32_t a, uint32_t b);

/* Sets digest and keys: the last step of making one. */
ferry_status fy_memory_make_digest(fy_memory *memory, const fy_memory_of *of, ferry_error *error);

/* Sets n_variants and variants: an early step. */
ferry_status fy_memory_make_variants(fy_memory *memory, const fy_memory_of *of, ferry_error *error);

/* The number of what a parameter has of a tensor of the spec. */
uint32_t fy_memory_find_variant(const fy_memory *memory, uint32_t tensor, uint32_t parameter);

static inline uint32_t fy_memory_tensor_of(const fy_memory *memory, uint32_t variant)
{
    return memory->variants == NULL ? variant : memory->variants[variant].tensor;
}

static inline const fy_conversion *fy_memory_conversion(const fy_memory *memory, uint32_t variant)
{
    return memory->variants == NULL ? NULL : memory->variants[variant].conversion;
}

static inline uint32_t fy_memory_next_variant(const fy_memory *memory, uint32_t variant)
{
    return memory->variants == NULL ? FY_NO_VARIANT : memory->variants[variant].next;
}

static inline const uint64_t *fy_memory_shape(const fy_memory_box *box)
{
    return box->numbers + box->n_dims;
}

static inline const uint64_t *fy_memory_strides(const fy_memory_box *box)
{
    return box->numbers + 2 * (size_t)box->n_dims;
}

#endif
