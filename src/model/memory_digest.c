/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The digest of a side in boxes: of every rank's parameters in their order, each with its boxes and
 * fills by where they begin. Ranks come in no order, and lists of ranks do not show.
 */
#include "model/memory.h"

#include "base/sort.h"

#include <string.h>

/* A box of a parameter, with its tensor, one of the variants. */
typedef struct owned_box {
    const fy_memory_box *box;
    uint32_t tensor;
} owned_box;

typedef struct digesting {
    const fy_memory *memory;
    const fy_memory_of *of;
    owned_box *boxes;   /* by parameter, then by offset */
    uint32_t *begin;    /* [n_parameters + 1] */
    fy_hash128 *hashes; /* [n_parameters] */
    fy_digest d;
} digesting;

static int compare_owned(const void *a, const void *b)
{
    const owned_box *x = a, *y = b;
    if (x->box->parameter != y->box->parameter) {
        return x->box->parameter < y->box->parameter ? -1 : 1;
    }
    return (x->box->offset > y->box->offset) - (x->box->offset < y->box->offset);
}

static ferry_status list_boxes(digesting *g, ferry_error *error)
{
    const fy_memory *memory = g->memory;
    size_t n_parameters = memory->side->n_parameters, n = 0;
    g->boxes = fy_alloc(memory->n_boxes, sizeof *g->boxes);
    g->begin = fy_alloc_zeroed(n_parameters + 1, sizeof *g->begin);
    g->hashes = fy_alloc(n_parameters, sizeof *g->hashes);
    if (g->boxes == NULL || g->begin == NULL || g->hashes == NULL) {
        return fy_fail_no_memory(error, "the digest of a side");
    }
    for (uint32_t t = 0; t < memory->n_variants; t++) {
        const fy_memory_tensor *tensor = &memory->tensors[t];
        uint32_t n_lists = tensor->spots == FY_NO_SPOTS ? 0 : memory->spots[tensor->spots].n_lists;
        for (uint32_t i = 0; i < n_lists; i++) {
            const fy_stock *stock = &memory->stocks[tensor->first_stock + i];
            for (uint32_t k = 0; k < stock->n_boxes; k++) {
                const fy_memory_box *box = &memory->boxes[stock->first_box + k];
                g->boxes[n++] = (owned_box){.box = box, .tensor = t};
                g->begin[box->parameter + 1]++;
            }
        }
    }
    fy_sort(g->boxes, n, sizeof *g->boxes, compare_owned);
    for (size_t p = 0; p < n_parameters; p++) {
        g->begin[p + 1] += g->begin[p];
    }
    return FERRY_OK;
}

static void put_box(digesting *g, const owned_box *owned)
{
    const fy_memory_box *box = owned->box;
    const fy_conversion *conversion = fy_memory_conversion(g->memory, owned->tensor);
    uint32_t tensor = fy_memory_tensor_of(g->memory, owned->tensor);
    fy_digest_text(&g->d, g->of->name_of(g->of->context, tensor));
    if (conversion != NULL) {
        fy_conversion_digest(&g->d, conversion);
    }
    fy_digest_u64(&g->d, box->offset);
    fy_digest_u64s(&g->d, box->numbers, 2 * (size_t)box->n_dims);
    for (uint32_t d = 0; d < box->n_dims; d++) {
        /* Along one element a stride says nothing. */
        fy_digest_u64(&g->d, fy_memory_shape(box)[d] > 1 ? fy_memory_strides(box)[d] : 0);
    }
}

