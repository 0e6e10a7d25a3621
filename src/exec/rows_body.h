/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of rows_<isa>.c: included once in each, with the compiler flags of that instruction set,
 * after these are defined: FY_ROWS, the name of the kernels; VECTOR, a type of 16, 32 or 64 bytes;
 * LOAD(from), from any address; STORE(to, vector) and STREAM(to, vector), through and past the
 * cache, to an address that is a multiple of the vector's size; and for 64-bit numbers in vectors:
 * XOR, ADD, MULTIPLY (of the low halves), RIGHT and LEFT (shifts by a constant), SWAP (the two
 * neighbours), SPREAD (a 32-bit number to all).
 *
 * Four rows side by side, two lines of each in turn, for the same reason as in host/copy_body.h:
 * one row after the other waits for memory at each row's begin. Where streams that are copied are
 * in each other's way (base/cpu.h) rows are copied one by one, but read side by side.
 */
#include "exec/rows.h"

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

enum {
    LINE = 64,
    TURN = 2 * LINE,
    SIDE_BY_SIDE = 4,
    PREFETCH = 768, /* of what is hashed: the work on it hides less of the wait than a copy */
    N_VECTORS = LINE / sizeof(VECTOR), /* of a line, of a stripe, of an accumulator */
    MOST_BLOCKS = FY_HASH_MOST_BYTES / FY_HASH_BLOCK + 1
};
_Static_assert((int)FY_HASH_STRIPE == (int)LINE, "rows are hashed line by line");

#define ALWAYS_INLINE inline __attribute__((always_inline))
/* What is kept of each row stays in registers only if these loops are unrolled. */
#define EACH_ROW _Pragma("GCC unroll 4") for (size_t i = 0; i < n_rows; i++)
/* Of rows whose length is a constant. */
#define UNROLLED _Pragma("GCC unroll 16")
#define PRIME32 0x9E3779B1u /* XXH_PRIME32_1 */

static ALWAYS_INLINE void stream_line(char *to, const char *from)
{
    for (size_t i = 0; i < LINE; i += sizeof(VECTOR)) {
        STREAM(to + i, LOAD(from + i));
    }
}

/* What is left of a row from a line's begin on. */
static void stream_rest(char *to, const char *from, size_t n_bytes)
{
    for (; n_bytes >= LINE; to += LINE, from += LINE, n_bytes -= LINE) {
        stream_line(to, from);
    }
    if (n_bytes != 0) {
        memcpy(to, from, n_bytes);
    }
}

/* One of the rows under way. Of what is streamed, `left` bytes from a line's begin on. */
typedef struct lane {
    char *to;
    const char *from;
    size_t left;
} lane;

static ALWAYS_INLINE lane begin_lane(const fy_row *row, size_t row_bytes)
{
    size_t head = -(uintptr_t)row->to % LINE;
    head = head < row_bytes ? head : row_bytes;
    if (head != 0) { /* a call for nothing is a good part of a short row */
        memcpy(row->to, row->from, head);
    }
    return (lane){.to = row->to + head, .from = row->from + head, .left = row_bytes - head};
}

/* n_rows is a constant where these are inlined. Returns what can be streamed of all rows in turns.
 */
static ALWAYS_INLINE size_t begin_lanes(const fy_row *rows, size_t n_rows, size_t row_bytes,
                                        lane *lanes)
{
    size_t common = row_bytes;
    EACH_ROW
    {
        lanes[i] = begin_lane(&rows[i], row_bytes);
        common = lanes[i].left < common ? lanes[i].left : common;
    }
    return common / TURN * TURN;
}

static ALWAYS_INLINE void stream_turn(const lane *l, size_t at)
{
    stream_line(l->to + at, l->from + at);
    stream_line(l->to + at + LINE, l->from + at + LINE);
}

static ALWAYS_INLINE void end_lanes(const lane *lanes, size_t n_rows, size_t at)
{
    EACH_ROW
    {
        stream_rest(lanes[i].to + at, lanes[i].from + at, lanes[i].left - at);
    }
}

static ALWAYS_INLINE void copy_rows(const fy_row *rows, size_t n_rows, size_t row_bytes)
{
    lane lanes[SIDE_BY_SIDE];
    size_t common = begin_lanes(rows, n_rows, row_bytes, lanes);
    for (size_t at = 0; at < common; at += TURN) {
        EACH_ROW
        {
            stream_turn(&lanes[i], at);
        }
    }
    end_lanes(lanes, n_rows, common);
}

