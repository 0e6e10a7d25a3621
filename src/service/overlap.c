/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether any byte has two writers, or is written by one task and read by another. Areas are laid
 * side by side in memory and only those whose hulls meet are compared. Boxes of one tensor are
 * compared as boxes: their largest common stride makes rows of the memory, areas become intervals
 * of rows times an area within a row, and what shares rows is compared by those, one dimension
 * less. Where that does not work, all runs are merged in order of addresses: always right, in
 * memory for the areas alone, but in the time of the runs.
 */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "service/registry.h"

#include <stdio.h>
#include <string.h>

enum {
    MOST_LEVELS = 16,      /* of rows within rows */
    FEW_RUNS = 8,          /* an area: merging them is not worth avoiding */
    LEAST_BUDGET = 1 << 20 /* see checker */
};

/* An area, or a part of one: the dimensions from `dim` on, beginning at `at`. */
typedef struct piece {
    uint64_t at;
    uint64_t extent; /* of its hull; of a piece without dimensions its only run */
    uint32_t end;    /* as of end_at */
    uint16_t dim;
    bool is_read;
    bool is_kept; /* it counts as read, but is where an end that is written has its last version */
} piece;

/* What rows of a piece: each is `inner`, which is a piece of a row. */
typedef struct row_piece {
    piece inner;
    uint64_t row;
    uint64_t n_rows;
} row_piece;

typedef struct checker {
    const fy_registry *registry;
    bool is_turned; /* the buffers of pairs have changed places, as after an odd number of runs */
    /* As end_at has them, of each area from the largest stride to the least, and coalesced. */
    fy_end *sends, *receives;
    uint64_t *dims;
    bool found;
    piece first, second; /* two that share a byte */
    /* Comparing by rows may not take longer than merging runs would: steps that are left. */
    uint64_t budget;
    bool exhausted;
} checker;

/* All that a scaling reads, as an end that is sent: the values, and the scales of its matrices. */
static fy_end shard_of(const fy_scaling *s, bool is_given)
{
    if (is_given && s->given != FY_NONE) {
        return (fy_end){.held = s->given, .run_bytes = s->n_planes * sizeof(float)};
    }
    uint64_t n = s->n_planes * s->q.n_rows * s->q.n_columns; /* it fits: it lies in memory */
    return (fy_end){.held = s->source, .run_bytes = n * fy_cast_element_bytes(s->q.kind)};
}

/*
 * What is read: sends, and behind them the shards that scales are made of, whole. What is written:
 * receives, and behind them codes and scales that are made here.
 */
static size_t n_ends(const fy_registry *registry, bool is_read)
{
    return is_read ? registry->sends.n + 2 * registry->n_scalings
                   : registry->receives.n + 2 * registry->n_makings;
}

static fy_end end_at(const fy_registry *registry, size_t index, bool is_read)
{
    const fy_ends *ends = is_read ? &registry->sends : &registry->receives;
    if (index < ends->n) {
        return ends->items[index];
    }
    index -= ends->n;
    if (is_read) {
        return shard_of(&registry->scalings[index / 2], index % 2 == 1);
    }
    const fy_code_maker *making = &registry->makings[index / 2];
    return index % 2 == 0 ? making->codes : making->scales;
}

static const fy_end *end_of(const checker *c, const piece *p)
{
    return &(p->is_read && !p->is_kept ? c->sends : c->receives)[p->end];
}

static uint64_t length_of(const checker *c, const fy_end *end, uint32_t dim)
{
    return c->dims[end->dims + dim];
}

static uint64_t stride_of(const checker *c, const fy_end *end, uint32_t dim)
{
    return c->dims[end->dims + end->n_dims + dim];
}

/* Passes over dimensions of length 1, whose strides mean nothing. Whether there is another. */
static bool has_dims(const checker *c, piece *p)
{
    const fy_end *end = end_of(c, p);
    while (p->dim < end->n_dims && length_of(c, end, p->dim) == 1) {
        p->dim++;
    }
    return p->dim < end->n_dims;
}

static int compare_pieces(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    if (x->at != y->at) {
        return x->at < y->at ? -1 : 1;
    }
    if (x->extent != y->extent) {
        return x->extent < y->extent ? -1 : 1;
    }
    if (x->is_read != y->is_read) {
        return x->is_read ? 1 : -1;
    }
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1;
    }
    return (x->is_kept > y->is_kept) - (x->is_kept < y->is_kept);
}

