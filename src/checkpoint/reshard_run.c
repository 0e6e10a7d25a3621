/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/reshard.h"

#include "base/checked.h"
#include "base/options.h"
#include "base/sort.h"
#include "checkpoint/crew.h"
#include "checkpoint/matrices.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- in which order ---- */

typedef struct ranked {
    uint64_t key;
    uint32_t tensor;
} ranked;

static int compare_ranked(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->key != y->key) {
        return x->key < y->key ? -1 : 1;
    }
    return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

static uint64_t bytes_of(const ferry_reshard *c, uint32_t tensor)
{
    const fy_tensor *t = &c->job.problem.tensors[tensor];
    return fy_ceil_div(fy_box_volume(t->shape, t->n_dims) * t->dtype.element_bits, 8);
}

/*
 * Files are read as they lie: by source tensor. Only tensors so large that a thread could be left
 * alone with one at the end come first.
 */
static ferry_status choose_order(fy_reshard_work *w, ferry_error *error)
{
    const ferry_reshard *c = w->reshard;
    size_t n = c->job.problem.n_tensors;
    uint64_t large = c->totals.read_bytes / (8 * (uint64_t)c->buffers.n_threads);
    ranked *keys = fy_alloc(n, sizeof *keys);
    w->order = fy_alloc(n, sizeof *w->order);
    if (keys == NULL || w->order == NULL) {
        fy_free(keys);
        return fy_fail_no_memory(error, "the tensors of a reshard");
    }
    for (uint32_t t = 0; t < n; t++) {
        size_t leg = c->job.first_leg[t];
        uint64_t own = bytes_of(c, t);
        if (!c->job.is_wanted[t] || c->job.problem.tensors[t].is_made) {
            continue; /* scales are made with their weights */
        }
        uint64_t place = leg < c->job.first_leg[t + 1] ? c->job.routes.legs[leg].source : t;
        /* Below 2^32 the largest first; then by place. */
        keys[w->n_order++] =
            (ranked){.key = own > large ? UINT32_MAX - fy_min(own >> 10, UINT32_MAX)
                                        : place + ((uint64_t)1 << 32),
                     .tensor = t};
    }
    fy_sort(keys, w->n_order, sizeof *keys, compare_ranked);
    for (size_t i = 0; i < w->n_order; i++) {
        w->order[i] = keys[i].tensor;
    }
    fy_free(keys);
    return FERRY_OK;
}

/* ---- while threads work ---- */

static bool tell(fy_reshard_work *w)
{
    ferry_work_progress progress = {.phase = w->phase,
                                    .done_bytes = atomic_load(&w->done_bytes),
                                    .total_bytes = w->total_bytes,
                                    .seconds = fy_seconds_now() - w->began,
                                    .anew = w->anew,
                                    .goes_on = w->goes_on};
    bool goes_on =
        w->options->progress == NULL || w->options->progress(w->options->context, &progress);
    if (!goes_on) {
        atomic_store(&w->stops, true);
    }
    return goes_on;
}

/* Sends what was written on its way to the disk, so that it is not idle until the end. */
static void start_writing_back(fy_reshard_work *w)
{
    static const uint64_t FROM_BYTES = (uint64_t)8 << 20;
    for (size_t i = 0; i < w->reshard->n_out; i++) {
        int descriptor;
        if (atomic_load(&w->dirty[i]) < FROM_BYTES ||
            fy_files_get(w->out, i, &descriptor, NULL) != FERRY_OK) {
            continue;
        }
        atomic_store(&w->dirty[i], 0);
        sync_file_range(descriptor, 0, 0, SYNC_FILE_RANGE_WRITE);
        fy_files_put(w->out, i);
    }
}

static bool tick(void *context)
{
    fy_reshard_work *w = context;
    bool goes_on = tell(w);
    if (goes_on) {
        start_writing_back(w);
    }
    return goes_on;
}

