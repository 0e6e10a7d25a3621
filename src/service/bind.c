/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * From a plan to ends. The shards of this rank say how its tensors lie in memory; its moves are
 * boxes of them. Element x of a box lies at rowmajor(x) - flat_begin of the shard, in elements, so
 * areas are worked out in elements and become bytes last: a row of half bytes may end inside one.
 */
#include "service/bind.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/hash.h"
#include "base/sort.h"

#include <string.h>

static void binding_cleanup(fy_binding *b)
{
    for (int side = 0; side < 2; side++) {
        fy_free(b->sides[side].items);
        fy_index_cleanup(&b->sides[side].index);
    }
    fy_free(b->members);
}

static const char *name_of(const fy_local_side *side, size_t tensor)
{
    const char *staged = side->items[tensor].staged;
    return staged != NULL ? staged : fy_tensors_name(side->tensors, side->items[tensor].index);
}

static bool index_names(fy_local_side *side)
{
    for (; side->n_indexed < side->n; side->n_indexed++) {
        const char *name = name_of(side, side->n_indexed);
        if (!fy_index_insert(&side->index, fy_hash64(name, strlen(name)),
                             (uint32_t)side->n_indexed)) {
            return false;
        }
    }
    return true;
}

/* side->n if there is none. The index is made once moves come in another order. */
static ferry_status search(fy_local_side *side, const char *name, size_t *found_out,
                           ferry_error *error)
{
    FY_TRY(fy_check_memory(index_names(side), "the tensors of a plan", error));
    fy_index_cursor c = fy_index_first(&side->index, fy_hash64(name, strlen(name)));
    while (c.value != FY_INDEX_NONE && strcmp(name_of(side, c.value), name) != 0) {
        fy_index_next(&side->index, &c);
    }
    *found_out = c.value == FY_INDEX_NONE ? side->n : c.value;
    return FERRY_OK;
}

/* Moves come in the order of the shards, mostly: that saves a search. */
ferry_status fy_bind_find(fy_local_side *side, const char *name, fy_local_tensor **tensor_out,
                          ferry_error *error)
{
    size_t at = side->last_name == NULL ? 0 : side->last + (name != side->last_name);
    bool is_next =
        at < side->n && (name == side->last_name || strcmp(name_of(side, at), name) == 0);
    if (!is_next) {
        FY_TRY(search(side, name, &at, error));
    }
    *tensor_out = at < side->n ? &side->items[at] : NULL;
    if (at < side->n) {
        side->last_name = name;
        side->last = at;
    }
    return FERRY_OK;
}

static const char *side_word(const fy_local_side *side)
{
    return side->is_destination ? "destination" : "source";
}

/* Whether the caller gave what the plan's shard needs. */
static ferry_status check_given(const fy_binding *b, const fy_local_side *side,
                                const ferry_shard *shard, size_t index)
{
    const char *word = side_word(side);
    unsigned long long bytes = shard->bytes;
    if (index == SIZE_MAX) {
        return fy_fail(b->error, FERRY_ERR_INVALID_INPUT,
                       "%s: rank %u of the plan has %llu bytes of it as a %s, but the list of %ss "
                       "has no tensor of this name",
                       shard->tensor, b->me, bytes, word, word);
    }
    const ferry_buffer *front = fy_tensors_front(side->tensors, index);
    if (front->bytes != shard->bytes) {
        return fy_fail(b->error, FERRY_ERR_INVALID_INPUT,
                       "%s: rank %u of the plan has %llu bytes of it as a %s, but the buffer has "
                       "%llu",
                       shard->tensor, b->me, bytes, word, (unsigned long long)front->bytes);
    }
    const ferry_buffer *back = fy_tensors_back(side->tensors, index);
    if (b->wants_pairs && side->is_destination && (back == NULL || back->bytes != front->bytes)) {
        return fy_fail(b->error, FERRY_ERR_INVALID_INPUT,
                       "%s: its destination at rank %u of the plan has a front of %llu bytes and a "
                       "back of %llu; runs that swap need pairs (ferry_tensors_add_pair)",
                       shard->tensor, b->me, bytes,
                       (unsigned long long)(back == NULL ? 0 : back->bytes));
    }
    return FERRY_OK;
}

