/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a refit takes: the makespan of its schedule, or where that would take long to make, what
 * classes of ranks say (simulate_classes.c); and then what CPUs copy.
 */
#include "simulate.h"

#include "steps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A schedule of so much is made in seconds. */
enum { MOST_RANKS = 1024, MOST_MOVES = 1 << 20, MOST_LOST = 4096 };

/* ---- ports ---- */

static bool has_fault(const simulate_rates *rates, uint32_t node)
{
    return rates->fault.text != NULL && rates->fault.factor > 0 && rates->fault.node == node;
}

static int compare_number(const void *key, const void *item)
{
    uint32_t number = *(const uint32_t *)key, other = ((const simulate_node *)item)->number;
    return (number > other) - (number < other);
}

/* NULL: one as all others are. */
static const simulate_node *node_of(const simulate_rates *rates, uint32_t number)
{
    return rates->n_nodes == 0 ? NULL
                               : bsearch(&number, rates->nodes, rates->n_nodes,
                                         sizeof *rates->nodes, compare_number);
}

double simulate_rank_rate(const simulate_rates *rates, uint32_t rank)
{
    uint32_t number = rank / rates->ranks_per_node;
    const simulate_node *node = node_of(rates, number);
    bool slow = has_fault(rates, number) && !rates->fault.is_network;
    return node != NULL ? node->rank_rate
           : slow       ? rates->rank_rate * rates->fault.factor
                        : rates->rank_rate;
}

/* Of what a node's CPUs do otherwise. */
static double copy_factor(const simulate_rates *rates, uint32_t node)
{
    bool slow = has_fault(rates, node) && !rates->fault.is_network;
    return slow ? rates->fault.factor : 1;
}

double simulate_node_rate(const simulate_rates *rates, uint32_t number)
{
    const simulate_node *node = node_of(rates, number);
    return node != NULL               ? node->node_rate
           : has_fault(rates, number) ? rates->node_rate * rates->fault.factor
                                      : rates->node_rate;
}

void simulate_consider(simulate_case *found, double seconds, uint32_t rank, const char *limit)
{
    if (seconds > found->seconds) {
        found->seconds = seconds;
        found->limit_rank = rank;
        found->limit = limit;
    }
}

/* ---- the schedule ---- */

static ferry_status predict_by_schedule(const simulate_request *request, const ferry_plan *plan,
                                        simulate_case *found, ferry_error *error)
{
    ferry_schedule_options options = FERRY_SCHEDULE_OPTIONS_INIT;
    ferry_schedule_report report = FERRY_SCHEDULE_REPORT_INIT;
    ferry_schedule *schedule = NULL;
    options.slot_bytes = request->slot_bytes;
    options.no_relays = request->no_relays;
    ferry_status status = ferry_schedule_create_for_plan(plan, &options, &schedule, error);
    FY_THEN(status, ferry_schedule_get_report(schedule, &report, error));
    ferry_schedule_destroy(schedule);
    if (status == FERRY_OK) {
        found->seconds = report.makespan;
        found->limit_rank = report.bound_rank;
        found->limit = ferry_plan_bound_reason_name(report.bound_reason);
        found->is_scheduled = true;
    }
    return status;
}

static const double ABOUT = 0.999;

/* What rows, pieces and casts take beside the bytes that travel. */
static double seconds_beside(const simulate_rates *rates, const simulate_rows_copied *copied)
{
    return copied->row_bytes * rates->row_seconds + copied->pieces * rates->piece_seconds +
           copied->cast_bytes / rates->copy_rate;
}

/*
 * Where CPUs copy, the ranks of a node share one memory, whatever their ports could do: each byte
 * that one of them gets or keeps is copied there once. Short rows take longer, and each piece.
 */
static ferry_status consider_node(const ferry_plan *plan, const simulate_rates *rates,
                                  simulate_rows *rows, uint32_t first, simulate_case *found,
                                  ferry_error *error)
{
    double bytes = 0, more = 0;
    uint64_t end = (uint64_t)first + rates->ranks_per_node;
    for (uint64_t rank = first; rank < found->n_ranks && rank < end; rank++) {
        ferry_rank_bytes own = FERRY_RANK_BYTES_INIT;
        simulate_row_counts its = {.in = {.pieces = 0}};
        FY_TRY(ferry_plan_get_rank_bytes(plan, (uint32_t)rank, &own, error));
        if (rows != NULL) {
            FY_TRY(simulate_count_rows(rows, (uint32_t)rank, &its));
        }
        bytes += (double)own.in + (double)own.local;
        more += seconds_beside(rates, &its.in);
    }
    double factor = copy_factor(rates, first / rates->ranks_per_node);
    double seconds = (bytes / rates->copy_rate + more) / factor;
    if (more > 0 && seconds > ABOUT * found->seconds && seconds <= found->seconds) {
        found->limit = "node_copies"; /* and of the port hardly anything is its own */
        found->limit_rank = first;
    }
    simulate_consider(found, seconds, first, "node_copies");
    return FERRY_OK;
}

/*
 * One that copies with all CPUs to itself takes as long for its rows and pieces: the rank whose
 * port is the slowest, and any other whose port and rows are slower together.
 */
