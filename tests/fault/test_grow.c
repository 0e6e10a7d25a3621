/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks join a world of processes: one and several, again and again, after a loss, in a file and at
 * a port; newcomers that never come, have another secret, or are one too many; members that do not
 * come. What is not to be leaves the old world as it was.
 */
#include "grown.h"

#include <ferry/log.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { CAME, CHECKED };
enum { RANKS = 3 };

static void run_grown(const char *row, const rank_process *like, uint32_t n_newcomers,
                      void (*member)(rank_process *self), void (*newcomer)(rank_process *self))
{
    processes all;
    snprintf(meeting, sizeof meeting, "/tmp/ferry-grow-%d", (int)getpid());
    start_processes(&all, like, member);
    for (uint32_t n = 0; n < n_newcomers; n++) {
        start_newcomer(&all, like, like->n_ranks + n, newcomer);
    }
    end_processes(row, &all, like->n_ranks + n_newcomers, FERRY_ANY_RANK);
    check_row(row, access(meeting, F_OK) != 0);
}

/* One newcomer, or several. */

static void member_of_one(rank_process *self)
{
    uint32_t n = *(const uint32_t *)self->context;
    ferry_grow_options options = growth_of(n);
    ferry_world *larger = grow(self, &options);
    for (uint32_t r = 0; r < RANKS + n; r++) {
        so(self, ferry_world_member_of(larger, r) == r);
    }
    check_world(self, larger, RANKS + n, 1);
    check_world(self, self->world, RANKS, 0); /* the old one stands, and stays what it was */
    replace(self, larger);
}

static void newcomer_of_one(rank_process *self)
{
    uint32_t n = *(const uint32_t *)self->context;
    join(self);
    so(self, ferry_world_rank(self->world) >= RANKS);
    check_world(self, self->world, RANKS + n, 1);
}

static void test_one_and_several(void **state)
{
    static const struct {
        const char *nodes;
        uint32_t n;
    } rows[] = {{NULL, 1}, {NULL, 4}, {"2", 1}, {"1,2", 3}, {"3", 4}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        rank_process like = patient_ranks("several", RANKS);
        like.options.nodes = rows[i].nodes;
        like.options.secret = "a secret";
        like.context = &rows[i].n;
        run_grown("several", &like, rows[i].n, member_of_one, newcomer_of_one);
    }
}

/* A world of one rank can grow, too. */
static void member_alone(rank_process *self)
{
    ferry_grow_options options = growth_of(0);
    ferry_world *larger = grow(self, &options);
    check_world(self, larger, 2, 1);
    replace(self, larger);
}

static void newcomer_to_one(rank_process *self)
{
    join(self);
    so(self, ferry_world_node_count(self->world) == (self->options.nodes == NULL ? 1 : 2));
    check_world(self, self->world, 2, 1);
}

static void test_alone(void **state)
{
    (void)state;
    rank_process like = patient_ranks("alone", 1);
    run_grown("alone", &like, 1, member_alone, newcomer_to_one);
    like.options.nodes = "2"; /* of which the second is to come */
    run_grown("alone on a node", &like, 1, member_alone, newcomer_to_one);
}

/* So can one that nobody started as one of several, which is a world of threads. */
static void member_as_thread(rank_process *self)
{
    ferry_world *own = NULL, *larger = NULL;
    ferry_grow_options options = growth_of(1);
    so(self, ferry_world_create_threads(1, &self->options, &own, &self->error) == FERRY_OK);
    replace(self, own);
    options.path = "/tmp/ferry-grow-nobody";
    options.join_seconds = 0.1;
    so(self, ferry_world_grow(own, &options, &larger, &self->error) == FERRY_ERR_TIMEOUT);
    so(self, strstr(self->error.message, "rank 1 of 2 never came") != NULL);
    so(self, larger == NULL && ferry_world_barrier(own, &self->error) == FERRY_OK);
    options = growth_of(1);
    larger = grow(self, &options);
    so(self, ferry_world_barrier(own, &self->error) == FERRY_OK); /* stays what it was */
    check_world(self, larger, 2, 1);
    so(self, ferry_world_member_of(larger, 1) == 1);
    replace(self, larger);
}

