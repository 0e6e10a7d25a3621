/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions of a model move while ranks join, die and are stopped: before a control message or some
 * time into a run; many stop while the world grows, and half of those that stop wake. Members 0 and
 * 1 have the weights, four others want halves of them, in two replicas; two of these join later,
 * and in the place of those that were lost. Whoever lives goes on as the guide to the service says,
 * by ledgers. At each step what a service calls valid is compared with what that version has, and
 * all that nobody has hurt must make the last one, in one world. Who woke is there, too, or has
 * heard that the others went on without it.
 *
 *     test_grow_storm [--seed SEED] [--count COUNT] [--nodes NODES]
 */
#include "world/link.h"
#include "world/wire.h"

#include "support/check.h"
#include "support/random.h"

#include "lanes.h"
#include "link_post.h"
#include "processes.h"

#include <ferry/plan.h>
#include <ferry/service.h>
#include <ferry/spec.h>
#include <ferry/world.h>

#include <glob.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

enum { SOURCES = 2, HALVES = 2, SLOTS = SOURCES + 2 * HALVES }; /* numbers that the plan knows */
enum { MEMBERS = SOURCES + HALVES, ALL = SLOTS };               /* processes; the rest joins */
enum { N_TENSORS = 2, MOST_HARMED = 2, MOST_STEPS = 60, LANES = 2 };
enum { JOIN_VERSION = 2, LAST_VERSION = 5 };
#define CASE_SECONDS (100.0 * FERRY_TEST_PATIENCE)

typedef enum moment { AT_MESSAGE, IN_RUN } moment;

typedef struct harm {
    uint32_t who;
    int signal; /* SIGKILL or SIGSTOP */
    moment moment;
    int message;   /* before which, counted from the growing on; from 1 */
    uint64_t run;  /* how many runs before */
    long us;       /* and how far into it */
    long wakes_ms; /* so long after it stopped; 0: never */
} harm;

typedef struct plan_of_case {
    uint64_t seed, bytes; /* of half a tensor */
    uint32_t commit;
    const char *nodes;
    harm harmed[MOST_HARMED];
    int n_harmed;
} plan_of_case;

/* What a process tells: in memory that it shares with the program. */
typedef struct told {
    _Atomic int fired;      /* the signal that it is about to send to itself */
    _Atomic bool is_inside; /* it has a world */
    bool ended, is_well;
    bool is_to_wake, is_out; /* it woke, and the others had gone on */
    uint64_t version;
    uint32_t n_ranks;
    pid_t first; /* of its last world */
    uint32_t n_recovered, n_joined;
    char why[FERRY_MESSAGE_BYTES];
} told;

static const plan_of_case *the;
static told *tells, *own;
static const harm *own_harm; /* NULL: none */
static char meeting[192];
static _Atomic int n_messages;
static atomic_bool counts_messages;

/* Harm */

static void suffer(void)
{
    atomic_store(&own->fired, own_harm->signal);
    raise(own_harm->signal);
}

static void on_alarm(int number)
{
    (void)number;
    suffer();
}

ferry_status __wrap_fy_link_post(fy_link *link, uint32_t type, const void *head, size_t head_bytes,
                                 const void *body, size_t body_bytes, ferry_error *error)
{
    /* How many signs of life there are is a matter of time, so they do not count. */
    if (own_harm != NULL && own_harm->moment == AT_MESSAGE && atomic_load(&counts_messages) &&
        type != FY_WIRE_BEAT && atomic_fetch_add(&n_messages, 1) + 1 == own_harm->message) {
        suffer();
    }
    return __real_fy_link_post(link, type, head, head_bytes, body, body_bytes, error);
}

static void arm(uint64_t n_runs)
{
    if (own_harm != NULL && own_harm->moment == IN_RUN && own_harm->run == n_runs) {
        struct itimerval soon = {.it_value = {.tv_usec = own_harm->us + 1}};
        signal(SIGALRM, on_alarm);
        setitimer(ITIMER_REAL, &soon, NULL);
    }
}

/* A rank */

typedef struct actor {
    uint32_t who;
    ferry_world *world;
    ferry_service *service;
    ferry_ledger *ledger; /* of the newest service that has one */
    ferry_tensors *sources, *targets;
    unsigned char *source[N_TENSORS];
    uint32_t member;
    uint64_t version; /* the newest that was whole everywhere */
    uint64_t n_runs;
    ferry_error error;
} actor;

