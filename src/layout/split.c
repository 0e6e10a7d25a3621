/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "layout/split.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"

#include <string.h>

/* Pieces are appended in global order; the builder keeps the local begins and merges neighbours. */
typedef struct builder {
    fy_split *split;
    size_t piece_capacity;
    size_t local_capacity;
    size_t cell_capacity;
} builder;

void fy_split_destroy(fy_split *split)
{
    if (split != NULL) {
        fy_free(split->pieces);
        fy_free(split->part_length);
        fy_free(split->shared_local);
        fy_free(split->shared_cells);
        fy_free(split->part_hash);
        fy_free(split);
    }
}

static ferry_status builder_init(builder *b, uint64_t extent, uint64_t n_parts, ferry_error *error)
{
    *b = (builder){0};
    if (n_parts > FY_MAX_PIECES) {
        return fy_fail(error, FERRY_ERR_LIMIT, "%llu parts, more than the limit of %d",
                       (unsigned long long)n_parts, FY_MAX_PIECES);
    }
    b->split = fy_alloc_zeroed(1, sizeof *b->split);
    FY_TRY(fy_check_memory(b->split != NULL, "a split", error));
    b->split->extent = extent;
    b->split->n_parts = (uint32_t)n_parts;
    b->split->n_cells = (uint32_t)n_parts;
    b->split->part_length = fy_alloc_zeroed((size_t)n_parts, sizeof *b->split->part_length);
    b->split->part_hash = fy_alloc_zeroed((size_t)n_parts, sizeof *b->split->part_hash);
    if (b->split->part_length == NULL || b->split->part_hash == NULL) {
        fy_split_destroy(b->split);
        b->split = NULL;
        return fy_fail_no_memory(error, "a split");
    }
    return FERRY_OK;
}

static bool extends_last(const fy_split *split, uint64_t global, uint32_t part, uint32_t n_owners)
{
    if (split->n_pieces == 0) {
        return false;
    }
    const fy_piece *last = &split->pieces[split->n_pieces - 1];
    return last->part == part && last->n_owners == n_owners &&
           last->global + last->length == global;
}

/*
 * The cells of one degree of sharing lie together, n_parts / n_owners of them in order of their
 * owners, so that a cell is found without a search through all.
 */
static bool cell_of(builder *b, uint32_t part, uint32_t n_owners, uint32_t *cell_out)
{
    fy_split *split = b->split;
    if (n_owners == 1) {
        *cell_out = part;
        return true;
    }
    uint32_t n_shared = split->n_cells - split->n_parts;
    uint32_t first = 0;
    while (first < n_shared && split->shared_cells[first].count != n_owners) {
        first += split->n_parts / split->shared_cells[first].count;
    }
    if (first == n_shared) {
        uint32_t n_more = split->n_parts / n_owners;
        if (!FY_RESERVE(split->shared_cells, b->cell_capacity, n_shared + n_more)) {
            return false;
        }
        for (uint32_t i = 0; i < n_more; i++) {
            split->shared_cells[n_shared + i] =
                (fy_owners){.first = i * n_owners, .count = n_owners};
        }
        split->n_cells += n_more;
    }
    *cell_out = split->n_parts + first + part / n_owners;
    return true;
}

static bool add_shared_begins(builder *b, uint32_t part, uint32_t n_owners)
{
    fy_split *split = b->split;
    if (!FY_RESERVE(split->shared_local, b->local_capacity, split->n_shared_local + n_owners)) {
        return false;
    }
    memcpy(split->shared_local + split->n_shared_local, split->part_length + part,
           n_owners * sizeof *split->shared_local);
    split->n_shared_local += n_owners;
    return true;
}

static bool append(builder *b, uint64_t global, uint64_t length, uint32_t part, uint32_t n_owners)
{
    fy_split *split = b->split;
    if (length == 0) {
        return true;
    }
    if (extends_last(split, global, part, n_owners)) {
        split->pieces[split->n_pieces - 1].length += length;
    } else {
        fy_piece piece = {.global = global, .length = length, .part = part, .n_owners = n_owners};
        piece.local = n_owners == 1 ? split->part_length[part] : split->n_shared_local;
        if (!cell_of(b, part, n_owners, &piece.cell) ||
            (n_owners > 1 && !add_shared_begins(b, part, n_owners)) ||
            !FY_RESERVE(split->pieces, b->piece_capacity, split->n_pieces + 1)) {
            return false;
        }
        split->pieces[split->n_pieces++] = piece;
    }
    for (uint32_t i = 0; i < n_owners; i++) {
        split->part_length[part + i] += length;
    }
    return true;
}

