/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_PLAN_H
#define FERRY_TOOL_PLAN_H

#include <ferry/ferry.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What `ferry plan` was asked for. */
typedef struct plan_request {
    const char            *path;
    bool                   json;
    bool                   summary;
    bool                   prove;
    bool                   has_rank;
    bool                   has_planning_option;
    bool                   has_schedule;      /* --schedule or --trace */
    bool                   has_duplex;        /* --duplex, which must agree with the rule */
    const char            *scheduling_option; /* the last that goes with a schedule only; or NULL */
    uint32_t               rank;
    const char            *save;
    const char            *trace;
    ferry_plan_options     planning;
    ferry_schedule_options scheduling;
} plan_request;

/* EXIT_DONE, or EXIT_USAGE after a sentence on stderr. */
int plan_parse_arguments(int argc, char **argv, plan_request *request_out);

/* "1.25 GiB"; exact below a KiB. Returns text. */
const char *format_bytes(double bytes, char text[32]);

/* For people, on stdout. EXIT_DONE, or EXIT_FAILED after a sentence on stderr. */
int plan_print_table(const plan_request *request, const ferry_plan *plan);
int plan_print_schedule(const plan_request *request, const ferry_plan *plan,
                        const ferry_schedule *schedule);

/* Replaces the file at path by a trace of the schedule, or leaves it as it was. */
int plan_write_trace(const ferry_schedule *schedule, const char *path);

/* A ferry_write_fn whose context is a FILE. */
int write_stream(void *context, const char *bytes, size_t n_bytes);

#endif
