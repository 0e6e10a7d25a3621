/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_FUZZ_H
#define FERRY_TESTS_FUZZ_H

/*
 * What the fuzz targets have in common. Each target is a LLVMFuzzerTestOneInput, which libFuzzer
 * drives; replay.c drives it over the committed corpus where there is no libFuzzer. A target aborts
 * where a promise is broken that no sanitizer knows of.
 */
#include "model/spec.h"

#include <ferry/ferry.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define promise(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition);                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* A failure has a sentence of one line, and success none. */
static inline void check_sentence(ferry_status status, const ferry_error *error)
{
    promise((status == FERRY_OK) == (error->message[0] == '\0'));
    promise(strpbrk(error->message, "\n\r\t\x1b") == NULL);
    promise(strlen(error->message) < sizeof error->message);
    promise(status != FERRY_ERR_MISUSE && status != FERRY_ERR_NO_MEMORY);
}

/*
 * A plan of 2^24 ranks or boxes is legal and takes its time. Reading has no such excuse: only what
 * is planned has to be small.
 */
enum { MOST_WORLD = 1024, MOST_TENSORS = 64, MOST_DIMS = 3, MOST_PIECES = 24 };

static inline bool is_small_shard(const fy_shard *shard, uint64_t extent)
{
    uint64_t n_pieces = shard->n_ranks;
    if (shard->cut == FY_CUT_CYCLE) {
        n_pieces = extent / shard->length;
    } else if (shard->cut == FY_CUT_STRIDE) {
        n_pieces = shard->length > extent ? extent : shard->length;
    } else if (shard->cut == FY_CUT_BLOCKS) {
        n_pieces = shard->n_values;
    }
    return n_pieces <= MOST_PIECES;
}

static inline bool is_small_side(const ferry_spec *spec, const fy_side *side)
{
    uint64_t extent = 0;
    for (uint32_t t = 0; t < spec->n_tensors; t++) {
        for (uint32_t d = 0; d < spec->tensors[t].n_dims; d++) {
            extent = spec->tensors[t].shape[d] > extent ? spec->tensors[t].shape[d] : extent;
        }
    }
    for (uint32_t r = 0; r < side->n_rules; r++) {
        for (uint32_t i = 0; i < side->rules[r].n_shards; i++) {
            if (!is_small_shard(&side->rules[r].shards[i], extent)) {
                return false;
            }
        }
    }
    for (uint32_t i = 0; side->ranks != NULL && i < side->n_ranks; i++) {
        if (side->ranks[i] >= MOST_WORLD) {
            return false;
        }
    }
    return side->first_rank + side->n_ranks <= MOST_WORLD;
}

static inline bool is_small(const ferry_spec *spec)
{
    for (uint32_t t = 0; t < spec->n_tensors; t++) {
        if (spec->tensors[t].n_dims > MOST_DIMS) {
            return false;
        }
    }
    return spec->n_tensors <= MOST_TENSORS && is_small_side(spec, &spec->source) &&
           is_small_side(spec, &spec->destination);
}

/* A file that lives in memory; its path is good until it is closed. */
typedef struct memory_file {
    int descriptor;
    char path[64];
} memory_file;

static inline memory_file open_memory(const void *bytes, size_t n_bytes)
{
    memory_file file = {.descriptor = memfd_create("fuzz", MFD_CLOEXEC)};
    if (file.descriptor < 0 || write(file.descriptor, bytes, n_bytes) != (ssize_t)n_bytes) {
        perror("memfd");
        abort();
    }
    snprintf(file.path, sizeof file.path, "/proc/self/fd/%d", file.descriptor);
    return file;
}

static inline void close_memory(memory_file *file)
{
    close(file->descriptor);
}

typedef struct fuzz_sums {
    const ferry_plan *plan;
    uint64_t n_moves, moved, local, next_task;
} fuzz_sums;

static inline ferry_status add_move(void *context, const ferry_move *move)
{
    fuzz_sums *sums = context;
    promise(move->task_id == sums->next_task++);
    promise(move->from < ferry_plan_rank_count(sums->plan));
    promise(move->to < ferry_plan_rank_count(sums->plan));
    promise(move->bytes > 0);
    sums->n_moves++;
    *(move->from == move->to ? &sums->local : &sums->moved) += move->bytes;
    return FERRY_OK;
}

/* The moves, one by one, are what the totals say. */
static inline void check_plan(const ferry_plan *plan)
{
    ferry_error error = {""};
    fuzz_sums sums = {.plan = plan};
    ferry_plan_totals totals = FERRY_PLAN_TOTALS_INIT;
    promise(ferry_plan_get_totals(plan, &totals, &error) == FERRY_OK);
    if (totals.n_moves > 100000) {
        return; /* legal, and slow */
    }
    promise(ferry_plan_visit(plan, FERRY_ALL_RANKS, add_move, &sums, NULL, &error) == FERRY_OK);
    promise(sums.n_moves == totals.n_moves && sums.moved == totals.moved_bytes);
    promise(sums.local == totals.local_bytes && sums.moved + sums.local > 0);
}

#endif
