/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of a plan among ranks that all have the plan: rank 0 makes it, and each rank gets
 * its part. Four steps: every rank tells rank 0 what it calls with; rank 0 answers each with its
 * part, or all with an error; every rank tells how it fared, and with which digest; the verdict is
 * the same for all. A rank that has failed goes on taking part: nobody waits for it in vain.
 */
#include "schedule/part.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/message.h"
#include "base/options.h"

#include <ferry/schedule.h>

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
    fy_outbox box; /* on rank 0 */
} session;

static ferry_status take_exchange(const ferry_exchange *given, ferry_exchange *x,
                                  ferry_error *error)
{
    FY_TRY(fy_take_exchange(given, x, error));
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

/* Behind its kind. */
static void begin_message(const session *s, message_kind kind, fy_pack *out)
{
    ferry_error sentence = s->error;
    fy_pack_number(out, (uint64_t)kind);
    if (s->status != FERRY_OK && s->is_local) {
        fy_fail(&sentence, s->status, "rank %u: %s", s->exchange->rank, s->error.message);
    }
    fy_message_begin(out, s->status, sentence.message);
}

static ferry_status read_status(fy_reader *in, message_kind kind, uint32_t rank, ferry_error *error)
{
    if (in->at != in->end && fy_read_number(in, KIND_VERDICT) != (uint64_t)kind) {
        return fy_message_fail(rank, error);
    }
    return fy_message_read(in, rank, error);
}

/* False: the exchange itself failed, and the caller is alone with that. */
static bool gather(session *s, const fy_pack *message, fy_gathered *all_out)
{
    ferry_error error;
    ferry_status status = fy_exchange_gather(s->exchange, false, message, all_out, &error);
    if (status != FERRY_OK) {
        s->status = fy_fail(&s->error, status, "%s", error.message);
    } else if (message->failed && s->status == FERRY_OK) {
        fail_here(s, fy_fail_no_memory(&s->error, "a message to other ranks"));
    }
    return status == FERRY_OK;
}

static bool scatter(session *s, fy_reader *mine_out)
{
    ferry_error error;
    ferry_status status = fy_exchange_scatter(s->exchange, &s->box, mine_out, &error);
    if (status != FERRY_OK) {
        s->status = fy_fail(&s->error, status, "%s", error.message);
    }
    return status == FERRY_OK;
}

static void post_status(session *s, message_kind kind)
{
    fy_pack message = {0};
    begin_message(s, kind, &message);
    fy_outbox_post_to_all(&s->box, s->exchange->n_ranks, &message);
    fy_pack_cleanup(&message);
}

/* The first step: what everybody calls with. */

static ferry_status fill_call(const ferry_plan *plan, const ferry_schedule_options *options,
                              const session *s, bool has_place, call *call_out, ferry_error *error)
{
    uint32_t n_ranks = s->exchange->n_ranks;
    ferry_schedule_options own;
    FY_TRY(fy_check_use(plan != NULL && has_place,
                        "ferry_schedule_build_rooted needs a plan and a place for the schedule",
                        error));
    FY_TRY(fy_take_schedule_options(options, &own, error));
    if (ferry_plan_rank_count(plan) != n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "a plan of %u ranks cannot be scheduled by an exchange of %u ranks",
                       ferry_plan_rank_count(plan), n_ranks);
    }
    ferry_plan_digest(plan, call_out->plan, sizeof call_out->plan);
    call_out->options[0] = own.rule;
    call_out->options[1] = own.duplex;
    call_out->options[2] = own.slot_bytes == 0 ? FERRY_SLOT_BYTES : own.slot_bytes;
    call_out->options[3] = own.max_tasks == 0 ? FERRY_MAX_TASKS : own.max_tasks;
    call_out->options[4] = own.no_relays;
    return FERRY_OK;
}

