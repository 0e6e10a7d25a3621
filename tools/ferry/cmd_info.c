/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"
#include "json_text.h"
#include "machine_text.h"
#include "options.h"
#include "steps.h"

#include <ferry/ferry.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "Usage: ferry info [OPTION]...\n"
    "\n"
    "Prints what ferry can do here: the version, the engines and the kinds of memory, and why one\n"
    "is missing, how bytes get from each kind to each at a peer, the limits of this machine, and\n"
    "every FERRY_* variable with its value and meaning. The rate of copying in memory is "
    "measured,\n"
    "which takes about half a second.\n";

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

/*
 * A plugin is looked for in the same folders whatever it is called, and these may be many: they are
 * said with the first that is not there.
 */
static void print_why_not(const char *why_not, bool *folders_are_said)
{
    const char *folders = strstr(why_not, ".so is not in ");
    bool is_short = folders != NULL && *folders_are_said;
    *folders_are_said = *folders_are_said || folders != NULL;
    printf("%.*s%s\n", is_short ? (int)(folders - why_not) : (int)strlen(why_not), why_not,
           is_short ? ".so is not there, either" : "");
}

static ferry_status print_engines(bool *folders_are_said, ferry_error *error)
{
    printf("\nEngines:\n");
    for (size_t i = 0; i < ferry_engine_count(); i++) {
        engine e;
        FY_TRY(engine_at(i, &e, error));
        printf("  %-8s %-12s %s\n", e.name, e.available ? "available" : "missing", e.summary);
        if (!e.available) {
            printf("  %-8s %-12s ", "", "");
            print_why_not(e.why_not, folders_are_said);
        }
    }
    return FERRY_OK;
}

/*
 * Kinds of memory, and how bytes get from one to another
 */

typedef struct kind {
    const char *name;
    const char *summary;
    const char *why_not;
    uint32_t n_devices;
} kind;

static ferry_status kind_at(size_t index, kind *kind_out, ferry_error *error)
{
    return ferry_memory_kind_at(index, &kind_out->name, &kind_out->summary, &kind_out->n_devices,
                                &kind_out->why_not, error);
}

static ferry_status print_kinds(bool *folders_are_said, ferry_error *error)
{
    printf("\nMemory:\n");
    for (size_t i = 0; i < ferry_memory_kind_count(); i++) {
        kind k;
        FY_TRY(kind_at(i, &k, error));
        printf("  %-8s %-12s %s\n", k.name, k.n_devices > 0 ? "available" : "missing", k.summary);
        if (k.n_devices == 0) {
            printf("  %-8s %-12s ", "", "");
            print_why_not(k.why_not, folders_are_said);
        }
    }
    return FERRY_OK;
}

static const char *const peer_names[FERRY_PEER_CLASSES] = {"self", "thread", "node", "remote"};
static const char *const way_names[] = {"none", "direct", "device", "staged"};

/* One cell of the matrix. */
typedef struct choice {
    ferry_peer_class peer;
    const char *source, *target; /* names of kinds */
    const char *engine;
    const char *way;
    ferry_error why_not; /* empty: it is there */
} choice;

typedef ferry_status (*choice_fn)(const choice *c, void *context, ferry_error *error);

/* All pairs of kinds that have a device here, for one class of peers. */
static ferry_status visit_choices(ferry_peer_class peer, choice_fn visit, void *context,
                                  ferry_error *error)
{
    size_t n = ferry_memory_kind_count();
    for (size_t i = 0; i < n * n; i++) {
        kind source, target;
        ferry_way way = FERRY_WAY_NONE;
        FY_TRY(kind_at(i / n, &source, error));
        FY_TRY(kind_at(i % n, &target, error));
        if (source.n_devices == 0 || target.n_devices == 0) {
            continue;
        }
        choice c = {.peer = peer, .source = source.name, .target = target.name};
        ferry_status status =
            ferry_engine_choose(peer, (ferry_memory_kind)(i / n), (ferry_memory_kind)(i % n),
                                &c.engine, &way, &c.why_not);
        if (status == FERRY_OK) {
            c.why_not.message[0] = '\0';
        } else if (status != FERRY_ERR_UNSUPPORTED) {
            *error = c.why_not;
            return status;
        }
        c.way = way_names[way];
        FY_TRY(visit(&c, context, error));
    }
    return FERRY_OK;
}

