/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a run. All ranks walk through the same steps. What one of them alone cannot do ends
 * the world with its sentence; what all learn together needs no end.
 */
#include "run.h"

#include "commands.h"
#include "plan.h"
#include "run_walk.h"
#include "steps.h"
#include "terminal.h"
#include "units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double PROBE_SECONDS = 0.3;

/* The memory of destinations: with swaps there are two, and a run writes the one behind. */
enum { SOURCES, FRONT, BACK, N_ARENAS };

typedef struct rank_run {
    const run_request *request;
    const ferry_plan *plan;
    ferry_plan *own_plan;
    ferry_world *world;
    ferry_transport *transport;
    ferry_service *service;
    uint32_t rank;
    run_shards sources, destinations;
    run_arena arenas[N_ARENAS];
    char **memories[N_ARENAS]; /* of each tensor */
    run_results results;       /* this rank's own */
    const char *doing;         /* for the terminal; NULL where there is none */
    double shown;              /* when that was last told */
    uint32_t number;           /* of the run, from 1 on; 0: before */
    bool is_common;            /* all ranks have failed, and with one sentence */
} rank_run;

double run_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static ferry_status fail_memory(ferry_error *error)
{
    snprintf(error->message, sizeof error->message, "out of memory");
    return FERRY_ERR_NO_MEMORY;
}

/* Of a step that succeeds on all ranks or fails on all: nobody waits for those that fail. */
static ferry_status in_common(rank_run *run, ferry_status status)
{
    run->is_common = status != FERRY_OK;
    return status;
}

/* ---- progress, on rank 0's terminal ---- */

static const double SHOW_SECONDS = 0.2;

static void show(void *context, uint64_t done, uint64_t total)
{
    rank_run *run = context;
    double now = run_now();
    char size[UNIT_TEXT_BYTES], before[64], behind[64];
    if (run->doing == NULL || now < run->shown + SHOW_SECONDS) {
        return;
    }
    run->shown = now;
    snprintf(before, sizeof before, "%s", run->doing);
    if (run->number > 0) {
        snprintf(before, sizeof before, "%s, run %u of %u", run->doing, run->number,
                 run->results.n_runs);
    }
    double share = total == 0 ? 0 : (double)done / (double)total;
    snprintf(behind, sizeof behind, "%.0f%% of %s on rank 0", 100 * share,
             format_bytes((double)total, size));
    terminal_put_bar(before, share, behind);
}

static bool show_service(void *context, const ferry_progress *progress)
{
    show(context, progress->bytes_done, progress->bytes_total);
    return true;
}

static void begin_showing(rank_run *run, const char *what)
{
    if (run->doing != NULL) {
        run->doing = what;
    }
    if (run->rank == 0) {
        terminal_step("run", "%s", what);
    }
}

static void end_showing(const rank_run *run)
{
    if (run->doing != NULL) {
        terminal_clear_line();
    }
}

/* ---- the begin ---- */

static ferry_status check_size(rank_run *run, ferry_error *error)
{
    uint32_t wanted = ferry_plan_rank_count(run->plan), found = ferry_world_rank_count(run->world);
    if (wanted == found) {
        return FERRY_OK;
    }
    snprintf(error->message, sizeof error->message,
             "%s is a plan of %u ranks, and this world has %u", run->request->path, wanted, found);
    return in_common(run, FERRY_ERR_INVALID_INPUT);
}

typedef struct demand {
    uint64_t needed, room;
} demand;

/* Where nobody has done it before the ranks were started: of each node, what its ranks need. */
static ferry_status check_nodes(rank_run *run, ferry_error *error)
{
    ferry_machine machine = FERRY_MACHINE_INIT;
    demand own = {0};
    const void *said = NULL;
    ferry_status status = ferry_machine_probe(0, &machine, error);
    if (status == FERRY_OK) {
        own.room = machine.room_bytes;
        status = run_needed_bytes(run->request, run->plan, run->rank, &own.needed, error);
    }
    FY_THEN(status, ferry_world_all_gather(run->world, &own, sizeof own, &said, error));
    uint32_t n_nodes = status == FERRY_OK ? ferry_world_node_count(run->world) : 0;
    for (uint32_t node = 0; node < n_nodes && status == FERRY_OK; node++) {
        uint64_t needed = 0, room = UINT64_MAX;
        uint32_t n_ranks = 0;
        for (uint32_t rank = 0; rank < ferry_world_rank_count(run->world); rank++) {
            demand theirs;
            memcpy(&theirs, (const char *)said + rank * sizeof theirs, sizeof theirs);
            if (ferry_world_node_of(run->world, rank) == node) {
                needed += theirs.needed;
                room = theirs.room < room ? theirs.room : room;
                n_ranks++;
            }
        }
        status = in_common(run, run_check_room(needed, room, n_ranks, error));
    }
    return status;
}

