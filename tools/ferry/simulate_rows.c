/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What the copies of a rank consist of: pieces of tensors, which their sender may have in many
 * rows. That is what reading waits for; to write into rows takes no longer than to write one piece.
 * Moves say how long their boxes are, and shards what these are cut from. Of shards that are not
 * alike, as where a tensor is divided with a remainder, the first one that is met stands for all.
 */
#include "simulate.h"

#include "steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    const char *tensor; /* of the plan */
    uint32_t n_dims;
    uint64_t local[FERRY_MAX_DIMS];
} shape;

typedef struct shape_list {
    shape *at; /* sorted by tensor */
    size_t n, capacity;
} shape_list;

/*
 * What a rank is known by. Of so many ranks that not all are looked at, those with as much of
 * everything are taken to have as many rows, and those beyond the list as many for their bytes as
 * those in it.
 */
typedef struct counted {
    ferry_rank_bytes bytes;
    simulate_row_counts rows;
} counted;

enum {
    MOST_COUNTED = 512,
    UNKNOWN = FERRY_MAX_DIMS + 1,
    LONG_ROW = 65536 /* bytes: half of a row so long counts, of a shorter one more */
};

struct simulate_rows {
    const ferry_plan *plan;
    shape_list shapes; /* of senders */
    counted known[MOST_COUNTED];
    size_t n_known;
    simulate_rows_copied all; /* that come to these */
    double all_bytes;         /* likewise */
    uint32_t rank;            /* at hand */
    simulate_row_counts rows;
    ferry_error *error;
};

static ferry_status fail_memory(ferry_error *error)
{
    snprintf(error->message, sizeof error->message, "no memory for the shapes of shards");
    return FERRY_ERR_NO_MEMORY;
}

/* ---- shapes ---- */

static int compare_shapes(const void *a, const void *b)
{
    return strcmp(((const shape *)a)->tensor, ((const shape *)b)->tensor);
}

static const shape *find_shape(const shape_list *list, const char *tensor)
{
    shape wanted = {.tensor = tensor};
    return list->n == 0 ? NULL
                        : bsearch(&wanted, list->at, list->n, sizeof *list->at, compare_shapes);
}

static ferry_status add_shape(shape_list *list, const shape *its, ferry_error *error)
{
    if (list->n == list->capacity) {
        size_t capacity = 2 * list->capacity + 64;
        shape *grown = realloc(list->at, capacity * sizeof *grown);
        if (grown == NULL) {
            return fail_memory(error);
        }
        list->at = grown;
        list->capacity = capacity;
    }
    list->at[list->n++] = *its;
    return FERRY_OK;
}

typedef struct collecting {
    shape_list *list;
    size_t n_before; /* those that are sorted, and known */
    ferry_error *error;
} collecting;

static ferry_status take_shard(void *context, const ferry_shard *shard)
{
    collecting *c = context;
    shape_list sorted = {.at = c->list->at, .n = c->n_before};
    if (shard->is_parameter || find_shape(&sorted, shard->tensor) != NULL) {
        return FERRY_OK;
    }
    shape its = {.tensor = shard->tensor, .n_dims = shard->n_dims};
    memcpy(its.local, shard->local, shard->n_dims * sizeof *its.local);
    return add_shape(c->list, &its, c->error);
}

/* The shape of the tensor on a rank that holds it, with those of all others that it holds. */
static ferry_status look_up(simulate_rows *rows, uint32_t rank, const char *tensor,
                            const shape **shape_out)
{
    shape_list *list = &rows->shapes;
    *shape_out = find_shape(list, tensor);
    if (*shape_out != NULL) {
        return FERRY_OK;
    }
    collecting c = {.list = list, .n_before = list->n, .error = rows->error};
    FY_TRY(
        ferry_plan_visit_shards(rows->plan, FERRY_SIDE_SOURCE, rank, take_shard, &c, rows->error));
    qsort(list->at, list->n, sizeof *list->at, compare_shapes);
    if (find_shape(list, tensor) == NULL) { /* and nobody looks for it again */
        FY_TRY(add_shape(list, &(shape){.tensor = tensor, .n_dims = UNKNOWN}, rows->error));
        qsort(list->at, list->n, sizeof *list->at, compare_shapes);
    }
    *shape_out = find_shape(list, tensor);
    return FERRY_OK;
}

/* ---- rows ---- */

/* Elements of a box that lie behind one another: dimensions are joined from the last one on. */
static uint64_t row_of_shard(uint32_t n_dims, const uint64_t *length, const uint64_t *local)
{
    uint64_t row = 1;
    for (uint32_t d = n_dims; d-- > 0;) {
        row *= length[d];
        if (length[d] != local[d]) {
            break;
        }
    }
    return row;
}

