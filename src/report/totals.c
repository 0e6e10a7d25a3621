/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a plan comes to: in all, and of each rank. */
#include "report/packed.h"
#include "report/parts.h"

#include "model/spec.h"
#include "plan/core.h"

static void write_bound(fy_writer *w, const ferry_plan *plan)
{
    const ferry_plan_bound *bound = &plan->bound;
    fy_report_number(w, ",\"bound\":{\"rank\":", bound->rank);
    fy_write_text(w, ",\"why\":");
    fy_write_string(w, ferry_plan_bound_reason_name(bound->reason));
    fy_report_double(w, ",\"busiest_bytes\":", bound->busiest_bytes);
    if (bound->has_seconds) {
        fy_report_double(w, ",\"seconds\":", bound->seconds);
    }
    fy_write_text(w, "}");
}

static void write_cluster(fy_writer *w, const fy_cluster *cluster)
{
    if (!cluster->present) {
        return;
    }
    fy_report_number(w, ",\"cluster\":{\"ranks_per_node\":", cluster->ranks_per_node);
    fy_report_double(w, ",\"rank_bytes_per_s\":", cluster->rank_rate);
    fy_report_double(w, ",\"node_bytes_per_s\":", cluster->node_rate);
    fy_report_double(w, ",\"latency_s\":", cluster->latency_s);
    fy_report_number(w, ",\"n_other_nodes\":", cluster->n_overrides);
    fy_write_text(w, "}");
}

/* The axes of a mesh, by which its ranks can be put together; a side that lists ranks has none. */
static void write_side(fy_writer *w, const char *before, const fy_side *side)
{
    fy_write_text(w, before);
    if (side == NULL || side->boxes != NULL || side->ranks != NULL) {
        fy_write_text(w, "null");
        return;
    }
    fy_report_number(w, "{\"first_rank\":", side->first_rank);
    fy_write_text(w, ",\"axes\":[");
    for (uint32_t i = 0; i < side->n_axes; i++) {
        fy_write_text(w, i == 0 ? "[" : ",[");
        fy_write_string(w, side->axes[i].name);
        fy_report_number(w, ",", side->axes[i].size);
        fy_write_text(w, "]");
    }
    fy_write_text(w, "]}");
}

static ferry_status write_ranks(fy_writer *w, const char *before, const uint64_t *bytes, uint32_t n,
                                ferry_error *error)
{
    fy_packed packed = {0};
    for (uint32_t rank = 0; rank < n; rank++) {
        fy_packed_add(&packed, bytes[rank]);
    }
    return fy_packed_write(&packed, w, before, error);
}

ferry_status fy_report_write_totals(const ferry_plan *plan, fy_writer *w, ferry_error *error)
{
    uint32_t n = plan->problem.n_ranks;
    uint64_t n_tensors = 0;
    char digest[FERRY_DIGEST_BYTES];
    FY_TRY(fy_plan_count_tensors(plan, &n_tensors, error));
    ferry_plan_digest(plan, digest, sizeof digest);
    fy_write_text(w, "\"digest\":");
    fy_write_string(w, digest);
    fy_report_number(w, ",\"world\":", n);
    fy_report_number(w, ",\"tensors\":", n_tensors);
    fy_report_number(w, ",\"moves\":", plan->totals.n_moves);
    fy_report_number(w, ",\"moved\":", plan->totals.moved_bytes);
    fy_report_number(w, ",\"local\":", plan->totals.local_bytes);
    write_bound(w, plan);
    write_cluster(w, &plan->problem.cluster);
    write_side(w, ",\"source\":", plan->spec == NULL ? NULL : &plan->spec->source);
    write_side(w, ",\"destination\":", plan->spec == NULL ? NULL : &plan->spec->destination);
    FY_TRY(write_ranks(w, ",\n\"in\":", plan->in_bytes, n, error));
    FY_TRY(write_ranks(w, ",\n\"out\":", plan->out_bytes, n, error));
    return write_ranks(w, ",\n\"stay\":", plan->local_bytes, n, error);
}
