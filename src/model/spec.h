/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_SPEC_H
#define FY_MODEL_SPEC_H

#include "base/alloc.h"
#include "base/json.h"
#include "model/problem.h"
#include "model/side.h"

#include <ferry/spec.h>

#include <stdatomic.h>

/* A parsed ferry.spec/1. Everything lives in the arena; nothing changes after parsing. */

typedef enum fy_cut_kind {
    FY_CUT_EVEN,
    FY_CUT_STRIDE,
    FY_CUT_BLOCKS,
    FY_CUT_SIZES,
    FY_CUT_CYCLE,
    FY_CUT_NESTED,
} fy_cut_kind;

typedef struct fy_shard {
    uint32_t dim;
    uint32_t n_axes; /* slowest first */
    uint32_t *axes;
    uint32_t n_ranks; /* along the axes: the product of their sizes */
    uint32_t n_parts; /* the split's; fewer than n_ranks when neighbours replicate */
    fy_cut_kind cut;
    uint64_t unit;
    uint64_t length; /* stride or cycle */
    fy_split_block *blocks;
    uint64_t *sizes;
    size_t n_values; /* of blocks or sizes */
} fy_shard;

/* Coordinates of one axis on which a tensor lives. */
typedef struct fy_pin {
    uint32_t axis;
    uint32_t n_coordinates;
    uint32_t *coordinates;
} fy_pin;

typedef struct fy_rule {
    const char *match;
    size_t match_length;
    size_t tail_length; /* what stands behind the last star, if it is literal: it decides at once */
    bool skip;
    size_t n_shards;
    fy_shard *shards;
    uint32_t n_pins;
    fy_pin *pins;
    bool is_flat;
    uint32_t flat_axis;
    uint64_t *flat_begin; /* of each part, and the end; NULL: the chunk rule */
    ferry_dtype dtype;    /* that a destination wants; kind 0: the tensor's */
    fy_said_cast cast;
    const fy_said_blocks *blocks; /* NULL: it is not quantized */
    const fy_said_blocks *codes;  /* NULL: nor dequantized */
} fy_rule;

typedef struct fy_stage {
    const char *match;
    uint32_t axis;
    uint64_t count;
    uint64_t *ends; /* running sums of `sizes`, per coordinate; NULL: even by count */
} fy_stage;

typedef struct fy_axis {
    const char *name;
    uint32_t size;
} fy_axis;

typedef struct fy_side {
    const char *name; /* "source" or "destination" */
    uint32_t n_axes;
    fy_axis *axes; /* slowest first */
    uint32_t n_ranks;
    uint32_t first_rank;
    uint32_t *ranks; /* NULL: first_rank + index */
    size_t n_stages;
    fy_stage *stages;
    size_t n_rules;
    fy_rule *rules;
    ferry_side *boxes;        /* instead of all that but the name: the side is in boxes */
    uint32_t *tensor_of;      /* [boxes' n_tensors] numbers among those of the spec */
    struct fy_memory *memory; /* made of them, once: plans use it */
} fy_side;

struct ferry_spec {
    _Atomic uint32_t references;
    fy_arena arena;
    /* The whole spec, its model expanded: what a saved plan keeps. NULL of one made by calls. */
    char *text;
    const ferry_spec *base; /* that it was made from: its arena is used; NULL: none */
    fy_tensor *tensors;
    uint32_t n_tensors;
    uint64_t name_bytes; /* of all tensors */
    size_t tensor_capacity;
    fy_index names;
    fy_side source;
    fy_side destination;
    fy_cluster cluster;
};

enum {
    FY_MAX_AXES = 16,
    FY_MAX_TENSORS = 1 << 22,
};

/* Another reference; each is given back with ferry_spec_destroy. */
const ferry_spec *fy_spec_retain(const ferry_spec *spec);

/* Parses a document whose "model", if it had one, is "tensors" by now. */
ferry_status fy_spec_from_json(const json_t *root, const char *name, ferry_spec **spec_out,
                               ferry_error *error);

/* A spec without anything, to be filled by the calls below; ferry_spec_destroy ends it. */
ferry_spec *fy_spec_new(void);

/* One more tensor, which lives on both sides. The shape is borrowed: it outlives the spec. */
ferry_status fy_spec_add_tensor(ferry_spec *spec, const char *name, ferry_dtype dtype,
                                const uint64_t *shape, uint32_t n_dims, ferry_error *error);

