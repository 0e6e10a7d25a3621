/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/fork.h"

#include "world/world.h"

#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ferry_world *worlds;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* Where other threads were at that moment does not matter: they are not here. */
static void in_child(void)
{
    for (ferry_world *world = worlds; world != NULL; world = world->inheritance.next) {
        fy_failure *failure = world->failure;
        world->inheritance.is_inherited = true;
        if (failure == NULL) {
            continue; /* it is only being made */
        }
        snprintf(failure->sentence, sizeof failure->sentence,
                 "this process was forked from rank %u of %u and is not that rank: what it "
                 "inherited of the world cannot be used here; it may make a world of its own",
                 world->rank, world->n_ranks);
        failure->status = FERRY_ERR_MISUSE;
        failure->rank = FERRY_ANY_RANK;
        fy_failure_settle(failure);
    }
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    (void)pthread_atfork(before_fork, after_fork, in_child);
}

void fy_fork_enter(ferry_world *world)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    world->inheritance = (fy_inheritance){.next = worlds};
    if (worlds != NULL) {
        worlds->inheritance.previous = world;
    }
    worlds = world;
    pthread_mutex_unlock(&lock);
}

void fy_fork_leave(ferry_world *world)
{
    fy_inheritance *own = &world->inheritance;
    pthread_mutex_lock(&lock);
    if (own->next != NULL) {
        own->next->inheritance.previous = own->previous;
    }
    if (own->previous != NULL) {
        own->previous->inheritance.next = own->next;
    } else if (worlds == world) {
        worlds = own->next;
    }
    pthread_mutex_unlock(&lock);
}

bool fy_world_is_inherited(const ferry_world *world)
{
    return world->inheritance.is_inherited;
}

ferry_status fy_world_check_process(const ferry_world *world, ferry_error *error)
{
    return fy_world_is_inherited(world) ? fy_failure_get(world->failure, NULL, error) : FERRY_OK;
}
