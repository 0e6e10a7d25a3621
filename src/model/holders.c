/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/holders.h"

#include "base/alloc.h"
#include "base/sort.h"

#include <string.h>

void fy_holders_destroy(fy_holders *holders)
{
    if (holders != NULL) {
        fy_free(holders->cell_begin);
        fy_free(holders->rank);
        fy_free(holders->cell);
        fy_free(holders->by_rank);
        fy_free(holders);
    }
}

static bool allocate(fy_holders *holders)
{
    holders->cell_begin =
        fy_alloc_zeroed((size_t)holders->n_cells + 1, sizeof *holders->cell_begin);
    holders->rank = fy_alloc(holders->n_slots, sizeof *holders->rank);
    holders->cell = fy_alloc(holders->n_slots, sizeof *holders->cell);
    holders->by_rank = fy_alloc(holders->n_slots, sizeof *holders->by_rank);
    return holders->cell_begin != NULL && holders->rank != NULL && holders->cell != NULL &&
           holders->by_rank != NULL;
}

/* A stable counting sort by cell of entries that ascend by rank: so do the replicas of each cell.
 */
static void place_entries(fy_holders *holders, const fy_holder *entries)
{
    uint32_t *begin = holders->cell_begin;
    for (uint32_t i = 0; i < holders->n_slots; i++) {
        begin[entries[i].cell + 1]++;
    }
    for (uint32_t c = 0; c < holders->n_cells; c++) {
        begin[c + 1] += begin[c];
    }
    for (uint32_t i = 0; i < holders->n_slots; i++) {
        uint32_t slot = begin[entries[i].cell]++;
        holders->rank[slot] = entries[i].rank;
        holders->cell[slot] = entries[i].cell;
        holders->by_rank[i] = slot;
        holders->hash += fy_hash_mix(entries[i].rank, entries[i].cell);
    }
    for (uint32_t c = holders->n_cells; c > 0; c--) {
        begin[c] = begin[c - 1]; /* placing moved each begin to its end */
    }
    begin[0] = 0;
}

static int compare_ranks(const void *a, const void *b)
{
    uint32_t x = ((const fy_holder *)a)->rank, y = ((const fy_holder *)b)->rank;
    return (x > y) - (x < y);
}

/* Entries of a mesh without a list of ranks ascend already. */
static bool is_sorted(const fy_holder *entries, size_t n_entries)
{
    for (size_t i = 1; i < n_entries; i++) {
        if (entries[i - 1].rank > entries[i].rank) {
            return false;
        }
    }
    return true;
}

static ferry_status check_distinct(const fy_holders *holders, ferry_error *error)
{
    for (uint32_t i = 1; i < holders->n_slots; i++) {
        uint32_t rank = holders->rank[holders->by_rank[i]];
        if (holders->rank[holders->by_rank[i - 1]] == rank) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT, "rank %u holds it twice", rank);
        }
    }
    return FERRY_OK;
}

static void note_shape(fy_holders *holders)
{
    holders->n_replicas = holders->n_cells == 0 ? 0 : fy_holders_cell_size(holders, 0);
    for (uint32_t c = 1; c < holders->n_cells; c++) {
        if (fy_holders_cell_size(holders, c) != holders->n_replicas) {
            holders->n_replicas = 0;
            break;
        }
    }
    if (holders->n_slots > 0) {
        holders->first_rank = holders->rank[holders->by_rank[0]];
        holders->last_rank = holders->rank[holders->by_rank[holders->n_slots - 1]];
    }
}

/* The entries, or a sorted copy that the caller frees. */
static const fy_holder *sorted_entries(const fy_holder *entries, size_t n_entries,
                                       fy_holder **copy_out)
{
    *copy_out = NULL;
    if (is_sorted(entries, n_entries)) {
        return entries;
    }
    *copy_out = fy_alloc(n_entries, sizeof **copy_out);
    if (*copy_out != NULL) {
        memcpy(*copy_out, entries, n_entries * sizeof **copy_out);
        fy_sort(*copy_out, n_entries, sizeof **copy_out, compare_ranks);
    }
    return *copy_out;
}

ferry_status fy_holders_create(uint32_t n_cells, const fy_holder *entries, size_t n_entries,
                               fy_holders **holders_out, ferry_error *error)
{
    fy_holders *holders = fy_alloc_zeroed(1, sizeof *holders);
    FY_TRY(fy_check_memory(holders != NULL, "a table of holders", error));
    holders->n_cells = n_cells;
    holders->n_slots = (uint32_t)n_entries;
    fy_holder *copy = NULL;
    ferry_status status = FERRY_OK;
    if (!allocate(holders)) {
        status = fy_fail_no_memory(error, "a table of holders");
        goto out;
    }
    const fy_holder *sorted = sorted_entries(entries, n_entries, &copy);
    if (sorted == NULL && n_entries > 0) {
        status = fy_fail_no_memory(error, "a table of holders");
        goto out;
    }
    place_entries(holders, sorted);
    status = check_distinct(holders, error);
    if (status != FERRY_OK) {
        goto out;
    }
    note_shape(holders);
    *holders_out = holders;
    holders = NULL;
out:
    fy_free(copy);
    fy_holders_destroy(holders);
    return status;
}

uint32_t fy_holders_find(const fy_holders *holders, uint32_t rank)
{
    if (holders->n_slots == 0 || rank < holders->first_rank || rank > holders->last_rank) {
        return FY_NO_SLOT;
    }
    if (holders->last_rank - holders->first_rank + 1 == holders->n_slots) {
        return holders->by_rank[rank - holders->first_rank]; /* no gaps */
    }
    FY_BISECT(uint32_t, low, 0, holders->n_slots, middle,
              holders->rank[holders->by_rank[middle]] < rank);
    uint32_t slot = low < holders->n_slots ? holders->by_rank[low] : FY_NO_SLOT;
    return slot != FY_NO_SLOT && holders->rank[slot] == rank ? slot : FY_NO_SLOT;
}
