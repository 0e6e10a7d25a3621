/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_WORKLOADS_H
#define FY_SCHEDULE_WORKLOADS_H

#include "schedule/pack.h"

#include <ferry/scheduler.h>

#include <stdbool.h>

typedef struct fy_workload_task {
    uint32_t destination;
    fy_pair_task task;
} fy_workload_task;

struct ferry_workload_group {
    const struct ferry_workloads *workloads;
    uint32_t destination;
    uint32_t n_segments;
    uint64_t first_segment;
    uint64_t bytes;
};

/* The groups for one destination. */
typedef struct fy_workload_run {
    uint32_t destination;
    uint32_t n_groups; /* not 0 */
    size_t first_group;
} fy_workload_run;

struct ferry_workloads {
    uint32_t my_pe;
    uint32_t n_pes;
    bool is_packed;
    fy_workload_task *tasks; /* once packed, by destination and id */
    size_t n_tasks, task_capacity;
    uint64_t slot_bytes; /* the rest is there once packed */
    uint32_t max_tasks;
    fy_pair_batches packed; /* segments' tasks are indices into tasks */
    ferry_workload_group *groups;
    fy_workload_run *runs; /* by ascending destination */
    size_t n_runs;
};

#endif
