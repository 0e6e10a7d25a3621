/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Copies from tensor to tensor, shared by the threads of the team. */
#include "service/delta.h"
#include "service/moves.h"

#include "host/copy.h"

/* Work for one thread at a time: large enough that sharing costs nothing. */
enum { CHUNK_BYTES = 512 << 10 };

typedef struct job {
    const ferry_service *service;
    const fy_channel *channel; /* NULL: within this rank */
    const fy_item *item;       /* the first of some that follow one another */
    const fy_item_part *parts; /* of all of them */
    uint64_t n_parts, bytes;
    uint64_t *hashes; /* one for each part; NULL: none */
    bool is_delta;
    _Atomic uint64_t *skipped; /* bytes that were there already */
} job;

static bool is_in_place(const fy_part_end *to, const fy_part_end *from)
{
    const fy_area *a = &to->area, *b = &from->area;
    if (from->conversion != NULL || to->base + a->offset != from->base + b->offset ||
        a->run_bytes != b->run_bytes || a->n_dims != b->n_dims) {
        return false;
    }
    for (uint32_t d = 0; d < a->n_dims; d++) {
        if (a->length[d] != b->length[d] || a->stride[d] != b->stride[d]) {
            return false;
        }
    }
    return true;
}

/* Elements of a part that are cast on their way; see copy_part. */
static uint64_t cast_part(const job *j, const fy_part_end *to, const fy_part_end *from,
                          uint64_t first, uint64_t bytes)
{
    const fy_task_cast *how = from->conversion;
    const fy_cast *cast = &how->cast;
    uint64_t element = first / how->wire_bytes, n = bytes / how->wire_bytes;
    if (j->hashes != NULL) {
        return fy_area_cast_hash(cast, &to->area, to->base, &from->area, from->base, element, n);
    }
    fy_area_cast(cast, &to->area, to->base, &from->area, from->base, element, n);
    return 0;
}

static uint64_t update_cast(const job *j, const fy_part_end *to, const fy_part_end *from,
                            bool is_there, uint64_t first, uint64_t bytes)
{
    const fy_task_cast *how = from->conversion;
    const fy_cast *cast = &how->cast;
    uint64_t element = first / how->wire_bytes, n = bytes / how->wire_bytes;
    uint64_t written = is_there ? 0
                                : fy_area_cast_update(cast, &to->area, to->base, &from->area,
                                                      from->base, element, n);
    atomic_fetch_add_explicit(j->skipped, bytes - written / how->to_bytes * how->wire_bytes,
                              memory_order_relaxed);
    return j->hashes == NULL
               ? 0
               : fy_area_cast_hash(cast, NULL, NULL, &from->area, from->base, element, n);
}

/* What is there already stays; the source's hash where one is wanted. */
static uint64_t update_part(const job *j, const fy_item_part *part, uint64_t first, uint64_t bytes)
{
    fy_part_end from = fy_source_of(j->service, part);
    fy_part_end to = fy_goal_of(j->service, j->channel, part);
    bool is_there = fy_delta_keeps(j->service, part) || is_in_place(&to, &from);
    if (from.conversion != NULL) {
        return update_cast(j, &to, &from, is_there, first, bytes);
    }
    uint64_t hash = j->hashes == NULL ? 0 : fy_area_hash(&from.area, from.base, first, bytes);
    uint64_t written =
        is_there ? 0 : fy_area_update(&to.area, to.base, &from.area, from.base, first, bytes);
    atomic_fetch_add_explicit(j->skipped, bytes - written, memory_order_relaxed);
    return hash;
}

static uint64_t copy_part(const job *j, const fy_item_part *part, uint64_t skip, uint64_t bytes)
{
    uint64_t first = part->first + skip;
    if (j->is_delta) {
        return update_part(j, part, first, bytes);
    }
    fy_part_end from = fy_source_of(j->service, part);
    fy_part_end to = fy_goal_of(j->service, j->channel, part);
    if (from.conversion != NULL) {
        return cast_part(j, &to, &from, first, bytes);
    }
    bool in_place = is_in_place(&to, &from);
    if (j->hashes != NULL) {
        return in_place ? fy_area_hash(&from.area, from.base, first, bytes)
                        : fy_area_copy_hash(&to.area, to.base, &from.area, from.base, first, bytes);
    }
    if (!in_place) {
        fy_area_copy(&to.area, to.base, &from.area, from.base, first, bytes);
    }
    return 0;
}

/* The fence belongs to the thread that stored. */
static void copy_whole_part(void *context, uint64_t index)
{
    const job *j = context;
    const fy_item_part *part = &j->parts[index];
    uint64_t hash = copy_part(j, part, 0, part->bytes);
    if (j->hashes != NULL) {
        j->hashes[index] = hash;
    }
    fy_copy_fence();
}

