/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's plan costs its own moves + layout classes x peers, whatever the size of the world: a
 * planner that made the moves of everybody and left out those of others would be found here.
 */
#include "support/check.h"
#include "support/spec.h"

#include <stdio.h>

enum { N_LAYERS = 6, SMALLEST_WORLD = 64, LARGEST_WORLD = 4096, N_SAMPLES = 12 };

/* How many moves may be looked at for each of a rank's own. */
enum { PER_MOVE = 4 };

typedef struct row {
    const char *name;
    uint32_t src_tp, dst_tp;
    bool disjoint; /* else the same ranks on both sides */
    uint32_t policy;
    const char *src_rule, *dst_rule; /* beside the even cut of everything else */
} row;

#define STRIDED "{'match':'*.up','shard':[{'dim':0,'axis':'tp','stride':2}]},"
#define COLUMNS "{'match':'*.down','shard':[{'dim':1,'axis':'tp'}]},"
#define PARTS "{'match':'*.k','shard':[{'dim':0,'axis':'tp','parts':2}]},"
#define FLAT "{'match':'*.norm','flat':{'axis':'tp'}},"

static const row rows[] = {
    {"4 to 8, disjoint", 4, 8, true, FERRY_REPLICA_BALANCED, STRIDED COLUMNS, COLUMNS},
    {"8 to 4, disjoint", 8, 4, true, FERRY_REPLICA_BALANCED, COLUMNS PARTS, PARTS},
    {"4 to 8, same ranks", 4, 8, false, FERRY_REPLICA_BALANCED, STRIDED COLUMNS, COLUMNS},
    {"8 to 1, same ranks", 8, 1, false, FERRY_REPLICA_BALANCED, COLUMNS, ""},
    {"4 to 8, flat", 4, 8, true, FERRY_REPLICA_BALANCED, FLAT COLUMNS, FLAT},
    {"3 to 8, disjoint", 3, 8, true, FERRY_REPLICA_BALANCED, STRIDED, COLUMNS},
    {"4 to 8, seed", 4, 8, true, FERRY_REPLICA_SEED, STRIDED COLUMNS, COLUMNS},
    {"8 to 4, seed, same ranks", 8, 4, false, FERRY_REPLICA_SEED, COLUMNS PARTS, PARTS},
};

static ferry_plan *plan_row(const row *r, uint32_t world)
{
    char spec[4096];
    uint32_t half = r->disjoint ? world / 2 : world;
    snprintf(spec, sizeof spec,
             "{'format':'ferry.spec/1','tensors':["
             "{'name':'l{0}.up','count':[%d],'shape':[480,24],'dtype':'bf16'},"
             "{'name':'l{0}.down','count':[%d],'shape':[24,480],'dtype':'bf16'},"
             "{'name':'l{0}.k','count':[%d],'shape':[48,24],'dtype':'bf16'},"
             "{'name':'l{0}.norm','count':[%d],'shape':[24],'dtype':'bf16'}],"
             "'source':{'mesh':[['dp',%u],['tp',%u]],'rules':[%s{'match':'*.norm'},"
             "{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]},"
             "'destination':{'mesh':[['dp',%u],['tp',%u]],'first_rank':%u,'rules':[%s"
             "{'match':'*.norm'},{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]}}",
             N_LAYERS, N_LAYERS, N_LAYERS, N_LAYERS, half / r->src_tp, r->src_tp, r->src_rule,
             half / r->dst_tp, r->dst_tp, r->disjoint ? half : 0, r->dst_rule);
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    options.replica = r->policy;
    return plan_of(spec, &options);
}

typedef struct tally {
    uint32_t rank;
    uint64_t n_moves, n_received, last_task;
    bool in_order;
} tally;

static ferry_status count_move(void *context, const ferry_move *move)
{
    tally *t = context;
    t->in_order = t->in_order && (t->n_moves == 0 || move->task_id > t->last_task) &&
                  (move->from == t->rank || move->to == t->rank);
    t->last_task = move->task_id;
    t->n_received += move->to == t->rank;
    t->n_moves++;
    return FERRY_OK;
}

