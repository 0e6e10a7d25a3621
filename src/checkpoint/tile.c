/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/tile.h"

#include "base/checked.h"

void fy_tile_walk_begin(fy_tile_walk *walk, const fy_layout_job *job, uint32_t tensor,
                        uint32_t cell, fy_tile_shape size)
{
    const fy_tensor *t = &job->problem.tensors[tensor];
    const fy_layout *layout = &job->problem.placements[t->dst].layout;
    uint32_t parts[FERRY_MAX_DIMS + 1];
    *walk = (fy_tile_walk){
        .tile = {.window = {.tensor = tensor, .cell = cell, .n_boxes = 1, .is_tile = true}},
        .size = size,
        .n_dims = layout->n_dims,
        .element_bits = t->dtype.element_bits,
        .n_matrices = 1,
        .is_flat = layout->n_flat != 0};
    fy_layout_parts(&job->problem, layout, cell, parts);
    uint64_t n = fy_layout_shard(&job->problem, layout, parts, walk->tile.window.shape);
    fy_layout_flat_range(layout, parts[layout->n_dims], n, &walk->flat_begin, &walk->flat_end);
    walk->next = walk->flat_begin;
    const uint64_t *shape = walk->tile.window.shape;
    for (uint32_t d = 0; d + 2 < layout->n_dims; d++) {
        walk->n_matrices *= shape[d];
    }
    walk->n_rows = shape[layout->n_dims - 2];
    walk->n_columns = shape[layout->n_dims - 1];
}

static void fill_window(const fy_tile_walk *walk, fy_tile *tile)
{
    fy_window *w = &tile->window;
    uint64_t rest = tile->matrix;
    w->first = (tile->matrix * walk->n_rows + tile->row) * walk->n_columns + tile->column;
    w->first -= walk->flat_begin;
    w->n_elements = tile->n_rows * tile->n_columns;
    w->bytes = fy_bytes(w->n_elements, walk->element_bits);
    for (uint32_t d = walk->n_dims - 2; d-- > 0; rest /= w->shape[d]) {
        w->boxes[0].begin[d] = rest % w->shape[d];
        w->boxes[0].length[d] = 1;
    }
    w->boxes[0].begin[walk->n_dims - 2] = tile->row;
    w->boxes[0].length[walk->n_dims - 2] = tile->n_rows;
    w->boxes[0].begin[walk->n_dims - 1] = tile->column;
    w->boxes[0].length[walk->n_dims - 1] = tile->n_columns;
}

/* Whole rows, or what there is of one. */
static bool next_flat(fy_tile_walk *walk)
{
    fy_tile *tile = &walk->tile;
    uint64_t left = walk->flat_end - walk->next;
    if (left == 0) {
        return false;
    }
    tile->column = walk->next % walk->n_columns;
    tile->row = walk->next / walk->n_columns % walk->n_rows;
    tile->matrix = walk->next / walk->n_columns / walk->n_rows;
    bool is_whole =
        tile->column == 0 && walk->size.columns >= walk->n_columns && left >= walk->n_columns;
    uint64_t most = fy_min(walk->n_columns - tile->column, walk->size.columns);
    tile->n_columns = is_whole ? walk->n_columns : fy_min(most, left);
    tile->n_rows =
        is_whole ? fy_min(fy_min(walk->size.rows, walk->n_rows - tile->row), left / walk->n_columns)
                 : 1;
    fill_window(walk, tile);
    walk->next += tile->n_rows * tile->n_columns;
    return true;
}

bool fy_tile_walk_next(fy_tile_walk *walk)
{
    fy_tile *tile = &walk->tile;
    if (walk->is_flat) {
        return next_flat(walk);
    }
    if (walk->next_matrix >= walk->n_matrices || walk->n_rows == 0 || walk->n_columns == 0) {
        return false;
    }
    tile->matrix = walk->next_matrix;
    tile->row = walk->next_row;
    tile->column = walk->next_column;
    tile->n_rows = fy_min(walk->size.rows, walk->n_rows - tile->row);
    tile->n_columns = fy_min(walk->size.columns, walk->n_columns - tile->column);
    fill_window(walk, tile);
    walk->next_column += tile->n_columns;
    if (walk->next_column == walk->n_columns) {
        walk->next_column = 0;
        walk->next_row += tile->n_rows;
    }
    if (walk->next_row == walk->n_rows) {
        walk->next_row = 0;
        walk->next_matrix++;
    }
    return true;
}

ferry_status fy_stretches_of(const fy_split *split, uint32_t part, fy_stretch **list_out,
                             size_t *n_out, ferry_error *error)
{
    size_t n = 0;
    fy_stretch *list = fy_alloc(split->n_pieces, sizeof *list);
    FY_TRY(fy_check_memory(list != NULL, "the pieces of a shard", error));
    for (size_t i = 0; i < split->n_pieces; i++) {
        const fy_piece *piece = &split->pieces[i];
        if (part >= piece->part && part - piece->part < piece->n_owners) {
            list[n++] = (fy_stretch){.local = fy_split_local(split, part, piece->global),
                                     .global = piece->global,
                                     .length = piece->length};
        }
    }
    *list_out = list;
    *n_out = n;
    return FERRY_OK;
}
