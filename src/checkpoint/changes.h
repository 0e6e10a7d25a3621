/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_CHANGES_H
#define FY_CHECKPOINT_CHANGES_H

#include "base/subset.h"
#include "checkpoint/checkpoint.h"
#include "convert/words.h"
#include "model/spec.h"

/*
 * What becomes of tensors on their way: casts, quantization in blocks, and back. A weight that is
 * quantized keeps its name, and its scales are a tensor of the result beside it; of a weight that
 * is dequantized the scales are consumed.
 */
typedef enum fy_change_kind {
    FY_KEPT,
    FY_CAST,
    FY_QUANTIZED,
    FY_DEQUANTIZED,
    FY_SCALES,       /* of a weight that is quantized: of its blocks */
    FY_MATRIX_SCALES /* of a weight that is quantized: of whole matrices */
} fy_change_kind;

typedef struct fy_change {
    fy_change_kind kind;
    ferry_dtype dtype;      /* of the result */
    fy_block_format format; /* of quantized and dequantized weights */
    uint32_t weight;        /* of scales: whose */
    uint32_t scales;        /* of weights: of the blocks; a tensor of the job */
    uint32_t matrix_scales; /* of weights: of matrices; FY_NONE: the format has none */
} fy_change;

/* Whether a tensor is scales that come with a weight. */
static inline bool fy_change_is_made(const fy_change *change)
{
    return change->kind == FY_SCALES || change->kind == FY_MATRIX_SCALES;
}

/* What was asked for. */
typedef struct fy_change_options {
    uint32_t cast;          /* a ferry_dtype_kind; 0: none */
    const char *quantize;   /* "FORMAT" or "FORMAT=PATTERNS"; NULL: nothing */
    const char *dequantize; /* the same, or "auto" for FORMAT */
    const char *subset;     /* only tensors of it are quantized or dequantized; NULL: all */
    const char *boxes; /* the side that says what is quantized: whether that can be is found out box
                          by box; NULL: quantize is an option */
} fy_change_options;

/* A choice of --quantize or --dequantize, read. */
typedef struct fy_block_choice {
    bool is_made; /* there is one */
    bool is_auto; /* the format is that of the tensors */
    fy_block_format format;
    const char *patterns; /* NULL: the usual ones; points into the text */
} fy_block_choice;

/* text: NULL is no choice. option is for the sentence. */
ferry_status fy_block_choice_parse(const char *text, bool may_be_auto, fy_block_choice *choice_out,
                                   ferry_error *error);

/* Whether options can be combined, and there are such casts and formats. */
ferry_status fy_change_options_check(const fy_change_options *options, ferry_error *error);

static inline bool fy_change_options_are_none(const fy_change_options *options)
{
    return options == NULL ||
           (options->cast == 0 && options->quantize == NULL && options->dequantize == NULL);
}

/* The name of a weight's scales in this format is the weight's and this. */
const char *fy_scales_suffix(const fy_block_format *format);
#define FY_MATRIX_SCALES_SUFFIX "_scale_2"

/*
 * Whether a tensor is of those that are quantized where nobody says which: the matrices of linear
 * modules in the layers. Routers, norms, embeddings and heads stay as they are, and the towers of
 * other media.
 */
bool fy_quantizes_by_default(const char *name, uint32_t n_dims);

/*
 * The changes of all tensors of a spec: those of the checkpoint first, then new ones of the result,
 * to which tensors of scales are added here. Consumed scales are marked as not in the result.
 * config: the source's config.json, which may say what blocks there are; NULL: there is none.
 * *changes_out: [spec->n_tensors], the caller's.
 */
ferry_status fy_changes_make(const ferry_checkpoint *from, ferry_spec *spec,
                             const fy_change_options *options, const json_t *config,
                             fy_change **changes_out, ferry_error *error);

/* Whether a type is one of codes that ferry makes. */
static inline bool fy_is_code_kind(uint32_t kind)
{
    return kind == FERRY_F8E4M3 || kind == FERRY_F8E5M2 || kind == FERRY_F4;
}

/* Whether a tensor of this name may be scales: those of f4 are f8e4m3 themselves. */
bool fy_is_scale_name(const char *name);

