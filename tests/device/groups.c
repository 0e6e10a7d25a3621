/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixed collectives of ranks that are processes with a device each, where a node is what this
 * program says: all operations in all modes, every element checked. A launcher starts it.
 *
 *     groups LOCAL_SIZE LOCAL_TP_SIZE INTER_TP_SIZE f32|bf16 [deterministic]
 *
 * Prints whether its kernels go by multicast objects.
 */
#include <ferry/mixed_comm.h>
#include <ferry/world.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 20003 };

static ferry_world *world;
static ferry_mixed_comm *comm;
static ferry_mixed_comm_info info = FERRY_MIXED_COMM_INFO_INIT;
static uint32_t rank, n_ranks, dp;
static bool is_f32;

static void leave(int status)
{
    ferry_mixed_comm_destroy(comm);
    ferry_world_destroy(world);
    exit(status);
}

static void must(const char *what, ferry_status status, const ferry_error *error)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "rank %u: %s: %s\n", rank, what, error->message);
        leave(3);
    }
}

/* Small enough that every sum is exact in any order and any type. */
static float input_of(uint32_t its_rank, uint64_t chunk, uint64_t i)
{
    return (float)((its_rank * 7 + chunk * 5 + i * 3) % 11);
}

/* Coordinates as docs/collectives.md has them. */
static uint32_t dp_rank_of(uint32_t its_rank)
{
    uint32_t local = its_rank % info.local_size, inter = its_rank / info.local_size;
    return local / info.local_tp_size + inter / info.inter_tp_size * info.local_dp_size;
}

static float output_of(uint32_t op, uint64_t chunk, uint64_t i)
{
    bool scatters = op == FERRY_MIXED_REDUCE_SCATTER || op == FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE;
    bool gathers = op == FERRY_MIXED_ALL_GATHER || op == FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
    float sum = 0;
    for (uint32_t other = 0; other < n_ranks; other++) {
        if (!gathers || dp_rank_of(other) == chunk) {
            sum += input_of(other, scatters ? dp_rank_of(rank) : 0, i);
        }
    }
    return sum;
}

static void put(char *at, uint64_t i, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t high = (uint16_t)(bits >> 16);
    memcpy(at + i * (is_f32 ? 4 : 2), is_f32 ? (const void *)&bits : (const void *)&high,
           is_f32 ? 4 : 2);
}

static float get(const char *at, uint64_t i)
{
    uint32_t bits = 0;
    float value;
    memcpy((char *)&bits + (is_f32 ? 0 : 2), at + i * (is_f32 ? 4 : 2), is_f32 ? 4 : 2);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void run(uint32_t op, uint32_t mode, uint64_t n)
{
    ferry_error error;
    bool scatters = op == FERRY_MIXED_REDUCE_SCATTER || op == FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE;
    bool gathers = op == FERRY_MIXED_ALL_GATHER || op == FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
    uint64_t n_in = scatters ? dp : 1, n_out = gathers ? dp : 1, bytes = is_f32 ? 4 : 2;
    char *in = malloc(n_in * n * bytes), *out = calloc(n_out * n, bytes);
    for (uint64_t i = 0; i < n_in * n; i++) {
        put(in, i, input_of(rank, i / n, i % n));
    }
    ferry_mixed_tensor from = {ferry_buffer_of(in, n_in * n * bytes), n_in, n};
    ferry_mixed_tensor to = {ferry_buffer_of(out, n_out * n * bytes), n_out, n};
    must(ferry_mixed_mode_name(mode),
         ferry_mixed_comm_run(comm, op, &from, &to, mode, NULL, &error), &error);
    for (uint64_t i = 0; i < n_out * n; i++) {
        if (get(out, i) != output_of(op, i / n, i % n)) {
            fprintf(stderr, "rank %u: %s in mode %s of %llu: element %llu is %g, not %g\n", rank,
                    ferry_mixed_op_name(op), ferry_mixed_mode_name(mode), (unsigned long long)n,
                    (unsigned long long)i, (double)get(out, i),
                    (double)output_of(op, i / n, i % n));
            leave(4);
        }
    }
    free(in);
    free(out);
}

static void run_all(void)
{
    static const uint64_t counts[] = {1, 257, MOST};
    uint32_t ops[FERRY_MIXED_N_OPS], modes[FERRY_MIXED_N_MODES];
    size_t n_ops, n_modes;
    ferry_error error;
    must("operations",
         ferry_mixed_comm_get_valid_op_list(comm, ops, FERRY_MIXED_N_OPS, &n_ops, &error), &error);
    must("modes",
         ferry_mixed_comm_get_valid_mode_list(comm, modes, FERRY_MIXED_N_MODES, &n_modes, &error),
         &error);
    for (size_t i = 0; i < n_ops * n_modes * 3; i++) {
        run(ops[i % n_ops], modes[i / n_ops % n_modes], counts[i / n_ops / n_modes]);
    }
}

int main(int argc, char **argv)
{
    ferry_error error;
    ferry_mixed_comm_options options = FERRY_MIXED_COMM_OPTIONS_INIT;
    if (argc < 5) {
        return 2;
    }
    must("world", ferry_world_create(NULL, &world, &error), &error);
    rank = ferry_world_rank(world);
    n_ranks = ferry_world_rank_count(world);
    is_f32 = strcmp(argv[4], "f32") == 0;
    options.local_size = (uint32_t)strtoul(argv[1], NULL, 10);
    options.local_tp_size = (uint32_t)strtoul(argv[2], NULL, 10);
    options.inter_tp_size = (uint32_t)strtoul(argv[3], NULL, 10);
    options.inter_size = n_ranks / options.local_size;
    options.world_rank = rank;
    options.world_size = n_ranks;
    options.local_rank = rank % options.local_size;
    options.inter_rank = rank / options.local_size;
    options.dtype = is_f32 ? FERRY_F32 : FERRY_BF16;
    options.deterministic = argc > 5;
    options.use_autotune = false;
    options.staging_bytes = 1 << 20;
    options.grid_size = 2;
    const char *devices = getenv("STANDIN_DEVICES");
    uint32_t n_devices = devices != NULL ? (uint32_t)strtoul(devices, NULL, 10) : 1;
    options.device = (ferry_device){FERRY_MEMORY_CUDA, (int32_t)(rank % n_devices)};
    must("create", ferry_mixed_comm_create(world, &options, &comm, &error), &error);
    must("info", ferry_mixed_comm_get_info(comm, &info, &error), &error);
    dp = info.dp_size;
    run_all();
    printf("rank %u: %s\n", rank,
           !info.kernels                             ? "by the host"
           : info.reach == FERRY_MIXED_REACH_OBJECTS ? "by objects"
                                                     : "in place");
    leave(0);
}
