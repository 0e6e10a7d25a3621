/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * How good schedules are and how long they take to make: rounds against the degree, makespans
 * against the bound, fan-out, refits of large models, and seconds of the scheduler and of the
 * simulation. Each case runs in a process of its own; times are medians of several runs.
 *
 *     bench_schedule [--json FILE] [--part NAME]... [--case TEXT] [--runs N] [--seed N] [--seeds N]
 * [--limit SECONDS]
 *                    [--examples FOLDER] [--loads FOLDER]
 */
#include "schedule_bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *seconds, int n)
{
    qsort(seconds, (size_t)n, sizeof *seconds, compare_doubles);
    return seconds[n / 2];
}

uint64_t bench_peak_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss;
}

void *bench_alloc(size_t n, size_t bytes)
{
    void *memory = calloc(n == 0 ? 1 : n, bytes);
    if (memory == NULL) {
        perror("bench_schedule");
        exit(1);
    }
    return memory;
}

void bench_add(bench_row *row, const char *key, double value)
{
    if (row->n_fields == MAX_FIELDS) {
        abort();
    }
    row->fields[row->n_fields].key = key;
    row->fields[row->n_fields].value = value;
    row->n_fields++;
}

bool bench_check(bench_row *row, ferry_status status, const ferry_error *error)
{
    if (status != FERRY_OK) {
        row->failed = true;
        snprintf(row->sentence, sizeof row->sentence, "%s", error->message);
    }
    return status == FERRY_OK;
}

static void print_row(bench *b, const char *name, const bench_row *row)
{
    if (!b->has_header) {
        printf("\n%-52s", b->part);
        for (size_t i = 0; i < row->n_fields; i++) {
            printf(" %*s", (int)strlen(row->fields[i].key) < 9 ? 9 : 0, row->fields[i].key);
        }
        printf("\n");
        b->has_header = true;
    }
    printf("%-52s", name);
    for (size_t i = 0; i < row->n_fields; i++) {
        int width = (int)strlen(row->fields[i].key);
        printf(" %*.5g", width < 9 ? 9 : width, row->fields[i].value);
    }
    printf("\n");
    fflush(stdout);
}

static void write_row(bench *b, const char *name, const bench_row *row)
{
    if (b->json == NULL) {
        return;
    }
    fprintf(b->json, "%s\n  {\"part\": \"%s\", \"case\": \"%s\"", b->is_first ? "" : ",", b->part,
            name);
    for (size_t i = 0; i < row->n_fields; i++) {
        fprintf(b->json, ", \"%s\": %.10g", row->fields[i].key, row->fields[i].value);
    }
    fprintf(b->json, "}");
    fflush(b->json);
    b->is_first = false;
}

void bench_case(bench *b, const char *name, bench_measure *measure, const void *argument)
{
    if (b->only != NULL && strstr(name, b->only) == NULL) {
        return;
    }
    *b->row = (bench_row){0};
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(b->limit_s);
        measure(b, argument, b->row);
        _exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("bench_schedule");
        exit(1);
    }
    if (status != 0 || b->row->failed) {
        b->has_failed = true;
        if (status != 0) {
            snprintf(b->row->sentence, sizeof b->row->sentence, "ended by signal %d (limit %u s)",
                     WIFSIGNALED(status) ? WTERMSIG(status) : 0, b->limit_s);
        }
        printf("%-52s FAILED: %s\n", name, b->row->sentence);
        return;
    }
    print_row(b, name, b->row);
    write_row(b, name, b->row);
}

static const struct {
    const char *name;
    void (*run)(bench *b);
} parts[] = {
    {"rounds", bench_rounds},     {"sizes", bench_sizes},     {"build", bench_build},
    {"colour", bench_colour},     {"fan-out", bench_fan_out}, {"refit", bench_refit},
    {"simulate", bench_simulate},
};

enum { N_PARTS = sizeof parts / sizeof parts[0] };

/* The machine, and how busy it was when the program began. */
static void write_head(bench *b)
{
    double busy[3] = {0};
    struct utsname name;
    if (getloadavg(busy, 3) < 0 || uname(&name) < 0) {
        busy[0] = -1;
        strcpy(name.machine, "?");
    }
    printf("%ld cores, load %.2f, seed %llu, %d runs\n", sysconf(_SC_NPROCESSORS_ONLN), busy[0],
           (unsigned long long)b->seed, b->n_runs);
    if (b->json != NULL) {
        fprintf(b->json,
                "{\"machine\": \"%s\", \"cores\": %ld, \"load\": %.2f, \"seed\": %llu, \"runs\": "
                "%d,\n \"cases\": [",
                name.machine, sysconf(_SC_NPROCESSORS_ONLN), busy[0], (unsigned long long)b->seed,
                b->n_runs);
    }
}

static void run_parts(bench *b, const bool *is_wanted, bool all)
{
    write_head(b);
    for (size_t i = 0; i < N_PARTS; i++) {
        if (all || is_wanted[i]) {
            b->part = parts[i].name;
            b->has_header = false;
            parts[i].run(b);
        }
    }
    if (b->json != NULL) {
        fprintf(b->json, "\n]}\n");
        fclose(b->json);
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

int main(int argc, char **argv)
{
    bench b = {.examples = "examples",
               .is_first = true,
               .seed = 1,
               .n_seeds = 3,
               .n_runs = 3,
               .limit_s = 120};
    bool is_wanted[N_PARTS] = {0}, all = true;
    const char *json_path = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *option = argv[i], *value = argv[i + 1];
        if (strcmp(option, "--json") == 0) {
            json_path = value;
        } else if (strcmp(option, "--examples") == 0) {
            b.examples = value;
        } else if (strcmp(option, "--case") == 0) {
            b.only = value;
        } else if (strcmp(option, "--loads") == 0) {
            b.loads = value;
        } else if (strcmp(option, "--runs") == 0) {
            b.n_runs = atoi(value);
        } else if (strcmp(option, "--seed") == 0) {
            b.seed = strtoull(value, NULL, 10);
        } else if (strcmp(option, "--seeds") == 0) {
            b.n_seeds = strtoull(value, NULL, 10);
        } else if (strcmp(option, "--limit") == 0) {
            b.limit_s = (unsigned)atoi(value);
        } else if (strcmp(option, "--part") == 0) {
            all = false;
            if (!want_part(value, is_wanted)) {
                return 1;
            }
        }
    }
    b.n_runs = b.n_runs < 1 ? 1 : b.n_runs > MAX_RUNS ? MAX_RUNS : b.n_runs;
    b.json = json_path == NULL ? NULL : fopen(json_path, "w");
    b.row = mmap(NULL, sizeof *b.row, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if ((json_path != NULL && b.json == NULL) || b.row == MAP_FAILED) {
        perror("bench_schedule");
        return 1;
    }
    run_parts(&b, is_wanted, all);
    return b.has_failed ? 1 : 0;
}
