/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of a plan among ranks that all have the plan: rank 0 makes it, and each rank gets
 * its part. Four steps: every rank tells rank 0 what it calls with; rank 0 answers each with its
 * part, or all with an error; every rank tells how it fared, and with which digest; the verdict is
 * the same for all. A rank that has failed goes on taking part: nobody waits for it in vain.
 */
#include "service/part.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/options.h"

#include <ferry/scheduler.h>

#include <string.h>

/* Every message begins with its kind, so that ranks that are out of step notice. */
typedef enum message_kind {
    KIND_CALL = 1,
    KIND_PART = 2,
    KIND_VOTE = 3,
    KIND_VERDICT = 4
} message_kind;

/* The form of the messages: another version of the library may have another. */
enum { FORM = 1, DIGEST_BYTES = 33, N_OPTIONS = 5 };

/* What a rank calls with. */
typedef struct call {
    char plan[DIGEST_BYTES];
    uint64_t options[N_OPTIONS]; /* rule, duplex, slot_bytes, max_tasks, no_relays */
} call;

typedef struct session {
    const ferry_exchange *exchange;
    ferry_status status; /* what went wrong so far, and where: */
    bool is_local;
    ferry_error error;
    fy_pack box;     /* on rank 0: everybody's messages behind one another */
    size_t *lengths; /* on rank 0: of each; NULL: there was no memory for them */
} session;

/* What everybody sent, where it is known. */
typedef struct gathered {
    const unsigned char *at;
    const size_t *lengths;
} gathered;

static ferry_status take_exchange(const ferry_exchange *given, ferry_exchange *x,
                                  ferry_error *error)
{
    ferry_status status = fy_take_exchange(given, x, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (x->all_gather == NULL || x->n_ranks == 0 || x->n_ranks > FERRY_MAX_RANKS ||
        x->rank >= x->n_ranks || (x->gather == NULL) != (x->scatter == NULL)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "scheduling a plan needs an exchange made with FERRY_EXCHANGE_INIT: an "
                       "all_gather, both of gather and scatter or none, and a rank of its world");
    }
    return FERRY_OK;
}

static bool is_root(const session *s)
{
    return s->exchange->rank == 0;
}

static void fail_here(session *s, ferry_status status)
{
    s->status = status;
    s->is_local = true;
}

static ferry_status fail_message(uint32_t rank, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE, "the message of rank %u is damaged", rank);
}

/* A message is a kind, a status and, if that is FERRY_OK, content; else the sentence. */
static void begin_message(const session *s, message_kind kind, fy_pack *out)
{
    fy_pack_number(out, (uint64_t)kind);
    fy_pack_number(out, (uint64_t)s->status);
    if (s->status == FERRY_OK) {
        return;
    }
    ferry_error sentence = s->error;
    if (s->is_local) {
        fy_fail(&sentence, s->status, "rank %u: %s", s->exchange->rank, s->error.message);
    }
    fy_pack_text(out, sentence.message);
}

static ferry_status read_status(fy_reader *in, message_kind kind, uint32_t rank, ferry_error *error)
{
    if (in->at == in->end) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "rank %u ran out of memory for its message",
                       rank);
    }
    if (fy_read_number(in, KIND_VERDICT) != (uint64_t)kind || in->failed) {
        return fail_message(rank, error);
    }
    ferry_status status = (ferry_status)fy_read_number(in, FY_LAST_STATUS);
    if (in->failed) {
        return fail_message(rank, error);
    }
    if (status != FERRY_OK) {
        size_t length;
        const char *text = fy_read_text(in, &length);
        return in->failed || length == 0 || text[0] == '\0'
                   ? fail_message(rank, error)
                   : fy_fail(error, status, "%.*s", (int)fy_min(length, FERRY_ERROR_BYTES), text);
    }
    return FERRY_OK;
}

