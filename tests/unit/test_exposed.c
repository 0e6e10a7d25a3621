/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that could not be taken from a rank that was left behind: nothing is received into it
 * before each engine by which that rank reached it has made up for that; or never, and nothing ever
 * lies there again. The engines are a table with another revoke.
 */
#include "rank_threads.h"

#include "transport/region.h"

#include "support/emulated.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static ferry_status answers[FY_MOST_ENGINES];
static int n_asked[FY_MOST_ENGINES];
static fy_engine tables[FY_MOST_ENGINES];

static ferry_status answer(int engine, ferry_error *error)
{
    n_asked[engine]++;
    return answers[engine] == FERRY_OK
               ? FERRY_OK
               : fy_fail(error, answers[engine], "engine %d says so", engine);
}

static ferry_status revoke_0(void *state, const fy_region_view *region, void *attachment,
                             ferry_error *error)
{
    (void)state;
    (void)region;
    (void)attachment;
    return answer(0, error);
}

static ferry_status revoke_1(void *state, const fy_region_view *region, void *attachment,
                             ferry_error *error)
{
    (void)state;
    (void)region;
    (void)attachment;
    return answer(1, error);
}

/* The transport's engine twice; memory is the library's own. */
static void double_engine(ferry_transport *transport)
{
    for (int i = 0; i < FY_MOST_ENGINES; i++) {
        tables[i] = *transport->engines[0].table;
        tables[i].revoke = i == 0 ? revoke_0 : revoke_1;
        tables[i].alloc_local = NULL;
        transport->engines[i].state = transport->engines[0].state;
        transport->engines[i].host = transport->engines[0].host;
        answers[i] = FERRY_ERR_NO_MEMORY;
        n_asked[i] = 0;
    }
    for (int i = 0; i < FY_MOST_ENGINES; i++) {
        transport->engines[i].table = &tables[i];
    }
}

/* A rank that reached this one by that engine is left behind, and may live. */
static void part(ferry_transport *transport, uint8_t engine)
{
    const bool may_live[1] = {true};
    transport->engine_of[0] = engine;
    fy_transport_shrunk(transport, may_live);
    transport->engine_of[0] = 0;
}

static ferry_status secure(const ferry_buffer *buffer, ferry_error *error)
{
    *error = (ferry_error){.message = ""};
    memset(n_asked, 0, sizeof n_asked);
    return fy_memory_secure(buffer->base, 10, error);
}

typedef struct scene {
    ferry_transport *transport;
    ferry_buffer buffer;
    ferry_region *region;
} scene;

static ferry_status set_up(rank_thread *self, scene *s)
{
    ferry_status status = ferry_transport_open(self->world, NULL, &s->transport, &self->error);
    if (status == FERRY_OK) {
        double_engine(s->transport);
        status =
            ferry_memory_alloc(s->transport, FERRY_MEMORY_HOST, 0, 4096, &s->buffer, &self->error);
    }
    if (status == FERRY_OK) {
        s->region = s->buffer.registration;
        s->transport->n_engines = 2;
        s->region->attachments[1] = s->region->attachments[0];
        s->region->attached = 3;
    }
    return status;
}

static void tear_down(scene *s)
{
    s->region->attached = 1;
    s->transport->n_engines = 1;
    ferry_memory_free(&s->buffer);
    ferry_transport_close(s->transport);
}

static void made_up_for(rank_thread *self)
{
    scene s;
    char elsewhere[10];
    expect_ok(self, set_up(self, &s));
    ferry_buffer other = ferry_buffer_of(elsewhere, sizeof elsewhere);
    expect_ok(self, secure(&s.buffer, &self->error));
    part(s.transport, 0);
    expect_status(self, FERRY_ERR_NO_MEMORY, secure(&s.buffer, &self->error));
    expect_says(self, "engine 0 says so");
    expect(self, n_asked[0] == 1 && n_asked[1] == 0);
    expect_ok(self, secure(&other, &self->error));
    /* One more is left behind, by the other engine: now both have something to make up for. */
    part(s.transport, 1);
    answers[0] = FERRY_OK;
    expect_status(self, FERRY_ERR_NO_MEMORY, secure(&s.buffer, &self->error));
    expect_says(self, "engine 1 says so");
    expect(self, n_asked[0] == 1 && n_asked[1] == 1);
    answers[1] = FERRY_OK;
    expect_ok(self, secure(&s.buffer, &self->error));
    expect(self, n_asked[0] == 1 && n_asked[1] == 1);
    expect_ok(self, secure(&s.buffer, &self->error));
    expect(self, n_asked[0] == 0 && n_asked[1] == 0);
    tear_down(&s);
}

/* Its engine has another number in the transport that it goes to. */
static void moved(rank_thread *self)
{
    scene s;
    expect_ok(self, set_up(self, &s));
    part(s.transport, 0);
    fy_region_move_exposure(s.region, 1, 2);
    expect_status(self, FERRY_ERR_NO_MEMORY, secure(&s.buffer, &self->error));
    expect(self, n_asked[0] == 0 && n_asked[1] == 1);
    /* What reached it by an engine that has let go of it reaches it no more. */
    fy_region_move_exposure(s.region, 1, 1);
    expect_ok(self, secure(&s.buffer, &self->error));
    expect(self, n_asked[0] == 0 && n_asked[1] == 0);
    fy_region_move_exposure(s.region, 1, 1);
    expect_ok(self, secure(&s.buffer, &self->error));
    tear_down(&s);
}

static void for_good(rank_thread *self)
{
    for (int first = 0; first < 2; first++) {
        scene s;
        int ends[2];
        expect_ok(self, set_up(self, &s));
        answers[1] = FERRY_ERR_UNSUPPORTED; /* whoever else fails, and before or behind it */
        part(s.transport, first == 0 ? 0 : 1);
        part(s.transport, first == 0 ? 1 : 0);
        for (int i = 0; i < 2; i++) {
            expect_status(self, FERRY_ERR_UNSUPPORTED, secure(&s.buffer, &self->error));
            expect_says(self, "can still write to them, and nothing can keep it from that: take "
                              "other memory");
            expect(self, n_asked[0] == 0 && n_asked[1] == 0);
            fy_region_move_exposure(s.region, 0, 0);
        }
        char *base = s.buffer.base;
        base[0] = 1;
        tear_down(&s);
        /* There is nothing any more, and nothing else comes there. */
        expect(self, pipe(ends) == 0);
        expect(self, write(ends[1], base, 1) == -1 && errno == EFAULT);
        expect(self, mmap(base, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                          -1, 0) == MAP_FAILED);
        close(ends[0]);
        close(ends[1]);
    }
}

static void test_made_up_for(void **state)
{
    (void)state;
    run_ranks(1, NULL, made_up_for, NULL);
}

static void test_moved(void **state)
{
    (void)state;
    run_ranks(1, NULL, moved, NULL);
}

static void test_for_good(void **state)
{
    (void)state;
    if (is_left_out(__func__, "maps over what is there (MAP_FIXED_NOREPLACE)")) {
        return;
    }
    run_ranks(1, NULL, for_good, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_made_up_for),
                                       cmocka_unit_test(test_moved),
                                       cmocka_unit_test(test_for_good)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
