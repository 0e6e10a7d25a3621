/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts against a slow reference that knows of each type only what its codes are worth: the nearest
 * value is looked up in the list of all of them, and of two that are as near the even code is
 * taken.
 */
#include "exec/cast.h"
#include "host/copy.h"

#include "support/check.h"
#include "support/each_isa.h"
#include "support/random.h"

#include <ferry/dtype.h>

#include <math.h>
#include <stdlib.h>

/* How a type is laid out, and what it does with what is too large. */
typedef struct layout {
    const char *name;
    uint32_t kind;
    int exponent_bits, mantissa_bits;
    bool has_infinity; /* else only the code of all ones is NaN, and there is no infinity */
    bool saturates;
    uint32_t n_finite; /* positive codes, from 0 on, that are numbers; filled in */
    double *values;    /* of those and, where the next would be, one more */
} layout;

static layout layouts[] = {
    {"f16", FERRY_F16, 5, 10, true, false, 0, NULL},
    {"bf16", FERRY_BF16, 8, 7, true, false, 0, NULL},
    {"f8e4m3", FERRY_F8E4M3, 4, 3, false, true, 0, NULL},
    {"f8e5m2", FERRY_F8E5M2, 5, 2, true, true, 0, NULL},
    /* And the other way each. */
    {"f16, saturating", FERRY_F16, 5, 10, true, true, 0, NULL},
    {"bf16, saturating", FERRY_BF16, 8, 7, true, true, 0, NULL},
    {"f8e4m3, overflowing", FERRY_F8E4M3, 4, 3, false, false, 0, NULL},
    {"f8e5m2, overflowing", FERRY_F8E5M2, 5, 2, true, false, 0, NULL},
};

static int bits_of_kind(const layout *l)
{
    return 1 + l->exponent_bits + l->mantissa_bits;
}

static double value_of(const layout *l, uint32_t magnitude)
{
    int exponent = (int)(magnitude >> l->mantissa_bits);
    int mantissa = (int)(magnitude & ((1u << l->mantissa_bits) - 1));
    int bias = (1 << (l->exponent_bits - 1)) - 1;
    return exponent == 0
               ? ldexp(mantissa, 1 - bias - l->mantissa_bits)
               : ldexp(mantissa + (1 << l->mantissa_bits), exponent - bias - l->mantissa_bits);
}

static int list_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        layout *l = &layouts[i];
        uint32_t all = 1u << (bits_of_kind(l) - 1);
        l->n_finite = l->has_infinity ? all - (1u << l->mantissa_bits) : all - 1;
        l->values = malloc((l->n_finite + 1) * sizeof *l->values);
        for (uint32_t code = 0; code <= l->n_finite; code++) {
            l->values[code] = value_of(l, code);
        }
    }
    return 0;
}

static int free_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        free(layouts[i].values);
    }
    return 0;
}

/* The code of a magnitude, which is not NaN. Infinite is what rounds to where the next would be. */
static uint32_t nearest(const layout *l, double magnitude)
{
    uint32_t low = 0, high = l->n_finite;
    if (isinf(magnitude)) {
        return l->has_infinity || !l->saturates ? l->n_finite : l->n_finite - 1;
    }
    if (magnitude >= l->values[high]) {
        return l->saturates ? l->n_finite - 1 : l->n_finite;
    }
    while (high - low > 1) { /* values[low] <= magnitude < values[high] */
        uint32_t middle = low + (high - low) / 2;
        if (l->values[middle] <= magnitude) {
            low = middle;
        } else {
            high = middle;
        }
    }
    double below = magnitude - l->values[low], above = l->values[high] - magnitude;
    uint32_t code = below < above || (below == above && low % 2 == 0) ? low : high;
    return code == l->n_finite && l->saturates ? l->n_finite - 1 : code;
}

static uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float f32_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* What an f32 becomes. */
static uint32_t narrow_reference(const layout *l, float value)
{
    uint32_t bits = f32_bits(value), sign = bits >> 31 << (bits_of_kind(l) - 1);
    if (isnan(value)) {
        uint32_t payload = (bits & 0x7fffff) >> (23 - l->mantissa_bits);
        uint32_t quiet = 1u << (l->mantissa_bits - 1);
        bool keeps = bits_of_kind(l) == 16;
        return sign | (keeps ? l->n_finite | quiet | payload : (1u << (bits_of_kind(l) - 1)) - 1);
    }
    return sign | nearest(l, fabs((double)value));
}

