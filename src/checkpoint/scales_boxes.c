/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The scales of what parameters of a result become codes of. Boxes may say where they lie, as of
 * any tensor; of a weight whose scales no box is of, they come in a parameter beside each that has
 * codes of it: of each weight the smallest box of scales that has those of all its boxes,
 * row-major, one behind the other as the codes lie. Scales of whole matrices likewise, in another
 * one.
 */
#include "checkpoint/changes.h"

#include "base/checked.h"
#include "base/sort.h"

#include <stdio.h>
#include <string.h>

/* What a parameter needs of the scales of one weight. */
typedef struct need {
    uint32_t parameter;
    uint32_t weight;
    uint64_t offset; /* of the first code */
    uint64_t begin[FERRY_MAX_DIMS], end[FERRY_MAX_DIMS];
} need;

typedef struct adding {
    const ferry_spec *spec;
    const fy_change *changes;
    ferry_side *boxes;
    const char *side_name;
    bool *is_said;    /* [spec->n_tensors] a box is of it */
    bool of_matrices; /* else of blocks */
    need *needs;
    size_t n, capacity;
} adding;

/* The scales of a weight that are at work; FY_NONE: it has none such. */
static uint32_t scales_of(const adding *a, uint32_t weight)
{
    const fy_change *change = &a->changes[weight];
    return a->of_matrices ? change->matrix_scales : change->scales;
}

/* That of a need. */
static const fy_tensor *tensor_of(const adding *a, const need *its)
{
    return &a->spec->tensors[scales_of(a, its->weight)];
}

static int compare_numbers(uint64_t x, uint64_t y)
{
    return (x > y) - (x < y);
}

static int compare_by_weight(const void *a, const void *b)
{
    const need *x = a, *y = b;
    int parameters = compare_numbers(x->parameter, y->parameter);
    return parameters != 0 ? parameters : compare_numbers(x->weight, y->weight);
}

static int compare_by_place(const void *a, const void *b)
{
    const need *x = a, *y = b;
    int parameters = compare_numbers(x->parameter, y->parameter);
    int offsets = parameters != 0 ? parameters : compare_numbers(x->offset, y->offset);
    return offsets != 0 ? offsets : compare_numbers(x->weight, y->weight);
}

/* Of a box with its repeats; false: it has no element, or is none of this tensor, which is told
 * when the side is held against the tensors. */
static bool find_need(const adding *a, const fy_said_box *box, need *its)
{
    const fy_tensor *weight = &a->spec->tensors[its->weight];
    fy_box of, scales;
    if (box->n_dims != weight->n_dims) {
        return false;
    }
    for (uint32_t d = 0; d < box->n_dims; d++) {
        uint64_t end, reach;
        bool fits = fy_add(box->numbers[d], fy_said_box_shape(box)[d], &end);
        for (uint32_t r = 0; r < box->n_repeats && fits; r++) {
            const uint64_t *repeat = fy_said_box_repeat(box, r);
            fits = repeat[0] > 0 && fy_mul(repeat[0] - 1, repeat[2 + d], &reach) &&
                   fy_add(end, reach, &end);
        }
        of.begin[d] = box->numbers[d];
        of.length[d] = end - box->numbers[d];
        if (!fits || fy_said_box_shape(box)[d] == 0 || end > weight->shape[d]) {
            return false;
        }
    }
    fy_change_scales_box(&a->changes[its->weight].format, box->n_dims, &of, &scales);
    /* Leading dimensions are those of the weight. */
    for (uint32_t d = 0; d < tensor_of(a, its)->n_dims; d++) {
        its->begin[d] = scales.begin[d];
        its->end[d] = scales.begin[d] + scales.length[d];
    }
    return true;
}

static ferry_status list_needs(adding *a, ferry_error *error)
{
    for (size_t i = 0; i < a->boxes->n_boxes; i++) {
        const fy_said_box *box = &a->boxes->boxes[i];
        uint32_t t = fy_spec_find_tensor(a->spec, a->boxes->tensors[box->tensor].name);
        need its = {.parameter = box->parameter, .weight = t, .offset = box->offset};
        if (t == FY_NONE || a->changes[t].kind != FY_QUANTIZED || scales_of(a, t) == FY_NONE ||
            a->is_said[scales_of(a, t)] || !find_need(a, box, &its)) {
            continue;
        }
        FY_TRY(FY_GROW(a->needs, a->capacity, a->n + 1, "the scales of a layout", error));
        a->needs[a->n++] = its;
    }
    return FERRY_OK;
}

/* Of each parameter and weight one. */
static void join_needs(adding *a)
{
    size_t kept = 0;
    fy_sort(a->needs, a->n, sizeof *a->needs, compare_by_weight);
    for (size_t i = 0; i < a->n; i++) {
        const need *its = &a->needs[i];
        need *last = kept == 0 ? NULL : &a->needs[kept - 1];
        if (last == NULL || compare_by_weight(last, its) != 0) {
            a->needs[kept++] = *its;
            continue;
        }
        last->offset = fy_min(last->offset, its->offset);
        for (uint32_t d = 0; d < tensor_of(a, its)->n_dims; d++) {
            last->begin[d] = fy_min(last->begin[d], its->begin[d]);
            last->end[d] = fy_max(last->end[d], its->end[d]);
        }
    }
    a->n = kept;
    fy_sort(a->needs, a->n, sizeof *a->needs, compare_by_place);
}

