/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_DEVICE_STANDIN_H
#define FERRY_TESTS_DEVICE_STANDIN_H

#include "device/twin.h"

#include <cuda.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * A libcuda.so.1 for machines without a device. What streams do comes late, at random; device
 * memory is the host's, but lies behind addresses that nobody may touch; kernels are their twin's.
 * It is as strict as cuda.h says, and as drivers were seen to be: streams share a few channels, in
 * which one that waits holds up the others, and memory is freed when all streams are done, and not
 * before. tests/device/contract.c holds it against the real one.
 *
 * Variables: STANDIN_SEED; STANDIN_DEVICES, how many there are (2); STANDIN_CHANNELS (2
 * to 8, by the seed); STANDIN_VERSION, the driver's, "11080"; STANDIN_LACKS, "cuMemAlloc": it has
 * no such call; STANDIN_FAIL, "cuMemAlloc:3": that call of it fails;
 * STANDIN_LOSE, "5": the fifth launch ends the device; STANDIN_HOLD, "cuMemAlloc": that call waits
 * while a stream does.
 */

enum { MOST_DEVICES = 8 };

/* memory.c */
typedef enum block_kind { BLOCK_DEVICE, BLOCK_PINNED, BLOCK_REGISTERED } block_kind;

typedef struct block {
    struct block *next;
    block_kind kind;
    int device;
    char *base; /* what the world sees */
    size_t bytes;
    char *memory;  /* where it is */
    size_t mapped; /* of both */
    unsigned long long number;
} block;

/* The block that holds all of these bytes, as it was; NULL: none. */
bool standin_find(const void *pointer, size_t bytes, block *block_out);
/* Where a device finds bytes that it may reach; NULL: an illegal address. */
void *standin_reach(int device, uint64_t at, size_t bytes);
extern _Thread_local int standin_device; /* of the thread's launch */

/* context.c */
typedef struct CUctx_st {
    int device;
    unsigned n_retained;
} standin_context;

extern standin_context standin_contexts[MOST_DEVICES];
extern _Atomic int standin_lost[MOST_DEVICES]; /* CUresult, for good */
extern _Thread_local bool standin_in_host_function;
standin_context *standin_current(void);

/*
 * What every call begins with: it is allowed here and now, or what it returns. With a context, if
 * it needs one.
 */
CUresult standin_enter(const char *name, bool needs_context);
#define ENTER(name, needs_context)                                                                 \
    do {                                                                                           \
        CUresult entered = standin_enter(#name, needs_context);                                    \
        if (entered != CUDA_SUCCESS) {                                                             \
            return entered;                                                                        \
        }                                                                                          \
    } while (0)

/* A number below n, in the order of the seed. */
uint64_t standin_random(uint64_t n);

/* streams.c */
typedef enum op_kind {
    OP_COPY,
    OP_SET,
    OP_RUN,
    OP_RECORD,
    OP_AWAIT,
    OP_CALL,
    OP_WRITE,
    OP_POLL
} op_kind;

typedef struct op {
    struct op *next;
    struct CUstream_st *stream;
    op_kind kind;
    uint64_t to, from;
    bool from_is_staged; /* bytes that were taken at the call */
    size_t bytes;
    int value;
    const twin_kernel *kernel;
    unsigned blocks, threads;
    void *argument;
    struct CUevent_st *event;
    uint64_t number;
    CUhostFn function;
    void *context;
} op;

struct CUstream_st {
    struct CUstream_st *next;
    int device;
    unsigned flags;
    bool is_capturing;
    struct channel *channel;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t n_queued, n_done;
};

struct CUevent_st {
    int device;
    unsigned flags;
    _Atomic uint64_t n_recorded, n_done;
    uint64_t at_ns;
};

/* Until everything on all streams of the device is done; every other call waits meanwhile. */
void standin_drain(int device);
/* Waits while somebody drains. */
void standin_pass(void);

#endif
