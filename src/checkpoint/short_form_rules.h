/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_SHORT_FORM_RULES_H
#define FY_CHECKPOINT_SHORT_FORM_RULES_H

#include "checkpoint/short_form_facts.h"

/* One model and one short form on their way to rules. */
typedef struct fy_short_model {
    const fy_model_tensor *tensors;
    size_t n_tensors;
    fy_short_mesh mesh;
    const fy_decoder *decoder;
    const fy_family *family;
    fy_facts facts;     /* filled down to ep */
    uint64_t n_layers;  /* by the names, set by fy_short_rules_make */
    uint64_t n_experts; /* the same */
} fy_short_model;

/* The pattern of a stage that places experts. */
void fy_short_expert_pattern(const fy_decoder *decoder, char *pattern, size_t pattern_bytes);

/* *rules_out and *unknown_out (the names that no row knows) are arrays, the caller's. */
ferry_status fy_short_rules_make(fy_short_model *model, json_t **rules_out, json_t **unknown_out,
                                 ferry_error *error);

#endif
