/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * service ROW [--case NAME] [--long] [--seed N] [--count N] [--patience N]
 *
 * Runs the cases on one row of the table. Each case has processes of its own: one for all ranks
 * where they are threads, else one a rank. The runner only starts them, waits no longer than a case
 * may take, and ends what is left by its pid. --count repeats each case with further seeds. Exit
 * status 77: the engine cannot run here.
 */
#include "service/suite.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77, QUICK_SECONDS = 60, LONG_SECONDS = 900 };

/* An empty text: the best engine for each pair. Ranks of "mixed" are on two nodes by decree. */
static const engine_row rows[] = {
    {"inproc", "inproc", "inproc", true, {NULL}},
    {"inproc_strict", "strict:inproc", "inproc", true, {NULL}},
    {"inproc_trace", "trace:inproc", "inproc", true, {NULL}},
    {"inproc_delay", "delay=50us:inproc", "inproc", true, {NULL}},
    {"shm", "shm", "shm", false, {NULL}},
    {"shm_strict", "strict:shm", "shm", false, {NULL}},
    {"shm_trace", "trace:shm", "shm", false, {NULL}},
    {"shm_delay", "delay=50us:shm", "shm", false, {NULL}},
    {"ucx", "ucx", "ucx", false, {"UCX_TLS=tcp"}},
    {"ucx_strict", "strict:ucx", "ucx", false, {"UCX_TLS=tcp"}},
    {"ucx_rma", "ucx", "ucx", false, {"FERRY_UCX_MODE=rma", "UCX_TLS=self,sm,tcp"}},
    {"mixed", "", "ucx", false, {"UCX_TLS=tcp"}},
};

/* What a case is like that a conformance case is not. */
static const case_row cases[] = {
    {.name = "properties", .n_ranks = 2, .run = case_properties},
    {.name = "empty", .n_ranks = 3, .run = case_empty},
    {.name = "empty1", .n_ranks = 1, .run = case_empty},
    {.name = "boxes", .n_ranks = 4, .run = case_boxes},
    {.name = "transposed", .n_ranks = 3, .run = case_transposed},
    {.name = "many", .n_ranks = 3, .run = case_many},
    {.name = "random1", .n_ranks = 1, .run = case_random},
    {.name = "random2", .n_ranks = 2, .run = case_random},
    {.name = "random3", .n_ranks = 3, .run = case_random},
    {.name = "random5", .n_ranks = 5, .run = case_random},
    {.name = "random9", .n_ranks = 9, .run = case_random},
    {.name = "large", .n_ranks = 3, .run = case_large},
    {.name = "caps", .n_ranks = 3, .run = case_caps},
    {.name = "shared_transport", .n_ranks = 3, .run = case_shared_transport},
    {.name = "polling", .n_ranks = 3, .run = case_polling},
    {.name = "askers", .n_ranks = 3, .run = case_askers},
    {.name = "cancel", .n_ranks = 3, .run = case_cancel},
    {.name = "progress_cancel", .n_ranks = 3, .run = case_progress_cancel},
    {.name = "ends", .n_ranks = 2, .run = case_ends},
    {.name = "spans", .n_ranks = 2, .run = case_spans},
    {.name = "cycles", .n_ranks = 2, .run = case_cycles},
    {.name = "bad_calls", .n_ranks = 2, .run = case_bad_calls},
    {.name = "bad_registrations", .n_ranks = 2, .run = case_bad_registrations},
    {.name = "bad_boxes", .n_ranks = 2, .run = case_bad_boxes},
    {.name = "unmatched", .n_ranks = 3, .run = case_unmatched},
    {.name = "two_writers", .n_ranks = 3, .run = case_two_writers},
    {.name = "two_buffers", .n_ranks = 3, .run = case_two_buffers},
    {.name = "differing_options", .n_ranks = 3, .run = case_differing_options},
    {.name = "bad_plans", .n_ranks = 3, .run = case_bad_plans},
    {.name = "bind", .n_ranks = 4, .run = case_bind},
    {.name = "rebind", .n_ranks = 3, .run = case_rebind},
    {.name = "swap", .n_ranks = 3, .run = case_swap},
    {.name = "relays", .n_ranks = 6, .run = case_relays},
    {.name = "flip", .n_ranks = 3, .run = case_flip},
    {.name = "lose", .n_ranks = 3, .run = case_lose, .deadline_seconds = 1},
    {.name = "abort", .n_ranks = 3, .run = case_abort, .deadline_seconds = 5},
    {.name             = "killed",
     .n_ranks          = 4,
     .run              = case_killed,
     .deadline_seconds = 5,
     .processes_only   = true,
     .dies             = true},
    {.name             = "stopped",
     .n_ranks          = 3,
     .run              = case_stopped,
     .deadline_seconds = 1,
     .processes_only   = true,
     .dies             = true},
    {.name             = "killed_early",
     .n_ranks          = 3,
     .run              = case_killed_early,
     .deadline_seconds = 5,
     .processes_only   = true,
     .dies             = true},
    {.name = "resume", .n_ranks = 4, .run = case_resume, .deadline_seconds = 5, .dies = true},
    {.name = "resume_tasks", .n_ranks = 3, .run = case_resume_tasks, .deadline_seconds = 5},
    {.name             = "recover_pairs",
     .n_ranks          = 4,
     .run              = case_recover_pairs,
     .deadline_seconds = 5,
     .dies             = true},
};

