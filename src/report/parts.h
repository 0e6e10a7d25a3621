/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_REPORT_PARTS_H
#define FY_REPORT_PARTS_H

#include "base/writer.h"

#include <ferry/plan.h>
#include <ferry/schedule.h>

/*
 * The members of a report's "plan", each with the comma before it. docs/formats.md says what they
 * are; src/report/page.html reads them.
 */

/* Totals, bound, cluster, meshes, and what each rank sends, receives and keeps. */
ferry_status fy_report_write_totals(const ferry_plan *plan, fy_writer *writer, ferry_error *error);
/* Who sends how much to whom; ranks are joined until there are few enough pairs. */
ferry_status fy_report_write_flows(const ferry_plan *plan, fy_writer *writer, ferry_error *error);
/* Who holds what of which tensor, on both sides. */
ferry_status fy_report_write_layouts(const ferry_plan *plan, fy_writer *writer, ferry_error *error);
/* What travels when. */
ferry_status fy_report_write_rounds(const ferry_schedule *schedule, uint32_t n_ranks,
                                    fy_writer *writer, ferry_error *error);

#endif
