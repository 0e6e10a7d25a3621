/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/process.h"

#include "base/alloc.h"
#include "base/log.h"

#include <netinet/in.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Failure and waking. */

void fy_process_wake(fy_process *process)
{
    fy_bell_ring(process->world->bell);
    /* In this order: the shared page belongs to the calling thread until the bell is on it. */
    if (process->world->bell != &process->early_bell && process->node.page != NULL) {
        fy_bell_ring(&process->node.page->bell);
    }
}

void fy_process_fail(fy_process *process, ferry_status status, uint32_t rank, const char *format,
                     ...)
{
    va_list arguments;
    va_start(arguments, format);
    bool first = fy_failure_set_v(&process->failure, status, rank, format, arguments);
    va_end(arguments);
    if (first) {
        fy_log(FERRY_LOG_INFO, "the world has failed: %s", process->failure.sentence);
        fy_process_wake(process);
        fy_control_poke(process);
    }
}

void fy_process_mark_lost(fy_process *process, uint32_t rank)
{
    if (process->lost != NULL && rank < process->n_ranks) {
        atomic_store(&process->lost[rank], FY_LOST);
    }
}

static void spread_failure(ferry_world *world)
{
    fy_process *process = world->impl;
    uint32_t rank;
    if (fy_status_is_loss(fy_failure_get(&process->failure, &rank, NULL)) && rank != world->rank) {
        fy_process_mark_lost(process, rank);
    }
    fy_process_wake(process);
    fy_control_poke(process);
}

/* Facts about peers of the node. */

static fy_bell *bell_of(ferry_world *world, uint32_t rank)
{
    fy_process *process = world->impl;
    return fy_world_same_node(world, rank)
               ? &process->node.page->slots[process->tree.table[rank].claim].bell
               : NULL;
}

static fy_gate *gate_of(ferry_world *world, uint32_t rank)
{
    fy_process *process = world->impl;
    return fy_world_same_node(world, rank)
               ? &process->node.page->slots[process->tree.table[rank].claim].gate
               : NULL;
}

static int32_t pid_of(ferry_world *world, uint32_t rank)
{
    fy_process *process = world->impl;
    return fy_world_same_node(world, rank)
               ? fy_shared_page_pid(process->node.page, process->tree.table[rank].claim)
               : 0;
}

/* Watching descriptors for engines. */

static ferry_status watch(ferry_world *world, int fd, void (*ready)(void *context), void *context,
                          ferry_error *error)
{
    fy_process *process = world->impl;
    pthread_mutex_lock(&process->lock);
    fy_conn *conn = fy_control_add(process, FY_CONN_WATCHED, fd, error);
    if (conn != NULL) {
        conn->ready = ready;
        conn->context = context;
    }
    pthread_mutex_unlock(&process->lock);
    return conn == NULL ? FERRY_ERR_IO : FERRY_OK;
}

static void unwatch(ferry_world *world, int fd)
{
    fy_process *process = world->impl;
    pthread_mutex_lock(&process->lock);
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (conn->kind == FY_CONN_WATCHED && !conn->dead && conn->fd == fd) {
            fy_control_drop(process, conn);
            while (process->control.calling == conn &&
                   !pthread_equal(pthread_self(), process->control.thread)) {
                pthread_cond_wait(&process->control.called, &process->lock);
            }
            break;
        }
    }
    pthread_mutex_unlock(&process->lock);
}

/* Making. */

ferry_status fy_process_new(const fy_meeting *meeting, fy_settings *settings, uint32_t epoch,
                            fy_process **process_out, ferry_error *error)
{
    fy_process *process = fy_alloc_zeroed(1, sizeof *process);
    FY_TRY(fy_check_memory(process != NULL, "a world of processes", error));
    process->claim = meeting->rank;
    process->n_claims = meeting->n_ranks;
    process->epoch = epoch;
    process->limits.deadline_ns = settings->deadline_ns;
    process->limits.join_ns = settings->join_ns;
    process->limits.entry_ns = settings->entry_ns;
    process->door.fd = process->door.join_fd = -1;
    process->control.epoll_fd = process->control.event_fd = process->node.page_fd = -1;
    memcpy(process->key, meeting->key, FY_KEY_BYTES);
    pthread_mutex_init(&process->lock, NULL);
    pthread_cond_init(&process->control.called, NULL);
    process->nodes_text = fy_strdup(settings->nodes == NULL ? "" : settings->nodes);
    ferry_status status = FERRY_OK;
    if (process->nodes_text == NULL) {
        status = fy_fail_no_memory(error, "a world of processes");
    } else if (settings->nodes != NULL && epoch == 0) {
        status = fy_settings_fake_node(settings->nodes, meeting->rank, meeting->n_ranks,
                                       &process->fake_node, error);
    }
    FY_THEN(status,
            fy_world_new(meeting->rank, meeting->n_ranks, settings, &process->world, error));
    if (status != FERRY_OK) {
        fy_process_free(process);
        return status;
    }
    ferry_world *world = process->world;
    world->ops = &fy_process_ops;
    world->impl = process;
    world->epoch = epoch;
    world->failure = &process->failure;
    world->bell = &process->early_bell;
    world->bell_of = bell_of;
    world->gate_of = gate_of;
    world->pid_of = pid_of;
    world->is_being_made = true;
    *process_out = process;
    return FERRY_OK;
}

