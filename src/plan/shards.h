/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PLAN_SHARDS_H
#define FY_PLAN_SHARDS_H

#include <ferry/plan.h>
#include <ferry/shard.h>

/* Visits the parameters of a rank on a side in boxes: see ferry_plan_visit_shards; or of_staged
 * those with scales that come beside others: see ferry_plan_visit_staged. */
ferry_status fy_plan_visit_parameters(const ferry_plan *plan, ferry_side_role role, uint32_t rank,
                                      bool of_staged, ferry_shard_visitor visitor, void *context,
                                      ferry_error *error);

/*
 * A box of a parameter whose elements are codes, widened, that a rank multiplies. Element i is
 * element offset + i[0] strides[0] + ... of the parameter; its scale follows from its place among
 * the blocks, the first of which lies at scales_offset of `scales`.
 */
typedef struct fy_product_box {
    const char *parameter, *scales;     /* as ferry_plan_visit_shards and _staged call them */
    const ferry_conversion *conversion; /* of codes to values */
    ferry_dtype values;
    uint32_t n_dims; /* at least 2 */
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t offset;
    uint64_t strides[FERRY_MAX_DIMS];
    uint64_t origin[2]; /* the row and the column of the first element in its block */
    uint64_t scales_offset;
    uint64_t scales_strides[FERRY_MAX_DIMS]; /* from a block to the next */
    /* Of f4 what has the scales of matrices, likewise, by the dimensions before rows and columns;
     * NULL: there are none. */
    const char *matrix_scales;
    uint64_t matrix_scales_offset;
    uint64_t matrix_scales_strides[FERRY_MAX_DIMS];
} fy_product_box;

typedef ferry_status fy_product_box_visitor(void *context, const fy_product_box *box);

/* Visits those of a rank of a destination in boxes, parameter by parameter; a mesh has none. */
ferry_status fy_plan_visit_products(const ferry_plan *plan, uint32_t rank,
                                    fy_product_box_visitor *visitor, void *context,
                                    ferry_error *error);

/*
 * What a rank makes of values that it gets: the codes of a box of whole blocks, and their scales.
 * Element i of the box is element offset + i[0] strides[0] + ... of the buffer of that name, where
 * values count as codes; of scales i counts blocks.
 */
typedef struct fy_made_place {
    const char *name; /* NULL: of scales that nobody wants them, or there are none */
    uint64_t offset;
    uint64_t strides[FERRY_MAX_DIMS];
} fy_made_place;

typedef struct fy_made_codes {
    const char *tensor;                 /* for sentences; names live as long as the plan */
    const ferry_conversion *conversion; /* of values to codes */
    ferry_dtype values;
    bool stores_codes; /* else others do, and only scales are missing */
    uint32_t n_dims;   /* at least 2 */
    uint64_t shape[FERRY_MAX_DIMS];
    fy_made_place codes, scales;
    fy_made_place given; /* of f4 the scale of each matrix, by the dimensions before the last two */
} fy_made_codes;

/* How many blocks it has on each dimension. */
static inline void fy_made_shape(const fy_made_codes *made, uint64_t shape_out[FERRY_MAX_DIMS])
{
    for (uint32_t d = 0; d < made->n_dims; d++) {
        bool is_outer = d + 2 < made->n_dims;
        uint64_t block = is_outer ? 1 : made->conversion->block[d + 2 - made->n_dims];
        shape_out[d] = made->shape[d] / block + (made->shape[d] % block != 0);
    }
}

typedef ferry_status fy_made_codes_visitor(void *context, const fy_made_codes *made);

/* Visits what a rank makes. */
ferry_status fy_plan_visit_made(const ferry_plan *plan, uint32_t rank,
                                fy_made_codes_visitor *visitor, void *context, ferry_error *error);
/* The same of a destination in boxes. */
ferry_status fy_plan_visit_made_boxes(const ferry_plan *plan, uint32_t rank,
                                      fy_made_codes_visitor *visitor, void *context,
                                      ferry_error *error);

/* One more owner of the plan, who calls ferry_plan_destroy as the others do. Any thread may. */
ferry_plan *fy_plan_retain(const ferry_plan *plan);

#endif
