/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a node: how they find their shared page, pass descriptors, and watch each other's
 * lives.
 */
#include "base/alloc.h"
#include "host/pass.h"
#include "world/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE_TAG = 0, PAUSE_NS = 2 * 1000 * 1000 };

void fy_node_watch_life(fy_process *process, int socket_fd, uint32_t claim)
{
    int32_t pid = fy_node_socket_peer_pid(socket_fd);
    int fd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    if (fd < 0) {
        return; /* an old kernel or another namespace: links and beats must do */
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fy_conn *conn = fy_control_add(process, FY_CONN_DEATH, fd, NULL);
    if (conn == NULL) {
        close(fd);
    } else {
        conn->claim = claim;
    }
}

/* Entering, on the calling thread. */

static ferry_status become_host(fy_process *process, int listener, ferry_error *error)
{
    ferry_status status = fy_shared_page_create(process->n_claims, &process->node.page_fd,
                                                &process->node.page, error);
    if (status != FERRY_OK) {
        close(listener);
        return status;
    }
    process->node.page->host = process->claim;
    pthread_mutex_lock(&process->lock);
    process->node.host = true;
    if (fy_control_add(process, FY_CONN_NODE_LISTENER, listener, error) == NULL) {
        close(listener);
        status = FERRY_ERR_IO;
    }
    pthread_mutex_unlock(&process->lock);
    return status;
}

static ferry_status follow_host(fy_process *process, int socket_fd, int page_fd, ferry_error *error)
{
    uint32_t n_slots = 0, host = 0;
    ferry_status status = fy_shared_page_map(page_fd, &process->node.page, &n_slots, error);
    close(page_fd);
    if (status == FERRY_OK && n_slots != process->n_claims) {
        /* The ranks disagree about the world's size. The root will say so, to all: go on alone. */
        fy_shared_page_unmap(process->node.page, n_slots);
        process->node.page = NULL;
        status = fy_shared_page_create(process->n_claims, &process->node.page_fd,
                                       &process->node.page, error);
        close(socket_fd);
        return status;
    }
    if (status == FERRY_OK) {
        host = *(volatile uint32_t *)&process->node.page->host; /* once: others can write to it */
    }
    if (status == FERRY_OK && host >= n_slots) {
        status =
            fy_fail(error, FERRY_ERR_INVALID_INPUT,
                    "the shared page of a node says that rank %u of %u made it", host, n_slots);
    }
    if (status != FERRY_OK) {
        close(socket_fd);
        return status;
    }
    pthread_mutex_lock(&process->lock);
    process->node.host_conn = fy_control_add(process, FY_CONN_NODE_HOST, socket_fd, error);
    if (process->node.host_conn == NULL) {
        close(socket_fd);
        status = FERRY_ERR_IO;
    } else {
        fy_node_watch_life(process, socket_fd, host);
    }
    pthread_mutex_unlock(&process->lock);
    return status;
}

static ferry_status find_page(fy_process *process, bool (*stop)(void *context), void *context,
                              ferry_error *error)
{
    char name[FY_NODE_SOCKET_NAME_BYTES];
    int64_t limit = fy_join_step_ns(process);
    int64_t until = fy_now_ns() + limit;

    fy_node_socket_name(process->key, process->world_id, process->fake_node, name);
    for (;;) {
        int listener, socket_fd, page_fd;
        ferry_status status = fy_node_socket_listen(name, &listener, error);
        if (status != FERRY_OK || listener >= 0) {
            return status != FERRY_OK ? status : become_host(process, listener, error);
        }
        int64_t left = until - fy_now_ns();
        status = fy_node_socket_join(name, process->key, process->claim, left, stop, context,
                                     &socket_fd, &page_fd, error);
        if (status != FERRY_OK || socket_fd >= 0) {
            return status != FERRY_OK ? status : follow_host(process, socket_fd, page_fd, error);
        }
        if (stop(context)) {
            return FERRY_ERR_STOPPED;
        }
        if (left <= 0) {
            return fy_fail(error, FERRY_ERR_TIMEOUT,
                           "the host of this node did not answer within %.1f s",
                           (double)limit / 1e9);
        }
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
}

ferry_status fy_node_enter(fy_process *process, bool (*stop)(void *context), void *context,
                           ferry_error *error)
{
    FY_TRY(find_page(process, stop, context, error));
    fy_shared_page_sign(process->node.page, process->claim);
    return FERRY_OK;
}

/* Sockets, on the control thread. */

/* Strangers of this machine are borne in the same number as those of the network. */
static void make_room(fy_process *process, bool short_of_fds)
{
    fy_conn *oldest = NULL;
    uint32_t n = 0;
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (!conn->dead && conn->kind == FY_CONN_NODE_PEER && conn->peer.step < 2) {
            oldest = conn; /* new ones are put in front */
            n++;
        }
    }
    if (n >= fy_control_most_strangers() || short_of_fds) {
        fy_control_drop(process, oldest);
    }
}

void fy_node_accept(fy_process *process, const fy_conn *listener)
{
    /* Few in one round, as at the door: who knocks faster than we answer must not keep us here. */
    for (int i = 0; i < FY_CONTROL_ROUND; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        bool short_of_fds = fd < 0 && (errno == EMFILE || errno == ENFILE);
        if (fd < 0 && !short_of_fds) {
            return;
        }
        make_room(process, short_of_fds);
        if (short_of_fds) {
            return;
        }
        fy_conn *peer = fy_control_add(process, FY_CONN_NODE_PEER, fd, NULL);
        if (peer == NULL) {
            close(fd);
        } else {
            peer->peer.fd = fd;
        }
    }
}

static void keep_fd(fy_process *process, uint64_t tag, int fd)
{
    fy_passed_fd *passed = fy_alloc(1, sizeof *passed);
    if (passed == NULL) {
        close(fd);
        fy_process_fail(process, FERRY_ERR_NO_MEMORY, process->claim,
                        "rank %u has no memory to keep a descriptor", process->claim);
        return;
    }
    *passed = (fy_passed_fd){.next = process->node.passed_fds, .tag = tag, .fd = fd};
    process->node.passed_fds = passed;
    fy_bell_ring(process->world->bell);
}

/* From one of them, or from the host itself, to all others. */
static void pass_on(fy_process *process, const fy_conn *from, uint64_t tag, int fd)
{
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (conn->kind == FY_CONN_NODE_PEER && !conn->dead && conn->peer.step == 2 &&
            conn != from && conn->doomed_ns == 0 && !fy_pass_descriptor(conn->fd, tag, fd)) {
            fy_node_doom(process, conn);
        }
    }
}

