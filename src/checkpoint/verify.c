/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/verify.h"

#include "base/checked.h"
#include "base/options.h"
#include "checkpoint/crew.h"

#include <string.h>

/* ---- names, shapes, dtypes ---- */

static ferry_status fail_missing(const fy_verify_work *c, const char *tensor, int in,
                                 ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_DIFFERENT, "\"%s\" is in %s, but not in %s", tensor,
                   c->sides[in].checkpoint->path, c->sides[1 - in].checkpoint->path);
}

static ferry_status compare_headers(const fy_verify_work *c, const fy_ckpt_tensor *a,
                                    const fy_ckpt_tensor *b, ferry_error *error)
{
    if (strcmp(a->dtype_text, b->dtype_text) != 0) {
        return fy_fail(error, FERRY_ERR_DIFFERENT, "\"%s\" is %s in %s, but %s in %s", a->name,
                       a->dtype_text, c->sides[0].checkpoint->path, b->dtype_text,
                       c->sides[1].checkpoint->path);
    }
    bool same = a->file_n_dims == b->file_n_dims;
    for (uint32_t d = 0; same && d < a->file_n_dims; d++) {
        same = a->file_shape[d] == b->file_shape[d];
    }
    if (!same) {
        char shapes[2][256];
        fy_format_shape(a->file_shape, a->file_n_dims, shapes[0], sizeof shapes[0]);
        fy_format_shape(b->file_shape, b->file_n_dims, shapes[1], sizeof shapes[1]);
        return fy_fail(error, FERRY_ERR_DIFFERENT, "\"%s\" has shape %s in %s, but %s in %s",
                       a->name, shapes[0], c->sides[0].checkpoint->path, shapes[1],
                       c->sides[1].checkpoint->path);
    }
    return FERRY_OK;
}

/* Names, shapes and dtypes; fills twin. */
static ferry_status verify_models(fy_verify_work *c, ferry_error *error)
{
    const ferry_checkpoint *a = c->sides[0].checkpoint, *b = c->sides[1].checkpoint;
    for (size_t i = 0; i < a->n_tensors; i++) {
        c->twin[i] = fy_ckpt_find(b, a->tensors[i].name);
        if (c->twin[i] == FY_INDEX_NONE) {
            return fail_missing(c, a->tensors[i].name, 0, error);
        }
        FY_TRY(compare_headers(c, &a->tensors[i], &b->tensors[c->twin[i]], error));
    }
    for (size_t i = 0; i < b->n_tensors; i++) {
        if (fy_ckpt_find(a, b->tensors[i].name) == FY_INDEX_NONE) {
            return fail_missing(c, b->tensors[i].name, 1, error);
        }
    }
    return FERRY_OK;
}

/* ---- the work ---- */

static ferry_status open_side(fy_verify_side *side, const ferry_checkpoint *checkpoint,
                              ferry_error *error)
{
    fy_job_target one = {.name = checkpoint->path};
    fy_job_target own = {.name = checkpoint->path, .side = checkpoint->layout};
    side->checkpoint = checkpoint;
    ferry_status status = fy_job_create(checkpoint, &one, &side->whole, error);
    if (status == FERRY_OK && checkpoint->is_sharded) {
        status = fy_job_create(checkpoint, &own, &side->own, error);
        side->has_own = status == FERRY_OK;
    }
    FY_THEN(status, fy_files_of(checkpoint, &side->files, error));
    return status == FERRY_OK ? fy_checked_create(checkpoint, &side->checked, error) : status;
}

static ferry_status make_worker(fy_verify_work *c, fy_verify_worker *w, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (int s = 0; s < 2 && status == FERRY_OK; s++) {
        fy_verify_side *side = &c->sides[s];
        w->window[s] = fy_alloc(c->buffers.window_bytes, 1);
        status = w->window[s] == NULL ? fy_fail_no_memory(error, "a buffer") : FERRY_OK;
        FY_THEN(status, fy_gather_init(&w->whole[s], &side->whole, side->files, &side->checked,
                                       c->buffers.span_bytes, error));
        if (status == FERRY_OK && side->has_own) {
            status = fy_gather_init(&w->own[s], &side->own, side->files, &side->checked,
                                    c->buffers.span_bytes, error);
        }
        w->whole[s].stops = &c->stops;
        w->own[s].stops = &c->stops;
    }
    return status;
}

static void clean_up(fy_verify_work *c)
{
    for (uint32_t i = 0; c->workers != NULL && i < c->buffers.n_threads; i++) {
        for (int s = 0; s < 2; s++) {
            fy_gather_cleanup(&c->workers[i].whole[s]);
            fy_gather_cleanup(&c->workers[i].own[s]);
            fy_free(c->workers[i].window[s]);
        }
    }
    for (int s = 0; s < 2; s++) {
        fy_job_cleanup(&c->sides[s].whole);
        fy_job_cleanup(&c->sides[s].own);
        fy_files_destroy(c->sides[s].files);
        fy_checked_cleanup(&c->sides[s].checked);
    }
    fy_free(c->workers);
    fy_free(c->twin);
    fy_free(c->digests);
}

static bool tick(void *context)
{
    fy_verify_work *c = context;
    ferry_work_progress progress = {.phase = "verifying",
                                    .done_bytes = atomic_load(&c->done_bytes),
                                    .total_bytes = c->total_bytes,
                                    .seconds = fy_seconds_now() - c->began};
    if (c->options->progress == NULL || c->options->progress(c->options->context, &progress)) {
        return true;
    }
    atomic_store(&c->stops, true);
    return false;
}

