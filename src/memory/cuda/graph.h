/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_GRAPH_H
#define FY_MEMORY_CUDA_GRAPH_H

#include "memory/cuda/queue.h"

/*
 * Calls that a graph has: a host function, and behind it a wait for a word that the call has of its
 * own. The function sets the word back, and whoever does what the call is about sets it when that
 * is over. The graph owns the call by a user object, so it goes with the last of its copies.
 */

/* Whether the caller's stream is in a capture, or cannot be asked beside one. Entered. */
bool fy_cuda_is_in_capture(const fy_exec_queue *queue);

/* The same, where an answer is needed; false for a stream of ferry's own. Entered. */
ferry_status fy_cuda_ask_capture(const fy_exec_queue *queue, bool *is_captured_out,
                                 ferry_error *error);

/* See exec/exec.h. */
ferry_status fy_cuda_is_captured(fy_exec_queue *queue, bool *is_captured_out, ferry_error *error);
ferry_status fy_cuda_capture(fy_exec_queue *queue, const fy_graph_call *call, ferry_error *error);
ferry_status fy_cuda_capture_lanes(fy_exec_queue *queue, const fy_lanes_call *lanes,
                                   const fy_graph_call *call, ferry_error *error);

/* Whether a graph has a call, and may begin to wait for it at any time. */
bool fy_cuda_graphs_exist(void);
/* Whether a graph waits for a call just now. */
bool fy_cuda_graphs_wait(void);

#endif
