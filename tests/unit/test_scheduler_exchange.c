/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Building a schedule among ranks whose messages are damaged, contradict each other or fail. */
#include "support/check.h"
#include "support/workloads.h"

#include "base/alloc.h"

#include <ferry/ferry.h>
#include <ferry/reference.h>

#include <pthread.h>

/* ranks are threads that exchange bytes, some of which are changed on their way. */

enum { MAX_WORLD = 4, MAX_MESSAGE = 1024, N_CALLS = 3, EVERYBODY = -1 };

typedef struct tamper {
    int call;   /* of the exchange; -1: none */
    int victim; /* who receives the changed bytes, or EVERYBODY */
    uint32_t sender;
    size_t at; /* a byte to change, */
    unsigned char mask;
    bool cuts;                    /* or where the message ends, */
    const unsigned char *instead; /* or another message */
    size_t n_instead;
} tamper;

typedef struct hub {
    pthread_barrier_t barrier;
    uint32_t n;
    tamper tamper;
    int failing_call;
    const void *bytes[MAX_WORLD];
    size_t lengths[MAX_WORLD];
    size_t longest[N_CALLS]; /* of the messages of a call */
} hub;

typedef struct member {
    hub *h;
    uint32_t rank;
    int n_calls;
    const ferry_reference_workloads *workloads;
    ferry_reference_schedule_options options;
    unsigned char all[MAX_WORLD * MAX_MESSAGE];
    size_t lengths[MAX_WORLD];
    ferry_status status;
    ferry_error error;
    ferry_reference_schedule *schedule;
    ferry_reference_summaries *summaries;
} member;

static size_t deliver(const hub *h, const member *m, uint32_t sender, unsigned char *to)
{
    const tamper *t = &h->tamper;
    size_t n = h->lengths[sender];
    assert_true(n <= MAX_MESSAGE);
    if (n > 0) {
        memcpy(to, h->bytes[sender], n);
    }
    if (t->call != m->n_calls || t->sender != sender ||
        (t->victim != EVERYBODY && t->victim != (int)m->rank)) {
        return n;
    }
    if (t->instead != NULL) {
        memcpy(to, t->instead, t->n_instead);
        return t->n_instead;
    }
    if (t->at >= n) {
        return n;
    }
    to[t->at] ^= t->mask;
    return t->cuts ? t->at : n;
}

static int all_gather(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                      const size_t **lengths_out)
{
    member *m = context;
    hub *h = m->h;
    h->bytes[m->rank] = bytes;
    h->lengths[m->rank] = n_bytes;
    pthread_barrier_wait(&h->barrier);
    size_t used = 0;
    for (uint32_t r = 0; r < h->n; r++) {
        m->lengths[r] = deliver(h, m, r, m->all + used);
        used += m->lengths[r];
    }
    if (pthread_barrier_wait(&h->barrier) == PTHREAD_BARRIER_SERIAL_THREAD &&
        m->n_calls < N_CALLS) {
        for (uint32_t r = 0; r < h->n; r++) {
            size_t *longest = &h->longest[m->n_calls];
            *longest = h->lengths[r] > *longest ? h->lengths[r] : *longest;
        }
    }
    pthread_barrier_wait(&h->barrier);
    *all_out = m->all;
    *lengths_out = m->lengths;
    return h->failing_call == m->n_calls++;
}

static void *run_member(void *argument)
{
    member *m = argument;
    ferry_exchange x = FERRY_EXCHANGE_INIT;
    x.context = m;
    x.rank = m->rank;
    x.n_ranks = m->h->n;
    x.all_gather = all_gather;
    m->status = ferry_reference_schedule_build(m->workloads, &m->options, &x, &m->schedule,
                                               &m->summaries, &m->error);
    return NULL;
}

typedef struct world {
    hub hub;
    uint32_t n;
    ferry_reference_workloads *workloads[MAX_WORLD];
    member members[MAX_WORLD];
} world;

