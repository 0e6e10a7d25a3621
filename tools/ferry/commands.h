/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_COMMANDS_H
#define FERRY_TOOL_COMMANDS_H

#include <stdbool.h>
#include <stddef.h>

/* The exit status of every command: done, the work failed (one sentence on stderr), wrong usage. */
enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };
/* Of a command that compares, as of cmp and diff. */
enum { EXIT_DIFFERENT = 1, EXIT_TROUBLE = 2 };

/* One subcommand. The help text is also the body of its man page. */
typedef struct command {
    const char *name;
    const char *group; /* the heading that it stands under in `ferry --help` */
    const char *summary;
    const char *help; /* up to the options */
    const struct option_row *options;
    const char *more_help;             /* behind them */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name */
    bool starts_program;               /* what follows its first argument is a program's own */
    bool compares;                     /* its statuses are those of cmp and diff */
} command;

/* In the order of `ferry --help`, those of a group together. */
extern const command *const commands[];
extern const size_t n_commands;

extern const command command_plan;
extern const command command_simulate;
extern const command command_draw;
extern const command command_run;
extern const command command_reshard;
extern const command command_inspect;
extern const command command_verify;
extern const command command_launch;
extern const command command_bench;
extern const command command_tune;
extern const command command_info;
extern const command command_completion;

/* "ferry plan: <sentence>" on stderr; returns EXIT_FAILED. */
int fail(const char *name, const char *sentence);

/* The same for wrong usage, with a pointer to --help; returns EXIT_USAGE. */
int fail_usage(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
