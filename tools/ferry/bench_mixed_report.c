/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ferry bench mixed` prints: for people the columns of nccl-tests, in which all but the
 * figures stands behind a '#'; for machines ferry.bench/1.
 */
#include "bench_mixed_device.h"
#include "bench_mixed_line.h"
#include "bench_mixed_predict.h"

#include "bench.h"
#include "json_text.h"
#include "machine_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- what is measured ---- */

static void print_request(const mixed_request *r)
{
    char text[2][32];
    printf("# pieces of %s to %s, ", bench_size_text(r->least, text[0]),
           bench_size_text(r->most, text[1]));
    if (r->step_bytes != 0) {
        printf("in steps of %s", bench_size_text(r->step_bytes, text[0]));
    } else {
        printf("each %u times the one before", r->step_factor);
    }
    printf("; %u call%s to warm up, ", r->n_warmup, r->n_warmup == 1 ? "" : "s");
    if (r->n_iterations != 0) {
        printf("%u timed", r->n_iterations);
    } else {
        printf("as many timed as fit into %g s", r->seconds);
    }
    printf("; results %s\n", r->check ? "checked" : "not checked (--check)");
}

static void print_request_json(const mixed_request *r)
{
    printf(",\"min_bytes\":%llu,\"max_bytes\":%llu", (unsigned long long)r->least,
           (unsigned long long)r->most);
    if (r->step_bytes != 0) {
        printf(",\"step_bytes\":%llu,\"step_factor\":null", (unsigned long long)r->step_bytes);
    } else {
        printf(",\"step_bytes\":null,\"step_factor\":%u", r->step_factor);
    }
    printf(",\"warmup\":%u,\"iterations\":", r->n_warmup);
    if (r->n_iterations != 0) {
        printf("%u", r->n_iterations);
    } else {
        printf("null");
    }
}

void mixed_report_begin(const mixed_report *report)
{
    const ferry_mixed_comm_info *info = &report->rank->info;
    if (!report->request->json) {
        printf("# ferry %s, bench mixed\n", ferry_version());
        mixed_print_handle(info, "# ");
        if (report->devices != NULL) {
            mixed_devices_print(report);
        }
        print_request(report->request);
        return;
    }
    printf("{\"format\":\"ferry.bench/1\",\"name\":\"mixed\",\"version\":");
    print_json_text(ferry_version());
    printf(",\"ranks\":%u,\"nodes\":%u,", info->world_size, info->inter_size);
    mixed_print_handle_json(info);
    printf(",\"memory\":\"%s\",\"multicast\":%s,\"multicast_objects\":%s,\"tuned\":%s",
           mixed_kind_name(report->request->memory), info->multicast ? "true" : "false",
           info->reach == FERRY_MIXED_REACH_OBJECTS ? "true" : "false",
           info->tuned ? "true" : "false");
    print_request_json(report->request);
    if (report->devices != NULL) {
        mixed_devices_print_json(report);
    }
    printf(",\"machine\":");
    print_machine_json(&report->machine);
    printf(",\"results\":[");
}

/* ---- lines ---- */

static void print_names(const mixed_report *report)
{
    printf("#%9s %10s  %-22s", "size", "count", "mode");
    if (report->devices != NULL) {
        printf(" %-7s %5s", "by", "lanes");
    }
    for (int form = 0; form < MIXED_N_FORMS; form++) {
        printf(" %8s %8s %8s %7s %7s %7s", "time", "min", "max", "algbw", "busbw", "#wrong");
    }
    if (report->request->counts) {
        printf(" %12s %12s %12s %6s", "written", "read", "between", "waits");
    }
    if (report->request->counts && report->devices != NULL) {
        printf(" %12s", "on devices");
    }
    if (report->costs != NULL) {
        printf(" %9s %9s", "predicted", "of time");
    }
    putchar('\n');
}

static int driver_width(const mixed_report *report)
{
    return report->devices != NULL ? 14 : 0;
}

static void print_units(const mixed_report *report)
{
    printf("#%9s %10s  %-22s%*s", "(B)", "(elements)", "", driver_width(report), "");
    for (int form = 0; form < MIXED_N_FORMS; form++) {
        printf(" %8s %8s %8s %7s %7s %7s", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "");
    }
    if (report->request->counts) {
        printf(" %12s %12s %12s %6s", "(bytes)", "(bytes)", "(bytes)", "");
    }
    if (report->request->counts && report->devices != NULL) {
        printf(" %12s", "(elements)");
    }
    if (report->costs != NULL) {
        printf(" %9s", "(us)");
    }
    putchar('\n');
}

/* Both forms stand below their names, in the middle of six columns. */
static void print_head(const mixed_report *report, uint32_t op)
{
    printf("#\n# %s\n#%*s", ferry_mixed_op_name(op), 44 + driver_width(report), "");
    printf("%19sout-of-place%20s%21sin-place\n", "", "", "");
    print_names(report);
    print_units(report);
}

static void print_us(double seconds)
{
    double us = seconds * 1e6;
    printf(" %8.*f", us < 1e4 ? 2 : us < 1e5 ? 1 : 0, us);
}

static void print_figures(const mixed_report *report, const mixed_figures *f)
{
    char wrong[32] = "N/A";
    print_us(f->seconds);
    print_us(f->least);
    print_us(f->most);
    if (report->request->check) {
        snprintf(wrong, sizeof wrong, "%llu%s", (unsigned long long)f->n_wrong,
                 f->n_differ > 0 ? "(!)" : "");
    }
    printf(" %7.3f %7.3f %7s", f->rate / 1e9, f->bus_rate / 1e9, wrong);
}

/* Who makes the calls of a line, and how many lanes have something to do in one. */
static const char *driver_of(const mixed_report *report, const mixed_line *line)
{
    const ferry_mixed_comm_info *info = &report->rank->info;
    return mixed_is_by_library(info, line->mode) ? "nccl" : info->kernels ? "kernels" : "host";
}

static void print_driver(const mixed_report *report, const mixed_line *line)
{
    char lanes[16] = "N/A";
    if (line->n_lanes > 0) {
        snprintf(lanes, sizeof lanes, "%u", line->n_lanes);
    }
    printf(" %-7s %5s", driver_of(report, line), lanes);
}

static void print_driver_json(const mixed_report *report, const mixed_line *line)
{
    printf("\"by\":\"%s\",\"lanes\":", driver_of(report, line));
    if (line->n_lanes > 0) {
        printf("%u,", line->n_lanes);
    } else {
        printf("null,");
    }
}

/* What the prediction is of what was measured; "=" where the costs knew calls of this size. */
static void print_prediction(const mixed_line *line)
{
    double seconds = line->forms[MIXED_OUT_OF_PLACE].seconds;
    if (line->predicted > 0) {
        printf(" ");
        print_us(line->predicted);
        printf(" %8.2f%s", line->predicted / seconds, line->is_fitted ? " =" : "");
    } else {
        printf(" %9s %8s", "N/A", "N/A");
    }
}

static void print_line(const mixed_report *report, const mixed_line *line)
{
    printf("%10llu %10llu  %-22s", (unsigned long long)line->bytes, (unsigned long long)line->count,
           ferry_mixed_mode_name(line->mode));
    if (report->devices != NULL) {
        print_driver(report, line);
    }
    for (int form = 0; form < MIXED_N_FORMS; form++) {
        print_figures(report, &line->forms[form]);
    }
    if (report->request->counts) {
        printf(" %12llu %12llu %12llu %6llu", (unsigned long long)line->work.written,
               (unsigned long long)line->work.read, (unsigned long long)line->work.between,
               (unsigned long long)line->work.waits);
    }
    if (report->request->counts && report->devices != NULL) {
        printf(" %12llu", (unsigned long long)line->work.device_elements);
    }
    if (report->costs != NULL) {
        print_prediction(line);
    }
    putchar('\n');
}

static void print_figures_json(const mixed_report *report, const mixed_figures *f)
{
    printf("\"calls\":%llu,\"median_us\":%.4f,\"least_us\":%.4f,\"most_us\":%.4f,\"p99_us\":%.4f,"
           "\"gbytes_per_s\":%.6f,\"bus_gbytes_per_s\":%.6f",
           (unsigned long long)f->n_calls, f->seconds * 1e6, f->least * 1e6, f->most * 1e6,
           f->slow * 1e6, f->rate / 1e9, f->bus_rate / 1e9);
    if (report->request->check) {
        printf(",\"wrong\":%llu,\"differing_ranks\":%u", (unsigned long long)f->n_wrong,
               f->n_differ);
    } else {
        printf(",\"wrong\":null,\"differing_ranks\":null");
    }
}

static void print_line_json(const mixed_report *report, const mixed_line *line)
{
    printf("%s\n{\"op\":\"%s\",\"mode\":\"%s\",\"bytes\":%llu,\"count\":%llu,",
           report->n_rates > 0 ? "," : "", ferry_mixed_op_name(line->op),
           ferry_mixed_mode_name(line->mode), (unsigned long long)line->bytes,
           (unsigned long long)line->count);
    if (report->devices != NULL) {
        print_driver_json(report, line);
    }
    print_figures_json(report, &line->forms[MIXED_OUT_OF_PLACE]);
    if (report->request->counts) {
        printf(",\"inside_bytes_written\":%llu,\"inside_bytes_read\":%llu,\"between_bytes\":%llu,"
               "\"waits\":%llu",
               (unsigned long long)line->work.written, (unsigned long long)line->work.read,
               (unsigned long long)line->work.between, (unsigned long long)line->work.waits);
    }
    if (report->request->counts && report->devices != NULL) {
        printf(",\"device_elements\":%llu", (unsigned long long)line->work.device_elements);
    }
    if (report->costs != NULL && line->predicted > 0) {
        printf(",\"predicted_us\":%.4f,\"fitted\":%s", line->predicted * 1e6,
               line->is_fitted ? "true" : "false");
    } else if (report->costs != NULL) {
        printf(",\"predicted_us\":null,\"fitted\":false");
    }
    printf(",\"in_place\":{");
    print_figures_json(report, &line->forms[MIXED_IN_PLACE]);
    printf("}}");
}

void mixed_report_line(mixed_report *report, const mixed_line *line)
{
    if (report->request->json) {
        print_line_json(report, line);
    } else {
        if (report->n_rates == 0 || report->op != line->op) {
            print_head(report, line->op);
        }
        print_line(report, line);
        fflush(stdout);
    }
    report->op = line->op;
    if (line->predicted > 0 && !line->is_fitted) {
        double seconds = line->forms[MIXED_OUT_OF_PLACE].seconds;
        report->off[report->n_off++] = fabs(line->predicted / seconds - 1);
    }
    for (int form = 0; form < MIXED_N_FORMS; form++) {
        report->n_rates++;
        report->bus_sum += line->forms[form].bus_rate;
        report->n_wrong += line->forms[form].n_wrong;
    }
}

static size_t within(const mixed_report *report, double share)
{
    size_t n = 0;
    while (n < report->n_off && report->off[n] <= share) {
        n++;
    }
    return n;
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_off(const mixed_report *report)
{
    mixed_costs_print(report->costs, "# Costs             : ");
    if (report->n_off == 0) {
        printf("# Predictions       : of no size that costs were not fitted to: take four sizes or "
               "more\n");
        return;
    }
    printf("# Predictions       : %zu of %zu within 10%%, %zu within 20%%, half within %.0f%%, at "
           "sizes that costs were not fitted to (%zu calls)\n",
           within(report, 0.1), report->n_off, within(report, 0.2),
           100 * report->off[(report->n_off - 1) / 2], report->n_fitted);
}

static void print_off_json(const mixed_report *report)
{
    printf(",\"costs\":");
    mixed_costs_print_json(report->costs);
    printf(",\"predictions\":{\"fitted\":%zu,\"n\":%zu,\"within_10\":%zu,\"within_20\":%zu}",
           report->n_fitted, report->n_off, within(report, 0.1), within(report, 0.2));
}

void mixed_report_end(const mixed_report *report)
{
    double average = report->bus_sum / (double)report->n_rates / 1e9;
    char wrong[32];
    snprintf(wrong, sizeof wrong, "%llu", (unsigned long long)report->n_wrong);
    if (report->costs != NULL) {
        qsort(report->off, report->n_off, sizeof *report->off, compare_numbers);
    }
    if (report->request->json) {
        printf("\n],\"average_bus_gbytes_per_s\":%.6f,\"wrong\":%s", average,
               report->request->check ? wrong : "null");
        if (report->costs != NULL) {
            print_off_json(report);
        }
        printf("}\n");
        return;
    }
    printf("#\n# Wrong elements    : %s\n# Avg bus bandwidth : %.3f GB/s\n",
           !report->request->check ? "N/A"
           : report->n_wrong == 0  ? "0 OK"
                                   : wrong,
           average);
    if (report->costs != NULL) {
        print_off(report);
    }
}
