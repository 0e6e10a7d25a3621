/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums against a slow reference that knows of each type how many bits its exponent and its mantissa
 * have, and does the rest with arithmetic in f64: the sum of two f32 rounded to f64 and then to f32
 * is rounded as if once. Every instruction set in turn, all through fy_sum_run.
 */
#include "exec/sum.h"
#include "host/copy.h"

#include "support/check.h"
#include "support/each_isa.h"
#include "support/random.h"

#include <math.h>
#include <sys/mman.h>

enum {
    MOST_SOURCES = 64,
    MOST_N = 5000, /* elements of a case */
    ROOM = 28672,  /* bytes between two pages that nobody may touch */
    PAGE = 4096,
    GUARD = 192, /* bytes around a target that must stay as they are */
    CANARY = 0x5a
};

/* ---- the reference ---- */

typedef struct layout {
    const char *name;
    int exponent_bits, mantissa_bits;
} layout;

static const layout layouts[FY_SUM_N_TYPES] = {
    [FY_SUM_F32] = {"f32", 8, 23}, [FY_SUM_F16] = {"f16", 5, 10}, [FY_SUM_BF16] = {"bf16", 8, 7}};

/* From f32 to any type, from the others to their own and to f32. */
static const fy_sum_type forms[][2] = {
    {FY_SUM_F32, FY_SUM_F32},  {FY_SUM_F32, FY_SUM_F16}, {FY_SUM_F32, FY_SUM_BF16},
    {FY_SUM_F16, FY_SUM_F16},  {FY_SUM_F16, FY_SUM_F32}, {FY_SUM_BF16, FY_SUM_BF16},
    {FY_SUM_BF16, FY_SUM_F32},
};

static int bias_of(const layout *l)
{
    return (1 << (l->exponent_bits - 1)) - 1;
}

static uint32_t sign_of(const layout *l)
{
    return 1u << (l->exponent_bits + l->mantissa_bits);
}

static uint32_t infinity_of(const layout *l)
{
    return ((1u << l->exponent_bits) - 1) << l->mantissa_bits;
}

static uint32_t nan_of(const layout *l)
{
    return infinity_of(l) | 1u << (l->mantissa_bits - 1);
}

static double value_of(fy_sum_type type, uint32_t code)
{
    const layout *l = &layouts[type];
    uint32_t magnitude = code & (sign_of(l) - 1);
    uint32_t mantissa = magnitude & ((1u << l->mantissa_bits) - 1);
    int exponent = (int)(magnitude >> l->mantissa_bits);
    double sign = (code & sign_of(l)) != 0 ? -1 : 1;
    if (magnitude > infinity_of(l)) {
        return NAN;
    }
    if (magnitude == infinity_of(l)) {
        return sign * INFINITY;
    }
    if (exponent == 0) {
        return sign * ldexp(mantissa, 1 - bias_of(l) - l->mantissa_bits);
    }
    return sign *
           ldexp(mantissa + (1u << l->mantissa_bits), exponent - bias_of(l) - l->mantissa_bits);
}

/* Rounds: counts units in the last place of the value's binade, or of the least one. */
static uint32_t code_of(fy_sum_type type, double value)
{
    const layout *l = &layouts[type];
    uint32_t sign = signbit(value) ? sign_of(l) : 0;
    int least = 1 - bias_of(l), exponent;
    if (isnan(value)) {
        return nan_of(l);
    }
    if (isinf(value)) {
        return sign | infinity_of(l);
    }
    exponent = value == 0 ? least : ilogb(value);
    exponent = exponent < least ? least : exponent;
    double units = rint(ldexp(fabs(value), l->mantissa_bits - exponent));
    double code = ldexp(exponent - least, l->mantissa_bits) + units;
    return sign | (code >= infinity_of(l) ? infinity_of(l) : (uint32_t)code);
}

static uint32_t load(fy_sum_type type, const char *memory, size_t i)
{
    uint32_t wide;
    uint16_t narrow;
    if (type == FY_SUM_F32) {
        memcpy(&wide, memory + 4 * i, sizeof wide);
        return wide;
    }
    memcpy(&narrow, memory + 2 * i, sizeof narrow);
    return narrow;
}

static void store(fy_sum_type type, char *memory, size_t i, uint32_t code)
{
    uint16_t narrow = (uint16_t)code;
    if (type == FY_SUM_F32) {
        memcpy(memory + 4 * i, &code, sizeof code);
    } else {
        memcpy(memory + 2 * i, &narrow, sizeof narrow);
    }
}