/*
 * Runs in order of addresses: the ends of the furthest writer and reader so far decide.
 */
typedef struct frontier {
    uint64_t write_end, read_end;
    piece writer, reader;
} frontier;

static void meet(checker *c, frontier *f, const piece *p, uint64_t begin, uint64_t end)
{
    bool hits_writer = begin < f->write_end;
    bool hits_reader = !p->is_read && begin < f->read_end;
    if (hits_writer || hits_reader) {
        c->found = true;
        c->first = hits_writer ? f->writer : f->reader;
        c->second = *p;
    }
    if (p->is_read && end > f->read_end) {
        f->read_end = end;
        f->reader = *p;
    } else if (!p->is_read && end > f->write_end) {
        f->write_end = end;
        f->writer = *p;
    }
}

/*
 * The merge: a heap of pieces by their next run.
 */
typedef struct run_walk {
    const piece *piece;
    uint64_t at;
    uint64_t run_bytes;
    uint64_t index[FERRY_MAX_DIMS];
} run_walk;

/* To the next run; false behind the last. Runs of an area are in order of addresses. */
static bool walk_on(const checker *c, run_walk *walk)
{
    const fy_end *end = end_of(c, walk->piece);
    for (uint32_t d = end->n_dims; d-- > walk->piece->dim;) {
        uint64_t length = length_of(c, end, d), stride = stride_of(c, end, d);
        if (++walk->index[d] < length) {
            walk->at += stride;
            return true;
        }
        walk->index[d] = 0;
        walk->at -= (length - 1) * stride;
    }
    return false;
}

static void sift_down(run_walk **heap, size_t n, size_t i)
{
    run_walk *walk = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1]->at < heap[child]->at) {
            child++;
        }
        if (heap[child]->at >= walk->at) {
            break;
        }
        heap[i] = heap[child];
    }
    heap[i] = walk;
}

static void merge_walks(checker *c, run_walk **heap, size_t n)
{
    frontier f = {0};
    while (n > 0 && !c->found) {
        run_walk *walk = heap[0];
        meet(c, &f, walk->piece, walk->at, walk->at + walk->run_bytes);
        if (!walk_on(c, walk)) {
            heap[0] = heap[--n];
        }
        if (n > 0) {
            sift_down(heap, n, 0);
        }
    }
}

static ferry_status merge(checker *c, const piece *pieces, size_t n, ferry_error *error)
{
    run_walk *walks = fy_alloc_zeroed(n, sizeof *walks);
    run_walk **heap = fy_alloc(n, sizeof(run_walk *));
    if (walks == NULL || heap == NULL) {
        fy_free(walks);
        fy_free(heap);
        return fy_fail_no_memory(error, "the comparison of areas");
    }
    for (size_t i = 0; i < n; i++) {
        walks[i].piece = &pieces[i];
        walks[i].at = pieces[i].at;
        walks[i].run_bytes = end_of(c, &pieces[i])->run_bytes;
        heap[i] = &walks[i]; /* pieces are sorted, which is a heap */
    }
    merge_walks(c, heap, n);
    fy_free(heap);
    fy_free(walks);
    return FERRY_OK;
}

/*
 * Rows
 */

/* The largest stride of the pieces, or 0. */
static uint64_t find_stride(const checker *c, piece *pieces, size_t n)
{
    uint64_t stride = 0;
    for (size_t i = 0; i < n; i++) {
        if (has_dims(c, &pieces[i])) {
            stride = fy_max(stride, stride_of(c, end_of(c, &pieces[i]), pieces[i].dim));
        }
    }
    return stride;
}

/* What one row of a piece is, where its outermost dimension goes by the stride. */
static piece inner_of(const checker *c, const piece *p, uint64_t stride, uint64_t *n_rows_out)
{
    const fy_end *end = end_of(c, p);
    piece inner = *p;
    *n_rows_out = 1;
    if (p->dim < end->n_dims && stride_of(c, end, p->dim) == stride) {
        *n_rows_out = length_of(c, end, p->dim);
        inner.extent -= (*n_rows_out - 1) * stride;
        inner.dim++;
        has_dims(c, &inner);
    }
    return inner;
}

