/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A smaller world of those that still live. The lowest rank that is not known to be lost is the new
 * root; the others knock at the door of its old world, which hands them over. Claims are ranks of
 * the old world.
 */
#include "base/alloc.h"
#include "world/process.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Those who come when the smaller world is complete, or to a rank that makes none. */
static void send_away(fy_process *old)
{
    bool is_over = old->shrinking.is_over;
    unsigned char head[128];
    char why[64] = "the others have gone on without this rank";
    fy_pack packer = fy_pack_into(head, sizeof head);
    if (!is_over) {
        snprintf(why, sizeof why, "rank %u was itself counted as lost", old->rank);
    }
    fy_pack_u32(&packer, is_over ? FERRY_ERR_ABORTED : FERRY_ERR_PEER_LOST);
    fy_pack_u32(&packer, old->rank);
    fy_pack_text(&packer, why);
    for (fy_conn *conn = old->control.conns; conn != NULL; conn = conn->next) {
        if (!conn->dead && conn->kind == FY_CONN_LINK && conn->role == FY_ROLE_PARKED) {
            fy_control_post(old, conn, FY_WIRE_FAIL, head, packer.used, NULL, 0);
        }
    }
}

/* Links of the old world's door, to the new one's control thread. Under the old lock. */
void fy_shrink_hand_over(fy_process *old)
{
    fy_process *successor = old->shrinking.successor;
    if (successor == NULL) {
        if (old->shrinking.is_over || old->shrinking.is_out) {
            send_away(old);
        }
        return;
    }
    for (fy_conn *conn = old->control.conns; conn != NULL; conn = conn->next) {
        if (conn->dead || conn->kind != FY_CONN_LINK || conn->role != FY_ROLE_PARKED) {
            continue;
        }
        fy_link *link = fy_control_release(old, conn);
        pthread_mutex_lock(&successor->lock);
        fy_conn *moved = fy_control_add_link(successor, link, FY_ROLE_NEW, FERRY_ANY_RANK, NULL);
        if (moved != NULL) {
            unsigned char knock[8];
            fy_pack packer = fy_pack_into(knock, sizeof knock);
            fy_pack_u32(&packer, successor->epoch);
            fy_pack_u32(&packer, conn->claim);
            fy_reader reader = fy_reader_of(knock, packer.used);
            fy_join_knock(successor, moved, &reader);
        }
        pthread_mutex_unlock(&successor->lock);
        fy_control_poke(successor);
    }
}

static void derive_key(const fy_process *old, unsigned char key[FY_KEY_BYTES])
{
    unsigned char number[4] = {
        (unsigned char)(old->epoch + 1), (unsigned char)((old->epoch + 1) >> 8),
        (unsigned char)((old->epoch + 1) >> 16), (unsigned char)((old->epoch + 1) >> 24)};
    crypto_generichash(key, FY_KEY_BYTES, number, sizeof number, old->key, FY_KEY_BYTES);
}

/* The new world as far as it needs nobody else; its control thread runs. */
static ferry_status begin(fy_process *old, uint32_t root, fy_process **process_out,
                          ferry_error *error)
{
    fy_settings settings;
    fy_meeting meeting = FY_MEETING_INIT;
    fy_process *process = NULL;
    meeting.rank = old->rank;
    meeting.n_ranks = old->n_ranks;
    derive_key(old, meeting.key);
    ferry_status status = fy_settings_copy(&old->world->settings, &settings, error);
    if (status == FERRY_OK) {
        status = fy_process_new(&meeting, &settings, old->epoch + 1, &process, error);
        fy_settings_cleanup(&settings);
    }
    if (status != FERRY_OK) {
        goto out;
    }
    process->shrinking.predecessor = old;
    process->root_claim = root;
    process->fake_node = old->fake_node;
    const char *host = process->world->settings.host;
    status = fy_listen(NULL, 0, &process->door.fd, &process->door.port, error);
    if (status == FERRY_OK && (root == old->rank || host != NULL)) {
        status = fy_own_addresses(host, process->door.port, process->door.addresses, error);
    }
    if (status == FERRY_OK && root == old->rank) {
        randombytes_buf(process->world_id, sizeof process->world_id);
        status = fy_register_open(process, error);
    }
    FY_THEN(status, fy_control_start(process, error));
out:
    fy_meeting_cleanup(&meeting);
    if (status != FERRY_OK && process != NULL) {
        ferry_world *world = process->world;
        fy_process_free(process);
        fy_world_free(world);
        return status;
    }
    *process_out = process;
    return status;
}