/* What element i of the sum must be. */
static uint32_t summed(fy_sum_type from, fy_sum_type to, const uint32_t *codes, size_t n)
{
    if (n == 1 && from == to) {
        return codes[0];
    }
    double sum = value_of(from, codes[0]);
    for (size_t i = 1; i < n; i++) {
        sum = value_of(FY_SUM_F32, code_of(FY_SUM_F32, sum + value_of(from, codes[i])));
    }
    return code_of(to, sum);
}

/* ---- memory ---- */

typedef struct rooms {
    char *sources[MOST_SOURCES], *targets[FY_SUM_MOST_TARGETS];
} rooms;

static rooms all;

static char *make_room(void)
{
    char *memory = mmap(NULL, ROOM + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    assert_int_equal(mprotect(memory + PAGE, ROOM, PROT_READ | PROT_WRITE), 0);
    return memory + PAGE;
}

static int make_rooms(void **state)
{
    (void)state;
    for (int i = 0; i < MOST_SOURCES; i++) {
        all.sources[i] = make_room();
    }
    for (int i = 0; i < FY_SUM_MOST_TARGETS; i++) {
        all.targets[i] = make_room();
    }
    return 0;
}

static int free_rooms(void **state)
{
    (void)state;
    for (int i = 0; i < MOST_SOURCES; i++) {
        munmap(all.sources[i] - PAGE, ROOM + 2 * PAGE);
    }
    for (int i = 0; i < FY_SUM_MOST_TARGETS; i++) {
        munmap(all.targets[i] - PAGE, ROOM + 2 * PAGE);
    }
    return 0;
}

/* ---- one sum ---- */

/* Elements of every source and what is to come out; a call takes the first n of them. */
typedef struct data {
    fy_sum_type from, to;
    size_t n_sources, n;
    uint32_t codes[MOST_N][MOST_SOURCES];
    uint32_t wanted[MOST_N];
} data;

static data input;

static void expect(data *d)
{
    for (size_t i = 0; i < d->n; i++) {
        d->wanted[i] = summed(d->from, d->to, d->codes[i], d->n_sources);
    }
}

enum { IN_PLACE_NOT = -1 };

/* How a call is made. Offsets are in elements. */
typedef struct way {
    size_t n;
    size_t source_offset; /* of the first; the others differ */
    bool at_end;          /* sources end where their room ends instead, and offsets are 0 */
    size_t target_offsets[FY_SUM_MOST_TARGETS];
    bool has_two, stream;
    int in_place; /* the source that is the first target too */
} way;

static const char *source_place(const data *d, const way *w, size_t i)
{
    size_t bytes = fy_sum_type_bytes(d->from);
    return w->at_end ? all.sources[i] + ROOM - w->n * bytes
                     : all.sources[i] + (w->source_offset + i * i) % 64 * bytes;
}

static char *target_place(const data *d, const way *w, int i)
{
    if (i == 0 && w->in_place >= 0) {
        return (char *)(uintptr_t)source_place(d, w, (size_t)w->in_place);
    }
    return all.targets[i] + GUARD + w->target_offsets[i] * fy_sum_type_bytes(d->to);
}

static void check_target(const data *d, const way *w, const char *to, const char *what)
{
    for (size_t i = 0; i < w->n; i++) {
        uint32_t code = load(d->to, to, i);
        check_at(code == d->wanted[i],
                 "%s, %s to %s, %zu sources, element %zu of %zu: %08x, not %08x; sources at %zu%s, "
                 "targets at %zu, %zu, %s, in place %d; first two: %08x %08x",
                 what, layouts[d->from].name, layouts[d->to].name, d->n_sources, i, w->n, code,
                 d->wanted[i], w->source_offset, w->at_end ? " (end)" : "", w->target_offsets[0],
                 w->target_offsets[1], w->stream ? "streamed" : "cached", w->in_place,
                 d->codes[i][0], d->n_sources > 1 ? d->codes[i][1] : 0);
    }
}

static void check_guards(const data *d, const way *w, const char *to)
{
    size_t bytes = w->n * fy_sum_type_bytes(d->to);
    for (size_t i = 1; i <= GUARD; i++) {
        check_at(to[-(ptrdiff_t)i] == CANARY, "%zu bytes before a target of %zu", i, w->n);
        check_at(to[bytes + i - 1] == CANARY, "byte %zu behind a target of %zu", i, w->n);
    }
}

/* Sources that are no target must be as they were. */
static void check_sources(const data *d, const way *w)
{
    for (size_t s = 0; s < d->n_sources; s++) {
        for (size_t i = 0; (int)s != w->in_place && i < w->n; i++) {
            check_at(load(d->from, source_place(d, w, s), i) == d->codes[i][s],
                     "source %zu, element %zu", s, i);
        }
    }
}

static void check_sum(const data *d, const way *w)
{
    const void *sources[MOST_SOURCES];
    fy_sum sum = {.sources = sources,
                  .n_sources = d->n_sources,
                  .source_type = d->from,
                  .targets = {target_place(d, w, 0), NULL},
                  .target_type = d->to,
                  .n = w->n,
                  .stream = w->stream};
    for (size_t s = 0; s < d->n_sources; s++) {
        sources[s] = source_place(d, w, s);
        for (size_t i = 0; i < w->n; i++) {
            store(d->from, (char *)(uintptr_t)sources[s], i, d->codes[i][s]);
        }
    }
    for (int i = 0; i < FY_SUM_MOST_TARGETS; i++) {
        memset(all.targets[i], CANARY,
               2 * GUARD + (w->n + w->target_offsets[i]) * fy_sum_type_bytes(d->to));
    }
    sum.targets[1] = w->has_two ? target_place(d, w, 1) : NULL;
    fy_sum_run(&sum);
    fy_copy_fence();
    check_target(d, w, sum.targets[0], "first target");
    if (w->in_place < 0) {
        check_guards(d, w, sum.targets[0]);
    }
    if (w->has_two) {
        check_target(d, w, sum.targets[1], "second target");
        check_guards(d, w, sum.targets[1]);
    }
    check_sources(d, w);
}

/* ---- inputs ---- */

static const uint32_t special_f32[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x00007fff, 0x00008000, 0x00008001, 0x00010000,
    0x00018000, 0x007fffff, 0x807fffff, 0x00800000, 0x80800000, 0x33000000, 0x33000001, 0x33800000,
    0x33c00000, 0xb3c00000, 0x387fe000, 0x387ff000, 0x38800000, 0x3f800000, 0xbf800000, 0x3f801000,
    0x3f803000, 0x3f808000, 0x3f818000, 0x3f807fff, 0x477fe000, 0x477fefff, 0x477ff000, 0xc77ff000,
    0x7f7f0000, 0x7f7f7fff, 0x7f7f8000, 0xff7f8000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
    0x7fc00000, 0xffc00000, 0x7f800001, 0xff800001, 0x7fbfffff, 0x7fffffff, 0xffffffff, 0x7fc12345,
};

static const uint32_t special_f16[] = {
    0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x8400, 0x3c00, 0xbc00, 0x1400, 0x1800,
    0x7bff, 0xfbff, 0x7800, 0x4c00, 0x7c00, 0xfc00, 0x7e00, 0xfe00, 0x7c01, 0xfc01, 0x7dff, 0x7fff,
};

static const uint32_t special_bf16[] = {
    0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x807f, 0x0080, 0x8080, 0x3f80, 0xbf80, 0x3b80, 0x3c00,
    0x7f7f, 0xff7f, 0x7b00, 0x7b80, 0x7f80, 0xff80, 0x7fc0, 0xffc0, 0x7f81, 0xff81, 0x7fbf, 0x7fff,
};

static const struct specials {
    const uint32_t *codes;
    uint32_t n;
} specials[FY_SUM_N_TYPES] = {[FY_SUM_F32] = {special_f32, COUNT_OF(special_f32)},
                              [FY_SUM_F16] = {special_f16, COUNT_OF(special_f16)},
                              [FY_SUM_BF16] = {special_bf16, COUNT_OF(special_bf16)}};

/* Any bits, special ones, and numbers of about the same size, whose sums are rounded. */
static uint32_t random_code(fy_sum_type type, uint64_t *seed)
{
    switch (random_below(seed, 8)) {
    case 0:
        return (uint32_t)random_u64(seed) & (2 * sign_of(&layouts[type]) - 1);
    case 1:
        return specials[type].codes[random_below(seed, specials[type].n)];
    case 2:
        return code_of(type, (double)random_below(seed, 4096) - 2048);
    default:
        return code_of(type, ldexp((double)random_below(seed, 1u << 24) - (1 << 23),
                                   (int)random_below(seed, 12) - 28));
    }
}

static void fill(data *d, const fy_sum_type form[2], size_t n_sources, size_t n, uint64_t *seed)
{
    d->from = form[0];
    d->to = form[1];
    d->n_sources = n_sources;
    d->n = n;
    for (size_t i = 0; i < n; i++) {
        for (size_t s = 0; s < n_sources; s++) {
            d->codes[i][s] = random_code(d->from, seed);
        }
    }
    expect(d);
}

static way random_way(const data *d, size_t n, uint64_t *seed)
{
    way w = {.n = n,
             .source_offset = random_below(seed, 64),
             .target_offsets = {random_below(seed, 32), random_below(seed, 32)},
             .has_two = random_below(seed, 2) == 0,
             .stream = random_below(seed, 2) == 0,
             .in_place = IN_PLACE_NOT};
    w.at_end = random_below(seed, 3) == 0;
    if (d->from == d->to && random_below(seed, 3) == 0) {
        w.in_place = (int)random_below(seed, (uint32_t)d->n_sources);
    }
    return w;
}

/* ---- tests ---- */

static void test_all_lengths(void **state)
{
    static const size_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 64};
    uint64_t seed = 1;
    (void)state;
    for (size_t f = 0; f < COUNT_OF(forms); f++) {
        for (size_t c = 0; c < COUNT_OF(counts); c++) {
            fill(&input, forms[f], counts[c], 310, &seed);
            for (size_t n = 0; n <= input.n; n++) {
                way w = random_way(&input, n, &seed);
                check_sum(&input, &w);
            }
        }
    }
}

