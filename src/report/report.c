/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The page: page.html with a ferry.report/1 in its place. A '<' of JSON can only stand in a string,
 * where \u003c is the same, so no text of a report ends the element that it stands in.
 */
#include "report/parts.h"

#include "base/alloc.h"
#include "base/json.h"
#include "base/options.h"
#include "plan/core.h"
#include "report/page.h"
#include "schedule/schedule.h"

#include <ferry/report.h>

#include <string.h>

typedef struct page_writer {
    ferry_write_fn put;
    void *context;
} page_writer;

static int write_escaped(void *context, const char *bytes, size_t n_bytes)
{
    static const char escaped[] = "\\u003c";
    const page_writer *p = context;
    for (const char *end = bytes + n_bytes; bytes < end;) {
        const char *mark = memchr(bytes, '<', (size_t)(end - bytes));
        size_t plain = (size_t)((mark == NULL ? end : mark) - bytes);
        if (plain > 0 && p->put(p->context, bytes, plain) != 0) {
            return -1;
        }
        if (mark != NULL && p->put(p->context, escaped, sizeof escaped - 1) != 0) {
            return -1;
        }
        bytes += plain + (mark != NULL);
    }
    return 0;
}

static ferry_status write_raw(const page_writer *p, const char *bytes, size_t n_bytes,
                              ferry_error *error)
{
    return p->put(p->context, bytes, n_bytes) == 0
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_IO, "the output could not be written");
}

/* Writes the members of a report. */
typedef ferry_status (*fill_fn)(const void *context, fy_writer *writer, ferry_error *error);

static ferry_status write_page(page_writer *p, fill_fn fill, const void *context,
                               ferry_error *error)
{
    static const char mark[] = "@REPORT@";
    const char *hole = strstr(fy_report_page, mark), *behind = hole + sizeof mark - 1;
    fy_writer *w = fy_alloc(1, sizeof *w);
    FY_TRY(fy_check_memory(w != NULL, "an output buffer", error));
    fy_writer_init(w, write_escaped, p);
    ferry_status status = write_raw(p, fy_report_page, (size_t)(hole - fy_report_page), error);
    FY_THEN(status, fill(context, w, error));
    if (status == FERRY_OK || w->failed) {
        status = fy_writer_finish(w, error);
    }
    FY_THEN(status, write_raw(p, behind, strlen(behind), error));
    fy_free(w);
    return status;
}

typedef struct plan_report {
    const ferry_plan *plan;
    ferry_report_options options;
} plan_report;

static ferry_status fill_plan(const void *context, fy_writer *w, ferry_error *error)
{
    const plan_report *r = context;
    const char *title = r->options.title == NULL ? "ferry plan" : r->options.title;
    fy_write_text(w, "{\"format\":\"ferry.report/1\",\"version\":");
    fy_write_string(w, ferry_version());
    fy_write_text(w, ",\"title\":");
    fy_write_string(w, title);
    fy_write_text(w, ",\"sections\":");
    fy_write_text(w, r->options.sections == NULL ? "[]" : r->options.sections);
    fy_write_text(w, ",\n\"plan\":{");
    ferry_status status = fy_report_write_totals(r->plan, w, error);
    FY_THEN(status, fy_report_write_flows(r->plan, w, error));
    FY_THEN(status, fy_report_write_layouts(r->plan, w, error));
    if (status == FERRY_OK && r->options.schedule != NULL) {
        status = fy_report_write_rounds(r->options.schedule, r->plan->problem.n_ranks, w, error);
    }
    fy_write_text(w, "}}");
    return status;
}

static ferry_status check_json(const char *json, size_t length, bool is_report, ferry_error *error)
{
    json_t *parsed = NULL;
    FY_TRY(fy_json_parse(json, length, is_report ? "a report" : "sections of a report", &parsed,
                         error));
    const char *format = json_string_value(json_object_get(parsed, "format"));
    bool right =
        is_report ? format != NULL && strcmp(format, "ferry.report/1") == 0 : json_is_array(parsed);
    json_decref(parsed);
    return right ? FERRY_OK
                 : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           is_report ? "a report is a JSON object whose \"format\" is "
                                       "\"ferry.report/1\""
                                     : "sections of a report are a JSON array");
}

ferry_status ferry_plan_write_html(const ferry_plan *plan, const ferry_report_options *options,
                                   ferry_write_fn write, void *context, ferry_error *error)
{
    FY_TRY(fy_check_use(plan != NULL && write != NULL,
                        "ferry_plan_write_html needs a plan and a writer", error));
    plan_report report = {.plan = plan};
    page_writer page = {write, context};
    FY_TRY(fy_take_report_options(options, &report.options, error));
    if (report.options.schedule != NULL) {
        const ferry_schedule *schedule = report.options.schedule;
        FY_TRY(fy_schedule_check_plan(schedule, ferry_plan_rank_count(plan), error));
        FY_TRY(fy_schedule_check_whole(schedule, "ferry_plan_write_html", error));
    }
    if (report.options.sections != NULL) {
        FY_TRY(check_json(report.options.sections, strlen(report.options.sections), false, error));
    }
    return write_page(&page, fill_plan, &report, error);
}

typedef struct json_text {
    const char *text;
    size_t length;
} json_text;

static ferry_status fill_json(const void *context, fy_writer *w, ferry_error *error)
{
    const json_text *json = context;
    (void)error;
    fy_write_bytes(w, json->text, json->length);
    return FERRY_OK;
}

ferry_status ferry_report_write_html(const char *json, size_t length, ferry_write_fn write,
                                     void *context, ferry_error *error)
{
    FY_TRY(fy_check_use(json != NULL && write != NULL,
                        "ferry_report_write_html needs a JSON text and a writer", error));
    page_writer page = {write, context};
    json_text text = {json, length};
    FY_TRY(check_json(json, length, true, error));
    return write_page(&page, fill_json, &text, error);
}
