/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_TERMINAL_H
#define FERRY_TOOL_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

/*
 * What commands say on stderr beside their result, in one place: errors always, notes unless
 * --quiet, steps with --verbose, and on a terminal one line that shows how far long work is.
 */
typedef enum loudness {
    LOUDNESS_QUIET = -1, /* errors only */
    LOUDNESS_NORMAL = 0,
    LOUDNESS_VERBOSE = 1
} loudness;

/* Of this process: said by --quiet and --verbose, before a command begins to work. */
void terminal_set_loudness(loudness how);
loudness terminal_loudness(void);

/* What stderr is, by the terminal and the environment. */
typedef struct terminal {
    bool is_live;    /* a terminal whose line can be written again: not a dumb one */
    bool has_colour; /* that, and NO_COLOR is not set */
    unsigned columns;
} terminal;

terminal terminal_of_stderr(void);

typedef enum terminal_colour { COLOUR_ERROR, COLOUR_NOTE, COLOUR_BAR } terminal_colour;

/* What switches a colour of stderr on and off; "" where it has none. */
const char *terminal_begin(terminal_colour colour);
const char *terminal_end(void);

/* "ferry reshard: note: <sentence>", unless --quiet. */
void terminal_note(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The beginning of one, for who prints the rest and the end of the line; false: it is not wanted.
 */
bool terminal_begin_note(const char *name);

/* "ferry reshard: <what was done>", with --verbose only. */
void terminal_step(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The line that shows how far work is: replaced as a whole; nothing where is_live is not. */
void terminal_put_line(const char *text);
/* The same with a bar of what is done (0 to 1) between the two texts, as wide as there is room. */
void terminal_put_bar(const char *before, double done, const char *behind);
/* Removes it: before anything else is written, and at the end of the work. */
void terminal_clear_line(void);

/*
 * A line for work that cannot tell how far it is: what is done, and for how long. It is shown from
 * the second second on, by a thread; without a thread, or where nothing is shown, it is nothing.
 */
typedef struct terminal_clock terminal_clock;

/* NULL is what the others take, too. */
terminal_clock *terminal_clock_begin(const char *doing);
/* doing lives until the end; from any thread. */
void terminal_clock_turn_to(terminal_clock *clock, const char *doing);
void terminal_clock_end(terminal_clock *clock);

#endif
