/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The exchanges of the scheduler: batches, summaries, and a vote. Whatever goes wrong on a rank is
 * part of what it sends next, and in the vote every rank says whether it got through and with which
 * digest; its outcome depends on gathered bytes alone, so all ranks end alike. A rank that has
 * failed goes on taking part, without content: nobody waits for it in vain.
 */
#include "schedule/reference_summaries.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/message.h"
#include "base/options.h"
#include "base/sort.h"
#include "schedule/order.h"

typedef struct session {
    const ferry_exchange *exchange;
    const ferry_reference_workloads *workloads;
    uint32_t rule;
    uint32_t duplex;
    ferry_status status; /* what went wrong so far, and where: */
    bool is_local;
    ferry_error error;
    fy_hash128 hash; /* of all messages in their order */
    fy_summary_limits limits;
} session;

/* What a rank's part of an exchange is made of, behind its header, and what becomes of it. */
typedef struct content {
    void (*pack)(const ferry_reference_workloads *workloads, fy_pack *out);
    ferry_status (*unpack)(void *into, uint32_t from, const fy_summary_limits *limits,
                           fy_reader *in, ferry_error *error);
    void *into;
} content;

static ferry_status take_exchange(const ferry_exchange *given, ferry_exchange *x,
                                  ferry_error *error)
{
    FY_TRY(fy_take_exchange(given, x, error));
    if (x->all_gather == NULL || x->n_ranks == 0 || x->n_ranks > FERRY_MAX_RANKS ||
        x->rank >= x->n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "scheduling needs an exchange made with FERRY_EXCHANGE_INIT: an all_gather "
                       "and a rank of its world");
    }
    return FERRY_OK;
}

static void begin_session(session *s, const ferry_reference_workloads *workloads,
                          const ferry_exchange *exchange, bool has_places)
{
    *s = (session){.exchange = exchange, .workloads = workloads, .is_local = true};
    if (workloads == NULL || !workloads->is_packed || workloads->rank != exchange->rank ||
        workloads->n_ranks != exchange->n_ranks || !has_places) {
        s->status =
            fy_fail(&s->error, FERRY_ERR_MISUSE,
                    "scheduling needs packed workloads of rank %u of %u and places for what "
                    "comes out",
                    exchange->rank, exchange->n_ranks);
    }
}

static void set_options(session *s, const ferry_reference_schedule_options *options)
{
    if (s->status != FERRY_OK) {
        return;
    }
    ferry_reference_schedule_options own;
    s->status = fy_take_reference_schedule_options(options, &own, &s->error);
    if (s->status != FERRY_OK) {
        return;
    }
    if (own.rule > FERRY_SCHEDULE_FIRST_FIT_HALF || own.duplex > FERRY_DUPLEX_HALF) {
        s->status = fy_fail(&s->error, FERRY_ERR_MISUSE,
                            "options of a schedule: %u is not a ferry_schedule_rule or %u is not "
                            "a ferry_duplex",
                            own.rule, own.duplex);
        return;
    }
    s->rule = own.rule;
    s->duplex = own.duplex;
}

static void add_to_hash(fy_hash128 *hash, fy_hash128 next)
{
    uint64_t words[4] = {hash->low, hash->high, next.low, next.high};
    *hash = fy_hash128_of(words, sizeof words);
}

static void begin_message(const session *s, fy_pack *out)
{
    ferry_error sentence = s->error;
    if (s->status != FERRY_OK && s->is_local) {
        fy_fail(&sentence, s->status, "rank %u: %s", s->exchange->rank, s->error.message);
    }
    fy_message_begin(out, s->status, sentence.message);
}

static void pack_header(const session *s, fy_pack *out)
{
    fy_pack_number(out, s->exchange->rank);
    fy_pack_number(out, s->exchange->n_ranks);
    fy_pack_number(out, s->workloads->slot_bytes);
    fy_pack_number(out, s->workloads->max_tasks);
    fy_pack_number(out, s->rule);
    fy_pack_number(out, s->duplex);
}

