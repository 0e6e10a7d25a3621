/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"

#include <ferry/ferry.h>

#include <stdio.h>

static const char help[] =
    "Usage: ferry info\n"
    "\n"
    "Prints the version and every FERRY_* variable with its value and meaning.\n"
    "\n"
    "Options:\n"
    "  --help       this text\n";

static int run(int argc, char **argv)
{
    if (argc > 1) {
        return fail_usage("info", "\"%s\" is not understood", argv[1]);
    }
    printf("ferry %s\n\n", ferry_version());
    for (size_t i = 0; i < ferry_config_count(); i++) {
        const char *name, *meaning, *value;
        ferry_error error;
        if (ferry_config_at(i, &name, &meaning, &value, &error) != FERRY_OK) {
            return fail("info", error.message);
        }
        printf("%-12s %-10s %s\n", name, value == NULL ? "(unset)" : value, meaning);
    }
    return EXIT_DONE;
}

const command command_info = {
    .name = "info", .summary = "version and settings", .help = help, .run = run};
