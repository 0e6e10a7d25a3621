/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/changer.h"

#include "base/checked.h"
#include "base/sort.h"

#include <string.h>

enum { ALIGNED = 64 };

/* ---- how large a tile is ---- */

/* What a tile of a weight is made of. */
typedef struct sizes {
    const fy_change *change;
    uint32_t in_bits, out_bits;
    uint32_t scale_bytes;
    uint64_t rows, columns; /* of which a tile has a multiple */
} sizes;

static sizes sizes_of(const fy_layout_job *job, uint32_t tensor)
{
    const fy_change *change = &job->changes[tensor];
    bool is_quantized = change->kind == FY_QUANTIZED;
    sizes s = {.change = change,
               .in_bits = job->problem.tensors[tensor].dtype.element_bits,
               .out_bits = change->dtype.element_bits,
               .scale_bytes = change->format.scale_kind == FERRY_F32 ? 4 : 1,
               .rows = is_quantized ? change->format.block[0] : 1,
               .columns = is_quantized ? change->format.block[1] : 2};
    return s;
}

static uint64_t aligned(uint64_t bytes)
{
    return fy_ceil_div(bytes, ALIGNED) * ALIGNED;
}

/* No overflow: blocks are small, and shapes countable in bits. One block more on each side. */
static uint64_t scales_bytes(const sizes *s, uint64_t rows, uint64_t columns)
{
    const uint64_t *block = s->change->format.block;
    return aligned((fy_ceil_div(rows, block[0]) + 1) * (fy_ceil_div(columns, block[1]) + 1) *
                   s->scale_bytes);
}

static uint64_t tile_bytes(const sizes *s, uint64_t rows, uint64_t columns)
{
    uint64_t n = rows * columns;
    return aligned(fy_bytes(n, s->in_bits)) + aligned(fy_bytes(n, s->out_bits)) +
           scales_bytes(s, rows, columns);
}

uint64_t fy_change_least_room(const fy_layout_job *job, uint32_t tensor)
{
    sizes s = sizes_of(job, tensor);
    return fy_change_has_tiles(s.change) ? tile_bytes(&s, s.rows, s.columns) : 0;
}

static uint64_t up_to_multiple(uint64_t value, uint64_t of)
{
    return fy_max(fy_ceil_div(value, of), 1) * of;
}

/* Whole rows where some fit, for they are read and written in one go; else as much of them. */
static fy_tile_shape choose_size(const fy_layout_job *job, uint32_t tensor, const sizes *s,
                                 uint64_t room)
{
    const fy_tensor *t = &job->problem.tensors[tensor];
    const fy_layout *layout = &job->problem.placements[t->dst].layout;
    uint64_t most_rows = up_to_multiple(job->longest[layout->split[t->n_dims - 2]], s->rows);
    fy_tile_shape size = {
        .rows = s->rows,
        .columns = up_to_multiple(job->longest[layout->split[t->n_dims - 1]], s->columns)};
    while (size.columns > s->columns && tile_bytes(s, size.rows, size.columns) > room) {
        size.columns = up_to_multiple(size.columns / 2, s->columns);
    }
    uint64_t n = fy_max(room / tile_bytes(s, size.rows, size.columns), 1);
    size.rows = fy_min(n * s->rows, most_rows);
    while (size.rows > s->rows && tile_bytes(s, size.rows, size.columns) > room) {
        size.rows -= s->rows;
    }
    uint64_t block = s->change->format.block[0];
    size.rows -= size.rows > block ? size.rows % block : 0; /* fewer begin inside of blocks */
    return size;
}

static void share_room(fy_changer *c, const sizes *s)
{
    uint64_t n = c->size.rows * c->size.columns;
    c->in = c->room;
    c->out = c->in + aligned(fy_bytes(n, s->in_bits));
    c->scales = c->out + aligned(fy_bytes(n, s->out_bits));
}

/* ---- scales of whole matrices ---- */

static const fy_tensor *weight_of(const fy_changer *c)
{
    return &c->job->problem.tensors[c->tensor];
}

static uint64_t count_matrices(const fy_tensor *weight)
{
    return fy_box_volume(weight->shape, weight->n_dims - 2);
}

static fy_quantized quantized_of(const fy_changer *c, uint64_t matrix)
{
    bool is_quantized = c->change->kind == FY_QUANTIZED;
    return (fy_quantized){.format = c->change->format,
                          .kind = is_quantized ? weight_of(c)->dtype.kind : c->change->dtype.kind,
                          .tensor_scale = fy_format_has_tensor_scale(&c->change->format)
                                              ? c->matrix_scales[matrix]
                                              : 0};
}

