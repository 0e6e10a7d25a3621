/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_GROUP_TABLE_H
#define FY_MODEL_GROUP_TABLE_H

#include "base/index.h"

#include <ferry/metadata.h>

/* The groups that a parameter knows: tensor, expert, data and pipeline parallel, in this order. */
enum { FY_N_ROLES = 4 };

/* Distinct groups, borrowed, in the order in which they were first numbered. All zero is empty. */
typedef struct fy_group_table {
    ferry_group **groups;
    size_t n_groups;
    size_t capacity;
    fy_index index;
    /* Most parameters of a model name the groups of the one before them. */
    const ferry_group *last[FY_N_ROLES];
    uint32_t last_number[FY_N_ROLES];
} fy_group_table;

/* 1 + the number of each of a parameter's groups; 0 where it has none. False without memory. */
bool fy_group_table_number(fy_group_table *table, const ferry_param_metadata *metadata,
                           uint32_t numbers_out[FY_N_ROLES]);

/* The same for one group. */
bool fy_group_table_find(fy_group_table *table, ferry_group *group, uint32_t *number_out);

void fy_group_table_cleanup(fy_group_table *table);

#endif
