/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/share.h"

#include "base/alloc.h"
#include "base/sort.h"
#include "memory/cuda/door.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

/*
 * Virtual memory that other processes may map: each piece has one descriptor, however many runs of
 * pieces are named. A piece is held meanwhile, so the driver gives its handle to no other.
 */
typedef CUmemGenericAllocationHandle piece_id;

typedef struct piece {
    piece_id id;
    uint64_t bytes;
    int fd;
    uint64_t n_users;
} piece;

/* Pieces that follow each other; and where they are in the list. */
typedef struct run {
    uint64_t number;
    piece_id *ids;
    uint32_t n;
    uint64_t first;
    fy_memory_span span;
    uint64_t n_users;
} run;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static piece *pieces;                                    /* in the order of their ids */
static size_t n_pieces, piece_capacity;
static run *runs; /* in the order of where they begin */
static size_t n_runs, run_capacity;
static int list = -1;
static uint64_t token[2], n_listed, n_numbers;
static fy_cuda_door *door; /* as long as the list; NULL: there can be none */
static uint64_t door_number, door_secret;
static unsigned char *lent; /* by descriptor: whether it is a piece's */
static size_t lent_capacity;

void fy_cuda_list_name(const uint64_t its[2], char name[FY_CUDA_LIST_NAME_BYTES])
{
    snprintf(name, FY_CUDA_LIST_NAME_BYTES, "ferry-cuda-%016" PRIx64 "%016" PRIx64, its[0], its[1]);
}

/* Of the list and the pieces, and of nothing else that this process has open. */
static int lend(int32_t fd)
{
    pthread_mutex_lock(&lock);
    bool is_lent = fd >= 0 && (fd == list || ((size_t)fd < lent_capacity && lent[fd] != 0));
    int copy = is_lent ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_unlock(&lock);
    return copy;
}

static bool mark_lent(int fd)
{
    size_t before = lent_capacity;
    if (!FY_RESERVE(lent, lent_capacity, (size_t)fd + 1)) {
        return false;
    }
    memset(lent + before, 0, lent_capacity - before);
    lent[fd] = 1;
    return true;
}

static ferry_status make_list(ferry_error *error)
{
    char name[FY_CUDA_LIST_NAME_BYTES];
    if (list >= 0) {
        return FERRY_OK;
    }
    if (getrandom(token, sizeof token, GRND_NONBLOCK) != (ssize_t)sizeof token) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "there are no random numbers yet");
    }
    fy_cuda_list_name(token, name);
    list = memfd_create(name, MFD_CLOEXEC);
    if (list < 0) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "no file in memory could be made: %s",
                       strerror(errno));
    }
    door = fy_cuda_door_open(lend, &door_number, &door_secret);
    return FERRY_OK;
}

/* Nothing is named any more. The door is for the caller to close, without the lock. */
static fy_cuda_door *drop_list(void)
{
    fy_cuda_door *its = door;
    fy_free(runs);
    fy_free(lent);
    runs = NULL;
    lent = NULL;
    run_capacity = lent_capacity = 0;
    if (list >= 0) {
        close(list);
        list = -1;
    }
    door = NULL;
    door_number = door_secret = 0;
    return its;
}

/*
 * Pieces
 */

static size_t piece_place(piece_id id)
{
    FY_BISECT(size_t, first, 0, n_pieces, middle, pieces[middle].id < id);
    return first;
}

/* Descriptors are the program's: no more than half of those it may have become memory. */
static bool may_keep(int fd)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) != 0 || (rlim_t)fd < limit.rlim_cur / 2;
}

static ferry_status export_piece(piece_id id, int *fd_out, ferry_error *error)
{
    int fd = -1;
    CUresult result =
        fy_cuda.cuMemExportToShareableHandle(&fd, id, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS) {
        return fy_fail(
            error, FERRY_ERR_UNSUPPORTED,
            "it is virtual memory that was not made to be shared by descriptors, or that "
            "of a pool");
    }
    if (!may_keep(fd)) {
        close(fd);
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "half of the descriptors that this process may have are used: raise "
                       "`ulimit -n`");
    }
    *fd_out = fd;
    return FERRY_OK;
}

