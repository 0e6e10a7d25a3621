/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of which a rank does not do its part, and runs that are on at once. Nothing here is
 * measured: a rank that is not named, or a run that does not end, keeps the program until its time
 * is over.
 */
#include "unit/rank_threads.h"

#include "world/world.h"

#include <ferry/ferry.h>
#include <ferry/mixed_comm.h>

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { N = 3, BYTES = 4096 };

/* A service in which every rank sends to the next; `silent` ones exchange nothing. */
typedef struct part {
    ferry_service *service;
    unsigned char from[BYTES], to[BYTES];
} part;

static ferry_status make_part(rank_thread *self, bool silent, part *p)
{
    uint32_t next = (self->rank + 1) % self->n_ranks;
    uint32_t before = (self->rank + self->n_ranks - 1) % self->n_ranks;
    ferry_buffer from = ferry_buffer_of(p->from, BYTES);
    ferry_buffer to = ferry_buffer_of(p->to, BYTES);
    ferry_status status = ferry_service_create(self->world, NULL, &p->service, &self->error);
    if (status == FERRY_OK) {
        status = ferry_service_init(p->service, FERRY_LOG_OFF, &self->error);
    }
    if (status == FERRY_OK && !silent) {
        status = ferry_service_register_send(p->service, self->rank, &from, 0, BYTES, next,
                                             &self->error);
    }
    if (status == FERRY_OK && !silent) {
        status =
            ferry_service_register_receive(p->service, before, &to, 0, BYTES, before, &self->error);
    }
    return status == FERRY_OK ? ferry_service_schedule(p->service, &self->error) : status;
}

static void fill(rank_thread *self, part *p, int salt)
{
    memset(p->from, (int)self->rank * 16 + salt, BYTES);
    memset(p->to, 0xff, BYTES);
}

static bool is_whole(const rank_thread *self, const part *p, int salt)
{
    unsigned char wanted[BYTES];
    uint32_t before = (self->rank + self->n_ranks - 1) % self->n_ranks;
    memset(wanted, (int)before * 16 + salt, BYTES);
    return memcmp(p->to, wanted, BYTES) == 0;
}

/* How many ranks are done: who does not do its part waits for the others here. */
static _Atomic uint32_t n_done;

static void await_done(uint32_t n)
{
    while (atomic_load(&n_done) < n) {
        sched_yield();
    }
}

typedef enum lapse { NEVER_TESTS, NEVER_ENTERS, LEAVES, DROPS } lapse;

typedef struct late_case {
    const char *name;
    lapse lapse;
    bool silent; /* the service exchanges nothing: no channel shows who is missing */
    ferry_status status;
    const char *says;
} late_case;

static void lapse_once(rank_thread *self, const late_case *one, part *p)
{
    ferry_request *request = NULL;
    if (one->lapse == NEVER_TESTS || one->lapse == DROPS) {
        expect_ok(self, ferry_service_start(p->service, NULL, &request, &self->error));
    }
    if (one->lapse == LEAVES) {
        ferry_world_leave(self->world, "its program failed");
    } else if (one->lapse == DROPS) {
        ferry_request_destroy(request);
    } else {
        await_done(N - 1);
    }
    expect(self, ferry_world_state(self->world, NULL, &self->error) == one->status);
    if (one->lapse == NEVER_TESTS) {
        ferry_request_destroy(request);
    }
}

/* How often rank 2 was called back in the run that rank 1 spoils, and what it had sent by then: of
 * rank 1 nothing comes. */
static _Atomic uint32_t n_calls;
static _Atomic uint64_t n_sent;

static bool count_call(void *context, const ferry_progress *progress)
{
    (void)context;
    atomic_store(&n_sent, progress->bytes_done);
    atomic_fetch_add(&n_calls, 1);
    return true;
}

