/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_ORDER_H
#define FY_SCHEDULE_ORDER_H

#include "base/status.h"
#include "schedule/reference_workloads.h"

#include <ferry/reference.h>

/* When a batch of this rank goes. */
typedef struct fy_sent_batch {
    uint32_t round;
    uint32_t to;
    uint32_t index;
} fy_sent_batch;

typedef struct fy_send_order {
    fy_sent_batch *batches; /* by round; the caller frees them */
    size_t n;
} fy_send_order;

/*
 * As ferry_reference_schedule_build, by rank 0 for all. What a service needs is the order
 * of what it sends: each rank tells rank 0 its batches and is told when they go. The exchange has
 * gather and scatter.
 */
ferry_status fy_build_order(const ferry_reference_workloads *workloads,
                            const ferry_exchange *exchange, fy_send_order *order_out,
                            ferry_error *error);

#endif
