/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_WRAP_OPS_H
#define FY_TRANSPORT_WRAP_OPS_H

#include "transport/wrap/layer.h"

/* Operations that a wrapper holds back, in the order of their calls. All zero is an empty queue. */
typedef struct fy_op {
    uint32_t peer;
    bool is_get;
    bool has_signal;
    fy_region_view region; /* copies: the caller's views need not outlive the call */
    void *attachment;
    uint64_t offset;
    void *memory; /* source of a put, target of a get */
    uint64_t bytes;
    fy_signal_view signal; /* its region is signal_region */
    fy_region_view signal_region;
    int64_t due_ns;
} fy_op;

typedef struct fy_ops {
    fy_op *items;
    size_t capacity;
    size_t begin, end; /* the queue is items[begin .. end) */
} fy_ops;

ferry_status fy_ops_add(fy_ops *ops, const fy_op *op, ferry_error *error);
void fy_ops_cleanup(fy_ops *ops);

static inline void fy_ops_forget(fy_ops *ops)
{
    ops->begin = ops->end = 0;
}

static inline bool fy_ops_empty(const fy_ops *ops)
{
    return ops->begin == ops->end;
}

/* A put, or with a signal; memory is only read by it. */
fy_op fy_op_put(uint32_t peer, const fy_region_view *region, void *attachment, uint64_t offset,
                const void *source, uint64_t bytes, const fy_signal_view *signal);
fy_op fy_op_get(uint32_t peer, const fy_region_view *region, void *attachment, uint64_t offset,
                void *target, uint64_t bytes);

/* Passes one on to the inner engine. */
ferry_status fy_op_perform(fy_op *op, const fy_layer *layer, ferry_error *error);

/* Takes the first one out of the queue and passes it on. */
ferry_status fy_ops_perform_first(fy_ops *ops, const fy_layer *layer, ferry_error *error);
/* The same with all of a peer's (FERRY_ANY_RANK: all), up to the first error. */
ferry_status fy_ops_perform_peer(fy_ops *ops, const fy_layer *layer, uint32_t peer,
                                 ferry_error *error);

/*
 * Before region goes: passes on everything if an operation of the queue needs it, or forgets it all
 * where the world has failed.
 */
void fy_ops_before_release(fy_ops *ops, const fy_layer *layer, const fy_region_view *region);

#endif
