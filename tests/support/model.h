/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_MODEL_H
#define FERRY_TESTS_MODEL_H

/*
 * A small world as its ranks tell of it: one model on two sides, each dp x tp ranks from a first
 * one, tp fastest. Row- and column-parallel, strided, packed and replicated parameters.
 */
#include "support/check.h"

#include <ferry/ferry.h>

typedef struct grid {
    uint32_t first, dp, tp;
} grid;

static inline ferry_group *range_group(uint32_t first, uint32_t stride, size_t n)
{
    ferry_group *group = NULL;
    ferry_error error;
    must(ferry_group_create_range(first, stride, n, &group, &error), &error);
    return group;
}

typedef struct param_kind {
    const char *name;
    uint64_t rows, columns; /* of the whole tensor */
    int dim;                /* -1: replicated */
    uint64_t stride;
    uint64_t packed[2]; /* whole lengths of two packed blocks; 0: none */
} param_kind;

static const param_kind param_kinds[] = {
    {"decoder.qkv.weight", 24, 4, 0, 1, {0, 0}},  {"decoder.gate_up.weight", 48, 4, 0, 2, {0, 0}},
    {"decoder.down.weight", 6, 24, 1, 1, {0, 0}}, {"decoder.in_proj.weight", 36, 2, 0, 1, {24, 12}},
    {"decoder.norm.weight", 7, 1, -1, 1, {0, 0}},
};

/* One parameter as a rank of the grid holds it; sizes is room for its packed lengths. */
static inline ferry_param_metadata describe_param(const param_kind *kind, const grid *g,
                                                  uint32_t rank, ferry_group *tp, ferry_group *dp,
                                                  uint64_t sizes[2])
{
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    m.name = kind->name;
    m.n_dims = 2;
    m.shape[0] = kind->rows / (kind->dim == 0 ? g->tp : 1);
    m.shape[1] = kind->columns / (kind->dim == 1 ? g->tp : 1);
    m.dtype = (ferry_dtype){.kind = FERRY_BF16, .element_bits = 16};
    m.is_tp = kind->dim >= 0;
    m.partition_dim = kind->dim < 0 ? 0 : (uint32_t)kind->dim;
    m.partition_stride = kind->stride;
    m.owner_rank = rank;
    m.tensor_parallel_group_ranks = tp;
    m.data_parallel_group_ranks = dp;
    if (kind->packed[0] != 0) {
        sizes[0] = kind->packed[0] / g->tp;
        sizes[1] = kind->packed[1] / g->tp;
        m.partition_sizes = sizes;
        m.n_partition_sizes = 2;
    }
    return m;
}

/* NULL, as a rank outside the grid has no model; else the caller destroys it. */
static inline ferry_status try_model(const grid *g, uint32_t rank, ferry_model **model_out,
                                     ferry_error *error)
{
    *model_out = NULL;
    if (rank < g->first || rank >= g->first + g->dp * g->tp) {
        return FERRY_OK;
    }
    ferry_model *model = NULL;
    uint32_t t = (rank - g->first) % g->tp;
    ferry_group *tp = NULL, *dp = NULL;
    ferry_status status = ferry_group_create_range(rank - t, 1, g->tp, &tp, error);
    if (status == FERRY_OK) {
        status = ferry_group_create_range(g->first + t, g->tp, g->dp, &dp, error);
    }
    if (status == FERRY_OK) {
        status = ferry_model_create(&model, error);
    }
    for (size_t i = 0; i < COUNT_OF(param_kinds) && status == FERRY_OK; i++) {
        uint64_t sizes[2];
        ferry_param_metadata m = describe_param(&param_kinds[i], g, rank, tp, dp, sizes);
        status = ferry_model_add(model, &m, error);
    }
    if (status == FERRY_OK) {
        *model_out = model;
        model = NULL;
    }
    ferry_model_destroy(model);
    ferry_group_destroy(tp);
    ferry_group_destroy(dp);
    return status;
}

static inline ferry_status try_roster(const grid *src, const grid *dst, uint32_t world,
                                      ferry_roster **roster_out, ferry_error *error)
{
    ferry_roster *roster = NULL;
    ferry_status status = ferry_roster_create(world, &roster, error);
    for (uint32_t rank = 0; rank < world && status == FERRY_OK; rank++) {
        ferry_model *from = NULL, *to = NULL;
        status = try_model(src, rank, &from, error);
        if (status == FERRY_OK) {
            status = try_model(dst, rank, &to, error);
        }
        if (status == FERRY_OK) {
            status = ferry_roster_set(roster, rank, from, to, error);
        }
        ferry_model_destroy(from);
        ferry_model_destroy(to);
    }
    if (status == FERRY_OK) {
        *roster_out = roster;
        roster = NULL;
    }
    ferry_roster_destroy(roster);
    return status;
}

#endif
