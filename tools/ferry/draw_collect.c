/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry draw: from a plan of one destination tensor to boxes of matrices. */
#include "draw.h"
#include "steps.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Folded indices [local, local + length) of a shard are [global, global + length) of the tensor. */
typedef struct run {
    uint64_t local;
    uint64_t global;
    uint64_t length;
} run;

typedef struct runs {
    run *at;
    size_t n;
    size_t capacity;
} runs;

/* What one rank holds of a tensor, as runs of rows and runs of columns. */
typedef struct shard_map {
    const char *tensor; /* NULL where the rank holds nothing */
    uint32_t n_dims;
    uint64_t local[FERRY_MAX_DIMS];
    uint64_t n_rows; /* of the whole tensor, folded */
    uint64_t n_columns;
    runs rows;
    runs columns;
} shard_map;

typedef struct collecting {
    draw_picture *picture;
    ferry_side_role side;
    uint32_t rank;
    shard_map map; /* of the shard in hand */
    draw_boxes held;
    draw_boxes fills;
    ferry_error *error;
} collecting;

static ferry_status fail_memory(ferry_error *error)
{
    snprintf(error->message, sizeof error->message, "no memory for the boxes of a picture");
    return FERRY_ERR_NO_MEMORY;
}

static ferry_status fail_fine(const char *tensor, ferry_error *error)
{
    snprintf(error->message, sizeof error->message,
             "\"%.400s\" is cut into more than %d boxes, too fine for a picture: choose another "
             "tensor with --tensor",
             tensor, DRAW_MOST_BOXES);
    return FERRY_ERR_UNSUPPORTED;
}

/* Room for one more in an array; NULL where there is no memory, and the array stays as it was. */
static void *grow(void *array, size_t n, size_t *capacity, size_t bytes)
{
    if (n < *capacity) {
        return array;
    }
    size_t more = *capacity == 0 ? 16 : *capacity * 2;
    void *grown = realloc(array, more * bytes);
    if (grown != NULL) {
        *capacity = more;
    }
    return grown;
}

static ferry_status add_run(runs *list, run one, const char *tensor, ferry_error *error)
{
    run *last = list->n == 0 ? NULL : &list->at[list->n - 1];
    if (last != NULL && last->local + last->length == one.local &&
        last->global + last->length == one.global) {
        last->length += one.length;
        return FERRY_OK;
    }
    if (list->n == DRAW_MOST_BOXES) {
        return fail_fine(tensor, error);
    }
    run *grown = grow(list->at, list->n, &list->capacity, sizeof *grown);
    if (grown == NULL) {
        return fail_memory(error);
    }
    list->at = grown;
    list->at[list->n++] = one;
    return FERRY_OK;
}

static ferry_status add_box(draw_boxes *list, draw_box box, const char *tensor, ferry_error *error)
{
    if (list->n == DRAW_MOST_BOXES) {
        return fail_fine(tensor, error);
    }
    draw_box *grown = grow(list->at, list->n, &list->capacity, sizeof *grown);
    if (grown == NULL) {
        return fail_memory(error);
    }
    list->at = grown;
    list->at[list->n++] = box;
    return FERRY_OK;
}

/* A tensor without dimensions is one cell, one of one dimension is a row. */
static uint32_t n_row_dims(uint32_t n_dims)
{
    return n_dims == 0 ? 0 : n_dims - 1;
}

static bool is_whole(const ferry_shard *shard, uint32_t dim)
{
    return shard->local[dim] == shard->global[dim];
}

/* The rows of dimensions dim and above, whose folded outer indices are local and global. Where all
 * that lies below is whole, a piece is one run; else each of its indices has runs of its own. */
