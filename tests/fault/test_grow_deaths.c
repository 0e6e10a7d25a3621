/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A member or a newcomer dies, or is stopped, while a world grows: just before its first, second,
 * third ... control message, until it makes no more. Members shrink a world that has failed, and
 * grow as long as newcomers are outside; newcomers join again. All that nobody has hurt must end in
 * one world of exactly them, and of members that were stopped and woke before they were lost. Those
 * that woke later must hear why they are in no world, and be in none. Ranks are processes; this
 * program stands in front of fy_link_post.
 *
 *     test_grow_deaths [--long] [--random SEED COUNT] [--stops SEED COUNT]
 */
#include "world/link.h"
#include "world/wire.h"

#include "support/check.h"
#include "support/random.h"

#include "lanes.h"
#include "link_post.h"

#include <ferry/world.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef FERRY_TEST_PATIENCE
#define FERRY_TEST_PATIENCE 1
#endif

enum { MEMBERS = 3, NEWCOMERS = 2, ALL = MEMBERS + NEWCOMERS };
enum { MOST_HARMED = 2, MOST_MESSAGES = 200, MOST_WORLDS = 16, LANES = 2 };
#define CASE_SECONDS (100.0 * FERRY_TEST_PATIENCE)

/* Who is hurt, while it grows, joins or shrinks. */
typedef struct harm {
    uint32_t who;  /* members first */
    int at;        /* before which message; from 1 */
    int signal;    /* SIGKILL or SIGSTOP */
    long wakes_ms; /* so long after a SIGSTOP; 0: never */
} harm;

typedef struct plan {
    const char *nodes; /* FERRY_NODES */
    bool is_tidy;      /* old worlds are destroyed at once, not at the end */
    double deadline;   /* seconds */
    harm harmed[MOST_HARMED];
    int n_harmed;
} plan;

/* What a process tells: in memory that it shares with the program. */
typedef struct told {
    _Atomic int fired; /* the signal that it is about to send to itself */
    bool ended, is_to_wake;
    uint32_t status;
    uint32_t n_ranks;
    pid_t ranks[ALL];
    ferry_error error;
} told;

/* The rank */

static const plan *the;
static const harm *own_harm; /* NULL: none */
static _Atomic int n_messages;
static atomic_bool changes;
static told *tells, *own;
static char meeting[192];

ferry_status __wrap_fy_link_post(fy_link *link, uint32_t type, const void *head, size_t head_bytes,
                                 const void *body, size_t body_bytes, ferry_error *error)
{
    /* How many signs of life there are is a matter of time, so they do not count; nor does what a
     * newcomer says first, again and again: until then it has not come. */
    if (own_harm != NULL && atomic_load(&changes) && type != FY_WIRE_BEAT &&
        type != FY_WIRE_ENTER && atomic_fetch_add(&n_messages, 1) + 1 == own_harm->at) {
        atomic_store(&own->fired, own_harm->signal);
        raise(own_harm->signal); /* to this very thread, which does not go on until it is sent */
    }
    return __real_fy_link_post(link, type, head, head_bytes, body, body_bytes, error);
}

/*
 * For newcomers that do not come. Nobody waits for it because of one that is hurt, which is seen to
 * be dead or stopped: by its own world, by the root at whose door it stands, by those at its door.
 */
static double join_seconds(void)
{
    return the->n_harmed == 1 ? 2 * CASE_SECONDS : 4.0 * FERRY_TEST_PATIENCE;
}

static ferry_world_options options_of(void)
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    options.deadline_seconds = the->deadline;
    options.nodes = the->nodes;
    options.join_seconds = join_seconds();
    return options;
}

/* How many newcomers live that are not in a world of so many ranks of which so many are new. */
static uint32_t count_outside(uint32_t n_inside)
{
    uint32_t n = 0;
    for (uint32_t i = MEMBERS; i < ALL; i++) {
        n += atomic_load(&tells[i].fired) == 0;
    }
    return n > n_inside ? n - n_inside : 0;
}

