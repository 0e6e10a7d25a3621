/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Wrong calls and contradictions: every rank is told, nobody waits for ever, and all can go on. */
#include "service/suite.h"

#include "support/devices.h"

enum { BYTES = 256 };

typedef struct ground {
    ferry_service *service;
    unsigned char from[BYTES], to[BYTES];
    ferry_buffer source, target;
} ground;

static ground *make_ground(rank_context *me)
{
    service_setup setup;
    ground *g = take(me, sizeof *g);
    setup_init(me, &setup, "");
    g->service = open_service(me, &setup.options);
    g->source = ferry_buffer_of(g->from, BYTES);
    g->target = ferry_buffer_of(g->to, BYTES);
    return g;
}

static ferry_status send_to(rank_context *me, ground *g, uint64_t id, uint64_t at, uint64_t bytes,
                            uint32_t to)
{
    return ferry_service_register_send(g->service, id, &g->source, at, bytes, to, &me->error);
}

static ferry_status receive_from(rank_context *me, ground *g, uint64_t id, uint64_t at,
                                 uint64_t bytes, uint32_t from)
{
    return ferry_service_register_receive(g->service, id, &g->target, at, bytes, from, &me->error);
}

/* A ring through the service shows that it is well, whatever was registered before. */
static void expect_well(rank_context *me, ground *g)
{
    must(me, ferry_service_clear_requests(g->service, &me->error));
    fill(g->from, BYTES, 70 + me->rank);
    memset(g->to, 0, BYTES);
    must(me, send_to(me, g, 3, 0, BYTES, next_rank(me)));
    must(me, receive_from(me, g, 3, 0, BYTES, previous_rank(me)));
    must(me, ferry_service_schedule(g->service, &me->error));
    must(me, ferry_service_run(g->service, NULL, &me->error));
    expect(me, mismatch(g->to, BYTES, 70 + previous_rank(me)) == BYTES, "wrong bytes");
    must(me, ferry_service_clear_requests(g->service, &me->error));
}

static void end_ground(ground *g)
{
    ferry_service_destroy(g->service);
    free(g);
}

