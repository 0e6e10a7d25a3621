/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_OUTLINE_H
#define FY_MODEL_OUTLINE_H

#include "model/group_table.h"
#include "model/metadata.h"

/*
 * A model without its rank: everything it says but its owner, with numbers in place of groups.
 * Ranks of a world differ in little else, so hundreds of models have one outline, and what is
 * worked out of an outline need not be worked out of each of them again.
 */
typedef struct fy_outline_param {
    ferry_param_metadata said;  /* no owner and no groups */
    uint32_t group[FY_N_ROLES]; /* 1 + its number among the rank's; 0: none */
    uint32_t kind;              /* what fy_outlines says of kinds */
} fy_outline_param;

typedef struct fy_outline {
    uint32_t number; /* among those of its roster */
    fy_arena arena;
    fy_outline_param *params;
    size_t n_params;
} fy_outline;

/* The model of a rank: an outline and the groups that it has there, of those that all share. */
typedef struct fy_said {
    const fy_outline *outline; /* NULL: there is no model */
    ferry_group **groups;
    size_t n_groups;
} fy_said;

/*
 * All outlines of a roster; all zero is none. Parameters that differ in nothing from which a
 * placement follows, given their ranks, have one kind: there are few, whatever the layers.
 */
typedef struct fy_outlines {
    fy_outline **all;
    size_t n_outlines;
    size_t capacity;
    fy_index index;
    fy_outline_param *kinds; /* the first parameter of each, without its texts and groups */
    size_t n_kinds;
    size_t kind_capacity;
    fy_index kind_index;
    fy_arena arena;        /* lists of the kinds */
    fy_group_table groups; /* distinct ones, retained: ranks share them */
} fy_outlines;

/*
 * What a model says. Expert parameters without a resolved name get it: under its local name one
 * would pass for a replica of another expert. The outline is an equal one of the set, or a new
 * one; guess (NULL: none) is where an equal one is looked for first.
 */
ferry_status fy_outlines_take(fy_outlines *set, const ferry_model *model, const fy_outline *guess,
                              fy_said *said_out, ferry_error *error);
void fy_outlines_cleanup(fy_outlines *set);
void fy_said_cleanup(fy_said *said);

/* Parameter number i as the rank would say it; it borrows texts, lists and groups. */
void fy_said_param(const fy_said *said, uint32_t rank, size_t i,
                   ferry_param_metadata *metadata_out);

#endif
