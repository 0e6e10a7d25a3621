/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_INSPECT_H
#define FERRY_TOOL_INSPECT_H

#include <ferry/checkpoint.h>
#include <ferry/plan.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- what `ferry inspect` was asked for ---- */

typedef struct inspect_request {
    const char *path;
    bool json;
    bool tensors;
    bool checksums;
    bool stats;
    const char *subset; /* as in ferry_plan_options; NULL: all tensors */
    uint64_t memory_cap;
    uint32_t n_threads;
} inspect_request;

/* ---- what is inspected: a checkpoint, or a plan ---- */

typedef struct inspect_plan {
    ferry_plan *plan;
    bool is_saved;
    ferry_plan_totals totals;
    /* What destinations get, each tensor once. Names live as long as the plan. */
    struct inspect_plan_tensor *tensors;
    size_t n_tensors, capacity;
    const char **seen; /* a set of names by address; they are one for a tensor */
    size_t seen_capacity;
} inspect_plan;

/* Of a saved plan, or of a spec, which is planned with the default options. */
ferry_status inspect_plan_open(const char *path, inspect_plan *plan_out, ferry_error *error);
void inspect_plan_close(inspect_plan *plan);

typedef struct inspected {
    const ferry_checkpoint *checkpoint; /* or NULL: then it is the plan */
    ferry_checkpoint_totals totals;     /* of either; of a plan, without files */
    const inspect_plan *plan;
    ferry_tensor_statistics *stats; /* [totals.n_tensors] with --stats, else NULL */
    ferry_subset *subset;           /* of names that were asked for */
    /* The tensors that were asked for, by their numbers in what is inspected. */
    size_t *chosen;
    size_t n_chosen;
    uint64_t chosen_bytes;
} inspected;

/* Its dtype is ferry's word where there is one. It lives until the next call with the same room. */
typedef struct inspect_tensor {
    const char *name;
    const char *dtype;
    uint32_t n_dims;
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t bytes;
    char dtype_text[FERRY_DTYPE_TEXT_BYTES];
} inspect_tensor;

/* index: below n_chosen. */
ferry_status inspect_tensor_at(const inspected *it, size_t index, inspect_tensor *tensor_out,
                               ferry_error *error);

/* What the columns of the chosen need at least. */
typedef struct inspect_widths {
    int dtype, shape;
} inspect_widths;

/* Fills in which are chosen; a pattern that fits no tensor is an error. */
ferry_status inspect_choose(inspected *it, const inspect_request *request, ferry_error *error);
ferry_status inspect_plan_tensor_at(const inspect_plan *plan, size_t index,
                                    inspect_tensor *tensor_out, ferry_error *error);

/* ---- tensors whose names differ in numbers only, of one type and shape ---- */

typedef struct inspect_group {
    char *text;  /* its name with a {0-31} for each number, its shape and its type */
    char *shape; /* within text */
    char *dtype;
    size_t first; /* its first tensor */
    uint64_t n_tensors;
    uint64_t bytes;
} inspect_group;

typedef struct inspect_groups {
    inspect_group *groups; /* in the order of their first tensors */
    size_t n_groups;
} inspect_groups;

ferry_status inspect_group_tensors(const inspected *it, inspect_groups *groups_out,
                                   ferry_error *error);
void inspect_groups_free(inspect_groups *groups);

/* ---- on stdout ---- */

ferry_status inspect_print_table(const inspected *it, const inspect_request *request,
                                 ferry_error *error);
ferry_status inspect_print_json(const inspected *it, const inspect_request *request,
                                ferry_error *error);

/* Metadata, other files and checksums of a checkpoint. */
ferry_status inspect_print_about(const inspected *it, const inspect_request *request,
                                 ferry_error *error);
ferry_status inspect_print_about_json(const inspected *it, const inspect_request *request,
                                      ferry_error *error);

/* ---- --stats ---- */

/* Reads the floating tensors that were asked for; *stats_out is for free. */
ferry_status inspect_measure(const ferry_checkpoint *checkpoint, const inspect_request *request,
                             size_t n_tensors, ferry_tensor_statistics **stats_out,
                             ferry_error *error);
ferry_status inspect_print_stats(const inspected *it, const inspect_widths *widths,
                                 ferry_error *error);
/* The member of a tensor in --json. */
void inspect_print_stats_json(const ferry_tensor_statistics *stats);

/* The layout of a sharded checkpoint, a line for each of its parts. */
ferry_status inspect_print_layout(const ferry_checkpoint *checkpoint, ferry_error *error);

/* "logical", "sharded", "plan" or "spec". */
const char *inspect_kind(const inspected *it);

ferry_status inspect_no_memory(ferry_error *error);

#endif