/* What a code is, as an f32's bits. */
static uint32_t widen_reference(const layout *l, uint32_t code)
{
    int n_bits = bits_of_kind(l);
    uint32_t sign = code >> (n_bits - 1) << 31;
    uint32_t magnitude = code & ((1u << (n_bits - 1)) - 1);
    if (magnitude < l->n_finite) {
        return sign | f32_bits((float)l->values[magnitude]);
    }
    return l->has_infinity
               ? sign | 0x7f800000 | (magnitude - l->n_finite) << (23 - l->mantissa_bits)
               : sign | 0x7fc00000;
}

/* ---- one cast of many elements ---- */

static void cast_all(const fy_cast *cast, const void *from, void *to, size_t n)
{
    fy_area f = fy_area_flat(0, n * fy_cast_element_bytes(cast->from_kind));
    fy_area t = fy_area_flat(0, n * fy_cast_element_bytes(cast->to_kind));
    fy_area_cast(cast, &t, to, &f, from, 0, n);
    fy_copy_fence();
}

static fy_cast plain(uint32_t from_kind, uint32_t to_kind)
{
    return (fy_cast){.from_kind = from_kind, .to_kind = to_kind, .n_rows = 1, .n_columns = 1};
}

static fy_cast to_layout(uint32_t from_kind, const layout *l)
{
    fy_cast cast = plain(from_kind, l->kind);
    cast.overflow = l->saturates ? FY_OVERFLOW_SATURATE : FY_OVERFLOW_PLAIN;
    return cast;
}

static uint32_t code_at(const layout *l, const void *codes, size_t i)
{
    uint16_t two;
    if (bits_of_kind(l) == 8) {
        return ((const unsigned char *)codes)[i];
    }
    memcpy(&two, (const char *)codes + 2 * i, sizeof two);
    return two;
}

static void check_narrow(const layout *l, const float *values, size_t n)
{
    void *codes = malloc(2 * n);
    fy_cast cast = to_layout(FERRY_F32, l);
    cast_all(&cast, values, codes, n);
    for (size_t i = 0; i < n; i++) {
        uint32_t wanted = narrow_reference(l, values[i]), got = code_at(l, codes, i);
        check_at(got == wanted, "%s of %.9g (%08x): %04x, not %04x", l->name, (double)values[i],
                 f32_bits(values[i]), got, wanted);
    }
    free(codes);
}

/* Every code, widened; and back, which must give it again. */
static void test_all_codes_to_f32(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        const layout *l = &layouts[i];
        size_t n = (size_t)1 << bits_of_kind(l);
        uint16_t *halves = malloc(2 * n);
        uint8_t *bytes = malloc(n);
        float *values = malloc(n * sizeof *values);
        for (size_t code = 0; code < n; code++) {
            halves[code] = (uint16_t)code;
            bytes[code] = (uint8_t)code;
        }
        fy_cast cast = plain(l->kind, FERRY_F32);
        cast_all(&cast, n == 256 ? (void *)bytes : (void *)halves, values, n);
        for (size_t code = 0; code < n; code++) {
            uint32_t wanted = widen_reference(l, (uint32_t)code);
            check_at(f32_bits(values[code]) == wanted, "%s %04zx: %08x, not %08x", l->name, code,
                     f32_bits(values[code]), wanted);
        }
        check_narrow(l, values, n);
        free(halves);
        free(bytes);
        free(values);
    }
}

/* Every code of every type to every other type: each goes to f32 exactly first. */
static void test_all_codes_to_all_types(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        const layout *f = &layouts[i];
        size_t n = (size_t)1 << bits_of_kind(f);
        char *codes = malloc(2 * n), *out = malloc(2 * n);
        for (size_t code = 0; code < n; code++) {
            uint16_t half = (uint16_t)code;
            if (n == 256) {
                codes[code] = (char)code;
            } else {
                memcpy(codes + 2 * code, &half, sizeof half);
            }
        }
        for (size_t j = 0; j < COUNT_OF(layouts); j++) {
            const layout *t = &layouts[j];
            fy_cast cast = to_layout(f->kind, t);
            cast_all(&cast, codes, out, n);
            for (size_t code = 0; code < n; code++) {
                uint32_t wanted = narrow_reference(t, f32_of(widen_reference(f, (uint32_t)code)));
                check_at(code_at(t, out, code) == wanted, "%s %04zx to %s: %04x, not %04x", f->name,
                         code, t->name, code_at(t, out, code), wanted);
            }
        }
        free(codes);
        free(out);
    }
}

