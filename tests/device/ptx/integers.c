/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Instructions on whole numbers, bits and predicates, each a number of up to four. Who writes the
 * result cuts it to the width of the target; sources are as wide as their types, with zeros above.
 */
#include "device/ptx/program.h"

#include <string.h>

__extension__ typedef unsigned __int128 wide_unsigned;
__extension__ typedef __int128 wide_signed;

#define RECKON(name, ...)                                                                          \
    static uint64_t name(uint64_t a, uint64_t b, uint64_t c, uint64_t d)                           \
    {                                                                                              \
        (void)a;                                                                                   \
        (void)b;                                                                                   \
        (void)c;                                                                                   \
        (void)d;                                                                                   \
        return (uint64_t)(__VA_ARGS__);                                                            \
    }

RECKON(same, a)
RECKON(add, a + b)
RECKON(sub, a - b)
RECKON(mul, a *b)
RECKON(mad, a *b + c)
RECKON(neg, 0 - a)
RECKON(and, a &b)
RECKON(or, a | b)
RECKON(xor, a ^ b)
RECKON(not, ~a)
RECKON(select_one, c != 0 ? a : b)

/* Of one type each: (wide) has room for a product. */
#define OF_TYPE(t, type, wide, bits)                                                               \
    RECKON(mul_hi_##t, (wide)((wide)(type)a * (wide)(type)b) >> (bits))                            \
    RECKON(mad_hi_##t, (uint64_t)((wide)((wide)(type)a * (wide)(type)b) >> (bits)) + c)            \
    RECKON(div_##t, (wide)(type)a / (wide)(type)b)                                                 \
    RECKON(rem_##t, (wide)(type)a % (wide)(type)b)                                                 \
    RECKON(min_##t, (type)a < (type)b ? a : b)                                                     \
    RECKON(max_##t, (type)a > (type)b ? a : b)                                                     \
    RECKON(shr_##t, b >= (bits) ? ((type)a < (type)1 && (type)a != 0 ? ~UINT64_C(0) : 0)           \
                                : (uint64_t)(type)((type)a >> b))                                  \
    RECKON(eq_##t, (type)a == (type)b)                                                             \
    RECKON(ne_##t, (type)a != (type)b)                                                             \
    RECKON(lt_##t, (type)a < (type)b)                                                              \
    RECKON(le_##t, (type)a <= (type)b)                                                             \
    RECKON(gt_##t, (type)a > (type)b)                                                              \
    RECKON(ge_##t, (type)a >= (type)b)

#define WIDE(t, type, wide)                                                                        \
    RECKON(mul_wide_##t, (wide)(type)a *(wide)(type)b)                                             \
    RECKON(mad_wide_##t, (uint64_t)((wide)(type)a * (wide)(type)b) + c)

WIDE(u16, uint16_t, uint32_t)
WIDE(s16, int16_t, int32_t)
WIDE(u32, uint32_t, uint64_t)
WIDE(s32, int32_t, int64_t)
OF_TYPE(u16, uint16_t, uint32_t, 16)
OF_TYPE(s16, int16_t, int32_t, 16)
OF_TYPE(u32, uint32_t, uint64_t, 32)
OF_TYPE(s32, int32_t, int64_t, 32)
OF_TYPE(u64, uint64_t, wide_unsigned, 64)
OF_TYPE(s64, int64_t, wide_signed, 64)

RECKON(abs_s32, (int32_t)a < 0 ? 0 - a : a)
RECKON(abs_s64, (int64_t)a < 0 ? 0 - a : a)

/* Shifts by more than there are bits leave nothing. */
RECKON(shl_16, b > 15 ? 0 : a << b)
RECKON(shl_32, b > 31 ? 0 : a << b)
RECKON(shl_64, b > 63 ? 0 : a << b)

RECKON(funnel_left_wrap, ((b << 32 | a) << (c & 31)) >> 32)
RECKON(funnel_left_clamp, c > 31 ? a : ((b << 32 | a) << c) >> 32)
RECKON(funnel_right_wrap, (b << 32 | a) >> (c & 31))
RECKON(funnel_right_clamp, c > 31 ? b : (b << 32 | a) >> c)

/* Bits [from, from + n) of a, of which there are so many; the highest of them goes on above. */
static uint64_t extract(uint64_t a, uint64_t from, uint64_t n, uint64_t bits, bool is_signed)
{
    from &= 0xff;
    n &= 0xff;
    uint64_t last = from + n - 1 < bits - 1 ? from + n - 1 : bits - 1;
    bool is_set = is_signed && n > 0 && (a >> last & 1) != 0;
    uint64_t out = 0;
    for (uint64_t i = 0; i < bits; i++) {
        bool is_one = i < n && from + i < bits ? (a >> (from + i) & 1) != 0 : is_set;
        out |= (uint64_t)is_one << i;
    }
    return out;
}
RECKON(bfe_u32, extract(a, b, c, 32, false))
RECKON(bfe_s32, extract(a, b, c, 32, true))
RECKON(bfe_u64, extract(a, b, c, 64, false))
RECKON(bfe_s64, extract(a, b, c, 64, true))

/* b, with n bits from `from` on those of a. */
static uint64_t insert(uint64_t a, uint64_t b, uint64_t from, uint64_t n, uint64_t bits)
{
    from &= 0xff;
    n &= 0xff;
    for (uint64_t i = 0; i < n && from + i < bits; i++) {
        uint64_t place = UINT64_C(1) << (from + i);
        b = (a >> i & 1) != 0 ? b | place : b & ~place;
    }
    return b;
}
RECKON(bfi_32, insert(a, b, c, d, 32))
RECKON(bfi_64, insert(a, b, c, d, 64))

/* Each byte one of the eight, or eight times its sign. */
static uint64_t permute(uint64_t a, uint64_t b, uint64_t chosen)
{
    uint64_t all = b << 32 | a, out = 0;
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t which = chosen >> 4 * i & 15;
        uint64_t byte = all >> 8 * (which & 7) & 0xff;
        byte = (which & 8) == 0 ? byte : (byte & 0x80) != 0 ? 0xff : 0;
        out |= byte << 8 * i;
    }
    return out;
}
RECKON(prmt, permute(a, b, c))

/* Bit i of the table says what becomes of the bits of a, b and c that make the number i. */
static uint64_t three(uint64_t a, uint64_t b, uint64_t c, uint64_t table)
{
    uint64_t out = 0;
    for (uint32_t i = 0; i < 32; i++) {
        uint64_t number = (a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1);
        out |= (table >> number & 1) << i;
    }
    return out;
}
RECKON(lop3, three(a, b, c, d))

static uint64_t count_zeros(uint64_t a, uint32_t bits)
{
    uint32_t n = 0;
    while (n < bits && (a >> (bits - 1 - n) & 1) == 0) {
        n++;
    }
    return n;
}
RECKON(clz_32, count_zeros(a, 32))
RECKON(clz_64, count_zeros(a, 64))

static uint64_t count_ones(uint64_t a)
{
    uint64_t n = 0;
    for (; a != 0; a >>= 1) {
        n += a & 1;
    }
    return n;
}
RECKON(popc, count_ones(a))

static uint64_t turn_round(uint64_t a, uint32_t bits)
{
    uint64_t out = 0;
    for (uint32_t i = 0; i < bits; i++) {
        out |= (a >> i & 1) << (bits - 1 - i);
    }
    return out;
}
RECKON(brev_32, turn_round(a, 32))
RECKON(brev_64, turn_round(a, 64))

/* Conversions keep what fits; those that widen go by the sign of the source's type. */
RECKON(from_u8, a & 0xff)
RECKON(from_s8, (int64_t)(int8_t)a)
RECKON(from_u16, a & 0xffff)
RECKON(from_s16, (int64_t)(int16_t)a)
RECKON(from_s32, (int64_t)(int32_t)a)

#define COMPARED(t, w)                                                                             \
    {"setp.eq." #t, "p=" w w, eq_##t}, {"setp.ne." #t, "p=" w w, ne_##t},                          \
        {"setp.lt." #t, "p=" w w, lt_##t}, {"setp.le." #t, "p=" w w, le_##t},                      \
        {"setp.gt." #t, "p=" w w, gt_##t},                                                         \
    {                                                                                              \
        "setp.ge." #t, "p=" w w, ge_##t                                                            \
    }

#define WHOLE(t, w)                                                                                \
    {"add." #t, w "=" w w, add}, {"sub." #t, w "=" w w, sub}, {"mul.lo." #t, w "=" w w, mul},      \
        {"mul.hi." #t, w "=" w w, mul_hi_##t}, {"mad.lo." #t, w "=" w w w, mad},                   \
        {"mad.hi." #t, w "=" w w w, mad_hi_##t}, {"div." #t, w "=" w w "!", div_##t},              \
        {"rem." #t, w "=" w w "!", rem_##t}, {"min." #t, w "=" w w, min_##t},                      \
        {"max." #t, w "=" w w, max_##t}, {"shr." #t, w "=" w "w", shr_##t}, COMPARED(t, w)

#define BITS(n, w)                                                                                 \
    {"and.b" #n, w "=" w w, and}, {"or.b" #n, w "=" w w, or }, {"xor.b" #n, w "=" w w, xor},       \
        {"not.b" #n, w "=" w, not }, {"shl.b" #n, w "=" w "w", shl_##n},                           \
        {"shr.b" #n, w "=" w "w", shr_u##n}, {"setp.eq.b" #n, "p=" w w, eq_u##n},                  \
        {"setp.ne.b" #n, "p=" w w, ne_u##n}, MOVED("b" #n, w), MOVED("u" #n, w), MOVED("s" #n, w)

#define MOVED(t, w)                                                                                \
    {"mov." t, w "=" w, same},                                                                     \
    {                                                                                              \
        "selp." t, w "=" w w "p", select_one                                                       \
    }

static const ptx_row rows[] = {
    WHOLE(u16, "h"),
    WHOLE(s16, "h"),
    WHOLE(u32, "w"),
    WHOLE(s32, "w"),
    WHOLE(u64, "d"),
    WHOLE(s64, "d"),
    BITS(16, "h"),
    BITS(32, "w"),
    BITS(64, "d"),
    MOVED("f32", "w"),
    MOVED("f64", "d"),
    {"mov.pred", "p=p", same},
    {"and.pred", "p=pp", and},
    {"or.pred", "p=pp", or },
    {"xor.pred", "p=pp", xor},
    {"not.pred", "p=p", not },
    {"mul.wide.u16", "w=hh", mul_wide_u16},
    {"mul.wide.s16", "w=hh", mul_wide_s16},
    {"mul.wide.u32", "d=ww", mul_wide_u32},
    {"mul.wide.s32", "d=ww", mul_wide_s32},
    {"mad.wide.u16", "w=hhw", mad_wide_u16},
    {"mad.wide.s16", "w=hhw", mad_wide_s16},
    {"mad.wide.u32", "d=wwd", mad_wide_u32},
    {"mad.wide.s32", "d=wwd", mad_wide_s32},
    {"neg.s16", "h=h", neg},
    {"neg.s32", "w=w", neg},
    {"neg.s64", "d=d", neg},
    {"abs.s32", "w=w", abs_s32},
    {"abs.s64", "d=d", abs_s64},
    {"shf.l.wrap.b32", "w=www", funnel_left_wrap},
    {"shf.l.clamp.b32", "w=www", funnel_left_clamp},
    {"shf.r.wrap.b32", "w=www", funnel_right_wrap},
    {"shf.r.clamp.b32", "w=www", funnel_right_clamp},
    {"bfe.u32", "w=www", bfe_u32},
    {"bfe.s32", "w=www", bfe_s32},
    {"bfe.u64", "d=dww", bfe_u64},
    {"bfe.s64", "d=dww", bfe_s64},
    {"bfi.b32", "w=wwww", bfi_32},
    {"bfi.b64", "d=ddww", bfi_64},
    {"prmt.b32", "w=www", prmt},
    {"lop3.b32", "w=wwww", lop3},
    {"clz.b32", "w=w", clz_32},
    {"clz.b64", "w=d", clz_64},
    {"popc.b32", "w=w", popc},
    {"popc.b64", "w=d", popc},
    {"brev.b32", "w=w", brev_32},
    {"brev.b64", "d=d", brev_64},
    {"cvt.u16.u8", "h=h", from_u8},
    {"cvt.s16.s8", "h=h", from_s8},
    {"cvt.u32.u8", "w=h", from_u8},
    {"cvt.s32.s8", "w=h", from_s8},
    {"cvt.u64.u8", "d=h", from_u8},
    {"cvt.s64.s8", "d=h", from_s8},
    {"cvt.u32.u16", "w=h", from_u16},
    {"cvt.s32.s16", "w=h", from_s16},
    {"cvt.u64.u16", "d=h", from_u16},
    {"cvt.s64.s16", "d=h", from_s16},
    {"cvt.u64.u32", "d=w", same},
    {"cvt.s64.s32", "d=w", from_s32},
    {"cvt.u16.u32", "h=w", same},
    {"cvt.u16.u64", "h=d", same},
    {"cvt.u32.u64", "w=d", same},
    {"cvt.s32.s64", "w=d", same},
    {"cvt.u8.u32", "h=w", from_u8},
    {"cvt.u8.u16", "h=h", from_u8},
    {"cvt.u8.u64", "h=d", from_u8},
    {"cvt.s16.s32", "h=w", same},
};

const ptx_row *ptx_integer_row(const char *name)
{
    return ptx_find_row(rows, sizeof rows / sizeof rows[0], name);
}

/* The second operand replaces the word if the first one is there. */
RECKON(exchange, b)
RECKON(compare, a == b ? c : a)

ptx_reckon ptx_atomic(const char *operation, const char *type)
{
    static const struct {
        const char *operation, *type;
        ptx_reckon reckon;
    } known[] = {
        {"add", "u32", add},       {"add", "u64", add},       {"add", "s32", add},
        {"min", "u32", min_u32},   {"max", "u32", max_u32},   {"min", "s32", min_s32},
        {"max", "s32", max_s32},   {"min", "u64", min_u64},   {"max", "u64", max_u64},
        {"and", "b32", and},       {"or", "b32", or },        {"xor", "b32", xor},
        {"and", "b64", and},       {"or", "b64", or },        {"xor", "b64", xor},
        {"exch", "b32", exchange}, {"exch", "b64", exchange}, {"cas", "b32", compare},
        {"cas", "b64", compare},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].operation, operation) == 0 && strcmp(known[i].type, type) == 0) {
            return known[i].reckon;
        }
    }
    return NULL;
}
