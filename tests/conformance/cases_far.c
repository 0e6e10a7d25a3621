/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Far memory, the test kind, as source and as target; and calls in the order of a queue. Or memory
 * of CUDA devices, with FERRY_TEST_MEMORY=cuda.
 */
#include "conformance/suite.h"

#include "support/devices.h"
#include "support/sanitized.h"

#include <stdatomic.h>

enum { BYTES = 40000, PART = 9000 };

/*
 * Bytes of this process that are mapped and can be written to. What cannot is no copy of anything:
 * the C library sets 64 MiB of addresses aside for a thread that allocates for the first time.
 */
static size_t mapped_bytes(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512];
    size_t bytes = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        unsigned long begin, end;
        char rights[5];
        if (sscanf(line, "%lx-%lx %4s", &begin, &end, rights) == 3 && rights[1] == 'w') {
            bytes += end - begin;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return bytes;
}

/* Rows of a UCX that reads and writes devices' memory itself. */
static bool is_direct(const rank_context *me)
{
    return device_kind() == FERRY_MEMORY_CUDA && strncmp(me->engine->name, "ucx_cuda", 8) == 0;
}

/*
 * Where the verbs of far memory reach a peer's, or the engine does; elsewhere nothing puts into it.
 * Processes open each other's where there are handles for it.
 */
static bool has_reach(const rank_context *me)
{
    bool opens = device_kind() == FERRY_MEMORY_CUDA && strcmp(me->engine->engines, "shm") == 0;
    return (me->engine->threads || opens || is_direct(me)) &&
           strchr(me->engine->engines, ':') == NULL;
}

/* Where the stand-in has no handles there is memory that cannot be opened. */
static bool is_unnamed(const rank_context *me)
{
    return has_reach(me) && !is_direct(me) && !me->engine->threads &&
           getenv("STANDIN_NO_IPC") != NULL;
}

/* With the name of the kind between them; as long as the thread asks for no others. */
static const char *kind_words(const char *before, const char *behind)
{
    static _Thread_local char text[200];
    snprintf(text, sizeof text, "%s%s%s", before, device_kind_name(), behind);
    return text;
}

static int32_t device_of(uint32_t rank)
{
    return device_number((int32_t)(rank % 2));
}

static ferry_buffer part_of(ferry_buffer buffer, uint64_t offset, uint64_t bytes)
{
    buffer.base = (char *)buffer.base + offset;
    buffer.bytes = bytes;
    return buffer;
}

/* Fills far memory with what the seed says. */
static void fill_far(rank_context *me, ferry_buffer far, uint64_t seed)
{
    unsigned char *bytes = take(me, far.bytes);
    fill(bytes, far.bytes, seed);
    copy_flat(me, far, ferry_buffer_of(bytes, far.bytes));
    free(bytes);
}

static void check_far(rank_context *me, ferry_buffer far, uint64_t seed, const char *what)
{
    unsigned char *bytes = take(me, far.bytes);
    copy_flat(me, ferry_buffer_of(bytes, far.bytes), far);
    size_t bad = mismatch(bytes, far.bytes, seed);
    expect(me, bad == far.bytes, "%s: byte %zu of %llu", what, bad, (unsigned long long)far.bytes);
    free(bytes);
}

static ferry_buffer take_far(rank_context *me, bool registered)
{
    ferry_buffer far;
    must(me, ferry_memory_alloc(registered ? me->transport : NULL, device_kind(),
                                device_of(me->rank), BYTES, &far, &me->error));
    expect(me, far.kind == device_kind() && far.device == device_of(me->rank), "its space");
    return far;
}

/* From far memory into the next rank's symmetric memory, and into one's own. */
static void put_from_far(rank_context *me, ferry_buffer far)
{
    ferry_region *region = alloc_region(me, 2 * BYTES), *words = alloc_region(me, 64);
    uint32_t before = previous_rank(me);
    ferry_signal signal = {.region = words, .offset = 8, .value = 5};
    for (uint64_t round = 1; round <= 3; round++) {
        fill_far(me, far, seed_of(me, round, me->rank, 1));
        ferry_buffer first = part_of(far, 0, PART), rest = part_of(far, PART, BYTES - PART);
        signal.value = round;
        must(me, ferry_transport_put(me->transport, next_rank(me), region, 0, &first, NULL,
                                     &me->error));
        must(me, ferry_transport_put_signal(me->transport, next_rank(me), region, PART, &rest,
                                            &signal, NULL, &me->error));
        must(me,
             ferry_transport_put(me->transport, me->rank, region, BYTES, &far, NULL, &me->error));
        wait_signal(me, words, 1, FERRY_COMPARE_GE, round, before);
        size_t bad = mismatch(base_of(region), BYTES, seed_of(me, round, before, 1));
        expect(me, bad == BYTES, "round %d, byte %zu", (int)round, bad);
        bad = mismatch(base_of(region) + BYTES, BYTES, seed_of(me, round, me->rank, 1));
        expect(me, bad == BYTES, "round %d, own byte %zu", (int)round, bad);
        flush(me, next_rank(me));
        meet(me);
    }
    fill(base_of(region), BYTES, seed_of(me, 9, me->rank, 2));
    meet(me);
    must(me, ferry_transport_get(me->transport, me->rank, region, 0, &far, NULL, &me->error));
    check_far(me, far, seed_of(me, 9, me->rank, 2), "what was fetched from here");
    if ((me->can & FERRY_CAN_GET) != 0) {
        must(me, ferry_transport_get(me->transport, before, region, 0, &far, NULL, &me->error));
        flush(me, before);
        check_far(me, far, seed_of(me, 9, before, 2), "what was fetched");
    }
    meet(me);
    ferry_region_free(words);
    ferry_region_free(region);
}

