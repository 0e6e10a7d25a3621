/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/failure.h"

#include "base/print.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { WELL = 0, BEING_WRITTEN = 1, FAILED = 2 };

void fy_failure_settle(fy_failure *failure)
{
    atomic_store_explicit(&failure->state, FAILED, memory_order_seq_cst);
}

bool fy_failure_set_v(fy_failure *failure, ferry_status status, uint32_t rank, const char *format,
                      va_list arguments)
{
    uint32_t well = WELL;
    if (!atomic_compare_exchange_strong(&failure->state, &well, BEING_WRITTEN)) {
        /* Whoever is first writes a sentence and never waits: this ends at once. */
        while (!fy_failed(failure)) {
            sched_yield();
        }
        return false;
    }
    int length = fy_vprint(failure->sentence, sizeof failure->sentence, format, arguments);
    if (length >= (int)sizeof failure->sentence) {
        memcpy(failure->sentence + sizeof failure->sentence - 4, "...", 4);
    }
    failure->status = (uint32_t)status;
    failure->rank = rank;
    fy_failure_settle(failure);
    return true;
}

bool fy_failure_set(fy_failure *failure, ferry_status status, uint32_t rank, const char *format,
                    ...)
{
    va_list arguments;
    va_start(arguments, format);
    bool first = fy_failure_set_v(failure, status, rank, format, arguments);
    va_end(arguments);
    return first;
}

ferry_status fy_failure_get(const fy_failure *failure, uint32_t *rank_out, ferry_error *error)
{
    if (!fy_failed(failure)) {
        return FERRY_OK;
    }
    if (rank_out != NULL) {
        *rank_out = failure->rank;
    }
    return fy_fail(error, (ferry_status)failure->status, "%s", failure->sentence);
}
