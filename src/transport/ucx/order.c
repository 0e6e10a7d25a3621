/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/ucx/order.h"

#include "base/alloc.h"

/*
 * No source has more messages under way behind one that is not complete: its window is far smaller,
 * eager ones included. What one number can make a rank allocate is 32 MiB.
 */
enum { MOST_OPEN = 1 << 20, FIRST_CAPACITY = 64 };

static fy_ucx_slot *slot_of(const fy_ucx_order *order, uint64_t number)
{
    return &order->slots[number & (order->capacity - 1)];
}

static bool grow(fy_ucx_order *order, uint64_t needed)
{
    size_t capacity = order->capacity == 0 ? FIRST_CAPACITY : order->capacity;
    while (capacity < needed) {
        capacity *= 2;
    }
    fy_ucx_slot *slots = fy_alloc_zeroed(capacity, sizeof *slots);
    if (slots == NULL) {
        return false;
    }
    for (uint64_t number = order->next; number < order->end; number++) {
        slots[number & (capacity - 1)] = *slot_of(order, number);
    }
    fy_free(order->slots);
    order->slots = slots;
    order->capacity = capacity;
    return true;
}

fy_ucx_placed fy_ucx_order_place(fy_ucx_order *order, uint64_t number, const fy_ucx_slot *slot)
{
    if (number < order->next || number - order->next >= MOST_OPEN) {
        return FY_UCX_NONSENSE;
    }
    uint64_t needed = number - order->next + 1;
    if (needed > order->capacity && !grow(order, needed)) {
        return FY_UCX_NO_MEMORY;
    }
    fy_ucx_slot *place = slot_of(order, number);
    if (place->taken) {
        return FY_UCX_NONSENSE;
    }
    *place = *slot;
    place->taken = true;
    place->done = false;
    if (number >= order->end) {
        order->end = number + 1;
    }
    return FY_UCX_PLACED;
}

void fy_ucx_order_complete(fy_ucx_order *order, uint64_t number)
{
    slot_of(order, number)->done = true;
}

bool fy_ucx_order_next(fy_ucx_order *order, fy_ucx_slot *slot_out)
{
    if (order->next == order->end) {
        return false;
    }
    fy_ucx_slot *slot = slot_of(order, order->next);
    if (!slot->taken || !slot->done) {
        return false;
    }
    *slot_out = *slot;
    *slot = (fy_ucx_slot){0};
    order->next++;
    return true;
}

void fy_ucx_order_cleanup(fy_ucx_order *order)
{
    fy_free(order->slots);
    *order = (fy_ucx_order){0};
}
