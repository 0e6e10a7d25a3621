/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_SHARE_H
#define FY_MEMORY_CUDA_SHARE_H

#include "memory/cuda/driver.h"
#include "memory/cuda/memory.h"
#include "memory/kind.h"

/*
 * What names memory to other processes. Allocations have a handle of the driver's (CUDA IPC).
 * Virtual memory has descriptors, one for each piece that is mapped: a file of the owner's lists
 * them, and who may look into the owner takes them from there. Others ask the owner for
 * them (door.h).
 */
enum { FY_CUDA_BY_IPC = 1, FY_CUDA_BY_FILES = 2 };

typedef struct fy_cuda_files {
    uint64_t token[2]; /* in the list's name */
    uint64_t first;    /* of its entries, and */
    uint32_t n;        /* how many */
    int32_t list;      /* the owner's descriptor */
    uint64_t number;   /* no other that this process has named has it */
    uint64_t base;     /* there */
    uint64_t door;     /* the owner's, door.h; 0: it has none */
    uint64_t secret;   /* shown there */
} fy_cuda_files;

/* It comes from anywhere: nothing of it is believed. */
typedef struct fy_cuda_handle {
    uint32_t magic;
    uint16_t way, spare;
    int32_t pid, other;
    uint64_t number; /* of the allocation, in its process */
    uint64_t bytes;
    CUuuid device;
    union {
        CUipcMemHandle ipc;
        fy_cuda_files files;
        unsigned char key[64]; /* what tells one from another */
    } by;
} fy_cuda_handle;

enum { FY_CUDA_HANDLE_MAGIC = 0x61647563, FY_CUDA_MOST_PIECES = 1 << 16 };

_Static_assert(sizeof(fy_cuda_handle) == 112 && sizeof(fy_cuda_handle) <= FY_MEMORY_HANDLE_BYTES &&
                   sizeof(fy_cuda_files) == 64,
               "handles have no padding, and fit");

/* An entry of a list. */
typedef struct fy_cuda_listed {
    int32_t fd;
    int32_t spare;
    uint64_t bytes;
} fy_cuda_listed;

enum { FY_CUDA_LIST_NAME_BYTES = 64 };
void fy_cuda_list_name(const uint64_t token[2], char name[FY_CUDA_LIST_NAME_BYTES]);

/*
 * pieces.c: names the pieces of virtual memory that the bytes lie in, until withdrawn; span_out is
 * all of them. In the context of their device.
 */
ferry_status fy_cuda_pieces_name(const void *pointer, uint64_t bytes, fy_cuda_handle *handle,
                                 fy_memory_span *span_out, ferry_error *error);
void fy_cuda_pieces_withdraw(const fy_cuda_handle *handle);
/*
 * The same of something without an address that has a descriptor. The driver's handle of it goes
 * over to the name, and ends with that; also where it cannot be named.
 */
ferry_status fy_cuda_pieces_name_one(CUmemGenericAllocationHandle id, uint64_t bytes,
                                     fy_cuda_handle *handle, ferry_error *error);

/* files.c: maps them here, for the device whose context it is. Ended by fy_cuda_files_close. */
ferry_status fy_cuda_files_open(int32_t number, const fy_cuda_handle *its, CUdeviceptr *given_out,
                                ferry_error *error);
CUresult fy_cuda_files_close(CUdeviceptr given);
/* The descriptor of a handle that has one, for the caller to close. */
ferry_status fy_cuda_files_take(const fy_cuda_handle *its, int *fd_out, ferry_error *error);

#endif