static fy_hash128 mix_piece(fy_hash128 hash, const fy_piece *piece)
{
    uint64_t values[4] = {hash.low, hash.high, piece->global, piece->length};
    return fy_hash128_of(values, sizeof values);
}

/* What a part holds is the chain of its pieces; the split is the chain of its pieces with owners.
 */
static void hash_split(fy_split *split)
{
    uint64_t head[2] = {split->extent, split->n_parts};
    fy_hash128 whole = fy_hash128_of(head, sizeof head);
    for (size_t i = 0; i < split->n_pieces; i++) {
        const fy_piece *piece = &split->pieces[i];
        for (uint32_t p = piece->part; p < piece->part + piece->n_owners; p++) {
            split->part_hash[p] = mix_piece(split->part_hash[p], piece);
        }
        uint64_t values[6] = {whole.low,     whole.high,  piece->global,
                              piece->length, piece->part, piece->n_owners};
        whole = fy_hash128_of(values, sizeof values);
    }
    split->hash = whole;
}

static ferry_status builder_finish(builder *b, bool complete, fy_split **split_out,
                                   ferry_error *error)
{
    if (!complete) {
        fy_split_destroy(b->split);
        return fy_fail_no_memory(error, "the pieces of a split");
    }
    hash_split(b->split);
    *split_out = b->split;
    return FERRY_OK;
}

static ferry_status check_piece_count(uint64_t n_pieces, ferry_error *error)
{
    if (n_pieces > FY_MAX_PIECES) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "%llu pieces, more than the limit of %d; use larger pieces",
                       (unsigned long long)n_pieces, FY_MAX_PIECES);
    }
    return FERRY_OK;
}

static ferry_status check_unit(uint64_t extent, uint64_t unit, ferry_error *error)
{
    if (extent % unit != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "extent %llu is not a multiple of the unit %llu", (unsigned long long)extent,
                       (unsigned long long)unit);
    }
    return FERRY_OK;
}

ferry_status fy_split_whole(uint64_t extent, fy_split **split_out, ferry_error *error)
{
    return fy_split_even(extent, 1, 1, split_out, error);
}

/* Appends [begin, begin + extent) cut by the chunk rule into n_parts of n_owners each. */
static bool append_even(builder *b, uint64_t begin, uint64_t extent, uint64_t unit,
                        uint32_t n_parts, uint32_t n_owners)
{
    uint64_t chunk = fy_ceil_div(extent / unit, n_parts) * unit;
    uint64_t done = 0;
    for (uint32_t p = 0; p < n_parts && done < extent; p++) {
        uint64_t length = fy_min(chunk, extent - done);
        if (!append(b, begin + done, length, p * n_owners, n_owners)) {
            return false;
        }
        done += length;
    }
    return true;
}

ferry_status fy_split_even(uint64_t extent, uint32_t n_parts, uint64_t unit, fy_split **split_out,
                           ferry_error *error)
{
    fy_split_block block = {.size = extent, .n_parts = n_parts};
    return fy_split_blocks(extent, n_parts, &block, 1, unit, split_out, error);
}

ferry_status fy_split_strided(uint64_t extent, uint32_t n_parts, uint64_t stride, uint64_t unit,
                              fy_split **split_out, ferry_error *error)
{
    uint64_t n_segments;
    if (!fy_mul(n_parts, stride, &n_segments)) {
        return fy_fail(error, FERRY_ERR_LIMIT, "%u parts x stride %llu overflows 64 bits", n_parts,
                       (unsigned long long)stride);
    }
    FY_TRY(check_unit(extent, unit, error));
    uint64_t length = fy_max(fy_ceil_div(extent / unit, n_segments) * unit, 1);
    FY_TRY(check_piece_count(fy_ceil_div(extent, length), error));
    return fy_split_cyclic(extent, n_parts, length, split_out, error);
}

ferry_status fy_split_cyclic(uint64_t extent, uint32_t n_parts, uint64_t block_length,
                             fy_split **split_out, ferry_error *error)
{
    ferry_status status = check_piece_count(fy_ceil_div(extent, block_length), error);
    builder b;
    if (status != FERRY_OK || (status = builder_init(&b, extent, n_parts, error)) != FERRY_OK) {
        return status;
    }
    bool complete = true;
    uint32_t part = 0;
    for (uint64_t begin = 0; complete && begin < extent;) {
        uint64_t length = fy_min(block_length, extent - begin);
        complete = append(&b, begin, length, part, 1);
        begin += length;
        part = part + 1 == n_parts ? 0 : part + 1;
    }
    return builder_finish(&b, complete, split_out, error);
}

