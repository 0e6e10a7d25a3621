/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases of refit_cases.h through an MPI library, for refit_vs_peers.py. Built with mpicc; ferry
 * has no part in it.
 *
 *     mpirun -n N mpi_refit CASE MEMORY WAY RUNS
 *
 * MEMORY: malloc, or allocated: what MPI_Win_allocate gives.
 * WAYS: alltoallw   one MPI_Alltoallw; a datatype for all that a pair of ranks exchanges
 *       each        one MPI_Alltoallw for each tensor of a rank (of the small ones)
 *       put-fence   an MPI_Put for each box, between fences
 *       put-flush   an MPI_Put for each box under lock_all, then flush_all and a barrier
 *
 * A box is a subarray type on both sides, made once. A run counts from its barrier to its end on
 * the slowest rank. Prints one line of JSON: seconds of each run. A first run, which does not
 * count, is verified.
 */
#include "refit_cases.h"

#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RUNS = 1000 };

/* The types of one move: of its source and of its destination. */
typedef struct types {
    MPI_Datatype source, destination;
} types;

typedef struct course {
    refit_case *its;
    int rank;
    char *source, *destination;
    MPI_Win source_window, window;
    size_t n_own; /* moves that this rank sends: their numbers and types */
    size_t *own;
    types *own_types;
    /* For MPI_Alltoallw: of each peer. */
    int *send_counts, *receive_counts, *zeros;
    MPI_Datatype *send_types, *receive_types;
} course;

