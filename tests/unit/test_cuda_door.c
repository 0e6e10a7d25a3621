/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that the owner of device memory hands over: to whom, which, and to nobody else. */
#include "memory/cuda/door.h"

#include "support/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { N_FILES = 200, NOBODY = 65534 };

static int files[N_FILES];
static uint64_t number, secret;
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

/* Who comes to the door of that number by himself, and what he says there, if anything. */
static int stand_at(uint64_t its, const void *words, size_t n_bytes)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "ferry-cuda-door-%016llx",
                     (unsigned long long)its);
    int guest = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    assert_int_equal(connect(guest, (struct sockaddr *)&address, length), 0);
    if (n_bytes > 0) {
        assert_int_equal(send(guest, words, n_bytes, MSG_NOSIGNAL), n_bytes);
    }
    return guest;
}

static void check_refused(uint64_t its, uint64_t shown, int fd, int error)
{
    errno = 0;
    assert_int_equal(fy_cuda_door_ask(its, shown, fd), -1);
    assert_int_equal(errno, error);
}

/* In a child, which has only the number and the secret: the right file for each. */
static int take_all(void)
{
    for (int i = 0; i < N_FILES; i++) {
        int there = -1, mine = fy_cuda_door_ask(number, secret, files[i]);
        if (mine < 0 || mine == files[i] || pread(mine, &there, sizeof there, 0) != sizeof there ||
            there != i || (fcntl(mine, F_GETFD) & FD_CLOEXEC) == 0) {
            return 2;
        }
        close(mine);
    }
    return 0;
}

static int exit_of(pid_t child)
{
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_hands_over(void **state)
{
    (void)state;
    size_t n_open = count_descriptors();
    fy_cuda_door *door = fy_cuda_door_open(lend, &number, &secret);
    assert_non_null(door);
    assert_true(number != 0);
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            int result = take_all();
            fy_cuda_door_close(door); /* no thread of this process: does not wait for one */
            _exit(result);
        }
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(exit_of(children[i]), 0);
    }
    assert_int_equal(n_asked, 3 * N_FILES);
    fy_cuda_door_close(door);
    assert_int_equal(count_descriptors(), n_open);
    check_refused(number, secret, files[0], ECONNREFUSED);
}

/* Another secret, a file that is not lent, what is no question: nothing comes. */
static void test_refuses(void **state)
{
    (void)state;
    const uint64_t others[] = {1, (uint64_t)1 << 40, ~(uint64_t)0};
    size_t n_open = count_descriptors();
    fy_cuda_door *door = fy_cuda_door_open(lend, &number, &secret);
    int before = n_asked;
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        check_refused(number, secret ^ others[i], files[0], EPERM);
    }
    int talker = stand_at(number, &secret, sizeof secret);
    char byte;
    assert_int_equal(recv(talker, &byte, 1, 0), 0); /* sent away */
    close(talker);
    assert_int_equal(n_asked, before);
    check_refused(number, secret, STDIN_FILENO, EPERM);
    check_refused(0, secret, files[0], ENOENT);
    /* And who comes with the right one after all that is served. */
    int mine = fy_cuda_door_ask(number, secret, files[7]);
    assert_true(mine >= 0);
    close(mine);
    fy_cuda_door_close(door);
    assert_int_equal(count_descriptors(), n_open);
}

/* A secret alone does not open the door to another user, nor does he get to know one. */
static void test_other_users(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        skip();
    }
    fy_cuda_door *door = fy_cuda_door_open(lend, &number, &secret);
    int before = n_asked;
    pid_t child = fork();
    if (child == 0) {
        const struct {
            uint64_t secret;
            int32_t fd, spare;
        } words = {.secret = secret, .fd = files[0]};
        char byte;
        bool is_out =
            setuid(NOBODY) == 0 && fy_cuda_door_ask(number, secret, files[0]) < 0 && errno == EPERM;
        int guest = stand_at(number, NULL, 0);
        ssize_t n_sent = send(guest, &words, sizeof words, MSG_NOSIGNAL); /* or he is out already */
        is_out = is_out && (n_sent < 0 || recv(guest, &byte, 1, 0) <= 0);
        _exit(is_out ? 0 : 1);
    }
    assert_int_equal(exit_of(child), 0);
    assert_int_equal(n_asked, before);
    fy_cuda_door_close(door);
}

