/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The test kind of memory: what the CPU must not touch, and verbs that are late. */
#include "exec/exec.h"
#include "memory/kind.h"
#include "support/check.h"
#include "transport/carry.h"

#include <ferry/pack.h>
#include <ferry/transport.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 3 << 12, ROW = 100, PITCH = 128, ROWS = 24 };

static ferry_buffer far_buffer(int32_t device, uint64_t bytes)
{
    ferry_buffer buffer;
    ferry_error error;
    check_status("far memory", FERRY_OK,
                 ferry_memory_alloc(NULL, FERRY_MEMORY_FAR, device, bytes, &buffer, &error),
                 &error);
    return buffer;
}

static const fy_exec *far_exec(void)
{
    const fy_memory_kind *row;
    ferry_error error;
    check_status("the far kind", FERRY_OK, fy_memory_get(FERRY_MEMORY_FAR, &row, &error), &error);
    return row->exec;
}

static fy_exec_queue *open_queue(int32_t device)
{
    fy_exec_queue *queue = NULL;
    ferry_error error;
    check_status("a queue", FERRY_OK, far_exec()->queue_open(device, NULL, &queue, &error), &error);
    return queue;
}

static void copy(fy_exec_queue *queue, void *to, const void *from, uint64_t bytes)
{
    fy_area area = fy_area_flat(0, bytes);
    ferry_error error;
    check_status("copy", FERRY_OK,
                 far_exec()->copy(queue, &area, to, &area, from, 0, bytes, NULL, &error), &error);
}

static void finish(fy_exec_queue *queue)
{
    ferry_error error;
    check_status("finish", FERRY_OK, fy_exec_finish(far_exec(), queue, &error), &error);
}

static void fill(unsigned char *bytes, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (unsigned char)(i * 31 + i / 251 + seed);
    }
}

/* How a child ends that does something with far memory. */
static int end_of(void (*deed)(volatile char *memory), volatile char *memory)
{
    pid_t child = fork();
    int end = 0;
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        deed(memory);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &end, 0), child);
    return end;
}

static void reads(volatile char *memory)
{
    (void)memory[0];
}

static void writes_last(volatile char *memory)
{
    memory[BYTES - 1] = 1;
}

static void test_touch(void **state)
{
    int pipes[2];
    ferry_buffer far = far_buffer(0, BYTES);
    (void)state;
    int read_end = end_of(reads, far.base);
    int write_end = end_of(writes_last, far.base);
    assert_true(WIFSIGNALED(read_end) && WTERMSIG(read_end) == SIGSEGV);
    assert_true(WIFSIGNALED(write_end) && WTERMSIG(write_end) == SIGSEGV);
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(write(pipes[1], far.base, 1), -1);
    assert_int_equal(errno, EFAULT);
    close(pipes[0]);
    close(pipes[1]);
    ferry_memory_free(&far);
    assert_null(far.base);
}

/* Nothing between the calls waits, and the last copy brings what the first one took. */
static void test_order(void **state)
{
    static unsigned char from[ROWS * ROW], back[ROWS * ROW];
    const uint64_t length[2] = {ROWS, ROW}, stride[2] = {PITCH, 1};
    fy_exec_queue *queue = open_queue(1);
    ferry_buffer rows = far_buffer(1, ROWS * PITCH), flat = far_buffer(1, ROWS * ROW);
    fy_area dense = fy_area_flat(0, ROWS * ROW), pitched;
    uint64_t hashes[2] = {0};
    ferry_error error;
    (void)state;
    assert_int_equal(fy_area_make(0, 1, 2, length, stride, &pitched, &error), FERRY_OK);
    for (unsigned round = 0; round < 20; round++) {
        fill(from, sizeof from, round);
        memset(back, 0, sizeof back);
        const fy_exec *exec = far_exec();
        assert_int_equal(exec->copy(queue, &pitched, rows.base, &dense, from, 0, sizeof from,
                                    &hashes[0], &error),
                         FERRY_OK);
        assert_int_equal(
            exec->copy(queue, &dense, flat.base, &pitched, rows.base, 0, sizeof from, NULL, &error),
            FERRY_OK);
        assert_int_equal(exec->hash(queue, &dense, flat.base, 0, sizeof from, &hashes[1], &error),
                         FERRY_OK);
        copy(queue, back, flat.base, sizeof back);
        finish(queue);
        assert_memory_equal(back, from, sizeof from);
        assert_int_equal(hashes[0], fy_area_hash(&dense, from, 0, sizeof from));
        assert_int_equal(hashes[1], hashes[0]);
    }
    far_exec()->queue_close(queue);
    ferry_memory_free(&rows);
    ferry_memory_free(&flat);
}

