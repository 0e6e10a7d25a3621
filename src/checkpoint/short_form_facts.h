/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_SHORT_FORM_FACTS_H
#define FY_CHECKPOINT_SHORT_FORM_FACTS_H

#include "checkpoint/families.h"

/* The axes of a short form; 0: not named. */
typedef enum fy_short_axis {
    FY_AXIS_PP,
    FY_AXIS_DP,
    FY_AXIS_EP,
    FY_AXIS_TP,
    FY_N_SHORT_AXES
} fy_short_axis;

typedef struct fy_short_mesh {
    uint32_t size[FY_N_SHORT_AXES];
} fy_short_mesh;

/*
 * What the rules need to know of one model beyond names: sizes of heads and groups, from
 * config.json where it says them and else from shapes, and checked against both.
 */
typedef struct fy_facts {
    const char *source_name;
    const json_t *config;      /* NULL: none */
    const json_t *text_config; /* nested in it, NULL: none */
    uint32_t tp;
    uint32_t ep;
    bool has_scales;    /* there are scales of blocks (weight_scale_inv) */
    bool may_have_some; /* the same of other names (weight_scale), where config.json has blocks */
    const struct fy_facts *plain; /* the same model, as if nothing shared a scale */
    bool is_plain;                /* these are */
    uint64_t block[2];            /* rows and columns that share a scale; 1: none */
    uint64_t tile;                /* a multiple of both */

    /* Attention. kv_parts: the KV heads where tp exceeds them, else 0. */
    uint64_t q_rows;
    uint64_t kv_rows;
    uint64_t q_unit; /* rows of q that stay together: columns of o, too */
    uint64_t kv_unit;
    uint64_t kv_parts;
    uint64_t group_unit; /* rows of q, k and v of whole groups */
    uint64_t group_rows; /* of all */
    uint64_t heads;      /* of q; 0: their size is unknown */
    uint64_t head_unit;  /* heads of q that stay together */
    uint64_t vocabulary_unit;

    /* Latent attention: rows or columns that stay together, and the extents. */
    uint64_t mla_q_unit, mla_kv_unit, mla_o_unit;
    uint64_t mla_q_rows, mla_kv_rows, mla_o_columns;

    /* Heads with their own q, k and v. */
    uint64_t mixed_qkv_unit, mixed_o_unit;
    uint64_t mixed_rows, mixed_columns;

    /* State spaces. Without groups (the first kind) ssm_groups is 0. */
    uint64_t ssm_inner;
    uint64_t ssm_states; /* of all groups: rows of B, and of C */
    uint64_t ssm_heads;
    uint64_t ssm_groups;

    /* Stacked experts. */
    bool stacked_transposed; /* [experts, hidden, inner] */
    uint64_t inner_unit;     /* rows of gate, rows of up, columns of down that stay together */
    uint64_t turns_unit;     /* the same where gate and up take turns: rows of both */
    uint64_t turns_rows;     /* of gate and up; 0: they do not take turns */
    uint64_t inner_blocks;   /* that columns of down are, where its codes have scales of blocks */
    bool has_inner_blocks;   /* they have, as MXFP4 */
} fy_facts;

/*
 * samples: of each way, the first weight that goes it, or NULL. The caller has filled the facts
 * down to is_plain.
 */
ferry_status fy_facts_gather(fy_facts *facts, const fy_model_tensor *const *samples,
                             ferry_error *error);

/*
 * A whole number above zero of config.json, 0 where it says nothing. The first of the keys (NULL
 * ends them) that is there counts, in the nested config first.
 */
ferry_status fy_facts_number(const fy_facts *facts, const char *const *keys, uint64_t *number_out,
                             ferry_error *error);

/* The numbers of state spaces; part of fy_facts_gather. */
ferry_status fy_facts_gather_ssm(fy_facts *facts, const fy_model_tensor *const *samples,
                                 ferry_error *error);

#endif