static void test_alone_as_thread(void **state)
{
    (void)state;
    rank_process like = patient_ranks("alone as a thread", 1);
    like.options.secret = "a secret";
    run_grown("alone as a thread", &like, 1, member_as_thread, newcomer_to_one);
    like.options.nodes = "2";
    run_grown("alone as a thread on a node", &like, 1, member_as_thread, newcomer_to_one);
}

/* What is left of a world of threads that shrank to one is the epoch after it, too. */
static void member_left_over(rank_process *self)
{
    ferry_world *both[2], *own = NULL;
    ferry_grow_options options = growth_of(1);
    static const uint32_t first = 0;
    so(self, ferry_world_create_threads(2, &self->options, both, &self->error) == FERRY_OK);
    ferry_world_leave(both[0], "it is to be lost");
    so(self, ferry_world_shrink(both[1], 0, &own, &self->error) == FERRY_OK);
    so(self, ferry_world_epoch(own) == 1 && ferry_world_member_of(own, 0) == 1);
    replace(self, own);
    options.members = &first; /* in the place of the one that has left */
    replace(self, grow(self, &options));
    so(self, ferry_world_member_of(self->world, 0) == 1);
    check_world(self, self->world, 2, 2);
    ferry_world_destroy(both[0]);
    ferry_world_destroy(both[1]);
}

static void newcomer_to_left_over(rank_process *self)
{
    join(self);
    so(self, ferry_world_member_of(self->world, 1) == 0);
    check_world(self, self->world, 2, 2);
}

static void test_left_over(void **state)
{
    (void)state;
    rank_process like = patient_ranks("left over", 1);
    run_grown("left over", &like, 1, member_left_over, newcomer_to_left_over);
}

/*
 * Newcomers whose own deadlines are other ones have the members', which is how often ranks there
 * give signs of life: one that is far shorter waits at the door for another newcomer, and nobody
 * counts as silent.
 */

static void member_of_impatient(rank_process *self)
{
    ferry_grow_options options = growth_of(2);
    replace(self, grow(self, &options));
    check_world(self, self->world, RANKS + 2, 1);
}

static void newcomer_impatient(rank_process *self)
{
    double deadline = self->options.deadline_seconds;
    if (self->rank == RANKS) {
        self->options.deadline_seconds = 0.2;
    } else {
        wait_ms(1500); /* the other has none of its deadlines' time left by then */
        self->options.deadline_seconds = 2 * deadline;
    }
    join(self);
    so(self, ferry_world_deadline(self->world) == deadline);
    check_world(self, self->world, RANKS + 2, 1);
}

static void test_impatient(void **state)
{
    (void)state;
    rank_process like = patient_ranks("impatient", RANKS);
    run_grown("impatient", &like, 2, member_of_impatient, newcomer_impatient);
}

/* Two joins after each other: the first newcomer is a member of the second. */

static void grow_again(rank_process *self)
{
    ferry_grow_options options = growth_of(1);
    ferry_world *larger = grow(self, &options);
    so(self, ferry_world_member_of(larger, RANKS + 1) == 8);
    check_world(self, larger, RANKS + 2, 2);
    replace(self, larger);
}

static void member_twice(rank_process *self)
{
    static const uint32_t seven = 7;
    ferry_grow_options options = growth_of(1);
    options.members = &seven; /* so the next newcomer is member 8 */
    replace(self, grow(self, &options));
    check_world(self, self->world, RANKS + 1, 1);
    grow_again(self);
}

static void newcomer_twice(rank_process *self)
{
    join(self);
    if (ferry_world_epoch(self->world) == 1) {
        check_world(self, self->world, RANKS + 1, 1);
        grow_again(self);
    } else {
        check_world(self, self->world, RANKS + 2, 2);
        so(self, ferry_world_rank(self->world) == RANKS + 1);
    }
}

static void test_twice(void **state)
{
    (void)state;
    rank_process like = patient_ranks("twice", RANKS);
    run_grown("twice", &like, 2, member_twice, newcomer_twice);
}