static void copy_chunk(void *context, uint64_t index)
{
    const job *j = context;
    uint64_t begin = index * CHUNK_BYTES;
    uint64_t end = begin + CHUNK_BYTES;
    uint64_t at = 0;
    for (uint64_t p = 0; p < j->n_parts && at < end; p++) {
        const fy_item_part *part = &j->parts[p];
        const fy_task_cast *how = fy_sent_conversion(j->service, part);
        uint64_t unit = how == NULL ? 1 : how->wire_bytes; /* an element is in one chunk */
        uint64_t from = at > begin ? 0 : (begin - at) / unit * unit;
        uint64_t to = at + part->bytes <= end ? part->bytes : (end - at) / unit * unit;
        if (from < to) {
            copy_part(j, part, from, to - from);
        }
        at += part->bytes;
    }
    fy_copy_fence();
}

/*
 * Part number p, with those behind it that go on where it ends: items are as small as the caller
 * wants his slots, and what they cut is copied in one piece. Returns how many parts that are.
 */
static uint64_t join_parts(const job *j, uint64_t p, fy_item_part *joined_out)
{
    uint64_t n = 1;
    *joined_out = j->parts[p];
    for (; p + n < j->n_parts && j->hashes == NULL; n++) {
        const fy_item_part *next = &j->parts[p + n];
        if (next->end != joined_out->end || next->place != joined_out->place ||
            next->first != joined_out->first + joined_out->bytes) {
            break;
        }
        joined_out->bytes += next->bytes;
    }
    return n;
}

static void copy_alone(const job *j)
{
    fy_item_part part;
    for (uint64_t p = 0, n; p < j->n_parts; p += n) {
        n = join_parts(j, p, &part);
        uint64_t hash = copy_part(j, &part, 0, part.bytes);
        if (j->hashes != NULL) {
            j->hashes[p] = hash;
        }
    }
    fy_copy_fence();
}

static void copy_all(ferry_service *service, job *j)
{
    if (fy_team_size(service->team) == 1) {
        copy_alone(j);
    } else if (j->hashes != NULL) {
        fy_team_run(service->team, j->n_parts, copy_whole_part, j);
    } else {
        fy_team_run(service->team, (j->bytes + CHUNK_BYTES - 1) / CHUNK_BYTES, copy_chunk, j);
    }
}

/* Between two devices that do not reach each other bytes go through the host: see local.c. */
static bool is_host(const fy_part_end *to, const fy_part_end *from)
{
    return fy_is_host(to->space) && fy_is_host(from->space);
}

static ferry_status begin_part(ferry_service *service, const job *j, const fy_item_part *part,
                               uint64_t *hash_out, ferry_error *error)
{
    fy_part_end from = fy_source_of(service, part);
    fy_part_end to = fy_goal_of(service, j->channel, part);
    if (is_host(&to, &from)) {
        uint64_t hash = copy_part(j, part, 0, part->bytes);
        if (hash_out != NULL) {
            *hash_out = hash;
        }
        return FERRY_OK;
    }
    if (is_in_place(&to, &from)) {
        return hash_out == NULL
                   ? FERRY_OK
                   : fy_move_hash(service, &from, part->first, part->bytes, hash_out, error);
    }
    if (fy_exec_for(from.space, to.space).exec == NULL) {
        return fy_bounce_begin(service, j->item, (uint32_t)(part - j->parts), &from, hash_out,
                               error);
    }
    return fy_move_copy(service, &to, &from, part->first, part->bytes, hash_out, error);
}

static ferry_status begin_all(ferry_service *service, const job *j, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint64_t p = 0; status == FERRY_OK && p < j->n_parts; p++) {
        status =
            begin_part(service, j, &j->parts[p], j->hashes == NULL ? NULL : &j->hashes[p], error);
    }
    fy_copy_fence();
    return status;
}

ferry_status fy_copy_mapped(ferry_service *service, const fy_channel *channel, const fy_item *items,
                            uint32_t n, uint64_t *hashes, uint64_t *skipped_inout,
                            ferry_error *error)
{
    _Atomic uint64_t skipped = 0;
    const fy_lane *lane = channel == NULL ? &service->program->local : &channel->out;
    job j = {.service = service,
             .channel = channel,
             .item = items,
             .parts = &lane->parts[items->first_part],
             .hashes = hashes,
             .is_delta = service->program->is_delta,
             .skipped = &skipped};
    for (uint32_t i = 0; i < n; i++) {
        j.n_parts += items[i].n_parts;
        j.bytes += items[i].bytes;
    }
    ferry_status status = FERRY_OK;
    if (fy_moves_are_far(service)) {
        status = begin_all(service, &j, error);
    } else {
        copy_all(service, &j);
    }
    *skipped_inout += atomic_load(&skipped);
    return status;
}
