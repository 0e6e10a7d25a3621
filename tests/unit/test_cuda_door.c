/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that the owner of device memory hands over: to whom, which, and to nobody else. */
#include "memory/cuda/door.h"

#include "support/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { N_FILES = 200 };

static const uint64_t token[2] = {0x1122334455667788u, 0x99aabbccddeeff00u};
static int files[N_FILES];
static _Atomic int n_asked;

static int lend(int32_t fd)
{
    n_asked++;
    for (int i = 0; i < N_FILES; i++) {
        if (files[i] == fd) {
            return fcntl(fd, F_DUPFD_CLOEXEC, 0);
        }
    }
    return -1;
}

static int open_files(void **state)
{
    (void)state;
    for (int i = 0; i < N_FILES; i++) {
        files[i] = memfd_create("piece", MFD_CLOEXEC);
        if (files[i] < 0 || write(files[i], &i, sizeof i) != (ssize_t)sizeof i) {
            return -1;
        }
    }
    return 0;
}

static int close_files(void **state)
{
    (void)state;
    for (int i = 0; i < N_FILES; i++) {
        close(files[i]);
    }
    return 0;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* In a child, which has only the number and the token: the right file for each. */
static int take_all(uint64_t number)
{
    int guest = fy_cuda_door_knock(number);
    if (guest < 0) {
        return 1;
    }
    for (int i = 0; i < N_FILES; i++) {
        int there = -1, mine = fy_cuda_door_take(guest, token, files[i]);
        if (mine < 0 || mine == files[i] || pread(mine, &there, sizeof there, 0) != sizeof there ||
            there != i || (fcntl(mine, F_GETFD) & FD_CLOEXEC) == 0) {
            return 2;
        }
        close(mine);
    }
    close(guest);
    return 0;
}

static void test_hands_over(void **state)
{
    (void)state;
    uint64_t number = 0;
    size_t n_open = count_descriptors();
    fy_cuda_door *door = fy_cuda_door_open(token, lend, &number);
    assert_non_null(door);
    assert_true(number != 0);
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            int result = take_all(number);
            fy_cuda_door_close(door); /* no thread of this process: does not wait for one */
            _exit(result);
        }
    }
    for (int i = 0; i < 3; i++) {
        int status = 0;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    fy_cuda_door_close(door);
    assert_int_equal(count_descriptors(), n_open);
    errno = 0;
    assert_int_equal(fy_cuda_door_knock(number), -1);
    assert_int_equal(errno, ECONNREFUSED);
}

/* Another token, a file that is not lent, what is no knock: nothing comes, and the guest is out. */
static void test_refuses(void **state)
{
    (void)state;
    const uint64_t others[][2] = {{token[0], token[1] + 1}, {token[0] ^ 1, token[1]}, {0, 0}};
    uint64_t number = 0;
    size_t n_open = count_descriptors();
    int before = n_asked;
    fy_cuda_door *door = fy_cuda_door_open(token, lend, &number);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        int guest = fy_cuda_door_knock(number);
        assert_int_equal(fy_cuda_door_take(guest, others[i], files[0]), -1);
        assert_int_equal(fy_cuda_door_take(guest, token, files[0]), -1);
        close(guest);
    }
    assert_int_equal(n_asked, before);
    int stranger = fy_cuda_door_knock(number);
    assert_int_equal(fy_cuda_door_take(stranger, token, STDIN_FILENO), -1);
    close(stranger);
    before = n_asked;
    int talker = fy_cuda_door_knock(number);
    assert_int_equal(send(talker, token, sizeof token, MSG_NOSIGNAL), sizeof token);
    char byte;
    assert_true(recv(talker, &byte, 1, 0) <= 0);
    close(talker);
    assert_int_equal(n_asked, before);
    /* And who comes with the right one after all that is served. */
    int guest = fy_cuda_door_knock(number);
    int mine = fy_cuda_door_take(guest, token, files[7]);
    assert_true(mine >= 0);
    close(mine);
    close(guest);
    fy_cuda_door_close(door);
    assert_int_equal(fy_cuda_door_knock(0), -1);
    assert_int_equal(count_descriptors(), n_open);
}

/* Who stands there and says nothing keeps nobody waiting for long, not even the end. */
static void test_silent_guests(void **state)
{
    (void)state;
    uint64_t number = 0;
    fy_cuda_door *door = fy_cuda_door_open(token, lend, &number);
    int silent = fy_cuda_door_knock(number);
    double begin = now();
    int guest = fy_cuda_door_knock(number);
    int mine = fy_cuda_door_take(guest, token, files[1]);
    assert_true(mine >= 0);
    assert_true(now() - begin < 8);
    close(mine);
    begin = now();
    fy_cuda_door_close(door);
    assert_true(now() - begin < 8);
    assert_int_equal(fy_cuda_door_take(guest, token, files[1]), -1);
    close(guest);
    close(silent);
}

/* An owner that has no descriptor left lends nothing, and again when it has one. */
static void test_no_room(void **state)
{
    (void)state;
    enum { MOST = 4096 };
    static int taken[MOST];
    const struct rlimit few = {.rlim_cur = MOST / 2, .rlim_max = MOST / 2};
    uint64_t number = 0;
    size_t n = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    fy_cuda_door *door = fy_cuda_door_open(token, lend, &number);
    int guest = fy_cuda_door_knock(number);
    assert_true(guest >= 0);
    while (n < MOST && (taken[n] = dup(guest)) >= 0) {
        n++;
    }
    assert_true(n > 0 && n < MOST);
    assert_int_equal(fy_cuda_door_take(guest, token, files[2]), -1);
    while (n > 0) {
        close(taken[--n]);
    }
    close(guest);
    guest = fy_cuda_door_knock(number);
    int mine = fy_cuda_door_take(guest, token, files[2]);
    assert_true(mine >= 0);
    close(mine);
    close(guest);
    fy_cuda_door_close(door);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hands_over), cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_silent_guests), cmocka_unit_test(test_no_room)};
    return cmocka_run_group_tests(tests, open_files, close_files);
}
