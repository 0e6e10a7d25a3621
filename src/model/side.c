/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/side.h"

#include "base/checked.h"
#include "base/options.h"
#include "base/sort.h"
#include "model/dtype.h"

#include <string.h>

ferry_status ferry_side_create(ferry_side **side_out, ferry_error *error)
{
    FY_TRY(fy_check_use(side_out != NULL, "ferry_side_create needs a place for the side", error));
    ferry_side *side = fy_alloc_zeroed(1, sizeof *side);
    FY_TRY(fy_check_memory(side != NULL, "a side", error));
    *side_out = side;
    return FERRY_OK;
}

void ferry_side_destroy(ferry_side *side)
{
    if (side != NULL) {
        fy_free(side->parameters);
        fy_free(side->boxes);
        fy_free(side->fills);
        fy_free(side->lists);
        fy_free(side->tensors);
        fy_index_cleanup(&side->list_index);
        fy_index_cleanup(&side->tensor_index);
        fy_arena_cleanup(&side->arena);
        fy_free(side);
    }
}

size_t ferry_side_parameter_count(const ferry_side *side)
{
    return side == NULL ? 0 : side->n_parameters;
}

static uint32_t find_tensor(const ferry_side *side, const char *name, uint64_t hash)
{
    fy_index_cursor c = fy_index_first(&side->tensor_index, hash);
    while (c.value != FY_INDEX_NONE && strcmp(side->tensors[c.value].name, name) != 0) {
        fy_index_next(&side->tensor_index, &c);
    }
    return c.value;
}

static ferry_status check_name(const char *name, const char *what, ferry_error *error)
{
    if (name == NULL || *name == '\0' || strlen(name) >= FERRY_NAME_BYTES || !fy_is_utf8(name)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a %s needs a name of 1 to %d bytes of UTF-8", what, FERRY_NAME_BYTES - 1);
    }
    return FERRY_OK;
}

ferry_status fy_side_name_tensor(ferry_side *side, const char *name, uint32_t *number_out,
                                 ferry_error *error)
{
    /* The last one, or the next: ranks say their boxes in the same order, mostly. */
    for (uint32_t t = side->last_tensor; t < side->n_tensors && t < side->last_tensor + 2; t++) {
        if (strcmp(side->tensors[t].name, name) == 0) {
            *number_out = side->last_tensor = t;
            return FERRY_OK;
        }
    }
    uint64_t hash = fy_hash64(name, strlen(name));
    uint32_t number = find_tensor(side, name, hash);
    if (number == FY_INDEX_NONE) {
        FY_TRY(check_name(name, "tensor", error));
        number = (uint32_t)side->n_tensors;
        char *copy = fy_arena_copy(&side->arena, name, strlen(name));
        if (copy == NULL ||
            !FY_RESERVE(side->tensors, side->tensor_capacity, side->n_tensors + 1) ||
            !fy_index_insert(&side->tensor_index, hash, number)) {
            return fy_fail_no_memory(error, "the tensors of a side");
        }
        side->tensors[side->n_tensors++] = (fy_side_tensor){.name = copy};
    }
    side->last_tensor = number;
    *number_out = number;
    return FERRY_OK;
}

static bool is_declared_so(const fy_side_tensor *tensor, ferry_dtype dtype, uint32_t n_dims,
                           const uint64_t *shape)
{
    return tensor->dtype.kind == dtype.kind && tensor->dtype.element_bits == dtype.element_bits &&
           tensor->n_dims == n_dims &&
           (n_dims == 0 || memcmp(tensor->shape, shape, n_dims * sizeof *shape) == 0);
}

/* Of no dimensions, too, it is not NULL. */
static ferry_status keep_shape(ferry_side *side, uint32_t n_dims, const uint64_t *shape,
                               const uint64_t **shape_out, ferry_error *error)
{
    uint64_t *copy = fy_arena_alloc(&side->arena, n_dims + 1, sizeof *copy);
    FY_TRY(fy_check_memory(copy != NULL, "the shapes of a side", error));
    if (n_dims > 0) {
        memcpy(copy, shape, n_dims * sizeof *copy);
    }
    *shape_out = copy;
    return FERRY_OK;
}

