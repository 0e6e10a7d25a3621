/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The bits of two checkpoints, tensor by tensor, window by window. */
#include "checkpoint/verify.h"

#include "base/checked.h"
#include "exec/cast.h"

#include <stdio.h>
#include <string.h>

static void format_index(const fy_verify_pair *p, uint64_t element, char *text, size_t text_bytes)
{
    uint64_t index[FERRY_MAX_DIMS] = {element};
    uint32_t n_dims = 1;
    if (p->problem != NULL) {
        n_dims = p->problem->placements[p->placement].layout.n_dims;
        fy_placement_global(p->problem, p->placement, p->cell, element, index);
    }
    fy_format_shape(index, n_dims, text, text_bytes);
}

ferry_status fy_verify_bytes(const fy_verify_pair *p, const char *a, const char *b,
                             uint64_t n_bytes, ferry_error *error)
{
    uint64_t at = fy_first_difference(a, b, n_bytes);
    if (at == n_bytes) {
        return FERRY_OK;
    }
    char index[256], values[2][96];
    uint64_t element = (p->first_byte + at) * 8 / p->dtype.element_bits;
    bool high = p->dtype.element_bits == 4 && ((a[at] ^ b[at]) & 15) == 0;
    uint64_t begin =
        p->dtype.element_bits < 8 ? at : element * (p->dtype.element_bits / 8) - p->first_byte;
    format_index(p, element + (high ? 1 : 0), index, sizeof index);
    fy_format_value(p->dtype, a + begin, high, at - begin, values[0], sizeof values[0]);
    fy_format_value(p->dtype, b + begin, high, at - begin, values[1], sizeof values[1]);
    return fy_fail(error, FERRY_ERR_DIFFERENT, "\"%s\" differs at element %s: %s in %s, %s in %s%s",
                   p->tensor, index, values[0], p->where[0], values[1], p->where[1], p->note);
}

/* ---- a with b ---- */

/* Windows that fit on both sides: those of the one whose elements are larger. */
static fy_grain common_grain(const fy_verify_work *c, uint32_t a, uint32_t b)
{
    fy_grain x = fy_grain_of(&c->sides[0].whole, a, c->buffers.window_bytes, c->buffers.span_bytes);
    fy_grain y = fy_grain_of(&c->sides[1].whole, b, c->buffers.window_bytes, c->buffers.span_bytes);
    if (x.dim != y.dim) {
        return x.dim > y.dim ? x : y;
    }
    x.rows = fy_min(x.rows, y.rows);
    return x;
}

/* What a has, as it changes. */
static const char *change_window(const fy_verify_work *c, const fy_verify_worker *w,
                                 const fy_window *window)
{
    const fy_layout_job *job = &c->sides[0].whole;
    const fy_change *change = &job->changes[window->tensor];
    if (change->kind != FY_CAST) {
        return w->window[0];
    }
    fy_cast cast = {.from_kind = job->problem.tensors[window->tensor].dtype.kind,
                    .to_kind = change->dtype.kind,
                    .overflow = fy_cast_usual_overflow(change->dtype.kind),
                    .n_rows = 1,
                    .n_columns = window->n_elements};
    fy_area in = fy_area_flat(0, window->n_elements * fy_cast_element_bytes(cast.from_kind));
    fy_area out = fy_area_flat(0, window->n_elements * fy_cast_element_bytes(cast.to_kind));
    fy_area_cast(&cast, &out, w->cast, &in, w->window[0], 0, window->n_elements);
    return w->cast;
}

fy_verify_pair fy_verify_pair_of(const fy_verify_work *c, uint32_t tensor)
{
    const fy_layout_job *job = &c->sides[0].whole;
    const fy_tensor *t = &job->problem.tensors[tensor];
    return (fy_verify_pair){
        .tensor = t->name,
        .dtype = job->changes[tensor].dtype,
        .problem = &job->problem,
        .placement = t->dst,
        .where = {c->sides[0].checkpoint->path, c->sides[1].checkpoint->path},
        .note = job->changes[tensor].kind == FY_KEPT ? "" : " (the first as it would become)"};
}

/* Bytes of a file. */
typedef struct stretch {
    fy_files *files;
    uint32_t file;
    uint64_t offset;
} stretch;

/* An element that is larger than a window lies in one place on both sides. hasher: (optional) */
static ferry_status compare_element(fy_verify_work *c, fy_verify_worker *w, uint64_t n_bytes,
                                    const stretch places[2], const fy_verify_pair *p,
                                    fy_hasher *hasher, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    uint64_t first = p->first_byte;
    for (uint64_t done = 0; done < n_bytes && status == FERRY_OK;) {
        uint64_t n = fy_min(n_bytes - done, c->buffers.window_bytes);
        status = fy_gather_check_stop(&w->whole[0], error);
        for (int s = 0; s < 2 && status == FERRY_OK; s++) {
            status = fy_files_read(places[s].files, places[s].file, places[s].offset + done,
                                   w->window[s], n, error);
        }
        if (status == FERRY_OK && fy_first_difference(w->window[0], w->window[1], n) != n) {
            /* Too large to print: the byte is what tells. */
            ferry_dtype byte = {.kind = FERRY_U8, .element_bits = 8};
            fy_verify_pair q = *p;
            q.dtype = byte;
            q.problem = NULL;
            q.first_byte = first + done;
            return fy_verify_bytes(&q, w->window[0], w->window[1], n, error);
        }
        if (status == FERRY_OK && hasher != NULL) {
            fy_hasher_update(hasher, w->window[0], (size_t)n);
        }
        done += n;
    }
    return status;
}

