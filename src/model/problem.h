/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_PROBLEM_H
#define FY_MODEL_PROBLEM_H

#include "base/alloc.h"
#include "base/cluster.h"
#include "base/hash.h"
#include "base/index.h"
#include "base/status.h"
#include "layout/box.h"
#include "layout/split.h"
#include "model/blocks.h"
#include "model/conversion.h"
#include "model/holders.h"

#include <ferry/dtype.h>

/*
 * What a planner gets, whichever way it was described: tensors, and for each side of each tensor a
 * placement. Specs and per-rank metadata both lower to this. Splits, tables of holders and
 * placements are interned: the thousands of parameters that are placed alike share one, and numbers
 * stand for them.
 */
#define FY_NONE UINT32_MAX

/* The geometry of one side: one split per dimension, then perhaps a flat cut of the local shard. */
typedef struct fy_layout {
    uint32_t n_dims;
    uint32_t n_flat; /* parts of the flat cut; 0: not flat */
    uint64_t shape[FERRY_MAX_DIMS];
    uint32_t split[FERRY_MAX_DIMS]; /* numbers of splits */
    const uint64_t *flat_begin;     /* [n_flat + 1]; NULL: the chunk rule */
    bool is_cut; /* meant to be cut, be it into one part: the seed policy asks for that */
} fy_layout;

/*
 * The reference's way to choose a source replica needs groups that the geometry does not show. One
 * of these belongs to every source placement; see fy_seed_sender.
 */
typedef struct fy_seed fy_seed;

typedef struct fy_placement {
    fy_layout layout;
    uint32_t holders;
    fy_hash128 hash;     /* of what each rank holds, however it was described */
    const fy_seed *seed; /* explicit groups; NULL: replicas of the mesh are the DP groups */
} fy_placement;

/*
 * Box (begin, shape) of a source tensor fills the box of the same shape that starts at `at`. Where
 * one of the two tensors has fewer dimensions (stacked experts), it counts as having leading ones:
 * n_dims is the larger number, and all three arrays have that many.
 */
typedef struct fy_feed {
    uint32_t tensor;
    uint32_t n_dims;
    uint64_t begin[FERRY_MAX_DIMS];
    uint64_t at[FERRY_MAX_DIMS];
    uint64_t shape[FERRY_MAX_DIMS];
} fy_feed;

/*
 * Sides in boxes may cut a tensor into regions that no product of splits gives. Each is a tensor of
 * the problem then, of the same name, behind those of the spec.
 */
typedef struct fy_fragment {
    const struct fy_tensor *whole; /* as the spec has it */
    uint32_t number;               /* of that among the problem's tensors */
    uint32_t variant;            /* of a destination in boxes: see fy_memory_variant; else number */
    uint32_t layer;              /* from 1: a rank may want elements in several places */
    const uint64_t *missing;     /* an element that no source has, or NULL */
    uint64_t at[FERRY_MAX_DIMS]; /* where the region begins */
} fy_fragment;

/* A tensor that has the scales of another one's blocks. */
typedef struct fy_scales {
    uint32_t tensor; /* of the values: the same number in a spec and its problem */
    fy_said_blocks blocks;
    fy_conversion conversion;
    /* Of scales that come with codes of f4: these are those of the matrices, by the dimensions
     * before rows and columns, and not those of the blocks. */
    bool is_of_matrices;
} fy_scales;

