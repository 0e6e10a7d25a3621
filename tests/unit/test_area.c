/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Areas against a list of where each of their bytes lies. Everything that a copy could touch is
 * compared, so that a byte beside the area is seen as well as a wrong one in it.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "exec/area.h"
#include "exec/rows.h"
#include "host/copy.h"

#include "support/check.h"
#include "support/each_isa.h"
#include "support/random.h"

#include <stdlib.h>

enum { MOST_FACTORS = 10, MARGIN = 96 };

/* An area as it was asked for, and the offset of each of its bytes in row-major order. */
typedef struct sample {
    uint64_t offset, element_bytes;
    uint32_t n_dims;
    uint64_t length[FERRY_MAX_DIMS];
    uint64_t stride[FERRY_MAX_DIMS];
    uint64_t bytes;
    uint64_t end; /* of the memory that it needs, with a margin */
    uint64_t *places;
    fy_area area;
    char *memory;
} sample;

/* Counts indices in row-major order: nothing here knows of runs. */
static void list_places(sample *s)
{
    uint64_t index[FERRY_MAX_DIMS] = {0};
    s->places = malloc((size_t)(s->bytes + 1) * sizeof *s->places);
    for (uint64_t k = 0; k < s->bytes; k++) {
        uint64_t at = s->offset + k % s->element_bytes;
        for (uint32_t d = 0; d < s->n_dims; d++) {
            at += index[d] * s->stride[d];
        }
        s->places[k] = at;
        s->end = at + MARGIN > s->end ? at + MARGIN : s->end;
        if ((k + 1) % s->element_bytes == 0) {
            for (uint32_t d = s->n_dims; d-- > 0 && ++index[d] == s->length[d];) {
                index[d] = 0;
            }
        }
    }
}

static void finish(sample *s, uint64_t *seed)
{
    ferry_error error;
    s->bytes = s->element_bytes;
    for (uint32_t d = 0; d < s->n_dims; d++) {
        s->bytes *= s->length[d];
    }
    s->end = s->offset + MARGIN;
    list_places(s);
    must(fy_area_make(s->offset, s->element_bytes, s->n_dims, s->length, s->stride, &s->area,
                      &error),
         &error);
    s->memory = aligned_alloc(64, ((size_t)s->end + 63) / 64 * 64);
    for (uint64_t i = 0; i < s->end; i++) {
        s->memory[i] = (char)random_u64(seed);
    }
}

static void cleanup(sample *s)
{
    free(s->places);
    free(s->memory);
}

static uint64_t random_padding(uint64_t *seed, uint64_t extent)
{
    switch (random_below(seed, 4)) {
    case 0:
        return random_below(seed, 9);
    case 1:
        return -extent % 64 + 64 * random_below(seed, 3);
    default:
        return 0;
    }
}

