/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects with runs, as a world keeps them: what was started is moved on by all else that the rank
 * does in this world, a moment at a time, and is asked and cancelled all the same; what has ended
 * is remembered for a while, and takes no more letters.
 */
#include "mixed_handle.h"

#include "collective/comm.h"
#include "world/world.h"

#include <ferry/service.h>

#include <stdatomic.h>

/* An object that only counts how often it is moved on, and for how long it might take. */
typedef struct counter {
    fy_work work;
    int n_moved;
    int64_t longest_ns;
} counter;

static void count_move(void *context, int64_t until_ns)
{
    counter *own = context;
    int64_t left_ns = until_ns - fy_now_ns();
    own->longest_ns = left_ns > own->longest_ns ? left_ns : own->longest_ns;
    own->n_moved++;
}

static void start_counter(ferry_world *world, counter *own, uint32_t number)
{
    *own = (counter){.work = {.kind = FY_OBJECT_SERVICE, .step = count_move, .context = own}};
    fy_work_add(world, &own->work, number);
    fy_work_start(world, &own->work, true);
}

static void end_counter(ferry_world *world, counter *own)
{
    fy_work_start(world, &own->work, false);
    fy_work_remove(world, &own->work);
}

static void spin_ns(int64_t ns)
{
    int64_t until_ns = fy_now_ns() + ns;
    while (fy_now_ns() < until_ns) {}
}

/* Who works without a wait shares its time; a wait gives each of the others a moment only. */
static void shared(rank_thread *self)
{
    counter own;
    int64_t shared_ns = 0;
    start_counter(self->world, &own, 1);
    fy_works_share(self->world, &shared_ns);
    expect(self, own.n_moved == 1);
    spin_ns(5000000);
    fy_works_share(self->world, &shared_ns);
    expect(self, own.n_moved == 2);
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    fy_works_move(self->world);
    expect(self, own.n_moved >= 3 && own.longest_ns <= 1000000);
    end_counter(self->world, &own);
    fy_works_move(self->world);
    fy_works_share(self->world, &shared_ns);
    expect(self, own.n_moved < 1000000);
}

static void test_shared(void **state)
{
    (void)state;
    run_ranks(2, NULL, shared, NULL);
}

static ferry_status open_copy(rank_thread *self, uint32_t peer, unsigned char bytes[2][64],
                              ferry_service **service_out)
{
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    ferry_buffer from = ferry_buffer_of(bytes[0], sizeof bytes[0]);
    ferry_buffer to = ferry_buffer_of(bytes[1], sizeof bytes[1]);
    ferry_status status = ferry_service_create(self->world, &options, service_out, &self->error);
    if (status == FERRY_OK) {
        status = ferry_service_init(*service_out, FERRY_LOG_OFF, &self->error);
    }
    if (status == FERRY_OK) {
        status = ferry_service_register_send(*service_out, self->rank, &from, 0, from.bytes, peer,
                                             &self->error);
    }
    if (status == FERRY_OK) {
        status = ferry_service_register_receive(*service_out, peer, &to, 0, to.bytes, peer,
                                                &self->error);
    }
    memset(bytes[0], (int)self->rank + 1, sizeof bytes[0]);
    memset(bytes[1], 0, sizeof bytes[1]);
    return status == FERRY_OK ? ferry_service_schedule(*service_out, &self->error) : status;
}

/* A run of one rank never has to wait. */
static void busy(rank_thread *self)
{
    ferry_service *service = NULL;
    unsigned char bytes[2][64];
    counter own;
    expect_ok(self, open_copy(self, self->rank, bytes, &service));
    start_counter(self->world, &own, 1000);
    expect_ok(self, ferry_service_run(service, NULL, &self->error));
    expect(self, bytes[1][63] == 1);
    expect(self, own.n_moved > 0);
    end_counter(self->world, &own);
    ferry_service_destroy(service);
}

static void test_busy(void **state)
{
    (void)state;
    run_ranks(1, NULL, busy, NULL);
}

/*
 * Rank 0 starts a run and goes into a barrier, which moves it on; rank 1 comes there when the run
 * is over. What rank 0's program says before that counts, though nobody tests its request.
 */
static void told(rank_thread *self)
{
    enum { GOES_ON, CANCELLED, N };
    for (int how = 0; how < N; how++) {
        ferry_service *service = NULL;
        ferry_request *request = NULL;
        unsigned char bytes[2][64];
        ferry_status wanted = how == GOES_ON ? FERRY_OK : FERRY_ERR_ABORTED;
        expect_ok(self, open_copy(self, 1 - self->rank, bytes, &service));
        expect_ok(self, ferry_service_start(service, NULL, &request, &self->error));
        if (self->rank == 0 && how == CANCELLED) {
            ferry_request_cancel(request);
        }
        if (self->rank == 0) {
            expect_ok(self, ferry_world_barrier(self->world, &self->error));
        }
        expect_status(self, wanted, ferry_request_wait(request, &self->error));
        expect(self, how == GOES_ON ? bytes[1][0] == 2 - self->rank
                                    : strstr(self->error.message, "rank 0 cancelled") != NULL);
        if (self->rank == 1) {
            expect_ok(self, ferry_world_barrier(self->world, &self->error));
        }
        ferry_request_destroy(request);
        ferry_service_destroy(service);
    }
}

