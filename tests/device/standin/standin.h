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
 * memory is the host's, but lies behind addresses that nobody may touch; kernels are their twin's,
 * or what nvcc made of them.
 * It is as strict as cuda.h says, and as drivers were seen to be: streams share a few channels, in
 * which one that waits holds up the others, and memory is freed when all streams are done, and not
 * before. tests/device/contract.c holds it against the real one.
 *
 * Variables: STANDIN_SEED; STANDIN_DEVICES, how many there are (2); STANDIN_CHANNELS (2
 * to 8, by the seed); STANDIN_VERSION, the driver's, "11080"; STANDIN_LACKS, "cuMemAlloc": it has
 * no such call; STANDIN_FAIL, "cuMemAlloc:3": that call of it fails; STANDIN_KILL, "cuMemAlloc:3":
 * rank 1 is killed in that call; STANDIN_LOSE, "5": the fifth launch ends the device; STANDIN_HOLD,
 * "cuMemAlloc": that call waits while a stream does; STANDIN_TURNS: device 0 of rank 1 is what rank
 * 0 calls device 1, and so on; STANDIN_PEERS: devices reach each other's memory; STANDIN_NO_IPC:
 * allocations have no handles for other processes, as those of a pool; STANDIN_VIRTUAL: they are
 * pieces of virtual memory; STANDIN_MULTICAST: devices have multicast objects; STANDIN_LAX:
 * memory may be freed while another process has it open, which else ends the process; STANDIN_PTX,
 * a file: kernels are executed from that PTX, see ptx/ptx.h; STANDIN_PTX_COUNTS, a file: which, how
 * often, and how many instructions.
 */

enum { MOST_DEVICES = 8 };

/* memory.c */
typedef enum block_kind {
    BLOCK_DEVICE,
    BLOCK_OPENED, /* another process's, by an IPC handle */
    BLOCK_MAPPED, /* a mapping of the virtual memory calls */
    BLOCK_PINNED,
    BLOCK_REGISTERED
} block_kind;

/* What processes share of an allocation: a page behind its bytes, in the same file. */
enum { MOST_OPENERS = 32 };
typedef struct shared {
    uint64_t magic;
    int physical; /* device */
    int is_freed;
    size_t bytes, shift; /* as the owner has them */
    unsigned long long number;
    int openers[MOST_OPENERS]; /* processes */
} shared;

typedef struct block {
    struct block *next;
    block_kind kind;
    int device;
    char *base; /* what the world sees */
    size_t bytes;
    char *memory;  /* where it is */
    size_t mapped; /* of both */
    unsigned long long number;
    shared *shared;   /* of a device's and of an opened one */
    uint64_t file_at; /* of a device's: where it begins in the file */
    unsigned n_opened;
    unsigned access;           /* of a mapping: bits of devices */
    struct physical *physical; /* of a mapping, as what follows */
    bool is_fleet;             /* a multicast object: not for plain loads and stores */
    bool is_bound;             /* memory that is bound to one */
} block;

enum { PAGE = 4096 };
#define STANDIN_MAGIC 0x6e692d646e617473u
extern int standin_file; /* what device memory of this process lies in; -1: there is none */

/* The block that holds all of these bytes, as it was; NULL: none. */
bool standin_find(const void *pointer, size_t bytes, block *block_out);
/* Into the list, with a number; out of it: the one that begins there, if it is of that kind. */
CUresult standin_add(const block *one);
bool standin_take_out(const void *base, block_kind kind, block *block_out);
/* Calls `change` with the block that begins there; false: there is none. */
bool standin_change(const void *base, block_kind kind, void (*change)(block *one, void *context),
                    void *context);
/* Of all blocks, the first that `is` says yes to, as it was. */
bool standin_search(bool (*is)(const block *one, const void *context), const void *context,
                    block *block_out);
/* Bytes of a file behind a barred part of the same size; NULL: there is no room. */
char *standin_map(int file, uint64_t at, size_t half);
/* virtual.c: allocations that are pieces of virtual memory, as of an allocator above the driver. */
CUresult standin_alloc_pieces(CUdeviceptr *place, size_t bytes);
CUresult standin_free_pieces(CUdeviceptr at);
/* The number that a device has in all processes. */
int standin_physical(int device);
/* Whether work on the device reaches memory of the other. */
bool standin_sees(int device, int other);
/* Where a device finds bytes that it may reach; NULL: an illegal address. */
void *standin_reach(int device, uint64_t at, size_t bytes);
/* multicast.c: the same of an address for all devices of an object; how many there are, or 0. */
uint32_t standin_reach_all(int device, uint64_t at, size_t bytes, void *places[TWIN_MOST_PLACES]);
/* Whether memory that is bound lies there. */
bool standin_is_bound(uint64_t at);

/* context.c */
typedef struct CUctx_st {
    int device;
    unsigned n_retained;
} standin_context;

extern standin_context standin_contexts[MOST_DEVICES];
extern _Atomic int standin_lost[MOST_DEVICES]; /* CUresult, for good */
extern _Thread_local bool standin_in_host_function;
standin_context *standin_current(void);
/* What cuFlushGPUDirectRDMAWrites calls: who stands in for the network has written what it had. */
void standin_on_settle(void (*function)(void));

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
    OP_POLL,
    OP_WORK /* what another library launches: a function that may wait for others */
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

/* Nodes of a graph, by number. */
enum { MOST_NODES = 256 };
typedef struct node_set {
    uint64_t bits[MOST_NODES / 64];
} node_set;

struct CUstream_st {
    struct CUstream_st *next;
    int device;
    unsigned flags;
    struct capture *_Atomic capture; /* that it is in, or NULL: of graphs.c, as the next one */
    node_set tail;                   /* what its next node comes behind */
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
    _Atomic uint64_t capture; /* that has recorded it last, or 0 */
    node_set tail;
};

/* A handle to the stream that it means; NULL: it is none. */
struct CUstream_st *standin_stream(CUstream handle);
/* Puts an operation on the stream, or into the capture that it is in. */
CUresult standin_push(CUstream handle, const op *what);

/*
 * ptx.c: whether launches are executed from PTX, for what it was made, or the twin in its place,
 * and a launch of it, with how it has ended.
 */
bool standin_has_ptx(void);
int standin_ptx_version(void);
CUresult standin_run_ptx(int device, const op *one);

/* Until everything on all streams of the device is done; every other call waits meanwhile. */
void standin_drain(int device);
/* Waits while somebody drains. */
void standin_pass(void);

/* All that is put on the stream from true to false is there before any of it begins. */
void standin_hold(struct CUstream_st *stream, bool holds);

/* graphs.c: into the stream's capture, if it is in one. */
CUresult standin_capture(struct CUstream_st *stream, const op *what, bool *is_captured_out);
/* Whether this thread may make such a call beside the captures there are; else they have failed. */
CUresult standin_check_unsafe(const char *name);
/* A stream in a capture cannot be asked anything, and the legacy one cannot be used beside it. */
CUresult standin_check_asked(struct CUstream_st *stream);
CUresult standin_check_legacy(int device, bool is_question);
static inline bool standin_is_captured(CUstream handle)
{
    const struct CUstream_st *stream = standin_stream(handle);
    return stream != NULL && stream->capture != NULL;
}

#endif
