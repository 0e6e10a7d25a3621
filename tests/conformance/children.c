/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "conformance/children.h"

#include "support/devices.h"

#include "support/required.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a rank does, in a thread or a process. */

typedef struct rank_run {
    const case_plan *plan;
    rank_context me;
} rank_run;

static void *run_rank(void *context)
{
    rank_run *it = context;
    it->plan->run(&it->me);
    ferry_world_destroy(it->me.world);
    return NULL;
}

static rank_run run_of(const case_plan *plan, uint32_t rank)
{
    rank_run it = {.plan = plan, .me = plan->me};
    uint64_t random = plan->me.random + rank;
    it.me.rank = rank;
    it.me.random = random_u64(&random);
    return it;
}

static void *do_nothing(void *context)
{
    return context;
}

bool suite_uses_far;

/* The library keeps a queue for each device from the first copy on; so there was one before. */
static void copy_far(const rank_context *me)
{
    for (int32_t device = 0; device < device_kind_count(); device++) {
        ferry_error error;
        ferry_box boxes[2] = {FERRY_BOX_INIT, FERRY_BOX_INIT};
        char byte = 0;
        if (ferry_memory_alloc(NULL, device_kind(), device, 1, &boxes[0].buffer, &error) !=
            FERRY_OK) {
            fail(me, "%s memory: %s", device_kind_name(), error.message);
        }
        boxes[1].buffer = ferry_buffer_of(&byte, 1);
        if (ferry_box_copy(&boxes[0], &boxes[1], NULL, NULL, &error) != FERRY_OK) {
            fail(me, "a copy to far memory: %s", error.message);
        }
        ferry_memory_free(&boxes[0].buffer);
    }
}

/* Sanitizers keep a thread of their own once there has been one, so there is one before the count.
 */
static possessions before_case(const rank_context *me)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, do_nothing, NULL) != 0 || pthread_join(thread, NULL) != 0) {
        fail(me, "a thread cannot be started");
    }
    if (suite_uses_far) {
        copy_far(me);
    }
    return possessions_of(me);
}

static void run_threads(const case_plan *plan)
{
    static ferry_world *extra[MOST_EXTRA_WORLDS * MOST_RANKS];
    static rank_run runs[MOST_CHILDREN];
    ferry_world *worlds[MOST_CHILDREN];
    pthread_t threads[MOST_CHILDREN];
    rank_context *first = &runs[0].me;
    uint32_t n_ranks = plan->me.n_ranks;
    runs[0] = run_of(plan, 0);
    possessions before = before_case(first);
    must(first, ferry_world_create_threads(n_ranks, &plan->world, worlds, &first->error));
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        runs[rank] = run_of(plan, rank);
        runs[rank].me.world = worlds[rank];
        runs[rank].me.extra = extra;
        if (pthread_create(&threads[rank], NULL, run_rank, &runs[rank]) != 0) {
            fail(first, "thread %u cannot be started", (unsigned)rank);
        }
    }
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        pthread_join(threads[rank], NULL);
    }
    if (plan->is_checked) {
        check_possessions(first, &before);
    }
}

/* Where processes meet. */
static void name_meeting(const rank_context *me, char *path, size_t n_bytes)
{
    snprintf(path, n_bytes, "%s/meet-%s", me->folder, me->row->name);
}

static void run_process(const case_plan *plan, uint32_t rank)
{
    char path[256];
    rank_run it = run_of(plan, rank);
    rank_context *me = &it.me;
    possessions before = before_case(me);
    name_meeting(me, path, sizeof path);
    must(me, ferry_world_create_from_file(path, rank, me->n_ranks, &plan->world, &me->world,
                                          &me->error));
    run_rank(&it);
    if (plan->is_checked && !me->keeps) {
        check_possessions(me, &before);
    }
}

/* The runner's side. */

