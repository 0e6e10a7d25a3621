/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Scheduling a plan among ranks: their parts are the whole, and they fail together. */
#include "support/check.h"
#include "support/random.h"
#include "support/spec.h"

#include "base/hash.h"
#include "schedule/part.h"
#include "schedule/schedule.h"

#include <ferry/reference.h>

#include <pthread.h>

/* Ranks are threads that exchange bytes, some of which are changed on their way. */

enum { MAX_WORLD = 12, MAX_CALLS = 4, EVERYBODY = -1 };

typedef struct tamper {
    int call;   /* of the exchange; -1: none */
    int victim; /* who receives the changed bytes, or EVERYBODY */
    uint32_t sender;
    size_t at; /* a byte to change, */
    unsigned char mask;
    bool cuts; /* or where the message ends */
} tamper;

typedef struct hub {
    pthread_barrier_t barrier;
    uint32_t n;
    bool has_gather;
    tamper tamper;
    int failing_call;
    _Atomic bool is_tampered; /* there was something to change */
    const char *bytes[MAX_WORLD];
    size_t lengths[MAX_WORLD];
    const char *all; /* what rank 0 scatters */
    const size_t *all_lengths;
    size_t longest[MAX_CALLS]; /* of the messages of a call */
    size_t total[MAX_CALLS];
} hub;

typedef struct member {
    hub *h;
    uint32_t rank;
    int n_calls;
    const ferry_plan *plan;
    const ferry_schedule_options *options;
    bool has_no_place;
    text_buffer got;
    size_t got_lengths[MAX_WORLD];
    ferry_status status;
    ferry_error error;
    ferry_schedule *schedule;
} member;

static size_t deliver(member *m, uint32_t sender, const char *bytes, size_t n)
{
    const tamper *t = &m->h->tamper;
    size_t begin = m->got.used;
    text_append(&m->got, n == 0 ? "" : bytes, n);
    if (t->call == m->n_calls && t->sender == sender && t->at < n &&
        (t->victim == EVERYBODY || t->victim == (int)m->rank)) {
        m->got.bytes[begin + t->at] = (char)(m->got.bytes[begin + t->at] ^ t->mask);
        m->got.used = t->cuts ? begin + t->at : m->got.used;
        m->h->is_tampered = true;
    }
    return m->got.used - begin;
}

static void note_length(hub *h, int call, size_t n)
{
    h->longest[call] = n > h->longest[call] ? n : h->longest[call];
    h->total[call] += n;
}

static int exchange(member *m, const void *bytes, size_t n_bytes, bool receives,
                    const void **all_out, const size_t **lengths_out)
{
    hub *h = m->h;
    h->bytes[m->rank] = bytes;
    h->lengths[m->rank] = n_bytes;
    pthread_barrier_wait(&h->barrier);
    m->got.used = 0;
    for (uint32_t r = 0; r < h->n && receives; r++) {
        m->got_lengths[r] = deliver(m, r, h->bytes[r], h->lengths[r]);
        if (m->rank == 0) {
            note_length(h, m->n_calls, h->lengths[r]);
        }
    }
    pthread_barrier_wait(&h->barrier);
    bool fails = h->failing_call == m->n_calls++;
    if (receives && !fails) { /* what has failed gives nothing out */
        *all_out = m->got.bytes;
        *lengths_out = m->got_lengths;
    }
    return fails;
}

static int all_gather(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                      const size_t **lengths_out)
{
    return exchange(context, bytes, n_bytes, true, all_out, lengths_out);
}

static int gather(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                  const size_t **lengths_out)
{
    member *m = context;
    return exchange(m, bytes, n_bytes, m->rank == 0, all_out, lengths_out);
}

static int scatter(void *context, const void *all, const size_t *lengths, const void **mine_out,
                   size_t *n_bytes_out)
{
    member *m = context;
    hub *h = m->h;
    if (m->rank == 0) {
        h->all = all;
        h->all_lengths = lengths;
    }
    pthread_barrier_wait(&h->barrier);
    size_t before = 0;
    for (uint32_t r = 0; r < h->n; r++) {
        before += r < m->rank ? h->all_lengths[r] : 0;
        if (m->rank == 0) {
            note_length(h, m->n_calls, h->all_lengths[r]);
        }
    }
    m->got.used = 0;
    *n_bytes_out = deliver(m, 0, h->all == NULL ? "" : h->all + before, h->all_lengths[m->rank]);
    *mine_out = m->got.bytes;
    pthread_barrier_wait(&h->barrier);
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
    x.gather = m->h->has_gather ? gather : NULL;
    x.scatter = m->h->has_gather ? scatter : NULL;
    m->status = ferry_schedule_build_rooted(m->plan, m->options, &x,
                                            m->has_no_place ? NULL : &m->schedule, &m->error);
    return NULL;
}