/* Around every value of a type and half way to the next one, on both sides of zero. */
static void test_f32_around_every_boundary(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        const layout *l = &layouts[i];
        float *values = malloc(12 * (size_t)l->n_finite * sizeof *values);
        size_t n = 0;
        for (uint32_t code = 0; code < l->n_finite; code++) {
            double places[] = {l->values[code], (l->values[code] + l->values[code + 1]) / 2};
            for (size_t j = 0; j < COUNT_OF(places); j++) {
                float at = (float)places[j];
                values[n++] = at;
                values[n++] = nextafterf(at, INFINITY);
                values[n++] = nextafterf(at, -INFINITY);
                values[n++] = -at;
                values[n++] = -nextafterf(at, INFINITY);
                values[n++] = -nextafterf(at, -INFINITY);
            }
        }
        check_narrow(l, values, n);
        free(values);
    }
}

static void test_random_and_special_f32(void **state)
{
    (void)state;
    static const uint32_t specials[] = {0,          0x80000000, 1,          0x80000001, 0x7fffff,
                                        0x800000,   0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
                                        0x7fc00000, 0xffc00000, 0x7f800001, 0xff800001, 0x7fffffff,
                                        0xffffffff, 0x7fa12345, 0x7fbfffff};
    enum { N = 200000 };
    float *values = malloc(N * sizeof *values);
    uint64_t seed = 9;
    for (size_t i = 0; i < N; i++) {
        values[i] = f32_of(i < COUNT_OF(specials) ? specials[i] : (uint32_t)random_u64(&seed));
    }
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        check_narrow(&layouts[i], values, N);
    }
    free(values);
}

static void test_f64_to_f32(void **state)
{
    (void)state;
    enum { N = 3000 };
    double from[N];
    float to[N];
    uint64_t seed = 3;
    fy_cast cast = plain(FERRY_F64, FERRY_F32);
    for (size_t i = 0; i < N; i++) {
        uint64_t bits = random_u64(&seed);
        bits = i % 2 ? (bits & 0x800fffffffffffffu) | (uint64_t)(1023 - 140 + i / 11) << 52 : bits;
        memcpy(&from[i], &bits, sizeof bits);
    }
    from[0] = INFINITY;
    from[2] = -0.0;
    from[4] = 1 + 0x1p-24; /* a tie: down to even */
    from[6] = 1 + 0x3p-24; /* and up */
    cast_all(&cast, from, to, N);
    assert_true(to[4] == 1.0f && to[6] == 1.0f + 0x1p-22f);
    for (size_t i = 0; i < N; i++) {
        if (isnan(from[i])) {
            assert_true(isnan(to[i]));
        } else {
            /* No f32 is nearer. */
            double error = fabs((double)to[i] - from[i]);
            check_at(isinf(to[i])
                         ? fabs(from[i]) >= 0x1.ffffffp127
                         : error <= fabs((double)nextafterf(to[i], INFINITY) - from[i]) &&
                               error <= fabs((double)nextafterf(to[i], -INFINITY) - from[i]),
                     "%a becomes %a", from[i], (double)to[i]);
        }
    }
}

/* ---- areas and scales ---- */

typedef struct grid {
    uint64_t n_planes, n_rows, n_columns;
} grid;

static fy_area area_of(const grid *g, uint64_t element_bytes, uint64_t gap, uint64_t *end_out)
{
    uint64_t begin;
    uint64_t length[] = {g->n_planes, g->n_rows, g->n_columns};
    uint64_t pitch = (g->n_columns + gap) * element_bytes;
    uint64_t stride[] = {(g->n_rows + gap) * pitch, pitch, element_bytes};
    fy_area area;
    ferry_error error;
    must(fy_area_make(64 + gap, element_bytes, 3, length, stride, &area, &error), &error);
    fy_area_hull(&area, &begin, end_out);
    return area;
}

