/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Ranks with a mixed collective between them: how they start, and how they end. */
#include "bench_mixed.h"

#include "commands.h"
#include "json_text.h"
#include "launch.h"
#include "steps.h"
#include "units.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

ferry_status mixed_fail(ferry_error *error, ferry_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return status;
}

/* ---- ranks that are processes ---- */

static int start_processes(const mixed_request *r, int argc, char **argv)
{
    static char self[] = "/proc/self/exe", started[] = "--started";
    char **words = calloc((size_t)argc + 3, sizeof *words);
    if (words == NULL) {
        return fail(r->command, "out of memory");
    }
    words[0] = self;
    words[1] = argv[0];
    words[2] = started;
    memcpy(words + 3, argv + 1, ((size_t)argc - 1) * sizeof *words);
    launch_request request = {.name = r->command,
                              .n_ranks = r->n_ranks,
                              .n_world = r->n_ranks,
                              .grace_seconds = LAUNCH_GRACE_SECONDS,
                              .ranks_explain = true,
                              .program = words};
    int status = launch(&request);
    free(words);
    return status;
}

/* ---- ranks that are threads ---- */

typedef struct rank_thread {
    const mixed_request *request;
    mixed_rank_fn rank;
    ferry_world *world;
    pthread_t thread;
    int status;
} rank_thread;

static void *run_thread(void *argument)
{
    rank_thread *t = argument;
    t->status = t->rank(t->request, t->world);
    return NULL;
}

/* Worlds of threads that could not be started are ended and destroyed here. */
static int run_threads(rank_thread *threads, uint32_t n, const char *name)
{
    uint32_t started = 0;
    int status = EXIT_DONE;
    ferry_error error;
    while (started < n &&
           pthread_create(&threads[started].thread, NULL, run_thread, &threads[started]) == 0) {
        started++;
    }
    if (started < n) {
        mixed_fail(&error, FERRY_ERR_NO_MEMORY,
                   "rank %u of %u could not be started; is the limit of threads reached?", started,
                   n);
        ferry_world_abort(threads[started].world, error.message);
        status = started == 0 ? fail(name, error.message) : EXIT_FAILED;
    }
    for (uint32_t i = started; i < n; i++) {
        ferry_world_destroy(threads[i].world);
    }
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(threads[i].thread, NULL);
        status = status == EXIT_DONE ? threads[i].status : status;
    }
    return status;
}

/* Nothing was said of nodes: NULL, so that FERRY_NODES counts. */
static const char *nodes_text(const mixed_request *r, char text[16])
{
    snprintf(text, 16, "%u", r->n_nodes);
    return r->n_nodes == 0 ? NULL : text;
}

static int start_threads(const mixed_request *r, mixed_rank_fn rank)
{
    uint32_t n = r->n_ranks;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    ferry_error error;
    char nodes[16];
    int status;
    ferry_world **worlds = calloc(n, sizeof(ferry_world *));
    rank_thread *threads = calloc(n, sizeof *threads);
    options.nodes = nodes_text(r, nodes);
    if (worlds == NULL || threads == NULL) {
        status = fail(r->command, "out of memory");
    } else if (ferry_world_create_threads(n, &options, worlds, &error) != FERRY_OK) {
        status = fail(r->command, error.message);
    } else {
        for (uint32_t i = 0; i < n; i++) {
            threads[i] = (rank_thread){.request = r, .rank = rank, .world = worlds[i]};
        }
        status = run_threads(threads, n, r->command);
    }
    free(threads);
    free(worlds);
    return status;
}

/* The engine, behind all wrappers, is that of threads. */
static bool wants_threads(const mixed_request *r)
{
    const char *engines = r->transport != NULL ? r->transport : getenv("FERRY_TRANSPORT");
    const char *colon = engines == NULL ? NULL : strrchr(engines, ':');
    return engines != NULL && strcmp(colon == NULL ? engines : colon + 1, "inproc") == 0;
}

int mixed_start(const mixed_request *r, int argc, char **argv, mixed_rank_fn rank)
{
    if (r->join) {
        return rank(r, NULL);
    }
    return wants_threads(r) ? start_threads(r, rank) : start_processes(r, argc, argv);
}

/* ---- the begin of a rank ---- */

/*
 * With as many ranks as cores, or more, each has a core in turn, as launchers bind them: left alone
 * the kernel may keep two that wake each other on one core. With fewer ranks a handle's lanes
 * spread over all cores, and a binding that is there already stays.
 */
