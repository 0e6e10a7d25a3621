/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of tiles_<isa>.c: included once in each, with the compiler flags of that instruction
 * set, after these are defined: FY_TILES, the name of the kernels; VECTOR, a type of 16, 32 or 64
 * bytes; LOAD(from), STORE(to, vector), STREAM(to, vector), the last to an address that is a
 * multiple of the vector's size; LANES(from, step), a vector of 16 bytes from each of `from`, from
 * + step ...; and LOW_<bits>(a, b) and HIGH_<bits>(a, b), which in each 16 bytes of a vector put
 * the elements of the lower, or the upper, halves of a and b by turns.
 *
 * A plane is first gathered, so that each line of the source is fetched once whatever its pitch:
 * lines at a power of two apart have few places in a cache. Meanwhile those of the next plane are
 * asked for. Then lines of the destination are made, each of one tile: n rows of 16 bytes by turns
 * with those half of them further on, as often as halving n gives one, are the n columns.
 */
#include "exec/tiles.h"

#include <immintrin.h>
#include <string.h>

enum {
    LINE = 64,
    LANE = 16,
    N_LANES = sizeof(VECTOR) / LANE,
    N_TURNS = LINE / sizeof(VECTOR),           /* vectors of a line */
    MOST_COLUMNS = LANE,                       /* of a tile */
    MOST_COLUMN_BYTES = 256 + LINE,            /* of a plane whose columns lie apart from lines */
    MOST_SHORT_SLACK = 4096 + LINE,            /* that tiles have beyond the last column */
    MOST_LINES = FY_PLANE_ROW_BYTES / LINE + 1 /* that a row of a plane has a part of */
};

#define ALWAYS_INLINE inline __attribute__((always_inline))
/* Tiles stay in registers only if these loops are unrolled. */
#define EACH(n) _Pragma("GCC unroll 16") for (size_t i = 0; i < (n); i++)

static ALWAYS_INLINE VECTOR low(VECTOR a, VECTOR b, size_t element)
{
    return element == 1   ? LOW_8(a, b)
           : element == 2 ? LOW_16(a, b)
           : element == 4 ? LOW_32(a, b)
                          : LOW_64(a, b);
}

static ALWAYS_INLINE VECTOR high(VECTOR a, VECTOR b, size_t element)
{
    return element == 1   ? HIGH_8(a, b)
           : element == 2 ? HIGH_16(a, b)
           : element == 4 ? HIGH_32(a, b)
                          : HIGH_64(a, b);
}

static ALWAYS_INLINE void take_turns(VECTOR *v, size_t n, size_t element)
{
    VECTOR mixed[MOST_COLUMNS];
    EACH(n / 2)
    {
        mixed[2 * i] = low(v[i], v[i + n / 2], element);
        mixed[2 * i + 1] = high(v[i], v[i + n / 2], element);
    }
    EACH(n)
    {
        v[i] = mixed[i];
    }
}

/* Rows of a tile become columns. n and element are constants where this is inlined. */
static ALWAYS_INLINE void turn(VECTOR *v, const char *from, size_t pitch, size_t n, size_t element)
{
    EACH(n)
    {
        v[i] = LANES(from + i * pitch, n * pitch);
    }
    if (n >= 2) {
        take_turns(v, n, element);
    }
    if (n >= 4) {
        take_turns(v, n, element);
    }
    if (n >= 8) {
        take_turns(v, n, element);
    }
    if (n >= 16) {
        take_turns(v, n, element);
    }
}

static ALWAYS_INLINE void put(char *to, VECTOR v, bool streams)
{
    if (streams) {
        STREAM(to, v);
    } else {
        STORE(to, v);
    }
}