static float scale_of(const fy_cast_scales *s, uint64_t plane, uint64_t row, uint64_t column)
{
    if (s->values == NULL || s->block[0] == 0) {
        return s->values == NULL ? 1 : s->values[0];
    }
    return s->values[plane * s->plane + (row + s->origin[0]) / s->block[0] * s->pitch +
                     (column + s->origin[1]) / s->block[1]];
}

static fy_cast_scales random_scales(const grid *g, float *values, uint64_t *seed)
{
    fy_cast_scales s = {.values = random_below(seed, 4) == 0 ? NULL : values};
    for (size_t i = 0; i < 4096; i++) {
        values[i] = (float)ldexp(1 + (double)random_below(seed, 1000) / 1000,
                                 (int)random_below(seed, 9) - 5);
    }
    if (random_below(seed, 4) != 0) {
        for (int d = 0; d < 2; d++) {
            s.block[d] = 1 + random_below(seed, 40);
            s.origin[d] = random_below(seed, (uint32_t)s.block[d]);
        }
        s.pitch =
            (g->n_columns + s.origin[1] + s.block[1] - 1) / s.block[1] + random_below(seed, 3);
        s.plane = ((g->n_rows + s.origin[0] + s.block[0] - 1) / s.block[0]) * s.pitch;
        if (s.plane * g->n_planes > 4096) {
            s.block[0] = 0;
        }
    }
    return s;
}

/* f32 to an f8 and back to bf16, element by element. */
static void check_grid(const grid *g, uint64_t seed)
{
    const layout *t = &layouts[2 + seed % 2], *b = &layouts[1];
    uint64_t n = g->n_planes * g->n_rows * g->n_columns, f_end, t_end, b_end;
    fy_area fa = area_of(g, 4, seed % 3, &f_end), ta = area_of(g, 1, seed % 5, &t_end);
    fy_area ba = area_of(g, 2, seed % 2, &b_end);
    float *values = malloc(4096 * sizeof *values);
    uint64_t first = seed % 7 < n ? seed % 7 : 0, count = n - first - (seed % 2 && first + 1 < n);
    char *f = malloc(f_end), *to = malloc(t_end + 64), *back = malloc(b_end + 64);
    fy_cast cast = to_layout(FERRY_F32, t);
    cast.n_rows = g->n_rows;
    cast.n_columns = g->n_columns;
    cast.to_scales = random_scales(g, values, &seed);
    fy_cast undo = cast;
    undo.from_kind = t->kind;
    undo.to_kind = FERRY_BF16;
    undo.from_scales = cast.to_scales;
    undo.to_scales = (fy_cast_scales){0};
    for (uint64_t i = 0; i + 4 <= f_end; i += 4) {
        float value = (float)((double)random_below(&seed, 100000) / 250 - 200);
        memcpy(f + i, &value, sizeof value);
    }
    memset(to, 0x5a, t_end + 64);
    memset(back, 0x5a, b_end + 64);
    fy_area_cast(&cast, &ta, to, &fa, f, first, count);
    fy_area_cast(&undo, &ba, back, &ta, to, first, count);
    fy_copy_fence();
    for (uint64_t k = 0; k < n; k++) {
        float value, scale;
        uint64_t column = k % g->n_columns, row = k / g->n_columns % g->n_rows;
        scale = scale_of(&cast.to_scales, k / g->n_columns / g->n_rows, row, column);
        /* Walks of one element each: the walk is tested elsewhere. */
        uint64_t at = 0, got = 0;
        fy_area_walk fw = fy_area_walk_of(&fa, 4 * k, 4);
        fy_area_walk tw = fy_area_walk_of(&ta, k, 1);
        fy_area_walk bw = fy_area_walk_of(&ba, 2 * k, 2);
        fy_area_next(&fw, &at, &got);
        memcpy(&value, f + at, sizeof value);
        bool is_in = k >= first && k < first + count;
        fy_area_next(&tw, &at, &got);
        uint32_t code = (unsigned char)to[at];
        uint32_t wanted = is_in ? narrow_reference(t, value / scale) : 0x5a;
        check_at(code == wanted, "%s element %llu of %g / %g: %02x, not %02x", t->name,
                 (unsigned long long)k, (double)value, (double)scale, code, wanted);
        fy_area_next(&bw, &at, &got);
        wanted = is_in ? narrow_reference(b, f32_of(widen_reference(t, code)) * scale) : 0x5a5a;
        check_at(code_at(b, back + at, 0) == wanted, "element %llu back", (unsigned long long)k);
    }
    for (int i = 0; i < 64; i++) {
        assert_true(to[t_end + (uint64_t)i] == 0x5a && back[b_end + (uint64_t)i] == 0x5a);
    }
    free(values);
    free(f);
    free(to);
    free(back);
}

