/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * conformance ENGINE [--case NAME] [--long] [--step N] [--seed N] [--patience N] [--list]
 *
 * Runs the cases on one row of the table of engines. Each case has processes of its own: one for
 * all ranks where they are threads, else one a rank. The runner itself only starts them, waits no
 * longer than a case may take, and ends what is left by its pid. Exit status 77: the engine cannot
 * run here.
 */
#include "conformance/suite.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77, QUICK_SECONDS = 60, LONG_SECONDS = 600 };

static const engine_row engine_rows[] = {
    {"inproc", "inproc", "inproc", true, {NULL}},
    {"inproc_strict", "strict:inproc", "inproc", true, {NULL}},
    {"inproc_delay", "delay=100us:inproc", "inproc", true, {NULL}},
    {"inproc_trace", "trace:inproc", "inproc", true, {NULL}},
    {"inproc_chain", "trace:delay=20us:strict:inproc", "inproc", true, {NULL}},
    {"shm", "shm", "shm", false, {NULL}},
    {"shm_strict", "strict:shm", "shm", false, {NULL}},
    {"shm_delay", "delay=100us:shm", "shm", false, {NULL}},
    {"shm_trace", "trace:shm", "shm", false, {NULL}},
    {"ucx", "ucx", "ucx", false, {"UCX_TLS=tcp"}},
    {"ucx_strict", "strict:ucx", "ucx", false, {"UCX_TLS=tcp"}},
    {"ucx_delay", "delay=100us:ucx", "ucx", false, {"UCX_TLS=tcp"}},
    {"ucx_trace", "trace:ucx", "ucx", false, {"UCX_TLS=tcp"}},
    {"ucx_rma", "ucx", "ucx", false, {"FERRY_UCX_MODE=rma", "UCX_TLS=self,sm,tcp"}},
    {"ucx_rma_strict", "strict:ucx", "ucx", false, {"FERRY_UCX_MODE=rma", "UCX_TLS=self,sm,tcp"}},
    {"ucx_rma_tcp", "ucx", "ucx", false, {"FERRY_UCX_MODE=rma", "UCX_TLS=tcp"}},
};

const case_row case_rows[] = {
    {.name = "names", .n_ranks = 2, .run = case_names, .opens_itself = true},
    {.name = "peers", .n_ranks = 3, .run = case_peers},
    {.name = "self", .n_ranks = 2, .run = case_self},
    {.name = "sizes", .n_ranks = 2, .run = case_sizes},
    {.name = "big", .n_ranks = 2, .run = case_big},
    {.name = "flush", .n_ranks = 3, .run = case_flush},
    {.name = "get", .n_ranks = 2, .run = case_get},
    {.name = "order_set", .n_ranks = 4, .run = case_order_set},
    {.name = "order_add", .n_ranks = 5, .run = case_order_add},
    {.name = "order_large", .n_ranks = 3, .run = case_order_large},
    {.name = "signals", .n_ranks = 2, .run = case_signals},
    {.name = "many_adders", .n_ranks = 8, .run = case_many_adders},
    {.name = "compare", .n_ranks = 2, .run = case_compare},
    {.name = "timeouts", .n_ranks = 2, .run = case_timeouts},
    {.name = "regions", .n_ranks = 3, .run = case_regions},
    {.name = "alloc_loop", .n_ranks = 2, .run = case_alloc_loop},
    {.name = "unequal", .n_ranks = 3, .run = case_unequal},
    {.name = "huge", .n_ranks = 2, .run = case_huge},
    {.name = "leave_regions", .n_ranks = 2, .run = case_leave_regions},
    {.name = "outside", .n_ranks = 2, .run = case_outside},
    {.name = "misuse", .n_ranks = 2, .run = case_misuse},
    {.name = "keys", .n_ranks = 3, .run = case_keys},
    {.name = "bad_keys", .n_ranks = 2, .run = case_bad_keys},
    {.name = "memory", .n_ranks = 4, .run = case_memory},
    {.name = "memory_order", .n_ranks = 2, .run = case_memory_order},
    {.name = "memory_loop", .n_ranks = 2, .run = case_memory_loop},
    {.name = "memory_huge", .n_ranks = 2, .run = case_memory_huge},
    {.name = "memory_failed", .n_ranks = 3, .run = case_memory_failed},
    {.name = "memory_scarce", .n_ranks = 2, .run = case_memory_scarce, .processes_only = true},
    {.name = "target", .n_ranks = 2, .run = case_target},
    {.name = "worlds", .n_ranks = 2, .run = case_worlds, .opens_itself = true},
    {.name = "reopen", .n_ranks = 2, .run = case_reopen, .opens_itself = true},
    {.name = "abort", .n_ranks = 3, .run = case_abort},
    {.name             = "death",
     .n_ranks          = 3,
     .run              = case_death,
     .deadline_seconds = 2,
     .processes_only   = true,
     .dies             = true},
    {.name = "lose", .n_ranks = 3, .run = case_lose, .deadline_seconds = 1, .opens_itself = true},
    {.name             = "stop",
     .n_ranks          = 3,
     .run              = case_stop,
     .deadline_seconds = 1,
     .processes_only   = true,
     .dies             = true},
    {.name = "strict", .n_ranks = 2, .run = case_strict, .opens_itself = true},
    {.name = "delay", .n_ranks = 2, .run = case_delay, .opens_itself = true},
    {.name = "flip", .n_ranks = 2, .run = case_flip, .opens_itself = true},
    {.name = "trace", .n_ranks = 2, .run = case_trace, .opens_itself = true},
};
const size_t n_case_rows = COUNT_OF(case_rows);

