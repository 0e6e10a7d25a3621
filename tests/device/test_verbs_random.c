/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Verbs of cuda memory against those of the CPU, on random areas of random bits: copies with and
 * without hashes, of a few bytes again and again, too; casts with and without scales of blocks,
 * quantized blocks, digests of pieces, and sums, between memory of the device, pinned and pageable
 * memory of the host, many of them on a queue before anybody waits. Bytes that are not to be
 * written are compared, too.
 * On whatever driver there is, the stand-in or a real one.
 */
#include "base/hash.h"
#include "exec/exec.h"
#include "memory/kind.h"
#include "oracle/convert.h"
#include "support/check.h"

#include <ferry/dtype.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 3 << 20, MOST_SOURCES = 70, AT_ONCE = 4 };

static ferry_error error;
static const fy_memory_kind *kind;
static const fy_exec *exec;
static fy_exec_queue *queue;
static uint64_t state, seed = 1, n_rounds = 60;
static bool is_slow; /* kernels are executed from PTX */

static uint64_t draw(uint64_t n)
{
    state += 0x9e3779b97f4a7c15u;
    uint64_t x = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % n;
}

/* Bytes somewhere, and beside them what the CPU makes of the same. */
typedef enum place { ON_DEVICE, PINNED, PAGEABLE, N_PLACES } place;
static const char *const place_names[] = {"device", "pinned", "pageable"};

typedef struct store {
    place place;
    char *base;  /* where the verbs work */
    char *image; /* the CPU's */
} store;

static char *raw[2 * AT_ONCE + MOST_SOURCES][N_PLACES]; /* made once each */
static char *images[2 * AT_ONCE + MOST_SOURCES];

static char *take(size_t number, place where)
{
    char **one = &raw[number][where];
    void *base;
    if (*one != NULL) {
        return *one;
    }
    if (where == ON_DEVICE) {
        must(kind->alloc(0, ROOM, &base, &error), &error);
        *one = base;
        return *one;
    }
    if (posix_memalign(&base, 4096, ROOM) != 0) {
        fail_msg("no memory");
    }
    memset(base, 0, ROOM);
    *one = base;
    if (where == PINNED) {
        must(kind->pin(base, ROOM, &error), &error);
    }
    return *one;
}

static void finish(void)
{
    must(fy_exec_finish(exec, queue, &error), &error);
}

static void move(void *to, const void *from, uint64_t bytes)
{
    fy_area flat = fy_area_flat(0, bytes);
    must(exec->copy(queue, &flat, to, &flat, from, 0, bytes, NULL, &error), &error);
    finish();
}

/* Random bits, of floats now and then special ones. */
static void fill(char *bytes, uint64_t n)
{
    static const uint32_t special[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
                                       0x7f800001, 0xffffffff, 0x00000001, 0x7f7fffff, 0x477ff000,
                                       0x7f807f80, 0x7e007c01, 0xfc007c00, 0x7f7f7e7c, 0xfdfffb80};
    for (uint64_t i = 0; i + 4 <= n; i += 4) {
        uint32_t word = draw(16) == 0 ? special[draw(COUNT_OF(special))]
                                      : (uint32_t)draw(1u << 31) * 2u + (uint32_t)draw(2);
        memcpy(bytes + i, &word, 4);
    }
}

static store open_store(size_t number, uint64_t bytes, place where)
{
    store one = {.place = where, .base = take(number, where)};
    if (images[number] == NULL) {
        images[number] = malloc(ROOM);
        assert_non_null(images[number]);
    }
    one.image = images[number];
    fill(one.image, bytes);
    if (where == ON_DEVICE) {
        move(one.base, one.image, bytes);
    } else {
        memcpy(one.base, one.image, bytes);
    }
    return one;
}

static void check_store(const store *one, uint64_t bytes, const char *what)
{
    static char found[ROOM];
    if (one->place == ON_DEVICE) {
        move(found, one->base, bytes);
    } else {
        memcpy(found, one->base, bytes);
    }
    for (uint64_t i = 0; i < bytes; i++) {
        if (found[i] != one->image[i]) {
            fail_msg("%s: %s memory, byte %llu of %llu is %02x, not %02x", what,
                     place_names[one->place], (unsigned long long)i, (unsigned long long)bytes,
                     (unsigned char)found[i], (unsigned char)one->image[i]);
        }
    }
}

/* A random shape of n elements; gaps between rows, on any alignment that the element has. */
static void draw_area(uint64_t element, uint64_t n_wanted, uint64_t alignment, fy_area *area_out)
{
    uint64_t length[FERRY_MAX_DIMS], stride[FERRY_MAX_DIMS], left = n_wanted, extent = element;
    uint32_t n_dims = 1 + (uint32_t)draw(4);
    uint64_t grain = element > alignment ? element : alignment;
    for (uint32_t d = n_dims; d-- > 0;) {
        uint64_t divisor = d == 0 ? left : 1;
        for (int tries = 0; d > 0 && tries < 40; tries++) {
            uint64_t one = 1 + draw(left < 600 ? left : 600);
            divisor = left % one == 0 && one > divisor ? one : divisor;
        }
        length[d] = divisor;
        left /= divisor;
        bool has_gap = d < n_dims - 1 && draw(3) > 0;
        stride[d] = has_gap ? (extent + grain - 1) / grain * grain + grain * draw(4) : extent;
        extent = stride[d] * (divisor - 1) + extent;
    }
    must(fy_area_make(draw(5) * grain, element, n_dims, length, stride, area_out, &error), &error);
}

static uint64_t end_of(const fy_area *area)
{
    uint64_t begin, end;
    fy_area_hull(area, &begin, &end);
    return (end + 3) / 4 * 4 + 64;
}

static uint64_t draw_count(void)
{
    static const uint64_t most[] = {10, 100, 3000, 60000};
    uint64_t n = 1 + draw(most[draw(COUNT_OF(most))]);
    return draw(2) == 0 ? n : (n + 15) / 16 * 16;
}

/* Two areas of the same number of elements, whatever their shapes; elements of the given sizes. */
static void draw_pair(uint64_t to_element, uint64_t from_element, fy_area *to, fy_area *from,
                      uint64_t *n_out)
{
    uint64_t alignments[] = {1, 1, 16, 16, 8, 4, 2};
    do {
        uint64_t alignment = alignments[draw(COUNT_OF(alignments))];
        *n_out = draw_count();
        draw_area(to_element, *n_out, alignment, to);
        draw_area(from_element, *n_out, alignment, from);
    } while (end_of(to) > ROOM || end_of(from) > ROOM);
}

static place draw_place(void)
{
    return draw(2) == 0 ? ON_DEVICE : (place)draw(N_PLACES);
}

