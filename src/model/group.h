/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_GROUP_H
#define FY_MODEL_GROUP_H

#include <ferry/group.h>

#include <stdbool.h>
#include <stdint.h>

/* The ranks first, first + stride, ..., n of them; the stride of one rank means nothing. */
typedef struct fy_group_run {
    uint32_t first;
    uint32_t n;
    int64_t stride;
} fy_group_run;

/*
 * The ranks of all runs, one behind the other. Runs may come from anywhere: one that is empty,
 * leaves the ranks there can be or meets another is FERRY_ERR_INVALID_INPUT.
 */
ferry_status fy_group_create_runs(const fy_group_run *runs, size_t n_runs, ferry_group **group_out,
                                  ferry_error *error);

/* Equal groups have equal runs, however they were made. */
size_t fy_group_run_count(const ferry_group *group);
fy_group_run fy_group_run_at(const ferry_group *group, size_t index);

/* Nobody can be chosen from a group without ranks: it counts as none. NULL is allowed. */
static inline ferry_group *fy_group_or_none(ferry_group *group)
{
    return ferry_group_rank_count(group) == 0 ? NULL : group;
}

bool fy_group_find(const ferry_group *group, uint32_t rank, size_t *index_out);
uint64_t fy_group_hash(const ferry_group *group); /* of the ranks, in order */
bool fy_group_equal(const ferry_group *a, const ferry_group *b);
/* Lexicographic in the ranks, as tuples compare. */
int fy_group_compare(const ferry_group *a, const ferry_group *b);
/* "(0, 1, 2, ...)", cut to fit; text_bytes at least 32. */
void fy_group_format(const ferry_group *group, char *text, size_t text_bytes);

#endif
