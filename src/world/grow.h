/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_GROW_H
#define FY_WORLD_GROW_H

#include "world/settings.h"
#include "world/world.h"

/* A newcomer's side; the members' is the grow of fy_world_ops. */
ferry_status fy_join_world(const char *path, const fy_settings *settings, ferry_world **world_out,
                           ferry_error *error);

#endif
