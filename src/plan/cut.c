/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "plan/cut.h"

#include "base/checked.h"
#include "base/sort.h"

#include <string.h>

void fy_cutter_cleanup(fy_cutter *cutter)
{
    fy_free(cutter->pieces);
    fy_free(cutter->open);
    fy_free(cutter->next);
    fy_free(cutter->lists[0].boxes);
    fy_free(cutter->lists[1].boxes);
    fy_free(cutter->found);
    *cutter = (fy_cutter){0};
}

void fy_cutter_forget(fy_cutter *cutter)
{
    cutter->lists[0].memory = NULL;
    cutter->lists[1].memory = NULL;
}

/* One side of an atom: the tensor there, and where element 0 of the atom lies in it as a whole. */
typedef struct cut_side {
    const fy_memory *memory;
    const char *name; /* of the tensor */
    uint32_t tensor;  /* as the memory of the side numbers it */
    uint32_t rank;
    uint32_t layer;
    uint32_t n_dims;
    uint32_t pad; /* leading dimensions of the route that it does not have */
    uint64_t begin[FERRY_MAX_DIMS];
} cut_side;

static cut_side side_of(const ferry_plan *plan, uint32_t leg, const fy_atom *atom, uint32_t which,
                        uint32_t rank)
{
    const fy_leg *l = &plan->routes.legs[leg];
    const fy_route *route = &plan->routes.routes[l->route];
    uint32_t number = which == 0 ? l->source : l->tensor;
    const fy_tensor *tensor = &plan->problem.tensors[number];
    const fy_fragment *fragment = tensor->fragment;
    cut_side side = {.memory = plan->problem.memory[which],
                     .name = tensor->name,
                     .tensor = fy_problem_variant(&plan->problem, number),
                     .rank = rank,
                     .layer = which == 0 || fragment == NULL ? 1 : fragment->layer,
                     .n_dims = tensor->n_dims,
                     .pad = route->n_dims - tensor->n_dims};
    for (uint32_t d = 0; d < side.n_dims; d++) {
        uint32_t r = d + side.pad;
        side.begin[d] = atom->src_global[r] + (fragment == NULL ? 0 : fragment->at[d]);
        if (which == 1) {
            side.begin[d] += route->dst_begin[r] - route->src_begin[r];
        }
    }
    return side;
}