/* Three ranks that send each other two batches or one, and themselves one. */
static void open_world(world *w)
{
    memset(w, 0, sizeof *w);
    ferry_error error;
    w->n = w->hub.n = 3;
    for (uint32_t pe = 0; pe < w->n; pe++) {
        task tasks[3] = {{5, (pe + 1) % 3, 24, 4}, {6, (pe + 2) % 3, 8, 8}, {7, pe, 4, 4}};
        must(try_workloads(pe, w->n, tasks, 3, 16, 8, &w->workloads[pe], &error), &error);
        w->members[pe] = (member){.h = &w->hub,
                                  .rank = pe,
                                  .workloads = w->workloads[pe],
                                  .options = FERRY_REFERENCE_SCHEDULE_OPTIONS_INIT};
    }
    w->hub.tamper.call = -1;
    w->hub.failing_call = -1;
}

static void forget_results(world *w)
{
    for (uint32_t r = 0; r < w->n; r++) {
        ferry_reference_schedule_destroy(w->members[r].schedule);
        ferry_reference_summaries_destroy(w->members[r].summaries);
        w->members[r].schedule = NULL;
        w->members[r].summaries = NULL;
    }
}

/* All end alike, in words too; the outcome is theirs. */
static ferry_status run_world(world *w)
{
    pthread_t threads[MAX_WORLD];
    char first[33], digest[33];
    forget_results(w);
    pthread_barrier_init(&w->hub.barrier, NULL, w->n);
    for (uint32_t r = 0; r < w->n; r++) {
        w->members[r].n_calls = 0;
        pthread_create(&threads[r], NULL, run_member, &w->members[r]);
    }
    for (uint32_t r = 0; r < w->n; r++) {
        pthread_join(threads[r], NULL);
    }
    pthread_barrier_destroy(&w->hub.barrier);
    ferry_reference_schedule_digest(w->members[0].schedule, first, sizeof first);
    for (uint32_t r = 0; r < w->n; r++) {
        const member *m = &w->members[r];
        check_at(m->status == w->members[0].status, "rank %u: %s, rank 0: %s", r, m->error.message,
                 w->members[0].error.message);
        assert_true((m->status == FERRY_OK) == (m->schedule != NULL));
        assert_true((m->status == FERRY_OK) == (m->summaries != NULL));
        ferry_reference_schedule_digest(m->schedule, digest, sizeof digest);
        assert_string_equal(digest, first);
        if (m->status != FERRY_OK) {
            assert_string_equal(m->error.message, w->members[0].error.message);
        }
    }
    return w->members[0].status;
}

static void close_world(world *w)
{
    forget_results(w);
    for (uint32_t r = 0; r < w->n; r++) {
        ferry_reference_workloads_destroy(w->workloads[r]);
    }
}

static void expect(const char *row, world *w, ferry_status status, const char *says)
{
    ferry_status actual = run_world(w);
    check_status(row, status, actual, &w->members[0].error);
    if (status != FERRY_OK) {
        check_says(row, says, &w->members[0].error);
    }
}

static void test_build(void **state)
{
    (void)state;
    static world w;
    ferry_error error;
    open_world(&w);
    for (uint32_t rule = 0; rule < 3; rule++) {
        for (uint32_t r = 0; r < w.n; r++) {
            w.members[r].options.rule = rule;
        }
        expect("build", &w, FERRY_OK, NULL);
        /* Each sends three and receives three; half duplex, nine batches, one in a round. */
        static const uint32_t n_expected[3] = {3, 4, 9};
        assert_int_equal(ferry_reference_schedule_round_count(w.members[0].schedule),
                         n_expected[rule]);
        assert_int_equal(ferry_reference_summaries_count(w.members[0].summaries), 9);
        assert_int_equal(ferry_reference_summaries_segment_count(w.members[0].summaries, 0, 0, 0),
                         0);
        ferry_reference_batch batch = FERRY_REFERENCE_BATCH_INIT;
        bool any = false;
        uint32_t n_rounds = n_expected[rule], n_sent = 0;
        for (uint32_t round = 0; round < n_rounds; round++) {
            must(ferry_reference_schedule_send_at(w.members[1].schedule, round, &any, &batch,
                                                  &error),
                 &error);
            n_sent += any;
            assert_true(!any || (batch.from == 1 && batch.round == round));
        }
        assert_int_equal(n_sent, 3);
        check_status("round behind the last", FERRY_ERR_MISUSE,
                     ferry_reference_schedule_receive_at(w.members[1].schedule, n_rounds, &any,
                                                         &batch, &error),
                     &error);
    }
    close_world(&w);
}

