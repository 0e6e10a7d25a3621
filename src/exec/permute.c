/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between areas whose dimensions are nested in memory in different orders: transposes and
 * all that is like them. What two areas have in common is a list of dimensions with a stride on
 * either side; a range of bytes is a few boxes of it (cut). The dimensions of a box may be walked
 * in any order: neighbours are merged, and what is in order then is copied row by row. Else the box
 * is cut into tiles that use all of the lines that they touch on both sides, and tiles of which
 * either side has elements side by side are planes for tiles.h.
 */
#include "exec/permute.h"

#include "exec/loops.h"
#include "exec/rows.h"
#include "exec/tiles.h"
#include "host/copy.h"

#include <string.h>

enum {
    MOST_DIMS = FY_MOST_LOOPS,
    LINE = 64,
    LANE = 16,           /* bytes of a plane's rows and columns that are transposed at once; */
    LONG_SIDE = 64,      /* what is left of shorter sides costs more than it saves */
    LONG_COLUMN = 128,   /* but not without a buffer, where columns are so long; */
    APART_COLUMN = 512,  /* columns that are no lines, but so long that few of theirs are not */
    NARROW_TILE = 16384, /* this much of both sides at once */
    SHORT_BYTES = 256,   /* of either side that a tile of short rows has */
    ROW_TILE = 1024,     /* and of longer ones */
    STREAM_FROM = 1024,  /* rows that are streamed even where they are no whole lines */
    PAGES_FROM = 16384,  /* and those that are several pages */
    ASSEMBLE_FROM = 256, /* bytes side by side in the destination that are put together first */
    ASSEMBLED = 2048,
    MOST_ROWS = 32,
    JOINED_ROWS = 8, /* of a run: so many places the machine reads at once, and no cache's set is
                        full of lines at a power of two apart */
    JOINED_AHEAD = 1024,  /* bytes that are asked for in each place: the machine is late */
    JOINED_LONG = 1024,   /* but rows that long are best read by itself, */
    JOINED_LONG_ROWS = 2, /* in so many places */
    JOINED_BYTES = 65536, /* that are read in each place */
    FEW_ROWS = 32         /* along a dimension: another one makes longer loops */
};

/* A box of a copy, and how it is walked. */
typedef struct box {
    char *to;
    const char *from;
    uint64_t element; /* bytes that lie side by side on both sides */
    bool streams;
    fy_loops nest;             /* without the element, by strides of `to` */
    uint32_t order[MOST_DIMS]; /* by strides of `from` */
    uint64_t tile[MOST_DIMS];
    uint64_t least; /* that a last tile has of dimension i, where it is not the only one */
    uint32_t i, j;  /* the dimensions with the least strides of `to`, and of `from` */
} box;

/* ---- rows ---- */

static void stream_rows(const fy_block *b)
{
    const fy_rows_kernels *kernels = fy_rows_kernels_of(fy_cpu_isa());
    fy_row rows[MOST_ROWS];
    size_t n = 0;
    for (uint64_t r = 0; r < b->n_rows; r++) {
        char *to = b->to + r * b->to_distance;
        const char *from = b->from + r * b->from_distance;
        if (b->row_bytes >= PAGES_FROM) {
            fy_copy_streaming_unfenced(to, from, (size_t)b->row_bytes);
            continue;
        }
        rows[n++] = (fy_row){.to = to, .from = from};
        if (n == MOST_ROWS) {
            kernels->copy(rows, n, (size_t)b->row_bytes, fy_cpu_streams());
            n = 0;
        }
    }
    if (n > 0) {
        kernels->copy(rows, n, (size_t)b->row_bytes, fy_cpu_streams());
    }
}

/* Rows that end up side by side leave a buffer as whole lines: their destination is never read. */
static void assemble(const fy_block *b)
{
    char buffer[ASSEMBLED];
    fy_block gathered = *b;
    gathered.to = buffer;
    fy_block_copy_cached(&gathered);
    fy_block whole = {
        .to = b->to, .from = buffer, .n_rows = 1, .row_bytes = b->n_rows * b->row_bytes};
    if (fy_cpu_streams() == 1 && ((uintptr_t)whole.to | whole.row_bytes) % FY_STREAM_UNIT == 0) {
        /* What comes next goes on where this ends, and in the same line. */
        fy_rows_kernels_of(fy_cpu_isa())->stream(&whole, 0);
    } else {
        stream_rows(&whole);
    }
}

