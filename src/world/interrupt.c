/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/interrupt.h"

#include "world/bell.h"

/* Loops that spin look often, and what is asked may take a lock of its own. */
static const int64_t least_pause_ns = 10 * 1000 * 1000;

bool fy_interrupted(void *context)
{
    fy_interrupt *interrupt = context;
    if (interrupt == NULL || interrupt->is_set) {
        return interrupt != NULL;
    }
    int64_t now = fy_now_ns();
    if (interrupt->asked_ns == 0 || now - interrupt->asked_ns >= least_pause_ns) {
        interrupt->asked_ns = now;
        interrupt->is_set = interrupt->ask(interrupt->context);
    }
    return interrupt->is_set;
}

void fy_interrupt_begin(fy_interrupt *interrupt)
{
    if (interrupt != NULL) {
        interrupt->is_set = false;
        interrupt->asked_ns = 0;
    }
}

ferry_status fy_interrupt_fail(ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_STOPPED,
                   "the caller's is_interrupted stopped the making of this world");
}
