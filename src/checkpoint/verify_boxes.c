/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint in boxes: each of its parameters is made again of whole tensors, and every file that
 * has it must have those bytes: boxes, fills, zeros and replicas alike.
 */
#include "checkpoint/verify.h"

#include "base/checked.h"
#include "checkpoint/maker_blocks.h"
#include "checkpoint/matrices.h"

#include <stdio.h>
#include <string.h>

typedef struct parameter {
    fy_verify_work *work;
    fy_verify_worker *worker;
    uint32_t side, number;
    const fy_parameter *said;
    const fy_rank_list *holders;
} parameter;

/* Of one rank that has it. */
static const fy_st_tensor *find_entry(const parameter *p, uint32_t holder, uint32_t *file_out)
{
    const ferry_checkpoint *its = p->work->sides[p->side].checkpoint;
    *file_out = fy_boxed_place(its->boxed, p->holders->ranks[holder]);
    return fy_st_find(&its->files[*file_out].header, p->said->name); /* it was there */
}

static uint64_t begin_of(const parameter *p, uint32_t file, const fy_st_tensor *entry)
{
    return p->work->sides[p->side].checkpoint->files[file].header.data_begin + entry->begin;
}

/* Adds to a sentence that the file is damaged, where its checksum tells. */
static void add_damage(const parameter *p, uint32_t file, const fy_st_tensor *entry,
                       ferry_error *error)
{
    fy_verify_side *side = &p->work->sides[p->side];
    uint64_t at = begin_of(p, file, entry), end = at + (entry->end - entry->begin);
    ferry_status status = FERRY_OK;
    ferry_error cause;
    fy_hasher hasher;
    if (error == NULL || !entry->has_checksum) {
        return;
    }
    fy_hasher_begin(&hasher);
    while (at < end && status == FERRY_OK) {
        uint64_t n = fy_min(end - at, p->work->buffers.window_bytes);
        status = fy_files_read(side->files, file, at, p->worker->window[1], n, &cause);
        fy_hasher_update(&hasher, p->worker->window[1], (size_t)n);
        at += n;
    }
    FY_THEN(status,
            fy_checked_compare(&side->checked, file, entry, fy_hasher_end(&hasher), &cause));
    if (status == FERRY_ERR_DIGEST) {
        size_t used = strlen(error->message);
        snprintf(error->message + used, sizeof error->message - used, "; %s", cause.message);
    }
}

/* What one file has of a window that was made. */
static ferry_status compare_holder(const parameter *p, uint32_t holder, const char *made,
                                   uint64_t at, uint64_t n_bytes, ferry_error *error)
{
    fy_verify_side *side = &p->work->sides[p->side];
    uint32_t file, rank = p->holders->ranks[holder];
    const fy_st_tensor *entry = find_entry(p, holder, &file);
    char note[64];
    ferry_status status = FERRY_OK;
    snprintf(note, sizeof note, " (of the parameter of rank %u)", rank);
    fy_verify_pair pair = {
        .tensor = p->said->name,
        .dtype = p->said->dtype,
        .where = {p->side == 1 ? p->work->sides[0].checkpoint->path : "the tensors",
                  side->checkpoint->files[file].path},
        .note = note};
    for (uint64_t done = 0; done < n_bytes && status == FERRY_OK;) {
        uint64_t n = fy_min(n_bytes - done, p->work->buffers.window_bytes / 64 * 64);
        pair.first_byte = at + done;
        status = fy_files_read(side->files, file, begin_of(p, file, entry) + at + done,
                               p->worker->window[1], n, error);
        FY_THEN(status, fy_verify_bytes(&pair, made + done, p->worker->window[1], n, error));
        done += n;
    }
    if (status == FERRY_ERR_DIFFERENT) {
        add_damage(p, file, entry, error);
    }
    return status;
}

/* All files have what was made, so all have its checksum. */
static ferry_status compare_checksums(const parameter *p, uint64_t found, ferry_error *error)
{
    fy_verify_side *side = &p->work->sides[p->side];
    for (uint32_t i = 0; i < p->holders->n; i++) {
        uint32_t file;
        const fy_st_tensor *entry = find_entry(p, i, &file);
        if (entry->has_checksum) {
            FY_TRY(fy_checked_compare(&side->checked, file, entry, found, error));
        }
    }
    return FERRY_OK;
}

static ferry_status compare_windows(const parameter *p, fy_making *making, ferry_error *error)
{
    fy_maker *maker = &p->worker->maker[p->side];
    uint64_t at = 0, n_bytes = 0;
    ferry_status status = FERRY_OK;
    fy_hasher hasher;
    fy_hasher_begin(&hasher);
    do {
        status = fy_gather_check_stop(maker->gather, error);
        FY_THEN(status, fy_maker_next(maker, making, &at, &n_bytes, error));
        for (uint32_t i = 0; i < p->holders->n && status == FERRY_OK; i++) {
            status = compare_holder(p, i, maker->window, at, n_bytes, error);
            atomic_fetch_add(&p->work->done_bytes, n_bytes);
        }
        if (status == FERRY_OK) {
            fy_hasher_update(&hasher, maker->window, (size_t)n_bytes);
        }
    } while (status == FERRY_OK && n_bytes > 0);
    return status == FERRY_OK ? compare_checksums(p, fy_hasher_end(&hasher), error) : status;
}