/* A run can be cut where a row ends; what has dimensions cannot. */
static bool is_run(const checker *c, const piece *p)
{
    return p->dim == end_of(c, p)->n_dims;
}

typedef struct arc {
    uint64_t begin, length;
} arc;

static int compare_arcs(const void *a, const void *b)
{
    const arc *x = a, *y = b;
    return x->begin == y->begin ? 0 : x->begin < y->begin ? -1 : 1;
}

/*
 * Where rows can begin, counted from the first piece, so that none that cannot be cut goes across:
 * a place on a circle of `stride` bytes that is inside no arc.
 */
static bool find_place(arc *arcs, size_t n, uint64_t stride, uint64_t *place_out)
{
    uint64_t covered = 0;
    fy_sort(arcs, n, sizeof *arcs, compare_arcs);
    for (size_t i = 0; i < n; i++) {
        uint64_t end = arcs[i].begin + arcs[i].length;
        covered = end > stride ? fy_max(covered, end - stride) : covered;
    }
    for (size_t i = 0; i < n && arcs[i].begin < covered; i++) {
        covered = fy_max(covered, arcs[i].begin + arcs[i].length);
    }
    *place_out = covered;
    return covered < stride;
}

/* False (and OK) where there is no such place. */
static ferry_status place_rows(const checker *c, const piece *pieces, size_t n, uint64_t stride,
                               uint64_t *place_out, bool *found_out, ferry_error *error)
{
    arc *arcs = fy_alloc(n, sizeof *arcs);
    FY_TRY(fy_check_memory(arcs != NULL, "the comparison of areas", error));
    size_t n_arcs = 0;
    *found_out = true;
    for (size_t i = 0; i < n && *found_out; i++) {
        uint64_t n_rows;
        piece inner = inner_of(c, &pieces[i], stride, &n_rows);
        if (!is_run(c, &inner)) {
            arcs[n_arcs++] = (arc){(inner.at - pieces[0].at) % stride, inner.extent};
            *found_out = inner.extent <= stride;
        }
    }
    *found_out = *found_out && find_place(arcs, n_arcs, stride, place_out);
    fy_free(arcs);
    return FERRY_OK;
}

/* Rows of a piece: at most three kinds, where a run begins and ends within rows. */
static size_t cut_rows(const piece *inner, uint64_t offset, uint64_t n_rows, uint64_t stride,
                       row_piece *rows)
{
    uint64_t row = offset / stride, phase = offset % stride;
    row_piece whole = {.inner = *inner, .row = row, .n_rows = n_rows};
    whole.inner.at = phase;
    if (inner->extent <= stride - phase) {
        rows[0] = whole;
        return 1;
    }
    size_t n = 0;
    uint64_t end = phase + inner->extent, n_full = end / stride - 1;
    row_piece head = whole, full = whole, tail = whole;
    head.inner.extent = stride - phase;
    rows[n++] = head;
    /* A row of many that is as long as the stride or less meets no full row but by n_rows. */
    full.inner.at = 0;
    full.inner.extent = stride;
    full.row = row + 1;
    full.n_rows = n_full;
    if (n_full != 0) {
        rows[n++] = full;
    }
    tail.inner.at = 0;
    tail.inner.extent = end % stride;
    tail.row = row + 1 + n_full;
    if (tail.inner.extent != 0) {
        rows[n++] = tail;
    }
    return n;
}

static int compare_rows(const void *a, const void *b)
{
    const row_piece *x = a, *y = b;
    return x->row == y->row ? 0 : x->row < y->row ? -1 : 1;
}

static ferry_status check(checker *c, piece *pieces, size_t n, uint32_t level, ferry_error *error);

/* Compares what shares a row whenever something new begins; rows are sorted. */
static ferry_status sweep_rows(checker *c, const row_piece *rows, size_t n, uint32_t level,
                               size_t *active, piece *inner, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    size_t n_active = 0, next = 0;
    while (next < n && status == FERRY_OK && !c->found && !c->exhausted) {
        uint64_t row = rows[next].row;
        size_t kept = 0;
        for (size_t i = 0; i < n_active; i++) {
            const row_piece *r = &rows[active[i]];
            active[kept] = active[i];
            kept += r->n_rows > row - r->row;
        }
        n_active = kept;
        while (next < n && rows[next].row == row) {
            active[n_active++] = next++;
        }
        if (c->budget < n_active) {
            c->exhausted = true;
            break;
        }
        c->budget -= n_active;
        for (size_t i = 0; i < n_active; i++) {
            inner[i] = rows[active[i]].inner;
        }
        status = check(c, inner, n_active, level + 1, error);
    }
    return status;
}