/* Every rank's header is that of rank 0, but for the rank itself. */
static ferry_status read_header(const session *s, uint32_t rank, uint64_t first[4], fy_reader *in,
                                ferry_error *error)
{
    static const char *const names[4] = {"slot_bytes", "max_tasks", "rule", "duplex"};
    static const uint64_t most[4] = {UINT64_MAX, UINT32_MAX, FERRY_SCHEDULE_FIRST_FIT_HALF,
                                     FERRY_DUPLEX_HALF};
    uint64_t claimed_rank = fy_read_number(in, FERRY_MAX_RANKS);
    uint64_t claimed_size = fy_read_number(in, FERRY_MAX_RANKS);
    uint64_t own[4];
    for (size_t i = 0; i < 4; i++) {
        own[i] = fy_read_number(in, most[i]);
    }
    if (in->failed || claimed_rank != rank || claimed_size != s->exchange->n_ranks || own[0] == 0 ||
        own[1] == 0) {
        return fy_message_fail(rank, error);
    }
    for (size_t i = 0; i < 4; i++) {
        first[i] = rank == 0 ? own[i] : first[i];
    }
    for (size_t i = 0; i < 4; i++) {
        if (own[i] != first[i]) {
            return fy_fail(
                error, FERRY_ERR_INVALID_INPUT,
                "rank %u schedules with %s %llu and rank 0 with %llu: all ranks must use the "
                "same",
                rank, names[i], (unsigned long long)own[i], (unsigned long long)first[i]);
        }
    }
    return FERRY_OK;
}

/* False: the exchange itself failed, and the caller is alone with that. */
static bool is_alive(session *s, ferry_status status, const ferry_error *error)
{
    if (status != FERRY_OK) {
        s->status = fy_fail(&s->error, status, "%s", error->message);
    }
    return status == FERRY_OK;
}

static bool gather(session *s, bool to_all, const fy_pack *message, fy_gathered *all_out)
{
    ferry_error error;
    return is_alive(s, fy_exchange_gather(s->exchange, to_all, message, all_out, &error), &error);
}

static void fail_here(session *s, ferry_status status)
{
    s->status = status;
    s->is_local = true;
}

/* What rank r sent. Content is of no use to a rank that has failed: it looks for a sentence only.
 */
static ferry_status read_message(session *s, uint32_t r, uint64_t first[4], bool wants_content,
                                 const content *c, fy_reader *in)
{
    s->is_local = false;
    ferry_status status = fy_message_read(in, r, &s->error);
    if (status != FERRY_OK || !wants_content) {
        return status;
    }
    s->is_local = true;
    FY_TRY(read_header(s, r, first, in, &s->error));
    s->limits = (fy_summary_limits){s->exchange->n_ranks, first[0], first[1]};
    return c->unpack(c->into, r, &s->limits, in, &s->error);
}

static void pack_content(const session *s, const content *c, fy_pack *message)
{
    begin_message(s, message);
    if (s->status == FERRY_OK) {
        pack_header(s, message);
        c->pack(s->workloads, message);
    }
}

/* Everybody's messages. The outcome is in the session's status. */
static void read_all(session *s, const content *c, const fy_gathered *all)
{
    const unsigned char *at = all->at;
    uint64_t first[4] = {0};
    const session before = *s;
    for (uint32_t r = 0; r < s->exchange->n_ranks; r++) {
        fy_reader in = fy_reader_of(at, all->lengths[r]);
        add_to_hash(&s->hash, fy_hash128_of(at, all->lengths[r]));
        s->status = read_message(s, r, first, before.status == FERRY_OK, c, &in);
        if (s->status != FERRY_OK) {
            return;
        }
        at += all->lengths[r];
    }
    if (before.status != FERRY_OK) { /* an exchange that lost this rank's own sentence */
        *s = before;
    }
}

