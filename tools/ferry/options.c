/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "terminal.h"

#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPTIONS = 64, TEXT_COLUMN = 22, LAST_COLUMN = 99 };

/* The table as getopt wants it. */
typedef struct getopt_table {
    struct option long_options[MOST_OPTIONS + 1];
    char letters[2 * MOST_OPTIONS + 3];
} getopt_table;

static bool is_option(const option_row *row)
{
    return row->id != OPTION_HEADING_ID && row->id != OPTION_NOTE_ID;
}

static int argument_of(const option_row *row)
{
    return row->value == NULL     ? no_argument
           : row->value[0] == '[' ? optional_argument
                                  : required_argument;
}

/* An option may stand in several parts of the help. */
static bool is_known(const getopt_table *table, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(table->long_options[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static void make_table(const command *c, getopt_table *table)
{
    size_t n = 0, length = 0;
    if (c->starts_program) {
        table->letters[length++] = '+';
    }
    table->letters[length++] = ':';
    for (const option_row *row = c->options; row->id != 0 && n < MOST_OPTIONS; row++) {
        if (is_option(row) && row->letter != '\0') {
            table->letters[length++] = row->letter;
            if (row->value != NULL) {
                table->letters[length++] = ':';
            }
        }
        if (is_option(row) && row->name != NULL && !is_known(table, n, row->name)) {
            table->long_options[n++] = (struct option){row->name, argument_of(row), NULL, row->id};
        }
    }
    table->letters[length] = '\0';
    table->long_options[n] = (struct option){NULL, 0, NULL, 0};
}

/* ---- words that are nearly right ---- */

enum { MOST_WORD = 32, FARTHEST = 2 };

static unsigned least_of(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Letters to put in, take out, replace, or swap with their neighbour. */
static unsigned distance(const char *a, const char *b)
{
    unsigned rows[3][MOST_WORD + 1];
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a > MOST_WORD || n_b > MOST_WORD) {
        return UINT32_MAX;
    }
    for (size_t k = 0; k <= n_b; k++) {
        rows[0][k] = (unsigned)k;
    }
    for (size_t i = 1; i <= n_a; i++) {
        unsigned *row = rows[i % 3];
        const unsigned *above = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        row[0] = (unsigned)i;
        for (size_t k = 1; k <= n_b; k++) {
            row[k] =
                least_of(least_of(row[k - 1], above[k]) + 1, above[k - 1] + (a[i - 1] != b[k - 1]));
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1]) {
                row[k] = least_of(row[k], before[k - 2] + 1);
            }
        }
    }
    return rows[n_a % 3][n_b];
}

const char *nearest_word(const char *word, const char *const *list, size_t n)
{
    const char *nearest = NULL;
    /* Of a short word two letters are too much: any other would be near. */
    unsigned least = strlen(word) < 4 ? FARTHEST : FARTHEST + 1;
    for (size_t i = 0; i < n; i++) {
        unsigned away = distance(word, list[i]);
        if (away < least) {
            nearest = list[i];
            least = away;
        }
    }
    return nearest;
}

static int fail_unknown(const command *c, const getopt_table *table, const char *word)
{
    const char *names[MOST_OPTIONS], *nearest = NULL;
    char typed[MOST_WORD + 1];
    size_t n = 0, length = strncmp(word, "--", 2) == 0 ? strcspn(word + 2, "=") : SIZE_MAX;
    while (table->long_options[n].name != NULL) {
        names[n] = table->long_options[n].name;
        n++;
    }
    if (length <= MOST_WORD) {
        memcpy(typed, word + 2, length);
        typed[length] = '\0';
        nearest = nearest_word(typed, names, n);
    }
    return nearest == NULL
               ? fail_usage(c->name, "unknown option %s", word)
               : fail_usage(c->name, "unknown option %s; did you mean --%s?", word, nearest);
}

/* After getopt_long has returned ':' or '?': names the option that is wrong. */
static int fail_option(const command *c, const getopt_table *table, int found, char **argv)
{
    /* getopt goes through "-xy" letter by letter, and is past the word only behind its last. Of a
     * letter of several bytes it has seen one: then the word says more. */
    bool is_short = optopt != 0 && optopt<128, is_whole = optopt> 0;
    const char letter[] = {'-', (char)optopt, '\0'};
    bool is_ahead = argv[optind] != NULL && strchr(argv[optind], letter[1]) != NULL;
    const char *word = is_short && is_whole   ? letter
                       : is_short && is_ahead ? argv[optind]
                                              : argv[optind - 1];
    if (found == ':') {
        return fail_usage(c->name, "%s needs a value", word);
    }
    if (!is_short && strchr(word, '=') != NULL && optopt != 0) {
        return fail_usage(c->name, "%s: the option takes no value", word);
    }
    return fail_unknown(c, table, word);
}

/* What is alike in all commands is applied here. */
static int apply_one(int id, apply_option_fn apply, void *request)
{
    if (id == OPTION_QUIET_ID || id == OPTION_VERBOSE_ID) {
        terminal_set_loudness(id == OPTION_QUIET_ID ? LOUDNESS_QUIET : LOUDNESS_VERBOSE);
        return EXIT_DONE;
    }
    return apply(id, request);
}

/* Short forms come back as their letters. */
static bool is_found(const option_row *row, int found)
{
    return is_option(row) && (row->id == found || (row->letter != '\0' && row->letter == found));
}

/* The first row of an option that the table has. */
static const option_row *row_of(const command *c, int found)
{
    const option_row *row = c->options;
    while (!is_found(row, found)) {
        row++;
    }
    return row;
}

/* Of two values one would be forgotten without a word. */
static int refuse_second(const command *c, const option_row *row, bool was_given[])
{
    size_t number = (size_t)(row - c->options);
    bool is_second = was_given[number] && row->value != NULL && !row->is_list;
    was_given[number] = true;
    const char letter[] = {row->letter, '\0'};
    return !is_second
               ? EXIT_DONE
               : fail_usage(c->name, "%s%s can be given once only, and is there twice",
                            row->name != NULL ? "--" : "-", row->name != NULL ? row->name : letter);
}

int parse_options(const command *c, int argc, char **argv, apply_option_fn apply, void *request)
{
    getopt_table table;
    bool was_given[MOST_OPTIONS] = {false}; /* by the rows of the table */
    int found, status = EXIT_DONE;
    make_table(c, &table);
    optind = 1;
    opterr = 0;
    while (status == EXIT_DONE &&
           (found = getopt_long(argc, argv, table.letters, table.long_options, NULL)) != -1) {
        if (found == ':' || found == '?') {
            return fail_option(c, &table, found, argv);
        }
        const option_row *row = row_of(c, found);
        status = refuse_second(c, row, was_given);
        status = status == EXIT_DONE ? apply_one(row->id, apply, request) : status;
    }
    return status;
}

int count_own_arguments(const command *c, int argc, char **argv)
{
    getopt_table table;
    if (!c->starts_program) {
        return argc;
    }
    make_table(c, &table);
    optind = 1;
    opterr = 0;
    while (getopt_long(argc, argv, table.letters, table.long_options, NULL) != -1) {}
    return optind;
}

/* ---- help ---- */

/* "--rank R", "--schedule[=RULE]", "-n N", "-q, --quiet" */
static int write_form(const option_row *row, char *text, size_t size)
{
    const char letter[] = {'-', row->letter, '\0'};
    bool both = row->letter != '\0' && row->name != NULL;
    int length =
        snprintf(text, size, "  %s%s%s%s", row->letter != '\0' ? letter : "", both ? ", " : "",
                 row->name != NULL ? "--" : "", row->name != NULL ? row->name : "");
    const char *value = row->value;
    if (value != NULL) {
        bool may_be = value[0] == '[';
        length += snprintf(text + length, size - (size_t)length, "%s%s", may_be ? "[=" : " ",
                           may_be ? value + 1 : value);
    }
    return length;
}

/* The option, and its text broken into lines in the column beside it. */
static void print_option(const option_row *row, put_line_fn put_line)
{
    char line[LAST_COLUMN + 1];
    int length = write_form(row, line, sizeof line);
    const char *at = row->text;
    if (length > TEXT_COLUMN - 2) {
        put_line(line, length);
        length = 0;
    }
    while (*at != '\0') {
        memset(line + length, ' ', (size_t)(TEXT_COLUMN - length));
        length = TEXT_COLUMN;
        for (;;) {
            int blank = *at == ' ' ? 1 : 0;
            int word = (int)strcspn(at + blank, " ");
            bool first = length == TEXT_COLUMN;
            if (word == 0 || (!first && length + 1 + word > LAST_COLUMN - 2)) {
                at += blank;
                break;
            }
            length += snprintf(line + length, sizeof line - (size_t)length, "%s%.*s",
                               first ? "" : " ", word, at + blank);
            at += blank + word;
        }
        put_line(line, length);
        length = 0;
    }
}

/* Between options an empty line before and behind. */
static void print_note(const option_row *row, bool is_first, put_line_fn put_line)
{
    const char *text = row->text;
    if (!is_first) {
        put_line("", 0);
    }
    while (*text != '\0') {
        int length = (int)strcspn(text, "\n");
        put_line(text, length);
        text += length + (text[length] == '\n');
    }
    if (row[1].id != 0 && is_option(row + 1)) {
        put_line("", 0);
    }
}

static void print_heading(const char *heading, put_line_fn put_line)
{
    char line[LAST_COLUMN + 1];
    put_line("", 0);
    put_line(line, snprintf(line, sizeof line, "%s:", heading));
}

void print_option_table(const option_row *rows, put_line_fn put_line)
{
    static const option_row of_help = {.name = "help", .id = 1, .text = "this text"};
    bool helped = false;
    print_heading("Options", put_line);
    for (const option_row *row = rows; row->id != 0; row++) {
        if (row->id == OPTION_HEADING_ID) {
            if (!helped) {
                print_option(&of_help, put_line);
                helped = true;
            }
            print_heading(row->text, put_line);
        } else if (row->id == OPTION_NOTE_ID) {
            print_note(row, row == rows || row[-1].id == OPTION_HEADING_ID, put_line);
        } else if (row->text != NULL) {
            print_option(row, put_line);
        }
    }
    if (!helped) {
        print_option(&of_help, put_line);
    }
}