static void count(void *context)
{
    atomic_fetch_add((_Atomic int *)context, 1);
}

/* Whoever does not wait sees what was there before: the gate keeps the queue from going on. */
static void test_wait(void **state)
{
    static _Atomic uint64_t gate, passed;
    static _Atomic int calls;
    unsigned char from[64], back[64] = {0};
    fy_exec_queue *queue = open_queue(0);
    const fy_exec *exec = far_exec();
    ferry_buffer far = far_buffer(0, sizeof from);
    fy_ticket before, after;
    ferry_error error;
    (void)state;
    fill(from, sizeof from, 7);
    assert_int_equal(exec->mark(queue, &before, &error), FERRY_OK);
    assert_int_equal(exec->word_wait(queue, &gate, 2, &error), FERRY_OK);
    copy(queue, far.base, from, sizeof from);
    copy(queue, back, far.base, sizeof back);
    assert_int_equal(exec->call(queue, count, &calls, &error), FERRY_OK);
    assert_int_equal(exec->word_set(queue, &passed, 9, &error), FERRY_OK);
    assert_int_equal(exec->mark(queue, &after, &error), FERRY_OK);
    atomic_store(&gate, 1);
    assert_int_equal(exec->reached(queue, before, &error), FERRY_OK);
    assert_int_equal(exec->reached(queue, after, &error), FERRY_ERR_TIMEOUT);
    assert_int_equal(back[5], 0);
    assert_int_equal(calls, 0);
    atomic_store(&gate, 2);
    finish(queue);
    assert_int_equal(exec->reached(queue, after, &error), FERRY_OK);
    assert_memory_equal(back, from, sizeof from);
    assert_int_equal(calls, 1);
    assert_int_equal(passed, 9);
    exec->queue_close(queue);
    ferry_memory_free(&far);
}

static void test_sums_and_casts(void **state)
{
    float a[100], b[100], here[100], there[100];
    uint16_t narrow_here[100], narrow_there[100];
    fy_exec_queue *queue = open_queue(0);
    ferry_buffer far_a = far_buffer(0, sizeof a), far_sum = far_buffer(0, sizeof a);
    fy_area wide = fy_area_flat(0, sizeof a), narrow = fy_area_flat(0, sizeof narrow_here);
    fy_cast cast = {.from_kind = FERRY_F32, .to_kind = FERRY_BF16, .n_rows = 1, .n_columns = 100};
    ferry_error error;
    (void)state;
    for (int i = 0; i < 100; i++) {
        a[i] = (float)i / 3;
        b[i] = (float)(7 - i) * 1.7f;
    }
    const void *near_sources[] = {a, b}, *far_sources[] = {far_a.base, b};
    fy_sum sum = {.sources = near_sources, .n_sources = 2, .targets = {here}, .n = 100};
    fy_sum_run(&sum);
    uint64_t hash = 0, wanted = fy_area_cast_hash(&cast, &narrow, narrow_here, &wide, here, 0, 100);

    copy(queue, far_a.base, a, sizeof a);
    sum.sources = far_sources;
    sum.targets[0] = far_sum.base;
    assert_int_equal(far_exec()->sum(queue, &sum, &error), FERRY_OK);
    far_sources[0] = NULL; /* what describes work is read at the call */
    assert_int_equal(far_exec()->cast(queue, &cast, &narrow, narrow_there, &wide, far_sum.base, 0,
                                      100, &hash, &error),
                     FERRY_OK);
    copy(queue, there, far_sum.base, sizeof there);
    finish(queue);
    assert_memory_equal(there, here, sizeof here);
    assert_memory_equal(narrow_there, narrow_here, sizeof narrow_here);
    assert_int_equal(hash, wanted);
    far_exec()->queue_close(queue);
    ferry_memory_free(&far_a);
    ferry_memory_free(&far_sum);
}