/* Nests the dimensions in memory: most as they are, some in another order. */
static void random_strides(sample *s, uint64_t *seed)
{
    uint32_t order[FERRY_MAX_DIMS];
    uint64_t extent = s->element_bytes;
    for (uint32_t i = 0; i < s->n_dims; i++) {
        order[i] = s->n_dims - 1 - i;
    }
    for (uint32_t i = s->n_dims; i-- > 1 && random_below(seed, 3) == 0;) {
        uint32_t j = random_below(seed, i + 1);
        uint32_t other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
    for (uint32_t i = 0; i < s->n_dims; i++) {
        uint32_t d = order[i];
        s->stride[d] = extent + random_padding(seed, extent);
        extent += s->stride[d] * (s->length[d] - 1);
    }
}

/* Splits factors into elements and dimensions: both sides of a copy get the same ones. */
static sample random_sample(const uint64_t *factors, uint32_t n_factors, uint64_t *seed)
{
    bool far = random_below(seed, 2) == 0;
    sample s = {.offset = far ? MARGIN + random_below(seed, 130) : 128, .element_bytes = 1};
    uint32_t n_inside = random_below(seed, n_factors + 1);
    for (uint32_t i = 0; i < n_factors; i++) {
        if (i >= n_factors - n_inside) {
            s.element_bytes *= factors[i];
        } else if (s.n_dims > 0 && (s.n_dims == FERRY_MAX_DIMS || random_below(seed, 3) == 0)) {
            s.length[s.n_dims - 1] *= factors[i];
        } else {
            s.length[s.n_dims++] = factors[i];
        }
    }
    random_strides(&s, seed);
    finish(&s, seed);
    return s;
}

static uint32_t random_factors(uint64_t most, uint64_t *factors, uint64_t *seed)
{
    uint64_t bytes = 1;
    uint32_t n = 0;
    while (n < MOST_FACTORS) {
        uint64_t factor = 1 + random_below(seed, random_below(seed, 8) == 0 ? 400 : 9);
        if (bytes * factor > most) {
            break;
        }
        bytes *= factor;
        factors[n++] = factor;
    }
    return n;
}

static void shuffle(uint64_t *factors, uint32_t n, uint64_t *seed)
{
    for (uint32_t i = n; i-- > 1;) {
        uint32_t j = random_below(seed, i + 1);
        uint64_t other = factors[i];
        factors[i] = factors[j];
        factors[j] = other;
    }
}

/* ---- what is checked of one pair ---- */

typedef struct pair {
    uint64_t seed;
    sample to, from;
    uint64_t first, bytes;
    char *flat; /* `from` in row-major order; what a correct copy moves */
    char *expected;
} pair;

static void check_memory(const pair *p, const char *what)
{
    for (uint64_t i = 0; i < p->to.end; i++) {
        check_at(p->to.memory[i] == p->expected[i],
                 "seed %llu, %s of %llu bytes from %llu: byte %llu", (unsigned long long)p->seed,
                 what, (unsigned long long)p->bytes, (unsigned long long)p->first,
                 (unsigned long long)i);
    }
}

static void poison(pair *p)
{
    memset(p->to.memory, 0x5a, (size_t)p->to.end);
    memset(p->expected, 0x5a, (size_t)p->to.end);
    for (uint64_t k = p->first; k < p->first + p->bytes; k++) {
        p->expected[p->to.places[k]] = p->flat[k];
    }
}

static void check_hash(const pair *p, const char *what, uint64_t hash)
{
    check_at(hash == XXH3_64bits(p->flat + p->first, (size_t)p->bytes),
             "seed %llu, %s of %llu bytes from %llu: another hash", (unsigned long long)p->seed,
             what, (unsigned long long)p->bytes, (unsigned long long)p->first);
}

static uint64_t update(const pair *p)
{
    const sample *to = &p->to, *from = &p->from;
    return fy_area_update(&to->area, to->memory, &from->area, from->memory, p->first, p->bytes);
}

/* Nothing of it is there, then all, then all but one byte at a time: at an end, or anywhere. */
static void check_update(pair *p)
{
    poison(p);
    check_at(update(p) <= p->bytes, "seed %llu: more is written than there is",
             (unsigned long long)p->seed);
    check_memory(p, "update");
    check_at(update(p) == 0, "seed %llu: equal bytes are written", (unsigned long long)p->seed);
    for (uint64_t i = 0; i < 3 && p->bytes > 0; i++) {
        uint64_t k = i == 0 ? 0 : i == 1 ? p->bytes - 1 : p->seed * 7919 % p->bytes;
        p->to.memory[p->to.places[p->first + k]] ^= 1;
        uint64_t written = update(p);
        check_at(written > 0 && written <= (p->bytes < 4096 ? p->bytes : 4096),
                 "seed %llu: %llu bytes are written where one differs", (unsigned long long)p->seed,
                 (unsigned long long)written);
        check_memory(p, "update of a byte");
    }
}

static void check_copies(pair *p)
{
    const sample *to = &p->to, *from = &p->from;
    poison(p);
    fy_area_copy(&to->area, to->memory, &from->area, from->memory, p->first, p->bytes);
    fy_copy_fence();
    check_memory(p, "copy");
    poison(p);
    fy_area_copy_cached(&to->area, to->memory, &from->area, from->memory, p->first, p->bytes);
    check_memory(p, "copy_cached");
    poison(p);
    check_hash(
        p, "copy_hash",
        fy_area_copy_hash(&to->area, to->memory, &from->area, from->memory, p->first, p->bytes));
    check_memory(p, "copy_hash");
    poison(p);
    fy_area_unpack(&to->area, to->memory, p->flat + p->first, p->first, p->bytes);
    check_memory(p, "unpack");
    poison(p);
    check_hash(p, "unpack_hash",
               fy_area_unpack_hash(&to->area, to->memory, p->flat + p->first, p->first, p->bytes));
    check_memory(p, "unpack_hash");
    check_hash(p, "hash", fy_area_hash(&from->area, from->memory, p->first, p->bytes));
    check_update(p);
}

/* Into memory of exactly the right size between bytes that must stay. */
static void check_packs(const pair *p)
{
    const sample *from = &p->from;
    size_t n = (size_t)p->bytes;
    size_t skew = (size_t)(p->seed % 64);
    char *memory = malloc(n + 64 + 2 * MARGIN);
    char *packed = memory + MARGIN + skew;
    for (int way = 0; way < 2; way++) {
        memset(memory, 0x5a, n + 64 + 2 * MARGIN);
        if (way == 0) {
            fy_area_pack_cached(packed, &from->area, from->memory, p->first, p->bytes);
        } else {
            check_hash(p, "pack_hash",
                       fy_area_pack_hash(packed, &from->area, from->memory, p->first, p->bytes));
        }
        fy_copy_fence();
        check_at(memcmp(packed, p->flat + p->first, n) == 0, "seed %llu, way %d of packing",
                 (unsigned long long)p->seed, way);
        for (size_t i = 0; i < 64; i++) {
            check_at(packed[-1 - (long)i] == 0x5a && packed[n + i] == 0x5a,
                     "seed %llu, way %d of packing: %zu bytes beside it",
                     (unsigned long long)p->seed, way, i);
        }
    }
    free(memory);
}

/* The walk tells the same places, and runs that could be longer. */
static void check_walk(const pair *p)
{
    const sample *s = &p->from;
    fy_area_walk walk = fy_area_walk_of(&s->area, p->first, p->bytes);
    uint64_t at, n, k = p->first;
    while (fy_area_next(&walk, &at, &n)) {
        check_at(n > 0 && k + n <= p->first + p->bytes, "seed %llu", (unsigned long long)p->seed);
        for (uint64_t i = 0; i < n; i++, k++) {
            check_at(s->places[k] == at + i, "seed %llu: byte %llu", (unsigned long long)p->seed,
                     (unsigned long long)k);
        }
    }
    check_at(k == p->first + p->bytes, "seed %llu: the walk ends at %llu",
             (unsigned long long)p->seed, (unsigned long long)k);
}

/*
 * What a part touches lies within its hull, which is no larger than the whole steps of the
 * outermost dimension in which its ends differ; of a part of one run it is just that.
 */
static void check_hull_of_part(const pair *p)
{
    const sample *s = &p->from;
    uint64_t last = p->first + p->bytes - 1, step = s->area.bytes, begin, end;
    fy_area_hull_of(&s->area, p->first, p->bytes, &begin, &end);
    if (p->bytes == 0) {
        assert_true(begin == 0 && end == 0);
        return;
    }
    uint64_t from = p->first, to = last, least = UINT64_MAX, most = 0;
    for (uint32_t d = 0; d < s->area.n_dims; d++) {
        step /= s->area.length[d];
        if (p->first / step != last / step) {
            from = p->first / step * step;
            to = last / step * step + step - 1;
            break;
        }
    }
    for (uint64_t k = from; k <= to; k++) {
        least = s->places[k] < least ? s->places[k] : least;
        most = s->places[k] > most ? s->places[k] : most;
    }
    check_at(begin == least && end == most + 1, "seed %llu: a hull from %llu to %llu",
             (unsigned long long)p->seed, (unsigned long long)begin, (unsigned long long)end);
}

/* Bytes that spans have told of, each once. */
typedef struct told {
    const sample *s;
    unsigned char *map;
    uint64_t n_spans, n_bytes;
} told;

static ferry_status note_span(void *context, uint64_t offset, uint64_t bytes, ferry_error *error)
{
    told *t = context;
    (void)error;
    t->n_spans++;
    t->n_bytes += bytes;
    assert_true(bytes > 0 && offset + bytes <= t->s->end);
    for (uint64_t i = offset; i < offset + bytes; i++) {
        assert_int_equal(t->map[i]++, 0);
    }
    return FERRY_OK;
}

/* In whatever order, but no more of them than runs. */
static void check_spans(const pair *p)
{
    const sample *s = &p->from;
    told t = {.s = s, .map = calloc(1, (size_t)s->end)};
    ferry_error error;
    must(fy_area_visit_spans(&s->area, p->first, p->bytes, note_span, &t, &error), &error);
    for (uint64_t k = p->first; k < p->first + p->bytes; k++) {
        check_at(t.map[s->places[k]] == 1, "seed %llu: byte %llu in no span",
                 (unsigned long long)p->seed, (unsigned long long)k);
    }
    assert_int_equal(t.n_bytes, p->bytes);
    assert_true(t.n_spans <= p->bytes / s->area.run_bytes + 2);
    free(t.map);
}

static ferry_status stop_at_once(void *context, uint64_t offset, uint64_t bytes, ferry_error *error)
{
    (void)context, (void)offset, (void)bytes, (void)error;
    return FERRY_ERR_LIMIT;
}

/* A transposed square is one span of memory, whatever its order; and what a visitor says counts. */
static void test_spans(void **state)
{
    (void)state;
    static const uint64_t length[] = {30, 40}, stride[] = {2, 60};
    ferry_error error;
    fy_area area;
    must(fy_area_make(10, 2, 2, length, stride, &area, &error), &error);
    assert_true(fy_area_is_permuted(&area));
    sample s = {.end = 3000};
    told t = {.s = &s, .map = calloc(1, (size_t)s.end)};
    must(fy_area_visit_spans(&area, 0, area.bytes, note_span, &t, &error), &error);
    assert_int_equal(t.n_spans, 1);
    assert_int_equal(t.n_bytes, 2400);
    free(t.map);
    assert_int_equal(fy_area_visit_spans(&area, 0, 4, stop_at_once, NULL, &error), FERRY_ERR_LIMIT);
}

static void check_hull(const sample *s)
{
    uint64_t begin, end, least = UINT64_MAX, most = 0;
    fy_area_hull(&s->area, &begin, &end);
    for (uint64_t k = 0; k < s->bytes; k++) {
        least = s->places[k] < least ? s->places[k] : least;
        most = s->places[k] > most ? s->places[k] : most;
    }
    assert_int_equal(begin, s->bytes == 0 ? 0 : least);
    assert_int_equal(end, s->bytes == 0 ? 0 : most + 1);
}

static void check_pair(pair *p, uint32_t n_ranges, uint64_t *seed)
{
    p->flat = malloc((size_t)p->from.bytes + 1);
    p->expected = malloc((size_t)p->to.end);
    for (uint64_t k = 0; k < p->from.bytes; k++) {
        p->flat[k] = p->from.memory[p->from.places[k]];
    }
    check_hull(&p->to);
    check_hull(&p->from);
    for (uint32_t i = 0; i < n_ranges; i++) {
        p->first = i == 0 ? 0 : random_u64(seed) % (p->from.bytes + 1);
        p->bytes = p->from.bytes - p->first;
        p->bytes = i == 0 ? p->bytes : random_u64(seed) % (p->bytes + 1);
        check_walk(p);
        check_hull_of_part(p);
        check_spans(p);
        check_copies(p);
        check_packs(p);
    }
    free(p->flat);
    free(p->expected);
    cleanup(&p->to);
    cleanup(&p->from);
}

static void check_random(uint64_t first_seed, uint32_t count, uint64_t most_bytes)
{
    for (uint64_t i = first_seed; i < first_seed + count; i++) {
        uint64_t factors[MOST_FACTORS];
        uint64_t seed = i;
        uint32_t n = random_factors(most_bytes, factors, &seed);
        pair p = {.seed = i};
        p.to = random_sample(factors, n, &seed);
        if (i % 3 == 0) { /* dimensions of one side then begin within the other's */
            shuffle(factors, n, &seed);
        }
        p.from = random_sample(factors, n, &seed);
        check_pair(&p, 4, &seed);
    }
}

static void test_random_small(void **state)
{
    (void)state;
    check_random(1, 4000, 600);
}

static void test_random_large(void **state)
{
    (void)state;
    check_random(100000, 200, 100000);
}

/* Rows of every length around the thresholds, cut out of wider ones on both sides. */
static void test_rows(void **state)
{
    (void)state;
    static const uint64_t rows[] = {1,    2,    3,    4,    8,    15,    16,    17,    32,
                                    63,   64,   65,   100,  127,  128,   191,   192,   255,
                                    256,  257,  511,  512,  1000, 1024,  1025,  2048,  4095,
                                    4096, 4160, 8192, 8200, 9999, 16383, 16384, 16448, 40000};
    uint64_t seed = 11;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        for (uint32_t way = 0; way < 4; way++) {
            uint64_t n_rows = 1 + random_below(&seed, rows[i] < 300 ? 70 : 11);
            pair p = {.seed = rows[i]};
            p.to =
                (sample){.offset = 128, .element_bytes = rows[i], .n_dims = 1, .length = {n_rows}};
            p.from = p.to;
            p.to.offset += way % 2 ? random_below(&seed, 64) : 0;
            p.from.offset += way % 2 ? random_below(&seed, 64) : 0;
            p.to.stride[0] = rows[i] + (way < 2 ? -rows[i] % 64 : random_below(&seed, 200));
            p.from.stride[0] = rows[i] + (way < 2 ? -rows[i] % 64 + 64 : random_below(&seed, 200));
            finish(&p.to, &seed);
            finish(&p.from, &seed);
            check_pair(&p, 3, &seed);
        }
    }
}