static void *get(size_t n, size_t bytes)
{
    void *memory = calloc(n == 0 ? 1 : n, bytes);
    if (memory == NULL) {
        fprintf(stderr, "mpi_refit: no memory\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    return memory;
}

static MPI_Datatype subarray(const refit_place *place, const refit_move *move)
{
    int shape[2] = {(int)place->rows, (int)place->columns};
    int length[2] = {(int)move->rows, (int)move->columns};
    int begin[2] = {(int)place->row, (int)place->column};

    MPI_Datatype type;
    MPI_Type_create_subarray(2, shape, length, begin, MPI_ORDER_C, MPI_UINT16_T, &type);
    MPI_Type_commit(&type);
    return type;
}

/* ---- puts ---- */

static void prepare_puts(course *c)
{
    c->own = get(c->its->n_moves, sizeof *c->own);
    c->own_types = get(c->its->n_moves, sizeof *c->own_types);
    for (size_t i = 0; i < c->its->n_moves; i++) {
        const refit_move *move = &c->its->moves[i];
        if (move->from == c->rank) {
            c->own_types[c->n_own] = (types){MPI_UINT16_T, MPI_UINT16_T};
            if (move->rows > 1) {
                c->own_types[c->n_own].source = subarray(&move->source, move);
                c->own_types[c->n_own].destination = subarray(&move->destination, move);
            }
            c->own[c->n_own++] = i;
        }
    }
}

static void put_all(course *c)
{
    for (size_t i = 0; i < c->n_own; i++) {
        const refit_move *move = &c->its->moves[c->own[i]];
        if (move->rows > 1) {
            MPI_Put(c->source + move->source.offset, 1, c->own_types[i].source, move->to,
                    (MPI_Aint)move->destination.offset, 1, c->own_types[i].destination, c->window);
        } else {
            int n = (int)move->columns;
            MPI_Put(c->source + refit_row_at(&move->source, 0), n, MPI_UINT16_T, move->to,
                    (MPI_Aint)refit_row_at(&move->destination, 0), n, MPI_UINT16_T, c->window);
        }
    }
}

static void run_put_fence(course *c)
{
    MPI_Win_fence(MPI_MODE_NOPRECEDE | MPI_MODE_NOSTORE, c->window);
    put_all(c);
    MPI_Win_fence(MPI_MODE_NOSUCCEED | MPI_MODE_NOSTORE, c->window);
}

/* The lock was taken before the first run. */
static void run_put_flush(course *c)
{
    put_all(c);
    MPI_Win_flush_all(c->window);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* ---- MPI_Alltoallw ---- */

/* All boxes of moves between two ranks, in order of moves, as one type of one side's memory. */
static int type_of_pair(const course *c, int from, int to, MPI_Datatype *out)
{
    size_t n = c->its->n_moves;
    int count = 0;
    int *lengths = get(n, sizeof *lengths);
    MPI_Aint *at = get(n, sizeof *at);
    MPI_Datatype *parts = get(n, sizeof *parts);
    for (size_t i = 0; i < n; i++) {
        const refit_move *move = &c->its->moves[i];
        const refit_place *place = from == c->rank ? &move->source : &move->destination;
        if (move->from != from || move->to != to) {
            continue;
        }
        bool is_plain = move->rows == 1;
        at[count] = (MPI_Aint)(is_plain ? refit_row_at(place, 0) : place->offset);
        lengths[count] = is_plain ? (int)move->columns : 1;
        parts[count++] = is_plain ? MPI_UINT16_T : subarray(place, move);
    }
    if (count == 1 && at[0] == 0 && lengths[0] == 1) {
        *out = parts[0];
    } else if (count > 0) {
        MPI_Type_create_struct(count, lengths, at, parts, out);
        MPI_Type_commit(out);
    }
    free(lengths);
    free(at);
    free(parts);
    return count > 0;
}

/* A move to this rank itself has two sides here: its receive type is made with from = -1. */
static int type_of_receive(course *c, int from, MPI_Datatype *out)
{
    int rank = c->rank;
    c->rank = -1;
    int has = type_of_pair(c, from, rank, out);
    c->rank = rank;
    return has;
}

static void make_arrays(course *c)
{
    size_t n = (size_t)c->its->n_ranks;
    c->send_counts = get(n, sizeof *c->send_counts);
    c->receive_counts = get(n, sizeof *c->receive_counts);
    c->zeros = get(n, sizeof *c->zeros);
    c->send_types = get(n, sizeof *c->send_types);
    c->receive_types = get(n, sizeof *c->receive_types);
    for (size_t i = 0; i < n; i++) {
        c->send_types[i] = c->receive_types[i] = MPI_UINT16_T;
    }
}

static void prepare_alltoallw(course *c)
{
    make_arrays(c);
    for (int i = 0; i < c->its->n_ranks; i++) {
        c->send_counts[i] = type_of_pair(c, c->rank, i, &c->send_types[i]);
        c->receive_counts[i] = type_of_receive(c, i, &c->receive_types[i]);
    }
}

static void run_alltoallw(course *c)
{
    MPI_Alltoallw(c->source, c->send_counts, c->zeros, c->send_types, c->destination,
                  c->receive_counts, c->zeros, c->receive_types, MPI_COMM_WORLD);
}

/* The k-th call moves the k-th tensor of every rank: moves are dealt to the ranks in turn. */
static void run_each(course *c)
{
    int n = c->its->n_ranks;
    size_t n_calls = c->its->n_moves / (size_t)n;
    int to = (c->rank + 1) % n, from = (c->rank + n - 1) % n;
    int send_at[64] = {0}, receive_at[64] = {0};
    for (size_t k = 0; k < n_calls; k++) {
        const refit_move *out = &c->its->moves[k * (size_t)n + (size_t)c->rank];
        const refit_move *in = &c->its->moves[k * (size_t)n + (size_t)from];
        c->send_counts[to] = (int)out->columns;
        c->receive_counts[from] = (int)in->columns;
        send_at[to] = (int)out->source.offset;
        receive_at[from] = (int)in->destination.offset;
        MPI_Alltoallw(c->source, c->send_counts, send_at, c->send_types, c->destination,
                      c->receive_counts, receive_at, c->receive_types, MPI_COMM_WORLD);
    }
}

/* ---- memory, and the course of a measurement ---- */

static char *allocate(uint64_t bytes, bool is_window, MPI_Win *window)
{
    char *memory = NULL;
    if (is_window) {
        MPI_Win_allocate((MPI_Aint)bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, window);
    } else {
        memory = malloc(bytes + 1);
    }
    if (memory == NULL && bytes > 0) {
        fprintf(stderr, "mpi_refit: no memory\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(memory, 0xee, bytes);
    return memory;
}

static void prepare_memory(course *c, bool is_allocated, bool is_put)
{
    uint64_t bytes = c->its->destination_bytes[c->rank];
    c->source = allocate(c->its->source_bytes[c->rank], is_allocated, &c->source_window);
    c->destination = allocate(bytes, is_allocated, &c->window);
    if (is_put && !is_allocated) {
        MPI_Win_create(c->destination, (MPI_Aint)bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                       &c->window);
    }
    refit_fill(c->its, c->rank, c->source);
}

static double timed(course *c, void (*run)(course *c))
{
    double begin, own, slowest;
    MPI_Barrier(MPI_COMM_WORLD);
    begin = MPI_Wtime();
    run(c);
    own = MPI_Wtime() - begin;
    MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static uint64_t count_wrong(const course *c)
{
    uint64_t own = refit_count_wrong(c->its, c->rank, c->destination), all = 0;
    MPI_Allreduce(&own, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

static const struct way {
    const char *name;
    void (*prepare)(course *c);
    void (*run)(course *c);
    bool is_put, is_locked;
} ways[] = {
    {"alltoallw", prepare_alltoallw, run_alltoallw, false, false},
    {"each", make_arrays, run_each, false, false},
    {"put-fence", prepare_puts, run_put_fence, true, false},
    {"put-flush", prepare_puts, run_put_flush, true, true},
};

static uint64_t measure(course *c, const struct way *way, int n_runs, double *seconds)
{
    way->prepare(c);
    if (way->is_locked) {
        MPI_Win_lock_all(MPI_MODE_NOCHECK, c->window);
    }
    timed(c, way->run);
    if (way->is_locked) {
        MPI_Win_sync(c->window);
    }
    uint64_t wrong = count_wrong(c);
    for (int i = 0; i < n_runs; i++) {
        seconds[i] = timed(c, way->run);
    }
    if (way->is_locked) {
        MPI_Win_unlock_all(c->window);
    }
    return wrong;
}

/* Memory and types end with the process. */
static int run_way(course *c, char **words, const struct way *way)
{
    double seconds[MAX_RUNS];
    int n_runs = atoi(words[3]);
    n_runs = n_runs < 1 ? 1 : n_runs > MAX_RUNS ? MAX_RUNS : n_runs;
    prepare_memory(c, strcmp(words[1], "allocated") == 0, way->is_put);
    uint64_t wrong = measure(c, way, n_runs, seconds);
    if (c->rank == 0) {
        printf("{\"case\": \"%s\", \"memory\": \"%s\", \"way\": \"%s\", \"bytes\": %llu, "
               "\"wrong\": %llu, \"seconds\": [",
               words[0], words[1], words[2], (unsigned long long)c->its->bytes,
               (unsigned long long)wrong);
        for (int i = 0; i < n_runs; i++) {
            printf("%s%.6f", i == 0 ? "" : ", ", seconds[i]);
        }
        printf("]}\n");
        fflush(stdout);
    }
    return wrong == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    course c = {.source_window = MPI_WIN_NULL, .window = MPI_WIN_NULL};
    int n_ranks = 0, result = 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &c.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    c.its = argc == 5 ? refit_case_make(argv[1]) : NULL;
    for (size_t i = 0; c.its != NULL && i < sizeof ways / sizeof ways[0]; i++) {
        if (strcmp(argv[3], ways[i].name) == 0 && n_ranks == c.its->n_ranks) {
            result = run_way(&c, argv + 1, &ways[i]);
        }
    }
    if (result == 2 && c.rank == 0) {
        fprintf(stderr, "usage: see the top of mpi_refit.c; the case wants %d ranks\n",
                c.its == NULL ? 0 : c.its->n_ranks);
    }
    if (c.window != MPI_WIN_NULL) {
        MPI_Win_free(&c.window);
    }
    if (c.source_window != MPI_WIN_NULL) {
        MPI_Win_free(&c.source_window);
    }
    refit_case_free(c.its);
    MPI_Finalize();
    return result;
}
