/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The control thread: one loop over everything that this process is connected with. It holds the
 * lock of the process except while it waits in epoll.
 */
#include "base/alloc.h"
#include "base/log.h"
#include "world/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    MANY_NEW = 256, /* connections that have not proven anything; fewer where descriptors are few */
    DRAIN_NS = 300 * 1000 * 1000,
    STRANGER_NS = 2000 * 1000 * 1000 /* how long one may say nothing */
};

/* Connections. */

static void set_interest(fy_process *process, fy_conn *conn, uint32_t interest)
{
    if (conn->interest == interest) {
        return;
    }
    struct epoll_event event = {.events = interest, .data.ptr = conn};
    epoll_ctl(process->control.epoll_fd, EPOLL_CTL_MOD, conn->fd, &event);
    conn->interest = interest;
}

void fy_control_mute(fy_process *process, fy_conn *conn)
{
    epoll_ctl(process->control.epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
    conn->interest = 0;
}

static void refresh(fy_process *process, fy_conn *conn)
{
    if (!conn->dead && conn->link != NULL) {
        bool writes = (fy_link_events(conn->link) & POLLOUT) != 0;
        set_interest(process, conn, EPOLLIN | (writes ? (uint32_t)EPOLLOUT : 0));
    }
}

fy_conn *fy_control_add(fy_process *process, fy_conn_kind kind, int fd, ferry_error *error)
{
    fy_conn *conn = fy_alloc_zeroed(1, sizeof *conn);
    if (conn == NULL) {
        fy_fail_no_memory(error, "a control connection");
        return NULL;
    }
    *conn = (fy_conn){.kind = kind,
                      .fd = fd,
                      .claim = FERRY_ANY_RANK,
                      .rank = FERRY_ANY_RANK,
                      .since_ns = fy_now_ns(),
                      .interest = EPOLLIN,
                      .next = process->control.conns};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = conn};
    if (epoll_ctl(process->control.epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        fy_fail(error, FERRY_ERR_IO, "a control connection could not be watched: %s",
                strerror(errno));
        fy_free(conn);
        return NULL;
    }
    process->control.conns = conn;
    return conn;
}

fy_conn *fy_control_add_link(fy_process *process, fy_link *link, fy_conn_role role, uint32_t claim,
                             ferry_error *error)
{
    fy_conn *conn = fy_control_add(process, FY_CONN_LINK, fy_link_fd(link), error);
    if (conn == NULL) {
        fy_link_destroy(link);
        return NULL;
    }
    conn->link = link;
    conn->role = role;
    conn->claim = claim;
    process->control.n_new += role == FY_ROLE_NEW;
    refresh(process, conn);
    return conn;
}

/* The memory stays until the control thread has finished its round: an event may still name it. */
void fy_control_drop(fy_process *process, fy_conn *conn)
{
    if (conn == NULL || conn->dead) {
        return;
    }
    conn->dead = true;
    process->control.n_new -= conn->kind == FY_CONN_LINK && conn->role == FY_ROLE_NEW;
    epoll_ctl(process->control.epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
    if (conn->link != NULL) {
        fy_link_destroy(conn->link);
        conn->link = NULL;
    } else if (conn->kind != FY_CONN_WATCHED && conn->kind != FY_CONN_EVENT) {
        close(conn->fd);
    }
    conn->fd = -1;
    if (process->tree.parent == conn) {
        process->tree.parent = NULL;
    }
    if (process->node.host_conn == conn) {
        process->node.host_conn = NULL;
    }
}

fy_link *fy_control_release(fy_process *process, fy_conn *conn)
{
    fy_link *link = conn->link;
    epoll_ctl(process->control.epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
    conn->link = NULL;
    conn->dead = true;
    conn->fd = -1;
    return link;
}

static void sweep(fy_process *process)
{
    for (fy_conn **at = &process->control.conns; *at != NULL;) {
        fy_conn *conn = *at;
        if (conn->dead) {
            *at = conn->next;
            fy_free(conn->part.bytes);
            fy_free(conn);
        } else {
            at = &conn->next;
        }
    }
}

void fy_control_poke(fy_process *process)
{
    uint64_t one = 1;
    if (process->control.event_fd >= 0 && write(process->control.event_fd, &one, sizeof one) < 0) {
        return; /* its counter is full: a poke is on its way anyhow */
    }
}

void fy_control_post(fy_process *process, fy_conn *conn, fy_wire_type type, const void *head,
                     size_t head_bytes, const void *body, size_t body_bytes)
{
    if (conn == NULL || conn->dead || conn->link == NULL) {
        return;
    }
    ferry_status status = fy_link_post(conn->link, type, head, head_bytes, body, body_bytes, NULL);
    if (status == FERRY_ERR_PEER_LOST || status == FERRY_ERR_DENIED ||
        status == FERRY_ERR_INVALID_INPUT) {
        /* The control thread finds the broken link when it works it. */
        fy_control_poke(process);
    } else if (status != FERRY_OK) {
        fy_process_fail(process, status, process->claim,
                        "rank %u could not send a control message: %s", process->claim,
                        ferry_status_text(status));
    }
    refresh(process, conn);
}

uint32_t fy_process_rank_at(const fy_process *process, fy_tree_place place)
{
    if (place.node >= process->tree.n_nodes) {
        return UINT32_MAX;
    }
    uint32_t first = process->tree.node_first[place.node];
    uint32_t size = process->tree.node_first[place.node + 1] - first;
    return place.index < size ? process->tree.rank_at[first + place.index] : UINT32_MAX;
}

fy_conn *fy_control_route(fy_process *process, uint32_t rank)
{
    fy_tree_place next =
        fy_tree_next(process->tree.table[process->rank].place, process->tree.table[rank].place);
    uint32_t hop = fy_process_rank_at(process, next);
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (!conn->dead && conn->kind == FY_CONN_LINK && conn->rank == hop &&
            (conn->role == FY_ROLE_CHILD || conn->role == FY_ROLE_PARENT)) {
            return conn;
        }
    }
    return NULL;
}

/* Failure. */

void fy_control_tell_failure(fy_process *process, fy_conn *conn)
{
    unsigned char head[FY_NEWS_BYTES];
    fy_pack packer = fy_pack_into(head, sizeof head);
    if (fy_news_pack(&process->failure, &packer)) {
        fy_control_post(process, conn, FY_WIRE_FAIL, head, packer.used, NULL, 0);
    }
}

static void flood(fy_process *process, const fy_conn *except)
{
    if (!fy_failed(&process->failure) || process->news.flooded) {
        return;
    }
    process->news.flooded = true;
    fy_grow_pass_on(process);
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (conn != except && conn->kind == FY_CONN_LINK && !conn->dead &&
            conn->role != FY_ROLE_NEW && conn->role != FY_ROLE_PARKED) {
            fy_control_tell_failure(process, conn);
        }
    }
    fy_news_tell(process);
    fy_process_wake(process);
}

static bool fail_arrives(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    fy_failure failure = {0};
    if (!fy_news_read(reader, &failure)) {
        return false;
    }
    fy_news_adopt(process, &failure);
    flood(process, conn);
    return true;
}

static bool beat_arrives(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    (void)process, (void)conn, (void)reader; /* the link has noted that something came */
    return true;
}

/* A neighbour of the tree is gone. */
static void neighbour_lost(fy_process *process, fy_conn *conn, const char *why)
{
    uint32_t rank = conn->rank != FERRY_ANY_RANK ? conn->rank : conn->claim;
    if (!atomic_load(&process->leaving.all_left)) {
        fy_process_mark_lost(process, rank);
        fy_process_fail(process, FERRY_ERR_PEER_LOST, rank, "rank %u was lost: %s", rank, why);
    }
}

static void stranger_left(fy_process *process, fy_conn *conn, ferry_status status, const char *why)
{
    char from[128];
    fy_link_peer_text(conn->link, from);
    if (status == FERRY_ERR_DENIED) {
        process->control.n_denied++;
        memcpy(process->control.denied_from, from, sizeof from);
    }
    fy_log(FERRY_LOG_DEBUG, "a connection from %s was refused: %s", from, why);
}

static void link_broke(fy_process *process, fy_conn *conn, ferry_status status, const char *why)
{
    switch (conn->role) {
    case FY_ROLE_NEW:
        stranger_left(process, conn, status, why);
        break;
    case FY_ROLE_JOINER:
        fy_register_lost(process, conn, why);
        break;
    case FY_ROLE_PARKED:
        break;
    case FY_ROLE_CHILD:
    case FY_ROLE_PARENT:
        neighbour_lost(process, conn,
                       status == FERRY_ERR_PEER_LOST ? "its control connection ended" : why);
        break;
    }
    fy_control_drop(process, conn);
}

/* Messages. */

typedef bool (*handler_fn)(fy_process *process, fy_conn *conn, fy_reader *reader);

/* Which roles may say what. */
static const struct handler {
    handler_fn handle;
    unsigned roles;
} handlers[] = {
#define FROM(role) (1u << FY_ROLE_##role)
#define TREE (FROM(CHILD) | FROM(PARENT))
    [FY_WIRE_KNOCK] = {fy_join_knock, FROM(NEW)},
    [FY_WIRE_JOIN] = {fy_join_join, FROM(JOINER)},
    [FY_WIRE_ATTACH] = {fy_join_attach, FROM(NEW)},
    [FY_WIRE_ATTACHED] = {fy_join_attached, FROM(JOINER)},
    [FY_WIRE_TABLE] = {fy_join_table, FROM(PARENT)},
    [FY_WIRE_FAIL] = {fail_arrives, TREE | FROM(JOINER)},
    [FY_WIRE_UP] = {fy_collect_up, FROM(CHILD)},
    [FY_WIRE_DOWN] = {fy_collect_down, FROM(PARENT)},
    [FY_WIRE_SEND] = {fy_letter_arrive, TREE},
    [FY_WIRE_BEAT] = {beat_arrives, TREE | FROM(JOINER)},
    [FY_WIRE_LEAVE] = {fy_leave_arrive, FROM(CHILD)},
    [FY_WIRE_DONE] = {fy_leave_done, FROM(PARENT)},
    [FY_WIRE_QUERY] = {fy_collect_query, TREE},
    [FY_WIRE_MISSING] = {fy_collect_missing, TREE},
    [FY_WIRE_ASK] = {fy_doubt_answer, FROM(NEW)},
    [FY_WIRE_NEWS] = {fy_news_arrive, FROM(NEW)},
    [FY_WIRE_WHERE] = {fy_letter_asked, TREE},
    [FY_WIRE_ENTER] = {fy_join_enter, FROM(NEW)},
    [FY_WIRE_VAIN] = {fy_grow_in_vain, TREE},
#undef TREE
#undef FROM
};
enum { N_HANDLERS = sizeof handlers / sizeof handlers[0] };

static void senseless(fy_process *process, fy_conn *conn, uint32_t type)
{
    if (conn->role == FY_ROLE_CHILD || conn->role == FY_ROLE_PARENT) {
        uint32_t rank = conn->rank != FERRY_ANY_RANK ? conn->rank : conn->claim;
        fy_process_fail(process, FERRY_ERR_INVALID_INPUT, rank,
                        "rank %u sent a control message (type %u) that makes no sense here", rank,
                        type);
    }
    fy_control_drop(process, conn);
}

static void dispatch(fy_process *process, fy_conn *conn)
{
    fy_message message;
    while (!conn->dead && conn->role != FY_ROLE_PARKED && conn->link != NULL &&
           fy_link_take(conn->link, &message)) {
        fy_reader reader = fy_reader_of(message.payload, message.n_bytes);
        bool known = message.type < N_HANDLERS && handlers[message.type].handle != NULL &&
                     (handlers[message.type].roles >> conn->role & 1u) != 0;
        if (!known || !handlers[message.type].handle(process, conn, &reader)) {
            senseless(process, conn, message.type);
        }
    }
}

static void work_link(fy_process *process, fy_conn *conn)
{
    ferry_error why;
    ferry_status status = fy_link_work(conn->link, &why);
    dispatch(process, conn);
    if (conn->dead) {
        return;
    }
    if (status != FERRY_OK) {
        link_broke(process, conn, status, why.message);
    } else {
        refresh(process, conn);
    }
}

/* The door. */

static fy_conn *oldest_new(fy_process *process)
{
    fy_conn *oldest = NULL;
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (!conn->dead && conn->kind == FY_CONN_LINK && conn->role == FY_ROLE_NEW) {
            oldest = conn; /* new ones are put in front */
        }
    }
    return oldest;
}