static ferry_status open_world(rank_run *run, ferry_error *error)
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    options.deadline_seconds = run->request->deadline;
    FY_TRY(run->world == NULL ? ferry_world_create(&options, &run->world, error) : FERRY_OK);
    ferry_status status = FERRY_OK;
    run->rank = ferry_world_rank(run->world);
    run->results.n_ranks = ferry_world_rank_count(run->world);
    run->results.n_nodes = ferry_world_node_count(run->world);
    run->doing = run->rank == 0 && terminal_of_stderr().is_live ? "planning" : NULL;
    if (run->plan == NULL) {
        /* Of ranks that this program has started it has said what there is to say. */
        const char *noted = run->rank == 0 && !run->request->started ? "run" : NULL;
        status =
            plan_open(noted, run->request->path, &run->request->planning, &run->own_plan, error);
        run->plan = run->own_plan;
    }
    FY_THEN(status, check_size(run, error));
    if (status == FERRY_OK && run->request->join && !run->request->started) {
        status = check_nodes(run, error);
    }
    return status == FERRY_OK ? ferry_transport_open(run->world, run->request->service.engines,
                                                     &run->transport, error)
                              : status;
}

static ferry_status open_service(rank_run *run, ferry_error *error)
{
    ferry_service_options options = run->request->service;
    ferry_log_level level = FERRY_LOG_OFF;
    const char *wanted = getenv("FERRY_LOG");
    options.transport = run->transport;
    options.engines = NULL;
    options.trace = run->request->trace != NULL;
    if (wanted != NULL) {
        (void)ferry_log_level_parse(wanted, &level, NULL);
    }
    FY_TRY(ferry_service_create(run->world, &options, &run->service, error));
    return ferry_service_init(run->service, level, error);
}

/* ---- memory ---- */

static ferry_status open_memory(rank_run *run, const run_shards *shards, int arena,
                                ferry_error *error)
{
    ferry_status status =
        run_arena_open(run->transport, run->request->memory, ferry_world_local_rank(run->world),
                       shards->memory_bytes, &run->arenas[arena], error);
    char **begins = calloc(shards->n > 0 ? shards->n : 1, sizeof *begins);
    run->memories[arena] = begins;
    if (status == FERRY_OK && begins == NULL) {
        status = fail_memory(error);
    }
    for (size_t i = 0; i < shards->n && status == FERRY_OK; i++) {
        begins[i] = (char *)run->arenas[arena].buffer.base + shards->offsets[i];
    }
    return status;
}

static bool swaps(const rank_run *run)
{
    return run->request->service.commit == FERRY_COMMIT_SWAP;
}

/* A device's memory is worked on in the host's: what was filled goes there, what is checked comes.
 */
static ferry_status work_on_device(rank_run *run, const run_shards *shards, run_work work,
                                   int arena, ferry_error *error)
{
    uint64_t bytes = shards->memory_bytes;
    char *host = calloc(bytes > 0 ? bytes : 1, 1);
    char **places = calloc(shards->n > 0 ? shards->n : 1, sizeof *places);
    ferry_status status = host == NULL || places == NULL ? fail_memory(error) : FERRY_OK;
    for (size_t i = 0; i < shards->n && status == FERRY_OK; i++) {
        places[i] = host + shards->offsets[i];
    }
    if (status == FERRY_OK && work == RUN_CHECK && bytes > 0) {
        status = run_arena_read(&run->arenas[arena], host, bytes, error);
    }
    FY_THEN(status, run_shards_work(shards, work, places, show, run, error));
    if (status == FERRY_OK && work != RUN_CHECK && bytes > 0) {
        status = run_arena_write(&run->arenas[arena], host, bytes, error);
    }
    free(places);
    free(host);
    return status;
}

static ferry_status work_on(rank_run *run, const run_shards *shards, run_work work, int arena,
                            ferry_error *error)
{
    return run_memory_is_device(run->request->memory)
               ? work_on_device(run, shards, work, arena, error)
               : run_shards_work(shards, work, run->memories[arena], show, run, error);
}