/* A rank is lost, the others shrink, a newcomer takes its place, and one more dies. */

enum { LOST = 1 };

static void lose(rank_process *self, uint32_t rank)
{
    if (ferry_world_rank(self->world) == rank) {
        ferry_world_leave(self->world, "it is to be lost");
        return;
    }
    ferry_world *smaller = NULL;
    so(self, await_failure(self, NULL) == FERRY_ERR_PEER_LOST);
    so(self, ferry_world_shrink(self->world, 0, &smaller, &self->error) == FERRY_OK);
    replace(self, smaller);
}

static void check_restarted(rank_process *self)
{
    static const uint32_t members[] = {0, 2, LOST};
    for (uint32_t r = 0; r < RANKS; r++) {
        so(self, ferry_world_member_of(self->world, r) == members[r]);
    }
    check_world(self, self->world, RANKS, 2);
    add_mark(self->shared, CHECKED);
    await_mark(self->shared, CHECKED, RANKS);
    lose(self, 0); /* ranks keep their order, whatever their numbers as members are */
    if (ferry_world_epoch(self->world) == 3) {
        so(self, ferry_world_member_of(self->world, 0) == 2);
        so(self, ferry_world_member_of(self->world, 1) == LOST);
        check_world(self, self->world, RANKS - 1, 3);
    }
}

static void member_of_restarted(rank_process *self)
{
    static const uint32_t member = LOST;
    lose(self, LOST);
    if (self->rank == LOST) {
        return;
    }
    ferry_grow_options options = growth_of(1);
    options.members = &member;
    replace(self, grow(self, &options));
    check_restarted(self);
}

static void newcomer_restarted(rank_process *self)
{
    join(self);
    check_restarted(self);
}

static void test_restarted(void **state)
{
    (void)state;
    rank_process like = patient_ranks("restarted", RANKS);
    run_grown("restarted", &like, 1, member_of_restarted, newcomer_restarted);
}

/* One that never comes, and one with another secret. Then one that comes. */

static void expect_late(rank_process *self, const char *text)
{
    ferry_world *larger = NULL;
    ferry_grow_options options = growth_of(1);
    options.join_seconds = 2;
    so(self, ferry_world_grow(self->world, &options, &larger, &self->error) == FERRY_ERR_TIMEOUT);
    so(self, larger == NULL);
    so(self, strstr(self->error.message, "rank 3 of 4 never came") != NULL);
    so(self, text == NULL || strstr(self->error.message, text) != NULL);
    so(self, access(meeting, F_OK) != 0);
    so(self, ferry_world_state(self->world, NULL, &self->error) == FERRY_OK);
    check_world(self, self->world, RANKS, 0);
}

static void member_of_late(rank_process *self)
{
    ferry_grow_options options = growth_of(1);
    expect_late(self, NULL);
    add_mark(self->shared, CAME);
    replace(self, grow(self, &options));
    check_world(self, self->world, RANKS + 1, 1);
}

static void newcomer_late(rank_process *self)
{
    await_mark(self->shared, CAME, RANKS);
    join(self);
    check_world(self, self->world, RANKS + 1, 1);
}

static void test_never_came(void **state)
{
    (void)state;
    rank_process like = patient_ranks("never came", RANKS);
    run_grown("never came", &like, 1, member_of_late, newcomer_late);
}

static void member_of_stranger(rank_process *self)
{
    ferry_world *larger = NULL;
    ferry_grow_options options = growth_of(1);
    options.join_seconds = 4;
    so(self, ferry_world_grow(self->world, &options, &larger, &self->error) == FERRY_ERR_TIMEOUT);
    so(self, strstr(self->error.message, "did not prove the secret") != NULL);
    check_world(self, self->world, RANKS, 0);
}

static void newcomer_stranger(rank_process *self)
{
    self->options.secret = "another";
    self->options.deadline_seconds = 0.2; /* for so long the file may be an earlier run's */
    ferry_status status = ferry_world_join(meeting, &self->options, &self->world, &self->error);
    so(self, status == FERRY_ERR_DENIED);
    so(self, self->world == NULL);
}

