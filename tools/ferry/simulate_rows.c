/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * How many rows the copies of a rank consist of: pieces that lie in one at both ends. Moves say how
 * long their boxes are, and shards what these are cut from. Of shards that are not alike, as where
 * a tensor is divided with a remainder, the first one that is met stands for all.
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

enum { MOST_COUNTED = 512, UNKNOWN = FERRY_MAX_DIMS + 1 };

struct simulate_rows {
    const ferry_plan *plan;
    shape_list shapes[2]; /* by side */
    counted known[MOST_COUNTED];
    size_t n_known;
    double all_rows, all_bytes; /* that come to these */
    uint32_t rank;              /* at hand */
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
static ferry_status look_up(simulate_rows *rows, ferry_side_role side, uint32_t rank,
                            const char *tensor, const shape **shape_out)
{
    shape_list *list = &rows->shapes[side];
    *shape_out = find_shape(list, tensor);
    if (*shape_out != NULL) {
        return FERRY_OK;
    }
    collecting c = {.list = list, .n_before = list->n, .error = rows->error};
    FY_TRY(ferry_plan_visit_shards(rows->plan, side, rank, take_shard, &c, rows->error));
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
    FY_TRY(look_up(rows, FERRY_SIDE_SOURCE, move->from, tensor, &its));
    if (its != NULL && its->n_dims == move->src_n_dims) {
        *row_out = row_of_shard(move->src_n_dims, move->src_length, its->local);
    }
    return FERRY_OK;
}

static ferry_status row_of_destination(simulate_rows *rows, const ferry_move *move,
                                       uint64_t *row_out)
{
    const shape *its = NULL;
    if (move->dst_parameter != NULL) {
        *row_out = row_of_box(move->n_dims, move->length, move->dst_strides);
        return FERRY_OK;
    }
    FY_TRY(look_up(rows, FERRY_SIDE_DESTINATION, move->to, move->tensor, &its));
    if (its != NULL && its->n_dims == move->n_dims) {
        *row_out = row_of_shard(move->n_dims, move->length, its->local);
    }
    return FERRY_OK;
}

static ferry_status take_move(void *context, const ferry_move *move)
{
    simulate_rows *rows = context;
    uint64_t n_elements = 1, n_at_source = 1, row[2];
    for (uint32_t d = 0; d < move->n_dims; d++) {
        n_elements *= move->length[d];
    }
    for (uint32_t d = 0; d < move->src_n_dims; d++) {
        n_at_source *= move->src_length[d];
    }
    row[0] = n_at_source; /* of what no shard is known it is one row */
    row[1] = n_elements;
    FY_TRY(row_of_source(rows, move, &row[0]));
    FY_TRY(row_of_destination(rows, move, &row[1]));
    double n[2] = {row[0] > 0 ? (double)n_at_source / (double)row[0] : 0,
                   row[1] > 0 ? (double)n_elements / (double)row[1] : 0};
    double most = n[0] > n[1] ? n[0] : n[1];
    if (move->to == rows->rank) {
        rows->rows.in += most;
    }
    if (move->from == rows->rank && move->to != rows->rank) {
        rows->rows.out += most;
    }
    return FERRY_OK;
}

static bool is_alike(const ferry_rank_bytes *a, const ferry_rank_bytes *b)
{
    return a->in == b->in && a->out == b->out && a->local == b->local && a->n_moves == b->n_moves;
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
        double per_byte = rows->all_bytes > 0 ? rows->all_rows / rows->all_bytes : 0;
        out->in = ((double)own.in + (double)own.local) * per_byte;
        out->out = (double)own.out * per_byte;
        return FERRY_OK;
    }
    rows->rank = rank;
    rows->rows = (simulate_row_counts){0};
    FY_TRY(ferry_plan_visit(rows->plan, rank, take_move, rows, NULL, rows->error));
    rows->known[rows->n_known++] = (counted){own, rows->rows};
    rows->all_bytes += (double)own.in + (double)own.local;
    rows->all_rows += rows->rows.in;
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
        free(rows->shapes[FERRY_SIDE_SOURCE].at);
        free(rows->shapes[FERRY_SIDE_DESTINATION].at);
        free(rows);
    }
}
