/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels, and the only place with their logic: compiled for devices by kernels.cu, and for
 * processors by the twin of the tests. Each unit of a launch has one thread, which works out by
 * itself where the unit lies on both sides; so a launch needs no order, no barrier and no shared
 * memory. Threads beside each other have units beside each other, and each has FY_CUDA_DEEP loads
 * under way before it stores.
 */
#include "memory/cuda/arguments.h"
#include "memory/cuda/primitives.h"

#include <stdbool.h>

#define FY_NUMBER FY_DEVICE
#include "convert/numbers.h"

/* n / value, for n below 2^31: see fy_cuda_divisor_of. */
FY_DEVICE uint32_t divided(uint32_t n, const fy_cuda_divisor *by)
{
    return (uint32_t)((uint64_t)n * by->multiplier >> by->shift);
}

/* Where unit i of a launch lies: its place in its run, and then index by index outwards. */
FY_DEVICE uint64_t address_of(const fy_cuda_side *side, uint32_t i)
{
    if (side->n_dims == 0) {
        return side->base + (uint64_t)i * side->unit_bytes;
    }
    uint32_t at = side->start + i;
    uint32_t rest = divided(at, &side->run);
    uint64_t address = side->base + (uint64_t)(at - rest * side->run.value) * side->unit_bytes;
    for (uint32_t d = side->n_dims; d-- > 1;) {
        const fy_cuda_dim *dim = &side->dims[d];
        rest += dim->start;
        uint32_t next = divided(rest, &dim->length);
        address += (uint64_t)(rest - next * dim->length.value) * dim->stride;
        rest = next;
    }
    return address + (uint64_t)rest * side->dims[0].stride;
}

