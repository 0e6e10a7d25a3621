/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* How boxes of source shards are read from files: in long runs, or with what lies between. */
#include "checkpoint/gather.h"

#include "base/checked.h"

#include <string.h>

/* Runs of at least this are read one by one; shorter ones with what lies between them. */
enum { DIRECT_FROM = 16384 };

/* ---- source shards ---- */

/* Room for one more; those of earlier tensors are used again. */
static fy_source_check *next_check(fy_gather *gather)
{
    if (gather->n_checks == gather->made_checks) {
        if (!FY_RESERVE(gather->checks, gather->check_capacity, gather->n_checks + 1)) {
            return NULL;
        }
        fy_source_check *made = &gather->checks[gather->n_checks];
        *made = (fy_source_check){0};
        made->hasher = fy_hashers_alloc(1, &made->raw);
        if (made->hasher == NULL) {
            return NULL;
        }
        gather->made_checks++;
    }
    return &gather->checks[gather->n_checks];
}

ferry_status fy_gather_find_check(fy_gather *gather, fy_source_shard *shard, ferry_error *error)
{
    shard->check = FY_NONE;
    if (!shard->entry->has_checksum) {
        return FERRY_OK;
    }
    uint64_t key = fy_hash_mix(shard->file, shard->entry->begin);
    fy_index_cursor c = fy_index_first(&gather->check_index, key);
    while (c.value != FY_INDEX_NONE && gather->checks[c.value].entry != shard->entry) {
        fy_index_next(&gather->check_index, &c);
    }
    if (c.value != FY_INDEX_NONE) {
        shard->check = c.value;
        return FERRY_OK;
    }
    fy_source_check *check = next_check(gather);
    if (check == NULL || !fy_index_insert(&gather->check_index, key, (uint32_t)gather->n_checks)) {
        return fy_fail_no_memory(error, "the checksums of a tensor");
    }
    check->file = shard->file;
    check->entry = shard->entry;
    check->next = 0;
    fy_hasher_begin(check->hasher);
    shard->check = (uint32_t)gather->n_checks++;
    return FERRY_OK;
}

/* Of the ranks that hold the cell, the first: any other would have to be read from another file. */
static ferry_status open_shard(fy_gather *gather, fy_source_shard *shard, ferry_error *error)
{
    const fy_layout_job *job = gather->job;
    const fy_leg *leg = &job->routes.legs[shard->leg];
    const fy_route *route = &job->routes.routes[leg->route];
    const fy_layout *layout = &job->problem.placements[route->src].layout;
    const fy_holders *holders = route->view->holders;
    uint32_t rank = route->view->rank[route->view->cell_begin[shard->cell]];
    uint64_t end;
    FY_TRY(fy_job_locate(job, leg->source, rank, &shard->file, &shard->entry, error));
    memset(shard->parts, 0, sizeof shard->parts);
    fy_layout_parts(&job->problem, layout, holders->cell[fy_holders_find(holders, rank)],
                    shard->parts + route->src_pad);
    uint64_t n_elements =
        fy_route_shard(&job->routes, route, route->src, route->src_pad, shard->parts, shard->shape);
    fy_layout_flat_range(layout, shard->parts[route->n_dims], n_elements, &shard->flat_begin, &end);
    shard->base = job->from->files[shard->file].header.data_begin + shard->entry->begin;
    return fy_gather_find_check(gather, shard, error);
}

ferry_status fy_gather_find_shard(fy_gather *gather, uint32_t leg, uint32_t cell,
                                  const fy_source_shard **shard_out, ferry_error *error)
{
    uint64_t key = fy_hash_mix(leg, cell);
    if (gather->last_shard < gather->n_shards) {
        const fy_source_shard *last = &gather->shards[gather->last_shard];
        if (last->leg == leg && last->cell == cell) {
            *shard_out = last;
            return FERRY_OK;
        }
    }
    fy_index_cursor c = fy_index_first(&gather->shard_index, key);
    while (c.value != FY_INDEX_NONE &&
           (gather->shards[c.value].leg != leg || gather->shards[c.value].cell != cell)) {
        fy_index_next(&gather->shard_index, &c);
    }
    if (c.value == FY_INDEX_NONE) {
        c.value = (uint32_t)gather->n_shards;
        if (!FY_RESERVE(gather->shards, gather->shard_capacity, gather->n_shards + 1) ||
            !fy_index_insert(&gather->shard_index, key, c.value)) {
            return fy_fail_no_memory(error, "the shards of a tensor");
        }
        fy_source_shard *shard = &gather->shards[c.value];
        *shard = (fy_source_shard){.leg = leg, .cell = cell};
        FY_TRY(open_shard(gather, shard, error));
        gather->n_shards++;
    }
    gather->last_shard = c.value;
    *shard_out = &gather->shards[c.value];
    return FERRY_OK;
}