/* Cuts the pieces of a group into rows and compares those. */
static ferry_status fold(checker *c, const piece *pieces, size_t n, uint64_t stride, uint64_t place,
                         uint32_t level, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    size_t n_rows = 0;
    row_piece *rows = fy_alloc(3 * n, sizeof *rows);
    size_t *active = fy_alloc(3 * n, sizeof *active);
    piece *inner = fy_alloc(3 * n, sizeof *inner);
    if (rows == NULL || active == NULL || inner == NULL) {
        status = fy_fail_no_memory(error, "the comparison of areas");
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t count;
        piece p = inner_of(c, &pieces[i], stride, &count);
        n_rows += cut_rows(&p, pieces[i].at - pieces[0].at + stride - place, count, stride,
                           rows + n_rows);
    }
    fy_sort(rows, n_rows, sizeof *rows, compare_rows);
    status = sweep_rows(c, rows, n_rows, level, active, inner, error);
out:
    fy_free(inner);
    fy_free(active);
    fy_free(rows);
    return status;
}

static void sweep_runs(checker *c, const piece *pieces, size_t n)
{
    frontier f = {0};
    for (size_t i = 0; i < n && !c->found; i++) {
        meet(c, &f, &pieces[i], pieces[i].at, pieces[i].at + pieces[i].extent);
    }
}

/* The runs of whole areas. */
static uint64_t count_runs(const checker *c, const piece *pieces, size_t n)
{
    uint64_t n_runs = 0;
    for (size_t i = 0; i < n; i++) {
        const fy_end *end = end_of(c, &pieces[i]);
        uint64_t its = 1;
        for (uint32_t d = 0; d < end->n_dims; d++) {
            its *= c->dims[end->dims + d];
        }
        n_runs += its;
    }
    return n_runs;
}

/* A group by rows, if it has any; *done_out is false where that does not work. */
static ferry_status check_by_rows(checker *c, piece *pieces, size_t n, uint32_t level,
                                  bool *done_out, ferry_error *error)
{
    uint64_t place = 0, stride = find_stride(c, pieces, n);
    *done_out = true;
    if (stride == 0) {
        sweep_runs(c, pieces, n);
        return FERRY_OK;
    }
    bool found = false;
    ferry_status status =
        level == MOST_LEVELS ? FERRY_OK : place_rows(c, pieces, n, stride, &place, &found, error);
    if (status == FERRY_OK && found) {
        status = fold(c, pieces, n, stride, place, level, error);
    }
    *done_out = status != FERRY_OK || c->found || (found && !c->exhausted);
    return status;
}

/* Reads may share bytes, and often are the same: one of each is enough. */
static size_t drop_same_reads(const checker *c, piece *pieces, size_t n)
{
    size_t n_kept = 0;
    const piece *last = NULL;
    for (size_t i = 0; i < n; i++) {
        const piece *p = &pieces[i];
        const fy_end *x = end_of(c, p), *y = last == NULL ? NULL : end_of(c, last);
        if (p->is_read && y != NULL && last->at == p->at && x->run_bytes == y->run_bytes &&
            x->n_dims == y->n_dims &&
            (x->n_dims == 0 ||
             memcmp(c->dims + x->dims, c->dims + y->dims, 2 * x->n_dims * sizeof *c->dims) == 0)) {
            continue;
        }
        pieces[n_kept] = *p;
        last = p->is_read ? &pieces[n_kept] : last;
        n_kept++;
    }
    return n_kept;
}

