/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/shard.h"

#include "base/checked.h"
#include "base/hash.h"
#include "base/sort.h"

/* Many times the pieces of any real layout, and 24 MiB. */
enum { MOST_CACHED_PIECES = 1 << 20, MOST_CACHED_LISTS = 1 << 16 };

struct fy_proof_cached {
    const fy_proof_cut *cut; /* NULL: the whole extent */
    uint64_t extent;
    uint64_t part;
    uint64_t block; /* that is counted; 1: elements */
    fy_proof_piece *items;
    fy_proof_pieces pieces;
};

typedef struct piece_list {
    fy_proof_piece *items;
    size_t n;
    size_t capacity;
    uint64_t length;
} piece_list;

/* The next run of the local shard: global indices from begin to end. */
static bool append(piece_list *list, uint64_t begin, uint64_t end)
{
    if (begin >= end) {
        return true;
    }
    fy_proof_piece *last = list->n == 0 ? NULL : &list->items[list->n - 1];
    if (last != NULL && last->global + last->length == begin) {
        last->length += end - begin;
    } else {
        if (!FY_RESERVE(list->items, list->capacity, list->n + 1)) {
            return false;
        }
        list->items[list->n++] = (fy_proof_piece){list->length, begin, end - begin};
    }
    list->length += end - begin;
    return true;
}

/* Part p of P of an extent is [min(n, p*c), min(n, (p+1)*c)) with c = ceil(n/P), in units. */
static void chunk(uint64_t extent, uint64_t unit, uint64_t n_parts, uint64_t part,
                  uint64_t *begin_out, uint64_t *end_out)
{
    uint64_t n = extent / unit;
    uint64_t c = fy_ceil_div(n, n_parts);
    *begin_out = fy_min(n, part * c) * unit;
    *end_out = fy_min(n, (part + 1) * c) * unit;
}

/* Rank-part p of P holds piece floor(p*k/P) of k. */
static uint64_t piece_of(const fy_proof_cut *cut, uint64_t parts, uint64_t part)
{
    return part * parts / cut->n_ranks;
}

/* P*s segments, of which segment j belongs to part j mod P; s = 1 is the even cut. */
static bool cut_stride(piece_list *list, const fy_proof_cut *cut, uint64_t extent, uint64_t part)
{
    uint64_t begin, end;
    for (uint64_t turn = 0; turn < cut->stride; turn++) {
        uint64_t segment = turn * cut->parts + piece_of(cut, cut->parts, part);
        chunk(extent, cut->unit, cut->parts * cut->stride, segment, &begin, &end);
        if (!append(list, begin, end)) {
            return false;
        }
    }
    return true;
}

/* Every block by itself, one behind the other. */
static bool cut_blocks(piece_list *list, const fy_proof_cut *cut, uint64_t part)
{
    uint64_t block_begin = 0;
    for (size_t i = 0; i < cut->n_blocks; i++) {
        const fy_proof_block *block = &cut->blocks[i];
        uint64_t begin, end;
        chunk(block->size, cut->unit, block->parts, piece_of(cut, block->parts, part), &begin,
              &end);
        if (!append(list, block_begin + begin, block_begin + end)) {
            return false;
        }
        block_begin += block->size;
    }
    return true;
}

/* The parts' own lengths. */
static void range_of_sizes(const fy_proof_cut *cut, uint64_t part, uint64_t *begin_out,
                           uint64_t *end_out)
{
    *begin_out = 0;
    for (uint64_t i = 0; i < part; i++) {
        *begin_out += cut->sizes[i];
    }
    *end_out = *begin_out + cut->sizes[part];
}

static bool cut_sizes(piece_list *list, const fy_proof_cut *cut, uint64_t part)
{
    uint64_t begin, end;
    range_of_sizes(cut, piece_of(cut, cut->parts, part), &begin, &end);
    return append(list, begin, end);
}

/* Block j of `cycle` elements belongs to part j mod P. */
static bool cut_cycle(piece_list *list, const fy_proof_cut *cut, uint64_t extent, uint64_t part)
{
    uint64_t n_blocks = fy_ceil_div(extent, cut->cycle);
    for (uint64_t j = piece_of(cut, cut->parts, part); j < n_blocks; j += cut->parts) {
        uint64_t begin = j * cut->cycle;
        if (!append(list, begin, begin + fy_min(cut->cycle, extent - begin))) {
            return false;
        }
    }
    return true;
}