/* Elements whose dims change places, as many as do not fit one tile. */
static void test_transposes(void **state)
{
    (void)state;
    static const uint64_t elements[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 48};
    uint64_t seed = 17;
    for (size_t i = 0; i < COUNT_OF(elements); i++) {
        for (int way = 0; way < 4; way++) {
            uint64_t e = elements[i];
            uint64_t n = 60 + random_below(&seed, 90), m = 60 + random_below(&seed, 90);
            pair p = {.seed = e};
            p.to = (sample){.offset = 128, .element_bytes = e, .n_dims = 3, .length = {2, n, m}};
            p.from = p.to;
            uint64_t rows[] = {(n * m + 5) * e, (m + (way > 1)) * e, e};
            uint64_t cols[] = {(n * m + 5) * e + n * m, e, (n + (way > 1)) * e};
            memcpy(p.to.stride, way % 2 ? rows : cols, sizeof rows);
            memcpy(p.from.stride, way % 2 ? cols : rows, sizeof cols);
            if (way > 1) {
                p.to.stride[0] += (n + m) * e;
                p.from.stride[0] += (n + m) * e;
            }
            finish(&p.to, &seed);
            finish(&p.from, &seed);
            check_pair(&p, 4, &seed);
        }
    }
}

/* The strides of a sample whose dims are nested as the code says, each packed but for the padding.
 */
