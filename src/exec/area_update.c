/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies that leave alone what is equal already. Both sides are read, and a piece is written only
 * where it differs: then it is in the cache.
 */
#include "exec/area.h"

#include "base/cpu.h"
#include "exec/block.h"
#include "host/copy.h"

#include <string.h>

enum {
    LINE = 64,
    PIECE = 4096,      /* is written where it differs */
    LONG_FROM = 512,   /* rows that are compared where they lie */
    AHEAD = 2 * PIECE, /* that is fetched while a piece is compared */
    BUFFER = 4096      /* of short rows, which are gathered first */
};

/*
 * Whether n bytes differ. What comes AHEAD of them is asked for meanwhile where the machine's own
 * guesses end with each page, which is where streams side by side help, too (base/cpu.h); elsewhere
 * that only costs. n_ahead says how far it is memory of the caller's.
 */
static bool differs(const char *a, const char *b, size_t n, size_t n_ahead)
{
    bool asks = fy_cpu_streams() > 1;
    for (size_t at = AHEAD; asks && at < AHEAD + n && at < n_ahead; at += LINE) {
        __builtin_prefetch(a + at);
        __builtin_prefetch(b + at);
    }
    return memcmp(a, b, n) != 0;
}

static uint64_t update_row(char *to, const char *from, uint64_t n_bytes)
{
    uint64_t copied = 0;
    for (uint64_t at = 0; at < n_bytes; at += PIECE) {
        size_t n = (size_t)fy_min(n_bytes - at, PIECE);
        if (differs(from + at, to + at, n, (size_t)(n_bytes - at))) {
            fy_copy_cached(to + at, from + at, n);
            copied += n;
        }
    }
    return copied;
}

static uint64_t update_rows(const fy_block *b)
{
    char *to = b->to;
    const char *from = b->from;
    uint64_t copied = 0;
    for (uint64_t i = 0; i < b->n_rows; i++, to += b->to_distance, from += b->from_distance) {
        copied += update_row(to, from, b->row_bytes);
    }
    return copied;
}

/* The same bytes of two areas, which lie there in short rows. */
static uint64_t update_gathered(const fy_area *to, void *to_base, const fy_area *from,
                                const void *from_base, uint64_t first, uint64_t n)
{
    char theirs[BUFFER], ours[BUFFER];
    fy_area_pack_cached(theirs, to, to_base, first, n);
    fy_area_pack_cached(ours, from, from_base, first, n);
    if (memcmp(theirs, ours, (size_t)n) == 0) {
        return 0;
    }
    fy_area_copy_cached(to, to_base, from, from_base, first, n);
    return n;
}

uint64_t fy_area_update(const fy_area *to, void *to_base, const fy_area *from,
                        const void *from_base, uint64_t first, uint64_t bytes)
{
    uint64_t done = 0, copied = 0;
    while (done < bytes) {
        fy_walk_side t = fy_walk_side_of(to, to_base, first + done, bytes - done);
        fy_walk_side f = fy_walk_side_of(from, from_base, first + done, bytes - done);
        fy_block b = fy_block_here(&t, &f);
        if (b.row_bytes >= LONG_FROM) {
            copied += update_rows(&b);
            done += b.n_rows * b.row_bytes;
        } else {
            uint64_t n = fy_min(bytes - done, BUFFER);
            copied += update_gathered(to, to_base, from, from_base, first + done, n);
            done += n;
        }
    }
    return copied;
}