static void check_copies(void)
{
    store to[AT_ONCE], from[AT_ONCE];
    fy_area to_area[AT_ONCE], from_area[AT_ONCE];
    uint64_t hash[AT_ONCE] = {0}, own[AT_ONCE] = {0}, wanted[AT_ONCE] = {0}, bytes, n;
    bool hashes[AT_ONCE];
    static const uint64_t elements[] = {1, 2, 4, 8, 16, 3, 48};
    for (size_t i = 0; i < AT_ONCE; i++) {
        uint64_t element = elements[draw(COUNT_OF(elements))];
        draw_pair(element, element, &to_area[i], &from_area[i], &n);
        to[i] = open_store(2 * i, end_of(&to_area[i]), draw_place());
        from[i] = open_store(2 * i + 1, end_of(&from_area[i]), draw_place());
    }
    for (size_t i = 0; i < AT_ONCE; i++) {
        bytes = to_area[i].bytes;
        uint64_t first = draw(3) == 0 ? draw(bytes) : 0;
        bytes = draw(3) == 0 ? draw(bytes - first + 1) : bytes - first;
        hashes[i] = draw(3) == 0;
        must(exec->copy(queue, &to_area[i], to[i].base, &from_area[i], from[i].base, first, bytes,
                        hashes[i] ? &hash[i] : NULL, &error),
             &error);
        must(exec->hash(queue, &from_area[i], from[i].base, first, bytes, &own[i], &error), &error);
        must(fy_cpu_exec.copy(NULL, &to_area[i], to[i].image, &from_area[i], from[i].image, first,
                              bytes, &wanted[i], &error),
             &error);
    }
    finish();
    for (size_t i = 0; i < AT_ONCE; i++) {
        check_store(&to[i], end_of(&to_area[i]), "target of a copy");
        check_store(&from[i], end_of(&from_area[i]), "source of a copy");
        check_at(own[i] == wanted[i], "hash of %s memory", place_names[from[i].place]);
        check_at(!hashes[i] || hash[i] == wanted[i], "hash of a copy from %s to %s memory",
                 place_names[from[i].place], place_names[to[i].place]);
    }
}

/*
 * A few bytes that come again and again, of any memory, and so wherever they are written just
 * before: in the queue's order both.
 */
static void check_repeats(void)
{
    enum { FEW = 4096, SOURCE = FEW + 64 };
    static const uint64_t elements[] = {1, 2, 4, 8, 16, 3, 12};
    store to[AT_ONCE], from[AT_ONCE], origin = open_store(2 * AT_ONCE, SOURCE, ON_DEVICE);
    fy_area area[AT_ONCE], spare, flat = fy_area_flat(0, SOURCE);
    uint64_t hash[AT_ONCE], wanted[AT_ONCE], n, none = 0;
    for (size_t i = 0; i < AT_ONCE; i++) {
        uint64_t element = elements[draw(COUNT_OF(elements))];
        draw_pair(element, element, &area[i], &spare, &n);
        uint64_t part = 1 + draw(FEW / element);
        for (part = part < n ? part : n; n % part != 0; part--) {}
        uint64_t again = n / part, first = draw(3) == 0 ? draw(n * element) : 0;
        fy_area few = fy_area_of(draw(64), part * element, 1, &again, &none);
        to[i] = open_store(2 * i, end_of(&area[i]), draw_place());
        from[i] = open_store(2 * i + 1, SOURCE, draw(3) > 0 ? PAGEABLE : draw_place());
        if (draw(3) == 0) {
            must(
                exec->copy(queue, &flat, from[i].base, &flat, origin.base, 0, SOURCE, NULL, &error),
                &error);
            memcpy(from[i].image, origin.image, SOURCE);
        }
        must(exec->copy(queue, &area[i], to[i].base, &few, from[i].base, first, n * element - first,
                        &hash[i], &error),
             &error);
        must(fy_cpu_exec.copy(NULL, &area[i], to[i].image, &few, from[i].image, first,
                              n * element - first, &wanted[i], &error),
             &error);
    }
    finish();
    for (size_t i = 0; i < AT_ONCE; i++) {
        check_store(&to[i], end_of(&area[i]), "target of what is repeated");
        check_at(hash[i] == wanted[i], "hash of what is repeated in %s memory",
                 place_names[to[i].place]);
    }
}

static void check_casts(void)
{
    static const uint32_t kinds[] = {FERRY_F32, FERRY_F16, FERRY_BF16, FERRY_F8E4M3, FERRY_F8E5M2};
    static const float scales[] = {0.5f, 3, 1.25f, 100};
    static const float numbers[] = {0, 1, -1, 0.1f, 3.3e38f, 1e-40f, -7.25f};
    uint64_t n, bytes[2];
    fy_area to_area, from_area;
    fy_cast cast = {.from_kind = kinds[draw(5)], .to_kind = kinds[draw(5)], .n_rows = 1};
    bytes[0] = fy_cast_element_bytes(cast.to_kind);
    bytes[1] = fy_cast_element_bytes(cast.from_kind);
    do {
        draw_pair(bytes[0], bytes[1], &to_area, &from_area, &n);
        to_area.offset = to_area.offset / bytes[0] * bytes[0];
        from_area.offset = from_area.offset / bytes[1] * bytes[1];
    } while (end_of(&to_area) > ROOM || end_of(&from_area) > ROOM);
    for (uint32_t d = 0; d < to_area.n_dims; d++) { /* numbers lie at multiples of their size */
        to_area.stride[d] = (to_area.stride[d] + bytes[0] - 1) / bytes[0] * bytes[0];
    }
    cast.n_columns = n;
    if (draw(3) == 0 && bytes[0] == 1) {
        cast.to_scales = (fy_cast_scales){.values = scales};
    }
    store to = open_store(0, ROOM, draw_place()), from = open_store(1, ROOM, draw_place());
    uint64_t first = draw(3) == 0 ? draw(n) : 0, hash = 0, wanted = 0;
    bool hashes = draw(3) == 0;
    n = draw(3) == 0 ? draw(n - first + 1) : n - first;
    cast.overflow = draw(2) == 0 ? FY_OVERFLOW_SATURATE : FY_OVERFLOW_PLAIN;
    if (draw(2) == 0) {
        cast.scale = numbers[draw(COUNT_OF(numbers))];
        cast.add = draw(2) == 0 ? numbers[draw(COUNT_OF(numbers))] : 0;
    }
    must(exec->cast(queue, &cast, &to_area, to.base, &from_area, from.base, first, n,
                    hashes ? &hash : NULL, &error),
         &error);
    finish();
    must(fy_cpu_exec.cast(NULL, &cast, &to_area, to.image, &from_area, from.image, first, n,
                          &wanted, &error),
         &error);
    check_store(&to, ROOM, "target of a cast");
    check_store(&from, ROOM, "source of a cast");
    check_at(!hashes || hash == wanted, "hash of a cast");
}