static void test_other_secret(void **state)
{
    (void)state;
    rank_process like = patient_ranks("other secret", RANKS);
    like.options.secret = "a secret";
    run_grown("other secret", &like, 1, member_of_stranger, newcomer_stranger);
}

/* Two come and one is wanted: the other waits for the next time. Nobody comes: it says so. */

static void newcomer_too_many(rank_process *self)
{
    self->options.join_seconds = 1;
    ferry_status status = ferry_world_join(meeting, &self->options, &self->world, &self->error);
    so(self, status == FERRY_ERR_TIMEOUT);
    so(self, strstr(self->error.message, "rank 0 made no rendezvous") != NULL);
    so(self, strstr(self->error.message, "within 1 s: does it run") != NULL);
}

static void nobody(rank_process *self)
{
    (void)self;
}

static void test_nobody_grows(void **state)
{
    (void)state;
    rank_process like = patient_ranks("nobody grows", 1);
    run_grown("nobody grows", &like, 1, nobody, newcomer_too_many);
}

/* Members that ask for different things, or make another call; what is refused at once. */

static void member_that_differs(rank_process *self)
{
    ferry_world *larger = NULL;
    uint32_t taken = 2;
    ferry_grow_options options = growth_of(self->rank == 1 ? 2 : 1);
    so(self,
       ferry_world_grow(self->world, &options, &larger, &self->error) == FERRY_ERR_INVALID_INPUT);
    so(self, strstr(self->error.message, "ranks of the larger world is") != NULL);
    options = growth_of(1);
    options.members = &taken;
    so(self,
       ferry_world_grow(self->world, &options, &larger, &self->error) == FERRY_ERR_INVALID_INPUT);
    so(self, strstr(self->error.message, "cannot be member 2, which is rank 2") != NULL);
    options = growth_of(1);
    options.newcomers_out = self->rank == 1 ? &larger : NULL; /* all hear of it, as of the rest */
    so(self, ferry_world_grow(self->world, &options, &larger, &self->error) == FERRY_ERR_MISUSE);
    so(self, strstr(self->error.message, "newcomers_out is for worlds of threads") != NULL);
    options = growth_of(1);
    options.join_seconds = -1;
    so(self, ferry_world_grow(self->world, &options, &larger, &self->error) == FERRY_ERR_MISUSE);
    so(self, ferry_world_grow(self->world, NULL, NULL, &self->error) == FERRY_ERR_MISUSE);
    check_world(self, self->world, RANKS, 0);
    add_mark(self->shared, CHECKED);
    await_mark(self->shared, CHECKED, RANKS);
    options = growth_of(1);
    ferry_status status = self->rank == 1
                              ? ferry_world_barrier(self->world, &self->error)
                              : ferry_world_grow(self->world, &options, &larger, &self->error);
    so(self, status == FERRY_ERR_MISUSE);
    so(self, strstr(self->error.message, "ferry_world_grow") != NULL);
    so(self, larger == NULL);
}

static void test_differ(void **state)
{
    (void)state;
    rank_process like = patient_ranks("differ", RANKS);
    run_grown("differ", &like, 0, member_that_differs, nobody);
}

/*
 * The old world fails when it has grown, and is shrunk while the larger one goes on. It is not
 * before it has failed; and rank 0, which the others meet, comes when they have knocked.
 */
static void member_that_shrinks(rank_process *self)
{
    ferry_world *smaller = NULL;
    ferry_grow_options options = growth_of(1);
    ferry_world *larger = grow(self, &options);
    so(self, ferry_world_barrier(larger, &self->error) == FERRY_OK);
    so(self, ferry_world_shrink(self->world, 0, &smaller, &self->error) == FERRY_ERR_MISUSE);
    if (self->rank == 0) {
        ferry_world_abort(self->world, "it is to fail");
    }
    so(self, await_failure(self, NULL) == FERRY_ERR_ABORTED);
    if (self->rank == 0) {
        await_mark(self->shared, CAME, RANKS - 1);
        wait_ms(300);
    }
    add_mark(self->shared, CAME);
    so(self, ferry_world_shrink(self->world, 0, &smaller, &self->error) == FERRY_OK);
    check_world(self, smaller, RANKS, 1);
    ferry_world_destroy(smaller);
    replace(self, larger);
    check_world(self, self->world, RANKS + 1, 1);
}