static ferry_status make_part(void *context, uint32_t worker, size_t part, ferry_error *error)
{
    fy_reshard_work *w = context;
    return w->reshard->boxed != NULL
               ? fy_reshard_unit(w, &w->workers[worker], part, error)
               : fy_reshard_tensor(w, &w->workers[worker], w->order[part], error);
}

static ferry_status finish_part(void *context, uint32_t worker, size_t part, ferry_error *error)
{
    (void)worker;
    return fy_reshard_finish_file(context, part, error);
}

static ferry_status copy_part(void *context, uint32_t worker, size_t part, ferry_error *error)
{
    return fy_reshard_copy_other(context, worker, part, error);
}

static bool tell_only(void *context)
{
    return tell(context);
}

/* ---- a run ---- */

static ferry_status prepare(fy_reshard_work *w, ferry_error *error)
{
    ferry_reshard *c = w->reshard;
    w->workers = fy_alloc_zeroed(c->buffers.n_threads, sizeof *w->workers);
    w->dirty = fy_alloc_zeroed(c->n_out, sizeof *w->dirty);
    FY_TRY(fy_check_memory(w->workers != NULL && w->dirty != NULL, "a reshard", error));
    FY_TRY(fy_files_of(c->from, &w->in, error));
    fy_files_set_pace(w->in, &w->pace);
    FY_TRY(fy_checked_create(c->from, &w->checked, error));
    FY_TRY(c->boxed != NULL ? fy_reshard_order_parameters(w, error) : choose_order(w, error));
    FY_TRY(c->boxed != NULL ? fy_matrices_create(&c->job, &w->matrices, error) : FERRY_OK);
    for (uint32_t i = 0; i < c->buffers.n_threads; i++) {
        FY_TRY(fy_reshard_worker_init(&w->workers[i], w, error));
    }
    return FERRY_OK;
}

static void clean_up(fy_reshard_work *w)
{
    ferry_reshard *c = w->reshard;
    for (uint32_t i = 0; w->workers != NULL && i < c->buffers.n_threads; i++) {
        fy_reshard_worker_cleanup(&w->workers[i]);
    }
    for (size_t t = 0; w->resumed != NULL && t < fy_reshard_n_tasks(c); t++) {
        fy_free(w->resumed[t]);
    }
    fy_free(w->resumed);
    fy_free(w->workers);
    fy_matrices_destroy(w->matrices);
    fy_free((void *)(uintptr_t)w->dirty);
    fy_free(w->order);
    fy_free(w->unit_begin);
    fy_checked_cleanup(&w->checked);
    fy_onto_close(w->onto);
    fy_files_destroy(w->in);
    fy_files_destroy(w->out);
}

static ferry_status run_phases(fy_reshard_work *w, double *copy_seconds, ferry_error *error)
{
    const ferry_reshard *c = w->reshard;
    fy_crew_job job = {.n_workers = c->buffers.n_threads,
                       .n_parts = w->n_order,
                       .work = make_part,
                       .tick = tick,
                       .context = w};
    w->phase = "copying";
    w->total_bytes = 0;
    for (size_t i = 0; i < c->n_out; i++) {
        w->total_bytes += c->out[i].form.data_bytes;
    }
    ferry_status status = fy_crew_run(&job, error);
    *copy_seconds = fy_seconds_now() - w->began;
    if (status == FERRY_OK) {
        w->phase = "syncing";
        job.n_parts = c->n_out;
        job.work = finish_part;
        job.tick = tell_only;
        status = fy_crew_run(&job, error);
    }
    FY_THEN(status, fy_reshard_write_text(w, error));
    if (status == FERRY_OK && c->from->n_others > 0) {
        w->phase = "copying other files";
        w->total_bytes = c->totals.other_bytes;
        atomic_store(&w->done_bytes, 0);
        job.n_parts = c->from->n_others;
        job.work = copy_part;
        status = fy_crew_run(&job, error);
    }
    return status;
}