static bool lose_patience(void *context, const ferry_progress *progress)
{
    rank_thread *self = context;
    const late_case *one = self->context;
    (void)progress;
    if (one->silent || one->lapse == NEVER_ENTERS || atomic_load(&n_sent) >= BYTES) {
        self->world->settings.deadline_ns = 500000000;
        self->world->settings.entry_ns = one->lapse == NEVER_ENTERS ? 50000000 : -1;
    }
    return true;
}

/*
 * Rank 0 alone gives up. It comes when rank 2 is in the run, and is patient until rank 2 has sent
 * all: nobody but rank 1 is late, however long a thread is kept off the cores.
 */
static void order_ranks(rank_thread *self, const late_case *one, part *p)
{
    bool gives_up = one->lapse == NEVER_TESTS || one->lapse == NEVER_ENTERS;
    if (gives_up && self->rank == 2) {
        ferry_service_set_progress(p->service, count_call, NULL);
    } else if (gives_up && self->rank == 0) {
        while (atomic_load(&n_calls) < 3) {
            sched_yield();
        }
        ferry_service_set_progress(p->service, lose_patience, self);
    }
}

static void be_late(rank_thread *self)
{
    const late_case *one = self->context;
    part p;
    uint32_t named = FERRY_ANY_RANK;
    expect_ok(self, make_part(self, one->silent, &p));
    fill(self, &p, 1);
    expect_ok(self, ferry_service_run(p.service, NULL, &self->error));
    expect_ok(self, ferry_world_barrier(self->world, &self->error)); /* all know how that ended */
    order_ranks(self, one, &p);
    if (self->rank == 1) {
        lapse_once(self, one, &p);
    } else {
        ferry_status status = ferry_service_run(p.service, NULL, &self->error);
        atomic_fetch_add(&n_done, 1);
        expect(self, status == one->status);
        expect_says(self, one->says);
        if (one->lapse != DROPS) {
            ferry_world_state(self->world, &named, NULL);
            expect(self, named == 1);
        }
    }
    ferry_service_destroy(p.service);
}

