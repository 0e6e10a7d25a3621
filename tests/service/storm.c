/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * service_storm [--row shm|ucx|nodes] [--seed N] [--count N]
 *
 * Worlds whose ranks move versions of a model, are killed, stopped, or end the world, and go on by
 * ferry_service_recover_onto. A seed is a case: how many ranks, how they commit, check and reach
 * each other, who is hurt, how, from which phase on. When all that are left have made the last
 * version, those that were stopped wake up and come to their end; then every byte of the others is
 * looked at again. Byte for byte a version is what byte_of says, and no sum of the library's. In
 * half of the cases destinations also have codes of values whose blocks several ranks have rows of,
 * more than what waits for being quantized holds at once, and values of codes.
 *
 * What moment a rank is hurt at depends on the machine, everything else on the seed. A case counts
 * only if its harm was felt: where nobody was hurt in time, or nobody who was stopped woke, it does
 * not, and a storm in which too few cases count fails.
 */
#include "support/required.h"

#include <ferry/ferry.h>

#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 8, N_TENSORS = 2, N_VERSIONS = 6, PATIENCE_S = 100 };

/* Of what is converted, at each target: rows, in blocks that sources have 2 and 6 rows of. */
enum { ROWS = 4104, COLUMNS = 640, HIGH = 8, WIDE = 64, N_HALVES = 2 };
enum { N_SCALES = ROWS / HIGH * (COLUMNS / WIDE), N_ELEMENTS = ROWS * COLUMNS };

/* How a rank of the storm ends: what it did not survive is no failure. */
enum { WELL = 0, WRONG = 1, LEFT_OUT = 7, NOTHING_LEFT = 8, NO_WORLD = 9, UNAVAILABLE = 77 };

enum { JOINING = 1, OPENING, SCHEDULING, RUNNING, RECOVERING = RUNNING + 3 };
/* TRAP is a stop in the middle of a copy: where the library reads a certain page of a source. */
typedef enum harm { KILL, STOP, BLINK, ABORT, N_HARMS, TRAP } harm;

/* What a seed says. */
typedef struct storm_case {
    uint64_t seed;
    uint32_t n_ranks, n_sources, first_target, n_targets; /* the rest is spare */
    uint32_t commit, checksum, paths, n_threads;
    bool plain; /* destinations in memory of malloc */
    bool converts;
    uint64_t row_bytes;
    uint32_t n_victims;
    struct {
        uint32_t rank;
        harm how;
        uint32_t phase; /* from which on, */
        uint32_t us;    /* and so long after it */
        uint32_t blink_us;
    } victims[3];
} storm_case;

/* What processes tell each other. */
typedef struct shared {
    _Atomic uint32_t phase[MOST_RANKS];
    _Atomic uint32_t done[MOST_RANKS];      /* all versions are made */
    _Atomic uint32_t recovered[MOST_RANKS]; /* times that it went on after a failure */
    _Atomic uint32_t aborts[MOST_RANKS];
    _Atomic uint32_t traps[MOST_RANKS];
    _Atomic uint32_t is_over; /* nobody is hurt any more: it is enough soon */
    _Atomic uint32_t look;    /* once more, for all are awake */
} shared;

static storm_case the_case;
static const char *row_engines;
static bool reads_by_kernel; /* the engines of the row */
static bool row_is_shared;   /* without a network: values come band by band */
static shared *all;
static uint32_t me;

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint32_t below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(next_random(state) % n);
}

