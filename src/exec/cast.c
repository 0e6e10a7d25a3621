/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/cast.h"

#include "base/checked.h"
#include "base/hash.h"
#include "convert/cast.h"
#include "convert/matrix.h"
#include "exec/walk.h"
#include "host/copy.h"

#include <string.h>

enum {
    PIECE =
        1024, /* elements that are cast at once: all that they need stays in the fastest cache */
    LINE = 64,
    SHORT = 256,         /* runs of fewer elements are gathered first, and scattered at the end, */
    BATCH_BYTES = 32768, /* so many bytes at once */
};

/* What becomes of the elements that were cast. */
typedef enum use { STREAMS, CACHED, UPDATES, HASHES_ONLY } use;

typedef struct job {
    const fy_cast *cast;
    const fy_convert_kernels *kernels;
    size_t to_bytes, from_bytes; /* of an element */
    use use;
    fy_hasher *hasher; /* of what they have become; NULL: nobody wants to know */
    uint64_t written;  /* bytes */
} job;

/* Where the next element is in its matrix, and which matrix. */
typedef struct place {
    uint64_t plane, row, column;
} place;

static place place_of(const fy_cast *cast, uint64_t element)
{
    uint64_t row = element / cast->n_columns;
    return (place){.plane = row / cast->n_rows,
                   .row = row % cast->n_rows,
                   .column = element % cast->n_columns};
}

/* Over elements that share all their scales: if those go on beyond a row, the place is of no use.
 */
static void step(const fy_cast *cast, place *p, uint64_t n)
{
    p->column += n;
    if (p->column == cast->n_columns) {
        p->column = 0;
        p->row = p->row + 1 == cast->n_rows ? 0 : p->row + 1;
        p->plane += p->row == 0;
    }
}

/* Where the blocks of a matrix begin. */
static uint64_t plane_at(const fy_cast_scales *s, uint64_t plane)
{
    uint64_t at = s->n_plane_dims == 0 ? plane * s->plane : 0;
    for (uint32_t d = s->n_plane_dims; d-- > 0; plane /= s->plane_length[d]) {
        at += plane % s->plane_length[d] * s->plane_stride[d];
    }
    return at;
}

/* The scale of an element, and how many from there on share it: no more than *n_inout. */
static float scale_at(const fy_cast *cast, const fy_cast_scales *s, place p, uint64_t *n_inout)
{
    if (s->values == NULL) {
        return 1;
    }
    if (s->block[0] == 0) {
        return s->values[0];
    }
    uint64_t column = p.column + s->origin[1];
    uint64_t inside = column % s->block[1];
    uint64_t row = (p.row + s->origin[0]) / s->block[0];
    *n_inout = fy_min(fy_min(*n_inout, s->block[1] - inside), cast->n_columns - p.column);
    return s->values[plane_at(s, p.plane) + row * s->pitch + column / s->block[1]];
}

static void scale_all(const job *j, float *values, size_t n, place p)
{
    const fy_cast *cast = j->cast;
    const fy_cast_scales *from = &cast->from_scales, *to = &cast->to_scales;
    for (uint64_t i = 0, same; i < n; i += same) {
        same = n - i;
        float from_scale = scale_at(cast, from, p, &same);
        float to_scale = scale_at(cast, to, p, &same);
        if (from->values != NULL) {
            j->kernels->multiply(values + i, (size_t)same, from_scale);
        }
        if (to->values != NULL) {
            j->kernels->divide(values + i, (size_t)same, to_scale);
        }
        step(cast, &p, same);
    }
}

/* Elements side by side, at most a piece, from and to any addresses. */
static void cast_piece(const job *j, char *to, const char *from, size_t n, uint64_t element)
{
    float values[PIECE];
    const fy_cast *cast = j->cast;
    const fy_convert_kernels *k = j->kernels;
    bool has_scales = cast->from_scales.values != NULL || cast->to_scales.values != NULL;
    fy_widen(k, cast->from_kind, values, from, n);
    if (has_scales) {
        scale_all(j, values, n, place_of(cast, element));
    }
    if (fy_cast_multiplies(cast)) {
        k->multiply(values, n, cast->scale);
    }
    if (cast->add != 0) {
        k->add(values, n, cast->add);
    }
    fy_narrow(k, cast->to_kind, cast->overflow, to, values, n);
}

static void cast_run(const job *j, char *to, const char *from, uint64_t n, uint64_t element)
{
    for (uint64_t at = 0; at < n; at += PIECE) {
        cast_piece(j, to + at * j->to_bytes, from + at * j->from_bytes,
                   (size_t)fy_min(n - at, PIECE), element + at);
    }
}

/*
 * Long runs
 */

/* A piece is read, worked on and written in turn: memory has the next one ready meanwhile. */
static void ask_for(const char *next, uint64_t n_bytes)
{
    for (uint64_t at = 0; at < n_bytes; at += LINE) {
        __builtin_prefetch(next + at);
    }
}

static void leave_piece(job *j, char *to, const char *out, size_t n_bytes)
{
    if (j->hasher != NULL) {
        fy_hasher_update(j->hasher, out, n_bytes);
    }
    if (j->use == HASHES_ONLY || (j->use == UPDATES && memcmp(to, out, n_bytes) == 0)) {
        return;
    }
    if (j->use == STREAMS) {
        fy_copy_unfenced(to, out, n_bytes);
    } else {
        memcpy(to, out, n_bytes);
    }
    j->written += n_bytes;
}

