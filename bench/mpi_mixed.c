/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The mixed operations by combinations of an MPI library's collectives, for mixed_vs_mpi.py. Built
 * with mpicc -O3 -march=native; ferry has no part in it.
 *
 *     mpirun -n N mpi_mixed OP DTYPE TP DP [OPTION]...        (mixed_bench.h has the options)
 *
 * Ranks are split into a communicator of the ranks of each TP group and of each DP group. The ways
 * are those that WAYS names; "+" is "and then", "sum" is this program's own loop over what was
 * gathered, "tp", "dp" and "world" are the communicators. MPI sums fp32; bf16 and fp16 are summed
 * by a commutative operation of ours, with the widest instructions that the CPU has.
 */
#include "mixed_bench.h"
#include "mixed_peer_sum.h"

#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct peer {
    mixed_case its;
    bool in_place;
    MPI_Datatype type;
    MPI_Op sum;
    MPI_Comm tp, dp;
    size_t element;
    char *in, *out, *scratch;
    int piece; /* elements */
} peer;

static enum mixed_dtype dtype_of_op;

static void add(void *from, void *to, int *n, MPI_Datatype *type)
{
    (void)type;
    mixed_peer_add(dtype_of_op, from, to, (size_t)*n);
}

/* ---- parts ---- */

static char *piece_of(const peer *p, char *memory, int i)
{
    return memory + (size_t)i * (size_t)p->piece * p->element;
}

static void copy(const peer *p, char *to, const char *from, int n)
{
    if (to != from) {
        memcpy(to, from, (size_t)n * p->element);
    }
}

static void all_reduce(const peer *p, const void *in, void *out, int n, MPI_Comm comm)
{
    MPI_Allreduce(in == out ? MPI_IN_PLACE : in, out, n, p->type, p->sum, comm);
}

static void all_gather(const peer *p, const char *in, char *out, int n, MPI_Comm comm)
{
    int rank;
    MPI_Comm_rank(comm, &rank);
    bool is_there = in == out + (size_t)rank * (size_t)n * p->element;
    MPI_Allgather(is_there ? MPI_IN_PLACE : in, n, p->type, out, n, p->type, comm);
}

/* Elements n of each rank; to memory apart from in. */
static void reduce_scatter(const peer *p, bool is_block, const void *in, void *out, int n,
                           MPI_Comm comm)
{
    int counts[MIXED_MAX_RANKS], size;
    MPI_Comm_size(comm, &size);
    for (int i = 0; i < size; i++) {
        counts[i] = n;
    }
    if (is_block) {
        MPI_Reduce_scatter_block(in, out, n, p->type, p->sum, comm);
    } else {
        MPI_Reduce_scatter(in, out, counts, p->type, p->sum, comm);
    }
}

static void sum_rows(const peer *p, const char *from, int rows, char *to)
{
    mixed_peer_sum(p->its.dtype, from, (size_t)rows, (size_t)p->piece, to);
}

/* ---- ways ---- */

static void run_allreduce(peer *p)
{
    all_reduce(p, p->in, p->out, p->piece, MPI_COMM_WORLD);
}

static void halves(peer *p, bool is_block)
{
    int n = p->piece / p->its.n_ranks;
    reduce_scatter(p, is_block, p->in, p->scratch, n, MPI_COMM_WORLD);
    all_gather(p, p->scratch, p->out, n, MPI_COMM_WORLD);
}

static void run_rs_ag(peer *p)
{
    halves(p, false);
}

static void run_rsb_ag(peer *p)
{
    halves(p, true);
}

static void run_reduce_bcast(peer *p)
{
    bool is_there = p->in == p->out && p->its.rank == 0;
    MPI_Reduce(is_there ? MPI_IN_PLACE : p->in, p->out, p->piece, p->type, p->sum, 0,
               MPI_COMM_WORLD);
    MPI_Bcast(p->out, p->piece, p->type, 0, MPI_COMM_WORLD);
}