/* Visits one rank, holds the visit to the formula and returns what it looked at. */
static ferry_visit_statistics visit_rank(const row *r, const ferry_plan *plan, uint32_t rank)
{
    ferry_plan_statistics plan_statistics = FERRY_PLAN_STATISTICS_INIT;
    ferry_visit_statistics s = FERRY_VISIT_STATISTICS_INIT;
    ferry_rank_bytes bytes = FERRY_RANK_BYTES_INIT;
    tally t = {.rank = rank, .in_order = true};
    ferry_error error;
    must(ferry_plan_get_statistics(plan, &plan_statistics, &error), &error);
    must(ferry_plan_get_rank_bytes(plan, rank, &bytes, &error), &error);
    must(ferry_plan_visit(plan, rank, count_move, &t, &s, &error), &error);
    check_row(r->name, t.in_order && t.n_received == bytes.n_moves);
    check_row(r->name, s.n_moves_visited >= t.n_moves);
    check_row(r->name, s.n_peers <= t.n_moves);
    check_row(r->name, s.n_layout_classes <= plan_statistics.n_layout_classes);
    uint64_t allowed = PER_MOVE * t.n_moves + plan_statistics.n_layout_classes * s.n_peers;
    if (s.n_moves_visited > allowed) {
        fail_msg(
            "row \"%s\", world %u, rank %u: %llu moves visited for %llu of its own, %llu peers "
            "and %llu classes",
            r->name, ferry_plan_rank_count(plan), rank, (unsigned long long)s.n_moves_visited,
            (unsigned long long)t.n_moves, (unsigned long long)s.n_peers,
            (unsigned long long)plan_statistics.n_layout_classes);
    }
    return s;
}

static uint64_t worst_visit(const row *r, const ferry_plan *plan)
{
    uint64_t world = ferry_plan_rank_count(plan), worst = 0;
    for (uint64_t i = 0; i < N_SAMPLES; i++) {
        uint32_t rank = (uint32_t)(i * (world - 1) / (N_SAMPLES - 1));
        uint64_t visited = visit_rank(r, plan, rank).n_moves_visited;
        worst = visited > worst ? visited : worst;
    }
    return worst;
}

/*
 * Both sides grow by replicas, so with balanced senders a rank's own moves stay as many, and what
 * it visits must too. (The reference's rule lets a few replicas serve everybody.) Classes and sets
 * do not depend on the world at all.
 */
static void test_worlds(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const row *r = &rows[i];
        uint64_t first_classes = 0, first_sets = 0, first_worst = 0;
        for (uint32_t world = SMALLEST_WORLD; world <= LARGEST_WORLD; world *= 4) {
            ferry_plan *plan = plan_row(r, world);
            ferry_plan_statistics s = FERRY_PLAN_STATISTICS_INIT;
            ferry_error error;
            must(ferry_plan_get_statistics(plan, &s, &error), &error);
            uint64_t worst = worst_visit(r, plan);
            if (world == SMALLEST_WORLD) {
                first_classes = s.n_layout_classes;
                first_sets = s.n_replica_sets;
                first_worst = worst;
            }
            check_row(r->name, s.n_tensors == 4 * N_LAYERS);
            check_row(r->name, s.n_layout_classes == first_classes && first_classes <= 4);
            check_row(r->name, s.n_replica_sets == first_sets);
            check_row(r->name, s.n_cuts <= (uint64_t)world * first_classes);
            if (r->policy == FERRY_REPLICA_BALANCED && worst > 2 * first_worst) {
                fail_msg("row \"%s\": %llu moves visited at world %u, but %llu at %d", r->name,
                         (unsigned long long)worst, world, (unsigned long long)first_worst,
                         SMALLEST_WORLD);
            }
            ferry_plan_destroy(plan);
        }
    }
}

/*
 * Shards that are cut flat over everybody, as fully sharded training has them. What planning looks
 * at grows with the ranks, and what one rank looks at does not. With sizes of their own, too.
 */
enum { FLAT_ROWS = 8200, FLAT_COLUMNS = 1000, SMALL_FLAT = 256, LARGE_FLAT = 1024 };

static const struct {
    const char *name;
    const char *destination; /* with the number of ranks in it, if it depends on that */
    bool sizes;
} flat_rows[] = {
    {"to columns", "'mesh':[['tp',8]],'rules':[{'match':'*','shard':[{'dim':1,'axis':'tp'}]}]",
     false},
    {"to rows", "'mesh':[['tp',8]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]", false},
    {"to columns, uneven",
     "'mesh':[['tp',8]],'rules':[{'match':'*','shard':[{'dim':1,'axis':'tp'}]}]", true},
    {"to another flat cut", "'mesh':[['dp',%u]],'rules':[{'match':'*','flat':{'axis':'dp'}}]",
     false},
};

