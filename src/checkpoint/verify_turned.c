/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Names under which tensors lie otherwise: what b is to have is said in boxes of the tensors of a,
 * as if one rank had all of it, and made of them; whichever way b is cut, its tensors are that.
 */
#include "checkpoint/verify.h"

#include "base/checked.h"

#include <string.h>

/* ---- names, shapes, dtypes ---- */

static ferry_status make_turned(fy_verify_work *c, ferry_error *error)
{
    const fy_layout_job *job = &c->sides[0].whole;
    ferry_side *side = c->named.made;
    fy_boxed_tensor *tensors = fy_alloc(job->spec->n_tensors, sizeof *tensors);
    FY_TRY(fy_check_memory(tensors != NULL, "what verifying needs", error));
    for (uint32_t t = 0; t < job->spec->n_tensors; t++) {
        const fy_tensor *tensor = &job->spec->tensors[t];
        tensors[t] = (fy_boxed_tensor){.name = tensor->name,
                                       .dtype = job->changes[t].dtype,
                                       .shape = tensor->shape,
                                       .n_dims = tensor->n_dims};
    }
    c->named.made = NULL;
    ferry_status status = fy_boxed_create(side, c->sides[1].checkpoint->path, tensors,
                                          job->spec->n_tensors, &c->turned, error);
    fy_free(tensors);
    return status;
}

/* The tensor of b that is called as a parameter. */
static ferry_status find_twin(fy_verify_work *c, size_t parameter, ferry_error *error)
{
    const fy_parameter *p = &c->turned->side->parameters[parameter];
    const ferry_checkpoint *a = c->sides[0].checkpoint, *b = c->sides[1].checkpoint;
    uint32_t number = fy_ckpt_find(b, p->name);
    if (number == FY_INDEX_NONE) {
        return fy_fail(error, FERRY_ERR_DIFFERENT,
                       "\"%s\" is in %s under the names \"%s\", but not in %s", p->name, a->path,
                       c->options->names, b->path);
    }
    const fy_ckpt_tensor *twin = &b->tensors[number];
    if (twin->dtype.kind != p->dtype.kind) {
        char word[FERRY_DTYPE_TEXT_BYTES];
        ferry_dtype_format(p->dtype, word, sizeof word);
        return fy_fail(error, FERRY_ERR_DIFFERENT, "\"%s\" is %s in %s, but %s in %s", p->name,
                       word, a->path, twin->dtype_text, b->path);
    }
    if (twin->n_dims != p->n_dims ||
        memcmp(twin->shape, p->shape, p->n_dims * sizeof *p->shape) != 0) {
        char shapes[2][256];
        fy_format_shape(p->shape, p->n_dims, shapes[0], sizeof shapes[0]);
        fy_format_shape(twin->shape, twin->n_dims, shapes[1], sizeof shapes[1]);
        return fy_fail(error, FERRY_ERR_DIFFERENT, "\"%s\" has shape %s in %s, but %s in %s",
                       p->name, shapes[0], a->path, shapes[1], b->path);
    }
    c->turned_in_b[parameter] = number;
    return FERRY_OK;
}

static ferry_status find_added(const fy_verify_work *c, const bool *is_known, ferry_error *error)
{
    const ferry_checkpoint *b = c->sides[1].checkpoint;
    for (size_t t = 0; t < b->n_tensors; t++) {
        if (!is_known[t]) {
            return fy_fail(error, FERRY_ERR_DIFFERENT,
                           "\"%s\" is in %s, but the names \"%s\" have no tensor that is called so",
                           b->tensors[t].name, b->path, c->options->names);
        }
    }
    return FERRY_OK;
}

ferry_status fy_verify_turn(fy_verify_work *c, ferry_error *error)
{
    FY_TRY(make_turned(c, error));
    size_t n = c->turned->side->n_parameters, n_tensors = c->sides[1].checkpoint->n_tensors;
    c->turned_in_b = fy_alloc(n, sizeof *c->turned_in_b);
    c->turned_digests = fy_alloc_zeroed(n, sizeof *c->turned_digests);
    bool *is_known = fy_alloc_zeroed(n_tensors, sizeof *is_known);
    ferry_status status =
        fy_check_memory(c->turned_in_b != NULL && c->turned_digests != NULL && is_known != NULL,
                        "what verifying needs", error);
    for (size_t p = 0; p < n && status == FERRY_OK; p++) {
        status = find_twin(c, p, error);
        if (status == FERRY_OK) {
            is_known[c->turned_in_b[p]] = true;
        }
    }
    FY_THEN(status, find_added(c, is_known, error));
    fy_free(is_known);
    return status;
}