static void newcomer_beside(rank_process *self)
{
    join(self);
    so(self, ferry_world_barrier(self->world, &self->error) == FERRY_OK);
    check_world(self, self->world, RANKS + 1, 1);
}

static void test_old_fails(void **state)
{
    (void)state;
    rank_process like = patient_ranks("old fails", RANKS);
    run_grown("old fails", &like, 1, member_that_shrinks, newcomer_beside);
}

/* Callers that think better of it: when the vote is past, and before they have met anybody. */

static _Atomic bool is_stopped; /* of this process */

static bool ask_stopped(void *context)
{
    (void)context;
    return atomic_load(&is_stopped);
}

/* Rank 0 has the larger world and is asked; the others, who have it too, come late. */
static void hear_complete(void *context, ferry_log_level level, const char *message)
{
    const rank_process *self = context;
    (void)level;
    if (strstr(message, "epoch 1") != NULL && self->rank == 0) {
        atomic_store(&is_stopped, true);
    } else if (strstr(message, "epoch 1") != NULL) {
        wait_ms(300);
    }
}

static void member_stopped_late(rank_process *self)
{
    ferry_grow_options options = growth_of(1);
    ferry_log_configure(FERRY_LOG_INFO, hear_complete, self);
    replace(self, grow(self, &options));
    check_world(self, self->world, RANKS + 1, 1);
    so(self, (self->rank == 0) == atomic_load(&is_stopped));
    ferry_log_configure(FERRY_LOG_WARN, NULL, NULL);
}

static void newcomer_to_stopped(rank_process *self)
{
    join(self);
    check_world(self, self->world, RANKS + 1, 1);
}

static void test_stopped_late(void **state)
{
    (void)state;
    rank_process like = patient_ranks("stopped late", RANKS);
    like.options.is_interrupted = ask_stopped;
    run_grown("stopped late", &like, 1, member_stopped_late, newcomer_to_stopped);
}

/*
 * The others do not wait until the minute for newcomers is over, also one whose caller keeps it from
 * looking for rank 0 until that has gone; nor do they lose that one, for which they wait longer
 * than the old world waits for one of its ranks.
 */
static bool is_slow; /* this rank's caller, once */

static bool ask_slowly(void *context)
{
    if (is_slow) {
        is_slow = false;
        wait_ms(3500);
    }
    return ask_stopped(context);
}

static void member_stopped_early(rank_process *self)
{
    uint32_t who = *(const uint32_t *)self->context;
    ferry_world *larger = NULL;
    ferry_grow_options options = growth_of(1);
    atomic_store(&is_stopped, self->rank == who);
    is_slow = who == 1 && self->rank == 2;
    ferry_status status = ferry_world_grow(self->world, &options, &larger, &self->error);
    so(self, status == (self->rank == who ? FERRY_ERR_STOPPED : FERRY_ERR_TIMEOUT));
    so(self, larger == NULL);
    so(self, self->rank == who || strstr(self->error.message, "did not come: its caller") != NULL);
    check_world(self, self->world, RANKS, 0);
}

static void test_stopped_early(void **state)
{
    (void)state;
    for (uint32_t who = 0; who < RANKS; who++) {
        rank_process like = patient_ranks("stopped early", RANKS);
        like.options.is_interrupted = ask_slowly;
        like.options.entry_seconds = 2;
        like.options.join_seconds = 60;
        like.context = &who;
        run_grown("stopped early", &like, 0, member_stopped_early, nobody);
    }
}

/*
 * Rank 0 runs out of descriptors at one step after another, until it lacks none and waits for a
 * newcomer in vain: the file never stays behind.
 */

static int next_fd(void)
{
    int fd = open("/dev/null", O_RDONLY);
    close(fd);
    return fd;
}

