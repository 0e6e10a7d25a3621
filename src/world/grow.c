/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A larger world: the members of one, and newcomers. It is made as at a start, by a root that
 * listens where newcomers look for it; members keep their ranks as claims, and newcomers get the
 * numbers behind from the root.
 *
 * All members have the larger world, or none. They vote on the old one, which stands all the while,
 * when each has met all ranks of the new one. If a member dies just then the old world fails, and
 * a rank that has voted for the new one cannot know whether others have it: it keeps it, and the
 * shrinking of the old world finds out: see doubt.c. A newcomer has the world when members come to
 * a barrier there, which is after the vote.
 */
#include "world/grow.h"

#include "base/alloc.h"
#include "base/config.h"
#include "base/log.h"
#include "world/agree.h"
#include "world/process.h"
#include "world/rendezvous.h"

#include <ferry/group.h>

#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    MOST_RANKS = (FY_LINK_PAYLOAD_BYTES - 64) / 4
}; /* one message tells a newcomer who all are */

/* What both sides do. */

static ferry_status new_process(fy_meeting *meeting, const fy_settings *from, uint32_t epoch,
                                fy_process **process_out, ferry_error *error)
{
    fy_settings settings;
    FY_TRY(fy_settings_copy(from, &settings, error));
    ferry_status status = fy_process_new(meeting, &settings, epoch, process_out, error);
    fy_settings_cleanup(&settings);
    return status;
}

/* Members. */

void fy_grow_pass_on(fy_process *old)
{
    uint32_t rank;
    ferry_error text;
    fy_process *successor = old->growing.successor;
    const fy_failure *failure = fy_failed(&old->failure) ? &old->failure : &old->growing.vain;
    if (successor != NULL && fy_failed(failure)) {
        ferry_status status = fy_failure_get(failure, &rank, &text);
        /* Whom this wakes sleeps on a bell that the table moves: see adopt_table. */
        pthread_mutex_lock(&successor->lock);
        fy_process_fail(successor, status, rank, "%.1000s", text.message);
        pthread_mutex_unlock(&successor->lock);
    }
}

/* Also to the one before: what a rank in doubt keeps has failed as the old world has. Otherwise it
 * would name this rank, which lives. */
static void set_successor(fy_process *old, fy_process *process)
{
    pthread_mutex_lock(&old->lock);
    fy_grow_pass_on(old);
    old->growing.successor = process;
    fy_grow_pass_on(old);
    pthread_mutex_unlock(&old->lock);
}

/*
 * An attempt comes to nothing: all members hear it on the old world, for some may look for a root
 * that has gone, or wait in the new one for a member that will not come. Under the lock.
 */
static void end_attempt(fy_process *old, const fy_failure *why, const fy_conn *except)
{
    unsigned char head[8 + FY_NEWS_BYTES];
    fy_pack packer = fy_pack_into(head, sizeof head);
    if (!fy_failure_set(&old->growing.vain, (ferry_status)why->status, why->rank, "%s",
                        why->sentence)) {
        return;
    }
    fy_grow_pass_on(old);
    fy_pack_u64(&packer, old->growing.attempt);
    fy_news_pack(why, &packer);
    for (fy_conn *conn = old->control.conns; conn != NULL; conn = conn->next) {
        if (conn != except && !conn->dead && conn->kind == FY_CONN_LINK &&
            (conn->role == FY_ROLE_CHILD || conn->role == FY_ROLE_PARENT)) {
            fy_control_post(old, conn, FY_WIRE_VAIN, head, packer.used, NULL, 0);
        }
    }
}

bool fy_grow_in_vain(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    fy_failure why = {0};
    uint64_t attempt = fy_read_u64(reader);
    if (!fy_news_read(reader, &why)) {
        return false;
    }
    if (attempt == process->growing.attempt) {
        end_attempt(process, &why, conn);
    }
    return true;
}

static void begin_attempt(fy_process *old)
{
    pthread_mutex_lock(&old->lock);
    old->growing.attempt++;
    old->growing.vain = (fy_failure){0};
    pthread_mutex_unlock(&old->lock);
}

/* What the rest of this file is about: one attempt of one member. */
typedef struct attempt {
    fy_process *old;
    const fy_growth *growth;
    const char *file; /* on rank 0, which writes it; NULL: they meet elsewhere */
    fy_meeting meeting;
    fy_process *process; /* of the new world, or NULL */
} attempt;

