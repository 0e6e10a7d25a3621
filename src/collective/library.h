/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_LIBRARY_H
#define FY_COLLECTIVE_LIBRARY_H

#include "collective/comm.h"
#include "collective/device.h"
#include "exec/circle.h"

/*
 * BASE modes by a library of the devices' (exec/circle.h), where the options of all ranks name a
 * device and all have it; else ferry's own rings make them.
 *
 * Nobody compares the calls of such a library, and a rank that does not come is waited for without
 * end. So a call has two parts. In the first the host goes through the smallest schedule there is,
 * whose messages carry what this call is: ranks that differ, die or are late are found as in any
 * other call. Only then is the library called, by all ranks or by none that can come to an end.
 */

/*
 * Collective, behind the kernel's opening: comm->library, or NULL. Why there is none is logged.
 */
ferry_status fy_mix_library_open(ferry_mixed_comm *comm, ferry_error *error);
/* Collective, but where the world has failed. */
void fy_mix_library_close(ferry_mixed_comm *comm);

/* Whether it makes calls in a mode; NULL: none. */
bool fy_mix_library_makes(const fy_mix_library *library, uint32_t mode);
/* "nccl 2.28.3"; NULL: "ferry". For ever. */
const char *fy_mix_library_name(const fy_mix_library *library);

/* The device, for memory of it. */
const fy_mix_device *fy_mix_library_device(const fy_mix_library *library);

/* A call, whose first part begins now: its own tensors are behind it. */
void fy_mix_library_begin(fy_mix_library *library, const fy_mix_call *call,
                          const ferry_mixed_tensor *in, const ferry_mixed_tensor *out);

extern const fy_mix_verbs fy_mix_library_verbs;

/* library_steps.c: pure. Groups of ranks that a handle has. */
typedef enum fy_mix_group {
    FY_MIX_GROUP_WORLD = 0,
    FY_MIX_GROUP_TP,
    FY_MIX_GROUP_DP,
    FY_MIX_N_GROUPS
} fy_mix_group;

/* This rank's number in a group, how many it has, and which rank of the world begins it. */
typedef struct fy_mix_seat {
    uint32_t rank, n_ranks, first;
} fy_mix_seat;
fy_mix_seat fy_mix_seat_of(const fy_topology *topology, fy_mix_group group);

/* Where a step reads and writes: a tensor, or memory between steps; from that chunk on. */
typedef enum fy_mix_step_place {
    FY_MIX_STEP_IN = 0,
    FY_MIX_STEP_OUT,
    FY_MIX_STEP_BETWEEN
} fy_mix_step_place;

typedef struct fy_mix_step_end {
    fy_mix_step_place place;
    uint32_t chunk;
} fy_mix_step_end;

typedef enum fy_mix_step_kind {
    FY_MIX_STEP_CALL = 0, /* the library's, of `chunks` pieces */
    FY_MIX_STEP_COPY,     /* a piece */
    FY_MIX_STEP_SUM       /* pieces of the ranks of each TP group, to a chunk each */
} fy_mix_step_kind;

typedef struct fy_mix_step {
    fy_mix_step_kind kind;
    fy_mix_group group;
    fy_circle_verb verb;
    fy_mix_step_end from, to;
    uint32_t chunks;
} fy_mix_step;

enum { FY_MIX_MOST_STEPS = 2 };

/* Steps of an operation in a BASE mode, and pieces of the memory between them. */
typedef struct fy_mix_steps {
    fy_mix_step steps[FY_MIX_MOST_STEPS];
    uint32_t n, n_between;
} fy_mix_steps;
void fy_mix_steps_make(const fy_topology *topology, uint32_t op, uint32_t mode,
                       fy_mix_steps *steps_out);

#endif