_Noreturn static void end_wrong(actor *r, const char *what)
{
    snprintf(own->why, sizeof own->why, "%s: %.900s", what, r->error.message);
    own->ended = true;
    _exit(0);
}

static void must_be(actor *r, bool is_so, const char *what)
{
    if (!is_so) {
        end_wrong(r, what);
    }
}

static unsigned char byte_of(uint64_t version, uint32_t tensor, uint64_t i)
{
    return (unsigned char)((i + 1) * 2654435761u >> 13 ^ version * 37 ^ tensor * 101);
}

static void fill(actor *r, uint64_t version)
{
    for (uint32_t t = 0; r->member < SOURCES && t < N_TENSORS; t++) {
        for (uint64_t i = 0; i < HALVES * the->bytes; i++) {
            r->source[t][i] = byte_of(version, t, i);
        }
    }
}

/* All that the service calls valid is that version's. Returns how many destinations that are. */
static uint32_t look(actor *r, uint64_t version)
{
    uint32_t n = 0;
    uint64_t first = (r->member - SOURCES) % HALVES * the->bytes;
    for (uint64_t d = 0; d < ferry_service_destination_count(r->service); d++) {
        ferry_destination its = FERRY_DESTINATION_INIT;
        must_be(r, ferry_service_destination_at(r->service, d, &its, &r->error) == FERRY_OK,
                "a destination");
        const unsigned char *bytes = its.buffer.base;
        uint32_t t = its.name[0] == 'b';
        for (uint64_t i = 0; its.state == FERRY_TENSOR_VALID && i < the->bytes; i++) {
            must_be(r, bytes[i] == byte_of(its.version, t, first + i),
                    "a valid destination has other bytes than its version");
        }
        n += its.state == FERRY_TENSOR_VALID && its.version == version;
    }
    return n;
}

static bool is_target(const actor *r)
{
    return r->member >= SOURCES && r->member < SLOTS;
}

/* Once: a rank keeps its number in all its worlds. */
static void list_tensors(actor *r)
{
    static const char *const names[N_TENSORS] = {"a", "b"};
    ferry_status status = ferry_tensors_create(&r->sources, &r->error);
    status = status == FERRY_OK ? ferry_tensors_create(&r->targets, &r->error) : status;
    for (uint32_t t = 0; t < N_TENSORS && status == FERRY_OK; t++) {
        ferry_buffer front = ferry_buffer_of(calloc(1, the->bytes), the->bytes);
        ferry_buffer back = ferry_buffer_of(calloc(1, the->bytes), the->bytes);
        r->source[t] = calloc(HALVES, the->bytes);
        ferry_buffer source = ferry_buffer_of(r->source[t], HALVES * the->bytes);
        if (!is_target(r)) {
            status = ferry_tensors_add(r->sources, names[t], &source, &r->error);
        } else if (the->commit == FERRY_COMMIT_SWAP) {
            status = ferry_tensors_add_pair(r->targets, names[t], &front, &back, &r->error);
        } else {
            status = ferry_tensors_add(r->targets, names[t], &front, &r->error);
        }
    }
    must_be(r, status == FERRY_OK, "the tensors");
}

/* With as many replicas as there ever were. */
static ferry_status make_spec(const actor *r, ferry_spec **spec_out, ferry_error *error)
{
    char text[900];
    uint32_t n_replicas = 1;
    for (uint32_t i = 0; i < ferry_world_rank_count(r->world); i++) {
        n_replicas = ferry_world_member_of(r->world, i) >= MEMBERS ? 2 : n_replicas;
    }
    int n = snprintf(
        text, sizeof text,
        "{\"format\": \"ferry.spec/1\", \"tensors\": ["
        "{\"name\": \"a\", \"shape\": [%d, %llu], \"dtype\": \"u8\"},"
        "{\"name\": \"b\", \"shape\": [%d, %llu], \"dtype\": \"u8\"}],"
        "\"source\": {\"mesh\": [[\"dp\", %d]], \"rules\": [{\"match\": \"*\"}]},"
        "\"destination\": {\"mesh\": [[\"dp\", %u], [\"tp\", %d]], \"first_rank\": %d,"
        "\"rules\": [{\"match\": \"*\", \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}]}}",
        (int)HALVES, (unsigned long long)the->bytes, (int)HALVES, (unsigned long long)the->bytes,
        (int)SOURCES, n_replicas, (int)HALVES, (int)SOURCES);
    return ferry_spec_parse(text, (size_t)n, "storm", spec_out, error);
}

