/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/simulate.h"

#include "base/alloc.h"

/* When each batch is on the wire: [n_batches] each. */
typedef struct times {
    double *start;
    double *end;
} times;

/* Where no node limits, a batch's time follows from those of earlier batches. */
static ferry_status step_through(const ferry_schedule *schedule, const times *timing,
                                 ferry_error *error)
{
    const fy_network *network = &schedule->network;
    double *egress = fy_alloc_zeroed(network->n_ranks, sizeof *egress);
    double *ingress = fy_alloc_zeroed(network->n_ranks, sizeof *ingress);
    ferry_status status = FERRY_OK;
    if (egress == NULL || ingress == NULL) {
        status = fy_fail_no_memory(error, "the timing of a schedule");
        goto out;
    }
    /* When a rank's port is free; half duplex has one for both directions. */
    double *in = schedule->duplex == FERRY_DUPLEX_HALF ? egress : ingress;
    for (uint64_t b = 0; b < schedule->n_batches; b++) {
        const fy_batch *batch = &schedule->batches[b];
        double start = egress[batch->from];
        start = in[batch->to] > start ? in[batch->to] : start;
        if (schedule->wait_begin != NULL) {
            for (uint64_t w = schedule->wait_begin[b]; w < schedule->wait_begin[b + 1]; w++) {
                double arrival = timing->end[schedule->waits[w]];
                start = arrival > start ? arrival : start;
            }
        }
        double rate = fy_network_rate(network, batch->from, batch->to);
        double end = start + (network->latency + (double)batch->bytes / rate);
        egress[batch->from] = end;
        in[batch->to] = end;
        timing->start[b] = start;
        timing->end[b] = end;
    }
out:
    fy_free(egress);
    fy_free(ingress);
    return status;
}

/* Where nodes limit, flows share their ports: a simulation without slots that fill or packing. */
static ferry_status follow(const ferry_schedule *schedule, const times *timing, ferry_error *error)
{
    double seconds;
    ferry_simulation run = {
        .schedule = (ferry_schedule *)schedule,
        .start = timing->start,
        .end = timing->end,
        .ranks = fy_alloc_zeroed(schedule->network.n_ranks, sizeof(ferry_simulation_rank))};
    ferry_status status = run.ranks == NULL ? fy_fail_no_memory(error, "the timing of a schedule")
                                            : fy_simulation_run(&run, &seconds, error);
    fy_free(run.ranks);
    return status;
}

/*
 * The time in which a rank sends or receives. Its sends do not overlap, nor do its receives, and
 * both ascend; neighbours that touch are one stretch, so that a rank without a pause is busy for
 * exactly the time from its first start to its last end.
 */
static double busy_time(const ferry_schedule *schedule, const times *timing, uint32_t rank)
{
    uint64_t send = schedule->send_begin[rank], send_end = schedule->send_begin[rank + 1];
    uint64_t recv = schedule->recv_begin[rank], recv_end = schedule->recv_begin[rank + 1];
    double busy = 0, begin = 0, until = 0;
    while (send < send_end || recv < recv_end) {
        uint64_t batch;
        if (recv == recv_end || (send < send_end && timing->start[schedule->sends[send]] <=
                                                        timing->start[schedule->recvs[recv]])) {
            batch = schedule->sends[send++];
        } else {
            batch = schedule->recvs[recv++];
        }
        if (timing->start[batch] > until) {
            busy += until - begin;
            begin = timing->start[batch];
        }
        until = timing->end[batch] > until ? timing->end[batch] : until;
    }
    return busy + (until - begin);
}

ferry_status fy_schedule_time(const ferry_schedule *schedule, double *makespan_out,
                              double *idle_out, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    double makespan = 0;
    times timing = {.start = fy_alloc(schedule->n_batches, sizeof *timing.start),
                    .end = fy_alloc(schedule->n_batches, sizeof *timing.end)};
    if (timing.start == NULL || timing.end == NULL) {
        status = fy_fail_no_memory(error, "the timing of a schedule");
    } else if (schedule->network.n_nodes == 0) {
        status = step_through(schedule, &timing, error);
    } else {
        status = follow(schedule, &timing, error);
    }
    if (status != FERRY_OK) {
        goto out;
    }
    for (uint64_t b = 0; b < schedule->n_batches; b++) {
        makespan = timing.end[b] > makespan ? timing.end[b] : makespan;
    }
    for (uint32_t rank = 0; rank < schedule->network.n_ranks; rank++) {
        double idle = makespan - busy_time(schedule, &timing, rank);
        idle_out[rank] = idle > 0 ? idle : 0;
    }
    *makespan_out = makespan;
out:
    fy_free(timing.start);
    fy_free(timing.end);
    return status;
}
