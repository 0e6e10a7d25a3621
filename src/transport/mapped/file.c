/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/mapped/file.h"

#include "base/log.h"
#include "host/file.h"
#include "memory/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif
static const long HUGETLBFS = 0x958458f6; /* statfs.f_type, as linux/magic.h has it */

/* Huge pages of the pool that nobody has or was promised. */
static uint64_t free_huge_pages(void)
{
    uint64_t n_free = fy_file_number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    uint64_t taken = fy_file_number("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages");
    return n_free > taken ? n_free - taken : 0;
}

/* A longer file than the process may write would end it by a signal. */
static ferry_status check_file_limit(const char *what, uint64_t bytes, ferry_error *error)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY,
                       "%s takes %llu bytes, and RLIMIT_FSIZE allows %llu: raise `ulimit -f`", what,
                       (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
    }
    return FERRY_OK;
}

static ferry_status make_file(const char *name, const char *what, uint64_t bytes, unsigned flags,
                              int *fd_out, ferry_error *error)
{
    FY_TRY(check_file_limit(what, bytes, error));
    ferry_status status = FERRY_OK;
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd < 0) {
        return fy_fail(error,
                       errno == EMFILE || errno == ENFILE ? FERRY_ERR_LIMIT : FERRY_ERR_NO_MEMORY,
                       "no file in memory for %s could be made: %s", what, strerror(errno));
    }
    if (ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        status = fy_fail(error, FERRY_ERR_NO_MEMORY, "a file in memory cannot have %llu bytes: %s",
                         (unsigned long long)bytes, strerror(errno));
        close(fd);
        return status;
    }
    *fd_out = fd;
    return FERRY_OK;
}

ferry_status fy_shared_file_make(const char *name, const char *what, uint64_t bytes, int *fd_out,
                                 ferry_error *error)
{
    return make_file(name, what, bytes, 0, fd_out, error);
}

int fy_shared_file_make_huge(const char *name, const char *what, uint64_t bytes)
{
    uint64_t n_free = free_huge_pages();
    uint64_t n_wanted = bytes / FY_HUGE_BYTES;
    int fd = -1;
    if (n_free < n_wanted) {
        fy_log(FERRY_LOG_DEBUG, "%s: %llu of the %llu huge pages wanted are free", what,
               (unsigned long long)n_free, (unsigned long long)n_wanted);
        return -1;
    }
    if (make_file(name, what, bytes, MFD_HUGETLB | MFD_HUGE_2MB, &fd, NULL) != FERRY_OK) {
        return -1;
    }
    /* The first mapping takes the pages out of the pool, and the file keeps them. */
    void *map = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        close(fd);
        return -1;
    }
    munmap(map, (size_t)bytes);
    fy_log(FERRY_LOG_DEBUG, "%s: %llu bytes lie in huge pages", what, (unsigned long long)bytes);
    return fd;
}

uint64_t fy_shared_file_page_bytes(int fd, uint64_t *bytes_out)
{
    struct stat status;
    struct statfs system;
    if (fstat(fd, &status) != 0 || fstatfs(fd, &system) != 0) {
        return 0;
    }
    if (bytes_out != NULL) {
        *bytes_out = (uint64_t)status.st_size;
    }
    return (long)system.f_type == HUGETLBFS ? (uint64_t)system.f_bsize : fy_page_bytes();
}

char *fy_shared_file_map(int fd, uint64_t bytes)
{
    uint64_t spare = bytes >= FY_HUGE_BYTES ? FY_HUGE_BYTES : 0;
    char *all = mmap(NULL, (size_t)(bytes + spare), PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) {
        return NULL;
    }
    uint64_t before =
        spare == 0 ? 0 : (FY_HUGE_BYTES - (uintptr_t)all % FY_HUGE_BYTES) % FY_HUGE_BYTES;
    char *map =
        mmap(all + before, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (map == MAP_FAILED) {
        int problem = errno;
        munmap(all, (size_t)(bytes + spare));
        errno = problem;
        return NULL;
    }
    if (before > 0) {
        munmap(all, (size_t)before);
    }
    if (before < spare) {
        munmap(map + bytes, (size_t)(spare - before));
    }
    return map;
}
