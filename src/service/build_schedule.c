/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The exchanges of the scheduler: batches, summaries, and a vote. Whatever goes wrong on a rank is
 * part of what it sends next, and in the vote every rank says whether it got through and with which
 * digest; its outcome depends on gathered bytes alone, so all ranks end alike. A rank that has
 * failed goes on taking part, without content: nobody waits for it in vain.
 */
#include "service/summaries.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/options.h"
#include "base/sort.h"
#include "service/exec.h"

typedef struct session {
    const ferry_exchange *exchange;
    const ferry_workloads *workloads;
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
    void (*pack)(const ferry_workloads *workloads, fy_pack *out);
    ferry_status (*read)(void *into, uint32_t source, const fy_summary_limits *limits,
                         fy_reader *in, ferry_error *error);
    void *into;
} content;

static ferry_status take_exchange(const ferry_exchange *given, ferry_exchange *x,
                                  ferry_error *error)
{
    ferry_status status = fy_take_exchange(given, x, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (x->all_gather == NULL || x->n_ranks == 0 || x->n_ranks > FERRY_MAX_RANKS ||
        x->rank >= x->n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "scheduling needs an exchange made with FERRY_EXCHANGE_INIT: an all_gather "
                       "and a rank of its world");
    }
    return FERRY_OK;
}

static void begin_session(session *s, const ferry_workloads *workloads, uint32_t my_pe,
                          uint32_t n_pes, const ferry_exchange *exchange, bool has_places)
{
    *s = (session){.exchange = exchange, .workloads = workloads, .is_local = true};
    if (my_pe != exchange->rank || n_pes != exchange->n_ranks) {
        s->status = fy_fail(&s->error, FERRY_ERR_MISUSE,
                            "called as PE %u of %u with an exchange of rank %u of %u", my_pe, n_pes,
                            exchange->rank, exchange->n_ranks);
    } else if (workloads == NULL || !workloads->is_packed || workloads->my_pe != my_pe ||
               workloads->n_pes != n_pes || !has_places) {
        s->status = fy_fail(&s->error, FERRY_ERR_MISUSE,
                            "scheduling needs packed workloads of PE %u of %u and places for what "
                            "comes out",
                            my_pe, n_pes);
    }
}

static void set_options(session *s, const ferry_build_schedule_options *options)
{
    if (s->status != FERRY_OK) {
        return;
    }
    ferry_build_schedule_options own;
    s->status = fy_take_build_schedule_options(options, &own, &s->error);
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

/* A message is a status and, if that is FERRY_OK, content; else the sentence. */
static void begin_message(const session *s, fy_pack *out)
{
    fy_pack_number(out, (uint64_t)s->status);
    if (s->status == FERRY_OK) {
        return;
    }
    ferry_error sentence = s->error;
    if (s->is_local) {
        fy_fail(&sentence, s->status, "PE %u: %s", s->exchange->rank, s->error.message);
    }
    fy_pack_text(out, sentence.message);
}

static ferry_status read_status(fy_reader *in, uint32_t rank, ferry_error *error)
{
    if (in->at == in->end) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "PE %u ran out of memory for its message", rank);
    }
    ferry_status status = (ferry_status)fy_read_number(in, FY_LAST_STATUS);
    if (in->failed) {
        return fy_fail(error, FERRY_ERR_EXCHANGE, "the message of PE %u is damaged", rank);
    }
    if (status != FERRY_OK) {
        size_t length;
        const char *text = fy_read_text(in, &length);
        if (in->failed || length == 0 || text[0] == '\0') {
            return fy_fail(error, FERRY_ERR_EXCHANGE, "the message of PE %u is damaged", rank);
        }
        return fy_fail(error, status, "%.*s", (int)fy_min(length, FERRY_ERROR_BYTES), text);
    }
    return FERRY_OK;
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
        return fy_fail(error, FERRY_ERR_EXCHANGE, "the message of PE %u is damaged", rank);
    }
    for (size_t i = 0; i < 4; i++) {
        first[i] = rank == 0 ? own[i] : first[i];
    }
    for (size_t i = 0; i < 4; i++) {
        if (own[i] != first[i]) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "PE %u schedules with %s %llu and PE 0 with %llu: all PEs must use the "
                           "same",
                           rank, names[i], (unsigned long long)own[i],
                           (unsigned long long)first[i]);
        }
    }
    return FERRY_OK;
}

