/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell each other of failures is held against what there is before it becomes a status
 * of this rank's.
 */
#include "rank_threads.h"

#include "world/agree.h"
#include "world/process.h"

#include <ferry/group.h>

#include <string.h>

static const uint32_t strange[] = {FY_N_STATUSES, 4711, UINT32_MAX};

/* A status that this version does not know, and a rank that no world has, in an agreement. */
static void test_agreement(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(strange) + 2; i++) {
        unsigned char its[FY_AGREEMENT_BYTES], own[FY_AGREEMENT_BYTES];
        fy_pack message = fy_pack_into(its, sizeof its), into = fy_pack_into(own, sizeof own);
        ferry_error said = {.message = ""};
        bool is_right = i == COUNT_OF(strange);
        fy_pack_number(&message, i < COUNT_OF(strange) ? strange[i] : FERRY_ERR_IO);
        fy_pack_number(&message, is_right ? 3 : i < COUNT_OF(strange) ? 3 : FERRY_MAX_RANKS);
        fy_pack_text(&message, "rank 3: no");
        fy_pack_number(&message, 0);
        assert_int_equal(fy_agreement_read(its, message.used, NULL, 0, &said),
                         is_right ? FERRY_ERR_IO : FERRY_ERR_EXCHANGE);
        assert_string_equal(said.message,
                            is_right ? "rank 3: no" : "what the ranks agreed on is damaged");
        fy_agreement_pack(0, NULL, 0, FERRY_OK, NULL, &into);
        fy_agreement_merge(&into, its, message.used, 4);
        assert_int_equal(fy_agreement_read(own, into.used, NULL, 0, &said),
                         is_right ? FERRY_ERR_IO : FERRY_ERR_EXCHANGE);
        assert_string_equal(said.message,
                            is_right ? "rank 3: no" : "the message of rank 4 is damaged");
    }
}

static void test_news(void **state)
{
    unsigned char bytes[FY_NEWS_BYTES];
    fy_pack packer = fy_pack_into(bytes, sizeof bytes);
    fy_failure failure = {0}, heard = {0};
    uint32_t rank;
    ferry_error text;
    (void)state;
    assert_true(fy_failure_set(&failure, FERRY_ERR_TIMEOUT, 3, "rank 3 is silent"));
    assert_true(fy_news_pack(&failure, &packer));
    fy_reader reader = fy_reader_of(bytes, packer.used);
    assert_true(fy_news_read(&reader, &heard));
    assert_int_equal(fy_failure_get(&heard, &rank, &text), FERRY_ERR_TIMEOUT);
    assert_int_equal(rank, 3);
    assert_string_equal(text.message, "rank 3 is silent");
    for (size_t i = 0; i <= COUNT_OF(strange); i++) {
        fy_failure nothing = {0};
        uint32_t status = i < COUNT_OF(strange) ? strange[i] : (uint32_t)FERRY_OK;
        fy_pack other = fy_pack_into(bytes, sizeof bytes);
        fy_pack_u32(&other, status);
        reader = fy_reader_of(bytes, packer.used);
        assert_false(fy_news_read(&reader, &nothing));
        assert_false(fy_failed(&nothing));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_agreement),
                                       cmocka_unit_test(test_news)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