static void set_successor(fy_process *old, fy_process *successor)
{
    pthread_mutex_lock(&old->lock);
    old->shrinking.successor = successor;
    old->shrinking.is_over = false;
    fy_shrink_hand_over(old);
    pthread_mutex_unlock(&old->lock);
}

void fy_shrink_go_on(fy_process *old, const fy_process *next)
{
    pthread_mutex_lock(&old->lock);
    old->shrinking.successor = NULL;
    old->shrinking.is_over = true;
    memcpy(old->shrinking.next_id, next->world_id, sizeof next->world_id);
    fy_shrink_hand_over(old);
    pthread_mutex_unlock(&old->lock);
}

/*
 * The others have counted this rank as lost, or are about to go on without it. There would be two
 * worlds if it made one as well, so whoever waits for it here is told to look elsewhere.
 */
static ferry_status step_out(fy_process *old, ferry_error *error)
{
    pthread_mutex_lock(&old->lock);
    old->shrinking.is_out = true;
    fy_shrink_hand_over(old);
    pthread_mutex_unlock(&old->lock);
    return fy_fail(error, FERRY_ERR_PEER_LOST,
                   "rank %u was itself counted as lost: the others go on without it", old->rank);
}

static uint32_t next_missing(fy_process *process, uint32_t from)
{
    pthread_mutex_lock(&process->lock);
    uint32_t missing = fy_register_missing(process, from);
    pthread_mutex_unlock(&process->lock);
    return missing;
}

/*
 * One that has not come: it is lost if nobody is behind its doors. This attempt ends if it has made
 * a smaller world with others, in which this rank is too (in doubt until now) or is not.
 */
static ferry_status look_for(fy_process *old, uint32_t claim, ferry_error *error)
{
    fy_standing standing = fy_doubt_consult(old, claim);
    if (fy_doubt_is_settled(old)) {
        return fy_fail(error, FERRY_ERR_PEER_LOST, "rank %u has an earlier smaller world complete",
                       claim);
    }
    if (standing == FY_GONE_ON) {
        return fy_fail(error, FERRY_ERR_ABORTED, "rank %u has gone on without rank %u", claim,
                       old->rank);
    }
    if (standing == FY_WITHOUT) {
        return step_out(old, error);
    }
    if (standing == FY_GONE) {
        fy_doubt_mark_lost(old, claim);
    }
    return FERRY_OK;
}

/*
 * A root that was passed over, for it did not come in time, and now makes a smaller world after
 * all: all meet there again, or there would be two. FERRY_ANY_RANK: none.
 */
static uint32_t has_come_after_all(fy_process *old)
{
    for (uint32_t claim = 0; claim < old->rank; claim++) {
        if (atomic_load(&old->lost[claim]) == FY_PASSED_OVER &&
            fy_doubt_consult(old, claim) == FY_SHRINKING) {
            atomic_store(&old->lost[claim], FY_NOT_LOST);
            return claim;
        }
    }
    return FERRY_ANY_RANK;
}

/*
 * At the root: who has not come may be slow or dead. Questions at every door find the dead, so that
 * nobody waits a join limit for them.
 */
static ferry_status find_dead(fy_process *old, fy_process *process, ferry_error *error)
{
    /* All are asked before the join limit ends the waiting for them. */
    int64_t pause_ns = fy_doubt_patience_ns(old) / 2;
    pause_ns = pause_ns < old->limits.join_ns / 4 ? pause_ns : old->limits.join_ns / 4;
    for (;;) {
        ferry_status status =
            fy_world_wait(process->world, fy_process_is_tabled, NULL, process, pause_ns, error);
        if (!fy_world_is_late(process->world, &status, error)) {
            return status;
        }
        uint32_t rank = has_come_after_all(old);
        if (rank != FERRY_ANY_RANK) {
            atomic_store(&old->lost[rank], FY_PASSED_OVER); /* find_world finds it again */
            return fy_fail(error, FERRY_ERR_PEER_LOST, "rank %u has come after all", rank);
        }
        rank = next_missing(process, 0);
        for (; rank != FERRY_ANY_RANK; rank = next_missing(process, rank + 1)) {
            FY_TRY(look_for(old, rank, error));
        }
    }
}

