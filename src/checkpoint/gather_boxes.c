/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* How a source in boxes is read: a tensor's box lies in parameters, in whatever order. */
#include "checkpoint/gather_boxes.h"

#include "base/checked.h"
#include "model/memory.h"

#include <string.h>

/* What is read: a box of a tensor, and where it goes in a window, in bytes. */
typedef struct wanted {
    uint32_t tensor;
    uint32_t rank;
    uint32_t n_dims;
    uint32_t bits;
    fy_box box;
    uint64_t at;
    uint64_t stride[FERRY_MAX_DIMS];
} wanted;

static const fy_memory *memory_of(const fy_gather *gather)
{
    return gather->job->problem.memory[0];
}

/* Rows of the window are side by side; with elements of less than a byte they end on bytes. */
static void place(const fy_window *window, const fy_boxed_read *read, uint32_t bits, wanted *w)
{
    const uint64_t *shape = window->is_tile ? window->boxes[0].length : window->shape;
    uint64_t pitch = 1, at = 0, strides[FERRY_MAX_DIMS];
    for (uint32_t d = read->n_dims; d-- > 0;) {
        bool own = d >= read->dst_pad;
        uint64_t begin = read->dst_begin[d];
        begin -= own && window->is_tile ? window->boxes[0].begin[d - read->dst_pad] : 0;
        strides[d] = pitch;
        at += begin * pitch;
        pitch *= own ? shape[d - read->dst_pad] : 1;
    }
    at -= window->is_tile ? 0 : window->flat_begin + window->first;
    w->at = fy_bytes(at, bits);
    for (uint32_t d = 0; d < w->n_dims; d++) {
        w->stride[d] = strides[d + read->src_pad];
    }
}

/* ---- a box of memory ---- */

/* A loop over a parameter and a window, in units. */
typedef struct loop {
    uint64_t length, from, to;
} loop;

/* Loops of what both have, by descending strides of the parameter; false: not in whole bytes. */
static bool list_loops(const wanted *w, const fy_memory_box *box, const fy_box *common, loop *loops,
                       uint32_t *n_out)
{
    uint32_t unit = w->bits < 8 ? 8 / w->bits : 1, n = 0;
    for (uint32_t d = 0; d < w->n_dims; d++) {
        uint64_t from = fy_memory_strides(box)[d], to = w->stride[d];
        bool is_last = unit > 1 && d + 1 == w->n_dims;
        loop its = {.length = common->length[d], .from = from / unit, .to = to / unit};
        if (is_last) { /* whose elements are side by side on both sides */
            if (from != 1 || to != 1 || its.length % unit != 0) {
                return false;
            }
            its = (loop){.length = common->length[d] / unit, .from = 1, .to = 1};
        } else if (its.length > 1 && (from % unit != 0 || to % unit != 0)) {
            return false;
        }
        if (its.length == 1) {
            continue;
        }
        uint32_t at = n++;
        for (; at > 0 && loops[at - 1].from < its.from; at--) {
            loops[at] = loops[at - 1];
        }
        loops[at] = its;
    }
    *n_out = n;
    return true;
}

static ferry_status fail_bits(const fy_gather *gather, const fy_memory_box *box, ferry_error *error)
{
    const fy_memory *memory = memory_of(gather);
    return fy_fail(
        error, FERRY_ERR_UNSUPPORTED,
        "%s: parameter \"%s\" has elements of less than a byte in another order than the "
        "tensor, or not on bytes of it",
        gather->job->from->layout_path, memory->side->parameters[box->parameter].name);
}

/* The parameter in the file of the rank. */
static ferry_status find_entry(fy_gather *gather, uint32_t rank, uint32_t parameter,
                               fy_source_shard *shard, ferry_error *error)
{
    const ferry_checkpoint *from = gather->job->from;
    const char *name = memory_of(gather)->side->parameters[parameter].name;
    *shard = (fy_source_shard){.file = fy_boxed_place(from->boxed, rank)};
    shard->entry = fy_st_find(&from->files[shard->file].header, name); /* it was there */
    shard->base = from->files[shard->file].header.data_begin + shard->entry->begin;
    return fy_gather_find_check(gather, shard, error);
}

