/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of kinds of memory and of their verbs, each against its contract (memory/kind.h,
 * exec/exec.h) and against what is worked out here, byte by byte. The rows of all kinds that can be
 * had pass the same cases.
 */
#include "support/devices.h"

#include "exec/exec.h"
#include "exec/now.h"
#include "memory/kind.h"
#include "memory/local.h"

#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 5000, N = 300, GUARD = 64 };

typedef struct row {
    const fy_memory_kind *kind;
    const fy_exec *exec;
    int32_t device; /* the last one it has: a row that takes the first one instead is found out */
    fy_exec_queue *queue;
} row;

static ferry_error error;

static void open_row(uint32_t kind, row *r)
{
    must(fy_memory_get(kind, &r->kind, &error), &error);
    r->exec = r->kind->exec;
    r->device = r->kind->device_count() - 1;
    r->queue = NULL;
    must(r->exec->queue_open(r->device, NULL, &r->queue, &error), &error);
}

static void close_row(const row *r)
{
    r->exec->queue_close(r->queue);
}

static void finish(const row *r)
{
    must(fy_exec_finish(r->exec, r->queue, &error), &error);
}

static const fy_space host_space = {.kind = FERRY_MEMORY_HOST};

static fy_space space_of(const row *r)
{
    return (fy_space){.kind = r->kind->kind, .device = r->device};
}

/* Memory of the row, with a copy of what it holds in the host's. */
typedef struct block {
    void *base;
    unsigned char here[BYTES];
} block;

static void move(const row *r, void *to, const void *from, uint64_t bytes)
{
    fy_area area = fy_area_flat(0, bytes);
    must(r->exec->copy(r->queue, &area, to, &area, from, 0, bytes, NULL, &error), &error);
    finish(r);
}

static void take(const row *r, block *b, unsigned seed)
{
    must(r->kind->alloc(r->device, BYTES, &b->base, &error), &error);
    for (size_t i = 0; i < BYTES; i++) {
        b->here[i] = (unsigned char)(i * 37 + i / 200 + seed * 11);
    }
    move(r, b->base, b->here, BYTES);
}

static void check_block(const row *r, const block *b, const char *what)
{
    static unsigned char found[BYTES];
    move(r, found, b->base, BYTES);
    for (size_t i = 0; i < BYTES; i++) {
        check_at(found[i] == b->here[i], "%s, %s: byte %zu is %u, not %u", r->kind->name, what, i,
                 found[i], b->here[i]);
    }
}

static void drop(const row *r, const block *b)
{
    r->kind->free(r->device, b->base, BYTES);
}

/*
 * Kinds
 */

static void check_kind(const row *r)
{
    ferry_error why = {.message = ""};
    const char *name, *summary, *why_not;
    uint32_t n_devices;
    bool is_host = r->kind->kind == FERRY_MEMORY_HOST;
    assert_int_equal(r->kind->abi, FY_MEMORY_ABI);
    const fy_space others[] = {{.kind = FERRY_MEMORY_FAR, .device = r->device},
                               {.kind = FERRY_MEMORY_CUDA, .device = r->device}};
    assert_string_equal(r->kind->name, fy_memory_name(r->kind->kind));
    assert_true(r->kind->summary[0] != '\0');
    assert_int_equal(r->kind->cpu_access, is_host);
    assert_true(r->kind->probe(why.message, sizeof why.message));
    if (r->kind->kind != FERRY_MEMORY_CUDA) { /* which has what the machine has */
        assert_int_equal(r->kind->device_count(), is_host ? 1 : 2);
    }
    must(ferry_memory_kind_at(r->kind->kind, &name, &summary, &n_devices, &why_not, &error),
         &error);
    assert_string_equal(name, r->kind->name);
    assert_string_equal(fy_memory_name(r->kind->kind), name);
    assert_int_equal(n_devices, r->kind->device_count());
    assert_string_equal(why_not, "");
    assert_true(r->exec->reaches(r->device, host_space));
    assert_true(r->exec->reaches(r->device, space_of(r)));
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        assert_int_equal(r->exec->reaches(r->device, others[i]), others[i].kind == r->kind->kind);
    }
    if (!is_host && r->device > 0) {
        assert_false(r->exec->reaches(0, space_of(r)));
        assert_false(r->exec->reaches(r->device, (fy_space){.kind = r->kind->kind, .device = 0}));
    }
}

