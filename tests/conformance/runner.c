/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * conformance ENGINE [--case NAME] [--long] [--step N] [--seed N] [--patience N] [--list]
 *
 * Runs the cases on one row of the table of engines. Each case has processes of its own: one for
 * all ranks where they are threads, else one a rank. The runner itself only starts them, waits no
 * longer than a case may take, and ends what is left by its pid. Exit status 77: the engine cannot
 * run here.
 */
#include "conformance/children.h"

#include "support/seed.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { QUICK_SECONDS = 300, LONG_SECONDS = 1800 };

static const engine_row engine_rows[] = {
    {"inproc", "inproc", "inproc", true, {NULL}},
    {"inproc_strict", "strict:inproc", "inproc", true, {NULL}},
    {"inproc_delay", "delay=100us:inproc", "inproc", true, {NULL}},
    {"inproc_trace", "trace:inproc", "inproc", true, {NULL}},
    {"inproc_reorder", "reorder=7:inproc", "inproc", true, {NULL}},
    {"inproc_chain", "trace:delay=20us:strict:inproc", "inproc", true, {NULL}},
    {"shm", "shm", "shm", false, {NULL}},
    {"shm_strict", "strict:shm", "shm", false, {NULL}},
    {"shm_delay", "delay=100us:shm", "shm", false, {NULL}},
    {"shm_trace", "trace:shm", "shm", false, {NULL}},
    {"shm_reorder", "reorder=7:shm", "shm", false, {NULL}},
    {"ucx", "ucx", "ucx", false, {"UCX_TLS=tcp"}},
    {"ucx_strict", "strict:ucx", "ucx", false, {"UCX_TLS=tcp"}},
    {"ucx_delay", "delay=100us:ucx", "ucx", false, {"UCX_TLS=tcp"}},
    {"ucx_trace", "trace:ucx", "ucx", false, {"UCX_TLS=tcp"}},
    {"ucx_reorder", "reorder=7:ucx", "ucx", false, {"UCX_TLS=tcp"}},
    {"ucx_rma", "ucx", "ucx", false, {"FERRY_UCX_MODE=rma", "UCX_TLS=self,sm,tcp"}},
    {"ucx_cuda", "ucx", "ucx", false, {"UCX_TLS=tcp,cuda_copy"}},
    {"ucx_cuda_sm", "ucx", "ucx", false, {"FERRY_UCX_MODE=rma", "UCX_TLS=self,sm,cuda_copy"}},
    {"ucx_late", "ucx", "ucx", false, {"FERRY_UCX_MODE=rma", "UCX_TLS=self,sm,tcp"}},
    {"ucx_card", "ucx", "ucx", false, {"UCX_TLS=tcp", "FERRY_UCX_LATE_CARD=1"}},
    {"ucx_rma_strict", "strict:ucx", "ucx", false, {"FERRY_UCX_MODE=rma", "UCX_TLS=self,sm,tcp"}},
    {"ucx_rma_tcp", "ucx", "ucx", false, {"FERRY_UCX_MODE=rma", "UCX_TLS=tcp"}},
    {"nvshmem", "nvshmem", "nvshmem", false, {NULL}},
    {"nvshmem_nodes", "nvshmem", "nvshmem", false, {"STANDIN_NODE=1"}}, /* a node for each PE */
    {"nvshmem_strict", "strict:nvshmem", "nvshmem", false, {"STANDIN_NODE=2"}},
    /* On two nodes; those of a node are mapped, where devices reach each other, or nobody is. */
    {"nvshmem_devices",
     "nvshmem",
     "nvshmem",
     false,
     {"NVSHMEM_HEAP_KIND=DEVICE", "STANDIN_NODE=1", "UCX_TLS=tcp"}},
    {"nvshmem_near",
     "nvshmem",
     "nvshmem",
     false,
     {"NVSHMEM_HEAP_KIND=DEVICE", "STANDIN_NODE=2", "UCX_TLS=tcp"}},
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
    {.name = "memory_owned", .n_ranks = 4, .run = case_memory_owned},
    {.name = "memory_order", .n_ranks = 2, .run = case_memory_order},
    {.name = "memory_loop", .n_ranks = 2, .run = case_memory_loop},
    {.name = "memory_huge", .n_ranks = 2, .run = case_memory_huge},
    {.name = "memory_failed", .n_ranks = 3, .run = case_memory_failed},
    {.name = "far", .n_ranks = 4, .run = case_far},
    {.name = "far_asleep", .n_ranks = 2, .run = case_far_asleep},
    {.name = "far_failed", .n_ranks = 3, .run = case_far_failed},
    {.name = "aside", .n_ranks = 4, .run = case_aside},
    {.name = "queue", .n_ranks = 3, .run = case_queue},
    {.name = "bad_queues", .n_ranks = 3, .run = case_bad_queues},
    {.name = "memory_scarce", .n_ranks = 2, .run = case_memory_scarce, .processes_only = true},
    {.name = "target", .n_ranks = 2, .run = case_target},
    {.name = "worlds", .n_ranks = 2, .run = case_worlds, .opens_itself = true},
    {.name = "reopen", .n_ranks = 2, .run = case_reopen, .opens_itself = true},
    {.name = "abort", .n_ranks = 3, .run = case_abort},
    {.name = "death", .n_ranks = 3, .run = case_death, .processes_only = true, .dies = true},
    {.name = "connecting",
     .n_ranks = 4,
     .run = case_connecting,
     .opens_itself = true,
     .ends_badly = true},
    {.name = "death_connecting",
     .n_ranks = 4,
     .run = case_death_connecting,
     .processes_only = true,
     .dies = true,
     .ends_badly = true},
    {.name = "half_put", .n_ranks = 2, .run = case_half_put},
    {.name = "lose", .n_ranks = 3, .run = case_lose, .deadline_seconds = 2, .opens_itself = true},
    {.name = "stop",
     .n_ranks = 3,
     .run = case_stop,
     .deadline_seconds = 3,
     .processes_only = true,
     .dies = true},
    {.name = "strict", .n_ranks = 2, .run = case_strict, .opens_itself = true},
    {.name = "delay", .n_ranks = 2, .run = case_delay, .opens_itself = true},
    {.name = "flip", .n_ranks = 2, .run = case_flip, .opens_itself = true},
    {.name = "trace", .n_ranks = 2, .run = case_trace, .opens_itself = true},
};
const size_t n_case_rows = COUNT_OF(case_rows);

