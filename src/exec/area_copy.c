/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between areas, and hashes of them. Two areas are walked at once; what they have in common
 * are blocks of equally spaced rows. Long rows are streamed side by side and hashed as they pass
 * (rows_body.h). Short ones go through the cache: straight to where they belong, or where that is
 * contiguous or a hash is wanted by way of a buffer in the fastest cache.
 */
#include "exec/area.h"

#include "base/cpu.h"
#include "base/hash.h"
#include "exec/permute.h"
#include "exec/rows.h"
#include "exec/tiles.h"
#include "host/copy.h"

#include <string.h>

enum {
    LINE = 64,
    /* Whole lines are streamed; of others, rows from here on: they lose less at their ends. */
    STREAM_FROM = 1024,
    JOIN_FROM = 2048,       /* bytes of rows side by side: two of their lines are not whole */
    APART_FROM = 96,        /* bytes of rows that lie apart: as much, and both are streamed */
    AHEAD = 3072,           /* that is asked for, of such rows */
    AHEAD_FROM = 64,        /* where they are so long */
    MOST_ROWS = 32,         /* that are gathered before they are streamed */
    ASK_BELOW = 1024,       /* rows so short end before the machine knows where they go on */
    PAGES_FROM = 16384,     /* rows so long are several pages, page beside page */
    HASH_PIECE = 4096,      /* what such rows are cut into for the hash */
    BUFFER = 8192,          /* of short rows; half of the smallest fast cache around */
    PERMUTED_PIECE = 32768, /* more of what lies far apart: lines are fetched less often */
    ROWS_HASH_FROM = 1024   /* in all; of less than 241 bytes XXH3 is another function */
};

const fy_rows_kernels *fy_rows_kernels_of(fy_isa isa)
{
    static const fy_rows_kernels *const kernels[] = {
        [FY_ISA_BASELINE] = &fy_rows_baseline,
        [FY_ISA_AVX2] = &fy_rows_avx2,
        [FY_ISA_AVX512] = &fy_rows_avx512,
    };
    return kernels[isa];
}

const fy_tiles_kernels *fy_tiles_kernels_of(fy_isa isa)
{
    static const fy_tiles_kernels *const kernels[] = {
        [FY_ISA_BASELINE] = &fy_tiles_baseline,
        [FY_ISA_AVX2] = &fy_tiles_avx2,
        [FY_ISA_AVX512] = &fy_tiles_avx512,
    };
    return kernels[isa];
}

/* ---- rows that are streamed ---- */

/* Rows that wait to be streamed side by side: all of one length, from one block or several. */
typedef struct queue {
    const fy_rows_kernels *kernels;
    fy_row_hash *hash; /* NULL: none */
    bool only_hash;    /* nothing is written */
    size_t n;
    size_t row_bytes;
    fy_row rows[MOST_ROWS];
} queue;

static void flush(queue *q)
{
    if (q->n == 0) {
        return;
    }
    if (q->hash == NULL) {
        q->kernels->copy(q->rows, q->n, q->row_bytes, fy_cpu_streams());
    } else if (q->only_hash) {
        q->kernels->hash(q->rows, q->n, q->row_bytes, q->hash);
    } else {
        q->kernels->copy_hash(q->rows, q->n, q->row_bytes, fy_cpu_streams(), q->hash);
    }
    q->n = 0;
}

static inline void push(queue *q, char *to, const char *from, size_t row_bytes)
{
    if (q->row_bytes != row_bytes || q->n == MOST_ROWS ||
        (q->n + 1) * row_bytes > FY_HASH_MOST_BYTES) {
        flush(q);
        q->row_bytes = row_bytes;
    }
    q->rows[q->n++] = (fy_row){.to = to, .from = from};
}

static void push_pieces(queue *q, char *to, const char *from, size_t n_bytes)
{
    for (; n_bytes > HASH_PIECE; n_bytes -= HASH_PIECE, to += HASH_PIECE, from += HASH_PIECE) {
        push(q, to, from, HASH_PIECE);
    }
    push(q, to, from, n_bytes);
}

