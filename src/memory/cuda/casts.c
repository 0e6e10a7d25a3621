/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/casts.h"

#include "base/checked.h"
#include "memory/cuda/lower.h"
#include "memory/cuda/scratch.h"

#include <string.h>

enum { MATRICES_BYTES = 16 << 10 }; /* of the room for scales, where these are codes */

/*
 * Casts by kernels, where the device reaches both sides. Scales are the host's, and are brought to
 * the queue's scratch: those that the elements of a launch have, so they are few.
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

/* Both sides of a cast. */
typedef struct ends {
    fy_cuda_place to, from;
    uint64_t to_bytes, from_bytes; /* of an element */
    bool is_half;                  /* which is two codes of half a byte, or what these become */
} ends;

static bool fit(const ends *e, uint32_t group, uint64_t first)
{
    return fits(e->to, e->to_bytes, group, first) && fits(e->from, e->from_bytes, group, first);
}

static bool sides_make(const ends *e, uint32_t group, uint64_t first, uint64_t *n_inout,
                       fy_cuda_cast *one)
{
    return fy_cuda_side_make(e->to, group * (uint32_t)e->to_bytes, first, n_inout, &one->to) &&
           fy_cuda_side_make(e->from, group * (uint32_t)e->from_bytes, first, n_inout, &one->from);
}

static ferry_status refuse(ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_LIMIT,
                   "an area has more than %d rows within a row of its outermost dim, which is more "
                   "than a cast by a CUDA device can count",
                   (int)FY_CUDA_MOST_UNITS);
}

static fy_cuda_kernel kernel_of(const ends *e, uint32_t group)
{
    if (e->is_half) {
        return group > 1 ? FY_NUMBER_OF_fy_cuda_cast_f4_8 : FY_NUMBER_OF_fy_cuda_cast_f4_2;
    }
    return group == 8   ? FY_NUMBER_OF_fy_cuda_cast_8
           : group == 4 ? FY_NUMBER_OF_fy_cuda_cast_4
                        : FY_NUMBER_OF_fy_cuda_cast_1;
}

/* n_units of `group` elements, from unit `first` on. */
static ferry_status cast_units(fy_exec_queue *queue, fy_cuda_cast *one, const ends *e,
                               uint32_t group, uint64_t first, uint64_t n_units, ferry_error *error)
{
    for (uint64_t n; n_units > 0; first += n, n_units -= n) {
        n = n_units;
        if (!sides_make(e, group, first, &n, one)) {
            return refuse(error);
        }
        one->n_units = (uint32_t)n;
        FY_TRY(fy_cuda_launch(queue->device, queue->stream, kernel_of(e, group), one, n, 1, error));
        queue->n_issued++;
    }
    return FERRY_OK;
}

/* Elements [first, first + n): by eight or by four where that goes, else one by one. */
static ferry_status cast_plain(fy_exec_queue *queue, fy_cuda_cast *one, const ends *e,
                               uint64_t first, uint64_t n, ferry_error *error)
{
    uint32_t group = e->is_half || (e->to_bytes == 4 && e->from_bytes < 4) ? 4 : 8;
    uint64_t n_groups = fit(e, group, first) ? n / group : 0;
    FY_TRY(cast_units(queue, one, e, group, first / group, n_groups, error));
    return cast_units(queue, one, e, 1, first + group * n_groups, n - group * n_groups, error);
}

/*
 * Scales
 */

static bool has_scales(const fy_cast_scales *s)
{
    return s->values != NULL || s->powers != NULL || s->codes != NULL;
}

static uint64_t scale_bytes(const fy_cast_scales *s)
{
    return s->values != NULL ? sizeof(float) : 1;
}

/* Elements of a cast, as rows and columns of matrices. */
typedef struct extent {
    uint64_t plane[2], row[2], column[2]; /* the first one's, and the last one's */
} extent;

static extent extent_of(const fy_cast *how, uint64_t first, uint64_t n)
{
    extent x;
    const uint64_t at[2] = {first, first + n - 1};
    for (int i = 0; i < 2; i++) {
        uint64_t row = at[i] / how->n_columns;
        x.plane[i] = row / how->n_rows;
        x.row[i] = row % how->n_rows;
        x.column[i] = at[i] % how->n_columns;
    }
    return x;
}

/* Where the scales of a matrix begin. */
static uint64_t plane_at(const fy_cast_scales *s, uint64_t plane)
{
    uint64_t at = s->n_plane_dims == 0 ? plane * s->plane : 0;
    for (uint32_t d = s->n_plane_dims; d-- > 0; plane /= s->plane_length[d]) {
        at += plane % s->plane_length[d] * s->plane_stride[d];
    }
    return at;
}

