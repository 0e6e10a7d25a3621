/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_PLAN_H
#define FERRY_TOOL_PLAN_H

#include "options.h"

#include <ferry/ferry.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What `ferry plan` was asked for. */
typedef struct plan_request {
    const char *path;
    bool json;
    bool summary;
    bool prove;
    bool has_rank;
    bool has_planning_option;
    bool has_schedule;             /* --schedule or --trace */
    bool has_duplex;               /* --duplex, which must agree with the rule */
    const char *scheduling_option; /* the last that goes with a schedule only; or NULL */
    uint32_t rank;
    const char *save;
    const char *trace;
    const char *html;
    const char *names;         /* a naming, or two; NULL: path is a spec */
    const char *forms[2];      /* with names: --from and --to; NULL: one rank */
    uint32_t first_rank;       /* of the destination */
    const char *naming_option; /* the last that goes with names only; or NULL */
    uint32_t *lost;            /* what planning.lost_ranks points to */
    ferry_plan_options planning;
    ferry_schedule_options scheduling;
} plan_request;

extern const option_row plan_option_rows[];

/* EXIT_DONE, or EXIT_USAGE or EXIT_FAILED after a sentence on stderr. Either way the request is
 * set, and needs its cleanup. */
int plan_parse_arguments(int argc, char **argv, plan_request *request_out);
void plan_request_cleanup(plan_request *request);

/* ferry_spec_load, whose sentence says of a model how it is planned. */
ferry_status plan_load_spec(const char *path, ferry_spec **spec_out, ferry_error *error);

/* A plan that was saved, or that of a spec; a saved one has its own options. */
bool plan_is_saved(const char *path);
ferry_status plan_open(const char *path, const ferry_plan_options *planning, ferry_plan **plan_out,
                       ferry_error *error);

/* With --names: the spec of the model whose config.json is at the request's path. Notes on stderr
 * say what it leaves out, if they are asked for. */
ferry_status plan_name_spec(const plan_request *request, bool with_notes, ferry_spec **spec_out,
                            ferry_error *error);

/* For people, on stdout. EXIT_DONE, or EXIT_FAILED after a sentence on stderr. */
int plan_print_table(const plan_request *request, const ferry_plan *plan);
int plan_print_schedule(const plan_request *request, const ferry_plan *plan,
                        const ferry_schedule *schedule);

/* Replaces the file at path by a trace of the schedule, or leaves it as it was. */
int plan_write_trace(const ferry_schedule *schedule, const char *path);

/* A ferry_write_fn whose context is a FILE. */
int write_stream(void *context, const char *bytes, size_t n_bytes);

#endif
