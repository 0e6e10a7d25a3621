/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_SPLITS_H
#define FERRY_TESTS_SPLITS_H

/*
 * Every small split there is, each with what its definition says element by element: which parts
 * own an element. A part's shard is its elements in global order, so the owners say everything.
 */
#include "layout/split.h"

#include "support/check.h"

#include <stdio.h>

enum { MOST_EXTENT = 14, MOST_PARTS = 8 };

typedef struct naive {
    uint64_t extent;
    uint32_t n_parts;
    uint32_t owners[MOST_EXTENT]; /* a bit per part */
    char name[200];
} naive;

/* Takes the split over. */
typedef void (*split_visitor)(void *context, fy_split *split, const naive *n);

typedef struct split_walk {
    split_visitor visitor;
    void *context;
    uint64_t extent;
    uint32_t n_parts;
} split_walk;

static void hand_split(const split_walk *walk, ferry_status status, fy_split *split, const naive *n,
                       const ferry_error *error)
{
    check_status(n->name, FERRY_OK, status, error);
    walk->visitor(walk->context, split, n);
}

static uint64_t naive_ceil(uint64_t a, uint64_t b)
{
    uint64_t q = 0;
    while (q * b < a) {
        q++;
    }
    return q;
}

/* Of an element of an extent that is cut into n_parts by the chunk rule in units. */
static uint32_t naive_chunk(uint64_t element, uint64_t extent, uint64_t n_parts, uint64_t unit)
{
    return (uint32_t)(element / (naive_ceil(extent / unit, n_parts) * unit));
}

static void visit_even(const split_walk *walk)
{
    for (uint64_t unit = 1; unit <= 5; unit++) {
        naive n = {.extent = walk->extent, .n_parts = walk->n_parts};
        fy_split *split = NULL;
        ferry_error error;
        if (walk->extent % unit != 0) {
            continue;
        }
        snprintf(n.name, sizeof n.name, "%llu even by %u unit %llu", (unsigned long long)n.extent,
                 n.n_parts, (unsigned long long)unit);
        for (uint64_t e = 0; e < n.extent; e++) {
            n.owners[e] = 1u << naive_chunk(e, n.extent, n.n_parts, unit);
        }
        ferry_status status = fy_split_even(n.extent, n.n_parts, unit, &split, &error);
        hand_split(walk, status, split, &n, &error);
    }
}

static void visit_strided(const split_walk *walk)
{
    for (uint64_t unit = 1; unit <= 3; unit++) {
        for (uint64_t stride = 1; stride <= 5 && walk->extent % unit == 0; stride++) {
            naive n = {.extent = walk->extent, .n_parts = walk->n_parts};
            fy_split *split = NULL;
            ferry_error error;
            snprintf(n.name, sizeof n.name, "%llu by %u stride %llu unit %llu",
                     (unsigned long long)n.extent, n.n_parts, (unsigned long long)stride,
                     (unsigned long long)unit);
            for (uint64_t e = 0; e < n.extent; e++) {
                uint32_t segment = naive_chunk(e, n.extent, n.n_parts * stride, unit);
                n.owners[e] = 1u << segment % n.n_parts;
            }
            ferry_status status =
                fy_split_strided(n.extent, n.n_parts, stride, unit, &split, &error);
            hand_split(walk, status, split, &n, &error);
        }
    }
}

static void visit_cyclic(const split_walk *walk)
{
    for (uint64_t block = 1; block <= 6; block++) {
        naive n = {.extent = walk->extent, .n_parts = walk->n_parts};
        fy_split *split = NULL;
        ferry_error error;
        snprintf(n.name, sizeof n.name, "%llu by %u cycle %llu", (unsigned long long)n.extent,
                 n.n_parts, (unsigned long long)block);
        for (uint64_t e = 0; e < n.extent; e++) {
            n.owners[e] = 1u << e / block % n.n_parts;
        }
        ferry_status status = fy_split_cyclic(n.extent, n.n_parts, block, &split, &error);
        hand_split(walk, status, split, &n, &error);
    }
}