static bool fail_exchange(session *s)
{
    s->status =
        fy_fail(&s->error, FERRY_ERR_EXCHANGE, "the caller's exchange between ranks failed");
    return false;
}

/* False: the exchange itself failed, and the caller is alone with that. */
static bool gather(session *s, const fy_pack *message, const unsigned char **all_out,
                   const size_t **lengths_out)
{
    const void *all = NULL;
    *lengths_out = NULL;
    if (s->exchange->all_gather(s->exchange->context, message->bytes,
                                message->failed ? 0 : message->used, &all, lengths_out) != 0 ||
        *lengths_out == NULL) {
        return fail_exchange(s);
    }
    *all_out = all;
    return true;
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
    ferry_status status = read_status(in, r, &s->error);
    if (status != FERRY_OK || !wants_content) {
        return status;
    }
    s->is_local = true;
    status = read_header(s, r, first, in, &s->error);
    if (status == FERRY_OK) {
        s->limits = (fy_summary_limits){s->exchange->n_ranks, first[0], first[1]};
        status = c->read(c->into, r, &s->limits, in, &s->error);
    }
    return status;
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
static void read_all(session *s, const content *c, const unsigned char *at, const size_t *lengths)
{
    uint64_t first[4] = {0};
    const session before = *s;
    for (uint32_t r = 0; r < s->exchange->n_ranks; r++) {
        fy_reader in = {.at = at, .end = at + lengths[r]};
        add_to_hash(&s->hash, fy_hash128_of(at, lengths[r]));
        s->status = read_message(s, r, first, before.status == FERRY_OK, c, &in);
        if (s->status != FERRY_OK) {
            return;
        }
        at += lengths[r];
    }
    if (before.status != FERRY_OK) { /* an exchange that lost this rank's own sentence */
        *s = before;
    }
}

/* One all-gather of everybody's content. */
static bool exchange_content(session *s, const content *c)
{
    fy_pack message = {0};
    const unsigned char *at = NULL;
    const size_t *lengths = NULL;
    pack_content(s, c, &message);
    bool is_alive = gather(s, &message, &at, &lengths);
    fy_pack_cleanup(&message);
    if (is_alive) {
        read_all(s, c, at, lengths);
    }
    return is_alive;
}

/* Whether every rank got through, and to the same digest. Its outcome replaces the status. */
static bool vote(session *s, fy_hash128 digest)
{
    fy_pack message = {0};
    const unsigned char *at = NULL;
    const size_t *lengths = NULL;
    uint64_t low = 0, high = 0;
    begin_message(s, &message);
    if (s->status == FERRY_OK) {
        fy_pack_number(&message, digest.low);
        fy_pack_number(&message, digest.high);
    }
    bool is_alive = gather(s, &message, &at, &lengths);
    fy_pack_cleanup(&message);
    if (!is_alive) {
        return false;
    }
    ferry_status status = FERRY_OK;
    uint32_t other = 0; /* the first rank with another digest than rank 0 */
    for (uint32_t r = 0; r < s->exchange->n_ranks && status == FERRY_OK; r++) {
        fy_reader in = {.at = at, .end = at + lengths[r]};
        status = read_status(&in, r, &s->error);
        if (status == FERRY_OK) {
            uint64_t own_low = fy_read_number(&in, UINT64_MAX);
            uint64_t own_high = fy_read_number(&in, UINT64_MAX);
            low = r == 0 ? own_low : low;
            high = r == 0 ? own_high : high;
            other = other == 0 && (own_low != low || own_high != high) ? r : other;
            if (in.failed || in.at != in.end) {
                status =
                    fy_fail(&s->error, FERRY_ERR_EXCHANGE, "the message of PE %u is damaged", r);
            }
        }
        at += lengths[r];
    }
    if (status == FERRY_OK && other != 0) {
        status = fy_fail(&s->error, FERRY_ERR_DIGEST,
                         "PE %u has computed another schedule than PE 0: do all run one version of "
                         "the library, and does the exchange give all the same bytes?",
                         other);
    }
    s->status = status;
    return status == FERRY_OK;
}

static ferry_status finish(const session *s, ferry_error *error)
{
    return s->status == FERRY_OK ? FERRY_OK : fy_fail(error, s->status, "%s", s->error.message);
}

/* Batches: runs of (destination, number), and of each batch its bytes. */

static void pack_batches(const ferry_workloads *w, fy_pack *out)
{
    size_t n_others = w->n_runs;
    for (size_t r = 0; r < w->n_runs; r++) {
        n_others -= w->runs[r].destination == w->my_pe;
    }
    fy_pack_number(out, n_others);
    for (size_t r = 0; r < w->n_runs; r++) {
        const fy_workload_run *run = &w->runs[r];
        if (run->destination == w->my_pe) {
            continue;
        }
        fy_pack_number(out, run->destination);
        fy_pack_number(out, run->n_groups);
        for (uint32_t g = 0; g < run->n_groups; g++) {
            fy_pack_number(out, w->groups[run->first_group + g].bytes);
        }
    }
}

static ferry_status fail_batches(uint32_t source, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE,
                   "the batches that PE %u announced are cut short or damaged", source);
}