typedef struct world {
    hub hub;
    member members[MAX_WORLD];
} world;

static void open_world(world *w, const ferry_plan *plan, const ferry_schedule_options *options,
                       bool has_gather)
{
    memset(w, 0, sizeof *w);
    w->hub.n = ferry_plan_rank_count(plan);
    w->hub.has_gather = has_gather;
    w->hub.tamper.call = -1;
    w->hub.failing_call = -1;
    for (uint32_t r = 0; r < w->hub.n; r++) {
        w->members[r] = (member){.h = &w->hub, .rank = r, .plan = plan, .options = options};
    }
}

static void forget_results(world *w)
{
    for (uint32_t r = 0; r < w->hub.n; r++) {
        ferry_schedule_destroy(w->members[r].schedule);
        w->members[r].schedule = NULL;
    }
}

static void close_world(world *w)
{
    forget_results(w);
    for (uint32_t r = 0; r < w->hub.n; r++) {
        text_cleanup(&w->members[r].got);
    }
}

static void run_threads(world *w)
{
    pthread_t threads[MAX_WORLD];
    forget_results(w);
    w->hub.is_tampered = false;
    memset(w->hub.longest, 0, sizeof w->hub.longest);
    memset(w->hub.total, 0, sizeof w->hub.total);
    pthread_barrier_init(&w->hub.barrier, NULL, w->hub.n);
    for (uint32_t r = 0; r < w->hub.n; r++) {
        w->members[r].n_calls = 0;
        pthread_create(&threads[r], NULL, run_member, &w->members[r]);
    }
    for (uint32_t r = 0; r < w->hub.n; r++) {
        pthread_join(threads[r], NULL);
    }
    pthread_barrier_destroy(&w->hub.barrier);
}

/* All end alike, in words too; the outcome is theirs. */
static ferry_status run_world(world *w)
{
    run_threads(w);
    for (uint32_t r = 0; r < w->hub.n; r++) {
        const member *m = &w->members[r];
        check_at(m->status == w->members[0].status, "rank %u: %s, rank 0: %s", r, m->error.message,
                 w->members[0].error.message);
        assert_true((m->status == FERRY_OK) == (m->schedule != NULL));
        if (m->status != FERRY_OK) {
            assert_string_equal(m->error.message, w->members[0].error.message);
        }
    }
    return w->members[0].status;
}

static void expect(const char *row, world *w, ferry_status status, const char *says)
{
    ferry_status actual = run_world(w);
    check_status(row, status, actual, &w->members[0].error);
    if (status != FERRY_OK) {
        check_says(row, says, &w->members[0].error);
    }
}

/* Parts against the whole. */

static void check_report(const ferry_schedule *whole, const ferry_schedule *part, uint32_t rank)
{
    ferry_schedule_report a = FERRY_SCHEDULE_REPORT_INIT, b = FERRY_SCHEDULE_REPORT_INIT;
    ferry_error error;
    char digests[2][33];
    double idle[2] = {-1, -2};
    must(ferry_schedule_get_report(whole, &a, &error), &error);
    must(ferry_schedule_get_report(part, &b, &error), &error);
    assert_true(a.n_rounds == b.n_rounds && a.degree == b.degree && a.n_batches == b.n_batches &&
                a.n_segments == b.n_segments && a.bytes == b.bytes &&
                a.relayed_bytes == b.relayed_bytes && a.has_seconds == b.has_seconds &&
                a.makespan == b.makespan && a.bound == b.bound && a.ratio == b.ratio &&
                a.bound_reason == b.bound_reason && a.bound_rank == b.bound_rank);
    ferry_schedule_digest(whole, digests[0], sizeof digests[0]);
    ferry_schedule_digest(part, digests[1], sizeof digests[1]);
    assert_string_equal(digests[0], digests[1]);
    must(ferry_schedule_get_idle(whole, rank, &idle[0], &error), &error);
    must(ferry_schedule_get_idle(part, rank, &idle[1], &error), &error);
    assert_true(idle[0] == idle[1]);
}

