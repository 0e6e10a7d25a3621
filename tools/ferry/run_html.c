/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry run --html: what was measured, beside what is predicted, and the plan's own report. */
#include "run.h"

#include "html.h"
#include "json_text.h"
#include "steps.h"
#include "units.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct measured {
    const run_request *request;
    const run_results *results;
    const run_summary *summary;
    ferry_schedule_report report;
} measured;

/* Where the spec has no cluster, only this machine's memory says how fast it could go. */
static void put_times(const measured *m, FILE *file)
{
    const run_summary *s = m->summary;
    char note[128], text[2][UNIT_TEXT_BYTES];
    bool has_seconds = m->report.has_seconds && m->report.n_batches > 0;
    html_begin_bars(
        file, "Predicted and measured",
        has_seconds ? "The prediction is for the cluster of the spec; what was measured is this "
                      "run, wherever its ranks are. A line goes from the fastest to the "
                      "slowest run."
                    : "The spec has no cluster, so nothing is predicted in seconds. A line "
                      "goes from the fastest to the slowest run.",
        "s");
    snprintf(note, sizeof note, "%s, median of %u run%s", format_rate(s->bytes_per_s, text[0]),
             m->request->iterations, plural(m->request->iterations));
    html_bar bar = {"measured", s->median, s->least, s->most, note, NULL};
    html_put_bar(file, &bar, true);
    if (has_seconds) {
        html_bar predicted = {.label = "predicted for the spec's cluster", .look = "pale"};
        predicted.value = m->report.makespan;
        html_put_bar(file, &predicted, false);
        html_bar bound = {.label = "bound of the spec's cluster", .look = "pale"};
        bound.value = m->summary->bound.seconds;
        html_put_bar(file, &bound, false);
    }
    if (s->copy_bytes_per_s > 0) {
        html_bar limit = {.label = "copying as much in memory, all CPUs", .look = "good"};
        snprintf(note, sizeof note, "%s", format_rate(s->copy_bytes_per_s, text[1]));
        limit.value = (double)s->bytes / s->copy_bytes_per_s;
        limit.note = note;
        html_put_bar(file, &limit, false);
    }
    html_end_bars(file);
}

static void put_phases(const measured *m, FILE *file)
{
    html_begin_bars(file, "Where the time goes",
                    "Phases of the median run: the median over ranks, and a line from the least to "
                    "the most. Wire is time in the transport's calls, check the reading of "
                    "destinations.",
                    "s");
    for (uint32_t i = 0; i < RUN_PHASES; i++) {
        const run_phase *p = &m->summary->phases[i];
        char note[64];
        snprintf(note, sizeof note, "most on rank %u", p->slowest);
        html_bar bar = {run_phase_name(i),         p->median, p->least, p->most,
                        p->most > 0 ? note : NULL, NULL};
        html_put_bar(file, &bar, i == 0);
    }
    html_end_bars(file);
}

static void put_ranks(const measured *m, FILE *file)
{
    static const html_column columns[] = {{"rank", ""},          {"node", ""},  {"whole", "s"},
                                          {"wait", "s"},         {"wire", "s"}, {"received", "B"},
                                          {"through slots", "B"}};
    const run_results *all = m->results;
    html_begin_table(file, "Ranks of the median run", "The slowest rank is what a run takes.",
                     columns, sizeof columns / sizeof columns[0]);
    for (uint32_t rank = 0; rank < all->n_ranks; rank++) {
        const run_sample *sample =
            &all->samples[(size_t)rank * all->n_runs + m->summary->median_run];
        fprintf(file, "%s[%u,%u,%.9g,%.9g,%.9g,%llu,%llu]", rank == 0 ? "" : ",\n", rank,
                all->ranks[rank].node, run_phase_seconds(sample, RUN_WHOLE),
                run_phase_seconds(sample, RUN_WAIT), run_phase_seconds(sample, RUN_WIRE),
                (unsigned long long)sample->statistics.bytes_received,
                (unsigned long long)sample->statistics.bytes_staged);
    }
    fputs("]}}", file);
}

static void put_links(const measured *m, FILE *file)
{
    static const html_column columns[] = {
        {"from", ""}, {"to", ""}, {"bytes", "B"}, {"paths", NULL}, {"engine", NULL}};
    const run_results *all = m->results;
    const char *separator = "";
    html_begin_table(file, "Links", "By which way bytes went from rank to rank.", columns,
                     sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < all->n_peers; i++) {
        const run_peer *p = &all->peers[i];
        const char *comma = "";
        if (p->bytes_out == 0) {
            continue;
        }
        fprintf(file, "%s[%u,%u,%llu,\"", separator, p->rank, p->peer,
                (unsigned long long)p->bytes_out);
        for (uint32_t flag = 1; flag & FERRY_PATH_ALL; flag <<= 1) {
            if (p->paths & flag) {
                fprintf(file, "%s%s", comma, ferry_service_path_name(flag));
                comma = ", ";
            }
        }
        fputs("\",", file);
        write_json_text(file, p->engine);
        fputs("]", file);
        separator = ",\n";
    }
    fputs("]}}", file);
}

static ferry_status fill_sections(const void *context, FILE *file, ferry_error *error)
{
    const measured *m = context;
    (void)error;
    fputs("[", file);
    put_times(m, file);
    fputs(",\n", file);
    put_phases(m, file);
    fputs(",\n", file);
    put_ranks(m, file);
    fputs(",\n", file);
    put_links(m, file);
    fputs("]", file);
    return FERRY_OK;
}

ferry_status run_write_html(const run_request *request, const ferry_plan *plan,
                            const run_results *results, const run_summary *summary,
                            ferry_error *error)
{
    measured m = {.request = request,
                  .results = results,
                  .summary = summary,
                  .report = FERRY_SCHEDULE_REPORT_INIT};
    ferry_schedule_options options = FERRY_SCHEDULE_OPTIONS_INIT;
    ferry_schedule *schedule = NULL;
    char *sections = NULL;
    options.slot_bytes = request->service.slot_bytes;
    options.no_relays = request->service.no_relays;
    ferry_status status = ferry_schedule_create_for_plan(plan, &options, &schedule, error);
    FY_THEN(status, ferry_schedule_get_report(schedule, &m.report, error));
    FY_THEN(status, html_compose(fill_sections, &m, &sections, error));
    FY_THEN(status, html_write_plan(request->html, "ferry run", request->path, plan, schedule,
                                    sections, error));
    free(sections);
    ferry_schedule_destroy(schedule);
    return status;
}
