/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that do not come to the shrinking: one that lives, and one whose port is a stranger's by
 * then. How long it takes the others to go on is not looked at, only that they do.
 */
#include "world/link.h"

#include "processes.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

enum { OUT, SHRUNK, TOLD };
enum { RANKS = 4 };

/* One that lives, whichever it is. After a join limit they go on without it, and it is told so. */

static void run(rank_process *self)
{
    uint32_t absent = *(const uint32_t *)self->context;
    ferry_world *smaller = NULL;
    so(self, ferry_world_barrier(self->world, &self->error) == FERRY_OK);
    add_mark(self->shared, OUT);
    await_mark(self->shared, OUT, RANKS);
    if (self->rank == RANKS - 1 - (absent == RANKS - 1)) {
        ferry_world_abort(self->world, "a smaller one is wanted");
    }
    so(self, await_failure(self, NULL) == FERRY_ERR_ABORTED);
    if (self->rank == absent) {
        await_mark(self->shared, SHRUNK, RANKS - 1);
        ferry_status status = ferry_world_shrink(self->world, 0, &smaller, &self->error);
        so(self, status == FERRY_ERR_ABORTED || status == FERRY_ERR_PEER_LOST);
        so(self, strstr(self->error.message, "gone on") != NULL ||
                     strstr(self->error.message, "go on") != NULL);
        add_mark(self->shared, TOLD);
        return;
    }
    so(self, ferry_world_shrink(self->world, 0, &smaller, &self->error) == FERRY_OK);
    so(self, ferry_world_rank_count(smaller) == RANKS - 1);
    for (uint32_t rank = 0; rank < RANKS - 1; rank++) {
        so(self, ferry_world_member_of(smaller, rank) == rank + (rank >= absent));
    }
    so(self, ferry_world_barrier(smaller, &self->error) == FERRY_OK);
    add_mark(self->shared, SHRUNK);
    await_mark(self->shared, TOLD, 1);
    ferry_world_destroy(smaller);
}

/* Both cases wait for the limit at once. It is long, as the others are to come within it. */
static void test_absent(void **state)
{
    (void)state;
    processes all[2];
    uint32_t absent[2] = {0, 1};
    for (int i = 0; i < 2; i++) {
        rank_process like = patient_ranks("absent", RANKS);
        like.context = &absent[i];
        like.options.join_seconds = 8;
        start_processes(&all[i], &like, run);
    }
    for (int i = 0; i < 2; i++) {
        end_processes("absent", &all[i], RANKS, FERRY_ANY_RANK);
    }
}

/*
 * The first rank dies, and at its port is another: a rank of a world with another key, a server of
 * something else, one that hangs up and one that says nothing. It is a process that the rank has
 * made, with its listener; it holds its connections open, too, so nobody knows of the death before
 * he looks for the rank.
 */

enum { TAKEN, FAILED, SHRUNK_BY_ALL }; /* marks */
enum { OTHER_KEY, OTHER_PROTOCOL, HANGS_UP, SAYS_NOTHING, N_STRANGERS };

/* Where others find this process: its only listener that has a port. */
static int find_door(void)
{
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_storage address = {0};
        socklen_t length = sizeof address;
        int listens = 0;
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &(socklen_t){sizeof listens});
        if (listens && getsockname(fd, (struct sockaddr *)&address, &length) == 0 &&
            (address.ss_family == AF_INET || address.ss_family == AF_INET6)) {
            return fd;
        }
    }
    return -1;
}

static void answer_as_other_world(int fd)
{
    static const unsigned char key[FY_KEY_BYTES] = {42};
    fy_link *link = NULL;
    if (fy_link_create(fd, true, key, &link, NULL) != FERRY_OK) {
        return;
    }
    while (fy_link_work(link, NULL) == FERRY_OK) {
        poll(&(struct pollfd){fy_link_fd(link), fy_link_events(link), 0}, 1, 1000);
    }
    fy_link_destroy(link);
}

static void answer(int fd, int stranger)
{
    static const char words[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    switch (stranger) {
    case OTHER_KEY:
        answer_as_other_world(fd);
        break;
    case OTHER_PROTOCOL:
        (void)!write(fd, words, sizeof words - 1);
        shutdown(fd, SHUT_WR);
        poll(&(struct pollfd){fd, POLLRDHUP, 0}, 1, 1000);
        close(fd);
        break;
    case HANGS_UP:
        close(fd);
        break;
    case SAYS_NOTHING:
        break;
    }
}

_Noreturn static void be_stranger(rank_process *self, int door)
{
    alarm(120); /* if the others never end */
    add_mark(self->shared, TAKEN);
    while (atomic_load(&self->shared->mark[SHRUNK_BY_ALL]) < RANKS - 1) {
        poll(&(struct pollfd){door, POLLIN, 0}, 1, 20);
        int fd = accept(door, NULL, NULL);
        if (fd >= 0) {
            answer(fd, *(const int *)self->context);
        }
    }
    _exit(0);
}

static void die_and_leave_a_stranger(rank_process *self)
{
    int door = find_door();
    so(self, door >= 0 && fcntl(door, F_SETFL, O_NONBLOCK) == 0);
    pid_t stranger = fork();
    so(self, stranger >= 0);
    if (stranger == 0) {
        be_stranger(self, door);
    }
    raise(SIGKILL);
}

static void run_survivor(rank_process *self)
{
    ferry_world *smaller = NULL;
    so(self, ferry_world_barrier(self->world, &self->error) == FERRY_OK);
    if (self->rank == RANKS - 1) {
        ferry_world_abort(self->world, "a smaller one is wanted");
    }
    so(self, await_failure(self, NULL) == FERRY_ERR_ABORTED);
    add_mark(self->shared, FAILED);
    await_mark(self->shared, FAILED, RANKS);
    if (self->rank == 0) {
        die_and_leave_a_stranger(self);
    }
    await_mark(self->shared, TAKEN, 1);
    so(self, ferry_world_shrink(self->world, 0, &smaller, &self->error) == FERRY_OK);
    so(self, ferry_world_rank_count(smaller) == RANKS - 1);
    so(self, ferry_world_member_of(smaller, 0) == 1);
    so(self, ferry_world_barrier(smaller, &self->error) == FERRY_OK);
    add_mark(self->shared, SHRUNK_BY_ALL);
    ferry_world_destroy(smaller);
}

static void test_strangers(void **state)
{
    (void)state;
    static const char *const rows[] = {"another world", "another protocol", "hangs up",
                                       "says nothing"};
    static const int strangers[] = {OTHER_KEY, OTHER_PROTOCOL, HANGS_UP, SAYS_NOTHING};
    processes all[N_STRANGERS];
    for (int i = 0; i < N_STRANGERS; i++) {
        rank_process like = patient_ranks(rows[i], RANKS);
        like.options.deadline_seconds = 8.0 * FERRY_TEST_PATIENCE; /* a tenth, for an answer */
        like.context = &strangers[i];
        start_processes(&all[i], &like, run_survivor);
    }
    for (int i = 0; i < N_STRANGERS; i++) {
        end_processes(rows[i], &all[i], RANKS, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_absent),
                                       cmocka_unit_test(test_strangers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