static void draw(uint64_t seed)
{
    uint64_t r = seed * 1000003;
    the_case = (storm_case){.seed = seed};
    storm_case *c = &the_case;
    c->n_sources = 2 + below(&r, 2);
    c->n_targets = 1 + below(&r, 3);
    c->first_target = below(&r, 2) ? c->n_sources : below(&r, c->n_sources);
    uint32_t end = c->first_target + c->n_targets;
    c->n_ranks = (end > c->n_sources ? end : c->n_sources) + below(&r, 2);
    c->commit = below(&r, 2) ? FERRY_COMMIT_SWAP : FERRY_COMMIT_IN_PLACE;
    c->checksum = below(&r, 3);
    c->paths = below(&r, 4) == 0 ? (uint32_t)FERRY_PATH_STAGED : 0;
    c->n_threads = 1 + below(&r, 2);
    c->plain = below(&r, 4) == 0;
    c->row_bytes = ((uint64_t)1 << (14 + below(&r, 7))) + 8 * below(&r, 100);
    c->converts = seed % 2 == 0;
    if (c->converts) { /* two halves of the rows, of each two replicas */
        c->n_sources = 2 * N_HALVES;
        c->first_target = c->first_target < c->n_sources ? c->first_target : c->n_sources;
        c->n_ranks = MOST_RANKS - 1;
    }
    c->n_victims = 1u + (below(&r, 3) == 0) + (below(&r, 6) == 0);
    for (uint32_t v = 0; v < c->n_victims; v++) {
        c->victims[v].rank = below(&r, c->n_ranks);
        c->victims[v].how = below(&r, 5) < 3 ? STOP : (harm)below(&r, N_HARMS);
        c->victims[v].phase = 1 + below(&r, RECOVERING);
        c->victims[v].us = below(&r, 2) ? below(&r, 3000) : below(&r, 30000);
        c->victims[v].blink_us = below(&r, 2500000);
        /* What reads by the kernel would get an error instead. */
        if (!reads_by_kernel && c->victims[v].rank < c->n_sources && c->victims[v].how == STOP) {
            c->victims[v].how = TRAP;
            c->n_threads = 1; /* the library's threads take no signals */
        }
        /* Nobody recovers before somebody was hurt. */
        if ((c->victims[v].phase < RUNNING && below(&r, 2)) ||
            (v == 0 && c->victims[v].phase == RECOVERING)) {
            c->victims[v].phase = RUNNING + below(&r, 3);
        }
    }
}

/*
 * A rank
 */

typedef struct own_rank {
    ferry_world *world;
    ferry_service *service;
    ferry_spec *spec;
    ferry_tensors *sources, *targets;
    unsigned char *source[N_TENSORS];
    ferry_buffer target[N_TENSORS][2];
    float *values, *scales_of_codes; /* that codes are made of, and that codes are values by */
    unsigned char *codes;
    uint64_t source_bytes, target_bytes;
    uint64_t next, version;
    bool is_source, is_target;
} own_rank;

static own_rank own;
static pthread_mutex_t world_lock = PTHREAD_MUTEX_INITIALIZER; /* against the one who aborts */

_Noreturn static void end_wrong(const char *what, const char *why)
{
    fprintf(stderr, "seed %llu: rank %u: %s: %s\n", (unsigned long long)the_case.seed, (unsigned)me,
            what, why);
    _exit(WRONG);
}

static void must(ferry_status status, const ferry_error *error, const char *what)
{
    if (status != FERRY_OK) {
        end_wrong(what, error->message);
    }
}

static void reach(uint32_t phase)
{
    if (atomic_load(&all->phase[me]) < phase) {
        atomic_store(&all->phase[me], phase);
    }
}

/* Word i of a tensor. */
static uint64_t word_of(uint64_t version, uint32_t tensor, uint64_t i)
{
    return (version * 0x9e3779b97f4a7c15u ^ (i + 1) * 0xbf58476d1ce4e5b9u) + tensor;
}

enum { PAGE = 4096 };

static bool is_filling;

static void open_sources(void)
{
    for (uint32_t t = 0; t < N_TENSORS; t++) {
        mprotect(own.source[t], own.source_bytes, PROT_READ | PROT_WRITE);
    }
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    bool is_mine = false;
    for (uint32_t t = 0; own.is_source && t < N_TENSORS; t++) {
        const unsigned char *at = info->si_addr;
        is_mine = is_mine || (at >= own.source[t] && at < own.source[t] + own.source_bytes);
    }
    if (!is_mine) { /* a fault of the library: where it was, for who reads the log */
        static const char text[] = "a rank reads or writes what is not there:\n";
        void *frames[48];
        ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
        backtrace_symbols_fd(frames, backtrace(frames, n > 0 ? 48 : 0), STDERR_FILENO);
        _exit(WRONG);
    }
    if (!is_filling) {
        kill(getpid(), SIGSTOP);
    }
    open_sources();
}

