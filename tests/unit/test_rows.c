/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels for rows do the same whether rows are copied one by one or side by side: which of the
 * two a machine takes depends on its processor, so both are tried on each.
 */
#include "base/cpu.h"
#include "exec/rows.h"
#include "host/copy.h"

#include "support/check.h"
#include "support/random.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST_ROWS = 11, MOST_ROW_BYTES = 5 * 1024, PITCH = MOST_ROW_BYTES + 3 * 64, N_CASES = 400 };

static unsigned char secret[192];

typedef struct area {
    char *bytes;
    fy_row rows[MOST_ROWS];
} area;

static void lay_out(area *a, const char *from, size_t n_rows, uint64_t *seed)
{
    memset(a->bytes, 0x5a, MOST_ROWS * PITCH);
    for (size_t r = 0; r < n_rows; r++) {
        a->rows[r].to = a->bytes + r * PITCH + random_u64(seed) % 128;
        a->rows[r].from = from + r * PITCH + random_u64(seed) % 128;
    }
}

/* Every byte of the area is what a loop over bytes would have left there. */
static void check_area(const area *a, size_t n_rows, size_t row_bytes, unsigned n_streams)
{
    const char *at = a->bytes;
    for (size_t r = 0; r < n_rows; r++) {
        for (; at < a->rows[r].to; at++) {
            check_at(*at == 0x5a, "%u streams: written before row %zu of %zu", n_streams, r,
                     row_bytes);
        }
        check_at(memcmp(at, a->rows[r].from, row_bytes) == 0,
                 "%u streams: row %zu of %zu bytes differs", n_streams, r, row_bytes);
        at += row_bytes;
    }
    for (; at < a->bytes + MOST_ROWS * PITCH; at++) {
        check_at(*at == 0x5a, "%u streams: written behind the rows of %zu", n_streams, row_bytes);
    }
}

static fy_row_hash some_hash(uint64_t seed)
{
    fy_row_hash hash = {.secret = secret};
    for (size_t i = 0; i < 8; i++) {
        hash.acc[i] = random_u64(&seed);
    }
    hash.n_stripes = random_u64(&seed) % 40 / FY_HASH_BLOCK_STRIPES * FY_HASH_BLOCK_STRIPES;
    return hash;
}

static void try_copy(const fy_rows_kernels *kernels, area *a, const char *from, uint64_t seed)
{
    size_t n_rows = random_u64(&seed) % (MOST_ROWS + 1);
    size_t row_bytes = random_u64(&seed) % (random_u64(&seed) % 2 ? 200 : MOST_ROW_BYTES);
    for (unsigned n_streams = 1; n_streams <= FY_CPU_MOST_STREAMS; n_streams += 3) {
        lay_out(a, from, n_rows, &seed);
        kernels->copy(a->rows, n_rows, row_bytes, n_streams);
        fy_copy_fence();
        check_area(a, n_rows, row_bytes, n_streams);
    }
}

static void try_hash(const fy_rows_kernels *kernels, area *a, const char *from, uint64_t seed)
{
    size_t n_rows = 1 + random_u64(&seed) % MOST_ROWS;
    size_t row_bytes = FY_HASH_STRIPE * (1 + random_u64(&seed) % 64);
    fy_row_hash hashes[3] = {some_hash(seed), some_hash(seed), some_hash(seed)};
    lay_out(a, from, n_rows, &seed);
    kernels->hash(a->rows, n_rows, row_bytes, &hashes[0]);
    for (unsigned i = 1; i <= 2; i++) {
        unsigned n_streams = i == 1 ? 1 : FY_CPU_MOST_STREAMS;
        memset(a->bytes, 0x5a, MOST_ROWS * PITCH);
        kernels->copy_hash(a->rows, n_rows, row_bytes, n_streams, &hashes[i]);
        fy_copy_fence();
        check_area(a, n_rows, row_bytes, n_streams);
        check_at(memcmp(&hashes[i], &hashes[0], sizeof hashes[0]) == 0,
                 "%u streams: the hash of %zu rows of %zu differs", n_streams, n_rows, row_bytes);
    }
}

