/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * `ferry bench transport`: ranks 0 and 1 measure, the others wait in the next collective call. All
 * ranks walk through the same lines; rank 0 says how often each is repeated.
 */
#include "bench.h"

#include "commands.h"
#include "steps.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const double PROBE_SECONDS = 0.3;

enum {
    WINDOW = 64,             /* messages between two flushes, */
    WINDOW_BYTES = 64 << 20, /* unless they are more bytes than these */
    FIRST_TURNS = 64,        /* samples before a line, which are not counted */
    FIRST_WINDOWS = 8,
    LEAST_SAMPLES = 8,
    MOST_SAMPLES = 100000,
    FLUSH_EVERY = 64
};

/* Words of the signal region, one for each side, on lines of their own. */
enum { SIGNAL_BYTES = 4096, WORD_OF_0 = 0, WORD_OF_1 = 512 };

typedef struct bench {
    const bench_request *request;
    ferry_world *world;
    ferry_transport *transport;
    ferry_region *data; /* what is put to and got from */
    ferry_region *signals;
    ferry_region *local;  /* registers own_bytes */
    void *own_bytes;      /* sources of puts, targets of gets */
    uint64_t own_n_bytes; /* of those, and of data */
    double *samples;
    uint64_t turn; /* of the signals */
    uint32_t rank;
    uint32_t peer; /* of ranks 0 and 1 */
    bench_report report;
} bench;

static ferry_buffer own(const bench *b, uint64_t offset, uint64_t bytes)
{
    ferry_buffer buffer = ferry_buffer_of((char *)b->own_bytes + offset, bytes);
    buffer.registration = b->local;
    return buffer;
}

/* ---- one sample of each test ---- */

static ferry_status send_turn(bench *b, uint64_t bytes, ferry_error *error)
{
    ferry_buffer source = own(b, 0, bytes);
    ferry_signal signal = {.region = b->signals,
                           .offset = b->rank == 0 ? WORD_OF_1 : WORD_OF_0,
                           .value = b->turn,
                           .op = FERRY_SIGNAL_SET};
    return ferry_transport_put_signal(b->transport, b->peer, b->data, 0, &source, &signal, NULL,
                                      error);
}

static ferry_status await_turn(bench *b, ferry_error *error)
{
    return ferry_transport_wait_signal(b->transport, b->signals,
                                       b->rank == 0 ? WORD_OF_0 : WORD_OF_1, FERRY_COMPARE_GE,
                                       b->turn, b->peer, -1, NULL, NULL, error);
}

/* There and back; half of it is the time of one way. */
static ferry_status sample_turn(bench *b, const bench_line *line, double *seconds_out,
                                ferry_error *error)
{
    b->turn++;
    double begin = bench_now();
    ferry_status status = b->rank == 0 ? send_turn(b, line->bytes, error) : await_turn(b, error);
    FY_THEN(status, b->rank == 0 ? await_turn(b, error) : send_turn(b, line->bytes, error));
    *seconds_out = (bench_now() - begin) / 2;
    if (status == FERRY_OK && b->turn % FLUSH_EVERY == 0) {
        status = ferry_transport_flush(b->transport, b->peer, NULL, error);
    }
    return status;
}

static ferry_status sample_barrier(bench *b, const bench_line *line, double *seconds_out,
                                   ferry_error *error)
{
    (void)line;
    double begin = bench_now();
    ferry_status status = ferry_world_barrier(b->world, error);
    *seconds_out = bench_now() - begin;
    return status;
}

static ferry_status sample_window(bench *b, const bench_line *line, double *seconds_out,
                                  ferry_error *error)
{
    ferry_status status = FERRY_OK;
    double begin = bench_now();
    for (uint32_t i = 0; i < line->window && status == FERRY_OK; i++) {
        uint64_t offset = i * line->bytes;
        ferry_buffer buffer = own(b, offset, line->bytes);
        status =
            line->test == BENCH_GET
                ? ferry_transport_get(b->transport, b->peer, b->data, offset, &buffer, NULL, error)
                : ferry_transport_put(b->transport, b->peer, b->data, offset, &buffer, NULL, error);
    }
    FY_THEN(status, ferry_transport_flush(b->transport, b->peer, NULL, error));
    *seconds_out = bench_now() - begin;
    return status;
}

/* ---- lines ---- */

typedef ferry_status (*sample_fn)(bench *b, const bench_line *line, double *seconds_out,
                                  ferry_error *error);

static sample_fn sample_of(bench_test test)
{
    switch (test) {
    case BENCH_PUT_SIGNAL:
    case BENCH_SIGNAL:
        return sample_turn;
    case BENCH_BARRIER:
        return sample_barrier;
    default:
        return sample_window;
    }
}

/* Of a sample that is half of what it took. */
static bool is_turn(bench_test test)
{
    return test == BENCH_PUT_SIGNAL || test == BENCH_SIGNAL;
}

static bool takes_part(const bench *b, bench_test test)
{
    switch (test) {
    case BENCH_BARRIER:
        return true;
    case BENCH_PUT:
    case BENCH_GET:
        return b->rank == 0;
    default:
        return b->rank < 2;
    }
}

