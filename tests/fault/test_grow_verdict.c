/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0 alone knows that all have voted for a larger world, and is stopped or dies before it has
 * told anybody; and ranks that do not agree on whether the root of a smaller world is lost. All
 * that go on must end in one world, and who is left behind hears it and holds nobody up. This
 * program stands in front of what the ranks do, so nothing here depends on time: where something is
 * wrong a join limit is waited for.
 */
#include "world/process.h"

#include "link_post.h"
#include "processes.h"

#include <pthread.h>
#include <string.h>

#ifndef FERRY_TEST_PATIENCE
#define FERRY_TEST_PATIENCE 1
#endif

enum { STOPPED, FAILED, HELD, COMPLETE, OUT, DONE };
enum { RANKS = 3, MOST_RANKS = 4 };

static char meeting[64];

/* Rank 0: what it does to itself before the first message that says how the vote has ended. */
static int verdict_signal;
static _Atomic int n_agreed; /* results of agreements that it has passed on */

ferry_status __real_fy_join_member(fy_process *process, const char *addresses,
                                   const unsigned char key[FY_KEY_BYTES], int64_t connect_ns,
                                   ferry_error *error);
ferry_status __wrap_fy_join_member(fy_process *process, const char *addresses,
                                   const unsigned char key[FY_KEY_BYTES], int64_t connect_ns,
                                   ferry_error *error);

/*
 * How many of them come before the vote: all agree on the options, and that rank 0 is there to be
 * joined. All other ranks are its children.
 */
static int n_before;

static bool is_verdict(uint32_t type, const void *head, size_t head_bytes)
{
    if (verdict_signal == 0 || type != FY_WIRE_DOWN) {
        return false;
    }
    fy_reader reader = fy_reader_of(head, head_bytes);
    fy_read_u64(&reader); /* the number of the collective */
    return fy_read_u32(&reader) == FY_AGREEMENT && atomic_fetch_add(&n_agreed, 1) == n_before;
}

/* What one in doubt tells another of the larger world would come sooner or later. */
static bool is_of_larger(uint32_t type, const void *head, size_t head_bytes)
{
    if (type != FY_WIRE_NEWS) {
        return false;
    }
    fy_reader reader = fy_reader_of(head, head_bytes);
    return fy_read_u32(&reader) == 1;
}

ferry_status __wrap_fy_link_post(fy_link *link, uint32_t type, const void *head, size_t head_bytes,
                                 const void *body, size_t body_bytes, ferry_error *error)
{
    if (is_verdict(type, head, head_bytes)) {
        raise(verdict_signal);
    }
    return is_of_larger(type, head, head_bytes)
               ? FERRY_OK
               : __real_fy_link_post(link, type, head, head_bytes, body, body_bytes, error);
}

/* A rank in doubt about the larger world, which looks for the root of a smaller one: rank 0. */
static rank_process *in_doubt;

ferry_status __wrap_fy_join_member(fy_process *process, const char *addresses,
                                   const unsigned char key[FY_KEY_BYTES], int64_t connect_ns,
                                   ferry_error *error)
{
    rank_process *self = in_doubt;
    if (self != NULL && process->root_claim == 0 && process->epoch == 1) {
        fy_process *old = self->world->impl;
        add_mark(self->shared, HELD);
        await_mark(self->shared, COMPLETE, 1);
        if (self->rank == 1) { /* as by news that come in the larger world just now */
            fy_process_mark_lost(old->shrinking.doubt, 0);
        }
    }
    return __real_fy_join_member(process, addresses, key, connect_ns, error);
}

static void shrink(rank_process *self)
{
    ferry_world *next = NULL;
    so(self, ferry_world_shrink(self->world, 0, &next, &self->error) == FERRY_OK);
    ferry_world_destroy(self->world);
    self->world = next;
}

