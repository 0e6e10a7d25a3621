/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "mixed_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALIGNMENT = 4096, MAX_CALLS = 100000 };

/* A single call that takes so many batches' time has no more of them than this. */
enum { LONG_CALL = 3, LONG_BATCHES = 3 };

typedef struct row {
    bool is_run, is_left_out;
    int n_calls, n_batches;
    uint64_t wrong;
    double estimate; /* seconds of a call */
    double seconds[MIXED_MAX_BATCHES];
} row;

typedef struct bench {
    const mixed_arguments *arguments;
    const mixed_side *side;
    int n_ways;
    char *in, *out;
    size_t in_bytes, out_bytes; /* at the present size */
    char *input;
    size_t piece;
    row rows[MIXED_MAX_WAYS];
} bench;

/* ---- arguments ---- */

static int compare_sizes(const void *a, const void *b)
{
    size_t left = *(const size_t *)a, right = *(const size_t *)b;
    return (left > right) - (left < right);
}

static bool read_sizes(const char *text, mixed_arguments *out)
{
    size_t element = mixed_element_bytes(out->its.dtype);
    for (out->n_sizes = 0; *text != '\0' && out->n_sizes < MIXED_MAX_SIZES; out->n_sizes++) {
        char *end = NULL;
        unsigned long long size = strtoull(text, &end, 10);
        if (end == text || size == 0 || size % element != 0 || (*end != ',' && *end != '\0')) {
            return false;
        }
        out->sizes[out->n_sizes] = size;
        text = *end == ',' ? end + 1 : end;
    }
    qsort(out->sizes, (size_t)out->n_sizes, sizeof out->sizes[0], compare_sizes);
    return out->n_sizes > 0;
}

static bool read_option(const char *name, const char *value, mixed_arguments *out)
{
    if (strcmp(name, "--sizes") == 0) {
        return read_sizes(value, out);
    }
    if (strcmp(name, "--ways") == 0) {
        out->ways = value;
    } else if (strcmp(name, "--json") == 0) {
        out->json = value;
    } else if (strcmp(name, "--batches") == 0) {
        out->n_batches = atoi(value);
    } else if (strcmp(name, "--batch-ms") == 0) {
        out->batch_seconds = atof(value) * 1e-3;
    } else {
        return false;
    }
    return out->n_batches >= 1 && out->n_batches <= MIXED_MAX_BATCHES;
}

bool mixed_read_arguments(int argc, char **argv, int rank, int n_ranks, mixed_arguments *out)
{
    *out = (mixed_arguments){.n_batches = 7, .batch_seconds = 0.01, .sizes = {65536}, .n_sizes = 1};
    bool is_good = argc >= 4 && mixed_case_make(argv[0], argv[1], atoi(argv[2]), atoi(argv[3]),
                                                rank, n_ranks, &out->its);
    for (int i = 4; is_good && i < argc; i++) {
        if (strcmp(argv[i], "--in-place") == 0) {
            out->in_place = true;
        } else if (strcmp(argv[i], "--fresh") == 0) {
            out->is_fresh = true;
        } else {
            is_good = i + 1 < argc && read_option(argv[i], argv[i + 1], out);
            i++;
        }
    }
    if (!is_good && rank == 0) {
        fprintf(stderr, "usage: OP DTYPE TP DP [OPTION]..., on TP x DP ranks: see mixed_bench.h\n");
    }
    return is_good;
}

bool mixed_is_wanted(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; at != NULL && *at != '\0'; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0')) {
            return true;
        }
    }
    return list == NULL;
}

/* ---- memory ---- */

static char *allocate(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGNMENT, bytes) != 0) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        abort();
    }
    memset(memory, 0xee, bytes);
    return memory;
}

/* In place the smaller of both is the larger one's chunk dp_rank. */
static void allocate_both(bench *b)
{
    const mixed_case *its = &b->arguments->its;
    size_t most = b->arguments->sizes[b->arguments->n_sizes - 1];
    size_t in = mixed_in_pieces(its) * most, out = mixed_out_pieces(its) * most;
    if (b->arguments->in_place) {
        b->in = b->out = allocate(in > out ? in : out);
    } else {
        b->in = allocate(in);
        b->out = allocate(out);
    }
}