static ferry_status print_title(const choice *c, void *context, ferry_error *error)
{
    char title[32];
    (void)context;
    (void)error;
    snprintf(title, sizeof title, "%s-%s", c->source, c->target);
    printf("  %10s", title);
    return FERRY_OK;
}

static ferry_status print_cell(const choice *c, void *context, ferry_error *error)
{
    bool *first = context;
    (void)error;
    if (*first) {
        printf("  %-8s %-8s", peer_names[c->peer], c->engine[0] == '\0' ? "-" : c->engine);
    }
    *first = false;
    printf("  %10s", c->why_not.message[0] == '\0' ? c->way : "missing");
    return FERRY_OK;
}

static ferry_status print_choices(ferry_error *error)
{
    puts("\nPuts, from a kind of memory here to a kind there, by where the peer is:");
    printf("  %-8s %-8s", "peer", "engine");
    FY_TRY(visit_choices(FERRY_PEER_SELF, print_title, NULL, error));
    putchar('\n');
    for (int peer = 0; peer < FERRY_PEER_CLASSES; peer++) {
        bool first = true;
        FY_TRY(visit_choices((ferry_peer_class)peer, print_cell, &first, error));
        putchar('\n');
    }
    puts("  direct: the engine does it all. device: a device's own copy. staged: by way of host "
         "memory.\n"
         "  none: it cannot be put; ferry copies it all the same in services and collectives.");
    return FERRY_OK;
}

static ferry_status print_kinds_json(ferry_error *error)
{
    for (size_t i = 0; i < ferry_memory_kind_count(); i++) {
        kind k;
        FY_TRY(kind_at(i, &k, error));
        printf("%s{\"name\":", i == 0 ? "" : ",");
        print_json_text(k.name);
        printf(",\"summary\":");
        print_json_text(k.summary);
        printf(",\"devices\":%u,\"why_not\":", (unsigned)k.n_devices);
        print_json_text(k.n_devices > 0 ? NULL : k.why_not);
        putchar('}');
    }
    return FERRY_OK;
}

static ferry_status print_cell_json(const choice *c, void *context, ferry_error *error)
{
    bool *first = context;
    (void)error;
    printf("%s{\"peer\":", *first ? "" : ",");
    *first = false;
    print_json_text(peer_names[c->peer]);
    printf(",\"source\":");
    print_json_text(c->source);
    printf(",\"target\":");
    print_json_text(c->target);
    printf(",\"engine\":");
    print_json_text(c->engine[0] == '\0' ? NULL : c->engine);
    printf(",\"way\":");
    print_json_text(c->way);
    printf(",\"why_not\":");
    print_json_text(c->why_not.message[0] == '\0' ? NULL : c->why_not.message);
    putchar('}');
    return FERRY_OK;
}

static ferry_status print_choices_json(ferry_error *error)
{
    bool first = true;
    ferry_status status = FERRY_OK;
    for (int peer = 0; peer < FERRY_PEER_CLASSES; peer++) {
        FY_THEN(status, visit_choices((ferry_peer_class)peer, print_cell_json, &first, error));
    }
    return status;
}