/* One all-gather of everybody's content. */
static bool exchange_content(session *s, const content *c)
{
    fy_pack message = {0};
    fy_gathered all;
    pack_content(s, c, &message);
    bool worked = gather(s, true, &message, &all);
    fy_pack_cleanup(&message);
    if (worked) {
        read_all(s, c, &all);
    }
    return worked;
}

/* Whether every rank got through, and to the same digest. Its outcome replaces the status. */
static bool vote(session *s, fy_hash128 digest)
{
    fy_pack message = {0};
    fy_gathered all;
    uint64_t low = 0, high = 0;
    begin_message(s, &message);
    if (s->status == FERRY_OK) {
        fy_pack_number(&message, digest.low);
        fy_pack_number(&message, digest.high);
    }
    bool worked = gather(s, true, &message, &all);
    fy_pack_cleanup(&message);
    if (!worked) {
        return false;
    }
    const unsigned char *at = all.at;
    ferry_status status = FERRY_OK;
    uint32_t other = 0; /* the first rank with another digest than rank 0 */
    for (uint32_t r = 0; r < s->exchange->n_ranks && status == FERRY_OK; r++) {
        fy_reader in = fy_reader_of(at, all.lengths[r]);
        status = fy_message_read(&in, r, &s->error);
        if (status == FERRY_OK) {
            uint64_t own_low = fy_read_number(&in, UINT64_MAX);
            uint64_t own_high = fy_read_number(&in, UINT64_MAX);
            low = r == 0 ? own_low : low;
            high = r == 0 ? own_high : high;
            other = other == 0 && (own_low != low || own_high != high) ? r : other;
            if (in.failed || in.at != in.end) {
                status = fy_message_fail(r, &s->error);
            }
        }
        at += all.lengths[r];
    }
    if (status == FERRY_OK && other != 0) {
        status =
            fy_fail(&s->error, FERRY_ERR_DIGEST,
                    "rank %u has computed another schedule than rank 0: do all run one version of "
                    "the library, and does the exchange give all the same bytes?",
                    other);
    }
    s->status = status;
    return status == FERRY_OK;
}

static ferry_status finish(const session *s, ferry_error *error)
{
    return fy_forward(error, s->status, &s->error);
}

/* Batches: runs of (to, number), and of each batch its bytes. */

static void pack_bytes(const ferry_reference_workloads *w, const fy_pair_batch *batch, fy_pack *out)
{
    (void)w;
    fy_pack_number(out, batch->bytes);
}

static void pack_batches(const ferry_reference_workloads *w, fy_pack *out)
{
    fy_workload_batches_pack(w, pack_bytes, out);
}

static ferry_status fail_batches(uint32_t from, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE,
                   "the batches that rank %u announced are cut short or damaged", from);
}

static ferry_status read_batches(void *into, uint32_t from, const fy_summary_limits *limits,
                                 fy_reader *in, ferry_error *error)
{
    ferry_reference_batches *batches = into;
    uint64_t n_runs = fy_read_number(in, limits->n_ranks);
    uint64_t next = 0; /* destinations ascend */
    for (uint64_t i = 0; i < n_runs; i++) {
        uint64_t to = fy_read_number(in, limits->n_ranks - 1);
        /* Every batch takes a byte at least: what is left bounds how many there are. */
        uint64_t n = fy_read_number(in, fy_min(FY_MAX_DEGREE, (uint64_t)(in->end - in->at)));
        if (in->failed || n == 0 || to == from || to < next) {
            return fail_batches(from, error);
        }
        next = to + 1;
        for (uint32_t b = 0; b < n; b++) {
            uint64_t bytes = fy_read_number(in, limits->slot_bytes);
            if (in->failed || bytes == 0) {
                return fail_batches(from, error);
            }
            FY_TRY(fy_scheduled_append(batches, from, (uint32_t)to, b, bytes, error));
        }
    }
    return in->failed || in->at != in->end ? fail_batches(from, error) : FERRY_OK;
}

