/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank dies while a bound plan is scheduled, or bound to other memory, or while registered tasks
 * are scheduled: just before its first, second, third ... control message, until it makes no more.
 * Peers do not reach each other's memory, so the plan is ordered by rounds, and every kind of
 * exchange takes place. Each survivor hears who was lost, in that call or in the run behind it.
 * Ranks are processes; this program stands in front of fy_link_post. Limits are so long that
 * nothing but the death ends a wait.
 */
#include "world/link.h"
#include "world/wire.h"

#include "link_post.h"
#include "processes.h"

#include <ferry/plan.h>
#include <ferry/service.h>
#include <ferry/spec.h>

#include <string.h>

enum { RANKS = 3, ROWS = 12, OWN = ROWS / RANKS, MOST_MESSAGES = 400 };
enum { FIRED };

typedef struct death {
    const char *name;
    bool rebinds;   /* it dies in ferry_service_rebind */
    bool registers; /* there is no plan */
    uint32_t victim;
    int at; /* before which of its messages; from 1 */
} death;

static rank_process *_Atomic dying; /* while it makes the call that is looked at */
static _Atomic int n_messages;

ferry_status __wrap_fy_link_post(fy_link *link, uint32_t type, const void *head, size_t head_bytes,
                                 const void *body, size_t body_bytes, ferry_error *error)
{
    /* How many signs of life there are is a matter of time, so they do not count. */
    rank_process *self = dying;
    if (self != NULL && type != FY_WIRE_BEAT &&
        atomic_fetch_add(&n_messages, 1) + 1 == ((const death *)self->context)->at) {
        add_mark(self->shared, FIRED);
        raise(SIGKILL);
    }
    return __real_fy_link_post(link, type, head, head_bytes, body, body_bytes, error);
}

static ferry_plan *make_plan(rank_process *self)
{
    static const char text[] =
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"m\", \"shape\": [12, 12],"
        " \"dtype\": \"u8\"}], \"source\": {\"mesh\": [[\"tp\", 3]], \"rules\": [{\"match\": \"*\","
        " \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}]}, \"destination\": {\"mesh\": [[\"tp\", "
        "3]],"
        " \"rules\": [{\"match\": \"*\", \"shard\": [{\"dim\": 1, \"axis\": \"tp\"}]}]}}";
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    so(self, ferry_spec_parse(text, strlen(text), "deaths", &spec, &self->error) == FERRY_OK);
    so(self, ferry_plan_create(spec, NULL, &plan, &self->error) == FERRY_OK);
    ferry_spec_destroy(spec);
    return plan;
}

static ferry_tensors *tensors_of(rank_process *self, unsigned char *bytes)
{
    ferry_tensors *tensors = NULL;
    ferry_buffer buffer = ferry_buffer_of(bytes, ROWS * ROWS / RANKS);
    so(self, ferry_tensors_create(&tensors, &self->error) == FERRY_OK);
    so(self, ferry_tensors_add(tensors, "m", &buffer, &self->error) == FERRY_OK);
    return tensors;
}

static void bind_plan(rank_process *self, ferry_service *service, const ferry_tensors *sources,
                      const ferry_tensors *targets)
{
    ferry_plan *plan = make_plan(self);
    so(self, ferry_service_bind(service, plan, sources, targets, &self->error) == FERRY_OK);
    ferry_plan_destroy(plan);
}

/* What the plan moves, box by box. */
static void register_boxes(rank_process *self, ferry_service *service,
                           unsigned char memory[2][ROWS * OWN])
{
    ferry_buffer source = ferry_buffer_of(memory[0], ROWS * OWN);
    ferry_buffer target = ferry_buffer_of(memory[1], ROWS * OWN);
    for (uint32_t r = 0; r < RANKS; r++) {
        ferry_box box = FERRY_BOX_INIT;
        so(self, ferry_box_of(&source, 1, 2, (uint64_t[]){OWN, ROWS}, (uint64_t[]){0, r * OWN},
                              (uint64_t[]){OWN, OWN}, &box, &self->error) == FERRY_OK);
        so(self, ferry_service_register_send_box(service, 1, &box, r, &self->error) == FERRY_OK);
        box = (ferry_box)FERRY_BOX_INIT;
        so(self, ferry_box_of(&target, 1, 2, (uint64_t[]){ROWS, OWN}, (uint64_t[]){r * OWN, 0},
                              (uint64_t[]){OWN, OWN}, &box, &self->error) == FERRY_OK);
        so(self, ferry_service_register_receive_box(service, 1, &box, r, &self->error) == FERRY_OK);
    }
}

