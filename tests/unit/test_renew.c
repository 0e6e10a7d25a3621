/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is renewed while somebody else has it mapped: its owner sees the same bytes at the
 * same addresses, and nothing of what the other writes from then on.
 */
#include "memory/pages.h"
#include "transport/mapped/local.h"

#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How many writes to files succeed before the others fail; negative: all. Stands in for the C
 * library's. */
static int64_t writes_left = -1;

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    if (writes_left == 0) {
        errno = ENOSPC;
        return -1;
    }
    writes_left -= writes_left > 0;
    return syscall(SYS_pwrite64, fd, bytes, n, at);
}

/* The C library's as UCX leaves it in a process that uses it: it takes four arguments, and pages do
 * not go where the fifth says. */
void *mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...)
{
    return (void *)syscall(SYS_mremap, old, old_bytes, bytes, (unsigned long)flags, 4096ul + 1);
}

static unsigned char byte_of(uint64_t at, uint64_t version)
{
    return (unsigned char)((at + version) * 0x9e3779b97f4a7c15u >> 56);
}

static void fill(char *map, uint64_t bytes, uint64_t version)
{
    for (uint64_t i = 0; i < bytes; i++) {
        map[i] = (char)byte_of(i, version);
    }
}

static void expect_bytes(const char *map, uint64_t bytes, uint64_t version)
{
    for (uint64_t i = 0; i < bytes; i++) {
        check_at((unsigned char)map[i] == byte_of(i, version), "byte %llu", (unsigned long long)i);
    }
}

typedef struct pair {
    fy_local_memory own;
    fy_node_memory theirs; /* the same memory, as somebody else has it mapped */
    unsigned char key[FY_LOCAL_KEY_BYTES];
} pair;

static void map_theirs(pair *p, uint64_t bytes)
{
    size_t n = fy_local_memory_key(&p->own, p->key);
    assert_int_equal(n, FY_LOCAL_KEY_BYTES);
    assert_true(fy_local_memory_map(getpid(), p->key, n, bytes, &p->theirs));
}

static void make_pair(pair *p, uint64_t bytes)
{
    ferry_error error;
    must(fy_local_memory_create(bytes, &p->own, &error), &error);
    map_theirs(p, bytes);
    fill(fy_node_memory_part(&p->theirs, 0), bytes, 1);
    expect_bytes(p->own.map, bytes, 1);
}

/* What they write is not there, their key is none, and a new key is as good as the old one was. */
static void expect_renewed(pair *p, const char *map, uint64_t bytes)
{
    fy_node_memory again;
    assert_ptr_equal(p->own.map, map);
    expect_bytes(map, bytes, 1);
    fill(fy_node_memory_part(&p->theirs, 0), bytes, 2);
    expect_bytes(map, bytes, 1);
    assert_false(fy_local_memory_map(getpid(), p->key, sizeof p->key, bytes, &again));
    fill(p->own.map, bytes, 3);
    fy_node_memory_cleanup(&p->theirs);
    map_theirs(p, bytes);
    expect_bytes(fy_node_memory_part(&p->theirs, 0), bytes, 3);
    fy_node_memory_cleanup(&p->theirs);
    fy_local_memory_cleanup(&p->own);
}

static void test_renewed(void **state)
{
    static const uint64_t sizes[] = {1, 4096, 5 << 20, 16 << 20, (16 << 20) + 1, 50 << 20};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        pair p;
        ferry_error error;
        make_pair(&p, sizes[i]);
        const char *map = p.own.map;
        must(fy_local_memory_renew(&p.own, &error), &error);
        expect_renewed(&p, map, sizes[i]);
    }
}

/* Descriptor 0 is one like others, where a program has closed it. */
static void test_renewed_by_descriptor_0(void **state)
{
    enum { BYTES = 5 << 20 };
    pair p;
    ferry_error error;
    (void)state;
    int kept = dup(STDIN_FILENO);
    make_pair(&p, BYTES);
    const char *map = p.own.map;
    close(STDIN_FILENO);
    must(fy_local_memory_renew(&p.own, &error), &error);
    assert_int_equal(p.own.fd, STDIN_FILENO);
    expect_renewed(&p, map, BYTES);
    assert_int_equal(dup2(kept, STDIN_FILENO), STDIN_FILENO);
    close(kept);
}

/*
 * A key whose descriptor is another file by now: that file is not even opened, for to open some has
 * effects.
 */