/* Who stands there and says nothing keeps nobody waiting for long, and the end not at all. */
static void test_silent_guests(void **state)
{
    (void)state;
    enum { N_SILENT = 4, N_MORE = 20 };
    int silent[N_SILENT + N_MORE];
    fy_cuda_door *door = fy_cuda_door_open(lend, &number, &secret);
    for (int i = 0; i < N_SILENT; i++) {
        silent[i] = stand_at(number, NULL, 0);
    }
    int mine = fy_cuda_door_ask(number, secret, files[1]);
    assert_true(mine >= 0);
    close(mine);
    for (int i = 0; i < N_MORE; i++) {
        silent[N_SILENT + i] = stand_at(number, NULL, 0);
    }
    double begin = now();
    fy_cuda_door_close(door);
    assert_true(now() - begin < 5); /* half a second for each would be ten */
    for (int i = 0; i < N_SILENT + N_MORE; i++) {
        close(silent[i]);
    }
}

static void on_signal(int signal)
{
    (void)signal;
}

/* Signals do not put off the end of waiting for an owner that does not answer. */
static void test_owner_stopped(void **state)
{
    (void)state;
    const struct itimerval often = {{0, 10000}, {0, 10000}}, never = {{0, 0}, {0, 0}};
    const struct sigaction caught = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t owner = fork();
    if (owner == 0) {
        uint64_t its[2];
        fy_cuda_door_open(lend, &its[0], &its[1]);
        _exit(write(ready[1], its, sizeof its) == (ssize_t)sizeof its ? pause() : 1);
    }
    uint64_t its[2] = {0};
    assert_int_equal(read(ready[0], its, sizeof its), sizeof its);
    int status;
    assert_int_equal(kill(owner, SIGSTOP), 0);
    assert_int_equal(waitpid(owner, &status, WUNTRACED), owner);
    sigaction(SIGALRM, &caught, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    double begin = now();
    check_refused(its[0], its[1], files[0], ETIMEDOUT);
    double seconds = now() - begin;
    setitimer(ITIMER_REAL, &never, NULL);
    kill(owner, SIGKILL);
    assert_int_equal(waitpid(owner, NULL, 0), owner);
    close(ready[0]);
    close(ready[1]);
    assert_true(seconds > 2 && seconds < 20);
}

/* An owner that has no descriptor left lends nothing; its door closes all the same. */
static void test_no_room(void **state)
{
    (void)state;
    enum { MOST = 512 };
    static int taken[MOST];
    struct rlimit before, few;
    size_t n = 0;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = MOST < before.rlim_max ? MOST : before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    fy_cuda_door *door = fy_cuda_door_open(lend, &number, &secret);
    int guest = stand_at(number, NULL, 0);
    while (n < MOST && (taken[n] = dup(guest)) >= 0) {
        n++;
    }
    assert_true(n > 0 && n < MOST);
    /* The silent guest is sent away by and by, which leaves one: for the next, or the owner. */
    assert_int_equal(fy_cuda_door_ask(number, secret, files[2]), -1);
    close(taken[--n]); /* and none is left for a copy */
    assert_int_equal(fy_cuda_door_ask(number, secret, files[2]), -1);
    while (n < MOST && (taken[n] = dup(guest)) >= 0) {
        n++;
    }
    double begin = now();
    fy_cuda_door_close(door);
    assert_true(now() - begin < 5);
    while (n > 0) {
        close(taken[--n]);
    }
    close(guest);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hands_over),    cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_other_users),   cmocka_unit_test(test_silent_guests),
        cmocka_unit_test(test_owner_stopped), cmocka_unit_test(test_no_room)};
    return cmocka_run_group_tests(tests, open_files, close_files);
}