static int compare_fills(const void *a, const void *b)
{
    const fy_fill *x = *(const fy_fill *const *)a, *y = *(const fy_fill *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static ferry_status put_fills(digesting *g, const fy_parameter *parameter, ferry_error *error)
{
    const fy_fill **fills = fy_alloc(parameter->n_fills, sizeof(fy_fill *));
    size_t n = 0;
    FY_TRY(fy_check_memory(fills != NULL, "the digest of a side", error));
    for (uint32_t i = 0; i < parameter->n_fills; i++) {
        fy_strided places;
        const fy_fill *fill = &g->memory->side->fills[parameter->first_fill + i];
        if (fy_fill_places(fill, &places)) {
            fills[n++] = fill;
        }
    }
    fy_sort(fills, n, sizeof(fy_fill *), compare_fills);
    fy_digest_u64(&g->d, n);
    for (size_t i = 0; i < n; i++) {
        fy_strided places;
        uint64_t bits = 0;
        (void)fy_fill_places(fills[i], &places);
        fy_strided_simplify(&places);
        for (uint32_t k = 0; k < sizeof fills[i]->bits; k++) {
            bits |= (uint64_t)fills[i]->bits[k] << (8 * k);
        }
        fy_digest_u64(&g->d, places.offset);
        fy_digest_u64(&g->d, places.n_loops);
        fy_digest_u64s(&g->d, places.count, places.n_loops);
        fy_digest_u64s(&g->d, places.stride, places.n_loops);
        fy_digest_u64(&g->d, bits);
    }
    fy_free(fills);
    return FERRY_OK;
}

static ferry_status hash_parameters(digesting *g, ferry_error *error)
{
    const ferry_side *side = g->memory->side;
    for (size_t p = 0; p < side->n_parameters; p++) {
        const fy_parameter *parameter = &side->parameters[p];
        fy_digest_text(&g->d, parameter->name);
        fy_digest_u64(&g->d, parameter->dtype.kind);
        fy_digest_u64(&g->d, parameter->dtype.element_bits);
        fy_digest_u64(&g->d, parameter->elements);
        fy_digest_u64(&g->d, g->begin[p + 1] - g->begin[p]);
        for (uint32_t i = g->begin[p]; i < g->begin[p + 1]; i++) {
            put_box(g, &g->boxes[i]);
        }
        FY_TRY(put_fills(g, parameter, error));
        g->hashes[p] = fy_digest_take(&g->d);
    }
    return fy_check_memory(!g->d.failed, "the digest of a side", error);
}

static ferry_status hash_ranks(digesting *g, fy_hash128 *digest_out, ferry_error *error)
{
    const fy_memory *memory = g->memory;
    uint32_t *numbers = NULL;
    size_t capacity = 0, n = 0;
    fy_hash128 sum = {0}, last = {0};
    ferry_status status = FERRY_OK;
    for (uint32_t rank = 0; rank < memory->n_ranks && status == FERRY_OK; rank++) {
        if (rank == 0 || !fy_memory_is_alike(memory, rank - 1, rank)) {
            status = fy_memory_parameters(memory, rank, &numbers, &capacity, &n, error);
            for (size_t i = 0; status == FERRY_OK && i < n; i++) {
                fy_digest_hash(&g->d, g->hashes[numbers[i]]);
            }
            last = fy_digest_take(&g->d);
        }
        if (memory->rank_begin[rank] < memory->rank_begin[rank + 1]) {
            uint64_t values[3] = {rank, last.low, last.high};
            sum = fy_hash128_add(sum, fy_hash128_of(values, sizeof values));
        }
    }
    fy_free(numbers);
    FY_THEN(status, fy_check_memory(!g->d.failed, "the digest of a side", error));
    *digest_out = sum;
    return status;
}

/* What the extents of a tensor follow from, but for its shape. */
static void key_tensor(digesting *g, uint32_t tensor, fy_hash128 *key_out)
{
    const fy_memory *memory = g->memory;
    const fy_memory_tensor *held = &memory->tensors[tensor];
    uint32_t n_lists = held->spots == FY_NO_SPOTS ? 0 : memory->spots[held->spots].n_lists;
    fy_digest_u64(&g->d, held->spots);
    for (uint32_t i = 0; i < n_lists; i++) {
        const fy_stock *stock = &memory->stocks[held->first_stock + i];
        fy_digest_u64(&g->d, stock->n_boxes);
        for (uint32_t k = 0; k < stock->n_boxes; k++) {
            const fy_memory_box *box = &memory->boxes[stock->first_box + k];
            fy_digest_u64s(&g->d, box->numbers, 2 * (size_t)box->n_dims);
        }
    }
    *key_out = fy_digest_take(&g->d);
}

ferry_status fy_memory_make_digest(fy_memory *memory, const fy_memory_of *of, ferry_error *error)
{
    digesting g = {.memory = memory, .of = of};
    ferry_status status = list_boxes(&g, error);
    FY_THEN(status, hash_parameters(&g, error));
    FY_THEN(status, hash_ranks(&g, &memory->digest, error));
    for (uint32_t t = 0; status == FERRY_OK && t < memory->n_variants; t++) {
        key_tensor(&g, t, &memory->keys[t]);
    }
    FY_THEN(status, fy_check_memory(!g.d.failed, "the digest of a side", error));
    fy_free(g.boxes);
    fy_free(g.begin);
    fy_free(g.hashes);
    fy_digest_cleanup(&g.d);
    return status;
}