ferry_status ferry_side_add_tensor(ferry_side *side, const char *name, ferry_dtype dtype,
                                   uint32_t n_dims, const uint64_t *shape, ferry_error *error)
{
    uint32_t number = 0;
    FY_TRY(fy_check_use(side != NULL && name != NULL && (shape != NULL || n_dims == 0),
                        "ferry_side_add_tensor needs a side, a name and a shape", error));
    if (n_dims > FERRY_MAX_DIMS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "\"%s\" has %u dimensions, more than the limit of %d", name, n_dims,
                       FERRY_MAX_DIMS);
    }
    if (!fy_dtype_is_valid(dtype)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "\"%s\" has no type: kind %u, %u bits", name,
                       dtype.kind, dtype.element_bits);
    }
    FY_TRY(fy_side_name_tensor(side, name, &number, error));
    fy_side_tensor *tensor = &side->tensors[number];
    if (tensor->shape != NULL) {
        return is_declared_so(tensor, dtype, n_dims, shape)
                   ? FERRY_OK
                   : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                             "the tensor \"%s\" was added with another shape or type", name);
    }
    FY_TRY(keep_shape(side, n_dims, shape, &tensor->shape, error));
    tensor->dtype = dtype;
    tensor->n_dims = n_dims;
    return FERRY_OK;
}

static uint32_t find_list(const ferry_side *side, const uint32_t *ranks, size_t n, uint64_t hash)
{
    fy_index_cursor c = fy_index_first(&side->list_index, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&side->list_index, &c)) {
        const fy_rank_list *list = &side->lists[c.value];
        if (list->n == n && memcmp(list->ranks, ranks, n * sizeof *ranks) == 0) {
            break;
        }
    }
    return c.value;
}

static ferry_status intern_list(ferry_side *side, const uint32_t *ranks, size_t n, const char *name,
                                uint32_t *number_out, ferry_error *error)
{
    uint64_t hash = fy_hash64(ranks, n * sizeof *ranks);
    *number_out = find_list(side, ranks, n, hash);
    if (*number_out != FY_INDEX_NONE) {
        return FERRY_OK;
    }
    for (size_t i = 0; i < n; i++) {
        if (ranks[i] >= FERRY_MAX_RANKS) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "the parameter \"%s\" has rank %u; ranks are below %u", name, ranks[i],
                           FERRY_MAX_RANKS);
        }
        if (i > 0 && ranks[i] == ranks[i - 1]) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT, "the parameter \"%s\" has rank %u twice",
                           name, ranks[i]);
        }
    }
    uint32_t *copy = fy_arena_alloc(&side->arena, n, sizeof *copy);
    if (copy == NULL || !FY_RESERVE(side->lists, side->list_capacity, side->n_lists + 1) ||
        !fy_index_insert(&side->list_index, hash, (uint32_t)side->n_lists)) {
        return fy_fail_no_memory(error, "the ranks of a side");
    }
    memcpy(copy, ranks, n * sizeof *copy);
    *number_out = (uint32_t)side->n_lists;
    side->lists[side->n_lists++] = (fy_rank_list){.ranks = copy, .n = (uint32_t)n};
    return FERRY_OK;
}

/* Lists come in any order; equal ones nearly always in the same. */
static ferry_status take_ranks(ferry_side *side, const uint32_t *ranks, size_t n, const char *name,
                               uint32_t *number_out, ferry_error *error)
{
    *number_out = FY_OWN_RANK;
    if (n == 0) {
        return FERRY_OK;
    }
    uint32_t *sorted = fy_alloc(n, sizeof *sorted);
    FY_TRY(fy_check_memory(sorted != NULL, "the ranks of a side", error));
    memcpy(sorted, ranks, n * sizeof *sorted);
    fy_sort(sorted, n, sizeof *sorted, fy_compare_u32);
    ferry_status status = intern_list(side, sorted, n, name, number_out, error);
    fy_free(sorted);
    return status;
}

static ferry_status check_open(const ferry_side *side, size_t parameter, bool has_all,
                               const char *sentence, ferry_error *error)
{
    FY_TRY(fy_check_use(side != NULL && has_all && !side->is_sorted, sentence, error));
    return parameter < side->n_parameters
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_MISUSE, "the side has %zu parameters, no number %zu",
                         side->n_parameters, parameter);
}