static void check_batch(const ferry_schedule *whole, uint64_t number, const ferry_schedule *part,
                        uint64_t own)
{
    ferry_batch a = FERRY_BATCH_INIT, b = FERRY_BATCH_INIT;
    ferry_segment s = FERRY_SEGMENT_INIT, t = FERRY_SEGMENT_INIT;
    ferry_error error;
    must(ferry_schedule_batch_at(whole, number, &a, &error), &error);
    must(ferry_schedule_batch_at(part, own, &b, &error), &error);
    assert_true(a.round == b.round && a.from == b.from && a.to == b.to && a.bytes == b.bytes &&
                a.n_segments == b.n_segments);
    for (uint32_t i = 0; i < a.n_segments; i++) {
        must(ferry_schedule_segment_at(whole, a.first_segment + i, &s, &error), &error);
        must(ferry_schedule_segment_at(part, b.first_segment + i, &t, &error), &error);
        assert_true(s.task_id == t.task_id && s.first_byte == t.first_byte && s.bytes == t.bytes &&
                    s.is_relayed == t.is_relayed && s.relay_task_id == t.relay_task_id);
    }
}

static void check_waits(const ferry_schedule *whole, uint64_t number, const ferry_schedule *part,
                        uint64_t own, const uint64_t *own_of)
{
    bool sends = whole->batches[number].from == part->part_rank;
    uint64_t wanted = whole->wait_begin == NULL || !sends
                          ? 0
                          : whole->wait_begin[number + 1] - whole->wait_begin[number];
    uint64_t have =
        part->wait_begin == NULL ? 0 : part->wait_begin[own + 1] - part->wait_begin[own];
    assert_int_equal(wanted, have);
    for (uint64_t i = 0; i < wanted; i++) {
        assert_int_equal(own_of[whole->waits[whole->wait_begin[number] + i]],
                         part->waits[part->wait_begin[own] + i]);
    }
}

static void check_lists(const ferry_schedule *whole, const ferry_schedule *part, uint32_t rank,
                        const uint64_t *own_of)
{
    ferry_error error;
    uint64_t a, b;
    assert_int_equal(ferry_schedule_send_count(part, rank), ferry_schedule_send_count(whole, rank));
    assert_int_equal(ferry_schedule_receive_count(part, rank),
                     ferry_schedule_receive_count(whole, rank));
    for (uint32_t i = 0; i < ferry_schedule_send_count(part, rank); i++) {
        must(ferry_schedule_send_at(whole, rank, i, &a, &error), &error);
        must(ferry_schedule_send_at(part, rank, i, &b, &error), &error);
        assert_int_equal(own_of[a], b);
    }
    for (uint32_t i = 0; i < ferry_schedule_receive_count(part, rank); i++) {
        must(ferry_schedule_receive_at(whole, rank, i, &a, &error), &error);
        must(ferry_schedule_receive_at(part, rank, i, &b, &error), &error);
        assert_int_equal(own_of[a], b);
    }
}

/* The whole's batches of a rank, in order, are the part's; returns how many. */
static uint64_t check_part(const ferry_schedule *whole, const ferry_schedule *part, uint32_t rank)
{
    uint64_t n = 0;
    uint64_t *own_of = calloc((size_t)whole->n_batches + 1, sizeof *own_of);
    assert_non_null(own_of);
    check_report(whole, part, rank);
    for (uint64_t i = 0; i < whole->n_batches; i++) {
        if (whole->batches[i].from == rank || whole->batches[i].to == rank) {
            own_of[i] = n;
            check_batch(whole, i, part, n);
            check_waits(whole, i, part, n++, own_of);
        }
    }
    assert_int_equal(part->n_batches, n);
    check_lists(whole, part, rank, own_of);
    free(own_of);
    return n;
}

