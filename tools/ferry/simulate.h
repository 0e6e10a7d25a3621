/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_SIMULATE_H
#define FERRY_TOOL_SIMULATE_H

#include "options.h"
#include "plan.h"

#include <ferry/ferry.h>

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How the time of a case is found. */
typedef enum simulate_method {
    SIMULATE_AUTO = 0,     /* the schedule where it is made soon, else classes */
    SIMULATE_SCHEDULE = 1, /* the schedule's makespan */
    SIMULATE_CLASSES = 2   /* ports, of one rank for all that are alike */
} simulate_method;

enum { SIMULATE_MOST_LISTS = 8, SIMULATE_MOST_VALUES = 64, SIMULATE_MOST_CASES = 4096 };

/* An axis of a side's mesh, and the sizes that it is given. */
typedef struct simulate_sweep {
    bool is_source;
    char axis[64];
    uint32_t sizes[SIMULATE_MOST_VALUES];
    size_t n_sizes;
} simulate_sweep;

/* A node that is slower, or one that is gone. */
typedef struct simulate_fault {
    const char *text; /* as typed; NULL: nothing is wrong */
    uint32_t node;
    double factor;   /* of the node's rate; 0: it is gone */
    bool is_network; /* only what crosses its border is slower */
} simulate_fault;

typedef struct simulate_request {
    const char *path; /* of a spec, or of the config.json of a model */
    named_model model;
    bool json;
    const char *html;
    const char *clusters[SIMULATE_MOST_LISTS];
    size_t n_clusters;
    simulate_sweep sweeps[SIMULATE_MOST_LISTS];
    size_t n_sweeps;
    simulate_fault faults[SIMULATE_MOST_LISTS];
    size_t n_faults;
    const char *fit; /* the axis that keeps the number of ranks; NULL: none */
    bool relabel;
    uint32_t method; /* a simulate_method */
    uint64_t slot_bytes;
    bool no_relays;
} simulate_request;

extern const option_row simulate_option_rows[];

/* EXIT_DONE, or EXIT_USAGE after a sentence on stderr. */
int simulate_parse_arguments(int argc, char **argv, simulate_request *request_out);

/* One layout on one cluster, and what is predicted for it. */
typedef struct simulate_case {
    char layout[160];  /* "tp=4", or "as given" */
    char cluster[64];  /* its name */
    const char *fault; /* NULL: none */
    char order[96];    /* of the destination's axes, slowest first; "": as given */
    bool is_failed;    /* there is no prediction, and error says why */
    bool lacks_node;   /* the fault's node is none that a rank is on */
    char error[FERRY_ERROR_BYTES];
    uint32_t n_ranks;
    uint64_t moved_bytes, local_bytes;
    double bound, seconds;
    bool is_scheduled; /* else by classes */
    uint32_t n_classes;
    const char *relays;  /* by classes: "trees", "chains", "not counted"; NULL: none */
    uint32_t limit_rank; /* whose port takes longest */
    const char *limit;   /* a bound reason's word, or "node_copies" */
} simulate_case;

typedef struct simulate_cases {
    simulate_case *at;
    size_t n, capacity;
} simulate_cases;

/* A node with rates of its own, in which a fault is counted already. */
typedef struct simulate_node {
    uint32_t number;
    double rank_rate, node_rate;
} simulate_node;

/* Rates and latency as a cluster file has them: what the plan cannot be asked for. */
typedef struct simulate_rates {
    uint32_t ranks_per_node;
    double rank_rate, node_rate, latency;
    const simulate_node *nodes; /* ascending */
    size_t n_nodes;
    double copy_rate;   /* of all CPUs of a node together; 0: devices copy, or nothing limits it */
    double row_seconds; /* that a byte in short rows takes beside that */
    double piece_seconds; /* and each piece of a tensor that is copied */
    simulate_fault fault;
} simulate_rates;

/* ---- simulate_spec.c: from the spec to one of each case ---- */

/* Predicts all cases of the request, in order: layouts, then clusters, then faults. */
ferry_status simulate_run(const simulate_request *request, simulate_cases *cases_out,
                          ferry_error *error);

/* ---- simulate_named.c: a model by its config.json ---- */

/* An object with the meshes of --from and --to in the places where a spec has them. */
ferry_status simulate_name_meshes(const simulate_request *request, json_t **root_out,
                                  ferry_error *error);
