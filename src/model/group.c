/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/group.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "base/sort.h"
#include "base/status.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ferry_group {
    _Atomic uint32_t references;
    size_t           n_ranks;
    uint32_t         first;  /* of a range */
    uint32_t         stride; /* 0: a list */
    uint64_t         hash;
    uint32_t         ranks[];
};

static uint64_t hash_ranks(const ferry_group *group)
{
    uint64_t hash = group->n_ranks;
    for (size_t i = 0; i < group->n_ranks; i++) {
        hash = fy_hash_mix(hash, ferry_group_rank_at(group, i));
    }
    return hash;
}

static int compare_ranks(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static ferry_status check_distinct(const uint32_t *ranks, size_t n_ranks, ferry_error *error)
{
    uint32_t *sorted = fy_alloc(n_ranks, sizeof *sorted);
    if (sorted == NULL) {
        return fy_fail_no_memory(error, "a group");
    }
    ferry_status status = FERRY_OK;
    memcpy(sorted, ranks, n_ranks * sizeof *sorted);
    fy_sort(sorted, n_ranks, sizeof *sorted, compare_ranks);
    for (size_t i = 0; i < n_ranks && status == FERRY_OK; i++) {
        if (sorted[i] >= FERRY_MAX_RANKS) {
            status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                             "group has rank %u; ranks are below %u", sorted[i], FERRY_MAX_RANKS);
        } else if (i > 0 && sorted[i] == sorted[i - 1]) {
            status = fy_fail(error, FERRY_ERR_INVALID_INPUT, "group has rank %u twice", sorted[i]);
        }
    }
    fy_free(sorted);
    return status;
}

ferry_status ferry_group_create(const uint32_t *ranks, size_t n_ranks, ferry_group **group_out,
                                ferry_error *error)
{
    if (group_out == NULL || (ranks == NULL && n_ranks > 0)) {
        return fy_fail(error, FERRY_ERR_MISUSE, "ferry_group_create needs ranks and a place");
    }
    if (n_ranks > FERRY_MAX_RANKS) {
        return fy_fail(error, FERRY_ERR_LIMIT, "a group of %zu ranks; ranks are below %u", n_ranks,
                       FERRY_MAX_RANKS);
    }
    if (n_ranks > 0) {
        ferry_status status = check_distinct(ranks, n_ranks, error);
        if (status != FERRY_OK) {
            return status;
        }
    }
    ferry_group *group = fy_alloc(1, sizeof *group + n_ranks * sizeof *ranks);
    if (group == NULL) {
        return fy_fail_no_memory(error, "a group");
    }
    *group = (ferry_group){.n_ranks = n_ranks};
    atomic_init(&group->references, 1);
    if (n_ranks > 0) {
        memcpy(group->ranks, ranks, n_ranks * sizeof *ranks);
    }
    group->hash = hash_ranks(group);
    *group_out  = group;
    return FERRY_OK;
}

ferry_status ferry_group_create_range(uint32_t first, uint32_t stride, size_t n_ranks,
                                      ferry_group **group_out, ferry_error *error)
{
    if (group_out == NULL || (stride == 0 && n_ranks > 1)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_group_create_range needs a stride of at least 1 and a place");
    }
    if (n_ranks > FERRY_MAX_RANKS ||
        (n_ranks > 0 && first + (uint64_t)(n_ranks - 1) * stride >= FERRY_MAX_RANKS)) {
        return fy_fail(error, FERRY_ERR_LIMIT, "%zu ranks from %u by %u; ranks are below %u",
                       n_ranks, first, stride, FERRY_MAX_RANKS);
    }
    ferry_group *group = fy_alloc(1, sizeof *group);
    if (group == NULL) {
        return fy_fail_no_memory(error, "a group");
    }
    *group = (ferry_group){.n_ranks = n_ranks, .first = first, .stride = stride == 0 ? 1 : stride};
    atomic_init(&group->references, 1);
    group->hash = hash_ranks(group);
    *group_out  = group;
    return FERRY_OK;
}

ferry_group *ferry_group_retain(ferry_group *group)
{
    if (group != NULL) {
        atomic_fetch_add_explicit(&group->references, 1, memory_order_relaxed);
    }
    return group;
}

void ferry_group_release(ferry_group *group)
{
    /* Acquire-release: the last holder must see every write of the others before it frees. */
    if (group != NULL &&
        atomic_fetch_sub_explicit(&group->references, 1, memory_order_acq_rel) == 1) {
        fy_free(group);
    }
}

size_t ferry_group_size(const ferry_group *group)
{
    return group == NULL ? 0 : group->n_ranks;
}

uint32_t ferry_group_rank_at(const ferry_group *group, size_t index)
{
    if (group->stride != 0) {
        return group->first + (uint32_t)index * group->stride;
    }
    return group->ranks[index];
}

bool fy_group_find(const ferry_group *group, uint32_t rank, size_t *index_out)
{
    if (group->stride != 0) {
        uint32_t offset = rank - group->first;
        bool     member = rank >= group->first && offset % group->stride == 0 &&
                      offset / group->stride < group->n_ranks;
        if (member) {
            *index_out = offset / group->stride;
        }
        return member;
    }
    for (size_t i = 0; i < group->n_ranks; i++) {
        if (group->ranks[i] == rank) {
            *index_out = i;
            return true;
        }
    }
    return false;
}

uint64_t fy_group_hash(const ferry_group *group)
{
    return group->hash;
}

int fy_group_compare(const ferry_group *a, const ferry_group *b)
{
    for (size_t i = 0; a != b && i < a->n_ranks && i < b->n_ranks; i++) {
        uint32_t x = ferry_group_rank_at(a, i), y = ferry_group_rank_at(b, i);
        if (x != y) {
            return x < y ? -1 : 1;
        }
    }
    return (a->n_ranks > b->n_ranks) - (a->n_ranks < b->n_ranks);
}

bool fy_group_equal(const ferry_group *a, const ferry_group *b)
{
    return a == b ||
           (a->n_ranks == b->n_ranks && a->hash == b->hash && fy_group_compare(a, b) == 0);
}

void fy_group_format(const ferry_group *group, char *text, size_t text_bytes)
{
    size_t used = (size_t)snprintf(text, text_bytes, "(");
    for (size_t i = 0; i < group->n_ranks; i++) {
        if (used + 24 > text_bytes) {
            snprintf(text + used, text_bytes - used, ", ...");
            used = strlen(text);
            break;
        }
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%u", i == 0 ? "" : ", ",
                                 ferry_group_rank_at(group, i));
    }
    snprintf(text + used, text_bytes - used, ")");
}

ferry_status ferry_rank_in_group(uint32_t rank, const ferry_group *group, size_t *index_out,
                                 ferry_error *error)
{
    if (group == NULL || index_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "ferry_rank_in_group needs a group and a place");
    }
    if (!fy_group_find(group, rank, index_out)) {
        char text[160];
        fy_group_format(group, text, sizeof text);
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "rank %u is no member of the group %s", rank,
                       text);
    }
    return FERRY_OK;
}