static void check_missing(void)
{
    const fy_memory_kind *none;
    assert_int_equal(ferry_memory_kind_count(), 3);
    check_status("a kind too many", FERRY_ERR_UNSUPPORTED,
                 fy_memory_get(FY_N_MEMORY_KINDS, &none, &error), &error);
    check_says("a kind too many", "knows no memory of kind 3", &error);
    check_status("no such kind", FERRY_ERR_MISUSE,
                 ferry_memory_kind_at(3, NULL, NULL, NULL, NULL, &error), &error);
    assert_string_equal(fy_memory_name(FY_N_MEMORY_KINDS), "unknown");
    assert_string_equal(fy_memory_name(UINT32_MAX), "unknown");
    check_status("a device too many", FERRY_ERR_MISUSE,
                 fy_space_check((fy_space){.kind = FERRY_MEMORY_HOST, .device = 1}, "it", &error),
                 &error);
    check_says("a device too many", "it: there is no device 1 of kind host, only 1", &error);
}

/* How many of the process's mapped bytes there are: what is freed must not stay. */
static uint64_t mapped_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long long pages = 0;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu", &pages), 1);
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Odd lengths up to the last byte; freed in any order, and whole. */
static void check_allocations(const row *r)
{
    enum { PIECES = 9 };
    const uint64_t length = ((uint64_t)1 << 20) + 4097;
    void *pieces[PIECES];
    unsigned char last = 7, found = 0;
    uint64_t before = 0;
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < PIECES; i++) {
            must(fy_local_alloc(space_of(r), length, &pieces[i], &error), &error);
            assert_int_equal((uintptr_t)pieces[i] % 4096, 0);
            move(r, &found, (char *)pieces[i] + length - 1, 1);
            assert_int_equal(found, 0);
            move(r, (char *)pieces[i] + length - 1, &last, 1);
            move(r, &found, (char *)pieces[i] + length - 1, 1);
            assert_int_equal(found, 7);
        }
        for (int i = 0; i < PIECES; i++) {
            fy_memory_span span = {.bytes = 1};
            void *piece = pieces[(i * 4 + round) % PIECES];
            fy_space space = fy_memory_query((char *)piece + length - 1, &span);
            assert_true(fy_same_space(space, space_of(r)));
            assert_true(r->kind->query == NULL ||
                        (span.base == piece && span.bytes == length && span.device == r->device));
            assert_true(fy_local_free(piece));
            assert_false(fy_local_free(piece));
        }
        before = round == 0 ? mapped_bytes() : before;
    }
    /* Of 39 rounds nothing stays. */
    assert_true(mapped_bytes() < before + PIECES * length || device_is_real());
}

/* An address that is taken again is of another allocation, for who remembers the first. */
static void check_numbers(const row *r)
{
    fy_memory_span first = {.number = 0}, second = {.number = 0};
    void *one = NULL, *other = NULL;
    must(fy_local_alloc(space_of(r), 12345, &one, &error), &error);
    fy_memory_query((char *)one + 12344, &first);
    must(fy_local_alloc(space_of(r), 12345, &other, &error), &error);
    fy_memory_query(other, &second);
    assert_true(r->kind->query == NULL ? first.number == 0 && second.number == 0
                                       : first.number != second.number && first.number != 0);
    fy_local_free(one);
    must(fy_local_alloc(space_of(r), 12345, &one, &error), &error);
    fy_memory_query(one, &second);
    assert_true(r->kind->query == NULL || (second.number != 0 && first.number != second.number));
    fy_local_free(one);
    fy_local_free(other);
}

/*
 * Verbs
 */

static void check_flat(const row *r)
{
    block a, b;
    fy_area flat = fy_area_flat(0, BYTES);
    take(r, &a, 21);
    take(r, &b, 22);
    must(r->exec->copy(r->queue, &flat, b.base, &flat, a.base, 700, 900, NULL, &error), &error);
    finish(r);
    memcpy(b.here + 700, a.here + 700, 900);
    check_block(r, &b, "a part");
    drop(r, &a);
    drop(r, &b);
}

