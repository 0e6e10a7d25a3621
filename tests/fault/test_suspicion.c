/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of an engine's word that a rank is lost, and how the news of a failure gets past a
 * rank that does not pass it on. Nothing here depends on time: the deadline is an hour.
 */
#include "transport/host.h"
#include "world/process.h"
#include "world/world.h"

#include "processes.h"

static void shrink_to(rank_process *self, uint32_t n_ranks)
{
    ferry_world *smaller = NULL;
    so(self, ferry_world_shrink(self->world, 0, &smaller, &self->error) == FERRY_OK);
    so(self, ferry_world_rank_count(smaller) == n_ranks);
    so(self, ferry_world_barrier(smaller, &self->error) == FERRY_OK);
    ferry_world_destroy(smaller);
}

/* The lost one lives and knows of nothing: the world ends, but nobody is lost. */
static void run_living(rank_process *self)
{
    uint32_t named;
    so(self, ferry_world_barrier(self->world, &self->error) == FERRY_OK);
    if (self->rank == 2) {
        fy_report_lost(self->world, 1, "rank 1 is lost: so says an engine");
    }
    so(self, await_failure(self, &named) == FERRY_ERR_ABORTED);
    so(self, named == 2);
    so(self, strstr(self->error.message, "rank 1 lives") != NULL);
    so(self, strstr(self->error.message, "so says an engine") != NULL);
    shrink_to(self, self->n_ranks);
}

static void test_living(void **state)
{
    (void)state;
    const char *const nodes[] = {NULL, "3"};
    for (size_t i = 0; i < COUNT_OF(nodes); i++) {
        rank_process like = patient_ranks("living", 3);
        processes all;
        like.options.nodes = nodes[i];
        start_processes(&all, &like, run_living);
        end_processes("living", &all, 3, FERRY_ANY_RANK);
    }
}

enum { OUT, STOPPED, TOLD, ASKED, DONE };

/* Rank 0 passes nothing on: it is stopped. The others get over it when it is killed. */
static void stop_first(rank_process *self)
{
    so(self, ferry_world_barrier(self->world, &self->error) == FERRY_OK);
    add_mark(self->shared, OUT);
    if (self->rank == 0) {
        await_mark(self->shared, OUT, (int)self->n_ranks); /* and has let all of them go */
        raise(SIGSTOP);
    }
    await_mark(self->shared, STOPPED, 1);
}

static void run_behind(rank_process *self)
{
    uint32_t named;
    stop_first(self);
    if (self->rank == 1) {
        fy_world_fail(self->world, FERRY_ERR_TIMEOUT, 0, "rank 0 is stopped, as somebody knows");
    }
    so(self, await_failure(self, &named) == FERRY_ERR_TIMEOUT);
    so(self, named == 0);
    so(self, strstr(self->error.message, "as somebody knows") != NULL);
    add_mark(self->shared, DONE);
    shrink_to(self, self->n_ranks - 1);
}

static void end_first(const char *row, processes *all, uint32_t n_ranks, int n_done)
{
    await_stop(all, 0);
    add_mark(all->shared, STOPPED);
    await_mark(all->shared, DONE, n_done);
    kill(all->pids[0], SIGKILL);
    end_processes(row, all, n_ranks, 0);
}

static void test_behind(void **state)
{
    (void)state;
    const char *const nodes[] = {NULL, "5", "2,3"};
    for (size_t i = 0; i < COUNT_OF(nodes); i++) {
        rank_process like = patient_ranks("behind", 5);
        processes all;
        like.options.nodes = nodes[i];
        start_processes(&all, &like, run_behind);
        end_first("behind", &all, 5, 4);
    }
}

/*
 * A rank has ended the world, which only the stopped one could pass on, and its connections with
 * it: who then loses it learns from itself why.
 */
static void run_heard(rank_process *self)
{
    uint32_t named;
    stop_first(self);
    if (self->rank == 1) {
        ferry_world_abort(self->world, "enough");
        add_mark(self->shared, TOLD);
    }
    await_mark(self->shared, TOLD, 1);
    if (self->rank == 2) {
        fy_report_lost(self->world, 1, "rank 1 is lost: so says an engine");
        so(self, await_failure(self, &named) == FERRY_ERR_ABORTED);
        so(self, named == 1);
        so(self, strstr(self->error.message, "enough") != NULL);
        add_mark(self->shared, DONE);
    }
    await_mark(self->shared, DONE, 1);
}

