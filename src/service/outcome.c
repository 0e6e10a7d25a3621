/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The common outcome of a run, by letters of the control plane: they arrive though the data plane
 * fails, and taking them never waits, so that a rank goes on serving its peers meanwhile.
 */
#include "service/moves.h"

#include "transport/host.h"
#include "transport/word.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

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
static void add_reason(fy_reasons *reasons, const fy_reason *reason)
{
    for (uint32_t i = 0; i < reasons->n; i++) {
        fy_reason *known = &reasons->items[i];
        if (known->status == reason->status && known->culprit == reason->culprit) {
            if (reason->rank < known->rank) {
                known->rank = reason->rank;
                memcpy(known->text, reason->text, sizeof known->text);
            }
            known->count += reason->count;
            return;
        }
    }
    if (reasons->n < FY_MOST_REASONS) {
        reasons->items[reasons->n++] = *reason;
        return;
    }
    fy_reason *least = &reasons->items[0];
    for (uint32_t i = 1; i < reasons->n; i++) {
        least = reasons->items[i].count < least->count ? &reasons->items[i] : least;
    }
    if (reason->count > least->count) {
        *least = *reason;
    }
}

void fy_reasons_pack(const fy_reasons *reasons, fy_pack *out)
{
    fy_pack_number(out, reasons->n);
    for (uint32_t i = 0; i < reasons->n; i++) {
        const fy_reason *reason = &reasons->items[i];
        fy_pack_number(out, reason->status);
        fy_pack_u32(out, reason->culprit);
        fy_pack_number(out, reason->count);
        fy_pack_number(out, reason->rank);
        fy_pack_text(out, reason->text);
    }
}

bool fy_reasons_read(const void *bytes, size_t n_bytes, uint32_t n_ranks, fy_reasons *reasons_out)
{
    fy_reader in = fy_reader_of(bytes, n_bytes);
    reasons_out->n = (uint32_t)fy_read_number(&in, FY_MOST_REASONS);
    for (uint32_t i = 0; i < reasons_out->n; i++) {
        fy_reason *reason = &reasons_out->items[i];
        reason->status = (uint32_t)fy_read_number(&in, FY_LAST_STATUS);
        reason->culprit = fy_read_u32(&in);
        reason->count = (uint32_t)fy_read_number(&in, n_ranks);
        reason->rank = (uint32_t)fy_read_number(&in, n_ranks - 1);
        fy_read_string(&in, reason->text, sizeof reason->text);
        in.failed = in.failed || reason->status == FERRY_OK || reason->text[0] == '\0' ||
                    (reason->culprit >= n_ranks && reason->culprit != FERRY_ANY_RANK);
    }
    return fy_read_all(&in);
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
    if (!service->run->told_halt) {
        service->is_dirty = true; /* something may be on its way */
        fy_watch_halt(service);
        tell_neighbours(service); /* also those that exchange nothing with it */
    }
}

void fy_outcome_begin(ferry_service *service)
{
    fy_run_state *run = service->run;
    if (run->halted) {
        fy_watch_testify(service);
    }
    if (run->status != FERRY_OK) {
        fy_reason own = {.status = (uint32_t)run->status,
                         .culprit = run->culprit,
                         .count = 1,
                         .rank = service->world->rank};
        memcpy(own.text, run->why.message, sizeof own.text);
        add_reason(&run->outcome.reasons, &own);
    }
    run->outcome.voted_ns = fy_now_ns();
    run->outcome.phase = FY_PHASE_VOTING;
}

