/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Scales that come with codes into boxes. A parameter that dequantizes has a second one beside it,
 * which is not the caller's: of each tensor's scales the smallest box that has those of all its
 * boxes, row-major, one behind the other by the names of the codes. It is planned as any other. Of
 * f4 there is a third one, with the scales of the same matrices.
 */
#include "model/spec.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"

#include <stdio.h>
#include <string.h>

enum { TITLE_BYTES = 512 };

/* What a parameter needs of the scales of one tensor. */
typedef struct need {
    uint32_t parameter;
    uint32_t codes; /* of the spec */
    fy_staged staged;
    const char *name;               /* of the codes */
    uint64_t begin[FERRY_MAX_DIMS]; /* in scales */
    uint64_t end[FERRY_MAX_DIMS];
} need;

typedef struct staging {
    ferry_spec *spec;
    ferry_side *boxes;
    const uint32_t *tensor_of;
    need *needs;
    size_t n, capacity;
} staging;

/* So scales lie in one order, whoever knows the tensors in another one. */
static int compare_by_parameter(const void *a, const void *b)
{
    const need *x = a, *y = b;
    if (x->parameter != y->parameter) {
        return x->parameter < y->parameter ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

/* So tensors are added in one order, however boxes are said. */
static int compare_by_codes(const void *a, const void *b)
{
    const need *x = a, *y = b;
    if (x->codes != y->codes) {
        return x->codes < y->codes ? -1 : 1;
    }
    return (x->parameter > y->parameter) - (x->parameter < y->parameter);
}

static bool is_empty(const fy_said_box *box)
{
    for (uint32_t d = 0; d < box->n_dims; d++) {
        if (fy_said_box_shape(box)[d] == 0) {
            return true;
        }
    }
    return false;
}

/* The scales of a box, with all that repeats make of it; it was checked. */
static need need_of(const staging *s, const fy_said_box *box)
{
    const fy_said_blocks *codes = s->boxes->parameters[box->parameter].codes;
    need its = {.parameter = box->parameter,
                .codes = s->tensor_of[box->tensor],
                .name = s->boxes->tensors[box->tensor].name};
    bool has_none = is_empty(box);
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) {
        its.begin[d] = has_none ? UINT64_MAX : 0; /* wider than nothing is what comes next */
        its.end[d] = 0;
    }
    for (uint32_t d = 0; d < box->n_dims && !has_none; d++) {
        uint64_t block = d + 2 < box->n_dims ? 1 : codes->block[d + 2 - box->n_dims];
        uint64_t end = box->numbers[d] + fy_said_box_shape(box)[d];
        for (uint32_t r = 0; r < box->n_repeats; r++) {
            const uint64_t *repeat = fy_said_box_repeat(box, r);
            end += (repeat[0] - 1) * repeat[2 + d];
        }
        its.begin[d] = box->numbers[d] / block;
        its.end[d] = fy_ceil_div(end, block);
    }
    return its;
}

static void widen(need *all, const need *more)
{
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) {
        all->begin[d] = fy_min(all->begin[d], more->begin[d]);
        all->end[d] = fy_max(all->end[d], more->end[d]);
    }
}

/* Of each parameter and tensor one; boxes come by parameter. */
static ferry_status list_needs(staging *s, ferry_error *error)
{
    for (size_t i = 0; i < s->boxes->n_boxes; i++) {
        const fy_said_box *box = &s->boxes->boxes[i];
        if (s->boxes->parameters[box->parameter].codes == NULL) {
            continue;
        }
        need its = need_of(s, box);
        if (s->n > 0 && compare_by_parameter(&s->needs[s->n - 1], &its) == 0) {
            widen(&s->needs[s->n - 1], &its);
            continue;
        }
        FY_TRY(FY_GROW(s->needs, s->capacity, s->n + 1, "the scales of a side", error));
        s->needs[s->n++] = its;
    }
    fy_sort(s->needs, s->n, sizeof *s->needs, compare_by_parameter);
    size_t kept = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (kept > 0 && compare_by_parameter(&s->needs[kept - 1], &s->needs[i]) == 0) {
            widen(&s->needs[kept - 1], &s->needs[i]);
        } else {
            s->needs[kept++] = s->needs[i];
        }
    }
    s->n = kept;
    return FERRY_OK;
}

static ferry_status stage_tensors(staging *s, ferry_error *error)
{
    fy_sort(s->needs, s->n, sizeof *s->needs, compare_by_codes);
    for (size_t i = 0; i < s->n; i++) {
        const fy_parameter *parameter = &s->boxes->parameters[s->needs[i].parameter];
        char title[TITLE_BYTES];
        snprintf(title, sizeof title, "destination: parameter \"%.400s\"", parameter->name);
        FY_TRY(fy_spec_stage_scales(s->spec, s->needs[i].codes, parameter->codes, title,
                                    &s->needs[i].staged, error));
    }
    fy_sort(s->needs, s->n, sizeof *s->needs, compare_by_parameter);
    return FERRY_OK;
}

