/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "work_progress.h"

#include "plan.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const double SHOW_SECONDS = 0.2;
/* A new rate counts this much against those before it: it follows within a second. */
static const double NEW_WEIGHT = 0.3;

static const int caught_signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_CAUGHT = sizeof caught_signals / sizeof caught_signals[0] };

static struct sigaction      earlier[N_CAUGHT];
static volatile sig_atomic_t caught; /* the first signal, or 0 */

static void catch_signal(int number)
{
    if (caught == 0) {
        caught = number;
    }
}

void work_watch_begin(work_watch *watch)
{
    struct sigaction action = {.sa_handler = catch_signal, .sa_flags = SA_RESTART};
    *watch                  = (work_watch){.is_terminal = isatty(STDERR_FILENO) != 0};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < N_CAUGHT; i++) {
        sigaction(caught_signals[i], NULL, &earlier[i]);
        if (earlier[i].sa_handler != SIG_IGN) { /* as under nohup */
            sigaction(caught_signals[i], &action, NULL);
        }
    }
}

static void clear_line(work_watch *w)
{
    if (w->is_shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        w->is_shown = false;
    }
}

void work_watch_end(work_watch *watch)
{
    clear_line(watch);
    for (int i = 0; i < N_CAUGHT; i++) {
        sigaction(caught_signals[i], &earlier[i], NULL);
    }
}

void work_watch_die(void)
{
    if (caught != 0) {
        sigset_t only;
        signal(caught, SIG_DFL);
        sigemptyset(&only);
        sigaddset(&only, caught);
        sigprocmask(SIG_UNBLOCK, &only, NULL);
        raise(caught);
    }
}

/* Bytes that were there at the begin of a phase, as those of an earlier run, make no rate. */
static void begin_phase(work_watch *w, const ferry_work_progress *p)
{
    w->phase       = p->phase;
    w->shown       = p->seconds;
    w->shown_bytes = p->done_bytes;
    w->bytes_per_s = 0;
}

static void measure(work_watch *w, const ferry_work_progress *p)
{
    double seconds = p->seconds - w->shown;
    if (seconds > 0 && p->done_bytes >= w->shown_bytes) {
        double rate = (double)(p->done_bytes - w->shown_bytes) / seconds;
        w->bytes_per_s =
            w->bytes_per_s > 0 ? w->bytes_per_s + NEW_WEIGHT * (rate - w->bytes_per_s) : rate;
    }
    w->shown       = p->seconds;
    w->shown_bytes = p->done_bytes;
}

static void print_remaining(double seconds)
{
    if (seconds < 60) {
        fprintf(stderr, ", %.0f s left", seconds);
    } else if (seconds < 100.0 * 3600) {
        unsigned minutes = (unsigned)(seconds / 60);
        fprintf(stderr, ", %u:%02u:%02u left", minutes / 60, minutes % 60, (unsigned)seconds % 60);
    }
}

static void print_line(work_watch *w, const ferry_work_progress *p)
{
    char text[32];
    fprintf(stderr, "\r\033[K%s", p->phase);
    if (p->total_bytes > 0) {
        uint64_t done = p->done_bytes < p->total_bytes ? p->done_bytes : p->total_bytes;
        fprintf(stderr, ": %.0f%% of %s", 100.0 * (double)done / (double)p->total_bytes,
                format_bytes((double)p->total_bytes, text));
        if (w->bytes_per_s > 0 && done < p->total_bytes) {
            fprintf(stderr, ", %.2f GB/s", w->bytes_per_s / 1e9);
            print_remaining((double)(p->total_bytes - done) / w->bytes_per_s);
        }
    }
    fflush(stderr);
    w->is_shown = true;
}

/* At once: hours of work may follow that somebody would rather stop. */
static void note_anew(work_watch *w, const ferry_work_progress *p)
{
    if (p->anew != NULL && !w->has_noted && !w->is_quiet) {
        clear_line(w);
        fprintf(stderr, "ferry reshard: note: starting anew, not where an earlier run ended: %s\n",
                p->anew);
        w->has_noted = true;
    }
}

bool work_watch_show(void *watch, const ferry_work_progress *progress)
{
    work_watch *w = watch;
    note_anew(w, progress);
    if (w->is_terminal) {
        bool is_new = w->phase == NULL || strcmp(w->phase, progress->phase) != 0;
        if (is_new) {
            begin_phase(w, progress);
            print_line(w, progress);
        } else if (progress->seconds >= w->shown + SHOW_SECONDS) {
            measure(w, progress);
            print_line(w, progress);
        }
    }
    return caught == 0;
}