/* False: the exchange itself failed, and the caller is alone with that. */
static bool is_alive(session *s, bool worked)
{
    if (!worked) {
        s->status =
            fy_fail(&s->error, FERRY_ERR_EXCHANGE, "the caller's exchange between ranks failed");
    }
    return worked;
}

/*
 * To rank 0, or to all where there is no gather; nothing is known to the others. A rank without
 * memory for its message takes part with an empty one.
 */
static bool gather(session *s, const fy_pack *message, gathered *all_out)
{
    const ferry_exchange *x = s->exchange;
    const void *all = NULL;
    const size_t *lengths = NULL;
    size_t n_bytes = message->failed ? 0 : message->used;
    bool knows = x->gather == NULL || is_root(s);
    int failed = x->gather == NULL
                     ? x->all_gather(x->context, message->bytes, n_bytes, &all, &lengths)
                     : x->gather(x->context, message->bytes, n_bytes, &all, &lengths);
    if (message->failed && s->status == FERRY_OK) {
        fail_here(s, fy_fail_no_memory(&s->error, "a message to other ranks"));
    }
    *all_out = (gathered){.at = all, .lengths = lengths};
    if (all == NULL) { /* nobody had memory for a message */
        all_out->at = (const unsigned char *)"";
    }
    return is_alive(s, failed == 0 && (!knows || lengths != NULL));
}

/*
 * Without scatter: rank 0 sends all messages, with their lengths in front, in its part of an
 * all-gather, and the others nothing.
 */
static bool scatter_to_all(session *s, fy_reader *mine_out)
{
    const ferry_exchange *x = s->exchange;
    fy_pack message = {0};
    const void *all = NULL;
    const size_t *lengths = NULL;
    for (uint32_t r = 0; s->lengths != NULL && r < x->n_ranks; r++) {
        fy_pack_number(&message, s->lengths[r]);
    }
    if (s->lengths != NULL && !message.failed &&
        fy_reserve((void **)&message.bytes, &message.capacity, message.used + s->box.used + 1, 1)) {
        memcpy(message.bytes + message.used, s->box.bytes, s->box.used);
        message.used += s->box.used;
    } else {
        message.used = 0;
    }
    int failed = x->all_gather(x->context, message.bytes, message.used, &all, &lengths);
    fy_pack_cleanup(&message);
    if (!is_alive(s, failed == 0 && lengths != NULL)) {
        return false;
    }
    fy_reader in = {.at = all, .end = (const unsigned char *)all + lengths[0]};
    uint64_t before = 0, own = 0, total = 0;
    for (uint32_t r = 0; r < x->n_ranks && lengths[0] > 0; r++) {
        uint64_t length = fy_read_number(&in, lengths[0]);
        before = r == x->rank ? total : before;
        own = r == x->rank ? length : own;
        in.failed = in.failed || !fy_add(total, length, &total);
    }
    bool fits = !in.failed && total == (uint64_t)(in.end - in.at);
    *mine_out = (fy_reader){.at = in.at, .end = in.at, .failed = !fits};
    if (fits && own > 0) {
        mine_out->at += before;
        mine_out->end = mine_out->at + own;
    }
    return true;
}

/* What is in rank 0's box, to each rank its own; nothing to anybody where it has no memory. */
static bool scatter(session *s, fy_reader *mine_out)
{
    const ferry_exchange *x = s->exchange;
    const void *mine = NULL;
    size_t n_bytes = 0;
    if (x->scatter == NULL) {
        return scatter_to_all(s, mine_out);
    }
    const void *all = NULL;
    const size_t *lengths = NULL;
    if (is_root(s)) {
        bool answers = s->box.used > 0;
        all = answers ? (const void *)s->box.bytes : "";
        lengths = answers ? s->lengths : fy_no_lengths(x->n_ranks);
        if (lengths == NULL) {
            return false; /* the status says that there is no memory */
        }
    }
    int failed = x->scatter(x->context, all, lengths, &mine, &n_bytes);
    if (!is_alive(s, failed == 0 && (mine != NULL || n_bytes == 0))) {
        return false;
    }
    *mine_out = (fy_reader){.at = mine, .end = mine};
    if (n_bytes > 0) {
        mine_out->end += n_bytes;
    }
    return true;
}