/* The next way to write a number as a sum of n numbers, which start as (total, 0, 0, ...). */
static bool next_sum(uint64_t *parts, size_t n)
{
    size_t i = 0;
    while (i + 1 < n && parts[i] == 0) {
        i++;
    }
    if (i + 1 >= n) {
        return false;
    }
    uint64_t rest = parts[i] - 1;
    parts[i] = 0;
    parts[0] = rest;
    parts[i + 1]++;
    return true;
}

static void visit_sizes(const split_walk *walk)
{
    uint64_t sizes[MOST_PARTS] = {walk->extent};
    do {
        naive n = {.extent = walk->extent, .n_parts = walk->n_parts};
        fy_split *split = NULL;
        ferry_error error;
        uint64_t e = 0;
        size_t used = (size_t)snprintf(n.name, sizeof n.name, "sizes");
        for (uint32_t p = 0; p < n.n_parts; p++) {
            for (uint64_t i = 0; i < sizes[p]; i++) {
                n.owners[e++] = 1u << p;
            }
            used += (size_t)snprintf(n.name + used, sizeof n.name - used, " %llu",
                                     (unsigned long long)sizes[p]);
        }
        ferry_status status = fy_split_sizes(n.extent, sizes, n.n_parts, &split, &error);
        hand_split(walk, status, split, &n, &error);
    } while (next_sum(sizes, walk->n_parts));
}

/* One packed component: cut by itself, each piece owned by n_parts / its parts neighbours. */
static void own_block(naive *n, uint64_t begin, const fy_split_block *block, uint64_t unit)
{
    uint32_t n_owners = n->n_parts / block->n_parts;
    for (uint64_t i = 0; i < block->size; i++) {
        uint32_t piece = naive_chunk(i, block->size, block->n_parts, unit);
        n->owners[begin + i] = ((1u << n_owners) - 1) << piece * n_owners;
    }
}

static void visit_block_list(const split_walk *walk, const fy_split_block *blocks, size_t n_blocks,
                             uint64_t unit)
{
    naive n = {.extent = walk->extent, .n_parts = walk->n_parts};
    fy_split *split = NULL;
    ferry_error error;
    uint64_t begin = 0;
    size_t used = (size_t)snprintf(n.name, sizeof n.name, "blocks over %u unit %llu:", n.n_parts,
                                   (unsigned long long)unit);
    for (size_t i = 0; i < n_blocks; i++) {
        own_block(&n, begin, &blocks[i], unit);
        begin += blocks[i].size;
        used += (size_t)snprintf(n.name + used, sizeof n.name - used, " [%llu, %u]",
                                 (unsigned long long)blocks[i].size, blocks[i].n_parts);
    }
    ferry_status status =
        fy_split_blocks(n.extent, n.n_parts, blocks, n_blocks, unit, &split, &error);
    hand_split(walk, status, split, &n, &error);
}

/* All choices of fewer parts for blocks of given sizes. */
static void visit_block_parts(const split_walk *walk, const uint64_t *sizes, size_t n_blocks,
                              uint64_t unit)
{
    fy_split_block blocks[3];
    uint32_t choice[3] = {1, 1, 1};
    for (;;) {
        bool divides = true;
        for (size_t i = 0; i < n_blocks; i++) {
            blocks[i] = (fy_split_block){.size = sizes[i], .n_parts = choice[i]};
            divides = divides && walk->n_parts % choice[i] == 0;
        }
        if (divides) {
            visit_block_list(walk, blocks, n_blocks, unit);
        }
        size_t i = 0;
        while (i < n_blocks && ++choice[i] > walk->n_parts) {
            choice[i++] = 1;
        }
        if (i == n_blocks) {
            break;
        }
    }
}

static void visit_blocks(const split_walk *walk)
{
    for (uint64_t unit = 1; unit <= 2; unit++) {
        for (size_t n_blocks = 1; n_blocks <= 3 && walk->extent % unit == 0; n_blocks++) {
            uint64_t sizes[3] = {walk->extent};
            do {
                bool whole_units = true;
                for (size_t i = 0; i < n_blocks; i++) {
                    whole_units = whole_units && sizes[i] % unit == 0;
                }
                if (whole_units) {
                    visit_block_parts(walk, sizes, n_blocks, unit);
                }
            } while (next_sum(sizes, n_blocks));
        }
    }
}

