/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts on one machine beside what they cannot beat: copies that one process does in memory of its
 * own, and the system call that reaches another process. All walk through the same sources and
 * through as much memory of their own at the other side, more than caches hold.
 */
#include "transport_bench.h"

#include "host/copy.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static const size_t pass_bytes = 128 * MIB;

/* One way to move bytes from the common source. */
typedef struct mover mover;
typedef void move_fn(mover *by, size_t offset, size_t bytes);
struct mover {
    move_fn *move;
    member *member;
    const char *from;
    char *to;             /* private memory, or an address of the peer's */
    ferry_region *region; /* of the peer */
    pid_t pid;
};

static void move_put(mover *by, size_t offset, size_t bytes)
{
    member_put(by->member, 1, by->region, offset, by->from + offset, bytes);
}

static void move_streaming(mover *by, size_t offset, size_t bytes)
{
    fy_copy_streaming(by->to + offset, by->from + offset, bytes);
}

static void move_libc(mover *by, size_t offset, size_t bytes)
{
    memcpy(by->to + offset, by->from + offset, bytes);
}

static void move_attach(mover *by, size_t offset, size_t bytes)
{
    struct iovec here = {.iov_base = (char *)(uintptr_t)by->from + offset, .iov_len = bytes};
    struct iovec there = {.iov_base = by->to + offset, .iov_len = bytes};
    if (process_vm_writev(by->pid, &here, 1, &there, 1, 0) != (ssize_t)bytes) {
        perror("bench_transport: process_vm_writev");
        _exit(1);
    }
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void plain_avx512(char *to, const char *from, size_t n)
{
    for (size_t at = 0; at < n; at += 64) {
        _mm512_stream_si512((void *)(to + at), _mm512_loadu_si512(from + at));
    }
}

static void plain_sse2(char *to, const char *from, size_t n)
{
    for (size_t at = 0; at < n; at += 16) {
        _mm_stream_si128((__m128i *)(void *)(to + at),
                         _mm_loadu_si128((const __m128i *)(const void *)(from + at)));
    }
}
#endif

/* Streaming stores, one page after the other: what one writes first. Whole pages only. */
static void move_plain(mover *by, size_t offset, size_t bytes)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        plain_avx512(by->to + offset, by->from + offset, bytes);
    } else {
        plain_sse2(by->to + offset, by->from + offset, bytes);
    }
    _mm_sfence();
#else
    memcpy(by->to + offset, by->from + offset, bytes);
#endif
}

/*
 * Goes on where the one before it stopped, so that nobody finds its source in a cache. A first part
 * does not count: what the one before left in the caches goes to memory meanwhile.
 */
static double gbytes_per_s(mover *by, size_t bytes, size_t *at_inout)
{
    const bench *b = by->member->bench;
    size_t at = *at_inout;
    size_t count = bytes >= pass_bytes ? 1 : pass_bytes / bytes;
    size_t n_first = (count + 3) / 4;
    double begin = 0;
    for (size_t i = 0; i < n_first + count; i++) {
        if (i == n_first) {
            begin = b->is_busy ? bench_own_time() : bench_now();
        }
        at = at + bytes > b->memory ? 0 : at;
        by->move(by, at, bytes);
        at += bytes;
    }
    if (by->region != NULL) {
        member_flush(by->member, 1);
    }
    double end = b->is_busy ? bench_own_time() : bench_now();
    *at_inout = at;
    return (double)(bytes * count) / (end - begin) * 1e-9;
}

/* What a copy leaves in the caches slows down the next one, so nobody always follows the same. */
static void shuffle(int *order, int n, uint64_t *state)
{
    for (int i = 0; i < n; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        int with = (int)((*state >> 33) % (uint64_t)(i + 1));
        order[i] = order[with];
        order[with] = i;
    }
}

/* In turns. The first two rounds do not count. */
static void compare(member *m, mover *movers, int n_movers, const size_t *sizes, int n_sizes)
{
    int order[MAX_SERIES];
    size_t place = 0;
    uint64_t state = 1;
    for (int i = 0; i < n_movers; i++) {
        for (size_t at = 0; at < m->bench->memory; at += 64 * MIB) {
            movers[i].move(&movers[i], at, 64 * MIB);
        }
    }
    for (int s = 0; s < n_sizes; s++) {
        for (int round = -2; round < m->bench->n_rounds; round++) {
            shuffle(order, n_movers, &state);
            for (int turn = 0; turn < n_movers; turn++) {
                int i = order[turn];
                double rate = gbytes_per_s(&movers[i], sizes[s], &place);
                m->results->values[s][i][round < 0 ? 0 : round] = rate;
            }
        }
    }
}

static void report_sizes(bench *b, const char *what, const results *r, const char *const *series,
                         int n_series, const size_t *sizes, int n_sizes)
{
    for (int s = 0; s < n_sizes && r != NULL; s++) {
        char name[64];
        snprintf(name, sizeof name, "%s %zu KiB", what, sizes[s] >> 10);
        report(b, name, r, s, series, n_series, b->n_rounds);
    }
}

