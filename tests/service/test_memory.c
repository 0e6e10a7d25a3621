/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The copy service among threads when memory runs out: in each call, on each rank. */
#include "fault/rank_runs.h"

#include <ferry/service.h>
#include <ferry/spec.h>

#include <stdlib.h>

enum { BYTES = 6000, PARTS = 3 };

typedef struct variant {
    const char *engines;
    uint32_t paths, checksum, n_threads;
    ferry_plan *plan; /* bound; else tasks are registered */
    uint64_t delta;
} variant;

typedef struct own_memory {
    unsigned char source[BYTES], target[BYTES];
} own_memory;

static own_memory memory[RUN_RANKS];

/* 3 parts of each rank go round; every other byte of a part is a box's. */
static ferry_status register_all(rank_run *self, ferry_service *service)
{
    own_memory *mine = &memory[self->rank];
    uint32_t next = (self->rank + 1) % RUN_RANKS;
    uint32_t before = (self->rank + RUN_RANKS - 1) % RUN_RANKS;
    ferry_box box = FERRY_BOX_INIT;
    ferry_buffer source = ferry_buffer_of(mine->source, BYTES);
    ferry_buffer target = ferry_buffer_of(mine->target, BYTES);
    ferry_error *error = &self->error;
    ferry_status status = FERRY_OK;
    box.n_dims = 1;
    box.length[0] = BYTES / PARTS / 2;
    box.stride[0] = 2;
    box.name = "every other byte";
    for (uint32_t i = 0; i < PARTS && status == FERRY_OK; i++) {
        uint64_t at = i * (BYTES / PARTS);
        box.offset = at;
        box.buffer = source;
        status = ferry_service_register_send_box(service, i, &box, next, error);
        box.buffer = target;
        if (status == FERRY_OK) {
            status = ferry_service_register_receive_box(service, i, &box, before, error);
        }
        if (status == FERRY_OK) {
            status = ferry_service_register_send(service, 9, &source, 1, 1, self->rank, error);
        }
        if (status == FERRY_OK) {
            status = ferry_service_register_receive(service, 9, &target, 1, 1, self->rank, error);
        }
        if (i > 0 && status == FERRY_ERR_INVALID_INPUT) {
            status = FERRY_OK; /* the second of an id */
        }
    }
    return status;
}

static ferry_status bind_all(rank_run *self, ferry_service *service, const ferry_plan *plan)
{
    ferry_tensors *sources = UNTOUCHED, *targets = NULL;
    ferry_buffer source = ferry_buffer_of(memory[self->rank].source, BYTES);
    ferry_buffer target = ferry_buffer_of(memory[self->rank].target, BYTES);
    ferry_status status = ferry_tensors_create(&sources, &self->error);
    if (status != FERRY_OK) {
        self->wrong = sources != UNTOUCHED ? "an output was set by a call that failed" : NULL;
        return status;
    }
    status = ferry_tensors_create(&targets, &self->error);
    if (status == FERRY_OK) {
        status = ferry_tensors_add(sources, "w", &source, &self->error);
    }
    if (status == FERRY_OK) {
        status = ferry_tensors_add(targets, "w", &target, &self->error);
    }
    if (status == FERRY_OK) {
        status = ferry_service_bind(service, plan, sources, targets, &self->error);
    }
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(targets);
    return status;
}

static unsigned char expected_byte(const variant *v, uint32_t rank, uint32_t i)
{
    uint32_t before = (rank + RUN_RANKS - 1) % RUN_RANKS;
    if (v->plan != NULL) { /* rows of BYTES become columns of BYTES / 3 */
        uint32_t row = i / (BYTES / PARTS), column = i % (BYTES / PARTS);
        return (unsigned char)(row * 50 + (rank * (BYTES / PARTS) + column) * 7);
    }
    return (unsigned char)(i == 1 ? rank * 50 + 7 : i % 2 == 0 ? before * 50 + i * 7 : 0xee);
}

