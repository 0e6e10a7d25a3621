/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/stage.h"

#include "base/alloc.h"
#include "base/checked.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

/*
 * Pieces follow each other in the stream: the device fills the staging, a host function empties it,
 * or the other way, and only then comes what fills it next. So one staging is enough for all that a
 * queue does.
 */

enum { GRAIN = 64 }; /* bytes and elements of pieces are multiples of it */

/* Where byte `first` of an area without gaps lies in the staging, as the base of that area. */
static void *base_in(char *staging, uint64_t first)
{
    return (void *)((uintptr_t)staging + first % GRAIN - (uintptr_t)first);
}

static void *byte_of(void *base, uint64_t at)
{
    return (void *)((uintptr_t)base + (uintptr_t)at);
}

/*
 * Hashes of bytes that come piece by piece
 */

typedef struct hashing {
    XXH3_state_t state;
    uint64_t *out;
    _Atomic uint32_t n_users; /* jobs that are still to come, and who makes them */
    void *raw;
} hashing;

static ferry_status begin_hash(uint64_t *hash_out, hashing **hashing_out, ferry_error *error)
{
    *hashing_out = NULL;
    if (hash_out == NULL) {
        return FERRY_OK;
    }
    char *raw = fy_alloc_zeroed(1, sizeof(hashing) + _Alignof(hashing));
    FY_TRY(fy_check_memory(raw != NULL, "a hash", error));
    hashing *fresh =
        (hashing *)(void *)(raw + _Alignof(hashing) - (uintptr_t)raw % _Alignof(hashing));
    fresh->raw = raw;
    fresh->out = hash_out;
    fresh->n_users = 1;
    (void)XXH3_64bits_reset(&fresh->state);
    *hashing_out = fresh;
    return FERRY_OK;
}

static void drop_hash(hashing *one)
{
    if (one != NULL && atomic_fetch_sub(&one->n_users, 1) == 1) {
        fy_free(one->raw);
    }
}

/*
 * Jobs
 */

typedef struct piece_job {
    fy_cuda_job job;
    fy_area to, from;
    void *to_base, *from_base;
    uint64_t first, n; /* bytes; elements of a cast */
    bool copies, casts;
    fy_cast cast;
    uint64_t *hash_out; /* of all that it copies, at once */
    hashing *hashing;   /* or of what others hash, too */
    const void *hashed; /* n bytes; NULL: none yet */
    bool is_last;       /* behind which the hash is there */
} piece_job;

static void hash_piece(const piece_job *one)
{
    hashing *h = one->hashing;
    if (one->n > 0) {
        (void)XXH3_64bits_update(&h->state, one->hashed, (size_t)one->n);
    }
    if (one->is_last) {
        *h->out = XXH3_64bits_digest(&h->state);
    }
}

static void run_piece(fy_cuda_job *job, bool failed)
{
    const piece_job *one = (const piece_job *)job;
    const fy_exec *cpu = fy_cuda_library->cpu;
    if (!failed && one->copies) {
        (void)cpu->copy(NULL, &one->to, one->to_base, &one->from, one->from_base, one->first,
                        one->n, one->hash_out, NULL);
    }
    if (!failed && one->casts) {
        (void)cpu->cast(NULL, &one->cast, &one->to, one->to_base, &one->from, one->from_base,
                        one->first, one->n, NULL, NULL);
    }
    if (!failed && !one->copies && one->hash_out != NULL) {
        (void)cpu->hash(NULL, &one->from, one->from_base, one->first, one->n, one->hash_out, NULL);
    }
    if (!failed && one->hashing != NULL) {
        hash_piece(one);
    }
    drop_hash(one->hashing);
}

static ferry_status add_piece(fy_exec_queue *queue, const piece_job *what, ferry_error *error)
{
    piece_job *fresh = fy_alloc(1, sizeof *fresh);
    FY_TRY(fy_check_memory(fresh != NULL, "work on a CUDA queue", error));
    *fresh = *what;
    if (fresh->hashing != NULL) {
        atomic_fetch_add(&fresh->hashing->n_users, 1);
    }
    return fy_cuda_add_job(queue, &fresh->job, run_piece, error);
}

/*
 * Copies and hashes
 */

/* One piece, with what the host does: all that concerns sides is in the job already. */
static ferry_status stage_piece(fy_exec_queue *queue, const fy_cuda_side_of *to,
                                const fy_cuda_side_of *from, piece_job *one, ferry_error *error)
{
    fy_area flat = fy_area_flat(0, one->first + one->n);
    void *base = base_in(queue->staging, one->first);
    if (from->is_reached) {
        one->from = flat;
        one->from_base = base;
        FY_TRY(fy_cuda_move(queue, &flat, base, from->area, from->base, one->first, one->n, error));
    }
    if (to != NULL && to->is_reached) {
        one->to = flat;
        one->to_base = base;
    }
    one->hashed = byte_of(base, one->first);
    FY_TRY(add_piece(queue, one, error));
    return to != NULL && to->is_reached
               ? fy_cuda_move(queue, to->area, to->base, &flat, base, one->first, one->n, error)
               : FERRY_OK;
}