/* The largest magnitude of each matrix: every value is read once more for it. */
static ferry_status measure_matrices(fy_changer *c, ferry_error *error)
{
    fy_tile_walk walk;
    const fy_tensor *weight = weight_of(c);
    uint64_t bytes = fy_bytes(c->size.rows * c->size.columns, weight->dtype.element_bits);
    FY_TRY(fy_gather_begin(&c->beside, c->tensor, error));
    ferry_status status = FERRY_OK;
    fy_tile_walk_begin(&walk, c->whole, c->tensor, 0, c->size);
    while (status == FERRY_OK && fy_tile_walk_next(&walk)) {
        float largest = 0, *all = &c->matrix_scales[walk.tile.matrix];
        fy_input values = {.data = c->in, .n_bytes = bytes};
        status = fy_gather_check_stop(&c->beside, error);
        FY_THEN(status, fy_gather_read(&c->beside, &walk.tile.window, c->in, error));
        FY_THEN(status, fy_largest(weight->dtype.kind, walk.tile.n_rows, walk.tile.n_columns,
                                   &values, &largest, error));
        *all = largest > *all ? largest : *all;
    }
    for (uint64_t i = 0; i < count_matrices(weight); i++) {
        c->matrix_scales[i] = fy_tensor_scale(&c->change->format, c->matrix_scales[i]);
    }
    return status == FERRY_OK ? fy_gather_end(&c->beside, error) : status;
}

static ferry_status read_matrices(fy_changer *c, ferry_error *error)
{
    fy_window_walk walk;
    fy_grain grain =
        fy_grain_of(c->whole, c->change->matrix_scales, c->room_bytes, c->beside.span_bytes);
    char *to = (char *)c->matrix_scales;
    FY_TRY(fy_gather_begin(&c->beside, c->change->matrix_scales, error));
    ferry_status status = FERRY_OK;
    fy_window_walk_begin(&walk, c->whole, c->change->matrix_scales, 0, &grain);
    while (status == FERRY_OK && fy_window_walk_next(&walk)) {
        status = fy_gather_read(&c->beside, &walk.window, to, error);
        to += walk.window.bytes;
    }
    return status == FERRY_OK ? fy_gather_end(&c->beside, error) : status;
}

static ferry_status find_matrix_scales(fy_changer *c, ferry_error *error)
{
    uint64_t n = count_matrices(weight_of(c));
    FY_TRY(FY_GROW(c->matrix_scales, c->matrix_capacity, n, "the scales of matrices", error));
    memset(c->matrix_scales, 0, n * sizeof *c->matrix_scales);
    return c->change->kind == FY_QUANTIZED ? measure_matrices(c, error) : read_matrices(c, error);
}

/* ---- a weight, a shard ---- */

ferry_status fy_changer_init(fy_changer *c, const fy_layout_job *job, const fy_layout_job *whole,
                             fy_files *files, fy_checked *checked, uint64_t span_bytes,
                             ferry_error *error)
{
    *c = (fy_changer){.job = job, .whole = whole};
    return whole == NULL ? FERRY_OK
                         : fy_gather_init(&c->beside, whole, files, checked, span_bytes, error);
}

void fy_changer_cleanup(fy_changer *c)
{
    if (c->whole != NULL) {
        fy_gather_cleanup(&c->beside);
    }
    fy_free(c->matrix_scales);
    *c = (fy_changer){0};
}

ferry_status fy_changer_begin(fy_changer *c, uint32_t tensor, ferry_error *error)
{
    sizes s = sizes_of(c->job, tensor);
    c->tensor = tensor;
    c->change = &c->job->changes[tensor];
    c->size = choose_size(c->job, tensor, &s, c->room_bytes);
    share_room(c, &s);
    if (fy_format_has_tensor_scale(&c->change->format)) {
        FY_TRY(find_matrix_scales(c, error));
    }
    return c->change->kind == FY_DEQUANTIZED ? fy_gather_begin(&c->beside, c->change->scales, error)
                                             : FERRY_OK;
}

ferry_status fy_changer_end(fy_changer *c, ferry_error *error)
{
    return c->change->kind == FY_DEQUANTIZED ? fy_gather_end(&c->beside, error) : FERRY_OK;
}

