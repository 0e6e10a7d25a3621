/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_TUNE_TABLES_H
#define FERRY_TESTS_TUNE_TABLES_H

#include "support/check.h"

#include "base/alloc.h"
#include "collective/tune_table.h"

#include <ferry/ferry.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Tables that were not measured, and a folder for their files: "a.json" to "h.json". */

static char folder[] = "/tmp/ferry-tune-XXXXXX";

static inline const char *path_of(const char *name)
{
    static _Thread_local char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/*
 * A handle of one rank of four, without a world: all that tables look at
 */

static inline void make_handle(ferry_mixed_comm *comm)
{
    const ferry_mixed_comm_options options = FERRY_MIXED_COMM_OPTIONS_INIT;
    const fy_topology_wish wish = {
        .world_size = 4, .local_size = 4, .inter_size = 1, .local_tp = 2, .local_dp = 2};
    ferry_error error;
    memset(comm, 0, sizeof *comm);
    must(fy_topology_make(&wish, &comm->program.topology, &error), &error);
    comm->options = options;
    comm->ops[0] = FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
    comm->ops[1] = FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE;
    comm->n_ops = 2;
    for (uint32_t mode = FERRY_MIXED_FUSED_WAITS_MULTICAST;
         mode <= FERRY_MIXED_FUSED_BYTES1_UNICAST; mode++) {
        comm->modes[comm->n_modes++] = mode;
    }
    comm->program.n_lanes = 1;
    comm->program.limits.most_lines = 4096;
}

static inline void add(fy_tuning *tuning, uint32_t op, uint64_t bytes, uint32_t mode,
                       uint32_t block_lines, double seconds, bool is_chosen)
{
    assert_true(tuning->n < tuning->room);
    tuning->timings[tuning->n++] = (ferry_mixed_timing){
        sizeof(ferry_mixed_timing), op, mode, bytes, block_lines, seconds, is_chosen};
}

/* Of each operation two sizes, of which another mode is chosen. */
static inline fy_tuning *make_table(void)
{
    fy_tuning *tuning = fy_tuning_create(8);
    assert_non_null(tuning);
    for (uint32_t op = FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
         op <= FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE; op++) {
        add(tuning, op, 8192, FERRY_MIXED_FUSED_WAITS_MULTICAST, 0, 1.25e-5, true);
        add(tuning, op, 8192, FERRY_MIXED_FUSED_BYTES1_MULTICAST, 0, 2.5e-5, false);
        add(tuning, op, 65536, FERRY_MIXED_FUSED_WAITS_MULTICAST, 0, 0, false);
        add(tuning, op, 65536, FERRY_MIXED_FUSED_BYTES1_MULTICAST, 256 + op, 1.0 / 3, true);
    }
    fy_tuning_index(tuning);
    return tuning;
}

static inline int make_folder(void **state)
{
    (void)state;
    unsetenv("FERRY_TUNE_FILE");
    return mkdtemp(folder) == NULL;
}

/* Fails where anything else was left in it. */
static inline int remove_folder(void **state)
{
    char name[] = "a.json";
    (void)state;
    for (; name[0] <= 'h'; name[0]++) {
        unlink(path_of(name));
    }
    return rmdir(folder);
}

#endif
