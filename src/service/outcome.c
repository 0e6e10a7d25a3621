/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The common outcome of a run, by letters of the control plane: they arrive though the data plane
 * fails, and taking them never waits, so that a rank goes on serving its peers meanwhile.
 */
#include "service/exec.h"

#include "transport/host.h"
#include "transport/word.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct vote_head {
    uint32_t n_reasons;
    uint32_t unused;
} vote_head;

typedef struct message {
    vote_head head;
    fy_reason reasons[FY_MOST_REASONS];
} message;

static uint32_t parent_of(uint32_t rank)
{
    return (rank - 1) / FY_VOTE_ARITY;
}

static uint32_t children_of(const ferry_world *world)
{
    uint64_t first = (uint64_t)world->rank * FY_VOTE_ARITY + 1;
    if (first >= world->n_ranks) {
        return 0;
    }
    uint64_t left = world->n_ranks - first;
    return left < FY_VOTE_ARITY ? (uint32_t)left : (uint32_t)FY_VOTE_ARITY;
}

/* Equal reasons are counted; of too many kinds those of few ranks are left out. */
static void add_reason(fy_outcome *outcome, const fy_reason *reason)
{
    for (uint32_t i = 0; i < outcome->n_reasons; i++) {
        fy_reason *known = &outcome->reasons[i];
        if (known->status == reason->status && known->culprit == reason->culprit) {
            if (reason->rank < known->rank) {
                known->rank = reason->rank;
                memcpy(known->text, reason->text, sizeof known->text);
            }
            known->count += reason->count;
            return;
        }
    }
    if (outcome->n_reasons < FY_MOST_REASONS) {
        outcome->reasons[outcome->n_reasons++] = *reason;
        return;
    }
    fy_reason *least = &outcome->reasons[0];
    for (uint32_t i = 1; i < outcome->n_reasons; i++) {
        least = outcome->reasons[i].count < least->count ? &outcome->reasons[i] : least;
    }
    if (reason->count > least->count) {
        *least = *reason;
    }
}

uint32_t fy_outcome_neighbours(const ferry_world *world, uint32_t ranks[FY_MOST_WATCHED])
{
    uint32_t n = 0;
    if (world->rank > 0) {
        ranks[n++] = parent_of(world->rank);
    }
    for (uint32_t i = 0; i < children_of(world); i++) {
        ranks[n++] = world->rank * FY_VOTE_ARITY + 1 + i;
    }
    return n;
}

/* Those next to this rank in the tree of votes: what it tells them, and they theirs, all hear. */
static void tell_neighbours(ferry_service *service)
{
    uint32_t ranks[FY_MOST_WATCHED];
    uint32_t n = fy_outcome_neighbours(service->world, ranks);
    for (uint32_t i = 0; i < n; i++) {
        fy_watch_tell(service, ranks[i]);
    }
}

void fy_outcome_give_up(ferry_service *service)
{
    if (!service->exec->told_halt) {
        service->is_dirty = true; /* something may be on its way */
        fy_watch_halt(service);
        tell_neighbours(service); /* also those that exchange nothing with it */
    }
}

void fy_outcome_begin(ferry_service *service)
{
    fy_exec *exec = service->exec;
    if (exec->halted) {
        fy_watch_testify(service);
    }
    if (exec->status != FERRY_OK) {
        fy_reason own = {.status = (uint32_t)exec->status,
                         .culprit = exec->culprit,
                         .count = 1,
                         .rank = service->world->rank};
        memcpy(own.text, exec->why.message, sizeof own.text);
        add_reason(&exec->outcome, &own);
    }
    exec->outcome.voted_ns = fy_now_ns();
    exec->outcome.phase = FY_PHASE_VOTING;
}

/* A rank that is silent is named by those that wait for it: the most named one is to blame. */
static const fy_reason *choose(const fy_outcome *outcome)
{
    const fy_reason *best = NULL;
    for (uint32_t i = 0; i < outcome->n_reasons; i++) {
        const fy_reason *reason = &outcome->reasons[i];
        bool silence = reason->status == FERRY_ERR_TIMEOUT;
        bool best_silence = best != NULL && best->status == FERRY_ERR_TIMEOUT;
        if (best == NULL || (best_silence && !silence) ||
            (best_silence == silence &&
             (reason->count > best->count ||
              (reason->count == best->count && reason->rank < best->rank)))) {
            best = reason;
        }
    }
    return best;
}

static void finish(ferry_service *service, ferry_status status, const char *sentence)
{
    fy_exec *exec = service->exec;
    fy_outcome *outcome = &exec->outcome;
    outcome->status = status;
    outcome->phase = FY_PHASE_OVER;
    if (status != FERRY_OK) {
        snprintf(outcome->error.message, sizeof outcome->error.message, "%s", sentence);
    }
    fy_targets_end(service, status == FERRY_OK);
    fy_statistics_end(service);
    fy_work_over(service->world, &service->work);
}