/* Random plans: grids that overlap or not, replicas that invite relays, clusters or none. */
static ferry_plan *random_plan(uint64_t *seed)
{
    static const char *const clusters[] = {
        "",
        ",'cluster':{'ranks_per_node':2,'rank_gbytes_per_s':40,'node_gbytes_per_s':40,"
        "'latency_us':0}",
        ",'cluster':{'ranks_per_node':4,'rank_gbytes_per_s':1,'node_gbytes_per_s':3,"
        "'latency_us':1,'nodes':{'0':{'rank_gbytes_per_s':0.5}}}",
    };
    static const uint32_t limits[] = {3, 20, 4000, 4, 3, 4, 2, 5, COUNT_OF(clusters)};
    uint32_t drawn[COUNT_OF(limits)];
    char spec[2000];
    for (size_t i = 0; i < COUNT_OF(limits); i++) { /* arguments have no order */
        drawn[i] = random_below(seed, limits[i]);
    }
    snprintf(spec, sizeof spec,
             "{'format':'ferry.spec/1','tensors':["
             "{'name':'a.{0}','count':[%u],'shape':[24,%u],'dtype':'bf16'},"
             "{'name':'b','shape':[%u],'dtype':'u8'}],"
             "'source':{'mesh':[['dp',%u],['tp',%u]],'rules':["
             "{'match':'a.*','shard':[{'dim':0,'axis':'tp'}]},{'match':'*'}]},"
             "'destination':{'mesh':[['dp',%u],['tp',%u]],'first_rank':%u,'rules':["
             "{'match':'a.*','shard':[{'dim':1,'axis':'tp'}]},{'match':'*'}]}%s}",
             1 + drawn[0], 6 * (1 + drawn[1]), 1 + drawn[2], 1 + drawn[3] / 3, 1 + drawn[4],
             1 + drawn[5], 1 + drawn[6], drawn[7], clusters[drawn[8]]);
    return plan_of(spec, NULL);
}

static ferry_schedule_options random_options(uint64_t *seed)
{
    ferry_schedule_options options = FERRY_SCHEDULE_OPTIONS_INIT;
    options.rule = random_below(seed, 3);
    options.duplex = random_below(seed, 2);
    options.slot_bytes = 16u << random_below(seed, 8);
    options.max_tasks = random_below(seed, 4);
    options.no_relays = random_below(seed, 4) == 0;
    return options;
}

static void test_parts_are_the_whole(void **state)
{
    (void)state;
    static world w;
    uint64_t n_relayed = 0;
    for (uint64_t first = 0; first < 240; first++) {
        uint64_t seed = first;
        ferry_plan *plan = random_plan(&seed);
        ferry_schedule_options options = random_options(&seed);
        ferry_schedule *whole = NULL;
        ferry_error error;
        uint64_t n = 0;
        must(ferry_schedule_create_for_plan(plan, &options, &whole, &error), &error);
        open_world(&w, plan, &options, first % 2 == 0);
        check_at(run_world(&w) == FERRY_OK, "seed %llu: %s", (unsigned long long)first,
                 w.members[0].error.message);
        for (uint32_t r = 0; r < w.hub.n; r++) {
            n += check_part(whole, w.members[r].schedule, r);
        }
        assert_int_equal(n, 2 * whole->n_batches);
        n_relayed += whole->report.relayed_bytes > 0;
        close_world(&w);
        ferry_schedule_destroy(whole);
        ferry_plan_destroy(plan);
    }
    check_at(n_relayed > 20, "%llu relay", (unsigned long long)n_relayed);
}

/* One tensor to three replicas in pieces: with relays. */
static const char fan_out[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[4,300],'dtype':'u8'},"
    "{'name':'b','shape':[12],'dtype':'f32'}],"
    "'source':{'mesh':[['x',2]],'rules':[{'match':'a','shard':[{'dim':0,'axis':'x'}]},"
    "{'match':'*'}]},"
    "'destination':{'mesh':[['x',3]],'first_rank':1,'rules':[{'match':'*'}]}%s}";

static ferry_plan *fan_out_plan(const char *tail)
{
    char spec[2000];
    snprintf(spec, sizeof spec, fan_out, tail);
    return plan_of(spec, NULL);
}

