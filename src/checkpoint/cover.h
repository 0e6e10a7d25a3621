/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_COVER_H
#define FY_CHECKPOINT_COVER_H

#include "checkpoint/boxed.h"
#include "checkpoint/job.h"

/*
 * A source in boxes may have only a part of a tensor. Of a job that may lack elements this says
 * which it has: what is not there reads as zeros, so who reads asks first.
 */

/* Of each tensor of a job with legs and routes; job->covers stays NULL where all are whole. */
ferry_status fy_covers_create(fy_layout_job *job, ferry_error *error);
void fy_covers_destroy(fy_layout_job *job);

/* Whether the source has only a part of a tensor. */
static inline bool fy_job_lacks(const fy_layout_job *job, uint32_t tensor)
{
    return job->covers != NULL && job->covers[tensor] != NULL;
}

/* Whether it lacks an element of a box of a tensor; the first one is *place_out. */
ferry_status fy_job_find_missing(const fy_layout_job *job, uint32_t tensor, const fy_box *box,
                                 bool *is_missing_out, uint64_t place_out[FERRY_MAX_DIMS],
                                 ferry_error *error);

/* A side in boxes that is to be made of a source. */
typedef struct fy_making_of {
    const fy_boxed *boxed;
    const bool *are_wanted;        /* [parameters] NULL: all are */
    const uint32_t *number_in_job; /* of the boxes' tensors; NULL: the same */
    const fy_layout_job *job;      /* what becomes of tensors */
    const fy_layout_job *plain;    /* the same tensors as they are: it says what is there */
    ferry_status status;           /* of a refusal */
} fy_making_of;

/* Refuses a parameter that needs an element which is not there, by itself or for a scale. */
ferry_status fy_making_check(const fy_making_of *making, ferry_error *error);

#endif
