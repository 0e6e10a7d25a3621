/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_TUNE_H
#define FERRY_TOOL_TUNE_H

#include "bench_mixed.h"

/* What autotune has measured: by ranks just now, or in a file. */
typedef struct tune_table {
    ferry_mixed_comm_info info;  /* of a file: what it says, and sizes that follow from it */
    ferry_mixed_timing *timings; /* by operation, bytes and mode, ascending */
    size_t n;
} tune_table;

void tune_table_free(tune_table *table);

/* tune_file.c: a ferry.tuning/1 document; the sentence names the file and the place. */
ferry_status tune_read(const char *path, tune_table *table_out, ferry_error *error);

/* tune_text.c: on stdout, for people, or as a ferry.tuning/1 document. */
void tune_print_table(const tune_table *table);
void tune_print_json(const tune_table *table);

/* tune_rank.c: as a rank. */
int tune_rank(const mixed_request *r, ferry_world *world);

#endif