/* Codes of half a byte: what each is, is known by heart. */
static void check_half_codes(void)
{
    static const float numbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    static const struct {
        uint32_t kind;
        oracle_type type;
    } kinds[] = {{FERRY_F32, ORACLE_F32},
                 {FERRY_F16, ORACLE_F16},
                 {FERRY_BF16, ORACLE_BF16},
                 {FERRY_F8E4M3, ORACLE_F8E4M3},
                 {FERRY_F8E5M2, ORACLE_F8E5M2}};
    size_t to_kind = draw(COUNT_OF(kinds));
    uint64_t n, bytes = fy_cast_element_bytes(kinds[to_kind].kind), at, here, done = 0;
    fy_cast cast = {.from_kind = FERRY_F4, .to_kind = kinds[to_kind].kind, .n_rows = 1};
    fy_area to_area, from_area;
    do {
        draw_pair(2 * bytes, 1, &to_area, &from_area, &n);
    } while (end_of(&to_area) + 256 > ROOM || end_of(&from_area) > ROOM);
    to_area.offset = draw(40) * bytes;
    if (draw(2) == 0) { /* eight at once */
        n = (n + 3) / 4 * 4;
        from_area = fy_area_flat(draw(9) * 4, n);
        to_area = fy_area_flat(draw(9) * 16, 2 * n * bytes);
    }
    cast.n_columns = 2 * n;
    cast.scale = draw(3) == 0 ? 0.25f : 0;
    store to = open_store(0, ROOM, draw_place()), from = open_store(1, ROOM, draw_place());
    uint64_t first = draw(3) == 0 ? draw(n) : 0;
    n = draw(3) == 0 ? draw(n - first + 1) : n - first;
    must(exec->cast(queue, &cast, &to_area, to.base, &from_area, from.base, first, n, NULL, &error),
         &error);
    finish();
    fy_area_walk codes = fy_area_walk_of(&from_area, first, n), values;
    values = fy_area_walk_of(&to_area, first * 2 * bytes, n * 2 * bytes);
    uint64_t to_at = 0, to_left = 0;
    while (fy_area_next(&codes, &at, &here)) {
        for (uint64_t i = 0; i < 2 * here; i++, done++) {
            uint32_t code = (unsigned char)from.image[at + i / 2] >> 4 * (i % 2) & 15, bits;
            float number = numbers[code & 7] * (cast.scale == 0 ? 1 : cast.scale);
            memcpy(&bits, &number, sizeof bits);
            bits = oracle_cast(ORACLE_F32, bits | (code & 8) << 28, kinds[to_kind].type, false);
            if (to_left == 0) {
                assert_true(fy_area_next(&values, &to_at, &to_left));
            }
            memcpy(to.image + to_at, &bits, bytes);
            to_at += bytes;
            to_left -= bytes;
        }
    }
    check_at(done == 2 * n, "%llu of %llu codes", (unsigned long long)done,
             (unsigned long long)(2 * n));
    check_store(&to, ROOM, "numbers of codes of half a byte");
    check_store(&from, ROOM, "codes of half a byte");
}

/*
 * Scales of blocks
 */

enum { MOST_SCALES = 400000 };
static float scale_values[2][MOST_SCALES];
static unsigned char scale_powers[2][MOST_SCALES];
static float matrix_scales[8192];

/* Of codes to be made positive; else any, those that are no numbers, too. */
static void draw_scales(size_t side, uint64_t n)
{
    static const uint32_t special[] = {0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00001, 1};
    for (uint64_t i = 0; i < n; i++) {
        uint32_t any = draw(8) == 0 ? special[draw(COUNT_OF(special))] : (uint32_t)draw(1ull << 32);
        uint32_t bits = side == 0 ? 0x30000000 + (uint32_t)draw(0x20000000) : any;
        memcpy(&scale_values[side][i], &bits, sizeof bits);
        scale_powers[side][i] = (unsigned char)(side == 0 ? 60 + draw(130) : draw(256));
    }
}

static fy_cast_scales draw_places(uint64_t n_planes, uint64_t rows, uint64_t columns)
{
    static const uint64_t blocks[][2] = {{128, 128}, {1, 32}, {1, 16}, {2, 3}, {8, 8}, {1, 1}};
    enum { MANY = 2000 }; /* columns: with a scale for each there is no room for all at once */
    size_t block = columns == MANY ? COUNT_OF(blocks) - 1 : draw(COUNT_OF(blocks));
    fy_cast_scales s = {.block = {blocks[block][0], blocks[block][1]},
                        .origin = {draw(2) * draw(200), draw(2) * (draw(5) * 8 + draw(2))}};
    uint64_t high = (rows + s.origin[0]) / s.block[0] + 1;
    uint64_t wide = (columns + s.origin[1]) / s.block[1] + 1;
    bool is_turned = draw(4) == 0;
    s.pitch = is_turned ? 1 : wide + draw(3);
    s.step = is_turned ? high + draw(3) : draw(2);
    s.plane = is_turned ? s.step * wide : s.pitch * high;
    if (draw(3) == 0 && n_planes % 2 == 0) { /* a box of matrices, whose dims are turned */
        s.n_plane_dims = 2;
        s.plane_length[0] = n_planes / 2;
        s.plane_length[1] = 2;
        s.plane_stride[0] = s.plane;
        s.plane_stride[1] = s.plane * (n_planes / 2);
    }
    return s;
}

static fy_cast_scales draw_grid(size_t side, uint64_t n_planes, uint64_t rows, uint64_t columns,
                                bool are_codes)
{
    fy_cast_scales s;
    do {
        s = draw_places(n_planes, rows, columns);
    } while (s.plane * n_planes > MOST_SCALES);
    draw_scales(side, s.plane * n_planes);
    switch (are_codes ? 2 : draw(2)) {
    case 0:
        s.values = scale_values[side];
        break;
    case 1:
        s.powers = scale_powers[side];
        break;
    default:
        s.codes = scale_powers[side];
        s.of_matrices = matrix_scales;
        if (s.n_plane_dims == 0 && n_planes % 2 == 0) {
            s.n_plane_dims = 2;
            s.plane_length[0] = n_planes / 2;
            s.plane_length[1] = 2;
            s.plane_stride[0] = 2 * s.plane;
            s.plane_stride[1] = s.plane;
        }
        for (uint32_t d = 0; d < s.n_plane_dims; d++) { /* with gaps for which there is no room */
            s.matrix_stride[d] = draw(2) == 0 ? draw(4000) : 1 + draw(9);
        }
        memcpy(matrix_scales, scale_values[side], sizeof matrix_scales);
        break;
    }
    return s;
}

