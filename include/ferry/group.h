/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_GROUP_H
#define FERRY_GROUP_H

#include <ferry/export.h>
#include <ferry/status.h>

#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/* Ranks are below 2^24 everywhere in ferry. */
#define FERRY_MAX_RANKS 16777216u

/*
 * An ordered list of distinct ranks: a tensor-parallel group, say. Immutable and reference counted,
 * so thousands of parameters share one; retain and release are safe from any thread.
 */
typedef struct ferry_group ferry_group;

/*
 * Copies n_ranks ranks. An empty list is allowed. It is another object than "no group", which is
 * NULL, but means the same wherever a rank is chosen: nobody is in it.
 */
FERRY_API ferry_status ferry_group_create(const uint32_t *ranks, size_t n_ranks,
                                          ferry_group **group_out, ferry_error *error);

/* The ranks first, first + stride, ... (n_ranks of them), kept as three numbers. */
FERRY_API ferry_status ferry_group_create_range(uint32_t first, uint32_t stride, size_t n_ranks,
                                                ferry_group **group_out, ferry_error *error);

/* Takes one reference more, and returns the group. */
FERRY_API ferry_group *ferry_group_retain(ferry_group *group);

/* Gives one reference back; NULL is allowed. */
FERRY_API void ferry_group_destroy(ferry_group *group);

/* How many ranks the group has. */
FERRY_API size_t ferry_group_rank_count(const ferry_group *group);

/* The rank at index, which must be below the size: the caller has checked. */
FERRY_API uint32_t ferry_group_rank_at(const ferry_group *group, size_t index);

/*
 * The position of rank in the group (the reference's _get_rank_in_group). A rank that is no member
 * is FERRY_ERR_INVALID_INPUT, and the sentence names the rank and the group.
 */
FERRY_API ferry_status ferry_group_find_rank(const ferry_group *group, uint32_t rank,
                                             size_t *index_out, ferry_error *error);

FERRY_END_DECLS

#endif
