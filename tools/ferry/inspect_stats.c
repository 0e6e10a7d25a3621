/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* `ferry inspect --stats`: what the elements of tensors are. */
#include "inspect.h"

#include "checkpoint_text.h"
#include "name_text.h"
#include "steps.h"
#include "units.h"
#include "work_progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct stats_work {
    work_watch watch;
    ferry_tensor_statistics *stats;
} stats_work;

static bool show_progress(void *context, const ferry_work_progress *progress)
{
    stats_work *work = context;
    return work_watch_show(&work->watch, progress);
}

static void keep(void *context, size_t tensor, const ferry_tensor_statistics *statistics)
{
    stats_work *work = context;
    work->stats[tensor] = *statistics;
}

ferry_status inspect_measure(const ferry_checkpoint *checkpoint, const inspect_request *request,
                             size_t n_tensors, ferry_tensor_statistics **stats_out,
                             ferry_error *error)
{
    stats_work work = {.stats = calloc(n_tensors + 1, sizeof *work.stats)};
    ferry_statistics_options options = FERRY_STATISTICS_OPTIONS_INIT;
    if (work.stats == NULL) {
        return inspect_no_memory(error);
    }
    options.memory_cap_bytes = request->memory_cap;
    options.n_threads = request->n_threads;
    options.subset = request->subset;
    options.progress = show_progress;
    options.visitor = keep;
    options.context = &work;
    work_watch_begin(&work.watch, "inspect");
    ferry_status status = ferry_checkpoint_measure(checkpoint, &options, error);
    work_watch_end(&work.watch);
    if (status == FERRY_ERR_STOPPED) {
        work_watch_die();
    }
    if (status == FERRY_OK) {
        *stats_out = work.stats;
    } else {
        free(work.stats);
    }
    return status;
}

/* ---- for people ---- */

static uint64_t count_finite(const ferry_tensor_statistics *s)
{
    return s->n_elements - s->n_nan - s->n_infinite;
}

static void print_number(bool is_known, double value)
{
    char text[UNIT_TEXT_BYTES] = "-";
    if (is_known) {
        snprintf(text, sizeof text, "%.5g", value);
    }
    printf("  %11s", text);
}

static void print_row(const inspect_tensor *tensor, const ferry_tensor_statistics *s,
                      const inspect_widths *widths)
{
    char shape[SHAPE_TEXT_BYTES], text[UNIT_TEXT_BYTES];
    bool is_known = s->has_numbers && count_finite(s) > 0;
    printf("  %-*s  %-*s", widths->dtype, tensor->dtype, widths->shape,
           format_shape(tensor->shape, tensor->n_dims, shape));
    print_number(is_known, s->least);
    print_number(is_known, s->most);
    print_number(is_known, s->mean);
    printf("  %10s", s->has_numbers ? format_count(s->n_nan, text) : "-");
    printf("  %10s  ", s->has_numbers ? format_count(s->n_infinite, text) : "-");
    print_name(stdout, tensor->name);
    putchar('\n');
}

ferry_status inspect_print_stats(const inspected *it, const inspect_widths *widths,
                                 ferry_error *error)
{
    printf("\nTensors:\n  %-*s  %-*s  %11s  %11s  %11s  %10s  %10s  name\n", widths->dtype, "dtype",
           widths->shape, "shape", "least", "most", "mean", "NaN", "infinite");
    for (size_t i = 0; i < it->n_chosen; i++) {
        inspect_tensor tensor;
        FY_TRY(inspect_tensor_at(it, i, &tensor, error));
        print_row(&tensor, &it->stats[it->chosen[i]], widths);
    }
    return FERRY_OK;
}

/* ---- for machines ---- */

/* JSON has no word for what is not finite. */
static void print_json_number(const char *before, bool is_known, double value)
{
    if (is_known && isfinite(value)) {
        printf("%s%.17g", before, value);
    } else {
        printf("%snull", before);
    }
}

void inspect_print_stats_json(const ferry_tensor_statistics *s)
{
    if (!s->has_numbers) {
        printf(",\"stats\":null");
        return;
    }
    printf(",\"stats\":{\"elements\":%" PRIu64 ",\"nan\":%" PRIu64 ",\"infinite\":%" PRIu64,
           s->n_elements, s->n_nan, s->n_infinite);
    bool is_known = count_finite(s) > 0;
    print_json_number(",\"least\":", is_known, s->least);
    print_json_number(",\"most\":", is_known, s->most);
    print_json_number(",\"mean\":", is_known, s->mean);
    printf("}");
}
