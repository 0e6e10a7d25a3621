/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_RUN_WALK_H
#define FERRY_TOOL_RUN_WALK_H

#include "run_blocks.h"

#include <ferry/ferry.h>
#include <ferry/plan.h>
#include <ferry/shard.h>

#include <stdbool.h>
#include <stdint.h>

/* What is done to a shard's memory. */
typedef enum run_work {
    RUN_FILL = 0,   /* the right bytes */
    RUN_POISON = 1, /* bytes of which none is right */
    RUN_CHECK = 2
} run_work;

/* A tensor whose codes are f4, and the one with the scales of its matrices. */
typedef struct run_given {
    const char *tensor;
    const char *scale;
} run_given;

/* What helps to reckon what elements become. */
typedef struct run_aid {
    run_blocks *blocks;         /* zeros at first, and the same for all of one plan */
    const void *scales;         /* of a shard, or a box, that is dequantized: those beside it
                                   (ferry_plan_visit_staged), */
    const void *matrix_scales;  /* and of f4 those of its matrices; else NULL */
    const run_parts *parts;     /* of what the rank has codes of */
    const run_given *by_tensor; /* all that a plan has, sorted by their tensors, */
    const run_given *by_scale;  /* and by the scales */
    size_t n_given;
} run_aid;

/* Of the stream of a tensor of the source. */
run_key run_aid_key(const run_aid *aid, const char *tensor);

/* The first element of a shard that is not as it should be. */
typedef struct run_mismatch {
    uint64_t element; /* counted from the begin of the shard's memory */
    uint64_t from;    /* of the source tensor, where a box says that */
    uint64_t n_bytes; /* of the two, up to as many as fit */
    uint8_t expected[16];
    uint8_t found[16];
} run_mismatch;

/*
 * Goes through all elements of a shard, within its visit. A source holds its tensor's stream of
 * bytes (run_pattern.h); a destination what its origins have, or what is made of it.
 * FERRY_ERR_DIGEST: a check found *mismatch_out; the error is left as it was.
 */
ferry_status run_walk(const ferry_shard *shard, ferry_side_role side, run_work work, void *memory,
                      const run_aid *aid, run_mismatch *mismatch_out, ferry_error *error);

/* The tensor's name and the element's global indices, "layers.0.weight[3, 17]". */
void run_element_text(const ferry_shard *shard, uint64_t element, char *text, size_t n_bytes);

/* The same for a box of a parameter, and for a fill of one; memory is the parameter's. */
ferry_status run_walk_box(const ferry_held_box *box, run_work work, void *memory,
                          const run_aid *aid, run_mismatch *mismatch_out);
ferry_status run_walk_fill(const ferry_fill *fill, run_work work, void *memory,
                           run_mismatch *mismatch_out);

/* Codes of a tensor that is made of others are made of whole blocks of that tensor: then the box as
 * one of the tensor itself, else the box as it is. */
ferry_held_box run_own_box(const ferry_held_box *box, const run_aid *aid);

/* "layers.0.weight[3, 17]": which element of the source tensor is to be there. */
void run_box_text(const ferry_held_box *box, uint64_t from, char *text, size_t n_bytes);

#endif