/* batches is NULL where not even the list could be made. */
static bool exchange_batches(session *s, ferry_reference_batches **batches_out)
{
    if (s->status == FERRY_OK) {
        fail_here(s, ferry_reference_batches_create(s->exchange->n_ranks, batches_out, &s->error));
    }
    content c = {.pack = pack_batches, .unpack = read_batches, .into = *batches_out};
    if (!exchange_content(s, &c)) {
        return false;
    }
    if (s->status == FERRY_OK) {
        fail_here(s, fy_scheduled_check(*batches_out, &s->error));
    }
    return true;
}

ferry_status ferry_reference_batches_collect(const ferry_reference_workloads *workloads,
                                             const ferry_exchange *exchange,
                                             ferry_reference_batches **batches_out,
                                             ferry_error *error)
{
    session s;
    ferry_reference_batches *batches = NULL;
    ferry_exchange own_exchange;
    FY_TRY(take_exchange(exchange, &own_exchange, error));
    exchange = &own_exchange;
    begin_session(&s, workloads, exchange, batches_out != NULL);
    if (exchange_batches(&s, &batches) && vote(&s, s.hash)) {
        *batches_out = batches;
        batches = NULL;
    }
    ferry_reference_batches_destroy(batches);
    return finish(&s, error);
}

/* Summaries. */

typedef struct summary_target {
    ferry_reference_summaries *summaries;
    fy_announced announced;
} summary_target;

static ferry_status read_summaries(void *into, uint32_t from, const fy_summary_limits *limits,
                                   fy_reader *in, ferry_error *error)
{
    summary_target *target = into;
    return fy_summaries_read(target->summaries, from, limits, &target->announced, in, error);
}

static bool exchange_summaries(session *s, const ferry_reference_batches *batches,
                               ferry_reference_summaries **summaries_out)
{
    if (s->status == FERRY_OK) {
        fail_here(s, fy_summaries_create(summaries_out, &s->error));
    }
    summary_target target = {.summaries = *summaries_out, .announced = {.batches = batches}};
    content c = {.pack = fy_summaries_pack, .unpack = read_summaries, .into = &target};
    if (!exchange_content(s, &c)) {
        return false;
    }
    if (s->status == FERRY_OK) {
        fail_here(s, fy_summaries_check_received(*summaries_out, s->exchange->rank, &s->error));
    }
    return true;
}

ferry_status ferry_reference_summaries_exchange(const ferry_reference_workloads *workloads,
                                                const ferry_exchange *exchange,
                                                ferry_reference_summaries **summaries_out,
                                                ferry_error *error)
{
    session s;
    ferry_reference_summaries *summaries = NULL;
    ferry_exchange own_exchange;
    FY_TRY(take_exchange(exchange, &own_exchange, error));
    exchange = &own_exchange;
    begin_session(&s, workloads, exchange, summaries_out != NULL);
    if (exchange_summaries(&s, NULL, &summaries) && vote(&s, s.hash)) {
        *summaries_out = summaries;
        summaries = NULL;
    }
    ferry_reference_summaries_destroy(summaries);
    return finish(&s, error);
}

/* The whole. */

/* Of everything that was exchanged and of every batch's round. */
static fy_hash128 schedule_digest(const session *s, const ferry_reference_batches *batches,
                                  uint32_t n_rounds)
{
    uint64_t words[4] = {s->exchange->n_ranks, s->rule, s->duplex, n_rounds};
    fy_hash128 digest = fy_hash128_of(words, sizeof words);
    add_to_hash(&digest, s->hash);
    add_to_hash(&digest, fy_scheduled_hash(batches));
    return digest;
}