static void test_areas_and_scales(void **state)
{
    (void)state;
    for (uint64_t i = 1; i <= 300; i++) {
        uint64_t seed = i;
        grid g = {1 + random_below(&seed, 3), 1 + random_below(&seed, 30),
                  1 + random_below(&seed, i % 10 == 0 ? 3000 : 90)};
        check_grid(&g, i);
    }
}

/* ---- scale and add, and what else is made of the result ---- */

/* An element by itself: each step rounded to f32, and a NaN made quiet by it. */
static float changed_reference(const fy_cast *cast, float value)
{
    volatile float v = value; /* no step is made one with the next */
    if (cast->scale != 0 && cast->scale != 1) {
        v = isnan(v) ? f32_of(f32_bits(v) | 0x400000) : v * cast->scale;
    }
    if (cast->add != 0) {
        v = isnan(v) ? f32_of(f32_bits(v) | 0x400000) : v + cast->add;
    }
    return v;
}

enum { SHAPE_DIMS = 4 };

/* Of a shape, its dimensions in memory in order or in any other, with gaps between rows. */
static fy_area random_area(uint64_t element_bytes, const uint64_t *length, bool turned,
                           uint64_t *end_out, uint64_t *seed)
{
    uint64_t begin, stride[SHAPE_DIMS], size = element_bytes;
    uint32_t order[SHAPE_DIMS] = {0, 1, 2, 3};
    for (uint32_t k = SHAPE_DIMS; turned && k-- > 1;) {
        uint32_t with = random_below(seed, k + 1), last = order[k];
        order[k] = order[with];
        order[with] = last;
    }
    for (uint32_t k = SHAPE_DIMS; k-- > 0;) {
        stride[order[k]] = size;
        size = size * length[order[k]] + random_below(seed, 3) * element_bytes;
    }
    fy_area area;
    ferry_error error;
    must(fy_area_make(random_below(seed, 70), element_bytes, SHAPE_DIMS, length, stride, &area,
                      &error),
         &error);
    fy_area_hull(&area, &begin, end_out);
    return area;
}

static void read_element(const fy_area *area, const char *base, uint64_t k, uint64_t bytes,
                         void *to)
{
    uint64_t at = 0, n = 0;
    fy_area_walk walk = fy_area_walk_of(area, k * bytes, bytes);
    fy_area_next(&walk, &at, &n);
    memcpy(to, base + at, bytes);
}

/* Elements [first, first + count) of two areas of one shape. */
typedef struct range_case {
    fy_area from, to;
    uint64_t from_bytes, to_bytes; /* of an element */
    uint64_t from_end, to_end;
    uint64_t first, count;
} range_case;

static range_case random_range(uint64_t from_bytes, uint64_t to_bytes, uint64_t *seed)
{
    range_case c = {.from_bytes = from_bytes, .to_bytes = to_bytes};
    bool is_deep = random_below(seed, 2) == 0;
    uint64_t shape[SHAPE_DIMS] = {
        is_deep ? 1 + random_below(seed, 4) : 1, is_deep ? 1 + random_below(seed, 40) : 1,
        1 + random_below(seed, 40), 1 + random_below(seed, is_deep ? 50 : 900)};
    uint64_t n = shape[0] * shape[1] * shape[2] * shape[3];
    uint64_t most = random_below(seed, 3) == 0 && n > 3 ? 3 : n; /* often the first few only */
    c.first = random_below(seed, (uint32_t)most);
    c.count = 1 + random_below(seed, (uint32_t)(most - c.first));
    c.from = random_area(from_bytes, shape, random_below(seed, 2) == 0, &c.from_end, seed);
    c.to = random_area(to_bytes, shape, random_below(seed, 2) == 0, &c.to_end, seed);
    return c;
}