void fy_process_free(fy_process *process)
{
    if (process == NULL) {
        return;
    }
    fy_control_stop(process);
    fy_register_close(process);
    fy_shared_page_unmap(process->node.page, process->n_claims);
    if (process->node.page_fd >= 0) {
        close(process->node.page_fd);
    }
    if (process->door.fd >= 0) {
        close(process->door.fd);
    }
    if (process->door.join_fd >= 0) {
        close(process->door.join_fd);
    }
    fy_mail_cleanup(&process->mail);
    while (process->node.passed_fds != NULL) {
        fy_passed_fd *passed = process->node.passed_fds;
        process->node.passed_fds = passed->next;
        close(passed->fd);
        fy_free(passed);
    }
    fy_free(process->caller.taken);
    fy_free(process->gathering.own);
    fy_free(process->gathering.result);
    fy_free(process->gathering.lengths);
    fy_free(process->tree.table_bytes);
    fy_free(process->tree.table);
    fy_free(process->tree.rank_at);
    fy_free(process->tree.node_first);
    fy_free((void *)process->lost);
    fy_free(process->shrinking.silent_ns);
    fy_free(process->nodes_text);
    pthread_cond_destroy(&process->control.called);
    pthread_mutex_destroy(&process->lock);
    sodium_memzero(process->key, sizeof process->key);
    fy_free(process);
}

bool fy_process_is_tabled(void *context)
{
    const fy_process *process = context;
    return atomic_load(&process->tree.tabled);
}

/* The numbers of the table, into the world. */
static ferry_status adopt_table(fy_process *process, const uint32_t *claim_members,
                                ferry_error *error)
{
    ferry_world *world = process->world;
    world->rank = process->rank;
    world->n_ranks = process->n_ranks;
    uint64_t *ids = fy_alloc(process->n_ranks, sizeof *ids);
    process->gathering.lengths =
        fy_alloc_zeroed(process->n_ranks, sizeof *process->gathering.lengths);
    if (ids == NULL || process->gathering.lengths == NULL) {
        fy_free(ids);
        return fy_fail_no_memory(error, "the ranks of a world");
    }
    for (uint32_t r = 0; r < process->n_ranks; r++) {
        uint32_t claim = process->tree.table[r].claim;
        ids[r] = process->tree.table[r].place.node;
        world->members[r] = claim_members == NULL ? claim : claim_members[claim];
    }
    ferry_status status = fy_world_set_nodes(world, ids, error);
    fy_free(ids);
    pthread_mutex_lock(&process->lock);
    world->bell = &process->node.page->slots[process->claim].bell;
    pthread_mutex_unlock(&process->lock);
    return status;
}

static void log_complete(const fy_process *process)
{
    const ferry_world *world = process->world;
    fy_log(FERRY_LOG_INFO, "rank %u of %u on node %u of %u, local rank %u of %u, epoch %u",
           world->rank, world->n_ranks, world->node_of[world->rank], world->n_nodes,
           world->local_rank, world->n_local_ranks, world->epoch);
}

ferry_status fy_process_meet(fy_process *process, const uint32_t *claim_members, ferry_error *error)
{
    /* The root, and whoever notices that it is gone, ends this wait: it needs no limit. */
    FY_TRY(fy_world_wait(process->world, fy_process_is_tabled, NULL, process, -1, error));
    FY_TRY(adopt_table(process, claim_members, error));
    return fy_collect_joined(process->world, error);
}

void fy_process_mark_complete(fy_process *process)
{
    atomic_store(&process->shrinking.complete, true);
    log_complete(process);
}

ferry_status fy_process_complete(fy_process *process, const uint32_t *claim_members,
                                 ferry_error *error)
{
    FY_TRY(fy_process_meet(process, claim_members, error));
    fy_process_mark_complete(process);
    return FERRY_OK;
}

