/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The sockets of a node: who knows the key gets the shared page through it, and nobody else does.
 */
#include "world/node_socket.h"

#include "host/pass.h"
#include "world/auth.h"

#include "support/check.h"
#include "support/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static const unsigned char key[FY_KEY_BYTES] = "the key of these ranks";
static const unsigned char other[FY_KEY_BYTES] = "another key";

static const int64_t LONG_NS = (int64_t)3600 * 1000000000; /* no test ends by it */

enum { SLOT = 0x01020304, TAG = 77 };

static bool is_same_file(int a, int b)
{
    struct stat first, second;
    return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_ino == second.st_ino &&
           first.st_dev == second.st_dev;
}

/* A rank that joins, in a thread of its own. */
typedef struct joining {
    char name[FY_NODE_SOCKET_NAME_BYTES];
    const unsigned char *key;
    ferry_status status;
    ferry_error error;
    int fd_of_host, page;
    pthread_t thread;
} joining;

static void *join_line(void *argument)
{
    joining *j = argument;
    errno = EAGAIN; /* what an earlier call has left is of no account */
    j->status = fy_node_socket_join(j->name, j->key, SLOT, LONG_NS, fy_interrupted, NULL,
                                    &j->fd_of_host, &j->page, &j->error);
    return NULL;
}