/* Until a world holds; who is in it. */
static void shrink_to(rank_process *self, const uint32_t *members, uint32_t n)
{
    while (ferry_world_state(self->world, NULL, NULL) != FERRY_OK ||
           ferry_world_barrier(self->world, NULL) != FERRY_OK) {
        shrink(self);
    }
    so(self, ferry_world_rank_count(self->world) == n);
    for (uint32_t r = 0; r < n; r++) {
        so(self, ferry_world_member_of(self->world, r) == members[r]);
    }
    add_mark(self->shared, DONE);
}

/* The world of a rank that is left behind stays open until the others are done without it. */
static void be_left_behind(rank_process *self, ferry_world *world, int n_others)
{
    ferry_world *smaller = NULL;
    for (int i = 0; i < 2; i++) { /* and again */
        so(self, ferry_world_shrink(world, 0, &smaller, &self->error) == FERRY_ERR_PEER_LOST);
        so(self, smaller == NULL);
        so(self, strstr(self->error.message, "was itself counted as lost") != NULL);
        add_mark(self->shared, OUT);
    }
    await_mark(self->shared, DONE, n_others);
}

static ferry_status grow(rank_process *self, ferry_world **larger)
{
    ferry_grow_options options = FERRY_GROW_OPTIONS_INIT;
    options.n_newcomers = 1;
    options.path = meeting;
    return ferry_world_grow(self->world, &options, larger, &self->error);
}

/* A process that comes to the world and that no world takes in. */
static void start_newcomer(processes *all, const rank_process *like)
{
    rank_process self;
    if (fork_rank(all, like, like->n_ranks, &self)) {
        so(&self, ferry_world_join(meeting, &self.options, &self.world, &self.error) != FERRY_OK);
        so(&self, strstr(self.error.message, "rank 0") != NULL);
        _exit(0);
    }
}

/* Somebody sees that rank 0 is stopped, while its caller is in the growing. */
static void *see_stopped(void *context)
{
    rank_process *self = context;
    await_mark(self->shared, STOPPED, 1);
    fy_world_fail(self->world, FERRY_ERR_TIMEOUT, 0, "rank 0 is stopped, as somebody knows");
    return NULL;
}

/* How long a root waits before it asks those who do not come is a part of the deadline. */
static rank_process short_ranks(const char *row, uint32_t n_ranks)
{
    rank_process like = patient_ranks(row, n_ranks);
    like.options.deadline_seconds = 8 * FERRY_TEST_PATIENCE;
    like.options.join_seconds = 40 * FERRY_TEST_PATIENCE;
    return like;
}

static const uint32_t all_but_0[] = {1, 2};

/* It has the larger world, and has lost it. */
static void wake_late(rank_process *self)
{
    ferry_world *larger = NULL, *old = self->world;
    verdict_signal = SIGSTOP;
    so(self, grow(self, &larger) == FERRY_OK);
    self->world = larger;
    so(self, await_failure(self, NULL) == FERRY_ERR_TIMEOUT);
    add_mark(self->shared, COMPLETE);
    be_left_behind(self, larger, RANKS - 1);
    ferry_world_destroy(larger);
    self->world = old;
}

static void run_woken(rank_process *self)
{
    pthread_t thread;
    ferry_world *larger = NULL;
    if (self->rank == 0) {
        wake_late(self);
        return;
    }
    if (self->rank == 1) {
        so(self, pthread_create(&thread, NULL, see_stopped, self) == 0);
    }
    so(self, grow(self, &larger) == FERRY_ERR_TIMEOUT);
    if (self->rank == 1) {
        pthread_join(thread, NULL);
    }
    in_doubt = self;
    shrink(self); /* what the root says is of the larger world, so all have it */
    in_doubt = NULL;
    so(self, ferry_world_rank_count(self->world) == RANKS + 1);
    shrink_to(self, all_but_0, RANKS - 1);
}

