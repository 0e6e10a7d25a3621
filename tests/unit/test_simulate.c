/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulations of schedules made by hand, against times worked out by hand. Ranks move so many bytes
 * per second that whole numbers come out.
 */
#include "support/check.h"
#include "support/text.h"

#include "schedule/schedule.h"

#include "base/alloc.h"

#include <jansson.h>
#include <math.h>

enum { MOST_RANKS = 8, MOST_NODES = 4, MOST_BATCHES = 8 };

#define CLOSE 1e-9

/* A batch and what is expected of it; relayed: one more than the batch that it waits for. */
typedef struct wanted_batch {
    uint32_t round, from, to;
    uint64_t bytes;
    double start, end;
    uint32_t relayed;
} wanted_batch;

#define BATCH(r, f, t, n, s, e)                                                                    \
    {                                                                                              \
        .round = r, .from = f, .to = t, .bytes = n, .start = s, .end = e                           \
    }
#define RELAY(r, f, t, n, s, e, w)                                                                 \
    {                                                                                              \
        .round = r, .from = f, .to = t, .bytes = n, .start = s, .end = e, .relayed = w             \
    }

typedef struct row {
    const char *name;
    double seconds;
    wanted_batch batches[MOST_BATCHES]; /* by (round, from); no bytes: no more */
    uint32_t duplex;
    double latency;
    double rank_rate[MOST_RANKS]; /* 0: 10 */
    uint32_t ranks_per_node;      /* 0: no nodes */
    double node_rate[MOST_NODES];
    uint32_t send_slots, recv_slots;
    double pack;
} row;