/* ---- put: symmetric memory ---- */

static const size_t put_sizes[] = {1 * MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 64 * MIB};
enum { N_PUT_SIZES = sizeof put_sizes / sizeof put_sizes[0] };

static const char *const put_series[] = {"put", "streaming", "streaming-huge", "plain", "libc"};
enum { N_PUT_SERIES = sizeof put_series / sizeof put_series[0] };

static void run_put(member *m)
{
    ferry_region *region = member_alloc(m, m->bench->memory);
    if (m->rank == 0) {
        char *from = member_map(m, m->bench->memory, false);
        mover movers[N_PUT_SERIES] = {
            {.move = move_put, .region = region},
            {.move = move_streaming, .to = member_map(m, m->bench->memory, false)},
            {.move = move_streaming, .to = member_map(m, m->bench->memory, true)},
            {.move = move_plain, .to = member_map(m, m->bench->memory, false)},
            {.move = move_libc, .to = member_map(m, m->bench->memory, false)},
        };
        for (int i = 0; i < N_PUT_SERIES; i++) {
            movers[i].member = m;
            movers[i].from = from;
        }
        compare(m, movers, N_PUT_SERIES, put_sizes, N_PUT_SIZES);
    }
    member_barrier(m);
}

void bench_put(bench *b)
{
    team shm = {.n_ranks = 2, .engine = "shm", .pinning = PIN_AFTER, .run = run_put};
    team inproc = {.n_ranks = 2, .is_threads = true, .pinning = PIN_AFTER, .run = run_put};
    report_sizes(b, "shm", team_run(b, &shm), put_series, N_PUT_SERIES, put_sizes, N_PUT_SIZES);
    report_sizes(b, "inproc", team_run(b, &inproc), put_series, N_PUT_SERIES, put_sizes,
                 N_PUT_SIZES);
}

/* ---- attach: plain memory of the peer ---- */

static const size_t attach_sizes[] = {256 << 10, 512 << 10, 1 * MIB,  2 * MIB, 4 * MIB,
                                      8 * MIB,   16 * MIB,  32 * MIB, 64 * MIB};
enum { N_ATTACH_SIZES = sizeof attach_sizes / sizeof attach_sizes[0] };

static const char *const attach_series[] = {"put-registered", "process_vm_writev", "put-symmetric"};
enum { N_ATTACH_SERIES = sizeof attach_series / sizeof attach_series[0] };

/* What rank 1 tells rank 0. */
typedef struct card {
    uint8_t key[FERRY_KEY_BYTES];
    size_t key_bytes;
    char *base;
    pid_t pid;
} card;

static void run_attach(member *m)
{
    ferry_region *symmetric = member_alloc(m, m->bench->memory);
    char *memory = member_map(m, m->bench->memory, false);
    ferry_region *own = member_register(m, memory, m->bench->memory);
    ferry_region *its = NULL;
    card mine = {.base = memory, .pid = getpid()}, theirs;
    const void *all = NULL;
    ferry_error error;
    member_check(m, ferry_region_export(own, mine.key, sizeof mine.key, &mine.key_bytes, &error),
                 &error);
    member_check(m, ferry_world_all_gather(m->world, &mine, sizeof mine, &all, &error), &error);
    memcpy(&theirs, (const char *)all + sizeof mine, sizeof theirs);
    if (m->rank == 0) {
        member_check(m,
                     ferry_region_import(m->transport, theirs.key, theirs.key_bytes, &its, &error),
                     &error);
        mover movers[N_ATTACH_SERIES] = {
            {.move = move_put, .region = its},
            {.move = move_attach, .to = theirs.base, .pid = theirs.pid},
            {.move = move_put, .region = symmetric},
        };
        for (int i = 0; i < N_ATTACH_SERIES; i++) {
            movers[i].member = m;
            movers[i].from = memory;
        }
        compare(m, movers, N_ATTACH_SERIES, attach_sizes, N_ATTACH_SIZES);
    }
    member_barrier(m);
}

void bench_attach(bench *b)
{
    team shm = {.n_ranks = 2, .engine = "shm", .pinning = PIN_BEFORE, .run = run_attach};
    report_sizes(b, "shm", team_run(b, &shm), attach_series, N_ATTACH_SERIES, attach_sizes,
                 N_ATTACH_SIZES);
}

/* ---- all-to-all: more ranks than cores ---- */

enum { N_ALL = 4 };

static const size_t each_bytes = 32 * MIB; /* for each peer, in a round */
static const size_t all_sizes[] = {64 << 10, 1 * MIB, 8 * MIB};
static const char *const all_series[] = {"put", "streaming"};
enum { N_ALL_SIZES = sizeof all_sizes / sizeof all_sizes[0] };

