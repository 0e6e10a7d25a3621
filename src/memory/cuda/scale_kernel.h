/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts of numbers that have scales, included by kernels.h: what codes of blocks become, and how
 * they are made. The order is that of exec/cast.c: times the source's scale, over the target's, and
 * then all that a cast without scales does.
 */

/* A number of a matrix: which matrix, and where in it. */
typedef struct scaled_place {
    uint32_t plane, row, column;
} scaled_place;

FY_DEVICE scaled_place scaled_place_of(const fy_cuda_scaled *a, uint32_t element)
{
    scaled_place p;
    uint32_t at = a->column + element, row = divided(at, &a->n_columns);
    p.column = at - row * a->n_columns.value;
    row += a->row;
    uint32_t plane = divided(row, &a->n_rows);
    p.row = row - plane * a->n_rows.value;
    p.plane = plane + a->plane;
    return p;
}

FY_DEVICE uint64_t scale_number(const fy_cuda_scales *s, scaled_place p)
{
    if (s->block[0].value == 0) {
        return 0;
    }
    uint32_t plane = p.plane;
    uint64_t at = (uint64_t)divided(p.row + s->origin[0], &s->block[0]) * s->pitch +
                  (uint64_t)divided(p.column + s->origin[1], &s->block[1]) * s->step;
    if (s->n_plane_dims == 0) {
        return at + plane * s->plane;
    }
    for (uint32_t d = s->n_plane_dims; d-- > 0;) {
        uint32_t next = divided(plane, &s->plane_length[d]);
        at += (uint64_t)(plane - next * s->plane_length[d].value) * s->plane_stride[d];
        plane = next;
    }
    return at;
}

/* One in f8e4m3 times that of its matrix: one factor, which is rounded. */
FY_DEVICE float coded_scale(const fy_cuda_scales *s, uint64_t number, uint32_t plane)
{
    uint64_t matrix = 0;
    for (uint32_t d = s->n_plane_dims; d-- > 0;) {
        uint32_t next = divided(plane, &s->plane_length[d]);
        matrix += (uint64_t)(plane - next * s->plane_length[d].value) * s->matrix_stride[d];
        plane = next;
    }
    return fy_times(widen_one_f8e4m3(fy_load1(s->numbers + number)),
                    float_of(fy_load4(s->of_matrices + matrix * 4)));
}

/* A power of two is the exponent of an f32; 0 is 2^-127, and 0xff NaN. */
FY_DEVICE float scale_of(const fy_cuda_scales *s, scaled_place p)
{
    uint64_t number = scale_number(s, p);
    if (s->of_matrices != 0) {
        return coded_scale(s, number, p.plane);
    }
    if (s->are_powers == 0) {
        return float_of(fy_load4(s->numbers + number * 4));
    }
    uint32_t power = fy_load1(s->numbers + number);
    return float_of(power == 0 ? 0x400000 : power == 0xff ? 0x7fc00000 : power << F32_MANTISSA);
}

/* Of two NaNs the first one counts. */
FY_DEVICE float scaled_times(float value, float scale)
{
    return is_nan(value) ? quiet(value) : is_nan(scale) ? quiet(scale) : fy_times(value, scale);
}

FY_DEVICE float scaled_over(float value, float scale)
{
    return is_nan(value) ? quiet(value) : is_nan(scale) ? quiet(scale) : fy_over(value, scale);
}

FY_DEVICE void scale_all(const fy_cuda_scaled *a, uint32_t element, float *v, int n)
{
    scaled_place p = scaled_place_of(a, element);
    if (a->from_scales.numbers != 0) {
        float scale = scale_of(&a->from_scales, p);
        FY_UNROLL
        for (int k = 0; k < n; k++) {
            v[k] = scaled_times(v[k], scale);
        }
    }
    if (a->to_scales.numbers != 0) {
        float scale = scale_of(&a->to_scales, p);
        FY_UNROLL
        for (int k = 0; k < n; k++) {
            v[k] = scaled_over(v[k], scale);
        }
    }
    FY_UNROLL
    for (int k = 0; k < n; k++) {
        v[k] = changed(&a->cast, v[k]);
    }
}