/* A rank that is silent is named by those that wait for it: the most named one is to blame. */
static const fy_reason *choose(const fy_reasons *reasons)
{
    const fy_reason *best = NULL;
    for (uint32_t i = 0; i < reasons->n; i++) {
        const fy_reason *reason = &reasons->items[i];
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
    fy_run_state *run = service->run;
    fy_outcome *outcome = &run->outcome;
    outcome->status = status;
    outcome->phase = FY_PHASE_OVER;
    if (status != FERRY_OK) {
        fy_fail(&outcome->error, status, "%s", sentence);
    }
    fy_targets_end(service, status == FERRY_OK);
    fy_statistics_end(service);
    fy_work_over(service->world, &service->work);
}

/* A letter of this run, if one is there: its tag says so. */
static bool take(ferry_service *service, uint32_t from, fy_letter_use use, fy_reasons *reasons_out,
                 uint32_t *from_out)
{
    ferry_world *world = service->world;
    unsigned char letter[FY_REASONS_BYTES];
    size_t n_bytes;
    if (!world->ops->take(world, from, fy_run_tag(service, use), letter, sizeof letter, &n_bytes,
                          from_out)) {
        return false;
    }
    bool fits = fy_reasons_read(letter, n_bytes, world->n_ranks, reasons_out);
    if (!fits) {
        fy_world_fail(world, FERRY_ERR_EXCHANGE, *from_out,
                      "rank %u sent a vote of %zu bytes that makes no sense", *from_out, n_bytes);
    }
    return fits;
}

/* One that cannot be sent is a world that has failed. */
static void tell(ferry_service *service, uint32_t to, fy_letter_use use, const fy_reasons *reasons)
{
    unsigned char letter[FY_REASONS_BYTES];
    fy_pack out = fy_pack_into(letter, sizeof letter);
    fy_reasons_pack(reasons, &out);
    fy_run_letter(service, to, use, out.bytes, out.used);
}

static bool is_child(const ferry_world *world, uint32_t rank)
{
    return rank > 0 && rank != world->rank && parent_of(rank) == world->rank;
}

static bool take_vote(ferry_service *service)
{
    fy_reasons its;
    uint32_t from;
    if (!take(service, FERRY_ANY_RANK, FY_LETTER_VOTE, &its, &from)) {
        return false;
    }
    if (is_child(service->world, from) && !fy_watch_has_voted(service, from)) {
        for (uint32_t i = 0; i < its.n; i++) {
            add_reason(&service->run->outcome.reasons, &its.items[i]);
        }
        fy_watch_voted(service, from);
        service->run->outcome.n_children++;
    }
    return true;
}

/* To those below this rank, and for itself. */
static void conclude(ferry_service *service, const fy_reasons *verdict)
{
    uint32_t n = children_of(service->world);
    for (uint32_t i = 0; i < n; i++) {
        tell(service, service->world->rank * FY_VOTE_ARITY + 1 + i, FY_LETTER_VERDICT, verdict);
    }
    if (verdict->n == 0) {
        finish(service, FERRY_OK, "");
    } else {
        finish(service, (ferry_status)verdict->items[0].status, verdict->items[0].text);
    }
}

static void give_verdict(ferry_service *service)
{
    fy_reasons verdict = {.n = 0};
    const fy_reason *reason = choose(&service->run->outcome.reasons);
    if (reason != NULL) {
        verdict.items[verdict.n++] = *reason;
    }
    conclude(service, &verdict);
}

static bool take_verdict(ferry_service *service)
{
    fy_reasons verdict;
    uint32_t from;
    if (!take(service, parent_of(service->world->rank), FY_LETTER_VERDICT, &verdict, &from)) {
        return false;
    }
    conclude(service, &verdict);
    return true;
}

/*
 * A verdict that is here holds: who was lost behind it had done its part, and others have returned
 * from this run with it. So one rank that ends as soon as its run is over fails nobody's run, of
 * the root and those that it tells; of others that wait for a rank between, who can pass nothing on
 * any more, it may.
 */
bool fy_outcome_of_world(ferry_service *service)
{
    if (service->run->outcome.sent && take_verdict(service)) {
        return true;
    }
    ferry_error why = {.message = ""};
    ferry_status status = fy_failure_get(service->world->failure, NULL, &why);
    fy_drive_finish(&service->run->drive);
    fy_makings_finish(service);
    fy_transport_withdraw(service->transport);
    service->is_dirty = true;
    finish(service, status, why.message);
    return true;
}

bool fy_outcome_step(ferry_service *service)
{
    fy_outcome *outcome = &service->run->outcome;
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
        tell(service, parent_of(service->world->rank), FY_LETTER_VOTE, &outcome->reasons);
        outcome->sent = true;
        return true;
    }
    return take_verdict(service);
}
