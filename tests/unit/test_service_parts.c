/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of a service that whole worlds reach by chance only: what is registered when places are
 * told, items that cannot be cut, and what a rank that has moved everything waits for. There is no
 * world here; what would need one is this file's.
 */
#include "support/check.h"

#include "base/alloc.h"
#include "service/prepare.h"
#include "service/run.h"

#include <stdlib.h>

static size_t n_registered, n_keys, n_votes;
static const ferry_region *exported[8];
static ferry_status flushed;

ferry_status __wrap_ferry_region_register(ferry_transport *transport, const ferry_buffer *buffer,
                                          ferry_region **region_out, ferry_error *error);
ferry_status __wrap_ferry_region_export(const ferry_region *region, void *key, size_t key_bytes,
                                        size_t *n_bytes_out, ferry_error *error);
void __wrap_ferry_region_free(ferry_region *region);
uint32_t __wrap_fy_transport_capabilities(ferry_transport *transport, uint32_t peer);
ferry_status __wrap_fy_transport_try_flush(ferry_transport *transport, uint32_t *peer_out,
                                           ferry_error *error);
void __wrap_fy_transport_hurry(ferry_transport *transport, bool hurries);
void __wrap_fy_outcome_begin(ferry_service *service);

/* What the service registers by itself is what was to be registered. */
static ferry_region made;

ferry_status __wrap_ferry_region_register(ferry_transport *transport, const ferry_buffer *buffer,
                                          ferry_region **region_out, ferry_error *error)
{
    (void)error;
    made.transport = transport;
    made.view.base = buffer->base;
    made.view.bytes = buffer->bytes;
    *region_out = &made;
    n_registered++;
    return FERRY_OK;
}

ferry_status __wrap_ferry_region_export(const ferry_region *region, void *key, size_t key_bytes,
                                        size_t *n_bytes_out, ferry_error *error)
{
    (void)key;
    (void)key_bytes;
    (void)error;
    assert_true(n_keys < COUNT_OF(exported));
    exported[n_keys++] = region;
    *n_bytes_out = 0;
    return FERRY_OK;
}

void __wrap_ferry_region_free(ferry_region *region)
{
    (void)region;
}

uint32_t __wrap_fy_transport_capabilities(ferry_transport *transport, uint32_t peer)
{
    (void)transport;
    (void)peer;
    return FERRY_CAN_REMOTE_USER_MEMORY;
}

ferry_status __wrap_fy_transport_try_flush(ferry_transport *transport, uint32_t *peer_out,
                                           ferry_error *error)
{
    (void)transport;
    (void)error;
    *peer_out = 1;
    return flushed;
}

void __wrap_fy_transport_hurry(ferry_transport *transport, bool hurries)
{
    (void)transport;
    (void)hurries;
}

void __wrap_fy_outcome_begin(ferry_service *service)
{
    n_votes++;
    service->run->outcome.phase = FY_PHASE_VOTING;
}

/*
 * Places: the memory of one receive, which is long enough to be worth a registration.
 */
enum { RUN_BYTES = 1 << 20 };

typedef struct scene {
    ferry_transport transport;
    ferry_service service;
    fy_service_program program;
    fy_wire wire;
    fy_run_state run;
    fy_channel_state state;
    fy_held held;
    fy_end receive;
    fy_channel channel;
    fy_channel_wire channel_wire;
} scene;

static scene *open_scene(void)
{
    static scene s;
    static char memory[16]; /* an address: nothing is read of it */
    memset(&s, 0, sizeof s);
    memset(&made, 0, sizeof made);
    s.service.program = &s.program;
    s.service.wire = &s.wire;
    s.service.run = &s.run;
    s.service.transport = &s.transport;
    s.held = (fy_held){.front = ferry_buffer_of(memory, RUN_BYTES)};
    s.receive = (fy_end){.run_bytes = RUN_BYTES, .bytes = RUN_BYTES};
    s.channel = (fy_channel){.peer = 1};
    s.channel_wire = (fy_channel_wire){.n_receives = 1};
    s.program = (fy_service_program){.channels = &s.channel, .n_channels = 1};
    s.wire = (fy_wire){.channels = &s.channel_wire, .n_channels = 1};
    s.service.registry.held = &s.held;
    s.service.registry.n_held = 1;
    s.service.registry.receives.items = &s.receive;
    s.service.registry.receives.n = 1;
    s.state.channel = &s.channel;
    s.run.channels = &s.state;
    n_registered = n_keys = n_votes = 0;
    return &s;
}

