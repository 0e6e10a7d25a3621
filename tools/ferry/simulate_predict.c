/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a refit takes: the makespan of its schedule, or where that would take long to make, the
 * time of the busiest port. Thousands of ranks are alike: those that send, receive and keep as much
 * in as many moves are a class, and one of them is looked at for all.
 */
#include "simulate.h"

#include "steps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A schedule of so much is made in seconds. */
enum { MOST_RANKS = 1024, MOST_MOVES = 1 << 20, MOST_CLASSES = 512, MOST_LOST = 4096 };

/* Of one rank, each way: batches, and the share of the bytes that crosses its node's border. */
typedef struct port_load {
    double batches[2];
    double crossing[2];
} port_load;

typedef struct rank_class {
    ferry_rank_bytes bytes;
    uint32_t first; /* its first rank */
    uint32_t n_ranks;
    port_load load;
} rank_class;

typedef struct estimate {
    const simulate_request *request;
    const simulate_rates *rates;
    const ferry_plan *plan;
    uint32_t n_ranks;
    rank_class *classes;
    size_t n_classes;
    uint32_t *class_of; /* [n_ranks] */
    uint64_t *peers[2]; /* [n_ranks] bytes to and from the rank at hand */
    uint32_t rank;
    uint64_t crossing[2];
    ferry_error *error;
} estimate;

enum { SENDS, RECEIVES };

/* ---- classes ---- */

typedef struct rank_key {
    ferry_rank_bytes bytes;
    uint32_t rank;
} rank_key;

static int compare_bytes(const ferry_rank_bytes *a, const ferry_rank_bytes *b)
{
    const uint64_t x[] = {a->out, a->in, a->local, a->n_moves};
    const uint64_t y[] = {b->out, b->in, b->local, b->n_moves};
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++) {
        if (x[i] != y[i]) {
            return x[i] > y[i] ? -1 : 1; /* the busiest first */
        }
    }
    return 0;
}

