/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What an MPI library does on this machine, for transport_vs_peers.py. Built with mpicc; ferry has
 * no part in it.
 *
 *     mpirun -n 2 mpi_transfer send|isend|put|put-allocated MEMORY_MIB SIZE...
 *     mpirun -n N mpi_transfer barrier COUNT
 *     mpirun -n N mpi_transfer start
 *
 * Rank 0 moves messages of each size to rank 1, from plain memory into plain memory (put-allocated:
 * into memory that the library allocated), and walks through MEMORY_MIB on both sides. It prints a
 * line for each size: bytes and GB/s. barrier prints median and 99th percentile in microseconds;
 * start prints CLOCK_MONOTONIC once all ranks have begun.
 */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WINDOW = 8, MIB = 1 << 20 };

static const size_t pass_bytes = (size_t)128 * MIB;

typedef struct course {
    int rank;
    char *memory; /* of this rank; of rank 1 also what the window shows */
    size_t memory_bytes;
    size_t at;
    MPI_Win window;
} course;

static size_t next_place(course *c, size_t bytes)
{
    size_t at = c->at + bytes > c->memory_bytes ? 0 : c->at;
    c->at = at + bytes;
    return at;
}

/* The receiver says when it has all. */
static void finish(const course *c)
{
    char done = 0;
    if (c->rank == 0) {
        MPI_Recv(&done, 1, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Send(&done, 1, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
    }
}

static void move_send(course *c, size_t bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char *at = c->memory + next_place(c, bytes);
        if (c->rank == 0) {
            MPI_Send(at, (int)bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        } else {
            MPI_Recv(at, (int)bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
    finish(c);
}

static void move_isend(course *c, size_t bytes, size_t count)
{
    MPI_Request requests[WINDOW];
    for (size_t i = 0; i < WINDOW; i++) {
        requests[i] = MPI_REQUEST_NULL;
    }
    for (size_t i = 0; i < count; i++) {
        char *at = c->memory + next_place(c, bytes);
        MPI_Request *request = &requests[i % WINDOW];
        MPI_Wait(request, MPI_STATUS_IGNORE);
        if (c->rank == 0) {
            MPI_Isend(at, (int)bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD, request);
        } else {
            MPI_Irecv(at, (int)bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, request);
        }
    }
    MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
    finish(c);
}

/* Rank 1 waits in the receive of a message, and so lets its library work. */
static void move_put(course *c, size_t bytes, size_t count)
{
    char done = 0;
    if (c->rank != 0) {
        MPI_Recv(&done, 1, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        return;
    }
    MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, c->window);
    for (size_t i = 0; i < count; i++) {
        size_t at = next_place(c, bytes);
        MPI_Put(c->memory + at, (int)bytes, MPI_CHAR, 1, (MPI_Aint)at, (int)bytes, MPI_CHAR,
                c->window);
    }
    MPI_Win_flush(1, c->window);
    MPI_Win_unlock(1, c->window);
    MPI_Send(&done, 1, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
}

typedef void move_fn(course *c, size_t bytes, size_t count);

static double gbytes_per_s(course *c, move_fn *move, size_t bytes)
{
    size_t count = bytes >= pass_bytes ? 1 : pass_bytes / bytes;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    move(c, bytes, count);
    return (double)(bytes * count) / (MPI_Wtime() - begin) * 1e-9;
}

static void measure_moves(course *c, move_fn *move, int n_sizes, char **sizes)
{
    for (int i = 0; i < 4; i++) { /* all pages of both sides */
        gbytes_per_s(c, move, (size_t)64 * MIB);
    }
    for (int s = 0; s < n_sizes; s++) {
        size_t bytes = (size_t)strtoull(sizes[s], NULL, 10);
        gbytes_per_s(c, move, bytes);
        double rate = gbytes_per_s(c, move, bytes);
        if (c->rank == 0) {
            printf("%zu %.6f\n", bytes, rate);
        }
    }
}

static void allocate(course *c, int is_put, int is_allocated)
{
    char *its = NULL;
    c->memory = malloc(c->memory_bytes);
    if (c->memory == NULL) {
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(c->memory, c->rank + 1, c->memory_bytes);
    if (is_put && is_allocated) {
        MPI_Win_allocate((MPI_Aint)c->memory_bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &its,
                         &c->window);
        memset(its, 0, c->memory_bytes);
    } else if (is_put) {
        MPI_Win_create(c->memory, (MPI_Aint)c->memory_bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                       &c->window);
    }
}

static void transfer(int rank, int argc, char **argv)
{
    static const struct {
        const char *name;
        move_fn *move;
        int is_put, is_allocated;
    } modes[] = {{"send", move_send, 0, 0},
                 {"isend", move_isend, 0, 0},
                 {"put", move_put, 1, 0},
                 {"put-allocated", move_put, 1, 1}};
    course c = {.rank = rank, .window = MPI_WIN_NULL};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0] && argc > 3; i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            c.memory_bytes = (size_t)strtoull(argv[2], NULL, 10) * MIB;
            allocate(&c, modes[i].is_put, modes[i].is_allocated);
            measure_moves(&c, modes[i].move, argc - 3, argv + 3);
            if (modes[i].is_put) {
                MPI_Win_free(&c.window);
            }
            free(c.memory);
        }
    }
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure_barriers(int rank, size_t count)
{
    double *each = malloc((count + 1) * sizeof *each);
    if (each == NULL || count == 0) {
        MPI_Abort(MPI_COMM_WORLD, 1);
        return;
    }
    for (size_t i = 0; i < count / 4 + 10; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (size_t i = 0; i < count; i++) {
        double begin = MPI_Wtime();
        MPI_Barrier(MPI_COMM_WORLD);
        each[i] = MPI_Wtime() - begin;
    }
    qsort(each, count, sizeof *each, compare_doubles);
    if (rank == 0) {
        printf("%.3f %.3f\n", each[count / 2] * 1e6, each[count * 99 / 100] * 1e6);
    }
    free(each);
}

int main(int argc, char **argv)
{
    int rank = 0;
    struct timespec now;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc > 2 && strcmp(argv[1], "barrier") == 0) {
        measure_barriers(rank, (size_t)strtoull(argv[2], NULL, 10));
    } else if (argc > 1 && strcmp(argv[1], "start") == 0) {
        MPI_Barrier(MPI_COMM_WORLD);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (rank == 0) {
            printf("%.6f\n", (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
        }
    } else {
        transfer(rank, argc, argv);
    }
    MPI_Finalize();
    return 0;
}