/* With gather and scatter, only rank 0's messages grow with the world's batches. */
static void test_messages_are_small(void **state)
{
    (void)state;
    static world w;
    ferry_plan *plan = fan_out_plan("");
    ferry_schedule_options options = FERRY_SCHEDULE_OPTIONS_INIT;
    options.slot_bytes = 32;
    open_world(&w, plan, &options, true);
    expect("small", &w, FERRY_OK, NULL);
    assert_true(w.members[0].schedule->report.relayed_bytes > 0);
    assert_in_range(w.hub.longest[0], 1, 60);
    assert_in_range(w.hub.longest[2], 1, 24);
    assert_in_range(w.hub.longest[3], 1, 2);
    uint64_t n_segments = w.members[0].schedule->report.n_segments;
    assert_in_range(w.hub.total[1], 0, 2 * n_segments * 16 + w.hub.n * 160);
    close_world(&w);
    ferry_plan_destroy(plan);
}

static void test_failing_ranks(void **state)
{
    (void)state;
    static world w;
    ferry_plan *plan = fan_out_plan(""), *larger, *other;
    ferry_schedule_options usual = FERRY_SCHEDULE_OPTIONS_INIT, odd = usual, short_one = usual;
    other = plan_of("{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[8],'dtype':'u8'}],"
                    "'source':{'mesh':[['x',1]],'rules':[{'match':'*'}]},"
                    "'destination':{'mesh':[['x',3]],'first_rank':1,'rules':[{'match':'*'}]}}",
                    NULL);
    larger = plan_of("{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[8],'dtype':'u8'}],"
                     "'source':{'mesh':[['x',1]],'rules':[{'match':'*'}]},"
                     "'destination':{'mesh':[['x',8]],'first_rank':1,'rules':[{'match':'*'}]}}",
                     NULL);
    odd.slot_bytes = 64;
    short_one.struct_size = 8;
    for (int form = 0; form < 2; form++) {
        open_world(&w, plan, &usual, form == 1);
        w.members[2].plan = NULL;
        expect("no plan", &w, FERRY_ERR_MISUSE, "rank 2: ferry_schedule_build_rooted needs a plan");
        w.members[2].plan = larger;
        expect("world", &w, FERRY_ERR_MISUSE, "rank 2: a plan of 9 ranks");
        w.members[2].plan = other;
        expect("another plan", &w, FERRY_ERR_DIGEST, "rank 2 has plan ");
        w.members[0].plan = other;
        expect("two plans", &w, FERRY_ERR_DIGEST, "rank 1 has plan ");
        w.members[0].plan = w.members[2].plan = plan;
        w.members[0].plan = NULL;
        expect("rank 0 has none", &w, FERRY_ERR_MISUSE,
               "rank 0: ferry_schedule_build_rooted needs");
        w.members[0].plan = plan;
        w.members[1].has_no_place = true;
        expect("no place", &w, FERRY_ERR_MISUSE, "rank 1: ferry_schedule_build_rooted needs");
        w.members[1].has_no_place = false;
        w.members[3].options = &short_one;
        expect("options", &w, FERRY_ERR_MISUSE, "rank 3: ferry_schedule_options has struct_size 8");
        w.members[3].options = &odd;
        expect("slots", &w, FERRY_ERR_INVALID_INPUT,
               "rank 3 schedules with slot_bytes 64 and rank 0 with 16777216");
        w.members[3].options = NULL;
        expect("the usual options", &w, FERRY_OK, NULL);
        ferry_schedule_options tiny = usual;
        tiny.slot_bytes = 1;
        for (uint32_t r = 0; r < w.hub.n; r++) {
            w.members[r].options = &tiny;
        }
        expect("tiny slots", &w, FERRY_ERR_INVALID_INPUT, "b: an element has 4 bytes");
        for (uint32_t r = 0; r < w.hub.n; r++) {
            w.members[r].options = &usual;
        }
        for (w.hub.failing_call = 0; w.hub.failing_call < 3 + form; w.hub.failing_call++) {
            expect("exchange", &w, FERRY_ERR_EXCHANGE, "the caller's exchange");
        }
        w.hub.failing_call = -1;
        expect("after all", &w, FERRY_OK, NULL);
        close_world(&w);
    }
    ferry_plan_destroy(plan);
    ferry_plan_destroy(other);
    ferry_plan_destroy(larger);
}

