/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/exec.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "memory/cuda/blocks.h"
#include "memory/cuda/casts.h"
#include "memory/cuda/digest.h"
#include "memory/cuda/graph.h"
#include "memory/cuda/late.h"
#include "memory/cuda/lower.h"
#include "memory/cuda/memory.h"
#include "memory/cuda/queue.h"
#include "memory/cuda/scratch.h"
#include "memory/cuda/stage.h"

#include <string.h>

/* Verbs: by kernels where the device reaches all that they are about, else by the host. */

static bool reaches(int32_t device, fy_space space)
{
    return fy_is_host(space) ||
           (space.kind == FERRY_MEMORY_CUDA &&
            (space.device == device || (!space.is_import && fy_cuda_sees(device, space.device))));
}

ferry_status fy_cuda_side_find(const fy_exec_queue *queue, const fy_area *area, const void *base,
                               uint64_t first, uint64_t bytes, fy_cuda_side_of *side_out,
                               ferry_error *error)
{
    uint64_t begin, end;
    fy_cuda_reach reach;
    fy_area_hull_of(area, first, bytes, &begin, &end);
    FY_TRY(fy_cuda_reach_of(queue->device, base, begin, end, queue->is_late, &reach, error));
    *side_out = (fy_cuda_side_of){.area = area,
                                  .base = (void *)(uintptr_t)base,
                                  .is_reached = reach != FY_CUDA_PAGEABLE,
                                  .is_device = reach == FY_CUDA_OURS};
    return FERRY_OK;
}

/* A copy, a hash (of from) or a cast, as it is kept while the queue waits. */
typedef struct late_verb {
    fy_cuda_late late;
    fy_area to, from;
    void *to_base;
    const void *from_base;
    uint64_t first, n;             /* bytes, or elements */
    uint64_t to_bytes, from_bytes; /* of one of them */
    uint64_t *hash_out;
    fy_cast cast;
} late_verb;

/* The sides of a verb. Where none is the device's, pinned memory is like other memory. */
static ferry_status sides_of(const fy_exec_queue *queue, const late_verb *v,
                             fy_cuda_side_of sides_out[2], ferry_error *error)
{
    FY_TRY(fy_cuda_side_find(queue, &v->to, v->to_base, v->first * v->to_bytes, v->n * v->to_bytes,
                             &sides_out[0], error));
    FY_TRY(fy_cuda_side_find(queue, &v->from, v->from_base, v->first * v->from_bytes,
                             v->n * v->from_bytes, &sides_out[1], error));
    if (!sides_out[0].is_device && !sides_out[1].is_device) {
        sides_out[0].is_reached = sides_out[1].is_reached = false;
    }
    return FERRY_OK;
}

ferry_status fy_cuda_begin_sound(fy_exec_queue *queue, uint64_t *before_out, ferry_error *error)
{
    FY_TRY(fy_cuda_begin(queue, error));
    *before_out = queue->n_issued;
    pthread_mutex_lock(&queue->lock);
    ferry_status status = queue->status;
    if (status != FERRY_OK && error != NULL) {
        *error = queue->error;
    }
    pthread_mutex_unlock(&queue->lock);
    return status == FERRY_OK ? FERRY_OK : fy_cuda_end(queue, *before_out, status, error);
}

/*
 * The host's bytes that come again and again go to the device once, and are copied there: false
 * where they are not such, or where there is no room for them.
 */
static bool may_repeat(fy_exec_queue *queue, const fy_cuda_side_of sides[2], uint64_t bytes,
                       fy_cuda_scratch *scratch)
{
    return bytes > 0 && sides[0].is_device && !sides[1].is_reached &&
           fy_cuda_repeats(sides[1].area) && sides[1].area->run_bytes <= FY_CUDA_PATTERN_BYTES &&
           fy_cuda_scratch_of(queue, scratch);
}

static ferry_status repeat(fy_exec_queue *queue, const fy_cuda_side_of sides[2],
                           CUdeviceptr pattern, uint64_t first, uint64_t bytes, ferry_error *error)
{
    void *there = (void *)(uintptr_t)pattern;
    const fy_area *all = sides[1].area;
    fy_area run = fy_area_flat(all->offset, all->run_bytes), flat = fy_area_flat(0, all->run_bytes);
    const fy_cuda_side_of to = {
        .area = &flat, .base = there, .is_reached = true, .is_device = true};
    const fy_cuda_side_of from = {.area = &run, .base = sides[1].base};
    FY_TRY(fy_cuda_stage_copy(queue, &to, &from, 0, run.run_bytes, NULL, error));
    fy_area again = *all;
    again.offset = 0;
    return fy_cuda_move(queue, sides[0].area, sides[0].base, &again, there, first, bytes, error);
}