/* ---- reading ---- */

/* Hashes what was read where it continues what was hashed. */
static void note_read(fy_gather *gather, const fy_source_shard *shard, uint64_t offset,
                      const char *bytes, uint64_t n_bytes)
{
    if (shard->check == FY_NONE) {
        return;
    }
    fy_source_check *check = &gather->checks[shard->check];
    uint64_t begin = offset - shard->base, end = begin + n_bytes;
    if (begin <= check->next && end > check->next) {
        fy_hasher_update(check->hasher, bytes + (check->next - begin), (size_t)(end - check->next));
        check->next = end;
    }
}

/* Bytes [begin, end) of a file, which are at most the span: a place in memory where they are. */
static ferry_status load(fy_gather *gather, const fy_source_shard *shard, uint64_t begin,
                         uint64_t end, const char **bytes_out, ferry_error *error)
{
    bool is_there =
        gather->span_file == shard->file && gather->span_begin <= begin && end <= gather->span_end;
    if (!is_there) {
        gather->span_begin = gather->span_end = 0;
        FY_TRY(fy_files_read(gather->files, shard->file, begin, gather->span, end - begin, error));
        gather->span_file = shard->file;
        gather->span_begin = begin;
        gather->span_end = end;
        note_read(gather, shard, begin, gather->span, end - begin);
    }
    *bytes_out = gather->span + (begin - gather->span_begin);
    return FERRY_OK;
}

/* A contiguous stretch of the source. */
static ferry_status read_run(fy_gather *gather, const fy_source_shard *shard, uint64_t offset,
                             const fy_area *to_area, uint64_t first, uint64_t n_bytes, char *to,
                             ferry_error *error)
{
    fy_area_walk walk = fy_area_walk_of(to_area, first, n_bytes);
    ferry_status status = FERRY_OK;
    if (walk.n_here >= n_bytes) { /* and of the destination */
        FY_TRY(fy_files_read(gather->files, shard->file, offset, to + walk.at, n_bytes, error));
        note_read(gather, shard, offset, to + walk.at, n_bytes);
        return FERRY_OK;
    }
    for (uint64_t done = 0; done < n_bytes && status == FERRY_OK;) {
        uint64_t here = fy_min(n_bytes - done, gather->span_bytes);
        const char *bytes;
        status = load(gather, shard, offset + done, offset + done + here, &bytes, error);
        if (status == FERRY_OK) {
            /* Byte first + done of the area is the first that was loaded. */
            fy_area from = fy_area_flat(0 - (first + done), to_area->bytes);
            fy_area_copy_cached(to_area, to, &from, bytes, first + done, here);
            done += here;
        }
    }
    return status;
}

/* Whole rows around an area: what the areas beside it, of other destinations, lie in as well. */
static void widen(const fy_source_shard *shard, const fy_area *area, uint64_t *begin, uint64_t *end)
{
    uint64_t pitch = area->stride[area->n_dims - 1];
    uint64_t bytes = shard->entry->end - shard->entry->begin;
    *begin -= (*begin - shard->base) % pitch;
    *end =
        fy_min(shard->base + fy_ceil_div(*end - shard->base, pitch) * pitch, shard->base + bytes);
}

/* One run after the other: they are long, or too much lies between them. */
static ferry_status read_runs(fy_gather *gather, const fy_source_shard *shard, const fy_area *from,
                              uint64_t first, const fy_area *to_area, char *to, ferry_error *error)
{
    fy_area_walk walk = fy_area_walk_of(from, 0, from->bytes);
    ferry_status status = FERRY_OK;
    uint64_t at, run;
    while (status == FERRY_OK && fy_area_next(&walk, &at, &run)) {
        status = read_run(gather, shard, at, to_area, first, run, to, error);
        first += run;
    }
    return status;
}