/* Why to look for the root has no sense any more; it may be whom the old world has lost. */
static ferry_status fail_vain(const fy_process *old, ferry_error *error)
{
    ferry_status status = fy_failure_get(&old->failure, NULL, error);
    return status != FERRY_OK ? status : fy_failure_get(&old->growing.vain, NULL, error);
}

static bool is_vain(void *context)
{
    const fy_process *old = context;
    return fail_vain(old, NULL) != FERRY_OK || fy_interrupted(old->world->settings.interrupt);
}

static ferry_status find_root(attempt *own, fy_settings settings, ferry_error *error)
{
    fy_process *old = own->old;
    fy_interrupt search = {.ask = is_vain, .context = old};
    settings.interrupt = &search;
    own->meeting.rank = old->rank;
    own->meeting.n_ranks = own->growth->n_ranks;
    ferry_status status = fy_meet_growing(&own->meeting, own->growth->path, &settings, error);
    return status == FERRY_ERR_STOPPED && fail_vain(old, NULL) != FERRY_OK ? fail_vain(old, error)
                                                                           : status;
}

/* The new world as far as it needs nobody else; its control thread runs. */
static ferry_status begin(attempt *own, ferry_error *error)
{
    fy_process *old = own->old;
    bool root = old->rank == 0;
    fy_settings settings = old->world->settings; /* all that it points to stays the old world's */
    settings.join_ns = own->growth->join_ns;
    FY_TRY(find_root(own, settings, error));
    FY_TRY(new_process(&own->meeting, &settings, old->epoch + 1, &own->process, error));
    fy_process *process = own->process;
    process->fake_node = old->fake_node;
    process->world->n_first = own->growth->n_first;
    FY_TRY(fy_process_open_door(process, &own->meeting, root, error));
    if (root) {
        process->growing.n_members = old->n_ranks;
        process->growing.members = own->growth->members;
        randombytes_buf(process->world_id, sizeof process->world_id);
        FY_TRY(fy_register_open(process, error));
    }
    FY_TRY(fy_control_start(process, error));
    set_successor(old, process);
    return FERRY_OK;
}

static ferry_status meet_all(attempt *own, ferry_error *error)
{
    fy_process *process = own->process;
    FY_TRY(own->old->rank == 0 ? fy_join_root(process, error)
                               : fy_join_member(process, own->meeting.addresses, process->key,
                                                process->limits.join_ns, error));
    FY_TRY(fy_process_meet(process, own->growth->members, error));
    return fy_failure_get(&process->failure, NULL, error);
}

/* To the others a caller who thought better of it is a member that did not come. */
static ferry_status excuse(const attempt *own, ferry_status status, ferry_error *said)
{
    return status != FERRY_ERR_STOPPED
               ? status
               : fy_fail(said, FERRY_ERR_TIMEOUT, "rank %u did not come: its caller stopped it",
                         own->old->rank);
}

/* This member goes no further, and the others shall not wait for it. */
static void announce(const attempt *own, ferry_status status, const ferry_error *reason)
{
    fy_process *old = own->old;
    fy_failure why = {0};
    ferry_error said = *reason;
    uint32_t rank = old->rank;
    ferry_status known =
        own->process == NULL ? FERRY_OK : fy_failure_get(&own->process->failure, &rank, &said);
    if (known != FERRY_OK) {
        status = known;
    } else if (status == FERRY_ERR_STOPPED) {
        status = excuse(own, status, &said);
    } else {
        fy_fail(&said, status, "rank %u did not come: %.900s", rank, reason->message);
    }
    fy_failure_set(&why, status, rank, "%s", said.message);
    pthread_mutex_lock(&old->lock);
    if (!fy_failed(&old->failure)) {
        end_attempt(old, &why, NULL);
    }
    pthread_mutex_unlock(&old->lock);
}

/*
 * This member's vote, and what becomes of all. The entry limit of the old world does not count
 * here: nobody knows how long the callers of others take to hear that it was in vain.
 */
