/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether boxes are a product of splits. For each kind of ranks the boxes must be all combinations
 * of some indices of each dimension, and along a dimension the indices of two kinds must be the
 * same or have none in common. That holds of whatever a mesh cuts, wherever it then lies in memory.
 */
#include "model/lower_boxes.h"

#include "base/checked.h"
#include "base/sort.h"

#include <string.h>

/* Indices of one dimension: runs, each a begin and an end, sorted and apart. */
typedef struct index_set {
    size_t first; /* into runs */
    uint32_t n;
} index_set;

typedef struct axis_sets {
    index_set *sets;
    size_t n_sets, set_capacity;
    uint64_t *runs; /* begin and end of each */
    size_t n_runs, run_capacity;
    fy_index index;
    uint32_t n_parts; /* with that of what no set has */
    uint32_t *part;   /* [n_sets] in the order of their first indices */
} axis_sets;

typedef struct producting {
    fy_extent_table *table;
    const fy_spots *spots;
    const fy_memory_tensor *held;
    uint32_t tensor;
    uint32_t n_dims;
    axis_sets axes[FERRY_MAX_DIMS];
    uint32_t *kind_sets;            /* [n_kinds * n_dims] */
    uint64_t *ends[FERRY_MAX_DIMS]; /* scratch: where boxes of a kind begin and end */
    size_t end_capacity[FERRY_MAX_DIMS];
    size_t n_ends[FERRY_MAX_DIMS];
    uint32_t *cells; /* scratch: how often each combination of stretches is there */
    size_t cell_capacity;
    bool is_product;
    uint32_t n_layers;
} producting;

static void producting_cleanup(producting *p)
{
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) {
        fy_free(p->axes[d].sets);
        fy_free(p->axes[d].runs);
        fy_free(p->axes[d].part);
        fy_index_cleanup(&p->axes[d].index);
        fy_free(p->ends[d]);
    }
    fy_free(p->kind_sets);
    fy_free(p->cells);
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The boxes of a kind of ranks into the table's scratch. */
static ferry_status list_boxes(producting *p, uint32_t kind, size_t *n_out, ferry_error *error)
{
    fy_extent_table *table = p->table;
    size_t n = 0, n_dims = p->n_dims;
    for (uint32_t i = p->spots->kind_begin[kind]; i < p->spots->kind_begin[kind + 1]; i++) {
        const fy_stock *stock =
            &table->memory->stocks[p->held->first_stock + p->spots->kind_lists[i]];
        size_t needed = (n + stock->n_boxes) * n_dims + 1;
        if (!FY_RESERVE(table->begin, table->begin_capacity, needed) ||
            !FY_RESERVE(table->length, table->length_capacity, needed)) {
            return fy_fail_no_memory(error, "the boxes of a tensor");
        }
        for (uint32_t k = 0; k < stock->n_boxes; k++, n++) {
            const fy_memory_box *box = &table->memory->boxes[stock->first_box + k];
            memcpy(table->begin + n * n_dims, box->numbers, n_dims * sizeof *box->numbers);
            memcpy(table->length + n * n_dims, fy_memory_shape(box), n_dims * sizeof *box->numbers);
        }
    }
    *n_out = n;
    return FERRY_OK;
}

/* Where boxes begin and end along a dimension, sorted, each once. */
static ferry_status list_ends(producting *p, uint32_t d, size_t n, ferry_error *error)
{
    FY_TRY(FY_GROW(p->ends[d], p->end_capacity[d], 2 * n, "the boxes of a tensor", error));
    uint64_t *ends = p->ends[d];
    for (size_t i = 0; i < n; i++) {
        size_t at = i * p->n_dims + d;
        ends[2 * i] = p->table->begin[at];
        ends[2 * i + 1] = p->table->begin[at] + p->table->length[at];
    }
    fy_sort(ends, 2 * n, sizeof *ends, compare_u64);
    size_t kept = 0;
    for (size_t i = 0; i < 2 * n; i++) {
        if (kept == 0 || ends[kept - 1] != ends[i]) {
            ends[kept++] = ends[i];
        }
    }
    p->n_ends[d] = kept;
    return FERRY_OK;
}

static size_t stretch_at(const producting *p, uint32_t d, uint64_t index)
{
    const uint64_t *ends = p->ends[d];
    FY_BISECT(size_t, low, 0, p->n_ends[d], middle, ends[middle] < index);
    return low;
}

