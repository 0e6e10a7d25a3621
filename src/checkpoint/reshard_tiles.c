/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * One weight of a result that is quantized, with its scales, or dequantized: its shards tile by
 * tile, each written to all files that hold it.
 */
#include "checkpoint/reshard_task.h"

#include "base/checked.h"

typedef struct weight {
    fy_out_task codes;  /* or values */
    fy_out_task scales; /* quantized only */
    fy_changer *changer;
    const fy_change *change;
    uint32_t n_dims;
    fy_changed_shard shards[FY_MOST_CELLS_AT_ONCE];
} weight;

static bool makes_scales(const weight *w)
{
    return w->change->kind == FY_QUANTIZED;
}

/* ---- a tile ---- */

/* Where rows of a matrix go in the shard of a cell. */
typedef struct rows {
    const fy_out_task *task;
    uint32_t bits;  /* of an element */
    uint64_t first; /* the element at which the first row begins */
    uint64_t n_rows;
    uint64_t n_columns; /* that are written of each row */
    uint64_t pitch;     /* elements of a row of the shard */
} rows;

/* In one go where rows are whole, and then hashed, for they come in the order of the file. */
static ferry_status write_rows(const rows *r, uint32_t cell, const char *bytes, fy_hasher *hasher,
                               ferry_error *error)
{
    bool is_whole = r->n_columns == r->pitch;
    uint64_t n = is_whole ? 1 : r->n_rows;
    uint64_t n_bytes = fy_bytes(r->n_columns * (is_whole ? r->n_rows : 1), r->bits);
    ferry_status status = FERRY_OK;
    for (uint64_t i = 0; i < n && status == FERRY_OK; i++) {
        fy_out_piece piece = {.bytes = bytes + i * n_bytes, .n_bytes = n_bytes};
        status =
            fy_out_write(r->task, cell, fy_bytes(r->first + i * r->pitch, r->bits), &piece, error);
    }
    if (status == FERRY_OK && is_whole && r->task->needs_hashes) {
        fy_hasher_update(hasher, bytes, (size_t)n_bytes);
    }
    return status;
}

static ferry_status write_scales(const weight *w, const fy_tile_walk *walk, fy_hasher *hasher,
                                 ferry_error *error)
{
    const fy_tile *tile = &walk->tile;
    const uint64_t *block = w->change->format.block;
    uint64_t matrix_rows = fy_ceil_div(walk->n_rows, block[0]);
    rows r = {.task = &w->scales,
              .bits = w->scales.type.dtype.element_bits,
              .n_rows = fy_ceil_div(tile->n_rows, block[0]),
              .n_columns = fy_ceil_div(tile->n_columns, block[1]),
              .pitch = fy_ceil_div(walk->n_columns, block[1])};
    r.first =
        (tile->matrix * matrix_rows + tile->row / block[0]) * r.pitch + tile->column / block[1];
    return write_rows(&r, tile->window.cell, w->changer->scales, hasher, error);
}

static ferry_status make_tile(weight *w, uint32_t turn, ferry_error *error)
{
    const fy_changed_shard *shard = &w->shards[turn];
    const fy_tile *tile = &shard->walk.tile;
    fy_reshard_worker *worker = w->codes.worker;
    rows r = {.task = &w->codes,
              .bits = w->codes.type.dtype.element_bits,
              .first = tile->window.first,
              .n_rows = tile->n_rows,
              .n_columns = tile->n_columns,
              .pitch = shard->walk.is_flat ? tile->n_columns : shard->walk.n_columns};
    FY_TRY(fy_gather_check_stop(&worker->gather, error));
    FY_TRY(fy_changer_make(w->changer, &worker->gather, shard, error));
    FY_TRY(write_rows(&r, tile->window.cell, w->changer->out, &worker->hashers[2 * turn], error));
    return makes_scales(w) ? write_scales(w, &shard->walk, &worker->hashers[2 * turn + 1], error)
                           : FERRY_OK;
}

/* ---- cells ---- */