static ferry_status open_shards(rank_run *run, ferry_error *error)
{
    begin_showing(run, "filling");
    ferry_status status =
        run_shards_open(run->plan, FERRY_SIDE_SOURCE, run->rank, &run->sources, error);
    FY_THEN(status, run_shards_open(run->plan, FERRY_SIDE_DESTINATION, run->rank,
                                    &run->destinations, error));
    FY_THEN(status, open_memory(run, &run->sources, SOURCES, error));
    FY_THEN(status, open_memory(run, &run->destinations, FRONT, error));
    if (status == FERRY_OK && swaps(run)) {
        status = open_memory(run, &run->destinations, BACK, error);
    }
    return status == FERRY_OK ? work_on(run, &run->sources, RUN_FILL, SOURCES, error) : status;
}

static ferry_buffer tensor_buffer(const rank_run *run, const run_shards *shards, int arena,
                                  size_t index)
{
    ferry_buffer buffer = run->arenas[arena].buffer;
    buffer.base = run->memories[arena][index];
    buffer.bytes = shards->bytes[index];
    return buffer;
}

static ferry_status list_tensors(const rank_run *run, const run_shards *shards, int arena,
                                 ferry_tensors **tensors_out, ferry_error *error)
{
    ferry_status status = ferry_tensors_create(tensors_out, error);
    for (size_t i = 0; i < shards->n && status == FERRY_OK; i++) {
        ferry_buffer front = tensor_buffer(run, shards, arena, i);
        if (arena == FRONT && swaps(run)) {
            ferry_buffer back = tensor_buffer(run, shards, BACK, i);
            status = ferry_tensors_add_pair(*tensors_out, shards->names[i], &front, &back, error);
        } else {
            status = ferry_tensors_add(*tensors_out, shards->names[i], &front, error);
        }
    }
    return status;
}

static ferry_status bind_shards(rank_run *run, ferry_error *error)
{
    ferry_tensors *sources = NULL, *destinations = NULL;
    ferry_status status = list_tensors(run, &run->sources, SOURCES, &sources, error);
    FY_THEN(status, list_tensors(run, &run->destinations, FRONT, &destinations, error));
    FY_THEN(status, ferry_service_bind(run->service, run->plan, sources, destinations, error));
    ferry_tensors_destroy(sources);
    ferry_tensors_destroy(destinations);
    return status;
}

/* ---- runs ---- */

static bool is_checked(const run_request *r, uint32_t number)
{
    return r->verify == RUN_VERIFY_EACH ||
           (r->verify == RUN_VERIFY_ENDS && (number == 0 || number == r->iterations));
}

uint32_t run_check_count(const run_request *request)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i <= request->iterations; i++) {
        n += is_checked(request, i);
    }
    return n;
}

/* Every run that ends well makes the memory behind that in front. */
static int arena_behind(const rank_run *run, uint32_t number)
{
    return swaps(run) && number % 2 == 0 ? BACK : FRONT;
}

typedef struct verdict {
    uint32_t is_wrong;
    char sentence[1020];
} verdict;

/* Each rank knows of its own bytes; then all know of all. */
static ferry_status check_bytes(rank_run *run, uint32_t number, ferry_error *error)
{
    verdict own = {0}, theirs;
    const void *said = NULL;
    ferry_error wrong;
    begin_showing(run, "checking");
    ferry_status status =
        work_on(run, &run->destinations, RUN_CHECK, arena_behind(run, number), &wrong);
    if (status == FERRY_ERR_DIGEST) {
        own.is_wrong = 1;
        snprintf(own.sentence, sizeof own.sentence, "after run %u of %u %.900s", number + 1,
                 run->request->iterations + 1, wrong.message);
    } else if (status != FERRY_OK) {
        *error = wrong;
        return status;
    }
    status = ferry_world_all_gather(run->world, &own, sizeof own, &said, error);
    for (uint32_t rank = 0; rank < run->results.n_ranks && status == FERRY_OK; rank++) {
        memcpy(&theirs, (const char *)said + rank * sizeof theirs, sizeof theirs);
        if (theirs.is_wrong) {
            snprintf(error->message, sizeof error->message, "%s", theirs.sentence);
            status = in_common(run, FERRY_ERR_DIGEST);
        }
    }
    return status;
}