static void copy(const fy_row *rows, size_t n_rows, size_t row_bytes, unsigned n_streams)
{
    for (; n_streams == 1 && n_rows > 0; n_rows--, rows++) {
        copy_rows(rows, 1, row_bytes);
    }
    for (; n_rows >= SIDE_BY_SIDE; n_rows -= SIDE_BY_SIDE, rows += SIDE_BY_SIDE) {
        copy_rows(rows, SIDE_BY_SIDE, row_bytes);
    }
    if (n_rows == 3) {
        copy_rows(rows, 3, row_bytes);
    } else if (n_rows == 2) {
        copy_rows(rows, 2, row_bytes);
    } else if (n_rows == 1) {
        copy_rows(rows, 1, row_bytes);
    }
}

/* ---- rows in their order ---- */

static ALWAYS_INLINE void stream_units(char *to, const char *from, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes; at += FY_STREAM_UNIT) {
        __m128i unit = _mm_loadu_si128((const __m128i *)(const void *)(from + at));
        _mm_stream_si128((__m128i *)(void *)(to + at), unit);
    }
}

/* What is before and behind its whole lines makes some with other rows. */
static ALWAYS_INLINE void stream_row(char *to, const char *from, size_t row_bytes, size_t head)
{
    head = head < row_bytes ? head : row_bytes;
    stream_units(to, from, head);
    size_t at = head;
    UNROLLED for (; at + LINE <= row_bytes; at += LINE)
    {
        stream_line(to + at, from + at);
    }
    stream_units(to + at, from + at, row_bytes - at);
}

/*
 * row_bytes is a constant where this is inlined for rows of usual lengths, and so is is_lines: with
 * an instruction for each line of a row the machine learns what the rows have, and not what is
 * between them.
 */
static ALWAYS_INLINE void stream_rows(fy_block *b, uint64_t n_rows, size_t row_bytes, bool is_lines,
                                      size_t ahead)
{
    /* Of rows that begin within a line, the line that they end in, too. */
    const bool is_odd = (uintptr_t)b->from % LINE != 0;
    for (; n_rows > 0; n_rows--, b->to += b->to_distance, b->from += b->from_distance) {
        UNROLLED for (size_t at = 0; ahead != 0 && at < row_bytes; at += LINE)
        {
            _mm_prefetch(b->from + ahead + at, _MM_HINT_T0);
        }
        if (ahead != 0 && is_odd) {
            _mm_prefetch(b->from + ahead + row_bytes, _MM_HINT_T0);
        }
        stream_row(b->to, b->from, row_bytes, is_lines ? 0 : -(uintptr_t)b->to % LINE);
    }
}

static ALWAYS_INLINE void stream_block(fy_block *b, size_t row_bytes, bool is_lines, uint64_t ahead)
{
    uint64_t n = b->n_rows, n_asking = ahead != 0 && ahead < n ? n - ahead : 0;
    stream_rows(b, n_asking, row_bytes, is_lines, (size_t)(ahead * b->from_distance));
    stream_rows(b, n - n_asking, row_bytes, is_lines, 0);
}

static ALWAYS_INLINE void stream_width(const fy_block *block, size_t row_bytes, uint64_t ahead)
{
    fy_block b = *block;
    if (fy_is_lines(block)) {
        stream_block(&b, row_bytes, true, ahead);
    } else {
        stream_block(&b, row_bytes, false, ahead);
    }
}

static void stream(const fy_block *block, uint64_t ahead)
{
    switch (block->row_bytes) {
    case 64:
        stream_width(block, 64, ahead);
        return;
    case 128:
        stream_width(block, 128, ahead);
        return;
    case 256:
        stream_width(block, 256, ahead);
        return;
    case 512:
        stream_width(block, 512, ahead);
        return;
    case 1024:
        stream_width(block, 1024, ahead);
        return;
    default:
        stream_width(block, (size_t)block->row_bytes, ahead);
    }
}

static void stream_run(const fy_block *block, uint64_t ahead, bool is_first, bool is_last)
{
    fy_block b = *block;
    size_t skip = is_first ? 0 : -(uintptr_t)b.to % LINE;
    if (skip != 0) {
        for (size_t at = 0; ahead != 0 && at < (size_t)b.row_bytes; at += LINE) {
            _mm_prefetch(b.from + ahead + at, _MM_HINT_T0);
        }
        stream_row(b.to + skip, b.from + skip, (size_t)b.row_bytes - skip, 0);
        b.to += b.row_bytes;
        b.from += b.from_distance;
        b.n_rows--;
    }
    stream_rows(&b, b.n_rows, (size_t)b.row_bytes, fy_is_lines(&b), (size_t)ahead);
    stream_units(b.to, b.from, is_last ? 0 : -(uintptr_t)b.to % LINE);
}

