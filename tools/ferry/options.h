/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_OPTIONS_H
#define FERRY_TOOL_OPTIONS_H

#include "commands.h"

#include <getopt.h> /* optarg and optind, for those who read options */
#include <stddef.h>

/*
 * A command's options are one table: what is parsed, what --help and the man page print, and what
 * shells complete.
 */
typedef struct option_row {
    const char *name;  /* without dashes; NULL of a letter alone, of headings and notes */
    const char *value; /* what help calls it, in brackets where it may be left out; NULL: none */
    int id;            /* handed to apply_option_fn; 0 ends the table */
    const char *text;  /* for people; NULL: the option is known, and not shown */
    const char *words; /* what the value may be, with blanks between (optional: anything) */
    char letter;       /* of its short form (optional) */
    bool is_list;      /* it may be given again, with one more value */
} option_row;

enum { OPTION_HEADING_ID = -1, OPTION_NOTE_ID = -2, OPTION_QUIET_ID = -3, OPTION_VERBOSE_ID = -4 };

/* clang-format off */
#define OPTION(name_of, value_of, number, words_for_people) \
    {.name = name_of, .value = value_of, .id = number, .text = words_for_people}
#define OPTION_WORDS(choices, name_of, value_of, number, words_for_people) \
    {.name = name_of, .value = value_of, .id = number, .words = choices, .text = words_for_people}
/* Each time it is given, it adds a value. Of others a second value is refused. */
#define OPTION_LIST(name_of, value_of, number, words_for_people) \
    {.name = name_of, .value = value_of, .id = number, .text = words_for_people, .is_list = true}
/* What follows stands below this heading instead of "Options". */
#define OPTION_HEADING(heading) {.id = OPTION_HEADING_ID, .text = heading}
/* Lines between options, printed as they are. */
#define OPTION_NOTE(lines) {.id = OPTION_NOTE_ID, .text = lines}
/* What a command says on stderr: two options that are read in one place for all (terminal.h). */
#define OPTION_LOUDNESS \
    {.name = "quiet", .letter = 'q', .id = OPTION_QUIET_ID, .text = \
     "print errors only, and what other options ask for"}, \
    {.name = "verbose", .letter = 'v', .id = OPTION_VERBOSE_ID, .text = \
     "say on stderr what was done and how long it took"}
/* Options that ranks get from the command that starts them. */
#define OPTION_HIDDEN(option, number) {.name = option, .id = number}
#define OPTION_END {.id = 0}
/* clang-format on */

/* Is handed each option; optarg is its value. An exit status, after a sentence unless it is done.
 */
typedef int (*apply_option_fn)(int id, void *request);

/*
 * Hands over the command's options. They may stand anywhere, but not behind the first argument of a
 * command that starts a program. Afterwards argv[optind] is the first argument that is none.
 */
int parse_options(const command *c, int argc, char **argv, apply_option_fn apply, void *request);

/* How many of the arguments come before the program. */
int count_own_arguments(const command *c, int argc, char **argv);

/* One line of help, without its end. */
typedef void (*put_line_fn)(const char *line, int length);

/* Prints the table as --help shows it, with --help itself at the end of the first part. */
void print_option_table(const option_row *rows, put_line_fn put_line);

/* The word of a list that is most like a misspelt one; NULL where none is near. */
const char *nearest_word(const char *word, const char *const *list, size_t n);

#endif
