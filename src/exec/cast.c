/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/cast.h"

#include "base/checked.h"
#include "convert/cast.h"
#include "exec/walk.h"
#include "host/copy.h"

/* Elements that are cast at once: all that a piece needs stays in the fastest cache. */
enum { PIECE = 1024, LINE = 64 };

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
    return s->values[p.plane * s->plane + row * s->pitch + column / s->block[1]];
}

static void scale_all(const fy_cast *cast, const fy_convert_kernels *k, float *values, size_t n,
                      place p)
{
    const fy_cast_scales *from = &cast->from_scales, *to = &cast->to_scales;
    for (uint64_t i = 0, same; i < n; i += same) {
        same = n - i;
        float from_scale = scale_at(cast, from, p, &same);
        float to_scale = scale_at(cast, to, p, &same);
        if (from->values != NULL) {
            k->multiply(values + i, (size_t)same, from_scale);
        }
        if (to->values != NULL) {
            k->divide(values + i, (size_t)same, to_scale);
        }
        step(cast, &p, same);
    }
}

/* Elements side by side: at most a piece. */
static void cast_piece(const fy_cast *cast, const fy_convert_kernels *k, char *to, const char *from,
                       size_t n, uint64_t element)
{
    float values[PIECE];
    _Alignas(64) char out[PIECE * sizeof(float)];
    size_t to_bytes = fy_cast_element_bytes(cast->to_kind);
    bool is_f8 = to_bytes == 1;
    const fy_cast_scales *fs = &cast->from_scales, *ts = &cast->to_scales;
    fy_widen(k, cast->from_kind, values, from, n);
    if (fs->values != NULL || ts->values != NULL) {
        scale_all(cast, k, values, n, place_of(cast, element));
    }
    fy_narrow(k, cast->to_kind, is_f8 ? FY_OVERFLOW_SATURATE : FY_OVERFLOW_PLAIN, out, values, n);
    fy_copy_unfenced(to, out, n * to_bytes);
}

/* A piece is read, worked on and written in turn: memory has the next one ready meanwhile. */
static void ask_for(const char *next, uint64_t n_bytes)
{
    for (uint64_t at = 0; at < n_bytes; at += LINE) {
        __builtin_prefetch(next + at);
    }
}

void fy_area_cast(const fy_cast *cast, const fy_area *to, void *to_base, const fy_area *from,
                  const void *from_base, uint64_t first, uint64_t n)
{
    uint64_t to_bytes = fy_cast_element_bytes(cast->to_kind);
    uint64_t from_bytes = fy_cast_element_bytes(cast->from_kind);
    fy_area_walk t = fy_area_walk_of(to, first * to_bytes, n * to_bytes);
    fy_area_walk f = fy_area_walk_of(from, first * from_bytes, n * from_bytes);
    const fy_convert_kernels *k = fy_convert_kernels_here();
    for (uint64_t element = first, end = first + n; element < end;) {
        uint64_t here = fy_min(t.n_here / to_bytes, f.n_here / from_bytes);
        here = fy_min(fy_min(here, end - element), PIECE);
        ask_for((const char *)from_base + f.at + here * from_bytes,
                fy_min(f.n_here - here * from_bytes, here * from_bytes));
        cast_piece(cast, k, (char *)to_base + t.at, (const char *)from_base + f.at, (size_t)here,
                   element);
        fy_walk_take(&t, here * to_bytes);
        fy_walk_take(&f, here * from_bytes);
        element += here;
    }
}
