/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_RESHARD_H
#define FERRY_TOOL_RESHARD_H

#include "options.h"

#include <ferry/checkpoint.h>

#include <stdbool.h>
#include <stdio.h>

/* What `ferry reshard` was asked for. */
typedef struct reshard_request {
    const char *source;
    const char *to;
    const char *out;
    const char *cast; /* as typed; NULL: none */
    const char *onto; /* an earlier result; NULL: none */
    const char *html; /* the file of a report; NULL: none */
    bool dry_run;
    bool resume; /* said, and what is done anyway */
    bool restart;
    uint64_t bytes_per_s; /* 0: as fast as it goes */
    bool json;
    ferry_reshard_options options;
} reshard_request;

extern const option_row reshard_option_rows[];

/* EXIT_DONE, or EXIT_USAGE after a sentence on stderr. */
int reshard_parse_arguments(int argc, char **argv, reshard_request *request_out);

/* What there is to say of one that was done, or would be. */
typedef struct reshard_report {
    const reshard_request *request;
    const ferry_checkpoint *checkpoint; /* the source */
    const ferry_reshard *reshard;
    ferry_checkpoint_totals source;
    ferry_reshard_totals totals;
    ferry_reshard_result result; /* if it was no dry run */
    bool has_begun;              /* to write it */
    bool lacks_room;             /* of a dry run: for all of the result */
    bool has_estimate;
    double estimate; /* seconds, of a dry run */
} reshard_report;

/* On stdout. */
ferry_status reshard_print_table(const reshard_report *report, ferry_error *error);
ferry_status reshard_print_json(const reshard_report *report, ferry_error *error);

/* Replaces the file of --html. */
ferry_status reshard_write_html(const reshard_report *report, ferry_error *error);

/* ---- reshard_where.c ---- */

/* A section of that page: each file of the result, and in which of the source its tensors lie. */
ferry_status reshard_put_where(FILE *file, const ferry_checkpoint *source,
                               const ferry_checkpoint *result, ferry_error *error);

/* ---- reshard_unused.c ---- */

/* Notes on stderr that name rules and stages of a layout file that no tensor of the source follows.
 */
void reshard_note_unused(const reshard_report *report);

/* On stderr, for people: which tensors no built-in rule knows; nothing where there are none. */
void reshard_print_note(const reshard_report *report);

/* The bytes for buffers that these options mean. */
uint64_t reshard_memory_cap(const reshard_request *request);

#endif