static int compare_boxes(const void *a, const void *b)
{
    const fy_memory_box *x = *(const fy_memory_box *const *)a;
    const fy_memory_box *y = *(const fy_memory_box *const *)b;
    if (x->parameter != y->parameter) {
        return x->parameter < y->parameter ? -1 : 1;
    }
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static ferry_status add_stock(fy_cutter *cutter, fy_cut_list *list, const fy_memory *memory,
                              const fy_stock *stock, ferry_error *error)
{
    size_t n = stock->n_boxes;
    if (stock->tree != NULL) {
        FY_TRY(fy_box_tree_find(stock->tree, list->inside.begin, list->inside.length,
                                &cutter->found, &cutter->found_capacity, &n, error));
    }
    FY_TRY(FY_GROW(list->boxes, list->capacity, list->n + n, "the boxes of a rank", error));
    for (size_t i = 0; i < n; i++) {
        size_t at = stock->tree == NULL ? i : cutter->found[i];
        list->boxes[list->n++] = &memory->boxes[stock->first_box + at];
    }
    return FERRY_OK;
}

/* Whether a box has all elements of another one. */
static bool has_all(const fy_memory_box *box, const fy_box *of, uint32_t n_dims)
{
    for (uint32_t d = 0; d < n_dims; d++) {
        if (box->numbers[d] > of->begin[d] ||
            box->numbers[d] + fy_memory_shape(box)[d] < of->begin[d] + of->length[d]) {
            return false;
        }
    }
    return true;
}

/* The boxes of the rank that may have a part of a box of the tensor. */
static ferry_status list_boxes(fy_cutter *cutter, const cut_side *side, uint32_t which,
                               const fy_box *inside, ferry_error *error)
{
    const fy_memory_tensor *held = &side->memory->tensors[side->tensor];
    const fy_spots *spots = &side->memory->spots[held->spots];
    fy_cut_list *list = &cutter->lists[which];
    uint32_t kind = fy_spots_kind(spots, side->rank);
    fy_box wanted = {{0}, {0}};
    for (uint32_t d = 0; d < side->n_dims; d++) {
        wanted.begin[d] = side->begin[d] + inside->begin[d + side->pad];
        wanted.length[d] = inside->length[d + side->pad];
    }
    if (list->memory == side->memory && list->tensor == side->tensor && list->kind == kind &&
        memcmp(&list->inside, &wanted, sizeof wanted) == 0) {
        return FERRY_OK;
    }
    *list = (fy_cut_list){.boxes = list->boxes, .capacity = list->capacity, .inside = wanted};
    for (uint32_t i = spots->kind_begin[kind]; i < spots->kind_begin[kind + 1]; i++) {
        const fy_stock *stock = &side->memory->stocks[held->first_stock + spots->kind_lists[i]];
        FY_TRY(add_stock(cutter, list, side->memory, stock, error));
    }
    fy_sort(list->boxes, list->n, sizeof(fy_memory_box *), compare_boxes);
    list->all_whole = true;
    for (size_t i = 0; i < list->n && list->all_whole; i++) {
        list->all_whole = has_all(list->boxes[i], &wanted, side->n_dims);
    }
    list->memory = side->memory;
    list->tensor = side->tensor;
    list->kind = kind;
    return FERRY_OK;
}

/* What a box of memory has of a piece, in the atom's coordinates; false: nothing. */
static bool meet(const cut_side *side, const fy_memory_box *box, const fy_box *piece,
                 fy_box *common_out)
{
    *common_out = *piece;
    for (uint32_t d = 0; d < side->n_dims; d++) {
        uint32_t r = d + side->pad;
        uint64_t begin = side->begin[d] + piece->begin[r], end = begin + piece->length[r];
        uint64_t low = fy_max(begin, box->numbers[d]);
        uint64_t high = fy_min(end, box->numbers[d] + fy_memory_shape(box)[d]);
        if (low >= high) {
            return false;
        }
        common_out->begin[r] = low - side->begin[d];
        common_out->length[r] = high - low;
    }
    return true;
}

static ferry_status push_piece(fy_cut_piece **pieces, size_t *n, size_t *capacity,
                               const fy_cut_piece *piece, ferry_error *error)
{
    if (!fy_reserve(pieces, capacity, *n + 1, sizeof *piece)) {
        return fy_fail_no_memory(error, "the moves of a rank");
    }
    (*pieces)[(*n)++] = *piece;
    return FERRY_OK;
}

/* What is left of a piece around the part that a box has, as boxes that are apart. */
static ferry_status push_around(fy_cutter *cutter, const fy_cut_piece *piece, const fy_box *common,
                                uint32_t n_dims, ferry_error *error)
{
    fy_cut_piece rest = *piece;
    for (uint32_t d = 0; d < n_dims; d++) {
        uint64_t begin = rest.box.begin[d], end = begin + rest.box.length[d];
        uint64_t low = common->begin[d], high = low + common->length[d];
        if (begin < low) {
            rest.box.length[d] = low - begin;
            FY_TRY(
                push_piece(&cutter->next, &cutter->n_next, &cutter->next_capacity, &rest, error));
        }
        if (high < end) {
            rest.box.begin[d] = high;
            rest.box.length[d] = end - high;
            FY_TRY(
                push_piece(&cutter->next, &cutter->n_next, &cutter->next_capacity, &rest, error));
        }
        rest.box.begin[d] = low;
        rest.box.length[d] = high - low;
    }
    return FERRY_OK;
}

/* One box after the other takes what it has of what is open, or is the next of its owners. */
static ferry_status take_box(fy_cutter *cutter, const cut_side *side, uint32_t which,
                             const fy_memory_box *box, uint32_t n_dims, ferry_error *error)
{
    cutter->n_next = 0;
    for (size_t i = 0; i < cutter->n_open; i++) {
        fy_cut_piece *piece = &cutter->open[i];
        fy_cut_piece part = *piece;
        if (!meet(side, box, &piece->box, &part.box)) {
            FY_TRY(
                push_piece(&cutter->next, &cutter->n_next, &cutter->next_capacity, piece, error));
            continue;
        }
        FY_TRY(push_around(cutter, piece, &part.box, n_dims, error));
        part.times++;
        if (part.times == side->layer) {
            part.memory[which] = box;
            part.times = 0;
            FY_TRY(push_piece(&cutter->pieces, &cutter->n_pieces, &cutter->piece_capacity, &part,
                              error));
        } else {
            FY_TRY(
                push_piece(&cutter->next, &cutter->n_next, &cutter->next_capacity, &part, error));
        }
    }
    fy_cut_piece *swap = cutter->open;
    size_t capacity = cutter->open_capacity;
    cutter->open = cutter->next;
    cutter->open_capacity = cutter->next_capacity;
    cutter->n_open = cutter->n_next;
    cutter->next = swap;
    cutter->next_capacity = capacity;
    return FERRY_OK;
}

/*
 * The box that has all of a piece, if one is to be taken at once: of boxes that all have it, that
 * of the layer. A source box that has it is taken before several that have parts of it.
 */
static const fy_memory_box *find_whole(const fy_cut_list *list, const cut_side *side,
                                       uint32_t which)
{
    if (list->all_whole && side->layer <= list->n) {
        return list->boxes[side->layer - 1];
    }
    for (size_t i = 0; which == 0 && i < list->n; i++) {
        if (has_all(list->boxes[i], &list->inside, side->n_dims)) {
            return list->boxes[i];
        }
    }
    return NULL;
}

/*
 * Where the boxes have nothing in common, their parts of a piece are all of it: none is looked at
 * again for the next one. *done_out is false, and nothing is left behind, where they overlap.
 */
static ferry_status cut_apart(fy_cutter *cutter, const cut_side *side, uint32_t which,
                              const fy_cut_piece *piece, uint32_t n_dims, bool *done_out,
                              ferry_error *error)
{
    const fy_cut_list *list = &cutter->lists[which];
    size_t before = cutter->n_pieces;
    uint64_t whole = fy_box_volume(piece->box.length, n_dims), volume = 0;
    for (size_t i = 0; side->layer == 1 && i < list->n && volume <= whole; i++) {
        fy_cut_piece part = *piece;
        if (meet(side, list->boxes[i], &piece->box, &part.box)) {
            part.memory[which] = list->boxes[i];
            volume += fy_box_volume(part.box.length, n_dims);
            FY_TRY(push_piece(&cutter->pieces, &cutter->n_pieces, &cutter->piece_capacity, &part,
                              error));
        }
    }
    *done_out = volume == whole;
    cutter->n_pieces = *done_out ? cutter->n_pieces : before;
    return FERRY_OK;
}

/* Cuts one piece by the boxes of a rank; the parts go behind the others that there are. */
static ferry_status cut_piece(fy_cutter *cutter, const cut_side *side, uint32_t which,
                              const fy_cut_piece *piece, uint32_t n_dims, ferry_error *error)
{
    const fy_cut_list *list = &cutter->lists[which];
    FY_TRY(list_boxes(cutter, side, which, &piece->box, error));
    const fy_memory_box *whole = find_whole(list, side, which);
    if (whole != NULL) {
        fy_cut_piece part = *piece;
        part.memory[which] = whole;
        return push_piece(&cutter->pieces, &cutter->n_pieces, &cutter->piece_capacity, &part,
                          error);
    }
    bool done = false;
    FY_TRY(cut_apart(cutter, side, which, piece, n_dims, &done, error));
    if (done) {
        return FERRY_OK;
    }
    cutter->n_open = 0;
    FY_TRY(push_piece(&cutter->open, &cutter->n_open, &cutter->open_capacity, piece, error));
    for (size_t i = 0; i < list->n && cutter->n_open > 0; i++) {
        FY_TRY(take_box(cutter, side, which, list->boxes[i], n_dims, error));
    }
    return cutter->n_open == 0
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_INVALID_PLAN,
                         "\"%s\": rank %u has no memory for a part of it that its boxes have",
                         side->name, side->rank);
}

