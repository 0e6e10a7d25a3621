/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry reshard --html: files, families of tensors and types, before and after. */
#include "reshard.h"

#include "html.h"
#include "inspect.h"
#include "json_text.h"
#include "steps.h"
#include "units.h"

#include <stdlib.h>
#include <string.h>

/* More bars than these are a table. */
enum { MOST_BARS = 64, MOST_TYPES = 32 };

static void put_tile(FILE *file, const char *before, const char *label, const char *value,
                     const char *note)
{
    fputs(before, file);
    write_json_text(file, label);
    fputs(",", file);
    write_json_text(file, value);
    fputs(",", file);
    write_json_text(file, note);
    fputs("]", file);
}

static void put_tiles(const reshard_report *report, FILE *file)
{
    const ferry_reshard_totals *t = &report->totals;
    char text[2][UNIT_TEXT_BYTES], note[128];
    snprintf(note, sizeof note, "%s tensor%s in %s file%s",
             format_count(report->source.n_tensors, text[0]), plural(report->source.n_tensors),
             format_count(report->source.n_files, text[1]), plural(report->source.n_files));
    put_tile(file, "[", "Source", format_bytes((double)report->source.file_bytes, text[0]), note);
    snprintf(note, sizeof note, "%s tensor%s in %s file%s", format_count(t->n_tensors, text[0]),
             plural(t->n_tensors), format_count(t->n_files, text[1]), plural(t->n_files));
    put_tile(file, ",[", "Result", format_bytes((double)t->file_bytes, text[0]), note);
    put_tile(file, ",[", "Made of", format_bytes((double)t->read_bytes, text[0]),
             "each byte of the source counted once");
    if (!report->request->dry_run) {
        const ferry_reshard_result *r = &report->result;
        double rate = r->seconds > 0 ? (double)r->written_bytes / r->seconds : 0;
        put_tile(file, ",[", "Took", format_seconds(r->seconds, text[0]),
                 format_rate(rate, text[1]));
    } else if (report->has_estimate) {
        put_tile(file, ",[", "Would take", format_seconds(report->estimate, text[0]),
                 "by a short try of the file system; nothing was written");
    }
}

/* ---- files ---- */

typedef ferry_status (*file_at_fn)(const void *of, size_t index, ferry_checkpoint_file *file_out,
                                   ferry_error *error);

static ferry_status source_file_at(const void *of, size_t index, ferry_checkpoint_file *file_out,
                                   ferry_error *error)
{
    return ferry_checkpoint_file_at(of, index, file_out, error);
}

static ferry_status result_file_at(const void *of, size_t index, ferry_checkpoint_file *file_out,
                                   ferry_error *error)
{
    return ferry_reshard_file_at(of, index, file_out, error);
}

static ferry_status put_files(FILE *file, const char *title, const void *of, file_at_fn at,
                              size_t n, bool is_sharded, ferry_error *error)
{
    static const html_column columns[] = {
        {"file", NULL}, {"rank", NULL}, {"tensors", ""}, {"bytes", "B"}};
    const char *text = is_sharded ? "One for each rank."
                       : n == 1   ? "The whole checkpoint."
                                  : "One checkpoint in parts.";
    if (n <= MOST_BARS) {
        html_begin_bars(file, title, text, "B");
    } else {
        html_begin_table(file, title, text, columns, sizeof columns / sizeof columns[0]);
    }
    for (size_t i = 0; i < n; i++) {
        ferry_checkpoint_file one = FERRY_CHECKPOINT_FILE_INIT;
        char rank[32] = "", note[96];
        FY_TRY(at(of, i, &one, error));
        if (is_sharded) {
            snprintf(rank, sizeof rank, "%u", one.rank);
        }
        if (n <= MOST_BARS) {
            snprintf(note, sizeof note, "%zu tensor%s%s%s", one.n_tensors, plural(one.n_tensors),
                     is_sharded ? ", rank " : "", rank);
            html_put_bar(file,
                         &(html_bar){.label = one.name, .value = (double)one.bytes, .note = note},
                         i == 0);
            continue;
        }
        fputs(i == 0 ? "[" : ",\n[", file);
        write_json_text(file, one.name);
        fprintf(file, ",\"%s\",%zu,%llu]", rank, one.n_tensors, (unsigned long long)one.bytes);
    }
    if (n <= MOST_BARS) {
        html_end_bars(file);
    } else {
        fputs("]}}", file);
    }
    return FERRY_OK;
}

