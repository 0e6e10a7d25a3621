/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/sort.h"
#include "prove/boxes.h"
#include "prove/spec_read.h"

#include <string.h>

static ferry_status read_box(const json_t *json, const fy_json_place *place,
                             const fy_proof_entry *entry, fy_proof_box *box, ferry_error *error)
{
    static const char *const keys[] = {"tensor", "begin", "shape", "at", NULL};
    static const char *const lists[] = {"begin", "shape", "at"};
    uint64_t *const dims[] = {box->begin, box->shape, box->at};
    size_t n[3];
    ferry_status status = fy_json_expect_object(json, place, keys, error);
    FY_THEN(status, fy_proof_read_text(json, place, "tensor", &box->tensor, error));
    for (size_t i = 0; status == FERRY_OK && i < 3; i++) {
        const json_t *list;
        fy_json_place inner = {.parent = place, .key = lists[i]};
        status = fy_json_member(json, place, lists[i], &list, error);
        if (status == FERRY_OK) {
            /* A missing leading dimension is one slice: begin 0, extent 1. */
            status = fy_proof_read_dims(list, &inner, i == 1 ? 1 : 0, dims[i], &n[i], error);
        }
    }
    if (status != FERRY_OK) {
        return status;
    }
    if (n[0] != n[1] || n[2] != entry->n_dims) {
        return fy_json_fail(place, error,
                            "has %zu begins, %zu extents and %zu places for a tensor of %zu "
                            "dimensions",
                            n[0], n[1], n[2], entry->n_dims);
    }
    box->n_dims = n[0];
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        if (box->at[d] > entry->shape[d] || box->shape[d] > entry->shape[d] - box->at[d]) {
            return fy_json_fail(place, error, "fills %llu elements at %llu of an extent of %llu",
                                (unsigned long long)box->shape[d], (unsigned long long)box->at[d],
                                (unsigned long long)entry->shape[d]);
        }
    }
    return FERRY_OK;
}

static bool is_self(void *context, size_t box)
{
    return *(const size_t *)context == box;
}

/* Disjoint boxes inside the tensor whose elements are as many as the tensor's tile it. */
static ferry_status check_tiling(const fy_proof_entry *entry, size_t n, uint64_t *looks,
                                 const fy_json_place *place, ferry_error *error)
{
    uint64_t volume = 1, sum = 0, end[FY_PROOF_DIMS];
    for (size_t i = 0; i < n; i++) {
        const fy_proof_box *box = &entry->boxes[i];
        uint64_t elements = 1;
        for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
            elements *= box->shape[d]; /* inside the tensor, whose elements are counted */
            end[d] = box->at[d] + box->shape[d];
        }
        sum += elements;
        if (entry->tree != NULL &&
            !fy_proof_tree_visit(entry->tree, box->at, end, is_self, &i, looks)) {
            return fy_json_fail(place, error, "has two boxes that fill the same elements");
        }
    }
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        volume *= entry->shape[d];
    }
    if (sum != volume) {
        return fy_json_fail(place, error, "fills %llu of %llu elements", (unsigned long long)sum,
                            (unsigned long long)volume);
    }
    return FERRY_OK;
}

/* Empty boxes fill nothing and are left out; a tensor without elements keeps one to stand for it.
 */
static ferry_status keep_boxes(fy_proof_spec *spec, fy_proof_entry *entry, fy_proof_box *boxes,
                               size_t n, const fy_json_place *place, ferry_error *error)
{
    size_t n_filled = 0;
    for (size_t i = 0; i < n; i++) {
        bool is_empty = false;
        for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
            is_empty = is_empty || boxes[i].shape[d] == 0;
        }
        if (!is_empty) {
            boxes[n_filled++] = boxes[i];
        }
    }
    entry->n_boxes = n_filled == 0 && n > 0 ? 1 : n_filled;
    entry->boxes = boxes;
    if (n_filled > 1) {
        entry->tree = fy_proof_tree_make(&spec->arena, boxes, n_filled);
        FY_TRY(fy_check_memory(entry->tree != NULL, "the boxes of a tensor", error));
    }
    return check_tiling(entry, n_filled, spec->looks, place, error);
}

