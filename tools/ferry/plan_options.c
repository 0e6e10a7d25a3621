/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The arguments of `ferry plan`. */
#include "plan.h"

#include "commands.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_JSON = 256,
    OPT_SUMMARY,
    OPT_RANK,
    OPT_REPLICA,
    OPT_SUBSET,
    OPT_WITHOUT,
    OPT_PROVE,
    OPT_SAVE,
    OPT_SCHEDULE,
    OPT_DUPLEX,
    OPT_SLOT_BYTES,
    OPT_MAX_TASKS,
    OPT_NO_RELAYS,
    OPT_TRACE
};

const option_row plan_option_rows[] = {
    OPTION("json", NULL, OPT_JSON, "print ferry.plan/1 for machines, streamed"),
    OPTION("summary", NULL, OPT_SUMMARY, "leave the moves and batches out of --json"),
    OPTION("rank", "R", OPT_RANK,
           "only the moves and batches that rank R sends or receives; ids stay the same"),
    OPTION_WORDS(
        "balanced seed", "replica", "POLICY", OPT_REPLICA,
        "how to choose among ranks that hold the same bytes: balanced (default), so that the "
        "busiest sender sends as little as possible, or seed, the rule of the reference planner"),
    OPTION("subset", "PATTERN", OPT_SUBSET,
           "only destination tensors whose names fit (* any text, ? one byte)"),
    OPTION(
        "without", "RANKS", OPT_WITHOUT,
        "plan again after RANKS (3,7) were lost: nothing comes from them or goes to them. Status 1 "
        "if something is wanted that only they held"),
    OPTION(
        "prove", NULL, OPT_PROVE,
        "check the whole printed plan against the spec, with a slow reference that shares no code "
        "with the planner; status 1 if a single element is wrong"),
    OPTION("save", "FILE", OPT_SAVE,
           "write the plan's input and digest to FILE: the form to cache"),
    OPTION_WORDS(
        "optimal first-fit first-fit-half", "schedule", "[RULE]", OPT_SCHEDULE,
        "say in which round everything travels, and predict how long it takes on the spec's "
        "cluster; see below"),
    OPTION("trace", "FILE", OPT_TRACE,
           "the same, and write its timeline to FILE: a Chrome trace, which opens in Perfetto. "
           "FILE is "
           "replaced when the trace is complete"),
    OPTION_HEADING("A schedule"),
    OPTION_NOTE(
        "  Moves are cut into segments, segments for one receiver fill batches, and batches get\n"
        "  rounds in which a rank sends at most one and receives at most one. Ranks do not wait "
        "for\n"
        "  each other between rounds. RULE is one of\n"
        "\n"
        "  optimal             (default) as many rounds as the busiest rank has batches, which no\n"
        "                      schedule can beat, and batches of sizes that keep the ranks busy; "
        "what\n"
        "                      several ranks want may be passed on by those that have it\n"
        "  first-fit           each batch in the first round that is free, by sender and receiver: "
        "the\n"
        "                      rule of the reference scheduler\n"
        "  first-fit-half      the same where a rank takes part in one batch of a round; implies\n"
        "                      --duplex half\n"
        "\n"
        "  These go with --schedule or --trace:\n"),
    OPTION_WORDS("half full", "duplex", "MODE", OPT_DUPLEX,
                 "full (default) if a rank can send and receive at once, or half"),
    OPTION("slot-bytes", "N", OPT_SLOT_BYTES,
           "the most bytes of a batch, at least an element's: a number, or one with K, M or G for "
           "KiB, "
           "MiB or GiB; default 16M"),
    OPTION("max-tasks", "N", OPT_MAX_TASKS, "the most segments of a batch; default 10000"),
    OPTION("no-relays", NULL, OPT_NO_RELAYS,
           "nothing is passed on: every byte comes from its move's own sender"),
    OPTION_END};

/* A decimal number that may be followed by something, which *end_out is. */
static bool parse_number(const char *text, unsigned long long *value_out, const char **end_out)
{
    char *end;
    errno      = 0;
    *value_out = strtoull(text, &end, 10);
    *end_out   = end;
    return *text >= '0' && *text <= '9' && errno == 0;
}