/* Both sides have the same bytes then: a kernel hashes those of the device's. */
static ferry_status copy_sides(fy_exec_queue *queue, const fy_cuda_side_of sides[2], uint64_t first,
                               uint64_t bytes, uint64_t *hash_out, ferry_error *error)
{
    fy_cuda_scratch scratch;
    if (may_repeat(queue, sides, bytes, &scratch)) {
        FY_TRY(repeat(queue, sides, scratch.pattern, first, bytes, error));
    } else if (!sides[0].is_reached || !sides[1].is_reached) {
        return fy_cuda_stage_copy(queue, &sides[0], &sides[1], first, bytes, hash_out, error);
    } else if (bytes > 0) {
        FY_TRY(fy_cuda_move(queue, sides[0].area, sides[0].base, sides[1].area, sides[1].base,
                            first, bytes, error));
    }
    const fy_cuda_side_of *hashed = &sides[sides[1].is_device ? 1 : 0];
    return hash_out == NULL ? FERRY_OK
                            : fy_cuda_hash_side(queue, hashed, first, bytes, hash_out, error);
}

/* Now, or later; what is wrong with the sides is said now. */
static ferry_status give(fy_exec_queue *queue, const late_verb *one, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    pthread_mutex_lock(&queue->calls);
    if (queue->late != NULL) {
        fy_cuda_side_of sides[2];
        uint64_t before;
        status = fy_cuda_begin_sound(queue, &before, error);
        if (status == FERRY_OK) {
            status = sides_of(queue, one, sides, error);
            status = fy_cuda_end(queue, before, status, error);
        }
    }
    FY_THEN(status, fy_cuda_do(queue, &one->late, sizeof *one, error));
    pthread_mutex_unlock(&queue->calls);
    return status;
}

static ferry_status perform_copy(fy_exec_queue *queue, const fy_cuda_late *what, ferry_error *error)
{
    const late_verb *one = (const late_verb *)what;
    fy_cuda_side_of sides[2];
    uint64_t before;
    FY_TRY(fy_cuda_begin_sound(queue, &before, error));
    ferry_status status = sides_of(queue, one, sides, error);
    FY_THEN(status, copy_sides(queue, sides, one->first, one->n, one->hash_out, error));
    return fy_cuda_end(queue, before, status, error);
}

static ferry_status copy(fy_exec_queue *queue, const fy_area *to, void *to_base,
                         const fy_area *from, const void *from_base, uint64_t first, uint64_t bytes,
                         uint64_t *hash_out, ferry_error *error)
{
    const late_verb one = {.late = {.perform = perform_copy},
                           .to = *to,
                           .from = *from,
                           .to_base = to_base,
                           .from_base = from_base,
                           .first = first,
                           .n = bytes,
                           .to_bytes = 1,
                           .from_bytes = 1,
                           .hash_out = hash_out};
    return bytes == 0 && hash_out == NULL ? FERRY_OK : give(queue, &one, error);
}

static ferry_status perform_hash(fy_exec_queue *queue, const fy_cuda_late *what, ferry_error *error)
{
    const late_verb *one = (const late_verb *)what;
    fy_cuda_side_of side = {.is_reached = false};
    uint64_t before;
    FY_TRY(fy_cuda_begin_sound(queue, &before, error));
    ferry_status status =
        fy_cuda_side_find(queue, &one->from, one->from_base, one->first, one->n, &side, error);
    FY_THEN(status, fy_cuda_hash_side(queue, &side, one->first, one->n, one->hash_out, error));
    return fy_cuda_end(queue, before, status, error);
}

static ferry_status hash(fy_exec_queue *queue, const fy_area *area, const void *base,
                         uint64_t first, uint64_t bytes, uint64_t *hash_out, ferry_error *error)
{
    const late_verb one = {.late = {.perform = perform_hash},
                           .to = fy_area_flat(0, 0),
                           .from = *area,
                           .from_base = base,
                           .first = first,
                           .n = bytes,
                           .from_bytes = 1,
                           .hash_out = hash_out};
    return give(queue, &one, error);
}

/*
 * Casts
 */

