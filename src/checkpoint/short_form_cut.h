/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_SHORT_FORM_CUT_H
#define FY_CHECKPOINT_SHORT_FORM_CUT_H

#include "checkpoint/short_form_facts.h"

/* The parameters of a module. */
typedef enum fy_param {
    FY_PARAM_WEIGHT,      /* or the tensor that a raw row names */
    FY_PARAM_BIAS,        /* one number for each row of the weight */
    FY_PARAM_SCALE,       /* one for each row, or one in all */
    FY_PARAM_BLOCK_SCALE, /* one for each block of rows and columns */
    FY_PARAM_OTHER,       /* one number in all, by what is known */
    FY_N_PARAMS
} fy_param;

/* By the last component of a name. */
fy_param fy_param_of(const char *component);

/*
 * *shard_out is the "shard" of a tensor's rule, the caller's; NULL where every rank has all of it.
 * *known_out is false where the way says nothing of such a tensor.
 */
ferry_status fy_short_cut(const fy_facts *facts, fy_way way, fy_param param,
                          const fy_model_tensor *tensor, json_t **shard_out, bool *known_out,
                          ferry_error *error);

#endif