void fy_node_hear_peer(fy_process *process, fy_conn *conn)
{
    if (conn->peer.step < 2) {
        bool proven;
        if (fy_node_socket_admit(&conn->peer, process->key, &proven, NULL) != FERRY_OK) {
            fy_control_drop(process, conn);
        } else if (proven) {
            conn->claim = conn->peer.slot;
            fy_pass_descriptor(conn->fd, PAGE_TAG, process->node.page_fd);
            fy_node_watch_life(process, conn->fd, conn->claim);
        }
        return;
    }
    uint64_t tag;
    int fd, got;
    while ((got = fy_take_descriptor(conn->fd, &tag, &fd)) == 1) {
        pass_on(process, conn, tag, fd);
        keep_fd(process, tag, fd);
    }
    if (got < 0) {
        fy_node_doom(process, conn);
    }
}

void fy_node_hear_host(fy_process *process, fy_conn *conn)
{
    uint64_t tag;
    int fd, got;
    while ((got = fy_take_descriptor(conn->fd, &tag, &fd)) == 1) {
        keep_fd(process, tag, fd);
    }
    if (got < 0) {
        fy_node_doom(process, conn);
    }
}

/* Lives. */

/* A tenth of the deadline, a tenth of a second at most. */
static int64_t grace_ns(const fy_process *process)
{
    int64_t grace = process->limits.deadline_ns / 10;
    return grace < 100 * 1000 * 1000 ? grace : 100 * 1000 * 1000;
}

void fy_node_suspect(ferry_world *world, uint32_t rank, const char *sentence)
{
    fy_process *process = world->impl;
    pthread_mutex_lock(&process->lock);
    if (process->suspicion.counts_ns == 0 && !process->leaving.begun) {
        process->suspicion.rank = rank;
        process->suspicion.counts_ns = fy_now_ns() + grace_ns(process);
        process->control.hurries = true;
        snprintf(process->suspicion.text, sizeof process->suspicion.text, "%s", sentence);
    }
    pthread_mutex_unlock(&process->lock);
    fy_control_poke(process);
}

