/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/problem.h"

#include "base/checked.h"
#include "base/sort.h"

void fy_problem_cleanup(fy_problem *problem)
{
    for (size_t i = 0; i < problem->n_splits; i++) {
        fy_split_destroy(problem->splits[i]);
    }
    for (size_t i = 0; i < problem->n_holders; i++) {
        fy_holders_destroy(problem->holders[i]);
    }
    fy_free(problem->splits);
    fy_free(problem->holders);
    fy_free(problem->placements);
    fy_free(problem->tensors);
    fy_index_cleanup(&problem->split_index);
    fy_index_cleanup(&problem->holders_index);
    fy_index_cleanup(&problem->placement_index);
    fy_arena_cleanup(&problem->arena);
    *problem = (fy_problem){0};
}

ferry_status fy_problem_add_split(fy_problem *problem, fy_split *split, uint32_t *number_out,
                                  ferry_error *error)
{
    fy_index_cursor c = fy_index_first(&problem->split_index, split->hash.low);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&problem->split_index, &c)) {
        if (problem->splits[c.value]->hash.high == split->hash.high) {
            fy_split_destroy(split);
            *number_out = c.value;
            return FERRY_OK;
        }
    }
    uint32_t number = (uint32_t)problem->n_splits;
    if (!FY_RESERVE(problem->splits, problem->split_capacity, problem->n_splits + 1) ||
        !fy_index_insert(&problem->split_index, split->hash.low, number)) {
        fy_split_destroy(split);
        return fy_fail_no_memory(error, "the splits");
    }
    problem->splits[problem->n_splits++] = split;
    *number_out = number;
    return FERRY_OK;
}

static bool same_holders(const fy_holders *a, const fy_holders *b)
{
    if (a->n_cells != b->n_cells || a->n_slots != b->n_slots || a->hash != b->hash) {
        return false;
    }
    for (uint32_t i = 0; i < a->n_slots; i++) {
        if (a->rank[i] != b->rank[i] || a->cell[i] != b->cell[i]) {
            return false;
        }
    }
    return true;
}

ferry_status fy_problem_add_holders(fy_problem *problem, fy_holders *holders, uint32_t *number_out,
                                    ferry_error *error)
{
    fy_index_cursor c = fy_index_first(&problem->holders_index, holders->hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&problem->holders_index, &c)) {
        if (same_holders(problem->holders[c.value], holders)) {
            fy_holders_destroy(holders);
            *number_out = c.value;
            return FERRY_OK;
        }
    }
    uint32_t number = (uint32_t)problem->n_holders;
    if (!FY_RESERVE(problem->holders, problem->holders_capacity, problem->n_holders + 1) ||
        !fy_index_insert(&problem->holders_index, holders->hash, number)) {
        fy_holders_destroy(holders);
        return fy_fail_no_memory(error, "the tables of holders");
    }
    problem->holders[problem->n_holders++] = holders;
    *number_out = number;
    return FERRY_OK;
}

uint32_t fy_problem_order(const fy_problem *problem, uint32_t rank, uint32_t tensor)
{
    const fy_order *order = problem->rank_order == NULL ? NULL : &problem->rank_order[rank];
    if (order == NULL || order->n == 0) {
        return tensor;
    }
    FY_BISECT_LAST(uint32_t, low, 0, order->n, middle,
                   order->tensors[order->sorted[middle]] <= tensor);
    return order->sorted[low];
}

void fy_layout_parts(const fy_problem *problem, const fy_layout *layout, uint32_t cell,
                     uint32_t parts_out[FERRY_MAX_DIMS + 1])
{
    uint32_t n_flat = layout->n_flat == 0 ? 1 : layout->n_flat;
    parts_out[layout->n_dims] = cell % n_flat;
    cell /= n_flat;
    for (uint32_t d = layout->n_dims; d > 0; d--) {
        uint32_t n_parts = fy_problem_split(problem, layout, d - 1)->n_parts;
        parts_out[d - 1] = cell % n_parts;
        cell /= n_parts;
    }
}

uint64_t fy_layout_shard(const fy_problem *problem, const fy_layout *layout, const uint32_t *parts,
                         uint64_t shape_out[FERRY_MAX_DIMS])
{
    uint64_t n_elements = 1;
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        shape_out[d] = fy_problem_split(problem, layout, d)->part_length[parts[d]];
        n_elements *= shape_out[d];
    }
    return n_elements;
}