/* Asks for what lies so far behind the rows of a block: the machine cannot guess it. */
static void fetch(const fy_block *b, ptrdiff_t ahead)
{
    bool dense = b->from_distance <= LINE;
    uint64_t n = dense ? 1 : b->n_rows;
    uint64_t bytes = dense ? (b->n_rows - 1) * b->from_distance + b->row_bytes : b->row_bytes;
    uintptr_t from = (uintptr_t)b->from + (uintptr_t)ahead;
    for (uint64_t r = 0; r < n && bytes < PAGES_FROM; r++, from += b->from_distance) {
        for (uint64_t at = 0; at < bytes + from % LINE; at += LINE) {
            __builtin_prefetch((const void *)(from + at));
        }
    }
}

static void copy_rows(const box *x, const fy_block *b, ptrdiff_t ahead)
{
    if (ahead != 0) {
        fetch(b, ahead);
    }
    uint64_t bytes = b->n_rows * b->row_bytes;
    bool lines = (((uintptr_t)b->to | b->row_bytes | b->to_distance) % LINE) == 0;
    if (x->streams && (lines || b->row_bytes >= STREAM_FROM)) {
        stream_rows(b);
    } else if (x->streams && b->to_distance == b->row_bytes && bytes >= ASSEMBLE_FROM &&
               bytes <= ASSEMBLED) {
        assemble(b);
    } else {
        fy_block_copy_cached(b);
    }
}

/* ---- tiles ---- */

/* A tile, or the part of one that is left at the end of a dimension. */
typedef struct tile {
    uint64_t index[MOST_DIMS]; /* of its first element */
    uint64_t length[MOST_DIMS];
    char *to;
    const char *from;
} tile;

/* Steps through all indices of a tile but those of dimensions p and q; false behind the last. */
static bool step_within(const box *x, const tile *t, uint32_t p, uint32_t q, uint64_t *index,
                        char **to, const char **from)
{
    for (uint32_t d = x->nest.n; d-- > 0;) {
        const fy_loop *its = &x->nest.dims[d];
        if (d == p || d == q) {
            continue;
        }
        *to += its->to;
        *from += its->from;
        if (++index[d] < t->length[d]) {
            return true;
        }
        *to -= index[d] * its->to;
        *from -= index[d] * its->from;
        index[d] = 0;
    }
    return false;
}

/* Whether a row of a tile begins in lines that none before it has. */
static bool is_new(const box *x, const uint64_t *index)
{
    bool is = true;
    for (uint32_t d = 0; d < x->nest.n; d++) {
        uint64_t stride = x->nest.dims[d].from;
        is = is && (stride >= LINE || index[d] * stride % LINE < stride);
    }
    return is;
}

/* ahead: how far behind it the next tile lies in `from`; 0: there is none. */
static void copy_row_tile(const box *x, const tile *t, ptrdiff_t ahead)
{
    uint64_t index[MOST_DIMS] = {0};
    uint32_t r = x->i;
    for (uint32_t d = 0; d < x->nest.n && t->length[x->i] < FEW_ROWS; d++) {
        r = t->length[d] > t->length[r] ? d : r;
    }
    fy_block b = {.to = t->to,
                  .from = t->from,
                  .to_distance = x->nest.dims[r].to,
                  .from_distance = x->nest.dims[r].from,
                  .n_rows = t->length[r],
                  .row_bytes = x->element};
    do {
        copy_rows(x, &b, is_new(x, index) ? ahead : 0);
    } while (step_within(x, t, r, r, index, &b.to, &b.from));
}

static uint32_t log_of(uint64_t element)
{
    return (uint32_t)__builtin_ctzll(element);
}