/* Changed bytes: all ranks fail, or the bytes did not matter; always together. */
static void test_damage(void **state)
{
    (void)state;
    static world w;
    ferry_plan *plan = fan_out_plan("");
    ferry_schedule_options options = FERRY_SCHEDULE_OPTIONS_INIT;
    options.slot_bytes = 400;
    for (int form = 0; form < 2; form++) {
        open_world(&w, plan, &options, form == 1);
        expect("whole", &w, FERRY_OK, NULL);
        size_t longest[MAX_CALLS];
        memcpy(longest, w.hub.longest, sizeof longest);  /* failures make longer messages */
        for (unsigned char mask = 1; mask < 4; mask++) { /* another kind of message */
            w.hub.tamper = (tamper){.call = 0, .victim = 0, .sender = 1, .at = 0, .mask = mask};
            expect("another kind", &w, FERRY_ERR_EXCHANGE, "");
        }
        for (int call = 0; call < 3; call++) {
            for (size_t at = 0; at < longest[call]; at += call == 1 ? 11 : 3) {
                /* A gathered message matters to rank 0; where all count votes, to all. */
                int victim =
                    call == 1 ? (int)(at % w.hub.n) : (call == 2 && form == 0 ? EVERYBODY : 0);
                w.hub.tamper = (tamper){.call = call,
                                        .victim = victim,
                                        .sender = call == 1 ? 0 : (uint32_t)at % w.hub.n,
                                        .at = at,
                                        .mask = at % 2 == 0 ? 0x80 : 1,
                                        .cuts = at % 5 == 0};
                ferry_status status = run_world(&w);
                /* In form 0 a rank does not look at what is meant for others. */
                check_at(status != FERRY_OK || !w.hub.is_tampered || (form == 0 && call == 1),
                         "form %d, call %d, byte %zu", form, call, at);
            }
        }
        close_world(&w);
    }
    ferry_plan_destroy(plan);
}

/* A damaged verdict is the one thing that a rank is alone with. */
static void test_damaged_verdict(void **state)
{
    (void)state;
    static world w;
    ferry_plan *plan = fan_out_plan("");
    open_world(&w, plan, NULL, true);
    w.hub.tamper = (tamper){.call = 3, .victim = 2, .at = 0, .mask = 1};
    run_threads(&w);
    for (uint32_t r = 0; r < w.hub.n; r++) {
        assert_int_equal(w.members[r].status, r == 2 ? FERRY_ERR_EXCHANGE : FERRY_OK);
    }
    close_world(&w);
    ferry_plan_destroy(plan);
}

/* A part of another rank, or of another schedule, in place of one's own. */
static void test_exchanged_parts(void **state)
{
    (void)state;
    ferry_plan *plan = fan_out_plan("");
    ferry_schedule *whole = NULL, *part = NULL;
    ferry_error error;
    fy_pack bytes = {0};
    must(ferry_schedule_create_for_plan(plan, NULL, &whole, &error), &error);
    fy_part_pack(whole, 1, &bytes);
    assert_false(bytes.failed);
    must(fy_part_read(bytes.bytes, bytes.used, 1, 4, &part, &error), &error);
    check_part(whole, part, 1);
    ferry_schedule_destroy(part);
    part = NULL;
    assert_int_equal(fy_part_read(bytes.bytes, bytes.used, 2, 4, &part, &error),
                     FERRY_ERR_EXCHANGE);
    assert_int_equal(fy_part_read(bytes.bytes, bytes.used, 1, 5, &part, &error),
                     FERRY_ERR_EXCHANGE);
    assert_null(part);
    fy_pack_cleanup(&bytes);
    ferry_schedule_destroy(whole);
    ferry_plan_destroy(plan);
}

/* Bytes that were changed and hashed anew are refused, or make something that holds together. */
static void test_lies(void **state)
{
    (void)state;
    ferry_plan *plan = fan_out_plan("");
    ferry_schedule_options options = FERRY_SCHEDULE_OPTIONS_INIT;
    ferry_schedule *whole = NULL;
    ferry_error error;
    uint64_t n_refused = 0, n_taken = 0;
    options.slot_bytes = 200;
    must(ferry_schedule_create_for_plan(plan, &options, &whole, &error), &error);
    assert_true(whole->report.relayed_bytes > 0);
    for (uint32_t rank = 0; rank < 4; rank++) {
        fy_pack bytes = {0};
        fy_part_pack(whole, rank, &bytes);
        for (size_t at = 16; at < bytes.used; at++) {
            for (unsigned mask = 1; mask < 256; mask *= 2) {
                ferry_schedule *part = NULL;
                bytes.bytes[at] = (unsigned char)(bytes.bytes[at] ^ mask);
                fy_hash128 hash = fy_hash128_of(bytes.bytes + 16, bytes.used - 16);
                memcpy(bytes.bytes, &hash.low, 8);
                memcpy(bytes.bytes + 8, &hash.high, 8);
                ferry_status status = fy_part_read(bytes.bytes, bytes.used, rank, 4, &part, &error);
                assert_true(status == FERRY_OK || status == FERRY_ERR_EXCHANGE);
                *(status == FERRY_OK ? &n_taken : &n_refused) += 1;
                ferry_schedule_destroy(part);
                bytes.bytes[at] = (unsigned char)(bytes.bytes[at] ^ mask);
            }
        }
        fy_pack_cleanup(&bytes);
    }
    assert_true(n_refused > n_taken / 2 && n_taken > 0);
    ferry_schedule_destroy(whole);
    ferry_plan_destroy(plan);
}

