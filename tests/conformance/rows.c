/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "conformance/rows.h"
#include "conformance/children.h"

#include "support/seed.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

enum { QUICK_SECONDS = 300 }; /* what takes longer hangs */

/* An empty text: the best engine for each pair. */
static const engine_row rows[] = {
    {"inproc", "inproc", "inproc", true, {NULL}},
    {"inproc_strict", "strict:inproc", "inproc", true, {NULL}},
    {"inproc_trace", "trace:inproc", "inproc", true, {NULL}},
    {"inproc_reorder", "reorder=7:inproc", "inproc", true, {NULL}},
    {"inproc_delay", "delay=50us:inproc", "inproc", true, {NULL}},
    {"shm", "shm", "shm", false, {NULL}},
    {"shm_strict", "strict:shm", "shm", false, {NULL}},
    {"shm_trace", "trace:shm", "shm", false, {NULL}},
    {"shm_reorder", "reorder=7:shm", "shm", false, {NULL}},
    {"shm_delay", "delay=50us:shm", "shm", false, {NULL}},
    {"ucx", "ucx", "ucx", false, {"UCX_TLS=tcp"}},
    {"ucx_strict", "strict:ucx", "ucx", false, {"UCX_TLS=tcp"}},
    {"ucx_reorder", "reorder=7:ucx", "ucx", false, {"UCX_TLS=tcp"}},
    {"ucx_rma", "ucx", "ucx", false, {"FERRY_UCX_MODE=rma", "UCX_TLS=self,sm,tcp"}},
    {"ucx_cuda", "ucx", "ucx", false, {"UCX_TLS=tcp,cuda_copy"}},
    {"ucx_cuda_sm", "ucx", "ucx", false, {"FERRY_UCX_MODE=rma", "UCX_TLS=self,sm,cuda_copy"}},
    {"ucx_late", "ucx", "ucx", false, {"FERRY_UCX_MODE=rma", "UCX_TLS=self,sm,tcp"}},
    {"mixed", "", "ucx", false, {"UCX_TLS=tcp"}},
    {"nvshmem", "nvshmem", "nvshmem", false, {NULL}},
    {"nvshmem_nodes", "nvshmem", "nvshmem", false, {"STANDIN_NODE=1"}}, /* a node for each PE */
    {"nvshmem_devices",
     "nvshmem",
     "nvshmem",
     false,
     {"NVSHMEM_HEAP_KIND=DEVICE", "STANDIN_NODE=1", "UCX_TLS=tcp"}},
};

/* What all cases of a run share. */
typedef struct suite_run {
    const row_suite *suite;
    suite_options options;
    char folder[128];
    run_shared *shared;
} suite_run;

/* Ranks are on two nodes by decree. */
static bool row_has_nodes(const engine_row *engine)
{
    return strcmp(engine->name, "mixed") == 0 || strcmp(engine->name, "nvshmem_devices") == 0;
}

static ferry_world_options world_of(const suite_run *run, const case_row *row)
{
    const suite_options *o = &run->options;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    double own = row->deadline_seconds;
    double entry = row->entry_seconds;
    options.deadline_seconds = (own > 0 ? own : 10) * o->patience;
    options.entry_seconds = (entry > 0 ? entry : 30) * o->patience;
    options.join_seconds = 60 * o->patience;
    if (row_has_nodes(o->engine) && row->n_ranks > 1) {
        options.nodes = "2";
    }
    return options;
}

static case_plan plan_of(const suite_run *run, const case_row *row)
{
    const suite_options *o = &run->options;
    return (case_plan){.me = {.engine = o->engine,
                              .row = row,
                              .n_ranks = row->n_ranks,
                              .random = o->seed * MOST_CHILDREN,
                              .seed = o->seed,
                              .is_long = o->is_long,
                              .patience = o->patience,
                              .folder = run->folder,
                              .shared = run->shared},
                       .world = world_of(run, row),
                       .run = row->run,
                       .is_quiet = true,
                       .is_checked =
                           !row_has_one_job(o->engine) &&
                           (row->deadline_seconds <= 0 || !row_has_ucx_memory(o->engine))};
}

/* Folders of other tests, which may run beside this one. */
static const char TEST_FOLDER[] = "ferry-test-";

/* Names of shared memory that are ferry's; there should never be any. */
static size_t count_names(void)
{
    DIR *dir = opendir("/dev/shm");
    size_t n = 0;
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        n += strstr(entry->d_name, "ferry") != NULL &&
             strncmp(entry->d_name, TEST_FOLDER, sizeof TEST_FOLDER - 1) != 0;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return n;
}

static bool run_case(const suite_run *run, const case_row *row)
{
    crew c;
    case_plan plan = plan_of(run, row);
    size_t n_names = count_names();
    double most = run->options.is_long ? run->suite->long_seconds : QUICK_SECONDS;
    crew_run(&c, &plan, most * run->options.patience);
    if (c.why[0] == '\0' && count_names() > n_names) {
        snprintf(c.why, sizeof c.why, "shared memory is left in /dev/shm");
    }
    return crew_report(&c);
}