/* Row-major, from an offset on; *elements_inout: of all before, and then with it. */
static ferry_status add_box(adding *a, const need *its, size_t parameter, uint64_t *elements_inout,
                            ferry_error *error)
{
    const fy_tensor *scales = tensor_of(a, its);
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    uint64_t stride = 1; /* no more than the scales that there are */
    box.tensor = scales->name;
    box.n_dims = scales->n_dims;
    box.offset = *elements_inout;
    for (uint32_t d = scales->n_dims; d-- > 0;) {
        box.begin[d] = its->begin[d];
        box.shape[d] = its->end[d] - its->begin[d];
        box.strides[d] = stride;
        stride *= box.shape[d];
    }
    *elements_inout += stride;
    return ferry_side_add_box(a->boxes, parameter, &box, error);
}

/* The leading dimensions of the codes in files, where it has as many elements as those. */
static ferry_status set_leading_shape(const adding *a, const need *needs, size_t parameter,
                                      uint64_t elements, ferry_error *error)
{
    const fy_parameter *of = &a->boxes->parameters[needs->parameter];
    uint64_t all = 1;
    if (of->shape == NULL || of->n_dims < 2) {
        return FERRY_OK;
    }
    for (uint32_t d = 0; d + 2 < of->n_dims; d++) {
        all *= of->shape[d]; /* of the elements of a parameter: no overflow */
    }
    return all != elements
               ? FERRY_OK
               : ferry_side_set_shape(a->boxes, parameter, of->n_dims - 2, of->shape, error);
}

/* As many dimensions as the codes have in files, where boxes beside each other are rows of one. */
static ferry_status set_shape(const adding *a, const need *needs, size_t n, size_t parameter,
                              uint64_t elements, ferry_error *error)
{
    const fy_parameter *of = &a->boxes->parameters[needs->parameter];
    uint64_t shape[FERRY_MAX_DIMS], columns = 0, rest = 1;
    if (of->shape == NULL || of->n_dims < 2) {
        return FERRY_OK;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t last = a->spec->tensors[needs[i].weight].n_dims - 1;
        uint64_t its = needs[i].end[last] - needs[i].begin[last];
        if (i > 0 && its != columns) {
            return FERRY_OK;
        }
        columns = its;
    }
    for (uint32_t d = 0; d + 2 < of->n_dims; d++) {
        shape[d] = of->shape[d];
        rest *= shape[d]; /* of the elements of a parameter: no overflow */
    }
    if (rest == 0 || elements % columns != 0 || elements / columns % rest != 0) {
        return FERRY_OK;
    }
    shape[of->n_dims - 2] = elements / columns / rest;
    shape[of->n_dims - 1] = columns;
    return ferry_side_set_shape(a->boxes, parameter, of->n_dims, shape, error);
}

/* What stands beside a parameter, whose needs these are. */
static ferry_status add_parameter(adding *a, const need *needs, size_t n, ferry_error *error)
{
    const fy_parameter *of = &a->boxes->parameters[needs->parameter];
    const fy_change *change = &a->changes[needs->weight];
    const char *suffix =
        a->of_matrices ? FY_MATRIX_SCALES_SUFFIX : fy_scales_suffix(&change->format);
    ferry_dtype dtype = a->changes[scales_of(a, needs->weight)].dtype;
    const fy_rank_list *list = &a->boxes->lists[of->ranks];
    char name[FERRY_NAME_BYTES];
    size_t number;
    uint64_t elements = 0, all = 0;
    int length = snprintf(name, sizeof name, "%s%s", of->name, suffix);
    if (length < 0 || (size_t)length >= sizeof name) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: parameter \"%.400s\": the name of its scales would be longer than %d "
                       "bytes; say where they lie by boxes of \"%.400s\"",
                       a->side_name, of->name, FERRY_NAME_BYTES - 1, tensor_of(a, needs)->name);
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t its = 1;
        for (uint32_t d = 0; d < tensor_of(a, &needs[i])->n_dims; d++) {
            its *= needs[i].end[d] - needs[i].begin[d];
        }
        elements += its;
    }
    FY_TRY(ferry_side_add_parameter(a->boxes, list->ranks, list->n, name, &dtype, elements, 0,
                                    &number, error));
    for (size_t i = 0; i < n; i++) {
        FY_TRY(add_box(a, &needs[i], number, &all, error));
    }
    return a->of_matrices ? set_leading_shape(a, needs, number, elements, error)
                          : set_shape(a, needs, n, number, elements, error);
}

static void note_said(adding *a)
{
    for (size_t i = 0; i < a->boxes->n_boxes; i++) {
        const char *name = a->boxes->tensors[a->boxes->boxes[i].tensor].name;
        uint32_t t = fy_spec_find_tensor(a->spec, name);
        a->is_said[t == FY_NONE ? a->spec->n_tensors : t] = true;
    }
}

static ferry_status add_all(adding *a, bool of_matrices, ferry_error *error)
{
    a->of_matrices = of_matrices;
    a->n = 0;
    FY_TRY(list_needs(a, error));
    join_needs(a);
    for (size_t i = 0, n; i < a->n; i += n) {
        for (n = 1; i + n < a->n && a->needs[i + n].parameter == a->needs[i].parameter;) {
            n++;
        }
        FY_TRY(add_parameter(a, &a->needs[i], n, error));
    }
    return FERRY_OK;
}

ferry_status fy_changes_add_scale_boxes(const ferry_spec *spec, const fy_change *changes,
                                        ferry_side *boxes, const char *name, ferry_error *error)
{
    adding a = {.spec = spec, .changes = changes, .boxes = boxes, .side_name = name};
    a.is_said = fy_alloc_zeroed(spec->n_tensors + (size_t)1, sizeof *a.is_said);
    FY_TRY(fy_check_memory(a.is_said != NULL, "the scales of a layout", error));
    note_said(&a);
    ferry_status status = add_all(&a, false, error);
    FY_THEN(status, add_all(&a, true, error));
    fy_free(a.is_said);
    fy_free(a.needs);
    return status;
}