/* Every place of a target within a line, each with every length around it. */
static void test_all_misalignments(void **state)
{
    uint64_t seed = 2;
    (void)state;
    for (size_t f = 0; f < COUNT_OF(forms); f++) {
        size_t in_line = 64 / fy_sum_type_bytes(forms[f][1]);
        for (size_t n_sources = 1; n_sources <= 5; n_sources += 1) {
            fill(&input, forms[f], n_sources, 260, &seed);
            for (size_t i = 0; i < in_line * 4; i++) {
                way w = random_way(&input, 260 - i % 130, &seed);
                w.target_offsets[0] = i / 4;
                w.stream = i % 2 == 0;
                w.has_two = i / 2 % 2 == 0;
                w.in_place = IN_PLACE_NOT;
                check_sum(&input, &w);
            }
        }
    }
}

static void test_long_rows(void **state)
{
    uint64_t seed = 3;
    (void)state;
    for (size_t f = 0; f < COUNT_OF(forms); f++) {
        for (size_t n_sources = 1; n_sources <= 6; n_sources++) {
            fill(&input, forms[f], n_sources, MOST_N, &seed);
            for (int i = 0; i < 6; i++) {
                way w = random_way(&input, MOST_N - (i < 2 ? 0 : random_below(&seed, 4000)), &seed);
                check_sum(&input, &w);
            }
        }
    }
}

