/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues whose kernels wait for those of others (lanes), beside streams that share the device's few
 * channels: whatever waits, what must go on goes on. A kernel that waits is here a stream that
 * waits for a word. How many channels there are is STANDIN_CHANNELS; of a real driver nobody knows.
 */
#include "memory/cuda/queue.h"
#include "memory/kind.h"

#include "support/check.h"

#include <ferry/ferry.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 40, PATIENCE_MS = 5000, GUARD_MS = 500 };

static ferry_error error;
static const fy_memory_kind *kind;
static const fy_exec *exec;
static _Atomic uint64_t *words; /* that streams wait for */

static void sleep_ms(int ms)
{
    struct timespec t = {.tv_nsec = ms * 1000000L};
    nanosleep(&t, NULL);
}

static fy_exec_queue *open_own(int32_t device)
{
    fy_exec_queue *queue = NULL;
    must(exec->queue_open(device, NULL, &queue, &error), &error);
    return queue;
}

static fy_exec_queue *open_meeting(int32_t device)
{
    void *page;
    fy_exec_queue *queue = open_own(device);
    must(exec->lanes_take(queue, &page, &error), &error);
    exec->lanes_give(page);
    return queue;
}

static CUstream make_stream(void)
{
    CUstream stream = NULL;
    assert_int_equal(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return stream;
}

static fy_exec_queue *adopt(void)
{
    fy_exec_queue *queue = NULL;
    must(exec->queue_open(0, make_stream(), &queue, &error), &error);
    return queue;
}

/*
 * Words only grow: a busy machine may have a stream look at its word long after that was opened,
 * and one that found it shut for the next stream would wait for good.
 */
static uint64_t number = 1;

/* From here on it waits: the device has come to what lies before the wait. */
static void shut(CUstream stream, size_t word)
{
    CUdeviceptr reached = (CUdeviceptr)(uintptr_t)&words[MOST];
    assert_int_equal(cuStreamWriteValue64(stream, reached, ++number, CU_STREAM_WRITE_VALUE_DEFAULT),
                     CUDA_SUCCESS);
    assert_int_equal(cuStreamWaitValue64(stream, (CUdeviceptr)(uintptr_t)&words[word], number,
                                         CU_STREAM_WAIT_VALUE_GEQ),
                     CUDA_SUCCESS);
    for (int ms = 0; atomic_load(&words[MOST]) != number; ms++) {
        check_at(ms < PATIENCE_MS, "a stream that nothing holds up");
        sleep_ms(1);
    }
    sleep_ms(2);
}

static void open_again(size_t word)
{
    atomic_store(&words[word], number);
    sleep_ms(2);
}

static void goes_on(fy_exec_queue *queue, const char *what)
{
    fy_ticket ticket;
    must(exec->mark(queue, &ticket, &error), &error);
    for (int ms = 0; exec->reached(queue, ticket, &error) == FERRY_ERR_TIMEOUT; ms++) {
        check_at(ms < PATIENCE_MS, "%s does not go on", what);
        sleep_ms(1);
    }
}

static int set_up(void **state)
{
    void *memory = NULL;
    CUcontext context = NULL;
    (void)state;
    must(fy_memory_get(FERRY_MEMORY_CUDA, &kind, &error), &error);
    exec = kind->exec;
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    assert_int_equal(cuCtxPushCurrent(context), CUDA_SUCCESS);
    assert_int_equal(
        cuMemHostAlloc(&memory, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
        CUDA_SUCCESS);
    words = memory;
    return 0;
}

/* As many as leave one channel; one more is refused, and is a queue like any other. */
static uint32_t take_queues(void)
{
    fy_exec_queue *queues[MOST];
    void *pages[MOST];
    uint32_t n = 0;
    ferry_status status = FERRY_OK;
    for (; status == FERRY_OK && n < MOST; n++) {
        queues[n] = open_own(0);
        status = exec->lanes_take(queues[n], &pages[n], &error);
    }
    check_status("a queue too many", FERRY_ERR_UNSUPPORTED, status, &error);
    check_says("a queue too many", "no stream was found that goes on", &error);
    goes_on(queues[n - 1], "a queue that was refused");
    exec->queue_close(open_meeting(kind->device_count() - 1 > 0 ? 1 : 0));
    for (uint32_t i = 0; i < n; i++) {
        if (i + 1 < n) {
            exec->lanes_give(pages[i]);
        }
        exec->queue_close(queues[i]);
    }
    return n - 1;
}

/* Before any other queue is opened: then only what is kept for it shows that one goes on. */
static void test_room(void **state)
{
    const char *text = getenv("STANDIN_CHANNELS");
    uint32_t room = text != NULL ? (uint32_t)atoi(text) - 1 : 1, most = 0;
    (void)state;
    for (int round = 0; round < 3; round++) { /* what is busy may be given up for nothing */
        uint32_t n = take_queues();
        assert_true(n >= 1 && (text == NULL || n <= room));
        most = n > most ? n : most;
    }
    assert_true(most >= room);
}

/* A stream of the caller's that waits for a kernel does not hold it up. */
static void test_adopted_later(void **state)
{
    (void)state;
    fy_exec_queue *meets = open_meeting(0);
    for (size_t i = 0; i < 12; i++) {
        fy_exec_queue *adopted = adopt();
        atomic_store(&words[i], 0);
        must(exec->word_wait(adopted, &words[i], 1, &error), &error);
        sleep_ms(2);
        goes_on(meets, "a queue with kernels, of which a caller's stream waits");
        open_again(i);
        exec->queue_close(adopted);
    }
    exec->queue_close(meets);
}

/* A stream of ferry's that lay behind a caller's when others began to wait. */
static void test_reopened(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        exec->queue_close(open_own(0));
        fy_exec_queue *adopted = adopt();
        (void)make_stream();
        fy_exec_queue *meets = open_meeting(0);
        exec->queue_close(adopted);
        fy_exec_queue *own = open_own(0);
        shut(meets->stream, 0);
        goes_on(own, "a queue that is opened again");
        open_again(0);
        exec->queue_close(own);
        exec->queue_close(meets);
    }
}

/* Queues with kernels, and another one, beside a graph's stream, which nobody knows. */
static void test_graphs(void **state)
{
    enum { N = 2 };
    fy_exec_queue *meets[N], *own = open_own(0);
    (void)state;
    for (int i = 0; i < N; i++) {
        meets[i] = open_meeting(0);
    }
    for (int round = 0; round < 12; round++) {
        shut(make_stream(), 0);
        exec->make_way(own);
        for (int i = 0; i < N; i++) {
            goes_on(meets[i], "a queue with kernels, beside a graph");
        }
        goes_on(own, "a queue beside a graph");
        open_again(0);
        for (int i = 0; i < N; i++) {
            shut(meets[i]->stream, 0);
            goes_on(meets[1 - i], "a queue with kernels, beside another one");
            goes_on(own, "a queue beside one with kernels");
            open_again(0);
            goes_on(meets[i], "a queue that waits no longer"); /* what is busy is let be */
        }
    }
    for (int i = 0; i < N; i++) {
        exec->queue_close(meets[i]);
    }
    exec->queue_close(own);
}

/* Opens the word after a while, so that a call that waits for it ends, too late. */
typedef struct guard {
    pthread_t thread;
    _Atomic bool is_over, was_late;
} guard;

static void *run_guard(void *context)
{
    guard *g = context;
    for (int ms = 0; !atomic_load(&g->is_over) && ms < GUARD_MS; ms++) {
        sleep_ms(1);
    }
    if (!atomic_load(&g->is_over)) {
        atomic_store(&g->was_late, true);
        open_again(0);
    }
    return NULL;
}

enum { SMALL = 1 << 16 };

static void copy_box(ferry_buffer to, ferry_buffer from, uint64_t *hash_out)
{
    const uint64_t length[1] = {SMALL}, offset[1] = {0};
    ferry_copy_options options = FERRY_COPY_OPTIONS_INIT;
    ferry_box target = FERRY_BOX_INIT, source = FERRY_BOX_INIT;
    must(ferry_box_of(&to, 1, 1, length, offset, length, &target, &error), &error);
    source = target;
    source.buffer = from;
    options.hash_out = hash_out;
    must(ferry_box_copy(&target, &source, &options, NULL, &error), &error);
}

/* Copies at once, while a stream waits for what the same thread does behind them. */
static bool goes_beside(CUstream stream, ferry_buffer to, ferry_buffer from, uint64_t *hash_out)
{
    guard g = {.is_over = false};
    shut(stream, 0);
    assert_int_equal(pthread_create(&g.thread, NULL, run_guard, &g), 0);
    copy_box(to, from, hash_out);
    atomic_store(&g.is_over, true);
    assert_int_equal(pthread_join(g.thread, NULL), 0);
    open_again(0);
    return !atomic_load(&g.was_late);
}

static void test_copies_at_once(void **state)
{
    enum { STREAMS = 8 };
    static char bytes[SMALL] = {7};
    ferry_buffer one = {0}, other = {0};
    uint64_t hash[2] = {1, 2};
    int n_beside = 0;
    (void)state;
    must(ferry_memory_alloc(NULL, FERRY_MEMORY_CUDA, 0, SMALL, &one, &error), &error);
    must(ferry_memory_alloc(NULL, FERRY_MEMORY_CUDA, 0, SMALL, &other, &error), &error);
    copy_box(one, ferry_buffer_of(bytes, SMALL), NULL);
    for (int i = 0; i < STREAMS && n_beside == 0; i++) { /* one may have the channel of the copy */
        CUstream stream = make_stream();
        n_beside +=
            goes_beside(stream, other, one, &hash[0]) && goes_beside(stream, other, one, &hash[1]);
    }
    check_at(n_beside == 1, "copies wait for any stream of the caller's");
    assert_true(hash[0] == hash[1]);
    ferry_memory_free(&one);
    ferry_memory_free(&other);
}

static fy_exec_queue *open_with_hash(ferry_buffer of)
{
    uint64_t hash;
    const fy_area area = fy_area_flat(0, SMALL);
    fy_exec_queue *queue = open_own(0);
    must(exec->hash(queue, &area, of.base, 0, SMALL, &hash, &error), &error);
    goes_on(queue, "a queue with a hash");
    return queue;
}

static bool is_memory(CUdeviceptr place)
{
    unsigned type;
    return cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, place) == CUDA_SUCCESS;
}