static unsigned char *map_source(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    void *map =
        mmap(NULL, own.source_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaction(SIGSEGV, &action, NULL);
    return map == MAP_FAILED ? NULL : map;
}

/* Once, a page in the middle of what each destination gets. */
static void lay_trap(void)
{
    if (atomic_exchange(&all->traps[me], 0) == 0) {
        return;
    }
    for (uint32_t t = 0; own.is_source && t < N_TENSORS; t++) {
        for (uint32_t r = 0; r < the_case.n_targets; r++) {
            uint64_t at = r * own.target_bytes + own.target_bytes / 2;
            mprotect(own.source[t] + at / PAGE * PAGE, PAGE, PROT_NONE);
        }
    }
}

/* All elements of a block, but for their signs; and the scale of a block of codes. */
static float value_of(uint64_t version, uint64_t block)
{
    return (float)((version + 1) * 448 * (1 + block % 97));
}

static bool is_negative(uint64_t version, uint64_t i)
{
    return (i * 2654435761u >> 7 ^ version) % 2 != 0;
}

static uint64_t block_of(uint64_t i)
{
    return i / COLUMNS / HIGH * (COLUMNS / WIDE) + i % COLUMNS / WIDE;
}

/* The first rows of a half: the cut lies within blocks. */
static uint64_t rows_before(uint32_t half)
{
    return half == 0 ? 0 : half == N_HALVES ? ROWS : ROWS / 2 - 2;
}

static void fill_converted(uint64_t version)
{
    uint32_t half = me % N_HALVES;
    uint64_t first = rows_before(half) * COLUMNS, end = rows_before(half + 1) * COLUMNS;
    for (uint64_t i = first; i < end; i++) {
        float value = value_of(version, block_of(i));
        own.values[i - first] = is_negative(version, i) ? -value : value;
        own.codes[i - first] = is_negative(version, i) ? 0xfe : 0x7e;
    }
    for (uint64_t i = 0; i < N_SCALES; i++) {
        own.scales_of_codes[i] = (float)(version + 1 + i % 97);
    }
}

/* Element i of a destination: codes of the largest magnitude, their scales, or values. */
static bool is_converted(const ferry_destination *found, uint64_t i)
{
    uint64_t version = found->version;
    bool is_minus = is_negative(version, i);
    if (strcmp(found->name, "q") == 0) {
        return ((const unsigned char *)found->buffer.base)[i] == (is_minus ? 0xfe : 0x7e);
    }
    float has = ((const float *)found->buffer.base)[i];
    if (strcmp(found->name, "q.s") == 0) {
        return has == value_of(version, i) / 448;
    }
    return has == (is_minus ? -448.0f : 448.0f) * (float)(version + 1 + block_of(i) % 97);
}

static void look_at_converted(const ferry_destination *found, const char *when)
{
    uint64_t n = strcmp(found->name, "q.s") == 0 ? N_SCALES : N_ELEMENTS;
    for (uint64_t i = 0; i < n; i++) {
        if (!is_converted(found, i)) {
            char text[160];
            snprintf(text, sizeof text, "element %llu of %.8s is not that of version %llu",
                     (unsigned long long)i, found->name, (unsigned long long)found->version);
            end_wrong(when, text);
        }
    }
}

static void fill(uint64_t version)
{
    if (own.is_source && the_case.converts) {
        fill_converted(version);
    }
    is_filling = true;
    for (uint32_t t = 0; own.is_source && t < N_TENSORS; t++) {
        uint64_t *at = (uint64_t *)(void *)own.source[t];
        for (uint64_t i = 0; i < own.source_bytes / 8; i++) {
            at[i] = word_of(version, t, i);
        }
    }
    is_filling = false;
    lay_trap();
}

/* All that the service calls valid is whole, and of the version that it says. */
static uint32_t look(const char *when)
{
    uint32_t n_valid = 0;
    ferry_error error;
    for (uint64_t d = 0; d < ferry_service_destination_count(own.service); d++) {
        ferry_destination found = FERRY_DESTINATION_INIT;
        must(ferry_service_destination_at(own.service, d, &found, &error), &error, when);
        uint32_t t = (uint32_t)strtoul(found.name + 1, NULL, 10);
        uint64_t first = (me - the_case.first_target) * own.target_bytes / 8;
        const uint64_t *at = found.buffer.base;
        if (found.state != FERRY_TENSOR_VALID) {
            continue;
        }
        n_valid++;
        if (found.name[0] != 't') {
            look_at_converted(&found, when);
            continue;
        }
        for (uint64_t i = 0; i < own.target_bytes / 8; i++) {
            if (at[i] != word_of(found.version, t, first + i)) {
                char text[160];
                snprintf(text, sizeof text, "word %llu of t%u is not that of version %llu",
                         (unsigned long long)i, (unsigned)t, (unsigned long long)found.version);
                end_wrong(when, text);
            }
        }
    }
    return n_valid;
}

static uint32_t n_destinations(void)
{
    return N_TENSORS + (the_case.converts ? 3 : 0);
}

static void expect_version(uint64_t version, const char *when)
{
    if (ferry_service_version(own.service) < own.version ||
        (version > 0 && ferry_service_version(own.service) != version)) {
        end_wrong(when, "the version is another one, or went back");
    }
    own.version = ferry_service_version(own.service);
    if (look(when) < (version > 0 && own.is_target ? n_destinations() : 0)) {
        end_wrong(when, "a destination is not valid");
    }
}

static ferry_buffer take(uint64_t bytes)
{
    return ferry_buffer_of(calloc(bytes, 1), bytes);
}

static void list_converted(void)
{
    static const char *const names[] = {"q", "q.s", "d"};
    const uint64_t bytes[] = {N_ELEMENTS, N_SCALES * sizeof(float), N_ELEMENTS * sizeof(float)};
    uint32_t half = me % N_HALVES;
    uint64_t n = (rows_before(half + 1) - rows_before(half)) * COLUMNS;
    ferry_buffer has[] = {take(n * sizeof(float)), take(n), take(N_SCALES * sizeof(float))};
    static const char *const sources[] = {"q", "d", "d.s"};
    ferry_error error;
    own.values = has[0].base;
    own.codes = has[1].base;
    own.scales_of_codes = has[2].base;
    for (int i = 0; i < 3; i++) {
        ferry_buffer front = take(bytes[i]), back = take(bytes[i]);
        ferry_status status = FERRY_OK;
        if (own.is_source) {
            status = ferry_tensors_add(own.sources, sources[i], &has[i], &error);
        }
        if (status == FERRY_OK && own.is_target) {
            status = the_case.commit == FERRY_COMMIT_SWAP
                         ? ferry_tensors_add_pair(own.targets, names[i], &front, &back, &error)
                         : ferry_tensors_add(own.targets, names[i], &front, &error);
        }
        must(status, &error, "a tensor that is converted");
    }
}

static void list_tensors(ferry_transport *transport)
{
    ferry_error error;
    char name[16];
    must(ferry_tensors_create(&own.sources, &error), &error, "tensors");
    must(ferry_tensors_create(&own.targets, &error), &error, "tensors");
    if (the_case.converts) {
        list_converted();
    }
    for (uint32_t t = 0; t < N_TENSORS; t++) {
        snprintf(name, sizeof name, "t%u", (unsigned)t);
        if (own.is_source) {
            own.source[t] = map_source();
            ferry_buffer source = ferry_buffer_of(own.source[t], own.source_bytes);
            must(ferry_tensors_add(own.sources, name, &source, &error), &error, "a source");
        }
        for (uint32_t i = 0; own.is_target && i < 2; i++) {
            ferry_buffer *target = &own.target[t][i];
            if (the_case.plain) {
                *target = ferry_buffer_of(malloc(own.target_bytes), own.target_bytes);
            } else if (ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, own.target_bytes, target,
                                          &error) != FERRY_OK) {
                _exit(NO_WORLD); /* the world has failed meanwhile */
            }
        }
        if (own.is_target && the_case.commit == FERRY_COMMIT_SWAP) {
            must(ferry_tensors_add_pair(own.targets, name, &own.target[t][0], &own.target[t][1],
                                        &error),
                 &error, "a pair");
        } else if (own.is_target) {
            must(ferry_tensors_add(own.targets, name, &own.target[t][0], &error), &error,
                 "a destination");
        }
    }
}

