/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_BIND_H
#define FY_SERVICE_BIND_H

#include "plan/shards.h"
#include "service/registry.h"

#include <ferry/shard.h>

/* What the files that bind a plan share: bind.c has its tensors and moves, bind_blocks.c what is
 * quantized or dequantized. */

/* Types of values that codes are made of. */
enum { FY_N_BLOCK_VALUES = 3 };

/* One tensor of one side, as this rank holds it. */
typedef struct fy_local_tensor {
    size_t index;  /* into the caller's list */
    uint32_t held; /* FY_NONE: not yet, or without bytes */
    uint32_t n_dims;
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t flat_begin;
    uint64_t bytes;
    bool is_whole;      /* a box of a tensor on a mesh, and no part of its elements in a row */
    const char *staged; /* the name that moves have: memory of the service's own; NULL: none */
    ferry_dtype dtype;
    const ferry_conversion *conversion; /* of a destination on a mesh; NULL: it has none */
    uint32_t
        gathered[FY_N_BLOCK_VALUES]; /* held: values that its codes are made of here; 0: none yet */
} fy_local_tensor;

typedef struct fy_local_side {
    const ferry_tensors *tensors;
    bool is_destination;
    fy_local_tensor *items;
    size_t n, capacity;
    fy_index index; /* by name, of the first n_indexed */
    size_t n_indexed;
    const char *last_name; /* of the last look-up, and what it found */
    size_t last;
} fy_local_side;

/* A rank of the world, by which plans do not know it. */
typedef struct fy_bind_member {
    uint32_t member;
    uint32_t rank;
} fy_bind_member;

typedef struct fy_binding {
    fy_registry *registry;
    const ferry_plan *plan;
    bool wants_pairs;
    uint32_t me;             /* in the plan */
    uint32_t my_rank;        /* in the world */
    fy_bind_member *members; /* ascending */
    uint32_t n_members;
    uint32_t rows_to; /* of the last rows, whose they are */
    const char *rows_of;
    size_t product;         /* of the registry's, the one whose boxes come */
    fy_local_side sides[2]; /* by ferry_side_role */
    ferry_error *error;
} fy_binding;

/* A box in elements of the memory: rows of run elements, as long as they can be. */
typedef struct fy_element_box {
    uint64_t first;
    uint64_t run;
    uint32_t n_dims; /* beside the run; of lengths above 1 */
    uint64_t length[FERRY_MAX_DIMS];
    uint64_t stride[FERRY_MAX_DIMS];
} fy_element_box;

/* Values of which the receiver makes codes once all have come: until then nothing becomes of them.
 */
static inline bool fy_is_gathered(const ferry_move *move)
{
    return move->conversion != NULL && move->conversion->kind == FERRY_CONVERSION_CODES &&
           move->conversion->at_receiver;
}

/* bind.c */

/* NULL if there is none. */
ferry_status fy_bind_find(fy_local_side *side, const char *name, fy_local_tensor **tensor_out,
                          ferry_error *error);
/* Of a box of a tensor on a mesh; false where it is not within the shard. */
bool fy_element_box_within(const fy_local_tensor *tensor, const uint64_t *begin,
                           const uint64_t *length, fy_element_box *box);
/* Of a box that says itself where its elements lie in a parameter. */
fy_element_box fy_element_box_of(uint64_t offset, uint32_t n_dims, const uint64_t *length,
                                 const uint64_t *stride);
/* False where it does not begin and end on bytes. */
bool fy_element_box_to_bytes(fy_element_box *box, uint32_t bits);
/* The same as an area of bytes, so many of them, within what the parameter has. */
ferry_status fy_bind_parameter_area(const fy_binding *b, const char *name, fy_element_box *box,
                                    uint32_t bits, uint64_t bytes, const fy_local_tensor *tensor,
                                    fy_area *area_out);
/* FERRY_ERR_INVALID_PLAN: the sentence names the task and goes on with `why`. */
ferry_status fy_bind_fail_move(const fy_binding *b, const ferry_move *move, const char *why);

/* bind_idle.c */

/* On rank 0 of the world: a warning that names the ranks that have no part in the plan. */
ferry_status fy_bind_note_idle(const fy_binding *b);

/* bind_blocks.c */

/* The caller's memory of a tensor of a side. */
ferry_status fy_bind_hold(fy_binding *b, const fy_local_side *side, fy_local_tensor *tensor);

/* A send of scales, or of codes of f4, that are made when a run begins. */
ferry_status fy_bind_scaled(fy_binding *b, const ferry_move *move, const fy_local_tensor *values,
                            uint32_t peer);
/* What becomes of a move's values: codes, of the divisors of its box. */
ferry_status fy_bind_codes(fy_binding *b, const ferry_move *move, const fy_local_tensor *values,
                           uint32_t *number_out);
/* Memory of the service's for values, which lie there as their codes in the tensor. */
ferry_status fy_bind_gather(const fy_binding *b, fy_local_tensor *codes, uint32_t code_bits,
                            ferry_dtype values, const char *name, fy_local_tensor *gathered_out);
/* Where a box of values is among the rows of the shard that its codes are made of. */
ferry_status fy_bind_rows(fy_binding *b, const ferry_move *move, uint32_t *number_out);
/* Visitors: of scales that come with codes, of boxes that are multiplied by them, and of codes that
 * this rank makes. */
ferry_status fy_bind_staged(void *context, const ferry_shard *shard);
ferry_status fy_bind_product(void *context, const fy_product_box *box);
ferry_status fy_bind_made(void *context, const fy_made_codes *made);

#endif