uint32_t fy_control_most_strangers(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur / 8 > MANY_NEW) {
        return MANY_NEW;
    }
    return (uint32_t)limit.rlim_cur / 8 + 1;
}

static void open_door(fy_process *process, fy_conn *door)
{
    /* No more in one round: the rest of the loop has its turn however fast strangers come. */
    for (int i = 0; i < FY_CONTROL_ROUND; i++) {
        int fd = accept4(door->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        bool short_of_fds = fd < 0 && (errno == EMFILE || errno == ENFILE);
        if (fd < 0 && !short_of_fds) {
            return;
        }
        /* Strangers may fill the house, but only with themselves: the oldest one leaves. */
        if (process->control.n_new >= fy_control_most_strangers() || short_of_fds) {
            fy_control_drop(process, oldest_new(process));
        }
        if (short_of_fds) {
            return; /* who knocks still does so in the next round */
        }
        fy_link *link;
        if (fy_link_create(fd, true, process->key, &link, NULL) == FERRY_OK) {
            fy_control_add_link(process, link, FY_ROLE_NEW, FERRY_ANY_RANK, NULL);
        }
    }
}

/* Time. */

int64_t fy_control_beat_ns(int64_t deadline_ns)
{
    int64_t beat = deadline_ns / 10;
    return beat < 10 * 1000 * 1000    ? 10 * 1000 * 1000
           : beat > 500 * 1000 * 1000 ? 500 * 1000 * 1000
                                      : beat;
}

static int64_t beat_ns(const fy_process *process)
{
    return fy_control_beat_ns(process->limits.deadline_ns);
}

static void post_beats(fy_process *process)
{
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (!conn->dead && conn->kind == FY_CONN_LINK &&
            (conn->role == FY_ROLE_CHILD || conn->role == FY_ROLE_PARENT ||
             conn->role == FY_ROLE_JOINER || conn->role == FY_ROLE_PARKED)) {
            fy_control_post(process, conn, FY_WIRE_BEAT, NULL, 0, NULL, 0);
        }
    }
}

