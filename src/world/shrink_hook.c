/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Going on without others. A rank that is left behind need not be dead: a stopped one may wake in
 * the middle of a copy. Who was killed cannot, and costs nothing here.
 */
#include "world/world.h"

#include <errno.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Processes that were killed may still be on their way out when their peers have gone on already:
 * so long all of them together are waited for. */
enum { MOMENT_NS = 20 * 1000 * 1000 };

void fy_world_add_shrink_hook(ferry_world *world, fy_shrink_hook *hook)
{
    pthread_mutex_lock(&world->shrink_hook_lock);
    hook->next = world->shrink_hooks;
    world->shrink_hooks = hook;
    pthread_mutex_unlock(&world->shrink_hook_lock);
}

void fy_world_remove_shrink_hook(ferry_world *world, fy_shrink_hook *hook)
{
    pthread_mutex_lock(&world->shrink_hook_lock);
    for (fy_shrink_hook **link = &world->shrink_hooks; *link != NULL; link = &(*link)->next) {
        if (*link == hook) {
            *link = hook->next;
            break;
        }
    }
    pthread_mutex_unlock(&world->shrink_hook_lock);
}

/*
 * Whether no thread of the process will run again. A process that has got the id meanwhile is taken
 * for the rank: then memory is renewed for nothing.
 */
bool fy_process_has_ended(int32_t pid, int64_t until_ns)
{
    if (pid <= 0) {
        return false; /* on another node, or it cannot be told */
    }
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0) {
        return errno == ESRCH;
    }
    int64_t left = until_ns - fy_now_ns();
    struct pollfd end = {.fd = fd, .events = POLLIN};
    int limit = left > 0 ? (int)(left / 1000000) + 1 : 0;
    bool ended = poll(&end, 1, limit) == 1 && (end.revents & POLLIN) != 0;
    close(fd);
    return ended;
}

void fy_world_run_shrink_hooks(ferry_world *old_world, ferry_world *new_world)
{
    /* A grown world that a rank in doubt takes has members that the old one had not. */
    new_world->n_first =
        new_world->n_first > old_world->n_first ? new_world->n_first : old_world->n_first;
    bool *may_live = old_world->may_live;
    uint32_t next = 0; /* ranks keep their order */
    int64_t until_ns = fy_now_ns() + MOMENT_NS;
    for (uint32_t rank = 0; rank < old_world->n_ranks; rank++) {
        if (next < new_world->n_ranks && new_world->members[next] == old_world->members[rank]) {
            next++;
            may_live[rank] = false;
        } else {
            may_live[rank] = !fy_process_has_ended(old_world->pid_of(old_world, rank), until_ns);
        }
    }
    pthread_mutex_lock(&old_world->shrink_hook_lock);
    for (fy_shrink_hook *hook = old_world->shrink_hooks; hook != NULL; hook = hook->next) {
        hook->shrunk(hook->context, may_live);
    }
    pthread_mutex_unlock(&old_world->shrink_hook_lock);
}
