/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/meeting.h"

#include "base/alloc.h"

#include "support/meeting.h"

#include <pthread.h>
#include <stdio.h>

enum { N_RANKS = 5 };

/* An all-gather among threads, which can be told to go wrong. */
typedef struct exchange {
    pthread_barrier_t barrier;
    char bytes[N_RANKS][4096];
    uint32_t fails; /* the rank whose call says 7; N_RANKS: none */
    bool swaps;     /* ranks 1 and 2 lie in each other's places */
    bool garbles;   /* the bytes of rank 3 */
} exchange;

typedef struct caller {
    exchange *all;
    uint32_t rank;
    uint32_t n_ranks; /* as it believes */
    fy_settings settings;
    fy_meeting meeting;
    ferry_status status;
    ferry_error error;
    pthread_t thread;
} caller;

static int gather(void *context, const void *bytes, size_t n_bytes, void *all_out)
{
    caller *own = context;
    exchange *all = own->all;
    assert_true(n_bytes <= sizeof all->bytes[0]);
    memcpy(all->bytes[own->rank], bytes, n_bytes);
    pthread_barrier_wait(&all->barrier);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        uint32_t from = all->swaps && (r == 1 || r == 2) ? 3 - r : r;
        memcpy((char *)all_out + r * n_bytes, all->bytes[from], n_bytes);
    }
    if (all->garbles) {
        memset((char *)all_out + 3 * n_bytes, 'x', n_bytes);
    }
    pthread_barrier_wait(&all->barrier);
    return own->rank == all->fails ? 7 : 0;
}

static void *call(void *argument)
{
    caller *own = argument;
    ferry_bootstrap bootstrap = FERRY_BOOTSTRAP_INIT;
    bootstrap.context = own;
    bootstrap.rank = own->rank;
    bootstrap.n_ranks = own->n_ranks;
    bootstrap.all_gather = gather;
    own->meeting = (fy_meeting)FY_MEETING_INIT;
    own->status = fy_meet_bootstrap(&own->meeting, &bootstrap, &own->settings, &own->error);
    return NULL;
}

typedef void (*spoil_fn)(exchange *all, caller *callers);

static void gather_all(exchange *all, caller *callers, spoil_fn spoil)
{
    memset(all, 0, sizeof *all);
    all->fails = N_RANKS;
    pthread_barrier_init(&all->barrier, NULL, N_RANKS);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        callers[r] = (caller){
            .all = all, .rank = r, .n_ranks = N_RANKS, .settings = settings_of(1, "secret")};
    }
    spoil(all, callers);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        assert_int_equal(pthread_create(&callers[r].thread, NULL, call, &callers[r]), 0);
    }
    for (uint32_t r = 0; r < N_RANKS; r++) {
        pthread_join(callers[r].thread, NULL);
    }
    pthread_barrier_destroy(&all->barrier);
}

static void spoil_nothing(exchange *all, caller *callers)
{
    (void)all;
    (void)callers;
}

static void spoil_secrets(exchange *all, caller *callers)
{
    (void)all;
    for (uint32_t r = 0; r < N_RANKS; r++) {
        callers[r].settings.secret = NULL;
    }
}

static void test_bootstrap_good(void **state)
{
    (void)state;
    static exchange all;
    static const spoil_fn rows[] = {spoil_nothing, spoil_secrets};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        caller callers[N_RANKS];
        gather_all(&all, callers, rows[i]);
        for (uint32_t r = 0; r < N_RANKS; r++) {
            must(callers[r].status, &callers[r].error);
            assert_int_equal(callers[r].meeting.rank, r);
            assert_int_equal(callers[r].meeting.n_ranks, N_RANKS);
            assert_true((callers[r].meeting.listener >= 0) == (r == 0));
            assert_true(same_key(&callers[r].meeting, &callers[0].meeting));
            assert_string_equal(callers[r].meeting.addresses, callers[1].meeting.addresses);
        }
        assert_non_null(strchr(callers[1].meeting.addresses, ':'));
        for (uint32_t r = 0; r < N_RANKS; r++) {
            fy_meeting_cleanup(&callers[r].meeting);
        }
    }
}

static void spoil_order(exchange *all, caller *callers)
{
    (void)callers;
    all->swaps = true;
}

static void spoil_bytes(exchange *all, caller *callers)
{
    (void)callers;
    all->garbles = true;
}

static void spoil_number(exchange *all, caller *callers)
{
    (void)all;
    callers[2].n_ranks = N_RANKS + 1;
}

static void spoil_one_secret(exchange *all, caller *callers)
{
    (void)all;
    callers[4].settings.secret = NULL;
}