static int write_nothing(void *context, const char *bytes, size_t n_bytes)
{
    (void)context;
    (void)bytes;
    (void)n_bytes;
    return 0;
}

static void test_what_a_part_refuses(void **state)
{
    (void)state;
    static world w;
    ferry_plan *plan = fan_out_plan("");
    ferry_simulation *simulation = NULL;
    ferry_error error;
    double idle = 4711;
    uint64_t n;
    open_world(&w, plan, NULL, true);
    expect("parts", &w, FERRY_OK, NULL);
    const ferry_schedule *part = w.members[1].schedule;
    assert_int_equal(ferry_simulation_create(part, NULL, &simulation, &error), FERRY_ERR_MISUSE);
    check_says("simulation", "the part of rank 1", &error);
    assert_null(simulation);
    assert_int_equal(ferry_schedule_write_json(part, plan, NULL, write_nothing, NULL, &error),
                     FERRY_ERR_MISUSE);
    check_says("JSON", "the part of rank 1", &error);
    assert_int_equal(ferry_schedule_get_idle(part, 0, &idle, &error), FERRY_ERR_MISUSE);
    check_says("idle", "the part of rank 1", &error);
    assert_true(idle == 4711);
    assert_int_equal(ferry_schedule_send_count(part, 0), 0);
    assert_int_equal(ferry_schedule_receive_count(part, 3), 0);
    assert_int_equal(ferry_schedule_send_at(part, 0, 0, &n, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_schedule_receive_at(part, 3, 0, &n, &error), FERRY_ERR_MISUSE);
    close_world(&w);
    ferry_plan_destroy(plan);
}

static int gather_nothing(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                          const size_t **lengths_out)
{
    (void)context;
    (void)bytes;
    (void)n_bytes;
    (void)all_out;
    (void)lengths_out;
    return 0; /* and yet nothing came */
}

static void test_unusable_exchanges(void **state)
{
    (void)state;
    ferry_plan *plan = fan_out_plan("");
    ferry_schedule *schedule = NULL;
    ferry_exchange good = FERRY_EXCHANGE_INIT;
    ferry_error error;
    good.n_ranks = 4;
    good.all_gather = gather_nothing;
    ferry_exchange bad[6] = {good, good, good, good, good, good};
    bad[0].struct_size = 0;
    bad[1].all_gather = NULL;
    bad[2].n_ranks = 0;
    bad[3].rank = 4;
    bad[4].gather = gather_nothing;
    bad[5].n_ranks = FERRY_MAX_RANKS + 1;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_int_equal(ferry_schedule_build_rooted(plan, NULL, &bad[i], &schedule, &error),
                         FERRY_ERR_MISUSE);
        check_says("exchange", "FERRY_EXCHANGE_INIT", &error);
    }
    assert_int_equal(ferry_schedule_build_rooted(plan, NULL, NULL, &schedule, NULL),
                     FERRY_ERR_MISUSE);
    assert_int_equal(ferry_schedule_build_rooted(plan, NULL, &good, &schedule, &error),
                     FERRY_ERR_EXCHANGE);
    assert_null(schedule);
    ferry_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_are_the_whole),
        cmocka_unit_test(test_messages_are_small),
        cmocka_unit_test(test_failing_ranks),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_damaged_verdict),
        cmocka_unit_test(test_exchanged_parts),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_what_a_part_refuses),
        cmocka_unit_test(test_unusable_exchanges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
