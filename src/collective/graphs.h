/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_GRAPHS_H
#define FY_COLLECTIVE_GRAPHS_H

#include "collective/device.h"

/*
 * Calls of a handle that graphs have as kernels. A launch tells the host nothing: kernels count
 * their calls on the device, say on the handle's page that they begin and end, and a thread looks
 * there now and then. It joins a call that takes long, and judges the ranks that it waits for, as
 * whoever makes a call does; the host's count of calls follows when a call of the host's begins.
 *
 * Graphs outlive handles. What their kernels read first, the page and the words that halt the
 * device, stays until no graph has any of them, and then they end at once.
 */
typedef struct fy_mix_graphs fy_mix_graphs;

/* What kernels look at beside boxes: whose it is frees it. */
typedef struct fy_mix_post {
    fy_mix_device on;   /* its row, verbs and number */
    char *page;         /* pinned: the board, and behind it a report of each lane; NULL: none */
    ferry_buffer words; /* of the device: fy_lanes_halt, and behind it a state of each lane */
    uint32_t n_lanes;
} fy_mix_post;

void fy_mix_post_free(fy_mix_post *post);

ferry_status fy_mix_graphs_create(ferry_mixed_comm *comm, const fy_mix_post *post,
                                  fy_mix_graphs **graphs_out, ferry_error *error);
/*
 * The handle goes: no kernel of a graph uses its boxes any more once this has returned. Whether the
 * post stays, and is freed with the last graph. NULL is allowed.
 */
bool fy_mix_graphs_part(fy_mix_graphs *graphs);

/* Puts a call, as foreseen, in the graph that the queue is captured in. */
ferry_status fy_mix_graphs_capture(fy_mix_graphs *graphs, fy_queue *queue, const fy_mix_call *call,
                                   const ferry_mixed_tensor *in, const ferry_mixed_tensor *out,
                                   ferry_error *error);

/* Whether graphs have any; of NULL none. */
bool fy_mix_graphs_exist(const fy_mix_graphs *graphs);
/*
 * Tells the device that the host has counted a call which no kernel makes; FERRY_ERR_TIMEOUT where
 * it does not hear.
 */
#define FY_MIX_GRAPHS_PATIENCE_NS INT64_C(2000000000)
ferry_status fy_mix_graphs_say_floor(fy_mix_graphs *graphs, uint64_t number);
/* Whether one is under way. It is not where the host has waited for its stream. */
bool fy_mix_graphs_go_on(const fy_mix_graphs *graphs);
/* Whether calls ever had names in place of numbers: those of graphs, and others beside them. */
void fy_mix_graphs_has_named(fy_mix_graphs *graphs);
bool fy_mix_graphs_have_named(const fy_mix_graphs *graphs);
/* The number of the last call that kernels have begun; 0 where none had a name. */
uint64_t fy_mix_graphs_last(const fy_mix_graphs *graphs);
/* The number that a lane says, of which the last bits are on its report. */
uint64_t fy_mix_graphs_number(const fy_mix_graphs *graphs, uint32_t lane, uint64_t begun);
/* The number of the call that the host has begun last. */
void fy_mix_graphs_has_counted(fy_mix_graphs *graphs, uint64_t number);
uint64_t fy_mix_graphs_counted(const fy_mix_graphs *graphs);
/* Launches move nothing from here on, and what is under way is waited for. */
void fy_mix_graphs_end(fy_mix_graphs *graphs);

#endif
