/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_TAPE_H
#define FERRY_TESTS_TAPE_H

#include "collective/suite.h"

#include "support/devices.h"
#include "support/graphs.h"

/* Calls of a handle on a stream of the caller's, in memory of a device, made again and again. */
enum { MOST_TAPED = 5, N_LAUNCHES = 12, MOST_ELEMENTS = 3000 };

/* A call on the stream: what its tensors hold comes from pinned memory, and goes there. */
typedef struct taped {
    call what;
    ferry_buffer in, out; /* of the tape's device */
    ferry_mixed_tensor in_there, out_there;
    char *given, *found;
} taped;

typedef struct tape {
    scene c;
    int32_t device;
    void *stream;
    ferry_queue *queue;
    taped calls[MOST_TAPED];
    uint32_t n;
} tape;

/* Whether there is anything to show: on whose driver streams of all ranks wait at once. */
bool tape_is_shown(void);

/* A handle of a random shape, and so many random calls; and all but the handle goes. */
void tape_open(rank_context *me, tape *t, int32_t device, uint64_t *random);
void tape_close(tape *t);

/* New inputs for launch number `launch`, and what all calls have found. */
void tape_give(tape *t, uint64_t launch);
void tape_check(tape *t);
void tape_check_first(tape *t, uint32_t n);

/* With its copies, on a stream that the queue has adopted. */
void tape_launch(const tape *t, const taped *one, void *stream, ferry_queue *queue);
/*
 * The first n calls as a graph, which the caller frees. One in `by_host` is the host's, none where
 * that is 0; the others are kernels where no other rank of the process has the device, so many.
 */
void *tape_capture(const tape *t, uint32_t n, uint32_t by_host, uint32_t *by_kernel_out);
uint64_t tape_count_ahead(const tape *t);

/* The stream waits for the word to be `value`, which it is when many calls lie behind that. */
void tape_shut(void *stream, _Atomic uint64_t *word, uint64_t value);
void tape_open_late(_Atomic uint64_t *word, uint64_t value);

#endif