void fy_control_serve(fy_process *process)
{
    int64_t now = fy_now_ns();
    bool worked = false;
    if (now - process->control.beaten_ns >= beat_ns(process)) {
        process->control.beaten_ns = now;
        post_beats(process);
    }
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (!conn->dead && (conn->role == FY_ROLE_CHILD || conn->role == FY_ROLE_PARENT) &&
            fy_link_queued_bytes(conn->link) > 0) {
            fy_link_work(conn->link, NULL);
            worked = true;
        }
    }
    if (worked) {
        fy_control_poke(process); /* it takes what came, and finds what broke */
    }
}

/*
 * The state of a rank's process on this node, as /proc has it: 'T' is stopped, 'R' and 'S' are
 * alive. 0 where it is not to be seen.
 */
static char process_state(const fy_process *process, uint32_t rank)
{
    if (!atomic_load(&process->tree.tabled) || rank >= process->n_ranks ||
        process->tree.table[rank].place.node != process->tree.table[process->rank].place.node) {
        return 0;
    }
    char path[64], text[256];
    int32_t pid = fy_shared_page_pid(process->node.page, process->tree.table[rank].claim);
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t used = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) {
        close(fd);
    }
    text[used < 0 ? 0 : used] = '\0';
    /* "PID (NAME) STATE ...", where the name may hold anything, brackets too. */
    const char *end = strrchr(text, ')');
    return end != NULL && end[1] == ' ' ? end[2] : 0;
}