/* ---- every bit ---- */

/* What is made of a, in the order of memory: the windows of b are of other lengths. */
typedef struct turning {
    fy_verify_work *work;
    fy_verify_worker *worker;
    fy_verify_pair pair;
    fy_making making;
    uint64_t used, n_bytes; /* of the window that was made last */
    fy_hasher hasher;
} turning;

static ferry_status compare_window(turning *t, const fy_window *window, ferry_error *error)
{
    fy_verify_worker *w = t->worker;
    fy_maker *maker = &w->maker[1];
    uint64_t first = fy_bytes(window->first, t->pair.dtype.element_bits), at;
    FY_TRY(fy_gather_check_stop(&w->whole[1], error));
    if (window->bytes > t->work->buffers.window_bytes) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "\"%s\" has an element that is larger than a window of %llu bytes; a larger "
                       "memory cap makes room",
                       t->pair.tensor, (unsigned long long)t->work->buffers.window_bytes);
    }
    FY_TRY(fy_gather_read(&w->whole[1], window, w->window[1], error));
    for (uint64_t done = 0; done < window->bytes;) {
        if (t->used == t->n_bytes) {
            t->used = 0;
            FY_TRY(fy_maker_next(maker, &t->making, &at, &t->n_bytes, error));
        }
        uint64_t n = fy_min(window->bytes - done, t->n_bytes - t->used);
        t->pair.first_byte = first + done;
        FY_TRY(fy_verify_bytes(&t->pair, maker->window + t->used, w->window[1] + done, n, error));
        t->used += n;
        done += n;
    }
    fy_hasher_update(&t->hasher, w->window[1], (size_t)window->bytes);
    atomic_fetch_add(&t->work->done_bytes, window->bytes);
    return FERRY_OK;
}

static ferry_status compare_windows(turning *t, uint32_t number, ferry_error *error)
{
    fy_verify_work *c = t->work;
    const fy_layout_job *job = &c->sides[1].whole;
    fy_grain grain = fy_grain_of(job, number, c->buffers.window_bytes, c->buffers.span_bytes);
    ferry_status status = fy_gather_begin(&t->worker->whole[1], number, error);
    fy_window_walk walk;
    fy_window_walk_begin(&walk, job, number, 0, &grain);
    while (status == FERRY_OK && fy_window_walk_next(&walk)) {
        status = compare_window(t, &walk.window, error);
    }
    if (status == FERRY_ERR_DIFFERENT) {
        fy_verify_add_damage(t->worker, error);
    }
    return status == FERRY_OK ? fy_gather_end(&t->worker->whole[1], error) : status;
}

ferry_status fy_verify_turned(fy_verify_work *c, fy_verify_worker *w, uint32_t parameter,
                              ferry_error *error)
{
    const fy_parameter *p = &c->turned->side->parameters[parameter];
    uint32_t number = c->turned_in_b[parameter];
    fy_maker *maker = &w->maker[1];
    turning t = {.work = c,
                 .worker = w,
                 .pair = {.tensor = p->name,
                          .dtype = p->dtype,
                          .problem = &c->sides[1].whole.problem,
                          .placement = c->sides[1].whole.problem.tensors[number].dst,
                          .where = {c->sides[0].checkpoint->path, c->sides[1].checkpoint->path},
                          .note = " (the first as it would become)"}};
    fy_hasher_begin(&t.hasher);
    fy_maker_begin(maker);
    ferry_status status = fy_making_begin(&t.making, maker, parameter, error);
    FY_THEN(status, compare_windows(&t, number, error));
    FY_THEN(status, fy_maker_end(maker, error));
    fy_making_cleanup(&t.making);
    c->turned_digests[parameter] = fy_hasher_end(&t.hasher);
    if (status == FERRY_OK && c->sides[1].has_own) {
        status = fy_verify_replicas(c, w, 1, number, error);
    }
    return status;
}

void fy_verify_visit_turned(const fy_verify_work *c)
{
    const ferry_side *side = c->turned->side;
    for (size_t p = 0; c->options->visitor != NULL && p < side->n_parameters; p++) {
        c->options->visitor(c->options->context, side->parameters[p].name,
                            fy_boxed_bytes(c->turned, p), c->turned_digests[p]);
    }
}
