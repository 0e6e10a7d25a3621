/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds that end again and again, and one service that is recovered each time: its tensors lie in
 * memory of ferry_memory_alloc, which belongs to the transport of the first service. It stays where
 * it is, with all that was moved into it, however many transports have come and gone since.
 */
#include "rank_threads.h"

#include "support/spec.h"

#include <ferry/service.h>
#include <ferry/transport.h>

enum { N_RANKS = 2, N_ENDS = 5, BYTES = 20000 };

static const char spec_text[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[20000],'dtype':'u8'}],'source':{"
    "'mesh':[['dp',2]],'rules':[{'match':'*'}]},'destination':{'mesh':[['dp',2]],'rules':[{"
    "'match':'*'}]}}";

/* What version n has at a place. */
static unsigned char byte_of(uint64_t version, size_t at)
{
    return (unsigned char)(version * 37 + at);
}

typedef struct own {
    ferry_spec *spec;
    ferry_service *service;
    ferry_tensors *sources, *targets;
    ferry_buffer source, target;
} own;

static void open_own(rank_thread *self, own *o)
{
    ferry_plan *plan = NULL;
    expect_ok(self, try_spec(spec_text, &o->spec, &self->error));
    expect_ok(self, ferry_plan_create(o->spec, NULL, &plan, &self->error));
    expect_ok(self, ferry_service_create(self->world, NULL, &o->service, &self->error));
    expect_ok(self, ferry_service_init(o->service, FERRY_LOG_OFF, &self->error));
    ferry_transport *transport = ferry_service_transport(o->service);
    expect_ok(self,
              ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, BYTES, &o->source, &self->error));
    expect_ok(self,
              ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, BYTES, &o->target, &self->error));
    expect_ok(self, ferry_tensors_create(&o->sources, &self->error));
    expect_ok(self, ferry_tensors_create(&o->targets, &self->error));
    expect_ok(self, ferry_tensors_add(o->sources, "a", &o->source, &self->error));
    expect_ok(self, ferry_tensors_add(o->targets, "a", &o->target, &self->error));
    expect_ok(self, ferry_service_bind(o->service, plan, o->sources, o->targets, &self->error));
    expect_ok(self, ferry_service_schedule(o->service, &self->error));
    ferry_plan_destroy(plan);
}

static void check_target(rank_thread *self, const own *o, uint64_t version)
{
    const unsigned char *at = o->target.base;
    size_t i = 0;
    while (i < BYTES && at[i] == byte_of(version, i)) {
        i++;
    }
    expect(self, i == BYTES);
}

static void run_version(rank_thread *self, own *o, uint64_t version)
{
    unsigned char *at = o->source.base;
    for (size_t i = 0; i < BYTES; i++) {
        at[i] = byte_of(version, i);
    }
    expect_ok(self, ferry_service_run(o->service, NULL, &self->error));
    check_target(self, o, version);
}

static void run_ends(rank_thread *self)
{
    own o = {.spec = NULL};
    ferry_recovery_options options = FERRY_RECOVERY_OPTIONS_INIT;
    open_own(self, &o);
    options.spec = o.spec;
    run_version(self, &o, 1);
    for (uint64_t version = 1; version <= N_ENDS && self->wrong[0] == '\0'; version++) {
        ferry_recovery recovery = FERRY_RECOVERY_INIT;
        (void)ferry_world_barrier(self->world, &self->error); /* the runs of all are over */
        ferry_world_abort(self->world, "it is to end");
        expect_ok(self, ferry_service_recover_onto(&o.service, &self->world, &options, o.sources,
                                                   o.targets, &recovery, &self->error));
        expect(self, recovery.whole == version && recovery.next == version + 1);
        check_target(self, &o, version);
        if (version % 2 == 0) { /* and twice without a run in between */
            (void)ferry_world_barrier(self->world, &self->error);
            ferry_world_abort(self->world, "again");
            expect_ok(self, ferry_service_recover_onto(&o.service, &self->world, &options,
                                                       o.sources, o.targets, NULL, &self->error));
            check_target(self, &o, version);
        }
        run_version(self, &o, version + 1);
    }
    ferry_memory_free(&o.source);
    ferry_memory_free(&o.target);
    ferry_service_destroy(o.service);
    ferry_tensors_destroy(o.sources);
    ferry_tensors_destroy(o.targets);
    ferry_spec_destroy(o.spec);
}

static void test_ends(void **state)
{
    (void)state;
    run_ranks(N_RANKS, NULL, run_ends, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