bool fy_control_seems_to_run(ferry_world *world, uint32_t rank)
{
    char state = process_state(world->impl, rank);
    return state != 0 && strchr("RSD", state) != NULL;
}

/* Whoever slept itself has no right to complain: what the others sent waits in the sockets. */
static bool has_slept(const fy_process *process, int64_t now_ns)
{
    return now_ns - process->control.ticked_ns > process->limits.deadline_ns / 10 * 3;
}

static int64_t most_silence_ns(const fy_process *process)
{
    return process->limits.deadline_ns / 10 * 8;
}

bool fy_control_silence_counts(const fy_process *process, uint32_t rank, int64_t heard_ns)
{
    int64_t now = fy_now_ns();
    int64_t since = heard_ns > process->control.forgive_ns ? heard_ns : process->control.forgive_ns;
    return !has_slept(process, now) && now - since >= most_silence_ns(process) &&
           !fy_world_may_only_be_slow(process->world, rank, now - since);
}

/*
 * A neighbour that is silent for most of a deadline: what its machine's kernel does tells whether
 * the process is stopped or the machine out of reach. What is left of the deadline is for telling
 * the others.
 */
static void check_silence(fy_process *process, fy_conn *conn, int64_t now_ns)
{
    int64_t heard = fy_link_heard_ns(conn->link);
    if (heard < conn->since_ns) {
        heard = conn->since_ns;
    }
    if (fy_failed(&process->failure) || !fy_control_silence_counts(process, conn->rank, heard)) {
        return;
    }
    uint32_t rank = conn->rank != FERRY_ANY_RANK ? conn->rank : conn->claim;
    double seconds = (double)(now_ns - heard) / 1e9;
    fy_process_mark_lost(process, rank);
    if (fy_link_acknowledged(conn->link, most_silence_ns(process) / 2)) {
        fy_process_fail(process, FERRY_ERR_TIMEOUT, rank,
                        "rank %u has shown no sign of life for %.1f s: its process is stopped",
                        rank, seconds);
    } else {
        fy_process_fail(process, FERRY_ERR_PEER_LOST, rank,
                        "rank %u was lost: its machine has not answered for %.1f s", rank, seconds);
    }
}