static ferry_status add_rows_of_ports(const ferry_plan *plan, const simulate_rates *rates,
                                      simulate_rows *rows, simulate_case *found, ferry_error *error)
{
    simulate_row_counts its = {.in = {.pieces = 0}};
    FY_TRY(simulate_count_rows(rows, found->limit_rank, &its));
    double factor = copy_factor(rates, found->limit_rank / rates->ranks_per_node);
    found->seconds +=
        fmax(seconds_beside(rates, &its.in), seconds_beside(rates, &its.out)) / factor;
    for (uint32_t rank = 0; rank < found->n_ranks; rank++) {
        ferry_rank_bytes own = FERRY_RANK_BYTES_INIT;
        FY_TRY(ferry_plan_get_rank_bytes(plan, rank, &own, error));
        FY_TRY(simulate_count_rows(rows, rank, &its));
        factor = copy_factor(rates, rank / rates->ranks_per_node);
        double rate = simulate_rank_rate(rates, rank);
        simulate_consider(found, (double)own.out / rate + seconds_beside(rates, &its.out) / factor,
                          rank, "egress");
        simulate_consider(found, (double)own.in / rate + seconds_beside(rates, &its.in) / factor,
                          rank, "ingress");
    }
    return FERRY_OK;
}

static ferry_status consider_copies(const ferry_plan *plan, const simulate_rates *rates,
                                    simulate_case *found, ferry_error *error)
{
    simulate_rows *rows = NULL;
    ferry_status status = FERRY_OK;
    if (rates->copy_rate > 0) {
        status = simulate_open_rows(plan, &rows, error);
        if (status == FERRY_OK && found->seconds > 0) {
            status = add_rows_of_ports(plan, rates, rows, found, error);
        }
    }
    for (uint64_t first = 0; first < found->n_ranks && rates->copy_rate > 0;
         first += rates->ranks_per_node) {
        FY_THEN(status, consider_node(plan, rates, rows, (uint32_t)first, found, error));
    }
    simulate_close_rows(rows);
    return status;
}

/* A fault of a node that no rank is on would look like one that does no harm. */
static ferry_status check_node(const simulate_rates *rates, uint32_t n_ranks, ferry_error *error)
{
    uint32_t n_nodes = n_ranks / rates->ranks_per_node + (n_ranks % rates->ranks_per_node != 0);
    if (rates->fault.text == NULL || rates->fault.node < n_nodes) {
        return FERRY_OK;
    }
    snprintf(error->message, sizeof error->message,
             "there is no node %u: the %u ranks are on %u node%s, numbered from 0",
             rates->fault.node, n_ranks, n_nodes, n_nodes == 1 ? "" : "s");
    return FERRY_ERR_INVALID_INPUT;
}

/* The ranks of a lost node, as far as there can be ranks; how many, also where they are too many to
 * list. */
static uint64_t list_lost(const simulate_rates *rates, uint32_t lost[MOST_LOST])
{
    uint64_t first = (uint64_t)rates->fault.node * rates->ranks_per_node;
    uint64_t end = first + rates->ranks_per_node;
    end = end < FERRY_MAX_RANKS ? end : FERRY_MAX_RANKS;
    uint64_t n = first < end ? end - first : 0;
    for (uint64_t i = 0; i < n && n <= MOST_LOST; i++) {
        lost[i] = (uint32_t)(first + i);
    }
    return n;
}

static ferry_status check_lost(const simulate_rates *rates, uint64_t n_lost, ferry_error *error)
{
    if (n_lost <= MOST_LOST) {
        return FERRY_OK;
    }
    snprintf(error->message, sizeof error->message,
             "node %u has %llu ranks, more than the %d of which the loss is predicted",
             rates->fault.node, (unsigned long long)n_lost, MOST_LOST);
    return FERRY_ERR_LIMIT;
}

static ferry_status predict(const simulate_request *request, const ferry_spec *spec,
                            const simulate_rates *rates, simulate_case *found, ferry_error *error)
{
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    ferry_plan_totals totals = FERRY_PLAN_TOTALS_INIT;
    ferry_plan_bound bound = FERRY_PLAN_BOUND_INIT;
    ferry_plan *plan = NULL;
    uint32_t lost[MOST_LOST];
    bool is_loss = rates->fault.text != NULL && rates->fault.factor <= 0;
    uint64_t n_lost = is_loss ? list_lost(rates, lost) : 0;
    options.lost_ranks = lost;
    options.n_lost_ranks = n_lost <= MOST_LOST ? (size_t)n_lost : 0;
    FY_TRY(ferry_plan_create(spec, &options, &plan, error));
    found->n_ranks = ferry_plan_rank_count(plan);
    ferry_status status = check_node(rates, found->n_ranks, error);
    found->lacks_node = status != FERRY_OK;
    FY_THEN(status, check_lost(rates, n_lost, error));
    FY_THEN(status, ferry_plan_get_totals(plan, &totals, error));
    FY_THEN(status, ferry_plan_get_bound(plan, &bound, error));
    found->moved_bytes = totals.moved_bytes;
    found->local_bytes = totals.local_bytes;
    found->bound = bound.seconds;
    found->limit = ferry_plan_bound_reason_name(bound.reason);
    bool small = found->n_ranks <= MOST_RANKS && totals.n_moves <= MOST_MOVES;
    bool schedules =
        request->method == SIMULATE_SCHEDULE || (request->method == SIMULATE_AUTO && small);
    FY_THEN(status, schedules ? predict_by_schedule(request, plan, found, error)
                              : simulate_by_classes(request, plan, rates, &bound, found, error));
    FY_THEN(status, consider_copies(plan, rates, found, error));
    ferry_plan_destroy(plan);
    return status;
}

void simulate_predict(const simulate_request *request, const ferry_spec *spec,
                      const simulate_rates *rates, simulate_case *found)
{
    ferry_error error = {.message = ""};
    if (predict(request, spec, rates, found, &error) != FERRY_OK) {
        found->is_failed = true;
        memcpy(found->error, error.message, sizeof found->error);
    }
}
