/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that its owner lends to transports: others map it, and lose it where their world fails,
 * while those of other worlds keep it. Worlds are what a loan looks at of them.
 */
#include "transport/mapped/loan.h"
#include "transport/mapped/local.h"
#include "transport/transport.h"
#include "world/failure.h"

#include "support/check.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 20 << 20 };

/* Files in memory take no bytes. Stands in for the C library's. */
static bool is_full;

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    errno = ENOSPC;
    return is_full ? -1 : syscall(SYS_pwrite64, fd, bytes, n, at);
}

typedef struct some_world {
    ferry_world world;
    fy_failure failure;
} some_world;

static void make_world(some_world *one)
{
    memset(one, 0, sizeof *one);
    one->world.failure = &one->failure;
}

static void fail_world(some_world *one)
{
    fy_failure_set(&one->failure, FERRY_ERR_ABORTED, 0, "enough");
}

/* A loan, and its memory as somebody has it mapped who knows the key. */
typedef struct lent {
    fy_loan *loan;
    fy_node_memory theirs;
} lent;

static void map_theirs(lent *l)
{
    unsigned char key[FY_LOCAL_KEY_BYTES];
    assert_int_equal(fy_loan_key(l->loan, key), sizeof key);
    assert_true(fy_local_memory_map(getpid(), key, sizeof key, BYTES, &l->theirs));
}

static void lend(some_world *to, void *base, lent *l)
{
    ferry_error error = {.message = ""};
    must(fy_loan_begin(&to->world, base, BYTES, &l->loan, &error), &error);
    assert_non_null(l->loan);
    map_theirs(l);
}

static char *take(void)
{
    ferry_error error;
    void *base;
    must(fy_owned_alloc(BYTES, &base, &error), &error);
    return base;
}

static char *theirs(lent *l)
{
    return fy_node_memory_part(&l->theirs, 0);
}

/* Whether what they write is here; the last page is as good as any. */
static bool arrives(lent *l, const char *base, char value)
{
    theirs(l)[BYTES - 1] = value;
    return base[BYTES - 1] == value;
}

static int next_descriptor(void)
{
    int fd = dup(STDIN_FILENO);
    close(fd);
    return fd;
}

static void test_what_is_lent(void **state)
{
    some_world world;
    ferry_error error;
    char other[64] = {0};
    fy_loan *none = NULL;
    (void)state;
    make_world(&world);
    char *base = take();
    for (int i = 0; i < 3; i++) {
        const char *what[] = {other, base + 4096, base};
        uint64_t bytes[] = {sizeof other, 4096, BYTES + 1};
        must(fy_loan_begin(&world.world, what[i], bytes[i], &none, &error), &error);
        assert_null(none);
    }
    assert_false(fy_owned_free(other));
    assert_false(fy_owned_free(base + 4096));
    assert_true(fy_owned_free(base));
    assert_false(fy_owned_free(base));
    fy_loan_end(NULL);
}