static const row rows[] = {
    {.name = "nothing travels"},
    {.name = "one batch", .seconds = 10, .batches = {BATCH(0, 0, 1, 100, 0, 10)}},
    {.name = "a sender's batches follow each other",
     .seconds = 15,
     .batches = {BATCH(0, 0, 1, 100, 0, 10), BATCH(0, 1, 2, 20, 0, 2), BATCH(1, 0, 2, 50, 10, 15)}},
    {.name = "incast takes turns",
     .seconds = 6,
     .batches = {BATCH(0, 0, 3, 20, 0, 2), BATCH(1, 1, 3, 20, 2, 4), BATCH(2, 2, 3, 20, 4, 6)}},
    {.name = "a receiver keeps the order of rounds",
     .seconds = 12,
     .batches = {BATCH(0, 0, 1, 100, 0, 10), BATCH(1, 0, 2, 10, 10, 11),
                 BATCH(2, 1, 2, 10, 11, 12)}},
    {.name = "full duplex sends while it receives",
     .seconds = 2,
     .batches = {BATCH(0, 0, 1, 20, 0, 2), BATCH(1, 1, 2, 20, 0, 2)}},
    {.name = "half duplex does not",
     .seconds = 4,
     .batches = {BATCH(0, 0, 1, 20, 0, 2), BATCH(1, 1, 2, 20, 2, 4)},
     .duplex = FERRY_DUPLEX_HALF},
    {.name = "half duplex keeps the order of rounds in both directions together",
     .seconds = 7,
     .batches = {BATCH(0, 0, 1, 10, 0, 1), BATCH(0, 2, 3, 50, 0, 5), BATCH(1, 1, 2, 10, 5, 6),
                 BATCH(2, 3, 1, 10, 6, 7)},
     .duplex = FERRY_DUPLEX_HALF},
    {.name = "half duplex, all in one round: by number",
     .seconds = 3,
     .batches = {BATCH(0, 0, 1, 10, 0, 1), BATCH(0, 1, 2, 10, 1, 2), BATCH(0, 2, 0, 10, 2, 3)},
     .duplex = FERRY_DUPLEX_HALF},
    {.name = "latency is paid per batch",
     .seconds = 8,
     .batches = {BATCH(0, 0, 1, 10, 0, 4), BATCH(1, 0, 1, 10, 4, 8)},
     .latency = 3},
    {.name = "the slower of two ranks decides",
     .seconds = 15,
     .batches = {BATCH(0, 0, 1, 10, 0, 10), BATCH(1, 0, 2, 10, 10, 15)},
     .rank_rate = {2, 1, 4}},
    {.name = "a relay waits for what it passes on",
     .seconds = 4,
     .batches = {BATCH(0, 0, 1, 20, 0, 2), RELAY(1, 1, 2, 20, 2, 4, 1)}},
    {.name = "a relay holds up what its sender has after it",
     .seconds = 7,
     .batches = {BATCH(0, 0, 1, 50, 0, 5), RELAY(1, 1, 2, 10, 5, 6, 1), BATCH(2, 1, 3, 10, 6, 7)}},

    {.name = "two senders share their node's egress",
     .seconds = 15,
     .batches = {BATCH(0, 0, 2, 50, 0, 10), BATCH(0, 1, 4, 100, 0, 15)},
     .ranks_per_node = 2,
     .node_rate = {10, 10, 10}},
    {.name = "two receivers share their node's ingress",
     .seconds = 15,
     .batches = {BATCH(0, 0, 4, 50, 0, 10), BATCH(0, 2, 5, 100, 0, 15)},
     .ranks_per_node = 2,
     .node_rate = {10, 10, 10}},
    {.name = "inside a node no node's port counts",
     .seconds = 10,
     .batches = {BATCH(0, 0, 1, 100, 0, 10), BATCH(0, 1, 2, 10, 0, 10)},
     .ranks_per_node = 2,
     .node_rate = {1, 1}},
    {.name = "when one of three equal flows has ended, the cap of ranks holds",
     .seconds = 16,
     .batches = {BATCH(0, 0, 2, 60, 0, 10), BATCH(0, 1, 4, 120, 0, 16), BATCH(0, 3, 5, 30, 0, 5)},
     .ranks_per_node = 2,
     .node_rate = {12, 12, 12}},
    {.name = "what a slow node leaves goes to another's flow",
     .seconds = 10,
     .batches = {BATCH(0, 0, 2, 30, 0, 10), BATCH(0, 1, 4, 30, 0, 10), BATCH(0, 3, 5, 45, 0, 5)},
     .ranks_per_node = 2,
     .node_rate = {6, 12, 12}},
    {.name = "a flow that gets more takes it from a third",
     .seconds = 15,
     .batches = {BATCH(0, 0, 2, 15, 0, 5), BATCH(0, 1, 4, 75, 0, 15), BATCH(0, 3, 5, 90, 0, 12.5)},
     .ranks_per_node = 2,
     .node_rate = {6, 12, 12}},
    {.name = "a slow rank leaves its share to the others",
     .seconds = 12,
     .batches = {BATCH(0, 0, 2, 24, 0, 12), BATCH(0, 1, 3, 96, 0, 12)},
     .rank_rate = {2},
     .ranks_per_node = 2,
     .node_rate = {10, 20}},
    {.name = "latency takes nothing of a node's port",
     .seconds = 30,
     .batches = {BATCH(0, 0, 2, 50, 0, 15), BATCH(0, 1, 3, 150, 0, 30), BATCH(1, 0, 2, 50, 15, 30)},
     .latency = 5,
     .ranks_per_node = 2,
     .node_rate = {10, 10}},

    {.name = "packed, sent, unpacked",
     .seconds = 4,
     .batches = {BATCH(0, 0, 1, 20, 1, 3)},
     .pack = 20},
    {.name = "a relay is packed once it is unpacked",
     .seconds = 28,
     .batches = {BATCH(0, 0, 1, 10, 2, 12), RELAY(1, 1, 2, 10, 16, 26, 1)},
     .rank_rate = {1, 1, 1},
     .pack = 5},
    {.name = "one slot each: packing and sending take turns",
     .seconds = 7,
     .batches = {BATCH(0, 0, 1, 10, 1, 2), BATCH(1, 0, 1, 10, 3, 4), BATCH(2, 0, 1, 10, 5, 6)},
     .send_slots = 1,
     .recv_slots = 1,
     .pack = 10},
    {.name = "two slots each: packing, sending and unpacking overlap",
     .seconds = 5,
     .batches = {BATCH(0, 0, 1, 10, 1, 2), BATCH(1, 0, 1, 10, 2, 3), BATCH(2, 0, 1, 10, 3, 4)},
     .send_slots = 2,
     .recv_slots = 2,
     .pack = 10},
    {.name = "one slot at the receiver: no credit before it is unpacked",
     .seconds = 7,
     .batches = {BATCH(0, 0, 1, 10, 1, 2), BATCH(1, 0, 1, 10, 3, 4), BATCH(2, 0, 1, 10, 5, 6)},
     .send_slots = 2,
     .recv_slots = 1,
     .pack = 10},
    {.name = "a receiver unpacks one at a time",
     .seconds = 6,
     .batches = {BATCH(0, 0, 2, 10, 2, 3), BATCH(1, 1, 2, 5, 3, 3.5)},
     .pack = 5},
    {.name = "one slot and no time to pack is the port model",
     .seconds = 3,
     .batches = {BATCH(0, 0, 1, 10, 0, 1), BATCH(1, 0, 1, 10, 1, 2), BATCH(2, 0, 1, 10, 2, 3)},
     .send_slots = 1,
     .recv_slots = 1},
};