/* A tensor that is called like scales of this one, in whatever format, and is not larger; FY_NONE.
 */
uint32_t fy_find_any_scales(const ferry_spec *spec, uint32_t tensor);

/* The codes that a tensor has the scales of, by the same rule; FY_NONE. */
uint32_t fy_find_codes(const ferry_spec *spec, uint32_t tensor);

/* Refuses a cast of codes that have scales: what came of it would be without them. */
ferry_status fy_change_check_cast(const ferry_spec *spec, const fy_change *changes, uint32_t tensor,
                                  ferry_error *error);

/* Whether each matrix of a weight of f4 has a scale in this tensor; FY_NONE: there is none of that
 * name. */
ferry_status fy_change_check_matrix_scales(const ferry_spec *spec, const fy_tensor *weight,
                                           uint32_t scales, const char *name, ferry_error *error);

/* Refuses rows of codes of half a byte that are not whole bytes. */
ferry_status fy_change_check_rows(const fy_tensor *weight, uint32_t code_kind, ferry_error *error);

/* Whether a parameter of a side in boxes says "dequantize". */
bool fy_side_dequantizes(const ferry_side *boxes);

/*
 * Makes what the parameters of a side in boxes dequantize the changes of their tensors, and takes
 * it out of the side, which then has tensors as they become. changes: those of fy_changes_make.
 */
ferry_status fy_changes_take_boxes(const ferry_checkpoint *from, const ferry_spec *spec,
                                   ferry_side *boxes, const char *name, fy_change *changes,
                                   ferry_error *error);

/* Whether a parameter of a side in boxes says "quantize". */
bool fy_side_quantizes(const ferry_side *boxes);

/* What such a side says, as fy_change_options has it; *choice_out is the caller's. */
ferry_status fy_side_quantize_choice(const ferry_side *boxes, const char *name, char **choice_out,
                                     ferry_error *error);

/* Whether the changes that were made by it are what each parameter says; then it is taken out of
 * the side. */
ferry_status fy_changes_end_quantize(const ferry_spec *spec, const fy_change *changes,
                                     ferry_side *boxes, const char *name, ferry_error *error);

/*
 * Adds parameters for the scales of what is quantized, of blocks and of matrices, where no box of
 * the side is of them: behind all others, each called like the one with the codes and the suffix of
 * scales.
 */
ferry_status fy_changes_add_scale_boxes(const ferry_spec *spec, const fy_change *changes,
                                        ferry_side *boxes, const char *name, ferry_error *error);

/* How many indices of a dimension of a weight share a scale. */
static inline uint64_t fy_block_extent(const fy_block_format *format, uint32_t n_dims, uint32_t dim)
{
    return dim + 2 < n_dims ? 1 : format->block[dim + 2 - n_dims];
}

/* Of a box of a weight of this format: that of its scales, also where it lies within blocks. */
void fy_change_scales_box(const fy_block_format *format, uint32_t n_dims, const fy_box *of,
                          fy_box *scales_out);

/* Of a box of scales: that of the values of their blocks, in a weight of this shape. */
void fy_change_values_box(const fy_block_format *format, const uint64_t *shape, uint32_t n_dims,
                          const fy_box *scales, fy_box *values_out);

/* Of a weight and a format: the shape of its scales; those of matrices have the leading ones. */
void fy_change_scales_shape(const fy_block_format *format, const uint64_t *shape, uint32_t n_dims,
                            uint64_t shape_out[FERRY_MAX_DIMS]);

/*
 * Rules for scales that cut them where their weights are cut: added to the side where no rule of
 * its own is for them. side is changed in place.
 */
ferry_status fy_scale_rules_add(json_t *side, const char *name, const ferry_spec *spec,
                                const fy_change *changes, ferry_error *error);

/* Whether the destination cuts every weight that is quantized between its blocks. */
ferry_status fy_changes_check_lines(const fy_problem *problem, const fy_change *changes,
                                    const char *side, ferry_error *error);

/* And its scales in the same places, for the same ranks. */
ferry_status fy_changes_check_cuts(const fy_problem *problem, const fy_change *changes,
                                   const char *side, ferry_error *error);

#endif