static uint64_t row_of_box(uint32_t n_dims, const uint64_t *length, const uint64_t *strides)
{
    uint64_t row = 1;
    for (uint32_t d = n_dims; d-- > 0;) {
        if (length[d] != 1 && strides[d] != row) {
            break;
        }
        row *= length[d];
    }
    return row;
}

static ferry_status row_of_source(simulate_rows *rows, const ferry_move *move, uint64_t *row_out)
{
    const shape *its = NULL;
    if (move->src_parameter != NULL) {
        *row_out = row_of_box(move->src_n_dims, move->src_length, move->src_strides);
        return FERRY_OK;
    }
    const char *tensor = move->source != NULL ? move->source : move->tensor;
    FY_TRY(look_up(rows, move->from, tensor, &its));
    if (its != NULL && its->n_dims == move->src_n_dims) {
        *row_out = row_of_shard(move->src_n_dims, move->src_length, its->local);
    }
    return FERRY_OK;
}

static void count(simulate_rows_copied *copied, double row_bytes, double cast_bytes)
{
    copied->pieces++;
    copied->row_bytes += row_bytes;
    copied->cast_bytes += cast_bytes;
}

static ferry_status take_move(void *context, const ferry_move *move)
{
    simulate_rows *rows = context;
    uint64_t n_elements = 1, row;
    for (uint32_t d = 0; d < move->src_n_dims; d++) {
        n_elements *= move->src_length[d];
    }
    row = n_elements; /* of what no shard is known it is one row */
    FY_TRY(row_of_source(rows, move, &row));
    double n_rows = row > 0 ? (double)n_elements / (double)row : 0, bytes = (double)move->bytes;
    double row_bytes = n_rows > 1 ? bytes * LONG_ROW / (LONG_ROW + bytes / n_rows) : 0;
    double bits = move->src_dtype.element_bits + move->dst_dtype.element_bits;
    double cast_bytes = move->conversion == NULL ? 0 : (double)n_elements * bits / 16;
    if (move->to == rows->rank) {
        count(&rows->rows.in, row_bytes, cast_bytes);
    }
    if (move->from == rows->rank && move->to != rows->rank) {
        count(&rows->rows.out, row_bytes, cast_bytes);
    }
    return FERRY_OK;
}

static bool is_alike(const ferry_rank_bytes *a, const ferry_rank_bytes *b)
{
    return a->in == b->in && a->out == b->out && a->local == b->local && a->n_moves == b->n_moves;
}

/* As of those that were looked at, by bytes. */
static simulate_rows_copied share_of(const simulate_rows *rows, double bytes)
{
    double share = rows->all_bytes > 0 ? bytes / rows->all_bytes : 0;
    return (simulate_rows_copied){rows->all.pieces * share, rows->all.row_bytes * share,
                                  rows->all.cast_bytes * share};
}

ferry_status simulate_count_rows(simulate_rows *rows, uint32_t rank, simulate_row_counts *out)
{
    ferry_rank_bytes own = FERRY_RANK_BYTES_INIT;
    FY_TRY(ferry_plan_get_rank_bytes(rows->plan, rank, &own, rows->error));
    bool is_one_by_one = ferry_plan_rank_count(rows->plan) <= MOST_COUNTED;
    for (size_t i = 0; i < rows->n_known && !is_one_by_one; i++) {
        if (is_alike(&rows->known[i].bytes, &own)) {
            *out = rows->known[i].rows;
            return FERRY_OK;
        }
    }
    if (rows->n_known == MOST_COUNTED) {
        out->in = share_of(rows, (double)own.in + (double)own.local);
        out->out = share_of(rows, (double)own.out);
        return FERRY_OK;
    }
    rows->rank = rank;
    rows->rows = (simulate_row_counts){.in = {.pieces = 0}};
    FY_TRY(ferry_plan_visit(rows->plan, rank, take_move, rows, NULL, rows->error));
    rows->known[rows->n_known++] = (counted){own, rows->rows};
    rows->all_bytes += (double)own.in + (double)own.local;
    rows->all.pieces += rows->rows.in.pieces;
    rows->all.row_bytes += rows->rows.in.row_bytes;
    rows->all.cast_bytes += rows->rows.in.cast_bytes;
    *out = rows->rows;
    return FERRY_OK;
}

ferry_status simulate_open_rows(const ferry_plan *plan, simulate_rows **rows_out,
                                ferry_error *error)
{
    simulate_rows *rows = calloc(1, sizeof *rows);
    if (rows == NULL) {
        return fail_memory(error);
    }
    rows->plan = plan;
    rows->error = error;
    *rows_out = rows;
    return FERRY_OK;
}

void simulate_close_rows(simulate_rows *rows)
{
    if (rows != NULL) {
        free(rows->shapes.at);
        free(rows);
    }
}
