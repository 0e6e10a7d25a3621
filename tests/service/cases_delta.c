/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs that move only what differs: what they leave out, and that what is there is looked at. */
#include "service/matrix.h"
#include "service/scene.h"
#include "support/devices.h"

#include <stdlib.h>
#include <string.h>

static bool has_far_memory(void)
{
    return getenv("FERRY_TEST_FAR") != NULL;
}

static uint64_t moved(const ferry_service_statistics *s)
{
    return bytes_sent(s) - s->bytes_skipped;
}

static void check_skipped_of_peers(rank_context *me, const ferry_service *service)
{
    uint64_t skipped = 0;
    for (uint32_t i = 0; i < ferry_service_peer_count(service); i++) {
        ferry_service_peer peer = FERRY_SERVICE_PEER_INIT;
        must(me, ferry_service_peer_at(service, i, &peer, &me->error));
        expect(me, peer.bytes_skipped <= peer.bytes_out, "%llu of %llu bytes skipped",
               (unsigned long long)peer.bytes_skipped, (unsigned long long)peer.bytes_out);
        skipped += peer.bytes_skipped;
    }
    expect(me, skipped == statistics_of(me, service).bytes_skipped,
           "%llu bytes skipped by peers, %llu in all", (unsigned long long)skipped,
           (unsigned long long)statistics_of(me, service).bytes_skipped);
}

/* Sources of a version, and what a run makes of destinations as they are. */
static ferry_service_statistics run_version(rank_context *me, const scene *s,
                                            ferry_service *service, scene_memory *memory,
                                            uint64_t version, bool poison, const char *what)
{
    scene_fill(me, s, memory, version, poison);
    must(me, ferry_service_run(service, NULL, &me->error));
    scene_expect(me, s, service, memory, version, what);
    check_skipped_of_peers(me, service);
    ferry_service_statistics now = statistics_of(me, service);
    expect(me, bytes_sent(&now) == scene_bytes_out(s, me->rank), "%s: %llu bytes of %llu", what,
           (unsigned long long)bytes_sent(&now), (unsigned long long)scene_bytes_out(s, me->rank));
    return now;
}

static void delta_once(rank_context *me, uint64_t seed, uint32_t paths, uint32_t checksum)
{
    scene_limits limits = {.most_tasks = 12, .most_bytes = seed % 2 == 0 ? 600000 : 9000};
    service_setup setup;
    scene_memory memory;
    scene *s = take(me, sizeof *s);
    setup_init(me, &setup, "");
    setup.options.delta = 1;
    setup.options.paths = paths;
    setup.options.checksum = checksum;
    ferry_service *service = open_service(me, &setup.options);
    scene_draw(s, seed, me->n_ranks, &limits);
    scene_take(me, s, ferry_service_transport(service), &memory);
    scene_register(me, s, service, &memory);
    must(me, ferry_service_schedule(service, &me->error));
    uint64_t all = scene_bytes_out(s, me->rank);
    ferry_service_statistics now = run_version(me, s, service, &memory, 1, true, "the first run");
    expect(me, moved(&now) > all / 2 || all < 4096, "%llu of %llu bytes are in poison",
           (unsigned long long)now.bytes_skipped, (unsigned long long)all);
    now = run_version(me, s, service, &memory, 1, false, "nothing has changed");
    expect(me, now.bytes_skipped == all || has_far_memory(), "%llu of %llu bytes were equal",
           (unsigned long long)now.bytes_skipped, (unsigned long long)all);
    run_version(me, s, service, &memory, 1 + SCENE_EDITS, false, "a little has changed");
    run_version(me, s, service, &memory, 1 + 2 * SCENE_EDITS, false, "other places have");
    run_version(me, s, service, &memory, 1 + 2 * SCENE_EDITS, true, "destinations were changed");
    run_version(me, s, service, &memory, 2, false, "all has changed");
    run_version(me, s, service, &memory, 1, false, "back to what it was");
    clear_all(me, service);
    scene_give_back(me, s, &memory);
    ferry_service_destroy(service);
    free(s);
}

