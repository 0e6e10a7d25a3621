/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_TUNE_TABLE_H
#define FY_COLLECTIVE_TUNE_TABLE_H

#include "base/hash.h"
#include "collective/tune.h"

/* A table of times: what the parts of autotune share. */

/* What is taken at a measured size. */
typedef struct fy_tuned {
    uint64_t bytes;
    uint32_t mode, block_lines;
} fy_tuned;

struct fy_tuning {
    ferry_mixed_timing *timings; /* ascending by op, bytes, mode */
    size_t n, room;
    fy_tuned *tuned; /* of the timings those that are chosen, in the same order */
    size_t first[FERRY_MIXED_N_OPS + 1]; /* of each operation, in tuned */
};

/* Empty, with room for so many timings; NULL without memory. */
fy_tuning *fy_tuning_create(size_t room);

/* All timings are there, in order: makes the index of those that are chosen. */
void fy_tuning_index(fy_tuning *tuning);

/* The handle has this table now, and with it the mode AUTOTUNE. */
void fy_tuning_adopt(ferry_mixed_comm *comm, fy_tuning *tuning);

/* The largest block that a caller of the handle allows and its boxes have room for. */
uint32_t fy_tuning_most_lines(const ferry_mixed_comm *comm);

/*
 * Collective: how autotune begins on every rank. Some measuring while others read a file would wait
 * for each other for ever, and tables that differ would choose differently: FERRY_OK only where all
 * ranks do the same. table: the digest of the one that was read, NULL of who measures. *share is
 * the least of all then. status and *error are this rank's until now.
 */
ferry_status fy_tune_meet(ferry_mixed_comm *comm, ferry_status status, const char *table,
                          uint64_t *share_inout, ferry_error *error);

/* tune_file.c; local. The table must fit to the handle: its topology, type, modes and blocks. */
ferry_status fy_tuning_read(const ferry_mixed_comm *comm, const char *path, fy_tuning **tuning_out,
                            ferry_error *error);
ferry_status fy_tuning_write(const ferry_mixed_comm *comm, const fy_tuning *tuning,
                             const char *path, ferry_error *error);

#endif
