/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell each other of failures is held against what there is before it becomes a status
 * of this rank's.
 */
#include "rank_threads.h"

#include "transport/agree.h"
#include "world/process.h"

#include <string.h>

static const uint32_t strange[] = {FY_N_STATUSES, 4711, UINT32_MAX};

static void vote(rank_thread *self)
{
    ferry_error why, said;
    unsigned char message[64];
    fy_votes votes;
    uint32_t much = 1000;
    fy_fail(&why, FERRY_ERR_INVALID_INPUT, "no");
    fy_vote own = {.status = FERRY_ERR_INVALID_INPUT, .own = &why};
    expect_ok(self, fy_votes_gather(self->world, &own, &votes, &self->error));
    expect(self, fy_votes_status(&votes, &said) == FERRY_ERR_INVALID_INPUT);
    expect(self, strcmp(said.message, "rank 0: no") == 0);
    expect(self, votes.lengths[0] <= sizeof message);
    memcpy(message, votes.all, votes.lengths[0]);
    votes.all = message;
    for (size_t i = 0; i < COUNT_OF(strange); i++) {
        memcpy(message, &strange[i], sizeof strange[i]);
        expect(self, fy_votes_status(&votes, &said) == FERRY_ERR_NO_MEMORY);
    }
    /* More bytes than there are, of a rank that had none. */
    memset(message, 0, sizeof much);
    memcpy(message + sizeof much, &much, sizeof much);
    expect(self, fy_votes_status(&votes, &said) == FERRY_ERR_NO_MEMORY);
}

static void test_votes(void **state)
{
    (void)state;
    run_ranks(1, NULL, vote, NULL);
}

static void test_news(void **state)
{
    unsigned char bytes[FY_NEWS_BYTES];
    fy_wire_packer packer = {.bytes = bytes};
    fy_failure failure = {0}, heard = {0};
    uint32_t rank;
    ferry_error text;
    (void)state;
    assert_true(fy_failure_set(&failure, FERRY_ERR_TIMEOUT, 3, "rank 3 is silent"));
    assert_true(fy_news_pack(&failure, &packer));
    fy_wire_reader reader = fy_wire_reader_of(bytes, packer.used);
    assert_true(fy_news_read(&reader, &heard));
    assert_int_equal(fy_failure_get(&heard, &rank, &text), FERRY_ERR_TIMEOUT);
    assert_int_equal(rank, 3);
    assert_string_equal(text.message, "rank 3 is silent");
    for (size_t i = 0; i <= COUNT_OF(strange); i++) {
        fy_failure nothing = {0};
        uint32_t status = i < COUNT_OF(strange) ? strange[i] : (uint32_t)FERRY_OK;
        fy_wire_packer other = {.bytes = bytes};
        fy_wire_pack_u32(&other, status);
        reader = fy_wire_reader_of(bytes, packer.used);
        assert_false(fy_news_read(&reader, &nothing));
        assert_false(fy_failed(&nothing));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_votes), cmocka_unit_test(test_news)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