/* What a closed queue has kept is there for the next one, and for who has no memory left. */
static void test_kept_memory(void **state)
{
    ferry_buffer buffer = {0}, none = {0};
    (void)state;
    must(ferry_memory_alloc(NULL, FERRY_MEMORY_CUDA, 0, SMALL, &buffer, &error), &error);
    for (int round = 0; round < 2; round++) { /* in the second none is kept at first */
        fy_exec_queue *plain = open_own(0), *used = open_with_hash(buffer);
        fy_exec_queue *closed = open_with_hash(buffer);
        const CUdeviceptr kept = closed->scratch;
        assert_true(kept != 0 && used->scratch != 0 && kept != used->scratch);
        exec->queue_close(plain);
        exec->queue_close(closed);
        assert_true(closed->scratch == kept);
        fy_exec_queue *next = open_own(0);
        assert_true(next->scratch != 0);
        exec->queue_close(next);
        check_status(
            "memory that no device has", FERRY_ERR_NO_MEMORY,
            ferry_memory_alloc(NULL, FERRY_MEMORY_CUDA, 0, (uint64_t)1 << 45, &none, &error),
            &error);
        assert_true(closed->scratch == 0 && !is_memory(kept));
        assert_true(used->scratch != 0 && is_memory(used->scratch));
        exec->queue_close(used);
        check_status(
            "memory that no device has", FERRY_ERR_NO_MEMORY,
            ferry_memory_alloc(NULL, FERRY_MEMORY_CUDA, 0, (uint64_t)1 << 45, &none, &error),
            &error);
    }
    ferry_memory_free(&buffer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room),           cmocka_unit_test(test_adopted_later),
        cmocka_unit_test(test_reopened),       cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_copies_at_once), cmocka_unit_test(test_kept_memory),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