static void make_spec(void)
{
    static const char tensors[] =
        ", {\"name\": \"q\", \"shape\": [4104, 640], \"dtype\": \"f32\"}, {\"name\": \"d\", "
        "\"shape\": [4104, 640], \"dtype\": \"f8e4m3\"}, {\"name\": \"d.s\", \"shape\": [513, 10],"
        " \"dtype\": \"f32\"}";
    static const char sources[] = "{\"match\": \"q\", \"shard\": [{\"dim\": 0, \"axis\": \"half\", "
                                  "\"sizes\": [2050, 2054]}]}, "
                                  "{\"match\": \"d\", \"shard\": [{\"dim\": 0, \"axis\": \"half\", "
                                  "\"sizes\": [2050, 2054]}]}, ";
    static const char targets[] =
        "{\"match\": \"q\", \"quantize\": {\"format\": \"f8e4m3\", \"block\": [8, 64], \"scale\": "
        "\"*.s\"}}, {\"match\": \"d\", \"dtype\": \"f32\", \"dequantize\": {\"scale\": \"*.s\", "
        "\"block\": [8, 64]}}, {\"match\": \"d.s\", \"skip\": true}, ";
    const storm_case *c = &the_case;
    char text[1400], halves[40] = "";
    ferry_error error;
    if (c->converts) {
        snprintf(halves, sizeof halves, ", [\"half\", %d]", (int)N_HALVES);
    }
    int n = snprintf(
        text, sizeof text,
        "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"t{0}\", \"count\": [%d],"
        " \"shape\": [%u, %llu], \"dtype\": \"bytes:8\"}%s],"
        "\"source\": {\"mesh\": [[\"dp\", %u]%s], \"rules\": [%s{\"match\": \"*\"}]},"
        "\"destination\": {\"mesh\": [[\"tp\", %u]], \"first_rank\": %u, \"rules\": "
        "[%s{\"match\": \"t*\", \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}]}}",
        (int)N_TENSORS, (unsigned)c->n_targets, (unsigned long long)c->row_bytes / 8,
        c->converts ? tensors : "", c->converts ? c->n_sources / N_HALVES : c->n_sources, halves,
        c->converts ? sources : "", (unsigned)c->n_targets, (unsigned)c->first_target,
        c->converts ? targets : "");
    must(ferry_spec_parse(text, (size_t)n, "storm", &own.spec, &error), &error, "the spec");
}