/* The message that rank 0 has for everybody; where there is no memory for it, an empty one. */
static void post_to_all(session *s, const fy_pack *message)
{
    s->box.used = 0;
    for (uint32_t r = 0; s->lengths != NULL && r < s->exchange->n_ranks; r++) {
        bool fits = !message->failed && fy_reserve((void **)&s->box.bytes, &s->box.capacity,
                                                   s->box.used + message->used + 1, 1);
        if (!fits) {
            s->box.used = 0;
            memset(s->lengths, 0, s->exchange->n_ranks * sizeof *s->lengths);
            return;
        }
        memcpy(s->box.bytes + s->box.used, message->bytes, message->used);
        s->box.used += message->used;
        s->lengths[r] = message->used;
    }
}

static void post_status(session *s, message_kind kind)
{
    fy_pack message = {0};
    begin_message(s, kind, &message);
    post_to_all(s, &message);
    fy_pack_cleanup(&message);
}

/* The first step: what everybody calls with. */

static ferry_status fill_call(const ferry_plan *plan, const ferry_schedule_options *options,
                              const session *s, bool has_place, call *call_out, ferry_error *error)
{
    uint32_t n_ranks = s->exchange->n_ranks;
    ferry_schedule_options own;
    if (plan == NULL || !has_place) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_build_plan_schedule needs a plan and a place for the schedule");
    }
    ferry_status status = fy_take_schedule_options(options, &own, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (ferry_plan_world_size(plan) != n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "a plan of %u ranks cannot be scheduled by an exchange of %u ranks",
                       ferry_plan_world_size(plan), n_ranks);
    }
    ferry_plan_digest(plan, call_out->plan);
    call_out->options[0] = own.rule;
    call_out->options[1] = own.duplex;
    call_out->options[2] = own.slot_bytes == 0 ? FERRY_SLOT_BYTES : own.slot_bytes;
    call_out->options[3] = own.max_tasks == 0 ? FERRY_MAX_TASKS : own.max_tasks;
    call_out->options[4] = own.no_relays;
    return FERRY_OK;
}

static bool send_call(session *s, const call *own, gathered *all_out)
{
    fy_pack message = {0};
    begin_message(s, KIND_CALL, &message);
    if (s->status == FERRY_OK) {
        fy_pack_number(&message, FORM);
        fy_pack_number(&message, s->exchange->rank);
        fy_pack_number(&message, s->exchange->n_ranks);
        fy_pack_text(&message, own->plan);
        for (size_t i = 0; i < N_OPTIONS; i++) {
            fy_pack_number(&message, own->options[i]);
        }
    }
    bool worked = gather(s, &message, all_out);
    fy_pack_cleanup(&message);
    return worked;
}

static ferry_status read_call(const session *s, uint32_t rank, fy_reader *in, call *call_out,
                              ferry_error *error)
{
    ferry_status status = read_status(in, KIND_CALL, rank, error);
    if (status != FERRY_OK) {
        return status;
    }
    size_t length;
    uint64_t form = fy_read_number(in, UINT64_MAX);
    uint64_t claimed = fy_read_number(in, FERRY_MAX_RANKS);
    uint64_t n_ranks = fy_read_number(in, FERRY_MAX_RANKS);
    const char *text = fy_read_text(in, &length);
    for (size_t i = 0; i < N_OPTIONS; i++) {
        call_out->options[i] = fy_read_number(in, UINT64_MAX);
    }
    if (in->failed || in->at != in->end || form != FORM || claimed != rank ||
        n_ranks != s->exchange->n_ranks || length != DIGEST_BYTES - 1) {
        return fail_message(rank, error);
    }
    memcpy(call_out->plan, text, length);
    call_out->plan[length] = '\0';
    return FERRY_OK;
}

