/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/mapped/local.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "host/room.h"
#include "memory/pages.h"
#include "transport/mapped/file.h"
#include "world/bell.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct local_key {
    uint64_t token[2];
    uint64_t inode;
    uint64_t device;
    uint64_t map_bytes;
    int32_t fd; /* of the owner's process */
    uint32_t magic;
    uint64_t reserved;
} local_key;

enum { LOCAL_MAGIC = 0x6c796672, NAME_BYTES = 64 };

_Static_assert(sizeof(local_key) == FY_LOCAL_KEY_BYTES, "keys have no padding");

static void write_name(const uint64_t token[2], char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "ferry-%016" PRIx64 "%016" PRIx64, token[0], token[1]);
}

/* Each file has a name of its own. */
static void draw_token(uint64_t token[2], const void *salt)
{
    size_t n_bytes = 2 * sizeof token[0];
    if (getrandom(token, n_bytes, GRND_NONBLOCK) != (ssize_t)n_bytes) {
        token[0] = (uint64_t)fy_now_ns();
        token[1] = (uintptr_t)salt;
    }
}

/*
 * The owner's side
 */

/* Descriptors are the program's: no more than half of those it may have become memory. */
static bool may_keep(int fd)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) != 0 || (rlim_t)fd < limit.rlim_cur / 2;
}

/* fd_out is -1 where there is no descriptor for it. */
static ferry_status create_file(uint64_t bytes, const char *name, uint64_t *map_bytes_out,
                                int *fd_out, bool *huge_out, ferry_error *error)
{
    static const char what[] = "memory";
    ferry_error why;
    uint64_t rounded;
    int fd = -1;
    bool huge = false;
    if (bytes >= FY_HUGE_BYTES && fy_pages_round(bytes, FY_HUGE_BYTES, &rounded)) {
        fd = fy_shared_file_make_huge(name, what, rounded);
        huge = fd >= 0;
    }
    if (fd < 0) {
        fy_pages_round(bytes, fy_page_bytes(), &rounded);
        ferry_status status = fy_shared_file_make(name, what, rounded, &fd, &why);
        if (status != FERRY_OK && status != FERRY_ERR_LIMIT) {
            return fy_forward(error, status, &why);
        }
    }
    if (fd >= 0 && !may_keep(fd)) {
        close(fd);
        fd = -1;
    }
    *map_bytes_out = rounded;
    *fd_out = fd;
    *huge_out = huge;
    return FERRY_OK;
}

/* Pages of the huge kind are the file's already; for others there must be room. */
static ferry_status map_own(fy_local_memory *memory, bool huge, ferry_error *error)
{
    memory->map = fy_shared_file_map(memory->fd, memory->map_bytes);
    if (memory->map == NULL) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "%llu bytes of memory could not be mapped: %s",
                       (unsigned long long)memory->map_bytes, strerror(errno));
    }
    if (huge) {
        FY_TRY(fy_pages_populate(memory->map, memory->map_bytes, error));
        if (!fy_pages_can_populate(memory->map)) {
            fy_pages_touch(memory->map, memory->map_bytes);
        }
        return FERRY_OK;
    }
    if (memory->map_bytes >= FY_HUGE_BYTES) {
        madvise(memory->map, (size_t)memory->map_bytes, MADV_HUGEPAGE); /* a wish */
    }
    return fy_pages_fill(memory->map, memory->map_bytes, memory->fd, error);
}