/* Areas whose hulls meet, sorted. Groups within rows go by the same budget and give up with it. */
static ferry_status check_group(checker *c, piece *pieces, size_t n, uint32_t level,
                                ferry_error *error)
{
    bool done;
    if (level > 0) {
        ferry_status status = check_by_rows(c, pieces, n, level, &done, error);
        c->exhausted = c->exhausted || !done;
        return status;
    }
    n = drop_same_reads(c, pieces, n);
    uint64_t n_runs = count_runs(c, pieces, n);
    if (n_runs / FEW_RUNS <= n) {
        return merge(c, pieces, n, error);
    }
    c->budget = n_runs + LEAST_BUDGET;
    c->exhausted = false;
    ferry_status status = check_by_rows(c, pieces, n, 0, &done, error);
    return done ? status : merge(c, pieces, n, error);
}

/* Finds the groups of pieces whose hulls meet; a group of readers alone is fine. */
static ferry_status check(checker *c, piece *pieces, size_t n, uint32_t level, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    fy_sort(pieces, n, sizeof *pieces, compare_pieces);
    for (size_t i = 0, next; i < n && status == FERRY_OK && !c->found; i = next) {
        uint64_t end = pieces[i].at + pieces[i].extent;
        bool written = !pieces[i].is_read;
        for (next = i + 1; next < n && pieces[next].at < end; next++) {
            end = fy_max(end, pieces[next].at + pieces[next].extent);
            written = written || !pieces[next].is_read;
        }
        if (written && next - i > 1) {
            status = check_group(c, pieces + i, next - i, level, error);
        }
        if (level > 0 && c->exhausted) {
            break;
        }
    }
    return status;
}

/*
 * Ends
 */

static bool is_pair(const checker *c, const fy_end *end)
{
    return c->registry->held[end->held].back.base != NULL;
}

static uint64_t address_of(const checker *c, const fy_end *end, bool is_read)
{
    const fy_held *held = &c->registry->held[end->held];
    bool is_front = is_read || !is_pair(c, end);
    bool is_other = is_pair(c, end) && c->is_turned;
    const ferry_buffer *buffer = is_front != is_other ? &held->front : &held->back;
    return (uint64_t)(uintptr_t)buffer->base + end->offset;
}

static bool is_same_area(const checker *c, const fy_end *send, const fy_end *receive)
{
    const fy_registry *registry = c->registry;
    return send->conversion == 0 && address_of(c, send, true) == address_of(c, receive, false) &&
           send->run_bytes == receive->run_bytes && send->n_dims == receive->n_dims &&
           (send->n_dims == 0 || memcmp(registry->dims + send->dims, registry->dims + receive->dims,
                                        2 * send->n_dims * sizeof *registry->dims) == 0);
}

/*
 * A rank that sends a task to itself from where it receives it changes nothing: only its reading
 * counts, which still must not meet what others write. Not so of a pair: what its owner writes to
 * the source, between runs, readers of that buffer would see.
 */
static bool changes_nothing(const checker *c, uint32_t my_rank, const fy_end *receive)
{
    const fy_ends *sends = &c->registry->sends;
    bool may_stay = receive->peer == my_rank && !is_pair(c, receive);
    const fy_end *send = may_stay ? fy_ends_find(sends, my_rank, receive->task_id) : NULL;
    return send != NULL && is_same_area(c, send, receive);
}

/* Of an end that is written, is_kept: where its last version is, as long as it is one of a pair. */
static piece piece_of(const checker *c, uint32_t index, bool is_read, bool is_kept)
{
    const fy_registry *registry = c->registry;
    fy_end end = end_at(registry, index, is_read);
    uint64_t extent = end.run_bytes;
    for (uint32_t d = 0; d < end.n_dims; d++) {
        const uint64_t *length = registry->dims + end.dims + d;
        extent += (length[0] - 1) * length[end.n_dims];
    }
    return (piece){.at = address_of(c, &end, is_read || is_kept),
                   .extent = extent,
                   .end = index,
                   .is_read = is_read || is_kept,
                   .is_kept = is_kept};
}

static void describe(const checker *c, const piece *p, uint32_t my_rank, char *text,
                     size_t text_bytes)
{
    const fy_end *end = end_of(c, p);
    bool is_written = !p->is_read || p->is_kept;
    if (is_written && p->end >= c->registry->receives.n) {
        snprintf(text, text_bytes, "\"%.200s\", which rank %u makes itself,",
                 fy_held_name(c->registry, end->held), my_rank);
        return;
    }
    fy_end_describe(c->registry, end, !is_written, my_rank, text, text_bytes);
}