bool fy_outcome_of_world(ferry_service *service)
{
    ferry_error why = {.message = ""};
    ferry_status status = fy_failure_get(service->world->failure, NULL, &why);
    fy_transport_withdraw(service->transport);
    service->is_dirty = true;
    finish(service, status, why.message);
    return true;
}

/* A letter of this run, if one is there: its tag says so. */
static bool take(ferry_service *service, uint32_t from, fy_letter_use use, message *letter_out,
                 size_t *n_bytes_out, uint32_t *from_out)
{
    ferry_world *world = service->world;
    if (!world->ops->take(world, from, fy_run_tag(service, use), letter_out, sizeof *letter_out,
                          n_bytes_out, from_out)) {
        return false;
    }
    const vote_head *head = &letter_out->head;
    bool fits = *n_bytes_out >= sizeof *head && head->n_reasons <= FY_MOST_REASONS &&
                *n_bytes_out == sizeof *head + head->n_reasons * sizeof(fy_reason);
    for (uint32_t i = 0; fits && i < head->n_reasons; i++) {
        fy_reason *reason = &letter_out->reasons[i];
        reason->text[sizeof reason->text - 1] = '\0';
        fits = reason->status != FERRY_OK && reason->status <= FY_LAST_STATUS &&
               reason->text[0] != '\0';
    }
    if (!fits) {
        fy_world_fail(world, FERRY_ERR_EXCHANGE, *from_out,
                      "rank %u sent a vote of %zu bytes that makes no sense", *from_out,
                      *n_bytes_out);
    }
    return fits;
}

static bool is_child(const ferry_world *world, uint32_t rank)
{
    return rank > 0 && rank != world->rank && parent_of(rank) == world->rank;
}

static bool take_vote(ferry_service *service)
{
    message letter;
    size_t n_bytes;
    uint32_t from;
    if (!take(service, FERRY_ANY_RANK, FY_LETTER_VOTE, &letter, &n_bytes, &from)) {
        return false;
    }
    if (is_child(service->world, from) && !fy_watch_has_voted(service, from)) {
        for (uint32_t i = 0; i < letter.head.n_reasons; i++) {
            add_reason(&service->exec->outcome, &letter.reasons[i]);
        }
        fy_watch_voted(service, from);
        service->exec->outcome.n_children++;
    }
    return true;
}

static size_t compose(const fy_reason *reasons, uint32_t n, message *out)
{
    out->head = (vote_head){.n_reasons = n};
    for (uint32_t i = 0; i < n; i++) {
        out->reasons[i] = reasons[i];
    }
    return sizeof out->head + n * sizeof out->reasons[0];
}

/* A letter that cannot be sent is a world that has failed. */
static void tell_children(ferry_service *service, const message *letter, size_t n_bytes)
{
    uint32_t n = children_of(service->world);
    for (uint32_t i = 0; i < n; i++) {
        fy_run_letter(service, service->world->rank * FY_VOTE_ARITY + 1 + i, FY_LETTER_VERDICT,
                      letter, n_bytes);
    }
}

static void conclude(ferry_service *service, const fy_reason *reason)
{
    if (reason == NULL) {
        finish(service, FERRY_OK, "");
        return;
    }
    char sentence[FERRY_ERROR_BYTES];
    snprintf(sentence, sizeof sentence, "%.*s", (int)sizeof sentence - 1, reason->text);
    finish(service, (ferry_status)reason->status, sentence);
}

static void give_verdict(ferry_service *service)
{
    message letter;
    const fy_reason *reason = choose(&service->exec->outcome);
    size_t n = compose(reason, reason == NULL ? 0 : 1, &letter);
    tell_children(service, &letter, n);
    conclude(service, reason == NULL ? NULL : &letter.reasons[0]);
}

static bool take_verdict(ferry_service *service)
{
    message letter;
    size_t n_bytes;
    uint32_t from;
    if (!take(service, parent_of(service->world->rank), FY_LETTER_VERDICT, &letter, &n_bytes,
              &from)) {
        return false;
    }
    tell_children(service, &letter, n_bytes);
    conclude(service, letter.head.n_reasons == 0 ? NULL : &letter.reasons[0]);
    return true;
}

bool fy_outcome_step(ferry_service *service)
{
    fy_outcome *outcome = &service->exec->outcome;
    if (outcome->n_children < children_of(service->world) && take_vote(service)) {
        return true;
    }
    if (outcome->n_children < children_of(service->world)) {
        return false;
    }
    if (service->world->rank == 0) {
        give_verdict(service);
        return true;
    }
    if (!outcome->sent) {
        message letter;
        size_t n = compose(outcome->reasons, outcome->n_reasons, &letter);
        fy_run_letter(service, parent_of(service->world->rank), FY_LETTER_VOTE, &letter, n);
        outcome->sent = true;
        return true;
    }
    return take_verdict(service);
}