static void test_devices(void **state)
{
    ferry_error error;
    ferry_buffer one = far_buffer(0, BYTES), other = far_buffer(1, BYTES), found;
    fy_exec_queue *queue = open_queue(0), *adopted = NULL;
    fy_area area = fy_area_flat(0, 8);
    const fy_exec *exec = far_exec();
    (void)state;
    assert_ptr_equal(fy_exec_for(fy_space_of(&one), (fy_space){.kind = FERRY_MEMORY_HOST}).exec,
                     exec);
    assert_int_equal(fy_exec_for((fy_space){.kind = FERRY_MEMORY_HOST}, fy_space_of(&other)).device,
                     1);
    assert_null(fy_exec_for(fy_space_of(&one), fy_space_of(&other)).exec);
    assert_ptr_equal(
        fy_exec_for((fy_space){.kind = FERRY_MEMORY_HOST}, (fy_space){.kind = FERRY_MEMORY_HOST})
            .exec,
        &fy_cpu_exec);
    check_status("two devices", FERRY_ERR_MISUSE,
                 exec->copy(queue, &area, one.base, &area, other.base, 0, 8, NULL, &error), &error);
    check_says("two devices", "device 1", &error);
    check_status("another device's queue", FERRY_ERR_MISUSE,
                 exec->queue_open(1, queue, &adopted, &error), &error);
    check_status("no queue", FERRY_ERR_MISUSE, exec->queue_open(0, &error, &adopted, &error),
                 &error);
    check_status("a queue of others", FERRY_OK, exec->queue_open(0, queue, &adopted, &error),
                 &error);
    exec->queue_close(queue);
    finish(adopted);
    exec->queue_close(adopted);

    assert_int_equal(ferry_memory_query((char *)other.base + 5, &found, &error), FERRY_OK);
    assert_true(found.base == other.base && found.bytes == BYTES && found.device == 1 &&
                found.kind == FERRY_MEMORY_FAR);
    ferry_memory_free(&one);
    void *gone = other.base;
    ferry_memory_free(&other);
    assert_int_equal(ferry_memory_query(gone, &found, &error), FERRY_OK);
    assert_true(found.kind == FERRY_MEMORY_HOST && found.base == gone && found.bytes == 0);
}