/* next: where the next tile begins in `from`, or NULL. */
static void copy_plane_tile(const box *x, const tile *t, bool streams, const char *next)
{
    const fy_tiles_kernels *kernels = fy_tiles_kernels_of(fy_cpu_isa());
    uint64_t index[MOST_DIMS] = {0};
    fy_plane p = {.to = t->to,
                  .from = t->from,
                  .to_pitch = x->nest.dims[x->j].to,
                  .from_pitch = x->nest.dims[x->i].from,
                  .n_i = (size_t)t->length[x->i],
                  .n_j = (size_t)t->length[x->j],
                  .next = next};
    do {
        kernels->transpose[log_of(x->element)](&p, streams);
    } while (step_within(x, t, x->i, x->j, index, &p.to, &p.from));
}

/* Of a dimension of which so much is left. */
static uint64_t tile_length(const box *x, uint32_t d, uint64_t left)
{
    uint64_t least = d == x->i ? x->least : 0;
    return left < x->tile[d] + least ? left : x->tile[d];
}

static uint64_t first_length(const box *x, uint32_t d, uint64_t head)
{
    uint64_t length = x->nest.dims[d].length;
    return d == x->i && head > 0 ? fy_min(head, length) : tile_length(x, d, length);
}

/* To the next tile; false behind the last. The first of dimension i may be shorter: `head`. */
static bool step_tile(const box *x, uint64_t head, tile *t)
{
    for (uint32_t k = x->nest.n; k-- > 0;) {
        uint32_t d = x->order[k];
        const fy_loop *its = &x->nest.dims[d];
        uint64_t done = t->length[d];
        if (t->index[d] + done < its->length) {
            t->index[d] += done;
            t->to += done * its->to;
            t->from += done * its->from;
            t->length[d] = tile_length(x, d, its->length - t->index[d]);
            return true;
        }
        t->to -= t->index[d] * its->to;
        t->from -= t->index[d] * its->from;
        t->index[d] = 0;
        t->length[d] = first_length(x, d, head);
    }
    return false;
}

static tile first_tile(const box *x, uint64_t head)
{
    tile t = {.to = x->to, .from = x->from};
    for (uint32_t d = 0; d < x->nest.n; d++) {
        t.length[d] = first_length(x, d, head);
    }
    return t;
}

/* Whether all columns begin alike within a line; and how many elements are before the first line.
 */
static bool find_lines(const box *x, uint64_t *head_out)
{
    uint64_t before = -(uintptr_t)x->to % LINE;
    for (uint32_t d = 0; d < x->nest.n; d++) {
        if (d != x->i && x->nest.dims[d].to % LINE != 0) {
            return false;
        }
    }
    *head_out = before / x->element;
    return before % x->element == 0;
}

static bool is_side(const box *x, const fy_loop *its)
{
    uint64_t bytes = its->length * x->element;
    return bytes >= LONG_SIDE || (bytes >= LANE && bytes % LANE == 0);
}

/* Whether either side has elements of up to so many bytes side by side, and in another order. */
static bool is_turned(const box *x, uint64_t most)
{
    const fy_loop *i = &x->nest.dims[x->i], *j = &x->nest.dims[x->j];
    return x->i != x->j && i->to == x->element && j->from == x->element && x->element <= most &&
           (x->element & (x->element - 1)) == 0;
}

static bool is_planes(const box *x)
{
    const fy_loop *i = &x->nest.dims[x->i], *j = &x->nest.dims[x->j];
    uint64_t head, most = x->streams && find_lines(x, &head) ? 16 : 8; /* see fy_plane */
    return is_turned(x, most) && is_side(x, i) && is_side(x, j);
}

/* Columns that are long, of rows that are short, such as the 3 x 3 of convolutions. */
static bool is_narrow(const box *x)
{
    uint64_t row_bytes = x->nest.dims[x->j].length * x->element;
    return is_turned(x, 8) && row_bytes >= LANE && row_bytes < LONG_SIDE &&
           x->nest.dims[x->i].length * x->element >= LONG_COLUMN;
}

