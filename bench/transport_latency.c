/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Signals, small puts, barriers, the start of worlds, and what is measured beside other programs.
 */
#include "transport_bench.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_BYTES = 4096, WORD_OF_0 = 0, WORD_OF_1 = 512, RAW_OF_0 = 1024, RAW_OF_1 = 1536 };

/* ---- turns: there and back, half of it is one way ---- */

enum { N_TURNS = 2000, FIRST_TURNS = 200, LOOKS_PER_YIELD = 100000 };

typedef struct turns {
    ferry_region *data;
    ferry_region *words;
    const char *from;
    size_t bytes;
    uint64_t turn;
    double each[N_TURNS]; /* seconds one way */
} turns;

static size_t word_of(uint32_t rank)
{
    return rank == 0 ? WORD_OF_0 : WORD_OF_1;
}

static void send_turn(member *m, const turns *t)
{
    uint32_t peer = 1 - m->rank;
    member_raise(m, peer, t->data, t->from, t->bytes, t->words, word_of(peer), t->turn);
}

static void one_turn(member *m, turns *t)
{
    t->turn++;
    if (m->rank == 0) {
        send_turn(m, t);
    }
    member_await(m, t->words, word_of(m->rank), t->turn, 1 - m->rank);
    if (m->rank != 0) {
        send_turn(m, t);
    }
}

/* What two cores need for it: both words are mapped at both ranks. */
static void one_raw_turn(member *m, turns *t)
{
    uint32_t peer = 1 - m->rank;
    char *own = ferry_region_base(t->words);
    char *its = ferry_region_pointer(t->words, peer);
    _Atomic uint64_t *here = (void *)(own + (m->rank == 0 ? RAW_OF_0 : RAW_OF_1));
    _Atomic uint64_t *there = (void *)(its + (m->rank == 0 ? RAW_OF_1 : RAW_OF_0));
    unsigned n_look = 0;
    t->turn++;
    if (m->rank == 0) {
        atomic_store(there, t->turn);
    }
    while (atomic_load(here) < t->turn) {
        if (++n_look % LOOKS_PER_YIELD == 0) {
            sched_yield();
        }
    }
    if (m->rank != 0) {
        atomic_store(there, t->turn);
    }
}

static void measure_turns(member *m, turns *t, void (*turn)(member *m, turns *t), int n)
{
    member_barrier(m);
    for (int i = 0; i < FIRST_TURNS; i++) {
        turn(m, t);
    }
    double before = bench_now();
    for (int i = 0; i < n; i++) {
        turn(m, t);
        double after = bench_now();
        t->each[i] = (after - before) / 2;
        before = after;
    }
}

static void prepare_turns(member *m, turns *t)
{
    static const char source[64];
    *t = (turns){.data = member_alloc(m, WORDS_BYTES),
                 .words = member_alloc(m, WORDS_BYTES),
                 .from = source,
                 .bytes = m->bench->bytes};
}

/* ---- signal ---- */

static const char *const signal_series[] = {"us", "raw-us", "p99-us", "mean-us"};
enum { N_SIGNAL_SERIES = sizeof signal_series / sizeof signal_series[0] };

static double mean(const double *values, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        sum += values[i];
    }
    return sum / n;
}

static void run_signal(member *m)
{
    turns t;
    prepare_turns(m, &t);
    t.bytes = 8;
    for (int round = 0; round < m->bench->n_rounds; round++) {
        double values[N_SIGNAL_SERIES] = {0};
        measure_turns(m, &t, one_turn, N_TURNS);
        values[0] = bench_median(t.each, N_TURNS);
        values[2] = bench_part_of(t.each, N_TURNS, 0.99);
        values[3] = mean(t.each, N_TURNS);
        if (m->team->pinning != PIN_ONE) {
            measure_turns(m, &t, one_raw_turn, N_TURNS);
            values[1] = bench_median(t.each, N_TURNS);
        }
        for (int i = 0; i < N_SIGNAL_SERIES && m->rank == 0; i++) {
            m->results->values[0][i][round] = values[i] * 1e6;
        }
    }
}

