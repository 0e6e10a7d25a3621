/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* One tensor of a result: its shards window by window, each written to all files that hold it. */
#include "checkpoint/reshard_task.h"

#include "base/checked.h"
#include "exec/cast.h"

#include <string.h>

enum { KERNEL_FROM = 65536 /* bytes that are worth the detour from file to file */ };

ferry_status fy_reshard_worker_init(fy_reshard_worker *worker, fy_reshard_work *work,
                                    ferry_error *error)
{
    const ferry_reshard *c = work->reshard;
    const fy_buffers *b = &c->buffers;
    *worker = (fy_reshard_worker){.room = fy_alloc(b->room_bytes, 1),
                                  .walks = fy_alloc(FY_MOST_CELLS_AT_ONCE, sizeof *worker->walks)};
    worker->hashers = fy_hashers_alloc(2 * FY_MOST_CELLS_AT_ONCE, &worker->raw_hashers);
    if (worker->room == NULL || worker->walks == NULL || worker->hashers == NULL) {
        return fy_fail_no_memory(error, "a buffer to work in");
    }
    worker->window = worker->room;
    worker->cast = worker->room + b->window_bytes;
    ferry_status status =
        fy_gather_init(&worker->gather, &c->job, work->in, &work->checked, b->span_bytes, error);
    FY_THEN(status, fy_changer_init(&worker->changer, &c->job, c->has_whole ? &c->whole : NULL,
                                    work->in, &work->checked, b->span_bytes, error));
    if (c->boxed != NULL) {
        fy_maker_init(&worker->maker, c->boxed, &c->job, &worker->gather, &c->maker_room,
                      worker->room);
        worker->maker.beside = c->has_whole ? &worker->changer.beside : NULL;
        worker->maker.matrices = work->matrices;
    }
    worker->gather.stops = &work->stops;
    worker->changer.beside.stops = &work->stops;
    worker->changer.room = worker->room;
    worker->changer.room_bytes = b->room_bytes;
    return status;
}

void fy_reshard_worker_cleanup(fy_reshard_worker *worker)
{
    fy_gather_cleanup(&worker->gather);
    fy_changer_cleanup(&worker->changer);
    fy_free(worker->room);
    fy_free(worker->raw_hashers);
    fy_free(worker->walks);
    *worker = (fy_reshard_worker){0};
}

/* ---- where a cell is written ---- */

static uint32_t file_of(const fy_out_task *t, uint32_t slot)
{
    const ferry_reshard *c = t->work->reshard;
    return c->is_sharded ? fy_places_find(&c->job.to_places, t->holders->rank[slot])
                         : c->part_of[t->tensor];
}

static uint64_t offset_of(const fy_out_task *t, uint32_t file)
{
    const fy_out_file *out = &t->work->reshard->out[file];
    return out->form.header_bytes + fy_out_find(out, t->tensor)->begin;
}

static ferry_status write_piece(const fy_out_task *t, uint32_t file, uint64_t offset,
                                const fy_out_piece *p, ferry_error *error)
{
    fy_reshard_work *w = t->work;
    bool copied = false;
    ferry_status status = FERRY_OK;
    if (p->is_in_file && p->n_bytes >= KERNEL_FROM && w->copies_in_kernel && w->onto == NULL) {
        status = fy_files_copy(w->in, p->file, p->offset, w->out, file, offset, p->n_bytes, &copied,
                               error);
        if (status == FERRY_OK && !copied) {
            atomic_store(&w->copies_in_kernel, false);
        }
        atomic_fetch_add(&w->dirty[file], copied ? p->n_bytes : 0);
    }
    if (status == FERRY_OK && !copied) {
        status = fy_reshard_write(w, file, offset, p->bytes, p->n_bytes, error);
    }
    return status;
}

ferry_status fy_out_write(const fy_out_task *t, uint32_t cell, uint64_t at, const fy_out_piece *p,
                          ferry_error *error)
{
    ferry_status status = FERRY_OK;
    uint32_t s = t->holders->cell_begin[cell];
    for (; s < t->holders->cell_begin[cell + 1] && status == FERRY_OK; s++) {
        uint32_t file = file_of(t, s);
        status = write_piece(t, file, offset_of(t, file) + at, p, error);
        atomic_fetch_add(&t->work->done_bytes, p->n_bytes);
    }
    return status;
}