static ferry_status vote(attempt *own, ferry_status status, ferry_error *error)
{
    ferry_error said = *error;
    ferry_world *world = own->old->world;
    bool stopped = status == FERRY_ERR_STOPPED;
    ferry_status given = excuse(own, status, &said);
    own->old->caller.is_patient = true;
    given = fy_agree_on(world, FY_JOINT_GROW, 0, NULL, 0, given, &said);
    own->old->caller.is_patient = false;
    if (stopped && !fy_failed(world->failure)) {
        return status;
    }
    return fy_forward(error, given, &said);
}

/* There is no new world, as far as this member knows. */
static void give_up(attempt *own, bool in_doubt, ferry_status status, const ferry_error *reason)
{
    fy_process *old = own->old;
    if (own->process == NULL) {
        return;
    }
    set_successor(old, NULL);
    if (in_doubt) {
        fy_process_fail_making(own->process, status, reason->message);
        fy_doubt_drop(old);
        old->shrinking.doubt = own->process;
    } else {
        fy_process_abandon(own->process, status, reason);
    }
    own->process = NULL;
}

/*
 * This member has no new world, and says so to nobody yet. What it needed is given back before the
 * file is removed, which takes a descriptor, too.
 */
static void withdraw(attempt *own, ferry_status status, const ferry_error *reason)
{
    give_up(own, false, status, reason);
    fy_meeting_cleanup(&own->meeting);
    fy_meet_file_done(own->file);
}

/*
 * Whoever asks at the old door hears that this member has gone on. Its caller is not asked any more
 * whether the world is to be: it is.
 */
static void commit(attempt *own)
{
    set_successor(own->old, NULL);
    own->process->world->is_being_made = false;
    fy_process_mark_complete(own->process);
    fy_shrink_go_on(own->old, own->process);
}

static ferry_status grow(attempt *own, ferry_error *error)
{
    ferry_world *world = own->old->world;
    begin_attempt(own->old);
    ferry_status status = world->rank == 0 ? begin(own, error) : FERRY_OK;
    if (status != FERRY_OK) {
        withdraw(own, status, error);
    }
    /* The others look for the root when it is there. */
    ferry_status heard = fy_agree_on(world, FY_JOINT_GROW, 0, NULL, 0, status, error);
    if (heard != FERRY_OK) {
        withdraw(own, heard, error);
        return heard;
    }
    if (world->rank != 0) {
        status = begin(own, error);
    }
    FY_THEN(status, meet_all(own, error));
    if (status == FERRY_OK) {
        fy_meet_file_done(own->file);
    } else { /* before the vote, to which the others come when they do not wait for this one */
        announce(own, status, error);
        withdraw(own, status, error);
    }
    bool came = status == FERRY_OK;
    status = vote(own, status, error);
    if (status != FERRY_OK) {
        give_up(own, came && fy_failed(world->failure), status, error);
        return status;
    }
    commit(own);
    return FERRY_OK;
}

ferry_status fy_grow_world(ferry_world *world, const fy_growth *growth, ferry_world **world_out,
                           ferry_error *error)
{
    ferry_error text = {""};
    attempt own = {.old = world->impl, .growth = growth, .meeting = FY_MEETING_INIT};
    if (growth->n_ranks > MOST_RANKS) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "ferry_world_grow: a world grows to %d ranks at most, not to %u",
                       (int)MOST_RANKS, growth->n_ranks);
    }
    if (world->rank == 0) {
        own.file = growth->path != NULL ? growth->path : fy_config_text("FERRY_RENDEZVOUS");
    }
    fy_interrupt_begin(world->settings.interrupt);
    ferry_status status = grow(&own, &text);
    fy_meeting_cleanup(&own.meeting);
    if (status != FERRY_OK) {
        return fy_forward(error, status, &text);
    }
    /* It may have failed already: who has it finds out by its next call, as at any time. */
    (void)ferry_world_barrier(own.process->world, NULL);
    *world_out = own.process->world;
    return FERRY_OK;
}

/* Newcomers. */

typedef struct newcomer {
    const char *path;
    const fy_settings *settings;
    int64_t until_ns;
    int64_t deadline_ns; /* its own, and then that of the world which takes it in */
    fy_meeting meeting;
    fy_link *root;
    uint32_t epoch;
    uint32_t n_first;
    uint32_t *members;
    unsigned char world_id[16];
} newcomer;

