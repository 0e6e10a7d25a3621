/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Requests of a mixed-collective handle: how they are tested, cancelled, and outlive it. */
#include "mixed_handle.h"

#include "world/threads.h"

#include <sched.h>

static void requests(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    ferry_request *request = NULL, *second = NULL;
    tensors t;
    bool done = false;
    expect_ok(self, open_handle(self, &comm));
    fill(&t, self->rank);
    expect_ok(self, start_gather(comm, &t, &request, &self->error));
    /* Until it has ended the handle is in use. */
    expect_status(self, FERRY_ERR_MISUSE,
                  run_gather(comm, &t, FERRY_MIXED_MODE_DEFAULT, &self->error));
    expect_says(self, "uses this handle");
    expect_status(self, FERRY_ERR_MISUSE, ferry_mixed_comm_shutdown(comm, &self->error));
    while (!done) {
        expect_ok(self, ferry_request_test(request, &done, &self->error));
    }
    expect(self, is_gathered(&t));
    expect_ok(self, ferry_request_wait(request, &self->error));
    expect_ok(self, ferry_request_test(request, &done, &self->error));
    /* Too late, and one at a time. */
    ferry_request_cancel(request);
    expect_ok(self, ferry_request_wait(request, &self->error));
    expect_status(self, FERRY_ERR_MISUSE, start_gather(comm, &t, &second, &self->error));
    expect(self, second == NULL);
    ferry_request_destroy(request);
    /* What is refused leaves the handle free. */
    for (int i = 0; i < 2; i++) {
        expect_status(self, FERRY_ERR_INVALID_INPUT,
                      ferry_mixed_comm_start(comm, FERRY_MIXED_N_OPS, &t.from, &t.to,
                                             FERRY_MIXED_MODE_DEFAULT, NULL, &second,
                                             &self->error));
        expect(self, second == NULL && strstr(self->error.message, "uses this handle") == NULL);
    }
    fill(&t, self->rank);
    expect_ok(self, start_gather(comm, &t, &request, &self->error));
    ferry_request_destroy(request); /* waits */
    expect(self, is_gathered(&t));
    /* A request that outlives its handle. */
    fill(&t, self->rank);
    expect_ok(self, start_gather(comm, &t, &request, &self->error));
    expect_ok(self, ferry_request_wait(request, &self->error));
    expect(self, is_gathered(&t));
    ferry_mixed_comm_destroy(comm);
    expect_ok(self, ferry_request_wait(request, &self->error));
    ferry_request_destroy(request);
}

static void test_requests(void **state)
{
    (void)state;
    run_shape(&one_node, requests);
    run_shape(&two_nodes, requests);
    run_shape(&by_puts, requests);
}

/* Rank 0 cancels: it cannot be too late, for rank 3 has not begun. */
static void cancelled(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    ferry_request *request = NULL;
    tensors t;
    fill(&t, self->rank);
    expect_ok(self, open_handle(self, &comm));
    if (self->rank != 3) {
        expect_ok(self, start_gather(comm, &t, &request, &self->error));
    }
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    if (self->rank == 0) {
        ferry_request_cancel(request);
    }
    if (self->rank == 3) {
        expect_ok(self, ferry_world_barrier(self->world, &self->error));
        expect_status(self, FERRY_ERR_ABORTED,
                      run_gather(comm, &t, FERRY_MIXED_FUSED_WAITS_UNICAST, &self->error));
    } else {
        expect_status(self, FERRY_ERR_ABORTED, ferry_request_wait(request, &self->error));
        expect_ok(self, ferry_world_barrier(self->world, &self->error));
    }
    expect_says(self, "rank 0 cancelled");
    /* The handle is broken, and says why each time; its request outlives it. */
    expect_status(self, FERRY_ERR_ABORTED,
                  run_gather(comm, &t, FERRY_MIXED_BASE_ONE, &self->error));
    ferry_mixed_comm_destroy(comm);
    if (request != NULL) {
        expect_status(self, FERRY_ERR_ABORTED, ferry_request_wait(request, &self->error));
    }
    ferry_request_destroy(request);
}