/* A tensor in all its forms, so that the first that differs is the first in the order of a. */
static ferry_status compare_part(void *context, uint32_t worker, size_t part, ferry_error *error)
{
    fy_verify_work *c = context;
    fy_verify_worker *w = &c->workers[worker];
    uint32_t numbers[2] = {(uint32_t)part, c->twin[part]};
    ferry_status status = fy_verify_tensor(c, w, numbers[0], error);
    for (uint32_t s = 0; s < 2 && status == FERRY_OK; s++) {
        if (c->sides[s].has_own) {
            status = fy_verify_replicas(c, w, s, numbers[s], error);
        }
    }
    return status;
}

static uint64_t tensor_bytes(const ferry_checkpoint *checkpoint)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < checkpoint->n_tensors; i++) {
        const fy_ckpt_tensor *t = &checkpoint->tensors[i];
        bytes += fy_ceil_div(fy_box_volume(t->shape, t->n_dims) * t->dtype.element_bits, 8);
    }
    return bytes;
}

static ferry_status run(fy_verify_work *c, ferry_error *error)
{
    fy_crew_job job = {.n_workers = c->buffers.n_threads,
                       .n_parts = c->sides[0].checkpoint->n_tensors,
                       .work = compare_part,
                       .tick = tick,
                       .context = c};
    c->total_bytes = tensor_bytes(c->sides[0].checkpoint);
    for (int s = 0; s < 2; s++) {
        const ferry_checkpoint *checkpoint = c->sides[s].checkpoint;
        for (size_t i = 0; c->sides[s].has_own && i < checkpoint->n_files; i++) {
            c->total_bytes += checkpoint->files[i].header.data_bytes;
        }
    }
    return fy_crew_run(&job, error);
}

static ferry_status prepare(fy_verify_work *c, const ferry_checkpoint *a, const ferry_checkpoint *b,
                            ferry_error *error)
{
    c->twin = fy_alloc_zeroed(a->n_tensors, sizeof *c->twin);
    c->digests = fy_alloc_zeroed(a->n_tensors, sizeof *c->digests);
    c->workers = fy_alloc_zeroed(c->buffers.n_threads, sizeof *c->workers);
    if (c->twin == NULL || c->digests == NULL || c->workers == NULL) {
        return fy_fail_no_memory(error, "what verifying needs");
    }
    c->sides[0].checkpoint = a;
    c->sides[1].checkpoint = b;
    FY_TRY(verify_models(c, error));
    FY_TRY(open_side(&c->sides[0], a, error));
    FY_TRY(open_side(&c->sides[1], b, error));
    for (uint32_t i = 0; i < c->buffers.n_threads; i++) {
        FY_TRY(make_worker(c, &c->workers[i], error));
    }
    return FERRY_OK;
}

static void visit(const fy_verify_work *c)
{
    const ferry_checkpoint *a = c->sides[0].checkpoint;
    for (size_t i = 0; c->options->visitor != NULL && i < a->n_tensors; i++) {
        const fy_ckpt_tensor *t = &a->tensors[i];
        c->options->visitor(
            c->options->context, t->name,
            fy_ceil_div(fy_box_volume(t->shape, t->n_dims) * t->dtype.element_bits, 8),
            c->digests[i]);
    }
}

ferry_status ferry_checkpoint_verify(const ferry_checkpoint *a, const ferry_checkpoint *b,
                                     const ferry_verify_options *options,
                                     ferry_verify_result *result_out, ferry_error *error)
{
    FY_TRY(fy_check_use(a != NULL && b != NULL, "ferry_checkpoint_verify needs two checkpoints",
                        error));
    ferry_verify_options own;
    FY_TRY(fy_take_verify_options(options, &own, error));
    if (result_out != NULL) {
        FY_TRY(fy_check_out(result_out, "ferry_verify_result", error));
    }
    FY_TRY(fy_check_buffers(own.memory_cap_bytes, own.n_threads, error));
    fy_verify_work c = {.options = &own, .began = fy_seconds_now()};
    /* A worker has a span and a window for each side, and more spans for replicas. */
    c.buffers = fy_share_memory(c.options->memory_cap_bytes, c.options->n_threads);
    c.buffers.span_bytes /= 2;
    c.buffers.window_bytes /= 2;
    ferry_status status = prepare(&c, a, b, error);
    FY_THEN(status, run(&c, error));
    for (int s = 0; s < 2 && status == FERRY_OK; s++) {
        status = fy_files_check_unchanged(c.sides[s].files, error);
    }
    if (status == FERRY_OK) {
        visit(&c);
    }
    if (status == FERRY_OK && result_out != NULL) {
        ferry_verify_result result = {.struct_size = sizeof result,
                                      .n_tensors = a->n_tensors,
                                      .tensor_bytes = tensor_bytes(a),
                                      .n_replicas = atomic_load(&c.n_replicas),
                                      .n_checked = atomic_load(&c.sides[0].checked.n_checked) +
                                                   atomic_load(&c.sides[1].checked.n_checked),
                                      .seconds = fy_seconds_now() - c.began};
        status = fy_copy_out(&result, sizeof result, result_out, "ferry_verify_result", error);
    }
    clean_up(&c);
    return status;
}
