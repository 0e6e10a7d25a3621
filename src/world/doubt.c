/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A smaller world is complete on its root first: it gets the last part of the last collective, and
 * tells the others. If it dies while it does so, those that it has told have that world and the
 * rest cannot know. A rank whose part has gone up is in doubt, then: it keeps the world, whose door
 * stays open, and asks. If one that lives has it complete, so has this one; then all of them go on
 * from there, and count the root as lost. If none has, a later world takes its place.
 *
 * That is enough because the root tells nobody before all parts are up. So each rank of the world
 * has it complete or is in doubt, and those who have it find the doors of the others open: they
 * wait for them. And a rank in doubt makes no other world, nor joins one whose root it is not sure
 * of, before each rank of the doubtful one has come there too, has been asked, or is dead.
 *
 * A root that was stopped while it told the others may wake when some have given it up and some
 * have not. What it says then reaches all of them, for those who have given it up wait for those
 * who hear it. It is lost in that world by then, and hears so.
 */
#include "world/process.h"

#include <stdio.h>
#include <string.h>

int64_t fy_doubt_patience_ns(const fy_process *process)
{
    int64_t patience = process->limits.deadline_ns / 5;
    return patience < 50 * 1000 * 1000 ? 50 * 1000 * 1000 : patience;
}

/* Questions and answers. */

/* What this rank says to one of its world, which may be about to be left behind. Under the lock. */
static fy_standing standing_for(const fy_process *process, uint32_t asker)
{
    const fy_shrinking *own = &process->shrinking;
    if (own->is_over) {
        return FY_GONE_ON;
    }
    if (own->is_out) {
        return FY_OUT;
    }
    if (own->successor != NULL) {
        bool comes = asker >= process->n_ranks || fy_doubt_awaits(process, asker) ||
                     atomic_load(&process->lost[asker]) == FY_PASSED_OVER;
        return comes ? FY_SHRINKING : FY_WITHOUT;
    }
    return atomic_load(&own->complete) ? FY_COMPLETE : FY_UNFINISHED;
}

bool fy_doubt_answer(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    unsigned char head[4 + sizeof process->world_id + FY_NEWS_BYTES];
    fy_pack packer = fy_pack_into(head, sizeof head);
    uint32_t epoch = fy_read_u32(reader);
    const unsigned char *world_id = fy_read_bytes(reader, sizeof process->world_id);
    uint32_t asker = fy_read_u32(reader);
    if (reader->failed || epoch != process->epoch ||
        (atomic_load(&process->tree.tabled) &&
         memcmp(world_id, process->world_id, sizeof process->world_id) != 0)) {
        return false;
    }
    fy_pack_u32(&packer, standing_for(process, asker));
    fy_pack_bytes(&packer, process->shrinking.next_id, sizeof process->shrinking.next_id);
    (void)fy_news_pack(&process->failure, &packer);
    fy_control_post(process, conn, FY_WIRE_STANDING, head, packer.used, NULL, 0);
    return true;
}

void fy_doubt_address(const fy_process *process, uint32_t rank, char text[FY_ADDRESSES_BYTES])
{
    const fy_member *member = &process->tree.table[rank];
    snprintf(text, FY_ADDRESSES_BYTES, "%.*s", (int)member->n_address, member->addresses);
}

static fy_standing read_standing(const fy_message *message, fy_heard *answer_out)
{
    fy_reader reader = fy_reader_of(message->payload, message->n_bytes);
    uint32_t said = fy_read_u32(&reader);
    const unsigned char *next_id = fy_read_bytes(&reader, sizeof answer_out->next_id);
    if (reader.failed || message->type != FY_WIRE_STANDING || said > FY_OUT) {
        return FY_GONE;
    }
    memcpy(answer_out->next_id, next_id, sizeof answer_out->next_id);
    if (fy_read_left(&reader) > 0) {
        (void)fy_news_read(&reader, &answer_out->failure);
    }
    return (fy_standing)said;
}