static bool parse_rank(const char *text, uint32_t *rank_out)
{
    unsigned long long value;
    const char        *end;
    if (!parse_number(text, &value, &end) || *end != '\0' || value >= FERRY_MAX_RANKS) {
        return false;
    }
    *rank_out = (uint32_t)value;
    return true;
}

static size_t count_commas(const char *text)
{
    size_t n = 0;
    for (; *text != '\0'; text++) {
        n += *text == ',';
    }
    return n;
}

/* "3,7": what planning thinks of the numbers, it says itself. Given again, it adds more ranks. */
static int parse_without(const char *text, plan_request *r)
{
    size_t    n     = r->planning.n_lost_ranks;
    uint32_t *ranks = realloc(r->lost, (n + count_commas(text) + 1) * sizeof *ranks);
    if (ranks == NULL) {
        return fail("plan", "no memory for a list of ranks");
    }
    r->lost                = ranks;
    r->planning.lost_ranks = ranks;
    const char *at         = text, *end;
    do {
        unsigned long long value;
        if (!parse_number(at, &value, &end) || (*end != ',' && *end != '\0') ||
            value >= FERRY_MAX_RANKS) {
            return fail_usage("plan", "--without takes ranks with commas between them, not \"%s\"",
                              text);
        }
        ranks[n++] = (uint32_t)value;
        at         = end + 1;
    } while (*end == ',');
    r->planning.n_lost_ranks = n;
    r->has_planning_option   = true;
    return EXIT_DONE;
}

bool parse_bytes(const char *text, uint64_t *bytes_out)
{
    static const char  units[] = "KMG";
    unsigned long long value;
    const char        *end;
    if (!parse_number(text, &value, &end) || value == 0) {
        return false;
    }
    unsigned shift = 0;
    if (*end != '\0') {
        const char *unit = strchr(units, *end);
        if (unit == NULL || end[1] != '\0') {
            return false;
        }
        shift = 10 * (unsigned)(unit - units + 1);
    }
    *bytes_out = (uint64_t)value << shift;
    return *bytes_out >> shift == value;
}

static int parse_policy(const char *text, plan_request *r)
{
    if (strcmp(text, "balanced") == 0) {
        r->planning.replica = FERRY_REPLICA_BALANCED;
    } else if (strcmp(text, "seed") == 0) {
        r->planning.replica = FERRY_REPLICA_SEED;
    } else {
        return fail_usage("plan", "--replica takes balanced or seed, not \"%s\"", text);
    }
    r->has_planning_option = true;
    return EXIT_DONE;
}

static int parse_rule(const char *text, plan_request *r)
{
    static const char *const names[] = {[FERRY_SCHEDULE_OPTIMAL]        = "optimal",
                                        [FERRY_SCHEDULE_FIRST_FIT]      = "first-fit",
                                        [FERRY_SCHEDULE_FIRST_FIT_HALF] = "first-fit-half"};
    r->has_schedule                  = true;
    for (uint32_t i = 0; text != NULL; i++) {
        if (i == sizeof names / sizeof names[0]) {
            return fail_usage(
                "plan", "--schedule takes optimal, first-fit or first-fit-half, not \"%s\"", text);
        }
        if (strcmp(text, names[i]) == 0) {
            r->scheduling.rule = i;
            break;
        }
    }
    return EXIT_DONE;
}

static int parse_duplex(const char *text, plan_request *r)
{
    if (strcmp(text, "half") == 0) {
        r->scheduling.duplex = FERRY_DUPLEX_HALF;
    } else if (strcmp(text, "full") == 0) {
        r->scheduling.duplex = FERRY_DUPLEX_FULL;
    } else {
        return fail_usage("plan", "--duplex takes half or full, not \"%s\"", text);
    }
    r->has_duplex        = true;
    r->scheduling_option = "--duplex";
    return EXIT_DONE;
}

static int parse_max_tasks(const char *text, plan_request *r)
{
    unsigned long long value;
    const char        *end;
    if (!parse_number(text, &value, &end) || *end != '\0' || value == 0 || value > UINT32_MAX) {
        return fail_usage("plan", "--max-tasks takes a number from 1 to %u, not \"%s\"", UINT32_MAX,
                          text);
    }
    r->scheduling.max_tasks = (uint32_t)value;
    r->scheduling_option    = "--max-tasks";
    return EXIT_DONE;
}

