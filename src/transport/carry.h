/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_CARRY_H
#define FY_TRANSPORT_CARRY_H

#include "transport/transport.h"

/*
 * How bytes get from memory of one kind here to memory of another at a peer, of an engine that
 * reaches its host memory; FERRY_ANY_RANK: at the peers that it is made for. What lies in host
 * memory on both sides goes by the engine and never comes here.
 */
ferry_way fy_way_of(const fy_engine *engine, void *state, uint32_t peer, uint32_t source_kind,
                    uint32_t target_kind);

/* Whether the engine gets to know memory of that kind at all. */
bool fy_engine_takes(const fy_open_engine *engine, uint32_t kind);

/* A put or a get that was checked, with memory that is not all the host's; some bytes at least. */
typedef struct fy_carriage {
    uint32_t peer;
    ferry_region *region;
    uint64_t offset;
    const ferry_buffer *buffer;
} fy_carriage;

/*
 * Puts the bytes, in place on return or kept until a flush of the peer; the signal comes after.
 * FERRY_ERR_UNSUPPORTED, where nothing carries them: both kinds, both ranks and what would help.
 */
ferry_status fy_carry_put(ferry_transport *transport, const fy_carriage *what,
                          const fy_signal_view *signal, ferry_error *error);
/* A signal alone, behind what was put aside. */
ferry_status fy_carry_signal(ferry_transport *transport, uint32_t peer,
                             const fy_signal_view *signal, ferry_error *error);
/* Gets the bytes: in place on return, or behind a flush of the peer where the engine fetches them.
 */
ferry_status fy_carry_get(ferry_transport *transport, const fy_carriage *what, ferry_error *error);

/* Copies of sources that puts to the peer (FERRY_ANY_RANK: to all) have kept: a flush has ended. */
void fy_carry_drop(ferry_transport *transport, uint32_t peer);

#endif