void bench_signal(bench *b)
{
    static const struct {
        const char *name;
        team team;
    } cases[] = {
        {"shm, a core each", {.engine = "shm", .pinning = PIN_AFTER}},
        {"shm, a core each before joining", {.engine = "shm", .pinning = PIN_BEFORE}},
        {"shm, free", {.engine = "shm"}},
        {"shm, both on one core", {.engine = "shm", .pinning = PIN_ONE}},
        {"inproc, a core each", {.is_threads = true, .pinning = PIN_AFTER}},
        {"inproc, free", {.is_threads = true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        team plan = cases[i].team;
        plan.n_ranks = 2;
        plan.run = run_signal;
        const results *r = team_run(b, &plan);
        if (r != NULL) {
            report(b, cases[i].name, r, 0, signal_series, N_SIGNAL_SERIES, b->n_rounds);
        }
    }
}

/* ---- rate: many small puts ---- */

static const char *const rate_series[] = {"8-B-million/s", "64-B-million/s", "signals-million/s"};
enum { N_RATE_SERIES = sizeof rate_series / sizeof rate_series[0], N_SMALL = 20000 };

static double small_puts(member *m, turns *t, int series)
{
    size_t bytes = series == 1 ? 64 : 8;
    double begin = bench_now();
    for (size_t i = 0; i < N_SMALL; i++) {
        if (series == 2) {
            member_raise(m, 1, t->data, t->from, bytes, t->words, WORD_OF_1, i);
        } else {
            member_put(m, 1, t->data, i * 64 % WORDS_BYTES, t->from, bytes);
        }
    }
    member_flush(m, 1);
    return N_SMALL / (bench_now() - begin) * 1e-6;
}

static void run_rate(member *m)
{
    turns t;
    prepare_turns(m, &t);
    for (int round = -1; round < m->bench->n_rounds && m->rank == 0; round++) {
        for (int series = 0; series < N_RATE_SERIES; series++) {
            double rate = small_puts(m, &t, series);
            m->results->values[0][series][round < 0 ? 0 : round] = rate;
        }
    }
    member_barrier(m);
}

void bench_rate(bench *b)
{
    team shm = {.n_ranks = 2, .engine = "shm", .pinning = PIN_AFTER, .run = run_rate};
    team inproc = {.n_ranks = 2, .is_threads = true, .pinning = PIN_AFTER, .run = run_rate};
    const results *r = team_run(b, &shm);
    if (r != NULL) {
        report(b, "shm", r, 0, rate_series, N_RATE_SERIES, b->n_rounds);
    }
    r = team_run(b, &inproc);
    if (r != NULL) {
        report(b, "inproc", r, 0, rate_series, N_RATE_SERIES, b->n_rounds);
    }
}

/* ---- barrier ---- */

static const char *const barrier_series[] = {"us", "p99-us", "mean-us"};
enum { N_BARRIER_SERIES = sizeof barrier_series / sizeof barrier_series[0], N_BARRIERS = 300 };

static void run_barrier(member *m)
{
    double each[N_BARRIERS];
    for (int round = -1; round < m->bench->n_rounds; round++) {
        double before = bench_now();
        for (int i = 0; i < N_BARRIERS; i++) {
            member_barrier(m);
            double after = bench_now();
            each[i] = after - before;
            before = after;
        }
        double values[N_BARRIER_SERIES] = {bench_median(each, N_BARRIERS),
                                           bench_part_of(each, N_BARRIERS, 0.99),
                                           mean(each, N_BARRIERS)};
        for (int i = 0; i < N_BARRIER_SERIES && m->rank == 0; i++) {
            m->results->values[0][i][round < 0 ? 0 : round] = values[i] * 1e6;
        }
    }
}

void bench_barrier(bench *b)
{
    static const uint32_t worlds[] = {2, 4, 8, 16, 32, 64};
    for (size_t w = 0; w < 2 * sizeof worlds / sizeof worlds[0]; w++) {
        bool threads = w >= sizeof worlds / sizeof worlds[0];
        team plan = {.n_ranks = worlds[w % (sizeof worlds / sizeof worlds[0])],
                     .is_threads = threads,
                     .is_bare = true,
                     .run = run_barrier};
        char name[64];
        snprintf(name, sizeof name, "%u %s", plan.n_ranks, threads ? "threads" : "processes");
        const results *r = team_run(b, &plan);
        if (r != NULL) {
            report(b, name, r, 0, barrier_series, N_BARRIER_SERIES, b->n_rounds);
        }
    }
}

/* ---- start ---- */

static const char *const start_series[] = {"made-s", "ended-s"};

/* The last rank's time counts: each leaves the clock when its world is made. */
static void run_start(member *m)
{
    m->results->values[m->rank / MAX_ROUNDS][0][m->rank % MAX_ROUNDS] = bench_now();
}

static double last_of(const results *r, uint32_t n_ranks)
{
    double last = 0;
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        double t = r->values[rank / MAX_ROUNDS][0][rank % MAX_ROUNDS];
        last = t > last ? t : last;
    }
    return last;
}

void bench_start(bench *b)
{
    static const uint32_t worlds[] = {8, 16, 64, 128, 256};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        team plan = {.n_ranks = worlds[w], .is_bare = true, .run = run_start};
        results r = {0};
        int n_rounds = b->n_rounds < 5 ? b->n_rounds : 5;
        char name[64];
        bool is_good = true;
        for (int round = 0; round < n_rounds && is_good; round++) {
            double begin = bench_now();
            const results *times = team_run(b, &plan);
            is_good = times != NULL;
            if (is_good) {
                r.values[0][0][round] = last_of(times, worlds[w]) - begin;
                r.values[0][1][round] = bench_now() - begin;
            }
        }
        snprintf(name, sizeof name, "%u ranks", worlds[w]);
        if (is_good) {
            report(b, name, &r, 0, start_series, 2, n_rounds);
        }
    }
}