ferry_status fy_changed_shard_begin(const fy_changer *c, uint32_t cell, fy_changed_shard *shard,
                                    ferry_error *error)
{
    const fy_problem *problem = &c->job->problem;
    const fy_tensor *weight = weight_of(c);
    const fy_layout *layout = &problem->placements[weight->dst].layout;
    uint32_t parts[FERRY_MAX_DIMS + 1], row = weight->n_dims - 2;
    *shard = (fy_changed_shard){.rows = NULL};
    fy_tile_walk_begin(&shard->walk, c->job, c->tensor, cell, c->size);
    if (c->change->kind != FY_DEQUANTIZED) {
        return FERRY_OK;
    }
    fy_layout_parts(problem, layout, cell, parts);
    FY_TRY(fy_stretches_of(fy_problem_split(problem, layout, row), parts[row], &shard->rows,
                           &shard->n_rows, error));
    return fy_stretches_of(fy_problem_split(problem, layout, row + 1), parts[row + 1],
                           &shard->columns, &shard->n_columns, error);
}

void fy_changed_shard_cleanup(fy_changed_shard *shard)
{
    fy_free(shard->rows);
    fy_free(shard->columns);
    shard->rows = shard->columns = NULL;
}

/* ---- values to codes ---- */

/* The number of a tile's matrix among all, and the index of its first element. */
static uint64_t matrix_of(const fy_changer *c, const fy_tile *tile, uint64_t index[FERRY_MAX_DIMS])
{
    const fy_tensor *weight = weight_of(c);
    uint64_t matrix = 0;
    fy_placement_global(&c->job->problem, weight->dst, tile->window.cell, tile->window.first,
                        index);
    for (uint32_t d = 0; d + 2 < weight->n_dims; d++) {
        matrix = matrix * weight->shape[d] + index[d];
    }
    return matrix;
}

static ferry_status quantize(fy_changer *c, const fy_tile *tile, ferry_error *error)
{
    uint64_t index[FERRY_MAX_DIMS];
    fy_quantized q = quantized_of(c, matrix_of(c, tile, index));
    q.n_rows = tile->n_rows;
    q.n_columns = tile->n_columns;
    fy_input values = {.data = c->in, .n_bytes = (uint64_t)(c->out - c->in)};
    fy_output codes = {.data = c->out, .n_bytes = (uint64_t)(c->scales - c->out)};
    fy_output scales = {.data = c->scales,
                        .n_bytes = c->room_bytes - (uint64_t)(c->scales - c->room)};
    return fy_quantize(&q, &values, &codes, &scales, error);
}

/* ---- codes to values ---- */

/* A box of the tile whose indices are neighbours in the whole matrix, and its scales. */
typedef struct patch {
    uint64_t row, column;               /* in the tile */
    uint64_t global_row, global_column; /* in the matrix */
    uint64_t n_rows, n_columns;
    uint64_t first_scale[2]; /* the row and the column of scales[0] */
    uint64_t scales_pitch;   /* scales from row to row */
} patch;

static ferry_status read_scales(fy_changer *c, const uint64_t *index, patch *p, ferry_error *error)
{
    const fy_tensor *scales = &c->whole->problem.tensors[c->change->scales];
    const uint64_t *block = c->change->format.block;
    uint32_t row = scales->n_dims - 2;
    uint64_t end[2] = {fy_ceil_div(p->global_row + p->n_rows, block[0]),
                       fy_ceil_div(p->global_column + p->n_columns, block[1])};
    fy_window w = {.tensor = c->change->scales, .n_boxes = 1, .is_tile = true, .n_elements = 1};
    p->first_scale[0] = p->global_row / block[0];
    p->first_scale[1] = p->global_column / block[1];
    p->scales_pitch = end[1] - p->first_scale[1];
    for (uint32_t d = 0; d < scales->n_dims; d++) {
        bool in_matrix = d >= row;
        w.shape[d] = scales->shape[d];
        w.boxes[0].begin[d] = in_matrix ? p->first_scale[d - row] : index[d];
        w.boxes[0].length[d] = in_matrix ? end[d - row] - p->first_scale[d - row] : 1;
        w.first = w.first * w.shape[d] + w.boxes[0].begin[d];
        w.n_elements *= w.boxes[0].length[d];
    }
    w.bytes = fy_bytes(w.n_elements, scales->dtype.element_bits);
    return fy_gather_read(&c->beside, &w, c->scales, error);
}

/* From an index of the matrix on, how many up to `end` may be done at once: those before the first
 * line between blocks, or, from a line on, all. */
static uint64_t up_to_line(uint64_t from, uint64_t end, uint64_t block)
{
    uint64_t inside = from % block;
    return inside == 0 ? end - from : fy_min(end - from, block - inside);
}

