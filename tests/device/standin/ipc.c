/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "device/standin/standin.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Handles by which other processes open an allocation: where its owner has it. */
typedef struct ipc_handle {
    uint64_t magic;
    int32_t pid;
    int32_t file;
    uint64_t at, half;
    uint64_t number; /* the owner's: what lay there before was another allocation */
} ipc_handle;

_Static_assert(sizeof(ipc_handle) <= sizeof(CUipcMemHandle), "a handle has room");

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *place, CUdeviceptr pointer)
{
    ENTER(cuIpcGetMemHandle, true);
    block one;
    if (place == NULL || !standin_find((void *)(uintptr_t)pointer, 1, &one) ||
        one.kind != BLOCK_DEVICE || (CUdeviceptr)(uintptr_t)one.base != pointer ||
        getenv("STANDIN_NO_IPC") != NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const ipc_handle its = {.magic = STANDIN_MAGIC,
                            .pid = getpid(),
                            .file = standin_file,
                            .at = one.file_at,
                            .half = one.mapped,
                            .number = one.number};
    memset(place, 0, sizeof *place);
    memcpy(place, &its, sizeof its);
    return CUDA_SUCCESS;
}

static int open_file(const ipc_handle *its)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)its->pid, (int)its->file);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* One more process that has it open; false: it was freed, or too many have. */
static bool join(shared *its)
{
    int none = 0;
    for (int i = 0; i < MOST_OPENERS; i++, none = 0) {
        int pid = __atomic_load_n(&its->openers[i], __ATOMIC_ACQUIRE);
        none = pid > 0 && kill(pid, 0) != 0 ? pid : 0;
        if (__atomic_compare_exchange_n(&its->openers[i], &none, getpid(), false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
            return __atomic_load_n(&its->is_freed, __ATOMIC_SEQ_CST) == 0;
        }
    }
    return false;
}

static void leave(shared *its)
{
    for (int i = 0, own = getpid(); i < MOST_OPENERS; i++, own = getpid()) {
        if (__atomic_compare_exchange_n(&its->openers[i], &own, 0, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
            return;
        }
    }
}

static bool is_same(const block *one, const void *context)
{
    const block *wanted = context;
    return one->kind == BLOCK_OPENED && one->device == wanted->device &&
           one->shared->number == wanted->number && one->access == wanted->access;
}

static void open_again(block *one, void *context)
{
    (void)context;
    one->n_opened++;
}

static CUresult map(const ipc_handle *its, int device, block *block_out)
{
    int file = open_file(its);
    char *base = file < 0 ? NULL : standin_map(file, its->at, its->half);
    if (file >= 0) {
        close(file);
    }
    if (base == NULL) {
        return CUDA_ERROR_MAP_FAILED;
    }
    shared *common = (shared *)(void *)(base + 2 * its->half);
    bool is_seen = common->physical == standin_physical(device) || getenv("STANDIN_PEERS") != NULL;
    bool is_it = common->magic == STANDIN_MAGIC && common->number == its->number;
    if (!is_it || !is_seen || !join(common)) {
        CUresult result = !is_it    ? CUDA_ERROR_INVALID_HANDLE
                          : is_seen ? CUDA_ERROR_MAP_FAILED
                                    : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
        munmap(base, 2 * its->half + PAGE);
        return result;
    }
    *block_out = (block){.kind = BLOCK_OPENED,
                         .device = device,
                         .base = base + common->shift,
                         .bytes = common->bytes,
                         .memory = base + its->half + common->shift,
                         .mapped = its->half,
                         .shared = common,
                         .file_at = its->at,
                         .access = (unsigned)its->pid,
                         .n_opened = 1};
    return CUDA_SUCCESS;
}

static void unmap(const block *one)
{
    leave(one->shared);
    munmap((char *)((uintptr_t)one->base / PAGE * PAGE), 2 * one->mapped + PAGE);
}

/* The same handle gives the same pointer as long as it is open. */
CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *place, CUipcMemHandle handle, unsigned flags)
{
    ENTER(cuIpcOpenMemHandle, true);
    ipc_handle its;
    memcpy(&its, &handle, sizeof its);
    if (place == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (its.magic != STANDIN_MAGIC || its.pid == getpid()) {
        return its.pid == getpid() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
    }
    block one = {
        .device = standin_current()->device, .number = its.number, .access = (unsigned)its.pid};
    if (standin_search(is_same, &one, &one) &&
        standin_change(one.base, BLOCK_OPENED, open_again, NULL)) {
        *place = (CUdeviceptr)(uintptr_t)one.base;
        return CUDA_SUCCESS;
    }
    CUresult result = map(&its, standin_current()->device, &one);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = standin_add(&one);
    if (result != CUDA_SUCCESS) {
        unmap(&one);
        return result;
    }
    *place = (CUdeviceptr)(uintptr_t)one.base;
    return CUDA_SUCCESS;
}

static void close_once(block *one, void *context)
{
    unsigned *left = context;
    *left = --one->n_opened;
}

/* Nobody says whether this waits for streams, so now it does and now it does not. */
CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    ENTER(cuIpcCloseMemHandle, true);
    block one;
    unsigned left = 0;
    if (!standin_find((void *)(uintptr_t)pointer, 1, &one) || one.kind != BLOCK_OPENED ||
        (CUdeviceptr)(uintptr_t)one.base != pointer) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (one.n_opened == 1 && standin_random(2) == 0) {
        standin_drain(one.device);
    }
    if (!standin_change(one.base, BLOCK_OPENED, close_once, &left)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (left == 0 && standin_take_out(one.base, BLOCK_OPENED, &one)) {
        unmap(&one);
    }
    return CUDA_SUCCESS;
}
