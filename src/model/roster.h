/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_ROSTER_H
#define FY_MODEL_ROSTER_H

#include "base/bytes.h"
#include "model/metadata.h"
#include "model/outline.h"
#include "model/problem.h"

#include <ferry/reshard.h>

#include <stdatomic.h>

/* The two models of one rank. */
typedef struct fy_entry {
    bool is_set;
    fy_said said[2]; /* source, destination */
} fy_entry;

struct ferry_roster {
    _Atomic uint32_t references;
    _Atomic bool is_planned; /* a plan keeps it: nothing may be added any more */
    uint32_t n_ranks;
    fy_entry *entries;
    fy_outlines outlines;
    const fy_outline *last[2]; /* of each side, the last rank's: the next one mostly has the same */
};

ferry_roster *fy_roster_retain(const ferry_roster *roster);

/*
 * Lowers what every rank said to tensors and placements; with_seed adds the groups that the seed
 * policy needs. The problem borrows names from the roster, which must outlive it.
 */
ferry_status fy_roster_lower(const ferry_roster *roster, bool with_seed, fy_problem *problem,
                             ferry_error *error);

/* How one rank's shard of a TP parameter is cut, given the local lengths of all parts. */
ferry_status fy_metadata_split(const ferry_param_metadata *const *parts, uint32_t n_parts,
                               uint32_t dim, fy_split **split_out, ferry_error *error);

/* Models as bytes, for exchanges and files: groups once, then the parameters. */
void fy_model_pack(const ferry_model *model, fy_pack *out); /* NULL is a model that is not there */

/* A rank's two models, source first, one packed behind the other. */
void fy_roster_pack(const ferry_roster *roster, uint32_t rank, fy_pack *out);
ferry_status fy_roster_set_packed(ferry_roster *roster, uint32_t rank, fy_reader *in,
                                  ferry_error *error);

#endif