/* ---- hashing ---- */

typedef struct sum {
    VECTOR v[N_VECTORS];
} sum;

static ALWAYS_INLINE sum load_sum(const uint64_t *from)
{
    sum s;
    for (size_t i = 0; i < N_VECTORS; i++) {
        s.v[i] = LOAD((const char *)from + i * sizeof(VECTOR));
    }
    return s;
}

static ALWAYS_INLINE void store_sum(uint64_t *to, const sum *s)
{
    for (size_t i = 0; i < N_VECTORS; i++) {
        STORE((char *)to + i * sizeof(VECTOR), s->v[i]);
    }
}

/* Adds a stripe: each number to its neighbour's sum, and the product of its halves to its own. */
static ALWAYS_INLINE void add_stripe(sum *s, const char *from, const unsigned char *secret)
{
    for (size_t i = 0; i < N_VECTORS; i++) {
        VECTOR data = LOAD(from + i * sizeof(VECTOR));
        VECTOR key = XOR(data, LOAD(secret + i * sizeof(VECTOR)));
        s->v[i] = ADD(s->v[i], ADD(SWAP(data), MULTIPLY(key, RIGHT(key, 32))));
    }
}

static ALWAYS_INLINE void add_to_block(uint64_t *block, sum *s)
{
    sum whole = load_sum(block);
    for (size_t i = 0; i < N_VECTORS; i++) {
        whole.v[i] = ADD(whole.v[i], s->v[i]);
    }
    store_sum(block, &whole);
    memset(s, 0, sizeof *s);
}

/* A row being hashed: its next stripe, counted from the first block's begin. */
typedef struct reader {
    const char *from;
    size_t stripe;
    sum sum;
} reader;

static ALWAYS_INLINE void read_line(reader *r, const unsigned char *secret, uint64_t (*blocks)[8])
{
    _mm_prefetch(r->from + PREFETCH, _MM_HINT_T0);
    add_stripe(&r->sum, r->from, secret + 8 * (r->stripe % FY_HASH_BLOCK_STRIPES));
    r->from += LINE;
    r->stripe++;
    if (r->stripe % FY_HASH_BLOCK_STRIPES == 0) {
        add_to_block(blocks[r->stripe / FY_HASH_BLOCK_STRIPES - 1], &r->sum);
    }
}

/* n_rows is a constant where these are inlined. */
static ALWAYS_INLINE void begin_readers(const fy_row *rows, size_t n_rows, size_t row_bytes,
                                        size_t stripe, reader *readers)
{
    EACH_ROW
    {
        readers[i].from = rows[i].from;
        readers[i].stripe = stripe + i * (row_bytes / LINE);
        memset(&readers[i].sum, 0, sizeof readers[i].sum);
    }
}

/* Of each row the bytes from `at` on. */
static ALWAYS_INLINE void end_readers(reader *readers, size_t n_rows, size_t row_bytes, size_t at,
                                      const unsigned char *secret, uint64_t (*blocks)[8])
{
    EACH_ROW
    {
        for (size_t done = at; done < row_bytes; done += LINE) {
            read_line(&readers[i], secret, blocks);
        }
        if (readers[i].stripe % FY_HASH_BLOCK_STRIPES != 0) {
            add_to_block(blocks[readers[i].stripe / FY_HASH_BLOCK_STRIPES], &readers[i].sum);
        }
    }
}

static ALWAYS_INLINE void copy_hash_rows(const fy_row *rows, size_t n_rows, size_t row_bytes,
                                         size_t stripe, const unsigned char *secret,
                                         uint64_t (*blocks)[8])
{
    lane lanes[SIDE_BY_SIDE];
    reader readers[SIDE_BY_SIDE];
    size_t common = begin_lanes(rows, n_rows, row_bytes, lanes);
    begin_readers(rows, n_rows, row_bytes, stripe, readers);
    for (size_t at = 0; at < common; at += TURN) {
        EACH_ROW
        {
            stream_turn(&lanes[i], at);
            read_line(&readers[i], secret, blocks);
            read_line(&readers[i], secret, blocks);
        }
    }
    end_lanes(lanes, n_rows, common);
    end_readers(readers, n_rows, row_bytes, common, secret, blocks);
}

