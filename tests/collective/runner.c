/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * collective ROW [--case NAME] [--long] [--seed N] [--count N] [--patience N]
 *
 * Runs the cases on one row of the table. Each case has processes of its own: one for all ranks
 * where they are threads, else one a rank. The runner only starts them, waits no longer than a case
 * may take, and ends what is left by its pid. --count repeats each case with further seeds. Exit
 * status 77: the engine cannot run here.
 */
#include "collective/suite.h"
#include "conformance/children.h"

#include <dirent.h>
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

enum { QUICK_SECONDS = 60, LONG_SECONDS = 1800 };

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

enum {
    ALL     = 1 << 0, /* any row */
    PLAIN   = 1 << 1, /* quick: only where no wrapper stands, and not over ucx */
    THREADS = 1 << 2, /* only inproc */
    DIES    = 1 << 3  /* only processes */
};

typedef struct collective_case {
    case_row row;
    uint32_t where;
} collective_case;

#define CASE(text, ranks, function, flags)                                                         \
    {                                                                                              \
        .row = {.name = (text), .n_ranks = (ranks), .run = (function)}, .where = (flags)           \
    }
#define FAULT(text, ranks, function, flags, seconds)                                               \
    {                                                                                              \
        .row   = {.name             = (text),                                                      \
                  .n_ranks          = (ranks),                                                     \
                  .run              = (function),                                                  \
                  .deadline_seconds = (seconds),                                                   \
                  .processes_only   = ((flags)&DIES) != 0,                                         \
                  .dies             = ((flags)&DIES) != 0},                                                    \
        .where = (flags)                                                                           \
    }

static const collective_case cases[] = {
    CASE("oracle", 1, case_oracle, THREADS),
    CASE("all1", 1, case_all, ALL),
    CASE("all2", 2, case_all, ALL),
    CASE("all3", 3, case_all, PLAIN),
    CASE("all4", 4, case_all, ALL),
    CASE("all5", 5, case_all, PLAIN),
    CASE("all6", 6, case_all, PLAIN),
    CASE("all7", 7, case_all, THREADS),
    CASE("all8", 8, case_all, PLAIN),
    CASE("all9", 9, case_all, THREADS),
    CASE("all10", 10, case_all, THREADS),
    CASE("all11", 11, case_all, THREADS),
    CASE("all12", 12, case_all, THREADS),
    CASE("all13", 13, case_all, THREADS),
    CASE("all14", 14, case_all, THREADS),
    CASE("all15", 15, case_all, THREADS),
    CASE("all16", 16, case_all, THREADS),
    CASE("large", 4, case_large, PLAIN),
    CASE("large3", 3, case_large, PLAIN),
    CASE("ranks24", 24, case_many_ranks, THREADS),
    CASE("ranks37", 37, case_many_ranks, THREADS),
    CASE("ranks64", 64, case_many_ranks, THREADS),
    CASE("deterministic2", 2, case_deterministic, ALL),
    CASE("deterministic3", 3, case_deterministic, PLAIN),
    CASE("deterministic4", 4, case_deterministic, ALL),
    CASE("deterministic6", 6, case_deterministic, PLAIN),
    CASE("deterministic8", 8, case_deterministic, THREADS),
    CASE("deterministic12", 12, case_deterministic, THREADS),
    CASE("random2", 2, case_random, ALL),
    CASE("random3", 3, case_random, PLAIN),
    CASE("random4", 4, case_random, ALL),
    CASE("random6", 6, case_random, ALL),
    CASE("random8", 8, case_random, PLAIN),
    CASE("random12", 12, case_random, THREADS),
    CASE("two_handles", 4, case_two_handles, PLAIN),
    CASE("requests", 4, case_requests, ALL),
    CASE("autotune", 4, case_autotune, PLAIN),
    CASE("life", 4, case_life, ALL),
    CASE("life1", 1, case_life, PLAIN),
    CASE("shared_transport", 4, case_shared_transport, ALL),
    CASE("bad_create", 4, case_bad_create, PLAIN),
    CASE("bad_calls", 4, case_bad_calls, PLAIN),
    CASE("bad_calls3", 3, case_bad_calls, PLAIN),
    CASE("bad_order", 4, case_bad_order, PLAIN),
    CASE("differing_options", 3, case_differing_options, PLAIN),
    CASE("two_threads", 2, case_two_threads, PLAIN),
    CASE("cancel", 4, case_cancel, PLAIN),
    CASE("diverging", 4, case_diverging, ALL),
    FAULT("idle", 4, case_idle, PLAIN, 5),
    FAULT("abort", 4, case_abort, PLAIN, 5),
    FAULT("lose", 4, case_lose, PLAIN, 1),
    FAULT("killed", 4, case_killed, ALL | DIES, 5),
    FAULT("killed2", 2, case_killed, PLAIN | DIES, 5),
    FAULT("killed_early", 4, case_killed_early, PLAIN | DIES, 5),
    FAULT("stopped", 4, case_stopped, PLAIN | DIES, 1),
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

static ferry_world_options options_for(const run_options *o, const case_row *row)
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    double              own     = row->deadline_seconds;
    options.deadline_seconds    = (own > 0 ? own : 10) * o->patience;
    options.entry_seconds       = (own > 0 ? 3 : 30) * o->patience;
    options.join_seconds        = 20 * o->patience;
    if (strcmp(o->engine->name, "mixed") == 0 && row->n_ranks > 1) {
        options.nodes = "2";
    }
    return options;
}