static ferry_status sample(bench *b, const bench_line *line, size_t n, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < n && status == FERRY_OK && takes_part(b, line->test); i++) {
        status = sample_of(line->test)(b, line, &b->samples[i], error);
    }
    return status;
}

/* As many as fit into the time, by the last ones of the first few; rank 0 decides for all. */
static ferry_status agree_on_samples(bench *b, const bench_line *line, size_t *n_out,
                                     ferry_error *error)
{
    size_t n_first = line->test < BENCH_PUT ? FIRST_TURNS : FIRST_WINDOWS;
    double each = 1e-9;
    const void *said = NULL;
    size_t n_said = 0;
    ferry_status status = sample(b, line, n_first, error);
    for (size_t i = n_first / 2; i < n_first; i++) {
        each += b->samples[i] / (double)(n_first / 2) * (is_turn(line->test) ? 2 : 1);
    }
    double fit = b->request->seconds / each;
    uint64_t n = fit < LEAST_SAMPLES  ? LEAST_SAMPLES
                 : fit > MOST_SAMPLES ? MOST_SAMPLES
                                      : (uint64_t)fit;
    FY_THEN(status, ferry_world_broadcast(b->world, 0, &n, sizeof n, &said, &n_said, error));
    if (status == FERRY_OK) {
        memcpy(&n, said, sizeof n);
        *n_out = (size_t)n;
    }
    return status;
}

/* With both ranks putting at once, the sum of what each sees. */
static ferry_status add_rates(bench *b, bench_line *line, ferry_error *error)
{
    double mine[2] = {line->rate, line->slow_rate};
    double theirs[2][2];
    const void *all = NULL;
    FY_TRY(ferry_world_all_gather(b->world, mine, sizeof mine, &all, error));
    memcpy(theirs, all, sizeof theirs);
    line->rate = theirs[0][0] + theirs[1][0];
    line->slow_rate = theirs[0][1] + theirs[1][1];
    return FERRY_OK;
}

static ferry_status run_line(bench *b, bench_line *line, ferry_error *error)
{
    FY_TRY(agree_on_samples(b, line, &line->n, error));
    FY_TRY(ferry_world_barrier(b->world, error));
    FY_TRY(sample(b, line, line->n, error));
    if (takes_part(b, line->test)) {
        double bytes = (double)line->bytes * line->window;
        line->times = bench_sort_times(b->samples, line->n);
        line->rate = bytes / line->times.median;
        line->slow_rate = bytes / line->times.p99;
    }
    if (line->test == BENCH_BOTH_WAYS) {
        FY_TRY(add_rates(b, line, error));
    }
    if (b->rank == 0) {
        bench_report_line(&b->report, line);
    }
    return FERRY_OK;
}

static uint32_t window_of(uint64_t bytes)
{
    uint64_t fit = WINDOW_BYTES / bytes;
    return fit < 1 ? 1 : fit > WINDOW ? WINDOW : (uint32_t)fit;
}

static ferry_status run_sizes(bench *b, bench_test test, uint64_t least, uint64_t most,
                              ferry_error *error)
{
    ferry_status status = FERRY_OK;
    if (b->request->least != 0) {
        least = b->request->least;
        most = b->request->most;
    }
    for (uint64_t bytes = least; bytes <= most && status == FERRY_OK; bytes *= 2) {
        bench_line line = {
            .test = test, .bytes = bytes, .window = test >= BENCH_PUT ? window_of(bytes) : 1};
        status = run_line(b, &line, error);
    }
    return status;
}

/*
 * Rank 0 measures the copy rate while all others sleep: before each table anew, for the rate of a
 * shared machine drifts.
 */
static ferry_status probe(bench *b, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    if (b->rank == 0) {
        status = ferry_machine_probe(PROBE_SECONDS, &b->report.machine, error);
    }
    return status == FERRY_OK ? ferry_world_barrier(b->world, error) : status;
}

static ferry_status run_table(bench *b, bench_test test, ferry_error *error)
{
    const uint64_t latency_least = 8, latency_most = 64 << 10, rate_least = 64;
    if (test < BENCH_PUT) {
        return run_sizes(b, test, latency_least, latency_most, error);
    }
    if (test == BENCH_GET && !(b->report.capabilities & FERRY_CAN_GET)) {
        return FERRY_OK;
    }
    FY_TRY(probe(b, error));
    return run_sizes(b, test, rate_least, WINDOW_BYTES, error);
}

static ferry_status run_lines(bench *b, ferry_error *error)
{
    static const bench_test tables[] = {BENCH_PUT_SIGNAL, BENCH_PUT, BENCH_BOTH_WAYS, BENCH_GET};
    bench_line signal = {.test = BENCH_SIGNAL, .window = 1};
    bench_line barrier = {.test = BENCH_BARRIER, .window = 1};
    FY_TRY(run_line(b, &signal, error));
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        FY_TRY(run_table(b, tables[i], error));
    }
    return run_line(b, &barrier, error);
}

