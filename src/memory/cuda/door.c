/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/door.h"

#include "base/alloc.h"
#include "host/pass.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* A guest that says nothing keeps others waiting for no longer than its limit. */
enum { N_WAITING = 1024, GUEST_SECONDS = 1, OWNER_SECONDS = 10, PAUSE_NS = 10000000 };

struct fy_cuda_door {
    int socket;
    fy_cuda_lend *lend;
    uint64_t token[2];
    pid_t pid; /* whose thread it is: a child that was forked has none */
    pthread_t thread;
};

typedef struct knock {
    uint64_t token[2];
    int32_t fd;
    int32_t spare;
} knock;

/* In the kernel's own room for names, so no file is left behind; ends with the socket. */
static socklen_t name_door(uint64_t number, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1,
                     "ferry-cuda-door-%016" PRIx64, number);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static void limit(int socket, int seconds)
{
    const struct timeval most = {.tv_sec = seconds};
    (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    (void)setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
}

/* Until the guest goes, says nothing, or wants what is not for him. */
static void serve(const fy_cuda_door *door, int guest)
{
    knock wanted;
    limit(guest, GUEST_SECONDS);
    while (recv(guest, &wanted, sizeof wanted, 0) == (ssize_t)sizeof wanted) {
        bool is_known = memcmp(wanted.token, door->token, sizeof door->token) == 0;
        int fd = is_known ? door->lend(wanted.fd) : -1;
        bool is_passed = fd >= 0 && fy_pass_descriptor(guest, (uint32_t)wanted.fd, fd);
        if (fd >= 0) {
            close(fd);
        }
        if (!is_passed) {
            return;
        }
    }
}

/* Errors that pass by themselves: of the guest, or of a process that has no room just now. */
static bool passes(int error)
{
    return error == EINTR || error == ECONNABORTED || error == EMFILE || error == ENFILE ||
           error == ENOBUFS || error == ENOMEM;
}

static void *answer(void *context)
{
    const fy_cuda_door *door = context;
    for (;;) {
        int guest = accept4(door->socket, NULL, NULL, SOCK_CLOEXEC);
        if (guest >= 0) {
            serve(door, guest);
            close(guest);
        } else if (passes(errno)) {
            const struct timespec pause = {.tv_nsec = PAUSE_NS};
            nanosleep(&pause, NULL);
        } else {
            return NULL; /* the door is closed */
        }
    }
}

/* No signal of the program's is taken by it. */
static bool start(fy_cuda_door *door)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    bool is_there = pthread_create(&door->thread, NULL, answer, door) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return is_there;
}

static bool listen_at(int socket, uint64_t number)
{
    struct sockaddr_un address;
    socklen_t length = name_door(number, &address);
    return bind(socket, (const struct sockaddr *)&address, length) == 0 &&
           listen(socket, N_WAITING) == 0;
}

fy_cuda_door *fy_cuda_door_open(const uint64_t token[2], fy_cuda_lend *lend, uint64_t *number_out)
{
    uint64_t number = 0;
    fy_cuda_door *door = fy_alloc(1, sizeof *door);
    *number_out = 0;
    if (door == NULL) {
        return NULL;
    }
    door->lend = lend;
    memcpy(door->token, token, sizeof door->token);
    door->pid = getpid();
    door->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool is_open = door->socket >= 0 &&
                   getrandom(&number, sizeof number, GRND_NONBLOCK) == (ssize_t)sizeof number &&
                   number != 0 && listen_at(door->socket, number) && start(door);
    if (!is_open) {
        if (door->socket >= 0) {
            close(door->socket);
        }
        fy_free(door);
        return NULL;
    }
    *number_out = number;
    return door;
}

void fy_cuda_door_close(fy_cuda_door *door)
{
    if (door == NULL) {
        return;
    }
    if (door->pid == getpid()) {
        shutdown(door->socket, SHUT_RDWR); /* who accepts there is woken */
        pthread_join(door->thread, NULL);
    }
    close(door->socket);
    fy_free(door);
}

int fy_cuda_door_knock(uint64_t number)
{
    struct sockaddr_un address;
    socklen_t length = name_door(number, &address);
    int guest = number == 0 ? -1 : socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (guest < 0) {
        return -1;
    }
    limit(guest, OWNER_SECONDS);
    if (connect(guest, (const struct sockaddr *)&address, length) != 0) {
        int error = errno;
        close(guest);
        errno = error;
        return -1;
    }
    return guest;
}

int fy_cuda_door_take(int guest, const uint64_t token[2], int32_t fd)
{
    const knock wanted = {.token = {token[0], token[1]}, .fd = fd};
    uint64_t tag = 0;
    int mine = -1, got;
    if (send(guest, &wanted, sizeof wanted, MSG_NOSIGNAL) != (ssize_t)sizeof wanted) {
        return -1;
    }
    do {
        got = fy_take_descriptor(guest, &tag, &mine);
    } while (got == 0 && errno == EINTR);
    if (got == 1 && tag == (uint32_t)fd) {
        return mine;
    }
    if (got == 1) {
        close(mine);
    }
    errno = got == 0 ? EAGAIN : EPERM;
    return -1;
}