static ferry_status add_rows(shard_map *map, const ferry_shard *shard, uint32_t dim, uint64_t local,
                             uint64_t global, ferry_error *error)
{
    uint32_t n = n_row_dims(shard->n_dims);
    if (dim == n) {
        return add_run(&map->rows, (run){local, global, 1}, shard->tensor, error);
    }
    bool simple = true;
    uint64_t below = 1;
    for (uint32_t d = dim + 1; d < n; d++) {
        simple = simple && is_whole(shard, d);
        below *= shard->global[d];
    }
    ferry_status status = FERRY_OK;
    size_t pieces = ferry_shard_piece_count(shard, dim);
    for (size_t i = 0; status == FERRY_OK && i < pieces; i++) {
        uint64_t begin = 0, at = 0, length = 0;
        status = ferry_shard_piece_at(shard, dim, i, &begin, &at, &length, error);
        uint64_t first = local * shard->local[dim] + begin;
        uint64_t place = global * shard->global[dim] + at;
        if (status == FERRY_OK && simple) {
            run one = {first * below, place * below, length * below};
            status = add_run(&map->rows, one, shard->tensor, error);
            continue;
        }
        for (uint64_t k = 0; status == FERRY_OK && k < length; k++) {
            status = add_rows(map, shard, dim + 1, first + k, place + k, error);
        }
    }
    return status;
}

static ferry_status add_columns(shard_map *map, const ferry_shard *shard, ferry_error *error)
{
    if (shard->n_dims == 0) {
        return add_run(&map->columns, (run){0, 0, 1}, shard->tensor, error);
    }
    uint32_t dim = shard->n_dims - 1;
    ferry_status status = FERRY_OK;
    size_t pieces = ferry_shard_piece_count(shard, dim);
    for (size_t i = 0; status == FERRY_OK && i < pieces; i++) {
        run one = {0, 0, 0};
        status = ferry_shard_piece_at(shard, dim, i, &one.local, &one.global, &one.length, error);
        FY_THEN(status, add_run(&map->columns, one, shard->tensor, error));
    }
    return status;
}

static ferry_status make_map(shard_map *map, const ferry_shard *shard, ferry_error *error)
{
    map->tensor = shard->tensor;
    map->n_dims = shard->n_dims;
    map->rows.n = 0;
    map->columns.n = 0;
    map->n_rows = 1;
    map->n_columns = shard->n_dims == 0 ? 1 : shard->global[shard->n_dims - 1];
    memcpy(map->local, shard->local, sizeof map->local);
    for (uint32_t d = 0; d < n_row_dims(shard->n_dims); d++) {
        map->n_rows *= shard->global[d];
    }
    FY_TRY(add_columns(map, shard, error));
    return add_rows(map, shard, 0, 0, 0, error);
}

/* The part of a run that lies in [begin, end) of the shard, in the tensor's indices. */
static bool clip(const run *one, uint64_t begin, uint64_t end, uint64_t *at_out,
                 uint64_t *length_out)
{
    uint64_t first = one->local > begin ? one->local : begin;
    uint64_t last = one->local + one->length < end ? one->local + one->length : end;
    *at_out = one->global + (first - one->local);
    *length_out = last > first ? last - first : 0;
    return last > first;
}

/* Local rows [row, row_end) and columns [column, column_end) of the shard in hand. */
static ferry_status add_local(collecting *c, draw_boxes *list, uint32_t from, const uint64_t *rows,
                              const uint64_t *columns)
{
    draw_box box = {.rank = c->rank, .from = from};
    ferry_status status = FERRY_OK;
    for (size_t i = 0; status == FERRY_OK && i < c->map.rows.n; i++) {
        if (!clip(&c->map.rows.at[i], rows[0], rows[1], &box.row, &box.n_rows)) {
            continue;
        }
        for (size_t k = 0; status == FERRY_OK && k < c->map.columns.n; k++) {
            if (clip(&c->map.columns.at[k], columns[0], columns[1], &box.column, &box.n_columns)) {
                status = add_box(list, box, c->map.tensor, c->error);
            }
        }
    }
    return status;
}

/* Elements [begin, end) of the shard in row-major order: the end of a row, whole rows, and the
 * beginning of one. */
static ferry_status add_flat(collecting *c, draw_boxes *list, uint64_t begin, uint64_t end)
{
    uint64_t width = c->map.n_dims == 0 ? 1 : c->map.local[c->map.n_dims - 1];
    ferry_status status = FERRY_OK;
    while (status == FERRY_OK && begin < end) {
        uint64_t row = begin / width, column = begin % width;
        bool part = column != 0 || end - begin < width;
        uint64_t n_rows = part ? 1 : (end - begin) / width;
        uint64_t n_columns = !part                          ? width
                             : end - begin < width - column ? end - begin
                                                            : width - column;
        status = add_local(c, list, c->rank, (uint64_t[]){row, row + n_rows},
                           (uint64_t[]){column, column + n_columns});
        begin += n_rows * n_columns;
    }
    return status;
}