/* Units of a line, by chance; or as many as make whole lines. */
static size_t some_units(uint64_t *seed, size_t most)
{
    size_t unit = random_u64(seed) % 3 == 0 ? 64 : FY_STREAM_UNIT;
    return unit * (random_u64(seed) % (most / unit));
}

static fy_block some_block(char *to, const char *from, uint64_t *seed)
{
    fy_block b = {.n_rows = 1 + random_u64(seed) % (MOST_ROWS - 1)};
    b.row_bytes = random_u64(seed) % 3 == 0
                      ? (uint64_t)64 << random_u64(seed) % 5 /* these have loops of their own */
                      : 64 + some_units(seed, random_u64(seed) % 2 ? 192 : 2048);
    b.to = to + some_units(seed, 256);
    b.from = from + random_u64(seed) % 128;
    b.to_distance = b.row_bytes + (random_u64(seed) % 2 ? some_units(seed, 256) : 0);
    b.from_distance = b.row_bytes + random_u64(seed) % 100;
    return b;
}

/* So much of each row; of the first one without its first `skip` bytes. */
static void copy_by_bytes(const fy_block *b, char *to, size_t skip, size_t more)
{
    for (uint64_t r = 0; r <= b->n_rows; r++) {
        size_t end = r < b->n_rows ? b->row_bytes : more;
        for (size_t at = r == 0 ? skip : 0; at < end; at++) {
            to[r * b->to_distance + at] = b->from[r * b->from_distance + at];
        }
    }
}

static void try_stream(const fy_rows_kernels *kernels, area *a, const char *from, uint64_t seed)
{
    static char wanted[MOST_ROWS * PITCH];
    fy_block b = some_block(a->bytes, from, &seed);
    size_t skip = 0, more = 0;
    bool is_run = random_u64(&seed) % 2 != 0;
    memset(a->bytes, 0x5a, sizeof wanted);
    memset(wanted, 0x5a, sizeof wanted);
    if (is_run) {
        bool is_first = random_u64(&seed) % 2 != 0, is_last = random_u64(&seed) % 2 != 0;
        b.to_distance = b.row_bytes;
        skip = is_first ? 0 : -(uintptr_t)b.to % 64;
        more = is_last ? 0 : -(uintptr_t)(b.to + b.n_rows * b.row_bytes) % 64;
        kernels->stream_run(&b, random_u64(&seed) % 2 * b.from_distance, is_first, is_last);
    } else {
        kernels->stream(&b, random_u64(&seed) % MOST_ROWS);
    }
    fy_copy_fence();
    copy_by_bytes(&b, wanted + (b.to - a->bytes), skip, more);
    check_at(memcmp(a->bytes, wanted, sizeof wanted) == 0,
             "%zu rows of %zu bytes, %zu apart, without %zu and with %zu more: not what was wanted",
             (size_t)b.n_rows, (size_t)b.row_bytes, (size_t)b.to_distance, skip, more);
}

static void test_one_by_one_and_side_by_side(void **state)
{
    (void)state;
    uint64_t seed = 7;
    area a = {.bytes = aligned_alloc(64, MOST_ROWS * PITCH)};
    char *from = malloc(MOST_ROWS * PITCH);
    for (size_t i = 0; i < MOST_ROWS * PITCH; i++) {
        from[i] = (char)random_u64(&seed);
    }
    for (size_t i = 0; i < sizeof secret; i++) {
        secret[i] = (unsigned char)random_u64(&seed);
    }
    for (int isa = FY_ISA_BASELINE; isa <= (int)fy_cpu_isa(); isa++) {
        const fy_rows_kernels *kernels = fy_rows_kernels_of((fy_isa)isa);
        for (uint64_t i = 0; i < N_CASES; i++) {
            try_copy(kernels, &a, from, seed + i);
            try_stream(kernels, &a, from, seed + i);
            if (kernels->copy_hash != NULL) {
                try_hash(kernels, &a, from, seed + i);
            }
        }
    }
    free(a.bytes);
    free(from);
}

