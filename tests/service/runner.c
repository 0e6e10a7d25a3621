/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * service ROW [--case NAME] [--long] [--seed N] [--count N] [--patience N]
 *
 * Runs the cases on one row of the table. Each case has processes of its own: one for all ranks
 * where they are threads, else one a rank. The runner only starts them, waits no longer than a case
 * may take, and ends what is left by its pid. --count repeats each case with further seeds. Exit
 * status 77: the engine cannot run here.
 */
#include "conformance/children.h"
#include "service/suite.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

enum { QUICK_SECONDS = 60, LONG_SECONDS = 900 };

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

static ferry_world_options options_for(const run_options *o, const case_row *row)
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    double              own     = row->deadline_seconds;
    options.deadline_seconds    = (own > 0 ? own : 10) * o->patience;
    options.entry_seconds       = 30 * o->patience;
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
                                    .random   = o->seed * MOST_RANKS,
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

static bool run_case(const run_options *o, const case_row *row)
{
    crew      c;
    case_plan plan = plan_of(o, row);
    crew_run(&c, &plan, (o->is_long ? LONG_SECONDS : QUICK_SECONDS) * o->patience);
    return crew_report(&c);
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
    if (!engine_available(o.engine, true, shared)) {
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