static ferry_status read_batches(void *into, uint32_t source, const fy_summary_limits *limits,
                                 fy_reader *in, ferry_error *error)
{
    ferry_scheduled_batches *batches = into;
    ferry_status status = FERRY_OK;
    uint64_t n_runs = fy_read_number(in, limits->n_pes);
    uint64_t next = 0; /* destinations ascend */
    for (uint64_t i = 0; i < n_runs; i++) {
        uint64_t to = fy_read_number(in, limits->n_pes - 1);
        /* Every batch takes a byte at least: what is left bounds how many there are. */
        uint64_t n = fy_read_number(in, fy_min(FY_MAX_DEGREE, (uint64_t)(in->end - in->at)));
        if (in->failed || n == 0 || to == source || to < next) {
            return fail_batches(source, error);
        }
        next = to + 1;
        for (uint32_t b = 0; b < n; b++) {
            uint64_t bytes = fy_read_number(in, limits->slot_bytes);
            if (in->failed || bytes == 0) {
                return fail_batches(source, error);
            }
            status = fy_scheduled_append(batches, source, (uint32_t)to, b, bytes, error);
            if (status != FERRY_OK) {
                return status;
            }
        }
    }
    return in->failed || in->at != in->end ? fail_batches(source, error) : FERRY_OK;
}

/* batches is NULL where not even the list could be made. */
static bool exchange_batches(session *s, ferry_scheduled_batches **batches_out)
{
    if (s->status == FERRY_OK) {
        fail_here(s, ferry_scheduled_batches_create(s->exchange->n_ranks, batches_out, &s->error));
    }
    content c = {.pack = pack_batches, .read = read_batches, .into = *batches_out};
    if (!exchange_content(s, &c)) {
        return false;
    }
    if (s->status == FERRY_OK) {
        fail_here(s, fy_scheduled_check(*batches_out, &s->error));
    }
    return true;
}

ferry_status ferry_collect_all_batches(const ferry_workloads *workloads, uint32_t my_pe,
                                       uint32_t n_pes, const ferry_exchange *exchange,
                                       ferry_scheduled_batches **batches_out, ferry_error *error)
{
    session s;
    ferry_scheduled_batches *batches = NULL;
    ferry_exchange own_exchange;
    ferry_status status = take_exchange(exchange, &own_exchange, error);
    if (status != FERRY_OK) {
        return status;
    }
    exchange = &own_exchange;
    begin_session(&s, workloads, my_pe, n_pes, exchange, batches_out != NULL);
    if (exchange_batches(&s, &batches) && vote(&s, s.hash)) {
        *batches_out = batches;
        batches = NULL;
    }
    ferry_scheduled_batches_destroy(batches);
    return finish(&s, error);
}

