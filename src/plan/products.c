/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank of a destination in boxes multiplies: boxes of codes, and where their scales lie in
 * the parameter beside them.
 */
#include "plan/shards.h"

#include "plan/core.h"

#include "base/alloc.h"
#include "base/sort.h"
#include "model/memory.h"

#include <string.h>

typedef struct walk {
    const ferry_plan *plan;
    const fy_memory *memory;
    fy_product_box_visitor *visitor;
    void *context;
} walk;

/* All that the boxes of one tensor in a parameter have in common. */
typedef struct product_tensor {
    uint32_t parameter;
    const char *scales, *matrix_scales;
    const fy_said_box *of_scales, *of_matrix_scales; /* NULL: codes are not f4 */
    const fy_conversion *conversion;
} product_tensor;

/* Where the scale of the first matrix of a box is, and how far the next ones are. */
static void find_matrix_scales(const product_tensor *its, const fy_memory_box *box,
                               fy_product_box *made)
{
    const fy_said_box *scales = its->of_matrix_scales;
    made->matrix_scales = its->matrix_scales;
    made->matrix_scales_offset = scales->offset;
    for (uint32_t d = 0; d < scales->n_dims; d++) {
        uint64_t stride = fy_said_box_strides(scales)[d];
        made->matrix_scales_strides[d] = stride;
        made->matrix_scales_offset += (box->numbers[d] - scales->numbers[d]) * stride;
    }
}

static ferry_status visit_box(const walk *w, const product_tensor *its, const fy_memory_box *box)
{
    uint32_t n = box->n_dims;
    fy_product_box made = {.parameter = w->memory->side->parameters[its->parameter].name,
                           .scales = its->scales,
                           .conversion = &its->conversion->is,
                           .values = its->conversion->to,
                           .n_dims = n,
                           .offset = box->offset,
                           .scales_offset = its->of_scales->offset};
    memcpy(made.shape, fy_memory_shape(box), n * sizeof *made.shape);
    memcpy(made.strides, fy_memory_strides(box), n * sizeof *made.strides);
    memcpy(made.scales_strides, fy_said_box_strides(its->of_scales),
           n * sizeof *made.scales_strides);
    for (uint32_t d = 0; d < n; d++) {
        uint64_t block = d + 2 < n ? 1 : its->conversion->is.block[d + 2 - n];
        uint64_t first = box->numbers[d] / block;
        if (d + 2 >= n) {
            made.origin[d + 2 - n] = box->numbers[d] % block;
        }
        made.scales_offset += (first - its->of_scales->numbers[d]) * made.scales_strides[d];
    }
    if (its->of_matrix_scales != NULL) {
        find_matrix_scales(its, box, &made);
    }
    return w->visitor(w->context, &made);
}

/* The boxes of a tensor that a list of ranks has in a parameter: they are by parameter. */
static ferry_status visit_tensor(const walk *w, const product_tensor *its, uint32_t variant)
{
    const fy_memory *memory = w->memory;
    const fy_memory_tensor *held = &memory->tensors[variant];
    const fy_spots *spots = &memory->spots[held->spots];
    uint32_t ranks = memory->side->parameters[its->parameter].ranks;
    FY_BISECT(uint32_t, list, 0, spots->n_lists, middle, spots->lists[middle] < ranks);
    const fy_stock *stock = &memory->stocks[held->first_stock + list];
    const fy_memory_box *boxes = memory->boxes + stock->first_box;
    FY_BISECT(uint32_t, first, 0, stock->n_boxes, middle, boxes[middle].parameter < its->parameter);
    ferry_status status = FERRY_OK;
    for (uint32_t i = first; i < stock->n_boxes && boxes[i].parameter == its->parameter; i++) {
        FY_THEN(status, visit_box(w, its, &boxes[i]));
    }
    return status;
}

/* The scales that a box of staged ones is of. */
static const fy_scales *scales_of(const walk *w, const fy_said_box *box)
{
    return w->plan->problem.tensors[w->memory->tensor_of[box->tensor]].staged;
}

/* Of a parameter of scales: all that it has the scales of. What has those of matrices has boxes of
 * the same tensors, in the same order. */
static ferry_status visit_parameter(const walk *w, const fy_parameter *staged)
{
    const fy_memory *memory = w->memory;
    uint32_t other =
        fy_side_find_matrix_staged(memory->side, (uint32_t)(staged - memory->side->parameters));
    const fy_parameter *of_matrices =
        other == FY_NO_PARAMETER ? NULL : &memory->side->parameters[other];
    ferry_status status = FERRY_OK;
    if (scales_of(w, &memory->side->boxes[staged->first_box])->is_of_matrices) {
        return FERRY_OK; /* which come with the others */
    }
    for (uint32_t i = 0; i < staged->n_boxes && status == FERRY_OK; i++) {
        const fy_said_box *of_scales = &memory->side->boxes[staged->first_box + i];
        uint32_t codes = scales_of(w, of_scales)->tensor;
        if ((w->plan->used[1][codes / 8] >> (codes % 8) & 1) == 0) {
            continue; /* the subset is without it */
        }
        uint32_t variant = fy_memory_find_variant(memory, codes, staged->staged - 1);
        product_tensor its = {.parameter = staged->staged - 1,
                              .scales = staged->name,
                              .of_scales = of_scales,
                              .conversion = fy_memory_conversion(memory, variant)};
        if (of_matrices != NULL) {
            its.matrix_scales = of_matrices->name;
            its.of_matrix_scales = &memory->side->boxes[of_matrices->first_box + i];
        }
        status = visit_tensor(w, &its, variant);
    }
    return status;
}

ferry_status fy_plan_visit_products(const ferry_plan *plan, uint32_t rank,
                                    fy_product_box_visitor *visitor, void *context,
                                    ferry_error *error)
{
    walk w = {
        .plan = plan, .memory = plan->problem.memory[1], .visitor = visitor, .context = context};
    uint32_t *numbers = NULL;
    size_t capacity = 0, n = 0;
    if (w.memory == NULL || fy_plan_has_lost(plan, rank)) {
        return FERRY_OK;
    }
    ferry_status status = fy_memory_parameters(w.memory, rank, &numbers, &capacity, &n, error);
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        const fy_parameter *parameter = &w.memory->side->parameters[numbers[i]];
        status = parameter->staged == 0 ? FERRY_OK : visit_parameter(&w, parameter);
    }
    fy_free(numbers);
    return status;
}