static void member_without_fds(rank_process *self)
{
    enum { MOST_FREE = 100 };
    struct rlimit before;
    ferry_status status = FERRY_OK;
    uint32_t n_free = 0;
    so(self, getrlimit(RLIMIT_NOFILE, &before) == 0);
    for (bool lacks = true; lacks; n_free++) {
        ferry_world *larger = NULL;
        ferry_grow_options options = growth_of(1);
        struct rlimit few = {.rlim_cur = (rlim_t)next_fd() + n_free, .rlim_max = before.rlim_max};
        options.join_seconds = 0.2;
        so(self, n_free < MOST_FREE);
        so(self, setrlimit(RLIMIT_NOFILE, self->rank == 0 ? &few : &before) == 0);
        status = ferry_world_grow(self->world, &options, &larger, &self->error);
        so(self, setrlimit(RLIMIT_NOFILE, &before) == 0);
        so(self, status != FERRY_OK && larger == NULL);
        so(self, access(meeting, F_OK) != 0);
        lacks = strstr(self->error.message, "Too many open files") != NULL;
    }
    so(self, n_free > 4 && status == FERRY_ERR_TIMEOUT);
    check_world(self, self->world, RANKS, 0);
}

static void test_without_fds(void **state)
{
    (void)state;
    rank_process like = patient_ranks("without descriptors", RANKS);
    run_grown("without descriptors", &like, 0, member_without_fds, nobody);
}

/* At a port, which the environment names; RANK and WORLD_SIZE do not count. */

static char port[16];

static void choose_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    close(fd);
    snprintf(port, sizeof port, "%d", ntohs(address.sin_port));
}

static void at_port(void)
{
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    setenv("RANK", "77", 1);
}

static void member_at_port(rank_process *self)
{
    ferry_world *larger = NULL;
    ferry_grow_options options = FERRY_GROW_OPTIONS_INIT;
    so(self, ferry_world_grow(self->world, NULL, &larger, &self->error) == FERRY_ERR_INVALID_INPUT);
    so(self, strstr(self->error.message, "nothing says where") != NULL);
    at_port();
    replace(self, grow(self, &options));
    check_world(self, self->world, RANKS + 1, 1);
}

static void newcomer_at_port(rank_process *self)
{
    at_port();
    so(self, ferry_world_join(NULL, &self->options, &self->world, &self->error) == FERRY_OK);
    check_world(self, self->world, RANKS + 1, 1);
}

/* Where nobody listens it says how long it waited, and not how long its last look took. */
static void newcomer_at_no_port(rank_process *self)
{
    at_port();
    self->options.join_seconds = 0.5;
    ferry_status status = ferry_world_join(NULL, &self->options, &self->world, &self->error);
    so(self, status == FERRY_ERR_TIMEOUT);
    so(self, strstr(self->error.message, "took this rank in within 0.5 s") != NULL);
    so(self, strstr(self->error.message, "no rank was reached: 127.0.0.1:") != NULL);
}

static void test_at_no_port(void **state)
{
    (void)state;
    rank_process like = patient_ranks("at no port", 1);
    choose_port();
    run_grown("at no port", &like, 1, nobody, newcomer_at_no_port);
}

static void test_at_port(void **state)
{
    (void)state;
    rank_process like = patient_ranks("at a port", RANKS);
    choose_port();
    run_grown("at a port", &like, 1, member_at_port, newcomer_at_port);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_and_several), cmocka_unit_test(test_alone),
        cmocka_unit_test(test_alone_as_thread), cmocka_unit_test(test_left_over),
        cmocka_unit_test(test_twice),           cmocka_unit_test(test_restarted),
        cmocka_unit_test(test_never_came),      cmocka_unit_test(test_other_secret),
        cmocka_unit_test(test_nobody_grows),    cmocka_unit_test(test_differ),
        cmocka_unit_test(test_old_fails),       cmocka_unit_test(test_at_port),
        cmocka_unit_test(test_stopped_late),    cmocka_unit_test(test_stopped_early),
        cmocka_unit_test(test_without_fds),     cmocka_unit_test(test_impatient),
        cmocka_unit_test(test_at_no_port),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