/* Copies of sources that wait for a flush are bounded, and gone behind it. */
static void put_much(rank_context *me)
{
    enum { LONG = 5 << 20, ROUNDS = 3, PUTS = 13 };
    if (strcmp(me->engine->engines, "shm") != 0) { /* others have memory of their own for it */
        return;
    }
    if (device_is_real() || IS_SANITIZED) { /* others map memory when they like */
        return;
    }
    ferry_region *region = alloc_region(me, LONG);
    ferry_buffer far;
    must(me, ferry_memory_alloc(NULL, device_kind(), 0, LONG, &far, &me->error));
    must(me, ferry_transport_put(me->transport, next_rank(me), region, 0, &far, NULL, &me->error));
    flush(me, next_rank(me));
    size_t before = mapped_bytes(), most = before;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < PUTS; i++) {
            must(me, ferry_transport_put(me->transport, next_rank(me), region, 0, &far, NULL,
                                         &me->error));
            size_t now = mapped_bytes();
            most = now > most ? now : most;
        }
        flush(me, next_rank(me));
    }
    expect(me, most - before < (size_t)40 << 20, "copies of sources take %zu bytes", most - before);
    size_t after = mapped_bytes();
    expect(me, after < before + LONG, "%zu bytes stay behind a flush", after - before);
    meet(me);
    ferry_memory_free(&far);
    ferry_region_free(region);
}

/* The next rank's; NULL: it cannot be opened. */
static ferry_region *import_next(rank_context *me, ferry_buffer far)
{
    unsigned char key[FERRY_KEY_BYTES];
    size_t n_key;
    const void *all;
    const size_t *lengths;
    ferry_region *next = NULL;
    must(me, ferry_region_export(far.registration, key, sizeof key, &n_key, &me->error));
    must(me, ferry_world_all_gather_v(me->world, key, n_key, &all, &lengths, &me->error));
    const unsigned char *at = all;
    for (uint32_t peer = 0; peer < next_rank(me); peer++) {
        at += lengths[peer];
    }
    if (is_unnamed(me)) {
        must_fail(
            me, FERRY_ERR_UNSUPPORTED, "has no handle, such as a pool; let a copy service",
            ferry_region_import(me->transport, at, lengths[next_rank(me)], &next, &me->error));
        return NULL;
    }
    must(me, ferry_region_import(me->transport, at, lengths[next_rank(me)], &next, &me->error));
    return next;
}

