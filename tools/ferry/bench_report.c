/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What benchmarks print, for people and for machines. */
#include "bench.h"

#include "json_text.h"
#include "machine_text.h"
#include "units.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const struct test_text {
    const char *name;
    const char *title;
} tests[] = {
    [BENCH_PUT_SIGNAL] = {"put_signal", "Put with signal, rank 0 to 1: one way"},
    [BENCH_SIGNAL] = {"signal", "Signal alone, rank 0 to 1: one way"},
    [BENCH_BARRIER] = {"barrier", "Barrier of all ranks"},
    [BENCH_PUT] = {"put", "Put, rank 0 to 1"},
    [BENCH_BOTH_WAYS] = {"both_ways", "Put, ranks 0 and 1 to each other at once: sum of both"},
    [BENCH_GET] = {"get", "Get, rank 0 from 1"},
};
_Static_assert(sizeof tests / sizeof tests[0] == BENCH_GET + 1, "every test has its text");

static const struct capability_text {
    uint32_t flag;
    const char *name;
} capabilities[] = {
    {FERRY_CAN_REMOTE_USER_MEMORY, "remote_user_memory"},
    {FERRY_CAN_PEER_POINTER, "peer_pointer"},
    {FERRY_CAN_TARGET_PROGRESS, "target_progress"},
    {FERRY_CAN_QUEUE_ORDER, "queue_order"},
    {FERRY_CAN_DEVICE_INITIATE, "device_initiate"},
    {FERRY_CAN_MULTICAST, "multicast"},
    {FERRY_CAN_ONE_WORLD, "one_world"},
    {FERRY_CAN_GET, "get"},
};
enum { N_CAPABILITIES = sizeof capabilities / sizeof capabilities[0] };

double bench_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

const char *bench_size_text(uint64_t bytes, char text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
    size_t unit = 0;
    while (unit < 3 && bytes >= 1024 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, 32, "%llu %s", (unsigned long long)bytes, units[unit]);
    return text;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bench_times bench_sort_times(double *seconds, size_t n)
{
    qsort(seconds, n, sizeof *seconds, compare_double);
    return (bench_times){.median = seconds[n / 2],
                         .p99 = seconds[(n * 99 + 99) / 100 - 1], /* of two, the longer */
                         .least = seconds[0],
                         .most = seconds[n - 1]};
}

static void print_names(uint32_t flags, const char *before, const char *between, const char *after)
{
    const char *separator = "";
    for (size_t i = 0; i < N_CAPABILITIES; i++) {
        if (flags & capabilities[i].flag) {
            printf("%s%s%s%s", separator, before, capabilities[i].name, after);
            separator = between;
        }
    }
}

void bench_report_begin(const bench_report *report)
{
    if (report->json) {
        printf("{\"format\":\"ferry.bench/1\",\"name\":\"transport\",\"version\":");
        print_json_text(ferry_version());
        printf(",\"ranks\":%u,\"engine\":", report->n_ranks);
        print_json_text(report->engine);
        printf(",\"capabilities\":[");
        print_names(report->capabilities, "\"", ",", "\"");
        printf("],\"machine\":");
        print_machine_json(&report->machine);
        printf(",\"results\":[");
        return;
    }
    printf("ferry %s, %u ranks, engine %s between ranks 0 and 1\n  can: ", ferry_version(),
           report->n_ranks, report->engine);
    print_names(report->capabilities, "", ", ", "");
    printf("\n\nMachine of rank 0:\n");
    print_machine(&report->machine);
}

static bool is_rate(bench_test test)
{
    return test >= BENCH_PUT;
}

static void print_head(const bench_line *line)
{
    printf("\n%s\n", tests[line->test].title);
    if (is_rate(line->test)) {
        printf("  %10s %10s %10s %14s %12s %10s\n", "size", "GB/s", "slowest 1%", "messages/s",
               "of one copy", "samples");
    } else {
        printf("  %10s %10s %10s %14s %12s %10s\n", "size", "median", "least", "slowest 1%", "",
               "samples");
    }
}

static void print_line(const bench_report *report, const bench_line *line)
{
    char size[32], share[16] = "-", text[4][UNIT_TEXT_BYTES];
    double limit = report->machine.copy_gbytes_per_s * 1e9;
    bench_size_text(line->bytes, size);
    if (line->test == BENCH_BARRIER || line->test == BENCH_SIGNAL) {
        snprintf(size, sizeof size, "-");
    }
    if (!is_rate(line->test)) {
        printf("  %10s %10s %10s %14s %12s %10s\n", size,
               format_seconds(line->times.median, text[0]),
               format_seconds(line->times.least, text[1]), format_seconds(line->times.p99, text[2]),
               "", format_count(line->n, text[3]));
        return;
    }
    if (limit > 0) {
        snprintf(share, sizeof share, "%.1f %%", 100 * line->rate / limit);
    }
    printf("  %10s %10.3f %10.3f %14s %12s %10s\n", size, line->rate / 1e9, line->slow_rate / 1e9,
           format_count((uint64_t)(line->rate / (double)line->bytes), text[0]), share,
           format_count(line->n, text[1]));
}

static void print_line_json(const bench_report *report, const bench_line *line)
{
    double limit = report->machine.copy_gbytes_per_s * 1e9;
    printf("%s\n{\"test\":\"%s\",\"bytes\":%llu,\"samples\":%zu", report->any ? "," : "",
           tests[line->test].name, (unsigned long long)line->bytes, line->n);
    if (!is_rate(line->test)) {
        printf(",\"median_us\":%.4f,\"least_us\":%.4f,\"p99_us\":%.4f}", line->times.median * 1e6,
               line->times.least * 1e6, line->times.p99 * 1e6);
        return;
    }
    printf(",\"window\":%u,\"gbytes_per_s\":%.6f,\"slow_gbytes_per_s\":%.6f,"
           "\"messages_per_s\":%.1f",
           line->window, line->rate / 1e9, line->slow_rate / 1e9, line->rate / (double)line->bytes);
    if (limit > 0) {
        printf(",\"copy_gbytes_per_s\":%.6f,\"of_copy\":%.4f", limit / 1e9, line->rate / limit);
    }
    putchar('}');
}

void bench_report_line(bench_report *report, const bench_line *line)
{
    if (report->json) {
        print_line_json(report, line);
    } else {
        if (!report->any || report->last != line->test) {
            print_head(line);
        }
        print_line(report, line);
        fflush(stdout);
    }
    report->any = true;
    report->last = line->test;
}

void bench_report_end(const bench_report *report)
{
    if (report->json) {
        printf("\n]}\n");
    }
}