/* What the root says: which rank this one is, who all are, and how long one may be silent there. */
static ferry_status read_number(newcomer *own, const fy_message *message, ferry_error *error)
{
    fy_reader reader = fy_reader_of(message->payload, message->n_bytes);
    own->epoch = fy_read_u32(&reader);
    own->meeting.rank = fy_read_u32(&reader);
    own->n_first = fy_read_u32(&reader);
    int64_t deadline_ns = (int64_t)fy_read_u64(&reader);
    uint32_t n_ranks = (uint32_t)(fy_read_left(&reader) / 4);
    if (reader.failed || n_ranks == 0 || own->meeting.rank >= n_ranks || own->epoch == 0 ||
        deadline_ns <= 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the world that grows gave this rank no number that makes sense");
    }
    own->deadline_ns = deadline_ns;
    own->meeting.n_ranks = n_ranks;
    own->members = fy_alloc(n_ranks, sizeof *own->members);
    FY_TRY(fy_check_memory(own->members != NULL, "the ranks of a world", error));
    for (uint32_t r = 0; r < n_ranks; r++) {
        own->members[r] = fy_read_u32(&reader);
        if (own->members[r] >= own->n_first) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "the world that grows says that its rank %u is member %u of %u", r,
                           own->members[r], own->n_first);
        }
    }
    return FERRY_OK;
}

/* Why the world that was to take this rank in will not be: whoever waits for it hears that. */
static ferry_status read_failure(const fy_message *message, ferry_error *error)
{
    fy_failure failure = {0};
    fy_reader reader = fy_reader_of(message->payload, message->n_bytes);
    return fy_news_read(&reader, &failure)
               ? fy_failure_get(&failure, NULL, error)
               : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "the world that grows ended and did not say why");
}

/*
 * The next message of a type. FERRY_ERR_PEER_LOST: this world does not grow, has all that it waits
 * for, or its root gives no sign of life. Nothing has begun with it yet, so this rank may ask
 * elsewhere: the members lose a root that is stopped, too, and grow without it.
 */
static ferry_status hear(newcomer *own, uint32_t type, fy_message *message_out, ferry_error *error)
{
    fy_interrupt *interrupt = own->settings->interrupt;
    for (;;) {
        int64_t left = own->until_ns - fy_now_ns();
        int64_t look = fy_interrupt_slice_ns(interrupt, fy_control_beat_ns(own->deadline_ns));
        (void)fy_link_post(own->root, FY_WIRE_BEAT, NULL, 0, NULL, 0, NULL);
        if (fy_interrupted(interrupt)) {
            return fy_interrupt_fail(error);
        }
        if (left <= 0) {
            return fy_fail(error, FERRY_ERR_PEER_LOST, "it does not answer");
        }
        ferry_status status =
            fy_link_receive(own->root, left < look ? left : look, message_out, error);
        if (status == FERRY_OK && message_out->type == type) {
            return FERRY_OK;
        }
        if (status == FERRY_OK && message_out->type == FY_WIRE_FAIL) {
            return read_failure(message_out, error);
        }
        int64_t silent_ns = fy_now_ns() - fy_link_heard_ns(own->root);
        if (status == FERRY_ERR_TIMEOUT && silent_ns >= own->deadline_ns / 10 * 8) {
            return fy_fail(error, FERRY_ERR_PEER_LOST,
                           "rank 0 has shown no sign of life for %.1f s", (double)silent_ns / 1e9);
        }
        if (status != FERRY_OK && status != FERRY_ERR_TIMEOUT) {
            return status;
        }
    }
}

/* What the root says to one at its door: its number, and when the members come, the world's name.
 */
static ferry_status ask_number(newcomer *own, ferry_error *error)
{
    fy_message message;
    FY_TRY(fy_link_post(own->root, FY_WIRE_ENTER, NULL, 0, NULL, 0, error));
    FY_TRY(hear(own, FY_WIRE_NUMBER, &message, error));
    FY_TRY(read_number(own, &message, error));
    FY_TRY(hear(own, FY_WIRE_WORLD, &message, error));
    if (message.n_bytes != sizeof own->world_id) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "the world that grows has no name");
    }
    memcpy(own->world_id, message.payload, sizeof own->world_id);
    return FERRY_OK;
}

static const int64_t once_ns = 5000LL * 1000 * 1000;

