/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_BOXED_H
#define FY_CHECKPOINT_BOXED_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/nest.h"
#include "model/spec.h"

/*
 * A sharded checkpoint in boxes: each rank's file holds the rank's parameters, which are made of
 * boxes of the model's tensors. The side is a destination's, of a spec of those tensors: so all
 * that is known of sides in boxes holds here as well. Boxes stay as they are said: there may be
 * millions of repeats, and its memory is made where that is needed.
 */
typedef struct fy_boxed {
    ferry_spec *spec;       /* the tensors, and the side as its destination */
    const ferry_side *side; /* of the spec: sorted and checked */
    const char *name;       /* for sentences; the caller's */
    uint32_t *ranks;        /* ascending: whose files there are */
    uint32_t n_ranks;
} fy_boxed;

/* A tensor that boxes may be of. */
typedef struct fy_boxed_tensor {
    const char *name;
    ferry_dtype dtype;
    const uint64_t *shape; /* the caller's; it outlives what is made */
    uint32_t n_dims;
    bool is_consumed; /* others are made of it, and no box may be of it */
} fy_boxed_tensor;

/* "boxes" of a layout file, whose side has no other key. */
ferry_status fy_boxed_parse(const json_t *side, const char *name, ferry_side **side_out,
                            ferry_error *error);

/* Takes the side over, also on failure. tensors: [n], by number. */
ferry_status fy_boxed_create(ferry_side *side, const char *name, const fy_boxed_tensor *tensors,
                             size_t n, fy_boxed **boxed_out, ferry_error *error);
void fy_boxed_destroy(fy_boxed *boxed); /* NULL is allowed */

/* Makes ranks those of some parameters; are_wanted: [n_parameters], NULL: of all, as at first. */
ferry_status fy_boxed_list_ranks(fy_boxed *boxed, const bool *are_wanted, ferry_error *error);

/* The place of a rank among the files. */
uint32_t fy_boxed_place(const fy_boxed *boxed, uint32_t rank);

/* The number of the tensor that a box is of. */
static inline uint32_t fy_boxed_tensor_of(const fy_boxed *boxed, const fy_said_box *box)
{
    return boxed->spec->destination.tensor_of[box->tensor];
}

static inline const fy_rank_list *fy_boxed_holders(const fy_boxed *boxed, size_t parameter)
{
    return &boxed->side->lists[boxed->side->parameters[parameter].ranks];
}

/* Whether a rank has the parameter. */
bool fy_boxed_holds(const fy_boxed *boxed, size_t parameter, uint32_t rank);

uint64_t fy_boxed_bytes(const fy_boxed *boxed, size_t parameter);

/* Whether a box lies in memory in another order than in its tensor. */
bool fy_boxed_is_permuted(const fy_boxed *boxed);

/* Marks the tensors that boxes are of: [n] of fy_boxed_create, all false before. */
void fy_boxed_mark_tensors(const fy_boxed *boxed, bool *marked);

/* A copy of its side as that of a source, which has no fills. */
ferry_status fy_boxed_copy_source(const fy_boxed *boxed, ferry_side **side_out, ferry_error *error);

/* What the side says, written down: for records of what was asked for. */
ferry_status fy_boxed_digest(const fy_boxed *boxed, fy_hash128 *hash_out, ferry_error *error);

#endif
