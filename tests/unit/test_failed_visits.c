/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank does that has begun a put or a get when its world fails: the owner of the memory
 * waits only for those who came before, so whoever comes behind the failure must turn back, though
 * the call was let through when all was well.
 */
#include "rank_threads.h"

#include "transport/carry.h"
#include "transport/transport.h"

#include <ferry/pack.h>
#include <ferry/transport.h>

#include <sched.h>
#include <stdatomic.h>

enum { BYTES = 9000, OWNER = 1 };

static _Atomic int n_looked; /* ranks that are done with the failed world */

static void copy(rank_thread *self, ferry_buffer to, ferry_buffer from)
{
    ferry_box boxes[2] = {FERRY_BOX_INIT, FERRY_BOX_INIT};
    for (int i = 0; i < 2; i++) {
        boxes[i].buffer = i == 0 ? to : from;
        boxes[i].n_dims = 1;
        boxes[i].length[0] = BYTES;
        boxes[i].stride[0] = 1;
    }
    expect_ok(self, ferry_box_copy(&boxes[0], &boxes[1], NULL, NULL, &self->error));
}

static void fill(rank_thread *self, ferry_buffer memory, unsigned char value)
{
    unsigned char bytes[BYTES];
    memset(bytes, value, sizeof bytes);
    copy(self, memory, ferry_buffer_of(bytes, BYTES));
}

static void check(rank_thread *self, ferry_buffer memory, unsigned char value)
{
    unsigned char bytes[BYTES];
    copy(self, ferry_buffer_of(bytes, BYTES), memory);
    for (size_t i = 0; i < BYTES; i++) {
        expect(self, bytes[i] == value);
    }
}

/* The other rank's memory, by its key. */
static ferry_region *import(rank_thread *self, ferry_transport *transport, const ferry_region *own)
{
    unsigned char key[FERRY_KEY_BYTES] = {0};
    const void *all = NULL;
    ferry_region *region = NULL;
    size_t n = 0;
    if (ferry_region_export(own, key, sizeof key, &n, &self->error) != FERRY_OK ||
        ferry_world_all_gather(self->world, key, sizeof key, &all, &self->error) != FERRY_OK ||
        ferry_region_import(transport, (const unsigned char *)all + OWNER * sizeof key, n, &region,
                            &self->error) != FERRY_OK) {
        snprintf(self->wrong, sizeof self->wrong, "no key: %s", self->error.message);
    }
    return region;
}

/* Past the checks of the call, which the failure has come behind. */
static void come_late(rank_thread *self, ferry_transport *transport, ferry_region *region,
                      ferry_buffer *own)
{
    const fy_open_engine *engine = fy_engine_for(transport, OWNER);
    void *known = region->attachments[transport->engine_of[OWNER]];
    fy_carriage what = {OWNER, region, 0, own};
    if (own->kind != FERRY_MEMORY_HOST) {
        expect_status(self, FERRY_ERR_ABORTED, fy_carry_put(transport, &what, NULL, &self->error));
        expect_status(self, FERRY_ERR_ABORTED, fy_carry_get(transport, &what, &self->error));
        return;
    }
    expect_status(self, FERRY_ERR_ABORTED,
                  engine->table->put(engine->state, OWNER, &region->view, known, 0, own->base,
                                     BYTES, NULL, &self->error));
    expect_status(self, FERRY_ERR_ABORTED,
                  engine->table->get(engine->state, OWNER, &region->view, known, 0, own->base,
                                     BYTES, &self->error));
}

static void run_kind(rank_thread *self)
{
    uint32_t kind = *(const uint32_t *)self->context;
    ferry_transport *transport = NULL;
    ferry_region *own = NULL;
    ferry_buffer memory;
    expect_ok(self, ferry_transport_open(self->world, NULL, &transport, &self->error));
    expect_ok(self,
              ferry_memory_alloc(NULL, (ferry_memory_kind)kind, 0, BYTES, &memory, &self->error));
    expect_ok(self, ferry_region_register(transport, &memory, &own, &self->error));
    fill(self, memory, (unsigned char)(self->rank + 1));
    ferry_region *region = import(self, transport, own);
    expect(self, region != NULL);
    (void)ferry_world_barrier(self->world, &self->error);
    ferry_world_abort(self->world, "it ends");
    if (self->rank != OWNER) {
        come_late(self, transport, region, &memory);
    }
    for (atomic_fetch_add(&n_looked, 1); atomic_load(&n_looked) < (int)self->n_ranks;) {
        sched_yield();
    }
    check(self, memory, (unsigned char)(self->rank + 1));
    ferry_region_free(region);
    ferry_region_free(own); /* and nobody is counted who has left */
    ferry_memory_free(&memory);
    ferry_transport_close(transport);
}

static void test_kinds(void **state)
{
    static const uint32_t kinds[] = {FERRY_MEMORY_HOST, FERRY_MEMORY_FAR};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        uint32_t kind = kinds[i];
        atomic_store(&n_looked, 0);
        run_ranks(2, NULL, run_kind, &kind);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
