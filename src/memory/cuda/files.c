/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/share.h"

#include "base/alloc.h"
#include "memory/cuda/door.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

/* Virtual memory of another process, mapped here: each piece as it is there, from its beginning. */
typedef struct opened {
    struct opened *next;
    CUdeviceptr base;
    uint64_t bytes;
    uint32_t n_mapped;
    uint64_t pieces[]; /* their bytes */
} opened;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static opened *all;

/* The owner of the memory, and how its descriptors are got at. */
typedef struct owner {
    const fy_cuda_files *files;
    int process; /* -1: it is asked at its door */
} owner;

/* A descriptor of the owner's: taken, or asked for; -1 and errno. */
static int take_fd(const owner *o, int32_t fd)
{
    return o->process >= 0 ? (int)syscall(SYS_pidfd_getfd, o->process, fd, 0)
                           : fy_cuda_door_ask(o->files->door, o->files->secret, fd);
}

static void owner_close(owner *o)
{
    if (o->process >= 0) {
        close(o->process);
        o->process = -1;
    }
}

/* Another process may have the number of the owner: its list has another name. */
static bool is_list(int fd, const uint64_t token[2])
{
    char name[FY_CUDA_LIST_NAME_BYTES], path[64], target[128], wanted[128];
    fy_cuda_list_name(token, name);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int n = snprintf(wanted, sizeof wanted, "/memfd:%s (deleted)", name);
    ssize_t length = readlink(path, target, sizeof target);
    return length == n && memcmp(target, wanted, (size_t)n) == 0;
}

/*
 * The owner's list; -1. A process of that number which has no such list is another one, as in
 * another PID namespace: then the pieces are not taken from it, either.
 */
static int take_list(owner *o)
{
    int list = o->process >= 0 ? take_fd(o, o->files->list) : -1;
    if (list < 0 || !is_list(list, o->files->token)) {
        if (list >= 0) {
            close(list);
        }
        owner_close(o);
        list = take_fd(o, o->files->list);
    }
    return list;
}

/* The pieces that are listed, which are all of the memory. */
static bool read_list(owner *o, const fy_cuda_handle *its, fy_cuda_listed *entries)
{
    const fy_cuda_files *files = &its->by.files;
    size_t wanted = files->n * sizeof *entries;
    uint64_t bytes = 0;
    int list = take_list(o);
    bool is_good =
        list >= 0 && is_list(list, files->token) && files->first < (uint64_t)1 << 40 &&
        pread(list, entries, wanted, (off_t)(files->first * sizeof *entries)) == (ssize_t)wanted;
    if (list >= 0) {
        close(list);
    }
    for (uint32_t i = 0; is_good && i < files->n; i++) {
        is_good = entries[i].bytes > 0 && entries[i].bytes <= its->bytes - bytes;
        bytes += entries[i].bytes;
    }
    return is_good && bytes == its->bytes;
}

static ferry_status fail_untaken(const fy_cuda_handle *its, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                   "this process may not take descriptors of process %d, or they are gone (%s)",
                   (int)its->pid, errno != 0 ? strerror(errno) : "the list is another's");
}

static owner find_owner(const fy_cuda_handle *its)
{
    errno = 0;
    return (owner){.files = &its->by.files, .process = (int)syscall(SYS_pidfd_open, its->pid, 0)};
}

ferry_status fy_cuda_files_take(const fy_cuda_handle *its, int *fd_out, ferry_error *error)
{
    fy_cuda_listed entry;
    if (its->by.files.n != 1) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "a handle has %u descriptors",
                       its->by.files.n);
    }
    owner o = find_owner(its);
    int fd = read_list(&o, its, &entry) ? take_fd(&o, entry.fd) : -1;
    ferry_status status = fd >= 0 ? FERRY_OK : fail_untaken(its, error);
    owner_close(&o);
    *fd_out = fd;
    return status;
}