/* Sources are held when something is sent of them: a replica may have no part in the plan. */
ferry_status fy_bind_hold(fy_binding *b, const fy_local_side *side, fy_local_tensor *tensor)
{
    size_t name;
    FY_TRY(fy_registry_name(b->registry, fy_tensors_name(side->tensors, tensor->index), &name,
                            b->error));
    const ferry_buffer *back = b->wants_pairs && side->is_destination
                                   ? fy_tensors_back(side->tensors, tensor->index)
                                   : NULL;
    return fy_registry_hold_tensor(b->registry, fy_tensors_front(side->tensors, tensor->index),
                                   back, name, side->is_destination, &tensor->held, b->error);
}

static ferry_status take_shard(fy_binding *b, fy_local_side *side, const ferry_shard *shard)
{
    if (shard->bytes == 0) {
        return FERRY_OK; /* no move has a box in it, and there need not be a buffer */
    }
    size_t guess = side->n == 0 ? 0 : side->items[side->n - 1].index + 1;
    size_t index = fy_tensors_find(side->tensors, shard->tensor, guess);
    FY_TRY(check_given(b, side, shard, index));
    fy_local_tensor tensor = {.index = index,
                              .held = FY_NONE,
                              .n_dims = shard->n_dims,
                              .flat_begin = shard->is_flat ? shard->flat_begin : 0,
                              .bytes = shard->bytes,
                              .is_whole = !shard->is_flat && !shard->is_parameter,
                              .dtype = shard->dtype,
                              .conversion = shard->conversion};
    memcpy(tensor.shape, shard->local, shard->n_dims * sizeof *tensor.shape);
    if (!FY_RESERVE(side->items, side->capacity, side->n + 1)) {
        return fy_fail_no_memory(b->error, "the tensors of a plan");
    }
    side->items[side->n++] = tensor;
    return side->is_destination ? fy_bind_hold(b, side, &side->items[side->n - 1]) : FERRY_OK;
}

static ferry_status visit_source(void *context, const ferry_shard *shard)
{
    fy_binding *b = context;
    return take_shard(b, &b->sides[FERRY_SIDE_SOURCE], shard);
}

static ferry_status visit_destination(void *context, const ferry_shard *shard)
{
    fy_binding *b = context;
    return take_shard(b, &b->sides[FERRY_SIDE_DESTINATION], shard);
}

bool fy_element_box_within(const fy_local_tensor *tensor, const uint64_t *begin,
                           const uint64_t *length, fy_element_box *box)
{
    uint64_t stride = 1, first = 0, skipped, end;
    uint32_t at = FERRY_MAX_DIMS; /* dimensions fill the arrays from the end */
    *box = (fy_element_box){.run = 1};
    for (uint32_t d = tensor->n_dims; d-- > 0;) {
        if (!fy_add(begin[d], length[d], &end) || end > tensor->shape[d] ||
            !fy_mul(begin[d], stride, &skipped) || !fy_add(first, skipped, &first)) {
            return false;
        }
        if (length[d] != 1) {
            if (at == FERRY_MAX_DIMS && stride == box->run) {
                box->run *= length[d];
            } else {
                at--;
                box->length[at] = length[d];
                box->stride[at] = stride;
            }
        }
        if (!fy_mul(stride, tensor->shape[d], &stride)) {
            return false;
        }
    }
    box->n_dims = FERRY_MAX_DIMS - at;
    memmove(box->length, box->length + at, box->n_dims * sizeof *box->length);
    memmove(box->stride, box->stride + at, box->n_dims * sizeof *box->stride);
    box->first = first - tensor->flat_begin;
    return first >= tensor->flat_begin;
}