static int apply_schedule_option(int option, plan_request *r)
{
    switch (option) {
    case OPT_SCHEDULE:
        return parse_rule(optarg, r);
    case OPT_DUPLEX:
        return parse_duplex(optarg, r);
    case OPT_SLOT_BYTES:
        if (!parse_bytes(optarg, &r->scheduling.slot_bytes)) {
            return fail_usage("plan",
                              "--slot-bytes takes a number of bytes from 1, or of K, M or G (4096, "
                              "16M), not \"%s\"",
                              optarg);
        }
        r->scheduling_option = "--slot-bytes";
        return EXIT_DONE;
    case OPT_MAX_TASKS:
        return parse_max_tasks(optarg, r);
    case OPT_NO_RELAYS:
        r->scheduling.no_relays = true;
        r->scheduling_option    = "--no-relays";
        return EXIT_DONE;
    case OPT_TRACE:
        if (*optarg == '\0') {
            return fail_usage("plan", "--trace takes the name of a file");
        }
        r->trace        = optarg;
        r->has_schedule = true;
        return EXIT_DONE;
    default:
        return EXIT_USAGE;
    }
}

static int apply_option(int option, void *request)
{
    plan_request *r = request;
    switch (option) {
    case OPT_JSON:
        r->json = true;
        return EXIT_DONE;
    case OPT_SUMMARY:
        r->summary = true;
        return EXIT_DONE;
    case OPT_RANK:
        if (!parse_rank(optarg, &r->rank)) {
            return fail_usage("plan", "--rank takes a rank, not \"%s\"", optarg);
        }
        r->has_rank = true;
        return EXIT_DONE;
    case OPT_REPLICA:
        return parse_policy(optarg, r);
    case OPT_SUBSET:
        r->planning.subset     = optarg;
        r->has_planning_option = true;
        return EXIT_DONE;
    case OPT_WITHOUT:
        return parse_without(optarg, r);
    case OPT_PROVE:
        r->prove = true;
        return EXIT_DONE;
    case OPT_SAVE:
        r->save = optarg;
        return *optarg != '\0' ? EXIT_DONE : fail_usage("plan", "--save takes the name of a file");
    default:
        return apply_schedule_option(option, r);
    }
}

/* What each option may say was checked; this is what they say together. */
static int check_together(plan_request *r)
{
    if (r->summary && !r->json) {
        return fail_usage("plan", "--summary goes with --json");
    }
    if (r->prove && r->planning.subset != NULL) {
        return fail_usage("plan", "--prove takes whole plans, so it does not go with --subset");
    }
    if (r->prove && r->planning.n_lost_ranks > 0) {
        return fail_usage("plan", "--prove takes whole plans, so it does not go with --without");
    }
    if (r->scheduling_option != NULL && !r->has_schedule) {
        return fail_usage("plan", "%s goes with --schedule or --trace", r->scheduling_option);
    }
    if (r->scheduling.rule == FERRY_SCHEDULE_FIRST_FIT_HALF) {
        if (r->has_duplex && r->scheduling.duplex == FERRY_DUPLEX_FULL) {
            return fail_usage("plan", "--schedule=first-fit-half is half duplex, so it does not go "
                                      "with --duplex full");
        }
        r->scheduling.duplex = FERRY_DUPLEX_HALF;
    }
    return EXIT_DONE;
}

static int parse(int argc, char **argv, plan_request *r)
{
    int status = parse_options(&command_plan, argc, argv, apply_option, r);
    if (status != EXIT_DONE) {
        return status;
    }
    if (optind + 1 != argc) {
        return fail_usage("plan", "%s",
                          optind == argc    ? "a spec is missing"
                          : r->has_schedule ? "there is more than one spec (a rule follows "
                                              "--schedule after \"=\")"
                                            : "there is more than one spec");
    }
    r->path = argv[optind];
    return check_together(r);
}

int plan_parse_arguments(int argc, char **argv, plan_request *request_out)
{
    *request_out = (plan_request){.planning   = FERRY_PLAN_OPTIONS_INIT,
                                  .scheduling = FERRY_SCHEDULE_OPTIONS_INIT};
    return parse(argc, argv, request_out);
}

void plan_request_cleanup(plan_request *request)
{
    free(request->lost);
}