static void nest(sample *s, uint32_t code, uint64_t padding)
{
    uint32_t order[FERRY_MAX_DIMS], n = 0;
    for (uint32_t d = 0; d < s->n_dims; d++) { /* each is put among those before it */
        uint32_t at = code % (d + 1);
        code /= d + 1;
        memmove(order + at + 1, order + at, (n - at) * sizeof *order);
        order[at] = d;
        n++;
    }
    uint64_t extent = s->element_bytes;
    for (uint32_t i = 0; i < n; i++) {
        s->stride[order[i]] = extent + (i > 0 ? padding : 0);
        extent += s->stride[order[i]] * (s->length[order[i]] - 1);
    }
}

/* Every order of four dims on one side, some of the other's, at and beside whole lines. */
static void test_permutations(void **state)
{
    (void)state;
    static const uint64_t shapes[][4] = {{3, 5, 2, 4},   {2, 70, 3, 66},  {1, 33, 130, 2},
                                         {40, 1, 2, 40}, {2, 129, 1, 65}, {4, 4, 17, 18}};
    static const uint64_t elements[] = {1, 2, 4, 8, 16, 6, 64};
    uint64_t seed = 23;
    for (uint32_t code = 0; code < 24; code++) {
        for (size_t i = 0; i < COUNT_OF(shapes) * COUNT_OF(elements); i++) {
            uint64_t e = elements[i % COUNT_OF(elements)];
            const uint64_t *shape = shapes[i / COUNT_OF(elements)];
            bool whole = random_below(&seed, 2) == 0;
            if (e * shape[0] * shape[1] * shape[2] * shape[3] > 80000) {
                continue;
            }
            pair p = {.seed = code * 1000 + i};
            p.to = (sample){.offset = 128, .element_bytes = e, .n_dims = 4};
            memcpy(p.to.length, shape, 4 * sizeof *shape);
            p.from = p.to;
            p.to.offset += whole ? 0 : e * random_below(&seed, 20) + random_below(&seed, 2);
            nest(&p.to, code, whole ? 0 : random_below(&seed, 3) * e);
            nest(&p.from, (code + random_below(&seed, 24)) % 24, random_below(&seed, 2) * e);
            finish(&p.to, &seed);
            finish(&p.from, &seed);
            check_pair(&p, 2, &seed);
        }
    }
}

