/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"

#include <ferry/ferry.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const command *const commands[] = {&command_plan,    &command_run,    &command_reshard,
                                          &command_inspect, &command_verify, &command_launch,
                                          &command_bench,   &command_tune,   &command_info};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static const char overview[] =
    "Usage: ferry COMMAND [OPTION]...\n"
    "\n"
    "Carries the weights of a sharded model from one parallel layout to another.\n"
    "\n"
    "Options:\n"
    "  --help       this text; every command has its own: ferry COMMAND --help, or\n"
    "               ferry help COMMAND\n"
    "  --version    the version\n"
    "\n"
    "Exit status: 0 done, 1 the work failed (one sentence on stderr), 2 wrong usage; of verify\n"
    "0 equal, 1 they differ, 2 trouble.\n";

static void print_overview(FILE *stream)
{
    fputs(overview, stream);
    fputs("\nCommands:\n", stream);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        fprintf(stream, "  %-12s %s\n", commands[i]->name, commands[i]->summary);
    }
}

int fail(const char *name, const char *sentence)
{
    fprintf(stderr, "ferry %s: %s\n", name, sentence);
    return EXIT_FAILED;
}

int fail_usage(const char *name, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "ferry %s: ", name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "; see `ferry %s --help`\n", name);
    return EXIT_USAGE;
}

/* Lines that start in the first column and end in a colon are headings, as in the help text. */
static void print_man_text(const char *help, bool *open)
{
    while (*help != '\0') {
        size_t length = strcspn(help, "\n");
        if (length > 1 && help[0] != ' ' && help[length - 1] == ':') {
            printf("%s.SH %.*s\n.nf\n", *open ? ".fi\n" : "", (int)length - 1, help);
            *open = true;
        } else {
            if (!*open) {
                printf(".SH DESCRIPTION\n.nf\n");
                *open = true;
            }
            /* A leading dot or quote would be a request; a backslash an escape. */
            printf("%s", help[0] == '.' || help[0] == '\'' ? "\\&" : "");
            for (size_t i = 0; i < length; i++) {
                printf("%s", help[i] == '\\' ? "\\e" : (char[]){help[i], '\0'});
            }
            putchar('\n');
        }
        help += length + (help[length] == '\n');
    }
}

void print_man_page(const char *name, const char *summary, const char *help, const char *more_help)
{
    bool open = false;
    printf(".TH FERRY%s%s 1 \"\" \"ferry %s\"\n.SH NAME\nferry%s%s \\- %s\n",
           name[0] == '\0' ? "" : "-", name, FERRY_VERSION_TEXT, name[0] == '\0' ? "" : "-", name,
           summary);
    print_man_text(help, &open);
    print_man_text(more_help == NULL ? "" : more_help, &open);
    printf(".fi\n");
}

static int fail_command(const command *c, const char *sentence)
{
    fail(c->name, sentence);
    return c->compares ? EXIT_TROUBLE : EXIT_FAILED;
}

static int run_command(const command *c, int argc, char **argv)
{
    int n_own = c->n_own == NULL ? argc : c->n_own(argc, argv);
    for (int i = 1; i < n_own; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(c->help, stdout);
            fputs(c->more_help == NULL ? "" : c->more_help, stdout);
            return EXIT_DONE;
        }
        if (strcmp(argv[i], "--man") == 0) {
            print_man_page(c->name, c->summary, c->help, c->more_help);
            return EXIT_DONE;
        }
    }
    ferry_error error;
    if (ferry_config_check(&error) != FERRY_OK) {
        return fail_command(c, error.message);
    }
    return c->run(argc, argv);
}

static const command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
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
        print_man_page("", "carries sharded weights between parallel layouts", overview, NULL);
        return EXIT_DONE;
    }
    fprintf(stderr, "ferry: unknown command \"%s\"; see `ferry --help`\n", argv[1]);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_overview(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "help") == 0 && argc > 2) { /* ferry help plan: ferry plan --help */
        static char option[] = "--help";
        argv[1]              = argv[2];
        argv[2]              = option;
        argc                 = 3;
    }
    const command *c      = find_command(argv[1]);
    int            status = dispatch(c, argc, argv);
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
