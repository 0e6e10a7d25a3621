/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A newcomer dies, or is stopped, at one moment after another: at the door before the root
 * lets anybody in, before it has said that it joins, before it has reached its parent. Members wait
 * for none of them: the join limit is an hour. They hear whom they lost, and grow again with
 * another. One that waits at the door for longer than a deadline, and lives, is no such newcomer.
 */
#include "world/process.h"

#include "grown.h"
#include "link_post.h"

#ifndef FERRY_TEST_PATIENCE
#define FERRY_TEST_PATIENCE 1
#endif

enum { HURT, FAILED, PLACED };
enum { RANKS = 3, ALL = RANKS + 2 };

/* What becomes of the first newcomer, rank 3. */
typedef struct hurt {
    const char *row;
    const char *nodes;
    uint32_t type; /* before which message, and before the how manieth of those */
    int nth;
    int signal;
    bool is_early; /* before the root lets anybody in */
} hurt;

static shared_marks *marks;
static const hurt *its;
static bool is_it;     /* the newcomer that is hurt */
static int n_messages; /* of the type that counts */

ferry_status __wrap_fy_link_post(fy_link *link, uint32_t type, const void *head, size_t head_bytes,
                                 const void *body, size_t body_bytes, ferry_error *error)
{
    if (type == FY_WIRE_PLACE && marks != NULL) { /* of the larger world */
        add_mark(marks, PLACED);
    }
    if (is_it && its->type == FY_WIRE_ATTACH && type == FY_WIRE_JOIN) {
        await_mark(marks, PLACED, RANKS - 1); /* so that another rank than the root is its parent */
    }
    if (is_it && type == its->type && ++n_messages == its->nth) {
        add_mark(marks, HURT);
        raise(its->signal); /* 0: nothing happens to it */
    }
    return __real_fy_link_post(link, type, head, head_bytes, body, body_bytes, error);
}

ferry_status __real_fy_join_root(fy_process *process, ferry_error *error);
ferry_status __wrap_fy_join_root(fy_process *process, ferry_error *error);

/* Until then newcomers wait at the door. */
ferry_status __wrap_fy_join_root(fy_process *process, ferry_error *error)
{
    if (marks != NULL && its->is_early && atomic_load(&marks->mark[FAILED]) == 0) {
        await_mark(marks, HURT, 1);
    }
    return __real_fy_join_root(process, error);
}

static void expect_loss(rank_process *self, const ferry_grow_options *options)
{
    ferry_world *larger = NULL;
    ferry_status status = ferry_world_grow(self->world, options, &larger, &self->error);
    so(self, status == (its->signal == SIGKILL ? FERRY_ERR_PEER_LOST : FERRY_ERR_TIMEOUT));
    so(self, larger == NULL && strstr(self->error.message, "rank 3 ") != NULL);
    so(self, access(meeting, F_OK) != 0);
    check_world(self, self->world, RANKS, 0);
    add_mark(marks, FAILED);
    await_mark(marks, FAILED, RANKS);
}

static void member(rank_process *self)
{
    ferry_grow_options options = growth_of(1);
    its = self->context;
    marks = self->shared;
    if (its->signal != 0) {
        expect_loss(self, &options);
    }
    replace(self, grow(self, &options));
    check_world(self, self->world, RANKS + 1, 1);
}

static void newcomer_hurt(rank_process *self)
{
    its = self->context;
    marks = self->shared;
    is_it = true;
    join(self);
    so(self, its->signal == 0); /* others do not get so far */
    check_world(self, self->world, RANKS + 1, 1);
}

static void newcomer_after(rank_process *self)
{
    await_mark(self->shared, FAILED, RANKS);
    join(self);
    check_world(self, self->world, RANKS + 1, 1);
}

static void run_hurt(const hurt *row)
{
    processes all;
    rank_process like = patient_ranks(row->row, RANKS);
    bool lives = row->signal == 0;
    like.options.deadline_seconds = 2 * FERRY_TEST_PATIENCE;
    like.options.nodes = row->nodes;
    like.context = row;
    snprintf(meeting, sizeof meeting, "/tmp/ferry-grow-newcomers-%d", (int)getpid());
    start_processes(&all, &like, member);
    start_newcomer(&all, &like, RANKS, newcomer_hurt);
    if (!lives) {
        start_newcomer(&all, &like, RANKS + 1, newcomer_after);
    }
    if (row->signal == SIGSTOP) {
        await_mark(all.shared, FAILED, RANKS);
        kill(all.pids[RANKS], SIGKILL);
    }
    end_processes(row->row, &all, lives ? RANKS + 1 : RANKS + 2, lives ? FERRY_ANY_RANK : RANKS);
}

static void run_rows(const hurt *rows, size_t n_rows)
{
    for (size_t i = 0; i < n_rows; i++) {
        run_hurt(&rows[i]);
    }
}

static void test_before_it_joins(void **state)
{
    static const hurt rows[] = {
        {"killed before JOIN", NULL, FY_WIRE_JOIN, 1, SIGKILL, false},
        {"killed before JOIN, two nodes", "2,1", FY_WIRE_JOIN, 1, SIGKILL, false},
        {"stopped before JOIN", NULL, FY_WIRE_JOIN, 1, SIGSTOP, false},
        {"stopped before JOIN, two nodes", "2,1", FY_WIRE_JOIN, 1, SIGSTOP, false},
    };
    (void)state;
    run_rows(rows, COUNT_OF(rows));
}

static void test_before_its_parent_has_it(void **state)
{
    static const hurt rows[] = {
        {"killed before ATTACH", "2,1", FY_WIRE_ATTACH, 1, SIGKILL, false},
        {"stopped before ATTACH", "2,1", FY_WIRE_ATTACH, 1, SIGSTOP, false},
    };
    (void)state;
    run_rows(rows, COUNT_OF(rows));
}

/*
 * By its fourth sign of life it has a number, and waits to be let in; after 24 it has waited for
 * longer than silence is borne.
 */
static void test_before_it_is_let_in(void **state)
{
    static const hurt rows[] = {
        {"killed at the door", NULL, FY_WIRE_BEAT, 4, SIGKILL, true},
        {"stopped at the door", NULL, FY_WIRE_BEAT, 4, SIGSTOP, true},
        {"waits long at the door", NULL, FY_WIRE_BEAT, 24, 0, true},
    };
    (void)state;
    run_rows(rows, COUNT_OF(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_it_joins),
        cmocka_unit_test(test_before_its_parent_has_it),
        cmocka_unit_test(test_before_it_is_let_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