/* Cuts all pieces that there are by one side. */
static ferry_status cut_all(fy_cutter *cutter, const cut_side *side, uint32_t which,
                            uint32_t n_dims, ferry_error *error)
{
    size_t n = cutter->n_pieces;
    for (size_t i = 0; i < n; i++) {
        fy_cut_piece piece = cutter->pieces[i];
        FY_TRY(cut_piece(cutter, side, which, &piece, n_dims, error));
    }
    memmove(cutter->pieces, cutter->pieces + n, (cutter->n_pieces - n) * sizeof *cutter->pieces);
    cutter->n_pieces -= n;
    return FERRY_OK;
}

ferry_status fy_cutter_cut(fy_cutter *cutter, const ferry_plan *plan, uint32_t leg,
                           const fy_atom *atom, const fy_box *inside, uint32_t from, uint32_t to,
                           ferry_error *error)
{
    const fy_route *route = &plan->routes.routes[plan->routes.legs[leg].route];
    fy_cut_piece all = {.times = 0};
    for (uint32_t d = 0; d < route->n_dims; d++) {
        all.box.begin[d] = inside == NULL ? 0 : inside->begin[d];
        all.box.length[d] = inside == NULL ? atom->length[d] : inside->length[d];
    }
    cutter->n_pieces = 0;
    FY_TRY(push_piece(&cutter->pieces, &cutter->n_pieces, &cutter->piece_capacity, &all, error));
    for (uint32_t which = 2; which-- > 0;) {
        cut_side side = side_of(plan, leg, atom, which, which == 0 ? from : to);
        if (side.memory != NULL) {
            FY_TRY(cut_all(cutter, &side, which, route->n_dims, error));
        }
    }
    return FERRY_OK;
}

