/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "collective/tune_heat.h"

#include "base/checked.h"
#include "world/bell.h"

#include <stdlib.h>
#include <string.h>

/* Tensors of one row in each chunk. */
static ferry_mixed_tensor tensor_of(const fy_course *course, ferry_buffer memory, uint32_t n_chunks,
                                    uint64_t piece_bytes)
{
    memory.bytes = n_chunks * piece_bytes;
    return (ferry_mixed_tensor){memory, n_chunks,
                                piece_bytes / course->comm->program.element_bytes};
}

static ferry_status run_one(const fy_course *course, uint64_t piece_bytes, uint32_t mode,
                            uint32_t block_lines, ferry_error *error)
{
    const fy_topology *t = &course->comm->program.topology;
    ferry_mixed_tensor in =
        tensor_of(course, course->in, fy_mix_op_in_chunks(t, course->op), piece_bytes);
    ferry_mixed_tensor out =
        tensor_of(course, course->out, fy_mix_op_out_chunks(t, course->op), piece_bytes);
    return fy_comm_run(course->comm, course->op, &in, &out, mode, block_lines, error);
}

static int64_t now_ns(const fy_course *course)
{
    const fy_mix_verbs *verbs = course->comm->host_verbs;
    return verbs->now_ns(verbs);
}

/* A sample, with a small call before it: no operation ends before all ranks have begun it. */
static ferry_status take_sample(const fy_course *course, const fy_entrant *entrant, double *seconds,
                                ferry_error *error)
{
    ferry_status status =
        run_one(course, course->comm->program.element_bytes, course->comm->modes[0], 0, error);
    int64_t begin = now_ns(course);
    for (uint32_t i = 0; status == FERRY_OK && i < entrant->n_calls; i++) {
        status = run_one(course, course->bytes, entrant->mode, entrant->block_lines, error);
    }
    *seconds = (double)(now_ns(course) - begin) * 1e-9 / entrant->n_calls;
    return status;
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What disturbs a call makes it longer: of two in the middle the shorter one is nearer to it. */
static void find_median(fy_entrant *entrant)
{
    double sorted[FY_MOST_SAMPLES];
    if (entrant->n_samples == 0) {
        return;
    }
    memcpy(sorted, entrant->samples, entrant->n_samples * sizeof *sorted);
    qsort(sorted, entrant->n_samples, sizeof *sorted, compare_numbers);
    entrant->seconds = sorted[(entrant->n_samples - 1) / 2];
    entrant->least = sorted[0];
}

/* Number i of n that every rank has brought: the longest time. */
static double longest_of(const fy_course *course, const void *all, size_t n, size_t i)
{
    double longest = 1e-9; /* of a clock that stands still */
    for (uint32_t rank = 0; rank < course->comm->world->n_ranks; rank++) {
        double seconds;
        memcpy(&seconds, (const char *)all + (rank * n + i) * sizeof seconds, sizeof seconds);
        longest = seconds > longest ? seconds : longest;
    }
    return longest;
}

/* This rank's times and, behind them, how long all of that took: the longest count everywhere. */
static ferry_status add_samples(fy_course *course, fy_entrant *entrants, size_t n, size_t n_samples,
                                ferry_error *error)
{
    const void *all = NULL;
    size_t n_mine = n_samples + 1;
    FY_TRY(ferry_world_all_gather(course->comm->world, course->mine, n_mine * sizeof(double), &all,
                                  error));
    for (size_t i = 0; i < n_samples; i++) {
        fy_entrant *entrant = &entrants[i % n];
        if (entrant->n_samples < FY_MOST_SAMPLES) {
            entrant->samples[entrant->n_samples++] = longest_of(course, all, n_mine, i);
        }
    }
    for (size_t i = 0; i < n; i++) {
        find_median(&entrants[i]);
    }
    course->spent += longest_of(course, all, n_mine, n_samples);
    return FERRY_OK;
}

ferry_status fy_heat_run(fy_course *course, fy_entrant *entrants, size_t n, uint32_t n_rounds,
                         ferry_error *error)
{
    ferry_status status = FERRY_OK;
    int64_t begin = now_ns(course);
    for (uint32_t round = 0; round < n_rounds; round++) {
        for (size_t i = 0; status == FERRY_OK && i < n; i++) {
            /* Back and forth: nobody runs behind the same one each time. */
            size_t at = round % 2 == 0 ? i : n - 1 - i;
            status = take_sample(course, &entrants[at], &course->mine[round * n + at], error);
        }
    }
    course->mine[n * n_rounds] = (double)(now_ns(course) - begin) * 1e-9;
    return status == FERRY_OK ? add_samples(course, entrants, n, n * n_rounds, error) : status;
}

void fy_heat_clear(fy_entrant *entrants, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        entrants[i].n_samples = 0;
    }
}

bool fy_heat_set_calls(fy_entrant *entrants, size_t n)
{
    enum { MOST_CALLS = 32 };
    const double sample_seconds = 0.3e-3;
    bool more = false;
    for (size_t i = 0; i < n; i++) {
        double fit = sample_seconds / entrants[i].least;
        uint32_t calls = fit < 1 ? 1 : fit > MOST_CALLS ? MOST_CALLS : (uint32_t)fit;
        more |= calls >= 2 * entrants[i].n_calls;
        entrants[i].n_calls = calls;
    }
    return more;
}

static int compare_entrants(const fy_entrant *a, const fy_entrant *b, double x, double y)
{
    if (x != y) {
        return x < y ? -1 : 1;
    }
    if (a->mode != b->mode) {
        return a->mode < b->mode ? -1 : 1;
    }
    return (a->block_lines > b->block_lines) - (a->block_lines < b->block_lines);
}

static int compare_medians(const void *a, const void *b)
{
    const fy_entrant *x = a, *y = b;
    return compare_entrants(x, y, x->seconds, y->seconds);
}

static int compare_least(const void *a, const void *b)
{
    const fy_entrant *x = a, *y = b;
    return compare_entrants(x, y, x->least, y->least);
}

void fy_heat_sort(fy_entrant *entrants, size_t n, bool by_least)
{
    qsort(entrants, n, sizeof *entrants, by_least ? compare_least : compare_medians);
}
