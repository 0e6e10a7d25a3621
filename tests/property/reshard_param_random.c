/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner of one parameter against maps made element by element: strides, packed blocks of two
 * to five components, row to column, both ways between 1 and 6 ranks. And the reference's choice of
 * a source.
 */
#include <ferry/ferry.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "seed %llu: line %d: %s: %s\n", (unsigned long long)current_seed,      \
                    __LINE__, #condition, error.message);                                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static unsigned long long current_seed;
static ferry_error error;
static uint64_t state;

static uint32_t pick(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

enum { MAX_PARTS = 6, MAX_BLOCKS = 5, LENGTH = 720, OTHER = 360 };

/* One side: its cut dimension, how many ranks from which, stride or blocks (per-rank lengths). */
typedef struct side {
    uint32_t n, first, dim;
    uint64_t stride;
    uint64_t blocks[MAX_BLOCKS];
    size_t n_blocks;
    uint64_t global[MAX_PARTS][LENGTH]; /* of each local index along dim */
    ferry_group *group;
    ferry_param_metadata metadata;
} side;

static const uint64_t shape[2] = {LENGTH, OTHER};

/* Block after block; in each, segment j of n * stride belongs to rank j mod n. */
static void fill_map(side *s)
{
    uint64_t extent = shape[s->dim], local[MAX_PARTS] = {0}, base = 0;
    uint64_t whole[1] = {extent / s->n};
    const uint64_t *blocks = s->n_blocks > 0 ? s->blocks : whole;
    for (size_t b = 0; b < (s->n_blocks > 0 ? s->n_blocks : 1); b++) {
        uint64_t size = blocks[b] * s->n, segment = size / (s->n * s->stride);
        for (uint64_t i = 0; i < size; i++) {
            uint32_t rank = (uint32_t)(i / segment % s->n);
            s->global[rank][local[rank]++] = base + i;
        }
        base += size;
    }
}

static void make_side(side *s, uint32_t first, uint32_t dim)
{
    static const uint32_t counts[] = {1, 2, 3, 4, 6};
    memset(s, 0, sizeof *s);
    s->n = counts[pick(5)];
    s->first = first;
    s->dim = dim;
    s->stride = 1 + pick(3);
    CHECK(ferry_group_create_range(first, 1, s->n, &s->group, &error) == FERRY_OK);
    s->metadata = (ferry_param_metadata)FERRY_PARAM_METADATA_INIT;
    ferry_param_metadata *m = &s->metadata;
    m->name = "layer.weight";
    m->n_dims = 2;
    m->shape[0] = shape[0];
    m->shape[1] = shape[1];
    m->shape[dim] /= s->n;
    m->is_tp = s->n > 1 || pick(2) == 0;
    m->partition_dim = dim;
    m->partition_stride = m->is_tp ? s->stride : 1;
    m->owner_rank = first;
    m->tensor_parallel_group_ranks = s->group;
    s->stride = m->partition_stride;
    CHECK(ferry_dtype_of(FERRY_BF16, &m->dtype, &error) == FERRY_OK);
}

/* The same global blocks on both sides: their per-rank lengths differ with the number of ranks. */
static void add_blocks(side *a, side *b)
{
    size_t n = 2 + pick(4);
    uint64_t left = shape[a->dim] / 12;
    for (size_t i = 0; i < n; i++) {
        uint64_t units = i + 1 == n ? left : pick((uint32_t)(left - (n - i - 1))) + 0u;
        left -= units;
        side *sides[2] = {a, b};
        for (size_t k = 0; k < 2; k++) {
            sides[k]->blocks[i] = units * 12 / sides[k]->n;
        }
    }
    side *sides[2] = {a, b};
    for (size_t k = 0; k < 2; k++) {
        sides[k]->stride = 1;
        sides[k]->metadata.partition_stride = 1;
        if (sides[k]->metadata.is_tp) {
            sides[k]->n_blocks = n;
            sides[k]->metadata.partition_sizes = sides[k]->blocks;
            sides[k]->metadata.n_partition_sizes = n;
        }
    }
}

static uint64_t global_at(const side *s, uint32_t rank, uint32_t dim, uint64_t local)
{
    return dim == s->dim ? s->global[rank - s->first][local] : local;
}

/* Every element of one receiver comes once, and from the element with the same global index. */
static void check_receiver(const side *src, const side *dst, uint32_t rank)
{
    static unsigned char seen[LENGTH][OTHER];
    ferry_transfers *transfers;
    ferry_slice last[2] = {{0, 0}, {0, 0}};
    memset(seen, 0, sizeof seen);
    CHECK(ferry_transfers_find_sources("layer.weight", &src->metadata, &dst->metadata, rank,
                                       &transfers, &error) == FERRY_OK);
    for (size_t i = 0; i < ferry_transfers_count(transfers); i++) {
        ferry_transfer t = FERRY_TRANSFER_INIT;
        const ferry_slice *a = t.src_slice, *b = t.dst_slice;
        CHECK(ferry_transfers_at(transfers, i, &t, &error) == FERRY_OK);
        uint32_t from = t.src_rank;
        CHECK(t.n_dims == 2);
        CHECK(from >= src->first && from < src->first + src->n);
        CHECK(a[0].length == b[0].length && a[1].length == b[1].length);
        CHECK(i == 0 || b[0].begin > last[0].begin ||
              (b[0].begin == last[0].begin && b[1].begin > last[1].begin));
        memcpy(last, b, sizeof last);
        for (uint64_t x = 0; x < b[0].length; x++) {
            for (uint64_t y = 0; y < b[1].length; y++) {
                CHECK(global_at(src, from, 0, a[0].begin + x) ==
                      global_at(dst, rank, 0, b[0].begin + x));
                CHECK(global_at(src, from, 1, a[1].begin + y) ==
                      global_at(dst, rank, 1, b[1].begin + y));
                CHECK(seen[b[0].begin + x][b[1].begin + y]++ == 0);
            }
        }
    }
    for (uint64_t x = 0; x < dst->metadata.shape[0]; x++) {
        for (uint64_t y = 0; y < dst->metadata.shape[1]; y++) {
            CHECK(seen[x][y] == 1);
        }
    }
    ferry_transfers_destroy(transfers);
}

static void run_cut(void)
{
    static side src, dst;
    uint32_t dim = pick(2);
    bool turn = pick(4) == 0;
    make_side(&src, 3, dim);
    make_side(&dst, 20, turn ? 1 - dim : dim);
    if (!turn && pick(3) == 0) {
        add_blocks(&src, &dst);
    }
    fill_map(&src);
    fill_map(&dst);
    if (!src.metadata.is_tp && !dst.metadata.is_tp) {
        src.metadata.is_tp = true;
    }
    for (uint32_t r = 0; r < dst.n; r++) {
        check_receiver(&src, &dst, dst.first + r);
    }
    ferry_sharding_descriptor d = FERRY_SHARDING_DESCRIPTOR_INIT;
    size_t n;
    ferry_transfers *none;
    ferry_param_metadata unknown = src.metadata;
    unknown.tensor_parallel_group_ranks = NULL;
    CHECK(ferry_sharding_descriptor_build(&unknown, &dst.metadata, &d, &n, &error) == FERRY_OK);
    CHECK(n == 0);
    CHECK(ferry_transfers_find_sources("layer.weight", &unknown, &dst.metadata, 20, &none,
                                       &error) == FERRY_ERR_INVALID_PLAN);
    ferry_param_metadata longer = dst.metadata;
    longer.shape[longer.partition_dim]++;
    longer.n_partition_sizes = 0;
    if (!turn) {
        CHECK(ferry_sharding_descriptor_build(&src.metadata, &longer, &d, &n, &error) ==
              FERRY_ERR_INVALID_PLAN);
        CHECK(strstr(error.message, "layer.weight") != NULL);
    }
    ferry_group_destroy(src.group);
    ferry_group_destroy(dst.group);
}

/* 2 to 16 DP groups of random sizes, sources in random order, against the rule in four lines. */
static void run_choice(void)
{
    enum { MOST = 16 };
    ferry_group *groups[MOST], *to;
    ferry_param_metadata sources[64], destination = FERRY_PARAM_METADATA_INIT;
    const ferry_param_metadata *list[64];
    uint32_t n_groups = 2 + pick(MOST - 1), n_sources = 0, first[MOST];
    for (uint32_t g = 0; g < n_groups; g++) {
        first[g] = (g * 7 + 3) % 16 * 10; /* the order of the tuples is not the order of g */
        CHECK(ferry_group_create_range(first[g], 1 + pick(2), 3, &groups[g], &error) == FERRY_OK);
    }
    for (; n_sources < n_groups * 2 + pick(20); n_sources++) {
        uint32_t g = n_sources < n_groups ? n_sources : pick(n_groups);
        sources[n_sources] = (ferry_param_metadata)FERRY_PARAM_METADATA_INIT;
        sources[n_sources].data_parallel_group_ranks = groups[g];
        sources[n_sources].owner_rank = first[g];
        list[n_sources] = &sources[n_sources];
    }
    uint32_t members[5] = {300, 17, 4, 290, 8}, rank = pick(6) == 0 ? 999 : members[pick(5)];
    CHECK(ferry_group_create(members, 5, &to, &error) == FERRY_OK);
    destination.data_parallel_group_ranks = to;
    size_t chosen, index = 0;
    for (size_t i = 0; i < 5; i++) {
        index = members[i] == rank ? i : index;
    }
    CHECK(ferry_param_metadata_select_source(list, n_sources, &destination, rank, &chosen,
                                             &error) == FERRY_OK);
    /* The bucket: the group that (index mod n) groups are before. Its first entry: none before it.
     */
    uint32_t before = 0, group = sources[chosen].owner_rank;
    for (uint32_t g = 0; g < n_groups; g++) {
        before += first[g] < group;
    }
    CHECK(before == index % n_groups);
    for (size_t i = 0; i < chosen; i++) {
        CHECK(sources[i].owner_rank != group);
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        ferry_group_destroy(groups[g]);
    }
    ferry_group_destroy(to);
}

int main(int argc, char **argv)
{
    unsigned long long first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    unsigned long long count = argc > 2 ? strtoull(argv[2], NULL, 10) : 100;
    for (unsigned long long seed = first; seed < first + count; seed++) {
        current_seed = seed;
        state = seed * 0x9e3779b97f4a7c15u + 1;
        run_cut();
        run_choice();
    }
    printf("%llu seeds from %llu: every element from its place\n", count, first);
    return 0;
}
