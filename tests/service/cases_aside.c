/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies on devices of several nodes, where an engine carries such memory beside those of the
 * host's: every byte against a copy in the host's memory, and which bytes never were there. On
 * other rows the same tasks go as they go there.
 */
#include "service/suite.h"

#include "support/devices.h"

enum { MOST_TASKS = 40, GUARD = 64, N_VERSIONS = 3 };

/* A box of a matrix becomes a box of another one. */
typedef struct task {
    uint32_t from, to;
    uint32_t element, rows, columns, pitch[2]; /* of the source, of the target */
    bool is_host[2];
    ferry_buffer buffer[2]; /* of those that this rank has */
} task;

typedef struct work {
    task tasks[MOST_TASKS];
    uint32_t n;
} work;

static uint64_t whole_bytes(const task *t, int side)
{
    return GUARD + (uint64_t)t->rows * t->pitch[side] * t->element + GUARD;
}

/* The same on all ranks; big: some tasks take many slots. */
static void draw(const rank_context *me, work *w, uint64_t *random, bool big)
{
    w->n = 0;
    for (uint32_t from = 0; from < me->n_ranks; from++) {
        for (uint32_t to = 0; to < me->n_ranks; to++) {
            bool hosts[2] = {one_in(random, 8), one_in(random, 8)};
            for (uint32_t k = dice(random, 0, 2); k > 0; k--) {
                task *t = &w->tasks[w->n++];
                *t = (task){.from = from, .to = to, .element = 1u << dice(random, 0, 3)};
                t->rows = dice(random, 1, big ? 600 : 40);
                t->columns = dice(random, 1, big ? 700 : 60);
                for (int side = 0; side < 2; side++) {
                    t->pitch[side] = t->columns + (one_in(random, 2) ? 0 : dice(random, 1, 9));
                    t->is_host[side] = hosts[side] && k == 1;
                }
            }
        }
    }
}

static void take_buffers(rank_context *me, work *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        task *t = &w->tasks[i];
        for (int side = 0; side < 2; side++) {
            if ((side == 0 ? t->from : t->to) == me->rank) {
                ferry_memory_kind kind = t->is_host[side] ? FERRY_MEMORY_HOST : device_kind();
                must(me, ferry_memory_alloc(NULL, kind, t->is_host[side] ? 0 : own_device(me),
                                            whole_bytes(t, side), &t->buffer[side], &me->error));
            }
        }
    }
}

static void give_back(const rank_context *me, work *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        for (int side = 0; side < 2; side++) {
            if ((side == 0 ? w->tasks[i].from : w->tasks[i].to) == me->rank) {
                ferry_memory_free(&w->tasks[i].buffer[side]);
            }
        }
    }
}

static void register_all(rank_context *me, ferry_service *service, const work *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        const task *t = &w->tasks[i];
        for (int side = 0; side < 2; side++) {
            ferry_box box = FERRY_BOX_INIT;
            if ((side == 0 ? t->from : t->to) != me->rank) {
                continue;
            }
            box.buffer = t->buffer[side];
            box.offset = GUARD;
            box.n_dims = 2;
            box.element_bytes = t->element;
            box.length[0] = t->rows;
            box.length[1] = t->columns;
            box.stride[0] = (uint64_t)t->pitch[side] * t->element;
            box.stride[1] = t->element;
            must(me,
                 side == 0
                     ? ferry_service_register_send_box(service, i, &box, t->to, &me->error)
                     : ferry_service_register_receive_box(service, i, &box, t->from, &me->error));
        }
    }
}

/* What lies in a buffer of a task; poison in what is to be written. */
static unsigned char *image(rank_context *me, const work *w, uint32_t i, int side, uint64_t version)
{
    const task *t = &w->tasks[i];
    uint64_t n = whole_bytes(t, side);
    unsigned char *bytes = take(me, n);
    fill(bytes, n, side == 0 ? version * 1000 + i : 999999);
    return bytes;
}