/* Summaries. */

typedef struct summary_target {
    ferry_summaries *summaries;
    fy_announced announced;
} summary_target;

static ferry_status read_summaries(void *into, uint32_t source, const fy_summary_limits *limits,
                                   fy_reader *in, ferry_error *error)
{
    summary_target *target = into;
    return fy_summaries_read(target->summaries, source, limits, &target->announced, in, error);
}

static bool exchange_summaries(session *s, const ferry_scheduled_batches *batches,
                               ferry_summaries **summaries_out)
{
    if (s->status == FERRY_OK) {
        fail_here(s, fy_summaries_create(summaries_out, &s->error));
    }
    summary_target target = {.summaries = *summaries_out, .announced = {.batches = batches}};
    content c = {.pack = fy_summaries_pack, .read = read_summaries, .into = &target};
    if (!exchange_content(s, &c)) {
        return false;
    }
    if (s->status == FERRY_OK) {
        fail_here(s, fy_summaries_check_received(*summaries_out, s->exchange->rank, &s->error));
    }
    return true;
}

ferry_status ferry_exchange_workload_summaries(const ferry_workloads *workloads, uint32_t my_pe,
                                               uint32_t n_pes, const ferry_exchange *exchange,
                                               ferry_summaries **summaries_out, ferry_error *error)
{
    session s;
    ferry_summaries *summaries = NULL;
    ferry_exchange own_exchange;
    ferry_status status = take_exchange(exchange, &own_exchange, error);
    if (status != FERRY_OK) {
        return status;
    }
    exchange = &own_exchange;
    begin_session(&s, workloads, my_pe, n_pes, exchange, summaries_out != NULL);
    if (exchange_summaries(&s, NULL, &summaries) && vote(&s, s.hash)) {
        *summaries_out = summaries;
        summaries = NULL;
    }
    ferry_summaries_destroy(summaries);
    return finish(&s, error);
}

/* The whole. */

/* Of everything that was exchanged and of every batch's iteration. */
static fy_hash128 schedule_digest(const session *s, const ferry_scheduled_batches *batches,
                                  uint32_t n_iterations)
{
    uint64_t words[4] = {s->exchange->n_ranks, s->rule, s->duplex, n_iterations};
    fy_hash128 digest = fy_hash128_of(words, sizeof words);
    add_to_hash(&digest, s->hash);
    add_to_hash(&digest, fy_scheduled_hash(batches));
    return digest;
}

static bool build(session *s, ferry_scheduled_batches **batches, ferry_summaries **summaries,
                  ferry_local_schedule **schedule)
{
    uint32_t n_iterations = 0;
    fy_hash128 digest = {0, 0};
    if (!exchange_batches(s, batches)) {
        return false;
    }
    if (s->status == FERRY_OK) {
        fail_here(s,
                  ferry_assign_iterations(*batches, s->rule, s->duplex, &n_iterations, &s->error));
    }
    if (!exchange_summaries(s, *batches, summaries)) {
        return false;
    }
    if (s->status == FERRY_OK) {
        fail_here(s, fy_local_schedule_create(*batches, s->exchange->rank, n_iterations, schedule,
                                              &s->error));
    }
    if (s->status == FERRY_OK) {
        digest = schedule_digest(s, *batches, n_iterations);
        (*schedule)->digest = digest;
    }
    return vote(s, digest);
}