static void test_failing_pe(void **state)
{
    (void)state;
    static world w;
    ferry_error error;
    ferry_reference_workloads *own = NULL;
    static const task tasks[] = {{5, 0, 24, 4}};
    open_world(&w);
    w.members[1].workloads = NULL;
    expect("none", &w, FERRY_ERR_MISUSE,
           "rank 1: scheduling needs packed workloads of rank 1 of 3");
    w.members[1].workloads = w.workloads[2];
    expect("of another", &w, FERRY_ERR_MISUSE,
           "rank 1: scheduling needs packed workloads of rank 1");
    w.members[1].workloads = w.workloads[1];
    w.members[1].options.rule = 9;
    w.members[0].options.rule = FERRY_SCHEDULE_FIRST_FIT;
    expect("rule", &w, FERRY_ERR_MISUSE, "rank 1: options of a schedule: 9 is no");
    w.members[1].options.rule = FERRY_SCHEDULE_OPTIMAL;
    expect("two rules", &w, FERRY_ERR_INVALID_INPUT,
           "rank 1 schedules with rule 0 and rank 0 with 1");
    w.members[0].options.rule = FERRY_SCHEDULE_OPTIMAL;
    must(try_workloads(1, 3, tasks, 1, 32, 8, &own, &error), &error);
    w.members[1].workloads = own;
    expect("slots", &w, FERRY_ERR_INVALID_INPUT,
           "rank 1 schedules with slot_bytes 32 and rank 0 with 16");
    ferry_reference_workloads_destroy(own);
    w.members[1].workloads = w.workloads[1];
    for (w.hub.failing_call = 0; w.hub.failing_call < N_CALLS; w.hub.failing_call++) {
        expect("exchange", &w, FERRY_ERR_EXCHANGE, "the caller's exchange");
    }
    w.hub.failing_call = -1;
    expect("after all", &w, FERRY_OK, NULL);
    close_world(&w);
}

/* Bytes changed for everybody: any outcome, but one for all. */
static void test_damaged_for_all(void **state)
{
    (void)state;
    static world w;
    open_world(&w);
    assert_int_equal(run_world(&w), FERRY_OK);
    const hub whole = w.hub; /* failures make longer messages */
    static const unsigned char masks[] = {0x01, 0x80, 0xff, 0x10};
    for (int call = 0; call < N_CALLS; call++) {
        for (size_t at = 0; at < whole.longest[call]; at++) {
            for (size_t m = 0; m <= COUNT_OF(masks); m++) {
                w.hub.tamper = (tamper){.call = call,
                                        .victim = EVERYBODY,
                                        .sender = (uint32_t)at % w.n,
                                        .at = at,
                                        .mask = m < COUNT_OF(masks) ? masks[m] : 0,
                                        .cuts = m == COUNT_OF(masks)};
                ferry_status status = run_world(&w);
                assert_true(m < COUNT_OF(masks) || status != FERRY_OK ||
                            at >= w.hub.lengths[at % w.n]);
            }
        }
    }
    close_world(&w);
}