ferry_status ferry_side_add_parameter(ferry_side *side, const uint32_t *ranks, size_t n_ranks,
                                      const char *name, const ferry_dtype *dtype, uint64_t elements,
                                      uint32_t flags, size_t *parameter_out, ferry_error *error)
{
    FY_TRY(fy_check_use(side != NULL && !side->is_sorted && name != NULL && parameter_out != NULL &&
                            (ranks != NULL || n_ranks == 0),
                        "ferry_side_add_parameter needs a side, a name, the ranks and a place for "
                        "the number",
                        error));
    FY_TRY(check_name(name, "parameter", error));
    if ((flags & ~FERRY_PARAMETER_PARTIAL) != 0) {
        return fy_fail(error, FERRY_ERR_MISUSE, "the parameter \"%s\" has unknown flags %x", name,
                       flags);
    }
    if (dtype != NULL && !fy_dtype_is_valid(*dtype)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the parameter \"%s\" has no type: kind %u, %u bits", name, dtype->kind,
                       dtype->element_bits);
    }
    if (elements > INT64_MAX / 64) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the parameter \"%s\" has %llu elements; at most 2^57 are possible", name,
                       (unsigned long long)elements);
    }
    if (side->n_parameters == FY_MAX_PARAMETERS) {
        return fy_fail(error, FERRY_ERR_LIMIT, "more than %d parameters", FY_MAX_PARAMETERS);
    }
    fy_parameter parameter = {.elements = elements,
                              .is_partial = (flags & FERRY_PARAMETER_PARTIAL) != 0};
    if (dtype != NULL) {
        parameter.dtype = *dtype;
    }
    FY_TRY(take_ranks(side, ranks, n_ranks, name, &parameter.ranks, error));
    parameter.name = fy_arena_copy(&side->arena, name, strlen(name));
    if (parameter.name == NULL ||
        !FY_RESERVE(side->parameters, side->parameter_capacity, side->n_parameters + 1)) {
        return fy_fail_no_memory(error, "the parameters of a side");
    }
    *parameter_out = side->n_parameters;
    side->parameters[side->n_parameters++] = parameter;
    return FERRY_OK;
}

ferry_status ferry_side_set_cast(ferry_side *side, size_t parameter, bool saturates, float scale,
                                 float add, ferry_error *error)
{
    ferry_error inner;
    fy_said_cast cast = {0};
    FY_TRY(check_open(side, parameter, true, "ferry_side_set_cast needs a side and a parameter",
                      error));
    ferry_status status = fy_cast_make(saturates, scale, add, &cast, &inner);
    if (status != FERRY_OK) {
        return fy_fail(error, status, "the parameter \"%s\" has %s",
                       side->parameters[parameter].name, inner.message);
    }
    side->parameters[parameter].cast = cast;
    side->parameters[parameter].blocks = NULL;
    side->parameters[parameter].codes = NULL;
    return FERRY_OK;
}

ferry_status ferry_side_set_quantize(ferry_side *side, size_t parameter,
                                     const ferry_quantization *quantization, ferry_error *error)
{
    ferry_quantization own;
    ferry_error inner;
    fy_said_blocks blocks;
    FY_TRY(check_open(side, parameter, quantization != NULL,
                      "ferry_side_set_quantize needs a side, a parameter and a quantization",
                      error));
    FY_TRY(fy_take_quantization(quantization, &own, error));
    FY_TRY(fy_check_use(own.scale != NULL,
                        "ferry_side_set_quantize needs a name for the tensor of scales", error));
    fy_parameter *p = &side->parameters[parameter];
    ferry_status status = fy_blocks_make(&own, &blocks, &inner);
    if (status != FERRY_OK) {
        return fy_fail(error, status, "the parameter \"%s\" has %s", p->name, inner.message);
    }
    const fy_said_blocks *kept = fy_blocks_copy(&blocks, &side->arena);
    FY_TRY(fy_check_memory(kept != NULL, "the parameters of a side", error));
    p->blocks = kept;
    p->codes = NULL;
    p->cast = (fy_said_cast){0};
    return FERRY_OK;
}