/* Rows of a matrix of n elements, with gaps if there is room. */
static fy_area draw_rows(uint64_t bytes, uint64_t n, uint64_t columns)
{
    fy_area area;
    uint64_t gap = draw(2) * draw(3) * 8 + draw(2) * draw(3);
    gap = n / columns * (columns + gap) * bytes < ROOM - 65536 ? gap : 0;
    const uint64_t length[2] = {n / columns, columns};
    const uint64_t stride[2] = {(columns + gap) * bytes, bytes};
    uint64_t offset = draw(2) == 0 ? 16 * draw(9) : bytes * draw(40) + draw(2);
    must(fy_area_make(offset, bytes, 2, length, stride, &area, &error), &error);
    return area;
}

/*
 * Codes made of values and values of codes, in place too. of_matrices: values whose scales are
 * codes themselves, which the device has.
 */
static void check_scaled(bool of_matrices)
{
    static const uint32_t kinds[] = {FERRY_F32, FERRY_F16, FERRY_BF16, FERRY_F8E4M3, FERRY_F8E5M2};
    bool makes_codes = !of_matrices && draw(2) == 0, in_place = !makes_codes && draw(2) == 0;
    fy_cast cast = {.from_kind = kinds[draw(makes_codes ? 3 : 5)],
                    .to_kind = kinds[makes_codes ? 3 + draw(2) : draw(3)],
                    .overflow = makes_codes ? FY_OVERFLOW_CODES : FY_OVERFLOW_PLAIN,
                    .has_plain_nans = !makes_codes || draw(2) == 0};
    cast.from_kind = in_place ? cast.to_kind : cast.from_kind;
    uint64_t planes = draw(2) == 0 ? 4 : 1 + draw(4),
             columns = draw(2) == 0 ? 8 * (1 + draw(30)) : 1 + draw(200);
    cast.n_columns = draw(4) == 0 ? 2000 : columns;
    cast.n_rows = 1 + draw(1 + 100000 / (planes * cast.n_columns));
    uint64_t n = planes * cast.n_rows * cast.n_columns;
    const uint64_t bytes[2] = {fy_cast_element_bytes(cast.to_kind),
                               fy_cast_element_bytes(cast.from_kind)};
    fy_area area[2];
    for (int i = 0; i < 2; i++) {
        area[i] = of_matrices ? fy_area_flat(8 * bytes[i] * draw(3), n * bytes[i])
                              : draw_rows(bytes[i], n, cast.n_columns);
    }
    if (makes_codes) {
        cast.to_scales = draw_grid(0, planes, cast.n_rows, cast.n_columns, false);
    } else {
        bool are_codes = of_matrices || draw(4) == 0;
        cast.from_scales = draw_grid(1, planes, cast.n_rows, cast.n_columns, are_codes);
    }
    bool is_there = of_matrices || draw(4) > 0;
    store to = open_store(0, ROOM, is_there ? ON_DEVICE : draw_place());
    store from = in_place ? to : open_store(1, ROOM, is_there ? ON_DEVICE : draw_place());
    const fy_area *source = in_place ? &area[0] : &area[1];
    uint64_t first = draw(3) == 0 ? draw(n) : 0;
    n = draw(3) == 0 ? draw(n - first + 1) : n - first;
    must(exec->cast(queue, &cast, &area[0], to.base, source, from.base, first, n, NULL, &error),
         &error);
    finish();
    must(fy_cpu_exec.cast(NULL, &cast, &area[0], to.image, source, from.image, first, n, NULL,
                          &error),
         &error);
    check_store(&to, ROOM, makes_codes ? "codes of blocks" : "values of blocks");
}

/* Blocks of a matrix on the device, quantized there: a slow oracle makes codes and scales, too. */
typedef struct quantized_case {
    fy_quantized q;
    oracle_block how;
    uint64_t value_bytes, scale_bytes, across;
} quantized_case;

static quantized_case draw_quantized(void)
{
    static const struct {
        uint32_t kind;
        oracle_type type;
    } values[] = {{FERRY_F32, ORACLE_F32}, {FERRY_F16, ORACLE_F16}, {FERRY_BF16, ORACLE_BF16}};
    const fy_block_format formats[] = {
        fy_format_f8(128, 128),
        fy_format_mxfp8(),
        fy_format_f8(1, 128),
        {.kind = FERRY_F8E5M2, .scale_kind = FERRY_F32, .rule = FY_SCALE_COVER, .block = {3, 8}},
        {.kind = FERRY_F8E5M2,
         .scale_kind = FERRY_F8E8M0,
         .rule = FY_SCALE_COVER,
         .block = {40, 5}}};
    size_t value = draw(COUNT_OF(values));
    quantized_case c = {.q = {.format = formats[draw(COUNT_OF(formats))],
                              .kind = values[value].kind,
                              .n_rows = 1 + draw(200),
                              .n_columns = draw(2) == 0 ? 8 * (1 + draw(24)) : 1 + draw(150)}};
    c.how.from = values[value].type;
    c.how.to = c.q.format.kind == FERRY_F8E4M3 ? ORACLE_F8E4M3 : ORACLE_F8E5M2;
    c.how.scale_type = c.q.format.scale_kind == FERRY_F32 ? ORACLE_F32 : ORACLE_F8E8M0;
    c.how.rule = c.q.format.rule == FY_SCALE_LARGEST ? ORACLE_LARGEST
                 : c.q.format.rule == FY_SCALE_COVER ? ORACLE_COVER
                                                     : ORACLE_FLOOR;
    c.value_bytes = fy_cast_element_bytes(c.q.kind);
    c.scale_bytes = c.q.format.scale_kind == FERRY_F32 ? 4 : 1;
    c.across = (c.q.n_columns + c.q.format.block[1] - 1) / c.q.format.block[1];
    return c;
}

static void check_block(const quantized_case *c, const char *from, const char *codes,
                        const char *scales, uint64_t down, uint64_t across)
{
    static uint32_t elements[128 * 128], wanted[128 * 128];
    const uint64_t *block = c->q.format.block;
    uint64_t at[128 * 128], scale_at = down * c->across + across;
    size_t n = 0;
    uint32_t scale = 0;
    for (uint64_t row = down * block[0]; row < (down + 1) * block[0] && row < c->q.n_rows; row++) {
        for (uint64_t column = across * block[1];
             column < (across + 1) * block[1] && column < c->q.n_columns; column++) {
            at[n] = row * c->q.n_columns + column;
            elements[n] = 0;
            memcpy(&elements[n], from + at[n] * c->value_bytes, c->value_bytes);
            n++;
        }
    }
    memcpy(&scale, scales + scale_at * c->scale_bytes, c->scale_bytes);
    uint32_t wanted_scale = oracle_quantize(&c->how, elements, n, wanted);
    check_at(scale == wanted_scale, "scale %llu is %x, not %x", (unsigned long long)scale_at, scale,
             wanted_scale);
    for (size_t i = 0; i < n; i++) {
        check_at((unsigned char)codes[at[i]] == wanted[i], "code %llu is %x, not %x",
                 (unsigned long long)at[i], (unsigned char)codes[at[i]], wanted[i]);
    }
}