/* Two sources: all pairs of special values, in both orders. */
static void test_special_pairs(void **state)
{
    (void)state;
    for (size_t f = 0; f < COUNT_OF(forms); f++) {
        const struct specials *list = &specials[forms[f][0]];
        input.from = forms[f][0];
        input.to = forms[f][1];
        input.n_sources = 2;
        input.n = (size_t)list->n * list->n;
        assert_true(input.n <= MOST_N);
        for (uint32_t i = 0; i < input.n; i++) {
            input.codes[i][0] = list->codes[i / list->n];
            input.codes[i][1] = list->codes[i % list->n];
        }
        expect(&input);
        way w = {.n = input.n, .in_place = IN_PLACE_NOT};
        check_sum(&input, &w);
    }
}

/* One source: every f16 and bf16 widened. */
static void test_all_codes_widened(void **state)
{
    (void)state;
    for (int type = FY_SUM_F16; type <= FY_SUM_BF16; type++) {
        for (uint32_t first = 0; first < 65536; first += 4096) {
            input = (data){.from = (fy_sum_type)type, .to = FY_SUM_F32, .n_sources = 1, .n = 4096};
            for (uint32_t i = 0; i < input.n; i++) {
                input.codes[i][0] = first + i;
            }
            expect(&input);
            way w = {.n = input.n, .in_place = IN_PLACE_NOT};
            check_sum(&input, &w);
        }
    }
}