static void check_copy(const row *r)
{
    block a, b;
    uint64_t hash = 0, of_part = 0;
    take(r, &a, 1);
    take(r, &b, 2);
    /* 20 rows of 100 bytes, out of rows of 120 and into rows of 150; bytes 333 to 1733 of them. */
    const uint64_t length[2] = {20, 100}, wide[2] = {120, 1}, wider[2] = {150, 1};
    fy_area from, to;
    must(fy_area_make(7, 1, 2, length, wide, &from, &error), &error);
    must(fy_area_make(13, 1, 2, length, wider, &to, &error), &error);
    must(r->exec->copy(r->queue, &to, b.base, &from, a.base, 333, 1400, &hash, &error), &error);
    static unsigned char line[1400];
    for (uint64_t i = 0; i < 1400; i++) {
        uint64_t at = 333 + i;
        line[i] = a.here[7 + at / 100 * 120 + at % 100];
        b.here[13 + at / 100 * 150 + at % 100] = line[i];
    }
    finish(r);
    check_block(r, &b, "copy");
    fy_area flat = fy_area_flat(0, sizeof line);
    assert_int_equal(hash, fy_area_hash(&flat, line, 0, sizeof line));
    must(r->exec->hash(r->queue, &from, a.base, 333, 1400, &of_part, &error), &error);
    finish(r);
    assert_int_equal(of_part, hash);
    drop(r, &a);
    drop(r, &b);
}

static void check_cast(const row *r)
{
    block a, b;
    float *numbers = (float *)(void *)a.here;
    take(r, &a, 3);
    take(r, &b, 4);
    for (int i = 0; i < N; i++) {
        numbers[i] = (float)(i - 90); /* which bf16 holds */
    }
    move(r, a.base, a.here, BYTES);
    fy_area from = fy_area_flat(0, N * sizeof(float)), to = fy_area_flat(0, N * sizeof(uint16_t));
    fy_cast cast = {.from_kind = FERRY_F32, .to_kind = FERRY_BF16, .n_rows = 1, .n_columns = N};
    must(r->exec->cast(r->queue, &cast, &to, b.base, &from, a.base, 17, 200, NULL, &error), &error);
    const float scale = 2; /* matrices without rows have no elements, whatever their scales are */
    fy_cast empty = cast;
    empty.n_rows = 0;
    empty.has_plain_nans = true;
    empty.from_scales = (fy_cast_scales){.values = &scale, .block = {1, 1}};
    must(r->exec->cast(r->queue, &empty, &to, b.base, &from, a.base, 0, 0, NULL, &error), &error);
    for (int i = 17; i < 217; i++) {
        uint32_t bits;
        memcpy(&bits, &numbers[i], sizeof bits);
        uint16_t high = (uint16_t)(bits >> 16);
        memcpy(&b.here[2 * i], &high, sizeof high);
    }
    finish(r);
    check_block(r, &b, "cast");
    drop(r, &a);
    drop(r, &b);
}

static void check_sum(const row *r)
{
    block in[3], out[2];
    const void *sources[3];
    for (unsigned i = 0; i < 3; i++) {
        take(r, &in[i], 5 + i);
        for (unsigned k = 0; k < N; k++) {
            ((float *)(void *)in[i].here)[k] = (float)(k * (i + 1) + 7 * i);
        }
        move(r, in[i].base, in[i].here, BYTES);
        sources[i] = in[i].base;
    }
    take(r, &out[0], 8);
    take(r, &out[1], 9);
    fy_sum sum = {
        .sources = sources, .n_sources = 3, .targets = {out[0].base, out[1].base}, .n = N};
    must(r->exec->sum(r->queue, &sum, &error), &error);
    sources[0] = sources[1] = sources[2] = NULL; /* what describes work is read at the call */
    for (unsigned k = 0; k < N; k++) {
        ((float *)(void *)out[0].here)[k] = (float)(6 * k + 21);
        ((float *)(void *)out[1].here)[k] = (float)(6 * k + 21);
    }
    finish(r);
    check_block(r, &out[0], "sum");
    check_block(r, &out[1], "sum, second target");
    for (int i = 0; i < 3; i++) {
        drop(r, &in[i]);
    }
    drop(r, &out[0]);
    drop(r, &out[1]);
}

