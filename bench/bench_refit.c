/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases of refit_cases.h through the copy service, beside limits of the machine: a series each,
 * timed in turns.
 *
 *     ferry launch -n N bench_refit CASE [--memory KIND] [--series A,B,...] [--runs N]
 *                                   [--engine NAME] [--threads N] [--json FILE]
 *
 * KIND: ferry (ferry_memory_alloc; the default), malloc, or mixed: sources from malloc. What series
 * there are stands in refit_bench.h. A run counts from its barrier to its return on the slowest
 * rank. The first run of a service does not count: it goes to poisoned memory, and every byte is
 * verified then and after the last one.
 */
#include "refit_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct arguments {
    const char *its, *memory, *series, *engine, *json;
    int n_runs, n_threads;
} arguments;

static refit_series all_series[REFIT_MAX_SERIES];

void refit_check(const refit_bench *b, ferry_status status, const ferry_error *error)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "bench_refit: rank %u: %s\n", b->rank, error->message);
        _exit(1);
    }
}

void refit_fail(const refit_bench *b, const char *sentence)
{
    fprintf(stderr, "bench_refit: rank %u: %s\n", b->rank, sentence);
    _exit(1);
}

void refit_barrier(refit_bench *b)
{
    ferry_error error;
    refit_check(b, ferry_world_barrier(b->world, &error), &error);
}

double refit_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

uint64_t refit_sum(refit_bench *b, uint64_t own)
{
    ferry_error error;
    const void *all = NULL;
    uint64_t sum = 0;
    refit_check(b, ferry_world_all_gather(b->world, &own, sizeof own, &all, &error), &error);
    for (int i = 0; i < b->its->n_ranks; i++) {
        sum += ((const uint64_t *)all)[i];
    }
    return sum;
}

double refit_max(refit_bench *b, double own)
{
    ferry_error error;
    const void *all = NULL;
    double most = own;
    refit_check(b, ferry_world_all_gather(b->world, &own, sizeof own, &all, &error), &error);
    for (int i = 0; i < b->its->n_ranks; i++) {
        double other = ((const double *)all)[i];
        most = other > most ? other : most;
    }
    return most;
}

double refit_total(refit_bench *b, double own)
{
    ferry_error error;
    const void *all = NULL;
    double total = 0;
    refit_check(b, ferry_world_all_gather(b->world, &own, sizeof own, &all, &error), &error);
    for (int i = 0; i < b->its->n_ranks; i++) {
        total += ((const double *)all)[i];
    }
    return total;
}

/* ---- memory ---- */

static void allocate(refit_bench *b, bool is_ferry, uint64_t bytes, ferry_buffer *out)
{
    ferry_error error;
    if (is_ferry && bytes > 0) {
        refit_check(b, ferry_memory_alloc(b->transport, FERRY_MEMORY_HOST, 0, bytes, out, &error),
                    &error);
    } else {
        *out = ferry_buffer_of(malloc(bytes + 1), bytes);
    }
    if (out->base == NULL) {
        refit_fail(b, "no memory");
    }
    memset(out->base, 0xee, bytes);
}

static void release(bool is_ferry, ferry_buffer *buffer)
{
    if (is_ferry && buffer->bytes > 0) {
        ferry_memory_free(buffer);
    } else {
        free(buffer->base);
    }
}

/* ---- timing ---- */

static double process_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double timed(refit_bench *b, refit_series *s, double *cpu_seconds_out)
{
    refit_barrier(b);
    uint64_t n_before = refit_count_allocations();
    double cpu_before = process_time(), begin = refit_now();
    s->run(b, s);
    double own = refit_now() - begin, cpu = process_time() - cpu_before;
    s->n_allocations += refit_count_allocations() - n_before;
    *cpu_seconds_out = refit_total(b, cpu);
    return refit_max(b, own);
}

static void verified(refit_bench *b, refit_series *s)
{
    memset(b->destination.base, 0xee, b->destination.bytes);
    double cpu_seconds;
    s->first_seconds = timed(b, s, &cpu_seconds);
    if (s->is_service) {
        s->wrong_rows += refit_sum(b, refit_count_wrong(b->its, (int)b->rank, b->destination.base));
    }
}

