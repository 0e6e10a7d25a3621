/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_GROUP_H
#define FY_MODEL_GROUP_H

#include <ferry/group.h>

#include <stdbool.h>

/* Nobody can be chosen from a group without ranks: it counts as none. NULL is allowed. */
static inline ferry_group *fy_group_or_none(ferry_group *group)
{
    return ferry_group_size(group) == 0 ? NULL : group;
}

bool     fy_group_find(const ferry_group *group, uint32_t rank, size_t *index_out);
uint64_t fy_group_hash(const ferry_group *group); /* of the ranks, in order */
bool     fy_group_equal(const ferry_group *a, const ferry_group *b);
/* Lexicographic in the ranks, as tuples compare. */
int fy_group_compare(const ferry_group *a, const ferry_group *b);
/* "(0, 1, 2, ...)", cut to fit; text_bytes at least 32. */
void fy_group_format(const ferry_group *group, char *text, size_t text_bytes);

#endif
