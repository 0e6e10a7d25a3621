/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_WORK_PROGRESS_H
#define FERRY_TOOL_WORK_PROGRESS_H

#include <ferry/checkpoint.h>

#include <stdbool.h>
#include <stdint.h>

/*
 * What long work shows while it lasts, and how it ends when SIGINT, SIGTERM or SIGHUP asks for
 * that: the work is told to stop, cleans up, and the command then dies of that same signal. Further
 * signals meanwhile change nothing.
 */
typedef struct work_watch {
    const char *name;  /* of the command, for what it notes */
    bool is_json;      /* what it would note is in the output */
    bool has_noted;    /* where it begins */
    const char *phase; /* of the last call */
    double phase_began;
    uint64_t phase_bytes; /* that were done then */
    double shown;         /* when the line was last written */
    uint64_t shown_bytes; /* what was done then */
    double bytes_per_s;   /* lately; 0: not known yet */
    double seconds;       /* of the last call, and what was done then */
    uint64_t done_bytes;
} work_watch;

/* Signals are caught until the end. One watch at a time. */
void work_watch_begin(work_watch *watch, const char *name);

/* A ferry_work_progress_fn; its context is the watch. */
bool work_watch_show(void *watch, const ferry_work_progress *progress);

/* Removes what is shown. Signals do what they did before. */
void work_watch_end(work_watch *watch);

/* Dies of the signal that was caught, if there was one; otherwise returns. */
void work_watch_die(void);

/* What a line shows: a bar stands between the texts where the end is known. */
typedef struct work_line {
    bool has_bar;
    double done; /* 0 to 1 */
    char before[64];
    char behind[96];
} work_line;

/* Takes in what is told; whether a line is to be shown now, which *line_out is then. */
bool work_watch_take(work_watch *watch, const ferry_work_progress *progress, work_line *line_out);

/* Opens a checkpoint under a watch of its own; dies of a signal that asks for the end. */
ferry_status work_open_checkpoint(const char *name, const char *path,
                                  ferry_checkpoint **checkpoint_out, ferry_error *error);

#endif