/*
 * Whether rows are streamed one after the other and wait in no queue: where streams are in each
 * other's way, what ends up as whole lines, or as units of rows that are mostly whole lines.
 */
static bool goes_alone(const fy_block *b)
{
    bool is_units = ((uintptr_t)b->to | b->row_bytes | b->to_distance) % FY_STREAM_UNIT == 0;
    bool is_worth_it = b->to_distance == b->row_bytes ? b->n_rows * b->row_bytes >= JOIN_FROM
                                                      : b->row_bytes >= APART_FROM;
    return fy_cpu_streams() == 1 && b->n_rows > 1 && b->row_bytes < PAGES_FROM &&
           ((is_units && is_worth_it) || fy_is_lines(b));
}

static void stream_alone(const fy_rows_kernels *kernels, const fy_block *b)
{
    bool asks =
        b->from_distance != b->row_bytes && (b->row_bytes >= AHEAD_FROM || b->from_distance > LINE);
    kernels->stream(b, asks ? fy_ceil_div(AHEAD, fy_max(b->row_bytes, LINE)) : 0);
}

static void stream_block(queue *q, const fy_block *b)
{
    if (q->hash == NULL && goes_alone(b)) {
        stream_alone(q->kernels, b);
        return;
    }
    char *to = b->to;
    const char *from = b->from;
    bool asks = b->row_bytes < ASK_BELOW && b->from_distance != b->row_bytes;
    for (uint64_t i = 0; i < b->n_rows; i++, to += b->to_distance, from += b->from_distance) {
        for (uint64_t at = 0; asks && i + MOST_ROWS < b->n_rows && at < b->row_bytes; at += LINE) {
            __builtin_prefetch(from + MOST_ROWS * b->from_distance + at);
        }
        if (b->row_bytes < PAGES_FROM) {
            push(q, to, from, (size_t)b->row_bytes);
        } else if (q->hash != NULL) {
            push_pieces(q, to, from, (size_t)b->row_bytes);
        } else {
            fy_copy_streaming_unfenced(to, from, (size_t)b->row_bytes);
        }
    }
}

/* ---- rows that are not ---- */

static void copy_cached(fy_walk_side *to, fy_walk_side *from)
{
    while (to->walk.left > 0) {
        fy_block b = fy_block_here(to, from);
        fy_block_copy_cached(&b);
        fy_block_take(to, from, &b);
    }
}

/* The next n_bytes of a side to or from contiguous memory, through the cache. */
static void gather(char *to, fy_walk_side *from, uint64_t n_bytes)
{
    fy_area flat = fy_area_flat(0, n_bytes);
    fy_walk_side side = fy_walk_side_of(&flat, to, 0, n_bytes);
    uint64_t left = from->walk.left - n_bytes;
    from->walk.left = n_bytes;
    copy_cached(&side, from);
    from->walk.left = left;
}

/*
 * Short rows that end up side by side: they are put together in a buffer, and whole lines leave it,
 * so that the destination is never read. Pieces end where its lines do.
 */
static void assemble(fy_walk_side *to, fy_walk_side *from)
{
    char buffer[BUFFER];
    uint64_t left = fy_min(to->walk.n_here, to->walk.left);
    while (left > 0) {
        char *at = to->base + to->walk.at;
        uint64_t n = fy_min(left, BUFFER - (uintptr_t)at % LINE);
        gather(buffer, from, n);
        fy_copy_unfenced(at, buffer, (size_t)n);
        fy_walk_take(&to->walk, n);
        left -= n;
    }
}

/* Elements that end up side by side, and are so many that they are better not put together first.
 */
static bool is_joined(const fy_rows_kernels *kernels, const fy_block *b)
{
    return kernels->join != NULL && b->row_bytes <= 8 && (b->row_bytes & (b->row_bytes - 1)) == 0 &&
           b->to_distance == b->row_bytes && b->n_rows * b->row_bytes >= JOIN_FROM;
}

