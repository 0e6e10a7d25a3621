/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_ROSTER_GATHER_H
#define FY_MODEL_ROSTER_GATHER_H

#include "model/roster.h"

/* A parameter of an outline: of every rank whose model has that outline, on one side. */
typedef struct fy_use {
    uint32_t outline;
    uint32_t param;
    uint32_t kind;
    uint32_t next; /* of the same tensor and side; FY_NONE ends */
} fy_use;

typedef struct fy_uses {
    uint32_t first[2]; /* source, destination; FY_NONE: the side does not have the tensor */
    uint32_t last[2];
} fy_uses;

/* The parameters of a roster by their names in the whole model. */
typedef struct fy_roster_gathering {
    const ferry_roster *roster;
    fy_problem *problem; /* gets the tensors, without placements */
    fy_index names;
    size_t tensor_capacity;
    fy_uses *tensors; /* beside problem->tensors */
    size_t uses_capacity;
    fy_use *uses;
    size_t n_uses, use_capacity;
    /* By side: the lowest rank of each outline, and the next one of the same; FY_NONE: none. */
    uint32_t *first_rank[2]; /* [n_outlines] */
    uint32_t *next_rank[2];  /* [n_ranks] */
} fy_roster_gathering;

/*
 * Fills a gathering that names its roster and problem. Destination tensors first, in the order of
 * the ranks; then what only the source has. Uses are in the order of their lowest ranks. Notes the
 * order of a rank's own parameters, where it is not that of the tensors.
 */
ferry_status fy_gathering_make(fy_roster_gathering *g, ferry_error *error);
void fy_gathering_cleanup(fy_roster_gathering *g);

/* FY_NONE: no rank has it. */
uint32_t fy_gathering_find(const fy_roster_gathering *g, const char *name);

/* What the lowest rank of a side says of a tensor; false: none has it. */
bool fy_gathering_first(const fy_roster_gathering *g, uint32_t tensor, int side,
                        ferry_param_metadata *metadata_out);

#endif