/* Counts the box in all combinations of stretches that it has. */
static void mark_box(producting *p, size_t box)
{
    size_t first[FERRY_MAX_DIMS], end[FERRY_MAX_DIMS], at[FERRY_MAX_DIMS];
    for (uint32_t d = 0; d < p->n_dims; d++) {
        size_t number = box * p->n_dims + d;
        first[d] = stretch_at(p, d, p->table->begin[number]);
        end[d] = stretch_at(p, d, p->table->begin[number] + p->table->length[number]);
        at[d] = first[d];
    }
    for (;;) {
        size_t cell = 0;
        for (uint32_t d = 0; d < p->n_dims; d++) {
            cell = cell * (p->n_ends[d] - 1) + at[d];
        }
        p->cells[cell]++;
        uint32_t d = p->n_dims;
        for (; d > 0; d--) {
            if (++at[d - 1] < end[d - 1]) {
                break;
            }
            at[d - 1] = first[d - 1];
        }
        if (d == 0) {
            return;
        }
    }
}

/* Which stretches of each dimension are there, if those and no others make all combinations. */
static bool read_cells(producting *p, size_t n_cells, bool *used[FERRY_MAX_DIMS],
                       uint32_t *times_out)
{
    size_t n_there = 0, n_wanted = 1;
    for (size_t cell = 0; cell < n_cells; cell++) {
        size_t rest = cell;
        uint32_t times = p->cells[cell];
        if (times == 0) {
            continue;
        }
        if (n_there == 0) {
            *times_out = times;
        }
        if (p->table->is_destination && times != *times_out) {
            return false;
        }
        n_there++;
        for (uint32_t d = p->n_dims; d > 0; d--) {
            used[d - 1][rest % (p->n_ends[d - 1] - 1)] = true;
            rest /= p->n_ends[d - 1] - 1;
        }
    }
    for (uint32_t d = 0; d < p->n_dims; d++) {
        size_t n = 0;
        for (size_t i = 0; i + 1 < p->n_ends[d]; i++) {
            n += used[d][i];
        }
        n_wanted *= n;
    }
    return n_there == n_wanted;
}

static uint32_t find_set(const axis_sets *axis, const uint64_t *runs, size_t n, uint64_t hash)
{
    fy_index_cursor c = fy_index_first(&axis->index, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&axis->index, &c)) {
        const index_set *set = &axis->sets[c.value];
        if (set->n == n && memcmp(axis->runs + 2 * set->first, runs, 2 * n * sizeof *runs) == 0) {
            break;
        }
    }
    return c.value;
}

/* The number of the set of stretches that are used; those that touch are one run. */
static ferry_status add_set(producting *p, uint32_t d, const bool *used, uint32_t *number_out,
                            ferry_error *error)
{
    axis_sets *axis = &p->axes[d];
    const uint64_t *ends = p->ends[d];
    FY_TRY(FY_GROW(axis->runs, axis->run_capacity, 2 * (axis->n_runs + p->n_ends[d]),
                   "the boxes of a tensor", error));
    uint64_t *runs = axis->runs + 2 * axis->n_runs;
    size_t n = 0;
    for (size_t i = 0; i + 1 < p->n_ends[d]; i++) {
        if (!used[i]) {
            continue;
        }
        if (n > 0 && runs[2 * n - 1] == ends[i]) {
            runs[2 * n - 1] = ends[i + 1];
        } else {
            runs[2 * n] = ends[i];
            runs[2 * n++ + 1] = ends[i + 1];
        }
    }
    uint64_t hash = fy_hash64(runs, 2 * n * sizeof *runs);
    *number_out = find_set(axis, runs, n, hash);
    if (*number_out != FY_INDEX_NONE) {
        return FERRY_OK;
    }
    *number_out = (uint32_t)axis->n_sets;
    FY_TRY(
        FY_GROW(axis->sets, axis->set_capacity, axis->n_sets + 1, "the boxes of a tensor", error));
    axis->sets[axis->n_sets++] = (index_set){.first = axis->n_runs, .n = (uint32_t)n};
    axis->n_runs += n;
    return fy_check_memory(fy_index_insert(&axis->index, hash, *number_out),
                           "the boxes of a tensor", error);
}