/* A line of each column, from the rows that make it. */
static ALWAYS_INLINE void put_tile(char *to, uint64_t to_pitch, const char *from, size_t from_pitch,
                                   size_t element, bool streams)
{
    const size_t n = LANE / element;
    VECTOR v[MOST_COLUMNS];
    if (N_TURNS == 1) {
        turn(v, from, from_pitch, n, element);
        EACH(n)
        {
            put(to + i * to_pitch, v[i], streams);
        }
        return;
    }
    _Alignas(LINE) char lines[MOST_COLUMNS][LINE];
    for (size_t part = 0; part < N_TURNS; part++) {
        turn(v, from + part * N_LANES * n * from_pitch, from_pitch, n, element);
        EACH(n)
        {
            STORE(lines[i] + part * sizeof(VECTOR), v[i]);
        }
    }
    for (size_t c = 0; c < n; c++) {
        for (size_t at = 0; at < LINE; at += sizeof(VECTOR)) {
            put(to + c * to_pitch + at, LOAD(lines[c] + at), streams);
        }
    }
}

/* The same of tiles that are not whole: so many columns, so many bytes of each. */
static ALWAYS_INLINE void put_some(char *to, uint64_t to_pitch, const char *from, size_t from_pitch,
                                   size_t element, size_t n_columns, size_t n_bytes)
{
    _Alignas(LINE) char lines[MOST_COLUMNS][LINE];
    put_tile(lines[0], LINE, from, from_pitch, element, false);
    for (size_t c = 0; c < n_columns; c++) {
        memcpy(to + c * to_pitch, lines[c], n_bytes);
    }
}

/* What is fetched for the next plane while this one is written: some rows with a tile, evenly. */
typedef struct ahead {
    const char *at; /* of the next row */
    uint64_t pitch;
    size_t n_rows, n_lines, at_once; /* rows that are left, their lines, rows of a tile */
    size_t every, tile;              /* a tile of so many */
} ahead;

/* An instruction for each line of a row: by them the machine learns where the rows are. */
static ALWAYS_INLINE void fetch(ahead *a)
{
    if (a->tile++ % a->every != 0) {
        return;
    }
    for (size_t r = 0; r < a->at_once && a->n_rows > 0; r++, a->n_rows--, a->at += a->pitch) {
        EACH(MOST_LINES)
        {
            if (i < a->n_lines) {
                _mm_prefetch(a->at + i * LINE, _MM_HINT_T0);
            }
        }
    }
}

static ALWAYS_INLINE ahead ahead_of(const fy_plane *p, size_t row_bytes, size_t n_tiles)
{
    ahead a = {.at = p->next, .pitch = p->from_pitch, .n_rows = p->next == NULL ? 0 : p->n_i};
    /* Of rows that begin within a line, the line that they end in, too. */
    bool is_odd = ((uintptr_t)p->next | p->from_pitch) % LINE != 0;
    a.n_lines = (row_bytes + LINE - 1) / LINE + is_odd;
    a.at_once = (a.n_rows + n_tiles - 1) / n_tiles;
    a.every = a.n_rows > 0 && a.n_rows < n_tiles ? n_tiles / a.n_rows : 1;
    return a;
}

static ALWAYS_INLINE void copy_line(char *to, const char *from)
{
    for (size_t b = 0; b < LINE; b += sizeof(VECTOR)) {
        STORE(to + b, LOAD(from + b));
    }
}

/* What is left of a row ends with its last whole line: a call takes as long as a few lines. */
static ALWAYS_INLINE void gather(char *rows, size_t pitch, const fy_plane *p, size_t row_bytes)
{
    for (size_t i = 0; i < p->n_i; i++) {
        const char *from = p->from + i * p->from_pitch;
        char *to = rows + i * pitch;
        size_t at = 0;
        for (; at + LINE <= row_bytes; at += LINE) {
            copy_line(to + at, from + at);
        }
        if (at < row_bytes && row_bytes >= LINE) {
            copy_line(to + row_bytes - LINE, from + row_bytes - LINE);
        } else if (at < row_bytes) {
            memcpy(to, from, row_bytes);
        }
    }
}

/* Tiles at the ends have rows and columns beyond the plane's: of the buffer, and nobody sees them.
 */