/* Columns at whole lines, which are streamed, with begins and ends that are not, of many tiles. */
static void test_planes(void **state)
{
    (void)state;
    static const uint64_t elements[] = {1, 2, 4, 8, 16};
    uint64_t seed = 29;
    for (size_t i = 0; i < COUNT_OF(elements) * 6; i++) {
        uint64_t e = elements[i % COUNT_OF(elements)];
        uint64_t n = 512 / e, m = 100 + random_below(&seed, 500);
        pair p = {.seed = i};
        p.to = (sample){.offset = 128, .element_bytes = e, .n_dims = 2, .length = {n, m}};
        p.from = p.to;
        p.to.length[0] = p.from.length[0] = n - i / COUNT_OF(elements);
        p.to.offset += i % 3 == 0 ? 0 : e * random_below(&seed, 70);
        p.to.stride[0] = e;
        p.to.stride[1] = n * e;
        p.from.stride[0] = (m + random_below(&seed, 3)) * e;
        p.from.stride[1] = e;
        finish(&p.to, &seed);
        finish(&p.from, &seed);
        check_pair(&p, 3, &seed);
    }
}

/* Rows of a line and more that change places, in whole units, side by side or apart. */
static void test_exchanged_rows(void **state)
{
    (void)state;
    static const uint64_t rows[] = {64, 80, 128, 208, 512, 1008, 1024, 1040, 4112, 17408};
    uint64_t seed = 41;
    for (size_t i = 0; i < COUNT_OF(rows) * 8; i++) {
        uint64_t e = rows[i % COUNT_OF(rows)], way = i / COUNT_OF(rows);
        uint64_t n = 2 + random_below(&seed, e < 1024 ? 30 : 6), m = 2 + random_below(&seed, 7);
        pair p = {.seed = i};
        p.to = (sample){.offset = 64, .element_bytes = e, .n_dims = 3, .length = {2, m, n}};
        p.from = p.to;
        p.to.offset += 16 * random_below(&seed, 5);
        p.from.offset += random_below(&seed, 64);
        p.to.stride[2] = e + (way == 7 ? 16 : 0);
        p.to.stride[1] = n * p.to.stride[2] + way % 2 * 16 * random_below(&seed, 9);
        p.to.stride[0] = m * p.to.stride[1];
        p.from.stride[1] = e + way / 2 % 2 * random_below(&seed, 100);
        p.from.stride[2] = m * p.from.stride[1];
        p.from.stride[0] = n * p.from.stride[2] + random_below(&seed, 9);
        finish(&p.to, &seed);
        finish(&p.from, &seed);
        check_pair(&p, 2, &seed);
    }
}

