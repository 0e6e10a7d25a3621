/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule_bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const load_kind_names[N_LOAD_KINDS] = {[LOAD_SPARSE] = "sparse",
                                                   [LOAD_DENSE] = "dense",
                                                   [LOAD_SKEWED] = "skewed",
                                                   [LOAD_HALVES] = "halves",
                                                   [LOAD_ALL_TO_ALL] = "all-to-all"};
const char *const load_sizes_names[N_LOAD_SIZES] = {[SIZES_EQUAL] = "equal",
                                                    [SIZES_UNIFORM] = "uniform",
                                                    [SIZES_EXPONENTIAL] = "exponential",
                                                    [SIZES_HEAVY_TAIL] = "heavy tail",
                                                    [SIZES_TINY] = "tiny"};

/* SplitMix64: the same numbers on every machine. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint32_t pick(uint64_t *state, uint32_t below)
{
    return (uint32_t)(((next_random(state) >> 32) * below) >> 32);
}

/* In (0, 1]. */
static double pick_part(uint64_t *state)
{
    return ((double)(next_random(state) >> 11) + 1) * 0x1p-53;
}

/* Half of all draws fall on the first quarter of the ranks, and so on inside it. */
static uint32_t pick_skewed(uint64_t *state, uint32_t n_ranks)
{
    double part = pick_part(state);
    return (uint32_t)(part * part * (n_ranks - 1));
}

static uint64_t pick_bytes(uint64_t *state, load_sizes sizes)
{
    const double mib = 1 << 20;
    double part = pick_part(state), bytes = 16 * mib;
    switch (sizes) {
    case SIZES_UNIFORM:
        bytes = 64 * mib * part;
        break;
    case SIZES_EXPONENTIAL:
        bytes = -32 * mib * log(part);
        break;
    case SIZES_HEAVY_TAIL:
        bytes = fmin(4 * mib * pow(part, -1 / 1.2), 4096 * mib);
        break;
    case SIZES_TINY:
        bytes = 16384 * part;
        break;
    default:
        break;
    }
    return bytes < 2 ? 2 : 2 * (uint64_t)(bytes / 2);
}

static uint32_t batches_of_a_rank(uint32_t n_ranks, load_kind kind)
{
    static const uint32_t counts[N_LOAD_KINDS] = {
        [LOAD_SPARSE] = 4, [LOAD_DENSE] = 64, [LOAD_SKEWED] = 32, [LOAD_HALVES] = 64};
    return kind == LOAD_ALL_TO_ALL ? n_ranks - 1 : counts[kind];
}

/* Batch number i of the rank. */
static void pick_pair(uint64_t *state, load_kind kind, uint32_t n_ranks, uint32_t rank, uint32_t i,
                      uint32_t *from, uint32_t *to)
{
    *from = rank;
    if (kind == LOAD_ALL_TO_ALL) {
        *to = (rank + 1 + i) % n_ranks;
    } else if (kind == LOAD_HALVES) {
        *to = n_ranks / 2 + pick(state, n_ranks - n_ranks / 2);
    } else if (kind == LOAD_SKEWED) {
        *from = pick_skewed(state, n_ranks);
        do {
            *to = n_ranks - 1 - pick_skewed(state, n_ranks);
        } while (*to == *from);
    } else {
        *to = (rank + 1 + pick(state, n_ranks - 1)) % n_ranks;
    }
}

void load_init(load *l, uint32_t n_ranks, load_kind kind, load_sizes sizes, uint64_t seed)
{
    uint32_t senders = kind == LOAD_HALVES ? n_ranks / 2 : n_ranks;
    uint32_t each = batches_of_a_rank(n_ranks, kind);
    uint64_t state = seed, n = 0;
    *l = (load){.n_ranks = n_ranks, .n = (uint64_t)senders * each};
    l->from = bench_alloc(l->n, sizeof *l->from);
    l->to = bench_alloc(l->n, sizeof *l->to);
    l->index = bench_alloc(l->n, sizeof *l->index);
    l->bytes = bench_alloc(l->n, sizeof *l->bytes);
    uint32_t *used = bench_alloc((size_t)n_ranks * n_ranks, sizeof *used);
    for (uint32_t rank = 0; rank < senders; rank++) {
        for (uint32_t i = 0; i < each; i++, n++) {
            pick_pair(&state, kind, n_ranks, rank, i, &l->from[n], &l->to[n]);
            l->bytes[n] = pick_bytes(&state, sizes);
            l->index[n] = used[(size_t)l->from[n] * n_ranks + l->to[n]]++;
        }
    }
    free(used);
    snprintf(l->name, sizeof l->name, "%u ranks, %s, %s, seed %llu", n_ranks, load_kind_names[kind],
             load_sizes_names[sizes], (unsigned long long)seed);
}

void load_cleanup(load *l)
{
    free(l->from);
    free(l->to);
    free(l->index);
    free(l->bytes);
}

void load_write(const bench *b, const load *l)
{
    if (b->loads == NULL) {
        return;
    }
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.json", b->loads, l->name);
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    fprintf(file, "{\"name\": \"%s\", \"n_ranks\": %u, \"tasks\": [", l->name, l->n_ranks);
    for (uint64_t i = 0; i < l->n; i++) {
        fprintf(file, "%s[%u, %u, %llu]", i == 0 ? "" : ", ", l->from[i], l->to[i],
                (unsigned long long)l->bytes[i]);
    }
    fprintf(file, "]}\n");
    fclose(file);
}

uint32_t load_degree(const load *l, bool half)
{
    uint32_t *sends = bench_alloc(l->n_ranks, sizeof *sends), degree = 0;
    uint32_t *recvs = half ? sends : bench_alloc(l->n_ranks, sizeof *recvs);
    for (uint64_t i = 0; i < l->n; i++) {
        sends[l->from[i]]++;
        recvs[l->to[i]]++;
    }
    for (uint32_t rank = 0; rank < l->n_ranks; rank++) {
        degree = sends[rank] > degree ? sends[rank] : degree;
        degree = recvs[rank] > degree ? recvs[rank] : degree;
    }
    free(sends);
    if (!half) {
        free(recvs);
    }
    return degree;
}

ferry_status load_tasks(const load *l, ferry_task_list **tasks_out, ferry_error *error)
{
    ferry_task_list *tasks = NULL;
    ferry_status status = ferry_task_list_create(l->n_ranks, &tasks, error);
    for (uint64_t i = 0; i < l->n && status == FERRY_OK; i++) {
        ferry_task task = FERRY_TASK_INIT;
        task.task_id = i;
        task.from = l->from[i];
        task.to = l->to[i];
        task.bytes = l->bytes[i];
        task.element_bytes = 2;
        status = ferry_task_list_add(tasks, &task, error);
    }
    if (status == FERRY_OK) {
        *tasks_out = tasks;
        tasks = NULL;
    }
    ferry_task_list_destroy(tasks);
    return status;
}

ferry_status bench_cluster(double node_gbytes_per_s, double latency_s, ferry_cluster **cluster_out,
                           ferry_error *error)
{
    ferry_cluster_options options = FERRY_CLUSTER_OPTIONS_INIT;
    options.ranks_per_node = 8;
    options.rank_bytes_per_s = 50e9;
    options.node_bytes_per_s = node_gbytes_per_s * 1e9;
    options.latency_s = latency_s;
    return ferry_cluster_create(&options, cluster_out, error);
}
