/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Where the local tensors of a job's source lie, and whether they are what its layout says. */
#include "checkpoint/job.h"

#include "base/checked.h"
#include "base/sort.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

uint32_t fy_places_find(const fy_places *places, uint32_t rank)
{
    const fy_side *side = places->side;
    if (places->by_rank == NULL) {
        return rank - side->first_rank;
    }
    FY_BISECT_LAST(uint32_t, low, 0, side->n_ranks, middle,
                   side->ranks[places->by_rank[middle]] <= rank);
    return places->by_rank[low];
}

ferry_status fy_job_locate(const fy_layout_job *job, uint32_t tensor, uint32_t rank,
                           uint32_t *file_out, const fy_st_tensor **entry_out, ferry_error *error)
{
    const ferry_checkpoint *from = job->from;
    const fy_ckpt_tensor *t = &from->tensors[tensor];
    if (!from->is_sharded) {
        *file_out = t->file;
        *entry_out = &from->files[t->file].header.tensors[t->entry];
        return FERRY_OK;
    }
    uint32_t place = fy_places_find(&job->from_places, rank);
    const fy_ckpt_file *file = &from->files[place];
    *file_out = place;
    *entry_out = fy_st_find(&file->header, t->name);
    if (*entry_out == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: lacks \"%s\", which the layout gives to rank %u", file->path, t->name,
                       rank);
    }
    return FERRY_OK;
}

uint64_t fy_placement_shape(const fy_problem *problem, uint32_t placement, uint32_t cell,
                            uint32_t *n_dims_out, uint64_t shape_out[FERRY_MAX_DIMS])
{
    const fy_layout *layout = &problem->placements[placement].layout;
    uint32_t parts[FERRY_MAX_DIMS + 1];
    uint64_t begin, end;
    fy_layout_parts(problem, layout, cell, parts);
    uint64_t n_elements = fy_layout_shard(problem, layout, parts, shape_out);
    *n_dims_out = layout->n_dims;
    if (layout->n_flat == 0) {
        return n_elements;
    }
    fy_layout_flat_range(layout, parts[layout->n_dims], n_elements, &begin, &end);
    *n_dims_out = 1;
    shape_out[0] = end - begin;
    return end - begin;
}

/* Where a local index of a part lies in the whole dimension. */
static uint64_t global_index(const fy_split *split, uint32_t part, uint64_t local)
{
    for (size_t i = 0; i < split->n_pieces; i++) {
        const fy_piece *piece = &split->pieces[i];
        if (part < piece->part || part - piece->part >= piece->n_owners) {
            continue;
        }
        uint64_t begin = fy_split_local(split, part, piece->global);
        if (local >= begin && local - begin < piece->length) {
            return piece->global + (local - begin);
        }
    }
    return 0; /* the part is shorter: there is no such element */
}

void fy_placement_global(const fy_problem *problem, uint32_t placement, uint32_t cell,
                         uint64_t element, uint64_t index_out[FERRY_MAX_DIMS])
{
    const fy_layout *layout = &problem->placements[placement].layout;
    uint32_t parts[FERRY_MAX_DIMS + 1];
    uint64_t shape[FERRY_MAX_DIMS], begin, end;
    fy_layout_parts(problem, layout, cell, parts);
    uint64_t n_elements = fy_layout_shard(problem, layout, parts, shape);
    fy_layout_flat_range(layout, parts[layout->n_dims], n_elements, &begin, &end);
    element += begin;
    for (uint32_t d = layout->n_dims; d-- > 0; element /= shape[d]) {
        index_out[d] =
            global_index(fy_problem_split(problem, layout, d), parts[d], element % shape[d]);
    }
}

const fy_ckpt_tensor *fy_job_model_tensor(const fy_layout_job *job, uint32_t tensor)
{
    if (tensor >= job->spec->n_tensors) { /* a region that a side in boxes has made of one */
        tensor = fy_problem_whole_number(&job->problem, tensor);
    }
    uint32_t source = job->spec->tensors[tensor].is_made ? job->changes[tensor].weight : tensor;
    const fy_tensor *t = &job->spec->tensors[source];
    return &job->from->tensors[t->n_feeds == 0 ? source : t->feeds[0].tensor];
}

/* ---- do the rank files hold what the layout says? ---- */

void fy_format_shape(const uint64_t *shape, uint32_t n_dims, char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "[");
    for (uint32_t d = 0; d < n_dims && used < bytes; d++) {
        used +=
            (size_t)snprintf(text + used, bytes - used, "%s%" PRIu64, d == 0 ? "" : ", ", shape[d]);
    }
    if (used < bytes) {
        snprintf(text + used, bytes - used, "]");
    }
}