static void test_buffers(void **state)
{
    ferry_error error;
    static char here[64];
    ferry_buffer far = far_buffer(1, BYTES);
    const struct row {
        const char *name;
        ferry_status wanted;
        void *base;
        uint64_t bytes;
        uint32_t kind;
        int32_t device;
    } rows[] = {
        {"host", FERRY_OK, here, 64, FERRY_MEMORY_HOST, 0},
        {"far", FERRY_OK, far.base, BYTES, FERRY_MEMORY_FAR, 1},
        {"a part", FERRY_OK, (char *)far.base + 100, BYTES - 100, FERRY_MEMORY_FAR, 1},
        {"nothing", FERRY_OK, NULL, 0, FERRY_MEMORY_FAR, 0},
        {"a byte too many", FERRY_ERR_MISUSE, (char *)far.base + 100, BYTES - 99, FERRY_MEMORY_FAR,
         1},
        {"another device", FERRY_ERR_MISUSE, far.base, 8, FERRY_MEMORY_FAR, 0},
        {"no device", FERRY_ERR_MISUSE, far.base, 8, FERRY_MEMORY_FAR, 2},
        {"a device below", FERRY_ERR_MISUSE, far.base, 8, FERRY_MEMORY_FAR, -1},
        {"host said far", FERRY_ERR_MISUSE, here, 8, FERRY_MEMORY_FAR, 0},
        {"far said host", FERRY_ERR_MISUSE, far.base, 8, FERRY_MEMORY_HOST, 0},
        {"NULL", FERRY_ERR_MISUSE, NULL, 8, FERRY_MEMORY_FAR, 0},
        {"no kind", FERRY_ERR_UNSUPPORTED, here, 8, 77, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ferry_buffer buffer = ferry_buffer_of(rows[i].base, rows[i].bytes);
        buffer.kind = rows[i].kind;
        buffer.device = rows[i].device;
        check_status(rows[i].name, rows[i].wanted, fy_buffer_check(&buffer, "put", &error), &error);
        if (strcmp(rows[i].name, "NULL") == 0) {
            check_says("NULL", "put of 8 bytes with a buffer at NULL", &error);
        } else if (strcmp(rows[i].name, "a device below") == 0) {
            check_says("a device below", "there is no device -1 of kind far, only 2", &error);
        }
    }
    ferry_buffer none = {.base = here};
    check_status("a device too many", FERRY_ERR_MISUSE,
                 ferry_memory_alloc(NULL, FERRY_MEMORY_FAR, 2, 8, &none, &error), &error);
    check_says("a device too many", "ferry_memory_alloc: there is no device 2 of kind far, only 2",
               &error);
    check_status("memory of no kind", FERRY_ERR_UNSUPPORTED,
                 ferry_memory_alloc(NULL, 77, 0, 8, &none, &error), &error);
    check_says("memory of no kind", "77", &error);
    check_status("no bytes", FERRY_ERR_MISUSE,
                 ferry_memory_alloc(NULL, FERRY_MEMORY_FAR, 0, 0, &none, &error), &error);
    assert_ptr_equal(none.base, here);
    ferry_memory_free(&far);
}

/* In a child: the fault is counted over a whole process. */
static void fail_second(volatile char *memory)
{
    static _Atomic int calls;
    char from[8] = "first", back[8] = "";
    ferry_error error = {.message = ""};
    (void)memory;
    setenv("FERRY_FAR_FAIL", "2", 1);
    fy_area area = fy_area_flat(0, sizeof from);
    const fy_memory_kind *row;
    fy_exec_queue *queue;
    void *far;
    /* No check of cmocka's: it would go on with the next test. */
    if (fy_memory_get(FERRY_MEMORY_FAR, &row, &error) != FERRY_OK ||
        row->alloc(0, sizeof from, &far, &error) != FERRY_OK ||
        row->exec->queue_open(0, NULL, &queue, &error) != FERRY_OK ||
        row->exec->copy(queue, &area, far, &area, from, 0, 8, NULL, &error) != FERRY_OK ||
        row->exec->copy(queue, &area, back, &area, far, 0, 8, NULL, &error) != FERRY_OK ||
        row->exec->copy(queue, &area, back, &area, from, 0, 8, NULL, &error) != FERRY_OK ||
        row->exec->call(queue, count, &calls, &error) != FERRY_OK ||
        fy_exec_finish(row->exec, queue, &error) != FERRY_ERR_IO ||
        strstr(error.message, "FERRY_FAR_FAIL") == NULL || calls != 1 || back[0] != '\0' ||
        fy_exec_finish(row->exec, queue, &error) != FERRY_ERR_IO) {
        _exit(1);
    }
    row->exec->queue_close(queue);
    row->free(0, far, sizeof from);
}

/* The same of a copy in host order: it says what has failed. */
static void fail_copy(volatile char *memory)
{
    ferry_box boxes[2] = {FERRY_BOX_INIT, FERRY_BOX_INIT};
    ferry_error error = {.message = ""};
    char from[8] = "first";
    (void)memory;
    setenv("FERRY_FAR_FAIL", "1", 1);
    boxes[1].buffer = ferry_buffer_of(from, sizeof from);
    for (int i = 0; i < 2; i++) {
        boxes[i].n_dims = 1;
        boxes[i].length[0] = sizeof from;
        boxes[i].stride[0] = 1;
    }
    if (ferry_memory_alloc(NULL, FERRY_MEMORY_FAR, 0, sizeof from, &boxes[0].buffer, &error) !=
            FERRY_OK ||
        ferry_box_copy(&boxes[0], &boxes[1], NULL, NULL, &error) != FERRY_ERR_IO ||
        strstr(error.message, "FERRY_FAR_FAIL") == NULL ||
        ferry_box_copy(&boxes[0], &boxes[1], NULL, NULL, &error) != FERRY_OK) {
        _exit(1);
    }
    ferry_memory_free(&boxes[0].buffer);
}

static void test_failure(void **state)
{
    (void)state;
    assert_int_equal(end_of(fail_copy, NULL), 0);
    assert_int_equal(end_of(fail_second, NULL), 0);
}

/* By peer: how puts go from the host to far memory, from far memory to the host, and within it. */
static void test_choices(void **state)
{
    static const struct {
        ferry_peer_class peer;
        const char *engine;
        ferry_way to, from, within;
    } rows[] = {
        {FERRY_PEER_SELF, "", FERRY_WAY_DEVICE, FERRY_WAY_DEVICE, FERRY_WAY_DEVICE},
        {FERRY_PEER_THREAD, "inproc", FERRY_WAY_DEVICE, FERRY_WAY_DEVICE, FERRY_WAY_DEVICE},
        {FERRY_PEER_NODE, "shm", FERRY_WAY_NONE, FERRY_WAY_STAGED, FERRY_WAY_NONE},
    };
    const char *engine;
    ferry_way way;
    ferry_error error;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const ferry_way wanted[] = {FERRY_WAY_DIRECT, rows[i].to, rows[i].from, rows[i].within};
        for (uint32_t cell = 0; cell < 4; cell++) {
            ferry_memory_kind source = cell / 2 == 0 ? FERRY_MEMORY_HOST : FERRY_MEMORY_FAR;
            ferry_memory_kind target = cell % 2 == 0 ? FERRY_MEMORY_HOST : FERRY_MEMORY_FAR;
            check_status(rows[i].engine, FERRY_OK,
                         ferry_engine_choose(rows[i].peer, source, target, &engine, &way, &error),
                         &error);
            assert_string_equal(engine, rows[i].engine);
            assert_int_equal(way, wanted[cell]);
        }
    }
    /* An engine that says nothing of devices reaches the host alone. */
    static const fy_engine silent;
    assert_int_equal(fy_way_of(&silent, NULL, 0, FERRY_MEMORY_HOST, FERRY_MEMORY_FAR),
                     FERRY_WAY_NONE);
    assert_int_equal(fy_way_of(&silent, NULL, 0, FERRY_MEMORY_FAR, FERRY_MEMORY_HOST),
                     FERRY_WAY_STAGED);
    check_status("no kind", FERRY_ERR_UNSUPPORTED,
                 ferry_engine_choose(FERRY_PEER_NODE, FERRY_MEMORY_CUDA, FERRY_MEMORY_HOST, &engine,
                                     &way, &error),
                 &error);
    check_status("no kind there", FERRY_ERR_UNSUPPORTED,
                 ferry_engine_choose(FERRY_PEER_NODE, FERRY_MEMORY_HOST, FERRY_MEMORY_CUDA, &engine,
                                     &way, &error),
                 &error);
    check_status("no class", FERRY_ERR_MISUSE,
                 ferry_engine_choose(FERRY_PEER_CLASSES, FERRY_MEMORY_HOST, FERRY_MEMORY_HOST,
                                     &engine, &way, &error),
                 &error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failure), /* first: its child has this process's queues */
        cmocka_unit_test(test_touch),   cmocka_unit_test(test_order),
        cmocka_unit_test(test_wait),    cmocka_unit_test(test_sums_and_casts),
        cmocka_unit_test(test_devices), cmocka_unit_test(test_choices),
        cmocka_unit_test(test_buffers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