static ferry_status read_common(fy_gather *gather, const fy_window *window, const wanted *w,
                                const fy_memory_box *box, const fy_box *common, char *to,
                                ferry_error *error)
{
    uint64_t from_at = box->offset, to_at = 0;
    uint64_t length[FERRY_MAX_DIMS], from_stride[FERRY_MAX_DIMS], to_stride[FERRY_MAX_DIMS];
    uint32_t n = 0, bytes = w->bits < 8 ? 1 : w->bits / 8;
    loop loops[FERRY_MAX_DIMS];
    fy_source_shard shard;
    for (uint32_t d = 0; d < w->n_dims; d++) {
        from_at += (common->begin[d] - box->numbers[d]) * fy_memory_strides(box)[d];
        to_at += (common->begin[d] - w->box.begin[d]) * w->stride[d];
    }
    if (!list_loops(w, box, common, loops, &n) || from_at * w->bits % 8 != 0 ||
        to_at * w->bits % 8 != 0) {
        return fail_bits(gather, box, error);
    }
    for (uint32_t i = 0; i < n; i++) {
        length[i] = loops[i].length;
        from_stride[i] = loops[i].from * bytes;
        to_stride[i] = loops[i].to * bytes;
    }
    FY_TRY(find_entry(gather, w->rank, box->parameter, &shard, error));
    fy_area from =
        fy_area_of(shard.base + fy_bytes(from_at, w->bits), bytes, n, length, from_stride);
    fy_area to_area = fy_area_of(w->at + fy_bytes(to_at, w->bits), bytes, n, length, to_stride);
    gather->is_one_file =
        gather->n_boxes == 0 || (gather->is_one_file && gather->whole_file == shard.file);
    gather->n_boxes++;
    gather->is_whole = from.n_dims == 0 && to_area.n_dims == 0 && from.bytes == window->bytes;
    gather->whole_file = shard.file;
    gather->whole_offset = from.offset;
    return gather->only_locates ? FERRY_OK
                                : fy_gather_read_area(gather, &shard, &from, &to_area, to, error);
}

/* ---- which boxes ---- */

static ferry_status read_stock(fy_gather *gather, const fy_window *window, const wanted *w,
                               const fy_stock *stock, char *to, ferry_error *error)
{
    const fy_memory *memory = memory_of(gather);
    size_t n = stock->n_boxes;
    if (stock->tree != NULL) {
        FY_TRY(fy_box_tree_find(stock->tree, w->box.begin, w->box.length, &gather->found,
                                &gather->found_capacity, &n, error));
    }
    for (size_t i = 0; i < n; i++) {
        size_t at = stock->tree == NULL ? i : gather->found[i];
        const fy_memory_box *box = &memory->boxes[stock->first_box + at];
        fy_box common;
        if (fy_box_meet(w->box.begin, w->box.length, box->numbers, fy_memory_shape(box), w->n_dims,
                        common.begin, common.length)) {
            FY_TRY(read_common(gather, window, w, box, &common, to, error));
        }
    }
    return FERRY_OK;
}

ferry_status fy_gather_read_boxes(fy_gather *gather, const fy_window *window,
                                  const fy_boxed_read *read, char *to, ferry_error *error)
{
    const fy_problem *problem = &gather->job->problem;
    const fy_memory *memory = memory_of(gather);
    const fy_fragment *fragment = problem->tensors[read->source].fragment;
    wanted w = {.tensor = fy_problem_whole_number(problem, read->source),
                .rank = read->rank,
                .n_dims = problem->tensors[read->source].n_dims,
                .bits = problem->tensors[read->source].dtype.element_bits};
    for (uint32_t d = 0; d < w.n_dims; d++) {
        w.box.begin[d] =
            read->src_begin[d + read->src_pad] + (fragment == NULL ? 0 : fragment->at[d]);
        w.box.length[d] = read->length[d + read->src_pad];
    }
    place(window, read, w.bits, &w);
    const fy_memory_tensor *held = &memory->tensors[w.tensor];
    const fy_spots *spots = &memory->spots[held->spots];
    uint32_t kind = fy_spots_kind(spots, read->rank);
    for (uint32_t i = spots->kind_begin[kind]; i < spots->kind_begin[kind + 1]; i++) {
        const fy_stock *stock = &memory->stocks[held->first_stock + spots->kind_lists[i]];
        FY_TRY(read_stock(gather, window, &w, stock, to, error));
    }
    return FERRY_OK;
}