static void test_told(void **state)
{
    (void)state;
    run_ranks(2, NULL, told, NULL);
}

/* The same with a collective: rank 0's cancel counts as long as its part is not done. */
static void told_mixed(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    ferry_request *request = NULL;
    tensors t;
    fill(&t, self->rank);
    expect_ok(self, open_handle(self, &comm));
    if (self->rank == 0) { /* begins first, and cannot have done its part */
        expect_ok(self, start_gather(comm, &t, &request, &self->error));
        ferry_request_cancel(request);
        expect_ok(self, ferry_world_barrier(self->world, &self->error));
        expect_ok(self, ferry_world_barrier(self->world, &self->error));
        expect_status(self, FERRY_ERR_ABORTED, ferry_request_wait(request, &self->error));
        expect_says(self, "rank 0 cancelled");
    } else { /* may get all that it needs before it hears of that */
        expect_ok(self, ferry_world_barrier(self->world, &self->error));
        ferry_status status = run_gather(comm, &t, FERRY_MIXED_FUSED_WAITS_UNICAST, &self->error);
        expect(self, status == FERRY_OK || strstr(self->error.message, "rank 0 cancelled") != NULL);
        expect_ok(self, ferry_world_barrier(self->world, &self->error));
    }
    ferry_request_destroy(request);
    ferry_mixed_comm_destroy(comm);
}

/* And comes too late when it is: nobody has another outcome than the others. */
static void too_late(rank_thread *self)
{
    ferry_mixed_comm *comm = NULL;
    ferry_request *request = NULL;
    tensors t;
    fill(&t, self->rank);
    expect_ok(self, open_handle(self, &comm));
    expect_ok(self, start_gather(comm, &t, &request, &self->error));
    for (uint32_t i = 0; i < comm->state.call.geometry.n_lanes; i++) {
        while (!comm->state.lanes[i].done) {
            fy_works_move(self->world);
        }
    }
    ferry_request_cancel(request);
    expect_ok(self, ferry_request_wait(request, &self->error));
    expect(self, is_gathered(&t));
    ferry_request_destroy(request);
    ferry_mixed_comm_destroy(comm);
}

static void test_told_mixed(void **state)
{
    (void)state;
    run_shape(&one_node, told_mixed);
    run_shape(&two_nodes, told_mixed);
    run_shape(&one_node, too_late);
    run_shape(&by_puts, too_late);
}

static fy_answer ask(ferry_world *world, uint32_t number, uint64_t run)
{
    fy_question question = {.kind = FY_OBJECT_SERVICE, .number = number, .run = run};
    fy_answer own;
    fy_answer_make(world->here, &question, false, 0, &own);
    return own;
}

/* What has ended is remembered, but not for ever, and its letters come too late. */
static void ended(rank_thread *self)
{
    enum { N_THINGS = 10 * FY_MOST_ENDED };
    fy_activity *here = self->world->here;
    fy_work alive = {.kind = FY_OBJECT_SERVICE};
    for (uint32_t i = 1; i <= N_THINGS; i++) {
        fy_work work = {.kind = FY_OBJECT_SERVICE};
        fy_work_add(self->world, &work, i);
        fy_work_begin(self->world, &work, i + 1);
        expect(self, !fy_letter_is_late(here, fy_letter_tag(FY_LETTER_VOTE, work.kind, i, 1)));
        fy_work_remove(self->world, &work);
    }
    fy_work_add(self->world, &alive, N_THINGS + 1);
    for (uint32_t i = 1; i <= N_THINGS; i++) {
        fy_answer its = ask(self->world, i, i + 1);
        uint64_t tag = fy_letter_tag(FY_LETTER_ANSWER, FY_OBJECT_SERVICE, i, 7);
        bool is_kept = i > N_THINGS - FY_MOST_ENDED;
        expect(self, its.ended == is_kept && its.begun == is_kept);
        expect(self, !ask(self->world, i, i + 2).begun);
        expect(self, fy_letter_is_late(here, tag) == is_kept);
        expect(self, !fy_letter_is_late(here, tag & ~(UINT64_C(1) << 63))); /* a caller's */
        tag = fy_letter_tag(FY_LETTER_ANSWER, FY_OBJECT_MIXED, i, 7);
        expect(self, !fy_letter_is_late(here, tag));
    }
    expect(self, !fy_letter_is_late(
                     here, fy_letter_tag(FY_LETTER_VOTE, FY_OBJECT_SERVICE, N_THINGS + 1, 1)));
    expect(self, !fy_letter_is_late(here, fy_letter_tag(FY_LETTER_VOTE, FY_OBJECT_SERVICE,
                                                        N_THINGS + 2, 1))); /* not here yet */
    fy_work_remove(self->world, &alive);
}

static void test_ended(void **state)
{
    (void)state;
    run_ranks(1, NULL, ended, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared), cmocka_unit_test(test_busy),
        cmocka_unit_test(test_told),   cmocka_unit_test(test_told_mixed),
        cmocka_unit_test(test_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
