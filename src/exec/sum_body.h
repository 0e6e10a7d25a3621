/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of sum_<isa>.c for sets with vectors: included once in each, with the compiler flags of
 * that set, behind these: FY_SUM_KERNEL, the name of the kernel; VECTOR, a type of some f32, and
 * ADD; load_<type>, a vector from any address; split_bf16, the elements at even and those at odd
 * places, which costs less than widening them in order; with_one_nan, which makes
 * every NaN the canonical one; bits_of, join_<type> and unsplit_bf16, one or two vectors as what is
 * stored; store_bits, stream_bits, to any address and past the cache to a multiple of the vector's
 * size; copy_in and copy_out, up to two vectors of which memory has only a part.
 *
 * Sums of a group of elements stay in registers while one source after the other is read: each is
 * read once, targets are written once. What is left at the end, and before the first line of a
 * target that is streamed, is summed as the groups are: so all elements have the same bits.
 */
#include <stdint.h>

enum {
    LINE = 64,
    LANES = sizeof(VECTOR) / sizeof(float),
    PAIR = 2 * LANES, /* elements */
    PAIRS = 4,        /* of a group */
    GROUP = PAIRS * PAIR,
    AHEAD = 1024,  /* bytes of a source between what is added and what is asked for */
    MOST_KNOWN = 4 /* sources that have a loop of their own */
};

#define EACH_PAIR _Pragma("GCC unroll 4") for (size_t p = 0; p < PAIRS; p++)

/* Sums under way of elements side by side: the first and the second half, or even and odd. */
typedef struct pair {
    VECTOR a, b;
} pair;

/* The types are constants where these are inlined. */
static ALWAYS_INLINE pair load_pair(const char *from, fy_sum_type source, fy_sum_type target)
{
    pair p;
    size_t half = LANES * fy_sum_type_bytes(source);
    if (source == FY_SUM_F32) {
        p = (pair){load_f32(from), load_f32(from + half)};
    } else if (source == FY_SUM_F16) {
        p = (pair){load_f16(from), load_f16(from + half)};
    } else if (target == FY_SUM_BF16) {
        split_bf16(from, &p.a, &p.b);
    } else {
        p = (pair){load_bf16(from), load_bf16(from + half)};
    }
    return p;
}

static ALWAYS_INLINE pair add_pair(pair p, const char *from, fy_sum_type source, fy_sum_type target)
{
    pair q = load_pair(from, source, target);
    return (pair){ADD(p.a, q.a), ADD(p.b, q.b)};
}

static ALWAYS_INLINE void put_bits(char *to, __typeof__(bits_of((VECTOR){0})) bits, bool stream)
{
    if (stream) {
        stream_bits(to, bits);
    } else {
        store_bits(to, bits);
    }
}

static ALWAYS_INLINE void put_pair(char *to, pair p, fy_sum_type source, fy_sum_type target,
                                   bool stream)
{
    if (target == FY_SUM_F32) {
        put_bits(to, bits_of(p.a), stream);
        put_bits(to + sizeof(VECTOR), bits_of(p.b), stream);
    } else if (target == FY_SUM_F16) {
        put_bits(to, join_f16(p.a, p.b), stream);
    } else if (source == FY_SUM_BF16) {
        put_bits(to, unsplit_bf16(p.a, p.b), stream);
    } else {
        put_bits(to, join_bf16(p.a, p.b), stream);
    }
}

static ALWAYS_INLINE pair with_one_nan_each(pair p)
{
    return (pair){with_one_nan(p.a), with_one_nan(p.b)};
}

/* The part of a source that a pair is made of: where it is or, if it is no whole pair, a copy. */
static ALWAYS_INLINE const char *part_of(const void *source, size_t offset, size_t n_bytes,
                                         bool is_whole, char *buffer)
{
    const char *from = (const char *)source + offset;
    if (is_whole) {
        return from;
    }
    copy_in(buffer, from, n_bytes);
    return buffer;
}

/* Elements [first, first + n), at most a pair, through the cache. */
static ALWAYS_INLINE void sum_few(const fy_sum *sum, size_t first, size_t n)
{
    _Alignas(LINE) char buffer[2 * sizeof(VECTOR)];
    fy_sum_type source = sum->source_type, target = sum->target_type;
    size_t at = first * fy_sum_type_bytes(source), bytes = n * fy_sum_type_bytes(source);
    bool is_whole = n == PAIR;
    pair p = load_pair(part_of(sum->sources[0], at, bytes, is_whole, buffer), source, target);
    for (size_t i = 1; i < sum->n_sources; i++) {
        const char *from = part_of(sum->sources[i], at, bytes, is_whole, buffer);
        p = add_pair(p, from, source, target);
    }
    p = with_one_nan_each(p);
    put_pair(buffer, p, source, target, false);
    for (int i = 0; i < FY_SUM_MOST_TARGETS; i++) {
        char *to = sum->targets[i];
        if (to == NULL) {
            continue;
        }
        if (is_whole) {
            put_pair(to + first * fy_sum_type_bytes(target), p, source, target, false);
        } else {
            copy_out(to + first * fy_sum_type_bytes(target), buffer, n * fy_sum_type_bytes(target));
        }
    }
}

/* Elements [first, end): few, so the types need not be constants. */
static __attribute__((noinline)) void sum_ends(const fy_sum *sum, size_t first, size_t end)
{
    for (; first < end; first += PAIR) {
        sum_few(sum, first, end - first < PAIR ? end - first : PAIR);
    }
}

/* How a loop over groups goes; values, which stores to targets cannot change. */
typedef struct course {
    const char *sources[MOST_KNOWN]; /* n_known of them */
    const void *const *all;          /* n_sources of them */
    size_t n_sources;
    char *to, *also_to;
    bool stream;
} course;