/* Bytes changed for one rank alone: the others would not know, were it not for the vote. */
static void test_damaged_for_one(void **state)
{
    (void)state;
    static world w;
    int n_digest = 0;
    open_world(&w);
    assert_int_equal(run_world(&w), FERRY_OK);
    const hub whole = w.hub; /* failures make longer messages */
    for (int call = 0; call < N_CALLS - 1; call++) {
        for (size_t at = 0; at < whole.longest[call]; at++) {
            for (int victim = 0; victim < (int)w.n; victim++) {
                /* Every rank's message is as long as the longest here. */
                w.hub.tamper = (tamper){
                    .call = call, .victim = victim, .sender = 1, .at = at, .mask = at % 2 ? 1 : 32};
                ferry_status status = run_world(&w);
                check_at(status != FERRY_OK, "call %d, byte %zu, rank %d", call, at, victim);
                n_digest += status == FERRY_ERR_DIGEST;
            }
        }
    }
    assert_true(n_digest > 0);
    /* The index of a segment changed for rank 2 alone: only the digest can tell. */
    w.hub.tamper =
        (tamper){.call = 1, .victim = 2, .sender = 0, .at = whole.longest[1] - 2, .mask = 1};
    expect("digest", &w, FERRY_ERR_DIGEST, "rank 2 has computed another schedule than rank 0");
    close_world(&w);
}

/* Literal summaries of rank 0, all numbers of one byte, that contradict what it announced. */
typedef struct lie {
    const char *name;
    unsigned char tail[24]; /* behind the header */
    size_t n_tail;
    const char *says;
} lie;

/* The truth: two destinations; rank 1 gets 16 and 8 bytes of task 5, rank 2 8 bytes of task 6. */
static const lie lies_rows[] = {
    {"truth", {2, 1, 2, 16, 1, 5, 0, 16, 8, 1, 5, 1, 8, 2, 1, 8, 1, 6, 0, 8}, 20, NULL},
    {"one fewer",
     {2, 1, 1, 16, 1, 5, 0, 16, 2, 1, 8, 1, 6, 0, 8},
     15,
     "rank 0 announced 2 batches to rank 1 and sent summaries of 1"},
    {"no rank 1",
     {1, 2, 1, 8, 1, 6, 0, 8},
     8,
     "rank 0 announced 2 batches to rank 1 and sent summaries of 0"},
    {"no rank 2",
     {1, 1, 2, 16, 1, 5, 0, 16, 8, 1, 5, 1, 8},
     13,
     "rank 0 announced 1 batches to rank 2 and sent summaries of 0"},
    {"nothing", {0}, 1, "rank 0 announced 2 batches to rank 1 and sent summaries of 0"},
    {"other size",
     {2, 1, 2, 15, 1, 5, 0, 15, 8, 1, 5, 1, 8, 2, 1, 8, 1, 6, 0, 8},
     20,
     "rank 0 announced batch 0 to rank 1 with 16 bytes and summarised it with 15"},
    {"does not add up",
     {2, 1, 2, 16, 1, 5, 0, 15, 8, 1, 5, 1, 8, 2, 1, 8, 1, 6, 0, 8},
     20,
     "batch 0 from rank 0 to rank 1 is summarised with 16 bytes, but its 1 segments have 15"},
    {"twice",
     {2, 1, 2, 16, 1, 5, 0, 16, 8, 1, 5, 0, 8, 2, 1, 8, 1, 6, 0, 8},
     20,
     "the summaries from rank 0 to rank 1 list segment 0 of task 5 twice"},
    {"order",
     {2, 2, 1, 8, 1, 6, 0, 8, 1, 2, 16, 1, 5, 0, 16, 8, 1, 5, 1, 8},
     20,
     "rank 0 announced 2 batches to rank 1 and sent summaries of 0"},
    {"to itself",
     {2, 0, 2, 16, 1, 5, 0, 16, 8, 1, 5, 1, 8, 2, 1, 8, 1, 6, 0, 8},
     20,
     "the summaries of rank 0 are cut short or damaged"},
    {"no such rank",
     {2, 3, 2, 16, 1, 5, 0, 16, 8, 1, 5, 1, 8, 2, 1, 8, 1, 6, 0, 8},
     20,
     "the summaries of rank 0 are cut short or damaged"},
    {"no bytes", {2, 1, 2, 16, 2, 5, 0, 16, 5, 2, 0, 8, 1, 5, 1, 8}, 16, "damaged"},
    {"more behind",
     {2, 1, 2, 16, 1, 5, 0, 16, 8, 1, 5, 1, 8, 2, 1, 8, 1, 6, 0, 8, 0},
     21,
     "damaged"},
};

