/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* An orderly end: nobody closes a connection before everybody leaves. */
#include "world/process.h"

static void leave_up(fy_process *process)
{
    uint32_t n_left = 0;
    if (!process->leaving.begun || process->leaving.sent || !atomic_load(&process->tree.tabled)) {
        return;
    }
    for (fy_conn *conn = process->control.conns; conn != NULL; conn = conn->next) {
        n_left +=
            !conn->dead && conn->kind == FY_CONN_LINK && conn->role == FY_ROLE_CHILD && conn->left;
    }
    if (n_left < process->tree.n_children) {
        return;
    }
    process->leaving.sent = true;
    if (fy_place_is_root(process->tree.table[process->rank].place)) {
        fy_leave_done(process, NULL, NULL);
    } else {
        fy_control_post(process, process->tree.parent, FY_WIRE_LEAVE, NULL, 0, NULL, 0);
    }
}

bool fy_leave_arrive(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    (void)reader;
    conn->left = true;
    leave_up(process);
    return true;
}

bool fy_leave_done(fy_process *process, fy_conn *conn, fy_reader *reader)
{
    (void)conn, (void)reader;
    if (!process->leaving.sent) {
        return false; /* from now on nobody's end would count as a death */
    }
    atomic_store(&process->leaving.all_left, true);
    for (fy_conn *child = process->control.conns; child != NULL; child = child->next) {
        if (!child->dead && child->kind == FY_CONN_LINK && child->role == FY_ROLE_CHILD) {
            fy_control_post(process, child, FY_WIRE_DONE, NULL, 0, NULL, 0);
        }
    }
    fy_process_wake(process);
    return true;
}

static bool all_left(void *context)
{
    const fy_process *process = context;
    return atomic_load(&process->leaving.all_left);
}

void fy_leave_world(fy_process *process)
{
    pthread_mutex_lock(&process->lock);
    process->leaving.begun = true;
    leave_up(process);
    pthread_mutex_unlock(&process->lock);
    if (!atomic_load(&process->tree.tabled) || fy_failed(&process->failure)) {
        return;
    }
    if (fy_world_wait(process->world, all_left, NULL, process, process->limits.deadline_ns, NULL) ==
        FERRY_ERR_TIMEOUT) {
        fy_process_fail(process, FERRY_ERR_PEER_LOST, process->rank, "rank %u has left the world",
                        process->rank);
    }
}