static void check_quantized(void)
{
    static float largest[1 << 16];
    static char scales[4 << 16], codes[1 << 16];
    quantized_case c = draw_quantized();
    uint64_t n = c.q.n_rows * c.q.n_columns, shape[2];
    uint64_t offset = draw(2) == 0 ? 16 * draw(9) : c.value_bytes * draw(40);
    store from = open_store(0, ROOM, ON_DEVICE), to = open_store(1, ROOM, ON_DEVICE);
    if (draw(2) == 0) { /* nothing but zeros, or no number at all, in some blocks */
        memset(from.image + offset, draw(2) == 0 ? 0 : 0xff, draw(n) * c.value_bytes);
        move(from.base, from.image, ROOM);
    }
    const fy_blocks blocks = {.kind = c.q.kind,
                              .n_rows = c.q.n_rows,
                              .n_columns = c.q.n_columns,
                              .block = {c.q.format.block[0], c.q.format.block[1]}};
    must(exec->largest(queue, &blocks, from.base + offset, largest, &error), &error);
    finish();
    fy_scales_shape(&c.q, shape);
    fy_scales_of_largest(&c.q, largest, scales, shape[0] * shape[1]);
    const fy_cast cast = {.from_kind = c.q.kind,
                          .to_kind = c.q.format.kind,
                          .overflow = FY_OVERFLOW_CODES,
                          .n_rows = c.q.n_rows,
                          .n_columns = c.q.n_columns,
                          .to_scales = {.values = largest,
                                        .block = {blocks.block[0], blocks.block[1]},
                                        .pitch = shape[1]}};
    fy_area from_area = fy_area_flat(offset, n * c.value_bytes), to_area = fy_area_flat(0, n);
    must(exec->cast(queue, &cast, &to_area, to.base, &from_area, from.base, 0, n, NULL, &error),
         &error);
    finish();
    move(codes, to.base, n);
    for (uint64_t i = 0; i < shape[0] * shape[1]; i++) {
        check_block(&c, from.image + offset, codes, scales, i / shape[1], i % shape[1]);
    }
}

/*
 * Numbers of a matrix that becomes NVFP4: of like magnitudes, or halfway between two codes, and few
 * that are no numbers.
 */
static void fill_numbers(char *bytes, uint64_t n, oracle_type type, uint64_t width, uint32_t lowest,
                         bool are_halfway)
{
    static const uint32_t special[] = {0, 0x80000000, 0x7f800000, 0xffc00000, 1};
    static const float halfway[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 6};
    uint32_t spread = 1 + (uint32_t)draw(14);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)draw(1u << 23) | (lowest + (uint32_t)draw(spread)) << 23;
        if (are_halfway) {
            memcpy(&bits, &halfway[draw(COUNT_OF(halfway))], sizeof bits);
            bits = bits + (lowest << 23) - (127u << 23);
        }
        bits |= (uint32_t)draw(2) << 31;
        bits = draw(200) == 0 ? special[draw(COUNT_OF(special))] : bits;
        bits = oracle_cast(ORACLE_F32, bits, type, false);
        memcpy(bytes + i * width, &bits, width);
    }
}

static void check_nvfp4_block(const oracle_block *how, const char *from, uint64_t width, uint64_t n,
                              const char *codes, uint32_t stored)
{
    uint32_t elements[16] = {0}, wanted[16];
    for (uint64_t i = 0; i < n; i++) {
        memcpy(&elements[i], from + i * width, width);
    }
    uint32_t scale = oracle_quantize(how, elements, n, wanted);
    check_at(stored == scale, "a scale is %x, not %x", stored, scale);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t code = (unsigned char)codes[i / 2] >> 4 * (i % 2) & 15;
        check_at(code == wanted[i], "code %llu is %x, not %x", (unsigned long long)i, code,
                 wanted[i]);
    }
    check_at(n % 2 == 0 || (unsigned char)codes[n / 2] < 16, "half a byte behind a row");
}

static void check_as_quantized(const fy_halves *m, const char *from, const char *codes,
                               const char *scales)
{
    static char own_codes[1 << 17], own_scales[1 << 15];
    const fy_quantized q = {.format = fy_format_nvfp4(),
                            .kind = m->kind,
                            .tensor_scale = m->of_matrix,
                            .n_rows = m->n_rows,
                            .n_columns = m->n_columns};
    uint64_t n_codes = m->n_rows * fy_codes_row_bytes(&q), shape[2];
    fy_scales_shape(&q, shape);
    uint64_t n = shape[0] * shape[1],
             bytes = m->n_rows * m->n_columns * fy_cast_element_bytes(m->kind);
    const fy_input values = {.data = from, .n_bytes = bytes};
    const fy_output to = {.data = own_codes, .n_bytes = n_codes};
    const fy_output its = {.data = own_scales, .n_bytes = n};
    must(fy_quantize(&q, &values, &to, &its, &error), &error);
    check_at(memcmp(own_codes, codes, n_codes) == 0, "codes are not those of the CPU");
    check_at(memcmp(own_scales, scales, n) == 0, "scales are not those of the CPU");
}

enum { OUT_BYTES = 1 << 17 };

/* Where a verb leaves bytes: rows with gaps, in any memory, from some byte on. */
static fy_exec_place draw_out(const store *to, uint64_t bytes)
{
    fy_exec_place to_place = {.base = to->base, .first = draw(2) * draw(50)};
    uint64_t run = draw(2) == 0 ? 16 * (1 + draw(40)) : 17 + draw(300);
    const uint64_t length[2] = {(to_place.first + bytes + run - 1) / run + draw(3), run};
    const uint64_t stride[2] = {run + draw(2) * draw(20), 1};
    must(fy_area_make(draw(2) * draw(64), 1, 2, length, stride, &to_place.area, &error), &error);
    return to_place;
}