static void bind_to_core(const ferry_world *world)
{
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2 ||
        ferry_world_rank_count(world) < (uint32_t)CPU_COUNT(&allowed)) {
        return;
    }
    uint32_t skip = ferry_world_rank(world) % (uint32_t)CPU_COUNT(&allowed);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && skip-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            (void)sched_setaffinity(0, sizeof one, &one);
            return;
        }
    }
}

ferry_mixed_comm_options mixed_options_of(const mixed_request *r)
{
    ferry_mixed_comm_options options = FERRY_MIXED_COMM_OPTIONS_INIT;
    options.local_tp_size = r->local_tp;
    options.local_dp_size = r->local_dp;
    options.inter_tp_size = r->inter_tp;
    options.inter_dp_size = r->inter_dp;
    options.dtype = r->dtype;
    options.grid_size = r->grid;
    options.max_block_size = r->max_block;
    options.min_block_size = r->min_block != 0 ? r->min_block : options.min_block_size;
    options.min_num_steps = r->min_steps != 0 ? r->min_steps : options.min_num_steps;
    options.deterministic = r->deterministic;
    options.use_autotune = r->autotune;
    options.tune_file = r->tune_file;
    options.engines = r->transport;
    options.autotune_bytes = r->max_bytes;
    return options;
}

/* Ranks of a node take its devices in turn. */
static ferry_status choose_device(mixed_rank *rank, ferry_error *error)
{
    const uint32_t kind = rank->request->memory;
    uint32_t n_devices = 0;
    if (kind == FERRY_MEMORY_HOST) {
        return FERRY_OK;
    }
    FY_TRY(ferry_memory_kind_at(kind, NULL, NULL, &n_devices, NULL, error));
    uint32_t local = ferry_world_local_rank(rank->world);
    rank->device.kind = kind;
    rank->device.index = n_devices == 0 ? 0 : (int32_t)(local % n_devices);
    return FERRY_OK;
}

/* Devices that cannot be had are no reason to measure nothing. */
static void add_remedy(const mixed_rank *rank, ferry_status status, ferry_error *error)
{
    size_t used = strlen(error->message);
    if (status == FERRY_ERR_UNSUPPORTED && rank->device.kind != FERRY_MEMORY_HOST) {
        snprintf(error->message + used, sizeof error->message - used,
                 "; ferry info lists the devices of a machine, and without --memory the tensors "
                 "lie on the host");
    }
}

ferry_status mixed_open(const mixed_request *r, ferry_world *world, mixed_rank *rank_out,
                        ferry_error *error)
{
    ferry_mixed_comm_options options = mixed_options_of(r);
    ferry_world_options joining = FERRY_WORLD_OPTIONS_INIT;
    *rank_out = (mixed_rank){.request = r, .world = world, .device = options.device};
    rank_out->info = (ferry_mixed_comm_info)FERRY_MIXED_COMM_INFO_INIT;
    joining.nodes = nodes_text(r, rank_out->nodes);
    if (world == NULL) {
        FY_TRY(ferry_world_create(&joining, &rank_out->world, error));
    }
    rank_out->rank = ferry_world_rank(rank_out->world);
    rank_out->n_ranks = ferry_world_rank_count(rank_out->world);
    if (sched_getaffinity(0, sizeof rank_out->processors, &rank_out->processors) != 0) {
        CPU_ZERO(&rank_out->processors);
        CPU_SET(0, &rank_out->processors);
    }
    bind_to_core(rank_out->world);
    FY_TRY(choose_device(rank_out, error));
    options.device = rank_out->device;
    ferry_status status =
        ferry_mixed_comm_create(rank_out->world, &options, &rank_out->comm, error);
    add_remedy(rank_out, status, error);
    /* What all have asked for alike is refused to all alike. */
    rank_out->is_common = status == FERRY_ERR_INVALID_INPUT || status == FERRY_ERR_UNSUPPORTED;
    return status == FERRY_OK ? ferry_mixed_comm_get_info(rank_out->comm, &rank_out->info, error)
                              : status;
}

/* ---- the end ---- */

/*
 * Whether this rank tells why all fail: rank 0, which hears of every failure, unless it is itself
 * the one that is lost. Of a process that has died, a command that started it knows more; but who
 * is only taken for lost may say so. Without a world, each only knows its own.
 */