static void write_places(scene *s)
{
    fy_pack out = {.bytes = NULL};
    ferry_error error;
    n_keys = 0;
    must(fy_places_write(&s->service, &s->channel, &out, &error), &error);
    assert_false(out.failed);
    fy_pack_cleanup(&out);
}

/* Memory that the caller has registered is told by that registration, and not registered again. */
static void test_own_registration(void **state)
{
    static ferry_region own;
    (void)state;
    scene *s = open_scene();
    own = (ferry_region){.transport = &s->transport};
    own.view.base = s->held.front.base;
    own.view.bytes = RUN_BYTES;
    s->held.front.registration = &own;
    fy_registry_note(&s->service.registry, &s->held.front);
    write_places(s);
    assert_int_equal(n_registered, 0);
    assert_true(n_keys == 1 && exported[0] == &own);
    /* Of another transport, or too short, it is none. */
    own.view.bytes--;
    write_places(s);
    assert_int_equal(n_registered, 1);
    assert_true(n_keys == 1 && exported[0] == &made);
}

/* What the service has registered once it tells again, in as many schedules as there are. */
static void test_one_registration(void **state)
{
    (void)state;
    scene *s = open_scene();
    for (int i = 0; i < 3; i++) {
        write_places(s);
        assert_true(n_keys == 1 && exported[0] == &made);
    }
    assert_int_equal(n_registered, 1);
    assert_int_equal(s->service.statistics.n_registrations, 1);
}

/* One peer gives no room for what is staged: that is an error, whatever can go to the next one. */
static void test_no_room(void **state)
{
    static fy_channel channels[2];
    static fy_channel_wire wires[2];
    static fy_place places[2];
    static fy_wanted wanted = {.path = FERRY_PATH_STAGED, .n_ranges = 1};
    static fy_range range = {.first = 0, .bytes = 100};
    ferry_error error;
    (void)state;
    scene *s = open_scene();
    for (uint32_t c = 0; c < 2; c++) {
        places[c] = (fy_place){.bytes = 100};
        channels[c] =
            (fy_channel){.peer = c + 1, .places = &places[c], .out_payload = c == 0 ? 0 : 64};
        wires[c] = (fy_channel_wire){.n_sends = 1, .wanted = &wanted, .ranges = &range};
    }
    s->service.options.slot_bytes = 1000;
    s->service.options.max_tasks = 10;
    s->program = (fy_service_program){.channels = channels, .n_channels = 2};
    s->wire = (fy_wire){.channels = wires, .n_channels = 2};
    ferry_world world;
    memset(&world, 0, sizeof world);
    s->service.world = &world;
    check_status("no room", FERRY_ERR_LIMIT, fy_items_make(&s->service, &error), &error);
    check_says("no room", "leaves rank 1 no slot", &error);
    assert_int_equal(channels[1].out.n_items, 0);
}

/* A rank that has moved everything votes when what it has put is in place, and not before. */
static void test_vote_after_flush(void **state)
{
    static fy_failure none;
    ferry_world world;
    (void)state;
    scene *s = open_scene();
    memset(&world, 0, sizeof world);
    world.failure = &none;
    world.settings.deadline_ns = INT64_MAX / 2;
    s->service.world = &world;
    flushed = FERRY_ERR_TIMEOUT;
    for (int i = 0; i < 5; i++) {
        assert_false(fy_run_step(&s->service));
        assert_int_equal(n_votes, 0);
    }
    flushed = FERRY_OK;
    assert_true(fy_run_step(&s->service));
    assert_int_equal(n_votes, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_registration),
        cmocka_unit_test(test_one_registration),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_vote_after_flush),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
