/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Letters that wait: which one is found, and how many are looked at for it. */
#include "support/check.h"
#include "support/random.h"

#include "base/alloc.h"
#include "world/mail.h"

#include <ferry/world.h>

#include <string.h>

static void post(fy_mail *mail, uint32_t from, uint64_t tag, uint64_t number)
{
    fy_letter *letter = fy_letter_new(from, tag, &number, sizeof number);
    assert_non_null(letter);
    assert_true(fy_mail_add(mail, letter));
}

/* The number of the letter that was taken, or UINT64_MAX: there is none. */
static uint64_t taken(fy_mail *mail, uint32_t from, uint64_t tag)
{
    fy_letter *letter = fy_mail_take(mail, from, tag);
    uint64_t number = UINT64_MAX;
    if (letter != NULL) {
        assert_true(letter->tag == tag && (from == FERRY_ANY_RANK || letter->from == from));
        assert_int_equal(letter->n_bytes, sizeof number);
        memcpy(&number, letter->bytes, sizeof number);
        fy_free(letter);
    }
    return number;
}

/*
 * Against a list in order of arrival that is searched from its beginning.
 */
enum { MOST_WAITING = 600, N_STEPS = 30000, N_SENDERS = 37, N_TAGS = 5 };

typedef struct known {
    uint32_t from;
    uint64_t tag, number;
} known;

typedef struct model {
    known letters[MOST_WAITING];
    size_t n;
} model;

static void drop(model *m, size_t at)
{
    memmove(m->letters + at, m->letters + at + 1, (--m->n - at) * sizeof m->letters[0]);
}

static uint64_t expected(model *m, uint32_t from, uint64_t tag)
{
    for (size_t i = 0; i < m->n; i++) {
        if (m->letters[i].tag == tag && (from == FERRY_ANY_RANK || m->letters[i].from == from)) {
            uint64_t number = m->letters[i].number;
            drop(m, i);
            return number;
        }
    }
    return UINT64_MAX;
}

static void forget(model *m, uint64_t first, uint64_t last)
{
    for (size_t i = m->n; i-- > 0;) {
        if (m->letters[i].tag >= first && m->letters[i].tag <= last) {
            drop(m, i);
        }
    }
}

static void test_order(void **state)
{
    static model m;
    fy_mail mail = {.n = 0};
    uint64_t seed = 7;
    size_t n_any = 0, n_own = 0, n_missed = 0;
    (void)state;
    for (uint64_t step = 0; step < N_STEPS; step++) {
        uint32_t what = random_below(&seed, 100), from = random_below(&seed, N_SENDERS);
        uint64_t tag = random_below(&seed, N_TAGS);
        if (what < 50 && m.n < MOST_WAITING) {
            m.letters[m.n++] = (known){from, tag, step};
            post(&mail, from, tag, step);
        } else if (what < 99) {
            from = what < 60 ? FERRY_ANY_RANK : from;
            uint64_t want = expected(&m, from, tag);
            assert_true(taken(&mail, from, tag) == want);
            n_any += from == FERRY_ANY_RANK && want != UINT64_MAX;
            n_own += from != FERRY_ANY_RANK && want != UINT64_MAX;
            n_missed += want == UINT64_MAX;
        } else {
            uint64_t last = tag + random_below(&seed, 2);
            forget(&m, tag, last);
            fy_mail_forget(&mail, tag, last);
        }
        assert_int_equal(mail.n, m.n);
        assert_true(mail.bytes == m.n * fy_letter_room(sizeof(uint64_t)));
    }
    assert_true(n_any > 100 && n_own > 100 && n_missed > 100 && m.n > 0);
    fy_mail_cleanup(&mail);
}

/*
 * All of n senders have sent when the first letter is taken; they are taken sender by sender, and
 * came in another order. One of them has sent many more.
 */
static uint64_t looks_of(uint32_t n)
{
    fy_mail mail = {.n = 0};
    for (uint32_t i = 0; i < n; i++) {
        post(&mail, n - 1 - i, 1, n - 1 - i);
    }
    for (uint32_t i = 0; i < n; i++) {
        post(&mail, 0, 2, i);
    }
    for (uint32_t i = 0; i < n; i++) {
        assert_true(taken(&mail, i, 1) == i);
    }
    for (uint32_t i = 0; i < n; i++) {
        assert_true(taken(&mail, 0, 2) == i);
    }
    uint64_t looks = mail.looks;
    assert_int_equal(mail.n, 0);
    fy_mail_cleanup(&mail);
    return looks;
}

static void test_cost(void **state)
{
    (void)state;
    uint64_t before = looks_of(512);
    for (uint32_t n = 2048; n <= 8192; n *= 4) {
        uint64_t looks = looks_of(n);
        check_at(looks >= 2 * n && looks <= 5 * before,
                 "%llu looks at the letters of %u senders, %llu at those of a quarter",
                 (unsigned long long)looks, n, (unsigned long long)before);
        before = looks;
    }
}

/* Where there is no memory for more pigeonholes a letter is not added, and all others stay. */
static void test_no_memory(void **state)
{
    fy_mail mail = {.n = 0};
    uint32_t n = 0;
    uint64_t number = 0;
    fy_letter *one_more = fy_letter_new(1000, 3, &number, sizeof number);
    (void)state;
    assert_non_null(one_more);
    fy_alloc_fail_after(0);
    assert_false(fy_mail_add(&mail, one_more));
    fy_alloc_fail_after(-1);
    for (; mail.n == 0 || mail.n < 2 * mail.n_holes; n++) {
        post(&mail, n, 3, n);
    }
    fy_alloc_fail_after(0);
    assert_false(fy_mail_add(&mail, one_more));
    fy_alloc_fail_after(-1);
    assert_int_equal(mail.n, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(taken(&mail, FERRY_ANY_RANK, 3) == i);
    }
    fy_free(one_more);
    fy_mail_cleanup(&mail);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_cost),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