typedef struct fy_tensor {
    const char *name;
    const uint64_t *shape;
    ferry_dtype dtype;
    uint32_t n_dims;
    uint32_t src;     /* placement, or FY_NONE: the source side does not have it */
    uint32_t dst;     /* placement, or FY_NONE */
    uint32_t n_feeds; /* 0: it is fed from itself */
    const fy_feed *feeds;
    bool is_source_only; /* the destination has no place for it, whatever its rules */
    bool is_middle;      /* others are made of it, and it of others: no side needs a rule for it */
    bool is_made;        /* whoever fills the destination makes it: no source has it */
    uint32_t tensor_scale; /* where codes of it are f4: 1 + the tensor with a scale of each of its
                              matrices; 0: none are */
    uint32_t made_scales;  /* receivers make its codes, and with them this tensor; 0: senders do.
                              Of scales: others that are made with the same codes; 0: none */
    const fy_fragment *fragment;     /* NULL: it is whole, and fed as the spec says */
    const fy_conversion *conversion; /* at the destination; NULL: it is wanted as it is */
    const fy_scales *scales;         /* it is made on the way; NULL: a source has it */
    /* Scales that a receiver needs beside codes, in memory of its own: of the tensor of codes.
     * NULL: it is none of these. */
    const fy_scales *staged;
} fy_tensor;

/* One rank's parameters in its own order; n is 0 where that is the order of tensors. */
typedef struct fy_order {
    uint32_t n;
    uint32_t *tensors; /* [n] in the rank's order */
    uint32_t *sorted;  /* [n] positions in tensors[], by ascending tensor */
} fy_order;

typedef struct fy_problem {
    fy_arena arena;
    fy_tensor *tensors;
    uint32_t n_tensors;
    uint32_t n_ranks; /* the world is 0 .. n_ranks - 1 */
    fy_cluster cluster;
    fy_split **splits;
    size_t n_splits, split_capacity;
    fy_holders **holders;
    size_t n_holders, holders_capacity;
    fy_placement *placements;
    size_t n_placements, placement_capacity;
    fy_index split_index;
    fy_index holders_index;
    fy_index placement_index;
    /* By rank, for those whose parameters come in another order than tensors; NULL: there are none.
     */
    fy_order *rank_order;
    /* Of the source and the destination, the spec's; NULL: the side is not in boxes. */
    const struct fy_memory *memory[2];
    /* By variants of a destination in boxes, those that receivers make; NULL: there are none. */
    const fy_conversion **at_receivers;
    /* Elements that no source has are left out of routes: who reads looks after that. */
    bool may_lack;
} fy_problem;

/* A tensor as it is said, and its number. */
static inline const fy_tensor *fy_problem_whole(const fy_problem *problem, uint32_t tensor)
{
    const fy_fragment *fragment = problem->tensors[tensor].fragment;
    return fragment == NULL ? &problem->tensors[tensor] : fragment->whole;
}

static inline uint32_t fy_problem_whole_number(const fy_problem *problem, uint32_t tensor)
{
    const fy_fragment *fragment = problem->tensors[tensor].fragment;
    return fragment == NULL ? tensor : fragment->number;
}

/* The tensor by whose scales its codes, or these scales, are made; FY_NONE: it takes none. */
static inline uint32_t fy_problem_tensor_scale(const fy_problem *problem, uint32_t tensor)
{
    const fy_tensor *t = &problem->tensors[tensor];
    bool is_f4 = t->conversion != NULL && t->conversion->is.code_dtype.kind == FERRY_F4;
    uint32_t values =
        t->scales != NULL ? t->scales->tensor : fy_problem_whole_number(problem, tensor);
    return is_f4 ? problem->tensors[values].tensor_scale - 1 : FY_NONE;
}

/* Whether whoever gets a tensor makes codes of it, so that it needs that one. */
static inline bool fy_problem_is_made_at_receiver(const fy_problem *problem, uint32_t tensor)
{
    const fy_conversion *conversion = problem->tensors[tensor].conversion;
    return conversion != NULL && conversion->is.kind == FERRY_CONVERSION_CODES &&
           conversion->is.at_receiver;
}

/* Its name, or NULL. */
static inline const char *fy_problem_tensor_scale_name(const fy_problem *problem, uint32_t tensor)
{
    uint32_t given = fy_problem_tensor_scale(problem, tensor);
    return given == FY_NONE ? NULL : problem->tensors[given].name;
}