static void test_lies(void **state)
{
    (void)state;
    static const unsigned char header[] = {0, 0, 3, 16, 8, 0, 0};
    static world w;
    open_world(&w);
    for (size_t i = 0; i < COUNT_OF(lies_rows); i++) {
        unsigned char message[sizeof header + sizeof lies_rows[i].tail];
        memcpy(message, header, sizeof header);
        memcpy(message + sizeof header, lies_rows[i].tail, lies_rows[i].n_tail);
        w.hub.tamper = (tamper){.call = 1,
                                .victim = EVERYBODY,
                                .sender = 0,
                                .instead = message,
                                .n_instead = sizeof header + lies_rows[i].n_tail};
        expect(lies_rows[i].name, &w, lies_rows[i].says == NULL ? FERRY_OK : FERRY_ERR_EXCHANGE,
               lies_rows[i].says);
    }
    close_world(&w);
}

/* Announcements of rank 0 that cannot be: a claim of many batches must not cost memory. */
static void test_false_announcements(void **state)
{
    (void)state;
    static const lie rows[] = {
        {"truth", {2, 1, 2, 16, 8, 2, 1, 8}, 8, NULL},
        {"many", {1, 1, 0xff, 0xff, 0xff, 0xff, 7, 16}, 8, "rank 0 announced are cut short"},
        {"beyond 2^64",
         {1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2},
         12,
         "rank 0 announced are cut short"},
        {"empty batch", {2, 1, 2, 16, 0, 2, 1, 8}, 8, "rank 0 announced are cut short"},
        {"above a slot", {2, 1, 2, 17, 8, 2, 1, 8}, 8, "rank 0 announced are cut short"},
        {"twice one rank", {2, 1, 2, 16, 8, 1, 1, 8}, 8, "rank 0 announced are cut short"},
    };
    static const unsigned char header[] = {0, 0, 3, 16, 8, 0, 0};
    static world w;
    open_world(&w);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        unsigned char message[sizeof header + sizeof rows[i].tail];
        memcpy(message, header, sizeof header);
        memcpy(message + sizeof header, rows[i].tail, rows[i].n_tail);
        w.hub.tamper = (tamper){.call = 0,
                                .victim = EVERYBODY,
                                .sender = 0,
                                .instead = message,
                                .n_instead = sizeof header + rows[i].n_tail};
        expect(rows[i].name, &w, rows[i].says == NULL ? FERRY_OK : FERRY_ERR_EXCHANGE,
               rows[i].says);
    }
    close_world(&w);
}

/* Whichever allocation fails, on whichever rank: all fail together, and nothing leaks. */
static void test_memory(void **state)
{
    (void)state;
    static world w;
    open_world(&w);
    int64_t n = 0;
    ferry_status status = FERRY_ERR_NO_MEMORY;
    for (; status != FERRY_OK && n < 10000; n++) {
        fy_alloc_fail_after(n);
        status = run_world(&w);
        fy_alloc_fail_after(-1);
        assert_true(status == FERRY_OK || status == FERRY_ERR_NO_MEMORY);
    }
    assert_true(n > 10 && status == FERRY_OK);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_build),
        cmocka_unit_test(test_failing_pe),
        cmocka_unit_test(test_damaged_for_all),
        cmocka_unit_test(test_damaged_for_one),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_false_announcements),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
