/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Scripts with which shells complete commands, options and their words: from the same tables. */
#include "commands.h"
#include "options.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "Usage: ferry completion SHELL\n"
    "\n"
    "Prints the script with which SHELL (bash, zsh or fish) completes ferry's commands, options\n"
    "and the words that options take.\n";

static const char more_help[] = "\n"
                                "Exit status:\n"
                                "  0 done, 2 wrong usage\n"
                                "\n"
                                "Examples:\n"
                                "  source <(ferry completion bash)\n"
                                "  ferry completion fish > ~/.config/fish/completions/ferry.fish\n"
                                "  ferry completion zsh > \"${fpath[1]}/_ferry\"\n";

static const option_row rows[] = {OPTION_END};

/* What help does not show is not offered. */
static bool is_offered(const option_row *row)
{
    return row->name != NULL && row->text != NULL;
}

/* Shown more than once, an option is offered once. */
static bool is_first(const option_row *earlier, const option_row *row)
{
    for (; earlier != row; earlier++) {
        if (is_offered(earlier) && strcmp(earlier->name, row->name) == 0) {
            return false;
        }
    }
    return true;
}

/* Runs of a command's options in the order of the table. */
typedef void (*print_row_fn)(const command *c, const option_row *row);

static void for_each_option(const command *c, print_row_fn print)
{
    for (const option_row *row = c->options; row->id != 0; row++) {
        if (is_offered(row) && is_first(c->options, row)) {
            print(c, row);
        }
    }
}

/* The beginning of a text up to its first sentence's end, without what shells would take for
 * theirs. */
static void print_summary(const char *text)
{
    for (size_t i = 0; text[i] != '\0' && strchr(".;:", text[i]) == NULL; i++) {
        putchar(strchr("'\"\\`$[]", text[i]) == NULL ? text[i] : ' ');
    }
}

/* ---- bash ---- */

static void print_bash_name(const command *c, const option_row *row)
{
    (void)c;
    printf(" --%s", row->name);
}

static void print_bash_words(const command *c, const option_row *row)
{
    (void)c;
    if (row->value == NULL || row->value[0] == '[') {
        return;
    }
    if (row->words != NULL) {
        printf("            --%s) COMPREPLY=($(compgen -W '%s' -- \"$word\")); return ;;\n",
               row->name, row->words);
    } else if (strcmp(row->value, "FILE") == 0 || strcmp(row->value, "DST") == 0) {
        printf("            --%s) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n", row->name);
    } else {
        printf("            --%s) return ;;\n", row->name);
    }
}

static void print_bash(void)
{
    printf("# ferry completion bash\n"
           "_ferry() {\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} options=\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
           "        COMPREPLY=($(compgen -W '");
    for (size_t i = 0; i < n_commands; i++) {
        printf("%s ", commands[i]->name);
    }
    printf("help --help --version' -- \"$word\"))\n"
           "        return\n"
           "    fi\n"
           "    case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < n_commands; i++) {
        const command *c = commands[i];
        printf("    %s)\n        case $before in\n", c->name);
        for_each_option(c, print_bash_words);
        printf("        esac\n        options='");
        for_each_option(c, print_bash_name);
        printf(" --help' ;;\n");
    }
    printf("    esac\n"
           "    case $word in\n"
           "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;;\n"
           "    *) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n"
           "    esac\n"
           "}\n"
           "complete -o filenames -F _ferry ferry\n");
}

/* ---- zsh ---- */

static void print_zsh_row(const command *c, const option_row *row)
{
    (void)c;
    printf("            '--%s%s[", row->name,
           row->value == NULL     ? ""
           : row->value[0] == '[' ? "=-"
                                  : "=");
    print_summary(row->text);
    putchar(']');
    if (row->value != NULL) {
        printf("%s%s:", row->value[0] == '[' ? "::" : ":", row->name);
        if (row->words != NULL) {
            printf("(%s)", row->words);
        } else if (strcmp(row->value, "FILE") == 0 || strcmp(row->value, "DST") == 0) {
            printf("_files");
        }
    }
    printf("' \\\n");
}

static void print_zsh(void)
{
    printf("#compdef ferry\n"
           "# ferry completion zsh\n"
           "_ferry() {\n"
           "    local -a names\n"
           "    if (( CURRENT == 2 )); then\n"
           "        names=(\n");
    for (size_t i = 0; i < n_commands; i++) {
        printf("            '%s:%s'\n", commands[i]->name, commands[i]->summary);
    }
    printf("        )\n"
           "        _describe command names\n"
           "        return\n"
           "    fi\n"
           "    local name=$words[2]\n"
           "    shift words\n"
           "    (( CURRENT-- ))\n"
           "    case $name in\n");
    for (size_t i = 0; i < n_commands; i++) {
        printf("    %s)\n        _arguments \\\n", commands[i]->name);
        for_each_option(commands[i], print_zsh_row);
        printf("            '--help[this text]' '*:file:_files' ;;\n");
    }
    printf("    esac\n"
           "}\n"
           "_ferry \"$@\"\n");
}

/* ---- fish ---- */

static void print_fish_row(const command *c, const option_row *row)
{
    printf("complete -c ferry -n '__fish_seen_subcommand_from %s' -l %s", c->name, row->name);
    if (row->value != NULL && row->value[0] != '[') {
        printf(row->words != NULL ? " -x -a '%s'" : " -r", row->words);
    }
    printf(" -d '");
    print_summary(row->text);
    printf("'\n");
}

static void print_fish(void)
{
    printf("# ferry completion fish\n");
    for (size_t i = 0; i < n_commands; i++) {
        printf("complete -c ferry -f -n __fish_use_subcommand -a %s -d '%s'\n", commands[i]->name,
               commands[i]->summary);
    }
    for (size_t i = 0; i < n_commands; i++) {
        for_each_option(commands[i], print_fish_row);
    }
}

/* ---- the command ---- */

static const struct shell {
    const char *name;
    void (*print)(void);
} shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};

static int no_option(int id, void *request)
{
    (void)id;
    (void)request;
    return EXIT_USAGE;
}

static int run(int argc, char **argv)
{
    int status = parse_options(&command_completion, argc, argv, no_option, NULL);
    if (status != EXIT_DONE) {
        return status;
    }
    for (size_t i = 0; optind + 1 == argc && i < sizeof shells / sizeof shells[0]; i++) {
        if (strcmp(argv[optind], shells[i].name) == 0) {
            shells[i].print();
            return EXIT_DONE;
        }
    }
    return fail_usage("completion", "takes bash, zsh or fish");
}

const command command_completion = {.name = "completion",
                                    .group = "Shells",
                                    .summary = "print a script for completion in bash, zsh or fish",
                                    .help = help,
                                    .options = rows,
                                    .more_help = more_help,
                                    .run = run};
