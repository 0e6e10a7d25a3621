/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_NAMING_H
#define FY_MODEL_NAMING_H

#include "base/alloc.h"
#include "base/index.h"
#include "base/json.h"
#include "model/formula.h"

#include <ferry/names.h>

/*
 * Namings share no tensors, but parts: matrices and rows, such as the gate of expert 5 in layer 3,
 * of which the tensors of each naming are made. A part is in at most one tensor of a naming.
 */
typedef struct fy_naming_part {
    uint64_t rule; /* its rule and its place among the parts of that, and then the indices */
    uint64_t indices[FY_MAX_INDICES];
    const char *name; /* its word in the rule */
    uint32_t n_dims;
    uint64_t shape[FERRY_MAX_DIMS];
} fy_naming_part;

/*
 * Where a part lies in a tensor: its rows in count blocks, of which each begins step rows behind
 * the one before.
 */
typedef struct fy_naming_run {
    uint32_t tensor;
    uint64_t count, rows;
    uint64_t row, step;
    uint64_t place; /* on the first dimension of a tensor that is stacked */
} fy_naming_run;

typedef struct fy_naming_tensor {
    const char *name;
    const json_t *how; /* the value of its name in the rule */
    uint64_t rule;
    uint32_t n_dims;
    const char *first_of; /* an axis: ranks but the first along it have zeros; NULL: none */
    bool is_stacked, is_transposed, is_optional, is_seen;
    ferry_dtype dtype;
    uint64_t shape[FERRY_MAX_DIMS];
    size_t first_part, n_parts; /* among part_numbers of the naming */
} fy_naming_tensor;

typedef struct fy_naming {
    const char *name;
    const char *like; /* whose rules it has where it has none of its own; NULL: nobody's */
    bool is_expanded, is_seen;
    fy_naming_tensor *tensors;
    size_t n_tensors, tensor_capacity;
    fy_index names;
    uint32_t *part_numbers;
    size_t n_part_numbers, part_number_capacity;
    fy_naming_run *runs; /* [parts]: count 0: this naming lacks it */
    size_t run_capacity, n_runs;
} fy_naming;

struct ferry_names {
    fy_arena arena;
    json_t *family, *shared, *config;
    const char *source_name;
    ferry_dtype dtype;
    fy_formula_scope scope;
    const json_t **rules;
    size_t n_rules;
    fy_naming_part *parts;
    size_t n_parts, part_capacity;
    fy_index part_index;
    fy_naming *namings;
    size_t n_namings;
    struct {
        const fy_naming *from, *to;
        size_t next, at; /* the number that comes next, and where the search for it begins */
    } left_out;          /* a list is asked for by number, one after the other */
};

/* A built-in family, or what all families share. */
typedef struct fy_naming_text {
    const char *name;
    const char *text;
    size_t length;
} fy_naming_text;

extern const fy_naming_text fy_naming_texts[]; /* in the order of names; the last has none */

/* The naming of this name, expanded. */
ferry_status fy_naming_find(ferry_names *names, const char *name, fy_naming **naming_out,
                            ferry_error *error);

/* Makes its tensors of the rules. */
ferry_status fy_naming_expand(ferry_names *names, fy_naming *naming, ferry_error *error);

/* The tensor of a name, or FY_INDEX_NONE. */
uint32_t fy_naming_find_tensor(const fy_naming *naming, const char *name);

/*
 * Whether one of their tensors is a transposed one of the other's, which a map cannot say. Of how
 * many boxes of the tensors of `from`, and of `to`, those of the other one are.
 */
ferry_status fy_naming_is_turned(ferry_names *names, const char *from, const char *to,
                                 bool *turned_out, uint64_t blocks_out[2], ferry_error *error);

/* Appends the tensors of `to`, as a spec has them, of the types that they get of those of `from`.
 */
ferry_status fy_naming_list(ferry_names *names, const char *from, const char *to, json_t *list,
                            ferry_error *error);

/* As ferry_names_get_side, for a spec that has the tensors of `from` and their types. */
ferry_status fy_naming_side(ferry_names *names, const char *from, const char *to, uint32_t rank,
                            ferry_side **side_out, ferry_error *error);

/* How a side is cut whose tensors fy_naming_list has listed. */
typedef struct fy_naming_cut {
    const struct fy_problem *problem; /* its destination is that side */
    bool is_source;                   /* who has zeros says nothing of a tensor */
    bool (*is_first)(void *context, const char *axis, uint32_t rank);
    void *context;
} fy_naming_cut;

/* As fy_naming_side, for the ranks of a cut. */
ferry_status fy_naming_side_of_cut(ferry_names *names, const char *from, const char *to,
                                   const fy_naming_cut *cut, ferry_side **side_out,
                                   ferry_error *error);

/* Whether another naming lacks a tensor, or some of it, as far as that is there. */
bool fy_naming_lacks(const fy_naming *naming, const fy_naming *of, const fy_naming_tensor *tensor);

/* Whether a tensor of another naming is made of one of these, by its name. */
bool fy_naming_makes(const fy_naming *naming, const fy_naming *of, const fy_naming_tensor *tensor,
                     const char *source);

/* Whether it is there, as far as is known. */
bool fy_naming_is_there(const fy_naming *naming, const fy_naming_tensor *tensor);

#endif