static void expect_nothing_after_end(rank_context *me, ground *g)
{
    ferry_error *e = &me->error;
    ferry_request *request = NULL;
    must(me, ferry_service_finalize(g->service, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, send_to(me, g, 1, 0, 8, 0));
    must_fail(me, FERRY_ERR_MISUSE, NULL, receive_from(me, g, 1, 0, 8, 0));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_init(g->service, FERRY_LOG_ERROR, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_schedule(g->service, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_run(g->service, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_start(g->service, NULL, &request, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_rebind(g->service, NULL, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_finalize(g->service, e));
}

/* Versions end before they are 0 again, which is none. */
static void expect_last_version(rank_context *me)
{
    service_setup setup;
    ferry_error *e = &me->error;
    ferry_service *service = NULL;
    ferry_request *request = NULL;
    setup_init(me, &setup, "");
    setup.options.first_version = UINT64_MAX;
    must_fail(me, FERRY_ERR_LIMIT, "first_version 18446744073709551615",
              ferry_service_create(me->world, &setup.options, &service, e));
    setup.options.first_version = UINT64_MAX - 2;
    service = open_service(me, &setup.options);
    must(me, ferry_service_schedule(service, e));
    for (uint64_t version = UINT64_MAX - 2; version < UINT64_MAX; version++) {
        must(me, ferry_service_run(service, NULL, e));
        expect(me, ferry_service_version(service) == version, "version %llu",
               (unsigned long long)ferry_service_version(service));
    }
    must_fail(me, FERRY_ERR_LIMIT, "was the last one", ferry_service_run(service, NULL, e));
    e->message[0] = '\0';
    must_fail(me, FERRY_ERR_LIMIT, "was the last one",
              ferry_service_start(service, NULL, &request, e));
    expect(me,
           ferry_service_version(service) == UINT64_MAX - 1 &&
               ferry_service_next_version(service) == UINT64_MAX,
           "next %llu", (unsigned long long)ferry_service_next_version(service));
    must(me, ferry_service_clear_requests(service, e));
    ferry_service_destroy(service);
}

void case_bad_calls(rank_context *me)
{
    service_setup setup;
    ferry_error *e = &me->error;
    ferry_service *service = NULL;
    ferry_request *request = NULL;
    setup_init(me, &setup, "");
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_create(NULL, NULL, &service, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_create(me->world, NULL, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_init(NULL, FERRY_LOG_ERROR, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_schedule(NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_run(NULL, NULL, e));
    must(me, ferry_service_create(me->world, &setup.options, &service, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_schedule(service, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_run(service, NULL, e));
    ferry_service_destroy(service);

    ground *g = make_ground(me);
    ferry_queue *some = (ferry_queue *)(uintptr_t)8;
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_init(g->service, FERRY_LOG_ERROR, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_run(g->service, NULL, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_start(g->service, NULL, &request, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_rebind(g->service, NULL, NULL, e));
    must(me, ferry_service_schedule(g->service, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_schedule(g->service, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL, send_to(me, g, 1, 0, 8, 0));
    must_fail(me, FERRY_ERR_MISUSE, NULL, receive_from(me, g, 1, 0, 8, 0));
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_service_start(g->service, NULL, NULL, e));
    ferry_status status = ferry_service_start(g->service, some, &request, e);
    expect(me, status == FERRY_ERR_UNSUPPORTED || status == FERRY_ERR_MISUSE, "a queue: %s",
           ferry_status_name(status));
    ferry_destination destination = FERRY_DESTINATION_INIT;
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_service_destination_at(g->service, 0, &destination, e));
    expect_well(me, g);
    expect_nothing_after_end(me, g);
    end_ground(g);
    expect_last_version(me);
    ferry_request_destroy(NULL);
    ferry_tensors_destroy(NULL);
    ferry_ledger_destroy(NULL);
}

/* All ways to hand a buffer over, each with the outcome that is wanted. */
static void hand_over(rank_context *me, ground *g, const ferry_buffer *buffer, uint64_t id,
                      bool lies_in_it, const char *says)
{
    ferry_error *e = &me->error;
    ferry_tensors *tensors = NULL;
    ferry_buffer other = ferry_buffer_of(g->to, buffer->bytes);
    ferry_box box = FERRY_BOX_INIT;
    box.buffer = *buffer;
    box.n_dims = 1;
    box.length[0] = box.stride[0] = 1;
    box.name = "lying";
    must(me, ferry_tensors_create(&tensors, e));
    if (lies_in_it) {
        must(me, ferry_service_register_send(g->service, id, buffer, 0, 1, 0, e));
        must(me, ferry_service_register_receive(g->service, id, buffer, 0, 1, 0, e));
        must(me, ferry_service_register_receive_box(g->service, id + 1, &box, 0, e));
        must(me, ferry_tensors_add(tensors, "lying", buffer, e));
        must(me, ferry_tensors_add_pair(tensors, "pair", &other, buffer, e));
    } else {
        must_fail(me, FERRY_ERR_MISUSE, says,
                  ferry_service_register_send(g->service, id, buffer, 0, 1, 0, e));
        must_fail(me, FERRY_ERR_MISUSE, "do not lie in the region",
                  ferry_service_register_receive(g->service, id, buffer, 0, 1, 0, e));
        must_fail(me, FERRY_ERR_MISUSE,
                  "lying: ", ferry_service_register_receive_box(g->service, id + 1, &box, 0, e));
        must_fail(me, FERRY_ERR_MISUSE, "lying: ", ferry_tensors_add(tensors, "lying", buffer, e));
        must_fail(me, FERRY_ERR_MISUSE,
                  "pair: ", ferry_tensors_add_pair(tensors, "pair", &other, buffer, e));
    }
    ferry_tensors_destroy(tensors);
}

/* A registration is refused that the buffer does not lie in: the middle half of the bytes is one.
 */
static void expect_lies_refused(rank_context *me, ground *g)
{
    enum { FIRST = BYTES / 4, END = FIRST * 3 };
    static const uint64_t edges[] = {0, FIRST - 1, FIRST, FIRST + 1, END - 1, END, END + 1, BYTES};
    enum { N_EDGES = sizeof edges / sizeof *edges };
    char rank[32];
    ferry_transport *transport = ferry_service_transport(g->service);
    ferry_buffer middle = ferry_buffer_of(g->from + FIRST, END - FIRST);
    unsigned char key[FERRY_KEY_BYTES];
    size_t n_key;
    snprintf(rank, sizeof rank, "of rank %u", me->rank);
    must(me, ferry_region_register(transport, &middle, &middle.registration, &me->error));
    for (size_t i = 0; i < N_EDGES; i++) {
        for (size_t j = i + 1; j < N_EDGES; j++) {
            ferry_buffer buffer = ferry_buffer_of(g->from + edges[i], edges[j] - edges[i]);
            buffer.registration = middle.registration;
            hand_over(me, g, &buffer, 100 * i + 2 * j, edges[i] >= FIRST && edges[j] <= END, rank);
        }
    }
    must(me, ferry_service_clear_requests(g->service, &me->error));
    ferry_region *import = NULL;
    if (ferry_region_export(middle.registration, key, sizeof key, &n_key, &me->error) == FERRY_OK) {
        ferry_buffer buffer = middle;
        must(me, ferry_region_import(transport, key, n_key, &import, &me->error));
        buffer.registration = import;
        hand_over(me, g, &buffer, 1, false, "that is memory of rank");
        ferry_region_free(import);
    }
    ferry_region_free(middle.registration);
}

void case_bad_registrations(rank_context *me)
{
    ground *g = make_ground(me);
    ferry_error *e = &me->error;
    ferry_buffer none = ferry_buffer_of(NULL, BYTES);
    ferry_buffer device = g->source, third = g->source;
    device.kind = FERRY_MEMORY_CUDA;
    third.device = 3;
    must_fail(me, FERRY_ERR_INVALID_INPUT, "1", send_to(me, g, 1, 0, 0, 0));
    must_fail(me, FERRY_ERR_INVALID_INPUT, NULL, receive_from(me, g, 1, 0, 0, 0));
    must_fail(me, FERRY_ERR_INVALID_INPUT, NULL, send_to(me, g, 1, 1, BYTES, 0));
    must_fail(me, FERRY_ERR_INVALID_INPUT, NULL, receive_from(me, g, 1, BYTES, 1, 0));
    must_fail(me, FERRY_ERR_INVALID_INPUT, NULL, send_to(me, g, 1, UINT64_MAX, 2, 0));
    must_fail(me, FERRY_ERR_INVALID_INPUT, NULL, receive_from(me, g, 1, 2, UINT64_MAX, 0));
    must_fail(me, FERRY_ERR_INVALID_INPUT, NULL, send_to(me, g, 1, 0, 8, me->n_ranks));
    must_fail(me, FERRY_ERR_INVALID_INPUT, NULL, receive_from(me, g, 1, 0, 8, UINT32_MAX));
    ferry_status status = ferry_service_register_send(g->service, 1, &none, 0, 8, 0, e);
    expect(me, status == FERRY_ERR_MISUSE || status == FERRY_ERR_INVALID_INPUT, "no memory: %s",
           ferry_status_name(status));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_service_register_send(g->service, 1, NULL, 0, 8, 0, e));
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_service_register_receive(NULL, 1, &g->target, 0, 8, 0, e));
    must_fail(me, FERRY_ERR_MISUSE, "no device 3 of kind host",
              ferry_service_register_send(g->service, 1, &third, 0, 8, 0, e));
    must_fail(me, device_kind() == FERRY_MEMORY_CUDA ? FERRY_ERR_MISUSE : FERRY_ERR_UNSUPPORTED,
              "cuda", ferry_service_register_send(g->service, 1, &device, 0, 8, 0, e));
    must(me, send_to(me, g, 1, 0, 8, 0));
    must_fail(me, FERRY_ERR_INVALID_INPUT, "1", send_to(me, g, 1, 8, 8, 0));
    if (me->n_ranks > 1) { /* the same id for another pair */
        must(me, send_to(me, g, 1, 0, 8, 1));
    }
    expect_well(me, g);
    expect_lies_refused(me, g);
    expect_well(me, g);
    end_ground(g);
}

void case_bad_boxes(rank_context *me)
{
    static const struct {
        const char *what;
        uint64_t element, offset;
        uint32_t n_dims;
        uint64_t length[2], stride[2];
    } rows[] = {
        {"no element", 0, 0, 1, {4}, {4}},
        {"a length of zero", 4, 0, 2, {4, 0}, {16, 4}},
        {"a stride of zero", 4, 0, 1, {4}, {0}},
        {"a stride within an element", 4, 0, 1, {4}, {3}},
        {"rows that share bytes", 4, 0, 2, {4, 4}, {12, 4}},
        {"beyond the end", 4, 0, 1, {65}, {4}},
        {"an offset beyond the end", 4, 253, 0, {0}, {0}},
        {"too many bytes", 4, 0, 2, {UINT64_MAX / 2, UINT64_MAX / 2}, {UINT64_MAX / 2, 4}},
        {"an extent that overflows", 8, 0, 1, {3}, {UINT64_MAX / 2}},
        {"an offset that overflows", 8, UINT64_MAX - 3, 1, {1}, {8}},
        {"too many dimensions", 1, 0, FERRY_MAX_DIMS + 1, {1, 1}, {1, 1}},
    };
    ground *g = make_ground(me);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_box box = FERRY_BOX_INIT;
        box.buffer = g->source;
        box.element_bytes = rows[i].element;
        box.offset = rows[i].offset;
        box.n_dims = rows[i].n_dims;
        memcpy(box.length, rows[i].length, sizeof rows[i].length);
        memcpy(box.stride, rows[i].stride, sizeof rows[i].stride);
        for (unsigned side = 0; side < 2; side++) {
            me->error.message[0] = '\0';
            ferry_status status =
                side == 0 ? ferry_service_register_send_box(g->service, i, &box, 0, &me->error)
                          : ferry_service_register_receive_box(g->service, i, &box, 0, &me->error);
            expect(me,
                   (status == FERRY_ERR_INVALID_INPUT || status == FERRY_ERR_LIMIT) &&
                       strlen(me->error.message) > 10,
                   "%s: %s: %.400s", rows[i].what, ferry_status_name(status), me->error.message);
        }
    }
    ferry_box box = FERRY_BOX_INIT;
    must_fail(me, FERRY_ERR_INVALID_INPUT, NULL,
              ferry_box_of(&g->source, 4, 2, (uint64_t[]){8, 8}, (uint64_t[]){0, 5},
                           (uint64_t[]){8, 4}, &box, &me->error));
    must_fail(me, FERRY_ERR_INVALID_INPUT, NULL,
              ferry_box_of(&g->source, 4, 2, (uint64_t[]){9, 8}, (uint64_t[]){0, 0},
                           (uint64_t[]){9, 8}, &box, &me->error));
    expect_well(me, g);
    end_ground(g);
}

/* One half of a task, or halves of two lengths: the same sentence everywhere. */
void case_unmatched(rank_context *me)
{
    ground *g = make_ground(me);
    uint32_t last = me->n_ranks - 1;
    for (unsigned round = 0; round < 6; round++) {
        const char *words = round == 2 ? "64" : "7";
        if (me->rank == 0 && round != 1) {
            must(me, send_to(me, g, 7, 0, round == 2 ? 64 : 8, last));
        }
        if (me->rank == last && round >= 1 && round != 3) {
            must(me, receive_from(me, g, round == 4 ? 8 : 7, 0, round == 5 ? 9 : 8, 0));
        }
        if (me->rank == last && round == 3) { /* from somebody else */
            must(me, receive_from(me, g, 7, 0, 8, last));
        }
        all_fail(me, FERRY_ERR_INVALID_INPUT, words,
                 ferry_service_schedule(g->service, &me->error));
        expect(me, round == 3 || strstr(me->error.message, "rank 0") != NULL, "%.400s",
               me->error.message);
        ferry_status status = ferry_service_run(g->service, NULL, &me->error);
        expect(me, status == FERRY_ERR_MISUSE, "a run after that: %s", ferry_status_name(status));
        must(me, ferry_service_clear_requests(g->service, &me->error));
        if (round % 2 == 0) {
            expect_well(me, g);
        }
    }
    end_ground(g);
}

/* Where a second task writes beside the first one; the box overlaps it where it says so. */
void case_two_writers(rank_context *me)
{
    static const struct {
        uint64_t at, bytes;         /* of a flat one */
        uint64_t offset, length[2]; /* of a box with rows of 16 bytes, elements of 4 */
        bool fails;
    } rows[] = {
        {0, 8, 8, {4, 1}, false},    {0, 9, 8, {4, 1}, true},      {0, 8, 7, {4, 1}, true},
        {16, 8, 8, {4, 2}, false},   {16, 9, 8, {4, 2}, true},     {15, 8, 8, {4, 2}, true},
        {0, 256, 252, {1, 1}, true}, {0, 252, 252, {1, 1}, false}, {60, 4, 8, {4, 2}, true},
    };
    ground *g = make_ground(me);
    uint32_t other = me->n_ranks > 1 ? 1 : 0;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_box box = FERRY_BOX_INIT;
        box.element_bytes = 4;
        box.n_dims = 2;
        box.buffer = g->target;
        box.offset = rows[i].offset;
        memcpy(box.length, rows[i].length, sizeof rows[i].length);
        box.stride[0] = 16;
        box.stride[1] = 4;
        if (me->rank == 0) {
            must(me, receive_from(me, g, 21, rows[i].at, rows[i].bytes, other));
            must(me, ferry_service_register_receive_box(g->service, 22, &box, 0, &me->error));
            must(me, send_to(me, g, 22, 0, 4 * rows[i].length[0] * rows[i].length[1], 0));
        }
        if (me->rank == other) {
            must(me, send_to(me, g, 21, 0, rows[i].bytes, 0));
        }
        if (rows[i].fails) {
            all_fail(me, FERRY_ERR_INVALID_INPUT, "21",
                     ferry_service_schedule(g->service, &me->error));
            expect(me, strstr(me->error.message, "22") != NULL, "row %zu: %.400s", i,
                   me->error.message);
        } else {
            must(me, ferry_service_schedule(g->service, &me->error));
            must(me, ferry_service_run(g->service, NULL, &me->error));
        }
        must(me, ferry_service_clear_requests(g->service, &me->error));
    }
    expect_well(me, g);
    end_ground(g);
}

/* The same bytes by way of two buffers. */
void case_two_buffers(rank_context *me)
{
    ground *g = make_ground(me);
    for (unsigned round = 0; round < 4; round++) {
        bool fails = round % 2 == 1;
        ferry_buffer inner = ferry_buffer_of(g->to + 64, 64);
        must(me, receive_from(me, g, 31, 0, fails ? 65 : 64, previous_rank(me)));
        must(me,
             ferry_service_register_receive(g->service, 32, &inner, 0, 64, me->rank, &me->error));
        must(me, send_to(me, g, 31, 0, fails ? 65 : 64, next_rank(me)));
        must(me, send_to(me, g, 32, 100, 64, me->rank));
        fill(g->from, BYTES, 200 + me->rank);
        memset(g->to, 0, BYTES);
        if (fails) {
            all_fail(me, FERRY_ERR_INVALID_INPUT, "31",
                     ferry_service_schedule(g->service, &me->error));
        } else {
            must(me, ferry_service_schedule(g->service, &me->error));
            must(me, ferry_service_run(g->service, NULL, &me->error));
            expect(me, mismatch(g->to, 64, 200 + previous_rank(me)) == 64, "wrong bytes");
            expect(me, memcmp(g->to + 64, g->from + 100, 64) == 0, "wrong bytes of the inner one");
        }
        must(me, ferry_service_clear_requests(g->service, &me->error));
    }
    expect_well(me, g);
    end_ground(g);
}

/* A ledger says nothing of a service that writes other bytes of the buffer, as many as they are. */
void case_other_bytes(rank_context *me)
{
    enum { PART = BYTES / 4 };
    for (unsigned place = 0; place < 4; place++) { /* the last: the same bytes */
        ground *g = make_ground(me), *next = make_ground(me);
        uint64_t at = place == 3 ? 0 : place * PART + PART / 2;
        ferry_ledger *ledger = NULL;
        must(me, send_to(me, g, 1, 0, PART, next_rank(me)));
        must(me, receive_from(me, g, 1, 0, PART, previous_rank(me)));
        must(me, ferry_service_schedule(g->service, &me->error));
        fill(g->from, BYTES, 50 + me->rank);
        must(me, ferry_service_run(g->service, NULL, &me->error));
        must(me, ferry_service_take_ledger(g->service, &ledger, &me->error));
        must(me, ferry_service_register_send(next->service, 1, &g->source, at, PART, next_rank(me),
                                             &me->error));
        must(me, ferry_service_register_receive(next->service, 1, &g->target, at, PART,
                                                previous_rank(me), &me->error));
        must(me, ferry_service_resume(next->service, ledger, &me->error));
        ferry_ledger_destroy(ledger);
        must(me, ferry_service_schedule(next->service, &me->error));
        memset(g->to, 0, BYTES);
        must(me, ferry_service_run(next->service, NULL, &me->error));
        fill(next->from, BYTES, 50 + previous_rank(me));
        unsigned char nothing[PART] = {0};
        expect(me, memcmp(g->to + at, place == 3 ? nothing : next->from + at, PART) == 0,
               "bytes at %llu", (unsigned long long)at);
        end_ground(next);
        end_ground(g);
    }
}

/* Two ranks of different minds: both are told, and the world lives. */
void case_differing_options(rank_context *me)
{
    for (unsigned i = 0; i < 6; i++) {
        service_setup setup;
        ferry_service *service = NULL;
        bool odd = me->rank == me->n_ranks - 1;
        setup_init(me, &setup, "");
        setup.options.slot_bytes = i == 0 && odd ? 8192 : 0;
        setup.options.checksum = i == 1 && odd ? FERRY_CHECKSUM_PATH : FERRY_CHECKSUM_NONE;
        setup.options.commit = i == 2 && odd ? FERRY_COMMIT_SWAP : FERRY_COMMIT_IN_PLACE;
        setup.options.memory_cap = i == 3 && odd ? 1 << 20 : 0;
        setup.options.max_tasks = i == 4 && odd ? 3 : 0;
        setup.options.paths = i == 5 && odd ? FERRY_PATH_STAGED : 0;
        must(me, ferry_service_create(me->world, &setup.options, &service, &me->error));
        ferry_status status = ferry_service_init(service, FERRY_LOG_ERROR, &me->error);
        if (status == FERRY_OK) {
            status = ferry_service_schedule(service, &me->error);
        }
        ferry_status wanted = me->n_ranks == 1 ? FERRY_OK : FERRY_ERR_INVALID_INPUT;
        all_same(me, "options that differ", status, wanted, NULL);
        ferry_service_destroy(service);
    }
    ground *g = make_ground(me);
    expect_well(me, g);
    end_ground(g);
}