void case_delta(rank_context *me)
{
    static const uint32_t paths[] = {0, FERRY_PATH_STAGED, FERRY_PATH_REMOTE};
    for (uint32_t i = 0; i < times_of(me, 6, 60); i++) {
        delta_once(me, me->seed * 700 + i, paths[i % COUNT_OF(paths)], i / 2 % 3);
    }
}

static bool flip_byte(const ferry_buffer *buffer, uint64_t at)
{
    if (buffer->kind == FERRY_MEMORY_HOST && at < buffer->bytes) {
        ((unsigned char *)buffer->base)[at] ^= 0x40;
    }
    return buffer->kind == FERRY_MEMORY_HOST;
}

/* By hand, somewhere in what this rank has received: nobody is told. */
static void scribble(rank_context *me, const ferry_service *service, uint64_t seed)
{
    uint64_t random = seed + me->rank * 17;
    for (uint64_t d = 0; d < ferry_service_destination_count(service); d++) {
        ferry_destination found = destination_of(me, service, d);
        for (int i = 0; i < 3; i++) {
            flip_byte(&found.buffer, random_u64(&random) % found.buffer.bytes);
        }
    }
}

/* With swap a run writes to what held the version before last. */
static void pairs_once(rank_context *me, uint64_t number, bool swap, bool from_ferry)
{
    service_setup setup;
    setup_init(me, &setup, "");
    setup.options.delta = 1;
    setup.options.checksum = (uint32_t)(number % 3);
    setup.options.commit = swap ? FERRY_COMMIT_SWAP : FERRY_COMMIT_IN_PLACE;
    ferry_service *service = open_service(me, &setup.options);
    matrix *m = matrix_make(me, 4, 2, 4, from_ferry ? ferry_service_transport(service) : NULL);
    matrix_schedule(me, m, service, swap);
    for (uint32_t run = 1; run <= 9; run++) {
        uint64_t version = run <= 3 ? 1 : run == 9 ? 2 : 1 + run / 2 * MATRIX_EDITS;
        matrix_fill(me, m, version);
        if (run == 5 || run == 6) {
            scribble(me, service, number * 10 + run);
        }
        must(me, ferry_service_run(service, NULL, &me->error));
        matrix_expect(me, m, swap ? run % 2 : 0, version, "a run of what differs");
        ferry_service_statistics now = statistics_of(me, service);
        expect(me, run != 3 || moved(&now) == 0 || has_far_memory(), "%llu bytes moved for nothing",
               (unsigned long long)moved(&now));
    }
    clear_all(me, service);
    matrix_free(m);
    ferry_service_destroy(service);
}

void case_delta_pairs(rank_context *me)
{
    for (uint32_t i = 0; i < times_of(me, 4, 40); i++) {
        pairs_once(me, i, i % 2 == 1, i / 2 % 2 == 1);
    }
}

/* Runs that were cancelled anywhere leave what the next ones make whole. */
void case_delta_failed(rank_context *me)
{
    service_setup setup;
    setup_init(me, &setup, "");
    setup.options.delta = 1;
    setup.options.slot_bytes = 2048;
    ferry_service *service = open_service(me, &setup.options);
    matrix *m = matrix_make(me, 3, 1, 8, NULL);
    uint32_t n_cancelled = 0;
    matrix_schedule(me, m, service, false);
    for (uint32_t i = 0; i < times_of(me, 20, 200); i++) {
        bool ends_it = me->rank == i % me->n_ranks;
        matrix_fill(me, m, 1 + i * MATRIX_EDITS);
        ferry_status status = run_some(me, service, ends_it ? i : NEVER);
        n_cancelled += status != FERRY_OK;
        if (i % 3 != 0 || status == FERRY_OK) {
            matrix_fill(me, m, 1 + (i + 1) * MATRIX_EDITS);
            must(me, ferry_service_run(service, NULL, &me->error));
            matrix_expect(me, m, 0, 1 + (i + 1) * MATRIX_EDITS, "a run after one that failed");
        }
    }
    expect(me, n_cancelled > 0, "no run was cancelled in time");
    ferry_service_destroy(service);
    matrix_free(m);
}

