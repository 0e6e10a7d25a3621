/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_MAPPED_ATTACH_H
#define FY_TRANSPORT_MAPPED_ATTACH_H

#include "base/status.h"
#include "world/world.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Cross-memory attach: reading and writing memory of another process of this node that nobody
 * shared, where the kernel allows it. Threads of one process reach each other anyway.
 */
typedef struct fy_attach fy_attach;

/* Collective over all ranks. */
ferry_status fy_attach_create(ferry_world *world, fy_attach **attach_out, ferry_error *error);
void fy_attach_destroy(fy_attach *attach); /* NULL is allowed */

/*
 * Nobody may reach this rank's memory any more: for when the world has failed, and what was
 * registered goes while peers do not know yet. What the kernel is moving right now goes on.
 */
void fy_attach_revoke(fy_attach *attach);

/* FERRY_OK, or why this rank cannot: proven on first use by reading what the peer told to all. */
ferry_status fy_attach_check(fy_attach *attach, uint32_t peer, ferry_error *error);

/*
 * Moves bytes between from and the peer's memory at to, or to here. In place on return. A peer that
 * is gone fails the world; memory that is gone there, or a peer that has closed its transport, is
 * FERRY_ERR_MISUSE.
 */
ferry_status fy_attach_write(fy_attach *attach, uint32_t peer, void *to, const void *from,
                             uint64_t bytes, ferry_error *error);
ferry_status fy_attach_read(fy_attach *attach, uint32_t peer, void *to, const void *from,
                            uint64_t bytes, ferry_error *error);

#endif
