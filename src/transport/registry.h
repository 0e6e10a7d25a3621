/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_REGISTRY_H
#define FY_TRANSPORT_REGISTRY_H

#include "base/status.h"
#include "transport/engine.h"

#include <stdbool.h>
#include <stddef.h>

/* The engines of this build, in order of preference: what is nearer comes first. */
enum {
    FY_ENGINE_INPROC = 0,
    FY_ENGINE_SHM = 1,
    FY_ENGINE_UCX = 2,
    FY_ENGINE_NVSHMEM = 3, /* only where it is named */
    FY_N_ENGINES = 4
};

const char *fy_engine_name(size_t index);

/* The index of a name of so many bytes, or FY_N_ENGINES. */
size_t fy_engine_find(const char *name, size_t length);

/*
 * The engine's table, ready to open. FERRY_ERR_UNSUPPORTED and a sentence where its plugin is
 * absent or it cannot run here. Tables live as long as the process.
 */
ferry_status fy_engine_get(size_t index, const fy_engine **engine_out, ferry_error *error);

/* What it does where it is aside, or NULL. */
static inline const fy_aside *fy_engine_aside(const fy_engine *table)
{
    return table->aside == NULL ? NULL : table->aside();
}

#endif
