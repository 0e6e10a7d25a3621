/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/shared_page.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t page_magic = UINT64_C(0x316472616f627966);

static size_t page_bytes(uint32_t n_slots)
{
    return sizeof(fy_shared_page) + (size_t)n_slots * sizeof(fy_shared_page_slot);
}

static ferry_status map(int fd, size_t n_bytes, fy_shared_page **page_out, ferry_error *error)
{
    void *memory = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY,
                       "the shared page of a node, %zu bytes, could not be mapped: %s", n_bytes,
                       strerror(errno));
    }
    *page_out = memory;
    return FERRY_OK;
}

ferry_status fy_shared_page_create(uint32_t n_slots, int *fd_out, fy_shared_page **page_out,
                                   ferry_error *error)
{
    ferry_status status = FERRY_OK;
    int fd = memfd_create("ferry-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)page_bytes(n_slots)) != 0) {
        status = fy_fail(error, FERRY_ERR_NO_MEMORY,
                         "the shared page of a node could not be made: %s", strerror(errno));
        goto out;
    }
    /* Whoever maps it can rely on its length: touching it never becomes a SIGBUS. */
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    status = map(fd, page_bytes(n_slots), page_out, error);
    if (status != FERRY_OK) {
        goto out;
    }
    (*page_out)->magic = page_magic;
    (*page_out)->n_slots = n_slots;
    randombytes_buf((*page_out)->id, sizeof(*page_out)->id);
    *fd_out = fd;
    fd = -1;
out:
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

ferry_status fy_shared_page_map(int fd, fy_shared_page **page_out, uint32_t *n_slots_out,
                                ferry_error *error)
{
    struct stat file;
    if (fstat(fd, &file) != 0 || (size_t)file.st_size < sizeof(fy_shared_page)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the shared page of a node has the wrong size");
    }
    fy_shared_page *page = NULL;
    FY_TRY(map(fd, (size_t)file.st_size, &page, error));
    uint32_t n_slots = *(volatile uint32_t *)&page->n_slots;
    if (page->magic != page_magic || page_bytes(n_slots) != (size_t)file.st_size) {
        munmap(page, (size_t)file.st_size);
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "what was passed is not the shared page of a node");
    }
    *page_out = page;
    *n_slots_out = n_slots;
    return FERRY_OK;
}

void fy_shared_page_unmap(fy_shared_page *page, uint32_t n_slots)
{
    if (page != NULL) {
        munmap(page, page_bytes(n_slots));
    }
}

/* The namespace of pids that this process lives in; 0 if /proc does not say. */
static uint64_t own_pid_space(void)
{
    struct stat file;
    return stat("/proc/self/ns/pid", &file) == 0 ? (uint64_t)file.st_ino : 0;
}

void fy_shared_page_sign(fy_shared_page *page, uint32_t slot)
{
    atomic_store(&page->slots[slot].pid_space, own_pid_space());
    atomic_store(&page->slots[slot].pid, (uint32_t)getpid());
}

int32_t fy_shared_page_pid(const fy_shared_page *page, uint32_t slot)
{
    uint64_t space = own_pid_space();
    if (space == 0 || atomic_load(&page->slots[slot].pid_space) != space) {
        return 0;
    }
    return (int32_t)atomic_load(&page->slots[slot].pid);
}