static void run_ag_sum(peer *p)
{
    all_gather(p, p->in, p->scratch, p->piece, MPI_COMM_WORLD);
    sum_rows(p, p->scratch, p->its.n_ranks, p->out);
}

static void run_allgather(peer *p)
{
    all_gather(p, p->in, p->out, p->piece, MPI_COMM_WORLD);
}

static void run_rs(peer *p)
{
    reduce_scatter(p, false, p->in, p->out, p->piece, MPI_COMM_WORLD);
}

static void run_rsb(peer *p)
{
    reduce_scatter(p, true, p->in, p->out, p->piece, MPI_COMM_WORLD);
}

static void run_alltoall_sum(peer *p)
{
    MPI_Alltoall(p->in, p->piece, p->type, p->scratch, p->piece, p->type, MPI_COMM_WORLD);
    sum_rows(p, p->scratch, p->its.n_ranks, p->out);
}

/* Also of a whole world of which each rank keeps a chunk. */
static void run_allreduce_chunk(peer *p)
{
    all_reduce(p, p->in, p->scratch, p->piece * p->its.dp, MPI_COMM_WORLD);
    copy(p, p->out, piece_of(p, p->scratch, p->its.dp_rank), p->piece);
}

static void run_ar_tp_ag_dp(peer *p)
{
    char *chunk = piece_of(p, p->out, p->its.dp_rank);
    all_reduce(p, p->in, chunk, p->piece, p->tp);
    all_gather(p, chunk, p->out, p->piece, p->dp);
}

static void run_ag_dp_ar_tp(peer *p)
{
    all_gather(p, p->in, p->out, p->piece, p->dp);
    all_reduce(p, p->out, p->out, p->piece * p->its.dp, p->tp);
}

static void scatter_tp(peer *p, bool is_block)
{
    int n = p->piece / p->its.tp;
    reduce_scatter(p, is_block, p->in, p->scratch, n, p->tp);
    all_gather(p, p->scratch, p->out, n, MPI_COMM_WORLD);
}

static void run_rs_tp_ag_world(peer *p)
{
    scatter_tp(p, false);
}

static void run_rsb_tp_ag_world(peer *p)
{
    scatter_tp(p, true);
}

static void run_ag_world_sums(peer *p)
{
    all_gather(p, p->in, p->scratch, p->piece, MPI_COMM_WORLD);
    for (int chunk = 0; chunk < p->its.dp; chunk++) {
        sum_rows(p, piece_of(p, p->scratch, chunk * p->its.tp), p->its.tp,
                 piece_of(p, p->out, chunk));
    }
}

static void scatter_dp(peer *p, bool is_block)
{
    reduce_scatter(p, is_block, p->in, p->out, p->piece, p->dp);
    all_reduce(p, p->out, p->out, p->piece, p->tp);
}

static void run_rs_dp_ar_tp(peer *p)
{
    scatter_dp(p, false);
}

static void run_rsb_dp_ar_tp(peer *p)
{
    scatter_dp(p, true);
}

static void scatter_after(peer *p, bool is_block)
{
    all_reduce(p, p->in, p->scratch, p->piece * p->its.dp, p->tp);
    reduce_scatter(p, is_block, p->scratch, p->out, p->piece, p->dp);
}

static void run_ar_tp_rs_dp(peer *p)
{
    scatter_after(p, false);
}

static void run_ar_tp_rsb_dp(peer *p)
{
    scatter_after(p, true);
}

static void scatter_world(peer *p, bool is_block)
{
    int n = p->piece / p->its.tp;
    reduce_scatter(p, is_block, p->in, p->scratch, n, MPI_COMM_WORLD);
    all_gather(p, p->scratch, p->out, n, p->tp);
}

static void run_rs_world_ag_tp(peer *p)
{
    scatter_world(p, false);
}