/* A schedule with room for a row's batches; what a test changes before it runs is its own affair.
 */
typedef struct made {
    struct ferry_schedule schedule;
    double rank_rate[MOST_RANKS];
    double node_rate[MOST_NODES];
    fy_batch batches[MOST_BATCHES];
    uint64_t wait_begin[MOST_BATCHES + 1];
    uint64_t waits[MOST_BATCHES];
    uint64_t send_begin[MOST_RANKS + 1];
    uint64_t sends[MOST_BATCHES];
    uint64_t recv_begin[MOST_RANKS + 1];
    uint64_t recvs[MOST_BATCHES];
} made;

static void make_network(made *m, const row *r)
{
    fy_network *network = &m->schedule.network;
    network->has_seconds = true;
    network->n_ranks = MOST_RANKS;
    network->ranks_per_node = r->ranks_per_node == 0 ? 1 : r->ranks_per_node;
    network->n_nodes = r->ranks_per_node == 0 ? 0 : MOST_RANKS / r->ranks_per_node;
    network->latency = r->latency;
    network->rank_rate = m->rank_rate;
    network->node_rate = m->node_rate;
    for (uint32_t i = 0; i < MOST_RANKS; i++) {
        m->rank_rate[i] = r->rank_rate[i] > 0 ? r->rank_rate[i] : 10;
    }
    for (uint32_t i = 0; i < MOST_NODES; i++) {
        m->node_rate[i] = r->node_rate[i] > 0 ? r->node_rate[i] : 10;
    }
}

static void make_lists(made *m)
{
    uint64_t n_sends = 0, n_recvs = 0;
    for (uint32_t rank = 0; rank < MOST_RANKS; rank++) {
        m->send_begin[rank] = n_sends;
        m->recv_begin[rank] = n_recvs;
        for (uint64_t b = 0; b < m->schedule.n_batches; b++) {
            if (m->batches[b].from == rank) {
                m->sends[n_sends++] = b;
            }
            if (m->batches[b].to == rank) {
                m->recvs[n_recvs++] = b;
            }
        }
    }
    m->send_begin[MOST_RANKS] = n_sends;
    m->recv_begin[MOST_RANKS] = n_recvs;
}

static void make(made *m, const row *r)
{
    *m = (made){0};
    ferry_schedule *s = &m->schedule;
    uint64_t n_waits = 0, n = 0;
    make_network(m, r);
    for (; n < MOST_BATCHES && r->batches[n].bytes > 0; n++) {
        const wanted_batch *b = &r->batches[n];
        m->batches[n] = (fy_batch){
            .round = b->round, .from = b->from, .to = b->to, .n_segments = 1, .bytes = b->bytes};
        m->wait_begin[n] = n_waits;
        if (b->relayed > 0) {
            m->waits[n_waits++] = b->relayed - 1;
        }
    }
    m->wait_begin[n] = n_waits;
    s->n_batches = n;
    s->duplex = r->duplex;
    s->batches = m->batches;
    s->wait_begin = n_waits > 0 ? m->wait_begin : NULL;
    s->waits = m->waits;
    s->send_begin = m->send_begin;
    s->sends = m->sends;
    s->recv_begin = m->recv_begin;
    s->recvs = m->recvs;
    make_lists(m);
}

