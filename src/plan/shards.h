/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PLAN_SHARDS_H
#define FY_PLAN_SHARDS_H

#include <ferry/plan.h>
#include <ferry/shard.h>

/* Visits the parameters of a rank on a side in boxes: see ferry_plan_visit_shards. */
ferry_status fy_plan_visit_parameters(const ferry_plan *plan, ferry_side_role role, uint32_t rank,
                                      ferry_shard_visitor visitor, void *context,
                                      ferry_error *error);

/* One more owner of the plan, who calls ferry_plan_destroy as the others do. Any thread may. */
ferry_plan *fy_plan_retain(const ferry_plan *plan);

#endif
