/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/exec.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "memory/cuda/graph.h"
#include "memory/cuda/late.h"
#include "memory/cuda/lower.h"
#include "memory/cuda/memory.h"
#include "memory/cuda/queue.h"
#include "memory/cuda/stage.h"

#include <ferry/dtype.h>

#include <string.h>

/* Verbs: by kernels where the device reaches all that they are about, else by the host. */

static bool reaches(int32_t device, fy_space space)
{
    return fy_is_host(space) ||
           (space.kind == FERRY_MEMORY_CUDA &&
            (space.device == device || (!space.is_import && fy_cuda_sees(device, space.device))));
}

/* A side. Entered. */
static ferry_status side_of(const fy_exec_queue *queue, const fy_area *area, const void *base,
                            fy_cuda_side_of *side_out, bool *is_device_out, ferry_error *error)
{
    uint64_t begin, end;
    fy_cuda_reach reach;
    fy_area_hull(area, &begin, &end);
    FY_TRY(fy_cuda_reach_of(queue->device, base, begin, end, queue->is_late, &reach, error));
    *side_out = (fy_cuda_side_of){
        .area = area, .base = (void *)(uintptr_t)base, .is_reached = reach != FY_CUDA_PAGEABLE};
    *is_device_out = reach == FY_CUDA_OURS;
    return FERRY_OK;
}

/* The sides of a verb. Where none is the device's, pinned memory is like other memory. */
static ferry_status sides_of(const fy_exec_queue *queue, const fy_area *to, void *to_base,
                             const fy_area *from, const void *from_base,
                             fy_cuda_side_of sides_out[2], ferry_error *error)
{
    bool is_device[2];
    FY_TRY(side_of(queue, to, to_base, &sides_out[0], &is_device[0], error));
    FY_TRY(side_of(queue, from, from_base, &sides_out[1], &is_device[1], error));
    if (!is_device[0] && !is_device[1]) {
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

static ferry_status copy_sides(fy_exec_queue *queue, const fy_cuda_side_of sides[2], uint64_t first,
                               uint64_t bytes, uint64_t *hash_out, ferry_error *error)
{
    if (!sides[0].is_reached || !sides[1].is_reached) {
        return fy_cuda_stage_copy(queue, &sides[0], &sides[1], first, bytes, hash_out, error);
    }
    if (bytes > 0) {
        FY_TRY(fy_cuda_move(queue, sides[0].area, sides[0].base, sides[1].area, sides[1].base,
                            first, bytes, error));
    }
    return hash_out == NULL ? FERRY_OK
                            : fy_cuda_stage_hash(queue, &sides[1], first, bytes, hash_out, error);
}

/* A copy, a hash (of from) or a cast, as it is kept while the queue waits. */
typedef struct late_verb {
    fy_cuda_late late;
    fy_area to, from;
    void *to_base;
    const void *from_base;
    uint64_t first, n; /* bytes, or elements */
    uint64_t *hash_out;
    fy_cast cast;
} late_verb;

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
            status =
                sides_of(queue, &one->to, one->to_base, &one->from, one->from_base, sides, error);
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
    ferry_status status =
        sides_of(queue, &one->to, one->to_base, &one->from, one->from_base, sides, error);
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
                           .hash_out = hash_out};
    return bytes == 0 && hash_out == NULL ? FERRY_OK : give(queue, &one, error);
}

static ferry_status perform_hash(fy_exec_queue *queue, const fy_cuda_late *what, ferry_error *error)
{
    const late_verb *one = (const late_verb *)what;
    fy_cuda_side_of side = {.is_reached = false};
    bool is_device = false;
    uint64_t before;
    FY_TRY(fy_cuda_begin_sound(queue, &before, error));
    ferry_status status = side_of(queue, &one->from, one->from_base, &side, &is_device, error);
    side.is_reached = side.is_reached && is_device;
    FY_THEN(status, fy_cuda_stage_hash(queue, &side, one->first, one->n, one->hash_out, error));
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
                           .hash_out = hash_out};
    return give(queue, &one, error);
}

/*
 * Casts
 */

/* False: kernels have no such type. */
static bool number_of(uint32_t kind, uint32_t *number_out)
{
    static const uint32_t kinds[] = {[FY_CUDA_F32] = FERRY_F32,
                                     [FY_CUDA_F16] = FERRY_F16,
                                     [FY_CUDA_BF16] = FERRY_BF16,
                                     [FY_CUDA_F8E4M3] = FERRY_F8E4M3,
                                     [FY_CUDA_F8E5M2] = FERRY_F8E5M2};
    for (uint32_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (kinds[i] == kind) {
            *number_out = i;
            return true;
        }
    }
    return false;
}

/* Whether elements from `first` on can go in groups of 8 or 4: then all accesses are wide. */
static bool fits(fy_cuda_place place, uint64_t element_bytes, uint32_t group, uint64_t first)
{
    uint64_t bytes = group * element_bytes, width = fy_min(16, bytes);
    const fy_area *area = place.area;
    bool fits = first % group == 0 && (place.base + area->offset) % width == 0;
    if (area->n_dims > 0) {
        fits = fits && area->run_bytes % bytes == 0;
    }
    for (uint32_t d = 0; d < area->n_dims; d++) {
        fits = fits && area->stride[d] % width == 0;
    }
    return fits;
}