static void copy_sides(fy_walk_side *to, fy_walk_side *from)
{
    queue q = {.kernels = fy_rows_kernels_of(fy_cpu_isa())};
    while (to->walk.left > 0) {
        fy_block b = fy_block_here(to, from);
        if (b.row_bytes >= STREAM_FROM || fy_is_lines(&b) || goes_alone(&b)) {
            stream_block(&q, &b);
            fy_block_take(to, from, &b);
        } else if (is_joined(q.kernels, &b)) {
            q.kernels->join(&b, true);
            fy_block_take(to, from, &b);
        } else if (fy_block_is_appended(&b) && b.n_rows * b.row_bytes >= JOIN_FROM) {
            q.kernels->append(&b, true);
            fy_block_take(to, from, &b);
        } else if (to->walk.n_here >= BUFFER && to->walk.left >= BUFFER) {
            assemble(to, from);
        } else {
            fy_block_copy_cached(&b);
            fy_block_take(to, from, &b);
        }
    }
    flush(&q);
}

void fy_sides_copy(fy_walk_side *to, fy_walk_side *from, bool streams)
{
    if (streams) {
        copy_sides(to, from);
    } else {
        copy_cached(to, from);
    }
}

static void copy_area(const fy_area *to, void *to_base, const fy_area *from, const void *from_base,
                      uint64_t first, uint64_t bytes, bool streams)
{
    if (fy_area_permute(to, to_base, from, from_base, first, bytes, streams)) {
        return;
    }
    fy_walk_side t = fy_walk_side_of(to, to_base, first, bytes);
    fy_walk_side f = fy_walk_side_of(from, from_base, first, bytes);
    fy_sides_copy(&t, &f, streams);
}

void fy_area_copy(const fy_area *to, void *to_base, const fy_area *from, const void *from_base,
                  uint64_t first, uint64_t bytes)
{
    copy_area(to, to_base, from, from_base, first, bytes, true);
}

void fy_area_copy_cached(const fy_area *to, void *to_base, const fy_area *from,
                         const void *from_base, uint64_t first, uint64_t bytes)
{
    copy_area(to, to_base, from, from_base, first, bytes, false);
}

/* As the bytes of an area, with the base that they have as such. */
static fy_area packed_area(const fy_area *area)
{
    return fy_area_flat(0, area->bytes);
}

static void *packed_base(const void *packed, uint64_t first)
{
    return (void *)((uintptr_t)packed - (uintptr_t)first);
}

void fy_area_unpack(const fy_area *to, void *to_base, const void *from, uint64_t first,
                    uint64_t bytes)
{
    fy_area packed = packed_area(to);
    copy_area(to, to_base, &packed, packed_base(from, first), first, bytes, true);
}

void fy_area_pack_cached(void *to, const fy_area *from, const void *from_base, uint64_t first,
                         uint64_t bytes)
{
    fy_area packed = packed_area(from);
    copy_area(&packed, packed_base(to, first), from, from_base, first, bytes, false);
}

/* ---- hashes ---- */

/*
 * As many rows as are whole stripes are hashed as they pass. At least one byte of the whole is
 * left, for the hash treats its last stripe differently.
 */
static void hash_rows(fy_walk_side *to, fy_walk_side *from, bool only_hash, fy_hasher *hasher)
{
    fy_row_hash hash = {.n_stripes = 0};
    queue q = {.kernels = fy_rows_kernels_of(fy_cpu_isa()), .hash = &hash, .only_hash = only_hash};
    uint64_t kept = (from->walk.left - 1) % LINE + 1;
    const char *last = NULL; /* stripe */
    fy_hasher_numbers(hasher, hash.acc, &hash.secret);
    from->walk.left -= kept;
    to->walk.left -= kept;
    while (from->walk.left > 0) {
        fy_block b = fy_block_here(to, from);
        if (b.row_bytes % LINE != 0 ||
            (!only_hash && b.row_bytes < STREAM_FROM && !fy_is_lines(&b))) {
            break;
        }
        stream_block(&q, &b);
        fy_block_take(to, from, &b);
        last = b.from + (b.n_rows - 1) * b.from_distance + b.row_bytes - LINE;
    }
    flush(&q);
    for (int i = 0; i < 8; i++) {
        hash.acc[i] += hash.open[i];
    }
    if (last != NULL) {
        fy_hasher_resume(hasher, hash.acc, hash.n_stripes, last);
    }
    from->walk.left += kept;
    to->walk.left += kept;
}