static bool prepare(refit_bench *b, refit_series *s, const char *text)
{
    s->text = text;
    if (!refit_limit_prepare(b, s) && !refit_service_prepare(b, s)) {
        if (b->rank == 0) {
            fprintf(stderr, "bench_refit: no series is named %s\n", text);
        }
        return false;
    }
    s->bytes = s->bytes == 0 ? b->its->bytes : s->bytes;
    verified(b, s);
    s->n_allocations = 0;
    if (s->is_service) {
        refit_service_note_first(b, s);
    }
    return true;
}

/* Each round begins with another series. */
static void measure(refit_bench *b, int n_series, int n_runs)
{
    for (int run = 0; run < n_runs; run++) {
        for (int i = 0; i < n_series; i++) {
            refit_series *s = &all_series[(i + run) % n_series];
            s->seconds[run] = timed(b, s, &s->cpu_seconds[run]);
        }
    }
}

static void finish(refit_bench *b, int n_series)
{
    for (int i = 0; i < n_series; i++) {
        if (all_series[i].is_service) {
            refit_service_note_last(b, &all_series[i]);
            verified(b, &all_series[i]);
        }
    }
}

/* ---- the report ---- */

static void write_statistics(FILE *out, const refit_series *s)
{
    const ferry_service_statistics *t = &s->statistics;
    fprintf(out,
            ",\n   \"prepare_seconds\": %.6f, \"wrong_rows\": %llu, \"stood_still\": %s, "
            "\"heap_calls\": %llu,\n   \"staging_bytes\": %llu, \"staging_pss_bytes\": %.0f, "
            "\"batches\": %llu,",
            s->prepare_seconds, (unsigned long long)s->wrong_rows,
            s->stood_still ? "true" : "false", (unsigned long long)s->n_allocations,
            (unsigned long long)t->staging_bytes, s->staging_pss_bytes,
            (unsigned long long)t->n_batches_sent);
    fprintf(out,
            "\n   \"bytes_by_path\": {\"local\": %llu, \"mapped\": %llu, "
            "\"remote\": %llu, \"staged\": %llu},",
            (unsigned long long)t->bytes_local, (unsigned long long)t->bytes_mapped,
            (unsigned long long)t->bytes_remote, (unsigned long long)t->bytes_staged);
    fprintf(out,
            "\n   \"phases\": {\"pack\": %.6f, \"wire\": %.6f, \"unpack\": %.6f, \"check\": %.6f, "
            "\"wait\": %.6f}",
            t->seconds_pack, t->seconds_wire, t->seconds_unpack, t->seconds_check, t->seconds_wait);
}

static void write_numbers(FILE *out, const char *key, const double *numbers, int n)
{
    fprintf(out, ",\n   \"%s\": [", key);
    for (int i = 0; i < n; i++) {
        fprintf(out, "%s%.6f", i == 0 ? "" : ", ", numbers[i]);
    }
    fprintf(out, "]");
}

static void write_report(FILE *out, const refit_bench *b, const arguments *a, int n_series)
{
    fprintf(out,
            "{\"case\": \"%s\", \"ranks\": %d, \"memory\": \"%s\", \"bytes\": %llu, "
            "\"moves\": %zu, \"series\": {",
            a->its, b->its->n_ranks, a->memory, (unsigned long long)b->its->bytes, b->its->n_moves);
    for (int i = 0; i < n_series; i++) {
        const refit_series *s = &all_series[i];
        fprintf(out, "%s\n  \"%s\": {\"bytes\": %llu, \"first_seconds\": %.6f", i == 0 ? "" : ",",
                s->text, (unsigned long long)s->bytes, s->first_seconds);
        write_numbers(out, "seconds", s->seconds, a->n_runs);
        write_numbers(out, "cpu_seconds", s->cpu_seconds, a->n_runs);
        if (s->is_service) {
            write_statistics(out, s);
        }
        fprintf(out, "}");
    }
    fprintf(out, "}}\n");
}