static ferry_plan *plan_flat(size_t i, uint32_t n_ranks)
{
    static char spec[1 << 16], sizes[1 << 15], destination[500];
    uint64_t total = (uint64_t)FLAT_ROWS * FLAT_COLUMNS, done = 0;
    size_t used = 0;
    for (uint32_t r = 0; flat_rows[i].sizes && r < n_ranks; r++) {
        uint64_t end = r + 1 == n_ranks ? total : total / n_ranks * (r + 1) + r * r % 701;
        used += (size_t)snprintf(sizes + used, sizeof sizes - used, "%s%llu",
                                 r == 0 ? ",'sizes':[" : ",", (unsigned long long)(end - done));
        done = end;
    }
    snprintf(sizes + used, sizeof sizes - used, "%s", used > 0 ? "]" : "");
    snprintf(destination, sizeof destination, flat_rows[i].destination, n_ranks - 1);
    snprintf(spec, sizeof spec,
             "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[%d,%d],'dtype':'bf16'}],"
             "'source':{'mesh':[['dp',%u]],'rules':[{'match':'*','flat':{'axis':'dp'%s}}]},"
             "'destination':{%s}}",
             FLAT_ROWS, FLAT_COLUMNS, n_ranks, sizes, destination);
    return plan_of(spec, NULL);
}

static void test_flat_sources(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(flat_rows); i++) {
        uint64_t made[2], n_moves[2];
        for (int large = 0; large < 2; large++) {
            uint32_t n_ranks = large == 1 ? LARGE_FLAT : SMALL_FLAT;
            ferry_plan *plan = plan_flat(i, n_ranks);
            ferry_plan_totals totals = FERRY_PLAN_TOTALS_INIT;
            ferry_plan_statistics statistics = FERRY_PLAN_STATISTICS_INIT;
            ferry_error error;
            must(ferry_plan_get_totals(plan, &totals, &error), &error);
            must(ferry_plan_get_statistics(plan, &statistics, &error), &error);
            made[large] = statistics.n_flat_steps;
            n_moves[large] = totals.n_moves;
            for (uint32_t rank = n_ranks / 3; rank < n_ranks; rank += n_ranks / 5) {
                ferry_visit_statistics s = FERRY_VISIT_STATISTICS_INIT;
                tally t = {.rank = rank, .in_order = true};
                must(ferry_plan_visit(plan, rank, count_move, &t, &s, &error), &error);
                check_at(t.n_moves > 0 && t.in_order && s.n_moves_visited == t.n_moves,
                         "%s, %u ranks, rank %u: %llu moves visited for %llu of its own",
                         flat_rows[i].name, n_ranks, rank, (unsigned long long)s.n_moves_visited,
                         (unsigned long long)t.n_moves);
            }
            ferry_plan_destroy(plan);
        }
        check_at(made[0] > 0 && made[1] < 5 * made[0] && n_moves[1] > 2 * n_moves[0],
                 "%s: %llu boxes for %d ranks, but %llu for %d", flat_rows[i].name,
                 (unsigned long long)made[1], LARGE_FLAT, (unsigned long long)made[0], SMALL_FLAT);
    }
}

/* Ranks that take no part in anything cost nothing. */
static void test_idle_rank(void **state)
{
    (void)state;
    ferry_plan *plan =
        plan_of("{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[8],'dtype':"
                "'u8'}],'source':{'mesh':[['x',2]],'rules':[{'match':'*'}]},"
                "'destination':{'mesh':[['x',2]],'ranks':[1000,3000],"
                "'rules':[{'match':'*'}]}}",
                NULL);
    for (uint32_t rank = 3; rank < 3000; rank += 499) {
        ferry_visit_statistics s = FERRY_VISIT_STATISTICS_INIT;
        tally t = {.rank = rank, .in_order = true};
        ferry_error error;
        must(ferry_plan_visit(plan, rank, count_move, &t, &s, &error), &error);
        check_at(t.n_moves == 0 && s.n_moves_visited == 0 && s.n_peers == 0 &&
                     s.n_layout_classes == 0,
                 "rank %u", rank);
    }
    ferry_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worlds),
        cmocka_unit_test(test_flat_sources),
        cmocka_unit_test(test_idle_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