FY_KERNEL(fy_cuda_scaled_8, fy_cuda_scaled)
{
    for (uint32_t i = FY_BLOCK * FY_THREADS + FY_THREAD; i < a.cast.n_units;
         i += FY_BLOCKS * FY_THREADS) {
        float v[8];
        load_8(address_of(&a.cast.from, i), a.cast.from_type, true, v);
        scale_all(&a, i * 8, v, 8);
        store_8(address_of(&a.cast.to, i), a.cast.to_type, true, v);
    }
}

FY_KERNEL(fy_cuda_scaled_1, fy_cuda_scaled)
{
    for (uint32_t i = FY_BLOCK * FY_THREADS + FY_THREAD; i < a.cast.n_units;
         i += FY_BLOCKS * FY_THREADS) {
        float v = load_1(address_of(&a.cast.from, i), a.cast.from_type);
        scale_all(&a, i, &v, 1);
        store_1(address_of(&a.cast.to, i), a.cast.to_type, v);
    }
}

/*
 * The largest magnitudes of blocks, of which scales are made
 */

FY_DEVICE uint32_t larger_finite(uint32_t most, float value)
{
    uint32_t magnitude = bits_of(value) & 0x7fffffff;
    return magnitude < F32_INFINITY && magnitude > most ? magnitude : most;
}

/* Where a unit of `group` numbers begins, its rows, and the word of its block. */
typedef struct strip {
    uint64_t at, to;
    uint32_t n_rows;
} strip;

FY_DEVICE strip strip_of(const fy_cuda_largest *a, uint32_t i, uint32_t group)
{
    strip s;
    uint32_t down = divided(i, &a->across), column = (i - down * a->across.value) * group;
    uint32_t block = divided(down, &a->strips), first = block * a->block_rows;
    uint32_t row = first + (down - block * a->strips.value) * FY_CUDA_STRIP;
    uint32_t end = least_of(least_of(row + FY_CUDA_STRIP, first + a->block_rows), a->n_rows);
    s.at = a->from + row * a->pitch + (uint64_t)column * bytes_of(a->type);
    s.to = a->to + ((uint64_t)block * a->n_blocks + divided(column, &a->block_columns)) * 4;
    s.n_rows = row < end ? end - row : 0;
    return s;
}

FY_KERNEL(fy_cuda_largest_8, fy_cuda_largest)
{
    for (uint32_t i = FY_BLOCK * FY_THREADS + FY_THREAD; i < a.n_units;
         i += FY_BLOCKS * FY_THREADS) {
        strip s = strip_of(&a, i, 8);
        uint32_t most = 0;
        for (uint32_t row = 0; row < s.n_rows; row += FY_CUDA_DEEP) {
            float v[FY_CUDA_DEEP][8];
            FY_UNROLL
            for (uint32_t j = 0; j < FY_CUDA_DEEP; j++) {
                if (row + j < s.n_rows) {
                    load_8(s.at + (row + j) * a.pitch, a.type, false, v[j]);
                }
            }
            FY_UNROLL
            for (uint32_t j = 0; j < FY_CUDA_DEEP; j++) {
                FY_UNROLL
                for (int k = 0; k < 8 && row + j < s.n_rows; k++) {
                    most = larger_finite(most, v[j][k]);
                }
            }
        }
        if (most > 0) {
            fy_raise4(s.to, most);
        }
    }
}

FY_KERNEL(fy_cuda_largest_1, fy_cuda_largest)
{
    for (uint32_t i = FY_BLOCK * FY_THREADS + FY_THREAD; i < a.n_units;
         i += FY_BLOCKS * FY_THREADS) {
        strip s = strip_of(&a, i, 1);
        uint32_t most = 0;
        for (uint32_t row = 0; row < s.n_rows; row++) {
            most = larger_finite(most, load_1(s.at + row * a.pitch, a.type));
        }
        if (most > 0) {
            fy_raise4(s.to, most);
        }
    }
}