static void cast_long(job *j, const fy_area *to, char *to_base, const fy_area *from,
                      const char *from_base, uint64_t first, uint64_t n)
{
    _Alignas(64) char out[PIECE * sizeof(float)];
    bool goes_straight = j->use == CACHED && j->hasher == NULL;
    fy_area_walk t = fy_area_walk_of(to, first * j->to_bytes, n * j->to_bytes);
    fy_area_walk f = fy_area_walk_of(from, first * j->from_bytes, n * j->from_bytes);
    for (uint64_t element = first, end = first + n; element < end;) {
        uint64_t here = fy_min(t.n_here / j->to_bytes, f.n_here / j->from_bytes);
        here = fy_min(fy_min(here, end - element), PIECE);
        uint64_t f_bytes = here * j->from_bytes, t_bytes = here * j->to_bytes;
        ask_for(from_base + f.at + f_bytes, fy_min(f.n_here - f_bytes, f_bytes));
        cast_piece(j, goes_straight ? to_base + t.at : out, from_base + f.at, (size_t)here,
                   element);
        if (!goes_straight) {
            leave_piece(j, to_base + t.at, out, (size_t)t_bytes);
        }
        fy_walk_take(&t, t_bytes);
        fy_walk_take(&f, f_bytes);
        element += here;
    }
}

/*
 * Short ones: copies know how to gather them, and to scatter them again
 */

static void leave_batch(job *j, const fy_area *to, char *to_base, const char *out, uint64_t first,
                        uint64_t n_bytes)
{
    fy_area flat = fy_area_flat(0, to->bytes); /* copies find the transposes of areas of one size */
    const void *base = (const void *)((uintptr_t)out - first);
    if (j->hasher != NULL) {
        fy_hasher_update(j->hasher, out, (size_t)n_bytes);
    }
    switch (j->use) {
    case STREAMS:
        fy_area_copy(to, to_base, &flat, base, first, n_bytes);
        break;
    case CACHED:
        fy_area_copy_cached(to, to_base, &flat, base, first, n_bytes);
        break;
    case UPDATES:
        j->written += fy_area_update(to, to_base, &flat, base, first, n_bytes);
        break;
    default:
        break;
    }
}

static void cast_short(job *j, const fy_area *to, char *to_base, const fy_area *from,
                       const char *from_base, uint64_t first, uint64_t n)
{
    _Alignas(64) char in[BATCH_BYTES], out[BATCH_BYTES];
    uint64_t most = BATCH_BYTES / fy_max(j->from_bytes, j->to_bytes);
    for (uint64_t element = first, here; element < first + n; element += here) {
        here = fy_min(first + n - element, most);
        fy_area_pack_cached(in, from, from_base, element * j->from_bytes, here * j->from_bytes);
        cast_run(j, out, in, here, element);
        leave_batch(j, to, to_base, out, element * j->to_bytes, here * j->to_bytes);
    }
}

/* All of the numbers are the same, whatever the thread does to its rounding. */
static void run(job *j, const fy_area *to, void *to_base, const fy_area *from,
                const void *from_base, uint64_t first, uint64_t n)
{
    fenv_t before = fy_plain_arithmetic();
    j->kernels = fy_convert_kernels_here();
    j->to_bytes = fy_cast_element_bytes(j->cast->to_kind);
    j->from_bytes = fy_cast_element_bytes(j->cast->from_kind);
    fy_area flat = fy_area_flat(0, (first + n) * j->to_bytes); /* of which nothing is touched */
    const fy_area *target = to != NULL ? to : &flat;
    uint64_t shortest = fy_min(target->run_bytes / j->to_bytes, from->run_bytes / j->from_bytes);
    bool is_long = shortest >= SHORT || (target->n_dims == 0 && from->n_dims == 0);
    (is_long ? cast_long : cast_short)(j, target, to_base, from, from_base, first, n);
    (void)fesetenv(&before);
}

void fy_area_cast(const fy_cast *cast, const fy_area *to, void *to_base, const fy_area *from,
                  const void *from_base, uint64_t first, uint64_t n)
{
    job j = {.cast = cast, .use = STREAMS};
    run(&j, to, to_base, from, from_base, first, n);
}

void fy_area_cast_cached(const fy_cast *cast, const fy_area *to, void *to_base, const fy_area *from,
                         const void *from_base, uint64_t first, uint64_t n)
{
    job j = {.cast = cast, .use = CACHED};
    run(&j, to, to_base, from, from_base, first, n);
}

uint64_t fy_area_cast_hash(const fy_cast *cast, const fy_area *to, void *to_base,
                           const fy_area *from, const void *from_base, uint64_t first, uint64_t n)
{
    fy_hasher hasher;
    job j = {.cast = cast, .use = to != NULL ? STREAMS : HASHES_ONLY, .hasher = &hasher};
    fy_hasher_begin(&hasher);
    run(&j, to, to_base, from, from_base, first, n);
    return fy_hasher_end(&hasher);
}

uint64_t fy_area_cast_update(const fy_cast *cast, const fy_area *to, void *to_base,
                             const fy_area *from, const void *from_base, uint64_t first, uint64_t n)
{
    job j = {.cast = cast, .use = UPDATES};
    run(&j, to, to_base, from, from_base, first, n);
    return j.written;
}
