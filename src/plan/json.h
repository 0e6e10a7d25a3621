/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PLAN_JSON_H
#define FY_PLAN_JSON_H

#include "base/writer.h"

#include <ferry/plan.h>

/*
 * Writes ferry.plan/1 up to, and without, its closing brace, so that more members may follow. Ends
 * early, with any failure, once the writer has failed: the caller finishes the writer even so,
 * since only that knows the sentence. options is not NULL.
 */
ferry_status fy_plan_write_members(const ferry_plan *plan, const ferry_plan_json_options *options,
                                   fy_writer *writer, ferry_error *error);

#endif