/* Of more elements than are hashed at once, transposed into memory where they lie side by side. */
static range_case large_range(uint64_t from_bytes, uint64_t to_bytes, uint64_t *seed)
{
    uint64_t shape[] = {300, 300 + random_below(seed, 50)}, n = shape[0] * shape[1];
    uint64_t turned[] = {from_bytes, 301 * from_bytes};
    range_case c = {.from_bytes = from_bytes, .to_bytes = to_bytes};
    c.from = fy_area_of(0, from_bytes, 2, shape, turned);
    c.to = fy_area_flat(3, n * to_bytes);
    c.from_end = turned[1] * shape[1];
    c.to_end = 3 + n * to_bytes;
    c.first = random_below(seed, 200);
    c.count = n - c.first - random_below(seed, 200);
    return c;
}

static void cast_each_way(const fy_cast *cast, const range_case *c, const char *from, char **to)
{
    for (int i = 0; i < 4; i++) {
        to[i] = malloc(c->to_end);
        memset(to[i], 0x5a, c->to_end);
    }
    fy_area_cast(cast, &c->to, to[0], &c->from, from, c->first, c->count);
    fy_area_cast_cached(cast, &c->to, to[1], &c->from, from, c->first, c->count);
    uint64_t hash = fy_area_cast_hash(cast, &c->to, to[2], &c->from, from, c->first, c->count);
    uint64_t written = fy_area_cast_update(cast, &c->to, to[3], &c->from, from, c->first, c->count);
    fy_copy_fence();
    assert_true(written <= c->count * c->to_bytes);
    assert_int_equal(fy_area_cast_update(cast, &c->to, to[3], &c->from, from, c->first, c->count),
                     0);
    assert_int_equal(fy_area_cast_hash(cast, NULL, NULL, &c->from, from, c->first, c->count), hash);
    assert_int_equal(fy_area_hash(&c->to, to[0], c->first * c->to_bytes, c->count * c->to_bytes),
                     hash);
}

/* Nothing but the range is written, whichever way it is. */
static void check_rest(const range_case *c, char **to)
{
    uint64_t first = c->first * c->to_bytes, bytes = c->count * c->to_bytes;
    char *packed = malloc(bytes);
    fy_area_pack_cached(packed, &c->to, to[0], first, bytes);
    memset(to[0], 0x5a, c->to_end);
    fy_area_unpack(&c->to, to[0], packed, first, bytes);
    for (int i = 1; i < 4; i++) {
        assert_memory_equal(to[i], to[0], c->to_end);
    }
    free(packed);
}

/* Every way of casting, of areas of any shape, against elements that are looked at one by one. */
static void check_ways(uint64_t seed)
{
    static const float numbers[] = {1, 0.5f, -1, 0.1f, 3.3e38f, 1e-40f, -7.25f, 240};
    const layout *t = &layouts[random_below(&seed, COUNT_OF(layouts))];
    const layout *f = &layouts[random_below(&seed, COUNT_OF(layouts))];
    bool from_f32 = random_below(&seed, 2) == 0;
    uint64_t fb = from_f32 ? 4 : (uint64_t)bits_of_kind(f) / 8, tb = (uint64_t)bits_of_kind(t) / 8;
    bool is_large = random_below(&seed, 40) == 0;
    range_case c = (is_large ? large_range : random_range)(fb, tb, &seed);
    char *from = malloc(c.from_end), *to[4];
    fy_cast cast = to_layout(from_f32 ? FERRY_F32 : f->kind, t);
    cast.scale = random_below(&seed, 2) == 0 ? 0 : numbers[random_below(&seed, 8)];
    cast.add = random_below(&seed, 2) == 0 ? 0 : numbers[random_below(&seed, 8)];
    for (uint64_t i = 0; i < c.from_end; i++) {
        from[i] = (char)random_u64(&seed);
    }
    cast_each_way(&cast, &c, from, to);
    for (uint64_t k = c.first; k < c.first + c.count; k++) {
        uint32_t code = 0, bits = 0;
        read_element(&c.from, from, k, fb, &code);
        read_element(&c.to, to[0], k, tb, &bits);
        float value = from_f32 ? f32_of(code) : f32_of(widen_reference(f, code));
        uint32_t wanted = narrow_reference(t, changed_reference(&cast, value));
        check_at(bits == wanted, "%s %08x x %g + %g to %s: %04x, not %04x",
                 from_f32 ? "f32" : f->name, code, (double)cast.scale, (double)cast.add, t->name,
                 bits, wanted);
    }
    check_rest(&c, to);
    for (int i = 0; i < 4; i++) {
        free(to[i]);
    }
    free(from);
}