/* ---- beside a peer's program: one engine, one size, as that program does it ---- */

static const char *const stream_series[] = {"MiB/s"};
static const char *const turn_series[] = {"us", "mean-us", "p99-us"};

/* The same bytes to the same place again and again, then a flush. */
static double stream(member *m, ferry_region *region, const char *from, int count)
{
    double begin = bench_now();
    for (int i = 0; i < count; i++) {
        member_put(m, 1, region, 0, from, m->bench->bytes);
    }
    member_flush(m, 1);
    return (double)m->bench->bytes * count / (bench_now() - begin) / (double)MIB;
}

/* The target waits for a word that is raised at the end. */
static void run_stream(member *m)
{
    ferry_region *region = member_alloc(m, m->bench->bytes);
    ferry_region *words = member_alloc(m, WORDS_BYTES);
    if (m->rank == 0) {
        char *from = member_map(m, m->bench->bytes, false);
        stream(m, region, from, m->bench->count / 8 + 2);
        for (int round = 0; round < m->bench->n_rounds; round++) {
            m->results->values[0][0][round] = stream(m, region, from, m->bench->count);
        }
        member_raise(m, 1, region, NULL, 0, words, WORD_OF_1, 1);
        member_flush(m, 1);
    } else {
        member_await(m, words, WORD_OF_1, 1, 0);
    }
}

static void run_turn(member *m)
{
    turns t;
    prepare_turns(m, &t);
    for (int round = 0; round < m->bench->n_rounds; round++) {
        measure_turns(m, &t, one_turn, N_TURNS);
        m->results->values[0][0][round] = bench_median(t.each, N_TURNS) * 1e6;
        m->results->values[0][1][round] = mean(t.each, N_TURNS) * 1e6;
        m->results->values[0][2][round] = bench_part_of(t.each, N_TURNS, 0.99) * 1e6;
    }
}

static void beside(bench *b, void (*run)(member *m), const char *const *series, int n_series)
{
    team plan = {.n_ranks = 2, .engine = b->engine, .pinning = b->pinning, .run = run};
    char name[64];
    snprintf(name, sizeof name, "%.32s %zu B", b->engine, b->bytes);
    const results *r = team_run(b, &plan);
    if (r != NULL) {
        report(b, name, r, 0, series, n_series, b->n_rounds);
    }
}

void bench_stream(bench *b)
{
    beside(b, run_stream, stream_series, 1);
}

void bench_turn(bench *b)
{
    beside(b, run_turn, turn_series, 3);
}
