/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The arguments of `ferry run`. */
#include "run.h"

#include "arguments.h"
#include "commands.h"
#include "output.h"

#include <stdlib.h>
#include <string.h>

enum {
    OPT_ITERATIONS = 256,
    OPT_VERIFY,
    OPT_CHECKSUM,
    OPT_COMMIT,
    OPT_MEMORY,
    OPT_MEMORY_CAP,
    OPT_THREADS,
    OPT_DEADLINE,
    OPT_PATHS,
    OPT_TRACE,
    OPT_HTML,
    OPT_JSON,
    OPT_STARTED
};

const option_row run_option_rows[] = {
    OPTION("iterations", "N", OPT_ITERATIONS,
           "runs that are timed, after one that is not; default 5"),
    OPTION_WORDS(
        "ends each none", "verify", "WHEN", OPT_VERIFY,
        "compare every byte after the first and the last run (ends, the default), after each, or "
        "none. Destinations are filled with wrong bytes before"),
    OPTION_WORDS(
        "none path end", "checksum", "KIND", OPT_CHECKSUM,
        "what the runs check by themselves: none (default); path, what passes through a transport; "
        "or end, every destination read again"),
    OPTION_WORDS(
        "in-place swap", "commit", "HOW", OPT_COMMIT,
        "in-place (default): a run writes into the destination; or swap: into a second buffer, "
        "which takes the place of the first when all is there, for as much memory again"),
    OPTION_WORDS(
        "ferry malloc cuda far", "memory", "KIND", OPT_MEMORY,
        "where shards lie: ferry (default), memory that other ranks reach best; malloc, plain "
        "memory as a program has it; cuda, memory of NVIDIA devices, which the ranks of a node "
        "take "
        "in turn; or far, the test kind"),
    OPTION("memory-cap", "SIZE", OPT_MEMORY_CAP,
           "the most memory of a rank for slots, through which bytes go that cannot be written to "
           "their places directly; default 64M"),
    SLOT_BYTES_ROW(", or less as the cap asks"),
    OPTION("threads", "N", OPT_THREADS,
           "threads that copy, of each rank; default a fair share of the cores"),
    OPTION(
        "deadline", "SECONDS", OPT_DEADLINE,
        "how long a rank may show no sign of life; default 10. It is given up as lost after four "
        "fifths of this, so that all know within the whole"),
    TRANSPORT_ROW(INPROC_TEXT),
    OPTION("paths", "LIST", OPT_PATHS,
           "the ways that bytes may take: auto (default), or some of mapped, remote and staged, "
           "with commas. What stays on its rank is local, and where none of these is possible "
           "bytes are staged"),
    NO_RELAYS_ROW,
    REPLICA_ROW,
    PATTERN_ROWS("destination tensors"),
    OPTION(
        "trace", "FILE", OPT_TRACE,
        "write the timelines of the plan's schedule and of the last run, side by side, to FILE: a "
        "Chrome trace, which opens in Perfetto"),
    OPTION("html", "FILE", OPT_HTML,
           "write a report to FILE: one HTML page, which fetches nothing, with what was measured "
           "beside what is predicted, and what the report of ferry plan --schedule has"),
    OPTION_LOUDNESS,
    OPTION("json", NULL, OPT_JSON, "print JSON instead (ferry.run/1)"),
    JOIN_ROW,
    OPTION_HIDDEN("started", OPT_STARTED),
    OPTION_END};

static const option_word verifies[] = {
    {"ends", RUN_VERIFY_ENDS}, {"each", RUN_VERIFY_EACH}, {"none", RUN_VERIFY_NONE}, {NULL, 0}};
static const option_word checksums[] = {{"none", FERRY_CHECKSUM_NONE},
                                        {"path", FERRY_CHECKSUM_PATH},
                                        {"end", FERRY_CHECKSUM_END},
                                        {NULL, 0}};
static const option_word commits[] = {
    {"in-place", FERRY_COMMIT_IN_PLACE}, {"swap", FERRY_COMMIT_SWAP}, {NULL, 0}};
static const option_word memories[] = {{"ferry", RUN_MEMORY_FERRY},
                                       {"malloc", RUN_MEMORY_MALLOC},
                                       {"cuda", RUN_MEMORY_CUDA},
                                       {"far", RUN_MEMORY_FAR},
                                       {NULL, 0}};
static const option_word paths[] = {{"auto", 0},
                                    {"local", FERRY_PATH_LOCAL},
                                    {"mapped", FERRY_PATH_MAPPED},
                                    {"remote", FERRY_PATH_REMOTE},
                                    {"staged", FERRY_PATH_STAGED},
                                    {NULL, 0}};

