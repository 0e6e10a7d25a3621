/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PLAN_CORE_H
#define FY_PLAN_CORE_H

#include "base/json.h"
#include "base/sort.h"
#include "base/writer.h"
#include "plan/route.h"

#include <ferry/plan.h>
#include <ferry/reshard.h>

#include <stdatomic.h>

/* The distinct sets of ranks that hold the same bytes, and what each member sends for it. */
typedef struct fy_sets {
    size_t n_sets;
    size_t set_capacity;
    size_t *member_begin; /* [n_sets + 1] */
    uint32_t *members;    /* ranks, ascending within a set */
    size_t member_capacity;
    double *share;     /* bytes, as the optimum has them */
    double *demand;    /* [n_sets] bytes */
    uint32_t *n_lines; /* [n_sets] lines that draw from the set; then: from the busiest member */
    fy_index index;
} fy_sets;

/*
 * A line lays out everything that is wanted of one source cell on a route: destination replica by
 * replica, cell by cell, unit by unit, in elements. Its ends say where each sender's stretch ends,
 * so a receiver finds its senders without knowing anybody else's moves. A line of one sender has no
 * ends.
 */
typedef struct fy_line {
    size_t first; /* into end[] and sender[] */
    uint32_t n;   /* 0: the only holder sends everything */
} fy_line;

/* Boxes that a receiver gets in addition because senders change inside a unit. */
typedef struct fy_extra {
    uint32_t rank;
    uint32_t leg;
    uint32_t count;
} fy_extra;

typedef struct fy_lines {
    fy_line *lines;
    size_t n_lines;
    uint64_t *end;
    uint32_t *sender;
    size_t n_ends, end_capacity, sender_capacity;
    fy_extra *extras; /* by rank, then leg */
    size_t n_extras, extra_capacity;
} fy_lines;

struct ferry_plan {
    _Atomic uint32_t references;
    const ferry_spec *spec; /* one of the two inputs, held until the end */
    ferry_roster *roster;
    fy_problem problem;
    fy_routes routes;
    fy_sets sets;
    fy_lines lines;
    uint32_t policy;
    char *subset;
    uint32_t *lost; /* ascending */
    size_t n_lost;
    fy_holders **whole_tables; /* [n_holders] as they were before ranks left, or NULL */
    fy_hash128 digest;
    uint64_t seed_choice; /* of who sends to whom under the seed rule, in no order */
    uint64_t *first_task; /* [n_ranks + 1]: the ids of a destination rank's moves */
    uint64_t *in_bytes;   /* [n_ranks] */
    uint64_t *out_bytes;
    uint64_t *local_bytes;
    uint64_t *home_bytes; /* what a rank wants and has, whether or not it takes it from itself */
    /* The routes on which a rank receives: by the tables of holders that have it, then by table. */
    size_t *rank_table_begin; /* [n_ranks + 1] */
    uint32_t *rank_tables;
    size_t *table_route_begin; /* [n_holders + 1] */
    uint32_t *table_routes;    /* ascending within a table */
    /* The same for the routes on which the ranks of a table send. */
    size_t *table_source_begin; /* [n_holders + 1] */
    uint32_t *table_sources;
    bool has_odd_bytes; /* see plan/cut.h */
    bool *cut_legs; /* [the legs] where boxes of memory cut moves: see plan/cut.h; NULL: nowhere */
    unsigned char
        *used[2];      /* of sides in boxes, a bit for each tensor: a leg reads, or writes it */
    double *rank_rate; /* [n_ranks] bytes per second, or 1 without a cluster */
    ferry_plan_totals totals;
    ferry_plan_bound bound;
};

/* Steps of making a plan; each is one file. */
ferry_status fy_plan_note_lost(ferry_plan *plan, const uint32_t *ranks, size_t n_ranks,
                               ferry_error *error);
ferry_status fy_plan_remove_lost(ferry_plan *plan, ferry_error *error);
ferry_status fy_plan_collect_sets(ferry_plan *plan, ferry_error *error);
ferry_status fy_plan_draw_lines(ferry_plan *plan, double level, ferry_error *error);
/* seconds is the bound of the senders, of which rank decides; without a cluster, bytes. */
ferry_status fy_plan_find_bound(ferry_plan *plan, double seconds, uint32_t rank,
                                ferry_error *error);
