/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The time of a refit without its schedule: that of the busiest port. Thousands of ranks are alike:
 * those that send, receive and keep as much in as many moves are a class, and one of them is looked
 * at for all. Where receivers may pass on what several want, the same is asked once more of ports
 * that send it once, and the way to the last receiver comes on top; the less counts, as for a
 * schedule.
 */
#include "simulate.h"

#include "steps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CLASSES = 512 };

/* Of one rank, each way: batches, and the share of the bytes that crosses its node's border. */
typedef struct port_load {
    double batches[2];
    double crossing[2];
    simulate_sent_once once;
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
    simulate_fans *fans; /* NULL: nothing is to be relayed */
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
    return way == SENDS && e->fans != NULL ? simulate_add_to_fans(e->fans, move, e->error)
                                           : FERRY_OK;
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
    if (e->fans != NULL) {
        c->load.once = simulate_end_sender(e->fans, c->n_ranks);
    }
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

/* Batches of a latency each: those of each pair, or where there are relays chunks. */
static double batches_of(const rank_class *c, int way, double bytes, double chunk)
{
    return chunk > 0 ? bytes / chunk : c->load.batches[way];
}

/*
 * The time of each rank's two ports and of its node's: of all moves, or with a chunk, in bytes, of
 * what is left if all is sent once, leaves its node once and enters another one once. INFINITY:
 * without latency.
 */
static void add_up(const estimate *e, double chunk, simulate_case *found)
{
    const simulate_rates *rates = e->rates;
    uint32_t per = rates->ranks_per_node;
    double entering = chunk > 0 ? simulate_share_entering(e->fans) : 1;
    for (uint32_t first = 0; first < e->n_ranks; first += per) {
        double node[2] = {0, 0};
        for (uint32_t rank = first; rank < e->n_ranks && rank < first + per; rank++) {
            const rank_class *c = &e->classes[e->class_of[rank]];
            double bytes[2] = {chunk > 0 ? c->load.once.bytes : (double)c->bytes.out,
                               (double)c->bytes.in};
            for (int way = SENDS; way <= RECEIVES; way++) {
                double seconds = bytes[way] / simulate_rank_rate(rates, rank) +
                                 batches_of(c, way, bytes[way], chunk) * rates->latency;
                simulate_consider(found, seconds, rank, way == SENDS ? "egress" : "ingress");
            }
            node[SENDS] +=
                chunk > 0 ? c->load.once.leaving : bytes[SENDS] * c->load.crossing[SENDS];
            node[RECEIVES] += bytes[RECEIVES] * c->load.crossing[RECEIVES] * entering;
        }
        for (int way = SENDS; way <= RECEIVES; way++) {
            simulate_consider(found, node[way] / simulate_node_rate(rates, first / per), first,
                              way == SENDS ? "node_egress" : "node_ingress");
        }
    }
}

/* ---- relays ---- */

/* One way of passing on: what a way of src/schedule/create.c takes with chunks of a size. */
typedef struct relaying {
    bool chain;
    double chunk; /* bytes */
} relaying;

/* As the schedule cuts: so many chunks that latency and the pipeline's length cost the least. */
static double most_chunks(const estimate *e, bool chain, double receivers)
{
    if (!chain) {
        return 384;
    }
    return e->rates->latency > 0 ? fmin(fmax((1 << 22) / receivers, 2048), 8192) : 2048;
}

static double best_chunk(const estimate *e, bool chain, double seconds, double slot)
{
    double receivers = simulate_most_receivers(e->fans);
    double depth = chain ? receivers : log2(receivers + 1), most = most_chunks(e, chain, receivers);
    double n = e->rates->latency > 0 ? sqrt(depth * seconds / e->rates->latency) : most;
    return fmin(seconds * e->rates->rank_rate / fmin(fmax(n, 4), most), slot);
}

/* Trees among many would take too long to make. */
static bool may_be_made(const estimate *e, const relaying *way, double seconds)
{
    double rounds = seconds * e->rates->rank_rate / way->chunk;
    return way->chain || simulate_count_links(e->fans) <= 1e9 / (4 * rounds);
}

/* The ports, and behind a receiver's own the way of what comes through many others to it. */
static void relay(const estimate *e, const relaying *way, simulate_case *found)
{
    const simulate_rates *rates = e->rates;
    add_up(e, way->chunk, found);
    double hop = rates->latency + way->chunk / fmin(rates->rank_rate, rates->node_rate);
    double busy = 0;
    for (size_t i = 0; i < e->n_classes; i++) {
        const rank_class *c = &e->classes[i];
        double out = way->chain && c->bytes.in > 0 ? c->load.once.bytes : 0;
        double in = (double)c->bytes.in + out; /* all of it is passed on */
        busy = fmax(busy, in / rates->rank_rate + in / way->chunk * rates->latency);
    }
    double end = simulate_end_of_fans(e->fans, busy, hop, way->chain);
    if (end > found->seconds) {
        found->seconds = end;
    }
}

/*
 * Whether receivers of what comes down a chain have much to send of their own: then some ports are
 * busy twice, and what they wait for is not known here.
 */
static bool has_busy_members(const estimate *e)
{
    static const double MUCH = 0.05;
    double busiest = 0, sent = 0;
    for (size_t i = 0; i < e->n_classes; i++) {
        const rank_class *c = &e->classes[i];
        busiest = fmax(busiest, (double)c->bytes.in);
        sent = c->bytes.in > 0 ? fmax(sent, c->load.once.bytes) : sent;
    }
    return sent > MUCH * busiest;
}

/* Relays count where they are faster than the moves alone by more than the schedule asks for. */
static void consider_relays(const estimate *e, simulate_case *found)
{
    static const double WORTH_IT = 0.995, factors[] = {1, 2, 0.5, 4, 0.25};
    double slot = (double)(e->request->slot_bytes > 0 ? e->request->slot_bytes : FERRY_SLOT_BYTES);
    simulate_case ports = *found;
    ports.seconds = 0;
    add_up(e, INFINITY, &ports);
    for (int chain = 0; chain <= 1; chain++) {
        double first = best_chunk(e, chain != 0, ports.seconds, slot);
        for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
            relaying way = {.chain = chain != 0, .chunk = fmin(first * factors[i], slot)};
            simulate_case its = *found;
            its.seconds = 0;
            if (!may_be_made(e, &way, ports.seconds)) {
                continue;
            }
            relay(e, &way, &its);
            if (its.seconds < WORTH_IT * found->seconds) {
                *found = its;
                found->relays = chain == 0            ? "trees"
                                : has_busy_members(e) ? "chains, at least"
                                                      : "chains";
            }
        }
    }
}