/* What was hashed on the way; what was written in parts of rows is read again. */
static ferry_status finish_cell(weight *w, uint32_t cell, uint32_t turn, ferry_error *error)
{
    fy_hasher *hashers = &w->codes.worker->hashers[2 * turn];
    bool was_in_order = fy_tile_walk_is_in_order(&w->shards[turn].walk);
    if (!w->codes.needs_hashes || !fy_out_has_holders(&w->codes, cell)) {
        return FERRY_OK;
    }
    if (!was_in_order) {
        FY_TRY(fy_out_hash(&w->codes, cell, error));
        return makes_scales(w) ? fy_out_hash(&w->scales, cell, error) : FERRY_OK;
    }
    w->codes.checksums[cell] = fy_hasher_end(&hashers[0]);
    if (makes_scales(w)) {
        w->scales.checksums[cell] = fy_hasher_end(&hashers[1]);
    }
    return FERRY_OK;
}

static ferry_status make_in_turn(weight *w, uint32_t first, uint32_t n, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    bool more = true;
    while (more && status == FERRY_OK) {
        more = false;
        for (uint32_t i = 0; i < n && status == FERRY_OK; i++) {
            if (fy_out_has_holders(&w->codes, first + i) && fy_tile_walk_next(&w->shards[i].walk)) {
                more = true;
                status = make_tile(w, i, error);
            }
        }
    }
    for (uint32_t i = 0; i < n && status == FERRY_OK; i++) {
        status = finish_cell(w, first + i, i, error);
    }
    return status;
}

/* Cells [first, first + n), a tile of each in turn: they share what is read. */
static ferry_status make_cells(weight *w, uint32_t first, uint32_t n, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    uint32_t begun = 0;
    for (; begun < n && status == FERRY_OK; begun++) {
        fy_hasher_begin(&w->codes.worker->hashers[2 * begun]);
        fy_hasher_begin(&w->codes.worker->hashers[2 * begun + 1]);
        status = fy_changed_shard_begin(w->changer, first + begun, &w->shards[begun], error);
    }
    FY_THEN(status, make_in_turn(w, first, n, error));
    for (uint32_t i = 0; i < begun; i++) {
        fy_changed_shard_cleanup(&w->shards[i]);
    }
    return status;
}

/* Columns of cells beside each other come from the same rows, where tiles are whole rows. */
static ferry_status make_shards(weight *w, ferry_error *error)
{
    uint32_t n_cells = w->codes.holders->n_cells;
    uint32_t at_once = fy_out_cells_in_turn(&w->codes, w->n_dims - 2);
    ferry_status status = FERRY_OK;
    for (uint32_t first = 0; first < n_cells && status == FERRY_OK; first += at_once) {
        uint32_t n = n_cells - first < at_once ? n_cells - first : at_once;
        status = make_cells(w, first, n, error);
    }
    return status;
}

static ferry_status make_all(weight *w, ferry_error *error)
{
    fy_gather *gather = &w->codes.worker->gather;
    FY_TRY(fy_gather_begin(gather, w->codes.tensor, error));
    FY_TRY(fy_changer_begin(w->changer, w->codes.tensor, error));
    FY_TRY(make_shards(w, error));
    FY_TRY(fy_changer_end(w->changer, error));
    return fy_gather_end(gather, error);
}

/* ---- scales of matrices ---- */

