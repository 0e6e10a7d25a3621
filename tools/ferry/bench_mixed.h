/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_BENCH_MIXED_H
#define FERRY_TOOL_BENCH_MIXED_H

#include <ferry/ferry.h>
#include <ferry/mixed_comm.h>

#include <getopt.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What `ferry bench mixed` and `ferry tune` have in common: ranks with a handle between them. */

/* What was asked for: of a command that has no such option, what it takes without it. */
typedef struct mixed_request {
    const char *command; /* "bench" or "tune", for sentences */
    bool json;
    bool join;        /* be one rank of a world that somebody else has started */
    bool started;     /* the same, and that somebody is this command */
    uint32_t n_ranks; /* 0: not said */
    uint32_t n_nodes; /* 0: not said */
    const char *transport;
    uint32_t local_tp, local_dp, inter_tp, inter_dp; /* 0: not said */
    uint32_t dtype;
    uint32_t grid, max_block, min_block, min_steps; /* 0: not said */
    bool deterministic;
    uint32_t memory;          /* ferry_memory_kind: of devices, the handle is one's */
    const char *mixed_option; /* the last that goes with mixed collectives only; or NULL */

    /* Of ferry bench mixed: */
    uint32_t op;   /* or MIXED_ALL */
    uint32_t mode; /* or MIXED_ALL */
    bool check;
    bool counts;
    bool autotune;
    const char *tune_file;
    bool predict;
    const char *costs;      /* predictions by this file, and no ranks */
    const char *save_costs; /* where those that were fitted go */
    uint64_t least, most;   /* bytes of the local piece; 0: not said */
    uint64_t step_bytes;    /* from one size to the next; 0: by the factor */
    uint32_t step_factor;   /* 0: not said */
    uint32_t n_warmup;      /* calls before those that are timed */
    uint32_t n_iterations;  /* that are timed; 0: as many as fit into the seconds */
    uint32_t order;         /* mixed_order of calls on devices; 0: not said */
    double seconds;         /* of each line */

    /* Of ferry tune: */
    uint64_t max_bytes; /* 0: the library's own limit */
    const char *out;
    const char *show;
} mixed_request;

#define MIXED_ALL UINT32_MAX

/* What calls on devices keep: the order of a stream, which they are put on, or the host's. */
enum mixed_order { MIXED_ORDER_STREAM = 1, MIXED_ORDER_HOST = 2 };

/* ---- bench_mixed_options.c ---- */

/* Numbers of long options from here on, and no others, are for mixed_apply_option. */
enum {
    MIXED_OPT_NODES = 1024,
    MIXED_OPT_LOCAL_TP,
    MIXED_OPT_LOCAL_DP,
    MIXED_OPT_INTER_TP,
    MIXED_OPT_INTER_DP,
    MIXED_OPT_DTYPE,
    MIXED_OPT_GRID,
    MIXED_OPT_MAX_BLOCK,
    MIXED_OPT_MIN_BLOCK,
    MIXED_OPT_MIN_STEPS,
    MIXED_OPT_DETERMINISTIC,
    MIXED_OPT_STARTED, /* for ranks that the command has started itself */
    MIXED_OPT_OP,      /* from here on: of ferry bench */
    MIXED_OPT_MODE,
    MIXED_OPT_CHECK,
    MIXED_OPT_COUNTS,
    MIXED_OPT_AUTOTUNE,
    MIXED_OPT_TUNE_FILE,
    MIXED_OPT_MIN_BYTES,
    MIXED_OPT_MAX_BYTES,
    MIXED_OPT_STEP_BYTES,
    MIXED_OPT_STEP_FACTOR,
    MIXED_OPT_WARMUP,
    MIXED_OPT_ITERATIONS,
    MIXED_OPT_PREDICT,
    MIXED_OPT_COSTS,
    MIXED_OPT_SAVE_COSTS,
    MIXED_OPT_ORDER
};

enum { MIXED_WARMUP = 4 }; /* where nothing is said */

/* EXIT_DONE, or EXIT_USAGE after a sentence on stderr. */
int mixed_apply_option(int option, mixed_request *r);

/*
 * What options say together; fills in ranks and nodes where they were not said: as many as the
 * sizes ask for, else two ranks. Nodes stay 0 where nothing asks for several.
 */
int mixed_check_together(mixed_request *r);

/* ---- bench_mixed_ranks.c ---- */

/* Is one rank; without a world it joins the one that the environment describes. An exit status. */
typedef int (*mixed_rank_fn)(const mixed_request *r, ferry_world *world);

/*
 * Runs `rank` as the rank that this process is, or starts the ranks: threads where the transport is
 * inproc, else processes, which are this program with the same arguments. An exit status.
 */