/* Held once by whoever asks; the driver's own hold of it goes over to the first. */
static ferry_status take_piece(piece_id id, uint64_t bytes, ferry_error *error)
{
    size_t at = piece_place(id);
    if (at < n_pieces && pieces[at].id == id) {
        (void)fy_cuda.cuMemRelease(id);
        pieces[at].n_users++;
        return FERRY_OK;
    }
    piece fresh = {.id = id, .bytes = bytes, .n_users = 1};
    ferry_status status = fy_check_memory(FY_RESERVE(pieces, piece_capacity, n_pieces + 1),
                                          "shared CUDA memory", error);
    FY_THEN(status, export_piece(id, &fresh.fd, error));
    if (status == FERRY_OK && !mark_lent(fresh.fd)) {
        close(fresh.fd);
        status = fy_fail_no_memory(error, "shared CUDA memory");
    }
    if (status != FERRY_OK) {
        (void)fy_cuda.cuMemRelease(id);
        return status;
    }
    memmove(&pieces[at + 1], &pieces[at], (n_pieces - at) * sizeof *pieces);
    pieces[at] = fresh;
    n_pieces++;
    return FERRY_OK;
}

static void drop_piece(piece_id id)
{
    size_t at = piece_place(id);
    if (at < n_pieces && pieces[at].id == id && --pieces[at].n_users == 0) {
        lent[pieces[at].fd] = 0;
        close(pieces[at].fd);
        (void)fy_cuda.cuMemRelease(id);
        memmove(&pieces[at], &pieces[at + 1], (n_pieces - at - 1) * sizeof *pieces);
        if (--n_pieces == 0) {
            fy_free(pieces);
            pieces = NULL;
            piece_capacity = 0;
        }
    }
}

/*
 * Runs
 */

/* The piece at the pointer: of the device of those before it, and held. */
static ferry_status find_piece(const char *pointer, const run *before, piece_id *id_out,
                               fy_cuda_found *f, ferry_error *error)
{
    fy_cuda_ask(pointer, f);
    if (!fy_cuda_is_device_memory(f) || f->bytes == 0 ||
        (before->n > 0 && f->device != before->span.device)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "it is not all of one device");
    }
    CUresult result = fy_cuda.cuMemRetainAllocationHandle(id_out, (void *)(uintptr_t)pointer);
    return result == CUDA_SUCCESS ? FERRY_OK
                                  : fy_fail(error, FERRY_ERR_UNSUPPORTED,
                                            "it is of a kind that has no handle, such as a pool");
}

static ferry_status add_piece(run *fresh, piece_id id, uint64_t bytes, size_t *capacity,
                              ferry_error *error)
{
    if (fresh->n == FY_CUDA_MOST_PIECES || !FY_RESERVE(fresh->ids, *capacity, fresh->n + 1)) {
        (void)fy_cuda.cuMemRelease(id);
        return fy_fail_no_memory(error, "shared CUDA memory");
    }
    FY_TRY(take_piece(id, bytes, error));
    fresh->ids[fresh->n++] = id;
    return FERRY_OK;
}

static void run_cleanup(run *one)
{
    for (uint32_t i = 0; i < one->n; i++) {
        drop_piece(one->ids[i]);
    }
    fy_free(one->ids);
}

/* The pieces from the pointer on, until all bytes lie in one of them. */
static ferry_status gather(const char *pointer, uint64_t bytes, run *fresh, ferry_error *error)
{
    const char *at = pointer;
    size_t capacity = 0;
    while (at < pointer + bytes) {
        fy_cuda_found f;
        piece_id id;
        FY_TRY(find_piece(at, fresh, &id, &f, error));
        if (fresh->n == 0) {
            fresh->span = (fy_memory_span){.device = f.device, .base = (void *)(uintptr_t)f.begin};
        }
        FY_TRY(add_piece(fresh, id, f.bytes, &capacity, error));
        fresh->span.bytes += f.bytes;
        at = (const char *)(uintptr_t)f.begin + f.bytes;
    }
    return FERRY_OK;
}

static size_t run_place(const void *base)
{
    FY_BISECT(size_t, first, 0, n_runs, middle,
              (uintptr_t)runs[middle].span.base < (uintptr_t)base);
    return first;
}