ferry_status ferry_build_schedule(const ferry_workloads *workloads, uint32_t my_pe, uint32_t n_pes,
                                  const ferry_build_schedule_options *options,
                                  const ferry_exchange *exchange,
                                  ferry_local_schedule **schedule_out,
                                  ferry_summaries **summaries_out, ferry_error *error)
{
    session s;
    ferry_scheduled_batches *batches = NULL;
    ferry_summaries *summaries = NULL;
    ferry_local_schedule *schedule = NULL;
    ferry_exchange own_exchange;
    ferry_status status = take_exchange(exchange, &own_exchange, error);
    if (status != FERRY_OK) {
        return status;
    }
    exchange = &own_exchange;
    begin_session(&s, workloads, my_pe, n_pes, exchange,
                  schedule_out != NULL && summaries_out != NULL);
    set_options(&s, options);
    if (build(&s, &batches, &summaries, &schedule)) {
        *schedule_out = schedule;
        *summaries_out = summaries;
        schedule = NULL;
        summaries = NULL;
    }
    ferry_scheduled_batches_destroy(batches);
    ferry_summaries_destroy(summaries);
    ferry_local_schedule_destroy(schedule);
    return finish(&s, error);
}

/* The order alone, by rank 0 for all. */

/* What rank 0 knows, and answers. */
typedef struct ordering {
    ferry_scheduled_batches *batches; /* by source, destination and number */
    uint32_t n_iterations;
    fy_pack box; /* the answers, one behind the other */
    size_t *lengths;
} ordering;

/* False: the exchange itself failed. */
static bool collect_batches(session *s, ordering *o)
{
    const ferry_exchange *x = s->exchange;
    fy_pack message = {0};
    const void *all = NULL;
    const size_t *lengths = NULL;
    content c = {.pack = pack_batches, .read = read_batches};
    if (x->rank == 0 && s->status == FERRY_OK) {
        fail_here(s, ferry_scheduled_batches_create(x->n_ranks, &o->batches, &s->error));
    }
    c.into = o->batches;
    pack_content(s, &c, &message);
    int failed =
        x->gather(x->context, message.bytes, message.failed ? 0 : message.used, &all, &lengths);
    fy_pack_cleanup(&message);
    if (failed != 0 || (x->rank == 0 && lengths == NULL)) {
        return fail_exchange(s);
    }
    if (x->rank == 0) {
        read_all(s, &c, all == NULL ? (const void *)"" : all, lengths);
    }
    return true;
}

static void assign(session *s, ordering *o)
{
    o->lengths = fy_alloc_zeroed(s->exchange->n_ranks, sizeof *o->lengths);
    if (s->status == FERRY_OK && o->lengths == NULL) {
        fail_here(s, fy_fail_no_memory(&s->error, "the lengths of messages to all ranks"));
    }
    if (s->status == FERRY_OK) {
        fail_here(s, fy_scheduled_check(o->batches, &s->error));
    }
    if (s->status == FERRY_OK) {
        fail_here(s, ferry_assign_iterations(o->batches, s->rule, s->duplex, &o->n_iterations,
                                             &s->error));
    }
}

/* A digest, the number of batches and the iteration of each, in the order in which they came. */
static void answer_all(session *s, ordering *o)
{
    const ferry_scheduled_batches *b = o->batches;
    fy_hash128 digest = {0, 0};
    size_t next = 0;
    if (s->status == FERRY_OK) {
        digest = schedule_digest(s, b, o->n_iterations);
    }
    for (uint32_t r = 0; o->lengths != NULL && r < s->exchange->n_ranks; r++) {
        size_t before = o->box.used, first = next;
        begin_message(s, &o->box);
        while (s->status == FERRY_OK && next < b->n_batches && b->from[next] == r) {
            next++;
        }
        if (s->status == FERRY_OK) {
            fy_pack_number(&o->box, digest.low);
            fy_pack_number(&o->box, digest.high);
            fy_pack_number(&o->box, next - first);
        }
        for (size_t i = first; i < next; i++) {
            fy_pack_number(&o->box, b->iteration[i]);
        }
        o->lengths[r] = o->box.used - before;
    }
}