/* Listens under a name of this process's own, and lets one join: its connection. */
static int begin(joining *j, const unsigned char *its_key, int *listener_out)
{
    unsigned char world_id[16] = "line";
    pid_t pid = getpid();
    ferry_error error;
    memcpy(world_id + 8, &pid, sizeof pid);
    *j = (joining){.key = its_key, .fd_of_host = -1, .page = -1};
    fy_node_socket_name(key, world_id, 3, j->name);
    must(fy_node_socket_listen(j->name, listener_out, &error), &error);
    assert_true(*listener_out >= 0);
    assert_int_equal(pthread_create(&j->thread, NULL, join_line, j), 0);
    struct pollfd waits = {.fd = *listener_out, .events = POLLIN};
    assert_int_equal(poll(&waits, 1, -1), 1);
    int fd = accept4(*listener_out, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

/* Takes packets of a rank until it is proven, or something is wrong. */
static ferry_status admit(fy_node_peer *peer, bool *proven, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    *proven = false;
    while (status == FERRY_OK && !*proven) {
        struct pollfd waits = {.fd = peer->fd, .events = POLLIN};
        assert_int_equal(poll(&waits, 1, -1), 1);
        status = fy_node_socket_admit(peer, key, proven, error);
    }
    return status;
}

static void test_joins(void **state)
{
    (void)state;
    joining j;
    ferry_error error;
    bool proven;
    uint64_t tag;
    int listener, second, got;
    size_t n_open = count_descriptors();
    int page = memfd_create("page", MFD_CLOEXEC), more = memfd_create("more", MFD_CLOEXEC);
    fy_node_peer peer = {.fd = begin(&j, key, &listener)};
    must(fy_node_socket_listen(j.name, &second, &error), &error);
    assert_int_equal(second, -1); /* there is a host */
    must(admit(&peer, &proven, &error), &error);
    assert_int_equal(peer.slot, SLOT);
    assert_int_equal(fy_node_socket_peer_pid(peer.fd), getpid());
    assert_true(fy_pass_descriptor(peer.fd, TAG, page));
    pthread_join(j.thread, NULL);
    must(j.status, &j.error);
    assert_true(j.fd_of_host >= 0 && is_same_file(j.page, page));
    assert_true(fcntl(j.page, F_GETFD) & FD_CLOEXEC);
    /* And the other way, more than one. */
    assert_int_equal(fy_take_descriptor(peer.fd, &tag, &got), 0);
    assert_true(fy_pass_descriptor(j.fd_of_host, TAG + 1, more) &&
                fy_pass_descriptor(j.fd_of_host, TAG + 2, page));
    for (uint64_t i = 1; i <= 2; i++) {
        assert_int_equal(fy_take_descriptor(peer.fd, &tag, &got), 1);
        assert_int_equal(tag, TAG + i);
        assert_true(is_same_file(got, i == 1 ? more : page));
        close(got);
    }
    close(j.fd_of_host);
    assert_int_equal(fy_take_descriptor(peer.fd, &tag, &got), -1);
    assert_false(fy_pass_descriptor(peer.fd, TAG, page));
    const int all[] = {j.page, page, more, peer.fd, listener};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        close(all[i]);
    }
    assert_int_equal(count_descriptors(), n_open);
}

/* Neither side is told anything by one that has another key. */
static void test_another_key(void **state)
{
    (void)state;
    joining j;
    ferry_error error;
    bool proven;
    int listener;
    size_t n_open = count_descriptors();
    fy_node_peer peer = {.fd = begin(&j, other, &listener)};
    ferry_status status = admit(&peer, &proven, &error);
    check_status("the host", FERRY_ERR_DENIED, status, &error);
    assert_false(proven);
    pthread_join(j.thread, NULL);
    check_status("the other rank", FERRY_ERR_DENIED, j.status, &j.error);
    check_says("the other rank", "does not know the key", &j.error);
    assert_true(j.fd_of_host == -1 && j.page == -1);
    close(peer.fd);
    close(listener);
    assert_int_equal(count_descriptors(), n_open);
}

/* A host that goes is waited for no longer, wherever it stops: who waits may be the next host. */
static void test_host_goes(void **state)
{
    (void)state;
    enum { AT_ONCE, HEARD, ANSWERED, PROVEN, N_STOPS };
    for (int stop = AT_ONCE; stop < N_STOPS; stop++) {
        joining j;
        ferry_error error;
        bool proven;
        int listener;
        size_t n_open = count_descriptors();
        fy_node_peer peer = {.fd = begin(&j, key, &listener)};
        struct pollfd waits = {.fd = peer.fd, .events = POLLIN};
        char packet[200];
        assert_int_equal(poll(&waits, 1, -1), 1);
        if (stop == PROVEN) {
            must(admit(&peer, &proven, &error), &error);
        } else if (stop == ANSWERED) {
            must(fy_node_socket_admit(&peer, key, &proven, &error), &error);
        } else if (stop == HEARD) {
            assert_true(recv(peer.fd, packet, sizeof packet, 0) > 0);
        }
        close(peer.fd);
        pthread_join(j.thread, NULL);
        check_at(j.status == FERRY_OK && j.fd_of_host == -1 && j.page == -1, "stop %d", stop);
        close(listener);
        check_at(count_descriptors() == n_open, "stop %d", stop);
    }
    int fd_of_host, page;
    ferry_error error;
    must(fy_node_socket_join("ferry-nobody", key, SLOT, LONG_NS, fy_interrupted, NULL, &fd_of_host,
                             &page, &error),
         &error);
    assert_true(fd_of_host == -1 && page == -1);
}

/* What is no packet of such a socket ends it, and keeps no descriptor. */
static void test_strange_packets(void **state)
{
    (void)state;
    static const char bytes[200];
    uint64_t tag;
    int got, fds[2];
    size_t n_open = count_descriptors();
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds), 0);
    /* A tag without a descriptor, and a descriptor with half a tag. */
    assert_int_equal(send(fds[0], bytes, sizeof tag, 0), sizeof tag);
    assert_int_equal(fy_take_descriptor(fds[1], &tag, &got), -1);
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec piece = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = 4};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fds[0], sizeof fds[0]);
    assert_int_equal(sendmsg(fds[0], &message, 0), 4);
    assert_int_equal(fy_take_descriptor(fds[1], &tag, &got), -1);
    /* First packets of a rank: too short, too long, of other words. */
    static const size_t lengths[] = {1, 44, sizeof bytes};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        fy_node_peer peer = {.fd = fds[1]};
        bool proven;
        ferry_error error;
        assert_int_equal(send(fds[0], bytes, lengths[i], 0), lengths[i]);
        check_at(fy_node_socket_admit(&peer, key, &proven, &error) == FERRY_ERR_DENIED, "%zu bytes",
                 lengths[i]);
        assert_false(proven);
    }
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(count_descriptors(), n_open);
}

static int set_up(void **state)
{
    ferry_error error;
    (void)state;
    return fy_auth_begin(&error) == FERRY_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joins),
        cmocka_unit_test(test_another_key),
        cmocka_unit_test(test_host_goes),
        cmocka_unit_test(test_strange_packets),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
