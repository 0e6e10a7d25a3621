/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What parameters need of a source that may have only parts of tensors. An element becomes a code
 * by the scale of its block, which all values of the block make; scales of whole matrices are made
 * of all values of these. So more may be needed than boxes are of.
 */
#include "base/checked.h"
#include "checkpoint/cover.h"
#include "model/memory.h"

#include <stdio.h>
#include <string.h>

typedef struct needing {
    const fy_making_of *of;
    uint32_t parameter;
} needing;

static ferry_status fail_missing(const needing *n, uint32_t tensor, const char *why,
                                 const uint64_t *place, ferry_error *error)
{
    const fy_boxed *boxed = n->of->boxed;
    const fy_tensor *t = &n->of->plain->problem.tensors[tensor];
    char index[24 * FERRY_MAX_DIMS];
    fy_format_shape(place, t->n_dims, index, sizeof index);
    return fy_fail(error, n->of->status,
                   "%s: parameter \"%.200s\" of rank %u needs element %s of \"%.200s\"%s, which no "
                   "rank of %s has; leave its box out, or take a checkpoint that has it",
                   boxed->name, boxed->side->parameters[n->parameter].name,
                   fy_boxed_holders(boxed, n->parameter)->ranks[0], index, t->name, why,
                   n->of->plain->from->path);
}

static ferry_status need(const needing *n, uint32_t tensor, const fy_box *box, const char *why,
                         ferry_error *error)
{
    uint64_t place[FERRY_MAX_DIMS];
    bool is_missing = false;
    FY_TRY(fy_job_find_missing(n->of->plain, tensor, box, &is_missing, place, error));
    return is_missing ? fail_missing(n, tensor, why, place, error) : FERRY_OK;
}

/* The values that scales of a box are made of. */
static ferry_status need_blocks(const needing *n, uint32_t weight, const fy_box *scales,
                                ferry_error *error)
{
    const fy_layout_job *job = n->of->job;
    const fy_tensor *w = &job->problem.tensors[weight];
    fy_box values;
    fy_change_values_box(&job->changes[weight].format, w->shape, w->n_dims, scales, &values);
    return need(n, weight, &values, " for the scale of its block", error);
}

/* The matrices of a box. */
static ferry_status need_matrices(const needing *n, uint32_t weight, const fy_box *of,
                                  ferry_error *error)
{
    const fy_layout_job *job = n->of->job;
    const fy_tensor *w = &job->problem.tensors[weight];
    fy_box values = *of;
    if (!fy_format_has_tensor_scale(&job->changes[weight].format)) {
        return FERRY_OK;
    }
    for (uint32_t d = w->n_dims - 2; d < w->n_dims; d++) {
        values.begin[d] = 0;
        values.length[d] = w->shape[d];
    }
    return need(n, weight, &values, " for the scale of its matrix", error);
}

static ferry_status need_scales(const needing *n, uint32_t tensor, const fy_box *codes,
                                ferry_error *error)
{
    const fy_change *change = &n->of->job->changes[tensor];
    fy_box scales;
    fy_change_scales_box(&change->format, n->of->job->problem.tensors[tensor].n_dims, codes,
                         &scales);
    FY_TRY(need(n, change->scales, &scales, "", error));
    return change->matrix_scales == FY_NONE ? FERRY_OK
                                            : need(n, change->matrix_scales, codes, "", error);
}

static ferry_status check_box(const needing *n, uint32_t tensor, const fy_box *box,
                              ferry_error *error)
{
    const fy_change *change = &n->of->job->changes[tensor];
    fy_box scales;
    switch (change->kind) {
    case FY_QUANTIZED:
        fy_change_scales_box(&change->format, n->of->job->problem.tensors[tensor].n_dims, box,
                             &scales);
        FY_TRY(need(n, tensor, box, "", error));
        FY_TRY(need_blocks(n, tensor, &scales, error));
        return need_matrices(n, tensor, box, error);
    case FY_SCALES:
        FY_TRY(need_blocks(n, change->weight, box, error));
        return need_matrices(n, change->weight, box, error);
    case FY_MATRIX_SCALES:
        return need_matrices(n, change->weight, box, error);
    case FY_DEQUANTIZED:
        FY_TRY(need(n, tensor, box, "", error));
        return need_scales(n, tensor, box, error);
    case FY_KEPT:
    case FY_CAST:
        break;
    }
    return need(n, tensor, box, "", error);
}

/* Boxes of one tensor in the parameters of a list of ranks. */
static ferry_status check_stock(const fy_making_of *of, uint32_t tensor, const fy_memory *memory,
                                const fy_stock *stock, ferry_error *error)
{
    for (uint32_t i = 0; i < stock->n_boxes; i++) {
        const fy_memory_box *said = &memory->boxes[stock->first_box + i];
        needing n = {.of = of, .parameter = said->parameter};
        fy_box box = {{0}, {0}};
        if (of->are_wanted != NULL && !of->are_wanted[said->parameter]) {
            continue;
        }
        for (uint32_t d = 0; d < said->n_dims; d++) {
            box.begin[d] = said->numbers[d];
            box.length[d] = fy_memory_shape(said)[d];
        }
        FY_TRY(check_box(&n, tensor, &box, error));
    }
    return FERRY_OK;
}

ferry_status fy_making_check(const fy_making_of *of, ferry_error *error)
{
    fy_side *side = &of->boxed->spec->destination;
    if (of->plain->covers == NULL) {
        return FERRY_OK;
    }
    FY_TRY(side->memory != NULL ? FERRY_OK : fy_spec_make_memory(of->boxed->spec, side, error));
    const fy_memory *memory = side->memory;
    for (uint32_t t = 0; t < memory->n_tensors; t++) {
        const fy_memory_tensor *held = &memory->tensors[t];
        uint32_t number = of->number_in_job == NULL ? t : of->number_in_job[t];
        if (held->spots == FY_NO_SPOTS) {
            continue;
        }
        for (uint32_t i = 0; i < memory->spots[held->spots].n_lists; i++) {
            FY_TRY(check_stock(of, number, memory, &memory->stocks[held->first_stock + i], error));
        }
    }
    return FERRY_OK;
}
