/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_NCCL_LIBRARY_H
#define FY_MEMORY_CUDA_NCCL_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

/*
 * NCCL's functions, found at run time: the plugin is built without a header of NCCL's, and linked
 * with nothing of it. tests/device/nccl/header.cc holds what is declared here against the real one.
 */

/* What one rank of a communicator makes and all others need. */
typedef struct fy_nccl_id {
    char internal[128];
} fy_nccl_id;

/* The beginning of NCCL's configuration, as NCCL 2.17 had it: its size says what there is of it. */
typedef struct fy_nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cluster_size, least_blocks, most_blocks;
    const char *net_name;
    int shares_when_split;
} fy_nccl_config;

enum { FY_NCCL_CONFIG_VERSION = 21700, FY_NCCL_LEAST_VERSION = 21800 };
#define FY_NCCL_MAGIC 0xcafebeefu
#define FY_NCCL_UNSET INT32_MIN

enum { FY_NCCL_SUCCESS = 0, FY_NCCL_IN_PROGRESS = 7 };
enum { FY_NCCL_SUM = 0 };
enum { FY_NCCL_F16 = 6, FY_NCCL_F32 = 7, FY_NCCL_BF16 = 9 };

/* Communicators and streams are pointers to something; results, types and operations numbers. */
#define FY_NCCL_CALLS(X)                                                                           \
    X(int, ncclGetVersion, (int *version))                                                         \
    X(int, ncclGetUniqueId, (fy_nccl_id * id))                                                     \
    X(int, ncclCommInitRankConfig,                                                                 \
      (void **comm, int n_ranks, fy_nccl_id id, int rank, fy_nccl_config *config))                 \
    X(int, ncclCommGetAsyncError, (void *comm, int *result))                                       \
    X(int, ncclCommFinalize, (void *comm))                                                         \
    X(int, ncclCommDestroy, (void *comm))                                                          \
    X(int, ncclCommAbort, (void *comm))                                                            \
    X(int, ncclAllReduce,                                                                          \
      (const void *in, void *out, size_t n, int type, int op, void *comm, void *stream))           \
    X(int, ncclAllGather,                                                                          \
      (const void *in, void *out, size_t n, int type, void *comm, void *stream))                   \
    X(int, ncclReduceScatter,                                                                      \
      (const void *in, void *out, size_t n, int type, int op, void *comm, void *stream))           \
    X(const char *, ncclGetErrorString, (int result))                                              \
    X(const char *, ncclGetLastError, (void *comm))

typedef struct fy_nccl_library {
#define FY_NCCL_FIELD(result, name, arguments) result(*name) arguments;
    FY_NCCL_CALLS(FY_NCCL_FIELD)
#undef FY_NCCL_FIELD
} fy_nccl_library;

extern fy_nccl_library fy_nccl;

/* Finds it, once in a process: "nccl 2.28.3", or NULL and *why_out is a sentence. Both for ever. */
const char *fy_nccl_open_library(const char **why_out);

#endif