static void tick(fy_process *process)
{
    int64_t now = fy_now_ns();
    int64_t beat = beat_ns(process);
    if (has_slept(process, now)) {
        process->control.forgive_ns = now;
    }
    process->control.ticked_ns = now;
    if (process->control.hurries) {
        fy_node_tick(process, now);
    }
    if (now - process->control.beaten_ns >= beat) {
        process->control.beaten_ns = now;
        post_beats(process);
    }
    /* Its own clock: a caller's thread that serves the links may do all the beating. */
    if (now - process->control.checked_ns < beat) {
        return;
    }
    process->control.checked_ns = now;
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        bool unproven = conn->kind == FY_CONN_NODE_PEER && conn->peer.step < 2;
        if (!conn->dead && unproven && now - conn->since_ns > STRANGER_NS) {
            fy_control_drop(process, conn);
        }
        if (conn->dead || conn->kind != FY_CONN_LINK) {
            continue;
        }
        if (conn->role == FY_ROLE_CHILD || conn->role == FY_ROLE_PARENT ||
            fy_register_is_newcomer(process, conn)) {
            check_silence(process, conn, now);
        } else if (conn->role == FY_ROLE_NEW && now - conn->since_ns > STRANGER_NS) {
            fy_control_drop(process, conn);
        }
    }
    fy_register_tick(process, now);
    fy_join_tick(process, now);
}

/* The loop. */

static void handle(fy_process *process, fy_conn *conn)
{
    uint64_t pokes;
    switch (conn->kind) {
    case FY_CONN_EVENT:
        while (read(conn->fd, &pokes, sizeof pokes) > 0) {}
        for (fy_conn *link = process->control.conns; link != NULL; link = link->next) {
            if (!link->dead && link->kind == FY_CONN_LINK) {
                work_link(process, link);
            }
        }
        break;
    case FY_CONN_DOOR:
        open_door(process, conn);
        break;
    case FY_CONN_LINK:
        work_link(process, conn);
        break;
    case FY_CONN_NODE_LISTENER:
        fy_node_accept(process, conn);
        break;
    case FY_CONN_NODE_PEER:
        fy_node_hear_peer(process, conn);
        break;
    case FY_CONN_NODE_HOST:
        fy_node_hear_host(process, conn);
        break;
    case FY_CONN_DEATH:
        fy_node_doom(process, conn);
        break;
    case FY_CONN_WATCHED:
        break; /* called without the lock: see call_watchers */
    }
}