/* A cell's, gathered in pieces that fit the worker's room. */
static ferry_status write_matrix_scales(const weight *w, const fy_out_task *t, uint32_t cell,
                                        fy_hasher *hasher, ferry_error *error)
{
    const fy_problem *problem = &t->work->reshard->job.problem;
    const fy_tensor *tensor = &problem->tensors[t->tensor];
    uint64_t shape[FERRY_MAX_DIMS], index[FERRY_MAX_DIMS];
    uint32_t n_dims;
    uint64_t n = fy_placement_shape(problem, tensor->dst, cell, &n_dims, shape);
    uint64_t most = t->work->reshard->buffers.room_bytes / sizeof(float);
    float *values = (float *)(void *)t->worker->room;
    ferry_status status = FERRY_OK;
    fy_hasher_begin(hasher);
    for (uint64_t done = 0; done < n && status == FERRY_OK;) {
        uint64_t here = fy_min(n - done, most);
        for (uint64_t i = 0; i < here; i++) {
            uint64_t matrix = 0;
            fy_placement_global(problem, tensor->dst, cell, done + i, index);
            for (uint32_t d = 0; d < tensor->n_dims; d++) {
                matrix = matrix * tensor->shape[d] + index[d];
            }
            values[i] = w->changer->matrix_scales[matrix];
        }
        fy_out_piece piece = {.bytes = t->worker->room, .n_bytes = here * sizeof(float)};
        status = fy_out_write(t, cell, done * sizeof(float), &piece, error);
        fy_hasher_update(hasher, piece.bytes, (size_t)piece.n_bytes);
        done += here;
    }
    t->checksums[cell] = fy_hasher_end(hasher);
    return status;
}

static ferry_status make_matrix_scales(const weight *w, fy_out_task *t, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint32_t cell = 0; cell < t->holders->n_cells && status == FERRY_OK; cell++) {
        if (fy_out_has_holders(t, cell)) {
            status = write_matrix_scales(w, t, cell, t->worker->hashers, error);
        }
    }
    FY_THEN(status, fy_out_record(t, false, error));
    return status;
}

/* ---- a weight ---- */

static ferry_status make_weight(weight *w, fy_out_task *matrix, bool is_there, ferry_error *error)
{
    ferry_status status = is_there ? FERRY_OK : make_all(w, error);
    if (matrix != NULL && status == FERRY_OK) {
        status =
            is_there ? fy_out_record(matrix, true, error) : make_matrix_scales(w, matrix, error);
    }
    if (makes_scales(w)) {
        FY_THEN(status, fy_out_record(&w->scales, is_there, error));
    }
    /* Last: an earlier run has made all of it if it has made this. */
    FY_THEN(status, fy_out_record(&w->codes, is_there, error));
    return status;
}

/* What an earlier run has made counts if all of it is there. */
static ferry_status check_resumed(const weight *w, const fy_out_task *matrix, bool *is_there_out,
                                  ferry_error *error)
{
    uint64_t bytes = 0;
    FY_TRY(fy_out_check_resumed(&w->codes, is_there_out, &bytes, error));
    if (*is_there_out && makes_scales(w)) {
        FY_TRY(fy_out_check_resumed(&w->scales, is_there_out, &bytes, error));
    }
    if (*is_there_out && matrix != NULL) {
        FY_TRY(fy_out_check_resumed(matrix, is_there_out, &bytes, error));
    }
    if (*is_there_out) {
        fy_out_count_resumed(w->codes.work, bytes);
    }
    return FERRY_OK;
}

ferry_status fy_reshard_weight(fy_reshard_work *work, fy_reshard_worker *worker, uint32_t tensor,
                               ferry_error *error)
{
    const fy_change *change = &work->reshard->job.changes[tensor];
    fy_out_task matrix = {.work = NULL};
    weight w = {.changer = &worker->changer,
                .change = change,
                .n_dims = work->reshard->job.problem.tensors[tensor].n_dims};
    bool is_there = false, has_matrix = makes_scales(&w) && change->matrix_scales != FY_NONE;
    ferry_status status = fy_out_task_begin(work, worker, tensor, &w.codes, error);
    if (makes_scales(&w)) {
        FY_THEN(status, fy_out_task_begin(work, worker, change->scales, &w.scales, error));
    }
    if (has_matrix) {
        FY_THEN(status, fy_out_task_begin(work, worker, change->matrix_scales, &matrix, error));
    }
    FY_THEN(status, check_resumed(&w, has_matrix ? &matrix : NULL, &is_there, error));
    FY_THEN(status, make_weight(&w, has_matrix ? &matrix : NULL, is_there, error));
    fy_out_task_cleanup(&w.codes);
    fy_out_task_cleanup(&w.scales);
    fy_out_task_cleanup(&matrix);
    return status;
}