/* Sources of this rank that are called unchanged: true of all, or not of the first tensor. */
typedef struct marked {
    ferry_service *service;
    matrix *m;
    bool swap;
    uint32_t n_runs;
} marked;

/* A run of a version after such a word; the version that destinations must then have. */
static void run_marked(rank_context *me, marked *all, uint64_t version, const char *names,
                       uint64_t expected, const char *what)
{
    matrix_fill(me, all->m, version);
    if (names != NULL) {
        must(me, ferry_service_mark_unchanged(all->service, names, &me->error));
    }
    must(me, ferry_service_run(all->service, NULL, &me->error));
    all->n_runs++;
    matrix_expect(me, all->m, all->swap ? all->n_runs % 2 : 0, expected, what);
}

static void rebind_same(rank_context *me, marked *all)
{
    ferry_tensors *sources = matrix_sources(me, all->m);
    must(me, ferry_service_rebind(all->service, sources, NULL, &me->error));
    ferry_tensors_destroy(sources);
}

static void marked_once(rank_context *me, bool swap, bool from_ferry)
{
    service_setup setup;
    setup_init(me, &setup, "");
    setup.options.delta = 1;
    setup.options.commit = swap ? FERRY_COMMIT_SWAP : FERRY_COMMIT_IN_PLACE;
    marked all = {.service = open_service(me, &setup.options), .swap = swap};
    must_fail(me, FERRY_ERR_MISUSE, "scheduled",
              ferry_service_mark_unchanged(all.service, NULL, &me->error));
    all.m = matrix_make(me, 3, 2, 4, from_ferry ? ferry_service_transport(all.service) : NULL);
    matrix_schedule(me, all.m, all.service, swap);
    run_marked(me, &all, 1, "*", 1, "a first run is never skipped");
    run_marked(me, &all, 2, swap ? "*" : NULL, 2, "what is not marked, or only once with swap");
    run_marked(me, &all, 2, NULL, 2, "the same");
    run_marked(me, &all, 2, "*", 2, "marked, and true");
    run_marked(me, &all, 2, "m0,m1,m2", 2, "marked again");
    ferry_service_statistics now = statistics_of(me, all.service);
    expect(me, moved(&now) == 0, "%llu bytes moved", (unsigned long long)moved(&now));
    run_marked(me, &all, 3, "*", 2, "marked, and not true");
    run_marked(me, &all, 3, "nothing", 3, "others are marked");
    rebind_same(me, &all);
    run_marked(me, &all, 4, "*", 4, "marked after a rebind");
    clear_all(me, all.service);
    matrix_free(all.m);
    ferry_service_destroy(all.service);
}