static void run_rsb_world_ag_tp(peer *p)
{
    scatter_world(p, true);
}

/* To every rank the chunk of its DP group. */
static void run_alltoallv_sum(peer *p)
{
    int counts[MIXED_MAX_RANKS], from[MIXED_MAX_RANKS], to[MIXED_MAX_RANKS];
    for (int i = 0; i < p->its.n_ranks; i++) {
        counts[i] = p->piece;
        from[i] = i / p->its.tp * p->piece;
        to[i] = i * p->piece;
    }
    MPI_Alltoallv(p->in, counts, from, p->type, p->scratch, counts, to, p->type, MPI_COMM_WORLD);
    sum_rows(p, p->scratch, p->its.n_ranks, p->out);
}

/* A part of each chunk from every rank, summed, and the parts of a TP group put together. */
static void run_alltoall_sum_ag_tp(peer *p)
{
    int n = p->piece / p->its.tp;
    MPI_Alltoall(p->in, n, p->type, p->scratch, n, p->type, MPI_COMM_WORLD);
    char *part = piece_of(p, p->out, 0) + (size_t)p->its.tp_rank * (size_t)n * p->element;
    mixed_peer_sum(p->its.dtype, p->scratch, (size_t)p->its.n_ranks, (size_t)n, part);
    all_gather(p, part, p->out, n, p->tp);
}

enum {
    OF_AR = 1 << MIXED_ALL_REDUCE,
    OF_AG = 1 << MIXED_ALL_GATHER,
    OF_RS = 1 << MIXED_REDUCE_SCATTER,
    OF_AR_AG = 1 << MIXED_ALL_REDUCE_ALL_GATHER,
    OF_RS_AR = 1 << MIXED_REDUCE_SCATTER_ALL_REDUCE,
    EVEN_WORLD = 1 << 8, /* ranks, or those of a TP group, must divide the piece */
    EVEN_TP = 1 << 9,
    OUT_OF_PLACE = 1 << 10
};

#define WAYS(X)                                                                                    \
    X("allreduce", run_allreduce, OF_AR)                                                           \
    X("reduce_scatter+allgather", run_rs_ag, OF_AR | EVEN_WORLD)                                   \
    X("reduce_scatter_block+allgather", run_rsb_ag, OF_AR | EVEN_WORLD)                            \
    X("reduce+bcast", run_reduce_bcast, OF_AR)                                                     \
    X("allgather+sum", run_ag_sum, OF_AR)                                                          \
    X("allgather", run_allgather, OF_AG)                                                           \
    X("reduce_scatter", run_rs, OF_RS | OUT_OF_PLACE)                                              \
    X("reduce_scatter_block", run_rsb, OF_RS | OUT_OF_PLACE)                                       \
    X("alltoall+sum", run_alltoall_sum, OF_RS)                                                     \
    X("allreduce world+chunk", run_allreduce_chunk, OF_RS | OF_RS_AR)                              \
    X("allreduce tp+allgather dp", run_ar_tp_ag_dp, OF_AR_AG)                                      \
    X("allgather dp+allreduce tp", run_ag_dp_ar_tp, OF_AR_AG)                                      \
    X("reduce_scatter tp+allgather world", run_rs_tp_ag_world, OF_AR_AG | EVEN_TP)                 \
    X("reduce_scatter_block tp+allgather world", run_rsb_tp_ag_world, OF_AR_AG | EVEN_TP)          \
    X("allgather world+sums", run_ag_world_sums, OF_AR_AG)                                         \
    X("reduce_scatter dp+allreduce tp", run_rs_dp_ar_tp, OF_RS_AR | OUT_OF_PLACE)                  \
    X("reduce_scatter_block dp+allreduce tp", run_rsb_dp_ar_tp, OF_RS_AR | OUT_OF_PLACE)           \
    X("allreduce tp+reduce_scatter dp", run_ar_tp_rs_dp, OF_RS_AR)                                 \
    X("allreduce tp+reduce_scatter_block dp", run_ar_tp_rsb_dp, OF_RS_AR)                          \
    X("reduce_scatter world+allgather tp", run_rs_world_ag_tp, OF_RS_AR | EVEN_TP)                 \
    X("reduce_scatter_block world+allgather tp", run_rsb_world_ag_tp, OF_RS_AR | EVEN_TP)          \
    X("alltoallv+sum", run_alltoallv_sum, OF_RS_AR)                                                \
    X("alltoall+sum+allgather tp", run_alltoall_sum_ag_tp, OF_RS_AR | EVEN_TP | OUT_OF_PLACE)