/* The f32 that lies half way between two neighbours of a type, those beside it, and the lower one.
 */
static void set_boundary(data *d, uint32_t code)
{
    uint32_t sign = sign_of(&layouts[d->to]);
    uint32_t magnitude = code & (sign - 1);
    double low = value_of(d->to, magnitude);
    /* Where the next would be, if infinity were not in its place. */
    double high = magnitude + 1 < infinity_of(&layouts[d->to])
                      ? value_of(d->to, magnitude + 1)
                      : 2 * low - value_of(d->to, magnitude - 1);
    uint32_t middle = code_of(FY_SUM_F32, (low + high) / 2) | ((code & sign) != 0 ? 0x80000000 : 0);
    d->codes[d->n++][0] = middle;
    d->codes[d->n++][0] = middle - 1;
    d->codes[d->n++][0] = middle + 1;
    d->codes[d->n++][0] = code_of(FY_SUM_F32, value_of(d->to, code));
}

static void test_all_boundaries_narrowed(void **state)
{
    (void)state;
    for (int type = FY_SUM_F16; type <= FY_SUM_BF16; type++) {
        input = (data){.from = FY_SUM_F32, .to = (fy_sum_type)type, .n_sources = 1};
        for (uint32_t code = 0; code < 65536; code++) {
            uint32_t magnitude = code & 0x7fff;
            if (magnitude < infinity_of(&layouts[type])) {
                set_boundary(&input, code);
            }
            if (input.n + 4 > MOST_N || code == 65535) {
                way w = {.n = input.n, .in_place = IN_PLACE_NOT};
                expect(&input);
                check_sum(&input, &w);
                input.n = 0;
            }
        }
    }
}

/* Each source may also be the second target, and both targets may be sources. */
static void test_in_place(void **state)
{
    enum { N = 777 };
    uint64_t seed = 4;
    (void)state;
    for (size_t f = 0; f < COUNT_OF(forms); f++) {
        for (size_t n_sources = 2; n_sources <= 6 && forms[f][0] == forms[f][1]; n_sources++) {
            const void *sources[MOST_SOURCES];
            fill(&input, forms[f], n_sources, N, &seed);
            way w = {.n = N, .source_offset = 5, .in_place = 1};
            fy_sum sum = {sources,  n_sources, input.from,    {NULL, NULL},
                          input.to, N,         n_sources == 3};
            for (size_t s = 0; s < n_sources; s++) {
                sources[s] = source_place(&input, &w, s);
                for (size_t i = 0; i < N; i++) {
                    store(input.from, (char *)(uintptr_t)sources[s], i, input.codes[i][s]);
                }
            }
            sum.targets[0] = (char *)(uintptr_t)sources[1];
            sum.targets[1] = (char *)(uintptr_t)sources[n_sources == 2 ? 0 : 2];
            fy_sum_run(&sum);
            fy_copy_fence();
            check_target(&input, &w, sum.targets[0], "in place");
            check_target(&input, &w, sum.targets[1], "in place, second target");
        }
    }
}

static void test_which_there_are(void **state)
{
    (void)state;
    for (int isa = FY_ISA_BASELINE; isa <= FY_ISA_AVX512; isa++) {
        if (isa > (int)fy_cpu_isa()) {
            assert_null(fy_sum_of_isa((fy_isa)isa));
        } else if (isa != FY_ISA_AVX2) { /* which may lack F16C */
            assert_non_null(fy_sum_of_isa((fy_isa)isa));
        }
    }
    assert_int_equal(fy_sum_type_bytes(FY_SUM_F32), 4);
    assert_int_equal(fy_sum_type_bytes(FY_SUM_F16), 2);
    assert_int_equal(fy_sum_type_bytes(FY_SUM_BF16), 2);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_which_there_are),
        cmocka_unit_test(test_all_codes_widened),
        cmocka_unit_test(test_all_boundaries_narrowed),
        cmocka_unit_test(test_special_pairs),
        cmocka_unit_test(test_all_lengths),
        cmocka_unit_test(test_all_misalignments),
        cmocka_unit_test(test_long_rows),
        cmocka_unit_test(test_in_place),
    };
    return cmocka_run_group_tests(tests, make_rooms, free_rooms);
}

int main(void)
{
    return run_with_each_isa(run_all);
}