/*
 * Adds the tensor of the scales of another one behind all others, or finds it. title: who asks, for
 * sentences.
 */
ferry_status fy_spec_add_scales(ferry_spec *spec, uint32_t tensor, const fy_said_blocks *blocks,
                                const char *title, ferry_error *error);
/* Those that the rules of a destination on a mesh, or the parameters of one in boxes, ask for. */
ferry_status fy_spec_add_rule_scales(ferry_spec *spec, ferry_error *error);
/* Tensors of the scales that rules of a destination which dequantize need beside their codes. */
ferry_status fy_spec_add_staged(ferry_spec *spec, ferry_error *error);
ferry_status fy_spec_add_box_scales(ferry_spec *spec, const ferry_side *boxes, ferry_error *error);

/*
 * Those of a destination in boxes, and parameters that have of each of them what the boxes of a
 * parameter need. tensor_of: the numbers of the boxes' tensors; *any_out: there are more now.
 */
ferry_status fy_spec_add_box_staged(ferry_spec *spec, ferry_side *boxes, const uint32_t *tensor_of,
                                    bool *any_out, ferry_error *error);
/* What a side asks for of one tensor: its scales, as a tensor behind all others, or found. */
typedef struct fy_staged {
    uint32_t of_blocks;
    uint32_t of_matrices; /* of f4; else FY_NONE */
} fy_staged;

ferry_status fy_spec_stage_scales(ferry_spec *spec, uint32_t codes, const fy_said_blocks *said,
                                  const char *title, fy_staged *staged_out, ferry_error *error);

/* The parts of it, one file each. Tensors are added to those that are there. */
ferry_status fy_spec_parse_side(ferry_spec *spec, const json_t *json, const fy_json_place *place,
                                fy_side *side, ferry_error *error);

/*
 * Gives a side of a spec boxes instead of a mesh, which it takes over, also on failure. They are
 * sorted and held against the tensors, and against each other in memory.
 */
ferry_status fy_spec_set_boxes(ferry_spec *spec, fy_side *side, ferry_side *boxes,
                               ferry_error *error);
/*
 * The two halves of that. The second writes repeats out, which planning takes; who works with boxes
 * as they are said may go without, and has room for many more of them.
 */
ferry_status fy_spec_say_boxes(ferry_spec *spec, fy_side *side, ferry_side *boxes,
                               ferry_error *error);
ferry_status fy_spec_make_memory(const ferry_spec *spec, fy_side *side, ferry_error *error);

/* What readers of a side's members share, their context. */
typedef struct fy_side_reading {
    ferry_spec *spec;
    fy_side *side;
    const json_t *json; /* of the side */
} fy_side_reading;

/* Reads a fy_rule. */
ferry_status fy_spec_parse_rule(const json_t *json, const fy_json_place *place, void *rule,
                                void *reading, ferry_error *error);
/* The number of the axis that a JSON string names, a uint32_t. */
ferry_status fy_spec_parse_axis_name(const json_t *json, const fy_json_place *place, void *axis,
                                     void *reading, ferry_error *error);
ferry_status fy_spec_parse_tensors(ferry_spec *spec, const json_t *json, const fy_json_place *place,
                                   ferry_error *error);

/* FERRY_ERR_UNSUPPORTED where a side says a cast: whoever asks has another way to say it. */
ferry_status fy_side_refuse_casts(const fy_side *side, const char *remedy, ferry_error *error);

/* Its text, whichever way it was made. */
ferry_status fy_spec_write(const ferry_spec *spec, fy_writer *w, ferry_error *error);

/* One more than the largest rank of a side. */
uint32_t fy_side_world(const fy_side *side);

/* On which coordinate of its axis a stage puts an item below its count. */
uint32_t fy_stage_coordinate(const fy_side *side, const fy_stage *stage, uint64_t item);

/* The number of the tensor of this name, or FY_NONE. */
uint32_t fy_spec_find_tensor(const ferry_spec *spec, const char *name);

/*
 * Lowers both sides. The problem borrows names and shapes from the spec, which must outlive it.
 */
ferry_status fy_spec_lower(const ferry_spec *spec, fy_problem *problem, ferry_error *error);

#endif
