/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_ORDER_H
#define FY_WORLD_ORDER_H

#include "base/status.h"
#include "world/world.h"

/*
 * A world is used by one thread at a time. While a device's queue has work of it, it belongs to
 * that queue: the thread that does the work, in the queue's order, uses it, and calls in host order
 * and those on other queues are refused with a sentence (FERRY_ERR_MISUSE) that begins with `what`.
 */

/* One piece of work more that the queue has; until it is given back. */
ferry_status fy_order_take(ferry_world *world, const void *queue, const char *what,
                           ferry_error *error);
void fy_order_give_back(ferry_world *world);
/*
 * The work that was taken last is only looked on at, until the device is there: whoever comes when
 * all is over, and this is not given back yet, waits for that and is not refused.
 */
void fy_order_watch(ferry_world *world, const fy_order_end *end);
/* As give_back, of such work. */
void fy_order_end_watch(ferry_world *world);

/*
 * One who looks on at what no queue has been given: he is nobody's rival, and takes part in
 * whatever queue's the world is, or keeps it from calls in host order until he gives it back, as
 * what is watched. `end` is of what he looks on at.
 */
void fy_order_join(ferry_world *world, const fy_order_end *end);
void fy_order_part(ferry_world *world);

/*
 * Who may see work of the world that no queue has: calls in host order are refused while he does.
 * He stays until he is removed.
 */
typedef struct fy_order_onlooker {
    struct fy_order_onlooker *next;
    bool (*sees)(const void *of);
    const void *of;
} fy_order_onlooker;
void fy_order_add_onlooker(ferry_world *world, fy_order_onlooker *one);
void fy_order_remove_onlooker(ferry_world *world, fy_order_onlooker *one);

/* The thread that does the work, around it, and those that help it. */
void fy_order_enter(const ferry_world *world);
void fy_order_leave(void);
bool fy_order_is_entered(const ferry_world *world);

/* For calls that can refuse nothing: until no queue has work of the world. The thread that does
 * such work goes on at once. */
void fy_order_await(ferry_world *world);

ferry_status fy_order_refuse(ferry_world *world, const char *what, ferry_error *error);

/*
 * Whether a call in host order may use the world now; one load where it may. With acquire: who has
 * waited for a device alone knows nothing of the thread that has used the world until now.
 */
static inline ferry_status fy_world_check_order(ferry_world *world, const char *what,
                                                ferry_error *error)
{
    return atomic_load_explicit(&world->queue, memory_order_acquire) == NULL &&
                   atomic_load_explicit(&world->onlookers, memory_order_relaxed) == NULL
               ? FERRY_OK
               : fy_order_refuse(world, what, error);
}

#endif