static uint32_t count_newcomers(const ferry_world *world)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < ferry_world_rank_count(world); r++) {
        n += ferry_world_member_of(world, r) >= MEMBERS;
    }
    return n;
}

/* Twice: who slept may finish one barrier that all others had entered before they lost it. Then
 * who they are, by the ids of their processes. */
static ferry_status meet(ferry_world *world)
{
    const void *all;
    pid_t pid = getpid();
    ferry_status status = ferry_world_barrier(world, &own->error);
    if (status == FERRY_OK) {
        status = ferry_world_barrier(world, &own->error);
    }
    if (status == FERRY_OK) {
        status = ferry_world_all_gather(world, &pid, sizeof pid, &all, &own->error);
    }
    if (status == FERRY_OK) {
        own->n_ranks = ferry_world_rank_count(world);
        memcpy(own->ranks, all, own->n_ranks * sizeof pid);
    }
    return status;
}

/* The number of newcomers that rank 0 sees outside, on all ranks. */
static ferry_status ask_outside(ferry_world *world, uint32_t *n_out)
{
    const void *bytes;
    size_t n_bytes;
    uint32_t n = count_outside(count_newcomers(world));
    ferry_status status =
        ferry_world_broadcast(world, 0, &n, sizeof n, &bytes, &n_bytes, &own->error);
    if (status == FERRY_OK) {
        memcpy(n_out, bytes, sizeof n);
    }
    return status;
}

/* One step: to the next world, or *done. */
static ferry_status step(ferry_world *world, ferry_world **next, bool *done)
{
    ferry_grow_options options = FERRY_GROW_OPTIONS_INIT;
    ferry_status status = ferry_world_state(world, NULL, &own->error);
    options.path = meeting;
    options.join_seconds = join_seconds();
    *next = NULL;
    if (status == FERRY_OK) {
        status = ask_outside(world, &options.n_newcomers);
    }
    if (status == FERRY_OK && options.n_newcomers == 0) {
        status = meet(world);
        *done = status == FERRY_OK;
    } else if (status == FERRY_OK) {
        atomic_store(&changes, true);
        status = ferry_world_grow(world, &options, next, &own->error);
        atomic_store(&changes, false);
    }
    if (ferry_world_state(world, NULL, NULL) != FERRY_OK && *next == NULL) {
        atomic_store(&changes, true);
        /* Who has slept may find nobody any more, and others live: it is not to go on alone. */
        uint32_t min_ranks = own->is_to_wake ? 2 : 0;
        status = ferry_world_shrink(world, min_ranks, next, &own->error);
        atomic_store(&changes, false);
        return status;
    }
    return FERRY_OK; /* what failed is tried again in a world that stands */
}

static ferry_status join(const char *path, uint32_t who, ferry_world **world)
{
    ferry_world_options options = options_of();
    if (who < MEMBERS) {
        return ferry_world_create_from_file(path, who, MEMBERS, &options, world, &own->error);
    }
    ferry_status status;
    do { /* until members want it, or none is left that could */
        atomic_store(&changes, true);
        status = ferry_world_join(meeting, &options, world, &own->error);
        atomic_store(&changes, false);
    } while (status != FERRY_OK && getppid() != 1);
    return status;
}

static void live(const char *path, uint32_t who)
{
    ferry_world *worlds[MOST_WORLDS + 1] = {NULL};
    size_t n = 0;
    bool done = false;
    ferry_status status = join(path, who, &worlds[0]);
    for (int steps = 0; status == FERRY_OK && !done && n < MOST_WORLDS && steps < 100; steps++) {
        ferry_world *next = NULL;
        status = step(worlds[n], &next, &done);
        if (next != NULL) {
            if (the->is_tidy) {
                ferry_world_destroy(worlds[n]);
                worlds[n] = NULL;
            }
            worlds[++n] = next;
        }
    }
    own->status = (uint32_t)(done ? FERRY_OK : status == FERRY_OK ? FERRY_ERR_LIMIT : status);
    own->ended = true;
    for (size_t i = 0; i <= n; i++) {
        ferry_world_destroy(worlds[n - i]);
    }
}