/* The scales of a parameter are of one type, which is kept with what it says. */
static ferry_status note_type(staging *s, const need *needs, size_t n, ferry_error *error)
{
    fy_parameter *of = &s->boxes->parameters[needs->parameter];
    const fy_tensor *first = &s->spec->tensors[needs->staged.of_blocks];
    fy_said_blocks *codes = fy_arena_alloc(&s->boxes->arena, 1, sizeof *codes);
    FY_TRY(fy_check_memory(codes != NULL, "the scales of a side", error));
    for (size_t i = 1; i < n; i++) {
        const fy_tensor *other = &s->spec->tensors[needs[i].staged.of_blocks];
        if (other->dtype.kind != first->dtype.kind) {
            char one[FERRY_DTYPE_TEXT_BYTES], two[FERRY_DTYPE_TEXT_BYTES];
            ferry_dtype_format(first->dtype, one, sizeof one);
            ferry_dtype_format(other->dtype, two, sizeof two);
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "destination: parameter \"%.400s\": \"%s\" are %s and \"%s\" %s; what "
                           "one parameter dequantizes has scales of one type",
                           of->name, first->name, one, other->name, two);
        }
    }
    *codes = *of->codes;
    codes->scales = first->dtype;
    of->codes = codes;
    return FERRY_OK;
}

/*
 * Row-major, from an offset on; *elements_inout: of all before, and then with it. Matrices are
 * numbered by the first dimensions of the blocks.
 */
static ferry_status make_box(staging *s, const need *its, uint32_t number, fy_said_box *box,
                             uint64_t *elements_inout, ferry_error *error)
{
    const fy_tensor *staged = &s->spec->tensors[number];
    uint32_t n = staged->n_dims;
    uint64_t *numbers = fy_arena_alloc(&s->boxes->arena, 3 * (size_t)n + 1, sizeof *numbers);
    uint64_t stride = 1; /* no more than the scales that there are */
    FY_TRY(fy_check_memory(numbers != NULL, "the scales of a side", error));
    for (uint32_t d = n; d-- > 0;) {
        numbers[d] = its->begin[d];
        numbers[n + d] = its->end[d] - its->begin[d];
        numbers[2 * n + d] = stride;
        stride *= numbers[n + d];
    }
    *box = (fy_said_box){.n_dims = n, .offset = *elements_inout, .numbers = numbers};
    if (!fy_add(*elements_inout, stride, elements_inout) || *elements_inout > INT64_MAX / 64) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "destination: parameter \"%.400s\" has more than 2^57 scales",
                       s->boxes->parameters[its->parameter].name);
    }
    return fy_side_name_tensor(s->boxes, staged->name, &box->tensor, error);
}

/* One of what stands beside a parameter, whose needs these are. */
static ferry_status stage_parameter(staging *s, const need *needs, size_t n, bool is_of_matrices,
                                    ferry_error *error)
{
    const char *of = s->boxes->parameters[needs->parameter].name;
    char name[FERRY_NAME_BYTES];
    uint64_t elements = 0;
    size_t n_boxes = 0;
    uint32_t number = FY_NONE;
    fy_said_box *boxes = fy_alloc(n, sizeof *boxes);
    int length = snprintf(name, sizeof name, "%s%s", of, is_of_matrices ? ":scales_2" : ":scales");
    ferry_status status = fy_check_memory(boxes != NULL, "the scales of a side", error);
    if (status == FERRY_OK && (length < 0 || (size_t)length >= sizeof name)) {
        status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "destination: parameter \"%.400s\": the name of its scales would be "
                         "longer than %d bytes",
                         of, FERRY_NAME_BYTES - 1);
    }
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        if (needs[i].end[0] > needs[i].begin[0]) { /* else its boxes are empty */
            number = is_of_matrices ? needs[i].staged.of_matrices : needs[i].staged.of_blocks;
            status = make_box(s, &needs[i], number, &boxes[n_boxes++], &elements, error);
        }
    }
    if (status == FERRY_OK && n_boxes > 0) {
        status =
            fy_side_add_staged(s->boxes, needs->parameter, name, s->spec->tensors[number].dtype,
                               elements, boxes, n_boxes, error);
    }
    fy_free(boxes);
    return status;
}

static ferry_status stage_all(staging *s, ferry_error *error)
{
    FY_TRY(list_needs(s, error));
    FY_TRY(stage_tensors(s, error));
    for (size_t i = 0, n; i < s->n; i += n) {
        for (n = 1; i + n < s->n && s->needs[i + n].parameter == s->needs[i].parameter;) {
            n++;
        }
        FY_TRY(note_type(s, &s->needs[i], n, error));
        FY_TRY(stage_parameter(s, &s->needs[i], n, false, error));
        if (s->needs[i].staged.of_matrices != FY_NONE) { /* f4: and so are all, by their scales */
            FY_TRY(stage_parameter(s, &s->needs[i], n, true, error));
        }
    }
    return FERRY_OK;
}

ferry_status fy_spec_add_box_staged(ferry_spec *spec, ferry_side *boxes, const uint32_t *tensor_of,
                                    bool *any_out, ferry_error *error)
{
    staging s = {.spec = spec, .boxes = boxes, .tensor_of = tensor_of};
    ferry_status status = stage_all(&s, error);
    *any_out = s.n > 0;
    fy_free(s.needs);
    return status;
}