/*
 * Columns that begin anywhere in lines, of any lengths: long ones that lie apart, of several tiles
 * of which the last is longer, and short ones side by side. Some begin within an element's size.
 */
static void test_planes_apart(void **state)
{
    (void)state;
    static const uint64_t elements[] = {1, 2, 4, 8};
    uint64_t seed = 37;
    for (size_t i = 0; i < COUNT_OF(elements) * 24; i++) {
        uint64_t e = elements[i % COUNT_OF(elements)];
        bool is_short = i / COUNT_OF(elements) % 2 == 0;
        uint64_t n =
            (is_short ? 64 + random_below(&seed, 450) : 450 + random_below(&seed, 500)) / e;
        uint64_t m = (64 + random_below(&seed, is_short ? 300 : 600)) / e;
        pair p = {.seed = i};
        p.to = (sample){.offset = 64, .element_bytes = e, .n_dims = 3, .length = {2, n, m}};
        p.from = p.to;
        p.to.offset += e * random_below(&seed, (uint32_t)(64 / e)) + (i % 9 == 0);
        p.from.offset += random_below(&seed, 64);
        p.to.stride[1] = p.from.stride[2] = e;
        p.to.stride[2] = (n + (is_short ? 0 : random_below(&seed, 40))) * e;
        p.from.stride[1] = (m + random_below(&seed, 40)) * e;
        p.to.stride[0] = m * p.to.stride[2] + random_below(&seed, 9) * e;
        p.from.stride[0] = n * p.from.stride[1] + random_below(&seed, 9);
        finish(&p.to, &seed);
        finish(&p.from, &seed);
        check_pair(&p, 1, &seed);
    }
}

/* Long columns of short rows, side by side or apart, of which the last tiles are not whole. */
static void test_narrow_planes(void **state)
{
    (void)state;
    static const uint64_t elements[] = {1, 2, 4, 8};
    uint64_t seed = 31;
    for (size_t i = 0; i < COUNT_OF(elements) * 24; i++) {
        uint64_t e = elements[i % COUNT_OF(elements)];
        uint64_t n = 16 / e + random_below(&seed, (uint32_t)(50 / e));
        uint64_t m = 128 / e + random_below(&seed, 300);
        pair p = {.seed = i};
        p.to = (sample){.offset = 64, .element_bytes = e, .n_dims = 3, .length = {2, m, n}};
        p.from = p.to;
        p.to.offset += random_below(&seed, 64);
        p.from.offset += random_below(&seed, 64);
        p.to.stride[1] = p.from.stride[2] = e;
        p.to.stride[2] = (m + i / 4 % 2 * random_below(&seed, 5)) * e;
        p.from.stride[1] = (n + i / 8 % 2 * random_below(&seed, 5)) * e;
        p.to.stride[0] = n * p.to.stride[2] + random_below(&seed, 2) * e;
        p.from.stride[0] = m * p.from.stride[1] + random_below(&seed, 2) * e;
        finish(&p.to, &seed);
        finish(&p.from, &seed);
        check_pair(&p, 3, &seed);
    }
}

/* All shapes of up to three dims of up to three elements of one or two bytes, packed or with gaps.
 */
static void test_small_worlds(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (uint32_t code = 0; code < 3 * 3 * 3 * 2 * 8; code++) {
        uint32_t left = code;
        sample s = {.offset = 3, .n_dims = 3};
        for (uint32_t d = 0; d < 3; d++, left /= 3) {
            s.length[d] = 1 + left % 3;
        }
        s.element_bytes = 1 + left % 2;
        uint64_t extent = s.element_bytes;
        left /= 2;
        for (uint32_t d = 3; d-- > 0; left /= 2) {
            s.stride[d] = extent + left % 2;
            extent += s.stride[d] * (s.length[d] - 1);
        }
        pair p = {.seed = code, .to = s, .from = s};
        finish(&p.to, &seed);
        finish(&p.from, &seed);
        p.flat = malloc((size_t)p.from.bytes + 1);
        p.expected = malloc((size_t)p.to.end);
        for (uint64_t k = 0; k < s.element_bytes * s.length[0] * s.length[1] * s.length[2]; k++) {
            p.flat[k] = p.from.memory[p.from.places[k]];
        }
        for (p.first = 0; p.first <= p.from.bytes; p.first++) {
            for (p.bytes = 0; p.first + p.bytes <= p.from.bytes; p.bytes++) {
                check_walk(&p);
                check_copies(&p);
            }
        }
        free(p.flat);
        free(p.expected);
        cleanup(&p.to);
        cleanup(&p.from);
    }
}