static void count(void *context)
{
    ++*(int *)context;
}

/* Takes so long that who does not wait is gone before. */
static void count_late(void *context)
{
    const struct timespec moment = {.tv_nsec = 5000000};
    nanosleep(&moment, NULL);
    count(context);
}

/* Another queue of the device does something: this one could have, too. */
static void pass_time(const row *r)
{
    fy_exec_queue *other;
    int n_calls = 0;
    must(r->exec->queue_open(r->device, NULL, &other, &error), &error);
    must(r->exec->call(other, count_late, &n_calls, &error), &error);
    must(fy_exec_finish(r->exec, other, &error), &error);
    r->exec->queue_close(other);
}

static void check_words(const row *r)
{
    static _Atomic uint64_t word;
    int n_calls = 0;
    fy_ticket ticket = 77;
    atomic_store(&word, 0);
    must(r->exec->word_set(r->queue, &word, 41, &error), &error);
    must(r->exec->word_wait(r->queue, &word, 40, &error), &error);
    must(r->exec->word_wait(r->queue, &word, 41, &error), &error);
    must(r->exec->call(r->queue, count, &n_calls, &error), &error);
    must(r->exec->mark(r->queue, &ticket, &error), &error);
    finish(r);
    assert_int_equal(atomic_load(&word), 41);
    assert_int_equal(n_calls, 1);
    must(r->exec->reached(r->queue, ticket, &error), &error);
    if (r->kind->kind == FERRY_MEMORY_HOST) {
        fy_exec_queue *adopted;
        assert_int_equal(ticket, 0); /* what costs nothing to ask for */
        check_status("a wait that would not end", FERRY_ERR_MISUSE,
                     r->exec->word_wait(NULL, &word, 42, &error), &error);
        check_says("a wait that would not end", "it is 41 and not yet 42", &error);
        check_status("a handle of the host", FERRY_ERR_MISUSE,
                     r->exec->queue_open(0, &word, &adopted, &error), &error);
    } else {
        for (int round = 0; round < 5; round++) { /* also where the device is late */
            atomic_store(&word, 41);
            must(r->exec->word_wait(r->queue, &word, 42, &error), &error);
            must(r->exec->mark(r->queue, &ticket, &error), &error);
            pass_time(r);
            assert_int_equal(r->exec->reached(r->queue, ticket, &error), FERRY_ERR_TIMEOUT);
            atomic_store(&word, 42);
            finish(r);
        }
    }
}

/* A queue that two have opened ends with the last of them, and keeps one order. */
static void check_adopted(const row *r)
{
    static _Atomic uint64_t gate;
    fy_exec_queue *own = NULL, *same = NULL;
    int n_calls = 0;
    atomic_store(&gate, 0);
    must(r->exec->queue_open(r->device, NULL, &own, &error), &error);
    must(r->exec->queue_open(r->device, own, &same, &error), &error);
    must(r->exec->word_wait(own, &gate, 1, &error), &error);
    must(r->exec->call(same, count_late, &n_calls, &error), &error);
    assert_int_equal(n_calls, 0);
    atomic_store(&gate, 1);
    r->exec->queue_close(own); /* waits */
    assert_int_equal(n_calls, 1);
    must(r->exec->call(same, count, &n_calls, &error), &error);
    r->exec->queue_close(same);
    assert_int_equal(n_calls, 2);
    check_status("a queue that is gone", FERRY_ERR_MISUSE,
                 r->exec->queue_open(r->device, own, &same, &error), &error);
}

/* What is freed while verbs have it stays until they are done. */
static void check_freed(const row *r)
{
    static _Atomic uint64_t gate;
    static unsigned char back[BYTES];
    block a;
    fy_area flat = fy_area_flat(0, BYTES);
    atomic_store(&gate, 0);
    take(r, &a, 12);
    must(r->exec->word_wait(r->queue, &gate, 1, &error), &error);
    must(r->exec->copy(r->queue, &flat, back, &flat, a.base, 0, BYTES, NULL, &error), &error);
    must(r->exec->copy(r->queue, &flat, a.base, &flat, a.here, 0, BYTES, NULL, &error), &error);
    drop(r, &a);
    atomic_store(&gate, 1);
    finish(r);
    assert_memory_equal(back, a.here, BYTES);
}

