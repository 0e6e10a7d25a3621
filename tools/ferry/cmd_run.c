/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"
#include "launch.h"
#include "plan.h"
#include "run.h"
#include "steps.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Usage: ferry run [OPTION]... SPEC\n"
    "\n"
    "Moves the weights of a sharded model from one layout to another, on this machine, and proves\n"
    "it: starts the ranks, fills their source shards with bytes that are all different, moves\n"
    "them, compares every byte of every destination shard with what should be there, and says how\n"
    "fast it went. SPEC is a JSON file that says how each side cuts the tensors (ferry.spec/1: "
    "see\n"
    "examples/ and docs/formats.md), or a plan that was saved with ferry plan --save.\n";

static const char more_help[] =
    "\n"
    "Sizes are numbers of bytes, or of K, M or G for KiB, MiB or GiB.\n"
    "\n"
    "What is printed:\n"
    "  GB are 10^9 bytes. A run takes as long as its slowest rank, and its rate counts every byte\n"
    "  that destinations get, from other ranks and from their own. The machine's copy limit is\n"
    "  what all its cores copy in memory, measured before and after the runs. Phases are those of\n"
    "  the median run: copy is from tensor to tensor and into slots, wire in the transport's\n"
    "  calls, unpack out of slots, check the reading of destinations for --checksum end, and wait\n"
    "  the rest. Paths: local stays on its rank, mapped goes from tensor to tensor in mapped\n"
    "  memory, remote is put into the destination, staged goes through slots.\n"
    "\n"
    "Exit status:\n"
    "  0 done, 1 the work failed or a byte was wrong (one sentence on stderr), 2 wrong usage; 128\n"
    "  and the number of a signal that ended it\n"
    "\n"
    "Examples:\n"
    "  ferry run examples/run/tp4-to-tp2dp2.json\n"
    "  ferry run examples/run/tp4-to-tp2dp2.json --memory malloc --checksum end\n"
    "  ferry run examples/llama-tiny.json --transport inproc --trace llama-tiny.trace.json\n"
    "  ferry run examples/run/tp4-to-tp2dp2.json --html run.html\n"
    "  ferry launch -n 8 --nodes 2 -- ferry run examples/llama-tiny.json --json\n";

/* ---- before any rank is there ---- */

/* Destinations are counted at once; only if these fit, what every rank needs is added up. */
static ferry_status check_room(const run_request *r, const ferry_plan *plan, ferry_error *error)
{
    ferry_machine machine = FERRY_MACHINE_INIT;
    ferry_plan_totals totals = FERRY_PLAN_TOTALS_INIT;
    uint32_t n_ranks = ferry_plan_rank_count(plan);
    ferry_status status = ferry_machine_probe(0, &machine, error);
    FY_THEN(status, ferry_plan_get_totals(plan, &totals, error));
    FY_THEN(status, run_check_room(totals.moved_bytes + totals.local_bytes, machine.room_bytes,
                                   n_ranks, error));
    uint64_t needed = 0;
    for (uint32_t rank = 0; rank < n_ranks && status == FERRY_OK; rank++) {
        uint64_t bytes = 0;
        status = run_needed_bytes(r, plan, rank, &bytes, error);
        needed += bytes;
    }
    return status == FERRY_OK ? run_check_room(needed, machine.room_bytes, n_ranks, error) : status;
}

/* ---- ranks that are processes ---- */

/* The ranks are this program again, with the same arguments. */
static int start_processes(int argc, char **argv, uint32_t n_ranks)
{
    static char self[] = "/proc/self/exe", name[] = "run", started[] = "--started";
    char **words = calloc((size_t)argc + 3, sizeof *words);
    if (words == NULL) {
        return fail("run", "out of memory");
    }
    words[0] = self;
    words[1] = name;
    words[2] = started;
    memcpy(words + 3, argv + 1, ((size_t)argc - 1) * sizeof *words);
    launch_request request = {.name = "run",
                              .n_ranks = n_ranks,
                              .n_world = n_ranks,
                              .grace_seconds = LAUNCH_GRACE_SECONDS,
                              .ranks_explain = true,
                              .program = words};
    int status = launch(&request);
    free(words);
    bool asked = status == 128 + SIGINT || status == 128 + SIGTERM || status == 128 + SIGHUP ||
                 status == 128 + SIGQUIT;
    return status == EXIT_DONE || status == EXIT_USAGE || asked ? status : EXIT_FAILED;
}