ferry_status fy_verify_parameter(fy_verify_work *c, fy_verify_worker *worker, uint32_t side,
                                 uint32_t number, ferry_error *error)
{
    const fy_boxed *boxed = c->sides[side].checkpoint->boxed;
    fy_maker *maker = &worker->maker[side];
    parameter p = {.work = c,
                   .worker = worker,
                   .side = side,
                   .number = number,
                   .said = &boxed->side->parameters[number],
                   .holders = fy_boxed_holders(boxed, number)};
    fy_making making;
    fy_maker_begin(maker);
    ferry_status status = fy_making_begin(&making, maker, number, error);
    FY_THEN(status, compare_windows(&p, &making, error));
    if (status == FERRY_ERR_DIFFERENT) {
        fy_verify_add_damage(worker, error);
    }
    FY_THEN(status, fy_maker_end(maker, error));
    if (status == FERRY_OK) {
        atomic_fetch_add(&c->n_replicas, p.holders->n - 1);
    }
    fy_making_cleanup(&making);
    return status;
}

/* ---- what it needs ---- */

ferry_status fy_verify_map_boxes(fy_verify_work *c, ferry_error *error)
{
    const ferry_checkpoint *b = c->sides[1].checkpoint;
    if (b->boxed == NULL) {
        return FERRY_OK;
    }
    c->number_in_a = fy_alloc(b->n_tensors, sizeof *c->number_in_a);
    FY_TRY(fy_check_memory(c->number_in_a != NULL, "what verifying needs", error));
    for (uint32_t t = 0; t < b->n_tensors; t++) {
        c->number_in_a[t] = fy_spec_find_tensor(c->sides[0].whole.spec, b->tensors[t].name);
    }
    return FERRY_OK;
}

ferry_status fy_verify_make_makers(fy_verify_work *c, fy_verify_worker *w, ferry_error *error)
{
    const fy_maker_room *room = &c->maker_room;
    const fy_boxed *a = c->sides[0].checkpoint->boxed;
    const fy_boxed *b = c->turned != NULL ? c->turned : c->sides[1].checkpoint->boxed;
    const fy_layout_job *own = c->has_plain ? &c->plain : &c->sides[0].whole;
    if (a == NULL && b == NULL) {
        return FERRY_OK;
    }
    w->boxes = fy_alloc(fy_maker_room_bytes(room), 1);
    FY_TRY(fy_check_memory(w->boxes != NULL, "a buffer", error));
    if (a != NULL) { /* as it is, whatever it changes to */
        FY_TRY(fy_gather_init(&w->own[0], own, c->sides[0].files, &c->sides[0].checked,
                              c->buffers.span_bytes, error));
        w->own[0].stops = &c->stops;
        fy_maker_init(&w->maker[0], a, own, &w->own[0], room, w->boxes);
        w->maker[0].keeps_types = true;
    }
    if (b != NULL) {
        fy_maker_init(&w->maker[1], b, &c->sides[0].whole, &w->whole[0], room, w->boxes);
        w->maker[1].number_in_job = c->number_in_a;
        w->maker[1].beside = c->has_plain ? &w->changer.beside : NULL;
        w->maker[1].matrices = c->matrices;
    }
    return FERRY_OK;
}

/* Whole blocks of codes, or scales, that are made at once: rows of them, or columns of one row, so
 * that they come in order. For one block there is room. shape: of the tensor, in units */
static void choose_piece(const fy_maker *m, uint32_t tensor, const uint64_t *shape, fy_box *piece)
{
    const fy_tensor *t = &m->job->problem.tensors[tensor];
    const fy_change *change = &m->job->changes[tensor];
    bool is_codes = change->kind == FY_QUANTIZED;
    uint32_t unit = fy_unit_elements(change->dtype.element_bits);
    uint32_t row = t->n_dims - 2, column = row + 1;
    uint64_t rows = is_codes ? change->format.block[0] : 1;
    uint64_t columns = is_codes ? change->format.block[1] / unit : 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        piece->begin[d] = 0;
        piece->length[d] = 1;
    }
    piece->length[column] = shape[column];
    while (piece->length[column] > columns && !fy_maker_has_room_for(m, piece)) {
        piece->length[column] = fy_ceil_div(piece->length[column] / 2, columns) * columns;
    }
    if (piece->length[column] < shape[column]) {
        return;
    }
    for (fy_box more = *piece; rows / 2 < shape[row]; rows *= 2) {
        more.length[row] = fy_min(rows, shape[row]);
        if (!fy_maker_has_room_for(m, &more)) {
            return;
        }
        *piece = more;
    }
}