/* n_units of `group` elements, from unit `first` on. */
static ferry_status cast_units(fy_exec_queue *queue, fy_cuda_cast *one, fy_cuda_place to,
                               uint64_t to_bytes, fy_cuda_place from, uint64_t from_bytes,
                               uint32_t group, uint64_t first, uint64_t n_units, ferry_error *error)
{
    for (uint64_t n; n_units > 0; first += n, n_units -= n) {
        n = n_units;
        if (!fy_cuda_side_make(to, group * (uint32_t)to_bytes, first, &n, &one->to) ||
            !fy_cuda_side_make(from, group * (uint32_t)from_bytes, first, &n, &one->from)) {
            return fy_fail(error, FERRY_ERR_LIMIT,
                           "an area has more than %d rows within a row of its outermost dim, "
                           "which is more than a cast by a CUDA device can count",
                           (int)FY_CUDA_MOST_UNITS);
        }
        one->n_units = (uint32_t)n;
        FY_TRY(fy_cuda_launch(queue->device, queue->stream,
                              group == 8   ? FY_NUMBER_OF_fy_cuda_cast_8
                              : group == 4 ? FY_NUMBER_OF_fy_cuda_cast_4
                                           : FY_NUMBER_OF_fy_cuda_cast_1,
                              one, n, 1, error));
        queue->n_issued++;
    }
    return FERRY_OK;
}

static ferry_status cast_by_kernel(fy_exec_queue *queue, const fy_cast *how, fy_cuda_cast *one,
                                   const fy_cuda_side_of sides[2], uint64_t first, uint64_t n,
                                   ferry_error *error)
{
    uint64_t to_bytes = fy_cuda_element_bytes(how->to_kind);
    uint64_t from_bytes = fy_cuda_element_bytes(how->from_kind);
    fy_cuda_place to = {sides[0].area, (uint64_t)(uintptr_t)sides[0].base};
    fy_cuda_place from = {sides[1].area, (uint64_t)(uintptr_t)sides[1].base};
    uint32_t group = to_bytes == 4 && from_bytes < 4 ? 4 : 8;
    bool fit = fits(to, to_bytes, group, first) && fits(from, from_bytes, group, first);
    uint64_t n_groups = fit ? n / group : 0;
    FY_TRY(cast_units(queue, one, to, to_bytes, from, from_bytes, group, first / group, n_groups,
                      error));
    return cast_units(queue, one, to, to_bytes, from, from_bytes, 1, first + group * n_groups,
                      n - group * n_groups, error);
}

static uint32_t changes_of(const fy_cast *how)
{
    return (how->overflow == FY_OVERFLOW_SATURATE ? FY_CUDA_SATURATES : 0) |
           (fy_cast_multiplies(how) ? FY_CUDA_MULTIPLIES : 0) | (how->add != 0 ? FY_CUDA_ADDS : 0);
}

static ferry_status cast_sides(fy_exec_queue *queue, const fy_cast *how,
                               const fy_cuda_side_of sides[2], uint64_t first, uint64_t n,
                               ferry_error *error)
{
    fy_cuda_cast one = {.changes = changes_of(how), .scale = how->scale, .add = how->add};
    bool reckons = (one.changes & (FY_CUDA_MULTIPLIES | FY_CUDA_ADDS)) != 0;
    bool is_plain = how->from_scales.values == NULL && how->from_scales.powers == NULL &&
                    how->to_scales.values == NULL && !how->has_plain_nans &&
                    (how->from_kind != how->to_kind || reckons) &&
                    number_of(how->from_kind, &one.from_type) &&
                    number_of(how->to_kind, &one.to_type);
    return is_plain && sides[0].is_reached && sides[1].is_reached
               ? cast_by_kernel(queue, how, &one, sides, first, n, error)
               : fy_cuda_stage_cast(queue, how, &sides[0], &sides[1], first, n, error);
}

static ferry_status perform_cast(fy_exec_queue *queue, const fy_cuda_late *what, ferry_error *error)
{
    const late_verb *v = (const late_verb *)what;
    const fy_cast *how = &v->cast;
    fy_cuda_side_of sides[2];
    uint64_t before;
    FY_TRY(fy_cuda_begin_sound(queue, &before, error));
    ferry_status status = sides_of(queue, &v->to, v->to_base, &v->from, v->from_base, sides, error);
    FY_THEN(status, cast_sides(queue, how, sides, v->first, v->n, error));
    if (status == FERRY_OK && v->hash_out != NULL) {
        uint64_t bytes = fy_cast_numbers(how) * fy_cuda_element_bytes(how->to_kind);
        status = fy_cuda_stage_hash(queue, &sides[0], v->first * bytes, v->n * bytes, v->hash_out,
                                    error);
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
                              .lanes = fy_cuda_run_lanes,
                              .lanes_take = fy_cuda_lanes_take,
                              .lanes_give = fy_cuda_lanes_give,
                              .most_lanes = fy_cuda_most_lanes,
                              .word_set = fy_cuda_word_set,
                              .word_wait = fy_cuda_word_wait,
                              .call = fy_cuda_call,
                              .is_captured = fy_cuda_is_captured,
                              .make_way = fy_cuda_make_way,
                              .capture = fy_cuda_capture,
                              .mark = fy_cuda_mark,
                              .reached = fy_cuda_reached};