static ferry_status note_sets(producting *p, uint32_t kind, size_t n_cells, uint32_t *times_out,
                              ferry_error *error)
{
    bool *used[FERRY_MAX_DIMS] = {NULL}, *all;
    size_t n = 0;
    for (uint32_t d = 0; d < p->n_dims; d++) {
        n += p->n_ends[d];
    }
    all = fy_alloc_zeroed(n + 1, sizeof *all);
    FY_TRY(fy_check_memory(all != NULL, "the boxes of a tensor", error));
    n = 0;
    for (uint32_t d = 0; d < p->n_dims; d++) {
        used[d] = all + n;
        n += p->n_ends[d];
    }
    p->is_product = read_cells(p, n_cells, used, times_out);
    ferry_status status = FERRY_OK;
    for (uint32_t d = 0; d < p->n_dims && p->is_product && status == FERRY_OK; d++) {
        status = add_set(p, d, used[d], &p->kind_sets[(size_t)kind * p->n_dims + d], error);
    }
    fy_free(all);
    return status;
}

/* The sets of a kind; is_product is false after it where its boxes are none. */
static ferry_status look_at_kind(producting *p, uint32_t kind, ferry_error *error)
{
    size_t n = 0, n_cells = 1;
    uint32_t times = 1;
    FY_TRY(list_boxes(p, kind, &n, error));
    for (uint32_t d = 0; d < p->n_dims; d++) {
        FY_TRY(list_ends(p, d, n, error));
        n_cells *= p->n_ends[d] - 1;
        if (n_cells > 16 * n + 64) { /* boxes that are apart in most places: no product */
            p->is_product = false;
            return FERRY_OK;
        }
    }
    FY_TRY(FY_GROW(p->cells, p->cell_capacity, n_cells, "the boxes of a tensor", error));
    memset(p->cells, 0, n_cells * sizeof *p->cells);
    for (size_t i = 0; i < n; i++) {
        mark_box(p, i);
    }
    FY_TRY(note_sets(p, kind, n_cells, &times, error));
    times = p->table->is_destination ? times : 1;
    p->is_product = p->is_product && (kind == 0 || times == p->n_layers);
    p->n_layers = times;
    return FERRY_OK;
}

typedef struct placed_run {
    uint64_t begin;
    uint64_t end;
    uint32_t set;
} placed_run;