/* The place and the strides of a piece in the memory of one side. */
static void place_side(const ferry_plan *plan, uint32_t leg, const fy_atom *atom,
                       const fy_cut_piece *piece, uint32_t which, const ferry_move *move,
                       uint64_t *offset_out, uint64_t *strides)
{
    const fy_memory_box *box = piece->memory[which];
    cut_side side = side_of(plan, leg, atom, which, which == 0 ? move->from : move->to);
    *offset_out = box->offset;
    for (uint32_t d = 0; d < side.n_dims; d++) {
        uint32_t r = d + side.pad;
        uint64_t at = side.begin[d] + piece->box.begin[r] - box->numbers[d];
        *offset_out += at * fy_memory_strides(box)[d];
        /* Along one element any stride says the same. */
        strides[d] = piece->box.length[r] > 1 ? fy_memory_strides(box)[d] : 1;
    }
}

void fy_cut_place(const ferry_plan *plan, uint32_t leg, const fy_atom *atom,
                  const fy_cut_piece *piece, ferry_move *move)
{
    if (piece->memory[0] != NULL) {
        const ferry_side *side = plan->problem.memory[0]->side;
        move->src_parameter = side->parameters[piece->memory[0]->parameter].name;
        place_side(plan, leg, atom, piece, 0, move, &move->src_offset, move->src_strides);
        memset(move->src_begin, 0, move->src_n_dims * sizeof *move->src_begin);
    }
    if (piece->memory[1] != NULL) {
        const ferry_side *side = plan->problem.memory[1]->side;
        move->dst_parameter = side->parameters[piece->memory[1]->parameter].name;
        place_side(plan, leg, atom, piece, 1, move, &move->dst_offset, move->dst_strides);
        memset(move->dst_begin, 0, move->n_dims * sizeof *move->dst_begin);
    }
}

/*
 * The shape of the shard of a rank on a side that is a mesh, which is its memory in row-major order
 * from the element on that is returned.
 */
static uint64_t shard_shape(const ferry_plan *plan, const fy_route *route, uint32_t which,
                            uint32_t rank, uint64_t shape_out[FERRY_MAX_DIMS])
{
    uint32_t placement = which == 0 ? route->src : route->dst;
    const fy_layout *layout = &plan->problem.placements[placement].layout;
    const fy_holders *holders = fy_problem_holders(&plan->problem, placement);
    uint32_t parts[FERRY_MAX_DIMS + 1];
    fy_layout_parts(&plan->problem, layout, holders->cell[fy_holders_find(holders, rank)], parts);
    uint64_t n_elements = fy_layout_shard(&plan->problem, layout, parts, shape_out), begin, end;
    fy_layout_flat_range(layout, parts[layout->n_dims], n_elements, &begin, &end);
    return begin;
}

/* Memory of one side, by dimensions of the destination's tensor. */
static void patch_side(const ferry_plan *plan, const fy_route *route, uint32_t which,
                       const ferry_move *move, uint32_t m, fy_patch *patch)
{
    bool is_box = (which == 0 ? move->src_parameter : move->dst_parameter) != NULL;
    uint32_t n_dims = which == 0 ? move->src_n_dims : move->n_dims;
    const uint64_t *begin = which == 0 ? move->src_begin : move->dst_begin;
    const uint64_t *given = which == 0 ? move->src_strides : move->dst_strides;
    uint64_t strides[FERRY_MAX_DIMS], shape[FERRY_MAX_DIMS], stride = 1;
    patch->offset[m] = which == 0 ? move->src_offset : move->dst_offset;
    memcpy(strides, given, n_dims * sizeof *strides);
    if (!is_box) {
        patch->offset[m] =
            0 - shard_shape(plan, route, which, which == 0 ? move->from : move->to, shape);
        for (uint32_t d = n_dims; d > 0; d--) {
            strides[d - 1] = stride;
            patch->offset[m] += begin[d - 1] * stride;
            stride *= shape[d - 1];
        }
    }
    for (uint32_t d = 0; d < move->n_dims; d++) {
        /* A dimension that the side does not have goes on nowhere. */
        bool has = d + n_dims >= move->n_dims;
        patch->stride[m][d] = has ? strides[d + n_dims - move->n_dims] : 0;
        patch->fixed[m] |= has && is_box ? 0 : 1u << d;
    }
}

