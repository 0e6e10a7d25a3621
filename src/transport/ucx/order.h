/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_UCX_ORDER_H
#define FY_UCX_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The order of what one source sends here. Every ordered message carries the next number of its
 * source. Messages are completed in any order (a rendezvous overtakes and is overtaken), but what
 * is to happen after one, such as raising its signal, happens only when it and all with lower
 * numbers are complete: then fy_ucx_order_next hands it out. All zero is an empty one.
 */

/* What a message asks for once it and all before it are in place. */
typedef enum fy_ucx_after {
    FY_UCX_NOTHING = 0,
    FY_UCX_SET = 1,    /* store value to the word at offset of region */
    FY_UCX_ADD = 2,    /* add it */
    FY_UCX_ANSWER = 3, /* tell the source that value has been reached */
} fy_ucx_after;

typedef struct fy_ucx_slot {
    uint64_t region;
    uint64_t offset;
    uint64_t value;
    uint16_t after; /* fy_ucx_after */
    bool taken;
    bool done;
} fy_ucx_slot;

typedef struct fy_ucx_order {
    uint64_t next; /* the lowest number that has not been handed out */
    uint64_t end;  /* above the highest number seen */
    fy_ucx_slot *slots;
    size_t capacity; /* zero or a power of two */
} fy_ucx_order;

typedef enum fy_ucx_placed {
    FY_UCX_PLACED = 0,
    FY_UCX_NO_MEMORY = 1,
    FY_UCX_NONSENSE = 2, /* a number that was seen before, or absurdly far ahead */
} fy_ucx_placed;

/* Message number has begun; slot is what follows it. Allocates only when more are open than ever.
 */
fy_ucx_placed fy_ucx_order_place(fy_ucx_order *order, uint64_t number, const fy_ucx_slot *slot);
/* Message number, which was placed, is complete. */
void fy_ucx_order_complete(fy_ucx_order *order, uint64_t number);
/* Hands out the lowest number if it is complete. */
bool fy_ucx_order_next(fy_ucx_order *order, fy_ucx_slot *slot_out);
void fy_ucx_order_cleanup(fy_ucx_order *order);

#endif
