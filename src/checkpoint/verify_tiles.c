/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A weight of one checkpoint as it would be quantized or dequantized, and what the other has. */
#include "checkpoint/verify.h"

#include "base/checked.h"

#include <string.h>

typedef struct weight {
    fy_verify_work *work;
    fy_verify_worker *worker;
    const fy_change *change;
    fy_verify_pair pair, scales;
    char *theirs; /* room for what b has */
    fy_hasher hashers[2];
    bool in_order;
} weight;

/* Rows that lie side by side in memory, and in the whole tensor `pitch` elements apart. */
typedef struct rows {
    const char *ours;
    uint64_t first, n_rows, n_columns, pitch;
} rows;

static ferry_status compare_rows(const rows *r, const char *theirs, fy_verify_pair *p,
                                 fy_hasher *hasher, ferry_error *error)
{
    bool is_whole = r->n_columns == r->pitch;
    uint64_t n = is_whole ? 1 : r->n_rows;
    uint64_t bytes = fy_bytes(r->n_columns * (is_whole ? r->n_rows : 1), p->dtype.element_bits);
    ferry_status status = FERRY_OK;
    for (uint64_t i = 0; i < n && status == FERRY_OK; i++) {
        p->first_byte = fy_bytes(r->first + i * r->pitch, p->dtype.element_bits);
        status = fy_verify_bytes(p, r->ours + i * bytes, theirs + i * bytes, bytes, error);
        fy_hasher_update(hasher, theirs + i * bytes, (size_t)bytes);
    }
    return status;
}

/* What b has of the weight where the tile is. */
static ferry_status compare_tile(weight *w, const fy_tile_walk *walk, ferry_error *error)
{
    const fy_tile *tile = &walk->tile;
    fy_window theirs = tile->window;
    rows r = {.ours = w->worker->changer.out,
              .first = tile->window.first,
              .n_rows = tile->n_rows,
              .n_columns = tile->n_columns,
              .pitch = walk->n_columns};
    theirs.tensor = w->work->twin[tile->window.tensor];
    theirs.bytes = fy_bytes(theirs.n_elements, w->pair.dtype.element_bits);
    FY_TRY(fy_gather_read(&w->worker->whole[1], &theirs, w->theirs, error));
    return compare_rows(&r, w->theirs, &w->pair, &w->hashers[0], error);
}

static ferry_status compare_scales(weight *w, const fy_tile_walk *walk, ferry_error *error)
{
    const fy_tile *tile = &walk->tile;
    const fy_tensor *scales = &w->work->sides[0].whole.problem.tensors[w->change->scales];
    const uint64_t *block = w->change->format.block;
    uint32_t row = scales->n_dims - 2;
    fy_window theirs = tile->window;
    rows r = {.ours = w->worker->changer.scales,
              .n_rows = fy_ceil_div(tile->n_rows, block[0]),
              .n_columns = fy_ceil_div(tile->n_columns, block[1]),
              .pitch = scales->shape[row + 1]};
    r.first = (tile->matrix * scales->shape[row] + tile->row / block[0]) * r.pitch +
              tile->column / block[1];
    memcpy(theirs.shape, scales->shape, scales->n_dims * sizeof *scales->shape);
    theirs.boxes[0].begin[row] = tile->row / block[0];
    theirs.boxes[0].begin[row + 1] = tile->column / block[1];
    theirs.boxes[0].length[row] = r.n_rows;
    theirs.boxes[0].length[row + 1] = r.n_columns;
    theirs.tensor = w->work->twin[w->change->scales];
    theirs.first = r.first;
    theirs.n_elements = r.n_rows * r.n_columns;
    theirs.bytes = fy_bytes(theirs.n_elements, scales->dtype.element_bits);
    FY_TRY(fy_gather_read(&w->worker->beside, &theirs, w->theirs, error));
    return compare_rows(&r, w->theirs, &w->scales, &w->hashers[1], error);
}

static ferry_status compare_tiles(weight *w, ferry_error *error)
{
    fy_verify_worker *worker = w->worker;
    bool is_quantized = w->change->kind == FY_QUANTIZED;
    fy_changed_shard shard;
    ferry_status status = fy_changed_shard_begin(&worker->changer, 0, &shard, error);
    w->in_order = fy_tile_walk_is_in_order(&shard.walk);
    while (status == FERRY_OK && fy_tile_walk_next(&shard.walk)) {
        status = fy_gather_check_stop(&worker->whole[0], error);
        FY_THEN(status, fy_changer_make(&worker->changer, &worker->whole[0], &shard, error));
        FY_THEN(status, compare_tile(w, &shard.walk, error));
        if (is_quantized) {
            FY_THEN(status, compare_scales(w, &shard.walk, error));
        }
        atomic_fetch_add(&w->work->done_bytes, shard.walk.tile.window.bytes);
    }
    fy_changed_shard_cleanup(&shard);
    if (status == FERRY_ERR_DIFFERENT) {
        fy_verify_add_damage(worker, error);
    }
    FY_THEN(status, fy_gather_end(&worker->whole[0], error));
    FY_THEN(status, fy_gather_end(&worker->whole[1], error));
    FY_THEN(status, fy_changer_end(&worker->changer, error));
    if (is_quantized) {
        FY_THEN(status, fy_gather_end(&worker->beside, error));
    }
    return status;
}

/* A tensor of b in the order of its elements: scales of matrices, and what was hashed otherwise.
 * ours: (optional) what its bytes must be */