typedef struct run_options {
    const engine_row *engine;
    const char       *only;
    bool              is_long;
    uint64_t          seed, count;
    double            patience;
} run_options;

static char        folder[128];
static run_shared *shared;

/* What a rank does, in a thread or a process. */

static ferry_world_options options_for(const rank_context *me)
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    double              own     = me->row->deadline_seconds;
    options.deadline_seconds    = (own > 0 ? own : 10) * me->patience;
    options.entry_seconds       = 30 * me->patience;
    options.join_seconds        = 20 * me->patience;
    if (strcmp(me->engine->name, "mixed") == 0 && me->n_ranks > 1) {
        options.nodes = "2";
    }
    return options;
}

static void *run_rank(void *context)
{
    rank_context *me = context;
    me->row->run(me);
    ferry_world_destroy(me->world);
    return NULL;
}

static rank_context context_of(const run_options *o, const case_row *row, uint32_t rank)
{
    uint64_t random = o->seed * MOST_RANKS + rank;
    return (rank_context){.engine   = o->engine,
                          .row      = row,
                          .rank     = rank,
                          .n_ranks  = row->n_ranks,
                          .random   = random_u64(&random),
                          .seed     = o->seed,
                          .is_long  = o->is_long,
                          .patience = o->patience,
                          .folder   = folder,
                          .shared   = shared};
}

/* Sanitizers keep a thread of their own once there has been one. */
static void *do_nothing(void *context)
{
    return context;
}

static possessions before_case(const rank_context *me)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, do_nothing, NULL) != 0 || pthread_join(thread, NULL) != 0) {
        fail(me, "a thread cannot be started");
    }
    possessions now    = possessions_of(me);
    int64_t     end_ns = now_ns() + 100000000;
    while (now.threads > 1 && now_ns() < end_ns) { /* who was joined may take a moment to go */
        sleep_ms(1);
        now = possessions_of(me);
    }
    return now;
}

static void run_threads(const run_options *o, const case_row *row)
{
    static ferry_world *extra[MOST_EXTRA_WORLDS * MOST_RANKS];
    rank_context        me[MOST_RANKS];
    ferry_world        *worlds[MOST_RANKS];
    pthread_t           threads[MOST_RANKS];
    me[0]                       = context_of(o, row, 0);
    possessions         before  = before_case(&me[0]);
    ferry_world_options options = options_for(&me[0]);
    must(&me[0], ferry_world_create_threads(row->n_ranks, &options, worlds, &me[0].error));
    for (uint32_t rank = 0; rank < row->n_ranks; rank++) {
        me[rank]       = context_of(o, row, rank);
        me[rank].world = worlds[rank];
        me[rank].extra = extra;
        if (pthread_create(&threads[rank], NULL, run_rank, &me[rank]) != 0) {
            fail(&me[0], "thread %u cannot be started", (unsigned)rank);
        }
    }
    for (uint32_t rank = 0; rank < row->n_ranks; rank++) {
        pthread_join(threads[rank], NULL);
    }
    check_possessions(&me[0], &before);
}