/* What a verb has left there, to `found`; nothing else was written. */
static void take_out(store *to, const fy_exec_place *to_place, uint64_t bytes, char *found)
{
    static char all[OUT_BYTES];
    fy_area flat = fy_area_flat(0, to_place->first + bytes);
    char *base = (char *)((uintptr_t)found - (uintptr_t)to_place->first);
    if (to->place == ON_DEVICE) {
        move(all, to->base, OUT_BYTES);
    } else {
        memcpy(all, to->base, OUT_BYTES);
    }
    must(fy_cpu_exec.copy(NULL, &flat, base, &to_place->area, all, to_place->first, bytes, NULL,
                          &error),
         &error);
    must(fy_cpu_exec.copy(NULL, &to_place->area, to->image, &flat, base, to_place->first, bytes,
                          NULL, &error),
         &error);
    check_store(to, OUT_BYTES, "codes or scales of nvfp4");
}

static void check_nvfp4(void)
{
    static char codes[1 << 17], scales[1 << 15];
    static const struct {
        uint32_t kind;
        oracle_type type;
    } values[] = {{FERRY_F32, ORACLE_F32}, {FERRY_F16, ORACLE_F16}, {FERRY_BF16, ORACLE_BF16}};
    size_t value = draw(COUNT_OF(values));
    uint64_t columns = draw(2) == 0 ? 16 * (1 + draw(20)) : 1 + draw(200);
    fy_halves m = {.kind = values[value].kind, .n_rows = 1 + draw(100), .n_columns = columns};
    uint64_t width = fy_cast_element_bytes(m.kind), across = (columns + 15) / 16;
    uint64_t offset = draw(2) == 0 ? 16 * draw(9) : width * draw(40), code_row = (columns + 1) / 2;
    uint32_t lowest = 50 + (uint32_t)draw(150), bits = (uint32_t)draw(1u << 23);
    bool are_halfway = draw(3) == 0, is_odd = !are_halfway && draw(4) == 0;
    if (is_odd) { /* by which quotients may be infinite: what they become, the CPU says */
        bits |= (10 + (uint32_t)draw(235)) << 23;
    } else if (are_halfway) {
        lowest = 120 + (uint32_t)draw(12); /* of f16, too */
        bits = (lowest - (uint32_t)draw(7)) << 23;
    } else {
        bits |= (lowest - 40 + (uint32_t)draw(60)) << 23;
    }
    memcpy(&m.of_matrix, &bits, sizeof bits);
    const oracle_block how = {.from = values[value].type,
                              .to = ORACLE_F4,
                              .scale_type = ORACLE_F8E4M3,
                              .rule = ORACLE_LARGEST,
                              .tensor_scale = bits};
    store from = open_store(0, ROOM, ON_DEVICE);
    fill_numbers(from.image + offset, m.n_rows * columns, values[value].type, width, lowest,
                 are_halfway);
    move(from.base, from.image, ROOM);
    store to[2] = {open_store(1, OUT_BYTES, draw_place()), open_store(2, OUT_BYTES, draw_place())};
    const uint64_t made[2] = {m.n_rows * code_row, m.n_rows * across};
    fy_exec_place codes_place = draw_out(&to[0], made[0]), scales_place = draw_out(&to[1], made[1]);
    must(exec->nvfp4(queue, &m, from.base + offset, &codes_place, &scales_place, &error), &error);
    finish();
    take_out(&to[0], &codes_place, made[0], codes);
    take_out(&to[1], &scales_place, made[1], scales);
    codes_place.base = NULL; /* nobody wants them */
    must(exec->nvfp4(queue, &m, from.base + offset, &codes_place, &codes_place, &error), &error);
    finish();
    check_store(&to[0], OUT_BYTES, "codes that nobody wants");
    check_as_quantized(&m, from.image + offset, codes, scales);
    for (uint64_t i = 0; i < m.n_rows * across && !is_odd; i++) {
        uint64_t row = i / across, column = i % across * 16;
        check_nvfp4_block(&how, from.image + offset + (row * columns + column) * width, width,
                          columns - column < 16 ? columns - column : 16,
                          codes + row * code_row + column / 2, (unsigned char)scales[i]);
    }
}

/*
 * Digests
 */

enum { N_DIGESTS = 100 };
static uint64_t found_digests[N_DIGESTS], seen_digests[N_DIGESTS];

static void look_at_digests(void *context)
{
    (void)context;
    memcpy(seen_digests, found_digests, sizeof seen_digests);
}

/* XXH3 of the bytes as they lie behind each other. */
static uint64_t digest_of(const fy_area *area, const char *base, uint64_t first, uint64_t bytes)
{
    static char packed[ROOM];
    uint64_t at, n, used = 0;
    fy_area_walk walk = fy_area_walk_of(area, first, bytes);
    for (; fy_area_next(&walk, &at, &n); used += n) {
        memcpy(packed + used, base + at, n);
    }
    return fy_hash64(packed, bytes);
}

/* Bytes of the device's memory that are hashed: of all lengths that XXH3 tells apart. */
static fy_area draw_hashed(uint64_t *first_out, uint64_t *bytes_out)
{
    static const uint64_t lengths[] = {0,    1,    4,    9,    16,   17,   128,  129,  240,    241,
                                       1023, 1024, 1025, 1087, 1088, 1089, 2048, 2049, 1 << 20};
    static const uint64_t most[] = {300, 5000, 300000, 1 << 20};
    uint64_t bytes = draw(2) == 0 ? lengths[draw(COUNT_OF(lengths))] : draw(most[draw(4)]);
    bytes = is_slow && bytes > 20000 ? bytes / 50 : bytes;
    uint64_t first = draw(3) == 0 ? draw(2000) : 0, all = first + bytes + draw(100);
    uint64_t at = draw(2) == 0 ? draw(5000) * 16 : draw(80000);
    fy_area area = fy_area_flat(at, all + 1);
    if (draw(3) == 0) {
        const uint64_t rows[] = {1 + draw(3000), 16 * (1 + draw(200)), 1024};
        uint64_t row = rows[draw(3)], length[2] = {all / row + 1, row};
        const uint64_t stride[2] = {row + draw(2) * 16 + (draw(2) == 0 ? draw(16) : 0), 1};
        must(fy_area_make(at, 1, 2, length, stride, &area, &error), &error);
    }
    *first_out = first;
    *bytes_out = bytes;
    return end_of(&area) <= ROOM ? area : fy_area_flat(at, all + 1);
}