/* A peer's far memory: from host memory, and from far memory of the same and of another device. */
static void put_into_far(rank_context *me, ferry_buffer far)
{
    unsigned char *host = take(me, BYTES);
    ferry_buffer sources[3] = {ferry_buffer_of(host, PART)};
    ferry_region *next = import_next(me, far);
    if (next == NULL) {
        free(host);
        return;
    }
    fill(host, BYTES, seed_of(me, 3, me->rank, 3));
    for (int device = 0; device < 2; device++) {
        must(me, ferry_memory_alloc(NULL, device_kind(), device_number(device), PART,
                                    &sources[1 + device], &me->error));
        copy_flat(me, sources[1 + device], ferry_buffer_of(host, PART));
    }
    for (uint64_t i = 0; i < 3; i++) {
        char words[200];
        snprintf(words, sizeof words,
                 "carries no bytes from memory of kind %s of rank %u to memory of kind %s of rank "
                 "%u: put them into host memory of rank %u",
                 i == 0 ? "host" : device_kind_name(), (unsigned)me->rank, device_kind_name(),
                 (unsigned)next_rank(me), (unsigned)next_rank(me));
        if (has_reach(me)) {
            must(me, ferry_transport_put(me->transport, next_rank(me), next, i * PART, &sources[i],
                                         NULL, &me->error));
        } else {
            must_fail(me, FERRY_ERR_UNSUPPORTED, words,
                      ferry_transport_put(me->transport, next_rank(me), next, i * PART, &sources[i],
                                          NULL, &me->error));
        }
    }
    flush(me, FERRY_ANY_RANK);
    meet(me);
    for (uint64_t i = 0; has_reach(me) && i < 3; i++) {
        check_far(me, part_of(far, i * PART, PART), seed_of(me, 3, previous_rank(me), 3),
                  "what was put");
    }
    for (int i = 0; has_reach(me) && i < 3; i++) { /* and back, from the peer's last part */
        memset(host, 0, BYTES);
        must(me, ferry_transport_get(me->transport, next_rank(me), next, 2 * PART, &sources[i],
                                     NULL, &me->error));
        flush(me, next_rank(me));
        copy_flat(me, ferry_buffer_of(host + PART, PART), sources[i]);
        size_t bad = mismatch(host + PART, PART, seed_of(me, 3, me->rank, 3));
        expect(me, bad == PART, "byte %zu of what was fetched from far memory", bad);
    }
    meet(me);
    ferry_region_free(next);
    meet(me); /* its owner frees it when nobody has it open */
    ferry_memory_free(&sources[1]);
    ferry_memory_free(&sources[2]);
    free(host);
}

static void symmetric(rank_context *me, ferry_buffer far)
{
    ferry_region *region = NULL;
    int32_t device = device_of(me->rank);
    char words[80];
    int n = (int)device_kind_count();
    snprintf(words, sizeof words, "there is no device %d of kind %s, only %d", n,
             device_kind_name(), n);
    all_fail(me, FERRY_ERR_MISUSE, words,
             ferry_region_alloc(me->transport, device_kind(), n, BYTES, &region, &me->error));
    all_fail(me, FERRY_ERR_UNSUPPORTED, "no memory of kind 77",
             ferry_region_alloc(me->transport, 77, 0, BYTES, &region, &me->error));
    if (!has_reach(me) || !(me->engine->threads || is_direct(me))) {
        all_fail(
            me, FERRY_ERR_UNSUPPORTED, kind_words("kind ", ""),
            ferry_region_alloc(me->transport, device_kind(), device, BYTES, &region, &me->error));
        return;
    }
    ferry_memory_kind kind = me->rank == 1 ? FERRY_MEMORY_HOST : device_kind();
    all_fail(me, FERRY_ERR_INVALID_INPUT, "the kind must be the same",
             ferry_region_alloc(me->transport, kind, 0, BYTES, &region, &me->error));
    must(me, ferry_region_alloc(me->transport, device_kind(), device, BYTES, &region, &me->error));
    fill_far(me, far, seed_of(me, 4, me->rank, 4));
    must(me, ferry_transport_put(me->transport, next_rank(me), region, 0, &far, NULL, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "signals lie in host memory",
              ferry_transport_wait_signal(me->transport, region, 0, FERRY_COMPARE_EQ, 0, 0, 0, NULL,
                                          NULL, &me->error));
    flush(me, next_rank(me));
    meet(me);
    ferry_buffer own = far;
    own.base = ferry_region_base(region);
    own.registration = region;
    check_far(me, own, seed_of(me, 4, previous_rank(me), 4), "symmetric far memory");
    meet(me);
    ferry_region_free(region);
}

void case_far(rank_context *me)
{
    ferry_buffer far = take_far(me, true), loose = take_far(me, false);
    put_from_far(me, far);
    put_from_far(me, loose);
    put_much(me);
    put_into_far(me, far);
    symmetric(me, far);
    if ((me->can & FERRY_CAN_REMOTE_USER_MEMORY) != 0) { /* what others allocate is as good */
        must(me, ferry_region_register(me->transport, &loose, &loose.registration, &me->error));
        put_into_far(me, loose);
        ferry_region_free(loose.registration);
        loose.registration = NULL;
    }
    ferry_memory_free(&far);
    ferry_memory_free(&loose);
}

/*
 * Into far memory of a rank that calls nothing of ferry's meanwhile, in one piece and in several:
 * when the signal has come, everything before it is in place. The word is the host's.
 */
void case_far_asleep(rank_context *me)
{
    enum { LARGE = (5 << 20) + 4099, SMALL = 100, ROUNDS = 4 };
    if (!has_reach(me)) {
        return;
    }
    ferry_buffer far[2];
    ferry_region *words = alloc_region(me, 64);
    ferry_signal signal = {.region = words, .offset = 8};
    for (int i = 0; i < 2; i++) {
        must(me, ferry_memory_alloc(me->transport, device_kind(), device_of(me->rank + (uint32_t)i),
                                    LARGE, &far[i], &me->error));
    }
    ferry_region *next = import_next(me, far[1]);
    for (uint64_t round = 1; round <= ROUNDS && next != NULL; round++) {
        uint64_t bytes = round % 2 == 0 ? SMALL : LARGE;
        ferry_buffer source = part_of(far[0], 0, bytes);
        fill_far(me, source, seed_of(me, round, me->rank, 6));
        signal.value = round;
        meet(me);
        must(me, ferry_transport_put_signal(me->transport, next_rank(me), next, LARGE - bytes,
                                            &source, &signal, NULL, &me->error));
        _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)(base_of(words) + 8);
        for (int ms = 0; (me->can & FERRY_CAN_TARGET_PROGRESS) != 0 && ms < 20000; ms++) {
            if (atomic_load(word) == round) {
                break;
            }
            sleep_ms(1);
        }
        wait_signal(me, words, 1, FERRY_COMPARE_EQ, round, previous_rank(me));
        check_far(me, part_of(far[1], LARGE - bytes, bytes),
                  seed_of(me, round, previous_rank(me), 6), "what came before a signal");
        flush(me, next_rank(me));
    }
    meet(me);
    ferry_region_free(next);
    meet(me);
    ferry_memory_free(&far[0]);
    ferry_memory_free(&far[1]);
    ferry_region_free(words);
}

