/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_DEVICE_PTX_H
#define FERRY_TESTS_DEVICE_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Executes what nvcc wrote: PTX, instruction by instruction, thread by thread. It knows the
 * instructions that the kernels here are made of, and some beside them; another one is an error
 * that names it, and so is whatever a device would not forgive, or may do as it likes with: an
 * access that is not aligned as wide as it is, or of memory that is nobody's, of a parameter beyond
 * its size, of shared or local memory beside a variable or before it was written, a register that
 * was never written, a division by 0, a barrier that some thread of the block never comes to.
 *
 * Threads of a kernel with barriers take turns of a drawn number of instructions, in a drawn order.
 * Memory is as the machine's that this runs on: a device's may show stores later and in another
 * order, so what is missing between a relaxed store and a load of it is not seen here. What
 * multimem stores is there when its thread comes to a fence.proxy.alias, or ends, and not before.
 */
typedef struct ptx_module ptx_module;
typedef struct ptx_kernel ptx_kernel;

enum { PTX_SAID_BYTES = 512, PTX_MOST_PLACES = 8 };

/* NULL: it cannot be read, and `said` tells why, and in which line. */
ptx_module *ptx_module_read(const char *text, char said[PTX_SAID_BYTES]);
void ptx_module_free(ptx_module *module); /* NULL is allowed */
/* The number of its target, 90 of sm_90; 0: it names none. */
uint32_t ptx_module_target(const ptx_module *module);

/* NULL: there is no such kernel. It lives as long as its module. */
const ptx_kernel *ptx_kernel_find(const ptx_module *module, const char *name);
size_t ptx_kernel_argument_bytes(const ptx_kernel *kernel);

typedef enum ptx_end {
    PTX_DONE = 0,
    PTX_OUTSIDE,    /* an illegal address */
    PTX_MISALIGNED, /* an access that is not aligned */
    PTX_WRONG,      /* anything else that no device need forgive */
    PTX_LOST        /* the device was lost while blocks waited */
} ptx_end;

typedef struct ptx_launch {
    uint32_t blocks, threads;
    const void *argument;
    size_t argument_bytes; /* must be those of the kernel's parameter */
    bool meets;            /* blocks wait for each other: all of them run at once */
    uint64_t order;        /* any number: draws the order of blocks, threads and turns */
    /* Where bytes of global memory lie; NULL: nowhere. */
    void *(*look_up)(void *context, uint64_t at, uint32_t bytes, bool writes);
    /* The same of multimem addresses: on each device, and how many these are; 0: nowhere. */
    uint32_t (*look_up_all)(void *context, uint64_t at, uint32_t bytes,
                            void *places[PTX_MOST_PLACES]);
    bool (*is_lost)(void *context); /* NULL: it never is */
    void *context;
    uint64_t n_performed; /* is set: instructions */
} ptx_launch;

/* Runs all threads, or those until the first fault, which `said` tells. */
ptx_end ptx_run(const ptx_kernel *kernel, ptx_launch *launch, char said[PTX_SAID_BYTES]);

#endif