static void test_ranks_that_do_not_do_their_part(void **state)
{
    (void)state;
    static late_case cases[] = {
        {"never tests", NEVER_TESTS, false, FERRY_ERR_TIMEOUT, "rank 1"},
        {"never tests, no channels", NEVER_TESTS, true, FERRY_ERR_TIMEOUT,
         "rank 1 has entered the run of service 1, and has not moved it on"},
        {"never enters", NEVER_ENTERS, false, FERRY_ERR_TIMEOUT, "rank 1 has not entered"},
        {"never enters, no channels", NEVER_ENTERS, true, FERRY_ERR_TIMEOUT,
         "rank 1 has not entered the run of service 1"},
        {"leaves", LEAVES, true, FERRY_ERR_PEER_LOST, "rank 1 has left the world: its program"},
        {"leaves", LEAVES, false, FERRY_ERR_PEER_LOST, "rank 1 has left the world: its program"},
        {"drops", DROPS, false, FERRY_OK, ""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
        options.deadline_seconds = 3600;
        atomic_store(&n_done, 0);
        atomic_store(&n_calls, 0);
        atomic_store(&n_sent, 0);
        print_message("%s\n", cases[i].name);
        run_ranks(N, &options, be_late, &cases[i]);
    }
}

/* A drop is bounded also where nobody else enters the run. */
static void drop_alone(rank_thread *self)
{
    part p;
    ferry_request *request = NULL;
    expect_ok(self, make_part(self, false, &p));
    if (self->rank == 1) {
        expect_ok(self, ferry_service_start(p.service, NULL, &request, &self->error));
        ferry_request_destroy(request);
        expect(self, ferry_world_state(self->world, NULL, &self->error) == FERRY_ERR_ABORTED);
        expect_says(self, "rank 1 has dropped its run of service 1");
        atomic_fetch_add(&n_done, 1);
    } else {
        await_done(1);
    }
    ferry_service_destroy(p.service);
}

static void test_a_drop_is_bounded(void **state)
{
    (void)state;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    options.deadline_seconds = 0.2;
    atomic_store(&n_done, 0);
    run_ranks(N, &options, drop_alone, NULL);
}

/* Two runs at once, waited for or tested in whatever order, with a mixed collective between. */
typedef enum order { WAITS_CROSSED, WAITS_ALIKE, TESTS, TESTS_CROSSED, N_ORDERS } order;

static void end_both(rank_thread *self, order how, ferry_request *requests[2])
{
    bool done[2] = {false, false};
    for (int i = 0; how != TESTS && i < 2; i++) {
        int number = how != WAITS_ALIKE && self->rank % 2 == 1 ? 1 - i : i;
        while (how == TESTS_CROSSED && !done[number]) { /* one to its end, and then the other */
            expect_ok(self, ferry_request_test(requests[number], &done[number], &self->error));
        }
        expect_ok(self, ferry_request_wait(requests[number], &self->error));
    }
    while (how == TESTS && !(done[0] && done[1])) {
        for (int i = 0; i < 2; i++) {
            expect_ok(self, ferry_request_test(requests[i], &done[i], &self->error));
        }
    }
}

static ferry_status reduce(rank_thread *self, ferry_mixed_comm *comm)
{
    float in[2] = {1, (float)self->rank}, out[2] = {0, 0};
    ferry_mixed_tensor from = {ferry_buffer_of(in, sizeof in), 1, 2};
    ferry_mixed_tensor to = {ferry_buffer_of(out, sizeof out), 1, 2};
    ferry_status status = ferry_mixed_comm_run(comm, FERRY_MIXED_ALL_REDUCE, &from, &to,
                                               FERRY_MIXED_MODE_DEFAULT, NULL, &self->error);
    return status != FERRY_OK || (out[0] == N && out[1] == 3) ? status : FERRY_ERR_INVALID_INPUT;
}

static void overlap(rank_thread *self)
{
    static const uint32_t tags[] = {0x66657276, 0x66657277, 0x66657264, 0x66657072};
    ferry_mixed_comm_options options = FERRY_MIXED_COMM_OPTIONS_INIT;
    ferry_mixed_comm *comm = NULL;
    ferry_request *requests[2];
    part parts[2];
    const void *bytes;
    size_t n_bytes;
    options.dtype = FERRY_F32;
    options.use_autotune = false;
    for (int i = 0; i < 2; i++) {
        expect_ok(self, make_part(self, false, &parts[i]));
    }
    expect_ok(self, ferry_mixed_comm_create(self->world, &options, &comm, &self->error));
    /* A caller's messages are not the library's, whatever their tags. */
    for (size_t t = 0; t < COUNT_OF(tags); t++) {
        expect_ok(self, ferry_world_send(self->world, (self->rank + 1) % N, tags[t], &tags[t],
                                         sizeof tags[t], &self->error));
    }
    for (int run = 0; run < 60; run++) {
        for (int i = 0; i < 2; i++) {
            fill(self, &parts[i], run % 8 + i);
            expect_ok(self,
                      ferry_service_start(parts[i].service, NULL, &requests[i], &self->error));
        }
        if (run % 3 == 1) {
            expect_ok(self, reduce(self, comm));
        } else if (run % 3 == 2) {
            expect_ok(self, ferry_world_barrier(self->world, &self->error));
        }
        end_both(self, (order)(run % N_ORDERS), requests);
        for (int i = 0; i < 2; i++) {
            ferry_request_destroy(requests[i]);
            expect(self, is_whole(self, &parts[i], run % 8 + i));
        }
    }
    for (size_t t = 0; t < COUNT_OF(tags); t++) {
        expect_ok(self, ferry_world_receive(self->world, FERRY_ANY_RANK, tags[t], 0, &bytes,
                                            &n_bytes, NULL, &self->error));
        expect(self, n_bytes == sizeof tags[t] && memcmp(bytes, &tags[t], n_bytes) == 0);
    }
    ferry_mixed_comm_destroy(comm);
    ferry_service_destroy(parts[0].service);
    ferry_service_destroy(parts[1].service);
}

static void test_runs_at_once(void **state)
{
    (void)state;
    run_ranks(N, NULL, overlap, NULL);
}

/* A rank whose caller refuses takes part in the run with nothing, and all hear why. */
static void refuse(rank_thread *self)
{
    part p;
    expect_ok(self, make_part(self, false, &p));
    fill(self, &p, 1);
    expect_ok(self, ferry_service_run(p.service, NULL, &self->error));
    for (int salt = 2; salt < 4; salt++) {
        fill(self, &p, salt);
        if (self->rank == 1) {
            memset(p.to, 0xee, BYTES);
            ferry_service_refuse(p.service, "tensor \"w\" was moved");
        }
        expect(self, ferry_service_run(p.service, NULL, &self->error) == FERRY_ERR_INVALID_INPUT);
        expect_says(self, "rank 1 says: tensor \"w\" was moved");
        for (size_t i = 0; self->rank == 1 && i < BYTES; i++) {
            expect(self, (unsigned char)p.to[i] == 0xee);
        }
        expect_ok(self, ferry_world_state(self->world, NULL, &self->error));
        fill(self, &p, salt);
        expect_ok(self, ferry_service_run(p.service, NULL, &self->error));
        expect(self, is_whole(self, &p, salt));
    }
    if (self->rank == 0) {
        ferry_service_refuse(p.service, "no");
        ferry_service_refuse(p.service, NULL); /* taken back */
    }
    fill(self, &p, 4);
    expect_ok(self, ferry_service_run(p.service, NULL, &self->error));
    expect(self, is_whole(self, &p, 4));
    ferry_service_destroy(p.service);
}

/* Nor is anything scheduled, on any rank. */
static void refuse_schedule(rank_thread *self)
{
    ferry_service *service = NULL;
    expect_ok(self, ferry_service_create(self->world, NULL, &service, &self->error));
    expect_ok(self, ferry_service_init(service, FERRY_LOG_WARN, &self->error));
    if (self->rank == 2) {
        ferry_service_refuse(service, "a tensor is gone");
    }
    expect(self, ferry_service_schedule(service, &self->error) == FERRY_ERR_INVALID_INPUT);
    expect_says(self, "rank 2 says: a tensor is gone");
    expect_ok(self, ferry_service_schedule(service, &self->error));
    ferry_service_destroy(service);
}

static void test_a_rank_that_refuses(void **state)
{
    (void)state;
    run_ranks(N, NULL, refuse, NULL);
    run_ranks(N, NULL, refuse_schedule, NULL);
}

/* However short a run is, the caller is asked before it. */
static bool decline(void *context, const ferry_progress *progress)
{
    uint64_t *first = context;
    *first = *first == UINT64_MAX ? progress->bytes_done : *first;
    return false;
}

static void cancel_first(rank_thread *self)
{
    part p;
    uint64_t first = UINT64_MAX;
    expect_ok(self, make_part(self, false, &p));
    for (int salt = 1; salt < 4; salt++) {
        bool cancels = salt != 3;
        fill(self, &p, salt);
        ferry_service_set_progress(p.service, cancels && self->rank == 1 ? decline : NULL, &first);
        ferry_status status = ferry_service_run(p.service, NULL, &self->error);
        expect(self, status == (cancels ? FERRY_ERR_ABORTED : FERRY_OK));
        expect(self, cancels || is_whole(self, &p, salt));
        expect(self, !cancels || self->rank != 2 || !is_whole(self, &p, salt));
    }
    expect(self, self->rank != 1 || first == 0);
    ferry_service_destroy(p.service);
}

static void test_a_run_that_is_declined(void **state)
{
    (void)state;
    run_ranks(N, NULL, cancel_first, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_that_refuses),
        cmocka_unit_test(test_a_run_that_is_declined),
        cmocka_unit_test(test_ranks_that_do_not_do_their_part),
        cmocka_unit_test(test_a_drop_is_bounded),
        cmocka_unit_test(test_runs_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
