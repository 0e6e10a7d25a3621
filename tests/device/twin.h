/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_DEVICE_TWIN_H
#define FERRY_TESTS_DEVICE_TWIN_H

#include <stddef.h>
#include <stdint.h>

/*
 * The twin of ferry's kernels: the same source, compiled for this processor. Threads run one after
 * the other, blocks in an order of their own in each launch, as kernels promise to need none.
 */
typedef struct twin_kernel {
    const char *name;
    size_t argument_bytes;
    void (*run)(const void *argument);
} twin_kernel;

/* NULL: there is no such kernel. */
const twin_kernel *twin_find(const char *name);

typedef enum twin_end { TWIN_DONE = 0, TWIN_OUTSIDE, TWIN_MISALIGNED } twin_end;

/*
 * Where `bytes` at an address lie; NULL: they are not to be had. Set before the first launch; NULL:
 * addresses are what they say.
 */
extern void *(*twin_look_up)(uint64_t at, uint32_t bytes, int writes);

/* How the launch has ended: with the first access that a device would not forgive. `order` is any
 * number. */
twin_end twin_launch(const twin_kernel *kernel, uint32_t blocks, uint32_t threads,
                     const void *argument, uint64_t order);

#endif