/* ---- making areas ---- */

/* Byte by byte, as a set that is cut into areas of one byte; and of what is too much for that. */
static void test_sums(void **state)
{
    uint64_t seed = 17, factors[MOST_FACTORS];
    (void)state;
    for (int i = 0; i < 200; i++) {
        uint32_t n_factors = random_factors(1000, factors, &seed);
        sample s = random_sample(factors, n_factors, &seed);
        uint64_t wanted = 0;
        for (uint64_t k = 0; k < s.bytes; k++) {
            fy_area byte = fy_area_flat(s.places[k], 1);
            wanted = fy_area_sum_of_both(wanted, fy_area_sum(&byte));
        }
        check_at(fy_area_sum(&s.area) == wanted, "the sum of area %d", i);
        cleanup(&s);
    }
    for (int i = 0; i < 300; i++) {
        uint64_t begin = random_u64(&seed) >> 2, n = random_u64(&seed) >> 2;
        uint64_t first = random_u64(&seed) % n;
        fy_area whole = fy_area_flat(begin, n), head = fy_area_flat(begin, first);
        fy_area tail = fy_area_flat(begin + first, n - first);
        uint64_t sum = fy_area_sum(&tail);
        check_at(fy_area_sum(&whole) == fy_area_sum_of_both(fy_area_sum(&head), sum),
                 "the sum of two parts, %d", i);
        head.offset++;
        check_at(fy_area_sum(&whole) != fy_area_sum_of_both(fy_area_sum(&head), sum),
                 "the sum of other parts, %d", i);
    }
    for (uint64_t part = 1; part < (uint64_t)1 << 40; part *= 2) { /* as many, and as far in all */
        static const uint8_t one[] = {0, 3, 5, 6, 9, 10, 12, 15},
                             other[] = {1, 2, 4, 7, 8, 11, 13, 14};
        uint64_t sums[2] = {0};
        for (size_t k = 0; k < sizeof one; k++) {
            fy_area areas[] = {fy_area_flat(one[k] * part, part),
                               fy_area_flat(other[k] * part, part)};
            sums[0] = fy_area_sum_of_both(sums[0], fy_area_sum(&areas[0]));
            sums[1] = fy_area_sum_of_both(sums[1], fy_area_sum(&areas[1]));
            check_at(k % 2 == 0 || sums[0] != sums[1], "parts of %llu bytes: %zu are alike",
                     (unsigned long long)part, k + 1);
        }
    }
}

static void test_coalescing(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t element_bytes;
        uint32_t n_dims;
        uint64_t length[4], stride[4];
        uint32_t n_dims_left;
        uint64_t run_bytes;
    } rows[] = {
        {"one element", 4, 0, {0}, {0}, 0, 4},
        {"contiguous", 2, 3, {4, 5, 6}, {60, 12, 2}, 0, 240},
        {"rows", 2, 2, {4, 5}, {64, 2}, 1, 10},
        {"rows of planes", 2, 3, {3, 4, 5}, {256, 64, 2}, 1, 10},
        {"planes apart", 2, 3, {3, 4, 5}, {512, 64, 2}, 2, 10},
        {"ones in between", 2, 4, {3, 1, 5, 1}, {64, 7, 2, 0}, 1, 10},
        {"ones only", 8, 3, {1, 1, 1}, {0, 0, 0}, 0, 8},
        {"spread elements", 2, 2, {3, 4}, {32, 8}, 1, 2},
        {"a transpose", 2, 2, {3, 4}, {2, 6}, 2, 2},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_error error;
        fy_area area;
        check_status(rows[i].name, FERRY_OK,
                     fy_area_make(0, rows[i].element_bytes, rows[i].n_dims, rows[i].length,
                                  rows[i].stride, &area, &error),
                     &error);
        check_row(rows[i].name, area.n_dims == rows[i].n_dims_left);
        check_row(rows[i].name, area.run_bytes == rows[i].run_bytes);
    }
}

/* Boxes whose elements lie between each other's, as strides 3 and 2 of lengths 2 and 3 do. */
static void test_entangled(void **state)
{
    (void)state;
    uint64_t seed = 31;
    pair p = {.seed = 31};
    p.to = (sample){.offset = 7, .element_bytes = 2, .n_dims = 3, .length = {5, 2, 3}};
    p.from = p.to;
    uint64_t strides[] = {40, 6, 4}, others[] = {26, 10, 4};
    memcpy(p.to.stride, strides, sizeof strides);
    memcpy(p.from.stride, others, sizeof others);
    finish(&p.to, &seed);
    finish(&p.from, &seed);
    assert_false(fy_area_is_nested(&p.to.area));
    check_pair(&p, 20, &seed);
}