static ferry_status hash_piece(fy_verify_work *c, fy_maker *m, const fy_box *piece, uint32_t n_dims,
                               fy_hasher *hasher, ferry_error *error)
{
    uint64_t bytes = fy_unit_bytes(m->job->changes[m->tensor].dtype.element_bits);
    uint32_t row = n_dims - 2;
    const char *made;
    fy_box around;
    FY_TRY(fy_gather_check_stop(m->gather, error));
    FY_TRY(fy_maker_make_blocks(m, piece, &made, &around, error));
    for (uint64_t i = 0; i < piece->length[row]; i++) {
        uint64_t at = (piece->begin[row] - around.begin[row] + i) * around.length[row + 1] +
                      (piece->begin[row + 1] - around.begin[row + 1]);
        fy_hasher_update(hasher, made + at * bytes, (size_t)(piece->length[row + 1] * bytes));
    }
    atomic_fetch_add(&c->done_bytes, fy_box_volume(piece->length, n_dims) * bytes);
    return FERRY_OK;
}

/* Codes that are made, or their scales, in the order of the tensor. */
static ferry_status digest_blocks(fy_verify_work *c, fy_maker *m, uint32_t tensor,
                                  ferry_error *error)
{
    const fy_tensor *t = &m->job->problem.tensors[tensor];
    uint64_t shape[FERRY_MAX_DIMS];
    fy_box size, at;
    ferry_status status = FERRY_OK;
    fy_hasher hasher;
    uint32_t d;
    m->tensor = tensor;
    memcpy(shape, t->shape, t->n_dims * sizeof *shape);
    shape[t->n_dims - 1] /= fy_unit_elements(m->job->changes[tensor].dtype.element_bits);
    fy_maker_begin(m);
    fy_hasher_begin(&hasher);
    choose_piece(m, tensor, shape, &size);
    at = size;
    bool more = fy_box_volume(shape, t->n_dims) > 0;
    while (more && status == FERRY_OK) {
        status = hash_piece(c, m, &at, t->n_dims, &hasher, error);
        for (d = t->n_dims; d-- > 0;) { /* to the next one; the last of a dimension may be short */
            at.begin[d] += at.length[d];
            bool is_behind = at.begin[d] >= shape[d];
            at.begin[d] = is_behind ? 0 : at.begin[d];
            at.length[d] = fy_min(size.length[d], shape[d] - at.begin[d]);
            if (!is_behind) {
                break;
            }
        }
        more = d != UINT32_MAX;
    }
    c->digests[tensor] = fy_hasher_end(&hasher);
    return status == FERRY_OK ? fy_maker_end(m, error) : status;
}

static ferry_status digest_matrices(fy_verify_work *c, fy_maker *m, uint32_t tensor,
                                    ferry_error *error)
{
    const fy_tensor *t = &m->job->problem.tensors[tensor];
    const float *scales = NULL;
    fy_hasher hasher;
    fy_maker_begin(m);
    FY_TRY(fy_matrices_of(m, m->job->changes[tensor].weight, &scales, error));
    fy_hasher_begin(&hasher);
    fy_hasher_update(&hasher, scales, fy_box_volume(t->shape, t->n_dims) * sizeof *scales);
    c->digests[tensor] = fy_hasher_end(&hasher);
    return fy_maker_end(m, error);
}

/* The whole tensor as a has it, or as that becomes: b has no other whole. */
ferry_status fy_verify_digest(fy_verify_work *c, fy_verify_worker *w, uint32_t tensor,
                              ferry_error *error)
{
    const fy_layout_job *job = &c->sides[0].whole;
    if (job->changes[tensor].kind == FY_MATRIX_SCALES) {
        return digest_matrices(c, &w->maker[1], tensor, error);
    }
    if (fy_maker_makes_blocks(&w->maker[1], tensor) &&
        job->changes[tensor].kind != FY_DEQUANTIZED) {
        return digest_blocks(c, &w->maker[1], tensor, error);
    }
    if (fy_change_has_tiles(&job->changes[tensor])) {
        return fy_verify_digest_weight(c, w, tensor, error);
    }
    fy_grain grain = fy_grain_of(job, tensor, c->buffers.window_bytes, c->buffers.span_bytes);
    ferry_status status = fy_gather_begin(&w->whole[0], tensor, error);
    fy_window_walk walk;
    fy_hasher hasher;
    fy_hasher_begin(&hasher);
    fy_window_walk_begin(&walk, job, tensor, 0, &grain);
    while (status == FERRY_OK && fy_window_walk_next(&walk)) {
        status = fy_verify_hash_window(c, w, &walk.window, &hasher, error);
    }
    c->digests[tensor] = fy_hasher_end(&hasher);
    return status == FERRY_OK ? fy_gather_end(&w->whole[0], error) : status;
}
