/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The tensors of scales that a destination which quantizes adds to its spec. */
#include "model/spec.h"

#include "base/checked.h"
#include "base/sort.h"
#include "model/rule_index.h"

#include <stdio.h>
#include <string.h>

enum { TITLE_BYTES = 512 };

/* Whether a tensor can be quantized as it is asked. */
static ferry_status check_values(const fy_tensor *values, const fy_said_blocks *blocks,
                                 const char *title, ferry_error *error)
{
    char text[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(values->dtype, text, sizeof text);
    if (values->scales != NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" has the scales of another tensor, and is not quantized too",
                       title, values->name);
    }
    if (values->n_dims < 2) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" has %u dimensions; blocks are of rows and columns", title,
                       values->name, values->n_dims);
    }
    if (!fy_blocks_take(values->dtype)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" is %s; f32, f16 and bf16 are quantized", title, values->name,
                       text);
    }
    uint64_t columns = values->shape[values->n_dims - 1];
    return blocks->codes.element_bits == 8 || columns % 2 == 0
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: \"%s\" has rows of %llu elements, which in f4, two in a byte, would "
                         "end within one; quantize it to a format of 8 bits",
                         title, values->name, (unsigned long long)columns);
}

/* What is given of a tensor that becomes f4: an f32 for each of its matrices. */
static ferry_status check_tensor_scale(const fy_tensor *values, const fy_tensor *given,
                                       const char *title, ferry_error *error)
{
    uint32_t n = values->n_dims - 2;
    bool is_f32 = given->dtype.kind == FERRY_F32 && given->scales == NULL && given->staged == NULL;
    if (!is_f32 || given->n_feeds > 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" becomes nvfp4 by \"%s\", which must be a tensor of f32 that the "
                       "source has as it is, and no other tensor's scales",
                       title, values->name, given->name);
    }
    bool fits = given->n_dims == n && /* a scalar has no array */
                (n == 0 || memcmp(given->shape, values->shape, n * sizeof *values->shape) == 0);
    return fits ? FERRY_OK
                : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                          "%s: \"%s\" becomes nvfp4 by \"%s\", which must have one f32 for each "
                          "matrix: the shape of \"%s\" without its last two dimensions",
                          title, values->name, given->name, values->name);
}

/* Codes of a tensor are made by one tensor of scales of its matrices, whoever wants them. */
static ferry_status add_tensor_scale(ferry_spec *spec, uint32_t tensor,
                                     const fy_said_blocks *blocks, const char *title,
                                     ferry_error *error)
{
    char name[FERRY_NAME_BYTES] = "";
    fy_tensor *values = &spec->tensors[tensor];
    bool fits = fy_blocks_tensor_scale(blocks, values->name, name, sizeof name);
    uint32_t given = fits ? fy_spec_find_tensor(spec, name) : FY_NONE;
    if (given == FY_NONE) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" becomes nvfp4 by \"%s\", and the spec has no tensor of this "
                       "name; add it to \"tensors\", with an f32 for each matrix: its largest "
                       "magnitude / 2688",
                       title, values->name, fits ? name : blocks->tensor_scale);
    }
    if (values->tensor_scale != 0 && values->tensor_scale != given + 1) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" becomes nvfp4 by \"%s\", but elsewhere by \"%s\"; say one "
                       "\"tensor_scale\" for a tensor",
                       title, values->name, name, spec->tensors[values->tensor_scale - 1].name);
    }
    FY_TRY(check_tensor_scale(values, &spec->tensors[given], title, error));
    values->tensor_scale = given + 1;
    return FERRY_OK;
}

/* A tensor of that name is there already: it must be the same. */
static ferry_status check_same(const ferry_spec *spec, const fy_tensor *found, uint32_t tensor,
                               const fy_said_blocks *blocks, const char *title, ferry_error *error)
{
    if (found->scales == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the scales of \"%s\" would be \"%s\", but there is a tensor of this "
                       "name",
                       title, spec->tensors[tensor].name, found->name);
    }
    if (found->scales->tensor != tensor || !fy_blocks_are_alike(&found->scales->blocks, blocks)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" would be the scales of \"%s\", but is those of \"%s\", or in "
                       "another format; a * in \"scale\" stands for the name of the tensor",
                       title, found->name, spec->tensors[tensor].name,
                       spec->tensors[found->scales->tensor].name);
    }
    return FERRY_OK;
}

static ferry_status add_new(ferry_spec *spec, uint32_t tensor, const fy_said_blocks *blocks,
                            const char *name, ferry_error *error)
{
    const fy_tensor values = spec->tensors[tensor];
    fy_scales *scales = fy_arena_alloc(&spec->arena, 1, sizeof *scales);
    uint64_t *shape = fy_arena_alloc(&spec->arena, values.n_dims, sizeof *shape);
    FY_TRY(fy_check_memory(scales != NULL && shape != NULL, "the scales of a tensor", error));
    memcpy(shape, values.shape, values.n_dims * sizeof *shape);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t d = values.n_dims - 2 + i;
        shape[d] = fy_ceil_div(shape[d], blocks->block[i]);
    }
    *scales = (fy_scales){.tensor = tensor,
                          .blocks = *blocks,
                          .conversion =
                              fy_blocks_conversion(blocks, values.dtype, FERRY_CONVERSION_SCALES)};
    FY_TRY(fy_spec_add_tensor(spec, name, blocks->scales, shape, values.n_dims, error));
    spec->tensors[spec->n_tensors - 1].scales = scales;
    return FERRY_OK;
}

