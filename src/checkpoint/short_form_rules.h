/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_SHORT_FORM_RULES_H
#define FY_CHECKPOINT_SHORT_FORM_RULES_H

#include "checkpoint/short_form_facts.h"

/* How experts that are tensors by themselves are numbered: NAME.experts.5.*, and Megatron-Core's;
 * in layers, and in predictors of the decoder. */
enum { FY_N_EXPERT_TAILS = 6, FY_N_EXPERT_PATTERNS = 2 * FY_N_EXPERT_TAILS };

/* One model and one short form on their way to rules. */
typedef struct fy_short_model {
    const fy_model_tensor *tensors;
    size_t n_tensors;
    fy_short_mesh mesh;
    const fy_decoder *decoder;
    const fy_family *family;
    fy_facts facts;                           /* filled down to ep */
    uint64_t n_layers;                        /* by the names, set by fy_short_rules_make */
    uint64_t n_experts[FY_N_EXPERT_PATTERNS]; /* the same, by the pattern that they have */
} fy_short_model;

/* The pattern of a stage that places experts; "" where the decoder has no predictors. */
void fy_short_expert_pattern(const fy_decoder *decoder, size_t number, char *pattern,
                             size_t pattern_bytes);

/* *rules_out and *unknown_out (the names that no row knows) are arrays, the caller's. */
ferry_status fy_short_rules_make(fy_short_model *model, json_t **rules_out, json_t **unknown_out,
                                 ferry_error *error);

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
