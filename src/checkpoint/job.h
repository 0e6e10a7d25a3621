/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_JOB_H
#define FY_CHECKPOINT_JOB_H

#include "checkpoint/changes.h"
#include "checkpoint/checkpoint.h"
#include "model/spec.h"
#include "plan/route.h"

#include <jansson.h>

/* Which elements of a tensor a source has. */
typedef struct fy_cover fy_cover;

/* Where each rank of a side stands in its mesh, looked up by halves. */
typedef struct fy_places {
    const fy_side *side;
    uint32_t *by_rank; /* places, by ascending rank; NULL where ranks follow each other */
} fy_places;

/*
 * A checkpoint's tensors on their way to another layout: the spec of both sides, lowered, and its
 * routes. The planner's routes say which box of which source shard belongs where; nothing here or
 * above knows layouts. Tensors of the spec are those of the checkpoint, with the same numbers, then
 * new ones that are fed from boxes of them, then scales of what is quantized. The problem has
 * regions of a source in boxes behind them. Stays where it is once made: routes point into it.
 */
typedef struct fy_layout_job {
    const ferry_checkpoint *from;
    ferry_spec *spec;
    fy_problem problem;
    fy_routes routes;
    fy_places from_places;
    fy_places to_places;
    size_t *first_leg;  /* [n_tensors + 1]: the legs of a destination tensor */
    uint64_t *longest;  /* [n_splits] of the problem: the longest part */
    bool *is_wanted;    /* [n_tensors]: it is in the result */
    fy_change *changes; /* [n_tensors of the problem]: what becomes of each */
    /* [n_tensors of the problem] of those that the source has only a part of: see cover.h. NULL: it
     * has all of each. */
    fy_cover **covers;
} fy_layout_job;

/* Where a destination is: a side of a spec, and perhaps its own list of tensors. */
typedef struct fy_job_target {
    const char *name;                 /* for sentences */
    const json_t *side;               /* NULL: one rank that has everything */
    const json_t *tensors;            /* NULL: those of the source */
    bool lists_all;                   /* what tensors does not list is not in the result */
    const char *subset;               /* NULL: all */
    const fy_change_options *options; /* NULL: tensors stay what they are */
    const json_t *config;             /* the source's config.json, or NULL */
    bool may_lack; /* a source in boxes may have parts of tensors: who reads looks after that */
    bool is_compared; /* nothing is made of it */
} fy_job_target;

ferry_status fy_job_create(const ferry_checkpoint *from, const fy_job_target *target,
                           fy_layout_job *job, ferry_error *error);

/* The same in two steps: first the tensors and their changes, for who makes a side of them. */
ferry_status fy_job_begin(const ferry_checkpoint *from, const fy_job_target *target,
                          fy_layout_job *job, ferry_error *error);
/* A failure leaves the job for fy_job_cleanup. */
ferry_status fy_job_place(fy_layout_job *job, const fy_job_target *target, ferry_error *error);
void fy_job_cleanup(fy_layout_job *job);

/* The rank that stands at this place of a side's mesh: files are numbered by places. */
static inline uint32_t fy_side_rank_at(const fy_side *side, uint32_t place)
{
    return side->ranks == NULL ? side->first_rank + place : side->ranks[place];
}

/* The place of a rank that the side has. */
uint32_t fy_places_find(const fy_places *places, uint32_t rank);

/* The file that holds a source tensor's shard for a rank, and its entry there. */
ferry_status fy_job_locate(const fy_layout_job *job, uint32_t tensor, uint32_t rank,
                           uint32_t *file_out, const fy_st_tensor **entry_out, ferry_error *error);

/* The local shape, as files write it, of a cell of a placement: flat ones have one dimension. */
uint64_t fy_placement_shape(const fy_problem *problem, uint32_t placement, uint32_t cell,
                            uint32_t *n_dims_out, uint64_t shape_out[FERRY_MAX_DIMS]);

/* The global index of an element that is the given one in the memory of a cell's holders. */
void fy_placement_global(const fy_problem *problem, uint32_t placement, uint32_t cell,
                         uint64_t element, uint64_t index_out[FERRY_MAX_DIMS]);

/* The word for a tensor's dtype in files, and its own shape if it is opaque. */
const fy_ckpt_tensor *fy_job_model_tensor(const fy_layout_job *job, uint32_t tensor);

/* "[3, 5]" */
void fy_format_shape(const uint64_t *shape, uint32_t n_dims, char *text, size_t bytes);

/*
 * Whether every rank file of a sharded checkpoint lists exactly what its layout says that the rank
 * holds, in its shape.
 */
ferry_status fy_ckpt_check_shards(const ferry_checkpoint *checkpoint, ferry_error *error);

#endif