/* So much of each dimension that a tile has so many bytes side by side on either side. */
static void set_tiles(box *x, uint64_t to_bytes, uint64_t from_bytes)
{
    for (uint32_t d = 0; d < x->nest.n; d++) {
        const fy_loop *its = &x->nest.dims[d];
        uint64_t most =
            fy_max(fy_max(to_bytes / its->to, its->from == 0 ? 1 : from_bytes / its->from), 1);
        x->tile[d] = fy_min(most, its->length);
    }
}

static void copy_planes(box *x)
{
    uint64_t head = 0;
    bool lines = x->streams && find_lines(x, &head);
    head = lines ? head : 0;
    set_tiles(x, fy_plane_column_bytes((size_t)x->element), fy_plane_row_bytes((size_t)x->element));
    tile t = first_tile(x, head);
    for (bool more = true; more;) {
        tile here = t;
        more = step_tile(x, head, &t);
        bool begins = head > 0 && here.index[x->i] == 0; /* and not at a line */
        copy_plane_tile(x, &here, lines && !begins, more ? t.from : NULL);
    }
}

/* Whether short columns lie side by side: together they are whole lines, but for the ends. */
static bool is_dense(const box *x)
{
    const fy_loop *i = &x->nest.dims[x->i];
    return i->length <= FY_PLANE_MOST_SHORT &&
           i->length * x->element <= FY_PLANE_MOST_SHORT_BYTES &&
           x->nest.dims[x->j].to == i->length * x->element;
}

/* Whether columns that are no whole lines are worth to be made of them: see fy_cpu_streams. */
static bool is_apart(const box *x)
{
    const uint64_t column_bytes = x->nest.dims[x->i].length * x->element;
    uint64_t head, all = (uintptr_t)x->to;
    for (uint32_t d = 0; d < x->nest.n; d++) {
        all |= x->nest.dims[d].to;
    }
    bool are_lines = find_lines(x, &head) && (head == 0 || column_bytes >= APART_COLUMN);
    return x->streams && fy_cpu_streams() == 1 && x->element <= 8 && all % x->element == 0 &&
           !are_lines && (column_bytes >= APART_COLUMN || is_dense(x));
}

/* The share of at most so many, in whole units where it is more than one of them. */
static uint64_t even_share(uint64_t n, uint64_t most, uint64_t unit)
{
    uint64_t n_shares = fy_ceil_div(n, most);
    return fy_min(fy_ceil_div(fy_ceil_div(n, n_shares), unit) * unit, n);
}

static void set_apart_tiles(box *x)
{
    const size_t element = (size_t)x->element;
    if (is_dense(x)) {
        const uint64_t n_i = x->nest.dims[x->i].length;
        const uint64_t n_j = fy_plane_short_row_bytes(element, (size_t)n_i) / element;
        set_tiles(x, 0, 0);
        x->tile[x->i] = n_i;
        x->tile[x->j] = even_share(x->nest.dims[x->j].length, n_j, LANE / x->element);
    } else {
        set_tiles(x, fy_plane_column_bytes(element), fy_plane_apart_row_bytes(element));
        x->least = LINE / x->element;
    }
}

/* Along the columns: rows that make a line of two tiles whole are in the cache for the second. */
static void copy_planes_apart(box *x)
{
    const fy_tiles_kernels *kernels = fy_tiles_kernels_of(fy_cpu_isa());
    const bool is_short = is_dense(x);
    set_apart_tiles(x);
    for (uint32_t d = 0; d < x->nest.n; d++) {
        x->order[d] = d;
    }
    tile t = first_tile(x, 0);
    for (bool more = true; more;) {
        tile here = t;
        more = step_tile(x, 0, &t);
        bool is_last = here.index[x->i] + here.length[x->i] == x->nest.dims[x->i].length;
        uint64_t index[MOST_DIMS] = {0};
        fy_plane p = {.to = here.to,
                      .from = here.from,
                      .to_pitch = x->nest.dims[x->j].to,
                      .from_pitch = x->nest.dims[x->i].from,
                      .n_i = (size_t)here.length[x->i],
                      .n_j = (size_t)here.length[x->j],
                      .next = more ? t.from : NULL};
        do {
            if (is_short) {
                kernels->transpose_short[log_of(x->element)](&p);
            } else {
                kernels->transpose_apart[log_of(x->element)](&p, here.index[x->i] == 0, is_last);
            }
        } while (step_within(x, &here, x->i, x->j, index, &p.to, &p.from));
    }
}

