/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_BENCH_TRANSPORT_H
#define FERRY_BENCH_TRANSPORT_H

#include <ferry/ferry.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * What the parts of bench_transport share. A part is a list of cases. What is compared within a
 * case, its series, is measured in turns in every round, so that a busy moment of the machine hits
 * all of them; a figure is the median over the rounds, a ratio the median of the rounds' ratios.
 */

enum { MAX_ROUNDS = 101, MAX_SERIES = 8, MAX_CASES = 16, MAX_RANKS = 512 };

#define MIB ((size_t)1 << 20)

/* Where ranks run. Ranks that are more than cores share them in turn. */
typedef enum pinning {
    PIN_NONE,
    PIN_BEFORE, /* each on a core of its own before it joins, as mpirun binds them */
    PIN_AFTER,  /* once the transport is open: the library knows of all cores */
    PIN_ONE,    /* all on one core */
} pinning;

typedef struct bench {
    FILE *json;       /* NULL: none */
    const char *part; /* the one at work */
    bool is_first;
    bool has_failed;
    int n_rounds;
    unsigned limit_s; /* of one team of ranks */
    size_t memory;    /* bytes that copies walk through, on each side */
    bool is_busy;     /* the machine is: copies by one thread count by its own time */
    /* Of the parts that measure one thing next to a peer's program. */
    const char *engine;
    size_t bytes;
    int count;
    pinning pinning;
} bench;

/* Figures of all cases of a team, filled by the ranks. */
typedef struct results {
    double values[MAX_CASES][MAX_SERIES][MAX_ROUNDS];
} results;

/* Ranks that do one thing together, in processes of their own or as threads of one. */
typedef struct member member;
typedef struct team {
    uint32_t n_ranks;
    bool is_threads;
    bool is_bare;       /* without a transport */
    const char *engine; /* NULL: the best */
    pinning pinning;
    void (*run)(member *m);
    const void *argument;
} team;

struct member {
    const bench *bench;
    const team *team;
    ferry_world *world;
    ferry_transport *transport;
    uint32_t rank;
    results *results; /* the same for all ranks */
};

/* -- transport_team.c */

/* Runs a team to its end and returns its results, valid until the next; NULL if it failed. */
const results *team_run(bench *b, const team *plan);

/* Ends the whole team with a sentence on stderr unless status is fine. */
void member_check(const member *m, ferry_status status, const ferry_error *error);
void member_barrier(member *m);
void member_pin(uint32_t rank, pinning how);

ferry_region *member_alloc(member *m, size_t bytes);
ferry_region *member_register(member *m, void *base, size_t bytes);
/* Private memory, every page there; huge: of huge pages where the machine gives them. */
void *member_map(const member *m, size_t bytes, bool huge);
void member_put(member *m, uint32_t peer, ferry_region *to, size_t offset, const void *from,
                size_t bytes);
/* A put of bytes with a signal that sets the word at the offset of words. */
void member_raise(member *m, uint32_t peer, ferry_region *to, const void *from, size_t bytes,
                  ferry_region *words, size_t offset, uint64_t value);
void member_await(member *m, ferry_region *words, size_t offset, uint64_t value, uint32_t from);
void member_flush(member *m, uint32_t peer);

/* -- bench_transport.c */

double bench_now(void);
double bench_own_time(void); /* of this thread on a core */
double bench_median(const double *values, int n);
double bench_part_of(const double *values, int n, double part); /* 0.99: all but one in a hundred */
/* The range of the middle half over the median. */
double bench_spread(const double *values, int n);

/* A case's row: medians and spreads of its series, and of the first one over each of the others. */
void report(bench *b, const char *name, const results *r, int index, const char *const *series,
            int n_series, int n_rounds);

/* The parts. */
void bench_put(bench *b);
void bench_attach(bench *b);
void bench_all_to_all(bench *b);
void bench_alloc(bench *b);
void bench_signal(bench *b);
void bench_rate(bench *b);
void bench_barrier(bench *b);
void bench_start(bench *b);
/* Next to a peer's program: one engine and size. */
void bench_stream(bench *b);
void bench_turn(bench *b);

#endif
