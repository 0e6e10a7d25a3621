/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_SHORT_FORM_RULES_H
#define FY_CHECKPOINT_SHORT_FORM_RULES_H

#include "checkpoint/short_form_facts.h"

/* How experts that are tensors by themselves are numbered: NAME.experts.5.*, and Megatron-Core's;
 * in layers, and in predictors of the decoder. */
enum { FY_N_EXPERT_TAILS = 6, FY_N_EXPERT_PATTERNS = 2 * FY_N_EXPERT_TAILS };

/* What a short form cannot cut between blocks that share a scale. */
typedef struct fy_blocked {
    const fy_model_tensor *tensor; /* NULL: nothing */
    uint32_t dim;
    uint64_t extent; /* of it, or of a matrix in it that is cut by itself */
    uint64_t parts;
    uint64_t block;
    bool leaves_out; /* parts would have none of it; else they would begin inside blocks */
    bool is_turned;  /* codes of experts in turns, which nothing makes values of */
} fy_blocked;

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
    fy_blocked blocked;
} fy_short_model;

/* The pattern of a stage that places experts; "" where the decoder has no predictors. */
void fy_short_expert_pattern(const fy_decoder *decoder, size_t number, char *pattern,
                             size_t pattern_bytes);

/*
 * *rules_out and *unknown_out (the names that no row knows) are arrays, the caller's. Where
 * model->blocked is set the sentence is left to the caller, who can say what else would do.
 */
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

/* A tensor that is to be cut. */
typedef struct fy_to_cut {
    fy_way way;
    fy_param param;
    const fy_model_tensor *tensor;
    const fy_model_tensor
        *codes; /* itself, if scales are made for it, or what it scales, or NULL */
} fy_to_cut;

/*
 * *shard_out is the "shard" of a tensor's rule, the caller's; NULL where every rank has all of it.
 * *known_out is false where the way says nothing of such a tensor. *blocked_out is set where blocks
 * alone are in the way; then there is no sentence.
 */
ferry_status fy_short_cut(const fy_facts *facts, const fy_to_cut *to_cut, json_t **shard_out,
                          bool *known_out, fy_blocked *blocked_out, ferry_error *error);

/* Whether a parameter of a module has a number for each block of rows and columns. */
bool fy_short_is_block_scale(const fy_facts *facts, fy_param param, const fy_model_tensor *tensor);

#endif
