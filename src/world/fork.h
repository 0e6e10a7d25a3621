/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_FORK_H
#define FY_WORLD_FORK_H

#include <ferry/world.h>

#include <stdbool.h>

/*
 * A child by fork inherits memory, descriptors and shared memory of a world, but neither its
 * threads nor its place in it: whatever it sent would be taken for its parent's. So in a child
 * every inherited world has failed with FERRY_ERR_MISUSE, which all calls ask about first, and what
 * ends something leaves it as it is: it goes with the process.
 */
typedef struct fy_inheritance {
    ferry_world *next;
    ferry_world *previous;
    bool is_inherited;
} fy_inheritance;

void fy_fork_enter(ferry_world *world); /* from here on a fork is noticed */
void fy_fork_leave(ferry_world *world);

/* For calls that work, or end something, in a world that has failed, too. */
bool fy_world_is_inherited(const ferry_world *world);
/* FERRY_OK, or FERRY_ERR_MISUSE where the world is inherited. */
ferry_status fy_world_check_process(const ferry_world *world, ferry_error *error);

#endif