static int compare_keys(const void *a, const void *b)
{
    const rank_key *x = a, *y = b;
    int order = compare_bytes(&x->bytes, &y->bytes);
    return order != 0 ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

static ferry_status make_classes(estimate *e)
{
    rank_key *keys = calloc(e->n_ranks, sizeof *keys);
    ferry_status status = FERRY_OK;
    e->classes = calloc(e->n_ranks, sizeof *e->classes);
    e->class_of = calloc(e->n_ranks, sizeof *e->class_of);
    if (keys == NULL || e->classes == NULL || e->class_of == NULL) {
        snprintf(e->error->message, sizeof e->error->message, "no memory for classes of ranks");
        status = FERRY_ERR_NO_MEMORY;
    }
    for (uint32_t r = 0; r < e->n_ranks && status == FERRY_OK; r++) {
        keys[r] = (rank_key){.bytes = FERRY_RANK_BYTES_INIT, .rank = r};
        status = ferry_plan_get_rank_bytes(e->plan, r, &keys[r].bytes, e->error);
    }
    if (status == FERRY_OK) {
        qsort(keys, e->n_ranks, sizeof *keys, compare_keys);
    }
    for (uint32_t i = 0; i < e->n_ranks && status == FERRY_OK; i++) {
        if (i == 0 || compare_bytes(&keys[i - 1].bytes, &keys[i].bytes) != 0) {
            e->classes[e->n_classes++] =
                (rank_class){.bytes = keys[i].bytes, .first = keys[i].rank};
        }
        e->classes[e->n_classes - 1].n_ranks++;
        e->class_of[keys[i].rank] = (uint32_t)(e->n_classes - 1);
    }
    free(keys);
    return status;
}

/* ---- one rank of a class ---- */

static ferry_status take_move(void *context, const ferry_move *move)
{
    estimate *e = context;
    if (move->from == move->to) {
        return FERRY_OK;
    }
    int way = move->from == e->rank ? SENDS : RECEIVES;
    uint32_t peer = way == SENDS ? move->to : move->from;
    e->peers[way][peer] += move->bytes;
    if (peer / e->rates->ranks_per_node != e->rank / e->rates->ranks_per_node) {
        e->crossing[way] += move->bytes;
    }
    return FERRY_OK;
}

static ferry_status look_at(estimate *e, rank_class *c)
{
    uint64_t slot = e->request->slot_bytes > 0 ? e->request->slot_bytes : FERRY_SLOT_BYTES;
    uint64_t total[2] = {c->bytes.out, c->bytes.in};
    e->rank = c->first;
    memset(e->crossing, 0, sizeof e->crossing);
    for (int way = SENDS; way <= RECEIVES; way++) {
        memset(e->peers[way], 0, e->n_ranks * sizeof *e->peers[way]);
    }
    FY_TRY(ferry_plan_visit(e->plan, c->first, take_move, e, NULL, e->error));
    for (int way = SENDS; way <= RECEIVES; way++) {
        for (uint32_t peer = 0; peer < e->n_ranks; peer++) {
            c->load.batches[way] += (double)((e->peers[way][peer] + slot - 1) / slot);
        }
        c->load.crossing[way] = total[way] > 0 ? (double)e->crossing[way] / (double)total[way] : 0;
    }
    return FERRY_OK;
}

/* Behind the classes that are looked at come those that do least: they get what is known. */
static ferry_status look_at_all(estimate *e)
{
    ferry_status status = FERRY_OK;
    for (int way = SENDS; way <= RECEIVES; way++) {
        e->peers[way] = calloc(e->n_ranks, sizeof *e->peers[way]);
    }
    if (e->peers[SENDS] == NULL || e->peers[RECEIVES] == NULL) {
        snprintf(e->error->message, sizeof e->error->message, "no memory for the peers of a rank");
        status = FERRY_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < e->n_classes && status == FERRY_OK; i++) {
        if (i < MOST_CLASSES) {
            status = look_at(e, &e->classes[i]);
        } else {
            e->classes[i].load = e->classes[i % MOST_CLASSES].load;
        }
    }
    free(e->peers[SENDS]);
    free(e->peers[RECEIVES]);
    return status;
}

/* ---- ports ---- */

static bool has_fault(const simulate_rates *rates, uint32_t node)
{
    return rates->fault.text != NULL && rates->fault.factor > 0 && rates->fault.node == node;
}

static double rank_rate(const simulate_rates *rates, uint32_t rank)
{
    bool slow = has_fault(rates, rank / rates->ranks_per_node) && !rates->fault.is_network;
    return slow ? rates->rank_rate * rates->fault.factor : rates->rank_rate;
}

/* Of what a node's CPUs do otherwise. */
static double copy_factor(const simulate_rates *rates, uint32_t node)
{
    bool slow = has_fault(rates, node) && !rates->fault.is_network;
    return slow ? rates->fault.factor : 1;
}

static double node_rate(const simulate_rates *rates, uint32_t node)
{
    return has_fault(rates, node) ? rates->node_rate * rates->fault.factor : rates->node_rate;
}

static void consider(simulate_case *found, double seconds, uint32_t rank, const char *limit)
{
    if (seconds > found->seconds) {
        found->seconds = seconds;
        found->limit_rank = rank;
        found->limit = limit;
    }
}

/* The time of each rank's two ports and of its node's. */
static void add_up(const estimate *e, simulate_case *found)
{
    const simulate_rates *rates = e->rates;
    uint32_t per = rates->ranks_per_node;
    for (uint32_t first = 0; first < e->n_ranks; first += per) {
        double node[2] = {0, 0};
        for (uint32_t rank = first; rank < e->n_ranks && rank < first + per; rank++) {
            const rank_class *c = &e->classes[e->class_of[rank]];
            double bytes[2] = {(double)c->bytes.out, (double)c->bytes.in};
            for (int way = SENDS; way <= RECEIVES; way++) {
                double seconds =
                    bytes[way] / rank_rate(rates, rank) + c->load.batches[way] * rates->latency;
                consider(found, seconds, rank, way == SENDS ? "egress" : "ingress");
                node[way] += bytes[way] * c->load.crossing[way];
            }
        }
        for (int way = SENDS; way <= RECEIVES; way++) {
            consider(found, node[way] / node_rate(rates, first / per), first,
                     way == SENDS ? "node_egress" : "node_ingress");
        }
    }
}

static ferry_status predict_by_classes(const simulate_request *request, const ferry_plan *plan,
                                       const simulate_rates *rates, const ferry_plan_bound *bound,
                                       simulate_case *found, ferry_error *error)
{
    estimate e = {.request = request,
                  .rates = rates,
                  .plan = plan,
                  .n_ranks = ferry_plan_rank_count(plan),
                  .error = error};
    ferry_status status = make_classes(&e);
    FY_THEN(status, look_at_all(&e));
    if (status == FERRY_OK) {
        add_up(&e, found);
        if (found->seconds < found->bound) { /* a slower node of the cluster's own */
            consider(found, found->bound, bound->rank, ferry_plan_bound_reason_name(bound->reason));
        }
        found->n_classes = (uint32_t)e.n_classes;
    }
    free(e.classes);
    free(e.class_of);
    return status;
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
    consider(found, seconds, first, "node_copies");
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
        double rate = rank_rate(rates, rank);
        consider(found, (double)own.out / rate + seconds_beside(rates, &its.out) / factor, rank,
                 "egress");
        consider(found, (double)own.in / rate + seconds_beside(rates, &its.in) / factor, rank,
                 "ingress");
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
                              : predict_by_classes(request, plan, rates, &bound, found, error));
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