/* ---- ranks that are threads ---- */

typedef struct rank_thread {
    const run_request *request;
    const ferry_plan *plan;
    ferry_world *world;
    pthread_t thread;
    int status;
} rank_thread;

static void *run_thread(void *argument)
{
    rank_thread *t = argument;
    t->status = run_rank(t->request, t->world, t->plan);
    return NULL;
}

static int join_threads(rank_thread *threads, uint32_t n)
{
    int status = EXIT_DONE;
    for (uint32_t i = 0; i < n; i++) {
        pthread_join(threads[i].thread, NULL);
        status = status == EXIT_DONE ? threads[i].status : status;
    }
    return status;
}

static int start_threads(const run_request *r, const ferry_plan *plan)
{
    uint32_t n = ferry_plan_rank_count(plan), started = 0;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    ferry_error error;
    int status = EXIT_DONE;
    ferry_world **worlds = calloc(n, sizeof(ferry_world *));
    rank_thread *threads = calloc(n, sizeof *threads);
    options.deadline_seconds = r->deadline;
    if (worlds == NULL || threads == NULL) {
        status = fail("run", "out of memory");
    } else if (ferry_world_create_threads(n, &options, worlds, &error) != FERRY_OK) {
        status = fail("run", error.message);
    }
    for (; started < n && status == EXIT_DONE; started++) {
        rank_thread *t = &threads[started];
        *t = (rank_thread){.request = r, .plan = plan, .world = worlds[started]};
        if (pthread_create(&t->thread, NULL, run_thread, t) != 0) {
            snprintf(error.message, sizeof error.message,
                     "rank %u of %u could not be started; is the limit of threads reached?",
                     started, n);
            ferry_world_abort(worlds[started], error.message);
            for (uint32_t left = started; left < n; left++) {
                ferry_world_destroy(worlds[left]);
            }
            if (started == 0) {
                status = fail("run", error.message);
            }
            break;
        }
    }
    int worst = threads != NULL ? join_threads(threads, started) : EXIT_DONE;
    free(threads);
    free(worlds);
    return status == EXIT_DONE ? worst : status;
}

/* The engine, behind all wrappers, is that of threads. */
static bool wants_threads(const run_request *r)
{
    const char *engines =
        r->service.engines != NULL ? r->service.engines : getenv("FERRY_TRANSPORT");
    const char *colon = engines == NULL ? NULL : strrchr(engines, ':');
    return engines != NULL && strcmp(colon == NULL ? engines : colon + 1, "inproc") == 0;
}

static int run(int argc, char **argv)
{
    run_request r;
    int status = run_parse_arguments(argc, argv, &r);
    if (status != EXIT_DONE) {
        return status;
    }
    if (r.has_planning_option && plan_is_saved(r.path)) {
        return fail_usage("run", "a saved plan has its own --replica and tensors");
    }
    if (r.join) {
        return run_rank(&r, NULL, NULL);
    }
    ferry_error error;
    ferry_plan *plan = NULL;
    if (plan_open("run", r.path, &r.planning, &plan, &error) != FERRY_OK ||
        check_room(&r, plan, &error) != FERRY_OK) {
        status = fail("run", error.message);
    } else if (wants_threads(&r)) {
        status = start_threads(&r, plan);
    } else {
        uint32_t n_ranks = ferry_plan_rank_count(plan);
        ferry_plan_destroy(plan); /* ranks make their own; this process only waits */
        plan = NULL;
        status = start_processes(argc, argv, n_ranks);
    }
    ferry_plan_destroy(plan);
    return status;
}

const command command_run = {.name = "run",
                             .group = "Plan and move",
                             .summary = "move a model between two layouts here, and verify it",
                             .help = help,
                             .options = run_option_rows,
                             .more_help = more_help,
                             .run = run};