static void test_opens_nothing_else(void **state)
{
    pair p;
    char name[] = "/tmp/ferry-test-renew-XXXXXX", events[4096];
    (void)state;
    int file = mkstemp(name), watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    assert_true(file >= 0 && watch >= 0);
    assert_true(inotify_add_watch(watch, name, IN_OPEN) >= 0);
    make_pair(&p, 4096);
    int own = dup(p.own.fd);
    assert_int_equal(dup2(file, p.own.fd), p.own.fd);
    fy_node_memory again;
    assert_false(fy_local_memory_map(getpid(), p.key, sizeof p.key, 4096, &again));
    assert_int_equal(read(watch, events, sizeof events), -1);
    assert_int_equal(errno, EAGAIN);
    /* The watch does see what is opened by this way. */
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    close(open(path, O_RDONLY | O_CLOEXEC));
    assert_true(read(watch, events, sizeof events) > 0);
    assert_int_equal(dup2(own, p.own.fd), p.own.fd);
    close(own);
    close(file);
    close(watch);
    unlink(name);
    fy_node_memory_cleanup(&p.theirs);
    fy_local_memory_cleanup(&p.own);
}

/* Wherever it stops, the content stays, and the next call goes on. */
static void test_goes_on(void **state)
{
    enum { BYTES = 50 << 20 };
    (void)state;
    for (int64_t n = 0; n < 4; n++) {
        pair p;
        ferry_error error = {.message = ""};
        make_pair(&p, BYTES);
        const char *map = p.own.map;
        writes_left = n;
        assert_int_equal(fy_local_memory_renew(&p.own, &error), FERRY_ERR_NO_MEMORY);
        assert_non_null(strstr(error.message, "could not be copied"));
        expect_bytes(map, BYTES, 1);
        writes_left = -1;
        /* Nobody maps what is in two places. */
        unsigned char key[FY_LOCAL_KEY_BYTES];
        assert_int_equal(fy_local_memory_key(&p.own, key), n == 0 ? sizeof key : 0);
        must(fy_local_memory_renew(&p.own, &error), &error);
        expect_renewed(&p, map, BYTES);
    }
}

/* One that is given up in the middle leaves no descriptor. */
static void test_given_up(void **state)
{
    pair p;
    ferry_error error;
    (void)state;
    int before = dup(0);
    close(before);
    make_pair(&p, 20 << 20);
    writes_left = 1;
    assert_int_equal(fy_local_memory_renew(&p.own, &error), FERRY_ERR_NO_MEMORY);
    writes_left = -1;
    fy_node_memory_cleanup(&p.theirs);
    fy_local_memory_cleanup(&p.own);
    int after = dup(0);
    close(after);
    assert_int_equal(before, after);
}

/* Where no descriptor is left, pages of this process's own take the place of shared ones. */
static void test_private_pages(void **state)
{
    enum { BYTES = 1 << 20 };
    ferry_error error;
    (void)state;
    int fd = memfd_create("ferry", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    char *own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *theirs = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(own != MAP_FAILED && theirs != MAP_FAILED);
    fill(theirs, BYTES, 1);
    assert_int_equal(fy_pages_renew(own + 1, 4096, &error), FERRY_ERR_NO_MEMORY); /* no page */
    assert_non_null(strstr(error.message, "4096 bytes could not be mapped again"));
    expect_bytes(own, BYTES, 1);
    must(fy_pages_renew(own, BYTES, &error), &error);
    expect_bytes(own, BYTES, 1);
    fill(theirs, BYTES, 2);
    expect_bytes(own, BYTES, 1);
    munmap(own, BYTES);
    munmap(theirs, BYTES);
    close(fd);
}

/* Memory that nobody can have mapped stays as it is. */
static void test_not_shared(void **state)
{
    fy_local_memory memory;
    ferry_error error;
    (void)state;
    must(fy_local_memory_create(1 << 20, &memory, &error), &error);
    int fd = memory.fd;
    writes_left = 0;
    must(fy_local_memory_renew(&memory, &error), &error);
    writes_left = -1;
    assert_int_equal(memory.fd, fd);
    fy_local_memory_cleanup(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_renewed),
        cmocka_unit_test(test_renewed_by_descriptor_0),
        cmocka_unit_test(test_opens_nothing_else),
        cmocka_unit_test(test_goes_on),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_private_pages),
        cmocka_unit_test(test_not_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