static ALWAYS_INLINE void hash_rows(const fy_row *rows, size_t n_rows, size_t row_bytes,
                                    size_t stripe, const unsigned char *secret,
                                    uint64_t (*blocks)[8])
{
    reader readers[SIDE_BY_SIDE];
    begin_readers(rows, n_rows, row_bytes, stripe, readers);
    for (size_t at = 0; at < row_bytes; at += LINE) {
        EACH_ROW
        {
            read_line(&readers[i], secret, blocks);
        }
    }
    end_readers(readers, n_rows, row_bytes, row_bytes, secret, blocks);
}

/* Behind a whole block: acc = (acc ^ acc >> 47 ^ secret) * PRIME32, for each of its numbers. */
static ALWAYS_INLINE void scramble(sum *acc, const unsigned char *secret)
{
    const VECTOR prime = SPREAD(PRIME32);
    for (size_t i = 0; i < N_VECTORS; i++) {
        VECTOR key = XOR(acc->v[i], RIGHT(acc->v[i], 47));
        key = XOR(key, LOAD(secret + i * sizeof(VECTOR)));
        acc->v[i] = ADD(MULTIPLY(key, prime), LEFT(MULTIPLY(RIGHT(key, 32), prime), 32));
    }
}

static void fold(fy_row_hash *hash, uint64_t (*blocks)[8], size_t n_whole)
{
    const unsigned char *secret = hash->secret + 8 * FY_HASH_BLOCK_STRIPES;
    sum acc = load_sum(hash->acc);
    for (size_t b = 0; b < n_whole; b++) {
        sum block = load_sum(blocks[b]);
        for (size_t i = 0; i < N_VECTORS; i++) {
            acc.v[i] = ADD(acc.v[i], block.v[i]);
        }
        scramble(&acc, secret);
    }
    store_sum(hash->acc, &acc);
    memcpy(hash->open, blocks[n_whole], sizeof hash->open);
}

static ALWAYS_INLINE void hash_some(const fy_row *rows, size_t n_rows, size_t row_bytes,
                                    bool copies, size_t stripe, const unsigned char *secret,
                                    uint64_t (*blocks)[8])
{
    if (copies) {
        copy_hash_rows(rows, n_rows, row_bytes, stripe, secret, blocks);
    } else {
        hash_rows(rows, n_rows, row_bytes, stripe, secret, blocks);
    }
}

static ALWAYS_INLINE void hash_all(const fy_row *rows, size_t n_rows, size_t row_bytes, bool copies,
                                   unsigned n_streams, fy_row_hash *hash)
{
    _Alignas(64) uint64_t blocks[MOST_BLOCKS + 1][8];
    size_t stripe = (size_t)(hash->n_stripes % FY_HASH_BLOCK_STRIPES);
    size_t step = row_bytes / LINE;
    size_t end = stripe + n_rows * step;
    memset(blocks[1], 0, end / FY_HASH_BLOCK_STRIPES * sizeof blocks[0]);
    memcpy(blocks[0], hash->open, sizeof blocks[0]);
    for (; n_streams > 1 && n_rows >= SIDE_BY_SIDE; n_rows -= SIDE_BY_SIDE, rows += SIDE_BY_SIDE) {
        hash_some(rows, SIDE_BY_SIDE, row_bytes, copies, stripe, hash->secret, blocks);
        stripe += SIDE_BY_SIDE * step;
    }
    for (; n_rows > 0; n_rows--, rows++) {
        hash_some(rows, 1, row_bytes, copies, stripe, hash->secret, blocks);
        stripe += step;
    }
    fold(hash, blocks, end / FY_HASH_BLOCK_STRIPES);
    hash->n_stripes += end - (size_t)(hash->n_stripes % FY_HASH_BLOCK_STRIPES);
}

static void copy_and_hash(const fy_row *rows, size_t n_rows, size_t row_bytes, unsigned n_streams,
                          fy_row_hash *hash)
{
    hash_all(rows, n_rows, row_bytes, true, n_streams, hash);
}

static void hash_only(const fy_row *rows, size_t n_rows, size_t row_bytes, fy_row_hash *hash)
{
    hash_all(rows, n_rows, row_bytes, false, SIDE_BY_SIDE, hash);
}

