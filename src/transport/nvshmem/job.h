/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_NVSHMEM_JOB_H
#define FY_NVSHMEM_JOB_H

#include "transport/engine.h"
#include "transport/nvshmem/heap.h"

/*
 * The process as a PE of NVSHMEM. NVSHMEM has one world for each process, from its start to the end
 * of the process: it has no way to lose a PE, nor to begin again with others. So ferry starts it
 * with the first transport that uses it; later ones use it again if their ranks are the same
 * processes in the same order, and are refused by a sentence if not. Its collective end is never
 * called, for that would wait without a limit for a rank that has died: the end of the process is
 * the end of it.
 */
typedef struct fy_nvshmem_job {
    char *pool;    /* this rank's part of the symmetric heap, all of it */
    char **mapped; /* by rank: where its part is here, or NULL; NULL of this rank itself */
    fy_nvshmem_heap heap;
    bool has_unmapped; /* some rank's part is not here */
    fy_space space;    /* that the heap lies in */
} fy_nvshmem_job;

extern fy_nvshmem_job fy_nvshmem_own;

/* Whether the heap is, or will be, in memory of devices: as NVSHMEM_HEAP_KIND says. */
bool fy_nvshmem_is_of_devices(void);

/* Whether one can be started here at all; else why is a sentence. */
bool fy_nvshmem_probe(char *why, size_t why_bytes);

/* Enters the job with the ranks of this world, which start it if there is none; collective. */
ferry_status fy_nvshmem_enter(const fy_host *host, ferry_error *error);

/* The transport ends. In a world that has failed the job ends with it. */
void fy_nvshmem_leave(const fy_host *host);

#endif