enum { GUARDED = 16384, MOST_ELEMENTS = 600 };

typedef void (*side_by_side_fn)(const fy_block *block, bool streams);

/*
 * Rows are put side by side. The last one ends where the memory that may be read ends, and nothing
 * is written beside them.
 */
static void check_side_by_side(side_by_side_fn put, const char *end, size_t row, size_t distance,
                               size_t n, size_t at, bool streams)
{
    static char made[MOST_ELEMENTS * FY_APPEND_MOST + 64], wanted[sizeof made];
    n = n * distance + row > GUARDED ? GUARDED / distance - 1 : n;
    fy_block b = {.to = made + at,
                  .from = end - (n == 0 ? 0 : (n - 1) * distance + row),
                  .to_distance = row,
                  .from_distance = distance,
                  .n_rows = n,
                  .row_bytes = row};
    memset(made, 0x5a, sizeof made);
    memset(wanted, 0x5a, sizeof made);
    put(&b, streams);
    fy_copy_fence();
    for (size_t i = 0; i < n; i++) {
        memcpy(wanted + at + i * row, b.from + i * distance, row);
    }
    check_at(memcmp(made, wanted, sizeof made) == 0,
             "%zu rows of %zu bytes, %zu apart, to place %zu%s: not what was wanted", n, row,
             distance, at, streams ? ", streamed" : "");
}

/* Elements of each size, at each distance up to what no load has two of, to any place of a vector.
 */
static void try_join(const fy_rows_kernels *kernels, const char *end, uint64_t *seed)
{
    size_t element = (size_t)1 << random_u64(seed) % 4, n = random_u64(seed) % MOST_ELEMENTS;
    size_t distance = random_u64(seed) % 8 == 0 ? 0 : element + random_u64(seed) % 18;
    size_t at = random_u64(seed) % 3 == 0 ? random_u64(seed) % 32 : random_u64(seed) % 5 * element;
    check_side_by_side(kernels->join, end, element, distance, n, at, random_u64(seed) % 2 != 0);
}

static void try_append(const fy_rows_kernels *kernels, const char *end, uint64_t *seed)
{
    size_t row = 1 + random_u64(seed) % FY_APPEND_MOST, n = random_u64(seed) % MOST_ELEMENTS;
    size_t distance = row + random_u64(seed) % 4 * (random_u64(seed) % 40);
    size_t at = random_u64(seed) % 64;
    check_side_by_side(kernels->append, end, row, distance, n, at, random_u64(seed) % 2 != 0);
}

static void test_elements_that_are_joined(void **state)
{
    (void)state;
    uint64_t seed = 11;
    char *memory =
        mmap(NULL, 2 * GUARDED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    for (size_t i = 0; i < GUARDED; i++) {
        memory[i] = (char)random_u64(&seed);
    }
    assert_int_equal(mprotect(memory + GUARDED, GUARDED, PROT_NONE), 0);
    for (int isa = FY_ISA_BASELINE; isa <= (int)fy_cpu_isa(); isa++) {
        const fy_rows_kernels *kernels = fy_rows_kernels_of((fy_isa)isa);
        for (int i = 0; i < 20 * N_CASES && kernels->join != NULL; i++) {
            try_join(kernels, memory + GUARDED, &seed);
            try_append(kernels, memory + GUARDED, &seed);
        }
    }
    munmap(memory, 2 * GUARDED);
}

static void test_streams_are_known(void **state)
{
    (void)state;
    assert_true(fy_cpu_streams() == 1 || fy_cpu_streams() == FY_CPU_MOST_STREAMS);
    assert_int_equal(fy_cpu_streams(), fy_cpu_streams());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_by_one_and_side_by_side),
        cmocka_unit_test(test_elements_that_are_joined),
        cmocka_unit_test(test_streams_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