static ferry_status run_row(const made *m, const row *r, ferry_simulation **simulation,
                            ferry_error *error)
{
    ferry_simulation_options options = FERRY_SIMULATION_OPTIONS_INIT;
    options.n_send_slots = r->send_slots;
    options.n_receive_slots = r->recv_slots;
    options.pack_bytes_per_s = r->pack;
    return ferry_simulation_create(&m->schedule, &options, simulation, error);
}

static bool is_close(double a, double b)
{
    return fabs(a - b) <= CLOSE * (1 + fabs(b));
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const row *r = &rows[i];
        ferry_simulation_report report = FERRY_SIMULATION_REPORT_INIT;
        ferry_simulation *simulation = NULL;
        ferry_error error;
        made m;
        make(&m, r);
        check_status(r->name, FERRY_OK, run_row(&m, r, &simulation, &error), &error);
        must(ferry_simulation_get_report(simulation, &report, &error), &error);
        check_at(is_close(report.seconds, r->seconds), "row \"%s\": %.17g seconds, not %g", r->name,
                 report.seconds, r->seconds);
        for (uint64_t b = 0; b < m.schedule.n_batches; b++) {
            double start, end;
            const wanted_batch *wanted = &r->batches[b];
            must(ferry_simulation_get_batch_time(simulation, b, &start, &end, &error), &error);
            check_at(is_close(start, wanted->start) && is_close(end, wanted->end),
                     "row \"%s\" batch %llu: %.17g to %.17g, not %g to %g", r->name,
                     (unsigned long long)b, start, end, wanted->start, wanted->end);
        }
        ferry_simulation_destroy(simulation);
    }
}

static void test_report(void **state)
{
    (void)state;
    static const row r = {.name = "report",
                          .batches = {BATCH(0, 0, 1, 20, 0, 2), BATCH(1, 0, 2, 30, 2, 5),
                                      BATCH(2, 0, 1, 10, 5, 6), BATCH(2, 3, 2, 10, 5, 6)}};
    static const struct {
        double end, busy, idle;
        uint64_t peak;
    } wanted[] = {{6, 6, 0, 30}, {6, 3, 3, 20}, {6, 4, 2, 30}, {6, 1, 5, 10}, {0, 0, 6, 0}};
    ferry_simulation_report report = FERRY_SIMULATION_REPORT_INIT;
    ferry_simulation *simulation = NULL;
    ferry_error error;
    made m;
    make(&m, &r);
    must(run_row(&m, &r, &simulation, &error), &error);
    must(ferry_simulation_get_report(simulation, &report, &error), &error);
    assert_int_equal(report.peak_slot_bytes, 30);
    assert_int_equal(report.peak_slot_rank, 0);
    assert_int_equal(report.slowest_from, 0);
    assert_int_equal(report.slowest_to, 1); /* 2 + 1 seconds; as long as 0 to 2, but before it */
    assert_true(is_close(report.slowest_seconds, 3));
    for (uint32_t rank = 0; rank < COUNT_OF(wanted); rank++) {
        ferry_simulation_rank found = FERRY_SIMULATION_RANK_INIT;
        must(ferry_simulation_get_rank(simulation, rank, &found, &error), &error);
        check_at(is_close(found.end, wanted[rank].end) && is_close(found.busy, wanted[rank].busy) &&
                     is_close(found.idle, wanted[rank].idle) &&
                     found.peak_slot_bytes == wanted[rank].peak,
                 "rank %u: end %g busy %g idle %g peak %llu", rank, found.end, found.busy,
                 found.idle, (unsigned long long)found.peak_slot_bytes);
    }
    ferry_simulation_destroy(simulation);
}