static void test_heard(void **state)
{
    (void)state;
    rank_process like = patient_ranks("heard", 3);
    processes all;
    start_processes(&all, &like, run_heard);
    end_first("heard", &all, 3, 1);
}

/*
 * The rank that has ended the world has left it altogether: nobody is at its door, and the reason
 * is with the stopped one, which wakes. Who says at once that it was lost names a living rank.
 */
static void run_left(rank_process *self)
{
    uint32_t named;
    stop_first(self);
    if (self->rank == 1) {
        ferry_world_abort(self->world, "enough");
        ferry_world_destroy(self->world);
        self->world = NULL;
        add_mark(self->shared, TOLD);
        await_mark(self->shared, DONE, 2);
        return;
    }
    await_mark(self->shared, TOLD, 1);
    if (self->rank == 2) {
        const fy_process *process = self->world->impl;
        fy_report_lost(self->world, 1, "rank 1 is lost: so says an engine");
        while (!process->news.asks && !fy_failed(self->world->failure)) {
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* for who would not wait */
        add_mark(self->shared, ASKED);
    }
    so(self, await_failure(self, &named) == FERRY_ERR_ABORTED);
    so(self, named == 1);
    so(self, strstr(self->error.message, "enough") != NULL);
    add_mark(self->shared, DONE);
}

static void test_left(void **state)
{
    (void)state;
    const char *const nodes[] = {NULL, "3"};
    for (size_t i = 0; i < COUNT_OF(nodes); i++) {
        rank_process like = patient_ranks("left", 3);
        processes all;
        like.options.nodes = nodes[i];
        start_processes(&all, &like, run_left);
        await_stop(&all, 0);
        add_mark(all.shared, STOPPED);
        await_mark(all.shared, ASKED, 1);
        kill(all.pids[0], SIGCONT);
        end_processes("left", &all, 3, FERRY_ANY_RANK);
    }
}

/* One that is gone is lost, by whatever came first. */
static void run_dead(rank_process *self)
{
    uint32_t named;
    so(self, ferry_world_barrier(self->world, &self->error) == FERRY_OK);
    add_mark(self->shared, OUT);
    if (self->rank == 1) {
        await_mark(self->shared, OUT, (int)self->n_ranks);
        kill(getpid(), SIGKILL);
    }
    if (self->rank == 2) {
        fy_report_lost(self->world, 1, "rank 1 is lost: so says an engine");
    }
    so(self, await_failure(self, &named) == FERRY_ERR_PEER_LOST);
    so(self, named == 1);
    shrink_to(self, self->n_ranks - 1);
}

static void test_dead(void **state)
{
    (void)state;
    const char *const nodes[] = {NULL, "4"};
    for (size_t i = 0; i < COUNT_OF(nodes); i++) {
        rank_process like = patient_ranks("dead", 4);
        processes all;
        like.options.nodes = nodes[i];
        start_processes(&all, &like, run_dead);
        end_processes("dead", &all, 4, 1);
    }
}

/* Who did wrong is named, but not lost: whoever found it out goes on with all. */
static void run_wrong(rank_process *self)
{
    const uint32_t *finder = self->context; /* and whom it names */
    uint32_t named;
    so(self, ferry_world_barrier(self->world, &self->error) == FERRY_OK);
    add_mark(self->shared, OUT);
    if (self->rank == finder[0]) {
        await_mark(self->shared, OUT, (int)self->n_ranks); /* nobody is in there any more */
        fy_world_fail(self->world, FERRY_ERR_MISUSE, finder[1], "a rank does what it should not");
    }
    so(self, await_failure(self, &named) == FERRY_ERR_MISUSE);
    so(self, named == finder[1]);
    shrink_to(self, self->n_ranks);
}

static void test_wrong(void **state)
{
    (void)state;
    const char *const nodes[] = {NULL, "1,3"};
    static const uint32_t finders[][2] = {{0, 1}, {2, 0}, {3, 1}};
    for (size_t i = 0; i < COUNT_OF(nodes) * COUNT_OF(finders); i++) {
        rank_process like = patient_ranks("wrong", 4);
        processes all;
        like.options.nodes = nodes[i / COUNT_OF(finders)];
        like.context = finders[i % COUNT_OF(finders)];
        start_processes(&all, &like, run_wrong);
        end_processes("wrong", &all, 4, FERRY_ANY_RANK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_living), cmocka_unit_test(test_behind), cmocka_unit_test(test_heard),
        cmocka_unit_test(test_left),   cmocka_unit_test(test_dead),   cmocka_unit_test(test_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