static void fill_all(rank_context *me, const work *w, uint64_t version)
{
    for (uint32_t i = 0; i < w->n; i++) {
        for (int side = 0; side < 2; side++) {
            const task *t = &w->tasks[i];
            if ((side == 0 ? t->from : t->to) == me->rank) {
                unsigned char *bytes = image(me, w, i, side, version);
                copy_flat(me, t->buffer[side], ferry_buffer_of(bytes, whole_bytes(t, side)));
                free(bytes);
            }
        }
    }
}

static void check_all(rank_context *me, const work *w, uint64_t version)
{
    for (uint32_t i = 0; i < w->n; i++) {
        const task *t = &w->tasks[i];
        if (t->to != me->rank) {
            continue;
        }
        uint64_t n = whole_bytes(t, 1), row = (uint64_t)t->columns * t->element;
        unsigned char *wanted = image(me, w, i, 1, version), *source = image(me, w, i, 0, version);
        unsigned char *found = take(me, n);
        for (uint64_t r = 0; r < t->rows; r++) {
            memcpy(wanted + GUARD + r * t->pitch[1] * t->element,
                   source + GUARD + r * t->pitch[0] * t->element, row);
        }
        copy_flat(me, ferry_buffer_of(found, n), t->buffer[1]);
        uint64_t bad = 0;
        while (bad < n && found[bad] == wanted[bad]) {
            bad++;
        }
        expect(me, bad == n, "version %llu: byte %llu of %llu of task %u from rank %u",
               (unsigned long long)version, (unsigned long long)bad, (unsigned long long)n,
               (unsigned)i, (unsigned)t->from);
        free(wanted);
        free(source);
        free(found);
    }
}

/* Whether all that goes from this rank to that one lies on devices. */
static bool is_all_far(const rank_context *me, const work *w, uint32_t to)
{
    bool is_far = true;
    for (uint32_t i = 0; i < w->n; i++) {
        const task *t = &w->tasks[i];
        bool is_theirs = t->from == me->rank && t->to == to;
        is_far = is_far && !(is_theirs && (t->is_host[0] || t->is_host[1]));
    }
    return is_far;
}

static uint64_t bytes_aside(const rank_context *me, const work *w)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        const task *t = &w->tasks[i];
        bool is_near =
            ferry_world_node_of(me->world, t->to) == ferry_world_node_of(me->world, me->rank);
        if (t->from == me->rank && !is_near && is_all_far(me, w, t->to)) {
            bytes += (uint64_t)t->rows * t->columns * t->element;
        }
    }
    return bytes;
}

/* Whether an engine carries memory of devices by itself here. */
static bool has_aside(void)
{
    const char *kind = getenv("NVSHMEM_HEAP_KIND");
    return kind != NULL && strcmp(kind, "DEVICE") == 0 && device_kind() == FERRY_MEMORY_CUDA;
}

