/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_REPORT_H
#define FERRY_REPORT_H

#include <ferry/export.h>
#include <ferry/plan.h>
#include <ferry/schedule.h>
#include <ferry/status.h>
#include <ferry/writer.h>

#include <stddef.h>

FERRY_BEGIN_DECLS

/*
 * A report is one HTML page that holds all it shows: nothing is fetched when it is looked at, and
 * nothing of it leaves the machine. It draws with scripts of its own; what it draws is there as
 * tables, too. Names of tensors and other texts stand in it as data: none of them is markup.
 */

typedef struct ferry_report_options {
    size_t struct_size;
    const char *title;              /* what the page is called; NULL: "ferry plan" */
    const ferry_schedule *schedule; /* of the plan: rounds and predictions; NULL: there are none */
    /*
     * A JSON array of sections that come before the plan's own, as in ferry.report/1
     * (docs/formats.md): such as what a run measured. NULL: none.
     */
    const char *sections;
} ferry_report_options;

#define FERRY_REPORT_OPTIONS_INIT                                                                  \
    {                                                                                              \
        sizeof(ferry_report_options), NULL, NULL, NULL                                             \
    }

/*
 * Writes the page of a plan: who sends how much to whom, what each rank sends and receives, who
 * holds what of every tensor before and after, and with a schedule what travels when. Ranks are put
 * together where there are too many of them for a page of a few MB. options may be NULL.
 */
FERRY_API ferry_status ferry_plan_write_html(const ferry_plan *plan,
                                             const ferry_report_options *options,
                                             ferry_write_fn write, void *context,
                                             ferry_error *error);

/* Writes the page of a ferry.report/1, a JSON text of length bytes: sections of any kind. */
FERRY_API ferry_status ferry_report_write_html(const char *json, size_t length,
                                               ferry_write_fn write, void *context,
                                               ferry_error *error);

FERRY_END_DECLS

#endif