/* Axis by axis, slowest first: what one axis cuts, the next one cuts further. */
static bool cut_nested(piece_list *list, const fy_proof_cut *cut, const fy_proof_mesh *mesh,
                       uint64_t extent, uint64_t part)
{
    uint64_t begin = 0, end = extent;
    uint64_t faster = cut->n_ranks; /* ranks along this axis and the faster ones */
    for (size_t i = 0; i < cut->n_axes; i++) {
        uint64_t size = mesh->sizes[cut->axes[i]];
        faster /= size;
        uint64_t inner_begin, inner_end;
        chunk(end - begin, cut->unit, size, part / faster % size, &inner_begin, &inner_end);
        end = begin + inner_end;
        begin += inner_begin;
    }
    return append(list, begin, end);
}

static bool derive(piece_list *list, const fy_proof_cut *cut, const fy_proof_mesh *mesh,
                   uint64_t extent, uint64_t part)
{
    if (cut == NULL) {
        return append(list, 0, extent);
    }
    if (cut->nested) {
        return cut_nested(list, cut, mesh, extent, part);
    }
    if (cut->blocks != NULL) {
        return cut_blocks(list, cut, part);
    }
    if (cut->sizes != NULL) {
        return cut_sizes(list, cut, part);
    }
    if (cut->cycle != 0) {
        return cut_cycle(list, cut, extent, part);
    }
    return cut_stride(list, cut, extent, part);
}

/* Elements to blocks, of which the last may be smaller; false: one is cut. */
static bool count_blocks(piece_list *list, uint64_t extent, uint64_t block, fy_proof_pieces *pieces)
{
    for (size_t i = 0; i < list->n; i++) {
        fy_proof_piece *piece = &list->items[i];
        uint64_t end = piece->global + piece->length;
        if (piece->global % block != 0 || piece->local % block != 0 ||
            (end % block != 0 && end != extent)) {
            return false;
        }
    }
    for (size_t i = 0; i < list->n; i++) {
        fy_proof_piece *piece = &list->items[i];
        piece->global /= block;
        piece->local /= block;
        piece->length = piece->length / block + (piece->length % block != 0);
    }
    pieces->length = pieces->length / block + (pieces->length % block != 0);
    return true;
}

static const struct fy_proof_cached *find_cached(const fy_proof_cache *cache, uint64_t hash,
                                                 const fy_proof_cut *cut, uint64_t extent,
                                                 uint64_t part, uint64_t block)
{
    fy_index_cursor c = fy_index_first(&cache->index, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&cache->index, &c)) {
        const struct fy_proof_cached *item = &cache->items[c.value];
        if (item->cut == cut && item->extent == extent && item->part == part &&
            item->block == block) {
            return item;
        }
    }
    return NULL;
}

static ferry_status find_pieces(fy_proof_cache *cache, const fy_proof_cut *cut,
                                const fy_proof_mesh *mesh, uint64_t extent, uint64_t part,
                                uint64_t block, fy_proof_pieces *pieces_out, ferry_error *error)
{
    uint64_t hash = fy_hash_mix(fy_hash_mix((uint64_t)(uintptr_t)cut, extent), part);
    hash = block == 1 ? hash : fy_hash_mix(hash, block);
    const struct fy_proof_cached *known = find_cached(cache, hash, cut, extent, part, block);
    if (known != NULL) {
        *pieces_out = known->pieces;
        return FERRY_OK;
    }
    piece_list list = {0};
    if (!derive(&list, cut, mesh, extent, part) ||
        !FY_RESERVE(cache->items, cache->capacity, cache->n + 1) ||
        !fy_index_insert(&cache->index, hash, (uint32_t)cache->n)) {
        fy_free(list.items);
        return fy_fail_no_memory(error, "the pieces of a shard");
    }
    *pieces_out = (fy_proof_pieces){.items = list.items, .n = list.n, .length = list.length};
    bool is_whole = block == 1 || count_blocks(&list, extent, block, pieces_out);
    cache->items[cache->n++] = (struct fy_proof_cached){.cut = cut,
                                                        .extent = extent,
                                                        .part = part,
                                                        .block = is_whole ? block : 0,
                                                        .items = list.items,
                                                        .pieces = *pieces_out};
    cache->n_pieces += list.n;
    return is_whole ? FERRY_OK
                    : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                              "a shard of what is quantized begins or ends inside a block of %llu",
                              (unsigned long long)block);
}

void fy_proof_cache_cleanup(fy_proof_cache *cache)
{
    for (size_t i = 0; i < cache->n; i++) {
        fy_free(cache->items[i].items);
    }
    fy_free(cache->items);
    fy_index_cleanup(&cache->index);
    *cache = (fy_proof_cache){0};
}

void fy_proof_cache_trim(fy_proof_cache *cache)
{
    if (cache->n_pieces > MOST_CACHED_PIECES || cache->n > MOST_CACHED_LISTS) {
        fy_proof_cache_cleanup(cache);
    }
}