/* Rank 0 wakes when the others look for a root, and at that moment it is lost in the larger one. */
static void test_woken(void **state)
{
    static const char *const nodes[] = {NULL, "3"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(nodes); i++) {
        rank_process like = short_ranks("woken", RANKS);
        processes all;
        like.options.nodes = nodes[i];
        n_before = 2 * (RANKS - 1);
        start_processes(&all, &like, run_woken);
        start_newcomer(&all, &like);
        await_stop(&all, 0);
        add_mark(all.shared, STOPPED);
        await_mark(all.shared, HELD, RANKS - 1);
        kill(all.pids[0], SIGCONT);
        end_processes("woken", &all, RANKS + 1, FERRY_ANY_RANK);
        unlink(meeting);
    }
}

/*
 * All survivors are in doubt, and rank 2 has given up rank 1, which lives: one of them makes the
 * world, and rank 3 is there.
 */
static void run_given_up(rank_process *self)
{
    static const uint32_t last_two[] = {2, 3};
    ferry_world *larger = NULL;
    verdict_signal = self->rank == 0 ? SIGKILL : 0;
    so(self, grow(self, &larger) == FERRY_ERR_PEER_LOST);
    if (self->rank == 2) {
        fy_doubt_mark_lost(self->world->impl, 1);
    }
    add_mark(self->shared, FAILED);
    await_mark(self->shared, FAILED, MOST_RANKS - 1);
    if (self->rank == 1) {
        be_left_behind(self, self->world, 2);
    } else {
        shrink_to(self, last_two, 2);
    }
}

static void test_given_up_in_doubt(void **state)
{
    (void)state;
    rank_process like = short_ranks("given up in doubt", MOST_RANKS);
    processes all;
    n_before = 2 * (MOST_RANKS - 1);
    start_processes(&all, &like, run_given_up);
    start_newcomer(&all, &like);
    end_processes(like.row, &all, MOST_RANKS + 1, 0);
    unlink(meeting);
}

/* In a world that has failed rank 1 has given up rank 0, and rank 2 has not. */

static bool is_somebody_parked(fy_process *process)
{
    bool is = false;
    pthread_mutex_lock(&process->lock);
    for (const fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        is = is || (!conn->dead && conn->role == FY_ROLE_PARKED);
    }
    pthread_mutex_unlock(&process->lock);
    return is;
}

typedef enum when { NEVER, BEFORE, AFTER } when;

static void run_split(rank_process *self)
{
    when knows = *(const when *)self->context; /* rank 0, against the knocking of rank 2 */
    so(self, ferry_world_barrier(self->world, &self->error) == FERRY_OK);
    if (self->rank == 1) {
        ferry_world_abort(self->world, "a smaller one is wanted");
    }
    so(self, await_failure(self, NULL) == FERRY_ERR_ABORTED);
    if (self->rank == 1 || (self->rank == 0 && knows != NEVER)) {
        fy_process_mark_lost(self->world->impl, 0);
    }
    if (self->rank != 0 && knows == BEFORE) {
        await_mark(self->shared, OUT, 1);
    }
    while (self->rank == 0 && knows == AFTER && !is_somebody_parked(self->world->impl)) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (self->rank == 0) {
        be_left_behind(self, self->world, RANKS - 1);
    } else {
        shrink_to(self, all_but_0, RANKS - 1);
    }
}

static void test_split(void **state)
{
    static const struct {
        const char *name;
        when knows;
    } rows[] = {{"does not know", NEVER}, {"knows before", BEFORE}, {"knows after", AFTER}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        rank_process like = short_ranks(rows[i].name, RANKS);
        processes all;
        like.context = &rows[i].knows;
        start_processes(&all, &like, run_split);
        end_processes(like.row, &all, RANKS, FERRY_ANY_RANK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_woken),
        cmocka_unit_test(test_given_up_in_doubt),
        cmocka_unit_test(test_split),
    };
    snprintf(meeting, sizeof meeting, "/tmp/ferry-verdict-%d", (int)getpid());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