static void spoil_root_secret(exchange *all, caller *callers)
{
    (void)all;
    callers[0].settings.secret = NULL;
}

static void spoil_root(exchange *all, caller *callers)
{
    (void)all;
    callers[0].settings.host = "a,b";
}

/* What is wrong, and the sentence that every rank gets. */
static void test_bootstrap_contradictions(void **state)
{
    (void)state;
    static exchange all;
    static const struct {
        spoil_fn spoil;
        const char *sentence;
    } rows[] = {
        {spoil_order,
         "all_gather returned the bytes of rank 2 in the place of rank 1: they must be "
         "in order of ranks, and each rank there once"},
        {spoil_bytes, "what all_gather brought from rank 3 is not what that rank gave, or it runs "
                      "another version of ferry"},
        {spoil_number, "rank 2 expects 6 ranks, but rank 0 expects 5"},
        {spoil_one_secret,
         "rank 4 has no secret and rank 0 has one: set FERRY_SECRET on all ranks or on none"},
        {spoil_root_secret,
         "rank 1 has a secret and rank 0 has none: set FERRY_SECRET on all ranks or on none"},
        {spoil_root, "rank 0: \"a,b\" is not a host name: FERRY_HOST is one name or address"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        caller callers[N_RANKS];
        gather_all(&all, callers, rows[i].spoil);
        for (uint32_t r = 0; r < N_RANKS; r++) {
            check_status(rows[i].sentence, FERRY_ERR_INVALID_INPUT, callers[r].status,
                         &callers[r].error);
            check_says(rows[i].sentence, rows[i].sentence, &callers[r].error);
            assert_int_equal(callers[r].meeting.listener, -1);
        }
    }
}

static void spoil_root_call(exchange *all, caller *callers)
{
    (void)callers;
    all->fails = 0;
}

static void spoil_other_call(exchange *all, caller *callers)
{
    (void)callers;
    all->fails = 2;
}

static void test_bootstrap_call_fails(void **state)
{
    (void)state;
    static exchange all;
    static const spoil_fn rows[] = {spoil_root_call, spoil_other_call};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        caller callers[N_RANKS];
        char sentence[100];
        gather_all(&all, callers, rows[i]);
        snprintf(sentence, sizeof sentence, "the bootstrap's all_gather returned 7 on rank %u",
                 all.fails);
        for (uint32_t r = 0; r < N_RANKS; r++) {
            ferry_status expected = r == all.fails ? FERRY_ERR_EXCHANGE : FERRY_OK;
            check_status(sentence, expected, callers[r].status, &callers[r].error);
            if (r == all.fails) {
                assert_string_equal(callers[r].error.message, sentence);
                assert_int_equal(callers[r].meeting.listener, -1);
            }
            fy_meeting_cleanup(&callers[r].meeting);
        }
    }
}

static void test_bootstrap_misuse(void **state)
{
    (void)state;
    fy_settings settings = settings_of(1, NULL);
    fy_meeting meeting = FY_MEETING_INIT;
    ferry_bootstrap good = FERRY_BOOTSTRAP_INIT;
    ferry_error error;
    good.n_ranks = 1;
    good.all_gather = gather; /* not called: there is nobody else */
    ferry_bootstrap none = good, high = good, empty = good, small = good;
    none.all_gather = NULL;
    high.rank = 1;
    empty.n_ranks = 0;
    small.struct_size = 8;
    must(fy_meet_bootstrap(&meeting, &good, &settings, &error), &error);
    const ferry_bootstrap *const outside[] = {NULL, &small};
    for (size_t i = 0; i < COUNT_OF(outside); i++) {
        ferry_world *world = NULL;
        assert_int_equal(ferry_world_create_from_bootstrap(outside[i], NULL, &world, &error),
                         FERRY_ERR_MISUSE);
        check_says("bootstrap", "FERRY_BOOTSTRAP_INIT", &error);
    }
    const ferry_bootstrap *const rows[] = {&none, &high, &empty};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_int_equal(fy_meet_bootstrap(&meeting, rows[i], &settings, &error), FERRY_ERR_MISUSE);
    }
    good.n_ranks = 4;
    fy_alloc_fail_after(0);
    ferry_status status = fy_meet_bootstrap(&meeting, &good, &settings, &error);
    fy_alloc_fail_after(-1);
    assert_int_equal(status, FERRY_ERR_NO_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bootstrap_good),
        cmocka_unit_test(test_bootstrap_contradictions),
        cmocka_unit_test(test_bootstrap_call_fails),
        cmocka_unit_test(test_bootstrap_misuse),
        cmocka_unit_test(test_no_descriptor_left),
    };
    return cmocka_run_group_tests(tests, begin_meetings, end_meetings);
}