void case_aside(rank_context *me)
{
    static const uint64_t slots[] = {0, 0, 100, 4096};
    static const uint32_t checks[] = {FERRY_CHECKSUM_NONE, FERRY_CHECKSUM_END, FERRY_CHECKSUM_PATH};
    work *w = take(me, sizeof *w);
    uint64_t random = me->seed * 77, n_aside = 0, version = 0;
    for (uint32_t round = 0; round < times_of(me, 4, 40); round++) {
        service_setup setup;
        setup_init(me, &setup, "");
        setup.options.slot_bytes = slots[random_below(&random, COUNT_OF(slots))];
        setup.options.checksum = checks[random_below(&random, COUNT_OF(checks))];
        setup.options.memory_cap = one_in(&random, 3) ? 1 << 20 : 0;
        setup.options.delta = one_in(&random, 6);
        draw(me, w, &random, round % 2 == 1);
        ferry_service *service = open_service(me, &setup.options);
        take_buffers(me, w);
        register_all(me, service, w);
        must(me, ferry_service_schedule(service, &me->error));
        bool looks = setup.options.checksum == FERRY_CHECKSUM_PATH || setup.options.delta != 0;
        uint64_t wanted = has_aside() && !looks ? bytes_aside(me, w) : 0;
        for (int run = 0; run < N_VERSIONS; run++) {
            fill_all(me, w, ++version);
            must(me, ferry_service_run(service, NULL, &me->error));
            check_all(me, w, version);
            ferry_service_statistics now = statistics_of(me, service);
            expect(me, now.bytes_device_slots == wanted,
                   "round %u: %llu bytes by slots of devices, and %llu could go so",
                   (unsigned)round, (unsigned long long)now.bytes_device_slots,
                   (unsigned long long)wanted);
            uint64_t cap = setup.options.memory_cap == 0 ? FERRY_MEMORY_CAP : 1 << 20;
            expect(me, now.staging_bytes <= cap, "%llu bytes of staging",
                   (unsigned long long)now.staging_bytes);
        }
        n_aside += wanted;
        must(me, ferry_service_clear_requests(service, &me->error));
        meet(me); /* those of the node have each other's tensors open until then */
        give_back(me, w);
        ferry_service_destroy(service);
    }
    expect(me, n_aside > 0 || !has_aside(), "nothing went by slots of devices in any round");
    free(w);
}

/*
 * Two services on one transport, whose runs are given up at once: what either has put is in place
 * before its own run is over, and not only what the other one waits for.
 */
void case_aside_cancelled(rank_context *me)
{
    enum { N_SERVICES = 2 };
    ferry_service *services[N_SERVICES];
    work *works[N_SERVICES];
    service_setup setup;
    ferry_transport *transport = NULL;
    uint64_t random = me->seed * 78, version = 0;
    if (!has_aside()) {
        return;
    }
    setup_init(me, &setup, "");
    must(me, ferry_transport_open(me->world, setup.options.engines, &transport, &me->error));
    setup.options.transport = transport;
    setup.options.engines = NULL;
    setup.options.slot_bytes = 16 << 10;
    for (int i = 0; i < N_SERVICES; i++) {
        works[i] = take(me, sizeof *works[i]);
        draw(me, works[i], &random, true);
        services[i] = open_service(me, &setup.options);
        take_buffers(me, works[i]);
        register_all(me, services[i], works[i]);
        must(me, ferry_service_schedule(services[i], &me->error));
    }
    for (uint32_t round = 0; round < times_of(me, 12, 100); round++) {
        ferry_request *requests[N_SERVICES];
        uint32_t n_tests = random_below(&random, 20000);
        version++;
        for (int i = 0; i < N_SERVICES; i++) {
            fill_all(me, works[i], version);
            must(me, ferry_service_start(services[i], NULL, &requests[i], &me->error));
        }
        for (int i = 0; i < N_SERVICES; i++) { /* the other one goes on, and is waited for first */
            bool done = false;
            for (uint32_t n = 0; n <= n_tests; n++) {
                (void)ferry_request_test(requests[N_SERVICES - 1], &done, &me->error);
            }
            ferry_request_cancel(requests[i]);
        }
        for (int i = N_SERVICES - 1; i >= 0; i--) {
            ferry_status status = ferry_request_wait(requests[i], &me->error);
            expect(me, status == FERRY_OK || status == FERRY_ERR_ABORTED, "%s: %s",
                   ferry_status_name(status), me->error.message);
            ferry_request_destroy(requests[i]);
        }
        for (int i = N_SERVICES - 1; i >= 0; i--) { /* what is late meets what comes anew */
            must(me, ferry_service_run(services[i], NULL, &me->error));
            check_all(me, works[i], version);
        }
    }
    for (int i = 0; i < N_SERVICES; i++) {
        must(me, ferry_service_clear_requests(services[i], &me->error));
        meet(me); /* nobody has tensors of others open any more */
        give_back(me, works[i]);
        ferry_service_destroy(services[i]);
        free(works[i]);
    }
    ferry_transport_close(transport);
}