static void check_suspect(fy_process *process, int64_t now_ns)
{
    if (process->news.asks || process->suspicion.counts_ns == 0) {
        return;
    }
    if (now_ns < process->suspicion.counts_ns) {
        process->control.hurries = true;
    } else if (!process->leaving.begun && !fy_failed(&process->failure)) {
        fy_news_ask(process);
    }
}

void fy_node_doom(fy_process *process, fy_conn *conn)
{
    if (conn->claim == FERRY_ANY_RANK || process->leaving.begun || fy_failed(&process->failure)) {
        if (conn->claim != FERRY_ANY_RANK && process->tree.tabled && !process->leaving.begun) {
            fy_process_mark_lost(process, conn->rank);
        }
        fy_control_drop(process, conn);
        return;
    }
    conn->doomed_ns = fy_now_ns() + grace_ns(process);
    process->control.hurries = true;
    fy_control_mute(process, conn);
}

void fy_node_tick(fy_process *process, int64_t now_ns)
{
    process->control.hurries = false;
    check_suspect(process, now_ns);
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        if (conn->dead || conn->doomed_ns == 0 || now_ns < conn->doomed_ns) {
            process->control.hurries =
                process->control.hurries || (!conn->dead && conn->doomed_ns != 0);
            continue;
        }
        /* Who entered the node and never joined is no rank of this world: its claim is not, either.
         */
        bool tabled = atomic_load(&process->tree.tabled);
        uint32_t rank = tabled ? conn->rank : conn->claim;
        if (rank != FERRY_ANY_RANK && !process->leaving.begun &&
            !atomic_load(&process->leaving.all_left)) {
            fy_process_mark_lost(process, rank);
            fy_process_fail(process, FERRY_ERR_PEER_LOST, rank,
                            "rank %u was lost: its process ended", rank);
        }
        fy_control_drop(process, conn);
    }
}

/* Sharing, on the calling thread. */

typedef struct awaited {
    fy_process *process;
    uint64_t tag;
    int fd;
} awaited;

static bool fd_is_here(void *context)
{
    awaited *want = context;
    fy_process *process = want->process;
    pthread_mutex_lock(&process->lock);
    for (fy_passed_fd **at = &process->node.passed_fds; *at != NULL; at = &(*at)->next) {
        fy_passed_fd *passed = *at;
        if (passed->tag == want->tag) {
            want->fd = passed->fd;
            *at = passed->next;
            fy_free(passed);
            break;
        }
    }
    pthread_mutex_unlock(&process->lock);
    return want->fd >= 0;
}

static ferry_status give(fy_process *process, uint64_t tag, int fd, ferry_error *error)
{
    pthread_mutex_lock(&process->lock);
    if (process->node.host) {
        pass_on(process, NULL, tag, fd);
    } else if (process->node.host_conn != NULL) {
        fy_pass_descriptor(process->node.host_conn->fd, tag, fd);
    }
    pthread_mutex_unlock(&process->lock);
    return fy_failure_get(&process->failure, NULL, error);
}

ferry_status fy_node_share(ferry_world *world, int fd, int *fd_out, ferry_error *error)
{
    fy_process *process = world->impl;
    awaited want = {.process = process, .tag = ++process->node.n_shared, .fd = -1};
    if (world->local_rank == 0) {
        int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (own < 0) {
            return fy_fail(error, FERRY_ERR_LIMIT, "no descriptor is left: %s", strerror(errno));
        }
        ferry_status status = give(process, want.tag, fd, error);
        if (status != FERRY_OK) {
            close(own);
            return status;
        }
        *fd_out = own;
        return FERRY_OK;
    }
    ferry_status status =
        fy_world_wait(world, fd_is_here, NULL, &want, process->limits.entry_ns, error);
    if (fy_world_is_late(world, &status, error)) {
        fy_fail(error, status, "rank %u has not shared its memory with rank %u",
                world->local_ranks[0], world->rank);
    }
    if (status == FERRY_OK) {
        *fd_out = want.fd;
    }
    return status;
}