/* Waits for the word of the parent, and ends the world. */
static void *abort_on_demand(void *context)
{
    (void)context;
    for (uint32_t seen = 0;;) {
        struct timespec pause = {.tv_nsec = 200000};
        nanosleep(&pause, NULL);
        if (atomic_load(&all->aborts[me]) > seen) {
            seen = atomic_load(&all->aborts[me]);
            pthread_mutex_lock(&world_lock);
            if (own.world != NULL) {
                ferry_world_abort(own.world, "the storm");
            }
            pthread_mutex_unlock(&world_lock);
        }
    }
    return NULL;
}

/* Who has lost all that had its bytes, or some of them, or all that wanted them, has nothing to do
 * any more. */
static bool is_pointless(void)
{
    bool has_source[N_HALVES] = {false}, has_target = false;
    for (uint32_t r = 0; r < ferry_world_rank_count(own.world); r++) {
        uint32_t member = ferry_world_member_of(own.world, r);
        if (member < the_case.n_sources) {
            has_source[member % N_HALVES] = true;
        }
        has_target = has_target || (member >= the_case.first_target &&
                                    member < the_case.first_target + the_case.n_targets);
    }
    bool has_any = has_source[0] || has_source[1], has_all = has_source[0] && has_source[1];
    return !(the_case.converts ? has_all : has_any) || !has_target;
}

/* The world is replaced under its lock, for another thread may be about to end it. */
static void recover(void)
{
    ferry_recovery_options options = FERRY_RECOVERY_OPTIONS_INIT;
    ferry_recovery recovery = FERRY_RECOVERY_INIT;
    ferry_error error = {""};
    options.spec = own.spec;
    reach(RECOVERING);
    pthread_mutex_lock(&world_lock);
    ferry_world *world = own.world;
    own.world = NULL;
    pthread_mutex_unlock(&world_lock);
    ferry_status status = ferry_service_recover_onto(&own.service, &world, &options, own.sources,
                                                     own.targets, &recovery, &error);
    pthread_mutex_lock(&world_lock);
    own.world = world;
    pthread_mutex_unlock(&world_lock);
    atomic_fetch_add(&all->recovered[me], 1);
    if (status != FERRY_OK) {
        look("after a recovery that failed");
        if (status == FERRY_ERR_INVALID_PLAN && !is_pointless()) {
            end_wrong("a recovery", error.message);
        }
        _exit(status == FERRY_ERR_INVALID_PLAN ? NOTHING_LEFT : LEFT_OUT);
    }
    expect_version(0, "after a recovery");
    if (recovery.whole > 0 && own.is_target && look("what is whole") < n_destinations()) {
        end_wrong("what is whole", "a destination is not valid");
    }
    own.next = recovery.next;
}

