/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank dies, or is stopped, while the others shrink because of an earlier death: just before its
 * first, second, third ... control message, until it makes no more. The survivors must end in one
 * world of exactly all of them. Ranks are processes; this program stands in front of fy_link_post.
 *
 *     test_shrink_deaths [--long] [--random SEED COUNT]
 */
#include "world/link.h"
#include "world/wire.h"

#include "support/check.h"
#include "support/random.h"

#include "lanes.h"
#include "link_post.h"

#include <ferry/world.h>

#include <errno.h>
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

enum { RANKS = 6, MOST_HARMED = 2, MOST_MESSAGES = 200, LANES = 3, MOST_SHRINKS = 12 };
#define CASE_SECONDS (100.0 * FERRY_TEST_PATIENCE)

/* Who is hurt, while it shrinks. */
typedef struct harm {
    uint32_t rank;
    int at;     /* before which message; from 1 */
    int signal; /* SIGKILL or SIGSTOP */
} harm;

typedef struct plan {
    const char *nodes; /* FERRY_NODES */
    uint32_t first;    /* whose death begins it */
    bool is_tidy;      /* old worlds are destroyed at once, not at the end */
    double deadline;   /* seconds */
    harm harmed[MOST_HARMED];
    int n_harmed;
} plan;

/* What a rank tells: in memory that it shares with the program. */
typedef struct told {
    _Atomic int fired; /* the signal that it is about to send to itself */
    bool ended;
    uint32_t status;
    uint32_t n_ranks;
    uint32_t members[RANKS];
    ferry_error error;
} told;

/* The rank */

static const harm *own_harm; /* NULL: none */
static _Atomic int n_messages;
static atomic_bool shrinks;
static told *own;

ferry_status __wrap_fy_link_post(fy_link *link, uint32_t type, const void *head, size_t head_bytes,
                                 const void *body, size_t body_bytes, ferry_error *error)
{
    /* How many signs of life there are is a matter of time, so they do not count. */
    if (own_harm != NULL && atomic_load(&shrinks) && type != FY_WIRE_BEAT &&
        atomic_fetch_add(&n_messages, 1) + 1 == own_harm->at) {
        atomic_store(&own->fired, own_harm->signal);
        raise(own_harm->signal); /* to this very thread, which does not go on until it is sent */
    }
    return __real_fy_link_post(link, type, head, head_bytes, body, body_bytes, error);
}

static ferry_status shrink(ferry_world *world, ferry_world **smaller, ferry_error *error)
{
    atomic_store(&shrinks, true);
    ferry_status status = ferry_world_shrink(world, 0, smaller, error);
    atomic_store(&shrinks, false);
    return status;
}

static void tell(ferry_status status, const ferry_world *world)
{
    own->n_ranks = status == FERRY_OK ? ferry_world_rank_count(world) : 0;
    for (uint32_t r = 0; r < own->n_ranks; r++) {
        own->members[r] = ferry_world_member_of(world, r);
    }
    own->status = (uint32_t)status;
    own->ended = true;
}

/*
 * Who slept may still finish a barrier that all others had entered before they lost it, but never
 * two.
 */
static ferry_status meet(ferry_world *world, ferry_error *error)
{
    ferry_status status = ferry_world_barrier(world, error);
    return status == FERRY_OK ? ferry_world_barrier(world, error) : status;
}

/* Barriers, and a smaller world whenever one fails, until one holds without the first victim. */
static void live(const plan *p, uint32_t rank, const char *path)
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    ferry_world *worlds[MOST_SHRINKS + 1];
    size_t n_worlds = 0;
    options.deadline_seconds = p->deadline;
    options.join_seconds = 2 * CASE_SECONDS; /* nobody may have to wait for this limit */
    options.nodes = p->nodes;
    ferry_status status =
        ferry_world_create_from_file(path, rank, RANKS, &options, &worlds[0], &own->error);
    n_worlds += status == FERRY_OK;
    if (status == FERRY_OK) {
        status = ferry_world_barrier(worlds[0], &own->error);
    }
    if (status == FERRY_OK && rank == p->first) {
        kill(getpid(), SIGKILL);
    }
    if (status == FERRY_OK) {
        status = ferry_world_barrier(worlds[0], &own->error);
    }
    bool shrunk = true;
    while (status != FERRY_OK && shrunk && n_worlds > 0 && n_worlds <= MOST_SHRINKS) {
        shrunk = shrink(worlds[n_worlds - 1], &worlds[n_worlds], &own->error) == FERRY_OK;
        if (shrunk && p->is_tidy) {
            ferry_world_destroy(worlds[n_worlds - 1]);
            worlds[n_worlds - 1] = NULL;
        }
        n_worlds += shrunk;
        status = shrunk ? meet(worlds[n_worlds - 1], &own->error) : status;
    }
    tell(status, n_worlds > 0 ? worlds[n_worlds - 1] : NULL);
    while (n_worlds > 0) {
        ferry_world_destroy(worlds[--n_worlds]);
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
    print_error("nodes %s, rank %u dies first, %s", p->nodes, p->first,
                p->is_tidy ? "worlds destroyed at once" : "worlds kept");
    for (int h = 0; h < p->n_harmed; h++) {
        print_error(", rank %u %s before message %d", p->harmed[h].rank,
                    p->harmed[h].signal == SIGKILL ? "killed" : "stopped", p->harmed[h].at);
    }
    print_error("\n");
}

