/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_FAMILIES_H
#define FY_CHECKPOINT_FAMILIES_H

#include "checkpoint/short_form.h"

/*
 * What the built-in rules know of architectures: tables of modules and of the way in which tensor
 * parallelism cuts each. The numbers (heads, groups, blocks) come from the model; see
 * short_form_facts.h.
 */
typedef enum fy_way {
    FY_WAY_UNKNOWN,      /* whole, and the user is told */
    FY_WAY_WHOLE,        /* every rank has all of it */
    FY_WAY_COLUMN,       /* dim 0 by the chunk rule, the bias too */
    FY_WAY_ROW,          /* dim 1 by the chunk rule, the bias is whole */
    FY_WAY_PLAIN,        /* dim 0 by the chunk rule, whatever the blocks of scales */
    FY_WAY_PAIR,         /* dim 0 of two matrices in one: gate above up */
    FY_WAY_Q,            /* dim 0 by heads */
    FY_WAY_KV,           /* dim 0 by KV heads, which neighbours share if there are too few */
    FY_WAY_O,            /* dim 1 by heads */
    FY_WAY_QKV,          /* dim 0 of q, k and v in one */
    FY_WAY_GROUP_QKV,    /* dim 0 of the same, group by group: the q of a KV head, its k, its v */
    FY_WAY_VOCABULARY,   /* dim 0 by the chunk rule, in units of 128 rows */
    FY_WAY_HEAD_NORM,    /* whole; its length is that of a head */
    FY_WAY_SINKS,        /* dim 0 by heads, one number for each */
    FY_WAY_MLA_Q,        /* dim 0 by heads of nope + rope */
    FY_WAY_MLA_KV,       /* dim 0 by heads of nope + v */
    FY_WAY_MLA_O,        /* dim 1 by heads of v */
    FY_WAY_MLA_KV_A,     /* whole; its length tells the rope's */
    FY_WAY_MLA_NORM,     /* whole; its length is the rank of kv */
    FY_WAY_MIXED_QKV,    /* dim 0, head by head q, k and v */
    FY_WAY_MIXED_O,      /* dim 1 by the heads of MIXED_QKV */
    FY_WAY_SSM_IN,       /* dim 0: z, x; with grouped states: z, x, B, C, dt */
    FY_WAY_SSM_CONV,     /* dim 0: x; with grouped states: x, B, C */
    FY_WAY_SSM_X,        /* as ROW; only state spaces without groups have it */
    FY_WAY_SSM_HEADS,    /* as COLUMN; one number a head where states are grouped */
    FY_WAY_SSM_OUT,      /* as ROW; tells the inner size */
    FY_WAY_STACKED_PAIR, /* [experts, gate above up, hidden] or its last two transposed */
    FY_WAY_STACKED_DOWN, /* [experts, hidden, inner] or its last two transposed */

    /* Experts whose gate and up take turns: row 2 i is the gate's i, row 2 i + 1 that of up. */
    FY_WAY_STACKED_TURNS, /* [experts, rows in turns, hidden] or its last two transposed */
    FY_WAY_TURNS_ROWS,    /* [experts, rows in turns, ...]: a bias, or codes and their scales */
    FY_WAY_DOWN_BLOCKS,   /* [experts, hidden, blocks of inner, ...]: codes and their scales */
    FY_WAY_DOWN_BIAS,     /* [experts, hidden]: whole, but experts are spread */
    FY_N_WAYS
} fy_way;

/* Where the module stands, which decides its pipeline stage. */
typedef enum fy_zone {
    FY_ZONE_LAYERS, /* in a layer, placed by its number */
    FY_ZONE_FIRST,  /* before the layers */
    FY_ZONE_LAST,   /* behind them */
} fy_zone;

/*
 * One row: modules whose name ends so, and what to do. In a layer, `name` follows the layer's
 * number (and perhaps more); elsewhere it follows the decoder's root, or anything if it begins with
 * a star. A module has parameters (weight, bias, scales); a raw row names the tensor itself.
 */
typedef struct fy_family_row {
    const char *name; /* NULL ends a table */
    fy_way way;
    fy_zone zone;
    bool raw;
} fy_family_row;

enum { FY_MAX_GROUPS = 8 };

typedef struct fy_family {
    const char *words;      /* architectures and model types: lower case, letters and digits */
    const char *signatures; /* modules of a layer that only such models have, all of them */
    const fy_family_row *groups[FY_MAX_GROUPS]; /* tables; the first row that fits decides */
} fy_family;

/* Where the layers' names begin: "model." before "layers.3.mlp". */
typedef struct fy_decoder {
    const char *root;
    const char *layers;     /* "model.layers." */
    const char *predictors; /* where layers that predict further tokens have names of their own;
                               they stand behind all others. NULL: they are layers of the decoder */
} fy_decoder;

extern const fy_family fy_families[];  /* the last has no words */
extern const fy_decoder fy_decoders[]; /* the last has no root */
/* In front of the family's rows of a layer where a decoder has predictors; the last has no name. */
extern const fy_family_row fy_predictor_rows[];

/* The number of the layer that a name belongs to; false if it is no layer's. */
bool fy_decoder_layer(const fy_decoder *decoder, const char *name, uint64_t *layer_out);

/* The nested config of a multimodal model's language part, or NULL. */
const json_t *fy_config_of_text(const json_t *config);

/* The decoder whose layers the names have. */
ferry_status fy_decoder_find(const fy_model_tensor *tensors, size_t n_tensors,
                             const char *source_name, const fy_decoder **decoder_out,
                             ferry_error *error);

/* The family by config.json, or if that names no architecture, by the names of the tensors. */
ferry_status fy_family_find(const fy_model_tensor *tensors, size_t n_tensors,
                            const fy_decoder *decoder, const json_t *config,
                            const char *source_name, const fy_family **family_out,
                            ferry_error *error);

#endif