static void copy_narrow(box *x)
{
    const fy_tiles_kernels *kernels = fy_tiles_kernels_of(fy_cpu_isa());
    set_tiles(x, NARROW_TILE, NARROW_TILE);
    tile t = first_tile(x, 0);
    for (bool more = true; more;) {
        uint64_t index[MOST_DIMS] = {0};
        fy_plane p = {.to = t.to,
                      .from = t.from,
                      .to_pitch = x->nest.dims[x->j].to,
                      .from_pitch = x->nest.dims[x->i].from,
                      .n_i = (size_t)t.length[x->i],
                      .n_j = (size_t)t.length[x->j]};
        do {
            kernels->turn[log_of(x->element)](&p);
        } while (step_within(x, &t, x->i, x->j, index, &p.to, &p.from));
        more = step_tile(x, 0, &t);
    }
}

/*
 * Whether rows go side by side and make whole lines together, where that is faster than to put them
 * together first: see fy_cpu_streams.
 */
static bool joins(const box *x)
{
    uint64_t all = (uintptr_t)x->to | x->element;
    for (uint32_t d = 0; d < x->nest.n; d++) {
        all |= x->nest.dims[d].to;
    }
    return x->streams && fy_cpu_streams() == 1 && all % FY_STREAM_UNIT == 0 && x->element >= LINE &&
           x->nest.dims[x->i].to == x->element;
}

static void copy_joined(box *x)
{
    const fy_rows_kernels *kernels = fy_rows_kernels_of(fy_cpu_isa());
    const fy_loop *its = &x->nest.dims[x->i];
    bool is_long = x->element >= JOINED_LONG;
    uint64_t n_rows = is_long ? JOINED_LONG_ROWS : JOINED_ROWS;
    uint64_t ahead = is_long ? 0 : fy_ceil_div(JOINED_AHEAD, x->element) * x->nest.dims[x->j].from;
    set_tiles(x, n_rows * x->element, JOINED_BYTES);
    x->tile[x->i] = fy_min(x->i == x->j ? its->length : n_rows, its->length);
    tile t = first_tile(x, 0);
    for (bool more = true; more;) {
        uint64_t index[MOST_DIMS] = {0};
        fy_block run = {.to = t.to,
                        .from = t.from,
                        .to_distance = its->to,
                        .from_distance = its->from,
                        .n_rows = t.length[x->i],
                        .row_bytes = x->element};
        bool is_last = t.index[x->i] + run.n_rows == its->length;
        do {
            kernels->stream_run(&run, ahead, t.index[x->i] == 0, is_last);
        } while (step_within(x, &t, x->i, x->i, index, &run.to, &run.from));
        more = step_tile(x, 0, &t);
    }
}

static void copy_row_tiles(box *x)
{
    uint64_t from_bytes = x->element < LINE ? SHORT_BYTES : ROW_TILE;
    bool assembles = x->streams && x->nest.dims[x->i].to == x->element;
    set_tiles(x, assembles ? ASSEMBLED : from_bytes, from_bytes);
    tile t = first_tile(x, 0);
    for (bool more = true; more;) {
        tile here = t;
        more = step_tile(x, 0, &t);
        copy_row_tile(x, &here, more ? t.from - here.from : 0);
    }
}

/* ---- boxes ---- */

static void drop(fy_loops *n, uint32_t d)
{
    n->n--;
    memmove(n->dims + d, n->dims + d + 1, (n->n - d) * sizeof *n->dims);
}

