/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_BENCH_REFIT_H
#define FERRY_BENCH_REFIT_H

#include "refit_cases.h"

#include <ferry/ferry.h>
#include <ferry/service.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the files of bench_refit share. */

enum { REFIT_MAX_RUNS = 1000, REFIT_MAX_SERIES = 24, REFIT_MAX_RANKS = 64 };

typedef struct refit_bench {
    const refit_case *its;
    ferry_world *world;
    ferry_transport *transport;
    uint32_t rank;
    ferry_buffer source, destination; /* of this rank */
    uint64_t n_threads;               /* that copy, on each rank; 0: the default */
} refit_bench;

/*
 * What is timed, in turns with all others: the service with some options, or a limit of the
 * machine. A run is collective.
 */
typedef struct refit_series {
    const char *text;
    bool is_service;
    void (*run)(refit_bench *b, struct refit_series *s);
    void (*end)(refit_bench *b, struct refit_series *s);
    void *own;
    uint64_t bytes;                     /* that a run moves; 0: those of the case */
    double seconds[REFIT_MAX_RUNS];     /* of the slowest rank */
    double cpu_seconds[REFIT_MAX_RUNS]; /* that all ranks' threads had cores, together */
    uint64_t n_allocations;             /* calls of malloc and its kin in runs behind the first */
    double staging_pss_bytes;           /* memory that the service took, all ranks together */
    double prepare_seconds;             /* to create, register and schedule */
    double first_seconds;
    uint64_t wrong_rows;
    bool stood_still; /* no schedule, allocation or registration behind the first run */
    ferry_service_statistics statistics; /* sums over the ranks; seconds are the greatest */
} refit_series;

/* -- bench_refit.c */

/* Ends all ranks with a sentence on stderr unless status is fine. */
void refit_check(const refit_bench *b, ferry_status status, const ferry_error *error);
void refit_fail(const refit_bench *b, const char *sentence);
void refit_barrier(refit_bench *b);
double refit_now(void);
uint64_t refit_sum(refit_bench *b, uint64_t own);
double refit_max(refit_bench *b, double own);
double refit_total(refit_bench *b, double own);

/* -- refit_service.c */

/*
 * run, or words joined by +: mapped, attach, remote, staged (only this path), path, end
 * (checksums), cap=MIB, slot=KIB, threads=N, bind (layers by a plan). False if text is none of
 * them.
 */
bool refit_service_prepare(refit_bench *b, refit_series *s);
/* After the first run and after the last one. */
void refit_service_note_first(refit_bench *b, refit_series *s);
void refit_service_note_last(refit_bench *b, refit_series *s);

/* -- refit_limits.c */

/*
 * copy         1 GiB with the library's streaming copy, a thread on every core, in private memory
 * copy-here    every rank's source to its destination as far as both go, one stretch, all at once
 * read         every rank reads its destination
 * attach-write, attach-read
 *              the boxes of the case by process_vm_writev or readv alone, many rows in a call,
 *              all ranks at once
 */
bool refit_limit_prepare(refit_bench *b, refit_series *s);

/* -- refit_count.c */

/* Calls of malloc, calloc, realloc and aligned_alloc in this process so far. */
uint64_t refit_count_allocations(void);

#endif