static void test_slots_in_use(void **state)
{
    (void)state;
    static const struct {
        uint32_t slots;
        uint64_t peak;
    } cases[] = {{1, 10}, {2, 20}, {3, 30}, {0, 30}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        row r = {.batches = {BATCH(0, 0, 1, 10, 0, 0), BATCH(1, 0, 1, 10, 0, 0),
                             BATCH(2, 0, 1, 10, 0, 0)}};
        r.send_slots = r.recv_slots = cases[i].slots;
        r.pack = 20;
        ferry_simulation_report report = FERRY_SIMULATION_REPORT_INIT;
        ferry_simulation *simulation = NULL;
        ferry_error error;
        made m;
        make(&m, &r);
        must(run_row(&m, &r, &simulation, &error), &error);
        must(ferry_simulation_get_report(simulation, &report, &error), &error);
        check_at(report.peak_slot_bytes == cases[i].peak && report.peak_slot_rank == 0,
                 "%u slots: rank %u has %llu bytes in them", cases[i].slots, report.peak_slot_rank,
                 (unsigned long long)report.peak_slot_bytes);
        ferry_simulation_destroy(simulation);
    }
}

typedef struct circle {
    const char *name;
    row row;
    const char *says;
    bool swaps_recvs; /* the first two of the receiver's list */
    bool drops_recv;  /* the last of all */
} circle;

static const circle circles[] = {
    {.name = "a batch that waits for itself",
     .row = {.batches = {RELAY(0, 0, 1, 10, 0, 0, 1)}},
     .says = "waits for batch 0"},
    {.name = "two relays of each other",
     .row = {.batches = {RELAY(0, 0, 1, 10, 0, 0, 2), RELAY(0, 1, 0, 10, 0, 0, 1)}},
     .says = "batch 0 (round 0, from rank 0 to rank 1) can never start: it waits for batch 1"},
    {.name = "a relay in an earlier place than what it waits for",
     .row = {.batches = {RELAY(0, 0, 1, 10, 0, 0, 2), BATCH(1, 0, 2, 10, 0, 0)}},
     .says = "waits for batch"},
    {.name = "sender and receiver disagree",
     .row = {.batches = {BATCH(0, 0, 1, 10, 0, 0), BATCH(1, 0, 1, 10, 0, 0)}},
     .says = "waits for batch",
     .swaps_recvs = true},
    {.name = "the circle has others behind it",
     .row = {.batches = {RELAY(0, 5, 0, 10, 0, 0, 3), RELAY(1, 0, 1, 10, 0, 0, 3),
                         RELAY(2, 1, 0, 10, 0, 0, 2)}},
     .says = "waits for batch"},
    {.name = "a batch that its receiver does not know",
     .row = {.batches = {BATCH(0, 0, 1, 10, 0, 0)}},
     .says = "batch 0 (round 0, from rank 0 to rank 1)",
     .drops_recv = true},
};

static void test_circles(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * COUNT_OF(circles); i++) {
        const circle *c = &circles[i / 2];
        row r = c->row;
        ferry_simulation *simulation = NULL;
        ferry_error error;
        made m;
        make(&m, &r);
        r.pack = i % 2 == 0 ? 0 : 1; /* with packing and without */
        if (c->swaps_recvs) {
            uint64_t *first = &m.recvs[m.recv_begin[1]];
            uint64_t kept = first[0];
            first[0] = first[1];
            first[1] = kept;
        }
        if (c->drops_recv) {
            for (uint32_t rank = 2; rank <= MOST_RANKS; rank++) {
                m.recv_begin[rank]--;
            }
        }
        check_status(c->name, FERRY_ERR_INVALID_PLAN, run_row(&m, &r, &simulation, &error), &error);
        check_says(c->name, c->says, &error);
        assert_null(simulation);
    }
}