/* What a device makes of a copy whose sides overlap is not said: it is asked for none. */
static const fy_exec *exec_of_device;

static ferry_status copy_apart(fy_exec_queue *queue, const fy_area *to, void *to_base,
                               const fy_area *from, const void *from_base, uint64_t first,
                               uint64_t bytes, uint64_t *hash_out, ferry_error *why)
{
    uintptr_t there = (uintptr_t)to_base, here = (uintptr_t)from_base;
    if (there - here < bytes || here - there < bytes) {
        return fy_fail(why, FERRY_ERR_MISUSE, "a device is asked to copy what overlaps");
    }
    return exec_of_device->copy(queue, to, to_base, from, from_base, first, bytes, hash_out, why);
}

/* Moves that overlap, in both directions, as memmove makes them. */
static void check_overlaps(const row *r)
{
    block a;
    take(r, &a, 13);
    must(fy_move_now(space_of(r), (char *)a.base + 10, space_of(r), a.base, 1000, &error), &error);
    memmove(a.here + 10, a.here, 1000);
    check_block(r, &a, "moved up");
    must(fy_move_now(space_of(r), (char *)a.base + 5, space_of(r), (char *)a.base + 300, 1000,
                     &error),
         &error);
    memmove(a.here + 5, a.here + 300, 1000);
    check_block(r, &a, "moved down");
    for (uint64_t n = 0; n < 4; n++) { /* hardly any */
        must(
            fy_move_now(space_of(r), (char *)a.base + 2000 + 10 * n, host_space, a.here, n, &error),
            &error);
        memcpy(a.here + 2000 + 10 * n, a.here, n);
    }
    check_block(r, &a, "a few bytes");
    drop(r, &a);
}

static void check_overlaps_of_device(const row *r)
{
    fy_memory_kind kind = *r->kind;
    fy_exec exec = *r->exec;
    exec_of_device = r->exec;
    exec.copy = copy_apart;
    kind.exec = &exec;
    atomic_store(&fy_memory_rows[kind.kind], &kind);
    check_overlaps(r);
    atomic_store(&fy_memory_rows[kind.kind], r->kind);
}

/* The same of so many bytes that they are not copied by way of registers. */
static void check_long_overlaps(const row *r)
{
    enum { LONG = 3 << 20, SHIFT = 4096 + 32 };
    static unsigned char here[LONG], found[LONG];
    void *base;
    must(r->kind->alloc(r->device, LONG, &base, &error), &error);
    for (int up = 0; up < 2; up++) {
        for (size_t i = 0; i < LONG; i++) {
            here[i] = (unsigned char)(i * 31 + i / 253 + i / 65536);
        }
        move(r, base, here, LONG);
        size_t to = up ? SHIFT : 0, from = up ? 0 : SHIFT;
        must(fy_move_now(space_of(r), (char *)base + to, space_of(r), (char *)base + from,
                         LONG - SHIFT, &error),
             &error);
        memmove(here + to, here + from, LONG - SHIFT);
        move(r, found, base, LONG);
        assert_memory_equal(found, here, LONG);
    }
    r->kind->free(r->device, base, LONG);
}

/* Memory of CUDA devices is there where a driver is, and what is not there says why in a sentence.
 */
static void check_absent(uint32_t kind)
{
    ferry_buffer buffer = ferry_buffer_of(&error, 8);
    const char *name, *why_not;
    const fy_memory_kind *none;
    uint32_t n_devices = 9;
    must(ferry_memory_kind_at(kind, &name, NULL, &n_devices, &why_not, &error), &error);
    assert_string_equal(name, fy_memory_name(kind));
    assert_int_equal(n_devices, 0);
    assert_true(strlen(why_not) > 20);
    print_message("not here: %s\n", why_not);
    check_status(name, FERRY_ERR_UNSUPPORTED, fy_memory_get(kind, &none, &error), &error);
    check_says(name, "memory of kind cuda: ", &error);
    buffer.kind = kind;
    check_status("a buffer of it", FERRY_ERR_UNSUPPORTED, fy_buffer_check(&buffer, "run", &error),
                 &error);
}