static ferry_status read_in_order(weight *w, uint32_t tensor, const char *ours, fy_verify_pair *p,
                                  ferry_error *error)
{
    fy_verify_worker *worker = w->worker;
    const fy_layout_job *job = &w->work->sides[1].whole;
    const fy_buffers *b = &w->work->buffers;
    uint32_t twin = w->work->twin[tensor];
    fy_grain grain = fy_grain_of(job, twin, b->window_bytes, b->span_bytes);
    fy_window_walk walk;
    fy_hasher *hasher = &w->hashers[0];
    FY_TRY(fy_gather_begin(&worker->beside, twin, error));
    ferry_status status = FERRY_OK;
    fy_hasher_begin(hasher);
    fy_window_walk_begin(&walk, job, twin, 0, &grain);
    while (status == FERRY_OK && fy_window_walk_next(&walk)) {
        status = fy_gather_check_stop(&worker->beside, error);
        FY_THEN(status, fy_gather_read(&worker->beside, &walk.window, worker->window[1], error));
        p->first_byte = fy_bytes(walk.window.first, p->dtype.element_bits);
        if (ours != NULL) {
            FY_THEN(status, fy_verify_bytes(p, ours + p->first_byte, worker->window[1],
                                            walk.window.bytes, error));
        }
        fy_hasher_update(hasher, worker->window[1], (size_t)walk.window.bytes);
    }
    w->work->digests[tensor] = fy_hasher_end(hasher);
    return status == FERRY_OK ? fy_gather_end(&worker->beside, error) : status;
}

static ferry_status note_digests(weight *w, uint32_t tensor, ferry_error *error)
{
    bool is_quantized = w->change->kind == FY_QUANTIZED;
    bool is_wanted = w->work->options->visitor != NULL;
    if (w->in_order) {
        w->work->digests[tensor] = fy_hasher_end(&w->hashers[0]);
        if (is_quantized) {
            w->work->digests[w->change->scales] = fy_hasher_end(&w->hashers[1]);
        }
    } else if (is_wanted) {
        FY_TRY(read_in_order(w, tensor, NULL, &w->pair, error));
        if (is_quantized) {
            FY_TRY(read_in_order(w, w->change->scales, NULL, &w->scales, error));
        }
    }
    if (!is_quantized || w->change->matrix_scales == FY_NONE) {
        return FERRY_OK;
    }
    fy_verify_pair pair = fy_verify_pair_of(w->work, w->change->matrix_scales);
    const char *ours = (const char *)w->worker->changer.matrix_scales;
    return read_in_order(w, w->change->matrix_scales, ours, &pair, error);
}

static ferry_status begin(weight *w, uint32_t tensor, ferry_error *error)
{
    fy_verify_worker *worker = w->worker;
    const uint32_t *twin = w->work->twin;
    w->theirs = worker->room + worker->changer.room_bytes;
    w->pair = fy_verify_pair_of(w->work, tensor);
    fy_hasher_begin(&w->hashers[0]);
    fy_hasher_begin(&w->hashers[1]);
    if (w->change->kind == FY_QUANTIZED) {
        w->scales = fy_verify_pair_of(w->work, w->change->scales);
        FY_TRY(fy_gather_begin(&worker->beside, twin[w->change->scales], error));
    }
    FY_TRY(fy_gather_begin(&worker->whole[0], tensor, error));
    FY_TRY(fy_gather_begin(&worker->whole[1], twin[tensor], error));
    return fy_changer_begin(&worker->changer, tensor, error);
}

ferry_status fy_verify_weight(fy_verify_work *c, fy_verify_worker *worker, uint32_t tensor,
                              ferry_error *error)
{
    weight w = {.work = c, .worker = worker, .change = &c->sides[0].whole.changes[tensor]};
    FY_TRY(begin(&w, tensor, error));
    FY_TRY(compare_tiles(&w, error));
    return note_digests(&w, tensor, error);
}

/* Tiles are parts of rows where those are long: one row at a time, they come in order. */
ferry_status fy_verify_digest_weight(fy_verify_work *c, fy_verify_worker *worker, uint32_t tensor,
                                     ferry_error *error)
{
    uint32_t bits = c->sides[0].whole.changes[tensor].dtype.element_bits;
    fy_changed_shard shard;
    fy_hasher hasher;
    FY_TRY(fy_gather_begin(&worker->whole[0], tensor, error));
    FY_TRY(fy_changer_begin(&worker->changer, tensor, error));
    ferry_status status = fy_changed_shard_begin(&worker->changer, 0, &shard, error);
    fy_hasher_begin(&hasher);
    if (!fy_tile_walk_is_in_order(&shard.walk)) {
        shard.walk.size.rows = 1;
    }
    while (status == FERRY_OK && fy_tile_walk_next(&shard.walk)) {
        const fy_tile *tile = &shard.walk.tile;
        status = fy_gather_check_stop(&worker->whole[0], error);
        FY_THEN(status, fy_changer_make(&worker->changer, &worker->whole[0], &shard, error));
        if (status == FERRY_OK) {
            uint64_t n = tile->n_rows * tile->n_columns;
            fy_hasher_update(&hasher, worker->changer.out, (size_t)fy_bytes(n, bits));
        }
        atomic_fetch_add(&c->done_bytes, tile->window.bytes);
    }
    fy_changed_shard_cleanup(&shard);
    c->digests[tensor] = fy_hasher_end(&hasher);
    FY_THEN(status, fy_gather_end(&worker->whole[0], error));
    return status == FERRY_OK ? fy_changer_end(&worker->changer, error) : status;
}