/* The box of a move, whose rows may lie apart where inner dimensions are not whole. */
static ferry_status add_move(collecting *c, const ferry_move *move, uint32_t dim, uint64_t folded)
{
    uint32_t n = n_row_dims(move->n_dims);
    uint64_t columns[2] = {0, 1};
    if (move->n_dims > 0) {
        columns[0] = move->dst_begin[n];
        columns[1] = move->dst_begin[n] + move->length[n];
    }
    bool simple = true;
    uint64_t below = 1;
    for (uint32_t d = dim + 1; d < n; d++) {
        simple = simple && move->length[d] == c->map.local[d];
        below *= c->map.local[d];
    }
    if (dim >= n) {
        return add_local(c, &c->fills, move->from, (uint64_t[]){folded, folded + 1}, columns);
    }
    uint64_t first = folded * c->map.local[dim] + move->dst_begin[dim];
    if (simple) {
        return add_local(c, &c->fills, move->from,
                         (uint64_t[]){first * below, (first + move->length[dim]) * below}, columns);
    }
    for (uint64_t k = 0; k < move->length[dim]; k++) {
        FY_TRY(add_move(c, move, dim + 1, first + k));
    }
    return FERRY_OK;
}

static bool overlap(const draw_box *a, const draw_box *b)
{
    return a->row < b->row + b->n_rows && b->row < a->row + a->n_rows &&
           a->column < b->column + b->n_columns && b->column < a->column + a->n_columns;
}

static bool has_room(const draw_matrix *matrix, const draw_boxes *boxes)
{
    for (size_t i = 0; i < matrix->held.n; i++) {
        for (size_t k = 0; k < boxes->n; k++) {
            if (overlap(&matrix->held.at[i], &boxes->at[k])) {
                return false;
            }
        }
    }
    return true;
}

/* The first copy of the tensor that has room for the rank's boxes; NULL where it is not drawn. */
static draw_matrix *find_matrix(draw_side *side, const shard_map *map, const draw_boxes *boxes)
{
    size_t copy = 0;
    for (size_t i = 0; i < side->n; i++) {
        draw_matrix *matrix = &side->matrices[i];
        if (strcmp(matrix->tensor, map->tensor) == 0) {
            if (has_room(matrix, boxes)) {
                return matrix;
            }
            copy++;
        }
    }
    if (copy == DRAW_MOST_COPIES || side->n == DRAW_MOST_MATRICES) {
        return NULL;
    }
    draw_matrix *matrix = &side->matrices[side->n++];
    matrix->tensor = map->tensor;
    matrix->n_rows = map->n_rows;
    matrix->n_columns = map->n_columns;
    matrix->copy = copy;
    return matrix;
}

static ferry_status append(draw_boxes *to, const draw_boxes *from, const char *tensor,
                           ferry_error *error)
{
    for (size_t i = 0; i < from->n; i++) {
        FY_TRY(add_box(to, from->at[i], tensor, error));
    }
    return FERRY_OK;
}

static ferry_status add_sender(draw_picture *picture, uint32_t rank, ferry_error *error)
{
    if (picture->n_senders > 0 && picture->senders[picture->n_senders - 1] == rank) {
        return FERRY_OK; /* it holds several source tensors */
    }
    uint32_t *grown =
        grow(picture->senders, picture->n_senders, &picture->senders_capacity, sizeof *grown);
    if (grown == NULL) {
        return fail_memory(error);
    }
    picture->senders = grown;
    picture->senders[picture->n_senders++] = rank;
    return FERRY_OK;
}

/* Puts what the rank holds into a matrix. */
static ferry_status place(collecting *c)
{
    draw_side *side = &c->picture->sides[c->side];
    if (c->held.n == 0) {
        return FERRY_OK;
    }
    draw_matrix *matrix = find_matrix(side, &c->map, &c->held);
    if (matrix == NULL) {
        side->n_left_out++;
        return FERRY_OK;
    }
    FY_TRY(append(&matrix->held, &c->held, c->map.tensor, c->error));
    FY_TRY(append(&matrix->fills, &c->fills, c->map.tensor, c->error));
    if (c->side == FERRY_SIDE_SOURCE) {
        FY_TRY(add_sender(c->picture, c->rank, c->error));
    }
    return FERRY_OK;
}