static int usage(const row_suite *suite)
{
    fprintf(stderr,
            "%s ROW [--case NAME] [--long] [--seed N] [--count N] [--patience N]\n"
            "rows:",
            suite->name);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fprintf(stderr, " %s", rows[i].name);
    }
    fprintf(stderr, "\ncases:");
    for (size_t i = 0; i < suite->n_cases; i++) {
        fprintf(stderr, " %s", suite->case_at(i)->name);
    }
    fprintf(stderr, "\n");
    return 2;
}

static bool read_options(int argc, char **argv, suite_options *o)
{
    *o = (suite_options){.seed = first_seed_of(1), .count = 1, .patience = 1};
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

/* Where ranks meet, and what they share. */
static bool prepare(suite_run *run)
{
    const char *parent = getenv("TMPDIR");
    snprintf(run->folder, sizeof run->folder, "%s/ferry-%s-XXXXXX",
             parent == NULL || strlen(parent) > 80 ? "/tmp" : parent, run->suite->name);
    run->shared =
        mmap(NULL, sizeof *run->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return run->shared != MAP_FAILED && mkdtemp(run->folder) != NULL;
}

static bool is_wanted(const suite_run *run, size_t index)
{
    const suite_options *o = &run->options;
    const case_row *row = run->suite->case_at(index);
    if ((o->only != NULL && strcmp(row->name, o->only) != 0) ||
        (row->processes_only && o->engine->threads)) {
        return false;
    }
    return run->suite->is_wanted(o, index);
}

static int run_cases(suite_run *run)
{
    suite_options *o = &run->options;
    size_t n_run = 0, n_failed = 0;
    for (uint64_t round = 0; round < o->count; round++, o->seed++) {
        for (size_t i = 0; i < run->suite->n_cases; i++) {
            if (is_wanted(run, i)) {
                n_run++;
                n_failed += !run_case(run, run->suite->case_at(i));
            }
        }
    }
    printf("%zu cases on %s, %zu failed\n", n_run, o->engine->name, n_failed);
    return n_failed > 0 || n_run == 0;
}

int run_suite(const row_suite *suite, int argc, char **argv)
{
    int result = SKIPPED;
    suite_run run = {.suite = suite};
    if (!read_options(argc, argv, &run.options)) {
        return usage(suite);
    }
    if (!prepare(&run)) {
        fprintf(stderr, "no folder for the ranks to meet in: %s\n", strerror(errno));
        return 1;
    }
    const engine_row *engine = run.options.engine;
    if (engine_available(engine, true, run.shared)) {
        result = run_cases(&run);
    } else {
        result = skip_engine(engine, run.shared);
    }
    rmdir(run.folder);
    return result;
}

bool row_is_plain(const engine_row *engine)
{
    return strchr(engine->name, '_') == NULL && strcmp(engine->name, "ucx") != 0;
}

const char *engines_of(const rank_context *me, const char *wrappers, char *text, size_t n_bytes)
{
    if (wrappers[0] == '\0') {
        return me->engine->engines[0] == '\0' ? NULL : me->engine->engines;
    }
    snprintf(text, n_bytes, "%s%s", wrappers, me->engine->engines);
    size_t length = strlen(text);
    if (text[length - 1] == ':') { /* wrappers around the best for each pair */
        text[length - 1] = '\0';
    }
    return text;
}

static run_shared *told; /* by a rank that stops itself, so that the runner ends it at last */

static void stop_myself(int number)
{
    (void)number;
    atomic_store(&told->has_stopped, true);
    raise(SIGSTOP);
}

void end_later(rank_context *me, uint32_t us, bool stops)
{
    struct itimerval timer = {.it_value = {.tv_sec = us / 1000000, .tv_usec = us % 1000000}};
    told = me->shared;
    if (signal(SIGALRM, stops ? stop_myself : SIG_DFL) == SIG_ERR ||
        setitimer(ITIMER_REAL, &timer, NULL) != 0) {
        fail(me, "no timer");
    }
}

void meet_outside(rank_context *me)
{
    _Atomic uint64_t *n_came = &me->shared->word[COUNT_OF(me->shared->word) - 1];
    uint64_t round = atomic_fetch_add(n_came, 1) / me->n_ranks + 1;
    while (atomic_load(n_came) < round * me->n_ranks) {
        sleep_ms(1);
    }
}

void meet_left(rank_context *me, uint32_t n_left)
{
    _Atomic uint64_t *n_came = &me->shared->word[COUNT_OF(me->shared->word) - 2];
    atomic_fetch_add(n_came, 1);
    while (atomic_load(n_came) < n_left) {
        sleep_ms(1);
    }
}

void expect_named(rank_context *me, uint32_t victim)
{
    char name[32];
    snprintf(name, sizeof name, "rank %u", (unsigned)victim);
    expect(me, strstr(me->error.message, name) != NULL, "%s is not named: %.400s", name,
           me->error.message);
}
