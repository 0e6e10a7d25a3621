/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_SIDE_H
#define FY_MODEL_SIDE_H

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/index.h"
#include "base/json.h"
#include "base/status.h"
#include "base/writer.h"
#include "layout/strided.h"
#include "model/blocks.h"

#include <ferry/side.h>

/*
 * A side in boxes, as it was said: from a spec's text, by calls, or by other ranks. Boxes keep
 * their repeats. What it says of tensors is held against a spec's in side_check.c.
 */

/* numbers: begin, shape and strides, n_dims each; then for each repeat count, offset and begin. */
typedef struct fy_said_box {
    uint32_t parameter;
    uint32_t tensor; /* among the side's names */
    uint32_t n_dims;
    uint32_t n_repeats;
    uint64_t offset;
    const uint64_t *numbers;
} fy_said_box;

/* numbers: shape and strides. */
typedef struct fy_fill {
    uint32_t parameter;
    uint32_t n_dims;
    uint64_t offset;
    const uint64_t *numbers;
    uint32_t n_digits; /* that were written of an element; 0: none were */
    unsigned char bits[8];
} fy_fill;

typedef struct fy_parameter {
    const char *name;
    ferry_dtype dtype; /* kind 0: that of the tensor of its first box */
    uint64_t elements;
    uint32_t ranks; /* the number of a list; FY_OWN_RANK: the rank that says it */
    bool is_partial;
    fy_said_cast cast;
    uint32_t n_dims;
    const uint64_t *shape;        /* for files: of as many elements; NULL: none was said */
    const fy_said_blocks *blocks; /* NULL: it is not quantized */
    const fy_said_blocks *codes;  /* NULL: nor dequantized */
    uint32_t first_box, n_boxes;  /* of a side that is sorted */
    uint32_t first_fill, n_fills;
    /* 1 + the number of the parameter whose scales it has, in memory that is not the caller's: see
     * fy_spec_add_box_staged. 0: it was said. */
    uint32_t staged;
} fy_parameter;

#define FY_OWN_RANK UINT32_MAX

/* Distinct ranks, ascending. Parameters with equal lists share one. */
typedef struct fy_rank_list {
    const uint32_t *ranks;
    uint32_t n;
} fy_rank_list;

/* A tensor that boxes are of; shape is NULL where only its name was said. */
typedef struct fy_side_tensor {
    const char *name;
    const uint64_t *shape;
    ferry_dtype dtype;
    uint32_t n_dims;
} fy_side_tensor;

struct ferry_side {
    fy_arena arena;
    fy_parameter *parameters;
    fy_said_box *boxes;
    fy_fill *fills;
    fy_rank_list *lists;
    fy_side_tensor *tensors;
    size_t n_parameters, n_boxes, n_fills, n_lists, n_tensors;
    size_t parameter_capacity, box_capacity, fill_capacity, list_capacity, tensor_capacity;
    fy_index list_index;
    fy_index tensor_index;
    uint32_t last_tensor; /* boxes of one tensor come together */
    bool is_sorted;
};

enum {
    FY_MAX_PARAMETERS = 1 << 22,
    /* Of a side, and of what repeats make of them. */
    FY_MAX_BOXES = 1 << 24,
    FY_MAX_FILLS = 1 << 24,
};

/* The number of the tensor of this name, which is added if need be. */
ferry_status fy_side_name_tensor(ferry_side *side, const char *name, uint32_t *number_out,
                                 ferry_error *error);

/* Puts boxes and fills in the order of their parameters; nothing may be added then. */
ferry_status fy_side_sort(ferry_side *side, ferry_error *error);

/*
 * Adds a parameter behind all others of a side that is sorted, which has the scales of what another
 * one dequantizes. Its boxes get their number; their numbers live in the side's arena.
 */
ferry_status fy_side_add_staged(ferry_side *sorted, uint32_t parameter, const char *name,
                                ferry_dtype dtype, uint64_t elements, fy_said_box *boxes,
                                size_t n_boxes, ferry_error *error);

/* The number of what stands beside a parameter with the scales of its blocks, and of what follows
 * that with those of its matrices: FY_NO_PARAMETER. */
uint32_t fy_side_find_staged(const ferry_side *sorted, uint32_t parameter);
uint32_t fy_side_find_matrix_staged(const ferry_side *sorted, uint32_t staged);
#define FY_NO_PARAMETER UINT32_MAX

/* One above the highest rank. */
uint32_t fy_side_rank_bound(const ferry_side *side);

/* Adds all that another one was told; own: the rank that stands for FY_OWN_RANK, or that itself. */
ferry_status fy_side_append(ferry_side *side, const ferry_side *other, const uint32_t *own,
                            size_t n_own, ferry_error *error);

/* Reads the array of parameters, "boxes" of a side in a spec; may_be_own: ranks may be left out. */
ferry_status fy_side_from_json(const json_t *json, const fy_json_place *place, bool may_be_own,
                               ferry_side **side_out, ferry_error *error);

/* The type of a parameter, with that of its first box's tensor where it says none; kind 0: neither
 * is known. */
ferry_dtype fy_side_dtype(const ferry_side *side, const fy_parameter *parameter);

/* As bytes, without ranks; the reader has failed, and there is no side, where they are damaged. */
void fy_side_pack(const ferry_side *side, fy_pack *out);
ferry_status fy_side_unpack(fy_reader *in, ferry_side **side_out, ferry_error *error);

/* The value of a side in a spec; the side is sorted, and every parameter has ranks. */
void fy_side_write(fy_writer *w, const ferry_side *sorted);
/* That of its key "boxes"; are_wanted: [n_parameters], NULL: all. */
void fy_side_write_parameters(fy_writer *w, const ferry_side *sorted, const bool *are_wanted);

/* An element's bits as hex digits, the highest first, ended by a zero. */
void fy_fill_format(const unsigned char bits[8], uint32_t element_bits, char text_out[17]);

static inline const uint64_t *fy_said_box_shape(const fy_said_box *box)
{
    return box->numbers + box->n_dims;
}

static inline const uint64_t *fy_said_box_strides(const fy_said_box *box)
{
    return box->numbers + 2 * (size_t)box->n_dims;
}

/* Of one repeat: count, offset, and how far it moves in the tensor. */
static inline const uint64_t *fy_said_box_repeat(const fy_said_box *box, uint32_t i)
{
    return box->numbers + 3 * (size_t)box->n_dims + (size_t)i * (2 + box->n_dims);
}

/* What a box, with its repeats, or a fill has of its parameter. False: it has no element. */
bool fy_said_box_places(const fy_said_box *box, fy_strided *places_out);
bool fy_fill_places(const fy_fill *fill, fy_strided *places_out);

#endif
