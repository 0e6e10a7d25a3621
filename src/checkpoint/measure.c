/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What the elements of a checkpoint's tensors are: each tensor by one thread, window by window. */
#include "base/checked.h"
#include "base/options.h"
#include "checkpoint/crew.h"
#include "checkpoint/reshard.h"
#include "checkpoint/tally.h"

typedef struct worker {
    fy_gather gather;
    char *window;
    float *room; /* for the elements of a window as f32 */
} worker;

typedef struct measurement {
    const ferry_checkpoint *checkpoint;
    const ferry_statistics_options *options;
    fy_layout_job job; /* to one rank that has everything */
    fy_files *files;
    fy_checked checked;
    fy_buffers buffers;
    worker *workers;
    fy_tally *tallies;
    _Atomic uint64_t done_bytes;
    _Atomic bool stops;
    uint64_t total_bytes;
    double began;
} measurement;

static bool has_numbers(const measurement *m, size_t tensor)
{
    const fy_ckpt_tensor *t = &m->checkpoint->tensors[tensor];
    return !t->is_opaque && fy_tally_takes(t->dtype.kind);
}

static bool is_looked_at(const measurement *m, size_t tensor)
{
    return m->job.is_wanted[tensor] && has_numbers(m, tensor);
}

static uint64_t elements_of(const measurement *m, size_t tensor)
{
    const fy_ckpt_tensor *t = &m->checkpoint->tensors[tensor];
    return fy_box_volume(t->shape, t->n_dims);
}

static ferry_status measure_part(void *context, uint32_t number, size_t tensor, ferry_error *error)
{
    measurement *m = context;
    worker *w = &m->workers[number];
    uint32_t kind = m->checkpoint->tensors[tensor].dtype.kind;
    fy_window_walk walk;
    if (!is_looked_at(m, tensor)) {
        return FERRY_OK;
    }
    fy_grain grain =
        fy_grain_of(&m->job, (uint32_t)tensor, m->buffers.window_bytes, m->buffers.span_bytes);
    ferry_status status = fy_gather_begin(&w->gather, (uint32_t)tensor, error);
    fy_window_walk_begin(&walk, &m->job, (uint32_t)tensor, 0, &grain);
    while (status == FERRY_OK && fy_window_walk_next(&walk)) {
        status = fy_gather_check_stop(&w->gather, error);
        FY_THEN(status, fy_gather_read(&w->gather, &walk.window, w->window, error));
        if (status == FERRY_OK) {
            fy_tally_add(&m->tallies[tensor], kind, w->window, (size_t)walk.window.n_elements,
                         w->room);
            atomic_fetch_add(&m->done_bytes, walk.window.bytes);
        }
    }
    return status == FERRY_OK ? fy_gather_end(&w->gather, error) : status;
}

static bool tick(void *context)
{
    measurement *m = context;
    ferry_work_progress progress = {.phase = "measuring",
                                    .done_bytes = atomic_load(&m->done_bytes),
                                    .total_bytes = m->total_bytes,
                                    .seconds = fy_seconds_now() - m->began};
    if (m->options->progress == NULL || m->options->progress(m->options->context, &progress)) {
        return true;
    }
    atomic_store(&m->stops, true);
    return false;
}

static ferry_status make_worker(measurement *m, worker *w, ferry_error *error)
{
    /* Of the smallest type two elements are in a byte of a window. */
    w->window = fy_alloc(m->buffers.window_bytes, 1);
    w->room = fy_alloc(2 * m->buffers.window_bytes, sizeof *w->room);
    FY_TRY(fy_check_memory(w->window != NULL && w->room != NULL, "a buffer", error));
    ferry_status status =
        fy_gather_init(&w->gather, &m->job, m->files, &m->checked, m->buffers.span_bytes, error);
    w->gather.stops = &m->stops;
    return status;
}

static ferry_status prepare(measurement *m, ferry_error *error)
{
    fy_job_target whole = {.name = m->checkpoint->path, .subset = m->options->subset};
    m->tallies = fy_alloc_zeroed(m->checkpoint->n_tensors, sizeof *m->tallies);
    m->workers = fy_alloc_zeroed(m->buffers.n_threads, sizeof *m->workers);
    if (m->tallies == NULL || m->workers == NULL) {
        return fy_fail_no_memory(error, "the tensors of a checkpoint");
    }
    FY_TRY(fy_job_create(m->checkpoint, &whole, &m->job, error));
    for (size_t i = 0; i < m->checkpoint->n_tensors; i++) {
        m->total_bytes +=
            is_looked_at(m, i)
                ? fy_bytes(elements_of(m, i), m->checkpoint->tensors[i].dtype.element_bits)
                : 0;
    }
    FY_TRY(fy_files_of(m->checkpoint, &m->files, error));
    FY_TRY(fy_checked_create(m->checkpoint, &m->checked, error));
    for (uint32_t i = 0; i < m->buffers.n_threads; i++) {
        FY_TRY(make_worker(m, &m->workers[i], error));
    }
    return FERRY_OK;
}

static void clean_up(measurement *m)
{
    for (uint32_t i = 0; m->workers != NULL && i < m->buffers.n_threads; i++) {
        fy_gather_cleanup(&m->workers[i].gather);
        fy_free(m->workers[i].window);
        fy_free(m->workers[i].room);
    }
    fy_job_cleanup(&m->job);
    fy_files_destroy(m->files);
    fy_checked_cleanup(&m->checked);
    fy_free(m->workers);
    fy_free(m->tallies);
}

static void visit(const measurement *m)
{
    for (size_t i = 0; m->options->visitor != NULL && i < m->checkpoint->n_tensors; i++) {
        if (!m->job.is_wanted[i]) {
            continue;
        }
        const fy_tally *t = &m->tallies[i];
        ferry_tensor_statistics s = {.struct_size = sizeof s,
                                     .has_numbers = has_numbers(m, i),
                                     .n_elements = elements_of(m, i),
                                     .n_nan = t->n_nan,
                                     .n_infinite = t->n_infinite,
                                     .least = t->least,
                                     .most = t->most,
                                     .mean = fy_tally_mean(t)};
        m->options->visitor(m->options->context, i, &s);
    }
}

ferry_status ferry_checkpoint_measure(const ferry_checkpoint *checkpoint,
                                      const ferry_statistics_options *options, ferry_error *error)
{
    ferry_statistics_options own;
    FY_TRY(fy_take_statistics_options(options, &own, error));
    FY_TRY(fy_check_use(checkpoint != NULL, "ferry_checkpoint_measure needs a checkpoint", error));
    FY_TRY(fy_check_buffers(own.memory_cap_bytes, own.n_threads, error));
    measurement m = {.checkpoint = checkpoint, .options = &own, .began = fy_seconds_now()};
    m.buffers = fy_share_memory(own.memory_cap_bytes, own.n_threads);
    fy_widen_windows(&m.buffers, own.memory_cap_bytes, checkpoint);
    /* A window is widened to eight times its bytes at most. */
    m.buffers.window_bytes /= 4;
    ferry_status status = prepare(&m, error);
    if (status == FERRY_OK) {
        fy_crew_job job = {.n_workers = m.buffers.n_threads,
                           .n_parts = checkpoint->n_tensors,
                           .work = measure_part,
                           .tick = tick,
                           .context = &m};
        status = fy_crew_run(&job, error);
    }
    FY_THEN(status, fy_files_check_unchanged(m.files, error));
    if (status == FERRY_OK) {
        visit(&m);
    }
    clean_up(&m);
    return status;
}