static void test_ways(void **state)
{
    (void)state;
    for (uint64_t i = 1; i <= 400; i++) {
        check_ways(i);
    }
}

/* In place, where the types are of one size. */
static void test_in_place(void **state)
{
    (void)state;
    uint16_t here[5000], there[5000];
    fy_cast cast = {.from_kind = FERRY_BF16, .to_kind = FERRY_BF16, .scale = 3, .n_rows = 1};
    fy_area area = fy_area_flat(0, sizeof here);
    for (size_t i = 0; i < COUNT_OF(here); i++) {
        here[i] = (uint16_t)(i * 13);
    }
    fy_area_cast(&cast, &area, there, &area, here, 0, COUNT_OF(here));
    fy_area_cast(&cast, &area, here, &area, here, 0, COUNT_OF(here));
    fy_copy_fence();
    assert_memory_equal(here, there, sizeof here);
}

/* ---- codes of blocks ---- */

/*
 * Codes that are cast by the scales of their blocks, of a box of some matrices, are those of
 * fy_quantize of the whole.
 */
typedef struct code_case {
    fy_quantized q;
    uint64_t planes[2], n, shape[2], n_scales; /* n: of a matrix; shape: of its scales */
    char *values;
    unsigned char *codes, *cast_codes;
    float *divisors;
} code_case;

static code_case draw_codes(uint64_t *seed)
{
    static const uint32_t kinds[] = {FERRY_F32, FERRY_F16, FERRY_BF16};
    uint64_t block[] = {1 + random_below(seed, 9), 1 + random_below(seed, 40)};
    code_case c = {.planes = {1 + random_below(seed, 3), 1 + random_below(seed, 3)}};
    c.q.format = random_below(seed, 3) == 0 ? fy_format_mxfp8() : fy_format_f8(block[0], block[1]);
    c.q.kind = kinds[random_below(seed, 3)];
    c.q.n_rows = 1 + random_below(seed, 40);
    c.q.n_columns = 1 + random_below(seed, 100);
    c.n = c.q.n_rows * c.q.n_columns;
    fy_scales_shape(&c.q, c.shape);
    c.n_scales = c.shape[0] * c.shape[1];
    uint64_t n_planes = c.planes[0] * c.planes[1];
    uint64_t bytes = n_planes * c.n * fy_cast_element_bytes(c.q.kind);
    c.values = malloc(bytes);
    c.codes = malloc(n_planes * c.n);
    c.cast_codes = malloc(n_planes * c.n);
    c.divisors = malloc(n_planes * c.n_scales * sizeof *c.divisors);
    for (uint64_t i = 0; i < bytes; i++) {
        c.values[i] = (char)random_u64(seed);
    }
    return c;
}

static void quantize_whole(const code_case *c)
{
    char *stored = malloc(c->n_scales * 4), *again = malloc(c->n_scales * 4);
    uint64_t bytes = c->n_scales * (c->q.format.scale_kind == FERRY_F32 ? 4 : 1);
    uint64_t value_bytes = c->n * fy_cast_element_bytes(c->q.kind);
    ferry_error error;
    for (uint64_t p = 0; p < c->planes[0] * c->planes[1]; p++) {
        fy_input in = {.data = c->values + p * value_bytes, .n_bytes = value_bytes};
        fy_output out = {.data = c->codes + p * c->n, .n_bytes = c->n};
        fy_output scales = {.data = stored, .n_bytes = bytes}, alone = scales;
        fy_output by = {.data = c->divisors + p * c->n_scales,
                        .n_bytes = c->n_scales * sizeof *c->divisors};
        alone.data = again;
        must(fy_quantize(&c->q, &in, &out, &scales, &error), &error);
        must(fy_block_scales(&c->q, &in, &alone, &by, &error), &error);
        assert_memory_equal(stored, again, bytes);
    }
    free(stored);
    free(again);
}