ferry_status fy_verify_hash_window(fy_verify_work *c, fy_verify_worker *w, const fy_window *window,
                                   fy_hasher *hasher, ferry_error *error)
{
    ferry_dtype dtype = c->sides[0].whole.changes[window->tensor].dtype;
    uint64_t most = c->buffers.window_bytes;
    ferry_status status = fy_gather_check_stop(&w->whole[0], error);
    atomic_fetch_add(&c->done_bytes, window->bytes);
    if (window->bytes <= most) {
        FY_THEN(status, fy_gather_read(&w->whole[0], window, w->window[0], error));
        if (status == FERRY_OK) {
            fy_hasher_update(hasher, change_window(c, w, window),
                             (size_t)fy_ceil_div(window->n_elements * dtype.element_bits, 8));
        }
        return status;
    }
    FY_THEN(status, fy_gather_locate(&w->whole[0], window, error));
    for (uint64_t done = 0; done < window->bytes && status == FERRY_OK; done += most) {
        uint64_t n = fy_min(most, window->bytes - done);
        status = fy_files_read(c->sides[0].files, w->whole[0].whole_file,
                               w->whole[0].whole_offset + done, w->window[0], n, error);
        fy_hasher_update(hasher, w->window[0], (size_t)n);
    }
    return status;
}

static ferry_status compare_window(fy_verify_work *c, fy_verify_worker *w, const fy_window *window,
                                   fy_verify_pair *p, fy_hasher *hasher, ferry_error *error)
{
    bool large = window->bytes > c->buffers.window_bytes;
    ferry_status status = fy_gather_check_stop(&w->whole[0], error);
    p->first_byte = fy_bytes(window->first, p->dtype.element_bits);
    for (int s = 0; s < 2 && status == FERRY_OK; s++) {
        status = large ? fy_gather_locate(&w->whole[s], window, error)
                       : fy_gather_read(&w->whole[s], window, w->window[s], error);
    }
    if (status == FERRY_OK && large) {
        const stretch places[2] = {
            {c->sides[0].files, w->whole[0].whole_file, w->whole[0].whole_offset},
            {c->sides[1].files, w->whole[1].whole_file, w->whole[1].whole_offset}};
        status = compare_element(c, w, window->bytes, places, p, hasher, error);
    } else if (status == FERRY_OK) {
        uint64_t bytes = fy_ceil_div(window->n_elements * p->dtype.element_bits, 8);
        status = fy_verify_bytes(p, change_window(c, w, window), w->window[1], bytes, error);
        fy_hasher_update(hasher, w->window[1], (size_t)bytes);
    }
    atomic_fetch_add(&c->done_bytes, window->bytes);
    return status;
}

void fy_verify_add_damage(fy_verify_worker *w, ferry_error *error)
{
    for (int s = 0; s < 2 && error != NULL; s++) {
        ferry_error cause;
        for (size_t i = 0; i < w->whole[s].n_checks; i++) {
            const fy_source_check *check = &w->whole[s].checks[i];
            if (fy_gather_check_whole(&w->whole[s], check->file, check->entry, &cause) ==
                FERRY_ERR_DIGEST) {
                size_t used = strlen(error->message);
                snprintf(error->message + used, sizeof error->message - used, "; %s",
                         cause.message);
                return;
            }
        }
    }
}

ferry_status fy_verify_tensor(fy_verify_work *c, fy_verify_worker *w, uint32_t tensor,
                              ferry_error *error)
{
    uint32_t numbers[2] = {tensor, c->twin[tensor]};
    if (fy_change_has_tiles(&c->sides[0].whole.changes[tensor])) {
        return fy_verify_weight(c, w, tensor, error);
    }
    fy_grain grain = common_grain(c, numbers[0], numbers[1]);
    fy_verify_pair p = fy_verify_pair_of(c, tensor);
    fy_window_walk walk;
    fy_hasher hasher;
    ferry_status status = FERRY_OK;
    for (int s = 0; s < 2 && status == FERRY_OK; s++) {
        status = fy_gather_begin(&w->whole[s], numbers[s], error);
    }
    fy_hasher_begin(&hasher);
    fy_window_walk_begin(&walk, &c->sides[0].whole, tensor, 0, &grain);
    while (status == FERRY_OK && fy_window_walk_next(&walk)) {
        status = compare_window(c, w, &walk.window, &p, &hasher, error);
    }
    if (status == FERRY_ERR_DIFFERENT) {
        fy_verify_add_damage(w, error);
    }
    for (int s = 0; s < 2 && status == FERRY_OK; s++) {
        status = fy_gather_end(&w->whole[s], error);
    }
    c->digests[tensor] = fy_hasher_end(&hasher);
    return status;
}