static uint64_t step_of(const fy_cast_scales *s)
{
    return s->step == 0 ? 1 : s->step;
}

/* The scales that they have are among numbers [begin, end). */
static void scales_of(const fy_cast *how, const fy_cast_scales *s, const extent *x,
                      uint64_t *begin_out, uint64_t *end_out)
{
    uint64_t row[2] = {x->row[0], x->row[1]}, column[2] = {x->column[0], x->column[1]}, at[2];
    bool is_one = x->plane[0] == x->plane[1];
    if (s->block[0] == 0) {
        *begin_out = 0;
        *end_out = 1;
        return;
    }
    if (!is_one) {
        row[0] = 0;
        row[1] = how->n_rows - 1;
    }
    if (row[0] != row[1] || !is_one) {
        column[0] = 0;
        column[1] = how->n_columns - 1;
    }
    for (int i = 0; i < 2; i++) {
        at[i] = (row[i] + s->origin[0]) / s->block[0] * s->pitch +
                (column[i] + s->origin[1]) / s->block[1] * step_of(s);
        at[i] += s->n_plane_dims == 0 || is_one ? plane_at(s, x->plane[i]) : 0;
    }
    for (uint32_t d = 0; !is_one && d < s->n_plane_dims; d++) { /* any of them */
        at[1] += (s->plane_length[d] - 1) * s->plane_stride[d];
    }
    *begin_out = at[0];
    *end_out = at[1] + 1;
}

/* Those of their matrices, by which they are multiplied, likewise. */
static void matrices_of(const fy_cast_scales *s, const extent *x, uint64_t *begin_out,
                        uint64_t *end_out)
{
    uint64_t at = 0, left = x->plane[0], end = 1;
    bool is_one = x->plane[0] == x->plane[1];
    for (uint32_t d = s->n_plane_dims; d-- > 0; left /= s->plane_length[d]) {
        at += is_one ? left % s->plane_length[d] * s->matrix_stride[d] : 0;
        end += is_one ? 0 : (s->plane_length[d] - 1) * s->matrix_stride[d]; /* any of them */
    }
    *begin_out = at;
    *end_out = at + end;
}

/* Whether there is room for the scales of elements. */
static bool have_room(const fy_cast *how, const fy_cast_scales *s, const extent *x)
{
    uint64_t begin, end, room = FY_CUDA_SCALES_BYTES;
    if (!has_scales(s)) {
        return true;
    }
    if (s->codes != NULL) {
        matrices_of(s, x, &begin, &end);
        if ((end - begin) * sizeof *s->of_matrices > MATRICES_BYTES) {
            return false;
        }
        room -= MATRICES_BYTES;
    }
    scales_of(how, s, x, &begin, &end);
    return (end - begin) * scale_bytes(s) <= room;
}

/* As many elements as have scales for which there is room: at least one. */
static uint64_t count_with_room(const fy_cast *how, uint64_t first, uint64_t n)
{
    for (extent x = extent_of(how, first, n);
         n > 1 && !(have_room(how, &how->to_scales, &x) && have_room(how, &how->from_scales, &x));
         x = extent_of(how, first, n)) {
        n = n > 16 ? n / 16 * 8 : 1; /* half, and by eight where that goes */
    }
    return n;
}

/* Numbers that a launch divides are below 2^31, and what it divides by is no more than 2^30. */
static bool are_scales_countable(const fy_cast_scales *s)
{
    bool are = true;
    for (int i = 0; i < 2; i++) {
        are = are && s->block[i] <= FY_CUDA_MOST_UNITS && s->origin[i] < FY_CUDA_MOST_UNITS;
    }
    for (uint32_t d = 0; d < s->n_plane_dims; d++) {
        are = are && s->plane_length[d] <= FY_CUDA_MOST_UNITS;
    }
    return are;
}

/* Of elements below `end`; there are some, so matrices are not empty. */
static bool are_countable(const fy_cast *how, uint64_t end)
{
    return how->n_rows <= FY_CUDA_MOST_UNITS && how->n_columns <= FY_CUDA_MOST_UNITS &&
           fy_ceil_div(end, how->n_rows * how->n_columns) <= FY_CUDA_MOST_UNITS &&
           are_scales_countable(&how->to_scales) && are_scales_countable(&how->from_scales);
}

