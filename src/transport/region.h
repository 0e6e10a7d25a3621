/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_REGION_H
#define FY_TRANSPORT_REGION_H

#include "transport/transport.h"

/* An empty region, in the transport's list; fy_region_destroy ends it whatever becomes of it. */
ferry_status fy_region_new(ferry_transport *transport, fy_region_kind kind,
                           ferry_region **region_out, ferry_error *error);

uint64_t fy_region_noted(const ferry_region *region); /* NULL: 0 */

/*
 * Collective: memory for a new symmetric region, of a length on which all ranks have agreed, and
 * what the engines keep of it. What has been done stays recorded in the region. A failure is this
 * rank's own: all agree on it afterwards. noted: 0, or all of it but the notes: see word.h.
 */
ferry_status fy_region_furnish(ferry_region *region, uint64_t bytes, uint64_t noted,
                               ferry_error *error);

/*
 * Whether there is room for a symmetric region. The first rank of a node asks for all of them, for
 * together they would pass a check that each makes by itself; an engine asks where that rank can
 * still tell the others.
 */
ferry_status fy_symmetric_room(const ferry_world *world, uint64_t bytes, ferry_error *error);

/* The kind of memory that a key says it is of; the host's where the bytes are no key. */
uint32_t fy_key_kind(const void *key, size_t n_bytes);

/*
 * Whether a buffer's bytes lie in the region that it names as its registration, whichever transport
 * that is of; one that names none is well. Else FERRY_ERR_MISUSE with a sentence that begins with
 * `what`: engines take the region's word for what may be written.
 */
ferry_status fy_registration_check(const ferry_buffer *buffer, const char *what,
                                   ferry_error *error);

/* Makes the region known to engine number index. */
ferry_status fy_region_attach(ferry_region *region, uint32_t index, ferry_error *error);

/*
 * Makes registered memory known to all engines that do not know it yet. One that reaches no user
 * memory still takes it as a source.
 */
ferry_status fy_region_announce(ferry_region *region, ferry_error *error);

/* Whether an engine that is aside carries its bytes, to all peers. */
static inline bool fy_region_is_aside(const ferry_region *region)
{
    return region->transport->has_aside && region->view.kind == FY_REGION_SYMMETRIC &&
           !fy_is_host(region->view.space);
}

/* The index of the engine that carries them to peer. */
static inline uint32_t fy_region_engine(const ferry_region *region, uint32_t peer)
{
    const ferry_transport *transport = region->transport;
    return fy_region_is_aside(region) ? transport->n_engines - 1 : transport->engine_of[peer];
}

static inline bool fy_region_knows(const ferry_region *region, uint32_t index)
{
    return (region->attached >> index & 1u) != 0;
}

#endif
