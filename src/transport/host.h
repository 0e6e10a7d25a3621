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

#endif
