/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast ranks of one machine reach each other, beside what the machine can do. It starts its own
 * ranks, pins them where a part says so, and ends them.
 *
 *     bench_transport [--json FILE] [--part NAME]... [--rounds N] [--limit SECONDS] [--memory MIB]
 *                     [--busy 1]
 *     bench_transport --part stream|turn [--engine NAME] [--bytes N] [--count N]
 *                     [--pin none|before|after]
 *
 * On a machine that others use, --busy 1 takes the time that the copying thread had, not the
 * clock's. The second form measures what transport_vs_peers.py measures of other programs.
 */
#include "transport_bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double bench_own_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_part_of(const double *values, int n, double part)
{
    double *sorted = malloc((size_t)n * sizeof *sorted);
    if (sorted == NULL) {
        abort();
    }
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    int at = (int)(part * n);
    double value = sorted[at < n ? at : n - 1];
    free(sorted);
    return value;
}

double bench_median(const double *values, int n)
{
    return bench_part_of(values, n, 0.5);
}

double bench_spread(const double *values, int n)
{
    double low = bench_part_of(values, n, 0.25), high = bench_part_of(values, n, 0.75);
    return (high - low) / bench_median(values, n);
}

static void report_value(const bench *b, const char *prefix, const char *key, const double *values,
                         int n)
{
    double median = bench_median(values, n), spread = n < 2 ? 0 : bench_spread(values, n);
    printf("  %s%s %.4g", prefix, key, median);
    if (b->json != NULL) {
        fprintf(b->json, ", \"%s%s\": %.6g, \"%s%s-spread\": %.4f", prefix, key, median, prefix,
                key, spread);
    }
}

void report(bench *b, const char *name, const results *r, int index, const char *const *series,
            int n_series, int n_rounds)
{
    printf("%-10s %-32s", b->part, name);
    if (b->json != NULL) {
        fprintf(b->json, "%s\n  {\"part\": \"%s\", \"case\": \"%s\", \"rounds\": %d",
                b->is_first ? "" : ",", b->part, name, n_rounds);
    }
    for (int i = 0; i < n_series; i++) {
        const double *values = r->values[index][i];
        if (values[0] > 0) {
            report_value(b, "", series[i], values, n_rounds);
        }
    }
    for (int i = 1; i < n_series; i++) {
        double ratios[MAX_ROUNDS];
        for (int k = 0; k < n_rounds; k++) {
            ratios[k] = r->values[index][0][k] / r->values[index][i][k];
        }
        if (r->values[index][i][0] > 0) {
            report_value(b, "over-", series[i], ratios, n_rounds);
        }
    }
    printf("\n");
    fflush(stdout);
    if (b->json != NULL) {
        fprintf(b->json, "}");
        fflush(b->json);
    }
    b->is_first = false;
}

static const struct part {
    const char *name;
    void (*run)(bench *b);
    bool is_asked; /* runs only when it is named */
} parts[] = {
    {"put", bench_put, false},
    {"signal", bench_signal, false},
    {"barrier", bench_barrier, false},
    {"attach", bench_attach, false},
    {"start", bench_start, false},
    {"rate", bench_rate, false},
    {"all-to-all", bench_all_to_all, false},
    {"alloc", bench_alloc, false},
    {"stream", bench_stream, true},
    {"turn", bench_turn, true},
};

enum { N_PARTS = sizeof parts / sizeof parts[0] };

/* The machine, and how busy it was when the program began. */
static void write_head(bench *b)
{
    double busy[3] = {-1};
    struct utsname name;
    if (getloadavg(busy, 3) < 0 || uname(&name) < 0) {
        strcpy(name.machine, "?");
    }
    printf("%ld cores, load %.2f, %d rounds\n", sysconf(_SC_NPROCESSORS_ONLN), busy[0],
           b->n_rounds);
    if (b->json != NULL) {
        fprintf(b->json,
                "{\"machine\": \"%s\", \"cores\": %ld, \"load\": %.2f, \"memory_MiB\": %zu,\n "
                "\"cases\": [",
                name.machine, sysconf(_SC_NPROCESSORS_ONLN), busy[0], b->memory / MIB);
    }
}

static bool want_part(const char *name, bool *is_wanted)
{
    for (size_t i = 0; i < N_PARTS; i++) {
        if (strcmp(parts[i].name, name) == 0) {
            is_wanted[i] = true;
            return true;
        }
    }
    fprintf(stderr, "no part is named %s; there are:", name);
    for (size_t i = 0; i < N_PARTS; i++) {
        fprintf(stderr, " %s", parts[i].name);
    }
    fprintf(stderr, "\n");
    return false;
}

static bool read_pinning(const char *text, pinning *out)
{
    static const char *const names[] = {"none", "before", "after", "one"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (pinning)i;
            return true;
        }
    }
    fprintf(stderr, "ranks are pinned none, before, after or one, not %s\n", text);
    return false;
}

static bool read_options(bench *b, int argc, char **argv, bool *is_wanted, bool *all)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *option = argv[i], *value = argv[i + 1];
        if (strcmp(option, "--json") == 0) {
            b->json = fopen(value, "w");
            if (b->json == NULL) {
                perror(value);
                return false;
            }
        } else if (strcmp(option, "--part") == 0) {
            *all = false;
            if (!want_part(value, is_wanted)) {
                return false;
            }
        } else if (strcmp(option, "--rounds") == 0) {
            b->n_rounds = atoi(value);
        } else if (strcmp(option, "--limit") == 0) {
            b->limit_s = (unsigned)atoi(value);
        } else if (strcmp(option, "--memory") == 0) {
            b->memory = (size_t)strtoull(value, NULL, 10) * MIB;
        } else if (strcmp(option, "--busy") == 0) {
            b->is_busy = atoi(value) != 0;
        } else if (strcmp(option, "--engine") == 0) {
            b->engine = value;
        } else if (strcmp(option, "--bytes") == 0) {
            b->bytes = (size_t)strtoull(value, NULL, 10);
        } else if (strcmp(option, "--count") == 0) {
            b->count = atoi(value);
        } else if (strcmp(option, "--pin") == 0) {
            if (!read_pinning(value, &b->pinning)) {
                return false;
            }
        } else {
            fprintf(stderr, "%s is no option\n", option);
            return false;
        }
    }
    return argc % 2 == 1;
}

int main(int argc, char **argv)
{
    bench b = {.is_first = true,
               .n_rounds = 15,
               .limit_s = 120,
               .memory = 256 * MIB,
               .engine = "shm",
               .bytes = 8,
               .count = 1000};
    bool is_wanted[N_PARTS] = {0}, all = true;
    if (!read_options(&b, argc, argv, is_wanted, &all)) {
        fprintf(stderr, "usage: see the top of bench_transport.c\n");
        return 2;
    }
    b.n_rounds = b.n_rounds < 1 ? 1 : b.n_rounds > MAX_ROUNDS ? MAX_ROUNDS : b.n_rounds;
    b.memory = b.memory < 64 * MIB ? 64 * MIB : b.memory / (64 * MIB) * (64 * MIB);
    b.count = b.count < 1 ? 1 : b.count;
    setenv("FERRY_PLUGINS", FERRY_BENCH_PLUGINS, 0);
    write_head(&b);
    for (size_t i = 0; i < N_PARTS; i++) {
        if (is_wanted[i] || (all && !parts[i].is_asked)) {
            b.part = parts[i].name;
            parts[i].run(&b);
        }
    }
    if (b.json != NULL) {
        fprintf(b.json, "\n]}\n");
        fclose(b.json);
    }
    return b.has_failed ? 1 : 0;
}