/* Whatever is in a box is made anew, and nothing else is. */
static void cast_box(const code_case *c, const uint64_t at[4], const uint64_t length[4])
{
    uint64_t fb = fy_cast_element_bytes(c->q.kind), all = c->planes[0] * c->planes[1] * c->n;
    uint64_t strides[4] = {c->planes[1] * c->n, c->n, c->q.n_columns, 1}, f_strides[4], first = 0;
    const uint64_t *block = c->q.format.block;
    for (int d = 0; d < 4; d++) {
        f_strides[d] = strides[d] * fb;
        first += at[d] * strides[d];
    }
    fy_area from = fy_area_of(first * fb, fb, 4, length, f_strides);
    fy_area to = fy_area_of(first, 1, 4, length, strides);
    fy_cast cast = {.from_kind = c->q.kind,
                    .to_kind = c->q.format.kind,
                    .overflow = FY_OVERFLOW_CODES,
                    .n_rows = length[2],
                    .n_columns = length[3]};
    cast.to_scales =
        (fy_cast_scales){.values = c->divisors + (at[0] * c->planes[1] + at[1]) * c->n_scales +
                                   at[2] / block[0] * c->shape[1] + at[3] / block[1],
                         .block = {block[0], block[1]},
                         .origin = {at[2] % block[0], at[3] % block[1]},
                         .pitch = c->shape[1],
                         .n_plane_dims = 2,
                         .plane_length = {length[0], length[1]},
                         .plane_stride = {c->planes[1] * c->n_scales, c->n_scales}};
    memcpy(c->cast_codes, c->codes, all);
    for (uint64_t i = 0; i < to.bytes; i++) {
        c->cast_codes[fy_area_walk_of(&to, i, 1).at] ^= 0xff;
    }
    fy_area_cast(&cast, &to, c->cast_codes, &from, c->values, 0, to.bytes);
    fy_copy_fence();
    assert_memory_equal(c->cast_codes, c->codes, all);
}

static void check_codes(uint64_t seed)
{
    code_case c = draw_codes(&seed);
    const uint64_t whole[] = {c.planes[0], c.planes[1], c.q.n_rows, c.q.n_columns};
    uint64_t at[4], length[4];
    quantize_whole(&c);
    for (int d = 0; d < 4; d++) {
        at[d] = random_below(&seed, (uint32_t)whole[d]);
        length[d] = 1 + random_below(&seed, (uint32_t)(whole[d] - at[d]));
    }
    cast_box(&c, at, length);
    free(c.values);
    free(c.codes);
    free(c.cast_codes);
    free(c.divisors);
}

static void test_codes(void **state)
{
    (void)state;
    for (uint64_t i = 1; i <= 400; i++) {
        check_codes(i);
    }
}

static void test_which_exist(void **state)
{
    (void)state;
    static const uint32_t kinds[] = {FERRY_F32, FERRY_F16, FERRY_BF16, FERRY_F8E4M3, FERRY_F8E5M2};
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        for (size_t j = 0; j < COUNT_OF(kinds); j++) {
            assert_true(fy_cast_exists(kinds[i], kinds[j]));
        }
        assert_false(fy_cast_exists(kinds[i], FERRY_F64));
        assert_false(fy_cast_exists(kinds[i], FERRY_I32));
        assert_false(fy_cast_exists(FERRY_U8, kinds[i]));
        assert_true(fy_cast_exists(FERRY_F64, kinds[i]) == (kinds[i] == FERRY_F32));
    }
    assert_int_equal(fy_cast_element_bytes(FERRY_C64), 0);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_which_exist),
        cmocka_unit_test(test_all_codes_to_f32),
        cmocka_unit_test(test_all_codes_to_all_types),
        cmocka_unit_test(test_f32_around_every_boundary),
        cmocka_unit_test(test_random_and_special_f32),
        cmocka_unit_test(test_f64_to_f32),
        cmocka_unit_test(test_areas_and_scales),
        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_codes),
    };
    return cmocka_run_group_tests(tests, list_values, free_values);
}

int main(void)
{
    return run_with_each_isa(run_all);
}
