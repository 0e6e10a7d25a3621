/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Who comes last to a barrier lets the others go. One of them ends the world, or dies, before that
 * rank itself has come back: for it as for all others the barrier was one. This program stands in
 * front of the bell that it rings, so nothing here depends on time.
 */
#include "world/process.h"
#include "world/world.h"

#include "processes.h"

enum { RANKS = 3 };
enum { OUT };

static _Thread_local const ferry_world *held; /* until it has failed */

void __real_fy_bell_ring(fy_bell *bell);
void __wrap_fy_bell_ring(fy_bell *bell);

void __wrap_fy_bell_ring(fy_bell *bell)
{
    __real_fy_bell_ring(bell);
    while (held != NULL && !fy_failed(held->failure)) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void come_last(rank_process *self)
{
    const fy_process *process = self->world->impl;
    uint64_t target = (process->caller.barriers + 1) * (uint64_t)RANKS;
    while (atomic_load(&process->node.page->arrived) < target - 1) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    held = self->world;
}

static void run(rank_process *self)
{
    const bool *dies = self->context;
    uint32_t named;
    if (self->rank == 1) {
        come_last(self);
    }
    so(self, ferry_world_barrier(self->world, &self->error) == FERRY_OK);
    held = NULL;
    add_mark(self->shared, OUT);
    if (self->rank == 2) {
        await_mark(self->shared, OUT, RANKS - 1); /* all but the last one */
        if (*dies) {
            raise(SIGKILL);
        }
        ferry_world_abort(self->world, "between two calls");
    }
    so(self, await_failure(self, &named) == (*dies ? FERRY_ERR_PEER_LOST : FERRY_ERR_ABORTED));
    so(self, named == 2);
}

static void test_last(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        bool dies = i == 1;
        rank_process like = patient_ranks(dies ? "dies" : "ends the world", RANKS);
        processes all;
        like.context = &dies;
        start_processes(&all, &like, run);
        end_processes(like.row, &all, RANKS, dies ? 2 : FERRY_ANY_RANK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_last)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
