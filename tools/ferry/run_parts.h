/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_RUN_PARTS_H
#define FERRY_TOOL_RUN_PARTS_H

#include "run_pattern.h"

#include <ferry/plan.h>
#include <ferry/shard.h>

#include <stddef.h>
#include <stdint.h>

/*
 * What tensors with a source are made of: of those that a rank has codes of, so that the values of
 * any of its blocks can be had. Element at + i of a tensor, with i below shape, is element begin +
 * i of a source, whose dimensions correspond from the last one on.
 */
typedef struct run_part {
    const char *tensor, *source; /* live as long as the plan */
    run_key key;                 /* of the source */
    uint32_t n_dims, source_n_dims;
    uint64_t at[FERRY_MAX_DIMS], shape[FERRY_MAX_DIMS];
    uint64_t begin[FERRY_MAX_DIMS], source_global[FERRY_MAX_DIMS];
} run_part;

/* A tensor, and its parts in the order of `at`, dimension by dimension. */
typedef struct run_parted {
    const char *tensor;
    run_key key;
    uint32_t n_dims;
    uint64_t global[FERRY_MAX_DIMS];
    const run_part *parts; /* NULL: it is there as it is */
    size_t n_parts;
    size_t last; /* the part that was found last: it, or the one behind it, is often the next */
} run_parted;

typedef struct run_parts {
    run_part *parts;
    run_parted *tensors; /* by their names, once it is settled */
    size_t n_parts, n_tensors;
    size_t parts_capacity, tensors_capacity;
    ferry_error *error;
} run_parts;

/* Visitors of what a destination rank has: shards of a mesh and parameters' boxes. context: the
 * run_parts, all zero at first but for its error. */
ferry_status run_parts_note_shard(void *context, const ferry_shard *shard);
ferry_status run_parts_note_box(void *context, const ferry_held_box *box);

/* After the last visit. Then keys are the caller's to set, of parts and of tensors. */
void run_parts_settle(run_parts *list);
void run_parts_free(run_parts *list);

/* NULL: the rank has no codes of it, or it is there as it is. */
run_parted *run_parts_find(const run_parts *list, const char *tensor);

/* Values [first, first + n) of the tensor, row-major, of so many bytes each. */
void run_parts_fill(run_parted *tensor, char *memory, uint64_t first, uint64_t n, uint64_t bytes);

#endif
