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

static const struct option long_options[] = {
    {"iterations", required_argument, NULL, OPT_ITERATIONS},
    {"verify", required_argument, NULL, OPT_VERIFY},
    {"checksum", required_argument, NULL, OPT_CHECKSUM},
    {"commit", required_argument, NULL, OPT_COMMIT},
    {"memory", required_argument, NULL, OPT_MEMORY},
    {"memory-cap", required_argument, NULL, OPT_MEMORY_CAP},
    {"slot-bytes", required_argument, NULL, OPT_SLOT_BYTES},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"deadline", required_argument, NULL, OPT_DEADLINE},
    {"transport", required_argument, NULL, OPT_TRANSPORT},
    {"paths", required_argument, NULL, OPT_PATHS},
    {"no-relays", no_argument, NULL, OPT_NO_RELAYS},
    {"replica", required_argument, NULL, OPT_REPLICA},
    {"subset", required_argument, NULL, OPT_SUBSET},
    {"trace", required_argument, NULL, OPT_TRACE},
    {"json", no_argument, NULL, OPT_JSON},
    {"join", no_argument, NULL, OPT_JOIN},
    {"started", no_argument, NULL, OPT_STARTED}, /* for ranks that this command has started */
    {NULL, 0, NULL, 0}};

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
    int         status = parse_options("run", argc, argv, long_options, apply_option, &r);
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
