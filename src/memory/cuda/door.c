/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/door.h"

#include "base/alloc.h"
#include "host/pass.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/*
 * A guest comes for one descriptor, and goes: so guests take turns, whatever they do between two.
 * One that says nothing is sent away; who stands behind it has several such times.
 */
enum { N_WAITING = 1024, GUEST_MS = 500, OWNER_MS = 5000, PAUSE_MS = 10 };

struct fy_cuda_door {
    int socket, bell; /* the bell ends the thread */
    fy_cuda_lend *lend;
    uint64_t secret;
    pid_t pid; /* whose thread it is: a child that was forked has none */
    pthread_t thread;
};

typedef struct knock {
    uint64_t secret;
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

static bool is_same_user(int socket)
{
    struct ucred other;
    socklen_t length = sizeof other;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 &&
           other.uid == geteuid();
}

/*
 * The owner
 */

/* Waits for something to read; false where the door is being closed, or nothing came. */
static bool await(const fy_cuda_door *door, int socket, int limit_ms)
{
    struct pollfd both[] = {{.fd = door->bell, .events = POLLIN}, {.fd = socket, .events = POLLIN}};
    return poll(both, 2, limit_ms) > 0 && both[0].revents == 0;
}

static void serve(const fy_cuda_door *door, int guest)
{
    knock wanted;
    if (!is_same_user(guest) || !await(door, guest, GUEST_MS) ||
        recv(guest, &wanted, sizeof wanted, MSG_DONTWAIT) != (ssize_t)sizeof wanted ||
        wanted.secret != door->secret) {
        return;
    }
    int fd = door->lend(wanted.fd);
    if (fd >= 0) {
        (void)fy_pass_descriptor(guest, (uint32_t)wanted.fd, fd);
        close(fd);
    }
}

static bool is_closed(const fy_cuda_door *door, int limit_ms)
{
    struct pollfd bell = {.fd = door->bell, .events = POLLIN};
    return poll(&bell, 1, limit_ms) > 0;
}

/* Where there is no room for a guest he waits, until there is. */
static void *answer(void *context)
{
    const fy_cuda_door *door = context;
    while (!is_closed(door, 0)) {
        int guest = await(door, door->socket, -1)
                        ? accept4(door->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)
                        : -1;
        if (guest >= 0) {
            serve(door, guest);
            close(guest);
        } else {
            (void)is_closed(door, PAUSE_MS);
        }
    }
    return NULL;
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
    return number != 0 && bind(socket, (const struct sockaddr *)&address, length) == 0 &&
           listen(socket, N_WAITING) == 0;
}

static void drop(fy_cuda_door *door)
{
    if (door->socket >= 0) {
        close(door->socket);
    }
    if (door->bell >= 0) {
        close(door->bell);
    }
    fy_free(door);
}

fy_cuda_door *fy_cuda_door_open(fy_cuda_lend *lend, uint64_t *number_out, uint64_t *secret_out)
{
    uint64_t random[2];
    *number_out = *secret_out = 0;
    fy_cuda_door *door = fy_alloc_zeroed(1, sizeof *door);
    if (door == NULL) {
        return NULL;
    }
    door->lend = lend;
    door->pid = getpid();
    door->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    door->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (door->bell < 0 || door->socket < 0 ||
        getrandom(random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random ||
        !listen_at(door->socket, random[0])) {
        drop(door);
        return NULL;
    }
    door->secret = random[1];
    if (!start(door)) {
        drop(door);
        return NULL;
    }
    *number_out = random[0];
    *secret_out = random[1];
    return door;
}

void fy_cuda_door_close(fy_cuda_door *door)
{
    if (door == NULL) {
        return;
    }
    if (door->pid == getpid()) {
        (void)eventfd_write(door->bell, 1);
        pthread_join(door->thread, NULL);
    }
    drop(door);
}

/*
 * The guest
 */

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Never waits: where more guests stand there than the door holds it is tried again. */
static bool connect_by(int guest, uint64_t number, int64_t end_ms)
{
    struct sockaddr_un address;
    socklen_t length = name_door(number, &address);
    while (connect(guest, (const struct sockaddr *)&address, length) != 0) {
        if (errno != EAGAIN && errno != EINTR) {
            return false;
        }
        if (now_ms() >= end_ms) {
            errno = ETIMEDOUT;
            return false;
        }
        (void)poll(NULL, 0, PAUSE_MS);
    }
    return true;
}

static int receive_by(int guest, int32_t fd, int64_t end_ms)
{
    uint64_t tag = 0;
    int mine = -1, got;
    while ((got = fy_take_descriptor(guest, &tag, &mine)) == 0) {
        struct pollfd answer = {.fd = guest, .events = POLLIN};
        int64_t left_ms = end_ms - now_ms();
        if (left_ms <= 0) {
            errno = ETIMEDOUT;
            return -1;
        }
        (void)poll(&answer, 1, (int)left_ms);
    }
    if (got == 1 && tag != (uint32_t)fd) {
        close(mine);
        errno = EPROTO;
        return -1;
    }
    return got == 1 ? mine : -1;
}

int fy_cuda_door_ask(uint64_t number, uint64_t secret, int32_t fd)
{
    const knock wanted = {.secret = secret, .fd = fd};
    int64_t end_ms = now_ms() + OWNER_MS;
    int mine = -1, error = ENOENT;
    if (number == 0) {
        errno = error;
        return -1;
    }
    int guest = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (guest < 0) {
        return -1;
    }
    error = EPERM; /* nobody shows the secret to another user's door */
    if (!connect_by(guest, number, end_ms)) {
        error = errno;
    } else if (is_same_user(guest) &&
               send(guest, &wanted, sizeof wanted, MSG_NOSIGNAL) == (ssize_t)sizeof wanted) {
        mine = receive_by(guest, fd, end_ms);
        error = errno;
    }
    close(guest);
    errno = error;
    return mine;
}
