/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What the files of a result hold: which tensors, in which shapes, at which bytes. */
#include "checkpoint/reshard.h"

#include "base/checked.h"
#include "base/sort.h"
#include "checkpoint/st_dtype.h"

#include <string.h>

fy_out_type fy_out_type_of(const fy_layout_job *job, uint32_t tensor)
{
    const fy_ckpt_tensor *model = fy_job_model_tensor(job, tensor);
    const fy_change *change = &job->changes[tensor];
    fy_out_type type = {.dtype = change->dtype,
                        .text = model->dtype_text,
                        .element_bits = change->dtype.element_bits,
                        .is_cast = change->kind == FY_CAST};
    if (change->kind != FY_KEPT) {
        type.text = fy_st_word_of_kind(change->dtype.kind);
    } else if (model->is_opaque) {
        type.element_bits = 6; /* the only ones that files have; they stand with the smallest */
    }
    return type;
}

fy_out_type fy_reshard_type(const ferry_reshard *reshard, uint32_t tensor)
{
    return fy_out_type_of(&reshard->job, tensor);
}

/* ---- adding tensors to files ---- */

static const uint64_t *keep_shape(ferry_reshard *c, const uint64_t *shape, uint32_t n_dims)
{
    uint64_t *kept = fy_arena_alloc(&c->arena, n_dims, sizeof *kept);
    if (kept != NULL && n_dims > 0) {
        memcpy(kept, shape, n_dims * sizeof *kept);
    }
    return kept;
}

/* All holders of a cell share the shape. */
static ferry_status add_tensor(fy_out_file *file, const fy_form_tensor *tensor, ferry_error *error)
{
    FY_TRY(FY_GROW(file->form.tensors, file->capacity, file->form.n_tensors + 1,
                   "the files of a result", error));
    file->form.tensors[file->form.n_tensors++] = *tensor;
    return FERRY_OK;
}

/* The tensor as one holder of a cell has it. */
static ferry_status describe(ferry_reshard *c, uint32_t tensor, uint32_t cell, fy_form_tensor *form,
                             ferry_error *error)
{
    const fy_tensor *t = &c->job.problem.tensors[tensor];
    const fy_ckpt_tensor *model = fy_job_model_tensor(&c->job, tensor);
    fy_out_type type = fy_reshard_type(c, tensor);
    uint64_t shape[FERRY_MAX_DIMS];
    uint32_t n_dims;
    uint64_t n_elements = fy_placement_shape(&c->job.problem, t->dst, cell, &n_dims, shape);
    *form = (fy_form_tensor){.name = t->name,
                             .dtype_text = type.text,
                             .element_bits = type.element_bits,
                             .bytes = fy_ceil_div(n_elements * type.dtype.element_bits, 8),
                             .tag = tensor};
    if (n_elements * type.dtype.element_bits % 8 != 0) {
        return fy_fail(
            error, FERRY_ERR_INVALID_PLAN,
            "\"%s\" has elements of %u bits, and a shard of it of %llu elements does not "
            "end on a byte; cut it at even places",
            t->name, type.dtype.element_bits, (unsigned long long)n_elements);
    }
    form->n_dims = model->is_opaque ? model->file_n_dims : n_dims;
    form->shape = model->is_opaque ? model->file_shape : keep_shape(c, shape, n_dims);
    return form->shape == NULL ? fy_fail_no_memory(error, "the shape of a shard") : FERRY_OK;
}

static ferry_status add_to_ranks(ferry_reshard *c, uint32_t tensor, ferry_error *error)
{
    const fy_holders *holders =
        fy_problem_holders(&c->job.problem, c->job.problem.tensors[tensor].dst);
    ferry_status status = FERRY_OK;
    for (uint32_t cell = 0; cell < holders->n_cells && status == FERRY_OK; cell++) {
        fy_form_tensor form = {.tag = tensor};
        if (fy_holders_cell_size(holders, cell) > 0) {
            status = describe(c, tensor, cell, &form, error);
        }
        uint32_t s = holders->cell_begin[cell];
        for (; s < holders->cell_begin[cell + 1] && status == FERRY_OK; s++) {
            uint32_t place = fy_places_find(&c->job.to_places, holders->rank[s]);
            status = add_tensor(&c->out[place], &form, error);
        }
    }
    return status;
}

static ferry_status add_all(ferry_reshard *c, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint32_t t = 0; t < c->job.problem.n_tensors && status == FERRY_OK; t++) {
        if (!c->job.is_wanted[t]) {
            continue;
        }
        c->totals.n_tensors++;
        if (c->is_sharded) {
            status = add_to_ranks(c, t, error);
        } else {
            fy_form_tensor form;
            status = describe(c, t, 0, &form, error);
            FY_THEN(status, add_tensor(&c->out[c->part_of[t]], &form, error));
        }
    }
    return status;
}

/* ---- files ---- */