static bool send_call(session *s, const call *own, fy_gathered *all_out)
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
    FY_TRY(read_status(in, KIND_CALL, rank, error));
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
        return fy_message_fail(rank, error);
    }
    memcpy(call_out->plan, text, length);
    call_out->plan[length] = '\0';
    return FERRY_OK;
}

/* On rank 0: all call alike. */
static ferry_status compare_calls(const session *s, const fy_gathered *all, ferry_error *error)
{
    static const char *const names[] = {"rule", "duplex", "slot_bytes", "max_tasks", "no_relays"};
    call first = {{0}, {0}};
    const unsigned char *at = all->at;
    for (uint32_t r = 0; r < s->exchange->n_ranks; r++) {
        call own = {{0}, {0}};
        fy_reader in = {.at = at, .end = at + all->lengths[r]};
        FY_TRY(read_call(s, r, &in, &own, error));
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
        size_t before = s->box.bytes.used;
        begin_message(s, KIND_PART, &s->box.bytes);
        fy_part_pack(whole, r, &s->box.bytes);
        s->box.lengths[r] = s->box.bytes.used - before;
    }
    if (s->box.bytes.failed) {
        s->status = fy_fail_no_memory(&s->error, "the parts of a schedule");
    }
}

static void answer(session *s, const ferry_plan *plan, const ferry_schedule_options *options,
                   const fy_gathered *calls)
{
    ferry_error error;
    ferry_schedule *whole = NULL;
    ferry_status status = compare_calls(s, calls, &error);
    if (status != FERRY_OK) {
        s->status = fy_fail(&s->error, status, "%s", error.message);
        s->is_local = false;
    }
    if (s->status == FERRY_OK && s->box.lengths == NULL) {
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
        in->failed ? fy_message_fail(0, &error) : read_status(in, KIND_PART, 0, &error);
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

static ferry_status count_votes(const session *s, const fy_gathered *all, ferry_error *error)
{
    const unsigned char *at = all->at;
    fy_hash128 first = {0, 0};
    uint32_t other = 0; /* the first rank with another digest than rank 0 */
    for (uint32_t r = 0; r < s->exchange->n_ranks; r++) {
        fy_reader in = {.at = at, .end = at + all->lengths[r]};
        FY_TRY(read_status(&in, KIND_VOTE, r, error));
        fy_hash128 own = {.low = fy_read_number(&in, UINT64_MAX)};
        own.high = fy_read_number(&in, UINT64_MAX);
        if (in.failed || in.at != in.end) {
            return fy_message_fail(r, error);
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
        in->failed ? fy_message_fail(0, &s->error) : read_status(in, KIND_VERDICT, 0, &s->error);
    if (status == FERRY_OK && in->at != in->end) {
        status = fy_message_fail(0, &s->error);
    }
    s->status = status;
}

/* Its outcome replaces the status, but for a rank whose failure got lost on the way. */
static void vote(session *s, fy_hash128 digest)
{
    fy_pack message = {0};
    fy_gathered all;
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
    fy_gathered calls;
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

ferry_status ferry_schedule_build_rooted(const ferry_plan *plan,
                                         const ferry_schedule_options *options,
                                         const ferry_exchange *exchange,
                                         ferry_schedule **schedule_out, ferry_error *error)
{
    ferry_exchange own_exchange;
    FY_TRY(take_exchange(exchange, &own_exchange, error));
    exchange = &own_exchange;
    session s = {.exchange = exchange};
    call own = {{0}, {0}};
    ferry_schedule *part = NULL;
    if (is_root(&s)) {
        s.box.lengths = fy_alloc_zeroed(exchange->n_ranks, sizeof *s.box.lengths);
    }
    fail_here(&s, fill_call(plan, options, &s, schedule_out != NULL, &own, &s.error));
    run_session(&s, plan, options, &own, &part);
    if (s.status == FERRY_OK) {
        *schedule_out = part;
        part = NULL;
    } else {
        fy_forward(error, s.status, &s.error);
    }
    ferry_schedule_destroy(part);
    fy_outbox_cleanup(&s.box);
    return s.status;
}