/* Elements to bytes; false where that many elements are no whole bytes. */
static bool to_bytes(uint64_t elements, uint32_t bits, uint64_t *bytes_out)
{
    uint64_t n_bits;
    if (bits % 8 == 0) {
        return fy_mul(elements, bits / 8, bytes_out);
    }
    if (!fy_mul(elements, bits, &n_bits) || n_bits % 8 != 0) {
        return false;
    }
    *bytes_out = n_bits / 8;
    return true;
}

bool fy_element_box_to_bytes(fy_element_box *box, uint32_t bits)
{
    bool whole = to_bytes(box->first, bits, &box->first) && to_bytes(box->run, bits, &box->run);
    for (uint32_t d = 0; d < box->n_dims && whole; d++) {
        whole = to_bytes(box->stride[d], bits, &box->stride[d]);
    }
    return whole;
}

ferry_status fy_bind_fail_move(const fy_binding *b, const ferry_move *move, const char *why)
{
    return fy_fail(b->error, FERRY_ERR_INVALID_PLAN, "%s: task %llu from rank %u to rank %u %s",
                   move->tensor, (unsigned long long)move->task_id, move->from, move->to, why);
}

fy_element_box fy_element_box_of(uint64_t offset, uint32_t n_dims, const uint64_t *length,
                                 const uint64_t *stride)
{
    fy_element_box box = {.first = offset, .run = 1};
    uint32_t n = 0;
    while (n_dims > 0 && (length[n_dims - 1] == 1 || stride[n_dims - 1] == box.run)) {
        box.run *= length[--n_dims];
    }
    for (uint32_t d = 0; d < n_dims; d++) {
        if (length[d] != 1) {
            box.length[n] = length[d];
            box.stride[n++] = stride[d];
        }
    }
    box.n_dims = n;
    return box;
}

ferry_status fy_bind_parameter_area(const fy_binding *b, const char *name, fy_element_box *box,
                                    uint32_t bits, uint64_t bytes, const fy_local_tensor *tensor,
                                    fy_area *area_out)
{
    ferry_error why = {.message = "elements do not begin and end on bytes"};
    uint64_t begin, end = 0;
    ferry_status status = fy_element_box_to_bytes(box, bits)
                              ? fy_area_make(box->first, box->run, box->n_dims, box->length,
                                             box->stride, area_out, &why)
                              : FERRY_ERR_INVALID_PLAN;
    if (status == FERRY_ERR_NO_MEMORY) {
        return fy_forward(b->error, status, &why);
    }
    if (status == FERRY_OK) {
        fy_area_hull(area_out, &begin, &end);
    }
    if (status != FERRY_OK || end > tensor->bytes || area_out->bytes != bytes) {
        return fy_fail(b->error, FERRY_ERR_INVALID_PLAN,
                       "%s: a box of the plan does not fit its %llu bytes: %s", name,
                       (unsigned long long)tensor->bytes,
                       status != FERRY_OK ? why.message : "it is another one");
    }
    return FERRY_OK;
}

/* Of a move's elements, as one of its ends has them. */
static uint32_t bits_of(const ferry_move *move, bool is_send)
{
    return move->conversion == NULL || fy_is_gathered(move) ? move->dtype.element_bits
           : is_send                                        ? move->src_dtype.element_bits
                                                            : move->dst_dtype.element_bits;
}

/* How many bytes a move's elements are at one of its ends; false: more than a number can say. */
static bool bytes_at_end(const ferry_move *move, bool is_send, uint64_t *bytes_out)
{
    uint32_t travels = move->dtype.element_bits, here = bits_of(move, is_send);
    *bytes_out = move->bytes; /* of what has half bytes these are half bytes here too */
    if (here == travels) {
        return true;
    }
    return travels < 8 ? fy_mul(move->bytes, here / travels, bytes_out)
                       : fy_mul(move->bytes / (travels / 8), here / 8, bytes_out);
}