/* ---- local tensors among themselves ---- */

typedef struct local {
    fy_verify_work *work;
    fy_verify_worker *worker;
    uint32_t side;
    uint32_t tensor;
    uint32_t rank;
    uint32_t file;
    const fy_st_tensor *entry;
    uint64_t base;
    bool was_compared;
} local;

/* The first holder of everything in the window is this file itself. */
static bool is_itself(const local *l)
{
    const fy_gather *gather = &l->worker->own[l->side];
    return gather->is_one_file && gather->whole_file == l->file;
}

static ferry_status compare_local_window(local *l, const fy_window *window, ferry_error *error)
{
    fy_verify_work *c = l->work;
    fy_gather *gather = &l->worker->own[l->side];
    const fy_tensor *t = &c->sides[l->side].own.problem.tensors[l->tensor];
    uint64_t offset = l->base + fy_bytes(window->first, t->dtype.element_bits);
    char note[64];
    ferry_status status = fy_gather_check_stop(gather, error);
    FY_THEN(status, fy_gather_look(gather, window, error));
    if (status != FERRY_OK || is_itself(l)) {
        return status;
    }
    l->was_compared = true;
    snprintf(note, sizeof note, " (of the shard of rank %u)", l->rank);
    fy_verify_pair p = {
        .tensor = t->name,
        .dtype = t->dtype,
        .problem = &c->sides[l->side].own.problem,
        .placement = t->dst,
        .cell = window->cell,
        .where = {"the other replicas", c->sides[l->side].checkpoint->files[l->file].path},
        .first_byte = fy_bytes(window->first, t->dtype.element_bits),
        .note = note};
    fy_files *files = c->sides[l->side].files;
    if (window->bytes > c->buffers.window_bytes) {
        status = fy_gather_locate(gather, window, error);
        const stretch places[2] = {{files, gather->whole_file, gather->whole_offset},
                                   {files, l->file, offset}};
        return status == FERRY_OK
                   ? compare_element(c, l->worker, window->bytes, places, &p, NULL, error)
                   : status;
    }
    status = fy_gather_read(gather, window, l->worker->window[0], error);
    FY_THEN(status,
            fy_files_read(files, l->file, offset, l->worker->window[1], window->bytes, error));
    return status == FERRY_OK ? fy_verify_bytes(&p, l->worker->window[0], l->worker->window[1],
                                                window->bytes, error)
                              : status;
}

/* Only what others have as well is compared; the checksums of all are. */
static ferry_status compare_local(local *l, uint32_t cell, bool is_replica, const fy_grain *grain,
                                  ferry_error *error)
{
    fy_verify_work *c = l->work;
    fy_gather *gather = &l->worker->own[l->side];
    const fy_layout_job *job = &c->sides[l->side].own;
    fy_window_walk walk;
    FY_TRY(fy_job_locate(job, l->tensor, l->rank, &l->file, &l->entry, error));
    ferry_status status = FERRY_OK;
    l->base = job->from->files[l->file].header.data_begin + l->entry->begin;
    l->was_compared = false;
    fy_window_walk_begin(&walk, job, l->tensor, cell, grain);
    while (is_replica && status == FERRY_OK && fy_window_walk_next(&walk)) {
        status = compare_local_window(l, &walk.window, error);
    }
    atomic_fetch_add(&c->done_bytes, l->entry->end - l->entry->begin);
    if (status == FERRY_OK) {
        atomic_fetch_add(&c->n_replicas, l->was_compared);
        status = fy_gather_check_whole(gather, l->file, l->entry, error);
    }
    return status;
}

/* Whether holders of different parts have pieces in common. */
static bool has_shared_pieces(const fy_problem *problem, uint32_t placement)
{
    const fy_layout *layout = &problem->placements[placement].layout;
    bool shared = false;
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        shared = shared || fy_split_is_shared(fy_problem_split(problem, layout, d));
    }
    return shared;
}

ferry_status fy_verify_replicas(fy_verify_work *c, fy_verify_worker *w, uint32_t side,
                                uint32_t tensor, ferry_error *error)
{
    const fy_layout_job *job = &c->sides[side].own;
    const fy_holders *holders = fy_problem_holders(&job->problem, job->problem.tensors[tensor].dst);
    local l = {.work = c, .worker = w, .side = side, .tensor = tensor};
    bool is_shared = has_shared_pieces(&job->problem, job->problem.tensors[tensor].dst);
    fy_grain grain = fy_grain_of(job, tensor, c->buffers.window_bytes, c->buffers.span_bytes);
    FY_TRY(fy_gather_begin(&w->own[side], tensor, error));
    for (uint32_t s = 0; s < holders->n_slots; s++) {
        l.rank = holders->rank[s];
        FY_TRY(compare_local(&l, holders->cell[s], is_shared || fy_holders_replica(holders, s) > 0,
                             &grain, error));
    }
    return FERRY_OK;
}
