/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/cast.h"

#include "base/checked.h"
#include "base/hash.h"
#include "convert/cast.h"
#include "convert/matrix.h"
#include "convert/scale.h"
#include "exec/loops.h"
#include "exec/walk.h"
#include "host/copy.h"

#include <string.h>

enum {
    PIECE = 1024, /* numbers that are cast at once: all that they need stays in the fastest cache */
    LINE = 64,
    SHORT = 256,         /* runs of fewer elements are gathered first, and scattered at the end, */
    BATCH_BYTES = 32768, /* so many bytes at once */
    TILE_BYTES = 256,    /* of a tile's rows: several lines that it fills, whatever their begin */
    HASHED_AT_ONCE = 65536, /* elements that are still in the cache when they are hashed */
};

/* What becomes of the elements that were cast. */
typedef enum use { STREAMS, CACHED, UPDATES, HASHES_ONLY } use;

typedef struct job {
    const fy_cast *cast;
    const fy_convert_kernels *kernels;
    size_t to_bytes, from_bytes; /* of an element */
    uint64_t numbers, piece;     /* that an element is; and elements that are cast at once */
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

/* Within a row, or to its end. */
static void step(const fy_cast *cast, place *p, uint64_t n)
{
    p->column += n;
    if (p->column == cast->n_columns) {
        p->column = 0;
        p->row = p->row + 1 == cast->n_rows ? 0 : p->row + 1;
        p->plane += p->row == 0;
    }
}

/* What lies so far apart for each index of the dims of matrices. */
static uint64_t plane_at(const fy_cast_scales *s, const uint64_t *stride, uint64_t plane)
{
    uint64_t at = 0;
    for (uint32_t d = s->n_plane_dims; d-- > 0; plane /= s->plane_length[d]) {
        at += plane % s->plane_length[d] * stride[d];
    }
    return at;
}

static bool has_scales(const fy_cast_scales *s)
{
    return s->values != NULL || s->powers != NULL || s->codes != NULL;
}

/* Scales of blocks side by side in their row: numbers first, first + step, ... of what is stored.
 */
static void list_scales(const job *j, const fy_cast_scales *s, uint64_t first, uint64_t step,
                        size_t n, float *scales)
{
    unsigned char codes[PIECE];
    for (size_t i = 0; i < n; i++) {
        uint64_t number = first + i * step;
        if (s->values != NULL) {
            scales[i] = s->values[number];
        } else if (s->powers != NULL) {
            scales[i] = fy_scale_of_power(s->powers[number]);
        } else {
            codes[i] = s->codes[number];
        }
    }
    if (s->codes != NULL) {
        fy_widen(j->kernels, FERRY_F8E4M3, scales, codes, n);
    }
}

/* Those of the blocks from a place on; of a matrix that has a scale too both are one factor, which
 * is rounded. */
static void list_factors(const job *j, const fy_cast_scales *s, place p, size_t n, float *factors)
{
    uint64_t row = (p.row + s->origin[0]) / s->block[0];
    uint64_t column = (p.column + s->origin[1]) / s->block[1];
    uint64_t step = s->step == 0 ? 1 : s->step;
    uint64_t plane =
        s->n_plane_dims == 0 ? p.plane * s->plane : plane_at(s, s->plane_stride, p.plane);
    list_scales(j, s, plane + row * s->pitch + column * step, step, n, factors);
    if (s->codes != NULL) {
        float of_matrix = s->of_matrices[plane_at(s, s->matrix_stride, p.plane)];
        j->kernels->multiply(factors, n, of_matrix);
    }
}

/* Row by row; where a row begins inside a block, the rest of that is a block by itself. */
static void scale_rows(const job *j, const fy_cast_scales *s, fy_scale_kernel *by, float *values,
                       uint64_t n, place p)
{
    float factors[PIECE];
    for (uint64_t i = 0, here; i < n; i += here) {
        here = fy_min(n - i, j->cast->n_columns - p.column);
        uint64_t first = fy_min(here, s->block[1] - (p.column + s->origin[1]) % s->block[1]);
        uint64_t n_blocks = 1 + fy_ceil_div(here - first, s->block[1]);
        list_factors(j, s, p, (size_t)n_blocks, factors);
        by(values + i, (size_t)first, (size_t)first, factors);
        by(values + i + first, (size_t)(here - first), (size_t)s->block[1], factors + 1);
        step(j->cast, &p, here);
    }
}

static void scale_all(const job *j, const fy_cast_scales *s, fy_scale_kernel *by, float *values,
                      size_t n, place p)
{
    float one;
    if (has_scales(s) && s->block[0] != 0) {
        scale_rows(j, s, by, values, n, p);
    } else if (has_scales(s)) {
        list_scales(j, s, 0, 1, 1, &one);
        by(values, n, n, &one);
    }
}

/* Elements side by side, at most a piece, from and to any addresses. */
static void cast_piece(const job *j, char *to, const char *from, uint64_t n_elements,
                       uint64_t element)
{
    float values[PIECE];
    const fy_cast *cast = j->cast;
    const fy_convert_kernels *k = j->kernels;
    size_t n = (size_t)(n_elements * j->numbers);
    fy_widen(k, cast->from_kind, values, from, n);
    if (has_scales(&cast->from_scales) || has_scales(&cast->to_scales)) {
        place p = place_of(cast, element);
        scale_all(j, &cast->from_scales, k->multiply_blocks, values, n, p);
        scale_all(j, &cast->to_scales, k->divide_blocks, values, n, p);
    }
    if (fy_cast_multiplies(cast)) {
        k->multiply(values, n, cast->scale);
    }
    if (cast->add != 0) {
        k->add(values, n, cast->add);
    }
    if (cast->has_plain_nans) {
        k->plain_nans(values, n);
    }
    fy_narrow(k, cast->to_kind, cast->overflow, to, values, n);
}

static void cast_run(const job *j, char *to, const char *from, uint64_t n, uint64_t element)
{
    for (uint64_t at = 0; at < n; at += j->piece) {
        cast_piece(j, to + at * j->to_bytes, from + at * j->from_bytes, fy_min(n - at, j->piece),
                   element + at);
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
        here = fy_min(fy_min(here, end - element), j->piece);
        uint64_t f_bytes = here * j->from_bytes, t_bytes = here * j->to_bytes;
        ask_for(from_base + f.at + f_bytes, fy_min(f.n_here - f_bytes, f_bytes));
        cast_piece(j, goes_straight ? to_base + t.at : out, from_base + f.at, here, element);
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

/*
 * Short ones of which memory has the dimensions in different orders: cast in tiles, so that a line
 * that is touched is used as a whole. They come in no order that places or hashes could follow.
 */

typedef struct tiles {
    job *job;
    char *to;
    const char *from;
    const fy_loops *box;
    uint32_t n_dims;
    uint32_t order[FERRY_MAX_DIMS]; /* dims of a tile's elements: the fastest has them side by side
                                       in `to`, the one before it in `from` */
    uint64_t tile[FERRY_MAX_DIMS];  /* lengths, as all below by dims of the box */
    uint64_t index[FERRY_MAX_DIMS];
} tiles;

static bool has_places(const fy_cast_scales *s)
{
    return has_scales(s) && s->block[0] != 0;
}

/* Puts the dimension that has a stride on one side behind those before `last`, which move up. */
static void put_last(tiles *t, uint32_t last, uint64_t stride, bool of_to)
{
    for (uint32_t k = 0; k < last; k++) {
        const fy_loop *its = &t->box->dims[t->order[k]];
        if (its->length > 1 && (of_to ? its->to : its->from) == stride) {
            uint32_t d = t->order[k];
            memmove(t->order + k, t->order + k + 1, (last - k) * sizeof *t->order);
            t->order[last] = d;
            return;
        }
    }
}

static void plan_tiles(tiles *t)
{
    const job *j = t->job;
    uint64_t room = BATCH_BYTES / fy_max(j->from_bytes, j->to_bytes);
    for (uint32_t d = 0; d < t->n_dims; d++) {
        t->order[d] = d;
    }
    put_last(t, t->n_dims - 1, j->from_bytes, false);
    put_last(t, t->n_dims - 1, j->to_bytes, true);
    for (uint32_t k = t->n_dims; k-- > 0;) {
        uint32_t d = t->order[k];
        uint64_t most = k == t->n_dims - 1 ? TILE_BYTES / j->to_bytes : room;
        t->tile[d] = fy_min(fy_min(room, most), t->box->dims[d].length);
        room /= t->tile[d];
    }
}

static void cast_tile(tiles *t)
{
    _Alignas(64) char in[BATCH_BYTES], out[BATCH_BYTES];
    job *j = t->job;
    uint64_t length[FERRY_MAX_DIMS] = {0}, to_stride[FERRY_MAX_DIMS] = {0},
             from_stride[FERRY_MAX_DIMS] = {0};
    uint64_t to = 0, from = 0, n = 1;
    for (uint32_t k = 0; k < t->n_dims; k++) {
        uint32_t d = t->order[k];
        const fy_loop *its = &t->box->dims[d];
        length[k] = fy_min(t->tile[d], its->length - t->index[d]);
        to_stride[k] = its->to;
        from_stride[k] = its->from;
        to += t->index[d] * its->to;
        from += t->index[d] * its->from;
        n *= length[k];
    }
    fy_area t_area = fy_area_of(to, j->to_bytes, t->n_dims, length, to_stride);
    fy_area f_area = fy_area_of(from, j->from_bytes, t->n_dims, length, from_stride);
    fy_area_pack_cached(in, &f_area, t->from, 0, n * j->from_bytes);
    cast_run(j, out, in, n, 0);
    leave_batch(j, &t_area, t->to, out, 0, n * j->to_bytes);
}

static bool next_tile(tiles *t)
{
    for (uint32_t k = t->n_dims; k-- > 0;) {
        uint32_t d = t->order[k];
        t->index[d] += t->tile[d];
        if (t->index[d] < t->box->dims[d].length) {
            return true;
        }
        t->index[d] = 0;
    }
    return false;
}

static void cast_box(void *context, const fy_loops *box, uint64_t to, uint64_t from)
{
    const tiles *range = context;
    tiles t = {.job = range->job,
               .to = range->to + to,
               .from = range->from + from,
               .box = box,
               .n_dims = box->n};
    plan_tiles(&t);
    do {
        cast_tile(&t);
    } while (next_tile(&t));
}

/* What is hashed lies side by side then: each piece is cast first, and hashed from the cache. */
static void cast_and_hash_in_tiles(const tiles *range, const fy_loops *loops, const char *to,
                                   uint64_t first, uint64_t n)
{
    const job *j = range->job;
    job own = *j;
    own.use = CACHED;
    own.hasher = NULL;
    tiles unhashed = *range;
    unhashed.job = &own;
    for (uint64_t at = 0, here; at < n; at += here) {
        here = fy_min(n - at, HASHED_AT_ONCE);
        fy_loops_visit(loops, first + at, here, cast_box, &unhashed);
        fy_hasher_update(j->hasher, to + (first + at) * j->to_bytes, (size_t)(here * j->to_bytes));
    }
}

/* False where elements must come in order, or have it in memory. */
static bool cast_in_tiles(job *j, const fy_area *to, char *to_base, const fy_area *from,
                          const char *from_base, uint64_t first, uint64_t n)
{
    fy_loops loops;
    tiles range = {.job = j, .to = to_base + to->offset, .from = from_base + from->offset};
    bool in_order = j->use == HASHES_ONLY || (j->hasher != NULL && to->n_dims != 0) ||
                    has_places(&j->cast->from_scales) || has_places(&j->cast->to_scales) ||
                    !(fy_area_is_permuted(to) || fy_area_is_permuted(from));
    if (in_order || n == 0 || !fy_loops_of(to, j->to_bytes, from, j->from_bytes, &loops) ||
        loops.n > FERRY_MAX_DIMS || loops.n == 0) {
        return false;
    }
    if (j->hasher != NULL) {
        cast_and_hash_in_tiles(&range, &loops, range.to, first, n);
    } else {
        fy_loops_visit(&loops, first, n, cast_box, &range);
    }
    return true;
}

/* All of the numbers are the same, whatever the thread does to its rounding. */
static void run(job *j, const fy_area *to, void *to_base, const fy_area *from,
                const void *from_base, uint64_t first, uint64_t n)
{
    fenv_t before = fy_plain_arithmetic();
    j->kernels = fy_convert_kernels_here();
    j->numbers = fy_cast_numbers(j->cast);
    j->piece = PIECE / j->numbers;
    j->to_bytes = fy_cast_to_bytes(j->cast);
    j->from_bytes = fy_cast_from_bytes(j->cast);
    fy_area flat = fy_area_flat(0, (first + n) * j->to_bytes); /* of which nothing is touched */
    const fy_area *target = to != NULL ? to : &flat;
    uint64_t shortest = fy_min(target->run_bytes / j->to_bytes, from->run_bytes / j->from_bytes);
    bool is_long = shortest >= SHORT || (target->n_dims == 0 && from->n_dims == 0);
    if (is_long) {
        cast_long(j, target, to_base, from, from_base, first, n);
    } else if (!cast_in_tiles(j, target, to_base, from, from_base, first, n)) {
        cast_short(j, target, to_base, from, from_base, first, n);
    }
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
