/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include <ferry/pack.h>

#include "base/checked.h"
#include "base/options.h"
#include "exec/box.h"
#include "exec/cast.h"
#include "exec/now.h"
#include "exec/queue.h"
#include "exec/team.h"
#include "host/copy.h"

#include <ferry/dtype.h>

#include <string.h>

enum {
    LEAST_PART = 256 << 10, /* bytes that are worth another thread */
    PARTS_OF_THREAD = 8     /* so that threads of unequal speed end together */
};

/* A call: units are bytes, or elements where it casts. */
typedef struct job {
    fy_area to, from;
    char *to_base;
    const char *from_base;
    bool casts;
    fy_cast cast;
    uint64_t n_units, part_units;
} job;

static void copy_part(void *context, uint64_t part)
{
    const job *j = context;
    uint64_t first = part * j->part_units;
    uint64_t n = fy_min(j->part_units, j->n_units - first);
    if (j->casts) {
        fy_area_cast(&j->cast, &j->to, j->to_base, &j->from, j->from_base, first, n);
    } else {
        fy_area_copy(&j->to, j->to_base, &j->from, j->from_base, first, n);
    }
}

static ferry_status run(job *j, uint32_t n_threads, ferry_error *error)
{
    uint64_t bytes = fy_max(j->to.bytes, j->from.bytes);
    /* A thread alone takes all at once: a part of what is permuted is short runs of the source. */
    uint64_t n_parts = fy_min(fy_ceil_div(bytes, LEAST_PART),
                              n_threads == 1 ? 1 : (uint64_t)n_threads * PARTS_OF_THREAD);
    fy_team *team = NULL;
    if (n_parts == 0) {
        return FERRY_OK;
    }
    ferry_status status = fy_team_create((uint32_t)fy_min(n_threads, n_parts), &team, error);
    if (status == FERRY_OK) {
        j->part_units = fy_ceil_div(j->n_units, n_parts);
        fy_team_run(team, fy_ceil_div(j->n_units, j->part_units), copy_part, j);
    }
    fy_team_destroy(team);
    return status;
}

/* ---- checks ---- */

static ferry_status check_kind(const char *side, const ferry_box *box, uint32_t kind,
                               const ferry_scales *scales, ferry_error *error)
{
    if (box->element_bytes != fy_cast_element_bytes(kind)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the box that is copied %s has elements of %llu bytes, but its type has %zu",
                       side, (unsigned long long)box->element_bytes, fy_cast_element_bytes(kind));
    }
    if (scales->values != NULL && kind != FERRY_F8E4M3 && kind != FERRY_F8E5M2) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "only f8e4m3 and f8e5m2 have scales; give none for the side copied %s",
                       side);
    }
    return FERRY_OK;
}

static bool same_lengths(const ferry_box *a, const ferry_box *b)
{
    return a->n_dims == b->n_dims &&
           memcmp(a->length, b->length, a->n_dims * sizeof *a->length) == 0;
}

/* How many blocks lie side by side from `first` on; false if a number overflows. */
static bool count_blocks(uint64_t first, uint64_t n, uint64_t block, uint64_t *n_out)
{
    uint64_t end;
    if (!fy_add(first, n, &end)) {
        return false;
    }
    *n_out = fy_ceil_div(end, block);
    return true;
}