/* After a failure far memory can be freed at once: nobody is in it any more. */
void case_far_failed(rank_context *me)
{
    ferry_buffer far = take_far(me, true);
    put_into_far(me, far);
    atomic_fetch_add(&me->shared->word[0], 1);
    while (atomic_load(&me->shared->word[0]) < me->n_ranks) {
        sleep_ms(1); /* until all have left the barrier */
    }
    if (me->rank == 0) {
        ferry_world_abort(me->world, "enough");
    }
    while (ferry_transport_progress(me->transport, &me->error) == FERRY_OK) {
        sleep_ms(1);
    }
    ferry_memory_free(&far);
}

/*
 * Queues
 */

static void wait_for(void *context)
{
    while (!atomic_load((_Atomic bool *)context)) {
        sleep_ms(1);
    }
}

/* Within this rank: a put, a put with a signal, and a get, on the queue. */
typedef struct own_moves {
    ferry_region *region; /* the source twice, and a word */
    ferry_buffer got;
    uint64_t seed;
} own_moves;

static void move_own(rank_context *me, ferry_queue *queue, ferry_buffer far, const own_moves *own)
{
    ferry_signal signal = {.region = own->region, .offset = 2 * BYTES, .value = 4};
    must(me, ferry_transport_put(me->transport, me->rank, own->region, 0, &far, queue, &me->error));
    must(me, ferry_transport_put_signal(me->transport, me->rank, own->region, BYTES, &far, &signal,
                                        queue, &me->error));
    ferry_buffer target = own->got;
    must(me, ferry_transport_get(me->transport, me->rank, own->region, BYTES, &target, queue,
                                 &me->error));
    target = ferry_buffer_of(NULL, 0);
}

static void check_own(rank_context *me, const own_moves *own, bool is_done)
{
    const unsigned char *base = base_of(own->region);
    for (int i = 0; i < 2; i++) {
        size_t bad = mismatch(base + i * BYTES, BYTES, own->seed);
        expect(me, is_done ? bad == BYTES : bad < 64, "own bytes %d: %zu", i, bad);
    }
    expect(me, base[2 * BYTES] == (is_done ? 4 : 0), "own signal %d", base[2 * BYTES]);
    if (is_done) {
        check_far(me, own->got, own->seed, "what was fetched on a queue");
    }
}