ferry_status fy_local_memory_create(uint64_t bytes, fy_local_memory *memory_out, ferry_error *error)
{
    fy_local_memory memory = {.fd = -1};
    bool huge = false;
    char name[NAME_BYTES];
    uint64_t rounded;
    if (!fy_pages_round(bytes, FY_HUGE_BYTES, &rounded)) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "no machine has %llu bytes of memory",
                       (unsigned long long)bytes);
    }
    draw_token(memory.token, memory_out);
    write_name(memory.token, name);
    ferry_status status = create_file(bytes, name, &memory.map_bytes, &memory.fd, &huge, error);
    if (status == FERRY_OK && memory.fd < 0) {
        void *base = NULL;
        fy_log(FERRY_LOG_DEBUG, "memory of %llu bytes: descriptors run short, others cannot map it",
               (unsigned long long)bytes);
        status = fy_pages_alloc_checked(memory.map_bytes, &base, error);
        memory.map = base;
    } else if (status == FERRY_OK) {
        status = map_own(&memory, huge, error);
    }
    if (status != FERRY_OK) {
        fy_local_memory_cleanup(&memory);
        return status;
    }
    *memory_out = memory;
    return FERRY_OK;
}

void fy_local_memory_cleanup(fy_local_memory *memory)
{
    if (memory->map != NULL) {
        munmap(memory->map, (size_t)memory->map_bytes);
    }
    if (memory->fd >= 0) {
        close(memory->fd);
    }
    if (memory->renewed > 0 && memory->next_fd >= 0) {
        close(memory->next_fd);
    }
    *memory = (fy_local_memory){.fd = -1};
}

size_t fy_local_memory_key(fy_local_memory *memory, void *key)
{
    struct stat status;
    if (memory->fd < 0 || memory->renewed > 0 || fstat(memory->fd, &status) != 0) {
        return 0; /* half renewed it lies in two files */
    }
    local_key its = {.token = {memory->token[0], memory->token[1]},
                     .inode = (uint64_t)status.st_ino,
                     .device = (uint64_t)status.st_dev,
                     .map_bytes = memory->map_bytes,
                     .fd = memory->fd,
                     .magic = LOCAL_MAGIC};
    memcpy(key, &its, sizeof its);
    memory->shared = true;
    return sizeof its;
}

/*
 * Renewing
 */

/* Without a descriptor it becomes private memory, as when it is made. */
static ferry_status begin_renewal(fy_local_memory *memory, ferry_error *error)
{
    char name[NAME_BYTES];
    ferry_error why;
    draw_token(memory->next_token, memory);
    write_name(memory->next_token, name);
    ferry_status status =
        fy_shared_file_make(name, "memory", memory->map_bytes, &memory->next_fd, &why);
    if (status == FERRY_ERR_LIMIT) {
        memory->next_fd = -1;
        return FERRY_OK;
    }
    if (status == FERRY_OK && !may_keep(memory->next_fd)) {
        close(memory->next_fd);
        memory->next_fd = -1;
    }
    return fy_forward(error, status, &why);
}

/* What the file has is then written in the old pages' place. */
static ferry_status renew_in_file(char *at, uint64_t bytes, int fd, uint64_t offset,
                                  ferry_error *error)
{
    uint64_t done = 0;
    while (done < bytes) {
        ssize_t n = pwrite(fd, at + done, (size_t)(bytes - done), (off_t)(offset + done));
        if (n < 0 && errno != EINTR) {
            return fy_fail(error, FERRY_ERR_NO_MEMORY, "%llu bytes could not be copied: %s",
                           (unsigned long long)bytes, strerror(errno));
        }
        done += n < 0 ? 0 : (uint64_t)n;
    }
    if (mmap(at, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             (off_t)offset) == MAP_FAILED) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "%llu bytes could not be mapped again: %s",
                       (unsigned long long)bytes, strerror(errno));
    }
    return FERRY_OK;
}