static ferry_status run_and_look(rank_run *self, const variant *v, ferry_service *service)
{
    own_memory *mine = &memory[self->rank];
    memset(mine->target, 0xee, BYTES);
    ferry_status status = ferry_service_run(service, NULL, &self->error);
    for (uint32_t i = 0; i < BYTES && status == FERRY_OK; i++) {
        if (mine->target[i] != expected_byte(v, self->rank, i)) {
            self->wrong = "a run that succeeded brought wrong bytes";
        }
    }
    return status;
}

static ferry_status use_service(rank_run *self, const variant *v, ferry_service *service)
{
    ferry_status status = ferry_service_init(service, FERRY_LOG_OFF, &self->error);
    for (unsigned round = 0; round < 2 && status == FERRY_OK; round++) {
        status = v->plan != NULL ? bind_all(self, service, v->plan) : register_all(self, service);
        if (status == FERRY_OK) {
            status = ferry_service_schedule(service, &self->error);
        }
        for (unsigned i = 0; i < 2 && status == FERRY_OK; i++) {
            status = run_and_look(self, v, service);
        }
        if (status == FERRY_OK) {
            status = ferry_service_clear_requests(service, &self->error);
        }
    }
    return status;
}

static ferry_status run_service(rank_run *self)
{
    const variant *v = self->plan;
    ferry_service *service = UNTOUCHED;
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    options.engines = v->engines;
    options.paths = v->paths;
    options.checksum = v->checksum;
    options.delta = v->delta;
    options.n_threads = v->n_threads;
    options.slot_bytes = 512;
    options.memory_cap = 1 << 20;
    options.trace = v->checksum == FERRY_CHECKSUM_END;
    for (uint32_t i = 0; i < BYTES; i++) {
        memory[self->rank].source[i] = (unsigned char)(self->rank * 50 + i * 7);
    }
    ferry_status status = ferry_service_create(self->world, &options, &service, &self->error);
    if (status != FERRY_OK) {
        self->wrong = service != UNTOUCHED ? "an output was set by a call that failed" : NULL;
        return status;
    }
    status = use_service(self, v, service);
    if (status != FERRY_OK) { /* so that nobody waits for this rank in destroy */
        ferry_world_abort(self->world, self->error.message);
    }
    ferry_service_destroy(service);
    return status;
}

static ferry_plan *make_plan(void)
{
    static const char text[] =
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w\", \"shape\": [3, 6000],"
        " \"dtype\": \"u8\"}], \"source\": {\"mesh\": [[\"tp\", 3]], \"rules\": [{\"match\": \"*\","
        " \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}]}, \"destination\": {\"mesh\": [[\"tp\", "
        "3]],"
        " \"rules\": [{\"match\": \"*\", \"shard\": [{\"dim\": 1, \"axis\": \"tp\"}]}]}}";
    ferry_error error;
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    must(ferry_spec_parse(text, sizeof text - 1, "a spec", &spec, &error), &error);
    must(ferry_plan_create(spec, NULL, &plan, &error), &error);
    ferry_spec_destroy(spec);
    return plan;
}

static void test_refused(void **state)
{
    (void)state;
    ferry_plan *plan = make_plan();
    variant rows[] = {
        {"inproc", FERRY_PATH_ALL, FERRY_CHECKSUM_NONE, 1, NULL, 0},
        {"inproc", FERRY_PATH_STAGED, FERRY_CHECKSUM_PATH, 2, NULL, 1},
        {"strict:inproc", FERRY_PATH_ALL, FERRY_CHECKSUM_END, 1, plan, 0},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        /* Who cannot tell the others how a run ended, ends the world; some may know by then. */
        rank_script script = {"the copy service", &rows[i], run_service, true};
        run_script(&script, 30);
    }
    ferry_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused)};
    failing_init();
    failing_by_thread = true;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
