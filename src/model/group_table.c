/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/group_table.h"

#include "base/alloc.h"
#include "model/group.h"

bool fy_group_table_find(fy_group_table *table, ferry_group *group, uint32_t *number_out)
{
    fy_index_cursor c = fy_index_first(&table->index, fy_group_hash(group));
    for (; c.value != FY_INDEX_NONE; fy_index_next(&table->index, &c)) {
        if (fy_group_equal(table->groups[c.value], group)) {
            *number_out = c.value + 1;
            return true;
        }
    }
    if (!FY_RESERVE(table->groups, table->capacity, table->n_groups + 1) ||
        !fy_index_insert(&table->index, fy_group_hash(group), (uint32_t)table->n_groups)) {
        return false;
    }
    table->groups[table->n_groups++] = group;
    *number_out = (uint32_t)table->n_groups;
    return true;
}

bool fy_group_table_number(fy_group_table *table, const ferry_param_metadata *metadata,
                           uint32_t numbers_out[FY_N_ROLES])
{
    ferry_group *const groups[FY_N_ROLES] = {
        metadata->tensor_parallel_group_ranks, metadata->expert_parallel_group_ranks,
        metadata->data_parallel_group_ranks, metadata->pipeline_parallel_group_ranks};
    for (size_t i = 0; i < FY_N_ROLES; i++) {
        if (groups[i] == NULL) {
            numbers_out[i] = 0;
            continue;
        }
        if (groups[i] != table->last[i]) {
            if (!fy_group_table_find(table, groups[i], &table->last_number[i])) {
                return false;
            }
            table->last[i] = groups[i];
        }
        numbers_out[i] = table->last_number[i];
    }
    return true;
}

void fy_group_table_cleanup(fy_group_table *table)
{
    fy_free(table->groups);
    fy_index_cleanup(&table->index);
}