/* ---- elements ---- */

/* Loads that have the elements of a vector of 16 bytes between them, and where each has its own. */
typedef struct shuffles {
    size_t n_loads; /* 0: a load has too few of them, and they are taken one by one */
    size_t step;    /* bytes from one load to the next */
    uint64_t need;  /* elements that there must be, so that nothing behind the last one is read */
    __m128i of[4];
} shuffles;

enum { SHUFFLED = 16, MOST_LOADS = sizeof((shuffles){0}.of) / SHUFFLED };

#ifdef __SSSE3__
enum { HAS_SHUFFLES = 1 };
static ALWAYS_INLINE __m128i shuffle(__m128i vector, __m128i places)
{
    return _mm_shuffle_epi8(vector, places);
}
#else
enum { HAS_SHUFFLES = 0 };
static ALWAYS_INLINE __m128i shuffle(__m128i vector, __m128i places)
{
    (void)places;
    return vector;
}
#endif

static shuffles plan_shuffles(size_t element, size_t distance)
{
    const size_t n = SHUFFLED / element;
    shuffles s = {.need = n};
    if (!HAS_SHUFFLES || distance < element || distance > SHUFFLED - element) {
        return s; /* one element again and again, or one of each load */
    }
    const size_t of_load = (SHUFFLED - element) / distance + 1,
                 n_loads = (n + of_load - 1) / of_load;
    unsigned char places[MOST_LOADS][SHUFFLED];
    if (n_loads > MOST_LOADS) {
        return s;
    }
    memset(places, 0x80, sizeof places); /* makes a zero */
    for (size_t at = 0; at < SHUFFLED; at++) {
        size_t number = at / element;
        places[number / of_load][at] = (unsigned char)(number % of_load * distance + at % element);
    }
    memcpy(s.of, places, sizeof places);
    s.n_loads = n_loads;
    s.step = of_load * distance;
    size_t reach = (n_loads - 1) * s.step + SHUFFLED;
    s.need = (reach - element + distance - 1) / distance + 1;
    s.need = s.need < n ? n : s.need;
    return s;
}

static ALWAYS_INLINE uint64_t join_word(const char *from, size_t distance, size_t element)
{
    uint64_t word = 0;
    UNROLLED for (size_t i = 0; i < sizeof word; i += element)
    {
        uint64_t one = 0;
        memcpy(&one, from + i / element * distance, element);
        word |= one << (8 * i);
    }
    return word;
}

static ALWAYS_INLINE __m128i join_vector(const char *from, size_t distance, size_t element,
                                         const __m128i *places, size_t n_loads, size_t step)
{
    if (n_loads == 0) {
        size_t half = SHUFFLED / 2 / element * distance;
        return _mm_set_epi64x((long long)join_word(from + half, distance, element),
                              (long long)join_word(from, distance, element));
    }
    __m128i all = _mm_setzero_si128();
    UNROLLED for (size_t k = 0; k < n_loads; k++)
    {
        __m128i loaded = _mm_loadu_si128((const __m128i *)(const void *)(from + k * step));
        all = _mm_or_si128(all, shuffle(loaded, places[k]));
    }
    return all;
}

/* Elements one by one: before the first place for a vector, and behind the last vector. */
static ALWAYS_INLINE void join_some(fy_block *b, size_t element, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++, b->to += element, b->from += b->from_distance) {
        memcpy(b->to, b->from, element);
    }
    b->n_rows -= n;
}

/* element and n_loads are constants where this is inlined. */
static ALWAYS_INLINE void join_by(const fy_block *block, const shuffles *s, size_t element,
                                  size_t n_loads, bool streams)
{
    fy_block b = *block;
    const size_t distance = (size_t)b.from_distance, step = s->step;
    const uint64_t n = SHUFFLED / element, need = s->need, pitch = n * distance;
    const uint64_t head = -(uintptr_t)b.to % SHUFFLED;
    __m128i places[MOST_LOADS];
    memcpy(places, s->of, sizeof places);
    streams = streams && head % element == 0;
    join_some(&b, element, streams ? fy_min(head / element, b.n_rows) : 0);
    char *to = b.to;
    const char *from = b.from;
    uint64_t left = b.n_rows;
    for (; left >= need; left -= n, to += SHUFFLED, from += pitch) {
        __m128i v = join_vector(from, distance, element, places, n_loads, step);
        if (streams) {
            _mm_stream_si128((__m128i *)(void *)to, v);
        } else {
            _mm_storeu_si128((__m128i *)(void *)to, v);
        }
    }
    b = (fy_block){.to = to, .from = from, .from_distance = distance, .n_rows = left};
    join_some(&b, element, left);
}