static ferry_status perform_cast(fy_exec_queue *queue, const fy_cuda_late *what, ferry_error *error)
{
    const late_verb *v = (const late_verb *)what;
    const fy_cast *how = &v->cast;
    fy_cuda_side_of sides[2];
    uint64_t before;
    FY_TRY(fy_cuda_begin_sound(queue, &before, error));
    ferry_status status = sides_of(queue, v, sides, error);
    FY_THEN(status, fy_cuda_cast_sides(queue, how, sides, v->first, v->n, error));
    if (status == FERRY_OK && v->hash_out != NULL) {
        status = fy_cuda_hash_side(queue, &sides[0], v->first * v->to_bytes, v->n * v->to_bytes,
                                   v->hash_out, error);
    }
    return fy_cuda_end(queue, before, status, error);
}

static ferry_status cast(fy_exec_queue *queue, const fy_cast *how, const fy_area *to, void *to_base,
                         const fy_area *from, const void *from_base, uint64_t first, uint64_t n,
                         uint64_t *hash_out, ferry_error *error)
{
    const late_verb one = {.late = {.perform = perform_cast},
                           .to = *to,
                           .from = *from,
                           .to_base = to_base,
                           .from_base = from_base,
                           .first = first,
                           .n = n,
                           .to_bytes = fy_cast_numbers(how) * fy_cuda_element_bytes(how->to_kind),
                           .from_bytes = fy_cuda_element_bytes(how->from_kind),
                           .hash_out = hash_out,
                           .cast = *how};
    return n == 0 && hash_out == NULL ? FERRY_OK : give(queue, &one, error);
}

/*
 * Sums
 */

static uint32_t number_of_sum(fy_sum_type type)
{
    return type == FY_SUM_F32 ? FY_CUDA_F32 : type == FY_SUM_F16 ? FY_CUDA_F16 : FY_CUDA_BF16;
}

/* Elements [first, first + n), eight by eight or one by one. */
static ferry_status sum_units(fy_exec_queue *queue, const fy_sum *what, uint64_t first, uint64_t n,
                              uint32_t group, ferry_error *error)
{
    uint64_t from = first * fy_sum_type_bytes(what->source_type);
    uint64_t to = first * fy_sum_type_bytes(what->target_type);
    fy_cuda_sum one = {.n_units = n / group,
                       .n_sources = (uint32_t)what->n_sources,
                       .source_type = number_of_sum(what->source_type),
                       .target_type = number_of_sum(what->target_type)};
    for (size_t i = 0; i < what->n_sources; i++) {
        one.sources[i] = (uint64_t)(uintptr_t)what->sources[i] + from;
    }
    for (size_t i = 0; i < FY_SUM_MOST_TARGETS; i++) {
        if (what->targets[i] != NULL) {
            one.targets[i] = (uint64_t)(uintptr_t)what->targets[i] + to;
        }
    }
    FY_TRY(fy_cuda_launch(queue->device, queue->stream,
                          group == 8 ? FY_NUMBER_OF_fy_cuda_sum_8 : FY_NUMBER_OF_fy_cuda_sum_1,
                          &one, one.n_units, 1, error));
    queue->n_issued++;
    return FERRY_OK;
}

static ferry_status sum_by_kernel(fy_exec_queue *queue, const fy_sum *what, ferry_error *error)
{
    uintptr_t all = 0;
    for (size_t i = 0; i < what->n_sources; i++) {
        all |= (uintptr_t)what->sources[i];
    }
    all |= (uintptr_t)what->targets[0] | (uintptr_t)what->targets[1];
    uint64_t n_wide = all % 16 == 0 ? what->n / 8 * 8 : 0;
    ferry_status status = FERRY_OK;
    if (n_wide > 0) {
        status = sum_units(queue, what, 0, n_wide, 8, error);
    }
    if (n_wide < what->n) {
        FY_THEN(status, sum_units(queue, what, n_wide, what->n - n_wide, 1, error));
    }
    return status;
}

/* One source without a change of type: its NaNs keep what they carry. */
static ferry_status copy_source(fy_exec_queue *queue, const fy_sum *what, ferry_error *error)
{
    uint64_t bytes = what->n * fy_sum_type_bytes(what->source_type);
    fy_area flat = fy_area_flat(0, bytes);
    for (size_t i = 0; i < FY_SUM_MOST_TARGETS; i++) {
        if (what->targets[i] != NULL && what->targets[i] != what->sources[0]) {
            FY_TRY(fy_cuda_move(queue, &flat, what->targets[i], &flat, what->sources[0], 0, bytes,
                                error));
        }
    }
    return FERRY_OK;
}

