/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "host/pass.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

bool fy_pass_descriptor(int socket_fd, uint64_t tag, int fd)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec piece = {.iov_base = &tag, .iov_len = sizeof tag};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    ssize_t sent;
    do {
        sent = sendmsg(socket_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof tag;
}

/*
 * There is room for one descriptor: more, which the other side may have sent, are not let in. What
 * had none, or one for which this process has no room, comes without it.
 */
int fy_take_descriptor(int socket_fd, uint64_t *tag_out, int *fd_out)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec piece = {.iov_base = tag_out, .iov_len = sizeof *tag_out};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_LEN(sizeof(int))};
    ssize_t got = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
    if (got < 0) {
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    }
    bool is_cut = (message.msg_flags & MSG_CTRUNC) != 0;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(sizeof(int))) {
        errno = is_cut ? EMFILE : EPERM;
        return -1;
    }
    memcpy(fd_out, CMSG_DATA(header), sizeof *fd_out);
    if (got != (ssize_t)sizeof *tag_out || is_cut) {
        close(*fd_out);
        errno = EPROTO;
        return -1;
    }
    return 1;
}