static ferry_status make_files(ferry_reshard *c, size_t n, ferry_error *error)
{
    char name[64];
    c->out = fy_alloc_zeroed(n, sizeof *c->out);
    FY_TRY(fy_check_memory(c->out != NULL, "the files of a result", error));
    for (; c->n_out < n; c->n_out++) {
        fy_out_file *file = &c->out[c->n_out];
        if (c->is_sharded) {
            file->rank = c->boxed != NULL
                             ? c->boxed->ranks[c->n_out]
                             : fy_side_rank_at(&c->job.spec->destination, (uint32_t)c->n_out);
            fy_form_rank_name(file->rank, name, sizeof name);
        } else {
            fy_form_part_name((uint32_t)c->n_out, (uint32_t)n, name, sizeof name);
        }
        file->name = fy_strdup(name);
        FY_TRY(fy_check_memory(file->name != NULL, "the files of a result", error));
        file->form.metadata = c->from->metadata;
        file->form.n_metadata = c->from->n_metadata;
        file->form.has_checksums = c->is_sharded;
    }
    return FERRY_OK;
}

static uint64_t out_bytes(const ferry_reshard *c, uint32_t tensor)
{
    const fy_tensor *t = &c->job.problem.tensors[tensor];
    return fy_ceil_div(
        fy_box_volume(t->shape, t->n_dims) * fy_reshard_type(c, tensor).dtype.element_bits, 8);
}

/* Of a tensor of the result, and of the scales that are made with it. */
static uint64_t bytes_with_scales(const ferry_reshard *c, uint32_t tensor)
{
    const fy_change *change = &c->job.changes[tensor];
    uint64_t bytes = out_bytes(c, tensor);
    if (change->kind == FY_QUANTIZED) {
        bytes += out_bytes(c, change->scales);
        bytes += change->matrix_scales == FY_NONE ? 0 : out_bytes(c, change->matrix_scales);
    }
    return bytes;
}

/* Which part of a logical result each tensor goes to: scales to that of their weights. */
static ferry_status choose_parts(ferry_reshard *c, uint32_t *n_parts_out, ferry_error *error)
{
    size_t n_all = c->job.problem.n_tensors, n = 0;
    uint64_t *bytes = fy_alloc(n_all, sizeof *bytes);
    uint32_t *part = fy_alloc(n_all, sizeof *part);
    c->part_of = fy_alloc_zeroed(n_all, sizeof *c->part_of);
    if (bytes == NULL || part == NULL || c->part_of == NULL) {
        fy_free(bytes);
        fy_free(part);
        return fy_fail_no_memory(error, "the parts of a result");
    }
    for (size_t t = 0; t < n_all; t++) {
        bool is_alone = !c->job.problem.tensors[t].is_made;
        if (c->job.is_wanted[t] && is_alone) {
            bytes[n++] = bytes_with_scales(c, (uint32_t)t);
        }
    }
    *n_parts_out = fy_form_parts(bytes, n, c->part_bytes, part);
    n = 0;
    for (size_t t = 0; t < n_all; t++) {
        bool is_alone = !c->job.problem.tensors[t].is_made;
        if (c->job.is_wanted[t]) {
            c->part_of[t] = is_alone ? part[n++] : c->part_of[c->job.changes[t].weight];
        }
    }
    fy_free(bytes);
    fy_free(part);
    return FERRY_OK;
}

typedef struct tagged {
    uint32_t tag;
    uint32_t position;
} tagged;

static int compare_tags(const void *a, const void *b)
{
    uint32_t x = ((const tagged *)a)->tag, y = ((const tagged *)b)->tag;
    return (x > y) - (x < y);
}

static ferry_status arrange(fy_out_file *file, ferry_error *error)
{
    size_t n = file->form.n_tensors;
    FY_TRY(fy_form_arrange(&file->form, file->name, error));
    tagged *tags = fy_alloc(n, sizeof *tags);
    file->by_tag = fy_alloc(n, sizeof *file->by_tag);
    if (tags == NULL || file->by_tag == NULL) {
        fy_free(tags);
        return fy_fail_no_memory(error, "the files of a result");
    }
    for (size_t i = 0; i < n; i++) {
        tags[i] = (tagged){.tag = file->form.tensors[i].tag, .position = (uint32_t)i};
    }
    fy_sort(tags, n, sizeof *tags, compare_tags);
    for (size_t i = 0; i < n; i++) {
        file->by_tag[i] = tags[i].position;
    }
    fy_free(tags);
    return FERRY_OK;
}

fy_form_tensor *fy_out_find(const fy_out_file *file, uint32_t tensor)
{
    FY_BISECT_LAST(size_t, low, 0, file->form.n_tensors, middle,
                   file->form.tensors[file->by_tag[middle]].tag <= tensor);
    return &file->form.tensors[file->by_tag[low]];
}

ferry_status fy_reshard_make_forms(ferry_reshard *c, ferry_error *error)
{
    uint32_t n_files = c->is_sharded ? c->job.spec->destination.n_ranks : 1;
    ferry_status status = FERRY_OK;
    if (!c->is_sharded) {
        status = choose_parts(c, &n_files, error);
    }
    n_files = c->boxed != NULL ? c->boxed->n_ranks : n_files;
    FY_THEN(status, make_files(c, n_files, error));
    FY_THEN(status, c->boxed != NULL ? fy_reshard_add_parameters(c, error) : add_all(c, error));
    for (size_t i = 0; i < c->n_out && status == FERRY_OK; i++) {
        status = arrange(&c->out[i], error);
        c->totals.file_bytes += c->out[i].form.header_bytes + c->out[i].form.data_bytes;
    }
    c->totals.n_files = c->n_out;
    return status;
}