static ferry_status fail_pair(const checker *c, uint32_t my_rank, ferry_error *error)
{
    const piece *writer = c->first.is_read ? &c->second : &c->first;
    const piece *other = c->first.is_read ? &c->first : &c->second;
    const fy_end *second = end_of(c, other);
    char text[2][320];
    describe(c, writer, my_rank, text[0], sizeof text[0]);
    if (other->is_read && !other->is_kept && other->end >= c->registry->sends.n) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s writes bytes of \"%s\", of all of which scales are made: one of them "
                       "needs other memory",
                       text[0], c->registry->names + c->registry->held[second->held].name);
    }
    describe(c, other, my_rank, text[1], sizeof text[1]);
    const char *when = c->is_turned ? ", once buffers of pairs have changed places" : "";
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   other->is_kept ? "%s writes bytes in which %s has its last version%s: both "
                                    "buffers of a pair are for it alone"
                   : other->is_read
                       ? "%s writes bytes that %s reads%s: one of them needs other "
                         "memory"
                       : "%s and %s write the same bytes%s: a byte can have one writer",
                   text[0], text[1], when);
}

static void sort_dims(const fy_end *end, uint64_t *dims)
{
    uint64_t *length = dims + end->dims, *stride = length + end->n_dims;
    for (uint32_t i = 1; i < end->n_dims; i++) {
        uint64_t one_length = length[i], one_stride = stride[i];
        uint32_t at = i;
        for (; at > 0 && stride[at - 1] < one_stride; at--) {
            length[at] = length[at - 1];
            stride[at] = stride[at - 1];
        }
        length[at] = one_length;
        stride[at] = one_stride;
    }
}

/* What lies side by side in this order becomes one: of a transpose there is not a run for each
 * element. */
static void coalesce(fy_end *end, uint64_t *dims)
{
    uint64_t length[FERRY_MAX_DIMS], stride[FERRY_MAX_DIMS];
    uint32_t n = 0; /* fastest first */
    for (uint32_t d = end->n_dims; d-- > 0;) {
        uint64_t its = dims[end->dims + d], step = dims[end->dims + end->n_dims + d];
        if (n == 0 && step == end->run_bytes) {
            end->run_bytes *= its;
        } else if (n > 0 && step == length[n - 1] * stride[n - 1]) {
            length[n - 1] *= its;
        } else {
            length[n] = its;
            stride[n++] = step;
        }
    }
    end->n_dims = n;
    for (uint32_t d = 0; d < n; d++) {
        dims[end->dims + d] = length[n - 1 - d];
        dims[end->dims + n + d] = stride[n - 1 - d];
    }
}

/* Areas of which all runs are pieces stay as they are. */
static fy_end *copy_ends(checker *c, bool is_read, size_t *n_dims_inout)
{
    size_t n = n_ends(c->registry, is_read);
    fy_end *copy = fy_alloc(n + 1, sizeof *copy);
    for (size_t i = 0; copy != NULL && i < n; i++) {
        fy_end end = end_at(c->registry, i, is_read);
        fy_area area = fy_end_area(c->registry, &end);
        copy[i] = end;
        copy[i].dims = (uint32_t)*n_dims_inout;
        if (end.n_dims > 0) {
            memcpy(c->dims + copy[i].dims, c->registry->dims + end.dims,
                   2 * end.n_dims * sizeof *c->dims);
        }
        *n_dims_inout += 2 * (size_t)end.n_dims;
        if (end.n_dims > 0 && fy_area_is_nested(&area)) {
            sort_dims(&copy[i], c->dims);
            coalesce(&copy[i], c->dims);
        }
    }
    return copy;
}

static size_t count_dims(const fy_registry *registry, bool is_read)
{
    size_t n = 0;
    for (size_t i = 0; i < n_ends(registry, is_read); i++) {
        n += 2 * (size_t)end_at(registry, i, is_read).n_dims;
    }
    return n;
}

/* Which bytes an area has does not depend on the order of its dimensions, as its elements' does; in
 * this one its runs are in order of addresses. */