static void fill_result(fy_reshard_work *w, double copy_seconds, ferry_reshard_result *result)
{
    *result = (ferry_reshard_result){.struct_size = sizeof *result,
                                     .written_bytes = w->reshard->totals.file_bytes,
                                     .resumed_bytes = atomic_load(&w->resumed_bytes),
                                     .n_checked = atomic_load(&w->checked.n_checked),
                                     .seconds = fy_seconds_now() - w->began,
                                     .copy_seconds = copy_seconds,
                                     .anew = w->anew};
    if (w->onto != NULL) {
        fy_onto_count(w->onto, &result->kept_bytes, &result->n_kept_files);
    }
}

/* In the partial folder, which is there and locked. */
static ferry_status run_in_folder(fy_reshard_work *w, fy_leftover left, double *copy_seconds,
                                  ferry_error *error)
{
    ferry_status status = prepare(w, error);
    FY_THEN(status, fy_reshard_open_journal(w, left, error));
    FY_THEN(status, fy_reshard_make_files(w, error));
    FY_THEN(status, run_phases(w, copy_seconds, error));
    FY_THEN(status, fy_files_check_unchanged(w->in, error));
    if (status == FERRY_OK && w->onto != NULL) {
        status = fy_onto_finish(w->onto, w->folder.fd, error);
    }
    /* The last moment: a wish to stop that came since the last look must not be lost. */
    if (status == FERRY_OK && !tell(w)) {
        status = fy_fail(error, FERRY_ERR_STOPPED, "was stopped before it was done");
    }
    fy_journal_close(&w->journal);
    return status == FERRY_OK ? fy_folder_commit(&w->folder, error) : status;
}

/* Of a source that is another by now nothing can be used. */
static bool is_worth_keeping(fy_reshard_work *w)
{
    return w->may_resume || (atomic_load(&w->has_records) && !fy_files_were_changed(w->in));
}

bool ferry_reshard_has_left(const char *path)
{
    return path != NULL && fy_folder_has_journal(path);
}

ferry_status ferry_reshard_run(ferry_reshard *reshard, const char *path,
                               const ferry_reshard_run_options *options,
                               ferry_reshard_result *result_out, ferry_error *error)
{
    FY_TRY(fy_check_use(reshard != NULL && path != NULL,
                        "ferry_reshard_run needs a reshard and a path", error));
    ferry_reshard_run_options own;
    FY_TRY(fy_take_reshard_run_options(options, &own, error));
    if (result_out != NULL) {
        FY_TRY(fy_check_out(result_out, "ferry_reshard_result", error));
    }
    fy_reshard_work w = {.reshard = reshard,
                         .options = &own,
                         .journal = {.fd = -1},
                         .copies_in_kernel = true,
                         .phase = "preparing",
                         .began = fy_seconds_now()};
    fy_leftover left = FY_LEFT_NOTHING;
    double copy_seconds = 0;
    FY_TRY(fy_pace_init(&w.pace, own.bytes_per_s, error));
    w.pace.stops = &w.stops;

    own.resume = own.resume && own.onto == NULL; /* which files were made of what is not recorded */
    bool keep = own.resume && !own.restart;
    ferry_status status = fy_reshard_open_onto(&w, error);
    FY_THEN(status, fy_folder_begin(path, keep, &w.folder, &left, error));
    if (status == FERRY_OK) {
        w.may_resume = left == FY_LEFT_FILES;
        status = run_in_folder(&w, left, &copy_seconds, error);
        keep = status != FERRY_OK && own.resume && is_worth_keeping(&w);
    }
    ferry_reshard_result result;
    fill_result(&w, copy_seconds, &result);
    clean_up(&w);
    fy_pace_cleanup(&w.pace);
    fy_folder_end(&w.folder, keep);
    return status == FERRY_OK && result_out != NULL
               ? fy_copy_out(&result, sizeof result, result_out, "ferry_reshard_result", error)
               : status;
}