/* Elements [begin, end) of the host's to memory of the device, in the stream's order. */
static ferry_status bring(fy_exec_queue *queue, const void *from, uint64_t element_bytes,
                          uint64_t begin, uint64_t end, CUdeviceptr to, ferry_error *error)
{
    uint64_t bytes = (end - begin) * element_bytes;
    fy_area flat = fy_area_flat(0, bytes);
    const fy_cuda_side_of target = {
        .area = &flat, .base = (void *)(uintptr_t)to, .is_reached = true, .is_device = true};
    const fy_cuda_side_of source = {.area = &flat,
                                    .base = (void *)((uintptr_t)from + begin * element_bytes)};
    return fy_cuda_stage_copy(queue, &target, &source, 0, bytes, NULL, error);
}

static const void *numbers_of(const fy_cast_scales *s)
{
    return s->values != NULL ? (const void *)s->values : s->powers != NULL ? s->powers : s->codes;
}

/* Of codes, the scales of their matrices: at the begin of the room. */
static ferry_status lower_matrices(fy_exec_queue *queue, const fy_cast_scales *s, const extent *x,
                                   CUdeviceptr room, fy_cuda_scales *out, ferry_error *error)
{
    uint64_t begin, end;
    if (s->codes == NULL) {
        return FERRY_OK;
    }
    matrices_of(s, x, &begin, &end);
    FY_TRY(bring(queue, s->of_matrices, sizeof *s->of_matrices, begin, end, room, error));
    out->of_matrices = room - begin * sizeof *s->of_matrices;
    for (uint32_t d = 0; d < s->n_plane_dims; d++) {
        out->matrix_stride[d] = s->matrix_stride[d];
    }
    return FERRY_OK;
}

static ferry_status lower_scales(fy_exec_queue *queue, const fy_cast *how, const fy_cast_scales *s,
                                 const extent *x, CUdeviceptr room, fy_cuda_scales *out,
                                 ferry_error *error)
{
    uint64_t begin, end;
    *out = (fy_cuda_scales){.numbers = 0};
    if (!has_scales(s)) {
        return FERRY_OK;
    }
    scales_of(how, s, x, &begin, &end);
    CUdeviceptr to = s->codes == NULL ? room : room + MATRICES_BYTES;
    FY_TRY(bring(queue, numbers_of(s), scale_bytes(s), begin, end, to, error));
    FY_TRY(lower_matrices(queue, s, x, room, out, error));
    out->numbers = to - begin * scale_bytes(s);
    out->are_powers = s->powers != NULL;
    for (int i = 0; i < 2 && s->block[0] != 0; i++) {
        out->block[i] = fy_cuda_divisor_of((uint32_t)s->block[i]);
        out->origin[i] = (uint32_t)s->origin[i];
    }
    out->pitch = s->pitch;
    out->step = step_of(s);
    out->n_plane_dims = s->n_plane_dims;
    out->plane = s->plane;
    for (uint32_t d = 0; d < s->n_plane_dims; d++) {
        out->plane_length[d] = fy_cuda_divisor_of((uint32_t)s->plane_length[d]);
        out->plane_stride[d] = s->plane_stride[d];
    }
    return FERRY_OK;
}

/* Whether eight elements side by side, from a multiple of eight on, have one scale. */
static bool share(const fy_cast *how, const fy_cast_scales *s)
{
    return !has_scales(s) || s->block[0] == 0 ||
           (how->n_columns % 8 == 0 && s->block[1] % 8 == 0 && s->origin[1] % 8 == 0);
}

/* n_units of `group` elements, from unit `first` on, whose scales are there. */
static ferry_status scaled_units(fy_exec_queue *queue, const fy_cast *how, fy_cuda_scaled *one,
                                 const ends *e, uint32_t group, uint64_t first, uint64_t n_units,
                                 ferry_error *error)
{
    for (uint64_t n; n_units > 0; first += n, n_units -= n) {
        n = fy_min(n_units, FY_CUDA_MOST_UNITS / 8); /* elements are counted */
        if (!sides_make(e, group, first, &n, &one->cast)) {
            return refuse(error);
        }
        extent x = extent_of(how, first * group, 1);
        one->plane = (uint32_t)x.plane[0];
        one->row = (uint32_t)x.row[0];
        one->column = (uint32_t)x.column[0];
        one->cast.n_units = (uint32_t)n;
        FY_TRY(fy_cuda_launch(queue->device, queue->stream,
                              group == 8 ? FY_NUMBER_OF_fy_cuda_scaled_8
                                         : FY_NUMBER_OF_fy_cuda_scaled_1,
                              one, n, 1, error));
        queue->n_issued++;
    }
    return FERRY_OK;
}

