/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_WATCH_H
#define FY_MEMORY_CUDA_WATCH_H

#include "memory/cuda/queue.h"

/*
 * A thread that looks at words of the host's for streams that wait for them, and never calls the
 * driver; and one that looks, now and then, whether a stream with jobs has failed. They sleep while
 * there is neither.
 */

/* Opens the gate once the word is at least value; gates of a queue open in order. */
ferry_status fy_cuda_watch(fy_exec_queue *queue, _Atomic uint64_t *word, uint64_t value,
                           ferry_error *error);
/* The last one, whose gate the stream has not heard of. */
void fy_cuda_watch_no_more(fy_exec_queue *queue);
/* Whether it waits for anything. */
bool fy_cuda_has_waits(fy_exec_queue *queue);
/* Forgets all that a queue waits for: the words may go. */
void fy_cuda_forget_waits(fy_exec_queue *queue);

/* Who puts a wait at a gate on a stream has this, and who frees memory if no gate is shut. */
void fy_cuda_lock_gates(void);
void fy_cuda_unlock_gates(void);
/* With that lock: whether no stream waits at a gate, for a call of a graph or for other ranks, as
 * far as is known. */
bool fy_cuda_gates_are_open(void);

/*
 * A kernel that waits for kernels of other ranks, from before it is launched until its end: who
 * frees memory would wait for it, and let launches of the others wait, which may be of this
 * process. It ends when the queue has come to the mark, of which the one before is returned.
 */
uint64_t fy_cuda_meets_until(fy_exec_queue *queue, uint64_t mark);
/* One whose end somebody is told. */
void fy_cuda_meeting_begins(void);
void fy_cuda_meeting_ends(void);

/* A job more, or less, that somebody counts on. */
void fy_cuda_job_begins(void);
void fy_cuda_job_ends(void);

/* A thread of the plugin's, with all signals blocked; false: there is none to be had. */
bool fy_cuda_start_thread(void *(*run)(void *context), void *context);

/* A moment between two looks, of which there were n_looks: short at first. */
void fy_cuda_nap(uint32_t n_looks);

#endif