ferry_status ferry_side_set_dequantize(ferry_side *side, size_t parameter, const char *scale,
                                       const uint64_t block[2], ferry_error *error)
{
    ferry_error inner;
    fy_said_blocks codes;
    FY_TRY(check_open(side, parameter, scale != NULL && block != NULL,
                      "ferry_side_set_dequantize needs a side, a parameter, the name of its scales "
                      "and a block",
                      error));
    fy_parameter *p = &side->parameters[parameter];
    ferry_status status = fy_codes_make(scale, block, &codes, &inner);
    if (status != FERRY_OK) {
        return fy_fail(error, status, "the parameter \"%s\" has %s", p->name, inner.message);
    }
    if (!fy_blocks_take(p->dtype)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the parameter \"%s\" is dequantized, and must be added with the type of "
                       "its values: f32, f16 or bf16",
                       p->name);
    }
    const fy_said_blocks *kept = fy_blocks_copy(&codes, &side->arena);
    FY_TRY(fy_check_memory(kept != NULL, "the parameters of a side", error));
    p->codes = kept;
    p->blocks = NULL;
    p->cast = (fy_said_cast){0};
    return FERRY_OK;
}

ferry_status ferry_side_set_shape(ferry_side *side, size_t parameter, uint32_t n_dims,
                                  const uint64_t *shape, ferry_error *error)
{
    uint64_t elements = 1;
    FY_TRY(check_open(side, parameter, shape != NULL || n_dims == 0,
                      "ferry_side_set_shape needs a side, a parameter and a shape", error));
    fy_parameter *p = &side->parameters[parameter];
    if (n_dims > FERRY_MAX_DIMS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the parameter \"%s\" has a shape of %u dimensions, more than the limit of "
                       "%d",
                       p->name, n_dims, FERRY_MAX_DIMS);
    }
    /* Lengths behind one of 0 may be any: their product must not decide whether they fit. */
    bool fits = true, is_empty = false;
    for (uint32_t d = 0; d < n_dims; d++) {
        is_empty = is_empty || shape[d] == 0;
        fits = fits && fy_mul(elements, fy_max(shape[d], 1), &elements);
    }
    elements = is_empty ? 0 : elements;
    if (!fits || elements != p->elements) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the parameter \"%s\" has %llu elements, but its shape has %s%llu", p->name,
                       (unsigned long long)p->elements, fits ? "" : "more than ",
                       fits ? (unsigned long long)elements : ~0ull);
    }
    FY_TRY(keep_shape(side, n_dims, shape, &p->shape, error));
    p->n_dims = n_dims;
    return FERRY_OK;
}

/* The numbers of a box behind each other: see fy_said_box. */
static const uint64_t *keep_numbers(ferry_side *side, const ferry_side_box *box)
{
    size_t n = box->n_dims, used = 0;
    uint64_t *numbers =
        fy_arena_alloc(&side->arena, 3 * n + box->n_repeats * (2 + n) + 1, sizeof *numbers);
    if (numbers == NULL) {
        return NULL;
    }
    const uint64_t *const lists[3] = {box->begin, box->shape, box->strides};
    for (size_t i = 0; i < 3; i++) {
        memcpy(numbers + used, lists[i], n * sizeof *numbers);
        used += n;
    }
    for (uint32_t i = 0; i < box->n_repeats; i++) {
        numbers[used++] = box->repeats[i].count;
        numbers[used++] = box->repeats[i].offset;
        memcpy(numbers + used, box->repeats[i].begin, n * sizeof *numbers);
        used += n;
    }
    return numbers;
}