static void run_process(const run_options *o, const case_row *row, uint32_t rank)
{
    char         path[256];
    rank_context me     = context_of(o, row, rank);
    possessions  before = before_case(&me);
    snprintf(path, sizeof path, "%s/meet-%s", folder, row->name);
    ferry_world_options options = options_for(&me);
    must(&me,
         ferry_world_create_from_file(path, rank, row->n_ranks, &options, &me.world, &me.error));
    run_rank(&me);
    /* What UCX cannot close in time when a world has failed is left behind. */
    if (row->deadline_seconds <= 0 || strcmp(o->engine->engine, "ucx") != 0) {
        check_possessions(&me, &before);
    }
}

/* The runner's side. */

static void ignore_line(void *context, ferry_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static void set_environment(const engine_row *engine)
{
    for (size_t i = 0; i < COUNT_OF(engine->env) && engine->env[i] != NULL; i++) {
        putenv((char *)(uintptr_t)engine->env[i]);
    }
    ferry_log_configure(strstr(engine->engines, "trace") != NULL ? FERRY_LOG_TRACE
                                                                 : FERRY_LOG_ERROR,
                        ignore_line, NULL);
}

static pid_t start(const run_options *o, const case_row *row, uint32_t rank)
{
    fflush(NULL);
    pid_t parent = getpid();
    pid_t pid    = fork();
    if (pid != 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    set_environment(o->engine);
    if (o->engine->threads) {
        run_threads(o, row);
    } else {
        run_process(o, row, rank);
    }
    exit(0); /* and not _exit: checkers of leaks look now */
}

static bool expected_end(const case_row *row, int status)
{
    bool killed =
        WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGALRM);
    return (WIFEXITED(status) && WEXITSTATUS(status) == 0) || (row->dies && killed);
}

/* The processes of a case. */
typedef struct crew {
    const case_row *row;
    pid_t           pids[MOST_RANKS];
    bool            stopped[MOST_RANKS];
    uint32_t        n, n_left, n_stopped, n_died;
    int64_t         end_ns;
    char            why[512]; /* it is not well; or empty */
} crew;

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
    if (c->pids[i] <= 0 || waitpid(c->pids[i], &status, WNOHANG | WUNTRACED) != c->pids[i]) {
        return;
    }
    if (WIFSTOPPED(status)) {
        c->stopped[i] = true;
        c->n_stopped++;
        return;
    }
    c->pids[i] = 0;
    c->n_left--;
    c->n_died += WIFSIGNALED(status);
    if (c->why[0] == '\0' && !expected_end(c->row, status)) {
        snprintf(c->why, sizeof c->why, "process %u ended with %s %d", (unsigned)i,
                 WIFEXITED(status) ? "status" : "signal",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        int64_t grace_ns = now_ns() + INT64_C(500000000);
        c->end_ns        = grace_ns < c->end_ns ? grace_ns : c->end_ns;
    }
}

/* Waits for all. Who was stopped is ended when the others have ended. Nothing is left behind. */
static void wait_for(crew *c)
{
    while (c->n_left > 0) {
        for (uint32_t i = 0; i < c->n; i++) {
            look_at(c, i);
        }
        if (c->n_left > 0 && c->n_left == c->n_stopped) {
            c->n_stopped = 0;
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

static bool run_case(const run_options *o, const case_row *row)
{
    int64_t begin_ns = now_ns();
    double  most     = (o->is_long ? LONG_SECONDS : QUICK_SECONDS) * o->patience;
    crew    c        = {.row    = row,
                        .n      = o->engine->threads ? 1 : row->n_ranks,
                        .end_ns = begin_ns + (int64_t)(most * 1e9)};
    char    path[256];
    memset(shared, 0, sizeof *shared);
    for (uint32_t i = 0; i < c.n; i++) {
        c.pids[i] = start(o, row, i);
        if (c.pids[i] < 0) {
            fprintf(stderr, "fork: %s\n", strerror(errno));
        }
        c.n_left += c.pids[i] > 0;
    }
    wait_for(&c);
    snprintf(path, sizeof path, "%s/meet-%s", folder, row->name);
    unlink(path); /* of a rank that died before it was removed */
    bool   told    = atomic_load(&shared->failed) == 2;
    double seconds = (double)(now_ns() - begin_ns) / 1e9;
    if (c.why[0] == '\0') {
        printf("ok      %-18s %6.2f s\n", row->name, seconds);
    } else {
        printf("FAILED  %-18s row %s, --seed %llu%s, %.2f s: %s%s%s\n", row->name, o->engine->name,
               (unsigned long long)o->seed, o->is_long ? " --long" : "", seconds, c.why,
               told ? "; " : "", told ? shared->report : "");
    }
    fflush(stdout);
    return c.why[0] == '\0';
}

/* In a process of its own, so that the runner loads no plugin. Why not goes to the report. */
static bool engine_available(const engine_row *engine)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        set_environment(engine);
        for (size_t i = 0; i < ferry_engine_count(); i++) {
            const char *name, *why = "";
            bool        available = false;
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

static int usage(void)
{
    fprintf(stderr, "service ROW [--case NAME] [--long] [--seed N] [--count N] [--patience N]\n"
                    "rows:");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fprintf(stderr, " %s", rows[i].name);
    }
    fprintf(stderr, "\ncases:");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        fprintf(stderr, " %s", cases[i].name);
    }
    fprintf(stderr, "\n");
    return 2;
}

static bool read_options(int argc, char **argv, run_options *o)
{
    *o = (run_options){.seed = 1, .count = 1, .patience = 1};
    for (size_t i = 0; argc > 1 && i < COUNT_OF(rows); i++) {
        o->engine = strcmp(rows[i].name, argv[1]) == 0 ? &rows[i] : o->engine;
    }
    for (int i = 2; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--long") == 0) {
            o->is_long = true;
        } else if (value == NULL) {
            return false;
        } else if (strcmp(argv[i], "--case") == 0) {
            o->only = argv[++i];
        } else if (strcmp(argv[i], "--seed") == 0) {
            o->seed = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--count") == 0) {
            o->count = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--patience") == 0) {
            o->patience = strtod(argv[++i], NULL);
        } else {
            return false;
        }
    }
    return o->engine != NULL && o->patience > 0;
}

static bool prepare(void)
{
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/ferry-service-XXXXXX",
             parent == NULL || strlen(parent) > 80 ? "/tmp" : parent);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared != MAP_FAILED && mkdtemp(folder) != NULL;
}

static bool is_wanted(const run_options *o, const case_row *row)
{
    bool is_ucx = strcmp(o->engine->engine, "ucx") == 0;
    /* UCX 1.13 ends its process when a peer goes while it is being connected. */
    bool by_luck = is_ucx && (row->run == case_killed_early || row->run == case_resume_tasks);
    /* These wait for deadlines to pass: the quick run has them where no wrapper stands. */
    bool waits    = row->run == case_lose || row->run == case_stopped;
    bool is_plain = strchr(o->engine->name, '_') == NULL && strcmp(o->engine->name, "ucx") != 0;
    if (o->only != NULL && strcmp(row->name, o->only) != 0) {
        return false;
    }
    return !(row->processes_only && o->engine->threads) && !by_luck &&
           (!waits || is_plain || o->is_long || o->only != NULL);
}

int main(int argc, char **argv)
{
    run_options o;
    if (!read_options(argc, argv, &o)) {
        return usage();
    }
    if (!prepare()) {
        fprintf(stderr, "no folder for the ranks to meet in: %s\n", strerror(errno));
        return 1;
    }
    int    result = 0;
    size_t n_run = 0, n_failed = 0;
    if (!engine_available(o.engine)) {
        printf("SKIPPED: the engine %s cannot run here: %s\n", o.engine->engine, shared->report);
        result = SKIPPED;
    }
    for (uint64_t round = 0; round < o.count && result != SKIPPED; round++, o.seed++) {
        for (size_t i = 0; i < COUNT_OF(cases); i++) {
            if (is_wanted(&o, &cases[i])) {
                n_run++;
                n_failed += !run_case(&o, &cases[i]);
            }
        }
    }
    rmdir(folder);
    if (result != SKIPPED) {
        printf("%zu cases on %s, %zu failed\n", n_run, o.engine->name, n_failed);
        result = n_failed > 0 || n_run == 0;
    }
    return result;
}
