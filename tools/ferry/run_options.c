/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The arguments of `ferry run`. */
#include "run.h"

#include "arguments.h"
#include "commands.h"

#include <stdlib.h>
#include <string.h>

enum {
    OPT_ITERATIONS = 256,
    OPT_VERIFY,
    OPT_CHECKSUM,
    OPT_COMMIT,
    OPT_MEMORY,
    OPT_MEMORY_CAP,
    OPT_SLOT_BYTES,
    OPT_THREADS,
    OPT_DEADLINE,
    OPT_TRANSPORT,
    OPT_PATHS,
    OPT_NO_RELAYS,
    OPT_REPLICA,
    OPT_SUBSET,
    OPT_TRACE,
    OPT_JSON,
    OPT_JOIN,
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
        "in-place (default), or swap: a run writes to a second buffer, which takes as much memory "
        "again"),
    OPTION_WORDS(
        "ferry malloc", "memory", "KIND", OPT_MEMORY,
        "where shards lie: ferry (default), memory that other ranks reach best, or malloc, plain "
        "memory as a program has it"),
    OPTION("memory-cap", "SIZE", OPT_MEMORY_CAP,
           "the most memory of a rank for staging; default 64M"),
    OPTION("slot-bytes", "SIZE", OPT_SLOT_BYTES,
           "the most bytes of a batch; default 16M, or less as the cap asks"),
    OPTION("threads", "N", OPT_THREADS,
           "threads that copy, of each rank; default a fair share of the cores"),
    OPTION("deadline", "SECONDS", OPT_DEADLINE,
           "how long a rank may show no sign of life; default 10"),
    OPTION_WORDS(
        "shm ucx inproc", "transport", "ENGINE", OPT_TRANSPORT,
        "the engine, such as shm or ucx, with wrappers such as strict:shm; the default is the best "
        "for each pair. With inproc the ranks are threads of one process"),
    OPTION(
        "paths", "LIST", OPT_PATHS,
        "the ways that bytes may take: auto (default), or some of mapped, attach, remote and "
        "staged, with commas. What stays on its rank is local, and where none of these is possible "
        "bytes are staged"),
    OPTION("no-relays", NULL, OPT_NO_RELAYS, "every byte comes from its move's own sender"),
    OPTION_WORDS("balanced seed", "replica", "POLICY", OPT_REPLICA,
                 "as in ferry plan: balanced (default) or seed"),
    OPTION("subset", "PATTERN", OPT_SUBSET,
           "only destination tensors whose names fit (* any text, ? one byte)"),
    OPTION(
        "trace", "FILE", OPT_TRACE,
        "write the timelines of the plan's schedule and of the last run, side by side, to FILE: a "
        "Chrome trace, which opens in Perfetto"),
    OPTION("json", NULL, OPT_JSON, "print ferry.run/1 for machines"),
    OPTION(
        "join", NULL, OPT_JOIN,
        "start no ranks: be one of a world that mpirun, srun or another launcher has started. With "
        "RANK and WORLD_SIZE in the environment, as under ferry launch, this is so by itself"),
    OPTION_HIDDEN("started", OPT_STARTED),
    OPTION_END};

typedef struct word {
    const char *text;
    uint32_t    value;
} word;

static const word verifies[] = {
    {"ends", RUN_VERIFY_ENDS}, {"each", RUN_VERIFY_EACH}, {"none", RUN_VERIFY_NONE}, {NULL, 0}};
static const word checksums[] = {{"none", FERRY_CHECKSUM_NONE},
                                 {"path", FERRY_CHECKSUM_PATH},
                                 {"end", FERRY_CHECKSUM_END},
                                 {NULL, 0}};
static const word commits[]   = {
      {"in-place", FERRY_COMMIT_IN_PLACE}, {"swap", FERRY_COMMIT_SWAP}, {NULL, 0}};
static const word memories[] = {{"ferry", 0}, {"malloc", 1}, {NULL, 0}};
static const word replicas[] = {
    {"balanced", FERRY_REPLICA_BALANCED}, {"seed", FERRY_REPLICA_SEED}, {NULL, 0}};