static ferry_status attempt(fy_process *old, uint32_t root, bool *tabled_out,
                            fy_process **process_out, ferry_error *error)
{
    ferry_error text;
    fy_process *process = NULL;
    FY_TRY(begin(old, root, &process, error));
    ferry_status status = FERRY_OK;
    if (root == old->rank) {
        set_successor(old, process);
        status = fy_join_root(process, &text);
        FY_THEN(status, find_dead(old, process, &text));
    } else {
        char addresses[FY_ADDRESSES_BYTES];
        fy_doubt_address(old, root, addresses);
        status = fy_join_member(process, addresses, old->key, fy_doubt_patience_ns(old), &text);
    }
    FY_THEN(status, fy_process_complete(process, old->world->members, &text));
    if (status == FERRY_OK) {
        fy_shrink_go_on(old, process);
    } else {
        set_successor(old, NULL);
    }
    pthread_mutex_lock(&process->lock);
    process->shrinking.predecessor = NULL;
    pthread_mutex_unlock(&process->lock);
    *tabled_out = fy_process_is_tabled(process);
    if (status != FERRY_OK) {
        fy_doubt_note_silence(old, process);
        fy_doubt_keep(old, process, status, &text);
        return fy_forward(error, status, &text);
    }
    *process_out = process;
    return FERRY_OK;
}

static ferry_status check_size(fy_process *process, uint32_t min_ranks, ferry_error *error)
{
    if (process->n_ranks >= min_ranks) {
        return FERRY_OK;
    }
    uint32_t n_ranks = process->n_ranks;
    ferry_world_destroy(process->world);
    return fy_fail(error, FERRY_ERR_PEER_LOST,
                   "only %u ranks came to the smaller world; at least %u are required", n_ranks,
                   min_ranks);
}

/* The doubtful world is complete elsewhere, and so it is here. */
static fy_process *adopt(fy_process *old)
{
    fy_process *process = old->shrinking.doubt;
    old->shrinking.doubt = NULL;
    /* Those who are parked here are in doubt too, and will ask. */
    fy_shrink_go_on(old, process);
    return process;
}

/* How long there may still be attempts. */
typedef struct hope {
    int64_t until_ns;
    uint32_t n_lost;   /* in the old world */
    uint32_t n_tables; /* attempts since then for which all had come */
} hope;

/*
 * Attempts end when for a join limit nobody was found to be lost. One that had its table failed
 * because of somebody, who will be found; but not again and again.
 */
static bool is_left(hope *own, const fy_process *old, bool tabled)
{
    enum { MOST_TABLES = 3 };
    uint32_t n_lost = 0;
    int64_t now = fy_now_ns();
    for (uint32_t r = 0; r < old->n_ranks; r++) {
        n_lost += atomic_load(&old->lost[r]) != 0;
    }
    if (n_lost > own->n_lost) {
        *own = (hope){.until_ns = now + old->limits.join_ns, .n_lost = n_lost};
    } else if (tabled && own->n_tables < MOST_TABLES) {
        own->n_tables++;
        own->until_ns = now + old->limits.join_ns;
    }
    return now < own->until_ns;
}

/*
 * A root that does not come is ruled out. Where it still answers somebody else was lost meanwhile,
 * and all meet there again: another root would make a second world. In doubt a root may have said
 * that others have gone on, and died before it said where. One that answers, and for a whole limit
 * has made no smaller world, does not come. Where a stranger answers, with another secret or in
 * another language, the root's port was free: it is dead.
 */
