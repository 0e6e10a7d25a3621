/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_MAPPED_MAPPED_H
#define FY_TRANSPORT_MAPPED_MAPPED_H

#include "transport/engine.h"
#include "world/world.h"

/*
 * Engines whose ranks have each other's symmetric memory mapped: a put is a copy, a signal is an
 * atomic store. Nothing is ever under way when a call returns.
 */
extern const fy_engine fy_inproc_engine;
extern const fy_engine fy_shm_engine;

/* Copies into memory of a peer. Comes before a signal that is raised after it. */
void fy_mapped_copy(void *to, const void *from, uint64_t bytes);

/* Raises a signal in peer's part, which is mapped at part, and wakes it if it sleeps. */
void fy_mapped_signal(ferry_world *world, uint32_t peer, void *part, const fy_signal_view *signal);

/* Table functions: there is never anything to wait for. */
ferry_status fy_mapped_flush(void *state, uint32_t peer, ferry_error *error);

#endif