/* One of the same pieces; NULL: none. */
static run *find_same(const run *wanted)
{
    for (size_t i = run_place(wanted->span.base);
         i < n_runs && runs[i].span.base == wanted->span.base; i++) {
        if (runs[i].n == wanted->n &&
            memcmp(runs[i].ids, wanted->ids, wanted->n * sizeof *wanted->ids) == 0) {
            return &runs[i];
        }
    }
    return NULL;
}

/* Into the list, where the next room is: it begins anew when nothing is named any more. */
static ferry_status enlist(run *fresh, ferry_error *error)
{
    FY_TRY(make_list(error));
    fresh->first = n_runs == 0 ? 0 : n_listed;
    for (uint32_t i = 0; i < fresh->n; i++) {
        const piece *one = &pieces[piece_place(fresh->ids[i])];
        const fy_cuda_listed entry = {.fd = one->fd, .bytes = one->bytes};
        if (pwrite(list, &entry, sizeof entry, (off_t)((fresh->first + i) * sizeof entry)) !=
            (ssize_t)sizeof entry) {
            return fy_fail_no_memory(error, "shared CUDA memory");
        }
    }
    n_listed = fresh->first + fresh->n;
    fresh->number = ++n_numbers;
    return FERRY_OK;
}

static ferry_status keep(run *fresh, run **one_out, ferry_error *error)
{
    FY_TRY(
        fy_check_memory(FY_RESERVE(runs, run_capacity, n_runs + 1), "shared CUDA memory", error));
    FY_TRY(enlist(fresh, error));
    size_t at = run_place(fresh->span.base);
    memmove(&runs[at + 1], &runs[at], (n_runs - at) * sizeof *runs);
    runs[at] = *fresh;
    n_runs++;
    *one_out = &runs[at];
    return FERRY_OK;
}

/* One user more; what others find it by. */
static void use(run *one, fy_cuda_handle *handle)
{
    one->n_users++;
    handle->way = FY_CUDA_BY_FILES;
    handle->number = one->number;
    handle->bytes = one->span.bytes;
    handle->by.files = (fy_cuda_files){.token = {token[0], token[1]},
                                       .first = one->first,
                                       .n = one->n,
                                       .list = list,
                                       .number = one->number,
                                       .base = (uintptr_t)one->span.base,
                                       .door = door_number,
                                       .secret = door_secret};
}

ferry_status fy_cuda_pieces_name(const void *pointer, uint64_t bytes, fy_cuda_handle *handle,
                                 fy_memory_span *span_out, ferry_error *error)
{
    run fresh = {.n = 0};
    pthread_mutex_lock(&lock);
    ferry_status status = gather(pointer, bytes, &fresh, error);
    run *one = status == FERRY_OK ? find_same(&fresh) : NULL;
    bool is_new = status == FERRY_OK && one == NULL;
    if (is_new) {
        status = keep(&fresh, &one, error);
    }
    if (!is_new || status != FERRY_OK) {
        run_cleanup(&fresh);
    }
    if (status == FERRY_OK) {
        *span_out = one->span;
        use(one, handle);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* Its place among the runs is that of an address which is the handle: no other has it. */
ferry_status fy_cuda_pieces_name_one(CUmemGenericAllocationHandle id, uint64_t bytes,
                                     fy_cuda_handle *handle, ferry_error *error)
{
    run fresh = {.span = {.base = (void *)(uintptr_t)id, .bytes = bytes}}, *one = NULL;
    size_t capacity = 0;
    pthread_mutex_lock(&lock);
    ferry_status status = add_piece(&fresh, id, bytes, &capacity, error);
    FY_THEN(status, keep(&fresh, &one, error));
    if (status == FERRY_OK) {
        use(one, handle);
    } else {
        run_cleanup(&fresh);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void fy_cuda_pieces_withdraw(const fy_cuda_handle *handle)
{
    pthread_mutex_lock(&lock);
    size_t at = run_place((const void *)(uintptr_t)handle->by.files.base);
    while (at < n_runs && runs[at].number != handle->number) {
        at++;
    }
    if (at < n_runs && --runs[at].n_users == 0) {
        run_cleanup(&runs[at]);
        memmove(&runs[at], &runs[at + 1], (n_runs - at - 1) * sizeof *runs);
        n_runs--;
    }
    fy_cuda_door *closed = n_runs == 0 ? drop_list() : NULL;
    pthread_mutex_unlock(&lock);
    fy_cuda_door_close(closed);
}