ferry_status fy_local_memory_renew(fy_local_memory *memory, ferry_error *error)
{
    if (memory->fd < 0 || !memory->shared) {
        return FERRY_OK;
    }
    ferry_status status = memory->renewed == 0 ? begin_renewal(memory, error) : FERRY_OK;
    while (status == FERRY_OK && memory->renewed < memory->map_bytes) {
        uint64_t offset = memory->renewed;
        uint64_t bytes = fy_min(FY_RENEW_BYTES, memory->map_bytes - offset);
        char *at = memory->map + offset;
        status = fy_room_check(bytes, "other pages for memory", error);
        FY_THEN(status, memory->next_fd < 0
                            ? fy_pages_renew(at, bytes, error)
                            : renew_in_file(at, bytes, memory->next_fd, offset, error));
        if (status == FERRY_OK) {
            fallocate(memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                      (off_t)bytes); /* frees the old pages now; else when the last one unmaps */
            if (memory->map_bytes >= FY_HUGE_BYTES) {
                madvise(at, (size_t)bytes, MADV_HUGEPAGE); /* a wish */
            }
            fy_pages_gather(at, bytes);
            memory->renewed += bytes;
        } else if (offset == 0 && memory->next_fd >= 0) {
            close(memory->next_fd);
        }
    }
    if (status != FERRY_OK) {
        return status;
    }
    close(memory->fd);
    memory->fd = memory->next_fd;
    memory->shared = false;
    memory->renewed = 0;
    memcpy(memory->token, memory->next_token, sizeof memory->token);
    return FERRY_OK;
}

/*
 * The other side
 */

/* Whether a link of /proc leads to the file of that name. */
static bool leads_to(const char *link, const char *name)
{
    char target[128];
    char wanted[128];
    ssize_t length = readlink(link, target, sizeof target - 1);
    int n = snprintf(wanted, sizeof wanted, "/memfd:%s (deleted)", name);
    return length == n && memcmp(target, wanted, (size_t)n) == 0;
}

/* What was opened is the file itself: sealed, so that to use it never ends in a signal. */
static bool is_the_file(int fd, const char *name, const local_key *its)
{
    char own[64];
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    snprintf(own, sizeof own, "/proc/self/fd/%d", fd);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &status) == 0 &&
           (uint64_t)status.st_ino == its->inode && (uint64_t)status.st_dev == its->device &&
           (uint64_t)status.st_size == its->map_bytes && leads_to(own, name);
}

/* A descriptor of this process's own, or -1. Looks before it opens, for to open may have effects.
 */
static int open_file(int32_t pid, const local_key *its)
{
    char name[NAME_BYTES];
    char path[64];
    write_name(its->token, name);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, (int)its->fd);
    if (!leads_to(path, name)) {
        return -1;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd >= 0 && !is_the_file(fd, name, its)) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool map_theirs(int fd, const local_key *its, fy_node_memory *memory)
{
    memory->n_granules = fy_ceil_div(its->map_bytes, FY_HUGE_BYTES);
    memory->part_bytes = its->map_bytes;
    memory->map_bytes = its->map_bytes;
    memory->ready =
        fy_alloc_zeroed((size_t)fy_ceil_div(memory->n_granules, 64), sizeof *memory->ready);
    memory->map = memory->ready == NULL ? NULL : fy_shared_file_map(fd, its->map_bytes);
    if (memory->map == NULL) {
        fy_node_memory_cleanup(memory);
        return false;
    }
    if (its->map_bytes >= FY_HUGE_BYTES) {
        madvise(memory->map, (size_t)its->map_bytes, MADV_HUGEPAGE); /* a wish */
    }
    return true;
}

bool fy_local_memory_map(int32_t pid, const void *key, size_t key_bytes, uint64_t bytes,
                         fy_node_memory *memory_out)
{
    local_key its;
    fy_node_memory memory = {.map = NULL};
    if (key_bytes != sizeof its || pid <= 0) {
        return false;
    }
    memcpy(&its, key, sizeof its);
    if (its.magic != LOCAL_MAGIC || its.fd < 0 || its.map_bytes < bytes ||
        its.map_bytes > (uint64_t)INT64_MAX / 2) {
        return false;
    }
    int fd = open_file(pid, &its);
    if (fd < 0) {
        fy_log(FERRY_LOG_DEBUG, "memory of process %d cannot be opened here: %s", (int)pid,
               strerror(errno));
        return false;
    }
    bool mapped = map_theirs(fd, &its, &memory);
    close(fd);
    if (mapped) {
        *memory_out = memory;
    }
    return mapped;
}