/* On rank 0: all call alike. */
static ferry_status compare_calls(const session *s, const gathered *all, ferry_error *error)
{
    static const char *const names[] = {"rule", "duplex", "slot_bytes", "max_tasks", "no_relays"};
    call first = {{0}, {0}};
    const unsigned char *at = all->at;
    for (uint32_t r = 0; r < s->exchange->n_ranks; r++) {
        call own = {{0}, {0}};
        fy_reader in = {.at = at, .end = at + all->lengths[r]};
        ferry_status status = read_call(s, r, &in, &own, error);
        if (status != FERRY_OK) {
            return status;
        }
        first = r == 0 ? own : first;
        if (strcmp(own.plan, first.plan) != 0) {
            return fy_fail(error, FERRY_ERR_DIGEST,
                           "rank %u has plan %s and rank 0 has plan %s: all ranks must make the "
                           "same plan, from the same spec and with the same options",
                           r, own.plan, first.plan);
        }
        for (size_t i = 0; i < N_OPTIONS; i++) {
            if (own.options[i] != first.options[i]) {
                return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                               "rank %u schedules with %s %llu and rank 0 with %llu: all ranks "
                               "must use the same",
                               r, names[i], (unsigned long long)own.options[i],
                               (unsigned long long)first.options[i]);
            }
        }
        at += all->lengths[r];
    }
    return FERRY_OK;
}

/* The second step: rank 0's answers. */

static void post_parts(session *s, const ferry_schedule *whole)
{
    for (uint32_t r = 0; r < s->exchange->n_ranks; r++) {
        size_t before = s->box.used;
        begin_message(s, KIND_PART, &s->box);
        fy_part_pack(whole, r, &s->box);
        s->lengths[r] = s->box.used - before;
    }
    if (s->box.failed) {
        s->box.failed = false;
        s->status = fy_fail_no_memory(&s->error, "the parts of a schedule");
    }
}

static void answer(session *s, const ferry_plan *plan, const ferry_schedule_options *options,
                   const gathered *calls)
{
    ferry_error error;
    ferry_schedule *whole = NULL;
    ferry_status status = compare_calls(s, calls, &error);
    if (status != FERRY_OK) {
        s->status = fy_fail(&s->error, status, "%s", error.message);
        s->is_local = false;
    }
    if (s->status == FERRY_OK && s->lengths == NULL) {
        fail_here(s, fy_fail_no_memory(&s->error, "the lengths of messages to all ranks"));
    }
    if (s->status == FERRY_OK) {
        s->is_local = false; /* what is wrong with a schedule is no rank's fault */
        s->status = ferry_schedule_create_for_plan(plan, options, &whole, &s->error);
    }
    if (s->status == FERRY_OK) {
        post_parts(s, whole);
    }
    if (s->status != FERRY_OK) {
        post_status(s, KIND_PART);
    }
    ferry_schedule_destroy(whole);
}

/* The third step: what came. A rank that has failed before looks for a sentence only. */
static void read_answer(session *s, fy_reader *in, ferry_schedule **part_out)
{
    ferry_error error;
    ferry_status status =
        in->failed ? fail_message(0, &error) : read_status(in, KIND_PART, 0, &error);
    if (status != FERRY_OK) {
        /* Damage may be in what came to this rank alone. */
        s->is_local = status == FERRY_ERR_EXCHANGE && !is_root(s);
        s->status = fy_fail(&s->error, status, "%s", error.message);
    } else if (s->status == FERRY_OK) {
        fail_here(s, fy_part_read(in->at, (size_t)(in->end - in->at), s->exchange->rank,
                                  s->exchange->n_ranks, part_out, &s->error));
    }
}

/* The fourth: whether every rank has its part, and of one schedule. */

