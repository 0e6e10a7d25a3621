/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"

#include "name_text.h"
#include "options.h"
#include "terminal.h"

#include <ferry/ferry.h>

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const command *const commands[] = {&command_plan,   &command_simulate, &command_draw,
                                   &command_run,    &command_reshard,  &command_inspect,
                                   &command_verify, &command_launch,   &command_bench,
                                   &command_tune,   &command_info,     &command_completion};
const size_t n_commands = sizeof commands / sizeof commands[0];

static const char overview[] =
    "Usage: ferry COMMAND [OPTION]...\n"
    "\n"
    "Moves the weights of a sharded model from one parallel layout to another.\n";

static const char more_overview[] =
    "\n"
    "Options:\n"
    "  --help       this text; every command has its own: ferry COMMAND --help, or\n"
    "               ferry help COMMAND. With --man it comes as a man page\n"
    "  --version    the version\n"
    "\n"
    "Examples:\n"
    "  ferry run examples/run/tp4-to-tp2dp2.json         # move a model here, and check every "
    "byte\n"
    "  ferry reshard MODEL --to tp=4 --out MODEL-TP4     # a checkpoint for 4 ranks\n"
    "  ferry plan examples/llama-3-70b.json --schedule   # what would travel, and how long it "
    "takes\n"
    "\n"
    "Exit status: 0 done, 1 the work failed (one sentence on stderr), 2 wrong usage; of verify\n"
    "0 equal, 1 they differ, 2 trouble.\n";

static void print_commands(FILE *stream)
{
    const char *group = "";
    for (size_t i = 0; i < n_commands; i++) {
        if (strcmp(group, commands[i]->group) != 0) {
            group = commands[i]->group;
            fprintf(stream, "\n%s:\n", group);
        }
        fprintf(stream, "  %-12s %s\n", commands[i]->name, commands[i]->summary);
    }
}

static void print_overview(FILE *stream)
{
    fputs(overview, stream);
    print_commands(stream);
    fputs(more_overview, stream);
}

int fail(const char *name, const char *sentence)
{
    terminal_clear_line();
    fprintf(stderr, "%sferry %s:%s ", terminal_begin(COLOUR_ERROR), name, terminal_end());
    print_name(stderr, sentence); /* with names of files and tensors in it */
    putc('\n', stderr);
    return EXIT_FAILED;
}

int fail_usage(const char *name, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "%sferry %s:%s ", terminal_begin(COLOUR_ERROR), name, terminal_end());
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "; see `ferry %s --help`\n", name);
    return EXIT_USAGE;
}

/* ---- help and man pages: the same lines ---- */

static void print_line(const char *line, int length)
{
    printf("%.*s\n", length, line);
}

static bool man_is_open; /* a part of the page has begun */

/* Lines that start in the first column and end in a colon are headings, as in the help text. */
static void print_man_line(const char *line, int length)
{
    if (length > 1 && line[0] != ' ' && line[length - 1] == ':') {
        printf("%s.SH %.*s\n.nf\n", man_is_open ? ".fi\n" : "", length - 1, line);
        man_is_open = true;
        return;
    }
    if (!man_is_open) {
        printf(".SH DESCRIPTION\n.nf\n");
        man_is_open = true;
    }
    /* A leading dot or quote would be a request; a backslash an escape. */
    printf("%s", length > 0 && (line[0] == '.' || line[0] == '\'') ? "\\&" : "");
    for (int i = 0; i < length; i++) {
        printf("%s", line[i] == '\\' ? "\\e" : (char[]){line[i], '\0'});
    }
    putchar('\n');
}

static void print_lines(const char *text, put_line_fn put_line)
{
    while (*text != '\0') {
        size_t length = strcspn(text, "\n");
        put_line(text, (int)length);
        text += length + (text[length] == '\n');
    }
}

static void print_help(const command *c, put_line_fn put_line)
{
    print_lines(c->help, put_line);
    print_option_table(c->options, put_line);
    print_lines(c->more_help, put_line);
}

static void print_man_head(const char *name, const char *summary)
{
    const char *dash = name[0] == '\0' ? "" : "-";
    printf(".TH FERRY%s%s 1 \"\" \"ferry %s\"\n.SH NAME\nferry%s%s \\- %s\n", dash, name,
           FERRY_VERSION_TEXT, dash, name, summary);
}

static void print_man_page(const command *c)
{
    print_man_head(c->name, c->summary);
    print_help(c, print_man_line);
    printf(".fi\n");
}

static void print_overview_page(void)
{
    print_man_head("", "moves sharded weights between parallel layouts");
    print_lines(overview, print_man_line);
    printf(".fi\n.SH Commands\n.nf\n");
    print_commands(stdout);
    print_lines(more_overview, print_man_line);
    printf(".fi\n");
}

static int fail_command(const command *c, const char *sentence)
{
    fail(c->name, sentence);
    return c->compares ? EXIT_TROUBLE : EXIT_FAILED;
}

static int run_command(const command *c, int argc, char **argv)
{
    int n_own = count_own_arguments(c, argc, argv);
    for (int i = 1; i < n_own; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(c, print_line);
            return EXIT_DONE;
        }
        if (strcmp(argv[i], "--man") == 0) {
            print_man_page(c);
            return EXIT_DONE;
        }
    }
    ferry_error error;
    if (ferry_config_check(&error) != FERRY_OK) {
        return fail_command(c, error.message);
    }
    return c->run(argc, argv);
}

static int fail_unknown_command(const char *word)
{
    const char *names[sizeof commands / sizeof commands[0]];
    for (size_t i = 0; i < n_commands; i++) {
        names[i] = commands[i]->name;
    }
    const char *nearest = nearest_word(word, names, n_commands);
    if (nearest != NULL) {
        fprintf(stderr, "ferry: unknown command \"%s\"; did you mean %s? See `ferry --help`\n",
                word, nearest);
    } else {
        fprintf(stderr, "ferry: unknown command \"%s\"; see `ferry --help`\n", word);
    }
    return EXIT_USAGE;
}

static const command *find_command(const char *name)
{
    for (size_t i = 0; i < n_commands; i++) {
        if (strcmp(name, commands[i]->name) == 0) {
            return commands[i];
        }
    }
    return NULL;
}

/* c: the command that the first argument names, or NULL. */
static int dispatch(const command *c, int argc, char **argv)
{
    if (c != NULL) {
        return run_command(c, argc - 1, argv + 1);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_overview(stdout);
        return EXIT_DONE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("ferry %s\n", ferry_version());
        return EXIT_DONE;
    }
    if (strcmp(argv[1], "--man") == 0) {
        print_overview_page();
        return EXIT_DONE;
    }
    return fail_unknown_command(argv[1]);
}

/*
 * What the caller has closed stays closed to what is printed: the number would go to the next file
 * or socket that is opened, and a line for people into it.
 */
static void hold_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0) {
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        }
    }
}

int main(int argc, char **argv)
{
    hold_closed_streams();
    if (argc < 2) {
        print_overview(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "help") == 0 && argc > 2) { /* ferry help plan: ferry plan --help */
        static char option[] = "--help";
        argv[1] = argv[2];
        argv[2] = option;
        argc = 3;
    }
    const command *c = find_command(argv[1]);
    int status = dispatch(c, argc, argv);
    /* A full disk or a closed pipe must not pass for success, whichever write it was. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == EXIT_DONE) {
        static const char sentence[] = "the output could not be written";
        if (c != NULL) {
            return fail_command(c, sentence);
        }
        fprintf(stderr, "ferry: %s\n", sentence);
        return EXIT_FAILED;
    }
    return status;
}
