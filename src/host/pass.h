/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_HOST_PASS_H
#define FY_HOST_PASS_H

#include <stdbool.h>
#include <stdint.h>

/* Descriptors that pass from process to process, over a socket that keeps messages apart. */

/*
 * Passes a descriptor, which stays the caller's, under a tag. Never waits. False: the other side is
 * gone, or takes nothing any more: its queue holds far more than it can have been sent.
 */
bool fy_pass_descriptor(int socket_fd, uint64_t tag, int fd);

/*
 * 1: got one, 0: nothing is there, -1: the other side is gone or has sent none, and errno: EPERM
 * where it has not, EMFILE where this process has no room for one.
 */
int fy_take_descriptor(int socket_fd, uint64_t *tag_out, int *fd_out);

#endif
