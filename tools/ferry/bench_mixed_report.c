/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What `ferry bench mixed` prints, for people and for machines. */
#include "bench_mixed.h"

#include "bench.h"
#include "json_text.h"
#include "machine_text.h"

#include <stdio.h>

void mixed_report_begin(const mixed_report *report)
{
    const ferry_mixed_comm_info *info = &report->rank->info;
    if (!report->request->json) {
        printf("ferry %s, ", ferry_version());
        mixed_print_handle(info);
        return;
    }
    printf("{\"format\":\"ferry.bench/1\",\"name\":\"mixed\",\"version\":");
    print_json_text(ferry_version());
    printf(",\"ranks\":%u,\"nodes\":%u,", info->world_size, info->inter_size);
    mixed_print_handle_json(info);
    printf(",\"multicast\":%s,\"tuned\":%s,\"machine\":", info->multicast ? "true" : "false",
           info->tuned ? "true" : "false");
    print_machine_json(&report->machine);
    printf(",\"results\":[");
}

static void print_head(const mixed_report *report)
{
    bool counts = report->request->counts;
    printf("\n%9s %10s  %-25s %-22s %10s %8s %8s", "size", "count", "op", "mode", "time", "algbw",
           "busbw");
    if (counts) {
        printf(" %12s %12s %12s %6s", "written", "read", "between", "waits");
    }
    printf(" %8s\n%9s %10s  %-25s %-22s %10s %8s %8s", "wrong", "", "(elements)", "", "", "(us)",
           "(GB/s)", "(GB/s)");
    if (counts) {
        printf(" %12s %12s %12s %6s", "(bytes)", "(bytes)", "(bytes)", "");
    }
    putchar('\n');
}

static void print_line(const mixed_report *report, const mixed_line *line)
{
    char size[32], wrong[32] = "-";
    bench_size_text(line->bytes, size);
    printf("%9s %10llu  %-25s %-22s %10.2f %8.3f %8.3f", size, (unsigned long long)line->count,
           ferry_mixed_op_name(line->op), ferry_mixed_mode_name(line->mode), line->seconds * 1e6,
           line->rate / 1e9, line->bus_rate / 1e9);
    if (report->request->counts) {
        printf(" %12llu %12llu %12llu %6llu", (unsigned long long)line->work.written,
               (unsigned long long)line->work.read, (unsigned long long)line->work.between,
               (unsigned long long)line->work.waits);
    }
    if (report->request->check) {
        snprintf(wrong, sizeof wrong, "%llu%s", (unsigned long long)line->n_wrong,
                 line->n_differ > 0 ? " (!)" : "");
    }
    printf(" %8s\n", wrong);
}

static void print_line_json(const mixed_report *report, const mixed_line *line)
{
    printf("%s\n{\"op\":\"%s\",\"mode\":\"%s\",\"bytes\":%llu,\"count\":%llu,\"calls\":%llu,"
           "\"median_us\":%.4f,\"least_us\":%.4f,\"p99_us\":%.4f,\"gbytes_per_s\":%.6f,"
           "\"bus_gbytes_per_s\":%.6f",
           report->any ? "," : "", ferry_mixed_op_name(line->op), ferry_mixed_mode_name(line->mode),
           (unsigned long long)line->bytes, (unsigned long long)line->count,
           (unsigned long long)line->n_calls, line->seconds * 1e6, line->least * 1e6,
           line->slow * 1e6, line->rate / 1e9, line->bus_rate / 1e9);
    if (report->request->counts) {
        printf(",\"inside_bytes_written\":%llu,\"inside_bytes_read\":%llu,\"between_bytes\":%llu,"
               "\"waits\":%llu",
               (unsigned long long)line->work.written, (unsigned long long)line->work.read,
               (unsigned long long)line->work.between, (unsigned long long)line->work.waits);
    }
    if (report->request->check) {
        printf(",\"wrong\":%llu,\"differing_ranks\":%u}", (unsigned long long)line->n_wrong,
               line->n_differ);
    } else {
        printf(",\"wrong\":null,\"differing_ranks\":null}");
    }
}

void mixed_report_line(mixed_report *report, const mixed_line *line)
{
    if (report->request->json) {
        print_line_json(report, line);
    } else {
        if (!report->any || report->op != line->op) {
            print_head(report);
        }
        print_line(report, line);
        fflush(stdout);
    }
    report->any = true;
    report->op  = line->op;
}

void mixed_report_end(const mixed_report *report)
{
    if (report->request->json) {
        printf("\n]}\n");
    }
}