int mixed_start(const mixed_request *r, int argc, char **argv, mixed_rank_fn rank);

typedef struct mixed_rank {
    const mixed_request *request;
    ferry_world *world;
    ferry_mixed_comm *comm;
    ferry_mixed_comm_info info;
    ferry_device device; /* that its tensors lie on; or the host */
    uint32_t rank;
    uint32_t n_ranks;
    cpu_set_t processors; /* that this process might use, before it was bound here */
    char nodes[16];       /* for the world's options; "" where nothing was said */
    bool is_common;       /* all ranks fail, and with one sentence */
} mixed_rank;

/* Joins the world unless one is given, which is owned from now on, and makes the handle. */
ferry_status mixed_open(const mixed_request *r, ferry_world *world, mixed_rank *rank_out,
                        ferry_error *error);

/* What the request says of a handle. */
ferry_mixed_comm_options mixed_options_of(const mixed_request *r);

/* One rank says why, all leave; the exit status. */
int mixed_close(mixed_rank *rank, ferry_status status, const ferry_error *error);

/* Writes a sentence to the error and returns the status. */
ferry_status mixed_fail(ferry_error *error, ferry_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Lines about ranks, type and engines, each after `before`; and as members of a JSON object. */
void mixed_print_handle(const ferry_mixed_comm_info *info, const char *before);
void mixed_print_handle_json(const ferry_mixed_comm_info *info);

/* Writes the type's name to text, which it returns. */
const char *mixed_dtype_text(uint32_t dtype, char text[FERRY_DTYPE_TEXT_BYTES]);

/* ---- bench_mixed_report.c ---- */

typedef struct mixed_costs mixed_costs; /* bench_mixed_predict.h */

/* What ranks did in one call: bytes of all ranks, waits of the rank that waited most. */
typedef struct mixed_work {
    uint64_t written, read, between, waits;
    uint64_t device_elements; /* of all ranks, that devices copied or summed */
} mixed_work;

/* Where the output lies: in memory of its own, or in that of the input. */
typedef enum mixed_form { MIXED_OUT_OF_PLACE = 0, MIXED_IN_PLACE = 1 } mixed_form;
enum { MIXED_N_FORMS = 2 };

/* What a rank says of its device. */
typedef struct mixed_device {
    int32_t index;
    char summary[256];
} mixed_device;

/* What was found of one form. */
typedef struct mixed_figures {
    uint64_t n_calls;      /* that were timed */
    double seconds;        /* of a call: the median of the rank where it is longest */
    double slow;           /* what 99 of 100 are below, on that rank */
    double least, most;    /* the shortest and the longest call of any rank */
    double rate, bus_rate; /* bytes a second */
    uint64_t n_wrong;      /* elements of all ranks */
    uint32_t n_differ;     /* ranks whose bits are not those of others that have the same */
} mixed_figures;

typedef struct mixed_line {
    uint32_t op, mode;
    uint64_t bytes, count; /* of the local piece */
    mixed_figures forms[MIXED_N_FORMS];
    mixed_work work;  /* out of place */
    uint32_t n_lanes; /* with something to do, of rank 0; 0: not known */
    double predicted; /* seconds out of place; 0: nothing was */
    bool is_fitted;   /* the costs were fitted to calls of this size */
} mixed_line;

typedef struct mixed_report {
    const mixed_request *request;
    const mixed_rank *rank;
    ferry_machine machine;
    mixed_device *devices;    /* of each rank; NULL: tensors lie on the host */
    uint32_t order;           /* mixed_order of calls on them */
    uint32_t op;              /* of the last line */
    uint64_t n_rates;         /* that were printed, of both forms */
    double bus_sum;           /* of their rates on the bus */
    uint64_t n_wrong;         /* in all lines */
    const mixed_costs *costs; /* of predictions; NULL: there are none */
    double *off; /* how far each prediction of a size that was not fitted was off, as a share */
    size_t n_off, n_fitted;
} mixed_report;

/* On stdout, line by line. */
void mixed_report_begin(const mixed_report *report);
void mixed_report_line(mixed_report *report, const mixed_line *line);
void mixed_report_end(const mixed_report *report);

/* ---- bench_mixed.c ---- */

/* The size of the line behind this one. */
uint64_t mixed_next_size(const mixed_request *r, uint64_t bytes);
/* Leaves the one operation or mode that was asked for. DEFAULT is a mode, though in no list. */
ferry_status mixed_choose(uint32_t *list, size_t *n, uint32_t wanted, bool is_mode,
                          ferry_error *error);
/* As a rank. */
int bench_mixed(const mixed_request *r, ferry_world *world);

#endif