static pid_t start(const plan *p, uint32_t rank, told *tells, const char *path)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) {
        own = &tells[rank];
        for (int h = 0; h < p->n_harmed; h++) {
            own_harm = p->harmed[h].rank == rank ? &p->harmed[h] : own_harm;
        }
        live(p, rank, path);
    }
    _exit(0);
}

/* Waits for who is to end by itself; false: not in time. Then all are gone but for the stopped. */
static bool wait_for(pid_t *pids, const told *tells, bool stopped_too, double seconds)
{
    double until = now() + seconds;
    for (;;) {
        bool waits = false;
        for (uint32_t r = 0; r < RANKS; r++) {
            if (pids[r] > 0 && waitpid(pids[r], NULL, WNOHANG) == pids[r]) {
                pids[r] = 0;
            }
            bool stopped = atomic_load(&tells[r].fired) == SIGSTOP;
            waits = waits || (pids[r] > 0 && (stopped_too || !stopped));
        }
        if (!waits || now() > until) {
            return !waits;
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

/* Whether a rank is in the one world of all that nobody has hurt; who slept is in no such world. */
static bool is_right(const plan *p, const told *tells, uint32_t rank)
{
    const told *t = &tells[rank];
    uint32_t n = 0;
    if (atomic_load(&t->fired) == SIGSTOP) {
        for (uint32_t i = 0; i < t->n_ranks; i++) {
            n += atomic_load(&tells[t->members[i]].fired) == SIGSTOP;
        }
        return t->ended && n == t->n_ranks;
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        if (r != p->first && atomic_load(&tells[r].fired) == 0) {
            if (!t->ended || t->status != FERRY_OK || n >= t->n_ranks || t->members[n] != r) {
                return false;
            }
            n++;
        }
    }
    return n == t->n_ranks;
}

static bool check(const plan *p, const told *tells)
{
    bool right = true;
    for (uint32_t r = 0; r < RANKS; r++) {
        right = right &&
                (r == p->first || atomic_load(&tells[r].fired) == SIGKILL || is_right(p, tells, r));
    }
    for (uint32_t r = 0; r < RANKS && !right; r++) {
        const told *t = &tells[r];
        print_error("    rank %u: %s", r,
                    r == p->first                       ? "died first"
                    : atomic_load(&t->fired) == SIGKILL ? "killed"
                    : atomic_load(&t->fired) == SIGSTOP ? "stopped, "
                                                        : "");
        if (t->ended && t->status == FERRY_OK) {
            print_error("in a world of");
            for (uint32_t i = 0; i < t->n_ranks; i++) {
                print_error(" %u", t->members[i]);
            }
        } else if (r != p->first && atomic_load(&t->fired) != SIGKILL) {
            print_error("%s", t->ended ? t->error.message : "did not end");
        }
        print_error("\n");
    }
    return right;
}

/* True if all is well. *n_fired_out: how many of the harmed came to their message. */
static bool run_case(const plan *p, const char *folder, int *n_fired_out)
{
    char path[160];
    pid_t pids[RANKS];
    told *tells = mmap(NULL, RANKS * sizeof *tells, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(path, sizeof path, "%s/meet-%d", folder, (int)getpid());
    for (uint32_t r = 0; r < RANKS; r++) {
        pids[r] = start(p, r, tells, path);
    }
    bool in_time = wait_for(pids, tells, false, CASE_SECONDS);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (pids[r] > 0) {
            kill(pids[r], in_time ? SIGCONT : SIGKILL);
        }
    }
    in_time = wait_for(pids, tells, true, CASE_SECONDS) && in_time;
    for (uint32_t r = 0; r < RANKS; r++) {
        if (pids[r] > 0) {
            kill(pids[r], SIGKILL);
            waitpid(pids[r], NULL, 0);
        }
    }
    unlink(path);
    *n_fired_out = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        *n_fired_out += atomic_load(&tells[r].fired) != 0;
    }
    bool right = check(p, tells) && in_time;
    if (!right) {
        print_error("  %s: ", in_time ? "WRONG" : "TOO LATE");
        print_plan(p);
    }
    munmap(tells, RANKS * sizeof *tells);
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

/* Each rank but the first victim, at each message. */
static void run_each_rank(plan p, int signal, int step)
{
    lane lanes[RANKS];
    size_t n = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        if (r != p.first) {
            lanes[n] = (lane){.p = p, .step = step};
            lanes[n].p.n_harmed = 1;
            lanes[n].p.harmed[0] = (harm){r, 1 + (int)r % step, signal};
            n++;
        }
    }
    run_lanes(run_messages, lanes, n, LANES);
}

static const char *const node_texts[] = {"1", "3", "2,1,2,1", "6"};

static plan random_plan(uint64_t seed)
{
    plan p = {.nodes = node_texts[random_below(&seed, COUNT_OF(node_texts))],
              .first = random_below(&seed, RANKS),
              .is_tidy = random_below(&seed, 2) == 0,
              .deadline = 2.5 * FERRY_TEST_PATIENCE,
              .n_harmed = MOST_HARMED};
    for (int h = 0; h < MOST_HARMED; h++) {
        /* Half of them the root, which makes many messages; others make few. */
        bool root = random_below(&seed, 2) == 0;
        uint32_t after = 1 + random_below(&seed, RANKS - 1);
        p.harmed[h].rank = root ? p.first == 0 : (p.first + after) % RANKS;
        p.harmed[h].at = 1 + (int)random_below(&seed, 1 + random_below(&seed, 24));
        p.harmed[h].signal = random_below(&seed, 4) == 0 ? SIGSTOP : SIGKILL;
    }
    return p;
}

static bool run_seed(uint64_t seed, const char *folder)
{
    int n_fired;
    plan p = random_plan(seed);
    return run_case(&p, folder, &n_fired);
}

static bool is_long;

/* A rank that is killed is seen at once, so a long deadline costs little and forgives load. */
static const double kill_seconds = 8.0 * FERRY_TEST_PATIENCE;
static const double stop_seconds = 2.0 * FERRY_TEST_PATIENCE;

static void test_killed_on_one_node(void **state)
{
    (void)state;
    run_each_rank((plan){"1", 5, true, kill_seconds, {{0, 0, 0}}, 0}, SIGKILL, 1);
}

static void test_killed_on_three_nodes(void **state)
{
    (void)state;
    run_each_rank((plan){"3", 5, true, kill_seconds, {{0, 0, 0}}, 0}, SIGKILL, 1);
}

static void test_killed_after_the_root(void **state)
{
    (void)state;
    run_each_rank((plan){"2,1,2,1", 0, false, kill_seconds, {{0, 0, 0}}, 0}, SIGKILL, 1);
}

static void test_stopped(void **state)
{
    (void)state;
    run_each_rank((plan){"3", 5, true, stop_seconds, {{0, 0, 0}}, 0}, SIGSTOP, is_long ? 1 : 7);
    if (is_long) {
        run_each_rank((plan){"1", 5, false, stop_seconds, {{0, 0, 0}}, 0}, SIGSTOP, 1);
        run_each_rank((plan){"2,1,2,1", 0, true, stop_seconds, {{0, 0, 0}}, 0}, SIGSTOP, 1);
    }
}

static uint64_t random_seed = 1;
static int random_count = 6;

static void test_two_at_random(void **state)
{
    (void)state;
    run_seeds(run_seed, random_seed, random_count, LANES);
}

int main(int n_arguments, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_on_one_node),    cmocka_unit_test(test_killed_on_three_nodes),
        cmocka_unit_test(test_killed_after_the_root), cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_two_at_random),
    };
    const struct CMUnitTest random_alone[] = {cmocka_unit_test(test_two_at_random)};
    is_long = n_arguments == 2 && strcmp(arguments[1], "--long") == 0;
    random_count = is_long ? 300 : random_count;
    if (n_arguments == 4 && strcmp(arguments[1], "--random") == 0) {
        random_seed = strtoull(arguments[2], NULL, 10);
        random_count = atoi(arguments[3]);
        return cmocka_run_group_tests(random_alone, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