/* What becomes of a tensor of a spec that a parameter of a destination in boxes wants so. */
const fy_conversion *fy_problem_conversion(const fy_problem *problem, uint32_t tensor,
                                           uint32_t variant);

/* The number under which the memory of a side in boxes has it. */
static inline uint32_t fy_problem_variant(const fy_problem *problem, uint32_t tensor)
{
    const fy_fragment *fragment = problem->tensors[tensor].fragment;
    return fragment == NULL ? tensor : fragment->variant;
}

/* What travels of it, and what becomes of it at the destination. */
static inline ferry_dtype fy_tensor_wire(const fy_tensor *tensor)
{
    return tensor->conversion == NULL ? tensor->dtype : tensor->conversion->wire;
}

/* Of codes that a sender makes, which rows are made together; 0: these are none. */
static inline uint64_t fy_tensor_block_rows(const fy_tensor *tensor)
{
    bool is_codes =
        tensor->conversion != NULL && tensor->conversion->is.kind == FERRY_CONVERSION_CODES;
    return is_codes && !tensor->conversion->is.at_receiver ? tensor->conversion->is.block[0] : 0;
}

static inline ferry_dtype fy_tensor_wanted(const fy_tensor *tensor)
{
    return tensor->conversion == NULL ? tensor->dtype : tensor->conversion->to;
}

void fy_problem_cleanup(fy_problem *problem);

/* Takes the split over, also on failure; the number of an equal one if there is one. */
ferry_status fy_problem_add_split(fy_problem *problem, fy_split *split, uint32_t *number_out,
                                  ferry_error *error);
ferry_status fy_problem_add_holders(fy_problem *problem, fy_holders *holders, uint32_t *number_out,
                                    ferry_error *error);
ferry_status fy_problem_add_placement(fy_problem *problem, const fy_layout *layout,
                                      uint32_t holders, const fy_seed *seed, uint32_t *number_out,
                                      ferry_error *error);

/* The same for a placement with its hash. */
ferry_status fy_problem_intern_placement(fy_problem *problem, const fy_placement *placement,
                                         uint32_t *number_out, ferry_error *error);

/*
 * Gives tensors that are placed alike one placement, however their splits number the parts, and
 * whatever the seed policy would ask for: the balanced choice is a function of who holds what.
 */
ferry_status fy_problem_unify(fy_problem *problem, ferry_error *error);

static inline const fy_split *fy_problem_split(const fy_problem *problem, const fy_layout *layout,
                                               uint32_t dim)
{
    return problem->splits[layout->split[dim]];
}

static inline const fy_holders *fy_problem_holders(const fy_problem *problem, uint32_t placement)
{
    return problem->holders[problem->placements[placement].holders];
}

/* The place of a tensor among a destination rank's parameters: comparable for one rank. */
uint32_t fy_problem_order(const fy_problem *problem, uint32_t rank, uint32_t tensor);

/* The part of each dimension, and the flat part last, of a cell of a placement. */
void fy_layout_parts(const fy_problem *problem, const fy_layout *layout, uint32_t cell,
                     uint32_t parts_out[FERRY_MAX_DIMS + 1]);

/* The shape of a cell's shard before flattening; returns its elements. */
uint64_t fy_layout_shard(const fy_problem *problem, const fy_layout *layout, const uint32_t *parts,
                         uint64_t shape_out[FERRY_MAX_DIMS]);

/* The range [begin, end) of the flat part in a shard of n_elements. */
void fy_layout_flat_range(const fy_layout *layout, uint32_t flat_part, uint64_t n_elements,
                          uint64_t *begin_out, uint64_t *end_out);

/* Bytes of n_elements; exact where they end on a byte. */
static inline uint64_t fy_bytes(uint64_t n_elements, uint32_t element_bits)
{
    return element_bits % 8 == 0 ? n_elements * (element_bits / 8) : n_elements * element_bits / 8;
}

#endif
