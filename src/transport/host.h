/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_HOST_H
#define FY_TRANSPORT_HOST_H

#include "transport/engine.h"
#include "world/world.h"

/* The library as an engine sees it, on top of a world; there is nothing to free. */
fy_host fy_host_of(ferry_world *world);

/*
 * An engine has lost a rank. The world fails with this sentence, at once or within a moment, if it
 * does not learn of a better reason before.
 */
void fy_report_lost(ferry_world *world, uint32_t peer, const char *sentence);

/*
 * What a caller is told when an engine's call has ended with status: FERRY_ERR_PEER_LOST waits
 * until the world has failed too, so that nobody sees a lost rank in a world that seems well, and
 * then is the world's own sentence. Anything else is passed on.
 */
ferry_status fy_world_verdict(ferry_world *world, ferry_status status, ferry_error *error);

#endif
