/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_PLAN_H
#define FERRY_TOOL_PLAN_H

#include "options.h"

#include <ferry/ferry.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A model by its config.json, in place of a spec. */
typedef struct named_model {
    const char *names;    /* a naming, or two; NULL: there is a spec */
    const char *forms[2]; /* --from and --to; NULL: one rank */
    uint32_t first_rank;  /* of the destination */
    const char *option;   /* the last that goes with names only; or NULL */
} named_model;

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
    named_model model;
    uint32_t *lost; /* what planning.lost_ranks points to */
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

/* A plan that was saved, or that of a spec; a saved one has its own options. who: the command whose
 * notes say what may be a slip, as below; NULL: nobody is told. */
bool plan_is_saved(const char *path);
ferry_status plan_open(const char *who, const char *path, const ferry_plan_options *planning,
                       ferry_plan **plan_out, ferry_error *error);

/* Notes that name the rules and stages of a spec that no tensor follows, and the ranks that have no
 * part in a plan. */
ferry_status plan_note_unused(const char *who, const ferry_spec *spec, ferry_error *error);
ferry_status plan_note_idle(const char *who, const ferry_plan *plan, ferry_error *error);

/* Options of a named_model, for the tables of commands that take one: NAMES_ROWS. */
enum { NAMES_OPT_NAMES = 3072, NAMES_OPT_FROM, NAMES_OPT_TO, NAMES_OPT_FIRST_RANK };

/* clang-format off */
#define NAMES_ROWS                                                                                \
    OPTION_HEADING("A model by its config.json"),                                                 \
    OPTION_NOTE(                                                                                  \
        "  With --names there is no SPEC but the config.json of a model, or its folder. The names, " \
        "shapes\n"                                                                                \
        "  and cuts of its tensors follow from that, in namings such as hf, transformers, megatron " \
        "and\n"                                                                                   \
        "  vllm (docs/formats.md, ferry.names/1):\n"),                                            \
    OPTION("names", "NAMES", NAMES_OPT_NAMES,                                                     \
           "what the source calls its tensors, and the destination: megatron:vllm; one stands for " \
           "both"),                                                                               \
    OPTION("from", "FORM", NAMES_OPT_FROM,                                                        \
           "how the source is cut: a short form such as tp=4,pp=2; default one rank"),            \
    OPTION("to", "FORM", NAMES_OPT_TO, "the same of the destination"),                            \
    OPTION("first-rank", "R", NAMES_OPT_FIRST_RANK,                                               \
           "where the ranks of the destination begin; default 0")
/* clang-format on */

/* Reads one of them; and what they say together. As the functions of arguments.h. */
bool names_has_option(int option);
int names_apply_option(const char *who, int option, named_model *model);
int names_check_together(const char *who, const named_model *model);

/* The spec of the model whose config.json is at path. who: the command whose notes on stderr say
 * what it leaves out; NULL: nobody is told. */
ferry_status plan_name_spec(const char *who, const named_model *model, const char *path,
                            ferry_spec **spec_out, ferry_error *error);

/* For people, on stdout. EXIT_DONE, or EXIT_FAILED after a sentence on stderr. */
int plan_print_table(const plan_request *request, const ferry_plan *plan);
int plan_print_schedule(const plan_request *request, const ferry_plan *plan,
                        const ferry_schedule *schedule);

/* Replaces the file at path by a trace of the schedule, or leaves it as it was. */
int plan_write_trace(const ferry_schedule *schedule, const char *path);

/* A ferry_write_fn whose context is a FILE. */
int write_stream(void *context, const char *bytes, size_t n_bytes);

#endif