static ferry_status take_shard(collecting *c, const ferry_shard *shard)
{
    c->held.n = 0;
    c->fills.n = 0;
    if (shard->is_parameter) {
        snprintf(c->error->message, sizeof c->error->message,
                 "rank %u has \"%.300s\" in boxes: only sides that are meshes are drawn", c->rank,
                 shard->tensor);
        return FERRY_ERR_UNSUPPORTED;
    }
    FY_TRY(make_map(&c->map, shard, c->error));
    return add_flat(c, &c->held, shard->flat_begin, shard->flat_end);
}

static ferry_status take_source(void *context, const ferry_shard *shard)
{
    collecting *c = context;
    FY_TRY(take_shard(c, shard));
    FY_TRY(append(&c->fills, &c->held, shard->tensor, c->error));
    return place(c);
}

static ferry_status take_destination(void *context, const ferry_shard *shard)
{
    collecting *c = context;
    draw_picture *picture = c->picture;
    if (picture->tensor != NULL && strcmp(picture->tensor, shard->tensor) != 0) {
        snprintf(c->error->message, sizeof c->error->message,
                 "a picture shows one tensor: \"%.300s\" and \"%.300s\" both fit; name one with "
                 "--tensor",
                 picture->tensor, shard->tensor);
        return FERRY_ERR_INVALID_INPUT;
    }
    picture->tensor = shard->tensor;
    picture->dtype = shard->dtype;
    picture->n_dims = shard->n_dims;
    memcpy(picture->shape, shard->global, sizeof picture->shape);
    return take_shard(c, shard);
}

static ferry_status take_move(void *context, const ferry_move *move)
{
    collecting *c = context;
    return move->to == c->rank ? add_move(c, move, 0, 0) : FERRY_OK;
}

/* Visits one side of one rank; map.tensor says afterwards whether it holds anything. */
static ferry_status visit_side(collecting *c, const ferry_plan *plan, ferry_side_role side,
                               ferry_shard_visitor take)
{
    c->side = side;
    c->map.tensor = NULL;
    ferry_status status = ferry_plan_visit_shards(plan, side, c->rank, take, c, c->error);
    c->picture->sides[side].n_ranks += c->map.tensor != NULL;
    return status;
}

static ferry_status collect_rank(collecting *c, const ferry_plan *plan, uint32_t rank)
{
    c->rank = rank;
    ferry_status status = visit_side(c, plan, FERRY_SIDE_SOURCE, take_source);
    FY_THEN(status, visit_side(c, plan, FERRY_SIDE_DESTINATION, take_destination));
    if (status != FERRY_OK || c->map.tensor == NULL) {
        return status;
    }
    FY_TRY(ferry_plan_visit(plan, rank, take_move, c, NULL, c->error));
    return place(c);
}

ferry_status draw_collect(const ferry_plan *plan, draw_picture *picture, ferry_error *error)
{
    *picture = (draw_picture){0};
    collecting c = {.picture = picture, .error = error};
    ferry_status status = FERRY_OK;
    for (uint32_t r = 0; status == FERRY_OK && r < ferry_plan_rank_count(plan); r++) {
        status = collect_rank(&c, plan, r);
    }
    ferry_plan_totals totals = FERRY_PLAN_TOTALS_INIT;
    FY_THEN(status, ferry_plan_get_totals(plan, &totals, error));
    picture->moved_bytes = totals.moved_bytes;
    picture->local_bytes = totals.local_bytes;
    free(c.map.rows.at);
    free(c.map.columns.at);
    free(c.held.at);
    free(c.fills.at);
    return status;
}

void draw_cleanup(draw_picture *picture)
{
    free(picture->senders);
    for (size_t s = 0; s < 2; s++) {
        for (size_t i = 0; i < picture->sides[s].n; i++) {
            free(picture->sides[s].matrices[i].held.at);
            free(picture->sides[s].matrices[i].fills.at);
        }
    }
}