#define FY_COPY_KERNEL(bytes, type)                                                                \
    FY_KERNEL(fy_cuda_copy_##bytes, fy_cuda_copy)                                                  \
    {                                                                                              \
        const uint32_t tile = FY_THREADS * FY_CUDA_DEEP;                                           \
        for (uint32_t first = FY_BLOCK * tile + FY_THREAD; first < a.n_units;                      \
             first += FY_BLOCKS * tile) {                                                          \
            type v[FY_CUDA_DEEP];                                                                  \
            FY_UNROLL                                                                              \
            for (uint32_t j = 0; j < FY_CUDA_DEEP; j++) {                                          \
                uint32_t i = first + j * FY_THREADS;                                               \
                if (i < a.n_units) {                                                               \
                    v[j] = fy_load##bytes(address_of(&a.from, i));                                 \
                }                                                                                  \
            }                                                                                      \
            FY_UNROLL                                                                              \
            for (uint32_t j = 0; j < FY_CUDA_DEEP; j++) {                                          \
                uint32_t i = first + j * FY_THREADS;                                               \
                if (i < a.n_units) {                                                               \
                    fy_store##bytes(address_of(&a.to, i), v[j]);                                   \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

FY_COPY_KERNEL(16, fy_v16)
FY_COPY_KERNEL(8, fy_v8)
FY_COPY_KERNEL(4, uint32_t)
FY_COPY_KERNEL(2, uint32_t)
FY_COPY_KERNEL(1, uint32_t)

/* Unit i of a piece, on the side that begins at `base`. */
FY_DEVICE uint64_t piece_address(const fy_cuda_piece *p, uint64_t base, uint64_t pitch, uint32_t i)
{
    uint32_t row = (uint32_t)((uint64_t)i * p->multiplier >> p->shift);
    return base + row * pitch + (uint64_t)(i - row * p->row_units) * p->unit_bytes;
}

#define FY_COPY_PIECE(bytes, type)                                                                 \
    FY_DEVICE void copy_piece_##bytes(const fy_cuda_piece *p, uint32_t lane)                       \
    {                                                                                              \
        for (uint32_t first = lane; first < p->n_units; first += FY_CUDA_LANES * FY_CUDA_PAIR) {   \
            type v[FY_CUDA_PAIR];                                                                  \
            FY_UNROLL                                                                              \
            for (uint32_t j = 0; j < FY_CUDA_PAIR; j++) {                                          \
                uint32_t i = first + j * FY_CUDA_LANES;                                            \
                if (i < p->n_units) {                                                              \
                    v[j] = fy_load##bytes(piece_address(p, p->from, p->from_pitch, i));            \
                }                                                                                  \
            }                                                                                      \
            FY_UNROLL                                                                              \
            for (uint32_t j = 0; j < FY_CUDA_PAIR; j++) {                                          \
                uint32_t i = first + j * FY_CUDA_LANES;                                            \
                if (i < p->n_units) {                                                              \
                    fy_store##bytes(piece_address(p, p->to, p->to_pitch, i), v[j]);                \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

FY_COPY_PIECE(16, fy_v16)
FY_COPY_PIECE(8, fy_v8)
FY_COPY_PIECE(4, uint32_t)
FY_COPY_PIECE(2, uint32_t)
FY_COPY_PIECE(1, uint32_t)

/* Of a row of the table, which is three times 16 bytes. */
FY_DEVICE fy_cuda_piece load_piece(uint64_t at)
{
    fy_v16 a = fy_load16(at), b = fy_load16(at + 16), c = fy_load16(at + 32);
    fy_cuda_piece p;
    p.to = (uint64_t)a.y << 32 | a.x;
    p.from = (uint64_t)a.w << 32 | a.z;
    p.to_pitch = (uint64_t)b.y << 32 | b.x;
    p.from_pitch = (uint64_t)b.w << 32 | b.z;
    p.row_units = c.x;
    p.multiplier = c.y;
    p.n_units = c.z;
    p.shift = (uint16_t)(c.w & 0xffff);
    p.unit_bytes = (uint16_t)(c.w >> 16);
    return p;
}

FY_KERNEL(fy_cuda_copy_table, fy_cuda_table)
{
    const uint32_t n_here = FY_THREADS / FY_CUDA_LANES;
    uint32_t lane = FY_THREAD % FY_CUDA_LANES;
    for (uint32_t i = FY_BLOCK * n_here + FY_THREAD / FY_CUDA_LANES; i < a.n_pieces;
         i += FY_BLOCKS * n_here) {
        fy_cuda_piece p = load_piece(a.pieces + (uint64_t)i * sizeof p);
        switch (p.unit_bytes) {
        case 16:
            copy_piece_16(&p, lane);
            break;
        case 8:
            copy_piece_8(&p, lane);
            break;
        case 4:
            copy_piece_4(&p, lane);
            break;
        case 2:
            copy_piece_2(&p, lane);
            break;
        default:
            copy_piece_1(&p, lane);
            break;
        }
    }
}

/*
 * Numbers
 */

FY_DEVICE float widen_one(uint32_t type, uint32_t bits)
{
    switch (type) {
    case FY_CUDA_F16:
        return widen_one_f16(bits);
    case FY_CUDA_BF16:
        return float_of(bits << 16);
    case FY_CUDA_F8E4M3:
        return widen_one_f8e4m3(bits);
    case FY_CUDA_F8E5M2: /* the upper half of an f16 */
        return widen_one_f16(bits << 8);
    default:
        return float_of(bits);
    }
}

FY_DEVICE uint32_t narrow_one(uint32_t type, float value)
{
    switch (type) {
    case FY_CUDA_F16:
        return narrow_one_f16(value);
    case FY_CUDA_BF16:
        return narrow_one_bf16(value);
    case FY_CUDA_F8E4M3:
        return narrow_one_f8e4m3(value);
    case FY_CUDA_F8E5M2:
        return narrow_one_f8e5m2(value);
    default:
        return bits_of(value);
    }
}

/* What is finite and too large for the type becomes its largest number. */
FY_DEVICE float saturated(uint32_t type, float value)
{
    switch (type) {
    case FY_CUDA_F16:
        return capped(value, MOST_F16, F32_INFINITY);
    case FY_CUDA_BF16:
        return capped(value, MOST_BF16, F32_INFINITY);
    case FY_CUDA_F8E4M3: /* it has no infinity */
        return capped(value, MOST_F8E4M3, F32_INFINITY + 1u);
    case FY_CUDA_F8E5M2:
        return capped(value, MOST_F8E5M2, F32_INFINITY);
    default:
        return value;
    }
}

/* As that of codes of blocks: an infinity is NaN in f8e4m3, too. */
FY_DEVICE float coded(uint32_t type, float value)
{
    return type == FY_CUDA_F8E4M3 ? capped(value, MOST_F8E4M3, F32_INFINITY)
                                  : saturated(type, value);
}

FY_DEVICE bool is_nan(float value)
{
    return (bits_of(value) & 0x7fffffff) > F32_INFINITY;
}

/* A NaN that is reckoned with becomes quiet; devices would forget the rest of it. */
FY_DEVICE float quiet(float value)
{
    return float_of(bits_of(value) | 0x400000);
}

FY_DEVICE float changed(const fy_cuda_cast *a, float value)
{
    uint32_t reckons = a->changes & (FY_CUDA_MULTIPLIES | FY_CUDA_ADDS);
    if (reckons != 0 && is_nan(value)) {
        value = quiet(value);
    } else {
        value = (a->changes & FY_CUDA_MULTIPLIES) != 0 ? fy_times(value, a->scale) : value;
        value = (a->changes & FY_CUDA_ADDS) != 0 ? fy_plus(value, a->add) : value;
    }
    if ((a->changes & FY_CUDA_PLAIN_NANS) != 0 && is_nan(value)) {
        value = float_of(0x7fc00000);
    }
    value = (a->changes & FY_CUDA_CODES) != 0 ? coded(a->to_type, value) : value;
    return (a->changes & FY_CUDA_SATURATES) != 0 ? saturated(a->to_type, value) : value;
}

FY_DEVICE void words_of(fy_v16 v, uint32_t out[4])
{
    out[0] = v.x;
    out[1] = v.y;
    out[2] = v.z;
    out[3] = v.w;
}

FY_DEVICE fy_v16 v16_of(const uint32_t in[4])
{
    fy_v16 v;
    v.x = in[0];
    v.y = in[1];
    v.z = in[2];
    v.w = in[3];
    return v;
}

/*
 * Pairs by the device's own instructions, where it has them and no number is one with which they do
 * otherwise: then all eight go the other way, which is rare.
 */

FY_DEVICE uint32_t largest_of(const float in[8])
{
    uint32_t most = 0;
    FY_UNROLL
    for (int i = 0; i < 8; i++) {
        uint32_t magnitude = bits_of(in[i]) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

/* The largest magnitude of a type, as f32. */
FY_DEVICE uint32_t most_of(uint32_t type)
{
    switch (type) {
    case FY_CUDA_F16:
        return MOST_F16;
    case FY_CUDA_BF16:
        return MOST_BF16;
    case FY_CUDA_F8E4M3:
        return MOST_F8E4M3;
    case FY_CUDA_F8E5M2:
        return MOST_F8E5M2;
    default:
        return F32_INFINITY - 1;
    }
}

/* Four halves of two words: whether any is NaN. */
FY_DEVICE bool has_nan_f16(const uint32_t w[4])
{
    uint32_t any = 0;
    FY_UNROLL
    for (int i = 0; i < 4; i++) { /* a magnitude above 0x7c00 reaches the sign's place */
        any |= ((w[i] & 0x7fff7fff) + 0x03ff03ff) & 0x80008000;
    }
    return any != 0;
}

/* `above`: what brings the least NaN's magnitude to the sign's place. */
FY_DEVICE bool has_nan_f8(fy_v8 v, uint32_t above)
{
    return ((((v.x & 0x7f7f7f7f) + above) | ((v.y & 0x7f7f7f7f) + above)) & 0x80808080) != 0;
}

#if FY_HAS_PAIRS
FY_DEVICE bool load_pairs_f16(const uint32_t w[4], float out[8])
{
    if (has_nan_f16(w)) {
        return false;
    }
    FY_UNROLL
    for (int i = 0; i < 4; i++) {
        fy_pair_of_f16(w[i], &out[2 * i], &out[2 * i + 1]);
    }
    return true;
}

FY_DEVICE bool store_pairs_f16(const float in[8], uint32_t w[4])
{
    if (largest_of(in) > F32_INFINITY) {
        return false;
    }
    FY_UNROLL
    for (int i = 0; i < 4; i++) {
        w[i] = fy_pair_to_f16(in[2 * i], in[2 * i + 1]);
    }
    return true;
}
#else
FY_DEVICE bool load_pairs_f16(const uint32_t w[4], float out[8])
{
    (void)out;
    (void)has_nan_f16(w);
    return false;
}

FY_DEVICE bool store_pairs_f16(const float in[8], uint32_t w[4])
{
    (void)largest_of(in);
    (void)w;
    return false;
}
#endif

#if FY_HAS_F8_PAIRS
FY_DEVICE bool load_pairs_f8(fy_v8 v, uint32_t type, float out[8])
{
    bool is_e4m3 = type == FY_CUDA_F8E4M3;
    if (has_nan_f8(v, is_e4m3 ? 0x01010101 : 0x03030303)) {
        return false;
    }
    FY_UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t pair = (i < 2 ? v.x : v.y) >> 16 * (i % 2) & 0xffff;
        if (is_e4m3) {
            fy_pair_of_f8e4m3(pair, &out[2 * i], &out[2 * i + 1]);
        } else { /* the upper halves of f16 */
            fy_pair_of_f16((pair & 0xff) << 8 | (pair & 0xff00) << 16, &out[2 * i],
                           &out[2 * i + 1]);
        }
    }
    return true;
}

FY_DEVICE bool store_pairs_f8(const float in[8], uint32_t type, fy_v8 *v)
{
    bool is_e4m3 = type == FY_CUDA_F8E4M3;
    uint32_t w[4];
    if (largest_of(in) > (is_e4m3 ? (uint32_t)MOST_F8E4M3 : (uint32_t)MOST_F8E5M2)) {
        return false;
    }
    FY_UNROLL
    for (int i = 0; i < 4; i++) {
        w[i] = is_e4m3 ? fy_pair_to_f8e4m3(in[2 * i], in[2 * i + 1])
                       : fy_pair_to_f8e5m2(in[2 * i], in[2 * i + 1]);
    }
    v->x = w[0] | w[1] << 16;
    v->y = w[2] | w[3] << 16;
    return true;
}
#else
FY_DEVICE bool load_pairs_f8(fy_v8 v, uint32_t type, float out[8])
{
    (void)has_nan_f8(v, type);
    (void)out;
    return false;
}

FY_DEVICE bool store_pairs_f8(const float in[8], uint32_t type, fy_v8 *v)
{
    (void)in;
    (void)type;
    (void)v;
    return false;
}
#endif

/*
 * Eight numbers side by side, at a multiple of 16 bytes; of f8 types, of 8. Pairs make what waits
 * for several loads slower, so sums pass false: a constant.
 */
FY_DEVICE void load_8(uint64_t at, uint32_t type, bool by_pairs, float out[8])
{
    uint32_t w[4];
    if (type == FY_CUDA_F32) {
        words_of(fy_load16(at), w);
        FY_UNROLL
        for (int i = 0; i < 4; i++) {
            out[i] = float_of(w[i]);
        }
        words_of(fy_load16(at + 16), w);
        FY_UNROLL
        for (int i = 0; i < 4; i++) {
            out[4 + i] = float_of(w[i]);
        }
    } else if (type == FY_CUDA_F16 || type == FY_CUDA_BF16) {
        words_of(fy_load16(at), w);
        if (by_pairs && type == FY_CUDA_F16 && load_pairs_f16(w, out)) {
            return;
        }
        FY_UNROLL
        for (int i = 0; i < 4; i++) {
            out[2 * i] = widen_one(type, w[i] & 0xffff);
            out[2 * i + 1] = widen_one(type, w[i] >> 16);
        }
    } else {
        fy_v8 v = fy_load8(at);
        if (by_pairs && load_pairs_f8(v, type, out)) {
            return;
        }
        FY_UNROLL
        for (int i = 0; i < 4; i++) {
            out[i] = widen_one(type, v.x >> 8 * i & 0xff);
            out[4 + i] = widen_one(type, v.y >> 8 * i & 0xff);
        }
    }
}

/* Four of them, at a multiple of 8 bytes; of f8 types, of 4. Not of f32. */
FY_DEVICE void load_4(uint64_t at, uint32_t type, float out[4])
{
    if (type == FY_CUDA_F16 || type == FY_CUDA_BF16) {
        fy_v8 v = fy_load8(at);
        out[0] = widen_one(type, v.x & 0xffff);
        out[1] = widen_one(type, v.x >> 16);
        out[2] = widen_one(type, v.y & 0xffff);
        out[3] = widen_one(type, v.y >> 16);
    } else {
        uint32_t v = fy_load4(at);
        FY_UNROLL
        for (int i = 0; i < 4; i++) {
            out[i] = widen_one(type, v >> 8 * i & 0xff);
        }
    }
}

FY_DEVICE void store_8(uint64_t at, uint32_t type, bool by_pairs, const float in[8])
{
    uint32_t w[4];
    if (type == FY_CUDA_F32) {
        FY_UNROLL
        for (int i = 0; i < 4; i++) {
            w[i] = bits_of(in[i]);
        }
        fy_store16(at, v16_of(w));
        FY_UNROLL
        for (int i = 0; i < 4; i++) {
            w[i] = bits_of(in[4 + i]);
        }
        fy_store16(at + 16, v16_of(w));
    } else if (type == FY_CUDA_F16 || type == FY_CUDA_BF16) {
        bool is_done = by_pairs && type == FY_CUDA_F16 && store_pairs_f16(in, w);
        FY_UNROLL
        for (int i = 0; i < 4 && !is_done; i++) {
            w[i] = narrow_one(type, in[2 * i]) | narrow_one(type, in[2 * i + 1]) << 16;
        }
        fy_store16(at, v16_of(w));
    } else {
        fy_v8 v = {0, 0};
        bool is_done = by_pairs && store_pairs_f8(in, type, &v);
        FY_UNROLL
        for (int i = 0; i < 4 && !is_done; i++) {
            v.x |= narrow_one(type, in[i]) << 8 * i;
            v.y |= narrow_one(type, in[4 + i]) << 8 * i;
        }
        fy_store8(at, v);
    }
}

FY_DEVICE float load_1(uint64_t at, uint32_t type)
{
    uint32_t bits = type == FY_CUDA_F32    ? fy_load4(at)
                    : type <= FY_CUDA_BF16 ? fy_load2(at)
                                           : fy_load1(at);
    return widen_one(type, bits);
}

FY_DEVICE void store_1(uint64_t at, uint32_t type, float value)
{
    uint32_t bits = narrow_one(type, value);
    if (type == FY_CUDA_F32) {
        fy_store4(at, bits);
    } else if (type <= FY_CUDA_BF16) {
        fy_store2(at, bits);
    } else {
        fy_store1(at, bits);
    }
}

FY_KERNEL(fy_cuda_cast_8, fy_cuda_cast)
{
    for (uint32_t i = FY_BLOCK * FY_THREADS + FY_THREAD; i < a.n_units;
         i += FY_BLOCKS * FY_THREADS) {
        float v[8];
        load_8(address_of(&a.from, i), a.from_type, true, v);
        bool is_kept = a.changes == 0 ||
                       (a.changes == FY_CUDA_SATURATES && largest_of(v) <= most_of(a.to_type));
        FY_UNROLL
        for (int k = 0; k < 8; k++) {
            v[k] = is_kept ? v[k] : changed(&a, v[k]);
        }
        store_8(address_of(&a.to, i), a.to_type, true, v);
    }
}

/* To f32 from what is narrower: so that threads beside each other store side by side. */
FY_KERNEL(fy_cuda_cast_4, fy_cuda_cast)
{
    for (uint32_t i = FY_BLOCK * FY_THREADS + FY_THREAD; i < a.n_units;
         i += FY_BLOCKS * FY_THREADS) {
        float v[4];
        uint32_t w[4];
        load_4(address_of(&a.from, i), a.from_type, v);
        FY_UNROLL
        for (int k = 0; k < 4; k++) {
            w[k] = bits_of(a.changes == 0 ? v[k] : changed(&a, v[k]));
        }
        fy_store16(address_of(&a.to, i), v16_of(w));
    }
}

FY_KERNEL(fy_cuda_cast_1, fy_cuda_cast)
{
    for (uint32_t i = FY_BLOCK * FY_THREADS + FY_THREAD; i < a.n_units;
         i += FY_BLOCKS * FY_THREADS) {
        float v = load_1(address_of(&a.from, i), a.from_type);
        store_1(address_of(&a.to, i), a.to_type, a.changes == 0 ? v : changed(&a, v));
    }
}

/* A sum that is NaN is the same one everywhere: see exec/sum.h. */
FY_DEVICE float with_one_nan(float value)
{
    return is_nan(value) ? float_of(0x7fc00000) : value;
}

FY_DEVICE uint32_t bytes_of(uint32_t type)
{
    return type == FY_CUDA_F32 ? 4 : type <= FY_CUDA_BF16 ? 2 : 1;
}

/*
 * Codes of half a byte, the first of two in the lower half: 0 or 0.5, or powers of 2 from 1 to 4
 * and the halves between them.
 */
FY_DEVICE float widen_one_f4(uint32_t code)
{
    uint32_t power = code >> 1 & 3, half = code & 1;
    uint32_t magnitude = power != 0 ? (126 + power) << F32_MANTISSA | half << (F32_MANTISSA - 1)
                                    : half * (126u << F32_MANTISSA);
    return float_of(magnitude | (code & 8) << 28);
}

FY_DEVICE float changed_f4(const fy_cuda_cast *a, uint32_t code)
{
    float value = widen_one_f4(code & 15);
    return a->changes == 0 ? value : changed(a, value);
}

FY_KERNEL(fy_cuda_cast_f4_8, fy_cuda_cast)
{
    for (uint32_t i = FY_BLOCK * FY_THREADS + FY_THREAD; i < a.n_units;
         i += FY_BLOCKS * FY_THREADS) {
        uint32_t codes = fy_load4(address_of(&a.from, i));
        float v[8];
        FY_UNROLL
        for (int k = 0; k < 8; k++) {
            v[k] = changed_f4(&a, codes >> 4 * k);
        }
        store_8(address_of(&a.to, i), a.to_type, true, v);
    }
}

FY_KERNEL(fy_cuda_cast_f4_2, fy_cuda_cast)
{
    for (uint32_t i = FY_BLOCK * FY_THREADS + FY_THREAD; i < a.n_units;
         i += FY_BLOCKS * FY_THREADS) {
        uint32_t codes = fy_load1(address_of(&a.from, i));
        uint64_t to = address_of(&a.to, i);
        store_1(to, a.to_type, changed_f4(&a, codes));
        store_1(to + bytes_of(a.to_type), a.to_type, changed_f4(&a, codes >> 4));
    }
}

FY_KERNEL(fy_cuda_sum_8, fy_cuda_sum)
{
    uint64_t source_step = 8 * bytes_of(a.source_type), target_step = 8 * bytes_of(a.target_type);
    for (uint64_t i = (uint64_t)FY_BLOCK * FY_THREADS + FY_THREAD; i < a.n_units;
         i += (uint64_t)FY_BLOCKS * FY_THREADS) {
        float sum[8], v[8];
        load_8(a.sources[0] + i * source_step, a.source_type, false, sum);
        for (uint32_t r = 1; r < a.n_sources; r++) {
            load_8(a.sources[r] + i * source_step, a.source_type, false, v);
            FY_UNROLL
            for (int k = 0; k < 8; k++) {
                sum[k] += v[k];
            }
        }
        FY_UNROLL
        for (int k = 0; k < 8; k++) {
            sum[k] = with_one_nan(sum[k]);
        }
        store_8(a.targets[0] + i * target_step, a.target_type, false, sum);
        if (a.targets[1] != 0) {
            store_8(a.targets[1] + i * target_step, a.target_type, false, sum);
        }
    }
}

FY_KERNEL(fy_cuda_sum_1, fy_cuda_sum)
{
    uint64_t source_step = bytes_of(a.source_type), target_step = bytes_of(a.target_type);
    for (uint64_t i = (uint64_t)FY_BLOCK * FY_THREADS + FY_THREAD; i < a.n_units;
         i += (uint64_t)FY_BLOCKS * FY_THREADS) {
        float sum = load_1(a.sources[0] + i * source_step, a.source_type);
        for (uint32_t r = 1; r < a.n_sources; r++) {
            sum += load_1(a.sources[r] + i * source_step, a.source_type);
        }
        sum = with_one_nan(sum);
        store_1(a.targets[0] + i * target_step, a.target_type, sum);
        if (a.targets[1] != 0) {
            store_1(a.targets[1] + i * target_step, a.target_type, sum);
        }
    }
}

/*
 * Rows that begin anywhere
 */

/* 16 of the 32 bytes of two that lie side by side, from byte `first` (below 16) on. */
FY_DEVICE fy_v16 bytes_within(fy_v16 low, fy_v16 high, uint32_t first)
{
    uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    uint32_t bits = 8 * (first & 3), out[4];
    FY_UNROLL
    for (uint32_t i = 0; i < 6; i++) {
        w[i] = (first & 8) != 0 ? w[i + 2] : w[i];
    }
    FY_UNROLL
    for (uint32_t i = 0; i < 5; i++) {
        w[i] = (first & 4) != 0 ? w[i + 1] : w[i];
    }
    FY_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        out[i] = fy_funnel(w[i], w[i + 1], bits);
    }
    return v16_of(out);
}

/* Bytes [first, end) of the 16 at an address that is no multiple, one by one. */
FY_DEVICE fy_v16 load_part(uint64_t at, uint32_t first, uint32_t end)
{
    uint32_t w[4] = {0, 0, 0, 0};
    for (uint32_t k = first; k < end; k++) {
        uint32_t byte = fy_load1(at + k) << 8 * (k & 3);
        FY_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            w[i] |= k / 4 == i ? byte : 0;
        }
    }
    return v16_of(w);
}

/* Bytes [first, end) of a window, which begins at a multiple of 16. */
FY_DEVICE void store_part(uint64_t at, fy_v16 v, uint32_t first, uint32_t end)
{
    uint32_t w[4];
    words_of(v, w);
    FY_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        if (first <= 4 * i && 4 * i + 4 <= end) {
            fy_store4(at + 4 * i, w[i]);
            continue;
        }
        FY_UNROLL
        for (uint32_t k = 4 * i; k < 4 * i + 4; k++) {
            if (first <= k && k < end) {
                fy_store1(at + k, w[i] >> 8 * (k & 3) & 0xff);
            }
        }
    }
}

/* Where bytes [first, end) of the 16 at `at` come from: two loads, or what of them is there. */
FY_DEVICE fy_v16 load_anywhere(uint64_t at, uint32_t first, uint32_t end, uint64_t least,
                               uint64_t most)
{
    uint32_t shift = (uint32_t)(at & 15);
    uint64_t low = at - shift, high = low + 16;
    bool needs_low = shift + first<16, needs_high = shift + end> 16;
    if ((needs_low && (low < least || high > most)) ||
        (needs_high && (high < least || high + 16 > most))) {
        return load_part(at, first, end);
    }
    fy_v16 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
    if (needs_low) {
        a = fy_load16_again(low);
    }
    if (needs_high) {
        b = fy_load16_again(high);
    }
    return bytes_within(a, b, shift);
}

FY_KERNEL(fy_cuda_copy_rows, fy_cuda_rows)
{
    for (uint32_t i = FY_BLOCK * FY_THREADS + FY_THREAD; i < a.n_units;
         i += FY_BLOCKS * FY_THREADS) {
        uint32_t row = divided(i, &a.windows);
        uint64_t at = (uint64_t)(i - row * a.windows.value) * FY_CUDA_WINDOW;
        uint64_t to = address_of(&a.to, row);
        uint64_t before = to & (FY_CUDA_WINDOW - 1), behind = before + a.row_bytes;
        if (at >= behind) { /* one less, as this row begins */
            continue;
        }
        uint32_t first = at == 0 ? (uint32_t)before : 0;
        uint32_t end = behind - at < FY_CUDA_WINDOW ? (uint32_t)(behind - at) : FY_CUDA_WINDOW;
        fy_v16 v = load_anywhere(address_of(&a.from, row) - before + at, first, end, a.from_begin,
                                 a.from_end);
        if (first == 0 && end == FY_CUDA_WINDOW) {
            fy_store16(to - before + at, v);
        } else {
            store_part(to - before + at, v, first, end);
        }
    }
}

#include "memory/cuda/hash_kernel.h"
#include "memory/cuda/lanes_kernel.h"
#include "memory/cuda/scale_kernel.h"