/*
 * NVFP4, as convert.h has it
 */

enum { HALVES = 16, LEAST_F8E4M3 = 0x3b000000 /* 2^-9 */ };

/* To the nearest of the eight numbers, of two to the one with an even code: which is counted. */
FY_DEVICE uint32_t narrow_one_f4(float value)
{
    uint32_t bits = bits_of(value), m = bits & 0x7fffffff;
    uint32_t code = (uint32_t)(m > 0x3e800000) + (uint32_t)(m >= 0x3f400000) +
                    (uint32_t)(m > 0x3fa00000) + (uint32_t)(m >= 0x3fe00000) +
                    (uint32_t)(m > 0x40200000) + (uint32_t)(m >= 0x40600000) +
                    (uint32_t)(m > 0x40a00000);
    return m > F32_INFINITY ? 0 : code | (bits >> 28 & 8);
}

FY_DEVICE void load_halves(const fy_cuda_halves *a, uint64_t at, uint32_t n, float v[HALVES])
{
    uint32_t bytes = bytes_of(a->type);
    if (a->is_wide != 0) {
        load_8(at, a->type, false, v);
        load_8(at + 8 * bytes, a->type, false, v + 8);
        return;
    }
    FY_UNROLL
    for (uint32_t k = 0; k < HALVES; k++) {
        v[k] = k < n ? load_1(at + k * bytes, a->type) : 0;
    }
}

FY_DEVICE void store_halves(const fy_cuda_halves *a, uint64_t at, uint32_t n, fy_v8 codes)
{
    if (a->is_wide != 0) {
        fy_store8(at, codes);
        return;
    }
    FY_UNROLL
    for (uint32_t k = 0; k < HALVES / 2; k++) {
        if (2 * k < n) {
            fy_store1(at + k, (k < 4 ? codes.x : codes.y) >> 8 * (k % 4) & 0xff);
        }
    }
}

/* What is not finite shows in no code: it is NaN in the scale, and all codes of its block are 0. */
FY_DEVICE uint32_t scale_of_halves(const fy_cuda_halves *a, const float v[HALVES])
{
    uint32_t most = 0;
    FY_UNROLL
    for (int k = 0; k < HALVES; k++) {
        uint32_t magnitude = bits_of(v[k]) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    float scale = fy_over(float_of(most), fy_times(float_of(MOST_F4), a->of_matrix));
    scale = bits_of(scale) < LEAST_F8E4M3 ? float_of(LEAST_F8E4M3) : scale;
    scale = most == 0 ? 1 : scale;
    return most >= F32_INFINITY ? 0x7f : saturate_one_f8e4m3(scale);
}

FY_KERNEL(fy_cuda_nvfp4, fy_cuda_halves)
{
    for (uint32_t i = FY_BLOCK * FY_THREADS + FY_THREAD; i < a.n_units;
         i += FY_BLOCKS * FY_THREADS) {
        uint32_t row = divided(i, &a.across), block = i - row * a.across.value;
        uint32_t n = least_of(HALVES, a.n_columns - block * HALVES);
        uint64_t number = (uint64_t)block * HALVES * bytes_of(a.type);
        float v[HALVES];
        load_halves(&a, a.from + row * a.pitch + number, n, v);
        uint32_t stored = scale_of_halves(&a, v);
        float scale = fy_times(widen_one_f8e4m3(stored), a.of_matrix);
        fy_v8 codes = {0, 0};
        FY_UNROLL
        for (int k = 0; k < 8; k++) {
            codes.x |= narrow_one_f4(fy_over(v[k], scale)) << 4 * k;
            codes.y |= narrow_one_f4(fy_over(v[8 + k], scale)) << 4 * k;
        }
        store_halves(&a, a.codes + row * a.code_pitch + (uint64_t)block * (HALVES / 2), n, codes);
        fy_store1(a.scales + i, stored);
    }
}