static ferry_status print_variables(ferry_error *error)
{
    const char *name, *meaning, *value;
    int name_width = 0, value_width = 7;
    printf("\nVariables:\n");
    for (size_t i = 0; i < ferry_config_count(); i++) {
        FY_TRY(ferry_config_at(i, &name, &meaning, &value, error));
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

typedef void (*device_fn)(const kind *k, uint32_t device, const char *text, void *context);

/* Devices that can say something of themselves. */
static ferry_status visit_devices(ferry_memory_kind number, const kind *k, device_fn visit,
                                  void *context, ferry_error *error)
{
    for (uint32_t device = 0; device < k->n_devices; device++) {
        const char *text = "";
        FY_TRY(ferry_memory_device_at(number, (int32_t)device, &text, error));
        if (text[0] != '\0') {
            visit(k, device, text, context);
        }
    }
    return FERRY_OK;
}

static void print_device(const kind *k, uint32_t device, const char *text, void *context)
{
    (void)k;
    (void)context;
    printf("  %-8s %u: %s\n", "", device, text);
}

static void print_device_json(const kind *k, uint32_t device, const char *text, void *context)
{
    bool *first = context;
    printf("%s{\"kind\":", *first ? "" : ",");
    *first = false;
    print_json_text(k->name);
    printf(",\"device\":%u,\"summary\":", device);
    print_json_text(text);
    putchar('}');
}

static ferry_status print_devices_json(ferry_error *error)
{
    bool first = true;
    for (size_t i = 0; i < ferry_memory_kind_count(); i++) {
        kind k;
        FY_TRY(kind_at(i, &k, error));
        FY_TRY(visit_devices((ferry_memory_kind)i, &k, print_device_json, &first, error));
    }
    return FERRY_OK;
}

/* Of what is no memory of the host's. */
static ferry_status print_devices(bool *folders_are_said, ferry_error *error)
{
    printf("\nDevices:\n");
    for (size_t i = 0; i < ferry_memory_kind_count(); i++) {
        kind k;
        FY_TRY(kind_at(i, &k, error));
        if (i == FERRY_MEMORY_CUDA || (i != FERRY_MEMORY_HOST && k.n_devices > 0)) {
            printf("  %-8s %u%s", k.name, (unsigned)k.n_devices, k.n_devices > 0 ? "\n" : ": ");
            if (k.n_devices == 0) {
                print_why_not(k.why_not, folders_are_said);
            }
            FY_TRY(visit_devices((ferry_memory_kind)i, &k, print_device, NULL, error));
        }
    }
    return FERRY_OK;
}

static ferry_status print_text(const ferry_machine *machine, ferry_error *error)
{
    printf("ferry %s\n", ferry_version());
    bool folders_are_said = false;
    FY_TRY(print_engines(&folders_are_said, error));
    FY_TRY(print_kinds(&folders_are_said, error));
    FY_TRY(print_choices(error));
    printf("\nMachine:\n");
    print_machine(machine);
    FY_TRY(print_devices(&folders_are_said, error));
    return print_variables(error);
}

static ferry_status print_engines_json(ferry_error *error)
{
    for (size_t i = 0; i < ferry_engine_count(); i++) {
        engine e;
        FY_TRY(engine_at(i, &e, error));
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
        FY_TRY(ferry_config_at(i, &name, &meaning, &value, error));
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
    printf("],\"memory\":[");
    FY_THEN(status, print_kinds_json(error));
    printf("],\"puts\":[");
    FY_THEN(status, print_choices_json(error));
    printf("],\"machine\":");
    print_machine_json(machine);
    printf(",\"devices\":[");
    FY_THEN(status, print_devices_json(error));
    printf("],\"variables\":[");
    FY_THEN(status, print_variables_json(error));
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
    FY_THEN(status, r.json ? print_json(&machine, &error) : print_text(&machine, &error));
    return status == FERRY_OK ? EXIT_DONE : fail("info", error.message);
}

const command command_info = {.name = "info",
                              .group = "Ranks and machines",
                              .summary = "show engines, limits of this machine, and settings",
                              .help = help,
                              .options = rows,
                              .more_help = more_help,
                              .run = run};
