/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"
#include "json_text.h"
#include "machine_text.h"
#include "options.h"

#include <ferry/ferry.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "Usage: ferry info [OPTION]...\n"
    "\n"
    "Prints what ferry can do here: the version, the engines and why one is missing, the limits\n"
    "of this machine, and every FERRY_* variable with its value and meaning. The rate of copying\n"
    "in memory is measured, which takes about half a second.\n";

static const char more_help[] =
    "\n"
    "Exit status:\n"
    "  0 done, 1 the work failed (one sentence on stderr), 2 wrong usage\n";

typedef struct info_request {
    bool json;
    bool measure;
} info_request;

enum { OPT_JSON = 256, OPT_NO_MEASURE };

static const option_row rows[] = {
    OPTION("json", NULL, OPT_JSON, "print JSON instead (ferry.info/1)"),
    OPTION("no-measure", NULL, OPT_NO_MEASURE, "measure nothing"), OPTION_END};

static const double MEASURE_SECONDS = 0.5;

static const char no_devices[] = "none looked for: this version moves bytes in host memory only";

typedef struct engine {
    const char *name;
    const char *summary;
    const char *why_not;
    bool available;
} engine;

static ferry_status engine_at(size_t index, engine *engine_out, ferry_error *error)
{
    return ferry_engine_at(index, &engine_out->name, &engine_out->summary, &engine_out->available,
                           &engine_out->why_not, error);
}

static ferry_status print_engines(ferry_error *error)
{
    printf("\nEngines:\n");
    for (size_t i = 0; i < ferry_engine_count(); i++) {
        engine e;
        ferry_status status = engine_at(i, &e, error);
        if (status != FERRY_OK) {
            return status;
        }
        printf("  %-8s %-12s %s\n", e.name, e.available ? "available" : "missing", e.summary);
        if (!e.available) {
            printf("  %-8s %-12s %s\n", "", "", e.why_not);
        }
    }
    return FERRY_OK;
}

static ferry_status print_variables(ferry_error *error)
{
    const char *name, *meaning, *value;
    int name_width = 0, value_width = 7;
    printf("\nVariables:\n");
    for (size_t i = 0; i < ferry_config_count(); i++) {
        ferry_status status = ferry_config_at(i, &name, &meaning, &value, error);
        if (status != FERRY_OK) {
            return status;
        }
        int width = (int)strlen(name);
        name_width = width > name_width ? width : name_width;
        width = value == NULL ? 0 : (int)strlen(value);
        if (width > value_width && width <= 24) { /* a long path shall not push all the others */
            value_width = width;
        }
    }
    for (size_t i = 0; i < ferry_config_count(); i++) {
        ferry_config_at(i, &name, &meaning, &value, NULL);
        printf("  %-*s  %-*s  %s\n", name_width, name, value_width,
               value == NULL ? "(unset)" : value, meaning);
    }
    return FERRY_OK;
}

static ferry_status print_text(const ferry_machine *machine, ferry_error *error)
{
    printf("ferry %s\n", ferry_version());
    ferry_status status = print_engines(error);
    if (status == FERRY_OK) {
        printf("\nMachine:\n");
        print_machine(machine);
        printf("\nDevices:\n  %s\n", no_devices);
        status = print_variables(error);
    }
    return status;
}

static ferry_status print_engines_json(ferry_error *error)
{
    for (size_t i = 0; i < ferry_engine_count(); i++) {
        engine e;
        ferry_status status = engine_at(i, &e, error);
        if (status != FERRY_OK) {
            return status;
        }
        printf("%s{\"name\":", i == 0 ? "" : ",");
        print_json_text(e.name);
        printf(",\"summary\":");
        print_json_text(e.summary);
        printf(",\"available\":%s,\"why_not\":", e.available ? "true" : "false");
        print_json_text(e.available ? NULL : e.why_not);
        putchar('}');
    }
    return FERRY_OK;
}

static ferry_status print_variables_json(ferry_error *error)
{
    for (size_t i = 0; i < ferry_config_count(); i++) {
        const char *name, *meaning, *value;
        ferry_status status = ferry_config_at(i, &name, &meaning, &value, error);
        if (status != FERRY_OK) {
            return status;
        }
        printf("%s{\"name\":", i == 0 ? "" : ",");
        print_json_text(name);
        printf(",\"value\":");
        print_json_text(value);
        printf(",\"meaning\":");
        print_json_text(meaning);
        putchar('}');
    }
    return FERRY_OK;
}

static ferry_status print_json(const ferry_machine *machine, ferry_error *error)
{
    printf("{\"format\":\"ferry.info/1\",\"version\":");
    print_json_text(ferry_version());
    printf(",\"engines\":[");
    ferry_status status = print_engines_json(error);
    printf("],\"machine\":");
    print_machine_json(machine);
    /* null, not []: nobody looked. */
    printf(",\"devices\":null,\"variables\":[");
    if (status == FERRY_OK) {
        status = print_variables_json(error);
    }
    printf("]}\n");
    return status;
}

static int apply_option(int option, void *request)
{
    info_request *r = request;
    r->json = r->json || option == OPT_JSON;
    r->measure = r->measure && option != OPT_NO_MEASURE;
    return EXIT_DONE;
}

static int run(int argc, char **argv)
{
    ferry_error error;
    ferry_machine machine = FERRY_MACHINE_INIT;
    info_request r = {.measure = true};
    int parsed = parse_options(&command_info, argc, argv, apply_option, &r);
    if (parsed != EXIT_DONE) {
        return parsed;
    }
    if (optind < argc) {
        return fail_usage("info", "takes no arguments, such as \"%s\"", argv[optind]);
    }
    ferry_status status = ferry_machine_probe(r.measure ? MEASURE_SECONDS : 0, &machine, &error);
    if (status == FERRY_OK) {
        status = r.json ? print_json(&machine, &error) : print_text(&machine, &error);
    }
    return status == FERRY_OK ? EXIT_DONE : fail("info", error.message);
}

const command command_info = {.name = "info",
                              .group = "Ranks and machines",
                              .summary = "show engines, limits of this machine, and settings",
                              .help = help,
                              .options = rows,
                              .more_help = more_help,
                              .run = run};