/* The numbers that nobody in this world has; those of lost targets and of newcomers first. */
static uint32_t list_missing(const ferry_world *world, uint32_t *missing)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < SLOTS; i++) {
        uint32_t member = (i + SOURCES) % SLOTS;
        bool is_here = false;
        for (uint32_t rank = 0; rank < ferry_world_rank_count(world); rank++) {
            is_here = is_here || ferry_world_member_of(world, rank) == member;
        }
        if (!is_here) {
            missing[n++] = member;
        }
    }
    return n;
}

/* INVALID_PLAN: those who had the weights are gone. */
static ferry_status bind(actor *r, ferry_error *error)
{
    uint32_t missing[SLOTS];
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    options.n_lost_ranks = list_missing(r->world, missing);
    options.lost_ranks = missing;
    FY_TRY(make_spec(r, &spec, error));
    ferry_status status = ferry_plan_create(spec, &options, &plan, error);
    if (status == FERRY_OK) {
        status = ferry_service_bind(r->service, plan, r->sources, r->targets, error);
    }
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
    return status;
}

static ferry_status open_service(actor *r)
{
    ferry_error *error = &r->error;
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    options.commit = the->commit;
    options.slot_bytes = 64 << 10;
    FY_TRY(ferry_service_create(r->world, &options, &r->service, error));
    FY_TRY(ferry_service_init(r->service, FERRY_LOG_OFF, error));
    FY_TRY(bind(r, error));
    if (r->ledger != NULL) {
        FY_TRY(ferry_service_resume(r->service, r->ledger, error));
    }
    FY_TRY(ferry_service_schedule(r->service, error));
    must_be(r, ferry_service_version(r->service) >= r->version, "a version went back");
    return FERRY_OK;
}

static void close_service(actor *r)
{
    ferry_ledger *ledger = NULL;
    if (r->service != NULL && ferry_service_take_ledger(r->service, &ledger, NULL) == FERRY_OK) {
        ferry_ledger_destroy(r->ledger);
        r->ledger = ledger;
    }
    ferry_service_destroy(r->service);
    r->service = NULL;
}

/* Into another world; the old one and its service go. */
static void move_to(actor *r, ferry_world *world)
{
    close_service(r);
    ferry_world_destroy(r->world);
    r->world = world;
}

static uint32_t count_outside(void)
{
    uint32_t n = 0;
    for (uint32_t i = MEMBERS; i < ALL; i++) {
        n += atomic_load(&tells[i].fired) == 0 && !atomic_load(&tells[i].is_inside);
    }
    return n;
}

/* What the first rank wants all to do next: that many to join, or nothing more at all. */
typedef struct wish {
    uint32_t n_newcomers;
    bool is_over;
} wish;

static ferry_status hear_wish(actor *r, wish *out)
{
    const void *bytes;
    size_t n_bytes;
    wish its = {.n_newcomers = r->version >= JOIN_VERSION ? count_outside() : 0};
    its.is_over = r->version >= LAST_VERSION && its.n_newcomers == 0;
    FY_TRY(ferry_world_broadcast(r->world, 0, &its, sizeof its, &bytes, &n_bytes, &r->error));
    memcpy(out, bytes, sizeof *out);
    return FERRY_OK;
}

/* Between two versions, so all that newcomers get is that of the last one. */
static ferry_status grow(actor *r, uint32_t n)
{
    uint32_t missing[SLOTS];
    ferry_world *larger = NULL;
    ferry_grow_options options = FERRY_GROW_OPTIONS_INIT;
    must_be(r, list_missing(r->world, missing) >= n, "more newcomers than places");
    options.n_newcomers = n;
    options.members = missing;
    options.path = meeting;
    options.join_seconds = 4.0 * FERRY_TEST_PATIENCE;
    ferry_status status = ferry_world_grow(r->world, &options, &larger, &r->error);
    if (status == FERRY_OK) {
        move_to(r, larger);
        return open_service(r);
    }
    /* The world stands where a newcomer did not come: the next version is made without it. */
    return ferry_world_state(r->world, NULL, &r->error);
}