/* The spec of such meshes; NULL: of those that were asked for. who: as of plan_name_spec. */
ferry_status simulate_name_spec(const simulate_request *request, const char *who,
                                const json_t *meshes, json_t **root_out, ferry_error *error);
/* A spec as JSON, its model written out. */
ferry_status simulate_json_of(const ferry_spec *spec, json_t **root_out, ferry_error *error);

/* ---- simulate_clusters.c ---- */

/* The text of a file that the command has in itself. */
typedef struct simulate_text {
    const char *name; /* NULL: the table ends here */
    const char *text;
    size_t length;
} simulate_text;

extern const simulate_text simulate_clusters[];

/* A ferry.cluster/1 as it is written: a file, or one of those. */
ferry_status simulate_load_cluster(const char *name, json_t **json_out, ferry_error *error);

/* ---- simulate_predict.c ---- */

/* Fills in what is predicted; what goes wrong with the case is the case's. */
void simulate_predict(const simulate_request *request, const ferry_spec *spec,
                      const simulate_rates *rates, simulate_case *found);

/* Takes over where this takes longer. limit is of one port of that rank. */
void simulate_consider(simulate_case *found, double seconds, uint32_t rank, const char *limit);
/* With the fault, if there is one. */
double simulate_rank_rate(const simulate_rates *rates, uint32_t rank);
double simulate_node_rate(const simulate_rates *rates, uint32_t number);

/* ---- simulate_classes.c ---- */

ferry_status simulate_by_classes(const simulate_request *request, const ferry_plan *plan,
                                 const simulate_rates *rates, const ferry_plan_bound *bound,
                                 simulate_case *found, ferry_error *error);

/* ---- simulate_relays.c ---- */

/* What senders send to several receivers, sender by sender. */
typedef struct simulate_fans simulate_fans;

/* Of what a sender sends if each receiver passes it on: all of it, and what leaves its node. */
typedef struct simulate_sent_once {
    double bytes, leaving;
} simulate_sent_once;

ferry_status simulate_open_fans(uint32_t n_ranks, uint32_t ranks_per_node, simulate_fans **fans_out,
                                ferry_error *error);
void simulate_close_fans(simulate_fans *fans); /* NULL is allowed */
/* A move of the sender at hand, and the end of it, who counts for all that are alike. */
ferry_status simulate_add_to_fans(simulate_fans *fans, const ferry_move *move, ferry_error *error);
simulate_sent_once simulate_end_sender(simulate_fans *fans, uint32_t n_alike);
/* The most receivers of one content; 1: nothing can be relayed. */
uint32_t simulate_most_receivers(const simulate_fans *fans);
/* Of the bytes that enter nodes, the share that does if none enters a node twice. */
double simulate_share_entering(const simulate_fans *fans);
/* How many could pass on to how many, all counted. */
double simulate_count_links(const simulate_fans *fans);
/* When a receiver that is busy for so long has all, if each hop to it takes as long as this. */
double simulate_end_of_fans(const simulate_fans *fans, double busy, double hop, bool chain);

/* ---- simulate_rows.c ---- */

/*
 * Of what is copied: pieces of tensors; bytes that are read out of rows, the fewer the longer rows
 * are; and what a cast goes over once more: it is written to a slot and read there, half of what is
 * read before and half of what is written in the end.
 */
typedef struct simulate_rows_copied {
    double pieces, row_bytes, cast_bytes;
} simulate_rows_copied;

/* Of what comes to a rank and stays there, and of what leaves. */
typedef struct simulate_row_counts {
    simulate_rows_copied in, out;
} simulate_row_counts;

typedef struct simulate_rows simulate_rows;

ferry_status simulate_open_rows(const ferry_plan *plan, simulate_rows **rows_out,
                                ferry_error *error);
ferry_status simulate_count_rows(simulate_rows *rows, uint32_t rank, simulate_row_counts *out);
void simulate_close_rows(simulate_rows *rows); /* NULL is allowed */

/* ---- simulate_print.c ---- */

void simulate_print_table(const simulate_request *request, const simulate_cases *cases);
void simulate_print_json(const simulate_request *request, const simulate_cases *cases);
ferry_status simulate_write_html(const simulate_request *request, const simulate_cases *cases,
                                 ferry_error *error);

#endif