ferry_status ferry_side_add_box(ferry_side *side, size_t parameter, const ferry_side_box *box,
                                ferry_error *error)
{
    ferry_side_box own;
    fy_said_box held = {.parameter = (uint32_t)parameter};
    FY_TRY(check_open(side, parameter, box != NULL,
                      "ferry_side_add_box needs a side, a parameter and a box", error));
    FY_TRY(fy_take_side_box(box, &own, error));
    FY_TRY(
        fy_check_use(own.tensor != NULL, "ferry_side_add_box needs the name of a tensor", error));
    if (own.n_dims > FERRY_MAX_DIMS || own.n_repeats > FERRY_MAX_REPEATS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a box of \"%s\" in \"%s\" has %u dimensions and %u repeats; at most %d and "
                       "%d are possible",
                       own.tensor, side->parameters[parameter].name, own.n_dims, own.n_repeats,
                       FERRY_MAX_DIMS, FERRY_MAX_REPEATS);
    }
    if (side->n_boxes == FY_MAX_BOXES) {
        return fy_fail(error, FERRY_ERR_LIMIT, "more than %d boxes", FY_MAX_BOXES);
    }
    FY_TRY(fy_side_name_tensor(side, own.tensor, &held.tensor, error));
    held.n_dims = own.n_dims;
    held.n_repeats = own.n_repeats;
    held.offset = own.offset;
    held.numbers = keep_numbers(side, &own);
    if (held.numbers == NULL || !FY_RESERVE(side->boxes, side->box_capacity, side->n_boxes + 1)) {
        return fy_fail_no_memory(error, "the boxes of a side");
    }
    side->boxes[side->n_boxes++] = held;
    return FERRY_OK;
}

ferry_status ferry_side_add_fill(ferry_side *side, size_t parameter, uint32_t n_dims,
                                 uint64_t offset, const uint64_t *shape, const uint64_t *strides,
                                 const unsigned char *bits, ferry_error *error)
{
    fy_fill fill = {.parameter = (uint32_t)parameter, .n_dims = n_dims, .offset = offset};
    bool has_all = n_dims == 0 || (shape != NULL && strides != NULL);
    FY_TRY(check_open(side, parameter, has_all,
                      "ferry_side_add_fill needs a side, a parameter, a shape and strides", error));
    if (n_dims > FERRY_MAX_DIMS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a fill of \"%s\" has %u dimensions; at most %d are possible",
                       side->parameters[parameter].name, n_dims, FERRY_MAX_DIMS);
    }
    if (side->n_fills == FY_MAX_FILLS) {
        return fy_fail(error, FERRY_ERR_LIMIT, "more than %d fills", FY_MAX_FILLS);
    }
    uint64_t *numbers = fy_arena_alloc(&side->arena, 2 * (size_t)n_dims + 1, sizeof *numbers);
    if (numbers == NULL || !FY_RESERVE(side->fills, side->fill_capacity, side->n_fills + 1)) {
        return fy_fail_no_memory(error, "the fills of a side");
    }
    if (n_dims > 0) {
        memcpy(numbers, shape, n_dims * sizeof *numbers);
        memcpy(numbers + n_dims, strides, n_dims * sizeof *numbers);
    }
    if (bits != NULL) {
        memcpy(fill.bits, bits, sizeof fill.bits);
    }
    fill.numbers = numbers;
    side->fills[side->n_fills++] = fill;
    return FERRY_OK;
}

uint32_t fy_side_rank_bound(const ferry_side *side)
{
    uint32_t bound = 0;
    for (size_t i = 0; i < side->n_lists; i++) {
        const fy_rank_list *list = &side->lists[i];
        bound = list->ranks[list->n - 1] >= bound ? list->ranks[list->n - 1] + 1 : bound;
    }
    return bound;
}

/* Both lists stay as they came within a parameter. */
ferry_status fy_side_sort(ferry_side *side, ferry_error *error)
{
    fy_said_box *boxes = fy_alloc(side->n_boxes, sizeof *boxes);
    fy_fill *fills = fy_alloc(side->n_fills, sizeof *fills);
    if (boxes == NULL || fills == NULL) {
        fy_free(boxes);
        fy_free(fills);
        return fy_fail_no_memory(error, "the boxes of a side");
    }
    for (size_t i = 0; i < side->n_boxes; i++) {
        side->parameters[side->boxes[i].parameter].n_boxes++;
    }
    for (size_t i = 0; i < side->n_fills; i++) {
        side->parameters[side->fills[i].parameter].n_fills++;
    }
    uint32_t n_boxes = 0, n_fills = 0;
    for (size_t p = 0; p < side->n_parameters; p++) {
        fy_parameter *parameter = &side->parameters[p];
        parameter->first_box = n_boxes;
        parameter->first_fill = n_fills;
        n_boxes += parameter->n_boxes;
        n_fills += parameter->n_fills;
        parameter->n_boxes = 0;
        parameter->n_fills = 0;
    }
    for (size_t i = 0; i < side->n_boxes; i++) {
        fy_parameter *parameter = &side->parameters[side->boxes[i].parameter];
        boxes[parameter->first_box + parameter->n_boxes++] = side->boxes[i];
    }
    for (size_t i = 0; i < side->n_fills; i++) {
        fy_parameter *parameter = &side->parameters[side->fills[i].parameter];
        fills[parameter->first_fill + parameter->n_fills++] = side->fills[i];
    }
    fy_free(side->boxes);
    fy_free(side->fills);
    side->boxes = boxes;
    side->fills = fills;
    side->box_capacity = side->n_boxes;
    side->fill_capacity = side->n_fills;
    side->is_sorted = true;
    return FERRY_OK;
}

