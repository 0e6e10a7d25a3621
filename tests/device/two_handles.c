/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Two handles of one rank share the queue of its device, and one of them fails: what the other one
 * does ends all the same, and rightly where nothing is wrong with it. For two ranks, which a
 * launcher starts.
 *
 *     two_handles ends|cancels|refuses MODE MODE
 */
#include <ferry/mixed_comm.h>
#include <ferry/request.h>
#include <ferry/world.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { COLUMNS = 1024 };

static uint32_t rank;
static ferry_mixed_comm *handles[2];
static float in[2][COLUMNS], out[2][COLUMNS];
static uint32_t modes[2];

static void fail(const char *what, const ferry_error *error)
{
    fprintf(stderr, "rank %u: %s: %s\n", rank, what, error->message);
    _exit(3);
}

static void must(const char *what, ferry_status status, const ferry_error *error)
{
    if (status != FERRY_OK) {
        fail(what, error);
    }
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static ferry_mixed_tensor tensor_of(float *values, uint64_t columns)
{
    return (ferry_mixed_tensor){ferry_buffer_of(values, COLUMNS * sizeof *values), 1, columns};
}

static void open_handles(ferry_world *world)
{
    ferry_error error;
    for (int i = 0; i < 2; i++) {
        ferry_mixed_comm_options options = FERRY_MIXED_COMM_OPTIONS_INIT;
        options.local_tp_size = 2;
        options.dtype = FERRY_F32;
        options.device = (ferry_device){FERRY_MEMORY_CUDA, (int32_t)rank};
        options.use_autotune = false;
        must("create", ferry_mixed_comm_create(world, &options, &handles[i], &error), &error);
        for (int k = 0; k < COLUMNS; k++) {
            in[i][k] = (float)(rank + 1);
        }
    }
}

static ferry_status start(int i, uint64_t columns, ferry_request **request, ferry_error *error)
{
    ferry_mixed_tensor from = tensor_of(in[i], columns), to = tensor_of(out[i], COLUMNS);
    return ferry_mixed_comm_start(handles[i], FERRY_MIXED_ALL_REDUCE, &from, &to, modes[i], NULL,
                                  request, error);
}

/* The second handle's call, with which nothing is wrong. */
static void run_second(void)
{
    ferry_error error;
    ferry_mixed_tensor from = tensor_of(in[1], COLUMNS), to = tensor_of(out[1], COLUMNS);
    must("the second handle",
         ferry_mixed_comm_run(handles[1], FERRY_MIXED_ALL_REDUCE, &from, &to, modes[1], NULL,
                              &error),
         &error);
    for (int k = 0; k < COLUMNS; k++) {
        if (out[1][k] != 3) {
            snprintf(error.message, sizeof error.message, "element %d is %g", k, (double)out[1][k]);
            fail("the second handle", &error);
        }
    }
}

static void must_fail(ferry_request *request)
{
    ferry_error error = {.message = "it went well"};
    if (ferry_request_wait(request, &error) == FERRY_OK) {
        fail("the first handle", &error);
    }
}

/* Rank 1 ends without a word while both calls are under way. */
static void run_ending(ferry_request *requests[2])
{
    ferry_error error;
    pause_ms(rank == 0 ? 300 : 0); /* so that one of them is on its way without the other's part */
    for (int i = 0; i < 2; i++) {
        must("start", start(i, COLUMNS, &requests[i], &error), &error);
    }
    if (rank == 1) {
        pause_ms(600);
        _exit(0); /* as if it had been killed, but that its launcher lets the other one go on */
    }
    for (int i = 0; i < 2; i++) { /* a kernel's may have gone well before */
        (void)ferry_request_wait(requests[i], &error);
    }
}

static void run_cancelled(ferry_request *requests[2])
{
    ferry_error error;
    bool is_done;
    pause_ms(rank == 0 ? 300 : 0);
    must("start", start(0, COLUMNS, &requests[0], &error), &error);
    if (rank == 1) {
        pause_ms(600);
        ferry_request_cancel(requests[0]);
    }
    for (int i = 0; rank == 0 && i < 100; i++) {
        ferry_request_test(requests[0], &is_done, &error);
        pause_ms(1);
    }
    run_second();
    (void)ferry_request_wait(requests[0], &error); /* it may have been over before */
}

static void run_refused(ferry_request *requests[2])
{
    ferry_error error;
    pause_ms(rank == 0 ? 300 : 0);
    ferry_status status = start(0, rank == 1 ? COLUMNS - 1 : COLUMNS, &requests[0], &error);
    if ((status == FERRY_OK) != (rank == 0)) {
        fail("start", &error);
    }
    run_second();
    if (requests[0] != NULL) {
        must_fail(requests[0]);
    }
}

int main(int argc, char **argv)
{
    ferry_error error;
    ferry_world *world;
    ferry_request *requests[2] = {NULL, NULL};
    if (argc != 4) {
        return 2;
    }
    must("world", ferry_world_create(NULL, &world, &error), &error);
    rank = ferry_world_rank(world);
    for (int i = 0; i < 2; i++) {
        must("mode", ferry_mixed_mode_parse(argv[2 + i], &modes[i], &error), &error);
    }
    open_handles(world);
    (strcmp(argv[1], "ends") == 0      ? run_ending
     : strcmp(argv[1], "cancels") == 0 ? run_cancelled
                                       : run_refused)(requests);
    for (int i = 0; i < 2; i++) {
        ferry_request_destroy(requests[i]);
    }
    for (int i = 0; i < 2; i++) {
        ferry_mixed_comm_destroy(handles[i]);
    }
    ferry_world_destroy(world);
    printf("rank %u: fine\n", rank);
    return 0;
}
