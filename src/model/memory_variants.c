/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* In how many ways the parameters of a side in boxes want each tensor. */
#include "model/memory.h"

#include "base/sort.h"

#include <string.h>

/* A tensor as some parameter wants it. */
typedef struct wanted_tensor {
    uint32_t tensor;
    uint32_t parameter; /* one that wants it so */
    fy_conversion_key key;
} wanted_tensor;

static int compare_wanted(const void *a, const void *b)
{
    const wanted_tensor *x = a, *y = b;
    if (x->tensor != y->tensor) {
        return x->tensor < y->tensor ? -1 : 1;
    }
    return fy_conversion_key_compare(x->key, y->key);
}

static fy_conversion_key key_of(const ferry_side *side, uint32_t parameter, ferry_dtype dtype)
{
    char why[FY_CAST_WHY_BYTES]; /* there is none: it was checked */
    const fy_parameter *of = &side->parameters[parameter];
    if (of->blocks != NULL) {
        return fy_blocks_key(of->blocks);
    }
    if (of->codes != NULL) {
        return fy_codes_key(of->codes, of->codes->scales, of->dtype);
    }
    return fy_cast_key(&of->cast, dtype, of->dtype, why);
}

/* Where the key is not zero. */
static fy_conversion conversion_of(const fy_parameter *parameter, ferry_dtype from)
{
    if (parameter->blocks != NULL) {
        return fy_blocks_conversion(parameter->blocks, from, FERRY_CONVERSION_CODES);
    }
    return parameter->codes != NULL
               ? fy_codes_conversion(parameter->codes, from, parameter->codes->scales,
                                     parameter->dtype)
               : fy_conversion_of(&parameter->cast, from, parameter->dtype);
}

/* Each once, in order. */
static ferry_status list_wanted(const fy_memory *memory, const fy_memory_of *of,
                                wanted_tensor **wanted_out, size_t *n_out, ferry_error *error)
{
    const ferry_side *side = memory->side;
    wanted_tensor *wanted = fy_alloc(side->n_boxes, sizeof *wanted);
    size_t kept = 0;
    FY_TRY(fy_check_memory(wanted != NULL, "the tensors of a side", error));
    for (size_t i = 0; i < side->n_boxes; i++) {
        uint32_t tensor = memory->tensor_of[side->boxes[i].tensor];
        uint32_t parameter = side->boxes[i].parameter;
        wanted[i] =
            (wanted_tensor){.tensor = tensor,
                            .parameter = parameter,
                            .key = key_of(side, parameter, of->dtype_of(of->context, tensor))};
    }
    fy_sort(wanted, side->n_boxes, sizeof *wanted, compare_wanted);
    for (size_t i = 0; i < side->n_boxes; i++) {
        if (kept == 0 || compare_wanted(&wanted[kept - 1], &wanted[i]) != 0) {
            wanted[kept++] = wanted[i];
        }
    }
    *wanted_out = wanted;
    *n_out = kept;
    return FERRY_OK;
}

static ferry_status put_variant(fy_memory *memory, uint32_t number, const wanted_tensor *wanted,
                                ferry_error *error)
{
    const fy_parameter *parameter = &memory->side->parameters[wanted->parameter];
    fy_memory_variant *variant = &memory->variants[number];
    variant->tensor = wanted->tensor;
    variant->dtype = memory->variants[wanted->tensor].dtype;
    variant->next = FY_NO_VARIANT;
    variant->key = wanted->key;
    if (fy_conversion_key_is_zero(wanted->key)) {
        return FERRY_OK;
    }
    fy_conversion *conversion = fy_arena_alloc(&memory->arena, 1, sizeof *conversion);
    FY_TRY(fy_check_memory(conversion != NULL, "the tensors of a side", error));
    *conversion = conversion_of(parameter, variant->dtype);
    variant->conversion = conversion;
    return FERRY_OK;
}

static ferry_status put_variants(fy_memory *memory, const wanted_tensor *wanted, size_t n,
                                 ferry_error *error)
{
    uint32_t next = memory->n_tensors, last = 0;
    for (size_t i = 0; i < n; i++) {
        bool is_first = i == 0 || wanted[i].tensor != wanted[i - 1].tensor;
        uint32_t number = is_first ? wanted[i].tensor : next++;
        FY_TRY(put_variant(memory, number, &wanted[i], error));
        if (!is_first) {
            memory->variants[last].next = number;
        }
        last = number;
    }
    return FERRY_OK;
}

static bool has_casts(const ferry_side *side)
{
    for (size_t p = 0; p < side->n_parameters; p++) {
        const fy_parameter *parameter = &side->parameters[p];
        if (parameter->cast.is_said || parameter->blocks != NULL || parameter->codes != NULL) {
            return true;
        }
    }
    return false;
}

ferry_status fy_memory_make_variants(fy_memory *memory, const fy_memory_of *of, ferry_error *error)
{
    wanted_tensor *wanted = NULL;
    size_t n = 0;
    memory->n_variants = memory->n_tensors;
    if (!has_casts(memory->side)) {
        return FERRY_OK;
    }
    FY_TRY(list_wanted(memory, of, &wanted, &n, error));
    for (size_t i = 1; i < n; i++) {
        memory->n_variants += wanted[i].tensor == wanted[i - 1].tensor;
    }
    memory->variants = fy_alloc_zeroed(memory->n_variants, sizeof *memory->variants);
    ferry_status status = fy_check_memory(memory->variants != NULL, "the tensors of a side", error);
    for (uint32_t t = 0; status == FERRY_OK && t < memory->n_tensors; t++) {
        memory->variants[t] = (fy_memory_variant){
            .tensor = t, .next = FY_NO_VARIANT, .dtype = of->dtype_of(of->context, t)};
    }
    FY_THEN(status, put_variants(memory, wanted, n, error));
    fy_free(wanted);
    return status;
}

/* The first of a tensor has the least key; those behind all tensors are in order. */
uint32_t fy_memory_find_variant(const fy_memory *memory, uint32_t tensor, uint32_t parameter)
{
    if (memory->variants == NULL || memory->variants[tensor].next == FY_NO_VARIANT) {
        return tensor;
    }
    const fy_memory_variant *first = &memory->variants[tensor];
    wanted_tensor wanted = {.tensor = tensor, .key = key_of(memory->side, parameter, first->dtype)};
    if (fy_conversion_key_compare(first->key, wanted.key) == 0) {
        return tensor;
    }
    FY_BISECT(uint32_t, low, memory->n_tensors, memory->n_variants, middle,
              compare_wanted(&(wanted_tensor){.tensor = memory->variants[middle].tensor,
                                              .key = memory->variants[middle].key},
                             &wanted) < 0);
    return low;
}