ferry_status fy_side_add_staged(ferry_side *sorted, uint32_t parameter, const char *name,
                                ferry_dtype dtype, uint64_t elements, fy_said_box *boxes,
                                size_t n_boxes, ferry_error *error)
{
    fy_parameter added = {.name = fy_arena_copy(&sorted->arena, name, strlen(name)),
                          .dtype = dtype,
                          .elements = elements,
                          .ranks = sorted->parameters[parameter].ranks,
                          .first_box = (uint32_t)sorted->n_boxes,
                          .n_boxes = (uint32_t)n_boxes,
                          .first_fill = (uint32_t)sorted->n_fills,
                          .staged = parameter + 1};
    if (n_boxes > FY_MAX_BOXES - sorted->n_boxes) {
        return fy_fail(error, FERRY_ERR_LIMIT, "more than %d boxes", FY_MAX_BOXES);
    }
    if (added.name == NULL ||
        !FY_RESERVE(sorted->parameters, sorted->parameter_capacity, sorted->n_parameters + 1) ||
        !FY_RESERVE(sorted->boxes, sorted->box_capacity, sorted->n_boxes + n_boxes)) {
        return fy_fail_no_memory(error, "the scales of a side");
    }
    for (size_t i = 0; i < n_boxes; i++) {
        boxes[i].parameter = (uint32_t)sorted->n_parameters;
        sorted->boxes[sorted->n_boxes++] = boxes[i];
    }
    sorted->parameters[sorted->n_parameters++] = added;
    return FERRY_OK;
}

/* They are in the order of what they are beside, behind all others. */
uint32_t fy_side_find_staged(const ferry_side *sorted, uint32_t parameter)
{
    FY_BISECT(size_t, low, 0, sorted->n_parameters, middle,
              sorted->parameters[middle].staged < parameter + 1);
    bool is_found = low < sorted->n_parameters && sorted->parameters[low].staged == parameter + 1;
    return is_found ? (uint32_t)low : FY_NO_PARAMETER;
}

uint32_t fy_side_find_matrix_staged(const ferry_side *sorted, uint32_t staged)
{
    bool is_found = staged + 1 < sorted->n_parameters &&
                    sorted->parameters[staged + 1].staged == sorted->parameters[staged].staged;
    return is_found ? staged + 1 : FY_NO_PARAMETER;
}

static bool add_loop(fy_strided *places, uint64_t count, uint64_t stride)
{
    places->count[places->n_loops] = count;
    places->stride[places->n_loops++] = stride;
    return count > 0;
}

bool fy_said_box_places(const fy_said_box *box, fy_strided *places_out)
{
    bool any = true;
    *places_out = (fy_strided){.offset = box->offset};
    for (uint32_t i = 0; i < box->n_repeats; i++) {
        const uint64_t *repeat = fy_said_box_repeat(box, i);
        any = add_loop(places_out, repeat[0], repeat[1]) && any;
    }
    for (uint32_t d = 0; d < box->n_dims; d++) {
        any = add_loop(places_out, fy_said_box_shape(box)[d], fy_said_box_strides(box)[d]) && any;
    }
    return any;
}

bool fy_fill_places(const fy_fill *fill, fy_strided *places_out)
{
    bool any = true;
    *places_out = (fy_strided){.offset = fill->offset};
    for (uint32_t d = 0; d < fill->n_dims; d++) {
        any = add_loop(places_out, fill->numbers[d], fill->numbers[fill->n_dims + d]) && any;
    }
    return any;
}
