/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/exec.h"

#include <sched.h>
#include <time.h>

static bool is_reached(const fy_exec *exec, int32_t device, fy_space from, fy_space to)
{
    return exec->reaches(device, from) && exec->reaches(device, to);
}

/* The target's own exec first: what writes to a device best knows when it is done. */
fy_exec_choice fy_exec_for_devices(fy_space from, fy_space to)
{
    fy_space sides[] = {to, from};
    for (int i = 0; i < 2; i++) {
        const fy_memory_kind *row = fy_memory_row(sides[i].kind);
        if (row != NULL && !fy_is_host(sides[i]) &&
            is_reached(row->exec, sides[i].device, from, to)) {
            return (fy_exec_choice){row->exec, sides[i].device};
        }
    }
    return (fy_exec_choice){NULL, 0};
}

void fy_exec_pause(uint32_t n_looks)
{
    const struct timespec moment = {.tv_nsec = 20000};
    if (n_looks < 100) {
        sched_yield();
    } else {
        nanosleep(&moment, NULL);
    }
}

ferry_status fy_exec_finish(const fy_exec *exec, fy_exec_queue *queue, ferry_error *error)
{
    fy_ticket ticket;
    ferry_status status = exec->mark(queue, &ticket, error);
    for (uint32_t i = 0; status == FERRY_OK; i++) {
        status = fy_exec_reached(exec, queue, ticket, error);
        if (status != FERRY_ERR_TIMEOUT) {
            return status;
        }
        status = FERRY_OK;
        fy_exec_pause(i);
    }
    return status;
}