static void test_cancel(void **state)
{
    (void)state;
    run_shape(&one_node, cancelled);
    run_shape(&two_nodes, cancelled);
}

/*
 * Rank 3 is in a call that the others have behind them when rank 0 cancels the next one: what
 * nobody has cancelled ends well.
 */
static _Atomic bool has_sent, has_cancelled;
static bool outrun_tests; /* rank 3 tests its request; else it waits */

static void await_flag(_Atomic bool *flag)
{
    while (!atomic_load(flag)) {
        sched_yield();
    }
}

static void outrun(rank_thread *self)
{
    bool done = false;
    ferry_mixed_comm *comm = NULL;
    ferry_request *request = NULL;
    tensors t, next;
    fill(&t, self->rank);
    fill(&next, self->rank);
    expect_ok(self, open_handle(self, &comm));
    if (self->rank == 3) {
        expect_ok(self, start_gather(comm, &t, &request, &self->error));
        expect_ok(self, ferry_request_test(request, &done, &self->error));
        expect(self, !done);
        atomic_store(&has_sent, true);
        await_flag(&has_cancelled);
        while (outrun_tests && !done) {
            expect_ok(self, ferry_request_test(request, &done, &self->error));
        }
        expect_ok(self, ferry_request_wait(request, &self->error));
        ferry_request_destroy(request);
        request = NULL;
    } else {
        await_flag(&has_sent);
        expect_ok(self, run_gather(comm, &t, FERRY_MIXED_FUSED_WAITS_UNICAST, &self->error));
    }
    expect(self, is_gathered(&t));
    if (self->rank == 0) {
        expect_ok(self, start_gather(comm, &next, &request, &self->error));
        ferry_request_cancel(request);
        expect_status(self, FERRY_ERR_ABORTED, ferry_request_wait(request, &self->error));
        atomic_store(&has_cancelled, true);
    } else {
        expect_status(self, FERRY_ERR_ABORTED,
                      run_gather(comm, &next, FERRY_MIXED_FUSED_WAITS_UNICAST, &self->error));
        expect_says(self, "rank 0 cancelled call 2");
    }
    ferry_request_destroy(request);
    ferry_mixed_comm_destroy(comm);
}

static void test_cancel_behind(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        atomic_store(&has_sent, false);
        atomic_store(&has_cancelled, false);
        outrun_tests = i == 1;
        run_shape(&one_node, outrun);
    }
}

/*
 * Of all that a rank waits for at once, the one that is not there is named: the last of them, which
 * is in no call until the others, which have all sent what they have to, have given up.
 */
static _Atomic uint32_t n_started, n_given_up;

static void await(_Atomic uint32_t *count)
{
    while (atomic_load(count) < 3) {
        sched_yield();
    }
}

static void absent(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    ferry_request *request = NULL;
    tensors t;
    fill(&t, self->rank);
    expect_ok(self, open_handle(self, &comm));
    self->world->settings.entry_ns = 100000000;
    if (self->rank == 3) {
        await(&n_given_up);
        expect_status(self, FERRY_ERR_TIMEOUT,
                      run_gather(comm, &t, FERRY_MIXED_FUSED_WAITS_UNICAST, &self->error));
    } else {
        expect_ok(self, start_gather(comm, &t, &request, &self->error));
        atomic_fetch_add(&n_started, 1);
        await(&n_started);
        expect_status(self, FERRY_ERR_TIMEOUT, ferry_request_wait(request, &self->error));
        atomic_fetch_add(&n_given_up, 1);
    }
    expect_says(self, "for rank 3, which has not begun");
    ferry_request_destroy(request);
    ferry_mixed_comm_destroy(comm);
}

static void test_absent(void **state)
{
    (void)state;
    run_shape(&one_node, absent);
}