/* ---- windows ---- */

static const char *cast_window(const fy_out_task *t, const char *from, uint64_t n_elements)
{
    fy_cast cast = {.from_kind = t->from_kind,
                    .to_kind = t->type.dtype.kind,
                    .overflow = fy_cast_usual_overflow(t->type.dtype.kind),
                    .n_rows = 1,
                    .n_columns = n_elements};
    fy_area in = fy_area_flat(0, n_elements * fy_cast_element_bytes(cast.from_kind));
    fy_area out = fy_area_flat(0, n_elements * fy_cast_element_bytes(cast.to_kind));
    fy_area_cast(&cast, &out, t->worker->cast, &in, from, 0, n_elements);
    return t->worker->cast;
}

/* An element that is larger than the window: it lies in one place, and travels in pieces. */
static ferry_status move_element(const fy_out_task *t, const fy_window *window, fy_hasher *hasher,
                                 ferry_error *error)
{
    const fy_gather *gather = &t->worker->gather;
    uint64_t most = t->work->reshard->buffers.window_bytes;
    ferry_status status = FERRY_OK;
    for (uint64_t done = 0; done < window->bytes && status == FERRY_OK;) {
        fy_out_piece p = {.bytes = t->worker->window,
                          .n_bytes = fy_min(most, window->bytes - done),
                          .is_in_file = true,
                          .file = gather->whole_file,
                          .offset = gather->whole_offset + done};
        status = fy_gather_check_stop(gather, error);
        FY_THEN(status,
                fy_files_read(t->work->in, p.file, p.offset, t->worker->window, p.n_bytes, error));
        if (status == FERRY_OK) {
            fy_hasher_update(hasher, p.bytes, (size_t)p.n_bytes);
            status =
                fy_out_write(t, window->cell,
                             fy_bytes(window->first, t->type.dtype.element_bits) + done, &p, error);
        }
        done += p.n_bytes;
    }
    return status;
}

static ferry_status move_window(const fy_out_task *t, const fy_window *window, fy_hasher *hasher,
                                ferry_error *error)
{
    fy_gather *gather = &t->worker->gather;
    if (window->bytes > t->work->reshard->buffers.window_bytes) {
        ferry_status found = fy_gather_locate(gather, window, error);
        return found == FERRY_OK ? move_element(t, window, hasher, error) : found;
    }
    FY_TRY(fy_gather_read(gather, window, t->worker->window, error));
    fy_out_piece p = {.bytes = t->worker->window,
                      .n_bytes = window->bytes,
                      .is_in_file = gather->is_whole,
                      .file = gather->whole_file,
                      .offset = gather->whole_offset};
    uint64_t at = fy_bytes(window->first, t->type.dtype.element_bits);
    if (t->type.is_cast) {
        p.bytes = cast_window(t, t->worker->window, window->n_elements);
        p.n_bytes = fy_bytes(window->n_elements, t->type.dtype.element_bits);
        p.is_in_file = false;
    }
    if (t->needs_hashes) {
        fy_hasher_update(hasher, p.bytes, (size_t)p.n_bytes);
    }
    return fy_out_write(t, window->cell, at, &p, error);
}

/* ---- cells ---- */

/* Cells [first, first + n), a window of each in turn: they share what is read. */
static ferry_status move_cells(const fy_out_task *t, uint32_t first, uint32_t n,
                               const fy_grain *grain, ferry_error *error)
{
    fy_window_walk *walks = t->worker->walks;
    ferry_status status = FERRY_OK;
    bool more = true;
    for (uint32_t i = 0; i < n; i++) {
        fy_hasher_begin(&t->worker->hashers[i]);
        fy_window_walk_begin(&walks[i], &t->work->reshard->job, t->tensor, first + i, grain);
    }
    while (more && status == FERRY_OK) {
        more = false;
        for (uint32_t i = 0; i < n && status == FERRY_OK; i++) {
            if (!fy_out_has_holders(t, first + i) || !fy_window_walk_next(&walks[i])) {
                continue;
            }
            more = true;
            status = fy_gather_check_stop(&t->worker->gather, error);
            FY_THEN(status, move_window(t, &walks[i].window, &t->worker->hashers[i], error));
        }
    }
    for (uint32_t i = 0; i < n && status == FERRY_OK; i++) {
        t->checksums[first + i] = fy_hasher_end(&t->worker->hashers[i]);
    }
    return status;
}