/* The area of a move's box in a tensor of this rank. */
static ferry_status find_area(const fy_binding *b, const ferry_move *move,
                              const fy_local_tensor *tensor, bool is_send, fy_area *area_out)
{
    uint32_t n_dims = is_send ? move->src_n_dims : move->n_dims;
    uint32_t bits = bits_of(move, is_send);
    uint64_t bytes;
    fy_element_box box;
    if (!bytes_at_end(move, is_send, &bytes)) {
        return fy_bind_fail_move(b, move, "has too many bytes");
    }
    if ((is_send ? move->src_parameter : move->dst_parameter) != NULL) {
        box = is_send
                  ? fy_element_box_of(move->src_offset, n_dims, move->src_length, move->src_strides)
                  : fy_element_box_of(move->dst_offset, n_dims, move->length, move->dst_strides);
        return fy_bind_parameter_area(b, move->tensor, &box, bits, bytes, tensor, area_out);
    }
    if (n_dims != tensor->n_dims ||
        !fy_element_box_within(tensor, is_send ? move->src_begin : move->dst_begin,
                               is_send ? move->src_length : move->length, &box)) {
        return fy_bind_fail_move(b, move, "has a box outside the shard");
    }
    if (!fy_element_box_to_bytes(&box, bits)) {
        return fy_bind_fail_move(b, move, "has rows that do not begin and end on bytes");
    }
    fy_area area;
    FY_TRY(fy_area_make(box.first, box.run, box.n_dims, box.length, box.stride, &area, b->error));
    if (area.bytes != bytes) {
        return fy_bind_fail_move(b, move, "has a box of another size than the move");
    }
    *area_out = area;
    return FERRY_OK;
}

/* A rank of the plan in the world. */
static ferry_status find_member(const fy_binding *b, uint32_t member, uint32_t *rank_out)
{
    FY_BISECT(uint32_t, low, 0, b->n_members, middle, b->members[middle].member < member);
    if (low == b->n_members || b->members[low].member != member) {
        return fy_fail(b->error, FERRY_ERR_INVALID_INPUT,
                       "rank %u is gone: plan again without it (lost_ranks)", member);
    }
    *rank_out = b->members[low].rank;
    return FERRY_OK;
}

/*
 * What becomes of a move's elements. Of plans that ferry made all of this is so; a caller's own
 * could be anything.
 */
static ferry_status find_conversion(fy_binding *b, const ferry_move *move,
                                    const fy_local_tensor *tensor, bool is_send,
                                    uint32_t *number_out)
{
    const ferry_conversion *its = move->conversion;
    *number_out = 0;
    if (its == NULL || fy_is_gathered(move)) {
        return FERRY_OK;
    }
    if (its->kind == FERRY_CONVERSION_CODES || its->kind == FERRY_CONVERSION_SCALES) {
        return is_send ? fy_bind_codes(b, move, tensor, number_out) : FERRY_OK;
    }
    bool is_raw = its->kind == FERRY_CONVERSION_DEQUANTIZE;
    if (its->kind != FERRY_CONVERSION_CAST && !is_raw) {
        return fy_bind_fail_move(b, move, "has a conversion that the copy service does not do");
    }
    uint32_t from = move->src_dtype.kind, to = move->dst_dtype.kind;
    uint32_t wire = its->at_receiver ? from : to;
    bool exists = is_raw && from == FERRY_F4 ? its->at_receiver && fy_cast_exists(FERRY_F8E4M3, to)
                                             : fy_cast_exists(from, to);
    if (!exists || move->dtype.kind != wire || its->scale == 0) {
        return fy_bind_fail_move(b, move, "has a cast that there is not");
    }
    fy_task_cast conversion = {
        .cast = {.from_kind = from,
                 .to_kind = to,
                 .overflow = its->saturates ? FY_OVERFLOW_SATURATE : FY_OVERFLOW_PLAIN,
                 .scale = its->scale,
                 .add = its->add,
                 .n_rows = 1,
                 .n_columns = 1},
        .at_receiver = its->at_receiver,
        .is_raw = is_raw};
    conversion.from_bytes = (uint32_t)fy_cast_from_bytes(&conversion.cast);
    conversion.to_bytes = (uint32_t)fy_cast_to_bytes(&conversion.cast);
    conversion.wire_bytes = its->at_receiver ? conversion.from_bytes : conversion.to_bytes;
    return fy_registry_convert(b->registry, &conversion, number_out, b->error);
}