/* Where n indices of the slowest dimension, from i on, lie in the file, with whole rows. */
static void span_of(const fy_source_shard *shard, const fy_area *from, uint64_t i, uint64_t n,
                    uint64_t *begin, uint64_t *end)
{
    fy_area part = *from;
    part.offset += i * from->stride[0];
    part.length[0] = n;
    fy_area_hull(&part, begin, end);
    widen(shard, from, begin, end);
}

/* How many indices of the slowest dimension fit into the span; 0: not even one. */
static uint64_t indices_that_fit(const fy_gather *gather, const fy_source_shard *shard,
                                 const fy_area *from)
{
    uint64_t begin, end, pitch = from->stride[from->n_dims - 1];
    span_of(shard, from, 0, from->length[0], &begin, &end);
    if (end - begin <= gather->span_bytes) {
        return from->length[0];
    }
    fy_area one = *from;
    one.length[0] = 1;
    fy_area_hull(&one, &begin, &end);
    uint64_t least = end - begin + 2 * pitch;
    return least > gather->span_bytes ? 0 : (gather->span_bytes - least) / from->stride[0] + 1;
}

/* An area of the source, and the one of the window that takes its bytes one by one. */
typedef struct read_pair {
    fy_gather *gather;
    const fy_source_shard *shard;
    const fy_area *from;
    const fy_area *to_area;
    char *to;
} read_pair;

/* Some indices of the slowest dimension of a part, with what lies between their runs. */
static ferry_status read_spans(const read_pair *r, const fy_area *part, uint64_t first,
                               uint64_t step, ferry_error *error)
{
    uint64_t inner = part->bytes / part->length[0];
    ferry_status status = FERRY_OK;
    for (uint64_t i = 0; i < part->length[0] && status == FERRY_OK; i += step) {
        uint64_t n = fy_min(step, part->length[0] - i), begin, end;
        const char *bytes;
        span_of(r->shard, part, i, n, &begin, &end);
        status = load(r->gather, r->shard, begin, end, &bytes, error);
        if (status == FERRY_OK) {
            fy_area there = *r->from; /* its offset may wrap below zero: sums of it do not */
            there.offset -= begin;
            fy_area_copy_cached(r->to_area, r->to, &there, bytes, first + i * inner, n * inner);
        }
    }
    return status;
}

/* A part of the area: bytes [first, first + part->bytes) of it. */
static ferry_status read_part(const read_pair *r, const fy_area *part, uint64_t first,
                              ferry_error *error)
{
    if (part->n_dims == 0) {
        return read_run(r->gather, r->shard, part->offset, r->to_area, first, part->bytes, r->to,
                        error);
    }
    bool is_long = part->run_bytes >= DIRECT_FROM;
    uint64_t step = is_long ? 0 : indices_that_fit(r->gather, r->shard, part);
    if (step > 0) {
        return read_spans(r, part, first, step, error);
    }
    if (is_long || part->n_dims == 1) {
        return read_runs(r->gather, r->shard, part, first, r->to_area, r->to, error);
    }
    /* Not even one index fits: one after the other, by the next dimension. */
    fy_area slice = *part;
    ferry_status status = FERRY_OK;
    slice.n_dims--;
    slice.bytes = part->bytes / part->length[0];
    memmove(slice.length, part->length + 1, slice.n_dims * sizeof *slice.length);
    memmove(slice.stride, part->stride + 1, slice.n_dims * sizeof *slice.stride);
    for (uint64_t i = 0; i < part->length[0] && status == FERRY_OK; i++) {
        slice.offset = part->offset + i * part->stride[0];
        status = read_part(r, &slice, first + i * slice.bytes, error);
    }
    return status;
}

ferry_status fy_gather_read_area(fy_gather *gather, const fy_source_shard *shard,
                                 const fy_area *from, const fy_area *to_area, char *to,
                                 ferry_error *error)
{
    read_pair r = {.gather = gather, .shard = shard, .from = from, .to_area = to_area, .to = to};
    return read_part(&r, from, 0, error);
}
