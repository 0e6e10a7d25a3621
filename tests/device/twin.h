/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_DEVICE_TWIN_H
#define FERRY_TESTS_DEVICE_TWIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The twin of ferry's kernels: the same source, compiled for this processor. Threads run one after
 * the other, blocks in an order of their own in each launch, as kernels promise to need none.
 *
 * Kernels that meet have all their blocks at once, each a thread of the process. The threads of
 * such a block take turns on it, in another order each time, from barrier to barrier: so what one
 * has written, and another one reads without a barrier between them, is not there yet, or is there
 * too early. STANDIN_THREADS says how many a block has, whatever the launch said; one, if it is not
 * set.
 */
typedef struct twin_kernel {
    const char *name;
    size_t argument_bytes;
    void (*run)(const void *argument);
    bool meets;
} twin_kernel;

/* NULL: there is no such kernel. */
const twin_kernel *twin_find(const char *name);

typedef enum twin_end {
    TWIN_DONE = 0,
    TWIN_OUTSIDE,
    TWIN_MISALIGNED,
    TWIN_UNSETTLED,
    TWIN_LOST
} twin_end;

/* The device of the thread's launch, and whether it is lost: a block that waits ends then. */
extern _Thread_local int twin_device;
extern bool (*twin_is_lost)(int device);

/*
 * Where `bytes` at an address lie; NULL: they are not to be had. Set before the first launch; NULL:
 * addresses are what they say.
 */
extern void *(*twin_look_up)(uint64_t at, uint32_t bytes, int writes);

/*
 * The same of memory of a fleet (exec/fleet.h), at its address for all devices: on each of them,
 * and how many there are; 0: it is not to be had. What is stored on all comes late: when the thread
 * that has stored it settles, or its block ends. Sums are made in another order each time.
 */
enum { TWIN_MOST_PLACES = 8 };
extern uint32_t (*twin_look_up_all)(uint64_t at, uint32_t bytes, void *places[TWIN_MOST_PLACES]);
/*
 * Whether such memory lies at an address of its own device: a thread that reads it, or a sum, has
 * settled since its block has read a word of another rank's; else the launch ends.
 */
extern bool (*twin_is_of_fleet)(uint64_t at);

/* How the launch has ended: with the first access that a device would not forgive. `order` is any
 * number. */
twin_end twin_launch(const twin_kernel *kernel, uint32_t blocks, uint32_t threads,
                     const void *argument, uint64_t order);

#endif