static ALWAYS_INLINE void transpose(const fy_plane *p, size_t element, bool streams)
{
    _Alignas(LINE) char rows[FY_PLANE_BUFFER];
    const size_t pitch = element == 1 ? FY_PLANE_ROW_BYTES / 2 : FY_PLANE_ROW_BYTES;
    const size_t n_rows = LINE / element, n_columns = LANE / element;
    size_t n_tiles = ((p->n_i + n_rows - 1) / n_rows) * ((p->n_j + n_columns - 1) / n_columns);
    ahead a = ahead_of(p, p->n_j * element, n_tiles);
    gather(rows, pitch, p, p->n_j * element);
    for (size_t j = 0; j < p->n_j; j += n_columns) {
        size_t columns = p->n_j - j < n_columns ? p->n_j - j : n_columns;
        for (size_t i = 0; i < p->n_i; i += n_rows) {
            size_t n = p->n_i - i < n_rows ? p->n_i - i : n_rows;
            char *to = p->to + j * p->to_pitch + i * element;
            const char *from = rows + i * pitch + j * element;
            fetch(&a);
            if (columns == n_columns && n == n_rows) {
                put_tile(to, p->to_pitch, from, pitch, element, streams);
            } else {
                put_some(to, p->to_pitch, from, pitch, element, columns, n * element);
            }
        }
    }
}

/* ---- columns that lie apart from lines ---- */

static ALWAYS_INLINE void put_column(char *to, const char *from, size_t n_bytes, bool is_first,
                                     bool is_last)
{
    size_t end = n_bytes + (is_last ? 0 : -(uintptr_t)(to + n_bytes) % LINE);
    size_t at = -(uintptr_t)to % LINE;
    if (is_first) {
        memcpy(to, from, at < end ? at : end);
    }
    for (; at + LINE <= end; at += LINE) {
        for (size_t b = 0; b < LINE; b += sizeof(VECTOR)) {
            STREAM(to + at + b, LOAD(from + at + b));
        }
    }
    if (at < end) {
        memcpy(to + at, from + at, end - at);
    }
}

/*
 * Short columns that lie side by side are put together, and leave as one. A tile writes whole lines
 * of its columns, so what is beyond a column's end comes before the begin of the next one.
 */
static ALWAYS_INLINE void transpose_short(const fy_plane *p, size_t element)
{
    _Alignas(LINE) char rows[FY_PLANE_SHORT_BUFFER];
    _Alignas(LINE) char columns[FY_PLANE_SHORT_BUFFER + MOST_SHORT_SLACK];
    const size_t n_rows = LINE / element, n_columns = LANE / element;
    const size_t pitch = fy_plane_short_row_bytes(element, p->n_i), height = p->n_i * element;
    size_t n_down = (p->n_i + n_rows - 1) / n_rows;
    ahead a = ahead_of(p, p->n_j * element, n_down * ((p->n_j + n_columns - 1) / n_columns));
    gather(rows, pitch, p, p->n_j * element);
    for (size_t j = 0; j < p->n_j; j += n_columns) {
        for (size_t down = n_down; down-- > 0;) {
            const char *from = rows + down * n_rows * pitch + j * element;
            fetch(&a);
            put_tile(columns + j * height + down * LINE, height, from, pitch, element, false);
        }
    }
    put_column(p->to, columns, p->n_j * height, true, true);
}

/* Some columns are made whole before they are written, as each begins elsewhere in a line. */
static ALWAYS_INLINE void transpose_apart(const fy_plane *p, size_t element, bool is_first,
                                          bool is_last)
{
    _Alignas(LINE) char rows[FY_PLANE_BUFFER];
    _Alignas(LINE) char columns[MOST_COLUMNS][MOST_COLUMN_BYTES];
    const size_t pitch = element == 1 ? FY_PLANE_ROW_BYTES / 4 : FY_PLANE_ROW_BYTES / 2;
    const size_t n_rows = LINE / element, n_columns = LANE / element;
    fy_plane whole = *p;
    whole.n_i += is_last ? 0 : n_rows;
    size_t n_tiles = ((whole.n_i + n_rows - 1) / n_rows) * ((p->n_j + n_columns - 1) / n_columns);
    ahead a = ahead_of(&whole, p->n_j * element, n_tiles);
    gather(rows, pitch, &whole, p->n_j * element);
    for (size_t j = 0; j < p->n_j; j += n_columns) {
        for (size_t i = 0; i < whole.n_i; i += n_rows) {
            fetch(&a);
            put_tile(columns[0] + i * element, MOST_COLUMN_BYTES, rows + i * pitch + j * element,
                     pitch, element, false);
        }
        size_t n = p->n_j - j < n_columns ? p->n_j - j : n_columns;
        for (size_t c = 0; c < n; c++) {
            put_column(p->to + (j + c) * p->to_pitch, columns[c], p->n_i * element, is_first,
                       is_last);
        }
    }
}