static void test_empty(void **state)
{
    (void)state;
    static const uint64_t length[] = {3, 0, UINT64_MAX}, stride[] = {0, 7, UINT64_MAX};
    ferry_error error;
    fy_area area;
    uint64_t begin, end;
    must(fy_area_make(5, 2, 3, length, stride, &area, &error), &error);
    assert_int_equal(area.bytes, 0);
    assert_true(area.n_dims == 0 && area.run_bytes == 0); /* nobody walks what is not there */
    fy_area_hull(&area, &begin, &end);
    assert_int_equal(begin, 0);
    assert_int_equal(end, 0);
    fy_area_copy(&area, NULL, &area, NULL, 0, 0);
    fy_area_copy_cached(&area, NULL, &area, NULL, 0, 0);
    assert_int_equal(fy_area_update(&area, NULL, &area, NULL, 0, 0), 0);
    fy_area_pack_cached(NULL, &area, NULL, 0, 0);
    fy_area_unpack(&area, NULL, NULL, 0, 0);
    assert_int_equal(fy_area_hash(&area, NULL, 0, 0), XXH3_64bits("", 0));
    assert_int_equal(fy_area_copy_hash(&area, NULL, &area, NULL, 0, 0), XXH3_64bits("", 0));
}

static void test_refused(void **state)
{
    (void)state;
    static const uint64_t most = UINT64_MAX;
    static const struct {
        const char *name;
        uint64_t offset, element_bytes;
        uint32_t n_dims;
        uint64_t length[3], stride[3];
        const char *says;
    } rows[] = {
        {"stride 0", 0, 2, 1, {3}, {0}, "share bytes"},
        {"half an element", 0, 2, 1, {3}, {1}, "share bytes"},
        {"rows that overlap", 0, 2, 2, {3, 4}, {6, 2}, "dim 0"},
        {"equal strides", 0, 2, 2, {3, 4}, {8, 8}, "share bytes"},
        {"columns that overlap", 0, 2, 2, {3, 4}, {2, 4}, "dim 1"},
        {"entangled, and twice", 0, 2, 2, {3, 3}, {8, 4}, "dim 0"},
        {"length times stride", 0, 1, 1, {most}, {2}, "2^64"},
        {"sum of extents", 0, 4, 2, {3, 3}, {most / 3 + 9, most / 3}, "2^64"},
        {"offset", most - 3, 4, 0, {0}, {0}, "2^64"},
        {"offset and extent", most - 9, 2, 1, {6}, {2}, "2^64"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_error error;
        fy_area area = {.bytes = 77};
        check_status(rows[i].name, FERRY_ERR_INVALID_INPUT,
                     fy_area_make(rows[i].offset, rows[i].element_bytes, rows[i].n_dims,
                                  rows[i].length, rows[i].stride, &area, &error),
                     &error);
        check_says(rows[i].name, rows[i].says, &error);
        check_row(rows[i].name, area.bytes == 77);
    }
    fy_area area;
    ferry_error error;
    check_status("9 dims", FERRY_ERR_INVALID_INPUT,
                 fy_area_make(0, 1, FERRY_MAX_DIMS + 1, NULL, NULL, &area, &error), &error);
}

/* Where a walk begins must not be found by counting up to it. */
static void test_walk_of_a_huge_area(void **state)
{
    (void)state;
    static const uint64_t length[] = {1ull << 20, 1ull << 20, 3},
                          stride[] = {1ull << 41, 1ull << 20, 4};
    ferry_error error;
    fy_area area;
    uint64_t at, n;
    must(fy_area_make(0, 1, 3, length, stride, &area, &error), &error);
    assert_int_equal(area.bytes, 3ull << 40);
    fy_area_walk walk = fy_area_walk_of(&area, (3ull << 40) - 1, 1);
    assert_true(fy_area_next(&walk, &at, &n));
    assert_int_equal(at, (((1ull << 20) - 1) << 41) + (((1ull << 20) - 1) << 20) + 8);
    assert_int_equal(n, 1);
    assert_false(fy_area_next(&walk, &at, &n));
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_coalescing),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_walk_of_a_huge_area),
        cmocka_unit_test(test_small_worlds),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_transposes),
        cmocka_unit_test(test_random_small),
        cmocka_unit_test(test_random_large),
        cmocka_unit_test(test_permutations),
        cmocka_unit_test(test_planes_apart),
        cmocka_unit_test(test_exchanged_rows),
        cmocka_unit_test(test_planes),
        cmocka_unit_test(test_narrow_planes),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_entangled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return run_with_each_isa(run_all);
}