/* While the world is a queue's, nobody else may use it. */
static void refuse_others(rank_context *me, ferry_region *region, ferry_queue *other)
{
    unsigned char byte = 1;
    ferry_buffer small = ferry_buffer_of(&byte, 1);
    must_fail(
        me, FERRY_ERR_MISUSE, "on a queue",
        ferry_transport_put(me->transport, next_rank(me), region, 0, &small, NULL, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "another queue",
              ferry_transport_flush(me->transport, FERRY_ANY_RANK, other, &me->error));
}

/* Behind the gate nothing has begun; the world is the queue's until all of it has ended. */
static void put_on(rank_context *me, ferry_queue *queue, ferry_queue *other, ferry_buffer far)
{
    _Atomic bool *is_open = take(me, sizeof *is_open);
    ferry_region *region = alloc_region(me, BYTES), *words = alloc_region(me, 64);
    ferry_signal signal = {.region = words, .offset = 16, .value = 1};
    uint64_t seen = 77;
    bool is_done = true;
    ferry_event *event = NULL;
    own_moves own = {.region = alloc_region(me, 2 * BYTES + 64),
                     .got = take_far(me, false),
                     .seed = seed_of(me, 5, me->rank, 5)};
    ferry_buffer back = take_far(me, false);
    atomic_init(is_open, false);
    fill_far(me, far, own.seed);
    must(me, ferry_event_create(&event, &me->error));
    must(me, ferry_queue_call(queue, wait_for, is_open, &me->error));
    ferry_buffer source = far; /* what describes the work is read at the call */
    must(me, ferry_transport_put_signal(me->transport, next_rank(me), region, 0, &source, &signal,
                                        queue, &me->error));
    source = ferry_buffer_of(NULL, 0);
    signal.region = NULL;
    move_own(me, queue, far, &own);
    must(me, ferry_transport_flush(me->transport, FERRY_ANY_RANK, queue, &me->error));
    must(me,
         ferry_transport_wait_signal(me->transport, words, 16, FERRY_COMPARE_EQ, 1,
                                     previous_rank(me), limit_of(me), &seen, queue, &me->error));
    if ((me->can & FERRY_CAN_GET) != 0) {
        must(me, ferry_transport_get(me->transport, next_rank(me), region, 0, &back, queue,
                                     &me->error));
        must(me, ferry_transport_flush(me->transport, next_rank(me), queue, &me->error));
    }
    must(me, ferry_event_record(event, queue, &me->error));
    must(me, ferry_event_test(event, &is_done, &me->error));
    expect(me, !is_done && seen == 77, "work behind a gate has begun");
    check_own(me, &own, false);
    refuse_others(me, region, other);
    atomic_store(is_open, true);
    must(me, ferry_queue_synchronize(queue, &me->error));
    expect(me, seen == 1, "the signal was %llu", (unsigned long long)seen);
    size_t bad = mismatch(base_of(region), BYTES, seed_of(me, 5, previous_rank(me), 5));
    expect(me, bad == BYTES, "byte %zu", bad);
    must(me, ferry_event_test(event, &is_done, &me->error));
    expect(me, is_done, "the event has not come");
    check_own(me, &own, true);
    if ((me->can & FERRY_CAN_GET) != 0) {
        check_far(me, back, own.seed, "what was put and fetched again");
    }
    meet(me);
    ferry_memory_free(&back);
    ferry_memory_free(&own.got);
    ferry_region_free(own.region);
    ferry_event_destroy(event);
    ferry_region_free(words);
    ferry_region_free(region);
    free((void *)is_open);
}

/* A wait that fails on the queue fails its synchronize, once. */
static void fail_on(rank_context *me, ferry_queue *queue)
{
    ferry_region *words = alloc_region(me, 64);
    must(me, ferry_transport_wait_signal(me->transport, words, 0, FERRY_COMPARE_EQ, 1,
                                         previous_rank(me), 0, NULL, queue, &me->error));
    must_fail(me, FERRY_ERR_TIMEOUT, "signal 0", ferry_queue_synchronize(queue, &me->error));
    must(me, ferry_queue_synchronize(queue, &me->error));
    meet(me);
    ferry_region_free(words);
}

void case_queue(rank_context *me)
{
    ferry_queue *queues[2] = {NULL, NULL}, *host = NULL;
    ferry_buffer far = take_far(me, false);
    ferry_region *region = alloc_region(me, BYTES);
    int32_t device = device_of(me->rank);
    must(me, ferry_queue_create(device_kind(), device, &queues[0], &me->error));
    must(me, ferry_queue_create(device_kind(), device_number(1 + device), &queues[1], &me->error));
    must(me, ferry_queue_create(FERRY_MEMORY_HOST, 0, &host, &me->error));
    put_on(me, queues[0], queues[1], far);
    fail_on(me, queues[1]);
    if (device_kind_count() > 1) {
        must_fail(me, FERRY_ERR_MISUSE, kind_words("has no access to memory of kind ", ""),
                  ferry_transport_put(me->transport, next_rank(me), region, 0, &far, queues[1],
                                      &me->error));
    }
    must(me, ferry_transport_put(me->transport, next_rank(me), region, 0, &far, host, &me->error));
    must(me, ferry_transport_flush(me->transport, FERRY_ANY_RANK, host, &me->error));
    meet(me);
    ferry_queue_destroy(host);
    ferry_queue_destroy(queues[0]);
    must_fail(
        me, FERRY_ERR_MISUSE, "destroyed",
        ferry_transport_put(me->transport, next_rank(me), region, 0, &far, queues[0], &me->error));
    ferry_queue_destroy(queues[1]);
    meet(me);
    ferry_region_free(region);
    ferry_memory_free(&far);
}

/*
 * Queues used wrongly
 */

static ferry_queue *take_queue(rank_context *me, int32_t device)
{
    ferry_queue *queue = NULL;
    must(me, ferry_queue_create(device_kind(), device, &queue, &me->error));
    return queue;
}

static _Atomic bool *shut(rank_context *me, ferry_queue *queue)
{
    _Atomic bool *is_open = take(me, sizeof *is_open);
    atomic_init(is_open, false);
    must(me, ferry_queue_call(queue, wait_for, is_open, &me->error));
    return is_open;
}

/* While a queue has the world: moves, and what waits for them, in host order. */
static void refuse_moves(rank_context *me, ferry_region *region, ferry_queue *hosts,
                         ferry_buffer plain)
{
    ferry_signal signal = {.region = region, .offset = 0};
    must_fail(me, FERRY_ERR_MISUSE, "put: work of this world is under way on a queue",
              ferry_transport_put(me->transport, me->rank, region, 0, &plain, NULL, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "put: work of this world is under way on a queue",
              ferry_transport_put_signal(me->transport, me->rank, region, 0, &plain, &signal, NULL,
                                         &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "get: work of this world is under way on a queue",
              ferry_transport_get(me->transport, me->rank, region, 0, &plain, NULL, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "flush: work of this world is under way on a queue",
              ferry_transport_flush(me->transport, FERRY_ANY_RANK, NULL, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "signal: work of this world is under way on a queue",
              ferry_transport_wait_signal(me->transport, region, 0, FERRY_COMPARE_GE, 0,
                                          FERRY_ANY_RANK, 0, NULL, NULL, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "under way on a queue",
              ferry_world_barrier(me->world, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "put: work of this world is under way on a queue",
              ferry_transport_put(me->transport, me->rank, region, 0, &plain, hosts, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "flush: work of this world is under way on a queue",
              ferry_transport_flush(me->transport, FERRY_ANY_RANK, hosts, &me->error));
}

/* While a queue has the world, whatever would touch the engines beside it. */
static void refuse_meanwhile(rank_context *me, ferry_queue *queue, ferry_region *region)
{
    unsigned char *host = take(me, PART), key[FERRY_KEY_BYTES];
    size_t n_key = 0;
    ferry_buffer plain = ferry_buffer_of(host, PART), none;
    ferry_region *own = NULL, *wrong = NULL;
    ferry_transport *second = NULL;
    ferry_queue *hosts = NULL;
    must(me, ferry_queue_create(FERRY_MEMORY_HOST, 0, &hosts, &me->error));
    must(me, ferry_region_register(me->transport, &plain, &own, &me->error));
    bool has_key = (me->can & FERRY_CAN_REMOTE_USER_MEMORY) != 0;
    if (has_key) {
        must(me, ferry_region_export(own, key, sizeof key, &n_key, &me->error));
    }
    _Atomic bool *is_open = shut(me, queue);
    must(me, ferry_transport_flush(me->transport, FERRY_ANY_RANK, queue, &me->error));
    must_fail(me, FERRY_ERR_MISUSE,
              "ferry_region_register: work of this world is under way on a queue",
              ferry_region_register(me->transport, &plain, &wrong, &me->error));
    if (has_key) {
        must_fail(me, FERRY_ERR_MISUSE,
                  "ferry_region_import: work of this world is under way on a queue",
                  ferry_region_import(me->transport, key, n_key, &wrong, &me->error));
    }
    must_fail(me, FERRY_ERR_MISUSE,
              "ferry_memory_alloc: work of this world is under way on a queue",
              ferry_memory_alloc(me->transport, FERRY_MEMORY_HOST, 0, PART, &none, &me->error));
    must_fail(me, FERRY_ERR_MISUSE,
              "ferry_region_alloc: work of this world is under way on a queue",
              ferry_region_alloc(me->transport, FERRY_MEMORY_HOST, 0, PART, &wrong, &me->error));
    must_fail(me, FERRY_ERR_MISUSE,
              "ferry_transport_open: work of this world is under way on a queue",
              ferry_transport_open(me->world, "inproc", &second, &me->error));
    must_fail(me, FERRY_ERR_MISUSE,
              "ferry_transport_progress: work of this world is under way on a queue",
              ferry_transport_progress(me->transport, &me->error));
    refuse_moves(me, region, hosts, plain);
    ferry_queue_destroy(hosts);
    expect(me, own != NULL && wrong == NULL && second == NULL, "outputs of what was refused");
    atomic_store(is_open, true);
    must(me, ferry_queue_synchronize(queue, &me->error));
    must(me, ferry_transport_progress(me->transport, &me->error));
    ferry_region_free(own);
    free((void *)is_open);
    free(host);
    meet(me);
}

/* The source of a put is gone before its turn comes: a status, and what is behind it goes on. */
static void free_before(rank_context *me, ferry_queue *queue, ferry_region *region)
{
    ferry_buffer far = take_far(me, false);
    unsigned char *host = take(me, PART);
    ferry_buffer plain = ferry_buffer_of(host, PART);
    fill(host, PART, seed_of(me, 6, me->rank, 6));
    _Atomic bool *is_open = shut(me, queue);
    must(me, ferry_transport_put(me->transport, next_rank(me), region, 0, &far, queue, &me->error));
    must(me, ferry_transport_get(me->transport, me->rank, region, 0, &far, queue, &me->error));
    must(me,
         ferry_transport_put(me->transport, next_rank(me), region, 0, &plain, queue, &me->error));
    must(me, ferry_transport_flush(me->transport, FERRY_ANY_RANK, queue, &me->error));
    ferry_memory_free(&far);
    atomic_store(is_open, true);
    /* Of threads another rank may have got memory at the same address meanwhile. */
    must_fail(me, FERRY_ERR_MISUSE, NULL, ferry_queue_synchronize(queue, &me->error));
    expect(me,
           strstr(me->error.message, kind_words("the buffer says kind ", "")) != NULL ||
               strstr(me->error.message, "is another allocation now") != NULL,
           "%s", me->error.message);
    must(me, ferry_queue_synchronize(queue, &me->error));
    meet(me);
    size_t bad = mismatch(base_of(region), PART, seed_of(me, 6, previous_rank(me), 6));
    expect(me, bad == PART, "byte %zu behind a put that failed", bad);
    meet(me);
    free((void *)is_open);
    free(host);
}

/* Regions, the transport and the queue go while work with them is on the queue. */
static void end_with_work(rank_context *me, int32_t device, ferry_buffer far)
{
    unsigned char *host = take(me, BYTES);
    for (uint64_t round = 0; round < 4; round++) {
        ferry_queue *queue = take_queue(me, device);
        ferry_transport *second = open_transport(me, me->world, "");
        ferry_region *region = NULL, *registered = NULL;
        ferry_buffer plain = ferry_buffer_of(host, BYTES);
        uint64_t seed = seed_of(me, 20 + round, me->rank, 7);
        bool waits = round % 2 == 0;
        must(me, ferry_region_alloc(second, FERRY_MEMORY_HOST, 0, BYTES, &region, &me->error));
        must(me, ferry_region_register(second, &plain, &registered, &me->error));
        fill_far(me, far, seed);
        _Atomic bool *is_open = shut(me, queue);
        for (int i = 0; i < 6; i++) {
            if (waits) { /* else peers may have closed theirs */
                must(me, ferry_transport_put(second, next_rank(me), region, 0, &far, queue,
                                             &me->error));
            }
            must(me, ferry_transport_put(second, me->rank, registered, 0, &far, queue, &me->error));
            must(me, ferry_transport_flush(second, FERRY_ANY_RANK, queue, &me->error));
        }
        atomic_store(is_open, true);
        if (waits) { /* each of them does */
            ferry_region_free(registered);
            size_t bad = mismatch(host, BYTES, seed);
            expect(me, bad == BYTES, "byte %zu of a region that was freed", bad);
            ferry_region_free(region);
        }
        ferry_transport_close(second);
        must(me, ferry_queue_synchronize(queue, &me->error));
        size_t bad = mismatch(host, BYTES, seed);
        expect(me, bad == BYTES, "byte %zu of a transport that was closed", bad);
        ferry_queue_destroy(queue);
        memset(host, 0, BYTES);
        free((void *)is_open);
        meet(me);
    }
    free(host);
}

/* Memory of the other device: refused at the call, by name, and nothing else is. */
static void refuse_other(rank_context *me, ferry_region *region, ferry_buffer far,
                         const ferry_box boxes[3], ferry_queue *queue)
{
    must_fail(me, FERRY_ERR_MISUSE,
              kind_words("a queue of kind ", ", device 1, has no access to memory of kind "),
              ferry_transport_put(me->transport, me->rank, region, 0, &far, queue, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, kind_words("has no access to memory of kind ", ", device 0"),
              ferry_box_copy(&boxes[2], &boxes[1], NULL, queue, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, kind_words("has no access to memory of kind ", ", device 0"),
              ferry_transport_get(me->transport, me->rank, region, 0, &far, queue, &me->error));
}

/* A moment of one device's queue orders another's; one queue's failure is not the other's. */
static void two_devices(rank_context *me, ferry_region *region)
{
    ferry_queue *queues[2] = {take_queue(me, 0), take_queue(me, 1)};
    ferry_buffer far[2];
    ferry_event *event = NULL;
    unsigned char *host = take(me, PART), *back = take(me, PART);
    ferry_buffer from = ferry_buffer_of(host, PART), to = ferry_buffer_of(back, PART);
    fill(host, PART, seed_of(me, 8, me->rank, 8));
    must(me, ferry_event_create(&event, &me->error));
    for (int d = 0; d < 2; d++) {
        must(me, ferry_memory_alloc(NULL, device_kind(), d, PART, &far[d], &me->error));
    }
    ferry_box boxes[3] = {FERRY_BOX_INIT, FERRY_BOX_INIT, FERRY_BOX_INIT};
    for (int i = 0; i < 3; i++) {
        boxes[i].buffer = i == 0 ? from : i == 1 ? far[0] : to;
        boxes[i].n_dims = 1;
        boxes[i].length[0] = PART;
        boxes[i].stride[0] = 1;
    }
    _Atomic bool *is_open = shut(me, queues[0]);
    must(me, ferry_box_copy(&boxes[1], &boxes[0], NULL, queues[0], &me->error));
    must(me, ferry_box_copy(&boxes[2], &boxes[1], NULL, queues[0], &me->error));
    must(me, ferry_event_record(event, queues[0], &me->error));
    must(me, ferry_event_wait(event, queues[1], &me->error));
    must(me, ferry_transport_put(me->transport, me->rank, region, 0, &to, queues[1], &me->error));
    atomic_store(is_open, true);
    must(me, ferry_queue_synchronize(queues[1], &me->error));
    size_t bad = mismatch(base_of(region), PART, seed_of(me, 8, me->rank, 8));
    expect(me, bad == PART, "byte %zu behind another device's event", bad);
    if (!device_reaches_others()) {
        refuse_other(me, region, far[0], boxes, queues[1]);
    }
    must(me, ferry_queue_synchronize(queues[0], &me->error));
    must(me, ferry_queue_synchronize(queues[1], &me->error));
    meet(me);
    ferry_event_destroy(event);
    for (int d = 0; d < 2; d++) {
        ferry_memory_free(&far[d]);
        ferry_queue_destroy(queues[d]);
    }
    free((void *)is_open);
    free(host);
    free(back);
}

/* A destroyed queue, with a new one made at once in its place, in every call that takes one. */
static void use_gone(rank_context *me, int32_t device, ferry_region *region, ferry_buffer far)
{
    static const char gone_words[] = "is no queue: it was destroyed, or never created";
    ferry_queue *gone = take_queue(me, device);
    ferry_signal signal = {.region = region, .offset = 0};
    unsigned char here[8];
    ferry_box to = FERRY_BOX_INIT, from = FERRY_BOX_INIT;
    to.buffer = ferry_buffer_of(here, sizeof here);
    from.buffer = far;
    to.n_dims = from.n_dims = 1;
    to.length[0] = from.length[0] = sizeof here;
    to.stride[0] = from.stride[0] = 1;
    ferry_queue_destroy(gone);
    ferry_queue *queue = take_queue(me, device);
    must_fail(me, FERRY_ERR_MISUSE, gone_words,
              ferry_transport_put(me->transport, me->rank, region, 0, &far, gone, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, gone_words,
              ferry_transport_put_signal(me->transport, me->rank, region, 0, &far, &signal, gone,
                                         &me->error));
    must_fail(me, FERRY_ERR_MISUSE, gone_words,
              ferry_transport_get(me->transport, me->rank, region, 0, &far, gone, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, gone_words,
              ferry_transport_flush(me->transport, FERRY_ANY_RANK, gone, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, gone_words,
              ferry_transport_wait_signal(me->transport, region, 0, FERRY_COMPARE_GE, 0,
                                          FERRY_ANY_RANK, 0, NULL, gone, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, gone_words, ferry_box_copy(&to, &from, NULL, gone, &me->error));
    must(me, ferry_queue_synchronize(queue, &me->error));
    ferry_queue_destroy(queue);
    meet(me);
}

void case_bad_queues(rank_context *me)
{
    int32_t device = device_of(me->rank);
    ferry_region *region = alloc_region(me, BYTES);
    ferry_buffer far = take_far(me, false);
    ferry_queue *queue = take_queue(me, device);
    refuse_meanwhile(me, queue, region);
    free_before(me, queue, region);
    if (device_kind_count() > 1) {
        two_devices(me, region);
    }
    use_gone(me, device, region, far);
    end_with_work(me, device, far);
    ferry_queue_destroy(queue);
    ferry_region_free(region);
    ferry_memory_free(&far);
}
