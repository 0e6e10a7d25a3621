/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The mixed operations with ferry, for mixed_vs_mpi.py and mixed_hosts.py: each mode is a way.
 *
 *     ferry launch -n N bench_mixed [--tune FILE] [--bind none] [--local-tp N] [--inter-tp N]
 *                                   OP DTYPE TP DP [OPTION]...   (mixed_bench.h has the options)
 *     ferry launch -n N bench_mixed --save FILE ... the same ...
 *
 * Without --tune or --save there is no AUTOTUNE. --save measures a table, with pieces as large as
 * the largest of --sizes, writes it to FILE and does nothing else. On one node the local sizes are
 * TP and DP unless --local-tp says otherwise.
 */
#include "mixed_bench.h"

#include <ferry/ferry.h>
#include <ferry/mixed_comm.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct words {
    const char *tune, *save;
    uint32_t local_tp, inter_tp;
    bool is_unbound; /* as an installation leaves it */
} words;

typedef struct own_side {
    ferry_world *world;
    ferry_mixed_comm *comm;
    const mixed_case *its;
    ferry_mixed_tensor in, out;
} own_side;

static const char *const way_names[] = {
#define WAY_NAME(name, number, text) text,
    FERRY_MIXED_MODE_MAP(WAY_NAME)
#undef WAY_NAME
        NULL};

static uint32_t own_rank;

static void check(ferry_status status, const ferry_error *error)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "bench_mixed: rank %u: %s\n", own_rank, error->message);
        _exit(1);
    }
}

/* ---- the side ---- */

static void side_barrier(void *context)
{
    own_side *s = context;
    ferry_error error;
    check(ferry_world_barrier(s->world, &error), &error);
}

static double side_max(void *context, double own)
{
    own_side *s = context;
    ferry_error error;
    const void *all = NULL;
    double most = own;
    check(ferry_world_all_gather(s->world, &own, sizeof own, &all, &error), &error);
    for (uint32_t i = 0; i < ferry_world_rank_count(s->world); i++) {
        double other = ((const double *)all)[i];
        most = other > most ? other : most;
    }
    return most;
}

/* The default mode is another name for one of the others. */
static bool side_offers(void *context, int way)
{
    own_side *s = context;
    uint32_t modes[FERRY_MIXED_N_MODES];
    size_t n = 0;
    ferry_error error;
    check(ferry_mixed_comm_get_valid_mode_list(s->comm, modes, FERRY_MIXED_N_MODES, &n, &error),
          &error);
    for (size_t i = 0; i < n; i++) {
        if (modes[i] == (uint32_t)way) {
            return way != FERRY_MIXED_MODE_DEFAULT;
        }
    }
    return false;
}

static ferry_mixed_tensor tensor(const own_side *s, void *memory, size_t rows, size_t piece)
{
    size_t bytes = rows * piece * mixed_element_bytes(s->its->dtype);
    return (ferry_mixed_tensor){ferry_buffer_of(memory, bytes), rows, piece};
}

static void side_begin_size(void *context, void *in, void *out, size_t piece)
{
    own_side *s = context;
    s->in = tensor(s, in, mixed_in_pieces(s->its), piece);
    s->out = tensor(s, out, mixed_out_pieces(s->its), piece);
}

static void side_run(void *context, int way)
{
    own_side *s = context;
    ferry_error error;
    check(ferry_mixed_comm_run(s->comm, (uint32_t)s->its->op, &s->in, &s->out, (uint32_t)way, NULL,
                               &error),
          &error);
}

/* What AUTOTUNE takes. */
static const char *side_note(void *context, int way)
{
    own_side *s = context;
    uint32_t mode = 0;
    ferry_error error;
    if (way != FERRY_MIXED_AUTOTUNE) {
        return "";
    }
    check(
        ferry_mixed_comm_select_autotune_mode(s->comm, (uint32_t)s->its->op, &s->in, &mode, &error),
        &error);
    return ferry_mixed_mode_name(mode);
}

