/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank ends as soon as its run is over, while others have not yet heard that it is. The run is a
 * success for these, too: rank 0 has said so before. This program stands in front of the step in
 * which a rank hears it, so that each knows of the loss first.
 */
#include "service/run.h"

#include "processes.h"

#include <ferry/service.h>

#include <string.h>

enum { RANKS = 5, VICTIM = 2 };
enum { RETURNED };

bool __real_fy_outcome_step(ferry_service *service);
bool __wrap_fy_outcome_step(ferry_service *service);

bool __wrap_fy_outcome_step(ferry_service *service)
{
    if (!service->run->outcome.sent || service->world->rank == VICTIM) {
        return __real_fy_outcome_step(service);
    }
    while (!fy_failed(service->world->failure)) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return false;
}

static void register_ring(rank_process *self, ferry_service *service, unsigned char bytes[2])
{
    ferry_buffer own = ferry_buffer_of(&bytes[0], 1), came = ferry_buffer_of(&bytes[1], 1);
    uint32_t next = (self->rank + 1) % RANKS, last = (self->rank + RANKS - 1) % RANKS;
    so(self, ferry_service_register_send(service, 1, &own, 0, 1, next, &self->error) == FERRY_OK);
    so(self,
       ferry_service_register_receive(service, 1, &came, 0, 1, last, &self->error) == FERRY_OK);
}

static void leave_or_live(rank_process *self)
{
    ferry_service *service = NULL;
    unsigned char bytes[2] = {(unsigned char)(self->rank + 1), 0};
    uint32_t lost = FERRY_ANY_RANK;
    so(self, ferry_service_create(self->world, NULL, &service, &self->error) == FERRY_OK);
    so(self, ferry_service_init(service, FERRY_LOG_OFF, &self->error) == FERRY_OK);
    register_ring(self, service, bytes);
    so(self, ferry_service_schedule(service, &self->error) == FERRY_OK);
    so(self, ferry_service_run(service, NULL, &self->error) == FERRY_OK);
    so(self, bytes[1] == (self->rank + RANKS - 1) % RANKS + 1);
    if (self->rank == VICTIM) {
        await_mark(self->shared, RETURNED, 1);
        raise(SIGKILL);
    }
    add_mark(self->shared, RETURNED);
    so(self, await_failure(self, &lost) == FERRY_ERR_PEER_LOST && lost == VICTIM);
    so(self, ferry_service_run(service, NULL, &self->error) == FERRY_ERR_PEER_LOST);
    so(self, strstr(self->error.message, "rank 2 ") != NULL);
    ferry_service_destroy(service);
}

static void test_left(void **state)
{
    (void)state;
    processes all;
    rank_process like = patient_ranks("left", RANKS);
    start_processes(&all, &like, leave_or_live);
    end_processes("left", &all, RANKS, VICTIM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_left)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