static ferry_status run_once(actor *r)
{
    uint64_t version = ferry_service_next_version(r->service);
    fill(r, version);
    arm(r->n_runs++);
    FY_TRY(ferry_service_run(r->service, NULL, &r->error));
    must_be(r, ferry_service_version(r->service) == version, "a run made another version");
    must_be(r, look(r, version) == (is_target(r) ? N_TENSORS : 0), "a run left something out");
    r->version = own->version = version;
    return FERRY_OK;
}

/* One version, and who joins behind it: then the next run is of the same version, for them. */
static ferry_status step(actor *r, bool *done)
{
    wish its = {0};
    FY_TRY(run_once(r));
    FY_TRY(hear_wish(r, &its));
    *done = its.is_over;
    if (its.n_newcomers > 0) {
        atomic_store(&counts_messages, true);
        FY_TRY(grow(r, its.n_newcomers));
    }
    return FERRY_OK;
}

/* One that was stopped, and of which the others could not know that it would wake. */
_Noreturn static void stay_out(actor *r)
{
    must_be(r, r->error.message[0] != '\0', "it was left out, and nobody said why");
    own->is_out = own->is_well = own->ended = true;
    _exit(0);
}

static ferry_status recover(actor *r)
{
    ferry_world *smaller = NULL;
    own->n_recovered++;
    if (r->service != NULL) {
        look(r, 0);
    }
    if (ferry_world_state(r->world, NULL, NULL) == FERRY_OK) {
        end_wrong(r, "a call failed in a world that stands");
    }
    /* Who has slept may find nobody any more, and others live: it is not to go on alone. */
    uint32_t min_ranks = own->is_to_wake ? 2 : 0;
    ferry_status status = ferry_world_shrink(r->world, min_ranks, &smaller, &r->error);
    if (status != FERRY_OK && atomic_load(&own->fired) != 0) {
        stay_out(r);
    }
    FY_TRY(status);
    move_to(r, smaller);
    return open_service(r);
}

static void find_member(actor *r)
{
    uint32_t rank = ferry_world_rank(r->world);
    r->member = ferry_world_member_of(r->world, rank);
    list_tensors(r);
    own->n_joined += r->who >= MEMBERS;
    atomic_store(&own->is_inside, true);
}

/* Newcomers try until members want them, or none is left. */
static void enter(actor *r, const char *path)
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    options.deadline_seconds = 2.0 * FERRY_TEST_PATIENCE;
    options.join_seconds = 4.0 * FERRY_TEST_PATIENCE;
    options.nodes = the->nodes;
    if (r->who < MEMBERS) {
        must_be(r,
                ferry_world_create_from_file(path, r->who, MEMBERS, &options, &r->world,
                                             &r->error) == FERRY_OK,
                "the first world");
    }
    atomic_store(&counts_messages, r->who >= MEMBERS);
    while (r->world == NULL) {
        (void)ferry_world_join(meeting, &options, &r->world, &r->error);
    }
    find_member(r);
}

/* Nothing can be made any more where nobody is left who has the weights, or who wants them. */
static bool is_pointless(void)
{
    bool has_source = false, has_target = false;
    for (uint32_t i = 0; i < ALL; i++) {
        bool lives = atomic_load(&tells[i].fired) == 0;
        bool is_in = i < MEMBERS || atomic_load(&tells[i].is_inside);
        has_source = has_source || (lives && i < SOURCES);
        has_target = has_target || (lives && is_in && i >= SOURCES);
    }
    return !has_source || !has_target;
}

_Noreturn static void live(uint32_t who, const char *path)
{
    actor r = {.who = who};
    bool done = false;
    enter(&r, path);
    ferry_status status = open_service(&r);
    for (int steps = 0; !done; steps++) {
        must_be(&r, steps < MOST_STEPS, "no end");
        while (status != FERRY_OK) {
            bool is_told = status == FERRY_ERR_INVALID_PLAN || status == FERRY_ERR_INVALID_INPUT;
            if (is_told && is_pointless()) {
                own->is_well = own->ended = true;
                _exit(0);
            }
            must_be(&r, ++steps < MOST_STEPS, "no end");
            status = recover(&r);
        }
        status = step(&r, &done);
        done = done && status == FERRY_OK;
    }
    own->n_ranks = ferry_world_rank_count(r.world);
    own->is_well = own->ended = true;
    _exit(0);
}

/* One case */

static const char *nodes = "1"; /* FERRY_NODES */

