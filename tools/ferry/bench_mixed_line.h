/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_BENCH_MIXED_LINE_H
#define FERRY_TOOL_BENCH_MIXED_LINE_H

#include "bench_mixed.h"
#include "bench_mixed_check.h"
#include "bench_mixed_device.h"
#include "bench_mixed_predict.h"

/* One line of `ferry bench mixed`: how it is timed and checked. */

enum { MIXED_MOST_SAMPLES = 2000 };

typedef struct mixed_bench {
    const mixed_request *request;
    mixed_rank rank;
    uint32_t ops[FERRY_MIXED_N_OPS], modes[FERRY_MIXED_N_MODES]; /* that are measured */
    size_t n_ops, n_modes;
    mixed_memory in, out;
    mixed_memory place; /* of those in place: as long as the longer of the two */
    ferry_queue *queue; /* that calls are put on; NULL: they are made in host order */
    double *samples;
    size_t most_samples;
    uint32_t n_lines;
    mixed_report report;
    mixed_costs costs;       /* of predictions, on rank 0 */
    mixed_sketches sketches; /* of all ranks, on rank 0; none unless they are looked at */
    mixed_sample *fit;       /* what they were fitted to */
    size_t n_fit;
    uint64_t n_wrong;
    uint32_t n_differ;
    ferry_error first_wrong; /* a sentence about the first */
} mixed_bench;

/* This rank's call, of one pattern. */
mixed_case mixed_case_of(const mixed_bench *b, const mixed_line *line, mixed_pattern pattern);

/*
 * Collective: the line names operation, mode and piece, and gets its figures; rank 0 prints it.
 * What is wrong in it is added up in b, alike on all ranks.
 */
ferry_status mixed_run_line(mixed_bench *b, mixed_line *line, ferry_error *error);
/* The same out of place only, and nobody prints it. */
ferry_status mixed_time_line(mixed_bench *b, mixed_line *line, ferry_error *error);
/* Whether calls in a mode are made by a library, and not by schedules of ferry's. */
bool mixed_is_by_library(const ferry_mixed_comm_info *info, uint32_t mode);

#endif