static CUresult map_piece(owner *o, const fy_cuda_listed *entry, CUdeviceptr at)
{
    CUmemGenericAllocationHandle memory;
    int fd = take_fd(o, entry->fd);
    if (fd < 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = fy_cuda.cuMemImportFromShareableHandle(
        &memory, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(fd);
    if (result == CUDA_SUCCESS) {
        result = fy_cuda.cuMemMap(at, (size_t)entry->bytes, 0, memory, 0);
        (void)fy_cuda.cuMemRelease(memory); /* the mapping holds it */
    }
    return result;
}

static CUresult unmap(opened *one)
{
    CUresult result = CUDA_SUCCESS;
    CUdeviceptr at = one->base;
    for (uint32_t i = 0; i < one->n_mapped; i++) {
        CUresult its = fy_cuda.cuMemUnmap(at, (size_t)one->pieces[i]);
        result = result == CUDA_SUCCESS ? its : result;
        at += one->pieces[i];
    }
    if (one->base != 0) {
        CUresult its = fy_cuda.cuMemAddressFree(one->base, (size_t)one->bytes);
        result = result == CUDA_SUCCESS ? its : result;
    }
    fy_free(one);
    return result;
}

static CUresult map_all(int32_t number, owner *o, const fy_cuda_listed *entries, uint32_t n,
                        opened *fresh)
{
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = number},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = fy_cuda.cuMemAddressReserve(&fresh->base, (size_t)fresh->bytes, 0, 0, 0);
    fresh->base = result == CUDA_SUCCESS ? fresh->base : 0;
    CUdeviceptr at = fresh->base;
    for (uint32_t i = 0; result == CUDA_SUCCESS && i < n; i++) {
        result = map_piece(o, &entries[i], at);
        fresh->pieces[i] = entries[i].bytes;
        fresh->n_mapped += result == CUDA_SUCCESS;
        at += entries[i].bytes;
    }
    return result == CUDA_SUCCESS
               ? fy_cuda.cuMemSetAccess(fresh->base, (size_t)fresh->bytes, &access, 1)
               : result;
}

static ferry_status open_listed(int32_t number, owner *o, const fy_cuda_handle *its,
                                fy_cuda_listed *entries, opened *fresh, ferry_error *error)
{
    if (!read_list(o, its, entries)) {
        return fail_untaken(its, error);
    }
    return fy_cuda_check(map_all(number, o, entries, its->by.files.n, fresh),
                         "mapping memory of another process", error);
}

ferry_status fy_cuda_files_open(int32_t number, const fy_cuda_handle *its, CUdeviceptr *given_out,
                                ferry_error *error)
{
    uint32_t n = its->by.files.n;
    if (n == 0 || n > FY_CUDA_MOST_PIECES || its->bytes > (uint64_t)1 << 50) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "a handle of CUDA memory has %u pieces", n);
    }
    opened *fresh = fy_alloc_zeroed(1, sizeof *fresh + n * sizeof fresh->pieces[0]);
    fy_cuda_listed *entries = fy_alloc_zeroed(n, sizeof *entries);
    ferry_status status =
        fy_check_memory(fresh != NULL && entries != NULL, "CUDA memory of another process", error);
    if (status == FERRY_OK) {
        owner o = find_owner(its);
        fresh->bytes = its->bytes;
        status = open_listed(number, &o, its, entries, fresh, error);
        owner_close(&o);
    }
    fy_free(entries);
    if (status != FERRY_OK) {
        if (fresh != NULL) {
            (void)unmap(fresh);
        }
        return status;
    }
    pthread_mutex_lock(&lock);
    fresh->next = all;
    all = fresh;
    pthread_mutex_unlock(&lock);
    *given_out = fresh->base;
    return FERRY_OK;
}

CUresult fy_cuda_files_close(CUdeviceptr given)
{
    pthread_mutex_lock(&lock);
    opened **link = &all;
    while (*link != NULL && (*link)->base != given) {
        link = &(*link)->next;
    }
    opened *one = *link;
    if (one != NULL) {
        *link = one->next;
    }
    pthread_mutex_unlock(&lock);
    return one != NULL ? unmap(one) : CUDA_ERROR_INVALID_VALUE;
}