static plan_of_case draw(uint64_t seed)
{
    uint64_t s = seed * 1000003;
    plan_of_case p = {.seed = seed,
                      .bytes = 1000 + random_below(&s, 1500000),
                      .commit = random_below(&s, 2) ? FERRY_COMMIT_SWAP : FERRY_COMMIT_IN_PLACE,
                      .nodes = nodes,
                      .n_harmed = 1 + (int)random_below(&s, MOST_HARMED)};
    uint32_t first = random_below(&s, ALL);
    for (int h = 0; h < MOST_HARMED; h++) {
        harm *its = &p.harmed[h];
        its->who = h == 0 ? first : (first + 1 + random_below(&s, ALL - 1)) % ALL;
        its->signal = random_below(&s, 4) == 0 ? SIGSTOP : SIGKILL;
        its->moment = random_below(&s, 2) ? AT_MESSAGE : IN_RUN;
        its->message = 1 + (int)random_below(&s, 1 + random_below(&s, 120));
        its->run = its->who < MEMBERS ? 1 + random_below(&s, 3) : random_below(&s, 2);
        its->us = (long)random_below(&s, 1 + random_below(&s, 3000));
    }
    for (int h = 0; h < MOST_HARMED; h++) {
        harm *its = &p.harmed[h];
        if (random_below(&s, 4) == 0) { /* in the growing itself */
            its->signal = SIGSTOP;
            its->moment = AT_MESSAGE;
            its->message = 1 + (int)random_below(&s, 25);
        }
        bool wakes = its->signal == SIGSTOP && random_below(&s, 2) == 0;
        its->wakes_ms = wakes ? 1 + (long)random_below(&s, 4000 * FERRY_TEST_PATIENCE) : 0;
    }
    return p;
}

static void print_case(const plan_of_case *p)
{
    print_error("  %llu bytes, %s", (unsigned long long)p->bytes,
                p->commit == FERRY_COMMIT_SWAP ? "swap" : "in place");
    for (int h = 0; h < p->n_harmed; h++) {
        const harm *its = &p->harmed[h];
        print_error(", %u %s", its->who, its->signal == SIGKILL ? "killed" : "stopped");
        if (its->moment == AT_MESSAGE) {
            print_error(" before message %d", its->message);
        } else {
            print_error(" %ld us into run %llu", its->us, (unsigned long long)its->run);
        }
        if (its->wakes_ms > 0) {
            print_error(", woken after %ld ms", its->wakes_ms);
        }
    }
    print_error("\n");
    for (uint32_t i = 0; i < ALL; i++) {
        const told *t = &tells[i];
        print_error("    %u: %s, %s, version %llu, %u ranks: %s\n", i,
                    atomic_load(&t->fired) != 0 ? "hurt" : "not hurt",
                    !t->ended    ? "did not end"
                    : t->is_out  ? "left out"
                    : t->is_well ? "well"
                                 : "wrong",
                    (unsigned long long)t->version, t->n_ranks, t->why);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static pid_t start(uint32_t who, const char *path)
{
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        own = &tells[who];
        for (int h = 0; h < the->n_harmed; h++) {
            own_harm = the->harmed[h].who == who ? &the->harmed[h] : own_harm;
        }
        if (getppid() == parent) {
            live(who, path);
        }
        _exit(1);
    }
    return pid;
}

/* Wakes those for whom it is time, again and again: who says that it stops may not have done so. */
static void wake(const pid_t *pids, double *stopped)
{
    for (int h = 0; h < the->n_harmed; h++) {
        const harm *its = &the->harmed[h];
        if (its->wakes_ms > 0 && atomic_load(&tells[its->who].fired) == SIGSTOP) {
            stopped[h] = stopped[h] > 0 ? stopped[h] : now();
            if (now() - stopped[h] >= (double)its->wakes_ms * 1e-3) {
                kill(pids[its->who], SIGCONT);
            }
        }
    }
}

/* Whether this one has to come to an end: who woke has, too, and who joins only if it came in. */
static bool has_to_end(uint32_t i)
{
    bool is_in = i < MEMBERS || atomic_load(&tells[i].is_inside);
    return is_in && (atomic_load(&tells[i].fired) == 0 || tells[i].is_to_wake);
}

/* Until all have ended that have to; newcomers have an end, too, where no member lives. */
static void wait_for_the_well(const pid_t *pids)
{
    double until = now() + CASE_SECONDS, stopped[MOST_HARMED] = {0};
    for (bool waits = true; waits && now() < until;) {
        bool has_members = false;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        wake(pids, stopped);
        for (uint32_t i = 0; i < ALL; i++) {
            has_members = has_members || (has_to_end(i) && !tells[i].ended);
        }
        waits = has_members;
    }
}

/* Nobody wrong; and those in the last world are as many as say so. */
static bool is_right(void)
{
    bool right = true;
    uint32_t n_well = 0;
    for (uint32_t i = 0; i < ALL; i++) {
        const told *t = &tells[i];
        bool is_hurt = atomic_load(&t->fired) != 0;
        bool was_in = i < MEMBERS || atomic_load(&t->is_inside);
        n_well += t->ended && t->is_well && !t->is_out;
        right = right && (is_hurt || (was_in ? t->ended && t->is_well : is_pointless()));
        right = right && (!is_hurt || !has_to_end(i) || t->ended);
        right = right && (!t->ended || t->is_well);
    }
    for (uint32_t i = 0; i < ALL && !is_pointless(); i++) {
        const told *t = &tells[i];
        bool at_end = atomic_load(&t->fired) == 0;
        right = right && (!at_end || (t->version >= LAST_VERSION && t->n_ranks <= n_well));
    }
    return right;
}

/* Also what a root was about to rename when it was killed. */
static void remove_files(const char *path)
{
    glob_t found;
    char pattern[208];
    snprintf(pattern, sizeof pattern, "%s*", path);
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            unlink(found.gl_pathv[i]);
        }
        globfree(&found);
    }
}