static ferry_status run_once(rank_run *run, uint32_t number, ferry_error *error)
{
    run_sample *sample = &run->results.samples[number];
    ferry_status status = FERRY_OK;
    run->number = number + 1;
    if (is_checked(run->request, number)) {
        begin_showing(run, "poisoning");
        status = work_on(run, &run->destinations, RUN_POISON, arena_behind(run, number), error);
    }
    begin_showing(run, "moving");
    FY_THEN(status, ferry_world_barrier(run->world, error));
    run->results.ranks->begin = run_now();
    FY_THEN(status, in_common(run, ferry_service_run(run->service, NULL, error)));
    sample->statistics = (ferry_service_statistics)FERRY_SERVICE_STATISTICS_INIT;
    FY_THEN(status, ferry_service_get_statistics(run->service, &sample->statistics, error));
    return status == FERRY_OK && is_checked(run->request, number) ? check_bytes(run, number, error)
                                                                  : status;
}

/*
 * The limit of this machine, while its other ranks sleep. The rate of a shared machine drifts: it
 * is measured before and after the runs, and the better one counts.
 */
static ferry_status probe(rank_run *run, ferry_error *error)
{
    ferry_machine machine = FERRY_MACHINE_INIT;
    ferry_status status = ferry_world_barrier(run->world, error);
    bool is_device = run_memory_is_device(run->request->memory);
    begin_showing(run, "measuring the machine");
    if (status == FERRY_OK && ferry_world_local_rank(run->world) == 0) {
        /* What CPUs copy is no limit of devices. */
        status = ferry_machine_probe(is_device ? 0 : PROBE_SECONDS, &machine, error);
    }
    run_rank_result *own = run->results.ranks;
    if (is_device || machine.copy_all_gbytes_per_s > own->copy_gbytes_per_s) {
        own->copy_gbytes_per_s = machine.copy_all_gbytes_per_s;
        run->results.machine = machine;
    }
    return status == FERRY_OK ? ferry_world_barrier(run->world, error) : status;
}

static ferry_status run_all(rank_run *run, ferry_error *error)
{
    run->results.n_runs = run->request->iterations + 1;
    run->results.ranks = calloc(1, sizeof *run->results.ranks);
    run->results.samples = calloc(run->results.n_runs, sizeof *run->results.samples);
    if (run->results.ranks == NULL || run->results.samples == NULL) {
        return fail_memory(error);
    }
    FY_TRY(bind_shards(run, error));
    begin_showing(run, "scheduling");
    show(run, 0, run->destinations.tensor_bytes);
    FY_TRY(in_common(run, ferry_service_schedule(run->service, error)));
    FY_TRY(probe(run, error));
    for (uint32_t i = 0; i < run->results.n_runs; i++) {
        FY_TRY(run_once(run, i, error));
    }
    return probe(run, error);
}

/* ---- results ---- */

static ferry_status list_peers(rank_run *run, ferry_error *error)
{
    run_results *own = &run->results;
    ferry_status status = FERRY_OK;
    own->n_peers = ferry_service_peer_count(run->service);
    own->peers = calloc(own->n_peers > 0 ? own->n_peers : 1, sizeof *own->peers);
    if (own->peers == NULL) {
        return fail_memory(error);
    }
    for (size_t i = 0; i < own->n_peers && status == FERRY_OK; i++) {
        ferry_service_peer peer = FERRY_SERVICE_PEER_INIT;
        status = ferry_service_peer_at(run->service, (uint32_t)i, &peer, error);
        if (status == FERRY_OK) {
            own->peers[i] = (run_peer){.rank = run->rank,
                                       .peer = peer.peer,
                                       .paths = peer.paths,
                                       .bytes_out = peer.bytes_out,
                                       .bytes_in = peer.bytes_in};
            snprintf(own->peers[i].engine, sizeof own->peers[i].engine, "%s",
                     peer.engine != NULL ? peer.engine : "");
        }
    }
    return status;
}

static ferry_status list_spans(rank_run *run, ferry_error *error)
{
    run_results *own = &run->results;
    uint64_t n = run->request->trace != NULL ? ferry_service_span_count(run->service) : 0;
    ferry_status status = FERRY_OK;
    own->spans = calloc(n > 0 ? n : 1, sizeof *own->spans);
    own->n_spans = calloc(1, sizeof *own->n_spans);
    if (own->spans == NULL || own->n_spans == NULL) {
        return fail_memory(error);
    }
    own->n_spans[0] = n;
    for (uint64_t i = 0; i < n && status == FERRY_OK; i++) {
        own->spans[i] = (ferry_span)FERRY_SPAN_INIT;
        status = ferry_service_span_at(run->service, i, &own->spans[i], error);
    }
    return status;
}