/* Scales, and codes of half a byte, are sent from where they were made when a run began. */
static bool is_made_before(const ferry_move *move)
{
    return move->conversion != NULL &&
           (move->conversion->kind == FERRY_CONVERSION_SCALES ||
            (move->conversion->kind == FERRY_CONVERSION_CODES && !move->conversion->at_receiver &&
             move->conversion->code_dtype.kind == FERRY_F4));
}

static ferry_status add_end(fy_binding *b, const ferry_move *move, bool is_send)
{
    fy_local_side *side = &b->sides[is_send ? FERRY_SIDE_SOURCE : FERRY_SIDE_DESTINATION];
    const char *parameter = is_send ? move->src_parameter : move->dst_parameter;
    const char *name = parameter != NULL                 ? parameter
                       : is_send && move->source != NULL ? move->source
                                                         : move->tensor;
    fy_local_tensor *tensor;
    FY_TRY(fy_bind_find(side, name, &tensor, b->error));
    if (tensor == NULL) {
        return fy_bind_fail_move(b, move, "has a box in a tensor that this rank does not have");
    }
    uint32_t peer = 0, conversion = 0;
    fy_area area = {0};
    ferry_status status = find_member(b, is_send ? move->to : move->from, &peer);
    if (status == FERRY_OK && tensor->held == FY_NONE) {
        status = fy_bind_hold(b, side, tensor);
    }
    if (status == FERRY_OK && is_send && is_made_before(move)) {
        return fy_bind_scaled(b, move, tensor, peer);
    }
    fy_local_tensor gathered;
    if (status == FERRY_OK && !is_send && fy_is_gathered(move)) {
        status = fy_bind_gather(b, tensor, move->dst_dtype.element_bits, move->src_dtype,
                                move->tensor, &gathered);
        tensor = &gathered;
    }
    FY_THEN(status, find_conversion(b, move, tensor, is_send, &conversion));
    FY_THEN(status, find_area(b, move, tensor, is_send, &area));
    uint32_t bits = move->dtype.element_bits, rows = 0;
    if (status == FERRY_OK && fy_is_gathered(move) && move->dst_parameter == NULL) {
        status = fy_bind_rows(b, move, &rows);
    }
    FY_THEN(status,
            fy_registry_add_area(b->registry, is_send, move->task_id, peer, tensor->held,
                                 bits % 8 == 0 ? bits / 8 : 1, conversion, &area, b->error));
    if (status == FERRY_OK && rows != 0) {
        fy_ends *ends = is_send ? &b->registry->sends : &b->registry->receives;
        ends->items[ends->n - 1].rows = rows;
    }
    return status;
}

static ferry_status visit_move(void *context, const ferry_move *move)
{
    fy_binding *b = context;
    ferry_status status = FERRY_OK;
    if (move->bytes == 0) {
        return FERRY_OK;
    }
    if (move->from == b->me) {
        status = add_end(b, move, true);
    }
    if (status == FERRY_OK && move->to == b->me) {
        status = add_end(b, move, false);
    }
    return status;
}

