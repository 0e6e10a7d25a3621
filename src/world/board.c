/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/board.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t board_magic = UINT64_C(0x316472616f627966);

static size_t board_bytes(uint32_t n_slots)
{
    return sizeof(fy_board) + (size_t)n_slots * sizeof(fy_board_slot);
}

static ferry_status map(int fd, size_t n_bytes, fy_board **board_out, ferry_error *error)
{
    void *memory = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY,
                       "the board of a node, %zu bytes, could not be mapped: %s", n_bytes,
                       strerror(errno));
    }
    *board_out = memory;
    return FERRY_OK;
}

ferry_status fy_board_create(uint32_t n_slots, int *fd_out, fy_board **board_out,
                             ferry_error *error)
{
    ferry_status status = FERRY_OK;
    int fd = memfd_create("ferry-board", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)board_bytes(n_slots)) != 0) {
        status = fy_fail(error, FERRY_ERR_NO_MEMORY, "the board of a node could not be made: %s",
                         strerror(errno));
        goto out;
    }
    /* Whoever maps it can rely on its length: touching it never becomes a SIGBUS. */
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    status = map(fd, board_bytes(n_slots), board_out, error);
    if (status != FERRY_OK) {
        goto out;
    }
    (*board_out)->magic = board_magic;
    (*board_out)->n_slots = n_slots;
    randombytes_buf((*board_out)->id, sizeof(*board_out)->id);
    *fd_out = fd;
    fd = -1;
out:
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

ferry_status fy_board_map(int fd, fy_board **board_out, uint32_t *n_slots_out, ferry_error *error)
{
    struct stat file;
    if (fstat(fd, &file) != 0 || (size_t)file.st_size < sizeof(fy_board)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "the board of a node has the wrong size");
    }
    fy_board *board = NULL;
    ferry_status status = map(fd, (size_t)file.st_size, &board, error);
    if (status != FERRY_OK) {
        return status;
    }
    uint32_t n_slots = *(volatile uint32_t *)&board->n_slots;
    if (board->magic != board_magic || board_bytes(n_slots) != (size_t)file.st_size) {
        munmap(board, (size_t)file.st_size);
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "what was passed is not the board of a node");
    }
    *board_out = board;
    *n_slots_out = n_slots;
    return FERRY_OK;
}

void fy_board_unmap(fy_board *board, uint32_t n_slots)
{
    if (board != NULL) {
        munmap(board, board_bytes(n_slots));
    }
}

/* The namespace of pids that this process lives in; 0 if /proc does not say. */
static uint64_t own_pid_space(void)
{
    struct stat file;
    return stat("/proc/self/ns/pid", &file) == 0 ? (uint64_t)file.st_ino : 0;
}

void fy_board_sign(fy_board *board, uint32_t slot)
{
    atomic_store(&board->slots[slot].pid_space, own_pid_space());
    atomic_store(&board->slots[slot].pid, (uint32_t)getpid());
}

int32_t fy_board_pid(const fy_board *board, uint32_t slot)
{
    uint64_t space = own_pid_space();
    if (space == 0 || atomic_load(&board->slots[slot].pid_space) != space) {
        return 0;
    }
    return (int32_t)atomic_load(&board->slots[slot].pid);
}