/* Finds a root and asks it. Rank and number of ranks are not known before it has answered. */
static ferry_status ask_once(newcomer *own, ferry_error *error)
{
    own->deadline_ns = own->settings->deadline_ns;
    own->meeting.rank = FERRY_ANY_RANK;
    own->meeting.n_ranks = 0;
    FY_TRY(fy_meet_growing(&own->meeting, own->path, own->settings, error));
    /* Not for long at one place: who was there may have gone, and another may be elsewhere. */
    int64_t left = own->until_ns - fy_now_ns();
    left = left < 1 ? 1 : left < once_ns ? left : once_ns;
    ferry_status status =
        fy_link_reopen(own->meeting.addresses, own->meeting.key, left, fy_interrupted,
                       own->settings->interrupt, &own->root, error);
    if (status == FERRY_ERR_STOPPED) {
        return fy_interrupt_fail(error);
    }
    FY_THEN(status, ask_number(own, error));
    if (status != FERRY_OK) {
        fy_link_destroy(own->root);
        own->root = NULL;
        fy_free(own->members);
        own->members = NULL;
    }
    return status;
}

/* Again and again, until a world grows that has a place. */
static ferry_status ask(newcomer *own, ferry_error *error)
{
    ferry_error text = {""};
    ferry_status status = ask_once(own, &text);
    while (fy_status_is_loss(status) && fy_now_ns() < own->until_ns) {
        int64_t pause_ns = fy_meet_pause_ns(fy_now_ns() - own->meeting.since_ns);
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        status = ask_once(own, &text);
    }
    if (fy_status_is_loss(status)) {
        return fy_fail(error, FERRY_ERR_TIMEOUT,
                       "no world took this rank in within %.3g s (do its members call "
                       "ferry_world_grow?): %.800s",
                       (double)own->settings->join_ns / 1e9, text.message);
    }
    return fy_forward(error, status, &text);
}

static ferry_status take_number(newcomer *own, fy_process **process_out, ferry_error *error)
{
    fy_settings settings = *own->settings; /* all that it points to stays the caller's */
    settings.deadline_ns = own->deadline_ns;
    if (own->deadline_ns != own->settings->deadline_ns) {
        fy_log(FERRY_LOG_INFO, "this rank has the deadline of the world that it joins, %.3g s",
               (double)own->deadline_ns / 1e9);
    }
    FY_TRY(new_process(&own->meeting, &settings, own->epoch, process_out, error));
    fy_process *process = *process_out;
    fy_link *root = own->root;
    process->world->n_first = own->n_first;
    memcpy(process->world_id, own->world_id, sizeof process->world_id);
    if (own->settings->nodes != NULL) {
        FY_TRY(fy_settings_last_node(own->settings->nodes, &process->fake_node, error));
    }
    FY_TRY(fy_process_open_door(process, &own->meeting, false, error));
    FY_TRY(fy_control_start(process, error));
    own->root = NULL; /* taken over */
    FY_TRY(fy_join_newcomer(process, root, error));
    FY_TRY(fy_process_meet(process, own->members, error));
    FY_TRY(ferry_world_barrier(process->world, error)); /* which members come to after the vote */
    process->world->is_being_made = false;
    return FERRY_OK;
}

ferry_status fy_join_world(const char *path, const fy_settings *settings, ferry_world **world_out,
                           ferry_error *error)
{
    ferry_error text = {""};
    fy_process *process = NULL;
    int64_t now = fy_now_ns();
    newcomer own = {.path = path,
                    .settings = settings,
                    .until_ns = now + settings->join_ns,
                    .meeting = FY_MEETING_INIT};
    own.meeting.since_ns = now;
    if (sodium_init() < 0) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "libsodium finds no source of randomness");
    }
    fy_interrupt_begin(settings->interrupt);
    ferry_status status = ask(&own, &text);
    FY_THEN(status, take_number(&own, &process, &text));
    if (status == FERRY_OK) {
        fy_process_mark_complete(process);
        *world_out = process->world;
    } else if (process != NULL) {
        fy_process_abandon(process, status, &text);
    }
    fy_link_destroy(own.root);
    fy_free(own.members);
    fy_meeting_cleanup(&own.meeting);
    return fy_forward(error, status, &text);
}