fy_standing fy_doubt_ask(const fy_process *process, uint32_t rank, int64_t patience,
                         bool (*stop)(void *context), void *context, fy_heard *answer_out)
{
    char addresses[FY_ADDRESSES_BYTES];
    unsigned char head[8 + sizeof process->world_id];
    fy_pack packer = fy_pack_into(head, sizeof head);
    fy_link *link;
    fy_message message;
    int64_t until = fy_now_ns() + patience;
    fy_doubt_address(process, rank, addresses);
    ferry_status status =
        fy_link_reopen(addresses, process->key, patience, stop, context, &link, NULL);
    if (status != FERRY_OK) {
        /* Where nobody listens any more, that is known before the time is over. */
        bool unknown = status == FERRY_ERR_NO_MEMORY || status == FERRY_ERR_STOPPED;
        return unknown || fy_now_ns() >= until ? FY_SILENT : FY_GONE;
    }
    fy_pack_u32(&packer, process->epoch);
    fy_pack_bytes(&packer, process->world_id, sizeof process->world_id);
    fy_pack_u32(&packer, process->rank);
    status = fy_link_post(link, FY_WIRE_ASK, head, packer.used, NULL, 0, NULL);
    if (status == FERRY_OK) {
        until = fy_now_ns() + patience;
        do {
            int64_t left = until - fy_now_ns();
            status = fy_link_receive(link, left < FY_INTERRUPT_NS ? left : FY_INTERRUPT_NS,
                                     &message, NULL);
        } while (status == FERRY_ERR_TIMEOUT && fy_now_ns() < until && !stop(context));
    }
    fy_standing standing = FY_GONE;
    if (status == FERRY_OK) {
        standing = read_standing(&message, answer_out);
    } else if (status == FERRY_ERR_TIMEOUT || status == FERRY_ERR_NO_MEMORY) {
        standing = FY_SILENT;
    }
    fy_link_destroy(link);
    return standing;
}

/* Silence. */

void fy_doubt_note_silence(fy_process *old, const fy_process *process)
{
    uint32_t rank;
    ferry_status status = fy_failure_get(&process->failure, &rank, NULL);
    if (status != FERRY_ERR_TIMEOUT) {
        return; /* a connection that ends may be that of one that has given up and begins again */
    }
    if (atomic_load(&process->tree.tabled)) {
        rank = rank < process->n_ranks ? process->tree.table[rank].claim : FERRY_ANY_RANK;
    }
    if (rank < old->n_ranks && old->shrinking.silent_ns[rank] == 0) {
        old->shrinking.silent_ns[rank] = fy_now_ns() - old->limits.deadline_ns;
    }
}

bool fy_doubt_is_silent(const fy_process *old, uint32_t claim)
{
    return claim != old->rank && old->shrinking.silent_ns[claim] != 0;
}

/*
 * The first question is short, so that the dead delay nobody for long. The next one is open for as
 * long as the rank may still be silent, for a busy machine answers one long question sooner than
 * many short ones.
 */
static int64_t patience_left_ns(const fy_process *old, uint32_t claim)
{
    int64_t least = fy_doubt_patience_ns(old);
    int64_t left = old->shrinking.silent_ns[claim] + old->limits.deadline_ns / 10 * 8 - fy_now_ns();
    return old->shrinking.silent_ns[claim] == 0 || left < least ? least : left;
}

static bool is_silent_for_too_long(fy_process *old, uint32_t claim)
{
    pthread_mutex_lock(&old->lock);
    bool counts = fy_control_silence_counts(old, claim, old->shrinking.silent_ns[claim]);
    pthread_mutex_unlock(&old->lock);
    return counts;
}

/* The doubtful world. */

static uint32_t rank_in_doubt(const fy_process *old, uint32_t claim)
{
    return old->shrinking.doubt == NULL ? FERRY_ANY_RANK
                                        : fy_process_rank_of(old->shrinking.doubt, claim);
}

bool fy_doubt_concerns(const fy_process *old, uint32_t claim)
{
    uint32_t rank = rank_in_doubt(old, claim);
    return rank != FERRY_ANY_RANK && atomic_load(&old->shrinking.doubt->lost[rank]) == 0;
}

bool fy_doubt_awaits(const fy_process *old, uint32_t claim)
{
    if (old->shrinking.doubt == NULL) {
        return atomic_load(&old->lost[claim]) == 0;
    }
    return rank_in_doubt(old, claim) != FERRY_ANY_RANK &&
           (atomic_load(&old->lost[claim]) == 0 || fy_doubt_concerns(old, claim));
}