/* Who is wrong is found out where both ends are read. */
static void marked_wrongly(rank_context *me)
{
    service_setup setup;
    setup_init(me, &setup, "");
    setup.options.delta = 1;
    setup.options.checksum = FERRY_CHECKSUM_END;
    ferry_service *service = open_service(me, &setup.options);
    matrix *m = matrix_make(me, 2, 2, 4, NULL);
    matrix_schedule(me, m, service, false);
    matrix_fill(me, m, 1);
    must(me, ferry_service_run(service, NULL, &me->error));
    matrix_fill(me, m, 2);
    must(me, ferry_service_mark_unchanged(service, NULL, &me->error));
    ferry_request *request = NULL;
    must(me, ferry_service_start(service, NULL, &request, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "a run is under way",
              ferry_service_mark_unchanged(service, NULL, &me->error));
    all_fail(me, FERRY_ERR_DIGEST, "left the source", ferry_request_wait(request, &me->error));
    ferry_request_destroy(request);
    must(me, ferry_service_mark_unchanged(service, NULL, &me->error));
    must(me, ferry_service_run(service, NULL, &me->error));
    matrix_expect(me, m, 0, 2, "marked after a run that failed");
    ferry_service_destroy(service);
    matrix_free(m);
}

void case_delta_marked(rank_context *me)
{
    for (uint32_t i = 0; i < 4 && !has_far_memory(); i++) {
        marked_once(me, i % 2 == 1, i / 2 == 1);
    }
    if (!has_far_memory()) {
        marked_wrongly(me);
    }
}

/*
 * Tensors in memory of devices: what is equal on both sides is not even brought to the host, nor is
 * anything else of a tensor than blocks that differ.
 */
enum { TENSOR_BYTES = 300001, BLOCK_BYTES = 4096 };

typedef struct on_device {
    ferry_service *service;
    ferry_buffer source, target;
    char *image[2], *found; /* of what each rank sends, and of what has come */
} on_device;

static void open_on_device(rank_context *me, uint32_t checksum, uint64_t slot_bytes, on_device *d)
{
    service_setup setup;
    uint32_t other = 1 - me->rank;
    int32_t device = device_number((int32_t)me->rank);
    setup_init(me, &setup, "");
    setup.options.delta = 1;
    setup.options.checksum = checksum;
    setup.options.paths = FERRY_PATH_STAGED;
    setup.options.slot_bytes = slot_bytes;
    d->service = open_service(me, &setup.options);
    for (int i = 0; i < 2; i++) {
        must(me, ferry_memory_alloc(NULL, device_kind(), device, TENSOR_BYTES,
                                    i == 0 ? &d->source : &d->target, &me->error));
        d->image[i] = take(me, TENSOR_BYTES);
    }
    d->found = take(me, TENSOR_BYTES);
    /* In two tasks: items have parts of both. */
    for (uint32_t k = 0; k < 2; k++) {
        uint64_t at = k == 0 ? 0 : 100000, bytes = k == 0 ? 100000 : TENSOR_BYTES - 100000;
        must(me,
             ferry_service_register_send(d->service, k, &d->source, at, bytes, other, &me->error));
        must(me, ferry_service_register_receive(d->service, k, &d->target, at, bytes, other,
                                                &me->error));
    }
    must(me, ferry_service_schedule(d->service, &me->error));
}

static ferry_service_statistics run_on_device(rank_context *me, on_device *d, const char *what)
{
    copy_far(me, d->source, ferry_buffer_of(d->image[me->rank], TENSOR_BYTES));
    must(me, ferry_service_run(d->service, NULL, &me->error));
    copy_far(me, ferry_buffer_of(d->found, TENSOR_BYTES), d->target);
    expect(me, memcmp(d->found, d->image[1 - me->rank], TENSOR_BYTES) == 0, "%s", what);
    return statistics_of(me, d->service);
}

static void devices_once(rank_context *me, uint64_t seed, uint32_t checksum, uint64_t slot_bytes)
{
    on_device d = {.service = NULL};
    uint64_t random = seed;
    bool looks = device_kind() == FERRY_MEMORY_CUDA;
    open_on_device(me, checksum, slot_bytes, &d);
    for (int i = 0; i < 2; i++) {
        for (uint64_t at = 0; at < TENSOR_BYTES; at++) {
            d.image[i][at] = (char)random_u64(&random);
        }
    }
    ferry_service_statistics now = run_on_device(me, &d, "a first run");
    now = run_on_device(me, &d, "nothing has changed");
    expect(me, now.bytes_skipped == TENSOR_BYTES, "%llu bytes were equal",
           (unsigned long long)now.bytes_skipped);
    expect(me, now.bytes_device == 0 || !looks, "%llu bytes moved that were there",
           (unsigned long long)now.bytes_device);
    uint64_t place = 40000 + random_below(&random, 40000);
    for (int i = 0; i < 2; i++) { /* where one task ends, and in the middle of the other one */
        d.image[i][place] ^= 1;
        d.image[i][TENSOR_BYTES - 1] ^= 1;
    }
    now = run_on_device(me, &d, "a little has changed");
    uint64_t left = TENSOR_BYTES - now.bytes_skipped;
    expect(me, left > BLOCK_BYTES && left <= 2 * BLOCK_BYTES, "%llu bytes moved",
           (unsigned long long)left);
    expect(me, now.bytes_device == 2 * left || !looks,
           "%llu bytes moved by devices, %llu both ways", (unsigned long long)now.bytes_device,
           (unsigned long long)(2 * left));
    must(me, ferry_service_clear_requests(d.service, &me->error));
    ferry_service_destroy(d.service);
    ferry_memory_free(&d.source);
    ferry_memory_free(&d.target);
    free(d.image[0]);
    free(d.image[1]);
    free(d.found);
}

void case_delta_devices(rank_context *me)
{
    for (uint32_t i = 0; i < 6 && has_far_memory(); i++) { /* small slots go several at once */
        devices_once(me, me->seed * 10 + i, i / 2, i % 2 * 2 * BLOCK_BYTES);
    }
}

/*
 * One rank sends to many, with less memory for what is packed than they could use at once: what one
 * channel waits for a device with, no other one may take.
 */
enum { FAN_BYTES = 300000, FAN_CAP = 65536, FAN_SLOT = 8192, FAN_RUNS = 4 };

typedef struct fan {
    ferry_service *service;
    ferry_buffer buffers[16]; /* of rank 0 one for each other rank; of these one each */
    uint32_t n_buffers;
    char *image;
} fan;

static void open_fan(rank_context *me, uint32_t checksum, fan *f)
{
    service_setup setup;
    int32_t device = device_number((int32_t)me->rank);
    setup_init(me, &setup, "");
    setup.options.delta = 1;
    setup.options.checksum = checksum;
    setup.options.paths = FERRY_PATH_STAGED;
    setup.options.memory_cap = FAN_CAP;
    setup.options.slot_bytes = FAN_SLOT;
    f->service = open_service(me, &setup.options);
    f->image = take(me, FAN_BYTES);
    f->n_buffers = me->rank == 0 ? me->n_ranks - 1 : 1;
    for (uint32_t i = 0; i < f->n_buffers; i++) {
        ferry_buffer *own = &f->buffers[i];
        must(me, ferry_memory_alloc(NULL, device_kind(), device, FAN_BYTES, own, &me->error));
        must(me, me->rank == 0 ? ferry_service_register_send(f->service, i + 1, own, 0, FAN_BYTES,
                                                             i + 1, &me->error)
                               : ferry_service_register_receive(f->service, me->rank, own, 0,
                                                                FAN_BYTES, 0, &me->error));
    }
    must(me, ferry_service_schedule(f->service, &me->error));
}

/* What rank `to` gets in a run: about half of its blocks are other ones than in the run before. */
static void draw_fan(const rank_context *me, char *image, uint32_t to, uint32_t run)
{
    for (uint64_t block = 0; block * BLOCK_BYTES < FAN_BYTES; block++) {
        uint64_t of = me->seed * 1000003 + to * 1009 + block * 31;
        uint64_t random = of + (block * 7 + to) % 2 * run;
        uint64_t begin = block * BLOCK_BYTES, end = begin + BLOCK_BYTES;
        for (uint64_t at = begin; at < end && at < FAN_BYTES; at++) {
            image[at] = (char)random_u64(&random);
        }
    }
}

static void fan_once(rank_context *me, uint32_t checksum)
{
    fan f = {.service = NULL};
    char *found = take(me, FAN_BYTES);
    open_fan(me, checksum, &f);
    for (uint32_t run = 0; run < FAN_RUNS; run++) {
        for (uint32_t i = 0; me->rank == 0 && i < f.n_buffers; i++) {
            draw_fan(me, f.image, i + 1, run);
            copy_far(me, f.buffers[i], ferry_buffer_of(f.image, FAN_BYTES));
        }
        must(me, ferry_service_run(f.service, NULL, &me->error));
        if (me->rank != 0) {
            draw_fan(me, f.image, me->rank, run);
            copy_far(me, ferry_buffer_of(found, FAN_BYTES), f.buffers[0]);
            expect(me, memcmp(found, f.image, FAN_BYTES) == 0, "run %u, checksum %u", (unsigned)run,
                   (unsigned)checksum);
        }
    }
    ferry_service_destroy(f.service);
    for (uint32_t i = 0; i < f.n_buffers; i++) {
        ferry_memory_free(&f.buffers[i]);
    }
    free(f.image);
    free(found);
}

void case_delta_fan(rank_context *me)
{
    for (uint32_t checksum = 0; checksum < 3 && has_far_memory(); checksum++) {
        fan_once(me, checksum);
    }
}