static ferry_status open_all(ferry_error *error)
{
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    ferry_plan *plan = NULL;
    options.engines = row_engines;
    options.commit = the_case.commit;
    options.checksum = the_case.checksum;
    options.paths = the_case.paths;
    options.n_threads = the_case.n_threads;
    options.memory_cap = the_case.converts && row_is_shared ? 6 << 20 : 0;
    must(ferry_plan_create(own.spec, NULL, &plan, error), error, "the plan");
    must(ferry_service_create(own.world, &options, &own.service, error), error, "the service");
    ferry_status status = ferry_service_init(own.service, FERRY_LOG_OFF, error);
    if (status == FERRY_OK) {
        reach(SCHEDULING);
        list_tensors(ferry_service_transport(own.service));
        must(ferry_service_bind(own.service, plan, own.sources, own.targets, error), error, "bind");
    }
    ferry_plan_destroy(plan);
    return status;
}

/* Whether this was the last version, by the word of the first rank. */
static ferry_status ask(uint64_t made, bool *last_out, ferry_error *error)
{
    const void *word;
    size_t n_bytes;
    uint32_t last = made >= N_VERSIONS && atomic_load(&all->is_over) != 0;
    ferry_status status =
        ferry_world_broadcast(own.world, 0, &last, sizeof last, &word, &n_bytes, error);
    if (status == FERRY_OK) {
        memcpy(&last, word, sizeof last);
        *last_out = last != 0;
    }
    return status;
}

static void move_versions(void)
{
    ferry_error error = {""};
    ferry_status status = ferry_service_schedule(own.service, &error);
    own.next = 1;
    for (bool last = false; !last;) {
        if (status != FERRY_OK) {
            look("after a failure");
            recover();
        }
        reach(RUNNING + (own.next > 3 ? 2u : own.next > 1));
        fill(own.next);
        status = ferry_service_run(own.service, NULL, &error);
        if (status == FERRY_OK) {
            expect_version(own.next++, "after a run");
            status = ask(own.next - 1, &last, &error);
        }
    }
}

_Noreturn static void be_rank(const char *folder)
{
    char path[160];
    ferry_error error = {""};
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    pthread_t thread;
    options.deadline_seconds = 1;
    options.join_seconds = 5;
    own.is_source = me < the_case.n_sources;
    own.is_target = me >= the_case.first_target && me < the_case.first_target + the_case.n_targets;
    own.target_bytes = the_case.row_bytes / 8 * 8;
    own.source_bytes = own.target_bytes * the_case.n_targets;
    snprintf(path, sizeof path, "%s/meet", folder);
    make_spec();
    reach(JOINING);
    if (ferry_world_create_from_file(path, me, the_case.n_ranks, &options, &own.world, &error) !=
            FERRY_OK ||
        pthread_create(&thread, NULL, abort_on_demand, NULL) != 0) {
        _exit(NO_WORLD);
    }
    reach(OPENING);
    ferry_status status = open_all(&error);
    if (status != FERRY_OK) {
        _exit(status == FERRY_ERR_UNSUPPORTED ? UNAVAILABLE : NO_WORLD); /* nothing to recover */
    }
    move_versions();
    atomic_store(&all->done[me], 1);
    while (atomic_load(&all->look) == 0) {
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
    }
    look("after everybody woke");
    _exit(WELL);
}

/*
 * The parent
 */

typedef struct child {
    pid_t pid;
    bool has_ended, was_killed, is_stopped;
    int status;
} child;

static child children[MOST_RANKS];

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void reap(void)
{
    for (uint32_t r = 0; r < the_case.n_ranks; r++) {
        child *c = &children[r];
        c->has_ended = c->has_ended || waitpid(c->pid, &c->status, WNOHANG) == c->pid;
    }
}

