/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_HTML_H
#define FERRY_TOOL_HTML_H

#include <ferry/ferry.h>

#include <stdbool.h>
#include <stdio.h>

/* Reports: one HTML page each. What a page shows beside a plan is JSON: docs/formats.md says how.
 */

/* Writes JSON to a file. */
typedef ferry_status (*html_fill_fn)(const void *context, FILE *file, ferry_error *error);

/* What fill writes, as a text that the caller frees. */
ferry_status html_compose(html_fill_fn fill, const void *context, char **text_out,
                          ferry_error *error);

/*
 * Replaces the file at path by the report of a plan. It is called after the name of the command and
 * the file that the plan is of. schedule and sections may be NULL.
 */
ferry_status html_write_plan(const char *path, const char *name, const char *of,
                             const ferry_plan *plan, const ferry_schedule *schedule,
                             const char *sections, ferry_error *error);

/* Replaces the file at path by the page of what fill writes: a ferry.report/1. */
ferry_status html_write_report(const char *path, html_fill_fn fill, const void *context,
                               ferry_error *error);

/* ---- parts of a report ---- */

/* {"title":..,"text":..,"chart":{"kind":"bars","unit":..,"bars":[ : then come bars. */
void html_begin_bars(FILE *file, const char *title, const char *text, const char *unit);
/* least and most are drawn where most is above 0; note and class may be NULL. */
typedef struct html_bar {
    const char *label;
    double value, least, most;
    const char *note;
    const char *look; /* "pale", "good" or NULL: plain */
} html_bar;
void html_put_bar(FILE *file, const html_bar *bar, bool is_first);
void html_end_bars(FILE *file);

/* {"title":..,"text":..,"table":{"columns":[..],"rows":[ : then come rows, and ]}} */
typedef struct html_column {
    const char *name;
    const char *unit; /* of numbers: "B", "s", "B/s", "" for plain ones; NULL: texts */
} html_column;
void html_begin_table(FILE *file, const char *title, const char *text, const html_column *columns,
                      size_t n_columns);

#endif
