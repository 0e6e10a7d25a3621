/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_NVSHMEM_LIBRARY_H
#define FY_NVSHMEM_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * NVSHMEM's functions, and those of the CUDA driver beside them, found at run time: the plugin is
 * built without a header of NVIDIA's, and linked with nothing of it. tests/device/nvshmem/header.cc
 * holds what is declared here against the real headers.
 */

/* What rank 0 makes and all others need: so many bytes of who knows what. */
typedef struct fy_nvshmem_id {
    int version;
    char internal[124];
} fy_nvshmem_id;

typedef struct fy_nvshmem_id_arguments {
    int version;
    fy_nvshmem_id *id;
    int rank;
    int n_ranks;
} fy_nvshmem_id_arguments;

typedef struct fy_nvshmem_arguments {
    int version;
    fy_nvshmem_id_arguments id;
    int device; /* -1: the one of the thread's context */
    char reserved[92];
} fy_nvshmem_arguments;

typedef struct fy_nvshmem_attributes {
    int version;
    void *mpi_comm;
    fy_nvshmem_arguments arguments;
} fy_nvshmem_attributes;

_Static_assert(sizeof(fy_nvshmem_id) == 128 && sizeof(fy_nvshmem_id_arguments) == 24 &&
                   sizeof(fy_nvshmem_arguments) == 128 && sizeof(fy_nvshmem_attributes) == 144,
               "sizes are part of the versions");

/* A struct says its layout's number, and its size. */
#define FY_NVSHMEM_VERSION(number, type) (((number) << 16) + (int)sizeof(type))

enum { FY_NVSHMEM_BY_ID = 1 << 3, FY_NVSHMEM_SET = 9, FY_NVSHMEM_ADD = 10 };

/*
 * Of the driver: whether the host can see to it that a device sees what a network card has written,
 * and which devices do without; and that this is wanted of the context's own.
 */
enum {
    FY_CUDA_FLUSH_OPTIONS = 117,
    FY_CUDA_FLUSH_BY_HOST = 1,
    FY_CUDA_WRITES_ORDERING = 118,
    FY_CUDA_ORDERED_FOR_OWNER = 100,
    FY_CUDA_CONTEXT = 0,
    FY_CUDA_TO_OWNER = 100
};

/* Streams and contexts are the driver's, and here pointers to something. */
#define FY_NVSHMEM_CALLS(X)                                                                        \
    X(void, nvshmemx_vendor_get_version_info, (int *major, int *minor, int *patch))                \
    X(int, nvshmemx_get_uniqueid, (fy_nvshmem_id * id))                                            \
    X(int, nvshmemx_hostlib_init_attr, (unsigned flags, fy_nvshmem_attributes *attributes))        \
    X(int, nvshmemx_init_status, (void))                                                           \
    X(int, nvshmem_my_pe, (void))                                                                  \
    X(int, nvshmem_n_pes, (void))                                                                  \
    X(void *, nvshmem_malloc, (size_t bytes))                                                      \
    X(void *, nvshmem_ptr, (const void *symmetric, int pe))                                        \
    X(void, nvshmem_putmem, (void *there, const void *here, size_t bytes, int pe))                 \
    X(void, nvshmem_putmem_nbi, (void *there, const void *here, size_t bytes, int pe))             \
    X(void, nvshmem_getmem, (void *here, const void *there, size_t bytes, int pe))                 \
    X(void, nvshmem_uint64_p, (uint64_t * there, const uint64_t value, int pe))                    \
    X(void, nvshmemx_signal_op_on_stream,                                                          \
      (uint64_t * there, uint64_t value, int op, int pe, void *stream))                            \
    X(void, nvshmem_quiet, (void))

#define FY_NVSHMEM_DRIVER_CALLS(X)                                                                 \
    X(int, cuInit, (unsigned flags))                                                               \
    X(int, cuDeviceGetCount, (int *n_devices))                                                     \
    X(int, cuDeviceGet, (int *device, int number))                                                 \
    X(int, cuDeviceGetAttribute, (int *value, int attribute, int device))                          \
    X(int, cuDevicePrimaryCtxRetain, (void **context, int device))                                 \
    X(int, cuCtxPushCurrent_v2, (void *context))                                                   \
    X(int, cuCtxPopCurrent_v2, (void **context))                                                   \
    X(int, cuMemcpyAsync, (uint64_t to, uint64_t from, size_t bytes, void *stream))                \
    X(int, cuMemsetD8Async, (uint64_t to, unsigned char value, size_t bytes, void *stream))        \
    X(int, cuFlushGPUDirectRDMAWrites, (int target, int scope))                                    \
    X(int, cuStreamCreate, (void **stream, unsigned flags))                                        \
    X(int, cuStreamSynchronize, (void *stream))

typedef struct fy_nvshmem_library {
#define FY_NVSHMEM_FIELD(result, name, arguments) result(*name) arguments;
    FY_NVSHMEM_CALLS(FY_NVSHMEM_FIELD) FY_NVSHMEM_DRIVER_CALLS(FY_NVSHMEM_FIELD)
#undef FY_NVSHMEM_FIELD
} fy_nvshmem_library;

extern fy_nvshmem_library fy_nvshmem;

/*
 * Finds both, and a device, once in a process: how many devices, at least 1; else 0, and why is a
 * sentence. In a process that was forked after that it says so. Opens no job.
 */
int fy_nvshmem_open_library(char *why, size_t why_bytes);

#endif