static void all_put(member *m, ferry_region *region, const char *from, size_t bytes)
{
    for (size_t at = 0; at < each_bytes; at += bytes) {
        for (uint32_t step = 1; step < N_ALL; step++) {
            uint32_t peer = (m->rank + step) % N_ALL;
            member_put(m, peer, region, m->rank * each_bytes + at, from + peer * each_bytes + at,
                       bytes);
        }
    }
    member_flush(m, FERRY_ANY_RANK);
}

static void all_copy(const member *m, char *to, const char *from, size_t bytes)
{
    for (size_t at = 0; at < each_bytes; at += bytes) {
        for (uint32_t step = 1; step < N_ALL; step++) {
            uint32_t peer = (m->rank + step) % N_ALL;
            fy_copy_streaming(to + m->rank * each_bytes + at, from + peer * each_bytes + at, bytes);
        }
    }
}

static void run_all_to_all(member *m)
{
    ferry_region *region = member_alloc(m, N_ALL * each_bytes);
    char *from = member_map(m, N_ALL * each_bytes, false);
    char *to = member_map(m, N_ALL * each_bytes, false);
    for (int s = 0; s < N_ALL_SIZES; s++) {
        for (int round = -2; round < m->bench->n_rounds; round++) {
            for (int series = 0; series < 2; series++) {
                member_barrier(m);
                double begin = bench_now();
                if (series == 0) {
                    all_put(m, region, from, all_sizes[s]);
                } else {
                    all_copy(m, to, from, all_sizes[s]);
                }
                member_barrier(m);
                double bytes = (double)(N_ALL * (N_ALL - 1) * each_bytes);
                if (m->rank == 0) {
                    m->results->values[s][series][round < 0 ? 0 : round] =
                        bytes / (bench_now() - begin) * 1e-9;
                }
            }
        }
    }
}

void bench_all_to_all(bench *b)
{
    team shm = {.n_ranks = N_ALL, .engine = "shm", .pinning = PIN_NONE, .run = run_all_to_all};
    report_sizes(b, "shm, 4 ranks,", team_run(b, &shm), all_series, 2, all_sizes, N_ALL_SIZES);
}

/* ---- alloc: what memory costs before and at its first use ---- */

static const char *const alloc_series[] = {"alloc-s/GiB", "memfd-s/GiB", "first-put-s/GiB",
                                           "next-put-s/GiB", "free-s/GiB"};
enum { N_ALLOC_SERIES = sizeof alloc_series / sizeof alloc_series[0] };

static double put_all(member *m, ferry_region *region, const char *from, size_t bytes)
{
    double begin = bench_now();
    for (size_t at = 0; at < bytes; at += 16 * MIB) {
        member_put(m, 1 - m->rank, region, at, from + at, 16 * MIB);
    }
    member_flush(m, 1 - m->rank);
    return bench_now() - begin;
}

/* The least that shared memory costs: a file in memory, mapped, with all its pages made. */
static double make_file(const member *m, size_t bytes)
{
    double begin = bench_now();
    int fd = memfd_create("bench_transport", MFD_CLOEXEC);
    char *map = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0) {
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (map == MAP_FAILED) {
        perror("bench_transport: shared memory");
        _exit(1);
    }
    if (madvise(map, bytes, MADV_POPULATE_WRITE) != 0) {
        memset(map, (int)m->rank, bytes);
    }
    double seconds = bench_now() - begin;
    munmap(map, bytes);
    close(fd);
    return seconds;
}

static void run_alloc(member *m)
{
    size_t bytes = m->bench->memory;
    char *from = member_map(m, bytes, false);
    double gbytes = (double)bytes / (double)(1024 * MIB);
    for (int round = -1; round < m->bench->n_rounds; round++) {
        double seconds[N_ALLOC_SERIES];
        member_barrier(m);
        seconds[1] = make_file(m, bytes);
        member_barrier(m);
        double begin = bench_now();
        ferry_region *region = member_alloc(m, bytes);
        seconds[0] = bench_now() - begin;
        seconds[2] = put_all(m, region, from, bytes);
        seconds[3] = put_all(m, region, from, bytes);
        member_barrier(m);
        begin = bench_now();
        ferry_region_free(region);
        seconds[4] = bench_now() - begin;
        for (int i = 0; i < N_ALLOC_SERIES && m->rank == 0; i++) {
            m->results->values[0][i][round < 0 ? 0 : round] = seconds[i] / gbytes;
        }
    }
}

void bench_alloc(bench *b)
{
    team shm = {.n_ranks = 2, .engine = "shm", .pinning = PIN_NONE, .run = run_alloc};
    const results *r = team_run(b, &shm);
    if (r != NULL) {
        report(b, "shm, 2 ranks at once", r, 0, alloc_series, N_ALLOC_SERIES, b->n_rounds);
    }
}