typedef struct tally {
    _Atomic uint32_t n_cases, n_hurt, n_woke, n_out, n_recovered, n_joined;
} tally;

static tally *counts;

static bool run_case(uint64_t seed, const char *folder)
{
    char path[160];
    pid_t pids[ALL];
    plan_of_case p = draw(seed);
    the = &p;
    tells =
        mmap(NULL, ALL * sizeof *tells, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(path, sizeof path, "%s/meet-%d", folder, (int)getpid());
    snprintf(meeting, sizeof meeting, "%s-again", path);
    for (int h = 0; h < p.n_harmed; h++) {
        tells[p.harmed[h].who].is_to_wake = p.harmed[h].wakes_ms > 0;
    }
    for (uint32_t i = 0; i < ALL; i++) {
        pids[i] = start(i, path);
    }
    wait_for_the_well(pids);
    for (uint32_t i = 0; i < ALL; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
        counts->n_hurt += atomic_load(&tells[i].fired) != 0;
        bool woke = atomic_load(&tells[i].fired) != 0 && tells[i].is_to_wake;
        counts->n_woke += woke && tells[i].ended;
        counts->n_out += tells[i].is_out;
        counts->n_recovered += tells[i].n_recovered;
        counts->n_joined += tells[i].n_joined;
    }
    counts->n_cases++;
    remove_files(path); /* the other one has it as its beginning */
    bool right = is_right();
    if (!right) {
        print_case(&p);
    }
    munmap(tells, ALL * sizeof *tells);
    return right;
}

static uint64_t first_seed = 1;
static int n_seeds = 12;

static void test_storm(void **state)
{
    (void)state;
    if (strcmp(nodes, "1") != 0) {
        need_ucx();
    }
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    run_seeds(run_case, first_seed, n_seeds, LANES);
    print_message(
        "%u cases, %u ranks were hurt, %u woke and %u of them were left out, %u newcomers "
        "came in, %u times a rank went on\n",
        counts->n_cases, counts->n_hurt, counts->n_woke, counts->n_out, counts->n_joined,
        counts->n_recovered);
    if (n_seeds >= 12) { /* a storm in which nothing happens shows nothing */
        assert_true(counts->n_hurt >= counts->n_cases / 2);
        assert_true(counts->n_joined >= counts->n_cases / 2);
        assert_true(counts->n_recovered >= counts->n_cases);
    }
}

int main(int n_arguments, char **arguments)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_storm)};
    for (int i = 1; i + 1 < n_arguments; i += 2) {
        if (strcmp(arguments[i], "--seed") == 0) {
            first_seed = strtoull(arguments[i + 1], NULL, 10);
        } else if (strcmp(arguments[i], "--count") == 0) {
            n_seeds = atoi(arguments[i + 1]);
        } else if (strcmp(arguments[i], "--nodes") == 0) {
            nodes = arguments[i + 1];
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
