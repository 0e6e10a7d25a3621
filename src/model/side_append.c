/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What one side was told, told to another one. */
#include "model/side.h"

#include <string.h>

/* Scales come behind all that was said, and so do their boxes. */
static size_t count_said(const ferry_side *side, size_t *n_boxes_out)
{
    size_t n = side->n_parameters;
    *n_boxes_out = side->n_boxes;
    while (n > 0 && side->parameters[n - 1].staged != 0) {
        *n_boxes_out = side->parameters[--n].first_box;
    }
    return n;
}

static ferry_status append_parameters(ferry_side *side, const ferry_side *other,
                                      const uint32_t *own, size_t n_own, ferry_error *error)
{
    size_t n_boxes, n_said = count_said(other, &n_boxes);
    for (size_t p = 0; p < n_said; p++) {
        const fy_parameter *parameter = &other->parameters[p];
        const uint32_t *ranks = own;
        size_t n = n_own, number;
        if (parameter->ranks != FY_OWN_RANK) {
            ranks = other->lists[parameter->ranks].ranks;
            n = other->lists[parameter->ranks].n;
        }
        FY_TRY(ferry_side_add_parameter(
            side, ranks, n, parameter->name, parameter->dtype.kind == 0 ? NULL : &parameter->dtype,
            parameter->elements, parameter->is_partial ? FERRY_PARAMETER_PARTIAL : 0, &number,
            error));
        side->parameters[number].cast = parameter->cast;
        if (parameter->shape != NULL) {
            FY_TRY(ferry_side_set_shape(side, number, parameter->n_dims, parameter->shape, error));
        }
        if (parameter->blocks != NULL) {
            const fy_said_blocks *blocks = fy_blocks_copy(parameter->blocks, &side->arena);
            FY_TRY(fy_check_memory(blocks != NULL, "the parameters of a side", error));
            side->parameters[number].blocks = blocks;
        }
        if (parameter->codes != NULL) {
            FY_TRY(ferry_side_set_dequantize(side, number, parameter->codes->scale,
                                             parameter->codes->block, error));
        }
    }
    return FERRY_OK;
}

/* numbers_out: of the other side's tensors, in this one. */
static ferry_status append_tensors(ferry_side *side, const ferry_side *other, uint32_t *numbers_out,
                                   ferry_error *error)
{
    for (size_t t = 0; t < other->n_tensors; t++) {
        const fy_side_tensor *tensor = &other->tensors[t];
        if (tensor->shape != NULL) {
            FY_TRY(ferry_side_add_tensor(side, tensor->name, tensor->dtype, tensor->n_dims,
                                         tensor->shape, error));
        }
        FY_TRY(fy_side_name_tensor(side, tensor->name, &numbers_out[t], error));
    }
    return FERRY_OK;
}

/* They were checked when they were added there. */
static ferry_status append_boxes(ferry_side *side, const ferry_side *other, size_t first,
                                 const uint32_t *tensors, ferry_error *error)
{
    size_t n_boxes;
    (void)count_said(other, &n_boxes);
    if (n_boxes > FY_MAX_BOXES - side->n_boxes) {
        return fy_fail(error, FERRY_ERR_LIMIT, "more than %d boxes", FY_MAX_BOXES);
    }
    FY_TRY(FY_GROW(side->boxes, side->box_capacity, side->n_boxes + n_boxes, "the boxes of a side",
                   error));
    for (size_t i = 0; i < n_boxes; i++) {
        fy_said_box box = other->boxes[i];
        size_t n = box.n_dims, n_numbers = 3 * n + box.n_repeats * (2 + n);
        uint64_t *numbers = fy_arena_alloc(&side->arena, n_numbers + 1, sizeof *numbers);
        FY_TRY(fy_check_memory(numbers != NULL, "the boxes of a side", error));
        memcpy(numbers, box.numbers, n_numbers * sizeof *numbers);
        box.numbers = numbers;
        box.parameter += (uint32_t)first;
        box.tensor = tensors[box.tensor];
        side->boxes[side->n_boxes++] = box;
    }
    return FERRY_OK;
}

static ferry_status append_fills(ferry_side *side, const ferry_side *other, size_t first,
                                 ferry_error *error)
{
    for (size_t i = 0; i < other->n_fills; i++) {
        const fy_fill *fill = &other->fills[i];
        FY_TRY(ferry_side_add_fill(side, first + fill->parameter, fill->n_dims, fill->offset,
                                   fill->numbers, fill->numbers + fill->n_dims, fill->bits, error));
        side->fills[side->n_fills - 1].n_digits = fill->n_digits;
    }
    return FERRY_OK;
}

ferry_status fy_side_append(ferry_side *side, const ferry_side *other, const uint32_t *own,
                            size_t n_own, ferry_error *error)
{
    size_t first = side->n_parameters;
    uint32_t *tensors = fy_alloc(other->n_tensors, sizeof *tensors);
    FY_TRY(fy_check_memory(tensors != NULL, "the tensors of a side", error));
    ferry_status status = append_tensors(side, other, tensors, error);
    FY_THEN(status, append_parameters(side, other, own, n_own, error));
    FY_THEN(status, append_boxes(side, other, first, tensors, error));
    FY_THEN(status, append_fills(side, other, first, error));
    fy_free(tensors);
    return status;
}