static bool is_speaker(const mixed_rank *rank)
{
    uint32_t culprit = FERRY_ANY_RANK;
    bool started = rank->request->started;
    const char *number = getenv("RANK");
    if (rank->world == NULL) {
        return !started || number == NULL || strcmp(number, "0") == 0;
    }
    ferry_status failure = ferry_world_state(rank->world, &culprit, NULL);
    if (failure == FERRY_ERR_PEER_LOST && started && culprit != FERRY_ANY_RANK) {
        return rank->rank == culprit;
    }
    bool lost_0 = culprit == 0 && (failure == FERRY_ERR_PEER_LOST || failure == FERRY_ERR_TIMEOUT);
    return rank->rank == (lost_0 ? 1u : 0u);
}

/*
 * A launcher that sees a rank fail may end the others before the one that knows has spoken: so the
 * silent ones leave after it where they can leave in order, and else a moment later.
 */
int mixed_close(mixed_rank *rank, ferry_status status, const ferry_error *error)
{
    static const struct timespec moment = {.tv_nsec = 500000000};

    const mixed_request *r = rank->request;
    bool fails = status != FERRY_OK;
    bool says = fails && is_speaker(rank);
    if (says) {
        fail(r->command, error->message);
    }
    if (fails && !rank->is_common && rank->world != NULL) { /* others may wait for this rank */
        ferry_world_abort(rank->world, error->message);
    }
    ferry_mixed_comm_destroy(rank->comm);
    ferry_world_destroy(rank->world);
    if (fails && !says && r->join && !r->started) {
        nanosleep(&moment, NULL);
    }
    return fails ? EXIT_FAILED : EXIT_DONE;
}

/* ---- what a handle is ---- */

const char *mixed_dtype_text(uint32_t dtype, char text[FERRY_DTYPE_TEXT_BYTES])
{
    ferry_dtype type = {0};
    snprintf(text, FERRY_DTYPE_TEXT_BYTES, "?");
    if (ferry_dtype_of(dtype, &type, NULL) == FERRY_OK) {
        ferry_dtype_format(type, text, FERRY_DTYPE_TEXT_BYTES);
    }
    return text;
}

static void print_sizes(const ferry_mixed_comm_info *i)
{
    if (i->inter_size == 1) {
        printf("%u rank%s of one node, tp %u x dp %u\n", i->world_size, plural(i->world_size),
               i->local_tp_size, i->local_dp_size);
    } else {
        printf("%u ranks, %u on each of %u nodes: tp %u x dp %u inside, tp %u x dp %u between\n",
               i->world_size, i->local_size, i->inter_size, i->local_tp_size, i->local_dp_size,
               i->inter_tp_size, i->inter_dp_size);
    }
}

void mixed_print_handle(const ferry_mixed_comm_info *info, const char *before)
{
    char text[FERRY_DTYPE_TEXT_BYTES];
    fputs(before, stdout);
    print_sizes(info);
    printf("%s%s%s, %u lane%s", before, mixed_dtype_text(info->dtype, text),
           info->deterministic ? ", deterministic" : "", info->grid_size, plural(info->grid_size));
    if (info->local_size > 1) {
        static const char *const forms[] = {" without multicast", "", " by multicast objects"};
        printf(", inside nodes %s%s", info->inside_engine, forms[info->reach]);
    }
    if (info->inter_size > 1) {
        printf(", between nodes %s", info->between_engine);
    }
    putchar('\n');
    if (info->inter_size > 1 && info->between_note != NULL && info->between_note[0] != '\0') {
        printf("%s%s\n", before, info->between_note);
    }
}

void mixed_print_handle_json(const ferry_mixed_comm_info *info)
{
    char text[FERRY_DTYPE_TEXT_BYTES];
    printf("\"topology\":{\"local_tp\":%u,\"local_dp\":%u,\"inter_tp\":%u,\"inter_dp\":%u},"
           "\"dtype\":\"%s\",\"deterministic\":%s,\"engines\":{\"inside\":",
           info->local_tp_size, info->local_dp_size, info->inter_tp_size, info->inter_dp_size,
           mixed_dtype_text(info->dtype, text), info->deterministic ? "true" : "false");
    print_json_text(info->inside_engine);
    printf(",\"between\":");
    print_json_text(info->between_engine);
    printf("},\"grid_size\":%u", info->grid_size);
}