/* Casts that make elements larger leave room for them. */
static fy_grain grain_of(const fy_out_task *t)
{
    const ferry_reshard *c = t->work->reshard;
    uint64_t most = c->buffers.window_bytes;
    uint32_t from = c->job.problem.tensors[t->tensor].dtype.element_bits;
    if (t->type.is_cast && t->type.dtype.element_bits > from) {
        most = most * from / t->type.dtype.element_bits;
    }
    return fy_grain_of(&c->job, t->tensor, most, c->buffers.span_bytes);
}

/* Whether parts of a dimension take turns in rows so few that reading one part reads all. */
static bool is_interleaved(const fy_split *split, uint64_t row_bytes)
{
    return split->n_pieces > split->n_parts &&
           split->extent / split->n_pieces * row_bytes < KERNEL_FROM / 4;
}

/*
 * How many cells one after the other need the same rows of the source: those that differ only in
 * parts of dimensions behind that of the windows, or in rows that lie between each other. Others
 * are made one by one, which reads each source shard from its begin to its end.
 */
uint32_t fy_out_cells_in_turn(const fy_out_task *t, uint32_t dim)
{
    const fy_problem *problem = &t->work->reshard->job.problem;
    const fy_layout *layout = &problem->placements[problem->tensors[t->tensor].dst].layout;
    uint64_t n = 1, row = 1;
    for (uint32_t d = dim + 1; d < layout->n_dims; d++) {
        n *= fy_problem_split(problem, layout, d)->n_parts; /* of all dims: below 2^24 */
        row *= layout->shape[d];
    }
    if (layout->n_dims > 0) {
        const fy_split *rows = fy_problem_split(problem, layout, dim);
        bool joins =
            is_interleaved(rows, fy_bytes(row, problem->tensors[t->tensor].dtype.element_bits));
        n *= joins ? rows->n_parts : 1;
    }
    return layout->n_flat == 0 && fy_gather_takes_turns(&t->worker->gather)
               ? (uint32_t)fy_min(n, FY_MOST_CELLS_AT_ONCE)
               : 1;
}

static ferry_status move_all(const fy_out_task *t, ferry_error *error)
{
    fy_grain grain = grain_of(t);
    uint32_t n_cells = t->holders->n_cells;
    FY_TRY(fy_gather_begin(&t->worker->gather, t->tensor, error));
    ferry_status status = FERRY_OK;
    uint32_t at_once = fy_out_cells_in_turn(t, grain.dim);
    for (uint32_t first = 0; first < n_cells && status == FERRY_OK; first += at_once) {
        uint32_t n = n_cells - first < at_once ? n_cells - first : at_once;
        status = move_cells(t, first, n, &grain, error);
    }
    return status == FERRY_OK ? fy_gather_end(&t->worker->gather, error) : status;
}

/* ---- what an earlier run has made ---- */

static ferry_status read_written(fy_reshard_work *w, uint32_t file, uint64_t at, char *to,
                                 uint64_t n, ferry_error *error)
{
    return w->onto == NULL ? fy_files_read(w->out, file, at, to, n, error)
                           : fy_onto_read(w->onto, file, at, to, n, error);
}

ferry_status fy_out_hash_file(fy_reshard_work *w, fy_reshard_worker *worker, uint32_t file,
                              uint32_t tensor, uint64_t *hash_out, ferry_error *error)
{
    const fy_out_file *out = &w->reshard->out[file];
    const fy_form_tensor *form = fy_out_find(out, tensor);
    uint64_t at = out->form.header_bytes + form->begin, end = at + form->bytes;
    ferry_status status = FERRY_OK;
    fy_hasher hasher;
    fy_hasher_begin(&hasher);
    while (at < end && status == FERRY_OK) {
        uint64_t n = fy_min(end - at, w->reshard->buffers.window_bytes);
        status = fy_gather_check_stop(&worker->gather, error);
        FY_THEN(status, read_written(w, file, at, worker->window, n, error));
        if (status == FERRY_OK) {
            fy_hasher_update(&hasher, worker->window, (size_t)n);
        }
        at += n;
    }
    *hash_out = fy_hasher_end(&hasher);
    return status;
}

