/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "work_progress.h"

#include "terminal.h"
#include "units.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const double SHOW_SECONDS = 0.2;
/* A new rate counts this much against those before it: it follows within a second. */
static const double NEW_WEIGHT = 0.3;

static const int caught_signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_CAUGHT = sizeof caught_signals / sizeof caught_signals[0] };

static struct sigaction earlier[N_CAUGHT];
static volatile sig_atomic_t caught; /* the first signal, or 0 */

static void catch_signal(int number)
{
    if (caught == 0) {
        caught = number;
    }
}

void work_watch_begin(work_watch *watch, const char *name)
{
    struct sigaction action = {.sa_handler = catch_signal, .sa_flags = SA_RESTART};
    *watch = (work_watch){.name = name};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < N_CAUGHT; i++) {
        sigaction(caught_signals[i], NULL, &earlier[i]);
        if (earlier[i].sa_handler != SIG_IGN) { /* as under nohup */
            sigaction(caught_signals[i], &action, NULL);
        }
    }
}

/* With --verbose, when a phase is over. */
static void tell_phase(const work_watch *w)
{
    char time[UNIT_TEXT_BYTES], bytes[UNIT_TEXT_BYTES], rate[UNIT_TEXT_BYTES];
    double seconds = w->seconds - w->phase_began;
    uint64_t done = w->done_bytes > w->phase_bytes ? w->done_bytes - w->phase_bytes : 0;
    if (w->phase == NULL) {
        return;
    }
    if (done == 0 || !(seconds > 0)) {
        terminal_step(w->name, "%s: %s", w->phase, format_seconds(seconds, time));
    } else {
        terminal_step(w->name, "%s: %s in %s, %s", w->phase, format_bytes((double)done, bytes),
                      format_seconds(seconds, time), format_rate((double)done / seconds, rate));
    }
}

void work_watch_end(work_watch *watch)
{
    tell_phase(watch);
    terminal_clear_line();
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
    tell_phase(w);
    w->phase = p->phase;
    w->phase_began = p->seconds;
    w->phase_bytes = p->done_bytes;
    w->shown = p->seconds;
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
    w->shown = p->seconds;
    w->shown_bytes = p->done_bytes;
}

/* Appends to what is behind the bar. */
static void append(work_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void append(work_line *line, const char *format, ...)
{
    size_t length = strlen(line->behind);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line->behind + length, sizeof line->behind - length, format, arguments);
    va_end(arguments);
}

static void append_remaining(work_line *line, double seconds)
{
    if (seconds < 60) {
        append(line, ", %.0f s left", seconds);
    } else if (seconds < 100.0 * 3600) {
        unsigned minutes = (unsigned)(seconds / 60);
        append(line, ", %u:%02u:%02u left", minutes / 60, minutes % 60, (unsigned)seconds % 60);
    }
}

static void describe_bytes(const work_watch *w, const ferry_work_progress *p, work_line *line)
{
    char text[UNIT_TEXT_BYTES];
    uint64_t done = p->done_bytes < p->total_bytes ? p->done_bytes : p->total_bytes;
    line->has_bar = true;
    line->done = (double)done / (double)p->total_bytes;
    append(line, "%.0f%% of %s", 100 * line->done, format_bytes((double)p->total_bytes, text));
    if (w->bytes_per_s > 0 && done < p->total_bytes) {
        append(line, ", %s", format_rate(w->bytes_per_s, text));
        append_remaining(line, (double)(p->total_bytes - done) / w->bytes_per_s);
    }
}

static void describe_files(const ferry_work_progress *p, work_line *line)
{
    char text[2][UNIT_TEXT_BYTES];
    uint64_t done = p->n_done_files < p->n_total_files ? p->n_done_files : p->n_total_files;
    line->has_bar = true;
    line->done = (double)done / (double)p->n_total_files;
    append(line, "%s of %s files", format_count(done, text[0]),
           format_count(p->n_total_files, text[1]));
}

bool work_watch_take(work_watch *w, const ferry_work_progress *p, work_line *line_out)
{
    bool is_new = w->phase == NULL || strcmp(w->phase, p->phase) != 0;
    if (is_new) {
        begin_phase(w, p);
    }
    w->seconds = p->seconds;
    w->done_bytes = p->done_bytes;
    if (!is_new && p->seconds < w->shown + SHOW_SECONDS) {
        return false;
    }
    if (!is_new) {
        measure(w, p);
    }
    *line_out = (work_line){.has_bar = false};
    snprintf(line_out->before, sizeof line_out->before, "%s", p->phase);
    if (p->total_bytes > 0) {
        describe_bytes(w, p, line_out);
    } else if (p->n_total_files > 1) {
        describe_files(p, line_out);
    }
    return true;
}

/* At once: hours of work may follow that somebody would rather stop. */
static void note_begin(work_watch *w, const ferry_work_progress *p)
{
    if (w->has_noted || w->is_json) {
        return;
    }
    w->has_noted = p->anew != NULL || p->goes_on;
    if (p->anew != NULL) {
        terminal_note(w->name, "starting anew, not where an earlier run ended: %s", p->anew);
    } else if (p->goes_on) {
        terminal_note(w->name, "going on where an earlier run ended; --restart begins anew");
    }
}

bool work_watch_show(void *watch, const ferry_work_progress *progress)
{
    work_watch *w = watch;
    work_line line;
    note_begin(w, progress);
    if (work_watch_take(w, progress, &line)) {
        if (line.has_bar) {
            terminal_put_bar(line.before, line.done, line.behind);
        } else {
            terminal_put_line(line.before);
        }
    }
    return caught == 0;
}

ferry_status work_open_checkpoint(const char *name, const char *path,
                                  ferry_checkpoint **checkpoint_out, ferry_error *error)
{
    work_watch watch;
    work_watch_begin(&watch, name);
    ferry_status status =
        ferry_checkpoint_open_watched(path, work_watch_show, &watch, checkpoint_out, error);
    work_watch_end(&watch);
    if (status == FERRY_ERR_STOPPED) {
        work_watch_die();
    }
    return status;
}
