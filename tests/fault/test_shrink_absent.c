/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank lives and does not come to the shrinking, whichever it is: the others go on without it,
 * after a join limit, and then it is told so. How long that takes is not looked at, only that it
 * ends.
 */
#include "processes.h"

enum { OUT, SHRUNK, TOLD };
enum { RANKS = 4 };

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_absent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