/*
 * The work on 16-bit elements takes so long that few lines are on their way at once, which shows
 * where another core has just written them. f32 is best left to the hardware.
 */
static ALWAYS_INLINE void ask_for_group(const char *from, fy_sum_type source)
{
    if (source != FY_SUM_F32) {
        for (size_t at = 0; at < GROUP * fy_sum_type_bytes(source); at += LINE) {
            __builtin_prefetch(from + at);
        }
    }
}

/* Offset `ahead` is the group's that will be added later. */
static ALWAYS_INLINE void add_group(pair *sums, const char *from, size_t ahead, fy_sum_type source,
                                    fy_sum_type target)
{
    size_t step = PAIR * fy_sum_type_bytes(source);
    ask_for_group(from + ahead, source);
    EACH_PAIR
    {
        sums[p] = add_pair(sums[p], from + p * step, source, target);
    }
}

static ALWAYS_INLINE void put_group(char *to, const pair *sums, fy_sum_type source,
                                    fy_sum_type target, bool stream)
{
    size_t step = PAIR * fy_sum_type_bytes(target);
    EACH_PAIR
    {
        put_pair(to + p * step, sums[p], source, target, stream);
    }
}

/* A group at these offsets; n_known, a constant, is 0 where there may be any number of sources. */
static ALWAYS_INLINE void sum_group(const course *c, size_t n_known, fy_sum_type source,
                                    fy_sum_type target, size_t from, size_t ahead, size_t to)
{
    pair sums[PAIRS];
    size_t step = PAIR * fy_sum_type_bytes(source);
    const char *first = n_known == 0 ? c->all[0] : c->sources[0];
    ask_for_group(first + from + ahead, source);
    EACH_PAIR
    {
        sums[p] = load_pair(first + from + p * step, source, target);
    }
    if (n_known == 0) {
        for (size_t i = 1; i < c->n_sources; i++) {
            add_group(sums, (const char *)c->all[i] + from, ahead, source, target);
        }
    } else {
        add_group(sums, c->sources[1] + from, ahead, source, target);
        if (n_known > 2) {
            add_group(sums, c->sources[2] + from, ahead, source, target);
        }
        if (n_known > 3) {
            add_group(sums, c->sources[3] + from, ahead, source, target);
        }
    }
    EACH_PAIR
    {
        sums[p] = with_one_nan_each(sums[p]);
    }
    if (c->stream) {
        put_group(c->to + to, sums, source, target, true);
    } else {
        put_group(c->to + to, sums, source, target, false);
    }
    if (c->also_to != NULL) {
        put_group(c->also_to + to, sums, source, target, false);
    }
}

/* Whole groups: elements [first, end). */
static ALWAYS_INLINE void sum_groups(const fy_sum *sum, size_t n_known, fy_sum_type source,
                                     fy_sum_type target, size_t first, size_t end)
{
    course c = {.all = sum->sources,
                .n_sources = sum->n_sources,
                .to = sum->targets[0],
                .also_to = sum->targets[1],
                .stream = sum->stream};
    for (size_t i = 0; i < n_known; i++) {
        c.sources[i] = sum->sources[i];
    }
    for (; first < end; first += GROUP) {
        size_t from = first * fy_sum_type_bytes(source);
        size_t ahead = end - first > AHEAD / fy_sum_type_bytes(source) ? AHEAD : 0;
        sum_group(&c, n_known, source, target, from, ahead, first * fy_sum_type_bytes(target));
    }
}

/* Aligning cached stores as well costs short rows more than it saves. */
static ALWAYS_INLINE size_t elements_before_line(const void *to, fy_sum_type type)
{
    return -(uintptr_t)to % LINE / fy_sum_type_bytes(type);
}

static ALWAYS_INLINE void sum_all(const fy_sum *sum, fy_sum_type source, fy_sum_type target)
{
    size_t first = sum->stream ? elements_before_line(sum->targets[0], target) : 0;
    first = first < sum->n ? first : sum->n;
    size_t end = first + (sum->n - first) / GROUP * GROUP;
    sum_ends(sum, 0, first);
    switch (sum->n_sources) {
    case 2:
        sum_groups(sum, 2, source, target, first, end);
        break;
    case 3:
        sum_groups(sum, 3, source, target, first, end);
        break;
    case 4:
        sum_groups(sum, 4, source, target, first, end);
        break;
    default:
        sum_groups(sum, 0, source, target, first, end);
    }
    sum_ends(sum, end, sum->n);
}

static void sum_f32(const fy_sum *sum)
{
    if (sum->target_type == FY_SUM_F16) {
        sum_all(sum, FY_SUM_F32, FY_SUM_F16);
    } else if (sum->target_type == FY_SUM_BF16) {
        sum_all(sum, FY_SUM_F32, FY_SUM_BF16);
    } else {
        sum_all(sum, FY_SUM_F32, FY_SUM_F32);
    }
}

static void sum_f16(const fy_sum *sum)
{
    if (sum->target_type == FY_SUM_F16) {
        sum_all(sum, FY_SUM_F16, FY_SUM_F16);
    } else {
        sum_all(sum, FY_SUM_F16, FY_SUM_F32);
    }
}

static void sum_bf16(const fy_sum *sum)
{
    if (sum->target_type == FY_SUM_BF16) {
        sum_all(sum, FY_SUM_BF16, FY_SUM_BF16);
    } else {
        sum_all(sum, FY_SUM_BF16, FY_SUM_F32);
    }
}

void FY_SUM_KERNEL(const fy_sum *sum)
{
    switch (sum->source_type) {
    case FY_SUM_F16:
        sum_f16(sum);
        return;
    case FY_SUM_BF16:
        sum_bf16(sum);
        return;
    default:
        sum_f32(sum);
    }
}
