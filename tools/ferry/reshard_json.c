/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry.reshard/1, on stdout. */
#include "reshard.h"

#include "json_text.h"
#include "steps.h"

#include <ferry/ferry.h>

#include <stdio.h>

static void print_u64(const char *before, uint64_t value)
{
    printf("%s%llu", before, (unsigned long long)value);
}

static void print_text(const char *before, const char *text)
{
    printf("%s", before);
    print_json_text(text);
}

static void print_options(const reshard_request *r)
{
    print_text(",\n\"options\":{\"to\":", r->to);
    print_text(",\"subset\":", r->options.subset);
    print_text(",\"cast\":", r->cast);
    print_text(",\"quantize\":", r->options.quantize);
    print_text(",\"dequantize\":", r->options.dequantize);
    print_text(",\"onto\":", r->onto);
    print_u64(",\"memory_cap\":", reshard_memory_cap(r));
    printf(",\"dry_run\":%s,\"resume\":%s}", r->dry_run ? "true" : "false",
           r->restart || r->onto != NULL ? "false" : "true");
}

static void print_side(const char *before, const char *path, bool is_sharded, size_t n_tensors,
                       size_t n_files, uint64_t bytes)
{
    print_text(before, path);
    printf(",\"kind\":\"%s\",\"tensors\":%zu,\"files\":%zu", is_sharded ? "sharded" : "logical",
           n_tensors, n_files);
    print_u64(",\"bytes\":", bytes);
    printf("}");
}

static ferry_status print_files(const reshard_report *report, ferry_error *error)
{
    printf(",\n\"files\":[");
    for (size_t i = 0; i < report->totals.n_files; i++) {
        ferry_checkpoint_file file = FERRY_CHECKPOINT_FILE_INIT;
        FY_TRY(ferry_reshard_file_at(report->reshard, i, &file, error));
        print_text(i == 0 ? "\n {\"name\":" : ",\n {\"name\":", file.name);
        if (report->totals.is_sharded) {
            printf(",\"rank\":%u", file.rank);
        } else {
            printf(",\"rank\":null");
        }
        printf(",\"tensors\":%zu", file.n_tensors);
        print_u64(",\"bytes\":", file.bytes);
        printf("}");
    }
    printf("]");
    return FERRY_OK;
}

static void print_result(const ferry_reshard_result *r)
{
    print_text(",\n\"anew\":", r->anew);
    print_u64(",\n\"written_bytes\":", r->written_bytes);
    print_u64(",\"resumed_bytes\":", r->resumed_bytes);
    print_u64(",\"kept_bytes\":", r->kept_bytes);
    print_u64(",\"kept_files\":", r->n_kept_files);
    print_u64(",\"checked\":", r->n_checked);
    printf(",\"seconds\":%.9g,\"copy_seconds\":%.9g", r->seconds, r->copy_seconds);
    if (r->seconds > 0) {
        printf(",\"gbytes_per_s\":%.6f",
               (double)(r->written_bytes - r->resumed_bytes - r->kept_bytes) / r->seconds / 1e9);
    } else {
        printf(",\"gbytes_per_s\":null");
    }
}

static ferry_status print_others(const reshard_report *report, ferry_error *error)
{
    printf(",\n\"others\":[");
    for (size_t i = 0; i < report->totals.n_others; i++) {
        ferry_reshard_other other = FERRY_RESHARD_OTHER_INIT;
        FY_TRY(ferry_reshard_other_at(report->reshard, i, &other, error));
        print_text(i == 0 ? "\n {\"name\":" : ",\n {\"name\":", other.name);
        print_u64(",\"bytes\":", other.bytes);
        print_text(",\"left_out\":", other.left_out);
        print_text(",\"torch_dtype\":", other.torch_dtype);
        print_text(",\"quantization_config\":", other.quantization_config);
        printf("}");
    }
    printf("]");
    return FERRY_OK;
}

static void print_type(const char *before, ferry_dtype dtype)
{
    char text[FERRY_DTYPE_TEXT_BYTES];
    ferry_dtype_format(dtype, text, sizeof text);
    print_text(before, text);
}

/* A reshard either quantizes or dequantizes: the other list is empty. */
static ferry_status print_changes(const reshard_report *report, const char *key, size_t n,
                                  ferry_error *error)
{
    printf(",\n\"%s\":[", key);
    for (size_t i = 0; i < n; i++) {
        ferry_reshard_change change = FERRY_RESHARD_CHANGE_INIT;
        FY_TRY(ferry_reshard_change_at(report->reshard, i, &change, error));
        print_text(i == 0 ? "\n {\"name\":" : ",\n {\"name\":", change.tensor);
        print_type(",\"from\":", change.from);
        print_type(",\"to\":", change.to);
        print_text(",\"scales\":", change.scales);
        printf(",\"block\":[%llu,%llu]}", (unsigned long long)change.block[0],
               (unsigned long long)change.block[1]);
    }
    printf("]");
    return FERRY_OK;
}

static void print_replicated(const reshard_report *report)
{
    printf(",\n\"replicated\":[");
    for (size_t i = 0; i < report->totals.n_replicated; i++) {
        print_text(i == 0 ? "" : ",", ferry_reshard_replicated_at(report->reshard, i));
    }
    printf("]");
}

static void print_left_out(const reshard_report *report)
{
    printf(",\n\"left_out\":[");
    for (size_t i = 0; i < report->totals.n_left_out; i++) {
        const char *why, *name = ferry_reshard_left_out_at(report->reshard, i, &why);
        print_text(i == 0 ? "\n {\"name\":" : ",\n {\"name\":", name);
        print_text(",\"why\":", why);
        printf("}");
    }
    printf("]");
}

ferry_status reshard_print_json(const reshard_report *report, ferry_error *error)
{
    const ferry_checkpoint_totals *from = &report->source;
    const ferry_reshard_totals *to = &report->totals;
    ferry_status status = FERRY_OK;
    print_text("{\"format\":\"ferry.reshard/1\",\"version\":", ferry_version());
    print_side(",\n\"source\":{\"path\":", report->request->source, from->is_sharded,
               from->n_tensors, from->n_files, from->file_bytes);
    print_side(",\n\"destination\":{\"path\":", report->request->out, to->is_sharded, to->n_tensors,
               to->n_files, to->file_bytes);
    print_options(report->request);
    print_u64(",\n\"read_bytes\":", to->read_bytes);
    if (!report->request->dry_run) {
        print_result(&report->result);
    } else if (report->has_estimate) {
        printf(",\n\"estimate_s\":%.9g", report->estimate);
    } else {
        printf(",\n\"estimate_s\":null");
    }
    status = print_files(report, error);
    FY_THEN(status, print_others(report, error));
    FY_THEN(status, print_changes(report, "quantized", to->n_quantized, error));
    FY_THEN(status, print_changes(report, "dequantized", to->n_dequantized, error));
    print_replicated(report);
    print_left_out(report);
    printf("}\n");
    return status;
}
