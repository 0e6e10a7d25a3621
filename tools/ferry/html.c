/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "html.h"

#include "json_text.h"
#include "output.h"
#include "plan.h"
#include "steps.h"

#include <ferry/report.h>

#include <stdlib.h>
#include <string.h>

ferry_status html_compose(html_fill_fn fill, const void *context, char **text_out,
                          ferry_error *error)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    ferry_status status = file == NULL ? FERRY_ERR_NO_MEMORY : fill(context, file, error);
    bool failed = file == NULL || ferror(file) != 0;
    if (file != NULL && fclose(file) != 0) {
        failed = true;
    }
    if (failed) {
        snprintf(error->message, sizeof error->message, "no memory for a report");
        status = FERRY_ERR_NO_MEMORY;
    }
    if (status != FERRY_OK) {
        free(text);
        return status;
    }
    *text_out = text;
    return FERRY_OK;
}

typedef struct plan_page {
    const ferry_plan *plan;
    ferry_report_options options;
} plan_page;

static ferry_status fill_plan(const void *context, FILE *file, ferry_error *error)
{
    const plan_page *p = context;
    return ferry_plan_write_html(p->plan, &p->options, write_stream, file, error);
}

ferry_status html_write_plan(const char *path, const char *name, const char *of,
                             const ferry_plan *plan, const ferry_schedule *schedule,
                             const char *sections, ferry_error *error)
{
    const char *slash = strrchr(of, '/');
    char title[512];
    plan_page page = {.plan = plan, .options = FERRY_REPORT_OPTIONS_INIT};
    snprintf(title, sizeof title, "%s: %.400s", name, slash == NULL ? of : slash + 1);
    page.options.title = title;
    page.options.schedule = schedule;
    page.options.sections = sections;
    return replace_file(path, fill_plan, &page, error);
}

typedef struct json_page {
    const char *json;
} json_page;

static ferry_status fill_page(const void *context, FILE *file, ferry_error *error)
{
    const json_page *p = context;
    return ferry_report_write_html(p->json, strlen(p->json), write_stream, file, error);
}

ferry_status html_write_report(const char *path, html_fill_fn fill, const void *context,
                               ferry_error *error)
{
    char *json = NULL;
    FY_TRY(html_compose(fill, context, &json, error));
    json_page page = {.json = json};
    ferry_status status = replace_file(path, fill_page, &page, error);
    free(json);
    return status;
}

/* ---- parts ---- */

static void put_text(FILE *file, const char *before, const char *text)
{
    fputs(before, file);
    write_json_text(file, text);
}

void html_begin_bars(FILE *file, const char *title, const char *text, const char *unit)
{
    put_text(file, "{\"title\":", title);
    put_text(file, ",\"text\":", text);
    put_text(file, ",\"chart\":{\"kind\":\"bars\",\"unit\":", unit);
    fputs(",\"bars\":[", file);
}

void html_put_bar(FILE *file, const html_bar *bar, bool is_first)
{
    put_text(file, is_first ? "{\"label\":" : ",\n{\"label\":", bar->label);
    fprintf(file, ",\"value\":%.9g", bar->value);
    if (bar->most > 0) {
        fprintf(file, ",\"least\":%.9g,\"most\":%.9g", bar->least, bar->most);
    }
    if (bar->note != NULL) {
        put_text(file, ",\"note\":", bar->note);
    }
    if (bar->look != NULL) {
        put_text(file, ",\"class\":", bar->look);
    }
    fputs("}", file);
}

void html_end_bars(FILE *file)
{
    fputs("]}}", file);
}

void html_begin_table(FILE *file, const char *title, const char *text, const html_column *columns,
                      size_t n_columns)
{
    put_text(file, "{\"title\":", title);
    put_text(file, ",\"text\":", text);
    fputs(",\"table\":{\"columns\":[", file);
    for (size_t i = 0; i < n_columns; i++) {
        put_text(file, i == 0 ? "{\"name\":" : ",{\"name\":", columns[i].name);
        if (columns[i].unit != NULL) {
            put_text(file, ",\"number\":true,\"unit\":", columns[i].unit);
        }
        fputs("}", file);
    }
    fputs("],\"rows\":[", file);
}
