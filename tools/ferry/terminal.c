/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "terminal.h"

#include "units.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static loudness how_loud;

void terminal_set_loudness(loudness how)
{
    how_loud = how;
}

loudness terminal_loudness(void)
{
    return how_loud;
}

/* ---- what stderr is ---- */

enum { DEFAULT_COLUMNS = 80, LEAST_COLUMNS = 20, MOST_COLUMNS = 160 };

static unsigned columns_of(int descriptor)
{
    struct winsize size;
    if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
        return DEFAULT_COLUMNS;
    }
    return size.ws_col < LEAST_COLUMNS  ? LEAST_COLUMNS
           : size.ws_col > MOST_COLUMNS ? MOST_COLUMNS
                                        : size.ws_col;
}

terminal terminal_of_stderr(void)
{
    const char *kind = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");
    terminal t = {.columns = DEFAULT_COLUMNS};
    t.is_live =
        isatty(STDERR_FILENO) != 0 && kind != NULL && kind[0] != '\0' && strcmp(kind, "dumb") != 0;
    t.has_colour = t.is_live && (no_color == NULL || no_color[0] == '\0');
    if (t.is_live) {
        t.columns = columns_of(STDERR_FILENO);
    }
    return t;
}

const char *terminal_begin(terminal_colour colour)
{
    static const char *const codes[] = {
        [COLOUR_ERROR] = "\033[1;31m", [COLOUR_NOTE] = "\033[33m", [COLOUR_BAR] = "\033[36m"};
    return terminal_of_stderr().has_colour ? codes[colour] : "";
}

const char *terminal_end(void)
{
    return terminal_of_stderr().has_colour ? "\033[0m" : "";
}

/* ---- sentences ---- */

bool terminal_begin_note(const char *name)
{
    if (how_loud == LOUDNESS_QUIET) {
        return false;
    }
    terminal_clear_line();
    fprintf(stderr, "ferry %s: %snote:%s ", name, terminal_begin(COLOUR_NOTE), terminal_end());
    return true;
}

void terminal_note(const char *name, const char *format, ...)
{
    va_list arguments;
    if (!terminal_begin_note(name)) {
        return;
    }
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

void terminal_step(const char *name, const char *format, ...)
{
    va_list arguments;
    if (how_loud != LOUDNESS_VERBOSE) {
        return;
    }
    terminal_clear_line();
    fprintf(stderr, "ferry %s: ", name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

/* ---- the line ---- */

static pthread_mutex_t line_lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_shown;

static bool shows_lines(const terminal *t)
{
    return t->is_live && how_loud != LOUDNESS_QUIET;
}

/* Cut where it would reach the last column: what wraps cannot be replaced. */
void terminal_put_line(const char *text)
{
    terminal t = terminal_of_stderr();
    if (!shows_lines(&t)) {
        return;
    }
    pthread_mutex_lock(&line_lock);
    fprintf(stderr, "\r\033[K%.*s", (int)t.columns - 1, text);
    fflush(stderr);
    is_shown = true;
    pthread_mutex_unlock(&line_lock);
}

enum { LEAST_BAR = 10, MOST_BAR = 40 };

void terminal_put_bar(const char *before, double done, const char *behind)
{
    terminal t = terminal_of_stderr();
    size_t used = strlen(before) + strlen(behind) + 5; /* blanks, brackets, the last column */
    char bar[MOST_BAR + 1];
    if (!shows_lines(&t)) {
        return;
    }
    if (used + LEAST_BAR > t.columns) {
        char text[2 * MOST_COLUMNS];
        snprintf(text, sizeof text, "%s: %s", before, behind);
        terminal_put_line(text);
        return;
    }
    size_t width = t.columns - used < MOST_BAR ? t.columns - used : MOST_BAR;
    size_t full = done >= 1 ? width : done > 0 ? (size_t)(done * (double)width) : 0;
    for (size_t i = 0; i < width; i++) {
        bar[i] = i < full ? '=' : i == full ? '>' : ' ';
    }
    bar[width] = '\0';
    pthread_mutex_lock(&line_lock);
    fprintf(stderr, "\r\033[K%s [%s%s%s] %s", before, terminal_begin(COLOUR_BAR), bar,
            terminal_end(), behind);
    fflush(stderr);
    is_shown = true;
    pthread_mutex_unlock(&line_lock);
}

void terminal_clear_line(void)
{
    pthread_mutex_lock(&line_lock);
    if (is_shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        is_shown = false;
    }
    pthread_mutex_unlock(&line_lock);
}

/* ---- a clock ---- */

struct terminal_clock {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool ends;
    _Atomic(const char *) doing;
    struct timespec begin;
};

static const double SHOW_FROM_SECONDS = 1;

static void show_time(const terminal_clock *clock)
{
    struct timespec now;
    char text[2 * MOST_COLUMNS], time[UNIT_TEXT_BYTES];
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = (double)(now.tv_sec - clock->begin.tv_sec) +
                     1e-9 * (double)(now.tv_nsec - clock->begin.tv_nsec);
    if (seconds < SHOW_FROM_SECONDS) {
        return;
    }
    snprintf(text, sizeof text, "%s: %s", atomic_load(&clock->doing),
             seconds < 59.5 ? (snprintf(time, sizeof time, "%.0f s", seconds), time)
                            : format_seconds(seconds, time));
    terminal_put_line(text);
}

static void *run_clock(void *argument)
{
    terminal_clock *clock = argument;
    pthread_mutex_lock(&clock->lock);
    while (!clock->ends) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        pthread_cond_timedwait(&clock->ended, &clock->lock, &until);
        if (!clock->ends) {
            show_time(clock);
        }
    }
    pthread_mutex_unlock(&clock->lock);
    return NULL;
}

terminal_clock *terminal_clock_begin(const char *doing)
{
    terminal t = terminal_of_stderr();
    terminal_clock *clock = shows_lines(&t) ? calloc(1, sizeof *clock) : NULL;
    if (clock == NULL) {
        return NULL;
    }
    atomic_init(&clock->doing, doing);
    clock_gettime(CLOCK_MONOTONIC, &clock->begin);
    pthread_mutex_init(&clock->lock, NULL);
    pthread_cond_init(&clock->ended, NULL);
    if (pthread_create(&clock->thread, NULL, run_clock, clock) != 0) {
        free(clock);
        return NULL;
    }
    return clock;
}

void terminal_clock_turn_to(terminal_clock *clock, const char *doing)
{
    if (clock != NULL) {
        atomic_store(&clock->doing, doing);
    }
}

void terminal_clock_end(terminal_clock *clock)
{
    if (clock == NULL) {
        return;
    }
    pthread_mutex_lock(&clock->lock);
    clock->ends = true;
    pthread_cond_signal(&clock->ended);
    pthread_mutex_unlock(&clock->lock);
    pthread_join(clock->thread, NULL);
    terminal_clear_line();
    pthread_cond_destroy(&clock->ended);
    pthread_mutex_destroy(&clock->lock);
    free(clock);
}