/* Takes what lies side by side on both sides into the element. */
static void widen(box *x)
{
    for (uint32_t d = 0; d < x->nest.n;) {
        const fy_loop *its = &x->nest.dims[d];
        if (its->length == 1) {
            drop(&x->nest, d);
        } else if (its->to == x->element && its->from == x->element) {
            x->element *= its->length;
            drop(&x->nest, d);
            d = 0;
        } else {
            d++;
        }
    }
}

static void sort(box *x)
{
    fy_loops *n = &x->nest;
    for (uint32_t d = 1; d < n->n; d++) {
        fy_loop its = n->dims[d];
        uint32_t at = d;
        for (; at > 0 && n->dims[at - 1].to < its.to; at--) {
            n->dims[at] = n->dims[at - 1];
        }
        n->dims[at] = its;
    }
    for (uint32_t d = 1; d < n->n;) {
        fy_loop *outer = &n->dims[d - 1], *inner = &n->dims[d];
        if (outer->to == inner->to * inner->length && outer->from == inner->from * inner->length) {
            inner->length *= outer->length;
            drop(n, d - 1);
        } else {
            d++;
        }
    }
}

/* Whether `from` is then nested in the same order. */
static bool set_order(box *x)
{
    bool same = true;
    for (uint32_t d = 0; d < x->nest.n; d++) {
        uint32_t at = d;
        for (; at > 0 && x->nest.dims[x->order[at - 1]].from < x->nest.dims[d].from; at--) {
            x->order[at] = x->order[at - 1];
            same = false;
        }
        x->order[at] = d;
    }
    x->i = x->nest.n - 1;
    x->j = x->order[x->nest.n - 1];
    return same;
}

/* One side of a box in order, its neighbours put together where only that side has them so. */
static fy_area side_area(const box *x, bool is_to)
{
    uint64_t length[FERRY_MAX_DIMS], stride[FERRY_MAX_DIMS];
    for (uint32_t d = 0; d < x->nest.n; d++) {
        length[d] = x->nest.dims[d].length;
        stride[d] = is_to ? x->nest.dims[d].to : x->nest.dims[d].from;
    }
    return fy_area_of(0, x->element, x->nest.n, length, stride);
}

static void copy_in_order(const box *x)
{
    fy_area to = side_area(x, true), from = side_area(x, false);
    fy_walk_side t = fy_walk_side_of(&to, x->to, 0, to.bytes);
    fy_walk_side f = fy_walk_side_of(&from, x->from, 0, from.bytes);
    fy_sides_copy(&t, &f, x->streams);
}

static void copy_box(box *x)
{
    widen(x);
    sort(x);
    if (x->nest.n == 0) {
        fy_block run = {.to = x->to, .from = x->from, .n_rows = 1, .row_bytes = x->element};
        copy_rows(x, &run, 0);
    } else if (set_order(x) && x->nest.n <= FERRY_MAX_DIMS) {
        copy_in_order(x);
    } else if (is_narrow(x)) {
        copy_narrow(x);
    } else if (is_planes(x) && is_apart(x)) {
        copy_planes_apart(x);
    } else if (is_planes(x)) {
        copy_planes(x);
    } else if (joins(x)) {
        copy_joined(x);
    } else {
        copy_row_tiles(x);
    }
}

/* ---- a range ---- */

typedef struct range {
    char *to;
    const char *from;
    bool streams;
} range;

static void copy_part(void *context, const fy_loops *part, uint64_t to, uint64_t from)
{
    const range *r = context;
    box x = {.to = r->to + to, .from = r->from + from, .element = 1, .streams = r->streams};
    x.nest = *part;
    copy_box(&x);
}

bool fy_area_permute(const fy_area *to, void *to_base, const fy_area *from, const void *from_base,
                     uint64_t first, uint64_t bytes, bool streams)
{
    fy_loops loops;
    range r = {.to = (char *)to_base + to->offset,
               .from = (const char *)from_base + from->offset,
               .streams = streams};
    if (bytes == 0 || !(fy_area_is_permuted(to) || fy_area_is_permuted(from)) ||
        !fy_loops_of(to, 1, from, 1, &loops)) {
        return false;
    }
    fy_loops_visit(&loops, first, bytes, copy_part, &r);
    return true;
}