ferry_status fy_plan_list_receivers(ferry_plan *plan, ferry_error *error);
ferry_status fy_plan_count_moves(ferry_plan *plan, ferry_error *error);
ferry_status fy_plan_make_digest(ferry_plan *plan, ferry_error *error);

/* Common to both inputs: takes problem over (also on failure). */
ferry_status fy_plan_from_problem(fy_problem *problem, const ferry_plan_options *options,
                                  ferry_plan **plan_out, ferry_error *error);

bool fy_plan_has_lost(const ferry_plan *plan, uint32_t rank);

/* That a rank of a destination in boxes has the codes of which it is to make scales. */
ferry_status fy_plan_check_made(const ferry_plan *plan, ferry_error *error);

/* Destination tensors in the plan, as the spec has them. */
ferry_status fy_plan_count_tensors(const ferry_plan *plan, uint64_t *n_out, ferry_error *error);

/* A roster as JSON, for saved plans. */
ferry_status fy_roster_from_json(const json_t *json, const fy_json_place *place,
                                 ferry_roster **roster_out, ferry_error *error);
ferry_status fy_roster_write(const ferry_roster *roster, fy_writer *writer, ferry_error *error);

/* A source placement's table of holders before ranks were lost. */
const fy_holders *fy_plan_whole_table(const ferry_plan *plan, uint32_t placement);

/* The status, and the sentence, of a source cell that is wanted but has no holder. */
ferry_status fy_plan_fail_lost(const ferry_plan *plan, const fy_route *route, uint32_t cell,
                               ferry_error *error);

/* Positions of a line. */
typedef struct fy_span {
    const fy_route *route;
    uint32_t cell;
    uint64_t n_units;
    uint64_t layer;  /* elements of one destination replica of everything */
    uint64_t length; /* of the whole line */
    /* Where destination cells differ in replicas, they come cell by cell, each with its replicas.
     */
    fy_cell_touch *touches;
    uint64_t *begin; /* of each touch, in elements of one unit */
    size_t n_touches;
} fy_span;

ferry_status fy_span_init(const ferry_plan *plan, const fy_route *route, uint32_t cell,
                          fy_span *span, ferry_error *error);
void fy_span_cleanup(fy_span *span);
/* Where the units of a destination slot begin; *volume_out is one unit's, 0 if it wants nothing. */
uint64_t fy_span_begin(const ferry_plan *plan, const fy_span *span, uint32_t slot,
                       uint64_t *volume_out);

/* The unit in which a position lies. */
typedef struct fy_unit_place {
    uint32_t slot;
    uint64_t unit;
    uint64_t begin; /* of the unit, on the line */
    uint64_t volume;
} fy_unit_place;
fy_unit_place fy_span_locate(const ferry_plan *plan, const fy_span *span, uint64_t position);

/* The number of the sender whose stretch contains position. */
static inline uint32_t fy_line_find(const fy_lines *lines, const fy_line *line, uint64_t position)
{
    const uint64_t *end = lines->end + line->first;
    FY_BISECT(uint32_t, low, 0, line->n, middle, end[middle] <= position);
    return low;
}

/* Stretches of ranks that cannot meet save the look-ups of self moves. */
static inline bool fy_route_may_be_local(const fy_routes *routes, const fy_route *route)
{
    const fy_holders *src = route->view->holders, *dst = fy_route_dst_holders(routes, route);
    return src->first_rank <= dst->last_rank && dst->first_rank <= src->last_rank;
}

static inline uint32_t fy_node_of(const fy_cluster *cluster, uint32_t rank)
{
    return rank / cluster->ranks_per_node;
}

/* The reference's choice: who sends a source cell to a destination slot. */
uint32_t fy_seed_sender(const ferry_plan *plan, const fy_route *route, uint32_t cell,
                        uint32_t slot);

/* The extra boxes of a rank's leg. */
uint32_t fy_lines_extra(const fy_lines *lines, uint32_t rank, uint32_t leg);

#endif
