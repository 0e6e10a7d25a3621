/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The arguments of `ferry launch`. */
#include "launch.h"

#include "arguments.h"
#include "commands.h"

#include <ferry/ferry.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_NODES = 256,
    OPT_TRANSPORT,
    OPT_DEADLINE,
    OPT_JOIN_LIMIT,
    OPT_WORLD,
    OPT_FIRST_RANK,
    OPT_MASTER,
    OPT_TAG,
    OPT_GRACE
};

const option_row launch_option_rows[] = {
    {.letter = 'n', .value = "N", .id = 'n', .text = "how many ranks to start here"},
    OPTION(
        "tag", NULL, OPT_TAG,
        "put [rank] before every line of output; without it, the ranks write to the launcher's own "
        "output"),
    OPTION("grace", "SECONDS", OPT_GRACE,
           "time between SIGTERM and SIGKILL when all are ended; default 5"),
    OPTION("nodes", "NODES", OPT_NODES,
           "treat the ranks as that many nodes (2), or as nodes of these sizes (3,5): sets "
           "FERRY_NODES"),
    OPTION_WORDS("shm ucx inproc", "transport", "ENGINE", OPT_TRANSPORT,
                 "the engine that carries bytes: sets FERRY_TRANSPORT"),
    OPTION("deadline", "SECONDS", OPT_DEADLINE,
           "how long a rank may show no sign of life: sets FERRY_DEADLINE"),
    OPTION("join-limit", "SECONDS", OPT_JOIN_LIMIT,
           "how long the ranks wait for each other at the start: sets FERRY_JOIN_LIMIT"),
    OPTION_HEADING("Several hosts"),
    OPTION_NOTE("  On each host a launcher starts its part. FERRY_SECRET must be set to the same "
                "everywhere,\n"
                "  or anybody who reaches the port can join.\n"),
    OPTION("master", "ADDRESS", OPT_MASTER,
           "HOST:PORT: where rank 0 runs, and a port that is free there"),
    OPTION("world", "N", OPT_WORLD, "how many ranks there are on all hosts"),
    OPTION("first-rank", "R", OPT_FIRST_RANK, "the first of those that start here; default 0"),
    OPTION_END};

static int read_count(const char *option, const char *text, uint32_t least, uint32_t *value_out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < least ||
        value > FERRY_MAX_RANKS) {
        return fail_usage("launch", "%s takes a number from %u to %u, not \"%s\"", option, least,
                          (unsigned)FERRY_MAX_RANKS, text);
    }
    *value_out = (uint32_t)value;
    return EXIT_DONE;
}

static int parse_grace(const char *text, double *seconds_out)
{
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end != '\0' || !(seconds >= 0) || seconds > 86400) {
        return fail_usage("launch", "--grace takes seconds from 0 to 86400, not \"%s\"", text);
    }
    *seconds_out = seconds;
    return EXIT_DONE;
}

/* HOST:PORT, where an address with colons stands in brackets. Cuts the text in two. */
static int parse_master(char *text, launch_request *r)
{
    char *colon = strrchr(text, ':');
    char *host = text;
    bool good = colon != NULL && colon != text;
    if (good) {
        char *end;
        unsigned long port = strtoul(colon + 1, &end, 10);
        good = colon[1] >= '0' && colon[1] <= '9' && *end == '\0' && port > 0 && port < 65536;
    }
    if (good && host[0] == '[') {
        good = colon[-1] == ']' && colon - host > 2;
    } else if (good) {
        good = memchr(host, ':', (size_t)(colon - host)) == NULL;
    }
    if (!good) {
        return fail_usage(
            "launch",
            "--master takes HOST:PORT, such as node1:29500 or [fd00::1]:29500, not \"%s\"", text);
    }
    *colon = '\0';
    if (host[0] == '[') {
        host++;
        colon[-1] = '\0';
    }
    r->master_host = host;
    r->master_port = colon + 1;
    return EXIT_DONE;
}

/* The option stands for a variable: the library says whether its value is one. */
static int set_variable(const char *option, const char *name, const char *value)
{
    ferry_error error;
    if (setenv(name, value, 1) != 0) {
        return fail("launch", "out of memory");
    }
    return ferry_config_check(&error) == FERRY_OK
               ? EXIT_DONE
               : fail_usage("launch", "%s: %s", option, error.message);
}

typedef struct launch_arguments {
    launch_request request;
    bool has_first_rank; /* 0 is said by saying nothing, too */
    const char *nodes;   /* what --nodes says, or NULL */
} launch_arguments;