static int compare_runs(const void *a, const void *b)
{
    const placed_run *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* The pieces of a split from runs that are sorted; false: two have an index in common. */
static bool cut_axis(axis_sets *axis, const placed_run *runs, size_t n, uint64_t extent,
                     fy_split_piece *pieces, size_t *n_pieces_out)
{
    uint64_t at = 0;
    size_t n_pieces = 0;
    uint32_t n_parts = 0;
    bool has_gap = false;
    memset(axis->part, 0xff, axis->n_sets * sizeof *axis->part);
    for (size_t i = 0; i < n; i++) {
        if (runs[i].begin < at) {
            return false;
        }
        uint32_t *part = &axis->part[runs[i].set];
        *part = *part == FY_NONE ? n_parts++ : *part;
        at = runs[i].end;
    }
    at = 0;
    for (size_t i = 0; i <= n; i++) {
        uint64_t begin = i < n ? runs[i].begin : extent;
        if (begin > at) { /* what nobody has is one more part */
            pieces[n_pieces++] = (fy_split_piece){.length = begin - at, .part = n_parts};
            has_gap = true;
        }
        if (i < n) {
            pieces[n_pieces++] =
                (fy_split_piece){.length = runs[i].end - begin, .part = axis->part[runs[i].set]};
            at = runs[i].end;
        }
    }
    axis->n_parts = n_parts + has_gap;
    *n_pieces_out = n_pieces;
    return true;
}

static ferry_status make_split(producting *p, uint32_t d, uint32_t *split_out, ferry_error *error)
{
    axis_sets *axis = &p->axes[d];
    uint64_t extent = fy_extents_tensor(p->table, p->tensor)->shape[d];
    size_t n = axis->n_runs, n_pieces = 0;
    placed_run *runs = fy_alloc(n, sizeof *runs);
    fy_split_piece *pieces = fy_alloc(2 * n + 1, sizeof *pieces);
    axis->part = fy_alloc(axis->n_sets, sizeof *axis->part);
    ferry_status status = fy_check_memory(runs != NULL && pieces != NULL && axis->part != NULL,
                                          "the boxes of a tensor", error);
    fy_split *split = NULL;
    for (uint32_t set = 0; status == FERRY_OK && set < axis->n_sets; set++) {
        for (size_t i = axis->sets[set].first; i < axis->sets[set].first + axis->sets[set].n; i++) {
            runs[i] =
                (placed_run){.begin = axis->runs[2 * i], .end = axis->runs[2 * i + 1], .set = set};
        }
    }
    if (status == FERRY_OK) {
        fy_sort(runs, n, sizeof *runs, compare_runs);
        p->is_product = cut_axis(axis, runs, n, extent, pieces, &n_pieces);
    }
    if (status == FERRY_OK && p->is_product) {
        status = fy_split_pieces(axis->n_parts, pieces, n_pieces, &split, error);
        FY_THEN(status, fy_problem_add_split(p->table->problem, split, split_out, error));
    }
    fy_free(runs);
    fy_free(pieces);
    return status;
}

static ferry_status make_holders(producting *p, uint64_t n_cells, uint32_t *number_out,
                                 ferry_error *error)
{
    const fy_spots *spots = p->spots;
    fy_holder *entries = fy_alloc(spots->n_ranks, sizeof *entries);
    fy_holders *holders = NULL;
    FY_TRY(fy_check_memory(entries != NULL, "the holders of a tensor", error));
    for (uint32_t i = 0; i < spots->n_ranks; i++) {
        uint64_t cell = 0;
        for (uint32_t d = 0; d < p->n_dims; d++) {
            const axis_sets *axis = &p->axes[d];
            uint32_t set = p->kind_sets[(size_t)spots->kinds[i] * p->n_dims + d];
            cell = cell * axis->n_parts + axis->part[set];
        }
        entries[i] = (fy_holder){.rank = spots->ranks[i], .cell = (uint32_t)cell};
    }
    ferry_status status =
        fy_holders_create((uint32_t)n_cells, entries, spots->n_ranks, &holders, error);
    fy_free(entries);
    FY_THEN(status, fy_problem_add_holders(p->table->problem, holders, number_out, error));
    return status;
}

static ferry_status make_placement(producting *p, uint32_t *placement_out, ferry_error *error)
{
    const fy_tensor *tensor = fy_extents_tensor(p->table, p->tensor);
    fy_layout layout = {.n_dims = p->n_dims};
    uint64_t n_cells = 1;
    uint32_t holders = 0;
    for (uint32_t d = 0; d < p->n_dims && p->is_product; d++) {
        layout.shape[d] = tensor->shape[d];
        FY_TRY(make_split(p, d, &layout.split[d], error));
        layout.is_cut = layout.is_cut || p->axes[d].n_parts > 1;
        n_cells *= p->axes[d].n_parts;
        /* Most of such cells would be nobody's. */
        p->is_product = p->is_product && n_cells <= 16 * (uint64_t)p->spots->n_ranks + 64;
    }
    if (!p->is_product) {
        return FERRY_OK;
    }
    FY_TRY(make_holders(p, n_cells, &holders, error));
    return fy_problem_add_placement(p->table->problem, &layout, holders, NULL, placement_out,
                                    error);
}

ferry_status fy_extents_as_product(fy_extent_table *table, uint32_t tensor, uint32_t *placement_out,
                                   uint32_t *n_layers_out, ferry_error *error)
{
    const fy_memory_tensor *held = &table->memory->tensors[tensor];
    producting p = {.table = table,
                    .spots = &table->memory->spots[held->spots],
                    .held = held,
                    .tensor = tensor,
                    .n_dims = fy_extents_tensor(table, tensor)->n_dims,
                    .is_product = true};
    *placement_out = FY_NONE;
    p.kind_sets = fy_alloc((size_t)p.spots->n_kinds * p.n_dims + 1, sizeof *p.kind_sets);
    ferry_status status = fy_check_memory(p.kind_sets != NULL, "the boxes of a tensor", error);
    for (uint32_t kind = 0; kind < p.spots->n_kinds && p.is_product && status == FERRY_OK; kind++) {
        status = look_at_kind(&p, kind, error);
    }
    if (p.is_product && status == FERRY_OK) {
        status = make_placement(&p, placement_out, error);
        *n_layers_out = p.n_layers;
    }
    producting_cleanup(&p);
    return status;
}