/* Watchers may call into the library, so they are called without the lock. */
static void call_watcher(fy_process *process, fy_conn *conn)
{
    void (*ready)(void *) = conn->ready;
    void *context = conn->context;
    process->control.calling = conn;
    pthread_mutex_unlock(&process->lock);
    ready(context);
    pthread_mutex_lock(&process->lock);
    process->control.calling = NULL;
    pthread_cond_broadcast(&process->control.called);
}

static bool queued(fy_process *process)
{
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (!conn->dead && conn->link != NULL && fy_link_queued_bytes(conn->link) > 0) {
            return true;
        }
    }
    return false;
}

static void *run(void *context)
{
    fy_process *process = context;
    struct epoll_event events[FY_CONTROL_ROUND];
    int64_t stop_ns = 0;
    pthread_mutex_lock(&process->lock);
    process->control.ticked_ns = process->control.beaten_ns = process->control.checked_ns =
        fy_now_ns();
    for (;;) {
        sweep(process);
        if (atomic_load(&process->control.stop)) {
            /* What is queued, above all the news of a failure, still goes out. */
            flood(process, NULL);
            int64_t now = fy_now_ns();
            stop_ns = stop_ns == 0 ? now + DRAIN_NS : stop_ns;
            if (now >= stop_ns || !queued(process)) {
                break;
            }
        }
        bool hurries = atomic_load(&process->control.stop) || process->control.hurries;
        int wait_ms = hurries ? 5 : (int)(beat_ns(process) / 1000000);
        pthread_mutex_unlock(&process->lock);
        int n = epoll_wait(process->control.epoll_fd, events, FY_CONTROL_ROUND, wait_ms);
        pthread_mutex_lock(&process->lock);
        for (int i = 0; i < n; i++) {
            fy_conn *conn = events[i].data.ptr;
            if (!conn->dead && conn->kind == FY_CONN_WATCHED) {
                call_watcher(process, conn);
            } else if (!conn->dead) {
                handle(process, conn);
            }
        }
        tick(process);
        flood(process, NULL);
    }
    pthread_mutex_unlock(&process->lock);
    return NULL;
}

ferry_status fy_control_start(fy_process *process, ferry_error *error)
{
    process->control.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    process->control.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (process->control.epoll_fd < 0 || process->control.event_fd < 0) {
        return fy_fail(error, FERRY_ERR_IO, "the control thread got no descriptors: %s",
                       strerror(errno));
    }
    if (fy_control_add(process, FY_CONN_EVENT, process->control.event_fd, error) == NULL ||
        fy_control_add(process, FY_CONN_DOOR, process->door.fd, error) == NULL) {
        return FERRY_ERR_IO;
    }
    process->door.fd = -1; /* the connection owns it now */
    if (process->door.join_fd >= 0) {
        fy_conn *joining = fy_control_add(process, FY_CONN_DOOR, process->door.join_fd, error);
        if (joining == NULL) {
            return FERRY_ERR_IO;
        }
        joining->joined = true;
        process->door.join_fd = -1;
    }
    /* Signals are for the caller's threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&process->control.thread, NULL, run, process);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        return fy_fail(error, FERRY_ERR_LIMIT, "the control thread could not be started: %s",
                       strerror(failed));
    }
    process->control.runs = true;
    return FERRY_OK;
}

void fy_control_stop(fy_process *process)
{
    if (process->control.runs) {
        atomic_store(&process->control.stop, true);
        fy_control_poke(process);
        pthread_join(process->control.thread, NULL);
        process->control.runs = false;
    }
    fy_news_stop(process);
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        fy_control_drop(process, conn);
    }
    sweep(process);
    if (process->control.event_fd >= 0) {
        close(process->control.event_fd);
    }
    if (process->control.epoll_fd >= 0) {
        close(process->control.epoll_fd);
    }
    process->control.event_fd = process->control.epoll_fd = -1;
}
