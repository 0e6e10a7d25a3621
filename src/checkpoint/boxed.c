/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/boxed.h"

#include "base/checked.h"
#include "base/sort.h"
#include "model/memory.h"

#include <string.h>

ferry_status fy_boxed_parse(const json_t *side, const char *name, ferry_side **side_out,
                            ferry_error *error)
{
    fy_json_place place = {.key = name};
    fy_json_place at = {.parent = &place, .key = "boxes"};
    if (json_object_size(side) != 1) {
        return fy_json_fail(&place, error,
                            "has the key \"boxes\" beside those of a mesh: a side has either");
    }
    return fy_side_from_json(json_object_get(side, "boxes"), &at, false, side_out, error);
}

/* ---- ranks ---- */

/* Lists are shared by many parameters: each is looked at once. */
static ferry_status mark_ranks(const fy_boxed *boxed, const bool *are_wanted, unsigned char *seen,
                               ferry_error *error)
{
    const ferry_side *side = boxed->side;
    unsigned char *lists = fy_alloc_zeroed(side->n_lists, 1);
    FY_TRY(fy_check_memory(lists != NULL, "the ranks of a layout", error));
    for (size_t p = 0; p < side->n_parameters; p++) {
        const fy_rank_list *list = fy_boxed_holders(boxed, p);
        if ((are_wanted != NULL && !are_wanted[p]) || lists[side->parameters[p].ranks] != 0) {
            continue;
        }
        lists[side->parameters[p].ranks] = 1;
        for (uint32_t k = 0; k < list->n; k++) {
            seen[list->ranks[k]] = 1;
        }
    }
    fy_free(lists);
    return FERRY_OK;
}

ferry_status fy_boxed_list_ranks(fy_boxed *boxed, const bool *are_wanted, ferry_error *error)
{
    uint32_t bound = fy_side_rank_bound(boxed->side);
    unsigned char *seen = fy_alloc_zeroed(bound + 1u, 1);
    FY_TRY(fy_check_memory(seen != NULL, "the ranks of a layout", error));
    ferry_status status = mark_ranks(boxed, are_wanted, seen, error);
    fy_free(boxed->ranks);
    boxed->n_ranks = 0;
    for (uint32_t rank = 0; rank < bound; rank++) {
        boxed->n_ranks += seen[rank];
    }
    boxed->ranks = fy_alloc(boxed->n_ranks, sizeof *boxed->ranks);
    uint32_t n = 0;
    for (uint32_t rank = 0; boxed->ranks != NULL && rank < bound; rank++) {
        if (seen[rank] != 0) {
            boxed->ranks[n++] = rank;
        }
    }
    fy_free(seen);
    return status == FERRY_OK
               ? fy_check_memory(boxed->ranks != NULL, "the ranks of a layout", error)
               : status;
}

uint32_t fy_boxed_place(const fy_boxed *boxed, uint32_t rank)
{
    FY_BISECT(uint32_t, place, 0, boxed->n_ranks, at, boxed->ranks[at] < rank);
    return place;
}

/* ---- elements of less than a byte ---- */

static ferry_status fail_bits(const fy_boxed *boxed, const fy_parameter *p, const char *tensor,
                              ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: parameter \"%s\" has a box of \"%s\" that is not in whole bytes of both: "
                   "elements of less than a byte need the stride 1 on the last dimension, and even "
                   "numbers on it",
                   boxed->name, p->name, tensor);
}

/* Of the tensor; of memory it has been checked. */
static bool is_on_bytes(const fy_said_box *box, const fy_tensor *tensor, uint32_t unit)
{
    uint32_t last = box->n_dims - 1;
    bool is_on = box->n_dims > 0 && tensor->shape[last] % unit == 0 &&
                 box->numbers[last] % unit == 0 && fy_said_box_shape(box)[last] % unit == 0 &&
                 fy_said_box_strides(box)[last] == 1;
    for (uint32_t i = 0; is_on && i < box->n_repeats; i++) {
        is_on = fy_said_box_repeat(box, i)[2 + last] % unit == 0;
    }
    return is_on;
}

static ferry_status check_bytes(const fy_boxed *boxed, const fy_parameter *p, ferry_error *error)
{
    uint32_t bits = p->dtype.element_bits;
    if (bits % 8 == 0) {
        return FERRY_OK;
    }
    if (p->elements * bits % 8 != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: parameter \"%s\" has %llu elements of %u bits, which are not whole "
                       "bytes",
                       boxed->name, p->name, (unsigned long long)p->elements, bits);
    }
    for (uint32_t i = 0; i < p->n_boxes; i++) {
        const fy_said_box *box = &boxed->side->boxes[p->first_box + i];
        const fy_tensor *tensor = &boxed->spec->tensors[fy_boxed_tensor_of(boxed, box)];
        if (fy_box_volume(fy_said_box_shape(box), box->n_dims) > 0 &&
            !is_on_bytes(box, tensor, 8 / bits)) {
            return fail_bits(boxed, p, tensor->name, error);
        }
    }
    return FERRY_OK;
}

/* ---- making ---- */