static bool build(session *s, ferry_reference_batches **batches,
                  ferry_reference_summaries **summaries, ferry_reference_schedule **schedule)
{
    uint32_t n_rounds = 0;
    fy_hash128 digest = {0, 0};
    if (!exchange_batches(s, batches)) {
        return false;
    }
    if (s->status == FERRY_OK) {
        fail_here(s, ferry_reference_batches_assign_rounds(*batches, s->rule, s->duplex, &n_rounds,
                                                           &s->error));
    }
    if (!exchange_summaries(s, *batches, summaries)) {
        return false;
    }
    if (s->status == FERRY_OK) {
        fail_here(s, fy_reference_schedule_create(*batches, s->exchange->rank, n_rounds, schedule,
                                                  &s->error));
    }
    if (s->status == FERRY_OK) {
        digest = schedule_digest(s, *batches, n_rounds);
        (*schedule)->digest = digest;
    }
    return vote(s, digest);
}

ferry_status ferry_reference_schedule_build(const ferry_reference_workloads *workloads,
                                            const ferry_reference_schedule_options *options,
                                            const ferry_exchange *exchange,
                                            ferry_reference_schedule **schedule_out,
                                            ferry_reference_summaries **summaries_out,
                                            ferry_error *error)
{
    session s;
    ferry_reference_batches *batches = NULL;
    ferry_reference_summaries *summaries = NULL;
    ferry_reference_schedule *schedule = NULL;
    ferry_exchange own_exchange;
    FY_TRY(take_exchange(exchange, &own_exchange, error));
    exchange = &own_exchange;
    begin_session(&s, workloads, exchange, schedule_out != NULL && summaries_out != NULL);
    set_options(&s, options);
    if (build(&s, &batches, &summaries, &schedule)) {
        *schedule_out = schedule;
        *summaries_out = summaries;
        schedule = NULL;
        summaries = NULL;
    }
    ferry_reference_batches_destroy(batches);
    ferry_reference_summaries_destroy(summaries);
    ferry_reference_schedule_destroy(schedule);
    return finish(&s, error);
}

/* The order alone, by rank 0 for all. */

/* What rank 0 knows, and answers. */
typedef struct ordering {
    ferry_reference_batches *batches; /* by from, to and number */
    uint32_t n_rounds;
    fy_outbox box; /* the answers */
} ordering;

/* False: the exchange itself failed. */
static bool collect_batches(session *s, ordering *o)
{
    fy_pack message = {0};
    fy_gathered all;
    bool is_root = s->exchange->rank == 0;
    content c = {.pack = pack_batches, .unpack = read_batches};
    if (is_root && s->status == FERRY_OK) {
        fail_here(s, ferry_reference_batches_create(s->exchange->n_ranks, &o->batches, &s->error));
    }
    c.into = o->batches;
    pack_content(s, &c, &message);
    bool worked = gather(s, false, &message, &all);
    fy_pack_cleanup(&message);
    if (worked && is_root) {
        read_all(s, &c, &all);
    }
    return worked;
}

static void assign(session *s, ordering *o)
{
    o->box.lengths = fy_alloc_zeroed(s->exchange->n_ranks, sizeof *o->box.lengths);
    if (s->status == FERRY_OK && o->box.lengths == NULL) {
        fail_here(s, fy_fail_no_memory(&s->error, "the lengths of messages to all ranks"));
    }
    if (s->status == FERRY_OK) {
        fail_here(s, fy_scheduled_check(o->batches, &s->error));
    }
    if (s->status == FERRY_OK) {
        fail_here(s, ferry_reference_batches_assign_rounds(o->batches, s->rule, s->duplex,
                                                           &o->n_rounds, &s->error));
    }
}

/* A digest, the number of batches and the round of each, in the order in which they came. */
static void answer_all(session *s, ordering *o)
{
    const ferry_reference_batches *b = o->batches;
    fy_hash128 digest = {0, 0};
    size_t next = 0;
    if (s->status == FERRY_OK) {
        digest = schedule_digest(s, b, o->n_rounds);
    }
    for (uint32_t r = 0; o->box.lengths != NULL && r < s->exchange->n_ranks; r++) {
        size_t before = o->box.bytes.used, first = next;
        begin_message(s, &o->box.bytes);
        while (s->status == FERRY_OK && next < b->n_batches && b->items[next].from == r) {
            next++;
        }
        if (s->status == FERRY_OK) {
            fy_pack_number(&o->box.bytes, digest.low);
            fy_pack_number(&o->box.bytes, digest.high);
            fy_pack_number(&o->box.bytes, next - first);
        }
        for (size_t i = first; i < next; i++) {
            fy_pack_number(&o->box.bytes, b->items[i].round);
        }
        o->box.lengths[r] = o->box.bytes.used - before;
    }
}