/* Whether it takes longer because of a node that has rates of its own: what ports that relay would
 * do then is not known here. */
static bool is_held_up(const estimate *e, const simulate_case *found)
{
    simulate_rates alike = *e->rates;
    estimate other = *e;
    simulate_case its = *found;
    alike.n_nodes = 0;
    other.rates = &alike;
    its.seconds = 0;
    add_up(&other, 0, &its);
    return its.seconds < 0.999 * found->seconds;
}

ferry_status simulate_by_classes(const simulate_request *request, const ferry_plan *plan,
                                 const simulate_rates *rates, const ferry_plan_bound *bound,
                                 simulate_case *found, ferry_error *error)
{
    estimate e = {.request = request,
                  .rates = rates,
                  .plan = plan,
                  .n_ranks = ferry_plan_rank_count(plan),
                  .error = error};
    ferry_status status =
        request->no_relays ? FERRY_OK
                           : simulate_open_fans(e.n_ranks, rates->ranks_per_node, &e.fans, error);
    FY_THEN(status, make_classes(&e));
    FY_THEN(status, look_at_all(&e));
    if (status == FERRY_OK) {
        add_up(&e, 0, found);
        if (found->seconds < found->bound) { /* others of a class may cross more borders */
            simulate_consider(found, found->bound, bound->rank,
                              ferry_plan_bound_reason_name(bound->reason));
        }
        bool may_relay = e.fans != NULL && simulate_most_receivers(e.fans) > 1;
        if (may_relay && is_held_up(&e, found)) {
            found->relays = "not counted";
        } else if (may_relay) {
            consider_relays(&e, found);
        }
        found->n_classes = (uint32_t)e.n_classes;
    }
    simulate_close_fans(e.fans);
    free(e.classes);
    free(e.class_of);
    return status;
}