/* ---- short rows ---- */

/* One by one, as memory has them in `to`. Pointers of its own: what is stored could be anything. */
static ALWAYS_INLINE void copy_elements(const fy_plane *p, size_t element)
{
    const size_t n_i = p->n_i, n_j = p->n_j, pitch = (size_t)p->from_pitch;
    char *column = p->to;
    const char *first = p->from;
    const uint64_t to_pitch = p->to_pitch;
    for (size_t j = 0; j < n_j; j++, column += to_pitch, first += element) {
        const char *from = first;
        for (size_t i = 0; i < n_i; i++, from += pitch) {
            memcpy(column + i * element, from, element);
        }
    }
}

static ALWAYS_INLINE void put_columns(char *to, uint64_t pitch, const VECTOR *v, size_t n)
{
    EACH(n)
    {
        STORE(to + i * pitch, v[i]);
    }
}

/* The last tile of each side begins before what is left of it, and writes some of it twice. */
static ALWAYS_INLINE void turn_plane(const fy_plane *plane, size_t element)
{
    const fy_plane p = *plane;
    const size_t n_rows = sizeof(VECTOR) / element, n_columns = LANE / element;
    /* Larger elements go as fast one by one, and at any pitch. */
    if (element >= 4 || p.n_i < n_rows || p.n_j < n_columns) {
        copy_elements(&p, element);
        return;
    }
    for (size_t i = 0; i < p.n_i; i += n_rows) {
        size_t row = i + n_rows <= p.n_i ? i : p.n_i - n_rows;
        for (size_t j = 0; j < p.n_j; j += n_columns) {
            size_t column = j + n_columns <= p.n_j ? j : p.n_j - n_columns;
            char *to = p.to + column * p.to_pitch + row * element;
            VECTOR v[MOST_COLUMNS];
            turn(v, p.from + row * p.from_pitch + column * element, (size_t)p.from_pitch, n_columns,
                 element);
            put_columns(to, p.to_pitch, v, n_columns);
        }
    }
}

/* An element size is a function, so that all loops have constant ends. */
#define KERNEL(bytes)                                                                              \
    static void turn_##bytes(const fy_plane *plane)                                                \
    {                                                                                              \
        turn_plane(plane, bytes);                                                                  \
    }                                                                                              \
    static void transpose_##bytes(const fy_plane *plane, bool streams)                             \
    {                                                                                              \
        if (streams) {                                                                             \
            transpose(plane, bytes, true);                                                         \
        } else {                                                                                   \
            transpose(plane, bytes, false);                                                        \
        }                                                                                          \
    }
KERNEL(1)
KERNEL(2)
KERNEL(4)
KERNEL(8)
KERNEL(16)

#define APART(bytes)                                                                               \
    static void transpose_short_##bytes(const fy_plane *plane)                                     \
    {                                                                                              \
        transpose_short(plane, bytes);                                                             \
    }                                                                                              \
    static void transpose_apart_##bytes(const fy_plane *plane, bool is_first, bool is_last)        \
    {                                                                                              \
        transpose_apart(plane, bytes, is_first, is_last);                                          \
    }
APART(1)
APART(2)
APART(4)
APART(8)

const fy_tiles_kernels FY_TILES = {
    .transpose = {transpose_1, transpose_2, transpose_4, transpose_8, transpose_16},
    .transpose_apart = {transpose_apart_1, transpose_apart_2, transpose_apart_4, transpose_apart_8},
    .transpose_short = {transpose_short_1, transpose_short_2, transpose_short_4, transpose_short_8},
    .turn = {turn_1, turn_2, turn_4, turn_8, turn_16}};
