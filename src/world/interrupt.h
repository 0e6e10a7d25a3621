/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_INTERRUPT_H
#define FY_WORLD_INTERRUPT_H

#include "base/status.h"

#include <ferry/world.h>

#include <stdbool.h>
#include <stdint.h>

/*
 * A caller's wish to make no world after all. It is asked on the thread that makes the world, by
 * everything that waits there; NULL is a caller who has no such wish. Used by one thread at a time.
 */
typedef struct fy_interrupt {
    ferry_is_interrupted_fn ask;
    void *context;
    int64_t asked_ns; /* when it was last asked */
    bool is_set;      /* it said yes, and is not asked again */
} fy_interrupt;

/* Nobody who waits while a world is made sleeps longer than this without a look. */
enum { FY_INTERRUPT_NS = 50 * 1000 * 1000 };

/* Whether the world is not wanted any more; a stop function, too, whose context is the interrupt.
 */
bool fy_interrupted(void *interrupt);
/* A new call: what was said to an earlier one does not count. NULL is allowed. */
void fy_interrupt_begin(fy_interrupt *interrupt);
/* FERRY_ERR_STOPPED and why. */
ferry_status fy_interrupt_fail(ferry_error *error);

/* A wait of limit_ns is cut into pieces of this length where somebody may interrupt it. */
static inline int64_t fy_interrupt_slice_ns(const fy_interrupt *interrupt, int64_t limit_ns)
{
    return interrupt != NULL && limit_ns > FY_INTERRUPT_NS ? FY_INTERRUPT_NS : limit_ns;
}

#endif