static int apply_option(int option, void *arguments)
{
    launch_arguments *a = arguments;
    launch_request *r = &a->request;
    switch (option) {
    case 'n':
        return read_count("-n", optarg, 1, &r->n_ranks);
    case OPT_NODES:
        a->nodes = optarg;
        return set_variable("--nodes", "FERRY_NODES", optarg);
    case OPT_TRANSPORT:
        return set_variable("--transport", "FERRY_TRANSPORT", optarg);
    case OPT_DEADLINE:
        return set_variable("--deadline", "FERRY_DEADLINE", optarg);
    case OPT_JOIN_LIMIT:
        return set_variable("--join-limit", "FERRY_JOIN_LIMIT", optarg);
    case OPT_WORLD:
        return read_count("--world", optarg, 1, &r->n_world);
    case OPT_FIRST_RANK:
        a->has_first_rank = true;
        return read_count("--first-rank", optarg, 0, &r->first_rank);
    case OPT_MASTER:
        return parse_master(optarg, r);
    case OPT_TAG:
        r->tag = true;
        return EXIT_DONE;
    case OPT_GRACE:
        return parse_grace(optarg, &r->grace_seconds);
    default:
        return EXIT_USAGE;
    }
}

/*
 * Each rank would find it when it makes its world, after it has loaded its model perhaps. The text
 * is whole numbers with commas between them. A rank alone is on the first of any number of nodes,
 * since others may join it. by: who says it.
 */
static int check_nodes(const char *by, const char *nodes, uint32_t n_ranks)
{
    uint64_t sum = 0, n_numbers = 0;
    for (const char *at = nodes; at != NULL; n_numbers++) {
        sum += strtoull(at, NULL, 10);
        at = strchr(at, ',');
        at = at == NULL ? NULL : at + 1;
    }
    if (n_numbers > 1 && sum != n_ranks) {
        return fail_usage("launch", "%s %s places %llu ranks, but there are %u; let it place these",
                          by, nodes, (unsigned long long)sum, n_ranks);
    }
    uint64_t each = n_numbers == 1 && n_ranks > 1 ? (n_ranks + sum - 1) / sum : 0;
    uint64_t filled = each == 0 ? sum : (n_ranks + each - 1) / each;
    if (filled < sum) {
        return fail_usage("launch",
                          "%s %s: %u ranks, %llu to a node, fill %llu nodes; give the ranks of "
                          "each node, such as 3,5",
                          by, nodes, n_ranks, (unsigned long long)each, (unsigned long long)filled);
    }
    return EXIT_DONE;
}

/* What each option may say was checked; this is what they say together. */
static int check_together(launch_request *r, bool has_first_rank, const char *nodes)
{
    if (r->n_ranks == 0) {
        return fail_usage("launch", "-n is missing: how many ranks to start");
    }
    if (r->program[0] == NULL) {
        return fail_usage("launch", "a program is missing");
    }
    if (r->master_host == NULL && (r->n_world != 0 || has_first_rank)) {
        return fail_usage("launch", "%s needs --master",
                          r->n_world != 0 ? "--world" : "--first-rank");
    }
    if (r->master_host != NULL && r->n_world == 0) {
        return fail_usage("launch", "--master needs --world");
    }
    if (r->n_world == 0) {
        r->n_world = r->n_ranks;
    }
    if (r->first_rank > r->n_world || r->n_ranks > r->n_world - r->first_rank) {
        return fail_usage("launch",
                          "-n %u ranks from --first-rank %u on do not fit into a --world of %u",
                          r->n_ranks, r->first_rank, r->n_world);
    }
    const char *inherited = getenv("FERRY_NODES"); /* what --nodes says, if it does */
    return nodes != NULL ? check_nodes("--nodes", nodes, r->n_world)
           : inherited != NULL
               ? check_nodes("FERRY_NODES of the environment", inherited, r->n_world)
               : EXIT_DONE;
}

int launch_parse_arguments(int argc, char **argv, launch_request *request_out)
{
    launch_arguments a = {{.name = "launch", .grace_seconds = LAUNCH_GRACE_SECONDS}, false, NULL};
    int status = parse_options(&command_launch, argc, argv, apply_option, &a);
    if (status != EXIT_DONE) {
        return status;
    }
    a.request.program = argv + optind;
    status = check_together(&a.request, a.has_first_rank, a.nodes);
    if (status == EXIT_DONE) {
        *request_out = a.request;
    }
    return status;
}
