/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_DEVICE_NCCL_STANDIN_H
#define FERRY_TESTS_DEVICE_NCCL_STANDIN_H

#include <stddef.h>

/* What the stand-in exports, in its own words: it must not share a mistake with the plugin. */

typedef struct ncclComm *ncclComm_t;

typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;

typedef enum ncclResult_t {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
} ncclResult_t;

typedef struct ncclConfig_t {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare;
} ncclConfig_t;

enum { ncclSum = 0, ncclFloat16 = 6, ncclFloat32 = 7, ncclBfloat16 = 9 };

int ncclGetVersion(int *version);
int ncclGetUniqueId(ncclUniqueId *id);
int ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank,
                           const ncclConfig_t *config);
int ncclCommGetAsyncError(ncclComm_t comm, int *result);
int ncclCommFinalize(ncclComm_t comm);
int ncclCommDestroy(ncclComm_t comm);
int ncclCommAbort(ncclComm_t comm);
int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, ncclComm_t comm,
                  void *stream);
int ncclAllGather(const void *in, void *out, size_t n, int type, ncclComm_t comm, void *stream);
int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op, ncclComm_t comm,
                      void *stream);
const char *ncclGetErrorString(int result);
const char *ncclGetLastError(ncclComm_t comm);

#endif
