/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_BENCH_H
#define FERRY_TOOL_BENCH_H

#include "bench_mixed.h"

#include <ferry/ferry.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What `ferry bench` was asked for. */
typedef struct bench_request {
    bool json;
    bool join;             /* be one rank of a world that somebody else has started */
    uint32_t n_ranks;      /* 0: not said */
    const char *transport; /* NULL: the best */
    uint32_t n_threads;    /* 0: not said */
    uint32_t memory;       /* a ferry_memory_kind; 0, the host, unless said */
    uint64_t bytes;        /* of each copy; 0: not said */
    uint64_t least;        /* sizes in bytes; 0: those of each table */
    uint64_t most;
    double seconds; /* of each line */
    /* As they were typed, for the ranks; NULL: not said. */
    const char *sizes_text;
    const char *seconds_text;
    mixed_request mixed; /* what goes with mixed only; the rest is filled in when it is run */
} bench_request;

enum { BENCH_RANKS = 2 };

/* A size in the shortest exact form: "64 B", "512 KiB". Returns text. */
const char *bench_size_text(uint64_t bytes, char text[32]);

/* Times of one line, in seconds. Sorts them. */
typedef struct bench_times {
    double median;
    double p99; /* all but one in a hundred are shorter */
    double least;
    double most;
} bench_times;

bench_times bench_sort_times(double *seconds, size_t n);

double bench_now(void);

/* One line of the result. Rates are of whole messages; both_ways counts those of both ranks. */
typedef enum bench_test {
    BENCH_PUT_SIGNAL = 0, /* one way of a put with its signal */
    BENCH_SIGNAL = 1,
    BENCH_BARRIER = 2,
    BENCH_PUT = 3, /* from here on: windows of messages and a flush */
    BENCH_BOTH_WAYS = 4,
    BENCH_GET = 5,
} bench_test;

typedef struct bench_line {
    bench_test test;
    uint64_t bytes;
    uint32_t window;   /* messages between two flushes */
    size_t n;          /* samples */
    bench_times times; /* of a message one way, or of a window */
    double rate;       /* median bytes a second; of both directions together */
    double slow_rate;
} bench_line;

typedef struct bench_report {
    bool json;
    bool any; /* a line was printed */
    bench_test last;
    uint32_t n_ranks;
    const char *engine;
    uint32_t capabilities;
    ferry_machine machine; /* with the copy limit */
} bench_report;

/* On stdout, line by line. */
void bench_report_begin(const bench_report *report);
void bench_report_line(bench_report *report, const bench_line *line);
void bench_report_end(const bench_report *report);

/* As a rank of a world. An exit status, after a sentence on stderr if it is not EXIT_DONE. */
int bench_transport(const bench_request *request);
int bench_copy(const bench_request *request);
/* The same of devices of the request's kind: from and to the host, and within each. */
int bench_copy_devices(const bench_request *request);
int bench_pack(const bench_request *request);

#endif
