/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PLAN_SHARDS_H
#define FY_PLAN_SHARDS_H

#include <ferry/plan.h>
#include <ferry/shard.h>

/* One more owner of the plan, who calls ferry_plan_destroy as the others do. Any thread may. */
ferry_plan *fy_plan_retain(const ferry_plan *plan);

#endif
