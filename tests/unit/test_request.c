/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/request.h"

#include "support/check.h"

/* A request that only notes what was asked of it. */
typedef struct noting {
    ferry_request base;
    uint32_t n_tests, n_waits, n_cancels, n_destroys;
    ferry_error *error;
} noting;

static ferry_status note_test(ferry_request *request, bool *done_out, ferry_error *error)
{
    noting *n = (noting *)request;
    n->n_tests++;
    n->error = error;
    *done_out = true;
    return FERRY_ERR_ABORTED;
}

static ferry_status note_wait(ferry_request *request, ferry_error *error)
{
    noting *n = (noting *)request;
    n->n_waits++;
    n->error = error;
    return FERRY_ERR_TIMEOUT;
}

static void note_cancel(ferry_request *request)
{
    ((noting *)request)->n_cancels++;
}

static void note_destroy(ferry_request *request)
{
    ((noting *)request)->n_destroys++;
}

static const fy_request_ops ops = {
    .test = note_test,
    .wait = note_wait,
    .cancel = note_cancel,
    .destroy = note_destroy,
};

static bool was_asked(const noting *n, uint32_t tests, uint32_t waits, uint32_t cancels,
                      uint32_t destroys)
{
    return n->n_tests == tests && n->n_waits == waits && n->n_cancels == cancels &&
           n->n_destroys == destroys;
}

static void test_dispatch(void **state)
{
    (void)state;
    noting n = {.base = {&ops}};
    bool done = false;
    ferry_error error;
    assert_int_equal(ferry_request_test(&n.base, &done, &error), FERRY_ERR_ABORTED);
    assert_true(done && n.error == &error && was_asked(&n, 1, 0, 0, 0));
    assert_int_equal(ferry_request_wait(&n.base, NULL), FERRY_ERR_TIMEOUT);
    assert_true(n.error == NULL && was_asked(&n, 1, 1, 0, 0));
    ferry_request_cancel(&n.base);
    assert_true(was_asked(&n, 1, 1, 1, 0));
    ferry_request_destroy(&n.base);
    assert_true(was_asked(&n, 1, 1, 1, 1));
}

static void test_misuse(void **state)
{
    (void)state;
    noting n = {.base = {&ops}};
    bool done = false;
    ferry_error error;
    check_status("test", FERRY_ERR_MISUSE, ferry_request_test(NULL, &done, &error), &error);
    check_says("test", "needs a request and a place for the result", &error);
    check_status("place", FERRY_ERR_MISUSE, ferry_request_test(&n.base, NULL, &error), &error);
    check_status("wait", FERRY_ERR_MISUSE, ferry_request_wait(NULL, &error), &error);
    check_says("wait", "needs a request", &error);
    ferry_request_cancel(NULL);
    ferry_request_destroy(NULL);
    assert_true(!done && was_asked(&n, 0, 0, 0, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dispatch),
        cmocka_unit_test(test_misuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
