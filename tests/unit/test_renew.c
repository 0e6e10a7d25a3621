/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is renewed while somebody else has it mapped: its owner sees the same bytes at the
 * same addresses, and nothing of what the other writes from then on.
 */
#include "transport/mapped/local.h"
#include "transport/pages.h"

#include "support/check.h"

#include <errno.h>
#include <stdlib.h>
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
    fy_node_memory  theirs; /* the same memory, as somebody else has it mapped */
    unsigned char   key[FY_LOCAL_KEY_BYTES];
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
        pair        p;
        ferry_error error;
        make_pair(&p, sizes[i]);
        const char *map = p.own.map;
        must(fy_local_memory_renew(&p.own, &error), &error);
        expect_renewed(&p, map, sizes[i]);
    }
}

/* Wherever it stops, the content stays, and the next call goes on. */
static void test_goes_on(void **state)
{
    enum { BYTES = 50 << 20 };
    (void)state;
    for (int64_t n = 0; n < 4; n++) {
        pair        p;
        ferry_error error = {.message = ""};
        make_pair(&p, BYTES);
        const char *map = p.own.map;
        writes_left     = n;
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
    pair        p;
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

/* Memory that nobody can have mapped stays as it is. */
static void test_not_shared(void **state)
{
    fy_local_memory memory;
    ferry_error     error;
    (void)state;
    must(fy_local_memory_create(1 << 20, &memory, &error), &error);
    int fd      = memory.fd;
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
        cmocka_unit_test(test_goes_on),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_not_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