/* ---- the handle ---- */

static int read_words(int argc, char **argv, words *out)
{
    int i = 1;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        if (strcmp(argv[i], "--tune") == 0) {
            out->tune = argv[i + 1];
        } else if (strcmp(argv[i], "--save") == 0) {
            out->save = argv[i + 1];
        } else if (strcmp(argv[i], "--bind") == 0) {
            out->is_unbound = strcmp(argv[i + 1], "none") == 0;
        } else if (strcmp(argv[i], "--local-tp") == 0) {
            out->local_tp = (uint32_t)atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--inter-tp") == 0) {
            out->inter_tp = (uint32_t)atoi(argv[i + 1]);
        } else {
            break;
        }
    }
    return i;
}

static void create(own_side *s, const words *w, mixed_arguments *arguments)
{
    static const uint32_t dtypes[] = {FERRY_F32, FERRY_BF16, FERRY_F16};
    ferry_mixed_comm_options options = FERRY_MIXED_COMM_OPTIONS_INIT;
    ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
    ferry_error error;
    options.dtype = dtypes[arguments->its.dtype];
    options.use_autotune = w->tune != NULL || w->save != NULL;
    options.tune_file = w->tune;
    options.autotune_bytes = arguments->sizes[arguments->n_sizes - 1];
    options.local_tp_size = w->local_tp;
    options.inter_tp_size = w->inter_tp;
    if (w->local_tp == 0 && ferry_world_node_count(s->world) == 1) {
        options.local_tp_size = (uint32_t)arguments->its.tp;
    }
    check(ferry_mixed_comm_create(s->world, &options, &s->comm, &error), &error);
    check(ferry_mixed_comm_get_info(s->comm, &info, &error), &error);
    if ((int)info.tp_size != arguments->its.tp || (int)info.dp_size != arguments->its.dp) {
        fprintf(stderr, "bench_mixed: the topology has tp %u and dp %u\n", info.tp_size,
                info.dp_size);
        _exit(2);
    }
    arguments->its.tp_rank = (int)info.tp_rank;
    arguments->its.dp_rank = (int)info.dp_rank;
    arguments->its.rank = (int)(info.tp_rank + info.dp_rank * info.tp_size);
}

static int run(own_side *s, const words *w, mixed_arguments *arguments)
{
    ferry_error error;
    mixed_side side = {s,           side_barrier,    side_max, way_names,
                       side_offers, side_begin_size, side_run, side_note};
    s->its = &arguments->its;
    create(s, w, arguments);
    int result = 0;
    if (w->save == NULL) {
        result = mixed_measure(arguments, &side);
    } else if (own_rank == 0) {
        check(ferry_mixed_comm_save_tuning(s->comm, w->save, &error), &error);
    }
    ferry_mixed_comm_destroy(s->comm);
    return result;
}

/* A core for each rank, in turn, as mpirun binds the other side; unless somebody has bound it. */
static void bind_to_core(const ferry_world *world)
{
    cpu_set_t all, mine;
    long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    size_t number = ferry_world_local_rank(world) % (size_t)n_cores;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) != n_cores) {
        return;
    }
    CPU_ZERO(&mine);
    for (size_t core = 0, n = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &all) && n++ == number) {
            CPU_SET(core, &mine);
        }
    }
    sched_setaffinity(0, sizeof mine, &mine);
}

int main(int argc, char **argv)
{
    own_side s = {0};
    words w = {0};
    mixed_arguments arguments;
    ferry_error error;
    int first = read_words(argc, argv, &w), result = 2;
    check(ferry_world_create(NULL, &s.world, &error), &error);
    own_rank = ferry_world_rank(s.world);
    if (!w.is_unbound) {
        bind_to_core(s.world);
    }
    if (mixed_read_arguments(argc - first, argv + first, (int)own_rank,
                             (int)ferry_world_rank_count(s.world), &arguments)) {
        result = run(&s, &w, &arguments);
    }
    ferry_world_destroy(s.world);
    return result;
}