/* Fills in what the scales leave to us, and checks that all that will be read are there. */
static ferry_status check_scales(const char *side, const job *j, const ferry_scales *given,
                                 fy_cast_scales *scales, ferry_error *error)
{
    uint64_t rows = 0, columns = 0, planes = j->n_units / j->cast.n_rows / j->cast.n_columns;
    uint64_t last_plane, last_row, last;
    *scales = (fy_cast_scales){.values = given->values,
                               .block = {given->block_rows, given->block_columns},
                               .origin = {given->first_row, given->first_column},
                               .pitch = given->pitch,
                               .plane = given->plane};
    if (given->values == NULL || j->n_units == 0) {
        return FERRY_OK;
    }
    if ((given->block_rows == 0) != (given->block_columns == 0)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "scales of the side copied %s are of blocks of %llu x %llu", side,
                       (unsigned long long)given->block_rows,
                       (unsigned long long)given->block_columns);
    }
    bool fits = true;
    last = 0;
    if (given->block_rows != 0) {
        fits = count_blocks(given->first_row, j->cast.n_rows, given->block_rows, &rows) &&
               count_blocks(given->first_column, j->cast.n_columns, given->block_columns, &columns);
        scales->pitch = given->pitch != 0 ? given->pitch : columns;
        fits = fits && (given->plane != 0 || fy_mul(rows, scales->pitch, &scales->plane)) &&
               fy_mul(planes - 1, scales->plane, &last_plane) &&
               fy_mul(rows - 1, scales->pitch, &last_row) && fy_add(last_plane, last_row, &last) &&
               fy_add(last, columns - 1, &last);
    }
    if (!fits || last >= given->n_values) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the box needs more scales of the side copied %s than the %llu given: %llu "
                       "matrices of %llu x %llu blocks",
                       side, (unsigned long long)given->n_values, (unsigned long long)planes,
                       (unsigned long long)fy_max(rows, 1), (unsigned long long)fy_max(columns, 1));
    }
    return FERRY_OK;
}

/* The matrices that scales are of are the last two dims of `from`. */
static ferry_status check_cast(job *j, const ferry_box *to, const ferry_box *from,
                               const ferry_copy_options *o, ferry_error *error)
{
    bool has_blocks = (o->from_scales.values != NULL && o->from_scales.block_rows != 0) ||
                      (o->to_scales.values != NULL && o->to_scales.block_rows != 0);
    if (!fy_cast_exists(o->from_kind, o->to_kind)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "there is no cast of kind %u to kind %u; f32, f16, bf16, f8e4m3 and f8e5m2 "
                       "become one another, and f64 becomes f32",
                       o->from_kind, o->to_kind);
    }
    FY_TRY(check_kind("to", to, o->to_kind, &o->to_scales, error));
    FY_TRY(check_kind("from", from, o->from_kind, &o->from_scales, error));
    if (has_blocks && !same_lengths(to, from)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "scales by block need both boxes to have the same lengths");
    }
    uint32_t n = from->n_dims;
    j->casts = true;
    j->n_units = j->from.bytes / from->element_bytes;
    j->cast.from_kind = o->from_kind;
    j->cast.to_kind = o->to_kind;
    j->cast.overflow = fy_cast_usual_overflow(o->to_kind);
    j->cast.n_rows = n < 2 || j->n_units == 0 ? 1 : from->length[n - 2];
    j->cast.n_columns = n < 1 || j->n_units == 0 ? 1 : from->length[n - 1];
    FY_TRY(check_scales("from", j, &o->from_scales, &j->cast.from_scales, error));
    return check_scales("to", j, &o->to_scales, &j->cast.to_scales, error);
}

/* Only of memory that both take without a gap can be said that they share some of it. */
static ferry_status check_apart(const job *j, ferry_error *error)
{
    uintptr_t to = (uintptr_t)j->to_base + j->to.offset;
    uintptr_t from = (uintptr_t)j->from_base + j->from.offset;
    if (j->to.n_dims + j->from.n_dims == 0 && to < from + j->from.bytes &&
        from < to + j->to.bytes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the boxes overlap: %llu bytes at %p are to go to %p",
                       (unsigned long long)j->from.bytes, (void *)from, (void *)to);
    }
    return FERRY_OK;
}

static ferry_status check_equal(const job *j, const ferry_box *to, const ferry_box *from,
                                ferry_error *error)
{
    uint64_t to_n = j->casts ? j->to.bytes / to->element_bytes : j->to.bytes;
    uint64_t from_n = j->casts ? j->from.bytes / from->element_bytes : j->from.bytes;
    if (to_n != from_n) {
        return fy_fail(
            error, FERRY_ERR_INVALID_INPUT, "a box of %llu %s cannot be copied to one of %llu",
            (unsigned long long)from_n, j->casts ? "elements" : "bytes", (unsigned long long)to_n);
    }
    return FERRY_OK;
}