/* A child of fork has the same pages. It lends none of them, and takes none away. */
static void test_child(void **state)
{
    some_world world, its;
    ferry_error error;
    fy_loan *none = NULL;
    lent l;
    int status = 0;
    (void)state;
    make_world(&world);
    make_world(&its);
    char *base = take();
    memset(base, 7, BYTES);
    lend(&world, base, &l);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool right = fy_loan_begin(&its.world, base, BYTES, &none, &error) == FERRY_OK;
        right = right && none == NULL;
        fail_world(&world);
        fy_loan_end(l.loan);
        right = right && fy_owned_free(base);
        _exit(right ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(base[0], 7);
    assert_int_equal(base[BYTES - 1], 7);
    assert_true(arrives(&l, base, 8));
    fy_node_memory_cleanup(&l.theirs);
    fy_loan_end(l.loan);
    assert_true(fy_owned_free(base));
}

/* The owner has given it up, but another world has it still: what a lost rank writes does not come.
 */
static void test_given_up(void **state)
{
    some_world failing, other;
    ferry_error error;
    fy_loan *still = NULL;
    lent l;
    (void)state;
    make_world(&failing);
    make_world(&other);
    char *base = take();
    lend(&failing, base, &l);
    must(fy_loan_begin(&other.world, base, BYTES, &still, &error), &error);
    assert_true(fy_owned_free(base));
    fail_world(&failing);
    fy_loan_end(l.loan);
    assert_false(arrives(&l, base, 9));
    fy_node_memory_cleanup(&l.theirs);
    fy_loan_end(still);
}

/* It goes when neither the owner nor a loan is left, in any order. */
static void test_who_is_last(void **state)
{
    some_world world;
    (void)state;
    make_world(&world);
    for (int owner_first = 0; owner_first < 2; owner_first++) {
        int before = next_descriptor();
        char *base = take();
        lent first, second;
        lend(&world, base, &first);
        lend(&world, base, &second);
        assert_true(arrives(&first, base, 1) && arrives(&second, base, 2));
        if (owner_first) {
            assert_true(fy_owned_free(base));
        }
        fy_loan_end(first.loan);
        assert_true(arrives(&second, base, 3));
        fy_loan_end(second.loan);
        if (!owner_first) {
            assert_true(arrives(&first, base, 4)); /* the world lives: nothing is taken back */
            assert_true(fy_owned_free(base));
        }
        fy_node_memory_cleanup(&first.theirs);
        fy_node_memory_cleanup(&second.theirs);
        assert_int_equal(next_descriptor(), before);
    }
}

/* Borrowers of one world lose the memory, and those of another never do without a word. */
static void test_two_worlds(void **state)
{
    some_world one, two;
    ferry_error error = {.message = ""};
    (void)state;
    make_world(&one);
    make_world(&two);
    char *base = take();
    lent a, b, c;
    lend(&one, base, &a);
    lend(&two, base, &b);
    fail_world(&one);
    assert_int_equal(fy_loan_revoke(a.loan, &error), FERRY_ERR_MISUSE);
    assert_non_null(strstr(error.message, "ranks of another world have this memory as well"));
    assert_true(arrives(&b, base, 1) && arrives(&a, base, 2));
    /* Nobody borrows what somebody else can still write to. */
    c.loan = NULL;
    assert_int_equal(fy_loan_begin(&two.world, base, BYTES, &c.loan, &error), FERRY_ERR_MISUSE);
    assert_null(c.loan);
    fy_loan_end(b.loan);
    must(fy_loan_revoke(a.loan, &error), &error);
    assert_false(arrives(&a, base, 3));
    assert_int_equal(base[BYTES - 1], 2);
    /* Who borrows it afterwards is not meant by what becomes of the first world. */
    lend(&two, base, &c);
    must(fy_loan_revoke(a.loan, &error), &error);
    fy_loan_end(a.loan);
    assert_true(arrives(&c, base, 4));
    fy_loan_end(c.loan);
    assert_true(fy_owned_free(base));
    fy_node_memory_cleanup(&a.theirs);
    fy_node_memory_cleanup(&b.theirs);
    fy_node_memory_cleanup(&c.theirs);
}

/* A loan that ends in a world that has failed leaves nobody who writes; and the next one, too. */
static void test_end_after_failure(void **state)
{
    some_world one, two;
    (void)state;
    for (int begins = 0; begins < 2; begins++) {
        make_world(&one);
        make_world(&two);
        char *base = take();
        lent a, b;
        lend(&one, base, &a);
        base[0] = 7;
        fail_world(&one);
        if (begins) {
            lend(&two, base, &b);
        } else {
            fy_loan_end(a.loan);
        }
        assert_false(arrives(&a, base, 1));
        assert_int_equal(base[0], 7);
        if (begins) {
            fy_loan_end(a.loan);
            assert_true(arrives(&b, base, 2));
            fy_loan_end(b.loan);
            fy_node_memory_cleanup(&b.theirs);
        }
        fy_node_memory_cleanup(&a.theirs);
        assert_true(fy_owned_free(base));
    }
}

/* Where other pages cannot be had nothing is received there, and somebody asks again. */
static void test_exposed(void **state)
{
    some_world one, two;
    ferry_error error = {.message = ""};
    char elsewhere[10];
    fy_loan *none = NULL;
    (void)state;
    make_world(&one);
    make_world(&two);
    char *base = take(), *beside = take();
    lent a;
    lend(&one, base, &a);
    fail_world(&one);
    is_full = true;
    assert_false(fy_owned_is_exposed());
    fy_loan_end(a.loan);
    assert_true(fy_owned_is_exposed());
    must(fy_owned_secure(elsewhere, sizeof elsewhere, &error), &error);
    must(fy_owned_secure(beside, BYTES, &error), &error);
    assert_true(fy_memory_is_exposed());
    assert_int_equal(fy_memory_secure(base + BYTES - 1, 1, &error), FERRY_ERR_NO_MEMORY);
    assert_non_null(strstr(error.message, "nothing can be received into 1 bytes"));
    assert_non_null(strstr(error.message, "could not be copied"));
    assert_int_equal(fy_loan_begin(&two.world, base, BYTES, &none, &error), FERRY_ERR_NO_MEMORY);
    assert_true(arrives(&a, base, 1));
    is_full = false;
    must(fy_memory_secure(base + BYTES - 1, 1, &error), &error);
    assert_false(fy_memory_is_exposed() || arrives(&a, base, 2));
    fy_node_memory_cleanup(&a.theirs);
    /* What goes is not exposed any more. */
    lend(&two, beside, &a);
    fail_world(&two);
    is_full = true;
    fy_loan_end(a.loan);
    is_full = false;
    assert_true(fy_owned_is_exposed());
    assert_true(fy_owned_free(beside) && fy_owned_free(base));
    assert_false(fy_owned_is_exposed());
    fy_node_memory_cleanup(&a.theirs);
}

/* Memory of one transport: its loan keeps it, and may become another world's. */
static void test_of_one_transport(void **state)
{
    some_world one, two;
    ferry_error error = {.message = ""};
    void *base;
    fy_loan *none = NULL;
    lent a;
    (void)state;
    make_world(&one);
    make_world(&two);
    int before = next_descriptor();
    must(fy_loan_create(&one.world, BYTES, &a.loan, &base, &error), &error);
    must(fy_loan_begin(&one.world, base, BYTES, &none, &error), &error);
    assert_null(none);
    assert_false(fy_owned_free(base));
    map_theirs(&a);
    fail_world(&one);
    fy_loan_move(a.loan, &two.world);
    must(fy_loan_revoke(a.loan, &error), &error);
    assert_false(arrives(&a, base, 1));
    fy_loan_end(a.loan);
    fy_node_memory_cleanup(&a.theirs);
    assert_int_equal(next_descriptor(), before);
}

static void test_scarce(void **state)
{
    struct rlimit limit, less;
    ferry_error error = {.message = ""};
    void *base = &limit;
    (void)state;
    getrlimit(RLIMIT_NOFILE, &limit);
    less = limit;
    less.rlim_cur = (rlim_t)next_descriptor() * 2;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &less), 0);
    int before = next_descriptor();
    assert_int_equal(fy_owned_alloc(4096, &base, &error), FERRY_ERR_LIMIT);
    assert_non_null(strstr(error.message, "memory of 4096 bytes that other ranks can map takes a "
                                          "descriptor"));
    assert_ptr_equal(base, &limit);
    setrlimit(RLIMIT_NOFILE, &limit);
    assert_int_equal(next_descriptor(), before);
    assert_int_equal(fy_owned_alloc(UINT64_MAX, &base, &error), FERRY_ERR_NO_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_lent), cmocka_unit_test(test_child),
        cmocka_unit_test(test_given_up),     cmocka_unit_test(test_who_is_last),
        cmocka_unit_test(test_two_worlds),   cmocka_unit_test(test_end_after_failure),
        cmocka_unit_test(test_exposed),      cmocka_unit_test(test_of_one_transport),
        cmocka_unit_test(test_scarce),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
