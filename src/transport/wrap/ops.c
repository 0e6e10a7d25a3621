/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/wrap/ops.h"

#include "base/alloc.h"

#include <string.h>

fy_op fy_op_put(uint32_t peer, const fy_region_view *region, void *attachment, uint64_t offset,
                const void *source, uint64_t bytes, const fy_signal_view *signal)
{
    fy_op op = {.peer = peer,
                .region = *region,
                .attachment = attachment,
                .offset = offset,
                .memory = (void *)(uintptr_t)source,
                .bytes = bytes,
                .has_signal = signal != NULL};
    if (signal != NULL) {
        op.signal = *signal;
        op.signal_region = *signal->region;
    }
    return op;
}

fy_op fy_op_get(uint32_t peer, const fy_region_view *region, void *attachment, uint64_t offset,
                void *target, uint64_t bytes)
{
    fy_op op = fy_op_put(peer, region, attachment, offset, target, bytes, NULL);
    op.is_get = true;
    return op;
}

ferry_status fy_ops_add(fy_ops *ops, const fy_op *op, ferry_error *error)
{
    if (ops->end == ops->capacity && ops->begin > ops->capacity / 2) {
        memmove(ops->items, ops->items + ops->begin, (ops->end - ops->begin) * sizeof *op);
        ops->end -= ops->begin;
        ops->begin = 0;
    }
    void *items = ops->items;
    FY_TRY(fy_check_memory(fy_reserve(&items, &ops->capacity, ops->end + 1, sizeof *op),
                           "an operation that a wrapper holds back", error));
    ops->items = items;
    ops->items[ops->end++] = *op;
    return FERRY_OK;
}

void fy_ops_cleanup(fy_ops *ops)
{
    fy_free(ops->items);
    *ops = (fy_ops){0};
}

ferry_status fy_op_perform(fy_op *op, const fy_layer *layer, ferry_error *error)
{
    const fy_engine *inner = layer->inner;
    if (op->is_get) {
        return inner->get(layer->inner_state, op->peer, &op->region, op->attachment, op->offset,
                          op->memory, op->bytes, error);
    }
    op->signal.region = &op->signal_region;
    return inner->put(layer->inner_state, op->peer, &op->region, op->attachment, op->offset,
                      op->memory, op->bytes, op->has_signal ? &op->signal : NULL, error);
}

ferry_status fy_ops_perform_first(fy_ops *ops, const fy_layer *layer, ferry_error *error)
{
    fy_op op = ops->items[ops->begin++]; /* a copy: performing may add to the queue */
    if (fy_ops_empty(ops)) {
        fy_ops_forget(ops);
    }
    return fy_op_perform(&op, layer, error);
}

ferry_status fy_ops_perform_peer(fy_ops *ops, const fy_layer *layer, uint32_t peer,
                                 ferry_error *error)
{
    ferry_status status = FERRY_OK;
    size_t kept = ops->begin;
    for (size_t i = ops->begin; i < ops->end; i++) {
        fy_op *op = &ops->items[i];
        if (status == FERRY_OK && (peer == FERRY_ANY_RANK || op->peer == peer)) {
            status = fy_op_perform(op, layer, error);
        } else {
            ops->items[kept++] = *op;
        }
    }
    ops->end = kept;
    if (fy_ops_empty(ops)) {
        fy_ops_forget(ops);
    }
    return status;
}

static bool same_region(const fy_region_view *a, const fy_region_view *b)
{
    return a->kind == b->kind && a->owner == b->owner && a->id == b->id;
}

void fy_ops_before_release(fy_ops *ops, const fy_layer *layer, const fy_region_view *region)
{
    bool needs = false;
    for (size_t i = ops->begin; i < ops->end && !needs; i++) {
        const fy_op *op = &ops->items[i];
        needs = same_region(&op->region, region) ||
                (op->has_signal && same_region(&op->signal_region, region));
    }
    if (!needs) {
        return;
    }
    ferry_error ignored;
    if (layer->host->state(layer->host, &ignored) == FERRY_OK) {
        (void)fy_ops_perform_peer(ops, layer, FERRY_ANY_RANK, &ignored);
    }
    fy_ops_forget(ops);
}