static ferry_status hash_written(const fy_out_task *t, uint32_t file, uint64_t *hash_out,
                                 ferry_error *error)
{
    return fy_out_hash_file(t->work, t->worker, file, t->tensor, hash_out, error);
}

ferry_status fy_out_hash(const fy_out_task *t, uint32_t cell, ferry_error *error)
{
    return hash_written(t, file_of(t, t->holders->cell_begin[cell]), &t->checksums[cell], error);
}

/* Whether every file has what the journal says: it may have been lost on its way to the disk. */
ferry_status fy_out_check_resumed(const fy_out_task *t, bool *holds_out, uint64_t *bytes_inout,
                                  ferry_error *error)
{
    const uint64_t *recorded = t->work->resumed == NULL ? NULL : t->work->resumed[t->tensor];
    ferry_status status = FERRY_OK;
    *holds_out = recorded != NULL;
    if (recorded == NULL) {
        return FERRY_OK;
    }
    for (uint32_t cell = 0; cell < t->holders->n_cells && *holds_out; cell++) {
        uint32_t s = t->holders->cell_begin[cell];
        for (; s < t->holders->cell_begin[cell + 1] && *holds_out; s++) {
            uint64_t hash;
            uint32_t file = file_of(t, s);
            status = hash_written(t, file, &hash, error);
            *holds_out = status == FERRY_OK && hash == recorded[cell];
            *bytes_inout += fy_out_find(&t->work->reshard->out[file], t->tensor)->bytes;
        }
        t->checksums[cell] = recorded[cell];
    }
    return status;
}

void fy_out_count_resumed(fy_reshard_work *work, uint64_t bytes)
{
    atomic_fetch_add(&work->resumed_bytes, bytes);
    atomic_fetch_add(&work->done_bytes, bytes);
}

/* ---- a tensor ---- */

static void record_checksums(const fy_out_task *t)
{
    for (uint32_t s = 0; t->work->reshard->is_sharded && s < t->holders->n_slots; s++) {
        fy_out_file *file = &t->work->reshard->out[file_of(t, s)];
        fy_out_find(file, t->tensor)->checksum = t->checksums[t->holders->cell[s]];
    }
}

ferry_status fy_out_record(const fy_out_task *t, bool was_there, ferry_error *error)
{
    fy_reshard_work *work = t->work;
    if (!was_there && work->journal.fd >= 0) {
        FY_TRY(
            fy_journal_append(&work->journal, t->tensor, t->checksums, t->holders->n_cells, error));
        atomic_store(&work->has_records, true);
    }
    record_checksums(t);
    return FERRY_OK;
}

ferry_status fy_out_task_begin(fy_reshard_work *work, fy_reshard_worker *worker, uint32_t tensor,
                               fy_out_task *task, ferry_error *error)
{
    const ferry_reshard *c = work->reshard;
    const fy_tensor *source = &c->job.problem.tensors[tensor];
    *task = (fy_out_task){.work = work,
                          .worker = worker,
                          .tensor = tensor,
                          .type = fy_reshard_type(c, tensor),
                          .from_kind = source->dtype.kind,
                          .holders = fy_problem_holders(&c->job.problem, source->dst),
                          .needs_hashes = c->is_sharded || work->journal.fd >= 0};
    task->checksums = fy_alloc_zeroed(task->holders->n_cells, sizeof *task->checksums);
    return fy_check_memory(task->checksums != NULL, "the checksums of a tensor", error);
}

void fy_out_task_cleanup(fy_out_task *task)
{
    fy_free(task->checksums);
}

ferry_status fy_reshard_tensor(fy_reshard_work *work, fy_reshard_worker *worker, uint32_t tensor,
                               ferry_error *error)
{
    if (fy_change_has_tiles(&work->reshard->job.changes[tensor])) {
        return fy_reshard_weight(work, worker, tensor, error);
    }
    fy_out_task t;
    bool is_there = false;
    uint64_t bytes = 0;
    FY_TRY(fy_out_task_begin(work, worker, tensor, &t, error));
    ferry_status status = fy_out_check_resumed(&t, &is_there, &bytes, error);
    if (status == FERRY_OK && is_there) {
        fy_out_count_resumed(work, bytes);
    } else if (status == FERRY_OK) {
        status = move_all(&t, error);
    }
    FY_THEN(status, fy_out_record(&t, is_there, error));
    fy_out_task_cleanup(&t);
    return status;
}