static ferry_status fill(fy_boxed *boxed, ferry_side *side, const fy_boxed_tensor *tensors,
                         size_t n, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t t = 0; t < n && status == FERRY_OK; t++) {
        status = fy_spec_add_tensor(boxed->spec, tensors[t].name, tensors[t].dtype,
                                    tensors[t].shape, tensors[t].n_dims, error);
        if (status == FERRY_OK) {
            boxed->spec->tensors[t].is_source_only = tensors[t].is_consumed;
        }
    }
    if (status != FERRY_OK) {
        ferry_side_destroy(side);
        return status;
    }
    boxed->spec->destination.name = boxed->name;
    boxed->side = side;
    FY_TRY(fy_spec_say_boxes(boxed->spec, &boxed->spec->destination, side, error));
    FY_TRY(fy_side_refuse_casts(&boxed->spec->destination,
                                "what becomes of the tensors of a checkpoint is said by --cast, or "
                                "by the options of the call",
                                error));
    for (size_t p = 0; p < side->n_parameters; p++) {
        FY_TRY(check_bytes(boxed, &side->parameters[p], error));
    }
    return fy_boxed_list_ranks(boxed, NULL, error);
}

ferry_status fy_boxed_create(ferry_side *side, const char *name, const fy_boxed_tensor *tensors,
                             size_t n, fy_boxed **boxed_out, ferry_error *error)
{
    fy_boxed *boxed = fy_alloc_zeroed(1, sizeof *boxed);
    ferry_spec *spec = boxed == NULL ? NULL : fy_spec_new();
    if (spec == NULL) {
        fy_free(boxed);
        ferry_side_destroy(side);
        return fy_fail_no_memory(error, "a layout in boxes");
    }
    boxed->spec = spec;
    boxed->name = name;
    ferry_status status = fill(boxed, side, tensors, n, error);
    if (status != FERRY_OK) {
        fy_boxed_destroy(boxed);
        return status;
    }
    *boxed_out = boxed;
    return FERRY_OK;
}

void fy_boxed_destroy(fy_boxed *boxed)
{
    if (boxed != NULL) {
        ferry_spec_destroy(boxed->spec);
        fy_free(boxed->ranks);
        fy_free(boxed);
    }
}

/* ---- what it says ---- */

bool fy_boxed_is_permuted(const fy_boxed *boxed)
{
    for (size_t i = 0; i < boxed->side->n_boxes; i++) {
        const fy_said_box *box = &boxed->side->boxes[i];
        const fy_tensor *tensor = &boxed->spec->tensors[fy_boxed_tensor_of(boxed, box)];
        fy_nest nest;
        /* Of less than a byte the last dimension is the innermost one anyhow. */
        if (tensor->dtype.element_bits >= 8 &&
            fy_nest_of_box(box, tensor->dtype.element_bits, &nest) &&
            !fy_nest_is_in_order(&nest, tensor->shape)) {
            return true;
        }
    }
    return false;
}

bool fy_boxed_holds(const fy_boxed *boxed, size_t parameter, uint32_t rank)
{
    const fy_rank_list *list = fy_boxed_holders(boxed, parameter);
    FY_BISECT(uint32_t, place, 0, list->n, at, list->ranks[at] < rank);
    return place < list->n && list->ranks[place] == rank;
}

uint64_t fy_boxed_bytes(const fy_boxed *boxed, size_t parameter)
{
    const fy_parameter *p = &boxed->side->parameters[parameter];
    return fy_bytes(p->elements, p->dtype.element_bits);
}

void fy_boxed_mark_tensors(const fy_boxed *boxed, bool *marked)
{
    for (size_t i = 0; i < boxed->side->n_boxes; i++) {
        marked[fy_boxed_tensor_of(boxed, &boxed->side->boxes[i])] = true;
    }
}

ferry_status fy_boxed_copy_source(const fy_boxed *boxed, ferry_side **side_out, ferry_error *error)
{
    ferry_side *copy = NULL;
    FY_TRY(ferry_side_create(&copy, error));
    ferry_status status = fy_side_append(copy, boxed->side, NULL, 0, error);
    if (status != FERRY_OK) {
        ferry_side_destroy(copy);
        return status;
    }
    copy->n_fills = 0;
    *side_out = copy;
    return FERRY_OK;
}

static int add_piece(void *context, const char *bytes, size_t n_bytes)
{
    fy_digest *digest = context;
    fy_digest_hash(digest, fy_hash128_of(bytes, n_bytes));
    return digest->failed;
}

ferry_status fy_boxed_digest(const fy_boxed *boxed, fy_hash128 *hash_out, ferry_error *error)
{
    fy_digest digest = {0};
    fy_writer *writer = fy_alloc(1, sizeof *writer);
    FY_TRY(fy_check_memory(writer != NULL, "the key of a layout", error));
    fy_writer_init(writer, add_piece, &digest);
    fy_side_write(writer, boxed->side);
    ferry_status status = fy_writer_finish(writer, NULL);
    *hash_out = fy_digest_take(&digest);
    fy_digest_cleanup(&digest);
    fy_free(writer);
    return fy_check_memory(status == FERRY_OK, "the key of a layout", error);
}