/* Both boxes are in memory of the host, and so is the order. */
static ferry_status copy_here(job *j, const ferry_copy_options *o, ferry_error *error)
{
    if (o->hash_out != NULL) {
        *o->hash_out = fy_area_copy_hash(&j->to, j->to_base, &j->from, j->from_base, 0, j->n_units);
        fy_copy_fence();
        return FERRY_OK;
    }
    return run(j, o->n_threads == 0 ? 1 : o->n_threads, error);
}

static ferry_status copy_there(const job *j, const fy_now_side *to, const fy_now_side *from,
                               const ferry_copy_options *o, ferry_error *error)
{
    return j->casts ? fy_cast_now(&j->cast, to, from, 0, j->n_units, error)
                    : fy_copy_now(to, from, o->hash_out, error);
}

/* A verb of the caller's queue: both sides are within its reach. */
static ferry_status enqueue(const job *j, const fy_now_side *to, const fy_now_side *from,
                            const ferry_copy_options *o, fy_queue *queue, ferry_error *error)
{
    const fy_exec *exec;
    FY_TRY(fy_queue_check_space(queue, to->space, "copy", error));
    FY_TRY(fy_queue_check_space(queue, from->space, "copy", error));
    fy_exec_queue *own = fy_queue_begin(queue, &exec);
    ferry_status status = j->casts ? exec->cast(own, &j->cast, to->area, to->base, from->area,
                                                from->base, 0, j->n_units, NULL, error)
                                   : exec->copy(own, to->area, to->base, from->area, from->base, 0,
                                                j->n_units, o->hash_out, error);
    fy_queue_end(queue);
    return status;
}

static ferry_status copy_box(job *j, const ferry_box *to, const ferry_box *from,
                             const ferry_copy_options *o, fy_queue *queue, ferry_error *error)
{
    fy_now_side target = {fy_space_of(&to->buffer), &j->to, j->to_base};
    fy_now_side source = {fy_space_of(&from->buffer), &j->from, from->buffer.base};
    if (!fy_queue_is_host(queue)) {
        return enqueue(j, &target, &source, o, queue, error);
    }
    return fy_is_host(target.space) && fy_is_host(source.space)
               ? copy_here(j, o, error)
               : copy_there(j, &target, &source, o, error);
}

ferry_status ferry_box_copy(const ferry_box *to, const ferry_box *from,
                            const ferry_copy_options *options, ferry_queue *handle,
                            ferry_error *error)
{
    ferry_copy_options o;
    ferry_box own_to, own_from;
    job j = {.casts = false};
    ferry_status status = fy_take_copy_options(options, &o, error);
    if (status == FERRY_OK) {
        status = fy_box_take(to, &own_to, &j.to, error);
        to = &own_to;
    }
    if (status == FERRY_OK) {
        status = fy_box_take(from, &own_from, &j.from, error);
        from = &own_from;
    }
    if (status == FERRY_OK && (o.from_kind != 0 || o.to_kind != 0)) {
        status = check_cast(&j, to, from, &o, error);
    }
    FY_THEN(status, check_equal(&j, to, from, error));
    if (status != FERRY_OK) {
        return status;
    }
    j.n_units = j.casts ? j.n_units : j.from.bytes;
    j.to_base = to->buffer.base;
    j.from_base = from->buffer.base;
    if (o.hash_out != NULL && (j.casts || o.n_threads > 1)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a copy is hashed by one thread and without a cast, not %s",
                       j.casts ? "with one" : "by several");
    }
    status = check_apart(&j, error);
    fy_queue *queue = NULL;
    FY_THEN(status, fy_queue_enter(handle, "copy", &queue, error));
    if (status == FERRY_OK) {
        status = copy_box(&j, to, from, &o, queue, error);
        fy_queue_leave(queue);
    }
    return status;
}