/* One case */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void print_plan(const plan *p)
{
    print_error("nodes %s, %s", p->nodes, p->is_tidy ? "worlds destroyed at once" : "worlds kept");
    for (int h = 0; h < p->n_harmed; h++) {
        print_error(", %s %u %s before message %d",
                    p->harmed[h].who < MEMBERS ? "member" : "newcomer", p->harmed[h].who,
                    p->harmed[h].signal == SIGKILL ? "killed" : "stopped", p->harmed[h].at);
        if (p->harmed[h].wakes_ms > 0) {
            print_error(" and woken after %ld ms", p->harmed[h].wakes_ms);
        }
    }
    print_error("\n");
}

static pid_t start(const plan *p, uint32_t who, const char *path)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) {
        the = p;
        own = &tells[who];
        for (int h = 0; h < p->n_harmed; h++) {
            own_harm = p->harmed[h].who == who ? &p->harmed[h] : own_harm;
        }
        live(path, who);
    }
    _exit(0);
}

static bool is_hurt(uint32_t who)
{
    return atomic_load(&tells[who].fired) != 0;
}

/* Wakes those for whom it is time, again and again: who says that it stops may not have done so. */
static void wake(const plan *p, const pid_t *pids, double *stopped)
{
    for (int h = 0; h < p->n_harmed; h++) {
        const harm *its = &p->harmed[h];
        if (its->wakes_ms > 0 && is_hurt(its->who) && pids[its->who] > 0) {
            stopped[h] = stopped[h] > 0 ? stopped[h] : now();
            if (now() - stopped[h] >= (double)its->wakes_ms * 1e-3) {
                kill(pids[its->who], SIGCONT);
            }
        }
    }
}