/* ---- begin and end ---- */

/* The longest window of the sizes that are asked for. */
static uint64_t region_bytes(const bench_request *r)
{
    uint64_t most = r->least != 0 ? r->most : WINDOW_BYTES;
    uint64_t full = WINDOW * most < WINDOW_BYTES ? WINDOW * most : WINDOW_BYTES;
    return most > full ? most : full;
}

static ferry_status allocate(bench *b, ferry_error *error)
{
    /* The others only hold memory because symmetric regions are of one size. */
    b->own_n_bytes = region_bytes(b->request);
    ferry_status status =
        ferry_region_alloc(b->transport, FERRY_MEMORY_HOST, 0, b->own_n_bytes, &b->data, error);
    FY_THEN(status, ferry_region_alloc(b->transport, FERRY_MEMORY_HOST, 0, SIGNAL_BYTES,
                                       &b->signals, error));
    if (status != FERRY_OK || b->rank > 1) {
        return status;
    }
    void *bytes = mmap(NULL, b->own_n_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (bytes == MAP_FAILED) {
        snprintf(error->message, sizeof error->message, "no memory for %llu bytes to send",
                 (unsigned long long)b->own_n_bytes);
        return FERRY_ERR_NO_MEMORY;
    }
    b->own_bytes = bytes;
    memset(bytes, 0x5a, b->own_n_bytes);
    ferry_buffer buffer = ferry_buffer_of(bytes, b->own_n_bytes);
    return ferry_region_register(b->transport, &buffer, &b->local, error);
}

/*
 * A core for each rank, as launchers bind them: left alone the kernel may keep two ranks that wake
 * each other on one core, and measures its own choice. A binding that is there already stays.
 */
static void bind_to_core(uint32_t rank)
{
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) {
        return;
    }
    uint32_t skip = rank % (uint32_t)CPU_COUNT(&allowed);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && skip-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            (void)sched_setaffinity(0, sizeof one, &one);
            return;
        }
    }
}

static ferry_status open_bench(bench *b, ferry_error *error)
{
    FY_TRY(ferry_world_create(NULL, &b->world, error));
    b->rank = ferry_world_rank(b->world);
    bind_to_core(b->rank);
    b->peer = b->rank == 0 ? 1 : 0;
    b->report.json = b->request->json;
    b->report.n_ranks = ferry_world_rank_count(b->world);
    if (b->report.n_ranks < 2) {
        snprintf(error->message, sizeof error->message,
                 "the world has one rank, and there is nothing to measure with less than two");
        return FERRY_ERR_INVALID_INPUT;
    }
    b->samples = calloc(MOST_SAMPLES, sizeof *b->samples);
    if (b->samples == NULL) {
        snprintf(error->message, sizeof error->message, "out of memory");
        return FERRY_ERR_NO_MEMORY;
    }
    ferry_status status =
        ferry_transport_open(b->world, b->request->transport, &b->transport, error);
    FY_THEN(status, allocate(b, error));
    FY_THEN(status, ferry_transport_get_peer(b->transport, b->peer, &b->report.engine,
                                             &b->report.capabilities, error));
    b->report.machine = (ferry_machine)FERRY_MACHINE_INIT;
    return status == FERRY_OK ? probe(b, error) : status;
}

static void close_bench(bench *b)
{
    ferry_region_free(b->local);
    ferry_region_free(b->signals);
    ferry_region_free(b->data);
    ferry_transport_close(b->transport);
    ferry_world_destroy(b->world);
    if (b->own_bytes != NULL) {
        munmap(b->own_bytes, b->own_n_bytes);
    }
    free(b->samples);
}

/*
 * Whether this rank tells why all fail: rank 0, which hears of every failure, unless it is itself
 * the one that is lost. Without a world, each only knows its own.
 */
static bool is_speaker(const bench *b)
{
    uint32_t culprit = FERRY_ANY_RANK;
    ferry_status failure =
        b->world == NULL ? FERRY_OK : ferry_world_state(b->world, &culprit, NULL);
    bool lost_0 = culprit == 0 && (failure == FERRY_ERR_PEER_LOST || failure == FERRY_ERR_TIMEOUT);
    return b->world == NULL || b->rank == (lost_0 ? 1u : 0u);
}

int bench_transport(const bench_request *request)
{
    ferry_error error;
    bench b = {.request = request};
    ferry_status status = open_bench(&b, &error);
    if (status == FERRY_OK && b.rank == 0) {
        bench_report_begin(&b.report);
    }
    FY_THEN(status, run_lines(&b, &error));
    if (status == FERRY_OK && b.rank == 0) {
        bench_report_end(&b.report);
    }
    bool says = status != FERRY_OK && is_speaker(&b);
    /* The world may be waiting for this rank, which has failed by itself. */
    if (status != FERRY_OK && b.world != NULL) {
        ferry_world_abort(b.world, error.message);
    }
    close_bench(&b);
    return status == FERRY_OK ? EXIT_DONE : says ? fail("bench", error.message) : EXIT_FAILED;
}