static case_plan plan_of(const run_options *o, const case_row *row)
{
    bool is_ucx = strcmp(o->engine->engine, "ucx") == 0;
    return (case_plan){.me       = {.engine   = o->engine,
                                    .row      = row,
                                    .n_ranks  = row->n_ranks,
                                    .random   = o->seed * MOST_CASE_RANKS,
                                    .seed     = o->seed,
                                    .is_long  = o->is_long,
                                    .patience = o->patience,
                                    .folder   = folder,
                                    .shared   = shared},
                       .world    = options_for(o, row),
                       .run      = row->run,
                       .is_quiet = true,
                       /* What UCX cannot close in time when a world has failed is left behind. */
                       .is_checked = row->deadline_seconds <= 0 || !is_ucx};
}

/* Names of shared memory that are ferry's; there should never be any. */
static size_t count_names(void)
{
    DIR   *dir = opendir("/dev/shm");
    size_t n   = 0;
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        n += strstr(entry->d_name, "ferry") != NULL;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return n;
}

static bool run_case(const run_options *o, const case_row *row)
{
    crew      c;
    case_plan plan    = plan_of(o, row);
    size_t    n_names = count_names();
    crew_run(&c, &plan, (o->is_long ? LONG_SECONDS : QUICK_SECONDS) * o->patience);
    if (c.why[0] == '\0' && count_names() > n_names) {
        snprintf(c.why, sizeof c.why, "shared memory is left in /dev/shm");
    }
    return crew_report(&c);
}

static int usage(void)
{
    fprintf(stderr, "collective ROW [--case NAME] [--long] [--seed N] [--count N] [--patience N]\n"
                    "rows:");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fprintf(stderr, " %s", rows[i].name);
    }
    fprintf(stderr, "\ncases:");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        fprintf(stderr, " %s", cases[i].row.name);
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
    snprintf(folder, sizeof folder, "%s/ferry-collective-XXXXXX",
             parent == NULL || strlen(parent) > 80 ? "/tmp" : parent);
    unsetenv("FERRY_TUNE_FILE");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared != MAP_FAILED && mkdtemp(folder) != NULL;
}

static bool is_wanted(const run_options *o, const collective_case *it)
{
    const engine_row *engine = o->engine;
    bool              named  = o->only != NULL && strcmp(it->row.name, o->only) == 0;
    bool              plain = strchr(engine->name, '_') == NULL && strcmp(engine->name, "ucx") != 0;
    /* UCX 1.13 ends its process when a peer goes while it is being connected. */
    bool by_luck = strcmp(engine->engine, "ucx") == 0 && it->row.run == case_killed_early;
    if ((o->only != NULL && !named) || (it->row.processes_only && engine->threads) || by_luck) {
        return false;
    }
    if (!named && it->where & THREADS) {
        return strcmp(engine->name, "inproc") == 0 || (o->is_long && it->row.n_ranks <= MOST_RANKS);
    }
    return named || o->is_long || plain || (it->where & ALL) != 0;
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
    if (!engine_available(o.engine, true, shared)) {
        printf("SKIPPED: the engine %s cannot run here: %s\n", o.engine->engine, shared->report);
        result = SKIPPED;
    }
    for (uint64_t round = 0; round < o.count && result != SKIPPED; round++, o.seed++) {
        for (size_t i = 0; i < COUNT_OF(cases); i++) {
            if (is_wanted(&o, &cases[i])) {
                n_run++;
                n_failed += !run_case(&o, &cases[i].row);
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
