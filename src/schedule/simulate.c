/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/simulate.h"

#include "base/alloc.h"
#include "base/options.h"

#include <math.h>

static ferry_status check_options(const ferry_simulation_options *options, ferry_error *error)
{
    if (!isfinite(options->pack_bytes_per_s) || options->pack_bytes_per_s < 0) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "pack_bytes_per_s is %g; it must be a rate, or 0 for packing in no time",
                       options->pack_bytes_per_s);
    }
    return FERRY_OK;
}

/* Seconds on the wire, by receiver, of all that one rank sends; leaves by_receiver all zero. */
static void consider_links(ferry_simulation *simulation, uint32_t from, double *by_receiver)
{
    const ferry_schedule *s = simulation->schedule;
    ferry_simulation_report *report = &simulation->report;
    for (uint64_t i = s->send_begin[from]; i < s->send_begin[from + 1]; i++) {
        uint64_t batch = s->sends[i];
        by_receiver[s->batches[batch].to] += simulation->end[batch] - simulation->start[batch];
    }
    for (uint64_t i = s->send_begin[from]; i < s->send_begin[from + 1]; i++) {
        uint32_t to = s->batches[s->sends[i]].to;
        double seconds = by_receiver[to];
        by_receiver[to] = 0;
        if (seconds > report->slowest_seconds ||
            (seconds == report->slowest_seconds && seconds > 0 && from == report->slowest_from &&
             to < report->slowest_to)) {
            report->slowest_seconds = seconds;
            report->slowest_from = from;
            report->slowest_to = to;
        }
    }
}

static ferry_status fill_report(ferry_simulation *simulation, double seconds, ferry_error *error)
{
    uint32_t n_ranks = simulation->schedule->network.n_ranks;
    ferry_simulation_report *report = &simulation->report;
    double *by_receiver = fy_alloc_zeroed(n_ranks, sizeof *by_receiver);
    FY_TRY(fy_check_memory(by_receiver != NULL, "the links of a simulation", error));
    *report = (ferry_simulation_report)FERRY_SIMULATION_REPORT_INIT;
    report->seconds = seconds;
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        ferry_simulation_rank *found = &simulation->ranks[rank];
        found->struct_size = sizeof *found;
        found->idle = seconds > found->busy ? seconds - found->busy : 0;
        if (found->peak_slot_bytes > report->peak_slot_bytes) {
            report->peak_slot_bytes = found->peak_slot_bytes;
            report->peak_slot_rank = rank;
        }
        consider_links(simulation, rank, by_receiver);
    }
    fy_free(by_receiver);
    return FERRY_OK;
}

static ferry_status simulate(ferry_simulation *simulation, ferry_error *error)
{
    const ferry_schedule *s = simulation->schedule;
    size_t n_batches = (size_t)s->n_batches;
    double seconds = 0;
    simulation->ranks = fy_alloc_zeroed(s->network.n_ranks, sizeof *simulation->ranks);
    simulation->start = fy_alloc(n_batches, sizeof *simulation->start);
    simulation->end = fy_alloc(n_batches, sizeof *simulation->end);
    if (simulation->ranks == NULL || simulation->start == NULL || simulation->end == NULL) {
        return fy_fail_no_memory(error, "a simulation");
    }
    FY_TRY(fy_simulation_run(simulation, &seconds, error));
    return fill_report(simulation, seconds, error);
}

ferry_status ferry_simulation_create(const ferry_schedule *schedule,
                                     const ferry_simulation_options *options,
                                     ferry_simulation **simulation_out, ferry_error *error)
{
    FY_TRY(fy_check_use(schedule != NULL && simulation_out != NULL,
                        "ferry_simulation_create needs a schedule and a place for the simulation",
                        error));
    ferry_simulation_options own;
    FY_TRY(fy_schedule_check_whole(schedule, "ferry_simulation_create", error));
    FY_TRY(fy_take_simulation_options(options, &own, error));
    FY_TRY(check_options(&own, error));
    ferry_simulation *simulation = fy_alloc_zeroed(1, sizeof *simulation);
    FY_TRY(fy_check_memory(simulation != NULL, "a simulation", error));
    simulation->schedule = fy_schedule_retain(schedule);
    simulation->options = own;
    ferry_status status = simulate(simulation, error);
    if (status != FERRY_OK) {
        goto out;
    }
    *simulation_out = simulation;
    simulation = NULL; /* the caller owns it now */
out:
    ferry_simulation_destroy(simulation);
    return status;
}

void ferry_simulation_destroy(ferry_simulation *simulation)
{
    if (simulation != NULL) {
        fy_free(simulation->ranks);
        fy_free(simulation->start);
        fy_free(simulation->end);
        ferry_schedule_destroy(simulation->schedule);
        fy_free(simulation);
    }
}

ferry_status ferry_simulation_get_report(const ferry_simulation *simulation,
                                         ferry_simulation_report *report_out, ferry_error *error)
{
    FY_TRY(fy_check_use(simulation != NULL && report_out != NULL,
                        "ferry_simulation_get_report needs a simulation and a place for the report",
                        error));
    return fy_copy_out(&simulation->report, sizeof simulation->report, report_out,
                       "ferry_simulation_report", error);
}

ferry_status ferry_simulation_get_rank(const ferry_simulation *simulation, uint32_t rank,
                                       ferry_simulation_rank *rank_out, ferry_error *error)
{
    FY_TRY(fy_check_use(simulation != NULL && rank_out != NULL,
                        "ferry_simulation_get_rank needs a simulation and a place for the rank",
                        error));
    uint32_t n_ranks = simulation->schedule->network.n_ranks;
    if (rank >= n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE, "rank %u of a simulation of %u ranks", rank,
                       n_ranks);
    }
    return fy_copy_out(&simulation->ranks[rank], sizeof simulation->ranks[rank], rank_out,
                       "ferry_simulation_rank", error);
}

ferry_status ferry_simulation_get_batch_time(const ferry_simulation *simulation, uint64_t batch,
                                             double *start_out, double *end_out, ferry_error *error)
{
    FY_TRY(fy_check_use(
        simulation != NULL && start_out != NULL && end_out != NULL,
        "ferry_simulation_get_batch_time needs a simulation and places for both times", error));
    if (batch >= simulation->schedule->n_batches) {
        return fy_fail(error, FERRY_ERR_MISUSE, "batch %llu of a simulation of %llu batches",
                       (unsigned long long)batch,
                       (unsigned long long)simulation->schedule->n_batches);
    }
    *start_out = simulation->start[batch];
    *end_out = simulation->end[batch];
    return FERRY_OK;
}