static ferry_status stage(fy_exec_queue *queue, const fy_cuda_side_of *to,
                          const fy_cuda_side_of *from, uint64_t first, uint64_t bytes,
                          uint64_t *hash_out, ferry_error *error)
{
    uint64_t most = FY_CUDA_STAGING_BYTES - GRAIN, end = first + bytes;
    piece_job one = {.copies = to != NULL, .from = *from->area, .from_base = from->base};
    if (to != NULL) {
        one.to = *to->area;
        one.to_base = to->base;
    }
    FY_TRY(begin_hash(hash_out, &one.hashing, error));
    ferry_status status = FERRY_OK;
    one.first = first;
    do {
        one.n = fy_min(end - one.first, most - one.first % GRAIN);
        one.is_last = one.first + one.n == end;
        piece_job piece = one;
        status = stage_piece(queue, to, from, &piece, error);
        one.first += one.n;
    } while (status == FERRY_OK && one.first < end);
    drop_hash(one.hashing);
    return status;
}

ferry_status fy_cuda_stage_copy(fy_exec_queue *queue, const fy_cuda_side_of *to,
                                const fy_cuda_side_of *from, uint64_t first, uint64_t bytes,
                                uint64_t *hash_out, ferry_error *error)
{
    if (to->is_reached || from->is_reached) {
        return stage(queue, to, from, first, bytes, hash_out, error);
    }
    piece_job one = {.to = *to->area,
                     .from = *from->area,
                     .to_base = to->base,
                     .from_base = from->base,
                     .first = first,
                     .n = bytes,
                     .copies = true,
                     .hash_out = hash_out};
    return add_piece(queue, &one, error);
}

ferry_status fy_cuda_stage_hash(fy_exec_queue *queue, const fy_cuda_side_of *from, uint64_t first,
                                uint64_t bytes, uint64_t *hash_out, ferry_error *error)
{
    if (from->is_reached) {
        return stage(queue, NULL, from, first, bytes, hash_out, error);
    }
    piece_job one = {.from = *from->area,
                     .from_base = from->base,
                     .first = first,
                     .n = bytes,
                     .hash_out = hash_out};
    return add_piece(queue, &one, error);
}

/*
 * Casts
 */

static ferry_status stage_elements(fy_exec_queue *queue, const fy_cuda_side_of *to,
                                   uint64_t to_bytes, const fy_cuda_side_of *from,
                                   uint64_t from_bytes, piece_job *one, ferry_error *error)
{
    uint64_t to_first = one->first * to_bytes, from_first = one->first * from_bytes;
    fy_area to_flat = fy_area_flat(0, to_first + one->n * to_bytes);
    fy_area from_flat = fy_area_flat(0, from_first + one->n * from_bytes);
    char *second = queue->staging + fy_ceil_div(one->n * from_bytes, GRAIN) * GRAIN + GRAIN;
    void *to_base = base_in(second, to_first), *from_base = base_in(queue->staging, from_first);
    if (from->is_reached) {
        one->from = from_flat;
        one->from_base = from_base;
        FY_TRY(fy_cuda_move(queue, &from_flat, from_base, from->area, from->base, from_first,
                            one->n * from_bytes, error));
    }
    if (to->is_reached) {
        one->to = to_flat;
        one->to_base = to_base;
    }
    FY_TRY(add_piece(queue, one, error));
    return to->is_reached ? fy_cuda_move(queue, to->area, to->base, &to_flat, to_base, to_first,
                                         one->n * to_bytes, error)
                          : FERRY_OK;
}

ferry_status fy_cuda_stage_cast(fy_exec_queue *queue, const fy_cast *cast,
                                const fy_cuda_side_of *to, const fy_cuda_side_of *from,
                                uint64_t first, uint64_t n, ferry_error *error)
{
    uint64_t to_bytes = fy_cast_numbers(cast) * fy_cuda_element_bytes(cast->to_kind);
    uint64_t from_bytes = fy_cuda_element_bytes(cast->from_kind);
    uint64_t most = (FY_CUDA_STAGING_BYTES - 4 * GRAIN) / (to_bytes + from_bytes) / GRAIN * GRAIN;
    ferry_status status = FERRY_OK;
    for (uint64_t n_here; status == FERRY_OK && n > 0; first += n_here, n -= n_here) {
        n_here = fy_min(n, most);
        piece_job one = {.to = *to->area,
                         .from = *from->area,
                         .to_base = to->base,
                         .from_base = from->base,
                         .first = first,
                         .n = n_here,
                         .casts = true,
                         .cast = *cast};
        status = stage_elements(queue, to, to_bytes, from, from_bytes, &one, error);
    }
    return status;
}