static ferry_status tell_results(rank_run *run, ferry_error *error)
{
    run_rank_result *own = run->results.ranks;
    bool verified = run->request->verify != RUN_VERIFY_NONE;
    own->rank = run->rank;
    own->node = ferry_world_node_of(run->world, run->rank);
    own->source_shards = run->sources.n;
    own->source_bytes = run->sources.tensor_bytes;
    own->destination_shards = run->destinations.n;
    own->destination_bytes = run->destinations.tensor_bytes;
    own->verified_shards = verified ? run->destinations.n : 0;
    own->verified_bytes = verified ? run->destinations.tensor_bytes : 0;
    run_results all = {0};
    run_summary summary = {0};
    ferry_status status = list_peers(run, error);
    FY_THEN(status, list_spans(run, error));
    FY_THEN(status, run_results_gather(run->world, &run->results, &all, error));
    end_showing(run);
    if (status == FERRY_OK && run->rank == 0) {
        status = run_summarize(run->plan, &all, &summary, error);
    }
    if (status == FERRY_OK && run->rank == 0 && run->request->trace != NULL) {
        status = run_write_trace(run->request, run->plan, &all, &summary, error);
    }
    if (status == FERRY_OK && run->rank == 0 && run->request->html != NULL) {
        status = run_write_html(run->request, run->plan, &all, &summary, error);
    }
    if (status == FERRY_OK && run->rank == 0) {
        if (run->request->json) {
            run_print_json(run->request, run->plan, &all, &summary);
        } else if (terminal_loudness() != LOUDNESS_QUIET) {
            run_print_table(run->request, &all, &summary);
        }
    }
    run_results_free(&all);
    return status;
}

/* ---- the end ---- */

static void close_rank(rank_run *run)
{
    ferry_service_destroy(run->service);
    for (int i = 0; i < N_ARENAS; i++) {
        run_arena_close(&run->arenas[i]);
        free(run->memories[i]);
    }
    ferry_transport_close(run->transport);
    ferry_world_destroy(run->world);
    run_shards_close(&run->sources);
    run_shards_close(&run->destinations);
    run_results_free(&run->results);
    ferry_plan_destroy(run->own_plan);
}

/*
 * Whether this rank tells why all fail: rank 0, which hears of every failure, unless it is itself
 * the one that is lost. Of a process that has died, a `ferry run` that started it knows more; but
 * who is only taken for lost may say so. Without a world, each only knows its own.
 */
static bool is_speaker(const rank_run *run)
{
    uint32_t culprit = FERRY_ANY_RANK;
    const char *rank = getenv("RANK");
    if (run->world == NULL) {
        return !run->request->started || rank == NULL || strcmp(rank, "0") == 0;
    }
    ferry_status failure = ferry_world_state(run->world, &culprit, NULL);
    if (failure == FERRY_ERR_PEER_LOST && run->request->started && culprit != FERRY_ANY_RANK) {
        return run->rank == culprit;
    }
    bool lost_0 = culprit == 0 && (failure == FERRY_ERR_PEER_LOST || failure == FERRY_ERR_TIMEOUT);
    return run->rank == (lost_0 ? 1u : 0u);
}

/*
 * A launcher that sees a rank fail may end the others before the one that knows has spoken: so the
 * silent ones leave after it where they can leave in order, and else a moment later.
 */
static int end_rank(rank_run *run, ferry_status status, const ferry_error *error)
{
    static const struct timespec moment = {.tv_nsec = 500000000};

    bool fails = status != FERRY_OK;
    bool says = fails && is_speaker(run);
    bool lonely = fails && !run->is_common && run->world != NULL;
    if (fails) {
        end_showing(run);
    }
    if (says) {
        fail("run", error->message);
    }
    if (lonely) { /* the others may be waiting for this rank */
        ferry_world_abort(run->world, error->message);
    }
    close_rank(run);
    if (fails && !says && run->request->join && !run->request->started) {
        nanosleep(&moment, NULL);
    }
    return fails ? EXIT_FAILED : EXIT_DONE;
}

int run_rank(const run_request *request, ferry_world *world, const ferry_plan *plan)
{
    ferry_error error;
    rank_run run = {.request = request, .world = world, .plan = plan};
    ferry_status status = open_world(&run, &error);
    FY_THEN(status, open_service(&run, &error));
    FY_THEN(status, open_shards(&run, &error));
    if (status == FERRY_OK && run.doing != NULL) {
        ferry_service_set_progress(run.service, show_service, &run);
    }
    FY_THEN(status, run_all(&run, &error));
    FY_THEN(status, tell_results(&run, &error));
    return end_rank(&run, status, &error);
}