static bool pins_hold(const fy_proof_pin *pins, size_t n, const uint64_t *coordinates)
{
    for (size_t i = 0; i < n; i++) {
        bool found = false;
        for (size_t j = 0; j < pins[i].n_coordinates && !found; j++) {
            found = pins[i].coordinates[j] == coordinates[pins[i].axis];
        }
        if (!found) {
            return false;
        }
    }
    return true;
}

bool fy_proof_spot_holds(const fy_proof_spot *spot, const uint64_t *coordinates)
{
    return spot->rule != NULL && pins_hold(spot->pins, spot->n_pins, coordinates) &&
           pins_hold(spot->rule->pins, spot->rule->n_pins, coordinates);
}

/* The row-major part number of a rank over the cut's axes. */
static uint64_t part_at(const fy_proof_cut *cut, const fy_proof_mesh *mesh,
                        const uint64_t *coordinates)
{
    uint64_t part = 0;
    for (size_t i = 0; i < cut->n_axes; i++) {
        part = part * mesh->sizes[cut->axes[i]] + coordinates[cut->axes[i]];
    }
    return part;
}

static ferry_status find_flat(const fy_proof_side *side, const char *name, const fy_proof_cut *flat,
                              const uint64_t *coordinates, fy_proof_shard *shard,
                              ferry_error *error)
{
    uint64_t volume = shard->flat_end;
    uint64_t part = part_at(flat, &side->mesh, coordinates);
    if (flat->sizes == NULL) {
        chunk(volume, 1, flat->n_ranks, part, &shard->flat_begin, &shard->flat_end);
        return FERRY_OK;
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < flat->n_sizes; i++) {
        if (!fy_add(sum, flat->sizes[i], &sum)) {
            sum = UINT64_MAX;
            break;
        }
    }
    if (sum != volume) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: the flat sizes of the %s sum to %llu, but a shard has %llu elements",
                       name, side->name, (unsigned long long)sum, (unsigned long long)volume);
    }
    range_of_sizes(flat, part, &shard->flat_begin, &shard->flat_end);
    return FERRY_OK;
}

ferry_status fy_proof_shard_find(fy_proof_cache *cache, const fy_proof_side *side,
                                 const fy_proof_tensor *tensor, const fy_proof_spot *spot,
                                 const uint64_t *coordinates, fy_proof_shard *shard_out,
                                 ferry_error *error)
{
    const fy_proof_entry *entry = tensor->entry;
    const fy_proof_cut *cuts[FY_PROOF_DIMS] = {NULL};
    fy_proof_shard shard = {.flat_end = 1};
    for (size_t i = 0; i < spot->rule->n_cuts; i++) {
        const fy_proof_cut *cut = &spot->rule->cuts[i];
        if (cut->dim < entry->n_dims) { /* of matrices there are scales, but no rows and columns */
            cuts[FY_PROOF_DIMS - entry->n_dims + (size_t)cut->dim] = cut;
        }
    }
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        uint64_t part = cuts[d] == NULL ? 0 : part_at(cuts[d], &side->mesh, coordinates);
        const fy_proof_scaling *scaling = entry->scaling != NULL ? entry->scaling : entry->staged;
        uint64_t extent = scaling == NULL ? entry->shape[d] : scaling->values[d];
        uint64_t block = scaling == NULL ? 1 : scaling->block[d];
        FY_TRY(
            find_pieces(cache, cuts[d], &side->mesh, extent, part, block, &shard.dims[d], error));
        shard.shape[d] = shard.dims[d].length;
        shard.flat_end *= shard.shape[d]; /* no more than the tensor, which has elements */
    }
    if (spot->rule->flat != NULL) {
        FY_TRY(find_flat(side, tensor->name, spot->rule->flat, coordinates, &shard, error));
    }
    *shard_out = shard;
    return FERRY_OK;
}

size_t fy_proof_pieces_find(const fy_proof_pieces *pieces, uint64_t local)
{
    FY_BISECT_LAST(size_t, low, 0, pieces->n, middle, pieces->items[middle].local <= local);
    return low;
}

void fy_proof_shard_element(const fy_proof_shard *shard, const uint64_t *local,
                            uint64_t *global_out)
{
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        const fy_proof_piece *piece =
            &shard->dims[d].items[fy_proof_pieces_find(&shard->dims[d], local[d])];
        global_out[d] = piece->global + (local[d] - piece->local);
    }
}

uint64_t fy_proof_shard_number(const fy_proof_shard *shard, const uint64_t *local)
{
    uint64_t number = 0;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        number = number * shard->shape[d] + local[d];
    }
    return number;
}