/* Many under way at once, and bytes that change behind them before anybody waits. */
static void test_digests(void **unused)
{
    uint64_t wanted[N_DIGESTS], first, bytes, n_seen = 0;
    (void)unused;
    state = seed;
    store data = open_store(0, ROOM, ON_DEVICE), other = open_store(1, 65536, PAGEABLE);
    store near = open_store(2, 65536, ON_DEVICE);
    for (size_t i = 0; i < N_DIGESTS; i++) {
        fy_area area = draw_hashed(&first, &bytes), flat = fy_area_flat(0, 1 + draw(65536));
        wanted[i] = digest_of(&area, data.image, first, bytes);
        must(exec->hash(queue, &area, data.base, first, bytes, &found_digests[i], &error), &error);
        if (draw(6) == 0) {
            bool by_host = i > N_DIGESTS / 2 && draw(3) == 0; /* which ends what is under way */
            const store *from = by_host ? &other : &near;
            uint64_t at = draw(ROOM - 65536);
            must(exec->copy(queue, &flat, data.base + at, &flat, from->base, 0, flat.bytes, NULL,
                            &error),
                 &error);
            memcpy(data.image + at, from->image, flat.bytes);
        }
        if (i == N_DIGESTS / 2) { /* those before it are there in its turn */
            must(exec->call(queue, look_at_digests, NULL, &error), &error);
            n_seen = i + 1;
        }
    }
    finish();
    for (size_t i = 0; i < N_DIGESTS; i++) {
        check_at(found_digests[i] == wanted[i], "digest %zu of %d, seed %llu", i, (int)N_DIGESTS,
                 (unsigned long long)seed);
        check_at(i >= n_seen || seen_digests[i] == wanted[i], "digest %zu is not there in time", i);
    }
    check_store(&data, ROOM, "what was hashed");
}

/*
 * Digests of pieces of what lies in several places, one behind the other, and more of them than are
 * made at once; and bytes that change before anybody waits.
 */

enum { MOST_PARTS = 5, PIECE = 4096 };

/* Appends what the oracle has of a part. */
static uint64_t append_part(const fy_exec_part *part, const char *base, char *packed, uint64_t used)
{
    uint64_t at, n;
    fy_area_walk walk = fy_area_walk_of(&part->area, part->first, part->bytes);
    for (; fy_area_next(&walk, &at, &n); used += n) {
        memcpy(packed + used, base + at, n);
    }
    return used;
}

static fy_exec_part draw_part(const store *from)
{
    fy_exec_part part = {.base = from->base};
    if (draw(4) == 0) { /* what needs no gathering */
        part.bytes = PIECE * draw(is_slow ? 3 : 200);
        part.area = fy_area_flat(16 * draw(3), part.bytes);
    } else {
        part.area = draw_hashed(&part.first, &part.bytes);
    }
    return part;
}

static void check_pieces(void)
{
    static char packed[MOST_PARTS * ROOM], found[2][MOST_PARTS * ROOM / PIECE * 16 + 16];
    static char wanted[2][sizeof found[0]];
    store from = open_store(0, ROOM, ON_DEVICE), other = open_store(1, 65536, ON_DEVICE);
    uint64_t n_bytes[2] = {0};
    for (size_t k = 0; k < 2; k++) {
        fy_exec_part parts[MOST_PARTS];
        size_t n = 1 + draw(MOST_PARTS);
        for (size_t i = 0; i < n; i++) {
            parts[i] = draw_part(&from);
            n_bytes[k] = append_part(&parts[i], from.image, packed, n_bytes[k]);
        }
        for (uint64_t at = 0; at < n_bytes[k]; at += PIECE) {
            uint64_t here = n_bytes[k] - at < PIECE ? n_bytes[k] - at : PIECE;
            fy_hash128 hash = fy_hash128_of(packed + at, here);
            memcpy(wanted[k] + at / PIECE * 16, &hash.low, 8);
            memcpy(wanted[k] + at / PIECE * 16 + 8, &hash.high, 8);
        }
        must(exec->digests(queue, parts, n, found[k], &error), &error);
        fy_area flat = fy_area_flat(0, 65536);
        uint64_t at = 4 * draw((ROOM - 65536) / 4);
        must(exec->copy(queue, &flat, from.base + at, &flat, other.base, 0, 65536, NULL, &error),
             &error);
        memcpy(from.image + at, other.image, 65536);
    }
    finish();
    for (size_t k = 0; k < 2; k++) {
        uint64_t n = (n_bytes[k] + PIECE - 1) / PIECE;
        for (uint64_t i = 0; i < n; i++) {
            check_at(memcmp(found[k] + 16 * i, wanted[k] + 16 * i, 16) == 0,
                     "digest %llu of the pieces of %llu bytes", (unsigned long long)i,
                     (unsigned long long)n_bytes[k]);
        }
    }
    check_store(&from, ROOM, "what has digests");
}

/* More than there is room for at once, beside others, before and behind it. */
static void test_long_digest(void **unused)
{
    enum { LONG = 67 << 20 };
    uint64_t found[4] = {0}, wanted[4], at[] = {0, 16, 32, 5}, bytes[] = {3 << 20, 0, 5000, 0};
    void *base, *device;
    fy_area flat = fy_area_flat(0, LONG);
    (void)unused;
    if (is_slow) { /* as it must be long, and shows nothing there that shorter ones do not */
        return;
    }
    state = seed;
    must(kind->alloc(0, LONG, &device, &error), &error);
    if (posix_memalign(&base, 4096, LONG) != 0) {
        fail_msg("no memory");
    }
    fill(base, LONG);
    bytes[1] = LONG - 16 - draw(1000);
    bytes[3] = (2 << 20) + draw(3 << 20);
    must(exec->copy(queue, &flat, device, &flat, base, 0, LONG, NULL, &error), &error);
    for (size_t i = 0; i < COUNT_OF(found); i++) {
        must(exec->hash(queue, &flat, device, at[i], bytes[i], &found[i], &error), &error);
        wanted[i] = fy_hash64((const char *)base + at[i], bytes[i]);
    }
    finish();
    for (size_t i = 0; i < COUNT_OF(found); i++) {
        check_at(found[i] == wanted[i], "digest of %llu bytes", (unsigned long long)bytes[i]);
    }
    kind->free(0, device, LONG);
    free(base);
}

/*
 * Rows that begin anywhere, out of and into pinned memory that ends where they do: wide loads must
 * not reach for what is beside it.
 */