/* Cuts [begin, begin + length) by the first count, and each part by the others. */
static uint32_t own_nested(naive *n, uint64_t begin, uint64_t length, const uint32_t *counts,
                           size_t n_counts, uint64_t unit, uint32_t part)
{
    if (n_counts == 0) {
        for (uint64_t i = 0; i < length; i++) {
            n->owners[begin + i] = 1u << part;
        }
        return part + 1;
    }
    uint64_t chunk = naive_ceil(length / unit, counts[0]) * unit;
    for (uint32_t c = 0; c < counts[0]; c++) {
        uint64_t first = c * chunk < length ? c * chunk : length;
        uint64_t last = (c + 1) * chunk < length ? (c + 1) * chunk : length;
        part = own_nested(n, begin + first, last - first, counts + 1, n_counts - 1, unit, part);
    }
    return part;
}

static void visit_nested(const split_walk *walk)
{
    static const uint32_t shapes[][3] = {{1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {1, 3, 1},
                                         {2, 2, 1}, {1, 2, 2}, {2, 3, 1}, {3, 2, 1},
                                         {2, 2, 2}, {4, 2, 1}, {2, 4, 1}, {1, 1, 5}};
    for (size_t s = 0; s < COUNT_OF(shapes); s++) {
        uint32_t n_parts = shapes[s][0] * shapes[s][1] * shapes[s][2];
        for (uint64_t unit = 1; unit <= 3 && n_parts == walk->n_parts; unit++) {
            naive n = {.extent = walk->extent, .n_parts = n_parts};
            fy_split *split = NULL;
            ferry_error error;
            if (n.extent % unit != 0) {
                continue;
            }
            snprintf(n.name, sizeof n.name, "%llu nested %u x %u x %u unit %llu",
                     (unsigned long long)n.extent, shapes[s][0], shapes[s][1], shapes[s][2],
                     (unsigned long long)unit);
            own_nested(&n, 0, n.extent, shapes[s], 3, unit, 0);
            ferry_status status = fy_split_nested(n.extent, shapes[s], 3, unit, &split, &error);
            hand_split(walk, status, split, &n, &error);
        }
    }
}

/* All lengths of up to three segments per part that add up to the extent. */
static void visit_segments(const split_walk *walk)
{
    for (size_t n_segments = 1; n_segments <= 3 && n_segments * walk->n_parts <= 6; n_segments++) {
        size_t n_lengths = n_segments * walk->n_parts;
        uint64_t lengths[6] = {walk->extent};
        do {
            naive n = {.extent = walk->extent, .n_parts = walk->n_parts};
            fy_split *split = NULL;
            ferry_error error;
            uint64_t e = 0;
            size_t used = (size_t)snprintf(n.name, sizeof n.name, "segments of %u:", n.n_parts);
            for (size_t i = 0; i < n_lengths; i++) {
                uint32_t part = (uint32_t)(i % n.n_parts);
                uint64_t length = lengths[part * n_segments + i / n.n_parts];
                for (uint64_t k = 0; k < length; k++) {
                    n.owners[e++] = 1u << part;
                }
                used += (size_t)snprintf(n.name + used, sizeof n.name - used, " %llu",
                                         (unsigned long long)length);
            }
            ferry_status status = fy_split_segments(n.n_parts, lengths, n_segments, &split, &error);
            hand_split(walk, status, split, &n, &error);
        } while (next_sum(lengths, n_lengths));
    }
}

static void visit_splits(uint64_t extent, uint32_t n_parts, split_visitor visitor, void *context)
{
    split_walk walk = {
        .visitor = visitor, .context = context, .extent = extent, .n_parts = n_parts};
    visit_even(&walk);
    visit_strided(&walk);
    visit_cyclic(&walk);
    visit_sizes(&walk);
    visit_blocks(&walk);
    visit_nested(&walk);
    if (extent <= 7) {
        visit_segments(&walk);
    }
}

#endif