static void release_both(bench *b)
{
    if (b->in != b->out) {
        free(b->in);
    }
    free(b->out);
}

static void begin_size(bench *b, size_t size, char **in, char **out)
{
    const mixed_case *its = &b->arguments->its;
    size_t at = b->arguments->in_place ? (size_t)its->dp_rank * size : 0;
    b->piece = size / mixed_element_bytes(its->dtype);
    b->in_bytes = mixed_in_pieces(its) * size;
    b->out_bytes = mixed_out_pieces(its) * size;
    *in = b->in + (b->out_bytes > b->in_bytes ? at : 0);
    *out = b->out + (b->in_bytes > b->out_bytes ? at : 0);
    b->input = *in;
    b->side->begin_size(b->side->context, *in, *out, b->piece);
}

/* ---- runs ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Small numbers, other ones than before: what a layer does before its collective. */
static void write_input(bench *b, int i)
{
    enum { SMALL = 0x3c, VALUES = 4 };
    memset(b->input, SMALL + i % VALUES, b->in_bytes);
}

/*
 * Seconds of a call, of the slowest rank. Fresh inputs are written by their rank before each call;
 * what as many such writes take by themselves, when nobody else has read the memory between them,
 * is not the call's. That a write finds its lines in the caches of others is.
 */
static double run_batch(bench *b, int way, int n_calls)
{
    const mixed_side *side = b->side;
    side->barrier(side->context);
    if (n_calls > 1) {
        side->run(side->context, way);
    }
    double begin = now();
    for (int i = 0; i < n_calls; i++) {
        if (b->arguments->is_fresh) {
            write_input(b, i);
        }
        side->run(side->context, way);
    }
    double seconds = now() - begin;
    if (b->arguments->is_fresh) {
        write_input(b, 0);
        begin = now();
        for (int i = 0; i < n_calls; i++) {
            write_input(b, i);
        }
        seconds -= now() - begin;
    }
    return side->max(side->context, seconds) / n_calls;
}

static void verify(bench *b, int way, char *in, char *out)
{
    const mixed_side *side = b->side;
    memset(out, 0xee, b->out_bytes);
    mixed_fill(&b->arguments->its, b->piece, in);
    side->barrier(side->context);
    side->run(side->context, way);
    double wrong = (double)mixed_count_wrong(&b->arguments->its, b->piece, out);
    b->rows[way].wrong = (uint64_t)side->max(side->context, wrong);
}

/* Seconds of a call, at best: what is run for the first time on a core says nothing. */
static double run_again(bench *b, int way, int n_calls)
{
    enum { TIMES = 3 };
    double least = run_batch(b, way, n_calls);
    for (int i = 1; i < TIMES && least * n_calls < b->arguments->batch_seconds; i++) {
        double other = run_batch(b, way, n_calls);
        least = other < least ? other : least;
    }
    return least;
}

/* How many calls make a batch: more of them until they take a quarter of its time. */
static void estimate(bench *b, int way)
{
    double wanted = b->arguments->batch_seconds, each = 0;
    int n = 1;
    for (;;) {
        each = run_again(b, way, n);
        if (each * n * 4 >= wanted || n >= MAX_CALLS) {
            break;
        }
        n *= 4;
    }
    double calls = wanted / each;
    b->rows[way].estimate = each;
    b->rows[way].n_calls = calls < 1 ? 1 : calls > MAX_CALLS ? MAX_CALLS : (int)calls;
    b->rows[way].n_batches = b->arguments->n_batches;
    if (each > wanted * LONG_CALL && b->rows[way].n_batches > LONG_BATCHES) {
        b->rows[way].n_batches = LONG_BATCHES;
    }
}