/* "127.0.0.1:41000", or several, all of this machine alone. */
static bool all_loopback(const char *addresses)
{
    for (const char *at = addresses; at != NULL && *at != '\0'; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, "127.", 4) != 0 && strncmp(at, "[::1]", 5) != 0) {
            return false;
        }
    }
    return addresses[0] != '\0';
}

static bool listens_on_loopback(int fd)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (fd < 0 || getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        return false;
    }
    if (address.ss_family == AF_INET) {
        const struct sockaddr_in *ip4 = (const void *)&address;
        return ntohl(ip4->sin_addr.s_addr) >> 24 == 127;
    }
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)&address)->sin6_addr);
}

/*
 * This rank's own door, for as long as the world lives. The one that the meeting opened on the root
 * is for joining only, so that its port is free for the next world.
 */
ferry_status fy_process_open_door(fy_process *process, fy_meeting *meeting, bool root,
                                  ferry_error *error)
{
    const char *host = process->world->settings.host;
    bool loopback =
        root ? listens_on_loopback(meeting->listener) : all_loopback(meeting->addresses);
    const char *where = loopback ? "127.0.0.1" : NULL;
    ferry_status status = fy_listen(where, 0, &process->door.fd, &process->door.port, error);
    if (status == FERRY_OK && (root || host != NULL)) {
        status = fy_own_addresses(host == NULL ? where : host, process->door.port,
                                  process->door.addresses, error);
    }
    process->door.join_fd = meeting->listener;
    meeting->listener = -1;
    /* What is accepted inherits it: then closed connections do not keep the port from the next
     * world. */
    setsockopt(process->door.join_fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    return status;
}

static ferry_status join(fy_process *process, fy_meeting *meeting, ferry_error *error)
{
    bool root = meeting->rank == 0;
    FY_TRY(fy_process_open_door(process, meeting, root, error));
    if (root) {
        randombytes_buf(process->world_id, sizeof process->world_id);
        FY_TRY(fy_register_open(process, error));
    }
    FY_TRY(fy_control_start(process, error));
    FY_TRY(root ? fy_join_root(process, error)
                : fy_join_member(process, meeting->addresses, process->key, process->limits.join_ns,
                                 error));
    return fy_process_complete(process, NULL, error);
}

void fy_process_fail_making(fy_process *process, ferry_status status, const char *reason)
{
    if (status == FERRY_ERR_STOPPED) {
        fy_process_fail(process, FERRY_ERR_PEER_LOST, process->claim,
                        "rank %u is lost: its caller stopped the making of the world",
                        process->claim);
    } else {
        fy_process_fail(process, status, process->claim, "%s", reason);
    }
}

/* A world that never was: tells those who wait for this rank, and is gone. */
void fy_process_abandon(fy_process *process, ferry_status status, const ferry_error *reason)
{
    fy_process_fail_making(process, status, reason->message);
    ferry_world *world = process->world;
    fy_process_free(process);
    fy_world_free(world);
}

ferry_status fy_world_create_processes(fy_meeting *meeting, fy_settings *settings, uint32_t epoch,
                                       ferry_world **world_out, ferry_error *error)
{
    ferry_error text = {""};
    fy_process *process = NULL;
    if (sodium_init() < 0) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "libsodium finds no source of randomness");
    }
    ferry_status status = fy_process_new(meeting, settings, epoch, &process, error);
    if (status != FERRY_OK) {
        goto out;
    }
    status = join(process, meeting, &text);
    if (status != FERRY_OK) {
        fy_process_abandon(process, status, &text);
        status = fy_forward(error, status, &text);
        goto out;
    }
    *world_out = process->world;
out:
    fy_meeting_cleanup(meeting);
    fy_settings_cleanup(settings);
    return status;
}

static void leave_world(ferry_world *world)
{
    fy_leave_world(world->impl);
}

static void close_world(ferry_world *world)
{
    fy_process *process = world->impl;
    fy_doubt_drop(process);
    fy_leave_world(process);
    fy_process_free(process);
}

const fy_world_ops fy_process_ops = {
    .barrier = fy_collect_barrier,
    .gather = fy_collect_gather,
    .send = fy_letter_send,
    .receive = fy_letter_receive,
    .take = fy_letter_take,
    .forget = fy_letter_forget,
    .ask = fy_letter_ask,
    .suspect = fy_node_suspect,
    .seems_to_run = fy_control_seems_to_run,
    .spread_failure = spread_failure,
    .shrink = fy_shrink_world,
    .grow = fy_grow_world,
    .share_fd = fy_node_share,
    .watch = watch,
    .unwatch = unwatch,
    .leave = leave_world,
    .close = close_world,
};
