/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_RUN_H
#define FERRY_TOOL_RUN_H

#include "options.h"

#include <ferry/ferry.h>
#include <ferry/service.h>
#include <ferry/shard.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* After which runs every byte is compared. */
typedef enum run_verify {
    RUN_VERIFY_ENDS = 0,
    RUN_VERIFY_EACH = 1,
    RUN_VERIFY_NONE = 2
} run_verify;

/* Where shards lie. */
typedef enum run_memory {
    RUN_MEMORY_FERRY = 0,  /* the host's, from ferry_memory_alloc */
    RUN_MEMORY_MALLOC = 1, /* the host's, as a program has it */
    RUN_MEMORY_CUDA = 2,
    RUN_MEMORY_FAR = 3,
    N_RUN_MEMORIES = 4
} run_memory;

/* What `ferry run` was asked for. */
typedef struct run_request {
    const char *path;
    bool json;
    bool join;    /* be one rank of a world that somebody else has started */
    bool started; /* the same, and that somebody is another `ferry run` */
    bool has_planning_option;
    uint32_t memory;     /* a run_memory */
    uint32_t iterations; /* those that are timed; one more goes before */
    uint32_t verify;     /* a run_verify */
    double deadline;     /* seconds; 0: the default */
    const char *trace;
    const char *html;
    const char *paths; /* as typed; NULL: not said */
    ferry_plan_options planning;
    ferry_service_options service;
} run_request;

extern const option_row run_option_rows[];

/* EXIT_DONE, or EXIT_USAGE after a sentence on stderr. */
int run_parse_arguments(int argc, char **argv, run_request *request_out);

double run_now(void);

/*
 * Does what it takes that a rank's work is, and prints the result if it is rank 0. Without a world
 * it joins the one that the environment describes, else it owns the one that it is given; plan may
 * be NULL: then it makes its own. An exit status, after a sentence on stderr by one rank of the
 * world if it is not EXIT_DONE.
 */
int run_rank(const run_request *request, ferry_world *world, const ferry_plan *plan);

/* ---- run_shards.c: what a rank holds ---- */

typedef struct run_shards {
    const ferry_plan *plan;
    ferry_side_role side;
    uint32_t rank;
    size_t n;
    uint64_t tensor_bytes;
    uint64_t memory_bytes; /* with what alignment adds */
    uint64_t *offsets;     /* of each tensor in the memory, in order of the visit */
    const char **names;    /* live as long as the plan */
    uint64_t *bytes;
} run_shards;

/* Of what a rank holds on a side, without memory for it. */
ferry_status run_shards_open(const ferry_plan *plan, ferry_side_role side, uint32_t rank,
                             run_shards *shards_out, ferry_error *error);
void run_shards_close(run_shards *shards);

/* Bytes that a rank needs for its shards, and what its staging may grow to. */
ferry_status run_needed_bytes(const run_request *request, const ferry_plan *plan, uint32_t rank,
                              uint64_t *bytes_out, ferry_error *error);
/* FERRY_ERR_NO_MEMORY with the numbers if so many ranks of one machine need more than it has. */
ferry_status run_check_room(uint64_t needed, uint64_t room, uint32_t n_ranks, ferry_error *error);

/* Told the bytes that are done, now and then. */
typedef void (*run_progress_fn)(void *context, uint64_t bytes_done, uint64_t bytes_total);

/*
 * Fills, poisons or checks all of them. memories has the begin of each tensor. A check that finds a
 * wrong byte returns FERRY_ERR_DIGEST with a sentence.
 */
ferry_status run_shards_work(const run_shards *shards, uint32_t work, char *const *memories,
                             run_progress_fn progress, void *context, ferry_error *error);

/* ---- run_memory.c: where it holds them ---- */

typedef struct run_arena {
    ferry_buffer buffer;
    bool is_plain;
} run_arena;

/* The word of --memory, and what a table says of it. */
const char *run_memory_name(uint32_t memory);
const char *run_memory_title(uint32_t memory);
/* Whether it is a device's: only ferry's copies reach it. */
bool run_memory_is_device(uint32_t memory);

/*
 * Every page is there when it returns. Ranks of a node take the devices of a kind in turn, by their
 * local rank.
 */
ferry_status run_arena_open(ferry_transport *transport, uint32_t memory, uint32_t local_rank,
                            uint64_t bytes, run_arena *arena_out, ferry_error *error);