static void test_edges(void **unused)
{
    static const uint64_t rows[] = {1001, 1000, 77, 16, 17, 4};
    (void)unused;
    state = seed;
    for (size_t i = 0; i < COUNT_OF(rows) * 16; i++) {
        uint64_t row = rows[i / 16], n = 5 + draw(20), bytes = n * row;
        const uint64_t length[2] = {n, row}, stride[2] = {row + 1 + draw(40), 1};
        fy_area flat = fy_area_flat(0, bytes), strided;
        void *raw_memory;
        must(fy_area_make(draw(16), 1, 2, length, stride, &strided, &error), &error);
        if (posix_memalign(&raw_memory, 4096, bytes + 16) != 0) {
            fail_msg("no memory");
        }
        char *edge = (char *)raw_memory + i % 16, *wanted = malloc(bytes);
        assert_non_null(wanted);
        for (uint64_t k = 0; k < bytes; k++) {
            edge[k] = wanted[k] = (char)draw(256);
        }
        must(kind->pin(edge, bytes, &error), &error);
        char *device = take(0, ON_DEVICE);
        must(exec->copy(queue, &strided, device, &flat, edge, 0, bytes, NULL, &error), &error);
        finish();
        memset(edge, 0, bytes);
        must(exec->copy(queue, &flat, edge, &strided, device, 0, bytes, NULL, &error), &error);
        finish();
        check_at(memcmp(edge, wanted, bytes) == 0, "%llu rows of %llu bytes", (unsigned long long)n,
                 (unsigned long long)row);
        kind->unpin(edge, bytes);
        free(wanted);
        free(raw_memory);
    }
}

/*
 * Number i of a type: of those of 16 bits and of 8 each in turn, of f32 each of the upper 19 bits,
 * with the others at random or such as lie beside what is rounded to even.
 */
static uint32_t pattern(uint64_t width, uint32_t i)
{
    static const uint32_t lows[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff};
    uint32_t low = draw(2) == 0 ? lows[draw(COUNT_OF(lows))] : (uint32_t)draw(0x2000);
    return width == 4 ? i << 13 | low : i;
}

/* Devices have instructions for pairs of numbers, which round by themselves. */
static void check_patterns(uint32_t from_kind, uint32_t to_kind)
{
    uint64_t from_bytes = fy_cast_element_bytes(from_kind);
    uint64_t to_bytes = fy_cast_element_bytes(to_kind), n = from_bytes == 4 ? 1 << 19 : 1 << 16;
    fy_cast cast = {.from_kind = from_kind, .to_kind = to_kind, .n_rows = 1, .n_columns = n};
    cast.overflow = draw(2) == 0 ? FY_OVERFLOW_SATURATE : FY_OVERFLOW_PLAIN;
    fy_area to_area = fy_area_flat(0, n * to_bytes), from_area = fy_area_flat(0, n * from_bytes);
    store to = open_store(0, ROOM, ON_DEVICE), from = open_store(1, ROOM, ON_DEVICE);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = pattern(from_bytes, i);
        memcpy(from.image + i * from_bytes, &bits, from_bytes);
    }
    move(from.base, from.image, n * from_bytes);
    must(exec->cast(queue, &cast, &to_area, to.base, &from_area, from.base, 0, n, NULL, &error),
         &error);
    finish();
    must(fy_cpu_exec.cast(NULL, &cast, &to_area, to.image, &from_area, from.image, 0, n, NULL,
                          &error),
         &error);
    check_store(&to, ROOM, "target of a cast of all patterns");
}

static void test_patterns(void **unused)
{
    static const uint32_t kinds[] = {FERRY_F32, FERRY_F16, FERRY_BF16, FERRY_F8E4M3, FERRY_F8E5M2};
    (void)unused;
    state = seed;
    for (size_t i = 0; i < COUNT_OF(kinds) * COUNT_OF(kinds); i++) {
        if (i % COUNT_OF(kinds) != i / COUNT_OF(kinds)) {
            check_patterns(kinds[i / COUNT_OF(kinds)], kinds[i % COUNT_OF(kinds)]);
        }
    }
}

static void check_sums(void)
{
    static const fy_sum_type types[][2] = {{FY_SUM_F32, FY_SUM_F32},  {FY_SUM_F32, FY_SUM_F16},
                                           {FY_SUM_F32, FY_SUM_BF16}, {FY_SUM_F16, FY_SUM_F16},
                                           {FY_SUM_F16, FY_SUM_F32},  {FY_SUM_BF16, FY_SUM_BF16},
                                           {FY_SUM_BF16, FY_SUM_F32}};
    const void *sources[MOST_SOURCES], *here[MOST_SOURCES];
    store in[MOST_SOURCES], out[2];
    size_t type = draw(COUNT_OF(types)), n = 1 + draw(draw(4) == 0 ? 50000 : 300);
    size_t n_sources = draw(12) == 0 ? 60 + draw(10) : 1 + draw(9);
    bool has_second = draw(2) == 0, all_device = draw(3) > 0;
    uint64_t shift = draw(2) * fy_sum_type_bytes(types[type][0]) * draw(9);
    uint64_t bytes = (shift + 4 * n + 7) / 4 * 4;
    for (size_t i = 0; i < n_sources; i++) {
        in[i] = open_store(2 + i, bytes, all_device ? ON_DEVICE : draw_place());
        sources[i] = in[i].base + shift;
        here[i] = in[i].image + shift;
    }
    for (size_t i = 0; i < 2; i++) {
        out[i] = open_store(i, bytes, all_device ? ON_DEVICE : draw_place());
    }
    fy_sum sum = {.sources = sources,
                  .n_sources = n_sources,
                  .source_type = types[type][0],
                  .target_type = types[type][1],
                  .targets = {out[0].base, has_second ? out[1].base : NULL},
                  .n = n};
    must(exec->sum(queue, &sum, &error), &error);
    finish();
    sum.sources = here;
    sum.targets[0] = out[0].image;
    sum.targets[1] = has_second ? out[1].image : NULL;
    must(fy_cpu_exec.sum(NULL, &sum, &error), &error);
    check_store(&out[0], bytes, "a sum");
    check_store(&out[1], bytes, "a sum's second target");
}

static void test_random(void **unused)
{
    (void)unused;
    for (uint64_t round = 0; round < n_rounds; round++) {
        state = seed + round;
        if (round % 16 == 0) {
            print_message("seed %llu\n", (unsigned long long)(seed + round));
        }
        check_copies();
        check_repeats();
        check_pieces();
        check_casts();
        for (int i = 0; i < (n_rounds < 20 && !is_slow ? 10 : 1); i++) {
            check_half_codes();
            check_scaled(false);
            check_scaled(true);
            check_quantized();
            check_nvfp4();
        }
        check_sums();
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--only") == 0) { /* of the tests below, "test_random" */
            cmocka_set_test_filter(argv[i + 1]);
            continue;
        }
        *(strcmp(argv[i], "--seed") == 0 ? &seed : &n_rounds) = strtoull(argv[i + 1], NULL, 10);
    }
    must(fy_memory_get(FERRY_MEMORY_CUDA, &kind, &error), &error);
    exec = kind->exec;
    must(exec->queue_open(0, NULL, &queue, &error), &error);
    is_slow = getenv("STANDIN_PTX") != NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digests), cmocka_unit_test(test_long_digest),
        cmocka_unit_test(test_edges), cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_random)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    exec->queue_close(queue);
    return failed;
}
