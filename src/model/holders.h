/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_HOLDERS_H
#define FY_MODEL_HOLDERS_H

#include "base/hash.h"
#include "base/status.h"

#include <ferry/group.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Who holds what: a table from cells (combinations of parts, one per dimension, and of the flat
 * part) to ranks. Several ranks of one cell are replicas. Each entry is a slot; the slots of a cell
 * lie together, by ascending rank, so that a plan depends on who holds what and not on how that was
 * said. A rank has at most one slot. Shared by all tensors that are placed alike, whatever their
 * shapes.
 */
typedef struct fy_holders {
    uint32_t n_cells;
    uint32_t n_slots;
    uint32_t n_replicas;  /* of every cell; 0 when the cells differ */
    uint32_t *cell_begin; /* [n_cells + 1] into the slots */
    uint32_t *rank;       /* [n_slots] */
    uint32_t *cell;       /* [n_slots] */
    uint32_t *by_rank;    /* [n_slots] slots sorted by rank */
    uint32_t first_rank;
    uint32_t last_rank;
    uint64_t hash; /* of (rank, cell) of all slots, whatever their order */
} fy_holders;

#define FY_NO_SLOT UINT32_MAX

typedef struct fy_holder {
    uint32_t rank;
    uint32_t cell;
} fy_holder;

/*
 * Builds the table from entries in any order. A rank that comes twice is an error; a cell
 * without holders is allowed here.
 */
ferry_status fy_holders_create(uint32_t n_cells, const fy_holder *entries, size_t n_entries,
                               fy_holders **holders_out, ferry_error *error);
void fy_holders_destroy(fy_holders *holders);

/* The slot of a rank, or FY_NO_SLOT. */
uint32_t fy_holders_find(const fy_holders *holders, uint32_t rank);

static inline uint32_t fy_holders_cell_size(const fy_holders *holders, uint32_t cell)
{
    return holders->cell_begin[cell + 1] - holders->cell_begin[cell];
}

/* The place of a slot among the replicas of its cell. */
static inline uint32_t fy_holders_replica(const fy_holders *holders, uint32_t slot)
{
    return slot - holders->cell_begin[holders->cell[slot]];
}

#endif