/* Rows and columns of a patch that begin on lines between blocks, or end on the first. */
static ferry_status dequantize_part(const fy_changer *c, const fy_tile *tile, const patch *p,
                                    const uint64_t from[2], fy_quantized *q, ferry_error *error)
{
    const uint64_t *block = q->format.block;
    uint32_t code_bits = weight_of(c)->dtype.element_bits;
    uint64_t row = p->row + (from[0] - p->global_row);
    uint64_t column = p->column + (from[1] - p->global_column);
    uint64_t element = row * tile->n_columns + column;
    uint64_t scale = (from[0] / block[0] - p->first_scale[0]) * p->scales_pitch +
                     (from[1] / block[1] - p->first_scale[1]);
    uint64_t scale_bytes = q->format.scale_kind == FERRY_F32 ? 4 : 1;
    uint64_t value_bytes = c->change->dtype.element_bits / 8;
    const char *code_at = c->in + fy_bytes(element, code_bits);
    char *value_at = c->out + element * value_bytes;
    fy_input codes = {.data = code_at,
                      .n_bytes = (uint64_t)(c->out - code_at),
                      .pitch = fy_bytes(tile->n_columns, code_bits)};
    fy_input scales = {.data = c->scales + scale * scale_bytes,
                       .n_bytes =
                           c->room_bytes - (uint64_t)(c->scales + scale * scale_bytes - c->room),
                       .pitch = p->scales_pitch * scale_bytes};
    fy_output values = {.data = value_at,
                        .n_bytes = (uint64_t)(c->scales - value_at),
                        .pitch = tile->n_columns * value_bytes};
    return fy_dequantize(q, &codes, &scales, &values, error);
}

static ferry_status dequantize_patch(fy_changer *c, const fy_tile *tile, const uint64_t *index,
                                     uint64_t matrix, patch *p, ferry_error *error)
{
    fy_quantized q = quantized_of(c, matrix);
    const uint64_t *block = q.format.block;
    uint64_t end[2] = {p->global_row + p->n_rows, p->global_column + p->n_columns};
    FY_TRY(read_scales(c, index, p, error));
    for (uint64_t row = p->global_row; row < end[0]; row += q.n_rows) {
        q.n_rows = up_to_line(row, end[0], block[0]);
        for (uint64_t column = p->global_column; column < end[1]; column += q.n_columns) {
            uint64_t from[2] = {row, column};
            q.n_columns = up_to_line(column, end[1], block[1]);
            FY_TRY(dequantize_part(c, tile, p, from, &q, error));
        }
    }
    return FERRY_OK;
}

/* The first stretch that ends behind a local index. */
static size_t first_behind(const fy_stretch *list, size_t n, uint64_t local)
{
    FY_BISECT(size_t, low, 0, n, at, list[at].local + list[at].length <= local);
    return low;
}

/* The part of a stretch in [begin, end): where it begins in both, and its length. */
static uint64_t clip(const fy_stretch *s, uint64_t begin, uint64_t end, uint64_t *local_out,
                     uint64_t *global_out)
{
    uint64_t from = fy_max(s->local, begin);
    *local_out = from - begin;
    *global_out = s->global + (from - s->local);
    return fy_min(s->local + s->length, end) - from;
}

static ferry_status dequantize(fy_changer *c, const fy_changed_shard *shard, ferry_error *error)
{
    const fy_tile *tile = &shard->walk.tile;
    uint64_t index[FERRY_MAX_DIMS], matrix = matrix_of(c, tile, index);
    uint64_t row_end = tile->row + tile->n_rows, column_end = tile->column + tile->n_columns;
    size_t first_column = first_behind(shard->columns, shard->n_columns, tile->column);
    size_t r = first_behind(shard->rows, shard->n_rows, tile->row);
    for (; r < shard->n_rows && shard->rows[r].local < row_end; r++) {
        size_t k = first_column;
        for (; k < shard->n_columns && shard->columns[k].local < column_end; k++) {
            patch p;
            p.n_rows = clip(&shard->rows[r], tile->row, row_end, &p.row, &p.global_row);
            p.n_columns =
                clip(&shard->columns[k], tile->column, column_end, &p.column, &p.global_column);
            FY_TRY(dequantize_patch(c, tile, index, matrix, &p, error));
        }
    }
    return FERRY_OK;
}

ferry_status fy_changer_make(fy_changer *c, fy_gather *gather, const fy_changed_shard *shard,
                             ferry_error *error)
{
    ferry_error cause;
    FY_TRY(fy_gather_read(gather, &shard->walk.tile.window, c->in, error));
    ferry_status status = c->change->kind == FY_QUANTIZED ? quantize(c, &shard->walk.tile, &cause)
                                                          : dequantize(c, shard, &cause);
    if (status == FERRY_ERR_INVALID_INPUT) {
        return fy_fail(error, status, "\"%s\": %s", weight_of(c)->name, cause.message);
    }
    return fy_forward(error, status, &cause);
}