/* Own batches are in order of destinations and numbers, here as at rank 0. */
static ferry_status read_order(const session *s, fy_reader *in, fy_send_order *order,
                               ferry_error *error)
{
    const ferry_reference_workloads *w = s->workloads;
    uint64_t n = fy_read_number(in, w->packed.n_batches);
    order->batches = fy_alloc((size_t)n, sizeof *order->batches);
    FY_TRY(fy_check_memory(order->batches != NULL, "the order of a rank's batches", error));
    for (size_t r = 0; r < w->n_runs; r++) {
        const fy_workload_run *run = &w->runs[r];
        for (uint32_t b = 0; run->to != w->rank && b < run->n_batches; b++) {
            uint32_t round = (uint32_t)fy_read_number(in, FERRY_REFERENCE_NO_ROUND - 1);
            if (in->failed || order->n == n) {
                return fy_message_fail(0, error);
            }
            order->batches[order->n++] = (fy_sent_batch){.round = round, .to = run->to, .index = b};
        }
    }
    return in->failed || in->at != in->end || order->n != n ? fy_message_fail(0, error) : FERRY_OK;
}

static int by_iteration(const void *a, const void *b)
{
    const fy_sent_batch *x = a, *y = b;
    if (x->round != y->round) {
        return x->round < y->round ? -1 : 1;
    }
    return (x->to > y->to) - (x->to < y->to);
}

/* A rank that has failed before looks for a sentence only. */
static void read_own(session *s, fy_reader *in, fy_send_order *order, fy_hash128 *digest_out)
{
    ferry_error error;
    ferry_status status = fy_message_read(in, 0, &error);
    if (status != FERRY_OK) {
        s->is_local = false;
        s->status = fy_fail(&s->error, status, "%s", error.message);
        return;
    }
    if (s->status != FERRY_OK) {
        return;
    }
    digest_out->low = fy_read_number(in, UINT64_MAX);
    digest_out->high = fy_read_number(in, UINT64_MAX);
    fail_here(s, read_order(s, in, order, &s->error));
    fy_sort(order->batches, order->n, sizeof *order->batches, by_iteration);
}

/* Rank 0's answers, to each rank its own; false: the exchange itself failed. */
static bool hand_out(session *s, const ordering *o, fy_send_order *order, fy_hash128 *digest_out)
{
    ferry_error error;
    fy_reader in;
    if (!is_alive(s, fy_exchange_scatter(s->exchange, &o->box, &in, &error), &error)) {
        return false;
    }
    read_own(s, &in, order, digest_out);
    return true;
}

static void order_all(session *s, ordering *o, fy_send_order *order)
{
    fy_hash128 digest = {0, 0};
    if (!collect_batches(s, o)) {
        return;
    }
    if (s->exchange->rank == 0) {
        assign(s, o);
        answer_all(s, o);
    }
    if (hand_out(s, o, order, &digest)) {
        vote(s, digest);
    }
}

ferry_status fy_build_order(const ferry_reference_workloads *workloads,
                            const ferry_exchange *exchange, fy_send_order *order_out,
                            ferry_error *error)
{
    session s;
    ordering o = {0};
    fy_send_order order = {0};
    begin_session(&s, workloads, exchange, true);
    order_all(&s, &o, &order);
    ferry_reference_batches_destroy(o.batches);
    fy_outbox_cleanup(&o.box);
    if (s.status == FERRY_OK) {
        *order_out = order;
    } else {
        fy_free(order.batches);
    }
    return finish(&s, error);
}