static void ignore_line(void *context, ferry_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static void set_environment(const engine_row *engine, bool is_quiet)
{
    for (size_t i = 0; i < COUNT_OF(engine->env) && engine->env[i] != NULL; i++) {
        putenv((char *)(uintptr_t)engine->env[i]);
    }
    bool is_traced = strstr(engine->engines, "trace") != NULL;
    if (is_traced || is_quiet) { /* lines of a trace are formatted, and go nowhere */
        ferry_log_configure(is_traced ? FERRY_LOG_TRACE : FERRY_LOG_ERROR, ignore_line, NULL);
    }
}

/* In a process of its own, so that the runner loads no plugin. */
bool engine_available(const engine_row *engine, bool is_quiet, run_shared *shared)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        set_environment(engine, is_quiet);
        for (size_t i = 0; i < ferry_engine_count(); i++) {
            const char *name, *why = "";
            bool available = false;
            if (ferry_engine_at(i, &name, NULL, &available, &why, NULL) == FERRY_OK &&
                strcmp(name, engine->engine) == 0) {
                snprintf(shared->report, REPORT_BYTES, "%s", why);
                _exit(available ? 0 : SKIPPED);
            }
        }
        snprintf(shared->report, REPORT_BYTES, "this build does not know it");
        _exit(SKIPPED);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int skip_engine(const engine_row *engine, const run_shared *shared)
{
    bool is_wrong = is_required(engine->engine);
    printf("%s: the engine %s cannot run here%s: %s\n", is_wrong ? "FAILED" : "SKIPPED",
           engine->engine, is_wrong ? ", but MUST_NOT_SKIP has it" : "", shared->report);
    return is_wrong ? 1 : SKIPPED;
}

pid_t start_child(const case_plan *plan, uint32_t rank)
{
    fflush(NULL);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    set_environment(plan->me.engine, plan->is_quiet);
    if (plan->me.engine->threads) {
        run_threads(plan);
    } else {
        run_process(plan, rank);
    }
    exit(0); /* and not _exit: checkers of leaks look now */
}

static bool expected_end(const case_row *row, int status)
{
    bool killed =
        WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGALRM);
    return (WIFEXITED(status) && WEXITSTATUS(status) == 0) || (row->dies && killed);
}

static void kill_all(const crew *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->pids[i] > 0) {
            kill(c->pids[i], SIGKILL);
        }
    }
}

static void look_at(crew *c, uint32_t i)
{
    int status;
    const int how = WNOHANG | WUNTRACED | WCONTINUED;
    if (c->pids[i] <= 0 || waitpid(c->pids[i], &status, how) != c->pids[i]) {
        return;
    }
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
        c->is_stopped[i] = WIFSTOPPED(status);
        return;
    }
    c->pids[i] = 0;
    c->is_stopped[i] = false;
    c->n_left--;
    c->n_died += WIFSIGNALED(status);
    if (c->why[0] == '\0' && !expected_end(c->plan->me.row, status)) {
        snprintf(c->why, sizeof c->why, "process %u ended with %s %d", (unsigned)i,
                 WIFEXITED(status) ? "status" : "signal",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        int64_t grace_ns = now_ns() + INT64_C(500000000);
        c->end_ns = grace_ns < c->end_ns ? grace_ns : c->end_ns;
    }
}

/* Only a rank that has stopped itself is left: nobody wakes it any more. */
static bool waits_for_the_stopped(const crew *c)
{
    uint32_t n_stopped = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        n_stopped += c->is_stopped[i];
    }
    return c->n_left == 1 && n_stopped == 1 && atomic_load(&c->plan->me.shared->has_stopped);
}

static void wait_for(crew *c)
{
    while (c->n_left > 0) {
        for (uint32_t i = 0; i < c->n; i++) {
            look_at(c, i);
        }
        if (waits_for_the_stopped(c)) {
            kill_all(c);
        }
        if (c->n_left > 0 && now_ns() > c->end_ns) {
            if (c->why[0] == '\0') {
                snprintf(c->why, sizeof c->why, "%u processes did not end in time",
                         (unsigned)c->n_left);
            }
            kill_all(c);
            c->end_ns = INT64_MAX;
        }
        sleep_ms(1);
    }
    if (c->why[0] == '\0' && c->n_died > 1) {
        snprintf(c->why, sizeof c->why, "%u processes died", (unsigned)c->n_died);
    }
}

void crew_run(crew *c, const case_plan *plan, double most_seconds)
{
    char path[256];
    const rank_context *me = &plan->me;
    *c = (crew){.plan = plan, .n = me->engine->threads ? 1 : me->n_ranks, .begin_ns = now_ns()};
    c->end_ns = c->begin_ns + (int64_t)(most_seconds * 1e9);
    memset(me->shared, 0, sizeof *me->shared);
    for (uint32_t i = 0; i < c->n; i++) {
        c->pids[i] = start_child(plan, i);
        if (c->pids[i] < 0) {
            fprintf(stderr, "fork: %s\n", strerror(errno));
        }
        c->n_left += c->pids[i] > 0;
    }
    wait_for(c);
    name_meeting(me, path, sizeof path);
    unlink(path); /* of a rank that died before it was removed */
}

bool crew_report(const crew *c)
{
    const rank_context *me = &c->plan->me;
    bool told = atomic_load(&me->shared->failed) == 2;
    double seconds = (double)(now_ns() - c->begin_ns) / 1e9;
    if (c->why[0] == '\0') {
        printf("ok      %-18s %6.2f s\n", me->row->name, seconds);
    } else {
        printf("FAILED  %-18s row %s, --seed %llu%s, %.2f s: %s%s%s\n", me->row->name,
               me->engine->name, (unsigned long long)me->seed, me->is_long ? " --long" : "",
               seconds, c->why, told ? "; " : "", told ? me->shared->report : "");
    }
    fflush(stdout);
    return c->why[0] == '\0';
}