/* ---- families and types ---- */

typedef struct type_bytes {
    const char *name; /* of a group */
    uint64_t bytes;
    uint64_t n_tensors;
} type_bytes;

static void put_types(FILE *file, const char *title, const inspect_groups *groups)
{
    type_bytes types[MOST_TYPES];
    size_t n = 0;
    for (size_t i = 0; i < groups->n_groups; i++) {
        size_t k = 0;
        while (k < n && strcmp(types[k].name, groups->groups[i].dtype) != 0) {
            k++;
        }
        if (k == n && n < MOST_TYPES) {
            types[n++] = (type_bytes){.name = groups->groups[i].dtype};
        }
        if (k < n) {
            types[k].bytes += groups->groups[i].bytes;
            types[k].n_tensors += groups->groups[i].n_tensors;
        }
    }
    html_begin_bars(file, title, "Each tensor is counted once, however often it is written.", "B");
    for (size_t i = 0; i < n; i++) {
        char note[64];
        snprintf(note, sizeof note, "%llu tensor%s", (unsigned long long)types[i].n_tensors,
                 plural(types[i].n_tensors));
        html_put_bar(
            file,
            &(html_bar){.label = types[i].name, .value = (double)types[i].bytes, .note = note},
            i == 0);
    }
    html_end_bars(file);
}

static void put_families(FILE *file, const char *title, const inspect_groups *groups)
{
    static const html_column columns[] = {{"tensors whose names differ in numbers", NULL},
                                          {"shape", NULL},
                                          {"type", NULL},
                                          {"how many", ""},
                                          {"bytes", "B"}};
    html_begin_table(file, title, NULL, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < groups->n_groups; i++) {
        const inspect_group *group = &groups->groups[i];
        fputs(i == 0 ? "[" : ",\n[", file);
        write_json_text(file, group->text);
        fputs(",", file);
        write_json_text(file, group->shape);
        fputs(",", file);
        write_json_text(file, group->dtype);
        fprintf(file, ",%llu,%llu]", (unsigned long long)group->n_tensors,
                (unsigned long long)group->bytes);
    }
    fputs("]}}", file);
}

/* Of a checkpoint: the source, or the result when it is there. */
static ferry_status put_tensors(FILE *file, const char *types, const char *families,
                                const ferry_checkpoint *checkpoint, const char *subset,
                                ferry_error *error)
{
    inspected it = {.checkpoint = checkpoint, .totals = FERRY_CHECKPOINT_TOTALS_INIT};
    inspect_request request = {.subset = subset};
    inspect_groups groups = {.n_groups = 0};
    ferry_status status = ferry_checkpoint_get_totals(checkpoint, &it.totals, error);
    FY_THEN(status, inspect_choose(&it, &request, error));
    FY_THEN(status, inspect_group_tensors(&it, &groups, error));
    if (status == FERRY_OK) {
        fputs(",\n", file);
        put_types(file, types, &groups);
        fputs(",\n", file);
        put_families(file, families, &groups);
    }
    inspect_groups_free(&groups);
    ferry_subset_destroy(it.subset);
    free(it.chosen);
    return status;
}

static ferry_status put_result(const reshard_report *report, FILE *file, ferry_error *error)
{
    ferry_checkpoint *result = NULL;
    ferry_status status = ferry_checkpoint_open(report->request->out, &result, error);
    FY_THEN(status, put_tensors(file, "Types after", "Families after", result, NULL, error));
    fputs(",\n", file);
    FY_THEN(status, reshard_put_where(file, report->checkpoint, result, error));
    ferry_checkpoint_destroy(result);
    return status;
}

/* ---- what becomes of tensors, and of other files ---- */