static bool stops_itself(uint32_t r)
{
    child *c = &children[r];
    int status = 0;
    if (!c->has_ended && waitpid(c->pid, &status, WNOHANG | WUNTRACED) == c->pid) {
        c->is_stopped = WIFSTOPPED(status);
        c->has_ended = !c->is_stopped;
        c->status = status;
    }
    return c->is_stopped;
}

static void pause_us(long us)
{
    struct timespec pause = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    nanosleep(&pause, NULL);
}

static void signal_child(uint32_t r, int number)
{
    reap();
    if (!children[r].has_ended) {
        kill(children[r].pid, number);
    }
}

static bool is_settled(uint32_t r)
{
    return children[r].has_ended || children[r].is_stopped || atomic_load(&all->done[r]) != 0;
}

/* The phase of a rank, or its end, or that of everything. */
static void await_phase(uint32_t r, uint32_t phase, int64_t until)
{
    for (;;) {
        reap();
        if (atomic_load(&all->phase[r]) >= phase || is_settled(r) || now_ms() > until) {
            return;
        }
        pause_us(50);
    }
}

static void hurt(uint32_t v, int64_t until)
{
    uint32_t r = the_case.victims[v].rank;
    int64_t limit = now_ms() + 5000; /* of a phase that need not come: before any harm all do */
    await_phase(r, the_case.victims[v].phase, v == 0 || limit > until ? until : limit);
    pause_us((long)the_case.victims[v].us);
    if (is_settled(r)) {
        return;
    }
    switch (the_case.victims[v].how) {
    case KILL:
        signal_child(r, SIGKILL);
        children[r].was_killed = true;
        break;
    case TRAP:
        atomic_store(&all->traps[r], 1);
        limit = now_ms() + 5000; /* after a recovery others may send what this rank would have */
        while (!stops_itself(r) && !is_settled(r) && now_ms() < limit) {
            pause_us(200);
        }
        break;
    case ABORT:
        atomic_fetch_add(&all->aborts[r], 1);
        break;
    case BLINK:
        signal_child(r, SIGSTOP);
        pause_us((long)the_case.victims[v].blink_us);
        signal_child(r, SIGCONT);
        break;
    default:
        signal_child(r, SIGSTOP);
        children[r].is_stopped = true;
    }
}

/* False: not all are settled in time. A trap may spring when nobody waits for it any more. */
static bool await_all(bool ended, int64_t until)
{
    for (;;) {
        bool all_there = true;
        reap();
        for (uint32_t r = 0; r < the_case.n_ranks; r++) {
            bool stopped = stops_itself(r);
            if (stopped && ended) {
                children[r].is_stopped = false;
                kill(children[r].pid, SIGCONT);
            }
            all_there = all_there && (ended ? children[r].has_ended : stopped || is_settled(r));
        }
        if (all_there || now_ms() > until) {
            return all_there;
        }
        pause_us(500);
    }
}

typedef struct tally {
    uint32_t n_cases, n_hurt, n_woken, n_recovered, n_well, n_failed;
    bool is_unavailable;
} tally;

static bool check_ends(tally *t)
{
    bool fine = true;
    uint32_t n_well = 0;
    for (uint32_t r = 0; r < the_case.n_ranks; r++) {
        int status = children[r].status;
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && children[r].was_killed;
        t->is_unavailable = t->is_unavailable || code == UNAVAILABLE;
        n_well += code == WELL;
        if (!killed && code != WELL && code != LEFT_OUT && code != NOTHING_LEFT &&
            code != NO_WORLD && code != UNAVAILABLE) {
            fprintf(stderr, "seed %llu: rank %u ended with status %#x\n",
                    (unsigned long long)the_case.seed, (unsigned)r, (unsigned)status);
            fine = false;
        }
    }
    t->n_well += n_well > 0;
    return fine;
}

static void start_all(const char *folder)
{
    fflush(NULL);
    for (uint32_t r = 0; r < the_case.n_ranks; r++) {
        children[r] = (child){.pid = fork()};
        if (children[r].pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            me = r;
            be_rank(folder);
        }
    }
}

