/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Any text as the saved table of a handle of four ranks, TP2 x DP2. */
#include "collective/tune_table.h"

#include <ferry/ferry.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* fuzz.h knows models, whose names for boxes and cuts are others than those of collectives. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define promise(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition);                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum { MOST_LINES = 4096 };

static char folder[] = "/tmp/ferry-fuzz-XXXXXX";
static char table[64], written[64];

static void remove_folder(void)
{
    unlink(table);
    unlink(written);
    rmdir(folder);
}

/* No world: a table is read by each rank alone. */
static void make_handle(ferry_mixed_comm *comm)
{
    const ferry_mixed_comm_options options = FERRY_MIXED_COMM_OPTIONS_INIT;

    const fy_topology_wish wish = {
        .world_size = 4, .local_size = 4, .inter_size = 1, .local_tp = 2, .local_dp = 2};
    promise(mkdtemp(folder) != NULL);
    snprintf(table, sizeof table, "%s/table", folder);
    snprintf(written, sizeof written, "%s/written", folder);
    atexit(remove_folder);
    promise(fy_topology_make(&wish, &comm->program.topology, NULL) == FERRY_OK);
    comm->options = options;
    for (uint32_t op = 0; op < FERRY_MIXED_N_OPS; op++) {
        if (fy_topology_has_op(&comm->program.topology, op)) {
            comm->ops[comm->n_ops++] = op;
        }
    }
    for (uint32_t mode = FERRY_MIXED_FUSED_WAITS_UNICAST; mode <= FERRY_MIXED_BASE_ONE; mode++) {
        comm->modes[comm->n_modes++] = mode;
    }
    comm->program.n_lanes = 1;
    comm->program.limits.most_lines = MOST_LINES;
}

/* What was accepted is good for every size, and written again it is the same. */
static void check_table(ferry_mixed_comm *comm, fy_tuning *tuning)
{
    ferry_error error = {""};
    fy_tuning *again = NULL;
    comm->tuning = tuning;
    for (size_t i = 0; i < comm->n_ops; i++) {
        for (uint64_t bytes = 1; bytes != 0; bytes *= 2) {
            uint32_t mode = 0, block_lines = UINT32_MAX;
            fy_tune_select(comm, comm->ops[i], bytes, &mode, &block_lines);
            promise(fy_comm_has_mode(comm, mode) && block_lines <= MOST_LINES);
        }
    }
    comm->tuning = NULL;
    promise(fy_tuning_write(comm, tuning, written, &error) == FERRY_OK);
    promise(fy_tuning_read(comm, written, &again, &error) == FERRY_OK);
    promise(again->n == tuning->n);
    for (size_t i = 0; i < tuning->n; i++) {
        const ferry_mixed_timing *a = &tuning->timings[i], *b = &again->timings[i];
        promise(a->op == b->op && a->bytes == b->bytes && a->mode == b->mode);
        promise(a->block_lines == b->block_lines && a->seconds == b->seconds);
        promise(a->chosen == b->chosen);
    }
    fy_tune_destroy(again);
}

static void put_table(const uint8_t *data, size_t size)
{
    FILE *stream = fopen(table, "wb");
    promise(stream != NULL && fwrite(data, 1, size, stream) == size);
    promise(fclose(stream) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ferry_mixed_comm comm;

    ferry_error error = {""};
    fy_tuning *tuning = NULL;
    if (comm.n_ops == 0) {
        make_handle(&comm);
    }
    put_table(data, size);
    ferry_status status = fy_tuning_read(&comm, table, &tuning, &error);
    promise(status == FERRY_OK || status == FERRY_ERR_INVALID_INPUT);
    promise((status == FERRY_OK) == (error.message[0] == '\0'));
    promise(strpbrk(error.message, "\n\r\t\x1b") == NULL);
    promise((tuning != NULL) == (status == FERRY_OK));
    if (tuning != NULL) {
        check_table(&comm, tuning);
    }
    fy_tune_destroy(tuning);
    return 0;
}
