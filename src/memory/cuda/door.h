/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_DOOR_H
#define FY_MEMORY_CUDA_DOOR_H

#include <stdint.h>

/*
 * Where one process may not take descriptors of another by itself (pidfd_getfd: Yama, containers,
 * PID namespaces), the owner hands them over: a door is a socket of this machine, with a thread
 * behind it. It opens to processes of the same user that show a secret, which only those have who
 * were given a handle.
 */
typedef struct fy_cuda_door fy_cuda_door;

/* A copy of a descriptor, for the door's thread to close; -1: that one is not lent. */
typedef int fy_cuda_lend(int32_t fd);

/* NULL: there can be none. number_out is what others find it by, for all to see; 0 is none. */
fy_cuda_door *fy_cuda_door_open(fy_cuda_lend *lend, uint64_t *number_out, uint64_t *secret_out);
/* `lend` is not called any more. NULL is allowed. */
void fy_cuda_door_close(fy_cuda_door *door);

/* A descriptor of the process whose door it is; -1 and errno, in the end ETIMEDOUT. */
int fy_cuda_door_ask(uint64_t number, uint64_t secret, int32_t fd);

#endif