static ferry_status schedule(rank_process *self, ferry_service *service,
                             unsigned char memory[2][ROWS * OWN])
{
    const death *d = self->context;
    bool dies = self->rank == d->victim;
    ferry_tensors *sources = tensors_of(self, memory[0]), *targets = tensors_of(self, memory[1]);
    if (d->registers) {
        register_boxes(self, service, memory);
    } else {
        bind_plan(self, service, sources, targets);
    }
    dying = dies && !d->rebinds ? self : NULL;
    ferry_status status = ferry_service_schedule(service, &self->error);
    if (d->rebinds) {
        so(self, status == FERRY_OK);
        /* Nobody is in the schedule any more, to which the victim's death would come. */
        so(self, ferry_world_barrier(self->world, &self->error) == FERRY_OK);
        dying = dies ? self : NULL;
        status = ferry_service_rebind(service, sources, targets, &self->error);
    }
    dying = NULL;
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(targets);
    return status;
}

/* Byte of element (row, column) of the whole. */
static unsigned char byte_of(uint32_t row, uint32_t column)
{
    return (unsigned char)(7 * row + 31 * column + 1);
}

static void live(rank_process *self)
{
    const death *d = self->context;
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    ferry_service *service = NULL;
    unsigned char memory[2][ROWS * OWN];
    uint32_t lost = FERRY_ANY_RANK;
    options.engines = "delay=1us:shm";
    for (uint32_t i = 0; i < ROWS * OWN; i++) {
        memory[0][i] = byte_of(self->rank * OWN + i / ROWS, i % ROWS);
    }
    so(self, ferry_service_create(self->world, &options, &service, &self->error) == FERRY_OK);
    so(self, ferry_service_init(service, FERRY_LOG_OFF, &self->error) == FERRY_OK);
    so(self, ferry_world_barrier(self->world, &self->error) == FERRY_OK);
    ferry_status status = schedule(self, service, memory);
    status = status == FERRY_OK ? ferry_service_run(service, NULL, &self->error) : status;
    if (atomic_load(&self->shared->mark[FIRED]) == 0) {
        so(self, status == FERRY_OK);
        for (uint32_t i = 0; i < ROWS * OWN; i++) {
            so(self, memory[1][i] == byte_of(i / OWN, self->rank * OWN + i % OWN));
        }
    } else {
        so(self, status == FERRY_ERR_PEER_LOST);
        so(self, ferry_world_state(self->world, &lost, NULL) == FERRY_ERR_PEER_LOST);
        so(self, lost == d->victim);
        char named[16];
        snprintf(named, sizeof named, "rank %u", (unsigned)d->victim);
        so(self, strstr(self->error.message, named) != NULL);
    }
    ferry_service_destroy(service);
}

static void run_deaths(death d)
{
    const char *name = d.name;
    for (uint32_t victim = 0; victim < RANKS; victim++) {
        bool fired = true;
        d.victim = victim;
        d.at = 0;
        while (fired) {
            char row[96];
            processes all;
            d.at++;
            snprintf(row, sizeof row, "%s: rank %u before message %d", name, (unsigned)victim,
                     d.at);
            rank_process like = patient_ranks(row, RANKS);
            like.context = &d;
            start_processes(&all, &like, live);
            for (uint32_t r = 0; r < RANKS; r++) { /* before the marks go */
                siginfo_t ended;
                waitid(P_PID, (id_t)all.pids[r], &ended, WEXITED | WNOWAIT);
            }
            fired = atomic_load(&all.shared->mark[FIRED]) != 0;
            end_processes(row, &all, RANKS, fired ? victim : FERRY_ANY_RANK);
            assert_true(d.at < MOST_MESSAGES);
        }
        print_message("%s: rank %u makes %d messages\n", name, (unsigned)victim, d.at - 1);
        check_row(name, d.at > 3);
    }
}

static void test_scheduled(void **state)
{
    (void)state;
    run_deaths((death){.name = "scheduled"});
}

static void test_rebound(void **state)
{
    (void)state;
    run_deaths((death){.name = "bound to other memory", .rebinds = true});
}

static void test_registered(void **state)
{
    (void)state;
    run_deaths((death){.name = "registered", .registers = true});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scheduled),
                                       cmocka_unit_test(test_rebound),
                                       cmocka_unit_test(test_registered)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