/* What each source and each target is to the device. */
static ferry_status look_at_all(const fy_exec_queue *queue, const fy_sum *what, bool *reached,
                                bool *all_out, ferry_error *error)
{
    *all_out = true;
    for (size_t i = 0; i < what->n_sources + FY_SUM_MOST_TARGETS; i++) {
        bool is_source = i < what->n_sources;
        const void *base = is_source ? what->sources[i] : what->targets[i - what->n_sources];
        uint64_t bytes =
            what->n * fy_sum_type_bytes(is_source ? what->source_type : what->target_type);
        fy_cuda_reach reach;
        if (base != NULL) {
            FY_TRY(fy_cuda_reach_of(queue->device, base, 0, bytes, queue->is_late, &reach, error));
            reached[i] = reach != FY_CUDA_PAGEABLE;
            *all_out = *all_out && reached[i];
        }
    }
    return FERRY_OK;
}

typedef struct late_sum {
    fy_cuda_late late;
    fy_sum sum;
    const void *sources[]; /* where it is kept; else they are the caller's */
} late_sum;

static ferry_status sum_reached(fy_exec_queue *queue, const fy_sum *what, const bool *reached,
                                bool all, ferry_error *error)
{
    if (!all || what->n_sources > FY_CUDA_MOST_SOURCES) {
        return fy_cuda_stage_sum(queue, what, reached, error);
    }
    return what->n_sources == 1 && what->source_type == what->target_type
               ? copy_source(queue, what, error)
               : sum_by_kernel(queue, what, error);
}

static ferry_status perform_sum(fy_exec_queue *queue, const fy_cuda_late *late, ferry_error *error)
{
    fy_sum what = ((const late_sum *)late)->sum;
    uint64_t before;
    bool all;
    if (what.sources == NULL) {
        what.sources = ((const late_sum *)late)->sources;
    }
    bool *reached = fy_alloc_zeroed(what.n_sources + FY_SUM_MOST_TARGETS, sizeof *reached);
    FY_TRY(fy_check_memory(reached != NULL, "a sum of a CUDA queue", error));
    ferry_status status = fy_cuda_begin_sound(queue, &before, error);
    if (status == FERRY_OK) {
        status = look_at_all(queue, &what, reached, &all, error);
        FY_THEN(status, sum_reached(queue, &what, reached, all, error));
        status = fy_cuda_end(queue, before, status, error);
    }
    fy_free(reached);
    return status;
}

/* With its sources behind it, as the queue waits. Under the lock of calls. */
static ferry_status give_sum(fy_exec_queue *queue, const fy_sum *what, ferry_error *error)
{
    size_t bytes = sizeof(late_sum) + what->n_sources * sizeof(void *);
    late_sum *one = fy_alloc(1, bytes);
    FY_TRY(fy_check_memory(one != NULL, "a sum of a CUDA queue", error));
    *one = (late_sum){.late = {.perform = perform_sum}, .sum = *what};
    memcpy(one->sources, what->sources, what->n_sources * sizeof(void *));
    one->sum.sources = NULL;
    ferry_status status = fy_cuda_do(queue, &one->late, bytes, error);
    fy_free(one);
    return status;
}

static ferry_status sum(fy_exec_queue *queue, const fy_sum *what, ferry_error *error)
{
    const late_sum now = {.late = {.perform = perform_sum}, .sum = *what};
    if (what->n == 0) {
        return FERRY_OK;
    }
    pthread_mutex_lock(&queue->calls);
    ferry_status status =
        queue->late == NULL ? perform_sum(queue, &now.late, error) : give_sum(queue, what, error);
    pthread_mutex_unlock(&queue->calls);
    return status;
}

const fy_exec fy_cuda_exec = {.name = "cuda",
                              .queue_open = fy_cuda_queue_open,
                              .queue_close = fy_cuda_queue_close,
                              .reaches = reaches,
                              .copy = copy,
                              .hash = hash,
                              .cast = cast,
                              .sum = sum,
                              .largest = fy_cuda_largest_of,
                              .nvfp4 = fy_cuda_nvfp4_of,
                              .digests = fy_cuda_digests_of,
                              .lanes = fy_cuda_run_lanes,
                              .lanes_take = fy_cuda_lanes_take,
                              .lanes_give = fy_cuda_lanes_give,
                              .lanes_meet = fy_cuda_queue_meets,
                              .most_lanes = fy_cuda_most_lanes,
                              .fleets = &fy_cuda_fleets,
                              .circles = &fy_nccl_circles,
                              .word_set = fy_cuda_word_set,
                              .word_wait = fy_cuda_word_wait,
                              .call = fy_cuda_call,
                              .is_captured = fy_cuda_is_captured,
                              .make_way = fy_cuda_make_way,
                              .capture = fy_cuda_capture,
                              .capture_lanes = fy_cuda_capture_lanes,
                              .mark = fy_cuda_mark,
                              .reached = fy_cuda_reached};