static void end_all(void)
{
    for (uint32_t r = 0; r < the_case.n_ranks; r++) {
        if (!children[r].has_ended) {
            fprintf(stderr, "seed %llu: rank %u hangs in phase %u\n",
                    (unsigned long long)the_case.seed, (unsigned)r,
                    (unsigned)atomic_load(&all->phase[r]));
            kill(children[r].pid, SIGKILL);
            waitpid(children[r].pid, &children[r].status, 0);
        }
    }
}

static void run_case(uint64_t seed, tally *t)
{
    char folder[] = "/tmp/ferry-storm-XXXXXX", path[64];
    draw(seed);
    memset(all, 0, sizeof *all);
    if (mkdtemp(folder) == NULL) {
        perror("mkdtemp");
        exit(1);
    }
    start_all(folder);
    int64_t until = now_ms() + PATIENCE_S * 1000;
    uint32_t n_stopped = 0, n_recovered = 0;
    for (uint32_t v = 0; v < the_case.n_victims; v++) {
        hurt(v, until);
    }
    atomic_store(&all->is_over, 1);
    bool fine = await_all(false, until);
    for (uint32_t r = 0; r < the_case.n_ranks; r++) {
        n_recovered += atomic_load(&all->recovered[r]) > 0 && !children[r].is_stopped;
        n_stopped += children[r].is_stopped && !children[r].has_ended;
        if (children[r].is_stopped) {
            kill(children[r].pid, SIGCONT);
        }
    }
    /* Who wakes comes to its end, or makes the versions by itself, before the others look. */
    for (uint32_t r = 0; r < the_case.n_ranks; r++) {
        children[r].is_stopped = false;
    }
    fine = await_all(false, until) && fine;
    atomic_store(&all->look, 1);
    fine = await_all(true, until) && fine;
    end_all();
    fine = check_ends(t) && fine;
    t->n_cases++;
    t->n_hurt += n_recovered > 0;
    t->n_woken += n_recovered > 0 && n_stopped > 0;
    t->n_recovered += n_recovered;
    t->n_failed += !fine;
    snprintf(path, sizeof path, "%s/meet", folder);
    unlink(path);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    const char *row = "shm";
    uint64_t seed = 1, count = 12;
    tally t = {0};
    for (int i = 1; i + 1 < argc; i += 2) {
        row = strcmp(argv[i], "--row") == 0 ? argv[i + 1] : row;
        seed = strcmp(argv[i], "--seed") == 0 ? strtoull(argv[i + 1], NULL, 10) : seed;
        count = strcmp(argv[i], "--count") == 0 ? strtoull(argv[i + 1], NULL, 10) : count;
    }
    row_is_shared = strcmp(row, "shm") == 0;
    if (strcmp(row, "ucx") == 0) {
        row_engines = "ucx";
        reads_by_kernel = true;
        setenv("UCX_LOG_LEVEL", "fatal", 0);
        setenv("UCX_TLS", "tcp,self", 0);
    } else if (strcmp(row, "nodes") == 0) {
        reads_by_kernel = true;
        setenv("FERRY_NODES", "2", 1);
        setenv("UCX_LOG_LEVEL", "fatal", 0);
        setenv("UCX_TLS", "tcp,self", 0);
    }
    void *map = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    all = map;
    for (uint64_t i = 0; i < count && !t.is_unavailable; i++) {
        run_case(seed + i, &t);
    }
    if (t.is_unavailable) {
        bool is_wrong = is_required("ucx");
        printf("%s: row %s: the engine ucx cannot run here\n", is_wrong ? "FAILED" : "SKIPPED",
               row);
        return is_wrong ? 1 : UNAVAILABLE;
    }
    printf(
        "row %s, seeds %llu to %llu: %u cases, %u felt a harm, in %u of them a rank woke that had "
        "been given up; %u ranks recovered, %u cases failed\n",
        row, (unsigned long long)seed, (unsigned long long)(seed + count - 1), (unsigned)t.n_cases,
        (unsigned)t.n_hurt, (unsigned)t.n_woken, (unsigned)t.n_recovered, (unsigned)t.n_failed);
    bool enough = count == 1 || (t.n_hurt >= count / 4 && t.n_woken > 0 && t.n_well >= count / 4);
    if (!enough) {
        printf("too few cases count\n");
    }
    return t.n_failed > 0 || !enough;
}