void fy_cut_ends(const ferry_plan *plan, uint32_t leg, const ferry_move *move, fy_patch *patch_out)
{
    const fy_leg *l = &plan->routes.legs[leg];
    const fy_route *route = &plan->routes.routes[l->route];
    memset(patch_out, 0, sizeof *patch_out);
    memcpy(patch_out->box.length, move->length, move->n_dims * sizeof *move->length);
    for (uint32_t which = 0; which < 2; which++) {
        patch_side(plan, route, which, move, which, patch_out);
    }
}

void fy_cut_patch(const ferry_plan *plan, uint32_t leg, const fy_atom *atom,
                  const fy_cut_piece *piece, const ferry_move *move, fy_patch *patch_out)
{
    const fy_leg *l = &plan->routes.legs[leg];
    const fy_route *route = &plan->routes.routes[l->route];
    cut_side src = side_of(plan, leg, atom, 0, move->from);
    cut_side dst = side_of(plan, leg, atom, 1, move->to);
    uint64_t group = fy_hash_mix(((uint64_t)dst.tensor << 32) | src.tensor, move->from);
    memset(patch_out, 0, sizeof *patch_out);
    for (uint32_t d = 0; d < dst.n_dims; d++) {
        uint32_t r = d + dst.pad;
        patch_out->box.begin[d] = dst.begin[d] + piece->box.begin[r];
        patch_out->box.length[d] = piece->box.length[r];
    }
    /* Parts of one box of the source too: they are as far apart there as here. */
    for (uint32_t d = 0; d < src.n_dims; d++) {
        uint32_t r = d + src.pad;
        uint64_t at = src.begin[d] + piece->box.begin[r];
        bool both = r >= dst.pad;
        group = fy_hash_mix(group, both ? at - patch_out->box.begin[r - dst.pad] : at);
    }
    for (uint32_t which = 0; which < 2; which++) {
        const fy_memory_box *box = piece->memory[which];
        group = fy_hash_mix(group, box == NULL ? 0 : box->parameter);
        patch_side(plan, route, which, move, which, patch_out);
    }
    patch_out->group = group;
}

/* The tensors of the spec that a plan reads, or writes. */
static ferry_status mark_used(ferry_plan *plan, uint32_t which, ferry_error *error)
{
    unsigned char *marks = fy_alloc_zeroed(plan->problem.n_tensors / 8 + 1u, 1);
    plan->used[which] = marks;
    FY_TRY(fy_check_memory(marks != NULL, "the tensors of a plan", error));
    for (size_t i = 0; i < plan->routes.n_legs; i++) {
        const fy_leg *leg = &plan->routes.legs[i];
        uint32_t number =
            fy_problem_whole_number(&plan->problem, which == 0 ? leg->source : leg->tensor);
        marks[number / 8] = (unsigned char)(marks[number / 8] | 1u << (number % 8));
    }
    for (uint32_t i = 0; which == 1 && i < plan->problem.n_tensors / 8 + 1u; i++) {
        marks[i] = marks[i] | plan->routes.made[i];
    }
    return FERRY_OK;
}

ferry_status fy_plan_note_cuts(ferry_plan *plan, ferry_error *error)
{
    const fy_problem *problem = &plan->problem;
    if (!fy_plan_has_boxes(plan)) {
        return FERRY_OK;
    }
    FY_TRY(mark_used(plan, 0, error));
    FY_TRY(mark_used(plan, 1, error));
    plan->cut_legs = fy_alloc(plan->routes.n_legs, sizeof *plan->cut_legs);
    FY_TRY(fy_check_memory(plan->cut_legs != NULL, "the tensors of a plan", error));
    for (size_t i = 0; i < plan->routes.n_legs; i++) {
        const fy_leg *leg = &plan->routes.legs[i];
        bool cut = problem->tensors[leg->tensor].fragment != NULL ||
                   problem->tensors[leg->source].fragment != NULL;
        for (uint32_t which = 0; which < 2 && !cut; which++) {
            const fy_memory *memory = problem->memory[which];
            uint32_t tensor = which == 0 ? leg->source : leg->tensor;
            cut = memory != NULL && !memory->tensors[tensor].is_single;
        }
        plan->cut_legs[i] = cut;
    }
    return FERRY_OK;
}