static void test_misuse(void **state)
{
    (void)state;
    ferry_simulation *simulation = NULL;
    ferry_simulation_options options = FERRY_SIMULATION_OPTIONS_INIT;
    ferry_simulation_rank rank = FERRY_SIMULATION_RANK_INIT;
    ferry_error error;
    double start, end;
    made m;
    make(&m, &rows[1]);
    assert_int_equal(ferry_simulation_create(NULL, NULL, &simulation, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_simulation_create(&m.schedule, NULL, NULL, &error), FERRY_ERR_MISUSE);
    for (int i = 0; i < 3; i++) {
        options.pack_bytes_per_s = i == 0 ? -1 : i == 1 ? NAN : INFINITY;
        assert_int_equal(ferry_simulation_create(&m.schedule, &options, &simulation, &error),
                         FERRY_ERR_MISUSE);
        check_says("options", "pack_bytes_per_s", &error);
    }
    options.struct_size = 4;
    assert_int_equal(ferry_simulation_create(&m.schedule, &options, &simulation, &error),
                     FERRY_ERR_MISUSE);
    assert_null(simulation);
    must(ferry_simulation_create(&m.schedule, NULL, &simulation, &error), &error);
    assert_int_equal(ferry_simulation_get_rank(simulation, MOST_RANKS, &rank, &error),
                     FERRY_ERR_MISUSE);
    assert_int_equal(ferry_simulation_get_batch_time(simulation, 1, &start, &end, &error),
                     FERRY_ERR_MISUSE);
    ferry_simulation_destroy(simulation);
    ferry_simulation_destroy(NULL);
}

static json_t *member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    check_at(value != NULL, "the trace has no %s", key);
    return value;
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(member(object, key));
}

static void check_batch_event(const json_t *event, const made *m,
                              const ferry_simulation *simulation, double unit)
{
    const json_t *args = member(event, "args");
    uint64_t batch = (uint64_t)number(args, "batch");
    assert_true(batch < m->schedule.n_batches);
    const fy_batch *b = &m->batches[batch];
    bool is_send = number(event, "tid") < 2;
    char name[32];
    double start, end;
    ferry_error error;
    must(ferry_simulation_get_batch_time(simulation, batch, &start, &end, &error), &error);
    assert_true(is_close(number(event, "ts"), start * unit));
    assert_true(is_close(number(event, "dur"), (end - start) * unit));
    snprintf(name, sizeof name, is_send ? "to %u" : "from %u", is_send ? b->to : b->from);
    assert_string_equal(json_string_value(member(event, "name")), name);
    assert_int_equal(number(event, "pid"), is_send ? b->from : b->to);
    assert_int_equal(number(args, "round"), b->round);
    assert_int_equal(number(args, "from"), b->from);
    assert_int_equal(number(args, "to"), b->to);
    assert_int_equal(number(args, "bytes"), b->bytes);
    assert_int_equal(number(args, "segments"), b->n_segments);
}

static void check_trace(const char *text, const made *m, const ferry_simulation *simulation,
                        double unit)
{
    uint64_t n_batches = 0, n_names = 0;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *event;
    assert_non_null(root);
    json_t *other = member(root, "otherData");
    assert_int_equal(number(other, "rounds"), m->schedule.report.n_rounds);
    assert_true(is_close(number(other, "makespan"), m->schedule.report.makespan));
    assert_true(is_close(number(other, "ratio"), m->schedule.report.ratio));
    size_t i;
    json_array_foreach (member(root, "traceEvents"), i, event) {
        const char *phase = json_string_value(member(event, "ph"));
        if (strcmp(phase, "X") == 0) {
            check_batch_event(event, m, simulation, unit);
            n_batches++;
        } else {
            assert_string_equal(phase, "M");
            n_names++;
        }
    }
    assert_int_equal(n_batches, 2 * m->schedule.n_batches);
    assert_int_equal(n_names, 3 * MOST_RANKS);
    json_decref(root);
}

static void test_trace(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * COUNT_OF(rows); i++) {
        const row *r = &rows[i / 2];
        ferry_simulation *simulation = NULL;
        text_buffer text = {0};
        ferry_error error;
        made m;
        make(&m, r);
        m.schedule.network.has_seconds = i % 2;
        m.schedule.report.n_rounds = 3;
        m.schedule.report.makespan = r->seconds;
        m.schedule.report.ratio = 1.25;
        must(run_row(&m, r, &simulation, &error), &error);
        must(ferry_simulation_write_trace(simulation, text_write, &text, &error), &error);
        check_trace(text.bytes, &m, simulation, i % 2 ? 1e6 : 1e-3);
        text_cleanup(&text);
        ferry_simulation_destroy(simulation);
    }
}