ferry_status fy_split_sizes(uint64_t extent, const uint64_t *sizes, size_t n_sizes,
                            fy_split **split_out, ferry_error *error)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n_sizes; i++) {
        if (!fy_add(sum, sizes[i], &sum)) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT, "the sizes overflow 64 bits");
        }
    }
    if (sum != extent) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%zu sizes sum to %llu, but the extent is %llu", n_sizes,
                       (unsigned long long)sum, (unsigned long long)extent);
    }
    builder b;
    FY_TRY(builder_init(&b, extent, n_sizes, error));
    bool complete = true;
    uint64_t begin = 0;
    for (size_t i = 0; complete && i < n_sizes; i++) {
        complete = append(&b, begin, sizes[i], (uint32_t)i, 1);
        begin += sizes[i];
    }
    return builder_finish(&b, complete, split_out, error);
}

static ferry_status check_blocks(uint64_t extent, uint32_t n_parts, const fy_split_block *blocks,
                                 size_t n_blocks, uint64_t unit, ferry_error *error)
{
    uint64_t sum = 0, n_pieces = 0;
    for (size_t i = 0; i < n_blocks; i++) {
        if (!fy_add(sum, blocks[i].size, &sum)) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT, "the blocks overflow 64 bits");
        }
        if (blocks[i].n_parts == 0 || n_parts % blocks[i].n_parts != 0) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "block %zu is cut into %u parts, which does not divide %u ranks", i,
                           blocks[i].n_parts, n_parts);
        }
        FY_TRY(check_unit(blocks[i].size, unit, error));
        /* A shared piece costs one begin per owner: count it as that many. */
        n_pieces += fy_min(blocks[i].size, n_parts);
    }
    if (sum != extent) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%zu blocks sum to %llu, but the extent is %llu", n_blocks,
                       (unsigned long long)sum, (unsigned long long)extent);
    }
    return check_piece_count(n_pieces, error);
}

ferry_status fy_split_blocks(uint64_t extent, uint32_t n_parts, const fy_split_block *blocks,
                             size_t n_blocks, uint64_t unit, fy_split **split_out,
                             ferry_error *error)
{
    ferry_status status = check_blocks(extent, n_parts, blocks, n_blocks, unit, error);
    builder b;
    if (status != FERRY_OK || (status = builder_init(&b, extent, n_parts, error)) != FERRY_OK) {
        return status;
    }
    bool complete = true;
    uint64_t begin = 0;
    for (size_t i = 0; complete && i < n_blocks; i++) {
        uint32_t n_owners = n_parts / blocks[i].n_parts;
        complete = append_even(&b, begin, blocks[i].size, unit, blocks[i].n_parts, n_owners);
        begin += blocks[i].size;
    }
    return builder_finish(&b, complete, split_out, error);
}

ferry_status fy_split_nested(uint64_t extent, const uint32_t *counts, size_t n_counts,
                             uint64_t unit, fy_split **split_out, ferry_error *error)
{
    uint64_t n_parts = 1;
    for (size_t i = 0; i < n_counts; i++) {
        if (!fy_mul(n_parts, counts[i], &n_parts) || n_parts > FY_MAX_PIECES) {
            return fy_fail(error, FERRY_ERR_LIMIT, "more parts than the limit of %d",
                           FY_MAX_PIECES);
        }
    }
    ferry_status status = check_unit(extent, unit, error);
    builder b;
    if (status != FERRY_OK || (status = builder_init(&b, extent, n_parts, error)) != FERRY_OK) {
        return status;
    }
    bool complete = true;
    for (uint64_t part = 0; complete && part < n_parts; part++) {
        uint64_t begin = 0, length = extent, below = n_parts;
        for (size_t i = 0; i < n_counts; i++) {
            below /= counts[i];
            uint64_t coordinate = part / below % counts[i];
            uint64_t chunk = fy_ceil_div(length / unit, counts[i]) * unit;
            uint64_t skipped = chunk == 0 ? 0 : fy_min(length, coordinate * chunk);
            begin += skipped;
            length = fy_min(chunk, length - skipped);
        }
        complete = append(&b, begin, length, (uint32_t)part, 1);
    }
    return builder_finish(&b, complete, split_out, error);
}