static void prepare_rows(bench *b, char *in, char *out)
{
    double best = 1e9;
    for (int way = 0; way < b->n_ways; way++) {
        row *r = &b->rows[way];
        *r = (row){0};
        r->is_run = mixed_is_wanted(b->arguments->ways, b->side->ways[way]) &&
                    b->side->offers(b->side->context, way);
        if (r->is_run) {
            verify(b, way, in, out);
            estimate(b, way);
            best = r->estimate < best ? r->estimate : best;
        }
    }
    for (int way = 0; way < b->n_ways; way++) {
        b->rows[way].is_left_out = b->rows[way].estimate > best * MIXED_FAR_BEHIND;
    }
}

static void run_rounds(bench *b)
{
    for (int turn = 0; turn < b->arguments->n_batches; turn++) {
        for (int i = 0; i < b->n_ways; i++) {
            int way = (i + turn) % b->n_ways;
            row *r = &b->rows[way];
            if (r->is_run && !r->is_left_out && turn < r->n_batches) {
                r->seconds[turn] = run_batch(b, way, r->n_calls);
            }
        }
    }
}

/* ---- the report ---- */

static void write_row(const bench *b, FILE *file, size_t size, int way)
{
    const row *r = &b->rows[way];
    const char *note = b->side->note == NULL ? "" : b->side->note(b->side->context, way);
    fprintf(file, "{\"bytes\": %zu, \"way\": \"%s\", \"calls\": %d, \"wrong\": %llu, ", size,
            b->side->ways[way], r->n_calls, (unsigned long long)r->wrong);
    fprintf(file, "\"left_out\": %s, \"note\": \"%s\", \"seconds\": [",
            r->is_left_out ? "true" : "false", note);
    if (r->is_left_out) {
        fprintf(file, "%.9f", r->estimate);
    }
    for (int i = 0; !r->is_left_out && i < r->n_batches; i++) {
        fprintf(file, "%s%.9f", i == 0 ? "" : ", ", r->seconds[i]);
    }
    fprintf(file, "]}\n");
    fflush(file);
}

static int write_rows(const bench *b, FILE *file, size_t size)
{
    int result = 0;
    for (int way = 0; way < b->n_ways; way++) {
        if (b->rows[way].is_run) {
            result |= b->rows[way].wrong != 0;
            if (file != NULL) {
                write_row(b, file, size, way);
            }
        }
    }
    return result;
}

/*
 * Calls that do not count, until ranks that share cores have long forgotten how the others made
 * their tensors: waiting is another thing while they do.
 */
static void warm_up(bench *b)
{
    const double seconds = 1;
    char *in, *out;
    int way = 0;
    begin_size(b, b->arguments->sizes[0], &in, &out);
    while (!mixed_is_wanted(b->arguments->ways, b->side->ways[way]) ||
           !b->side->offers(b->side->context, way)) {
        if (b->side->ways[++way] == NULL) {
            return;
        }
    }
    for (double begin = now(), spent = 0; spent < seconds;) {
        enum { CALLS = 8 };
        run_batch(b, way, CALLS);
        spent = b->side->max(b->side->context, now() - begin);
    }
}

int mixed_measure(const mixed_arguments *arguments, const mixed_side *side)
{
    bench b = {.arguments = arguments, .side = side};
    int result = 0;
    FILE *file = NULL;
    if (arguments->its.rank == 0) {
        file = arguments->json == NULL ? stdout : fopen(arguments->json, "w");
    }
    while (side->ways[b.n_ways] != NULL && b.n_ways < MIXED_MAX_WAYS) {
        b.n_ways++;
    }
    allocate_both(&b);
    warm_up(&b);
    for (int i = 0; i < arguments->n_sizes; i++) {
        char *in, *out;
        begin_size(&b, arguments->sizes[i], &in, &out);
        prepare_rows(&b, in, out);
        run_rounds(&b);
        result |= write_rows(&b, file, arguments->sizes[i]);
    }
    release_both(&b);
    if (file != NULL && file != stdout) {
        fclose(file);
    }
    return result;
}
