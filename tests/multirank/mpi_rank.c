/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of an MPI program: worlds from its communicators, in the order in which those number the
 * ranks. Prints "ok RANK of N" when all was as it must be.
 */
#include <ferry/ferry.h>
#include <ferry/mpi.h>

#include <stdio.h>
#include <string.h>

static int fail(const char *what, const ferry_error *error)
{
    fprintf(stderr, "%s: %s\n", what, error->message);
    MPI_Abort(MPI_COMM_WORLD, 1);
    return 1;
}

/* A world of this communicator has its numbers, and carries bytes. */
static int check_world(MPI_Comm communicator)
{
    ferry_error error = {""};
    ferry_world *world = NULL;
    int rank, n_ranks;
    MPI_Comm_rank(communicator, &rank);
    MPI_Comm_size(communicator, &n_ranks);
    if (ferry_world_create_from_mpi(communicator, NULL, &world, &error) != FERRY_OK) {
        return fail("create", &error);
    }
    if (ferry_world_rank(world) != (uint32_t)rank ||
        ferry_world_rank_count(world) != (uint32_t)n_ranks) {
        return fail("numbers differ from the communicator's", &error);
    }
    const void *all;
    if (ferry_world_all_gather(world, &rank, sizeof rank, &all, &error) != FERRY_OK) {
        return fail("all_gather", &error);
    }
    for (int r = 0; r < n_ranks; r++) {
        int got;
        memcpy(&got, (const char *)all + (size_t)r * sizeof got, sizeof got);
        if (got != r) {
            return fail("all_gather brought something else", &error);
        }
    }
    /* The communicator is still the caller's, and MPI still works beside the world. */
    int sum = 0;
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, communicator);
    if (sum != n_ranks * (n_ranks - 1) / 2 || ferry_world_barrier(world, &error) != FERRY_OK) {
        return fail("after it", &error);
    }
    ferry_world_destroy(world);
    return 0;
}

int main(int argc, char **argv)
{
    int rank, n_ranks;
    MPI_Comm turned, half;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    MPI_Comm_split(MPI_COMM_WORLD, 0, n_ranks - rank, &turned);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);

    ferry_error error = {""};
    ferry_world *none = NULL;
    if (ferry_world_create_from_mpi(MPI_COMM_NULL, NULL, &none, &error) != FERRY_ERR_MISUSE) {
        return fail("MPI_COMM_NULL was taken", &error);
    }
    int failed = check_world(MPI_COMM_WORLD) | check_world(turned) | check_world(half);

    /* A world outlives MPI. */
    ferry_world *last = NULL;
    if (ferry_world_create_from_mpi(MPI_COMM_WORLD, NULL, &last, &error) != FERRY_OK) {
        return fail("create", &error);
    }
    MPI_Comm_free(&turned);
    MPI_Comm_free(&half);
    MPI_Finalize();
    failed |= ferry_world_barrier(last, &error) != FERRY_OK;
    ferry_world_destroy(last);
    if (!failed) {
        printf("ok %d of %d\n", rank, n_ranks);
    }
    return failed;
}