typedef struct run_options {
    const engine_row *engine;
    const char       *only;
    bool              is_long;
    uint32_t          step;
    uint64_t          seed;
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
    return options;
}

static void find_capabilities(rank_context *me)
{
    me->can = UINT32_MAX;
    for (uint32_t peer = 0; peer < me->n_ranks; peer++) {
        uint32_t flags = 0;
        if (peer != me->rank) {
            must(me, ferry_transport_peer(me->transport, peer, NULL, &flags, &me->error));
            me->can &= flags;
        }
    }
}

static void *run_rank(void *context)
{
    rank_context *me = context;
    if (!me->row->opens_itself) {
        me->transport = open_transport(me, me->world, "");
        find_capabilities(me);
    }
    me->row->run(me);
    ferry_transport_close(me->transport);
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
                          .step     = o->step,
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
    return possessions_of(me);
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
    check_possessions(&me, &before);
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
    if (strstr(engine->engines, "trace") != NULL) { /* lines are formatted, and go nowhere */
        ferry_log_configure(FERRY_LOG_TRACE, ignore_line, NULL);
    }
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
    return (WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
           (row->dies && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* Waits for all; true if all ended as they should before end_ns. Nothing is left behind. */
static bool wait_for(const case_row *row, pid_t *pids, uint32_t n, int64_t end_ns, char *why,
                     size_t why_bytes)
{
    bool     good = true;
    uint32_t left = n;
    while (left > 0) {
        for (uint32_t i = 0; i < n; i++) {
            int status;
            if (pids[i] <= 0 || waitpid(pids[i], &status, WNOHANG) != pids[i]) {
                continue;
            }
            pids[i] = 0;
            left--;
            if (good && !expected_end(row, status)) {
                good = false;
                snprintf(why, why_bytes, "process %u ended with %s %d", (unsigned)i,
                         WIFEXITED(status) ? "status" : "signal",
                         WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
                int64_t grace_ns = now_ns() + INT64_C(500000000);
                end_ns           = grace_ns < end_ns ? grace_ns : end_ns;
            }
        }
        if (left > 0 && now_ns() > end_ns) {
            if (good) {
                snprintf(why, why_bytes, "%u processes did not end in time", (unsigned)left);
            }
            good = false;
            for (uint32_t i = 0; i < n; i++) {
                if (pids[i] > 0) {
                    kill(pids[i], SIGKILL);
                }
            }
            end_ns = INT64_MAX;
        }
        sleep_ms(1);
    }
    return good;
}

/* Files of a world are gone when the world is; here at the latest. */
static bool empty_folder(char *why, size_t why_bytes)
{
    DIR *dir   = opendir(folder);
    bool empty = true;
    char path[512];
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] != '.') {
            snprintf(why, why_bytes, "the file %s is left", entry->d_name);
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            unlink(path);
            empty = false;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return empty;
}

static bool run_case(const run_options *o, const case_row *row)
{
    char     why[512] = "";
    pid_t    pids[MOST_RANKS];
    uint32_t n        = o->engine->threads ? 1 : row->n_ranks;
    int64_t  begin_ns = now_ns();
    double   most     = (o->is_long ? LONG_SECONDS : QUICK_SECONDS) * o->patience;
    memset(shared, 0, sizeof *shared);
    for (uint32_t i = 0; i < n; i++) {
        pids[i] = start(o, row, i);
        if (pids[i] < 0) {
            fprintf(stderr, "fork: %s\n", strerror(errno));
        }
    }
    bool good      = wait_for(row, pids, n, begin_ns + (int64_t)(most * 1e9), why, sizeof why);
    bool told      = atomic_load(&shared->failed) == 2;
    char left[512] = "";
    if (!empty_folder(left, sizeof left) && good) {
        good = false;
        memcpy(why, left, sizeof why);
    }
    if (good) {
        printf("ok      %-14s %6.2f s\n", row->name, (double)(now_ns() - begin_ns) / 1e9);
    } else {
        printf("FAILED  %-14s engine %s, seed %llu, %.2f s: %s%s%s\n", row->name, o->engine->name,
               (unsigned long long)o->seed, (double)(now_ns() - begin_ns) / 1e9, why,
               told ? "; " : "", told ? shared->report : "");
    }
    fflush(stdout);
    return good;
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

static const engine_row *find_engine(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(engine_rows); i++) {
        if (strcmp(engine_rows[i].name, name) == 0) {
            return &engine_rows[i];
        }
    }
    return NULL;
}

static int usage(void)
{
    fprintf(stderr, "conformance ENGINE [--case NAME] [--long] [--step N] [--seed N] "
                    "[--patience N]\nengines:");
    for (size_t i = 0; i < COUNT_OF(engine_rows); i++) {
        fprintf(stderr, " %s", engine_rows[i].name);
    }
    fprintf(stderr, "\ncases:");
    for (size_t i = 0; i < n_case_rows; i++) {
        fprintf(stderr, " %s", case_rows[i].name);
    }
    fprintf(stderr, "\n");
    return 2;
}

static bool read_options(int argc, char **argv, run_options *o)
{
    *o = (run_options){.engine = argc > 1 ? find_engine(argv[1]) : NULL, .seed = 1, .patience = 1};
    for (int i = 2; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--long") == 0) {
            o->is_long = true;
        } else if (value == NULL) {
            return false;
        } else if (strcmp(argv[i], "--case") == 0) {
            o->only = argv[++i];
        } else if (strcmp(argv[i], "--step") == 0) {
            o->step = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--seed") == 0) {
            o->seed = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--patience") == 0) {
            o->patience = strtod(argv[++i], NULL);
        } else {
            return false;
        }
    }
    o->step = o->step > 0 ? o->step : o->is_long ? 1 : 13;
    return o->engine != NULL && o->patience > 0;
}

static bool prepare(void)
{
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/ferry-conformance-XXXXXX",
             parent == NULL || strlen(parent) > 80 ? "/tmp" : parent);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared != MAP_FAILED && mkdtemp(folder) != NULL;
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
    for (size_t i = 0; i < n_case_rows && result != SKIPPED; i++) {
        const case_row *row = &case_rows[i];
        if ((o.only != NULL && strcmp(row->name, o.only) != 0) ||
            (row->processes_only && o.engine->threads)) {
            continue;
        }
        n_run++;
        n_failed += !run_case(&o, row);
    }
    rmdir(folder);
    if (result != SKIPPED) {
        printf("%zu cases on %s, %zu failed\n", n_run, o.engine->name, n_failed);
        result = n_failed > 0 || n_run == 0;
    }
    return result;
}
