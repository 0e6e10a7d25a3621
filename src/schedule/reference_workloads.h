/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_REFERENCE_WORKLOADS_H
#define FY_SCHEDULE_REFERENCE_WORKLOADS_H

#include "base/bytes.h"
#include "schedule/pack.h"
#include "schedule/tasks.h"

#include <ferry/reference.h>

#include <stdbool.h>

/* The batches to one rank. */
typedef struct fy_workload_run {
    uint32_t to;
    uint32_t n_batches; /* not 0 */
    size_t first_batch;
} fy_workload_run;

struct ferry_reference_workloads {
    uint32_t rank;
    uint32_t n_ranks;
    bool is_packed;
    fy_listed_task *listed; /* once packed, by receiver and id */
    size_t n_tasks, task_capacity;
    uint64_t slot_bytes; /* the rest is there once packed */
    uint32_t max_tasks;
    fy_task *tasks;         /* [n_tasks] in the same order */
    fy_pair_batches packed; /* segments' tasks are indices into tasks */
    fy_workload_run *runs;  /* by ascending receiver */
    size_t n_runs;
};

typedef void fy_workload_batch_fn(const ferry_reference_workloads *w, const fy_pair_batch *batch,
                                  fy_pack *out);
/* The runs of (to, number of batches) to other ranks, and of each batch what `pack` writes. */
void fy_workload_batches_pack(const ferry_reference_workloads *w, fy_workload_batch_fn *pack,
                              fy_pack *out);

#endif
