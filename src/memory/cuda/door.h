/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_DOOR_H
#define FY_MEMORY_CUDA_DOOR_H

#include <stdint.h>

/*
 * Where one process may not take descriptors of another by itself (pidfd_getfd: Yama, containers,
 * namespaces of processes), the owner hands them over: a door is a socket of this machine, with a
 * thread behind it. Who knocks shows the token of the list, which only those have who were given a
 * handle.
 */
typedef struct fy_cuda_door fy_cuda_door;

/* A copy of a descriptor, for the door's thread to close; -1: that one is not lent. */
typedef int fy_cuda_lend(int32_t fd);

/* NULL: there can be none. number_out is what others know it by; 0 is none. */
fy_cuda_door *fy_cuda_door_open(const uint64_t token[2], fy_cuda_lend *lend, uint64_t *number_out);
/* Waits for whoever is at the door; `lend` is not called any more. NULL is allowed. */
void fy_cuda_door_close(fy_cuda_door *door);

/* A socket at another process's door, for the caller to close; -1 and errno. */
int fy_cuda_door_knock(uint64_t number);
/* One descriptor; -1 and errno. No call takes longer than a few seconds. */
int fy_cuda_door_take(int guest, const uint64_t token[2], int32_t fd);

#endif
