/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a node: how they find their board, pass descriptors, and watch each other's lives.
 */
#include "base/alloc.h"
#include "world/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { BOARD_TAG = 0, PAUSE_NS = 2 * 1000 * 1000 };

void fy_node_watch_life(fy_process *process, int line, uint32_t claim)
{
    int32_t pid = fy_line_peer_pid(line);
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

static ferry_status become_host(fy_process *process, int porch, ferry_error *error)
{
    ferry_status status =
        fy_board_create(process->n_claims, &process->board_fd, &process->board, error);
    if (status != FERRY_OK) {
        close(porch);
        return status;
    }
    process->board->host = process->claim;
    pthread_mutex_lock(&process->lock);
    process->host = true;
    if (fy_control_add(process, FY_CONN_PORCH, porch, error) == NULL) {
        close(porch);
        status = FERRY_ERR_IO;
    }
    pthread_mutex_unlock(&process->lock);
    return status;
}

static ferry_status become_guest(fy_process *process, int line, int board_fd, ferry_error *error)
{
    uint32_t n_slots = 0, host = 0;
    ferry_status status = fy_board_map(board_fd, &process->board, &n_slots, error);
    close(board_fd);
    if (status == FERRY_OK && n_slots != process->n_claims) {
        /* The ranks disagree about the world's size. The root will say so, to all: go on alone. */
        fy_board_unmap(process->board, n_slots);
        process->board = NULL;
        status = fy_board_create(process->n_claims, &process->board_fd, &process->board, error);
        close(line);
        return status;
    }
    if (status == FERRY_OK) {
        host = *(volatile uint32_t *)&process->board->host; /* once: others can write to it */
    }
    if (status == FERRY_OK && host >= n_slots) {
        status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "the board of a node says that rank %u of %u made it", host, n_slots);
    }
    if (status != FERRY_OK) {
        close(line);
        return status;
    }
    pthread_mutex_lock(&process->lock);
    process->line = fy_control_add(process, FY_CONN_LINE, line, error);
    if (process->line == NULL) {
        close(line);
        status = FERRY_ERR_IO;
    } else {
        fy_node_watch_life(process, line, host);
    }
    pthread_mutex_unlock(&process->lock);
    return status;
}