/*
 * Of the doubtful world: whoever has it complete may be in it, or in a world that was made of it.
 * That a rank has gone on from the old world says nothing by itself: it may have done so to the
 * doubtful world, which is this rank's as well, or to one without this rank.
 */
static bool has_it_complete(const fy_process *doubt, fy_standing there, fy_standing at_old,
                            const fy_heard *answer)
{
    bool is_it = memcmp(answer->next_id, doubt->world_id, sizeof doubt->world_id) == 0;
    return (there != FY_GONE && there != FY_UNFINISHED && there != FY_SILENT) ||
           (at_old == FY_GONE_ON && is_it);
}

/* One that does not have the doubtful world complete may still make another one of the old. */
static fy_standing ask_both(fy_process *old, uint32_t claim)
{
    fy_heard answer = {0};
    int64_t patience = patience_left_ns(old, claim);
    fy_interrupt *interrupt = old->world->settings.interrupt;
    fy_process *doubt = old->shrinking.doubt;
    fy_standing there = FY_GONE, standing = FY_GONE;
    if (fy_doubt_concerns(old, claim)) {
        there = standing = fy_doubt_ask(doubt, rank_in_doubt(old, claim), patience, fy_interrupted,
                                        interrupt, &answer);
    }
    if (there == FY_GONE || there == FY_UNFINISHED) {
        answer = (fy_heard){0};
        standing = fy_doubt_ask(old, claim, patience, fy_interrupted, interrupt, &answer);
    }
    if (doubt != NULL && has_it_complete(doubt, there, standing, &answer)) {
        atomic_store(&doubt->shrinking.complete, true);
    }
    return standing == FY_OUT ? FY_GONE : standing;
}

fy_standing fy_doubt_consult(fy_process *old, uint32_t claim)
{
    int64_t begin = fy_now_ns();
    fy_standing standing = ask_both(old, claim);
    if (standing != FY_SILENT) {
        old->shrinking.silent_ns[claim] = 0;
        return standing;
    }
    if (old->shrinking.silent_ns[claim] == 0) {
        old->shrinking.silent_ns[claim] = begin;
    }
    return is_silent_for_too_long(old, claim) ? FY_GONE : FY_SILENT;
}

fy_standing fy_doubt_hear_out(fy_process *old, uint32_t claim)
{
    fy_standing standing = FY_SILENT;
    while (standing == FY_SILENT && !fy_doubt_is_settled(old) && !fy_doubt_is_interrupted(old)) {
        standing = fy_doubt_consult(old, claim);
        /* A machine is lost with all its ranks: those after it are asked in the same time. */
        fy_standing next = standing;
        for (uint32_t c = claim + 1; c < old->rank && next == FY_SILENT; c++) {
            next = fy_doubt_awaits(old, c) ? fy_doubt_consult(old, c) : next;
        }
    }
    return standing;
}

bool fy_doubt_is_interrupted(const fy_process *old)
{
    return fy_interrupted(old->world->settings.interrupt);
}

bool fy_doubt_is_settled(const fy_process *old)
{
    return old->shrinking.doubt != NULL && atomic_load(&old->shrinking.doubt->shrinking.complete);
}

void fy_doubt_mark_lost(fy_process *old, uint32_t claim)
{
    fy_process_mark_lost(old, claim);
    if (old->shrinking.doubt != NULL) {
        fy_process_mark_lost(old->shrinking.doubt, rank_in_doubt(old, claim));
    }
}

void fy_doubt_keep(fy_process *old, fy_process *process, ferry_status status,
                   const ferry_error *reason)
{
    fy_process_fail_making(process, status, reason->message);
    pthread_mutex_lock(&process->lock);
    bool sent = process->gathering.sent; /* and where it has not, it will not: it has failed */
    pthread_mutex_unlock(&process->lock);
    if (!sent) {
        fy_process_abandon(process, status, reason);
        return;
    }
    /* Its table was not written before the doubt about the older one had an end. */
    fy_doubt_drop(old);
    old->shrinking.doubt = process;
}

void fy_doubt_drop(fy_process *old)
{
    ferry_error reason = {"the others have made another world"};
    if (old->shrinking.doubt != NULL) {
        fy_process_abandon(old->shrinking.doubt, FERRY_ERR_ABORTED, &reason);
        old->shrinking.doubt = NULL;
    }
}