/* The next n_bytes of `from`, through a buffer: for rows that are short or of odd lengths. */
static void hash_buffer(fy_walk_side *to, fy_walk_side *from, bool only_hash, fy_hasher *hasher,
                        uint64_t n_bytes)
{
    char buffer[BUFFER];
    gather(buffer, from, n_bytes);
    fy_hasher_update(hasher, buffer, (size_t)n_bytes);
    if (!only_hash) {
        fy_area flat = fy_area_flat(0, n_bytes);
        fy_walk_side filled = fy_walk_side_of(&flat, buffer, 0, n_bytes);
        uint64_t left = to->walk.left - n_bytes;
        to->walk.left = n_bytes;
        copy_sides(to, &filled);
        to->walk.left = left;
    }
}

static uint64_t hash_sides(fy_walk_side *to, fy_walk_side *from, bool only_hash)
{
    fy_hasher hasher;
    fy_hasher_begin(&hasher);
    if (from->walk.left >= ROWS_HASH_FROM && fy_rows_kernels_of(fy_cpu_isa())->copy_hash != NULL) {
        hash_rows(to, from, only_hash, &hasher);
    }
    while (from->walk.left > 0) {
        hash_buffer(to, from, only_hash, &hasher, fy_min(BUFFER, from->walk.left));
    }
    return fy_hasher_end(&hasher);
}

/*
 * Of a source whose bytes are in another order in memory: some of them at once are put in order
 * for the hash, and copied by themselves.
 */
static uint64_t hash_permuted(const fy_area *to, void *to_base, const fy_area *from,
                              const void *from_base, uint64_t first, uint64_t bytes)
{
    char buffer[PERMUTED_PIECE];
    fy_hasher hasher;
    fy_hasher_begin(&hasher);
    for (uint64_t at = first, n; at < first + bytes; at += n) {
        n = fy_min(first + bytes - at, PERMUTED_PIECE);
        fy_area_pack_cached(buffer, from, from_base, at, n);
        fy_hasher_update(&hasher, buffer, (size_t)n);
    }
    if (to != NULL) {
        fy_area_copy(to, to_base, from, from_base, first, bytes);
    }
    return fy_hasher_end(&hasher);
}

uint64_t fy_area_hash(const fy_area *area, const void *base, uint64_t first, uint64_t bytes)
{
    if (fy_area_is_permuted(area)) {
        return hash_permuted(NULL, NULL, area, base, first, bytes);
    }
    fy_walk_side from = fy_walk_side_of(area, base, first, bytes);
    fy_walk_side to = from; /* walked over, never written */
    return hash_sides(&to, &from, true);
}

uint64_t fy_area_copy_hash(const fy_area *to, void *to_base, const fy_area *from,
                           const void *from_base, uint64_t first, uint64_t bytes)
{
    if (fy_area_is_permuted(from)) {
        return hash_permuted(to, to_base, from, from_base, first, bytes);
    }
    if (fy_area_is_permuted(to)) {
        uint64_t hash = fy_area_hash(from, from_base, first, bytes);
        fy_area_copy(to, to_base, from, from_base, first, bytes);
        return hash;
    }
    fy_walk_side t = fy_walk_side_of(to, to_base, first, bytes);
    fy_walk_side f = fy_walk_side_of(from, from_base, first, bytes);
    return hash_sides(&t, &f, false);
}

uint64_t fy_area_pack_hash(void *to, const fy_area *from, const void *from_base, uint64_t first,
                           uint64_t bytes)
{
    fy_area packed = packed_area(from);
    return fy_area_copy_hash(&packed, packed_base(to, first), from, from_base, first, bytes);
}

uint64_t fy_area_unpack_hash(const fy_area *to, void *to_base, const void *from, uint64_t first,
                             uint64_t bytes)
{
    fy_area packed = packed_area(to);
    return fy_area_copy_hash(to, to_base, &packed, packed_base(from, first), first, bytes);
}