static int parse_deadline(run_request *r)
{
    char *end;
    r->deadline = strtod(optarg, &end);
    if (end == optarg || *end != '\0' || !(r->deadline > 0) || r->deadline > 86400) {
        return fail_usage("run", "--deadline takes seconds above 0 and up to 86400, not \"%s\"",
                          optarg);
    }
    return EXIT_DONE;
}

/* "mapped,staged" */
static int parse_paths(run_request *r)
{
    uint32_t flags = 0;
    for (const char *at = optarg;; at++) {
        size_t length = strcspn(at, ",");
        uint32_t flag = 0;
        if (!find_word(paths, at, length, &flag)) {
            return fail_usage("run",
                              "--paths takes auto, or some of mapped, remote, staged and local "
                              "with commas between them, not \"%s\"",
                              optarg);
        }
        flags |= flag == 0 ? FERRY_PATH_ALL : flag;
        at += length;
        if (*at == '\0') {
            break;
        }
    }
    r->service.paths = flags;
    r->paths = optarg;
    return EXIT_DONE;
}

static int apply_service_option(int option, run_request *r)
{
    switch (option) {
    case OPT_CHECKSUM:
        return parse_word("run", "--checksum", checksums, optarg, &r->service.checksum);
    case OPT_COMMIT:
        return parse_word("run", "--commit", commits, optarg, &r->service.commit);
    case OPT_MEMORY:
        return parse_word("run", "--memory", memories, optarg, &r->memory);
    case OPT_MEMORY_CAP:
        return parse_size("run", "--memory-cap", optarg, &r->service.memory_cap);
    case SHARED_OPT_SLOT_BYTES:
        return parse_size("run", "--slot-bytes", optarg, &r->service.slot_bytes);
    case OPT_THREADS:
        return parse_count("run", "--threads", optarg, MOST_COPY_THREADS, &r->service.n_threads);
    case SHARED_OPT_TRANSPORT:
        r->service.engines = optarg;
        return EXIT_DONE;
    case OPT_PATHS:
        return parse_paths(r);
    case SHARED_OPT_NO_RELAYS:
        r->service.no_relays = true;
        return EXIT_DONE;
    default:
        return EXIT_USAGE;
    }
}

static int apply_option(int option, void *request)
{
    run_request *r = request;
    switch (option) {
    case OPT_ITERATIONS:
        return parse_count("run", "--iterations", optarg, 1000000, &r->iterations);
    case OPT_VERIFY:
        return parse_word("run", "--verify", verifies, optarg, &r->verify);
    case OPT_DEADLINE:
        return parse_deadline(r);
    case SHARED_OPT_REPLICA:
    case SHARED_OPT_INCLUDE:
    case SHARED_OPT_EXCLUDE:
    case SHARED_OPT_SUBSET:
        r->has_planning_option = true;
        return apply_planning_option("run", option, &r->planning);
    case OPT_TRACE:
        r->trace = optarg;
        return *optarg != '\0' ? EXIT_DONE : fail_usage("run", "--trace takes the name of a file");
    case OPT_HTML:
        r->html = optarg;
        return *optarg != '\0' ? EXIT_DONE : fail_usage("run", "--html takes the name of a file");
    case OPT_JSON:
        r->json = true;
        return EXIT_DONE;
    case OPT_STARTED:
        r->started = true;
        r->join = true;
        return EXIT_DONE;
    case SHARED_OPT_JOIN:
        r->join = true;
        return EXIT_DONE;
    default:
        return apply_service_option(option, r);
    }
}

static int check_outputs(const run_request *r)
{
    note_input(r->path);
    int status = check_output("run", "--trace", r->trace);
    return status == EXIT_DONE ? check_output("run", "--html", r->html) : status;
}

int run_parse_arguments(int argc, char **argv, run_request *request_out)
{
    run_request r = {.iterations = 5,
                     .planning = FERRY_PLAN_OPTIONS_INIT,
                     .service = FERRY_SERVICE_OPTIONS_INIT};
    int status = parse_options(&command_run, argc, argv, apply_option, &r);
    if (status != EXIT_DONE) {
        return status;
    }
    if (optind + 1 != argc) {
        return fail_usage("run", "%s",
                          optind == argc ? "a spec is missing" : "there is more than one spec");
    }
    r.path = argv[optind];
    r.join = r.join || (getenv("RANK") != NULL && getenv("WORLD_SIZE") != NULL);
    *request_out = r;
    return may_write_outputs(r.join) ? check_outputs(&r) : EXIT_DONE;
}