/*
 * Sums
 */

typedef struct sum_job {
    fy_cuda_job job;
    fy_sum sum;
    const void **sources; /* of the sum */
} sum_job;

static void run_sum(fy_cuda_job *job, bool failed)
{
    sum_job *one = (sum_job *)job;
    if (!failed) {
        (void)fy_cuda_library->cpu->sum(NULL, &one->sum, NULL);
    }
    fy_free(one->sources);
}

/* A job that sums elements [first, first + n) where they lie, or will lie. */
static ferry_status make_sum(const fy_sum *sum, uint64_t first, uint64_t n, sum_job **job_out,
                             ferry_error *error)
{
    sum_job *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    const void **sources = fy_alloc_zeroed(sum->n_sources, sizeof *sources);
    if (fresh == NULL || sources == NULL) {
        fy_free(fresh);
        fy_free(sources);
        return fy_fail_no_memory(error, "a sum of a CUDA queue");
    }
    for (size_t i = 0; i < sum->n_sources; i++) {
        sources[i] = (const char *)sum->sources[i] + first * fy_sum_type_bytes(sum->source_type);
    }
    fresh->sum = *sum;
    fresh->sum.sources = fresh->sources = sources;
    fresh->sum.n = (size_t)n;
    fresh->sum.stream = false;
    for (size_t i = 0; i < FY_SUM_MOST_TARGETS; i++) {
        if (sum->targets[i] != NULL) {
            fresh->sum.targets[i] =
                (char *)sum->targets[i] + first * fy_sum_type_bytes(sum->target_type);
        }
    }
    *job_out = fresh;
    return FERRY_OK;
}

static ferry_status move_flat(fy_exec_queue *queue, void *to, const void *from, uint64_t bytes,
                              ferry_error *error)
{
    fy_area flat = fy_area_flat(0, bytes);
    return fy_cuda_move(queue, &flat, to, &flat, from, 0, bytes, error);
}

/* What the device reaches is summed in the staging, `room` bytes for each. */
static ferry_status stage_elements_of_sum(fy_exec_queue *queue, sum_job *job, const bool *reached,
                                          uint64_t room, ferry_error *error)
{
    char *at = queue->staging;
    size_t n_sources = job->sum.n_sources;
    uint64_t to_bytes = job->sum.n * fy_sum_type_bytes(job->sum.target_type);
    void *targets[FY_SUM_MOST_TARGETS] = {0}, *staged[FY_SUM_MOST_TARGETS] = {0};
    ferry_status status = FERRY_OK;
    for (size_t i = 0; status == FERRY_OK && i < n_sources; i++) {
        if (reached[i]) {
            status = move_flat(queue, at, job->sources[i],
                               job->sum.n * fy_sum_type_bytes(job->sum.source_type), error);
            job->sources[i] = at;
            at += room;
        }
    }
    for (size_t i = 0; i < FY_SUM_MOST_TARGETS; i++) {
        if (job->sum.targets[i] != NULL && reached[n_sources + i]) {
            targets[i] = job->sum.targets[i];
            staged[i] = job->sum.targets[i] = at;
            at += room;
        }
    }
    if (status != FERRY_OK) {
        fy_free(job->sources);
        fy_free(job);
        return status;
    }
    status = fy_cuda_add_job(queue, &job->job, run_sum, error);
    for (size_t i = 0; i < FY_SUM_MOST_TARGETS; i++) {
        if (targets[i] != NULL) {
            FY_THEN(status, move_flat(queue, targets[i], staged[i], to_bytes, error));
        }
    }
    return status;
}

ferry_status fy_cuda_stage_sum(fy_exec_queue *queue, const fy_sum *sum, const bool *reached,
                               ferry_error *error)
{
    uint64_t n_staged = 0;
    for (size_t i = 0; i < sum->n_sources + FY_SUM_MOST_TARGETS; i++) {
        n_staged += reached[i];
    }
    uint64_t room = FY_CUDA_STAGING_BYTES / (n_staged > 0 ? n_staged : 1) / GRAIN * GRAIN;
    uint64_t most = n_staged > 0 ? room / sizeof(float) : sum->n;
    if (most == 0) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "a sum of %zu sources is more than the staging of a CUDA queue has room for",
                       sum->n_sources);
    }
    ferry_status status = FERRY_OK;
    for (uint64_t first = 0, n; status == FERRY_OK && first < sum->n; first += n) {
        sum_job *job = NULL;
        n = fy_min(sum->n - first, most);
        status = make_sum(sum, first, n, &job, error);
        FY_THEN(status, stage_elements_of_sum(queue, job, reached, room, error));
    }
    return status;
}
