/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_AGREE_H
#define FY_TRANSPORT_AGREE_H

#include "base/status.h"
#include "world/world.h"

#include <stddef.h>

/*
 * How a step that all ranks take succeeds on all or fails on all; collective. A rank brings how it
 * fared, with its sentence in *own, and some bytes.
 */
typedef struct fy_vote {
    ferry_status status;
    const ferry_error *own; /* read only where status is not FERRY_OK */
    const void *bytes;      /* for the others; may be nothing */
    size_t n_bytes;
} fy_vote;

/* What the ranks brought; valid until the next collective call of the world. */
typedef struct fy_votes {
    const unsigned char *all;
    const size_t *lengths;
    uint32_t n_ranks;
} fy_votes;

/* Everybody's votes; an error is the world's. */
ferry_status fy_votes_gather(ferry_world *world, const fy_vote *vote, fy_votes *votes_out,
                             ferry_error *error);

/* FERRY_OK, or the status of the first rank that has another, with "rank N: " and its sentence. */
ferry_status fy_votes_status(const fy_votes *votes, ferry_error *error);

/*
 * The bytes of rank 0, 1, 2, ...: at begins as 0 and is moved on by each call. NULL behind the
 * last.
 */
const void *fy_votes_next(const fy_votes *votes, uint32_t rank, size_t *at_inout,
                          size_t *n_bytes_out);

/* Numbers of which all ranks take the least, or the largest. */
typedef enum fy_merge { FY_LEAST, FY_MOST } fy_merge;
typedef struct fy_merged {
    uint64_t value; /* this rank's, then everybody's */
    fy_merge how;
} fy_merged;

enum { FY_MOST_MERGED = 8 };

/* Collective; the same list on all ranks. An error is the world's. */
ferry_status fy_merge_numbers(ferry_world *world, fy_merged *numbers, size_t n, ferry_error *error);

/* All of it where there are no bytes: status and *error are this rank's, then everybody's. */
ferry_status fy_agree(ferry_world *world, ferry_status status, ferry_error *error);

#endif
