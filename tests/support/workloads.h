/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_WORKLOADS_H
#define FERRY_TESTS_WORKLOADS_H

#include <ferry/reference.h>

#include <stddef.h>
#include <stdint.h>

typedef struct task {
    uint64_t id;
    uint32_t to;
    uint64_t bytes, element;
} task;

/* Packed, for the caller to destroy. */
static inline ferry_status try_workloads(uint32_t pe, uint32_t n_pes, const task *tasks,
                                         size_t n_tasks, uint64_t slot, uint32_t max_tasks,
                                         ferry_reference_workloads **out, ferry_error *error)
{
    ferry_reference_workloads *w = NULL;
    ferry_status status = ferry_reference_workloads_create(pe, n_pes, &w, error);
    for (size_t i = 0; i < n_tasks && status == FERRY_OK; i++) {
        const task *t = &tasks[i];
        status = ferry_reference_workloads_add_task(w, t->id, t->to, t->bytes, t->element, error);
    }
    if (status == FERRY_OK) {
        status = ferry_reference_workloads_pack(w, slot, max_tasks, error);
    }
    if (status == FERRY_OK) {
        *out = w;
        w = NULL;
    }
    ferry_reference_workloads_destroy(w);
    return status;
}

#endif