#define WAY_NAME(name, run, flags) name,
#define WAY_ITSELF(name, run, flags) {run, flags},

static const char *const way_names[] = {WAYS(WAY_NAME) NULL};

static const struct way {
    void (*run)(peer *p);
    int flags;
} all_ways[] = {WAYS(WAY_ITSELF)};

/* ---- the side ---- */

static void side_barrier(void *context)
{
    (void)context;
    MPI_Barrier(MPI_COMM_WORLD);
}

static double side_max(void *context, double own)
{
    double most = own;
    (void)context;
    MPI_Allreduce(&own, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

static bool side_offers(void *context, int way)
{
    const peer *p = context;
    int flags = all_ways[way].flags;
    return (flags & 1 << p->its.op) != 0 && !(p->in_place && (flags & OUT_OF_PLACE)) &&
           !((flags & EVEN_WORLD) && p->piece % p->its.n_ranks != 0) &&
           !((flags & EVEN_TP) && p->piece % p->its.tp != 0);
}

static void side_begin_size(void *context, void *in, void *out, size_t piece)
{
    peer *p = context;
    p->in = in;
    p->out = out;
    p->piece = (int)piece;
}

static void side_run(void *context, int way)
{
    all_ways[way].run(context);
}

static const char *side_note(void *context, int way)
{
    (void)way;
    return mixed_peer_kernel(((peer *)context)->its.dtype);
}

static void prepare(peer *p, const mixed_arguments *arguments)
{
    size_t most = arguments->sizes[arguments->n_sizes - 1];
    *p = (peer){.its = arguments->its, .in_place = arguments->in_place};
    p->element = mixed_element_bytes(p->its.dtype);
    p->type = p->its.dtype == MIXED_F32 ? MPI_FLOAT : MPI_UINT16_T;
    p->sum = MPI_SUM;
    if (p->its.dtype != MIXED_F32) {
        dtype_of_op = p->its.dtype;
        MPI_Op_create(add, 1, &p->sum);
    }
    MPI_Comm_split(MPI_COMM_WORLD, p->its.dp_rank, p->its.tp_rank, &p->tp);
    MPI_Comm_split(MPI_COMM_WORLD, p->its.tp_rank, p->its.dp_rank, &p->dp);
    size_t bytes = most * (size_t)p->its.n_ranks;
    p->scratch = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (p->scratch == NULL) {
        fprintf(stderr, "mpi_mixed: no memory\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    memset(p->scratch, 0xee, bytes);
}

int main(int argc, char **argv)
{
    peer p;
    mixed_arguments arguments;
    int rank, n_ranks, result = 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    if (mixed_read_arguments(argc - 1, argv + 1, rank, n_ranks, &arguments)) {
        prepare(&p, &arguments);
        mixed_side side = {&p,          side_barrier,    side_max, way_names,
                           side_offers, side_begin_size, side_run, side_note};
        result = mixed_measure(&arguments, &side);
        free(p.scratch);
        if (p.sum != MPI_SUM) {
            MPI_Op_free(&p.sum);
        }
        MPI_Comm_free(&p.tp);
        MPI_Comm_free(&p.dp);
    }
    MPI_Finalize();
    return result;
}
