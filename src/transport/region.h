/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_REGION_H
#define FY_TRANSPORT_REGION_H

#include "transport/transport.h"

/* An empty region, in the transport's list; fy_region_destroy ends it whatever becomes of it. */
ferry_status fy_region_new(ferry_transport *transport, fy_region_kind kind,
                           ferry_region **region_out, ferry_error *error);

/* Makes the region known to engine number index. */
ferry_status fy_region_attach(ferry_region *region, uint32_t index, ferry_error *error);

/*
 * Makes registered memory known to all engines that do not know it yet. One that reaches no user
 * memory still takes it as a source.
 */
ferry_status fy_region_announce(ferry_region *region, ferry_error *error);

static inline bool fy_region_knows(const ferry_region *region, uint32_t index)
{
    return (region->attached >> index & 1u) != 0;
}

#endif