static void check_all_of(uint32_t kind)
{
    row r;
    open_row(kind, &r);
    check_kind(&r);
    check_allocations(&r);
    check_numbers(&r);
    for (int round = 0; round < 3; round++) {
        check_copy(&r);
        check_flat(&r);
        check_cast(&r);
        check_sum(&r);
        check_words(&r);
        check_overlaps(&r);
    }
    check_long_overlaps(&r);
    if (kind != FERRY_MEMORY_HOST) {
        check_overlaps_of_device(&r);
        check_adopted(&r);
        check_freed(&r);
    }
    close_row(&r);
}

/* Whether there is a driver, real or not, is for who runs the test to say: see tests/device/. */
static bool has_cuda(void)
{
    const fy_memory_kind *kind;
    bool is_there = fy_memory_get(FERRY_MEMORY_CUDA, &kind, &error) == FERRY_OK;
    assert_true(is_there || getenv("FERRY_TEST_CUDA") == NULL);
    return is_there;
}

static void test_rows(void **state)
{
    (void)state;
    check_missing();
    check_all_of(FERRY_MEMORY_HOST);
    check_all_of(FERRY_MEMORY_FAR);
    if (has_cuda()) {
        check_all_of(FERRY_MEMORY_CUDA);
    } else {
        check_absent(FERRY_MEMORY_CUDA);
    }
}

/* Who is asked to move bytes: of what reaches both sides the target's, then the source's. */
static void test_choices(void **state)
{
    const fy_space far[2] = {{.kind = FERRY_MEMORY_FAR}, {.kind = FERRY_MEMORY_FAR, .device = 1}};
    (void)state;
    for (int d = 0; d < 2; d++) {
        assert_int_equal(fy_exec_for(host_space, far[d]).device, d);
        assert_int_equal(fy_exec_for(far[d], host_space).device, d);
        assert_int_equal(fy_exec_for(far[d], far[d]).device, d);
        assert_string_equal(fy_exec_for(host_space, far[d]).exec->name, "far");
        assert_string_equal(fy_exec_for(far[d], host_space).exec->name, "far");
        assert_null(fy_exec_for(far[d], far[1 - d]).exec);
    }
    assert_string_equal(fy_exec_for(host_space, host_space).exec->name, "cpu");
}

/* Freed memory beside memory that stays: what a pointer is of is found among many. */
static void check_queries(uint32_t kind)
{
    enum { PIECES = 12 };
    ferry_buffer pieces[PIECES], found;
    const fy_memory_kind *of_kind;
    must(fy_memory_get(kind, &of_kind, &error), &error);
    int n_devices = of_kind->device_count();
    for (int i = 0; i < PIECES; i++) {
        must(ferry_memory_alloc(NULL, (ferry_memory_kind)kind, i % n_devices,
                                (uint64_t)(i + 1) * 5000, &pieces[i], &error),
             &error);
        assert_int_equal(pieces[i].kind, kind);
        assert_int_equal(pieces[i].device, i % n_devices);
        assert_int_equal(pieces[i].bytes, (i + 1) * 5000);
    }
    for (int gone = 0; gone < PIECES; gone++) {
        int k = (gone * 5 + 3) % PIECES;
        void *old = pieces[k].base;
        ferry_memory_free(&pieces[k]);
        must(ferry_memory_query(old, &found, &error), &error);
        assert_true(found.kind == FERRY_MEMORY_HOST && found.base == old && found.bytes == 0);
        for (int i = 0; i < PIECES; i++) {
            for (uint64_t at = 0; pieces[i].base != NULL && at < pieces[i].bytes;
                 at += pieces[i].bytes - 1) {
                must(ferry_memory_query((char *)pieces[i].base + at, &found, &error), &error);
                assert_true(found.kind == kind && found.device == i % n_devices &&
                            found.base == pieces[i].base && found.bytes == pieces[i].bytes);
            }
            if (pieces[i].base != NULL) {
                must(ferry_memory_query((char *)pieces[i].base + pieces[i].bytes, &found, &error),
                     &error);
                assert_true(found.base != pieces[i].base);
            }
        }
    }
}

static void test_queries(void **state)
{
    (void)state;
    check_queries(FERRY_MEMORY_FAR);
    if (has_cuda()) {
        check_queries(FERRY_MEMORY_CUDA);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_queries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