static ALWAYS_INLINE void join_elements(const fy_block *b, size_t element, bool streams)
{
    const shuffles s = plan_shuffles(element, (size_t)b->from_distance);
    if (s.n_loads == 0) {
        join_by(b, &s, element, 0, streams);
    } else if (s.n_loads == 2) {
        join_by(b, &s, element, 2, streams);
    } else if (s.n_loads == 3) {
        join_by(b, &s, element, 3, streams);
    } else {
        join_by(b, &s, element, s.n_loads, streams);
    }
}

static void join(const fy_block *b, bool streams)
{
    switch (b->row_bytes) {
    case 1:
        join_elements(b, 1, streams);
        return;
    case 2:
        join_elements(b, 2, streams);
        return;
    case 4:
        join_elements(b, 4, streams);
        return;
    default:
        join_elements(b, 8, streams);
    }
}

/* ---- short rows side by side ---- */

/* Rows that are put together; and what is so many further on is asked for, of both lines of a row.
 */
enum { APPENDED = 32 };

/*
 * A row is written as `span` bytes, a constant, of which the rest lies where the next row goes: one
 * load and one store, whatever its length. Rows at the end, behind which that is not so, or of
 * which so much cannot be read, are written as they are.
 */
static ALWAYS_INLINE void append_rows(fy_block *b, char *to, uint64_t n, size_t span)
{
    const size_t row_bytes = (size_t)b->row_bytes;
    const uintptr_t ahead = (uintptr_t)(APPENDED * b->from_distance);
    const char *from = b->from;
    uint64_t rest = span - row_bytes; /* rows beside each other are at least their length apart */
    uint64_t n_last = fy_min(n, fy_ceil_div(rest, row_bytes));
    for (uint64_t i = n_last; i < n; i++) {
        __builtin_prefetch((const void *)((uintptr_t)from + ahead));
        __builtin_prefetch((const void *)((uintptr_t)from + ahead + row_bytes - 1));
        memcpy(to, from, span);
        to += row_bytes;
        from += b->from_distance;
    }
    for (uint64_t i = 0; i < n_last; i++) {
        memcpy(to, from, row_bytes);
        to += row_bytes;
        from += b->from_distance;
    }
    b->from = from;
    b->n_rows -= n;
}

/*
 * Rows become lines in a buffer, which lies within lines as the destination does, and as many as
 * are whole leave it. What is left of a line moves to its begin.
 */
static ALWAYS_INLINE void append_streaming(fy_block *b, size_t span)
{
    _Alignas(LINE) char buffer[LINE + APPENDED * FY_APPEND_MOST];
    size_t skipped = (uintptr_t)b->to % LINE, used = skipped;
    char *line = b->to - skipped;
    while (b->n_rows > 0) {
        uint64_t n = fy_min(b->n_rows, APPENDED);
        append_rows(b, buffer + used, n, span);
        used += (size_t)(n * b->row_bytes);
        size_t at = 0;
        if (skipped > 0 && used >= LINE) {
            memcpy(line + skipped, buffer + skipped, LINE - skipped);
            skipped = 0;
            at = LINE;
        }
        for (; skipped == 0 && at + LINE <= used; at += LINE) {
            stream_line(line + at, buffer + at);
        }
        line += at;
        used -= at;
        memmove(buffer, buffer + at, LINE);
    }
    memcpy(line + skipped, buffer + skipped, used - skipped);
}

static ALWAYS_INLINE void append_by(const fy_block *block, size_t span, bool streams)
{
    fy_block b = *block;
    if (streams) {
        append_streaming(&b, span);
    } else {
        append_rows(&b, b.to, b.n_rows, span);
    }
}

static void append(const fy_block *b, bool streams)
{
    if (b->row_bytes <= 16) {
        append_by(b, 16, streams);
    } else if (b->row_bytes <= 32) {
        append_by(b, 32, streams);
    } else {
        append_by(b, FY_APPEND_MOST, streams);
    }
}

const fy_rows_kernels FY_ROWS = {.copy = copy,
                                 .stream = stream,
                                 .stream_run = stream_run,
                                 .copy_hash = copy_and_hash,
                                 .hash = hash_only,
                                 .join = join,
                                 .append = append};