static ferry_status find_board(fy_process *process, ferry_error *error)
{
    char name[FY_LINE_NAME_BYTES];
    int64_t limit = fy_join_step_ns(process);
    int64_t until = fy_now_ns() + limit;

    fy_interrupt *interrupt = process->world->settings.interrupt;
    fy_line_name(process->key, process->world_id, process->fake_node, name);
    for (;;) {
        int porch, line, board_fd;
        ferry_status status = fy_line_listen(name, &porch, error);
        if (status != FERRY_OK || porch >= 0) {
            return status != FERRY_OK ? status : become_host(process, porch, error);
        }
        int64_t left = until - fy_now_ns();
        status = fy_line_join(name, process->key, process->claim, left, interrupt, &line, &board_fd,
                              error);
        if (status != FERRY_OK || line >= 0) {
            return status != FERRY_OK ? status : become_guest(process, line, board_fd, error);
        }
        if (fy_failed(&process->failure)) {
            return fy_failure_get(&process->failure, NULL, error);
        }
        if (fy_interrupted(interrupt)) {
            return fy_interrupt_fail(error);
        }
        if (left <= 0) {
            return fy_fail(error, FERRY_ERR_TIMEOUT,
                           "the host of this node did not answer within %.1f s",
                           (double)limit / 1e9);
        }
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
}

ferry_status fy_node_enter(fy_process *process, ferry_error *error)
{
    ferry_status status = find_board(process, error);
    if (status == FERRY_OK) {
        fy_board_sign(process->board, process->claim);
    }
    return status;
}

/* Lines, on the control thread. */

/* Strangers of this machine are borne in the same number as those of the network. */
static void make_room(fy_process *process, bool short_of_fds)
{
    fy_conn *oldest = NULL;
    uint32_t n = 0;
    for (fy_conn *conn = process->conns; conn != NULL; conn = conn->next) {
        if (!conn->dead && conn->kind == FY_CONN_GUEST && conn->guest.step < 2) {
            oldest = conn; /* new ones are put in front */
            n++;
        }
    }
    if (n >= fy_control_most_strangers() || short_of_fds) {
        fy_control_drop(process, oldest);
    }
}

void fy_node_porch(fy_process *process, const fy_conn *porch)
{
    /* Few in one round, as at the door: who knocks faster than we answer must not keep us here. */
    for (int i = 0; i < FY_CONTROL_ROUND; i++) {
        int fd = accept4(porch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        bool short_of_fds = fd < 0 && (errno == EMFILE || errno == ENFILE);
        if (fd < 0 && !short_of_fds) {
            return;
        }
        make_room(process, short_of_fds);
        if (short_of_fds) {
            return;
        }
        fy_conn *guest = fy_control_add(process, FY_CONN_GUEST, fd, NULL);
        if (guest == NULL) {
            close(fd);
        } else {
            guest->guest.fd = fd;
        }
    }
}

static void keep_parcel(fy_process *process, uint64_t tag, int fd)
{
    fy_parcel *parcel = fy_alloc(1, sizeof *parcel);
    if (parcel == NULL) {
        close(fd);
        fy_process_fail(process, FERRY_ERR_NO_MEMORY, process->claim,
                        "rank %u has no memory to keep a descriptor", process->claim);
        return;
    }
    *parcel = (fy_parcel){.next = process->parcels, .tag = tag, .fd = fd};
    process->parcels = parcel;
    fy_bell_ring(process->world->bell);
}

/* From one guest, or from the host itself, to all others. */
static void pass_on(fy_process *process, const fy_conn *from, uint64_t tag, int fd)
{
    for (fy_conn *conn = process->conns; conn != NULL; conn = conn->next) {
        if (conn->kind == FY_CONN_GUEST && !conn->dead && conn->guest.step == 2 && conn != from &&
            conn->doomed_ns == 0 && !fy_line_pass(conn->fd, tag, fd)) {
            fy_node_doom(process, conn);
        }
    }
}

void fy_node_guest(fy_process *process, fy_conn *conn)
{
    if (conn->guest.step < 2) {
        bool proven;
        if (fy_line_admit(&conn->guest, process->key, &proven, NULL) != FERRY_OK) {
            fy_control_drop(process, conn);
        } else if (proven) {
            conn->claim = conn->guest.slot;
            fy_line_pass(conn->fd, BOARD_TAG, process->board_fd);
            fy_node_watch_life(process, conn->fd, conn->claim);
        }
        return;
    }
    uint64_t tag;
    int fd, got;
    while ((got = fy_line_take(conn->fd, &tag, &fd)) == 1) {
        pass_on(process, conn, tag, fd);
        keep_parcel(process, tag, fd);
    }
    if (got < 0) {
        fy_node_doom(process, conn);
    }
}

void fy_node_line(fy_process *process, fy_conn *conn)
{
    uint64_t tag;
    int fd, got;
    while ((got = fy_line_take(conn->fd, &tag, &fd)) == 1) {
        keep_parcel(process, tag, fd);
    }
    if (got < 0) {
        fy_node_doom(process, conn);
    }
}

/* Lives. */

/* A tenth of the deadline, a tenth of a second at most. */
static int64_t grace_ns(const fy_process *process)
{
    int64_t grace = process->deadline_ns / 10;
    return grace < 100 * 1000 * 1000 ? grace : 100 * 1000 * 1000;
}

void fy_node_suspect(ferry_world *world, uint32_t rank, const char *sentence)
{
    fy_process *process = world->impl;
    pthread_mutex_lock(&process->lock);
    if (process->suspect_ns == 0 && !process->leaving) {
        process->suspect = rank;
        process->suspect_ns = fy_now_ns() + grace_ns(process);
        process->hurries = true;
        snprintf(process->suspect_text, sizeof process->suspect_text, "%s", sentence);
    }
    pthread_mutex_unlock(&process->lock);
    fy_control_poke(process);
}

static void check_suspect(fy_process *process, int64_t now_ns)
{
    if (process->asks || process->suspect_ns == 0) {
        return;
    }
    if (now_ns < process->suspect_ns) {
        process->hurries = true;
    } else if (!process->leaving && !fy_failed(&process->failure)) {
        fy_news_ask(process);
    }
}

void fy_node_doom(fy_process *process, fy_conn *conn)
{
    if (conn->claim == FERRY_ANY_RANK || process->leaving || fy_failed(&process->failure)) {
        if (conn->claim != FERRY_ANY_RANK && process->tabled && !process->leaving) {
            fy_process_mark_lost(process, conn->rank);
        }
        fy_control_drop(process, conn);
        return;
    }
    conn->doomed_ns = fy_now_ns() + grace_ns(process);
    process->hurries = true;
    fy_control_mute(process, conn);
}

void fy_node_tick(fy_process *process, int64_t now_ns)
{
    process->hurries = false;
    check_suspect(process, now_ns);
    for (fy_conn *conn = process->conns; conn != NULL; conn = conn->next) {
        if (conn->dead || conn->doomed_ns == 0 || now_ns < conn->doomed_ns) {
            process->hurries = process->hurries || (!conn->dead && conn->doomed_ns != 0);
            continue;
        }
        /* Who entered the node and never joined is no rank of this world: its claim is not, either.
         */
        bool tabled = atomic_load(&process->tabled);
        uint32_t rank = tabled ? conn->rank : conn->claim;
        if (rank != FERRY_ANY_RANK && !process->leaving && !atomic_load(&process->all_left)) {
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

static bool parcel_is_here(void *context)
{
    awaited *want = context;
    fy_process *process = want->process;
    pthread_mutex_lock(&process->lock);
    for (fy_parcel **at = &process->parcels; *at != NULL; at = &(*at)->next) {
        fy_parcel *parcel = *at;
        if (parcel->tag == want->tag) {
            want->fd = parcel->fd;
            *at = parcel->next;
            fy_free(parcel);
            break;
        }
    }
    pthread_mutex_unlock(&process->lock);
    return want->fd >= 0;
}

static ferry_status give(fy_process *process, uint64_t tag, int fd, ferry_error *error)
{
    pthread_mutex_lock(&process->lock);
    if (process->host) {
        pass_on(process, NULL, tag, fd);
    } else if (process->line != NULL) {
        fy_line_pass(process->line->fd, tag, fd);
    }
    pthread_mutex_unlock(&process->lock);
    return fy_failure_get(&process->failure, NULL, error);
}

ferry_status fy_node_share(ferry_world *world, int fd, int *fd_out, ferry_error *error)
{
    fy_process *process = world->impl;
    awaited want = {.process = process, .tag = ++process->n_shared, .fd = -1};
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
        fy_world_wait(world, parcel_is_here, NULL, &want, process->entry_ns, error);
    if (status == FERRY_ERR_TIMEOUT && !fy_failed(&process->failure)) {
        fy_fail(error, status, "rank %u has not shared its memory with rank %u",
                world->local_ranks[0], world->rank);
    }
    if (status == FERRY_OK) {
        *fd_out = want.fd;
    }
    return status;
}