static const word paths[] = {{"auto", 0},
                             {"local", FERRY_PATH_LOCAL},
                             {"mapped", FERRY_PATH_MAPPED},
                             {"attach", FERRY_PATH_ATTACH},
                             {"remote", FERRY_PATH_REMOTE},
                             {"staged", FERRY_PATH_STAGED},
                             {NULL, 0}};

static bool find_word(const word *words, const char *text, size_t length, uint32_t *value_out)
{
    for (; words->text != NULL; words++) {
        if (strlen(words->text) == length && strncmp(words->text, text, length) == 0) {
            *value_out = words->value;
            return true;
        }
    }
    return false;
}

/* choices are the words as the sentence lists them. */
static int parse_word(const char *option, const word *words, const char *choices,
                      uint32_t *value_out)
{
    if (find_word(words, optarg, strlen(optarg), value_out)) {
        return EXIT_DONE;
    }
    return fail_usage("run", "%s takes %s, not \"%s\"", option, choices, optarg);
}

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
        size_t   length = strcspn(at, ",");
        uint32_t flag   = 0;
        if (!find_word(paths, at, length, &flag)) {
            return fail_usage("run",
                              "--paths takes auto, or some of mapped, attach, remote, staged and "
                              "local with commas between them, not \"%s\"",
                              optarg);
        }
        flags |= flag == 0 ? FERRY_PATH_ALL : flag;
        at += length;
        if (*at == '\0') {
            break;
        }
    }
    r->service.paths = flags;
    r->paths         = optarg;
    return EXIT_DONE;
}

static int apply_service_option(int option, run_request *r)
{
    uint32_t plain  = 0;
    int      status = EXIT_DONE;
    switch (option) {
    case OPT_CHECKSUM:
        return parse_word("--checksum", checksums, "none, path or end", &r->service.checksum);
    case OPT_COMMIT:
        return parse_word("--commit", commits, "in-place or swap", &r->service.commit);
    case OPT_MEMORY:
        status          = parse_word("--memory", memories, "ferry or malloc", &plain);
        r->plain_memory = plain != 0;
        return status;
    case OPT_MEMORY_CAP:
        return parse_size("run", "--memory-cap", optarg, &r->service.memory_cap);
    case OPT_SLOT_BYTES:
        return parse_size("run", "--slot-bytes", optarg, &r->service.slot_bytes);
    case OPT_THREADS:
        return parse_count("run", "--threads", optarg, MOST_COPY_THREADS, &r->service.n_threads);
    case OPT_TRANSPORT:
        r->service.engines = optarg;
        return EXIT_DONE;
    case OPT_PATHS:
        return parse_paths(r);
    case OPT_NO_RELAYS:
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
        return parse_word("--verify", verifies, "ends, each or none", &r->verify);
    case OPT_DEADLINE:
        return parse_deadline(r);
    case OPT_REPLICA:
        r->has_planning_option = true;
        return parse_word("--replica", replicas, "balanced or seed", &r->planning.replica);
    case OPT_SUBSET:
        r->has_planning_option = true;
        r->planning.subset     = optarg;
        return EXIT_DONE;
    case OPT_TRACE:
        r->trace = optarg;
        return *optarg != '\0' ? EXIT_DONE : fail_usage("run", "--trace takes the name of a file");
    case OPT_JSON:
        r->json = true;
        return EXIT_DONE;
    case OPT_STARTED:
        r->started = true;
        r->join    = true;
        return EXIT_DONE;
    case OPT_JOIN:
        r->join = true;
        return EXIT_DONE;
    default:
        return apply_service_option(option, r);
    }
}

int run_parse_arguments(int argc, char **argv, run_request *request_out)
{
    run_request r      = {.iterations = 5,
                          .planning   = FERRY_PLAN_OPTIONS_INIT,
                          .service    = FERRY_SERVICE_OPTIONS_INIT};
    int         status = parse_options(&command_run, argc, argv, apply_option, &r);
    if (status != EXIT_DONE) {
        return status;
    }
    if (optind + 1 != argc) {
        return fail_usage("run", "%s",
                          optind == argc ? "a spec is missing" : "there is more than one spec");
    }
    r.path       = argv[optind];
    *request_out = r;
    return EXIT_DONE;
}