/* What this rank writes by itself. */
static ferry_status visit_fill(void *context, const ferry_fill *fill)
{
    fy_binding *b = context;
    uint32_t bits = fill->dtype.element_bits;
    fy_local_tensor *tensor;
    fy_area area = {0};
    if (fill->bytes == 0) {
        return FERRY_OK;
    }
    FY_TRY(fy_bind_find(&b->sides[FERRY_SIDE_DESTINATION], fill->parameter, &tensor, b->error));
    if (tensor == NULL) {
        return fy_fail(b->error, FERRY_ERR_INVALID_PLAN,
                       "%s: has a fill on rank %u, which does not have it", fill->parameter, b->me);
    }
    fy_element_box box = fy_element_box_of(fill->offset, fill->n_dims, fill->shape, fill->strides);
    FY_TRY(fy_bind_parameter_area(b, fill->parameter, &box, bits, fill->bytes, tensor, &area));
    return fy_registry_add_fill(b->registry, b->my_rank, tensor->held, fill->bits,
                                bits % 8 == 0 ? bits / 8 : 1, &area, b->error);
}

static int compare_members(const void *a, const void *b)
{
    const fy_bind_member *x = a, *y = b;
    return (x->member > y->member) - (x->member < y->member);
}

static ferry_status list_members(fy_binding *b, const ferry_world *world)
{
    b->n_members = ferry_world_rank_count(world);
    b->members = fy_alloc(b->n_members, sizeof *b->members);
    FY_TRY(fy_check_memory(b->members != NULL, "the members of a world", b->error));
    for (uint32_t r = 0; r < b->n_members; r++) {
        b->members[r] = (fy_bind_member){.member = ferry_world_member_of(world, r), .rank = r};
    }
    fy_sort(b->members, b->n_members, sizeof *b->members, compare_members);
    uint32_t n_plan = ferry_plan_rank_count(b->plan);
    if (ferry_world_epoch(world) == 0 && n_plan > b->n_members) {
        return fy_fail(b->error, FERRY_ERR_INVALID_INPUT,
                       "the plan is for %u ranks, but the world has %u", n_plan, b->n_members);
    }
    return FERRY_OK;
}

static ferry_status visit(fy_binding *b)
{
    if (b->me >= ferry_plan_rank_count(b->plan)) {
        return FERRY_OK; /* a rank that the plan does not know */
    }
    FY_TRY(ferry_plan_visit_shards(b->plan, FERRY_SIDE_SOURCE, b->me, visit_source, b, b->error));
    FY_TRY(ferry_plan_visit_shards(b->plan, FERRY_SIDE_DESTINATION, b->me, visit_destination, b,
                                   b->error));
    FY_TRY(ferry_plan_visit_staged(b->plan, b->me, fy_bind_staged, b, b->error));
    FY_TRY(fy_plan_visit_products(b->plan, b->me, fy_bind_product, b, b->error));
    FY_TRY(ferry_plan_visit(b->plan, b->me, visit_move, b, NULL, b->error));
    FY_TRY(fy_plan_visit_made(b->plan, b->me, fy_bind_made, b, b->error));
    return ferry_plan_visit_fills(b->plan, b->me, visit_fill, b, b->error);
}

ferry_status fy_bind(fy_registry *registry, const ferry_world *world, const ferry_plan *plan,
                     const ferry_tensors *sources, const ferry_tensors *destinations,
                     bool wants_pairs, ferry_error *error)
{
    fy_binding b = {.registry = registry, .plan = plan, .wants_pairs = wants_pairs, .error = error};
    b.my_rank = ferry_world_rank(world);
    b.me = ferry_world_member_of(world, b.my_rank);
    b.sides[FERRY_SIDE_SOURCE].tensors = sources;
    b.sides[FERRY_SIDE_DESTINATION].tensors = destinations;
    b.sides[FERRY_SIDE_DESTINATION].is_destination = true;
    ferry_status status = list_members(&b, world);
    FY_THEN(status, visit(&b));
    FY_THEN(status, fy_bind_note_idle(&b));
    if (status == FERRY_OK) {
        registry->plan = fy_plan_retain(plan);
    } else {
        fy_registry_cleanup(registry);
    }
    binding_cleanup(&b);
    return status;
}