void fy_layout_flat_range(const fy_layout *layout, uint32_t flat_part, uint64_t n_elements,
                          uint64_t *begin_out, uint64_t *end_out)
{
    uint64_t begin = 0, end = n_elements;
    if (layout->n_flat != 0 && layout->flat_begin == NULL) {
        uint64_t chunk = fy_ceil_div(n_elements, layout->n_flat);
        begin = fy_min(n_elements, flat_part * chunk);
        end = fy_min(n_elements, begin + chunk);
    } else if (layout->n_flat != 0) {
        begin = layout->flat_begin[flat_part];
        end = layout->flat_begin[flat_part + 1];
    }
    *begin_out = begin;
    *end_out = end;
}

/* What a cell holds, from what its parts hold: independent of how parts are numbered. */
static fy_hash128 hash_cell(const fy_problem *problem, const fy_layout *layout, uint32_t cell)
{
    uint32_t parts[FERRY_MAX_DIMS + 1];
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t values[2 * FERRY_MAX_DIMS + 3];
    size_t n = 0;
    fy_layout_parts(problem, layout, cell, parts);
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        fy_hash128 part = fy_problem_split(problem, layout, d)->part_hash[parts[d]];
        values[n++] = part.low;
        values[n++] = part.high;
    }
    values[n++] = layout->n_flat != 0;
    if (layout->n_flat != 0) {
        uint64_t n_elements = fy_layout_shard(problem, layout, parts, shape);
        fy_layout_flat_range(layout, parts[layout->n_dims], n_elements, &values[n], &values[n + 1]);
        n += 2;
    }
    return fy_hash128_of(values, n * sizeof *values);
}

static fy_hash128 hash_placement(const fy_problem *problem, const fy_layout *layout,
                                 const fy_holders *holders)
{
    fy_hash128 sum = fy_hash128_of(layout->shape, layout->n_dims * sizeof *layout->shape);
    for (uint32_t cell = 0; cell < holders->n_cells; cell++) {
        fy_hash128 hash = hash_cell(problem, layout, cell);
        for (uint32_t s = holders->cell_begin[cell]; s < holders->cell_begin[cell + 1]; s++) {
            fy_hash128 one = {.low = fy_hash_mix(hash.low, holders->rank[s]),
                              .high = fy_hash_mix(hash.high, ~(uint64_t)holders->rank[s])};
            sum = fy_hash128_add(sum, one);
        }
    }
    return sum;
}

static bool same_placement(const fy_placement *placement, fy_hash128 hash, const fy_layout *layout,
                           uint32_t holders, const fy_seed *seed)
{
    bool same = placement->hash.high == hash.high && placement->holders == holders &&
                placement->layout.n_dims == layout->n_dims &&
                placement->layout.n_flat == layout->n_flat &&
                placement->layout.is_cut == layout->is_cut && placement->seed == seed;
    for (uint32_t d = 0; same && d < layout->n_dims; d++) {
        same = placement->layout.shape[d] == layout->shape[d] &&
               placement->layout.split[d] == layout->split[d];
    }
    return same;
}

ferry_status fy_problem_intern_placement(fy_problem *problem, const fy_placement *placement,
                                         uint32_t *number_out, ferry_error *error)
{
    fy_hash128 hash = placement->hash;
    fy_index_cursor c = fy_index_first(&problem->placement_index, hash.low);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&problem->placement_index, &c)) {
        if (same_placement(&problem->placements[c.value], hash, &placement->layout,
                           placement->holders, placement->seed)) {
            *number_out = c.value;
            return FERRY_OK;
        }
    }
    uint32_t number = (uint32_t)problem->n_placements;
    if (!FY_RESERVE(problem->placements, problem->placement_capacity, problem->n_placements + 1) ||
        !fy_index_insert(&problem->placement_index, hash.low, number)) {
        return fy_fail_no_memory(error, "the placements");
    }
    problem->placements[problem->n_placements++] = *placement;
    *number_out = number;
    return FERRY_OK;
}

ferry_status fy_problem_add_placement(fy_problem *problem, const fy_layout *layout,
                                      uint32_t holders, const fy_seed *seed, uint32_t *number_out,
                                      ferry_error *error)
{
    fy_placement placement = {.layout = *layout,
                              .holders = holders,
                              .hash = hash_placement(problem, layout, problem->holders[holders]),
                              .seed = seed};
    return fy_problem_intern_placement(problem, &placement, number_out, error);
}