static bool rule_out(fy_process *old, uint32_t root, ferry_status status, fy_standing standing,
                     int64_t began_ns)
{
    bool is_there = standing == FY_UNFINISHED || standing == FY_COMPLETE;
    bool is_stranger = status == FERRY_ERR_DENIED || status == FERRY_ERR_INVALID_INPUT;
    bool is_gone = standing == FY_GONE && (fy_status_is_loss(status) || status == FERRY_ERR_IO ||
                                           is_stranger || old->shrinking.doubt != NULL);
    bool is_late = is_there && status == FERRY_ERR_TIMEOUT && old->shrinking.doubt == NULL &&
                   fy_now_ns() - began_ns >= old->limits.join_ns;
    if (is_gone) {
        fy_doubt_mark_lost(old, root);
    } else if (is_late) {
        atomic_store(&old->lost[root], FY_PASSED_OVER);
    }
    return is_gone || is_late;
}

/*
 * Goes from root to root until an attempt succeeds, or ends the doubt about an earlier one. That
 * one has failed by then: the next smaller world is made from it.
 */
static ferry_status find_world(fy_process *old, fy_process **process_out, ferry_error *error)
{
    ferry_error text;
    ferry_status status = FERRY_ERR_PEER_LOST;
    hope own = {.until_ns = fy_now_ns() + old->limits.join_ns};
    for (uint32_t root = 0; root <= old->rank;) {
        uint32_t late = has_come_after_all(old);
        if (late != FERRY_ANY_RANK) {
            root = late;
            own = (hope){.until_ns = fy_now_ns() + old->limits.join_ns, .n_lost = own.n_lost};
        }
        if (root != old->rank && !fy_doubt_awaits(old, root)) {
            root++;
            continue;
        }
        bool tabled = false;
        int64_t began_ns = fy_now_ns();
        status = fy_doubt_is_silent(old, root)
                     ? fy_fail(&text, FERRY_ERR_TIMEOUT, "rank %u does not answer", root)
                     : attempt(old, root, &tabled, process_out, &text);
        if (status == FERRY_OK) {
            return status;
        }
        bool ask = root != old->rank && status != FERRY_ERR_STOPPED;
        fy_standing standing = ask ? fy_doubt_hear_out(old, root) : FY_GONE;
        if (fy_doubt_is_settled(old)) {
            *process_out = adopt(old);
            return FERRY_OK;
        }
        if (status == FERRY_ERR_STOPPED || fy_doubt_is_interrupted(old)) {
            return fy_interrupt_fail(error);
        }
        if (old->shrinking.is_out || standing == FY_WITHOUT) {
            return step_out(old, error);
        }
        bool is_out = root != old->rank && rule_out(old, root, status, standing, began_ns);
        if ((!is_out && !fy_status_is_loss(status)) || (!is_left(&own, old, tabled) && !is_out)) {
            break;
        }
    }
    return fy_fail(error, status, "no smaller world could be made: %s", text.message);
}

/*
 * A world that has grown is shrunk when the larger one is of no use any more. Each rank finds that
 * out at its own time, and says until then that it has gone on: it is waited for. A rank in doubt
 * about the larger world does not come here, for to it that is an answer.
 */
static void return_from_larger(fy_process *old)
{
    enum { PAUSE_NS = 10 * 1000 * 1000 };
    int64_t until_ns = fy_now_ns() + old->limits.join_ns;
    pthread_mutex_lock(&old->lock);
    old->shrinking.is_over = false;
    pthread_mutex_unlock(&old->lock);
    for (uint32_t r = 0; r < old->n_ranks; r++) {
        bool asks = r != old->rank && atomic_load(&old->lost[r]) == 0;
        while (asks && fy_doubt_consult(old, r) == FY_GONE_ON && fy_now_ns() < until_ns &&
               !fy_doubt_is_interrupted(old)) {
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        }
    }
}

ferry_status fy_shrink_world(ferry_world *world, uint32_t min_ranks, ferry_world **world_out,
                             ferry_error *error)
{
    fy_process *old = world->impl;
    fy_process *process = NULL;
    if (old->shrinking.is_out || atomic_load(&old->lost[old->rank]) != FY_NOT_LOST) {
        return step_out(old, error);
    }
    fy_interrupt_begin(world->settings.interrupt);
    if (world->has_grown) {
        return_from_larger(old);
    }
    ferry_status status = find_world(old, &process, error);
    fy_doubt_drop(old);
    FY_THEN(status, check_size(process, min_ranks, error));
    if (status == FERRY_OK) {
        world->has_grown = false;
        process->world->is_being_made = false;
        *world_out = process->world;
    }
    return status;
}