/* Waits for all that nobody has hurt, or who wake; false: not in time. */
static bool wait_for_the_well(const plan *p, pid_t *pids, double seconds)
{
    double until = now() + seconds, stopped[MOST_HARMED] = {0};
    for (;;) {
        bool waits = false;
        wake(p, pids, stopped);
        for (uint32_t i = 0; i < ALL; i++) {
            if (pids[i] > 0 && waitpid(pids[i], NULL, WNOHANG) == pids[i]) {
                pids[i] = -pids[i];
            }
            waits = waits || (pids[i] > 0 && (!is_hurt(i) || tells[i].is_to_wake));
        }
        if (!waits || now() > until) {
            return !waits;
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

static bool is_in(const told *t, pid_t pid)
{
    for (uint32_t r = 0; r < t->n_ranks; r++) {
        if (t->ranks[r] == pid) {
            return true;
        }
    }
    return false;
}

/* In the world of those that nobody has hurt, and of those that woke in time. */
static bool belongs(uint32_t who)
{
    return !is_hurt(who) || (tells[who].is_to_wake && tells[who].status == FERRY_OK);
}

/* Whether one that belongs is in a world of exactly those; one that woke too late knows why. */
static bool is_right(const pid_t *pids, uint32_t who)
{
    const told *t = &tells[who];
    uint32_t n = 0;
    if (!t->ended || t->status != FERRY_OK) {
        return t->ended && t->is_to_wake && is_hurt(who) && t->error.message[0] != '\0';
    }
    for (uint32_t i = 0; i < ALL; i++) {
        if (belongs(i)) {
            n++;
            if (!is_in(t, pids[i] < 0 ? -pids[i] : pids[i])) {
                return false;
            }
        }
    }
    return n == t->n_ranks;
}

static bool check(const pid_t *pids)
{
    bool right = true;
    for (uint32_t i = 0; i < ALL; i++) {
        right = right && ((is_hurt(i) && !tells[i].is_to_wake) || is_right(pids, i));
    }
    for (uint32_t i = 0; i < ALL && !right; i++) {
        const told *t = &tells[i];
        int fired = atomic_load(&t->fired);
        print_error("    %u: %s", i,
                    fired == SIGKILL   ? "killed"
                    : fired == SIGSTOP ? "stopped"
                                       : "");
        if (fired != 0 && !t->is_to_wake) {
            print_error("for good");
        } else if (t->ended && t->status == FERRY_OK) {
            print_error(" in a world of %u", t->n_ranks);
        } else {
            print_error(" %s", t->ended ? t->error.message : "did not end");
        }
        print_error("\n");
    }
    return right;
}

/* True if all is well. *n_fired_out: how many of the harmed came to their message. */
static bool run_case(const plan *p, const char *folder, int *n_fired_out)
{
    char path[160];
    pid_t pids[ALL];
    tells =
        mmap(NULL, ALL * sizeof *tells, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(path, sizeof path, "%s/meet-%d", folder, (int)getpid());
    snprintf(meeting, sizeof meeting, "%s-again", path);
    for (int h = 0; h < p->n_harmed; h++) {
        tells[p->harmed[h].who].is_to_wake = p->harmed[h].wakes_ms > 0;
    }
    for (uint32_t i = 0; i < ALL; i++) {
        pids[i] = start(p, i, path);
    }
    bool in_time = wait_for_the_well(p, pids, CASE_SECONDS);
    *n_fired_out = 0;
    for (uint32_t i = 0; i < ALL; i++) {
        if (pids[i] > 0) {
            kill(pids[i], SIGKILL);
            waitpid(pids[i], NULL, 0);
        }
        *n_fired_out += is_hurt(i);
    }
    unlink(path);
    unlink(meeting); /* of a root that was killed */
    bool right = check(pids) && in_time;
    if (!right) {
        print_error("  %s: ", in_time ? "WRONG" : "TOO LATE");
        print_plan(p);
    }
    munmap(tells, ALL * sizeof *tells);
    return right;
}

/* Many cases, in processes beside each other: by messages, and at random. */

typedef struct lane {
    plan p;
    int step; /* from one message to the next that is looked at */
} lane;

static int run_messages(const void *lanes, size_t i, const char *folder)
{
    plan p = ((const lane *)lanes)[i].p;
    int n_wrong = 0, n_fired = 1;
    for (harm *h = &p.harmed[0]; n_fired > 0 && h->at <= MOST_MESSAGES;) {
        n_wrong += !run_case(&p, folder, &n_fired);
        h->at += ((const lane *)lanes)[i].step;
    }
    return n_wrong + (p.harmed[0].at > MOST_MESSAGES);
}

/* Each of all, at each message. */
static void run_each(plan p, int signal, int step)
{
    lane lanes[ALL];
    for (uint32_t i = 0; i < ALL; i++) {
        lanes[i] = (lane){.p = p, .step = step};
        lanes[i].p.n_harmed = 1;
        lanes[i].p.harmed[0] = (harm){i, 1 + (int)i % step, signal, 0};
    }
    run_lanes(run_messages, lanes, ALL, LANES);
}

static const char *const node_texts[] = {"1", "3", "2,1"};
static const double random_seconds = 2.5 * FERRY_TEST_PATIENCE;

/* Half of the stopped members wake: soon, about when they are found to be lost, or later. */
static long draw_waking(uint64_t *seed)
{
    double most_ms = random_seconds * 1e3 * (1 + random_below(seed, 3));
    return random_below(seed, 2) == 0 ? 0 : 1 + (long)random_below(seed, (uint32_t)most_ms);
}

static plan random_plan(uint64_t seed)
{
    plan p = {.nodes = node_texts[random_below(&seed, COUNT_OF(node_texts))],
              .is_tidy = random_below(&seed, 2) == 0,
              .deadline = random_seconds,
              .n_harmed = MOST_HARMED};
    uint32_t first = random_below(&seed, ALL);
    for (int h = 0; h < MOST_HARMED; h++) {
        p.harmed[h].who = h == 0 ? first : (first + 1 + random_below(&seed, ALL - 1)) % ALL;
        p.harmed[h].at = 1 + (int)random_below(&seed, 1 + random_below(&seed, 30));
        p.harmed[h].signal = random_below(&seed, 4) == 0 ? SIGSTOP : SIGKILL;
    }
    for (int h = 0; h < MOST_HARMED; h++) {
        bool may_wake = p.harmed[h].signal == SIGSTOP && p.harmed[h].who < MEMBERS;
        p.harmed[h].wakes_ms = may_wake ? draw_waking(&seed) : 0;
    }
    return p;
}

static bool run_seed(uint64_t seed, const char *folder)
{
    int n_fired;
    plan p = random_plan(seed);
    return run_case(&p, folder, &n_fired);
}

/* One member alone is stopped, so nobody may wait for a join limit. */
static bool run_stop(uint64_t seed, const char *folder)
{
    int n_fired;
    plan p = random_plan(seed * 1000003);
    p.n_harmed = 1;
    p.harmed[0] = (harm){.who = random_below(&seed, MEMBERS),
                         .at = 1 + (int)random_below(&seed, 1 + random_below(&seed, 30)),
                         .signal = SIGSTOP};
    p.harmed[0].wakes_ms = draw_waking(&seed);
    return run_case(&p, folder, &n_fired);
}

static bool is_long;

/* A rank that is killed is seen at once, so a long deadline costs little and forgives load. */
static const double kill_seconds = 8.0 * FERRY_TEST_PATIENCE;
static const double stop_seconds = 2.0 * FERRY_TEST_PATIENCE;

static void test_killed_on_one_node(void **state)
{
    (void)state;
    run_each((plan){"1", true, kill_seconds, {{0, 0, 0, 0}}, 0}, SIGKILL, is_long ? 1 : 2);
}

static void test_killed_on_two_nodes(void **state)
{
    (void)state;
    run_each((plan){"2,1", false, kill_seconds, {{0, 0, 0, 0}}, 0}, SIGKILL, is_long ? 1 : 3);
}

static void test_stopped(void **state)
{
    (void)state;
    run_each((plan){"3", true, stop_seconds, {{0, 0, 0, 0}}, 0}, SIGSTOP, is_long ? 1 : 19);
}

/* Just when newcomers are at its door, or have come in: they wait for nobody but the root then. */
static int run_root(const void *lanes, size_t i, const char *folder)
{
    int n_fired;
    return !run_case(&((const plan *)lanes)[i], folder, &n_fired) || n_fired != 1;
}

static void test_stopped_root(void **state)
{
    (void)state;
    plan plans[6];
    for (int i = 0; i < 6; i++) {
        plans[i] =
            (plan){i < 3 ? "1" : "3", true, stop_seconds, {{0, 8 + 2 * (i % 3), SIGSTOP, 0}}, 1};
    }
    run_lanes(run_root, plans, COUNT_OF(plans), LANES);
}

static uint64_t random_seed = 1;
static int random_count = 4;

static void test_two_at_random(void **state)
{
    (void)state;
    run_seeds(run_seed, random_seed, random_count, LANES);
}

static void test_stopped_at_random(void **state)
{
    (void)state;
    run_seeds(run_stop, random_seed, random_count, LANES);
}

int main(int n_arguments, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_on_one_node),
        cmocka_unit_test(test_killed_on_two_nodes),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_two_at_random),
        cmocka_unit_test(test_stopped_root),
        cmocka_unit_test(test_stopped_at_random),
    };
    const struct CMUnitTest random_alone[] = {cmocka_unit_test(test_two_at_random)};
    const struct CMUnitTest stops_alone[] = {cmocka_unit_test(test_stopped_at_random)};
    is_long = n_arguments == 2 && strcmp(arguments[1], "--long") == 0;
    random_count = is_long ? 300 : random_count;
    if (n_arguments == 4) {
        random_seed = strtoull(arguments[2], NULL, 10);
        random_count = atoi(arguments[3]);
        return strcmp(arguments[1], "--stops") == 0
                   ? cmocka_run_group_tests(stops_alone, NULL, NULL)
                   : cmocka_run_group_tests(random_alone, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