static ferry_status cast_scaled(fy_exec_queue *queue, const fy_cast *how, fy_cuda_scaled *one,
                                const ends *e, const fy_cuda_scratch *scratch, uint64_t first,
                                uint64_t n, ferry_error *error)
{
    bool shares = share(how, &how->to_scales) && share(how, &how->from_scales);
    one->n_rows = fy_cuda_divisor_of((uint32_t)how->n_rows);
    one->n_columns = fy_cuda_divisor_of((uint32_t)how->n_columns);
    for (uint64_t here; n > 0; first += here, n -= here) {
        here = count_with_room(how, first, n);
        extent x = extent_of(how, first, here);
        FY_TRY(
            lower_scales(queue, how, &how->to_scales, &x, scratch->scales, &one->to_scales, error));
        FY_TRY(lower_scales(queue, how, &how->from_scales, &x,
                            scratch->scales + FY_CUDA_SCALES_BYTES, &one->from_scales, error));
        uint64_t n_groups = shares && fit(e, 8, first) ? here / 8 : 0;
        FY_TRY(scaled_units(queue, how, one, e, 8, first / 8, n_groups, error));
        FY_TRY(
            scaled_units(queue, how, one, e, 1, first + 8 * n_groups, here - 8 * n_groups, error));
    }
    return FERRY_OK;
}

/*
 * Which way a cast goes
 */

static uint32_t changes_of(const fy_cast *how)
{
    return (how->overflow == FY_OVERFLOW_SATURATE ? FY_CUDA_SATURATES : 0) |
           (how->overflow == FY_OVERFLOW_CODES ? FY_CUDA_CODES : 0) |
           (how->has_plain_nans ? FY_CUDA_PLAIN_NANS : 0) |
           (fy_cast_multiplies(how) ? FY_CUDA_MULTIPLIES : 0) | (how->add != 0 ? FY_CUDA_ADDS : 0);
}

/* Numbers may lie anywhere in memory; those of devices at multiples of their size. */
static bool is_aligned(fy_cuda_place place, uint64_t element_bytes)
{
    return fy_cuda_unit_of(place) % element_bytes == 0;
}

/* What a scale makes of infinities and zeros may be NaN, of which only plain ones are the same. */
static bool has_known_nans(const fy_cast *how)
{
    return !has_scales(&how->from_scales) || how->has_plain_nans;
}

/* Codes are scales of what is multiplied; what is half a byte has none. */
static bool has_known_scales(const fy_cast *how)
{
    const fy_cast_scales *from = &how->from_scales;
    bool is_half = how->from_kind == FERRY_F4;
    return how->to_scales.codes == NULL && (from->codes == NULL || from->block[0] != 0) &&
           !(is_half && (has_scales(from) || has_scales(&how->to_scales)));
}

ferry_status fy_cuda_cast_sides(fy_exec_queue *queue, const fy_cast *how,
                                const fy_cuda_side_of sides[2], uint64_t first, uint64_t n,
                                ferry_error *error)
{
    fy_cuda_scratch scratch;
    fy_cuda_scaled one = {
        .cast = {.changes = changes_of(how), .scale = how->scale, .add = how->add}};
    uint64_t to_bytes = fy_cuda_element_bytes(how->to_kind);
    const ends e = {.to = {sides[0].area, (uint64_t)(uintptr_t)sides[0].base},
                    .from = {sides[1].area, (uint64_t)(uintptr_t)sides[1].base},
                    .to_bytes = fy_cast_numbers(how) * to_bytes,
                    .from_bytes = fy_cuda_element_bytes(how->from_kind),
                    .is_half = how->from_kind == FERRY_F4};
    bool is_scaled = has_scales(&how->from_scales) || has_scales(&how->to_scales);
    bool changes = is_scaled || (one.cast.changes & (FY_CUDA_MULTIPLIES | FY_CUDA_ADDS)) != 0;
    bool by_kernel = n > 0 && sides[0].is_reached && sides[1].is_reached && has_known_scales(how) &&
                     (how->from_kind != how->to_kind || changes) &&
                     (e.is_half || number_of(how->from_kind, &one.cast.from_type)) &&
                     number_of(how->to_kind, &one.cast.to_type) && is_aligned(e.to, to_bytes) &&
                     is_aligned(e.from, e.from_bytes);
    if (by_kernel && !is_scaled) {
        return cast_plain(queue, &one.cast, &e, first, n, error);
    }
    if (by_kernel && has_known_nans(how) && are_countable(how, first + n) &&
        fy_cuda_scratch_of(queue, &scratch)) {
        return cast_scaled(queue, how, &one, &e, &scratch, first, n, error);
    }
    return fy_cuda_stage_cast(queue, how, &sides[0], &sides[1], first, n, error);
}