static ferry_status copy_areas(checker *c, ferry_error *error)
{
    size_t n_dims = count_dims(c->registry, true) + count_dims(c->registry, false);
    c->dims = fy_alloc(n_dims + 1, sizeof *c->dims);
    FY_TRY(fy_check_memory(c->dims != NULL, "the comparison of areas", error));
    n_dims = 0;
    c->sends = copy_ends(c, true, &n_dims);
    c->receives = copy_ends(c, false, &n_dims);
    return fy_check_memory(c->sends != NULL && c->receives != NULL, "the comparison of areas",
                           error);
}

typedef struct piece_list {
    piece *items;
    size_t n, capacity;
} piece_list;

/* An area; of one whose dimensions do not nest, so that no order of them is that of addresses, all
 * runs. */
static bool add_pieces(const checker *c, uint32_t index, bool is_read, bool is_kept,
                       piece_list *list)
{
    const fy_registry *registry = c->registry;
    fy_end end = end_at(registry, index, is_read);
    fy_area area = fy_end_area(registry, &end);
    piece whole = piece_of(c, index, is_read, is_kept);
    if (fy_area_is_nested(&area)) {
        bool has_room = FY_RESERVE(list->items, list->capacity, list->n + 1);
        if (has_room) {
            list->items[list->n++] = whole;
        }
        return has_room;
    }
    fy_area_walk walk = fy_area_walk_of(&area, 0, area.bytes);
    uint64_t at, n;
    while (fy_area_next(&walk, &at, &n)) {
        if (!FY_RESERVE(list->items, list->capacity, list->n + 1)) {
            return false;
        }
        piece run = whole;
        run.at = whole.at - area.offset + at;
        run.extent = n;
        run.dim = (uint16_t)end.n_dims;
        list->items[list->n++] = run;
    }
    return true;
}

/* Whether an end has bytes that count: not what fills read, which is ours, nor what changes
 * nothing. */
static bool counts(const checker *c, uint32_t my_rank, size_t index, bool is_read)
{
    const fy_registry *registry = c->registry;
    fy_end end = end_at(registry, index, is_read);
    if (end.held == FY_NONE || end.run_bytes == 0) {
        return false;
    }
    if (index >= (is_read ? registry->sends.n : registry->receives.n)) {
        return true;
    }
    return is_read ? !fy_end_fills(registry, &end)
                   : !changes_nothing(c, my_rank, &registry->receives.items[index]);
}

/*
 * One of a pair is written while the other one has the last version, which is whole as long as a
 * run has not ended: nobody else may write to that, either.
 */
static bool list_pieces(const checker *c, uint32_t my_rank, piece_list *list)
{
    bool ok = true;
    for (uint32_t i = 0; ok && i < n_ends(c->registry, true); i++) {
        ok = !counts(c, my_rank, i, true) || add_pieces(c, i, true, false, list);
    }
    for (uint32_t i = 0; ok && i < n_ends(c->registry, false); i++) {
        if (counts(c, my_rank, i, false)) {
            fy_end end = end_at(c->registry, i, false);
            ok = add_pieces(c, i, false, false, list) &&
                 (!is_pair(c, &end) || add_pieces(c, i, false, true, list));
        }
    }
    return ok;
}

static ferry_status check_state(const fy_registry *registry, uint32_t my_rank, bool is_turned,
                                ferry_error *error)
{
    piece_list list = {.items = NULL};
    checker c = {.registry = registry, .is_turned = is_turned};
    ferry_status status =
        fy_check_memory(list_pieces(&c, my_rank, &list), "the comparison of areas", error);
    FY_THEN(status, copy_areas(&c, error));
    FY_THEN(status, check(&c, list.items, list.n, 0, error));
    if (status == FERRY_OK && c.found) {
        status = fail_pair(&c, my_rank, error);
    }
    fy_free(c.sends);
    fy_free(c.receives);
    fy_free(c.dims);
    fy_free(list.items);
    return status;
}

ferry_status fy_check_writers(const fy_registry *registry, uint32_t my_rank, ferry_error *error)
{
    bool has_pairs = false;
    for (size_t i = 0; i < registry->n_held; i++) {
        has_pairs = has_pairs || registry->held[i].back.base != NULL;
    }
    if (registry->receives.n == 0) {
        return FERRY_OK;
    }
    FY_TRY(check_state(registry, my_rank, false, error));
    return has_pairs ? check_state(registry, my_rank, true, error) : FERRY_OK;
}