static ferry_status read_boxes(fy_proof_spec *spec, const json_t *json, const fy_json_place *place,
                               fy_proof_entry *entry, ferry_error *error)
{
    FY_TRY(fy_json_expect_array(json, place, error));
    size_t n = json_array_size(json);
    if (n == 0) {
        return fy_json_fail(place, error, "must name at least one box");
    }
    fy_proof_box *boxes = fy_arena_alloc(&spec->arena, n, sizeof *boxes);
    FY_TRY(fy_check_memory(boxes != NULL, "the boxes of a tensor", error));
    for (size_t i = 0; i < n; i++) {
        fy_json_place inner = {.parent = place, .index = i};
        boxes[i] = (fy_proof_box){0};
        FY_TRY(read_box(json_array_get(json, i), &inner, entry, &boxes[i], error));
    }
    return keep_boxes(spec, entry, boxes, n, place, error);
}

ferry_status fy_proof_read_source(fy_proof_spec *spec, const json_t *json,
                                  const fy_json_place *place, fy_proof_entry *entry,
                                  ferry_error *error)
{
    entry->has_source = true;
    if (!json_is_string(json)) {
        return read_boxes(spec, json, place, entry, error);
    }
    fy_proof_box *box = fy_arena_alloc(&spec->arena, 1, sizeof *box);
    FY_TRY(fy_check_memory(box != NULL, "a tensor", error));
    *box = (fy_proof_box){.tensor = json_string_value(json), .n_dims = entry->n_dims};
    memcpy(box->shape, entry->shape, sizeof box->shape);
    entry->is_tied = true;
    entry->boxes = box;
    entry->n_boxes = 1;
    return FERRY_OK;
}

/* Whether the box can be read from the source tensor at all. */
static ferry_status check_source(const fy_proof_tensor *tensor, const fy_proof_box *box,
                                 const fy_proof_tensor *source, ferry_error *error)
{
    const fy_proof_entry *from = source->entry;
    if (from->dtype.kind != tensor->entry->dtype.kind ||
        from->dtype.element_bits != tensor->entry->dtype.element_bits) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: its source %s has another dtype",
                       tensor->name, source->name);
    }
    bool fits = box->n_dims == from->n_dims;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        fits = fits && box->begin[d] <= from->shape[d] &&
               box->shape[d] <= from->shape[d] - box->begin[d];
        fits = fits && (!tensor->entry->is_tied || box->shape[d] == from->shape[d]);
    }
    if (!fits) {
        char slice[200];
        fy_proof_slice_format(slice, sizeof slice, box->n_dims, box->begin, box->shape);
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: %s is %s its source %s", tensor->name,
                       slice, tensor->entry->is_tied ? "not the shape of" : "no box of",
                       source->name);
    }
    return FERRY_OK;
}

static ferry_status link_tensor(fy_proof_spec *spec, fy_proof_tensor *tensor, ferry_error *error)
{
    const fy_proof_entry *entry = tensor->entry;
    uint32_t *sources = fy_arena_alloc(&spec->arena, entry->n_boxes, sizeof *sources);
    uint32_t *fed_by = fy_arena_alloc(&spec->arena, entry->n_boxes, sizeof *fed_by);
    FY_TRY(fy_check_memory(sources != NULL && fed_by != NULL, "the sources of a tensor", error));
    for (size_t i = 0; i < entry->n_boxes; i++) {
        const fy_proof_box *box = &entry->boxes[i];
        const char *name = fy_proof_fill_name(spec, box->tensor, entry, tensor->number);
        FY_TRY(fy_check_memory(name != NULL, "the name of a tensor", error));
        if (!fy_proof_spec_find(spec, name, &sources[i])) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: its source %s is not among the tensors", tensor->name, name);
        }
        FY_TRY(check_source(tensor, box, &spec->tensors[sources[i]], error));
    }
    memcpy(fed_by, sources, entry->n_boxes * sizeof *fed_by);
    fy_sort(fed_by, entry->n_boxes, sizeof *fed_by, fy_compare_u32);
    tensor->sources = sources;
    tensor->fed_by = fed_by;
    return FERRY_OK;
}

ferry_status fy_proof_link_sources(fy_proof_spec *spec, ferry_error *error)
{
    for (size_t i = 0; i < spec->n_tensors; i++) {
        if (spec->tensors[i].entry->has_source) {
            FY_TRY(link_tensor(spec, &spec->tensors[i], error));
        }
    }
    return fy_proof_follow_chains(spec, error);
}