static ferry_status count_votes(const session *s, const gathered *all, ferry_error *error)
{
    const unsigned char *at = all->at;
    fy_hash128 first = {0, 0};
    uint32_t other = 0; /* the first rank with another digest than rank 0 */
    for (uint32_t r = 0; r < s->exchange->n_ranks; r++) {
        fy_reader in = {.at = at, .end = at + all->lengths[r]};
        ferry_status status = read_status(&in, KIND_VOTE, r, error);
        if (status != FERRY_OK) {
            return status;
        }
        fy_hash128 own = {.low = fy_read_number(&in, UINT64_MAX)};
        own.high = fy_read_number(&in, UINT64_MAX);
        if (in.failed || in.at != in.end) {
            return fail_message(r, error);
        }
        first = r == 0 ? own : first;
        other = other == 0 && (own.low != first.low || own.high != first.high) ? r : other;
        at += all->lengths[r];
    }
    if (other != 0) {
        return fy_fail(error, FERRY_ERR_DIGEST,
                       "rank %u has a part of another schedule than rank 0: does the exchange give "
                       "each rank what was meant for it?",
                       other);
    }
    return FERRY_OK;
}

static void read_verdict(session *s, fy_reader *in)
{
    ferry_status status =
        in->failed ? fail_message(0, &s->error) : read_status(in, KIND_VERDICT, 0, &s->error);
    if (status == FERRY_OK && in->at != in->end) {
        status = fail_message(0, &s->error);
    }
    s->status = status;
}

/* Its outcome replaces the status, but for a rank whose failure got lost on the way. */
static void vote(session *s, fy_hash128 digest)
{
    fy_pack message = {0};
    gathered all;
    begin_message(s, KIND_VOTE, &message);
    if (s->status == FERRY_OK) {
        fy_pack_number(&message, digest.low);
        fy_pack_number(&message, digest.high);
    }
    bool worked = gather(s, &message, &all);
    fy_pack_cleanup(&message);
    if (!worked) {
        return;
    }
    const session before = *s;
    s->is_local = false;
    if (s->exchange->gather == NULL || is_root(s)) {
        s->status = count_votes(s, &all, &s->error);
    }
    if (s->exchange->gather != NULL) {
        fy_reader in = {0};
        if (is_root(s)) {
            post_status(s, KIND_VERDICT);
        }
        if (!scatter(s, &in)) {
            return;
        }
        read_verdict(s, &in);
    }
    if (s->status == FERRY_OK && before.status != FERRY_OK) {
        s->status = before.status;
        s->error = before.error;
    }
}

static void run_session(session *s, const ferry_plan *plan, const ferry_schedule_options *options,
                        const call *own, ferry_schedule **part_out)
{
    gathered calls;
    fy_reader in = {0};
    if (!send_call(s, own, &calls)) {
        return;
    }
    if (is_root(s)) {
        answer(s, plan, options, &calls);
    }
    if (!scatter(s, &in)) {
        return;
    }
    read_answer(s, &in, part_out);
    vote(s, *part_out == NULL ? (fy_hash128){0, 0} : (*part_out)->digest);
}

ferry_status ferry_build_plan_schedule(const ferry_plan *plan,
                                       const ferry_schedule_options *options,
                                       const ferry_exchange *exchange,
                                       ferry_schedule **schedule_out, ferry_error *error)
{
    ferry_exchange own_exchange;
    ferry_status status = take_exchange(exchange, &own_exchange, error);
    if (status != FERRY_OK) {
        return status;
    }
    exchange = &own_exchange;
    session s = {.exchange = exchange};
    call own = {{0}, {0}};
    ferry_schedule *part = NULL;
    if (is_root(&s)) {
        s.lengths = fy_alloc_zeroed(exchange->n_ranks, sizeof *s.lengths);
    }
    fail_here(&s, fill_call(plan, options, &s, schedule_out != NULL, &own, &s.error));
    run_session(&s, plan, options, &own, &part);
    if (s.status == FERRY_OK) {
        *schedule_out = part;
        part = NULL;
    } else {
        fy_fail(error, s.status, "%s", s.error.message);
    }
    ferry_schedule_destroy(part);
    fy_pack_cleanup(&s.box);
    fy_free(s.lengths);
    return s.status;
}