ferry_status fy_split_segments(uint32_t n_parts, const uint64_t *lengths, size_t n_segments,
                               fy_split **split_out, ferry_error *error)
{
    uint64_t n_pieces, extent = 0;
    if (!fy_mul(n_parts, n_segments, &n_pieces)) {
        n_pieces = UINT64_MAX;
    }
    FY_TRY(check_piece_count(n_pieces, error));
    for (uint64_t i = 0; i < n_pieces; i++) {
        if (!fy_add(extent, lengths[i], &extent)) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT, "the lengths overflow 64 bits");
        }
    }
    builder b;
    FY_TRY(builder_init(&b, extent, n_parts, error));
    bool complete = true;
    uint64_t begin = 0;
    for (size_t s = 0; complete && s < n_segments; s++) {
        for (uint32_t p = 0; complete && p < n_parts; p++) {
            uint64_t length = lengths[p * n_segments + s];
            complete = append(&b, begin, length, p, 1);
            begin += length;
        }
    }
    return builder_finish(&b, complete, split_out, error);
}

ferry_status fy_split_pieces(uint32_t n_parts, const fy_split_piece *pieces, size_t n_pieces,
                             fy_split **split_out, ferry_error *error)
{
    builder b;
    uint64_t extent = 0;
    FY_TRY(check_piece_count(n_pieces, error));
    for (size_t i = 0; i < n_pieces; i++) {
        extent += pieces[i].length;
    }
    FY_TRY(builder_init(&b, extent, n_parts, error));
    bool complete = true;
    uint64_t global = 0;
    for (size_t i = 0; i < n_pieces && complete; i++) {
        complete = append(&b, global, pieces[i].length, pieces[i].part, 1);
        global += pieces[i].length;
    }
    return builder_finish(&b, complete, split_out, error);
}

/* The number of neighbouring parts that share every piece: they hold the same. */
static uint32_t common_owners(const fy_split *split)
{
    uint32_t common = 0;
    for (size_t i = 0; i < split->n_pieces && common != 1; i++) {
        uint32_t other = split->pieces[i].n_owners;
        while (other != 0) { /* Euclid */
            uint32_t rest = common % other;
            common = other;
            other = rest;
        }
    }
    return common == 0 ? 1 : common;
}

/*
 * Numbers parts by their first piece. Shared pieces come from packed blocks only, whose parts
 * are in order; there, groups of `common` parts become one.
 */
static void number_parts(const fy_split *split, uint32_t common, uint32_t *number)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < split->n_parts; p++) {
        number[p] = fy_split_is_shared(split) ? p / common : UINT32_MAX;
    }
    for (size_t i = 0; i < split->n_pieces; i++) {
        uint32_t *its = &number[split->pieces[i].part];
        *its = *its == UINT32_MAX ? n++ : *its;
    }
    for (uint32_t p = 0; p < split->n_parts; p++) {
        number[p] = number[p] == UINT32_MAX ? n++ : number[p];
    }
}

ferry_status fy_split_canonical(const fy_split *split, uint32_t *number_out, fy_split **split_out,
                                ferry_error *error)
{
    uint32_t common = common_owners(split);
    bool same = true;
    *split_out = NULL;
    number_parts(split, common, number_out);
    for (uint32_t p = 0; same && p < split->n_parts; p++) {
        same = number_out[p] == p;
    }
    if (same) {
        return FERRY_OK;
    }
    builder b;
    FY_TRY(builder_init(&b, split->extent, split->n_parts / common, error));
    bool complete = true;
    for (size_t i = 0; complete && i < split->n_pieces; i++) {
        const fy_piece *piece = &split->pieces[i];
        complete = append(&b, piece->global, piece->length, number_out[piece->part],
                          piece->n_owners / common);
    }
    return builder_finish(&b, complete, split_out, error);
}

fy_owners fy_split_cell_owners(const fy_split *split, uint32_t cell)
{
    if (cell < split->n_parts) {
        return (fy_owners){.first = cell, .count = 1};
    }
    return split->shared_cells[cell - split->n_parts];
}

uint64_t fy_split_local(const fy_split *split, uint32_t part, uint64_t global)
{
    FY_BISECT_LAST(size_t, low, 0, split->n_pieces, middle, split->pieces[middle].global <= global);
    const fy_piece *piece = &split->pieces[low];
    uint64_t begin = piece->local;
    if (piece->n_owners > 1) {
        begin = split->shared_local[piece->local + (part - piece->part)];
    }
    return begin + (global - piece->global);
}