void run_arena_close(run_arena *arena);

/* All bytes of an arena, from memory of the host, or back. */
ferry_status run_arena_write(const run_arena *arena, const void *from, uint64_t bytes,
                             ferry_error *error);
ferry_status run_arena_read(const run_arena *arena, void *to, uint64_t bytes, ferry_error *error);

/* ---- run_results.c: what ranks tell rank 0 ---- */

/* One rank in one run. */
typedef struct run_sample {
    ferry_service_statistics statistics;
} run_sample;

/* One rank, whatever the run. */
typedef struct run_rank_result {
    uint32_t rank;
    uint32_t node;
    uint64_t source_shards, source_bytes;
    uint64_t destination_shards, destination_bytes;
    uint64_t verified_shards, verified_bytes; /* in each check */
    double begin;                             /* of the last run, on this machine's clock */
    double copy_gbytes_per_s;                 /* the limit, of the first rank of each node */
} run_rank_result;

typedef struct run_peer {
    uint32_t rank;
    uint32_t peer;
    uint32_t paths;
    char engine[68];
    uint64_t bytes_out;
    uint64_t bytes_in;
} run_peer;

/* What a rank gives, and on rank 0 what all have given, in order of ranks. */
typedef struct run_results {
    uint32_t n_ranks;
    uint32_t n_nodes;
    uint32_t n_runs; /* the first is not timed */
    run_rank_result *ranks;
    run_sample *samples; /* n_runs of each rank */
    run_peer *peers;
    size_t n_peers;
    ferry_span *spans;
    size_t *n_spans;       /* of each rank */
    ferry_machine machine; /* of rank 0 */
} run_results;

/* Collective: rank 0 gets results, which it frees; the others nothing. */
ferry_status run_results_gather(ferry_world *world, const run_results *own, run_results *all_out,
                                ferry_error *error);
void run_results_free(run_results *results);

/* ---- what rank 0 makes of them ---- */

enum { RUN_PACK, RUN_WIRE, RUN_UNPACK, RUN_CHECKSUM, RUN_WAIT, RUN_WHOLE, RUN_PHASES };

/* The word of ferry.run/1. */
const char *run_phase_name(uint32_t phase);
double run_phase_seconds(const run_sample *sample, uint32_t phase);

typedef struct run_phase {
    double least, median, most; /* over ranks */
    uint32_t slowest;           /* the rank of the most */
} run_phase;

typedef struct run_summary {
    ferry_plan_totals totals;
    ferry_plan_bound bound;
    ferry_plan_statistics plan;
    uint64_t bytes; /* moved and local */
    uint32_t median_run;
    double least, median, most; /* seconds of the slowest rank, over timed runs */
    double bytes_per_s;
    double copy_bytes_per_s;      /* the machines' limit; 0: not measured */
    run_phase phases[RUN_PHASES]; /* of the median run */
    uint64_t staging_bytes;       /* the most of a rank */
    uint64_t path_bytes[5];       /* in order of the flags; of the median run */
    uint64_t relayed_bytes;
    uint64_t device_slot_bytes; /* of those staged, what was never in memory of the host */
    uint64_t later_work;        /* plannings and the like after the first run */
    uint64_t source_bytes, destination_bytes;
    uint32_t source_ranks, destination_ranks;
    uint64_t verified_shards, verified_bytes;
} run_summary;

ferry_status run_summarize(const ferry_plan *plan, const run_results *results,
                           run_summary *summary_out, ferry_error *error);
/* The slowest rank's seconds. */
double run_seconds(const run_results *results, uint32_t run);
/* How many times every byte was compared. */
uint32_t run_check_count(const run_request *request);

void run_print_table(const run_request *request, const run_results *results,
                     const run_summary *summary);
void run_print_json(const run_request *request, const ferry_plan *plan, const run_results *results,
                    const run_summary *summary);

/* Replaces the file of --trace: the plan's schedule and the last run. */
ferry_status run_write_trace(const run_request *request, const ferry_plan *plan,
                             const run_results *results, const run_summary *summary,
                             ferry_error *error);

/* Replaces the file of --html: what was measured, beside what was predicted. */
ferry_status run_write_html(const run_request *request, const ferry_plan *plan,
                            const run_results *results, const run_summary *summary,
                            ferry_error *error);

#endif
