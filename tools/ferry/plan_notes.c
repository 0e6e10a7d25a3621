/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What is allowed, and more often a slip: notes on stderr about specs and plans. */
#include "plan.h"

#include "commands.h"
#include "name_text.h"
#include "steps.h"
#include "terminal.h"
#include "units.h"

enum { MOST_NOTES = 8, MOST_RUNS = 8 };

/* ---- rules and stages ---- */

typedef struct noting {
    const char *who;
    size_t n;
} noting;

static void print_range(uint32_t first, uint32_t n)
{
    fprintf(stderr, "%u", first);
    if (n > 1) {
        fprintf(stderr, "-%u", first + n - 1);
    }
}

static void print_effect(const ferry_unused *unused, const char *side)
{
    if (unused->axis != NULL) {
        fprintf(stderr, " puts no tensor on coordinate%s ", plural(unused->n_coordinates));
        print_range(unused->first_coordinate, unused->n_coordinates);
        fputs(" of the axis \"", stderr);
        print_name(stderr, unused->axis);
        fputs("\"\n", stderr);
    } else if (unused->is_hidden) {
        fputs(" has no effect: rules before it take all tensors that it fits\n", stderr);
    } else {
        fprintf(stderr, " has no effect: it fits no tensor that the %s has\n", side);
    }
}

static ferry_status note_one(void *context, const ferry_unused *unused)
{
    noting *n = context;
    const char *side = unused->is_destination ? "destination" : "source";
    if (n->n++ >= MOST_NOTES || !terminal_begin_note(n->who)) {
        return FERRY_OK;
    }
    if (unused->is_node) {
        fprintf(stderr, "cluster.nodes has rates of node %zu, on which no rank is\n",
                unused->index);
        return FERRY_OK;
    }
    fprintf(stderr, "%s.%s[%zu] (\"", side, unused->is_stage ? "stages" : "rules", unused->index);
    print_name(stderr, unused->match);
    fputs("\")", stderr);
    print_effect(unused, side);
    return FERRY_OK;
}

ferry_status plan_note_unused(const char *who, const ferry_spec *spec, ferry_error *error)
{
    noting n = {.who = who};
    if (who == NULL || terminal_loudness() == LOUDNESS_QUIET) {
        return FERRY_OK;
    }
    ferry_status status = ferry_spec_visit_unused(spec, note_one, &n, error);
    if (status == FERRY_OK && n.n > MOST_NOTES) {
        terminal_note(who, "and so %s %zu more", n.n == MOST_NOTES + 1 ? "is" : "are",
                      n.n - MOST_NOTES);
    }
    return status;
}

/* ---- ranks ---- */

typedef struct idle_ranks {
    uint32_t first[MOST_RUNS], n[MOST_RUNS];
    size_t n_runs;
    uint32_t n_ranks;
} idle_ranks;

static ferry_status add_idle(void *context, uint32_t first, uint32_t n_ranks)
{
    idle_ranks *idle = context;
    if (idle->n_runs < MOST_RUNS) {
        idle->first[idle->n_runs] = first;
        idle->n[idle->n_runs] = n_ranks;
    }
    idle->n_runs++;
    idle->n_ranks += n_ranks;
    return FERRY_OK;
}

ferry_status plan_note_idle(const char *who, const ferry_plan *plan, ferry_error *error)
{
    idle_ranks idle = {.n_runs = 0};
    if (who == NULL || terminal_loudness() == LOUDNESS_QUIET) {
        return FERRY_OK;
    }
    ferry_status status = ferry_plan_visit_idle(plan, add_idle, &idle, error);
    if (status != FERRY_OK || idle.n_ranks == 0 || !terminal_begin_note(who)) {
        return status;
    }
    fprintf(stderr, "rank%s ", plural(idle.n_ranks));
    for (size_t i = 0; i < idle.n_runs && i < MOST_RUNS; i++) {
        fputs(i == 0 ? "" : ", ", stderr);
        print_range(idle.first[i], idle.n[i]);
    }
    fprintf(stderr, "%s of the %u ha%s no part of any tensor, on neither side\n",
            idle.n_runs > MOST_RUNS ? ", ..." : "", ferry_plan_rank_count(plan),
            idle.n_ranks == 1 ? "s" : "ve");
    return FERRY_OK;
}
