/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_RULE_INDEX_H
#define FY_MODEL_RULE_INDEX_H

#include "base/index.h"
#include "base/status.h"
#include "model/spec.h"

/*
 * The first rule of a side that fits a name. Patterns without wildcards are looked up, so that a
 * side with a rule for each of its tensors costs no more than one with a few patterns.
 */
typedef struct fy_rule_index {
    const fy_side *side;
    fy_index names;     /* rules that are names */
    uint32_t *patterns; /* the others, in order */
    uint32_t n_patterns;
} fy_rule_index;

ferry_status fy_rule_index_init(fy_rule_index *index, const fy_side *side, ferry_error *error);
void fy_rule_index_cleanup(fy_rule_index *index);
const fy_rule *fy_rule_index_find(const fy_rule_index *index, const char *name, size_t length);

#endif