static ferry_status check_entry(const fy_layout_job *job, uint32_t tensor, uint32_t rank,
                                uint32_t n_dims, const uint64_t *shape, ferry_error *error)
{
    const fy_ckpt_tensor *model = &job->from->tensors[tensor];
    const fy_st_tensor *entry = NULL;
    uint32_t file;
    FY_TRY(fy_job_locate(job, tensor, rank, &file, &entry, error));
    if (model->is_opaque) { /* it is whole, and its bytes were compared when it was opened */
        return FERRY_OK;
    }
    bool same = entry->n_dims == n_dims;
    for (uint32_t d = 0; same && d < n_dims; d++) {
        same = entry->shape[d] == shape[d];
    }
    if (!same) {
        char has[256], wanted[256];
        fy_format_shape(entry->shape, entry->n_dims, has, sizeof has);
        fy_format_shape(shape, n_dims, wanted, sizeof wanted);
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: \"%s\" has shape %s, but the layout gives rank %u a shard of %s",
                       job->from->files[file].path, model->name, has, rank, wanted);
    }
    return FERRY_OK;
}

static ferry_status check_tensor(const fy_layout_job *job, uint32_t tensor, size_t *n_held,
                                 ferry_error *error)
{
    uint32_t placement = job->problem.tensors[tensor].src;
    const fy_holders *holders = fy_problem_holders(&job->problem, placement);
    ferry_status status = FERRY_OK;
    for (uint32_t cell = 0; cell < holders->n_cells && status == FERRY_OK; cell++) {
        uint64_t shape[FERRY_MAX_DIMS];
        uint32_t n_dims;
        fy_placement_shape(&job->problem, placement, cell, &n_dims, shape);
        uint32_t s = holders->cell_begin[cell];
        for (; s < holders->cell_begin[cell + 1] && status == FERRY_OK; s++) {
            status = check_entry(job, tensor, holders->rank[s], n_dims, shape, error);
            n_held[fy_places_find(&job->from_places, holders->rank[s])]++;
        }
    }
    return status;
}

/* A file that lists more than its rank holds: says what. */
static ferry_status fail_extra(const fy_layout_job *job, uint32_t place, ferry_error *error)
{
    const fy_ckpt_file *file = &job->from->files[place];
    for (size_t i = 0; i < file->header.n_tensors; i++) {
        const char *name = file->header.tensors[i].name;
        uint32_t tensor = fy_ckpt_find(job->from, name);
        if (tensor == FY_INDEX_NONE ||
            fy_holders_find(fy_problem_holders(&job->problem, job->problem.tensors[tensor].src),
                            file->rank) == FY_NO_SLOT) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: lists \"%s\", which the layout does not give to rank %u",
                           file->path, name, file->rank);
        }
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: lists other tensors than the layout says",
                   file->path);
}

static ferry_status check_shards(const fy_layout_job *job, ferry_error *error)
{
    const ferry_checkpoint *from = job->from;
    size_t *n_held = fy_alloc_zeroed(from->n_files, sizeof *n_held);
    ferry_status status = FERRY_OK;
    FY_TRY(fy_check_memory(n_held != NULL, "the files of a checkpoint", error));
    for (uint32_t t = 0; t < from->n_tensors && status == FERRY_OK; t++) {
        status = check_tensor(job, t, n_held, error);
    }
    for (uint32_t f = 0; f < from->n_files && status == FERRY_OK; f++) {
        if (n_held[f] != from->files[f].header.n_tensors) {
            status = fail_extra(job, f, error);
        }
    }
    fy_free(n_held);
    return status;
}

ferry_status fy_ckpt_check_shards(const ferry_checkpoint *checkpoint, ferry_error *error)
{
    fy_job_target one = {.name = checkpoint->path};
    fy_layout_job job;
    ferry_error inner;
    if (checkpoint->boxed != NULL) { /* that was checked when its files were opened */
        return FERRY_OK;
    }
    ferry_status status = fy_job_create(checkpoint, &one, &job, &inner);
    if (status != FERRY_OK &&
        strncmp(inner.message, checkpoint->layout_path, strlen(checkpoint->layout_path)) != 0) {
        return fy_fail(error, status, "%s: %s", checkpoint->layout_path, inner.message);
    }
    if (status != FERRY_OK) {
        return fy_forward(error, status, &inner);
    }
    if (status == FERRY_OK) {
        status = check_shards(&job, error);
        fy_job_cleanup(&job);
    }
    return status;
}