/* The handle goes while its requests are under way on all ranks. */
static void destroyed_under_way(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    ferry_request *request = NULL;
    tensors t;
    fill(&t, self->rank);
    expect_ok(self, open_handle(self, &comm));
    if (self->rank != 3) {
        expect_ok(self, start_gather(comm, &t, &request, &self->error));
    }
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    ferry_mixed_comm_destroy(comm);
    if (request != NULL) {
        expect(self, ferry_request_wait(request, &self->error) != FERRY_OK);
    }
    ferry_request_destroy(request);
}

static void test_destroy_under_way(void **state)
{
    (void)state;
    run_shape(&one_node, destroyed_under_way);
}

/* Calls of two handles, which ranks wait for, or test, in another order. */
static void crossed(rank_thread *self)
{
    ferry_mixed_comm *comms[2];
    ferry_request *requests[2];
    tensors t[2];
    for (int i = 0; i < 2; i++) {
        expect_ok(self, open_handle(self, &comms[i]));
    }
    for (int call = 0; call < 20; call++) {
        for (int i = 0; i < 2; i++) {
            fill(&t[i], self->rank);
            expect_ok(self, start_gather(comms[i], &t[i], &requests[i], &self->error));
        }
        for (int k = 0; k < 2; k++) {
            int i = self->rank % 2 == 1 ? 1 - k : k;
            bool done = false;
            while (call % 2 == 1 && !done) {
                expect_ok(self, ferry_request_test(requests[i], &done, &self->error));
            }
            expect_ok(self, ferry_request_wait(requests[i], &self->error));
        }
        for (int i = 0; i < 2; i++) {
            ferry_request_destroy(requests[i]);
            expect(self, is_gathered(&t[i]));
        }
    }
    ferry_mixed_comm_destroy(comms[0]);
    ferry_mixed_comm_destroy(comms[1]);
}

static void test_crossed(void **state)
{
    (void)state;
    run_shape(&one_node, crossed);
    run_shape(&two_nodes, crossed);
    run_shape(&by_puts, crossed);
}

/* Letters that nobody has taken yet, by the room that they take; and how many ever came. */
static uint64_t letters_of(ferry_world *world, uint64_t *posted_out)
{
    fy_mailbox *box = &fy_threads_of(world)->ranks[world->rank].box;
    pthread_mutex_lock(&box->lock);
    uint64_t bytes = box->mail.bytes;
    pthread_mutex_unlock(&box->lock);
    *posted_out = atomic_load(&box->posted);
    return bytes;
}

/* Rank 3 comes when rank 0 has asked for it: what it has answered is of no use after the call. */
static void late_rank(rank_thread *self)
{
    static ferry_world *asking;
    ferry_mixed_comm *comm = NULL;
    tensors t;
    uint64_t posted, now, before;
    expect_ok(self, open_handle(self, &comm));
    if (self->rank == 0) {
        asking = self->world;
    }
    for (int call = 0; call < 4; call++) {
        expect_ok(self, ferry_world_barrier(self->world, &self->error));
        letters_of(asking, &posted);
        letters_of(self->world, &before);
        expect_ok(self, ferry_world_barrier(self->world, &self->error));
        for (now = posted; self->rank == 3 && now == posted;) {
            sched_yield();
            letters_of(asking, &now);
        }
        fill(&t, self->rank);
        expect_ok(self, run_gather(comm, &t, FERRY_MIXED_FUSED_WAITS_UNICAST, &self->error));
        expect(self, is_gathered(&t));
        uint64_t bytes = letters_of(self->world, &now); /* of this call at most */
        expect(self, bytes <= (now - before) * (sizeof(fy_letter) + FY_ANSWER_BYTES));
    }
    ferry_mixed_comm_destroy(comm);
    expect(self, letters_of(self->world, &posted) == 0);
}

static void test_late_answers(void **state)
{
    (void)state;
    run_shape(&one_node, late_rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),          cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_cancel_behind),     cmocka_unit_test(test_absent),
        cmocka_unit_test(test_destroy_under_way), cmocka_unit_test(test_late_answers),
        cmocka_unit_test(test_crossed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
