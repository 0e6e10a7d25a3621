/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/tally.h"

#include "convert/cast.h"
#include "exec/cast.h"

#include <math.h>
#include <string.h>

bool fy_tally_takes(uint32_t kind)
{
    return kind >= FERRY_F64 && kind <= FERRY_F4;
}

/* ---- types that no cast widens ---- */

/* A power of two from 2^-127 on; all ones are NaN. */
static void widen_f8e8m0(float *to, const uint8_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        to[i] = from[i] == 255 ? NAN : ldexpf(1, (int)from[i] - 127);
    }
}

static void widen(uint32_t kind, const void *elements, size_t n, float *to)
{
    if (kind == FERRY_F8E8M0) {
        widen_f8e8m0(to, elements, n);
        return;
    }
    if (kind == FERRY_F4) { /* of which a cast takes no single one */
        fy_widen(fy_convert_kernels_here(), kind, to, elements, n);
        return;
    }
    fy_cast cast = {.from_kind = kind, .to_kind = FERRY_F32, .n_rows = 1, .n_columns = n};
    fy_area in = fy_area_flat(0, n * fy_cast_element_bytes(kind));
    fy_area out = fy_area_flat(0, n * sizeof *to);
    fy_area_cast(&cast, &out, to, &in, elements, 0, n);
}

/* ---- counting ---- */

/* There are fewer than 2^64 elements: neither sum comes near to the largest double. */
static const double BIG = 0x1p512;

static inline void add(fy_tally *t, double value)
{
    if (isfinite(value)) {
        bool is_first = t->n_elements == t->n_nan + t->n_infinite;
        t->least = is_first || value < t->least ? value : t->least;
        t->most = is_first || value > t->most ? value : t->most;
        if (fabs(value) < BIG) {
            t->sum += value;
        } else {
            t->sum_of_big += value * 0x1p-64;
        }
    } else if (isnan(value)) {
        t->n_nan++;
    } else {
        t->n_infinite++;
    }
    t->n_elements++;
}

double fy_tally_mean(const fy_tally *tally)
{
    double n = (double)(tally->n_elements - tally->n_nan - tally->n_infinite);
    return n > 0 ? tally->sum / n + tally->sum_of_big / n * 0x1p64 : 0;
}

static void add_f64(fy_tally *tally, const char *elements, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double value;
        memcpy(&value, elements + i * sizeof value, sizeof value);
        add(tally, value);
    }
}

static void add_f32(fy_tally *tally, const char *elements, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, elements + i * sizeof value, sizeof value);
        add(tally, (double)value);
    }
}

void fy_tally_add(fy_tally *tally, uint32_t kind, const void *elements, size_t n, float *room)
{
    if (kind == FERRY_F64) {
        add_f64(tally, elements, n);
    } else if (kind == FERRY_F32) {
        add_f32(tally, elements, n);
    } else {
        widen(kind, elements, n, room);
        add_f32(tally, (const char *)room, n);
    }
}