static bool report(const refit_bench *b, const arguments *a, int n_series)
{
    bool is_good = true;
    for (int i = 0; i < n_series; i++) {
        is_good = is_good && all_series[i].wrong_rows == 0;
    }
    if (b->rank != 0) {
        return is_good;
    }
    FILE *out = a->json == NULL ? stdout : fopen(a->json, "w");
    if (out == NULL) {
        perror(a->json);
        return false;
    }
    write_report(out, b, a, n_series);
    if (out != stdout) {
        fclose(out);
    }
    return is_good;
}

/* ---- all ---- */

static bool read_arguments(arguments *a, int argc, char **argv)
{
    struct {
        const char *name;
        const char **text;
        int *number;
    } known[] = {{"--memory", &a->memory, NULL}, {"--series", &a->series, NULL},
                 {"--engine", &a->engine, NULL}, {"--json", &a->json, NULL},
                 {"--runs", NULL, &a->n_runs},   {"--threads", NULL, &a->n_threads}};
    for (int i = 2; i + 1 < argc; i += 2) {
        size_t k = 0;
        while (k < sizeof known / sizeof known[0] && strcmp(argv[i], known[k].name) != 0) {
            k++;
        }
        if (k == sizeof known / sizeof known[0]) {
            return false;
        }
        if (known[k].text != NULL) {
            *known[k].text = argv[i + 1];
        } else {
            *known[k].number = atoi(argv[i + 1]);
        }
    }
    a->its = argc > 1 ? argv[1] : "";
    a->n_runs = a->n_runs < 1 ? 1 : a->n_runs > REFIT_MAX_RUNS ? REFIT_MAX_RUNS : a->n_runs;
    return argc > 1 && argc % 2 == 0;
}

static int prepare_all(refit_bench *b, char *texts)
{
    int n = 0;
    char *rest = NULL;
    for (char *text = strtok_r(texts, ",", &rest); text != NULL && n < REFIT_MAX_SERIES;
         text = strtok_r(NULL, ",", &rest)) {
        if (!prepare(b, &all_series[n++], text)) {
            return -1;
        }
    }
    return n;
}

static bool run_case(refit_bench *b, const arguments *a)
{
    bool is_ferry = strcmp(a->memory, "malloc") != 0;
    bool is_mixed = strcmp(a->memory, "mixed") == 0;
    char *texts = strdup(a->series);
    if (texts == NULL) {
        refit_fail(b, "no memory");
    }
    allocate(b, is_ferry && !is_mixed, b->its->source_bytes[b->rank], &b->source);
    allocate(b, is_ferry, b->its->destination_bytes[b->rank], &b->destination);
    refit_fill(b->its, (int)b->rank, b->source.base);
    int n_series = prepare_all(b, texts);
    bool is_good = n_series > 0;
    if (is_good) {
        measure(b, n_series, a->n_runs);
        finish(b, n_series);
        is_good = report(b, a, n_series);
    }
    for (int i = 0; i < n_series; i++) {
        all_series[i].end(b, &all_series[i]);
    }
    refit_barrier(b);
    release(is_ferry && !is_mixed, &b->source);
    release(is_ferry, &b->destination);
    free(texts);
    return is_good;
}

int main(int argc, char **argv)
{
    ferry_error error;
    arguments a = {.memory = "ferry", .series = "run,copy", .n_runs = 9};
    refit_bench b = {0};
    if (!read_arguments(&a, argc, argv)) {
        fprintf(stderr, "usage: see the top of bench_refit.c\n");
        return 2;
    }
    refit_case *its = refit_case_make(a.its);
    if (its == NULL) {
        return 2;
    }
    b.its = its;
    b.n_threads = a.n_threads < 0 ? 0 : (uint64_t)a.n_threads;
    refit_check(&b, ferry_world_create(NULL, &b.world, &error), &error);
    b.rank = ferry_world_rank(b.world);
    if (ferry_world_rank_count(b.world) != (uint32_t)its->n_ranks) {
        fprintf(stderr, "bench_refit: %s wants %d ranks\n", a.its, its->n_ranks);
        return 2;
    }
    refit_check(&b, ferry_transport_open(b.world, a.engine, &b.transport, &error), &error);
    bool is_good = run_case(&b, &a);
    ferry_transport_close(b.transport);
    ferry_world_destroy(b.world);
    refit_case_free(its);
    return is_good ? 0 : 1;
}