typedef struct run_options {
    const engine_row *engine;
    const char *only;
    bool is_long;
    uint32_t step;
    uint64_t seed;
    double patience;
} run_options;

static char folder[128];
static run_shared *shared;

/* On two nodes, with an engine that is aside. */
static bool row_has_aside(const engine_row *engine)
{
    return strcmp(engine->name, "nvshmem_devices") == 0 ||
           strcmp(engine->name, "nvshmem_near") == 0;
}

static ferry_world_options options_for(const run_options *o, const case_row *row)
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    double own = row->deadline_seconds;
    options.deadline_seconds = (own > 0 ? own : 10) * o->patience;
    options.entry_seconds = 30 * o->patience;
    options.join_seconds = 60 * o->patience; /* of a deadline it would be three */
    if (row_has_aside(o->engine)) {
        options.nodes = "2";
    }
    return options;
}

static void find_capabilities(rank_context *me)
{
    me->can = UINT32_MAX;
    for (uint32_t peer = 0; peer < me->n_ranks; peer++) {
        uint32_t flags = 0;
        if (peer != me->rank) {
            must(me, ferry_transport_get_peer(me->transport, peer, NULL, &flags, &me->error));
            me->can &= flags;
        }
    }
}

static void run_rank(rank_context *me)
{
    if (!me->row->opens_itself) {
        me->transport = open_transport(me, me->world, "");
        find_capabilities(me);
    }
    me->row->run(me);
    ferry_transport_close(me->transport);
}

static case_plan plan_of(const run_options *o, const case_row *row)
{
    return (case_plan){.me = {.engine = o->engine,
                              .row = row,
                              .n_ranks = row->n_ranks,
                              .random = o->seed * MOST_RANKS,
                              .seed = o->seed,
                              .is_long = o->is_long,
                              .step = o->step,
                              .patience = o->patience,
                              .folder = folder,
                              .shared = shared},
                       .world = options_for(o, row),
                       .run = run_rank,
                       .is_checked = !row_has_one_job(o->engine) &&
                                     (!row->ends_badly || !row_has_ucx_memory(o->engine))};
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
    bool good = true;
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
                end_ns = grace_ns < end_ns ? grace_ns : end_ns;
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
    DIR *dir = opendir(folder);
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
    char why[512] = "";
    case_plan plan = plan_of(o, row);
    pid_t pids[MOST_RANKS];
    uint32_t n = o->engine->threads ? 1 : row->n_ranks;
    int64_t begin_ns = now_ns();
    double most = (o->is_long ? LONG_SECONDS : QUICK_SECONDS) * o->patience;
    memset(shared, 0, sizeof *shared);
    for (uint32_t i = 0; i < n; i++) {
        pids[i] = start_child(&plan, i);
        if (pids[i] < 0) {
            fprintf(stderr, "fork: %s\n", strerror(errno));
        }
    }
    bool good = wait_for(row, pids, n, begin_ns + (int64_t)(most * 1e9), why, sizeof why);
    bool told = atomic_load(&shared->failed) == 2;
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

/* Without a wrapper: the quick run takes fewer sizes through those, and waits for fewer limits. */
static bool is_bare(const engine_row *engine)
{
    return strcmp(engine->engines, engine->engine) == 0;
}

static bool is_possible(const engine_row *engine, const case_row *row)
{
    return !(row->processes_only && engine->threads);
}

static bool is_wanted(const run_options *o, const case_row *row)
{
    if (row_has_aside(o->engine) != (row->run == case_aside)) {
        return false; /* such rows have no other: what goes by the host goes as on others */
    }
    if (o->only != NULL) {
        return strcmp(row->name, o->only) == 0 && is_possible(o->engine, row);
    }
    bool waits = row->run == case_lose;
    return is_possible(o->engine, row) && (!waits || o->is_long || is_bare(o->engine));
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
    *o = (run_options){
        .engine = argc > 1 ? find_engine(argv[1]) : NULL, .seed = first_seed_of(1), .patience = 1};
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
    if (o->step == 0 && o->engine != NULL) {
        o->step = o->is_long ? 1 : is_bare(o->engine) ? 13 : 53;
    }
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
    int result = 0;
    size_t n_run = 0, n_failed = 0;
    if (!engine_available(o.engine, false, shared)) {
        result = skip_engine(o.engine, shared);
    }
    for (size_t i = 0; i < n_case_rows && result == 0; i++) {
        const case_row *row = &case_rows[i];
        if (is_wanted(&o, row)) {
            n_run++;
            n_failed += !run_case(&o, row);
        }
    }
    rmdir(folder);
    if (result == 0) {
        printf("%zu cases on %s, %zu failed\n", n_run, o.engine->name, n_failed);
        result = n_failed > 0 || n_run == 0;
    }
    return result;
}
