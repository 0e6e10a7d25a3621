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
    bool        is_terminal; /* stderr */
    bool        is_shown;    /* a line stands there */
    bool        is_quiet;    /* what it notes is printed by others */
    bool        has_noted;   /* that it starts anew */
    const char *phase;       /* of the last call */
    double      shown;       /* when the line was last written */
    uint64_t    shown_bytes; /* what was done then */
    double      bytes_per_s; /* lately; 0: not known yet */
} work_watch;

/* Signals are caught until the end. One watch at a time. */
void work_watch_begin(work_watch *watch);

/* A ferry_work_progress_fn; its context is the watch. */
bool work_watch_show(void *watch, const ferry_work_progress *progress);

/* Removes what is shown. Signals do what they did before. */
void work_watch_end(work_watch *watch);

/* Dies of the signal that was caught, if there was one; otherwise returns. */
void work_watch_die(void);

#endif