/* Own batches are in order of destinations and numbers, here as at rank 0. */
static ferry_status read_turns(const session *s, fy_reader *in, fy_turns *turns, ferry_error *error)
{
    const ferry_workloads *w = s->workloads;
    uint64_t n = fy_read_number(in, w->packed.n_batches);
    turns->turns = fy_alloc((size_t)n, sizeof *turns->turns);
    if (turns->turns == NULL) {
        return fy_fail_no_memory(error, "the order of a rank's batches");
    }
    for (size_t r = 0; r < w->n_runs; r++) {
        const fy_workload_run *run = &w->runs[r];
        for (uint32_t g = 0; run->destination != w->my_pe && g < run->n_groups; g++) {
            uint32_t iteration = (uint32_t)fy_read_number(in, FERRY_NO_ITERATION - 1);
            if (in->failed || turns->n == n) {
                return fy_fail(error, FERRY_ERR_EXCHANGE, "the message of PE 0 is damaged");
            }
            turns->turns[turns->n++] = (fy_turn){
                .iteration = iteration, .destination = run->destination, .batch_index = g};
        }
    }
    return in->failed || in->at != in->end || turns->n != n
               ? fy_fail(error, FERRY_ERR_EXCHANGE, "the message of PE 0 is damaged")
               : FERRY_OK;
}

static int by_iteration(const void *a, const void *b)
{
    const fy_turn *x = a, *y = b;
    if (x->iteration != y->iteration) {
        return x->iteration < y->iteration ? -1 : 1;
    }
    return (x->destination > y->destination) - (x->destination < y->destination);
}

/* A rank that has failed before looks for a sentence only. */
static void read_own(session *s, fy_reader *in, fy_turns *turns, fy_hash128 *digest_out)
{
    ferry_error error;
    ferry_status status = read_status(in, 0, &error);
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
    fail_here(s, read_turns(s, in, turns, &s->error));
    fy_sort(turns->turns, turns->n, sizeof *turns->turns, by_iteration);
}

/* Rank 0's answers, to each rank its own; false: the exchange itself failed. */
static bool hand_out(session *s, const ordering *o, fy_turns *turns, fy_hash128 *digest_out)
{
    const ferry_exchange *x = s->exchange;
    const void *mine = NULL;
    size_t n_bytes = 0;
    bool has_all = o->lengths != NULL && !o->box.failed && o->box.bytes != NULL;
    const size_t *lengths = has_all ? o->lengths : fy_no_lengths(x->n_ranks);
    if (x->rank == 0 && lengths == NULL) {
        return fail_exchange(s);
    }
    int failed =
        x->scatter(x->context, has_all ? (const void *)o->box.bytes : "", lengths, &mine, &n_bytes);
    if (failed != 0 || (mine == NULL && n_bytes > 0)) {
        return fail_exchange(s);
    }
    const unsigned char *at = mine == NULL ? (const void *)"" : mine;
    fy_reader in = {.at = at, .end = at + n_bytes};
    read_own(s, &in, turns, digest_out);
    return true;
}

static void order_all(session *s, ordering *o, fy_turns *turns)
{
    fy_hash128 digest = {0, 0};
    if (!collect_batches(s, o)) {
        return;
    }
    if (s->exchange->rank == 0) {
        assign(s, o);
        answer_all(s, o);
    }
    if (hand_out(s, o, turns, &digest)) {
        vote(s, digest);
    }
}

ferry_status fy_build_order(const ferry_workloads *workloads, const ferry_exchange *exchange,
                            fy_turns *turns_out, ferry_error *error)
{
    session s;
    ordering o = {0};
    fy_turns turns = {0};
    begin_session(&s, workloads, exchange->rank, exchange->n_ranks, exchange, true);
    order_all(&s, &o, &turns);
    ferry_scheduled_batches_destroy(o.batches);
    fy_pack_cleanup(&o.box);
    fy_free(o.lengths);
    if (s.status == FERRY_OK) {
        *turns_out = turns;
    } else {
        fy_free(turns.turns);
    }
    return finish(&s, error);
}