static ferry_status put_changes(const reshard_report *report, FILE *file, ferry_error *error)
{
    static const html_column columns[] = {
        {"tensor", NULL}, {"from", NULL}, {"to", NULL}, {"scales", NULL}, {"block", NULL}};
    size_t n = report->totals.n_quantized + report->totals.n_dequantized;
    fputs(",\n", file);
    html_begin_table(file, "Quantized and dequantized", NULL, columns,
                     sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < n; i++) {
        ferry_reshard_change change = FERRY_RESHARD_CHANGE_INIT;
        char types[2][FERRY_DTYPE_TEXT_BYTES];
        FY_TRY(ferry_reshard_change_at(report->reshard, i, &change, error));
        ferry_dtype_format(change.from, types[0], sizeof types[0]);
        ferry_dtype_format(change.to, types[1], sizeof types[1]);
        fputs(i == 0 ? "[" : ",\n[", file);
        write_json_text(file, change.tensor);
        fprintf(file, ",\"%s\",\"%s\",", types[0], types[1]);
        write_json_text(file, change.scales);
        fprintf(file, ",\"%llux%llu\"]", (unsigned long long)change.block[0],
                (unsigned long long)change.block[1]);
    }
    fputs("]}}", file);
    return FERRY_OK;
}

static ferry_status put_others(const reshard_report *report, FILE *file, ferry_error *error)
{
    static const html_column columns[] = {{"file", NULL}, {"bytes", "B"}, {"", NULL}};
    fputs(",\n", file);
    html_begin_table(file, "Other files of the folder", NULL, columns,
                     sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < report->totals.n_others; i++) {
        ferry_reshard_other other = FERRY_RESHARD_OTHER_INIT;
        FY_TRY(ferry_reshard_other_at(report->reshard, i, &other, error));
        fputs(i == 0 ? "[" : ",\n[", file);
        write_json_text(file, other.name);
        fprintf(file, ",%llu,", (unsigned long long)other.bytes);
        write_json_text(file, other.left_out == NULL ? "copied" : other.left_out);
        fputs("]", file);
    }
    fputs("]}}", file);
    return FERRY_OK;
}

static void put_notes(const reshard_report *report, FILE *file)
{
    const ferry_reshard_totals *t = &report->totals;
    const ferry_reshard_result *r = &report->result;
    char text[UNIT_TEXT_BYTES], note[256];
    const char *separator = "";
    if (t->n_replicated > 0) {
        snprintf(note, sizeof note,
                 "No built-in rule knows %zu tensor%s: every rank of the stage gets them whole.",
                 t->n_replicated, plural(t->n_replicated));
        write_json_text(file, note);
        separator = ",";
    }
    if (r->resumed_bytes > 0) {
        snprintf(note, sizeof note, "%s had been written by an earlier run.",
                 format_bytes((double)r->resumed_bytes, text));
        fputs(separator, file);
        write_json_text(file, note);
        separator = ",";
    }
    if (r->kept_bytes > 0) {
        snprintf(note, sizeof note, "%s were equal in the earlier result, and were not written.",
                 format_bytes((double)r->kept_bytes, text));
        fputs(separator, file);
        write_json_text(file, note);
    }
}

static ferry_status fill(const void *context, FILE *file, ferry_error *error)
{
    const reshard_report *report = context;
    const reshard_request *r = report->request;
    char title[512];
    snprintf(title, sizeof title, "ferry reshard: %.200s to %.200s", r->source, r->to);
    fputs("{\"format\":\"ferry.report/1\",\"version\":", file);
    write_json_text(file, ferry_version());
    fputs(",\"title\":", file);
    write_json_text(file, title);
    fputs(",\"subtitle\":", file);
    write_json_text(file, r->out);
    fputs(",\"tiles\":[", file);
    put_tiles(report, file);
    fputs("],\"notes\":[", file);
    put_notes(report, file);
    fputs("],\n\"sections\":[", file);
    ferry_status status = put_files(file, "Files before", report->checkpoint, source_file_at,
                                    report->source.n_files, report->source.is_sharded, error);
    fputs(",\n", file);
    FY_THEN(status, put_files(file, "Files after", report->reshard, result_file_at,
                              report->totals.n_files, report->totals.is_sharded, error));
    FY_THEN(status, put_tensors(file, "Types before", "Families before", report->checkpoint,
                                r->options.subset, error));
    if (status == FERRY_OK && !r->dry_run) {
        status = put_result(report, file, error);
    }
    if (status == FERRY_OK && report->totals.n_quantized + report->totals.n_dequantized > 0) {
        status = put_changes(report, file, error);
    }
    if (status == FERRY_OK && report->totals.n_others > 0) {
        status = put_others(report, file, error);
    }
    fputs("]}", file);
    return status;
}

ferry_status reshard_write_html(const reshard_report *report, ferry_error *error)
{
    return html_write_report(report->request->html, fill, report, error);
}
