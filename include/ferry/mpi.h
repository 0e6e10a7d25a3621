/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_MPI_H
#define FERRY_MPI_H

/*
 * A world of the ranks of an MPI communicator. All of this is in the header, so that the library
 * knows nothing of any MPI; compile with mpicc. ferry.h does not include it.
 */
#include <ferry/status.h>
#include <ferry/world.h>

#include <mpi.h>

#include <limits.h>
#include <stdio.h>

/* A ferry_bootstrap's functions over a communicator, whose address is the context. */
static inline int ferry_mpi_all_gather(void *context, const void *bytes, size_t n_bytes,
                                       void *all_out)
{
    if (n_bytes > INT_MAX) {
        return MPI_ERR_COUNT;
    }
    return MPI_Allgather(bytes, (int)n_bytes, MPI_BYTE, all_out, (int)n_bytes, MPI_BYTE,
                         *(MPI_Comm *)context);
}

static inline ferry_status ferry_mpi_fail(ferry_error *error, ferry_status status,
                                          const char *sentence, int result)
{
    if (error != NULL && result == MPI_SUCCESS) {
        snprintf(error->message, sizeof error->message, "%s", sentence);
    } else if (error != NULL) {
        char text[MPI_MAX_ERROR_STRING] = "";
        int length = 0;
        MPI_Error_string(result, text, &length);
        snprintf(error->message, sizeof error->message, "%s: %s", sentence, text);
    }
    return status;
}

/*
 * ferry_world_create for the ranks of a communicator, numbered as it numbers them. Collective over
 * it. MPI must be initialised, by MPI_THREAD_SINGLE or more; it is used during this call only, on a
 * duplicate of the communicator, and may be finalised before the world is destroyed.
 */
static inline ferry_status ferry_world_create_from_mpi(MPI_Comm communicator,
                                                       const ferry_world_options *options,
                                                       ferry_world **world_out, ferry_error *error)
{
    ferry_bootstrap bootstrap = FERRY_BOOTSTRAP_INIT;
    MPI_Comm own = MPI_COMM_NULL;
    int begun = 0, ended = 0, two_groups = 0, rank = 0, n_ranks = 0;
    ferry_status status;

    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    if (!begun || ended) {
        return ferry_mpi_fail(error, FERRY_ERR_MISUSE,
                              "a world from MPI is made between MPI_Init and MPI_Finalize",
                              MPI_SUCCESS);
    }
    if (communicator == MPI_COMM_NULL) {
        return ferry_mpi_fail(error, FERRY_ERR_MISUSE, "there is no world from MPI_COMM_NULL",
                              MPI_SUCCESS);
    }
    int result = MPI_Comm_test_inter(communicator, &two_groups);
    if (result == MPI_SUCCESS && two_groups) {
        return ferry_mpi_fail(error, FERRY_ERR_MISUSE,
                              "an intercommunicator has two groups; merge it with "
                              "MPI_Intercomm_merge",
                              MPI_SUCCESS);
    }
    if (result == MPI_SUCCESS) {
        result = MPI_Comm_dup(communicator, &own);
    }
    if (result == MPI_SUCCESS) { /* else MPI would end the process instead of returning */
        result = MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    }
    if (result == MPI_SUCCESS) {
        result = MPI_Comm_rank(own, &rank);
    }
    if (result == MPI_SUCCESS) {
        result = MPI_Comm_size(own, &n_ranks);
    }
    if (result == MPI_SUCCESS) {
        bootstrap.context = &own;
        bootstrap.rank = (uint32_t)rank;
        bootstrap.n_ranks = (uint32_t)n_ranks;
        bootstrap.all_gather = ferry_mpi_all_gather;
        status = ferry_world_create_from_bootstrap(&bootstrap, options, world_out, error);
    } else {
        status =
            ferry_mpi_fail(error, FERRY_ERR_EXCHANGE, "the communicator cannot be used", result);
    }
    if (own != MPI_COMM_NULL) {
        MPI_Comm_free(&own);
    }
    return status;
}

#endif