/* A simulation holds on to its schedule: the caller may destroy them in any order. */
static void test_schedule_goes_first(void **state)
{
    (void)state;
    ferry_task_list *tasks = NULL;
    ferry_schedule *schedule = NULL;
    ferry_simulation *first = NULL, *second = NULL;
    ferry_task task = FERRY_TASK_INIT;
    text_buffer before = {0}, after = {0};
    ferry_error error;
    task.to = 1;
    task.bytes = 100;
    must(ferry_task_list_create(2, &tasks, &error), &error);
    must(ferry_task_list_add(tasks, &task, &error), &error);
    must(ferry_schedule_create(tasks, NULL, NULL, &schedule, &error), &error);
    must(ferry_simulation_create(schedule, NULL, &first, &error), &error);
    must(ferry_simulation_create(schedule, NULL, &second, &error), &error);
    must(ferry_simulation_write_trace(second, text_write, &before, &error), &error);
    ferry_schedule_destroy(schedule);
    ferry_simulation_destroy(first);
    task.task_id = 1; /* another schedule, which takes what memory is free now */
    must(ferry_task_list_add(tasks, &task, &error), &error);
    must(ferry_schedule_create(tasks, NULL, NULL, &schedule, &error), &error);
    must(ferry_simulation_write_trace(second, text_write, &after, &error), &error);
    assert_string_equal(after.bytes, before.bytes);
    ferry_simulation_destroy(second);
    ferry_schedule_destroy(schedule);
    ferry_task_list_destroy(tasks);
    text_cleanup(&before);
    text_cleanup(&after);
}

static int refuse(void *context, const char *bytes, size_t n_bytes)
{
    (void)context;
    (void)bytes;
    (void)n_bytes;
    return 1;
}

static void test_trace_that_cannot_be_written(void **state)
{
    (void)state;
    ferry_simulation *simulation = NULL;
    ferry_error error;
    made m;
    make(&m, &rows[1]);
    must(run_row(&m, &rows[1], &simulation, &error), &error);
    assert_int_equal(ferry_simulation_write_trace(simulation, refuse, NULL, &error), FERRY_ERR_IO);
    assert_int_equal(ferry_simulation_write_trace(simulation, NULL, NULL, &error),
                     FERRY_ERR_MISUSE);
    assert_int_equal(ferry_simulation_write_trace(NULL, refuse, NULL, &error), FERRY_ERR_MISUSE);
    ferry_simulation_destroy(simulation);
}

static void test_memory(void **state)
{
    (void)state;
    row r = rows[COUNT_OF(rows) - 1];
    ferry_simulation *simulation = NULL;
    ferry_error error;
    made m;
    ferry_status status = FERRY_ERR_NO_MEMORY;
    int64_t n_fails = 0;
    r.ranks_per_node = 2;
    r.pack = 10;
    r.batches[1].relayed = 1;
    make(&m, &r);
    for (; status != FERRY_OK; n_fails++) {
        fy_alloc_fail_after(n_fails);
        status = run_row(&m, &r, &simulation, &error);
        fy_alloc_fail_after(-1);
        assert_true(status == FERRY_OK || status == FERRY_ERR_NO_MEMORY);
        assert_true((simulation == NULL) == (status != FERRY_OK));
    }
    assert_true(n_fails > 10);
    fy_alloc_fail_after(0);
    text_buffer text = {0};
    assert_int_equal(ferry_simulation_write_trace(simulation, text_write, &text, &error),
                     FERRY_ERR_NO_MEMORY);
    fy_alloc_fail_after(-1);
    assert_null(text.bytes);
    ferry_simulation_destroy(simulation);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_report),
        cmocka_unit_test(test_slots_in_use),
        cmocka_unit_test(test_circles),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_trace),
        cmocka_unit_test(test_schedule_goes_first),
        cmocka_unit_test(test_trace_that_cannot_be_written),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
