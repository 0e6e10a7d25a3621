/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_BENCH_SCHEDULE_H
#define FERRY_BENCH_SCHEDULE_H

#include <ferry/ferry.h>
#include <ferry/reference.h>
#include <ferry/schedule.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/*
 * What the parts of bench_schedule share. A part is a list of cases; a case is measured in a
 * process of its own and fills a row, which becomes a line of the table and an object of the JSON.
 */

enum { MAX_FIELDS = 24, MAX_RUNS = 101, NAME_BYTES = 96 };

typedef struct bench_row {
    size_t n_fields;
    bool failed;
    char sentence[1024]; /* of a failed row */
    struct {
        const char *key; /* static text, the same for all rows of a table */
        double value;
    } fields[MAX_FIELDS];
} bench_row;

typedef struct bench {
    FILE *json;           /* NULL: none */
    const char *examples; /* folder */
    const char *loads;    /* folder for the loads that another scheduler shall see; NULL: none */
    const char *part;     /* the one at work */
    const char *only;     /* cases whose names contain this; NULL: all */
    bench_row *row;       /* shared with the process that measures */
    bool is_first;        /* nothing is in the JSON yet */
    bool has_header;
    bool has_failed;
    uint64_t seed; /* the first of n_seeds */
    uint64_t n_seeds;
    int n_runs;
    unsigned limit_s; /* of one case */
} bench;

/* Aborts the program when a row is full: a mistake in the program. */
void bench_add(bench_row *row, const char *key, double value);
/* Whether status is fine; else the row fails with the sentence. */
bool bench_check(bench_row *row, ferry_status status, const ferry_error *error);

typedef void bench_measure(const bench *b, const void *argument, bench_row *row);

/* Measures in a process of its own, prints the row and writes it. */
void bench_case(bench *b, const char *name, bench_measure *measure, const void *argument);

double bench_now(void);
double bench_median(double *seconds, int n); /* sorts them */
uint64_t bench_peak_kib(void);
void *bench_alloc(size_t n, size_t bytes); /* exits when there is no memory */

/* What travels. */
typedef enum load_kind {
    LOAD_SPARSE,     /* 4 batches of each rank to others, at random */
    LOAD_DENSE,      /* 64 batches of each rank to others, at random */
    LOAD_SKEWED,     /* 32 batches a rank; few ranks send and receive most of them */
    LOAD_HALVES,     /* 64 batches of each rank of the first half to the second */
    LOAD_ALL_TO_ALL, /* one of each rank to each other */
    N_LOAD_KINDS
} load_kind;

typedef enum load_sizes {
    SIZES_EQUAL,       /* 16 MiB */
    SIZES_UNIFORM,     /* up to 64 MiB */
    SIZES_EXPONENTIAL, /* 32 MiB on the average */
    SIZES_HEAVY_TAIL,  /* Pareto, 1.2: 4 MiB at least, 4 GiB at most */
    SIZES_TINY,        /* up to 16 KiB */
    N_LOAD_SIZES
} load_sizes;

typedef struct load {
    char name[NAME_BYTES];
    uint32_t n_ranks;
    uint64_t n;
    uint32_t *from;
    uint32_t *to;
    uint32_t *index; /* among those of the pair */
    uint64_t *bytes; /* even: of 2-byte elements */
} load;

/* A function of its arguments alone. */
void load_init(load *l, uint32_t n_ranks, load_kind kind, load_sizes sizes, uint64_t seed);
void load_cleanup(load *l);
/* Into the folder of loads, as JSON, where one is asked for. */
void load_write(const bench *b, const load *l);
/* The most batches that one rank sends or receives; half: that one rank takes part in. */
uint32_t load_degree(const load *l, bool half);
/* One task for each batch. */
ferry_status load_tasks(const load *l, ferry_task_list **tasks_out, ferry_error *error);

extern const char *const load_kind_names[N_LOAD_KINDS];
extern const char *const load_sizes_names[N_LOAD_SIZES];

/* 50 GB/s each rank, 8 ranks a node. */
ferry_status bench_cluster(double node_gbytes_per_s, double latency_s, ferry_cluster **cluster_out,
                           ferry_error *error);

/* The parts. */
void bench_rounds(bench *b);
void bench_sizes(bench *b);
void bench_build(bench *b);
void bench_colour(bench *b);
void bench_fan_out(bench *b);
void bench_refit(bench *b);
void bench_simulate(bench *b);

#endif