ferry_status fy_spec_add_scales(ferry_spec *spec, uint32_t tensor, const fy_said_blocks *blocks,
                                const char *title, ferry_error *error)
{
    char name[FERRY_NAME_BYTES];
    FY_TRY(check_values(&spec->tensors[tensor], blocks, title, error));
    if (blocks->tensor_scale != NULL) {
        FY_TRY(add_tensor_scale(spec, tensor, blocks, title, error));
    }
    if (!fy_blocks_name(blocks, spec->tensors[tensor].name, name, sizeof name)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the name of the scales of \"%s\" would be longer than %d bytes", title,
                       spec->tensors[tensor].name, FERRY_NAME_BYTES - 1);
    }
    uint32_t found = fy_spec_find_tensor(spec, name);
    return found == FY_NONE ? add_new(spec, tensor, blocks, name, error)
                            : check_same(spec, &spec->tensors[found], tensor, blocks, title, error);
}

static bool has_blocks(const fy_side *side)
{
    for (size_t i = 0; i < side->n_rules; i++) {
        if (side->rules[i].blocks != NULL) {
            return true;
        }
    }
    return false;
}

/* Scales are where their values are: a rule that has the name of some would say nothing. */
static ferry_status check_rules(const ferry_spec *spec, const fy_side *side, ferry_error *error)
{
    for (size_t i = 0; i < side->n_rules; i++) {
        uint32_t found = fy_spec_find_tensor(spec, side->rules[i].match);
        if (found != FY_NONE && spec->tensors[found].scales != NULL) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: rule \"%s\" names the scales of \"%s\", which are where the blocks "
                           "of that are: no rule places, casts or quantizes them",
                           side->name, side->rules[i].match,
                           spec->tensors[spec->tensors[found].scales->tensor].name);
        }
    }
    return FERRY_OK;
}

ferry_status fy_spec_add_rule_scales(ferry_spec *spec, ferry_error *error)
{
    fy_rule_index rules = {0};
    uint32_t n = spec->n_tensors;
    if (!has_blocks(&spec->destination)) {
        return FERRY_OK;
    }
    ferry_status status = fy_rule_index_init(&rules, &spec->destination, error);
    for (uint32_t t = 0; t < n && status == FERRY_OK; t++) {
        const fy_tensor *tensor = &spec->tensors[t];
        const fy_rule *rule = fy_rule_index_find(&rules, tensor->name, strlen(tensor->name));
        char title[TITLE_BYTES];
        if (rule == NULL || rule->skip || rule->blocks == NULL || tensor->is_source_only) {
            continue;
        }
        snprintf(title, sizeof title, "destination: rule \"%.400s\"", rule->match);
        status = fy_spec_add_scales(spec, t, rule->blocks, title, error);
    }
    fy_rule_index_cleanup(&rules);
    FY_THEN(status, check_rules(spec, &spec->source, error));
    FY_THEN(status, check_rules(spec, &spec->destination, error));
    return status;
}

/* A tensor that a parameter quantizes. */
typedef struct asked_scales {
    uint32_t tensor;
    const fy_parameter *parameter;
} asked_scales;

static bool asks(const ferry_side *boxes)
{
    for (size_t p = 0; p < boxes->n_parameters; p++) {
        if (boxes->parameters[p].blocks != NULL) {
            return true;
        }
    }
    return false;
}

static int compare_asked(const void *a, const void *b)
{
    const asked_scales *x = a, *y = b;
    if (x->tensor != y->tensor) {
        return x->tensor < y->tensor ? -1 : 1;
    }
    return strcmp(x->parameter->blocks->scale, y->parameter->blocks->scale);
}

/* In the order of tensors, so that it does not matter in which order boxes are said. */
ferry_status fy_spec_add_box_scales(ferry_spec *spec, const ferry_side *boxes, ferry_error *error)
{
    size_t n = 0;
    if (!asks(boxes)) {
        return FERRY_OK;
    }
    asked_scales *asked = fy_alloc(boxes->n_boxes, sizeof *asked);
    FY_TRY(fy_check_memory(asked != NULL, "the scales of a side", error));
    for (size_t i = 0; i < boxes->n_boxes; i++) {
        const fy_parameter *parameter = &boxes->parameters[boxes->boxes[i].parameter];
        uint32_t tensor =
            parameter->blocks == NULL
                ? FY_NONE
                : fy_spec_find_tensor(spec, boxes->tensors[boxes->boxes[i].tensor].name);
        if (tensor != FY_NONE) { /* that there is none is said with the box */
            asked[n++] = (asked_scales){.tensor = tensor, .parameter = parameter};
        }
    }
    fy_sort(asked, n, sizeof *asked, compare_asked);
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        char title[TITLE_BYTES];
        snprintf(title, sizeof title, "destination: parameter \"%.400s\"",
                 asked[i].parameter->name);
        status =
            fy_spec_add_scales(spec, asked[i].tensor, asked[i].parameter->blocks, title, error);
    }
    fy_free(asked);
    return status;
}
